//! A disk that is nearly full: whoever changes a little again and again does not run out of space.

use std::sync::Arc;

use crate::common::limits::BoundedDevice;
use crate::common::{Rng, create, only_file, problems, read_all};
use hardpack_engine::device::Device;
use hardpack_engine::pool::{File, Pool, Property, ROOT};
use hardpack_engine::store::Durability;

const DIRTY_LEN_MAX: usize = 8 << 20;
const PAGE_LEN: u64 = 4096;
/// With the room for so many records, or for eight times those that it changes, a transaction does
/// not depend on luck.
const ROOM_COUNT: u64 = 24;
const CHANGE_COUNT: u64 = 40;

/// A pool with a file of so many records that do not compress, and what the file contains.
struct Filled {
    disk: Arc<BoundedDevice>,
    pool: Pool,
    file: Arc<File>,
    content: Vec<u8>,
    record_len: u64,
    rng: Rng,
    durability: Durability,
}

impl Filled {
    fn new(record_count: u64) -> Filled {
        Filled::with(record_count, 32, "off")
    }

    /// The same with records of so many KiB, compressed like this, which makes them no smaller.
    fn with(record_count: u64, record_kib: u64, compression: &str) -> Filled {
        let disk = Arc::new(BoundedDevice::new(Vec::new(), u64::MAX, u64::MAX));
        disk.tell_room();
        let device: Arc<dyn Device> = disk.clone();
        let (record_len, size) = (record_kib << 10, format!("{record_kib}K"));
        let properties =
            [(Property::RecordSize, size.as_str()), (Property::Compression, compression)];
        let pool = create(&device, &properties, DIRTY_LEN_MAX);
        let file = only_file(&pool).unwrap();
        let mut rng = Rng(record_count);
        let content = rng.noise((record_count * record_len) as usize);
        file.write_at(&content, 0).unwrap();
        file.commit(Durability::Durable).unwrap();
        let durability = Durability::Durable;
        Filled { disk, pool, file, content, record_len, rng, durability }
    }

    /// Leaves the room for so many records.
    fn leave(&self, record_count: u64) {
        self.disk.set_len_max(self.disk.len().unwrap() + record_count * self.record_len);
    }

    /// Overwrites so many pages of the file, each anywhere, in one transaction.
    fn change(&mut self, page_count: u64) -> hardpack_engine::Result<()> {
        for _ in 0..page_count {
            let at = self.rng.below(self.content.len() as u64 / PAGE_LEN) * PAGE_LEN;
            let page = self.rng.noise(PAGE_LEN as usize);
            self.file.write_at(&page, at)?;
            self.content[at as usize..][..page.len()].copy_from_slice(&page);
        }
        self.file.commit(self.durability)
    }

    /// Changes single pages, and returns how many patches there are then.
    fn patch_count(&mut self) -> u64 {
        (0..CHANGE_COUNT).for_each(|_| self.change(1).unwrap());
        self.assert_whole();
        self.pool.state().superblock.stats.patches.records
    }

    fn assert_whole(&self) {
        assert_eq!(read_all(&self.file).unwrap(), self.content);
        assert_eq!(problems(&self.pool).unwrap(), Vec::<String>::new());
    }
}

#[test]
fn patches_do_not_use_up_a_disk_that_is_nearly_full() {
    // All patches together would take up to half of what the records do.
    for (record_count, page_count, room_count) in
        [(100, 1, ROOM_COUNT), (300, 1, ROOM_COUNT), (300, 4, 32), (300, 8, 64)]
    {
        let mut filled = Filled::new(record_count);
        filled.leave(room_count);
        for step in 0..1500 {
            let done = filled.change(page_count);
            assert!(done.is_ok(), "{record_count} records, change {step}: {done:?}");
        }
        filled.assert_whole();
    }
}

/// What their commits free can be used only once it is known to be durable, every few commits.
#[test]
fn nor_do_records_of_those_who_never_sync() {
    for (record_count, page_count, room_count) in [(100, 1, 2 * ROOM_COUNT), (300, 4, 64)] {
        let mut filled = Filled::new(record_count);
        filled.durability = Durability::Visible;
        filled.leave(room_count);
        for step in 0..1500 {
            let done = filled.change(page_count);
            assert!(done.is_ok(), "{record_count} records, change {step}: {done:?}");
        }
        filled.assert_whole();
    }
}

#[test]
fn a_disk_that_others_fill_up_is_noticed() {
    let mut filled = Filled::new(300);
    filled.disk.set_len_max(1 << 30);
    (0..50).for_each(|_| filled.change(1).unwrap());
    filled.leave(ROOM_COUNT);
    (0..1500).for_each(|_| filled.change(1).unwrap());
    filled.assert_whole();
}

#[test]
fn shared_and_dear_records_are_patched_all_the_same() {
    let patches_of = |mut filled: Filled, room_count: u64, share: &dyn Fn(&Filled)| {
        share(&filled);
        filled.leave(room_count);
        filled.patch_count()
    };
    let patch_count =
        |room_count, share: &dyn Fn(&Filled)| patches_of(Filled::new(100), room_count, share);
    // A few pages are changed twice, and little room is noticed after some commits.
    let most = CHANGE_COUNT * 3 / 4;
    assert!(patch_count(8 * ROOM_COUNT, &|_| ()) > most);
    assert!(patch_count(ROOM_COUNT - 1, &|_| ()) < most);
    // To write these anew would free nothing.
    let snapshot = |filled: &Filled| {
        filled.pool.create_snapshot(ROOT, b"before", 0).unwrap();
    };
    assert!(patch_count(ROOM_COUNT - 1, &snapshot) > most);
    let clone = |filled: &Filled| {
        filled.pool.clone_file(filled.file.id(), ROOT, b"clone", 0).unwrap();
    };
    assert!(patch_count(ROOM_COUNT - 1, &clone) > most);
    // To compress some would take longer than anybody waits.
    for (record_kib, compression, is_patched) in
        [(128, "zstd-9", false), (256, "zstd-9", true), (128, "zstd-10", true), (32, "lzma", true)]
    {
        let filled = Filled::with(100, record_kib, compression);
        let count = patches_of(filled, ROOM_COUNT - 1, &|_| ());
        assert_eq!(count > most, is_patched, "{record_kib} KiB, {compression}: {count}");
    }
}
