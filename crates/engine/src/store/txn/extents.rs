//! The extents of a transaction: stored, embedded in their pointers, read, and given up.

use super::{Owner, Txn, TxnCore};
use crate::codec::{self, CodecId};
use crate::error::{Error, Result};
use crate::store::ExtentBytes;
use crate::store::extent::Encoding;
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::pointer::{Filter, Inline, Place, Pointer, sectors_for};
use crate::store::format::superblock::{
    FEATURE_DELTAS, FEATURE_DICTIONARIES, FEATURE_DIFFERENCES, FEATURE_FILTERED_DIFFERENCES,
    FEATURE_INFLATED, FEATURE_LZMA, FEATURE_PAGE_FILTER, FEATURE_PAGES_APART, FEATURE_TRANSFORMED,
};
use crate::store::format::trees::TreeId;
use crate::units::{Run, Txg};

/// The maximum number of freed runs kept in memory before a transaction records them.
const FREED_RUNS_MAX: usize = 65536;

impl Txn {
    /// Stores an extent: allocates it, buffers the write and describes it.
    pub fn store_extent(
        &mut self,
        stored: &[u8],
        encoding: Encoding,
        extent_len: u32,
        checksum: ChecksumKind,
    ) -> Result<Pointer> {
        self.core.changed = true;
        self.core.store_extent(stored, encoding, extent_len, checksum)
    }

    /// Returns a pointer that holds the stored bytes itself, or stands for zeros if there are none.
    pub fn embed(
        &mut self,
        stored: Option<&[u8]>,
        encoding: Encoding,
        len: u32,
    ) -> Result<Pointer> {
        let place = match stored.map(|bytes| (bytes, Inline::new(bytes))) {
            None => Place::Zero,
            Some((_, Some(inline))) => Place::Embedded(inline),
            Some((bytes, None)) => {
                let what = format!("{} bytes do not fit into a pointer", bytes.len());
                return Err(Error::Invalid(what));
            }
        };
        Ok(Pointer {
            place,
            stored_len: stored.map_or(0, |bytes| bytes.len() as u32),
            ..self.core.describe(encoding, len)
        })
    }

    /// Puts the bytes of an extent of this transaction into the cache. Those of a part of a segment
    /// are not all of its extent, and are left out.
    pub fn cache(&self, pointer: &Pointer, bytes: Vec<u8>) {
        let may_cache = self.may_cache(pointer) && !pointer.is_part();
        if may_cache {
            self.core.store.put_cached(pointer, bytes);
        }
    }

    /// Gives up a pointer of `owner`. Its space is reused once nothing refers to it any more,
    /// including snapshots, and reuse is safe.
    pub fn free(&mut self, pointer: &Pointer, owner: Owner) -> Result<()> {
        let Some(run) = pointer.run(self.core.ashift()) else { return Ok(()) };
        if self.is_held(pointer.birth, owner)? {
            return self.bury(run, pointer.birth, owner);
        }
        if self.drop_reference(run, pointer.birth)?
            && let Some(key) = pointer.extent_key()
        {
            self.core.given_up.data(key);
        }
        Ok(())
    }

    /// Frees an extent that nothing refers to any more. `birth` is that of its bytes.
    pub(in crate::store) fn free_extent(&mut self, run: Run, birth: Txg) -> Result<()> {
        self.core.changed = true;
        self.core.free_run(run, birth);
        if self.core.freed.len() > FREED_RUNS_MAX {
            self.core.record_freed(&mut self.trees[TreeId::Freed])?;
            self.spill_nodes(TreeId::Freed)?;
        }
        Ok(())
    }

    /// Returns the stored bytes of an extent, which may still be buffered.
    pub fn read_stored(&mut self, pointer: &Pointer) -> Result<Vec<u8>> {
        if pointer.birth == self.core.txg {
            self.core.out.flush(&self.core.store)?;
        }
        self.core.store.read_stored(pointer)
    }

    /// Returns the bytes behind a pointer; those of this transaction may still be buffered.
    pub fn read(&mut self, pointer: &Pointer) -> Result<ExtentBytes> {
        let may_cache = self.may_cache(pointer);
        let core = &mut self.core;
        let is_own = pointer.birth == core.txg;
        if !may_cache {
            core.out.flush(&core.store)?;
            return core.store.read_uncached(pointer);
        }
        if is_own && !core.store.is_cached(pointer) {
            core.out.flush(&core.store)?;
        }
        match core.store.read(pointer) {
            Err(error) if is_own && error.is_corruption() => {
                // Other readers may just have pushed it out of the cache.
                core.out.flush(&core.store)?;
                core.store.read(pointer)
            }
            read => read,
        }
    }
}

impl TxnCore {
    fn describe(&mut self, encoding: Encoding, len: u32) -> Pointer {
        if encoding.filter == Filter::Delta {
            self.incompat |= FEATURE_DELTAS;
        }
        if encoding.filter.form().is_some() {
            self.incompat |= FEATURE_PAGE_FILTER;
        }
        if encoding.filter == Filter::SqliteApart {
            self.incompat |= FEATURE_PAGES_APART;
        }
        if encoding.filter == Filter::Inflated {
            self.incompat |= FEATURE_INFLATED;
        }
        if encoding.filter == Filter::Transformed {
            self.incompat |= FEATURE_TRANSFORMED;
        }
        if encoding.filter == Filter::Difference {
            self.incompat |= FEATURE_DIFFERENCES;
        }
        if encoding.filter == Filter::FilteredDifference {
            self.incompat |= FEATURE_DIFFERENCES | FEATURE_FILTERED_DIFFERENCES;
        }
        if encoding.codec == CodecId::Lzma {
            self.incompat |= FEATURE_LZMA;
        }
        if encoding.dictionary != 0 {
            self.incompat |= FEATURE_DICTIONARIES;
        }
        Pointer {
            place: Place::Zero,
            codec: encoding.codec as u8,
            level: encoding.level,
            codec_version: codec::codec_version(encoding.codec),
            filter: encoding.filter as u8,
            gain: encoding.gain,
            dictionary: encoding.dictionary,
            birth: self.txg,
            len,
            stored_len: 0,
            extent_len: len,
            part_offset: 0,
            span_log2: 0,
        }
    }

    pub(super) fn store_extent(
        &mut self,
        stored: &[u8],
        encoding: Encoding,
        extent_len: u32,
        checksum_kind: ChecksumKind,
    ) -> Result<Pointer> {
        let stored_len = stored.len() as u32;
        let sectors = sectors_for(stored_len, self.ashift());
        let sector = self.space.allocate(sectors);
        self.out.push(sector.0 << self.ashift(), stored, (sectors << self.ashift()) as usize);
        if self.out.is_full() {
            self.out.flush(&self.store)?;
        }
        let place = Place::Extent { sector, checksum_kind, checksum: checksum_kind.sum(stored) };
        Ok(Pointer { place, stored_len, ..self.describe(encoding, extent_len) })
    }
}
