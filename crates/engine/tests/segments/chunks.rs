//! Files that are cut where their content says so, not at multiples of the record size.

use std::sync::Arc;

use crate::common::chunks::{import, is_chunk, records};
use crate::common::segments::{
    Files, GOAL, assert_holds, empty_pool, file_at, golden_pool, optimize, used,
};
use crate::common::{
    Rng, create_options, env_number, first_difference, options, problems, read_all,
};
use hardpack_engine::FileId;
use hardpack_engine::device::{Device, MemoryDevice};
use hardpack_engine::pool::{Attributes, Kind, Pool, Property, ROOT, Settings, StepLimits};
use hardpack_engine::store::format::pointer::Pointer;
use hardpack_engine::store::superblock::FEATURE_CHUNKS;
use hardpack_engine::store::{Durability, Patience};

const RECORD: usize = 16 << 10;
const CDC: [(Property, &str); 3] =
    [(Property::Chunking, "cdc"), (Property::Dedup, "on"), (Property::RecordSize, "16K")];

/// Imports a file whose content comes in pieces of about `piece` bytes.
fn stream(pool: &Pool, name: &[u8], bytes: &[u8], piece: usize, rng: &mut Rng) -> FileId {
    let mut import = pool.import(0);
    import.begin_file(ROOT, name, &Attributes::new(Kind::File, ROOT), &[]).unwrap();
    let mut rest = bytes;
    while !rest.is_empty() {
        let len = rest.len().min(1 + rng.below(2 * piece as u64) as usize);
        import.write(&rest[..len]).unwrap();
        rest = &rest[len..];
    }
    import.end_file().unwrap();
    assert_eq!(import.finish().unwrap().refused, []);
    pool.resolve(name).unwrap().file
}

fn has_feature(pool: &Pool) -> bool {
    pool.state().superblock.incompat & FEATURE_CHUNKS != 0
}

#[test]
fn chunks_are_as_long_as_they_may_be_and_leave_no_gap() {
    let (_, pool) = empty_pool(&CDC);
    let bytes = Rng(1).text(1 << 20);
    let file = import(&pool, b"a", &bytes);
    let found = records(&pool, file);
    let mut at = 0;
    for (start, pointer) in &found {
        assert_eq!(*start, at);
        assert!(is_chunk(pointer));
        at += u64::from(pointer.len);
        let is_long_enough = pointer.len as usize >= RECORD / 16 || at == bytes.len() as u64;
        assert!(pointer.len as usize <= RECORD && is_long_enough, "{}", pointer.len);
    }
    assert_eq!(at, bytes.len() as u64);
    let usual = bytes.len() / found.len();
    assert!((RECORD / 8..RECORD / 2).contains(&usual), "{usual}");
    assert!(has_feature(&pool));
    assert_holds(&pool, &[(b"a".to_vec(), bytes)]);
}

#[test]
fn the_cuts_do_not_depend_on_how_the_content_arrives() {
    let mut rng = Rng(2);
    let mib = 1 << 20;
    for len in [0, 1, RECORD, 4 * mib - 1, 4 * mib, 4 * mib + 1, 4 * mib + RECORD, 9 * mib + 77] {
        let (_, pool) = empty_pool(&CDC);
        let bytes = rng.noise(len);
        let mut cuts = Vec::new();
        for piece in [700, 100_000, 3 * mib] {
            let name = format!("{piece}").into_bytes();
            let file = stream(&pool, &name, &bytes, piece, &mut rng);
            let found = records(&pool, file);
            assert!(found.iter().all(|(_, pointer)| is_chunk(pointer)), "{len}");
            cuts.push(
                found.iter().map(|(start, pointer)| (*start, pointer.len)).collect::<Vec<_>>(),
            );
            assert_holds(&pool, &[(name, bytes.clone())]);
        }
        assert!(cuts.iter().all(|other| *other == cuts[0]), "{len}");
        // Their names and pointers are not.
        assert!(used(&pool) < len as u64 * 5 / 4 + 100_000, "{len}: {}", used(&pool));
    }
}

