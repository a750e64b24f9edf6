//! Sending: walks a snapshot and writes the frames of its stream, in an order that is a function of its content.
//!
//! ```text
//! complete   the scope; then every name below it, directories before what is in them, in the order of their
//!            names: where it is the first of its file (see [`Sender::is_first_name`]) an OBJECT with all that belongs to it;
//!            then, in the same order, further names
//! ```
//!
//! Of what an incremental stream has in its place tells `changes.rs`.
//!
//! An object is followed by its properties, its extended attributes, the dictionary it uses, its records and its patches. A
//! record whose extent was sent within the last [`SHARED_WINDOW`] frames is a SHARED.
//!
//! To go on at a later frame, or to measure, is the same walk; only what is not written is not read either.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::Write;

use super::ResumeToken;
use super::body::{At, Body, PIECE, piece_len, travelling};
use super::frame::{FRAME_EXTRA_LEN, FrameWriter, Header};
use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::pool::extents::source::Source;
use crate::pool::extents::{Piece, pieces_in};
use crate::pool::namespace::api::is_below;
use crate::pool::namespace::entries::{
    self, Attributes, DEPTH_MAX, DirEntry, Kind, LIST_COUNT, Origin, ROOT,
};
use crate::store::format::pointer::{Place, Pointer};
use crate::store::format::superblock::FEATURE_SHARED;
use crate::store::snapshots::StateId;
use crate::store::space_key;
use crate::store::trees::{MAP, PATCHES, REFS};
use crate::units::{FileId, Sector, Txg};

/// How many frames back an extent may have been sent to be shared with: what the sender remembers is bounded by it.
const SHARED_WINDOW: u64 = 1 << 20;
/// So many records are looked up together.
const PIECE_COUNT: usize = 256;

/// What is to be sent.
#[derive(Clone, Copy, Debug)]
pub struct SendPlan<'a> {
    /// The snapshot, opened to read.
    pub snapshot: &'a Pool,
    /// An older snapshot that the receiver has already, opened to read: only what changed since is sent.
    pub base: Option<&'a Pool>,
    /// The file or directory to send.
    pub scope: FileId,
    /// The name of the snapshot, which the receiver gives his as well.
    pub name: &'a [u8],
    /// When it was made.
    pub created_ns: i64,
    /// Where a stream that was cut goes on.
    pub resume: Option<ResumeToken>,
}

/// What was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SendReport {
    /// Frames, those that were passed over included.
    pub frames: u64,
    /// Bytes of the stream.
    pub bytes: u64,
    /// Records and patches.
    pub pieces: u64,
    /// Of these, how many were sent before in the same stream.
    pub shared: u64,
}

/// An extent, and which part of it.
type Content = (Sector, u32, u32);

/// Extents that were sent not long ago.
#[derive(Default)]
struct Sent {
    by_content: HashMap<Content, (u64, At)>,
    order: VecDeque<(u64, Content)>,
}

impl Sent {
    /// Where the extent was sent last, if within the window before frame `now`; from then on, here.
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

/// Told how many bytes of the stream are written.
pub(super) type Told<'a> = &'a mut dyn FnMut(u64);

pub(super) struct Sender<'a> {
    live: &'a Pool,
    pub(super) snapshot: &'a Pool,
    pub(super) scope: FileId,
    /// Nothing where the stream is only measured.
    out: Option<FrameWriter<'a>>,
    first: u64,
    next: u64,
    report: SendReport,
    dictionaries: HashSet<u32>,
    may_share: bool,
    sent: Sent,
    /// A file with several names was sent.
    pub(super) has_links: bool,
    told: Told<'a>,
}

impl Pool {
    /// Writes the stream of a snapshot of this pool. `told` gets the bytes written so far.
    pub fn send(
        &self,
        plan: &SendPlan<'_>,
        out: &mut dyn Write,
        told: &mut dyn FnMut(u64),
    ) -> Result<SendReport> {
        Sender::new(self, plan, Some(FrameWriter::new(out)), told)?.run(plan)
    }

