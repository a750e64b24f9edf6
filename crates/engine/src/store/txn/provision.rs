//! Moves free space between the windows, the space tree and the freed tree, as part of a
//! transaction.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::{Txn, TxnCore};
use crate::error::{Error, Location, Result};
use crate::store::Store;
use crate::store::format::node::NODE_HEADER_LEN;
use crate::store::format::pointer::sectors_for;
use crate::store::format::space::{freed_entry, freed_key, reserved_run, space_entry, space_key};
use crate::store::format::superblock::WINDOW_COUNT_MAX;
use crate::store::format::trees::TreeId;
use crate::store::space::SMALL_EXTENT_SECTORS;
use crate::store::space::aim::Aim;
use crate::store::tree::{Entry, TxnTree};
use crate::units::{Run, Sector, Txg};

/// The room provided for each node: its payload, header and rounding.
pub(super) const NODE_SECTORS_GUESS: u64 = 10;
/// The number of entries in the freed tree that makes emptying it worthwhile.
const DRAIN_COUNT_MIN: u64 = 256;
/// The maximum number of runs that one commit moves, so that none is slow. On a full disk, one that
/// frees many itself moves more.
pub(super) const DRAIN_COUNT_MAX: usize = 4096;
/// The maximum number of runs of the space tree that one search examines.
const SEARCH_COUNT_MAX: usize = 512;
/// The maximum on a full disk, where who does not find a place is refused.
const CRAMPED_SEARCH_COUNT_MAX: usize = 1 << 20;
/// The maximum during compaction, where it is worth looking for a place that fits.
const AIMED_SEARCH_COUNT_MAX: usize = 16384;
/// The maximum number of windows kept from one commit to the next; the superblock has room for
/// those that the end of a commit adds.
pub(super) const WINDOW_COUNT_KEPT: usize = WINDOW_COUNT_MAX - 8;
/// The minimum length in bytes of free runs that are returned to the file system. That happens only
/// if much of the pool is free ([`Space::much_is_free`](crate::store::space::Space::much_is_free)):
/// writing into a hole costs the file system an allocation, and every later sync a commit of its
/// own, so a little space is better kept.
const PUNCH_LEN_MIN: u64 = 1 << 20;

/// Fills the windows with `sectors` in runs of at least `shortest`, as far as the space tree has
/// them.
pub(in crate::store) fn provision(
    core: &mut TxnCore,
    space: &mut TxnTree,
    sectors: u64,
    shortest: u64,
) -> Result<()> {
    // Space that is free in a restored older state may be part of the newest durable one.
    if core.set_aside.is_some() {
        return Ok(());
    }
    // Those that were just opened, for extents that are still to come, are all there may be.
    if core.space.aim.is_none() && !core.is_cramped {
        trim_windows(core, space, WINDOW_COUNT_KEPT)?;
    }
    let aim = core.space.aim.unwrap_or(Aim::ANYWHERE);
    provision_within(core, space, &aim, sectors, shortest)
}

/// On a full disk: fills the windows for this many nodes, with short pieces where no others are
/// left. Otherwise that would be a long search where much is free, but in pieces.
pub(in crate::store) fn provision_if_cramped(
    core: &mut TxnCore,
    space: &mut TxnTree,
    node_count: u64,
) -> Result<()> {
    if !core.is_cramped || core.space.aim.is_some() {
        return Ok(());
    }
    // Nodes have all lengths up to that.
    for shortest in [NODE_SECTORS_GUESS, 7, 5, 3, 1] {
        provision(core, space, node_count * NODE_SECTORS_GUESS, shortest)?;
    }
    Ok(())
}

/// Fills the windows for this many nodes of up to `longest` bytes, of a compaction whose aim has no
/// room left for them. Behind the end they would keep the pool as long as it is, however much of it
/// is free: the next step writes them anew, again behind the end.
pub(in crate::store) fn provision_nodes(
    core: &mut TxnCore,
    space: &mut TxnTree,
    count: u64,
    longest: usize,
) -> Result<()> {
    // A restored older state is not compacted, and its free space may not be used.
    let Some(aim) = core.space.aim.filter(|_| core.set_aside.is_none()) else { return Ok(()) };
    // A stretch that is emptied stays empty; what lies behind a goal is to move lower later.
    let aim = match aim.to {
        Sector(u64::MAX) => Aim::ANYWHERE,
        _ => Aim { below: Sector(u64::MAX), ..aim },
    };
    let longest = sectors_for((longest + NODE_HEADER_LEN) as u32, core.ashift());
    provision(core, space, count * longest, longest)?;
    core.space.rotor = Sector(0);
    provision_within(core, space, &aim, count * longest, longest)
}

