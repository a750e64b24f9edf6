//! Passing superblocks: many who wait for one sync, what failed syncs lose, and losses of power.

use std::ops::Range;
use std::path::Path;
use std::sync::mpsc::Sender;
use std::sync::{Arc, mpsc};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use crate::common::sim_device::{Disk, Op, SimDevice};
use crate::common::watched::{Process, hasty, lose_newest, world};
use crate::common::{Rng, create, only_file, options, problems, read_all};
use hardpack_engine::Error;
use hardpack_engine::device::{Device, FileDevice};
use hardpack_engine::pool::Pool;
use hardpack_engine::store::Durability;
use hardpack_engine::store::checksum::ChecksumKind;
use hardpack_engine::store::superblock::{EXTENTS_OFFSET, RING_OFFSET};

/// Longer than any machine needs.
const LONG: Duration = Duration::from_secs(60);
const DIRTY_LEN_MAX: usize = 1 << 20;

/// Returns the image after a power loss that leaves what the last sync made durable, and of what
/// was written since what lies where `keeps` says.
fn crash(base: &[u8], trace: &[Op], keeps: impl Fn(u64) -> bool) -> Vec<u8> {
    let mut disk = Disk::new(base.to_vec());
    trace.iter().for_each(|op| disk.apply(op));
    disk.crash_keeping(keeps)
}

