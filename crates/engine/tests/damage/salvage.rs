//! Salvages damaged pools: whatever is done to an image, every recovered byte is right, or is
//! reported exactly as older or as lost.

use std::sync::Arc;

use crate::common::live::newest_superblock;
use crate::common::{Rng, create, create_options, only_file, options};
use hardpack_engine::Txg;
use hardpack_engine::device::{Device, MemoryDevice};
use hardpack_engine::pool::{
    Attributes, Fate, Fold, FoundBy, Kind, PART_LEN, Pool, Property, ROOT, Salvage, StepLimits,
};
use hardpack_engine::store::Durability;
use hardpack_engine::store::superblock::{
    BLOCK_LEN, EXTENTS_OFFSET, RING_OFFSET, SLOT_COUNT, slot_offset,
};
use hardpack_engine::store::tree::walk::{Met, walk_tree};
use hardpack_engine::store::trees::TreeId;

/// The granularity of fates, in bytes.
const UNIT_LEN: usize = 4096;

/// The history of a pool.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Workload {
    Records,
    Deltas,
    Dictionaries,
    Folded,
    Compacted,
}

const WORKLOADS: [Workload; 5] = [
    Workload::Records,
    Workload::Deltas,
    Workload::Dictionaries,
    Workload::Folded,
    Workload::Compacted,
];

/// An image with all states of its file.
struct Sample {
    image: Vec<u8>,
    states: Vec<(Txg, Vec<u8>)>,
}

impl Sample {
    fn new(workload: Workload, seed: u64) -> Sample {
        let device = Arc::new(MemoryDevice::default());
        let dynamic: Arc<dyn Device> = device.clone();
        let record_len = if workload == Workload::Dictionaries { "8K" } else { "16K" };
        let pool = create(&dynamic, &[(Property::RecordSize, record_len)], 32 << 20);
        let file = only_file(&pool).unwrap();
        let mut rng = Rng(seed);
        let mut sample = Sample { image: Vec::new(), states: vec![(Txg(0), Vec::new())] };
        // Only text: many leaves, and every byte shows where it belongs.
        let mut bytes = rng.text(4_200_000);
        bytes[1 << 20..(1 << 20) + 200_000].fill(0);
        file.write_at(&bytes, 0).unwrap();
        file.commit(Durability::Durable).unwrap();
        sample.states.push((pool.state().txg(), bytes.clone()));
        for round in 0..12 {
            for _ in 0..8 {
                let len = rng.pick(&[8, 60, 4096, 50_000]);
                let at = rng.below((bytes.len() - len) as u64) as usize;
                let at = if len >= 4096 { at & !4095 } else { at };
                let new = rng.text(len);
                file.read_at(&mut vec![0; len], at as u64).unwrap();
                file.write_at(&new, at as u64).unwrap();
                bytes[at..at + len].copy_from_slice(&new);
            }
            file.commit(Durability::Durable).unwrap();
            sample.states.push((pool.state().txg(), bytes.clone()));
            if workload == Workload::Folded && round % 4 == 3 {
                pool.fold(Fold::All, &StepLimits::default(), &mut |_| true).unwrap();
                sample.states.push((pool.state().txg(), bytes.clone()));
            }
        }
        if workload == Workload::Folded {
            file.write_at(b"and on", 77).unwrap();
            bytes[77..83].copy_from_slice(b"and on");
            file.commit(Durability::Durable).unwrap();
            sample.states.push((pool.state().txg(), bytes.clone()));
            pool.fold(Fold::All, &StepLimits::default(), &mut |_| true).unwrap();
            assert!(pool.state().superblock.roots[TreeId::Patches].is_none());
        }
        if workload == Workload::Compacted {
            let mut compaction = pool.compact();
            while compaction.step().unwrap() {}
        }
        pool.close().unwrap();
        sample.states.push((pool.state().txg(), bytes));
        sample.image = device.image();
        sample
    }

    /// Returns the content of a state.
    fn at(&self, txg: Txg) -> &[u8] {
        &self.states.iter().rev().find(|state| state.0 <= txg).expect("a known txg").1
    }
}

