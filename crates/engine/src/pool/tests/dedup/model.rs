//! Files made of few different records, beside their expected content. They are written, truncated,
//! imported in slots or in chunks, copied in part, folded, repacked, moved, reopened and written by
//! two processes, cloned, and rolled back to snapshots. Deduplication changes from file to file,
//! and the index is dropped, pruned and rebuilt in between. Another pool, whose records are in
//! segments too, receives it. After every step nothing is lost, and every reference is counted.

use std::sync::Arc;
use std::time::Duration;

use super::{RECORD, add_files};
use crate::codec::Compression;
use crate::pool::snapshots::restore::Origin;
use crate::pool::snapshots::share::{Span, share_range};
use crate::pool::{
    Again, Fold, Pool, Property, ROOT, ReceiveOptions, SegmentGoal, SendPlan, Settings, StepLimits,
};
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::pointer::Pointer;
use crate::store::format::refs::{PartHash, RefsEntry, parse_refs_entry};
use crate::store::tree::walk::{Met, walk_tree};
use crate::store::trees::TreeId;
use crate::store::{Durability, Patience};
use crate::test_common::chunks::import;
use crate::test_common::live::Guard;
use crate::test_common::sim_device::SimDevice;
use crate::test_common::{Rng, create_options, first_difference, options, problems, read_all};
use crate::units::{FileId, Txg};

const FILE_COUNT: usize = 4;
const SLOT_COUNT: u64 = 12;
const ALPHABET_LEN: usize = 9;
/// With less free space, a compaction finds nothing to do.
const FILLER_LEN: usize = 1 << 20;
const SNAPSHOTS_MAX: usize = 3;
const CLONES_MAX: usize = 2;

/// Counts what happened, to prove that the test exercised everything.
#[derive(Debug, Default)]
struct Happened {
    shared: u64,
    rewritten: u64,
    moved: u64,
    caught_up: u64,
    run_hits: u64,
    patches: u64,
    in_segments: u64,
    found_in_segments: u64,
    overtaken: u64,
    rolled_back: u64,
    cloned: u64,
    received: u64,
    received_changes: u64,
    received_parts: u64,
    chunks: u64,
    copied: u64,
}

/// A file with a name, and its content.
type Named = (Vec<u8>, FileId, Vec<u8>);

/// A snapshot, and what there was.
struct Snapshot {
    name: Vec<u8>,
    bytes: Vec<Vec<u8>>,
    clones: Vec<Named>,
}

struct Model {
    sim: Arc<SimDevice>,
    pools: Vec<Pool>,
    files: Vec<FileId>,
    filler: FileId,
    bytes: Vec<Vec<u8>>,
    clones: Vec<Named>,
    snapshots: Vec<Snapshot>,
    /// How many names were given.
    names: u64,
    /// The pool that receives, and the last snapshot that it has.
    mirror: Option<(Pool, Vec<u8>)>,
    alphabet: Vec<Vec<u8>>,
    rng: Rng,
    label: String,
    happened: Happened,
}

fn open(sim: &Arc<SimDevice>, dirty_len_max: usize) -> Pool {
    Pool::open(sim.handle(), options(dirty_len_max)).unwrap()
}

impl Model {
    fn new(seed: u64) -> Model {
        let mut rng = Rng(seed);
        let sim = SimDevice::new(Vec::new());
        sim.set_fault(Some(Box::new(Guard::default())));
        let create = create_options(9, &[(Property::RecordSize, "16K"), (Property::Dedup, "on")]);
        let pool = Pool::create(sim.handle(), &create, options(1 << 20)).unwrap();
        let mut files = add_files(&pool, FILE_COUNT + 1);
        let filler = files.pop().unwrap();
        let pools = vec![pool, open(&sim, rng.pick(&[30_000, 1 << 20]))];
        let mut alphabet: Vec<_> = (0..ALPHABET_LEN - 3).map(|_| rng.text(RECORD)).collect();
        alphabet.push(rng.noise(RECORD));
        alphabet.push(vec![0; RECORD]);
        alphabet.push(vec![3; RECORD]);
        let (bytes, happened) = (vec![Vec::new(); FILE_COUNT], Happened::default());
        Model {
            sim,
            pools,
            files,
            filler,
            bytes,
            clones: Vec::new(),
            snapshots: Vec::new(),
            names: 0,
            mirror: None,
            alphabet,
            rng,
            label: String::new(),
            happened,
        }
    }

