//! References to extents that several pointers share.
//!
//! ```text
//! sector u64 BE   -> count u32, hash kind u8, 3 zero bytes, birth u64; where there is a hash:
//!                    hash of the content, 32 bytes, pointer
//! ```
//!
//! An extent without an entry has one pointer. One that has an entry keeps it until its last pointer is
//! gone, since only the entry still tells when the bytes were written: of the pointers, each has the birth of
//! its own (see [`Pointer::birth`]), by which snapshots tell whether it was there when they were made.
//! What a snapshot keeps counts as long as it does.
//!
//! With a hash, the extent can be found by content. The counts are the truth; whatever looks them up by hash (see
//! [`super::trees::INDEX`]) is a hint that may be lost and rebuilt from here.

use super::fields::{FieldReader, FieldWriter};
use super::pointer::Pointer;
use super::space::space_key;
use super::superblock::FEATURE_SHARED;
use super::trees::REFS;
use super::txn::Txn;
use crate::error::{Error, Result};
use crate::units::{Run, Sector, Txg};

/// The length of a hash of content.
pub const CONTENT_HASH_LEN: usize = 32;

/// The function that made a hash of content. The discriminants are the ones on disk. All are
/// cryptographic: with others, equal hashes would not mean equal content.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum HashKind {
    /// BLAKE3.
    Blake3 = 1,
    /// SHA-256.
    Sha256 = 2,
}

impl HashKind {
    fn from_stored(value: u8) -> Option<HashKind> {
        [HashKind::Blake3, HashKind::Sha256].into_iter().find(|kind| *kind as u8 == value)
    }
}

/// What identifies content.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct ContentHash {
    /// How it was made.
    pub kind: HashKind,
    /// The hash.
    pub hash: [u8; CONTENT_HASH_LEN],
}

/// What is known of an extent that is shared, or may come to be.
#[derive(Clone, PartialEq, Debug)]
pub struct Refs {
    /// How many pointers there are to it.
    pub count: u32,
    /// When its bytes were written.
    pub birth: Txg,
    /// What is in it, and a pointer to all of it.
    pub content: Option<(ContentHash, Pointer)>,
}

impl Refs {
    /// The value of an entry.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        let mut f = FieldWriter(&mut out);
        f.u32(self.count);
        f.u8(self.content.as_ref().map_or(0, |(hash, _)| hash.kind as u8));
        f.zeros(3);
        f.u64(self.birth.0);
        if let Some((hash, pointer)) = &self.content {
            f.bytes(&hash.hash);
            pointer.encode(f.0);
        }
        out
    }

    /// Reads the value of an entry; `None` where it is none.
    pub fn decode(value: &[u8]) -> Option<Refs> {
        let mut f = FieldReader(value);
        let count = f.u32().filter(|count| *count > 0)?;
        let kind = f.u8()?;
        f.zeros(3)?;
        let birth = Txg(f.u64()?);
        let content = match kind {
            0 => f.0.is_empty().then_some(None)?,
            kind => {
                let kind = HashKind::from_stored(kind)?;
                let hash = f.bytes(CONTENT_HASH_LEN)?.try_into().ok()?;
                Some((ContentHash { kind, hash }, Pointer::decode(f.0)?))
            }
        };
        Some(Refs { count, birth, content })
    }
}

/// Reads an entry of the tree.
pub fn parse_refs(key: &[u8], value: &[u8]) -> Result<(Sector, Refs)> {
    let sector = key.try_into().map(u64::from_be_bytes).ok();
    sector.map(Sector).zip(Refs::decode(value)).ok_or_else(malformed)
}

fn malformed() -> Error {
    Error::corrupt("refs tree", 0, "an entry is malformed")
}

impl Txn {
    /// What is counted of the extent that starts at a sector.
    pub fn refs(&mut self, sector: Sector) -> Result<Option<Refs>> {
        if self.is_empty(REFS) {
            return Ok(None);
        }
        let value = self.get(REFS, &space_key(sector))?;
        value.map(|value| Refs::decode(&value).ok_or_else(malformed)).transpose()
    }

    /// Sets what is counted of an extent.
    pub fn set_refs(&mut self, sector: Sector, refs: &Refs) -> Result<()> {
        self.core.incompat |= FEATURE_SHARED;
        self.insert(REFS, &space_key(sector), &refs.encode()).map(drop)
    }

    /// Makes another pointer to what a live one, or one that a snapshot keeps, refers to. Nothing where there are
    /// too many already.
    pub fn share(&mut self, pointer: &Pointer) -> Result<Option<Pointer>> {
        let copy = Pointer { birth: self.txg(), ..pointer.clone() };
        let Some(run) = pointer.run(self.core.ashift()) else { return Ok(Some(copy)) };
        let one = Refs { count: 1, birth: pointer.birth, content: None };
        let refs = self.refs(run.start)?.unwrap_or(one);
        let Some(count) = refs.count.checked_add(1) else { return Ok(None) };
        self.core.shared_len += u64::from(pointer.stored_len);
        self.set_refs(run.start, &Refs { count, ..refs })?;
        Ok(Some(copy))
    }

    /// One reference fewer to an extent, which is freed with the last. `birth` is that of the pointer.
    pub(super) fn drop_reference(&mut self, run: Run, birth: Txg) -> Result<()> {
        match self.refs(run.start)? {
            None => self.free_extent(run, birth),
            Some(refs) if refs.count > 1 => {
                self.set_refs(run.start, &Refs { count: refs.count - 1, ..refs })
            }
            Some(refs) => {
                self.remove(REFS, &space_key(run.start))?;
                self.free_extent(run, refs.birth)
            }
        }
    }
}
