//! Records equal to one that is in a segment share it, as they share any other extent.

use std::sync::Arc;

use crate::common::segments::{
    Files, GOAL, assert_holds, compact, empty_pool, file_at, golden, open, optimize, pointers,
    pointers_at, put, reopened, stream_of, used,
};
use crate::common::{Rng, problems};
use hardpack_engine::codec::Compression;
use hardpack_engine::device::{Device, MemoryDevice};
use hardpack_engine::pool::{
    Again, Attributes, Kind, Pool, Property, ROOT, ReceiveOptions, SegmentGoal,
};
use hardpack_engine::store::format::pointer::Pointer;
use hardpack_engine::store::format::refs::{
    HashKind, PartContent, PartHash, RefsEntry, parse_refs_entry, part_key,
};
use hardpack_engine::store::superblock::{FEATURE_PARTS_BY_CONTENT, FEATURE_SHORT_PART_HASHES};
use hardpack_engine::store::tree::walk::{Met, walk_tree};
use hardpack_engine::store::trees::TreeId;
use hardpack_engine::store::{Durability, Patience};
use hardpack_engine::{Sector, Txg};

const FILE_COUNT: usize = 10;
const FILE_LEN: usize = 40_000;
/// What names, pointers and trees of one more copy of all files take, at most.
const COPY_LEN_MAX: u64 = 48 << 10;

/// Returns paths in a directory and contents: noise, of which each differs a little from another.
fn family(directory: &str) -> Files {
    family_of(77, directory)
}

fn family_of(seed: u64, directory: &str) -> Files {
    let mut rng = Rng(seed);
    let original = rng.noise(FILE_LEN);
    let files = (0..FILE_COUNT).map(|number| {
        let mut bytes = original.clone();
        let new = rng.noise(400 + number);
        let at = rng.below(FILE_LEN as u64 - 500) as usize;
        bytes[at..at + new.len()].copy_from_slice(&new);
        (format!("{directory}/f{number}").into_bytes(), bytes)
    });
    files.collect()
}

fn add(pool: &Pool, directory: &str) -> Files {
    pool.edit(0, |edit| {
        let like = Attributes::new(Kind::Directory, ROOT);
        edit.create(ROOT, directory.as_bytes(), &like).map(drop)
    })
    .unwrap();
    let files = family(directory);
    files.iter().for_each(|(path, bytes)| drop(put(pool, path, bytes)));
    files
}

fn remove(pool: &Pool, files: &Files) {
    files.iter().for_each(|(path, _)| pool.remove_at(path, 0).unwrap());
}

/// Returns the entries of the refs tree.
fn refs_entries(pool: &Pool) -> Vec<RefsEntry> {
    let (state, mut found) = (pool.state(), Vec::new());
    if let Some(root) = &state.superblock.roots[TreeId::Refs] {
        walk_tree(pool.store(), TreeId::Refs, root, Txg(0), &mut |met| {
            if let Met::Entry(_, key, value) = met {
                found.push(parse_refs_entry(key, value)?);
            }
            Ok(())
        })
        .unwrap();
    }
    found
}

fn part_count(pool: &Pool) -> usize {
    refs_entries(pool).iter().filter(|entry| matches!(entry, RefsEntry::Part(..))).count()
}

/// Adds a copy of the family, of which only names and pointers are new.
fn add_copy(pool: &Pool, directory: &str) -> Files {
    let before = used(pool);
    let files = add(pool, directory);
    let grown = used(pool).saturating_sub(before);
    assert!(grown < COPY_LEN_MAX, "{directory}: {grown} bytes more");
    assert!(pointers(pool).iter().all(Pointer::is_part), "{directory}");
    files
}

fn with_segments(properties: &[(Property, &str)]) -> (Arc<MemoryDevice>, Pool, Files) {
    let (device, pool) = empty_pool(properties);
    let files = add(&pool, "first");
    let report = optimize(&pool, GOAL);
    assert_eq!((report.segments, report.records), (1, FILE_COUNT as u64));
    (device, pool, files)
}

