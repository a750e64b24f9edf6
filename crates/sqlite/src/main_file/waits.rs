//! Waits for SQLite's locks, before SQLite is told that somebody has one.
//!
//! SQLite's busy handler sleeps, for 1 ms at first and then for up to 100 ms, and tries again. One
//! connection that commits again and again leaves its lock for some microseconds in between. So
//! those who sleep hardly ever find it free, and starve for seconds. Here they wait where whoever
//! gives the lock back wakes them, and SQLite sleeps only where that takes long:
//!
//! * A reader waits for those who commit with no lock of its own.
//! * A writer that meets another one shares the database already, and would keep that one from
//!   committing; and what it has read, from a log too, would be outdated afterwards. So SQLite is
//!   told, gives its lock back, sleeps and begins again. Then the connection waits, before it
//!   shares the database.
//! * A writer that waits for readers to leave keeps new ones out. It looks again and again; for
//!   readers to wake it, each of them would have to call the system at its end. Where there are
//!   many, one always holds the host's pending lock for a moment, as each does that begins, and the
//!   writer cannot take it. So it also shows a mark, and readers that see it give way for a while.
//! * A connection that commits again and again wakes others at first, and once in a while
//!   ([`TURN`]), when it lets them go first. In between it goes on: where processors are short, to
//!   let go others after each commit costs most of what all could do.
//!
//! All waits are short, and SQLite asks the busy handler after each of them as it does after each
//! attempt. So how often it tries is up to the handler as ever. A timeout counts only what its
//! handler sleeps; so that it is not exceeded by much, a connection that has waited in vain for a
//! while waits as shortly as one without a handler, unless somebody wakes it.

use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

use hardpack_engine::FileId;
use hardpack_engine::device::{Awaited, Device};

use super::{Backing, MainFile};
use crate::ffi::*;
use crate::system::{self, Stopwatch};

/// How long to wait when SQLite tries for the first time: for a commit or two. Perhaps nobody tries
/// again.
const WAIT_FIRST: Duration = Duration::from_millis(2);
/// How long to wait at most when SQLite tries again: twice as long each time, up to this. SQLite's
/// own handler sleeps for about as long in between.
const WAIT_AGAIN: Duration = Duration::from_millis(20);
/// How often that may be in vain: for about half a second in all.
const VAIN_COUNT: u32 = 12;
/// Whoever was told that a lock is taken, and tries once more within this time, tries again.
const MEMORY: Duration = Duration::from_secs(1);
/// The pauses between two looks: the first, and the longest. Who gives the lock back ends them.
const PAUSE_MIN: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(1);
/// For how long one connection commits again and again while others wait.
const TURN: Duration = Duration::from_millis(10);
/// Commits with less in between are one turn.
const TURN_GAP: Duration = Duration::from_millis(1);
/// How long to let go those who were woken. They need about half of that to take their locks.
const COURTESY: Duration = Duration::from_micros(60);

/// The mark of a writer that waits until its readers have left, without the number of the file.
const WISH_BITS: u64 = (1 << 61) | FILE_LIMIT;
/// Files from this number on have no such mark.
const FILE_LIMIT: u64 = 1 << 54;
/// How often readers look for that mark, and how often after having given way in vain.
const LOOK_PAUSE: Duration = Duration::from_micros(250);
const LOOK_PAUSE_VAIN: Duration = Duration::from_millis(100);

/// What a connection remembers of locks that others had.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// The mark by which readers are asked to leave, if it is shared.
    wish: Option<u64>,
    /// When the connection last looked for that of others, and when it will again.
    looked: Option<(Stopwatch, Duration)>,
    /// When SQLite was last told that a lock is taken, and how often in a row.
    refused: Option<(Stopwatch, u32)>,
    /// The newest attempt to share the database was refused.
    is_refused_reader: bool,
    /// How many of these there were since somebody woke the connection.
    in_vain: u32,
    /// The lock was the writer's, and SQLite has not begun again since.
    wants_to_write: bool,
    turn: Option<Turn>,
}

/// Commits of one connection, one after the other.
#[derive(Debug)]
struct Turn {
    began: Stopwatch,
    /// When its last commit ended, if one has.
    ended: Option<Stopwatch>,
}

