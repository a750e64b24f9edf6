//! Streams with bases and what differs from them: what belongs together arrives once, and changed
//! frames do no harm.

use std::sync::Arc;

use super::{frame_starts, seal};
use crate::codec::{Compression, Dictionary};
use crate::error::{Error, Result};
use crate::pool::namespace::entries;
use crate::pool::stream::body::{At, Body, travelling};
use crate::pool::{Again, Pool, Property, ROOT, ReceiveOptions, SegmentGoal};
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::pointer::{Place, Pointer};
use crate::store::trees::TreeId;
use crate::store::{Durability, Patience};
use crate::test_common::databases::counting_database;
use crate::test_common::segments::{
    GOAL, compact, empty_pool, of_branch, optimize, pool_of, put, second_bases, stream_of, used,
};
use crate::test_common::{Rng, problems, read_all};
use crate::units::FileId;

fn version(number: u64) -> Vec<u8> {
    let mut bytes = Rng(1000 + number).text(1000 + 300 * number as usize);
    bytes.extend(Rng(1).noise(60_000));
    bytes.extend(Rng(500 + number).text(5_000));
    bytes
}

/// Two of the versions fit into a segment.
fn goal(again: Again) -> SegmentGoal {
    SegmentGoal { len: 150_000, again, ..GOAL }
}

fn source() -> Pool {
    let files = (0..8).map(|n| (format!("v{n}").into_bytes(), version(n)));
    let (_, pool) = pool_of(&files.collect(), &[]);
    optimize(&pool, goal(Again::No));
    pool.create_snapshot(ROOT, b"one", 0).unwrap();
    pool
}

/// A pool with second bases, of which some versions come later.
pub(super) fn source_of_branches() -> Pool {
    let files = (0..9).map(|n| (format!("v{n}").into_bytes(), of_branch(n)));
    let (_, pool) = pool_of(&files.collect(), &[(Property::RecordSize, "64K")]);
    optimize(&pool, goal_of_branches(Again::No));
    assert!(second_bases(&pool) > 0);
    pool.create_snapshot(ROOT, b"one", 0).unwrap();
    pool
}

pub(super) fn goal_of_branches(again: Again) -> SegmentGoal {
    SegmentGoal { len: 140_000, again, ..GOAL }
}

fn bodies(stream: &[u8]) -> (Vec<u8>, Vec<Body>) {
    let starts = frame_starts(stream);
    let mut found = Vec::new();
    for ends in starts.windows(2) {
        let (start, end) = (ends[0], ends[1].min(stream.len()));
        if end < start + 13 {
            break;
        }
        found.push(Body::decode(stream[start], &stream[start + 5..end - 8]).unwrap());
    }
    (stream[..starts[0]].to_vec(), found)
}

/// Makes a stream of these frames, with the hashes that belong to them.
fn build(header: &[u8], bodies: &[Body]) -> Vec<u8> {
    let mut out = header.to_vec();
    for (number, body) in (0..).zip(bodies) {
        let (tag, payload) = match body {
            Body::End { hash, .. } => Body::End { frames: number, hash: *hash }.encode(),
            body => body.encode(),
        };
        out.push(tag);
        out.extend((payload.len() as u32).to_le_bytes());
        out.extend(payload);
        out.extend([0; 8]);
    }
    seal(&out)
}

fn target(dedup: &str) -> Pool {
    empty_pool(&[(Property::Dedup, dedup)]).1
}

pub(super) fn receive(pool: &Pool, mut stream: &[u8], batch_len: usize, force: bool) -> Result<()> {
    let options = ReceiveOptions { batch_len, force, ..ReceiveOptions::default() };
    pool.receive(ROOT, b"copy", &mut stream, &options, &mut |_| {}).map(drop)
}

fn base_at(bodies: &[Body]) -> usize {
    bodies
        .iter()
        .position(|body| match body {
            Body::FileExtent { at, .. } | Body::Shared { at, .. } => at.base().is_some(),
            _ => false,
        })
        .unwrap()
}

