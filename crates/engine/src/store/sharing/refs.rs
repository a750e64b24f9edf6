//! References to extents that several pointers share.
//!
//! ```text
//! sector u64 BE   -> count u32, hash kind u8, 3 zero bytes, birth u64, len u32, stored len u32; where
//!                    there is a hash: hash of the content, 32 bytes, pointer
//! ```
//!
//! An extent without an entry has one pointer. One that has an entry keeps it until its last pointer is
//! gone, since only the entry still tells when the bytes were written: of the pointers, each has the birth of
//! its own (see [`Pointer::birth`]), by which snapshots tell whether it was there when they were made.
//! What a snapshot keeps counts as long as it does.
//!
//! With a hash, the extent can be found by content. The counts are the truth; whatever looks them up by hash (see
//! [`crate::store::sharing::index`]) is a hint that may be lost and rebuilt from here.

use std::fmt;
use std::str::FromStr;

use sha2::Digest;

use crate::error::{Error, Result};
use crate::store::format::fields::{FieldReader, FieldWriter};
use crate::store::format::pointer::{Place, Pointer};
use crate::store::format::superblock::FEATURE_SHARED;
use crate::store::format::trees::REFS;
use crate::store::space::space_key;
use crate::store::txn::Txn;
use crate::store::{State, Store};
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
    const ALL: [HashKind; 2] = [HashKind::Blake3, HashKind::Sha256];

    fn from_stored(value: u8) -> Option<HashKind> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == value)
    }

    /// The name used in properties.
    pub const fn name(self) -> &'static str {
        match self {
            HashKind::Blake3 => "blake3",
            HashKind::Sha256 => "sha256",
        }
    }

    /// What identifies these bytes.
    pub fn of(self, bytes: &[u8]) -> ContentHash {
        let hash = match self {
            HashKind::Blake3 => *blake3::hash(bytes).as_bytes(),
            HashKind::Sha256 => sha2::Sha256::digest(bytes).into(),
        };
        ContentHash { kind: self, hash }
    }
}

impl fmt::Display for HashKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for HashKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
            Error::Invalid(format!("'{text}' is no hash for deduplication; use blake3 or sha256"))
        })
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

impl ContentHash {
    /// The part of the hash that the index goes by.
    pub(in crate::store) fn prefix(&self) -> u64 {
        let mut first = [0; 8];
        first.copy_from_slice(&self.hash[..8]);
        u64::from_be_bytes(first)
    }
}

/// What is known of an extent that is shared, or may come to be.
#[derive(Clone, PartialEq, Debug)]
pub struct Refs {
    /// How many pointers there are to it.
    pub count: u32,
    /// When its bytes were written.
    pub birth: Txg,
    /// How many bytes each of them stands for.
    pub len: u32,
    /// How many bytes are stored.
    pub stored_len: u32,
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
        f.u32(self.len);
        f.u32(self.stored_len);
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
        let (len, stored_len) = (f.u32()?, f.u32()?);
        let content = match kind {
            0 => f.0.is_empty().then_some(None)?,
            kind => {
                let kind = HashKind::from_stored(kind)?;
                let hash = f.bytes(CONTENT_HASH_LEN)?.try_into().ok()?;
                Some((ContentHash { kind, hash }, Pointer::decode(f.0)?))
            }
        };
        Some(Refs { count, birth, len, stored_len, content })
    }

    /// One reference to what a pointer refers to.
    fn one(pointer: &Pointer) -> Refs {
        let Pointer { birth, len, stored_len, .. } = *pointer;
        Refs { count: 1, birth, len, stored_len, content: None }
    }

    /// The pointer to content with this hash, where that is what the extent at `sector` holds.
    pub fn content_of(&self, sector: Sector, hash: &ContentHash) -> Option<&Pointer> {
        let (found, pointer) = self.content.as_ref()?;
        (found == hash && is_content_of(sector, pointer)).then_some(pointer)
    }
}

/// Whether a pointer can be that of an entry: to the whole extent there, as it is.
fn is_content_of(sector: Sector, pointer: &Pointer) -> bool {
    matches!(&pointer.place, Place::Extent { sector: place, .. } if *place == sector)
        && !pointer.is_delta()
        && (pointer.part_offset, pointer.len) == (0, pointer.extent_len)
}

/// Reads an entry of the tree.
pub fn parse_refs(key: &[u8], value: &[u8]) -> Result<(Sector, Refs)> {
    let sector = key.try_into().map(u64::from_be_bytes).ok();
    let parsed = sector.map(Sector).zip(Refs::decode(value));
    let is_sound = |(sector, refs): &(Sector, Refs)| {
        refs.content.as_ref().is_none_or(|(_, pointer)| {
            is_content_of(*sector, pointer)
                && (pointer.len, pointer.stored_len) == (refs.len, refs.stored_len)
        })
    };
    parsed.filter(is_sound).ok_or_else(malformed)
}

