//! What the processes of a schedule have written, and what a loss of power at any moment may leave
//! of it.
//!
//! * What was written to a file before its last sync is there, whoever synced it.
//! * Of what was written since, any part is there, torn at sectors. Changes of a pool survive in
//!   any order, those of other files in the order in which they were made.
//! * A failed sync may have made some of it durable, and no later sync does that for the rest.
//!   Every open file learns of it once, from its own next sync, unless it was opened later.
//! * Names appear and vanish at once. Shared memory does not survive.

use std::collections::BTreeMap;
use std::path::Path;

use super::random::Random;
use super::world::Worker;

const SECTOR_LEN: usize = 512;

/// The files of a directory, by name.
pub type Image = BTreeMap<String, Vec<u8>>;

/// An operation on a file.
#[derive(Clone, Debug)]
pub enum Op {
    Create(String),
    Unlink(String),
    Write(String, u64, Vec<u8>),
    SetLen(String, u64),
    Punch(String, u64, u64),
    Sync(String),
    FailedSync(String),
    /// A worker reported a line.
    Said(String),
}

/// Records what processes do to the files of a directory.
#[derive(Debug, Default)]
pub struct Medium {
    pub base: Image,
    pub ops: Vec<Op>,
    /// The number of syncs of a pool that each worker has made.
    pub syncs: BTreeMap<Worker, u64>,
    /// How often a sync of each file has failed.
    failures: BTreeMap<String, u64>,
    /// How many of them each open file has been told of.
    told: BTreeMap<(Worker, u64), u64>,
    /// The number of syncs of pools until one fails.
    pub fails_in: Option<u64>,
}

impl Medium {
    /// Begins with the files of a directory, all of them durable.
    pub fn of(directory: &Path) -> Medium {
        Medium { base: read_image(directory), ..Medium::default() }
    }

    /// Notes that a worker has opened a file.
    pub fn opened(&mut self, worker: Worker, fd: u64, name: &str, is_new: bool) {
        self.told.insert((worker, fd), self.failures.get(name).copied().unwrap_or_default());
        if is_new {
            self.ops.push(Op::Create(name.into()));
        }
    }

    /// Whether a sync fails that a worker is about to make.
    pub fn sync_fails(&mut self, worker: Worker, fd: u64, name: &str) -> bool {
        if name.ends_with(".hpk") {
            *self.syncs.entry(worker).or_default() += 1;
            if let Some(left) = self.fails_in.take() {
                match left {
                    0 => {
                        *self.failures.entry(name.into()).or_default() += 1;
                        self.ops.push(Op::FailedSync(name.into()));
                    }
                    left => self.fails_in = Some(left - 1),
                }
            }
        }
        self.tells(worker, fd, name)
    }

    /// Whether a worker learns now that a sync has failed, of itself or of another one.
    pub fn tells(&mut self, worker: Worker, fd: u64, name: &str) -> bool {
        let failures = self.failures.get(name).copied().unwrap_or_default();
        std::mem::replace(self.told.entry((worker, fd)).or_default(), failures) < failures
    }
}

/// Returns the files of a directory, except shared memory.
pub fn read_image(directory: &Path) -> Image {
    let entries = std::fs::read_dir(directory).unwrap().map(Result::unwrap);
    let files = entries.filter(|entry| entry.path().is_file());
    let named = files.map(|entry| (entry.file_name().into_string().unwrap(), entry.path()));
    let kept = named.filter(|(name, _)| !name.ends_with("-shm"));
    kept.map(|(name, path)| (name, std::fs::read(path).unwrap())).collect()
}

/// The fate of a write that is not durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// It may survive.
    Free,
    /// It may survive, but no sync changes that any more.
    Doubtful,
    /// It survives; it stays listed only because doubtful ones come before it.
    Certain,
}

/// The files while the recording is replayed.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    files: BTreeMap<String, File>,
}

#[derive(Clone, Debug, Default)]
struct File {
    durable: Vec<u8>,
    pending: Vec<(Op, Fate)>,
}

impl Disk {
    pub fn new(image: &Image) -> Disk {
        let file = |bytes: &Vec<u8>| File { durable: bytes.clone(), pending: Vec::new() };
        Disk { files: image.iter().map(|(name, bytes)| (name.clone(), file(bytes))).collect() }
    }

