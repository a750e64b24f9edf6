//! Statistics of a pool, updated as data comes and goes, so that reading them costs nothing.
//!
//! The counters are part of the superblock: they are exact in every committed state.

use crate::store::format::fields::{FieldReader, FieldWriter};
use crate::store::format::pointer::{Place, Pointer, sectors_for};
use crate::store::format::refs::Refs;
use crate::units::Ashift;

/// The number of codec numbers that the table has room for.
pub const CODEC_SLOTS: usize = 13;

/// Counters of what one codec stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CodecStats {
    /// Records and patches.
    pub records: u64,
    /// Their length before compression, in bytes.
    pub logical: u64,
    /// Their length as stored, in bytes.
    pub stored: u64,
    /// The space they take, rounded up to sectors, in bytes.
    pub allocated: u64,
}

/// Counters of what went through the page filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct FilterStats {
    /// Records and patches.
    pub records: u64,
    /// Their length before filter and compression, in bytes.
    pub logical: u64,
    /// Their stored length without the filter, as far as it is known, in bytes.
    pub unfiltered: u64,
    /// Their length as stored, in bytes.
    pub stored: u64,
}

/// Adds to a counter or subtracts from it. Saturates, so that wrong counters of a damaged pool do
/// not stop its repair.
fn step(field: &mut u64, by: u64, add: bool) {
    *field = if add { field.saturating_add(by) } else { field.saturating_sub(by) };
}

impl FilterStats {
    fn apply(&mut self, pointer: &Pointer, add: bool) {
        step(&mut self.records, 1, add);
        step(&mut self.logical, u64::from(pointer.len), add);
        step(&mut self.unfiltered, pointer.unfiltered_len(), add);
        step(&mut self.stored, u64::from(pointer.stored_len), add);
    }

    fn encode(&self, f: &mut FieldWriter<'_>) {
        f.u64(self.records);
        f.u64(self.logical);
        f.u64(self.unfiltered);
        f.u64(self.stored);
    }

    fn decode(f: &mut FieldReader<'_>) -> Option<FilterStats> {
        Some(FilterStats {
            records: f.u64()?,
            logical: f.u64()?,
            unfiltered: f.u64()?,
            stored: f.u64()?,
        })
    }
}

/// Counters of what the pool stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PoolStats {
    /// The total length of all files in bytes, including holes.
    pub file_bytes: u64,
    /// Records and patches embedded in their pointers.
    pub embedded: CodecStats,
    /// The patches among the records and patches counted here.
    pub patches: CodecStats,
    /// Tree nodes, and dictionaries; `logical` is their length before compression.
    pub nodes: CodecStats,
    /// Records and patches by number of their codec, without embedded ones.
    pub codecs: [CodecStats; CODEC_SLOTS],
    /// The filtered ones among the records and patches counted here.
    pub filtered: FilterStats,
    /// Extents that have an entry in the refs tree, each once: all that are shared or can be found
    /// by content.
    pub counted: CodecStats,
    /// The savings by sharing: references to extents beyond the first of each, including those that
    /// only snapshots keep.
    pub shared: CodecStats,
}

impl CodecStats {
    fn apply(&mut self, pointer: &Pointer, ashift: Ashift, add: bool) {
        step(&mut self.records, 1, add);
        step(&mut self.logical, u64::from(pointer.len), add);
        step(&mut self.stored, pointer.stored_share(), add);
        step(&mut self.allocated, pointer.allocated_share(ashift), add);
    }

    /// Counts `count` references to an extent.
    fn apply_refs(&mut self, refs: &Refs, count: u64, ashift: Ashift, add: bool) {
        let allocated = sectors_for(refs.stored_len, ashift) << ashift;
        let step = |field: &mut u64, by: u64| step(field, by.saturating_mul(count), add);
        step(&mut self.records, 1);
        step(&mut self.logical, u64::from(refs.len));
        step(&mut self.stored, u64::from(refs.stored_len));
        step(&mut self.allocated, allocated);
    }

    fn add(&mut self, other: &CodecStats) {
        self.records = self.records.saturating_add(other.records);
        self.logical = self.logical.saturating_add(other.logical);
        self.stored = self.stored.saturating_add(other.stored);
        self.allocated = self.allocated.saturating_add(other.allocated);
    }

