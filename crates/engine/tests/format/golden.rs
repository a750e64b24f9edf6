//! Checks that the format stays as it is: a pool written by an earlier version can be read for
//! ever.
//!
//! `golden/v1.hpk` is never written again. Nor is `golden/v1-deltas.hpk`, whose patches hold only
//! differences from their records, a later feature; nor `golden/v2-roots.hpk`. Only while the
//! format is not released yet, or together with a new version of it, create a missing pool with:
//!
//! ```text
//! HARDPACK_WRITE_GOLDEN=1 cargo test -p hardpack-engine --test format
//! ```

use std::path::PathBuf;
use std::sync::Arc;

use crate::common::live::newest_superblock;
use crate::common::{GUID, Rng, create, only_file, options, problems, read_all, train};
use hardpack_engine::device::{Device, FileDevice, MemoryDevice};
use hardpack_engine::pool::{
    Fold, Pool, Property, ROOT, ReceiveOptions, ResumeToken, SendPlan, Settings, StepLimits,
};
use hardpack_engine::store::format::pointer::data_pointer;
use hardpack_engine::store::pointer::Place;
use hardpack_engine::store::superblock::{
    BLOCK_LEN, FEATURE_DELTAS, FEATURE_DICTIONARIES, FEATURE_GENERATIONS, FEATURE_PAGE_FILTER,
    FEATURE_ROOTS, FEATURE_SNAPSHOT_IDS, SLOT_COUNT, Superblock, slot_offset,
};
use hardpack_engine::store::tree::walk::{Met, walk_tree};
use hardpack_engine::store::trees::TreeId;
use hardpack_engine::store::{Durability, Patience};
use hardpack_engine::{Error, FileId, Txg};

/// Each compresses one part of the file.
const COMPRESSIONS: [&str; 8] =
    ["lz4", "zstd-3", "gzip-6", "lzjb", "zle", "off", "lz4hc-9", "zstd-fast-1"];
/// The length of a part: a record of text, one of noise with long runs of zeros, a hole, and a
/// record that fits into its pointer. The uncompressed part has only the text.
const PART_LEN: usize = 4 * RECORD_LEN;
const RECORD_LEN: usize = 8192;

/// Returns the content of the golden pool's file. It does not use [`Rng::text`], which may change.
fn content() -> Vec<u8> {
    let mut bytes = Vec::new();
    for (part, name) in COMPRESSIONS.iter().enumerate() {
        let mut text = Vec::new();
        for line in 0.. {
            text.extend_from_slice(format!("{name}: line {line} of {}\n", line * part).as_bytes());
            if text.len() >= RECORD_LEN {
                break;
            }
        }
        text.truncate(RECORD_LEN);
        bytes.extend(text);
        let mut noise = vec![0; RECORD_LEN];
        let fills = |at: usize| at % 512 < 40 && *name != "off";
        for (at, byte) in noise.iter_mut().enumerate().filter(|(at, _)| fills(*at)) {
            *byte = (at * at / 7 + at * 31 + part) as u8;
        }
        bytes.extend(noise);
        bytes.extend(vec![0; RECORD_LEN]);
        let fill = if *name == "off" { 0 } else { part as u8 + 1 };
        bytes.extend(vec![fill; RECORD_LEN]);
    }
    // A patch in every part but the last, and an odd length.
    for part in 0..COMPRESSIONS.len() - 1 {
        bytes[part * PART_LEN + 4096..][..4096].copy_from_slice(&patch(part));
    }
    bytes.truncate(bytes.len() - 1234);
    bytes
}

fn patch(part: usize) -> Vec<u8> {
    format!("patch {part}. ").repeat(4096).into_bytes()[..4096].to_vec()
}

