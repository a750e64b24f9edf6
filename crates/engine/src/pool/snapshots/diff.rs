//! Lists the changes below a directory, or in a file, between a snapshot and a later one or the
//! current state.
//!
//! Only nodes that differ are read, and the bytes of records that differ, since rewritten
//! records may hold the same bytes. Memory grows with the number of changes.
//!
//! Invariant: bytes are read only where records or patches differ. If the length of a file changed,
//! the part past the shorter end is reported without being read: it may be a hole of 2^60 bytes.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::pool::extents::source::Committed;
use crate::pool::extents::{FileExtent, UNIT_LEN, parse_file_extent, read_range};
use crate::pool::namespace::api::is_below;
use crate::pool::namespace::entries::{self, Kind, Owned, ROOT};
use crate::store::format::snapshot::Snapshot;
use crate::store::snapshots::differ::differences;
use crate::store::trees::TreeId;
use crate::store::{State, Store};
use crate::units::FileId;

/// How many bytes of two files are compared at a time.
const COMPARE_LEN: u64 = 128 << 10;

/// The kind of change to a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// It did not exist before.
    Created,
    /// It no longer exists.
    Removed,
    /// It had another path.
    Renamed {
        /// The former path.
        from: Vec<u8>,
    },
    /// Its bytes, length, attributes or properties changed.
    Modified,
}

/// A file that changed. A file that was both renamed and modified appears twice.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Difference {
    /// Its path from the root; the former path if it no longer exists.
    pub path: Vec<u8>,
    /// The file.
    pub file: FileId,
    /// File, directory or symbolic link.
    pub kind: Kind,
    /// The kind of change.
    pub change: Change,
    /// The byte ranges that differ, at a resolution of 4 KiB: start and end. Empty for created and
    /// removed files.
    pub ranges: Vec<(u64, u64)>,
}

/// The changes found for one file.
#[derive(Default)]
struct Found {
    has_other_names: bool,
    is_modified: bool,
    /// The ranges in which records or patches differ.
    extents: Vec<(u64, u64)>,
}

/// Two states of the same pool.
struct Pair<'a> {
    store: &'a Store,
    old: &'a State,
    new: &'a State,
    scope: FileId,
    /// Whether the names of the scope itself count: its place, its name, and their number.
    with_its_names: bool,
}

impl Pool {
    /// Returns the changes in the scope of a snapshot up to a later snapshot of the same scope, or
    /// up to the current state, sorted by path.
    pub fn diff(&self, scope: FileId, from: &[u8], to: Option<&[u8]>) -> Result<Vec<Difference>> {
        let find = |name: &[u8]| self.find_snapshot(scope, name);
        let old: Snapshot = find(from)?;
        let compare = |new: &State| {
            let old = old.state();
            Pair { store: self.store(), old: &old, new, scope, with_its_names: true }.run()
        };
        let mut found = match to {
            Some(to) => {
                let new = find(to)?;
                if new.txg < old.txg {
                    let what = "the first of two snapshots must be the older one";
                    return Err(Error::Invalid(what.into()));
                }
                compare(&new.state())
            }
            None => {
                self.refresh()?;
                self.store().with_state(compare)
            }
        }?;
        found.sort_by(|a, b| (&a.path, a.file).cmp(&(&b.path, b.file)));
        Ok(found)
    }

    /// Whether the content of a snapshot's scope has changed, apart from the names of the scope
    /// itself.
    pub(in crate::pool) fn is_changed_within(&self, snapshot: &Snapshot) -> Result<bool> {
        self.refresh()?;
        let (old, scope) = (snapshot.state(), snapshot.scope.file);
        self.store().with_state(|new| {
            let pair = Pair { store: self.store(), old: &old, new, scope, with_its_names: false };
            Ok(!pair.run()?.is_empty())
        })
    }
}

