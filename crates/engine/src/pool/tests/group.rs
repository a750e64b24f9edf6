//! Changes that share a commit: each sees those before it, nobody else sees them before the commit,
//! and what is refused changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::device::{Device, FileDevice, MemoryDevice};
use crate::error::{Error, Result};
use crate::pool::{Attributes, File, Group, Kind, Pool, Property, ROOT};
use crate::store::Durability;
use crate::store::format::checksum::ChecksumKind;
use crate::test_common::{Rng, create, options, problems, read_all};
use crate::units::FileId;

/// What a directory with files holds.
type Model = BTreeMap<Vec<u8>, (FileId, Vec<u8>)>;

fn create_in(group: &Group, name: &[u8]) -> Result<Arc<File>> {
    group.edit(1, |edit| {
        let id = edit.create(ROOT, name, &Attributes::new(Kind::File, ROOT))?;
        Ok(group.created_file(id, 1))
    })
}

fn names(group: &Group) -> Vec<Vec<u8>> {
    let listed = group.view(|view| view.list(ROOT, None, 1000)).unwrap();
    listed.into_iter().map(|entry| entry.name).collect()
}

#[test]
fn changes_are_seen_by_the_next_ones_and_by_others_after_the_commit() {
    for seed in 0..40 {
        let mut rng = Rng(seed + 1);
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
        drop(create(&device, &[], 1 << 20));
        let pool = Pool::open(Arc::clone(&device), options(1 << 20)).unwrap();
        let other = Pool::open(Arc::clone(&device), options(1 << 20)).unwrap();
        let group = Group::new(pool.clone());
        for entry in pool.list().unwrap() {
            group.edit(1, |edit| edit.unlink(ROOT, &entry.name)).unwrap();
        }
        let mut model = Model::new();
        let mut used: BTreeMap<FileId, Arc<File>> = BTreeMap::new();
        for step in 0..150 {
            let label = format!("seed {seed}, step {step}");
            let name = vec![b'a' + rng.below(8) as u8];
            match rng.below(10) {
                0..=2 => match create_in(&group, &name) {
                    Ok(file) => {
                        let old = model.insert(name, (file.id(), Vec::new()));
                        assert!(old.is_none(), "{label}");
                        used.insert(file.id(), file);
                    }
                    Err(Error::Exists { .. }) => assert!(model.contains_key(&name), "{label}"),
                    Err(error) => panic!("{label}: {error}"),
                },
                3..=5 => {
                    let Some((id, content)) = model.get_mut(&name) else { continue };
                    let file = match used.get(id) {
                        Some(file) => Arc::clone(file),
                        None => pool.file(*id).unwrap(),
                    };
                    let len = rng.pick(&[1, 100, 5000, 300_000, 1 << 20]);
                    let (at, bytes) = (rng.below(200_000) as usize, rng.text(len));
                    group.write_at(&file, &bytes, at as u64, 1).unwrap();
                    content.resize(content.len().max(at + len), 0);
                    content[at..at + len].copy_from_slice(&bytes);
                    assert!(read_all(&file).unwrap() == *content, "{label}");
                    used.insert(*id, file);
                }
                6 => {
                    let to = vec![b'a' + rng.below(8) as u8];
                    let done = group.edit(1, |edit| edit.rename((ROOT, &name), (ROOT, &to)));
                    assert_eq!(done.is_ok(), model.contains_key(&name), "{label}: {done:?}");
                    let Some(moved) = model.remove(&name) else { continue };
                    let gone = model.insert(to, moved.clone());
                    if let Some((gone, _)) = gone.filter(|gone| gone.0 != moved.0) {
                        used.remove(&gone);
                    }
                }
                7 => {
                    let done = group.edit(1, |edit| edit.unlink(ROOT, &name));
                    assert_eq!(done.is_ok(), model.contains_key(&name), "{label}: {done:?}");
                    if let Some((gone, _)) = model.remove(&name) {
                        used.remove(&gone);
                    }
                }
                8 => {
                    let files: Vec<Arc<File>> = used.values().cloned().collect();
                    group.commit(&files, Durability::Durable).unwrap();
                    used.clear();
                    other.refresh().unwrap();
                    let seen: Vec<_> = other.list().unwrap().into_iter().collect();
                    assert_eq!(seen.len(), model.len(), "{label}");
                    for entry in seen {
                        let bytes = read_all(&other.file(entry.file).unwrap()).unwrap();
                        assert!(model[&entry.name] == (entry.file, bytes), "{label}");
                    }
                }
                _ => {
                    let expected: Vec<_> = model.keys().cloned().collect();
                    assert_eq!(names(&group), expected, "{label}");
                }
            }
        }
        assert_eq!(group.losses(), 0);
        drop(group);
        let again = Pool::open(device, options(1 << 20)).unwrap();
        assert_eq!(problems(&again).unwrap(), [""; 0], "seed {seed}");
    }
}

