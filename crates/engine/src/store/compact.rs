//! Moves extents from one part of the pool to another, in bounded transactions.
//!
//! An [`Aim`] says which sectors to empty and where new places may be. While it is in force a
//! transaction takes space only there, as long as there is some, and the commit makes all durably
//! freed space reusable at once.
//!
//! A moved extent keeps its stored bytes, and its pointer keeps everything but the place and the
//! birth: the bytes are verified against their unchanged checksum, and not recompressed. Tree nodes
//! in the way are rewritten, like any changed node, apart from packed ones, which are copied too.
//! Some extents stay where they are: those that a snapshot holds, or may hold; and damaged ones.
//! Those with several pointers are moved separately (see `compact_shared.rs`). The dedup entry of a
//! moved extent moves with it.
//!
//! The old place is freed as by any other change, so that readers of older states, and recovery
//! after a loss of power, find it untouched until the move is durable. If a step fails, the
//! previous state remains.

use std::collections::BTreeSet;

use crate::error::{Error, Result};
use crate::store::format::dead::parse_dead;
use crate::store::format::pointer::{Place, Pointer, pointer_in};
use crate::store::format::space::{reserved_run, space_entry, space_key};
use crate::store::format::trees::TreeId;
pub use crate::store::space::aim::Aim;
use crate::store::tree::Path;
use crate::store::txn::provision::open_window;
use crate::store::txn::{Owner, Txn};
use crate::store::{State, Store};
use crate::units::{Ashift, Run, Sector, Txg};

/// One step moves about this many bytes, or a single longer extent.
const STEP_LEN_MAX: u64 = 8 << 20;
/// One step moves at most this many extents.
const STEP_EXTENTS_MAX: usize = 1024;
/// One step rewrites at most this many leaves, with the nodes above them.
const STEP_NODES_MAX: u64 = 256;
/// One step examines at most this many leaves, since other writers wait for it.
const STEP_LEAVES_MAX: usize = 512;
/// Extents that are longer are moved in the order of their lengths.
pub(super) const LONG_EXTENT_LEN: u64 = 128 << 10;
/// A tree node rarely takes less than this.
const NODE_SECTORS_MIN: u64 = 2;

/// The position of a walk over all trees, which may change meanwhile.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cursor {
    index: usize,
    key: Vec<u8>,
}

impl Cursor {
    /// Returns the start of the trees that manage space, which every commit writes.
    pub fn of_space() -> Cursor {
        Cursor { index: usize::from(TreeId::Space.number()), key: Vec::new() }
    }

    pub(in crate::store) fn key(&self) -> &[u8] {
        &self.key
    }

    pub(in crate::store) fn tree(&self) -> Option<TreeId> {
        TreeId::ALL.get(self.index).copied()
    }

    pub(in crate::store) fn behind(self, path: Option<&Path>) -> Cursor {
        match path.and_then(|path| path.next.clone()) {
            Some(key) => Cursor { key, ..self },
            None => Cursor { index: self.index + 1, key: Vec::new() },
        }
    }
}

/// An entry whose extent is in the way.
pub(in crate::store) struct Movable {
    tree: TreeId,
    pub(in crate::store) key: Vec<u8>,
    pointer: Pointer,
    pub(in crate::store) run: Run,
}

/// The result of one step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Moved {
    /// Sectors from which records and patches were moved away.
    pub sectors: u64,
    /// Tree nodes that were rewritten.
    pub nodes: u64,
    /// The shortest extent that should have been moved but fit nowhere, in sectors; `u64::MAX` if
    /// there was none.
    pub shortest_stuck: u64,
    /// The end of the last damaged extent that should have been moved.
    pub damaged_end: Sector,
    /// The longest extent met that could be moved, in the way or not, in sectors.
    pub longest: u64,
    /// Where the walk continues; `None` after the last tree.
    pub next: Option<Cursor>,
}

impl Default for Moved {
    fn default() -> Moved {
        Moved {
            sectors: 0,
            nodes: 0,
            shortest_stuck: u64::MAX,
            damaged_end: Sector(0),
            longest: 0,
            next: None,
        }
    }
}