#[test]
fn what_is_in_segments_is_found_again() {
    for dedup in ["on", "verify"] {
        for hash in ["blake3", "sha256"] {
            let properties = [(Property::Dedup, dedup), (Property::DedupHash, hash)];
            let (device, pool, mut files) = with_segments(&properties);
            assert_ne!(pool.state().superblock.incompat & FEATURE_PARTS_BY_CONTENT, 0);
            assert_eq!(part_count(&pool), FILE_COUNT);
            files.extend(add_copy(&pool, "second"));
            pool.close().unwrap();
            let pool = open(&device);
            files.extend(add_copy(&pool, "third"));
            pool.rebuild_index(Patience::None, &mut |_| true).unwrap();
            files.extend(add_copy(&pool, "fourth"));
            pool.drop_index(Patience::None).unwrap();
            files.extend(add_copy(&pool, "fifth"));
            pool.prune_index(Patience::None, &mut |_| true).unwrap();
            files.extend(add_copy(&pool, "sixth"));
            assert_holds(&pool, &files);
            // Those that came later need those that came first as little as any.
            let rest = files.split_off(FILE_COUNT);
            remove(&pool, &files);
            assert_holds(&pool, &rest);
            let rest: Files = rest.into_iter().chain(add_copy(&pool, "seventh")).collect();
            assert_holds(&pool, &rest);
            remove(&pool, &rest);
            assert_eq!(refs_entries(&pool), []);
            assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
        }
    }
}

/// A node that cannot be read is one problem, or none if only a writer has reused its space. The
/// parts that other nodes list are none, though the entry of their segment is gone with it.
#[test]
fn parts_whose_segment_cannot_be_read_are_no_problems() {
    let (device, pool) = empty_pool(&[(Property::Dedup, "on")]);
    let mut rng = Rng(5);
    let original = rng.noise(600);
    for number in 0..800_u32 {
        let bytes = [&original[..], &number.to_le_bytes()].concat();
        put(&pool, format!("f{number}").as_bytes(), &bytes);
    }
    let report = optimize(&pool, GOAL);
    assert_eq!((report.segments, report.records), (1, 800));
    // What the newest commit wrote is read when the pool is opened.
    for number in 0..3_u8 {
        put(&pool, &[b'x', b'0' + number], &rng.noise(9000));
    }
    pool.close().unwrap();
    let (state, mut last, mut first) = (pool.state(), None, None);
    let root = state.superblock.roots[TreeId::Refs].as_ref().unwrap();
    walk_tree(pool.store(), TreeId::Refs, root, Txg(0), &mut |met| {
        match met {
            Met::Node(_, pointer) => last = Some(pointer.clone()),
            // The leaf with the entry of the segment: the first with any.
            _ => first = first.take().or(last.take()),
        }
        Ok(())
    })
    .unwrap();
    let run = first.and_then(|leaf| leaf.run(pool.store().ashift())).unwrap();
    device.write_at(&[0x55; 512], run.start.0 << pool.store().ashift()).unwrap();
    let found = problems(&reopened(&device)).unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("refs tree"), "{found:?}");
}

#[test]
fn without_dedup_nothing_is_noted() {
    let (_, pool, files) = with_segments(&[]);
    assert_eq!(pool.state().superblock.incompat & FEATURE_PARTS_BY_CONTENT, 0);
    assert_eq!(part_count(&pool), 0);
    assert_holds(&pool, &files);
}

#[test]
fn a_file_without_dedup_in_the_same_segment_is_left_out() {
    let (_, pool) = empty_pool(&[(Property::Dedup, "on")]);
    let files = add(&pool, "first");
    let first = file_at(&pool, &files[0].0);
    pool.set_property(first.id(), Property::Dedup, "off").unwrap();
    optimize(&pool, GOAL);
    assert_eq!(part_count(&pool), FILE_COUNT - 1);
    let before = used(&pool);
    let second = add(&pool, "second");
    let grown = used(&pool) - before;
    assert!((FILE_LEN as u64..FILE_LEN as u64 + COPY_LEN_MAX).contains(&grown), "{grown}");
    assert_holds(&pool, &[files, second].concat());
}

