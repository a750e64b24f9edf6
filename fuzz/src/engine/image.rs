//! Opens a wrong image and uses it in every way.
//!
//! The input is a list of changes to a small sound pool. Checksums detect changes of single bytes.
//! To reach the code behind the checksums as well, other changes are made as a defect or malice
//! would make them: a superblock with other fields, a node or an extent with other bytes, with the
//! checksums of everything that leads there adjusted.

use std::cell::Cell;
use std::sync::{Arc, OnceLock};

use hardpack_engine::Ashift;
use hardpack_engine::codec::Dictionary;
use hardpack_engine::device::{Device, MemoryDevice};
use hardpack_engine::pool::{
    CreateOptions, File, Fold, Options, Pool, Property, ROOT, Settings, StepLimits,
};
use hardpack_engine::store::cache::Caches;
use hardpack_engine::store::checksum::ChecksumKind;
use hardpack_engine::store::node::{KEY_LEN_MAX, Node, VALUE_LEN_MAX};
use hardpack_engine::store::pointer::{Place, Pointer};
use hardpack_engine::store::stats::CODEC_SLOTS;
use hardpack_engine::store::superblock::{
    BLOCK_LEN, EXTENTS_OFFSET, SLOT_COUNT, Superblock, slot_offset,
};
use hardpack_engine::store::trees::TreeId;
use hardpack_engine::store::{Durability, Patience, Store};
use hardpack_engine::{Run, Sector, Txg};

use super::input::{Input, content};

pub const GUID: [u8; 16] = *b"hardpack--tests!";
const ASHIFT: u8 = 9;
/// The length at which a device is full.
const DEVICE_LEN_MAX: u64 = 16 << 20;
const CHANGE_COUNT_MAX: usize = 24;

/// A sound pool to begin with.
pub struct Base {
    pub image: Vec<u8>,
    /// The slot of its newest superblock.
    slot: u64,
}

impl Base {
    pub fn slot_offset(&self) -> usize {
        slot_offset(self.slot) as usize
    }
}

/// Returns options with one thread and small caches.
pub fn options() -> Options {
    let clock = Arc::new(|| std::time::Duration::ZERO);
    let is_stopped = || false;
    let caches = Caches::new(0);
    Options {
        caches,
        threads: Some(1),
        dirty_len_max: 60_000,
        clock,
        is_stopped,
        ..Options::new(0)
    }
}

pub fn create(device: Arc<dyn Device>, properties: &[(Property, &str)]) -> Pool {
    let create = CreateOptions {
        guid: GUID,
        ashift: Ashift::MIN,
        properties: properties.iter().map(|(p, text)| (*p, (*text).to_string())).collect(),
        file_name: Some("main".into()),
        file_mode: 0,
    };
    Pool::create(device, &create, options()).expect("the pool is created")
}

/// Returns one of several pools with different content: almost nothing; deltas and patches; short
/// records with a dictionary; an unfinished repack.
pub fn base(index: usize) -> &'static Base {
    static BASES: [OnceLock<Base>; 4] = [const { OnceLock::new() }; 4];
    let index = index % BASES.len();
    BASES[index].get_or_init(|| {
        let image = make_base(index);
        let slot = (0..SLOT_COUNT)
            .filter_map(|slot| {
                let block = &image[slot_offset(slot) as usize..];
                Superblock::decode(block, &GUID).map(|superblock| (superblock.txg, slot))
            })
            .max()
            .expect("the pool has a superblock");
        Base { image, slot: slot.1 }
    })
}

