//! Processes that share syncs, on a real file with its locks. Each open file stands for a process:
//! its locks belong to it alone.

mod common;

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use common::{create, only_file, options, problems};
use hardpack_engine::device::{Awaited, Device, FileDevice, Pins, Shared, Slot, Syncs};
use hardpack_engine::pool::{File, Pool};
use hardpack_engine::store::Durability;
use hardpack_engine::store::superblock::{BLOCK_LEN, slot_offset};
use hardpack_engine::{Ashift, Error};

/// The sectors of the pools that [`create`] makes.
const ASHIFT: Ashift = Ashift::MIN;

/// Called instead of a sync, with the file.
type Sync = Box<dyn FnOnce(&FileDevice) -> io::Result<()> + Send>;

/// A file whose syncs are counted, and may do something else.
struct Watched {
    file: FileDevice,
    sync_count: AtomicU64,
    next_syncs: Mutex<VecDeque<Sync>>,
    next_pause: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    has_lost: AtomicBool,
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watched").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Watched {
    fn open(path: &Path) -> Arc<Watched> {
        let file = FileDevice::open(path).unwrap();
        let (sync_count, next_syncs, next_pause, has_lost) = Default::default();
        Arc::new(Watched { file, sync_count, next_syncs, next_pause, has_lost })
    }

    /// Makes the next sync that has no other order yet do this.
    fn at_sync(&self, sync: impl FnOnce(&FileDevice) -> io::Result<()> + Send + 'static) {
        self.next_syncs.lock().unwrap_or_else(PoisonError::into_inner).push_back(Box::new(sync));
    }

    /// Makes the next pause begin with this.
    fn at_pause(&self, act: impl FnOnce() + Send + 'static) {
        *self.next_pause.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(act));
    }

    /// Makes the system report a loss, once.
    fn lose(&self) {
        self.has_lost.store(true, Ordering::SeqCst);
    }

    fn sync_count(&self) -> u64 {
        self.sync_count.load(Ordering::SeqCst)
    }
}

impl Device for Watched {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_at(buf, offset)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.sync_count.fetch_add(1, Ordering::SeqCst);
        self.report_losses()?;
        let sync = self.next_syncs.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        sync.map_or_else(|| self.file.sync_data(), |sync| sync(&self.file))
    }
    fn report_losses(&self) -> io::Result<()> {
        match self.has_lost.swap(false, Ordering::SeqCst) {
            true => Err(io::Error::other("a sync of another process failed")),
            false => Ok(()),
        }
    }
    fn syncs(&self) -> Option<&Syncs> {
        self.file.syncs()
    }
    fn try_sync_turn(&self) -> io::Result<bool> {
        self.file.try_sync_turn()
    }
    fn end_sync_turn(&self) {
        self.file.end_sync_turn();
    }
    fn show_awaited(&self, txg: u64) -> io::Result<()> {
        self.file.show_awaited(txg)
    }
    fn hide_awaited(&self, txg: u64) {
        self.file.hide_awaited(txg);
    }
    fn last_awaited(&self, from: u64) -> io::Result<Option<u64>> {
        self.file.last_awaited(from)
    }
    fn show_durable(&self, txg: u64) -> io::Result<()> {
        self.file.show_durable(txg)
    }
    fn last_shown_durable(&self, from: u64) -> io::Result<Option<u64>> {
        self.file.last_shown_durable(from)
    }
    fn pause(&self, awaited: Awaited, at_most: Duration) -> Duration {
        let act = self.next_pause.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(act) = act {
            act();
        }
        self.file.pause(awaited, at_most)
    }
    fn pins(&self) -> Option<&Pins> {
        self.file.pins()
    }
    fn show_pin(&self, txg: u64, slot: Slot) -> io::Result<bool> {
        self.file.show_pin(txg, slot)
    }
    fn hide_pin(&self, txg: u64, slot: Slot) {
        self.file.hide_pin(txg, slot);
    }
    fn shown_pins(&self, txgs: Range<u64>) -> io::Result<Vec<u64>> {
        self.file.shown_pins(txgs)
    }
    fn claim_slot(&self, slot: Slot) -> io::Result<bool> {
        self.file.claim_slot(slot)
    }
    fn release_slot(&self, slot: Slot) {
        self.file.release_slot(slot);
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn lock_writer(&self) -> io::Result<()> {
        self.file.lock_writer()
    }
    fn try_lock_writer(&self) -> io::Result<bool> {
        self.file.try_lock_writer()
    }
    fn is_writer_free(&self) -> io::Result<bool> {
        self.file.is_writer_free()
    }
    fn unlock_writer(&self) {
        self.file.unlock_writer();
    }
}

/// A process that has the pool open.
struct Process {
    device: Arc<Watched>,
    pool: Pool,
    file: Arc<File>,
}

impl Process {
    fn open(path: &Path) -> Process {
        let device = Watched::open(path);
        let pool = Pool::open(device.clone(), options(1 << 20)).unwrap();
        let file = only_file(&pool).unwrap();
        Process { device, pool, file }
    }

    /// Commits one byte at a page of its own.
    fn commit(&self, page: u64, byte: u8, durability: Durability) -> Result<(), Error> {
        self.file.write_at(&[byte], page * 4096)?;
        let done = self.file.commit(durability);
        if done.is_err() {
            self.file.discard();
        }
        done
    }

    fn byte(&self, page: u64) -> u8 {
        let mut byte = [0];
        self.pool.refresh().unwrap();
        assert_eq!(self.file.read_at(&mut byte, page * 4096).unwrap(), 1);
        byte[0]
    }

    fn txg(&self) -> u64 {
        self.pool.refresh().unwrap();
        self.pool.state().txg().0
    }
}

