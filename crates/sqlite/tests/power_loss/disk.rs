//! A simulated disk with a directory, which knows what a recorded run of SQLite and Hardpack may
//! leave behind when the power fails at any moment.
//!
//! The model, for each file separately:
//!
//! * writes before its last sync are there;
//! * of the later writes, any subset is there, in any order, each torn at multiples of the sector;
//! * a later change of the length happened or did not. In files of SQLite's own it keeps its place
//!   among the writes, as on every file system that keeps its metadata consistent;
//! * writes that a failed sync should have made durable may be there or not, whatever is synced
//!   later.
//!
//! And for the directory: entries created or removed before its last sync stay so; of later
//! changes, any subset happened. A file whose entry did not survive is lost, whether it was synced
//! or not. Shared memory never survives.
//!
//! All choices come from a seed.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::Random;

/// The number of a file in a recording.
pub type FileIndex = usize;

/// The files of a directory, by name.
pub type Image = BTreeMap<String, Vec<u8>>;

/// One operation of a recording.
#[derive(Clone, Debug)]
pub enum Op {
    /// A new file was created.
    Create(String, FileIndex),
    /// A name was removed.
    Unlink(String),
    /// Bytes were written at an offset.
    Write(FileIndex, u64, Arc<[u8]>),
    /// The length was set.
    SetLen(FileIndex, u64),
    /// A hole was punched: the range reads as zeros.
    Punch(FileIndex, u64, u64),
    /// The content of a file was made durable.
    Sync(FileIndex),
    /// A sync that reported an error.
    FailedSync(FileIndex),
    /// The names in the directory were made durable.
    SyncDirectory,
    /// A note of the workload.
    Note(Note),
}

/// A note of a workload about its progress. Transactions are numbered from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Note {
    /// A transaction begins.
    Begin(u64),
    /// Another engine works on a pool, or has stopped. Its syncs promise nothing to the
    /// connections, which do not know of them and may overwrite what they made durable.
    Elsewhere(bool),
    /// A transaction was acknowledged.
    Ack(u64, Promise),
}

/// The promise of an acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Promise {
    /// The transaction survives from now on.
    Durable,
    /// The transaction survives once the pool is synced.
    WithPool,
    /// The transaction survives once the write-ahead log is synced.
    WithLog,
}

/// The kind of a file; the number is that of its pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    Pool(usize),
    Log(usize),
    Journal,
    SuperJournal,
    /// A file that is always empty, and serves the locks of a database.
    LockFile,
}

/// The names of the pools of a workload. One that needs only one pool has the first.
pub const POOL_NAMES: [&str; 2] = ["a.hpk", "b.hpk"];

/// Returns the kind of a file from its name.
pub fn class_of(name: &str) -> Class {
    let pool = usize::from(name.starts_with(POOL_NAMES[1]));
    match name {
        _ if name == POOL_NAMES[pool] => Class::Pool(pool),
        _ if name.ends_with("-wal") => Class::Log(pool),
        _ if name.ends_with("-journal") => Class::Journal,
        _ if name.contains("-mj") => Class::SuperJournal,
        _ => Class::LockFile,
    }
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

#[derive(Clone, Debug)]
struct Medium {
    class: Class,
    durable: Vec<u8>,
    pending: Vec<(Op, Fate)>,
}

/// The state of a disk while a recorded run is replayed.
#[derive(Clone, Debug)]
pub struct Disk {
    files: Vec<Medium>,
    names: BTreeMap<String, FileIndex>,
    pending_names: Vec<Op>,
}

impl Disk {
    /// Creates a disk that holds these files durably. They are numbered in the order of their
    /// names.
    pub fn new(image: &Image) -> Disk {
        let mut disk =
            Disk { files: Vec::new(), names: BTreeMap::new(), pending_names: Vec::new() };
        for (name, bytes) in image {
            disk.names.insert(name.clone(), disk.files.len());
            let durable = bytes.clone();
            disk.files.push(Medium { class: class_of(name), durable, pending: Vec::new() });
        }
        disk
    }

    /// Returns the kind of a file.
    pub fn class(&self, file: FileIndex) -> Class {
        self.files[file].class
    }

    /// Whether there are writes that a failed sync should have made durable.
    pub fn has_doubts(&self, file: FileIndex) -> bool {
        self.files[file].pending.iter().any(|(_, fate)| *fate == Fate::Doubtful)
    }

    /// Whether `op` writes to a file with unsynced writes, or writes more than `len_max` bytes.
    pub fn has_unsynced(&self, op: &Op, len_max: usize) -> bool {
        let Op::Write(file, _, bytes) = op else { return false };
        bytes.len() > len_max || !self.files[*file].pending.is_empty()
    }

    /// Whether an existing journal has unsynced writes.
    pub fn has_unsynced_journal(&self) -> bool {
        let waits = |file: &Medium| file.class == Class::Journal && !file.pending.is_empty();
        let mut names = self.names.clone();
        self.pending_names.iter().for_each(|op| apply_name(&mut names, op));
        names.values().any(|file| waits(&self.files[*file]))
    }

    /// Replays one operation.
    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Create(name, file) => {
                assert_eq!(*file, self.files.len(), "files are numbered as they are made");
                let (class, durable) = (class_of(name), Vec::new());
                self.files.push(Medium { class, durable, pending: Vec::new() });
                self.pending_names.push(op.clone());
            }
            Op::Unlink(_) => self.pending_names.push(op.clone()),
            Op::SyncDirectory => {
                for op in std::mem::take(&mut self.pending_names) {
                    apply_name(&mut self.names, &op);
                }
            }
            Op::Write(file, ..) | Op::SetLen(file, _) | Op::Punch(file, ..) => {
                self.files[*file].pending.push((op.clone(), Fate::Free));
            }
            Op::Sync(file) => self.files[*file].sync(),
            Op::FailedSync(file) => {
                let pending = &mut self.files[*file].pending;
                pending.iter_mut().filter(|(_, fate)| *fate == Fate::Free).for_each(|(_, fate)| {
                    *fate = Fate::Doubtful;
                });
            }
            Op::Note(_) => {}
        }
    }

    /// Returns what a power loss leaves behind, with sectors of `sector` bytes.
    pub fn crash(&self, random: &mut Random, sector: usize) -> Image {
        let mut names = self.names.clone();
        let in_order = random.below(2) == 0;
        let kept = random.below(self.pending_names.len() as u64 + 1) as usize;
        for (index, op) in self.pending_names.iter().enumerate() {
            let survives = if in_order { index < kept } else { random.below(2) == 0 };
            if survives {
                apply_name(&mut names, op);
            }
        }
        let mut content = |file: FileIndex| self.files[file].crash(random, sector);
        names.into_iter().map(|(name, file)| (name, content(file))).collect()
    }

    /// Returns the files as they are if the power does not fail.
    pub fn all_kept(&self) -> Image {
        let mut names = self.names.clone();
        self.pending_names.iter().for_each(|op| apply_name(&mut names, op));
        names.into_iter().map(|(name, file)| (name, self.files[file].all_kept())).collect()
    }
}

