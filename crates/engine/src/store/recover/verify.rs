//! Walking a state: to choose the one to open, and to check a whole pool.
//!
//! When a pool is opened, the superblock with the highest txg counts only if everything its txg and
//! those since the durable one wrote is there: a loss of power may have kept the superblock and lost
//! what it points to. Since trees are copied on write, whatever is new hangs below new nodes, so the
//! walk skips all that is old; and large commits are synced before their superblock, and with it before the
//! next one, so what is left to verify is small whatever the size of the pool and of its commits: 16 MiB, or
//! that for each process where several write in turn and none syncs.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::PoisonError;

use crate::error::{Error, Result};
use crate::store::format::node::Node;
use crate::store::format::pointer::Pointer;
pub use crate::store::format::pointer::data_pointer;
use crate::store::format::superblock::{
    BLOCK_LEN, EXTENTS_OFFSET, RING_OFFSET, Superblock, slot_offset,
};
use crate::store::format::trees::{
    ALL, DEAD, FREED, OF_POINTERS, OF_SNAPSHOTS, REFS, SNAPSHOTS, SPACE,
};
use crate::store::ring::{adopted_state, block_hash};
use crate::store::sharing::refs;
use crate::store::snapshots::dead::{self, Dead};
use crate::store::tree::check_child;
use crate::store::{State, Store, snapshots, space};
use crate::units::{Run, Sector, Txg};

/// How often the ring is read again because a live writer moved it on meanwhile.
const RACE_COUNT_MAX: usize = 64;

/// What a walk meets.
pub enum Met<'a> {
    /// A node of a tree, before its entries.
    Node(u8, &'a Pointer),
    /// An entry of a leaf: tree, key and value.
    Entry(u8, &'a [u8], &'a [u8]),
    /// A node that cannot be read; what hangs below it is not met.
    Damage(u8, Error),
}

/// Walks one tree, skipping all that was written up to txg `older`.
pub fn walk_tree(
    store: &Store,
    tree: u8,
    root: &Pointer,
    older: Txg,
    visit: &mut dyn FnMut(Met<'_>) -> Result<()>,
) -> Result<()> {
    walk_bounded(store, tree, root, older, &mut |met, _| visit(met))
}

/// The keys that may be below a node: from the first on, and before the second where there is one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Bounds {
    /// The least key.
    pub from: Vec<u8>,
    /// Above all keys.
    pub to: Option<Vec<u8>>,
}

impl Bounds {
    /// Those of a child.
    fn of_child(&self, node: &Node, index: usize) -> Bounds {
        // What is below all keys of a node belongs to its first child.
        let from = if index == 0 { self.from.clone() } else { node.key(index).to_vec() };
        let next = (index + 1 < node.len()).then(|| node.key(index + 1).to_vec());
        Bounds { from, to: next.or_else(|| self.to.clone()) }
    }

    /// Whether there are keys in both.
    pub fn meets(&self, other: &Bounds) -> bool {
        let is_before = |a: &Bounds, b: &Bounds| a.to.as_ref().is_some_and(|to| *to <= b.from);
        !is_before(self, other) && !is_before(other, self)
    }
}

