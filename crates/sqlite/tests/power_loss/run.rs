//! Records a workload, cuts it at every write and sync, and goes on from some of the states left.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};

use super::disk::{Class, Disk, Image, Note, Op, class_of};
use super::model::{Model, Versions};
use super::recorder;
use super::verify::{Expected, Span, materialise};
use super::workload::{Session, Shape};
use crate::common::{self, Random};

/// One crash in this many is followed by a second life, which crashes too.
const SECOND_LIFE_ONE_IN: u64 = 40;
const SECOND_LIFE_STEPS: u64 = 3;
const SECOND_LIFE_CRASHES: u64 = 12;
const SECTORS: [usize; 2] = [512, 4096];
/// The magic that begins the header of a journal (SQLite's file format, section 3), and the length
/// of the magic and the number of pages.
pub const JOURNAL_MAGIC: [u8; 8] = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
const JOURNAL_COUNT_LEN: usize = 12;

/// Counts of the work done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Workloads.
    pub seeds: u64,
    /// Crashes, each verified.
    pub states: u64,
    /// Crashes that left a state behind which no other crash of the same workload left.
    pub distinct: u64,
    /// Transactions of the workloads.
    pub transactions: u64,
    /// Second lives.
    pub lives: u64,
}

/// A directory in memory. The state after a crash is written out where the workload ran, since
/// journals name each other by their paths.
pub struct Scratch {
    _temporary: tempfile::TempDir,
    pub directory: PathBuf,
}

impl Scratch {
    pub fn new() -> Scratch {
        let temporary = match tempfile::tempdir_in("/dev/shm") {
            Ok(temporary) => temporary,
            Err(_) => tempfile::tempdir().unwrap(),
        };
        let directory = temporary.path().canonicalize().unwrap();
        Scratch { _temporary: temporary, directory }
    }
}

/// A recorded workload.
pub struct Recording {
    pub shape: Shape,
    pub base: Image,
    pub trace: Vec<Op>,
    pub versions: Versions,
    /// The last transaction in `base`, and the number of transactions that followed.
    pub first: u64,
    pub transactions: u64,
}

/// The simulated time of day, and what each question for it takes: sometimes more and sometimes
/// less than the step in which the times of files advance.
static CLOCK_NS: AtomicI64 = AtomicI64::new(0);
const CLOCK_START_NS: i64 = 1_700_000_000_000_000_000;
const CLOCK_STEP_NS: i64 = 4_000_000;

/// Sets the time of day to the beginning of the simulation, from where each question advances it.
fn fix_clock() {
    CLOCK_NS.store(CLOCK_START_NS, Ordering::Relaxed);
    hardpack::simulate_clock(|| CLOCK_NS.fetch_add(CLOCK_STEP_NS, Ordering::Relaxed));
}

/// Runs and records a workload, and compares the recording with the files.
pub fn record(shape: Shape, seed: u64, directory: &Path) -> Result<Recording, String> {
    materialise(directory, &Image::new());
    fix_clock();
    recorder::fix_randomness(seed);
    let mut session = Session::new(directory, shape, Model::new(shape.pools), Random(seed));
    if shape.one_pool {
        common::make_pool(&shape.pool(directory, 0), &[]);
    }
    if !shape.creation {
        session.open().map_err(|error| error.to_string())?;
        session.steps(shape.earlier)?;
        session.close();
    }
    let first = session.model.newest;
    recorder::fix_randomness(seed);
    let base = recorder::start(directory);
    let done = session.open().map_err(|error| error.to_string());
    let done = done.and_then(|()| session.steps(shape.steps));
    session.close();
    let trace = recorder::finish();
    done?;
    let transactions = session.model.newest - first;
    let versions = session.model.versions;
    let recording = Recording { shape, base, trace, versions, first, transactions };
    recording.assert_complete(directory)?;
    Ok(recording)
}

