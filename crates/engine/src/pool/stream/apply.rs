//! Applies the frames of a stream to the receiving pool.
//!
//! Nothing in a frame is trusted: an object must be known and a name free; a record must match its
//! checksum, decompress to its claimed length, and not overlap another. Anything else is an error,
//! after which the transaction must be dropped.

use std::borrow::Cow;
use std::str::FromStr;
use std::sync::Arc;

use super::body::{At, Body, travelling};
use super::found_bases::FoundBases;
use super::frame::Frame;
use super::staging::Held;
use crate::codec::{CodecId, Dictionary};
use crate::error::{Error, Location, Result};
use crate::pool::extents::change::add_file_extent;
use crate::pool::extents::delta;
use crate::pool::extents::{
    FileExtent, file_extent_key, has_record_in, parse_file_extent, patches_over, record_at,
};
use crate::pool::namespace::edit::Edit;
use crate::pool::namespace::entries::{self, Attributes, Identity, Kind};
use crate::pool::namespace::props::{Dedup, Property, Settings};
use crate::pool::write::dedup::{self, Known, Plan, Shared};
use crate::pool::write::jobs::{Job, WriteTarget};
use crate::pool::write::workers::Workers;
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::pointer::{Filter, Place, Pointer, sectors_for};
use crate::store::format::refs::ContentHash;
use crate::store::trees::TreeId;
use crate::store::{Encoding, Store, Txn};
use crate::units::FileId;

/// The receive that frames are applied for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Apply {
    /// The file that identities are recorded with: for a complete stream, its root.
    pub key: FileId,
    /// The file or directory that corresponds to the stream's scope.
    pub root: FileId,
    /// The checksum for dictionaries, which have none in the stream.
    pub checksum: ChecksumKind,
    /// Identifies the received snapshot in the generations of changed files.
    pub from: u64,
}

/// Refuses what a frame says. Whoever reads the frame adds its number.
pub(super) fn refused(what: impl Into<String>) -> Error {
    Error::corrupt("stream", Location::Nowhere, what)
}

/// Reads what a frame says.
pub(super) fn decode(frame: &Frame) -> Result<Body> {
    Body::decode(frame.tag, &frame.payload).ok_or_else(|| {
        let what = format!(
            "expected the fields of a frame of type {}, found {} other bytes",
            frame.tag,
            frame.payload.len()
        );
        Error::corrupt("stream", Location::Frame(frame.number), what)
    })
}

impl Apply {
    /// Applies a frame of a complete stream. `is_verified` says that [`verify`] found no fault in
    /// its content.
    pub(super) fn complete(&self, txn: &mut Txn, body: Body, is_verified: bool) -> Result<()> {
        match body {
            Body::Object { parent: FileId(0), .. } => {
                Err(refused("expected one scope, found a second"))
            }
            Body::Name { directory, file, name } => {
                let (directory, file) = (self.file(txn, directory)?, self.file(txn, file)?);
                if file == self.root {
                    return Err(refused(
                        "expected the scope to have no name within itself, found one",
                    ));
                }
                Edit::new(txn, 0).link(file, directory, &name)
            }
            Body::Known { .. }
            | Body::RemoveName { .. }
            | Body::RemoveFileExtent { .. }
            | Body::Attributes { .. }
            | Body::Property { value: None, .. }
            | Body::Xattr { value: None, .. } => {
                Err(refused("expected only new things, as it starts from nothing, found a change"))
            }
            body => self.common(txn, body, is_verified),
        }
    }

