//! A file is removed after an operation looked it up and before the operation takes the lock. Then
//! no entries are created for it, and the caller learns that it is gone.

use std::sync::Arc;

use crate::device::{Device, MemoryDevice};
use crate::error::{Error, Result};
use crate::pool::namespace::edit::Edit;
use crate::pool::{
    Attributes, CloneSource, Fold, Kind, Pool, Property, ROOT, Settings, StepLimits, entries,
};
use crate::store::{Durability, Patience};
use crate::test_common::meanwhile::{Meanwhile, Moment};
use crate::test_common::{Rng, create, options, problems};
use crate::units::FileId;

const PATIENCE: Patience = Patience::None;

/// Returns settings with which a file gets a dictionary.
fn with_dictionary() -> Settings {
    let mut settings = Settings::default();
    settings.set(Property::RecordSize, "4K").unwrap();
    settings.set(Property::Compression, "zstd-3").unwrap();
    settings
}

fn limits() -> StepLimits {
    StepLimits { patience: PATIENCE, ..StepLimits::default() }
}

/// An operation on a file, with its name.
type Call = (&'static str, fn(&Pool, FileId) -> Result<()>);

const CALLS: [Call; 12] = [
    ("begin_repack", |pool, file| pool.begin_repack(file, Settings::default(), PATIENCE).map(drop)),
    ("begin_repack with a dictionary", |pool, file| {
        pool.begin_repack(file, with_dictionary(), PATIENCE).map(drop)
    }),
    ("repack_step", |pool, file| {
        let goal = Settings { record_len: 32 << 10, ..Settings::default() };
        let mut repack = crate::pool::Repack { file, goal, position: 0 };
        pool.repack_step(&mut repack, &limits(), None).map(drop)
    }),
    ("fold_step", |pool, file| pool.fold_step(file, Fold::All, 0, &limits()).map(drop)),
    ("train_dictionary", |pool, file| {
        pool.train_dictionary(file, &with_dictionary(), false, PATIENCE).map(drop)
    }),
    ("set_property", |pool, file| pool.set_property(file, Property::Compression, "lz4")),
    ("set_attributes", |pool, file| pool.set_attributes(file, 0o600, 1)),
    ("set_xattr", |pool, file| pool.edit(0, |edit| edit.set_xattr(file, b"user.a", b"b"))),
    ("create_snapshot", |pool, file| pool.create_snapshot(file, b"s", 0).map(drop)),
    ("clone_file", |pool, file| pool.clone_file(file, ROOT, b"clone", 0).map(drop)),
    ("link", |pool, file| pool.edit(0, |edit| edit.link(file, ROOT, b"other"))),
    ("write", |pool, file| {
        let file = pool.file(file)?;
        file.write_at(b"late", 5)?;
        file.commit(Durability::Visible)
    }),
];

/// Creates a pool with a file that has patches.
fn fixture() -> (Arc<dyn Device>, FileId) {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let pool = create(&device, &[(Property::RecordSize, "64K")], 32 << 20);
    let file = pool.file(pool.only_file().unwrap().file).unwrap();
    file.write_at(&Rng(4).text(9 << 20), 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    file.write_at(&Rng(5).noise(300), 70_000).unwrap();
    file.commit(Durability::Durable).unwrap();
    (device, file.id())
}

#[test]
fn nothing_is_kept_for_a_file_that_was_removed_before_the_lock() {
    for (name, call) in CALLS {
        let (device, file) = fixture();
        let between = Meanwhile::on(Arc::clone(&device));
        let pool = Pool::open(between.clone(), options(32 << 20)).unwrap();
        between.at(Moment::Lock, move || {
            let other = Pool::open(device, options(1 << 20)).unwrap();
            other.edit(0, |edit| edit.unlink(ROOT, b"main")).unwrap();
        });
        let done = call(&pool, file);
        assert!(between.is_done(), "{name}: no transaction");
        assert!(matches!(done, Err(Error::NotFound { what: "file", .. })), "{name}: {done:?}");
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "{name}");
    }
}

/// Folding a whole pool continues after a file was removed in the meantime.
#[test]
fn folding_a_pool_goes_on_where_a_file_vanishes() {
    let (device, file) = fixture();
    let pool = Pool::open(Arc::clone(&device), options(32 << 20)).unwrap();
    let like = Attributes::new(Kind::File, ROOT);
    let second = pool.edit(0, |edit: &mut Edit<'_>| edit.create(ROOT, b"second", &like)).unwrap();
    let second = pool.file(second).unwrap();
    second.write_at(&Rng(6).text(64 << 10), 0).unwrap();
    second.commit(Durability::Durable).unwrap();
    second.write_at(&Rng(7).noise(300), 20_000).unwrap();
    second.commit(Durability::Durable).unwrap();
    let between = Meanwhile::on(Arc::clone(&device));
    let pool = Pool::open(between.clone(), options(32 << 20)).unwrap();
    between.at(Moment::Lock, move || {
        let other = Pool::open(device, options(1 << 20)).unwrap();
        other.edit(0, |edit| edit.unlink(ROOT, b"main")).unwrap();
    });
    let step = pool.fold(Fold::All, &limits(), &mut |_| true).unwrap();
    assert!(between.is_done());
    assert_eq!(step.rewritten, 1, "{step:?}");
    assert!(pool.read(|source| Ok(!entries::is_there(source, file)?)).unwrap());
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}

/// A directory with more names than one transaction removes.
fn with_large_directory() -> (Pool, FileId) {
    let pool = create(&(Arc::new(MemoryDevice::default()) as Arc<dyn Device>), &[], 1);
    let directory = pool
        .edit(1, |edit| {
            let made = edit.create(ROOT, b"old", &Attributes::new(Kind::Directory, ROOT))?;
            for n in 0..5000 {
                let name = format!("{n:04}");
                edit.create(made, name.as_bytes(), &Attributes::new(Kind::File, made))?;
            }
            Ok(made)
        })
        .unwrap();
    (pool, directory)
}

#[test]
fn a_removal_leaves_what_somebody_else_gives_the_name() {
    let (pool, _) = with_large_directory();
    let mut is_exchanged = false;
    let removed = pool.remove_tree(ROOT, b"old", 2, &mut |_| {
        if !std::mem::replace(&mut is_exchanged, true) {
            let exchanged = pool.edit(2, |edit| {
                edit.rename((ROOT, b"old"), (ROOT, b"aside"))?;
                let new = edit.create(ROOT, b"old", &Attributes::new(Kind::Directory, ROOT))?;
                edit.create(new, b"precious", &Attributes::new(Kind::File, new))
            });
            exchanged.unwrap();
        }
        true
    });
    assert!(matches!(removed, Err(Error::Busy)), "{removed:?}");
    pool.resolve(b"old/precious").unwrap();
    pool.resolve(b"aside").unwrap();
}

#[test]
fn a_removal_asks_about_what_appeared_since_it_began() {
    let (pool, directory) = with_large_directory();
    let top = pool.lookup_in(ROOT, b"old").unwrap().unwrap();
    let mut ask = |entry: &crate::pool::DirEntry| match &entry.name[..] {
        b"new" => Err(Error::Stopped),
        _ => Ok(()),
    };
    let removed = pool.remove_entry(ROOT, &top, 2, &mut ask, &mut |_| {
        let new = Attributes::new(Kind::File, directory);
        pool.edit(2, |edit| edit.create(directory, b"new", &new)).unwrap();
        true
    });
    assert!(matches!(removed, Err(Error::Stopped)), "{removed:?}");
    pool.resolve(b"old/new").unwrap();
}

#[test]
fn a_clone_does_not_replace_the_last_name_of_a_file_that_must_stay() {
    let pool = create(&(Arc::new(MemoryDevice::default()) as Arc<dyn Device>), &[], 1);
    let [source, old] = [&b"source"[..], b"old"].map(|name| {
        let new = Attributes::new(Kind::File, ROOT);
        pool.edit(1, |edit| edit.create(ROOT, name, &new)).unwrap()
    });
    let clone =
        CloneSource { replaced: Some(old), keeps_replaced: true, ..CloneSource::new(source) };
    let refused = pool.clone_as(&clone, ROOT, b"old", 2);
    assert!(matches!(refused, Err(Error::Busy)), "{refused:?}");
    assert_eq!(pool.resolve(b"old").unwrap().file, old);
    pool.edit(3, |edit| edit.link(old, ROOT, b"other")).unwrap();
    pool.clone_as(&clone, ROOT, b"old", 4).unwrap();
    assert_eq!(pool.resolve(b"other").unwrap().file, old);
}
