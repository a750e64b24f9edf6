//! Sending: walks a snapshot and writes the frames of its stream, in an order determined by its
//! content.
//!
//! ```text
//! complete   the scope; then every name below it, directories before their entries, in name order:
//!            for the first name of a file (see `Sender::is_first_name`) an OBJECT with everything
//!            that belongs to it; then, in the same order, the further names
//! ```
//!
//! `changes.rs` describes the frames of an incremental stream.
//!
//! An object is followed by its properties, its extended attributes, its dictionary, its records
//! and its patches. A record whose extent was sent within the last [`SHARED_WINDOW`] frames becomes
//! a SHARED.
//!
//! Resuming at a later frame, or measuring, takes the same walk; but data that is not written is
//! not read either.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::Write;

use super::ResumeToken;
use super::body::{At, Body, FILE_EXTENT, file_extent_len, travelling};
use super::frame::{FRAME_EXTRA_LEN, FrameWriter, Header, features_of};
use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::pool::extents::source::Source;
use crate::pool::extents::{FileExtent, file_extents_in};
use crate::pool::namespace::api::is_below;
use crate::pool::namespace::entries::{
    self, Attributes, DEPTH_MAX, DirEntry, Kind, LIST_COUNT, Origin, ROOT,
};
use crate::store::format::pointer::{Place, Pointer};
use crate::store::format::snapshot::StateId;
use crate::store::format::space::space_key;
use crate::store::format::superblock::FEATURE_SHARED;
use crate::store::trees::TreeId;
use crate::units::{FileId, Sector, Txg};

/// How many frames back a shared extent may have been sent: this bounds what the sender remembers.
const SHARED_WINDOW: u64 = 1 << 20;
/// How many records are looked up at a time.
const EXTENT_COUNT: usize = 256;

/// A snapshot to send, and how.
#[derive(Clone, Copy, Debug)]
pub struct SendPlan<'a> {
    /// The snapshot, opened for reading.
    pub snapshot: &'a Pool,
    /// An older snapshot that the receiver already has, opened for reading: only the changes since
    /// are sent.
    pub base: Option<&'a Pool>,
    /// The file or directory to send.
    pub scope: FileId,
    /// The name of the snapshot, also used by the receiver.
    pub name: &'a [u8],
    /// When it was created, in nanoseconds since 1970.
    pub created_ns: i64,
    /// Where an interrupted stream continues.
    pub resume: Option<ResumeToken>,
}

/// The result of sending or measuring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct SendReport {
    /// The number of frames, including those skipped by a resume.
    pub frames: u64,
    /// Bytes of the stream.
    pub bytes: u64,
    /// Records and patches.
    pub extents: u64,
    /// How many of these share an extent that was already sent in the same stream.
    pub shared: u64,
}

/// An extent and the part of it that is used.
type Content = (Sector, u32, u32);

/// Extents that were sent recently.
#[derive(Default)]
struct Sent {
    by_content: HashMap<Content, (u64, At)>,
    order: VecDeque<(u64, Content)>,
}

impl Sent {
    /// Returns where the extent was last sent, if that was within the window before frame `now`,
    /// and records `at` as the latest place.
    fn note(&mut self, content: Content, now: u64, at: At) -> Option<At> {
        while let Some((then, old)) = self.order.front().copied()
            && then + SHARED_WINDOW < now
        {
            self.order.pop_front();
            if self.by_content.get(&old).is_some_and(|(newest, _)| *newest == then) {
                self.by_content.remove(&old);
            }
        }
        self.order.push_back((now, content));
        self.by_content.insert(content, (now, at)).map(|(_, at)| at)
    }
}

/// A callback that receives the number of stream bytes written.
pub(super) type Told<'a> = &'a mut dyn FnMut(u64);

pub(super) struct Sender<'a> {
    live: &'a Pool,
    pub(super) snapshot: &'a Pool,
    pub(super) scope: FileId,
    /// `None` if the stream is only measured.
    out: Option<FrameWriter<'a>>,
    first: u64,
    next: u64,
    report: SendReport,
    dictionaries: HashSet<u32>,
    /// The numbers of the bases, by their places, once they are needed.
    bases: Option<HashMap<Sector, u32>>,
    may_share: bool,
    sent: Sent,
    /// Whether a file with several names was sent.
    pub(super) has_links: bool,
    told: Told<'a>,
}