    /// Applies a frame that means the same in all streams.
    pub(super) fn common(&self, txn: &mut Txn, body: Body, is_verified: bool) -> Result<()> {
        match body {
            Body::Dictionary { number, bytes } => self.dictionary(txn, number, &bytes),
            Body::Object { file, parent, name, attributes, target } => {
                let parent = self.file(txn, parent)?;
                let here = txn.new_file_id();
                Edit::new(txn, 0).create_as(here, parent, &name, &attributes)?;
                self.describe_new(txn, (file, here), &attributes, &target)
            }
            Body::Property { file, name, value } => {
                let file = self.file(txn, file)?;
                set_property(txn, file, &name, value)
            }
            Body::Xattr { file, name, value } => {
                let file = self.file(txn, file)?;
                match value {
                    Some(value) => entries::set_xattr(txn, file, &name, &value),
                    None => entries::remove_xattr(txn, file, &name).map(drop),
                }
            }
            Body::Uses { file, number } => {
                let (file, number) = (self.file(txn, file)?, self.number(txn, number)?);
                if txn.is_base(number)? {
                    return Err(refused("expected a dictionary for what is written, found a base"));
                }
                entries::set_dictionary(txn, file, number)
            }
            Body::FileExtent { at, pointer, stored } => {
                self.file_extent(txn, at, pointer, &stored, is_verified)
            }
            Body::Shared { at, pointer, of } => self.shared(txn, at, &pointer, of),
            _ => Err(refused("expected a frame that may come here, found one of another type")),
        }
    }

    /// Creates the scope of a complete stream, without a name. `parent` is the directory that will
    /// contain it.
    pub(super) fn begin(
        &self,
        txn: &mut Txn,
        body: Body,
        kind: Kind,
        parent: FileId,
    ) -> Result<()> {
        match body {
            Body::Object { file, parent: FileId(0), name, attributes, target }
                if name.is_empty() && attributes.kind == kind =>
            {
                Edit::new(txn, 0).create_nameless(self.root, parent, &attributes)?;
                self.describe_new(txn, (file, self.root), &attributes, &target)
            }
            _ => Err(refused("expected its scope, found something else")),
        }
    }

    /// Records the identity of an object that was just created empty, and sets its target and
    /// length.
    fn describe_new(
        &self,
        txn: &mut Txn,
        (there, here): (FileId, FileId),
        attributes: &Attributes,
        target: &[u8],
    ) -> Result<()> {
        if entries::identity(txn, self.key, Identity::File, there.0)?.is_some() {
            return Err(refused(format!("expected a new number, found {} a second time", there.0)));
        }
        entries::set_identity(txn, self.key, Identity::File, there.0, here.0)?;
        let len = match attributes.kind {
            Kind::Directory => 0,
            Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => 0,
            Kind::File => attributes.len,
            Kind::Symlink => {
                entries::set_target(txn, here, target)?;
                target.len() as u64
            }
        };
        if len != attributes.len || attributes.kind != Kind::Symlink && !target.is_empty() {
            return Err(refused(format!(
                "expected number {} to be {len} bytes long, found {}",
                there.0, attributes.len
            )));
        }
        entries::set_len(txn, here, len)
    }

    /// Returns the local file with this number in the stream.
    pub(super) fn file(&self, txn: &mut Txn, there: FileId) -> Result<FileId> {
        let here = entries::identity(txn, self.key, Identity::File, there.0)?;
        here.map(FileId).ok_or_else(|| {
            refused(format!("expected a number from an earlier frame, found {}", there.0))
        })
    }

    /// Returns the local number of one of the stream's dictionaries.
    fn number(&self, txn: &mut Txn, there: u32) -> Result<u32> {
        if there == 0 {
            return Ok(0);
        }
        let here = entries::identity(txn, self.key, Identity::Dictionary, there.into())?;
        let here = here.and_then(|here| u32::try_from(here).ok());
        here.ok_or_else(|| {
            refused(format!("expected a dictionary from an earlier frame, found {there}"))
        })
    }

    fn dictionary(&self, txn: &mut Txn, there: u32, bytes: &[u8]) -> Result<()> {
        if entries::identity(txn, self.key, Identity::Dictionary, there.into())?.is_some() {
            return Err(refused(format!("expected a new dictionary, found {there} a second time")));
        }
        // Each incremental stream brings what its records need.
        let here = match txn.find_dictionary(bytes, self.checksum)? {
            Some(here) => here,
            None => txn.add_dictionary(&Arc::new(Dictionary::new(bytes)), self.checksum)?,
        };
        entries::set_identity(txn, self.key, Identity::Dictionary, there.into(), here.into())
    }

