//! Failures of the device: after any error the file is in its last committed state.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::device::Device;
use crate::error::Error;
use crate::pool::{File, Pool, Property, ROOT};
use crate::store::Durability;
use crate::test_common::sim_device::{Fault, SimDevice};
use crate::test_common::{Rng, create, only_file, options, problems, read_all};

/// The operation that fails, and how.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Failure {
    NoSpace,
    WriteError,
    /// Fails after part of the bytes has reached the device.
    TornWrite,
    SyncError,
}

/// Fails the n-th write or sync from now on, and all later ones if `lasts` is set.
#[derive(Debug)]
struct FailAt {
    failure: Failure,
    countdown: Arc<AtomicU64>,
    lasts: bool,
}

impl FailAt {
    fn is_due(&self) -> bool {
        let left = self.countdown.load(Ordering::Relaxed);
        match left {
            0 => self.lasts,
            _ => {
                self.countdown.store(left - 1, Ordering::Relaxed);
                left == 1
            }
        }
    }
}

impl Fault for FailAt {
    fn write(&mut self, _: &[u8], offset: u64, bytes: &[u8]) -> io::Result<Vec<(u64, Vec<u8>)>> {
        match self.failure {
            Failure::SyncError => {}
            _ if !self.is_due() => {}
            Failure::NoSpace => return Err(io::ErrorKind::StorageFull.into()),
            Failure::WriteError => return Err(io::Error::other("injected")),
            Failure::TornWrite => {
                let kept = (bytes.len() / 2) & !511;
                if kept == 0 {
                    return Err(io::Error::other("injected"));
                }
                // Half of it goes through; the device reports the error at the next write, like a
                // file system that writes back later.
                return Ok(vec![(offset, bytes[..kept].to_vec())]);
            }
        }
        Ok(vec![(offset, bytes.to_vec())])
    }

    fn sync(&mut self, _: &[u8]) -> io::Result<bool> {
        if self.failure == Failure::SyncError && self.is_due() {
            return Err(io::Error::other("injected"));
        }
        Ok(true)
    }
}

struct Setup {
    sim: Arc<SimDevice>,
    pool: Pool,
    file: Arc<File>,
    bytes: Vec<u8>,
}

