//! `PRAGMA hardpack_…`: properties of a pool and facts about it, from SQL.
//!
//! `PRAGMA hardpack_compression` reads a property, `PRAGMA hardpack_compression='zstd-9'` sets it
//! for data written from now on, and `= 'inherit'` makes it inherited again. The property belongs
//! to the pool, or to the file if that was opened by its path in the pool. `PRAGMA hardpack_txg`
//! returns the number of the state being read, `PRAGMA hardpack_ratio` its compression ratio, and
//! `PRAGMA hardpack_version` the version of this library. The functions in `functions/` return the
//! same.
#![expect(unsafe_code, reason = "arguments that SQLite passes as pointers")]

use std::ffi::{CStr, c_char, c_int};

use hardpack_engine::Error;
use hardpack_engine::pool::{Property, Settings};

use crate::api;
use crate::ffi::{
    SQLITE_BUSY, SQLITE_BUSY_SNAPSHOT, SQLITE_CORRUPT, SQLITE_ERROR, SQLITE_FULL, SQLITE_IOERR,
    SQLITE_NOTFOUND, SQLITE_OK, SQLITE_READONLY,
};
use crate::main_file::MainFile;

const PREFIX: &str = "hardpack_";

const VERSION: &str = "version";
const TXG: &str = "txg";
const RATIO: &str = "ratio";
/// The pragmas that are no properties, without their prefix.
pub const FACTS: [&str; 3] = [VERSION, TXG, RATIO];

/// Answers a pragma. Returns SQLITE_NOTFOUND for a pragma that is not ours.
///
/// # Safety
///
/// `arguments` is the argument of SQLITE_FCNTL_PRAGMA: the answer, the name, the value or NULL.
pub unsafe fn run(file: &mut MainFile, arguments: *mut *mut c_char) -> c_int {
    // SAFETY: the caller vouches for the array; its strings end with NUL bytes.
    let (name, value) = unsafe {
        let name = CStr::from_ptr(*arguments.add(1)).to_string_lossy().to_ascii_lowercase();
        let value = *arguments.add(2);
        let value =
            (!value.is_null()).then(|| CStr::from_ptr(value).to_string_lossy().into_owned());
        (name, value)
    };
    let Some(name) = name.strip_prefix(PREFIX) else {
        note_mode(file, &name, &value.unwrap_or_default().to_ascii_lowercase());
        return SQLITE_NOTFOUND;
    };
    let (code, text) = match answer(file, name, value.as_deref()) {
        Ok(text) => (SQLITE_OK, text),
        Err(Refused(code, reason)) => (code, format!("hardpack_{name}: {reason}")),
    };
    // SAFETY: the first element is ours to set; SQLite frees the memory.
    unsafe { *arguments = api::sqlite_string(&text) };
    code
}

/// Takes note of a change of SQLite's own modes that locks depend on.
fn note_mode(file: &mut MainFile, name: &str, value: &str) {
    match (name, value) {
        ("journal_mode", "wal") => file.note_wish_for_log(),
        ("locking_mode", "exclusive") => file.note_locking_mode(true),
        ("locking_mode", "normal") => file.note_locking_mode(false),
        _ => {}
    }
}

/// Why a plain database has no properties.
pub const PLAIN: &str = "the database is a plain file, not a pool";
/// Why there is no state that a connection reads.
const STATE_LOST: &str = "the transaction has held its state for longer than reader-pin-max allows";

/// Why a pragma was refused: a code for programs and a text for people.
pub struct Refused(pub c_int, pub String);

impl From<&str> for Refused {
    fn from(text: &str) -> Refused {
        Refused(SQLITE_ERROR, text.into())
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        let code = match &error {
            // These are errors of the request, not of the pool.
            Error::Invalid(_) | Error::NotFound { .. } => SQLITE_ERROR,
            Error::Busy => SQLITE_BUSY,
            Error::NoSpace => SQLITE_FULL,
            Error::ReadOnly(_) | Error::CutShort(_) => SQLITE_READONLY,
            Error::Corrupt { .. } => SQLITE_CORRUPT,
            _ => SQLITE_IOERR,
        };
        Refused(code, error.to_string())
    }
}

fn answer(file: &mut MainFile, name: &str, value: Option<&str>) -> Result<String, Refused> {
    if name == VERSION {
        return Ok(env!("CARGO_PKG_VERSION").into());
    }
    if file.is_plain() {
        return Err(PLAIN.into());
    }
    if file.pool().is_some() {
        match name {
            TXG => return Ok(txg(file)?.unwrap_or_default().to_string()),
            RATIO => return Ok(format!("{:.2}", ratio(file)?.unwrap_or_default())),
            _ => {}
        }
    }
    let property: Property = name.parse()?;
    if let Some(text) = value {
        set(file, property, text)?;
    }
    get(file, property)
}

/// Returns the number of the state that the connection reads; `None` if there is no pool.
pub fn txg(file: &mut MainFile) -> Result<Option<u64>, Refused> {
    let Some(pool) = file.pool() else { return Ok(None) };
    pool.refresh()?;
    let txg = file.pinned_txg().unwrap_or(pool.state().txg()).0;
    match file.has_lost_state() {
        false => Ok(Some(txg)),
        true => Err(Refused(SQLITE_BUSY_SNAPSHOT, STATE_LOST.into())),
    }
}

/// Returns how many times smaller the pool makes its content; `None` if there is no pool.
pub fn ratio(file: &MainFile) -> Result<Option<f64>, Refused> {
    let Some(pool) = file.pool() else { return Ok(None) };
    pool.refresh()?;
    Ok(Some(pool.state().stats().compress_ratio()))
}

/// Returns the value of a property, of a database that is not plain.
pub fn get(file: &mut MainFile, property: Property) -> Result<String, Refused> {
    match file.pool() {
        Some(pool) => {
            // Another process may have set it since the last transaction.
            pool.refresh()?;
            let values = pool.properties(file.property_owner())?;
            let found = values.into_iter().find(|value| value.property == property);
            Ok(found.map(|value| value.value).unwrap_or_default())
        }
        None => {
            let pending = file.pending_properties().iter().rfind(|(p, _)| *p == property).cloned();
            match pending {
                Some((_, text)) => Ok(text),
                None => Ok(file.future_settings()?.get(property)),
            }
        }
    }
}

/// Sets a property, or makes it inherited again if the text is `inherit`.
pub fn set(file: &mut MainFile, property: Property, text: &str) -> Result<(), Refused> {
    if file.is_plain() {
        return Err(PLAIN.into());
    }
    if let Some(cut) = file.pool().and_then(|pool| pool.store().cut_short()) {
        return Err(Error::CutShort(cut).into());
    }
    if file.is_read_only() {
        return Err("the database was opened read-only".into());
    }
    let inherit = text.eq_ignore_ascii_case("inherit");
    file.await_turn()?;
    if let Some(pool) = file.pool() {
        let owner = file.property_owner();
        let done = if inherit {
            pool.inherit_property(owner, property)
        } else {
            pool.set_property(owner, property, text)
        };
        return Ok(done?);
    }
    let mut wanted = Settings::default();
    if !inherit {
        wanted.set(property, text)?;
    }
    let pending = file.pending_properties();
    pending.retain(|(other, _)| *other != property);
    if !inherit {
        pending.push((property, wanted.get(property)));
    }
    Ok(())
}