/// The number of bytes for each fate.
#[derive(Clone, Copy, Default, Debug)]
struct Tally {
    right: u64,
    older: u64,
    lost: u64,
}

fn open(image: Vec<u8>) -> hardpack_engine::Result<Salvage> {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(image));
    Salvage::open(device, &options(1 << 20), None, &mut |_| {})
}

/// Salvages an image, and compares everything recovered with the truth.
fn verify(sample: &Sample, image: Vec<u8>, label: &str) -> Option<(Salvage, Tally)> {
    let salvage = match open(image) {
        Ok(salvage) => salvage,
        Err(error) => {
            let is_expected = matches!(error, hardpack_engine::Error::NotAPool(_));
            assert!(is_expected, "{label}: {error:?}");
            return None;
        }
    };
    let expected = sample.at(salvage.state().txg());
    let mut tally = Tally::default();
    for file in salvage.files() {
        let len = file.attributes.len;
        if file.known_len.is_none() {
            assert_eq!(len, expected.len() as u64, "{label}");
        }
        for start in (0..len).step_by(PART_LEN as usize) {
            let part = salvage.read_part(file, start).unwrap();
            let mut at = start;
            for stretch in &part.stretches {
                assert_eq!(stretch.start, at, "{label}: a gap");
                at = stretch.end;
                let bytes =
                    &part.bytes[(stretch.start - start) as usize..(stretch.end - start) as usize];
                let range = stretch.start as usize..stretch.end as usize;
                match stretch.fate {
                    Fate::Right => {
                        tally.right += bytes.len() as u64;
                        assert!(bytes == &expected[range.clone()], "{label}: wrong at {range:?}");
                    }
                    Fate::Lost => {
                        tally.lost += bytes.len() as u64;
                        assert!(bytes.iter().all(|byte| *byte == 0), "{label}: {range:?}");
                    }
                    Fate::Older(txg) => {
                        tally.older += bytes.len() as u64;
                        check_older(sample, txg, range.start, bytes, label);
                    }
                }
            }
            assert_eq!(at, (start + PART_LEN).min(len), "{label}: the file ends too early");
        }
    }
    Some((salvage, tally))
}

/// Checks that each older unit was so in some state up to the reported one, or in the next: a large
/// transaction writes ahead of its commit.
fn check_older(sample: &Sample, txg: Txg, start: usize, bytes: &[u8], label: &str) {
    let later = sample.states.iter().map(|(txg, _)| *txg).filter(|state| *state >= txg);
    let last = later.min().unwrap_or(txg);
    for (index, unit) in bytes.chunks(UNIT_LEN).enumerate() {
        let at = start + index * UNIT_LEN;
        let is_there = |state: &(Txg, Vec<u8>)| {
            state.0 <= last && state.1.get(at..at + unit.len()) == Some(unit)
        };
        assert!(sample.states.iter().any(is_there), "{label}: byte {at} never was so at {txg}");
    }
}

fn zero(image: &[u8], start: usize, end: usize) -> Vec<u8> {
    let mut image = image.to_vec();
    let end = end.min(image.len());
    image[start.min(end)..end].fill(0);
    image
}

#[test]
fn a_whole_pool_comes_out_whole() {
    for workload in WORKLOADS {
        let sample = Sample::new(workload, 1);
        let (salvage, tally) = verify(&sample, sample.image.clone(), "whole").unwrap();
        assert_eq!((tally.older, tally.lost), (0, 0), "{workload:?}");
        assert_eq!(salvage.found_by(), FoundBy::Superblock);
        assert_eq!(salvage.files()[0].name.as_deref(), Some("main"));
        assert!(salvage.has_header() && salvage.lost_node_count() == 0);
    }
}