fn make_base(index: usize) -> Vec<u8> {
    let device = Arc::new(MemoryDevice::default());
    let pool = create(device.clone(), &[(Property::RecordSize, ["16K", "16K", "4K", "8K"][index])]);
    let file = pool.file(pool.only_file().expect("a file").file).expect("the file");
    let write = |seed: u16, len: usize, at: u64| {
        file.write_at(&content(seed, len), at).expect("the write succeeds");
        file.commit(Durability::Durable).expect("the commit succeeds");
    };
    if index == 2 {
        let mut txn = pool.store().begin(ChecksumKind::Xxh3).expect("no other");
        let dictionary = Arc::new(Dictionary::new(content(7, 3000)));
        let number =
            txn.add_dictionary(&dictionary, ChecksumKind::Xxh3).expect("the dictionary is added");
        let key = [&[5][..], &file.id().0.to_be_bytes()].concat();
        txn.insert(TreeId::Names, &key, &number.to_le_bytes()).expect("the entry is inserted");
        txn.commit(Durability::Durable).expect("the commit succeeds");
    }
    write(1, 60_000, 0);
    if index > 0 {
        for (seed, compression) in
            ["lz4", "gzip-6", "lzjb", "zle", "off", "zstd-3"].iter().enumerate()
        {
            pool.set_property(file.id(), Property::Compression, compression)
                .expect("the property is set");
            write(seed as u16 * 4 + 5, 9000, seed as u64 * 20_000);
        }
        for n in 0..5_u64 {
            // A few bytes of a cached record become a delta.
            file.read_at(&mut [0; 4096], n * 16_384).expect("the read succeeds");
            write(3, 40, n * 16_384 + 100);
        }
    }
    if index == 3 {
        let goal = Settings { record_len: 4096, ..Settings::default() };
        let mut repack = pool.begin_repack(file.id(), goal, Patience::None).expect("it begins");
        let limits = StepLimits { rewrite_len_max: 1, ..StepLimits::default() };
        pool.repack_step(&mut repack, &limits, None).expect("a step");
    }
    if index != 1 {
        pool.close().expect("it closes");
    }
    device.image()
}

/// An image that is being changed, and its newest superblock.
struct Forgery {
    image: Vec<u8>,
    slot: u64,
    superblock: Superblock,
}

/// A node on the way to another, and the index of the entry that leads there.
type Step = (Node, usize);

impl Forgery {
    fn stored(&self, pointer: &Pointer) -> Option<Vec<u8>> {
        let Place::Extent { sector, .. } = &pointer.place else { return None };
        let start = usize::try_from(sector.0 << ASHIFT).ok()?;
        self.image.get(start..start.checked_add(pointer.stored_len as usize)?).map(<[u8]>::to_vec)
    }

    fn node(&self, tree: TreeId, pointer: &Pointer) -> Option<Node> {
        Node::decode(&self.stored(pointer)?, tree, &GUID, 0).ok()
    }

    /// Descends a tree as the input says. Returns the nodes above, and the pointer reached.
    fn descend(
        &self,
        tree: TreeId,
        levels: usize,
        input: &mut Input<'_>,
    ) -> Option<(Vec<Step>, Pointer)> {
        let mut pointer = self.superblock.roots[tree].clone()?;
        let mut above = Vec::new();
        for _ in 0..levels {
            let Some(node) = self.node(tree, &pointer).filter(|node| node.level > 0) else { break };
            let index = input.below(node.len());
            pointer = node.child(index)?;
            above.push((node, index));
        }
        Some((above, pointer))
    }

    /// Appends bytes to the pool, and makes the pointer refer to them.
    fn append(&mut self, stored: &[u8], pointer: &mut Pointer) {
        let sector =
            (self.image.len() as u64).div_ceil(1 << ASHIFT).max(self.superblock.end.0.min(1 << 16));
        self.image.resize((sector as usize) << ASHIFT, 0);
        self.image.extend_from_slice(stored);
        let end = (self.image.len() as u64).div_ceil(1 << ASHIFT);
        self.superblock.end = Sector(end.max(self.superblock.end.0));
        self.image.resize((end as usize) << ASHIFT, 0);
        pointer.stored_len = stored.len() as u32;
        let mut kind = ChecksumKind::Xxh3;
        if let Place::Extent { checksum_kind, .. } = &pointer.place {
            kind = *checksum_kind;
        }
        let checksum = kind.sum(stored);
        pointer.place = Place::Extent { sector: Sector(sector), checksum_kind: kind, checksum };
    }

    /// Stores a node's bytes and rewrites everything above it, so that every checksum is right.
    fn replace(&mut self, tree: TreeId, above: Vec<Step>, stored: &[u8], mut pointer: Pointer) {
        self.append(stored, &mut pointer);
        for (mut node, index) in above.into_iter().rev() {
            node.set_value(index, &pointer.to_bytes());
            let Ok(stored) = node.encode(tree, self.superblock.txg, &GUID) else { return };
            pointer = Pointer { extent_len: node.payload_len() as u32, ..pointer };
            pointer.len = pointer.extent_len;
            self.append(&stored, &mut pointer);
        }
        self.superblock.roots[tree] = Some(pointer);
    }

    fn seal(&mut self) {
        let block = self.superblock.encode(&GUID);
        let at = slot_offset(self.slot) as usize;
        self.image[at..at + BLOCK_LEN].copy_from_slice(&block);
    }
}

