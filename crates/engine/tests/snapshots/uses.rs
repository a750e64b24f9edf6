//! Uses of snapshots: rolling back, and listing changes.

use hardpack_engine::pool::{Attributes, Difference, DirEntry, Kind, Property, ROOT, RollbackAsks};
use hardpack_engine::store::Durability;
use hardpack_engine::{Error, FileId};

use crate::common::{Rng, problems};
use crate::{assert_same, new_pool};

/// A rollback restores more than bytes, and leaves things outside its scope alone.
#[test]
fn rolling_back_brings_everything_back() {
    let (_, pool) = new_pool(&[(Property::Compression, "lz4")]);
    let main = pool.only_file().unwrap().file;
    let like = |kind, parent| Attributes { mode: 0o640, ..Attributes::new(kind, parent) };
    let write = |id, bytes: &[u8]| {
        let file = pool.file(id).unwrap();
        file.set_len(0).unwrap();
        file.write_at(bytes, 0).unwrap();
        file.commit(Durability::Durable).unwrap();
    };
    let (directory, file, link) = pool
        .edit(5, |edit| {
            let directory = edit.create(ROOT, b"d", &like(Kind::Directory, ROOT))?;
            let file = edit.create(directory, b"f", &like(Kind::File, directory))?;
            edit.link(file, directory, b"second")?;
            edit.link(file, ROOT, b"outside")?;
            edit.set_xattr(file, b"user.x", &[7; 5000])?;
            let link = edit.symlink(directory, b"s", b"f", &like(Kind::Symlink, directory))?;
            Ok((directory, file, link))
        })
        .unwrap();
    write(file, b"old");
    write(main, b"main");
    pool.set_property(file, Property::RecordSize, "8K").unwrap();
    let before = (pool.attributes(file).unwrap(), pool.names_of(file).unwrap());
    pool.create_snapshot(directory, b"s", 0).unwrap();

    write(file, b"new and longer");
    write(main, b"changed");
    pool.set_property(file, Property::RecordSize, "16K").unwrap();
    pool.set_property(directory, Property::Compression, "off").unwrap();
    pool.edit(9, |edit| {
        edit.set_xattr(file, b"user.x", b"short")?;
        edit.set_xattr(file, b"user.y", b"")?;
        let attributes = edit.attributes(file)?;
        edit.set_attributes(file, &Attributes { mode: 0o600, ..attributes })?;
        edit.unlink(directory, b"second")?;
        edit.unlink(directory, b"s")?;
        edit.rename((directory, b"f"), (directory, b"g"))?;
        edit.create(directory, b"since", &like(Kind::Directory, directory)).map(drop)
    })
    .unwrap();

    let handle = pool.file(file).unwrap();
    handle.write_at(b"x", 0).unwrap();
    assert!(matches!(pool.rollback(directory, b"s"), Err(Error::Busy)));
    assert!(matches!(pool.clone_file(file, ROOT, b"c", 0), Err(Error::Busy)));
    handle.discard();
    pool.rollback(directory, b"s").unwrap();

    assert_same(&pool, file, b"old", "rolled back");
    assert_same(&pool, main, b"changed", "not in the scope");
    let mut names = pool.names_of(file).unwrap();
    let mut old_names = before.1;
    names.sort();
    old_names.sort();
    assert_eq!(names, old_names);
    let after = pool.attributes(file).unwrap();
    assert_eq!(Attributes { parent: before.0.parent, ..after }, before.0);
    assert_eq!(pool.xattrs(file).unwrap(), [(b"user.x".to_vec(), vec![7; 5000])]);
    let properties = pool.local_properties(file).unwrap();
    assert_eq!(properties, [(Property::RecordSize, "8K".into())]);
    assert_eq!(pool.local_properties(directory).unwrap(), []);
    assert_eq!(pool.link_target(link).unwrap(), b"f");
    let names: Vec<_> = pool.list_some(directory, None, 9).unwrap();
    let names: Vec<_> = names.iter().map(|entry| entry.display_name()).collect();
    assert_eq!(names, ["f", "s", "second"]);
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}

