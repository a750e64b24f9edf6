//! Folding, repacking and sinking one by one: a repack resumes where it stopped, reports are
//! correct, commits fold within their budget, and the pool stays small.

use std::sync::Arc;

use crate::codec::{CodecId, Compression};
use crate::device::{Device, MemoryDevice};
use crate::error::Error;
use crate::pool::extents::{FileExtent, parse_file_extent};
use crate::pool::{
    File, Fold, Options, Pool, Property, Repack, SINK_COMPRESSION, Settings, Step, StepLimits,
};
use crate::store::format::pointer::Place;
use crate::store::tree::walk::{Met, walk_tree};
use crate::store::trees::TreeId;
use crate::store::{Durability, Patience};
use crate::test_common::sim_device::{Disk, SimDevice};
use crate::test_common::{Rng, create_options, only_file, options, problems, read_all};
use crate::units::Txg;

mod races;
mod size;

/// A pool on a memory device, with its file and the expected content.
struct Fixture {
    device: Arc<dyn Device>,
    pool: Pool,
    file: Arc<File>,
    bytes: Vec<u8>,
    rng: Rng,
}

impl Fixture {
    fn new(seed: u64, properties: &[(Property, &str)], bytes: Vec<u8>) -> Fixture {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
        Fixture::on(device, seed, properties, bytes)
    }

    fn on(
        device: Arc<dyn Device>,
        seed: u64,
        properties: &[(Property, &str)],
        bytes: Vec<u8>,
    ) -> Fixture {
        // The cache must hold the whole file; otherwise there are no deltas.
        let with_cache = Options { threads: Some(1), ..Options::new(64 << 20) };
        let create = create_options(9, properties);
        let pool = Pool::create(Arc::clone(&device), &create, with_cache).unwrap();
        let file = only_file(&pool).unwrap();
        file.write_at(&bytes, 0).unwrap();
        file.commit(Durability::Durable).unwrap();
        Fixture { device, pool, file, bytes, rng: Rng(seed) }
    }

    /// Changes `len` bytes in each of the pages `numbers`, and commits.
    fn edit(&mut self, numbers: &[usize], len: usize) {
        for number in numbers {
            let at = number * 4096 + self.rng.below(4096 - len as u64) as usize;
            // Deltas are only made against cached records, so read them first.
            self.file.read_at(&mut [0; 4096], *number as u64 * 4096).unwrap();
            let new = self.rng.noise(len);
            self.file.write_at(&new, at as u64).unwrap();
            self.bytes[at..at + len].copy_from_slice(&new);
        }
        self.file.commit(Durability::Visible).unwrap();
    }

    fn file_extents(&self, tree: TreeId) -> Vec<FileExtent> {
        file_extents(&self.pool, tree)
    }

    fn assert_whole(&self) {
        assert!(read_all(&self.file).unwrap() == self.bytes, "the content differs");
        assert_eq!(problems(&self.pool).unwrap(), Vec::<String>::new());
    }
}

fn file_extents(pool: &Pool, tree: TreeId) -> Vec<FileExtent> {
    let mut found = Vec::new();
    let state = pool.state();
    let Some(root) = &state.superblock.roots[tree] else { return found };
    walk_tree(pool.store(), tree, root, Txg(0), &mut |met| {
        if let Met::Entry(tree, key, value) = met {
            found.push(parse_file_extent(tree, key, value)?.1);
        }
        Ok(())
    })
    .unwrap();
    found
}

fn settings(properties: &[(Property, &str)]) -> Settings {
    let mut settings = Settings::default();
    for (property, text) in properties {
        settings.set(*property, text).unwrap();
    }
    settings
}

fn steps_of(rewrite_len_max: u64) -> StepLimits {
    StepLimits { rewrite_len_max, patience: Patience::None, ..StepLimits::default() }
}

