//! Commits of a file: its changes are compressed and written, ahead of the commit or with it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{File, Pending, clip, refused};
use crate::codec::Dictionary;
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
        let mut pending = self.pending();
        if pending.failed {
            return self.commit_nothing(&mut pending, durability);
        }
        let done = self.commit_pending(&mut pending, durability);
        self.settle(&mut pending, &done);
        done
    }

    /// Commits like [`File::commit`], but `ask` decides how long to wait for other transactions. If
    /// it gives up, the result is [`Error::Busy`] and all changes are kept. A commit without
    /// effective changes does not wait.
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
        let now = (self.now_ns)();
        let is_recent = (now - TIME_STEP_NS + 1..=now).contains(&attributes.modified_ns);
        // An unknown time replaces the old one, which is wrong now.
        let modified_ns = if now != 0 && is_recent { attributes.modified_ns } else { now };
        if attributes.len != len || attributes.modified_ns != modified_ns {
            txn.stats_mut().change_file_len(attributes.len, len);
            attributes.len = len;
            attributes.modified_ns = modified_ns;
            if attributes.changed_ns != 0 && now != 0 {
                attributes.changed_ns = modified_ns;
            }
            entries::set_attributes(&mut txn, self.id, &attributes)?;
        }
        txn.commit(durability).map(drop)
    }

    /// Writes the changes into a transaction that stays open until the commit.
    pub(super) fn write_ahead(&self, pending: &mut Pending) -> Result<()> {
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

    /// Frees memory after a failure. Only changes that change nothing can be committed then, and
    /// those need not be kept. Refuses any others.
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
        let dictionary = self.dictionary(txn, pending, &settings)?;
        let history = Arc::clone(&self.history);
        let adapt = settings.auto.map(|_| Arc::clone(&self.adapt));
        if adapt.is_some() {
            self.adapt.begin();
        }
        let fold_budget = write::fold_budget(pending.units.len() as u64 * UNIT_LEN);
        let changes = Changes {
            target: WriteTarget {
                file: self.id,
                settings,
                threads: self.threads,
                is_stopped: self.is_stopped,
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

    /// Returns the dictionary for the changes. The first large write of short records trains one.
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

    /// Whether the changes leave the file as it was.
    pub(super) fn is_same(&self, pending: &Pending) -> Result<bool> {
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
