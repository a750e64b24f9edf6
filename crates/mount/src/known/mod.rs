//! What the kernel knows about the contents of files, and whether that is still true.
//!
//! The kernel keeps what programs write for a while before it tells the server, so it trusts itself
//! about the length and the bytes of a file for as long as it remembers the file. If another
//! process has changed the file meanwhile, it must not find again what it remembers: the file gets
//! another inode number, whose upper bits are its generation. That waits until nobody has the file
//! open for writing, as two inodes of one file would not see each other's bytes; and, if the length
//! is the same, until nobody has it open at all, as they would not see each other's locks.
//!
//! Where a mount takes the place of a dead one, files begin with another generation as well. A
//! program that has one open in the dead mount finds the new one under its name, and SQLite, which
//! compares inode numbers, would take it for the same: it would make its journal there.
//!
//! ```text
//! another process commits ──► epoch of the mount
//! look-up: the epoch is another one, and so are length or times ──► new generation
//! open:    the same, or an older generation ──► ESTALE, and the kernel looks up the name again
//! ```

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use fuser::{FileAttr, INodeNo};

/// A file that changed less than this before it was looked at may change again without another time
/// of change. The engine's times have steps of 10 ms.
const SETTLED: Duration = Duration::from_millis(20);

/// How long the kernel may take to open a file after it has looked up the name once more.
const RETRY_TIME: Duration = Duration::from_millis(100);
/// Where the generation begins in an inode number. No pool has so many files.
const GENERATION_SHIFT: u32 = 48;

/// Returns the inode number of a generation.
fn numbered(number: INodeNo, generation: u16) -> INodeNo {
    INodeNo(number.0 | u64::from(generation) << GENERATION_SHIFT)
}

/// Returns the number of the first generation, and the generation.
fn generation_of(number: INodeNo) -> (INodeNo, u16) {
    let generation = (number.0 >> GENERATION_SHIFT) as u16;
    (INodeNo(number.0 & ((1 << GENERATION_SHIFT) - 1)), generation)
}

/// Returns the number of the first generation.
pub fn first_generation(number: INodeNo) -> INodeNo {
    generation_of(number).0
}

/// The files that the kernel remembers. Their numbers are those of the first generation.
#[derive(Default)]
pub struct Known {
    state: Mutex<State>,
    /// The generation with which files begin.
    begin: u16,
    /// See [`Known::believe_server`].
    believes_server: AtomicBool,
}

#[derive(Default)]
struct State {
    files: BTreeMap<INodeNo, Remembered>,
    refusals: Refusals,
}

/// What was the case when the kernel was last told about a file, in the epoch in which that was.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub epoch: u64,
    stamp: Stamp,
    /// Whether another content would have another stamp.
    is_settled: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stamp {
    len: u64,
    modified: SystemTime,
    changed: SystemTime,
}

impl Seen {
    /// `attributes` must have been read in `epoch`.
    pub fn new(attributes: &FileAttr, epoch: u64) -> Seen {
        let FileAttr { size: len, mtime: modified, ctime: changed, .. } = *attributes;
        let is_old = |time: SystemTime| time.elapsed().is_ok_and(|age| age >= SETTLED);
        let is_settled = is_old(modified) && is_old(changed);
        Seen { epoch, stamp: Stamp { len, modified, changed }, is_settled }
    }
}

struct Remembered {
    /// How often the kernel was told about it, less what it has forgotten.
    count: u64,
    generation: u16,
    open_count: u64,
    /// How often it is open for writing.
    writer_count: u64,
    seen: Seen,
    /// Whether it was changed through this mount since it was seen.
    is_ours: bool,
}

/// Who was refused to open a file lately. The kernel looks up the name then and tries once more,
/// and must not be refused again because another commit has come in between. Meanwhile it may
/// forget the file.
#[derive(Debug, Default)]
struct Refusals(BTreeMap<(INodeNo, Caller), Refusal>);