fn finish_repack(pool: &Pool, repack: &mut Repack, limits: &StepLimits) -> Step {
    let mut sum = Step::default();
    loop {
        sum.add(pool.repack_step(repack, limits, None).unwrap());
        if sum.next.is_none() {
            return sum;
        }
    }
}

/// Asserts that every record matches the goal, except those that stay raw or embedded.
fn assert_as_wanted(pool: &Pool, goal: &Settings) {
    assert_eq!(file_extents(pool, TreeId::Patches), []);
    let records = file_extents(pool, TreeId::Map);
    assert!(!records.is_empty());
    for record in records {
        let pointer = &record.pointer;
        assert_eq!(1 << pointer.span_log2, goal.record_len, "{record:?}");
        if pointer.codec != CodecId::Raw as u8 {
            let stored = (pointer.codec, pointer.level);
            let wanted = (goal.compression.codec_id() as u8, goal.compression.level());
            assert_eq!(stored, wanted, "{record:?}");
        }
        if let Place::Extent { checksum_kind, .. } = pointer.place {
            assert_eq!(checksum_kind, goal.checksum, "{record:?}");
        }
    }
}

/// A repack that is repeatedly interrupted, by a crash or by closing, resumes where it stopped.
#[test]
fn an_interrupted_repack_is_gone_on_with() {
    let goals = [("zstd-9", "64K"), ("lz4", "4K"), ("gzip-6", "256K"), ("off", "16K")];
    let mut interruptions = 0;
    for (seed, (compression, record_size)) in (0..).zip(goals.repeat(2)) {
        let mut rng = Rng(seed);
        let sim = SimDevice::new(Vec::new());
        // Mostly text, since noise and holes would shorten the repack.
        let bytes = [rng.text(500_000), rng.content(200_000), rng.text(300_001)].concat();
        let properties = [(Property::RecordSize, "32K"), (Property::Compression, "zstd-1")];
        let mut fixture = Fixture::on(sim.clone(), seed, &properties, bytes);
        fixture.edit(&[1, 40, 41, 100, 200], 30);
        fixture.file.commit(Durability::Durable).unwrap();
        let goal = settings(&[
            (Property::Compression, compression),
            (Property::RecordSize, record_size),
            (Property::Checksum, "blake3"),
        ]);
        let id = fixture.file.id();
        let (mut image, mut bytes) = (sim.image(), fixture.bytes.clone());
        drop(fixture);
        let (mut durable_position, mut opened, mut rewritten) = (0, 0, 0);
        loop {
            let label = format!("seed {seed}, opened {opened} times");
            let device = SimDevice::new(image.clone());
            let pool = Pool::open(device.clone(), options(32 << 20)).unwrap();
            let mut repack = match pool.unfinished_repack(id).unwrap() {
                Some(found) => {
                    assert_eq!(found.goal, goal, "{label}");
                    assert!(found.position >= durable_position, "{label}: it fell back");
                    found
                }
                None if opened == 0 => pool.begin_repack(id, goal, Patience::None).unwrap(),
                None => break,
            };
            let limits = steps_of(rng.pick(&[1, 100_000, 300_000]));
            for _ in 0..rng.below(4) {
                // The user continues, before and after the position.
                let file = only_file(&pool).unwrap();
                let at = rng.below(bytes.len() as u64 - 10) as usize;
                file.write_at(b"somewhere", at as u64).unwrap();
                if repack.position == u64::MAX {
                    file.discard();
                    break;
                }
                let step = pool.repack_step(&mut repack, &limits, None).unwrap();
                assert!(step.damaged.is_empty() && step.overtaken == 0, "{label}");
                rewritten += step.rewritten;
                if at as u64 >= step.next.unwrap_or(u64::MAX) {
                    file.commit(Durability::Visible).unwrap();
                    bytes[at..at + 9].copy_from_slice(b"somewhere");
                } else {
                    // Before the position it would leave a patch that the repack never visits
                    // again.
                    file.discard();
                }
            }
            pool.store().make_durable().unwrap();
            durable_position = pool.unfinished_repack(id).unwrap().map_or(0, |r| r.position);
            // Everything after this is lost with the power, partly or completely.
            let trace = device.take_trace();
            let mut disk = Disk::new(image.clone());
            trace.iter().for_each(|op| disk.apply(op));
            if durable_position > 0 && rng.one_in(2) {
                let _ = pool.repack_step(&mut repack, &limits, None).unwrap();
                device.take_trace().iter().for_each(|op| disk.apply(op));
            }
            image = disk.crash(&mut rng, 512);
            opened += 1;
        }
        assert!(opened > 1 && rewritten > 3, "seed {seed}: {opened} times, {rewritten} records");
        interruptions += opened;
        let pool = Pool::open(SimDevice::new(image), options(32 << 20)).unwrap();
        assert_as_wanted(&pool, &goal);
        assert!(read_all(&only_file(&pool).unwrap()).unwrap() == bytes, "seed {seed}");
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "seed {seed}");
    }
    assert!(interruptions > 30, "only {interruptions} interruptions");
}

