//! What changed below a directory, or in a file, between a snapshot and a later one or the pool as it is.
//!
//! Only nodes that differ are read, and the bytes behind records that differ, since what is written anew need not
//! have changed. Memory goes with how much changed.
//!
//! Invariant: bytes are read only where records or patches differ: a file that became longer or shorter differs behind the
//! shorter end, which is said and not looked at. It may be a hole of 2^60 bytes.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::pool::extents::source::Committed;
use crate::pool::extents::{Piece, UNIT_LEN, parse_piece, read_range};
use crate::pool::namespace::api::is_below;
use crate::pool::namespace::entries::{self, Kind, Owned, ROOT};
use crate::store::snapshots::Snapshot;
use crate::store::snapshots::differ::differences;
use crate::store::trees::{MAP, NAMES, PATCHES};
use crate::store::{State, Store};
use crate::units::FileId;

/// How much of two files is compared at a time.
const COMPARE_LEN: u64 = 128 << 10;

/// What happened to a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// It was not there before.
    Created,
    /// It is not there any more.
    Removed,
    /// It had another path.
    Renamed {
        /// That one.
        from: Vec<u8>,
    },
    /// Its bytes, its length, or what else is known of it changed.
    Modified,
}

/// A file that changed. One that was renamed and modified comes twice.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// Its path, from the root; where it is not there any more, the one it had.
    pub path: Vec<u8>,
    /// The file.
    pub file: FileId,
    /// File, directory or symbolic link.
    pub kind: Kind,
    /// What happened.
    pub change: Change,
    /// Which bytes of it differ, to 4 KiB: start and end. None of what was created or removed.
    pub ranges: Vec<(u64, u64)>,
}

/// What is found of one file.
#[derive(Default)]
struct Found {
    has_other_names: bool,
    is_modified: bool,
    /// Where records or patches differ.
    pieces: Vec<(u64, u64)>,
}

/// Two states of one pool.
struct Pair<'a> {
    store: &'a Store,
    old: &'a State,
    new: &'a State,
    scope: FileId,
    /// The names of the scope itself count: where it lies, how it is called, how many names it has.
    with_its_names: bool,
}

impl Pool {
    /// What changed in the scope of a snapshot between it and a later one of the same scope, or the pool as it is,
    /// by path.
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

    /// Whether what a snapshot keeps is not the same any more, but for the names of the scope itself.
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
        for tree in [MAP, PATCHES] {
            self.compare_pieces(tree, &mut files)?;
        }
        let mut found = Vec::new();
        for (file, of) in files {
            self.judge(file, of, &mut found)?;
        }
        Ok(found)
    }

    fn roots(&self, tree: u8) -> [Option<&crate::store::format::pointer::Pointer>; 2] {
        [self.old, self.new].map(|state| state.superblock.roots[usize::from(tree)].as_ref())
    }

    fn source<'s>(&'s self, state: &'s State) -> Committed<'s> {
        Committed::new(self.store, state)
    }

    fn compare_names(&self, files: &mut BTreeMap<FileId, Found>) -> Result<()> {
        let [old, new] = self.roots(NAMES);
        differences(self.store, NAMES, (old, new), &mut |key, before, after| {
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

    fn compare_pieces(&self, tree: u8, files: &mut BTreeMap<FileId, Found>) -> Result<()> {
        let [old, new] = self.roots(tree);
        differences(self.store, tree, (old, new), &mut |key, before, after| {
            for value in [before, after].into_iter().flatten() {
                let (file, piece): (FileId, Piece) = parse_piece(tree, key, value)?;
                let pieces = &mut files.entry(file).or_default().pieces;
                match pieces.last_mut() {
                    Some((from, to)) if (*from..=*to).contains(&piece.start) => {
                        *to = piece.end().max(*to);
                    }
                    _ => pieces.push((piece.start, piece.end())),
                }
            }
            Ok(())
        })
    }

    /// Whether a file is there in a state, within the scope.
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
                let ranges = self.differing(file, of.pieces)?;
                if !ranges.is_empty() || of.is_modified && self.is_modified(file, is_renamed)? {
                    add(to, kind, Change::Modified, ranges);
                }
            }
        }
        Ok(())
    }

    /// Whether anything but the names of a file changed, and with them its directory and their number.
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

    /// Of ranges in which records differ, those in which bytes do.
    fn differing(&self, file: FileId, mut pieces: Vec<(u64, u64)>) -> Result<Vec<(u64, u64)>> {
        let [mut old, mut new] = [self.old, self.new].map(|state| self.source(state));
        let lens =
            [entries::attributes(&mut old, file)?.len, entries::attributes(&mut new, file)?.len];
        // What one of them does not reach differs in any case, with the unit in which it ends.
        let beyond = (lens[0] != lens[1])
            .then(|| (lens[0].min(lens[1]) / UNIT_LEN * UNIT_LEN, lens[0].max(lens[1])));
        let end = beyond.map_or(lens[0], |(start, _)| start);
        pieces.sort_unstable();
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        let mut done = 0;
        let [mut a, mut b] = [(); 2].map(|()| vec![0; COMPARE_LEN as usize]);
        for (from, to) in pieces {
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

/// Puts a range behind others, or with the last of them where they touch.
fn add_range(ranges: &mut Vec<(u64, u64)>, (start, stop): (u64, u64)) {
    match ranges.last_mut() {
        Some(last) if last.1 >= start => last.1 = last.1.max(stop),
        _ => ranges.push((start, stop)),
    }
}