    /// Returns one of the processes, after it has seen the other's changes.
    fn pool(&mut self) -> Pool {
        let pool = self.rng.pick(&[0, 1]);
        let pool = self.pools[pool].clone();
        pool.refresh().unwrap();
        pool
    }

    fn write(&mut self) {
        let (pool, n) = (self.pool(), self.rng.below(FILE_COUNT as u64) as usize);
        let file = pool.file(self.files[n]).unwrap();
        for _ in 0..1 + self.rng.below(3) {
            let at = self.rng.below(SLOT_COUNT) as usize * RECORD;
            let (at, new) = match self.rng.below(8) {
                0 => {
                    // A small change, the same in all files.
                    let page = at + 4096 * self.rng.below(4) as usize;
                    (page, vec![b'a' + self.rng.below(3) as u8; 50])
                }
                1 => {
                    let len = 1 + self.rng.below(2 * RECORD as u64) as usize;
                    (at, self.rng.pick(&[0, 1, 2]).to_string().repeat(len).into_bytes())
                }
                _ => {
                    let count = 1 + self.rng.below(4);
                    let letter = |rng: &mut Rng| rng.below(ALPHABET_LEN as u64) as usize;
                    let first = letter(&mut self.rng);
                    let mut new = self.alphabet[first].clone();
                    for _ in 1..count {
                        new.extend_from_slice(&self.alphabet[letter(&mut self.rng)]);
                    }
                    (at, new)
                }
            };
            file.write_at(&new, at as u64).unwrap();
            let bytes = &mut self.bytes[n];
            bytes.resize(bytes.len().max(at + new.len()), 0);
            bytes[at..at + new.len()].copy_from_slice(&new);
        }
        if self.rng.one_in(6) {
            let len = match self.rng.below(3) {
                0 => 0,
                1 => self.rng.below(SLOT_COUNT) as usize * RECORD,
                _ => self.rng.below(self.bytes[n].len() as u64 + 1) as usize,
            };
            file.set_len(len as u64).unwrap();
            self.bytes[n].resize(len, 0);
        }
        let durability = self.rng.pick(&[Durability::Durable, Durability::Visible]);
        let parts = self.parts_of(&pool, n);
        file.commit(durability).unwrap();
        self.happened.found_in_segments += self.parts_of(&pool, n).saturating_sub(parts);
    }

    /// Replaces a file by an import of its content, of which some has moved.
    fn import(&mut self) {
        let (pool, n) = (self.pool(), self.rng.below(FILE_COUNT as u64) as usize);
        let listed = pool.list().unwrap();
        let entry = listed.iter().find(|entry| entry.file == self.files[n]).unwrap();
        let mut bytes = self.bytes[self.rng.below(FILE_COUNT as u64) as usize].clone();
        let (from, to) = (self.rng.below(bytes.len() as u64 + 1), 1 + self.rng.below(100));
        match self.rng.below(4) {
            0 => drop(bytes.drain(from as usize..(from + to).min(bytes.len() as u64) as usize)),
            1 => bytes.extend_from_slice(&self.alphabet[self.rng.below(6) as usize]),
            _ => {
                let new = self.rng.text(to as usize);
                bytes.splice(from as usize..from as usize, new);
            }
        }
        import(&pool, &entry.name, &bytes);
        self.happened.chunks += self.chunks_of(&pool, n);
        self.bytes[n] = bytes;
    }

    fn chunks_of(&self, pool: &Pool, n: usize) -> u64 {
        let mut chunks = 0;
        let count = &mut |pointer: &Pointer| chunks += u64::from(pointer.is_chunk());
        pool.each_file_extent(self.files[n], count).unwrap();
        chunks
    }

