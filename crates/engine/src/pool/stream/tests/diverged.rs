//! Two copies of one pool file that continued separately: they have the same guid and the same
//! txgs, but other content.

use std::sync::Arc;

use super::super::ReceiveOptions;
use super::chains::receive;
use super::trees::{assert_same, new_pool};
use crate::device::{Device, MemoryDevice};
use crate::error::{Error, Result};
use crate::pool::{Attributes, Kind, Pool, ROOT, ReceiveReport, ResumeToken, SendPlan};
use crate::store::Durability;
use crate::test_common::{Rng, options, problems};
use crate::units::FileId;

/// A pool with one file, and a copy made with the snapshot `s0`, both changed since.
struct Pair {
    pools: [Pool; 2],
    file: FileId,
}

fn write(pool: &Pool, file: FileId, seed: u64) {
    let open = pool.file(file).unwrap();
    open.write_at(&Rng(seed).noise(200_000), 0).unwrap();
    open.commit(Durability::Durable).unwrap();
}

fn pair() -> Pair {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let pool = new_pool(&device, 9, &[]);
    let file = pool.create_file_at(b"data", 0o600, 0).unwrap();
    let other = pool.create_file_at(b"other", 0o600, 0).unwrap();
    write(&pool, file, 1);
    write(&pool, other, 1);
    pool.create_snapshot(ROOT, b"s0", 0).unwrap();
    pool.close().unwrap();
    let mut image = vec![0; device.len().unwrap() as usize];
    assert_eq!(device.read_at(&mut image, 0).unwrap(), image.len());
    let open =
        |image: Vec<u8>| Pool::open(Arc::new(MemoryDevice::new(image)), options(1 << 20)).unwrap();
    let pools = [open(image.clone()), open(image)];
    for (pool, seed) in pools.iter().zip([10, 20]) {
        for (name, at) in [(&b"s1"[..], 1), (b"s2", 2)] {
            write(pool, file, seed + at);
            pool.create_snapshot(ROOT, name, at as i64).unwrap();
        }
    }
    let [a, b] = pools.each_ref().map(|pool| pool.snapshots().unwrap());
    let txgs = |all: &[crate::pool::SnapshotInfo]| all.iter().map(|s| s.txg).collect::<Vec<_>>();
    assert_eq!((pools[0].store().guid(), txgs(&a)), (pools[1].store().guid(), txgs(&b)));
    Pair { pools, file }
}

fn stream(
    pool: &Pool,
    scope: FileId,
    (from, to): (Option<&[u8]>, &[u8]),
    resume: Option<ResumeToken>,
) -> Result<Vec<u8>> {
    let base = from.map(|from| pool.open_snapshot(ROOT, from).unwrap());
    let snapshot = pool.open_snapshot(ROOT, to).unwrap();
    let base = base.as_ref();
    let plan = SendPlan { snapshot: &snapshot, base, scope, name: to, created_ns: 0, resume };
    let mut out = Vec::new();
    pool.send(&plan, &mut out, &mut |_| {}).map(|_| out)
}

fn target() -> Pool {
    new_pool(&(Arc::new(MemoryDevice::default()) as Arc<dyn Device>), 9, &[])
}

fn take(pool: &Pool, stream: &[u8]) -> Result<ReceiveReport> {
    receive(pool, stream, &ReceiveOptions { batch_len: 20_000, ..ReceiveOptions::default() })
}

#[test]
fn an_incremental_stream_wants_the_very_snapshot_that_it_starts_from() {
    let Pair { pools: [one, other], .. } = pair();
    let pool = target();
    take(&pool, &stream(&one, ROOT, (None, b"s0"), None).unwrap()).unwrap();
    let file = take(&pool, &stream(&one, ROOT, (Some(b"s0"), b"s1"), None).unwrap()).unwrap().file;
    let wrong = stream(&other, ROOT, (Some(b"s1"), b"s2"), None).unwrap();
    for force in [false, true] {
        let refused = receive(&pool, &wrong, &ReceiveOptions { force, ..Default::default() });
        assert!(matches!(refused, Err(Error::NotFound { .. })), "force {force}: {refused:?}");
        assert_same(&one.open_snapshot(ROOT, b"s1").unwrap(), ROOT, &pool, file, 0);
    }
    take(&pool, &stream(&one, ROOT, (Some(b"s1"), b"s2"), None).unwrap()).unwrap();
    assert_same(&one, ROOT, &pool, file, 0);
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}

/// A snapshot that both copies contain is the same in both.
#[test]
fn a_copy_goes_on_from_what_it_has_in_common() {
    let Pair { pools: [one, other], .. } = pair();
    let pool = target();
    take(&pool, &stream(&one, ROOT, (None, b"s0"), None).unwrap()).unwrap();
    let part = stream(&other, ROOT, (Some(b"s0"), b"s2"), None).unwrap();
    let file = take(&pool, &part).unwrap().file;
    assert_same(&other, ROOT, &pool, file, 0);
}

