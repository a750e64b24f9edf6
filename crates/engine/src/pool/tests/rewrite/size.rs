//! How much a commit folds, how large small updates make a pool, and how accurate estimates of a
//! repack are.

use std::sync::Arc;

use super::{Fixture, finish_repack, settings};
use crate::device::{Device, MemoryDevice};
use crate::pool::write::fold_budget;
use crate::pool::{Fold, Options, Pool, Property, StepLimits};
use crate::store::trees::TreeId;
use crate::store::{Durability, Patience};
use crate::test_common::{Rng, create_options, only_file, problems, read_all};

/// Creates a pool whose cache holds all of these files, so that deltas can be made.
fn create_cached(device: &Arc<dyn Device>, properties: &[(Property, &str)]) -> Pool {
    let options = Options { threads: Some(1), ..Options::new(64 << 20) };
    Pool::create(Arc::clone(device), &create_options(9, properties), options).unwrap()
}

#[test]
fn a_commit_folds_no_more_than_its_budget() {
    let (count, span) = (256, 32 << 10);
    let text = Rng(21).text(count * span);
    let mut fixture = Fixture::new(21, &[(Property::RecordSize, "32K")], text);
    // Two pages of noise take more than half of a record's stored length.
    for page in [1, 3] {
        for record in 0..count {
            let at = record * span + page * 4096;
            let noise = fixture.rng.noise(4096);
            fixture.file.write_at(&noise, at as u64).unwrap();
            fixture.bytes[at..at + 4096].copy_from_slice(&noise);
        }
        fixture.file.commit(Durability::Visible).unwrap();
    }
    // All records are due now. Each commit folds its share of the records it changes, in order.
    let mut left = count;
    for round in 0..3 {
        let before = fixture.pool.state().txg();
        for record in 0..count {
            let at = record * span + 5 * 4096 + round;
            fixture.file.write_at(b"x", at as u64).unwrap();
            fixture.bytes[at] = b'x';
        }
        fixture.file.commit(Durability::Visible).unwrap();
        let records = fixture.file_extents(TreeId::Map);
        let folded = records.iter().filter(|record| record.pointer.birth > before).count();
        let allowed = fold_budget((count * 4096) as u64) as usize / span;
        assert_eq!(allowed, 24);
        assert_eq!(folded, allowed, "round {round}");
        left -= folded;
    }
    fixture.assert_whole();
    // The rest is left to maintenance.
    let done = fixture.pool.fold(Fold::Due, &StepLimits::default(), &mut |_| true).unwrap();
    // One or two were so small that they were folded earlier.
    assert!((left - 4..=left).contains(&(done.rewritten as usize)), "{left}: {done:?}");
    let limits = StepLimits::default();
    assert_eq!(fixture.pool.fold(Fold::Due, &limits, &mut |_| true).unwrap().rewritten, 0);
    fixture.assert_whole();
}

