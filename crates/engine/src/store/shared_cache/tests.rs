use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::set::{Entry, PLACE_COUNT, SET_LEN, Set};
use super::*;
use crate::test_common::Rng;

const LEN: u64 = 1 << 20;

fn key(number: u64) -> Key {
    let mut bytes = [7; 80];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    Key::new(bytes, number % 2 == 1)
}

/// The bytes of a block, which differ in each version of it.
fn block(number: u64, version: u64) -> Vec<u8> {
    let mut rng = Rng(number * 1000 + version + 1);
    let len = 1 + rng.below(BLOCK_LEN as u64) as usize;
    rng.noise(len)
}

fn dir() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache");
    (dir, path)
}

fn open(path: &Path) -> Arc<SharedCache> {
    SharedCache::open(path, LEN).unwrap()
}

fn get(cache: &SharedCache, number: u64) -> Option<Vec<u8>> {
    let mut out = vec![0; BLOCK_LEN];
    let (len, note) = cache.get(&key(number), &mut out)?;
    assert_eq!(u64::from(note), number % 5);
    out.truncate(len);
    Some(out)
}

fn put(cache: &SharedCache, number: u64, block: &[u8]) {
    cache.put(&key(number), (number % 5) as u8, block);
}

#[test]
fn another_process_finds_what_one_has_read() {
    let (_dir, path) = dir();
    let one = open(&path);
    assert_eq!(get(&one, 1), None);
    put(&one, 1, &block(1, 0));
    put(&one, 2, &block(2, 0));
    let other = open(&path);
    assert_eq!(get(&other, 1), Some(block(1, 0)));
    assert_eq!(get(&other, 2), Some(block(2, 0)));
    assert_eq!(get(&other, 3), None);
    let stats = other.stats();
    assert_eq!((stats.hits, stats.misses, stats.stored), (2, 1, 0));
    assert_eq!(one.stats().stored, 2);
}

#[test]
fn a_known_block_is_not_written_again() {
    let (_dir, path) = dir();
    let one = open(&path);
    put(&one, 1, &block(1, 0));
    put(&one, 1, &block(1, 0));
    let other = open(&path);
    put(&other, 1, &block(1, 0));
    assert_eq!((one.stats().stored, other.stats().stored), (1, 0));
}

/// A block that others have displaced comes back, although this process has added it before.
#[test]
fn a_displaced_block_comes_back() {
    let (_dir, path) = dir();
    let one = open(&path);
    put(&one, 1, &block(1, 0));
    let other = open(&path);
    for number in 2..2000 {
        put(&other, number, &block(number, 0));
    }
    assert_eq!(get(&one, 1), None);
    put(&one, 1, &block(1, 0));
    assert!(get(&one, 1) == Some(block(1, 0)));
}

/// Whatever the file becomes, a block is returned as it was put under its key, or not at all.
#[test]
fn it_returns_what_was_put_or_nothing() {
    for seed in 1..=20 {
        let (_dir, path) = dir();
        let mut rng = Rng(seed);
        let mut caches = [open(&path), open(&path)];
        let mut model: HashMap<u64, Vec<Vec<u8>>> = HashMap::new();
        let mut hit_count = 0;
        for _ in 0..2000 {
            let number = rng.below(600);
            let which = rng.below(2) as usize;
            match rng.below(100) {
                0..=39 => {
                    // The same key never stands for other bytes, but hostile ones may be offered.
                    let bytes = block(number, rng.below(2));
                    put(&caches[which], number, &bytes);
                    model.entry(number).or_default().push(bytes);
                }
                40..=94 => {
                    if let Some(found) = get(&caches[which], number) {
                        hit_count += 1;
                        assert!(model[&number].contains(&found), "seed {seed}, key {number}");
                    }
                }
                95..=97 => damage(&path, &mut rng),
                98 => caches[which] = open(&path),
                _ => {
                    fs::remove_file(&path).unwrap();
                    caches[which] = open(&path);
                }
            }
        }
        assert!(hit_count > 20, "seed {seed}: {hit_count} hits");
    }
}

/// Overwrites some of the file behind its front, with noise or with other parts of the file.
fn damage(path: &Path, rng: &mut Rng) {
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let len = file.metadata().unwrap().len();
    let count = 1 + rng.below(3000) as usize;
    let to = FRONT_LEN + rng.below(len - FRONT_LEN - count as u64);
    let mut bytes = rng.noise(count);
    if rng.one_in(2) {
        file.read_exact_at(&mut bytes, rng.below(len - count as u64)).unwrap();
    }
    file.write_all_at(&bytes, to).unwrap();
}

/// Returns how many blocks the cache in a file lacks; a wrong one counts as a thousand.
fn missing(path: &Path, blocks: &[Vec<u8>]) -> usize {
    // What no longer begins like a cache may be anything.
    let Ok(cache) = SharedCache::open(path, LEN) else { return blocks.len() };
    let found = (0..).zip(blocks).map(|(number, block)| (get(&cache, number), block));
    found
        .map(|(found, block)| match found {
            Some(found) => usize::from(found != *block) * 1000,
            None => 1,
        })
        .sum()
}

