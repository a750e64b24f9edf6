//! Versions of a database that share records: what that saves, what stays as it is, and what
//! becomes of them when they are changed, removed, sent, damaged, or cut off by a loss of power.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::common::databases::database;
use crate::common::meanwhile::{Meanwhile, Moment};
use crate::common::segments::{
    Files, GOAL, assert_changes_hold, assert_damage_is_reported, assert_holds, assert_parts_hold,
    change, compact, each_crash, empty_pool, file_at, optimize, pointers_at, pool_of, put,
    recorded, reopened, repack, sent, used,
};
use crate::common::{Rng, options, problems, read_all};
use hardpack_engine::device::{Device, MemoryDevice};
use hardpack_engine::pool::{
    Again, File, Fold, OptimizeStage, Options, Pool, Property, ROOT, SegmentGoal, StepLimits,
};
use hardpack_engine::store::{Durability, Patience};

const LEN: usize = 1 << 20;
const DAYS: usize = 8;
const PATIENT: Patience = Patience::Within(std::time::Duration::from_secs(10));

/// A database on several days: the last one was changed last.
fn days() -> Files {
    (0..DAYS).map(|day| (format!("day{day}").into_bytes(), database(5, LEN, day as u64))).collect()
}

#[test]
fn versions_share_the_records_that_they_nearly_repeat() {
    let small: &[_] = &[(Property::RecordSize, "16K"), (Property::Compression, "lz4")];
    let plain: &[_] = &[(Property::Compression, "off"), (Property::Dedup, "on")];
    for properties in [&[(Property::Dedup, "on")][..], &[], small, plain] {
        let files = days();
        let (device, pool) = pool_of(&files, properties);
        let newest = pointers_at(&pool, b"day7");
        let before = used(&pool);
        let report = optimize(&pool, GOAL);
        let saved = before - used(&pool);
        assert!(report.versions > 30, "{report:?}");
        assert!(report.versions_after * 8 < report.versions_before, "{report:?}");
        assert!(saved * 2 > before, "{saved} of {before}");
        assert_eq!((report.segments, report.damaged.len(), report.overtaken), (0, 0, 0));
        assert_eq!(report.compared_len, report.database_len);
        assert_eq!(pointers_at(&pool, b"day7"), newest, "the newest one has its own records");
        assert_holds(&pool, &files);
        assert_parts_hold(&pool, &files, 300);
        let again = optimize(&pool, SegmentGoal { again: Again::All, ..GOAL });
        assert_eq!((again.versions, again.versions_before), (0, 0), "{again:?}");
        compact(&pool);
        pool.close().unwrap();
        assert_holds(&reopened(&device), &files);
    }
}

/// What they have in common is there until the last one has gone.
#[test]
fn versions_come_and_go() {
    let mut files = days();
    let (_, pool) = pool_of(&files, &[(Property::Dedup, "on")]);
    optimize(&pool, GOAL);
    let all = used(&pool);
    let last = files.pop().unwrap();
    pool.remove_at(&last.0, 0).unwrap();
    assert_holds(&pool, &files);
    assert!(used(&pool) + 40_000 > all, "{} {all}", used(&pool));

    // The next one comes, and the last but one no longer keeps what it shares with nobody.
    for day in DAYS..DAYS + 3 {
        files.push((format!("day{day}").into_bytes(), database(5, LEN, day as u64)));
        put(&pool, &files.last().unwrap().0, &files.last().unwrap().1);
        let before = used(&pool);
        let report = optimize(&pool, GOAL);
        assert!(day == DAYS || report.versions > 0, "{report:?}");
        assert!(used(&pool) <= before);
        assert_holds(&pool, &files);
    }
    while files.len() > 1 {
        let (path, _) = files.remove(files.len() / 2);
        pool.remove_at(&path, 0).unwrap();
        assert_holds(&pool, &files);
    }
    pool.remove_at(&files[0].0, 0).unwrap();
    pool.remove_unused_dictionaries(PATIENT).unwrap();
    assert!(used(&pool) < 100_000, "{}", used(&pool));
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}

#[test]
fn versions_are_changed_like_any_file() {
    let mut files = days();
    let (device, pool) = pool_of(&files, &[]);
    assert!(optimize(&pool, GOAL).versions > 30);
    assert_changes_hold((&device, &pool), &mut files, (400, 50), &mut |round| match round {
        100 => drop(optimize(&pool, GOAL)),
        200 => drop(compact(&pool)),
        300 => drop(pool.fold(Fold::Due, &StepLimits::default(), &mut |_| true).unwrap()),
        _ => {}
    });
}