#[test]
fn one_record_or_equal_ones_alone_in_a_segment_are_found() {
    for copies in 1..3 {
        let (_, pool) = empty_pool(&[]);
        let bytes = Rng(5).text(30_000);
        let mut files: Files =
            (0..copies).map(|n| (format!("f{n}").into_bytes(), bytes.clone())).collect();
        files.iter().for_each(|(path, bytes)| drop(put(&pool, path, bytes)));
        pool.set_property(ROOT, Property::Dedup, "on").unwrap();
        let report = optimize(&pool, SegmentGoal { compression: Compression::Zstd(12), ..GOAL });
        assert_eq!((report.segments, report.records), (1, copies));
        let before = used(&pool);
        files.push((b"again".to_vec(), bytes.clone()));
        put(&pool, b"again", &bytes);
        assert!(used(&pool) - before < 4096);
        assert_holds(&pool, &files);
    }
}

#[test]
fn what_is_written_again_stays_where_it_is() {
    let (_, pool, files) = with_segments(&[(Property::Dedup, "on")]);
    let before = pointers(&pool);
    for (path, bytes) in &files {
        let file = file_at(&pool, path);
        file.write_at(bytes, 0).unwrap();
        file.commit(Durability::Durable).unwrap();
    }
    assert_eq!(pointers(&pool), before);
    assert_holds(&pool, &files);
}

#[test]
fn segments_are_found_where_they_were_moved_to() {
    // One with many pointers, and one of whose pointers a single one is left.
    for kept in [FILE_COUNT, 1] {
        let (_, pool) = empty_pool(&[(Property::Dedup, "on")]);
        put(&pool, b"filler", &Rng(8).noise(2_000_000));
        let mut files = add(&pool, "first");
        let mut optimisation = pool.optimize(pool.resolve(b"first").unwrap().file, GOAL).unwrap();
        while optimisation.step().unwrap() {}
        pool.remove_at(b"filler", 0).unwrap();
        remove(&pool, &files.split_off(kept));
        let before: Vec<_> = pointers(&pool).into_iter().map(|pointer| pointer.place).collect();
        compact(&pool);
        assert!(pointers(&pool).iter().all(|pointer| !before.contains(&pointer.place)));
        files.extend(add_copy(&pool, "second"));
        assert_holds(&pool, &files);
        remove(&pool, &files);
        assert_eq!(refs_entries(&pool), []);
    }
}

#[test]
fn a_segment_that_only_a_snapshot_holds_is_found() {
    let (_, pool, files) = with_segments(&[(Property::Dedup, "on")]);
    pool.create_snapshot(ROOT, b"kept", 0).unwrap();
    remove(&pool, &files);
    let second = add_copy(&pool, "second");
    pool.destroy_snapshot(ROOT, b"kept").unwrap();
    assert_holds(&pool, &second);
    remove(&pool, &second);
    assert_eq!(refs_entries(&pool), []);
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}

#[test]
fn a_stream_finds_what_is_in_segments() {
    let (_, source) = empty_pool(&[(Property::Dedup, "on")]);
    let mut sent = add(&source, "second");
    sent.extend(add(&source, "third"));
    source.create_snapshot(ROOT, b"now", 0).unwrap();
    let stream = stream_of(&source, b"now", None);
    let (_, pool, files) = with_segments(&[(Property::Dedup, "on")]);
    let before = used(&pool);
    let receiving = ReceiveOptions::default();
    pool.receive(ROOT, b"received", &mut &stream[..], &receiving, &mut |_| {}).unwrap();
    assert!(used(&pool) - before < 2 * COPY_LEN_MAX);
    assert!(pointers(&pool).iter().all(Pointer::is_part));
    let received =
        sent.into_iter().map(|(path, bytes)| ([b"received/", &path[..]].concat(), bytes));
    assert_holds(&pool, &files.into_iter().chain(received).collect::<Files>());
}

