//! Equal records are stored once, whatever happens to their files and to the index that finds them.

mod model;

use std::sync::Arc;

use crate::device::{Device, MemoryDevice};
use crate::pool::extents::source::Committed;
use crate::pool::extents::{FileExtent, file_extents_in};
use crate::pool::{File, Pool, Property, ROOT, Settings, StepLimits};
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::pointer::Place;
use crate::store::format::refs::{HashKind, Refs};
use crate::store::trees::TreeId;
use crate::store::{Durability, Patience};
use crate::test_common::{Rng, create_options, options, problems, read_all};
use crate::units::{Ashift, FileId, Sector};

const RECORD: usize = 16 << 10;
const RECORD_COUNT: usize = 20;

/// A pool with some empty files.
struct Fixture {
    device: Arc<dyn Device>,
    pool: Pool,
    files: Vec<Arc<File>>,
    rng: Rng,
}

/// Creates files in addition to the first, and returns all ids.
fn add_files(pool: &Pool, count: usize) -> Vec<FileId> {
    for n in 1..count {
        pool.create_file_at(format!("/file {n}").as_bytes(), 0, 0).unwrap();
    }
    pool.list().unwrap().iter().map(|entry| entry.file).collect()
}

impl Fixture {
    fn new(seed: u64, file_count: usize, properties: &[(Property, &str)]) -> Fixture {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
        let mut all = vec![(Property::RecordSize, "16K")];
        all.extend_from_slice(properties);
        let create = create_options(9, &all);
        let pool = Pool::create(Arc::clone(&device), &create, options(32 << 20)).unwrap();
        let files = add_files(&pool, file_count);
        let files = files.into_iter().map(|file| pool.file(file).unwrap()).collect();
        Fixture { device, pool, files, rng: Rng(seed) }
    }

    /// Returns the content of some records, all different and none short enough to be embedded.
    fn bytes(&mut self) -> Vec<u8> {
        self.rng.text(RECORD * RECORD_COUNT)
    }

    fn write(&self, file: usize, bytes: &[u8]) {
        self.files[file].write_at(bytes, 0).unwrap();
        self.files[file].commit(Durability::Durable).unwrap();
    }

    fn records(&self, file: usize) -> Vec<FileExtent> {
        records(&self.pool, self.files[file].id())
    }

    /// Returns the number of extents with counted references, and of additional references to them.
    fn counts(&self) -> (u64, u64) {
        let state = self.pool.state();
        (state.stats().counted.records, state.stats().shared.records)
    }

    fn assert_clean(&self) {
        assert_eq!(problems(&self.pool).unwrap(), Vec::<String>::new());
    }

    fn reopen(&mut self) {
        self.pool = Pool::open(Arc::clone(&self.device), options(32 << 20)).unwrap();
        let ids = self.files.iter().map(|file| file.id());
        self.files = ids.map(|id| self.pool.file(id).unwrap()).collect();
    }

    fn repack(&self, file: usize, compression: &str) {
        let mut goal = Settings::default();
        goal.set(Property::Compression, compression).unwrap();
        goal.set(Property::RecordSize, "16K").unwrap();
        let id = self.files[file].id();
        let mut repack = self.pool.begin_repack(id, goal, Patience::None).unwrap();
        let limits = StepLimits { rewrite_len_max: 100_000, ..StepLimits::default() };
        while self.pool.repack_step(&mut repack, &limits, None).unwrap().next.is_some() {}
    }
}

pub(super) fn records(pool: &Pool, file: FileId) -> Vec<FileExtent> {
    let state = pool.state();
    let mut source = Committed::new(pool.store(), &state);
    file_extents_in(&mut source, TreeId::Map, file, 0, u64::MAX, usize::MAX).unwrap()
}

fn sectors(records: &[FileExtent]) -> Vec<Option<Sector>> {
    let sector = |record: &FileExtent| match record.pointer.place {
        Place::Extent { sector, .. } => Some(sector),
        _ => None,
    };
    records.iter().map(sector).collect()
}