impl Moved {
    /// Whether there is anything to commit.
    pub fn is_change(&self) -> bool {
        self.sectors > 0 || self.nodes > 0
    }
}

/// The result of a walk without changes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// Sectors of movable extents and nodes that are in the way.
    pub sectors: u64,
    /// Extents that several pointers share. They are moved separately, if all of their pointers are
    /// found.
    pub shared: BTreeSet<Run>,
    /// The longest extent met that could be moved, in the way or not, in sectors.
    pub longest: u64,
    /// Where the walk continues, or the first leaf with something to move; `None` after the last
    /// tree.
    pub next: Option<Cursor>,
}

impl State {
    /// Sectors in use below the end of the pool, without the reserved range.
    pub fn used_sectors(&self, ashift: Ashift) -> u64 {
        let reserved = reserved_run(ashift);
        let out = if self.superblock.end >= reserved.end() { reserved.sectors } else { 0 };
        self.superblock.end.0.saturating_sub(out + (self.free_bytes(ashift) >> ashift))
    }

    /// Returns the end of a pool that holds this many sectors without a gap.
    pub fn end_for(sectors: u64, ashift: Ashift) -> Sector {
        let reserved = reserved_run(ashift);
        let out = if sectors > reserved.start.0 { reserved.sectors } else { 0 };
        Sector(sectors + out)
    }
}

impl Store {
    /// Searches up to `leaf_count` leaves of a state for what is in the way. With `only_first`,
    /// stops at the first leaf that has something.
    pub fn find_movable(
        &self,
        state: &State,
        aim: &Aim,
        cursor: &Cursor,
        leaf_count: usize,
        only_first: bool,
    ) -> Result<Found> {
        let mut found = Found::default();
        let newest = self.holders(state)?.newest();
        let mut at = cursor.clone();
        let mut above: Vec<Option<Pointer>> = Vec::new();
        for _ in 0..leaf_count {
            let Some(tree) = at.tree() else { return Ok(found) };
            let path = match state.trees[tree].path_to(&mut &*self, &at.key) {
                // The index is a hint; none of it needs to be moved.
                Err(error) if tree == TreeId::Index && error.is_corruption() => None,
                path => path?,
            };
            if let Some(path) = &path {
                let is_new = |depth: usize| path.places.get(depth) != above.get(depth);
                let held = held_in(tree, newest);
                let nodes = in_the_way(aim, path, held, self.ashift());
                let nodes = nodes.filter(|(depth, _)| is_new(*depth));
                found.sectors += nodes.map(|(_, run)| run.sectors).sum::<u64>();
                let longest = &mut found.longest;
                for one in movable(aim, tree, path, &at.key, held, self.ashift(), longest)? {
                    match self.is_shared(state, one.run.start)? {
                        true => drop(found.shared.insert(one.run)),
                        false => found.sectors += one.run.sectors,
                    }
                }
                if only_first && found.sectors > 0 {
                    break;
                }
                above.clone_from(&path.places);
            }
            at = at.behind(path.as_ref());
        }
        found.next = at.tree().map(|_| at);
        Ok(found)
    }

    pub(in crate::store) fn is_shared(&self, state: &State, sector: Sector) -> Result<bool> {
        Ok(self.refs_in(state, sector)?.is_some_and(|refs| refs.count > 1))
    }

    /// Counts the free sectors of a state in a range.
    pub fn free_between(&self, state: &State, from: Sector, to: Sector) -> Result<u64> {
        let within =
            |run: Run| run.end().min(to).0.saturating_sub(run.start.max(from).0).min(run.sectors);
        let mut free: u64 = state.superblock.windows.iter().map(|run| within(*run)).sum();
        let tree = &state.trees[TreeId::Space];
        let first = tree.floor(&mut &*self, &space_key(from))?;
        let first = first.map_or(space_key(from).to_vec(), |entry| entry.key().to_vec());
        let mut bad = None;
        tree.scan(&mut &*self, &first, &mut |key, value| {
            match space_entry(key, value) {
                Ok(run) if run.start < to => {
                    free += within(run);
                    return std::ops::ControlFlow::Continue(());
                }
                Ok(_) => {}
                Err(error) => bad = Some(error),
            }
            std::ops::ControlFlow::Break(())
        })?;
        bad.map_or(Ok(free), Err)
    }
}

