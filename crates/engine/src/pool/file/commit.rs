//! Commits of a file: what was written ahead moves to the file, and the rest is compressed and
//! written.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{File, Pending, clip, refused};
use crate::error::{Error, Result};
use crate::pool::extents::source::Committed;
use crate::pool::extents::{self, UNIT_LEN};
use crate::pool::namespace::entries;
use crate::pool::namespace::props::{Concurrency, Settings};
use crate::pool::write::jobs::WriteTarget;
use crate::pool::write::{self, Changes, dictionaries};
use crate::store::{Ask, Durability, Patience, Txn};

/// A commit keeps the recorded time of the last change if that is less than this ago. So a file
/// that is changed thousands of times a second costs its attributes at most a hundred writes. The
/// kernel's own file times are no finer: they advance with its timer, by up to 10 ms.
const TIME_STEP_NS: i64 = 10_000_000;

impl File {
    /// Publishes the changes as one transaction. Without changes, only makes the visible state
    /// durable if that is asked for.
    pub fn commit(&self, durability: Durability) -> Result<()> {
        if !self.is_dirty() {
            return match durability {
                Durability::Durable => self.store.make_durable(),
                Durability::Visible => Ok(()),
            };
        }
        if self.pending().failed || self.takes_back()? {
            return self.commit_nothing(&mut self.pending(), durability);
        }
        self.write_whole_ahead(&mut |checksum| self.store.begin(checksum))?;
        let begun = self.settings().and_then(|settings| self.store.begin(settings.checksum));
        self.commit_with(begun, durability)
    }

    /// Commits like [`File::commit`], but `ask` decides how long to wait for other transactions. If
    /// it gives up, the result is [`Error::Busy`] and all changes are kept. A commit without
    /// effective changes does not wait.
    pub fn commit_asking(&self, durability: Durability, ask: &mut Ask<'_>) -> Result<()> {
        if !self.is_dirty() {
            return match durability {
                Durability::Durable => self.store.make_durable_asking(ask),
                Durability::Visible => Ok(()),
            };
        }
        if self.pending().failed || self.takes_back()? {
            self.commit_nothing(&mut self.pending(), Durability::Visible)?;
            return self.commit_asking(durability, ask);
        }
        let begun = match self.begin_asking(ask) {
            Err(Error::Busy) if self.is_same(&self.pending())? => {
                self.discard();
                return self.commit_asking(durability, ask);
            }
            Err(Error::Busy) => return Err(Error::Busy),
            begun => begun,
        };
        self.commit_with(begun, durability)
    }

    /// Begins the transaction of a commit.
    fn begin_asking(&self, ask: &mut Ask<'_>) -> Result<Txn> {
        self.write_whole_ahead(&mut |checksum| self.store.begin_asking(checksum, ask))?;
        let checksum = self.settings()?.checksum;
        match self.store.begin_with(checksum, Patience::None) {
            // A commit that changes nothing need not wait.
            Err(Error::Busy) if !self.is_same(&self.pending())? => {
                self.store.begin_asking(checksum, ask)
            }
            begun => begun,
        }
    }

    fn commit_with(&self, begun: Result<Txn>, durability: Durability) -> Result<()> {
        let mut pending = Some(self.pending());
        let done = begun.and_then(|mut txn| {
            if let Some(pending) = &mut pending {
                self.put(&mut txn, pending)?;
            }
            let published = || {
                let Some(mut pending) = pending.take() else { return };
                let done = std::mem::take(&mut *pending);
                self.dirty.store(false, Ordering::Release);
                // A draft waits for its last sync.
                drop(pending);
                drop(done);
            };
            txn.commit_then(durability, published).map(drop)
        });
        if done.is_err() {
            self.fail(&mut pending.unwrap_or_else(|| self.pending()));
        }
        done
    }

    /// Makes the changes part of a transaction.
    pub(super) fn put(&self, txn: &mut Txn, pending: &mut Pending) -> Result<()> {
        let len = self.apply(txn, pending)?;
        let mut attributes = entries::attributes(txn, self.id)?;
        let now = (self.options.now_ns)();
        let is_recent = (now - TIME_STEP_NS + 1..=now).contains(&attributes.modified_ns);
        let modified_ns = match pending.time_ns {
            Some(time) => time,
            None if now != 0 && is_recent => attributes.modified_ns,
            // An unknown time replaces the old one, which is wrong now.
            None => now,
        };
        if attributes.len != len || attributes.modified_ns != modified_ns {
            txn.stats_mut().change_file_len(attributes.len, len);
            attributes.len = len;
            attributes.modified_ns = modified_ns;
            if attributes.changed_ns != 0 {
                attributes.changed_ns = match (pending.written_ns, pending.time_ns) {
                    (Some(written_ns), _) => attributes.changed_ns.max(written_ns),
                    (None, _) if now == 0 => attributes.changed_ns,
                    (None, Some(_)) => now,
                    (None, None) => modified_ns,
                };
            }
            entries::set_attributes(txn, self.id, &attributes)?;
        }
        Ok(())
    }