#[test]
fn equal_records_are_stored_once() {
    for mode in ["on", "verify"] {
        for hash in ["blake3", "sha256"] {
            let properties = [(Property::Dedup, mode), (Property::DedupHash, hash)];
            let mut f = Fixture::new(1, 3, &properties);
            let bytes = f.bytes();
            f.write(0, &bytes);
            assert_eq!(f.counts(), (RECORD_COUNT as u64, 0));
            let before = f.pool.state().used_sectors(Ashift::MIN);
            f.write(1, &bytes);
            // Also twice the same within one batch.
            f.write(2, &[&bytes[..], &bytes[..]].concat());
            let grown = (f.pool.state().used_sectors(Ashift::MIN) - before) << 9;
            assert!(grown < 40_000, "{mode}: {grown} bytes for pointers");
            assert_eq!(f.counts(), (RECORD_COUNT as u64, 3 * RECORD_COUNT as u64));
            assert_eq!(f.pool.state().stats().dedup_ratio(), 4.0);
            assert_eq!(sectors(&f.records(0)), sectors(&f.records(1)));
            assert!(read_all(&f.files[1]).unwrap() == bytes);
            f.assert_clean();
            // The files are emptied one after the other; the last one frees the extents.
            for (n, left) in [(0, 2), (2, 0)] {
                f.files[n].set_len(0).unwrap();
                f.files[n].commit(Durability::Durable).unwrap();
                assert_eq!(f.counts(), (RECORD_COUNT as u64, left * RECORD_COUNT as u64));
                assert!(read_all(&f.files[1]).unwrap() == bytes);
                f.assert_clean();
            }
            f.files[1].set_len(0).unwrap();
            f.files[1].commit(Durability::Durable).unwrap();
            assert_eq!(f.counts(), (0, 0));
            assert_eq!(f.pool.state().stats().dedup_ratio(), 1.0);
            f.assert_clean();
        }
    }
}

#[test]
fn it_is_off_where_nobody_asks_for_it() {
    let mut f = Fixture::new(2, 2, &[]);
    let bytes = f.bytes();
    f.write(0, &bytes);
    f.write(1, &bytes);
    assert_eq!(f.counts(), (0, 0));
    assert_ne!(sectors(&f.records(0)), sectors(&f.records(1)));
    let pool = &f.pool;
    for (property, text) in [
        (Property::Dedup, "fletcher4"),
        (Property::DedupHash, "xxh3"),
        (Property::DedupMemory, "9K"),
    ] {
        assert!(pool.set_property(ROOT, property, text).is_err(), "{property}={text}");
    }
    pool.set_property(ROOT, Property::DedupMemory, "1M").unwrap();
    assert!(pool.set_property(f.files[0].id(), Property::DedupMemory, "1M").is_err());
    assert_eq!(pool.settings(f.files[0].id()).unwrap().dedup_memory, 1 << 20);
}

#[test]
fn what_is_written_again_unchanged_is_not_stored_again() {
    for (dedup, checksum) in
        [("off", "xxh3"), ("off", "blake3"), ("on", "xxh3"), ("verify", "sha256")]
    {
        let properties = [(Property::Dedup, dedup), (Property::Checksum, checksum)];
        let mut f = Fixture::new(3, 1, &properties);
        let mut bytes = f.bytes();
        // Some raw records, and one embedded in its pointer.
        let noise = f.rng.noise(3 * RECORD);
        bytes[..noise.len()].copy_from_slice(&noise);
        bytes[5 * RECORD..6 * RECORD].fill(9);
        f.write(0, &bytes);
        let before = f.records(0);
        // A patch over one of them is removed.
        f.files[0].write_at(b"patched", 7 * RECORD as u64 + 100).unwrap();
        f.files[0].commit(Durability::Visible).unwrap();
        f.write(0, &bytes);
        assert_eq!(f.records(0), before, "{dedup} {checksum}");
        assert!(read_all(&f.files[0]).unwrap() == bytes);
        f.assert_clean();
        // One record differs.
        bytes[9 * RECORD] ^= 1;
        f.write(0, &bytes);
        let now = f.records(0);
        let changed: Vec<usize> = (0..RECORD_COUNT).filter(|n| now[*n] != before[*n]).collect();
        assert_eq!(changed, [9], "{dedup} {checksum}");
        assert!(read_all(&f.files[0]).unwrap() == bytes);
        // After a change of the algorithm, they are stored again if only the encoded result can be
        // compared.
        f.pool.set_property(ROOT, Property::Compression, "lz4").unwrap();
        f.write(0, &bytes);
        let is_new = f.records(0)[8] != before[8];
        assert_eq!(is_new, dedup == "off", "{dedup} {checksum}");
        f.assert_clean();
    }
}

