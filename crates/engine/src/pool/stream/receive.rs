//! Receiving: takes the frames of a connection and has them applied, in one or many transactions.
//!
//! Frames are gathered in memory up to [`BATCH_LEN`], then applied in one transaction; no lock is held while the
//! stream is waited for. In the same transaction is noted how many there are, and each begins by comparing: of two that receive the
//! same at a time, one is refused.

use std::io::Read;

use super::ResumeToken;
use super::apply::{Apply, refused};
use super::body::{Body, END};
use super::frame::{Frame, FrameReader, Header};
use crate::error::{Error, Result};
use crate::pool::edit::Edit;
use crate::pool::names::{self, Identity, Kind, Progress};
use crate::pool::{Pool, ROOT};
use crate::store::snapshots::Scope;
use crate::store::{Durability, Patience, Txn};
use crate::units::FileId;

/// A transaction has about so many bytes of frames.
const BATCH_LEN: usize = 16 << 20;
/// And so many frames at most.
const BATCH_COUNT: usize = 65_536;

/// How to receive.
#[derive(Clone, Debug, Default)]
pub struct ReceiveOptions {
    /// Brings the target back to the base first, where it was changed since.
    pub force: bool,
    /// So many bytes of frames are applied in one transaction; 0 for the usual number.
    pub batch_len: usize,
}

/// What was received.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReceiveReport {
    /// The file or directory.
    pub file: FileId,
    /// The name of the snapshot.
    pub snapshot: Vec<u8>,
    /// Bytes of this stream.
    pub bytes: u64,
    /// Frames, with those of streams before this one that was cut.
    pub frames: u64,
    /// It had a base.
    pub is_incremental: bool,
}

/// A receive in progress.
struct Receive<'p> {
    pool: &'p Pool,
    header: Header,
    progress: Progress,
    /// What its notes belong to, once something is applied.
    key: Option<FileId>,
    batch: Vec<Frame>,
    batch_len: usize,
    batch_len_max: usize,
}

impl Pool {
    /// Receives a stream under this name of a directory, durably: a complete one as something new, which is there once
    /// all of it is. `told` gets the bytes read so far.
    ///
    /// When it fails in between, what was received stays, out of sight, and the stream may go on later from
    /// [`Pool::receive_token`].
    pub fn receive(
        &self,
        directory: FileId,
        name: &[u8],
        input: &mut dyn Read,
        options: &ReceiveOptions,
        told: &mut dyn FnMut(u64),
    ) -> Result<ReceiveReport> {
        let mut reader = FrameReader::new(input);
        let header = reader.header()?;
        let mut receive = Receive::begin(self, directory, name, header, options)?;
        let end = receive.take_frames(&mut reader, told)?;
        let file = receive.finish(end)?;
        Ok(ReceiveReport {
            file,
            snapshot: receive.header.name,
            bytes: reader.len,
            frames: end,
            is_incremental: receive.header.base.0 != 0,
        })
    }

    /// From where a stream goes on that is not received to its end under this name.
    pub fn receive_token(&self, directory: FileId, name: &[u8]) -> Result<Option<ResumeToken>> {
        let found = self.read(|source| names::find_progress(source, directory, name))?;
        Ok(found.map(|(_, progress)| ResumeToken {
            guid: progress.origin.guid,
            txg: progress.origin.txg,
            base: progress.base,
            frames: progress.frames,
        }))
    }

    /// Gives up a stream that is not received to its end under this name, and what came of it; whether there was one.
    pub fn abort_receive(&self, directory: FileId, name: &[u8]) -> Result<bool> {
        self.change(|txn| {
            let Some((key, _)) = names::find_progress(txn, directory, name)? else {
                return Ok(false);
            };
            remove_received(txn, key)?;
            Ok(true)
        })
    }
}

/// Removes all that was created by a receive, whose root is `key`, and its notes.
fn remove_received(txn: &mut Txn, key: FileId) -> Result<()> {
    let mut after = None;
    loop {
        let some = names::identities(txn, key, Identity::File, after, names::LIST_COUNT)?;
        for (_, here) in &some {
            let file = FileId(*here);
            if file == key || !names::is_there(txn, file)? {
                continue;
            }
            for (directory, name) in names::names_of(txn, file)? {
                names::remove_name(txn, directory, &name, file)?;
            }
            let attributes = names::attributes(txn, file)?;
            Edit::new(txn, 0).remove_file(file, &attributes)?;
        }
        match some.last() {
            Some((last, _)) => after = Some(*last),
            None => break,
        }
    }
    let attributes = names::attributes(txn, key)?;
    Edit::new(txn, 0).remove_file(key, &attributes)
}