/// A pool of some pages in a file, and processes that have made a durable commit each.
fn world<const N: usize>() -> (tempfile::TempDir, [Process; N]) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.hpk");
    let device: Arc<dyn Device> = Arc::new(FileDevice::create_new(&path).unwrap());
    let pool = create(&device, &[], 1 << 20);
    let file = only_file(&pool).unwrap();
    file.write_at(&[7; 16 * 4096], 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    drop((file, pool));
    let processes = [(); N].map(|()| Process::open(&path));
    for (page, process) in processes.iter().enumerate() {
        process.commit(page as u64, 8, Durability::Durable).unwrap();
    }
    (dir, processes)
}

/// Waits until somebody shows this txg as awaited.
fn until_awaited(device: &FileDevice, txg: u64) {
    while device.last_awaited(txg).unwrap().is_none() {
        std::thread::yield_now();
    }
}

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
        for page in 1..all.len() {
            running.push(scope.spawn(commit(page)));
            while leader.txg() <= txg + page as u64 {
                std::thread::yield_now();
            }
        }
        assert!(leader.pool.state().superblock.passing, "there was room for all of them");
        drop(go);
        running.into_iter().for_each(|commit| commit.join().unwrap().unwrap());
    });
    let after: u64 = all.iter().map(|process| process.device.sync_count()).sum();
    assert!(after - before <= 3, "{} syncs", after - before);
    let found = Process::open(&dir.path().join("pool.hpk"));
    (0..all.len() as u64).for_each(|page| assert_eq!(found.byte(page), 1));
    assert_eq!(problems(&found.pool).unwrap(), Vec::<String>::new());
}

/// A process whose commits pass after one other that has to stay.
fn hasty(path: &Path) -> Process {
    let process = Process::open(path);
    process.pool.store().lower_anchor_count_max(1);
    process
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

/// A failed sync loses a commit whose superblock is passing; others go on without it, and show
/// greater numbers as durable. Its author must not believe them.
#[test]
fn a_lost_passing_state_is_not_durable_because_a_later_one_is() {
    let (dir, [stuck]) = world();
    let path = dir.path().join("pool.hpk");
    let [one, author] = [(); 2].map(|()| hasty(&path));
    one.commit(1, 1, Durability::Visible).unwrap();
    author.commit(2, 1, Durability::Visible).unwrap();
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
        assert!(author.pool.state().superblock.passing);
        // As the system tells each who has the file open.
        author.device.lose();
        lose_newest(&path, &author.pool);
        stuck.device.end_sync_turn();
        let opener = Process::open(&path);
        assert_eq!(opener.byte(2), 1);
        opener.commit(1, 3, Durability::Durable).unwrap();
        opener.commit(1, 4, Durability::Durable).unwrap();
        go_on.send(()).unwrap();
        let done = commit.join().unwrap();
        assert!(done.is_err(), "acknowledged as durable, and lost");
    });
    assert!(matches!(author.commit(2, 3, Durability::Visible), Err(Error::FailStop)));
}

/// As above, but the superblock would have to stay. That it is gone proves nothing where superblocks
/// follow each other fast.
#[test]
fn a_lost_state_is_not_durable_because_others_pass() {
    let (dir, [stuck, author]) = world();
    let path = dir.path().join("pool.hpk");
    let one = hasty(&path);
    (0..4).for_each(|byte| one.commit(1, byte, Durability::Visible).unwrap());
    author.commit(2, 1, Durability::Durable).unwrap();
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
        assert!(!author.pool.state().superblock.passing);
        author.device.lose();
        lose_newest(&path, &author.pool);
        stuck.device.end_sync_turn();
        let opener = Process::open(&path);
        opener.commit(1, 13, Durability::Durable).unwrap();
        opener.commit(1, 14, Durability::Durable).unwrap();
        go_on.send(()).unwrap();
        assert!(commit.join().unwrap().is_err(), "acknowledged as durable, and lost");
    });
}

/// As above, but who has shown it is gone, and somebody is in the middle of a transaction: then the
/// author learns it from the superblock of others alone.
#[test]
fn a_lost_passing_state_is_not_durable_because_a_later_superblock_says_so() {
    let (dir, [stuck]) = world();
    let path = dir.path().join("pool.hpk");
    let [one, author] = [(); 2].map(|()| hasty(&path));
    one.commit(1, 1, Durability::Visible).unwrap();
    author.commit(2, 1, Durability::Visible).unwrap();
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
        assert!(author.pool.state().superblock.passing);
        author.device.lose();
        lose_newest(&path, &author.pool);
        stuck.device.end_sync_turn();
        let opener = Process::open(&path);
        opener.commit(1, 3, Durability::Durable).unwrap();
        opener.commit(1, 4, Durability::Durable).unwrap();
        drop(opener);
        stuck.device.lock_writer().unwrap();
        go_on.send(()).unwrap();
        let waits = Duration::from_millis(300);
        let began = std::time::Instant::now();
        while !commit.is_finished() && began.elapsed() < waits {
            std::thread::yield_now();
        }
        stuck.device.unlock_writer();
        let done = commit.join().unwrap();
        let found = Process::open(&path).byte(2);
        assert!(done.is_err() || found == 2, "acknowledged as durable, and lost: {found}");
    });
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

/// Damages a node that only the newest state of the pool has, as if the system had given up the
/// pages that it could not write.
fn lose_newest(path: &Path, pool: &Pool) {
    let state = pool.state();
    let roots = state.superblock.roots.values().iter().flatten();
    let newest = roots.max_by_key(|root| root.birth).unwrap();
    let run = newest.run(ASHIFT).unwrap();
    FileDevice::open(path).unwrap().write_at(&[0x5a; 64], run.start.0 << ASHIFT).unwrap();
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
