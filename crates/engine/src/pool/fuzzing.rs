//! The parsers of this module that are private, for the fuzz targets. Not part of the interface.

use super::extents::delta;
use super::extents::parse_piece;
use super::maintain::repack::Repack;
use super::namespace::entries;
use crate::error::Result;
use crate::store::dictionaries::parse_dictionary_key;
use crate::store::format::pointer::data_pointer;
use crate::store::trees::{DICTIONARIES, MAP, NAMES, PATCHES};
use crate::units::FileId;

/// Reads an entry of a tree whose entries are this module's as all who read it do.
pub fn parse_entry(tree: u8, key: &[u8], value: &[u8]) -> Result<()> {
    match tree {
        NAMES => {
            entries::Attributes::decode(value);
            entries::parse_entry(key, value);
            if let Ok(text) = str::from_utf8(value) {
                Repack::parse(FileId(1), text)?;
            }
        }
        MAP | PATCHES => parse_piece(tree, key, value).map(drop)?,
        DICTIONARIES => {
            parse_dictionary_key(key)?;
            data_pointer(value)?;
        }
        _ => {}
    }
    Ok(())
}

/// Applies a delta about `len` bytes to a part of them from byte `from` on, and says whether it could.
pub fn apply_delta(edits: &[u8], len: usize, part: &mut [u8], from: usize) -> bool {
    delta::apply(edits, len, part, from).is_some()
}

/// How `new` differs from `base`, where that takes no more than `limit` bytes.
pub fn encode_delta(base: &[u8], new: &[u8], limit: usize) -> Option<Vec<u8>> {
    let mut edits = Vec::new();
    delta::encode(base, new, limit, &mut edits).then_some(edits)
}