impl Pool {
    /// Writes the stream of a snapshot of this pool. `told` receives the bytes written so far.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use hardpack_engine::device::MemoryDevice;
    /// # use hardpack_engine::{CreateOptions, Options, Pool};
    /// # fn new_pool(guid: u8) -> hardpack_engine::Result<Pool> {
    /// #     let device = Arc::new(MemoryDevice::default());
    /// #     Pool::create(device, &CreateOptions::new([guid; 16]), Options::new(1 << 20))
    /// # }
    /// use hardpack_engine::FileId;
    /// use hardpack_engine::pool::{ReceiveOptions, SendPlan};
    ///
    /// # let (from, to) = (new_pool(1)?, new_pool(2)?);
    /// from.create_file_at(b"a", 0o644, 0)?;
    /// from.create_snapshot(FileId::ROOT, b"monday", 0)?;
    /// let plan = SendPlan {
    ///     snapshot: &from.open_snapshot(FileId::ROOT, b"monday")?,
    ///     base: None, // everything, not only what changed since another snapshot
    ///     scope: FileId::ROOT,
    ///     name: b"monday",
    ///     created_ns: 0,
    ///     resume: None,
    /// };
    /// let mut stream = Vec::new(); // anything that implements `Write`
    /// from.send(&plan, &mut stream, &mut |_| {})?;
    ///
    /// let options = ReceiveOptions::default();
    /// to.receive(FileId::ROOT, b"copy", &mut &stream[..], &options, &mut |_| {})?;
    /// assert!(to.resolve(b"copy/a").is_ok());
    /// # Ok::<(), hardpack_engine::Error>(())
    /// ```
    pub fn send(
        &self,
        plan: &SendPlan<'_>,
        out: &mut dyn Write,
        told: &mut dyn FnMut(u64),
    ) -> Result<SendReport> {
        Sender::new(self, plan, Some(FrameWriter::new(out)), told)?.run(plan)
    }

    /// Returns the identity of a file or directory in this state.
    pub fn state_id(&self, scope: FileId) -> StateId {
        StateId::of(&self.store().guid(), &self.state().superblock, scope)
    }

    /// Measures the stream without writing it. Reads names and maps only.
    pub fn measure_send(&self, plan: &SendPlan<'_>) -> Result<SendReport> {
        Sender::new(self, plan, None, &mut |_| {})?.run(plan)
    }
}

