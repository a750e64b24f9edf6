//! Tells whether content is where an index entry leads: the refs tree decides.
//!
//! Of an extent, and in older pools of a part of a segment, the refs tree has the whole hash. Of
//! other parts it has the front, which leads to what is most likely the same and proves nothing. So
//! the segment is read, and all parts of it are hashed that can be found this way: whoever looks
//! for one mostly looks for its neighbours next. These hashes stay in memory, and each segment is
//! read once as long as they fit into their share of the memory of the index.
//!
//! What is damaged proves nothing either. Its content is stored once more.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::error::Result;
use crate::store::format::pointer::Pointer;
use crate::store::format::refs::{
    ContentHash, HashKind, PartContent, Refs, RefsEntry, parse_refs_entry, part_key,
};
use crate::store::format::space::space_key;
use crate::store::format::trees::TreeId;
use crate::store::sharing::index::{Committed, Reader};
use crate::store::tree::EntryRef;
use crate::store::{State, Store, Txn};
use crate::units::Sector;

/// What the refs tree says of the place of some content.
pub(super) enum Match {
    /// The content is not there.
    No,
    /// This is the pointer to it.
    Yes(Pointer),
    /// The front of the hash is that of a part.
    Maybe(Box<Candidate>),
}

/// A part that may have the content.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Candidate {
    part: PartContent,
    whole: Pointer,
    pointer: Pointer,
}

impl Match {
    /// Returns the pointer to what is there, proven or not.
    pub(super) fn pointer(&self) -> Option<&Pointer> {
        match self {
            Match::No => None,
            Match::Yes(pointer) => Some(pointer),
            Match::Maybe(candidate) => Some(&candidate.pointer),
        }
    }
}

/// Looks for content in the extent at a sector. Also returns the entry that says so.
pub(super) fn match_at(
    reader: &mut impl Reader,
    sector: Sector,
    hash: &ContentHash,
) -> Result<(Match, Option<EntryRef>)> {
    let key = space_key(sector);
    let entry = reader.floor(TreeId::Refs, &key)?.filter(|entry| entry.key() == key);
    let Some(entry) = entry else { return Ok((Match::No, None)) };
    let Some(refs) = Refs::decode(entry.value()) else { return Ok((Match::No, Some(entry))) };
    let Some(whole) = &refs.whole else {
        let pointer = refs.content_of(sector, hash).cloned();
        return Ok((pointer.map_or(Match::No, Match::Yes), Some(entry)));
    };
    let key = part_key(sector, hash.prefix());
    let found = reader.floor(TreeId::Refs, &key)?.filter(|found| found.key() == key);
    let Some(found) = found else { return Ok((Match::No, Some(entry))) };
    let Ok(RefsEntry::Part(_, part)) = parse_refs_entry(&key, found.value()) else {
        return Ok((Match::No, Some(found)));
    };
    let matched = match (part.hash.is_of(hash), refs.pointer_to(sector, &part)) {
        (Some(true), Some(pointer)) => Match::Yes(pointer),
        (None, Some(pointer)) => {
            let whole = whole.clone();
            Match::Maybe(Box::new(Candidate { part, whole, pointer }))
        }
        (Some(false), _) | (_, None) => Match::No,
    };
    Ok((matched, Some(found)))
}

/// Whether a part has content with this hash. Reads its segment if no hash of it is in memory; the
/// index is not locked meanwhile.
pub(super) fn proves(
    store: &Store,
    reader: &mut impl Reader,
    candidate: &Candidate,
    hash: &ContentHash,
) -> Result<bool> {
    if let Some(found) = store.index().part_hashes.get(candidate) {
        return Ok(found == *hash);
    }
    let bytes = match reader.read_once(&candidate.whole) {
        Err(error) if error.is_corruption() => return Ok(false),
        bytes => bytes?,
    };
    let Some(sector) = candidate.whole.sector() else { return Ok(false) };
    let (from, to) = (part_key(sector, 0), space_key(Sector(sector.0 + 1)));
    let hash_of = |part: &PartContent| {
        let end = (part.offset as usize).checked_add(part.len as usize)?;
        let bytes = bytes.as_slice().get(part.offset as usize..end)?;
        Some(part.hash.kind.of(bytes))
    };
    let mut hashes = Vec::new();
    for (key, value) in reader.range(TreeId::Refs, &from, &to, usize::MAX)? {
        if let Ok(RefsEntry::Part(_, part)) = parse_refs_entry(&key, &value)
            && part.hash.rest.is_none()
            && let Some(hash) = hash_of(&part)
        {
            hashes.push(((part.offset, part.len), hash));
        }
    }
    let is_same = hash_of(&candidate.part).is_some_and(|found| found == *hash);
    let mut index = store.index();
    let count_max = index.part_hash_count_max();
    index.count_segment_read();
    index.part_hashes.insert(sector, candidate.whole.clone(), hashes, count_max);
    Ok(is_same)
}

/// Returns the pointer to content with this hash in the extent at a sector.
fn content_at(
    store: &Store,
    reader: &mut impl Reader,
    sector: Sector,
    hash: &ContentHash,
) -> Result<Option<Pointer>> {
    match match_at(reader, sector, hash)?.0 {
        Match::No => Ok(None),
        Match::Yes(pointer) => Ok(Some(pointer)),
        Match::Maybe(candidate) => {
            Ok(proves(store, reader, &candidate, hash)?.then_some(candidate.pointer))
        }
    }
}

