//! Chains of incremental streams.

use std::sync::Arc;

use super::trees::{Tree, assert_same, grow, new_pool};
use crate::device::{Device, MemoryDevice};
use crate::error::{Error, Result};
use crate::pool::{
    Fold, Pool, Property, ROOT, ReceiveOptions, ReceiveReport, ResumeToken, SendPlan, StepLimits,
};
use crate::store::Durability;
use crate::store::trees::TreeId;
use crate::test_common::databases::counting_database;
use crate::test_common::segments::{empty_pool, file_at, put, stream_of};
use crate::test_common::{Rng, problems, read_all};
use crate::units::FileId;

const NAMES: [&[u8]; 4] = [b"s0", b"s1", b"s2", b"s3"];

/// A pool with snapshots of one scope.
pub struct Chain {
    pub pool: Pool,
    pub scope: FileId,
}

pub fn chain(seed: u64, whole: bool) -> Chain {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let pool = new_pool(&device, 9, &[]);
    let (mut tree, mut rng) = (Tree::default(), Rng(seed));
    grow(&pool, &mut tree, &mut rng, 70);
    // The scope should be large enough to move files around in it.
    let scope = match whole {
        true => ROOT,
        false => tree.directories.get(1).copied().unwrap_or(ROOT),
    };
    for (index, name) in NAMES.into_iter().enumerate() {
        if pool.attributes(scope).is_err() {
            break;
        }
        pool.create_snapshot(scope, name, index as i64).unwrap();
        let count = 5 + rng.below(40) as usize;
        grow(&pool, &mut tree, &mut rng, count);
    }
    Chain { pool, scope }
}

impl Chain {
    fn count(&self) -> usize {
        self.pool.snapshots().unwrap().len()
    }

    pub fn open(&self, index: usize) -> Pool {
        self.pool.open_snapshot(self.scope, NAMES[index]).unwrap()
    }

    pub fn stream(&self, from: Option<usize>, to: usize, resume: Option<ResumeToken>) -> Vec<u8> {
        let (base, snapshot) = (from.map(|from| self.open(from)), self.open(to));
        let plan = SendPlan {
            snapshot: &snapshot,
            base: base.as_ref(),
            scope: self.scope,
            name: NAMES[to],
            created_ns: to as i64,
            resume,
        };
        let mut out = Vec::new();
        let report = self.pool.send(&plan, &mut out, &mut |_| {}).unwrap();
        assert_eq!(report.bytes, out.len() as u64);
        assert_eq!(self.pool.measure_send(&plan).unwrap(), report);
        out
    }
}

fn target(seed: u64) -> Pool {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let settings: [&[(Property, &str)]; 3] = [
        &[],
        &[(Property::Compression, "lz4"), (Property::Checksum, "blake3")],
        &[(Property::Dedup, "on")],
    ];
    new_pool(&device, if seed.is_multiple_of(2) { 12 } else { 9 }, settings[seed as usize % 3])
}

pub fn receive(pool: &Pool, mut stream: &[u8], options: &ReceiveOptions) -> Result<ReceiveReport> {
    pool.receive(ROOT, b"copy", &mut stream, options, &mut |_| {})
}

fn take(pool: &Pool, stream: &[u8]) -> Result<ReceiveReport> {
    receive(pool, stream, &ReceiveOptions { batch_len: 20_000, ..ReceiveOptions::default() })
}

