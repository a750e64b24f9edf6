//! Tests of dictionaries whose numbers are assigned again after the transaction that added them
//! failed.

use std::io;
use std::sync::Arc;

use super::space::{add, assert_clean, key, read, store_on};
use crate::codec::{Compression, Dictionary, with_codec};
use crate::device::Device;
use crate::store::cache::Caches;
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::pointer::{Filter, Pointer};
use crate::store::format::superblock::{EXTENTS_OFFSET, RING_OFFSET};
use crate::store::format::trees::TreeId;
use crate::store::{Durability, Encoding, Store, Txn};
use crate::test_common::sim_device::{Fault, SimDevice};
use crate::test_common::{GUID, Rng};
use crate::units::Ashift;

/// Makes writes of superblocks fail, either without effect or after writing part of the block.
#[derive(Debug)]
struct NoSuperblock {
    torn: bool,
}

impl Fault for NoSuperblock {
    fn write(&mut self, _: &[u8], at: u64, bytes: &[u8]) -> io::Result<Vec<(u64, Vec<u8>)>> {
        match (RING_OFFSET..EXTENTS_OFFSET).contains(&at) {
            true if self.torn => Ok(vec![(at, bytes[..512].to_vec())]),
            true => Err(io::Error::other("injected")),
            false => Ok(vec![(at, bytes.to_vec())]),
        }
    }
    fn after_write(&mut self) -> io::Result<()> {
        if self.torn { Err(io::Error::other("injected")) } else { Ok(()) }
    }
}

/// Returns a dictionary, and a page that is part of it.
fn dictionary(seed: u64) -> (Arc<Dictionary>, Vec<u8>) {
    let mut bytes = Rng(seed).noise(16 << 10);
    // lz4 leaves the end of its input uncompressed.
    bytes[12_200..12_288].fill(7);
    let page = bytes[8192..12288].to_vec();
    (Arc::new(Dictionary::new(bytes)), page)
}

/// Adds a dictionary, and a page compressed with it.
fn put_with(txn: &mut Txn, n: u64, (dictionary, page): &(Arc<Dictionary>, Vec<u8>)) -> Pointer {
    let number = txn.add_dictionary(dictionary, ChecksumKind::Xxh3).unwrap();
    let mut stored = Vec::new();
    let fits = with_codec(|codec| {
        codec.compress_with(Compression::Lz4, page, &mut stored, 4096, Some(dictionary))
    });
    assert_eq!(fits, Ok(true));
    let codec = Compression::Lz4.codec_id();
    let encoding = Encoding { codec, filter: Filter::None, dictionary: number, ..Encoding::RAW };
    let pointer = txn.store_extent(&stored, encoding, 4096, ChecksumKind::Xxh3).unwrap();
    let pointer = Pointer { span_log2: 24, ..pointer };
    add(txn, n, &pointer).unwrap();
    // As the write path does, and then a reader of the same transaction.
    txn.cache(&pointer, page.clone());
    assert!(txn.read(&pointer).unwrap().as_slice() == page);
    pointer
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Dropped,
    NotWritten,
    Torn,
    FullDisk,
}

/// A transaction that added a dictionary fails. Another process assigns its number to another
/// dictionary, and what is compressed with that one must be read with that one. Both records have
/// the same stored bytes at the same place, so neither a checksum nor a place distinguishes them.
#[test]
fn a_dictionary_of_a_commit_that_failed_decodes_nothing() {
    let (first, second) = (dictionary(1), dictionary(2));
    for end in [End::Dropped, End::NotWritten, End::Torn, End::FullDisk] {
        let sim = SimDevice::new(Vec::new());
        let device: Arc<dyn Device> = sim.clone();
        let ours = store_on(&device, 9);
        let theirs = Store::open(sim.handle(), Caches::new(1 << 20)).unwrap();

        let mut txn = ours.begin(ChecksumKind::Xxh3).unwrap();
        let failed = put_with(&mut txn, 0, &first);
        match end {
            End::Dropped => drop(txn),
            End::NotWritten | End::Torn | End::FullDisk => {
                sim.set_fault(Some(match end {
                    End::FullDisk => Box::new(NothingBehind(txn_end(&ours))),
                    _ => Box::new(NoSuperblock { torn: end == End::Torn }),
                }));
                txn.commit(Durability::Visible).unwrap_err();
                sim.set_fault(None);
            }
        }

        let mut txn = theirs.begin(ChecksumKind::Xxh3).unwrap();
        let committed = put_with(&mut txn, 0, &second);
        txn.commit(Durability::Visible).unwrap();
        assert_eq!(committed.dictionary, failed.dictionary, "the number is assigned again");
        assert_eq!(committed.extent_key(), failed.extent_key(), "nothing distinguishes them");

        assert!(ours.refresh().unwrap());
        assert!(read(&ours, 0).unwrap() == second.1, "{end:?}: decoded with another dictionary");
        assert_clean(&device);
    }
}

/// Returns the end of the pool before the transaction.
fn txn_end(store: &Store) -> u64 {
    store.state().superblock.end.0 << store.ashift()
}

/// Has no room from this offset on.
#[derive(Debug)]
struct NothingBehind(u64);

impl Fault for NothingBehind {
    fn write(&mut self, _: &[u8], at: u64, bytes: &[u8]) -> io::Result<Vec<(u64, Vec<u8>)>> {
        // Writes to the ring succeed, so only the trees fail.
        match at >= self.0 {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(vec![(at, bytes.to_vec())]),
        }
    }
}

/// Readers of a state that is not the newest can still use a committed dictionary, even if the
/// newest state no longer has it.
#[test]
fn a_committed_dictionary_is_kept_for_those_who_still_read_with_it() {
    let sim = SimDevice::new(Vec::new());
    let store = Store::create(sim.clone(), Caches::new(1 << 20), GUID, Ashift::MIN).unwrap();
    let with = dictionary(3);
    let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
    let pointer = put_with(&mut txn, 0, &with);
    txn.commit(Durability::Durable).unwrap();
    assert!(read(&store, 0).unwrap() == with.1);
    let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
    txn.remove(TreeId::Map, &key(0)).unwrap();
    txn.remove_dictionary(pointer.dictionary).unwrap();
    txn.commit(Durability::Visible).unwrap();
    assert!(store.read_uncached(&pointer).unwrap().as_slice() == with.1);
    // A process that never had it gets an error rather than wrong bytes.
    let other = Store::open(sim.handle(), Caches::new(1 << 20)).unwrap();
    assert!(other.read_uncached(&pointer).unwrap_err().is_corruption());
}