#[test]
fn what_has_moved_is_stored_once() {
    for (chunking, is_found) in [("cdc", true), ("auto", true), ("fixed", false)] {
        let properties = [
            (Property::Chunking, chunking),
            (Property::Dedup, "on"),
            (Property::RecordSize, "16K"),
        ];
        let (_, pool) = empty_pool(&properties);
        let mut rng = Rng(3);
        let first = rng.noise(6 << 20);
        let mut next = rng.noise(333);
        next.extend_from_slice(&first[..2_000_001]);
        next.extend_from_slice(&first[2_050_000..]);
        let file = stream(&pool, b"first", &first, 100_000, &mut rng);
        let before = used(&pool);
        stream(&pool, b"next", &next, 100_000, &mut rng);
        let grown = used(&pool) - before;
        assert_eq!(grown < 150_000, is_found, "{chunking}: {grown}");
        // The file itself is replaced, by what it shares the most with.
        stream(&pool, b"first", &next, 100_000, &mut rng);
        assert_ne!(pool.resolve(b"first").unwrap().file, file);
        let files = [(b"first".to_vec(), next.clone()), (b"next".to_vec(), next)];
        assert_holds(&pool, &files);
        assert!(used(&pool) <= before + 150_000 || !is_found);
        assert_eq!(has_feature(&pool), is_found);
    }
}

#[test]
fn a_short_file_that_is_replaced_shares_what_has_moved() {
    let (_, pool) = empty_pool(&CDC);
    let mut bytes = Rng(4).noise(2 << 20);
    let file = import(&pool, b"a", &bytes);
    let before = used(&pool);
    let births: Vec<_> = records(&pool, file).into_iter().map(|(_, p)| p.extent_key()).collect();
    bytes.insert(5, b'x');
    assert_eq!(import(&pool, b"a", &bytes), file);
    let kept = records(&pool, file);
    let kept = kept.iter().filter(|(_, p)| births.contains(&p.extent_key())).count();
    assert!(kept + 2 >= births.len(), "{kept} of {}", births.len());
    assert!(used(&pool) < before + 40_000);
    assert_holds(&pool, &[(b"a".to_vec(), bytes.clone())]);
    // From chunks to slots, and back.
    pool.set_property(file, Property::Chunking, "fixed").unwrap();
    import(&pool, b"a", &bytes);
    assert!(records(&pool, file).iter().all(|(_, pointer)| !is_chunk(pointer)));
    assert_holds(&pool, &[(b"a".to_vec(), bytes.clone())]);
    pool.set_property(file, Property::Chunking, "cdc").unwrap();
    import(&pool, b"a", &bytes);
    assert!(records(&pool, file).iter().all(|(_, pointer)| is_chunk(pointer)));
    assert_holds(&pool, &[(b"a".to_vec(), bytes)]);
}

#[test]
fn a_change_in_place_makes_slots_only_around_it() {
    const RECORD: usize = 128 << 10;
    let (_, pool) = empty_pool(&CDC[..2]);
    let mut bytes = Rng(5).text(6 << 20);
    let id = import(&pool, b"a", &bytes);
    let before = records(&pool, id).len();
    let file = pool.file(id).unwrap();
    let at = 10 * RECORD + 4_001;
    file.write_at(b"changed", at as u64).unwrap();
    file.commit(Durability::Durable).unwrap();
    bytes[at..at + 7].copy_from_slice(b"changed");
    let found = records(&pool, id);
    let slots: Vec<_> = found.iter().filter(|(_, pointer)| !is_chunk(pointer)).collect();
    assert_eq!(slots.len(), 1);
    assert_eq!((slots[0].0, slots[0].1.span()), (10 * RECORD as u64, RECORD as u64));
    assert!(found.len() + 20 > before && found.len() < before + 3, "{} of {before}", found.len());
    assert_holds(&pool, &[(b"a".to_vec(), bytes.clone())]);
    // Once it is a slot, it is patched like any other.
    file.write_at(b"again", at as u64).unwrap();
    file.commit(Durability::Durable).unwrap();
    bytes[at..at + 5].copy_from_slice(b"again");
    assert_eq!(pool.state().stats().patches.records, 1);
    assert_holds(&pool, &[(b"a".to_vec(), bytes.clone())]);
    // Cut within a chunk, and then extended.
    let cut = 30 * RECORD + 777;
    file.set_len(cut as u64).unwrap();
    file.commit(Durability::Durable).unwrap();
    bytes.truncate(cut);
    assert!(is_chunk(&records(&pool, id).last().unwrap().1));
    assert_holds(&pool, &[(b"a".to_vec(), bytes.clone())]);
    let more = Rng(6).text(3 * RECORD);
    file.write_at(&more, cut as u64).unwrap();
    file.commit(Durability::Durable).unwrap();
    bytes.extend_from_slice(&more);
    assert_holds(&pool, &[(b"a".to_vec(), bytes)]);
}