fn number_of(body: &Body) -> u32 {
    match body {
        Body::FileExtent { at, .. } | Body::Shared { at, .. } => at.base().unwrap(),
        _ => panic!(),
    }
}

/// A file that is to use a base as its dictionary can never be written.
#[test]
fn a_base_as_the_dictionary_of_a_file() {
    let source = source();
    let (header, mut all) = bodies(&stream_of(&source, b"one", None));
    let base = base_at(&all);
    let number = number_of(&all[base]);
    let file = match &all[base + 1] {
        Body::FileExtent { at, .. } | Body::Shared { at, .. } => at.file,
        _ => panic!(),
    };
    all.insert(base + 1, Body::Uses { file, number });
    let pool = target("off");
    let refused = receive(&pool, &build(&header, &all), 0, false).unwrap_err();
    assert!(refused.is_corruption(), "{refused}");
    assert!(refused.to_string().contains("found a base"), "{refused}");
}

fn fuzz_pointer(rng: &mut Rng, pointer: &mut Pointer, numbers: &[u32], pointers: &[Pointer]) {
    match rng.below(12) {
        0 => pointer.len = 0,
        1 => pointer.dictionary = rng.pick(numbers),
        2 => pointer.dictionary = 0,
        3 => pointer.filter = rng.below(8) as u8,
        4 => pointer.codec = rng.below(10) as u8,
        5 => pointer.part_offset = rng.below(u64::from(pointer.extent_len) + 2) as u32,
        6 => {
            pointer.extent_len = rng.pick(&[0, 1, 16 << 20, (16 << 20) + 1, pointer.extent_len + 1])
        }
        7 => pointer.len = rng.below(u64::from(pointer.extent_len) + 2) as u32,
        8 => *pointer = pointers[rng.below(pointers.len() as u64) as usize].clone(),
        9 => {
            pointer.len = pointer.extent_len;
            pointer.part_offset = 0;
        }
        10 => pointer.place = Place::Zero,
        _ => pointer.span_log2 = rng.below(26) as u8,
    }
}

fn fuzz_at(rng: &mut Rng, at: &mut At, numbers: &[u32], ats: &[At]) {
    match rng.below(5) {
        0 => *at = At::of_base(rng.pick(numbers)),
        1 => *at = ats[rng.below(ats.len() as u64) as usize],
        2 => at.tree = TreeId::Patches,
        3 => at.offset = rng.pick(&[0, 1, 4096, at.offset + 4096]),
        _ => at.file = FileId(rng.below(30)),
    }
}

fn mutate(rng: &mut Rng, all: &mut Vec<Body>) {
    let (mut ats, mut pointers, mut extents) = (Vec::new(), Vec::new(), Vec::new());
    for (index, body) in all.iter().enumerate() {
        if let Body::FileExtent { at, pointer, .. } | Body::Shared { at, pointer, .. } = body {
            ats.push(*at);
            pointers.push(travelling(pointer));
            extents.push(index);
        }
    }
    let mut numbers: Vec<u32> = ats.iter().filter_map(At::base).collect();
    numbers.extend([1, 2, u32::MAX]);
    let at = rng.pick(&extents);
    match rng.below(10) {
        0 => {
            let body = all.remove(at);
            let to = rng.below(all.len() as u64 - 1).max(1) as usize;
            all.insert(to, body);
        }
        1 => {
            let body = all[at].clone();
            all.insert(at, body);
        }
        2 => drop(all.remove(at)),
        3 => {
            let number = rng.pick(&numbers);
            all.insert(at, Body::Dictionary { number, bytes: rng.text(500) });
        }
        4 => {
            // What was sent becomes a base as well, or the other way round.
            let mut body = all[at].clone();
            if let Body::FileExtent { at, pointer, .. } | Body::Shared { at, pointer, .. } =
                &mut body
            {
                *at = At::of_base(rng.pick(&[77, 78]));
                pointer.len = 0;
                pointer.part_offset = 0;
                pointer.span_log2 = 0;
            }
            let n = all[at].clone();
            match (n, rng.one_in(2)) {
                (Body::FileExtent { at: of, pointer, .. }, true) => all.insert(
                    at + 1,
                    Body::Shared {
                        at: At::of_base(79),
                        pointer: Pointer { len: 0, part_offset: 0, span_log2: 0, ..pointer },
                        of,
                    },
                ),
                _ => all.insert(at, body),
            }
        }
        5 => {
            let of = ats[rng.below(ats.len() as u64) as usize];
            let to = ats[rng.below(ats.len() as u64) as usize];
            let pointer = pointers[rng.below(pointers.len() as u64) as usize].clone();
            if matches!(pointer.place, Place::Extent { .. }) {
                all.insert(at, Body::Shared { at: to, pointer, of });
            }
        }
        _ => match &mut all[at] {
            Body::FileExtent { at, pointer, .. } => match rng.below(3) {
                0 => fuzz_at(rng, at, &numbers, &ats),
                _ => fuzz_pointer(rng, pointer, &numbers, &pointers),
            },
            Body::Shared { at, pointer, of } => match rng.below(4) {
                0 => fuzz_at(rng, at, &numbers, &ats),
                1 => fuzz_at(rng, of, &numbers, &ats),
                _ => fuzz_pointer(rng, pointer, &numbers, &pointers),
            },
            _ => {}
        },
    }
}

