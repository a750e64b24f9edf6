//! The simulated device as opened by one of several processes with several threads each: every call
//! is a point of the scheduler. The writer lock belongs to the process. A killed process does
//! nothing any more.
//!
//! Each process gets the error of a failed sync once, in whichever of its threads syncs next (see
//! `handle.rs`). A thread pauses between the work of a sync and its return.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hardpack_engine::Error;
use hardpack_engine::device::{Device, Pins, Slot, Syncs};
use hardpack_engine::store::superblock::{EXTENTS_OFFSET, RING_OFFSET};

use super::handle::Handle;
use super::scheduler::{choose, current, point};
use super::sim_device::{Fault, SimDevice};

/// The way in which a world breaks its promises, to test the test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// It keeps its promises.
    None,
    /// Each thread knows only its own syncs.
    SyncsOfThreads,
    /// The writer lock excludes nobody.
    NoWriterLock,
    /// A failed sync is reported as done.
    HiddenFailures,
    /// Nobody sees the pins of other processes.
    HiddenPins,
    /// A process that is about to sync shows at once that what others wait for is durable.
    EarlyDurable,
}

impl Mutant {
    /// Every way in which a world can break its promises.
    pub const ALL: [Mutant; 5] = [
        Mutant::SyncsOfThreads,
        Mutant::NoWriterLock,
        Mutant::HiddenFailures,
        Mutant::HiddenPins,
        Mutant::EarlyDurable,
    ];
}

/// The state that the processes share.
#[derive(Debug)]
pub struct World {
    /// The medium.
    pub sim: Arc<SimDevice>,
    /// The faults to come.
    pub wrong: Wrong,
    mutant: Mutant,
    writer: Mutex<Option<u64>>,
    /// The pinned txgs, each with its slot and the process that reads it. The largest number is no
    /// txg: the process has claimed the slot.
    pins: Mutex<BTreeSet<(u64, Slot, u64)>>,
    shown: Mutex<Shown>,
    /// How many processes may sync at once.
    turn_count: AtomicUsize,
    next_process: AtomicU64,
}

/// What the processes show to each other about their syncs.
#[derive(Debug, Default)]
struct Shown {
    /// The processes that have a turn to sync.
    turns: BTreeSet<u64>,
    /// The txgs that are awaited, with the process that waits.
    awaited: BTreeSet<(u64, u64)>,
    /// The last txg that each process shows as durable.
    durable: BTreeMap<u64, u64>,
    /// How often a process learned from another that its txg is durable.
    learned: u64,
}

/// The armed faults, until they happen.
#[derive(Clone, Debug, Default)]
pub struct Wrong(Arc<[AtomicBool; 2]>);

impl Wrong {
    /// Makes the next sync fail.
    pub fn fail_sync(&self) {
        self.0[0].store(true, Ordering::Relaxed);
    }
    /// Makes the next write of a superblock have no effect.
    pub fn fail_superblock(&self) {
        self.0[1].store(true, Ordering::Relaxed);
    }
}

impl Fault for Wrong {
    fn write(&mut self, _: &[u8], at: u64, bytes: &[u8]) -> io::Result<Vec<(u64, Vec<u8>)>> {
        let in_ring = (RING_OFFSET..EXTENTS_OFFSET).contains(&at);
        match in_ring && self.0[1].swap(false, Ordering::Relaxed) {
            true => Err(io::Error::other("injected")),
            false => Ok(vec![(at, bytes.to_vec())]),
        }
    }
    fn sync(&mut self, _: &[u8]) -> io::Result<bool> {
        match self.0[0].swap(false, Ordering::Relaxed) {
            true => Err(io::Error::other("injected")),
            false => Ok(true),
        }
    }
}

impl World {
    /// Creates a world with this medium.
    pub fn new(sim: Arc<SimDevice>, mutant: Mutant) -> Arc<World> {
        let wrong = Wrong::default();
        sim.set_fault(Some(Box::new(wrong.clone())));
        let (writer, pins, shown, next_process) = Default::default();
        let turn_count = AtomicUsize::new(1);
        Arc::new(World { sim, wrong, mutant, writer, pins, shown, turn_count, next_process })
    }

    /// Lets this many processes sync at once, as they do where that takes no longer than one sync.
    pub fn allow_turns(&self, count: usize) {
        self.turn_count.store(count, Ordering::Relaxed);
    }