#[test]
fn a_repack_keeps_what_is_shared() {
    for turned_off in [false, true] {
        let mut f = Fixture::new(4, 4, &[(Property::Dedup, "on")]);
        let bytes = f.bytes();
        (0..4).for_each(|n| f.write(n, &bytes));
        if turned_off {
            f.pool.set_property(ROOT, Property::Dedup, "off").unwrap();
        }
        for compression in ["gzip-1", "zstd-9", "off", "lz4"] {
            for n in 0..4 {
                f.repack(n, compression);
                f.assert_clean();
            }
            let shared = 3 * RECORD_COUNT as u64;
            assert_eq!(f.counts(), (RECORD_COUNT as u64, shared), "{compression}");
            let first = f.records(0);
            let mut goal = Settings::default();
            goal.set(Property::Compression, compression).unwrap();
            let codec = goal.compression.codec_id() as u8;
            assert!(first.iter().all(|record| record.pointer.codec == codec), "{compression}");
            for n in 1..4 {
                assert_eq!(sectors(&f.records(n)), sectors(&first), "{compression}");
                assert!(read_all(&f.files[n]).unwrap() == bytes);
            }
        }
        // New writes find the rewritten records.
        f.pool.set_property(ROOT, Property::Dedup, "on").unwrap();
        f.files[3].set_len(0).unwrap();
        f.files[3].commit(Durability::Durable).unwrap();
        f.write(3, &bytes);
        assert_eq!(sectors(&f.records(3)), sectors(&f.records(0)));
        f.assert_clean();
    }
}

#[test]
fn a_fold_shares_what_comes_out() {
    let mut f = Fixture::new(5, 2, &[(Property::Dedup, "on")]);
    let mut bytes = f.bytes();
    f.write(0, &bytes);
    f.write(1, &bytes);
    for n in [0, 1] {
        f.files[n].write_at(b"the same everywhere", 3 * RECORD as u64).unwrap();
        f.files[n].commit(Durability::Durable).unwrap();
    }
    bytes[3 * RECORD..][..19].copy_from_slice(b"the same everywhere");
    let limits = StepLimits::default();
    f.pool.fold(crate::pool::Fold::All, &limits, &mut |_| true).unwrap();
    assert_eq!(sectors(&f.records(0)), sectors(&f.records(1)));
    assert_eq!(f.counts(), (RECORD_COUNT as u64, RECORD_COUNT as u64));
    assert!(read_all(&f.files[0]).unwrap() == bytes);
    f.assert_clean();
}

#[test]
fn others_are_caught_up_with() {
    let mut f = Fixture::new(6, 3, &[(Property::Dedup, "on")]);
    let bytes = f.bytes();
    let other = Pool::open(Arc::clone(&f.device), options(32 << 20)).unwrap();
    // The first process loads the index; then the other one writes.
    f.write(2, &bytes[..RECORD]);
    other.refresh().unwrap();
    let theirs = other.file(f.files[0].id()).unwrap();
    theirs.write_at(&bytes, 0).unwrap();
    theirs.commit(Durability::Durable).unwrap();
    other.close().unwrap();
    f.pool.refresh().unwrap();
    f.write(1, &bytes);
    assert_eq!(f.counts(), (RECORD_COUNT as u64, RECORD_COUNT as u64 + 1));
    // Nothing is lost when a process ends, or with the index.
    for n in 0..4 {
        f.reopen();
        match n {
            0 => {}
            1 => f.pool.drop_index(Patience::None).unwrap(),
            2 => f.pool.rebuild_index(Patience::None, &mut |_| true).unwrap(),
            _ => f.pool.prune_index(Patience::None, &mut |_| true).unwrap(),
        }
        f.files[1].set_len(0).unwrap();
        f.files[1].commit(Durability::Durable).unwrap();
        f.write(1, &bytes);
        assert_eq!(f.counts(), (RECORD_COUNT as u64, RECORD_COUNT as u64 + 1), "{n}");
        let stats = f.pool.index_stats().unwrap();
        assert!(stats.hits >= RECORD_COUNT as u64, "{n}: {stats:?}");
        f.assert_clean();
    }
}

