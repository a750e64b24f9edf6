//! Tests of bases that are differences themselves: how far they reach, and which of them stay in
//! memory.

use std::sync::Arc;

use super::space::{add, assert_clean, read, store_on};
use crate::codec::{Compression, with_codec};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::store::cache::Caches;
use crate::store::dictionaries::dictionary_key;
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::pointer::{Filter, Pointer};
use crate::store::format::superblock::FEATURE_SECOND_BASES;
use crate::store::format::trees::TreeId;
use crate::store::{Durability, Encoding, Store, Txn};
use crate::test_common::Rng;
use crate::test_common::sim_device::SimDevice;

const LEN: u32 = 20_000;

/// Stores bytes as what follows on a text, as a difference from the base with this number.
fn put_after(txn: &mut Txn, text: &[u8], bytes: &[u8], number: u32) -> Pointer {
    let (compression, mut stored) = (Compression::Zstd(3), Vec::new());
    with_codec(|codec| codec.compress_after(compression, text, bytes, &mut stored)).unwrap();
    let encoding = Encoding {
        codec: compression.codec_id(),
        level: 3,
        filter: Filter::Difference,
        gain: 0,
        dictionary: number,
    };
    txn.store_extent(&stored, encoding, bytes.len() as u32, ChecksumKind::Xxh3).unwrap()
}

fn put_raw(txn: &mut Txn, bytes: &[u8]) -> Pointer {
    txn.store_extent(bytes, Encoding::RAW, bytes.len() as u32, ChecksumKind::Xxh3).unwrap()
}

/// Returns the entry of an extent that becomes a base.
fn entry(txn: &mut Txn, extent: Pointer) -> Pointer {
    let entry = Pointer { len: 0, ..extent };
    txn.count_parts(&entry, 1).unwrap();
    entry
}

fn noise(seed: u64) -> Vec<u8> {
    Rng(seed).noise(LEN as usize)
}

/// Bytes of which half are in others.
fn mixed(parts: &[&[u8]], seed: u64) -> Vec<u8> {
    let mut bytes: Vec<u8> = parts.iter().flat_map(|part| part[..4_000].to_vec()).collect();
    let len = bytes.len();
    bytes.extend(&noise(seed)[len..]);
    bytes
}

#[test]
fn a_text_is_of_two_bases_at_most() {
    let device: Arc<dyn Device> = SimDevice::new(Vec::new());
    let store = store_on(&device, 9);
    let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
    let first = noise(1);
    let extent = put_raw(&mut txn, &first);
    let first_entry = entry(&mut txn, extent);
    let one = txn.enter_base(&first_entry).unwrap();
    let second = mixed(&[&first], 2);
    let extent = put_after(&mut txn, &first, &second, one);
    let second_entry = entry(&mut txn, extent);
    let two = txn.enter_base(&second_entry).unwrap();
    let text = [&first[..], &second].concat();
    let last = mixed(&[&second[8_000..], &first[8_000..]], 3);
    let extent = put_after(&mut txn, &text, &last, two);
    assert!(extent.stored_len < LEN * 2 / 3, "{}", extent.stored_len);
    add(&mut txn, 0, &extent).unwrap();
    assert!(txn.read(&extent).unwrap().as_slice() == last);
    txn.commit(Durability::Durable).unwrap();
    assert!(store.state().superblock.incompat & FEATURE_SECOND_BASES != 0);
    let fresh = Store::open(Arc::clone(&device), Caches::new(1 << 20)).unwrap();
    assert!(fresh.base_text(two).unwrap().as_slice() == text);
    for store in [&store, &fresh] {
        assert!(read(store, 0).unwrap() == last);
    }
    assert_clean(&device);

    // Nobody makes a third one.
    let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
    let third = entry(&mut txn, extent);
    let refused = txn.enter_base(&third).unwrap_err();
    assert!(matches!(refused, Error::Internal(_)), "{refused}");
}