/// Writes the golden pool, with the same bytes every time.
fn write() -> Vec<u8> {
    let device = Arc::new(MemoryDevice::default());
    let dynamic: Arc<dyn Device> = device.clone();
    let pool = create(&dynamic, &[(Property::RecordSize, "8K")], 32 << 20);
    let file = only_file(&pool).unwrap();
    let content = content();
    for (part, compression) in COMPRESSIONS.iter().enumerate() {
        pool.set_property(file.id(), Property::Compression, compression).unwrap();
        if part % 3 == 1 {
            let checksum = ["sha256", "blake3", "xxh3"][part / 3];
            pool.set_property(file.id(), Property::Checksum, checksum).unwrap();
        }
        let start = part * PART_LEN;
        let mut bytes = content[start..(start + PART_LEN).min(content.len())].to_vec();
        if part < COMPRESSIONS.len() - 1 {
            bytes[4096..8192].fill(b'?');
        }
        file.write_at(&bytes, start as u64).unwrap();
        file.commit(Durability::Durable).unwrap();
    }
    for part in 0..COMPRESSIONS.len() - 1 {
        file.write_at(&patch(part), (part * PART_LEN + 4096) as u64).unwrap();
    }
    file.commit(Durability::Durable).unwrap();
    pool.set_attributes(file.id(), 0o640, 1_700_000_000_000_000_000).unwrap();
    pool.close().unwrap();
    device.image()
}

/// Counts the file extents stored by each codec, those inside their pointers, and the patches.
fn codecs(pool: &Pool) -> ([u64; 6], u64, u64) {
    let (mut counts, mut embedded, mut patches) = ([0; 6], 0, 0);
    for tree in [TreeId::Map, TreeId::Patches] {
        let state = pool.state();
        let Some(root) = &state.superblock.roots[tree] else { continue };
        walk_tree(pool.store(), tree, root, Txg(0), &mut |met| {
            if let Met::Entry(_, _, value) = met {
                let pointer = data_pointer(value)?;
                counts[usize::from(pointer.codec)] += 1;
                embedded += u64::from(matches!(pointer.place, Place::Embedded(_)));
                patches += u64::from(tree == TreeId::Patches);
            }
            Ok(())
        })
        .unwrap();
    }
    (counts, embedded, patches)
}

fn assert_golden(pool: &Pool) {
    assert_eq!(problems(pool).unwrap(), Vec::<String>::new());
    assert_eq!(pool.store().guid(), GUID);
    let entry = pool.only_file().unwrap();
    assert_eq!(entry.name, b"main");
    let attributes = pool.attributes(entry.file).unwrap();
    assert_eq!((attributes.mode, attributes.modified_ns), (0o640, 1_700_000_000_000_000_000));
    assert!(read_all(&only_file(pool).unwrap()).unwrap() == content(), "the content differs");
    let values: Vec<_> = pool.properties(entry.file).unwrap();
    let value = |property| values.iter().find(|v| v.property == property).unwrap().value.clone();
    assert_eq!(value(Property::Compression), "zstd-fast-1");
    assert_eq!(value(Property::RecordSize), "8K");
}

fn golden_path() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "golden", "v1.hpk"].iter().collect()
}

#[test]
fn the_golden_pool_is_read() {
    let path = golden_path();
    if std::env::var_os("HARDPACK_WRITE_GOLDEN").is_some() && !path.exists() {
        std::fs::write(&path, write()).unwrap();
    }
    // Read the file itself, and a copy that may be written to.
    let device: Arc<dyn Device> = Arc::new(FileDevice::open_read_only(&path).unwrap());
    let pool = Pool::open(device, options(1 << 20)).unwrap();
    assert_golden(&pool);
    let (counts, embedded, patches) = codecs(&pool);
    assert!(counts.iter().all(|count| *count > 0), "a codec does not occur: {counts:?}");
    assert!(embedded > 5 && patches > 3, "{embedded} embedded, {patches} patches");

    let copy = Arc::new(MemoryDevice::new(std::fs::read(&path).unwrap()));
    let pool = Pool::open(copy, options(1 << 20)).unwrap();
    let file = only_file(&pool).unwrap();
    file.write_at(&Rng(1).noise(50_000), 3000).unwrap();
    file.commit(Durability::Durable).unwrap();
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}

