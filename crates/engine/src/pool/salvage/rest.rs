//! What is lost of a state's trees, and what a search found in its place.

use std::collections::BTreeMap;

use super::super::extents::parse_piece;
use super::{Salvage, SalvageDirectory, SalvageFile};
use crate::error::Result;
use crate::pool::namespace::entries::{self, Attributes, Kind, ROOT};
use crate::store::Store;
use crate::store::format::node::Node;
use crate::store::format::pointer::data_pointer;
use crate::store::recover::scan::{self, FoundNode, Scan};
use crate::store::recover::verify::{Bounds, Met, Space, Within, entries_within, walk_bounded};
use crate::store::snapshots::dead::parse_dead;
use crate::store::trees::{DEAD, DICTIONARIES, FREED, MAP, NAMES, PATCHES, SPACE};
use crate::units::{FileId, Run, Sector, Txg};

/// The trees that lead to the bytes of files.
const WANTED: [u8; 4] = [NAMES, DICTIONARIES, MAP, PATCHES];

/// The keys of what cannot be read, by tree.
#[derive(Debug, Default)]
pub(super) struct Lost(BTreeMap<u8, Vec<Bounds>>);

impl Lost {
    pub fn count(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    fn of(&self, tree: u8) -> &[Bounds] {
        self.0.get(&tree).map_or(&[], |lost| &lost[..])
    }

    /// Whether any part of a tree is lost.
    pub fn has_any(&self, tree: u8) -> bool {
        !self.of(tree).is_empty()
    }

    /// Whether an entry with this key may have been lost.
    fn has(&self, tree: u8, key: &[u8]) -> bool {
        self.of(tree).iter().any(|bounds| {
            *key >= bounds.from[..] && bounds.to.as_ref().is_none_or(|to| *key < to[..])
        })
    }
}

/// A leaf with keys that were lost.
#[derive(Debug)]
pub(super) struct Leaf {
    found: FoundNode,
    /// Its first key, and one above its last.
    bounds: Bounds,
    /// It is part of the state, for certain.
    pub is_live: bool,
}

/// An entry of a leaf that a search found.
pub(super) struct FoundEntry {
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    pub is_live: bool,
}

impl Salvage {
    /// Finds out what is lost, searches the pool where anything is, and lists the files.
    pub(super) fn look_for_the_rest(
        &mut self,
        searched: Option<Scan>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let ends = self.walk()?;
        self.refused = searched.as_ref().map_or(0, |scan| scan.refused);
        if self.lost.count() > 0 {
            let mut scan = match searched {
                Some(scan) => scan,
                None => scan::scan(&**self.store.device(), progress)?,
            };
            self.refused = scan.refused;
            scan.keep_only(&self.store.guid());
            self.keep_leaves(scan);
            self.find_dictionaries();
        }
        self.list_files(ends);
        Ok(())
    }

    /// Walks the trees that are wanted. Returns where the last record of each file ends.
    fn walk(&mut self) -> Result<BTreeMap<FileId, u64>> {
        let mut ends = BTreeMap::new();
        let state = self.store.state();
        for tree in WANTED {
            let Some(root) = &state.superblock.roots[usize::from(tree)] else { continue };
            let lost = self.lost.0.entry(tree).or_default();
            walk_bounded(&self.store, tree, root, Txg(0), &mut |met, bounds| {
                match met {
                    Met::Damage(..) => lost.push(bounds.clone()),
                    Met::Entry(MAP, key, value) => note_end(&mut ends, key, value),
                    _ => {}
                }
                Ok(())
            })?;
        }
        Ok(ends)
    }