/// Many small updates leave a pool that is hardly larger, and one fold makes it as small as if
/// everything had been written at once.
#[test]
fn small_edits_do_not_make_a_pool_grow() {
    const EDITS: usize = 30_000;
    let mut rng = Rng(22);
    let mut bytes = rng.text(12 << 20);
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let pool = create_cached(&device, &[]);
    let file = only_file(&pool).unwrap();
    file.write_at(&bytes, 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    let before = device.len().unwrap();
    for edit in 0..EDITS {
        let len = rng.pick(&[4, 8, 20]);
        let at = rng.below((bytes.len() - len) as u64) as usize;
        let new = rng.text(len);
        file.write_at(&new, at as u64).unwrap();
        bytes[at..at + len].copy_from_slice(&new);
        if edit % 10 == 9 {
            file.commit(Durability::Durable).unwrap();
        }
    }
    let after = device.len().unwrap();
    let stats = *pool.state().stats();
    let held = stats.data().allocated + stats.nodes.allocated;
    println!("{before} bytes became {after}, of which {held} are in use; {:?}", stats.patches);
    // Every page has changed about ten times. The patches of a record take less than half of its
    // own size, and the sectors freed by deltas are reused once an eighth of the pool is free.
    assert!(stats.patches.records > 2500, "{:?}", stats.patches);
    assert!(held as f64 <= 1.35 * before as f64, "{before} bytes became {held}");
    assert!(after as f64 <= 1.7 * before as f64, "{before} bytes became {after}");
    assert!(read_all(&file).unwrap() == bytes);

    pool.fold(Fold::All, &StepLimits::default(), &mut |_| true).unwrap();
    pool.store().make_durable().unwrap();
    assert_eq!(pool.state().stats().patches.records, 0);
    let other: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let fresh = create_cached(&other, &[]);
    let copy = only_file(&fresh).unwrap();
    copy.write_at(&bytes, 0).unwrap();
    copy.commit(Durability::Durable).unwrap();
    let stored = [&pool, &fresh].map(|pool| pool.state().stats().data().stored);
    println!("stored {stored:?}");
    assert!(stored[0] as f64 <= 1.05 * stored[1] as f64, "{stored:?}");
    assert!(read_all(&file).unwrap() == bytes);
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}

/// Returns regions of very different lengths that compress well, badly or not at all.
fn uneven(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < len {
        let part = rng.pick(&[30_000, 200_000, 900_000]);
        match rng.below(4) {
            0 => bytes.extend(rng.noise(part)),
            1 => bytes.extend(rng.text(part / 64).repeat(64)),
            2 => {
                for _ in 0..part / 32 {
                    bytes.extend(rng.noise(12));
                    bytes.extend(b"a field of a row, ");
                }
            }
            _ => bytes.extend(rng.text(part)),
        }
    }
    bytes.truncate(len);
    bytes
}

#[test]
fn an_estimate_tells_what_a_repack_comes_to() {
    // Six of the longest records.
    const SAMPLE_LEN: u64 = 6 << 20;
    let mut worst: f64 = 0.0;
    for (seed, goal, record_size) in
        [(31, "zstd-9", "128K"), (32, "gzip-1", "32K"), (33, "lz4", "1M"), (34, "off", "128K")]
    {
        let mut rng = Rng(seed);
        let bytes = uneven(&mut rng, 12 << 20);
        let properties = [(Property::Compression, "zstd-1")];
        let mut fixture = Fixture::new(seed, &properties, bytes);
        let pages: Vec<usize> = (0..200).map(|_| rng.below(3072) as usize).collect();
        fixture.edit(&pages, 30);
        let goal = settings(&[(Property::Compression, goal), (Property::RecordSize, record_size)]);
        let (pool, id) = (&fixture.pool, fixture.file.id());
        let (txg, patches) = (pool.state().txg(), fixture.file_extents(TreeId::Patches));
        let found = pool.estimate_repack(id, goal, SAMPLE_LEN, None, &mut |_| true).unwrap();
        assert_eq!(pool.state().txg(), txg, "an estimate changes nothing");
        assert_eq!(fixture.file_extents(TreeId::Patches), patches);
        assert!(
            (SAMPLE_LEN - (1 << 20)..SAMPLE_LEN + (2 << 20)).contains(&found.sampled_len),
            "{found:?}"
        );
        let mut repack = pool.begin_repack(id, goal, Patience::None).unwrap();
        let done = finish_repack(pool, &mut repack, &StepLimits::default());
        assert_eq!(done.stored_before, found.stored_now, "{found:?}");
        let off = found.stored_then as f64 / done.stored_after as f64 - 1.0;
        println!(
            "seed {seed}: {} estimated, {} found: {off:+.3}",
            found.stored_then, done.stored_after
        );
        worst = worst.max(off.abs());
        fixture.assert_whole();
        // Nothing is left to estimate except raw records, which may always be tried again.
        let again = fixture.pool.estimate_repack(id, goal, 1 << 20, None, &mut |_| true).unwrap();
        assert!(again.rewrite_len < found.rewrite_len, "{again:?}");
    }
    assert!(worst < 0.15, "an estimate was off by {worst:.3}");
}