#[test]
fn a_stream_goes_on_only_from_the_pool_that_began_it() {
    let Pair { pools: [one, other], .. } = pair();
    for base in [None, Some(&b"s0"[..])] {
        let pool = target();
        if base.is_some() {
            take(&pool, &stream(&one, ROOT, (None, b"s0"), None).unwrap()).unwrap();
        }
        let whole = stream(&one, ROOT, (base, b"s1"), None).unwrap();
        take(&pool, &whole[..whole.len() * 2 / 3]).unwrap_err();
        let token = pool.receive_token(ROOT, b"copy").unwrap();
        assert!(token.is_some_and(|token| token.frames > 0));
        stream(&other, ROOT, (base, b"s1"), token).unwrap_err();
        // The complete stream of the other pool is a different stream, too.
        let all = stream(&other, ROOT, (base, b"s1"), None).unwrap();
        assert!(matches!(take(&pool, &all), Err(Error::Invalid(_))));
        let file = take(&pool, &stream(&one, ROOT, (base, b"s1"), token).unwrap()).unwrap().file;
        assert_same(&one.open_snapshot(ROOT, b"s1").unwrap(), ROOT, &pool, file, 0);
    }
}

/// Even within one snapshot, changes to one file do not apply to another.
#[test]
fn an_incremental_stream_is_of_the_same_file() {
    let Pair { pools: [one, _], file } = pair();
    let other = one.resolve(b"other").unwrap().file;
    let pool = target();
    take(&pool, &stream(&one, other, (None, b"s0"), None).unwrap()).unwrap();
    let wrong = stream(&one, file, (Some(b"s0"), b"s1"), None).unwrap();
    assert!(matches!(take(&pool, &wrong), Err(Error::NotFound { .. })));
}

/// The place, the name and the number of names of the target concern only the receiver.
#[test]
fn a_target_with_another_name_takes_what_follows() {
    let Pair { pools: [one, _], file } = pair();
    for scope in [ROOT, file] {
        for force in [false, true] {
            let pool = target();
            let copy = take(&pool, &stream(&one, scope, (None, b"s0"), None).unwrap()).unwrap();
            let like = Attributes::new(Kind::Directory, ROOT);
            let to = pool.edit(0, |edit| edit.create(ROOT, b"deep", &like)).unwrap();
            pool.edit(0, |edit| edit.rename((ROOT, b"copy"), (to, b"renamed"))).unwrap();
            if scope == file {
                pool.edit(0, |edit| edit.link(copy.file, ROOT, b"second")).unwrap();
            }
            let part = stream(&one, scope, (Some(b"s0"), b"s1"), None).unwrap();
            let options = ReceiveOptions { force, ..ReceiveOptions::default() };
            let received = pool.receive(to, b"renamed", &mut &part[..], &options, &mut |_| {});
            assert_eq!(received.unwrap().file, copy.file);
            let then = one.open_snapshot(ROOT, b"s1").unwrap();
            if scope == ROOT {
                assert_same(&then, scope, &pool, copy.file, 0);
            }
            assert_eq!(pool.resolve(b"deep/renamed").unwrap().file, copy.file);
            assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
        }
    }
}

#[test]
fn streams_may_follow_each_other_and_nothing_else_may() {
    let Pair { pools: [one, _], .. } = pair();
    let first = stream(&one, ROOT, (None, b"s0"), None).unwrap();
    let second = stream(&one, ROOT, (Some(b"s0"), b"s1"), None).unwrap();
    let (pool, mut options) = (target(), ReceiveOptions::default());
    let both = [&first[..], &second].concat();
    let mut input = &both[..];
    let report = pool.receive(ROOT, b"copy", &mut input, &options, &mut |_| {}).unwrap();
    assert_eq!((report.bytes, report.next), (first.len() as u64, Some(first.len() as u64)));
    options.behind = report.next;
    let report = pool.receive(ROOT, b"copy", &mut input, &options, &mut |_| {}).unwrap();
    assert_eq!((report.bytes, report.next), (second.len() as u64, None));
    assert_same(&one.open_snapshot(ROOT, b"s1").unwrap(), ROOT, &pool, report.file, 0);
    for garbage in [&b"x"[..], b"\n", b"hpkstr", &[0; 5000], &first[1..]] {
        let pool = target();
        let error = take(&pool, &[&first[..], garbage].concat()).unwrap_err().to_string();
        assert!(error.contains(&format!("byte {}", first.len())), "{error}");
        assert!(pool.lookup_in(ROOT, b"copy").unwrap().is_none());
    }
}

/// Nothing is left that would prevent receiving it again.
#[test]
fn what_was_received_and_destroyed_can_be_received_again() {
    let Pair { pools: [one, _], .. } = pair();
    let pool = target();
    take(&pool, &stream(&one, ROOT, (None, b"s0"), None).unwrap()).unwrap();
    let step = stream(&one, ROOT, (Some(b"s0"), b"s1"), None).unwrap();
    let file = take(&pool, &step).unwrap().file;
    let forced = || receive(&pool, &step, &ReceiveOptions { force: true, ..Default::default() });
    assert!(matches!(forced(), Err(Error::Exists { .. })));
    pool.destroy_snapshot(file, b"s1").unwrap();
    assert_eq!(forced().unwrap().file, file);
    assert_same(&one.open_snapshot(ROOT, b"s1").unwrap(), ROOT, &pool, file, 0);
    assert!(matches!(forced(), Err(Error::Exists { .. })));
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}