#[test]
fn a_finished_repack_leaves_nothing_to_do() {
    let mut rng = Rng(5);
    // The last record is so short that it stays embedded in its pointer.
    let bytes = [rng.text(300_000), vec![0; 200_000], rng.text(9 * 65536 + 20 - 500_000)].concat();
    let mut fixture = Fixture::new(5, &[(Property::Compression, "lz4")], bytes);
    fixture.edit(&[2, 3, 140], 10);
    let id = fixture.file.id();
    let goal = settings(&[(Property::Compression, "zstd-5"), (Property::RecordSize, "64K")]);
    for expected in [true, false] {
        let mut repack = fixture.pool.begin_repack(id, goal, Patience::None).unwrap();
        assert_eq!(fixture.pool.unfinished_repack(id).unwrap(), Some(repack.clone()));
        let done = finish_repack(&fixture.pool, &mut repack, &steps_of(100_000));
        assert_eq!(done.rewritten > 0, expected, "{done:?}");
        assert_eq!(fixture.pool.unfinished_repack(id).unwrap(), None);
        assert_as_wanted(&fixture.pool, &goal);
        fixture.assert_whole();
    }
    assert_eq!(fixture.file_extents(TreeId::Map).last().unwrap().pointer.len, 20);
    // Only the properties that matter to a repack are compared.
    let repack = fixture.pool.begin_repack(id, goal, Patience::None).unwrap();
    assert!(repack.aims_at(&Settings { background_cpu: 1, ..goal }));
    assert!(!repack.aims_at(&Settings { record_len: 4096, ..goal }));
    // Replace the repack with one whose goal leaves the level open.
    let auto = settings(&[(Property::Compression, "auto")]);
    fixture.pool.begin_repack(id, goal, Patience::None).unwrap();
    let mut repack = fixture.pool.begin_repack(id, auto, Patience::None).unwrap();
    assert_eq!(repack.goal.compression, SINK_COMPRESSION);
    assert!(repack.aims_at(&auto) && !repack.aims_at(&goal));
    finish_repack(&fixture.pool, &mut repack, &StepLimits::default());
    assert_as_wanted(&fixture.pool, &repack.goal);
    // A repack does not change properties.
    let values = fixture.pool.properties(id).unwrap();
    let compression = values.iter().find(|v| v.property == Property::Compression).unwrap();
    assert_eq!(compression.value, "lz4");
    fixture.assert_whole();
}