    /// Replays one operation.
    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Create(name) => drop(self.files.insert(name.clone(), File::default())),
            Op::Unlink(name) => drop(self.files.remove(name)),
            // A file without a name does not survive.
            Op::Write(name, ..) | Op::SetLen(name, _) | Op::Punch(name, ..) => {
                if let Some(file) = self.files.get_mut(name) {
                    file.pending.push((op.clone(), Fate::Free));
                }
            }
            Op::Sync(name) => {
                if let Some(file) = self.files.get_mut(name) {
                    file.sync();
                }
            }
            Op::FailedSync(name) => {
                let pending = self.files.get_mut(name).map(|file| &mut file.pending);
                let free = pending.into_iter().flatten().filter(|(_, fate)| *fate == Fate::Free);
                free.for_each(|(_, fate)| *fate = Fate::Doubtful);
            }
            Op::Said(_) => {}
        }
    }

    /// Returns what a loss of power leaves.
    pub fn crash(&self, random: &mut Random) -> Image {
        let files = self.files.iter();
        files.map(|(name, file)| (name.clone(), file.crash(name, random))).collect()
    }

    /// Returns the files as they are without a loss of power.
    pub fn all_kept(&self) -> Image {
        let all = |file: &File| {
            let mut bytes = file.durable.clone();
            file.pending.iter().for_each(|(op, _)| apply(&mut bytes, op));
            bytes
        };
        self.files.iter().map(|(name, file)| (name.clone(), all(file))).collect()
    }
}

impl File {
    fn sync(&mut self) {
        if self.pending.iter().any(|(_, fate)| *fate == Fate::Doubtful) {
            let free = self.pending.iter_mut().filter(|(_, fate)| *fate == Fate::Free);
            free.for_each(|(_, fate)| *fate = Fate::Certain);
            return;
        }
        for (op, _) in std::mem::take(&mut self.pending) {
            apply(&mut self.durable, &op);
        }
    }

    fn crash(&self, name: &str, random: &mut Random) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        let mut order: Vec<&(Op, Fate)> = self.pending.iter().collect();
        let (keep, of) = *random.of(&[(15, 16), (7, 8), (1, 2), (1, 8), (1, 1), (0, 1)]);
        let is_free = order.iter().all(|(_, fate)| *fate == Fate::Free);
        if is_free && name.ends_with(".hpk") && random.below(2) == 0 {
            for index in (1..order.len()).rev() {
                order.swap(index, random.below(index as u64 + 1) as usize);
            }
        } else if is_free {
            let lost = random.below(order.len() as u64 + 1).min(random.below(6)) as usize;
            order.truncate(order.len() - lost);
        }
        let tears = random.below(2) == 0;
        for (op, fate) in order {
            match op {
                _ if *fate == Fate::Certain => apply(&mut bytes, op),
                _ if random.below(of) >= keep => {}
                Op::Write(_, offset, new) if tears && random.below(2) == 0 => {
                    tear(&mut bytes, *offset as usize, new, random);
                }
                _ => apply(&mut bytes, op),
            }
        }
        bytes
    }
}

fn apply(bytes: &mut Vec<u8>, op: &Op) {
    match op {
        Op::Write(_, offset, new) => write(bytes, *offset as usize, new),
        Op::SetLen(_, len) => bytes.resize(*len as usize, 0),
        Op::Punch(_, offset, len) => {
            let end = (offset + len).min(bytes.len() as u64) as usize;
            let start = (*offset as usize).min(end);
            bytes[start..end].fill(0);
        }
        _ => {}
    }
}

fn write(bytes: &mut Vec<u8>, start: usize, new: &[u8]) {
    let end = start + new.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[start..end].copy_from_slice(new);
}

/// Keeps some sectors of a write.
fn tear(bytes: &mut Vec<u8>, offset: usize, new: &[u8], random: &mut Random) {
    let mut at = 0;
    while at < new.len() {
        let sector_end = ((offset + at) / SECTOR_LEN + 1) * SECTOR_LEN;
        let next = (sector_end - offset).min(new.len());
        if random.below(3) > 0 {
            write(bytes, offset + at, &new[at..next]);
        }
        at = next;
    }
}
