//! Stores the records of an incremental stream before the transaction that applies it.
//!
//! That transaction changes everything at once, and others wait for it. So what takes long is done
//! before, in short transactions: the records are verified and stored in a nameless file, which
//! hands them over to their own files in the end. Of the collected frames, the transaction reads
//! only the others.
//!
//! ```text
//! collected   | names | record | record | patches | record |
//! steps       |  read  | staged | staged |  read   | staged |
//! staging     | record | record | record |
//! ```
//!
//! Maintenance may rewrite a staged record meanwhile. What is no longer as it was sent is read from
//! the collected frames after all, since later frames may refer to it.

use super::apply::{check_content, decode, first_base, store_as_sent};
use super::body::{At, Body, travelling};
use super::found_bases::FoundBases;
use super::frame::{Frame, FrameReader};
use super::update::Spool;
use crate::error::{Error, Location, Result};
use crate::pool::Pool;
use crate::pool::extents::change::add_file_extent;
use crate::pool::extents::{UNIT_LEN, file_extent_key};
use crate::pool::namespace::edit::Edit;
use crate::pool::namespace::entries::{self, Attributes, Kind};
use crate::pool::write::workers::Workers;
use crate::store::format::pointer::{Place, Pointer, data_pointer};
use crate::store::trees::TreeId;
use crate::store::{Filling, Txn};
use crate::units::FileId;

/// Where a frame lies in the collected bytes, and its number.
#[derive(Clone, Copy, Debug)]
struct Spot {
    byte: u64,
    number: u64,
}

/// What to do with some of the collected frames.
#[derive(Debug)]
enum Step {
    /// Read and apply this many frames.
    Read { from: Spot, count: u64 },
    /// Take the record of one frame from this byte of the staging file.
    Staged { from: Spot, at: At, sent: Box<Pointer>, offset: u64 },
}

/// A record that is to be staged.
struct Record {
    number: u64,
    sent: Pointer,
    stored: Vec<u8>,
    offset: u64,
}

/// A collected frame, ready to be applied.
pub(super) enum Ready {
    /// It was read.
    Read(Body),
    /// Its record is in the pool.
    Staged { at: At, record: Held },
}

/// A record of the staging file.
pub(super) struct Held {
    pub pointer: Pointer,
    pub file: FileId,
    pub offset: u64,
}

/// The frames that were collected in a nameless file, and which of their records are stored.
#[derive(Debug)]
pub(super) struct Staging {
    steps: Vec<Step>,
    /// The file that collects the frames, and the length of its content.
    collected: (FileId, u64),
    /// The file with the records, once there is one.
    file: Option<FileId>,
    /// The length of that file.
    len: u64,
    found: FoundBases,
    /// Keeps others from taking it for a leftover.
    _filling: Option<Filling>,
}

impl Staging {
    /// Prepares to apply frames that were collected in a file.
    pub fn new(collected: (FileId, u64), filling: Option<Filling>) -> Staging {
        let found = FoundBases::default();
        Staging { steps: Vec::new(), collected, file: None, len: 0, found, _filling: filling }
    }

    /// Stores the records of all frames. `begin` begins a transaction, and `commit` ends it, which
    /// stored so many bytes.
    pub fn stage(
        &mut self,
        pool: &Pool,
        (frames, batch_len): (u64, usize),
        begin: &mut dyn FnMut() -> Result<Txn>,
        commit: &mut dyn FnMut(Txn, usize) -> Result<()>,
    ) -> Result<()> {
        let mut input = Spool::new(pool, self.collected, 0);
        let mut reader = FrameReader::from_frame(&mut input, 0);
        let (mut batch, mut len) = (Vec::new(), 0);
        for number in 0..frames {
            let from = Spot { byte: reader.len, number };
            let frame = reader.frame().map_err(super::update::from_pool)?;
            match decode(&frame)? {
                Body::FileExtent { at, pointer, stored } if is_staged(at, &pointer) => {
                    len += stored.len();
                    let offset = self.place(&pointer);
                    let sent = Box::new(travelling(&pointer));
                    self.steps.push(Step::Staged { from, at, sent, offset });
                    batch.push(Record { number, sent: pointer, stored, offset });
                }
                _ => self.read(from),
            }
            if len >= batch_len || number + 1 == frames && !batch.is_empty() {
                let batch = std::mem::take(&mut batch);
                commit(self.store(pool, batch, begin)?, std::mem::take(&mut len))?;
            }
        }
        Ok(())
    }

    /// Reads all frames when they are applied.
    pub fn read_all(&mut self, frames: u64) {
        let from = Spot { byte: 0, number: 0 };
        self.steps = vec![Step::Read { from, count: frames }];
    }

    /// Looks for first bases among the frames that are records of this pool.
    pub fn find_bases(&mut self, pool: &Pool) -> Result<()> {
        let mut bases = Vec::new();
        self.each_read(pool, &mut |body| {
            if let Body::FileExtent { at, pointer, .. } = body
                && first_base(at, &pointer).is_some()
            {
                bases.push(pointer);
            }
            Ok(())
        })?;
        self.found = FoundBases::search(pool, &bases)?;
        Ok(())
    }

    /// The bases that are records of this pool.
    pub fn found(&self) -> &FoundBases {
        &self.found
    }