    /// Frees memory after a failure. Only changes that change nothing can be committed then, and
    /// those need not be kept. Refuses any others.
    pub(super) fn drop_unchanged(&self, pending: &mut Pending) -> Result<()> {
        let len = self.store.with_state(|state| self.len_in(state))?;
        for (index, unit) in std::mem::take(&mut pending.units) {
            let is_cut = pending.cut.is_some_and(|cut| cut < ((index + 1) * UNIT_LEN).min(len));
            if is_cut || self.committed_unit(index, len)? != unit[..] {
                self.fail(pending);
                return Err(refused());
            }
        }
        Ok(())
    }

    /// Frees memory of changes that undo a transaction whose commit failed: those that change
    /// nothing need not be kept, nor any space for them.
    pub(super) fn drop_taken_back(&self, pending: &mut Pending) -> Result<()> {
        if !pending.undoes || pending.draft.is_some() {
            return Ok(());
        }
        let len = self.store.with_state(|state| self.len_in(state))?;
        let new_len = pending.len.unwrap_or(len);
        if pending.cut.is_some_and(|cut| cut != new_len) {
            return Ok(());
        }
        let mut same = Vec::new();
        for (index, unit) in &pending.units {
            if self.is_unit_same(*index, unit, (len, new_len))? {
                same.push(*index);
            }
        }
        pending.has_undone |= !same.is_empty();
        for index in same {
            pending.units.remove(&index);
        }
        Ok(())
    }

    /// Returns whether readers of the file keep a writer from committing.
    pub fn concurrency(&self) -> Result<Concurrency> {
        Ok(self.settings()?.concurrency)
    }

    pub(super) fn settings(&self) -> Result<Settings> {
        self.store.with_state(|state| {
            let mut source = Committed::new(&self.store, state);
            Ok(entries::settings(&mut source, self.id)?.0)
        })
    }

    /// Passes the changes to the write path. Returns the length of the file after them.
    fn apply(&self, txn: &mut Txn, pending: &mut Pending) -> Result<u64> {
        let (settings, _) = entries::settings(txn, self.id)?;
        let len = match pending.len {
            Some(len) => len,
            None => entries::attributes(txn, self.id)?.len,
        };
        let dictionary = dictionaries::in_use(txn, &self.store, self.id)?;
        let history = Arc::clone(&self.history);
        let adapt = settings.auto.map(|_| Arc::clone(&self.adapt));
        if adapt.is_some() {
            self.adapt.begin();
        }
        let target = WriteTarget {
            dictionary,
            adapt,
            history,
            ..WriteTarget::new(self.id, settings, &self.options)
        };
        self.attach_draft(txn, pending, &target)?;
        let changes = Changes {
            target,
            fold_budget: write::fold_budget(pending.units.len() as u64 * UNIT_LEN),
            fold_count: 0,
            room: None,
            units: std::mem::take(&mut pending.units),
            cut: pending.cut.take(),
            len,
            granule: self.granule.load(Ordering::Relaxed),
        };
        let done = write::apply(txn, changes);
        self.adapt.end();
        done.map(|()| len)
    }

    /// Commits after a failure: succeeds only if the changes match the committed state.
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

    /// Whether the changes undo a transaction whose commit failed, and so leave the file as it was.
    fn takes_back(&self) -> Result<bool> {
        let pending = self.pending();
        Ok(pending.undoes && self.is_same(&pending)?)
    }

    /// Whether the changes leave the file as it was. Those that undo a transaction may also cut off
    /// what follows: then an earlier commit could not do so for lack of space, and its owner knows
    /// of no such bytes. To cut them off now might fail again, and the rollback with it.
    pub(super) fn is_same(&self, pending: &Pending) -> Result<bool> {
        let len = self.store.with_state(|state| self.len_in(state))?;
        let new_len = pending.len.unwrap_or(len);
        let is_undoing = pending.undoes && (pending.has_undone || !pending.units.is_empty());
        let cuts_tail = is_undoing && new_len < len && pending.cut == Some(new_len);
        let is_cut = pending.cut.is_some_and(|cut| cut < len) || new_len != len;
        if pending.draft.is_some() || is_cut && !cuts_tail {
            return Ok(false);
        }
        for (index, unit) in &pending.units {
            if !self.is_unit_same(*index, unit, (len, new_len))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a unit holds what is committed, up to the new length of the file.
    fn is_unit_same(&self, index: u64, unit: &[u8], (len, new_len): (u64, u64)) -> Result<bool> {
        let mut committed = self.committed_unit(index, len)?;
        clip(&mut committed, index * UNIT_LEN, new_len);
        Ok(committed == unit)
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