/// Folding frees nothing where others have the record below the patches, and takes a new one.
#[test]
fn what_is_shared_is_folded_when_it_is_due() {
    let mut files = days();
    let plain = [(Property::Compression, "zstd-3"), (Property::Filter, "none")];
    let (_, pool) = pool_of(&files, &plain);
    optimize(&pool, GOAL);
    let shared = used(&pool);
    let fold = |which| pool.fold(which, &StepLimits::default(), &mut |_| true).unwrap();
    fold(Fold::Due);
    fold(Fold::All);
    files.iter().for_each(|(path, _)| repack(&pool, path, Some("zstd-3")));
    assert!(used(&pool).abs_diff(shared) < 10_000, "{} {shared}", used(&pool));

    // Changes that take more than half of a record are due.
    let file = file_at(&pool, b"day2");
    for at in (0..LEN - 5000).step_by(20_000) {
        let new = Rng(at as u64).noise(3000);
        file.write_at(&new, at as u64).unwrap();
        files[2].1[at..at + 3000].copy_from_slice(&new);
    }
    file.commit(Durability::Visible).unwrap();
    let before = pool.state().stats().patches.records;
    assert!(fold(Fold::Due).rewritten > 3);
    assert!(pool.state().stats().patches.records < before);
    assert_holds(&pool, &files);
    // With another codec it is a record of its own.
    repack(&pool, b"day4", Some("zstd-6"));
    assert!(pointers_at(&pool, b"day4").iter().all(|pointer| pointer.level == 6));
    assert_holds(&pool, &files);
}

/// One in use that was changed since keeps what was changed.
#[test]
fn changes_before_an_optimisation_are_part_of_a_version() {
    let mut files = days();
    let (_, pool) = pool_of(&files, &[]);
    for file in [0, 3, 7] {
        for at in (5000..LEN).step_by(90_000) {
            change(&pool, &mut files[file], at, b"changed in place");
        }
    }
    let report = optimize(&pool, GOAL);
    assert!(report.versions > 30, "{report:?}");
    assert_holds(&pool, &files);
}

#[test]
fn snapshots_keep_what_they_hold() {
    let files = days();
    let (_, pool) = pool_of(&files, &[]);
    pool.create_snapshot(ROOT, b"s", 0).unwrap();
    let before = used(&pool);
    let report = optimize(&pool, GOAL);
    assert_eq!(report.versions, 0, "nothing would become free");
    assert!(report.held_len as usize > (DAYS - 1) * LEN / 2, "{report:?}");
    assert!(used(&pool) <= before + 20_000);
    pool.destroy_snapshot(ROOT, b"s").unwrap();
    let report = optimize(&pool, GOAL);
    assert!(report.versions > 30 && report.held_len == 0, "{report:?}");

    // A snapshot of the versions holds the patches as well.
    pool.create_snapshot(ROOT, b"t", 0).unwrap();
    for (path, _) in &files {
        pool.remove_at(path, 0).unwrap();
    }
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    pool.rollback(ROOT, b"t").unwrap();
    assert_holds(&pool, &files);
}

#[test]
fn other_databases_and_other_records_stay_as_they_are() {
    let (_, pool) = empty_pool(&[]);
    let mut files: Files = Vec::new();
    // Of other content, of other lengths of records, and other files.
    for seed in 0..6 {
        files.push((format!("other{seed}").into_bytes(), database(seed, LEN / 2, 0)));
    }
    files.push((b"sparse".to_vec(), [&database(9, 40_960, 0)[..], &vec![0; LEN]].concat()));
    files.push((b"short".to_vec(), database(11, 4096, 0)));
    files.iter().for_each(|(path, bytes)| drop(put(&pool, path, bytes)));
    pool.set_property(ROOT, Property::RecordSize, "16K").unwrap();
    files.push((b"records".to_vec(), database(5, LEN / 2, 1)));
    put(&pool, b"records", &files.last().unwrap().1);
    let before: Vec<_> = files.iter().map(|(path, _)| pointers_at(&pool, path)).collect();
    let report = optimize(&pool, GOAL);
    assert_eq!(report.versions, 0, "{report:?}");
    assert_eq!(report.compared_len, report.database_len);
    let after: Vec<_> = files.iter().map(|(path, _)| pointers_at(&pool, path)).collect();
    assert!(before == after);
    assert_holds(&pool, &files);
}