    fn read(&mut self, from: Spot) {
        match self.steps.last_mut() {
            Some(Step::Read { count, .. }) => *count += 1,
            _ => self.steps.push(Step::Read { from, count: 1 }),
        }
    }

    /// Returns the next place in the staging file for a record.
    fn place(&mut self, pointer: &Pointer) -> u64 {
        let align = if pointer.is_chunk() { UNIT_LEN } else { pointer.span() };
        let offset = self.len.next_multiple_of(align);
        self.len = offset + pointer.span();
        offset
    }

    /// Verifies some records, and stores them in a transaction.
    fn store(
        &mut self,
        pool: &Pool,
        batch: Vec<Record>,
        begin: &mut dyn FnMut() -> Result<Txn>,
    ) -> Result<Txn> {
        let workers = Workers::beside_others(pool.store(), pool.options().threads());
        workers.for_jobs(batch.len()).run(batch.len(), |index| {
            let Record { number, sent, stored, .. } = &batch[index];
            let checked = check_content(pool.store(), sent, stored).map(drop);
            checked.map_err(|error| error.or_at(|| Location::Frame(*number)))
        })?;
        let mut txn = begin()?;
        let file = match self.file {
            Some(file) => file,
            None => {
                let file = txn.new_file_id();
                let parent = entries::attributes(&mut txn, self.collected.0)?.parent;
                let like = Attributes::new(Kind::File, parent);
                Edit::new(&mut txn, 0).create_nameless(file, parent, &like)?;
                self.file = Some(file);
                file
            }
        };
        entries::set_len(&mut txn, file, self.len)?;
        for Record { sent, stored, offset, .. } in batch {
            let pointer = store_as_sent(&mut txn, sent, &stored)?;
            add_file_extent(&mut txn, TreeId::Map, file, offset, &pointer)?;
        }
        Ok(txn)
    }

    /// Calls `visit` with each frame that has to be read, in their order.
    pub fn each_read(&self, pool: &Pool, visit: &mut dyn FnMut(Body) -> Result<()>) -> Result<()> {
        self.steps.iter().try_for_each(|step| match step {
            Step::Read { from, count } => self.read_frames(pool, *from, *count, visit),
            Step::Staged { .. } => Ok(()),
        })
    }

    /// Calls `apply` with each frame, in their order.
    pub fn each(
        &self,
        pool: &Pool,
        txn: &mut Txn,
        apply: &mut dyn FnMut(&mut Txn, Ready) -> Result<()>,
    ) -> Result<()> {
        for step in &self.steps {
            let (from, count) = match step {
                Step::Read { from, count } => (*from, *count),
                Step::Staged { from, at, sent, offset } => match self.held(txn, sent, *offset)? {
                    Some(record) => {
                        let applied = apply(txn, Ready::Staged { at: *at, record });
                        applied.map_err(|error| error.or_at(|| Location::Frame(from.number)))?;
                        continue;
                    }
                    None => (*from, 1),
                },
            };
            self.read_frames(pool, from, count, &mut |body| apply(txn, Ready::Read(body)))?;
        }
        Ok(())
    }

    /// Returns a staged record, if it still is as it was sent.
    fn held(&self, txn: &mut Txn, sent: &Pointer, offset: u64) -> Result<Option<Held>> {
        let Some(file) = self.file else { return Ok(None) };
        let value = txn.get(TreeId::Map, &file_extent_key(file, offset))?;
        let pointer = value.map(|value| data_pointer(&value)).transpose()?;
        let same = pointer.filter(|pointer| travelling(pointer) == *sent);
        Ok(same.map(|pointer| Held { pointer, file, offset }))
    }

    fn read_frames(
        &self,
        pool: &Pool,
        from: Spot,
        count: u64,
        visit: &mut dyn FnMut(Body) -> Result<()>,
    ) -> Result<()> {
        let mut input = Spool::new(pool, self.collected, from.byte);
        let mut reader = FrameReader::from_frame(&mut input, from.number);
        for _ in 0..count {
            let frame: Frame = reader.frame().map_err(super::update::from_pool)?;
            let visited = decode(&frame).and_then(&mut *visit);
            visited.map_err(|error: Error| error.or_at(|| Location::Frame(frame.number)))?;
        }
        Ok(())
    }

    /// Removes the staging file, with the records that were not taken.
    pub fn remove(&self, txn: &mut Txn) -> Result<()> {
        let Some(file) = self.file else { return Ok(()) };
        let attributes = entries::attributes(txn, file)?;
        Edit::new(txn, 0).remove_file(file, &attributes)
    }
}

impl Held {
    /// Takes the record out of the staging file.
    pub fn take(self, txn: &mut Txn) -> Result<Pointer> {
        txn.remove(TreeId::Map, &file_extent_key(self.file, self.offset))?;
        txn.hand_over(&self.pointer, self.file)
    }
}

/// Whether the record of a frame is stored ahead: a dictionary would not be there yet, patches
/// refer to other content, and what fits into a pointer needs no place.
fn is_staged(at: At, pointer: &Pointer) -> bool {
    let is_whole = (pointer.part_offset, pointer.len) == (0, pointer.extent_len);
    at.tree == TreeId::Map
        && is_whole
        && !pointer.is_delta()
        && pointer.dictionary == 0
        && matches!(pointer.place, Place::Extent { .. })
}