#[test]
fn each_snapshot_of_a_chain_is_the_same_elsewhere() {
    for seed in 0..12 {
        let chain = chain(seed, seed % 3 == 0);
        let pool = target(seed);
        let mut received = Vec::new();
        for index in 0..chain.count() {
            let stream = chain.stream(index.checked_sub(1), index, None);
            let report = take(&pool, &stream).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            received.push(report.file);
            assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "seed {seed}, {index}");
            assert_same(&chain.open(index), chain.scope, &pool, report.file, seed);
            let again = take(&pool, &stream);
            assert!(matches!(again, Err(Error::Exists { .. })), "seed {seed}: {again:?}");
        }
        for (index, file) in received.iter().enumerate() {
            assert_eq!(*file, received[0], "seed {seed}: it is another directory");
            let kept = pool.open_snapshot(*file, NAMES[index]).unwrap();
            assert_same(&chain.open(index), chain.scope, &kept, *file, seed);
        }
        assert_eq!(problems(&chain.pool).unwrap(), Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn what_did_not_change_is_not_sent() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let pool = new_pool(&device, 9, &[]);
    let mut rng = Rng(100);
    grow(&pool, &mut Tree::default(), &mut rng, 200);
    pool.create_snapshot(ROOT, b"s0", 0).unwrap();
    let first = pool.list().unwrap()[0].clone();
    pool.edit(0, |edit| edit.set_xattr(first.file, b"user.a", b"b")).unwrap();
    pool.create_snapshot(ROOT, b"s1", 1).unwrap();
    let small = Chain { pool, scope: ROOT };
    let (whole, part) = (small.stream(None, 1, None).len(), small.stream(Some(0), 1, None).len());
    assert!(part < 500 && whole > 20 * part, "{part} of {whole}");
}

#[test]
fn what_is_there_already_is_shared_where_that_is_wanted() {
    let chain = chain(150, true);
    let stream = chain.stream(None, 0, None);
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let pool = new_pool(&device, 9, &[(Property::Dedup, "on")]);
    let first = take(&pool, &stream).unwrap().file;
    let (before, mut input) = (pool.state().stats().shared.logical, &stream[..]);
    let options = ReceiveOptions::default();
    let second = pool.receive(ROOT, b"second", &mut input, &options, &mut |_| {}).unwrap().file;
    assert!(pool.state().stats().shared.logical > before);
    assert_same(&chain.open(0), chain.scope, &pool, first, 150);
    assert_same(&chain.open(0), chain.scope, &pool, second, 150);
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}

#[test]
fn a_cut_incremental_stream_changes_nothing_and_goes_on() {
    let mut given_up = 0;
    for seed in [200, 201, 203] {
        let chain = chain(seed, seed % 3 == 0);
        if chain.count() < 2 {
            continue;
        }
        let stream = chain.stream(Some(0), 1, None);
        let mut rng = Rng(seed);
        for _ in 0..6 {
            let cut = rng.below(stream.len() as u64) as usize;
            let pool = target(seed);
            let file = take(&pool, &chain.stream(None, 0, None)).unwrap().file;
            take(&pool, &stream[..cut]).unwrap_err();
            assert_same(&chain.open(0), chain.scope, &pool, file, seed);
            assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "seed {seed}, cut {cut}");
            let token = pool.receive_token(ROOT, b"copy").unwrap();
            take(&pool, &chain.stream(Some(0), 1, token)).unwrap();
            assert_same(&chain.open(1), chain.scope, &pool, file, seed);
            assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "seed {seed}, cut {cut}");
        }
        let pool = target(seed);
        take(&pool, &chain.stream(None, 0, None)).unwrap();
        let before = pool.state().stats().data();
        take(&pool, &stream[..stream.len() - 10]).unwrap_err();
        // A stream may consist of nothing but its end.
        let is_kept = pool.receive_token(ROOT, b"copy").unwrap().is_some();
        given_up += usize::from(is_kept);
        assert_eq!(pool.abort_receive(ROOT, b"copy").unwrap(), is_kept, "seed {seed}");
        assert_eq!(pool.state().stats().data(), before, "seed {seed}");
    }
    assert!(given_up > 0);
}