#[test]
fn entries_of_parts_that_make_no_sense_are_reported() {
    let (_, pool, files) = with_segments(&[(Property::Dedup, "on")]);
    let len = refs_entries(&pool).iter().find_map(|entry| match entry {
        RefsEntry::Extent(sector, refs) => Some((*sector, refs.len)),
        RefsEntry::Part(..) => None,
    });
    let (sector, len) = len.unwrap();
    let hash = HashKind::Blake3.of(b"anything");
    let hash = PartHash::from(hash);
    let in_segment = |offset, len| (sector, PartContent { offset, len, hash });
    for (sector, part) in [
        in_segment(len, 1),
        in_segment(0, len + 1),
        in_segment(u32::MAX, u32::MAX),
        in_segment(5, 0),
        (Sector(sector.0 + 1), PartContent { offset: 0, len: 1, hash }),
        (Sector(81), PartContent { offset: 0, len: 1, hash }),
    ] {
        let mut txn = pool.store().begin(Default::default()).unwrap();
        let key = part_key(sector, hash.front);
        txn.insert(TreeId::Refs, &key, &part.encode()).unwrap();
        txn.commit(Durability::Durable).unwrap();
        assert_ne!(problems(&pool).unwrap(), Vec::<String>::new(), "{sector:?} {part:?}");
        // It leads nowhere, and nothing fails because of it.
        put(
            &pool,
            b"any",
            b"anything at all, so long as it is longer than a pointer can hold; "
                .repeat(9)
                .as_slice(),
        );
        pool.remove_at(b"any", 0).unwrap();
        let mut txn = pool.store().begin(Default::default()).unwrap();
        txn.remove(TreeId::Refs, &key).unwrap();
        txn.commit(Durability::Durable).unwrap();
        assert_holds(&pool, &files);
    }
}

/// Entries without a segment, which only damage leaves, do not become those of a new one.
#[test]
fn a_new_segment_has_no_parts_of_an_earlier_one() {
    let (_, pool) = empty_pool(&[(Property::Dedup, "on")]);
    let files = add(&pool, "first");
    let hash = PartHash::from(HashKind::Blake3.of(&files[0].1));
    let end = pool.state().superblock.end.0;
    let orphan = PartContent { offset: 1, len: FILE_LEN as u32, hash };
    let mut txn = pool.store().begin(Default::default()).unwrap();
    for sector in (80..2 * end).map(Sector) {
        txn.insert(TreeId::Refs, &part_key(sector, hash.front), &orphan.encode()).unwrap();
    }
    txn.commit(Durability::Durable).unwrap();
    optimize(&pool, GOAL);
    let entries = refs_entries(&pool);
    let segment = entries.iter().find_map(|entry| match entry {
        RefsEntry::Extent(sector, refs) if refs.whole.is_some() => Some(*sector),
        _ => None,
    });
    let segment = segment.expect("a segment");
    let of_segment = |entry: &&RefsEntry| matches!(entry, RefsEntry::Part(at, _) if *at == segment);
    let parts: Vec<_> = entries.iter().filter(of_segment).collect();
    assert_eq!(parts.len(), FILE_COUNT);
    assert!(!parts.contains(&&RefsEntry::Part(segment, orphan)));
}

#[test]
fn the_golden_pool_with_parts_by_content_is_read() {
    let properties = [(Property::Dedup, "on")];
    let (pool, files) = golden("v2-parts-by-content.hpk", &properties, 43, 6);
    assert_ne!(pool.state().superblock.incompat & FEATURE_PARTS_BY_CONTENT, 0);
    assert_holds(&pool, &files);
    assert!(part_count(&pool) > 3);
    put(&pool, b"again", &files[2].1);
    assert!(pointers(&pool).iter().all(Pointer::is_part));
    assert_holds(&pool, &files);
}

#[test]
fn the_golden_pool_with_short_part_hashes_is_read() {
    let properties = [(Property::Dedup, "on")];
    let (pool, files) = golden("v2-short-part-hashes.hpk", &properties, 47, 6);
    assert_ne!(pool.state().superblock.incompat & FEATURE_SHORT_PART_HASHES, 0);
    assert_holds(&pool, &files);
    put(&pool, b"again", &files[2].1);
    assert!(pointers(&pool).iter().all(Pointer::is_part));
    assert_holds(&pool, &files);
}

