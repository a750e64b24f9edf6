//! The tree of the dead: what the pool itself no longer reaches, and a snapshot still does.
//!
//! ```text
//! txg that gave it up u64 BE, sector u64 BE, birth u64 BE, owner u64 BE   -> sectors u64, count u32
//! ```
//!
//! The owner is the file that the reference was part of; 0 for what is the pool's: tree nodes and
//! dictionaries. `count` references with the same key were given up. A snapshot has them if and only
//! if it is not older than their birth, is older than the txg that gave them up, and the owner is within its scope. So
//! entries never move from one snapshot to another, and to destroy a snapshot means to look at what was given up
//! since, and to let go of what no other one has. What is here stays counted as a reference (see
//! [`crate::store::sharing::refs`]).
//!
//! Where there are no snapshots all of this comes down to one comparison.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::store::format::superblock::FEATURE_SNAPSHOTS;
use crate::store::format::trees::{DEAD, REFS, SNAPSHOTS};
use crate::store::sharing::refs::Refs;
use crate::store::snapshots::{Holder, Holders, Snapshot};
use crate::store::space::space_key;
use crate::store::txn::{Owner, Txn};
use crate::store::{State, Store};
use crate::units::{FileId, Run, Sector, Txg};

/// Tree nodes that died and are not recorded yet, at the most.
pub(in crate::store) const DEAD_NODES_MAX: usize = 8192;
/// Answers to "is this file below that directory" that a transaction remembers.
const MEMO_COUNT_MAX: usize = 8192;
/// How many entries one transaction looks at when a snapshot is destroyed.
pub const RELEASE_COUNT_MAX: usize = 8192;
/// The length of a key.
pub const DEAD_KEY_LEN: usize = 32;
/// Owner of what belongs to no file.
const OF_POOL: u64 = 0;

/// Says whether a file is below a directory, or is it, by the names of this state.
pub type IsBelow = fn(&Store, &State, FileId, FileId) -> Result<bool>;

/// References that only snapshots have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dead {
    /// The txg that gave them up.
    pub freed: Txg,
    /// What they refer to.
    pub run: Run,
    /// The birth of the pointers.
    pub birth: Txg,
    /// Whose they were; `None` for the pool's.
    pub owner: Option<FileId>,
    /// How many there are.
    pub count: u32,
}

impl Dead {
    pub(crate) fn key(&self) -> [u8; DEAD_KEY_LEN] {
        let mut key = [0; DEAD_KEY_LEN];
        let owner = self.owner.map_or(OF_POOL, |file| file.0);
        let fields = [self.freed.0, self.run.start.0, self.birth.0, owner];
        for (part, field) in key.chunks_exact_mut(8).zip(fields) {
            part.copy_from_slice(&field.to_be_bytes());
        }
        key
    }

    pub(crate) fn value(&self) -> [u8; 12] {
        let mut value = [0; 12];
        value[..8].copy_from_slice(&self.run.sectors.to_le_bytes());
        value[8..].copy_from_slice(&self.count.to_le_bytes());
        value
    }
}

/// Reads an entry of the tree.
pub fn parse_dead(key: &[u8], value: &[u8]) -> Result<Dead> {
    let field = |index: usize| {
        let part = key.get(index * 8..index * 8 + 8)?;
        part.try_into().ok().map(u64::from_be_bytes)
    };
    let parsed = (|| {
        let (sectors, count) = value.split_first_chunk::<8>()?;
        let sectors = u64::from_le_bytes(*sectors);
        let count = count.try_into().ok().map(u32::from_le_bytes).filter(|count| *count > 0)?;
        let run = Run { start: Sector(field(1)?), sectors };
        let owner = Some(field(3)?).filter(|owner| *owner != OF_POOL).map(FileId);
        let (freed, birth) = (Txg(field(0)?), Txg(field(2)?));
        let is_inside = run.start.0.checked_add(sectors).is_some_and(|end| end < 1 << 51);
        let sound = key.len() == DEAD_KEY_LEN && sectors > 0 && birth < freed && is_inside;
        sound.then_some(Dead { freed, run, birth, owner, count })
    })();
    parsed.ok_or_else(|| Error::corrupt("dead tree", 0, "an entry is malformed"))
}

/// What snapshots hold and the pool itself does not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Held {
    /// What extents and nodes take that only snapshots have, in bytes.
    pub only: u64,
    /// What the counters of a pool count as shared, in bytes, only because snapshots have it as well.
    pub shared: u64,
}

/// The sum of what was given up.
#[derive(Default)]
struct Tally {
    /// What is not shared, in bytes.
    unshared: u64,
    /// Of what is: how often it was given up, and its sectors.
    shared: HashMap<Sector, (u32, u64)>,
}