/// An unreadable record is reported, and the others are still rewritten.
#[test]
fn damage_is_reported_and_passed_by() {
    for repacks in [false, true] {
        let mut rng = Rng(6);
        let text = rng.text((40 * 32) << 10);
        let mut fixture = Fixture::new(6, &[(Property::RecordSize, "32K")], text);
        let everywhere: Vec<usize> = (0..40).map(|record| record * 8 + 3).collect();
        fixture.edit(&everywhere, 20);
        fixture.pool.store().make_durable().unwrap();
        let record = fixture.file_extents(TreeId::Map).remove(17);
        let Place::Extent { sector, .. } = record.pointer.place else { panic!("{record:?}") };
        fixture.device.write_at(&[0x5a; 20], (sector.0 << 9) + 100).unwrap();
        let pool = Pool::open(Arc::clone(&fixture.device), options(32 << 20)).unwrap();
        let id = fixture.file.id();
        let goal = settings(&[(Property::Compression, "lz4"), (Property::RecordSize, "32K")]);
        let done = if repacks {
            let mut repack = pool.begin_repack(id, goal, Patience::None).unwrap();
            finish_repack(&pool, &mut repack, &steps_of(200_000))
        } else {
            pool.fold(Fold::All, &steps_of(200_000), &mut |_| true).unwrap()
        };
        assert_eq!(done.rewritten, 39, "{done:?}");
        let [(start, end, reason)] = &done.damaged[..] else { panic!("{done:?}") };
        assert_eq!((*start, *end), (record.start, record.slot_end()));
        assert!(reason.starts_with("corrupt extent"), "{reason}");
        assert_eq!(pool.unfinished_repack(id).unwrap(), None);
        // The record is unchanged, including its patch; everything around it is fine.
        assert_eq!(file_extents(&pool, TreeId::Map)[17], record);
        assert_eq!(file_extents(&pool, TreeId::Patches).len(), 1);
        assert_eq!(problems(&pool).unwrap().len(), 1);
        let file = only_file(&pool).unwrap();
        let (start, end) = (record.start as usize, record.slot_end() as usize);
        for (from, to) in [(0, start), (end, fixture.bytes.len())] {
            let mut found = vec![0; to - from];
            file.read_at(&mut found, from as u64).unwrap();
            assert!(found == fixture.bytes[from..to], "bytes {from} to {to}");
        }
        let error = file.read_at(&mut [0; 10], start as u64).unwrap_err();
        assert!(error.is_corruption(), "{error}");
    }
}

/// Sinking recompresses only cold records without patches that can become smaller, and each only
/// once.
#[test]
fn sinking_takes_each_cold_record_once() {
    let mut rng = Rng(7);
    let span = 16 << 10;
    let parts = [rng.text(4 * span), rng.noise(2 * span), vec![7; span], rng.text(3 * span)];
    let properties = [(Property::RecordSize, "16K"), (Property::Compression, "lz4")];
    let mut fixture = Fixture::new(7, &properties, parts.concat());
    let cold = fixture.pool.state().txg();
    // Rewritten later: two records, one of them by a patch over a cold record.
    let hot = rng.text(span);
    fixture.file.write_at(&hot, 0).unwrap();
    fixture.bytes[..span].copy_from_slice(&hot);
    fixture.file.commit(Durability::Visible).unwrap();
    fixture.edit(&[4], 20);
    let before = fixture.file_extents(TreeId::Map);
    let id = fixture.file.id();
    for pass in 0..2 {
        let mut sum = Step::default();
        let mut next = Some(0);
        while let Some(from) = next {
            let step = fixture.pool.sink_step(id, cold, from, &steps_of(50_000)).unwrap();
            next = step.next;
            sum.add(step);
        }
        assert_eq!(sum.rewritten, if pass == 0 { 5 } else { 0 }, "{sum:?}");
        assert!(pass == 1 || sum.stored_after < sum.stored_before, "{sum:?}");
        // The first is hot, the second has a patch, then come noise and an embedded record.
        for (index, (old, new)) in before.iter().zip(fixture.file_extents(TreeId::Map)).enumerate()
        {
            let is_sunk = [2, 3, 7, 8, 9].contains(&index);
            assert_eq!(new.pointer.birth > old.pointer.birth, is_sunk, "record {index}: {new:?}");
            if is_sunk {
                assert_eq!(new.pointer.level, SINK_COMPRESSION.level());
                assert_eq!(new.pointer.codec, CodecId::Zstd as u8);
            }
        }
        fixture.assert_whole();
    }
    assert_eq!(fixture.file_extents(TreeId::Patches).len(), 1);
}

