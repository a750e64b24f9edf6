//! The crash harness: cuts a recorded workload by a power loss at every write and sync.
//!
//! After each crash:
//!
//! * the pool opens, and a check finds nothing wrong: every extent verifies, and used and free
//!   space make up the whole pool, each sector once;
//! * the file is exactly as one commit left it, and that commit is at least as new as the newest
//!   one acknowledged as durable before the crash;
//! * the pool can be used as before, and survives the next crash as well.
//!
//! Between a lying sync and the next true one nothing can be durable. Then no wrong byte may be
//! read: all readable pages belong to one commit, and for the others, or for the pool, the error
//! names the damage. The same holds after a bit of the image is flipped.

use std::collections::HashMap;
use std::sync::Arc;

use hardpack_engine::pool::{File, Pool};
use hardpack_engine::store::superblock::{SLOT_COUNT, Superblock, slot_offset};
use hardpack_engine::{Error, Txg};

use super::faults::{Counts, Faults};
use super::shapes::Shape;
use super::sim_device::{Disk, Fault, Measured, Op, SimDevice};
use super::workload::{COMPACTED, COMPACTING, DURABLE, Run, STARTED, Versions};
use super::{GUID, Rng, only_file, options, problems, read_all, snapshotting};

/// Crashes within a compaction are tried this many times more often: the next step syncs each step
/// at once, so few moments are of interest.
const COMPACTING_TRIES: u64 = 16;
/// One crash in this many is followed by more work and another crash.
const AGAIN_ONE_IN: u64 = 6;
/// One image in this many gets a flipped bit.
const FLIP_ONE_IN: u64 = 16;
/// The number of operations that a message about a failure lists.
const HISTORY_LEN: usize = 60;
/// The most changes of which [`explore`] tries all subsets.
const SUBSET_COUNT_MAX: usize = 12;

/// Counts of what was tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Crashes: moments, times the choices of which unsynced writes were kept, torn and lost.
    pub states: u64,
    /// Distinct images among them, per run. Only these are opened.
    pub images: u64,
    /// Crashes after which the pool was used again, and crashed again.
    pub lives: u64,
    /// Crashes after a lying sync.
    pub after_lies: u64,
    /// Images with a flipped bit; [`Tally::flips_found`] counts those in which it was noticed.
    pub flipped: u64,
    /// See [`Tally::flipped`].
    pub flips_found: u64,
    /// Crashes after which the newest superblock was found incomplete.
    pub fallbacks: u64,
    /// Faults that happened while the workload ran.
    pub faults: Counts,
    /// What the workload did.
    pub work: Measured,
    /// A fingerprint of the recordings and the results.
    pub fingerprint: u64,
}

impl Tally {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Tally) {
        self.states += other.states;
        self.images += other.images;
        self.lives += other.lives;
        self.after_lies += other.after_lies;
        self.flipped += other.flipped;
        self.flips_found += other.flips_found;
        self.fallbacks += other.fallbacks;
        self.faults.iter_mut().zip(other.faults).for_each(|(sum, count)| *sum += count);
        self.work.add(&other.work);
        self.note(other.fingerprint);
    }

    fn note(&mut self, what: u64) {
        self.fingerprint = Rng(self.fingerprint ^ what).next();
    }
}

fn text(error: Error) -> String {
    error.to_string()
}

/// Changes the image after a crash, as a defect of the engine would: to test the harness.
pub type Forge = fn(&mut [u8]);

/// Opens the image after a crash and checks it. Returns the version found, and whether it is older
/// than the newest superblock.
fn verify(
    image: &Arc<SimDevice>,
    versions: &Versions,
    span: (u64, u64),
) -> Result<(u64, bool), String> {
    let pool = Pool::open(image.clone(), options(1 << 20)).map_err(text)?;
    let file = only_file(&pool).map_err(text)?;
    let bytes = read_all(&file).map_err(text)?;
    let version = versions.find(&bytes, span.0, span.1)?;
    snapshotting::verify(&pool)
        .map_err(|error| format!("version {version} is opened, but {error}"))?;
    match problems(&pool).map_err(text)?.first() {
        Some(problem) => Err(format!("version {version} is opened, but {problem}")),
        None => Ok((version, pool.store().recovered_from().is_some())),
    }
}