fn provision_within(
    core: &mut TxnCore,
    space: &mut TxnTree,
    aim: &Aim,
    sectors: u64,
    shortest: u64,
) -> Result<()> {
    // On a full disk, what is left of a piece may be too short for anything.
    let piece = if core.is_cramped { shortest.max(1) } else { 1 };
    let usable = |run: &Run| match run.sectors >= shortest {
        true => run.sectors / piece * piece,
        false => 0,
    };
    let mut missing = sectors.saturating_sub(core.space.windows.iter().map(usable).sum::<u64>());
    if missing == 0 || core.space.space_sectors == 0 {
        return Ok(());
    }
    let count_max = match core.space.aim {
        Some(_) => AIMED_SEARCH_COUNT_MAX,
        None if core.is_cramped => CRAMPED_SEARCH_COUNT_MAX,
        None => SEARCH_COUNT_MAX,
    };
    let full = core.full_disk();
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
            let parts = usable_parts(full.as_deref(), aim, run);
            let longest = parts.iter().map(usable).max().unwrap_or(0);
            if longest > 0 {
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
        // What is used again must not be returned to the file system.
        core.space.punch.retain(|punch| punch.end() <= run.start || punch.start >= run.end());
        space.remove(core, &space_key(run.start))?;
        core.space.space_sectors = core.space.space_sectors.saturating_sub(run.sectors);
        open_window(core, space, run, aim)?;
    }
    Ok(())
}

/// The parts of a free run where new places may be: on a full disk, which is given then, only those
/// that have space already.
fn usable_parts(full: Option<&Store>, aim: &Aim, run: Run) -> Vec<Run> {
    let parts = aim.usable(run);
    match full {
        Some(store) => parts.flat_map(|part| store.allocated_parts(part)).collect(),
        None => parts.collect(),
    }
}

