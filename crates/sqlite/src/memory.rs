//! How much memory the caches of a process take: those of the extension, the command and a mount.

use std::fs;

use crate::system;

/// The caches take one part in this many of the memory that there is, within the next two limits.
const CACHE_PART: u64 = 16;
const CACHE_LEN_MIN: u64 = 32 << 20;
const CACHE_LEN_MAX: u64 = 1 << 30;
const CACHE_LEN_FALLBACK: u64 = 128 << 20;
/// Overrides the length of the caches, in bytes.
const CACHE_VARIABLE: &str = "HARDPACK_CACHE_BYTES";
/// Where Linux tells a container its limit, as version 2 and version 1 of control groups do. The
/// first says `max` if there is none, the second a number beyond all memory.
const LIMIT_FILES: [&str; 2] =
    ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];

/// Returns the length of the caches, in bytes. They take it only as they are used.
pub fn cache_len() -> u64 {
    if let Some(bytes) = std::env::var(CACHE_VARIABLE).ok().and_then(|text| text.parse().ok()) {
        return bytes;
    }
    let limits = LIMIT_FILES.iter().filter_map(|path| limit_in(&fs::read_to_string(path).ok()?));
    part_of(system::memory_len().into_iter().chain(limits).min())
}

fn limit_in(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

fn part_of(memory_len: Option<u64>) -> u64 {
    memory_len.map_or(CACHE_LEN_FALLBACK, |bytes| {
        (bytes / CACHE_PART).clamp(CACHE_LEN_MIN, CACHE_LEN_MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_take_a_part_of_the_memory_within_limits() {
        assert_eq!(part_of(Some(4 << 30)), 256 << 20);
        assert_eq!(part_of(Some(100 << 20)), CACHE_LEN_MIN);
        assert_eq!(part_of(Some(1 << 40)), CACHE_LEN_MAX);
        assert_eq!(part_of(None), CACHE_LEN_FALLBACK);
    }

    #[test]
    fn limits_of_containers_are_read() {
        assert_eq!(limit_in("268435456\n"), Some(256 << 20));
        assert_eq!(limit_in("max\n"), None);
    }
}