    /// Stores a segment or record that others differ from, unless it is there.
    pub(super) fn base(
        &self,
        txn: &mut Txn,
        there: u32,
        (pointer, stored): (&Pointer, &[u8]),
        is_verified: bool,
        found: &FoundBases,
    ) -> Result<()> {
        let pointer =
            &Pointer { dictionary: self.number(txn, pointer.dictionary)?, ..pointer.clone() };
        self.check_base(txn, there, pointer)?;
        if !is_verified {
            check_content(txn.store(), pointer, stored)?;
        }
        // Each incremental stream brings what its differences need, and sound for damaged ones.
        let is_same =
            |txn: &mut Txn, it: &Pointer| Ok(travelling(it) == *pointer && is_readable(txn, it)?);
        let known = txn.find_base(pointer, is_same)?;
        let here = match (known, found.record(txn, pointer)?) {
            (Some((here, _)), _) => here,
            (None, Some(record)) => txn.add_base(&record)?.0,
            (None, None) => {
                let placed = store_as_sent(txn, pointer.clone(), stored)?;
                txn.count_parts(&placed, 1)?;
                txn.enter_base(&placed)?
            }
        };
        entries::set_identity(txn, self.key, Identity::Dictionary, there.into(), here.into())
    }

    /// Refuses what cannot be a base, or has the number of another. It names numbers of this pool.
    fn check_base(&self, txn: &mut Txn, there: u32, pointer: &Pointer) -> Result<()> {
        if entries::identity(txn, self.key, Identity::Dictionary, there.into())?.is_some() {
            return Err(refused(format!("expected a new dictionary, found {there} a second time")));
        }
        let may_be_base = pointer.may_be_base()
            && (!pointer.is_second_base() || txn.is_first_base(pointer.dictionary)?);
        may_be_base.then_some(()).ok_or_else(|| {
            refused("expected a segment that others differ from, found something else")
        })
    }

    /// Stores a record or patch in the form in which the sender stored it.
    fn file_extent(
        &self,
        txn: &mut Txn,
        at: At,
        pointer: Pointer,
        stored: &[u8],
        is_verified: bool,
    ) -> Result<()> {
        if let Some(number) = at.base() {
            let found = FoundBases::default();
            return self.base(txn, number, (&pointer, stored), is_verified, &found);
        }
        let file = self.file(txn, at.file)?;
        let dictionary = self.number(txn, pointer.dictionary)?;
        let pointer = Pointer { dictionary, ..pointer };
        if dictionary != 0 && !pointer.is_difference() && txn.is_base(dictionary)? {
            return Err(refused("expected a dictionary, found what others differ from"));
        }
        if !is_verified {
            check_content(txn.store(), &pointer, stored)?;
        }
        check_place(txn, file, at, &pointer)?;
        let (known, hash) = self.find_known(txn, file, at, &pointer, &|txn| {
            Ok(check_content(txn.store(), &pointer, stored)?.into_owned())
        })?;
        if let Some(known) = known {
            let pointer = Pointer { span_log2: pointer.span_log2, ..known };
            return add_file_extent(txn, at.tree, file, at.offset, &pointer);
        }
        let placed = store_as_sent(txn, pointer, stored)?;
        if let Some(hash) = hash {
            txn.add_content(&placed, hash)?;
        }
        if placed.is_part() {
            txn.count_parts(&placed, 1)?;
        }
        add_file_extent(txn, at.tree, file, at.offset, &placed)
    }