/// Reads a pool of version 2, which later got a tree of roots.
#[test]
fn the_golden_pool_of_version_2_is_read() {
    let path = golden_path().with_file_name("v2-roots.hpk");
    if std::env::var_os("HARDPACK_WRITE_GOLDEN").is_some() && !path.exists() {
        std::fs::write(&path, write()).unwrap();
    }
    let device: Arc<dyn Device> = Arc::new(FileDevice::open_read_only(&path).unwrap());
    let pool = Pool::open(device, options(1 << 20)).unwrap();
    assert_golden(&pool);
    let superblock = &pool.state().superblock;
    assert_eq!(superblock.incompat & FEATURE_ROOTS, FEATURE_ROOTS);
    assert!(superblock.roots[TreeId::Roots].is_some());
}

#[test]
fn writing_is_deterministic() {
    let image = write();
    assert!(image == write(), "two runs differ");
    assert!(image.len() < 100 << 10, "{} bytes", image.len());
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(image));
    assert_golden(&Pool::open(device, options(1 << 20)).unwrap());
}

/// Returns the content of the second golden pool's file: lines of text, with some bytes replaced in
/// every other page.
fn edited_content() -> Vec<u8> {
    let mut bytes = plain_content();
    for (at, new) in edits() {
        bytes[at..at + new.len()].copy_from_slice(&new);
    }
    bytes
}

fn plain_content() -> Vec<u8> {
    let mut bytes = Vec::new();
    for line in 0..5000 {
        bytes.extend_from_slice(format!("{line} times {line} is {}\n", line * line).as_bytes());
    }
    bytes
}

/// Returns edits, in turn: a number, two numbers far apart, and one too long for a pointer.
fn edits() -> Vec<(usize, Vec<u8>)> {
    let noise = |len: usize, by: usize| (0..len).map(|at| (at * at * 7 + at + by) as u8).collect();
    let mut edits: Vec<(usize, Vec<u8>)> = Vec::new();
    for page in (0..plain_content().len() / 4096).filter(|page| page % 2 == 0) {
        let at = page * 4096;
        match page % 3 {
            0 => edits.push((at + 100 + page, noise(4, page))),
            1 => edits.extend([(at, noise(8, page)), (at + 4090, noise(6, page))]),
            _ => edits.push((at + 700, noise(300, page))),
        }
    }
    edits
}

