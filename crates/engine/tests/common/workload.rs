//! Random workloads on a simulated device, with a note in the recording for every commit.
//!
//! A [`Run`] has one to three processes that take turns on a pool, and a model: the bytes that the
//! file must hold. Faults are armed before some operations. After an operation that then fails, the
//! workload does what a careful user does: gives the transaction up, looks at what others see, and
//! goes on. It checks what the user may expect: the content is the one before or the one about to
//! be committed, `check` is clean, and a process whose sync has failed reports nothing as durable
//! until it has reopened the pool.

use std::collections::HashSet;
use std::sync::Arc;

use hardpack_engine::Error;
use hardpack_engine::pool::{Attributes, File, Kind as FileKind, Pool, Property, ROOT};
use hardpack_engine::store::{Durability, Patience};

use super::faults::{Faults, Kind};
use super::handle::Handle;
use super::shapes::{Base, Shape, repeated, trainable};
use super::sim_device::SimDevice;
use super::{
    Rng, first_difference, only_file, options, problems, read_all, rewriting, snapshotting,
};

/// A note of a commit that is about to be made, or with [`DURABLE`] one acknowledged as durable,
/// with the number of its version of the file.
pub const STARTED: u64 = 1 << 32;
/// See [`STARTED`].
pub const DURABLE: u64 = 2 << 32;
/// A note that a compaction begins, or with [`COMPACTED`] ends.
pub const COMPACTING: u64 = 4 << 32;
/// See [`COMPACTING`].
pub const COMPACTED: u64 = 8 << 32;

/// The versions of the file that commits made, or should have made, by number.
#[derive(Clone, Debug, Default)]
pub struct Versions {
    contents: Vec<Arc<[u8]>>,
    /// The versions of commits that failed and left nothing behind.
    aborted: HashSet<u64>,
}

impl Versions {
    /// Creates the list with one version, number 0.
    pub fn new(bytes: &[u8]) -> Versions {
        let mut versions = Versions::default();
        versions.add(bytes);
        versions
    }

    fn add(&mut self, bytes: &[u8]) -> u64 {
        self.contents.push(bytes.into());
        self.contents.len() as u64 - 1
    }

    /// Returns the bytes of a version.
    pub fn content(&self, version: u64) -> &[u8] {
        &self.contents[version as usize]
    }

    /// Returns all committed versions up to a number.
    pub fn committed(&self, newest: u64) -> Vec<u64> {
        (0..=newest).filter(|version| !self.aborted.contains(version)).collect()
    }

