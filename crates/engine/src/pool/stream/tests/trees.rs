//! Random trees of files, and comparisons between them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::device::Device;
use crate::pool::namespace::entries;
use crate::pool::{Attributes, CreateOptions, DeviceNumber, FileOwner, Kind, Pool, Property, ROOT};
use crate::store::Durability;
use crate::store::trees::TreeId;
use crate::test_common::{Rng, first_difference, options, read_all};
use crate::units::{Ashift, FileId};

pub fn new_pool(device: &Arc<dyn Device>, ashift: u8, properties: &[(Property, &str)]) -> Pool {
    let mut properties: Vec<_> =
        properties.iter().map(|(property, text)| (*property, (*text).to_string())).collect();
    properties.push((Property::RecordSize, "16K".into()));
    let guid = [ashift; 16];
    let create = CreateOptions {
        guid,
        ashift: Ashift::new(ashift).unwrap(),
        properties,
        file_name: None,
        file_mode: 0,
    };
    Pool::create(Arc::clone(device), &create, options(1 << 20)).unwrap()
}

/// The expected content of the files of a pool.
#[derive(Clone, Default)]
pub struct Tree {
    pub files: BTreeMap<FileId, Vec<u8>>,
    pub directories: Vec<FileId>,
}

impl Tree {
    /// Asserts that the tree at a path of another pool contains the same files.
    pub fn assert_read(&self, pool: &Pool, path: &[u8], seed: u64) {
        let root = pool.resolve(path).unwrap().file;
        let mut met: Vec<Vec<u8>> = Vec::new();
        pool.walk(root, &mut |_, entry, _| {
            if entry.kind == Kind::File {
                met.push(read_all(&pool.file(entry.file).unwrap()).unwrap());
            }
            Ok(true)
        })
        .unwrap();
        for (file, bytes) in &self.files {
            assert!(met.contains(bytes), "seed {seed}: file {} is not there", file.0);
        }
    }
}

fn name(rng: &mut Rng) -> Vec<u8> {
    let odd: [&[u8]; 5] = [b"a", b"\xff\xfe", b" ", b"-x", b"caf\xc3\xa9"];
    match rng.below(5) {
        0 => rng.pick(&odd).to_vec(),
        _ => format!("n{}", rng.below(200)).into_bytes(),
    }
}

fn attributes(kind: Kind, rng: &mut Rng) -> Attributes {
    Attributes {
        mode: rng.below(0o1000) as u32,
        owner: rng.one_in(2).then(|| FileOwner { uid: rng.below(9) as u32, gid: 7 }),
        modified_ns: rng.below(1 << 60) as i64,
        created_ns: rng.below(1 << 60) as i64,
        accessed_ns: rng.below(1 << 60) as i64,
        changed_ns: rng.below(1 << 60) as i64,
        ..Attributes::new(kind, ROOT)
    }
}

/// Makes `count` random changes.
pub fn grow(pool: &Pool, tree: &mut Tree, rng: &mut Rng, count: usize) {
    if tree.directories.is_empty() {
        tree.directories.push(ROOT);
    }
    for _ in 0..count {
        let directory = tree.directories[rng.below(tree.directories.len() as u64) as usize];
        match rng.below(17) {
            0 | 1 => {
                let like = attributes(Kind::Directory, rng);
                if let Ok(made) = pool.edit(0, |edit| edit.create(directory, &name(rng), &like)) {
                    tree.directories.push(made);
                }
            }
            2..=4 => {
                let like = attributes(Kind::File, rng);
                if let Ok(made) = pool.edit(0, |edit| edit.create(directory, &name(rng), &like)) {
                    tree.files.insert(made, Vec::new());
                    write(pool, tree, rng, made);
                }
            }
            5 if rng.one_in(2) => {
                let kinds = [Kind::Fifo, Kind::Socket, Kind::CharDevice, Kind::BlockDevice];
                let mut like = attributes(rng.pick(&kinds), rng);
                if like.kind.is_device() {
                    like.device = DeviceNumber { major: 8, minor: rng.below(1 << 20) as u32 };
                }
                let _ = pool.edit(0, |edit| edit.create(directory, &name(rng), &like));
            }
            5 => {
                let (len, like) = (1 + rng.below(3000) as usize, attributes(Kind::Symlink, rng));
                let target = rng.text(len);
                let _ = pool.edit(0, |edit| edit.symlink(directory, &name(rng), &target, &like));
            }
            6 => {
                if let Some(file) = any_file(tree, rng) {
                    let _ = pool.edit(0, |edit| edit.link(file, directory, &name(rng)));
                }
            }
            7 => {
                let file = any_file(tree, rng).filter(|_| rng.one_in(2)).unwrap_or(directory);
                let (len, xattr) = (rng.below(3000) as usize, name(rng));
                let value = rng.noise(len);
                pool.edit(0, |edit| edit.set_xattr(file, &xattr, &value)).unwrap();
            }
            8 => {
                let file = any_file(tree, rng).filter(|_| rng.one_in(2)).unwrap_or(directory);
                let compression = rng.pick(&["lz4", "zstd-5", "off", "gzip-3", "lzjb", "zle"]);
                pool.set_property(file, Property::Compression, compression).unwrap();
            }
            9 => share(pool, tree, rng),
            10 => rename(pool, tree, rng, directory),
            11 => remove(pool, tree, rng, directory),
            _ => {
                if let Some(file) = any_file(tree, rng) {
                    write(pool, tree, rng, file);
                }
            }
        }
    }
}