/// To write ahead takes transactions, also to look something up. Meanwhile others join the group,
/// which is committed only by who waits.
#[test]
fn a_large_write_and_the_group_do_not_wait_for_each_other() {
    const WRITE_LEN: usize = 1 << 20;
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    drop(create(&device, &[(Property::Dedup, "on")], 1 << 20));
    let group = Arc::new(Group::new(Pool::open(device, options(1 << 20)).unwrap()));
    let file = create_in(&group, b"large").unwrap();
    let (sender, written) = std::sync::mpsc::channel();
    let writers = Arc::clone(&group);
    let writer = std::thread::spawn(move || {
        let mut rng = Rng(3);
        for at in 0..12 {
            let bytes = rng.text(WRITE_LEN);
            writers.write_at(&file, &bytes, (at * WRITE_LEN) as u64, 1).unwrap();
        }
        writers.commit(&[file], Durability::Visible).unwrap();
        sender.send(()).unwrap();
    });
    let pause = std::time::Duration::from_millis(1);
    for number in 0..30_000 {
        if written.recv_timeout(pause).is_ok() {
            writer.join().unwrap();
            group.commit(&[], Durability::Visible).unwrap();
            assert_eq!(problems(group.pool()).unwrap(), Vec::<String>::new());
            return;
        }
        create_in(&group, format!("{number}").as_bytes()).unwrap();
    }
    panic!("it waits for ever");
}

/// A file that somebody has open keeps its content without a name, whatever becomes of its
/// directory, and goes when its user is done.
#[test]
fn a_file_in_use_outlives_its_name() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let group = Group::new(create(&device, &[], 1 << 20));
    let pool = group.pool().clone();
    let directory = group
        .edit(1, |edit| edit.create(ROOT, b"d", &Attributes::new(Kind::Directory, ROOT)))
        .unwrap();
    let file = group
        .edit(1, |edit| {
            let id = edit.create(directory, b"f", &Attributes::new(Kind::File, directory))?;
            Ok(group.created_file(id, 1))
        })
        .unwrap();
    group.edit(1, |edit| edit.link(file.id(), ROOT, b"second")).unwrap();
    let kept = group.keep_nameless().unwrap();
    assert!(!group.edit(1, |edit| edit.unlink_open(directory, b"f")).unwrap());
    assert!(group.edit(1, |edit| edit.unlink_open(ROOT, b"second")).unwrap());
    group.edit(1, |edit| edit.unlink(ROOT, b"d")).unwrap();
    let other = create_in(&group, b"other").unwrap();
    group.write_at(&file, b"content", 0, 1).unwrap();
    group.write_at(&other, b"other", 0, 1).unwrap();
    group.commit(&[Arc::clone(&file), other], Durability::Durable).unwrap();
    assert_eq!(read_all(&file).unwrap(), b"content");
    // Others take it for a leftover only when its user is gone.
    let second = Pool::open(Arc::clone(&device), options(1 << 20)).unwrap();
    second.remove_leftovers().unwrap();
    assert_eq!(read_all(&file).unwrap(), b"content");
    group.edit(1, |edit| edit.remove_nameless(file.id())).unwrap();
    group.edit(1, |edit| edit.remove_nameless(file.id())).unwrap();
    group.commit(&[file], Durability::Durable).unwrap();
    drop(kept);
    assert_eq!(problems(&pool).unwrap(), [""; 0]);
    let found = pool.file(pool.lookup("other").unwrap().file).unwrap();
    assert_eq!(read_all(&found).unwrap(), b"other");
}

/// While one thread waits for the pool's lock, others see what is committed; what waited is made
/// when the lock is free.
#[test]
fn who_only_looks_does_not_wait_for_the_lock() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let device: Arc<dyn Device> = Arc::new(FileDevice::create_new(&path).unwrap());
    drop(create(&device, &[], 1 << 20));
    let open = || {
        let device = Arc::new(FileDevice::open(&path).unwrap());
        Pool::open(device, options(1 << 20)).unwrap()
    };
    let (group, other) = (Group::new(open()), open());
    let before = names(&group).len();
    let file = create_in(&group, b"mine").unwrap();
    group.write_at(&file, b"bytes", 0, 1).unwrap();
    group.commit(&[], Durability::Visible).unwrap();
    let in_the_way = other.store().begin(ChecksumKind::default()).unwrap();
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let group = &group;
        scope.spawn(|| create_in(group, b"new").unwrap());
        scope.spawn(|| group.commit(&[file], Durability::Visible).unwrap());
        scope.spawn(move || {
            for _ in 0..50 {
                assert_eq!(names(group).len(), before + 1);
                std::thread::sleep(Duration::from_millis(2));
            }
            done.send(()).unwrap();
        });
        let looked = ended.recv_timeout(Duration::from_secs(60));
        drop(in_the_way);
        looked.expect("a look waits for the lock");
    });
    assert_eq!(names(&group).len(), before + 2);
    group.commit(&[], Durability::Durable).unwrap();
    other.refresh().unwrap();
    let mine = other.lookup_in(ROOT, b"mine").unwrap().unwrap().file;
    assert_eq!(read_all(&other.file(mine).unwrap()).unwrap(), b"bytes");
    assert!(other.lookup_in(ROOT, b"new").unwrap().is_some());
    assert_eq!(problems(&other).unwrap(), Vec::<String>::new());
}
