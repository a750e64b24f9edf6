//! Snapshots: states of names, records, patches and dictionaries that do not change.
//!
//! A snapshot is four roots and a txg, taken from the base state of the transaction that makes it,
//! so it costs the same whatever it holds. From then on nothing that it reaches is freed: whatever
//! the pool itself no longer reaches goes to the dead tree (see [`super::snapshots::dead`]).
//!
//! The scope of a snapshot tells which files' bytes it keeps: one file's, those of the files below
//! a directory, or all. The nodes of the whole trees are kept in any case.
//!
//! **A snapshot is identified by what it keeps** ([`StateId`](super::format::snapshot::StateId)),
//! not by its txg: two copies of a pool file that diverged have the same guid and the same txgs.
//! Nothing that a snapshot has is ever moved or rewritten, so its roots never change; whoever
//! changes that must store the identity first.
//!
//! Destroying a snapshot takes as many transactions as there is to release. The first one condemns
//! it: from then on it has no name and holds nothing that is given up later. Any later process,
//! even after a crash, continues where the snapshot's entry says.

pub mod dead;
pub mod differ;

use super::Store;
use super::format::dead::DEAD_KEY_LEN;
use super::format::pointer::Pointer;
use super::format::snapshot::{Scope, Snapshot, check_snapshot_name, name_key, parse_snapshot};
use super::format::stats::PoolStats;
use super::format::superblock::{FEATURE_SNAPSHOTS, Superblock};
use super::format::trees::TreeId;
use super::state::{Slots, State};
use super::txn::Txn;
use super::txn::holds::for_each;
use crate::error::{Error, Result};
use crate::units::{FileId, Txg};

/// The maximum number of snapshots of a pool: a summary of each is in memory while the pool is
/// written to.
pub const SNAPSHOT_COUNT_MAX: usize = 65_536;

impl Snapshot {
    /// Returns the kept state, for reading.
    pub fn state(&self) -> State {
        State::new(self.superblock(), 0, Slots::default(), Txg(0), Txg(0))
    }
}

impl Store {
    /// Returns the snapshots of a state, oldest first, including those being destroyed.
    pub fn snapshots(&self, state: &State) -> Result<Vec<Snapshot>> {
        let mut found = Vec::new();
        let tree = &state.trees[TreeId::Snapshots];
        for_each(tree, &mut &*self, &mut |snapshot| found.push(snapshot))?;
        found.sort_by_key(|snapshot| (snapshot.txg, snapshot.number));
        Ok(found)
    }

    /// Finds a snapshot of a state by name.
    pub fn find_snapshot(
        &self,
        state: &State,
        scope: FileId,
        name: &[u8],
    ) -> Result<Option<Snapshot>> {
        let tree = &state.trees[TreeId::Snapshots];
        find_in(&mut |key| tree.get(&mut &*self, key), scope, name)
    }
}

type Get<'a> = dyn FnMut(&[u8]) -> Result<Option<Vec<u8>>> + 'a;

fn find_in(get: &mut Get<'_>, scope: FileId, name: &[u8]) -> Result<Option<Snapshot>> {
    let Some(number) = get(&name_key(scope, name))? else { return Ok(None) };
    let malformed = || {
        let place = TreeId::Snapshots.location_of(&name_key(scope, name));
        Error::corrupt("snapshot", place, "expected the number of a snapshot, found none of one")
    };
    let number = number.try_into().map(u64::from_le_bytes).map_err(|_| malformed())?;
    by_number(get, number)?.map(Some).ok_or_else(malformed)
}

fn by_number(get: &mut Get<'_>, number: u64) -> Result<Option<Snapshot>> {
    let key = number.to_be_bytes();
    let Some(value) = get(&key)? else { return Ok(None) };
    parse_snapshot(&key, &value)
}

impl Txn {
    /// Finds a snapshot by number.
    pub fn snapshot(&mut self, number: u64) -> Result<Option<Snapshot>> {
        by_number(&mut |key| self.get(TreeId::Snapshots, key), number)
    }

    /// Finds a snapshot by name.
    pub fn find_snapshot(&mut self, scope: FileId, name: &[u8]) -> Result<Option<Snapshot>> {
        find_in(&mut |key| self.get(TreeId::Snapshots, key), scope, name)
    }

