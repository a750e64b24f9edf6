//! Access to private parsers of this module for the fuzz targets. Not part of the public interface.

use super::extents::delta;
use super::extents::parse_file_extent;
use super::maintain::repack::Repack;
use super::namespace::entries;
use crate::error::Result;
use crate::store::dictionaries::parse_dictionary_key;
use crate::store::format::pointer::data_pointer;
use crate::store::trees::TreeId;
use crate::units::FileId;

/// Parses an entry of one of this module's trees, as its readers do.
pub fn parse_entry(tree: TreeId, key: &[u8], value: &[u8]) -> Result<()> {
    match tree {
        TreeId::Names => {
            entries::Attributes::decode(value);
            entries::parse_entry(key, value);
            if let Ok(text) = str::from_utf8(value) {
                Repack::parse(FileId(1), text)?;
            }
        }
        TreeId::Map | TreeId::Patches => parse_file_extent(tree, key, value).map(drop)?,
        TreeId::Dictionaries => {
            parse_dictionary_key(key)?;
            data_pointer(value)?;
        }
        _ => {}
    }
    Ok(())
}

/// Applies a delta for `len` bytes to the part that starts at byte `from`. Returns whether it
/// could.
pub fn apply_delta(edits: &[u8], len: usize, part: &mut [u8], from: usize) -> bool {
    delta::apply(edits, len, part, from).is_some()
}

/// Returns the differences between `new` and `base` if they take at most `limit` bytes.
pub fn encode_delta(base: &[u8], new: &[u8], limit: usize) -> Option<Vec<u8>> {
    let mut edits = Vec::new();
    delta::encode(base, new, limit, &mut edits).then_some(edits)
}
