//! Moving extents from one part of the pool to another, in bounded transactions.
//!
//! An [`Aim`] says which sectors are to be emptied and where new places may be. With it in force a
//! transaction takes space from nowhere else, as long as there is some, and the commit makes all that
//! is durably freed reusable at once.
//!
//! What is moved keeps its stored bytes, and its pointer all but the place and the birth: the bytes are
//! verified against the checksum that they keep, and not recompressed. Tree nodes that lie in the way
//! are written anew, like any changed node. Extents with several pointers stay where they are, since whoever else
//! points to them would have to be found; so does what a snapshot has, or may have, and extents whose bytes are
//! damaged. What is known of the content of an extent that is moved goes with it.
//!
//! The old place is freed as by any other change, so readers of older states, and a loss of power,
//! find it untouched until the move is durable. A step that fails leaves the state before.

use crate::error::{Error, Result};
use crate::store::format::pointer::{Place, Pointer};
use crate::store::format::trees::{ALL, DEAD, INDEX, OF_POINTERS, OF_SNAPSHOTS, SPACE};
use crate::store::snapshots::dead::parse_dead;
pub use crate::store::space::aim::Aim;
use crate::store::space::{self, reserved_run};
use crate::store::tree::Path;
use crate::store::txn::{Owner, Txn};
use crate::store::{State, Store};
use crate::units::{Run, Sector, Txg};

/// One step moves about this many bytes; a single extent may have more.
const STEP_LEN_MAX: u64 = 8 << 20;
/// One step moves at most this many extents.
const STEP_EXTENTS_MAX: usize = 1024;
/// One step has at most this many leaves, with the nodes above them, written anew.
const STEP_NODES_MAX: u64 = 256;
/// One step looks at this many leaves while others wait with writing.
const STEP_LEAVES_MAX: usize = 512;
/// A tree node takes hardly ever less.
const NODE_SECTORS_MIN: u64 = 2;

/// How far a walk over all trees has come. The trees may change meanwhile.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cursor {
    index: usize,
    key: Vec<u8>,
}

impl Cursor {
    /// Where the trees that keep space begin: those that every commit writes.
    pub fn of_space() -> Cursor {
        let index = ALL.iter().position(|(tree, _)| *tree == SPACE).unwrap_or(0);
        Cursor { index, key: Vec::new() }
    }

    fn tree(&self) -> Option<u8> {
        ALL.get(self.index).map(|(tree, _)| *tree)
    }

    fn behind(self, path: Option<&Path>) -> Cursor {
        match path.and_then(|path| path.next.clone()) {
            Some(key) => Cursor { key, ..self },
            None => Cursor { index: self.index + 1, key: Vec::new() },
        }
    }
}

/// An entry whose extent lies in the way.
struct Movable {
    tree: u8,
    key: Vec<u8>,
    pointer: Pointer,
    run: Run,
}

/// What one step did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Moved {
    /// Sectors that records and patches were moved from.
    pub sectors: u64,
    /// Tree nodes that were written anew.
    pub nodes: u64,
    /// Sectors that should have been moved and fit nowhere.
    pub stuck: u64,
    /// The longest extent that was met, in sectors.
    pub longest: u64,
    /// Where the walk goes on; `None` behind the last tree.
    pub next: Option<Cursor>,
}

impl Moved {
    /// Whether there is anything to commit.
    pub fn is_change(&self) -> bool {
        self.sectors > 0 || self.nodes > 0
    }
}

/// What a walk without changes found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// Sectors of extents and nodes that are in the way.
    pub sectors: u64,
    /// Where the last of what is in the way and has to stay ends.
    pub stuck_end: Sector,
    /// Where the walk goes on, or the first leaf with something to move; `None` behind the last tree.
    pub next: Option<Cursor>,
}

impl State {
    /// Sectors that are in use below the end of the pool, the reserved range left out.
    pub fn used_sectors(&self, ashift: u8) -> u64 {
        let reserved = reserved_run(ashift);
        let out = if self.superblock.end >= reserved.end() { reserved.sectors } else { 0 };
        self.superblock.end.0.saturating_sub(out + (self.free_bytes(ashift) >> ashift))
    }

