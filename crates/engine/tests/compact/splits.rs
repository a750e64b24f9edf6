//! Random changes of files on a full disk whose free space is in short pieces: whatever is
//! accepted reads as written, whatever is refused changes nothing, and so do snapshots.
//!
//! `HARDPACK_SEED=N` tries the run of this seed alone; `HARDPACK_COUNT=N`, the first N seeds.

use std::sync::Arc;

use crate::common::limits::BoundedDevice;
use crate::common::segments::{
    Files, GOAL, assert_holds, file_at, optimize, pointers, put, repack, sent,
};
use crate::common::{Rng, create_options, env_number, options, problems, read_all};
use hardpack_engine::Error;
use hardpack_engine::device::Device;
use hardpack_engine::pool::{Attributes, Kind, Pool, Property, ROOT};
use hardpack_engine::store::Durability;

const SEED_COUNT: u64 = 24;
const STEP_COUNT: u64 = 60;
const FILE_COUNT: u64 = 4;
const FILLER_COUNT: u64 = 60;
/// Transactions of more than this spill.
const DIRTY_LEN_MAX: usize = 1 << 20;

struct Run {
    disk: Arc<BoundedDevice>,
    pool: Pool,
    files: Files,
    rng: Rng,
    label: String,
    record_len: usize,
}

impl Run {
    /// Makes files with long records, then a full disk: every second of many short files is gone.
    fn new(seed: u64) -> Run {
        let mut rng = Rng(seed);
        let (record, record_len) =
            rng.pick(&[("16K", 16 << 10), ("64K", 64 << 10), ("128K", 128 << 10), ("1M", 1 << 20)]);
        let compression = rng.pick(&["off", "lz4", "zstd", "zstd-12", "auto"]);
        let dedup = rng.pick(&["off", "on"]);
        let properties = [
            (Property::RecordSize, record),
            (Property::Compression, compression),
            (Property::Dedup, dedup),
            (Property::Checksum, rng.pick(&["xxh3", "blake3"])),
        ];
        let ashift = rng.pick(&[9, 9, 12]);
        let disk = Arc::new(BoundedDevice::new(Vec::new(), u64::MAX, u64::MAX));
        if rng.one_in(2) {
            disk.tell_room();
        }
        let device: Arc<dyn Device> = disk.clone();
        let pool =
            Pool::create(device, &create_options(ashift, &properties), options(DIRTY_LEN_MAX))
                .unwrap();
        let mut files = Files::new();
        for number in 0..FILE_COUNT {
            let len = 1 + rng.below(6 * record_len as u64) as usize;
            let (path, bytes) = (format!("f{number}").into_bytes(), rng.content(len));
            put(&pool, &path, &bytes);
            files.push((path, bytes));
        }
        for number in 0..FILLER_COUNT {
            let len = rng.pick(&[3000, 12_000, 30_000]);
            put(&pool, format!("filler{number}").as_bytes(), &rng.noise(len));
        }
        for number in (0..FILLER_COUNT).step_by(2) {
            pool.remove_at(format!("filler{number}").as_bytes(), 0).unwrap();
        }
        let label = format!("seed {seed}, {record}, {compression}, dedup {dedup}, {ashift}");
        let mut run = Run { disk, pool, files, rng, label, record_len };
        run.fill();
        run
    }

    fn fill(&mut self) {
        let more = self.rng.pick(&[0, 0, 4096, 100_000]);
        self.disk.set_len_max(self.disk.len().unwrap() + more);
    }

    /// Opens the pool as another process would.
    fn open(&mut self) {
        self.pool = Pool::open(self.disk.clone(), options(DIRTY_LEN_MAX)).unwrap();
    }

    /// Puts another file in the place of one. Returns whether it was accepted.
    fn replace(&mut self, number: usize) -> bool {
        let path = self.files[number].0.clone();
        let len = self.rng.below(5 * self.record_len as u64) as usize;
        let content = self.rng.content(len);
        let mut import = self.pool.import(1);
        let like = Attributes::new(Kind::File, ROOT);
        let done =
            import.file(ROOT, &path, &like, &[], content.clone()).and_then(|()| import.finish());
        let found = read_all(&file_at(&self.pool, &path)).unwrap();
        match &done {
            Ok(_) => self.files[number].1 = content,
            Err(error) => {
                assert!(matches!(error, Error::NoSpace), "{}: {error}", self.label);
                // It may have failed when the file was there already.
                if found == content {
                    self.files[number].1 = content;
                }
            }
        }
        assert!(found == self.files[number].1, "{}: {done:?}", self.label);
        done.is_ok()
    }