    /// Keeps of what was found the leaves that may hold what is lost.
    fn keep_leaves(&mut self, scan: Scan) {
        let state = self.store.state();
        let free = if self.is_certain() { free_runs(&self.store) } else { None };
        let end = state.superblock.end;
        let ashift = self.store.ashift();
        for found in scan.nodes {
            let front = &found.front;
            let lost = self.lost.of(front.tree);
            if front.level > 0 || front.birth > state.txg() || lost.is_empty() {
                continue;
            }
            let Some(node) = self.read_leaf(&found) else { continue };
            let mut above = node.key(node.len() - 1).to_vec();
            above.push(0);
            let bounds = Bounds { from: node.key(0).to_vec(), to: Some(above) };
            if !lost.iter().any(|lost| lost.meets(&bounds)) {
                continue;
            }
            let sectors = (front.len as u64).div_ceil(1 << ashift);
            let run = Run { start: Sector(found.offset >> ashift), sectors };
            let is_live = found.offset.is_multiple_of(1 << ashift)
                && run.end() <= end
                && free.as_ref().is_some_and(|free| is_used(free, run));
            self.leaves.push(Leaf { found, bounds, is_live });
        }
        // What is part of the state goes first, then the newest.
        self.leaves.sort_by_key(|leaf| {
            (std::cmp::Reverse((leaf.is_live, leaf.found.front.birth)), leaf.found.offset)
        });
    }

    fn read_leaf(&self, found: &FoundNode) -> Option<Node> {
        scan::read_found(&**self.store.device(), &self.store.guid(), found)
    }

    /// The entries that were lost of a tree, with keys within bounds, as far as leaves with them were
    /// found: those of the state first, then from the newest leaf to the oldest.
    pub(super) fn found_entries(&self, tree: u8, wanted: &Bounds) -> Vec<FoundEntry> {
        let mut entries = Vec::new();
        let leaves = self.leaves.iter().filter(|leaf| leaf.found.front.tree == tree);
        for leaf in leaves.filter(|leaf| leaf.bounds.meets(wanted)) {
            let Some(node) = self.read_leaf(&leaf.found) else { continue };
            for index in 0..node.len() {
                let key = node.key(index);
                let is_wanted = *key >= wanted.from[..]
                    && wanted.to.as_ref().is_none_or(|to| *key < to[..])
                    && self.lost.has(tree, key);
                if is_wanted {
                    let (key, value) = (key.to_vec(), node.value(index).to_vec());
                    entries.push(FoundEntry { key, value, is_live: leaf.is_live });
                }
            }
        }
        entries
    }

    /// Takes up the dictionaries that are part of the state. Those of older leaves are left: a number
    /// that was never committed may have been given again, and decompressing with another dictionary
    /// is not noticed.
    fn find_dictionaries(&self) {
        for entry in self.found_entries(DICTIONARIES, &Bounds::default()) {
            let pointer = data_pointer(&entry.value).ok().filter(|_| entry.is_live);
            if let Some(pointer) = pointer {
                self.store.adopt_dictionary(&entry.key, &pointer);
            }
        }
    }