/// Whether an error reports damage, which is acceptable if there may be some.
fn is_report(error: &Error) -> bool {
    matches!(error, Error::Corrupt { .. } | Error::NotAPool(_) | Error::Unsupported(_))
}

/// Opens the image after a crash in which anything may be missing or wrong. Returns whether that
/// was noticed. All readable bytes must be of one version up to `newest`.
fn verify_damaged(image: Vec<u8>, versions: &Versions, newest: u64) -> Result<bool, String> {
    let unexpected = |error: Error| match is_report(&error) {
        true => Ok(true),
        false => Err(format!("damage is reported as something else: {error}")),
    };
    let pool = match Pool::open(SimDevice::new(image), options(1 << 20)) {
        Ok(pool) => pool,
        Err(error) => return unexpected(error),
    };
    let file = match only_file(&pool) {
        Ok(file) => file,
        // The state in which the pool was created counts as committed, too.
        Err(Error::NotFound { .. }) if pool.state().txg() == Txg(1) => return Ok(true),
        Err(error) => return unexpected(error),
    };
    let mut noticed = pool.store().recovered_from().is_some();
    let len = match file.len() {
        Ok(len) => len,
        Err(error) => return unexpected(error),
    };
    let mut candidates = versions.committed(newest);
    candidates.retain(|version| versions.content(*version).len() as u64 == len);
    let count = candidates.len();
    noticed |= read_pages(&file, len, versions, &mut candidates)?;
    if candidates.is_empty() {
        return Err(format!("the bytes read match none of the {count} versions of that length"));
    }
    match problems(&pool) {
        Ok(problems) => Ok(noticed || !problems.is_empty()),
        Err(error) => unexpected(error),
    }
}

/// Reads a file in pages, and keeps only the versions that match all of them. Returns whether any
/// page is damaged.
fn read_pages(
    file: &File,
    len: u64,
    versions: &Versions,
    candidates: &mut Vec<u64>,
) -> Result<bool, String> {
    let mut damaged = false;
    for at in (0..len).step_by(4096) {
        let mut page = vec![0xa5; 4096.min(len - at) as usize];
        match file.read_at(&mut page, at) {
            Ok(n) if n == page.len() => candidates
                .retain(|version| versions.content(*version)[at as usize..].starts_with(&page)),
            Ok(n) => return Err(format!("{n} bytes are read at {at} of {len}")),
            Err(error) if is_report(&error) => damaged = true,
            Err(error) => return Err(format!("damage is reported as something else: {error}")),
        }
    }
    Ok(damaged)
}

/// Lists the superblocks of an image for messages: slot, txg, durable txg, and whether data was
/// synced.
fn ring(image: &[u8]) -> String {
    let slots = (0..SLOT_COUNT).filter_map(|slot| {
        let superblock = Superblock::decode(image.get(slot_offset(slot) as usize..)?, &GUID)?;
        let synced = if superblock.data_synced { "s" } else { "" };
        Some(format!("{slot}:{}({}){synced}", superblock.txg, superblock.durable_txg))
    });
    slots.collect::<Vec<_>>().join(" ")
}

/// Lists the last operations of a recording, for messages.
fn history(trace: &[Op]) -> String {
    let last = &trace[trace.len().saturating_sub(HISTORY_LEN)..];
    last.iter().map(Op::summary).collect::<Vec<_>>().join(", ")
}

/// A recorded run, which can be cut anywhere.
pub struct Replay {
    /// The durable content of the disk before the run.
    base: Vec<u8>,
    /// The operations.
    trace: Vec<Op>,
    /// The versions of the file after each commit; version 0 is that in `base`.
    versions: Versions,
    shape: Shape,
    /// The length at whose multiples writes are torn.
    sector: usize,
    forge: Option<Forge>,
    /// The base was left by a crash: it has older states with versions that are unknown here.
    is_second_life: bool,
    /// The images that were opened, with the version found in each.
    seen: HashMap<u128, u64>,
}

/// A moment of a recorded run.
struct Moment {
    disk: Disk,
    /// The newest version acknowledged as durable, and the newest that was begun.
    span: (u64, u64),
}

