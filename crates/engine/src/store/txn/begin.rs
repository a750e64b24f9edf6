//! The beginning of a transaction: the writer gate of the process, the writer lock of the pool, and
//! the newest state.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::Txn;
use crate::device::Awaited;
use crate::error::{Error, Result};
use crate::store::Store;
use crate::store::format::checksum::ChecksumKind;
use crate::store::gate::{Ask, Patience};

/// How often a transaction waits until there is room for its superblock, before it makes room
/// itself.
const ROOM_WAIT_COUNT_MAX: usize = 4;
/// The first pause between attempts to take another process's lock.
const LOCK_PAUSE_MIN: Duration = Duration::from_micros(50);
/// The longest pause while only small commits may be ahead. Who releases the lock wakes one who
/// waits, so a pause need not be short. But whoever comes just then may be faster, and if nobody
/// paused for less, some would be overtaken again and again.
const LOCK_PAUSE_SOON: Duration = Duration::from_micros(400);
/// For how long that is likely.
const SOON: Duration = Duration::from_millis(20);
/// The longest pause after that, so that waiting for a large transaction costs next to nothing.
const LOCK_PAUSE_MAX: Duration = Duration::from_millis(2);
/// How long to wait for another transaction before asking again whether to continue.
const ASK_PAUSE: Duration = Duration::from_millis(20);

/// Whether the caller can wait for its turn to sync.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::store) enum MaySync {
    Yes,
    /// It has the turn.
    No,
    /// It can, but no other commit may come first: on a full disk, those that look for room would
    /// take all older states out of the ring.
    AtOnce,
}

impl Store {
    /// Waits for earlier writers, adopts the newest state and starts to change it. `checksum`
    /// protects the tree nodes that will be written.
    pub fn begin(self: &Arc<Store>, checksum: ChecksumKind) -> Result<Txn> {
        self.begin_with(checksum, Patience::Endless)
    }

    /// Like [`Store::begin`], with limited patience.
    pub fn begin_with(
        self: &Arc<Store>,
        checksum: ChecksumKind,
        patience: Patience,
    ) -> Result<Txn> {
        self.begin_in_turn(checksum, patience, MaySync::Yes)
    }

    /// Like [`Store::begin_with`], for a transaction that needs the older states of the pool, or
    /// leaves them to others. On a full disk it does without what commits before it would find.
    pub(crate) fn begin_at_once(self: &Arc<Store>, patience: Patience) -> Result<Txn> {
        let mut txn = self.begin_in_turn(ChecksumKind::default(), patience, MaySync::AtOnce)?;
        txn.core.is_at_once = true;
        Ok(txn)
    }

    fn begin_in_turn(
        self: &Arc<Store>,
        checksum: ChecksumKind,
        patience: Patience,
        may_sync: MaySync,
    ) -> Result<Txn> {
        if self.is_read_only() {
            return Err(self.refusal());
        }
        for _ in 0..ROOM_WAIT_COUNT_MAX {
            let txn = self.begin_now(checksum, patience, may_sync)?;
            if txn.core.base.next_slot().is_some() {
                return Ok(txn);
            }
            // Every slot may hold the newest durable superblock. A sync changes that; it is better
            // made without the lock, and together with those who are waiting for one.
            drop(txn);
            if !self.sync_awaited()? {
                break;
            }
        }
        self.begin_now(checksum, patience, may_sync)
    }

    /// Like [`Store::begin_with`], whether or not there is room for a superblock. If it would have
    /// to sync and must not, that is [`Error::Busy`].
    pub(in crate::store) fn begin_now(
        self: &Arc<Store>,
        checksum: ChecksumKind,
        patience: Patience,
        may_sync: MaySync,
    ) -> Result<Txn> {
        if self.is_stopped() {
            return Err(Error::FailStop);
        }
        self.enter(patience)?;
        // From here on, dropping the transaction releases both locks.
        let mut txn = Txn::new(Arc::clone(self), self.state(), checksum);
        // Nobody else commits while the lock is held, so the newest state stays the newest. A
        // reading thread may have adopted it just before; then there is nothing to refresh, but the
        // base is still outdated.
        self.refresh_fully()?;
        self.learn_durable()?;
        let newest = self.state();
        if !Arc::ptr_eq(&newest, &txn.core.base) {
            txn.rebase(newest);
        }
        self.refuse_if_lost()?;
        self.refuse_if_gone(&txn.core.base)?;
        txn.core.base.superblock.check_writable()?;
        self.refuse_if_cut_short(&txn.core.base)?;
        let base = Arc::clone(&txn.core.base);
        // A passing one found at opening may be all that is left of what somebody relied on: who
        // syncs with this lock takes it for durable, and reuses space, before the next superblock
        // that says so has reached the medium.
        let may_be_relied_on =
            base.superblock.passing && self.doubtful.load(Ordering::Acquire) == base.txg().0;
        let is_first = base.superblock.sync_first || may_be_relied_on;
        let syncs = is_first && base.durable < base.txg();
        if syncs && may_sync == MaySync::No {
            return Err(Error::Busy);
        }
        self.reaffirm(&base)?;
        if syncs && may_be_relied_on {
            if let Err(error) = txn.make_base_durable() {
                self.doubtful.store(base.txg().0, Ordering::Release);
                return Err(error);
            }
            return self.begin_now(checksum, patience, may_sync);
        }
        if syncs {
            // Nobody can commit meanwhile, so the state need not be guarded.
            self.sync_device()?;
            self.note_durable(&base);
            txn.rebase(self.state());
        }
        if may_sync == MaySync::Yes {
            match txn.find_room()? {
                Some(same) => txn = same,
                None => return self.begin_now(checksum, patience, may_sync),
            }
        }
        txn.load_holders()?;
        Ok(txn)
    }

