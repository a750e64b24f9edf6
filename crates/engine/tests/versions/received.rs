//! Versions of a database that are stored as differences, in pools that receive them: what is there
//! already is not kept twice, whatever became of it.

use std::collections::HashSet;
use std::sync::Arc;

use crate::common::databases::counting_database;
use crate::common::segments::{
    Files, GOAL, assert_holds, below_copy, empty_pool, file_at, open, optimize, pointers,
    pointers_at, pool_of, put, reopened, repack, stream_of, used,
};
use crate::common::{problems, read_all};
use hardpack_engine::FileId;
use hardpack_engine::device::{Device, MemoryDevice};
use hardpack_engine::pool::{Pool, Property, ROOT, ReceiveOptions};
use hardpack_engine::store::Patience;
use hardpack_engine::store::pointer::Pointer;

const LEN: usize = 600_000;
/// Of more records than are kept prepared in memory.
const LONG: usize = 1_600_000;
const DAYS: u64 = 5;
const PATIENT: Patience = Patience::Within(std::time::Duration::from_secs(10));

/// A database on several days: the last one was changed last.
fn days(len: usize) -> Files {
    let day = |day: u64| (format!("day{day}").into_bytes(), counting_database(5, len, day));
    (0..DAYS).map(day).collect()
}

fn receive(target: &Pool, stream: &[u8], options: &ReceiveOptions<'_>) {
    target.receive(ROOT, b"copy", &mut &stream[..], options, &mut |_| {}).unwrap();
}

/// How many bases a pool has, and how many of them are records of its first snapshot.
fn bases_of(pool: &Pool, scope: FileId) -> (usize, usize) {
    let kept = pool.open_snapshot(scope, b"one").unwrap();
    let records: HashSet<_> = pointers(&kept).iter().map(Pointer::extent_key).collect();
    let bases = pool.store().bases_in(&pool.state()).unwrap();
    let shared = bases.values().filter(|base| records.contains(&base.extent_key()));
    (bases.len(), shared.count())
}

/// What has become a base since the last stream comes once more, and is taken from the record that
/// is there, even if this stream removes it.
#[test]
fn records_that_became_bases_are_not_kept_twice() {
    // Streams are applied with their records read then, or staged before.
    for (dedup, batch_len) in [("off", 1 << 30), ("on", 0), ("off", 0)] {
        for is_removed in [false, true] {
            let mut files = days(LEN);
            // The newest comes first, from which the others are to differ.
            let newest = files.split_off(files.len() - 1);
            let (_, pool) = pool_of(&newest, &[]);
            let (_, target) = empty_pool(&[(Property::Dedup, dedup)]);
            let copy = || target.resolve(b"copy").unwrap().file;
            let receive = |name: &[u8], base: Option<&[u8]>| {
                pool.create_snapshot(ROOT, name, 0).unwrap();
                let options = ReceiveOptions { batch_len, ..ReceiveOptions::default() };
                receive(&target, &stream_of(&pool, name, base), &options);
            };
            receive(b"one", None);
            files.iter().for_each(|(path, bytes)| drop(put(&pool, path, bytes)));
            assert!(optimize(&pool, GOAL).version_differences > 8);
            match is_removed {
                true => pool.remove_at(&newest[0].0, 0).unwrap(),
                false => files.extend(newest),
            }
            receive(b"two", Some(b"one"));
            let (of_source, of_target) = (bases_of(&pool, ROOT), bases_of(&target, copy()));
            assert!(of_source.1 > 3, "{of_source:?}");
            assert_eq!(of_source, of_target, "{dedup} {batch_len} {is_removed}");
            assert!(used(&target) < used(&pool) + 30_000, "{} {}", used(&target), used(&pool));
            assert_holds(&target, &below_copy(&files));
            assert_eq!(problems(&target).unwrap(), Vec::<String>::new());
            // The bases come once more, and are there.
            put(&pool, b"day0 again", &files[1].1);
            optimize(&pool, GOAL);
            receive(b"three", Some(b"two"));
            assert_eq!(bases_of(&target, copy()), of_target);
            assert_holds(&target, &below_copy(&files));
        }
    }
}