/// Makes one change.
fn change(forgery: &mut Forgery, input: &mut Input<'_>) {
    let tree = TreeId::ALL[input.below(TreeId::ALL.len())];
    match input.u8() % 8 {
        0 => {
            let limit = if input.one_in(2) { EXTENTS_OFFSET as usize } else { forgery.image.len() };
            let at = input.below(limit);
            for (byte, new) in forgery.image[at..].iter_mut().zip(input.short_bytes()) {
                *byte = *new;
            }
        }
        1 => {
            let len = input.below(forgery.image.len());
            forgery.image.resize(len.max(slot_offset(SLOT_COUNT) as usize), 0);
        }
        2 => change_superblock(&mut forgery.superblock, input),
        3 => {
            // A root of another tree, or a node from elsewhere in this one.
            let Some((_, pointer)) = forgery.descend(tree, 3, input) else { return };
            let other = TreeId::ALL[input.below(TreeId::COUNT)];
            forgery.superblock.roots[other] = Some(pointer);
        }
        4 => {
            // The stored bytes of a node.
            let levels = input.below(4);
            let Some((above, pointer)) = forgery.descend(tree, levels, input) else { return };
            let Some(mut stored) = forgery.stored(&pointer) else { return };
            let at = input.below(stored.len());
            for (byte, new) in stored[at..].iter_mut().zip(input.short_bytes()) {
                *byte = *new;
            }
            forgery.replace(tree, above, &stored, pointer);
        }
        5 => {
            // The bytes of an extent that an entry refers to.
            let Some((mut above, leaf_pointer)) = forgery.descend(tree, 24, input) else { return };
            let Some(leaf) = forgery.node(tree, &leaf_pointer) else { return };
            let index = input.below(leaf.len());
            let Some(pointer) = Pointer::decode(leaf.value(index)) else { return };
            let Some(mut stored) = forgery.stored(&pointer) else { return };
            let at = input.below(stored.len());
            for (byte, new) in stored[at..].iter_mut().zip(input.short_bytes()) {
                *byte = *new;
            }
            above.push((leaf, index));
            forgery.replace(tree, above, &stored, pointer);
        }
        _ => change_entry(forgery, tree, input),
    }
}

/// Changes an entry of a node at any level: its key, its value, or some bytes of it; or adds one.
fn change_entry(forgery: &mut Forgery, tree: TreeId, input: &mut Input<'_>) {
    let levels = input.below(4);
    let Some((above, pointer)) = forgery.descend(tree, levels, input) else { return };
    let Some(mut node) = forgery.node(tree, &pointer) else { return };
    let index = input.below(node.len());
    let (mut key, mut value) = (node.key(index).to_vec(), node.value(index).to_vec());
    let how = input.u8();
    let target = if how & 1 == 0 { &mut value } else { &mut key };
    if how & 2 == 0 {
        let at = input.below(target.len() + 1);
        let new = input.short_bytes();
        target.resize(target.len().max((at + new.len()).min(KEY_LEN_MAX)), 0);
        for (byte, new) in target.iter_mut().skip(at).zip(new) {
            *byte = *new;
        }
    } else {
        // A number at any place in either byte order, since keys and values are full of numbers.
        let number = input.number();
        let number = if how & 4 == 0 { number.to_le_bytes() } else { number.to_be_bytes() };
        let at = input.below(target.len() + 1);
        for (byte, new) in target.iter_mut().skip(at).zip(number) {
            *byte = new;
        }
    }
    key.truncate(KEY_LEN_MAX);
    value.truncate(VALUE_LEN_MAX);
    if how & 8 == 0 {
        node.remove(index);
    }
    match node.search(&key) {
        Ok(at) => node.set_value(at, &value),
        Err(at) => node.insert(at, &key, &value),
    }
    let Ok(stored) = node.encode(tree, forgery.superblock.txg, &GUID) else { return };
    forgery.replace(tree, above, &stored, pointer);
}

fn change_superblock(superblock: &mut Superblock, input: &mut Input<'_>) {
    let which = input.below(16);
    let n = input.number();
    match which {
        0 => superblock.txg = Txg(n),
        1 => superblock.durable_txg = Txg(n),
        2 => superblock.end = Sector(n),
        3 => superblock.freed_count = n,
        4 => superblock.freed_sectors = n,
        5 => superblock.space_sectors = n,
        6 => superblock.next_file_id = n,
        7 if superblock.windows.len() < 24 => {
            superblock.windows.push(Run { start: Sector(n), sectors: input.number() });
        }
        8 => superblock.stats.file_bytes = n,
        9 => superblock.stats.embedded.logical = n,
        10 => superblock.stats.codecs[input.below(16) % CODEC_SLOTS].allocated = n,
        11 => superblock.stats.nodes.records = n,
        12 => superblock
            .roots
            .values_mut()
            .swap(input.below(TreeId::COUNT), input.below(TreeId::COUNT)),
        13 => superblock.data_synced = !superblock.data_synced,
        14 => superblock.next_slot = Some(n % SLOT_COUNT),
        _ => superblock.incompat = n,
    }
}