/// Writes the second golden pool, with the same bytes every time.
fn write_deltas() -> Vec<u8> {
    let device = Arc::new(MemoryDevice::default());
    let dynamic: Arc<dyn Device> = device.clone();
    let properties = [(Property::RecordSize, "16K"), (Property::Compression, "lz4")];
    let pool = create(&dynamic, &properties, 32 << 20);
    let file = only_file(&pool).unwrap();
    file.write_at(&plain_content(), 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    read_all(&file).unwrap();
    for (at, bytes) in edits() {
        file.write_at(&bytes, at as u64).unwrap();
    }
    file.commit(Durability::Durable).unwrap();
    pool.close().unwrap();
    device.image()
}

/// Counts the patches of a pool that are deltas inside their pointers, and those in extents.
fn deltas(pool: &Pool) -> (u64, u64) {
    let (mut embedded, mut in_extents) = (0, 0);
    let state = pool.state();
    let root = state.superblock.roots[TreeId::Patches].as_ref().expect("there are patches");
    walk_tree(pool.store(), TreeId::Patches, root, Txg(0), &mut |met| {
        if let Met::Entry(_, _, value) = met {
            let pointer = data_pointer(value)?;
            match pointer.place {
                Place::Embedded(_) => embedded += u64::from(pointer.is_delta()),
                _ => in_extents += u64::from(pointer.is_delta()),
            }
        }
        Ok(())
    })
    .unwrap();
    (embedded, in_extents)
}

fn assert_golden_deltas(pool: &Pool) {
    assert_eq!(problems(pool).unwrap(), Vec::<String>::new());
    assert_eq!(pool.state().superblock.incompat & !FEATURE_ROOTS, FEATURE_DELTAS);
    assert!(read_all(&only_file(pool).unwrap()).unwrap() == edited_content());
    let (embedded, in_extents) = deltas(pool);
    assert!(embedded > 5 && in_extents > 3, "{embedded} inside, {in_extents} in extents");
}

#[test]
fn the_golden_pool_with_deltas_is_read() {
    let path = golden_path().with_file_name("v1-deltas.hpk");
    if std::env::var_os("HARDPACK_WRITE_GOLDEN").is_some() && !path.exists() {
        std::fs::write(&path, write_deltas()).unwrap();
    }
    let device: Arc<dyn Device> = Arc::new(FileDevice::open_read_only(&path).unwrap());
    assert_golden_deltas(&Pool::open(device, options(1 << 20)).unwrap());
    // It can be written to like any other pool: patches are replaced, and all are folded.
    let copy = Arc::new(MemoryDevice::new(std::fs::read(&path).unwrap()));
    let pool = Pool::open(copy, options(1 << 20)).unwrap();
    let file = only_file(&pool).unwrap();
    file.write_at(b"new", 4200).unwrap();
    file.commit(Durability::Durable).unwrap();
    let mut expected = edited_content();
    expected[4200..4203].copy_from_slice(b"new");
    assert!(read_all(&file).unwrap() == expected);
    pool.fold(Fold::All, &StepLimits::default(), &mut |_| true).unwrap();
    assert!(read_all(&file).unwrap() == expected);
    assert!(pool.state().superblock.roots[TreeId::Patches].is_none());
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}

#[test]
fn writing_deltas_is_deterministic() {
    let image = write_deltas();
    assert!(image == write_deltas(), "two runs differ");
    assert!(image.len() < 180 << 10, "{} bytes", image.len());
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(image));
    assert_golden_deltas(&Pool::open(device, options(1 << 20)).unwrap());
}

/// A later version may use features that this one does not know: they are reported, and nothing is
/// touched.
#[test]
fn unknown_features_are_refused_by_name() {
    let image = write_deltas();
    let (slot, newest) = newest_superblock(&image).unwrap();
    let with = |change: &dyn Fn(&mut Superblock)| {
        let mut superblock = newest.clone();
        superblock.txg = Txg(newest.txg.0 + 1);
        change(&mut superblock);
        let mut image = image.clone();
        let at = slot_offset((slot + 1) % SLOT_COUNT) as usize;
        image[at..at + BLOCK_LEN].copy_from_slice(&superblock.encode(&GUID));
        Arc::new(MemoryDevice::new(image))
    };
    // Opening does not fall back to the previous state, although it could read that.
    let device = with(&|superblock| {
        superblock.incompat |= 1 << 40;
        superblock.foreign_names = "i40=column-filter r3=quotas".into();
    });
    let before = device.image();
    let error = Pool::open(device.clone(), options(1 << 20)).unwrap_err();
    assert!(matches!(error, Error::Unsupported(_)), "{error}");
    assert!(error.to_string().contains("without column-filter (bit 40)"), "{error}");
    assert!(device.image() == before, "the pool was written to");
    // With a feature that only writers must know, the pool can be read.
    let device = with(&|superblock| {
        superblock.read_only_compat |= 1 << 3;
        superblock.foreign_names = "r3=quotas".into();
    });
    let pool = Pool::open(device, options(1 << 20)).unwrap();
    let file = only_file(&pool).unwrap();
    assert!(read_all(&file).unwrap() == edited_content());
    file.write_at(b"new", 0).unwrap();
    let error = file.commit(Durability::Durable).unwrap_err();
    assert!(error.to_string().contains("without quotas (bit 3)"), "{error}");
    let error = pool.fold(Fold::All, &StepLimits::default(), &mut |_| true).unwrap_err();
    assert!(matches!(error, Error::Unsupported(_)), "{error}");
    // Any version may ignore these features.
    let device = with(&|superblock| superblock.compat |= 1 << 9);
    assert_golden_deltas(&Pool::open(device, options(1 << 20)).unwrap());
}

