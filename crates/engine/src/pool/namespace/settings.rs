//! The properties of a file, and other entries that control how it is written.

use std::str::FromStr;

use crate::error::{Error, Result};
use crate::pool::extents::source::Source;
use crate::pool::namespace::attributes::{attributes, check_there};
use crate::pool::namespace::entries::circle;
use crate::pool::namespace::keys::{DICTIONARY, PROPERTY, REPACK, ROOT, id_key, malformed};
use crate::pool::namespace::props::{Property, PropertySource, Settings};
use crate::store::Txn;
use crate::store::trees::TreeId;
use crate::units::FileId;

/// The deepest level of directories: inheritance looks at each directory above.
pub const DEPTH_MAX: usize = 1024;

/// The effective settings of a file, and the source of each.
pub(crate) type Sourced = (Settings, [PropertySource; Property::ALL.len()]);

/// Returns the properties set on this file or directory itself.
pub(crate) fn local_properties(
    source: &mut impl Source,
    file: FileId,
) -> Result<Vec<(Property, String)>> {
    let from = id_key(PROPERTY, file, &[]);
    let to = id_key(PROPERTY, FileId(file.0 + 1), &[]);
    let entries = source.range(TreeId::Names, &from, &to, usize::MAX)?;
    let mut found = Vec::with_capacity(entries.len());
    for (key, value) in entries {
        let name = std::str::from_utf8(&key[from.len()..]).unwrap_or_default();
        // Properties of a later version are ignored.
        let Ok(property) = Property::from_str(name) else { continue };
        let text = String::from_utf8(value)
            .map_err(|error| malformed("property", &key, error.as_bytes(), "UTF-8"))?;
        found.push((property, text));
    }
    Ok(found)
}

/// Returns the effective settings of a file: each is set on the file itself or on the nearest
/// directory above it that sets it.
pub(crate) fn settings(source: &mut impl Source, file: FileId) -> Result<Sourced> {
    let mut settings = Settings::default();
    let mut sources = [PropertySource::Default; Property::ALL.len()];
    let mut at = file;
    for _ in 0..DEPTH_MAX {
        for (property, text) in local_properties(source, at)? {
            let index = Property::ALL.iter().position(|known| *known == property);
            let origin = index.and_then(|index| sources.get_mut(index));
            if let Some(origin) = origin.filter(|origin| **origin == PropertySource::Default) {
                settings.set(property, &text)?;
                let inherited = PropertySource::Inherited(at);
                *origin = if at == file { PropertySource::Local } else { inherited };
            }
        }
        if at == ROOT {
            return Ok((settings, sources));
        }
        at = attributes(source, at)?.parent;
    }
    Err(circle(file, DEPTH_MAX))
}

pub(crate) fn set_property(
    txn: &mut Txn,
    file: FileId,
    property: Property,
    text: Option<&str>,
) -> Result<()> {
    let key = id_key(PROPERTY, file, property.name().as_bytes());
    if text.is_some() {
        check_there(txn, file)?;
    }
    match text {
        Some(text) => {
            if property == Property::Concurrency {
                // Whatever the value: it takes effect before anybody else can look.
                txn.note_pinned_readers();
            }
            txn.insert(TreeId::Names, &key, text.as_bytes())?
        }
        None => txn.remove(TreeId::Names, &key)?,
    };
    Ok(())
}

/// Returns the description of an unfinished repack.
pub(crate) fn repack(source: &mut impl Source, file: FileId) -> Result<Option<String>> {
    let key = id_key(REPACK, file, &[]);
    let text = source.get(TreeId::Names, &key)?.map(String::from_utf8).transpose();
    text.map_err(|error| malformed("repack", &key, error.as_bytes(), "UTF-8"))
}

pub(crate) fn set_repack(txn: &mut Txn, file: FileId, text: Option<&str>) -> Result<()> {
    let key = id_key(REPACK, file, &[]);
    if text.is_some() {
        check_there(txn, file)?;
    }
    match text {
        Some(text) => txn.insert(TreeId::Names, &key, text.as_bytes())?,
        None => txn.remove(TreeId::Names, &key)?,
    };
    Ok(())
}

fn no_number(key: &[u8], value: &[u8]) -> Error {
    malformed("dictionary of a file", key, value, "a number of 4 bytes")
}

/// Returns the dictionary used for data written to a file: 0 if none paid off, `None` if none was
/// tried yet.
pub(crate) fn dictionary(source: &mut impl Source, file: FileId) -> Result<Option<u32>> {
    let key = id_key(DICTIONARY, file, &[]);
    let Some(value) = source.get(TreeId::Names, &key)? else { return Ok(None) };
    let number = value.try_into().map(u32::from_le_bytes);
    number.map(Some).map_err(|value| no_number(&key, &value))
}

pub(crate) fn set_dictionary(txn: &mut Txn, file: FileId, number: u32) -> Result<()> {
    check_there(txn, file)?;
    txn.insert(TreeId::Names, &id_key(DICTIONARY, file, &[]), &number.to_le_bytes())?;
    Ok(())
}

/// Returns the dictionaries in use by files or by receives in progress.
pub(crate) fn dictionaries_in_use(source: &mut impl Source) -> Result<Vec<u32>> {
    let mut found = crate::pool::namespace::receiving::dictionaries_of_receives(source)?;
    for (key, value) in source.range(TreeId::Names, &[DICTIONARY], &[DICTIONARY + 1], usize::MAX)? {
        let number = value.try_into().map(u32::from_le_bytes);
        found.push(number.map_err(|value| no_number(&key, &value))?);
    }
    Ok(found)
}

/// Removes the properties, the repack and the dictionary of a file.
pub(in crate::pool) fn remove(txn: &mut Txn, file: FileId) -> Result<()> {
    // Those of a later version, and what marks the file that the pool was made with, go as well.
    let (from, to) = (id_key(PROPERTY, file, &[]), id_key(PROPERTY, FileId(file.0 + 1), &[]));
    for (key, _) in txn.range(TreeId::Names, &from, &to, usize::MAX)? {
        txn.remove(TreeId::Names, &key)?;
    }
    set_repack(txn, file, None)?;
    txn.remove(TreeId::Names, &id_key(DICTIONARY, file, &[])).map(drop)
}