    /// Gives a record that is stored already to its file.
    pub(super) fn staged_extent(&self, txn: &mut Txn, at: At, record: Held) -> Result<()> {
        let file = self.file(txn, at.file)?;
        if entries::settings(txn, file)?.0.dedup != Dedup::Off {
            // It may be there a second time.
            let stored = txn.store().read_stored(&record.pointer)?;
            return self.file_extent(txn, at, travelling(&record.pointer), &stored, true);
        }
        check_place(txn, file, at, &record.pointer)?;
        let pointer = record.take(txn)?;
        // It counts since it was staged.
        txn.insert(at.tree, &file_extent_key(file, at.offset), &pointer.to_bytes()).map(drop)
    }

    /// Looks for equal bytes if equal records are shared. Returns a pointer to them, otherwise the
    /// hash by which the new record can be found later. The hash is computed here, since a stream
    /// could claim any.
    fn find_known(
        &self,
        txn: &mut Txn,
        file: FileId,
        at: At,
        pointer: &Pointer,
        content: &dyn Fn(&mut Txn) -> Result<Vec<u8>>,
    ) -> Result<(Option<Pointer>, Option<ContentHash>)> {
        let is_whole = (pointer.part_offset, pointer.len) == (0, pointer.extent_len);
        if at.tree != TreeId::Map || !is_whole || !matches!(pointer.place, Place::Extent { .. }) {
            return Ok((None, None));
        }
        let settings = entries::settings(txn, file)?.0;
        if settings.dedup == Dedup::Off {
            return Ok((None, None));
        }
        let target = WriteTarget {
            file,
            settings,
            threads: 1,
            patch_compression: settings.compression,
            is_stopped: || false,
            dictionary: None,
            adapt: None,
            history: Arc::default(),
            is_exact: false,
            is_draft: false,
        };
        let job = Job::record(at.offset, content(txn)?, pointer.span_log2);
        let jobs = [(&target, job)];
        let plan = dedup::plan(txn, &jobs, Workers::new(1))?.pop();
        let Some(Plan { content: Some(hash), known, replaces }) = plan else {
            return Ok((None, None));
        };
        if let Known::At(sector) = known
            && let Shared::New(found) = dedup::share(txn, &target, &jobs[0].1, &hash, sector)?
        {
            return Ok((Some(found), None));
        }
        if let Some(sector) = replaces {
            txn.forget_content(sector)?;
        }
        Ok((None, Some(hash)))
    }

    /// Like [`Apply::find_known`], for a record that is here but not found by its bytes yet: a base
    /// came before its own record.
    fn find_unfound(
        &self,
        txn: &mut Txn,
        file: FileId,
        at: At,
        record: &Pointer,
    ) -> Result<(Option<Pointer>, Option<ContentHash>)> {
        let refs = record.sector().map(|sector| txn.refs(sector)).transpose()?.flatten();
        if refs.is_some_and(|refs| refs.content.is_some() || refs.whole.is_some()) {
            return Ok((None, None));
        }
        let found = self
            .find_known(txn, file, at, record, &|txn| Ok(txn.read(record)?.as_slice().to_vec()));
        match found {
            // Damage of a base is no reason to refuse what shares it.
            Err(error) if error.is_corruption() => Ok((None, None)),
            found => found,
        }
    }

    /// Returns the pointer of an earlier frame.
    fn earlier(&self, txn: &mut Txn, of: At) -> Result<Pointer> {
        let missing =
            || refused("expected to share a record of an earlier frame, found none there");
        if let Some(there) = of.base() {
            let here = self.number(txn, there)?;
            return txn.dictionary_entry(here)?.ok_or_else(missing);
        }
        let key = file_extent_key(self.file(txn, of.file)?, of.offset);
        let value = txn.get(of.tree, &key)?.ok_or_else(missing)?;
        Ok(parse_file_extent(of.tree, &key, &value)?.1.pointer)
    }

