//! `flock` and `fcntl` with `-o locks=pool`: locks that exclude programs in other mounts as well.
//!
//! Without that option, the kernel keeps the locks of a mount to itself and asks nobody. With it:
//!
//! ```text
//! between the programs of a mount   a table of byte ranges for each file (`lock_table.rs`)
//! between mounts                    a lease of the whole file: shared while programs have locks
//!                                   for reading, exclusive while any has a lock for writing
//! ```
//!
//! * A lease is a lock on a byte of the pool, so it ends with its server.
//! * Before the first lock is granted under a lease, the newest state is adopted. If anybody has
//!   committed since this mount last had a lease, the kernel forgets what it knows of the file.
//! * When the last lock is gone, the changes of the file are committed, and then the lease is given
//!   back. A lock that becomes one for reading does the same for writing.
//! * Whoever waits for a lease says so by another lock. A mount that has had its lease for
//!   [`LEASE_TIME`] then grants locks only to those who have some already, until it can give the
//!   lease back, and waits for [`YIELD_TIME`] before it takes it again.
//!
//! One thread takes leases, gives them back, and answers those who wait. The threads that serve
//! requests only grant what needs none of this: to make the kernel forget pages may mean to wait
//! for requests that they serve.
//!
//! The kernel cannot be told here that a request is interrupted, so the thread looks whether a
//! signal waits for whoever waits.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use fuser::{Errno, INodeNo, Notifier, ReplyEmpty, ReplyLock};
use hardpack_engine::{FileId, Txg};

use crate::Leases;
use crate::lock_table::{Kind, Lock, LockTable};
use crate::tree::Tree;

/// How long a mount may keep a lease that another one waits for.
const LEASE_TIME: Duration = Duration::from_millis(20);
/// How long it then leaves the lease to others.
const YIELD_TIME: Duration = Duration::from_millis(10);
/// How often to ask for a lease that another mount has.
const LEASE_PAUSE: Duration = Duration::from_millis(2);
/// How long a request that does not wait for locks waits for a lease: its owner may be committing.
const BRIEF_TIME: Duration = Duration::from_millis(50);
/// How often to look for signals.
const SIGNAL_PAUSE: Duration = Duration::from_millis(30);

/// The locks of a mount.
pub struct Locks {
    leases: Arc<dyn Leases>,
    files: Mutex<Files>,
    awake: Condvar,
    notifier: OnceLock<Notifier>,
}

#[derive(Default)]
struct Files {
    locked: BTreeMap<INodeNo, Locked>,
    /// Files of which the kernel knows what is not so.
    stale: Vec<INodeNo>,
    /// When signals were last looked for.
    looked: Option<Instant>,
    is_ended: bool,
}

/// The locks on a file.
#[derive(Default)]
struct Locked {
    table: LockTable,
    waiting: VecDeque<Waiter>,
    /// How many locks were granted.
    grants: u64,
    /// The numbers by which the kernel knows the file, see `known.rs`.
    numbers: BTreeSet<INodeNo>,
    /// The file, unless it is one that nobody can change.
    file: Option<FileId>,
    lease: Option<Kind>,
    /// Since when there has been a lease.
    since: Option<Instant>,
    /// Until when the lease is left to others.
    yields_until: Option<Instant>,
    /// Whether others know that the lease is wanted.
    is_wanted: bool,
    /// The state in which this mount last had a lease.
    known: Option<Txg>,
}

struct Waiter {
    lock: Lock,
    /// The thread that waits.
    thread: u32,
    /// When to give up.
    until: Option<Instant>,
    reply: ReplyEmpty,
}

/// What the thread does without holding the table.
enum Work {
    /// To adopt the newest state, as a lease was obtained.
    Adopt(INodeNo, FileId, Option<Txg>, Kind, BTreeSet<INodeNo>),
    /// To let the kernel forget what it knows of a file.
    Forget(INodeNo),
    /// To commit a file, as its lease is not needed any more after so many grants.
    Commit(INodeNo, FileId, u64),
}

impl Locked {
    /// Whether a lock may be granted under the lease.
    fn is_covered(&self, lock: &Lock, leases: &dyn Leases) -> bool {
        let Some(file) = self.file else { return true };
        if self.lease < Some(lock.kind) {
            return false;
        }
        // Who has a lock goes on, so that it can come to an end.
        let is_old = self.since.is_some_and(|since| since.elapsed() > LEASE_TIME);
        !is_old || self.table.has(lock.owner) || !leases.is_wanted(file)
    }

    fn grant(&mut self, lock: Lock) {
        self.table.set(lock);
        self.grants += 1;
    }

    /// Whether nobody has a lock, waits for one, or has a lease.
    fn is_idle(&self) -> bool {
        self.table.strongest().is_none() && self.waiting.is_empty() && self.lease.is_none()
    }
}

impl Locks {
    pub fn new(leases: Arc<dyn Leases>) -> Locks {
        let (files, awake) = Default::default();
        Locks { leases, files, awake, notifier: OnceLock::new() }
    }

