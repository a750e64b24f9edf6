//! A full disk where what is free is in pieces shorter than a record.

use std::sync::Arc;

use crate::common::limits::BoundedDevice;
use crate::common::segments::{pointers, put, repack_file};
use crate::common::{Rng, create, only_file, options, problems, read_all};
use hardpack_engine::Error;
use hardpack_engine::device::Device;
use hardpack_engine::pool::{Attributes, File, Kind, Pool, Property, ROOT};
use hardpack_engine::store::Durability;

const DIRTY_LEN_MAX: usize = 8 << 20;
const KIB: usize = 1 << 10;
const PAGE_LEN: usize = 4 * KIB;
const RECORD_LEN: usize = 128 * KIB;
const RECORD_COUNT: usize = 32;
const PIECE_COUNT: usize = 64;
const CHANGE_COUNT: usize = 300;
const PIECE_LEN: usize = 16 * KIB;
/// The front of the file, every second piece of which is a hole.
const FRONT_LEN: usize = 2 * PIECE_COUNT * PIECE_LEN;

/// A file on a full disk: short records, every second of which is a hole, then long ones.
struct Filled {
    disk: Arc<BoundedDevice>,
    pool: Pool,
    file: Arc<File>,
    content: Vec<u8>,
    rng: Rng,
    is_text: bool,
    tells: bool,
}

impl Filled {
    /// Makes one whose bytes cannot be compressed, or as text can.
    fn new(is_text: bool, tells: bool) -> Filled {
        let disk = Arc::new(BoundedDevice::new(Vec::new(), u64::MAX, u64::MAX));
        if tells {
            disk.tell_room();
        }
        let device: Arc<dyn Device> = disk.clone();
        let pool = create(&device, &[(Property::RecordSize, "16K")], DIRTY_LEN_MAX);
        let file = only_file(&pool).unwrap();
        let mut filled =
            Filled { disk, pool, file, content: Vec::new(), rng: Rng(2), is_text, tells };
        let front = filled.rng.noise(FRONT_LEN);
        filled.write(&[(0, front)]).unwrap();
        filled.pool.set_property(filled.file.id(), Property::RecordSize, "128K").unwrap();
        filled.open();
        let long = filled.bytes(RECORD_COUNT * RECORD_LEN);
        filled.write(&[(FRONT_LEN, long)]).unwrap();
        let holes: Vec<(usize, Vec<u8>)> =
            (0..PIECE_COUNT).map(|number| (2 * number * PIECE_LEN, vec![0; PIECE_LEN])).collect();
        filled.write(&holes).unwrap();
        // What was freed is reusable a little later.
        for _ in 0..4 {
            let one = filled.rng.noise(1);
            filled.write(&[(PIECE_LEN, one)]).unwrap();
        }
        filled.fill();
        filled
    }

    /// Takes away all room behind the end of the pool: its file grows by more than it needs.
    fn fill(&mut self) {
        let end = self.pool.state().superblock.end.0 << self.pool.store().ashift();
        self.disk.set_len(end).unwrap();
        self.disk.set_len_max(end);
        self.open();
    }

    /// Opens the pool as another process would, which knows nothing of the disk.
    fn open(&mut self) {
        self.pool = Pool::open(self.disk.clone(), options(DIRTY_LEN_MAX)).unwrap();
        self.file = self.pool.file(self.file.id()).unwrap();
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        if self.is_text { self.rng.text(len) } else { self.rng.noise(len) }
    }

    /// Writes bytes at these places, in one transaction.
    fn write(&mut self, changes: &[(usize, Vec<u8>)]) -> Result<(), Error> {
        let written =
            changes.iter().try_for_each(|(at, bytes)| self.file.write_at(bytes, *at as u64));
        let done = written.and_then(|()| self.file.commit(Durability::Durable));
        if done.is_err() {
            self.file.discard();
            return done;
        }
        for (at, bytes) in changes {
            self.content.resize(self.content.len().max(at + bytes.len()), 0);
            self.content[*at..][..bytes.len()].copy_from_slice(bytes);
        }
        done
    }

    /// Overwrites so many bytes somewhere in the long records, several times in one transaction,
    /// with one attempt more if the disk does not say that it is full.
    fn change(&mut self, len: usize, times: usize) -> Result<(), Error> {
        let mut changes = Vec::new();
        for _ in 0..times {
            let place = self.rng.below((RECORD_COUNT * RECORD_LEN / len) as u64) as usize * len;
            changes.push((FRONT_LEN + place, self.bytes(len)));
        }
        self.write(&changes).or_else(|error| match self.tells {
            true => Err(error),
            false => self.write(&changes),
        })
    }

    fn assert_whole(&self) {
        assert!(read_all(&self.file).unwrap() == self.content);
        assert_eq!(problems(&self.pool).unwrap(), Vec::<String>::new());
    }

