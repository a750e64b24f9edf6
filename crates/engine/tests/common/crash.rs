//! The crash harness: a recorded workload, cut by a loss of power at every write and sync.
//!
//! What must hold after each crash:
//!
//! * the pool opens, and a check of it finds nothing wrong;
//! * the file is exactly what one commit made it, and that commit is at least as new as the newest
//!   one that was acknowledged as durable before the crash;
//! * the pool can be used as before, and survives the next crash just as well.

use std::collections::HashMap;
use std::sync::Arc;

use hardpack_engine::device::Device;
use hardpack_engine::pool::{File, Pool, Property};
use hardpack_engine::store::Durability;
use hardpack_engine::store::superblock::{SLOT_COUNT, Superblock, slot_offset};

use super::sim_device::{Disk, Fault, Measured, Op, SimDevice};
use super::{GUID, Rng, create, first_difference, only_file, options, problems, read_all};

/// A commit that is about to be made, or one that was acknowledged as durable, by the number of its
/// version of the file.
const STARTED: u64 = 1 << 32;
const DURABLE: u64 = 2 << 32;
/// A compaction begins, or ends.
const COMPACTING: u64 = 4 << 32;
const COMPACTED: u64 = 8 << 32;
/// So many times more crashes are tried within one: each of its steps is synced at once by the next,
/// so few moments are of interest.
const COMPACTING_TRIES: u64 = 16;

/// How a workload looks.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Commits.
    pub commit_count: u64,
    /// The file stays about this long.
    pub file_len: u64,
    /// One commit in so many is durable; 1 for all.
    pub durable_one_in: u64,
    /// How many processes take turns.
    pub process_count: usize,
    /// After one commit in so many some steps of a compaction are taken; 0 for never.
    pub compact_one_in: u64,
    /// After one commit in so many some steps of folding, repacking or sinking; 0 for never.
    pub rewrite_one_in: u64,
}

/// Versions of the file that commits made, by number.
#[derive(Clone, Debug, Default)]
pub struct Versions {
    contents: Vec<Vec<u8>>,
}

impl Versions {
    fn add(&mut self, bytes: &[u8]) -> u64 {
        self.contents.push(bytes.to_vec());
        self.contents.len() as u64 - 1
    }

    /// Which version from `oldest` to `newest` these bytes are.
    fn find(&self, bytes: &[u8], oldest: u64, newest: u64) -> Result<u64, String> {
        let range = oldest as usize..=newest as usize;
        if let Some(index) = self.contents[range].iter().rposition(|version| version == bytes) {
            return Ok(oldest + index as u64);
        }
        Err(match self.contents.iter().rposition(|version| version == bytes) {
            Some(other) => format!(
                "the file is version {other}; durable is {oldest}, the newest begun {newest}"
            ),
            None => format!(
                "the file is no version; against the newest: {}",
                first_difference(bytes, &self.contents[newest as usize])
            ),
        })
    }
}

/// One process that uses the pool.
struct Process {
    pool: Pool,
    file: Arc<File>,
}

impl Process {
    fn open(device: &Arc<SimDevice>, rng: &mut Rng) -> Result<Process, String> {
        let dirty_len_max = rng.pick(&[30_000, 32 << 20]);
        let pool = Pool::open(device.clone(), options(dirty_len_max)).map_err(text)?;
        let file = only_file(&pool).map_err(text)?;
        Ok(Process { pool, file })
    }
}

fn text(error: hardpack_engine::Error) -> String {
    error.to_string()
}