    fn list_files(&mut self, mut ends: BTreeMap<FileId, u64>) {
        let root = self.store.state().superblock.roots[usize::from(NAMES)].clone();
        let Within { entries, lost } =
            entries_within(&self.store, NAMES, root.as_ref(), &Bounds::default());
        let mut names: BTreeMap<Vec<u8>, (Vec<u8>, bool)> =
            entries.into_iter().map(|(key, value)| (key, (value, true))).collect();
        for entry in self.found_entries(NAMES, &Bounds::default()) {
            names.entry(entry.key).or_insert((entry.value, entry.is_live));
        }
        for entry in self.found_entries(MAP, &Bounds::default()) {
            note_end(&mut ends, &entry.key, &entry.value);
        }
        let mut files: BTreeMap<FileId, Told> = BTreeMap::new();
        let mut places: Places = BTreeMap::new();
        for (key, (value, is_current)) in &names {
            if let Some((directory, entry)) = entries::parse_entry_of(key, value) {
                let name = &mut files.entry(entry.file).or_default().name;
                name.get_or_insert_with(|| entry.display_name().into());
                places.entry(entry.file).or_default().push((directory, entry.name));
            } else if let Some(link) = entries::parse_target_of(key) {
                // The parts come in order.
                let target = &mut files.entry(link).or_default().target;
                target.get_or_insert_default().extend_from_slice(value);
            } else if let Some((file, attributes)) = entries::parse_attributes_of(key, value) {
                files.entry(file).or_default().attributes = Some((attributes, *is_current));
            }
        }
        if !lost.is_empty() || root.is_none() || !self.is_certain() {
            for file in ends.keys() {
                files.entry(*file).or_default();
            }
        }
        for (id, Told { name, attributes, target }) in files {
            let end = ends.get(&id).copied().unwrap_or(0);
            let nothing = Attributes { len: end, ..Attributes::new(Kind::File, ROOT) };
            let (mut attributes, is_current) = attributes.unwrap_or((nothing, false));
            let mut paths = paths_of(&places, id);
            let is_led_to = paths.iter().all(|(_, is_from_root)| *is_from_root);
            // What is still being received has none.
            let has_all_names = is_led_to && paths.len() >= attributes.link_count as usize;
            let (path, _) = if paths.is_empty() { Default::default() } else { paths.remove(0) };
            if attributes.kind == Kind::Directory {
                let has_all_names = is_led_to && (id == ROOT || !path.is_empty());
                self.directories.push(SalvageDirectory { id, path, has_all_names });
                continue;
            }
            let other_paths = paths.into_iter().map(|(path, _)| path).collect();
            let known_len = (!is_current).then_some(end);
            if !is_current {
                attributes.len = attributes.len.max(end);
            }
            let target = target.filter(|_| attributes.kind == Kind::Symlink);
            self.files.push(SalvageFile {
                id,
                name,
                path,
                other_paths,
                has_all_names,
                target,
                attributes,
                known_len,
            });
        }
        self.directories.sort_by_key(|directory| directory.path.len());
    }
}

/// The directories that files and directories have names in, with these.
type Places = BTreeMap<FileId, Vec<(FileId, Vec<u8>)>>;

/// For each name of a file the names from the root down to it, as far up as they are known, and whether that is
/// up to the root.
fn paths_of(places: &Places, file: FileId) -> Vec<(Vec<Vec<u8>>, bool)> {
    let of_name = |(directory, name): &(FileId, Vec<u8>)| {
        let (mut path, mut at) = (vec![name.clone()], *directory);
        while at != ROOT
            && let Some((above, name)) = places.get(&at).and_then(|names| names.first())
            && path.len() <= entries::DEPTH_MAX
        {
            path.push(name.clone());
            at = *above;
        }
        path.reverse();
        (path, at == ROOT)
    };
    places.get(&file).map_or(Vec::new(), |names| names.iter().map(of_name).collect())
}

/// What was found of a file besides its records.
#[derive(Default)]
struct Told {
    name: Option<String>,
    target: Option<Vec<u8>>,
    /// With whether they are those of the state.
    attributes: Option<(Attributes, bool)>,
}

fn note_end(ends: &mut BTreeMap<FileId, u64>, key: &[u8], value: &[u8]) {
    if let Ok((file, piece)) = parse_piece(MAP, key, value) {
        let end = ends.entry(file).or_default();
        *end = piece.end().max(*end);
    }
}

/// The free runs of a state, and those that only its snapshots reach, in order; `None` where they are not
/// all known.
fn free_runs(store: &Store) -> Option<Vec<Run>> {
    let state = store.state();
    let mut free = state.superblock.windows.clone();
    for tree in [SPACE, FREED, DEAD] {
        let root = state.superblock.roots[usize::from(tree)].as_ref();
        let Within { entries, lost } = entries_within(store, tree, root, &Bounds::default());
        if !lost.is_empty() {
            return None;
        }
        for (key, value) in entries {
            free.push(match tree {
                DEAD => parse_dead(&key, &value).ok()?.run,
                _ => Space::free_run(tree, &key, &value).ok()?,
            });
        }
    }
    free.sort_unstable();
    Some(free)
}

fn is_used(free: &[Run], run: Run) -> bool {
    let next = free.partition_point(|free| free.end() <= run.start);
    free.get(next).is_none_or(|free| free.start >= run.end())
}
