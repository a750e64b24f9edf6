//! What a check found beside a writer: whether it is damage, or was only overtaken.
//!
//! What cannot be read of a state that is no longer the newest may have been reused meanwhile. But space is reused only
//! after it was given up, and nothing that was given up comes back with the same birth. So what the newest state still
//! refers to, by the very same pointer, was in use all the time: that it could not be read is damage. What it no longer
//! refers to is not part of it, and no problem of it. So one look is enough for each, and a check ends, whoever writes.

use std::cell::Cell;

use super::super::extents::piece_key;
use crate::error::Result;
use crate::store::format::pointer::Pointer;
use crate::store::format::pointer::data_pointer;
use crate::store::recover::verify::{Bounds, Met, walk_where};
use crate::store::trees::{DICTIONARIES, INDEX, MAP, OF_POINTERS, PATCHES};
use crate::store::{State, Store};
use crate::units::FileId;

/// How often a part of the newest state is looked for that a writer moves on.
const LOOK_COUNT_MAX: usize = 8;

/// What a problem hangs on, where that may have been overtaken.
#[derive(Clone, Debug)]
pub(super) enum Doubt {
    /// A node or an extent that could not be read, and where it hung.
    Unread { trees: Vec<u8>, bounds: Bounds, pointer: Box<Pointer> },
    /// Something of the snapshot with this number could not be read.
    Snapshot(u64),
    /// It is not known what.
    Unknown,
}

impl Doubt {
    /// About a node of a tree.
    pub fn of_node(tree: u8, bounds: &Bounds, pointer: Option<Pointer>) -> Doubt {
        match pointer {
            Some(pointer) => {
                let pointer = Box::new(pointer);
                Doubt::Unread { trees: vec![tree], bounds: bounds.clone(), pointer }
            }
            None => Doubt::Unknown,
        }
    }

    /// About a record or patch, or a dictionary or part of the index.
    pub fn of_record(file: Option<FileId>, start: u64, pointer: &Pointer) -> Doubt {
        let pointer = Box::new(pointer.clone());
        let Some(file) = file else {
            let bounds = Bounds::default();
            return Doubt::Unread { trees: vec![DICTIONARIES, INDEX], bounds, pointer };
        };
        let key = piece_key(file, start).to_vec();
        let behind = [&key[..], &[0]].concat();
        let bounds = Bounds { from: key, to: Some(behind) };
        Doubt::Unread { trees: vec![MAP, PATCHES], bounds, pointer }
    }

    /// Whether what it is about is part of the newest state: then it is damaged.
    pub fn is_confirmed(&self, store: &Store) -> Result<bool> {
        match self {
            Doubt::Unknown => Ok(false),
            Doubt::Snapshot(number) => store.with_state(|state| {
                let found = store.snapshots(state)?;
                Ok(found.iter().any(|one| one.number == *number && !one.is_condemned))
            }),
            Doubt::Unread { trees, bounds, pointer } => {
                for _ in 0..LOOK_COUNT_MAX {
                    store.adopt_newest()?;
                    let state = store.state();
                    let found = is_referred_to(store, &state, trees, bounds, pointer)?;
                    if let Some(found) = found {
                        return Ok(found);
                    }
                    if !store.adopt_newest()? && store.state().txg() == state.txg() {
                        // What leads there is damaged itself.
                        return Ok(true);
                    }
                }
                Ok(false)
            }
        }
    }
}

/// Whether a state refers to something within these bounds by this very pointer; nothing where that cannot be read.
fn is_referred_to(
    store: &Store,
    state: &State,
    trees: &[u8],
    bounds: &Bounds,
    pointer: &Pointer,
) -> Result<Option<bool>> {
    let is_found = Cell::new(false);
    let mut is_damaged = false;
    for tree in trees {
        let Some(root) = &state.superblock.roots[usize::from(*tree)] else { continue };
        let mut wanted = |node: &Pointer, below: &Bounds| {
            is_found.set(is_found.get() || node == pointer);
            !is_found.get() && below.meets(bounds)
        };
        walk_where(store, *tree, root, &mut wanted, &mut |met, _| {
            match met {
                Met::Damage(..) => is_damaged = true,
                Met::Entry(tree, _, value) if OF_POINTERS.contains(&tree) => {
                    let is_same = data_pointer(value).is_ok_and(|found| found == *pointer);
                    is_found.set(is_found.get() || is_same);
                }
                _ => {}
            }
            Ok(())
        })?;
    }
    Ok(if is_found.get() || !is_damaged { Some(is_found.get()) } else { None })
}
