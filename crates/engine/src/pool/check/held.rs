//! Checks snapshots: everything they reach is readable, and exactly what the current state no
//! longer reaches is recorded in the dead tree.
//!
//! Each node and each record is read once, however many snapshots contain it: those up to the txg
//! of the previous snapshot were read with that one. Memory: some 40 bytes for each reference that
//! only snapshots have, and some for each tree node older than the newest snapshot.
//!
//! Invariant: snapshots are compared with the current state only if all of the latter could be
//! read. If a writer has moved the pool on, parts of its trees may be overtaken, and no conclusion
//! about the dead tree is possible. A snapshot's own nodes and records are never reused while it
//! exists.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::doubts::Doubt;
use super::padding::Padding;
use super::records::{BATCH_COUNT, Record, parse_record, verify_batch};
use super::report::CheckReport;
use crate::error::{Error, Result};
use crate::pool::extents::source::{Committed, Source};
use crate::pool::namespace::entries::{self, Kind};
use crate::store::format::dead::Dead;
use crate::store::format::pointer::Pointer;
use crate::store::format::pointer::data_pointer;
use crate::store::format::snapshot::Snapshot;
use crate::store::holds::Holds;
use crate::store::space::account::SpaceAccount;
use crate::store::tree::walk::{Bounds, Met, walk_where};
use crate::store::trees::TreeId;
use crate::store::{State, Store};
use crate::units::{FileId, Run, Txg};

/// A reference: sector, birth, and the owner's number, 0 for the pool.
type Reference = (u64, u64, u64);

/// What the dead tree records about a reference, and how often it was found.
#[derive(Default)]
struct Told {
    sectors: u64,
    count: u64,
    last_freed: Txg,
    found: u64,
}

/// The content of snapshots, as found by a check.
pub(super) struct Held<'a> {
    store: &'a Store,
    state: &'a State,
    holds: Holds,
    newest: Txg,
    /// Snapshots that are not being destroyed, oldest first.
    snapshots: Vec<Snapshot>,
    condemned: Vec<Snapshot>,
    /// The sectors of nodes that the current state reaches and that a snapshot may share.
    live_nodes: HashSet<u64>,
    told: BTreeMap<Reference, Told>,
    /// Entries that the current state no longer has: tree, file, place in it, and birth.
    met: HashSet<(TreeId, u64, u64, u64)>,
    /// Whether everything in the current state was readable so far.
    compares: bool,
}