impl Replay {
    /// Records a workload.
    pub fn record(
        seed: u64,
        shape: Shape,
        sector: usize,
        mutant: Option<Box<dyn Fault>>,
    ) -> Result<(Replay, Tally), String> {
        let (base, content) = shape.base.image();
        let device = SimDevice::new(base.clone());
        let faults = Faults::default();
        let fault = mutant.unwrap_or_else(|| Box::new(faults.clone()));
        device.set_fault(Some(fault));
        let mut versions = Versions::new(&content);
        Run::new(&device, shape, Rng(seed), &mut versions, faults.clone())?
            .run()
            .map_err(|error| format!("without a crash: {error}"))?;
        let mut tally =
            Tally { faults: faults.counts(), work: device.measured(), ..Tally::default() };
        let trace = device.take_trace();
        trace.iter().for_each(|op| tally.note(op.fingerprint()));
        let replay = Replay {
            base,
            trace,
            versions,
            shape,
            sector,
            forge: None,
            is_second_life: false,
            seen: HashMap::new(),
        };
        Ok((replay, tally))
    }

    fn begin(&self) -> Moment {
        Moment { disk: Disk::new(self.base.clone()), span: (0, 0) }
    }

    fn step(&self, moment: &mut Moment, op: &Op) {
        moment.disk.apply_torn(op, self.sector);
        if let Op::Note(note) = op {
            let version = note & u64::from(u32::MAX);
            if note & DURABLE != 0 {
                moment.span.0 = version;
            } else if note & STARTED != 0 {
                moment.span.1 = version;
            }
        }
    }

    /// Cuts the run before every operation, several times each.
    pub fn crash_everywhere(
        &mut self,
        tally: &mut Tally,
        depth: u32,
        rng: &mut Rng,
    ) -> Result<(), String> {
        let (mut moment, mut factor) = (self.begin(), 1);
        let trace = std::mem::take(&mut self.trace);
        for (index, op) in trace.iter().enumerate() {
            self.step(&mut moment, op);
            match op {
                Op::Note(COMPACTING) => factor = COMPACTING_TRIES,
                Op::Note(COMPACTED) => factor = 1,
                _ => {}
            }
            if !matches!(op, Op::Note(_)) {
                self.crashes(&moment, tally, self.shape.tries * factor, depth, rng).map_err(
                    |error| {
                        let history = history(&trace[..=index]);
                        format!("crash after operation {index}: {error}; before it: {history}")
                    },
                )?;
            }
        }
        Ok(())
    }

    /// Cuts the run before operation `at`, several times.
    fn crash_at(
        &mut self,
        at: usize,
        tally: &mut Tally,
        depth: u32,
        rng: &mut Rng,
    ) -> Result<(), String> {
        let mut moment = self.begin();
        let trace = std::mem::take(&mut self.trace);
        trace[..at].iter().for_each(|op| self.step(&mut moment, op));
        self.crashes(&moment, tally, 2, depth, rng)
    }

    fn crashes(
        &mut self,
        moment: &Moment,
        tally: &mut Tally,
        tries: u64,
        depth: u32,
        rng: &mut Rng,
    ) -> Result<(), String> {
        for _ in 0..tries {
            let seed = rng.next();
            self.crash(moment, tally, depth, seed)
                .map_err(|error| format!("[crash {seed:#x}] {error}"))?;
        }
        Ok(())
    }

    /// Crashes and verifies, and may go on from there and crash again.
    fn crash(
        &mut self,
        moment: &Moment,
        tally: &mut Tally,
        depth: u32,
        seed: u64,
    ) -> Result<(), String> {
        let mut rng = Rng(seed);
        let image = moment.disk.crash(&mut rng, self.sector);
        let Some((version, device)) = self.judge(image, moment, tally, &mut rng)? else {
            return Ok(());
        };
        if depth == 0 || !rng.one_in(AGAIN_ONE_IN) {
            return Ok(());
        }
        // Recovery's writes are not durable either: the next crash begins with the image of this
        // one.
        tally.lives += 1;
        let base = moment.disk.crash(&mut Rng(seed), self.sector);
        let shape = Shape { commit_count: 3, fault_one_in: 0, ..self.shape };
        let mut versions = Versions::new(self.versions.content(version));
        let label =
            |error| format!("after recovery of version {version} from {}: {error}", ring(&base));
        Run::new(&device, shape, rng.fork(), &mut versions, Faults::default())
            .and_then(|mut run| run.run())
            .map_err(label)?;
        let trace = device.take_trace();
        let at = rng.below(trace.len() as u64 + 1) as usize;
        let mut again = Replay {
            base: base.clone(),
            trace,
            versions,
            shape,
            sector: self.sector,
            forge: None,
            is_second_life: true,
            seen: HashMap::new(),
        };
        again.crash_at(at, tally, depth - 1, &mut rng).map_err(label)
    }