/// A large commit makes the state before it durable, although its superblock is passing, and reuses
/// what that has freed. If the power is lost before any later superblock reaches the medium, the
/// passing one is all that is left, so it must stay until a later one is durable.
#[test]
fn a_passing_state_that_a_large_commit_has_made_durable_stays() {
    const RING: Range<u64> = RING_OFFSET..EXTENTS_OFFSET;
    const PART_LEN: usize = 64 << 10;
    const PART_COUNT: usize = 64;
    let mut rng = Rng(1);
    let mut content = rng.noise(PART_COUNT * PART_LEN);
    let sim = SimDevice::new(Vec::new());
    let device: Arc<dyn Device> = sim.clone();
    let pool = create(&device, &[], DIRTY_LEN_MAX);
    pool.store().lower_anchor_count_max(1);
    let file = only_file(&pool).unwrap();
    file.write_at(&content, 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    let durable = pool.state().txg();
    let base = sim.image();
    sim.take_trace();
    let mut commit = |part: usize| {
        let new = rng.noise(PART_LEN);
        file.write_at(&new, (part % PART_COUNT * PART_LEN) as u64).unwrap();
        file.commit(Durability::Visible).unwrap();
        new
    };
    // Until a commit has made the state before it durable.
    let mut passing = pool.state();
    for part in 0.. {
        let new = commit(part);
        if pool.state().durable_txg() > durable {
            break;
        }
        passing = pool.state();
        content[part % PART_COUNT * PART_LEN..][..PART_LEN].copy_from_slice(&new);
    }
    assert!(passing.superblock.passing && pool.state().durable_txg() == passing.txg());
    (0..PART_COUNT).for_each(|part| drop(commit(part)));
    let trace = sim.take_trace();
    // What follows makes nothing durable.
    let syncs = trace.iter().filter(|op| matches!(op, Op::Sync)).count();
    assert_eq!(syncs, 1);
    drop((file, pool));

    let image = crash(&base, &trace, |offset| !RING.contains(&offset));
    let sim = SimDevice::new(image.clone());
    let pool = Pool::open(sim.clone(), options(DIRTY_LEN_MAX)).unwrap();
    assert_eq!(pool.state().txg(), passing.txg());
    let file = only_file(&pool).unwrap();
    assert!(read_all(&file).unwrap() == content);
    let superblocks = || pool.store().superblocks().unwrap();
    let mut count = 0;
    // Until its superblock is gone, if it ever is.
    while superblocks().iter().any(|superblock| superblock.txg == passing.txg()) && count < 20 {
        file.write_at(&[count], 4096).unwrap();
        file.commit(Durability::Visible).unwrap();
        count += 1;
    }
    let trace = sim.take_trace();
    drop((file, pool));

    // Of all that, only superblocks reach the medium.
    let image = crash(&image, &trace, |offset| RING.contains(&offset));
    let pool = Pool::open(SimDevice::new(image), options(DIRTY_LEN_MAX)).unwrap();
    let found = pool.state().txg();
    let file = only_file(&pool).unwrap();
    let bytes = read_all(&file).map(|bytes| bytes.len());
    assert!(
        found >= passing.txg(),
        "after {:?}, {found:?} is opened, read as {bytes:?}, and check finds {:?}",
        passing.txg(),
        problems(&pool).map(|problems| problems.len())
    );
    let found = read_all(&file).unwrap();
    assert!(found[..4096] == content[..4096] && found[8192..] == content[8192..]);
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}

/// Who opens a pool whose newest superblock is passing makes that durable for its first
/// transaction, also if it then changes nothing. What it says to be durable stays, although another
/// process, which has the pool open for longer, goes on.
#[test]
fn a_passing_state_that_was_made_durable_at_opening_stays() {
    let sim = SimDevice::new(Vec::new());
    let device: Arc<dyn Device> = sim.clone();
    drop(create(&device, &[], DIRTY_LEN_MAX));
    let live = Pool::open(sim.handle(), options(DIRTY_LEN_MAX)).unwrap();
    live.store().lower_anchor_count_max(1);
    let file = only_file(&live).unwrap();
    let commit = |byte: u8| {
        file.write_at(&[byte; 9], 0).unwrap();
        file.commit(Durability::Visible).unwrap();
    };
    while !live.state().superblock.passing {
        commit(1);
    }
    commit(2);
    let base = sim.image();
    sim.take_trace();
    let late = Pool::open(sim.handle(), options(DIRTY_LEN_MAX)).unwrap();
    assert!(late.state().superblock.passing);
    drop(late.store().begin(ChecksumKind::default()).unwrap());
    late.store().make_durable().unwrap();
    let mut disk = Disk::new(base);
    sim.take_trace().iter().for_each(|op| disk.apply(op));
    for count in 0..20 {
        commit(3 + count);
        sim.take_trace().iter().for_each(|op| disk.apply(op));
        // Of all that follows, only superblocks reach the medium.
        let image = disk.crash_keeping(|offset| (RING_OFFSET..EXTENTS_OFFSET).contains(&offset));
        let found = Pool::open(SimDevice::new(image).handle(), options(DIRTY_LEN_MAX)).unwrap();
        let mut bytes = [0; 9];
        only_file(&found).unwrap().read_at(&mut bytes, 0).unwrap();
        assert!(bytes[0] >= 2, "after {count} more commits, {} is found", bytes[0]);
        assert_eq!(problems(&found).unwrap(), Vec::<String>::new());
    }
}

/// More commits wait for a sync than the ring has slots: all of them are visible at once, and two
/// syncs make all of them durable, the one in progress and the next.
#[test]
fn any_number_of_commits_share_a_sync() {
    let (dir, all) = world::<20>();
    let leader = &all[0];
    let txg = leader.txg();
    let (begun, is_begun) = mpsc::channel();
    let (go, may_go) = mpsc::channel::<()>();
    leader.device.at_sync(move |file| {
        begun.send(()).unwrap();
        // Also if the test fails.
        let _ = may_go.recv();
        file.sync_data()
    });
    let before: u64 = all.iter().map(|process| process.device.sync_count()).sum();
    std::thread::scope(|scope| {
        let all = &all;
        let commit = |page: usize| move || all[page].commit(page as u64, 1, Durability::Durable);
        let first = scope.spawn(commit(0));
        is_begun.recv().unwrap();
        let mut running = vec![first];
        // On a busy machine somebody may have waited so long that it syncs, too.
        let mut was_passing = false;
        for page in 1..all.len() {
            running.push(scope.spawn(commit(page)));
            while leader.txg() <= txg + page as u64 {
                std::thread::yield_now();
            }
            was_passing |= leader.pool.state().superblock.passing;
        }
        assert!(was_passing, "there was room for all of them");
        drop(go);
        running.into_iter().for_each(|commit| commit.join().unwrap().unwrap());
    });
    let after: u64 = all.iter().map(|process| process.device.sync_count()).sum();
    assert!(after - before <= 3, "{} syncs", after - before);
    let found = Process::open(&dir.path().join("pool.hpk"));
    (0..all.len() as u64).for_each(|page| assert_eq!(found.byte(page), 1));
    assert_eq!(problems(&found.pool).unwrap(), Vec::<String>::new());
}

/// Who waits with a passing superblock writes one that stays if nobody else does, also if whoever
/// had begun to sync is gone.
#[test]
fn a_passing_commit_becomes_durable_by_itself() {
    let (dir, [stuck]) = world();
    let path = dir.path().join("pool.hpk");
    let one = hasty(&path);
    assert!(stuck.device.try_sync_turn().unwrap());
    one.commit(1, 1, Durability::Visible).unwrap();
    one.commit(1, 2, Durability::Visible).unwrap();
    let other = hasty(&path);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| other.commit(2, 3, Durability::Durable));
        while !one.pool.refresh().unwrap() {
            std::thread::yield_now();
        }
        assert!(one.pool.state().superblock.passing);
        // Who syncs would say that it is durable, but need not keep its superblock.
        assert_eq!(stuck.device.last_awaited(one.txg()).unwrap(), None);
        stuck.device.end_sync_turn();
        waits.join().unwrap().unwrap();
    });
    let newest = other.pool.state();
    assert!(!newest.superblock.passing && newest.durable_txg() == newest.txg());
    // Nobody lets go of the turn.
    assert!(stuck.device.try_sync_turn().unwrap());
    one.commit(1, 4, Durability::Visible).unwrap();
    one.commit(1, 5, Durability::Durable).unwrap();
    let found = Process::open(&path);
    assert_eq!((found.byte(1), found.byte(2)), (5, 3));
    assert_eq!(problems(&found.pool).unwrap(), Vec::<String>::new());
}

