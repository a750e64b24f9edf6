//! Limits to what a process may trust when it opens a pool or refreshes it: earlier syncs may have
//! failed, and reads may go wrong on the way. Each of these was a defect once.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::common::handle::Handle;
use crate::common::sim_device::{Disk, Fault, Op, SimDevice};
use crate::common::{Rng, create, create_options, only_file, options, problems, read_all};
use hardpack_engine::Error;
use hardpack_engine::device::Device;
use hardpack_engine::pool::{File, Pool, Property};
use hardpack_engine::store::checksum::ChecksumKind;
use hardpack_engine::store::superblock::{
    EXTENTS_OFFSET, RING_OFFSET, SLOT_COUNT, TXG_OFFSET, slot_offset,
};
use hardpack_engine::store::{Durability, Patience};

/// Fails every sync.
#[derive(Debug)]
struct NoSync;

impl Fault for NoSync {
    fn sync(&mut self, _: &[u8]) -> io::Result<bool> {
        Err(io::Error::other("injected"))
    }
}

/// What happens to the reads of a range.
#[derive(Clone, Copy, Debug)]
enum Bad {
    /// This bit of the range is flipped.
    Flip(u64),
    Short,
    Error,
}

/// Spoils the next reads that touch a range, in one way after another.
#[derive(Debug)]
struct BadReads {
    range: Range<u64>,
    next: Vec<Bad>,
}

impl Fault for BadReads {
    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let end = offset + bytes.len() as u64;
        if offset >= self.range.end || end <= self.range.start {
            return Ok(bytes.len());
        }
        match self.next.pop() {
            None => Ok(bytes.len()),
            Some(Bad::Error) => Err(io::Error::other("injected")),
            Some(Bad::Short) => Ok(self.range.start.saturating_sub(offset) as usize),
            Some(Bad::Flip(bit)) => {
                let at = (self.range.start + bit / 8).checked_sub(offset);
                if let Some(byte) = at.and_then(|at| bytes.get_mut(at as usize)) {
                    *byte ^= 1 << (bit % 8);
                }
                Ok(bytes.len())
            }
        }
    }
}

fn open(device: &Arc<SimDevice>) -> hardpack_engine::Result<(Arc<Handle>, Pool, Arc<File>)> {
    let handle = device.handle();
    let pool = Pool::open(handle.clone(), options(1 << 20))?;
    let file = only_file(&pool)?;
    Ok((handle, pool, file))
}