/// Versions that end within a record, before or behind the ends of others.
#[test]
fn lengths_stay_what_they_are() {
    let whole = database(3, 600_000, 0);
    let mut rng = Rng(2);
    let (_, pool) = empty_pool(&[(Property::Dedup, "on")]);
    let mut files: Files = Vec::new();
    for number in 0..30 {
        let mut bytes = whole.clone();
        bytes[24] = number;
        bytes.truncate(500_000 + rng.below(100_000) as usize);
        if rng.one_in(3) {
            bytes.resize(bytes.len() + rng.below(200_000) as usize, 0);
        }
        files.push((vec![b'a' + number], bytes));
        put(&pool, &files.last().unwrap().0, &files.last().unwrap().1);
    }
    let report = optimize(&pool, GOAL);
    assert!(report.versions > 20, "{report:?}");
    assert_holds(&pool, &files);
    // What lies behind the end is zero when a file becomes longer.
    for (path, bytes) in &mut files {
        bytes.resize(bytes.len() + 300_000, 0);
        let file = file_at(&pool, path);
        file.set_len(bytes.len() as u64).unwrap();
        file.commit(Durability::Visible).unwrap();
    }
    assert_holds(&pool, &files);
}

#[test]
fn versions_are_sent_and_cloned() {
    let mut files = days();
    let (_, pool) = pool_of(&files, &[(Property::Dedup, "on")]);
    optimize(&pool, GOAL);
    let shared = used(&pool);
    let (_, device, target, copied) = sent(&pool, &files);
    assert_holds(&target, &copied);
    target.close().unwrap();
    assert_holds(&reopened(&device), &copied);

    for (path, bytes) in files.clone() {
        let copy = [b"copy of ", &path[..]].concat();
        pool.clone_file(pool.resolve(&path).unwrap().file, ROOT, &copy, 0).unwrap();
        files.push((copy, bytes));
    }
    assert!(used(&pool) < shared + 100_000, "{} {shared}", used(&pool));
    // The clones hold all that their originals hold.
    assert_eq!(optimize(&pool, GOAL).versions, 0);
    assert_holds(&pool, &files);
}

#[test]
fn damage_is_told_of_all_that_share_it() {
    let files: Files = days().into_iter().take(4).collect();
    let (device, pool) = pool_of(&files, &[(Property::Dedup, "on")]);
    assert!(optimize(&pool, GOAL).versions > 10);
    compact(&pool);
    pool.close().unwrap();
    assert!(assert_damage_is_reported(&device, &files, 9973) > 10);
}

#[test]
fn what_cannot_be_read_is_left_alone() {
    let files = days();
    let (device, pool) = pool_of(&files, &[]);
    pool.close().unwrap();
    let mut found = 0;
    for at in (50_000..device.image().len()).step_by(200_003) {
        let mut image = device.image();
        image[at] ^= 4;
        let device = Arc::new(MemoryDevice::new(image));
        let Ok(pool) = Pool::open(device, Options::new(1 << 20)) else { continue };
        let lost = |pool: &Pool| -> Vec<bool> {
            files.iter().map(|(path, _)| read_all(&file_at(pool, path)).is_err()).collect()
        };
        let before = lost(&pool);
        let mut optimisation = pool.optimize(ROOT, GOAL).unwrap();
        let done = (|| {
            while optimisation.step()? {}
            Ok::<_, hardpack_engine::Error>(())
        })();
        // Damaged nodes end it.
        assert!(done.is_err() || optimisation.report().versions > 0, "byte {at}");
        assert_eq!(lost(&pool), before, "byte {at}");
        found += optimisation.report().damaged.len();
        for (path, bytes) in &files {
            if let Ok(read) = read_all(&file_at(&pool, path)) {
                assert!(read == *bytes);
            }
        }
    }
    assert!(found > 0);
}

#[test]
fn sharing_survives_loss_of_power() {
    let (mut with, mut without) = (0, 0);
    for seed in 0..3 {
        let files: Files = days().into_iter().take(5).collect();
        let (made, pool) = pool_of(&files, &[(Property::RecordSize, "64K")]);
        pool.close().unwrap();
        let (device, pool) = recorded(&made);
        optimize(&pool, GOAL);
        pool.remove_at(b"day4", 0).unwrap();
        optimize(&pool, GOAL);
        compact(&pool);
        each_crash(&made, &device, &mut Rng(seed), 3, &mut |_, pool| {
            let left = match pool.resolve(b"day4") {
                Err(_) => &files[..4],
                Ok(_) => &files[..],
            };
            assert_holds(pool, left);
            let patches = pool.state().stats().patches.records;
            *(if patches > 0 { &mut with } else { &mut without }) += 1;
        });
    }
    assert!(with > 10 && without > 2, "{with} {without}");
}

/// What happens between matching records and exchanging them.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Happens {
    Write,
    WriteToNewest,
    RewriteNewest,
    Shorten,
    Extend,
    Remove,
    RemoveNewest,
    Snapshot,
    Optimise,
}

