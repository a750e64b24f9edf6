//! Moves extents that several pointers share.
//!
//! There is no map from places to pointers, so a walk over all records, patches and dictionaries
//! collects those that lead to shared extents in the way. An extent is moved only if the walk has
//! met all of its pointers and none has changed since: otherwise it stays where it is. Pointers
//! that snapshots hold cannot change, so their extents stay as well.

use std::collections::BTreeMap;

use super::compact::{Cursor, LONG_EXTENT_LEN, Moved, held_in, movable};
use super::{Owner, State, Store, Txn};
use crate::error::Result;
use crate::store::format::pointer::{Place, Pointer, pointer_in};
use crate::store::format::refs::Refs;
use crate::store::format::trees::TreeId;
use crate::store::space::aim::Aim;
use crate::units::{Run, Sector, Txg};

/// How many pointers are remembered, at most, each in about a hundred bytes.
const POINTER_COUNT_MAX: usize = 1 << 20;
/// One step moves about this many bytes, or a single longer extent.
const STEP_LEN_MAX: u64 = 8 << 20;
/// One step changes about this many pointers, or those of a single extent.
const STEP_POINTERS_MAX: usize = 4096;

/// The entry of a pointer.
type Entry = (TreeId, Vec<u8>);

/// Extents with several pointers that are in the way, and their pointers.
#[derive(Clone, Debug, Default)]
pub struct SharedExtents {
    /// In the order in which they are moved, the first ones last: long ones by their lengths, since
    /// these find room only before others have taken it, and the rest by their places.
    extents: BTreeMap<(u64, Sector), (Run, Vec<Entry>)>,
    pointer_count: usize,
}

impl SharedExtents {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Adds what another part of the walk has found.
    pub fn append(&mut self, found: SharedExtents) {
        for (order, (run, entries)) in found.extents {
            entries.into_iter().for_each(|entry| self.add(order, run, entry));
        }
    }

    fn add(&mut self, order: (u64, Sector), run: Run, entry: Entry) {
        let is_full = self.pointer_count >= POINTER_COUNT_MAX;
        if is_full && !self.extents.contains_key(&order) {
            return;
        }
        self.pointer_count += 1;
        self.extents.entry(order).or_insert((run, Vec::new())).1.push(entry);
    }
}

impl Store {
    /// Collects shared extents in the way from up to `leaf_count` leaves. Returns where the walk
    /// continues.
    pub fn find_shared(
        &self,
        state: &State,
        aim: &Aim,
        cursor: &Cursor,
        leaf_count: usize,
        found: &mut SharedExtents,
    ) -> Result<Option<Cursor>> {
        let newest = self.holders(state)?.newest();
        if state.trees[TreeId::Refs].is_empty() {
            return Ok(None);
        }
        let mut at = cursor.clone();
        for _ in 0..leaf_count {
            let Some(tree) = at.tree() else { return Ok(None) };
            if !matches!(tree, TreeId::Map | TreeId::Patches | TreeId::Dictionaries) {
                at = at.behind(None);
                continue;
            }
            let path = state.trees[tree].path_to(&mut &*self, at.key())?;
            if let Some(path) = &path {
                let held = held_in(tree, newest);
                for one in movable(aim, tree, path, at.key(), held, self.ashift(), &mut 0)? {
                    if self.is_shared(state, one.run.start)? {
                        let is_long = one.run.sectors << self.ashift() > LONG_EXTENT_LEN;
                        let rank = if is_long { one.run.sectors } else { 0 };
                        found.add((rank, one.run.start), one.run, (tree, one.key));
                    }
                }
            }
            at = at.behind(path.as_ref());
        }
        Ok(at.tree().map(|_| at))
    }
}

impl Txn {
    /// Moves some of the extents, the longest and the last ones first, and takes them out of the
    /// list.
    pub fn relocate_shared(&mut self, shared: &mut SharedExtents) -> Result<Moved> {
        let ashift = self.store().ashift();
        let mut moved = Moved::default();
        let (mut looked_at, mut pointers) = (0, 0);
        while looked_at << ashift < STEP_LEN_MAX
            && pointers < STEP_POINTERS_MAX
            && let Some((_, (run, entries))) = shared.extents.pop_last()
        {
            looked_at += run.sectors;
            pointers += entries.len();
            self.move_shared(run, &entries, &mut moved)?;
        }
        Ok(moved)
    }

    fn move_shared(&mut self, run: Run, entries: &[Entry], moved: &mut Moved) -> Result<()> {
        let Some(refs) = self.refs(run.start)? else { return Ok(()) };
        if refs.count as usize != entries.len() {
            return Ok(());
        }
        let newest = self.core.holds.holders.newest();
        let mut pointers = Vec::with_capacity(entries.len());
        for (tree, key) in entries {
            let Some(value) = self.get(*tree, key)? else { return Ok(()) };
            let pointer = pointer_in(*tree, key, &value)?;
            if pointer.run(self.core.ashift()) != Some(run) || pointer.birth <= newest {
                return Ok(());
            }
            pointers.push(pointer);
        }
        let Some(first) = pointers.first() else { return Ok(()) };
        let stored = match self.read_stored(first) {
            Err(error) if error.is_corruption() => {
                moved.damaged_end = moved.damaged_end.max(run.end());
                return Ok(());
            }
            read => read?,
        };
        self.provision_runs(run.sectors, run.sectors)?;
        let sector = match self.core.space.take_from_window(run.sectors) {
            Some(sector) => sector,
            None if self.core.space.aim.is_some_and(|aim| aim.append) => {
                self.core.space.allocate(run.sectors)
            }
            None => {
                moved.shortest_stuck = run.sectors.min(moved.shortest_stuck);
                return Ok(());
            }
        };
        let ashift = self.core.ashift();
        self.core.changed = true;
        self.core.out.push(sector.0 << ashift, &stored, (run.sectors << ashift) as usize);
        if self.core.out.is_full() {
            let store = std::sync::Arc::clone(self.store());
            self.core.out.flush(&store)?;
        }
        for ((tree, key), old) in entries.iter().zip(&pointers) {
            self.insert(*tree, key, &moved_to(old, sector, self.txg()).to_bytes())?;
        }
        self.move_refs(&refs, run.start, &moved_to(first, sector, self.txg()))?;
        for old in &pointers {
            self.free(old, Owner::Nobody)?;
        }
        moved.sectors += run.sectors;
        Ok(())
    }

    /// Makes the entry of the refs tree for the new place, to which `pointer` leads.
    fn move_refs(&mut self, refs: &Refs, from: Sector, pointer: &Pointer) -> Result<()> {
        let Place::Extent { sector: to, .. } = pointer.place else { return Ok(()) };
        let birth = self.txg();
        let content = refs.content.as_ref();
        let content = content.map(|(hash, pointer)| (*hash, moved_to(pointer, to, birth)));
        self.forget_content(from)?;
        let moved = Refs { birth, content: content.clone(), whole: None, ..refs.clone() };
        self.set_refs(to, &moved)?;
        match content {
            Some((hash, _)) => self.index_insert(hash.prefix(), to),
            None => self.copy_part_contents(from, pointer),
        }
    }
}

fn moved_to(pointer: &Pointer, to: Sector, txg: Txg) -> Pointer {
    let mut pointer = Pointer { birth: txg, ..pointer.clone() };
    if let Place::Extent { sector, .. } = &mut pointer.place {
        *sector = to;
    }
    pointer
}
