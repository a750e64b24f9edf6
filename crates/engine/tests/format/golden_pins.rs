//! Checks that a pool whose readers pin their states in slots can be read for ever (see
//! `golden.rs`).

use std::path::Path;
use std::sync::Arc;

use crate::common::{create, only_file, options, problems, read_all};
use hardpack_engine::device::{Device, MemoryDevice, Slot};
use hardpack_engine::pool::{Pool, Property, ROOT};
use hardpack_engine::store::Durability;
use hardpack_engine::store::superblock::{FEATURE_PINNED_READERS, FEATURE_READER_SLOTS};

static CONTENT: [u8; 20_000] = [b'p'; 20_000];

/// Writes a pool in which a reader held a state while a later one was committed.
fn write() -> Vec<u8> {
    let device = Arc::new(MemoryDevice::default());
    let dynamic: Arc<dyn Device> = device.clone();
    let properties = [(Property::Concurrency, "snapshot"), (Property::ReaderPinMax, "10min")];
    let pool = create(&dynamic, &properties, 32 << 20);
    let file = only_file(&pool).unwrap();
    file.write_at(&[b'o'; 20_000], 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    let pin = pool.store().pin().unwrap();
    file.write_at(&CONTENT, 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    pool.set_property(file.id(), Property::Concurrency, "sqlite").unwrap();
    drop(pin);
    pool.close().unwrap();
    device.image()
}

#[test]
fn the_golden_pool_with_pinned_readers_is_read() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v2-pinned-readers.hpk");
    if std::env::var_os("HARDPACK_WRITE_GOLDEN").is_some() && !path.exists() {
        std::fs::write(&path, write()).unwrap();
    }
    let device = Arc::new(MemoryDevice::new(std::fs::read(&path).unwrap()));
    let pool = Pool::open(device, options(1 << 20)).unwrap();
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    let wanted = FEATURE_PINNED_READERS | FEATURE_READER_SLOTS;
    assert_eq!(pool.state().superblock.incompat & wanted, wanted);
    let file = only_file(&pool).unwrap();
    assert!(read_all(&file).unwrap() == CONTENT);
    let local = |id| pool.local_properties(id).unwrap();
    assert!(local(file.id()).contains(&(Property::Concurrency, "sqlite".into())));
    assert!(local(ROOT).contains(&(Property::ReaderPinMax, "10min".into())), "{:?}", local(ROOT));
    // Where a lock stands is part of the format.
    assert_eq!(Slot::of_file(file.id().0).number(), 1 + file.id().0 as u16);
    assert!(pool.store().has_reader_slots());
    file.write_at(b"more", 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}