    /// Copies a range of a file to another, or another place, by sharing what can be shared.
    fn copy(&mut self) {
        let pool = self.pool();
        let from = self.rng.below(FILE_COUNT as u64) as usize;
        let to = self.rng.below(FILE_COUNT as u64) as usize;
        let len = self.bytes[from].len() as u64;
        let (range, to_offset) = match self.rng.below(3) {
            0 => (0..len, 0),
            1 => (0..len, RECORD as u64 * self.rng.below(4)),
            _ => {
                let start = self.rng.below(len + 1);
                let start = self.rng.pick(&[start, start / RECORD as u64 * RECORD as u64]);
                (start..start + self.rng.below(len - start + 1), self.rng.below(70_000))
            }
        };
        let span = Span { from: self.files[from], range, to: self.files[to], to_offset };
        let mut txn = pool.store().begin(ChecksumKind::Xxh3).unwrap();
        let part = share_range(&mut txn, &Origin::Live, &span, 0).unwrap();
        txn.commit(Durability::Visible).unwrap();
        if !part.is_empty() {
            let at = (span.to_offset + part.start - span.range.start) as usize;
            let new = self.bytes[from][part.start as usize..part.end as usize].to_vec();
            let bytes = &mut self.bytes[to];
            bytes.resize(bytes.len().max(at + new.len()), 0);
            bytes[at..at + new.len()].copy_from_slice(&new);
            self.happened.copied += 1;
        }
    }

    /// Returns how many records of a file are parts of segments.
    fn parts_of(&self, pool: &Pool, n: usize) -> u64 {
        let mut parts = 0;
        let count = &mut |pointer: &Pointer| parts += u64::from(pointer.is_part());
        pool.each_file_extent(self.files[n], count).unwrap();
        parts
    }

    /// Whether every part of a segment that can be found by its content has that content.
    fn assert_parts(&self, pool: &Pool) {
        let state = pool.state();
        let Some(root) = &state.superblock.roots[TreeId::Refs] else { return };
        let mut segment = None;
        walk_tree(pool.store(), TreeId::Refs, root, Txg(0), &mut |met| {
            let Met::Entry(_, key, value) = met else { return Ok(()) };
            match parse_refs_entry(key, value)? {
                RefsEntry::Extent(_, refs) => segment = Some(refs),
                RefsEntry::Part(sector, part) => {
                    let refs = segment.as_ref().expect("the entry of the segment comes first");
                    let pointer = refs.pointer_to(sector, &part).expect("it is inside");
                    let found = pool.store().read(&pointer)?;
                    let hash = PartHash::from(part.hash.kind.of(found.as_slice()));
                    assert_eq!(part.hash, hash, "{}", self.label);
                }
            }
            Ok(())
        })
        .unwrap();
    }

    fn change_property(&mut self) {
        let pool = self.pool();
        let owner = if self.rng.one_in(3) { ROOT } else { self.rng.pick(&self.files) };
        let (property, text) = match self.rng.below(10) {
            0..=2 => (Property::Dedup, self.rng.pick(&["off", "on", "on", "verify"])),
            3 => (Property::DedupHash, self.rng.pick(&["blake3", "blake3", "sha256"])),
            4..=6 => (Property::Chunking, self.rng.pick(&["fixed", "cdc", "cdc", "auto"])),
            7 => (Property::Compression, self.rng.pick(&["off", "lz4", "zstd", "gzip-1"])),
            _ => (Property::Checksum, self.rng.pick(&["xxh3", "blake3"])),
        };
        pool.set_property(owner, property, text).unwrap();
    }

    fn maintain(&mut self) {
        let (pool, file) = (self.pool(), self.rng.pick(&self.files));
        let limits = StepLimits {
            rewrite_len_max: self.rng.pick(&[1, 60_000, 1 << 20]),
            patience: Patience::None,
            ..StepLimits::default()
        };
        let mut rewritten = 0;
        match self.rng.below(9) {
            0 => rewritten += pool.fold(Fold::All, &limits, &mut |_| true).unwrap().rewritten,
            1 => {
                let step = pool.sink_step(file, pool.state().txg(), 0, &limits).unwrap();
                rewritten += step.rewritten;
            }
            2 => {
                let mut goal = Settings::default();
                let all = ["off", "lz4", "zstd-2", "gzip-1"];
                goal.set(Property::Compression, self.rng.pick(&all)).unwrap();
                goal.set(Property::RecordSize, self.rng.pick(&["16K", "16K", "8K"])).unwrap();
                let mut repack = pool.begin_repack(file, goal, Patience::None).unwrap();
                loop {
                    let step = pool.repack_step(&mut repack, &limits, None).unwrap();
                    rewritten += step.rewritten;
                    if step.next.is_none() {
                        break;
                    }
                }
            }
            3..=5 => self.optimize(&pool, file),
            _ => {
                // What came behind it has somewhere to go.
                self.set_filler(&pool, 0);
                let mut compaction = pool.compact();
                while compaction.step().unwrap() {}
                self.set_filler(&pool, FILLER_LEN);
                self.happened.moved += compaction.report().moved_bytes;
            }
        }
        self.happened.rewritten += rewritten;
    }

