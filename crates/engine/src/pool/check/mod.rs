//! Checks a whole pool: every reachable byte, the zeros after extents, and that nothing else is in
//! use.
//!
//! Damage does not stop the check: it is collected with the file and the place it belongs to.
//! Memory grows with the number of extents (16 bytes each); this is the only place where it may.
//!
//! Others may write in the meantime. If a part of a state that is no longer the newest cannot be
//! read, that counts only if the newest state still has the part (see `doubts.rs`); conclusions
//! from a walk that read everything hold for that state. So a check ends after one pass if there is
//! damage, and after [`PASS_COUNT_MAX`] in any case.

mod names;
pub(in crate::pool) mod repair;

mod doubts;
mod held;
mod padding;
mod records;
mod report;

use std::cell::RefCell;
use std::collections::BTreeMap;

use self::doubts::Doubt;
use self::held::Held;
use self::padding::Padding;
use self::records::{BATCH_COUNT, Overlaps, Record, parse_record, verify_batch};
pub use self::report::{CheckReport, Problem};
use super::check::names::check_names;
use super::extents::parse_file_extent_key;
use super::extents::source::Committed;
use super::namespace::entries;
use super::{Options, Pool};
use crate::error::{Error, Result};
use crate::store::format::dead::parse_dead;
use crate::store::format::pointer::Pointer;
use crate::store::format::refs::{RefsEntry, parse_refs_entry};
use crate::store::format::stats::PoolStats;
use crate::store::space::account::SpaceAccount;
use crate::store::tree::walk::{Bounds, Met, walk_where};
use crate::store::trees::TreeId;
use crate::store::{State, Store};
use crate::units::{FileId, Txg};

/// How many states are checked if each is overtaken before all of it was read.
const PASS_COUNT_MAX: usize = 8;

/// Checks the committed state. A writer may continue: if the only problem was that space was reused
/// in the meantime, the check starts over on the newer state.
///
/// If the pool was cut short, that is a problem of its own, which a repair can fix if it can fix
/// all others.
pub(super) fn check(pool: &Pool, progress: &mut dyn FnMut(u64)) -> Result<CheckReport> {
    let mut report = check_newest(pool, progress)?;
    if let Some(cut) = pool.store().cut_short() {
        let is_repairable = report.is_repairable();
        report.problems.insert(0, Problem { file: None, range: None, detail: cut.to_string() });
        report.repairable += u64::from(is_repairable);
    }
    Ok(report)
}

fn check_newest(pool: &Pool, progress: &mut dyn FnMut(u64)) -> Result<CheckReport> {
    let mut passes = 0;
    loop {
        let state = pool.state();
        let mut report = check_state(pool.store(), &state, pool.options(), progress)?;
        passes += 1;
        if report.is_clean() {
            return Ok(report);
        }
        if pool.store().adopt_newest()? || pool.state().txg() != state.txg() {
            report.settle(pool.store())?;
        }
        if !report.is_clean() {
            // Whatever else was overtaken is not a problem of the newest state.
            report.overtaken.clear();
        }
        if !report.is_clean() || passes >= PASS_COUNT_MAX {
            return Ok(report);
        }
    }
}