/// The parts of older pools keep their whole hashes where they are moved to.
#[test]
fn whole_hashes_of_parts_stay_whole() {
    let (_, pool, mut files) = with_segments(&[(Property::Dedup, "on")]);
    let mut txn = pool.store().begin(Default::default()).unwrap();
    for (path, bytes) in &files {
        let hash = HashKind::Blake3.of(bytes);
        let pointer = pointer_of(&pool, path);
        let rest = hash.hash[8..].try_into().ok();
        let kept = PartHash { rest, ..hash.into() };
        let (sector, offset) = (pointer.sector().unwrap(), pointer.part_offset);
        let part = PartContent { offset, len: pointer.len, hash: kept };
        txn.insert(TreeId::Refs, &part_key(sector, kept.front), &part.encode()).unwrap();
    }
    txn.commit(Durability::Durable).unwrap();
    files.extend(add_copy(&pool, "second"));
    assert_eq!(pool.index_stats().unwrap().segments_read, 0);
}

/// Returns the pointer of a file with one record.
fn pointer_of(pool: &Pool, path: &[u8]) -> Pointer {
    let mut found = pointers_at(pool, path);
    assert_eq!(found.len(), 1);
    found.remove(0)
}

/// Makes the front of the hash of `bytes` lead to another part.
fn lead_astray(pool: &Pool, bytes: &[u8], to: &Pointer) {
    let hash = PartHash::from(HashKind::Blake3.of(bytes));
    let part = PartContent { offset: to.part_offset, len: to.len, hash };
    let mut txn = pool.store().begin(Default::default()).unwrap();
    let key = part_key(to.sector().unwrap(), hash.front);
    txn.insert(TreeId::Refs, &key, &part.encode()).unwrap();
    txn.commit(Durability::Durable).unwrap();
}

#[test]
fn an_equal_front_of_a_hash_proves_nothing() {
    for dedup in ["on", "verify"] {
        let (device, pool, mut files) = with_segments(&[(Property::Dedup, dedup)]);
        let to = pointer_of(&pool, &files[3].0);
        let other = Rng(99).text(to.len as usize);
        lead_astray(&pool, &other, &to);
        for (n, pool) in [pool, open(&device)].iter().enumerate() {
            let path = format!("other{n}").into_bytes();
            // Twice: the second time, the hashes of the segment are in memory.
            for path in [path.clone(), [&path[..], b"again"].concat()] {
                put(pool, &path, &other);
                assert!(!pointer_of(pool, &path).is_part());
                files.push((path, other.clone()));
            }
            // In its own slot as well.
            let path = format!("copy{n}").into_bytes();
            put(pool, &path, &files[3].1);
            assert!(pointer_of(pool, &path).is_part());
            let file = file_at(pool, &path);
            file.write_at(&other, 0).unwrap();
            file.commit(Durability::Durable).unwrap();
            files.push((path, other.clone()));
            assert_holds(pool, &files);
            pool.close().unwrap();
        }
    }
}

#[test]
fn a_segment_is_read_once_to_prove_its_parts() {
    let properties = [(Property::Dedup, "on"), (Property::Chunking, "fixed")];
    let (device, pool, mut files) = with_segments(&properties);
    files.extend(add_copy(&pool, "second"));
    files.extend(add_copy(&pool, "third"));
    let stats = pool.index_stats().unwrap();
    assert_eq!(stats.segments_read, 1);
    assert!(stats.part_hash_bytes > 32 * FILE_COUNT as u64 && stats.hits > 0, "{stats:?}");
    assert!(stats.memory_bytes() >= stats.part_hash_bytes);
    pool.close().unwrap();
    // Other content costs nothing.
    let pool = open(&device);
    put(&pool, b"other", &Rng(100).text(FILE_LEN));
    assert_eq!(pool.index_stats().unwrap().segments_read, 0);
    assert_holds(&pool, &files);
}

