//! Hostile: streams with differences whose frames were changed.

use std::sync::Arc;

use super::{frame_starts, new_pool};
use crate::codec::Compression;
use crate::device::{Device, MemoryDevice};
use crate::error::Result;
use crate::pool::stream::body::{At, Body, travelling};
use crate::pool::{Again, Pool, Property, ROOT, ReceiveOptions, SegmentGoal, SendPlan};
use crate::store::Durability;
use crate::store::format::pointer::{Place, Pointer};
use crate::store::trees::TreeId;
use crate::test_common::{Rng, options, problems};
use crate::units::FileId;

fn version(number: u64) -> Vec<u8> {
    let mut bytes = Rng(1000 + number).text(1000 + 300 * number as usize);
    bytes.extend(Rng(1).noise(60_000));
    bytes.extend(Rng(500 + number).text(5_000));
    bytes
}

fn put(pool: &Pool, path: &[u8], bytes: &[u8]) {
    let file = pool.file(pool.create_file_at(path, 0o644, 0).unwrap()).unwrap();
    file.write_at(bytes, 0).unwrap();
    file.commit(Durability::Durable).unwrap();
}

fn optimize(pool: &Pool, again: Again) {
    let goal =
        SegmentGoal { compression: Compression::Zstd(3), len: 150_000, again, inflate: false };
    let mut optimisation = pool.optimize(ROOT, goal).unwrap();
    while optimisation.step().unwrap() {}
}

fn stream(pool: &Pool, name: &[u8], base: Option<&[u8]>) -> Vec<u8> {
    let base = base.map(|base| pool.open_snapshot(ROOT, base).unwrap());
    let plan = SendPlan {
        snapshot: &pool.open_snapshot(ROOT, name).unwrap(),
        base: base.as_ref(),
        scope: ROOT,
        name,
        created_ns: 0,
        resume: None,
    };
    let mut out = Vec::new();
    pool.send(&plan, &mut out, &mut |_| {}).unwrap();
    out
}

fn source() -> Pool {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let pool = new_pool(&device, 9, &[]);
    for n in 0..8 {
        put(&pool, format!("v{n}").as_bytes(), &version(n));
    }
    optimize(&pool, Again::No);
    pool.create_snapshot(ROOT, b"one", 0).unwrap();
    pool
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

fn build(header: &[u8], bodies: &[Body]) -> Vec<u8> {
    use std::hash::Hasher;
    let mut out = header.to_vec();
    for (number, body) in bodies.iter().enumerate() {
        let body = match body {
            Body::End { .. } => {
                Body::End { frames: number as u64, hash: *blake3::hash(&out).as_bytes() }
            }
            other => other.clone(),
        };
        let (tag, payload) = body.encode();
        let mut hasher = twox_hash::XxHash3_64::new();
        hasher.write(&(number as u64).to_le_bytes());
        hasher.write(&[tag]);
        hasher.write(&payload);
        out.push(tag);
        out.extend((payload.len() as u32).to_le_bytes());
        out.extend(payload);
        out.extend(hasher.finish().to_le_bytes());
    }
    out
}

fn target(dedup: &str) -> Pool {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    new_pool(&device, 9, &[(Property::Dedup, dedup)])
}

fn receive(pool: &Pool, mut stream: &[u8], batch_len: usize, force: bool) -> Result<()> {
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
    let (header, mut all) = bodies(&stream(&source, b"one", None));
    let base = base_at(&all);
    let number = number_of(&all[base]);
    let file = match &all[base + 1] {
        Body::FileExtent { at, .. } | Body::Shared { at, .. } => at.file,
        _ => panic!(),
    };
    all.insert(base + 1, Body::Uses { file, number });
    let pool = target("off");
    let received = receive(&pool, &build(&header, &all), 0, false);
    println!("{received:?}");
    if received.is_ok() {
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
        for n in 0..8 {
            let path = format!("copy/v{n}");
            let file = pool.file(pool.resolve(path.as_bytes()).unwrap().file).unwrap();
            let mut rng = Rng(n);
            file.write_at(&rng.text(4096), 4096).unwrap();
            let written = file.commit(Durability::Durable);
            println!("{path}: {written:?}");
            written.unwrap();
        }
    }
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

fn mutate(rng: &mut Rng, all: &mut Vec<Body>, first: usize) {
    let numbers: Vec<u32> = {
        let mut n: Vec<u32> = all
            .iter()
            .filter_map(|body| match body {
                Body::FileExtent { at, .. } | Body::Shared { at, .. } => at.base(),
                _ => None,
            })
            .collect();
        n.extend([1, 2, u32::MAX]);
        n
    };
    let mut ats = Vec::new();
    let mut pointers = Vec::new();
    for body in all.iter() {
        if let Body::FileExtent { at, pointer, .. } | Body::Shared { at, pointer, .. } = body {
            ats.push(*at);
            pointers.push(travelling(pointer));
        }
    }
    let interesting: Vec<usize> = all
        .iter()
        .enumerate()
        .filter(|(_, b)| matches!(b, Body::FileExtent { .. } | Body::Shared { .. }))
        .map(|(i, _)| i)
        .filter(|i| *i >= first)
        .collect();
    let at = rng.pick(&interesting);
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
            let file = ats[0].file;
            let number = rng.pick(&numbers);
            all.insert(at, Body::Dictionary { number, bytes: rng.text(500) });
            let _ = file;
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
            Body::FileExtent { at, pointer, stored } => {
                match rng.below(3) {
                    0 => fuzz_at(rng, at, &numbers, &ats),
                    _ => fuzz_pointer(rng, pointer, &numbers, &pointers),
                }
                let _ = stored;
            }
            Body::Shared { at, pointer, of } => match rng.below(4) {
                0 => fuzz_at(rng, at, &numbers, &ats),
                1 => fuzz_at(rng, of, &numbers, &ats),
                _ => fuzz_pointer(rng, pointer, &numbers, &pointers),
            },
            _ => {}
        },
    }
}