/// Returns the newest birth that snapshots may hold in a tree; `newest` is the newest snapshot's
/// txg.
pub(in crate::store) fn held_in(tree: TreeId, newest: Txg) -> Txg {
    if TreeId::OF_SNAPSHOTS.contains(&tree) { newest } else { Txg(0) }
}

/// Returns the nodes of a path that are in the way and that no snapshot holds, with their depth.
fn in_the_way<'p>(
    aim: &'p Aim,
    path: &'p Path,
    held: Txg,
    ashift: Ashift,
) -> impl DoubleEndedIterator<Item = (usize, Run)> + 'p {
    let places = path.places.iter().map(move |place| place.as_ref().filter(|p| p.birth > held));
    let runs = places.map(move |place| place.and_then(|p| p.run(ashift)));
    runs.enumerate()
        .filter_map(|(depth, run)| run.map(|run| (depth, run)))
        .filter(|(_, run)| aim.touches(*run))
}

/// Returns the entries of a leaf, starting at `from`, whose extents are in the way and that no
/// snapshot holds. `longest` becomes the length of the longest extent that no snapshot holds,
/// unless it is longer already.
pub(in crate::store) fn movable(
    aim: &Aim,
    tree: TreeId,
    path: &Path,
    from: &[u8],
    held: Txg,
    ashift: Ashift,
    longest: &mut u64,
) -> Result<Vec<Movable>> {
    let mut found = Vec::new();
    if !TreeId::OF_POINTERS.contains(&tree) {
        return Ok(found);
    }
    let leaf = &path.leaf;
    for index in leaf.search(from).unwrap_or_else(|index| index)..leaf.len() {
        let pointer = pointer_in(tree, leaf.key(index), leaf.value(index))?;
        let Some(run) = pointer.run(ashift).filter(|_| pointer.birth > held) else { continue };
        *longest = run.sectors.max(*longest);
        if aim.touches(run) {
            found.push(Movable { tree, key: leaf.key(index).to_vec(), pointer, run });
        }
    }
    Ok(found)
}

/// Returns the runs of a path's nodes and its leaf's extents that snapshots hold or may hold.
pub(in crate::store) fn held_by_snapshots(
    tree: TreeId,
    path: &Path,
    from: &[u8],
    held: Txg,
    ashift: Ashift,
) -> Result<Vec<Run>> {
    let places = path.places.iter().flatten().filter(|place| place.birth <= held);
    let mut found: Vec<Run> = places.filter_map(|place| place.run(ashift)).collect();
    let leaf = &path.leaf;
    for index in leaf.search(from).unwrap_or_else(|index| index)..leaf.len() {
        if tree == TreeId::Dead {
            found.push(parse_dead(leaf.key(index), leaf.value(index))?.run);
        } else if TreeId::OF_POINTERS.contains(&tree) {
            let pointer = pointer_in(tree, leaf.key(index), leaf.value(index))?;
            found.extend(pointer.run(ashift).filter(|_| pointer.birth <= held));
        }
    }
    Ok(found)
}

impl Txn {
    /// Makes the transaction, including its commit, take space where the aim says.
    pub fn set_aim(&mut self, aim: Aim) -> Result<()> {
        self.core.space.aim = Some(aim);
        let space_tree = &mut self.trees[TreeId::Space];
        for run in std::mem::take(&mut self.core.space.windows) {
            open_window(&mut self.core, space_tree, run, &aim)?;
        }
        Ok(())
    }

    /// Makes the next commit release reusable space and cut off free space at the end, even if
    /// nothing else changed.
    pub fn touch(&mut self) {
        self.core.changed = true;
    }

