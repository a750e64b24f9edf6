//! A model of a file system, in maps.

use std::collections::BTreeMap;

use crate::pool::{Attributes, DeviceNumber, FileOwner, Kind};
use crate::units::FileId;

/// A file, directory or link.
#[derive(Clone, Debug)]
pub struct Node {
    pub kind: Kind,
    pub device: DeviceNumber,
    pub mode: u32,
    pub owner: Option<FileOwner>,
    /// The bytes of a file, the target of a link.
    pub content: Vec<u8>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Node {
    pub fn new(attributes: &Attributes, content: Vec<u8>) -> Node {
        let Attributes { kind, device, mode, owner, .. } = *attributes;
        Node { kind, device, mode, owner, content, xattrs: BTreeMap::new() }
    }
}

/// The whole file system.
pub struct Model {
    root: FileId,
    nodes: BTreeMap<FileId, Node>,
    entries: BTreeMap<(FileId, Vec<u8>), FileId>,
}

impl Model {
    pub fn new(root: FileId) -> Model {
        let node = Node::new(&Attributes::new(Kind::Directory, root), Vec::new());
        Model { root, nodes: BTreeMap::from([(root, node)]), entries: BTreeMap::new() }
    }

    pub fn node(&mut self, file: FileId) -> &mut Node {
        self.nodes.get_mut(&file).expect("it is in the model")
    }

    pub fn of_kind(&self, kind: Kind) -> Vec<FileId> {
        self.nodes.iter().filter(|(_, node)| node.kind == kind).map(|(file, _)| *file).collect()
    }

    pub fn lookup(&self, directory: FileId, name: &[u8]) -> Option<FileId> {
        self.entries.get(&(directory, name.to_vec())).copied()
    }

    pub fn add(&mut self, directory: FileId, name: &[u8], file: FileId, node: Node) {
        self.nodes.insert(file, node);
        self.entries.insert((directory, name.to_vec()), file);
    }

    pub fn write(&mut self, file: FileId, offset: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let content = &mut self.node(file).content;
        content.resize(content.len().max(offset + bytes.len()), 0);
        content[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn inside(&self, directory: FileId) -> Vec<(Vec<u8>, FileId)> {
        let all = self.entries.iter().filter(|((parent, _), _)| *parent == directory);
        all.map(|((_, name), file)| (name.clone(), *file)).collect()
    }

    pub fn unlink(&mut self, directory: FileId, name: &[u8]) -> Option<()> {
        let file = self.lookup(directory, name)?;
        self.inside(file).is_empty().then_some(())?;
        self.entries.remove(&(directory, name.to_vec()));
        if !self.entries.values().any(|other| *other == file) {
            self.nodes.remove(&file);
        }
        Some(())
    }

    pub fn remove_tree(&mut self, directory: FileId, name: &[u8]) -> Option<()> {
        let file = self.lookup(directory, name)?;
        for (inner, _) in self.inside(file) {
            self.remove_tree(file, &inner)?;
        }
        self.unlink(directory, name)
    }

    pub fn link(&mut self, file: FileId, directory: FileId, name: &[u8]) -> Option<()> {
        let fits =
            self.node(file).kind != Kind::Directory && self.lookup(directory, name).is_none();
        fits.then_some(())?;
        self.entries.insert((directory, name.to_vec()), file);
        Some(())
    }

    fn is_inside(&self, mut file: FileId, directory: FileId) -> bool {
        while file != directory {
            let above = self.entries.iter().find(|(_, inner)| **inner == file);
            let Some(((parent, _), _)) = above else { return false };
            file = *parent;
        }
        true
    }

    pub fn rename(&mut self, from: (FileId, &[u8]), to: (FileId, &[u8])) -> Option<()> {
        let file = self.lookup(from.0, from.1)?;
        let is_directory = self.node(file).kind == Kind::Directory;
        (!is_directory || !self.is_inside(to.0, file)).then_some(())?;
        if let Some(old) = self.lookup(to.0, to.1) {
            if old == file {
                return Some(());
            }
            (is_directory == (self.node(old).kind == Kind::Directory)).then_some(())?;
            self.unlink(to.0, to.1)?;
        }
        self.entries.remove(&(from.0, from.1.to_vec()));
        self.entries.insert((to.0, to.1.to_vec()), file);
        Some(())
    }

    pub fn exchange(&mut self, one: (FileId, &[u8]), other: (FileId, &[u8])) -> Option<()> {
        let (first, second) = (self.lookup(one.0, one.1)?, self.lookup(other.0, other.1)?);
        for (file, to) in [(first, other.0), (second, one.0)] {
            let is_directory = self.node(file).kind == Kind::Directory;
            let fits = first == second || !is_directory || !self.is_inside(to, file);
            fits.then_some(())?;
        }
        self.entries.insert((one.0, one.1.to_vec()), second);
        self.entries.insert((other.0, other.1.to_vec()), first);
        Some(())
    }

    /// Returns every path, a directory before its entries.
    pub fn paths(&self) -> Vec<(Vec<u8>, FileId)> {
        let mut found = Vec::new();
        self.paths_below(self.root, &[], &mut found);
        found
    }

    fn paths_below(&self, directory: FileId, path: &[u8], found: &mut Vec<(Vec<u8>, FileId)>) {
        for (name, file) in self.inside(directory) {
            let slash: &[u8] = if path.is_empty() { b"" } else { b"/" };
            let inner = [path, slash, &name].concat();
            found.push((inner.clone(), file));
            self.paths_below(file, &inner, found);
        }
    }
}
