//! Where new extents go, and when old ones may be overwritten.
//!
//! Free space is in three places, all part of the committed state:
//!
//! * the **freed** tree, keyed by the txg that freed a run and its start. Nothing in it may be
//!   reused before a txg at least as new is durable, since the durable state still reaches it;
//! * the **space** tree, keyed by start: runs that may be reused, neighbours merged;
//! * a few **windows** in the superblock: runs taken out of the space tree and partly used up, so
//!   that a small commit touches neither tree to allocate.
//!
//! Everything from `end` on is free as well. Allocation looks at the windows only, then appends;
//! [`provision`] refills the windows from the space tree beforehand, and [`drain`] moves what has
//! become reusable from the freed tree to the space tree, many runs at a time.

pub(in crate::store) mod aim;

use std::ops::ControlFlow;

use super::format::pointer::SECTOR_MAX;
use super::format::superblock::{RESERVED_LEN, RESERVED_OFFSET, Superblock, WINDOW_COUNT_MAX};
use super::format::trees::{FREED, SPACE};
use super::space::aim::Aim;
use super::tree::TxnTree;
use super::txn::TxnCore;
use crate::error::{Error, Result};
use crate::units::{Run, Sector, Txg};

/// Entries in the freed tree that make it worth emptying.
const DRAIN_COUNT_MIN: u64 = 256;
/// How many runs one commit moves at the most, so that none pays for many.
const DRAIN_COUNT_MAX: usize = 4096;
/// How many runs of the space tree one search looks at.
const SEARCH_COUNT_MAX: usize = 512;
/// The same where the pool is compacted: then it is worth looking for a place that fits.
const AIMED_SEARCH_COUNT_MAX: usize = 16384;
/// Windows kept from one commit to the next; room is left in the superblock for what the end of a
/// commit adds.
const WINDOW_COUNT_KEPT: usize = WINDOW_COUNT_MAX - 8;
/// Extents up to this long, patches and nodes, are put side by side.
pub(super) const SMALL_EXTENT_SECTORS: u64 = 32;
/// A window for them holds at least this much, where there is one.
const SMALL_WINDOW_SECTORS: u64 = 64;
/// Free runs at least this long are given back to the file system, where more than one part in
/// [`PUNCH_FREE_PART`] of the pool is free: writing into a hole costs the file system an allocation,
/// and every sync after it a commit of its own, so a little space is better kept.
const PUNCH_LEN_MIN: u64 = 1 << 20;
const PUNCH_FREE_PART: u64 = 8;

/// The allocator's part of a transaction.
#[derive(Clone, Debug)]
pub(super) struct Space {
    pub windows: Vec<Run>,
    pub end: Sector,
    pub freed_count: u64,
    pub freed_sectors: u64,
    pub space_sectors: u64,
    /// Where the next small extent goes, if there is room.
    small: Sector,
    /// Where the next search of the space tree starts.
    pub rotor: Sector,
    ashift: u8,
    /// Long free runs, to be given back once the transaction is committed.
    pub punch: Vec<Run>,
    /// Where space may come from while the pool is compacted.
    pub aim: Option<Aim>,
}

impl Space {
    pub fn new(superblock: &Superblock, ashift: u8, rotor: Sector) -> Space {
        Space {
            windows: superblock.windows.clone(),
            end: superblock.end,
            freed_count: superblock.freed_count,
            freed_sectors: superblock.freed_sectors,
            space_sectors: superblock.space_sectors,
            small: Sector(0),
            rotor,
            ashift,
            punch: Vec::new(),
            aim: None,
        }
    }

    /// Takes a run of `sectors` from a window, where one has it.
    pub fn take_from_window(&mut self, sectors: u64) -> Option<Sector> {
        let index = self.choose_window(sectors)?;
        let window = &mut self.windows[index];
        let start = window.start;
        window.start.0 += sectors;
        window.sectors -= sectors;
        if sectors <= SMALL_EXTENT_SECTORS {
            self.small = window.start;
        }
        if window.sectors == 0 {
            self.windows.swap_remove(index);
        }
        Some(start)
    }

    /// Takes a run of `sectors` from a window, or behind the end.
    pub fn allocate(&mut self, sectors: u64) -> Sector {
        if let Some(start) = self.take_from_window(sectors) {
            return start;
        }
        let reserved = reserved_run(self.ashift);
        if self.end < reserved.end() && self.end.0 + sectors > reserved.start.0 {
            let gap = reserved.start.0.saturating_sub(self.end.0);
            if gap > 0 {
                self.windows.push(Run { start: self.end, sectors: gap });
            }
            self.end = reserved.end();
        }
        let start = self.end;
        self.end.0 += sectors;
        start
    }

    /// Whether so much is free that it is better used piece by piece than kept for speed.
    pub fn much_is_free(&self) -> bool {
        self.space_sectors > self.end.0 / PUNCH_FREE_PART
    }

