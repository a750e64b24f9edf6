//! Images whose checksums are all correct but whose content is not, as only a defect or malice can
//! write them. Nothing may panic, hang or trust a length.

use std::cell::Cell;
use std::io;
use std::sync::Arc;

use crate::common::live::newest_superblock;
use crate::common::sim_device::{Fault, SimDevice};
use crate::common::{GUID, Rng, create, only_file, options, read_all};
use hardpack_engine::device::Device;
use hardpack_engine::pool::{Fold, Pool, Property, ROOT, Settings, StepLimits};
use hardpack_engine::store::checksum::ChecksumKind;
use hardpack_engine::store::format::refs::{
    ContentHash, HashKind, PartContent, PartHash, Refs, part_key,
};
use hardpack_engine::store::node::Node;
use hardpack_engine::store::pointer::{EXTENT_LEN_MAX, Inline, Place, Pointer};
use hardpack_engine::store::superblock::slot_offset;
use hardpack_engine::store::trees::TreeId;
use hardpack_engine::store::{Durability, Encoding, Patience, Store};
use hardpack_engine::{FileId, Run, Sector, Txg};

/// A disk that does not grow beyond a limit.
#[derive(Debug)]
struct SmallDisk;

impl Fault for SmallDisk {
    fn write(&mut self, _: &[u8], offset: u64, bytes: &[u8]) -> io::Result<Vec<(u64, Vec<u8>)>> {
        if offset.saturating_add(bytes.len() as u64) > 64 << 20 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(vec![(offset, bytes.to_vec())])
    }
}