/// Makes windows of the usable parts of a free run; the rest goes to the space tree.
pub(in crate::store) fn open_window(
    core: &mut TxnCore,
    space: &mut TxnTree,
    run: Run,
    aim: &Aim,
) -> Result<()> {
    let mut at = run.start;
    for part in usable_parts(core.full_disk().as_deref(), aim, run) {
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

/// Returns all but the `keep` largest windows to the space tree.
pub(in crate::store) fn trim_windows(
    core: &mut TxnCore,
    space: &mut TxnTree,
    keep: usize,
) -> Result<()> {
    if core.space.windows.len() <= keep {
        return Ok(());
    }
    core.space.windows.sort_unstable_by_key(|window| std::cmp::Reverse(window.sectors));
    for run in core.space.windows.split_off(keep) {
        release(core, space, run)?;
    }
    Ok(())
}

/// Moves runs that may now be reused from the freed tree to the space tree, and cuts off the free
/// end of the pool.
pub(in crate::store) fn drain(
    core: &mut TxnCore,
    freed: &mut TxnTree,
    space: &mut TxnTree,
) -> Result<()> {
    // Only runs released from here on are still free when the commit is done.
    core.space.punch.clear();
    trim_windows(core, space, WINDOW_COUNT_KEPT)?;
    let worth_it = core.space.freed_count >= DRAIN_COUNT_MIN
        || core.space.freed_sectors > core.space.end.0 / 32
        || core.is_large(0)
        || core.space.is_tight
        || core.space.aim.is_some();
    if !worth_it {
        return Ok(());
    }
    // If it made less reusable than it frees, the rest would pile up and be out of reach.
    let count_max = match core.space.aim {
        Some(_) => DRAIN_COUNT_MAX,
        None if core.is_cramped => core.drain_count_max + 2 * core.freed.len(),
        None => core.drain_count_max,
    };
    let entries = reusable(core, freed, count_max)?;
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

/// Whether there is anything that [`drain`] may move.
pub(in crate::store) fn has_reusable(core: &mut TxnCore, freed: &TxnTree) -> Result<bool> {
    Ok(!reusable(core, freed, 1)?.is_empty())
}

/// Returns up to `count` entries of the freed tree with runs that may now be reused.
fn reusable(core: &mut TxnCore, freed: &TxnTree, count: usize) -> Result<Vec<Entry>> {
    // The durable state and every state that is being read reach what later txgs freed. A key with
    // the next txg sorts after all those that are moved.
    let last = core.store.oldest_pin(core.durable, &core.base).unwrap_or(core.durable);
    freed.range(core, &[], &freed_key(last.next(), Sector(0)), count)
}

/// Returns what the file system has taken back of the windows to the space tree.
pub(in crate::store) fn release_hollow(core: &mut TxnCore, space: &mut TxnTree) -> Result<()> {
    for run in std::mem::take(&mut core.space.hollow) {
        release(core, space, run)?;
    }
    Ok(())
}

/// Adds a reusable run to the space tree, merged with its neighbours.
pub(super) fn release(core: &mut TxnCore, space: &mut TxnTree, run: Run) -> Result<()> {
    let mut whole = run;
    core.space.space_sectors += run.sectors;
    if let Some(entry) = space.floor(core, &space_key(run.start))? {
        let before = space_entry(entry.key(), entry.value())?;
        if before.end() > run.start {
            let what = format!(
                "expected the {} sectors there to be in use when they are freed, found them free \
                 already",
                run.sectors
            );
            let begin = Location::Byte(run.start.0 << core.ashift());
            return Err(Error::corrupt("free space", begin, what));
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
    // On a full disk, who else takes the space would have to give it back.
    if !core.is_cramped
        && core.space.much_is_free()
        && whole.sectors << core.ashift() >= PUNCH_LEN_MIN
    {
        core.space.punch.push(whole);
    }
    Ok(())
}

/// Lowers the end of the pool while the space just below it is free.
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
        // Free space here is about to be filled or cut off.
        core.space.punch.clear();
    }
    core.space.punch.retain(|run| run.end() <= end);
    Ok(())
}

impl Txn {
    /// Provides room for extents of the given lengths in sectors. Extents without such room go
    /// behind the end.
    pub fn provision(&mut self, extents: impl Iterator<Item = u64> + Clone) -> Result<()> {
        let is_small = |sectors: &u64| *sectors <= SMALL_EXTENT_SECTORS;
        let large = extents.clone().filter(|sectors| !is_small(sectors));
        self.provision_longest(large.clone())?;
        if let Some(shortest) = large.clone().min() {
            self.provision_runs(large.sum(), shortest)?;
        }
        let all = extents.clone().sum();
        let small = extents.filter(is_small);
        self.provision_longest(small.clone())?;
        let longest = match self.core.fills_gaps(all) {
            true => small.clone().min(),
            false => small.clone().max(),
        };
        let longest = longest.unwrap_or(0);
        self.provision_runs(small.sum(), longest)
    }

    /// On a full disk: provides as many runs as there are extents, each with room for the longest.
    /// Otherwise the long ones may go behind the end although there are gaps for them.
    fn provision_longest(&mut self, extents: impl Iterator<Item = u64> + Clone) -> Result<()> {
        if !self.core.is_cramped {
            return Ok(());
        }
        let longest = extents.clone().max().unwrap_or(0);
        self.provision_runs(extents.count() as u64 * longest, longest)
    }

    pub(in crate::store) fn provision_runs(&mut self, sectors: u64, shortest: u64) -> Result<()> {
        if sectors == 0 {
            return Ok(());
        }
        let space_tree = &mut self.trees[TreeId::Space];
        provision(&mut self.core, space_tree, sectors, shortest)
    }
}

impl TxnCore {
    /// The store, if its disk is full and holes are to be left alone.
    fn full_disk(&self) -> Option<Arc<Store>> {
        self.spares_holes.then(|| Arc::clone(&self.store))
    }

    /// Records freed runs in the freed tree, which may in turn free nodes of that tree.
    pub(in crate::store) fn record_freed(&mut self, freed_tree: &mut TxnTree) -> Result<()> {
        for run in std::mem::take(&mut self.freed) {
            let key = freed_key(self.txg, run.start);
            freed_tree.insert(self, &key, &run.sectors.to_le_bytes())?;
            self.space.freed_count += 1;
            self.space.freed_sectors += run.sectors;
        }
        Ok(())
    }

    pub(super) fn free_run(&mut self, run: Run, birth: Txg) {
        if birth == self.txg {
            self.space.recycle(run);
        } else {
            self.freed.push(run);
        }
    }
}
