//! A pool whose file somebody overwrites with another pool, or with an older copy of it, while a
//! process has it open: that process writes nothing more to it, and says why.

use std::sync::Arc;

use crate::device::{Device, MemoryDevice};
use crate::error::{Error, Result};
use crate::pool::{CreateOptions, File, Pool, Property};
use crate::store::Durability;
use crate::test_common::{Rng, create_options, only_file, options, problems, read_all};

const RECORD_LEN: u64 = 16 << 10;
const COUNT: u64 = 20;

fn write(file: &File, record: u64, seed: u64) -> Result<()> {
    file.write_at(&Rng(seed).noise(RECORD_LEN as usize), record * RECORD_LEN)?;
    file.commit(Durability::Durable)
}

/// Creates a pool with a file of some records, and with free space, so that it keeps its length.
fn fixture(guid: u8) -> (Arc<MemoryDevice>, Pool, Arc<File>) {
    let memory = Arc::new(MemoryDevice::default());
    let device: Arc<dyn Device> = memory.clone();
    let create = create_options(9, &[(Property::RecordSize, "16K")]);
    let create = CreateOptions { guid: [guid; 16], ..create };
    let pool = Pool::create(device, &create, options(1 << 20)).unwrap();
    let file = only_file(&pool).unwrap();
    for record in 0..2 * COUNT {
        write(&file, record, record).unwrap();
    }
    file.set_len(COUNT * RECORD_LEN).unwrap();
    file.commit(Durability::Durable).unwrap();
    for record in 0..3 {
        write(&file, record, 50 + record).unwrap();
    }
    (memory, pool, file)
}

/// What a fresh process finds is the copy, whole, and what `others` committed to it.
fn assert_untouched(memory: &Arc<MemoryDevice>, before: &[u8], copied: &[u8]) {
    assert!(memory.image() == before, "something was written");
    let pool = Pool::open(memory.clone(), options(1 << 20)).unwrap();
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    assert!(read_all(&only_file(&pool).unwrap()).unwrap() == copied);
}

fn assert_refused(done: Result<()>, label: &str) {
    assert!(matches!(done, Err(Error::Overwritten)), "{label}: {done:?}");
}

#[test]
fn nothing_is_written_to_an_older_copy() {
    // Others commit to the copy meanwhile, as often as this process did after it was made.
    for (own, others) in [(1, 0), (4, 0), (1, 1), (4, 2), (4, 4)] {
        let (memory, _pool, file) = fixture(1);
        let copy = memory.image();
        for seed in 0..own {
            write(&file, seed, 100 + seed).unwrap();
        }
        memory.write_at(&copy, 0).unwrap();
        let other = Pool::open(memory.clone(), options(1 << 20)).unwrap();
        let theirs = only_file(&other).unwrap();
        for seed in 0..others {
            write(&theirs, 9 + seed, 200 + seed).unwrap();
        }
        let (before, copied) = (memory.image(), read_all(&theirs).unwrap());
        let label = format!("{own} commits, {others} of others");
        for seed in 300..303 {
            assert_refused(write(&file, seed % COUNT, seed), &label);
            file.discard();
        }
        assert_untouched(&memory, &before, &copied);
        // Once others are ahead, their state is the newest, as after any commit of theirs.
        for seed in 0..5 {
            write(&theirs, 9 + seed, 400 + seed).unwrap();
        }
        write(&file, 19, 500).unwrap();
        assert_eq!(problems(&other).unwrap(), Vec::<String>::new(), "{label}");
    }
}

#[test]
fn nothing_is_written_to_another_pool() {
    let (memory, _pool, file) = fixture(1);
    let (another, _theirs, theirs) = fixture(2);
    memory.write_at(&another.image(), 0).unwrap();
    memory.set_len(another.len().unwrap()).unwrap();
    let before = memory.image();
    for seed in 300..303 {
        assert_refused(write(&file, seed % COUNT, seed), "another pool");
        file.discard();
    }
    assert_untouched(&memory, &before, &read_all(&theirs).unwrap());
}

#[test]
fn a_read_that_finds_other_bytes_says_why() {
    let (memory, _pool, _file) = fixture(1);
    let copy = memory.image();
    let pool = Pool::open(memory.clone(), options(0)).unwrap();
    let file = only_file(&pool).unwrap();
    for seed in 0..6 {
        write(&file, seed, 100 + seed).unwrap();
    }
    // It has nothing in its cache.
    let reader = Pool::open(memory.clone(), options(0)).unwrap();
    let reading = only_file(&reader).unwrap();
    memory.write_at(&copy, 0).unwrap();
    let read = read_all(&reading).map(drop);
    assert_refused(read, "a read");
}
