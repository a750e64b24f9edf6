//! A file of a pool: reads, and uncommitted changes.
//!
//! Changes are gathered in memory in units of 4 KiB. When they exceed a limit, they are compressed
//! and written ahead of the commit into a draft (see `write/draft.rs`), so memory is bounded
//! whatever the size of the transaction, and others can commit in the meantime. Nobody else sees
//! changes before the commit.
//!
//! When a commit or a write ahead fails, all uncommitted changes are dropped: the file returns to
//! its last committed state. Its user may not realise that the changes are gone, so until
//! [`File::discard`] is called, a commit succeeds only if it changes nothing (as when SQLite rolls
//! back by writing the old pages again). A user who knows that the transaction is over calls
//! [`File::forgive`]: then other changes can be committed, and taking back the old ones needs no
//! space, which there may not be.
//!
//! A caller that decides how long to wait for other transactions of the pool
//! ([`File::commit_asking`], [`File::write_at_asking`]) keeps its changes when it gives up waiting,
//! and can try again. Meanwhile memory may grow to [`WAITING_FACTOR`] times its limit; beyond that
//! a write has to wait, and if it gives up, all changes are dropped as above. The callback runs
//! while no lock of the file is held.

mod ahead;
mod commit;
mod together;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};
use std::time::Duration;

use self::ahead::Draft;
use super::Options;
use super::extents::readahead::ReadAhead;
use super::extents::source::Committed;
use super::extents::{self, UNIT_LEN};
use super::namespace::entries;
use super::write::adapt::{Adapt, Choice};
use super::write::history::History;
use crate::error::{Error, Result};
use crate::pool::extents::FILE_LEN_MAX;
use crate::store::{Ask, Patience, Pin, State, Store};
use crate::units::{FileId, Txg};

/// While another transaction prevents writing ahead, changes may take this many times their usual
/// memory. Beyond that, their writer has to wait.
pub const WAITING_FACTOR: usize = 8;

/// How long to wait for another transaction before keeping more changes in memory.
const AHEAD_WAIT: Duration = Duration::from_millis(50);
/// The number of bytes at the front of a file that are kept in memory: SQLite's header, part of
/// which every transaction reads.
const FRONT_LEN: usize = 128;
/// What every SQLite database begins with.
const SQLITE_MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// A file of an open pool.
#[derive(Debug)]
pub struct File {
    store: Arc<Store>,
    id: FileId,
    options: Options,
    /// Patches are cut at multiples of this, so that a page is never split.
    granule: AtomicU64,
    /// Whether `pending` holds anything: if not, committed reads need not lock it.
    dirty: AtomicBool,
    pending: RwLock<Pending>,
    /// See [`File::turn`].
    turn: Mutex<()>,
    /// The length in a committed state, looked up once per state.
    committed_len: RwLock<(Txg, u64)>,
    /// The first bytes in a committed state.
    front: RwLock<(Txg, [u8; FRONT_LEN])>,
    readahead: ReadAhead,
    adapt: Arc<Adapt>,
    history: Arc<History>,
}

/// Uncommitted changes.
#[derive(Debug, Default)]
struct Pending {
    units: BTreeMap<u64, Box<[u8]>>,
    /// The new length of the file, if it changes.
    len: Option<u64>,
    /// The smallest length the file was truncated to; committed bytes past it read as zeros.
    cut: Option<u64>,
    /// The changes written ahead.
    draft: Option<Draft>,
    /// After a wait in vain, nothing is written ahead before the changes take more bytes than this.
    patient_until: usize,
    /// Whether a commit failed, see above.
    failed: bool,
    /// Whether the changes may be those that undo a transaction whose commit failed.
    undoes: bool,
    /// Whether some of them were dropped, since they write back what is committed.
    has_undone: bool,
    /// The time of the last change to record, if it is not that of the commit.
    time_ns: Option<i64>,
    /// When the last change was made, if that is known.
    written_ns: Option<i64>,
}

impl File {
    pub(super) fn new(store: Arc<Store>, options: &Options, id: FileId) -> File {
        File {
            store,
            id,
            options: options.clone(),
            granule: AtomicU64::new(UNIT_LEN),
            dirty: AtomicBool::new(false),
            pending: RwLock::default(),
            turn: Mutex::default(),
            committed_len: RwLock::new((Txg(0), 0)),
            front: RwLock::new((Txg(0), [0; FRONT_LEN])),
            readahead: ReadAhead::default(),
            adapt: Arc::new(Adapt::new(Arc::clone(&options.clock))),
            history: Arc::default(),
        }
    }

