//! The page filter in a pool: which records are filtered, how much that saves, and that everything
//! else works on them as on any record.

use std::sync::Arc;

use crate::codec::{Codec, CodecError, Compression, Encoded, Form, Policy};
use crate::device::{Device, MemoryDevice};
use crate::pool::extents::{FileExtent, parse_file_extent};
use crate::pool::{File, FilterChoice, Fold, Options, Pool, Property, Settings, StepLimits};
use crate::store::format::superblock::FEATURE_PAGE_FILTER;
use crate::store::tree::walk::{Met, walk_tree};
use crate::store::trees::TreeId;
use crate::store::{Durability, Patience};
use crate::test_common::{Rng, create_options, only_file, problems, read_all};
use crate::units::Txg;

const PAGE: usize = 4096;
const RECORD: usize = 32 << 10;

fn options() -> Options {
    Options { threads: Some(1), ..Options::new(8 << 20) }
}

fn create(properties: &[(Property, &str)]) -> (Pool, Arc<File>) {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let properties = [&[(Property::RecordSize, "32K")], properties].concat();
    let pool = Pool::create(device, &create_options(9, &properties), options()).unwrap();
    let file = only_file(&pool).unwrap();
    (pool, file)
}

fn write(file: &File, bytes: &[u8], offset: usize) {
    file.write_at(bytes, offset as u64).unwrap();
    file.commit(Durability::Durable).unwrap();
}

/// Returns a database: the front of a page 1, then pages of a table.
fn database(pages: usize) -> Vec<u8> {
    let mut bytes = Rng(5).table(pages * PAGE);
    bytes[..PAGE].fill(0);
    bytes[..16].copy_from_slice(b"SQLite format 3\0");
    bytes[16..18].copy_from_slice(&[16, 0]);
    bytes
}

fn records(pool: &Pool) -> Vec<FileExtent> {
    let mut found = Vec::new();
    let state = pool.state();
    let root = state.superblock.roots[TreeId::Map].clone().expect("there are records");
    walk_tree(pool.store(), TreeId::Map, &root, Txg(0), &mut |met| {
        if let Met::Entry(_, key, value) = met {
            found.push(parse_file_extent(TreeId::Map, key, value)?.1);
        }
        Ok(())
    })
    .unwrap();
    found
}

fn filtered_count(pool: &Pool) -> usize {
    let records = records(pool);
    let filtered: Vec<_> = records.iter().filter(|record| record.pointer.is_filtered()).collect();
    // The pool's own statistics must match its records.
    let stats = pool.state().superblock.stats.filtered;
    let stored: u64 = filtered.iter().map(|record| u64::from(record.pointer.stored_len)).sum();
    let unfiltered: u64 = filtered.iter().map(|record| record.pointer.unfiltered_len()).sum();
    assert_eq!(
        (stats.records, stats.stored, stats.unfiltered),
        (filtered.len() as u64, stored, unfiltered)
    );
    filtered.len()
}

/// Reads the stored bytes, bypassing the caches.
fn assert_whole(pool: &Pool, bytes: &[u8]) {
    let device = pool.store().device();
    let mut image = vec![0; device.len().unwrap() as usize];
    device.read_at(&mut image, 0).unwrap();
    let copy = Pool::open(Arc::new(MemoryDevice::new(image)), options()).unwrap();
    let file = only_file(&copy).unwrap();
    assert!(read_all(&file).unwrap() == bytes, "the content differs");
    assert_eq!(problems(&copy).unwrap(), Vec::<String>::new());
}

#[test]
fn pages_are_filtered_where_it_pays_and_nothing_else_is() {
    let bytes = [database(96), Rng(1).text(4 * RECORD), Rng(2).noise(2 * RECORD)].concat();
    let mut lens = Vec::new();
    for (filter, compression) in
        [("none", "zstd-3"), ("auto", "zstd-3"), ("sqlite", "zstd-3"), ("auto", "gzip-6")]
    {
        let (pool, file) =
            create(&[(Property::Filter, filter), (Property::Compression, compression)]);
        write(&file, &bytes, 0);
        assert_whole(&pool, &bytes);
        let incompat = pool.state().superblock.incompat & FEATURE_PAGE_FILTER;
        let count = filtered_count(&pool);
        match filter {
            "none" => assert_eq!((count, incompat), (0, 0)),
            _ => assert_eq!((count, incompat), (12, FEATURE_PAGE_FILTER), "{filter}"),
        }
        lens.push(pool.state().stats().data().stored);
    }
    let [none, auto, sqlite, _] = lens[..] else { unreachable!() };
    assert!(auto < none && sqlite <= auto, "{lens:?}");
}