#[test]
fn no_damaged_byte_gets_through() {
    let (_dir, path) = dir();
    let cache = open(&path);
    let blocks: Vec<Vec<u8>> = (0..4).map(|number| vec![number as u8 + 1; 40]).collect();
    for (number, block) in (0..).zip(&blocks) {
        put(&cache, number, block);
    }
    drop(cache);
    let clean = fs::read(&path).unwrap();
    let (front_end, sets_end) = (32, Table::blocks_offset(set_count_for(LEN)) as usize);
    for at in 0..front_end {
        let mut bytes = clean.clone();
        bytes[at] ^= 0x10;
        fs::write(&path, bytes).unwrap();
        assert_eq!(missing(&path, &blocks), blocks.len(), "byte {at}");
    }
    fs::write(&path, &clean).unwrap();
    assert_eq!(missing(&path, &blocks), 0);
    let file = fs::File::options().write(true).open(&path).unwrap();
    let mut count = 0;
    // Every byte of the sets, and of the blocks.
    let is_used = |at: &usize| *at < sets_end || clean[*at] != 0;
    for at in (FRONT_LEN as usize..clean.len()).filter(is_used) {
        file.write_all_at(&[clean[at] ^ 0x10], at as u64).unwrap();
        count += missing(&path, &blocks);
        file.write_all_at(&clean[..sets_end], 0).unwrap();
        file.write_all_at(&clean[at..=at], at as u64).unwrap();
    }
    // Each byte of a block, of its checksum, tag, length and note matters; its heat does not.
    let needed: usize = blocks.iter().map(|block| block.len() + 16 + 4 + 2 + 1).sum();
    assert_eq!(count, needed);
}

#[test]
fn files_of_others_are_refused_and_stay() {
    let (dir, path) = dir();
    let refused = |path: &Path| SharedCache::open(path, LEN).unwrap_err();
    drop(open(&path));
    for mode in [0o640, 0o604, 0o620, 0o602, 0o601, 0o777] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(refused(&path).kind(), io::ErrorKind::PermissionDenied, "{mode:o}");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    drop(open(&path));
    let link = dir.path().join("link");
    symlink(&path, &link).unwrap();
    let error = refused(&link);
    assert!(error.to_string().ends_with("is not a regular file"), "{error}");
    assert!(refused(dir.path()).to_string().ends_with("is not a regular file"));
    assert!(refused(Path::new("/dev/null")).to_string().ends_with("is not a regular file"));
    // Only root can give a file away.
    if std::os::unix::fs::chown(&path, Some(1), None).is_ok() {
        assert!(refused(&path).to_string().ends_with("belongs to another user"));
    }
    for content in ["", "SQLite format 3\0 and more", "HPKcach"] {
        let other = dir.path().join("other");
        fs::write(&other, content).unwrap();
        fs::set_permissions(&other, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(refused(&other).kind(), io::ErrorKind::InvalidData);
        assert_eq!(fs::read_to_string(&other).unwrap(), content);
    }
    let missing = dir.path().join("missing/cache");
    assert_eq!(refused(&missing).kind(), io::ErrorKind::NotFound);
}

#[test]
fn a_new_file_is_private_and_bounded() {
    let (dir, path) = dir();
    for len in [0, LEN, 3_000_000, 5 << 20] {
        let _ = fs::remove_file(&path);
        let cache = SharedCache::open(&path, len).unwrap();
        let found = fs::metadata(&path).unwrap();
        assert_eq!(found.mode() & 0o7777, 0o600);
        assert!(found.len() <= len.max(LEN) && found.len() * 5 > len * 4, "{}", found.len());
        for number in 0..2000 {
            put(&cache, number, &[number as u8; BLOCK_LEN]);
        }
        assert_eq!(fs::metadata(&path).unwrap().len(), found.len());
        assert!(cache.stats().used_bytes <= found.len());
    }
    let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|it| it.unwrap().path()).collect();
    assert_eq!(names, [path]);
}

#[test]
fn a_file_of_another_version_is_replaced_and_not_changed() {
    let (_dir, path) = dir();
    drop(open(&path));
    let old = fs::File::options().read(true).write(true).open(&path).unwrap();
    old.write_all_at(&(VERSION + 1).to_le_bytes(), 8).unwrap();
    let before = fs::read(&path).unwrap();
    let cache = open(&path);
    put(&cache, 1, &block(1, 0));
    assert_eq!(get(&cache, 1), Some(block(1, 0)));
    let mut after = vec![0; before.len()];
    old.read_exact_at(&mut after, 0).unwrap();
    assert!(after == before && old.metadata().unwrap().nlink() == 0);
}

#[test]
fn another_size_waits_until_nobody_uses_the_file() {
    let (_dir, path) = dir();
    let one = open(&path);
    put(&one, 1, &block(1, 0));
    let other = SharedCache::open(&path, 4 * LEN).unwrap();
    assert_eq!(get(&other, 1), Some(block(1, 0)));
    assert!(other.stats().capacity_bytes <= LEN);
    drop((one, other));
    let other = SharedCache::open(&path, 4 * LEN).unwrap();
    assert_eq!(get(&other, 1), None);
    assert!(other.stats().capacity_bytes > 3 * LEN);
}