/// What snapshots hold, for whoever asks often.
#[derive(Debug, Default)]
pub struct Holds {
    pub(in crate::store) holders: Arc<Holders>,
    /// By number of the snapshot, and file.
    memo: HashMap<(u64, FileId), bool>,
}

impl Holds {
    /// For these snapshots.
    pub fn new(holders: Arc<Holders>) -> Holds {
        Holds { holders, memo: HashMap::new() }
    }

    pub(in crate::store) fn replace(&mut self, holders: Holders) {
        // Numbers are never given again, so what is remembered stays right.
        self.holders = Arc::new(holders);
    }

    /// Whether any snapshot has what was born then and was given up by `freed`.
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
    /// Has the store ask this whether a file is in the scope of a snapshot of a directory: it knows nothing of
    /// names itself.
    pub(crate) fn set_scope_test(&self, test: IsBelow) {
        let _ = self.scope_test.set(test);
    }

    /// Whether a file is below a directory, by the names of a state.
    pub(crate) fn is_below(&self, state: &State, directory: FileId, file: FileId) -> Result<bool> {
        let unset = "the scopes of snapshots need names, and nobody reads them";
        let test = self.scope_test.get().ok_or_else(|| Error::Invalid(unset.into()))?;
        test(self, state, directory, file)
    }
}

impl Txn {
    /// Takes over what the snapshots of the state below hold.
    pub(in crate::store) fn load_holders(&mut self) -> Result<()> {
        let store = Arc::clone(&self.core.store);
        self.core.holds = Holds::new(store.holders(&self.core.base)?);
        Ok(())
    }

    /// Whether a snapshot holds a reference that is given up now.
    pub(in crate::store) fn is_held(&mut self, birth: Txg, owner: Owner) -> Result<bool> {
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
        let Some(old) = self.insert(DEAD, &key, &dead.value())? else { return Ok(()) };
        let old = parse_dead(&key, &old)?;
        let count = old.count.checked_add(1).filter(|_| old.run == run).ok_or_else(|| {
            let at = run.start.0 << self.core.ashift();
            Error::corrupt("dead tree", at, "what is given up is given up already")
        })?;
        self.insert(DEAD, &key, &Dead { count, ..dead }.value()).map(drop)
    }

    /// Records the tree nodes that died.
    pub(in crate::store) fn bury_nodes(&mut self) -> Result<()> {
        for (run, birth) in std::mem::take(&mut self.core.dead_nodes) {
            self.bury(run, birth, Owner::Pool)?;
        }
        Ok(())
    }

    /// Takes a step of destroying a condemned snapshot: looks at so many entries and releases what only it
    /// had. Whether they were the last, and it is gone.
    pub fn release_some(&mut self, number: u64, count_max: usize) -> Result<bool> {
        let Some(snapshot) = self.snapshot(number)?.filter(|found| found.is_condemned) else {
            return Ok(true);
        };
        let (from, to) = range_of(&self.core.holds.holders, &snapshot);
        let entries = self.range(DEAD, &from, &to, count_max)?;
        for (key, value) in &entries {
            let dead = parse_dead(key, value)?;
            if self.is_only_in(&snapshot, &dead)? {
                self.remove(DEAD, key)?;
                self.drop_references(&dead)?;
            }
        }
        let Some((last, _)) = entries.last().filter(|_| entries.len() == count_max) else {
            self.forget_snapshot(number)?;
            return Ok(true);
        };
        let mut release_from = snapshot.release_from;
        release_from.copy_from_slice(last);
        self.put_snapshot(&Snapshot { release_from: key_behind(release_from), ..snapshot })?;
        Ok(false)
    }

    /// Whether a condemned snapshot has a reference that no other one has.
    fn is_only_in(&mut self, snapshot: &Snapshot, dead: &Dead) -> Result<bool> {
        let core = &mut self.core;
        Ok(dead.birth <= snapshot.txg
            && snapshot.txg < dead.freed
            && !core.holds.is_held(&core.store, dead.birth, dead.freed, dead.owner)?)
    }

    fn drop_references(&mut self, dead: &Dead) -> Result<()> {
        if dead.count == 1 {
            return self.drop_reference(dead.run, dead.birth);
        }
        let missing = |sector: Sector, ashift: u8| {
            let what = "fewer references are counted than snapshots have";
            Error::corrupt("refs tree", sector.0 << ashift, what)
        };
        let ashift = self.core.ashift();
        let start = dead.run.start;
        let refs = self.refs(start)?.filter(|refs| refs.count >= dead.count);
        let refs = refs.ok_or_else(|| missing(start, ashift))?;
        if refs.count > dead.count {
            return self.set_refs(start, &Refs { count: refs.count - dead.count, ..refs });
        }
        self.set_refs(start, &Refs { count: 1, ..refs })?;
        self.drop_reference(dead.run, dead.birth)
    }
}