impl<'a> Sender<'a> {
    fn new(
        live: &'a Pool,
        plan: &SendPlan<'a>,
        out: Option<FrameWriter<'a>>,
        told: Told<'a>,
    ) -> Result<Sender<'a>> {
        if !plan.snapshot.store().is_pinned() {
            return Err(Error::Invalid("only a snapshot can be sent".into()));
        }
        // A snapshot contains the names outside its scope, but does not keep their bytes.
        plan.snapshot.check_in_scope(plan.scope)?;
        plan.base.map_or(Ok(()), |base| base.check_in_scope(plan.scope))?;
        Ok(Sender {
            live,
            snapshot: plan.snapshot,
            scope: plan.scope,
            out,
            first: plan.resume.map_or(0, |token| token.frames),
            next: 0,
            report: SendReport::default(),
            dictionaries: HashSet::new(),
            bases: None,
            // If a snapshot has several pointers to an extent, they stay counted while the snapshot
            // exists.
            may_share: live.state().superblock.incompat & FEATURE_SHARED != 0,
            sent: Sent::default(),
            has_links: false,
            told,
        })
    }

    fn run(mut self, plan: &SendPlan<'a>) -> Result<SendReport> {
        let store = self.snapshot.store();
        let attributes = self.snapshot.attributes(self.scope)?;
        let header = Header {
            origin: Origin {
                guid: store.guid(),
                txg: self.snapshot.state().txg(),
                id: self.snapshot.state_id(self.scope),
            },
            base: plan.base.map_or(Txg(0), |base| base.state().txg()),
            base_id: plan.base.map_or(StateId::NONE, |base| base.state_id(self.scope)),
            first: self.first,
            scope: self.scope,
            created_ns: plan.created_ns,
            kind: attributes.kind,
            features: features_of(self.live.state().superblock.incompat),
            name: plan.name.to_vec(),
        };
        let is_of_this =
            |token: ResumeToken| (token.id, token.base) == (header.origin.id, header.base_id);
        if !plan.resume.is_none_or(is_of_this) {
            let what = "the token belongs to another snapshot or another base";
            return Err(Error::Invalid(what.into()));
        }
        let bytes = header.encode();
        self.report.bytes += bytes.len() as u64;
        if let Some(out) = &mut self.out {
            out.write(&bytes)?;
        }
        match plan.base {
            None => self.complete(&attributes)?,
            Some(base) => {
                let is_older = base.state().txg() < header.origin.txg;
                if base.store().guid() != store.guid() || !base.store().is_pinned() || !is_older {
                    let what = "the base must be an older snapshot of the same pool";
                    return Err(Error::Invalid(what.into()));
                }
                self.changes(base)?;
            }
        }
        self.end()
    }

    /// Sends the frames of a complete stream.
    fn complete(&mut self, attributes: &Attributes) -> Result<()> {
        self.object(FileId(0), &[], self.scope, attributes)?;
        if attributes.kind != Kind::Directory {
            return Ok(());
        }
        let mut visit = |sender: &mut Self, above: FileId, entry: &DirEntry, its: &Attributes| {
            if sender.is_first_name(above, entry, its)? {
                sender.object(above, &entry.name, entry.file, its)?;
            }
            Ok(true)
        };
        self.walk(self.scope, &mut visit)?;
        if self.has_links {
            self.walk(self.scope, &mut |sender, above, entry, its| {
                if !sender.is_first_name(above, entry, its)? {
                    let (directory, file) = (above, entry.file);
                    sender.emit(Body::Name { directory, file, name: entry.name.clone() })?;
                }
                Ok(true)
            })?;
        }
        Ok(())
    }

    fn end(mut self) -> Result<SendReport> {
        if self.next < self.first {
            let what = format!(
                "the stream has only {} frames, but the token says {} were received",
                self.next, self.first
            );
            return Err(Error::Invalid(what));
        }
        let hash = self.out.as_ref().map_or([0; 32], FrameWriter::hash);
        self.emit(Body::End { frames: self.next, hash })?;
        if let Some(out) = &mut self.out {
            out.flush()?;
        }
        self.report.frames = self.next;
        Ok(self.report)
    }

    /// Numbers a frame, and returns whether it must be written.
    fn count(&mut self, payload_len: usize) -> bool {
        self.next += 1;
        let is_due = self.next > self.first;
        if is_due {
            self.report.bytes += (payload_len + FRAME_EXTRA_LEN) as u64;
        }
        is_due && self.out.is_some()
    }

    fn write(&mut self, tag: u8, payload: &[u8]) -> Result<()> {
        if let Some(out) = &mut self.out {
            out.frame(self.next - 1, tag, payload)?;
        }
        (self.told)(self.report.bytes);
        Ok(())
    }

    pub(super) fn emit(&mut self, body: Body) -> Result<()> {
        let (tag, payload) = body.encode();
        match self.count(payload.len()) {
            true => self.write(tag, &payload),
            false => Ok(()),
        }
    }

    /// Calls `visit` with everything below a directory, once for each of its names: the directory,
    /// the entry and the attributes. A directory comes before its entries, which are visited only
    /// if `visit` returns true.
    pub(super) fn walk(
        &mut self,
        directory: FileId,
        visit: &mut dyn FnMut(&mut Self, FileId, &DirEntry, &Attributes) -> Result<bool>,
    ) -> Result<()> {
        let mut above: Vec<(FileId, Option<Vec<u8>>)> = vec![(directory, None)];
        while let Some((directory, after)) = above.pop() {
            let entries =
                self.snapshot.list_with_attributes(directory, after.as_deref(), LIST_COUNT)?;
            let mut below = None;
            for (entry, attributes) in &entries {
                if visit(self, directory, entry, attributes)? && entry.kind == Kind::Directory {
                    self.snapshot.check_only_name(directory, entry, above.len())?;
                    below = Some(entry);
                    break;
                }
            }
            if let Some(last) = below.or(entries.last().map(|(entry, _)| entry)) {
                above.push((directory, Some(last.name.clone())));
            }
            above.extend(below.map(|entry| (entry.file, None)));
            if above.len() > DEPTH_MAX {
                return Err(entries::circle(directory, DEPTH_MAX));
            }
        }
        Ok(())
    }

    /// Whether a file is sent under this name: its first name in the directory that it inherits
    /// from, if that is part of the stream, otherwise its first name within the stream.
    pub(super) fn is_first_name(
        &mut self,
        directory: FileId,
        entry: &DirEntry,
        attributes: &Attributes,
    ) -> Result<bool> {
        if attributes.link_count <= 1 {
            return Ok(true);
        }
        let scope = self.scope;
        let first = self.snapshot.read(|source| {
            let mut first = None;
            for (directory, name) in entries::names_of(source, entry.file)? {
                let is_home = directory == attributes.parent;
                if (first.is_none() || is_home) && is_below(source, directory, scope)? {
                    first = Some((directory, name));
                    if is_home {
                        break;
                    }
                }
            }
            Ok(first)
        })?;
        Ok(first.is_some_and(|(above, name)| above == directory && name == entry.name))
    }

    /// Sends a file, directory or link with everything that belongs to it.
    pub(super) fn object(
        &mut self,
        parent: FileId,
        name: &[u8],
        file: FileId,
        attributes: &Attributes,
    ) -> Result<()> {
        self.has_links |= attributes.link_count > 1;
        let pool = self.snapshot;
        let (target, properties, xattrs, uses) = pool.read(|source| {
            let target = match attributes.kind {
                Kind::Symlink => entries::target(source, file)?,
                _ => Vec::new(),
            };
            let properties = entries::local_properties(source, file)?;
            let uses = entries::dictionary(source, file)?;
            Ok((target, properties, entries::xattrs(source, file)?, uses))
        })?;
        let attributes = Attributes { parent: ROOT, link_count: 1, ..*attributes };
        self.emit(Body::Object { file, parent, name: name.to_vec(), attributes, target })?;
        for (property, text) in properties {
            let (name, value) = (property.name().into(), Some(text.into_bytes()));
            self.emit(Body::Property { file, name, value })?;
        }
        for (name, value) in xattrs {
            self.emit(Body::Xattr { file, name, value: Some(value) })?;
        }
        if let Some(number) = uses {
            self.dictionary(number)?;
            self.emit(Body::Uses { file, number })?;
        }
        if attributes.kind == Kind::File {
            self.file_extents(TreeId::Map, file)?;
            self.file_extents(TreeId::Patches, file)?;
        }
        Ok(())
    }

    /// Sends a dictionary or base, unless it was already sent.
    pub(super) fn dictionary(&mut self, number: u32) -> Result<()> {
        if number == 0 || !self.dictionaries.insert(number) {
            return Ok(());
        }
        if let Some((base, first)) = self.snapshot.store().base_entries(number)? {
            // What it differs from itself comes first.
            if let Some(first) = first.filter(|_| self.dictionaries.insert(base.dictionary)) {
                self.extent(At::of_base(base.dictionary), &first)?;
            }
            return self.extent(At::of_base(number), &base);
        }
        let dictionary = self.snapshot.store().dictionary(number)?;
        self.emit(Body::Dictionary { number, bytes: dictionary.bytes().to_vec() })
    }

    /// Sends all records or all patches of a file.
    fn file_extents(&mut self, tree: TreeId, file: FileId) -> Result<()> {
        let mut from = 0;
        loop {
            let pool = self.snapshot;
            let extents = pool
                .read(|source| file_extents_in(source, tree, file, from, u64::MAX, EXTENT_COUNT))?;
            for extent in &extents {
                self.file_extent(tree, file, extent)?;
            }
            match extents.last() {
                Some(last) if extents.len() == EXTENT_COUNT => from = last.start + 1,
                _ => return Ok(()),
            }
        }
    }

    /// Sends a record or patch.
    pub(super) fn file_extent(
        &mut self,
        tree: TreeId,
        file: FileId,
        extent: &FileExtent,
    ) -> Result<()> {
        let pointer = &extent.pointer;
        self.dictionary(pointer.dictionary)?;
        if let Some(number) = self.number_of(pointer)? {
            // Others differ from it: as a base, it is there whatever becomes of the record.
            self.dictionary(number)?;
        }
        self.report.extents += 1;
        self.extent(At { tree, file, offset: extent.start }, pointer)
    }

    fn extent(&mut self, at: At, pointer: &Pointer) -> Result<()> {
        if let Some(of) = self.sent_before(pointer, at)? {
            self.report.shared += 1;
            return self.emit(Body::Shared { at, pointer: travelling(pointer), of });
        }
        if !self.count(file_extent_len(pointer)) {
            return Ok(());
        }
        let stored = match pointer.place {
            Place::Extent { .. } => self.snapshot.store().read_stored(pointer)?,
            _ => Vec::new(),
        };
        let body = Body::FileExtent { at, pointer: travelling(pointer), stored };
        let (_, payload) = body.encode();
        self.write(FILE_EXTENT, &payload)
    }

    /// Returns the number of the base that a record is, if it is one and no part of a segment.
    fn number_of(&mut self, pointer: &Pointer) -> Result<Option<u32>> {
        let Some(sector) = pointer.sector().filter(|_| self.may_share && !pointer.is_part()) else {
            return Ok(None);
        };
        if self.bases.is_none() {
            let bases =
                self.snapshot.read(|source| source.store.bases_in(source.state))?.into_iter();
            let numbers = bases.filter_map(|(number, base)| Some((base.sector()?, number)));
            self.bases = Some(numbers.collect());
        }
        Ok(self.bases.as_ref().and_then(|bases| bases.get(&sector)).copied())
    }

    /// Returns where in the stream the extent was sent before.
    fn sent_before(&mut self, pointer: &Pointer, at: At) -> Result<Option<At>> {
        let Place::Extent { sector, .. } = pointer.place else { return Ok(None) };
        if !self.may_share {
            return Ok(None);
        }
        let is_counted =
            self.live.read(|source| Ok(source.get(TreeId::Refs, &space_key(sector))?.is_some()))?;
        let content = match pointer.is_delta() {
            true => (sector, pointer.len, pointer.part_offset),
            // It is sent once, with the first of its parts.
            false => (sector, u32::MAX, 0),
        };
        Ok(if is_counted { self.sent.note(content, self.next, at) } else { None })
    }
}
