//! The generation of a file's content, which identifies its companion files: it changes whenever
//! the content is replaced from outside, never with a write, and never repeats.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::common::{create, only_file, options, problems, read_all};
use hardpack_engine::device::{Device, MemoryDevice};
use hardpack_engine::pool::{Attributes, Kind, Pool, Property, ROOT, ReceiveOptions, SendPlan};
use hardpack_engine::store::Durability;
use hardpack_engine::{Error, FileId};

fn new_pool() -> (Arc<MemoryDevice>, Pool) {
    let device = Arc::new(MemoryDevice::default());
    let dynamic: Arc<dyn Device> = device.clone();
    (device, create(&dynamic, &[(Property::RecordSize, "16K")], 32 << 20))
}

fn write(pool: &Pool, file: FileId, byte: u8) {
    let file = pool.file(file).unwrap();
    file.write_at(&[byte; 50_000], 0).unwrap();
    file.commit(Durability::Durable).unwrap();
}

/// Asserts that the generation was not seen before, and returns it.
fn new(pool: &Pool, file: FileId, seen: &mut BTreeSet<u64>) -> u64 {
    let found = pool.generation(file).unwrap();
    assert!(found != 0 && seen.insert(found), "{found:#x} of {seen:x?}");
    found
}

#[test]
fn whatever_exchanges_content_gives_it_another_generation() {
    let (device, pool) = new_pool();
    let file = only_file(&pool).unwrap().id();
    let seen = &mut BTreeSet::new();
    write(&pool, file, 1);
    pool.create_snapshot(file, b"one", 1).unwrap();
    write(&pool, file, 2);
    assert_eq!(pool.generation(file).unwrap(), 0);
    pool.rollback(file, b"one").unwrap();
    let now = new(&pool, file, seen);
    write(&pool, file, 3);
    assert_eq!(pool.generation(file).unwrap(), now);
    pool.rollback(file, b"one").unwrap();
    let now = new(&pool, file, seen);
    // The content is the same already.
    pool.rollback(file, b"one").unwrap();
    assert_eq!(pool.generation(file).unwrap(), now);

    // A new file has its own number.
    let clone = pool.clone_file(file, ROOT, b"clone", 1).unwrap();
    pool.create_snapshot(file, b"two", 1).unwrap();
    let other = pool.clone_from_snapshot((file, b"two"), file, ROOT, b"other", 1).unwrap();
    for file in [clone, other] {
        assert_eq!(pool.generation(file).unwrap(), 0);
    }
    // An import replaces an existing file, and a file that comes back is not what it was.
    let mut import = pool.import(1);
    let attributes = Attributes::new(Kind::File, ROOT);
    import.file(ROOT, b"clone", &attributes, &[], vec![4; 10_000]).unwrap();
    import.finish().unwrap();
    assert_eq!(pool.lookup_in(ROOT, b"clone").unwrap().unwrap().file, clone);
    new(&pool, clone, seen);
    pool.create_snapshot(ROOT, b"all", 1).unwrap();
    pool.edit(1, |edit| edit.unlink(ROOT, b"clone")).unwrap();
    pool.rollback(ROOT, b"all").unwrap();
    new(&pool, clone, seen);
    assert_eq!(pool.generation(file).unwrap(), now);

    // A rewind changes the generations of all files, even of those that never had one.
    for _ in 0..2 {
        let before = pool.state().txg();
        write(&pool, file, 9);
        pool.rewind(before, &mut |_| {}).unwrap();
        new(&pool, file, seen);
        new(&pool, clone, seen);
        new(&pool, other, seen);
    }
    let last = pool.generation(file).unwrap();
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    pool.close().unwrap();
    drop(pool);
    let pool = Pool::open(device, options(1 << 20)).unwrap();
    assert_eq!(pool.generation(file).unwrap(), last);
    assert!(read_all(&pool.file(file).unwrap()).unwrap() == [1; 50_000]);
}

