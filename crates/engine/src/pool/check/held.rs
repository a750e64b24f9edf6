//! The part of a check that is about snapshots: what they reach can be read, and what of it the pool itself no
//! longer reaches is recorded in the tree of the dead, no more and no less.
//!
//! Each node and each record is read once, however many snapshots have it: those up to the txg of the snapshot
//! before were there already. Memory: some 40 bytes for each reference that only snapshots have, and some
//! for each tree node that is older than the newest snapshot.
//!
//! Invariant: what a snapshot has is compared with what the pool has only where all of that could be read. Of a pool
//! that a writer moved on, a part of its trees may be overtaken, and what that says of the dead is not known then; a
//! snapshot's own nodes and records are never used again as long as it is there.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::doubts::Doubt;
use super::padding::Padding;
use super::{BATCH_COUNT, CheckReport, Record, parse_record, verify_batch};
use crate::error::{Error, Result};
use crate::pool::extents::source::{Committed, Source};
use crate::pool::namespace::entries::{self, Kind};
use crate::store::format::pointer::Pointer;
use crate::store::format::pointer::data_pointer;
use crate::store::recover::verify::{Bounds, Met, Space, walk_where};
use crate::store::snapshots::dead::{Dead, Holds};
use crate::store::snapshots::{Snapshot, WHOLE_POOL};
use crate::store::trees::{DICTIONARIES, MAP, NAMES, OF_SNAPSHOTS, PATCHES};
use crate::store::{State, Store};
use crate::units::{FileId, Run, Txg};

/// A reference: sector, birth, and the owner's number, 0 for the pool.
type Reference = (u64, u64, u64);

/// What the tree of the dead says of a reference, and what was met of it.
#[derive(Default)]
struct Told {
    sectors: u64,
    count: u64,
    last_freed: Txg,
    found: u64,
}

/// What snapshots have, as a check finds it.
pub(super) struct Held<'a> {
    store: &'a Store,
    state: &'a State,
    holds: Holds,
    newest: Txg,
    /// Those that are not being destroyed, the oldest first.
    snapshots: Vec<Snapshot>,
    condemned: Vec<Snapshot>,
    /// Where the nodes are that the pool itself reaches, of those that a snapshot may have.
    live_nodes: HashSet<u64>,
    told: HashMap<Reference, Told>,
    /// Entries that the pool itself has no longer: tree, file, place in it, and birth.
    met: HashSet<(u8, u64, u64, u64)>,
    /// All that the pool itself has could be read so far.
    compares: bool,
}

/// Which files a snapshot keeps the bytes of.
enum Files {
    All,
    These(BTreeSet<FileId>),
}

impl Files {
    fn has(&self, file: FileId) -> bool {
        match self {
            Files::All => true,
            Files::These(files) => files.contains(&file),
        }
    }

    /// Whether records of any may be within bounds.
    fn meets(&self, bounds: &Bounds) -> bool {
        let Files::These(files) = self else { return true };
        let file_of = |key: &[u8]| {
            let mut whole = [0; 8];
            let n = key.len().min(8);
            whole[..n].copy_from_slice(&key[..n]);
            FileId(u64::from_be_bytes(whole))
        };
        let to = bounds.to.as_ref().map_or(FileId(u64::MAX), |to| file_of(to));
        files.range(file_of(&bounds.from)..).next().is_some_and(|file| *file <= to)
    }
}