    pub(in crate::store) fn encode(&self, f: &mut FieldWriter<'_>) {
        f.u64(self.records);
        f.u64(self.logical);
        f.u64(self.stored);
        f.u64(self.allocated);
    }

    pub(in crate::store) fn decode(f: &mut FieldReader<'_>) -> Option<CodecStats> {
        Some(CodecStats {
            records: f.u64()?,
            logical: f.u64()?,
            stored: f.u64()?,
            allocated: f.u64()?,
        })
    }
}

impl PoolStats {
    /// Counts a change of a file's length, in bytes.
    pub fn change_file_len(&mut self, before: u64, after: u64) {
        self.file_bytes = self.file_bytes.saturating_sub(before).saturating_add(after);
    }

    /// Counts a record or patch that was added (`add`) or removed.
    #[doc(hidden)]
    pub fn count_data(&mut self, pointer: &Pointer, ashift: Ashift, is_patch: bool, add: bool) {
        match pointer.place {
            Place::Embedded(_) | Place::Zero => self.embedded.apply(pointer, ashift, add),
            Place::Extent { .. } => {
                let slot = usize::from(pointer.codec).min(CODEC_SLOTS - 1);
                self.codecs[slot].apply(pointer, ashift, add);
            }
        }
        if is_patch {
            self.patches.apply(pointer, ashift, add);
        }
        if pointer.is_filtered() {
            self.filtered.apply(pointer, add);
        }
    }

    /// Counts a tree node or dictionary that was added (`add`) or removed.
    pub(crate) fn count_node(&mut self, pointer: &Pointer, ashift: Ashift, add: bool) {
        self.nodes.apply(pointer, ashift, add);
    }

    /// Counts an entry of the refs tree that was added (`add`) or removed.
    pub fn count_refs(&mut self, refs: &Refs, ashift: Ashift, add: bool) {
        // The count of a segment does not tell which of its parts have several pointers.
        let further = if refs.has_parts { 0 } else { u64::from(refs.count).saturating_sub(1) };
        self.shared.apply_refs(refs, further, ashift, add);
        self.counted.apply_refs(refs, 1, ashift, add);
    }

    /// Returns the sum over all records and patches.
    pub fn data(&self) -> CodecStats {
        let mut sum = self.embedded;
        for codec in &self.codecs {
            sum.add(codec);
        }
        sum
    }

    /// Returns bytes before compression divided by bytes after, both without holes, as OpenZFS
    /// defines it.
    pub fn compress_ratio(&self) -> f64 {
        let data = self.data();
        let after = data.allocated.saturating_add(self.embedded.stored);
        if after == 0 { 1.0 } else { data.logical as f64 / after as f64 }
    }

    /// Returns, for the extents whose references are counted, the bytes behind all references
    /// divided by the bytes of each extent once, as OpenZFS defines it. 1 if nothing is shared.
    pub fn dedup_ratio(&self) -> f64 {
        let once = self.counted.logical;
        if once == 0 { 1.0 } else { once.saturating_add(self.shared.logical) as f64 / once as f64 }
    }

    pub(crate) fn encode(&self, f: &mut FieldWriter<'_>) {
        f.u64(self.file_bytes);
        self.embedded.encode(f);
        self.patches.encode(f);
        self.nodes.encode(f);
        for codec in &self.codecs {
            codec.encode(f);
        }
        self.filtered.encode(f);
        self.counted.encode(f);
        self.shared.encode(f);
    }

    pub(crate) fn decode(f: &mut FieldReader<'_>) -> Option<PoolStats> {
        let mut stats = PoolStats {
            file_bytes: f.u64()?,
            embedded: CodecStats::decode(f)?,
            patches: CodecStats::decode(f)?,
            nodes: CodecStats::decode(f)?,
            ..PoolStats::default()
        };
        for codec in &mut stats.codecs {
            *codec = CodecStats::decode(f)?;
        }
        stats.filtered = FilterStats::decode(f)?;
        stats.counted = CodecStats::decode(f)?;
        stats.shared = CodecStats::decode(f)?;
        Some(stats)
    }
}