/// Returns the content of the file of the pool with a dictionary: records of 4 KiB, half of them
/// for lz4.
fn dictionary_content(pages: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in 0_u64.. {
        // Few words, but each too long to be predicted from the text before it in a page.
        let number = word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 55;
        let text = format!("{:016x}.", number.wrapping_mul(0xd134_2543_de82_ef95));
        bytes.extend_from_slice(text.as_bytes());
        if bytes.len() >= pages * 4096 {
            break;
        }
    }
    bytes.truncate(pages * 4096);
    bytes
}

/// Writes a pool whose records need a dictionary, with an unfinished repack. The dictionary was
/// trained on more data than is left.
fn write_dictionary() -> Vec<u8> {
    const LEFT_COUNT: usize = 32;
    let device = Arc::new(MemoryDevice::default());
    let dynamic: Arc<dyn Device> = device.clone();
    let pool = create(&dynamic, &[(Property::RecordSize, "4K")], 32 << 20);
    let file = only_file(&pool).unwrap();
    let all = dictionary_content(2100);
    let settings = train(&pool, &file, &all);
    for (part, compression) in ["zstd-3", "lz4"].into_iter().enumerate() {
        pool.set_property(file.id(), Property::Compression, compression).unwrap();
        let half = LEFT_COUNT / 2 * 4096;
        file.write_at(&all[part * half..][..half], (part * half) as u64).unwrap();
        file.commit(Durability::Durable).unwrap();
    }
    let goal = Settings { record_len: 128 << 10, ..settings };
    pool.begin_repack(file.id(), goal, Patience::Endless).unwrap();
    pool.store().make_durable().unwrap();
    let mut compaction = pool.compact();
    while compaction.step().unwrap() {}
    device.image()
}

#[test]
fn the_golden_pool_with_a_dictionary_is_read() {
    let path = golden_path().with_file_name("v2-dictionary.hpk");
    if std::env::var_os("HARDPACK_WRITE_GOLDEN").is_some() && !path.exists() {
        std::fs::write(&path, write_dictionary()).unwrap();
    }
    let copy = Arc::new(MemoryDevice::new(std::fs::read(&path).unwrap()));
    let pool = Pool::open(copy, options(1 << 20)).unwrap();
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    assert_eq!(pool.state().superblock.incompat, FEATURE_DICTIONARIES | FEATURE_ROOTS);
    let file = only_file(&pool).unwrap();
    let content = dictionary_content(32);
    assert!(read_all(&file).unwrap() == content);
    let mut codecs = [0; 2];
    let root = pool.state().superblock.roots[TreeId::Map].clone().unwrap();
    walk_tree(pool.store(), TreeId::Map, &root, Txg(0), &mut |met| {
        if let Met::Entry(_, _, value) = met {
            let pointer = data_pointer(value)?;
            let which = [5, 4].iter().position(|codec| *codec == pointer.codec);
            codecs[which.unwrap()] += usize::from(pointer.dictionary > 0);
        }
        Ok(())
    })
    .unwrap();
    assert!(codecs.iter().all(|count| *count > 10), "{codecs:?} records need the dictionary");
    // The unfinished repack goes on, and then the dictionary is gone.
    let mut repack = pool.unfinished_repack(file.id()).unwrap().expect("a repack was begun");
    while pool.repack_step(&mut repack, &StepLimits::default(), None).unwrap().next.is_some() {}
    assert_eq!(pool.unfinished_repack(file.id()).unwrap(), None);
    assert!(read_all(&file).unwrap() == content);
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}

