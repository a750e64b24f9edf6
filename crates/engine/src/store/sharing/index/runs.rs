//! Runs: sorted pieces of the index in the pool, written once.
//!
//! ```text
//! run u32 BE, 0, 0 u64                     -> pointer that holds the header
//! run u32 BE, 1, first front u64 BE        -> pointer to the filter of a part
//! run u32 BE, 2, first front u64 BE        -> pointer to a block of entries
//!
//! header    entries u64, from u64, covered u64, made u64, into u32
//! entry     front of the hash u64, sector u64; ascending, no front twice
//! ```
//!
//! A part is up to [`PART_COUNT`] entries in blocks of up to [`BLOCK_COUNT`], with one filter.
//! Entries below `from` have already moved to the run `into`, which this one is being merged into.
//! Damaged or malformed pieces count as empty: the index may lose what it knows.

use super::Reader;
use super::membership::{self, MembershipFilter};
use super::table::Entry;
use crate::error::{Error, Result};
use crate::store::extent::Encoding;
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::fields::{FieldReader, FieldWriter};
use crate::store::format::pointer::pointer_in;
use crate::store::format::pointer::{EXTENT_LEN_MAX, Pointer, SECTOR_MAX, sectors_for};
use crate::store::format::trees::TreeId;
use crate::store::txn::{Owner, Txn};
use crate::units::{Sector, Txg};

/// The maximum number of entries per filter.
pub(super) const PART_COUNT: usize = 8192;
/// The maximum number of entries in a block, which a look-up reads as a whole.
const BLOCK_COUNT: usize = 512;
const ENTRY_LEN: usize = 16;
/// No pool can have more entries, because it has fewer sectors.
const ENTRIES_MAX: u64 = SECTOR_MAX.0;
const KEY_LEN: usize = 13;

/// The kind of item that a key of the tree leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Kind {
    Header = 0,
    Filter = 1,
    Block = 2,
}

/// Returns a key of the tree.
pub(super) fn run_key(run: u32, kind: u8, first: u64) -> [u8; KEY_LEN] {
    let mut key = [0; KEY_LEN];
    key[..4].copy_from_slice(&run.to_be_bytes());
    key[4] = kind;
    key[5..].copy_from_slice(&first.to_be_bytes());
    key
}

/// Parses a key of the tree.
pub fn parse_index_key(key: &[u8]) -> Result<(u32, u8, u64)> {
    let parsed = key.split_first_chunk::<4>().and_then(|(run, rest)| {
        let (kind, first) = rest.split_first()?;
        let first = first.try_into().map(u64::from_be_bytes).ok()?;
        (*kind <= Kind::Block as u8).then_some((u32::from_be_bytes(*run), *kind, first))
    });
    parsed.ok_or_else(|| {
        let what =
            "expected the number, the kind and the first hash of a part of a run, found others";
        Error::corrupt("entry", TreeId::Index.location_of(key), what)
    })
}

/// The header of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Header {
    /// The number of entries from `from` on.
    pub entries: u64,
    /// Entries below this front are in the run that it is being merged into.
    pub from: u64,
    /// With this run and those before it, the index covers everything that was in the refs tree up
    /// to this txg.
    pub covered: Txg,
    /// The txg that made it.
    pub made: Txg,
    /// The run that it is being merged into; 0 for none.
    pub into: u32,
}

impl Header {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(36);
        let mut f = FieldWriter(&mut out);
        f.u64(self.entries);
        f.u64(self.from);
        f.u64(self.covered.0);
        f.u64(self.made.0);
        f.u32(self.into);
        out
    }

    pub fn decode(bytes: &[u8]) -> Option<Header> {
        let mut f = FieldReader(bytes);
        let (entries, from) = (f.u64()?, f.u64()?);
        let (covered, made, into) = (Txg(f.u64()?), Txg(f.u64()?), f.u32()?);
        f.0.is_empty().then_some(Header { entries, from, covered, made, into })
    }
}