    /// Opens the image after a crash. If the image is new and nothing can be wrong with it, returns
    /// the version found and the device afterwards.
    fn judge(
        &mut self,
        mut image: Vec<u8>,
        moment: &Moment,
        tally: &mut Tally,
        rng: &mut Rng,
    ) -> Result<Option<(u64, Arc<SimDevice>)>, String> {
        tally.states += 1;
        if let Some(forge) = self.forge {
            forge(&mut image);
        }
        let hash = twox_hash::XxHash3_128::oneshot(&image);
        tally.note(hash as u64);
        let (oldest, newest) = moment.span;
        if moment.disk.has_lied() {
            tally.after_lies += 1;
            tally.images += 1;
            let label = format!("after a lie, from {}", ring(&image));
            return verify_damaged(image, &self.versions, newest)
                .map(|_| None)
                .map_err(|error| format!("{label}: {error}"));
        }
        if let Some(version) = self.seen.get(&hash) {
            return match (oldest..=newest).contains(version) {
                true => Ok(None),
                false => Err(format!("version {version} is found, durable is {oldest}")),
            };
        }
        tally.images += 1;
        let device = SimDevice::new(image.clone());
        let (version, fell_back) =
            verify(&device, &self.versions, moment.span).map_err(|error| {
                format!("{error}; ring before {}, after {}", ring(&image), ring(&device.image()))
            })?;
        tally.fallbacks += u64::from(fell_back);
        self.seen.insert(hash, version);
        if !self.is_second_life && rng.one_in(FLIP_ONE_IN) {
            let bit = rng.below(image.len() as u64 * 8);
            image[bit as usize / 8] ^= 1 << (bit % 8);
            tally.flipped += 1;
            let noticed = verify_damaged(image, &self.versions, newest)
                .map_err(|error| format!("bit {bit} is flipped: {error}"))?;
            tally.flips_found += u64::from(noticed);
        }
        Ok(Some((version, device)))
    }

    /// Tries every subset of the unsynced changes, untorn, before each sync: these are all possible
    /// states without tears, apart from the order of overlapping changes.
    pub fn explore(&mut self, tally: &mut Tally) -> Result<(), String> {
        let mut moment = self.begin();
        let trace = std::mem::take(&mut self.trace);
        let mut rng = Rng(tally.fingerprint);
        for (index, op) in trace.iter().enumerate() {
            let count = moment.disk.pending_len();
            if matches!(op, Op::Sync) && count <= SUBSET_COUNT_MAX {
                for subset in 0..1 << count {
                    let image = moment.disk.keep(subset);
                    self.judge(image, &moment, tally, &mut rng).map_err(|error| {
                        format!("subset {subset:#b} of {count} before {index}: {error}")
                    })?;
                }
            }
            self.step(&mut moment, op);
        }
        Ok(())
    }
}

/// Records a workload and crashes it everywhere. Returns what was tried, or the first failure with
/// the means to reproduce it.
pub fn run(seed: u64, shape: Shape, sector: usize) -> Result<Tally, String> {
    run_broken(seed, shape, sector, None, None)
}

/// Records and crashes a workload on a device, or with an engine, that breaks a rule.
pub fn run_broken(
    seed: u64,
    shape: Shape,
    sector: usize,
    mutant: Option<Box<dyn Fault>>,
    forge: Option<Forge>,
) -> Result<Tally, String> {
    let label = format!("[{}: seed {seed}, sector {sector}]", shape.name);
    let done = Replay::record(seed, shape, sector, mutant).and_then(|(mut replay, mut tally)| {
        replay.forge = forge;
        replay.crash_everywhere(&mut tally, 2, &mut Rng(!seed))?;
        Ok(tally)
    });
    done.map_err(|error| format!("{label} {error}"))
}

/// Records a workload and tries every subset of its small commits.
pub fn explore(seed: u64, shape: Shape) -> Result<Tally, String> {
    let done = Replay::record(seed, shape, 512, None).and_then(|(mut replay, mut tally)| {
        replay.explore(&mut tally)?;
        Ok(tally)
    });
    done.map_err(|error| format!("[{}: seed {seed}, all subsets] {error}", shape.name))
}