impl<'a> Held<'a> {
    /// For the snapshots of a state.
    pub fn new(store: &'a Store, state: &'a State) -> Result<Held<'a>> {
        let holders = store.holders(state)?;
        let (condemned, snapshots) =
            store.snapshots(state)?.into_iter().partition(|snapshot| snapshot.is_condemned);
        Ok(Held {
            store,
            state,
            newest: holders.newest(),
            holds: Holds::new(holders),
            snapshots,
            condemned,
            live_nodes: HashSet::new(),
            told: HashMap::new(),
            met: HashSet::new(),
            compares: true,
        })
    }

    /// Notes a node that the pool itself reaches.
    pub fn note_live(&mut self, tree: u8, pointer: &Pointer) {
        if OF_SNAPSHOTS.contains(&tree)
            && pointer.birth <= self.newest
            && let Some(run) = pointer.run(self.store.ashift())
        {
            self.live_nodes.insert(run.start.0);
        }
    }

    /// Notes an entry of the tree of the dead; what is wrong with it, if anything.
    pub fn note_dead(&mut self, dead: &Dead, space: &mut Space) -> Result<Option<String>> {
        space.add_dead(dead);
        if !self.holds.is_held(self.store, dead.birth, dead.freed, dead.owner)? {
            // Such a one may not have released it yet.
            let may_have = |of: &Snapshot| dead.birth <= of.txg && of.txg < dead.freed;
            let at = dead.run.start.0 << self.store.ashift();
            let problem = format!("byte {at}: no snapshot has what was given up in {}", dead.freed);
            return Ok((!self.condemned.iter().any(may_have)).then_some(problem));
        }
        let told = self.told.entry(reference(dead.run, dead.birth, dead.owner)).or_default();
        let differs = told.count > 0 && told.sectors != dead.run.sectors;
        told.sectors = dead.run.sectors;
        told.count += u64::from(dead.count);
        told.last_freed = told.last_freed.max(dead.freed);
        Ok(differs.then(|| "entries of the dead tree disagree on the length of an extent".into()))
    }

    /// Reads all that snapshots have and the pool itself has not. `progress` gets the stored bytes read.
    pub fn check(
        &mut self,
        padding: &Padding<'_>,
        threads: usize,
        report: &mut CheckReport,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        self.compares = report.problems.is_empty();
        let mut whole = self.compares;
        for index in 0..self.snapshots.len() {
            let mut part = CheckReport { bytes: report.bytes, ..CheckReport::default() };
            if let Err(error) = self.check_one(index, padding, threads, &mut part, progress) {
                part.add(None, None, error);
            }
            let name = self.snapshots[index].name.escape_ascii().to_string();
            whole &= part.problems.is_empty();
            for (at, problem) in part.problems.into_iter().enumerate() {
                let detail = format!("snapshot '{name}': {}", problem.detail);
                let doubt = match part.doubts.get(&at) {
                    Some(Doubt::Unknown) => Doubt::Unknown,
                    _ => Doubt::Snapshot(self.snapshots[index].number),
                };
                report.doubt(doubt, problem.file, problem.range, detail);
            }
            report.bytes = part.bytes;
            report.snapshots += 1;
        }
        if whole {
            self.settle(report);
        }
        Ok(())
    }

    /// Which files snapshot `index` keeps the bytes of.
    fn files_of(&self, snapshot: &Snapshot) -> Result<Files> {
        if snapshot.scope.file == WHOLE_POOL {
            return Ok(Files::All);
        }
        let mut files = BTreeSet::from([snapshot.scope.file]);
        if snapshot.scope.is_directory {
            let state = snapshot.state();
            let mut source = Committed::new(self.store, &state);
            let mut ahead = vec![snapshot.scope.file];
            while let Some(directory) = ahead.pop() {
                for entry in entries::list(&mut source, directory, None, usize::MAX)? {
                    if files.insert(entry.file) && entry.kind == Kind::Directory {
                        ahead.push(entry.file);
                    }
                }
            }
        }
        Ok(Files::These(files))
    }

    fn check_one(
        &mut self,
        index: usize,
        padding: &Padding<'_>,
        threads: usize,
        report: &mut CheckReport,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let snapshot = self.snapshots[index].clone();
        match self.store.find_snapshot(self.state, snapshot.scope.file, &snapshot.name) {
            Ok(Some(named)) if named.number == snapshot.number => {}
            Ok(_) => report.add(None, None, "it is not found by its name"),
            Err(error) => self.give_up_comparing(error, report)?,
        }
        let files = self.files_of(&snapshot)?;
        let earlier = &self.snapshots[..index];
        let before = earlier.last().map_or(Txg(0), |earlier| earlier.txg);
        // All that one of these has was met there.
        let covers = |one: &&Snapshot| {
            one.scope.file == WHOLE_POOL
                || one.scope == snapshot.scope && !snapshot.scope.is_directory
        };
        let covered = earlier.iter().rev().find(covers).map_or(Txg(0), |one| one.txg);
        let mut batch: Vec<Record> = Vec::new();
        for tree in OF_SNAPSHOTS {
            let Some(root) = snapshot.root(tree) else { continue };
            let of_files = matches!(tree, MAP | PATCHES);
            let mut wanted = |pointer: &Pointer, bounds: &Bounds| {
                let is_new = pointer.birth > before;
                is_new || of_files && pointer.birth > covered && files.meets(bounds)
            };
            let (store, mut bytes) = (self.store, 0);
            walk_where(store, tree, root, &mut wanted, &mut |met, _| {
                match met {
                    Met::Damage(_, error) => report.add(None, None, error),
                    Met::Node(_, pointer) if pointer.birth > before => {
                        bytes += u64::from(pointer.stored_len);
                        padding.check(pointer);
                        self.meet_node(pointer, snapshot.txg, report);
                    }
                    Met::Node(..) | Met::Entry(NAMES, ..) => {}
                    Met::Entry(tree, key, value) => {
                        let old = if of_files { covered } else { before };
                        if let Some(record) =
                            self.meet_entry((tree, key, value), old, &files, snapshot.txg, report)?
                        {
                            batch.push(record);
                        }
                        if batch.len() >= BATCH_COUNT {
                            verify_batch(padding, &mut batch, threads, report);
                            progress(report.bytes);
                        }
                    }
                }
                Ok(())
            })?;
            report.bytes += bytes;
        }
        verify_batch(padding, &mut batch, threads, report);
        progress(report.bytes);
        Ok(())
    }

    fn meet_node(&mut self, pointer: &Pointer, txg: Txg, report: &mut CheckReport) {
        let Some(run) = pointer.run(self.store.ashift()) else { return };
        if !self.live_nodes.contains(&run.start.0) {
            self.find(run, pointer.birth, None, txg, report);
        }
    }

    /// An entry of a snapshot; what is to be read of it, where nobody has read it yet.
    fn meet_entry(
        &mut self,
        (tree, key, value): (u8, &[u8], &[u8]),
        old: Txg,
        files: &Files,
        txg: Txg,
        report: &mut CheckReport,
    ) -> Result<Option<Record>> {
        let record = match parse_record(tree, key, value) {
            Ok(record) => record,
            Err(error) => {
                report.add(None, None, error);
                return Ok(None);
            }
        };
        let (owner, start, pointer) = (record.0, record.1, &record.2);
        if pointer.birth <= old || owner.is_some_and(|file| !files.has(file)) {
            return Ok(None);
        }
        let mut source = Committed::new(self.store, self.state);
        let live = match source.get(tree, key) {
            Ok(live) => live.and_then(|value| data_pointer(&value).ok()),
            Err(error) => {
                self.give_up_comparing(error, report)?;
                None
            }
        };
        let run = |pointer: &Pointer| pointer.run(self.store.ashift());
        if live.is_some_and(|live| live.birth == pointer.birth && run(&live) == run(pointer)) {
            return Ok(None);
        }
        let place = if tree == DICTIONARIES { dictionary_place(key) } else { start };
        let id = (tree, owner.map_or(0, |file| file.0), place, pointer.birth.0);
        if !self.met.insert(id) {
            return Ok(None);
        }
        if let Some(run) = run(pointer) {
            self.find(run, pointer.birth, owner, txg, report);
        }
        Ok(Some(record))
    }

    /// A part of what the pool itself has cannot be read any more, though it was before.
    fn give_up_comparing(&mut self, error: Error, report: &mut CheckReport) -> Result<()> {
        if !error.is_corruption() {
            return Err(error);
        }
        if std::mem::take(&mut self.compares) {
            report.doubt(Doubt::Unknown, None, None, error);
        }
        Ok(())
    }

    /// A reference of a snapshot that the pool itself does not have.
    fn find(
        &mut self,
        run: Run,
        birth: Txg,
        owner: Option<FileId>,
        txg: Txg,
        report: &mut CheckReport,
    ) {
        if !self.compares {
            return;
        }
        let at = run.start.0 << self.store.ashift();
        match self.told.get_mut(&reference(run, birth, owner)) {
            Some(told) if told.sectors == run.sectors && told.last_freed > txg => told.found += 1,
            Some(_) => report.add(None, None, format!("byte {at}: it is recorded wrongly as dead")),
            None => report.add(None, None, format!("byte {at}: it is not recorded as dead")),
        }
    }

    /// Every reference that is recorded must have been met.
    fn settle(&self, report: &mut CheckReport) {
        for ((sector, ..), told) in &self.told {
            if told.found != told.count {
                let (at, count, found) = (sector << self.store.ashift(), told.count, told.found);
                let what =
                    format!("byte {at}: {count} references are dead, snapshots have {found}");
                report.add(None, None, what);
            }
        }
    }
}

fn reference(run: Run, birth: Txg, owner: Option<FileId>) -> Reference {
    (run.start.0, birth.0, owner.map_or(0, |file| file.0))
}

fn dictionary_place(key: &[u8]) -> u64 {
    key.iter().fold(0, |place, byte| place << 8 | u64::from(*byte))
}