/// Returns the image that an input describes.
pub fn forge(input: &mut Input<'_>) -> Vec<u8> {
    let base = base(input.below(4));
    let block = &base.image[base.slot_offset()..];
    let superblock = Superblock::decode(block, &GUID).expect("the base is sound");
    let mut forgery = Forgery { image: base.image.clone(), slot: base.slot, superblock };
    for _ in 0..input.below(CHANGE_COUNT_MAX) {
        change(&mut forgery, input);
    }
    forgery.seal();
    forgery.image
}

/// A device that fills up.
#[derive(Debug)]
struct SmallDevice(MemoryDevice);

impl Device for SmallDevice {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
        self.0.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> std::io::Result<()> {
        if offset.saturating_add(buf.len() as u64) > DEVICE_LEN_MAX {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        self.0.write_at(buf, offset)
    }
    fn sync_data(&self) -> std::io::Result<()> {
        Ok(())
    }
    fn len(&self) -> std::io::Result<u64> {
        self.0.len()
    }
    fn set_len(&self, len: u64) -> std::io::Result<()> {
        if len > DEVICE_LEN_MAX {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        self.0.set_len(len)
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn lock_writer(&self) -> std::io::Result<()> {
        Ok(())
    }
    fn unlock_writer(&self) {}
}

/// Forges an image and uses it. Errors are fine.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let image = forge(&mut input);
    exercise(Arc::new(SmallDevice(MemoryDevice::new(image))), &mut input);
}

/// Does everything that can be done with a pool.
pub fn exercise(device: Arc<dyn Device>, input: &mut Input<'_>) {
    let Ok(pool) = Pool::open(device, options()) else { return };
    let store: &Arc<Store> = pool.store();
    let _ = (pool.list(), pool.check(&mut |_| {}), pool.properties(ROOT));
    let _ = (pool.state().stats().compress_ratio(), pool.state().free_bytes(store.ashift()));
    let Ok(entry) = pool.only_file() else { return };
    let Ok(file) = pool.file(entry.file) else { return };
    read_some(&file);
    for _ in 0..input.below(8) {
        let offset = input.number();
        let mut bytes = vec![1; [10, 4096, 70_000][input.below(3)]];
        let _ = file.read_at(&mut bytes, offset);
        let _ = file.write_at(&bytes, offset % (1 << 20));
        match input.u8() % 8 {
            0 => drop(file.commit(Durability::Durable)),
            1 => drop(file.commit(Durability::Visible)),
            2 => drop(file.set_len(input.number() % 120_000)),
            3 => file.discard(),
            _ => {}
        }
    }
    let _ = file.commit(Durability::Durable);
    file.discard();
    maintain(&pool, &file);
    let _ = (pool.close(), pool.check(&mut |_| {}));
}

fn read_some(file: &File) {
    let mut buffer = vec![0; 20_000];
    for offset in (0..200_000).step_by(17_000) {
        let _ = file.read_at(&mut buffer, offset);
    }
}

/// Runs a few steps of everything that rewrites stored data.
fn maintain(pool: &Pool, file: &File) {
    let limits = StepLimits { look_count_max: 64, ..StepLimits::default() };
    let few = Cell::new(0);
    let go_on = || few.replace(few.get() + 1) < 4;
    let _ = pool.fold(Fold::All, &limits, &mut |_| go_on());
    let goal = Settings { record_len: 4096, ..Settings::default() };
    let unfinished = pool.unfinished_repack(file.id()).ok().flatten();
    let begun = unfinished.map_or_else(|| pool.begin_repack(file.id(), goal, Patience::None), Ok);
    if let Ok(mut repack) = begun {
        for _ in 0..2 {
            let _ = pool.repack_step(&mut repack, &limits, None);
        }
    }
    let _ = pool.remove_unused_dictionaries(Patience::None);
    let mut compaction = pool.compact();
    for _ in 0..3 {
        let _ = compaction.step();
    }
}