fn apply_name(names: &mut BTreeMap<String, FileIndex>, op: &Op) {
    match op {
        Op::Create(name, file) => drop(names.insert(name.clone(), *file)),
        Op::Unlink(name) => drop(names.remove(name)),
        _ => {}
    }
}

impl Medium {
    fn sync(&mut self) {
        let doubtful = |(_, fate): &(Op, Fate)| *fate == Fate::Doubtful;
        if self.pending.iter().any(doubtful) {
            let free = self.pending.iter_mut().filter(|(_, fate)| *fate == Fate::Free);
            free.for_each(|(_, fate)| *fate = Fate::Certain);
            return;
        }
        for (op, _) in std::mem::take(&mut self.pending) {
            apply_bytes(&mut self.durable, &op);
        }
    }

    fn all_kept(&self) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        self.pending.iter().for_each(|(op, _)| apply_bytes(&mut bytes, op));
        bytes
    }

    fn crash(&self, random: &mut Random, sector: usize) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        let mut order: Vec<&(Op, Fate)> = self.pending.iter().collect();
        // The share that survives varies: nearly all, about half, nearly nothing, or all; or all
        // but the last few, as on a disk with a short queue.
        const SHARES: [(u64, u64); 6] = [(15, 16), (7, 8), (1, 2), (1, 8), (1, 1), (0, 1)];
        let (keep, of) = SHARES[random.below(6) as usize];
        if order.iter().any(|(_, fate)| *fate != Fate::Free) {
            // Certain writes keep their place in the order.
        } else if random.below(2) == 0 {
            self.shuffle(&mut order, random);
        } else {
            let lost = random.below(order.len() as u64 + 1).min(random.below(6)) as usize;
            order.truncate(order.len() - lost);
        }
        let tears = random.below(2) == 0;
        for (op, fate) in order {
            match op {
                _ if *fate == Fate::Certain => apply_bytes(&mut bytes, op),
                _ if random.below(of) >= keep => {}
                Op::Write(_, offset, new) if tears && random.below(2) == 0 => {
                    tear(&mut bytes, *offset as usize, new, sector, random);
                }
                _ => apply_bytes(&mut bytes, op),
            }
        }
        bytes
    }

    fn shuffle(&self, order: &mut [&(Op, Fate)], random: &mut Random) {
        let is_pool = matches!(self.class, Class::Pool(_));
        let mut shuffle = |part: &mut [&(Op, Fate)]| {
            for index in (1..part.len()).rev() {
                part.swap(index, random.below(index as u64 + 1) as usize);
            }
        };
        if is_pool {
            return shuffle(order);
        }
        order.split_mut(|(op, _)| matches!(op, Op::SetLen(..))).for_each(shuffle);
    }
}

fn apply_bytes(bytes: &mut Vec<u8>, op: &Op) {
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
fn tear(bytes: &mut Vec<u8>, offset: usize, new: &[u8], sector: usize, random: &mut Random) {
    let prefix_only = random.below(2) == 0;
    let mut at = 0;
    while at < new.len() {
        let next = (((offset + at) / sector + 1) * sector - offset).min(new.len());
        if random.below(3) > 0 {
            write(bytes, offset + at, &new[at..next]);
        } else if prefix_only {
            return;
        }
        at = next;
    }
}
