//! Checking a whole pool: every byte that is reachable, the zeros behind it, and that nothing else is in use.
//!
//! Damage does not stop the check: it is collected with the file and the place it belongs to. The
//! memory this takes grows with the number of extents (16 bytes each), the one place where it may.
//!
//! Others may write meanwhile. What cannot be read of a state that is no longer the newest counts only if the newest one
//! still has it (see `doubts.rs`); what follows from a walk that read everything is true of that state. So a check ends
//! after one pass where there is damage, and after [`PASS_COUNT_MAX`] in any case.

mod names;
pub(in crate::pool) mod repair;

mod doubts;
mod held;
mod padding;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use self::doubts::Doubt;
use self::held::Held;
use self::padding::Padding;
use super::Pool;
use super::check::names::check_names;
use super::extents::delta;
use super::extents::source::Committed;
use super::extents::{parse_piece, parse_piece_key};
use super::namespace::entries;
use crate::error::{Error, Result};
use crate::store::dictionaries::parse_dictionary_key;
use crate::store::format::pointer::Pointer;
use crate::store::format::pointer::data_pointer;
use crate::store::format::stats::PoolStats;
use crate::store::recover::verify::{Bounds, Met, Space, walk_where};
use crate::store::sharing::index::parse_index_key;
use crate::store::sharing::refs::parse_refs;
use crate::store::snapshots::dead::parse_dead;
use crate::store::trees::{ALL, DEAD, DICTIONARIES, INDEX, MAP, NAMES, OF_POINTERS, PATCHES, REFS};
use crate::store::{State, Store};
use crate::units::{FileId, Txg};

/// How many records are verified together.
const BATCH_COUNT: usize = 256;
/// How many states are gone over, where each is overtaken before all of it was read.
const PASS_COUNT_MAX: usize = 8;

/// Something that is not as it must be.
#[derive(Clone, Debug)]
pub struct Problem {
    /// The file it belongs to, where it belongs to one.
    pub file: Option<FileId>,
    /// The bytes of the file that are hurt.
    pub range: Option<(u64, u64)>,
    /// What is wrong.
    pub detail: String,
}

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// The txg that was checked.
    pub txg: Txg,
    /// Tree nodes, dictionaries and parts of the index read and verified.
    pub nodes: u64,
    /// Records and patches read, verified and decompressed.
    pub records: u64,
    /// Stored bytes read.
    pub bytes: u64,
    /// Free bytes, reusable or about to be.
    pub free_bytes: u64,
    /// Snapshots whose own nodes and records were read and verified.
    pub snapshots: u64,
    /// Everything that is wrong.
    pub problems: Vec<Problem>,
    /// How many problems were met that [`Pool::repair`] mends, without losing anything.
    pub repairable: u64,
    /// What could not be checked in any of several states, because a writer was faster each time.
    pub overtaken: Vec<String>,
    /// The problems that may be none, by their place among all.
    doubts: BTreeMap<usize, Doubt>,
}

impl CheckReport {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    /// Adds what may not be so where the pool has moved on since.
    fn doubt(
        &mut self,
        doubt: Doubt,
        file: Option<FileId>,
        range: Option<(u64, u64)>,
        detail: impl ToString,
    ) {
        self.doubts.insert(self.problems.len(), doubt);
        self.add(file, range, detail);
    }

    /// Leaves of the problems those that the newest state has as well.
    fn settle(&mut self, store: &Store) -> Result<()> {
        let doubts = std::mem::take(&mut self.doubts);
        let mut kept = Vec::new();
        for (index, problem) in std::mem::take(&mut self.problems).into_iter().enumerate() {
            match doubts.get(&index) {
                Some(doubt) if !doubt.is_confirmed(store)? => self.overtaken.push(problem.detail),
                _ => kept.push(problem),
            }
        }
        self.problems = kept;
        Ok(())
    }

    pub(super) fn add(
        &mut self,
        file: Option<FileId>,
        range: Option<(u64, u64)>,
        detail: impl ToString,
    ) {
        self.problems.push(Problem { file, range, detail: detail.to_string() });
    }
}