/// A transaction that is written ahead changes some bytes here and there, or whole slots.
#[test]
fn a_large_transaction_changes_a_file_of_chunks() {
    for seed in 0..6 {
        let mut rng = Rng(seed);
        let (device, pool) = empty_pool(&CDC);
        let mut bytes = rng.text(3 << 20);
        import(&pool, b"a", &bytes);
        pool.close().unwrap();
        let pool = Pool::open(device, options(100_000)).unwrap();
        let file = file_at(&pool, b"a");
        if rng.one_in(3) {
            let cut = rng.below(bytes.len() as u64) as usize;
            bytes.truncate(cut);
            file.set_len(cut as u64).unwrap();
        }
        for _ in 0..150 {
            let len = rng.pick(&[10, 5000, 40_000]);
            let at = rng.below(bytes.len() as u64 + 1) as usize;
            let new = rng.text(len);
            file.write_at(&new, at as u64).unwrap();
            bytes.resize(bytes.len().max(at + len), 0);
            bytes[at..at + len].copy_from_slice(&new);
        }
        assert!(read_all(&file).unwrap() == bytes, "before the commit of seed {seed}");
        file.commit(Durability::Durable).unwrap();
        assert_holds(&pool, &[(b"a".to_vec(), bytes)]);
    }
}

#[test]
fn files_that_are_changed_in_place_are_not_cut_into_chunks() {
    let with = |at: usize, signature: &[u8]| {
        let mut bytes = Rng(7).text(100_000);
        bytes[at..at + signature.len()].copy_from_slice(signature);
        bytes
    };
    let mut database = vec![0; 100_000];
    database[..16].copy_from_slice(b"SQLite format 3\0");
    database[16..18].copy_from_slice(&4096_u16.to_be_bytes());
    database[100] = 13;
    let mut disc = with(510, b"\x55\xaa");
    disc[32_769..32_774].copy_from_slice(b"CD001");
    let cases = [
        ("text", Rng(7).text(100_000), true),
        ("disc", disc, true),
        ("database", database, false),
        ("qcow2", with(0, b"QFI\xfb"), false),
        ("boot sector", with(510, b"\x55\xaa"), false),
        ("GPT", with(512, b"EFI PART"), false),
        ("ext4", with(1080, b"\x53\xef"), false),
    ];
    for (name, bytes, is_cut) in cases {
        for (chunking, dedup, expected) in
            [("auto", "on", is_cut), ("auto", "off", false), ("cdc", "off", true)]
        {
            let (_, pool) = empty_pool(&[(Property::Chunking, chunking), (Property::Dedup, dedup)]);
            let file = import(&pool, b"a", &bytes);
            let found = records(&pool, file);
            assert!(found.iter().all(|(_, p)| is_chunk(p) == expected), "{name}: {chunking}");
            assert_holds(&pool, &[(b"a".to_vec(), bytes.clone())]);
        }
    }
}

