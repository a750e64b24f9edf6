//! Names behave as in a file system, whatever operations are mixed.

mod model;

use std::sync::Arc;

use self::model::{Model, Node};
use crate::device::{Device, MemoryDevice};
use crate::error::{Error, Result};
use crate::pool::{Attributes, CreateOptions, DeviceNumber, FileOwner, Kind, Pool, Property, ROOT};
use crate::store::Durability;
use crate::test_common::{GUID, Rng, options, problems, read_all};
use crate::units::FileId;

pub(super) fn empty_pool(device: &Arc<dyn Device>) -> Pool {
    let create = CreateOptions {
        guid: GUID,
        ashift: crate::units::Ashift::MIN,
        properties: vec![(Property::RecordSize, "16K".into())],
        file_name: None,
        file_mode: 0,
    };
    Pool::create(Arc::clone(device), &create, options(1 << 20)).unwrap()
}

fn like(kind: Kind, rng: &mut Rng) -> Attributes {
    let owner = rng.one_in(2).then(|| FileOwner { uid: rng.below(9) as u32, gid: 7 });
    let mode = rng.below(0o1000) as u32;
    Attributes {
        mode,
        owner,
        modified_ns: rng.below(1 << 60) as i64,
        device: device(kind, rng),
        ..Attributes::new(kind, ROOT)
    }
}

fn device(kind: Kind, rng: &mut Rng) -> DeviceNumber {
    match kind.is_device() {
        true => DeviceNumber { major: rng.below(300) as u32, minor: rng.below(1 << 20) as u32 },
        false => DeviceNumber::default(),
    }
}

/// A pool beside its model.
struct Pair {
    device: Arc<dyn Device>,
    pool: Pool,
    model: Model,
    rng: Rng,
    seed: u64,
}

impl Pair {
    fn new(seed: u64) -> Pair {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
        let pool = empty_pool(&device);
        Pair { device, pool, model: Model::new(ROOT), rng: Rng(seed), seed }
    }

    /// Picks from few names, so that they collide; some are unusual.
    fn name(&mut self) -> Vec<u8> {
        let names: [&[u8]; 9] =
            [b"a", b"b", b"c", b"ab", b"\xff\xfe", b" ", b"\xc3\xa9t\xc3\xa9", b"-", b"a\nb"];
        match self.rng.below(12) {
            0 => vec![b'n'; 255],
            _ => self.rng.pick(&names).to_vec(),
        }
    }

    fn directory(&mut self) -> FileId {
        let directories = self.model.of_kind(Kind::Directory);
        directories[self.rng.below(directories.len() as u64) as usize]
    }

    /// Asserts that a change succeeds in both the pool and the model, or in neither.
    fn both<R>(&mut self, what: &str, pool: Result<R>, model: Option<R>) -> Option<R> {
        assert_eq!(pool.is_ok(), model.is_some(), "seed {}: {what}: {:?}", self.seed, pool.err());
        pool.ok()
    }

    fn create(&mut self) {
        let (directory, name) = (self.directory(), self.name());
        let kind = self.rng.pick(&Kind::ALL);
        let attributes = like(kind, &mut self.rng);
        let len = 1 + self.rng.below(3000) as usize;
        let target = self.rng.text(len);
        let made = self.pool.edit(0, |edit| match kind {
            Kind::Symlink => edit.symlink(directory, &name, &target, &attributes),
            _ => edit.create(directory, &name, &attributes),
        });
        let is_free = self.model.lookup(directory, &name).is_none();
        let file = made.as_ref().ok().copied();
        let fits = is_free.then(|| file.unwrap_or(ROOT));
        if let Some(file) = self.both("create", made, fits) {
            let target = if kind == Kind::Symlink { target } else { Vec::new() };
            self.model.add(directory, &name, file, Node::new(&attributes, target));
        }
    }

    fn unlink(&mut self) {
        let (directory, name) = (self.directory(), self.name());
        let done = self.pool.edit(0, |edit| edit.unlink(directory, &name));
        let fits = self.model.unlink(directory, &name);
        self.both("unlink", done, fits);
    }

    fn remove_tree(&mut self) {
        let (directory, name) = (self.directory(), self.name());
        let done = self.pool.remove_tree(directory, &name, 0, &mut |_| true);
        let fits = self.model.remove_tree(directory, &name);
        self.both("remove_tree", done, fits);
    }

    fn link(&mut self) {
        let (directory, name, from, old) =
            (self.directory(), self.name(), self.directory(), self.name());
        let Some(file) = self.model.lookup(from, &old) else { return };
        let done = self.pool.edit(0, |edit| edit.link(file, directory, &name));
        let fits = self.model.link(file, directory, &name);
        self.both("link", done, fits);
    }