#[test]
fn a_target_that_was_changed_is_refused_unless_forced() {
    for seed in [300, 301, 303, 304] {
        let chain = chain(seed, seed % 3 == 0);
        if chain.count() < 2 {
            continue;
        }
        let pool = target(seed);
        let file = take(&pool, &chain.stream(None, 0, None)).unwrap().file;
        let (mut rng, mut tree) = (Rng(seed), Tree::default());
        tree.directories.push(file);
        grow(&pool, &mut tree, &mut rng, 20);
        let stream = chain.stream(Some(0), 1, None);
        let refused = take(&pool, &stream);
        assert!(matches!(refused, Err(Error::Invalid(_))), "seed {seed}: {refused:?}");
        assert_eq!(pool.receive_token(ROOT, b"copy").unwrap(), None, "seed {seed}");
        receive(&pool, &stream, &ReceiveOptions { force: true, ..ReceiveOptions::default() })
            .unwrap();
        assert_same(&chain.open(1), chain.scope, &pool, file, seed);
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn records_that_were_only_written_anew_are_no_change() {
    let mut folded = 0;
    for seed in [400, 402, 403] {
        let chain = chain(seed, true);
        let pool = target(seed);
        let file = take(&pool, &chain.stream(None, 0, None)).unwrap().file;
        let limits = StepLimits::default();
        folded += pool.fold(Fold::All, &limits, &mut |_| true).unwrap().rewritten;
        take(&pool, &chain.stream(Some(0), 1, None)).unwrap();
        assert_same(&chain.open(1), chain.scope, &pool, file, seed);
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "seed {seed}");
    }
    assert!(folded > 0);
}

/// A record is removed only after the patches over it, and if these are the same as before.
#[test]
fn a_patch_over_a_record_that_was_written_anew() {
    let old = counting_database(5, 200_000, 1);
    let (_, source) = empty_pool(&[]);
    let file = put(&source, b"f", b"");
    let (_, pool) = empty_pool(&[]);
    let mut last = None;
    for (name, compression) in [(b"one", "zstd-1"), (b"two", "zstd-9")] {
        source.set_property(file.id(), Property::Compression, compression).unwrap();
        let mut bytes = old.clone();
        for (at, new) in [(0, &old[..]), (70_000, b"a small change")] {
            file.write_at(new, at as u64).unwrap();
            file.commit(Durability::Visible).unwrap();
            bytes[at..at + new.len()].copy_from_slice(new);
        }
        assert!(source.state().superblock.roots[TreeId::Patches].is_some());
        source.create_snapshot(ROOT, name, 0).unwrap();
        let base = last.replace(name).map(|name| &name[..]);
        take(&pool, &stream_of(&source, name, base)).unwrap();
        assert_eq!(read_all(&file_at(&pool, b"copy/f")).unwrap(), bytes);
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    }
}

#[test]
fn a_fold_leaves_what_is_being_received() {
    let chain = chain(450, true);
    let stream = chain.stream(None, 0, None);
    let pool = target(450);
    take(&pool, &stream[..stream.len() * 9 / 10]).unwrap_err();
    assert!(pool.state().stats().patches.records > 0);
    let step = pool.fold(Fold::All, &StepLimits::default(), &mut |_| true).unwrap();
    assert_eq!(step.rewritten, 0);
    let file = take(&pool, &stream).unwrap().file;
    assert_same(&chain.open(0), chain.scope, &pool, file, 450);
}

#[test]
fn a_stream_without_its_base_is_refused() {
    let chain = chain(503, true);
    let pool = target(503);
    let stream = chain.stream(Some(0), 1, None);
    assert!(matches!(take(&pool, &stream), Err(Error::NotFound { .. })));
    pool.create_file_at(b"copy", 0, 0).unwrap();
    assert!(matches!(take(&pool, &stream), Err(Error::NotFound { .. })));
    let pool = target(503);
    let file = take(&pool, &chain.stream(None, 0, None)).unwrap().file;
    let later = chain.stream(Some(1), 2, None);
    assert!(matches!(take(&pool, &later), Err(Error::NotFound { .. })));
    pool.rename_snapshot(file, b"s0", b"kept").unwrap();
    take(&pool, &stream).unwrap();
    pool.destroy_snapshot(file, b"s1").unwrap();
    assert!(matches!(take(&pool, &later), Err(Error::NotFound { .. })));
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}

#[test]
fn uncommitted_changes_are_in_the_way() {
    let chain = chain(600, true);
    let pool = target(600);
    let file = take(&pool, &chain.stream(None, 0, None)).unwrap().file;
    let mut some = None;
    pool.walk(file, &mut |_, entry, _| {
        some = some.or((entry.kind == crate::pool::Kind::File).then_some(entry.file));
        Ok(true)
    })
    .unwrap();
    let open = pool.file(some.unwrap()).unwrap();
    open.write_at(b"mine", 0).unwrap();
    let stream = chain.stream(Some(0), 1, None);
    assert!(matches!(take(&pool, &stream), Err(Error::Busy)));
    open.discard();
    take(&pool, &stream).unwrap();
    assert_same(&chain.open(1), chain.scope, &pool, file, 600);
    open.commit(Durability::Visible).unwrap();
}