    /// Opens the device in a new process.
    pub fn open(self: &Arc<World>) -> Arc<Scheduled> {
        let process = self.next_process.fetch_add(1, Ordering::Relaxed);
        Arc::new(Scheduled {
            world: Arc::clone(self),
            handle: self.sim.handle(),
            process,
            is_dead: AtomicBool::new(false),
            syncs: Default::default(),
            pins: Pins::default(),
        })
    }

    fn pins(&self) -> MutexGuard<'_, BTreeSet<(u64, Slot, u64)>> {
        self.pins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often a process learned from another that its txg is durable.
    pub fn learned_count(&self) -> u64 {
        self.shown().learned
    }

    fn writer(&self) -> MutexGuard<'_, Option<u64>> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is in the place of a txg where a process has claimed a slot.
const CLAIM: u64 = u64::MAX;
/// The most threads of a run, and one that is not scheduled.
const THREAD_COUNT_MAX: usize = 8;

/// The device of one process.
#[derive(Debug)]
pub struct Scheduled {
    world: Arc<World>,
    handle: Arc<Handle>,
    process: u64,
    is_dead: AtomicBool,
    syncs: [Syncs; THREAD_COUNT_MAX + 1],
    pins: Pins,
}

impl Scheduled {
    /// Kills the process at once, which releases its locks.
    pub fn kill(&self) {
        self.is_dead.store(true, Ordering::Relaxed);
        self.release_all();
    }

    fn release_all(&self) {
        self.world.pins().retain(|(_, _, process)| *process != self.process);
        let mut shown = self.world.shown();
        shown.awaited.retain(|(_, process)| *process != self.process);
        shown.durable.remove(&self.process);
        shown.turns.remove(&self.process);
        drop(shown);
        self.unlock_writer();
    }

    /// Whether the process was killed.
    pub fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Relaxed)
    }

    /// Whether a sync of the process has failed.
    pub fn has_failed(&self) -> bool {
        self.handle.has_failed()
    }

    /// Whether what its world does to a process, and others at work, may lead to this error.
    pub fn excuses(&self, error: &str) -> bool {
        let expected = [
            "injected",
            "killed",
            "a sync of another process failed",
            &Error::FailStop.to_string(),
            &Error::Busy.to_string(),
        ];
        self.is_dead() || expected.iter().any(|part| error.contains(part))
    }

    fn enter(&self, name: &'static str) -> io::Result<()> {
        if !self.is_dead() {
            point(name);
        }
        match self.is_dead() {
            true => Err(io::Error::other("killed")),
            false => Ok(()),
        }
    }
}

impl Drop for Scheduled {
    fn drop(&mut self) {
        self.release_all();
    }
}

