//! A file of a pool: reads, and the changes that are not committed yet.
//!
//! Changes are gathered in units of 4 KiB in memory. When they exceed a limit they are compressed
//! and written out ahead of the commit, into a transaction that stays open until then; memory is
//! bounded whatever the size of the transaction. Nothing is visible to others before the commit.
//!
//! When a commit, or writing ahead, fails, all uncommitted changes are dropped: the file is what
//! was last committed. Its user may know better what he changed than that it is gone, so from then on
//! a commit succeeds only if it changes nothing (as when SQLite rolls back by writing the old pages
//! again), until [`File::discard`] is called.
//!
//! Who says himself how long he waits for other transactions of the pool ([`File::commit_asking`],
//! [`File::write_at_asking`]) keeps his changes when he gives up waiting, and can try again. Meanwhile memory may grow to
//! [`WAITING_FACTOR`] times its limit; beyond that a write has to wait, and where it gives up, all changes are
//! dropped as above. He is asked without any lock of the file being held.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

use super::Options;
use super::extents::readahead::ReadAhead;
use super::extents::source::Committed;
use super::extents::{self, UNIT_LEN};
use super::namespace::entries;
use super::namespace::props::Settings;
use super::write::adapt::{Adapt, Choice};
use super::write::dictionaries;
use super::write::history::History;
use super::write::jobs::Target;
use super::write::{self, Changes};
use crate::codec::Dictionary;
use crate::error::{Error, Result};
use crate::pool::extents::FILE_LEN_MAX;
use crate::store::format::checksum::ChecksumKind;
use crate::store::{Ask, Durability, Patience, State, Store, Txn};
use crate::units::{FileId, Txg};

/// While another transaction keeps changes from being written ahead, they may take so many times their usual memory.
/// Beyond that, who makes them has to wait.
pub const WAITING_FACTOR: usize = 8;

/// So many bytes at the front of a file are kept at hand: SQLite's header, of which every transaction
/// reads a part.
const FRONT_LEN: usize = 128;

/// A file of an open pool.
#[derive(Debug)]
pub struct File {
    store: Arc<Store>,
    id: FileId,
    threads: usize,
    dirty_len_max: usize,
    /// Patches are cut at multiples of this, so that a page is never in two.
    granule: AtomicU64,
    /// Whether `pending` holds anything: committed reads then need not lock it.
    dirty: AtomicBool,
    pending: RwLock<Pending>,
    /// The length in a committed state, to be looked up once a state.
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
    /// The new length of the file, where it changes.
    len: Option<u64>,
    /// The file was cut to this length at some point; what was committed behind it reads as zeros.
    cut: Option<u64>,
    /// The transaction that holds what was written ahead.
    txn: Option<Txn>,
    /// A commit failed, see above.
    failed: bool,
}

impl File {
    pub(super) fn new(store: Arc<Store>, options: &Options, id: FileId) -> File {
        File {
            store,
            id,
            threads: options.threads,
            dirty_len_max: options.dirty_len_max,
            granule: AtomicU64::new(UNIT_LEN),
            dirty: AtomicBool::new(false),
            pending: RwLock::default(),
            committed_len: RwLock::new((Txg(0), 0)),
            front: RwLock::new((Txg(0), [0; FRONT_LEN])),
            readahead: ReadAhead::default(),
            adapt: Arc::new(Adapt::new(Arc::clone(&options.clock))),
            history: Arc::default(),
        }
    }

    /// What identifies the file.
    pub fn id(&self) -> FileId {
        self.id
    }

    /// Tells the length of the pages that the file is made of, in bytes: changes of whole pages are
    /// kept together.
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

    /// The length in bytes, uncommitted changes included.
    #[allow(clippy::len_without_is_empty)]
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

    /// Whether the uncommitted changes have the pool's transaction already, since a part of them was written ahead.
    pub fn has_begun(&self) -> bool {
        self.is_dirty() && self.pending.read().unwrap_or_else(PoisonError::into_inner).txn.is_some()
    }