impl Waits {
    fn limit(&self) -> Duration {
        match self.refusals() {
            0 => WAIT_FIRST,
            _ if self.in_vain > VAIN_COUNT => WAIT_FIRST,
            count => (WAIT_FIRST * (1 << (count - 1).min(8))).min(WAIT_AGAIN),
        }
    }

    /// How often in a row SQLite was told that a lock is taken.
    fn refusals(&self) -> u32 {
        match self.refused {
            Some((when, count)) if when.elapsed() < MEMORY => count,
            _ => 0,
        }
    }
}

impl MainFile {
    /// Takes the shared lock, and waits a little for it if need be.
    pub(super) fn share_waiting(&mut self) -> c_int {
        self.give_way();
        self.outlast_writer(|this| {
            let mut is_reserved = 0;
            let code = this.check_reserved_lock(&mut is_reserved);
            code == SQLITE_OK && is_reserved != 0
        });
        let readers = |file| Some(Awaited::FileReaders(file));
        let code = self.try_waiting(readers, |this| this.lock_at_once(SQLITE_LOCK_SHARED));
        if code == SQLITE_BUSY {
            self.note_refused(false);
        }
        // Whoever has got the lock gives way again the next time.
        self.waits.is_refused_reader = code == SQLITE_BUSY;
        code
    }

    /// Takes a lock of writers. Waits a little for an exclusive one if need be.
    pub(super) fn take_lock(&mut self, level: c_int) -> c_int {
        let code = match level {
            // Without the reserved lock, others may want the same: each that finds a journal to
            // roll back, and each that leaves a log as it closes. None waits for others to leave.
            SQLITE_LOCK_EXCLUSIVE if self.lock >= SQLITE_LOCK_RESERVED => self.try_waiting(
                |_| None,
                |this| {
                    let code = this.try_lock(level);
                    if code == SQLITE_BUSY {
                        this.wish_alone();
                    }
                    code
                },
            ),
            _ => self.try_lock(level),
        };
        if code == SQLITE_OK && level == SQLITE_LOCK_EXCLUSIVE {
            self.end_wish();
        }
        match (code, level) {
            (SQLITE_BUSY, SQLITE_LOCK_RESERVED..) => {
                self.note_refused(level == SQLITE_LOCK_RESERVED);
            }
            (SQLITE_OK, SQLITE_LOCK_RESERVED) => self.begin_turn(),
            _ => {}
        }
        code
    }

    /// Asks readers not to begin again at once.
    fn wish_alone(&mut self) {
        let (None, Some(mark)) = (self.waits.wish, self.wish_mark()) else { return };
        if let Backing::Pool(pool, _) = &self.backing
            && matches!(pool.try_share(mark), Ok(true))
        {
            self.waits.wish = Some(mark);
        }
    }

    pub(super) fn end_wish(&mut self) {
        if let (Some(mark), Backing::Pool(pool, _)) = (self.waits.wish.take(), &self.backing) {
            pool.unshare(mark);
        }
    }

    fn wish_mark(&self) -> Option<u64> {
        let number = self.file.as_ref()?.id().0;
        (number < FILE_LIMIT).then_some(WISH_BITS | number)
    }

    /// Lets a writer go first that waits for readers to leave.
    fn give_way(&mut self) {
        let is_early = |(when, pause): &(Stopwatch, Duration)| when.elapsed() < *pause;
        // Who was refused waits for the lock itself, as long as it may.
        if self.waits.looked.as_ref().is_some_and(is_early)
            || self.waits.is_refused_reader && self.waits.refusals() > 0
        {
            return;
        }
        let Some(mark) = self.wish_mark() else { return };
        let mut is_wished = false;
        let readers = |file| Some(Awaited::FileReaders(file));
        self.pause_within(WAIT_AGAIN, readers, |this| {
            is_wished = match &this.backing {
                Backing::Pool(pool, _) => matches!(pool.is_marked(mark), Ok(true)),
                _ => false,
            };
            is_wished
        });
        let pause = if is_wished { LOOK_PAUSE_VAIN } else { LOOK_PAUSE };
        self.waits.looked = Some((Stopwatch::start(), pause));
    }