/// Goes on from the state after a crash, and records that.
pub fn record_second_life(
    shape: Shape,
    image: &Image,
    found: [u64; 2],
    directory: &Path,
    random: &mut Random,
) -> Result<Recording, String> {
    materialise(directory, image);
    let base = recorder::start(directory);
    let mut run = || {
        let mut sources = Vec::new();
        for index in 0..shape.pools {
            sources.push(shape.open_one(directory, index).map_err(|error| error.to_string())?);
        }
        let model = Model::copy_of(&sources).map_err(|error| error.to_string())?;
        drop(sources);
        let first = model.newest;
        if (0..shape.pools).any(|index| model.versions.number(index, first) != found[index]) {
            return Err(format!("after reopening it is transaction {first}, not {found:?}"));
        }
        let mut session = Session::new(directory, shape, model, Random(random.next()));
        session.open().map_err(|error| error.to_string())?;
        session.steps(SECOND_LIFE_STEPS)?;
        session.close();
        let transactions = session.model.newest - first;
        Ok((first, transactions, session.model.versions))
    };
    let done = run();
    let trace = recorder::finish();
    let (first, transactions, versions) = done?;
    let recording = Recording { shape, base, trace, versions, first, transactions };
    recording.assert_complete(directory)?;
    Ok(recording)
}

impl Recording {
    /// Checks that nothing escapes the recorder: replaying the recording yields the very same
    /// files. It also checks that no pool changes before the deletion of its log or journal is
    /// durable, since the log or journal would undo the change if it came back, and that no journal
    /// counts before all of it is durable.
    fn assert_complete(&self, directory: &Path) -> Result<(), String> {
        let mut disk = Disk::new(&self.base);
        let mut deleted = None;
        for (index, op) in self.trace.iter().enumerate() {
            if makes_journal_count(&disk, op) && disk.has_unsynced(op, JOURNAL_COUNT_LEN) {
                return Err(format!("operation {index}: the journal counts before it is durable"));
            }
            disk.apply(op);
            match op {
                Op::Unlink(name) if matches!(class_of(name), Class::Journal | Class::Log(_)) => {
                    deleted = Some(name);
                }
                Op::SyncDirectory => deleted = None,
                Op::Write(file, ..) if matches!(disk.class(*file), Class::Pool(_)) => {
                    if let Some(name) = deleted {
                        return Err(format!("operation {index}: {name} may come back"));
                    }
                }
                _ => {}
            }
        }
        let (recorded, real) = (disk.all_kept(), recorder::read_image(directory));
        if recorded == real {
            return Ok(());
        }
        let lens = |image: &Image| -> Vec<_> {
            image.iter().map(|(name, bytes)| (name.clone(), bytes.len())).collect()
        };
        Err(format!("recorded {:?}, but found {:?}", lens(&recorded), lens(&real)))
    }

    /// Returns the number of journals that came to count after SQLite had requested a sync of them
    /// in memory.
    pub fn count_moved_journals(&self) -> u64 {
        let is_one =
            |op: &&Op| matches!(op, Op::Write(_, 0, bytes) if **bytes == JOURNAL_MAGIC[..]);
        self.trace.iter().filter(is_one).count() as u64
    }

    /// Returns the number of deleted files with this suffix.
    pub fn count_unlinks(&self, suffix: &str) -> u64 {
        let is_one = |op: &&Op| matches!(op, Op::Unlink(name) if name.ends_with(suffix));
        self.trace.iter().filter(is_one).count() as u64
    }

    /// Goes on from the moment before the first super-journal is deleted, when all pools are
    /// written and no transaction across them is committed.
    pub fn second_life_within_a_commit(
        &self,
        scratch: &Scratch,
    ) -> Result<Option<Recording>, String> {
        let is_end =
            |op: &Op| matches!(op, Op::Unlink(name) if class_of(name) == Class::SuperJournal);
        let Some(at) = self.trace.iter().position(is_end) else { return Ok(None) };
        let (mut disk, mut span) = (Disk::new(&self.base), Span::at(self.first));
        for op in &self.trace[..at] {
            disk.apply(op);
            span.apply(&disk, op);
        }
        let (image, mut random) = (disk.all_kept(), Random(at as u64));
        materialise(&scratch.directory, &image);
        let expected = Expected { shape: self.shape, versions: &self.versions, span };
        let found = expected.verify(&scratch.directory, &mut random)?;
        record_second_life(self.shape, &image, found, &scratch.directory, &mut random).map(Some)
    }