    fn rename(&mut self) {
        let (from, name, to, new) = (self.directory(), self.name(), self.directory(), self.name());
        let done = self.pool.edit(0, |edit| edit.rename((from, &name), (to, &new)));
        let fits = self.model.rename((from, &name), (to, &new));
        self.both("rename", done, fits);
    }

    fn exchange(&mut self) {
        let (one, name, other, new) =
            (self.directory(), self.name(), self.directory(), self.name());
        let done = self.pool.edit(0, |edit| edit.exchange((one, &name), (other, &new)));
        let fits = self.model.exchange((one, &name), (other, &new));
        self.both("exchange", done, fits);
    }

    fn write(&mut self) {
        let files = self.model.of_kind(Kind::File);
        if files.is_empty() {
            return;
        }
        let id = files[self.rng.below(files.len() as u64) as usize];
        let offset = self.rng.below(100_000);
        let len = self.rng.below(60_000) as usize;
        let bytes = self.rng.text(len);
        let file = self.pool.file(id).unwrap();
        file.write_at(&bytes, offset).unwrap();
        file.commit(Durability::Visible).unwrap();
        self.model.write(id, offset as usize, &bytes);
    }

    fn set_xattr(&mut self) {
        let (directory, name) = (self.directory(), self.name());
        let Some(file) = self.model.lookup(directory, &name) else { return };
        let xattr = self.name();
        if self.rng.one_in(4) {
            let done = self.pool.edit(0, |edit| edit.remove_xattr(file, &xattr)).unwrap();
            assert_eq!(done, self.model.node(file).xattrs.remove(&xattr).is_some());
            return;
        }
        let len = self.rng.pick(&[0, 1, 1024, 1025, 5000, 65536]);
        let value = self.rng.noise(len);
        self.pool.edit(0, |edit| edit.set_xattr(file, &xattr, &value)).unwrap();
        self.model.node(file).xattrs.insert(xattr, value);
    }

    /// Imports files, directories and links together, some replacing others.
    fn import(&mut self) {
        let pool = self.pool.clone();
        let mut import = pool.import(5);
        for _ in 0..1 + self.rng.below(12) {
            let (parent, name) = (self.directory(), self.name());
            let old = self.model.lookup(parent, &name);
            let old_kind = old.map(|old| self.model.node(old).kind);
            let kind = self.rng.pick(&[Kind::ALL, [Kind::File; 7]].concat());
            let attributes = like(kind, &mut self.rng);
            let is_refused = (kind == Kind::Directory) != (old_kind == Some(Kind::Directory));
            if old.is_some() && is_refused {
                continue;
            }
            let len = self.rng.pick(&[0, 1, 5000, 40_000, 5 << 20]);
            let bytes = self.rng.text(len);
            match kind {
                Kind::Directory => {
                    let made = import.directory(parent, &name, &attributes, &[]).unwrap();
                    match old {
                        Some(old) => {
                            assert_eq!(old, made);
                            let node = self.model.node(old);
                            (node.mode, node.owner) = (attributes.mode, attributes.owner);
                            node.xattrs.clear();
                        }
                        None => {
                            self.model.add(parent, &name, made, Node::new(&attributes, Vec::new()));
                        }
                    }
                    continue;
                }
                Kind::File => import.file(parent, &name, &attributes, &[], bytes.clone()).unwrap(),
                Kind::Symlink => import.symlink(parent, &name, &attributes, b"b/../c").unwrap(),
                _ => import.special_file(parent, &name, &attributes, &[]).unwrap(),
            }
            let content = match kind {
                Kind::File => bytes,
                Kind::Symlink => b"b/../c".to_vec(),
                _ => Vec::new(),
            };
            import.flush().unwrap();
            let found = self.pool.lookup_in(parent, &name).unwrap().expect("it is there now").file;
            if old.is_some() {
                self.model.unlink(parent, &name).unwrap();
            }
            self.model.add(parent, &name, found, Node::new(&attributes, content));
        }
        let report = import.finish().unwrap();
        assert!(report.refused.is_empty(), "seed {}: {:?}", self.seed, report.refused);
    }

    fn step(&mut self) {
        match self.rng.below(20) {
            0..=4 => self.create(),
            5..=6 => self.unlink(),
            7 if self.rng.one_in(3) => self.remove_tree(),
            8..=9 => self.link(),
            10..=11 => self.rename(),
            12 => self.exchange(),
            13..=14 => self.write(),
            15..=16 => self.set_xattr(),
            17 => self.import(),
            18 => {
                self.pool = Pool::open(Arc::clone(&self.device), options(1 << 20)).unwrap();
            }
            _ => {}
        }
    }