/// The same, telling also which keys may be below what is met.
pub fn walk_bounded(
    store: &Store,
    tree: u8,
    root: &Pointer,
    older: Txg,
    visit: &mut dyn FnMut(Met<'_>, &Bounds) -> Result<()>,
) -> Result<()> {
    walk_where(store, tree, root, &mut |pointer, _| pointer.birth > older, visit)
}

/// Whether a node with these keys below it is to be met.
pub type Wanted<'a> = dyn FnMut(&Pointer, &Bounds) -> bool + 'a;

/// The same of those nodes, and what hangs below them, that are wanted.
pub fn walk_where(
    store: &Store,
    tree: u8,
    root: &Pointer,
    wanted: &mut Wanted<'_>,
    visit: &mut dyn FnMut(Met<'_>, &Bounds) -> Result<()>,
) -> Result<()> {
    walk_node(store, tree, root, (None, &Bounds::default()), wanted, visit)
}

fn walk_node(
    store: &Store,
    tree: u8,
    pointer: &Pointer,
    (parent, bounds): (Option<(&Node, usize)>, &Bounds),
    wanted: &mut Wanted<'_>,
    visit: &mut dyn FnMut(Met<'_>, &Bounds) -> Result<()>,
) -> Result<()> {
    if !wanted(pointer, bounds) {
        return Ok(());
    }
    let node = store.read_node(tree, pointer).and_then(|node| match parent {
        Some((parent, index)) => {
            check_child(tree, parent, index, bounds.to.as_deref(), &node).map(|()| node)
        }
        None => Ok(node),
    });
    let node = match node {
        Ok(node) => node,
        Err(error) => return visit(Met::Damage(tree, error), bounds),
    };
    visit(Met::Node(tree, pointer), bounds)?;
    for index in 0..node.len() {
        if node.level == 0 {
            visit(Met::Entry(tree, node.key(index), node.value(index)), bounds)?;
            continue;
        }
        let below = bounds.of_child(&node, index);
        match node.child(index) {
            Some(child) => {
                let place = (Some((&*node, index)), &below);
                walk_node(store, tree, &child, place, wanted, visit)?;
            }
            None => {
                let offset = store.offset_of(pointer);
                let error = Error::corrupt("tree node", offset, "a child pointer is malformed");
                visit(Met::Damage(tree, error), &below)?;
            }
        }
    }
    Ok(())
}

/// What of a tree lies within bounds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Within {
    /// The entries that can be read, with their keys.
    pub entries: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where there may be others.
    pub lost: Vec<Bounds>,
}

/// The entries of a tree within bounds, as far as they can be read.
pub fn entries_within(store: &Store, tree: u8, root: Option<&Pointer>, wanted: &Bounds) -> Within {
    let mut found = Within::default();
    if let Some(root) = root {
        gather(store, tree, root, (None, &Bounds::default()), wanted, &mut found);
    }
    found
}

fn gather(
    store: &Store,
    tree: u8,
    pointer: &Pointer,
    (parent, bounds): (Option<(&Node, usize)>, &Bounds),
    wanted: &Bounds,
    found: &mut Within,
) {
    if !bounds.meets(wanted) {
        return;
    }
    let node = store.node(tree, pointer).ok().filter(|node| {
        let above = bounds.to.as_deref();
        parent.is_none_or(|(parent, index)| check_child(tree, parent, index, above, node).is_ok())
    });
    let Some(node) = node else {
        found.lost.push(bounds.clone());
        return;
    };
    for index in 0..node.len() {
        let key = node.key(index);
        if node.level > 0 {
            let below = bounds.of_child(&node, index);
            match node.child(index) {
                Some(child) => {
                    gather(store, tree, &child, (Some((&node, index)), &below), wanted, found);
                }
                None => found.lost.push(below),
            }
        } else if *key >= wanted.from[..] && wanted.to.as_ref().is_none_or(|to| key < &to[..]) {
            found.entries.push((key.to_vec(), node.value(index).to_vec()));
        }
    }
}

/// Whether everything that was written after the durable txg can be read.
pub(crate) fn is_whole(store: &Store, superblock: &Superblock) -> Result<()> {
    if superblock.data_synced || superblock.durable_txg == superblock.txg {
        return Ok(());
    }
    for_each_new(store, superblock, &mut |is_node, pointer| match is_node {
        // The walk has read it.
        true => Ok(()),
        false => store.read_stored(pointer).map(drop),
    })
}

/// Walks all that was written after the durable txg, what only snapshots still reach included. `visit` is told
/// whether it is a node.
pub(in crate::store) fn for_each_new(
    store: &Store,
    superblock: &Superblock,
    visit: &mut dyn FnMut(bool, &Pointer) -> Result<()>,
) -> Result<()> {
    let older = superblock.durable_txg;
    let (mut given_up, mut made) = (HashSet::new(), Vec::new());
    for (tree, _) in ALL {
        let Some(root) = &superblock.roots[usize::from(tree)] else { continue };
        walk_tree(store, tree, root, older, &mut |met| match met {
            Met::Damage(_, error) => Err(error),
            Met::Node(_, pointer) => visit(true, pointer),
            Met::Entry(tree, _, value) if OF_POINTERS.contains(&tree) => {
                let pointer = data_pointer(value)?;
                if pointer.birth > older { visit(false, &pointer) } else { Ok(()) }
            }
            Met::Entry(DEAD, key, value) => {
                let dead = dead::parse_dead(key, value).ok().filter(|dead| dead.birth > older);
                given_up.extend(dead.map(|dead| (dead.run.start, dead.birth)));
                Ok(())
            }
            Met::Entry(SNAPSHOTS, key, value) => {
                let snapshot = snapshots::parse_snapshot(key, value).ok().flatten();
                made.extend(snapshot.filter(|snapshot| snapshot.txg > older));
                Ok(())
            }
            Met::Entry(..) => Ok(()),
        })?;
    }
    // Of what the snapshots made since reach, the rest was met above, or is not kept.
    let given_up = RefCell::new(given_up);
    let is_left = |pointer: &Pointer| {
        let run = pointer.run(store.ashift());
        run.is_some_and(|run| given_up.borrow_mut().remove(&(run.start, pointer.birth)))
    };
    for (snapshot, tree) in made.iter().flat_map(|it| OF_SNAPSHOTS.map(|tree| (it, tree))) {
        let Some(root) = snapshot.root(tree) else { continue };
        walk_where(store, tree, root, &mut |node, _| is_left(node), &mut |met, _| match met {
            Met::Damage(_, error) => Err(error),
            Met::Node(_, pointer) => visit(true, pointer),
            Met::Entry(tree, _, value) if OF_POINTERS.contains(&tree) => {
                let pointer = data_pointer(value)?;
                if is_left(&pointer) { visit(false, &pointer) } else { Ok(()) }
            }
            Met::Entry(..) => Ok(()),
        })?;
    }
    Ok(())
}

/// Publishes the newest state that is whole. Returns the newest txg where that is another one.
pub(in crate::store) fn recover(store: &Store) -> Result<Option<Txg>> {
    let mut recovered_from = None;
    for _ in 0..RACE_COUNT_MAX {
        let ring = store.read_ring()?;
        let Some((slot, newest)) = ring.iter().max_by_key(|(_, sb)| sb.txg).cloned() else {
            return Err(Error::corrupt("superblock", RING_OFFSET, "no slot holds a valid one"));
        };
        newest.check_readable()?;
        let Err(error) = is_whole(store, &newest) else {
            store.doubt(&newest);
            store.publish(adopted_state(&ring, slot, newest, Txg(0)));
            return Ok(recovered_from);
        };
        if !error.is_corruption() {
            return Err(error);
        }
        // A live writer may have reused the space of what was just walked. Only under its lock is
        // the ring at rest.
        let locked = !store.read_only;
        if locked {
            store.device.lock_writer().map_err(|error| Error::io("lock", error))?;
        }
        let rejected = reject(store, slot, &newest, ring.len() > 1);
        if locked {
            store.device.unlock_writer();
        }
        match rejected? {
            Rejection::Moved => {}
            Rejection::Done => recovered_from = recovered_from.or(Some(newest.txg)),
            Rejection::LastOne => {
                // No older state is left: better to open this one and report its damage where it
                // is met than to refuse everything.
                store.publish(adopted_state(&ring, slot, newest.clone(), newest.txg));
                return Ok(recovered_from.or(Some(newest.txg)));
            }
        }
    }
    Err(Error::corrupt("superblock", RING_OFFSET, "the ring never came to rest"))
}

enum Rejection {
    /// Another state is newest by now, or this one is whole after all.
    Moved,
    /// The superblock will not be considered again.
    Done,
    /// It is the only one there is.
    LastOne,
}

/// Takes a superblock whose state is not whole out of the ring.
fn reject(store: &Store, slot: u64, bad: &Superblock, has_older: bool) -> Result<Rejection> {
    let mut block = vec![0; BLOCK_LEN];
    store
        .device
        .read_at(&mut block, slot_offset(slot))
        .map_err(|error| Error::io("read", error))?;
    let current = Superblock::decode(&block, &store.header.guid);
    let newest = store.read_ring()?.into_iter().map(|(_, sb)| sb.txg).max();
    if current.as_ref() != Some(bad) || newest != Some(bad.txg) {
        return Ok(Rejection::Moved);
    }
    match is_whole(store, bad) {
        Ok(()) => return Ok(Rejection::Moved),
        // What cannot be read now may be whole, and what is rejected is gone.
        Err(error) if !error.is_corruption() => return Err(error),
        Err(_) => {}
    }
    if !has_older {
        return Ok(Rejection::LastOne);
    }
    let mut rejected = store.rejected.lock().unwrap_or_else(PoisonError::into_inner);
    rejected.push(block_hash(&block));
    if !store.read_only {
        // So that no later opener, and no writer of another process, takes it up again. Durably, and
        // before the lock is given back: what is committed next may have the same number, the same
        // place and for small nodes the same bytes as what was lost, and so make it look whole after
        // another loss of power.
        store
            .device
            .write_at(&vec![0; BLOCK_LEN], slot_offset(slot))
            .map_err(|error| Error::io("write", error))?;
        store.sync_device()?;
    }
    Ok(Rejection::Done)
}

/// Reads an entry of the trees that keep space, as all who use it do.
#[doc(hidden)]
pub fn parse_space_entry(tree: u8, key: &[u8], value: &[u8]) -> Result<()> {
    match tree {
        SPACE => space::read_space_entry(key, value).map(drop),
        FREED => space::freed_entry(key, value).map(drop),
        REFS => refs::parse_refs(key, value).map(drop),
        DEAD => dead::parse_dead(key, value).map(drop),
        SNAPSHOTS => snapshots::parse_snapshot(key, value).map(drop),
        _ => Ok(()),
    }
}

/// Accounts for every sector of a pool: used once, or free once, and none left over.
pub struct Space {
    ashift: u8,
    end: u64,
    freed: (u64, u64),
    space_sectors: u64,
    used: Vec<Run>,
    /// References that only snapshots have, by extent.
    dead: HashMap<Run, u64>,
    free: Vec<Run>,
    refs: HashMap<u64, u32>,
    found: (u64, u64, u64),
}

impl Space {
    /// Begins with what the superblock itself says.
    pub fn new(store: &Store, state: &State) -> Space {
        let superblock = &state.superblock;
        let ashift = store.ashift();
        let front = Run { start: Sector(0), sectors: EXTENTS_OFFSET >> ashift };
        let mut used = vec![front];
        let reserved = space::reserved_run(ashift);
        if superblock.end >= reserved.end() {
            used.push(reserved);
        }
        Space {
            ashift,
            end: superblock.end.0,
            freed: (superblock.freed_count, superblock.freed_sectors),
            space_sectors: superblock.space_sectors,
            used,
            dead: HashMap::new(),
            free: superblock.windows.clone(),
            refs: HashMap::new(),
            found: (0, 0, 0),
        }
    }

    /// Counts the extent of a node or a record.
    pub fn add_used(&mut self, pointer: &Pointer) {
        if let Some(run) = pointer.run(self.ashift) {
            self.used.push(run);
        }
    }

    /// Counts what only snapshots have.
    pub fn add_dead(&mut self, dead: &Dead) {
        *self.dead.entry(dead.run).or_default() += u64::from(dead.count);
    }

    /// Counts an entry of one of the trees that keep space.
    pub fn add_entry(&mut self, tree: u8, key: &[u8], value: &[u8]) -> Result<()> {
        match tree {
            SPACE => {
                let run = space::read_space_entry(key, value)?;
                self.found.2 = self.found.2.saturating_add(run.sectors);
                self.free.push(run);
            }
            FREED => {
                let (_, run) = space::freed_entry(key, value)?;
                self.found.0 += 1;
                self.found.1 = self.found.1.saturating_add(run.sectors);
                self.free.push(run);
            }
            REFS => {
                let (sector, refs) = refs::parse_refs(key, value)?;
                self.refs.insert(sector.0, refs.count);
            }
            _ => {}
        }
        Ok(())
    }

    /// The free run that an entry of the space or the freed tree tells of.
    pub(crate) fn free_run(tree: u8, key: &[u8], value: &[u8]) -> Result<Run> {
        match tree {
            FREED => space::freed_entry(key, value).map(|(_, run)| run),
            _ => space::read_space_entry(key, value),
        }
    }

    /// What is neither used nor free; an error where anything is both, or used twice.
    pub(in crate::store) fn gaps(mut self) -> Result<Vec<Run>> {
        self.used.extend(self.dead.keys());
        self.used.sort_unstable();
        self.used.dedup();
        self.used.append(&mut self.free);
        self.used.sort_unstable();
        let (mut gaps, mut at) = (Vec::new(), 0);
        for run in self.used {
            if run.start.0 < at {
                let offset = run.start.0 << self.ashift;
                return Err(Error::corrupt("free space", offset, "it is used or free twice"));
            }
            gaps.push(Run { start: Sector(at), sectors: run.start.0 - at });
            at = run.end().0;
        }
        if at > self.end {
            let what = "an extent lies behind the end of the pool";
            return Err(Error::corrupt("free space", self.end << self.ashift, what));
        }
        gaps.push(Run { start: Sector(at), sectors: self.end - at });
        gaps.retain(|gap| gap.sectors > 0);
        Ok(gaps)
    }

    /// The free sectors, and everything that does not add up.
    pub fn settle(mut self) -> (u64, Vec<String>) {
        let mut problems = Vec::new();
        let free = self.free.iter().fold(0_u64, |sum, run| sum.saturating_add(run.sectors));
        if (self.found.0, self.found.1) != self.freed || self.found.2 != self.space_sectors {
            problems
                .push("the superblock's counts of free space are not those of the trees".into());
        }
        // Once each: how many more there are is added where they are counted.
        self.used.extend(self.dead.keys());
        self.used.sort_unstable();
        let mut runs: Vec<(Run, bool)> = Vec::with_capacity(self.used.len());
        for same in self.used.chunk_by(|a, b| a == b) {
            let run = same[0];
            let dead = self.dead.get(&run).map_or(0, |count| count - 1);
            let count = same.len() as u64 + dead;
            let counted = self.refs.remove(&run.start.0).unwrap_or(1);
            if count != u64::from(counted) {
                let at = run.start.0 << self.ashift;
                problems.push(format!("byte {at}: {count} pointers to it, {counted} are counted"));
            }
            runs.push((run, true));
        }
        for sector in self.refs.keys() {
            let at = sector << self.ashift;
            problems.push(format!("byte {at}: pointers to it are counted, and there are none"));
        }
        runs.extend(self.free.iter().map(|run| (*run, false)));
        runs.sort_unstable();
        let mut at = 0;
        for (run, used) in runs {
            let bytes =
                format!("bytes {} to {}", run.start.0 << self.ashift, run.end().0 << self.ashift);
            if run.start.0 < at {
                let kind = if used { "in use" } else { "free" };
                problems.push(format!("{bytes} are {kind}, and overlap what is before"));
            } else if run.start.0 > at {
                let lost = (run.start.0 - at) << self.ashift;
                problems.push(format!("{lost} bytes before {bytes} are neither used nor free"));
            }
            at = at.max(run.end().0);
        }
        if at != self.end {
            problems.push(format!(
                "the last extent ends at byte {}, the pool at byte {}",
                at << self.ashift,
                self.end << self.ashift
            ));
        }
        (free, problems)
    }
}