/// Without superblocks the newest state is still found, exactly: patches of a tree that was emptied
/// since, and older roots, still exist but are not taken for live.
#[test]
fn lost_superblocks_and_header_lose_nothing() {
    for workload in WORKLOADS {
        let sample = Sample::new(workload, 2);
        let ring = RING_OFFSET as usize..EXTENTS_OFFSET as usize;
        for start in [ring.start, 0] {
            let image = zero(&sample.image, start, ring.end);
            let label = format!("{workload:?}, zeros from {start}");
            let (salvage, tally) = verify(&sample, image, &label).unwrap();
            assert_eq!((tally.older, tally.lost), (0, 0), "{label}: {tally:?}");
            assert_eq!(salvage.found_by(), FoundBy::Search, "{label}");
            let newest = newest_superblock(&sample.image).unwrap().1;
            // Every commit writes one sector for this, or two if there are many windows.
            let record = newest.roots[TreeId::Roots].as_ref().expect("a tree of roots");
            assert!(record.stored_len <= 1024, "{label}: {} bytes", record.stored_len);
            // The last superblock may only say that the one before is durable.
            assert!(salvage.state().txg().0 + 1 >= newest.txg.0, "{label}");
        }
        let image = zero(&sample.image, 0, BLOCK_LEN);
        let (salvage, tally) = verify(&sample, image, "no header").unwrap();
        assert_eq!((tally.older, tally.lost), (0, 0), "{workload:?} without a header");
        assert!(!salvage.has_header() && salvage.found_by() == FoundBy::Superblock);
    }
}

#[test]
fn some_lost_superblocks_lose_nothing() {
    let sample = Sample::new(Workload::Deltas, 3);
    let mut image = sample.image.clone();
    for lost in 1..=SLOT_COUNT {
        let (slot, _) = newest_superblock(&image).unwrap();
        image[slot_offset(slot) as usize + 100] ^= 1;
        let (_, tally) = verify(&sample, image.clone(), &format!("{lost} lost")).unwrap();
        assert_eq!((tally.older, tally.lost), (0, 0), "{lost} superblocks lost: {tally:?}");
    }
}

/// A search finds the leaves below a lost root. The leaves of the map are known to be current;
/// whether there were more patches, nobody can say.
#[test]
fn each_lost_root() {
    for workload in WORKLOADS {
        let sample = Sample::new(workload, 4);
        let (_, superblock) = newest_superblock(&sample.image).unwrap();
        for tree in TreeId::ALL {
            let Some(root) = &superblock.roots[tree] else { continue };
            let run = root.run(hardpack_engine::Ashift::MIN).unwrap();
            let (start, end) = (run.start.0 as usize * 512, run.end().0 as usize * 512);
            let label = format!("{workload:?}, root of {tree}");
            let (salvage, tally) =
                verify(&sample, zero(&sample.image, start, end), &label).unwrap();
            let total = sample.states.last().unwrap().1.len() as u64;
            match tree {
                TreeId::Space | TreeId::Freed | TreeId::Roots => {
                    assert_eq!(tally.right, total, "{label}: {tally:?}")
                }
                // One leaf: only an older one is left, with the length at that time.
                TreeId::Names => assert!(tally.right > total * 9 / 10, "{label}: {tally:?}"),
                TreeId::Map => assert!(tally.right > total / 2, "{label}: {tally:?}"),
                TreeId::Patches => assert!(tally.lost < total / 10, "{label}: {tally:?}"),
                TreeId::Dictionaries => {}
                _ => unreachable!(),
            }
            assert_eq!(salvage.found_by(), FoundBy::Superblock);
        }
    }
}

#[test]
fn the_front_is_overwritten() {
    for workload in WORKLOADS {
        let sample = Sample::new(workload, 5);
        for end in [64 << 10, 256 << 10, 1 << 20] {
            let image = zero(&sample.image, 0, end);
            verify(&sample, image, &format!("{workload:?}, front {end}"));
        }
    }
}

#[test]
fn truncated_pools() {
    for workload in WORKLOADS {
        let sample = Sample::new(workload, 6);
        for eighths in 1..8 {
            let image = sample.image[..sample.image.len() * eighths / 8].to_vec();
            verify(&sample, image, &format!("{workload:?}, {eighths} eighths"));
        }
    }
}