    fn compare(&mut self) {
        let seed = self.seed;
        assert_eq!(problems(&self.pool).unwrap(), [""; 0], "seed {seed}");
        let mut met = Vec::new();
        self.pool
            .walk(ROOT, &mut |path, entry, attributes| {
                met.push((path.to_vec(), entry.clone(), *attributes));
                Ok(true)
            })
            .unwrap();
        let expected = self.model.paths();
        let paths: Vec<_> = met.iter().map(|(path, entry, _)| (path.clone(), entry.file)).collect();
        assert_eq!(paths, expected, "seed {seed}");
        for (path, entry, attributes) in met {
            let node = self.model.node(entry.file).clone();
            let label = format!("seed {seed}: {}", String::from_utf8_lossy(&path));
            assert_eq!((attributes.kind, attributes.device), (node.kind, node.device), "{label}");
            assert_eq!(attributes.len, node.content.len() as u64, "{label}");
            assert_eq!((attributes.mode, attributes.owner), (node.mode, node.owner), "{label}");
            let links = expected.iter().filter(|(_, file)| *file == entry.file).count();
            assert_eq!(attributes.link_count as usize, links, "{label}");
            let xattrs = self.pool.xattrs(entry.file).unwrap();
            assert_eq!(xattrs, node.xattrs.into_iter().collect::<Vec<_>>(), "{label}");
            match node.kind {
                Kind::File => {
                    let bytes = read_all(&self.pool.file(entry.file).unwrap()).unwrap();
                    assert!(bytes == node.content, "{label}");
                }
                Kind::Symlink => {
                    assert_eq!(self.pool.link_target(entry.file).unwrap(), node.content, "{label}");
                }
                Kind::Directory => {}
                _ => assert!(self.pool.file(entry.file).is_err(), "{label}"),
            }
            let a_path = self.pool.path_of(entry.file).unwrap();
            assert!(expected.contains(&(a_path, entry.file)), "{label}");
        }
    }
}

#[test]
fn names_are_those_of_a_file_system() {
    for seed in 0..25 {
        let mut pair = Pair::new(seed);
        for step in 0..120 {
            pair.step();
            if step % 40 == 39 {
                pair.compare();
            }
        }
    }
}

#[test]
fn paths_are_followed() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let pool = empty_pool(&device);
    let directory = Attributes::new(Kind::Directory, ROOT);
    let (a, file) = pool
        .edit(7, |edit| {
            let a = edit.create(ROOT, b"a", &directory)?;
            let b = edit.create(a, b"b", &directory)?;
            let file = edit.create(b, b"file", &Attributes::new(Kind::File, b))?;
            edit.symlink(a, b"link", b"./b/../b//file", &directory)?;
            edit.symlink(ROOT, b"up", b"a/link", &directory)?;
            edit.symlink(ROOT, b"out", b"/etc/passwd", &directory)?;
            edit.symlink(ROOT, b"circle", b"circle", &directory)?;
            edit.symlink(ROOT, b"above", b"../../a", &directory)?;
            Ok((a, file))
        })
        .unwrap();
    for path in ["a/b/file", "/a//b/./file", "a/link", "up", "above/link", "a/b/../../up"] {
        assert_eq!(pool.resolve(path.as_bytes()).unwrap().file, file, "{path}");
    }
    assert_eq!(pool.resolve_link(b"up").unwrap().kind, Kind::Symlink);
    assert_eq!(pool.resolve(b"").unwrap().file, ROOT);
    assert_eq!(pool.resolve(b"above").unwrap().file, a);
    for path in ["out", "circle", "a/b/file/x", "a/c", "up/x"] {
        let error = pool.resolve(path.as_bytes()).unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }), "{path}: {error}");
    }
    assert_eq!(pool.path_of(file).unwrap(), b"a/b/file");
    assert_eq!(pool.attributes(a).unwrap().modified_ns, 7);
    assert_eq!(pool.resolve_parent(b"a/new/").unwrap(), (a, &b"new"[..]));
    for path in [&b""[..], b"/", b"a/.."] {
        assert!(pool.resolve_parent(path).is_err());
    }
}