/// Returns the content of the file of the pool with filtered records: the front of a database, and
/// leaves of a table with rows of an integer, a double, a text with a time, and a text. It does not
/// use [`Rng::table`], which may change.
fn table_content(pages: usize) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    bytes[..18].copy_from_slice(b"SQLite format 3\0\x10\0");
    for page in 1..pages {
        let mut leaf = vec![0; 4096];
        let (mut end, mut count) = (4096, 0);
        for row in 0..60_u32 {
            // Three bytes as a varint.
            let id = 20_000 + page as u32 * 60 + row;
            let time = format!("2024-03-{:02} 10:{:02}:{row:02}", page % 28 + 1, id / 60 % 60);
            let name = format!("name {}", id * 7919 % 1009);
            let types = [4, 7, 13 + 2 * time.len() as u8, 13 + 2 * name.len() as u8];
            let mut cell = vec![5 + 4 + 8 + (time.len() + name.len()) as u8];
            cell.extend([(id >> 14) as u8 | 0x80, (id >> 7) as u8 | 0x80, id as u8 & 0x7f]);
            cell.push(5);
            cell.extend(types);
            cell.extend((1 << 24 | id).to_be_bytes());
            cell.extend((f64::from(id) / 100.0).to_be_bytes());
            cell.extend(time.bytes().chain(name.bytes()));
            end -= cell.len();
            leaf[end..end + cell.len()].copy_from_slice(&cell);
            leaf[8 + 2 * count..][..2].copy_from_slice(&(end as u16).to_be_bytes());
            count += 1;
        }
        leaf[0] = 13;
        leaf[4] = count as u8;
        leaf[5..7].copy_from_slice(&(end as u16).to_be_bytes());
        bytes.extend(leaf);
    }
    bytes
}

