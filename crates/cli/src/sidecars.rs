//! The files next to a pool that belong to its databases: logs, journals and shared memory. Their
//! names extend the name of the pool.
//!
//! A pool may have several names (hard links, a rename while somebody has it open), and what a
//! database has committed may then lie in a log beside one that this command was not given. The VFS
//! refuses to use a pool by two names at once; commands that read past it ask here.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use hardpack::open_mark;
use hardpack::pool_names::{is_used_by_another_name, other_names};
use hardpack_engine::device::Device;
use hardpack_engine::pool::{Kind, Pool};
use hardpack_engine::{Error, FileId};

use crate::failure::{Code, Reason};
use crate::pool_file::{FileKind, kind_of};
use crate::{sqlite, text};

/// The file of a pool whose log and journal are named after the pool itself.
pub const FIRST_FILE: FileId = FileId(2);
/// The suffixes of a log and a journal; the generation follows.
const LOG_SUFFIXES: [&str; 2] = ["-wal", "-journal"];
/// The number of hexadecimal digits of a generation other than 0.
const GENERATION_LEN: usize = 16;

/// The path of a pool that SQLite derives the names of other files from: if `pool` is a symbolic
/// link, the path that it leads to.
pub fn without_link(pool: &Path) -> PathBuf {
    let is_link = std::fs::symlink_metadata(pool).is_ok_and(|found| found.is_symlink());
    let found = is_link.then(|| std::fs::canonicalize(pool).ok()).flatten();
    found.unwrap_or_else(|| pool.into())
}

/// The path that the names of a database's log and journal extend.
pub fn sidecar_base(pool: &Path, file: FileId) -> PathBuf {
    let pool = without_link(pool);
    match file {
        FIRST_FILE => pool,
        FileId(number) => sqlite::beside(&pool, &format!("-db{number}")),
    }
}

/// The path of a database's shared memory.
pub fn shared_memory(pool: &Path, file: FileId) -> PathBuf {
    sqlite::beside(&sidecar_base(pool, file), "-shm")
}

/// A file next to a pool that belongs to one of its databases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sidecar {
    /// The number of the database.
    pub file: FileId,
    /// The generation of the content that it belongs to, if it is a log or a journal.
    pub generation: Option<u64>,
}

/// Parses the name of a file next to a pool; `None` if it belongs to no database of the pool.
pub fn sidecar_of(pool_name: &[u8], name: &[u8]) -> Option<Sidecar> {
    let rest = name.strip_prefix(pool_name)?;
    let (file, suffix) = match rest.strip_prefix(b"-db") {
        None => (FIRST_FILE, rest),
        Some(rest) => {
            let end = rest.iter().position(|byte| *byte == b'-').unwrap_or(rest.len());
            let (number, suffix) = rest.split_at(end);
            (FileId(std::str::from_utf8(number).ok()?.parse().ok()?), suffix)
        }
    };
    match (suffix, file) {
        (b"", FIRST_FILE) => return None,
        (b"" | b"-shm", _) => return Some(Sidecar { file, generation: None }),
        _ => {}
    }
    let found = LOG_SUFFIXES.iter().find_map(|known| suffix.strip_prefix(known.as_bytes()));
    let generation = match found? {
        b"" => 0,
        digits if digits.len() == GENERATION_LEN => {
            u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?
        }
        _ => return None,
    };
    Some(Sidecar { file, generation: Some(generation) })
}

/// Lists the logs and journals next to a pool that are not empty, with path and length in bytes.
pub fn logs_beside(pool: &Path) -> std::io::Result<Vec<(Sidecar, PathBuf, u64)>> {
    let pool = &without_link(pool);
    let name = pool.file_name().unwrap_or_default().as_bytes();
    let directory = pool.parent().filter(|parent| !parent.as_os_str().is_empty());
    let paths: Vec<PathBuf> = match std::fs::read_dir(directory.unwrap_or(Path::new("."))) {
        Ok(entries) => entries
            .map(|entry| Ok(pool.with_file_name(entry?.file_name())))
            .collect::<std::io::Result<_>>()?,
        // The directory does not exist yet, or we may not list it.
        Err(_) => LOG_SUFFIXES.iter().map(|suffix| sqlite::beside(pool, suffix)).collect(),
    };
    let mut found = Vec::new();
    for path in paths {
        let sidecar = sidecar_of(name, path.file_name().unwrap_or_default().as_bytes());
        let Some(sidecar) = sidecar.filter(|sidecar| sidecar.generation.is_some()) else {
            continue;
        };
        let len = std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
        if len > 0 {
            found.push((sidecar, path, len));
        }
    }
    found.sort_by(|(_, one, _), (_, other, _)| one.cmp(other));
    Ok(found)
}

/// Whether the names beside a pool can be listed, so that [`logs_beside`] finds all logs.
pub fn can_list_beside(pool: &Path) -> bool {
    let pool = without_link(pool);
    let directory = pool.parent().filter(|parent| !parent.as_os_str().is_empty());
    std::fs::read_dir(directory.unwrap_or(Path::new("."))).is_ok()
}