/// The filter of a part of a run, in memory.
#[derive(Debug)]
pub(super) struct Part {
    first: u64,
    filter: MembershipFilter,
}

/// The part of a run that is in memory.
#[derive(Debug)]
pub(super) struct Run {
    pub number: u32,
    pub header: Header,
    /// Its filters; `None` if there is no room for them, so that look-ups read the disk.
    pub parts: Option<Vec<Part>>,
}

/// Returns the memory that the filters of this many entries use, in bytes.
pub(super) fn filter_memory(entries: u64) -> usize {
    // A damaged header may contain any number.
    let entries = entries.min(ENTRIES_MAX) as usize;
    let parts = entries.div_ceil(PART_COUNT);
    parts * size_of::<Part>() + membership::len_for(entries) + parts * 64
}

impl Run {
    /// Returns whether it may hold an entry, and whether its filters were consulted.
    pub fn may_hold(&self, prefix: u64) -> (bool, bool) {
        let Some(parts) = &self.parts else { return (prefix >= self.header.from, false) };
        if prefix < self.header.from {
            return (false, true);
        }
        let index = parts.partition_point(|part| part.first <= prefix);
        let part = index.checked_sub(1).map(|index| &parts[index]);
        (part.is_some_and(|part| part.filter.may_hold(prefix)), true)
    }

    /// The memory that its filters use, in bytes.
    pub fn memory(&self) -> usize {
        let parts = self.parts.iter();
        parts
            .map(|parts| {
                let filters: usize = parts.iter().map(|part| part.filter.memory()).sum();
                filters + parts.capacity() * size_of::<Part>()
            })
            .sum()
    }

    /// Drops the filters of entries that have moved to another run.
    pub fn forget_merged(&mut self) {
        let from = self.header.from;
        if let Some(parts) = &mut self.parts {
            // The part that contains `from` still counts.
            let gone = parts.partition_point(|part| part.first <= from).saturating_sub(1);
            parts.drain(..gone);
        }
    }

    /// Looks up an entry in the pool.
    pub fn look_up(&self, reader: &mut impl Reader, prefix: u64) -> Result<Option<Sector>> {
        let key = run_key(self.number, Kind::Block as u8, prefix);
        let Some(entry) = reader.floor(TreeId::Index, &key)? else { return Ok(None) };
        if entry.key()[..entry.key().len().min(5)] != key[..5] {
            return Ok(None);
        }
        let block = reader.read(&pointer_in(TreeId::Index, entry.key(), entry.value())?)?;
        let Some(entries) = parse_block(block.as_slice()) else { return Ok(None) };
        let front = |entry: &[u8; ENTRY_LEN]| split_entry(entry).0;
        let found = entries.binary_search_by_key(&prefix, front).ok();
        Ok(found.map(|index| Sector(split_entry(&entries[index]).1)).filter(is_place))
    }

    /// Loads the filters. If they cannot be read, or use more than `memory_max` bytes, the run
    /// stays without.
    pub fn load_parts(&mut self, reader: &mut impl Reader, memory_max: u64) -> Result<()> {
        let mut parts = Vec::new();
        let mut memory = 0;
        let mut from = run_key(self.number, Kind::Filter as u8, 0);
        let to = run_key(self.number, Kind::Block as u8, 0);
        loop {
            let found = reader.range(TreeId::Index, &from, &to, 64)?;
            let Some((last, _)) = found.last() else { break };
            let Ok((_, _, last)) = parse_index_key(last) else { return Ok(()) };
            for (key, value) in &found {
                let (Ok((_, _, first)), Some(pointer)) =
                    (parse_index_key(key), Pointer::decode(value))
                else {
                    return Ok(());
                };
                if pointer.extent_len as usize > membership::len_for(PART_COUNT) {
                    return Ok(());
                }
                let bytes = reader.read_once(&pointer)?;
                let Some(filter) = MembershipFilter::from_bytes(bytes.as_slice()) else {
                    return Ok(());
                };
                memory += (filter.memory() + size_of::<Part>()) as u64;
                parts.push(Part { first, filter });
            }
            if memory > memory_max {
                return Ok(());
            }
            let Some(next) = last.checked_add(1) else { break };
            from = run_key(self.number, Kind::Filter as u8, next);
        }
        parts.shrink_to_fit();
        self.parts = Some(parts);
        self.forget_merged();
        Ok(())
    }
}

