//! Processes that share syncs, on a real file with its locks.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use crate::common::problems;
use crate::common::watched::{ASHIFT, Process, Watched, hasty, lose_newest, until_awaited, world};
use hardpack_engine::Error;
use hardpack_engine::device::{Awaited, Device, FileDevice, Shared};
use hardpack_engine::store::Durability;
use hardpack_engine::store::superblock::{BLOCK_LEN, slot_offset};

#[test]
fn one_sync_serves_all_who_were_waiting_when_it_began() {
    let (dir, [leader, one, two]) = world();
    let txg = leader.txg();
    let (begun, is_begun) = mpsc::channel();
    // The first sync ends when two others wait; the next one is theirs.
    leader.device.at_sync(move |file| {
        begun.send(()).unwrap();
        until_awaited(file, txg + 3);
        file.sync_data()
    });
    let before = [&one, &two].map(|process| process.device.sync_count());
    std::thread::scope(|scope| {
        let first = scope.spawn(|| leader.commit(0, 1, Durability::Durable));
        is_begun.recv().unwrap();
        let others = [(&one, 1), (&two, 2)].map(|(process, page)| {
            scope.spawn(move || process.commit(page, 1, Durability::Durable))
        });
        first.join().unwrap().unwrap();
        others.into_iter().for_each(|other| other.join().unwrap().unwrap());
    });
    let after = [&one, &two].map(|process| process.device.sync_count());
    // The sync that was in progress began before their commits, so it does not count for them.
    assert_eq!(after[0] + after[1], before[0] + before[1] + 1, "{before:?} {after:?}");
    for page in 0..3 {
        assert_eq!(Process::open(&dir.path().join("pool.hpk")).byte(page), 1);
    }
    assert_eq!(problems(&leader.pool).unwrap(), Vec::<String>::new());
}

#[test]
fn a_sync_in_progress_does_not_count_for_later_commits() {
    let (_dir, [leader, other]) = world();
    let txg = leader.txg();
    let (begun, is_begun) = mpsc::channel();
    let (go, may_go) = mpsc::channel::<()>();
    leader.device.at_sync(move |file| {
        begun.send(()).unwrap();
        may_go.recv().unwrap();
        file.sync_data()
    });
    let before = other.device.sync_count();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| leader.commit(0, 1, Durability::Durable));
        is_begun.recv().unwrap();
        let second = scope.spawn(|| other.commit(1, 1, Durability::Durable));
        until_awaited(&leader.device.file, txg + 2);
        go.send(()).unwrap();
        first.join().unwrap().unwrap();
        second.join().unwrap().unwrap();
    });
    assert_eq!(other.device.sync_count(), before + 1);
}

#[test]
fn nobody_relies_on_a_process_that_has_the_turn_and_does_nothing() {
    let (dir, [stuck, other]) = world();
    assert!(stuck.device.try_sync_turn().unwrap());
    let before = other.device.sync_count();
    other.commit(1, 1, Durability::Durable).unwrap();
    assert_eq!(other.device.sync_count(), before + 1);
    // Its turn ends with the process.
    assert!(!FileDevice::open(&dir.path().join("pool.hpk")).unwrap().try_sync_turn().unwrap());
    drop(stuck);
    assert!(other.device.try_sync_turn().unwrap());
}

#[test]
fn a_failed_sync_is_shown_to_nobody() {
    let (dir, [leader, other]) = world();
    let txg = leader.txg();
    leader.device.at_sync(move |file| {
        until_awaited(file, txg + 2);
        Err(io::Error::other("injected"))
    });
    let before = other.device.sync_count();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| leader.commit(0, 1, Durability::Durable));
        let second = scope.spawn(|| {
            until_awaited(&other.device.file, txg + 1);
            other.commit(1, 1, Durability::Durable)
        });
        assert!(first.join().unwrap().is_err());
        // Here the system has nothing to tell.
        second.join().unwrap().unwrap();
    });
    assert_eq!(other.device.sync_count(), before + 1, "it must sync for itself");
    assert!(matches!(leader.commit(0, 2, Durability::Durable), Err(Error::FailStop)));
    let third = Process::open(&dir.path().join("pool.hpk"));
    assert_eq!((third.byte(0), third.byte(1)), (1, 1));
}

