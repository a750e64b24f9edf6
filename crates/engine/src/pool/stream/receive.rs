//! Receiving: takes the frames of a connection and has them applied, in one or many transactions.
//!
//! Frames are gathered in memory up to [`BATCH_LEN`], then applied in one transaction; no lock is held while the
//! stream is waited for. In the same transaction is noted how many there are, and each begins by comparing: of two that receive the
//! same at a time, one is refused.

use std::io::Read;
use std::sync::Arc;

use twox_hash::XxHash3_64;

use super::ResumeToken;
use super::apply::{Apply, refused};
use super::body::{Body, END};
use super::frame::{Frame, FrameReader, Header};
use super::update::{changed_since, each_spooled, remove_orphans};
use crate::error::{Error, Result};
use crate::pool::extents::source::{Committed, Source};
use crate::pool::extents::{parse_piece_key, read_range};
use crate::pool::namespace::api::is_reached;
use crate::pool::namespace::edit::Edit;
use crate::pool::namespace::entries::{self, Attributes, Identity, Kind, Progress};
use crate::pool::namespace::props::{Dedup, Settings};
use crate::pool::snapshots::rollback::roll_back;
use crate::pool::write::batch::store_batch;
use crate::pool::write::jobs::{Job, Target};
use crate::pool::{Pool, ROOT};
use crate::store::snapshots::differ::differences;
use crate::store::snapshots::{Scope, Snapshot};
use crate::store::trees::{MAP, PATCHES};
use crate::store::{Durability, Patience, Txn};
use crate::units::{FileId, Txg};

/// A transaction has about so many bytes of frames.
const BATCH_LEN: usize = 16 << 20;
/// And so many frames at most.
const BATCH_COUNT: usize = 65_536;

/// How to receive.
#[derive(Clone, Copy, Default)]
pub struct ReceiveOptions<'a> {
    /// Brings the target back to the base first, where it was changed since.
    pub force: bool,
    /// So many bytes of frames are applied in one transaction; 0 for the usual number.
    pub batch_len: usize,
    /// Is called with what is about to change, where something was there before: who has that open must be kept out
    /// from then on, until the receive returns. What it fails with, the receive fails with.
    pub before_change: Option<&'a dyn Fn(FileId) -> Result<()>>,
    /// The stream begins at this byte of the input, as [`ReceiveReport::next`] said of the one before.
    pub behind: Option<u64>,
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
    /// Another stream follows from this byte of the input on. Its first bytes were read:
    /// [`ReceiveOptions::behind`] says so to the next call.
    pub next: Option<u64>,
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
    force: bool,
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
        // Garbage is noticed before anything is seen of what it follows.
        let next = reader.next_stream()?.then_some(reader.len);
        receive.announce(options)?;
        let file = receive.finish()?;
        Ok(ReceiveReport {
            file,
            snapshot: receive.header.name,
            bytes: reader.len - began,
            frames: end,
            is_incremental: receive.header.base.0 != 0,
            next,
        })
    }

    /// From where a stream goes on that is not received to its end under this name.
    pub fn receive_token(&self, directory: FileId, name: &[u8]) -> Result<Option<ResumeToken>> {
        let found = self.read(|source| entries::find_progress(source, directory, name))?;
        let Some((_, Progress { origin, base_id, frames, .. })) = found else { return Ok(None) };
        if origin.id.is_none() {
            let what = "an earlier version received a part of a stream there, and it cannot go on; \
                        give it up and send all of it again";
            return Err(Error::Invalid(what.into()));
        }
        Ok(Some(ResumeToken { id: origin.id, base: base_id, frames }))
    }

    /// Gives up a stream that is not received to its end under this name, and what came of it; whether there was one.
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