    /// Finds the version from `oldest` to `newest` with these bytes.
    pub fn find(&self, bytes: &[u8], oldest: u64, newest: u64) -> Result<u64, String> {
        let range = oldest as usize..=newest as usize;
        if let Some(index) = self.contents[range].iter().rposition(|version| **version == *bytes) {
            let version = oldest + index as u64;
            return match self.aborted.contains(&version) {
                true => Err(format!("the file is version {version}, which was not committed")),
                false => Ok(version),
            };
        }
        Err(match self.contents.iter().rposition(|version| **version == *bytes) {
            Some(other) => format!(
                "the file is version {other}; {oldest} is durable, {newest} the newest begun"
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
    handle: Arc<Handle>,
    pool: Pool,
    file: Arc<File>,
}

impl Process {
    fn open(
        device: &Arc<SimDevice>,
        shape: &Shape,
        dirty_len_max: usize,
    ) -> Result<Process, Error> {
        let handle = device.handle();
        let pool = Pool::open(handle.clone(), options(dirty_len_max))?;
        pool.store().lower_anchor_count_max(shape.anchor_count_max);
        let file = only_file(&pool)?;
        Ok(Process { handle, pool, file })
    }
}

fn text(error: Error) -> String {
    error.to_string()
}

/// Replaces the file of a process's pool, durably.
fn import(process: &Process, bytes: &[u8]) -> hardpack_engine::Result<()> {
    process.pool.refresh()?;
    let listed = process.pool.list()?;
    let entry = listed.into_iter().find(|entry| entry.file == process.file.id());
    let name = entry.ok_or_else(|| Error::Invalid("the file is gone".into()))?.name;
    let mut import = process.pool.import(0);
    let like = Attributes::new(FileKind::File, ROOT);
    import.file(ROOT, &name, &like, &[], bytes.to_vec())?;
    match import.finish()?.refused.pop() {
        Some(refused) => Err(Error::Invalid(refused.why)),
        None => Ok(()),
    }
}

/// A workload in progress.
pub struct Run<'a> {
    device: &'a Arc<SimDevice>,
    shape: Shape,
    rng: Rng,
    versions: &'a mut Versions,
    faults: Faults,
    processes: Vec<Process>,
    /// The content of the file, and its version.
    bytes: Vec<u8>,
    version: u64,
    /// The number of operations until the armed fault ends: a device stays full for some.
    lasts_for: u64,
}

impl<'a> Run<'a> {
    /// Opens the pool of a device once for each process of the shape.
    pub fn new(
        device: &'a Arc<SimDevice>,
        shape: Shape,
        mut rng: Rng,
        versions: &'a mut Versions,
        faults: Faults,
    ) -> Result<Run<'a>, String> {
        let processes = (0..shape.process_count)
            .map(|_| Process::open(device, &shape, rng.pick(shape.dirty_lens)).map_err(text))
            .collect::<Result<Vec<_>, _>>()?;
        let bytes = read_all(&processes[0].file).map_err(text)?;
        let version = versions.contents.len() as u64 - 1;
        if bytes != versions.content(version) {
            return Err("the workload does not begin with the newest version".into());
        }
        let lasts_for = 0;
        Ok(Run { device, shape, rng, versions, faults, processes, bytes, version, lasts_for })
    }

    /// Runs the workload to its end.
    pub fn run(&mut self) -> Result<(), String> {
        if self.shape.dedup {
            let process = &self.processes[0];
            process.pool.set_property(ROOT, Property::Dedup, "on").map_err(text)?;
            if self.shape.import_one_in > 0 {
                process.pool.set_property(ROOT, Property::Chunking, "cdc").map_err(text)?;
            }
            self.note_durable(0)?;
        }
        for _ in 0..self.shape.commit_count {
            let index = self.choose();
            let imports = self.shape.import_one_in;
            match imports > 0 && self.rng.one_in(imports) {
                true => self.import(index)?,
                false => self.commit(index)?,
            }
            if self.shape.dedup {
                self.deduplicate()?;
            }
            if self.shape.compact_one_in > 0 && self.rng.one_in(self.shape.compact_one_in) {
                let index = self.choose();
                self.device.note(COMPACTING);
                let (mut rng, device) = (self.rng.fork(), Arc::clone(self.device));
                self.attempt(index, |process| compact(process, &device, &mut rng))?;
                self.device.note(COMPACTED);
            }
            if self.shape.rewrite_one_in > 0 && self.rng.one_in(self.shape.rewrite_one_in) {
                let index = self.choose();
                let (mut rng, device) = (self.rng.fork(), Arc::clone(self.device));
                self.attempt(index, |process| {
                    rewriting::some_steps(&process.pool, &device, &mut rng)
                })?;
            }
            if self.shape.snapshot_one_in > 0 && self.rng.one_in(self.shape.snapshot_one_in) {
                self.snapshots()?;
            }
            self.something_else()?;
        }
        Ok(())
    }

    /// Creates, destroys, or rolls back to a snapshot.
    fn snapshots(&mut self) -> Result<(), String> {
        let index = self.choose();
        // With failing operations, content that comes back could be mistaken for that of a failed
        // one.
        if self.shape.fault_one_in == 0 && self.rng.one_in(4) {
            return self.roll_back(index);
        }
        let mut rng = self.rng.fork();
        let bytes = self.bytes.clone();
        let mut is_durable = false;
        self.attempt(index, |process| {
            is_durable = snapshotting::some_step(&process.pool, &mut rng, &bytes).map_err(text)?;
            Ok(())
        })?;
        if is_durable { self.note_durable(index) } else { Ok(()) }
    }

    fn roll_back(&mut self, index: usize) -> Result<(), String> {
        let mut rng = self.rng.fork();
        let pool = &self.processes[index].pool;
        let Some(snapshot) = snapshotting::any(pool, &mut rng).map_err(text)? else {
            return Ok(());
        };
        let content = snapshotting::content(pool, &snapshot).map_err(text)?;
        let version = self.versions.add(&content);
        self.device.note(STARTED | version);
        pool.rollback(snapshot.scope, &snapshot.name).map_err(text)?;
        (self.bytes, self.version) = (content, version);
        self.note_durable(index)
    }

    /// Works on the dedup index, which is a hint and may disappear at any time.
    fn deduplicate(&mut self) -> Result<(), String> {
        let index = self.choose();
        let shared = self.processes[index].pool.state().stats().shared.records;
        self.device.measure(|sums| sums.shared += shared);
        let what = self.rng.below(12);
        let dedup = self.rng.pick(&["on", "off", "verify"]);
        self.attempt(index, |process| {
            let (pool, patience) = (&process.pool, Patience::None);
            match what {
                0 => pool.drop_index(patience),
                1 | 2 => pool.rebuild_index(patience, &mut |_| true),
                3 | 4 => pool.prune_index(patience, &mut |_| true),
                5 => pool.set_property(process.file.id(), Property::Dedup, dedup),
                _ => Ok(()),
            }
            .map_err(text)
        })
    }

    fn choose(&mut self) -> usize {
        self.rng.below(self.processes.len() as u64) as usize
    }

    /// Arms a fault before some operations.
    fn arm(&mut self) {
        if self.shape.fault_one_in == 0 {
            return;
        }
        if self.lasts_for > 0 {
            self.lasts_for -= 1;
            if self.lasts_for > 0 {
                return;
            }
            let _ = self.faults.disarm();
        }
        if !self.rng.one_in(self.shape.fault_one_in) {
            return;
        }
        let kind = self.rng.pick(self.shape.faults);
        // The few syncs and changes of the length must not be missed.
        let countdown = match kind {
            Kind::SyncError | Kind::Lie | Kind::LengthError | Kind::NoSpace => 1,
            Kind::WriteError | Kind::TornWrite => 1 + self.rng.below(3),
            Kind::ReadError | Kind::ShortRead | Kind::Flip => 1 + self.rng.below(6),
        };
        self.lasts_for = match kind {
            Kind::NoSpace => self.rng.pick(&[1, 2, 4, 30]),
            // The length changes so rarely.
            Kind::LengthError => 12,
            _ => 0,
        };
        let len = self.device.image_len() + self.rng.pick(&[0, 0, 4096, 65_536]);
        self.faults.arm(kind, countdown, len, self.rng.fork());
    }

    /// Ends the fault after an operation. A full device stays full for some more.
    fn disarm(&mut self) {
        if self.lasts_for == 0 {
            let _ = self.faults.disarm();
        }
    }

    /// Whether a failure is acceptable: a fault was injected, or a sync had failed before.
    fn is_excused(&self, injected_before: u64, index: usize) -> bool {
        self.faults.total() > injected_before
            || self.lasts_for > 0
            || self.processes[index].handle.has_failed()
    }

    /// Runs an operation that does not change the content.
    fn attempt(
        &mut self,
        index: usize,
        operation: impl FnOnce(&Process) -> Result<(), String>,
    ) -> Result<(), String> {
        let before = self.faults.total();
        self.arm();
        let done = operation(&self.processes[index]);
        self.disarm();
        match done {
            Ok(()) => Ok(()),
            Err(_) if self.is_excused(before, index) => self.after_failure(index, None),
            Err(error) => Err(error),
        }
    }

    /// Replaces the file by an import of it, in which most bytes have moved.
    fn import(&mut self, index: usize) -> Result<(), String> {
        let before = self.faults.total();
        let mut next = self.bytes.clone();
        let at = self.rng.below(next.len() as u64 + 1) as usize;
        let new = match self.rng.one_in(3) && next.len() as u64 <= self.shape.file_len {
            true => repeated(&mut self.rng),
            false => Vec::new(),
        };
        let len = 1 + self.rng.below(200) as usize;
        next.splice(at..at, [self.rng.text(len), new].concat());
        let version = self.versions.add(&next);
        self.device.note(STARTED | version);
        self.arm();
        let done = import(&self.processes[index], &next);
        self.disarm();
        match done {
            Ok(()) => {
                (self.bytes, self.version) = (next, version);
                self.note_durable(index)
            }
            Err(_) if self.is_excused(before, index) => {
                self.after_failure(index, Some((version, next)))
            }
            Err(error) => Err(text(error)),
        }
    }

    /// Runs one transaction.
    fn commit(&mut self, index: usize) -> Result<(), String> {
        let before = self.faults.total();
        self.arm();
        let process = &self.processes[index];
        let mut next = self.bytes.clone();
        let changed = process.pool.refresh().and_then(|_| process.file.len()).and_then(|len| {
            if len != next.len() as u64 {
                return Err(Error::Invalid("a process misses what another committed".into()));
            }
            if self.shape.base == Base::Untrained && next.is_empty() {
                next = trainable(&mut self.rng);
                process.file.write_at(&next, 0)?;
            }
            change(&process.file, &mut self.rng, self.shape, &mut next)
        });
        if let Err(error) = changed {
            self.disarm();
            return match self.is_excused(before, index) && !matches!(error, Error::Invalid(_)) {
                true => self.after_failure(index, None),
                false => Err(text(error)),
            };
        }
        let version = self.versions.add(&next);
        self.device.note(STARTED | version);
        let durable = self.rng.one_in(self.shape.durable_one_in);
        let durability = if durable { Durability::Durable } else { Durability::Visible };
        let done = process.file.commit(durability);
        self.disarm();
        match done {
            Ok(()) => {
                (self.bytes, self.version) = (next, version);
                if durable {
                    self.note_durable(index)?;
                }
                Ok(())
            }
            Err(_) if self.is_excused(before, index) => {
                self.after_failure(index, Some((version, next)))
            }
            Err(error) => Err(text(error)),
        }
    }

    /// Records that a process was told that the visible state is durable.
    fn note_durable(&mut self, index: usize) -> Result<(), String> {
        if self.processes[index].handle.has_failed() {
            return Err("a commit is reported as durable after a failed sync".into());
        }
        self.device.note(DURABLE | self.version);
        Ok(())
    }

    /// Examines the state after a failed operation, and goes on as a user would.
    fn after_failure(&mut self, index: usize, tried: Option<(u64, Vec<u8>)>) -> Result<(), String> {
        let lasts_for = std::mem::take(&mut self.lasts_for);
        let paused = self.faults.disarm();
        self.processes[index].file.discard();
        let fresh = Process::open(self.device, &self.shape, 1 << 20)
            .map_err(|error| format!("after a failure, another process: {error}"))?;
        if let Some(txg) = fresh.pool.store().recovered_from() {
            return Err(format!("after a failure, {txg} is visible, but not whole"));
        }
        let found = read_all(&fresh.file).map_err(text)?;
        match tried {
            Some((version, next)) if found == next => {
                (self.bytes, self.version) = (next, version);
            }
            Some((version, _)) => {
                self.versions.aborted.insert(version);
            }
            None => {}
        }
        if found != self.bytes {
            let difference = first_difference(&found, &self.bytes);
            return Err(format!("after a failure the file differs: {difference}"));
        }
        if let Some(problem) = problems(&fresh.pool).map_err(text)?.first() {
            return Err(format!("after a failure: {problem}"));
        }
        let process = &self.processes[index];
        process.pool.refresh().map_err(text)?;
        if read_all(&process.file).map_err(text)? != self.bytes {
            return Err("after a failure its process reads other content than the others".into());
        }
        if lasts_for > 0 && self.rng.one_in(2) {
            // There is still no space.
            self.lasts_for = lasts_for;
            self.faults.rearm(paused);
            return Ok(());
        }
        match process.file.commit(Durability::Durable) {
            Ok(()) => self.note_durable(index),
            Err(Error::FailStop | Error::Io { action: "sync", .. }) => self.replace_stopped(index),
            Err(error) => Err(format!("after a failure the next commit fails too: {error}")),
        }
    }

    /// Checks that a stopped process keeps refusing, and replaces it with a new one, which must
    /// not.
    fn replace_stopped(&mut self, index: usize) -> Result<(), String> {
        let process = &self.processes[index];
        process.file.write_at(b"refused", 3).map_err(text)?;
        for durability in [Durability::Visible, Durability::Durable] {
            match process.file.commit(durability) {
                Err(Error::FailStop | Error::Invalid(_)) => {}
                other => return Err(format!("a process that has stopped commits: {other:?}")),
            }
        }
        process.file.discard();
        let dirty_len_max = self.rng.pick(self.shape.dirty_lens);
        self.processes[index] =
            Process::open(self.device, &self.shape, dirty_len_max).map_err(text)?;
        if self.rng.one_in(2) {
            // There is nothing new, but the existing state must be durable now.
            match self.processes[index].file.commit(Durability::Durable) {
                Ok(()) => return self.note_durable(index),
                Err(_) if self.processes[index].handle.has_failed() => {}
                Err(error) => {
                    return Err(format!("after reopening, the next commit fails: {error}"));
                }
            }
        }
        Ok(())
    }

    /// Sometimes changes a property, ends a process, cleanly or not, or reads.
    fn something_else(&mut self) -> Result<(), String> {
        let index = self.choose();
        let property = match self.rng.below(12) {
            0 => (Property::Compression, self.rng.pick(self.shape.compressions)),
            1 => (Property::RecordSize, self.rng.pick(&["4K", "16K", "64K"])),
            2 => (Property::Checksum, self.rng.pick(&["xxh3", "blake3", "sha256"])),
            3 | 4 => return self.reopen(index),
            5 | 6 => return self.read(index),
            _ => return Ok(()),
        };
        let before = self.faults.total();
        self.arm();
        let process = &self.processes[index];
        let done = process.pool.set_property(process.file.id(), property.0, property.1);
        self.disarm();
        match done {
            Ok(()) => self.note_durable(index),
            Err(_) if self.is_excused(before, index) => self.after_failure(index, None),
            Err(error) => Err(text(error)),
        }
    }

    /// Ends a process and opens the pool in another, which must never see an older state, whatever
    /// happens.
    fn reopen(&mut self, index: usize) -> Result<(), String> {
        if self.rng.one_in(2) {
            self.attempt(index, |process| process.pool.close().map_err(text))?;
        }
        let before = self.faults.total();
        self.arm();
        let dirty_len_max = self.rng.pick(self.shape.dirty_lens);
        let opened = Process::open(self.device, &self.shape, dirty_len_max).and_then(|process| {
            let bytes = read_all(&process.file)?;
            Ok((process, bytes))
        });
        self.disarm();
        let injected = self.faults.total() > before;
        let (process, bytes) = match opened {
            Err(_) if injected || self.lasts_for > 0 => {
                let process =
                    Process::open(self.device, &self.shape, dirty_len_max).map_err(text)?;
                let bytes = read_all(&process.file).map_err(text)?;
                (process, bytes)
            }
            opened => opened.map_err(text)?,
        };
        self.processes[index] = process;
        if bytes != self.bytes {
            let difference = first_difference(&bytes, &self.bytes);
            return Err(format!("after reopening, the file differs: {difference}"));
        }
        Ok(())
    }

    /// Reads: returns the right bytes, or an error and then the right bytes.
    fn read(&mut self, index: usize) -> Result<(), String> {
        let before = self.faults.total();
        self.arm();
        let process = &self.processes[index];
        let read = process.pool.refresh().and_then(|_| read_all(&process.file));
        self.disarm();
        let bytes = match read {
            Err(_) if self.faults.total() > before => {
                let process = &self.processes[index];
                process.pool.refresh().and_then(|_| read_all(&process.file)).map_err(text)?
            }
            read => read.map_err(text)?,
        };
        match bytes == self.bytes {
            true => Ok(()),
            false => Err("a process reads other bytes than were committed".into()),
        }
    }
}

/// Compacts the pool, or begins to.
fn compact(process: &Process, device: &Arc<SimDevice>, rng: &mut Rng) -> Result<(), String> {
    let mut compaction = process.pool.compact();
    let mut left = rng.pick(&[3, 9, u64::MAX]);
    while left > 0 && compaction.step().map_err(text)? {
        left -= 1;
    }
    let report = compaction.report();
    let bytes = report.before_bytes.saturating_sub(report.after_bytes);
    device.measure(|sums| sums.compacted += bytes);
    Ok(())
}

/// Writes mostly content that is there already.
fn write_repeated(
    file: &File,
    rng: &mut Rng,
    shape: Shape,
    bytes: &mut Vec<u8>,
) -> Result<(), Error> {
    let new: Vec<u8> = (0..rng.pick(&[1, 2, 5])).flat_map(|_| repeated(rng)).collect();
    let end = (bytes.len() as u64).min(shape.file_len.saturating_sub(new.len() as u64));
    let at = (rng.below(end + 1) & !0x3fff) as usize;
    file.write_at(&new, at as u64)?;
    bytes.resize(bytes.len().max(at + new.len()), 0);
    bytes[at..at + new.len()].copy_from_slice(&new);
    Ok(())
}

/// Changes the file by small updates, bulk writes, holes and truncations.
fn change(file: &File, rng: &mut Rng, shape: Shape, bytes: &mut Vec<u8>) -> Result<(), Error> {
    for _ in 0..rng.pick(&[1, 1, 2, 4]) {
        if shape.rewrite_one_in > 0 && rng.one_in(2) {
            rewriting::edit(file, rng, bytes)?;
            continue;
        }
        if shape.dedup && rng.one_in(2) {
            write_repeated(file, rng, shape, bytes)?;
            continue;
        }
        let len = match rng.below(8) {
            0 => shape.file_len as usize / 2,
            1 => 1 + rng.below(200) as usize,
            2 => 20_000,
            _ => 4096,
        };
        let at = rng.below(shape.file_len.saturating_sub(len as u64)) & !511;
        // Usually not beyond the end; otherwise a hole is left.
        let limit = if rng.one_in(8) { u64::MAX } else { bytes.len() as u64 };
        let at = at.min(limit) as usize;
        let new = rng.content(len);
        file.write_at(&new, at as u64)?;
        if bytes.len() < at + len {
            bytes.resize(at + len, 0);
        }
        bytes[at..at + len].copy_from_slice(&new);
    }
    if rng.one_in(10) {
        let beyond = rng.pick(&[0, 9000]);
        let len = rng.below(bytes.len() as u64 + 1 + beyond);
        file.set_len(len)?;
        bytes.resize(len as usize, 0);
    }
    // A number at the very start makes all versions different.
    let number = rng.next().to_le_bytes();
    file.write_at(&number, 0)?;
    if bytes.len() < 8 {
        bytes.resize(8, 0);
    }
    bytes[..8].copy_from_slice(&number);
    Ok(())
}
