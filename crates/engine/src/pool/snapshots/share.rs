//! Copies a range of one file into another, or within one, by sharing records and patches instead
//! of bytes.
//!
//! A record begins at a multiple of its slot, in every file. So a range can be shared where both
//! ends lie between slots, of the source and of the target, and where the distance between the two
//! places is a multiple of the longest slot. The end of the source may lie within a slot if the
//! target has nothing behind it. What is left at both ends is for the caller to copy. Files with
//! chunks are shared only as a whole.

use std::ops::Range;

use super::restore::{EXTENT_COUNT, Origin, bring_dictionary};
use crate::error::Result;
use crate::pool::extents::change::{add_file_extent, remove_file_extents, share};
use crate::pool::extents::source::Source;
use crate::pool::extents::{FileExtent, UNIT_LEN, file_extents_in, record_at};
use crate::pool::namespace::entries::{self, Attributes};
use crate::store::Txn;
use crate::store::trees::TreeId;
use crate::units::FileId;

/// A range of a file, and where it is copied to.
#[derive(Clone, Debug)]
pub(in crate::pool) struct Span {
    pub from: FileId,
    pub range: Range<u64>,
    pub to: FileId,
    pub to_offset: u64,
}

impl Span {
    /// Returns where a place of the source is copied to.
    fn target_of(&self, offset: u64) -> u64 {
        self.to_offset + (offset - self.range.start)
    }
}

/// Shares as much of a range as possible, and returns what it is. The rest of the target stays as
/// it is.
pub(in crate::pool) fn share_range(
    txn: &mut Txn,
    origin: &Origin,
    span: &Span,
    now_ns: i64,
) -> Result<Range<u64>> {
    let part = shareable(txn, origin, span)?;
    if part.is_empty() {
        return Ok(part);
    }
    let target = span.target_of(part.start)..span.target_of(part.end);
    for tree in [TreeId::Patches, TreeId::Map] {
        remove_file_extents(txn, tree, span.to, target.start, target.end)?;
    }
    for tree in [TreeId::Map, TreeId::Patches] {
        share_extents(txn, origin, span, (tree, &part))?;
    }
    let known = entries::attributes(txn, span.to)?;
    let len = known.len.max(target.end);
    txn.stats_mut().change_file_len(known.len, len);
    let (modified_ns, changed_ns) = (now_ns, now_ns);
    entries::set_attributes(txn, span.to, &Attributes { len, modified_ns, changed_ns, ..known })?;
    // An unfinished repack belongs to the records that were here.
    entries::set_repack(txn, span.to, None)?;
    Ok(part)
}

/// Returns the part of a range that can be shared; empty if there is none.
fn shareable(txn: &mut Txn, origin: &Origin, span: &Span) -> Result<Range<u64>> {
    let nothing = span.range.start..span.range.start;
    let from_len = entries::attributes(&mut origin.read(txn), span.from)?.len;
    let to_len = entries::attributes(txn, span.to)?.len;
    let range = span.range.start..span.range.end.min(from_len);
    if range.is_empty() {
        return Ok(nothing);
    }
    let target = span.target_of(range.start)..span.target_of(range.end);
    let is_same = matches!(origin, Origin::Live) && span.from == span.to;
    if is_same && range.start < target.end && target.start < range.end {
        return Ok(nothing);
    }
    let theirs = longest_slot(&mut origin.read(txn), span.from, &range)?;
    let Some((theirs, ours)) = theirs.zip(longest_slot(txn, span.to, &target)?) else {
        let is_all = (range.start, target.start) == (0, 0) && range.end == from_len;
        return Ok(if is_all && target.end >= to_len { range } else { nothing });
    };
    let slot = theirs.max(ours);
    if range.start.abs_diff(target.start) % slot != 0 {
        return Ok(nothing);
    }
    let start = range.start.next_multiple_of(slot);
    let end = match range.end == from_len && target.end >= to_len {
        true => range.end,
        false => range.end / slot * slot,
    };
    Ok(if start < end { start..end } else { nothing })
}

/// Returns the length of the longest slot that has bytes in a range; nothing if a chunk has some.
fn longest_slot(source: &mut impl Source, file: FileId, range: &Range<u64>) -> Result<Option<u64>> {
    let mut longest = UNIT_LEN;
    let mut some: Vec<FileExtent> = record_at(source, file, range.start)?.into_iter().collect();
    let mut at = Some(range.start);
    loop {
        if some.iter().any(FileExtent::is_chunk) {
            return Ok(None);
        }
        longest = some.iter().map(FileExtent::span).fold(longest, u64::max);
        let Some(from) = at else { return Ok(Some(longest)) };
        some = file_extents_in(source, TreeId::Map, file, from, range.end, EXTENT_COUNT)?;
        at = some.get(EXTENT_COUNT - 1).map(|last| last.start + 1);
    }
}

fn share_extents(
    txn: &mut Txn,
    origin: &Origin,
    span: &Span,
    (tree, part): (TreeId, &Range<u64>),
) -> Result<()> {
    let mut at = part.start;
    loop {
        let mut reader = origin.read(txn);
        let some = file_extents_in(&mut reader, tree, span.from, at, part.end, EXTENT_COUNT)?;
        for extent in &some {
            bring_dictionary(txn, origin, extent.pointer.dictionary)?;
            let pointer = share(txn, &extent.pointer)?;
            add_file_extent(txn, tree, span.to, span.target_of(extent.start), &pointer)?;
        }
        match some.get(EXTENT_COUNT - 1) {
            Some(last) => at = last.start + 1,
            None => return Ok(()),
        }
    }
}