    /// Small extents follow each other in one window, so that a commit is few writes; a new one for
    /// them is the smallest that holds several. Large extents get the tightest, so that what is left
    /// over is either of use or little, and so do small ones where much is free in small pieces.
    fn choose_window(&self, sectors: u64) -> Option<usize> {
        let tightest = |least: u64| {
            (0..self.windows.len())
                .filter(|index| self.windows[*index].sectors >= least)
                .min_by_key(|index| self.windows[*index].sectors)
        };
        // When the pool is compacted no space is to be left over, whatever that scatters.
        if sectors > SMALL_EXTENT_SECTORS || self.aim.is_some() {
            return tightest(sectors);
        }
        self.windows
            .iter()
            .position(|window| window.start == self.small && window.sectors >= sectors)
            .or_else(|| tightest(SMALL_WINDOW_SECTORS))
            .or_else(|| tightest(sectors))
    }

    /// Takes back a run that no committed state reaches: it was allocated in this transaction.
    pub fn recycle(&mut self, run: Run) {
        if let Some(before) = self.windows.iter_mut().find(|window| window.end() == run.start) {
            before.sectors += run.sectors;
        } else {
            self.windows.push(run);
        }
    }

    /// Takes the smallest window out where there are more than the superblock can keep.
    pub fn excess_window(&mut self) -> Option<Run> {
        if self.windows.len() <= WINDOW_COUNT_MAX - 4 {
            return None;
        }
        let smallest = (0..self.windows.len()).min_by_key(|index| self.windows[*index].sectors)?;
        Some(self.windows.swap_remove(smallest))
    }
}

/// The sectors that hold no extents because SQLite and the engine lock bytes there.
pub(super) fn reserved_run(ashift: u8) -> Run {
    Run { start: Sector(RESERVED_OFFSET >> ashift), sectors: RESERVED_LEN >> ashift }
}

pub(crate) fn space_key(start: Sector) -> [u8; 8] {
    start.0.to_be_bytes()
}

fn space_entry(key: &[u8], value: &[u8]) -> Result<Run> {
    let parsed = key.try_into().ok().zip(value.try_into().ok());
    let (start, sectors) = parsed
        .map(|(key, value)| (u64::from_be_bytes(key), u64::from_le_bytes(value)))
        .filter(|(start, sectors)| {
            *sectors > 0 && start.checked_add(*sectors).is_some_and(|end| end <= SECTOR_MAX.0)
        })
        .ok_or_else(|| Error::corrupt("space tree", 0, "an entry is malformed"))?;
    Ok(Run { start: Sector(start), sectors })
}

pub(super) fn freed_key(txg: Txg, start: Sector) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&txg.0.to_be_bytes());
    key[8..].copy_from_slice(&start.0.to_be_bytes());
    key
}

/// Reads an entry of the freed tree.
pub(super) fn freed_entry(key: &[u8], value: &[u8]) -> Result<(Txg, Run)> {
    let (txg, start) = key
        .split_first_chunk::<8>()
        .ok_or_else(|| Error::corrupt("freed tree", 0, "an entry is malformed"))?;
    Ok((Txg(u64::from_be_bytes(*txg)), space_entry(start, value)?))
}

/// Reads an entry of the space tree.
pub(super) fn read_space_entry(key: &[u8], value: &[u8]) -> Result<Run> {
    space_entry(key, value)
}

/// Makes sure the windows hold `sectors`, in runs of at least `shortest`, where the space tree has
/// them.
pub(super) fn provision(
    core: &mut TxnCore,
    space: &mut TxnTree,
    sectors: u64,
    shortest: u64,
) -> Result<()> {
    let aim = core.space.aim.unwrap_or(Aim::ANYWHERE);
    if core.space.aim.is_none() {
        trim_windows(core, space, WINDOW_COUNT_KEPT)?;
    }
    let usable = |core: &TxnCore| {
        core.space.windows.iter().filter(|w| w.sectors >= shortest).map(|w| w.sectors).sum::<u64>()
    };
    let mut missing = sectors.saturating_sub(usable(core));
    if missing == 0 || core.space.space_sectors == 0 {
        return Ok(());
    }
    let count_max = core.space.aim.map_or(SEARCH_COUNT_MAX, |_| AIMED_SEARCH_COUNT_MAX);
    let mut chosen = Vec::new();
    let mut looked_at = 0;
    let rotor = core.space.rotor.min(aim.below);
    let mut next = Sector(0);
    for (from, until) in [(rotor, aim.below), (Sector(0), rotor)] {
        let mut bad = None;
        space.scan(core, &space_key(from), &mut |key, value| {
            let run = match space_entry(key, value) {
                Ok(run) => run,
                Err(error) => {
                    bad = Some(error);
                    return ControlFlow::Break(());
                }
            };
            if run.start >= until || missing == 0 || looked_at >= count_max {
                return ControlFlow::Break(());
            }
            looked_at += 1;
            next = run.end();
            let longest = aim.usable(run).map(|part| part.sectors).max().unwrap_or(0);
            if longest > 0 && longest >= shortest {
                missing = missing.saturating_sub(longest);
                chosen.push(run);
            }
            ControlFlow::Continue(())
        })?;
        if let Some(error) = bad {
            return Err(error);
        }
    }
    core.space.rotor = next;
    for run in chosen {
        space.remove(core, &space_key(run.start))?;
        core.space.space_sectors = core.space.space_sectors.saturating_sub(run.sectors);
        open_window(core, space, run, &aim)?;
    }
    Ok(())
}

