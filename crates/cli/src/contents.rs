//! The content of a file in a pool, as of one moment.
//!
//! A database in use, which has a log or journal beside the pool, is read through SQLite in one transaction.
//! Otherwise the pool is all there is, and is read directly; where somebody writes to the file meanwhile, it
//! is read again.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hardpack_engine::pool::Pool;
use hardpack_engine::{Error, FileId};

use crate::address::{Opened, join, os_path};
use crate::failure::{Code, Reason};
use crate::output::bytes;
use crate::pool_file::{self, read_range};
use crate::sqlite;

/// How often to start over when the file changes while it is read.
pub const TRIES_MAX: usize = 5;
const TIMEOUT: Duration = Duration::from_secs(10);
/// The file of a pool whose log and journal are named after the pool itself.
pub const FIRST_FILE: FileId = FileId(2);
/// Of a log and a journal; what follows is the generation.
const LOG_SUFFIXES: [&str; 2] = ["-wal", "-journal"];
/// In hexadecimal digits, where it is not 0.
const GENERATION_LEN: usize = 16;

/// The path by which SQLite opens a database; the only file of a pool goes by the pool's own path.
fn database_of(opened: &Opened, pool: &Path, path: &[u8]) -> PathBuf {
    match opened.pool.only_file() {
        Ok(_) => pool.into(),
        Err(_) => database_path(pool, path),
    }
}

/// Something of the content.
pub enum Piece<'p> {
    Bytes(&'p [u8]),
    /// So many zeros that the pool does not store.
    Hole(u64),
}

/// Takes what is read, in order.
pub type Sink<'s> = dyn FnMut(Piece<'_>) -> Result<(), Reason> + 's;

/// Holes that are shorter are read like any bytes.
const HOLE_LEN_MIN: u64 = 64 << 20;
/// More zeros than that are not written to where holes cannot be left. A pool of some kilobytes may claim any length.
const ZEROS_LEN_MAX: u64 = 1 << 40;
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// For what takes bytes only: the zeros of holes are bytes too, unless they are too many.
pub fn as_bytes(
    mut write: impl FnMut(&[u8]) -> Result<(), Reason>,
) -> impl FnMut(Piece<'_>) -> Result<(), Reason> {
    let mut zeros = 0_u64;
    move |piece| {
        let mut left = match piece {
            Piece::Bytes(bytes) => return write(bytes),
            Piece::Hole(len) => len,
        };
        zeros = zeros.saturating_add(left);
        if zeros > ZEROS_LEN_MAX {
            let text = format!("it claims to be mostly a hole, of {} or more", bytes(zeros, false));
            return Err(Reason::new(Code::Data, text)
                .hint("'hardpack extract' to a file system that knows holes writes none of it"));
        }
        while left > 0 {
            let n = left.min(ZEROS.len() as u64);
            write(&ZEROS[..n as usize])?;
            left -= n;
        }
        Ok(())
    }
}

/// What the names of the log and the journal of a database begin with.
pub fn sidecar_base(pool: &Path, file: FileId) -> PathBuf {
    match file {
        FIRST_FILE => pool.into(),
        FileId(number) => sqlite::beside(pool, &format!("-db{number}")),
    }
}

/// Something that lies beside a pool for a database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sidecar {
    /// Its number.
    pub file: FileId,
    /// The generation of the content that it belongs to, where it is a log or a journal.
    pub generation: Option<u64>,
}

/// What a name beside a pool is, where it is of something that lies there for one of its databases.
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

