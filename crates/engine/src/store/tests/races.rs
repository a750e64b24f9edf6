//! Races of two processes that write, while threads of one of them read.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use super::space::{assert_clean, put, read, store_on};
use crate::device::{Device, MemoryDevice, Syncs};
use crate::error::Error;
use crate::store::cache::Caches;
use crate::store::format::checksum::ChecksumKind;
use crate::store::{Durability, Patience, Store};
use crate::test_common::meanwhile::{Meanwhile, Moment};

/// Another process has committed. While a transaction begins, a reader in the same process adopts
/// the new state first: the transaction has nothing left to refresh, and must build on that state.
#[test]
fn a_transaction_builds_on_what_a_reader_took_over() {
    for moment in [Moment::Lock, Moment::Locked, Moment::Read] {
        for patience in [Patience::None, Patience::Endless] {
            let below: Arc<dyn Device> = Arc::new(MemoryDevice::default());
            let other = store_on(&below, 9);
            let mut txn = other.begin(ChecksumKind::Xxh3).unwrap();
            put(&mut txn, 0, &[1; 600]).unwrap();
            txn.commit(Durability::Durable).unwrap();

            let device = Meanwhile::on(Arc::clone(&below));
            let store = Store::open(device.clone(), Caches::new(1 << 20)).unwrap();
            let mut txn = other.begin(ChecksumKind::Xxh3).unwrap();
            put(&mut txn, 1, &[2; 600]).unwrap();
            let theirs = txn.commit(Durability::Durable).unwrap().txg();
            let reader = Arc::clone(&store);
            device.at(moment, move || assert!(reader.refresh().unwrap()));
            let mut txn = store.begin_with(ChecksumKind::Xxh3, patience).unwrap();
            assert!(device.is_done());
            assert_eq!(txn.txg(), theirs.next());
            put(&mut txn, 2, &[3; 600]).unwrap();
            txn.commit(Durability::Durable).unwrap();
            for (n, bytes) in [(0, [1; 600]), (1, [2; 600]), (2, [3; 600])] {
                assert_eq!(read(&store, n).unwrap(), bytes, "{moment:?}");
            }
            assert_clean(&below);
        }
    }
}

/// A device whose first sync, once armed, fails and reports that to nobody else. This sync ends
/// only when another thread has synced successfully in the meantime, or waits for its turn.
#[derive(Debug, Default)]
struct ToldOnce {
    below: MemoryDevice,
    armed: AtomicBool,
    is_failing: Mutex<bool>,
    others: Mutex<u64>,
    failing: Condvar,
    other: Condvar,
    syncs: Syncs,
}

impl ToldOnce {
    fn note_other(&self) {
        *self.others.lock().unwrap() += 1;
        self.other.notify_all();
    }

    /// Waits until the failing sync has begun.
    fn wait_until_failing(&self) {
        let failing = self.is_failing.lock().unwrap();
        drop(self.failing.wait_while(failing, |failing| !*failing).unwrap());
    }
}

impl Device for ToldOnce {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.below.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.below.write_at(buf, offset)
    }
    fn sync_data(&self) -> io::Result<()> {
        if !self.armed.swap(false, Ordering::SeqCst) {
            self.note_other();
            return Ok(());
        }
        let others = self.others.lock().unwrap();
        let before = *others;
        *self.is_failing.lock().unwrap() = true;
        self.failing.notify_all();
        drop(self.other.wait_while(others, |others| *others == before).unwrap());
        Err(io::Error::other("told to this thread alone"))
    }
    fn syncs(&self) -> Option<&Syncs> {
        Some(&self.syncs)
    }
    fn cede(&self) -> bool {
        if *self.is_failing.lock().unwrap() {
            self.note_other();
        }
        false
    }
    fn len(&self) -> io::Result<u64> {
        self.below.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.below.set_len(len)
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn lock_writer(&self) -> io::Result<()> {
        Ok(())
    }
    fn unlock_writer(&self) {}
}

/// A sync fails in one thread while another thread syncs, to which the system reports success. The
/// second thread has lost its writes too, and must not call them durable. The same holds for two
/// stores on one open file.
#[test]
fn a_failed_sync_of_another_thread_is_no_success_of_this_one() {
    for own_store in [false, true] {
        for large in [false, true] {
            let told = Arc::new(ToldOnce::default());
            let device: Arc<dyn Device> = told.clone();
            let store = store_on(&device, 9);
            let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
            put(&mut txn, 0, &[1; 600]).unwrap();
            txn.commit(Durability::Visible).unwrap();
            let other = match own_store {
                true => Store::open(device, Caches::new(1 << 20)).unwrap(),
                false => Arc::clone(&store),
            };
            told.armed.store(true, Ordering::SeqCst);
            std::thread::scope(|scope| {
                // As maintenance and imports do.
                let failing = scope.spawn(|| store.make_durable());
                told.wait_until_failing();
                // A large commit syncs before its superblock, which then says that the data is
                // safe.
                let mut txn = other.begin(ChecksumKind::Xxh3).unwrap();
                for n in 1..if large { 24 } else { 2 } {
                    put(&mut txn, n, &vec![2; if large { 1 << 20 } else { 600 }]).unwrap();
                }
                let before = other.state().txg();
                let done = txn.commit(Durability::Durable);
                assert!(
                    matches!(done, Err(Error::FailStop)),
                    "large: {large}, another store: {own_store}: {:?}",
                    done.map(|state| state.txg())
                );
                let failed = failing.join().unwrap();
                assert!(matches!(failed, Err(Error::Io { action: "sync", .. })), "{failed:?}");
                assert_eq!(other.state().txg() > before, !large, "a barrier that failed");
            });
            for store in [&store, &other] {
                assert!(matches!(store.make_durable(), Err(Error::FailStop)));
                assert!(matches!(store.begin(ChecksumKind::Xxh3), Err(Error::FailStop)));
            }
            // Opening the pool anew allows writing again, as opening a file anew does.
            let anew = Store::open(told, Caches::new(1 << 20)).unwrap();
            let mut txn = anew.begin(ChecksumKind::Xxh3).unwrap();
            put(&mut txn, 99, &[3; 600]).unwrap();
            txn.commit(Durability::Durable).unwrap();
            assert_eq!(read(&anew, 0).unwrap(), [1; 600]);
        }
    }
}