/// Writes a pool with filtered records of two codecs, and filtered patches.
fn write_filtered() -> Vec<u8> {
    let device = Arc::new(MemoryDevice::default());
    let dynamic: Arc<dyn Device> = device.clone();
    let properties = [(Property::RecordSize, "32K"), (Property::Filter, "sqlite")];
    let pool = create(&dynamic, &properties, 32 << 20);
    let file = only_file(&pool).unwrap();
    let content = table_content(240);
    let (front, back) = content.split_at(content.len() / 2);
    file.write_at(front, 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    pool.set_property(file.id(), Property::Compression, "lz4").unwrap();
    // Every tenth page is different at first.
    let mut early = back.to_vec();
    early.chunks_mut(4096).step_by(10).for_each(|page| page.fill(b'?'));
    file.write_at(&early, front.len() as u64).unwrap();
    file.commit(Durability::Durable).unwrap();
    for (at, page) in (front.len()..).step_by(4096).zip(back.chunks(4096)).step_by(10) {
        file.write_at(page, at as u64).unwrap();
    }
    file.commit(Durability::Durable).unwrap();
    pool.close().unwrap();
    device.image()
}

#[test]
fn the_golden_pool_with_filtered_records_is_read() {
    let path = golden_path().with_file_name("v2-page-filter.hpk");
    if std::env::var_os("HARDPACK_WRITE_GOLDEN").is_some() && !path.exists() {
        std::fs::write(&path, write_filtered()).unwrap();
    }
    let copy = Arc::new(MemoryDevice::new(std::fs::read(&path).unwrap()));
    let pool = Pool::open(copy, options(1 << 20)).unwrap();
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    let incompat = pool.state().superblock.incompat & !(FEATURE_ROOTS | FEATURE_DELTAS);
    assert_eq!(incompat, FEATURE_PAGE_FILTER);
    let file = only_file(&pool).unwrap();
    let content = table_content(240);
    assert!(read_all(&file).unwrap() == content);
    let mut counts = [[0; 2]; 2];
    for (tree, counts) in [TreeId::Map, TreeId::Patches].into_iter().zip(&mut counts) {
        let root = pool.state().superblock.roots[tree].clone().unwrap();
        walk_tree(pool.store(), tree, &root, Txg(0), &mut |met| {
            if let Met::Entry(_, _, value) = met {
                let pointer = data_pointer(value)?;
                let which = [5, 4].iter().position(|codec| *codec == pointer.codec);
                counts[which.unwrap()] += usize::from(pointer.is_filtered());
            }
            Ok(())
        })
        .unwrap();
    }
    let [records, patches] = counts;
    assert!(records[0] > 10 && records[1] > 10, "{records:?} filtered records");
    assert!(patches[1] > 10, "{patches:?} filtered patches");
    pool.fold(Fold::All, &StepLimits::default(), &mut |_| true).unwrap();
    assert!(read_all(&file).unwrap() == content);
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}

/// The generations of the file of the pool with generations.
const GENERATION_ROLLED_BACK: u64 = 0xc18b_feaf_4a2d_0fee;
const GENERATION_REWOUND: u64 = 0x497e_c4ec_ddaa_94aa;
/// The first content of that file.
static GENERATION_CONTENT: [u8; 40_000] = [b'g'; 40_000];

/// Writes a pool that was rolled back, and then rewound to its state after that. Returns it with
/// the generations of its file after each.
fn write_generations() -> (Vec<u8>, [u64; 2]) {
    let device = Arc::new(MemoryDevice::default());
    let dynamic: Arc<dyn Device> = device.clone();
    let pool = create(&dynamic, &[], 32 << 20);
    let file = only_file(&pool).unwrap();
    file.write_at(&GENERATION_CONTENT, 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    pool.create_snapshot(file.id(), b"kept", 1).unwrap();
    file.write_at(b"something else", 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    pool.rollback(file.id(), b"kept").unwrap();
    let (back, rolled_back) = (pool.state().txg(), pool.generation(file.id()).unwrap());
    file.write_at(b"something new", 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    pool.rewind(back, &mut |_| {}).unwrap();
    let rewound = pool.generation(file.id()).unwrap();
    pool.close().unwrap();
    (device.image(), [rolled_back, rewound])
}

#[test]
fn the_golden_pool_with_generations_is_read() {
    let path = golden_path().with_file_name("v2-generations.hpk");
    if std::env::var_os("HARDPACK_WRITE_GOLDEN").is_some() && !path.exists() {
        let (image, generations) = write_generations();
        println!("{generations:#x?}");
        std::fs::write(&path, image).unwrap();
    }
    let device = Arc::new(MemoryDevice::new(std::fs::read(&path).unwrap()));
    let pool = Pool::open(Arc::clone(&device) as _, options(1 << 20)).unwrap();
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    assert_ne!(pool.state().superblock.incompat & FEATURE_GENERATIONS, 0);
    let file = only_file(&pool).unwrap();
    assert!(read_all(&file).unwrap() == GENERATION_CONTENT);
    let snapshot = pool.open_snapshot(file.id(), b"kept").unwrap();
    assert!(read_all(&only_file(&snapshot).unwrap()).unwrap() == GENERATION_CONTENT);
    // Logs beside a pool are found by these generations, so they must not change.
    let [rolled_back, rewound] = [GENERATION_ROLLED_BACK, GENERATION_REWOUND];
    assert_eq!(pool.generation(file.id()).unwrap(), rewound);
    let older = pool.state().txg().0 - 2;
    let older = Pool::open_at(device, options(1 << 20), Txg(older)).unwrap();
    assert_eq!(older.generation(file.id()).unwrap(), rolled_back);
}

/// Writes a pool with two snapshots of its one file.
fn write_sent() -> Vec<u8> {
    let device = Arc::new(MemoryDevice::default());
    let dynamic: Arc<dyn Device> = device.clone();
    let pool = create(&dynamic, &[(Property::RecordSize, "8K")], 32 << 20);
    let file = only_file(&pool).unwrap();
    for (name, content) in [(b"s0", plain_content()), (b"s1", edited_content())] {
        file.write_at(&content, 0).unwrap();
        file.commit(Durability::Durable).unwrap();
        pool.create_snapshot(file.id(), name, 5).unwrap();
    }
    pool.close().unwrap();
    device.image()
}

fn open_image(image: Vec<u8>) -> Pool {
    Pool::open(Arc::new(MemoryDevice::new(image)), options(1 << 20)).unwrap()
}

/// Returns the stream of the changes from the first to the second snapshot of that pool, or of the
/// whole first snapshot.
fn sent(pool: &Pool, is_second: bool, resume: Option<ResumeToken>) -> Vec<u8> {
    let scope = pool.only_file().unwrap().file;
    let open = |name: &[u8]| pool.open_snapshot(scope, name).unwrap();
    let (first, second) = (open(b"s0"), open(b"s1"));
    let (name, snapshot) = if is_second { (&b"s1"[..], &second) } else { (&b"s0"[..], &first) };
    let base = is_second.then_some(&first);
    let plan = SendPlan { snapshot, base, scope, name, created_ns: 5, resume };
    let mut out = Vec::new();
    pool.send(&plan, &mut out, &mut |_| {}).unwrap();
    out
}

fn receive(pool: &Pool, mut stream: &[u8]) -> hardpack_engine::Result<FileId> {
    let options = ReceiveOptions { batch_len: 1, ..ReceiveOptions::default() };
    pool.receive(ROOT, b"copy", &mut stream, &options, &mut |_| {}).map(|report| report.file)
}

/// Writes a pool that has received the first of these snapshots, and part of the second.
fn write_received(source: Vec<u8>) -> Vec<u8> {
    let device = Arc::new(MemoryDevice::default());
    let dynamic: Arc<dyn Device> = device.clone();
    let pool = create(&dynamic, &[(Property::RecordSize, "8K")], 32 << 20);
    let source = open_image(source);
    receive(&pool, &sent(&source, false, None)).unwrap();
    let part = sent(&source, true, None);
    receive(&pool, &part[..part.len() / 2]).unwrap_err();
    pool.close().unwrap();
    device.image()
}

/// The identity of a snapshot never changes: a stream that was begun long ago can be continued.
#[test]
fn the_golden_pool_that_received_goes_on_from_the_one_that_sent() {
    let [from, to] = ["v2-sent.hpk", "v2-received.hpk"].map(|n| golden_path().with_file_name(n));
    if std::env::var_os("HARDPACK_WRITE_GOLDEN").is_some() && !from.exists() {
        let image = write_sent();
        std::fs::write(&from, &image).unwrap();
        std::fs::write(&to, write_received(image)).unwrap();
    }
    let [from, to] = [from, to].map(|path| std::fs::read(path).unwrap());
    let source = open_image(from);
    for resumes in [true, false] {
        let pool = open_image(to.clone());
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
        assert!(pool.state().superblock.incompat & FEATURE_SNAPSHOT_IDS != 0);
        let token = pool.receive_token(ROOT, b"copy").unwrap().expect("a part was received");
        assert!(token.frames > 0);
        if !resumes {
            assert!(pool.abort_receive(ROOT, b"copy").unwrap());
        }
        let file = receive(&pool, &sent(&source, true, resumes.then_some(token))).unwrap();
        assert!(read_all(&pool.file(file).unwrap()).unwrap() == edited_content());
        let first = pool.open_snapshot(file, b"s0").unwrap();
        assert!(read_all(&first.file(file).unwrap()).unwrap() == plain_content());
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    }
}
