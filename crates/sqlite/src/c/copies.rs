//! `hardpack_pack` and `hardpack_unpack`.
#![expect(unsafe_code, reason = "C programs call these functions")]

use std::ffi::{OsStr, c_char, c_int};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use hardpack_engine::pool::{DirEntry, Kind, Pool, Property, Settings};
use hardpack_engine::store::Durability;

use super::connection::{Connection, host, uri};
use super::staged::Staged;
use super::{Code, Failure, Stop, go_on, optional, required, run};
use crate::ffi::SQLITE_OPEN_CREATE;
use crate::reader::open_pool;
use crate::registry;

const CHUNK_LEN: usize = 1 << 20;
/// How often to begin again if a file changes while it is read.
const TRIES_MAX: usize = 10;
const DATABASE_MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// Makes the pool `pool` from the file or database `input`.
///
/// # Safety
///
/// Each argument is a C string; `properties` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hardpack_pack(
    input: *const c_char,
    pool: *const c_char,
    properties: *const c_char,
) -> c_int {
    run(|| {
        // SAFETY: the caller vouches for the arguments.
        let (input, pool, properties) = unsafe {
            (required(input, "a file")?, required(pool, "a pool")?, optional(properties))
        };
        pack(path(input), path(pool), properties.unwrap_or_default(), &mut || false)
    })
}

/// Writes the file `inner` of the pool `pool` to `output`.
///
/// # Safety
///
/// Each argument is a C string; `inner` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hardpack_unpack(
    pool: *const c_char,
    inner: *const c_char,
    output: *const c_char,
) -> c_int {
    run(|| {
        // SAFETY: the caller vouches for the arguments.
        let (pool, inner, output) = unsafe {
            (required(pool, "a pool")?, optional(inner), required(output, "a file to create")?)
        };
        unpack(path(pool), inner, path(output), &mut || false)
    })
}

/// Returns the path that these bytes are.
pub(crate) fn path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// Reads properties such as "compression=zstd-9 recordsize=64K".
fn parsed(text: &[u8]) -> Result<Vec<(Property, String)>, Failure> {
    let text = String::from_utf8_lossy(text);
    let assignments = text.split_ascii_whitespace().map(|assignment| {
        let (name, value) = assignment.split_once('=').unwrap_or((assignment, ""));
        let found = Property::ALL.into_iter().find(|property| property.name() == name);
        let unknown = || Failure::new(Code::Usage, format!("there is no property '{name}'"));
        let property = found.ok_or_else(unknown)?;
        let wrong = |error| Failure::new(Code::Usage, format!("{error}"));
        Settings::default().set(property, value).map_err(wrong)?;
        Ok((property, value.to_owned()))
    });
    assignments.collect()
}

/// Makes the pool `pool`, with settings such as "compression=zstd-9", from a file or database.
pub(crate) fn pack(
    input: &Path,
    pool: &Path,
    properties: &[u8],
    stop: &mut Stop<'_>,
) -> Result<(), Failure> {
    let properties = &parsed(properties)?;
    host()?;
    let input = input.canonicalize()?;
    let metadata = fs::metadata(&input)?;
    if !metadata.is_file() {
        return Err(Failure::new(Code::Usage, "it is not a regular file"));
    }
    let staged = Staged::new(pool, input.file_name().unwrap_or(OsStr::new("file")))?;
    let from = Connection::open(&uri(input.as_os_str().as_bytes()), 0)?;
    // Reads the header, and rolls a hot journal back.
    match from.row(c"PRAGMA schema_version") {
        Ok(_) if from.is_in_pool()? => {
            return Err(Failure::new(Code::Usage, "it is a pool already"));
        }
        Ok(_) if metadata.len() > 0 => {
            let mut name = uri(staged.path().as_os_str().as_bytes());
            for (property, value) in properties {
                let value = value.replace('%', "%25");
                name.push_str(&format!("&{}={value}", crate::uri::name_of(*property)));
            }
            let to = Connection::open(&name, SQLITE_OPEN_CREATE)?;
            to.copy_from(&from, stop)?;
            to.close()?;
        }
        // Not opened here either: it may be a database in the making, on which SQLite has locks.
        Ok(_) => pack_bytes(std::io::empty(), staged.path(), properties, stop)?,
        // No SQLite database, so that nobody has locks on it as one.
        Err(Failure { code: Code::NotAPool, .. }) => {
            drop(from);
            pack_bytes(File::open(&input)?, staged.path(), properties, stop)?;
        }
        Err(failure) => return Err(failure),
    }
    let made = registry::open(staged.path())?;
    if let Some(problem) = made.pool().check(&mut |_| {})?.problems.first() {
        let text = format!("the new pool is damaged: {}", problem.detail);
        return Err(Failure::new(Code::Damaged, text));
    }
    drop(made);
    go_on(stop)?;
    staged.publish(metadata.mode())
}

