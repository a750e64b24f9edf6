//! Walks a state: to choose the one to open, and to check a whole pool.
//!
//! When a pool is opened, the superblock with the highest txg counts only if everything that its
//! txg and all others since the durable one wrote is intact: a loss of power may have kept the
//! superblock and lost what it points to. Trees are copied on write, so everything new hangs below
//! new nodes, and the walk skips all that is old. Large commits are synced before their own
//! superblock, and so before the next one. What is left to verify is therefore small whatever the
//! size of the pool and its commits: 16 MiB, or that for each process if several write in turn and
//! none syncs.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use crate::error::{CutShort, Error, Location, Result};
use crate::store::Store;
use crate::store::format::dead::parse_dead;
use crate::store::format::pointer::Pointer;
use crate::store::format::pointer::data_pointer;
use crate::store::format::snapshot::parse_snapshot;
use crate::store::format::superblock::{BLOCK_LEN, RING_OFFSET, Superblock, slot_offset};
use crate::store::format::trees::TreeId;
use crate::store::recover::cut_short::recorded_durable;
use crate::store::ring::{
    adopted_state, block_hash, newest_of, no_superblock, rank, read_slot, slots_of,
};
use crate::store::tree::walk::{Met, walk_tree, walk_where};
use crate::units::Txg;

/// How often the ring is read again because a live writer has moved it on.
const RACE_COUNT_MAX: usize = 64;

/// Checks that everything written after the durable txg can be read.
pub(crate) fn is_whole(store: &Store, superblock: &Superblock) -> Result<()> {
    if superblock.data_synced || superblock.durable_txg == superblock.txg {
        return Ok(());
    }
    for_each_new(store, superblock, &mut |is_node, pointer| match is_node {
        // The walk has read it already.
        true => Ok(()),
        false => store.read_stored(pointer).map(drop),
    })
}

/// Walks everything written after the durable txg, including what only snapshots still reach.
/// `visit` is told whether an item is a node.
pub(in crate::store) fn for_each_new(
    store: &Store,
    superblock: &Superblock,
    visit: &mut dyn FnMut(bool, &Pointer) -> Result<()>,
) -> Result<()> {
    let older = superblock.durable_txg;
    let (mut given_up, mut made) = (HashSet::new(), Vec::new());
    // A segment has thousands of pointers.
    let mut segments = HashSet::new();
    let mut is_first = |pointer: &Pointer| {
        !pointer.is_part() || segments.insert(pointer.run(store.ashift()).map(|run| run.start))
    };
    for tree in TreeId::ALL {
        let Some(root) = &superblock.roots[tree] else { continue };
        walk_tree(store, tree, root, older, &mut |met| match met {
            Met::Damage(_, error) => Err(error),
            Met::Node(_, pointer) => visit(true, pointer),
            Met::Entry(tree, _, value) if TreeId::OF_POINTERS.contains(&tree) => {
                let pointer = data_pointer(value)?;
                let is_new = pointer.birth > older && is_first(&pointer);
                if is_new { visit(false, &pointer) } else { Ok(()) }
            }
            Met::Entry(TreeId::Dead, key, value) => {
                let dead = parse_dead(key, value).ok().filter(|dead| dead.birth > older);
                given_up.extend(dead.map(|dead| (dead.run.start, dead.birth)));
                Ok(())
            }
            Met::Entry(TreeId::Snapshots, key, value) => {
                let snapshot = parse_snapshot(key, value).ok().flatten();
                made.extend(snapshot.filter(|snapshot| snapshot.txg > older));
                Ok(())
            }
            Met::Entry(..) => Ok(()),
        })?;
    }
    // Of what new snapshots reach, everything else was visited above, or is not kept.
    let given_up = RefCell::new(given_up);
    let is_left = |pointer: &Pointer| {
        let run = pointer.run(store.ashift());
        run.is_some_and(|run| given_up.borrow_mut().remove(&(run.start, pointer.birth)))
    };
    for (snapshot, tree) in made.iter().flat_map(|it| TreeId::OF_SNAPSHOTS.map(|tree| (it, tree))) {
        let Some(root) = snapshot.root(tree) else { continue };
        walk_where(store, tree, root, &mut |node, _| is_left(node), &mut |met, _| match met {
            Met::Damage(_, error) => Err(error),
            Met::Node(_, pointer) => visit(true, pointer),
            Met::Entry(tree, _, value) if TreeId::OF_POINTERS.contains(&tree) => {
                let pointer = data_pointer(value)?;
                let is_new = is_left(&pointer) && is_first(&pointer);
                if is_new { visit(false, &pointer) } else { Ok(()) }
            }
            Met::Entry(..) => Ok(()),
        })?;
    }
    Ok(())
}

