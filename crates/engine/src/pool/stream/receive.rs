//! Receiving: takes the frames of a connection and applies them, in one or many transactions.
//!
//! Frames are collected in memory up to [`BATCH_LEN`]. Then their contents are verified, or those
//! of an incremental stream compressed, and the batch is applied in one short transaction; no lock
//! is held before that. The same transaction records how many frames were received. Each one first
//! compares that record with its own progress, so that if two processes receive the same stream,
//! one is refused.

use std::fmt;
use std::io::Read;

use twox_hash::XxHash3_64;

use super::ResumeToken;
use super::apply::{Apply, decode, first_base, refused, verify};
use super::base::received_base;
use super::body::{Body, END};
use super::frame::{Frame, FrameReader, Header};
use super::staging::{Ready, Staging};
use super::update::{changed_since, remove_orphans};
use crate::error::{Error, Location, Result};
use crate::pool::extents::read_range;
use crate::pool::namespace::edit::Edit;
use crate::pool::namespace::entries::{self, Attributes, Identity, Kind, Progress};
use crate::pool::namespace::nameless;
use crate::pool::namespace::props::{Dedup, Property, Settings};
use crate::pool::snapshots::rollback::{refuse, roll_back};
use crate::pool::write::batch::Batch;
use crate::pool::write::jobs::{Job, WriteTarget};
use crate::pool::write::workers::Workers;
use crate::pool::{Pool, ROOT};
use crate::store::format::snapshot::Scope;
use crate::store::{Durability, Patience, Txn};
use crate::units::FileId;

/// About how many bytes of frames a transaction has: so few that others hardly notice that they
/// wait for it.
const BATCH_LEN: usize = 1 << 20;
/// How many bytes of frames are committed before they are made durable.
const SYNC_LEN_MIN: usize = 4 << 20;
/// The most frames in a transaction.
const BATCH_COUNT: usize = 65_536;

/// Options for receiving a stream.
#[derive(Clone, Copy, Default)]
pub struct ReceiveOptions<'a> {
    /// Whether to roll the target back to the base first if it was changed since.
    pub force: bool,
    /// How many bytes of frames are applied per transaction; 0 for the default.
    pub batch_len: usize,
    /// Called with an existing file that is about to change. From then until the receive returns,
    /// the callback's owner must keep other users of that file out. If it fails, the receive fails
    /// with the same error.
    pub before_change: Option<&'a dyn Fn(FileId) -> Result<()>>,
    /// Called within the transaction with each file or link that is there and may get other content
    /// or be removed. What was moved there since `before_change` is among it. If it fails, nothing
    /// is changed.
    pub changing: Option<&'a dyn Fn(FileId) -> Result<()>>,
    /// Properties to set on what the stream makes or changes, unless another stream follows in the
    /// input. They are set together with the rest, so the snapshot has them too.
    pub properties: &'a [(Property, String)],
    /// The byte of the input at which the stream begins, as returned in [`ReceiveReport::next`] of
    /// the previous one.
    pub behind: Option<u64>,
}

impl fmt::Debug for ReceiveOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiveOptions")
            .field("force", &self.force)
            .field("batch_len", &self.batch_len)
            .field("properties", &self.properties)
            .field("behind", &self.behind)
            .finish_non_exhaustive()
    }
}

/// The result of a receive.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ReceiveReport {
    /// The file or directory.
    pub file: FileId,
    /// The name of the snapshot.
    pub snapshot: Vec<u8>,
    /// The length of this stream in bytes.
    pub bytes: u64,
    /// Frames, including those received by interrupted attempts.
    pub frames: u64,
    /// Whether the stream had a base.
    pub is_incremental: bool,
    /// The byte of the input at which another stream follows. Its first bytes were already read, so
    /// pass it to the next call as [`ReceiveOptions::behind`].
    pub next: Option<u64>,
}

/// A receive in progress.
struct Receive<'p> {
    pool: &'p Pool,
    header: Header,
    progress: Progress,
    /// The file that the records of the receive belong to, once anything was applied.
    key: Option<FileId>,
    batch: Vec<Frame>,
    batch_len: usize,
    batch_len_max: usize,
    /// How many bytes of frames were committed since the last sync.
    unsynced_len: usize,
    force: bool,
}