impl Happens {
    /// Does it to a pool, with the file `b` or the newest one, `d`.
    fn act(self, pool: &Pool) {
        let change = |path: &[u8], change: &dyn Fn(&File)| {
            let file = file_at(pool, path);
            change(&file);
            file.commit(Durability::Visible).unwrap();
        };
        let write = |len: usize| move |file: &File| file.write_at(&vec![7; len], 300_000).unwrap();
        match self {
            Happens::Write => change(b"b", &write(20)),
            Happens::WriteToNewest => change(b"d", &write(20)),
            Happens::RewriteNewest => change(b"d", &write(300_000)),
            Happens::Shorten => change(b"b", &|file| file.set_len(300_000).unwrap()),
            Happens::Extend => change(b"b", &|file| file.set_len(900_000).unwrap()),
            Happens::Remove => pool.remove_at(b"b", 0).unwrap(),
            Happens::RemoveNewest => pool.remove_at(b"d", 0).unwrap(),
            Happens::Snapshot => drop(pool.create_snapshot(ROOT, b"s", 0).unwrap()),
            Happens::Optimise => assert!(optimize(pool, GOAL).versions > 0),
        }
    }

    /// Does it to what the files hold.
    fn expect(self, files: &mut Files) {
        match self {
            Happens::Write => files[1].1[300_000..300_020].fill(7),
            Happens::WriteToNewest => files[3].1[300_000..300_020].fill(7),
            Happens::RewriteNewest => files[3].1[300_000..600_000].fill(7),
            Happens::Shorten => files[1].1.truncate(300_000),
            Happens::Extend => files[1].1.resize(900_000, 0),
            Happens::Remove => drop(files.remove(1)),
            Happens::RemoveNewest => drop(files.remove(3)),
            Happens::Snapshot | Happens::Optimise => {}
        }
    }
}

#[test]
fn what_others_change_meanwhile_is_kept() {
    let all = [
        Happens::Write,
        Happens::WriteToNewest,
        Happens::RewriteNewest,
        Happens::Shorten,
        Happens::Extend,
        Happens::Remove,
        Happens::RemoveNewest,
        Happens::Snapshot,
        Happens::Optimise,
    ];
    for what in all {
        // So short that one transaction exchanges everything.
        let mut files: Files =
            (0..4).map(|day| (vec![b'a' + day], database(7, 700_000, u64::from(day)))).collect();
        let (made, pool) = pool_of(&files, &[]);
        pool.close().unwrap();
        let device = Meanwhile::on(Arc::new(MemoryDevice::new(made.image())));
        let open = || Pool::open(device.clone() as Arc<dyn Device>, options(4 << 20)).unwrap();
        let (pool, other) = (open(), open());
        let mut optimisation = pool.optimize(ROOT, GOAL).unwrap();
        while optimisation.stage() != OptimizeStage::Versions {
            assert!(optimisation.step().unwrap());
        }
        // The first step only looks at what they begin with.
        assert!(optimisation.step().unwrap());
        let acting = other.clone();
        device.at(Moment::Lock, move || what.act(&acting));
        while optimisation.step().unwrap() {}
        assert!(device.is_done(), "{what:?}");
        what.expect(&mut files);
        let report = optimisation.report();
        let (versions, overtaken) = (report.versions > 0, report.overtaken > 0);
        let expected = match what {
            // A small change becomes a patch, and the record below it is still there.
            Happens::WriteToNewest => (true, false),
            Happens::Snapshot => (false, false),
            Happens::Optimise | Happens::RemoveNewest => (false, true),
            _ => (true, true),
        };
        assert_eq!((versions, overtaken), expected, "{what:?}, {report:?}");
        assert_eq!(report.held_len > 0, what == Happens::Snapshot);
        assert_holds(&pool, &files);
        other.refresh().unwrap();
        assert_holds(&other, &files);
    }
}

/// What is compared may be removed, or rewritten in the place of what was freed, at any moment.
#[test]
fn versions_go_and_come_while_they_are_compared() {
    let files = days();
    let (_, pool) = pool_of(&files, &[(Property::RecordSize, "16K")]);
    let (is_done, mut shared) = (AtomicBool::new(false), 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = Rng(1);
            while !is_done.load(Ordering::Relaxed) {
                let (path, bytes) = &files[rng.below(DAYS as u64) as usize];
                pool.remove_at(path, 0).unwrap();
                put(&pool, path, bytes);
            }
        });
        let mut failed = None;
        for _ in 0..25 {
            let mut optimisation = pool.optimize(ROOT, GOAL).unwrap();
            let done = (|| {
                while optimisation.step()? {}
                Ok::<_, hardpack_engine::Error>(())
            })();
            let report = optimisation.report();
            shared += report.versions;
            if done.is_err() || !report.damaged.is_empty() {
                failed = Some((done, report.damaged.clone()));
                break;
            }
        }
        is_done.store(true, Ordering::Relaxed);
        assert!(failed.is_none(), "{failed:?}");
    });
    assert!(shared > 0);
    assert_holds(&pool, &files);
}