/// Whose it is (a dictionary is no file's, nor is a part of the index), where it lies in the file, or else in which tree, and
/// the pointer.
type Record = (Option<FileId>, u64, Pointer);

/// Checks the committed state. A writer may go on meanwhile: then it starts over on the newer state where all that was
/// wrong is that space was reused under it.
pub(super) fn check(pool: &Pool, progress: &mut dyn FnMut(u64)) -> Result<CheckReport> {
    let mut passes = 0;
    loop {
        let state = pool.state();
        let mut report = check_state(pool.store(), &state, pool.options().threads, progress)?;
        passes += 1;
        if report.is_clean() {
            return Ok(report);
        }
        if pool.store().adopt_newest()? || pool.state().txg() != state.txg() {
            report.settle(pool.store())?;
        }
        if !report.is_clean() {
            // What was overtaken besides is no problem of the newest state.
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
    threads: usize,
    progress: &mut dyn FnMut(u64),
) -> Result<CheckReport> {
    let mut report = CheckReport { txg: state.txg(), ..CheckReport::default() };
    let mut space = Space::new(store, state);
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
    let mut counted = PoolStats::default();
    for (tree, name) in ALL {
        let Some(root) = &state.superblock.roots[usize::from(tree)] else { continue };
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
                    report.repairable += u64::from(tree == INDEX);
                    let doubt = Doubt::of_node(tree, bounds, last.take());
                    hurt.add(&mut report, tree, bounds, &doubt, &format!("{name} tree: {error}"));
                }
                Met::Entry(tree, key, value) if OF_POINTERS.contains(&tree) => {
                    match parse_record(tree, key, value) {
                        Ok(record) => {
                            space.add_used(&record.2);
                            batch.push(record);
                            if batch.len() >= BATCH_COUNT {
                                verify_batch(&padding, &mut batch, threads, &mut report);
                                progress(report.bytes);
                            }
                        }
                        Err(error) => report.add(None, None, error),
                    }
                }
                Met::Entry(DEAD, key, value) => {
                    let noted = parse_dead(key, value).and_then(|dead| match &mut held {
                        Some(held) => held.note_dead(&dead, &mut space),
                        None => Ok(None),
                    });
                    match noted {
                        Ok(problem) => problem.iter().for_each(|p| report.add(None, None, p)),
                        Err(error) => report.doubt(Doubt::Unknown, None, None, error),
                    }
                }
                Met::Entry(tree, key, value) => {
                    if let Err(error) = space.add_entry(tree, key, value) {
                        report.add(None, None, error);
                    }
                    if tree == REFS
                        && let Ok((_, refs)) = parse_refs(key, value)
                    {
                        counted.count_refs(&refs, store.ashift(), true);
                    }
                }
            }
            Ok(())
        })?;
    }
    verify_batch(&padding, &mut batch, threads, &mut report);
    progress(report.bytes);
    if let Some(held) = &mut held {
        held.check(&padding, threads, &mut report, progress)?;
    }
    let walk_was_whole = report.is_clean();
    let (free, problems) = space.settle();
    report.free_bytes = free << store.ashift();
    if walk_was_whole {
        // With a part of a tree unreadable, what hung below it only seems to be lost.
        for problem in problems {
            report.add(None, None, problem);
        }
        check_counters(state, &counted, &mut report);
        match check_names(&mut Committed::new(store, state), &mut report) {
            // What was read once, and was whole, is read again for what follows from it.
            Err(error) if error.is_corruption() => {
                report.doubt(Doubt::Unknown, None, None, error);
            }
            done => done?,
        }
    }
    padding.report(&mut report);
    Ok(report)
}

/// Which bytes of which files hang below what cannot be read.
#[derive(Default)]
struct HurtRanges {
    /// The length of each file.
    files: BTreeMap<FileId, u64>,
    /// The problem that ends with the next entry of the tree: what is before that is found, if it
    /// exists at all, through what is damaged.
    open: Option<usize>,
}