impl Pool {
    /// Receives a stream under this name of a directory, durably. A complete stream creates
    /// something new, which becomes visible once all of it has arrived. `told` receives the bytes
    /// read so far.
    ///
    /// If it fails midway, the data received so far is kept, invisibly, and the stream may continue
    /// later from [`Pool::receive_token`].
    pub fn receive(
        &self,
        directory: FileId,
        name: &[u8],
        input: &mut dyn Read,
        options: &ReceiveOptions<'_>,
        told: &mut dyn FnMut(u64),
    ) -> Result<ReceiveReport> {
        let mut reader = match options.behind {
            Some(at) => FrameReader::behind(input, at),
            None => FrameReader::new(input),
        };
        let began = reader.len;
        let header = reader.header()?;
        let mut receive = Receive::begin(self, directory, name, header, options)?;
        let end = receive.take_frames(&mut reader, told)?;
        // Detects garbage after the stream before any of it becomes visible.
        let next = reader.next_stream()?.then_some(reader.len);
        let staging = receive.stage()?;
        receive.announce(options)?;
        let properties = if next.is_none() { options.properties } else { &[] };
        let file = receive.finish(properties, staging.as_ref(), options)?;
        Ok(ReceiveReport {
            file,
            snapshot: receive.header.name,
            bytes: reader.len - began,
            frames: end,
            is_incremental: receive.header.base.0 != 0,
            next,
        })
    }

    /// Returns the token to resume the unfinished receive under this name.
    pub fn receive_token(&self, directory: FileId, name: &[u8]) -> Result<Option<ResumeToken>> {
        let found = self.read(|source| entries::find_progress(source, directory, name))?;
        let Some((_, Progress { origin, base_id, frames, .. })) = found else { return Ok(None) };
        if origin.id.is_none() {
            let what = "an earlier version received a part of a stream there, which cannot be \
                        resumed; abort it and send the whole stream again";
            return Err(Error::Invalid(what.into()));
        }
        Ok(Some(ResumeToken { id: origin.id, base: base_id, frames }))
    }

    /// Aborts the unfinished receive under this name and removes its data. Returns whether there
    /// was one.
    pub fn abort_receive(&self, directory: FileId, name: &[u8]) -> Result<bool> {
        self.change(|txn| {
            let Some((key, _)) = entries::find_progress(txn, directory, name)? else {
                return Ok(false);
            };
            remove_received(txn, key)?;
            Ok(true)
        })
    }
}

/// Removes everything that a receive created, whose root is `key`, and its records.
fn remove_received(txn: &mut Txn, key: FileId) -> Result<()> {
    let mut after = None;
    loop {
        let some = entries::identities(txn, key, Identity::File, after, entries::LIST_COUNT)?;
        for (_, here) in &some {
            let file = FileId(*here);
            if file == key || !entries::is_there(txn, file)? {
                continue;
            }
            for (directory, name) in entries::names_of(txn, file)? {
                entries::remove_name(txn, directory, &name, file)?;
            }
            let attributes = entries::attributes(txn, file)?;
            Edit::new(txn, 0).remove_file(file, &attributes)?;
        }
        match some.last() {
            Some((last, _)) => after = Some(*last),
            None => break,
        }
    }
    let attributes = entries::attributes(txn, key)?;
    Edit::new(txn, 0).remove_file(key, &attributes)
}