/// Another segment at the same place is not taken for the one whose hashes are in memory.
#[test]
fn a_segment_where_another_was_is_read_again() {
    let (_, pool) = empty_pool(&[(Property::Dedup, "on")]);
    pool.edit(0, |edit| {
        let like = Attributes::new(Kind::Directory, ROOT);
        edit.create(ROOT, b"a", &like)?;
        edit.create(ROOT, b"b", &like).map(drop)
    })
    .unwrap();
    let mut places = Vec::new();
    for round in 0..6 {
        let (files, copies) = (family_of(round, "a"), family_of(round, "b"));
        files.iter().for_each(|(path, bytes)| drop(put(&pool, path, bytes)));
        optimize(&pool, GOAL);
        places.push(pointer_of(&pool, &files[0].0).sector().unwrap());
        copies.iter().for_each(|(path, bytes)| drop(put(&pool, path, bytes)));
        assert!(copies.iter().all(|(path, _)| pointer_of(&pool, path).is_part()), "{round}");
        let all = [files, copies].concat();
        assert_holds(&pool, &all);
        remove(&pool, &all);
    }
    let all = places.len();
    places.sort_unstable();
    places.dedup();
    assert!(places.len() < all, "no place was used twice");
}

#[test]
fn what_a_damaged_segment_holds_is_stored_again() {
    let (device, pool, files) = with_segments(&[(Property::Dedup, "on")]);
    let at = pointer_of(&pool, &files[0].0).sector().unwrap().0 << 9;
    pool.close().unwrap();
    let mut byte = [0];
    device.read_at(&mut byte, at + 100).unwrap();
    device.write_at(&[byte[0] ^ 1], at + 100).unwrap();
    let pool = open(&device);
    put(&pool, b"again", &files[1].1);
    assert!(!pointer_of(&pool, b"again").is_part());
    let mut found = vec![0; files[1].1.len()];
    file_at(&pool, b"again").read_at(&mut found, 0).unwrap();
    assert!(found == files[1].1);
}

#[test]
fn what_a_snapshot_or_another_directory_holds_stays_where_it_is() {
    // A copy shares the segments of what a snapshot has, or of what does not take part.
    for has_snapshot in [true, false] {
        let (_, pool) = empty_pool(&[(Property::Dedup, "on")]);
        let mut files = add(&pool, "first");
        optimize(&pool, SegmentGoal { len: 100_000, ..GOAL });
        if has_snapshot {
            pool.create_snapshot(ROOT, b"kept", 0).unwrap();
        }
        files.extend(add_copy(&pool, "second"));
        let (before, places) = (used(&pool), pointers(&pool));
        let top = if has_snapshot { ROOT } else { pool.resolve(b"second").unwrap().file };
        // Longer segments would be smaller, but the others would not go away.
        let mut optimisation =
            pool.optimize(top, SegmentGoal { again: Again::All, ..GOAL }).unwrap();
        while optimisation.step().unwrap() {}
        assert!(used(&pool) <= before, "{has_snapshot}: {} after {before}", used(&pool));
        assert_eq!(pointers(&pool), places, "{has_snapshot}");
        assert_holds(&pool, &files);
    }
}

#[test]
fn what_snapshots_have_of_segments_is_not_counted_as_shared() {
    let (_, pool, files) = with_segments(&[(Property::Dedup, "on")]);
    pool.create_snapshot(ROOT, b"kept", 0).unwrap();
    let second = add_copy(&pool, "second");
    remove(&pool, &files);
    // Their segment counts once, whoever has its parts.
    assert_eq!(pool.state().stats().shared, Default::default());
    let held = pool.held_by_snapshots().unwrap();
    assert_eq!((held.only, held.shared), (held.only.min(COPY_LEN_MAX), 0));
    remove(&pool, &second);
    let held = pool.held_by_snapshots().unwrap();
    assert!(held.only > FILE_LEN as u64 && held.shared == 0, "{held:?}");
}