/// Removes all that was created by a receive, whose root is `key`, and its notes.
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
            let what = "another stream is not received to its end there; give it up first";
            return Err(Error::Invalid(what.into()));
        }
        if header.first > progress.frames {
            let (first, frames) = (header.first, progress.frames);
            let what = format!("the stream begins at frame {first}, and {frames} were received");
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
        Ok(Receive { pool, header, progress, key, batch, batch_len: 0, batch_len_max, force })
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
        let noted = entries::find_progress(&mut txn, self.progress.parent, &self.progress.name)?;
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
        match self.header.base.0 {
            0 => self.apply(&mut txn, batch)?,
            _ => self.gather(&mut txn, batch)?,
        }
        self.progress.frames = last + 1;
        if let Some(key) = self.key {
            entries::set_progress(&mut txn, key, Some(&self.progress))?;
        }
        txn.commit(Durability::Visible).map(drop)
    }

    /// Stands for what is received.
    fn from(&self) -> u64 {
        XxHash3_64::oneshot(&self.progress.origin.id.0)
    }

    /// Applies frames of a complete stream.
    fn apply(&mut self, txn: &mut Txn, batch: Vec<Frame>) -> Result<()> {
        let checksum = self.pool.settings(self.progress.parent)?.checksum;
        let from = self.from();
        for frame in batch {
            let body = decode(&frame)?;
            match self.key {
                Some(key) => Apply { key, root: key, checksum, from }.complete(txn, body)?,
                None => {
                    let key = txn.new_file_id();
                    let apply = Apply { key, root: key, checksum, from };
                    apply.begin(txn, body, self.header.kind, self.progress.parent)?;
                    self.key = Some(key);
                }
            }
        }
        Ok(())
    }

    /// Adds frames of an incremental stream to the file they are gathered in.
    fn gather(&mut self, txn: &mut Txn, batch: Vec<Frame>) -> Result<()> {
        let parent = self.progress.parent;
        let file = match self.key {
            Some(file) => file,
            None => {
                let file = txn.new_file_id();
                let like = Attributes::new(Kind::File, parent);
                Edit::new(txn, 0).create_nameless(file, parent, &like)?;
                file
            }
        };
        self.key = Some(file);
        let settings = self.pool.settings(parent)?;
        let span = u64::from(settings.record_len);
        let start = self.progress.spooled / span * span;
        // The last record is written once more, with what came since.
        let mut bytes = vec![0; (self.progress.spooled - start) as usize];
        read_range(txn, file, &mut bytes, start)?;
        for frame in batch {
            decode(&frame)?;
            bytes.extend(frame.to_bytes());
        }
        self.progress.spooled = start + bytes.len() as u64;
        entries::set_len(txn, file, self.progress.spooled)?;
        let starts = (start..).step_by(span as usize);
        let span_log2 = span.trailing_zeros() as u8;
        let parts = bytes.chunks(span as usize).zip(starts);
        let jobs = parts.map(|(part, at)| Job::record(at, part.to_vec(), span_log2)).collect();
        let target = Target {
            file,
            settings: Settings { dedup: Dedup::Off, ..settings },
            threads: self.pool.options().threads,
            dictionary: None,
            adapt: None,
            history: Arc::default(),
            is_exact: false,
        };
        store_batch(txn, &target, jobs).map(drop)
    }

    /// Tells what is about to change, before the lock is taken: what is in logs may have to be committed first.
    fn announce(&self, options: &ReceiveOptions<'_>) -> Result<()> {
        let Some(before_change) = options.before_change.filter(|_| self.header.base.0 != 0) else {
            return Ok(());
        };
        match self.pool.lookup_in(self.progress.parent, &self.progress.name)? {
            Some(entry) => before_change(entry.file),
            None => Ok(()),
        }
    }

    /// Makes what was received seen, all at once.
    fn finish(&mut self) -> Result<FileId> {
        let mut txn = self.transaction()?;
        let root = match (self.header.base.0, self.key) {
            (0, None) => return Err(refused("it is empty")),
            (0, Some(root)) => {
                entries::forget_receive(&mut txn, root)?;
                let (parent, name) = (self.progress.parent, &self.progress.name);
                Edit::new(&mut txn, 0).name_first(root, parent, name)?;
                root
            }
            _ => self.update(&mut txn)?,
        };
        let scope = Scope { file: root, is_directory: self.header.kind == Kind::Directory };
        let kept = txn.txg();
        entries::set_received_as(&mut txn, root, self.progress.origin.id, kept)?;
        txn.create_snapshot_after(scope, &self.header.name, self.header.created_ns)?;
        txn.commit(Durability::Durable)?;
        Ok(root)
    }

    /// Makes the target, which is what the base is, what the gathered frames say.
    fn update(&self, txn: &mut Txn) -> Result<FileId> {
        let (parent, name) = (self.progress.parent, &self.progress.name);
        let text = || String::from_utf8_lossy(name).into_owned();
        let missing = || Error::NotFound { what: "file", name: text() };
        let entry = entries::lookup(txn, parent, name)?.ok_or_else(missing)?;
        let root = entry.file;
        if entry.kind != self.header.kind {
            return Err(refused("its scope is of another kind"));
        }
        let snapshot =
            self.pool.kept_as(root, received_base(self.pool, txn, root, &self.header)?)?;
        self.pool.check_settled(root, entry.kind == Kind::Directory)?;
        // Under the lock the newest state stays so.
        if !self.force && self.pool.is_changed_within(&snapshot)? {
            return Err(changed_since());
        }
        if self.force || self.pool.is_laid_out_anew(&snapshot)? {
            // Records may have been written anew, and be laid out in another way than the stream knows.
            roll_back(txn, &snapshot)?;
        }
        let Some(key) = self.key else { return Ok(root) };
        let checksum = self.pool.settings(parent)?.checksum;
        let apply = Apply { key, root, checksum, from: self.from() };
        let spooled = (self.progress.spooled, self.progress.frames);
        each_spooled(self.pool, key, spooled, &mut |body| match body {
            Body::Known { file, path } => apply.know(txn, file, &path),
            _ => Ok(()),
        })?;
        each_spooled(self.pool, key, spooled, &mut |body| apply.change(txn, body))?;
        remove_orphans(txn)?;
        let attributes = entries::attributes(txn, key)?;
        Edit::new(txn, 0).remove_file(key, &attributes)?;
        Ok(root)
    }
}

