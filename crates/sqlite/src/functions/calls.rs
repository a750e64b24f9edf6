//! What each function of SQL does.
#![expect(unsafe_code, reason = "finds the open file of a connection")]

use std::path::Path;

use hardpack_engine::pool::{Property, ROOT};

use super::Failed;
use super::values::{Answer, Arguments};
use crate::c::{self, Code, Failure};
use crate::ffi::{SQLITE_BUSY, SQLITE_ERROR, SQLITE_INTERRUPT, SQLITE_NOTADB, SQLITE_READONLY};
use crate::main_file::{MainFile, POOL_SUFFIX};
use crate::pool_path::SNAPSHOT_MARK;
use crate::pragma::{self, Refused};
use crate::stats;

const MAIN: &str = "main";

type Answered = Result<Answer, Failed>;

impl From<String> for Failed {
    fn from(reason: String) -> Failed {
        Failed(SQLITE_ERROR, reason)
    }
}

impl From<Refused> for Failed {
    fn from(Refused(code, reason): Refused) -> Failed {
        Failed(code, reason)
    }
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Failed {
        let code = match failure.code {
            Code::InUse => SQLITE_BUSY,
            Code::NotAPool => SQLITE_NOTADB,
            Code::Interrupted => SQLITE_INTERRUPT,
            _ => SQLITE_ERROR,
        };
        Failed(code, failure.text)
    }
}

/// `hardpack_version()`
pub fn version(_: &Arguments<'_>) -> Answered {
    Ok(Answer::Bytes(env!("CARGO_PKG_VERSION").into()))
}

/// `hardpack_txg([schema])`
pub fn txg(arguments: &Arguments<'_>) -> Answered {
    // SAFETY: this is a call by SQLite, and nothing else uses the file before it ends.
    let Some(file) = (unsafe { file_of(arguments, 0)? }) else { return Ok(Answer::Null) };
    let txg = pragma::txg(file)?.and_then(|txg| i64::try_from(txg).ok());
    Ok(txg.map_or(Answer::Null, Answer::Int))
}

/// `hardpack_ratio([schema])`
pub fn ratio(arguments: &Arguments<'_>) -> Answered {
    // SAFETY: as in `txg`.
    let Some(file) = (unsafe { file_of(arguments, 0)? }) else { return Ok(Answer::Null) };
    Ok(pragma::ratio(file)?.map_or(Answer::Null, Answer::Real))
}

/// `hardpack_get(property [, schema])`
pub fn get(arguments: &Arguments<'_>) -> Answered {
    let Some(name) = arguments.text(0, "the property")? else { return Ok(Answer::Null) };
    let property = property(&name)?;
    // SAFETY: as in `txg`.
    let file = unsafe { file_of(arguments, 1)? };
    let Some(file) = file.filter(|file| !file.is_plain()) else { return Ok(Answer::Null) };
    Ok(Answer::Bytes(pragma::get(file, property)?.into()))
}

/// `hardpack_set(property, value [, schema])`
pub fn set(arguments: &Arguments<'_>) -> Answered {
    let name = arguments.text(0, "the property")?.ok_or("a property must be named".to_owned())?;
    let property = property(&name)?;
    let value = arguments.text(1, "the value")?;
    let value = value.ok_or("a value must be given; 'inherit' is the default".to_owned())?;
    // SAFETY: as in `txg`.
    let file = unsafe { changeable_file_of(arguments, 2)? };
    pragma::set(file, property, &value)?;
    Ok(Answer::Bytes(pragma::get(file, property)?.into()))
}

/// `hardpack_snapshot(name [, schema])`
pub fn snapshot(arguments: &Arguments<'_>) -> Answered {
    let name = arguments.bytes(0, "the name")?;
    let name = c::named(name.as_deref(), "a name")?;
    // SAFETY: as in `txg`. The file is not used any more when others open the pool.
    let file = unsafe { changeable_file_of(arguments, 1)? };
    if file.is_read_only() {
        return Err(Failed(SQLITE_READONLY, "the database was opened read-only".into()));
    }
    let (Some(pool_file), Some(pool)) = (file.pool_file(), file.pool()) else {
        return Err("there is no pool yet: nothing was written".to_owned().into());
    };
    let path = file.path().as_os_str().as_encoded_bytes().to_vec();
    let inner = match file.property_owner() {
        ROOT => None,
        owner => Some(pool.path_of(owner).map_err(Failure::from)?),
    };
    c::snapshot(&pool_file, inner.as_deref(), name)?;
    Ok(Answer::Bytes([&path[..], &[SNAPSHOT_MARK], name].concat()))
}

/// `hardpack_pack(file [, pool [, properties]])`
pub fn pack(arguments: &Arguments<'_>) -> Answered {
    let file = arguments.bytes(0, "the file")?;
    let file = c::named(file.as_deref(), "a file")?;
    let pool = arguments.bytes(1, "the pool")?;
    let pool = pool.unwrap_or_else(|| [file, POOL_SUFFIX].concat());
    let pool = c::named(Some(&pool), "a pool")?;
    let properties = arguments.bytes(2, "the properties")?.unwrap_or_default();
    let done =
        c::pack(c::path(file), c::path(pool), &properties, &mut || arguments.is_interrupted());
    done.map_err(|failure| cannot("pack", c::path(file), failure))?;
    Ok(Answer::Bytes(pool.to_vec()))
}

/// `hardpack_unpack(pool, file [, path])`
pub fn unpack(arguments: &Arguments<'_>) -> Answered {
    let pool = arguments.bytes(0, "the pool")?;
    let pool = c::named(pool.as_deref(), "a pool")?;
    let file = arguments.bytes(1, "the file")?;
    let file = c::named(file.as_deref(), "a file to create")?;
    let inner = arguments.bytes(2, "the path")?;
    let mut stop = || arguments.is_interrupted();
    let done = c::unpack(c::path(pool), inner.as_deref(), c::path(file), &mut stop);
    done.map_err(|failure| cannot("unpack", c::path(pool), failure))?;
    Ok(Answer::Bytes(file.to_vec()))
}

fn cannot(action: &str, what: &Path, failure: Failure) -> Failed {
    let Failed(code, reason) = failure.into();
    Failed(code, format!("cannot {action} '{}': {reason}", what.display()))
}

fn property(name: &str) -> Result<Property, Failed> {
    name.parse().map_err(|error: hardpack_engine::Error| Failed(SQLITE_ERROR, error.to_string()))
}

/// Returns the file of the database that an argument names, `main` if it was not given; `None` if
/// it is NULL or the database does not go through this VFS.
///
/// # Safety
///
/// This is a call by SQLite, and nothing else uses the file as long as the reference is used.
unsafe fn file_of<'a>(
    arguments: &Arguments<'_>,
    index: usize,
) -> Result<Option<&'a mut MainFile>, Failed> {
    let schema = match arguments.text(index, "the schema")? {
        None if arguments.count() > index => return Ok(None),
        schema => schema.unwrap_or_else(|| MAIN.into()),
    };
    // SAFETY: the caller vouches for it.
    Ok(unsafe { stats::main_of(arguments.db(), &schema)? })
}

/// Returns the file of a database that is to be changed, which must not be plain.
///
/// # Safety
///
/// As for [`file_of`].
unsafe fn changeable_file_of<'a>(
    arguments: &Arguments<'_>,
    index: usize,
) -> Result<&'a mut MainFile, Failed> {
    // SAFETY: the caller vouches for it.
    let file = unsafe { file_of(arguments, index)? };
    let file = file.filter(|file| !file.is_plain());
    file.ok_or_else(|| pragma::PLAIN.to_owned().into())
}