/// Receives a stream, and does with the pool whatever comes next, after each of which the pool is
/// sound. Returns whether the stream was taken.
fn is_taken(pool: &Pool, bad: &[u8], seed: u64, rng: &mut Rng, is_incremental: bool) -> bool {
    let sound = |what: &str| {
        assert_eq!(problems(pool).unwrap(), Vec::<String>::new(), "seed {seed}, {what}");
    };
    let force = is_incremental && rng.one_in(2);
    let received = receive(pool, bad, rng.pick(&[0, 1, 20_000]), force);
    sound("received");
    if let Err(error) = &received {
        assert!(!matches!(error, Error::Internal(_)), "seed {seed}: {error}");
        pool.abort_receive(ROOT, b"copy").unwrap();
        sound("given up");
    }
    pool.remove_unused_dictionaries(Patience::None).unwrap();
    sound("without what nothing needs");
    compact(pool);
    sound("compacted");
    if received.is_ok() {
        optimize(pool, SegmentGoal { compression: Compression::Zstd(9), ..goal(Again::All) });
        sound("optimised");
    }
    received.is_ok()
}

#[test]
fn mutated_frames_do_no_harm() {
    mutated_frames(&source(), 0..700);
}

/// The same with bases that are differences themselves.
#[test]
fn mutated_frames_of_branches_do_no_harm() {
    let source = source_of_branches();
    let pool = target("off");
    receive(&pool, &stream_of(&source, b"one", None), 0, false).unwrap();
    assert_eq!(second_bases(&pool), second_bases(&source));
    mutated_frames(&source, 0..300);
}

fn mutated_frames(source: &Pool, seeds: std::ops::Range<u64>) {
    let (header, all) = bodies(&stream_of(source, b"one", None));
    assert!(receive(&target("off"), &build(&header, &all), 0, false).is_ok());
    let (mut taken, mut refused) = (0, 0);
    for seed in seeds {
        let mut rng = Rng(seed);
        let mut bad = all.clone();
        for _ in 0..=rng.below(3) {
            mutate(&mut rng, &mut bad);
        }
        let pool = target(rng.pick(&["off", "on"]));
        match is_taken(&pool, &build(&header, &bad), seed, &mut rng, false) {
            true => taken += 1,
            false => refused += 1,
        }
    }
    assert!(taken > 30 && refused > 30, "{taken} {refused}");
}

