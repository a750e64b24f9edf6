//! What snapshots hold: which references may be freed, and which go to the dead tree.
//!
//! A snapshot has a reference if and only if it is not older than the reference's birth, it is
//! older than the txg that gave it up, and the owner is within its scope. Without snapshots all of
//! this comes down to one comparison.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::{Owner, Txn};
use crate::error::{Error, Location, Result};
use crate::store::format::dead::{Dead, parse_dead};
use crate::store::format::pointer::Pointer;
use crate::store::format::snapshot::{Scope, Snapshot, parse_snapshot};
use crate::store::format::superblock::FEATURE_SNAPSHOTS;
use crate::store::format::trees::TreeId;
use crate::store::tree::{NodeSource, TxnTree};
use crate::store::{State, Store};
use crate::units::{FileId, Run, Txg};

/// The maximum number of dead tree nodes kept in memory before they are recorded.
pub(in crate::store) const DEAD_NODES_MAX: usize = 8192;
/// The maximum number of answers to "is this file below that directory" that a transaction
/// remembers.
const MEMO_COUNT_MAX: usize = 8192;
/// Tells whether a file is, or is below, a directory, according to the names in the given state.
pub type IsBelow = fn(&Store, &State, FileId, FileId) -> Result<bool>;

/// The facts about a snapshot that determine what it holds.
#[derive(Clone, PartialEq, Debug)]
pub(in crate::store) struct Holder {
    pub number: u64,
    pub txg: Txg,
    pub scope: Scope,
    /// The names tree that tells what is below a directory.
    pub names: Option<Box<Pointer>>,
}

impl Holder {
    fn of(snapshot: &Snapshot) -> Holder {
        let needs_names = snapshot.scope.is_directory && snapshot.scope.file != FileId::ROOT;
        let names = snapshot.root(TreeId::Names).filter(|_| needs_names).cloned().map(Box::new);
        Holder { number: snapshot.number, txg: snapshot.txg, scope: snapshot.scope, names }
    }
}

/// The snapshots of a state that hold anything, and the numbers of the condemned ones.
#[derive(Clone, Debug, Default)]
pub struct Holders {
    /// By txg.
    list: Vec<Holder>,
    /// The txgs of all of them, of those of the whole pool, and of those of each single file.
    all: Vec<Txg>,
    whole: Vec<Txg>,
    files: HashMap<FileId, Vec<Txg>>,
    /// The indices in `list` of the snapshots of directories.
    directories: Vec<usize>,
    /// The numbers of the snapshots that are being destroyed.
    condemned: Vec<u64>,
}

impl Holders {
    fn new(mut list: Vec<Holder>, condemned: Vec<u64>) -> Holders {
        list.sort_by_key(|holder| (holder.txg, holder.number));
        let mut holders = Holders { condemned, ..Holders::default() };
        for (index, holder) in list.iter().enumerate() {
            holders.all.push(holder.txg);
            match holder.scope {
                Scope { file: FileId::ROOT, .. } => holders.whole.push(holder.txg),
                Scope { is_directory: true, .. } => holders.directories.push(index),
                Scope { file, .. } => holders.files.entry(file).or_default().push(holder.txg),
            }
        }
        Holders { list, ..holders }
    }

    /// Loads the snapshots of a tree.
    pub(in crate::store) fn load(tree: &TxnTree, source: &mut impl NodeSource) -> Result<Holders> {
        let (mut list, mut condemned) = (Vec::new(), Vec::new());
        if !tree.is_empty() {
            for_each(tree, source, &mut |snapshot| match snapshot.is_condemned {
                true => condemned.push(snapshot.number),
                false => list.push(Holder::of(&snapshot)),
            })?;
        }
        Ok(Holders::new(list, condemned))
    }

    /// The txg of the newest snapshot; 0 if there is none.
    pub fn newest(&self) -> Txg {
        self.all.last().copied().unwrap_or_default()
    }

    /// Whether any snapshot has a reference with this birth that was given up by `freed`.
    pub(in crate::store) fn has_pool(&self, birth: Txg, freed: Txg) -> bool {
        has_between(&self.all, birth, freed)
    }

    /// Whether a snapshot of the whole pool, or of this very file, has such a reference.
    pub(in crate::store) fn has_file(&self, file: FileId, birth: Txg, freed: Txg) -> bool {
        has_between(&self.whole, birth, freed)
            || self.files.get(&file).is_some_and(|txgs| has_between(txgs, birth, freed))
    }