    /// Makes a record or patch share the extent of an earlier one.
    fn shared(&self, txn: &mut Txn, at: At, pointer: &Pointer, of: At) -> Result<()> {
        let like = &self.earlier(txn, of)?;
        let part = |pointer: &Pointer| (pointer.len, pointer.part_offset);
        // Nothing rewrites the earlier record before the end; but it must be what the sender sent,
        // or what was found to be equal.
        let dictionary = self.number(txn, pointer.dictionary)?;
        let sent = Pointer { span_log2: like.span_log2, dictionary, ..pointer.clone() };
        // Parts of one segment may differ in what they are of it, and a base is one without bytes.
        let is_part = like.is_part() && sent.is_part() || like.is_base() || sent.is_base();
        let (len, part_offset) = if is_part { part(like) } else { part(&sent) };
        let mut is_in_segment = false;
        let is_same = match like.place {
            Place::Extent { .. }
                if travelling(like) == Pointer { len, part_offset, ..sent.clone() } =>
            {
                true
            }
            Place::Extent { sector, .. } if !sent.is_delta() && at.tree == TreeId::Map => {
                let refs = txn.refs(sector)?;
                // In a segment of this pool it may be anywhere.
                is_in_segment = refs.as_ref().is_some_and(|refs| refs.whole.is_some())
                    && (like.len, sent.part_offset, sent.len) == (sent.len, 0, sent.extent_len);
                let is_found = refs.is_some_and(|refs| refs.content.is_some());
                is_in_segment || is_found && part(like) == part(&sent)
            }
            _ => false,
        };
        if !is_same {
            return Err(refused(
                "expected the record that it shares to be as it says, found another",
            ));
        }
        let (len, part_offset) = if is_in_segment { part(like) } else { part(&sent) };
        let copy = Pointer { span_log2: pointer.span_log2, len, part_offset, ..like.clone() };
        if let Some(there) = at.base() {
            let entry = Pointer { len: pointer.len, part_offset: pointer.part_offset, ..copy };
            self.check_base(txn, there, &entry)?;
            let (here, _) = txn.add_base(like)?;
            let class = Identity::Dictionary;
            return entries::set_identity(txn, self.key, class, there.into(), here.into());
        }
        let file = self.file(txn, at.file)?;
        check_place(txn, file, at, &copy)?;
        let (known, hash) = self.find_unfound(txn, file, at, &copy)?;
        if let Some(known) = known {
            let known = Pointer { span_log2: pointer.span_log2, ..known };
            return add_file_extent(txn, at.tree, file, at.offset, &known);
        }
        let copy = txn.share(&copy)?.ok_or_else(|| {
            Error::Invalid("a record has too many references to count another one".into())
        })?;
        if let Some(hash) = hash {
            txn.add_content_of_base(&copy, hash)?;
        }
        add_file_extent(txn, at.tree, file, at.offset, &copy)
    }
}

/// Stores a record or patch as its sender stored it, and returns a pointer to it. Its dictionary is
/// one of this pool.
pub(super) fn store_as_sent(txn: &mut Txn, pointer: Pointer, stored: &[u8]) -> Result<Pointer> {
    let encoding = Encoding {
        codec: CodecId::try_from(pointer.codec)
            .map_err(|error| Error::decoding("stream", Location::Nowhere, error))?,
        level: pointer.level,
        filter: Filter::from_stored(pointer.filter)
            .ok_or_else(|| Error::Unsupported(format!("filter {}", pointer.filter)))?,
        gain: pointer.gain,
        dictionary: pointer.dictionary,
    };
    let placed = match &pointer.place {
        Place::Zero => txn.embed(None, encoding, pointer.extent_len)?,
        Place::Embedded(bytes) => txn.embed(Some(bytes), encoding, pointer.extent_len)?,
        Place::Extent { checksum_kind, .. } => {
            let ashift = txn.store().ashift();
            txn.provision(std::iter::once(sectors_for(pointer.stored_len, ashift)))?;
            txn.store_extent(stored, encoding, pointer.extent_len, *checksum_kind)?
        }
    };
    Ok(Pointer { place: placed.place, birth: placed.birth, ..pointer })
}

