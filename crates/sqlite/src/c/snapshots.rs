//! `hardpack_snapshot`.
#![expect(unsafe_code, reason = "C programs call this function")]

use std::ffi::{OsStr, c_char, c_int};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use hardpack_engine::FileId;
use hardpack_engine::pool::{Kind, Pool, ROOT};

use super::connection::Connection;
use super::copies::{path, uri_of};
use super::{Code, Failure, optional, required, run};
use crate::companion::lock_path;
use crate::host_name::{LOG_SUFFIX, generation_suffix};
use crate::reader::open_pool;
use crate::system;

/// How often to ask for a checkpoint that readers prevent, and the pause in between.
const CHECKPOINT_TRIES: usize = 40;
const CHECKPOINT_PAUSE: Duration = Duration::from_millis(50);

/// Takes the snapshot `name` of the pool `pool`, or of the file or directory `inner` in it.
///
/// # Safety
///
/// Each argument is a C string; `inner` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hardpack_snapshot(
    pool: *const c_char,
    inner: *const c_char,
    name: *const c_char,
) -> c_int {
    run(|| {
        // SAFETY: the caller vouches for the arguments.
        let (pool, inner, name) =
            unsafe { (required(pool, "a pool")?, optional(inner), required(name, "a name")?) };
        snapshot(path(pool), inner, name)
    })
}

/// Takes the snapshot `name` of a pool, or of the file or directory `inner` in it.
pub(crate) fn snapshot(path: &Path, inner: Option<&[u8]>, name: &[u8]) -> Result<(), Failure> {
    let (opened, path) = open_pool(path)?;
    let path = &path;
    let pool = opened.pool();
    pool.refresh()?;
    let inner = inner.filter(|inner| !inner.is_empty());
    let scope = match inner {
        Some(inner) => pool.resolve(inner)?,
        None => return take(path, pool, ROOT, Kind::Directory, b"", name),
    };
    take(path, pool, scope.file, scope.kind, inner.unwrap_or_default(), name)
}

fn take(
    path: &Path,
    pool: &Pool,
    scope: FileId,
    kind: Kind,
    inner: &[u8],
    name: &[u8],
) -> Result<(), Failure> {
    let mut logs: Vec<Vec<u8>> = Vec::new();
    if kind == Kind::File {
        if has_log(path, pool, scope)? {
            logs.push(inner.to_vec());
        }
    } else {
        // A damaged or changing directory fails here.
        let mut failure = None;
        pool.walk(scope, &mut |below, entry, _| {
            if entry.kind == Kind::File {
                match has_log(path, pool, entry.file) {
                    Ok(true) if inner.is_empty() => logs.push(below.to_vec()),
                    Ok(true) => logs.push([inner, b"/", below].concat()),
                    Ok(false) => {}
                    Err(error) => failure = failure.take().or(Some(error)),
                }
            }
            Ok(true)
        })?;
        if let Some(failure) = failure {
            return Err(failure);
        }
    }
    for database in &logs {
        bring_in(path, database)?;
    }
    pool.refresh()?;
    pool.create_snapshot(scope, name, system::now_ns())?;
    Ok(())
}

/// Whether part of a database may be in its log beside the pool.
fn has_log(path: &Path, pool: &Pool, file: FileId) -> Result<bool, Failure> {
    let base = lock_path(path.as_os_str().as_bytes(), file);
    let suffix = generation_suffix(pool.generation(file)?);
    let log = [&base[..], LOG_SUFFIX, suffix.as_bytes()].concat();
    Ok(fs::metadata(OsStr::from_bytes(&log)).is_ok_and(|metadata| metadata.len() > 0))
}

/// Copies all transactions that are in the log of a database into the pool. Others go on reading
/// and writing.
fn bring_in(path: &Path, inner: &[u8]) -> Result<(), Failure> {
    let db = Connection::open(&uri_of(path, Some(inner))?, 0)?;
    for _ in 0..CHECKPOINT_TRIES {
        let row = db.row(c"PRAGMA wal_checkpoint(PASSIVE)")?;
        if matches!(&row[..], [_, in_log, copied] if in_log == copied) {
            return Ok(());
        }
        system::sleep(CHECKPOINT_PAUSE);
    }
    let name = String::from_utf8_lossy(inner);
    let text = format!("a reader of '{name}' keeps its log from being copied into the pool");
    Err(Failure::new(Code::InUse, text))
}