/// Returns the databases at or below `scope` that have a log or journal beside this name of the
/// pool that is not empty, with its path. Asks for each file, so it needs no list of the directory.
pub fn with_logs(path: &Path, pool: &Pool, scope: FileId) -> Result<Vec<(FileId, PathBuf)>, Error> {
    let mut found = Vec::new();
    let mut look = |file| {
        found.extend(sidecar_at(path, pool, file)?.map(|log| (file, log)));
        Ok::<_, Error>(())
    };
    match pool.attributes(scope)?.kind {
        Kind::Directory => pool.walk(scope, &mut |_, entry, _| {
            if entry.kind == Kind::File {
                look(entry.file)?;
            }
            Ok(true)
        })?,
        _ => look(scope)?,
    }
    found.sort();
    found.dedup();
    Ok(found)
}

/// Like [`logs_beside`], but beside the other names of the pool in its directory.
pub fn logs_beside_other_names(pool: &Path) -> std::io::Result<Vec<(Sidecar, PathBuf, u64)>> {
    let mut found = Vec::new();
    for other in other_names(&without_link(pool))? {
        found.extend(logs_beside(&other)?);
    }
    Ok(found)
}

/// Like [`logs_beside`], but beside every name that the pool has in its directory.
pub fn logs_beside_all_names(pool: &Path) -> std::io::Result<Vec<(Sidecar, PathBuf, u64)>> {
    let mut found = logs_beside(pool)?;
    found.extend(logs_beside_other_names(pool)?);
    Ok(found)
}

/// Whether a database has a log or journal that is not empty, so that the pool alone does not hold
/// all of it. Fails if it lies beside another name of the pool.
pub fn has_sidecar(path: &Path, pool: &Pool, file: FileId) -> Result<bool, Reason> {
    if sidecar_at(path, pool, file)?.is_some() {
        return Ok(true);
    }
    for other in other_names(&without_link(path))? {
        if let Some(log) = sidecar_at(&other, pool, file)? {
            return Err(is_elsewhere(&log));
        }
    }
    Ok(false)
}

/// The error for a database with a log or journal beside another name of its pool.
pub fn is_elsewhere(log: &Path) -> Reason {
    let log = text::path(log);
    let text = format!("part of it is in '{log}', which belongs to another name of the pool");
    Reason::new(Code::InUse, text).hint("use that name")
}

/// Whether others use databases of the pool by another name than this, so that they may commit to
/// logs that are not looked for.
pub fn is_used_elsewhere(path: &Path, device: &dyn Device) -> bool {
    // Where there are no locks, nobody has marked a name.
    is_used_by_another_name(device, &without_link(path)).unwrap_or(false)
}

/// Fails if the pool is used by another name, and somebody has this file open, as a database with a
/// log.
pub fn refuse_log_elsewhere(path: &Path, pool: &Pool, file: FileId) -> Result<(), Reason> {
    let (device, mark) = (pool.store().device(), open_mark(file));
    let is_open = || device.is_any_marked(mark..mark + 1).unwrap_or(false);
    if is_used_elsewhere(path, &**device) && is_open() && kind_of(pool, file)? == FileKind::Wal {
        let text = "it is in use under another name of the pool, and part of it may be in its log";
        return Err(Reason::new(Code::InUse, text).hint("use that name, or close it there first"));
    }
    Ok(())
}

/// Returns the log or journal of a database beside this name of the pool that is not empty.
pub fn sidecar_at(path: &Path, pool: &Pool, file: FileId) -> Result<Option<PathBuf>, Error> {
    let base = sidecar_base(path, file);
    let ending = match pool.generation(file)? {
        0 => String::new(),
        generation => format!("{generation:016x}"),
    };
    let paths = LOG_SUFFIXES.map(|suffix| sqlite::beside(&base, &format!("{suffix}{ending}")));
    let holds_something =
        |path: &PathBuf| std::fs::metadata(path).is_ok_and(|metadata| metadata.len() > 0);
    Ok(paths.into_iter().find(holds_something))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_beside_a_pool_are_understood() {
        let of = |name: &str| sidecar_of(b"p.hpk", name.as_bytes());
        let is = |file, generation| Some(Sidecar { file: FileId(file), generation });
        assert_eq!(of("p.hpk-wal"), is(2, Some(0)));
        assert_eq!(of("p.hpk-journal00000000000000ff"), is(2, Some(255)));
        assert_eq!(of("p.hpk-shm"), is(2, None));
        assert_eq!(of("p.hpk-db7"), is(7, None));
        assert_eq!(of("p.hpk-db7-shm"), is(7, None));
        assert_eq!(of("p.hpk-db7-wal"), is(7, Some(0)));
        assert_eq!(of("p.hpk-db7-wal00000000000000ff"), is(7, Some(255)));
        for other in ["p.hpk", "p.hpk-dbx", "p.hpk-db7-walff", "p.hpk-mj012345911", "q.hpk-wal"] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