/// Who is told that a sync failed stops, whoever made that sync.
#[test]
fn those_who_waited_for_a_failed_sync_are_told_too() {
    let (_dir, [leader, other]) = world();
    let txg = leader.txg();
    leader.device.at_sync(move |file| {
        until_awaited(file, txg + 2);
        Err(io::Error::other("injected"))
    });
    other.device.at_sync(|_| Err(io::Error::other("a sync of another process failed")));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| leader.commit(0, 1, Durability::Durable));
        let second = scope.spawn(|| {
            until_awaited(&other.device.file, txg + 1);
            other.commit(1, 1, Durability::Durable)
        });
        assert!(first.join().unwrap().is_err());
        assert!(second.join().unwrap().is_err());
    });
    assert!(matches!(other.commit(1, 2, Durability::Visible), Err(Error::FailStop)));
}

/// What a process found when it opened the pool may have been lost before it could be told. Until
/// it has written that again, its syncs prove nothing to others.
#[test]
fn a_process_in_doubt_tells_nobody() {
    let (_dir, [one, other]) = world();
    let txg = one.txg() + 1;
    other.device.show_awaited(txg).unwrap();
    let doubtful = AtomicU64::new(1);
    let (stands, is_there) = (&|| true, &|_| true);
    let (known_failures, cover, doubtful) = (0, &|_| None, &doubtful);
    let shared = Shared { txg, known_failures, stands, cover, is_there, doubtful };
    let sync = || one.device.syncs().unwrap().sync_txg(&*one.device, shared).unwrap().unwrap();
    let before = one.device.sync_count();
    sync();
    assert_eq!(other.device.last_shown_durable(txg).unwrap(), None);
    doubtful.store(0, Ordering::SeqCst);
    sync();
    assert_eq!(other.device.last_shown_durable(txg).unwrap(), Some(txg));
    assert_eq!(one.device.sync_count(), before + 2);
}

/// A failed sync has lost two superblocks, and the author of the second, who is stopped, still
/// shows that it waits. Others go on without both. Whoever syncs then for all must not say that the
/// number is durable: nobody has a state of that number.
#[test]
fn a_lost_txg_that_is_awaited_is_not_shown_as_durable() {
    let (dir, [leader, other]) = world();
    let stopped = FileDevice::open(&dir.path().join("pool.hpk")).unwrap();
    stopped.show_awaited(leader.txg() + 2).unwrap();
    leader.commit(0, 1, Durability::Durable).unwrap();
    let before = other.device.sync_count();
    other.commit(1, 2, Durability::Durable).unwrap();
    assert_eq!(other.device.sync_count(), before + 1, "acknowledged as durable without a sync");
}

/// As above, for its own later commits.
#[test]
fn nobody_believes_what_it_has_shown_itself() {
    let (dir, [_]) = world();
    let path = dir.path().join("pool.hpk");
    let leader = hasty(&path);
    let stopped = FileDevice::open(&path).unwrap();
    stopped.show_awaited(leader.txg() + 2).unwrap();
    leader.commit(0, 1, Durability::Durable).unwrap();
    let before = leader.device.sync_count();
    leader.commit(0, 2, Durability::Durable).unwrap();
    assert!(leader.device.sync_count() > before, "acknowledged as durable without a sync");
}