#[test]
fn properties_come_from_above() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let pool = empty_pool(&device);
    let directory = Attributes::new(Kind::Directory, ROOT);
    let (a, b, file) = pool
        .edit(0, |edit| {
            let a = edit.create(ROOT, b"a", &directory)?;
            let b = edit.create(a, b"b", &directory)?;
            Ok((a, b, edit.create(b, b"file", &Attributes::new(Kind::File, b))?))
        })
        .unwrap();
    let compression = |file| {
        let values = pool.properties(file).unwrap();
        let found = values.into_iter().find(|value| value.property == Property::Compression);
        found.map(|value| (value.value, value.source)).unwrap()
    };
    use crate::pool::PropertySource::{Default, Inherited, Local};
    assert_eq!(compression(file), ("zstd-3".into(), Default));
    pool.set_property(a, Property::Compression, "lz4").unwrap();
    assert_eq!(compression(file), ("lz4".into(), Inherited(a)));
    pool.set_property(ROOT, Property::Compression, "gzip-9").unwrap();
    assert_eq!(compression(b), ("lz4".into(), Inherited(a)));
    assert_eq!(compression(ROOT), ("gzip-9".into(), Local));
    pool.edit(0, |edit| edit.rename((a, b"b"), (ROOT, b"b"))).unwrap();
    assert_eq!(compression(file), ("gzip-9".into(), Inherited(ROOT)));
    pool.set_property(file, Property::Compression, "zstd-19").unwrap();
    assert_eq!(compression(file), ("zstd-19".into(), Local));
    pool.inherit_property(file, Property::Compression).unwrap();
    assert_eq!(compression(file), ("gzip-9".into(), Inherited(ROOT)));
    assert_eq!(problems(&pool).unwrap(), [""; 0]);
}

/// Properties set on a file itself also apply to the file that replaces it, short or long.
#[test]
fn a_file_that_is_replaced_keeps_its_properties() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let pool = empty_pool(&device);
    let attributes = Attributes::new(Kind::File, ROOT);
    for len in [200 << 10, 9 << 20] {
        let bytes = Rng(3).text(len);
        let put = |bytes: &[u8]| {
            let mut import = pool.import(1);
            // The second file is in the same batch.
            for _ in 0..2 {
                import.file(ROOT, b"a", &attributes, &[], bytes.to_vec()).unwrap();
            }
            import.finish().unwrap();
            pool.resolve(b"a").unwrap().file
        };
        let file = put(&bytes);
        pool.set_property(file, Property::RecordSize, "32K").unwrap();
        let file = put(&bytes[1..]);
        let usage = pool.usage(file).unwrap();
        assert_eq!(usage.records, (len as u64 - 1).div_ceil(32 << 10), "{len}");
        assert_eq!(pool.settings(file).unwrap().record_len, 32 << 10);
        assert!(read_all(&pool.file(file).unwrap()).unwrap() == bytes[1..]);
        assert_eq!(problems(&pool).unwrap(), [""; 0]);
        pool.remove_at(b"a", 1).unwrap();
    }
}

/// A file that an import was filling when its process ended has no name, and is removed; named
/// files stay.
#[test]
fn what_was_never_named_is_removed() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let pool = empty_pool(&device);
    let bytes = Rng(3).noise(9 << 20);
    let attributes = Attributes::new(Kind::File, ROOT);
    let mut import = pool.import(1);
    import.file(ROOT, b"whole", &attributes, &[], bytes.clone()).unwrap();
    import.begin_file(ROOT, b"whole", &attributes, &[]).unwrap();
    import.write(&bytes[1..]).unwrap();
    import.flush().unwrap();
    drop(import);
    assert_eq!(problems(&pool).unwrap(), [""; 0]);
    let stored = pool.state().stats().data().stored;
    assert!(stored > bytes.len() as u64, "part of the second one is in the pool");
    assert_eq!(pool.remove_nameless(&mut |_| true).unwrap(), 0);
    assert_eq!(pool.remove_nameless(&mut |_| false).unwrap(), 1);
    assert_eq!(problems(&pool).unwrap(), [""; 0]);
    assert_eq!(pool.state().stats().data().stored, bytes.len() as u64);
    assert_eq!(pool.state().stats().file_bytes, bytes.len() as u64);
    let entry = pool.only_file().unwrap();
    assert!(read_all(&pool.file(entry.file).unwrap()).unwrap() == bytes);
}

/// Another process commits while a pool is checked, and reuses space that the check has read and
/// will read again: the check starts over.
#[test]
fn a_check_beside_a_writer_finds_nothing_wrong() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let writer = empty_pool(&device);
    let attributes = Attributes::new(Kind::File, ROOT);
    let create = |name: String| {
        writer.edit(0, |edit| edit.create(ROOT, name.as_bytes(), &attributes)).unwrap();
    };
    (0..400).for_each(|n| create(format!("file {n}")));
    // The cache is too small to hold anything.
    let reader = Pool::open(Arc::clone(&device), options(1)).unwrap();
    let mut is_first = true;
    let report = reader.check(&mut |_| {
        if std::mem::take(&mut is_first) {
            (0..400).for_each(|n| create(format!("another {n}")));
        }
    });
    let problems = report.unwrap().problems;
    assert!(problems.is_empty(), "{problems:?}");
    assert!(!is_first);
}
