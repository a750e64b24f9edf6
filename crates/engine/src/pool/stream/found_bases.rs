//! Bases of an incremental stream of which this pool has the bytes, as a record.
//!
//! A stream brings all bases that its differences need. What the sender has made a base since the
//! last stream was a record before, so it lies here already: in the base of the stream, or
//! anywhere. The map is searched before the transaction that applies the stream, as it may take a
//! while, and each place is looked at again within it.

use std::collections::HashMap;

use super::body::{At, travelling};
use crate::error::Result;
use crate::pool::Pool;
use crate::pool::extents::source::{Committed, Source};
use crate::pool::extents::{file_extent_key, parse_file_extent};
use crate::store::Txn;
use crate::store::format::pointer::Pointer;
use crate::store::trees::TreeId;
use crate::units::FileId;

/// How many records are looked at before others get their turn.
const LOOK_COUNT: usize = 4096;

/// What there is of the bases of a stream.
#[derive(Default, Debug)]
pub(super) struct FoundBases {
    /// Where the same records lie, by the starts of their checksums.
    records: HashMap<u64, At>,
}

/// The pointer of a base or record as the entry of a base is sent.
fn as_entry(pointer: &Pointer) -> Pointer {
    Pointer { len: 0, part_offset: 0, span_log2: 0, ..travelling(pointer) }
}

fn front(pointer: &Pointer) -> Option<u64> {
    pointer.extent_key().map(|key| key.checksum)
}

/// Whether the stored bytes are there. If not, the stream brings them.
fn is_sound(source: &Committed<'_>, pointer: &Pointer) -> Result<bool> {
    match source.store.read_stored(pointer) {
        Err(error) if error.is_corruption() => Ok(false),
        read => read.map(|_| true),
    }
}

/// Looks for bases among some records from a key on. Returns where they lie, and the key of the
/// last record.
#[expect(clippy::type_complexity, reason = "both belong to one look")]
fn look(
    source: &mut Committed<'_>,
    from: &[u8],
    sought: &HashMap<u64, Pointer>,
) -> Result<(Vec<(u64, At)>, Option<Vec<u8>>)> {
    let end = file_extent_key(FileId(u64::MAX), u64::MAX);
    let some = source.range(TreeId::Map, from, &end, LOOK_COUNT)?;
    let mut found = Vec::new();
    for (key, value) in &some {
        let (file, extent) = parse_file_extent(TreeId::Map, key, value)?;
        let pointer = &extent.pointer;
        let Some(front) = front(pointer) else { continue };
        if sought.get(&front) == Some(&as_entry(pointer)) && is_sound(source, pointer)? {
            found.push((front, At { tree: TreeId::Map, file, offset: extent.start }));
        }
    }
    Ok((found, some.into_iter().last().map(|(key, _)| key)))
}

impl FoundBases {
    /// Looks for the records that are the same as these bases of a stream, unless they are bases
    /// here as well.
    pub fn search(pool: &Pool, bases: &[Pointer]) -> Result<FoundBases> {
        let mut sought: HashMap<u64, Pointer> =
            bases.iter().filter_map(|base| Some((front(base)?, as_entry(base)))).collect();
        if !sought.is_empty() {
            let known = pool.read(|source| source.store.bases_in(source.state))?;
            for known in known.into_values() {
                let Some(key) = known.extent_key() else { continue };
                if sought.get(&key.checksum) == Some(&as_entry(&known))
                    && pool.read(|source| is_sound(source, &known))?
                {
                    sought.remove(&key.checksum);
                }
            }
        }
        let mut records = HashMap::new();
        let mut from = file_extent_key(FileId(0), 0).to_vec();
        while !sought.is_empty() {
            let looked_at = pool.read(|source| look(source, &from, &sought));
            let (some, last) = match looked_at {
                // What cannot be read is not needed.
                Err(error) if error.is_corruption() => break,
                looked_at => looked_at?,
            };
            for (front, _) in &some {
                sought.remove(front);
            }
            records.extend(some);
            let Some(last) = last else { break };
            from = [last, vec![0]].concat();
        }
        Ok(FoundBases { records })
    }

    /// Returns the record that is the same as a base, if it still is there.
    pub fn record(&self, txn: &mut Txn, base: &Pointer) -> Result<Option<Pointer>> {
        let Some(at) = front(base).and_then(|front| self.records.get(&front)) else {
            return Ok(None);
        };
        let key = file_extent_key(at.file, at.offset);
        let Some(value) = txn.get(TreeId::Map, &key)? else { return Ok(None) };
        let (_, extent) = parse_file_extent(TreeId::Map, &key, &value)?;
        Ok((as_entry(&extent.pointer) == as_entry(base)).then_some(extent.pointer))
    }
}