    /// Creates the handle of a file that no committed state has yet, and that is empty.
    pub(super) fn created(store: Arc<Store>, options: &Options, id: FileId) -> File {
        let empty = Pending { len: Some(0), cut: Some(0), ..Pending::default() };
        let (dirty, pending) = (AtomicBool::new(true), RwLock::new(empty));
        File { dirty, pending, ..File::new(store, options, id) }
    }

    /// Returns the file's id.
    pub fn id(&self) -> FileId {
        self.id
    }

    /// Looks at the first bytes of the file: if they are those of a SQLite database, its pages have
    /// the length that is written there, see [`File::set_page_len_hint`].
    pub fn note_header(&self, header: &[u8]) {
        if let Some([high, low]) = header.get(16..18).filter(|_| header.starts_with(SQLITE_MAGIC)) {
            let len = match u32::from(u16::from_be_bytes([*high, *low])) {
                1 => 65536,
                len => len,
            };
            self.set_page_len_hint(len);
        }
    }

    /// Sets the length of the pages that the file consists of, in bytes, so that changes of whole
    /// pages are kept together.
    pub fn set_page_len_hint(&self, page_len: u32) {
        let granule = u64::from(page_len).next_power_of_two().clamp(UNIT_LEN, 1 << 16);
        self.granule.store(granule, Ordering::Relaxed);
    }

    fn len_in(&self, state: &State) -> Result<u64> {
        let known = *self.committed_len.read().unwrap_or_else(PoisonError::into_inner);
        if known.0 == state.txg() {
            return Ok(known.1);
        }
        let len = entries::attributes(&mut Committed::new(&self.store, state), self.id)?.len;
        *self.committed_len.write().unwrap_or_else(PoisonError::into_inner) = (state.txg(), len);
        Ok(len)
    }