/// Runs a workload on the pool of a device, and notes every commit in its recording.
pub fn run_workload(
    device: &Arc<SimDevice>,
    shape: Shape,
    rng: &mut Rng,
    versions: &mut Versions,
) -> Result<(), String> {
    let mut processes = Vec::new();
    for _ in 0..shape.process_count {
        processes.push(Process::open(device, rng)?);
    }
    let mut bytes = read_all(&processes[0].file).map_err(text)?;
    for _ in 0..shape.commit_count {
        let process = &processes[rng.below(processes.len() as u64) as usize];
        process.pool.refresh().map_err(text)?;
        if process.file.len().map_err(text)? != bytes.len() as u64 {
            return Err("a process does not see what another committed".into());
        }
        change(process, rng, shape, &mut bytes)?;
        let version = versions.add(&bytes);
        device.note(STARTED | version);
        let durable = rng.one_in(shape.durable_one_in);
        let durability = if durable { Durability::Durable } else { Durability::Visible };
        process.file.commit(durability).map_err(text)?;
        if durable {
            device.note(DURABLE | version);
        }
        if shape.compact_one_in > 0 && rng.one_in(shape.compact_one_in) {
            let index = rng.below(processes.len() as u64) as usize;
            device.note(COMPACTING);
            let bytes = compact(&processes[index], rng)?;
            device.measure(|sums| sums.compacted += bytes);
            device.note(COMPACTED);
        }
        if shape.rewrite_one_in > 0 && rng.one_in(shape.rewrite_one_in) {
            let index = rng.below(processes.len() as u64) as usize;
            super::rewriting::some_steps(&processes[index].pool, device, rng)?;
        }
        // Now and then a property changes, or a process ends, politely or not.
        match rng.below(12) {
            0 => {
                let level = rng.pick(&["off", "lz4", "zstd", "gzip"]);
                let owner = process.file.id();
                process.pool.set_property(owner, Property::Compression, level).map_err(text)?;
                device.note(DURABLE | version);
            }
            1 => {
                let size = rng.pick(&["4K", "16K", "64K"]);
                let owner = process.file.id();
                process.pool.set_property(owner, Property::RecordSize, size).map_err(text)?;
                device.note(DURABLE | version);
            }
            2 => {
                let index = rng.below(processes.len() as u64) as usize;
                if rng.one_in(2) {
                    processes[index].pool.close().map_err(text)?;
                }
                processes[index] = Process::open(device, rng)?;
            }
            3 => {
                let other = &processes[rng.below(processes.len() as u64) as usize];
                if read_all(&other.file).map_err(text)?.is_empty() && !bytes.is_empty() {
                    other.pool.refresh().map_err(text)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Compacts the pool, or begins to. Returns how many bytes it became shorter.
fn compact(process: &Process, rng: &mut Rng) -> Result<u64, String> {
    let mut compaction = process.pool.compact();
    let mut left = rng.pick(&[3, 9, u64::MAX]);
    while left > 0 && compaction.step().map_err(text)? {
        left -= 1;
    }
    let report = compaction.report();
    Ok(report.before_bytes.saturating_sub(report.after_bytes))
}

/// Changes the file, as small updates, bulk writes and cuts do.
fn change(
    process: &Process,
    rng: &mut Rng,
    shape: Shape,
    bytes: &mut Vec<u8>,
) -> Result<(), String> {
    let count = rng.pick(&[1, 1, 2, 4]);
    for _ in 0..count {
        if shape.rewrite_one_in > 0 && rng.one_in(2) {
            super::rewriting::edit(&process.file, rng, bytes)?;
            continue;
        }
        let len = match rng.below(8) {
            0 => shape.file_len as usize / 2,
            1 => 1 + rng.below(200) as usize,
            2 => 20_000,
            _ => 4096,
        };
        let at = rng.below(shape.file_len.saturating_sub(len as u64)) & !511;
        let at = at.min(bytes.len() as u64) as usize;
        let new = rng.content(len);
        process.file.write_at(&new, at as u64).map_err(text)?;
        if bytes.len() < at + len {
            bytes.resize(at + len, 0);
        }
        bytes[at..at + len].copy_from_slice(&new);
    }
    if rng.one_in(10) {
        let len = rng.below(bytes.len() as u64 + 1);
        process.file.set_len(len).map_err(text)?;
        bytes.truncate(len as usize);
    }
    // So that no two versions are the same: a number at the very start.
    let number = rng.next().to_le_bytes();
    process.file.write_at(&number, 0).map_err(text)?;
    if bytes.len() < 8 {
        bytes.resize(8, 0);
    }
    bytes[..8].copy_from_slice(&number);
    Ok(())
}

/// Opens what a crash left and checks it. Returns the version found.
fn verify(image: &Arc<SimDevice>, versions: &Versions, span: (u64, u64)) -> Result<u64, String> {
    let pool = Pool::open(image.clone(), options(1 << 20)).map_err(text)?;
    let file = only_file(&pool).map_err(text)?;
    let bytes = read_all(&file).map_err(text)?;
    let version = versions.find(&bytes, span.0, span.1)?;
    match problems(&pool).map_err(text)?.first() {
        Some(problem) => Err(format!("version {version} is opened, but {problem}")),
        None => Ok(version),
    }
}

/// The superblocks of an image, for messages: slot, txg, durable txg, and whether data was synced.
fn ring(image: &[u8]) -> String {
    let slots = (0..SLOT_COUNT).filter_map(|slot| {
        let superblock = Superblock::decode(&image[slot_offset(slot) as usize..], &GUID)?;
        let synced = if superblock.data_synced { "s" } else { "" };
        Some(format!("{slot}:{}({}){synced}", superblock.txg, superblock.durable_txg))
    });
    slots.collect::<Vec<_>>().join(" ")
}

/// What one crash is made of.
struct Case<'a> {
    disk: &'a Disk,
    versions: &'a Versions,
    span: (u64, u64),
    shape: Shape,
    sector: usize,
    depth: u32,
}

/// Crashes, verifies, and may go on from there to crash again. Counts the crashes.
fn crash(case: &Case<'_>, seed: u64) -> Result<u64, String> {
    let mut rng = Rng(seed);
    let image = case.disk.crash(&mut rng, case.sector);
    let device = SimDevice::new(image.clone());
    let version = verify(&device, case.versions, case.span).map_err(|error| {
        format!("{error}; ring before {}, after {}", ring(&image), ring(&device.image()))
    })?;
    if case.depth == 0 || !rng.one_in(6) {
        return Ok(1);
    }
    // What recovery did is not durable either.
    let shape = Shape { commit_count: 3, ..case.shape };
    let mut versions = Versions::default();
    versions.add(&case.versions.contents[version as usize]);
    run_workload(&device, shape, &mut rng, &mut versions)
        .map_err(|error| format!("after recovery of version {version}: {error}"))?;
    let trace = device.take_trace();
    let again = Replay { base: image, trace, versions, shape, sector: case.sector };
    let at = rng.below(again.trace.len() as u64 + 1) as usize;
    let count = again.crash_at(at, 2, case.depth - 1, &mut rng).map_err(|error| {
        format!("after recovery of version {version} from {}: {error}", ring(&again.base))
    })?;
    Ok(count + 1)
}

/// A recorded run, to be cut anywhere.
pub struct Replay {
    /// What the disk held before, durably.
    pub base: Vec<u8>,
    /// What was done.
    pub trace: Vec<Op>,
    /// What the commits made of the file; version 0 is what `base` holds.
    pub versions: Versions,
    /// The workload.
    pub shape: Shape,
    /// What a torn write is torn into.
    pub sector: usize,
}

impl Replay {
    /// Cuts the run before operation `at`, several times.
    fn crash_at(&self, at: usize, tries: u64, depth: u32, rng: &mut Rng) -> Result<u64, String> {
        let (mut disk, mut span) = (Disk::new(self.base.clone()), (0, 0));
        for op in &self.trace[..at] {
            step(&mut disk, &mut span, op);
        }
        self.crashes(&disk, span, tries, depth, rng)
    }

    /// Cuts the run before every operation, several times each. Returns how many crashes that were.
    pub fn crash_everywhere(&self, tries: u64, rng: &mut Rng) -> Result<u64, String> {
        let (mut disk, mut span) = (Disk::new(self.base.clone()), (0, 0));
        let mut count = self.crashes(&disk, span, 1, 0, rng)?;
        let mut factor = 1;
        for (index, op) in self.trace.iter().enumerate() {
            step(&mut disk, &mut span, op);
            match op {
                Op::Note(COMPACTING) => factor = COMPACTING_TRIES,
                Op::Note(COMPACTED) => factor = 1,
                _ => {}
            }
            if matches!(op, Op::Note(_)) {
                continue;
            }
            count += self
                .crashes(&disk, span, tries * factor, 2, rng)
                .map_err(|error| format!("crash behind operation {index}: {error}"))?;
        }
        Ok(count)
    }

    fn crashes(
        &self,
        disk: &Disk,
        span: (u64, u64),
        tries: u64,
        depth: u32,
        rng: &mut Rng,
    ) -> Result<u64, String> {
        let case = Case {
            disk,
            versions: &self.versions,
            span,
            shape: self.shape,
            sector: self.sector,
            depth,
        };
        let mut count = 0;
        for _ in 0..tries {
            let seed = rng.next();
            count += crash(&case, seed).map_err(|error| format!("[crash {seed:#x}] {error}"))?;
        }
        Ok(count)
    }
}

/// Replays one operation. `span` is the newest durable version and the newest begun.
fn step(disk: &mut Disk, span: &mut (u64, u64), op: &Op) {
    disk.apply(op);
    if let Op::Note(note) = op {
        let version = note & u64::from(u32::MAX);
        if note & DURABLE != 0 {
            span.0 = version;
        } else if note & STARTED != 0 {
            span.1 = version;
        }
    }
}

/// Records a workload and crashes it everywhere. Returns the count of crashes, or the first thing
/// that went wrong, with what reproduces it.
pub fn run(
    seed: u64,
    shape: Shape,
    sector: usize,
    tries: u64,
    fault: Option<Box<dyn Fault>>,
) -> Result<u64, String> {
    run_and_measure(seed, shape, sector, tries, fault).map(|(count, _)| count)
}

/// The same, with what the workload did.
pub fn run_and_measure(
    seed: u64,
    shape: Shape,
    sector: usize,
    tries: u64,
    fault: Option<Box<dyn Fault>>,
) -> Result<(u64, Measured), String> {
    let label = format!("[seed {seed}, sector {sector}, {shape:?}]");
    let mut rng = Rng(seed);
    let device = SimDevice::new(Vec::new());
    let dynamic: Arc<dyn Device> = device.clone();
    let pool = create(&dynamic, &[(Property::RecordSize, "16K")], 32 << 20);
    drop(pool);
    device.take_trace();
    let base = device.image();
    device.set_fault(fault);
    let mut versions = Versions::default();
    versions.add(&[]);
    run_workload(&device, shape, &mut rng, &mut versions)
        .map_err(|error| format!("{label} without a crash: {error}"))?;
    let replay = Replay { base, trace: device.take_trace(), versions, shape, sector };
    let count = replay.crash_everywhere(tries, &mut rng);
    let count = count.map_err(|error| format!("{label} {error}"))?;
    Ok((count, device.measured()))
}

/// Counts what occurs in a list, for messages.
pub fn histogram<T: std::hash::Hash + Eq>(items: impl IntoIterator<Item = T>) -> HashMap<T, u64> {
    let mut counts = HashMap::new();
    for item in items {
        *counts.entry(item).or_default() += 1;
    }
    counts
}
