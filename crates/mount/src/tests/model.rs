//! What a mounted directory must show: every state that its names were in, and every version of the
//! bytes of each file.
//!
//! States and versions are numbered by the steps of a run. State `n` is that after step `n`, and
//! state 0 is the empty directory.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use hardpack_engine::FileId;
use hardpack_engine::pool::{Kind, View};

use crate::test_common::first_difference;

/// What a name shows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shown {
    pub id: FileId,
    pub kind: Kind,
    pub mode: u32,
    pub uid: u32,
    pub link_count: u32,
    pub accessed_ns: i64,
    /// The extended attribute [`XATTR`].
    pub xattr: Vec<u8>,
    pub target: Vec<u8>,
}

/// All names below the mounted directory, by their path. Parts of a path are joined by `/`.
pub type Names = BTreeMap<Vec<u8>, Shown>;

/// The extended attribute that is compared.
pub const XATTR: &[u8] = b"user.note";

/// Every version of a file's bytes, with the step that made it.
type Versions = Vec<(usize, Arc<[u8]>)>;

#[derive(Debug, Default)]
pub struct Model {
    /// What the names show now.
    pub names: Names,
    states: Vec<Names>,
    versions: BTreeMap<FileId, Versions>,
    /// The steps that moved a file over another one: what it had then was committed first.
    replacing: Vec<(usize, FileId)>,
}

impl Model {
    pub fn new() -> Model {
        Model { states: vec![Names::new()], ..Model::default() }
    }

    /// The number of the step that is being made.
    pub fn step(&self) -> usize {
        self.states.len()
    }

    /// Ends a step.
    pub fn end_step(&mut self) {
        self.states.push(self.names.clone());
    }

    /// Takes back [`Model::end_step`].
    pub fn undo_end_step(&mut self) {
        self.states.pop();
    }

    /// Returns the paths of what is of this kind.
    pub fn paths(&self, wanted: impl Fn(&Shown) -> bool) -> Vec<Vec<u8>> {
        let found = self.names.iter().filter(|(_, shown)| wanted(shown));
        found.map(|(path, _)| path.clone()).collect()
    }

    /// Changes what all names of a file show.
    pub fn change(&mut self, id: FileId, change: impl Fn(&mut Shown)) {
        self.names.values_mut().filter(|shown| shown.id == id).for_each(change);
    }

    /// Moves a name, with all below it.
    pub fn move_all(&mut self, from: &[u8], to: &[u8]) -> Names {
        let below = [from, b"/"].concat();
        let is_moved = |path: &[u8]| path == from || path.starts_with(&below);
        let moved: Vec<_> = self.names.keys().filter(|path| is_moved(path)).cloned().collect();
        let taken = moved.into_iter().filter_map(|path| {
            let shown = self.names.remove(&path)?;
            Some(([to, &path[from.len()..]].concat(), shown))
        });
        taken.collect()
    }

    /// Takes a name of a file away.
    pub fn unlink(&mut self, path: &[u8]) -> Option<Shown> {
        let gone = self.names.remove(path)?;
        self.change(gone.id, |shown| shown.link_count -= 1);
        Some(gone)
    }

    /// Notes that a file is moved over another one.
    pub fn replaces(&mut self, id: FileId) {
        self.replacing.push((self.step(), id));
    }

    /// Returns the present bytes of a file.
    pub fn bytes(&self, id: FileId) -> Arc<[u8]> {
        let last = self.versions.get(&id).and_then(|versions| versions.last());
        last.map_or_else(|| Arc::from([]), |(_, bytes)| Arc::clone(bytes))
    }

    /// Notes what the bytes of a file are from this step on.
    pub fn set_bytes(&mut self, id: FileId, bytes: Vec<u8>) {
        let step = self.step();
        self.versions.entry(id).or_default().push((step, bytes.into()));
    }

    /// Returns the first and the last of these states that the names are in.
    pub fn find_state(
        &self,
        found: &Names,
        steps: RangeInclusive<usize>,
    ) -> Result<(usize, usize), String> {
        let newest = (*steps.end()).min(self.states.len() - 1);
        let is_it = |step: &usize| self.states[*step] == *found;
        let mut fitting = (*steps.start()..=newest).filter(is_it);
        if let Some(first) = fitting.next() {
            return Ok((first, fitting.next_back().unwrap_or(first)));
        }
        let wanted = &self.states[newest];
        let differing: Vec<_> =
            wanted.iter().filter(|(path, shown)| found.get(*path) != Some(shown)).collect();
        let extra: Vec<_> = found.keys().filter(|path| !wanted.contains_key(*path)).collect();
        let older = (0..*steps.start()).rev().find(is_it);
        Err(format!(
            "the names are in none of the states {steps:?} (but in {older:?}): not as in the last: \
             {differing:?}, too many: {extra:?}, found {found:?}"
        ))
    }

    /// Checks that these are the bytes of a file in one of these states, and not older than when it
    /// was last moved over another file, if that is before or in the state `names`.
    pub fn check_bytes(
        &self,
        id: FileId,
        bytes: &[u8],
        steps: RangeInclusive<usize>,
        names: usize,
    ) -> Result<(), String> {
        let (mut first, last) = steps.into_inner();
        for (step, moved) in &self.replacing {
            if *moved == id && *step <= names {
                first = first.max(*step);
            }
        }
        let none: Versions = Vec::new();
        let versions = self.versions.get(&id).unwrap_or(&none);
        // The version that held in the first state, and those made since.
        let from = versions.partition_point(|(step, _)| *step <= first).saturating_sub(1);
        let held: Vec<_> = versions[from..].iter().filter(|(step, _)| *step <= last).collect();
        let is_empty_at_first = versions.first().is_none_or(|(step, _)| *step > first);
        if is_empty_at_first && bytes.is_empty() || held.iter().any(|(_, it)| **it == *bytes) {
            return Ok(());
        }
        let older = versions.iter().rev().find(|(_, it)| **it == *bytes).map(|(step, _)| step);
        let newest = held.last().map_or(&[][..], |(_, bytes)| bytes);
        Err(format!(
            "the bytes of {id:?} are none of those of steps {first} to {last} (but of step \
             {older:?}); the newest: {}",
            first_difference(bytes, newest)
        ))
    }
}

/// Reads all names with what they show.
pub fn read_names(view: &mut View<'_>, root: FileId) -> hardpack_engine::Result<Names> {
    let mut names = Names::new();
    let mut due = vec![(root, Vec::new())];
    while let Some((directory, above)) = due.pop() {
        for entry in view.list(directory, None, 10_000)? {
            let path = [&above[..], &entry.name].concat();
            let known = view.attributes(entry.file)?;
            if known.kind == Kind::Directory {
                due.push((entry.file, [&path[..], b"/"].concat()));
            }
            let target = match known.kind {
                Kind::Symlink => view.link_target(entry.file)?,
                _ => Vec::new(),
            };
            let shown = Shown {
                id: entry.file,
                kind: known.kind,
                mode: known.mode & 0o7777,
                uid: known.owner.map_or(0, |owner| owner.uid),
                link_count: known.link_count,
                accessed_ns: known.accessed_ns,
                xattr: view.xattr(entry.file, XATTR)?.unwrap_or_default(),
                target,
            };
            names.insert(path, shown);
        }
    }
    Ok(names)
}