/// Publishes the newest intact state. If that is not the newest one, returns the newest txg.
pub(in crate::store) fn recover(store: &Store) -> Result<Option<Txg>> {
    let mut recovered_from = None;
    // Also of states that were rejected meanwhile.
    let mut durable = Txg(0);
    for _ in 0..RACE_COUNT_MAX {
        let ring = store.read_ring()?;
        let Some((slot, newest)) = newest_of(&ring).cloned() else { return Err(no_superblock()) };
        newest.check_readable()?;
        durable = durable.max(recorded_durable(ring.iter().map(|(_, sb)| sb)));
        let all = ring.iter().map(|(_, superblock)| superblock);
        if store.judge_length(all.clone(), durable)?.is_some() {
            if open_cut_short(store, &newest, durable, None)? {
                return Ok(recovered_from.or(unless_opened(store, &newest)));
            }
            continue;
        }
        let Err(error) = is_whole(store, &newest) else {
            store.doubt(&newest);
            store.publish(adopted_state(slots_of(&ring), slot, newest, Txg(0)));
            return Ok(recovered_from);
        };
        if !error.is_corruption() {
            return Err(error);
        }
        // Once it is rejected, an older state must be the one to open.
        let older = all.filter(|superblock| superblock.txg < newest.txg);
        if store.judge_length(older, durable)?.is_some() {
            if open_cut_short(store, &newest, durable, Some(newest.txg))? {
                return Ok(recovered_from.or(unless_opened(store, &newest)));
            }
            continue;
        }
        // A live writer may have reused the space that was just walked. The ring is only stable
        // under its lock.
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
                // No older state is left. Opening this one and reporting damage where it is met is
                // better than refusing everything.
                store.publish(adopted_state(slots_of(&ring), slot, newest.clone(), newest.txg));
                return Ok(recovered_from.or(Some(newest.txg)));
            }
        }
    }
    let what = format!(
        "expected a newest state that is whole, found {RACE_COUNT_MAX} in turn that were not, or \
         were replaced while they were verified"
    );
    Err(Error::corrupt("superblock", Location::Byte(RING_OFFSET), what))
}

/// Judges the length of the file again while nobody else writes, without the state `except`, which
/// is incomplete. If the verdict stays, publishes a state for reading only, and returns true; if
/// not, another state is the newest by now.
fn open_cut_short(
    store: &Store,
    newest: &Superblock,
    durable: Txg,
    except: Option<Txg>,
) -> Result<bool> {
    let locked = !store.read_only;
    if locked {
        store.device.lock_writer().map_err(|error| Error::io("lock", error))?;
    }
    let judged = judge_again(store, newest, durable, except);
    if locked {
        store.device.unlock_writer();
    }
    let Some((ring, cut)) = judged? else { return Ok(false) };
    store.set_cut_short(Some(cut));
    store.doubt(newest);
    // As after a loss of power, but nothing is taken out of the ring on the medium.
    let mut states: Vec<_> = ring
        .iter()
        .filter(|(_, superblock)| superblock.txg >= durable || superblock == newest)
        .collect();
    states.sort_by_key(|(slot, superblock)| rank(*slot, superblock));
    while let Some((slot, superblock)) = states.pop() {
        match is_whole(store, superblock) {
            Err(error) if !error.is_corruption() => return Err(error),
            Err(_) if !states.is_empty() => {
                let hash = block_hash(&read_slot(store, *slot)?);
                store.rejected.lock().unwrap_or_else(PoisonError::into_inner).push(hash);
            }
            Ok(()) | Err(_) => {
                store.publish(adopted_state(slots_of(&ring), *slot, superblock.clone(), Txg(0)));
                break;
            }
        }
    }
    Ok(true)
}

/// Returns the newest txg if another state was opened.
fn unless_opened(store: &Store, newest: &Superblock) -> Option<Txg> {
    Some(newest.txg).filter(|txg| *txg != store.state().txg())
}

type Ring = Vec<(u64, Superblock)>;

fn judge_again(
    store: &Store,
    newest: &Superblock,
    durable: Txg,
    except: Option<Txg>,
) -> Result<Option<(Ring, CutShort)>> {
    let newest_slot = |ring: &Ring| {
        let found = newest_of(ring);
        found.filter(|(_, superblock)| superblock == newest).map(|(slot, _)| *slot)
    };
    let ring = store.read_ring()?;
    let states = ring.iter().map(|(_, superblock)| superblock);
    let states = states.filter(|superblock| except != Some(superblock.txg));
    let cut = match (newest_slot(&ring), except) {
        (None, _) => None,
        (Some(_), None) => store.judge_length(states, durable)?,
        // Its bytes may have been read wrong before.
        (Some(_), Some(_)) => match is_whole(store, newest) {
            Ok(()) => None,
            Err(error) if error.is_corruption() => store.judge_length(states, durable)?,
            Err(error) => return Err(error),
        },
    };
    let Some(cut) = cut else { return Ok(None) };
    let cut = CutShort { needed: cut.needed.max(Some(newest.end.0 << store.ashift())), ..cut };
    // Without the lock, a commit may have come in between.
    let slot = newest_slot(&store.read_ring()?);
    Ok(slot.map(|_| (ring, cut)))
}

enum Rejection {
    /// Another state is the newest by now, or this one is intact after all.
    Moved,
    /// The superblock will not be considered again.
    Done,
    /// It is the only superblock.
    LastOne,
}

/// Takes a superblock whose state is not intact out of the ring.
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
        // A state that cannot be read now may be intact, and a rejected one is gone.
        Err(error) if !error.is_corruption() => return Err(error),
        Err(_) => {}
    }
    if !has_older {
        return Ok(Rejection::LastOne);
    }
    let mut rejected = store.rejected.lock().unwrap_or_else(PoisonError::into_inner);
    rejected.push(block_hash(&block));
    store.last_rejected.fetch_max(bad.txg.0, Ordering::Relaxed);
    if !store.read_only {
        // So that no later opener, and no writer of another process, uses it again. This must be
        // durable before the lock is released: the next commit may have the same number, the same
        // place and for small nodes the same bytes as the lost one, and so make it look intact
        // after another loss of power.
        store
            .device
            .write_at(&vec![0; BLOCK_LEN], slot_offset(slot))
            .map_err(|error| Error::io("write", error))?;
        store.sync_device()?;
    }
    Ok(Rejection::Done)
}
