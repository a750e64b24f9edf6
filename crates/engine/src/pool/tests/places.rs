//! Errors about damage say where it lies, what was expected and what was found. A defect of
//! Hardpack is an error of its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::codec::{CodecError, CodecId};
use crate::device::{Device, MemoryDevice};
use crate::error::{Error, Location, Result};
use crate::pool::extents::file_extent_key;
use crate::pool::extents::source::Source;
use crate::pool::namespace::edit::Edit;
use crate::pool::write::workers::Workers;
use crate::pool::{Attributes, Kind, Pool, ROOT, entries};
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::pointer::{Place, Pointer};
use crate::store::superblock::{BLOCK_LEN, RING_OFFSET, SLOT_COUNT};
use crate::store::trees::TreeId;
use crate::store::{Durability, Encoding, Patience, Txn};
use crate::test_common::{Rng, create, only_file, options, read_all};
use crate::units::FileId;

/// A pool with the file `main` of 300 KiB, closed.
fn fixture() -> (Arc<dyn Device>, FileId) {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let pool = create(&device, &[], 1 << 20);
    let file = only_file(&pool).unwrap();
    file.write_at(&Rng(5).noise(300 << 10), 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    let id = pool.only_file().unwrap().file;
    pool.close().unwrap();
    (device, id)
}

fn open(device: &Arc<dyn Device>) -> Pool {
    Pool::open(Arc::clone(device), options(1 << 20)).unwrap()
}

/// The key of an entry of kind `kind` in the tree of names.
fn names_key(kind: u8, file: FileId, rest: &[u8]) -> Vec<u8> {
    [&[kind][..], &file.0.to_be_bytes(), rest].concat()
}

/// The value of the record at `offset`.
fn record_value(pool: &Pool, file: FileId, offset: u64) -> Vec<u8> {
    let key = file_extent_key(file, offset);
    pool.read(|source| source.get(TreeId::Map, &key)).unwrap().unwrap()
}

/// Changes trees behind the back of the pool.
fn tamper(pool: &Pool, change: impl FnOnce(&mut Txn) -> Result<()>) {
    let mut txn = pool.store().begin_with(ChecksumKind::Xxh3, Patience::None).unwrap();
    change(&mut txn).unwrap();
    txn.commit(Durability::Durable).unwrap();
}

/// Takes an error about damage apart.
fn damage<T: std::fmt::Debug>(done: Result<T>) -> (&'static str, Location, String) {
    let error = done.unwrap_err();
    assert!(error.is_corruption(), "{error:?}");
    match error {
        Error::Corrupt { what, location, detail } => {
            assert!(detail.contains("expected") && detail.contains("found"), "{detail}");
            (what, location, detail)
        }
        other => panic!("{other:?}"),
    }
}

fn entry(tree: &'static str, key: &[u8]) -> Location {
    Location::Entry { tree, key: key.into() }
}

#[test]
fn places_read_well() {
    let cases = [
        (Location::Byte(1234), "at byte 1234"),
        (Location::Tree("names"), "in the names tree"),
        (entry("refs", &[0, 0xab]), "in the refs tree at key 0x00ab"),
        (Location::File(FileId(7)), "in file number 7"),
        (Location::Range(FileId(7), 0..4096), "in file number 7 at bytes 0..4096"),
        (Location::Stream(96), "at byte 96"),
        (Location::Frame(3), "in frame 3"),
        (Location::Nowhere, "at an unknown place"),
    ];
    for (location, expected) in cases {
        assert_eq!(location.to_string(), expected);
    }
    let long = entry("names", &[0x11; 200]).to_string();
    assert_eq!(long, format!("in the names tree at key 0x{}…", "11".repeat(32)));
    let error = Error::corrupt("extent", Location::Byte(8), "expected 1, found 2");
    assert_eq!(error.to_string(), "corrupt extent at byte 8: expected 1, found 2");
}

#[test]
fn entries_of_the_names_tree_are_named_by_their_keys() {
    let (device, file) = fixture();
    let pool = open(&device);
    let key = names_key(1, ROOT, b"main");
    tamper(&pool, |txn| txn.insert(TreeId::Names, &key, b"bad").map(drop));
    let (what, location, detail) = damage(pool.lookup_in(ROOT, b"main"));
    assert_eq!((what, location), ("directory entry", entry("names", &key)));
    assert_eq!(detail, "expected a kind and a file number, found 3 bytes, 0x626164");
    let (_, location, _) = damage(pool.list());
    assert_eq!(location, entry("names", &key));
    let attributes = names_key(2, file, &[]);
    tamper(&pool, |txn| txn.insert(TreeId::Names, &attributes, &[]).map(drop));
    let (what, location, detail) = damage(pool.attributes(file));
    assert_eq!((what, location), ("attributes", entry("names", &attributes)));
    assert!(detail.ends_with("found no bytes"), "{detail}");
}

#[test]
fn directories_in_a_circle_are_named() {
    let (device, file) = fixture();
    let pool = open(&device);
    let like = Attributes::new(Kind::Directory, ROOT);
    let directory = pool.edit(0, |edit: &mut Edit<'_>| edit.create(ROOT, b"d", &like)).unwrap();
    tamper(&pool, |txn| {
        let attributes = Attributes::new(Kind::Directory, directory);
        entries::set_attributes(txn, directory, &attributes)
    });
    let (what, location, _) = damage(pool.settings(directory));
    assert_eq!((what, location), ("directory", Location::File(directory)));
    pool.settings(file).unwrap();
}

#[test]
fn records_and_patches_are_named_by_their_file_and_bytes() {
    let (device, file) = fixture();
    let pool = open(&device);
    let key = file_extent_key(file, 128 << 10);
    let right = record_value(&pool, file, 128 << 10);
    // No pointer at all.
    tamper(&pool, |txn| txn.insert(TreeId::Map, &key, b"no pointer").map(drop));
    let read_at = |offset| pool.file(file).unwrap().read_at(&mut [0; 100], offset);
    let (what, location, detail) = damage(read_at(128 << 10));
    assert_eq!((what, location), ("pointer", entry("map", &key)));
    assert!(detail.contains("found 10 bytes, 0x6e6f20"), "{detail}");
    // A record that cannot begin there.
    let odd = file_extent_key(file, 4096);
    tamper(&pool, |txn| txn.insert(TreeId::Map, &odd, &right).map(drop));
    let (what, location, _) = damage(read_at(4096));
    assert_eq!((what, location), ("record", Location::Range(file, 4096..4096 + (128 << 10))));
    tamper(&pool, |txn| txn.remove(TreeId::Map, &odd).map(drop));
    // Bytes in the pointer that are none of its codec: they have no place but their file's.
    tamper(&pool, |txn| {
        let zstd = Encoding { codec: CodecId::Zstd, ..Encoding::RAW };
        let pointer = txn.embed(Some(&[1, 2, 3]), zstd, 128 << 10)?;
        let pointer = Pointer { span_log2: 17, ..pointer };
        txn.insert(TreeId::Map, &key, &pointer.to_bytes()).map(drop)
    });
    let error = read_at(128 << 10).unwrap_err();
    assert!(
        matches!(&error, Error::Corrupt { location: Location::Range(found, range), .. }
            if *found == file && *range == (128 << 10..256 << 10)),
        "{error:?}"
    );
    tamper(&pool, |txn| txn.insert(TreeId::Map, &key, &right).map(drop));
    assert_eq!(read_all(&pool.file(file).unwrap()).unwrap(), Rng(5).noise(300 << 10));
}

#[test]
fn a_check_names_the_file_of_bytes_that_lie_in_a_pointer() {
    let (device, file) = fixture();
    let pool = open(&device);
    let key = file_extent_key(file, 128 << 10);
    tamper(&pool, |txn| {
        let zstd = Encoding { codec: CodecId::Zstd, ..Encoding::RAW };
        let pointer = txn.embed(Some(&[1, 2, 3]), zstd, 128 << 10)?;
        let pointer = Pointer { span_log2: 17, ..pointer };
        txn.insert(TreeId::Map, &key, &pointer.to_bytes()).map(drop)
    });
    let report = pool.check(&mut |_| {}).unwrap();
    let details: Vec<&str> = report.problems.iter().map(|problem| &problem.detail[..]).collect();
    let place = Location::Range(file, 128 << 10..256 << 10).to_string();
    assert!(details.iter().any(|detail| detail.contains(&place)), "{details:?}");
    assert!(!details.iter().any(|detail| detail.contains("unknown place")), "{details:?}");
}

#[test]
fn extents_are_named_by_their_bytes() {
    let (device, file) = fixture();
    let pool = open(&device);
    let pointer = Pointer::decode(&record_value(&pool, file, 0)).unwrap();
    assert!(matches!(pointer.place, Place::Extent { .. }));
    let offset = pool.store().offset_of(&pointer);
    drop(pool);
    let mut byte = [0];
    device.read_at(&mut byte, offset).unwrap();
    device.write_at(&[byte[0] ^ 1], offset).unwrap();
    let pool = open(&device);
    let (what, location, detail) = damage(pool.file(file).unwrap().read_at(&mut [0; 100], 0));
    assert_eq!((what, location), ("extent", Location::Byte(offset)));
    assert!(detail.starts_with("expected xxh3 "), "{detail}");
    drop(pool);
    device.write_at(&vec![0; BLOCK_LEN * SLOT_COUNT as usize], RING_OFFSET).unwrap();
    let opened = Pool::open(Arc::clone(&device), options(1 << 20)).map(drop);
    let (what, location, _) = damage(opened);
    assert_eq!((what, location), ("superblock", Location::Byte(RING_OFFSET)));
}

#[test]
fn a_lost_worker_is_a_defect_and_no_damage() {
    for threads in [1, 4] {
        let done = std::panic::catch_unwind(|| {
            Workers::new(threads).run(50, |index| match index {
                37 => panic!("number {index} is odd"),
                index => Ok(index),
            })
        });
        match (threads, done) {
            // Without workers, the caller's panic is its own.
            (1, done) => assert!(done.is_err()),
            (_, done) => {
                let error = done.unwrap().unwrap_err();
                assert!(matches!(error, Error::Internal(_)) && !error.is_corruption(), "{error:?}");
                assert_eq!(
                    error.to_string(),
                    "internal error: a worker thread panicked: number 37 is odd"
                );
            }
        }
    }
    assert_eq!(Workers::new(4).run(50, Ok).unwrap(), (0..50).collect::<Vec<_>>());
}

#[test]
fn what_a_library_lacks_is_no_damage() {
    let library = || CodecError::Library { codec: CodecId::Zstd, reason: "out of memory" };
    let corrupt = || CodecError::Corrupt { codec: CodecId::Zstd, reason: "bad" };
    let decoding = |error| Error::decoding("extent", Location::Byte(7), error);
    assert_eq!(
        decoding(library()).to_string(),
        "cannot decompress data of the pool: zstd failed: out of memory"
    );
    assert!(matches!(decoding(corrupt()), Error::Corrupt { location: Location::Byte(7), .. }));
    assert!(matches!(Error::encoding("record", library()), Error::Io { .. }));
    assert!(matches!(Error::encoding("record", corrupt()), Error::Internal(_)));
}

#[test]
fn a_place_that_is_known_is_kept() {
    let without = || Error::corrupt("pointer", Location::Nowhere, "expected one, found none");
    let with = without().or_at(|| Location::File(FileId(3)));
    assert!(matches!(&with, Error::Corrupt { location: Location::File(FileId(3)), .. }));
    let again = with.or_at(|| panic!("it has a place"));
    assert!(matches!(&again, Error::Corrupt { location: Location::File(FileId(3)), .. }));
    assert!(matches!(Error::Busy.or_at(|| panic!("it needs no place")), Error::Busy));
}

#[test]
fn an_import_names_what_lay_in_a_removed_directory_by_its_path() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let pool = create(&device, &[], 1 << 20);
    let like = Attributes::new(Kind::Directory, ROOT);
    let mut import = pool.import(1);
    let above = import.directory(ROOT, b"above", &like, &[]).unwrap();
    let inner = import.directory(above, b"inner", &like, &[]).unwrap();
    import.flush().unwrap();
    pool.remove_at(b"above/inner", 2).unwrap();
    let like = Attributes::new(Kind::File, inner);
    import.file(inner, b"file", &like, &[], b"content".to_vec()).unwrap();
    let report = import.finish().unwrap();
    let [refused] = &report.refused[..] else { panic!("{report:?}") };
    assert_eq!(refused.path, b"above/inner/file");
    assert_eq!((&refused.why[..], refused.kept), ("its directory was removed", None));
}

#[test]
fn an_import_remembers_the_path_of_a_removed_directory() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let pool = create(&device, &[], 1 << 20);
    let like = Attributes::new(Kind::Directory, ROOT);
    let mut import = pool.import(1);
    let gone = import.directory(ROOT, b"gone", &like, &[]).unwrap();
    import.flush().unwrap();
    pool.remove_at(b"gone", 2).unwrap();
    let like = Attributes::new(Kind::File, gone);
    import.file(gone, b"one", &like, &[], b"1".to_vec()).unwrap();
    import.flush().unwrap();
    // So many that the import forgets those before them.
    for number in 0..=1 << 16 {
        let like = Attributes::new(Kind::Directory, ROOT);
        import.directory(ROOT, format!("{number}").as_bytes(), &like, &[]).unwrap();
    }
    import.flush().unwrap();
    import.file(gone, b"two", &like, &[], b"2".to_vec()).unwrap();
    let report = import.finish().unwrap();
    let paths: Vec<&[u8]> = report.refused.iter().map(|refused| &refused.path[..]).collect();
    assert_eq!(paths, [&b"gone/one"[..], b"gone/two"]);
}