    /// Gives the file that is only there to take room another length.
    fn set_filler(&mut self, pool: &Pool, len: usize) {
        let filler = pool.file(self.filler).unwrap();
        filler.set_len(0).unwrap();
        filler.write_at(&self.rng.noise(len), 0).unwrap();
        filler.commit(Durability::Durable).unwrap();
    }

    /// Puts records of all files, or of one, into segments, while somebody writes.
    fn optimize(&mut self, pool: &Pool, file: FileId) {
        while !self.snapshots.is_empty() && !self.rng.one_in(4) {
            // What snapshots hold stays as it is.
            self.destroy_snapshot();
        }
        pool.refresh().unwrap();
        let compression = self.rng.pick(&[Compression::Lz4, Compression::Zstd(1)]);
        let len = self.rng.pick(&[20_000, 100_000, 1 << 20]);
        let again = self.rng.pick(&[Again::No, Again::Related, Again::All]);
        let file = if self.rng.one_in(2) { ROOT } else { file };
        let mut optimisation =
            pool.optimize(file, SegmentGoal { compression, len, again, inflate: false }).unwrap();
        while optimisation.step().unwrap() {
            if self.rng.one_in(4) {
                self.write();
            }
        }
        let report = optimisation.report();
        assert_eq!(report.damaged.len(), 0, "{}: {report:?}", self.label);
        self.happened.in_segments += report.records;
        self.happened.overtaken += report.overtaken;
    }

    fn new_name(&mut self) -> Vec<u8> {
        self.names += 1;
        format!("n{}", self.names).into_bytes()
    }

    fn take_snapshot(&mut self) -> Vec<u8> {
        let (pool, name) = (self.pool(), self.new_name());
        while self.snapshots.len() >= SNAPSHOTS_MAX
            || !self.snapshots.is_empty() && self.rng.one_in(3)
        {
            self.destroy_snapshot();
        }
        pool.refresh().unwrap();
        pool.create_snapshot(ROOT, &name, 0).unwrap();
        let (bytes, clones) = (self.bytes.clone(), self.clones.clone());
        self.snapshots.push(Snapshot { name: name.clone(), bytes, clones });
        name
    }

    fn destroy_snapshot(&mut self) {
        if self.snapshots.is_empty() {
            return;
        }
        let index = self.rng.below(self.snapshots.len() as u64) as usize;
        let snapshot = self.snapshots.remove(index);
        self.pool().destroy_snapshot(ROOT, &snapshot.name).unwrap();
    }

    fn roll_back(&mut self) {
        let pool = self.pool();
        if self.snapshots.is_empty() {
            return;
        }
        let index = self.rng.below(self.snapshots.len() as u64) as usize;
        let snapshot = &self.snapshots[index];
        pool.rollback(ROOT, &snapshot.name).unwrap();
        (self.bytes, self.clones) = (snapshot.bytes.clone(), snapshot.clones.clone());
        self.happened.rolled_back += 1;
    }

    /// Clones a file as it is or was.
    fn clone(&mut self) {
        let (pool, name) = (self.pool(), self.new_name());
        if self.clones.len() >= CLONES_MAX {
            let index = self.rng.below(CLONES_MAX as u64) as usize;
            let (name, ..) = self.clones.remove(index);
            pool.remove_at(&name, 0).unwrap();
        }
        let n = self.rng.below(FILE_COUNT as u64) as usize;
        let index = self.rng.below(SNAPSHOTS_MAX as u64) as usize;
        let (file, bytes) = match self.snapshots.get(index) {
            Some(snapshot) => {
                let from = (ROOT, &snapshot.name[..]);
                let file = pool.clone_from_snapshot(from, self.files[n], ROOT, &name, 0);
                (file.unwrap(), snapshot.bytes[n].clone())
            }
            None => {
                let file = pool.clone_file(self.files[n], ROOT, &name, 0).unwrap();
                (file, self.bytes[n].clone())
            }
        };
        self.clones.push((name, file, bytes));
        self.happened.cloned += 1;
    }

