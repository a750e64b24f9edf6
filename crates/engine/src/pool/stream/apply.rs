//! What the frames of a stream do to the pool that receives them.
//!
//! Nothing a frame says is believed: an object must be known, a name free, a record must have its checksum, decompress to the length it
//! claims and lie where no other does. What does not fit is an error, with which the transaction must be dropped.

use std::borrow::Cow;
use std::str::FromStr;
use std::sync::Arc;

use super::body::{At, Body, travelling};
use crate::codec::{CodecId, Dictionary};
use crate::error::{Error, Result};
use crate::pool::extents::delta;
use crate::pool::extents::{Piece, has_record_in, parse_piece, patches_over, piece_key, record_at};
use crate::pool::namespace::edit::Edit;
use crate::pool::namespace::entries::{self, Attributes, Identity, Kind};
use crate::pool::namespace::props::{Dedup, Property, Settings};
use crate::pool::write::dedup::{self, Known, Plan, Shared};
use crate::pool::write::jobs::{Job, Target};
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::pointer::{Filter, Place, Pointer, sectors_for};
use crate::store::sharing::refs::ContentHash;
use crate::store::trees::{MAP, PATCHES};
use crate::store::{Encoding, Txn};
use crate::units::FileId;

/// The receive that frames are applied for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Apply {
    /// What its identities are noted with: its root, where the stream is complete in itself.
    pub key: FileId,
    /// The file or directory that the stream's scope is here.
    pub root: FileId,
    /// The checksum for what is not checksummed in the stream: dictionaries.
    pub checksum: ChecksumKind,
    /// Stands for what is received, in the generations of what it changes.
    pub from: u64,
}

pub(super) fn refused(what: impl Into<String>) -> Error {
    Error::corrupt("stream", 0, what)
}

impl Apply {
    /// Does what a frame of a complete stream says.
    pub(super) fn complete(&self, txn: &mut Txn, body: Body) -> Result<()> {
        match body {
            Body::Object { parent: FileId(0), .. } => Err(refused("it has a second scope")),
            Body::Name { directory, file, name } => {
                let (directory, file) = (self.file(txn, directory)?, self.file(txn, file)?);
                if file == self.root {
                    return Err(refused("its scope has a name in itself"));
                }
                Edit::new(txn, 0).link(file, directory, &name)
            }
            Body::Known { .. }
            | Body::RemoveName { .. }
            | Body::RemovePiece { .. }
            | Body::Attributes { .. }
            | Body::Property { value: None, .. }
            | Body::Xattr { value: None, .. } => {
                Err(refused("it changes what is there, and has no base"))
            }
            body => self.common(txn, body),
        }
    }