/// A fold uses the user's own level, and does no more than it is allowed.
#[test]
fn folding_keeps_to_its_limits_and_to_the_settings() {
    let properties = [(Property::RecordSize, "16K"), (Property::Compression, "gzip-2")];
    let text = Rng(8).text((64 * 16) << 10);
    let mut fixture = Fixture::new(8, &properties, text);
    let pages: Vec<usize> = (0..64).map(|record| record * 4 + 1).collect();
    fixture.edit(&pages, 40);
    assert_eq!(fixture.file_extents(TreeId::Patches).len(), 64);
    let id = fixture.file.id();
    let step = fixture.pool.fold_step(id, Fold::Due, 0, &steps_of(1 << 20)).unwrap();
    assert_eq!((step.rewritten, step.next), (0, None), "none of them is due");
    let step = fixture.pool.fold_step(id, Fold::All, 0, &steps_of(100_000)).unwrap();
    assert_eq!((step.rewritten, step.next), (7, Some((7 * 16) << 10)), "{step:?}");
    let few = StepLimits { look_count_max: 5, ..steps_of(1 << 20) };
    let step = fixture.pool.fold_step(id, Fold::All, step.next.unwrap(), &few).unwrap();
    assert_eq!((step.rewritten, step.next), (5, Some((12 * 16) << 10)), "{step:?}");
    let stopped = fixture.pool.fold(Fold::All, &steps_of(1), &mut |sum| sum.rewritten < 3).unwrap();
    assert_eq!(stopped.rewritten, 3);
    let rest = fixture.pool.fold(Fold::All, &steps_of(1), &mut |_| true).unwrap();
    assert_eq!((rest.rewritten, fixture.file_extents(TreeId::Patches).len()), (49, 0));
    let gzip = Compression::Gzip(2);
    let is_gzip = |record: &FileExtent| {
        (record.pointer.codec, record.pointer.level) == (gzip.codec_id() as u8, gzip.level())
    };
    assert!(fixture.file_extents(TreeId::Map).iter().all(is_gzip));
    fixture.assert_whole();
    // Nothing is written to a read-only pool.
    let error = read_only(&fixture.device)
        .fold_step(id, Fold::All, 0, &steps_of(1))
        .map(|step| step.rewritten);
    assert!(matches!(error, Ok(0)), "{error:?}");
    let error = read_only(&fixture.device)
        .begin_repack(id, Settings::default(), Patience::None)
        .unwrap_err();
    assert!(matches!(error, Error::ReadOnly(_)), "{error}");
}

fn read_only(device: &Arc<dyn Device>) -> Pool {
    Pool::open(Arc::new(ReadOnly(Arc::clone(device))), options(1 << 20)).unwrap()
}

/// A device that must not be written to.
#[derive(Debug)]
struct ReadOnly(Arc<dyn Device>);

impl Device for ReadOnly {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
        self.0.read_at(buf, offset)
    }
    fn write_at(&self, _: &[u8], _: u64) -> std::io::Result<()> {
        panic!("a write to what is read-only")
    }
    fn sync_data(&self) -> std::io::Result<()> {
        panic!("a sync of what is read-only")
    }
    fn len(&self) -> std::io::Result<u64> {
        self.0.len()
    }
    fn set_len(&self, _: u64) -> std::io::Result<()> {
        panic!("a cut of what is read-only")
    }
    fn punch_hole(&self, _: u64, _: u64) {
        panic!("a hole in what is read-only")
    }
    fn is_read_only(&self) -> bool {
        true
    }
    fn lock_writer(&self) -> std::io::Result<()> {
        panic!("a lock of what is read-only")
    }
    fn try_lock_writer(&self) -> std::io::Result<bool> {
        panic!("a lock of what is read-only")
    }
    fn unlock_writer(&self) {}
}
