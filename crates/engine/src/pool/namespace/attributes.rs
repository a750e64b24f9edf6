//! The attributes of a file: everything known about it besides its bytes.
//!
//! There are two layouts. The short one (32 bytes) suffices for a file in the root without an
//! owner, such as a lone database. The long one (80 bytes) appends the other fields.

use crate::error::{Error, Result};
use crate::pool::extents::FILE_LEN_MAX;
use crate::pool::extents::source::Source;
use crate::pool::namespace::keys::{ATTRIBUTES, ROOT, id_key, malformed};
use crate::pool::namespace::kind::{DeviceNumber, Kind};
use crate::store::Txn;
use crate::store::format::fields::{FieldReader, FieldWriter};
use crate::store::trees::TreeId;
use crate::units::FileId;

const SHORT_LEN: usize = 32;
const LONG_LEN: usize = 80;
const FLAG_OWNED: u32 = 1;

/// The owner of a file, as numeric POSIX ids.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileOwner {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

/// The attributes of a file. Times are in nanoseconds since 1970; 0 if unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// File, directory, symbolic link or special file.
    pub kind: Kind,
    /// Length in bytes; for a symbolic link, the length of its target.
    pub len: u64,
    /// POSIX permission bits; 0 if unknown, unless the owner is known.
    pub mode: u32,
    /// When the bytes were last changed.
    pub modified_ns: i64,
    /// When the bytes were last read, if anything recorded it.
    pub accessed_ns: i64,
    /// When any attribute last changed.
    pub changed_ns: i64,
    /// When the file was created.
    pub created_ns: i64,
    /// The owner, if known.
    pub owner: Option<FileOwner>,
    /// The number of names.
    pub link_count: u32,
    /// The directory of its first name, from which it inherits; the root is its own parent.
    pub parent: FileId,
    /// The number of the device, if it is the node of one.
    pub device: DeviceNumber,
}

impl Attributes {
    /// Creates the attributes of a new file or directory about which nothing else is known.
    pub fn new(kind: Kind, parent: FileId) -> Attributes {
        Attributes {
            kind,
            len: 0,
            mode: 0,
            modified_ns: 0,
            accessed_ns: 0,
            changed_ns: 0,
            created_ns: 0,
            owner: None,
            link_count: 1,
            parent,
            device: DeviceNumber::default(),
        }
    }

    /// The permission bits, unless they are unknown. Whoever records an owner records them too.
    pub fn known_mode(&self) -> Option<u32> {
        (self.mode != 0 || self.owner.is_some()).then_some(self.mode & 0o7777)
    }

    /// Whether they can belong together: special files have no bytes, and only devices a number.
    pub(crate) fn is_sound(&self) -> bool {
        (self.len == 0 || !self.kind.is_special())
            && (self.device == DeviceNumber::default() || self.kind.is_device())
    }

    /// Whether the short layout holds every attribute.
    fn is_short(&self) -> bool {
        let short = Attributes {
            len: self.len,
            mode: self.mode,
            modified_ns: self.modified_ns,
            ..Attributes::new(self.kind, ROOT)
        };
        *self == short
    }