#[test]
fn the_gain_that_is_kept_is_about_the_true_one() {
    let bytes = database(256);
    let stored = |filter| {
        let (pool, file) = create(&[(Property::Filter, filter)]);
        write(&file, &bytes, 0);
        (pool.state().stats().data().stored, pool.state().stats().filtered)
    };
    let (unfiltered, _) = stored("none");
    let (_, exact) = stored("sqlite");
    let (_, guessed) = stored("auto");
    for stats in [exact, guessed] {
        let off = stats.unfiltered.abs_diff(unfiltered);
        assert!(off * 20 < unfiltered, "{} instead of {unfiltered}", stats.unfiltered);
    }
}

#[test]
fn changes_patches_and_folds_go_over_filtered_records() {
    for (filter, patches) in [("auto", 0), ("sqlite", 3)] {
        change_and_fold(filter, patches);
    }
}

/// Changes and folds a database; `patches` of the three patches are filtered.
fn change_and_fold(filter: &str, patches: u64) {
    let mut bytes = database(64);
    let (pool, file) = create(&[(Property::Filter, filter)]);
    write(&file, &bytes, 0);
    let before = filtered_count(&pool);
    let mut rng = Rng(8);
    for page in [9, 10, 33] {
        let new = rng.table(PAGE);
        bytes[page * PAGE..][..PAGE].copy_from_slice(&new);
        write(&file, &new, page * PAGE);
    }
    assert_whole(&pool, &bytes);
    let stats = pool.state().superblock.stats;
    assert_eq!((stats.patches.records, stats.filtered.records), (3, before as u64 + patches));
    pool.fold(Fold::All, &StepLimits::default(), &mut |_| true).unwrap();
    assert_whole(&pool, &bytes);
    assert_eq!(filtered_count(&pool), before);
    // Truncate in the middle of a page.
    bytes.truncate(40 * PAGE + 77);
    file.set_len(bytes.len() as u64).unwrap();
    file.commit(Durability::Durable).unwrap();
    assert_whole(&pool, &bytes);
}

fn repack(pool: &Pool, file: &File, goal: Settings) -> u64 {
    let mut repack = pool.begin_repack(file.id(), goal, Patience::Endless).unwrap();
    let mut rewritten = 0;
    loop {
        let step = pool.repack_step(&mut repack, &StepLimits::default(), None).unwrap();
        rewritten += step.rewritten;
        if step.next.is_none() {
            return rewritten;
        }
    }
}

#[test]
fn a_repack_filters_and_turns_it_back() {
    let bytes = database(64);
    let (pool, file) = create(&[(Property::Filter, "none")]);
    write(&file, &bytes, 0);
    let settings = pool.settings(file.id()).unwrap();
    let none = pool.state().stats().data().stored;
    for filter in [FilterChoice::Auto, FilterChoice::Sqlite, FilterChoice::None] {
        let goal = Settings { filter, ..settings };
        repack(&pool, &file, goal);
        assert_whole(&pool, &bytes);
        let (count, stored) = (filtered_count(&pool), pool.state().stats().data().stored);
        if filter == FilterChoice::None {
            assert_eq!((count, stored), (0, none));
            assert_eq!(repack(&pool, &file, goal), 0, "it is as wanted");
        } else {
            assert_eq!(count, 8);
            assert!(stored < none);
        }
    }
    // A file that is not a database is not tried again.
    let text = Rng(3).text(8 * RECORD);
    write(&file, &text, 0);
    file.set_len(text.len() as u64).unwrap();
    file.commit(Durability::Durable).unwrap();
    assert_eq!(repack(&pool, &file, Settings { filter: FilterChoice::Auto, ..settings }), 0);
}

#[test]
fn equal_records_are_shared_whatever_filtered_them() {
    let bytes = database(64);
    let (pool, file) = create(&[(Property::Dedup, "on")]);
    write(&file, &bytes, 0);
    let before = pool.state().stats().data().stored;
    pool.set_property(file.id(), Property::Filter, "none").unwrap();
    // Append the same records; only the one with page 1 differs there.
    write(&file, &bytes[RECORD..], bytes.len());
    let all = [&bytes[..], &bytes[RECORD..]].concat();
    assert_whole(&pool, &all);
    let stats = *pool.state().stats();
    assert_eq!(stats.data().stored - stats.shared.stored, before);
    assert_eq!(filtered_count(&pool), 15);
}