    /// Tries again and again for a while, with pauses that an awaited event ends.
    fn try_waiting(
        &mut self,
        awaited: impl Fn(FileId) -> Option<Awaited>,
        mut attempt: impl FnMut(&mut MainFile) -> c_int,
    ) -> c_int {
        let mut code = SQLITE_BUSY;
        self.pause_while(awaited, |this| {
            code = attempt(this);
            code == SQLITE_BUSY
        });
        code
    }

    /// Takes note that SQLite is told that somebody has a lock.
    pub(super) fn note_refused(&mut self, is_writers: bool) {
        let count = self.waits.refusals() + 1;
        self.waits.in_vain = if count == 1 { 1 } else { self.waits.in_vain + 1 };
        self.waits.refused = Some((Stopwatch::start(), count));
        self.waits.wants_to_write = is_writers;
    }

    /// Takes note that the connection has a lock of writers.
    pub(super) fn begin_turn(&mut self) {
        self.waits.wants_to_write = false;
        let goes_on = |turn: &Turn| turn.ended.is_none_or(|ended| ended.elapsed() < TURN_GAP);
        if !self.waits.turn.as_ref().is_some_and(goes_on) {
            self.waits.turn = Some(Turn { began: Stopwatch::start(), ended: None });
        }
    }

    /// Waits for the writer that was in the way, if SQLite begins anew.
    pub(super) fn outlast_writer(&mut self, is_taken: impl FnMut(&mut MainFile) -> bool) {
        let begins_anew =
            std::mem::take(&mut self.waits.wants_to_write) && self.waits.refusals() > 0;
        if begins_anew && self.where_to_wait().is_some() {
            self.pause_while(|file| Some(Awaited::FileWriter(file)), is_taken);
        }
    }

    /// Pauses as long as something is taken, for as long as SQLite should wait.
    fn pause_while(
        &mut self,
        awaited: impl Fn(FileId) -> Option<Awaited>,
        is_taken: impl FnMut(&mut MainFile) -> bool,
    ) {
        self.pause_within(self.waits.limit(), awaited, is_taken);
    }

    /// Pauses as long as something is taken, up to a limit.
    fn pause_within(
        &mut self,
        limit: Duration,
        awaited: impl Fn(FileId) -> Option<Awaited>,
        mut is_taken: impl FnMut(&mut MainFile) -> bool,
    ) {
        if !is_taken(self) {
            return;
        }
        let Some((file, device)) = self.where_to_wait() else { return };
        let (mut left, mut next) = (limit, PAUSE_MIN);
        while !left.is_zero() {
            let pause = left.min(next);
            let paused = match awaited(file) {
                Some(awaited) => device.pause(awaited, pause),
                None => {
                    system::sleep(pause);
                    pause
                }
            };
            if paused < pause {
                self.waits.in_vain = 0;
            }
            if !is_taken(self) {
                return;
            }
            left = left.saturating_sub(paused);
            next = (next * 2).min(PAUSE_MAX);
        }
    }

    /// Takes note that locks of writers were given back, and wakes those who wait for them, if it
    /// is their turn.
    pub(super) fn end_turn(&mut self) {
        let Some(turn) = &mut self.waits.turn else { return };
        let is_first = turn.ended.replace(Stopwatch::start()).is_none();
        let is_over = turn.began.elapsed() >= TURN;
        if !is_first && !is_over {
            return;
        }
        let Some((file, device)) = self.where_to_wait() else { return };
        let are_readers = device.wake(Awaited::FileReaders(file));
        let is_writer = device.wake(Awaited::FileWriter(file));
        if is_over {
            self.waits.turn = None;
            if are_readers || is_writer {
                system::sleep(COURTESY);
            }
        }
    }

    /// The file of a pool whose users wait for each other, and its device.
    fn where_to_wait(&self) -> Option<(FileId, Arc<dyn Device>)> {
        match (&self.file, &self.backing) {
            (Some(file), Backing::Pool(pool, _)) => {
                Some((file.id(), Arc::clone(pool.pool().store().device())))
            }
            _ => None,
        }
    }
}