fn pack_bytes(
    mut input: impl Read,
    output: &Path,
    properties: &[(Property, String)],
    stop: &mut Stop<'_>,
) -> Result<(), Failure> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(output)?;
    let pool = registry::create(output, properties)?;
    let file = pool.pool().file(pool.pool().only_file()?.file)?;
    let mut at = 0;
    let mut buf = vec![0; CHUNK_LEN];
    loop {
        go_on(stop)?;
        let n = input.read(&mut buf)?;
        if n == 0 {
            break;
        }
        file.write_at(&buf[..n], at)?;
        at += n as u64;
    }
    Ok(file.commit(Durability::Durable)?)
}

/// Finds a file of a pool; the one that the pool goes by if no path is given.
pub fn entry_of(pool: &Pool, inner: Option<&[u8]>) -> Result<DirEntry, Failure> {
    Ok(match inner {
        Some(path) if !path.is_empty() => pool.resolve(path)?,
        _ => pool.database()?,
    })
}

/// The URI of a database in a pool.
pub fn uri_of(pool: &Path, inner: Option<&[u8]>) -> Result<String, Failure> {
    let pool = std::path::absolute(pool)?;
    let pool = pool.as_os_str().as_bytes();
    Ok(match inner {
        Some(inner) if !inner.is_empty() => uri(&[pool, b"/", &doubled(inner)].concat()),
        _ => uri(pool),
    })
}

/// A name in which every `@` is one of its characters.
fn doubled(name: &[u8]) -> Vec<u8> {
    let mut doubled = Vec::with_capacity(name.len());
    for byte in name {
        doubled.push(*byte);
        if *byte == b'@' {
            doubled.push(b'@');
        }
    }
    doubled
}

/// Writes the file `inner` of a pool, or the one that the pool goes by, to `output`.
pub(crate) fn unpack(
    pool_path: &Path,
    inner: Option<&[u8]>,
    output: &Path,
    stop: &mut Stop<'_>,
) -> Result<(), Failure> {
    let (pool, _) = open_pool(pool_path)?;
    let entry = entry_of(pool.pool(), inner)?;
    if entry.kind != Kind::File {
        return Err(Failure::new(Code::Usage, "it is not a file"));
    }
    let staged = Staged::new(output, output.file_name().unwrap_or(OsStr::new("file")))?;
    let mode = match pool.pool().attributes(entry.file)?.mode {
        0 => fs::metadata(pool_path)?.mode(),
        mode => mode,
    };
    let mut front = [0; DATABASE_MAGIC.len()];
    pool.pool().file(entry.file)?.read_at(&mut front, 0)?;
    if front == *DATABASE_MAGIC {
        host()?;
        let from = Connection::open(&uri_of(pool_path, inner)?, 0)?;
        let name = uri(staged.path().as_os_str().as_bytes()) + "&hardpack=0";
        let to = Connection::open(&name, SQLITE_OPEN_CREATE)?;
        to.copy_from(&from, stop)?;
        to.close()?;
    } else {
        unpack_bytes(pool.pool(), &entry, staged.path(), stop)?;
    }
    staged.publish(mode)
}

fn unpack_bytes(
    pool: &Pool,
    entry: &DirEntry,
    output: &Path,
    stop: &mut Stop<'_>,
) -> Result<(), Failure> {
    let mut out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(output)?;
    // Where readers hold states, nobody changes what is read.
    let held = pool.hold_newest()?;
    let pool = held.as_ref().map_or(pool, |(held, _pin)| held);
    let file = pool.file(entry.file)?;
    let mut buf = vec![0; CHUNK_LEN];
    for _ in 0..TRIES_MAX {
        pool.refresh()?;
        let txg = pool.txg();
        let mut at = 0;
        loop {
            go_on(stop)?;
            let n = file.read_at(&mut buf, at)?;
            if n == 0 {
                break;
            }
            out.write_all(&buf[..n])?;
            at += n as u64;
        }
        if pool.txg() == txg {
            return Ok(());
        }
        out.set_len(0)?;
        std::io::Seek::rewind(&mut out)?;
    }
    Err(Failure::new(Code::InUse, "it keeps changing while it is read"))
}