#[test]
fn random_damage() {
    let count = crate::common::env_number("HARDPACK_SALVAGE_ROUNDS").unwrap_or(12);
    for workload in WORKLOADS {
        let sample = Sample::new(workload, 7);
        let mut hurt = 0;
        for seed in 0..count {
            let mut rng = Rng(seed + 1000);
            let mut image = sample.image.clone();
            for _ in 0..rng.pick(&[1, 5, 40]) {
                let at = rng.below(image.len() as u64) as usize;
                match rng.below(3) {
                    0 => image[at] ^= 1 << rng.below(8),
                    1 => image = zero(&image, at & !511, (at & !511) + 512),
                    _ => image = zero(&image, at, at + rng.below(60_000) as usize),
                }
            }
            if rng.one_in(3) {
                image = zero(&image, 0, EXTENTS_OFFSET as usize);
            }
            let label = format!("{workload:?}, seed {seed}");
            if let Some((_, tally)) = verify(&sample, image, &label) {
                hurt += u64::from(tally.lost + tally.older > 0);
            }
        }
        assert!(hurt > count / 3, "{workload:?}: only {hurt} of {count} were hurt");
    }
}

/// Older pools have no tree of roots: without a superblock nothing can count as current.
#[test]
fn a_pool_of_version_1_without_superblocks_is_a_guess() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/v1.hpk");
    let image = std::fs::read(path).unwrap();
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(image.clone()));
    let pool = Pool::open(device, options(1 << 20)).unwrap();
    let truth = crate::common::read_all(&only_file(&pool).unwrap()).unwrap();
    let salvage = open(zero(&image, 0, EXTENTS_OFFSET as usize)).unwrap();
    assert_eq!(salvage.found_by(), FoundBy::Guess);
    let [file] = salvage.files() else { panic!("{:?}", salvage.files()) };
    assert_eq!((file.name.as_deref(), file.attributes.len), (Some("main"), truth.len() as u64));
    let part = salvage.read_part(file, 0).unwrap();
    let mut found = 0;
    for stretch in part.stretches {
        assert_ne!(stretch.fate, Fate::Right, "nothing is certain");
        let range = stretch.start as usize..stretch.end as usize;
        if stretch.fate != Fate::Lost {
            found += range.len();
            assert!(part.bytes[range.clone()] == truth[range], "{stretch:?}");
        }
    }
    assert!(found > truth.len() / 2, "{found} of {} bytes", truth.len());
}

/// What an entry says of a directory or a link counts where their attributes are lost.
#[test]
fn directories_and_links_without_attributes_are_no_files() {
    let device = Arc::new(MemoryDevice::default());
    let pool =
        Pool::create(device.clone() as Arc<dyn Device>, &create_options(9, &[]), options(1 << 20))
            .unwrap();
    // Everything in one commit: there are no older nodes to take what is lost from.
    pool.edit(0, |edit| {
        for number in 0..40 {
            let like = |kind| Attributes::new(kind, ROOT);
            let name = |what: &str| format!("{what}{number:02}").into_bytes();
            let directory = edit.create(ROOT, &name("d"), &like(Kind::Directory))?;
            edit.symlink(directory, &name("l"), b"target", &like(Kind::Symlink))?;
            for file in b'0'..=b'9' {
                edit.create(directory, &[b'f', file], &like(Kind::File))?;
            }
        }
        Ok(())
    })
    .unwrap();
    pool.close().unwrap();
    let (image, state) = (device.image(), pool.state());
    let root = state.superblock.roots[TreeId::Names].as_ref().unwrap();
    let mut nodes = Vec::new();
    walk_tree(pool.store(), TreeId::Names, root, Txg(0), &mut |met| {
        if let Met::Node(_, pointer) = met {
            nodes.push(pool.store().offset_of(pointer) as usize);
        }
        Ok(())
    })
    .unwrap();
    assert!(nodes.len() > 3, "{nodes:?}");
    let (mut directories, mut links) = (0, 0);
    for node in &nodes[1..] {
        let salvage = open(zero(&image, *node, node + 512)).unwrap();
        for file in salvage.files().iter().filter(|file| !file.path.is_empty()) {
            let letter = file.path.last().unwrap()[0];
            assert_ne!(letter, b'd', "a directory became a file: {file:?}");
            assert_eq!(letter == b'l', file.attributes.kind == Kind::Symlink, "{file:?}");
            links += usize::from(file.known_len.is_some() && file.target.is_some());
        }
        directories += salvage.directories().len();
    }
    assert!(links > 0 && directories > 0, "{links} links, {directories} directories");
}