fn is_place(sector: &Sector) -> bool {
    sector.0 > 0 && *sector <= SECTOR_MAX
}

fn split_entry(entry: &[u8; ENTRY_LEN]) -> Entry {
    let number = u128::from_le_bytes(*entry);
    (number as u64, (number >> 64) as u64)
}

/// Returns the entries of a block; `None` if it is malformed. Their order is not checked: a search
/// copes without it, and a merge checks it.
fn parse_block(bytes: &[u8]) -> Option<&[[u8; ENTRY_LEN]]> {
    let (entries, rest) = bytes.as_chunks::<ENTRY_LEN>();
    (rest.is_empty() && (1..=BLOCK_COUNT).contains(&entries.len())).then_some(entries)
}

/// Returns the headers of all runs in the tree.
pub(super) fn headers(reader: &mut impl Reader) -> Result<Vec<(u32, Header)>> {
    let mut found = Vec::new();
    let mut next = Some(0);
    while let Some(run) = next {
        let entry =
            reader.range(TreeId::Index, &run_key(run, 0, 0), &[0xff; KEY_LEN + 1], 1)?.pop();
        let Some((key, value)) = entry else { break };
        let (number, kind, first) = parse_index_key(&key)?;
        next = number.checked_add(1);
        if (kind, first) == (Kind::Header as u8, 0) {
            let bytes = reader.read_once(&pointer_in(TreeId::Index, &key, &value)?)?;
            found.extend(Header::decode(bytes.as_slice()).map(|header| (number, header)));
        }
    }
    Ok(found)
}

impl Txn {
    /// Stores a pointer to an item of the index in its tree, and frees the item it replaces.
    fn put_index(&mut self, key: &[u8], pointer: &Pointer) -> Result<()> {
        let ashift = self.core.ashift();
        self.core.stats.count_node(pointer, ashift, true);
        let old = self.insert(TreeId::Index, key, &pointer.to_bytes())?;
        old.map_or(Ok(()), |old| self.free_index(key, &old))
    }

    /// Removes an item of the index.
    pub(super) fn remove_index(&mut self, key: &[u8]) -> Result<()> {
        let old = self.remove(TreeId::Index, key)?;
        old.map_or(Ok(()), |old| self.free_index(key, &old))
    }

    fn free_index(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let (pointer, ashift) = (pointer_in(TreeId::Index, key, value)?, self.core.ashift());
        self.core.stats.count_node(&pointer, ashift, false);
        self.free(&pointer, Owner::Nobody)
    }

    fn store_index(&mut self, key: &[u8], bytes: &[u8]) -> Result<()> {
        debug_assert!(bytes.len() <= EXTENT_LEN_MAX as usize);
        let checksum: ChecksumKind = self.core.checksum;
        let pointer = self.store_extent(bytes, Encoding::RAW, bytes.len() as u32, checksum)?;
        self.put_index(key, &pointer)
    }

    /// Writes the header of a run.
    pub(super) fn put_header(&mut self, run: u32, header: &Header) -> Result<()> {
        let bytes = header.encode();
        let pointer = self.embed(Some(&bytes), Encoding::RAW, bytes.len() as u32)?;
        self.put_index(&run_key(run, Kind::Header as u8, 0), &pointer)
    }