#[test]
fn a_removed_file_is_left_for_the_new_one() {
    let (_dir, path) = dir();
    let one = open(&path);
    put(&one, 1, &block(1, 0));
    fs::remove_file(&path).unwrap();
    assert_eq!(get(&one, 1), Some(block(1, 0)));
    let other = open(&path);
    assert_eq!(get(&other, 1), None);
    for number in 2..2 + LOOK_INTERVAL {
        put(&one, number, &block(number, 0));
    }
    let last = 2 + LOOK_INTERVAL;
    put(&one, last, &block(last, 0));
    assert_eq!(get(&other, last), Some(block(last, 0)));
    // A file that is something else now is left alone.
    fs::remove_file(&path).unwrap();
    fs::write(&path, "mine").unwrap();
    for number in 1000..1000 + 2 * LOOK_INTERVAL {
        put(&one, number, &block(number, 0));
    }
    assert_eq!((get(&one, last), fs::read_to_string(&path).unwrap()), (None, "mine".into()));
}

#[test]
fn a_file_cut_short_misses() {
    let (_dir, path) = dir();
    let cache = open(&path);
    for number in 0..50 {
        put(&cache, number, &block(number, 0));
    }
    let file = fs::File::options().write(true).open(&path).unwrap();
    for len in [file.metadata().unwrap().len() / 2, FRONT_LEN + 100, 0] {
        file.set_len(len).unwrap();
        for number in 0..50 {
            assert!(get(&cache, number).is_none_or(|found| found == block(number, 0)));
        }
    }
    assert_eq!(get(&cache, 1), None);
}

fn entry(number: u32) -> Entry {
    Entry { tag: number | 1 << 31, len: 1, ..Entry::default() }
}

fn admit(set: &mut Set, number: u32) -> usize {
    set.admit(&entry(number))
}

fn hit(set: &mut Set, number: u32) -> bool {
    let Some(place) = set.find(entry(number).tag).next() else { return false };
    if let Some(heat) = set.warmed(place) {
        set.0[Set::heat_offset(place)] = heat;
    }
    true
}

#[test]
fn a_scan_does_not_displace_what_is_in_use() {
    let mut set = Set([0; SET_LEN]);
    for number in 0..12 {
        admit(&mut set, number);
        hit(&mut set, number);
        hit(&mut set, number);
    }
    for scanned in 1000..1060 {
        admit(&mut set, scanned);
    }
    assert!((0..12).all(|number| set.find(entry(number).tag).next().is_some()));
    // In use meanwhile, they outlast a scan of any length.
    for scanned in 2000..4000 {
        admit(&mut set, scanned);
        if scanned % 20 == 0 {
            assert!((0..12).all(|number| hit(&mut set, number)), "at {scanned}");
        }
    }
    // What nobody reads leaves in the end.
    for scanned in 5000..5300 {
        admit(&mut set, scanned);
    }
    assert!((0..12).all(|number| set.find(entry(number).tag).next().is_none()));
}

#[test]
fn what_comes_back_soon_stays() {
    let mut set = Set([0; SET_LEN]);
    for number in 0..PLACE_COUNT as u32 {
        admit(&mut set, number);
        hit(&mut set, number);
    }
    // A few more are read in turn than the coldest place can hold.
    let mut found = 0;
    for _ in 0..20 {
        for number in 100..108 {
            match hit(&mut set, number) {
                true => found += 1,
                false => drop(admit(&mut set, number)),
            }
        }
    }
    assert!(found > 80, "{found} of 160");
}

#[test]
fn any_bytes_are_a_set() {
    let mut rng = Rng(5);
    for _ in 0..200 {
        let mut set = Set([0; SET_LEN]);
        set.0.copy_from_slice(&rng.noise(SET_LEN));
        for number in 0..100 {
            let place = admit(&mut set, number);
            assert!(place < PLACE_COUNT && set.find(entry(number).tag).any(|it| it == place));
            hit(&mut set, rng.below(100) as u32);
        }
    }
}

#[test]
fn settings_are_what_they_say() {
    let shown = |text: &str| text.parse::<SharedCacheSetting>().map(|it| it.to_string());
    let same = [("off", "off"), ("on", "268435456"), ("64M", "67108864"), ("1048576", "1048576")];
    let paths = [
        ("/fast/cache", "/fast/cache:268435456"),
        ("/fast/cache:2G", "/fast/cache:2147483648"),
        ("/fast/a:b", "/fast/a:b:268435456"),
    ];
    for (text, expected) in same.into_iter().chain(paths) {
        assert_eq!(shown(text).unwrap(), expected);
    }
    for text in
        ["", "yes", "1K", "2T", "-1M", "M", "relative/path", "/x:1K", "99999999999999999999G"]
    {
        assert!(shown(text).is_err(), "{text}");
    }
    assert!("off".parse::<SharedCacheSetting>().unwrap().open().unwrap().is_none());
}