fn any_name(pool: &Pool, rng: &mut Rng, directory: FileId) -> Option<Vec<u8>> {
    let names = pool.list_some(directory, None, usize::MAX).unwrap();
    let at = rng.below(names.len().max(1) as u64) as usize;
    names.into_iter().nth(at).map(|entry| entry.name)
}

fn rename(pool: &Pool, tree: &mut Tree, rng: &mut Rng, directory: FileId) {
    let Some(old) = any_name(pool, rng, directory) else { return };
    let to = tree.directories[rng.below(tree.directories.len() as u64) as usize];
    let new = match rng.one_in(2) {
        true => any_name(pool, rng, to).unwrap_or_else(|| old.clone()),
        false => name(rng),
    };
    let _ = pool.edit(7, |edit| edit.rename((directory, &old), (to, &new)));
    forget_gone(pool, tree);
}

fn remove(pool: &Pool, tree: &mut Tree, rng: &mut Rng, directory: FileId) {
    let Some(old) = any_name(pool, rng, directory) else { return };
    if rng.one_in(4) {
        pool.remove_tree(directory, &old, 0, &mut |_| true).unwrap();
    } else {
        let _ = pool.edit(8, |edit| edit.unlink(directory, &old));
    }
    forget_gone(pool, tree);
}

fn forget_gone(pool: &Pool, tree: &mut Tree) {
    tree.files.retain(|file, _| pool.attributes(*file).is_ok());
    tree.directories.retain(|file| pool.attributes(*file).is_ok());
}

fn any_file(tree: &Tree, rng: &mut Rng) -> Option<FileId> {
    let count = tree.files.len() as u64;
    tree.files.keys().nth(rng.below(count.max(1)) as usize).copied()
}

/// Writes at random places: whole records, some pages, a few bytes; truncates; leaves holes.
fn write(pool: &Pool, tree: &mut Tree, rng: &mut Rng, id: FileId) {
    let file = pool.file(id).unwrap();
    let bytes = tree.files.get_mut(&id).unwrap();
    for _ in 0..=rng.below(3) {
        let len = match rng.below(4) {
            0 => rng.below(60_000),
            1 => 4096,
            _ => rng.below(60),
        } as usize;
        let new = if rng.one_in(4) { rng.noise(len) } else { rng.text(len) };
        let reach = bytes.len() as u64 + if rng.one_in(3) { 50_000 } else { 1 };
        let at = rng.below(reach) as usize;
        file.write_at(&new, at as u64).unwrap();
        if !new.is_empty() {
            bytes.resize(bytes.len().max(at + len), 0);
            bytes[at..at + len].copy_from_slice(&new);
        }
        file.commit(Durability::Visible).unwrap();
    }
    if rng.one_in(8) {
        let len = rng.below(bytes.len() as u64 + 30_000);
        file.set_len(len).unwrap();
        file.commit(Durability::Visible).unwrap();
        bytes.resize(len as usize, 0);
    }
}

