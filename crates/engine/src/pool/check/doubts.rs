//! Decides whether a problem found beside a writer is damage or was only overtaken.
//!
//! If a part of a state that is no longer the newest cannot be read, its space may have been
//! reused. But space is reused only after it was freed, and freed data never comes back with the
//! same birth. So an extent that the newest state still refers to by the very same pointer was in
//! use all the time, and failing to read it means damage. An extent that it no longer refers to is
//! not part of it and not a problem. One look per problem suffices, so a check ends, whoever
//! writes.

use std::cell::Cell;

use super::super::extents::file_extent_key;
use crate::error::Result;
use crate::store::format::pointer::Pointer;
use crate::store::format::pointer::data_pointer;
use crate::store::tree::walk::{Bounds, Met, walk_where};
use crate::store::trees::TreeId;
use crate::store::{State, Store};
use crate::units::FileId;

/// How often to look for a part of the newest state while a writer moves on.
const LOOK_COUNT_MAX: usize = 8;

/// The origin of a problem that may have been overtaken.
#[derive(Clone, Debug)]
pub(super) enum Doubt {
    /// An unreadable node or extent, and where it was referred to.
    Unread { trees: Vec<TreeId>, bounds: Bounds, pointer: Box<Pointer> },
    /// An unreadable part of the snapshot with this number.
    Snapshot(u64),
    /// The origin is unknown.
    Unknown,
}

impl Doubt {
    /// Creates the doubt about a node of a tree.
    pub fn of_node(tree: TreeId, bounds: &Bounds, pointer: Option<Pointer>) -> Doubt {
        match pointer {
            Some(pointer) => {
                let pointer = Box::new(pointer);
                Doubt::Unread { trees: vec![tree], bounds: bounds.clone(), pointer }
            }
            None => Doubt::Unknown,
        }
    }

    /// Creates the doubt about a record or patch, or about a dictionary or part of the index.
    pub fn of_record(file: Option<FileId>, start: u64, pointer: &Pointer) -> Doubt {
        let pointer = Box::new(pointer.clone());
        let Some(file) = file else {
            let bounds = Bounds::default();
            return Doubt::Unread {
                trees: vec![TreeId::Dictionaries, TreeId::Index],
                bounds,
                pointer,
            };
        };
        let key = file_extent_key(file, start).to_vec();
        let behind = [&key[..], &[0]].concat();
        let bounds = Bounds { from: key, to: Some(behind) };
        Doubt::Unread { trees: vec![TreeId::Map, TreeId::Patches], bounds, pointer }
    }

    /// Whether the newest state contains the part in doubt, which is then damaged.
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
                        // The path to it is damaged itself.
                        return Ok(true);
                    }
                }
                Ok(false)
            }
        }
    }
}

/// Whether a state refers to something within these bounds by this very pointer; `None` if that
/// cannot be read.
fn is_referred_to(
    store: &Store,
    state: &State,
    trees: &[TreeId],
    bounds: &Bounds,
    pointer: &Pointer,
) -> Result<Option<bool>> {
    let is_found = Cell::new(false);
    let mut is_damaged = false;
    for tree in trees {
        let Some(root) = &state.superblock.roots[*tree] else { continue };
        let mut wanted = |node: &Pointer, below: &Bounds| {
            is_found.set(is_found.get() || node == pointer);
            !is_found.get() && below.meets(bounds)
        };
        walk_where(store, *tree, root, &mut wanted, &mut |met, _| {
            match met {
                Met::Damage(..) => is_damaged = true,
                Met::Entry(tree, _, value) if TreeId::OF_POINTERS.contains(&tree) => {
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