/// A base comes before its own record, and can be found by its bytes after that.
#[test]
fn received_bases_are_found_by_their_bytes() {
    let mut files = days(LEN);
    let (_, pool) = pool_of(&files, &[]);
    assert!(optimize(&pool, GOAL).version_differences > 8);
    pool.create_snapshot(ROOT, b"s", 0).unwrap();
    let (device, target) = empty_pool(&[(Property::Dedup, "on")]);
    let stream = stream_of(&pool, b"s", None);
    receive(&target, &stream, &ReceiveOptions::default());
    files = below_copy(&files);
    for day in [0, DAYS as usize - 1] {
        let (before, again) = (used(&target), format!("day{day} again").into_bytes());
        put(&target, &again, &files[day].1);
        assert!(used(&target) < before + 8000, "day {day}: {} {before}", used(&target));
        files.push((again, files[day].1.clone()));
    }
    assert_holds(&target, &files);
    assert_eq!(problems(&target).unwrap(), Vec::<String>::new());
    target.close().unwrap();
    assert_holds(&reopened(&device), &files);
}

/// How maintenance of a copy makes its bases go away.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Gone {
    Repacked,
    Removed,
}

/// Makes a pool with differences, and another that has received them.
fn pair(len: usize) -> (Files, Pool, Arc<MemoryDevice>) {
    let files = days(len);
    let (_, pool) = pool_of(&files, &[]);
    assert!(optimize(&pool, GOAL).version_differences > 8);
    pool.create_snapshot(ROOT, b"one", 0).unwrap();
    let (device, target) = empty_pool(&[]);
    receive(&target, &stream_of(&pool, b"one", None), &ReceiveOptions::default());
    target.close().unwrap();
    (files, pool, device)
}

/// A receive rolls the copy back first, which brings bases back; and the stream brings them again.
#[test]
fn bases_that_a_rollback_brings_back_are_used() {
    for gone in [Gone::Repacked, Gone::Removed] {
        for is_looked_for in [false, true] {
            let (mut files, pool, device) = pair(LONG);
            let target = open(&device);
            for (path, _) in below_copy(&files) {
                match gone {
                    Gone::Repacked => repack(&target, &path, Some("lz4")),
                    Gone::Removed => target.remove_at(&path, 0).unwrap(),
                }
            }
            target.remove_unused_dictionaries(PATIENT).unwrap();
            let bases = |pool: &Pool| pool.store().bases_in(&pool.state()).unwrap();
            assert_eq!(bases(&target).len(), 0);
            target.close().unwrap();
            let target = open(&device);
            if is_looked_for {
                for day in 0..3 {
                    let bytes = counting_database(77, 300_000, day);
                    put(&target, format!("own{day}").as_bytes(), &bytes);
                }
                assert!(optimize(&target, GOAL).version_differences > 0);
            }
            let file = pool.resolve(b"day0").unwrap().file;
            pool.clone_file(file, ROOT, b"later", 0).unwrap();
            files.push((b"later".to_vec(), files[0].1.clone()));
            pool.create_snapshot(ROOT, b"two", 0).unwrap();
            let force = gone == Gone::Removed;
            let options = ReceiveOptions { force, ..ReceiveOptions::default() };
            receive(&target, &stream_of(&pool, b"two", Some(b"one")), &options);
            let mut sums = HashSet::new();
            for base in bases(&target).values() {
                let sum = base.extent_key().unwrap().checksum;
                assert!(sums.insert(sum), "{gone:?} {is_looked_for}: twice");
            }
            assert_holds(&target, &below_copy(&files));
            assert_eq!(problems(&target).unwrap(), Vec::<String>::new());
        }
    }
}

/// A stream brings a base whole that is damaged here: what it brings can be read.
#[test]
fn a_damaged_base_is_replaced_by_the_one_of_the_stream() {
    for (dedup, from) in [("off", "day4"), ("on", "day4"), ("off", "day0"), ("on", "day0")] {
        let (files, pool, device) = pair(LEN);
        let target = open(&device);
        target.set_property(ROOT, Property::Dedup, dedup).unwrap();
        let damaged = pointers_at(&target, b"copy/day4")[1].clone();
        let at = damaged.run(target.store().ashift()).unwrap().start.0 * 512 + 100;
        target.close().unwrap();
        let mut byte = [0];
        device.read_at(&mut byte, at).unwrap();
        device.write_at(&[byte[0] ^ 4], at).unwrap();
        let target = open(&device);
        // The record that is the base itself, or one that differs from it.
        let entry = pool.resolve(from.as_bytes()).unwrap();
        pool.clone_file(entry.file, ROOT, b"later", 0).unwrap();
        pool.create_snapshot(ROOT, b"two", 0).unwrap();
        let stream = stream_of(&pool, b"two", Some(b"one"));
        receive(&target, &stream, &ReceiveOptions::default());
        let expected = &files.iter().find(|(path, _)| *path == from.as_bytes()).unwrap().1;
        let found = read_all(&file_at(&target, b"copy/later")).unwrap();
        assert!(found == *expected, "dedup={dedup}, {from}");
        assert!(read_all(&file_at(&target, b"copy/day4")).is_err(), "nobody mended it");
    }
}