impl Store {
    /// Returns the pointer to content with this hash, in a state, in the extent at a sector: to a
    /// part of it if that is a segment.
    pub fn content_at(
        &self,
        state: &State,
        sector: Sector,
        hash: &ContentHash,
    ) -> Result<Option<Pointer>> {
        content_at(self, &mut Committed(self, state), sector, hash)
    }
}

impl Txn {
    /// Like [`Store::content_at`], in this transaction.
    pub fn content_at(&mut self, sector: Sector, hash: &ContentHash) -> Result<Option<Pointer>> {
        let store = Arc::clone(&self.core.store);
        content_at(&store, self, sector, hash)
    }
}

/// Hashes of the parts of segments that were read, those of the last segments.
#[derive(Default, Debug)]
pub(super) struct PartHashes {
    segments: HashMap<Sector, SegmentHashes>,
    /// The segments, the one that was read first in front.
    order: VecDeque<Sector>,
    count: usize,
}

/// Where a part begins in its segment, and how long it is.
type PartPlace = (u32, u32);

#[derive(Debug)]
struct SegmentHashes {
    /// The pointer to all of it. Later, another extent may be at the same place.
    whole: Pointer,
    /// The places of parts and the hashes of what is there, in order.
    parts: Vec<(PartPlace, ContentHash)>,
}

impl PartHashes {
    /// The memory that the hash of a part takes.
    pub(super) const PART_LEN: u64 = size_of::<(PartPlace, ContentHash)>() as u64;

    pub(super) fn memory(&self) -> u64 {
        self.count as u64 * Self::PART_LEN
    }

    pub(super) fn get(&self, candidate: &Candidate) -> Option<ContentHash> {
        let found = self.segments.get(&candidate.whole.sector()?)?;
        let part = &candidate.part;
        let wanted = order_of((part.offset, part.len), part.hash.kind);
        let at = found.parts.binary_search_by_key(&wanted, |(at, hash)| order_of(*at, hash.kind));
        at.ok().filter(|_| found.whole == candidate.whole).map(|at| found.parts[at].1)
    }

    /// Keeps the hashes of a segment, and gives up the oldest if there are more than `count_max`.
    fn insert(
        &mut self,
        sector: Sector,
        whole: Pointer,
        mut parts: Vec<(PartPlace, ContentHash)>,
        count_max: usize,
    ) {
        parts.sort_unstable_by_key(|(at, hash)| order_of(*at, hash.kind));
        self.count += parts.len();
        match self.segments.insert(sector, SegmentHashes { whole, parts }) {
            Some(old) => self.count -= old.parts.len(),
            None => self.order.push_back(sector),
        }
        while self.count > count_max
            && let Some(oldest) = self.order.pop_front()
        {
            self.count -= self.segments.remove(&oldest).map_or(0, |old| old.parts.len());
        }
    }
}

fn order_of(place: PartPlace, kind: HashKind) -> (PartPlace, u8) {
    (place, kind as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::format::checksum::ChecksumKind;
    use crate::store::format::pointer::Place;
    use crate::units::Txg;

    fn whole(sector: u64, sum: u8) -> Pointer {
        let place = Place::Extent {
            sector: Sector(sector),
            checksum_kind: ChecksumKind::Xxh3,
            checksum: [sum; 32],
        };
        Pointer {
            codec: 0,
            level: 0,
            codec_version: 0,
            filter: 0,
            gain: 0,
            birth: Txg(1),
            len: 1000,
            stored_len: 1000,
            extent_len: 1000,
            part_offset: 0,
            span_log2: 0,
            dictionary: 0,
            place,
        }
    }

    fn candidate(whole: &Pointer, offset: u32, kind: HashKind) -> Candidate {
        let part = PartContent { offset, len: 10, hash: kind.of(b"front").into() };
        Candidate { part, whole: whole.clone(), pointer: whole.clone() }
    }

    #[test]
    fn hashes_of_parts_are_those_of_their_segment_and_the_oldest_go() {
        let (blake3, sha256) = (HashKind::Blake3, HashKind::Sha256);
        let hash = |kind: HashKind, n: u32| kind.of(&n.to_le_bytes());
        let mut hashes = PartHashes::default();
        for sector in [100, 200, 300, 200] {
            // Not in order, and one part by both functions.
            let parts = vec![
                ((30, 10), hash(blake3, 30)),
                ((20, 10), hash(sha256, 20)),
                ((20, 10), hash(blake3, 20)),
                ((0, 10), hash(blake3, 0)),
            ];
            hashes.insert(Sector(sector), whole(sector, 1), parts, 10);
        }
        assert_eq!(hashes.memory(), 8 * PartHashes::PART_LEN);
        assert_eq!(hashes.get(&candidate(&whole(100, 1), 30, blake3)), None);
        for sector in [200, 300] {
            let of = |offset, kind| hashes.get(&candidate(&whole(sector, 1), offset, kind));
            for (offset, kind) in [(0, blake3), (20, blake3), (20, sha256), (30, blake3)] {
                assert_eq!(of(offset, kind), Some(hash(kind, offset)));
            }
            assert_eq!(of(10, blake3), None);
            assert_eq!(of(0, sha256), None);
            // Another extent is there now.
            assert_eq!(hashes.get(&candidate(&whole(sector, 2), 0, blake3)), None);
        }
        hashes.insert(Sector(400), whole(400, 1), vec![((0, 10), hash(blake3, 0)); 11], 10);
        assert_eq!(hashes.memory(), 0);
    }
}