    /// Writes a part of a run from ascending entries.
    pub(super) fn put_part(&mut self, run: u32, entries: &[Entry]) -> Result<Option<Part>> {
        let Some((first, _)) = entries.first().copied() else { return Ok(None) };
        let filter = MembershipFilter::of(entries.iter().map(|(prefix, _)| *prefix));
        let ashift = self.core.ashift();
        let block_sectors = sectors_for((BLOCK_COUNT * ENTRY_LEN) as u32, ashift);
        let filter_sectors = sectors_for(filter.memory() as u32, ashift);
        let blocks = entries.len().div_ceil(BLOCK_COUNT);
        self.provision(
            std::iter::repeat_n(block_sectors, blocks).chain(std::iter::once(filter_sectors)),
        )?;
        for block in entries.chunks(BLOCK_COUNT) {
            let number = |(prefix, sector): &Entry| u128::from(*sector) << 64 | u128::from(*prefix);
            let bytes: Vec<u8> =
                block.iter().flat_map(|entry| number(entry).to_le_bytes()).collect();
            self.store_index(&run_key(run, Kind::Block as u8, block[0].0), &bytes)?;
        }
        self.store_index(&run_key(run, Kind::Filter as u8, first), &filter.to_bytes())?;
        Ok(Some(Part { first, filter }))
    }

    /// Removes everything that is left of a run.
    pub(super) fn remove_run(&mut self, run: u32) -> Result<()> {
        let to = run_key(run, u8::MAX, u64::MAX);
        loop {
            let found = self.range(TreeId::Index, &run_key(run, 0, 0), &to, 256)?;
            if found.is_empty() {
                return Ok(());
            }
            for (key, _) in found {
                self.remove_index(&key)?;
            }
        }
    }
}

/// Takes entries out of a run one by one, in order. Used-up blocks are removed.
pub(super) struct Cursor {
    pub run: u32,
    from: u64,
    block: Vec<Entry>,
    at: usize,
    key: Option<Vec<u8>>,
    /// How many entries were taken.
    pub taken: u64,
}

impl Cursor {
    pub fn new(run: &Run) -> Cursor {
        let (run, from) = (run.number, run.header.from);
        Cursor { run, from, block: Vec::new(), at: 0, key: None, taken: 0 }
    }

    /// Returns the next entry without taking it.
    pub fn peek(&mut self, txn: &mut Txn) -> Result<Option<Entry>> {
        loop {
            if let Some(entry) = self.block.get(self.at) {
                return Ok(Some(*entry));
            }
            if let Some(key) = self.key.take() {
                txn.remove_index(&key)?;
            }
            let (from, to) = (Kind::Block as u8, Kind::Block as u8 + 1);
            let (from, to) = (run_key(self.run, from, 0), run_key(self.run, to, 0));
            let Some((key, value)) = txn.range(TreeId::Index, &from, &to, 1)?.pop() else {
                return Ok(None);
            };
            let pointer = pointer_in(TreeId::Index, &key, &value);
            self.key = Some(key);
            self.at = 0;
            self.block = match txn.read_once(&pointer?) {
                Ok(bytes) => self.entries_of(bytes.as_slice()),
                Err(error) if error.is_corruption() => Vec::new(),
                Err(error) => return Err(error),
            };
        }
    }

    /// Returns the valid entries of a block that have not been taken yet.
    fn entries_of(&mut self, bytes: &[u8]) -> Vec<Entry> {
        let mut entries: Vec<Entry> = Vec::new();
        for (prefix, sector) in parse_block(bytes).unwrap_or_default().iter().map(split_entry) {
            let ascends = entries.last().is_none_or(|(before, _)| *before < prefix);
            if prefix >= self.from && ascends && is_place(&Sector(sector)) {
                entries.push((prefix, sector));
            }
        }
        entries
    }

    /// Takes the next entry.
    pub fn next(&mut self) {
        let taken = self.block.get(self.at).map(|(prefix, _)| *prefix);
        self.from = taken.map_or(self.from, |prefix| prefix.saturating_add(1));
        self.at += 1;
        self.taken += 1;
    }
}