impl<'p> Receive<'p> {
    fn begin(
        pool: &'p Pool,
        directory: FileId,
        name: &[u8],
        header: Header,
        options: &ReceiveOptions,
    ) -> Result<Receive<'p>> {
        names::check_name(name)?;
        if pool.attributes(directory)?.kind != Kind::Directory {
            return Err(Error::NotADirectory { name: format!("number {}", directory.0) });
        }
        let found = pool.read(|source| names::find_progress(source, directory, name))?;
        let fresh = Progress {
            origin: header.origin,
            base: header.base,
            frames: 0,
            spooled: 0,
            parent: directory,
            name: name.to_vec(),
        };
        let (key, progress) = match found {
            Some((key, progress)) => (Some(key), progress),
            None => (None, fresh.clone()),
        };
        if (progress.origin, progress.base) != (fresh.origin, fresh.base) {
            let what = "another stream is not received to its end there; give it up first";
            return Err(Error::Invalid(what.into()));
        }
        if header.first > progress.frames {
            let (first, frames) = (header.first, progress.frames);
            let what = format!("the stream begins at frame {first}, and {frames} were received");
            return Err(Error::Invalid(what));
        }
        if pool.lookup_in(directory, name)?.is_some() {
            return Err(Error::Exists { name: String::from_utf8_lossy(name).into() });
        }
        let batch_len_max = if options.batch_len == 0 { BATCH_LEN } else { options.batch_len };
        let batch = Vec::new();
        Ok(Receive { pool, header, progress, key, batch, batch_len: 0, batch_len_max })
    }

    /// Takes frames up to the end, and says how many there are.
    fn take_frames(
        &mut self,
        reader: &mut FrameReader<'_>,
        told: &mut dyn FnMut(u64),
    ) -> Result<u64> {
        loop {
            let frame = match reader.frame() {
                Ok(frame) => frame,
                Err(error) => {
                    // What came before it is good.
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
                return match end == Some(expected) {
                    true if frame.number == self.progress.frames => Ok(frame.number),
                    _ => Err(reader.damage("its end is not that of what came before")),
                };
            }
            // What was received before may come once more.
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
        let noted = names::find_progress(&mut txn, self.progress.parent, &self.progress.name)?;
        let is_same = match (&noted, self.key) {
            (Some((key, noted)), Some(own)) => *key == own && *noted == self.progress,
            (None, None) => true,
            _ => false,
        };
        // Somebody else receives it, or gave it up.
        is_same.then_some(txn).ok_or(Error::Busy)
    }

    /// Applies what is gathered, and commits it.
    fn flush(&mut self) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        self.batch_len = 0;
        let Some(last) = batch.last().map(|frame| frame.number) else { return Ok(()) };
        let mut txn = self.transaction()?;
        let checksum = self.pool.settings(self.progress.parent)?.checksum;
        for frame in batch {
            let malformed = || refused(format!("frame {} is malformed", frame.number));
            let body = Body::decode(frame.tag, &frame.payload).ok_or_else(malformed)?;
            match self.key {
                Some(key) => Apply { key, root: key, checksum }.complete(&mut txn, body)?,
                None => {
                    let key = txn.new_file_id();
                    let apply = Apply { key, root: key, checksum };
                    apply.begin(&mut txn, body, self.header.kind, self.progress.parent)?;
                    self.key = Some(key);
                }
            }
        }
        self.progress.frames = last + 1;
        if let Some(key) = self.key {
            names::set_progress(&mut txn, key, Some(&self.progress))?;
        }
        txn.commit(Durability::Visible).map(drop)
    }

    /// Gives what was received its name.
    fn finish(&mut self, _end: u64) -> Result<FileId> {
        let mut txn = self.transaction()?;
        let Some(root) = self.key else { return Err(refused("it is empty")) };
        names::forget_receive(&mut txn, root)?;
        let (parent, name) = (self.progress.parent, &self.progress.name);
        Edit::new(&mut txn, 0).name_first(root, parent, name)?;
        self.keep(&mut txn, root)?;
        txn.commit(Durability::Durable)?;
        Ok(root)
    }

    /// Notes where what was received comes from, and makes the snapshot of it.
    fn keep(&self, txn: &mut Txn, root: FileId) -> Result<()> {
        let kept = txn.txg();
        names::set_received_as(txn, root, &self.progress.origin, kept)?;
        let is_directory = self.header.kind == Kind::Directory;
        let scope = Scope { file: root, is_directory };
        txn.create_snapshot_after(scope, &self.header.name, self.header.created_ns).map(drop)
    }
}
