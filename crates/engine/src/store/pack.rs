//! Packs the trees: merges neighbouring nodes into longer ones, in bounded transactions.
//!
//! Nodes are short, as a small commit writes all that it changes anew. What lies still for long,
//! the names and pointers of an archive, takes about half the space in longer ones, strongly
//! compressed. A transaction that inserts or replaces something in a packed node splits it, until
//! its parts are short again. One that only removes leaves it whole, and so do those that move
//! things without changing them.
//!
//! Nodes that a snapshot holds stay as they are: they would remain beside their copies.

use crate::error::Result;
use crate::store::compact::held_in;
use crate::store::format::node::PACKED_PAYLOAD_MAX;
use crate::store::format::pointer::Pointer;
use crate::store::format::trees::TreeId;
use crate::store::tree::{Bound, Mergeable, NodeSource, TxnTree};
use crate::store::txn::Txn;
use crate::store::{State, Store};
use crate::units::{FileId, Txg};

/// The trees that are packed. The others are short, or change with every commit.
pub const PACKED_TREES: [TreeId; 4] = [TreeId::Names, TreeId::Map, TreeId::Patches, TreeId::Refs];

/// Nodes of one level of a tree, and the key from which on they are examined.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PackCursor {
    /// The tree.
    pub tree: TreeId,
    /// The level of the nodes that are merged.
    pub level: u8,
    /// Where to go on.
    pub key: Vec<u8>,
}

/// Which files may have packed leaves of their own.
pub type MayPack<'a> = dyn Fn(FileId) -> bool + 'a;

impl Store {
    /// Returns the levels of a tree, in the order in which packing passes over them: those above
    /// the leaves first, so that many leaves have one parent, and again when these are fewer.
    pub fn pack_levels(&self, state: &State, tree: TreeId) -> Result<Vec<u8>> {
        let root = state.trees[tree].height(&mut &*self)?.unwrap_or(0);
        Ok((0..root).rev().chain(1..root).collect())
    }

    /// Searches up to `count` parents of a state for nodes to merge. Returns where to go on, and
    /// whether there are any there; `None` if the search has ended without any.
    pub fn find_packable(
        &self,
        state: &State,
        cursor: &PackCursor,
        count: usize,
        may_pack: &MayPack<'_>,
    ) -> Result<Option<(PackCursor, bool)>> {
        let newest = self.holders(state)?.newest();
        let mut at = cursor.clone();
        for _ in 0..count {
            let found = mergeable(&state.trees[at.tree], &mut &*self, &at, newest, may_pack)?;
            if found.len > 0 {
                return Ok(Some((at, true)));
            }
            let Some(next) = found.next else { return Ok(None) };
            at.key = next;
        }
        Ok(Some((at, false)))
    }
}

impl Txn {
    /// Leaves packed nodes as long as they are, and packs all others well: for transactions that
    /// change where things are, not what they are.
    pub fn keep_packed(&mut self) {
        self.core.keeps_packed = true;
    }

    /// Merges nodes from the cursor on, until they had about `len` bytes. Returns how many bytes
    /// they had, and where to go on.
    pub fn pack(
        &mut self,
        mut at: PackCursor,
        len: usize,
        may_pack: &MayPack<'_>,
    ) -> Result<(usize, Option<PackCursor>)> {
        let newest = self.core.holds.holders.newest();
        let mut merged = 0;
        loop {
            let tree = &mut self.trees[at.tree];
            let found = mergeable(tree, &mut self.core, &at, newest, may_pack)?;
            if found.len > 0 {
                tree.merge(&mut self.core, &at.key, &found, PACKED_PAYLOAD_MAX)?;
                self.core.changed = true;
                merged += found.len;
            }
            let Some(next) = found.next else { return Ok((merged, None)) };
            at.key = next;
            if merged >= len {
                return Ok((merged, Some(at)));
            }
        }
    }
}

/// Finds what to merge below one parent: nodes that no snapshot holds, and of leaves with nothing
/// but pointers of one file only those of files that may have them.
fn mergeable(
    tree: &TxnTree,
    source: &mut impl NodeSource,
    at: &PackCursor,
    newest: Txg,
    may_pack: &MayPack<'_>,
) -> Result<Mergeable> {
    let held = held_in(at.tree, newest);
    let is_of_files = matches!(at.tree, TreeId::Map | TreeId::Patches);
    let may = |place: Option<&Pointer>, from: &[u8], to: Bound<'_>| {
        let file = file_of(from).filter(|file| to.and_then(file_of) == Some(*file));
        let is_alone = file.filter(|_| is_of_files && at.level == 0);
        place.is_none_or(|place| place.birth > held) && is_alone.is_none_or(may_pack)
    };
    tree.mergeable(source, at.level, &at.key, PACKED_PAYLOAD_MAX, &may)
}

/// The file that a key of the map or of the patches belongs to.
fn file_of(key: &[u8]) -> Option<FileId> {
    key.first_chunk().map(|file| FileId(u64::from_be_bytes(*file)))
}