    /// Returns the snapshots of directories from txg `birth` to before `freed`.
    pub(in crate::store) fn of_directories(
        &self,
        birth: Txg,
        freed: Txg,
    ) -> impl Iterator<Item = &Holder> {
        let first = self.directories.partition_point(|index| self.list[*index].txg < birth);
        let those = self.directories[first..].iter().map(|index| &self.list[*index]);
        those.take_while(move |holder| holder.txg < freed)
    }

    /// Returns the txg of the first other snapshot, not older than this one, that covers its scope.
    /// What this one holds of everything given up after that txg, the other one holds too.
    pub(in crate::store) fn covered_from(&self, snapshot: &Snapshot) -> Option<Txg> {
        let first = self.list.partition_point(|holder| holder.txg < snapshot.txg);
        let mut others = self.list[first..].iter().filter(|one| one.number != snapshot.number);
        others.find(|other| covers(&other.scope, &snapshot.scope)).map(|other| other.txg)
    }

    /// Returns these snapshots and a new one.
    pub(in crate::store) fn with(&self, snapshot: &Snapshot) -> Holders {
        let mut list = self.list.clone();
        list.push(Holder::of(snapshot));
        Holders::new(list, self.condemned.clone())
    }

    /// Returns these snapshots, one of which is being destroyed from here on.
    pub(in crate::store) fn condemning(&self, number: u64) -> Holders {
        let mut holders = self.without(number);
        holders.condemned.push(number);
        holders
    }

    /// Returns these snapshots without one that is destroyed now.
    pub(in crate::store) fn forgetting(&self, number: u64) -> Holders {
        let mut holders = self.clone();
        holders.condemned.retain(|condemned| *condemned != number);
        holders
    }

    /// Returns these snapshots without one of them.
    pub(in crate::store) fn without(&self, number: u64) -> Holders {
        let list = self.list.iter().filter(|holder| holder.number != number).cloned().collect();
        Holders::new(list, self.condemned.clone())
    }

    /// The numbers of the snapshots that are being destroyed.
    pub fn condemned(&self) -> &[u64] {
        &self.condemned
    }

    /// The number of snapshots, including those being destroyed.
    pub fn count(&self) -> usize {
        self.list.len() + self.condemned.len()
    }
}

fn has_between(txgs: &[Txg], birth: Txg, freed: Txg) -> bool {
    let first = txgs.partition_point(|txg| *txg < birth);
    txgs.get(first).is_some_and(|txg| *txg < freed)
}

fn covers(scope: &Scope, other: &Scope) -> bool {
    // Files come and go below a directory, so two snapshots of one directory need not keep the same
    // files.
    scope.file == FileId::ROOT || scope == other && !scope.is_directory
}

/// Calls `visit` with the snapshots of a tree, in order of their numbers, including condemned ones.
pub(in crate::store) fn for_each(
    tree: &TxnTree,
    source: &mut impl NodeSource,
    visit: &mut dyn FnMut(Snapshot),
) -> Result<()> {
    let mut bad = None;
    tree.scan(source, &[], &mut |key, value| match parse_snapshot(key, value) {
        Ok(Some(snapshot)) => {
            visit(snapshot);
            ControlFlow::Continue(())
        }
        Ok(None) => ControlFlow::Break(()),
        Err(error) => {
            bad = Some(error);
            ControlFlow::Break(())
        }
    })?;
    bad.map_or(Ok(()), Err)
}

/// The snapshots' holdings, with a memory for frequent questions.
#[derive(Debug, Default)]
pub struct Holds {
    pub(in crate::store) holders: Arc<Holders>,
    /// Whether a file is below a snapshot's directory, by number of the snapshot and file.
    memo: HashMap<(u64, FileId), bool>,
}

impl Holds {
    /// Creates the holdings of these snapshots.
    pub fn new(holders: Arc<Holders>) -> Holds {
        Holds { holders, memo: HashMap::new() }
    }

    pub(in crate::store) fn replace(&mut self, holders: Holders) {
        // Numbers are never reused, so the memory stays valid.
        self.holders = Arc::new(holders);
    }