/// Receives a stream and then many forms of the next one.
fn mutated_frames_after(first: &[u8], second: &[u8], seeds: std::ops::Range<u64>) {
    let (header, all) = bodies(second);
    assert!(base_at(&all) > 0, "it brings a base");
    let (mut taken, mut refused) = (0, 0);
    for seed in seeds {
        let mut rng = Rng(seed);
        let mut bad = all.clone();
        for _ in 0..rng.below(4) {
            mutate(&mut rng, &mut bad);
        }
        let pool = target(rng.pick(&["off", "on"]));
        receive(&pool, first, 0, false).unwrap();
        match is_taken(&pool, &build(&header, &bad), seed, &mut rng, true) {
            true => taken += 1,
            false => refused += 1,
        }
    }
    assert!(taken > 30 && refused > 30, "{taken} {refused}");
}

#[test]
fn mutated_frames_of_incremental_streams_do_no_harm() {
    let source = source();
    let first = stream_of(&source, b"one", None);
    for n in 8..12 {
        put(&source, format!("v{n}").as_bytes(), &version(n));
    }
    optimize(&source, goal(Again::Related));
    source.remove_at(b"v1", 0).unwrap();
    source.create_snapshot(ROOT, b"two", 0).unwrap();
    mutated_frames_after(&first, &stream_of(&source, b"two", Some(b"one")), 0..300);
}

#[test]
fn mutated_frames_of_incremental_streams_of_branches_do_no_harm() {
    let source = source_of_branches();
    let first = stream_of(&source, b"one", None);
    for n in 9..12 {
        put(&source, format!("v{n}").as_bytes(), &of_branch(n));
    }
    optimize(&source, goal_of_branches(Again::Related));
    source.remove_at(b"v1", 0).unwrap();
    source.create_snapshot(ROOT, b"two", 0).unwrap();
    mutated_frames_after(&first, &stream_of(&source, b"two", Some(b"one")), 0..150);
}

/// The same with bases that are records of the receiver.
#[test]
fn mutated_frames_of_incremental_streams_of_versions_do_no_harm() {
    let database = |n| (format!("v{n}").into_bytes(), counting_database(5, 40_000, n));
    let (_, source) = pool_of(&vec![database(4)], &[(Property::RecordSize, "16K")]);
    source.create_snapshot(ROOT, b"one", 0).unwrap();
    let first = stream_of(&source, b"one", None);
    for (path, bytes) in (0..3).map(database) {
        put(&source, &path, &bytes);
    }
    let report = optimize(&source, goal(Again::No));
    assert!(report.version_differences > 3, "{report:?}");
    source.create_snapshot(ROOT, b"two", 0).unwrap();
    mutated_frames_after(&first, &stream_of(&source, b"two", Some(b"one")), 0..200);
}

/// Each incremental stream brings the base once more, of which the receiver keeps one.
#[test]
fn a_base_that_came_before_is_not_kept_twice() {
    let source = source();
    let pool = target("off");
    receive(&pool, &stream_of(&source, b"one", None), 0, false).unwrap();
    let mut last = b"one".to_vec();
    for n in 8..14 {
        put(&source, format!("v{n}").as_bytes(), &version(n));
        optimize(&source, goal(Again::Related));
        let name = format!("s{n}").into_bytes();
        source.create_snapshot(ROOT, &name, 0).unwrap();
        receive(&pool, &stream_of(&source, &name, Some(&last)), 0, false).unwrap();
        last = name;
        assert!(used(&pool) < used(&source) + 10_000, "{} {}", used(&pool), used(&source));
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    }
}