    /// Lets another pool receive all of this one, or what has changed since the last time.
    fn send(&mut self) {
        let name = self.take_snapshot();
        let source = self.pool();
        let mut base = None;
        if let Some((_, name)) = &self.mirror {
            let is_there = self.snapshots.iter().any(|snapshot| snapshot.name == *name);
            base = is_there.then(|| source.open_snapshot(ROOT, name).unwrap());
        }
        if base.is_none() {
            let dedup = self.rng.pick(&["on", "on", "verify", "off"]);
            let create =
                create_options(9, &[(Property::RecordSize, "16K"), (Property::Dedup, dedup)]);
            let sim = SimDevice::new(Vec::new());
            let pool = Pool::create(sim.handle(), &create, options(1 << 20)).unwrap();
            for (n, letter) in self.alphabet.iter().enumerate() {
                pool.create_file_at(format!("letter {n}").as_bytes(), 0, 0).unwrap();
                let file = pool.file(pool.resolve(format!("letter {n}").as_bytes()).unwrap().file);
                let file = file.unwrap();
                file.write_at(letter, 0).unwrap();
                file.commit(Durability::Durable).unwrap();
            }
            self.optimize_mirror(&pool);
            self.mirror = Some((pool, Vec::new()));
        }
        let plan = SendPlan {
            snapshot: &source.open_snapshot(ROOT, &name).unwrap(),
            base: base.as_ref(),
            scope: ROOT,
            name: &name,
            created_ns: 0,
            resume: None,
        };
        let mut stream = Vec::new();
        source.send(&plan, &mut stream, &mut |_| {}).unwrap();
        let (pool, last) = self.mirror.take().unwrap();
        let batch_len = self.rng.pick(&[0, 1, 50_000]);
        let receiving = ReceiveOptions { force: true, batch_len, ..ReceiveOptions::default() };
        if let Err(error) = pool.receive(ROOT, b"m", &mut &stream[..], &receiving, &mut |_| {}) {
            panic!("{}: {error}", self.label);
        }
        self.happened.received += 1;
        self.happened.received_changes += u64::from(base.is_some());
        if !last.is_empty() && self.rng.one_in(2) {
            let top = pool.resolve(b"m").unwrap().file;
            pool.destroy_snapshot(top, &last).unwrap();
        }
        if self.rng.one_in(2) {
            self.optimize_mirror(&pool);
        }
        let top = pool.resolve(b"m").unwrap().file;
        let (listed, mut parts) = (source.list().unwrap(), 0);
        let all = self.files.iter().zip(&self.bytes);
        let all = all.chain(self.clones.iter().map(|(_, file, bytes)| (file, bytes)));
        for (file, bytes) in all {
            let entry = listed.iter().find(|entry| entry.file == *file).unwrap();
            let path = [b"m/", &entry.name[..]].concat();
            let found = pool.file(pool.resolve(&path).unwrap().file).unwrap();
            let count = &mut |pointer: &Pointer| parts += u64::from(pointer.is_part());
            pool.each_file_extent(found.id(), count).unwrap();
            let found = read_all(&found).unwrap();
            assert!(found == *bytes, "{}: {file:?} of the mirror", self.label);
        }
        pool.open_snapshot(top, &name).unwrap();
        self.happened.received_parts += parts;
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "{}: mirror", self.label);
        self.assert_parts(&pool);
        self.mirror = Some((pool, name));
    }

    fn optimize_mirror(&mut self, pool: &Pool) {
        let again = self.rng.pick(&[Again::No, Again::Related, Again::All]);
        let goal =
            SegmentGoal { compression: Compression::Zstd(1), len: 100_000, again, inflate: false };
        let mut optimisation = pool.optimize(ROOT, goal).unwrap();
        while optimisation.step().unwrap() {}
    }

    fn change_index(&mut self) {
        let pool = self.pool();
        match self.rng.below(3) {
            0 => pool.drop_index(Patience::None).unwrap(),
            1 => pool.prune_index(Patience::None, &mut |_| true).unwrap(),
            _ => pool.rebuild_index(Patience::None, &mut |_| true).unwrap(),
        }
    }

    fn reopen(&mut self) {
        let index = self.rng.pick(&[0, 1]);
        self.note_index(index);
        if self.rng.one_in(2) {
            self.pools[index].close().unwrap();
        }
        self.pools[index] = open(&self.sim, self.rng.pick(&[30_000, 1 << 20]));
        assert_eq!(self.pools[index].store().recovered_from(), None, "{}", self.label);
    }

    fn note_index(&mut self, index: usize) {
        let stats = self.pools[index].index_stats().unwrap();
        self.happened.caught_up += stats.caught_up;
        self.happened.run_hits += u64::from(stats.disk_look_ups > stats.filter_misses);
    }

    fn assert_all(&mut self) {
        for pool in self.pools.clone() {
            pool.refresh().unwrap();
            let clones = self.clones.iter().map(|(_, file, bytes)| (file, bytes));
            for (file, bytes) in self.files.iter().zip(&self.bytes).chain(clones) {
                let found = read_all(&pool.file(*file).unwrap()).unwrap();
                let difference = || first_difference(&found, bytes);
                assert!(found == *bytes, "{}: {file:?}: {}", self.label, difference());
            }
        }
        for snapshot in &self.snapshots {
            let pool = self.pools[0].open_snapshot(ROOT, &snapshot.name).unwrap();
            for (file, bytes) in self.files.iter().zip(&snapshot.bytes) {
                let found = read_all(&pool.file(*file).unwrap()).unwrap();
                let difference = || first_difference(&found, bytes);
                assert!(found == *bytes, "{}: old {file:?}: {}", self.label, difference());
            }
        }
        let pool = &self.pools[0];
        assert_eq!(problems(pool).unwrap(), Vec::<String>::new(), "{}", self.label);
        self.assert_parts(pool);
        let stats = *pool.state().stats();
        self.happened.shared += stats.shared.records;
        self.happened.patches += stats.patches.records;
    }

    fn step(&mut self) {
        match self.rng.below(32) {
            0..=9 => self.write(),
            10 | 11 => self.copy(),
            12 | 13 => self.change_property(),
            14 | 15 => self.maintain(),
            16 | 17 => self.change_index(),
            18 | 19 => self.reopen(),
            20 => drop(self.take_snapshot()),
            21 | 22 => self.destroy_snapshot(),
            23 => self.roll_back(),
            24 => self.clone(),
            25 => self.send(),
            _ => self.import(),
        }
        self.assert_all();
    }
}

