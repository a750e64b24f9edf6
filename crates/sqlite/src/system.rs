//! The clocks, threads, pauses, random bytes, memory, media and the user of the VFS. Nothing else
//! may use them: `clippy.toml` denies it.
#![expect(clippy::disallowed_methods, reason = "the one place for them")]
#![expect(unsafe_code, reason = "asks the system for the user, local time, its memory and media")]

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hardpack_engine::pool::FileOwner;

/// The file systems to which nobody can write, by the numbers that `statfs` has for them: iso9660,
/// squashfs, erofs, cramfs, romfs.
const READ_ONLY_FILE_SYSTEMS: [u32; 5] = [0x9660, 0x7371_7368, 0xe0f5_e1e2, 0x28cd_3d45, 0x7275];

/// The clock of a simulation.
static CLOCK: OnceLock<fn() -> i64> = OnceLock::new();

/// Replaces the time of day of this process by that of a simulation, once.
pub fn simulate_clock(clock: fn() -> i64) {
    let _ = CLOCK.set(clock);
}

/// Returns the user and the group with whose rights this process creates files.
pub fn owner() -> FileOwner {
    // SAFETY: neither function has preconditions, and neither can fail.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    FileOwner { uid, gid }
}

/// Whether this process has more rights than whoever started it, as a program with the set-user-ID
/// bit does.
pub fn is_privileged() -> bool {
    // SAFETY: the function has no preconditions; an unknown kind of value is 0.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Whether a file is on a medium that nobody can write to, by the type of its file system: others
/// may write to what is only mounted for reading here.
pub fn is_read_only_medium(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: zeros are a value of the structure, which the system fills; the path is terminated.
    let (found, done) = unsafe {
        let mut found: libc::statfs = std::mem::zeroed();
        let done = libc::statfs(path.as_ptr(), &raw mut found);
        (found, done)
    };
    // The type has another width and sign on other platforms.
    #[allow(clippy::unnecessary_cast, reason = "as above")]
    let kind = found.f_type as u32;
    done == 0 && READ_ONLY_FILE_SYSTEMS.contains(&kind)
}

/// Returns the current time in nanoseconds since 1970.
pub fn now_ns() -> i64 {
    if let Some(clock) = CLOCK.get() {
        return clock();
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_nanos()).unwrap_or(0)
}

/// Converts a local date and time (year, month, day, hour, minute, second) to seconds since 1970;
/// `None` if the system cannot.
pub fn from_local([year, month, day, hour, minute, second]: [i64; 6]) -> Option<i64> {
    let int = |n: i64| libc::c_int::try_from(n).ok();
    // SAFETY: `tm` is a plain structure for which zeros are valid, and outlives the call.
    unsafe {
        let mut tm: libc::tm = std::mem::zeroed();
        (tm.tm_year, tm.tm_mon, tm.tm_mday) = (int(year - 1900)?, int(month - 1)?, int(day)?);
        (tm.tm_hour, tm.tm_min, tm.tm_sec) = (int(hour)?, int(minute)?, int(second)?);
        // The system finds out about summer time.
        tm.tm_isdst = -1;
        let seconds = libc::mktime(&mut tm);
        // -1 is an error, and a second of 1969 that nobody will miss.
        (seconds != -1).then_some(seconds)
    }
}

/// Measures the time since it was started.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts a stopwatch.
    pub fn start() -> Stopwatch {
        Stopwatch(Instant::now())
    }

    /// Returns the time since the start.
    pub fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}

/// Pauses the calling thread.
pub fn sleep(pause: Duration) {
    thread::sleep(pause);
}

/// Starts `work` on a thread of its own; returns `None` if the system cannot.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Option<JoinHandle<()>> {
    thread::Builder::new().name(name.into()).spawn(work).ok()
}

/// Returns random bytes that identify a new pool.
pub fn random_guid() -> io::Result<[u8; 16]> {
    let mut guid = [0; 16];
    getrandom::fill(&mut guid).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(guid)
}

/// Returns the machine's memory in bytes, if the system tells.
pub fn memory_len() -> Option<u64> {
    // SAFETY: `sysconf` takes any number and has no other effects.
    let (pages, page_len) =
        unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    u64::try_from(pages).ok()?.checked_mul(u64::try_from(page_len).ok()?).filter(|len| *len > 0)
}