    /// Lets the kernel be told what it must forget.
    pub fn set_notifier(&self, notifier: Notifier) {
        let _ = self.notifier.set(notifier);
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the service of [`serve`].
    pub fn end(&self) {
        let mut files = self.files();
        files.is_ended = true;
        self.awake.notify_one();
    }

    /// Takes a lock for a thread. With `waits`, until it is free.
    pub fn lock(
        &self,
        (number, file, known_as): (INodeNo, Option<FileId>, INodeNo),
        lock: Lock,
        (thread, waits): (u32, bool),
        reply: ReplyEmpty,
    ) {
        let mut files = self.files();
        let locked = files.locked.entry(number).or_default();
        locked.file = file;
        locked.numbers.insert(known_as);
        let is_free = locked.table.conflict(&lock).is_none();
        if !is_free && !waits {
            return reply.error(Errno::EAGAIN);
        }
        let has_turn = locked.waiting.is_empty() || !waits;
        if is_free && has_turn && locked.is_covered(&lock, &*self.leases) {
            locked.grant(lock);
            reply.ok();
            // It may have replaced a stronger one.
            if !locked.waiting.is_empty() || locked.table.strongest() < locked.lease {
                self.awake.notify_one();
            }
            return;
        }
        let until = (!waits).then(|| Instant::now() + BRIEF_TIME);
        locked.waiting.push_back(Waiter { lock, thread, until, reply });
        self.awake.notify_one();
    }

    /// Gives up what an owner has locked by way of an open file that is closed. The owner may be
    /// the next one by now: the kernel names it by a place in its memory.
    pub fn unlock_handle(&self, number: INodeNo, owner: u64, handle: u64) {
        let mut files = self.files();
        if let Some(locked) = files.locked.get_mut(&number) {
            locked.table.clear_handle(owner, handle);
            self.awake.notify_one();
        }
    }

    /// Gives up what an owner has of some bytes.
    pub fn unlock(&self, number: INodeNo, owner: u64, start: u64, last: u64) {
        let mut files = self.files();
        if let Some(locked) = files.locked.get_mut(&number).filter(|it| it.table.has(owner)) {
            locked.table.clear(owner, start, last);
            self.awake.notify_one();
        }
    }

    /// Lets the kernel forget what it knows of a file: something else was done than it asked for.
    pub fn note_stale(&self, number: INodeNo) {
        self.files().stale.push(number);
        self.awake.notify_one();
    }

    /// Says which lock keeps one from being taken.
    pub fn test(&self, number: INodeNo, file: Option<FileId>, wanted: &Lock, reply: ReplyLock) {
        const UNLOCKED: i32 = libc::F_UNLCK;
        let files = self.files();
        let locked = files.locked.get(&number);
        if let Some(held) = locked.and_then(|it| it.table.conflict(wanted)) {
            let kind = match held.kind {
                Kind::Read => libc::F_RDLCK,
                Kind::Write => libc::F_WRLCK,
            };
            return reply.locked(held.start, held.last, kind, held.process);
        }
        let lease = locked.and_then(|it| it.lease);
        match file.is_some_and(|file| lease < Some(wanted.kind) && self.leases.is_held(file)) {
            // Nobody here knows by whom, or how much of it.
            true => reply.locked(0, i64::MAX as u64, libc::F_WRLCK, 0),
            false => reply.locked(0, 0, UNLOCKED, 0),
        }
    }

    /// Forgets a file that the kernel has forgotten.
    pub fn forget(&self, number: INodeNo) {
        let mut files = self.files();
        if files.locked.get(&number).is_some_and(Locked::is_idle) {
            files.locked.remove(&number);
        }
    }

    /// Answers those who can be answered, and returns what is to be done next, or how long to wait
    /// for that.
    fn next(&self, files: &mut Files) -> Result<Work, Option<Duration>> {
        if let Some(number) = files.stale.pop() {
            return Ok(Work::Forget(number));
        }
        let looks = files.looked.is_none_or(|looked| looked.elapsed() >= SIGNAL_PAUSE);
        if looks {
            files.looked = Some(Instant::now());
        }
        let mut pause: Option<Duration> = None;
        let mut wait_at_most = |time: Duration| {
            pause = Some(pause.map_or(time, |known| known.min(time)));
        };
        for (number, locked) in &mut files.locked {
            let wanted = self.answer(locked, looks);
            if !locked.waiting.is_empty() {
                wait_at_most(SIGNAL_PAUSE);
            }
            let Some(file) = locked.file else { continue };
            self.show_wanted(locked, file, wanted.is_some());
            if let Some(kind) = wanted {
                let may = locked.yields_until.is_none_or(|until| until <= Instant::now());
                // A lease that others wait for is given back first.
                let is_due = locked.lease < Some(kind);
                if is_due && may && self.leases.lease(file, Some(kind)) {
                    let numbers = locked.numbers.clone();
                    return Ok(Work::Adopt(*number, file, locked.known, kind, numbers));
                }
                wait_at_most(LEASE_PAUSE);
            }
            if locked.table.strongest() < locked.lease {
                return Ok(Work::Commit(*number, file, locked.grants));
            }
        }
        Err(pause)
    }

    /// Grants the locks that can be granted, in order, and refuses those whose time is over.
    /// Returns the kind of lease that others need.
    fn answer(&self, locked: &mut Locked, looks: bool) -> Option<Kind> {
        let mut wanted = None;
        let mut left: VecDeque<Waiter> = VecDeque::new();
        for waiter in std::mem::take(&mut locked.waiting) {
            let is_behind = left.iter().any(|before| before.lock.excludes(&waiter.lock));
            let is_free = !is_behind && locked.table.conflict(&waiter.lock).is_none();
            if is_free && locked.is_covered(&waiter.lock, &*self.leases) {
                locked.grant(waiter.lock);
                waiter.reply.ok();
                continue;
            }
            if waiter.until.is_some_and(|until| until <= Instant::now()) {
                waiter.reply.error(Errno::EAGAIN);
                continue;
            }
            if looks && waiter.until.is_none() && is_signalled(waiter.thread) {
                waiter.reply.error(Errno::EINTR);
                continue;
            }
            if is_free {
                wanted = wanted.max(Some(waiter.lock.kind));
            }
            left.push_back(waiter);
        }
        locked.waiting = left;
        wanted
    }

    fn show_wanted(&self, locked: &mut Locked, file: FileId, is_wanted: bool) {
        if locked.is_wanted != is_wanted {
            locked.is_wanted = is_wanted;
            self.leases.show_wanted(file, is_wanted);
        }
    }

    fn work(&self, tree: &Tree, work: Work) {
        match work {
            Work::Adopt(number, file, known, kind, numbers) => {
                self.adopt(tree, &numbers, file, known);
                if let Some(locked) = self.files().locked.get_mut(&number) {
                    locked.lease = Some(kind);
                    locked.known = Some(tree.pool().0.txg());
                    locked.since.get_or_insert_with(Instant::now);
                }
            }
            Work::Forget(number) => {
                if let Some(notifier) = self.notifier.get() {
                    let _ = notifier.inval_inode(number, 0, 0);
                }
            }
            Work::Commit(number, file, grants) => {
                // An error is told to whoever syncs or closes the file.
                tree.commit_file(file);
                let mut files = self.files();
                let Some(locked) = files.locked.get_mut(&number) else { return };
                let needed = locked.table.strongest();
                // Whoever has had a lock meanwhile may have written.
                if needed < locked.lease && locked.grants == grants {
                    locked.known = Some(tree.pool().0.txg());
                    if needed.is_none() {
                        locked.since = None;
                        let others = self.leases.is_wanted(file);
                        locked.yields_until = others.then(|| Instant::now() + YIELD_TIME);
                    }
                    self.leases.lease(file, needed);
                    locked.lease = needed;
                }
            }
        }
    }

    /// Adopts the newest state, and lets the kernel forget what may be older.
    fn adopt(&self, tree: &Tree, numbers: &BTreeSet<INodeNo>, file: FileId, known: Option<Txg>) {
        let pool = tree.pool().0;
        // An outdated state fails its checksums at worst.
        let _ = pool.refresh();
        let Some(notifier) = self.notifier.get().filter(|_| known != Some(pool.txg())) else {
            return;
        };
        let last = tree.last_byte(file);
        for number in numbers {
            // Whatever fails here, the kernel does not know the file.
            let _ = notifier.inval_inode(*number, 0, 0);
            // Who appends relies on the length that the kernel knows, which only this makes longer.
            if let Some((offset, byte)) = last {
                let _ = notifier.store(*number, offset, &[byte]);
            }
        }
    }
}

/// Takes and gives back leases, and answers those who wait, until it is ended or the tree is gone.
pub fn serve(tree: &Weak<Tree>, locks: &Locks) {
    loop {
        let mut files = locks.files();
        if files.is_ended {
            for waiter in files.locked.values_mut().flat_map(|it| it.waiting.drain(..)) {
                waiter.reply.error(Errno::EIO);
            }
            return;
        }
        match locks.next(&mut files) {
            Ok(work) => {
                drop(files);
                let Some(tree) = tree.upgrade() else { return };
                locks.work(&tree, work);
            }
            Err(Some(pause)) => drop(locks.awake.wait_timeout(files, pause)),
            Err(None) => drop(locks.awake.wait(files)),
        }
    }
}

/// Whether a signal waits for a thread that would end a wait. One that another thread of its
/// process may take does not count.
fn is_signalled(thread: u32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{thread}/status")) else {
        return false;
    };
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim())
    };
    let set = |name| field(name).and_then(|it| u64::from_str_radix(it, 16).ok()).unwrap_or(0);
    let is_main = field("Pid:") == field("Tgid:");
    let of_process = if is_main { set("ShdPnd:") } else { 0 };
    (set("SigPnd:") | of_process) & !set("SigBlk:") != 0
}