impl Pair<'_> {
    fn run(&self) -> Result<Vec<Difference>> {
        let mut files: BTreeMap<FileId, Found> = BTreeMap::new();
        self.compare_names(&mut files)?;
        for tree in [TreeId::Map, TreeId::Patches] {
            self.compare_file_extents(tree, &mut files)?;
        }
        let mut found = Vec::new();
        for (file, of) in files {
            self.judge(file, of, &mut found)?;
        }
        Ok(found)
    }

    fn roots(&self, tree: TreeId) -> [Option<&crate::store::format::pointer::Pointer>; 2] {
        [self.old, self.new].map(|state| state.superblock.roots[tree].as_ref())
    }

    fn source<'s>(&'s self, state: &'s State) -> Committed<'s> {
        Committed::new(self.store, state)
    }

    fn compare_names(&self, files: &mut BTreeMap<FileId, Found>) -> Result<()> {
        let [old, new] = self.roots(TreeId::Names);
        differences(self.store, TreeId::Names, (old, new), &mut |key, before, after| {
            match entries::owned_by(key) {
                Some(Owned::Attributes(file) | Owned::Other(file)) => {
                    files.entry(file).or_default().is_modified = true;
                }
                Some(Owned::Name(file, ..)) => {
                    files.entry(file).or_default().has_other_names = true;
                }
                Some(Owned::Entry(_)) => {
                    // The first files of old pools have no other entry for their names.
                    let parse = |value: Option<&[u8]>| entries::parse_entry(key, value?);
                    for entry in [parse(before), parse(after)].into_iter().flatten() {
                        files.entry(entry.file).or_default().has_other_names = true;
                    }
                }
                None => {}
            }
            Ok(())
        })
    }

    fn compare_file_extents(
        &self,
        tree: TreeId,
        files: &mut BTreeMap<FileId, Found>,
    ) -> Result<()> {
        let [old, new] = self.roots(tree);
        differences(self.store, tree, (old, new), &mut |key, before, after| {
            for value in [before, after].into_iter().flatten() {
                let (file, extent): (FileId, FileExtent) = parse_file_extent(tree, key, value)?;
                let extents = &mut files.entry(file).or_default().extents;
                match extents.last_mut() {
                    Some((from, to)) if (*from..=*to).contains(&extent.start) => {
                        *to = extent.end().max(*to);
                    }
                    _ => extents.push((extent.start, extent.end())),
                }
            }
            Ok(())
        })
    }

    /// Whether a file exists within the scope in a state.
    fn is_in(&self, state: &State, file: FileId) -> Result<bool> {
        let source = &mut self.source(state);
        if !entries::is_there(source, file)? || entries::is_nameless(source, file)? {
            return Ok(false);
        }
        Ok(self.scope == ROOT || self.scope == file || is_below(source, file, self.scope)?)
    }

    fn judge(&self, file: FileId, of: Found, found: &mut Vec<Difference>) -> Result<()> {
        let (was, is) = (self.is_in(self.old, file)?, self.is_in(self.new, file)?);
        let path = |state: &State| entries::path_of(&mut self.source(state), file);
        let kind = |state: &State| {
            Ok::<_, Error>(entries::attributes(&mut self.source(state), file)?.kind)
        };
        let mut add = |path, kind, change, ranges| {
            found.push(Difference { path, file, kind, change, ranges });
        };
        match (was, is) {
            (false, false) => {}
            (false, true) => add(path(self.new)?, kind(self.new)?, Change::Created, Vec::new()),
            (true, false) => add(path(self.old)?, kind(self.old)?, Change::Removed, Vec::new()),
            (true, true) => {
                let kind = kind(self.new)?;
                let from = if of.has_other_names { path(self.old)? } else { Vec::new() };
                let to = path(self.new)?;
                let passes_over = file == self.scope && !self.with_its_names;
                let is_renamed = passes_over || of.has_other_names && from != to;
                if is_renamed && !passes_over {
                    add(to.clone(), kind, Change::Renamed { from }, Vec::new());
                }
                let ranges = self.differing(file, of.extents)?;
                if !ranges.is_empty() || of.is_modified && self.is_modified(file, is_renamed)? {
                    add(to, kind, Change::Modified, ranges);
                }
            }
        }
        Ok(())
    }

    /// Whether anything changed except the names of a file, its directory and the number of names.
    fn is_modified(&self, file: FileId, is_renamed: bool) -> Result<bool> {
        let [mut old, mut new] = [self.old, self.new].map(|state| self.source(state));
        if entries::own_entries(&mut old, file)? != entries::own_entries(&mut new, file)? {
            return Ok(true);
        }
        let before = entries::attributes(&mut old, file)?;
        let mut after = entries::attributes(&mut new, file)?;
        if is_renamed {
            (after.parent, after.changed_ns) = (before.parent, before.changed_ns);
        }
        if file == self.scope && !self.with_its_names {
            after.link_count = before.link_count;
        }
        Ok(after != before)
    }

    /// Narrows ranges in which records differ to those in which bytes differ.
    fn differing(&self, file: FileId, mut extents: Vec<(u64, u64)>) -> Result<Vec<(u64, u64)>> {
        let [mut old, mut new] = [self.old, self.new].map(|state| self.source(state));
        let lens =
            [entries::attributes(&mut old, file)?.len, entries::attributes(&mut new, file)?.len];
        // The part past the shorter end differs in any case, including the unit in which it
        // begins.
        let beyond = (lens[0] != lens[1])
            .then(|| (lens[0].min(lens[1]) / UNIT_LEN * UNIT_LEN, lens[0].max(lens[1])));
        let end = beyond.map_or(lens[0], |(start, _)| start);
        extents.sort_unstable();
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        let mut done = 0;
        let [mut a, mut b] = [(); 2].map(|()| vec![0; COMPARE_LEN as usize]);
        for (from, to) in extents {
            let mut at = from.max(done) / UNIT_LEN * UNIT_LEN;
            let to = to.min(end);
            while at < to {
                let len = COMPARE_LEN.min(to - at) as usize;
                let (a, b) = (&mut a[..len], &mut b[..len]);
                read_range(&mut old, file, a, at)?;
                read_range(&mut new, file, b, at)?;
                let units = a.chunks(UNIT_LEN as usize).zip(b.chunks(UNIT_LEN as usize));
                for ((x, y), start) in units.zip((at..).step_by(UNIT_LEN as usize)) {
                    let stop = start + x.len() as u64;
                    if x != y {
                        add_range(&mut ranges, (start, stop));
                    }
                }
                at += len as u64;
            }
            done = done.max(to);
        }
        if let Some(beyond) = beyond {
            add_range(&mut ranges, beyond);
        }
        Ok(ranges)
    }
}

/// Appends a range, merging it with the last one if they touch.
fn add_range(ranges: &mut Vec<(u64, u64)>, (start, stop): (u64, u64)) {
    match ranges.last_mut() {
        Some(last) if last.1 >= start => last.1 = last.1.max(stop),
        _ => ranges.push((start, stop)),
    }
}
