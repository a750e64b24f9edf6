//! Serialises the syncs of a device and records their outcome.
//!
//! Linux reports data that it could not write once per open file description, and from then on
//! treats it as written. All threads of a process share one description: of two threads that sync
//! at once, one is told, and the other may be told of success although its data is lost.
//!
//! So there is one sync at a time, and its failure is recorded before anybody else begins another
//! sync or reports one. A successful sync covers only what was written before it *began*. Whoever
//! waited for its turn while such a sync began and succeeded needs none of its own, so any number
//! of threads share two syncs: the one in progress, and the next.
//!
//! Processes share syncs as well ([`Syncs::sync_txg`]). Who waits for a txg to be durable shows
//! that. One process has the turn to sync for all, or a few where that is no slower (`pace.rs`): it
//! looks which txgs are awaited, syncs, and then shows that the last of them is durable. The others
//! look whether theirs is. All of this is locks of the open file, so it ends with a process that
//! dies, and the others take its turn. Nobody relies on a turn: whoever waits for too long syncs by
//! itself, beside others.
//!
//! * A txg is shown as awaited after its superblock is written, by somebody who does not overwrite
//!   that superblock before a later txg is known to be durable. Nor do others who know of it.
//! * A sync that succeeds covers what was written before it began, by anybody: a loss since its
//!   process opened the file would have been reported to it. It may not have been told of earlier
//!   losses, so a process that is in doubt about what it found when it opened the file syncs for
//!   itself, but tells nobody ([`Shared::doubtful`]).
//! * After a failed sync nothing is shown. The others sync by themselves, and are told too.
//! * A superblock that is passing may be overwritten, so its txg is never shown as awaited. Who
//!   waits for it needs a later one that stays and is awaited, and writes that, with the turn, if
//!   nobody else has ([`Shared::cover`]). Whoever has the turn does so for all who wait.
//!
//! Whoever is about to write asks whether data was lost ([`Syncs::report_losses`]). That waits for
//! no sync, and may be told what a sync in progress would have been told. So a sync that succeeds
//! counts only if nobody was told of a loss meanwhile.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use super::{Awaited, Device, lock};

/// How long to wait for others who sync before syncing by oneself.
const TURN_WAIT_MAX: Duration = Duration::from_millis(50);
/// How long to wait before looking again, unless somebody calls.
const TURN_PAUSE: Duration = Duration::from_millis(1);

/// Makes the syncs of one open file description take turns, and counts the failed ones.
#[derive(Debug, Default)]
pub struct Syncs {
    turn: Mutex<()>,
    /// Held while somebody asks for losses and takes note of the answer.
    asked: Mutex<()>,
    failures: AtomicU64,
    /// The number of syncs that have begun, and the last of them that succeeded.
    begun: AtomicU64,
    succeeded: AtomicU64,
    /// The last txg that a sync of this process has shown to others as durable.
    shown: AtomicU64,
    /// The last one that others were found to show.
    seen: AtomicU64,
    /// The txgs that threads of this process wait for, with the number of threads.
    awaited: Mutex<BTreeMap<u64, usize>>,
}

/// A sync on behalf of a txg that its caller shows as awaited.
#[derive(Clone, Copy)]
pub struct Shared<'a> {
    /// The txg.
    pub txg: u64,
    /// The number of failed syncs when the caller opened the device.
    pub known_failures: u64,
    /// Whether the state that the caller has is still in the ring. If a failed sync has lost it, or
    /// somebody took it out, then what others show is about other states.
    pub stands: &'a dyn Fn() -> bool,
    /// Called with the turn, just before the sync, so that this also covers commits whose
    /// superblocks are passing, and with the time that the turn was waited for. Returns a txg that
    /// is awaited and not before the caller's, if there is one now.
    pub cover: &'a dyn Fn(Duration) -> Option<u64>,
    /// Whether there is a state of this txg, which somebody waits for, or a later one. If a failed
    /// sync has lost it, somebody may get its number who writes that after this sync.
    pub is_there: &'a dyn Fn(u64) -> bool,
    /// 0 if a sync of this process proves to others that their data is durable. Looked at before
    /// the sync begins.
    pub doubtful: &'a AtomicU64,
}