impl Device for Scheduled {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        // Some of the many reads of extents are enough.
        let counts = offset < EXTENTS_OFFSET || choose(3) == 0;
        if counts || self.is_dead() {
            self.enter("read")?;
        }
        self.handle.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.enter(if offset < EXTENTS_OFFSET { "write superblock" } else { "write" })?;
        self.handle.write_at(buf, offset)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.enter("sync")?;
        let done = self.handle.sync_data();
        self.enter("synced")?;
        if self.world.mutant == Mutant::HiddenFailures { Ok(()) } else { done }
    }
    fn report_losses(&self) -> io::Result<()> {
        self.enter("look for losses")?;
        let done = self.handle.report_losses();
        if self.world.mutant == Mutant::HiddenFailures { Ok(()) } else { done }
    }
    fn syncs(&self) -> Option<&Syncs> {
        match (self.world.mutant, current()) {
            (Mutant::SyncsOfThreads, Some(thread)) => self.syncs.get(thread),
            _ => self.syncs.last(),
        }
    }
    fn pins(&self) -> Option<&Pins> {
        Some(&self.pins)
    }
    fn show_pin(&self, txg: u64, slot: Slot) -> io::Result<bool> {
        self.enter("pin")?;
        let mut pins = self.world.pins();
        let is_claimed = |(at, other, process): &(u64, Slot, u64)| {
            (*at, *other) == (CLAIM, slot) && *process != self.process
        };
        let is_free = !pins.iter().any(is_claimed);
        if is_free {
            pins.insert((txg, slot, self.process));
        }
        Ok(is_free)
    }
    fn hide_pin(&self, txg: u64, slot: Slot) {
        self.world.pins().remove(&(txg, slot, self.process));
    }
    fn shown_pins(&self, txgs: Range<u64>) -> io::Result<Vec<u64>> {
        self.enter("look at pins")?;
        if self.world.mutant == Mutant::HiddenPins {
            return Ok(Vec::new());
        }
        let pins = self.world.pins();
        let others = pins.iter().filter(|(_, _, process)| *process != self.process);
        let mut shown: Vec<u64> = others.map(|(txg, ..)| *txg).collect();
        shown.retain(|txg| *txg != CLAIM && txgs.contains(txg));
        shown.dedup();
        Ok(shown)
    }
    fn claim_slot(&self, slot: Slot) -> io::Result<bool> {
        self.enter("claim")?;
        let mut pins = self.world.pins();
        let is_free = pins.iter().all(|(_, other, _)| *other != slot);
        if is_free {
            pins.insert((CLAIM, slot, self.process));
        }
        Ok(is_free)
    }
    fn release_slot(&self, slot: Slot) {
        self.world.pins().remove(&(CLAIM, slot, self.process));
    }
    fn try_sync_turn(&self) -> io::Result<bool> {
        self.enter("sync turn")?;
        let mut shown = self.world.shown();
        let others = shown.turns.iter().filter(|process| **process != self.process).count();
        let is_free = others < self.world.turn_count.load(Ordering::Relaxed);
        if is_free {
            shown.turns.insert(self.process);
        }
        Ok(is_free)
    }
    fn end_sync_turn(&self) {
        self.world.shown().turns.remove(&self.process);
    }
    fn show_awaited(&self, txg: u64) -> io::Result<()> {
        self.enter("await")?;
        self.world.shown().awaited.insert((txg, self.process));
        Ok(())
    }
    fn hide_awaited(&self, txg: u64) {
        self.world.shown().awaited.remove(&(txg, self.process));
    }
    fn last_awaited(&self, from: u64) -> io::Result<Option<u64>> {
        self.enter("look at awaited")?;
        let mut shown = self.world.shown();
        let others = shown.awaited.range((from, 0)..).rev();
        let mut others = others.filter(|(_, process)| *process != self.process);
        let last = others.next().map(|(txg, _)| *txg);
        if self.world.mutant == Mutant::EarlyDurable
            && let Some(txg) = last
        {
            shown.durable.insert(self.process, txg);
        }
        Ok(last)
    }
    fn show_durable(&self, txg: u64) -> io::Result<()> {
        self.enter("show durable")?;
        self.world.shown().durable.insert(self.process, txg);
        Ok(())
    }
    fn last_shown_durable(&self, from: u64) -> io::Result<Option<u64>> {
        self.enter("look at durable")?;
        let mut shown = self.world.shown();
        let others = shown.durable.iter().filter(|(process, _)| **process != self.process);
        let last = others.map(|(_, txg)| *txg).max().filter(|txg| *txg >= from);
        shown.learned += u64::from(last.is_some());
        Ok(last)
    }
    fn is_writer_free(&self) -> io::Result<bool> {
        self.enter("look at lock")?;
        Ok(self.world.writer().is_none_or(|writer| writer == self.process))
    }
    fn cede(&self) -> bool {
        point("cede")
    }
    fn len(&self) -> io::Result<u64> {
        self.enter("len")?;
        self.handle.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.enter("set len")?;
        self.handle.set_len(len)
    }
    fn punch_hole(&self, offset: u64, len: u64) {
        if self.enter("punch").is_ok() {
            self.handle.punch_hole(offset, len);
        }
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn lock_writer(&self) -> io::Result<()> {
        while !self.try_lock_writer()? {
            self.enter("cede")?;
        }
        Ok(())
    }
    fn try_lock_writer(&self) -> io::Result<bool> {
        self.enter("lock")?;
        let mut writer = self.world.writer();
        let is_free = writer.is_none_or(|writer| writer == self.process);
        if is_free || self.world.mutant == Mutant::NoWriterLock {
            *writer = Some(self.process);
            return Ok(true);
        }
        Ok(false)
    }
    fn unlock_writer(&self) {
        let mut writer = self.world.writer();
        if *writer == Some(self.process) {
            *writer = None;
        }
    }
}