/// What appears under a name while a file for it is on its way belongs to somebody who must be
/// asked. Refused files are not counted, and leave nothing behind.
#[test]
fn an_import_asks_before_it_replaces_a_file() {
    const LEN: usize = 9 << 20;
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let pool = create(&device, &[], 1 << 20);
    let like = Attributes::new(Kind::File, ROOT);
    for kept in [false, true] {
        let asked = std::cell::RefCell::new(Vec::new());
        let mut import = pool.import(1);
        import.ask_before_replacing(|file| {
            asked.borrow_mut().push(file);
            if kept { Err("it is mine".into()) } else { Ok(()) }
        });
        // Its parts are stored, but the rest still waits for its transaction.
        import.file(ROOT, b"long", &like, &[], vec![b'x'; LEN]).unwrap();
        import.file(ROOT, b"other", &like, &[], b"other".to_vec()).unwrap();
        import.file(ROOT, b"short", &like, &[], b"short".to_vec()).unwrap();
        import.symlink(ROOT, b"link", &like, b"target").unwrap();
        import.hard_link((ROOT, b"other"), ROOT, b"hard").unwrap();
        import.file(ROOT, b"named twice", &like, &[], b"one".to_vec()).unwrap();
        // Somebody makes files of these names meanwhile.
        let names: [&[u8]; 5] = [b"hard", b"link", b"long", b"named twice", b"short"];
        let mut files = Vec::new();
        for name in names {
            if pool.lookup_in(ROOT, name).unwrap().is_some() {
                pool.remove_at(name, 1).unwrap();
            }
            let file = pool.edit(1, |edit| edit.create(ROOT, name, &like)).unwrap();
            files.push(file);
        }
        pool.edit(1, |edit| edit.link(files[3], ROOT, b"second name")).unwrap();
        let report = import.finish().unwrap();
        let mut asked = asked.into_inner();
        asked.sort();
        let mut expected = files.clone();
        // A file that keeps another name goes on.
        expected.remove(3);
        assert_eq!(asked, expected, "kept: {kept}");
        let mut refused: Vec<_> = report.refused.iter().map(|refused| refused.kept).collect();
        refused.sort();
        let now: Vec<FileId> =
            names.iter().map(|name| pool.lookup_in(ROOT, name).unwrap().unwrap().file).collect();
        let counted = (report.files, report.symlinks, report.hard_links, report.bytes);
        if kept {
            assert_eq!(refused, expected.iter().copied().map(Some).collect::<Vec<_>>());
            assert!(report.refused.iter().all(|refused| refused.why == "it is mine"));
            assert_eq!(counted, (2, 0, 0, 8));
            assert!(now.iter().zip(&files).all(|(now, file)| (now == file) != (*file == files[3])));
        } else {
            assert_eq!(refused, []);
            assert_eq!(counted, (4, 1, 1, 13 + LEN as u64));
            assert_eq!(pool.file(now[2]).unwrap().len().unwrap(), LEN as u64);
        }
        // No part of a refused file stays, without a name.
        assert_eq!(pool.remove_nameless(&mut |_| false).unwrap(), 0);
        pool.remove_at(b"second name", 1).unwrap();
        pool.remove_at(b"other", 1).unwrap();
    }
    let checked = pool.check(&mut |_| {}).unwrap();
    assert!(checked.problems.is_empty(), "{checked:?}");
}

/// The sources below a folder.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && name != "tests" {
            sources(&path, found);
        } else if name.ends_with(".rs") && name != "tests.rs" {
            found.push(path);
        }
    }
}

/// Damage is reported without a place only where the caller knows the place and adds it. Only the
/// header is at byte 0.
#[test]
fn no_other_damage_is_without_a_place() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    let (mut nowhere, mut header) = (Vec::new(), Vec::new());
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let name = file.strip_prefix(&src).unwrap().to_str().unwrap().to_owned();
        if text.contains("Location::Nowhere") && name != "error.rs" {
            nowhere.push(name.clone());
        }
        if text.contains("Location::Byte(0)") {
            header.push(name);
        }
    }
    nowhere.sort();
    assert_eq!(
        nowhere,
        [
            "pool/extents/mod.rs",
            "pool/stream/apply.rs",
            "store/extent.rs",
            "store/format/pointer.rs"
        ]
    );
    assert_eq!(header, ["store/format/superblock.rs"]);
}