    /// Moves what is in the way, starting at the cursor, until there is enough for one transaction.
    pub fn relocate(&mut self, cursor: Cursor) -> Result<Moved> {
        let Some(aim) = self.core.space.aim else { return Ok(Moved::default()) };
        let ashift = self.core.ashift();
        let newest = self.core.holds.holders.newest();
        let mut moved = Moved::default();
        let mut chosen: Vec<Movable> = Vec::new();
        let (mut at, mut chosen_sectors) = (cursor, 0);
        'walk: for _ in 0..STEP_LEAVES_MAX {
            let Some(tree) = at.tree() else { break };
            if chosen.len() >= STEP_EXTENTS_MAX || moved.nodes >= STEP_NODES_MAX {
                break;
            }
            let path = self.trees[tree].path_to(&mut self.core, &at.key)?;
            if let Some(path) = &path {
                let held = held_in(tree, newest);
                let nodes = || in_the_way(&aim, path, held, ashift);
                if let Some((depth, _)) = nodes().next_back() {
                    self.trees[tree].renew(&mut self.core, &at.key, depth)?;
                    self.core.changed = true;
                    moved.nodes += nodes().count() as u64;
                }
                let longest = &mut moved.longest;
                for one in movable(&aim, tree, path, &at.key, held, ashift, longest)? {
                    if self.refs(one.run.start)?.is_some_and(|refs| refs.count > 1) {
                        continue;
                    }
                    if chosen_sectors << ashift >= STEP_LEN_MAX {
                        at.key = one.key;
                        break 'walk;
                    }
                    chosen_sectors += one.run.sectors;
                    chosen.push(one);
                }
            }
            at = at.behind(path.as_ref());
        }
        moved.next = at.tree().map(|_| at);
        self.move_all(&aim, chosen, &mut moved)?;
        Ok(moved)
    }

    fn move_all(&mut self, aim: &Aim, mut chosen: Vec<Movable>, moved: &mut Moved) -> Result<()> {
        // The longest first, as short ones would take their room. Those that are read together stay
        // together unless they are long.
        let class = (LONG_EXTENT_LEN >> self.core.ashift()).max(1);
        chosen.sort_by_key(|one| std::cmp::Reverse(one.run.sectors / class));
        let all: u64 = chosen.iter().map(|one| one.run.sectors).sum();
        let shortest = chosen.iter().map(|one| one.run.sectors).min().unwrap_or(0);
        self.provision_runs(all, shortest)?;
        // No hole is this long: saves a search for each longer extent.
        let mut too_long = u64::MAX;
        for one in chosen {
            let sectors = one.run.sectors;
            let mut place = self.core.space.take_from_window(sectors);
            if place.is_none() && sectors < too_long {
                self.provision_runs(sectors, sectors)?;
                place = self.core.space.take_from_window(sectors);
            }
            if place.is_none() {
                too_long = too_long.min(sectors);
                if !aim.append {
                    moved.shortest_stuck = sectors.min(moved.shortest_stuck);
                    continue;
                }
            }
            let place = place.unwrap_or_else(|| self.core.space.allocate(sectors));
            if self.move_one(&one, place)? {
                moved.sectors += sectors;
            } else {
                moved.damaged_end = moved.damaged_end.max(one.run.end());
            }
        }
        // The nodes changed here need room, however small the remaining holes are.
        let nodes: u64 = self.trees.values().iter().map(|tree| tree.dirty_count() as u64).sum();
        self.provision_runs(nodes * 2 * NODE_SECTORS_MIN, NODE_SECTORS_MIN)
    }

    /// Copies the stored bytes of an extent to another place and points its entry there. An
    /// unreadable extent stays where it is.
    fn move_one(&mut self, one: &Movable, sector: Sector) -> Result<bool> {
        let core = &mut self.core;
        let stored = match core.store.read_stored(&one.pointer) {
            Err(error) if error.is_corruption() => {
                core.space.recycle(Run { start: sector, sectors: one.run.sectors });
                return Ok(false);
            }
            read => read?,
        };
        let ashift = core.ashift();
        core.out.push(sector.0 << ashift, &stored, (one.run.sectors << ashift) as usize);
        if core.out.is_full() {
            core.out.flush(&core.store)?;
        }
        let mut pointer = Pointer { birth: core.txg, ..one.pointer.clone() };
        let Place::Extent { sector: place, .. } = &mut pointer.place else {
            return Err(Error::internal("something without an extent was to be moved"));
        };
        *place = sector;
        self.move_content(one.run.start, &pointer)?;
        self.insert(one.tree, &one.key, &pointer.to_bytes())?;
        self.free(&one.pointer, Owner::Nobody)?;
        Ok(true)
    }
}