/// A damaged or forged filtered form is an error, whatever its checksum says.
#[test]
fn what_is_no_filtered_form_is_refused() {
    let mut codec = Codec::new();
    let record = &database(8)[PAGE..];
    let mut stored = Vec::new();
    assert!(codec.filter(record, PAGE as u64));
    let zstd = Compression::Zstd(3);
    let how = codec.encode_filtered(zstd, record.len(), &Policy::default(), &mut stored).unwrap();
    let Some((Encoded::Compressed { .. }, form)) = how else { panic!("{how:?}") };
    let id = zstd.codec_id() as u8;
    let mut decode = |stored: &[u8], len: usize| {
        let mut bytes = vec![0; len];
        codec.decompress_filtered(id, (stored, form), &mut bytes, None).map(|()| bytes)
    };
    assert!(decode(&stored, record.len()).unwrap() == record);
    for len in [0, 1, 4096, record.len() - 1, record.len() + 1] {
        assert!(decode(&stored, len).is_err(), "as {len} bytes");
    }
    let whole_len = record.len();
    for (start, len) in [(0, 0), (0, 1), (0, PAGE + 5), (1, PAGE), (PAGE, 2 * PAGE), (0, whole_len)]
    {
        let mut part = vec![0; len];
        let mut codec = Codec::new();
        codec.decompress_filtered_part(id, (&stored, form), &mut part, start, whole_len).unwrap();
        assert!(part == record[start..start + len], "{len} bytes from {start}");
        let beyond = whole_len - len + 1;
        codec
            .decompress_filtered_part(id, (&stored, form), &mut part, beyond, whole_len)
            .unwrap_err();
    }
    for len in 0..stored.len() {
        assert!(decode(&stored[..len], record.len()).is_err(), "cut to {len}");
    }
    let trailer_at = stored.len() - 4;
    for trailer in [0, 1, 1 << 20, u32::MAX] {
        let mut stored = stored.clone();
        stored[trailer_at..].copy_from_slice(&trailer.to_le_bytes());
        let error = decode(&stored, record.len()).unwrap_err();
        assert!(!matches!(error, CodecError::Library { .. }), "{error}");
    }
    for at in 0..trailer_at {
        let mut stored = stored.clone();
        stored[at] ^= 0x10;
        // Without a checksum a change may go unnoticed; the output still has this length.
        let _ = decode(&stored, record.len());
    }
}

/// An interior page of a table.
fn interior_page(first_child: u32) -> [u8; PAGE] {
    const CELLS: usize = 300;
    let (mut page, mut at) = ([0; PAGE], PAGE);
    for cell in 0..CELLS {
        at -= 6;
        page[at..at + 4].copy_from_slice(&(first_child + cell as u32).to_be_bytes());
        let key = 128 + 7 * cell;
        page[at + 4..at + 6].copy_from_slice(&[0x80 | (key >> 7) as u8, key as u8 & 0x7f]);
        page[12 + 2 * cell..][..2].copy_from_slice(&(at as u16).to_be_bytes());
    }
    page[0] = 5;
    page[3..5].copy_from_slice(&(CELLS as u16).to_be_bytes());
    page[5..7].copy_from_slice(&(at as u16).to_be_bytes());
    page[8..12].copy_from_slice(&(first_child + CELLS as u32).to_be_bytes());
    page
}

/// Whatever the stored bytes of a record with pages apart become: where all of it decodes, each of
/// its parts decodes to the same bytes, and so do its pages apart. Nothing panics.
#[test]
fn parts_of_damaged_records_with_pages_apart_are_those_of_the_whole() {
    let mut record = database(32);
    record.drain(..PAGE);
    for index in [7, 8, 20] {
        record[index * PAGE..][..PAGE].copy_from_slice(&interior_page(1000 * index as u32));
    }
    let (mut codec, mut rng) = (Codec::new(), Rng(11));
    let whole_len = record.len();
    for compression in [Compression::Lz4, Compression::Zstd(3)] {
        let (mut stored, policy) = (Vec::new(), Policy::default());
        assert!(codec.filter(&record, PAGE as u64));
        let how = codec.encode_filtered(compression, whole_len, &policy, &mut stored).unwrap();
        assert!(matches!(how, Some((_, Form::Apart))), "{how:?}");
        let (id, mut right_count) = (compression.codec_id() as u8, 0);
        for round in 0..3000 {
            let mut stored = stored.clone();
            for _ in 0..rng.below(3) {
                // Half of the changes are in the directory, or close to it.
                let reach = if rng.below(2) == 0 { stored.len() } else { 24 };
                let at = stored.len() - 1 - rng.below(reach as u64) as usize;
                stored[at] ^= 1 << rng.below(8);
            }
            let mut whole = vec![0; whole_len];
            let done = codec.decompress_filtered(id, (&stored, Form::Apart), &mut whole, None);
            right_count += usize::from(done.is_ok());
            for _ in 0..3 {
                let start = rng.below(whole_len as u64) as usize;
                let len = (1 + rng.below(4 * PAGE as u64) as usize).min(whole_len - start);
                let mut part = vec![0xee; len];
                let src = (&stored[..], Form::Apart);
                let found = codec.decompress_filtered_part(id, src, &mut part, start, whole_len);
                if done.is_ok() {
                    assert!(found.is_ok() && part == whole[start..start + len], "round {round}");
                }
                let range = start..start + 1;
                let apart = codec.decompress_apart(id, &stored, &range, whole_len, |at, page| {
                    let same = whole.get(at..at + page.len()) == Some(page);
                    assert!(done.is_err() || same, "round {round}");
                });
                assert!(done.is_err() || apart.is_ok(), "round {round}: {apart:?}");
            }
        }
        assert!((100..3000).contains(&right_count), "{right_count}");
    }
}
