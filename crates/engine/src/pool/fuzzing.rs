//! Access to private parsers of this module for the fuzz targets. Not part of the public interface.

use super::extents::delta;
use super::extents::parse_file_extent;
use super::maintain::repack::Repack;
use super::namespace::entries;
use crate::codec::inflated::{Directory, Form, Inflation};
use crate::codec::transformed::{self, Origin};
use crate::codec::with_codec;
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

/// Returns the inflated form of a record (see `codec/inflated/`), if it has one.
pub fn inflated_form(record: &[u8]) -> Option<Vec<u8>> {
    // To tell what it resembles, which never fails.
    Inflation::of(record, 2 * record.len());
    Form::of(record).map(|form| form.bytes)
}

/// Fills `part` with the bytes from `start` on of the record that an inflated form stands for.
/// Returns whether it could.
pub fn restore_inflated(form: &[u8], record_len: usize, start: usize, part: &mut [u8]) -> bool {
    let directory = Directory::read(form, record_len);
    directory.is_ok_and(|directory| directory.restore(form, start, part).is_ok())
}

/// Returns the transformed form of a record of which another file begins at each of `starts` (see
/// `codec/transformed/`), if it has one: as it is stored without compression.
pub fn transformed_form(record: &[u8], starts: &[usize]) -> Option<Vec<u8>> {
    let origin = |(file, start): (u64, &usize)| Origin { start: *start, file, position: file };
    let origins: Vec<Origin> = (0..).zip([0].iter().chain(starts)).map(origin).collect();
    let form = transformed::Form::of(record, &origins)?;
    Some([form.bytes, form.directory].concat())
}

/// Fills `record` with what a transformed form stands for, which a codec has compressed. Returns
/// whether it could.
pub fn restore_transformed(codec: u8, stored: &[u8], record: &mut [u8]) -> bool {
    with_codec(|it| it.decompress_transformed(codec, stored, record)).is_ok()
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