fn malformed() -> Error {
    Error::corrupt("refs tree", 0, "an entry is malformed")
}

impl Store {
    /// What is counted, in a state, of the extent that starts at a sector.
    pub fn refs_in(&self, state: &State, sector: Sector) -> Result<Option<Refs>> {
        let (tree, key) = (&state.trees[usize::from(REFS)], space_key(sector));
        if tree.is_empty() {
            return Ok(None);
        }
        let value = tree.get(&mut &*self, &key)?;
        value.map(|value| parse_refs(&key, &value).map(|(_, refs)| refs)).transpose()
    }
}

impl Txn {
    /// What is counted of the extent that starts at a sector.
    pub fn refs(&mut self, sector: Sector) -> Result<Option<Refs>> {
        if self.is_empty(REFS) {
            return Ok(None);
        }
        let key = space_key(sector);
        let value = self.get(REFS, &key)?;
        value.map(|value| parse_refs(&key, &value).map(|(_, refs)| refs)).transpose()
    }

    /// Sets what is counted of an extent.
    pub fn set_refs(&mut self, sector: Sector, refs: &Refs) -> Result<()> {
        self.core.incompat |= FEATURE_SHARED;
        let old = self.insert(REFS, &space_key(sector), &refs.encode())?;
        self.note_refs(old.as_deref(), Some(refs));
        Ok(())
    }

    /// Keeps the counters in step with an entry that changes.
    fn note_refs(&mut self, old: Option<&[u8]>, new: Option<&Refs>) {
        let ashift = self.core.ashift();
        if let Some(old) = old.and_then(Refs::decode) {
            self.core.stats.count_refs(&old, ashift, false);
        }
        if let Some(new) = new {
            self.core.stats.count_refs(new, ashift, true);
        }
    }

    /// Lets an extent that this transaction stored be found by its content.
    pub fn add_content(&mut self, pointer: &Pointer, hash: ContentHash) -> Result<()> {
        let Place::Extent { sector, .. } = pointer.place else { return Ok(()) };
        let content = Some((hash, Pointer { span_log2: 0, ..pointer.clone() }));
        self.set_refs(sector, &Refs { content, ..Refs::one(pointer) })?;
        self.note_content(&hash, sector)
    }

    /// What is in an extent is found elsewhere from now on.
    pub fn forget_content(&mut self, sector: Sector) -> Result<()> {
        match self.refs(sector)? {
            Some(refs) if refs.content.is_some() => {
                self.set_refs(sector, &Refs { content: None, ..refs })
            }
            _ => Ok(()),
        }
    }

    /// What is counted of an extent with one pointer goes with it to another place, where this
    /// transaction has copied its bytes. The extent itself is still to be freed.
    pub(in crate::store) fn move_content(&mut self, from: Sector, to: &Pointer) -> Result<()> {
        let Some((hash, _)) = self.refs(from)?.and_then(|refs| refs.content) else {
            return Ok(());
        };
        self.forget_content(from)?;
        self.add_content(to, hash)
    }

    /// Makes another pointer to what a live one, or one that a snapshot keeps, refers to. Nothing where there are
    /// too many already.
    pub fn share(&mut self, pointer: &Pointer) -> Result<Option<Pointer>> {
        let copy = Pointer { birth: self.txg(), ..pointer.clone() };
        let Some(run) = pointer.run(self.core.ashift()) else { return Ok(Some(copy)) };
        let refs = self.refs(run.start)?.unwrap_or_else(|| Refs::one(pointer));
        let Some(count) = refs.count.checked_add(1) else { return Ok(None) };
        self.core.shared_len += u64::from(pointer.stored_len);
        self.set_refs(run.start, &Refs { count, ..refs })?;
        Ok(Some(copy))
    }

    /// One reference fewer to an extent, which is freed with the last. `birth` is that of the pointer.
    pub(in crate::store) fn drop_reference(&mut self, run: Run, birth: Txg) -> Result<()> {
        match self.refs(run.start)? {
            None => self.free_extent(run, birth),
            Some(refs) if refs.count > 1 => {
                self.set_refs(run.start, &Refs { count: refs.count - 1, ..refs })
            }
            Some(refs) => {
                let old = self.remove(REFS, &space_key(run.start))?;
                self.note_refs(old.as_deref(), None);
                self.free_extent(run, refs.birth)
            }
        }
    }
}