impl std::fmt::Debug for Shared<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("txg", &self.txg).finish_non_exhaustive()
    }
}

impl Syncs {
    /// The number of failed syncs. Whoever opened the device when it was lower may have lost
    /// writes.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Acquire)
    }

    /// Makes everything durable that was written before the call: waits for its turn and syncs the
    /// device, unless another sync has done it meanwhile. Returns `None` if a sync has failed since
    /// there were `known` failures, because another one cannot help then.
    pub fn sync(&self, device: &dyn Device, known: u64) -> Option<io::Result<()>> {
        // Any later sync begins after the caller's writes.
        let before = self.begun.load(Ordering::SeqCst);
        let _turn = self.turn(device);
        if self.failures() != known {
            return None;
        }
        if self.succeeded.load(Ordering::SeqCst) > before {
            return Some(Ok(()));
        }
        self.sync_now(device, known)
    }

    /// Like [`Syncs::sync`], but it is enough that the txg is durable, whoever syncs.
    pub fn sync_txg(&self, device: &dyn Device, shared: Shared<'_>) -> Option<io::Result<()>> {
        let Shared { txg, known_failures, stands, cover, .. } = shared;
        let before = self.begun.load(Ordering::SeqCst);
        let _turn = self.turn(device);
        if self.failures() != known_failures {
            return None;
        }
        if self.succeeded.load(Ordering::SeqCst) > before {
            return Some(Ok(()));
        }
        // What the locks of others do not say, a sync of one's own makes true: so no failure to
        // look, and none to tell, is one of the sync.
        // The state is looked for last: what was shown before was then built on it.
        let is_durable = || self.is_shown(device, txg) && stands();
        let waited = match await_turn(device, &is_durable) {
            Turn::NotNeeded => return Some(Ok(())),
            Turn::Taken(waited) => Some(waited),
            Turn::OfOthers => None,
        };
        let has_turn = waited.is_some();
        // Whoever had the turn before may have shown it since.
        let done = match has_turn && is_durable() {
            true => Some(Ok(())),
            false => {
                waited.map(cover);
                self.sync_for_all(device, shared)
            }
        };
        if has_turn {
            device.end_sync_turn();
        }
        done
    }

    /// Like [`Syncs::sync_txg`], for a txg whose superblock is passing. Returns whether it is
    /// durable: it is not if others do not let go of the turn or of the pool.
    ///
    /// The superblock need not be there any more, so that it is lost cannot be seen. But who lost
    /// it in a failed sync is told: so what others show counts if the system then reports no loss.
    pub fn sync_passing(
        &self,
        device: &dyn Device,
        shared: Shared<'_>,
        is_known: &dyn Fn() -> bool,
    ) -> Option<io::Result<bool>> {
        let Shared { txg, known_failures, cover, .. } = shared;
        let turn = self.turn(device);
        if self.failures() != known_failures {
            return None;
        }
        let is_durable = || {
            let is_own = self.shown.load(Ordering::SeqCst) >= txg;
            is_own || self.is_shown(device, txg) || is_known()
        };
        let waited = match await_turn(device, &is_durable) {
            Turn::NotNeeded => None,
            Turn::Taken(waited) => Some(waited),
            Turn::OfOthers => return Some(Ok(false)),
        };
        let done = match waited {
            Some(waited) if !is_durable() => {
                Some(cover(waited).map(|txg| self.sync_for_all(device, Shared { txg, ..shared })))
            }
            _ => None,
        };
        if waited.is_some() {
            device.end_sync_turn();
        }
        drop(turn);
        match done {
            Some(Some(synced)) => synced.map(|synced| synced.map(|()| true)),
            Some(None) => Some(Ok(false)),
            None => Some(self.report_losses(device, known_failures)?.map(|()| true)),
        }
    }

    /// Finds out whether writes were lost since there were `known` failures. Makes nothing durable,
    /// and waits for no sync. Returns `None` if a sync has failed since.
    pub fn report_losses(&self, device: &dyn Device, known: u64) -> Option<io::Result<()>> {
        let _asked = lock(&self.asked, device);
        if self.failures() != known {
            return None;
        }
        let done = device.report_losses();
        if done.is_err() {
            self.failures.fetch_add(1, Ordering::AcqRel);
        }
        Some(done)
    }

    /// Syncs, and shows to others what is durable then.
    fn sync_for_all(&self, device: &dyn Device, shared: Shared<'_>) -> Option<io::Result<()>> {
        let Shared { txg, known_failures, is_there, doubtful, .. } = shared;
        let tells = doubtful.load(Ordering::Acquire) == 0;
        let own = self.awaited(device).keys().next_back().copied();
        let others = device.last_awaited(txg).ok().flatten();
        let last = own.max(others).unwrap_or(txg).max(txg);
        let last = [last, txg].into_iter().find(|last| is_there(*last));
        let done = self.sync_now(device, known_failures);
        if tells
            && matches!(done, Some(Ok(())))
            && let Some(last) = last
        {
            let _ = device.show_durable(last);
            self.shown.fetch_max(last, Ordering::SeqCst);
        }
        done
    }

    fn sync_now(&self, device: &dyn Device, known: u64) -> Option<io::Result<()>> {
        let this = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let done = device.sync_data();
        // Who asks for losses meanwhile may be told what the sync would have been told.
        let _asked = lock(&self.asked, device);
        match &done {
            Err(_) => drop(self.failures.fetch_add(1, Ordering::AcqRel)),
            Ok(()) if self.failures() != known => return None,
            Ok(()) => self.succeeded.store(this, Ordering::SeqCst),
        }
        Some(done)
    }

    /// Whether others show a txg as durable.
    fn is_shown(&self, device: &dyn Device, txg: u64) -> bool {
        let Ok(Some(last)) = device.last_shown_durable(txg) else { return false };
        self.seen.fetch_max(last, Ordering::Relaxed);
        true
    }

    /// The last txg that was shown as durable, by this process, or by others when somebody looked.
    pub fn last_durable(&self) -> u64 {
        self.shown.load(Ordering::SeqCst).max(self.seen.load(Ordering::Relaxed))
    }

    /// Shows a txg as awaited.
    pub fn show(&self, device: &dyn Device, txg: u64) {
        let mut awaited = self.awaited(device);
        let count = awaited.entry(txg).or_default();
        *count += 1;
        if *count == 1 {
            // If nobody sees it, nobody syncs for it.
            let _ = device.show_awaited(txg);
        }
    }

    /// Takes back [`Syncs::show`].
    pub fn hide(&self, device: &dyn Device, txg: u64) {
        let mut awaited = self.awaited(device);
        match awaited.get_mut(&txg) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                awaited.remove(&txg);
                device.hide_awaited(txg);
            }
        }
    }

    /// Returns the last txg that somebody waits for, in any process.
    pub fn last_awaited(&self, device: &dyn Device) -> io::Result<Option<u64>> {
        let own = self.awaited(device).keys().next_back().copied();
        Ok(device.last_awaited(own.map_or(0, |own| own + 1))?.or(own))
    }

    fn awaited(&self, device: &dyn Device) -> MutexGuard<'_, BTreeMap<u64, usize>> {
        lock(&self.awaited, device)
    }

    fn turn(&self, device: &dyn Device) -> MutexGuard<'_, ()> {
        lock(&self.turn, device)
    }
}

/// How a wait for the turn has ended.
enum Turn {
    /// After this time.
    Taken(Duration),
    /// Somebody else has synced.
    NotNeeded,
    /// Others did not let go of it, or there was an error.
    OfOthers,
}

fn await_turn(device: &dyn Device, is_durable: &dyn Fn() -> bool) -> Turn {
    let mut left = TURN_WAIT_MAX;
    loop {
        if is_durable() {
            return Turn::NotNeeded;
        }
        match device.try_sync_turn() {
            Ok(true) => return Turn::Taken(TURN_WAIT_MAX - left),
            Ok(false) if !left.is_zero() => {
                let paused = device.pause(Awaited::SyncTurn, TURN_PAUSE.min(left));
                left = left.saturating_sub(paused);
            }
            Ok(false) | Err(_) => return Turn::OfOthers,
        }
    }
}
