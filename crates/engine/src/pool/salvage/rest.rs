//! The lost parts of a state's trees, and the leaves that a search found to replace them.

use std::collections::BTreeMap;

use super::super::extents::parse_file_extent;
use super::{Salvage, SalvageDirectory, SalvageFile};
use crate::error::Result;
use crate::pool::namespace::entries::{self, Attributes, Kind, ROOT};
use crate::store::Store;
use crate::store::format::dead::parse_dead;
use crate::store::format::node::Node;
use crate::store::format::pointer::data_pointer;
use crate::store::recover::scan::{self, FoundNode, Scan};
use crate::store::space::account::SpaceAccount;
use crate::store::tree::walk::{Bounds, Met, Within, entries_within, walk_bounded};
use crate::store::trees::TreeId;
use crate::units::{FileId, Run, Sector, Txg};

/// The trees that lead to the bytes of files.
const WANTED: [TreeId; 4] = [TreeId::Names, TreeId::Dictionaries, TreeId::Map, TreeId::Patches];

/// The key ranges of unreadable parts, by tree.
#[derive(Debug, Default)]
pub(super) struct Lost(BTreeMap<TreeId, Vec<Bounds>>);

impl Lost {
    pub fn count(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    fn of(&self, tree: TreeId) -> &[Bounds] {
        self.0.get(&tree).map_or(&[], |lost| &lost[..])
    }

    /// Whether any part of a tree is lost.
    pub fn has_any(&self, tree: TreeId) -> bool {
        !self.of(tree).is_empty()
    }

    /// Whether an entry with this key may have been lost.
    fn has(&self, tree: TreeId, key: &[u8]) -> bool {
        self.of(tree).iter().any(|bounds| {
            *key >= bounds.from[..] && bounds.to.as_ref().is_none_or(|to| *key < to[..])
        })
    }
}

/// A leaf that contains lost keys.
#[derive(Debug)]
pub(super) struct Leaf {
    found: FoundNode,
    /// Its first key, and one above its last.
    bounds: Bounds,
    /// Whether it is certainly part of the state.
    pub is_live: bool,
}

/// An entry of a leaf that a search found.
pub(super) struct FoundEntry {
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    pub is_live: bool,
}

impl Salvage {
    /// Determines what is lost, searches the pool if anything is, and lists the files.
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

    /// Walks the wanted trees. Returns the end of each file's last record.
    fn walk(&mut self) -> Result<BTreeMap<FileId, u64>> {
        let mut ends = BTreeMap::new();
        let state = self.store.state();
        for tree in WANTED {
            let Some(root) = &state.superblock.roots[tree] else { continue };
            let lost = self.lost.0.entry(tree).or_default();
            walk_bounded(&self.store, tree, root, Txg(0), &mut |met, bounds| {
                match met {
                    Met::Damage(..) => lost.push(bounds.clone()),
                    Met::Entry(TreeId::Map, key, value) => note_end(&mut ends, key, value),
                    _ => {}
                }
                Ok(())
            })?;
        }
        Ok(ends)
    }

    /// Keeps only found leaves that may contain lost keys.
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
        // Leaves of the state go first, then the newest.
        self.leaves.sort_by_key(|leaf| {
            (std::cmp::Reverse((leaf.is_live, leaf.found.front.birth)), leaf.found.offset)
        });
    }

    fn read_leaf(&self, found: &FoundNode) -> Option<Node> {
        scan::read_found(&**self.store.device(), &self.store.guid(), found)
    }

    /// Returns the lost entries of a tree with keys within bounds, as far as leaves with them were
    /// found: entries of the state first, then from the newest leaf to the oldest.
    pub(super) fn found_entries(&self, tree: TreeId, wanted: &Bounds) -> Vec<FoundEntry> {
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

    /// Adopts the dictionaries that are part of the state. Those of older leaves are ignored: a
    /// number that was never committed may have been assigned again, and decompressing with the
    /// wrong dictionary goes unnoticed.
    fn find_dictionaries(&self) {
        for entry in self.found_entries(TreeId::Dictionaries, &Bounds::default()) {
            let pointer = data_pointer(&entry.value).ok().filter(|_| entry.is_live);
            if let Some(pointer) = pointer {
                self.store.adopt_dictionary(&entry.key, &pointer);
            }
        }
    }

    fn list_files(&mut self, mut ends: BTreeMap<FileId, u64>) {
        let root = self.store.state().superblock.roots[TreeId::Names].clone();
        let Within { entries, lost } =
            entries_within(&self.store, TreeId::Names, root.as_ref(), &Bounds::default());
        let mut names: BTreeMap<Vec<u8>, (Vec<u8>, bool)> =
            entries.into_iter().map(|(key, value)| (key, (value, true))).collect();
        for entry in self.found_entries(TreeId::Names, &Bounds::default()) {
            names.entry(entry.key).or_insert((entry.value, entry.is_live));
        }
        for entry in self.found_entries(TreeId::Map, &Bounds::default()) {
            note_end(&mut ends, &entry.key, &entry.value);
        }
        let mut files: BTreeMap<FileId, Told> = BTreeMap::new();
        let mut places: Places = BTreeMap::new();
        for (key, (value, is_current)) in &names {
            if let Some((directory, entry)) = entries::parse_entry_of(key, value) {
                let told = files.entry(entry.file).or_default();
                told.name.get_or_insert_with(|| entry.display_name().into());
                told.kind.get_or_insert(entry.kind);
                // Whatever has names in it is one.
                files.entry(directory).or_default().kind = Some(Kind::Directory);
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
        for (id, Told { name, kind, attributes, target }) in files {
            let end = ends.get(&id).copied().unwrap_or(0);
            let kind = kind.unwrap_or(Kind::File);
            let nothing = Attributes { len: end, ..Attributes::new(kind, ROOT) };
            let (mut attributes, is_current) = attributes.unwrap_or((nothing, false));
            let mut paths = paths_of(&places, id);
            let is_led_to = paths.iter().all(|(_, is_from_root)| *is_from_root);
            // A file still being received has no name.
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

/// The directories in which files and directories have names, with these names.
type Places = BTreeMap<FileId, Vec<(FileId, Vec<u8>)>>;

/// Returns, for each name of a file, its path as far up as it is known, and whether that reaches
/// the root.
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

/// The entries found for a file besides its records.
#[derive(Default)]
struct Told {
    name: Option<String>,
    /// What a name says that it is.
    kind: Option<Kind>,
    target: Option<Vec<u8>>,
    /// The attributes, and whether they belong to the state.
    attributes: Option<(Attributes, bool)>,
}

fn note_end(ends: &mut BTreeMap<FileId, u64>, key: &[u8], value: &[u8]) {
    if let Ok((file, extent)) = parse_file_extent(TreeId::Map, key, value) {
        let end = ends.entry(file).or_default();
        *end = extent.end().max(*end);
    }
}

/// Returns the free runs of a state, and those that only its snapshots reach, in order; `None` if
/// they are not all known.
fn free_runs(store: &Store) -> Option<Vec<Run>> {
    let state = store.state();
    let mut free = state.superblock.windows.clone();
    for tree in [TreeId::Space, TreeId::Freed, TreeId::Dead] {
        let root = state.superblock.roots[tree].as_ref();
        let Within { entries, lost } = entries_within(store, tree, root, &Bounds::default());
        if !lost.is_empty() {
            return None;
        }
        for (key, value) in entries {
            free.push(match tree {
                TreeId::Dead => parse_dead(&key, &value).ok()?.run,
                _ => SpaceAccount::free_run(tree, &key, &value).ok()?,
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
