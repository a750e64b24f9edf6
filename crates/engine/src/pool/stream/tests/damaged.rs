//! Streams with bases that are damaged in the receiver, or lead nowhere in the sender.

use std::sync::Arc;

use super::bases::{goal_of_branches, receive, source_of_branches};
use crate::device::{Device, MemoryDevice};
use crate::pool::{Again, Pool, Property, ROOT, ReceiveOptions, SendPlan};
use crate::store::dictionaries::dictionary_key;
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::pointer::Pointer;
use crate::store::trees::TreeId;
use crate::store::{Durability, Patience};
use crate::test_common::read_all;
use crate::test_common::segments::{empty_pool, of_branch, open, optimize, put, stream_of};

/// Which bases are damaged.
type Which = fn(&Pointer) -> bool;

const EACH: [Which; 3] = [|it| it.is_second_base(), |it| !it.is_second_base(), |_| true];

/// Receives a stream, and damages bases in the pool then.
fn received_and_damaged(source: &Pool, dedup: &str, which: Which) -> Pool {
    let (device, pool) = empty_pool(&[(Property::Dedup, dedup)]);
    receive(&pool, &stream_of(source, b"one", None), 0, false).unwrap();
    let bases = pool.store().bases_in(&pool.state()).unwrap().into_values();
    let places: Vec<u64> =
        bases.filter(which).map(|it| pool.store().offset_of(&it) + 100).collect();
    pool.close().unwrap();
    assert!(!places.is_empty());
    places.iter().for_each(|at| flip(&device, *at));
    open(&device)
}

fn flip(device: &Arc<MemoryDevice>, at: u64) {
    let mut byte = [0];
    device.read_at(&mut byte, at).unwrap();
    device.write_at(&[byte[0] ^ 4], at).unwrap();
}

fn assert_holds(pool: &Pool, directory: &str, numbers: std::ops::Range<u64>) {
    for n in numbers {
        let file = pool.resolve(format!("{directory}/v{n}").as_bytes()).unwrap().file;
        assert!(read_all(&pool.file(file).unwrap()).unwrap() == of_branch(n), "{directory} {n}");
    }
}

/// Makes further versions of what a pool holds, and returns the stream that brings them.
fn stream_of_more(source: &Pool) -> Vec<u8> {
    for n in 9..12 {
        put(source, format!("v{n}").as_bytes(), &of_branch(n));
    }
    optimize(source, goal_of_branches(Again::Related));
    source.create_snapshot(ROOT, b"two", 0).unwrap();
    stream_of(source, b"two", Some(b"one"))
}

#[test]
fn a_complete_stream_brings_sound_bases() {
    let source = source_of_branches();
    let stream = stream_of(&source, b"one", None);
    for (dedup, which) in EACH.map(|which| ("off", which)).into_iter().chain([("on", EACH[0])]) {
        let pool = received_and_damaged(&source, dedup, which);
        let bases = || pool.store().bases_in(&pool.state()).unwrap().len();
        let mut counts = Vec::new();
        for name in ["again", "once more"] {
            let options = ReceiveOptions::default();
            let stream = &mut &stream[..];
            pool.receive(ROOT, name.as_bytes(), stream, &options, &mut |_| {}).unwrap();
            assert_holds(&pool, name, 0..9);
            counts.push(bases());
        }
        assert_eq!(counts[0], counts[1], "the sound ones that came are found beside the damaged");
    }
}

#[test]
fn an_incremental_stream_brings_sound_bases() {
    for which in EACH {
        let source = source_of_branches();
        let pools = [0, 1000].map(|_| received_and_damaged(&source, "off", which));
        let stream = stream_of_more(&source);
        for (pool, batch_len) in pools.iter().zip([0, 1000]) {
            receive(pool, &stream, batch_len, false).unwrap();
            assert_holds(pool, "copy", 9..12);
        }
    }
}

/// A rollback brings back bases that only the snapshot has, damaged ones among them.
#[test]
fn a_forced_stream_brings_sound_bases() {
    for which in EACH {
        let source = source_of_branches();
        let pool = received_and_damaged(&source, "off", which);
        for n in 0..9 {
            pool.remove_at(format!("copy/v{n}").as_bytes(), 0).unwrap();
        }
        pool.remove_unused_dictionaries(Patience::None).unwrap();
        receive(&pool, &stream_of_more(&source), 0, true).unwrap();
        assert_holds(&pool, "copy", 9..12);
    }
}

/// An image in which each base names another one, as nobody makes it: sending it ends, with an
/// error.
#[test]
fn a_long_chain_of_bases_is_refused() {
    let pool = source_of_branches();
    let mut txn = pool.store().begin(ChecksumKind::Xxh3).unwrap();
    let mut numbered = txn.numbered().unwrap().into_iter();
    let (number, second) = numbered.find(|(_, entry)| entry.is_second_base()).unwrap();
    for n in 0..50_000 {
        let at = if n == 0 { number } else { 1_000_000 + n };
        let entry = Pointer { dictionary: 1_000_001 + n, ..second.clone() };
        txn.insert(TreeId::Dictionaries, &dictionary_key(at), &entry.to_bytes()).unwrap();
    }
    txn.commit(Durability::Durable).unwrap();
    pool.create_snapshot(ROOT, b"two", 0).unwrap();
    let plan = SendPlan {
        snapshot: &pool.open_snapshot(ROOT, b"two").unwrap(),
        base: None,
        scope: ROOT,
        name: b"two",
        created_ns: 0,
        resume: None,
    };
    let error = pool.send(&plan, &mut Vec::new(), &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("a difference from a difference"), "{error}");
    assert!(pool.measure_send(&plan).unwrap_err().is_corruption());
}