    /// Makes a snapshot of the base state of this transaction, which may have changed nothing but
    /// other snapshots so far. Returns its number.
    pub fn create_snapshot(&mut self, scope: Scope, name: &[u8], created_ns: i64) -> Result<u64> {
        check_snapshot_name(name)?;
        let roots = &self.core.base.superblock.roots;
        let is_clean = |tree: &TreeId| self.trees[*tree].is_at(&roots[*tree]);
        if !TreeId::OF_SNAPSHOTS.iter().all(is_clean) {
            return Err(Error::Invalid("a snapshot must come before any change".into()));
        }
        let Superblock { txg, roots, stats, .. } = Superblock::clone(&self.core.base.superblock);
        let roots = TreeId::OF_SNAPSHOTS.map(|tree| roots[tree].clone());
        self.add_snapshot(scope, name, created_ns, (txg, roots, stats))
    }

    /// Makes a snapshot that includes the changes of this transaction so far. After this the
    /// transaction may no longer change anything that snapshots keep. Returns the snapshot's
    /// number.
    pub fn create_snapshot_after(
        &mut self,
        scope: Scope,
        name: &[u8],
        created_ns: i64,
    ) -> Result<u64> {
        check_snapshot_name(name)?;
        let mut roots = [const { None }; TreeId::OF_SNAPSHOTS.len()];
        for (root, tree) in roots.iter_mut().zip(TreeId::OF_SNAPSHOTS) {
            *root = self.flush_tree(tree)?;
        }
        self.core.is_frozen = true;
        let (txg, stats) = (self.txg(), self.core.stats);
        self.add_snapshot(scope, name, created_ns, (txg, roots, stats))
    }

    fn add_snapshot(
        &mut self,
        scope: Scope,
        name: &[u8],
        created_ns: i64,
        (txg, roots, stats): (Txg, [Option<Pointer>; TreeId::OF_SNAPSHOTS.len()], PoolStats),
    ) -> Result<u64> {
        if self.find_snapshot(scope.file, name)?.is_some() {
            return Err(Error::Exists { name: String::from_utf8_lossy(name).into_owned() });
        }
        if self.core.holds.holders.count() >= SNAPSHOT_COUNT_MAX {
            let what = format!("a pool has at most {SNAPSHOT_COUNT_MAX} snapshots");
            return Err(Error::Invalid(what));
        }
        let number = self.new_file_id().0;
        let snapshot = Snapshot {
            number,
            scope,
            txg,
            created_ns,
            is_condemned: false,
            release_from: [0; DEAD_KEY_LEN],
            file_bytes: stats.file_bytes,
            data: stats.data(),
            name: name.to_vec(),
            roots,
        };
        self.core.incompat |= FEATURE_SNAPSHOTS;
        self.put_snapshot(&snapshot)?;
        self.insert(TreeId::Snapshots, &name_key(scope.file, name), &number.to_le_bytes())?;
        let holders = self.core.holds.holders.with(&snapshot);
        self.core.holds.replace(holders);
        Ok(number)
    }

    pub(super) fn put_snapshot(&mut self, snapshot: &Snapshot) -> Result<()> {
        self.insert(TreeId::Snapshots, &snapshot.number.to_be_bytes(), &snapshot.encode()).map(drop)
    }

    /// Renames a snapshot.
    pub fn rename_snapshot(&mut self, snapshot: &Snapshot, name: &[u8]) -> Result<()> {
        check_snapshot_name(name)?;
        let scope = snapshot.scope.file;
        if self.find_snapshot(scope, name)?.is_some() {
            return Err(Error::Exists { name: String::from_utf8_lossy(name).into_owned() });
        }
        self.remove(TreeId::Snapshots, &name_key(scope, &snapshot.name))?;
        self.insert(TreeId::Snapshots, &name_key(scope, name), &snapshot.number.to_le_bytes())?;
        self.put_snapshot(&Snapshot { name: name.to_vec(), ..snapshot.clone() })
    }

    /// Starts destroying a snapshot: from here on it has no name and holds nothing. What only it
    /// kept remains to be released (see [`Txn::release_some`]).
    pub fn condemn_snapshot(&mut self, snapshot: &Snapshot) -> Result<()> {
        self.remove(TreeId::Snapshots, &name_key(snapshot.scope.file, &snapshot.name))?;
        self.put_snapshot(&Snapshot { is_condemned: true, ..snapshot.clone() })?;
        let holders = self.core.holds.holders.condemning(snapshot.number);
        self.core.holds.replace(holders);
        Ok(())
    }

    /// Removes a snapshot that has nothing left to release.
    pub(super) fn forget_snapshot(&mut self, number: u64) -> Result<()> {
        self.remove(TreeId::Snapshots, &number.to_be_bytes())?;
        let holders = self.core.holds.holders.forgetting(number);
        self.core.holds.replace(holders);
        Ok(())
    }
}