impl<'p> Receive<'p> {
    fn begin(
        pool: &'p Pool,
        directory: FileId,
        name: &[u8],
        header: Header,
        options: &ReceiveOptions<'_>,
    ) -> Result<Receive<'p>> {
        entries::check_name(name)?;
        if pool.attributes(directory)?.kind != Kind::Directory {
            return Err(Error::NotADirectory { name: format!("number {}", directory.0) });
        }
        let found = pool.read(|source| entries::find_progress(source, directory, name))?;
        let fresh = Progress {
            origin: header.origin,
            base: header.base,
            base_id: header.base_id,
            frames: 0,
            spooled: 0,
            parent: directory,
            name: name.to_vec(),
        };
        let (key, progress) = match found {
            Some((key, progress)) => (Some(key), progress),
            None => (None, fresh.clone()),
        };
        if (progress.origin, progress.base_id) != (fresh.origin, fresh.base_id) {
            let what = "the receive of another stream is unfinished there; abort it first";
            return Err(Error::Invalid(what.into()));
        }
        if header.first > progress.frames {
            let (first, frames) = (header.first, progress.frames);
            let what =
                format!("the stream begins at frame {first}, but only {frames} were received");
            return Err(Error::Invalid(what));
        }
        let there = pool.lookup_in(directory, name)?;
        let text = || String::from_utf8_lossy(name).into_owned();
        match (header.base.0, there) {
            (0, None) => {}
            (0, Some(_)) => return Err(Error::Exists { name: text() }),
            (_, None) => return Err(Error::NotFound { what: "file", name: text() }),
            (_, Some(entry)) => {
                let base = pool.read(|source| received_base(pool, source, entry.file, &header));
                let snapshot = pool.kept_as(entry.file, base?)?;
                if !options.force && pool.is_changed_within(&snapshot)? {
                    return Err(changed_since());
                }
            }
        }
        let force = options.force;
        let batch_len_max = if options.batch_len == 0 { BATCH_LEN } else { options.batch_len };
        let batch = Vec::new();
        Ok(Receive {
            pool,
            header,
            progress,
            key,
            batch,
            batch_len: 0,
            batch_len_max,
            unsynced_len: 0,
            force,
        })
    }

    /// Takes frames up to the end, and returns their number.
    fn take_frames(
        &mut self,
        reader: &mut FrameReader<'_>,
        told: &mut dyn FnMut(u64),
    ) -> Result<u64> {
        loop {
            let frame = match reader.frame() {
                Ok(frame) => frame,
                Err(error) => {
                    // The frames before the error are good.
                    self.flush()?;
                    self.pool.store().make_durable()?;
                    return Err(error);
                }
            };
            told(reader.len);
            if frame.tag == END {
                self.flush()?;
                let end = Body::decode(frame.tag, &frame.payload);
                let expected = Body::End { frames: frame.number, hash: reader.end_hash() };
                if end.as_ref() != Some(&expected) {
                    let what = "expected an end with the number and the hash of the frames before \
                                it, found another";
                    return Err(reader.damage(what));
                }
                if frame.number != self.progress.frames {
                    return Err(reader.damage(format!(
                        "expected the end behind {} frames, found it behind {}",
                        self.progress.frames, frame.number
                    )));
                }
                return Ok(frame.number);
            }
            // Frames received earlier may come again.
            if frame.number >= self.progress.frames + self.batch.len() as u64 {
                self.batch_len += frame.payload.len();
                self.batch.push(frame);
            }
            if self.batch_len >= self.batch_len_max || self.batch.len() >= BATCH_COUNT {
                self.flush()?;
            }
        }
    }

    fn transaction(&self) -> Result<Txn> {
        let checksum = self.pool.settings(ROOT)?.checksum;
        let mut txn = self.pool.store().begin_with(checksum, Patience::Endless)?;
        let noted = entries::find_progress(&mut txn, self.progress.parent, &self.progress.name)?;
        let is_same = match (&noted, self.key) {
            (Some((key, noted)), Some(own)) => *key == own && *noted == self.progress,
            (None, None) => true,
            _ => false,
        };
        // Another process receives the stream, or aborted it.
        is_same.then_some(txn).ok_or(Error::Busy)
    }

    /// Applies and commits the collected frames.
    fn flush(&mut self) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        self.unsynced_len += std::mem::take(&mut self.batch_len);
        let Some(last) = batch.last().map(|frame| frame.number) else { return Ok(()) };
        let txn = match self.header.base.0 {
            0 => self.apply(batch)?,
            _ => self.gather(batch)?,
        };
        self.commit(txn, last + 1)?;
        if self.unsynced_len >= SYNC_LEN_MIN {
            self.unsynced_len = 0;
            make_durable(self.pool)?;
        }
        Ok(())
    }

    /// Stores the records of the collected frames, before the transaction that applies them.
    fn stage(&self) -> Result<Option<Staging>> {
        let Some(key) = self.key.filter(|_| self.header.base.0 != 0) else { return Ok(None) };
        let Progress { spooled, frames, .. } = self.progress;
        if spooled <= self.batch_len_max as u64 {
            let mut staging = Staging::new((key, spooled), None);
            staging.read_all(frames);
            staging.find_bases(self.pool)?;
            return Ok(Some(staging));
        }
        let checksum = self.pool.settings(ROOT)?.checksum;
        let filling = nameless::begin_filling(self.pool.store(), checksum)?;
        let mut staging = Staging::new((key, spooled), Some(filling));
        let mut unsynced_len = 0;
        let mut commit = |txn: Txn, len: usize| {
            txn.commit(Durability::Visible)?;
            unsynced_len += len;
            if unsynced_len >= SYNC_LEN_MIN {
                unsynced_len = 0;
                make_durable(self.pool)?;
            }
            Ok(())
        };
        let what = (frames, self.batch_len_max);
        staging.stage(self.pool, what, &mut || self.transaction(), &mut commit)?;
        staging.find_bases(self.pool)?;
        // What is left for the last transaction to sync is short then.
        make_durable(self.pool)?;
        Ok(Some(staging))
    }

    /// Commits the frames before number `frames`.
    fn commit(&mut self, mut txn: Txn, frames: u64) -> Result<()> {
        self.progress.frames = frames;
        if let Some(key) = self.key {
            entries::set_progress(&mut txn, key, Some(&self.progress))?;
        }
        txn.commit(Durability::Visible).map(drop)
    }

    /// Returns a number that identifies the received snapshot in generations.
    fn from(&self) -> u64 {
        XxHash3_64::oneshot(&self.progress.origin.id.0)
    }

    /// Applies frames of a complete stream.
    fn apply(&mut self, batch: Vec<Frame>) -> Result<Txn> {
        let checksum = self.pool.settings(self.progress.parent)?.checksum;
        let from = self.from();
        let bodies: Vec<(u64, Body)> = batch
            .into_iter()
            .map(|frame| Ok((frame.number, decode(&frame)?)))
            .collect::<Result<_>>()?;
        let workers = Workers::beside_others(self.pool.store(), self.pool.options().threads());
        let verified = workers.for_jobs(bodies.len()).run(bodies.len(), |index| {
            let (number, body) = &bodies[index];
            let verified = verify(self.pool.store(), body);
            verified.map_err(|error| error.or_at(|| Location::Frame(*number)))
        })?;
        let mut txn = self.transaction()?;
        for ((number, body), is_verified) in bodies.into_iter().zip(verified) {
            let applied = match self.key {
                Some(key) => {
                    Apply { key, root: key, checksum, from }.complete(&mut txn, body, is_verified)
                }
                None => {
                    let key = txn.new_file_id();
                    let apply = Apply { key, root: key, checksum, from };
                    self.key = Some(key);
                    apply.begin(&mut txn, body, self.header.kind, self.progress.parent)
                }
            };
            applied.map_err(|error| error.or_at(|| Location::Frame(number)))?;
        }
        Ok(txn)
    }

    /// Adds frames of an incremental stream to the file that collects them.
    fn gather(&mut self, batch: Vec<Frame>) -> Result<Txn> {
        let parent = self.progress.parent;
        let settings = self.pool.settings(parent)?;
        let span = u64::from(settings.record_len);
        let start = self.progress.spooled / span * span;
        // The last record is rewritten together with the new frames.
        let mut bytes = match self.key {
            None => Vec::new(),
            Some(file) => self.pool.read(|source| {
                let mut bytes = vec![0; (self.progress.spooled - start) as usize];
                read_range(source, file, &mut bytes, start)?;
                Ok(bytes)
            })?,
        };
        for frame in batch {
            decode(&frame)?;
            bytes.extend(frame.to_bytes());
        }
        // Before there is a file: a directory has no records.
        let (file, settings) =
            (self.key.unwrap_or(parent), Settings { dedup: Dedup::Off, ..settings });
        // What arrived is to be kept, so nothing stops this.
        let target = WriteTarget {
            is_stopped: || false,
            ..WriteTarget::new(file, settings, self.pool.options())
        };
        let end = start + bytes.len() as u64;
        let jobs = Job::records(start, bytes, span as usize);
        let jobs: Vec<_> = jobs.into_iter().map(|job| (&target, job)).collect();
        let count = jobs.len();
        let store = self.pool.store();
        let mut batch = Batch::prepare(store, jobs, &mut |checksum| store.begin(checksum))?;
        let mut txn = self.transaction()?;
        let file = match self.key {
            Some(file) => file,
            None => {
                let file = txn.new_file_id();
                let like = Attributes::new(Kind::File, parent);
                Edit::new(&mut txn, 0).create_nameless(file, parent, &like)?;
                file
            }
        };
        self.key = Some(file);
        self.progress.spooled = end;
        entries::set_len(&mut txn, file, self.progress.spooled)?;
        (0..count).for_each(|job| batch.set_file(job, file));
        batch.store(&mut txn, 0..count)?;
        Ok(txn)
    }

    /// Announces the file about to change, before the lock is taken: data in its logs may have to
    /// be committed first.
    fn announce(&self, options: &ReceiveOptions<'_>) -> Result<()> {
        let Some(before_change) = options.before_change.filter(|_| self.header.base.0 != 0) else {
            return Ok(());
        };
        match self.pool.lookup_in(self.progress.parent, &self.progress.name)? {
            Some(entry) => before_change(entry.file),
            None => Ok(()),
        }
    }

    /// Makes everything received visible at once.
    fn finish(
        &mut self,
        properties: &[(Property, String)],
        staging: Option<&Staging>,
        options: &ReceiveOptions<'_>,
    ) -> Result<FileId> {
        let mut txn = self.transaction()?;
        let root = match (self.header.base.0, self.key) {
            (0, None) => return Err(refused("expected its scope, found its end")),
            (0, Some(root)) => {
                entries::forget_receive(&mut txn, root)?;
                let (parent, name) = (self.progress.parent, &self.progress.name);
                Edit::new(&mut txn, 0).name_first(root, parent, name)?;
                root
            }
            _ => self.update(&mut txn, staging, options)?,
        };
        Edit::new(&mut txn, 0).set_properties(root, properties)?;
        let scope = Scope { file: root, is_directory: self.header.kind == Kind::Directory };
        let kept = txn.txg();
        entries::set_received_as(&mut txn, root, self.progress.origin.id, kept)?;
        txn.create_snapshot_after(scope, &self.header.name, self.header.created_ns)?;
        txn.commit(Durability::Durable)?;
        Ok(root)
    }

    /// Applies the collected frames to the target, which equals the base.
    fn update(
        &self,
        txn: &mut Txn,
        staging: Option<&Staging>,
        options: &ReceiveOptions<'_>,
    ) -> Result<FileId> {
        let changing = &mut |file| options.changing.map_or(Ok(()), |changing| changing(file));
        let (parent, name) = (self.progress.parent, &self.progress.name);
        let text = || String::from_utf8_lossy(name).into_owned();
        let missing = || Error::NotFound { what: "file", name: text() };
        let entry = entries::lookup(txn, parent, name)?.ok_or_else(missing)?;
        let root = entry.file;
        if entry.kind != self.header.kind {
            return Err(refused(format!(
                "expected a {} in its header, as '{}' is one, found a {}",
                entry.kind,
                text(),
                self.header.kind
            )));
        }
        let snapshot =
            self.pool.kept_as(root, received_base(self.pool, txn, root, &self.header)?)?;
        self.pool.check_settled(root, entry.kind == Kind::Directory)?;
        // While the lock is held, the newest state cannot change.
        if !self.force && self.pool.is_changed_within(&snapshot)? {
            return Err(changed_since());
        }
        if self.force || self.pool.is_laid_out_anew(&snapshot)? {
            // Records may have been rewritten with a layout that differs from what the stream
            // expects.
            roll_back(txn, &snapshot, &mut refuse, changing)?;
        }
        let (Some(key), Some(staging)) = (self.key, staging) else { return Ok(root) };
        let checksum = self.pool.settings(parent)?.checksum;
        let apply = Apply { key, root, checksum, from: self.from() };
        // Bases are taken from records before these are changed. A second base may need one that
        // comes with a record.
        staging.each_read(self.pool, &mut |body| match body {
            Body::Known { file, path } => apply.know(txn, file, &path, changing),
            Body::FileExtent { at, pointer, stored } => match first_base(at, &pointer) {
                Some(number) => {
                    apply.base(txn, number, (&pointer, &stored), false, staging.found())
                }
                None => Ok(()),
            },
            _ => Ok(()),
        })?;
        staging.each(self.pool, txn, &mut |txn, ready| match ready {
            Ready::Read(body) => apply.change(txn, body),
            Ready::Staged { at, record } => apply.take_staged(txn, at, record),
        })?;
        remove_orphans(txn, changing)?;
        staging.remove(txn)?;
        let attributes = entries::attributes(txn, key)?;
        Edit::new(txn, 0).remove_file(key, &attributes)?;
        Ok(root)
    }
}

/// Makes what was received so far durable, unless others are in the way; the end of the receive
/// does it in any case.
fn make_durable(pool: &Pool) -> Result<()> {
    match pool.store().make_durable() {
        Err(Error::Busy) => Ok(()),
        done => done,
    }
}
