//! Properties and what else is kept with a file about how it is written.

use std::str::FromStr;

use crate::error::{Error, Result};
use crate::pool::extents::source::Source;
use crate::pool::namespace::entries::{ROOT, attributes, check_there, id_key, malformed};
use crate::pool::namespace::props::{Property, PropertySource, Settings};
use crate::store::Txn;
use crate::store::trees::NAMES;
use crate::units::FileId;

pub(in crate::pool) const PROPERTY: u8 = 3;
pub(in crate::pool) const REPACK: u8 = 4;
pub(in crate::pool) const DICTIONARY: u8 = 5;
/// No directory lies deeper: what is inherited is looked for in each one above.
pub const DEPTH_MAX: usize = 1024;

/// The settings in force for a file, and where each comes from.
pub(crate) type Sourced = (Settings, [PropertySource; Property::ALL.len()]);

/// What is set on this very file or directory.
pub(crate) fn local_properties(
    source: &mut impl Source,
    file: FileId,
) -> Result<Vec<(Property, String)>> {
    let from = id_key(PROPERTY, file, &[]);
    let to = id_key(PROPERTY, FileId(file.0 + 1), &[]);
    let entries = source.range(NAMES, &from, &to, usize::MAX)?;
    let mut found = Vec::with_capacity(entries.len());
    for (key, value) in entries {
        let name = std::str::from_utf8(&key[from.len()..]).unwrap_or_default();
        // One that a later version knows means nothing here.
        let Ok(property) = Property::from_str(name) else { continue };
        let text = String::from_utf8(value).map_err(|_| malformed("a property"))?;
        found.push((property, text));
    }
    Ok(found)
}

/// The settings in force for a file: for each, what is set on the file itself or on the nearest directory
/// above it.
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
    Err(Error::corrupt("names tree", 0, format!("file {} lies in a circle of directories", file.0)))
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
        Some(text) => txn.insert(NAMES, &key, text.as_bytes())?,
        None => txn.remove(NAMES, &key)?,
    };
    Ok(())
}

/// The text of a repack that was begun and not finished.
pub(crate) fn repack(source: &mut impl Source, file: FileId) -> Result<Option<String>> {
    let text = source.get(NAMES, &id_key(REPACK, file, &[]))?;
    text.map(|text| String::from_utf8(text).map_err(|_| malformed("a repack"))).transpose()
}

pub(crate) fn set_repack(txn: &mut Txn, file: FileId, text: Option<&str>) -> Result<()> {
    let key = id_key(REPACK, file, &[]);
    if text.is_some() {
        check_there(txn, file)?;
    }
    match text {
        Some(text) => txn.insert(NAMES, &key, text.as_bytes())?,
        None => txn.remove(NAMES, &key)?,
    };
    Ok(())
}

/// The dictionary that is used for what is written to a file; 0 where it was found that none pays,
/// nothing where nobody has tried.
pub(crate) fn dictionary(source: &mut impl Source, file: FileId) -> Result<Option<u32>> {
    let Some(value) = source.get(NAMES, &id_key(DICTIONARY, file, &[]))? else { return Ok(None) };
    let number = value.try_into().map(u32::from_le_bytes).map_err(|_| malformed("a dictionary"));
    number.map(Some)
}

pub(crate) fn set_dictionary(txn: &mut Txn, file: FileId, number: u32) -> Result<()> {
    check_there(txn, file)?;
    txn.insert(NAMES, &id_key(DICTIONARY, file, &[]), &number.to_le_bytes())?;
    Ok(())
}

/// The dictionaries in use for any file, or for what is being received.
pub(crate) fn dictionaries_in_use(source: &mut impl Source) -> Result<Vec<u32>> {
    let mut found = crate::pool::namespace::receiving::dictionaries_of_receives(source)?;
    for (_, value) in source.range(NAMES, &[DICTIONARY], &[DICTIONARY + 1], usize::MAX)? {
        let number = value.try_into().map(u32::from_le_bytes);
        found.push(number.map_err(|_| malformed("a dictionary"))?);
    }
    Ok(found)
}

/// Forgets all of it.
pub(in crate::pool) fn remove(txn: &mut Txn, file: FileId) -> Result<()> {
    for property in local_properties(txn, file)? {
        set_property(txn, file, property.0, None)?;
    }
    set_repack(txn, file, None)?;
    txn.remove(NAMES, &id_key(DICTIONARY, file, &[])).map(drop)
}