    /// Changes one of the files. Returns whether it was accepted.
    fn change(&mut self) -> bool {
        let number = self.rng.below(FILE_COUNT) as usize;
        if self.rng.one_in(8) {
            return self.replace(number);
        }
        let (path, bytes) = self.files[number].clone();
        let file = file_at(&self.pool, &path);
        let mut new = bytes.clone();
        let attempt = |new: &mut Vec<u8>, rng: &mut Rng| -> hardpack_engine::Result<()> {
            for _ in 0..=rng.below(3) {
                if rng.one_in(8) {
                    let len = rng.below(7 * self.record_len as u64) as usize;
                    file.set_len(len as u64)?;
                    new.resize(len, 0);
                    continue;
                }
                let len = match rng.below(4) {
                    0 => 1 + rng.below(300),
                    1 => 4096,
                    2 => rng.below(40_000),
                    _ => self.record_len as u64 * (1 + rng.below(3)),
                } as usize;
                let at = match rng.below(3) {
                    0 => rng.below(6) * self.record_len as u64,
                    1 => rng.below(6 * self.record_len as u64) / 4096 * 4096,
                    _ => rng.below(6 * self.record_len as u64),
                } as usize;
                let written = match rng.one_in(6) {
                    // A copy of what another part has.
                    true if bytes.len() > len => bytes[bytes.len() - len..].to_vec(),
                    _ => rng.content(len),
                };
                file.write_at(&written, at as u64)?;
                new.resize(new.len().max(at + len), 0);
                new[at..at + len].copy_from_slice(&written);
            }
            file.commit(rng.pick(&[Durability::Durable, Durability::Visible]))
        };
        let done = attempt(&mut new, &mut self.rng);
        match &done {
            Ok(()) => self.files[number].1 = new,
            Err(error) => {
                assert!(matches!(error, Error::NoSpace), "{}: {error}", self.label);
                file.discard();
            }
        }
        let found = read_all(&file).unwrap();
        assert!(found == self.files[number].1, "{}: {done:?}", self.label);
        done.is_ok()
    }

    fn assert_whole(&self) {
        for (path, bytes) in &self.files {
            assert!(read_all(&file_at(&self.pool, path)).unwrap() == *bytes, "{}", self.label);
        }
        assert_eq!(problems(&self.pool).unwrap(), Vec::<String>::new(), "{}", self.label);
    }
}

/// How many records are shorter than others of their run.
fn short_count(run: &Run) -> usize {
    let log2 = run.record_len.ilog2() as u8;
    pointers(&run.pool).iter().filter(|it| it.span_log2 != 0 && it.span_log2 < log2).count()
}

#[test]
fn whatever_is_accepted_reads_as_written() {
    let chosen = env_number("HARDPACK_SEED").map(|seed| seed..seed + 1);
    let (mut accepted, mut refused, mut split) = (0, 0, 0);
    for seed in chosen.unwrap_or(0..env_number("HARDPACK_COUNT").unwrap_or(SEED_COUNT)) {
        let mut run = Run::new(seed);
        let mut kept: Option<Files> = None;
        for step in 0..STEP_COUNT {
            match run.change() {
                true => accepted += 1,
                false => refused += 1,
            }
            if run.rng.one_in(12) {
                run.open();
            }
            if step == STEP_COUNT / 3 && run.rng.one_in(2) {
                kept =
                    run.pool.create_snapshot(ROOT, b"kept", 0).is_ok().then(|| run.files.clone());
            }
            if run.rng.one_in(20) {
                run.assert_whole();
            }
        }
        split += short_count(&run);
        run.assert_whole();
        run.open();
        run.assert_whole();
        if let Some(files) = kept {
            let kept = run.pool.open_snapshot(ROOT, b"kept").unwrap();
            for (path, bytes) in &files {
                let file = kept.file(kept.resolve(path).unwrap().file).unwrap();
                assert!(read_all(&file).unwrap() == *bytes, "{}: snapshot", run.label);
            }
        }
        // With space again.
        run.disk.set_len_max(u64::MAX);
        let (_, _, copy, copied) = sent(&run.pool, &run.files);
        assert_holds(&copy, &copied);
        match seed % 3 {
            0 => drop(optimize(&run.pool, GOAL)),
            1 => run.files.iter().for_each(|(path, _)| repack(&run.pool, path, None)),
            _ => (0..10).for_each(|_| assert!(run.change(), "{}", run.label)),
        }
        run.assert_whole();
    }
    println!("{accepted} accepted, {refused} refused, {split} shorter records");
    assert!(accepted > 10 && split > 10, "{accepted} accepted, {split} shorter records");
}