/// Creates a pool with some committed content.
fn setup(seed: u64, dirty_len_max: usize) -> Setup {
    let mut rng = Rng(seed);
    let sim = SimDevice::new(Vec::new());
    let device: Arc<dyn Device> = sim.clone();
    let pool = create(&device, &[(Property::RecordSize, "32K")], dirty_len_max);
    let file = only_file(&pool).unwrap();
    let mut bytes = rng.content(200_000);
    bytes.extend(rng.text(100_000));
    file.write_at(&bytes, 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    Setup { sim, pool, file, bytes }
}

/// Makes some changes, and returns the first error.
fn change(file: &File, rng: &mut Rng, model: &mut Vec<u8>) -> Result<(), Error> {
    for _ in 0..1 + rng.below(4) {
        let len = rng.pick(&[10, 4096, 70_000]);
        let at = rng.below(300_000) as usize;
        // Noise never equals the existing content.
        let bytes = rng.noise(len);
        file.write_at(&bytes, at as u64)?;
        if model.len() < at + len {
            model.resize(at + len, 0);
        }
        model[at..at + len].copy_from_slice(&bytes);
    }
    if rng.one_in(4) {
        let len = rng.below(300_000);
        file.set_len(len)?;
        model.resize(len as usize, 0);
    }
    Ok(())
}

fn assert_content(setup: &Setup, expected: &[u8], label: &str) {
    assert!(read_all(&setup.file).unwrap() == expected, "{label}: the file differs");
    assert_eq!(problems(&setup.pool).unwrap(), Vec::<String>::new(), "{label}");
    let copy: Arc<dyn Device> = SimDevice::new(setup.sim.image());
    let pool = Pool::open(copy, options(1 << 20)).unwrap();
    let bytes = read_all(&only_file(&pool).unwrap()).unwrap();
    assert!(bytes == expected, "{label}: the file differs for others");
}

#[test]
fn a_failed_write_leaves_the_last_commit() {
    let mut failures = 0;
    for seed in 0..60 {
        for dirty_len_max in [0, 32 << 20] {
            let failure = Rng(seed).pick(&[Failure::NoSpace, Failure::WriteError]);
            let label = format!("seed {seed}, {failure:?}, dirty {dirty_len_max}");
            let setup = setup(seed, dirty_len_max);
            let mut rng = Rng(seed + 1000);
            for durability in [Durability::Visible, Durability::Durable] {
                // A visible commit may precede the durable one.
                let mut model = setup.bytes.clone();
                let countdown = Arc::new(AtomicU64::new(1 + rng.below(5)));
                let lasts = rng.one_in(2);
                let fault = FailAt { failure, countdown: Arc::clone(&countdown), lasts };
                setup.sim.set_fault(Some(Box::new(fault)));
                let done = change(&setup.file, &mut rng, &mut model)
                    .and_then(|()| setup.file.commit(durability));
                setup.sim.set_fault(None);
                let Err(error) = done else {
                    // The fault was not reached: undo the commit.
                    setup.file.set_len(0).unwrap();
                    setup.file.write_at(&setup.bytes, 0).unwrap();
                    setup.file.commit(Durability::Visible).unwrap();
                    continue;
                };
                failures += 1;
                match failure {
                    Failure::NoSpace => assert!(matches!(error, Error::NoSpace), "{label}"),
                    _ => assert!(matches!(error, Error::Io { .. }), "{label}: {error}"),
                }
                assert_content(&setup, &setup.bytes, &label);
                if rng.one_in(2) {
                    // A user that writes the old content back may commit it.
                    let at = rng.below(100_000) as usize;
                    setup.file.write_at(&setup.bytes[at..at + 150_000], at as u64).unwrap();
                    setup.file.set_len(setup.bytes.len() as u64).unwrap();
                    setup.file.commit(durability).unwrap();
                } else {
                    // Anything else is refused until the caller discards its changes.
                    let refused = change(&setup.file, &mut rng, &mut model.clone())
                        .and_then(|()| setup.file.commit(durability));
                    assert!(matches!(refused, Err(Error::Invalid(_))), "{label}: {refused:?}");
                    setup.file.discard();
                }
                assert_content(&setup, &setup.bytes, &label);
                setup.file.commit(durability).unwrap();
            }
            let mut model = setup.bytes.clone();
            change(&setup.file, &mut rng, &mut model).unwrap();
            setup.file.commit(Durability::Durable).unwrap();
            assert_content(&setup, &model, &label);
        }
    }
    assert!(failures > 100, "only {failures} faults were reached");
}

#[test]
fn a_failed_sync_stops_for_ever() {
    for seed in 0..20 {
        let setup = setup(seed, 32 << 20);
        let mut rng = Rng(seed);
        let mut model = setup.bytes.clone();
        let countdown = Arc::new(AtomicU64::new(1));
        let fault = FailAt { failure: Failure::SyncError, countdown, lasts: false };
        change(&setup.file, &mut rng, &mut model).unwrap();
        let visible_first = rng.one_in(2);
        if visible_first {
            setup.file.commit(Durability::Visible).unwrap();
        }
        setup.sim.set_fault(Some(Box::new(fault)));
        let error = setup.file.commit(Durability::Durable).unwrap_err();
        assert!(matches!(error, Error::Io { action: "sync", .. }), "{error}");
        setup.sim.set_fault(None);
        // The device's next sync would succeed, which is exactly why it must not be tried.
        for _ in 0..3 {
            setup.file.discard();
            let error = setup.file.commit(Durability::Durable).unwrap_err();
            assert!(matches!(error, Error::FailStop), "seed {seed}: {error}");
            setup.file.write_at(b"more", 0).unwrap();
            let error = setup.file.commit(Durability::Visible).unwrap_err();
            assert!(matches!(error, Error::FailStop), "seed {seed}: {error}");
            setup.file.discard();
        }
        assert!(matches!(
            setup.pool.set_property(setup.file.id(), Property::Checksum, "blake3"),
            Err(Error::FailStop)
        ));
        // The last visible state is still readable.
        assert!(read_all(&setup.file).unwrap() == model);
        // After reopening, everything works again.
        drop(setup.pool);
        let pool = Pool::open(setup.sim.clone(), options(1 << 20)).unwrap();
        let file = only_file(&pool).unwrap();
        assert!(read_all(&file).unwrap() == model);
        file.write_at(b"more", 0).unwrap();
        file.commit(Durability::Durable).unwrap();
    }
}

/// Fails each write of a small commit in turn, whether of extents, superblock or hint.
#[test]
fn every_single_write_of_a_commit_may_fail() {
    for failure in [Failure::NoSpace, Failure::TornWrite] {
        for nth in 1..30 {
            let setup = setup(7, 32 << 20);
            let page = Rng(nth).noise(4096);
            setup.file.write_at(&page, 8192).unwrap();
            let countdown = Arc::new(AtomicU64::new(nth));
            let fault = FailAt { failure, countdown: Arc::clone(&countdown), lasts: true };
            setup.sim.set_fault(Some(Box::new(fault)));
            let done = setup.file.commit(Durability::Durable);
            setup.sim.set_fault(None);
            let mut changed = setup.bytes.clone();
            changed[8192..8192 + 4096].copy_from_slice(&page);
            if countdown.load(Ordering::Relaxed) > 0 {
                assert!(nth > 2, "a commit has some writes");
                done.unwrap();
                assert_content(&setup, &changed, "all writes went through");
                break;
            }
            setup.file.discard();
            let label = format!("{failure:?} at write {nth}: {done:?}");
            // If the error came after the superblock, the new state exists, and the committer was
            // told that the outcome is unknown.
            let now = read_all(&setup.file).unwrap();
            if failure == Failure::NoSpace && now == changed {
                assert!(done.is_err(), "{label}");
                let error = setup.file.commit(Durability::Durable).unwrap_err();
                assert!(matches!(error, Error::FailStop), "{label}: {error}");
            } else if failure == Failure::NoSpace {
                assert_content(&setup, &setup.bytes, &label);
            }
            // After reopening, the content is one of the two.
            let pool = Pool::open(setup.sim.clone(), options(1 << 20)).unwrap();
            let found = read_all(&only_file(&pool).unwrap());
            if failure == Failure::NoSpace {
                let found = found.unwrap();
                assert!(found == setup.bytes || found == changed, "{label}");
                assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "{label}");
            }
        }
    }
}

/// A discarded transaction that was written ahead leaves nothing behind, and its space is free
/// again.
#[test]
fn a_discarded_transaction_gives_its_space_back() {
    let setup = setup(3, 100_000);
    let before = setup.sim.len().unwrap();
    let mut rng = Rng(5);
    setup.file.write_at(&rng.noise(5_000_000), 0).unwrap();
    assert!(setup.sim.len().unwrap() > before + 4_000_000, "nothing was written ahead");
    setup.file.discard();
    assert_content(&setup, &setup.bytes, "after the discard");
    // Freed space is given back once that is durable, with the next commit.
    setup.pool.set_property(ROOT, Property::Compression, "lz4").unwrap();
    let after = setup.sim.len().unwrap();
    assert!(after < before + 100_000, "{after} bytes are left of {before}");
}