/// The files whose bytes a snapshot keeps.
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

    /// Whether bounds may include records of these files.
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
    /// Prepares the check of a state's snapshots.
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
            told: BTreeMap::new(),
            met: HashSet::new(),
            compares: true,
        })
    }

    /// Records a node that the current state reaches.
    pub fn note_live(&mut self, tree: TreeId, pointer: &Pointer) {
        if TreeId::OF_SNAPSHOTS.contains(&tree)
            && pointer.birth <= self.newest
            && let Some(run) = pointer.run(self.store.ashift())
        {
            self.live_nodes.insert(run.start.0);
        }
    }

    /// Records an entry of the dead tree. Returns a description if it is wrong.
    pub fn note_dead(&mut self, dead: &Dead, space: &mut SpaceAccount) -> Result<Option<String>> {
        space.add_dead(dead);
        if !self.holds.is_held(self.store, dead.birth, dead.freed, dead.owner)? {
            // A snapshot being destroyed may not have released it yet.
            let may_have = |of: &Snapshot| dead.birth <= of.txg && of.txg < dead.freed;
            let at = dead.run.start.0 << self.store.ashift();
            let problem = format!("byte {at}: no snapshot has the extent freed in {}", dead.freed);
            return Ok((!self.condemned.iter().any(may_have)).then_some(problem));
        }
        let told = self.told.entry(reference(dead.run, dead.birth, dead.owner)).or_default();
        let differs = told.count > 0 && told.sectors != dead.run.sectors;
        told.sectors = dead.run.sectors;
        told.count += u64::from(dead.count);
        told.last_freed = told.last_freed.max(dead.freed);
        Ok(differs.then(|| "entries of the dead tree disagree on the length of an extent".into()))
    }

    /// Reads everything that snapshots have and the current state has not. `progress` receives the
    /// stored bytes read.
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
                let (doubt, within) = match part.doubts.get(&at) {
                    // It is about the present state.
                    Some(Doubt::Unknown) => (Doubt::Unknown, "in comparison with snapshot"),
                    _ => (Doubt::Snapshot(self.snapshots[index].number), "snapshot"),
                };
                let detail = format!("{within} '{name}': {}", problem.detail);
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

    /// Returns the files whose bytes a snapshot keeps.
    fn files_of(&self, snapshot: &Snapshot) -> Result<Files> {
        if snapshot.scope.file == FileId::ROOT {
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
        let state = snapshot.state();
        match self.store.find_snapshot(self.state, snapshot.scope.file, &snapshot.name) {
            Ok(Some(named)) if named.number == snapshot.number => {}
            Ok(_) => report.add(None, None, "it cannot be found by its name"),
            Err(error) => self.give_up_comparing(error, report)?,
        }
        let files = self.files_of(&snapshot)?;
        let earlier = &self.snapshots[..index];
        let before = earlier.last().map_or(Txg(0), |earlier| earlier.txg);
        // Everything in an earlier snapshot with this property was already met there.
        let covers = |one: &&Snapshot| {
            one.scope.file == FileId::ROOT
                || one.scope == snapshot.scope && !snapshot.scope.is_directory
        };
        let covered = earlier.iter().rev().find(covers).map_or(Txg(0), |one| one.txg);
        let mut batch: Vec<Record> = Vec::new();
        for tree in TreeId::OF_SNAPSHOTS {
            let Some(root) = snapshot.root(tree) else { continue };
            let of_files = matches!(tree, TreeId::Map | TreeId::Patches);
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
                    Met::Node(..) | Met::Entry(TreeId::Names, ..) => {}
                    Met::Entry(tree, key, value) => {
                        let old = if of_files { covered } else { before };
                        if let Some(record) =
                            self.meet_entry((tree, key, value), old, &files, snapshot.txg, report)?
                        {
                            batch.push(record);
                        }
                        if batch.len() >= BATCH_COUNT {
                            verify_batch(padding, &state, &mut batch, threads, report)?;
                            progress(report.bytes);
                        }
                    }
                }
                Ok(())
            })?;
            report.bytes += bytes;
        }
        verify_batch(padding, &state, &mut batch, threads, report)?;
        progress(report.bytes);
        Ok(())
    }

    fn meet_node(&mut self, pointer: &Pointer, txg: Txg, report: &mut CheckReport) {
        let Some(run) = pointer.run(self.store.ashift()) else { return };
        if !self.live_nodes.contains(&run.start.0) {
            self.find(run, pointer.birth, None, txg, report);
        }
    }

    /// Processes an entry of a snapshot. Returns the record if it must still be read.
    fn meet_entry(
        &mut self,
        (tree, key, value): (TreeId, &[u8], &[u8]),
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
        let place = if tree == TreeId::Dictionaries { dictionary_place(key) } else { start };
        let id = (tree, owner.map_or(0, |file| file.0), place, pointer.birth.0);
        if !self.met.insert(id) {
            return Ok(None);
        }
        if let Some(run) = run(pointer) {
            self.find(run, pointer.birth, owner, txg, report);
        }
        Ok(Some(record))
    }

    /// Stops comparing because a part of the current state that was readable before no longer is.
    fn give_up_comparing(&mut self, error: Error, report: &mut CheckReport) -> Result<()> {
        if !error.is_corruption() {
            return Err(error);
        }
        if std::mem::take(&mut self.compares) {
            report.doubt(Doubt::Unknown, None, None, error);
        }
        Ok(())
    }

    /// Counts a reference of a snapshot that the current state does not have.
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

    /// Reports recorded references that were not found as often as recorded.
    fn settle(&self, report: &mut CheckReport) {
        for ((sector, ..), told) in &self.told {
            if told.found != told.count {
                let (at, count, found) = (*sector << self.store.ashift(), told.count, told.found);
                let what = format!(
                    "byte {at}: {count} references are recorded as dead, but snapshots have {found}"
                );
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
