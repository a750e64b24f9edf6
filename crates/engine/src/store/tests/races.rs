//! Two processes write, and threads of one of them read meanwhile.

use std::sync::Arc;

use super::space::{assert_clean, put, read, store_on};
use crate::device::{Device, MemoryDevice};
use crate::store::cache::Caches;
use crate::store::checksum::ChecksumKind;
use crate::store::{Durability, Patience, Store};
use crate::test_common::meanwhile::{Meanwhile, Moment};

/// Another process has committed. While a transaction begins, a reader of the same process takes the new
/// state over first: the transaction has nothing to refresh any more, and must build on that state.
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
