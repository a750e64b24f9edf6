//! The trees of a pool, and a container with one value for each.

use std::fmt;
use std::ops::{Index, IndexMut};

use crate::error::Location;

/// A tree of a pool. Its number on disk is the number here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum TreeId {
    /// Names, attributes and properties of files and directories.
    Names = 0,
    /// Records, by file and offset.
    Map = 1,
    /// Patches, by file and offset.
    Patches = 2,
    /// Free runs that may be reused.
    Space = 3,
    /// Free runs that may be reused once the txg that freed them is durable.
    Freed = 4,
    /// Reference counts of shared extents.
    Refs = 5,
    /// Dictionaries, by number.
    Dictionaries = 6,
    /// The roots of all other trees, for a search of a pool without superblocks.
    Roots = 7,
    /// Extents that only snapshots reach.
    Dead = 8,
    /// Snapshots, by number.
    Snapshots = 9,
    /// The dedup index: sorted runs of hints about where content is stored.
    Index = 10,
}

impl TreeId {
    /// The number of trees.
    pub const COUNT: usize = 11;
    /// Every tree, in the order of their numbers.
    pub const ALL: [TreeId; TreeId::COUNT] = [
        TreeId::Names,
        TreeId::Map,
        TreeId::Patches,
        TreeId::Space,
        TreeId::Freed,
        TreeId::Refs,
        TreeId::Dictionaries,
        TreeId::Roots,
        TreeId::Dead,
        TreeId::Snapshots,
        TreeId::Index,
    ];
    /// The trees whose values are pointers to extents.
    pub const OF_POINTERS: [TreeId; 4] =
        [TreeId::Map, TreeId::Patches, TreeId::Dictionaries, TreeId::Index];
    /// The trees that a snapshot keeps.
    pub const OF_SNAPSHOTS: [TreeId; 4] =
        [TreeId::Names, TreeId::Map, TreeId::Patches, TreeId::Dictionaries];

    /// Returns the tree with this number on disk, or `None` for a number unknown to this version.
    pub fn from_stored(number: u8) -> Option<TreeId> {
        TreeId::ALL.get(usize::from(number)).copied()
    }

    /// The number on disk.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The name used in messages and in the format document.
    pub fn name(self) -> &'static str {
        match self {
            TreeId::Names => "names",
            TreeId::Map => "map",
            TreeId::Patches => "patches",
            TreeId::Space => "space",
            TreeId::Freed => "freed",
            TreeId::Refs => "refs",
            TreeId::Dictionaries => "dictionaries",
            TreeId::Roots => "roots",
            TreeId::Dead => "dead",
            TreeId::Snapshots => "snapshots",
            TreeId::Index => "index",
        }
    }
}

impl TreeId {
    /// This tree as the place of an error.
    pub(crate) fn location(self) -> Location {
        Location::Tree(self.name())
    }

    /// The entry of this tree with this key, as the place of an error.
    pub(crate) fn location_of(self, key: &[u8]) -> Location {
        Location::Entry { tree: self.name(), key: key.into() }
    }
}

impl fmt::Display for TreeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One value for each tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PerTree<T>([T; TreeId::COUNT]);

impl<T> PerTree<T> {
    /// Calls `make` for the value of each tree.
    pub fn from_fn(mut make: impl FnMut(TreeId) -> T) -> PerTree<T> {
        PerTree(TreeId::ALL.map(&mut make))
    }

    /// Returns the values in the order of the trees' numbers.
    pub fn values(&self) -> &[T; TreeId::COUNT] {
        &self.0
    }

    /// Returns the values for changing, in the order of the trees' numbers.
    pub fn values_mut(&mut self) -> &mut [T; TreeId::COUNT] {
        &mut self.0
    }

    /// Returns the values of several trees for changing; `None` if a tree is named twice.
    pub fn disjoint_mut<const N: usize>(&mut self, trees: [TreeId; N]) -> Option<[&mut T; N]> {
        self.0.get_disjoint_mut(trees.map(|tree| usize::from(tree.number()))).ok()
    }

    /// Returns each tree with its value.
    pub fn iter(&self) -> impl Iterator<Item = (TreeId, &T)> {
        TreeId::ALL.into_iter().zip(&self.0)
    }
}

impl<T> Default for PerTree<Option<T>> {
    fn default() -> Self {
        PerTree([const { None }; TreeId::COUNT])
    }
}

impl<T> Index<TreeId> for PerTree<T> {
    type Output = T;

    fn index(&self, tree: TreeId) -> &T {
        &self.0[usize::from(tree.number())]
    }
}

impl<T> IndexMut<TreeId> for PerTree<T> {
    fn index_mut(&mut self, tree: TreeId) -> &mut T {
        &mut self.0[usize::from(tree.number())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_distinct_and_read_back() {
        for (number, tree) in (0..).zip(TreeId::ALL) {
            assert_eq!(tree.number(), number);
            assert_eq!(TreeId::from_stored(number), Some(tree));
        }
        assert_eq!(TreeId::from_stored(TreeId::COUNT as u8), None);
        let names: std::collections::BTreeSet<_> = TreeId::ALL.map(TreeId::name).into();
        assert_eq!(names.len(), TreeId::COUNT);
    }

    #[test]
    fn each_tree_has_a_value_of_its_own() {
        let mut values = PerTree::from_fn(TreeId::number);
        values[TreeId::Dead] = 77;
        let expected =
            TreeId::ALL.map(|tree| if tree == TreeId::Dead { 77 } else { tree.number() });
        assert_eq!(values.values(), &expected);
        assert!(values.iter().all(|(tree, value)| *value == values[tree]));
    }
}