    fn pending(&self) -> RwLockWriteGuard<'_, Pending> {
        self.pending.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody else changes, commits or discards the file's changes in its own turn. To
    /// write ahead takes several steps, between which changes by another thread would get lost; so
    /// threads that share a file as its writers take turns. Whoever begins a transaction takes its
    /// turns before.
    pub(super) fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the length in bytes, including uncommitted changes.
    #[expect(
        clippy::len_without_is_empty,
        reason = "the length can fail; nobody asks for emptiness"
    )]
    pub fn len(&self) -> Result<u64> {
        if self.is_dirty()
            && let Some(len) = self.pending.read().unwrap_or_else(PoisonError::into_inner).len
        {
            return Ok(len);
        }
        self.store.with_state(|state| self.len_in(state))
    }

    /// Whether there are uncommitted changes.
    pub fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire)
    }

    /// Fills `buf` from `offset`, including uncommitted changes. Returns how many bytes lie before
    /// the end of the file; the rest of `buf` is zero.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        if self.is_dirty() {
            let pending = self.pending.read().unwrap_or_else(PoisonError::into_inner);
            let len = self.pending_len(&pending)?;
            let n = clip(buf, offset, len);
            self.read_pending(&pending, &mut buf[..n], offset)?;
            return Ok(n);
        }
        self.read_committed_at(buf, offset)
    }

    /// Returns the parts of the committed file except holes of `hole_len_min` bytes or more, in
    /// order, and its length.
    pub fn covered_ranges(&self, hole_len_min: u64) -> Result<(Vec<(u64, u64)>, u64)> {
        self.store.with_state(|state| {
            let len = self.len_in(state)?;
            let source = &mut Committed::new(&self.store, state);
            Ok((extents::covered_ranges(source, self.id, len, hole_len_min)?, len))
        })
    }

    /// Reads like [`File::read_at`] but without uncommitted changes. Never waits for a thread that
    /// makes or commits changes.
    pub fn read_committed_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.store.with_state(|state| self.read_in(state, buf, offset))
    }

    /// Reads like [`File::read_committed_at`], from a pinned state.
    pub fn read_pinned_at(&self, pin: &Pin, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.read_in(pin.state(), buf, offset)
    }

    /// Returns the length in bytes in a pinned state.
    pub fn pinned_len(&self, pin: &Pin) -> Result<u64> {
        self.len_in(pin.state())
    }

    fn read_in(&self, state: &State, buf: &mut [u8], offset: u64) -> Result<usize> {
        let n = clip(buf, offset, self.len_in(state)?);
        if offset + n as u64 <= FRONT_LEN as u64 {
            self.read_front_in(state, &mut buf[..n], offset as usize)?;
            return Ok(n);
        }
        let mut source = Committed::new(&self.store, state);
        let readahead = &self.readahead;
        // Errors are ignored: the data ahead may be damaged, but it was not asked for.
        let is_scan = readahead
            .note(&mut source, &self.store, self.id, offset, n as u64, || self.options.threads());
        source.is_point = !is_scan.unwrap_or(true);
        source.is_shared = source.is_point;
        extents::read_range(&mut source, self.id, &mut buf[..n], offset)?;
        Ok(n)
    }

    /// Reads from the first bytes of the file, which are kept between reads of the same state.
    fn read_front_in(&self, state: &State, buf: &mut [u8], offset: usize) -> Result<()> {
        let known = *self.front.read().unwrap_or_else(PoisonError::into_inner);
        let (txg, mut front) = known;
        if txg != state.txg() {
            front = [0; FRONT_LEN];
            let n = clip(&mut front, 0, self.len_in(state)?);
            let mut source =
                Committed { is_point: true, is_shared: true, ..Committed::new(&self.store, state) };
            extents::read_range(&mut source, self.id, &mut front[..n], 0)?;
            *self.front.write().unwrap_or_else(PoisonError::into_inner) = (state.txg(), front);
        }
        buf.copy_from_slice(&front[offset..offset + buf.len()]);
        Ok(())
    }

    /// Reads through the uncommitted changes. `buf` must end before the end of the file.
    fn read_pending(&self, pending: &Pending, buf: &mut [u8], offset: u64) -> Result<()> {
        if buf.is_empty() {
            return Ok(());
        }
        let end = offset + buf.len() as u64;
        let units = pending.units.range(offset / UNIT_LEN..end.div_ceil(UNIT_LEN));
        let covered = units.clone().count() as u64 == end.div_ceil(UNIT_LEN) - offset / UNIT_LEN;
        if !covered {
            let drafted = self.drafted(pending)?;
            // The draft may still hold what was cut off since.
            let cut = match &pending.draft {
                Some(draft) => draft.cut,
                None => pending.cut,
            };
            let until = cut.unwrap_or(u64::MAX).clamp(offset, end);
            let (below, beyond) = buf.split_at_mut((until - offset) as usize);
            beyond.fill(0);
            self.store.with_state(|state| {
                drafted.read(&mut Committed::new(&self.store, state), below, offset)
            })?;
        }
        for (index, unit) in pending.units.range(offset / UNIT_LEN..end.div_ceil(UNIT_LEN)) {
            let start = index * UNIT_LEN;
            let (from, to) = (start.max(offset), (start + UNIT_LEN).min(end));
            buf[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&unit[(from - start) as usize..(to - start) as usize]);
        }
        Ok(())
    }

    /// Changes the bytes at `offset` and extends the file if needed. Commits nothing.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        if self.keep(buf, offset)? <= self.options.dirty_len_max {
            return Ok(());
        }
        self.write_ahead(&mut |checksum| self.store.begin(checksum))
    }

    /// Writes like [`File::write_at`], but `ask` decides how long to wait for other transactions.
    /// If it gives up, the result is [`Error::Busy`] and all changes are dropped.
    pub fn write_at_asking(&self, buf: &[u8], offset: u64, ask: &mut Ask<'_>) -> Result<()> {
        let (len, len_max) = (self.keep(buf, offset)?, self.options.dirty_len_max);
        if len <= len_max || len <= self.pending().patient_until {
            return Ok(());
        }
        if len > len_max.saturating_mul(WAITING_FACTOR) {
            let done = self.write_ahead(&mut |checksum| self.store.begin_asking(checksum, ask));
            if matches!(done, Err(Error::Busy)) {
                self.fail(&mut self.pending());
            }
            return done;
        }
        let patience = Patience::Within(AHEAD_WAIT);
        match self.write_ahead(&mut |checksum| self.store.begin_with(checksum, patience)) {
            Err(Error::Busy) => {
                self.pending().patient_until = len + len_max / 4;
                Ok(())
            }
            done => done,
        }
    }

    /// Waits before a commit, as long as `ask` allows, like [`Store::await_turn`]; not if there is
    /// nothing to commit.
    pub fn await_turn(&self, ask: &mut Ask<'_>) -> Result<()> {
        if !self.is_dirty() {
            return Ok(());
        }
        match self.store.await_turn(&mut || false) {
            Err(Error::Busy) if !self.changes_nothing()? => self.store.await_turn(ask),
            Err(Error::Busy) => Ok(()),
            free => free,
        }
    }

    /// Whether the file equals its last committed state in spite of its changes.
    fn changes_nothing(&self) -> Result<bool> {
        self.is_same(&self.pending())
    }

    /// Keeps changes in memory. Returns the size of all changes in bytes.
    fn keep(&self, buf: &[u8], offset: u64) -> Result<usize> {
        if self.store.is_read_only() {
            return Err(self.store.refusal());
        }
        let end = offset.checked_add(buf.len() as u64).filter(|end| *end <= FILE_LEN_MAX);
        let end = end.ok_or_else(|| Error::Invalid("the file would be too long".into()))?;
        if buf.is_empty() {
            return Ok(0);
        }
        let mut pending = self.pending();
        self.dirty.store(true, Ordering::Release);
        let done = self.write_units(&mut pending, buf, offset, end);
        if done.is_err() && pending.draft.is_some() {
            // If composing the units failed, the part written ahead is of no use.
            self.fail(&mut pending);
        }
        done?;
        Ok(pending.units.len() * UNIT_LEN as usize)
    }

    fn write_units(&self, pending: &mut Pending, buf: &[u8], offset: u64, end: u64) -> Result<()> {
        let len = self.pending_len(pending)?;
        let mut at = offset;
        while at < end {
            let index = at / UNIT_LEN;
            let (from, to) = (at - index * UNIT_LEN, (end - index * UNIT_LEN).min(UNIT_LEN));
            let part = &buf[(at - offset) as usize..][..(to - from) as usize];
            if to - from == UNIT_LEN {
                pending.units.insert(index, part.into());
            } else {
                let unit = self.unit_mut(pending, index, len)?;
                unit[from as usize..to as usize].copy_from_slice(part);
            }
            at += to - from;
        }
        if end > len {
            pending.len = Some(end);
        }
        Ok(())
    }

    /// Returns a unit of the uncommitted changes, filled with the file's bytes if it was missing.
    fn unit_mut<'p>(
        &self,
        pending: &'p mut Pending,
        index: u64,
        len: u64,
    ) -> Result<&'p mut Box<[u8]>> {
        if !pending.units.contains_key(&index) {
            let mut unit = vec![0; UNIT_LEN as usize].into_boxed_slice();
            let start = index * UNIT_LEN;
            let n = clip(&mut unit, start, len);
            self.read_pending(pending, &mut unit[..n], start)?;
            pending.units.insert(index, unit);
        }
        // It exists: a missing one was just inserted.
        Ok(pending.units.entry(index).or_default())
    }

    fn pending_len(&self, pending: &Pending) -> Result<u64> {
        match pending.len {
            Some(len) => Ok(len),
            None => self.store.with_state(|state| self.len_in(state)),
        }
    }

    /// Truncates or extends the file. Commits nothing.
    pub fn set_len(&self, len: u64) -> Result<()> {
        if self.store.is_read_only() {
            return Err(self.store.refusal());
        }
        if len > FILE_LEN_MAX {
            return Err(Error::Invalid("the file would be too long".into()));
        }
        let mut pending = self.pending();
        let old = self.pending_len(&pending)?;
        if len == old {
            return Ok(());
        }
        self.dirty.store(true, Ordering::Release);
        if len < old {
            let tail = len % UNIT_LEN;
            pending.units.split_off(&len.div_ceil(UNIT_LEN));
            if let Some(unit) = pending.units.get_mut(&(len / UNIT_LEN)) {
                unit[tail as usize..].fill(0);
            }
            pending.cut = Some(pending.cut.map_or(len, |cut| cut.min(len)));
            if let Some(draft) = &mut pending.draft {
                draft.cut = Some(draft.cut.map_or(len, |cut| cut.min(len)));
            }
        }
        pending.len = Some(len);
        Ok(())
    }

    /// Sets the time of the last change that the next commit records, in nanoseconds since 1970,
    /// instead of the time of the commit. Without changes of the content, nothing is recorded.
    pub fn set_time(&self, modified_ns: i64) {
        self.pending().time_ns = Some(modified_ns);
    }

    /// Notes that a change is made at this time, which the next commit records as that of the last
    /// change of content and of attributes.
    pub(super) fn set_written(&self, now_ns: i64) {
        let mut pending = self.pending();
        (pending.time_ns, pending.written_ns) = (Some(now_ns), Some(now_ns));
    }

    /// Sets the times of the last change of content and of attributes that the next commit records.
    /// Returns false if there are no changes to commit.
    pub(super) fn set_times(&self, modified_ns: i64, changed_ns: i64) -> bool {
        let mut pending = self.pending();
        let is_dirty = self.is_dirty();
        if is_dirty {
            (pending.time_ns, pending.written_ns) = (Some(modified_ns), Some(changed_ns));
        }
        is_dirty
    }

    /// Returns the times of the last change of content and of attributes that the next commit
    /// records, as far as they are known.
    pub fn times(&self) -> (Option<i64>, Option<i64>) {
        let pending = self.pending.read().unwrap_or_else(PoisonError::into_inner);
        (pending.time_ns, pending.written_ns)
    }

    /// Returns the size of the uncommitted changes in memory, in bytes.
    pub fn pending_bytes(&self) -> usize {
        match self.is_dirty() {
            true => {
                let pending = self.pending.read().unwrap_or_else(PoisonError::into_inner);
                pending.units.len() * UNIT_LEN as usize
            }
            false => 0,
        }
    }

    /// Returns the last choice of `compression=auto` in this process, and its reason.
    pub fn auto_choice(&self) -> Option<Choice> {
        self.adapt.choice()
    }

    /// Waits for background work to end.
    pub(super) fn quiesce(&self) {
        self.readahead.stop();
    }

    /// Drops all uncommitted changes and clears the mark of a failed commit.
    pub fn discard(&self) {
        let draft = self.take_back(&mut self.pending());
        self.remove_draft(draft);
    }

    /// Drops all uncommitted changes. Returns their draft, which is left to be removed once others
    /// may go on.
    fn take_back(&self, pending: &mut Pending) -> Option<Draft> {
        self.dirty.store(false, Ordering::Release);
        std::mem::take(pending).draft
    }

    /// Like [`File::discard`], after a commit that failed, by whomever: the next changes may be the
    /// old content.
    pub fn forgive(&self) {
        self.discard();
        self.pending().undoes = true;
    }

    /// Clears the mark of a failed commit if all changes since then write back what is committed.
    /// Returns whether it did; then there are no changes any more.
    pub fn clear_if_taken_back(&self) -> Result<bool> {
        let mut pending = self.pending();
        let is_taken_back = pending.failed && self.is_same(&pending)?;
        if is_taken_back {
            let draft = self.take_back(&mut pending);
            drop(pending);
            self.remove_draft(draft);
        }
        Ok(is_taken_back)
    }

    /// Drops all uncommitted changes, as a failed commit does: until [`File::discard`], only the
    /// committed content can be written back.
    pub fn abandon(&self) {
        self.fail(&mut self.pending());
    }

    /// Drops all uncommitted changes after a failure.
    fn fail(&self, pending: &mut Pending) {
        let Pending { draft, .. } =
            std::mem::replace(pending, Pending { failed: true, ..Pending::default() });
        self.remove_draft(draft);
    }
}

fn refused() -> Error {
    Error::Invalid("an earlier write of this transaction failed; roll it back".into())
}

/// Zeros the part of `buf` at or past `len`, and returns how many bytes lie before it.
fn clip(buf: &mut [u8], offset: u64, len: u64) -> usize {
    let n = usize::try_from(len.saturating_sub(offset)).unwrap_or(usize::MAX).min(buf.len());
    buf[n..].fill(0);
    n
}