/// The key that follows one.
fn key_behind(key: [u8; DEAD_KEY_LEN]) -> [u8; DEAD_KEY_LEN] {
    let mut next = key;
    for byte in next.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            break;
        }
    }
    next
}

/// The keys of what a snapshot may be the only one to have.
fn range_of(holders: &Holders, snapshot: &Snapshot) -> (Vec<u8>, Vec<u8>) {
    let from = snapshot.txg.next().0.to_be_bytes().to_vec().max(snapshot.release_from.to_vec());
    // What was given up behind one that has it all as well.
    let to = holders.covered_from(snapshot).map_or(u64::MAX, |txg| txg.next().0);
    (from, to.to_be_bytes().to_vec())
}

impl Store {
    /// How many bytes destroying a snapshot would give back, the others left as they are. Looks at all that was given
    /// up since; takes memory for what is shared of it.
    pub fn releasable(&self, state: &State, snapshot: &Snapshot) -> Result<u64> {
        let holders = self.holders(state)?;
        let (from, to) = range_of(&holders, snapshot);
        let mut holds = Holds::new(Arc::new(holders.without(snapshot.number)));
        let tally = self.tally(state, from, &to, &mut |dead| {
            let is_later = dead.birth > snapshot.txg;
            Ok(!is_later && !holds.is_held(self, dead.birth, dead.freed, dead.owner)?)
        })?;
        let mut bytes = tally.unshared;
        for (sector, (count, sectors)) in tally.shared {
            if self.reference_count(state, sector)? == Some(count) {
                bytes = u64::saturating_add(bytes, sectors << self.ashift());
            }
        }
        Ok(bytes)
    }

    /// What only the snapshots of a state hold, those that are being destroyed included. Looks at all that was
    /// given up while there were snapshots.
    pub fn held_by_snapshots(&self, state: &State) -> Result<Held> {
        let tally = self.tally(state, Vec::new(), &[0xff], &mut |_| Ok(true))?;
        let mut held = Held { only: tally.unshared, ..Held::default() };
        for (sector, (count, sectors)) in tally.shared {
            let (bytes, mut beyond) = (sectors << self.ashift(), u64::from(count));
            if self.reference_count(state, sector)? == Some(count) {
                held.only = held.only.saturating_add(bytes);
                beyond -= 1;
            }
            held.shared = held.shared.saturating_add(bytes.saturating_mul(beyond));
        }
        Ok(held)
    }

    /// Adds up what was given up between two keys of the tree of the dead, as far as it is wanted.
    fn tally(
        &self,
        state: &State,
        mut from: Vec<u8>,
        to: &[u8],
        is_wanted: &mut dyn FnMut(&Dead) -> Result<bool>,
    ) -> Result<Tally> {
        let (dead_tree, refs_tree) =
            (&state.trees[usize::from(DEAD)], &state.trees[usize::from(REFS)]);
        let mut tally = Tally::default();
        loop {
            let entries = dead_tree.range(&mut &*self, &from, to, RELEASE_COUNT_MAX)?;
            for (key, value) in &entries {
                let dead = parse_dead(key, value)?;
                if !is_wanted(&dead)? {
                    continue;
                }
                let Run { start, sectors } = dead.run;
                let is_counted = !refs_tree.is_empty()
                    && refs_tree.get(&mut &*self, &space_key(start))?.is_some();
                if is_counted {
                    let (count, _) = tally.shared.entry(start).or_insert((0, sectors));
                    *count = count.saturating_add(dead.count);
                } else {
                    tally.unshared = tally.unshared.saturating_add(sectors << self.ashift());
                }
            }
            let Some((last, _)) = entries.last().filter(|_| entries.len() == RELEASE_COUNT_MAX)
            else {
                return Ok(tally);
            };
            from.clone_from(last);
            from.push(0);
        }
    }

    /// How many references there are to the shared extent at a sector, as far as that can be read.
    fn reference_count(&self, state: &State, sector: Sector) -> Result<Option<u32>> {
        let value = state.trees[usize::from(REFS)].get(&mut &*self, &space_key(sector))?;
        Ok(value.and_then(|value| Refs::decode(&value)).map(|refs| refs.count))
    }

    /// Whether a snapshot of a state is there, and not being destroyed.
    pub fn has_snapshot(&self, state: &State, number: u64) -> Result<bool> {
        let tree = &state.trees[usize::from(SNAPSHOTS)];
        let key = number.to_be_bytes();
        let Some(value) = tree.get(&mut &*self, &key)? else { return Ok(false) };
        let snapshot = crate::store::snapshots::parse_snapshot(&key, &value)?;
        Ok(snapshot.is_some_and(|snapshot| !snapshot.is_condemned))
    }
}