/// Entries that nobody makes: whatever they lead to, reading ends, with an error.
#[test]
fn bases_that_lead_too_far_are_refused() {
    let device: Arc<dyn Device> = SimDevice::new(Vec::new());
    let store = store_on(&device, 9);
    let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
    let (first, other) = (noise(1), noise(2));
    let extent = put_raw(&mut txn, &first);
    let first_entry = entry(&mut txn, extent);
    let one = txn.enter_base(&first_entry).unwrap();
    let base_of = |txn: &mut Txn, number: u32, of: u32, filter: Filter| {
        let extent = put_after(txn, &first, &other, of);
        let entry = Pointer { filter: filter as u8, ..entry(txn, extent) };
        txn.insert(TreeId::Dictionaries, &dictionary_key(number), &entry.to_bytes()).unwrap();
    };
    let difference = Filter::Difference;
    base_of(&mut txn, 1002, one, difference);
    base_of(&mut txn, 1003, 1002, difference);
    base_of(&mut txn, 1004, 1004, difference);
    base_of(&mut txn, 1005, 1006, difference);
    base_of(&mut txn, 1006, 1005, difference);
    base_of(&mut txn, 1007, 4000, difference);
    base_of(&mut txn, 1008, one, Filter::FilteredDifference);
    base_of(&mut txn, 1009, one, Filter::None);
    txn.commit(Durability::Durable).unwrap();
    let check = |number: u32, expected: std::result::Result<(), &str>| {
        let store = Store::open(Arc::clone(&device), Caches::new(1 << 20)).unwrap();
        let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
        let difference = put_after(&mut txn, &first, &other, number);
        let found: Result<()> = txn.read(&difference).map(drop);
        match expected {
            Ok(()) => found.unwrap(),
            Err(expected) => {
                let error = found.unwrap_err();
                assert!(error.is_corruption() && error.to_string().contains(expected), "{error}");
            }
        }
    };
    check(1002, Ok(()));
    for number in 1003..=1006 {
        check(number, Err("a difference from a difference"));
    }
    check(1007, Err("expected dictionary 4000"));
    check(1008, Err("in a way that none may"));
    check(1009, Err("in a way that none may"));
}

/// A transaction that added two bases is dropped. Another process assigns their numbers to others,
/// of which the second has the same stored bytes at the same place: only what it follows on
/// differs.
#[test]
fn a_second_base_that_was_never_committed_decodes_nothing() {
    let sim = SimDevice::new(Vec::new());
    let device: Arc<dyn Device> = sim.clone();
    let ours = store_on(&device, 9);
    let theirs = Store::open(sim.handle(), Caches::new(1 << 20)).unwrap();
    let put = |txn: &mut Txn, seed: u64| {
        let first = noise(seed);
        let extent = put_raw(txn, &first);
        let first_entry = entry(txn, extent);
        let one = txn.enter_base(&first_entry).unwrap();
        let second = [&first[5_000..], &first[..5_000]].concat();
        let extent = put_after(txn, &first, &second, one);
        let second_entry = entry(txn, extent);
        let two = txn.enter_base(&second_entry).unwrap();
        // Part of it is as it is here only in the second base.
        let bytes = second[10_000..].to_vec();
        let pointer = put_after(txn, &[first, second].concat(), &bytes, two);
        add(txn, 0, &pointer).unwrap();
        assert!(txn.read(&pointer).unwrap().as_slice() == bytes);
        (second_entry, pointer, bytes)
    };
    let mut txn = ours.begin(ChecksumKind::Xxh3).unwrap();
    let dropped = put(&mut txn, 1);
    drop(txn);
    let mut txn = theirs.begin(ChecksumKind::Xxh3).unwrap();
    let committed = put(&mut txn, 2);
    txn.commit(Durability::Visible).unwrap();
    assert_eq!(dropped.0.extent_key(), committed.0.extent_key(), "nothing distinguishes them");
    assert_eq!(dropped.1.extent_key(), committed.1.extent_key(), "nothing distinguishes them");
    assert!(ours.refresh().unwrap());
    assert!(read(&ours, 0).unwrap() == committed.2);
    assert_clean(&device);
}