    /// Fills `buf` from `offset`, uncommitted changes included. Returns how many bytes there were
    /// before the end of the file; the rest of `buf` is zero.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        if self.is_dirty() {
            let mut pending = self.pending();
            let len = match pending.len {
                Some(len) => len,
                None => self.store.with_state(|state| self.len_in(state))?,
            };
            let n = clip(buf, offset, len);
            self.read_pending(&mut pending, &mut buf[..n], offset)?;
            return Ok(n);
        }
        self.read_committed_at(buf, offset)
    }

    /// The parts of the committed file that are not holes of `hole_len_min` bytes or more, in order, and its length.
    pub fn covered_ranges(&self, hole_len_min: u64) -> Result<(Vec<(u64, u64)>, u64)> {
        self.store.with_state(|state| {
            let len = self.len_in(state)?;
            let source = &mut Committed::new(&self.store, state);
            Ok((extents::covered_ranges(source, self.id, len, hole_len_min)?, len))
        })
    }

    /// Like [`File::read_at`], without uncommitted changes: whoever makes or commits some, this never
    /// waits for him.
    pub fn read_committed_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.store.with_state(|state| {
            let n = clip(buf, offset, self.len_in(state)?);
            if offset + n as u64 <= FRONT_LEN as u64 {
                self.read_front_in(state, &mut buf[..n], offset as usize)?;
                return Ok(n);
            }
            let mut source = Committed::new(&self.store, state);
            let readahead = &self.readahead;
            // What is ahead may be damaged, and is not what was asked for.
            let continues =
                readahead.note(&mut source, &self.store, self.id, offset, n as u64, self.threads);
            source.is_point = !continues.unwrap_or(true);
            extents::read_range(&mut source, self.id, &mut buf[..n], offset)?;
            Ok(n)
        })
    }

    /// Reads from the first bytes of the file, which are kept from one read of a state to the next.
    fn read_front_in(&self, state: &State, buf: &mut [u8], offset: usize) -> Result<()> {
        let known = *self.front.read().unwrap_or_else(PoisonError::into_inner);
        let (txg, mut front) = known;
        if txg != state.txg() {
            front = [0; FRONT_LEN];
            let n = clip(&mut front, 0, self.len_in(state)?);
            let mut source = Committed::new(&self.store, state);
            extents::read_range(&mut source, self.id, &mut front[..n], 0)?;
            *self.front.write().unwrap_or_else(PoisonError::into_inner) = (state.txg(), front);
        }
        buf.copy_from_slice(&front[offset..offset + buf.len()]);
        Ok(())
    }

    /// Reads through the uncommitted changes. `buf` ends before the end of the file.
    fn read_pending(&self, pending: &mut Pending, buf: &mut [u8], offset: u64) -> Result<()> {
        if buf.is_empty() {
            return Ok(());
        }
        let end = offset + buf.len() as u64;
        let units = pending.units.range(offset / UNIT_LEN..end.div_ceil(UNIT_LEN));
        let covered = units.clone().count() as u64 == end.div_ceil(UNIT_LEN) - offset / UNIT_LEN;
        if !covered {
            let until = pending.cut.unwrap_or(u64::MAX).clamp(offset, end);
            let (below, beyond) = buf.split_at_mut((until - offset) as usize);
            beyond.fill(0);
            match &mut pending.txn {
                Some(txn) => extents::read_range(txn, self.id, below, offset)?,
                None => self.store.with_state(|state| {
                    let mut source = Committed::new(&self.store, state);
                    extents::read_range(&mut source, self.id, below, offset)
                })?,
            }
        }
        for (index, unit) in pending.units.range(offset / UNIT_LEN..end.div_ceil(UNIT_LEN)) {
            let start = index * UNIT_LEN;
            let (from, to) = (start.max(offset), (start + UNIT_LEN).min(end));
            buf[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&unit[(from - start) as usize..(to - start) as usize]);
        }
        Ok(())
    }

    /// Changes the bytes at `offset`, growing the file where needed. Nothing is committed yet.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        if self.keep(buf, offset)? <= self.dirty_len_max {
            return Ok(());
        }
        self.write_ahead(&mut self.pending())
    }

    /// Like [`File::write_at`], but `ask` decides how long to wait for other transactions. When it gives up, the result
    /// is [`Error::Busy`], and all changes are dropped.
    pub fn write_at_asking(&self, buf: &[u8], offset: u64, ask: &mut Ask<'_>) -> Result<()> {
        let len = self.keep(buf, offset)?;
        if len <= self.dirty_len_max {
            return Ok(());
        }
        let can_wait = len <= self.dirty_len_max.saturating_mul(WAITING_FACTOR);
        let begun = self.prepare(&mut |checksum| match can_wait {
            true => self.store.begin_with(checksum, Patience::None),
            false => self.store.begin_asking(checksum, ask),
        });
        let mut pending = self.pending();
        match begun {
            Ok(()) => self.write_ahead(&mut pending),
            Err(Error::Busy) if can_wait => Ok(()),
            Err(error) => {
                *pending = Pending { failed: true, ..Pending::default() };
                Err(error)
            }
        }
    }

    /// Begins the transaction of the changes, unless it has begun or will never.
    fn prepare(&self, begin: &mut dyn FnMut(ChecksumKind) -> Result<Txn>) -> Result<()> {
        let needs_none = |pending: &Pending| pending.failed || pending.txn.is_some();
        if needs_none(&self.pending()) {
            return Ok(());
        }
        let txn = begin(self.settings()?.checksum)?;
        let mut pending = self.pending();
        if !needs_none(&pending) {
            txn.park();
            pending.txn = Some(txn);
        }
        Ok(())
    }

    /// Waits until the changes could be committed, as `ask` says, and does not begin to.
    pub fn await_turn(&self, ask: &mut Ask<'_>) -> Result<()> {
        if !self.is_dirty() || self.pending().txn.is_some() {
            return Ok(());
        }
        match self.store.await_turn(&mut || false) {
            Err(Error::Busy) if !self.changes_nothing()? => self.store.await_turn(ask),
            Err(Error::Busy) => Ok(()),
            free => free,
        }
    }

    /// Whether the file is as it was committed last, in spite of its changes.
    fn changes_nothing(&self) -> Result<bool> {
        self.is_same(&self.pending())
    }

    /// Keeps changes in memory, and says how many bytes they are.
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
        if done.is_err() && pending.txn.is_some() {
            // Composing the units may have had to write ahead.
            *pending = Pending { failed: true, ..Pending::default() };
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

    /// A unit of the uncommitted changes, filled with what the file has there.
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
        // It is there: it was just inserted where it was missing.
        Ok(pending.units.entry(index).or_default())
    }

    fn pending_len(&self, pending: &Pending) -> Result<u64> {
        match pending.len {
            Some(len) => Ok(len),
            None => self.store.with_state(|state| self.len_in(state)),
        }
    }

    /// Cuts or extends the file. Nothing is committed yet.
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
        }
        pending.len = Some(len);
        Ok(())
    }

    /// What `compression=auto` chose last in this process, and why.
    pub fn auto_choice(&self) -> Option<Choice> {
        self.adapt.choice()
    }

    /// Waits for what goes on in the background.
    pub(super) fn quiesce(&self) {
        self.readahead.stop();
    }

    /// Forgets all uncommitted changes, and that a commit failed.
    pub fn discard(&self) {
        let mut pending = self.pending();
        *pending = Pending::default();
        self.dirty.store(false, Ordering::Release);
    }

    /// Publishes the changes as one transaction. Does nothing where there are none, except to make
    /// durable what is only visible so far.
    pub fn commit(&self, durability: Durability) -> Result<()> {
        if !self.is_dirty() {
            return match durability {
                Durability::Durable => self.store.make_durable(),
                Durability::Visible => Ok(()),
            };
        }
        let mut pending = self.pending();
        if pending.failed {
            return self.commit_nothing(&mut pending, durability);
        }
        let done = self.commit_pending(&mut pending, durability);
        self.settle(&mut pending, &done);
        done
    }

    /// Like [`File::commit`], but `ask` decides how long to wait for other transactions. When it gives up, the result is
    /// [`Error::Busy`], and all changes are kept. A commit without effective changes does not wait.
    pub fn commit_asking(&self, durability: Durability, ask: &mut Ask<'_>) -> Result<()> {
        if self.is_dirty() {
            let at_once = |checksum| self.store.begin_with(checksum, Patience::None);
            match self.prepare(&mut { at_once }) {
                Err(Error::Busy) if self.changes_nothing()? => self.discard(),
                Err(Error::Busy) => {
                    self.prepare(&mut |checksum| self.store.begin_asking(checksum, ask))?;
                }
                Err(error) => {
                    self.settle(&mut self.pending(), &Err(Error::Busy));
                    return Err(error);
                }
                Ok(()) => {}
            }
        }
        match durability {
            Durability::Durable if !self.is_dirty() => self.store.make_durable_asking(ask),
            _ => self.commit(durability),
        }
    }

    fn commit_pending(&self, pending: &mut Pending, durability: Durability) -> Result<()> {
        let mut txn = self.take_txn(pending)?;
        let len = self.apply(&mut txn, pending)?;
        let mut attributes = entries::attributes(&mut txn, self.id)?;
        // The time of the change is not known here, where there is no clock; the one before is wrong.
        if attributes.len != len || attributes.modified_ns != 0 {
            txn.stats_mut().change_file_len(attributes.len, len);
            attributes.len = len;
            attributes.modified_ns = 0;
            entries::set_attributes(&mut txn, self.id, &attributes)?;
        }
        txn.commit(durability).map(drop)
    }

    /// Writes the changes into a transaction that stays open until the commit.
    fn write_ahead(&self, pending: &mut Pending) -> Result<()> {
        if pending.failed {
            return self.drop_unchanged(pending);
        }
        let done = self.take_txn(pending).and_then(|mut txn| {
            let len = self.apply(&mut txn, pending)?;
            Ok((txn, len))
        });
        match done {
            Ok((txn, len)) => {
                txn.park();
                pending.txn = Some(txn);
                pending.len = Some(len);
                Ok(())
            }
            Err(error) => {
                *pending = Pending { failed: true, ..Pending::default() };
                Err(error)
            }
        }
    }

    /// Makes room after a failure, when only changes that change nothing can be committed: they need
    /// not be kept. Any other is refused.
    fn drop_unchanged(&self, pending: &mut Pending) -> Result<()> {
        let len = self.store.with_state(|state| self.len_in(state))?;
        for (index, unit) in std::mem::take(&mut pending.units) {
            let is_cut = pending.cut.is_some_and(|cut| cut < ((index + 1) * UNIT_LEN).min(len));
            if is_cut || self.committed_unit(index, len)? != unit[..] {
                *pending = Pending { failed: true, ..Pending::default() };
                return Err(refused());
            }
        }
        Ok(())
    }

    fn take_txn(&self, pending: &mut Pending) -> Result<Txn> {
        match pending.txn.take() {
            Some(txn) => {
                txn.resume();
                Ok(txn)
            }
            None => {
                let checksum = self.settings()?.checksum;
                self.store.begin(checksum)
            }
        }
    }

    fn settings(&self) -> Result<Settings> {
        self.store.with_state(|state| {
            let mut source = Committed::new(&self.store, state);
            Ok(entries::settings(&mut source, self.id)?.0)
        })
    }

    /// Hands the changes to the write path. Returns the length of the file after them.
    fn apply(&self, txn: &mut Txn, pending: &mut Pending) -> Result<u64> {
        let (settings, _) = entries::settings(txn, self.id)?;
        let len = match pending.len {
            Some(len) => len,
            None => entries::attributes(txn, self.id)?.len,
        };
        let dictionary = self.dictionary(txn, pending, &settings)?;
        let history = Arc::clone(&self.history);
        let adapt = settings.auto.map(|_| Arc::clone(&self.adapt));
        if adapt.is_some() {
            self.adapt.begin();
        }
        let fold_budget = write::fold_budget(pending.units.len() as u64 * UNIT_LEN);
        let changes = Changes {
            target: Target {
                file: self.id,
                settings,
                threads: self.threads,
                dictionary,
                adapt,
                history,
                is_exact: false,
            },
            units: std::mem::take(&mut pending.units),
            cut: pending.cut.take(),
            len,
            granule: self.granule.load(Ordering::Relaxed),
            fold_budget,
        };
        let done = write::apply(txn, changes);
        self.adapt.end();
        done.map(|()| len)
    }

    /// The dictionary for the changes. The first large write of short records trains one.
    fn dictionary(
        &self,
        txn: &mut Txn,
        pending: &Pending,
        settings: &Settings,
    ) -> Result<Option<(u32, Arc<Dictionary>)>> {
        let count = pending.units.len() as u64;
        let trains = count >= dictionaries::PAGE_COUNT_MIN
            && dictionaries::serves_records(settings)
            && entries::dictionary(txn, self.id)?.is_none();
        if trains {
            let units: Vec<_> = pending.units.values().collect();
            let mut page = |index: u64| Ok(units[index as usize].to_vec());
            let ashift = self.store.ashift();
            let dictionary = dictionaries::train(count, &mut page, settings, ashift)?;
            dictionaries::adopt(txn, self.id, dictionary.as_ref(), settings)?;
        }
        dictionaries::in_use(txn, &self.store, self.id)
    }

    fn settle(&self, pending: &mut Pending, done: &Result<()>) {
        *pending = Pending { failed: done.is_err(), ..Pending::default() };
        self.dirty.store(pending.failed, Ordering::Release);
    }

    /// The commit after a failure: it may only confirm what is committed already.
    fn commit_nothing(&self, pending: &mut Pending, durability: Durability) -> Result<()> {
        if !self.is_same(pending)? {
            return Err(refused());
        }
        *pending = Pending::default();
        self.dirty.store(false, Ordering::Release);
        match durability {
            Durability::Durable => self.store.make_durable(),
            Durability::Visible => Ok(()),
        }
    }
}