#[test]
fn files_of_equal_records_are_vectors_of_bytes() {
    let mut sum = Happened::default();
    for seed in 0..14 {
        let mut model = Model::new(seed);
        for step in 0..120 {
            model.label = format!("seed {seed}, step {step}");
            model.step();
        }
        model.note_index(0);
        model.note_index(1);
        // Once all files are empty, nothing is counted as shared any more.
        while !model.snapshots.is_empty() {
            model.destroy_snapshot();
        }
        let pool = model.pool();
        for (name, ..) in model.clones.drain(..) {
            pool.remove_at(&name, 0).unwrap();
        }
        for file in model.files.iter().chain([&model.filler]) {
            let file = pool.file(*file).unwrap();
            file.set_len(0).unwrap();
            file.commit(Durability::Durable).unwrap();
        }
        // Bases stay until somebody finds that nothing differs from them any more.
        pool.remove_unused_dictionaries(Patience::Within(Duration::from_secs(10))).unwrap();
        let stats = *pool.state().stats();
        assert_eq!((stats.counted, stats.shared), Default::default(), "seed {seed}");
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "seed {seed}");
        let happened = &model.happened;
        sum.shared += happened.shared;
        sum.rewritten += happened.rewritten;
        sum.moved += happened.moved;
        sum.caught_up += happened.caught_up;
        sum.run_hits += happened.run_hits;
        sum.patches += happened.patches;
        sum.in_segments += happened.in_segments;
        sum.found_in_segments += happened.found_in_segments;
        sum.overtaken += happened.overtaken;
        sum.rolled_back += happened.rolled_back;
        sum.cloned += happened.cloned;
        sum.received += happened.received;
        sum.received_changes += happened.received_changes;
        sum.received_parts += happened.received_parts;
        sum.chunks += happened.chunks;
        sum.copied += happened.copied;
    }
    println!("{sum:?}");
    assert!(sum.shared > 1000 && sum.rewritten > 100 && sum.moved > 1000, "{sum:?}");
    assert!(sum.in_segments > 100 && sum.overtaken > 0, "{sum:?}");
    assert!(sum.found_in_segments > 30, "{sum:?}");
    assert!(sum.rolled_back > 10 && sum.cloned > 10 && sum.received > 10, "{sum:?}");
    assert!(sum.received_changes > 3 && sum.received_parts > 50, "{sum:?}");
    assert!(sum.chunks > 1000 && sum.copied > 30, "{sum:?}");
    assert!(sum.caught_up > 100 && sum.run_hits > 3 && sum.patches > 100, "{sum:?}");
}