fn check_state(
    store: &Store,
    state: &State,
    options: &Options,
    progress: &mut dyn FnMut(u64),
) -> Result<CheckReport> {
    let threads = options.threads();
    let mut report = CheckReport { txg: state.txg(), ..CheckReport::default() };
    let mut space = SpaceAccount::new(store, state);
    let padding = Padding::new(store, state);
    let mut held = match Held::new(store, state) {
        Ok(held) => Some(held),
        Err(error) => {
            report.doubt(Doubt::Unknown, None, None, error);
            None
        }
    };
    let mut batch: Vec<Record> = Vec::new();
    let mut hurt = HurtRanges::default();
    let mut overlaps = Overlaps::default();
    let mut counted = PoolStats::default();
    for tree in TreeId::ALL {
        let Some(root) = &state.superblock.roots[tree] else { continue };
        let last = RefCell::new(None);
        let mut wanted = |pointer: &Pointer, _: &Bounds| {
            last.replace(Some(pointer.clone()));
            pointer.birth > Txg(0)
        };
        walk_where(store, tree, root, &mut wanted, &mut |met, bounds| {
            hurt.note(&mut report, &met);
            match met {
                Met::Node(_, pointer) => {
                    report.nodes += 1;
                    report.bytes += u64::from(pointer.stored_len);
                    padding.check(pointer);
                    space.add_used(pointer);
                    held.iter_mut().for_each(|held| held.note_live(tree, pointer));
                }
                Met::Damage(tree, error) => {
                    space.pass_damage(tree);
                    report.repairable += u64::from(tree == TreeId::Index);
                    let doubt = Doubt::of_node(tree, bounds, last.take());
                    hurt.add(&mut report, tree, bounds, &doubt, &format!("{tree} tree: {error}"));
                }
                Met::Entry(tree, key, value) if TreeId::OF_POINTERS.contains(&tree) => {
                    match parse_record(tree, key, value) {
                        Ok(record) => {
                            space.add_used(&record.2);
                            if let (Some(error), Some(file)) =
                                (overlaps.note(tree, &record), record.0)
                            {
                                let end = record.1.saturating_add(u64::from(record.2.len));
                                report.add(Some(file), Some((record.1, end)), error);
                            }
                            batch.push(record);
                            if batch.len() >= BATCH_COUNT {
                                verify_batch(&padding, state, &mut batch, threads, &mut report)?;
                                progress(report.bytes);
                                if (options.is_stopped)() {
                                    return Err(Error::Stopped);
                                }
                            }
                        }
                        Err(error) => report.add(None, None, error),
                    }
                }
                Met::Entry(TreeId::Dead, key, value) => {
                    let noted = parse_dead(key, value).and_then(|dead| match &mut held {
                        Some(held) => held.note_dead(&dead, &mut space),
                        None => Ok(None),
                    });
                    match noted {
                        Ok(problem) => problem.iter().for_each(|p| report.add(None, None, p)),
                        Err(error @ Error::Internal(_)) => return Err(error),
                        Err(error) => report.doubt(Doubt::Unknown, None, None, error),
                    }
                }
                Met::Entry(tree, key, value) => {
                    if let Err(error) = space.add_entry(tree, key, value) {
                        report.add(None, None, error);
                    }
                    if tree == TreeId::Refs
                        && let Ok(RefsEntry::Extent(_, refs)) = parse_refs_entry(key, value)
                    {
                        counted.count_refs(&refs, store.ashift(), true);
                    }
                }
            }
            Ok(())
        })?;
    }
    verify_batch(&padding, state, &mut batch, threads, &mut report)?;
    progress(report.bytes);
    if let Some(held) = &mut held {
        held.check(&padding, threads, &mut report, progress)?;
    }
    let walk_was_whole = report.is_clean();
    let (free, problems) = space.settle();
    report.free_bytes = free << store.ashift();
    if walk_was_whole {
        // If a part of a tree is unreadable, everything below it only seems to be lost.
        for problem in problems {
            report.add(None, None, problem);
        }
        check_counters(state, &counted, &mut report);
        match check_names(&mut Committed::new(store, state), &mut report) {
            // This reads again what was read intact before, so a failure is no proof of damage.
            Err(error) if error.is_corruption() => {
                report.doubt(Doubt::Unknown, None, None, error);
            }
            done => done?,
        }
    }
    padding.report(&mut report);
    Ok(report)
}

/// Finds the bytes of files that lie below unreadable nodes.
#[derive(Default)]
struct HurtRanges {
    /// The length of each file.
    files: BTreeMap<FileId, u64>,
    /// The problem whose range ends at the next entry of the tree: anything before that entry, if
    /// it exists, is below the damaged node.
    open: Option<usize>,
}

impl HurtRanges {
    fn note(&mut self, report: &mut CheckReport, met: &Met<'_>) {
        match met {
            Met::Entry(TreeId::Names, key, value) => {
                let attributes = entries::parse_attributes_of(key, value);
                self.files.extend(attributes.map(|(file, attributes)| (file, attributes.len)));
            }
            Met::Entry(tree @ (TreeId::Map | TreeId::Patches), key, _) => {
                let problem = self.open.take().and_then(|index| report.problems.get_mut(index));
                if let (Some(problem), Ok((file, start))) =
                    (problem, parse_file_extent_key(*tree, key))
                    && problem.file == Some(file)
                    && let Some((_, end)) = &mut problem.range
                {
                    *end = start.max(*end);
                }
            }
            _ => {}
        }
    }

    fn add(
        &mut self,
        report: &mut CheckReport,
        tree: TreeId,
        bounds: &Bounds,
        doubt: &Doubt,
        detail: &str,
    ) {
        let place = |key: &[u8]| {
            let mut whole = [0; 16];
            let n = key.len().min(16);
            whole[..n].copy_from_slice(&key[..n]);
            parse_file_extent_key(tree, &whole).unwrap_or((FileId(0), 0))
        };
        let from = place(&bounds.from);
        let to = bounds.to.as_ref().map_or((FileId(u64::MAX), 0), |to| place(to));
        let count = report.problems.len();
        if matches!(tree, TreeId::Map | TreeId::Patches) {
            for (file, len) in self.files.range(from.0..=to.0.max(from.0)) {
                let start = if *file == from.0 { from.1 } else { 0 };
                let end = if *file == to.0 { to.1.min(*len) } else { *len };
                if start < end {
                    report.doubt(doubt.clone(), Some(*file), Some((start, end)), detail);
                }
            }
            self.open = report.problems.len().checked_sub(1);
        }
        if report.problems.len() == count {
            self.open = None;
            report.doubt(doubt.clone(), None, None, detail);
        }
    }
}

/// Compares the counters of the superblock with the items found.
fn check_counters(state: &State, refs: &PoolStats, report: &mut CheckReport) {
    let stats = state.stats();
    if (stats.counted, stats.shared) != (refs.counted, refs.shared) {
        report.add(
            None,
            None,
            "the superblock's counts of shared extents differ from those of the refs tree",
        );
    }
    let counted = [
        ("records", stats.data().records, report.records),
        ("tree nodes", stats.nodes.records, report.nodes),
    ];
    for (what, expected, found) in counted {
        if expected != found {
            report.add(
                None,
                None,
                format!("the superblock counts {expected} {what}, but there are {found}"),
            );
        }
    }
}