#[test]
fn what_is_received_has_another_generation_where_it_differs() {
    let (_, from) = new_pool();
    let directory = from
        .edit(1, |edit| edit.create(ROOT, b"d", &Attributes::new(Kind::Directory, ROOT)))
        .unwrap();
    let like = Attributes::new(Kind::File, directory);
    let [same, other] = [b"same", b"diff"]
        .map(|name| from.edit(1, |edit| edit.create(directory, name, &like)).unwrap());
    write(&from, same, 1);
    write(&from, other, 2);
    from.create_snapshot(directory, b"zero", 1).unwrap();
    // The file has a generation in its source pool, which stays there.
    write(&from, same, 5);
    from.rollback(directory, b"zero").unwrap();
    assert_ne!(from.generation(same).unwrap(), 0);
    from.create_snapshot(directory, b"one", 1).unwrap();
    write(&from, other, 3);
    from.create_snapshot(directory, b"two", 1).unwrap();
    let stream = |base: Option<&[u8]>, name: &[u8]| {
        let mut out = Vec::new();
        let open = |name: &[u8]| from.open_snapshot(directory, name).unwrap();
        let (snapshot, base) = (open(name), base.map(open));
        let plan = SendPlan {
            snapshot: &snapshot,
            base: base.as_ref(),
            scope: directory,
            name,
            created_ns: 1,
            resume: None,
        };
        from.send(&plan, &mut out, &mut |_| {}).unwrap();
        out
    };
    let (_, to) = new_pool();
    let full = stream(None, b"one");
    let step = stream(Some(b"one"), b"two");
    let report =
        to.receive(ROOT, b"d", &mut &full[..], &ReceiveOptions::default(), &mut |_| {}).unwrap();
    let find = |name: &[u8]| to.lookup_in(report.file, name).unwrap().unwrap().file;
    let (same, other) = (find(b"same"), find(b"diff"));
    assert_eq!([same, other].map(|file| to.generation(file).unwrap()), [0, 0]);
    // If others cannot be kept out, nothing is received.
    let busy = |_| Err(Error::Busy);
    let options = ReceiveOptions { before_change: Some(&busy), ..ReceiveOptions::default() };
    let refused = to.receive(ROOT, b"d", &mut &step[..], &options, &mut |_| {});
    assert!(matches!(refused, Err(Error::Busy)), "{refused:?}");
    assert!(read_all(&to.file(other).unwrap()).unwrap() == [2; 50_000]);
    to.receive(ROOT, b"d", &mut &step[..], &ReceiveOptions::default(), &mut |_| {}).unwrap();
    assert!(read_all(&to.file(other).unwrap()).unwrap() == [3; 50_000]);
    assert_eq!(to.generation(same).unwrap(), 0);
    new(&to, other, &mut BTreeSet::new());
    assert_eq!(problems(&to).unwrap(), Vec::<String>::new());
}

#[test]
fn a_file_that_comes_back_empty_gets_another_generation() {
    for scope_is_root in [false, true] {
        let (_device, pool) = new_pool();
        let like = Attributes::new(Kind::File, ROOT);
        let file = pool.edit(1, |edit| edit.create(ROOT, b"empty", &like)).unwrap();
        let scope = if scope_is_root { ROOT } else { file };
        pool.create_snapshot(scope, b"one", 1).unwrap();
        // The file gets a log of generation 0.
        write(&pool, file, 1);
        pool.edit(1, |edit| edit.unlink(ROOT, b"empty")).unwrap();
        pool.rollback(scope, b"one").unwrap();
        assert_eq!(pool.lookup_in(ROOT, b"empty").unwrap().unwrap().file, file);
        new(&pool, file, &mut BTreeSet::new());
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    }
}

#[test]
fn copies_of_a_pool_that_import_something_else_do_not_meet_in_one_generation() {
    let (device, pool) = new_pool();
    let attributes = Attributes::new(Kind::File, ROOT);
    let mut import = pool.import(1);
    import.file(ROOT, b"base", &attributes, &[], vec![4; 10_000]).unwrap();
    import.finish().unwrap();
    pool.close().unwrap();
    drop(pool);
    let mut image = vec![0; device.len().unwrap() as usize];
    device.read_at(&mut image, 0).unwrap();
    let mut seen = BTreeSet::new();
    for byte in [5, 6] {
        let copy: Arc<dyn Device> = Arc::new(MemoryDevice::default());
        copy.write_at(&image, 0).unwrap();
        let pool = Pool::open(copy, options(1 << 20)).unwrap();
        let mut import = pool.import(1);
        import.file(ROOT, b"base", &attributes, &[], vec![byte; 10_000]).unwrap();
        import.finish().unwrap();
        let file = pool.lookup_in(ROOT, b"base").unwrap().unwrap().file;
        new(&pool, file, &mut seen);
    }
}
