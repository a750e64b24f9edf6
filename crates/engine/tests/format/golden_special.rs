//! Checks that a pool with special files can be read for ever (see `golden.rs`), and what can be
//! done with such files.

use std::path::Path;
use std::sync::Arc;

use crate::common::{create, options, problems};
use hardpack_engine::device::{Device, MemoryDevice};
use hardpack_engine::pool::{
    Attributes, CloneSource, DeviceNumber, FileOwner, Kind, Pool, ROOT, Salvage,
};
use hardpack_engine::store::superblock::FEATURE_SPECIAL_FILES;
use hardpack_engine::{Error, FileId};

const DEVICE: DeviceNumber = DeviceNumber { major: 4, minor: 0x1_2345 };

/// The special files of the pool: name, kind and device.
const SPECIAL: [(&[u8], Kind, DeviceNumber); 4] = [
    (b"block", Kind::BlockDevice, DeviceNumber { major: 259, minor: 1 }),
    (b"char", Kind::CharDevice, DEVICE),
    (b"fifo", Kind::Fifo, DeviceNumber { major: 0, minor: 0 }),
    (b"socket", Kind::Socket, DeviceNumber { major: 0, minor: 0 }),
];

fn like((kind, device): (Kind, DeviceNumber)) -> Attributes {
    Attributes {
        mode: 0o640,
        owner: Some(FileOwner { uid: 3, gid: 4 }),
        modified_ns: 5,
        device,
        ..Attributes::new(kind, ROOT)
    }
}

fn new_pool() -> (Arc<MemoryDevice>, Pool) {
    let device = Arc::new(MemoryDevice::default());
    let dynamic: Arc<dyn Device> = device.clone();
    (device, create(&dynamic, &[], 32 << 20))
}

fn add_special(pool: &Pool) {
    pool.edit(7, |edit| {
        for (name, kind, device) in SPECIAL {
            edit.create(ROOT, name, &like((kind, device)))?;
        }
        let fifo = edit.resolve(b"fifo", false)?.file;
        edit.set_xattr(fifo, b"trusted.note", b"value")?;
        edit.link(fifo, ROOT, b"second name")
    })
    .unwrap();
}

fn has_feature(pool: &Pool) -> bool {
    pool.state().superblock.incompat & FEATURE_SPECIAL_FILES != 0
}

fn assert_special(pool: &Pool, directory: FileId) {
    for (name, kind, device) in SPECIAL {
        let entry = pool.lookup_in(directory, name).unwrap().unwrap();
        let found = pool.attributes(entry.file).unwrap();
        assert_eq!((entry.kind, found.kind, found.device, found.len), (kind, kind, device, 0));
        assert_eq!((found.mode, found.owner), (0o640, Some(FileOwner { uid: 3, gid: 4 })));
        let links = if kind == Kind::Fifo { 2 } else { 1 };
        assert_eq!(found.link_count, links, "{kind}");
    }
    let fifo = pool.lookup_in(directory, b"second name").unwrap().unwrap().file;
    assert_eq!(pool.xattr(fifo, b"trusted.note").unwrap(), Some(b"value".to_vec()));
}

#[test]
fn the_golden_pool_with_special_files_is_read() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v2-special-files.hpk");
    if std::env::var_os("HARDPACK_WRITE_GOLDEN").is_some() && !path.exists() {
        let (device, pool) = new_pool();
        add_special(&pool);
        pool.close().unwrap();
        std::fs::write(&path, device.image()).unwrap();
    }
    let device = Arc::new(MemoryDevice::new(std::fs::read(&path).unwrap()));
    let pool = Pool::open(device, options(1 << 20)).unwrap();
    assert!(has_feature(&pool));
    assert_special(&pool, ROOT);
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    pool.edit(0, |edit| edit.unlink(ROOT, b"socket")).unwrap();
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}

/// Pools without special files stay readable by versions that do not know them.
#[test]
fn the_feature_is_set_when_the_first_one_is_made_and_stays() {
    let (_, pool) = new_pool();
    pool.edit(0, |edit| {
        let d = edit.create(ROOT, b"d", &Attributes::new(Kind::Directory, ROOT))?;
        edit.symlink(d, b"link", b"target", &Attributes::new(Kind::Symlink, d))
    })
    .unwrap();
    assert!(!has_feature(&pool));
    let fifo = like((Kind::Fifo, DeviceNumber::default()));
    pool.edit(0, |edit| edit.create(ROOT, b"p", &fifo)).unwrap();
    assert!(has_feature(&pool));
    pool.edit(0, |edit| edit.unlink(ROOT, b"p")).unwrap();
    assert!(has_feature(&pool));
}

#[test]
fn there_is_no_content_and_only_devices_have_numbers() {
    let (_, pool) = new_pool();
    add_special(&pool);
    for (name, kind, _) in SPECIAL {
        let entry = pool.lookup_in(ROOT, name).unwrap().unwrap();
        let refused = pool.file(entry.file).unwrap_err();
        let expected = format!("'{}' is a {kind}, not a file", entry.display_name());
        assert!(matches!(&refused, Error::Invalid(what) if *what == expected), "{refused}");
        let known = pool.attributes(entry.file).unwrap();
        let set = |new: Attributes| pool.edit(0, |edit| edit.set_attributes(entry.file, &new));
        set(Attributes { len: 1, ..known }).unwrap_err();
        let other = set(Attributes { device: DEVICE, ..known });
        assert_eq!(other.is_ok(), kind.is_device(), "{kind}");
        set(known).unwrap();
        pool.create_snapshot(entry.file, b"s", 0).unwrap_err();
    }
    let device = Attributes { device: DEVICE, ..Attributes::new(Kind::File, ROOT) };
    pool.edit(0, |edit| edit.create(ROOT, b"wrong", &device)).unwrap_err();
    assert_special(&pool, ROOT);
}

#[test]
fn snapshots_clones_and_salvage_have_them() {
    let (device, pool) = new_pool();
    add_special(&pool);
    pool.create_snapshot(ROOT, b"s", 0).unwrap();
    pool.edit(9, |edit| {
        edit.unlink(ROOT, b"char")?;
        edit.rename((ROOT, b"block"), (ROOT, b"moved"))?;
        edit.create(ROOT, b"char", &like((Kind::Socket, DeviceNumber::default()))).map(drop)
    })
    .unwrap();
    assert_special(&pool.open_snapshot(ROOT, b"s").unwrap(), ROOT);
    pool.rollback(ROOT, b"s").unwrap();
    assert_special(&pool, ROOT);
    assert!(pool.lookup_in(ROOT, b"moved").unwrap().is_none());
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());

    let new = Attributes::new(Kind::Directory, ROOT);
    let copies = pool.edit(0, |edit| edit.create(ROOT, b"copies", &new)).unwrap();
    for (name, kind, number) in SPECIAL {
        let file = pool.lookup_in(ROOT, name).unwrap().unwrap().file;
        let source = CloneSource::new(file);
        let clone = pool.clone_as(&source, copies, name, 0).unwrap();
        let found = pool.attributes(clone).unwrap();
        assert_eq!((found.kind, found.device), (kind, number));
    }
    pool.close().unwrap();

    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(device.image()));
    let salvage = Salvage::open(device, &options(1 << 20), None, &mut |_| {}).unwrap();
    for (name, kind, number) in SPECIAL {
        let of_name = |path: &[Vec<u8>]| path == [name.to_vec()];
        let found = salvage.files().iter().find(|file| of_name(&file.path)).unwrap();
        assert_eq!((found.attributes.kind, found.attributes.device), (kind, number));
    }
}
