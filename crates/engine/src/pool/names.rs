//! Names, attributes and properties, all in one tree:
//!
//! ```text
//! 1, parent u64 BE, name      -> kind u8, file u64        a directory entry
//! 2, file u64 BE              -> attributes (32 bytes)
//! 3, file u64 BE, property    -> the value as text
//! 4, file u64 BE              -> the repack in progress, as text
//! 5, file u64 BE              -> u32: the dictionary in use, 0 where none pays
//! ```

use super::file::FILE_LEN_MAX;
use super::props::{Property, PropertySource, Settings};
use super::source::Source;
use crate::error::{Error, Result};
use crate::store::Txn;
use crate::store::trees::NAMES;
use crate::units::FileId;

const ENTRY: u8 = 1;
const ATTRIBUTES: u8 = 2;
const PROPERTY: u8 = 3;
const REPACK: u8 = 4;
const DICTIONARY: u8 = 5;

/// The longest name, in bytes.
pub const NAME_LEN_MAX: usize = 255;
/// The directory that holds everything.
pub const ROOT: FileId = FileId(1);

/// What a name stands for. The discriminants are the ones on disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// A file.
    File = 1,
    /// A directory.
    Directory = 2,
}

impl Kind {
    fn from_stored(value: u8) -> Option<Kind> {
        [Kind::File, Kind::Directory].into_iter().find(|kind| *kind as u8 == value)
    }
}

/// What is known of a file besides its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// File or directory.
    pub kind: Kind,
    /// Length in bytes.
    pub len: u64,
    /// Permission bits, as POSIX has them; 0 where unknown.
    pub mode: u32,
    /// When it was last changed, in nanoseconds since 1970; 0 where unknown.
    pub modified_ns: i64,
}

impl Attributes {
    fn encode(&self) -> [u8; 32] {
        let mut out = [0; 32];
        out[0] = self.kind as u8;
        out[4..8].copy_from_slice(&self.mode.to_le_bytes());
        out[8..16].copy_from_slice(&self.len.to_le_bytes());
        out[16..24].copy_from_slice(&self.modified_ns.to_le_bytes());
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Attributes> {
        let bytes: &[u8; 32] = bytes.try_into().ok()?;
        let u64_at = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        Some(Attributes {
            kind: Kind::from_stored(bytes[0])?,
            mode: bytes[4..8].try_into().map(u32::from_le_bytes).ok()?,
            len: u64_at(8).filter(|len| *len <= FILE_LEN_MAX)?,
            modified_ns: u64_at(16)? as i64,
        })
    }
}

/// A name in a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// The name.
    pub name: String,
    /// What it stands for.
    pub file: FileId,
    /// File or directory.
    pub kind: Kind,
}

fn id_key(prefix: u8, file: FileId, rest: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(9 + rest.len());
    key.push(prefix);
    key.extend_from_slice(&file.0.to_be_bytes());
    key.extend_from_slice(rest);
    key
}

fn malformed(what: &'static str) -> Error {
    Error::corrupt("names tree", 0, format!("{what} is malformed"))
}

/// The attributes of a file.
pub(super) fn attributes(source: &mut impl Source, file: FileId) -> Result<Attributes> {
    let value = source.get(NAMES, &id_key(ATTRIBUTES, file, &[]))?;
    let value = value
        .ok_or_else(|| Error::NotFound { what: "file", name: format!("number {}", file.0) })?;
    Attributes::decode(&value).ok_or_else(|| malformed("the attributes of a file"))
}

pub(super) fn set_attributes(txn: &mut Txn, file: FileId, attributes: &Attributes) -> Result<()> {
    txn.insert(NAMES, &id_key(ATTRIBUTES, file, &[]), &attributes.encode())?;
    Ok(())
}

pub(super) fn parse_entry(key: &[u8], value: &[u8]) -> Option<DirEntry> {
    let name = String::from_utf8_lossy(key.get(9..)?).into_owned();
    let (kind, file) = value.split_first()?;
    let file = FileId(u64::from_le_bytes(file.try_into().ok()?));
    Some(DirEntry { name, file, kind: Kind::from_stored(*kind)? })
}

/// A directory entry, where the key is of one.
pub(super) fn parse_entry_of(key: &[u8], value: &[u8]) -> Option<DirEntry> {
    (*key.first()? == ENTRY).then(|| parse_entry(key, value))?
}

/// Whose attributes these are, where the key is of some.
pub(super) fn parse_attributes_of(key: &[u8], value: &[u8]) -> Option<(FileId, Attributes)> {
    let (kind, id) = key.split_first()?;
    (*kind == ATTRIBUTES).then_some(())?;
    Some((FileId(u64::from_be_bytes(id.try_into().ok()?)), Attributes::decode(value)?))
}