#[test]
fn what_is_shown_ends_with_its_process() {
    let (dir, [one, other]) = world();
    one.device.show_awaited(40).unwrap();
    one.device.show_awaited(50).unwrap();
    one.device.show_durable(30).unwrap();
    one.device.show_durable(35).unwrap();
    assert_eq!(other.device.last_awaited(0).unwrap(), Some(50));
    assert_eq!(other.device.last_awaited(50).unwrap(), Some(50));
    assert_eq!(other.device.last_awaited(51).unwrap(), None);
    assert_eq!(one.device.last_awaited(0).unwrap(), None, "only those of others");
    assert_eq!(other.device.last_shown_durable(35).unwrap(), Some(35));
    assert_eq!(other.device.last_shown_durable(36).unwrap(), None);
    one.device.hide_awaited(50);
    assert_eq!(other.device.last_awaited(0).unwrap(), Some(40));
    other.device.show_durable(90).unwrap();
    let third = Watched::open(&dir.path().join("pool.hpk"));
    assert_eq!(third.last_shown_durable(0).unwrap(), Some(90));
    drop(other);
    assert_eq!(third.last_shown_durable(0).unwrap(), Some(35));
    drop(one);
    assert_eq!(third.last_shown_durable(0).unwrap(), None);
    assert_eq!(third.last_awaited(0).unwrap(), None);
    // Numbers that only a forged pool has.
    third.show_awaited(u64::MAX).unwrap();
    third.show_durable(u64::MAX).unwrap();
    assert_eq!(third.last_awaited(u64::MAX).unwrap(), None);
    third.hide_awaited(u64::MAX);
}

/// A pause would end by itself only after the test has failed.
#[test]
fn who_releases_a_lock_wakes_those_who_wait() {
    let (dir, [one]) = world();
    let path = dir.path().join("pool.hpk");
    for awaited in [Awaited::Writer, Awaited::SyncTurn] {
        let waiting = FileDevice::open(&path).unwrap();
        let paused = std::thread::spawn(move || waiting.pause(awaited, Duration::from_secs(600)));
        while !paused.is_finished() {
            one.device.unlock_writer();
            one.device.end_sync_turn();
            std::thread::yield_now();
        }
        assert!(paused.join().unwrap() < Duration::from_secs(600));
    }
    // What cannot be mapped can be waited for too.
    let empty = FileDevice::create_new(&dir.path().join("empty")).unwrap();
    let pause = Duration::from_millis(2);
    assert!(empty.pause(Awaited::Writer, pause) >= pause);
}

/// Nobody learns anything about a state that took the number of a rejected one.
#[test]
fn the_number_of_a_rejected_state_is_not_given_again() {
    let (dir, [author]) = world();
    let path = dir.path().join("pool.hpk");
    author.commit(0, 1, Durability::Durable).unwrap();
    let durable = author.txg();
    author.commit(0, 2, Durability::Visible).unwrap();
    let lost = author.pool.state();
    drop(author);
    // The newest state loses a node.
    let roots = lost.superblock.roots.values().iter().flatten();
    let newest = roots.max_by_key(|root| root.birth).unwrap();
    let run = newest.run(ASHIFT).unwrap();
    FileDevice::open(&path).unwrap().write_at(&[0x5a; 64], run.start.0 << ASHIFT).unwrap();
    let opener = Process::open(&path);
    assert_eq!(opener.txg(), durable);
    opener.commit(0, 3, Durability::Durable).unwrap();
    assert_eq!(opener.txg(), lost.txg().0 + 1);
    assert_eq!(opener.byte(0), 3);
}

/// A failed sync loses a state that is visible. Somebody who opens the pool takes it out of the
/// ring, and makes later states durable. Its author is told by its own next sync, and must not
/// believe that its state is durable because a greater number is.
#[test]
fn a_lost_state_is_not_durable_because_a_later_one_is() {
    let (dir, [author]) = world();
    let path = dir.path().join("pool.hpk");
    author.commit(0, 1, Durability::Durable).unwrap();
    author.commit(0, 2, Durability::Visible).unwrap();
    // The system could not write it, and tells each who has the file open at its next sync.
    lose_newest(&path, &author.pool);
    author.device.at_sync(|_| Err(io::Error::other("a sync of another process failed")));
    let opener = Process::open(&path);
    assert_eq!(opener.byte(0), 1);
    opener.commit(1, 3, Durability::Durable).unwrap();
    let made_durable = author.file.commit(Durability::Durable);
    let found = Process::open(&path).byte(0);
    assert!(made_durable.is_err() || found == 2, "acknowledged as durable, and lost: {found}");
}

