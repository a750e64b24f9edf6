//! Keys of the names tree, which holds everything about files besides their bytes:
//!
//! ```text
//! 1, directory u64 BE, name           -> kind u8, file u64      a directory entry
//! 2, file u64 BE                      -> attributes
//! 3, file u64 BE, property            -> the value as text
//! 4, file u64 BE                      -> the repack in progress, as text
//! 5, file u64 BE                      -> u32: the dictionary in use, 0 if none pays
//! 6, file u64 BE, directory u64 BE, name -> nothing             a name of the file
//! 7, file u64 BE, part u8             -> the target of a symbolic link
//! 8, file u64 BE, name, NUL, part u8  -> an extended attribute
//! 9, file u64 BE                      -> nothing               a file without a name, being filled
//! 10, root u64 BE                     -> the progress of a receive (see `receiving.rs`)
//! 11, root u64 BE, class u8, u64 BE   -> u64: the local number for a number of its stream
//! 12, file u64 BE, guid, txg u64 BE   -> u64: like 14, in old pools
//! 13, file u64 BE                     -> u64: the generation of its content (see `generation.rs`)
//! 14, file u64 BE, state 16           -> u64: the txg of the snapshot received as this one
//! ```

use crate::error::{Error, Found};
use crate::store::trees::TreeId;
use crate::units::FileId;

/// A directory entry.
pub(in crate::pool) const ENTRY: u8 = 1;
/// Attributes.
pub(in crate::pool) const ATTRIBUTES: u8 = 2;
/// A property set on the file itself.
pub(in crate::pool) const PROPERTY: u8 = 3;
/// The repack in progress.
pub(in crate::pool) const REPACK: u8 = 4;
/// The dictionary in use.
pub(in crate::pool) const DICTIONARY: u8 = 5;
/// A name of a file.
pub(in crate::pool) const NAME: u8 = 6;
/// A part of the target of a symbolic link.
pub(in crate::pool) const TARGET: u8 = 7;
/// A part of an extended attribute.
pub(in crate::pool) const XATTR: u8 = 8;
/// A file without a name, being filled.
pub(in crate::pool) const NAMELESS: u8 = 9;
/// The progress of a receive.
pub(in crate::pool) const RECEIVE: u8 = 10;
/// The local number for a number of a received stream.
pub(in crate::pool) const IDENTITY: u8 = 11;
/// Where a snapshot was received from, in old pools.
pub(in crate::pool) const ORIGIN: u8 = 12;
/// The generation of the content.
pub(in crate::pool) const GENERATION: u8 = 13;
/// The snapshot that was received as another.
pub(in crate::pool) const RECEIVED: u8 = 14;
/// Never on disk: see [`super::entries::set_orphan`].
pub(in crate::pool) const ORPHAN: u8 = 0xf0;

/// The longest name, in bytes.
pub const NAME_LEN_MAX: usize = 255;
/// How many names are read at a time.
pub(in crate::pool) const LIST_COUNT: usize = 256;
/// The root directory.
pub const ROOT: FileId = FileId::ROOT;
/// The number of the first file or directory that is created in a pool.
pub const FIRST_FILE: FileId = FileId(FileId::ROOT.0 + 1);

/// Returns the key of an entry of a file, or the beginning of such keys.
pub(in crate::pool) fn id_key(prefix: u8, file: FileId, rest: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(9 + rest.len());
    key.push(prefix);
    key.extend_from_slice(&file.0.to_be_bytes());
    key.extend_from_slice(rest);
    key
}

/// The error for a value that cannot be decoded.
pub(in crate::pool) fn malformed(
    what: &'static str,
    key: &[u8],
    value: &[u8],
    expected: &str,
) -> Error {
    let detail = format!("expected {expected}, found {}", Found(value));
    Error::corrupt(what, TreeId::Names.location_of(key), detail)
}

/// Reports a key of the tree of names that does not end as expected.
pub(in crate::pool) fn malformed_key(what: &'static str, key: &[u8], expected: &str) -> Error {
    let detail = format!("expected a key with {expected}, found another");
    Error::corrupt(what, TreeId::Names.location_of(key), detail)
}