/// The thread that makes a request.
pub type Caller = u32;

#[derive(Debug)]
struct Refusal {
    at: Instant,
    is_looked_up: bool,
}

impl Refusals {
    fn note(&mut self, first: INodeNo, caller: Caller) {
        self.0.retain(|_, refusal| refusal.at.elapsed() < RETRY_TIME);
        self.0.insert((first, caller), Refusal { at: Instant::now(), is_looked_up: false });
    }

    /// Whether somebody was refused, has looked up the name since, and is about to open the file.
    fn has_due(&self, first: INodeNo, besides: Caller) -> bool {
        self.0.range((first, 0)..=(first, Caller::MAX)).any(|((_, caller), refusal)| {
            *caller != besides && refusal.is_looked_up && refusal.at.elapsed() < RETRY_TIME
        })
    }

    fn note_look_up(&mut self, first: INodeNo, caller: Caller) {
        if let Some(refusal) = self.0.get_mut(&(first, caller)) {
            refusal.is_looked_up = true;
        }
    }

    /// Whether somebody was refused and has looked up the name since.
    fn take(&mut self, first: INodeNo, caller: Caller) -> bool {
        let refusal = self.0.remove(&(first, caller));
        refusal.is_some_and(|it| it.is_looked_up && it.at.elapsed() < RETRY_TIME)
    }
}

/// What becomes of a file that is being opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Opened {
    /// The kernel may keep what it knows of the bytes.
    Known,
    /// It may not, and does not forget the length before those who write have closed the file.
    Outdated,
    /// The kernel has to look up the name first.
    Refused,
}

impl Remembered {
    fn new(generation: u16, seen: Seen) -> Remembered {
        Remembered { count: 0, generation, open_count: 0, writer_count: 0, seen, is_ours: false }
    }

    fn is_sure(&self) -> bool {
        self.seen.is_settled && !self.is_ours
    }

    fn is_outdated(&self, now: Seen) -> bool {
        self.seen.epoch != now.epoch && !(self.is_sure() && self.seen.stamp == now.stamp)
    }

    /// Whether the kernel is right about length and times, and at most about bytes not.
    fn has_right_stamp(&self, now: Seen) -> bool {
        !self.is_ours && self.seen.stamp == now.stamp
    }

    /// Whether the kernel can go on with the inode that it has, once it has forgotten the bytes.
    /// While the file is open, programs may hold locks on it, which two inodes would not share: the
    /// times are outdated then until it is closed.
    fn can_stay(&self, now: Seen) -> bool {
        let is_as_long = self.open_count > 0 && self.seen.stamp.len == now.stamp.len;
        self.has_right_stamp(now) || !self.is_ours && is_as_long
    }

    fn note(&mut self, seen: Seen) {
        (self.seen, self.is_ours) = (seen, false);
    }
}