/// As [`lose_newest`], but only the superblock is lost, so nobody ever sees that state again, and
/// its number is given to another one.
fn lose_superblock(path: &Path, author: &Process, commit: impl FnOnce()) {
    let slot = author.pool.state().superblock.next_slot.unwrap();
    let mut before = vec![0; BLOCK_LEN];
    assert_eq!(author.device.read_at(&mut before, slot_offset(slot)).unwrap(), BLOCK_LEN);
    commit();
    FileDevice::open(path).unwrap().write_at(&before, slot_offset(slot)).unwrap();
}

#[test]
fn a_lost_state_is_not_durable_because_another_got_its_number() {
    let (dir, [author]) = world();
    let path = dir.path().join("pool.hpk");
    author.commit(0, 1, Durability::Durable).unwrap();
    lose_superblock(&path, &author, || author.commit(0, 2, Durability::Visible).unwrap());
    author.device.at_sync(|_| Err(io::Error::other("a sync of another process failed")));
    let opener = Process::open(&path);
    assert_eq!(opener.byte(0), 1);
    opener.commit(1, 3, Durability::Durable).unwrap();
    let made_durable = author.file.commit(Durability::Durable);
    let found = Process::open(&path).byte(0);
    assert!(made_durable.is_err() || found == 2, "acknowledged as durable, and lost: {found}");
}

/// As above, but the author goes on beside what the opener has made durable.
#[test]
fn nobody_builds_on_a_state_that_is_gone() {
    let (dir, [author]) = world();
    let path = dir.path().join("pool.hpk");
    author.commit(0, 1, Durability::Durable).unwrap();
    lose_superblock(&path, &author, || author.commit(0, 2, Durability::Visible).unwrap());
    author.device.at_sync(|_| Err(io::Error::other("a sync of another process failed")));
    let opener = Process::open(&path);
    opener.commit(1, 3, Durability::Durable).unwrap();
    let done = author.commit(2, 4, Durability::Visible);
    let after = Process::open(&path);
    assert_eq!(
        (after.byte(1), problems(&after.pool).unwrap()),
        (3, Vec::new()),
        "what was acknowledged as durable is gone; the author was told {done:?}"
    );
}

/// As above, for an author that waits for a sync of others while all this happens.
#[test]
fn who_is_stopped_while_others_go_on_is_told_of_a_failed_sync() {
    let (dir, [leader, author]) = world();
    let path = dir.path().join("pool.hpk");
    let txg = author.txg();
    author.commit(0, 1, Durability::Durable).unwrap();
    assert!(leader.device.try_sync_turn().unwrap());
    // The author is stopped in the middle of its pause.
    let (stopped, is_stopped) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel::<()>();
    author.device.at_pause(move || {
        stopped.send(()).unwrap();
        let _ = goes_on.recv();
    });
    author.device.at_sync(|_| Err(io::Error::other("a sync of another process failed")));
    std::thread::scope(|scope| {
        let commit = scope.spawn(|| author.commit(0, 2, Durability::Durable));
        is_stopped.recv().unwrap();
        assert_eq!(author.pool.state().txg().0, txg + 2);
        lose_newest(&path, &author.pool);
        leader.device.end_sync_turn();
        let opener = Process::open(&path);
        opener.commit(1, 3, Durability::Durable).unwrap();
        go_on.send(()).unwrap();
        let done = commit.join().unwrap();
        let found = Process::open(&path).byte(0);
        assert!(done.is_err() || found == 2, "acknowledged as durable, and lost: {found}");
    });
}