/// What is in a directory, by name.
pub(super) fn list(source: &mut impl Source, directory: FileId) -> Result<Vec<DirEntry>> {
    let from = id_key(ENTRY, directory, &[]);
    let to = id_key(ENTRY, FileId(directory.0 + 1), &[]);
    let entries = source.range(NAMES, &from, &to, usize::MAX)?;
    entries
        .iter()
        .map(|(key, value)| parse_entry(key, value).ok_or_else(|| malformed("a directory entry")))
        .collect()
}

/// What a name in a directory stands for.
pub(super) fn lookup(
    source: &mut impl Source,
    directory: FileId,
    name: &str,
) -> Result<Option<DirEntry>> {
    let key = id_key(ENTRY, directory, name.as_bytes());
    let Some(value) = source.get(NAMES, &key)? else { return Ok(None) };
    parse_entry(&key, &value).map(Some).ok_or_else(|| malformed("a directory entry"))
}

/// Creates the root directory of a new pool.
pub(super) fn create_root(txn: &mut Txn) -> Result<()> {
    let root = txn.new_file_id();
    if root != ROOT {
        return Err(Error::corrupt("names tree", 0, "a new pool has a file already"));
    }
    let attributes = Attributes { kind: Kind::Directory, len: 0, mode: 0, modified_ns: 0 };
    set_attributes(txn, root, &attributes)
}

/// Creates an empty file.
pub(super) fn create_file(txn: &mut Txn, directory: FileId, name: &str) -> Result<FileId> {
    if name.is_empty() || name.len() > NAME_LEN_MAX || name.contains(['/', '\0']) {
        return Err(Error::Invalid(format!(
            "'{name}' is no name; use 1 to {NAME_LEN_MAX} bytes without '/' and NUL"
        )));
    }
    if lookup(txn, directory, name)?.is_some() {
        return Err(Error::Invalid(format!("'{name}' exists already")));
    }
    let file = txn.new_file_id();
    let mut value = vec![Kind::File as u8];
    value.extend_from_slice(&file.0.to_le_bytes());
    txn.insert(NAMES, &id_key(ENTRY, directory, name.as_bytes()), &value)?;
    let attributes = Attributes { kind: Kind::File, len: 0, mode: 0, modified_ns: 0 };
    set_attributes(txn, file, &attributes)?;
    Ok(file)
}

/// The text of a property where it is set on this very file or directory.
fn local_property(
    source: &mut impl Source,
    file: FileId,
    property: Property,
) -> Result<Option<String>> {
    let value = source.get(NAMES, &id_key(PROPERTY, file, property.name().as_bytes()))?;
    value.map(|text| String::from_utf8(text).map_err(|_| malformed("a property"))).transpose()
}

pub(super) fn set_property(
    txn: &mut Txn,
    file: FileId,
    property: Property,
    text: Option<&str>,
) -> Result<()> {
    let key = id_key(PROPERTY, file, property.name().as_bytes());
    match text {
        Some(text) => txn.insert(NAMES, &key, text.as_bytes())?,
        None => txn.remove(NAMES, &key)?,
    };
    Ok(())
}

/// The text of a repack that was begun and not finished.
pub(super) fn repack(source: &mut impl Source, file: FileId) -> Result<Option<String>> {
    let text = source.get(NAMES, &id_key(REPACK, file, &[]))?;
    text.map(|text| String::from_utf8(text).map_err(|_| malformed("a repack"))).transpose()
}

pub(super) fn set_repack(txn: &mut Txn, file: FileId, text: Option<&str>) -> Result<()> {
    let key = id_key(REPACK, file, &[]);
    match text {
        Some(text) => txn.insert(NAMES, &key, text.as_bytes())?,
        None => txn.remove(NAMES, &key)?,
    };
    Ok(())
}

/// The dictionary that is used for what is written to a file; 0 where it was found that none pays,
/// nothing where nobody has tried.
pub(super) fn dictionary(source: &mut impl Source, file: FileId) -> Result<Option<u32>> {
    let Some(value) = source.get(NAMES, &id_key(DICTIONARY, file, &[]))? else { return Ok(None) };
    let number = value.try_into().map(u32::from_le_bytes).map_err(|_| malformed("a dictionary"));
    number.map(Some)
}

pub(super) fn set_dictionary(txn: &mut Txn, file: FileId, number: u32) -> Result<()> {
    txn.insert(NAMES, &id_key(DICTIONARY, file, &[]), &number.to_le_bytes())?;
    Ok(())
}

/// The settings in force for a file, with where each comes from.
pub(super) fn settings(
    source: &mut impl Source,
    file: FileId,
) -> Result<(Settings, [PropertySource; Property::ALL.len()])> {
    let mut settings = Settings::default();
    let mut sources = [PropertySource::Default; Property::ALL.len()];
    for (property, origin) in Property::ALL.into_iter().zip(&mut sources) {
        let steps = [(ROOT, PropertySource::Inherited), (file, PropertySource::Local)];
        for (owner, label) in steps {
            if let Some(text) = local_property(source, owner, property)? {
                settings.set(property, &text)?;
                *origin = if owner == file { PropertySource::Local } else { label };
            }
        }
    }
    Ok((settings, sources))
}