/// Creates a durable pool with a file of some pages.
fn device_with(content: &[u8]) -> Arc<SimDevice> {
    let device = SimDevice::new(Vec::new());
    let dynamic: Arc<dyn Device> = device.clone();
    let pool = create(&dynamic, &[(Property::RecordSize, "16K")], 1 << 20);
    let file = only_file(&pool).unwrap();
    file.write_at(content, 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    device
}

/// Returns the durable part of a recording.
fn after_power_loss(base: Vec<u8>, trace: &[Op]) -> Arc<SimDevice> {
    let mut disk = Disk::new(base);
    trace.iter().for_each(|op| disk.apply(op));
    SimDevice::new(disk.keep(0))
}

fn content_of(device: &Arc<SimDevice>) -> Vec<u8> {
    let (_, pool, file) = open(device).unwrap();
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    read_all(&file).unwrap()
}

/// Linux treats pages that it could not write as written: they can be read back but are not on the
/// medium, and the next sync reports nothing.
#[test]
fn what_is_found_after_a_failed_sync_is_not_taken_for_durable() {
    for seed in 0..60 {
        let mut rng = Rng(seed);
        let device = device_with(&rng.content(60_000));
        device.take_trace();
        let base = device.image();
        let (handle, pool, file) = open(&device).unwrap();
        let mut bytes = read_all(&file).unwrap();
        for _ in 0..1 + rng.below(3) {
            let page = rng.text(9000);
            let at = rng.below(50_000) as usize;
            bytes[at..at + page.len()].copy_from_slice(&page);
            file.write_at(&page, at as u64).unwrap();
            file.commit(Durability::Visible).unwrap();
        }
        device.set_fault(Some(Box::new(NoSync)));
        let failed = file.commit(Durability::Durable);
        assert!(matches!(failed, Err(Error::Io { action: "sync", .. })), "seed {seed}: {failed:?}");
        device.set_fault(None);
        assert!(handle.has_failed());
        drop((pool, file));
        // Whoever opens it now sees the committed content, and may report it as durable.
        let (_, _pool, file) = open(&device).unwrap();
        assert!(read_all(&file).unwrap() == bytes, "seed {seed}");
        if rng.one_in(2) {
            bytes[7] ^= 1;
            file.write_at(&bytes[7..8], 7).unwrap();
        }
        file.commit(Durability::Durable).unwrap();
        let left = after_power_loss(base, &device.take_trace());
        assert!(content_of(&left) == bytes, "seed {seed}: durable content is lost");
    }
}

/// The same applies to the header, whose sync is the last of a creation.
#[test]
fn a_pool_whose_creation_was_not_synced_is_completed_for_good() {
    /// Fails one sync after letting some pass.
    #[derive(Debug)]
    struct FailNth(u64);
    impl Fault for FailNth {
        fn sync(&mut self, _: &[u8]) -> io::Result<bool> {
            self.0 -= 1;
            if self.0 == 0 { Err(io::Error::other("injected")) } else { Ok(true) }
        }
    }
    for nth in [2, 3] {
        let device = SimDevice::new(Vec::new());
        device.set_fault(Some(Box::new(FailNth(nth))));
        let create = create_options(9, &[]);
        Pool::create(device.handle(), &create, options(1 << 20)).unwrap_err();
        device.set_fault(None);
        let pool = Pool::open(device.handle(), options(1 << 20)).unwrap();
        pool.complete_creation(&create).unwrap();
        let file = only_file(&pool).unwrap();
        file.write_at(b"kept", 0).unwrap();
        file.commit(Durability::Durable).unwrap();
        let left = after_power_loss(Vec::new(), &device.take_trace());
        assert_eq!(content_of(&left), b"kept", "sync {nth} failed");
    }
}

/// A transaction that began before another thread's sync failed must not be committed after it.
#[test]
fn a_transaction_does_not_outlive_a_failed_sync() {
    let device = device_with(b"before");
    let (_, pool, file) = open(&device).unwrap();
    file.write_at(b"visible", 0).unwrap();
    file.commit(Durability::Visible).unwrap();
    let mut txn = pool.store().begin_with(ChecksumKind::default(), Patience::None).unwrap();
    let txg = pool.state().txg();
    txn.new_file_id();
    device.set_fault(Some(Box::new(NoSync)));
    pool.store().make_durable().unwrap_err();
    device.set_fault(None);
    assert!(matches!(txn.commit(Durability::Visible), Err(Error::FailStop)));
    assert_eq!(pool.state().txg(), txg);
}

/// A bit of the newest superblock that flips on the way must not make anybody open, and build on,
/// an older state.
#[test]
fn a_bad_read_of_the_ring_opens_no_older_state() {
    let mut rng = Rng(1);
    let device = device_with(&rng.text(30_000));
    let (_, pool, _) = open(&device).unwrap();
    let newest = pool.state().txg();
    for _ in 0..300 {
        let bit = rng.below((EXTENTS_OFFSET - RING_OFFSET) * 8);
        let next = vec![Bad::Flip(bit)];
        device.set_fault(Some(Box::new(BadReads { range: RING_OFFSET..EXTENTS_OFFSET, next })));
        let (_, pool, _) = open(&device).unwrap();
        assert_eq!(pool.state().txg(), newest, "bit {bit}");
    }
    for bad in [Bad::Short, Bad::Error] {
        for slot in 0..SLOT_COUNT {
            let range = slot_offset(slot)..slot_offset(slot + 1);
            device.set_fault(Some(Box::new(BadReads { range, next: vec![bad] })));
            open(&device).unwrap_err();
            let (_, pool, _) = open(&device).unwrap();
            assert_eq!((pool.state().txg(), pool.store().recovered_from()), (newest, None));
        }
    }
}

/// A bit that flips on the way while a process looks for commits of others must not hide them: its
/// next commit would undo them.
#[test]
fn a_bad_look_hides_no_commit_of_another_process() {
    for version in [1, 2] {
        for bit in 0..128 {
            let device = device_with(b"start");
            let mut image = device.image();
            image[16] = version;
            let sum = ChecksumKind::Xxh3.sum(&image[..4080]);
            image[4080..4096].copy_from_slice(&sum[..16]);
            let device = SimDevice::new(image);
            let (_, _pool, first) = open(&device).unwrap();
            first.write_at(b"first", 0).unwrap();
            first.commit(Durability::Durable).unwrap();
            let (_, pool, second) = open(&device).unwrap();
            // This way both hold the same state, at different txgs.
            for round in 0..bit % 9 {
                second.write_at(&[round as u8], 100).unwrap();
                second.commit(Durability::Durable).unwrap();
            }
            assert_eq!(pool.store().recovered_from(), None);
            let slot = pool.state().superblock.next_slot.unwrap();
            let (_, _pool, third) = open(&device).unwrap();
            third.write_at(b"third", 0).unwrap();
            third.commit(Durability::Visible).unwrap();
            let at = slot_offset(slot) + TXG_OFFSET;
            let range = if version == 1 && bit >= 64 { 4096..4112 } else { at..at + 16 };
            let next = vec![Bad::Flip(bit)];
            device.set_fault(Some(Box::new(BadReads { range, next })));
            assert!(pool.refresh().unwrap(), "version {version}, bit {bit}");
            let mut found = [0; 5];
            second.read_at(&mut found, 0).unwrap();
            assert_eq!(&found, b"third", "version {version}, bit {bit}");
        }
    }
}

/// A state that temporarily cannot be read is not thrown away for that.
#[test]
fn a_read_that_fails_at_opening_rejects_nothing() {
    let mut rng = Rng(3);
    let content = rng.text(30_000);
    let device = device_with(&content);
    let newest = open(&device).unwrap().1.state().txg();
    let range = EXTENTS_OFFSET..u64::MAX;
    for bad in
        [vec![Bad::Error, Bad::Flip(9)], vec![Bad::Flip(9)], vec![Bad::Short], vec![Bad::Error]]
    {
        let label = format!("{bad:?}");
        let range = range.clone();
        device.set_fault(Some(Box::new(BadReads { range, next: bad })));
        let _ = open(&device);
        device.set_fault(None);
        let (_, pool, file) = open(&device).unwrap();
        assert_eq!((pool.state().txg(), pool.store().recovered_from()), (newest, None), "{label}");
        assert!(read_all(&file).unwrap() == content, "{label}");
    }
}

/// One process may make durable what another has written; the writer must then not reuse its slot.
#[test]
fn what_another_process_made_durable_is_not_overwritten() {
    for seed in 0..40 {
        let mut rng = Rng(seed);
        let device = device_with(&[0; 8]);
        device.take_trace();
        let base = device.image();
        let (_, writer_pool, writer) = open(&device).unwrap();
        let (_, other_pool, other) = open(&device).unwrap();
        let write = |number: u64| {
            writer_pool.refresh().unwrap();
            writer.write_at(&number.to_le_bytes(), 0).unwrap();
            writer.commit(Durability::Visible).unwrap();
        };
        let count = 1 + rng.below(9);
        (1..=count).for_each(write);
        other_pool.refresh().unwrap();
        other.commit(Durability::Durable).unwrap();
        let mut disk = Disk::new(base);
        device.take_trace().iter().for_each(|op| disk.apply(op));
        (count + 1..count + 9).for_each(write);
        for op in device.take_trace() {
            disk.apply(&op);
            for _ in 0..8 {
                let left = SimDevice::new(disk.crash(&mut rng, 512));
                let found = content_of(&left)[..8].try_into().map(u64::from_le_bytes).unwrap();
                assert!(found >= count && found < count + 9, "seed {seed}: {found} of {count}");
            }
        }
    }
}