    /// Cuts the run at every operation, several times each.
    pub fn crash_everywhere(
        &self,
        tries: u64,
        scratch: &Scratch,
        random: &mut Random,
    ) -> Result<Counts, String> {
        let mut counts = Counts { seeds: 1, transactions: self.transactions, ..Counts::default() };
        let mut known = HashMap::new();
        let (mut disk, mut span) = (Disk::new(&self.base), Span::at(self.first));
        for (index, op) in self.trace.iter().enumerate() {
            disk.apply(op);
            span.apply(&disk, op);
            if matches!(op, Op::Note(Note::Begin(_) | Note::Elsewhere(_))) {
                continue;
            }
            for _ in 0..tries {
                let seed = random.next();
                self.crash(&disk, span, seed, Some(&mut known), scratch, &mut counts).map_err(
                    |error| {
                        format!(
                            "cut after operation {index} ({}), crash {seed:#x}: {error}",
                            name(op)
                        )
                    },
                )?;
            }
        }
        Ok(counts)
    }

    /// Crashes once. With `known`, images that were seen before are not opened again, and some runs
    /// go on.
    fn crash(
        &self,
        disk: &Disk,
        span: Span,
        seed: u64,
        known: Option<&mut HashMap<u64, [u64; 2]>>,
        scratch: &Scratch,
        counts: &mut Counts,
    ) -> Result<(), String> {
        let mut random = Random(seed);
        let sector = SECTORS[random.below(2) as usize];
        let image = disk.crash(&mut random, sector);
        counts.states += 1;
        let expected = Expected { shape: self.shape, versions: &self.versions, span };
        let mut hasher = DefaultHasher::new();
        image.hash(&mut hasher);
        let hash = hasher.finish();
        if let Some(found) = known.as_ref().and_then(|known| known.get(&hash)) {
            return expected.judge(*found);
        }
        counts.distinct += 1;
        materialise(&scratch.directory, &image);
        let found = expected.verify(&scratch.directory, &mut random)?;
        let Some(known) = known else { return Ok(()) };
        known.insert(hash, found);
        if self.shape.may_damage() || random.below(SECOND_LIFE_ONE_IN) != 0 {
            return Ok(());
        }
        counts.lives += 1;
        let shape = Shape { creation: false, ..self.shape };
        let again = record_second_life(shape, &image, found, &scratch.directory, &mut random)
            .map_err(|error| format!("second life: {error}"))?;
        again
            .crash_somewhere(SECOND_LIFE_CRASHES, scratch, &mut random, counts)
            .map_err(|error| format!("second life: {error}"))
    }

    /// Cuts the run at some operations.
    pub fn crash_somewhere(
        &self,
        times: u64,
        scratch: &Scratch,
        random: &mut Random,
        counts: &mut Counts,
    ) -> Result<(), String> {
        for _ in 0..times {
            let at = random.below(self.trace.len() as u64 + 1) as usize;
            let (mut disk, mut span) = (Disk::new(&self.base), Span::at(self.first));
            for op in &self.trace[..at] {
                disk.apply(op);
                span.apply(&disk, op);
            }
            let seed = random.next();
            self.crash(&disk, span, seed, None, scratch, counts)
                .map_err(|error| format!("cut before operation {at}, crash {seed:#x}: {error}"))?;
        }
        Ok(())
    }
}

/// Whether this write puts the number of pages that count, or the magic without which none do, into
/// the header of a journal. Without syncs SQLite derives that number from the length.
fn makes_journal_count(disk: &Disk, op: &Op) -> bool {
    let Op::Write(file, offset, bytes) = op else { return false };
    let count = bytes.get(JOURNAL_MAGIC.len()..JOURNAL_COUNT_LEN);
    disk.class(*file) == Class::Journal
        && bytes.starts_with(&JOURNAL_MAGIC)
        && (*offset == 0 || bytes.len() == JOURNAL_COUNT_LEN)
        && count != Some(&[0xff; 4])
}

pub fn name(op: &Op) -> String {
    match op {
        Op::Write(file, offset, bytes) => format!("Write({file}, {offset}, {} bytes)", bytes.len()),
        op => format!("{op:?}"),
    }
}

/// Runs one workload from its seed, with all its crashes. `mutate` may change the recording, like a
/// disk that breaks its promises.
pub fn run(
    shape: Shape,
    seed: u64,
    tries: u64,
    scratch: &Scratch,
    mutate: &dyn Fn(&mut Recording),
) -> Result<Counts, String> {
    let run = || {
        let mut recording = record(shape, seed, &scratch.directory)?;
        mutate(&mut recording);
        recording.crash_everywhere(tries, scratch, &mut Random(!seed))
    };
    run().map_err(|error| format!("[workload '{}', seed {seed}] {error}", shape.name))
}