/// Changes since a snapshot are listed by path and range, without reading unchanged data.
#[test]
fn differences_are_told_by_path_and_range() {
    let (_, pool) = new_pool(&[(Property::RecordSize, "16K"), (Property::Compression, "off")]);
    let main = pool.only_file().unwrap().file;
    let file_in = |directory, name: &[u8]| {
        let like = Attributes::new(Kind::File, directory);
        pool.edit(0, |edit| edit.create(directory, name, &like)).unwrap()
    };
    let like = Attributes::new(Kind::Directory, ROOT);
    let directory = pool.edit(0, |edit| edit.create(ROOT, b"d", &like)).unwrap();
    let write = |id, bytes: &[u8], at| {
        let file = pool.file(id).unwrap();
        file.write_at(bytes, at).unwrap();
        file.commit(Durability::Durable).unwrap();
    };
    let noise = Rng(9).noise(200_000);
    let files: Vec<FileId> =
        (0..6).map(|n| file_in(directory, format!("f{n}").as_bytes())).collect();
    files.iter().for_each(|file| write(*file, &noise, 0));
    write(main, &noise, 0);
    pool.create_snapshot(directory, b"a", 0).unwrap();
    assert_eq!(pool.diff(directory, b"a", None).unwrap(), []);

    write(main, b"not in the scope", 0);
    write(files[0], b"changed", 50_000);
    write(files[0], b"changed", 90_000);
    // The same bytes written again: no change.
    write(files[1], &noise[..65_536], 0);
    let cut = pool.file(files[2]).unwrap();
    cut.set_len(150_000).unwrap();
    cut.commit(Durability::Durable).unwrap();
    pool.edit(0, |edit| {
        edit.rename((directory, b"f3"), (directory, b"g3"))?;
        edit.unlink(directory, b"f4")?;
        edit.set_xattr(files[5], b"user.x", b"y")
    })
    .unwrap();
    write(files[3], b"changed", 0);
    let new = file_in(directory, b"new");
    let tell = |to: Option<&[u8]>| -> Vec<String> {
        let found = pool.diff(directory, b"a", to).unwrap();
        let line = |one: &Difference| {
            format!("{} {:?} {:?}", one.path.escape_ascii(), one.change, one.ranges)
        };
        found.iter().map(line).collect()
    };
    let from = format!("{:?}", b"d/f3".to_vec());
    let expected = [
        "d/f0 Modified [(49152, 53248), (86016, 90112)]".to_string(),
        "d/f2 Modified [(147456, 200000)]".into(),
        "d/f4 Removed []".into(),
        "d/f5 Modified []".into(),
        format!("d/g3 Renamed {{ from: {from} }} []"),
        "d/g3 Modified [(0, 4096)]".into(),
        "d/new Created []".into(),
    ];
    assert_eq!(tell(None), expected);
    pool.create_snapshot(directory, b"b", 0).unwrap();
    write(new, b"later", 0);
    assert_eq!(tell(Some(b"b")), expected);
    assert!(matches!(pool.diff(directory, b"b", Some(b"a")), Err(Error::Invalid(_))));
}

/// A removed file does not take its name from another one unasked, nor from one with changes that
/// are not committed.
#[test]
fn a_file_that_comes_back_asks_for_its_name() {
    let (_, pool) = new_pool(&[]);
    let like = Attributes::new(Kind::File, ROOT);
    let make = || pool.edit(1, |edit| edit.create(ROOT, b"name", &like)).unwrap();
    let old = make();
    pool.create_snapshot(old, b"then", 1).unwrap();
    pool.remove_at(b"name", 1).unwrap();
    let new = make();
    let there = || pool.lookup_in(ROOT, b"name").unwrap().unwrap().file;
    let done = pool.rollback(old, b"then");
    assert!(matches!(done, Err(Error::Exists { .. })), "{done:?}");
    let roll_back = |taking: &mut dyn FnMut(&DirEntry) -> Result<(), Error>| {
        let asks = RollbackAsks { taking, changing: &mut |_| Ok(()), ending: &mut |_| Ok(()) };
        pool.rollback_asking(old, b"then", asks)
    };
    let done = roll_back(&mut |entry| {
        assert_eq!(entry.file, new);
        Err(Error::Busy)
    });
    assert!(matches!(done, Err(Error::Busy)), "{done:?}");
    let file = pool.file(new).unwrap();
    file.write_at(b"not committed", 0).unwrap();
    let done = roll_back(&mut |_| Ok(()));
    assert!(matches!(done, Err(Error::Busy)), "{done:?}");
    assert_eq!(there(), new);
    file.commit(Durability::Durable).unwrap();
    roll_back(&mut |_| Ok(())).unwrap();
    assert_eq!(there(), old);
    assert!(pool.attributes(new).is_err());
}