/// Verifies the content of a frame while no transaction is open. Returns whether it could: content
/// that needs a dictionary has to wait until that is stored.
pub(super) fn verify(store: &Store, body: &Body) -> Result<bool> {
    match body {
        Body::FileExtent { pointer, stored, .. } if pointer.dictionary == 0 => {
            check_content(store, pointer, stored).map(|_| true)
        }
        _ => Ok(false),
    }
}

/// Whether stored bytes can be read. If not, the stream brings them.
fn is_readable(txn: &mut Txn, pointer: &Pointer) -> Result<bool> {
    match txn.read_stored(pointer) {
        Err(error) if error.is_corruption() => Ok(false),
        read => read.map(|_| true),
    }
}

/// Returns the number of the base that a frame brings, if that needs nothing else of the stream.
pub(super) fn first_base(at: At, pointer: &Pointer) -> Option<u32> {
    at.base().filter(|_| pointer.dictionary == 0)
}

/// Checks stored bytes against their pointer, and returns the decoded content.
pub(super) fn check_content<'s>(
    store: &Store,
    pointer: &'s Pointer,
    stored: &'s [u8],
) -> Result<Cow<'s, [u8]>> {
    let stored = match &pointer.place {
        Place::Zero => return Ok(Cow::Borrowed(&[])),
        Place::Embedded(bytes) => bytes,
        Place::Extent { checksum_kind, checksum, .. } => {
            if checksum_kind.sum(stored) != *checksum {
                let what = format!(
                    "expected {} bytes with their {checksum_kind}, found another sum",
                    stored.len()
                );
                return Err(refused(what));
            }
            stored
        }
    };
    let content = if pointer.is_verbatim() && stored.len() == pointer.extent_len as usize {
        Cow::Borrowed(stored)
    } else {
        // They come from the stream: the pointer has no place in this pool yet.
        Cow::Owned(store.decode(None, pointer, stored, Location::Nowhere)?)
    };
    if pointer.is_delta() && !delta::is_sound(&content, pointer.len as usize) {
        return Err(refused("expected the delta of a patch, found other bytes"));
    }
    Ok(content)
}

/// Refuses a record or patch that cannot be at its place, or overlaps another.
fn check_place(txn: &mut Txn, file: FileId, at: At, pointer: &Pointer) -> Result<()> {
    let key = file_extent_key(file, at.offset);
    let (_, extent) = parse_file_extent(at.tree, &key, &pointer.to_bytes())
        .map_err(|_| refused(format!("expected a place for a record, found byte {}", at.offset)))?;
    let attributes = entries::attributes(txn, file)?;
    if attributes.kind != Kind::File || at.offset >= attributes.len {
        return Err(refused(format!(
            "expected a record within the {} bytes of its file, found one at byte {}",
            attributes.len, at.offset
        )));
    }
    let is_free = match at.tree {
        TreeId::Map => is_slot_free(txn, file, &extent)?,
        _ => {
            let below = record_at(txn, file, extent.start)?;
            below.is_some_and(|record| extent.end() <= record.slot_end())
                && patches_over(txn, file, extent.start, extent.end())?.is_empty()
        }
    };
    is_free
        .then_some(())
        .ok_or_else(|| refused("expected a free place for a record, found another record there"))
}

fn is_slot_free(txn: &mut Txn, file: FileId, extent: &FileExtent) -> Result<bool> {
    let (start, end) = (extent.start, extent.slot_end());
    Ok(record_at(txn, file, start)?.is_none() && !has_record_in(txn, file, start, end)?)
}

fn set_property(txn: &mut Txn, file: FileId, name: &[u8], value: Option<Vec<u8>>) -> Result<()> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let unknown = || Error::Unsupported(format!("the property {}", text(name)));
    let property = Property::from_str(&text(name)).map_err(|_| unknown())?;
    let Some(value) = value else { return entries::set_property(txn, file, property, None) };
    let mut settings = Settings::default();
    settings.set(property, &text(&value))?;
    entries::set_property(txn, file, property, Some(&settings.get(property)))
}