fn decode(frame: &Frame) -> Result<Body> {
    let malformed = || refused(format!("frame {} is malformed", frame.number));
    Body::decode(frame.tag, &frame.payload).ok_or_else(malformed)
}

/// The state that was kept here when the base of a stream was received.
fn received_base(
    pool: &Pool,
    source: &mut impl Source,
    scope: FileId,
    header: &Header,
) -> Result<Txg> {
    // What was received and destroyed since may come again.
    if let Some(kept) = entries::received_as(source, scope, header.origin.id)?
        && pool.find_kept(scope, kept)?.is_some()
    {
        let name = String::from_utf8_lossy(&header.name).into_owned();
        return Err(Error::Exists { name });
    }
    if let Some(kept) = entries::received_as(source, scope, header.base_id)? {
        return Ok(kept);
    }
    if entries::received_by_txg(source, scope, &header.origin.guid, header.base)? {
        let what = "an earlier version received what the stream starts from, and did not note \
                    which snapshot that was: send all of it again, to another name";
        return Err(Error::Invalid(what.into()));
    }
    Err(no_base(header.base))
}

fn no_base(txg: Txg) -> Error {
    let name = format!(
        "of txg {txg} of the sender, from which the stream starts; one of the same number from a copy \
         of that pool is another"
    );
    Error::NotFound { what: "snapshot", name }
}

impl Pool {
    /// The snapshot of a scope that keeps a state.
    fn kept_as(&self, scope: FileId, txg: Txg) -> Result<Snapshot> {
        self.find_kept(scope, txg)?.ok_or_else(|| no_base(txg))
    }

    fn find_kept(&self, scope: FileId, txg: Txg) -> Result<Option<Snapshot>> {
        let found = self.store().with_state(|state| self.store().snapshots(state))?;
        let mut those = found.into_iter().filter(|snapshot| !snapshot.is_condemned);
        Ok(those.find(|snapshot| (snapshot.scope.file, snapshot.txg) == (scope, txg)))
    }

    /// Whether any record in the scope of a snapshot is another one since, though its bytes may be the same.
    fn is_laid_out_anew(&self, snapshot: &Snapshot) -> Result<bool> {
        let (state, scope) = (self.state(), snapshot.scope.file);
        let mut last = None;
        for tree in [MAP, PATCHES] {
            let now = state.superblock.roots[usize::from(tree)].as_ref();
            let mut is_found = false;
            differences(self.store(), tree, (snapshot.root(tree), now), &mut |key, _, _| {
                let (file, _) = parse_piece_key(key)?;
                if last != Some(file) {
                    last = Some(file);
                    let source = &mut Committed::new(self.store(), &state);
                    is_found |= file == scope
                        || entries::is_there(source, file)? && is_reached(source, file, scope)?;
                }
                Ok(())
            })?;
            if is_found {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