    /// Encodes the value of the entry.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(LONG_LEN);
        let is_short = self.is_short();
        let mut f = FieldWriter(&mut out);
        f.u8(self.kind as u8);
        f.zeros(3);
        f.u32(self.mode);
        f.u64(self.len);
        f.u64(self.modified_ns as u64);
        f.u64(if is_short { 0 } else { self.parent.0 });
        if !is_short {
            let owner = self.owner.unwrap_or_default();
            f.u32(owner.uid);
            f.u32(owner.gid);
            f.u32(self.link_count);
            f.u32(if self.owner.is_some() { FLAG_OWNED } else { 0 });
            f.u64(self.accessed_ns as u64);
            f.u64(self.changed_ns as u64);
            f.u64(self.created_ns as u64);
            f.u32(self.device.major);
            f.u32(self.device.minor);
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Attributes> {
        let mut f = FieldReader(bytes);
        let kind = Kind::from_stored(f.u8()?)?;
        f.zeros(3)?;
        let mode = f.u32()?;
        let len = f.u64().filter(|len| *len <= FILE_LEN_MAX)?;
        let modified_ns = f.u64()? as i64;
        let parent = FileId(f.u64()?);
        let short = Attributes { len, mode, modified_ns, ..Attributes::new(kind, ROOT) };
        if bytes.len() == SHORT_LEN {
            return (parent.0 == 0 && short.is_sound()).then_some(short);
        }
        let owner = FileOwner { uid: f.u32()?, gid: f.u32()? };
        let link_count = f.u32()?;
        let flags = f.u32()?;
        let long = Attributes {
            owner: (flags & FLAG_OWNED != 0).then_some(owner),
            link_count,
            parent,
            accessed_ns: f.u64()? as i64,
            changed_ns: f.u64()? as i64,
            created_ns: f.u64()? as i64,
            device: DeviceNumber { major: f.u32()?, minor: f.u32()? },
            ..short
        };
        let sound = f.0.is_empty() && long.is_sound() && flags & !FLAG_OWNED == 0 && parent.0 != 0;
        sound.then_some(long)
    }
}

/// Returns the attributes of a file.
pub(crate) fn attributes(source: &mut impl Source, file: FileId) -> Result<Attributes> {
    let value = source.get(TreeId::Names, &id_key(ATTRIBUTES, file, &[]))?;
    let value = value
        .ok_or_else(|| Error::NotFound { what: "file", name: format!("number {}", file.0) })?;
    Attributes::decode(&value).ok_or_else(|| {
        let key = id_key(ATTRIBUTES, file, &[]);
        malformed("attributes", &key, &value, "the attributes of a file")
    })
}

/// Whether the file exists.
pub(crate) fn is_there(source: &mut impl Source, file: FileId) -> Result<bool> {
    Ok(source.get(TreeId::Names, &id_key(ATTRIBUTES, file, &[]))?.is_some())
}

/// Refuses a file that does not exist, since no entries are kept for removed files. Must be called
/// in the transaction that adds an entry: a file that existed earlier may be gone.
pub(crate) fn check_there(source: &mut impl Source, file: FileId) -> Result<()> {
    let name = || format!("number {}", file.0);
    is_there(source, file)?
        .then_some(())
        .ok_or_else(|| Error::NotFound { what: "file", name: name() })
}

pub(crate) fn set_attributes(txn: &mut Txn, file: FileId, attributes: &Attributes) -> Result<()> {
    if !attributes.is_sound() {
        let what = format!("a {} has no bytes, and only a device has a number", attributes.kind);
        return Err(Error::Invalid(what));
    }
    if !attributes.is_short() {
        txn.note_names();
    }
    if attributes.kind.is_special() {
        txn.note_special_files();
    }
    txn.insert(TreeId::Names, &id_key(ATTRIBUTES, file, &[]), &attributes.encode())?;
    Ok(())
}

/// Sets the length of a file and updates the pool's counters.
pub(crate) fn set_len(txn: &mut Txn, file: FileId, len: u64) -> Result<()> {
    let attributes = attributes(txn, file)?;
    if attributes.len == len {
        return Ok(());
    }
    if attributes.kind == Kind::File {
        txn.stats_mut().change_file_len(attributes.len, len);
    }
    set_attributes(txn, file, &Attributes { len, ..attributes })
}

pub(in crate::pool) fn remove_attributes(txn: &mut Txn, file: FileId) -> Result<()> {
    txn.remove(TreeId::Names, &id_key(ATTRIBUTES, file, &[])).map(drop)
}

/// Decodes an entry of the names tree if it holds attributes: the file they belong to, and the
/// attributes.
pub(crate) fn parse_attributes_of(key: &[u8], value: &[u8]) -> Option<(FileId, Attributes)> {
    let (kind, id) = key.split_first()?;
    (*kind == ATTRIBUTES).then_some(())?;
    Some((FileId(u64::from_be_bytes(id.try_into().ok()?)), Attributes::decode(value)?))
}