    /// Whether any snapshot has a reference with this birth that was given up by `freed`.
    pub fn is_held(
        &mut self,
        store: &Store,
        birth: Txg,
        freed: Txg,
        owner: Option<FileId>,
    ) -> Result<bool> {
        let holders = Arc::clone(&self.holders);
        let Some(file) = owner else { return Ok(holders.has_pool(birth, freed)) };
        if !holders.has_pool(birth, freed) {
            return Ok(false);
        }
        if holders.has_file(file, birth, freed) {
            return Ok(true);
        }
        for holder in holders.of_directories(birth, freed) {
            if self.is_below(store, holder, file)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn is_below(&mut self, store: &Store, holder: &Holder, file: FileId) -> Result<bool> {
        let key = (holder.number, file);
        if let Some(known) = self.memo.get(&key) {
            return Ok(*known);
        }
        let state = State::of_names(holder.txg, holder.names.as_deref());
        let answer = store.is_below(&state, holder.scope.file, file)?;
        if self.memo.len() >= MEMO_COUNT_MAX {
            self.memo.clear();
        }
        self.memo.insert(key, answer);
        Ok(answer)
    }
}

impl Store {
    /// Returns the holdings of a state's snapshots: loaded once per state, and passed on to the
    /// next.
    pub fn holders(&self, state: &State) -> Result<Arc<Holders>> {
        if let Some(known) = state.holders.get() {
            return Ok(Arc::clone(known));
        }
        let loaded = Holders::load(&state.trees[TreeId::Snapshots], &mut &*self)?;
        Ok(Arc::clone(state.holders.get_or_init(|| Arc::new(loaded))))
    }

    /// Sets the function that tells whether a file is in the scope of a snapshot of a directory,
    /// since the store itself knows nothing of names.
    pub(crate) fn set_scope_test(&self, test: IsBelow) {
        let _ = self.scope_test.set(test);
    }

    /// Whether a file is below a directory, according to the names in a state.
    pub(crate) fn is_below(&self, state: &State, directory: FileId, file: FileId) -> Result<bool> {
        let unset = "the scopes of snapshots cannot be checked without names";
        let test = self.scope_test.get().ok_or_else(|| Error::Invalid(unset.into()))?;
        test(self, state, directory, file)
    }
}

impl Txn {
    /// Loads the holdings of the base state's snapshots.
    pub(in crate::store) fn load_holders(&mut self) -> Result<()> {
        let store = Arc::clone(&self.core.store);
        self.core.holds = Holds::new(store.holders(&self.core.base)?);
        Ok(())
    }

    /// Whether a snapshot holds a reference that is being given up.
    pub(crate) fn is_held(&mut self, birth: Txg, owner: Owner) -> Result<bool> {
        let core = &mut self.core;
        if birth > core.holds.holders.newest() {
            return Ok(false);
        }
        let owner = match owner {
            Owner::Nobody => return Ok(false),
            Owner::Pool => None,
            Owner::File(file) => Some(file),
        };
        core.holds.is_held(&core.store, birth, core.txg, owner)
    }

    /// Records a reference that only snapshots have from here on.
    pub(in crate::store) fn bury(&mut self, run: Run, birth: Txg, owner: Owner) -> Result<()> {
        let owner = match owner {
            Owner::File(file) => Some(file),
            Owner::Pool | Owner::Nobody => None,
        };
        self.core.incompat |= FEATURE_SNAPSHOTS;
        let dead = Dead { freed: self.txg(), run, birth, owner, count: 1 };
        let key = dead.key();
        let Some(old) = self.insert(TreeId::Dead, &key, &dead.value())? else { return Ok(()) };
        let old = parse_dead(&key, &old)?;
        let count = old.count.checked_add(1).filter(|_| old.run == run).ok_or_else(|| {
            let at = run.start.0 << self.core.ashift();
            let what = format!(
                "expected {} sectors to be given up there at most {} times, found {} sectors given \
                 up {} times already",
                run.sectors,
                u32::MAX,
                old.run.sectors,
                old.count
            );
            Error::corrupt("extent", Location::Byte(at), what)
        })?;
        self.insert(TreeId::Dead, &key, &Dead { count, ..dead }.value()).map(drop)
    }

    /// Records the tree nodes that died.
    pub(in crate::store) fn bury_nodes(&mut self) -> Result<()> {
        for (run, birth) in std::mem::take(&mut self.core.dead_nodes) {
            self.bury(run, birth, Owner::Pool)?;
        }
        Ok(())
    }
}