    /// Begins a transaction on a pool that was cut short, to restore an older state or to verify
    /// this one while nobody else writes. Its base may be unreadable.
    pub(crate) fn begin_on_cut(self: &Arc<Store>) -> Result<Txn> {
        if self.read_only {
            return Err(self.refusal());
        }
        if self.is_stopped() {
            return Err(Error::FailStop);
        }
        self.enter(Patience::Endless)?;
        let mut txn = Txn::new(Arc::clone(self), self.state(), ChecksumKind::default());
        // The newest state counts, even if another one is read because it is incomplete: that is
        // the one that other processes may have.
        self.rejected.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.adopt_newest()?;
        let newest = self.state();
        if !Arc::ptr_eq(&newest, &txn.core.base) {
            txn.rebase(newest);
        }
        txn.core.base.superblock.check_writable()?;
        txn.core.is_at_once = true;
        Ok(txn)
    }

    /// Like [`Store::begin`], but the caller decides how long to wait: `ask` is called while the
    /// pool is busy, and returns whether to continue.
    pub fn begin_asking(
        self: &Arc<Store>,
        checksum: ChecksumKind,
        ask: &mut Ask<'_>,
    ) -> Result<Txn> {
        let mut patience = Patience::None;
        loop {
            match self.begin_with(checksum, patience) {
                Err(Error::Busy) if ask() => patience = Patience::Within(ASK_PAUSE),
                begun => return begun,
            }
        }
    }

    /// Waits, as long as `ask` allows, while one transaction keeps the pool for long. Where others
    /// commit one after the other, and so if anybody has since this process last looked, whoever
    /// begins a transaction waits for its turn then: to wait for it here as well would only make
    /// everybody wait twice.
    pub fn await_turn(&self, ask: &mut Ask<'_>) -> Result<()> {
        if self.is_read_only() {
            return Ok(());
        }
        // This is asked before each statement that writes, and mostly nobody is there: a look costs
        // less than to take the lock, and keeps out nobody.
        if self.is_writer_free()? {
            return Ok(());
        }
        let state = self.state();
        let (mut asked, mut next) = (Duration::ZERO, LOCK_PAUSE_MIN);
        while !self.is_writer_free()? && self.is_newest(&state)? {
            if asked.is_zero() {
                if !ask() {
                    return Err(Error::Busy);
                }
                asked = ASK_PAUSE;
            }
            let pause = asked.min(next);
            asked = asked.saturating_sub(self.device.pause(Awaited::Turn, pause));
            next = (next * 2).min(LOCK_PAUSE_MAX);
        }
        Ok(())
    }

    /// Waits, as long as `ask` allows, until the transaction that is in progress has ended.
    pub(in crate::store) fn outlast_writer(&self, ask: &mut Ask<'_>) -> Result<()> {
        if self.is_read_only() || self.is_writer_free()? {
            return Ok(());
        }
        let mut patience = Patience::None;
        loop {
            match self.enter(patience) {
                Err(Error::Busy) if ask() => patience = Patience::Within(ASK_PAUSE),
                Ok(()) => {
                    self.device.unlock_writer();
                    self.writer.leave();
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether no transaction is in progress.
    fn is_writer_free(&self) -> Result<bool> {
        if self.writer.is_taken() {
            return Ok(false);
        }
        self.device.is_writer_free().map_err(|error| Error::io("lock", error))
    }

    /// Takes the writer gate of the process and the writer lock of the pool.
    fn enter(&self, patience: Patience) -> Result<()> {
        self.writer.let_others_go(&*self.device, patience);
        self.writer.enter(patience)?;
        let locked = match patience {
            Patience::None => self.device.try_lock_writer(),
            Patience::Within(wait) => self.lock_writer_within(wait),
            Patience::Endless => self.device.lock_writer().map(|()| true),
        };
        if !matches!(locked, Ok(true)) {
            self.writer.leave();
            return Err(locked.map_or_else(|error| Error::io("lock", error), |_| Error::Busy));
        }
        Ok(())
    }

    /// `fcntl` has no timeout, so this looks again and again; who releases the lock wakes it.
    fn lock_writer_within(&self, wait: Duration) -> std::io::Result<bool> {
        let (mut left, mut next) = (wait, LOCK_PAUSE_MIN);
        while !self.device.try_lock_writer()? {
            if left.is_zero() {
                return Ok(false);
            }
            let pause = left.min(next);
            left = left.saturating_sub(self.device.pause(Awaited::Writer, pause));
            let longest = if wait - left < SOON { LOCK_PAUSE_SOON } else { LOCK_PAUSE_MAX };
            next = (next * 2).min(longest);
        }
        Ok(true)
    }
}