fn try_one(pool: &Pool, bad: &[u8], seed: u64, rng: &mut Rng, incremental: bool) -> bool {
    let begun = std::time::Instant::now();
    let result = receive(pool, bad, rng.pick(&[0, 1, 20_000]), incremental && rng.one_in(2));
    let took = begun.elapsed();
    assert!(took.as_secs() < 5, "seed {seed}: {took:?}");
    let what = |result: &Result<()>| match result {
        Ok(()) => "ok".into(),
        Err(e) => e.to_string(),
    };
    let found = problems(pool).unwrap();
    assert_eq!(found, Vec::<String>::new(), "seed {seed}: {}", what(&result));
    let is_ok = result.is_ok();
    if let Err(error) = &result {
        if std::env::var_os("SHOW").is_some() {
            println!("{seed}: {error}");
        }
        assert!(!matches!(error, crate::error::Error::Internal(_)), "seed {seed}: {error}");
        let _ = pool.abort_receive(ROOT, b"copy").unwrap();
        assert_eq!(problems(pool).unwrap(), Vec::<String>::new(), "seed {seed}, given up");
    }
    pool.remove_unused_dictionaries(crate::store::Patience::None).unwrap();
    assert_eq!(
        problems(pool).unwrap(),
        Vec::<String>::new(),
        "seed {seed}, unused: {}",
        what(&result)
    );
    let mut compaction = pool.compact();
    while compaction.step().unwrap() {}
    assert_eq!(
        problems(pool).unwrap(),
        Vec::<String>::new(),
        "seed {seed}, compacted: {}",
        what(&result)
    );
    if is_ok {
        let mut goal = pool
            .optimize(
                ROOT,
                SegmentGoal {
                    compression: Compression::Zstd(1),
                    len: 150_000,
                    again: Again::All,
                    inflate: false,
                },
            )
            .unwrap();
        while goal.step().unwrap() {}
        assert_eq!(problems(pool).unwrap(), Vec::<String>::new(), "seed {seed}, optimised");
    }
    is_ok
}

#[test]
fn mutated_frames_do_no_harm() {
    let source = source();
    let (header, all) = bodies(&stream(&source, b"one", None));
    assert!(receive(&target("off"), &build(&header, &all), 0, false).is_ok());
    let (mut taken, mut refused) = (0, 0);
    for seed in 0..700 {
        let mut rng = Rng(seed);
        let mut bad = all.clone();
        for _ in 0..=rng.below(3) {
            mutate(&mut rng, &mut bad, 0);
        }
        let pool = target(rng.pick(&["off", "on"]));
        match try_one(&pool, &build(&header, &bad), seed, &mut rng, false) {
            true => taken += 1,
            false => refused += 1,
        }
    }
    println!("taken {taken} refused {refused}");
}

#[test]
fn mutated_frames_of_incremental_streams_do_no_harm() {
    let source = source();
    let first = stream(&source, b"one", None);
    for n in 8..12 {
        put(&source, format!("v{n}").as_bytes(), &version(n));
    }
    optimize(&source, Again::Related);
    source.remove_at(b"v1", 0).unwrap();
    source.create_snapshot(ROOT, b"two", 0).unwrap();
    let (header, all) = bodies(&stream(&source, b"two", Some(b"one")));
    base_at(&all);
    let (mut taken, mut refused) = (0, 0);
    for seed in 0..300 {
        let mut rng = Rng(seed);
        let mut bad = all.clone();
        for _ in 0..rng.below(4) {
            mutate(&mut rng, &mut bad, 0);
        }
        let pool = target(rng.pick(&["off", "on"]));
        receive(&pool, &first, 0, false).unwrap();
        match try_one(&pool, &build(&header, &bad), seed, &mut rng, true) {
            true => taken += 1,
            false => refused += 1,
        }
    }
    println!("taken {taken} refused {refused}");
    let _ = options(1);
}

/// Each incremental stream brings the base once more.
#[test]
fn incremental_streams_bring_the_base_again() {
    let source = source();
    let pool = target("off");
    receive(&pool, &stream(&source, b"one", None), 0, false).unwrap();
    let mut last = b"one".to_vec();
    for n in 8..14 {
        put(&source, format!("v{n}").as_bytes(), &version(n));
        optimize(&source, Again::Related);
        let name = format!("s{n}").into_bytes();
        source.create_snapshot(ROOT, &name, 0).unwrap();
        let bytes = stream(&source, &name, Some(&last));
        receive(&pool, &bytes, 0, false).unwrap();
        last = name;
        let used = |pool: &Pool| {
            pool.store().make_durable().unwrap();
            pool.state().used_sectors(pool.store().ashift()) << 9
        };
        println!("{n}: stream {} source {} target {}", bytes.len(), used(&source), used(&pool));
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    }
}