    /// How many records of this length the pool has.
    fn count(&self, len: usize) -> usize {
        let log2 = len.ilog2() as u8;
        pointers(&self.pool).iter().filter(|pointer| pointer.span_log2 == log2).count()
    }
}

#[test]
fn changes_go_on_where_no_record_finds_a_place() {
    // Where the disk does not say that it is full, patches of whole pages may use up what is free.
    let many_pages = [(true, (PAGE_LEN, 4))];
    let changes = [(64, 1), (PAGE_LEN, 1), (3 * PAGE_LEN, 1), (RECORD_LEN, 1), (RECORD_LEN, 3)];
    let anywhere = changes.into_iter().flat_map(|change| [(true, change), (false, change)]);
    for (tells, (len, times)) in anywhere.chain(many_pages) {
        for is_text in [false, true] {
            let mut filled = Filled::new(is_text, tells);
            for step in 0..CHANGE_COUNT {
                let done = filled.change(len, times);
                assert!(done.is_ok(), "{is_text} {tells}, {times} of {len}, {step}: {done:?}");
            }
            filled.assert_whole();
        }
    }
}

#[test]
fn with_room_again_they_become_long_again() {
    for is_text in [false, true] {
        let mut filled = Filled::new(is_text, true);
        assert_eq!(filled.count(RECORD_LEN), RECORD_COUNT);
        (0..CHANGE_COUNT).for_each(|_| filled.change(RECORD_LEN, 1).unwrap());
        assert!(filled.count(RECORD_LEN) < RECORD_COUNT);
        filled.disk.set_len_max(u64::MAX);
        repack_file(&filled.pool, filled.file.id(), None);
        assert_eq!(filled.count(RECORD_LEN), RECORD_COUNT + FRONT_LEN / RECORD_LEN);
        filled.assert_whole();
    }
}

#[test]
fn a_file_is_imported_into_short_pieces() {
    for (is_text, tells) in [(false, true), (true, true), (false, false), (true, false)] {
        let mut filled = Filled::new(is_text, tells);
        filled.pool.set_property(ROOT, Property::RecordSize, "128K").unwrap();
        let content = filled.bytes(6 * RECORD_LEN + 1000);
        let import = |number: u8| {
            let mut import = filled.pool.import(1);
            let like = Attributes::new(Kind::File, ROOT);
            import.file(ROOT, &[number], &like, &[], content.clone()).and_then(|()| import.finish())
        };
        let done = import(b'a').or_else(|error| if tells { Err(error) } else { import(b'a') });
        assert!(done.is_ok(), "{is_text} {tells}: {done:?}");
        let file = filled.pool.resolve(b"a").unwrap().file;
        assert!(read_all(&filled.pool.file(file).unwrap()).unwrap() == content);
        filled.assert_whole();
    }
}

/// Its parts end before the slot of the record does.
#[test]
fn a_shorter_file_leaves_nothing_of_a_longer_one() {
    let mut filled = Filled::new(false, true);
    filled.disk.set_len_max(u64::MAX);
    filled.pool.set_property(ROOT, Property::RecordSize, "128K").unwrap();
    let long = filled.bytes(RECORD_LEN);
    let file = put(&filled.pool, b"a", &long);
    let id = file.id();
    file.write_at(b"changed", 100 * KIB as u64).unwrap();
    file.commit(Durability::Durable).unwrap();
    drop(file);
    let patch_count = |filled: &Filled| filled.pool.state().superblock.stats.patches.records;
    let before = patch_count(&filled);
    filled.fill();
    let short = filled.bytes(70 * KIB);
    let mut import = filled.pool.import(1);
    import.file(ROOT, b"a", &Attributes::new(Kind::File, ROOT), &[], short.clone()).unwrap();
    import.finish().unwrap();
    assert!(filled.pool.resolve(b"a").unwrap().file == id);
    assert_eq!(patch_count(&filled), before - 1);
    let file = filled.pool.file(id).unwrap();
    file.set_len(RECORD_LEN as u64).unwrap();
    file.commit(Durability::Durable).unwrap();
    let mut expected = short;
    expected.resize(RECORD_LEN, 0);
    assert!(read_all(&file).unwrap() == expected);
    filled.assert_whole();
}

/// Shorter records take more if a snapshot has the long one, too.
#[test]
fn what_a_snapshot_has_too_is_not_split_early() {
    let count_after = |has_snapshot: bool| {
        let mut filled = Filled::new(false, true);
        if has_snapshot {
            filled.pool.create_snapshot(ROOT, b"before", 0).unwrap();
        }
        // A few pages of one record.
        for number in 0..6 {
            let page = filled.bytes(PAGE_LEN);
            filled.write(&[(FRONT_LEN + 2 * number * PAGE_LEN, page)]).unwrap();
        }
        filled.assert_whole();
        filled.count(RECORD_LEN)
    };
    assert_eq!(count_after(true), RECORD_COUNT);
    assert_eq!(count_after(false), RECORD_COUNT - 1);
}