    /// What means the same in all streams.
    pub(super) fn common(&self, txn: &mut Txn, body: Body) -> Result<()> {
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
                entries::set_dictionary(txn, file, number)
            }
            Body::Piece { at, pointer, stored } => self.piece(txn, at, pointer, &stored),
            Body::Shared { at, pointer, of } => self.shared(txn, at, &pointer, of),
            _ => Err(refused("a frame is where none of its type may be")),
        }
    }

    /// Creates the scope of a complete stream, without a name. `parent` is the directory that it will be in.
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
            _ => Err(refused("it does not begin with its scope")),
        }
    }

    /// Notes who an object is that was just created empty, and what is known of it.
    fn describe_new(
        &self,
        txn: &mut Txn,
        (there, here): (FileId, FileId),
        attributes: &Attributes,
        target: &[u8],
    ) -> Result<()> {
        if entries::identity(txn, self.key, Identity::File, there.0)?.is_some() {
            return Err(refused(format!("number {} comes a second time", there.0)));
        }
        entries::set_identity(txn, self.key, Identity::File, there.0, here.0)?;
        let len = match attributes.kind {
            Kind::Directory => 0,
            Kind::File => attributes.len,
            Kind::Symlink => {
                entries::set_target(txn, here, target)?;
                target.len() as u64
            }
        };
        if len != attributes.len || attributes.kind != Kind::Symlink && !target.is_empty() {
            return Err(refused(format!("number {} is not as long as it says", there.0)));
        }
        entries::set_len(txn, here, len)
    }

    /// The file here that has this number in the stream.
    pub(super) fn file(&self, txn: &mut Txn, there: FileId) -> Result<FileId> {
        let here = entries::identity(txn, self.key, Identity::File, there.0)?;
        here.map(FileId).ok_or_else(|| refused(format!("number {} is not known yet", there.0)))
    }

    /// The number here of one of the stream's dictionaries.
    fn number(&self, txn: &mut Txn, there: u32) -> Result<u32> {
        if there == 0 {
            return Ok(0);
        }
        let here = entries::identity(txn, self.key, Identity::Dictionary, there.into())?;
        let here = here.and_then(|here| u32::try_from(here).ok());
        here.ok_or_else(|| refused(format!("dictionary {there} is not known yet")))
    }

    fn dictionary(&self, txn: &mut Txn, there: u32, bytes: &[u8]) -> Result<()> {
        if entries::identity(txn, self.key, Identity::Dictionary, there.into())?.is_some() {
            return Err(refused(format!("dictionary {there} comes a second time")));
        }
        let here = txn.add_dictionary(&Arc::new(Dictionary::new(bytes)), self.checksum)?;
        entries::set_identity(txn, self.key, Identity::Dictionary, there.into(), here.into())
    }

    /// Stores a record or patch, as it was stored where it comes from.
    fn piece(&self, txn: &mut Txn, at: At, pointer: Pointer, stored: &[u8]) -> Result<()> {
        let file = self.file(txn, at.file)?;
        let dictionary = self.number(txn, pointer.dictionary)?;
        let pointer = Pointer { dictionary, ..pointer };
        let content = check_content(txn, &pointer, stored)?;
        check_place(txn, file, at, &pointer)?;
        let (known, hash) = self.find_known(txn, file, at, &pointer, &content)?;
        if let Some(known) = known {
            let pointer = Pointer { span_log2: pointer.span_log2, ..known };
            return insert(txn, file, at, &pointer);
        }
        let encoding = Encoding {
            codec: CodecId::try_from(pointer.codec)
                .map_err(|error| Error::codec("stream", 0, error))?,
            level: pointer.level,
            filter: Filter::from_stored(pointer.filter)
                .ok_or_else(|| Error::Unsupported(format!("filter {}", pointer.filter)))?,
            gain: pointer.gain,
            dictionary,
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
        let placed = Pointer { place: placed.place, birth: placed.birth, ..pointer };
        if let Some(hash) = hash {
            txn.add_content(&placed, hash)?;
        }
        insert(txn, file, at, &placed)
    }

    /// Looks for the bytes of a record where equal ones are shared: a pointer to them, or else what they can be found
    /// by from now on. The hash is made here: a stream could name any.
    fn find_known(
        &self,
        txn: &mut Txn,
        file: FileId,
        at: At,
        pointer: &Pointer,
        content: &[u8],
    ) -> Result<(Option<Pointer>, Option<ContentHash>)> {
        let is_whole = (pointer.part_offset, pointer.len) == (0, pointer.extent_len);
        if at.tree != MAP || !is_whole || !matches!(pointer.place, Place::Extent { .. }) {
            return Ok((None, None));
        }
        let settings = entries::settings(txn, file)?.0;
        if settings.dedup == Dedup::Off {
            return Ok((None, None));
        }
        let target = Target {
            file,
            settings,
            threads: 1,
            dictionary: None,
            adapt: None,
            history: Arc::default(),
            is_exact: false,
        };
        let job = Job::record(at.offset, content.to_vec(), pointer.span_log2);
        let jobs = [(&target, job)];
        let plan = dedup::plan(txn, &jobs, 1)?.pop();
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

    /// Lets a record or patch share the extent of one that came before.
    fn shared(&self, txn: &mut Txn, at: At, pointer: &Pointer, of: At) -> Result<()> {
        let (file, other) = (self.file(txn, at.file)?, self.file(txn, of.file)?);
        let key = piece_key(other, of.offset);
        let missing = || refused("it shares a record that is not there");
        let value = txn.get(of.tree, &key)?.ok_or_else(missing)?;
        let (_, first) = parse_piece(of.tree, &key, &value)?;
        let like = &first.pointer;
        // Nobody writes it anew before the end: but what would be shared must be what was sent, or what
        // was found to be equal.
        let dictionary = self.number(txn, pointer.dictionary)?;
        let sent = Pointer { span_log2: like.span_log2, dictionary, ..pointer.clone() };
        let is_same = match like.place {
            Place::Extent { .. } if travelling(like) == sent => true,
            Place::Extent { sector, .. } => {
                let part = |pointer: &Pointer| (pointer.len, pointer.part_offset);
                let is_found = txn.refs(sector)?.is_some_and(|refs| refs.content.is_some());
                is_found && part(like) == part(&sent) && !sent.is_delta() && at.tree == MAP
            }
            _ => false,
        };
        if !is_same {
            return Err(refused("it shares a record that is another one"));
        }
        let copy = Pointer { span_log2: pointer.span_log2, ..like.clone() };
        check_place(txn, file, at, &copy)?;
        let copy = txn.share(&copy)?.ok_or_else(|| {
            Error::Invalid("a record has as many references as can be counted".into())
        })?;
        insert(txn, file, at, &copy)
    }
}

/// Refuses stored bytes that are not what their pointer says; else comes back with what they stand for.
fn check_content<'s>(txn: &Txn, pointer: &'s Pointer, stored: &'s [u8]) -> Result<Cow<'s, [u8]>> {
    let stored = match &pointer.place {
        Place::Zero => return Ok(Cow::Borrowed(&[])),
        Place::Embedded(bytes) => bytes,
        Place::Extent { checksum_kind, checksum, .. } => {
            if checksum_kind.sum(stored) != *checksum {
                return Err(refused("a record does not have its checksum"));
            }
            stored
        }
    };
    let is_raw = pointer.codec == CodecId::Raw as u8 && !pointer.is_filtered();
    let content = if is_raw && stored.len() == pointer.extent_len as usize {
        Cow::Borrowed(stored)
    } else {
        Cow::Owned(txn.store().decode(pointer, stored)?)
    };
    if pointer.is_delta() && !delta::is_sound(&content, pointer.len as usize) {
        return Err(refused("the delta of a patch is malformed"));
    }
    Ok(content)
}

/// Refuses a record or patch that cannot be where it says, or meets one that is there.
fn check_place(txn: &mut Txn, file: FileId, at: At, pointer: &Pointer) -> Result<()> {
    let key = piece_key(file, at.offset);
    let (_, piece) = parse_piece(at.tree, &key, &pointer.to_bytes())
        .map_err(|_| refused("a record is where none can be"))?;
    let attributes = entries::attributes(txn, file)?;
    if attributes.kind != Kind::File || at.offset >= attributes.len {
        return Err(refused("a record lies behind the end of its file"));
    }
    let is_free = match at.tree {
        MAP => is_slot_free(txn, file, &piece)?,
        _ => {
            let below = record_at(txn, file, piece.start)?;
            below.is_some_and(|record| piece.end() <= record.slot_end())
                && patches_over(txn, file, piece.start, piece.end())?.is_empty()
        }
    };
    is_free.then_some(()).ok_or_else(|| refused("a record lies over another one"))
}

fn is_slot_free(txn: &mut Txn, file: FileId, piece: &Piece) -> Result<bool> {
    let (start, end) = (piece.start, piece.slot_end());
    Ok(record_at(txn, file, start)?.is_none() && !has_record_in(txn, file, start, end)?)
}

/// Puts a pointer into its tree.
fn insert(txn: &mut Txn, file: FileId, at: At, pointer: &Pointer) -> Result<()> {
    let ashift = txn.store().ashift();
    txn.stats_mut().count_data(pointer, ashift, at.tree == PATCHES, true);
    txn.insert(at.tree, &piece_key(file, at.offset), &pointer.to_bytes()).map(drop)
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