/// The logs and journals beside a pool that hold anything: of which database, where, and how many bytes.
pub fn logs_beside(pool: &Path) -> std::io::Result<Vec<(Sidecar, PathBuf, u64)>> {
    let name = pool.file_name().unwrap_or_default().as_bytes();
    let directory = pool.parent().filter(|parent| !parent.as_os_str().is_empty());
    let paths: Vec<PathBuf> = match std::fs::read_dir(directory.unwrap_or(Path::new("."))) {
        Ok(entries) => entries
            .map(|entry| Ok(pool.with_file_name(entry?.file_name())))
            .collect::<std::io::Result<_>>()?,
        // A directory that is not there yet, or whose names we may not see.
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

/// Whether a database is in use, or was, so that there is more of it than the pool holds.
pub fn has_sidecar(path: &Path, pool: &Pool, file: FileId) -> Result<bool, Error> {
    let base = sidecar_base(path, file);
    let ending = match pool.generation(file)? {
        0 => String::new(),
        generation => format!("{generation:016x}"),
    };
    let len = |suffix| {
        let path = sqlite::beside(&base, &format!("{suffix}{ending}"));
        std::fs::metadata(path).map_or(0, |metadata| metadata.len())
    };
    Ok(LOG_SUFFIXES.into_iter().any(|suffix| len(suffix) > 0))
}

/// The path under which SQLite finds a file of a pool.
pub fn database_path(pool: &Path, path: &[u8]) -> PathBuf {
    os_path(join(pool.as_os_str().as_bytes(), path))
}

/// Is told how long the content will be, each time before it comes from its beginning.
pub type Begin<'b> = dyn FnMut(u64) -> Result<(), Reason> + 'b;

/// For content that, once written, cannot be taken back.
pub fn once() -> impl FnMut(u64) -> Result<(), Reason> {
    let mut is_begun = false;
    move |_| match std::mem::replace(&mut is_begun, true) {
        true => Err(Reason::new(Code::InUse, "it changed while it was read")),
        false => Ok(()),
    }
}

/// Reads a database through SQLite, with what the log or journal beside the pool holds.
fn read_database(path: &Path, begin: &mut Begin<'_>, sink: &mut Sink<'_>) -> Result<(), Reason> {
    let db = sqlite::open_pool(path, false, TIMEOUT)?;
    sqlite::begin_read(&db)?;
    let (page_len, count) = sqlite::page_size_and_count(&db)?;
    begin(u64::from(page_len) * count)?;
    sqlite::each_page(&db, &mut |page| sink(Piece::Bytes(page)))
}

/// Reads a file, to which `path` leads in the pool.
pub fn read(
    opened: &Opened,
    file: FileId,
    path: &[u8],
    begin: &mut Begin<'_>,
    sink: &mut Sink<'_>,
) -> Result<(), Reason> {
    for _ in 0..TRIES_MAX {
        if let Some(pool) = opened.live()
            && pool_file::is_database(&*opened.pool.file(file)?)?
        {
            if has_sidecar(pool, &opened.pool, file)? {
                return read_database(&database_of(opened, pool, path), begin, sink);
            }
            // A state from before the log was gone may lack what was in it.
            if opened.pool.refresh()? {
                continue;
            }
        }
        if read_once(&opened.pool, file, begin, sink)? {
            return Ok(());
        }
    }
    Err(Reason::new(Code::InUse, "it keeps changing while it is read"))
}

/// Reads a file. `false` if what was read is not one state: then space was used again meanwhile.
fn read_once(
    pool: &Pool,
    id: FileId,
    begin: &mut Begin<'_>,
    sink: &mut Sink<'_>,
) -> Result<bool, Reason> {
    let txg = pool.state().txg();
    let file = pool.file(id)?;
    let (mut ranges, len) = file.covered_ranges(HOLE_LEN_MIN)?;
    begin(len)?;
    // What is between two of them is a hole, and so may be what is behind the last.
    ranges.push((len, len));
    let mut at = 0;
    let read = ranges.into_iter().try_for_each(|(start, end)| {
        // Short ones at the beginning and the end are not worth the distinction.
        let start = if start - at < HOLE_LEN_MIN { at } else { start };
        if start > at {
            sink(Piece::Hole(start - at))?;
        }
        at = end;
        let threads = pool.options().threads;
        read_range(&file, (start, end), threads, &mut |bytes| sink(Piece::Bytes(bytes)))
    });
    if pool.state().txg() != txg {
        return Ok(false);
    }
    read.map(|()| true)
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