    /// Where a pool would end that holds so many sectors without a gap.
    pub fn end_for(sectors: u64, ashift: u8) -> Sector {
        let reserved = reserved_run(ashift);
        let out = if sectors > reserved.start.0 { reserved.sectors } else { 0 };
        Sector(sectors + out)
    }
}

impl Store {
    /// Looks at up to `leaf_count` leaves of a state for what is in the way. With `only_first` it ends
    /// at the first leaf that has something.
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
            let path = match state.trees[usize::from(tree)].path_to(&mut &*self, &at.key) {
                // A hint, of which nothing need be moved.
                Err(error) if tree == INDEX && error.is_corruption() => None,
                path => path?,
            };
            if let Some(path) = &path {
                let is_new = |depth: usize| path.places.get(depth) != above.get(depth);
                let held = held_in(tree, newest);
                let nodes = in_the_way(aim, path, held, self.ashift());
                let nodes = nodes.filter(|(depth, _)| is_new(*depth));
                found.sectors += nodes.map(|(_, run)| run.sectors).sum::<u64>();
                for one in movable(aim, tree, path, &at.key, held, self.ashift())? {
                    match self.is_shared(state, one.run.start)? {
                        true => found.stuck_end = found.stuck_end.max(one.run.end()),
                        false => found.sectors += one.run.sectors,
                    }
                }
                for run in held_by_snapshots(tree, path, &at.key, held, self.ashift())? {
                    if aim.touches(run) {
                        found.stuck_end = found.stuck_end.max(run.end());
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

    fn is_shared(&self, state: &State, sector: Sector) -> Result<bool> {
        Ok(self.refs_in(state, sector)?.is_some_and(|refs| refs.count > 1))
    }

    /// The free sectors of a state in a range.
    pub fn free_between(&self, state: &State, from: Sector, to: Sector) -> Result<u64> {
        let within =
            |run: Run| run.end().min(to).0.saturating_sub(run.start.max(from).0).min(run.sectors);
        let mut free: u64 = state.superblock.windows.iter().map(|run| within(*run)).sum();
        let tree = &state.trees[usize::from(SPACE)];
        let first = tree.floor(&mut &*self, &space::space_key(from))?;
        let first = first.map_or(space::space_key(from).to_vec(), |entry| entry.key().to_vec());
        let mut bad = None;
        tree.scan(&mut &*self, &first, &mut |key, value| {
            match space::read_space_entry(key, value) {
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

/// Up to which birth a tree has what snapshots may have, where the newest one is of this txg.
fn held_in(tree: u8, newest: Txg) -> Txg {
    if OF_SNAPSHOTS.contains(&tree) { newest } else { Txg(0) }
}

/// The nodes of a path that are in the way and no snapshot has, with their depth.
fn in_the_way<'p>(
    aim: &'p Aim,
    path: &'p Path,
    held: Txg,
    ashift: u8,
) -> impl DoubleEndedIterator<Item = (usize, Run)> + 'p {
    let places = path.places.iter().map(move |place| place.as_ref().filter(|p| p.birth > held));
    let runs = places.map(move |place| place.and_then(|p| p.run(ashift)));
    runs.enumerate()
        .filter_map(|(depth, run)| run.map(|run| (depth, run)))
        .filter(|(_, run)| aim.touches(*run))
}

/// The entries of a leaf from `from` on whose extents are in the way and no snapshot has.
fn movable(
    aim: &Aim,
    tree: u8,
    path: &Path,
    from: &[u8],
    held: Txg,
    ashift: u8,
) -> Result<Vec<Movable>> {
    let mut found = Vec::new();
    if !OF_POINTERS.contains(&tree) {
        return Ok(found);
    }
    let leaf = &path.leaf;
    for index in leaf.search(from).unwrap_or_else(|index| index)..leaf.len() {
        let pointer = crate::store::format::pointer::data_pointer(leaf.value(index))?;
        let Some(run) = pointer.run(ashift).filter(|run| aim.touches(*run)) else { continue };
        if pointer.birth <= held {
            continue;
        }
        found.push(Movable { tree, key: leaf.key(index).to_vec(), pointer, run });
    }
    Ok(found)
}

/// What a leaf says of extents, and the nodes above it, that snapshots have or may have.
fn held_by_snapshots(
    tree: u8,
    path: &Path,
    from: &[u8],
    held: Txg,
    ashift: u8,
) -> Result<Vec<Run>> {
    let places = path.places.iter().flatten().filter(|place| place.birth <= held);
    let mut found: Vec<Run> = places.filter_map(|place| place.run(ashift)).collect();
    let leaf = &path.leaf;
    for index in leaf.search(from).unwrap_or_else(|index| index)..leaf.len() {
        if tree == DEAD {
            found.push(parse_dead(leaf.key(index), leaf.value(index))?.run);
        } else if OF_POINTERS.contains(&tree) {
            let pointer = crate::store::format::pointer::data_pointer(leaf.value(index))?;
            found.extend(pointer.run(ashift).filter(|_| pointer.birth <= held));
        }
    }
    Ok(found)
}

impl Txn {
    /// From now on, and for its commit, the transaction takes space where the aim says.
    pub fn set_aim(&mut self, aim: Aim) -> Result<()> {
        self.core.space.aim = Some(aim);
        let space_tree = &mut self.trees[usize::from(SPACE)];
        for run in std::mem::take(&mut self.core.space.windows) {
            space::open_window(&mut self.core, space_tree, run, &aim)?;
        }
        Ok(())
    }

    /// Has the next commit make reusable what is, and drop what is free at the end, even though
    /// nothing else changed.
    pub fn touch(&mut self) {
        self.core.changed = true;
    }

    /// Moves what is in the way, from the cursor on, until this is enough for one transaction.
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
            let trees = &mut self.trees[usize::from(tree)];
            let path = trees.path_to(&mut self.core, &at.key)?;
            if let Some(path) = &path {
                let held = held_in(tree, newest);
                let count = in_the_way(&aim, path, held, ashift).count() as u64;
                if let Some((depth, _)) = in_the_way(&aim, path, held, ashift).next_back() {
                    trees.renew(&mut self.core, &at.key, depth)?;
                    self.core.changed = true;
                    moved.nodes += count;
                }
                for one in movable(&aim, tree, path, &at.key, held, ashift)? {
                    if self.refs(one.run.start)?.is_some_and(|refs| refs.count > 1) {
                        continue;
                    }
                    if chosen_sectors << ashift >= STEP_LEN_MAX {
                        at.key = one.key;
                        break 'walk;
                    }
                    moved.longest = moved.longest.max(one.run.sectors);
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

    fn move_all(&mut self, aim: &Aim, chosen: Vec<Movable>, moved: &mut Moved) -> Result<()> {
        let all: u64 = chosen.iter().map(|one| one.run.sectors).sum();
        let shortest = chosen.iter().map(|one| one.run.sectors).min().unwrap_or(0);
        self.provision_runs(all, shortest)?;
        // No hole is this long: spares a search for each that is.
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
                    moved.stuck += sectors;
                    continue;
                }
            }
            let place = place.unwrap_or_else(|| self.core.space.allocate(sectors));
            if self.move_one(&one, place)? {
                moved.sectors += sectors;
            }
        }
        // The nodes that this changed need room, however small the holes are that are left.
        let nodes: u64 = self.trees.iter().map(|tree| tree.dirty_count() as u64).sum();
        self.provision_runs(nodes * 2 * NODE_SECTORS_MIN, NODE_SECTORS_MIN)
    }

    /// Copies the stored bytes of an extent to another place, and lets its entry point there. One
    /// that cannot be read stays where it is.
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
            return Err(Error::corrupt("tree node", 0, "what has no extent cannot be moved"));
        };
        *place = sector;
        self.move_content(one.run.start, &pointer)?;
        self.insert(one.tree, &one.key, &pointer.to_bytes())?;
        self.free(&one.pointer, Owner::Nobody)?;
        Ok(true)
    }
}