fn small_pool(rng: &mut Rng) -> Arc<SimDevice> {
    let device = SimDevice::new(Vec::new());
    let dynamic: Arc<dyn Device> = device.clone();
    let properties = [(Property::RecordSize, "16K"), (Property::Dedup, rng.pick(&["off", "on"]))];
    let pool = create(&dynamic, &properties, 32 << 20);
    let file = only_file(&pool).unwrap();
    file.write_at(&rng.text(100_000), 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    file.write_at(&rng.noise(4096), 20_480).unwrap();
    file.commit(Durability::Durable).unwrap();
    device.set_fault(Some(Box::new(SmallDisk)));
    device
}

/// Does everything that can be done with a pool. Errors are fine.
fn exercise(device: &Arc<SimDevice>, rng: &mut Rng) {
    let Ok(pool) = Pool::open(device.clone(), options(60_000)) else { return };
    let _ = pool.check(&mut |_| {});
    let _ = pool.list();
    let _ = pool.walk(ROOT, &mut |path, entry, _| {
        let _ = (pool.resolve(path), pool.path_of(entry.file), pool.xattrs(entry.file));
        let _ = (pool.properties(entry.file), pool.link_target(entry.file));
        Ok(path.len() < 1000)
    });
    let _ = pool.remove_tree(ROOT, rng.pick(&[&b"x"[..], b"recordsize"]), 3, &mut |_| true);
    let _ = pool.state().stats().compress_ratio();
    let _ = pool.state().free_bytes(pool.store().ashift());
    let Ok(file) = only_file(&pool) else { return };
    let _ = pool.properties(file.id());
    if rng.one_in(2) {
        let _ = pool.set_property(file.id(), Property::Dedup, rng.pick(&["on", "verify"]));
    }
    for _ in 0..12 {
        let offset =
            rng.pick(&[0, 4096, 16_384, 50_000, 90_000, 1 << 30, (1 << 60) - 5000, u64::MAX]);
        let mut bytes = vec![0; rng.pick(&[10, 4096, 70_000])];
        let _ = file.read_at(&mut bytes, offset);
        let _ = file.write_at(&bytes, offset.min(1 << 20));
        if rng.one_in(3) {
            let _ = file.commit(rng.pick(&[Durability::Durable, Durability::Visible]));
        }
        if rng.one_in(4) {
            let _ = file.set_len(rng.below(120_000));
        }
        if rng.one_in(8) {
            file.discard();
        }
    }
    let _ = file.commit(Durability::Durable);
    file.discard();
    if file.len().is_ok_and(|len| len < 1 << 24) {
        let _ = read_all(&file);
    }
    let _ = pool.set_property(file.id(), Property::Compression, "lz4");
    maintain(&pool, file.id());
    let _ = pool.close();
    let _ = pool.check(&mut |_| {});
}

/// Runs everything that rewrites stored data, a few steps of each.
fn maintain(pool: &Pool, file: FileId) {
    let limits = StepLimits { look_count_max: 64, ..StepLimits::default() };
    let few = Cell::new(0);
    let _ = pool.fold(Fold::All, &limits, &mut |_| few.replace(few.get() + 1) < 3);
    let goal = Settings { record_len: 4096, ..Settings::default() };
    let _ =
        pool.estimate_repack(file, goal, 1 << 16, None, &mut |_| few.replace(few.get() + 1) < 6);
    let unfinished = pool.unfinished_repack(file).ok().flatten();
    let begun = unfinished.map_or_else(|| pool.begin_repack(file, goal, Patience::None), Ok);
    if let Ok(mut repack) = begun {
        for _ in 0..3 {
            let _ = pool.repack_step(&mut repack, &limits, None);
        }
    }
    let _ = pool.remove_unused_dictionaries(Patience::None);
    let _ = pool.index_stats();
    let _ = pool.prune_index(Patience::None, &mut |_| few.replace(few.get() + 1) < 9);
    let _ = pool.rebuild_index(Patience::None, &mut |_| few.replace(few.get() + 1) < 12);
    let _ = pool.drop_index(Patience::None);
    let mut compaction = pool.compact();
    for _ in 0..3 {
        let _ = compaction.step();
    }
}

fn number(rng: &mut Rng) -> u64 {
    match rng.below(6) {
        0 => 0,
        1 => rng.below(20),
        2 => 1 << rng.below(64),
        3 => u64::MAX - rng.below(3),
        4 => rng.below(400),
        _ => rng.next(),
    }
}

fn pointer(rng: &mut Rng) -> Pointer {
    let limit = rng.pick(&[9000, 9000, 9000, 1 << 24]);
    let stored_len = 1 + rng.below(limit) as u32;
    let place = match rng.below(3) {
        0 => Place::Zero,
        1 => {
            Place::Embedded(Inline::new(&rng.noise(stored_len as usize % 113)).expect("few bytes"))
        }
        _ => Place::Extent {
            sector: Sector(number(rng)),
            checksum_kind: rng.pick(&ChecksumKind::ALL),
            checksum: [7; 32],
        },
    };
    let extent_len = rng.pick(&[0, 1, 4096, 16_384, 16_384, EXTENT_LEN_MAX]);
    let part_offset = rng.below(u64::from(extent_len) + 1) as u32;
    Pointer {
        stored_len: match &place {
            Place::Zero => 0,
            Place::Embedded(bytes) => bytes.len() as u32,
            Place::Extent { .. } => stored_len,
        },
        place,
        codec: rng.below(8) as u8,
        level: 1,
        codec_version: 1,
        filter: rng.pick(&[0, 0, 0, 0, 0, 1, 2]),
        gain: 0,
        birth: Txg(number(rng)),
        len: extent_len - part_offset,
        extent_len,
        part_offset,
        span_log2: rng.below(25) as u8,
        dictionary: if rng.one_in(4) { rng.below(3) as u32 } else { 0 },
    }
}

/// Returns a key and a value that a tree may hold, or almost.
fn entry(tree: TreeId, rng: &mut Rng) -> (Vec<u8>, Vec<u8>) {
    let be = |n: u64| n.to_be_bytes().to_vec();
    let garbage_len = rng.below(40) as usize;
    if rng.one_in(6) {
        return (rng.noise(garbage_len), rng.noise(garbage_len));
    }
    match tree {
        TreeId::Names => {
            let file = rng.pick(&[1, 2, 3]);
            let name: &[u8] =
                rng.pick(&[&b""[..], b"main", b"compression", b"recordsize", b"\xff"]);
            let prefix = rng.pick(&[1, 2, 2, 3, 4, 5, 6, 7, 8, 9]);
            let directory = if prefix == 6 { be(rng.pick(&[1, 2, 3])) } else { Vec::new() };
            let part: &[u8] =
                if prefix > 6 { rng.pick(&[&b"\0"[..], b"\0\0", b"\x02"]) } else { b"" };
            let key = [vec![prefix], be(file), directory, name.to_vec(), part.to_vec()].concat();
            let mut attributes = vec![0; rng.pick(&[32, 80])];
            attributes[0] = rng.below(5) as u8;
            attributes[8..16].copy_from_slice(&number(rng).to_le_bytes());
            // A directory, or a cycle of directories.
            attributes[24] = rng.below(4) as u8;
            let text = rng
                .pick(&["16M", "zstd-22", "no", "", "position=9 recordsize=4K", "\x01\0\0\0"])
                .as_bytes()
                .to_vec();
            let child = [vec![1], number(rng).to_le_bytes().to_vec()].concat();
            let choices = [attributes, text, child];
            (key, choices[rng.below(3) as usize].clone())
        }
        TreeId::Map | TreeId::Patches => {
            let file = if rng.one_in(8) { number(rng) } else { 2 };
            let offset = match rng.below(3) {
                0 => number(rng),
                1 => rng.below(30) * 4096,
                _ => rng.below(100_000),
            };
            let garbage = rng.one_in(10);
            let value = if garbage { rng.noise(64) } else { pointer(rng).to_bytes() };
            ([be(file), be(offset)].concat(), value)
        }
        TreeId::Space => (be(number(rng)), number(rng).to_le_bytes().to_vec()),
        TreeId::Freed => {
            let key = [be(rng.pick(&[0, 1, 2, 3, u64::MAX])), be(number(rng))].concat();
            (key, number(rng).to_le_bytes().to_vec())
        }
        TreeId::Roots => {
            let key = vec![rng.pick(&[0, 1, 2, 3, 6, 7, 0xff])];
            (key, pointer(rng).to_bytes())
        }
        TreeId::Dictionaries => {
            let key = (rng.below(4) as u32).to_be_bytes().to_vec();
            (key, pointer(rng).to_bytes())
        }
        TreeId::Refs => refs_entry(rng),
        TreeId::Index => {
            let run = rng.pick(&[0, 1, 2, u32::MAX]).to_be_bytes().to_vec();
            let kind = vec![rng.below(4) as u8];
            let first = if rng.one_in(2) { 0 } else { number(rng) };
            // Often the header of a run.
            let numbers: Vec<u8> = (0..4).flat_map(|_| number(rng).to_le_bytes()).collect();
            let header = [numbers, rng.pick(&[0_u32, 1, 2]).to_le_bytes().to_vec()].concat();
            let place = Place::Embedded(Inline::new(&header).expect("few bytes"));
            let len = header.len() as u32;
            let (stored_len, extent_len, part_offset) = (len, len, 0);
            let (codec, filter, dictionary, span_log2) = (0, 0, 0, 0);
            let whole = pointer(rng);
            let header = Pointer {
                place,
                stored_len,
                len,
                extent_len,
                part_offset,
                codec,
                filter,
                dictionary,
                span_log2,
                ..whole.clone()
            };
            let value = if rng.one_in(2) { header } else { whole };
            ([run, kind, be(first)].concat(), value.to_bytes())
        }
        _ => (be(rng.below(400)), (number(rng) as u32).to_le_bytes().to_vec()),
    }
}

/// Returns the reference count of an extent that exists, or does not.
fn refs_entry(rng: &mut Rng) -> (Vec<u8>, Vec<u8>) {
    let (any, len, stored_len) = (number(rng), number(rng) as u32, number(rng) as u32);
    let sector = rng.pick(&[80, 81, 90, 100, any]);
    let mut content = pointer(rng);
    if rng.one_in(2) {
        let (checksum_kind, checksum) = (ChecksumKind::Xxh3, [7; 32]);
        content.place = Place::Extent { sector: Sector(sector), checksum_kind, checksum };
        content.stored_len = content.stored_len.max(1);
        (content.filter, content.part_offset, content.len) = (0, 0, content.extent_len);
    }
    let hash = ContentHash { kind: HashKind::Blake3, hash: [rng.below(3) as u8; 32] };
    let refs = Refs {
        count: 1 + number(rng) as u32 % u32::MAX,
        birth: Txg(number(rng)),
        len: rng.pick(&[content.len, len]),
        stored_len: rng.pick(&[content.stored_len, stored_len]),
        has_parts: false,
        content: Some((hash, content.clone())).filter(|_| rng.one_in(2)),
        whole: None,
    };
    let offset = rng.pick(&[0, 1, any as u32]);
    let front = u64::from_be_bytes([hash.hash[0]; 8]);
    let rest = rng.one_in(2).then_some([hash.hash[0]; 24]);
    let kept = PartHash { kind: hash.kind, front, rest };
    let part = PartContent { offset, len: rng.pick(&[content.len, 1, 0, len]), hash: kept };
    let segment = Refs { has_parts: true, content: None, whole: Some(content), ..refs.clone() };
    let key = sector.to_be_bytes().to_vec();
    match rng.below(4) {
        0 => (part_key(Sector(sector), front).to_vec(), part.encode()),
        1 => (key, segment.encode()),
        _ => (key, refs.encode()),
    }
}

#[test]
fn entries_that_make_no_sense() {
    for seed in 0..1500 {
        let mut rng = Rng(seed);
        let device = small_pool(&mut rng);
        {
            let pool = Pool::open(device.clone(), options(1 << 20)).unwrap();
            let store: &Arc<Store> = pool.store();
            let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
            let tree = TreeId::ALL[rng.below(TreeId::ALL.len() as u64) as usize];
            for _ in 0..rng.pick(&[1, 3, 40]) {
                let (key, value) = entry(tree, &mut rng);
                txn.insert(tree, &key, &value).unwrap();
            }
            if rng.one_in(2) {
                let (key, value) = entry(TreeId::Map, &mut rng);
                txn.insert(TreeId::Map, &key, &value).unwrap();
            }
            let _ = txn.commit(Durability::Durable);
        }
        if rng.one_in(2) {
            // Make the counts agree, so that the runs are used.
            change_superblock(&device, |superblock| {
                superblock.freed_count = 300;
                superblock.freed_sectors = 500.min(superblock.end.0);
                superblock.space_sectors = 500.min(superblock.end.0);
            });
        }
        exercise(&device, &mut rng);
    }
    assert_eq!(TreeId::COUNT, 11, "a new tree needs entries of its own here");
}

fn change_superblock(
    device: &Arc<SimDevice>,
    change: impl FnOnce(&mut hardpack_engine::store::superblock::Superblock),
) {
    let (slot, mut superblock) = newest_superblock(&device.image()).unwrap();
    change(&mut superblock);
    device.write_at(&superblock.encode(&GUID), slot_offset(slot)).unwrap();
}

#[test]
fn superblocks_that_make_no_sense() {
    for seed in 0..1500 {
        let mut rng = Rng(seed);
        let device = small_pool(&mut rng);
        change_superblock(&device, |superblock| {
            for _ in 0..1 + rng.below(3) {
                let n = number(&mut rng);
                match rng.below(14) {
                    0 => superblock.txg = Txg(n),
                    1 => superblock.durable_txg = Txg(n),
                    2 => superblock.end = Sector(n),
                    3 => superblock.freed_count = n,
                    4 => superblock.freed_sectors = n,
                    5 => superblock.space_sectors = n,
                    6 => superblock.next_file_id = n,
                    7 => {
                        let sectors = number(&mut rng);
                        superblock.windows.push(Run { start: Sector(n), sectors });
                    }
                    8 => superblock.stats.file_bytes = n,
                    9 => superblock.stats.embedded.logical = n,
                    10 => superblock.stats.codecs[5].allocated = n,
                    11 => superblock.stats.nodes.records = n,
                    12 => superblock
                        .roots
                        .values_mut()
                        .swap(rng.below(8) as usize, rng.below(8) as usize),
                    _ => {
                        superblock.roots.values_mut()[rng.below(8) as usize] =
                            Some(pointer(&mut rng));
                    }
                }
            }
        });
        exercise(&device, &mut rng);
    }
}

/// A tree that refers to the same children repeatedly: 40 to the power of 20 entries in a few
/// kilobytes. The bounds of the children do not allow it.
#[test]
fn a_tree_that_folds_in_on_itself() {
    for tree in [TreeId::Names, TreeId::Map, TreeId::Space] {
        let mut rng = Rng(tree.number().into());
        let device = small_pool(&mut rng);
        let pool = Pool::open(device.clone(), options(1 << 20)).unwrap();
        let mut txn = pool.store().begin(ChecksumKind::Xxh3).unwrap();
        let mut node = Node::new(0);
        node.insert(0, &[0], &[1]);
        for level in 0..20 {
            let stored = node.encode(tree, txn.txg(), &GUID).unwrap();
            let len = node.payload_len() as u32;
            let child = txn.store_extent(&stored, Encoding::RAW, len, ChecksumKind::Xxh3).unwrap();
            node = Node::new(level + 1);
            (0..40).for_each(|n| node.insert(n, &[n as u8], &child.to_bytes()));
        }
        let root = Pointer::decode(node.value(0)).unwrap();
        txn.commit(Durability::Durable).unwrap();
        change_superblock(&device, |superblock| {
            superblock.roots[tree] = Some(root);
            superblock.durable_txg = Txg(1);
            superblock.data_synced = rng.one_in(2);
        });
        exercise(&device, &mut rng);
    }
}