/// Makes windows of what may be used of a free run; the rest goes to the space tree.
pub(super) fn open_window(
    core: &mut TxnCore,
    space: &mut TxnTree,
    run: Run,
    aim: &Aim,
) -> Result<()> {
    let mut at = run.start;
    for part in aim.usable(run) {
        if part.start > at {
            release(core, space, Run { start: at, sectors: part.start.0 - at.0 })?;
        }
        at = part.end();
        core.space.windows.push(part);
    }
    if at < run.end() {
        release(core, space, Run { start: at, sectors: run.end().0 - at.0 })?;
    }
    Ok(())
}

/// Puts all but the `keep` largest windows back into the space tree.
pub(super) fn trim_windows(core: &mut TxnCore, space: &mut TxnTree, keep: usize) -> Result<()> {
    if core.space.windows.len() <= keep {
        return Ok(());
    }
    core.space.windows.sort_unstable_by_key(|window| std::cmp::Reverse(window.sectors));
    for run in core.space.windows.split_off(keep) {
        release(core, space, run)?;
    }
    Ok(())
}

/// Moves what may now be reused from the freed tree to the space tree, and lets go of the end of
/// the pool where it is free.
pub(super) fn drain(core: &mut TxnCore, freed: &mut TxnTree, space: &mut TxnTree) -> Result<()> {
    // Only what is released from here on is still free when the commit is done.
    core.space.punch.clear();
    trim_windows(core, space, WINDOW_COUNT_KEPT)?;
    let worth_it = core.space.freed_count >= DRAIN_COUNT_MIN
        || core.space.freed_sectors > core.space.end.0 / 32
        || core.is_large(0)
        || core.space.aim.is_some();
    if !worth_it {
        return Ok(());
    }
    // Runs freed by txgs up to the durable one; a key with the next txg sorts behind them all.
    let to = freed_key(core.durable.next(), Sector(0));
    let entries = freed.range(core, &[], &to, DRAIN_COUNT_MAX)?;
    let mut runs = Vec::with_capacity(entries.len());
    for (key, value) in entries {
        let (_, run) = freed_entry(&key, &value)?;
        freed.remove(core, &key)?;
        core.space.freed_count = core.space.freed_count.saturating_sub(1);
        core.space.freed_sectors = core.space.freed_sectors.saturating_sub(run.sectors);
        runs.push(run);
    }
    runs.sort_unstable();
    let mut merged: Vec<Run> = Vec::with_capacity(runs.len());
    for run in runs {
        match merged.last_mut() {
            Some(last) if last.end() == run.start => last.sectors += run.sectors,
            _ => merged.push(run),
        }
    }
    for run in merged {
        release(core, space, run)?;
    }
    shrink(core, space)
}

/// Adds a reusable run to the space tree, merged with its neighbours.
fn release(core: &mut TxnCore, space: &mut TxnTree, run: Run) -> Result<()> {
    let mut whole = run;
    core.space.space_sectors += run.sectors;
    if let Some(entry) = space.floor(core, &space_key(run.start))? {
        let before = space_entry(entry.key(), entry.value())?;
        if before.end() > run.start {
            return Err(Error::corrupt(
                "space tree",
                run.start.0 << core.ashift(),
                "a run is freed that is free already",
            ));
        }
        if before.end() == run.start {
            space.remove(core, entry.key())?;
            whole = Run { start: before.start, sectors: before.sectors + run.sectors };
        }
    }
    let after = space_key(run.end());
    if let Some(value) = space.get(core, &after)? {
        whole.sectors += space_entry(&after, &value)?.sectors;
        space.remove(core, &after)?;
    }
    space.insert(core, &space_key(whole.start), &whole.sectors.to_le_bytes())?;
    if core.space.much_is_free() && whole.sectors << core.ashift() >= PUNCH_LEN_MIN {
        core.space.punch.push(whole);
    }
    Ok(())
}

/// Lowers the end of the pool below what is free there.
fn shrink(core: &mut TxnCore, space: &mut TxnTree) -> Result<()> {
    let reserved = reserved_run(core.ashift());
    loop {
        let end = core.space.end;
        if end == reserved.end() {
            core.space.end = reserved.start;
            continue;
        }
        if let Some(index) = core.space.windows.iter().position(|window| window.end() == end) {
            core.space.end = core.space.windows.swap_remove(index).start;
            continue;
        }
        let Some((key, value)) = space.last(core)? else { break };
        let run = space_entry(&key, &value)?;
        if run.end() != end {
            break;
        }
        space.remove(core, &key)?;
        core.space.space_sectors = core.space.space_sectors.saturating_sub(run.sectors);
        core.space.end = run.start;
    }
    let end = core.space.end;
    if core.space.aim.is_some() {
        // What is free now is about to be filled, or to be cut off.
        core.space.punch.clear();
    }
    core.space.punch.retain(|run| run.end() <= end);
    Ok(())
}

/// The trees this module keeps.
pub(super) const OWN_TREES: [u8; 2] = [SPACE, FREED];
