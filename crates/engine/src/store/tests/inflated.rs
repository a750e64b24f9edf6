//! Inflated extents that no writer of this engine stores: a pool can be made by an enemy, who makes
//! its checksums as well.

use std::sync::Arc;

use super::space::{add, store_on};
use crate::codec::{CodecId, deflated};
use crate::device::{Device, MemoryDevice};
use crate::error::Error;
use crate::store::cache::Caches;
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::pointer::{EXTENT_LEN_MAX, Filter, Pointer};
use crate::store::inflated::append_trailer;
use crate::store::{Durability, Encoding, Store};
use crate::test_common::Rng;

/// Stores a form as it is, with this length in its trailer, as an extent of `extent_len` bytes.
fn put(store: &Arc<Store>, form: &[u8], form_len: usize, extent_len: u32) -> Pointer {
    let encoding = Encoding { codec: CodecId::Raw, filter: Filter::Inflated, ..Encoding::RAW };
    let mut stored = form.to_vec();
    append_trailer(&mut stored, form_len);
    let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
    let pointer = txn.store_extent(&stored, encoding, extent_len, ChecksumKind::Xxh3).unwrap();
    let number = store.state().txg().0;
    add(&mut txn, number, &Pointer { span_log2: 24, ..pointer.clone() }).unwrap();
    txn.commit(Durability::Visible).unwrap();
    pointer
}

/// A directory of streams (gap, length, length of the text, settings), and what is behind it.
fn form(streams: &[(u32, u32, u32, u16)], behind: &[u8]) -> Vec<u8> {
    let mut form = (streams.len() as u32).to_le_bytes().to_vec();
    streams.iter().for_each(|(gap, ..)| form.extend(gap.to_le_bytes()));
    streams.iter().for_each(|(_, len, ..)| form.extend(len.to_le_bytes()));
    streams.iter().for_each(|(_, _, text_len, _)| form.extend(text_len.to_le_bytes()));
    streams.iter().for_each(|(.., settings)| form.extend(settings.to_le_bytes()));
    form.extend(behind);
    form
}

#[test]
fn forged_extents_are_refused() {
    const USUAL: u16 = 0x0f86;
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let store = store_on(&device, 9);
    let text = Rng(1).text(3000);
    let stream = deflated(&text, USUAL).unwrap();
    let len = stream.len() as u32;
    let behind = [&b"ab"[..], &text].concat();
    let good = form(&[(1, len, 3000, USUAL)], &behind);
    let pointer = put(&store, &good, good.len(), len + 2);
    let expected = [&b"a"[..], &stream, b"b"].concat();
    assert!(store.read_uncached(&pointer).unwrap().as_slice() == expected);
    assert!(store.read(&pointer).unwrap().as_slice() == expected);
    // Without a stream it is the bytes themselves.
    let none = form(&[], b"bytes");
    let bytes = put(&store, &none, none.len(), 5);
    assert!(store.read(&bytes).unwrap().as_slice() == b"bytes");
    let empty = put(&store, &form(&[], b""), 4, 0);
    assert!(store.read(&empty).unwrap().as_slice().is_empty());
    let huge = u32::MAX;
    let forged: Vec<(Vec<u8>, usize, u32)> = vec![
        (vec![], 0, 5),
        (vec![0, 0], 2, 5),
        (good.clone(), 1 << 30, len + 2),
        (good.clone(), good.len() - 1, len + 2),
        (good.clone(), good.len(), len + 1),
        (good.clone(), good.len(), EXTENT_LEN_MAX),
        (form(&[(1, len + 1, 3000, USUAL)], &behind), good.len(), len + 3),
        (form(&[(1, len - 1, 3000, USUAL)], &behind), good.len(), len + 1),
        (form(&[(3, len, 3000, USUAL)], &behind), good.len(), len + 2),
        (form(&[(huge, len, 3000, USUAL)], &behind), good.len(), len + 2),
        (form(&[(1, huge, 3000, USUAL)], &behind), good.len(), len + 2),
        (form(&[(1, len, huge, USUAL)], &behind), good.len(), len + 2),
        (form(&[(1, len, 0, USUAL)], &behind), good.len(), len + 2),
        (form(&[(1, 63, 3000, USUAL)], &behind), good.len(), 65),
        (form(&[(1, len, 3000, 0)], &behind), good.len(), len + 2),
        (form(&[(1, len, 3000, 0xffff)], &behind), good.len(), len + 2),
        (huge.to_le_bytes().to_vec(), 4, len),
    ];
    for (index, (form, form_len, extent_len)) in forged.into_iter().enumerate() {
        let pointer = put(&store, &form, form_len, extent_len);
        for part_offset in [0, extent_len / 2] {
            let pointer = Pointer { part_offset, len: extent_len - part_offset, ..pointer.clone() };
            let reads = [store.read_uncached(&pointer), store.read(&pointer)];
            let is_refused = |read: Result<_, Error>| read.is_err_and(|it| it.is_corruption());
            assert!(reads.into_iter().all(is_refused), "{index} {part_offset}");
            assert!(!store.is_cached(&pointer) && store.peek(&pointer, 0..1).is_none());
        }
    }
}

/// A reader beside a writer holds one version of what it has read of inflated extents.
#[test]
fn caches_of_a_reader_hold_one_version_of_spans() {
    use super::space::take;
    const USUAL: u16 = 0x0f86;
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let store = store_on(&device, 9);
    let theirs = Caches::new(512 << 20);
    let mut reader = None;
    for round in 0..400_u64 {
        let text = Rng(round).text(100_000);
        let stream = deflated(&text, USUAL).unwrap();
        let len = stream.len() as u32;
        let behind = [&b"ab"[..], &text].concat();
        let good = form(&[(1, len, 100_000, USUAL)], &behind);
        let encoding = Encoding { codec: CodecId::Raw, filter: Filter::Inflated, ..Encoding::RAW };
        let mut stored = good.clone();
        append_trailer(&mut stored, good.len());
        let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
        take(&mut txn, 1).unwrap();
        let pointer = txn.store_extent(&stored, encoding, len + 2, ChecksumKind::Xxh3).unwrap();
        let pointer = Pointer { span_log2: 24, ..pointer };
        add(&mut txn, 1, &pointer).unwrap();
        txn.commit(Durability::Durable).unwrap();
        let reader = reader
            .get_or_insert_with(|| Store::open(Arc::clone(&device), Arc::clone(&theirs)).unwrap());
        reader.refresh().unwrap();
        let expected = [&b"a"[..], &stream, b"b"].concat();
        let got = reader.read(&pointer).unwrap();
        assert!(got.as_slice() == expected);
    }
    let (used, len) = (theirs.used_bytes(), device.len().unwrap());
    assert!(used < 3 * len, "{used} bytes of {len} are in the cache");
}