/// What a sync in progress will make durable stays in the ring, whatever its own process commits.
#[test]
fn the_superblock_that_is_written_for_all_stays_while_it_is_synced() {
    let (dir, [_]) = world();
    let one = hasty(&dir.path().join("pool.hpk"));
    // Nothing else has to stay then.
    one.commit(1, 9, Durability::Durable).unwrap();
    (0..3).for_each(|byte| one.commit(1, byte, Durability::Visible).unwrap());
    let (begun, is_begun) = mpsc::channel();
    let (go, may_go) = mpsc::channel::<()>();
    one.device.at_sync(move |file| {
        begun.send(()).unwrap();
        // Also if the test fails.
        let _ = may_go.recv();
        file.sync_data()
    });
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| one.commit(2, 3, Durability::Durable));
        is_begun.recv().unwrap();
        let anchor = one.pool.state();
        assert!(!anchor.superblock.passing);
        (0..20).for_each(|byte| one.commit(1, byte, Durability::Visible).unwrap());
        let ring = one.pool.store().superblocks().unwrap();
        assert!(ring.iter().any(|superblock| *superblock == *anchor.superblock), "{ring:?}");
        drop(go);
        waits.join().unwrap().unwrap();
    });
}

/// The author of a durable commit to page 2, of the byte 2, is stopped while it waits, and a failed
/// sync loses that state. Others open the pool, go on, and show greater numbers as durable; then
/// `then` is called with one of them, and the author goes on with `go_on`. Returns what it is told.
fn lost_while_it_waits(
    path: &Path,
    (stuck, author): (&Process, &Process),
    is_passing: bool,
    then: impl FnOnce(Process, Sender<()>, &ScopedJoinHandle<'_, Result<(), Error>>) -> Option<Process>,
) -> Result<(), Error> {
    assert!(stuck.device.try_sync_turn().unwrap());
    let (stopped, is_stopped) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel::<()>();
    author.device.at_pause(move || {
        stopped.send(()).unwrap();
        let _ = goes_on.recv();
    });
    std::thread::scope(|scope| {
        let commit = scope.spawn(|| author.commit(2, 2, Durability::Durable));
        is_stopped.recv().unwrap();
        assert_eq!(author.pool.state().superblock.passing, is_passing);
        // As the system tells each who has the file open.
        author.device.lose();
        lose_newest(path, &author.pool);
        stuck.device.end_sync_turn();
        let opener = Process::open(path);
        assert_eq!(opener.byte(2), 1);
        opener.commit(1, 13, Durability::Durable).unwrap();
        opener.commit(1, 14, Durability::Durable).unwrap();
        // What it shows ends with it.
        let _opener = then(opener, go_on, &commit);
        commit.join().unwrap()
    })
}

/// Its author must not believe that a commit with a passing superblock is durable because a later
/// one is.
#[test]
fn a_lost_passing_state_is_not_durable_because_a_later_one_is() {
    let (dir, [stuck]) = world();
    let path = dir.path().join("pool.hpk");
    let [one, author] = [(); 2].map(|()| hasty(&path));
    one.commit(1, 1, Durability::Visible).unwrap();
    author.commit(2, 1, Durability::Visible).unwrap();
    let done = lost_while_it_waits(&path, (&stuck, &author), true, |opener, go_on, _| {
        go_on.send(()).unwrap();
        Some(opener)
    });
    assert!(done.is_err(), "acknowledged as durable, and lost");
    assert!(matches!(author.commit(2, 3, Durability::Visible), Err(Error::FailStop)));
}

/// As above, but the superblock would have to stay. That it is gone proves nothing where
/// superblocks follow each other fast.
#[test]
fn a_lost_state_is_not_durable_because_others_pass() {
    let (dir, [stuck, author]) = world();
    let path = dir.path().join("pool.hpk");
    let one = hasty(&path);
    (0..4).for_each(|byte| one.commit(1, byte, Durability::Visible).unwrap());
    author.commit(2, 1, Durability::Durable).unwrap();
    let done = lost_while_it_waits(&path, (&stuck, &author), false, |opener, go_on, _| {
        go_on.send(()).unwrap();
        Some(opener)
    });
    assert!(done.is_err(), "acknowledged as durable, and lost");
}

/// As above, but who has shown it is gone, and somebody is in the middle of a transaction: then the
/// author of a passing one learns it from the superblock of others alone.
#[test]
fn a_lost_passing_state_is_not_durable_because_a_later_superblock_says_so() {
    let (dir, [stuck]) = world();
    let path = dir.path().join("pool.hpk");
    let [one, author] = [(); 2].map(|()| hasty(&path));
    one.commit(1, 1, Durability::Visible).unwrap();
    author.commit(2, 1, Durability::Visible).unwrap();
    let done = lost_while_it_waits(&path, (&stuck, &author), true, |opener, go_on, commit| {
        drop(opener);
        stuck.device.lock_writer().unwrap();
        go_on.send(()).unwrap();
        let began = Instant::now();
        while !commit.is_finished() && began.elapsed() < Duration::from_millis(300) {
            std::thread::yield_now();
        }
        stuck.device.unlock_writer();
        None
    });
    let found = Process::open(&path).byte(2);
    assert!(done.is_err() || found == 2, "acknowledged as durable, and lost: {found}");
}

/// The newest superblock of this pool is passing.
#[test]
fn the_golden_pool_with_passing_superblocks_is_read() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v2-passing.hpk");
    if std::env::var_os("HARDPACK_WRITE_GOLDEN").is_some() && !path.exists() {
        let (dir, [_]) = world();
        let now = dir.path().join("pool.hpk");
        let all = [(); 3].map(|()| hasty(&now));
        for (page, process) in (1..).zip(&all) {
            process.commit(page, 20 + page as u8, Durability::Visible).unwrap();
        }
        std::fs::copy(&now, &path).unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("pool.hpk");
    std::fs::copy(&path, &copy).unwrap();
    let process = Process::open(&copy);
    assert!(process.pool.state().superblock.passing);
    assert_eq!([1, 2, 3].map(|page| process.byte(page)), [21, 22, 23]);
    // Readers of today go on with it.
    process.commit(4, 24, Durability::Durable).unwrap();
    assert!(!process.pool.state().superblock.passing);
    let found = Process::open(&copy);
    assert_eq!([1, 2, 3, 4].map(|page| found.byte(page)), [21, 22, 23, 24]);
    assert_eq!(problems(&found.pool).unwrap(), Vec::<String>::new());
}

/// One thread commits durably, and another writes so much to the same file that it is written
/// ahead.
#[test]
fn who_waits_with_a_passing_superblock_keeps_nobody_waiting() {
    let (dir, [_]) = world();
    let path = dir.path().join("pool.hpk");
    let Process { pool, file, .. } = hasty(&path);
    for byte in 0..3 {
        file.write_at(&[byte], 0).unwrap();
        file.commit(Durability::Visible).unwrap();
    }
    assert!(pool.state().superblock.passing);
    let stuck = FileDevice::open(&path).unwrap();
    let bytes = Rng(1).noise(4 * DIRTY_LEN_MAX);
    // Most of this is written ahead.
    file.write_at(&bytes, 1 << 20).unwrap();
    stuck.lock_writer().unwrap();
    let commits = {
        let file = Arc::clone(&file);
        std::thread::spawn(move || file.commit(Durability::Durable).unwrap())
    };
    std::thread::sleep(Duration::from_millis(300));
    let writes = {
        let file = Arc::clone(&file);
        std::thread::spawn(move || {
            drop(file.write_at(&bytes, 8 << 20));
        })
    };
    std::thread::sleep(Duration::from_millis(700));
    // Somebody else is about to end a sync.
    assert!(stuck.try_sync_turn().unwrap());
    stuck.unlock_writer();
    std::thread::sleep(Duration::from_millis(30));
    stuck.end_sync_turn();
    let began = Instant::now();
    while !(commits.is_finished() && writes.is_finished()) && began.elapsed() < LONG {
        std::thread::sleep(Duration::from_millis(10));
    }
    let done = (commits.is_finished(), writes.is_finished());
    assert_eq!(done, (true, true), "they wait for each other");
}