    /// What identifies a file or directory in this state.
    pub fn state_id(&self, scope: FileId) -> StateId {
        StateId::of(&self.store().guid(), &self.state().superblock, scope)
    }

    /// How long that stream is. Looks at names and maps only.
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
        // Of what is outside a snapshot knows the names, and does not keep the bytes.
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
            // An extent that a snapshot has several pointers to is counted as long as there is the snapshot.
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
            name: plan.name.to_vec(),
        };
        let is_of_this =
            |token: ResumeToken| (token.id, token.base) == (header.origin.id, header.base_id);
        if !plan.resume.is_none_or(is_of_this) {
            let what = "the token is of another snapshot, or of another base";
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

    /// The frames of a stream that is complete in itself.
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
            let what = format!("the stream has {} frames, not {}", self.next, self.first);
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

    /// Numbers a frame; whether it is to be written.
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

    /// Calls `visit` with everything below a directory, by each of its names: the directory it is in, the name, and what
    /// is known of it. A directory comes before what is in it, if `visit` says so.
    #[allow(clippy::type_complexity)]
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
                return Err(Error::corrupt("names tree", 0, "directories lie in a circle"));
            }
        }
        Ok(())
    }

    /// Whether this is the name that a file is sent with: the first within what is sent, if there is one in the directory
    /// that it inherits from.
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

    /// Sends a file, directory or link with all that belongs to it.
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
            self.pieces(MAP, file)?;
            self.pieces(PATCHES, file)?;
        }
        Ok(())
    }

    /// Sends a dictionary, where that was not done yet.
    pub(super) fn dictionary(&mut self, number: u32) -> Result<()> {
        if number == 0 || !self.dictionaries.insert(number) {
            return Ok(());
        }
        let dictionary = self.snapshot.store().dictionary(number)?;
        self.emit(Body::Dictionary { number, bytes: dictionary.bytes().to_vec() })
    }

    /// Sends all records, or patches, of a file.
    fn pieces(&mut self, tree: u8, file: FileId) -> Result<()> {
        let mut from = 0;
        loop {
            let pool = self.snapshot;
            let pieces =
                pool.read(|source| pieces_in(source, tree, file, from, u64::MAX, PIECE_COUNT))?;
            for piece in &pieces {
                self.piece(tree, file, piece)?;
            }
            match pieces.last() {
                Some(last) if pieces.len() == PIECE_COUNT => from = last.start + 1,
                _ => return Ok(()),
            }
        }
    }

    /// Sends a record or patch.
    pub(super) fn piece(&mut self, tree: u8, file: FileId, piece: &Piece) -> Result<()> {
        let pointer = &piece.pointer;
        self.dictionary(pointer.dictionary)?;
        self.report.pieces += 1;
        let at = At { tree, file, offset: piece.start };
        if let Some(of) = self.sent_before(pointer, at)? {
            self.report.shared += 1;
            return self.emit(Body::Shared { at, pointer: travelling(pointer), of });
        }
        if !self.count(piece_len(pointer)) {
            return Ok(());
        }
        let stored = match pointer.place {
            Place::Extent { .. } => self.snapshot.store().read_stored(pointer)?,
            _ => Vec::new(),
        };
        let body = Body::Piece { at, pointer: travelling(pointer), stored };
        let (_, payload) = body.encode();
        self.write(PIECE, &payload)
    }

    /// Where in the stream the extent was sent before.
    fn sent_before(&mut self, pointer: &Pointer, at: At) -> Result<Option<At>> {
        let Place::Extent { sector, .. } = pointer.place else { return Ok(None) };
        if !self.may_share {
            return Ok(None);
        }
        let is_counted =
            self.live.read(|source| Ok(source.get(REFS, &space_key(sector))?.is_some()))?;
        let content = (sector, pointer.len, pointer.part_offset);
        Ok(if is_counted { self.sent.note(content, self.next, at) } else { None })
    }
}
