//! The dead tree: references that the pool itself has given up but a snapshot still has.
//!
//! A snapshot has them if and
//! only if it is not older than their birth, it is older than the txg that gave them up, and the
//! owner is within its scope. So entries never move from one snapshot to another. Destroying a
//! snapshot only means going over what was given up since it was made, and releasing what no other
//! snapshot has. References here remain counted (see [`crate::store::sharing::refs`]).
//!
//! The entries are described in [`crate::store::format::dead`], what a snapshot holds in
//! [`crate::store::txn::holds`].

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::{Error, Location, Result};
use crate::store::format::dead::{DEAD_KEY_LEN, Dead, parse_dead};
use crate::store::format::refs::Refs;
use crate::store::format::snapshot::{Snapshot, parse_snapshot};
use crate::store::format::space::space_key;
use crate::store::format::trees::TreeId;
use crate::store::txn::Txn;
use crate::store::txn::holds::{Holders, Holds};
use crate::store::{State, Store};
use crate::units::{Run, Sector};

/// The maximum number of entries that one transaction examines when it destroys a snapshot.
pub const RELEASE_COUNT_MAX: usize = 8192;

/// The space that snapshots hold and the pool itself does not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Held {
    /// The space of extents and nodes that only snapshots have, in bytes.
    pub only: u64,
    /// The bytes that a pool's counters count as shared only because snapshots have them too.
    pub shared: u64,
}

/// The sum of given-up references.
#[derive(Default)]
struct Tally {
    /// The bytes of unshared extents.
    unshared: u64,
    /// For each shared extent: how often it was given up, and its sectors.
    shared: BTreeMap<Sector, (u32, u64)>,
}

impl Txn {
    /// Takes one step of destroying a condemned snapshot: examines up to `count_max` entries and
    /// releases those that only this snapshot had. Returns whether the snapshot is gone.
    pub fn release_some(&mut self, number: u64, count_max: usize) -> Result<bool> {
        let Some(snapshot) = self.snapshot(number)?.filter(|found| found.is_condemned) else {
            return Ok(true);
        };
        let (from, to) = range_of(&self.core.holds.holders, &snapshot);
        let entries = self.range(TreeId::Dead, &from, &to, count_max)?;
        for (key, value) in &entries {
            let dead = parse_dead(key, value)?;
            if self.is_only_in(&snapshot, &dead)? {
                self.remove(TreeId::Dead, key)?;
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

    /// Whether a condemned snapshot has a reference that no other snapshot has.
    fn is_only_in(&mut self, snapshot: &Snapshot, dead: &Dead) -> Result<bool> {
        let core = &mut self.core;
        Ok(dead.birth <= snapshot.txg
            && snapshot.txg < dead.freed
            && !core.holds.is_held(&core.store, dead.birth, dead.freed, dead.owner)?)
    }

    fn drop_references(&mut self, dead: &Dead) -> Result<()> {
        if dead.count == 1 {
            return self.drop_reference(dead.run, dead.birth).map(drop);
        }
        let start = dead.run.start;
        let begin = Location::Byte(start.0 << self.core.ashift());
        let Some(refs) = self.refs(start)? else {
            let what = format!("expected {} references to be counted, found none", dead.count);
            return Err(Error::corrupt("extent", begin, what));
        };
        if refs.count < dead.count {
            let what = format!(
                "expected at least {} references to be counted, found {}",
                dead.count, refs.count
            );
            return Err(Error::corrupt("extent", begin, what));
        }
        if refs.count > dead.count {
            return self.set_refs(start, &Refs { count: refs.count - dead.count, ..refs });
        }
        self.set_refs(start, &Refs { count: 1, ..refs })?;
        self.drop_reference(dead.run, dead.birth).map(drop)
    }
}

/// Returns the key that follows `key`.
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

/// Returns the range of keys that this snapshot may be the only one to have.
fn range_of(holders: &Holders, snapshot: &Snapshot) -> (Vec<u8>, Vec<u8>) {
    let from = snapshot.txg.next().0.to_be_bytes().to_vec().max(snapshot.release_from.to_vec());
    // Whatever this snapshot has of later entries, another one has too.
    let to = holders.covered_from(snapshot).map_or(u64::MAX, |txg| txg.next().0);
    (from, to.to_be_bytes().to_vec())
}

impl Store {
    /// Returns how many bytes destroying this snapshot, and no other, would release. Goes over
    /// everything given up since it was made, and takes memory for the shared part of that.
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
            if self.entry_of(state, sector)?.is_some_and(|refs| refs.count == count) {
                bytes = u64::saturating_add(bytes, sectors << self.ashift());
            }
        }
        Ok(bytes)
    }

    /// Returns the space that only the snapshots of a state hold, including those being destroyed.
    /// Goes over everything given up while there were snapshots.
    pub fn held_by_snapshots(&self, state: &State) -> Result<Held> {
        let tally = self.tally(state, Vec::new(), &[0xff], &mut |_| Ok(true))?;
        let mut held = Held { only: tally.unshared, ..Held::default() };
        for (sector, (count, sectors)) in tally.shared {
            let (bytes, mut beyond) = (sectors << self.ashift(), u64::from(count));
            let refs = self.entry_of(state, sector)?;
            if refs.as_ref().is_some_and(|refs| refs.count == count) {
                held.only = held.only.saturating_add(bytes);
                beyond -= 1;
            }
            if refs.is_some_and(|refs| refs.has_parts) {
                // Further references to a segment are not counted.
                continue;
            }
            held.shared = held.shared.saturating_add(bytes.saturating_mul(beyond));
        }
        Ok(held)
    }

    /// Adds up the wanted references between two keys of the dead tree.
    fn tally(
        &self,
        state: &State,
        mut from: Vec<u8>,
        to: &[u8],
        is_wanted: &mut dyn FnMut(&Dead) -> Result<bool>,
    ) -> Result<Tally> {
        let (dead_tree, refs_tree) = (&state.trees[TreeId::Dead], &state.trees[TreeId::Refs]);
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

    /// Returns the entry of the shared extent at a sector, if it can be read.
    fn entry_of(&self, state: &State, sector: Sector) -> Result<Option<Refs>> {
        let value = state.trees[TreeId::Refs].get(&mut &*self, &space_key(sector))?;
        Ok(value.and_then(|value| Refs::decode(&value)))
    }

    /// Whether a state has this snapshot and it is not being destroyed.
    pub fn has_snapshot(&self, state: &State, number: u64) -> Result<bool> {
        let tree = &state.trees[TreeId::Snapshots];
        let key = number.to_be_bytes();
        let Some(value) = tree.get(&mut &*self, &key)? else { return Ok(false) };
        let snapshot = parse_snapshot(&key, &value)?;
        Ok(snapshot.is_some_and(|snapshot| !snapshot.is_condemned))
    }
}