/// Copies the records of a file to a new one, sharing their extents.
fn share(pool: &Pool, tree: &mut Tree, rng: &mut Rng) {
    use crate::pool::extents::{file_extent_key, file_extents_in};
    let Some(id) = any_file(tree, rng) else { return };
    let like = attributes(Kind::File, rng);
    let Ok(copy) = pool.edit(0, |edit| edit.create(ROOT, &name(rng), &like)) else { return };
    pool.edit(0, |edit| {
        let len = edit.attributes(id)?.len;
        let txn = edit.txn();
        for tree in [TreeId::Map, TreeId::Patches] {
            for extent in file_extents_in(txn, tree, id, 0, u64::MAX, usize::MAX)? {
                let shared = txn.share(&extent.pointer)?.unwrap();
                let ashift = txn.store().ashift();
                txn.stats_mut().count_data(&shared, ashift, tree == TreeId::Patches, true);
                txn.insert(tree, &file_extent_key(copy, extent.start), &shared.to_bytes())?;
            }
        }
        crate::pool::namespace::entries::set_len(txn, copy, len)
    })
    .unwrap();
    let bytes = tree.files[&id].clone();
    tree.files.insert(copy, bytes);
}

type Listed = BTreeMap<Vec<u8>, (FileId, Attributes)>;

fn listed(pool: &Pool, scope: FileId) -> Listed {
    let mut listed = BTreeMap::from([(Vec::new(), (scope, pool.attributes(scope).unwrap()))]);
    if pool.attributes(scope).unwrap().kind == Kind::Directory {
        pool.walk(scope, &mut |path, entry, attributes| {
            listed.insert(path.to_vec(), (entry.file, *attributes));
            Ok(true)
        })
        .unwrap();
    }
    listed
}

/// Compares two trees: names, kinds, attributes, properties, extended attributes, link targets,
/// content, and which names refer to the same file.
pub fn assert_same(left: &Pool, left_scope: FileId, right: &Pool, right_scope: FileId, seed: u64) {
    let (a, b) = (listed(left, left_scope), listed(right, right_scope));
    let paths = |listed: &Listed| -> Vec<String> {
        listed.keys().map(|path| path.escape_ascii().to_string()).collect()
    };
    assert_eq!(paths(&a), paths(&b), "seed {seed}");
    let mut same: BTreeMap<FileId, FileId> = BTreeMap::new();
    let mut back: BTreeMap<FileId, FileId> = BTreeMap::new();
    for ((path, (id_a, at_a)), (id_b, at_b)) in a.iter().zip(b.values()) {
        let path = path.escape_ascii();
        assert_eq!(*same.entry(*id_a).or_insert(*id_b), *id_b, "seed {seed}: {path}");
        assert_eq!(*back.entry(*id_b).or_insert(*id_a), *id_a, "seed {seed}: {path}");
        let plain =
            |attributes: &Attributes| Attributes { parent: ROOT, link_count: 1, ..*attributes };
        assert_eq!(plain(at_a), plain(at_b), "seed {seed}: {path}");
        let properties = |pool: &Pool, file| pool.local_properties(file).unwrap();
        assert_eq!(properties(left, *id_a), properties(right, *id_b), "seed {seed}: {path}");
        assert_eq!(
            left.xattrs(*id_a).unwrap(),
            right.xattrs(*id_b).unwrap(),
            "seed {seed}: {path}"
        );
        match at_a.kind {
            Kind::Symlink => assert_eq!(
                left.link_target(*id_a).unwrap(),
                right.link_target(*id_b).unwrap(),
                "seed {seed}: {path}"
            ),
            Kind::File => {
                let read = |pool: &Pool, file| read_all(&pool.file(file).unwrap()).unwrap();
                let (a, b) = (read(left, *id_a), read(right, *id_b));
                assert!(a == b, "seed {seed}: {path}: {}", first_difference(&a, &b));
            }
            // The attributes say everything about special files.
            _ => {}
        }
    }
    for (path, (id, attributes)) in &b {
        let parent = right.read(|source| entries::attributes(source, attributes.parent));
        assert_eq!(parent.unwrap().kind, Kind::Directory, "seed {seed}: {path:?}, {}", id.0);
    }
}