#[test]
fn compaction_takes_what_is_known_with_it() {
    let mut f = Fixture::new(7, 3, &[(Property::Dedup, "on")]);
    let bytes = f.bytes();
    let gone = f.rng.noise(4 << 20);
    f.write(0, &gone);
    f.write(1, &bytes);
    f.files[0].set_len(0).unwrap();
    f.files[0].commit(Durability::Durable).unwrap();
    let before = sectors(&f.records(1));
    let mut compaction = f.pool.compact();
    while compaction.step().unwrap() {}
    assert_ne!(sectors(&f.records(1)), before, "nothing was moved");
    f.assert_clean();
    f.write(2, &bytes);
    assert_eq!(f.counts(), (RECORD_COUNT as u64, RECORD_COUNT as u64));
    assert_eq!(sectors(&f.records(1)), sectors(&f.records(2)));
    assert!(read_all(&f.files[2]).unwrap() == bytes);
    f.assert_clean();
}

/// Forges an entry of the refs tree that claims other content for an extent.
fn forge(f: &Fixture, record: &FileExtent, of: &[u8]) {
    let Place::Extent { sector, .. } = record.pointer.place else { panic!("it has an extent") };
    let mut txn = f.pool.store().begin(ChecksumKind::Xxh3).unwrap();
    let refs = txn.refs(sector).unwrap().expect("it has an entry");
    let (_, pointer) = refs.content.clone().expect("its content is known");
    let hash = HashKind::Blake3.of(of);
    txn.set_refs(sector, &Refs { content: Some((hash, pointer)), ..refs }).unwrap();
    txn.commit(Durability::Durable).unwrap();
}

#[test]
fn what_is_compared_is_never_wrong() {
    let mut f = Fixture::new(8, 2, &[(Property::Dedup, "verify")]);
    let (bytes, others) = (f.bytes(), f.bytes());
    f.write(0, &bytes);
    for (n, record) in f.records(0).iter().enumerate() {
        forge(&f, record, &others[n * RECORD..][..RECORD]);
    }
    f.reopen();
    f.write(1, &others);
    assert!(read_all(&f.files[1]).unwrap() == others);
    // Also if the slot itself seems to hold the content already.
    for (n, record) in f.records(0).iter().enumerate() {
        forge(&f, record, &others[n * RECORD..][..RECORD]);
    }
    f.write(0, &others);
    assert!(read_all(&f.files[0]).unwrap() == others);
    f.assert_clean();
}

/// A forged entry that refers to another extent, or to a part of one, is ignored.
#[test]
fn forged_entries_are_refused() {
    let mut f = Fixture::new(9, 2, &[(Property::Dedup, "on")]);
    let bytes = f.bytes();
    f.write(0, &bytes);
    let records = f.records(0);
    let [Some(sector), Some(other)] = [sectors(&records)[0], sectors(&records)[1]] else {
        panic!("they have extents")
    };
    let hash = HashKind::Blake3.of(&bytes[..RECORD]);
    let mut txn = f.pool.store().begin(ChecksumKind::Xxh3).unwrap();
    let refs = txn.refs(sector).unwrap().unwrap();
    let elsewhere = txn.refs(other).unwrap().unwrap().content.unwrap().1;
    assert!(refs.content_of(sector, &hash).is_some());
    let forged = Refs { content: Some((hash, elsewhere)), ..refs.clone() };
    assert!(forged.content_of(sector, &hash).is_none());
    let mut part = refs.content.clone().unwrap().1;
    part.len -= 1;
    let forged = Refs { content: Some((hash, part)), ..refs.clone() };
    assert!(forged.content_of(sector, &hash).is_none());
    txn.set_refs(sector, &forged).unwrap();
    txn.commit(Durability::Durable).unwrap();
    // The forgery is reported, and no file reads differently because of it.
    assert!(!problems(&f.pool).unwrap().is_empty());
    f.files[1].write_at(&bytes, 0).unwrap();
    if f.files[1].commit(Durability::Durable).is_ok() {
        assert!(read_all(&f.files[1]).unwrap() == bytes);
    }
    f.files[1].discard();
    assert!(read_all(&f.files[0]).unwrap() == bytes);
}