#[test]
fn chunks_are_recompressed_optimised_and_moved_as_they_are() {
    let (_, pool) = empty_pool(&CDC);
    let mut rng = Rng(8);
    let filler = import(&pool, b"0", &rng.noise(3 << 20));
    let mut files = Files::new();
    for n in 0..4 {
        let mut bytes = Rng(9).text(300_000);
        for _ in 0..5 {
            let at = rng.below(bytes.len() as u64) as usize;
            bytes.splice(at..at, rng.text(50));
        }
        let name = format!("f{n}").into_bytes();
        import(&pool, &name, &bytes);
        files.push((name, bytes));
    }
    let cuts = |pool: &Pool| -> Vec<Vec<(u64, u32)>> {
        let of = |name: &[u8]| {
            let found = records(pool, pool.resolve(name).unwrap().file);
            found.iter().map(|(start, pointer)| (*start, pointer.len)).collect()
        };
        files.iter().map(|(name, _)| of(name)).collect()
    };
    let before = cuts(&pool);
    for (name, _) in &files {
        let mut goal = Settings::default();
        goal.set(Property::Compression, "gzip-6").unwrap();
        let file = pool.resolve(name).unwrap().file;
        let mut repack = pool.begin_repack(file, goal, Patience::None).unwrap();
        let limits = StepLimits { rewrite_len_max: 50_000, ..StepLimits::default() };
        let mut rewritten = 0;
        loop {
            let step = pool.repack_step(&mut repack, &limits, None).unwrap();
            rewritten += step.rewritten;
            if step.next.is_none() {
                break;
            }
        }
        assert!(rewritten > 0);
        let codec = goal.compression.codec_id() as u8;
        assert!(records(&pool, file).iter().all(|(_, pointer)| pointer.codec == codec));
    }
    assert_eq!(cuts(&pool), before);
    assert_holds(&pool, &files);
    assert!(optimize(&pool, GOAL).records > 50);
    assert_eq!(cuts(&pool), before);
    assert_holds(&pool, &files);
    pool.remove_at(b"0", 0).unwrap();
    assert!(pool.attributes(filler).is_err());
    pool.store().make_durable().unwrap();
    let mut compaction = pool.compact();
    while compaction.step().unwrap() {}
    assert!(compaction.report().moved_bytes > 0);
    assert_eq!(cuts(&pool), before);
    assert_holds(&pool, &files);
}

/// All of a longer slot is overwritten, where a short one begins and a chunk reaches over the end.
#[test]
fn a_long_slot_takes_no_more_of_a_chunk_than_lies_in_it() {
    let (_, pool) = empty_pool(&[CDC[0], (Property::RecordSize, "128K")]);
    let mut bytes = Rng(10).text(600_000);
    let id = import(&pool, b"a", &bytes);
    let file = pool.file(id).unwrap();
    let mut reached_over = 0;
    for at in (64 << 10..512 << 10).step_by(64 << 10) {
        for (size, len) in [("4K", 4096), ("64K", 64 << 10)] {
            pool.set_property(id, Property::RecordSize, size).unwrap();
            let end = at as u64 + len as u64;
            let is_over = |(start, it): &(u64, Pointer)| {
                is_chunk(it) && *start < end && start + it.span() > end
            };
            reached_over += records(&pool, id).iter().filter(|it| is_over(it)).count();
            let new = Rng(at as u64).text(len);
            file.write_at(&new, at as u64).unwrap();
            file.commit(Durability::Durable).unwrap();
            bytes[at..at + len].copy_from_slice(&new);
            assert_holds(&pool, &[(b"a".to_vec(), bytes.clone())]);
        }
    }
    assert!(reached_over > 5, "{reached_over}");
}