impl Known {
    /// Files begin with this generation.
    pub fn with_generation(begin: u16) -> Known {
        Known { begin, ..Known::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the kernel believes the server about lengths and times, as it hands over at once
    /// what programs write. Files keep their numbers then.
    pub fn believe_server(&self) {
        self.believes_server.store(true, Ordering::Relaxed);
    }

    /// Whether the kernel trusts itself.
    fn trusts_itself(&self) -> bool {
        !self.believes_server.load(Ordering::Relaxed)
    }

    /// Notes that the kernel is told about a file, and returns its present number.
    pub fn tell(&self, first: INodeNo, now: Seen, caller: Caller) -> INodeNo {
        let State { files, refusals } = &mut *self.state();
        let remembered = files.entry(first).or_insert_with(|| Remembered::new(self.begin, now));
        remembered.count += 1;
        refusals.note_look_up(first, caller);
        let is_outdated = remembered.is_outdated(now) && self.trusts_itself();
        let is_needed = remembered.writer_count > 0 || refusals.has_due(first, caller);
        // Even if it stays, whoever opens it next lets the kernel forget the bytes.
        let stays = is_outdated && (is_needed || remembered.can_stay(now));
        if is_outdated && !stays {
            remembered.generation = remembered.generation.wrapping_add(1);
        }
        if !stays {
            remembered.note(now);
        }
        numbered(first, remembered.generation)
    }

    /// Returns the present number of a file.
    pub fn number(&self, first: INodeNo) -> INodeNo {
        let generation =
            self.state().files.get(&first).map_or(self.begin, |remembered| remembered.generation);
        numbered(first, generation)
    }

    /// Notes that a file is open, unless the kernel has to look it up again. `now` is the case
    /// while it is in use.
    pub fn open(&self, number: INodeNo, now: Seen, writes: bool, caller: Caller) -> Opened {
        let (first, generation) = generation_of(number);
        let State { files, refusals } = &mut *self.state();
        let remembered = files.entry(first).or_insert_with(|| Remembered::new(self.begin, now));
        let is_retry = refusals.take(first, caller);
        let is_older = remembered.generation != generation;
        let is_outdated = remembered.is_outdated(now);
        let is_right = remembered.has_right_stamp(now) || !self.trusts_itself();
        let may_be_outdated =
            is_right || remembered.writer_count > 0 || is_retry || remembered.can_stay(now);
        if is_older || (is_outdated && !may_be_outdated) {
            refusals.note(first, caller);
            return Opened::Refused;
        }
        remembered.open_count += 1;
        remembered.writer_count += u64::from(writes);
        if !is_outdated || is_right {
            remembered.note(now);
        }
        if is_outdated { Opened::Outdated } else { Opened::Known }
    }

    /// Notes that a file was closed.
    pub fn close(&self, number: INodeNo, wrote: bool) {
        if let Some(remembered) = self.state().files.get_mut(&first_generation(number)) {
            remembered.open_count = remembered.open_count.saturating_sub(1);
            remembered.writer_count = remembered.writer_count.saturating_sub(u64::from(wrote));
        }
    }

    /// Whether a file is open for writing, so that the kernel may hold bytes of it.
    pub fn is_written(&self, number: INodeNo) -> bool {
        let state = self.state();
        state
            .files
            .get(&first_generation(number))
            .is_some_and(|remembered| remembered.writer_count > 0)
    }

    /// Notes that a file is about to be changed through this mount.
    pub fn note_change(&self, number: INodeNo) {
        if let Some(remembered) = self.state().files.get_mut(&first_generation(number)) {
            remembered.is_ours = true;
        }
    }

    /// Returns the numbers of the files that are open.
    pub fn open_files(&self) -> Vec<INodeNo> {
        let state = self.state();
        let open = state.files.iter().filter(|(_, remembered)| remembered.open_count > 0);
        open.map(|(first, remembered)| numbered(*first, remembered.generation)).collect()
    }

    /// Returns up to `limit` files of which it would not be known whether others have changed them.
    pub fn unsure(&self, limit: usize) -> Vec<INodeNo> {
        let state = self.state();
        let unsure = state.files.iter().filter(|(_, remembered)| !remembered.is_sure());
        unsure.take(limit).map(|(first, _)| *first).collect()
    }

    /// Notes how a file is now, if nobody else can have changed it since it was seen.
    pub fn note_seen(&self, first: INodeNo, now: Seen) {
        if let Some(remembered) = self.state().files.get_mut(&first)
            && remembered.seen.epoch == now.epoch
        {
            remembered.note(now);
        }
    }

    /// Notes that the kernel has forgotten what it was told `count` times, of any generation.
    pub fn forget(&self, number: INodeNo, count: u64) {
        let (first, mut state) = (first_generation(number), self.state());
        if let Some(remembered) = state.files.get_mut(&first) {
            remembered.count = remembered.count.saturating_sub(count);
            if remembered.count == 0 {
                state.files.remove(&first);
            }
        }
    }
}

#[cfg(test)]
mod tests;