impl File {
    /// Whether the changes change nothing.
    fn is_same(&self, pending: &Pending) -> Result<bool> {
        let len = self.store.with_state(|state| self.len_in(state))?;
        let is_cut = pending.cut.is_some_and(|cut| cut < len);
        if pending.txn.is_some() || is_cut || pending.len.is_some_and(|new| new != len) {
            return Ok(false);
        }
        for (index, unit) in &pending.units {
            if self.committed_unit(*index, len)? != unit[..] {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn committed_unit(&self, index: u64, len: u64) -> Result<Vec<u8>> {
        self.store.with_state(|state| {
            let mut unit = vec![0; UNIT_LEN as usize];
            let n = clip(&mut unit, index * UNIT_LEN, len);
            let mut source = Committed::new(&self.store, state);
            extents::read_range(&mut source, self.id, &mut unit[..n], index * UNIT_LEN)?;
            Ok(unit)
        })
    }
}

fn refused() -> Error {
    Error::Invalid("an earlier write of this transaction failed; roll it back".into())
}

/// Zeros what of `buf` lies at or behind `len`, and returns how many bytes are before it.
fn clip(buf: &mut [u8], offset: u64, len: u64) -> usize {
    let n = usize::try_from(len.saturating_sub(offset)).unwrap_or(usize::MAX).min(buf.len());
    buf[n..].fill(0);
    n
}