/// The first base comes with a record of its own, so behind what brings the second one.
#[test]
fn second_bases_come_with_changes() {
    let is_shared = |body: &Body| matches!(body, Body::Shared { at, .. } if at.base().is_some());
    let is_second = |body: &Body| {
        matches!(body, Body::FileExtent { at, pointer, .. }
            if at.base().is_some() && pointer.is_second_base())
    };
    let mut behind = 0;
    for front in 0..9 {
        let files = std::iter::once(front).chain((0..9).filter(|n| *n != front));
        let (_, source) = empty_pool(&[(Property::RecordSize, "64K")]);
        // Records of files that there are come in the order of their numbers, not their names.
        let files: Vec<_> =
            files.map(|n| (n, put(&source, format!("v{n}").as_bytes(), b""))).collect();
        source.create_snapshot(ROOT, b"one", 0).unwrap();
        let first = stream_of(&source, b"one", None);
        for (n, file) in files {
            file.write_at(&of_branch(n), 0).unwrap();
            file.commit(Durability::Durable).unwrap();
        }
        optimize(&source, goal_of_branches(Again::No));
        source.create_snapshot(ROOT, b"two", 0).unwrap();
        let second = stream_of(&source, b"two", Some(b"one"));
        let (_, all) = bodies(&second);
        let shared = all.iter().position(is_shared).unwrap_or(all.len());
        behind += usize::from(all[shared..].iter().any(is_second));
        for dedup in ["off", "on"] {
            let pool = target(dedup);
            receive(&pool, &first, 0, false).unwrap();
            receive(&pool, &second, 0, false).unwrap();
            assert_eq!(second_bases(&pool), second_bases(&source));
            assert!(used(&pool) < used(&source) + 10_000, "{} {}", used(&pool), used(&source));
            assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
            for n in 0..9 {
                let file = pool.resolve(format!("copy/v{n}").as_bytes()).unwrap().file;
                assert!(read_all(&pool.file(file).unwrap()).unwrap() == of_branch(n));
            }
        }
    }
    assert!(behind > 0, "none comes behind the record of its first base");
}

/// Neither does the receiver keep a dictionary twice.
#[test]
fn a_dictionary_that_came_before_is_not_kept_twice() {
    let dictionary = Arc::new(Dictionary::new(Rng(1).noise(6000)));
    let (_, source) = pool_of(&vec![], &[]);
    let pool = target("off");
    let mut last = None;
    for name in [b"one", b"two"] {
        let file = put(&source, name, &version(1)).id();
        let mut txn = source.store().begin(ChecksumKind::Xxh3).unwrap();
        let number = match txn.find_dictionary(dictionary.bytes(), ChecksumKind::Xxh3).unwrap() {
            Some(number) => number,
            None => txn.add_dictionary(&dictionary, ChecksumKind::Xxh3).unwrap(),
        };
        entries::set_dictionary(&mut txn, file, number).unwrap();
        txn.commit(Durability::Visible).unwrap();
        source.create_snapshot(ROOT, name, 0).unwrap();
        let last = last.replace(name);
        receive(&pool, &stream_of(&source, name, last.map(|name| &name[..])), 0, false).unwrap();
    }
    for pool in [source, pool] {
        let mut txn = pool.store().begin(ChecksumKind::Xxh3).unwrap();
        assert_eq!(txn.numbered().unwrap().len(), 1);
        drop(txn);
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    }
}

fn databases() -> Pool {
    let files = (0..4).map(|n| (format!("v{n}").into_bytes(), counting_database(5, 40_000, n)));
    let (_, pool) = pool_of(&files.collect(), &[(Property::RecordSize, "16K")]);
    let report = optimize(&pool, goal(Again::No));
    assert!(report.version_differences > 3, "{report:?}");
    pool.create_snapshot(ROOT, b"one", 0).unwrap();
    pool
}

/// The same with records of databases as bases.
#[test]
fn mutated_frames_of_versions_do_no_harm() {
    let source = databases();
    let (header, all) = bodies(&stream_of(&source, b"one", None));
    let (mut taken, mut refused) = (0, 0);
    // In streams of these seeds, a patch named a base as its dictionary.
    for seed in (0..300).chain([377, 1062]) {
        let mut rng = Rng(seed + 10_000);
        let mut bad = all.clone();
        for _ in 0..=rng.below(3) {
            mutate(&mut rng, &mut bad);
        }
        let pool = target(rng.pick(&["off", "on"]));
        let is_taken = is_taken(&pool, &build(&header, &bad), seed, &mut rng, false);
        *(if is_taken { &mut taken } else { &mut refused }) += 1;
    }
    assert!(taken > 10 && refused > 30, "{taken} {refused}");
}