/// Records of several sizes beside chunks, changed in many places by each transaction.
#[test]
fn slots_of_all_sizes_lie_beside_chunks() {
    let seeds = env_number("HARDPACK_CHUNK_SEEDS").unwrap_or(12);
    let (mut chunks, mut slots) = (0, 0);
    for seed in 0..seeds {
        let mut rng = Rng(7000 + seed);
        let sizes = ["4K", "8K", "32K", "128K", "512K"];
        let ashift = rng.pick(&[9, 12]);
        let mut properties = CDC.to_vec();
        properties[1].1 = rng.pick(&["on", "off", "verify"]);
        let device = Arc::new(MemoryDevice::default());
        let dynamic: Arc<dyn Device> = device.clone();
        let create = create_options(ashift, &properties);
        let dirty_len = |rng: &mut Rng| rng.pick(&[30_000, 200_000, 8 << 20]);
        let mut pool = Pool::create(dynamic, &create, options(dirty_len(&mut rng))).unwrap();
        let mut bytes = rng.text(400_000);
        let id = import(&pool, b"a", &bytes);
        for step in 0..60 {
            let label = format!("seed {seed}, step {step}");
            let file = pool.file(id).unwrap();
            match rng.below(10) {
                0 => {
                    let at = rng.below(bytes.len() as u64 + 1) as usize;
                    bytes.splice(at..at, rng.text(100));
                    let chunking = rng.pick(&["cdc", "cdc", "cdc", "fixed"]);
                    pool.set_property(id, Property::Chunking, chunking).unwrap();
                    assert_eq!(import(&pool, b"a", &bytes), id);
                }
                1 | 2 => pool.set_property(id, Property::RecordSize, rng.pick(&sizes)).unwrap(),
                3 => {
                    let mut goal = pool.settings(id).unwrap();
                    goal.set(Property::RecordSize, rng.pick(&sizes)).unwrap();
                    let mut repack = pool.begin_repack(id, goal, Patience::None).unwrap();
                    let limits = StepLimits { rewrite_len_max: 60_000, ..StepLimits::default() };
                    for _ in 0..1 + rng.below(8) {
                        if pool.repack_step(&mut repack, &limits, None).unwrap().next.is_none() {
                            break;
                        }
                    }
                }
                4 => {
                    pool.close().unwrap();
                    drop(file);
                    pool = Pool::open(device.clone(), options(dirty_len(&mut rng))).unwrap();
                    continue;
                }
                _ => {
                    if rng.one_in(4) {
                        let len = rng.below(700_000) as usize;
                        file.set_len(len as u64).unwrap();
                        bytes.resize(len, 0);
                    }
                    for _ in 0..rng.pick(&[1, 3, 20, 80]) {
                        let at = rng.below(bytes.len() as u64 + 1) / 512 * 512;
                        let len = rng.pick(&[1, 512, 4096, 4096, 20_000, 150_000]);
                        let new = if rng.one_in(8) { vec![0; len] } else { rng.text(len) };
                        file.write_at(&new, at).unwrap();
                        let at = at as usize;
                        bytes.resize(bytes.len().max(at + len), 0);
                        bytes[at..at + len].copy_from_slice(&new);
                    }
                    assert!(read_all(&file).unwrap() == bytes, "{label}, not committed");
                    file.commit(Durability::Durable).unwrap();
                }
            }
            let found = records(&pool, id);
            chunks += found.iter().filter(|(_, pointer)| is_chunk(pointer)).count();
            slots += found.iter().filter(|(_, pointer)| !is_chunk(pointer)).count();
            let found = read_all(&file_at(&pool, b"a")).unwrap();
            assert!(found == bytes, "{label}: {}", first_difference(&found, &bytes));
            assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "{label}");
        }
    }
    assert!(chunks > 1000 && slots > 1000, "{chunks} {slots}");
}

#[test]
fn the_golden_pool_with_chunks_is_read() {
    let mut bytes = Rng(44).text(20_000);
    let first = bytes.clone();
    bytes.splice(9000..9000, *b"in the middle");
    let files = [(b"a".to_vec(), first), (b"b".to_vec(), bytes)];
    let pool = golden_pool("v2-chunks.hpk", || {
        let (device, pool) = empty_pool(&CDC);
        files.iter().for_each(|(name, bytes)| _ = import(&pool, name, bytes));
        (device, pool)
    });
    assert!(has_feature(&pool));
    assert_holds(&pool, &files);
    let of = |name: &[u8]| records(&pool, pool.resolve(name).unwrap().file);
    let (a, b) = (of(b"a"), of(b"b"));
    assert!(a.len() > 3 && b.iter().any(|(at, _)| at % 512 != 0));
    let shared = b.iter().filter(|(_, p)| a.iter().any(|(_, q)| p.extent_key() == q.extent_key()));
    assert!(shared.count() > 1);
    // Readers of today go on with it.
    let file = file_at(&pool, b"b");
    file.write_at(b"new", 12_345).unwrap();
    file.commit(Durability::Durable).unwrap();
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}