impl HurtRanges {
    fn note(&mut self, report: &mut CheckReport, met: &Met<'_>) {
        match met {
            Met::Entry(NAMES, key, value) => {
                let attributes = entries::parse_attributes_of(key, value);
                self.files.extend(attributes.map(|(file, attributes)| (file, attributes.len)));
            }
            Met::Entry(MAP | PATCHES, key, _) => {
                let problem = self.open.take().and_then(|index| report.problems.get_mut(index));
                if let (Some(problem), Ok((file, start))) = (problem, parse_piece_key(key))
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
        tree: u8,
        bounds: &Bounds,
        doubt: &Doubt,
        detail: &str,
    ) {
        let place = |key: &[u8]| {
            let mut whole = [0; 16];
            let n = key.len().min(16);
            whole[..n].copy_from_slice(&key[..n]);
            parse_piece_key(&whole).unwrap_or((FileId(0), 0))
        };
        let from = place(&bounds.from);
        let to = bounds.to.as_ref().map_or((FileId(u64::MAX), 0), |to| place(to));
        let count = report.problems.len();
        if matches!(tree, MAP | PATCHES) {
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

fn parse_record(tree: u8, key: &[u8], value: &[u8]) -> Result<Record> {
    match tree {
        DICTIONARIES => parse_dictionary_key(key).map(drop)?,
        INDEX => parse_index_key(key).map(drop)?,
        _ => {
            let (file, piece) = parse_piece(tree, key, value)?;
            return Ok((Some(file), piece.start, piece.pointer));
        }
    }
    Ok((None, u64::from(tree), data_pointer(value)?))
}

/// The counters of the superblock against what was met.
fn check_counters(state: &State, refs: &PoolStats, report: &mut CheckReport) {
    let stats = state.stats();
    if (stats.counted, stats.shared) != (refs.counted, refs.shared) {
        report.add(
            None,
            None,
            "the superblock's counts of what is shared are not those of the refs tree",
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
                format!("the superblock counts {expected} {what}, there are {found}"),
            );
        }
    }
}

/// Reads, verifies and decompresses one record or patch.
fn verify(store: &Store, pointer: &Pointer) -> Result<()> {
    let bytes = store.read_uncached(pointer)?;
    if pointer.is_delta() && !delta::is_sound(bytes.as_slice(), pointer.len as usize) {
        return Err(Error::corrupt("patch", store.offset_of(pointer), "its delta is malformed"));
    }
    Ok(())
}

/// Reads, verifies and decompresses records on all cores.
fn verify_batch(
    padding: &Padding<'_>,
    batch: &mut Vec<Record>,
    threads: usize,
    report: &mut CheckReport,
) {
    let next = AtomicUsize::new(0);
    let bytes = AtomicU64::new(0);
    let problems: Mutex<Vec<(usize, Error)>> = Mutex::default();
    let work = || {
        while let Some((index, (_, _, pointer))) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            batch.get(index).map(|record| (index, record))
        } {
            bytes.fetch_add(u64::from(pointer.stored_len), Ordering::Relaxed);
            match verify(padding.store, pointer) {
                Ok(()) => padding.check(pointer),
                Err(error) => {
                    problems.lock().unwrap_or_else(PoisonError::into_inner).push((index, error));
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(batch.len()) {
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    let others = batch.iter().filter(|(file, ..)| file.is_none()).count() as u64;
    report.nodes += others;
    report.records += batch.len() as u64 - others;
    report.bytes += bytes.into_inner();
    let mut problems = problems.into_inner().unwrap_or_else(PoisonError::into_inner);
    problems.sort_by_key(|(index, _)| *index);
    for (index, error) in problems {
        let (file, offset, pointer) = &batch[index];
        let range = file.map(|_| (*offset, offset + u64::from(pointer.len)));
        report.repairable += u64::from(file.is_none() && *offset == u64::from(INDEX));
        let doubt = Doubt::of_record(*file, *offset, pointer);
        report.doubt(doubt, *file, range, error);
    }
    batch.clear();
}
