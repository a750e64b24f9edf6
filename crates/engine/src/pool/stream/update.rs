//! Applying an incremental stream: all of it in one transaction, after its end was verified.
//!
//! The target must be what the base is: then its files are found by the paths they have there. Names are taken away and given
//! one by one; what has none left at the end goes, with all that is only below it.

use std::io::{self, Read};

use super::apply::{Apply, refused};
use super::body::{At, Body};
use super::frame::FrameReader;
use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::pool::extents::removal::give_up;
use crate::pool::extents::{parse_piece, patches_over, piece_key, read_range};
use crate::pool::namespace::api::is_below;
use crate::pool::namespace::edit::Edit;
use crate::pool::namespace::entries::{self, Attributes, Identity, Kind, LIST_COUNT};
use crate::pool::snapshots::rollback::take_away;
use crate::store::Txn;
use crate::store::trees::{MAP, PATCHES};
use crate::units::FileId;

/// So much of the gathered frames is read at a time.
const READ_LEN: usize = 256 << 10;

/// Frames that were gathered in a file without a name.
struct Spool<'p> {
    pool: &'p Pool,
    file: FileId,
    at: u64,
    len: u64,
}

impl Read for Spool<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = (self.len - self.at).min(buf.len() as u64) as usize;
        let read = self.pool.read(|source| {
            let mut bytes = vec![0; count];
            read_range(source, self.file, &mut bytes, self.at)?;
            Ok(bytes)
        });
        buf[..count].copy_from_slice(&read.map_err(io::Error::other)?);
        self.at += count as u64;
        Ok(count)
    }
}

/// Calls `visit` with what each gathered frame says.
pub(super) fn each_spooled(
    pool: &Pool,
    file: FileId,
    (len, frames): (u64, u64),
    visit: &mut dyn FnMut(Body) -> Result<()>,
) -> Result<()> {
    let spool = Spool { pool, file, at: 0, len };
    let mut input = io::BufReader::with_capacity(READ_LEN, spool);
    let mut reader = FrameReader::from_frame(&mut input, 0);
    for _ in 0..frames {
        let frame = reader.frame()?;
        visit(Body::decode(frame.tag, &frame.payload).ok_or_else(|| refused("it is malformed"))?)?;
    }
    Ok(())
}

impl Apply {
    /// Notes which file of the target one of the base is.
    pub(super) fn know(&self, txn: &mut Txn, file: FileId, path: &[u8]) -> Result<()> {
        let mut here = self.root;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            let entry = entries::lookup(txn, here, name)?;
            here = entry.ok_or_else(|| refused("it names what is not in the base"))?.file;
        }
        let before = entries::identity(txn, self.key, Identity::File, file.0)?;
        if before.is_some_and(|before| before != here.0) {
            return Err(refused(format!("number {} has two paths", file.0)));
        }
        entries::set_identity(txn, self.key, Identity::File, file.0, here.0)
    }

    /// Does what a frame of an incremental stream says.
    pub(super) fn change(&self, txn: &mut Txn, body: Body) -> Result<()> {
        match body {
            // All are noted before anything changes.
            Body::Known { .. } => Ok(()),
            Body::Object { parent: FileId(0), .. } => Err(refused("it has a scope of its own")),
            Body::RemoveName { directory, name } => {
                let directory = self.file(txn, directory)?;
                let entry = entries::lookup(txn, directory, &name)?;
                let entry = entry.ok_or_else(|| refused("it removes a name that is not there"))?;
                take_away(txn, directory, &entry)
            }
            Body::Name { directory, file, name } => {
                let (directory, file) = (self.file(txn, directory)?, self.file(txn, file)?);
                self.add_name(txn, directory, file, &name)
            }
            Body::Attributes { file, parent, attributes } => {
                self.set_attributes(txn, file, parent, &attributes)
            }
            Body::RemovePiece { at } => {
                self.renew(txn, at.file)?;
                self.remove_piece(txn, at)
            }
            Body::Piece { at, .. } | Body::Shared { at, .. } => {
                self.renew(txn, at.file)?;
                self.common(txn, body)
            }
            body => self.common(txn, body),
        }
    }

    /// Notes that the content of a file is exchanged.
    fn renew(&self, txn: &mut Txn, there: FileId) -> Result<()> {
        let file = self.file(txn, there)?;
        entries::renew_generation(txn, file, self.from)
    }

    fn add_name(&self, txn: &mut Txn, directory: FileId, file: FileId, name: &[u8]) -> Result<()> {
        let attributes = entries::attributes(txn, file)?;
        if file == self.root {
            return Err(refused("its scope has a name in itself"));
        }
        if attributes.kind != Kind::Directory {
            return Edit::new(txn, 0).link(file, directory, name);
        }
        // It may still be in a directory that is gone.
        if !entries::is_orphan(txn, file)? {
            for (above, name) in entries::names_of(txn, file)? {
                let entry = entries::lookup(txn, above, &name)?;
                entry.map_or(Ok(()), |entry| take_away(txn, above, &entry))?;
            }
        }
        if is_below(txn, directory, file)? {
            return Err(refused("a directory would lie in itself"));
        }
        entries::set_orphan(txn, file, false)?;
        Edit::new(txn, 0).name_first(file, directory, name)
    }

    fn set_attributes(
        &self,
        txn: &mut Txn,
        file: FileId,
        parent: FileId,
        attributes: &Attributes,
    ) -> Result<()> {
        let file = self.file(txn, file)?;
        let old = entries::attributes(txn, file)?;
        let keeps_len = old.kind != Kind::File;
        if attributes.kind != old.kind || keeps_len && attributes.len != old.len {
            return Err(refused("something becomes what it cannot be"));
        }
        if attributes.len != old.len {
            entries::renew_generation(txn, file, self.from)?;
        }
        entries::set_len(txn, file, attributes.len)?;
        let mut home = old.parent;
        if parent != FileId(0) {
            let parent = self.file(txn, parent)?;
            let names = entries::names_of(txn, file)?;
            if names.iter().any(|(directory, _)| *directory == parent) {
                home = parent;
            }
        }
        let new = Attributes { link_count: old.link_count, parent: home, ..*attributes };
        entries::set_attributes(txn, file, &new)
    }

    fn remove_piece(&self, txn: &mut Txn, at: At) -> Result<()> {
        let file = self.file(txn, at.file)?;
        let key = piece_key(file, at.offset);
        let missing = || refused("it removes a record that is not there");
        let value = txn.remove(at.tree, &key)?.ok_or_else(missing)?;
        let (_, piece) = parse_piece(at.tree, &key, &value)?;
        let has_patches =
            at.tree == MAP && !patches_over(txn, file, piece.start, piece.slot_end())?.is_empty();
        if has_patches {
            return Err(refused("it removes a record under a patch"));
        }
        give_up(txn, &piece.pointer, file, at.tree == PATCHES)
    }
}

/// Removes what has no name left, with what only it holds.
pub(super) fn remove_orphans(txn: &mut Txn) -> Result<()> {
    while let Some(file) = entries::next_orphan(txn)? {
        entries::set_orphan(txn, file, false)?;
        let attributes = entries::attributes(txn, file)?;
        if attributes.kind != Kind::Directory {
            if attributes.link_count == 0 {
                Edit::new(txn, 0).remove_file(file, &attributes)?;
            }
            continue;
        }
        loop {
            let entries = entries::list(txn, file, None, LIST_COUNT)?;
            if entries.is_empty() {
                break;
            }
            entries.iter().try_for_each(|entry| take_away(txn, file, entry))?;
        }
        Edit::new(txn, 0).remove_file(file, &attributes)?;
    }
    Ok(())
}

/// What a target must not be when a stream starts from its base.
pub(super) fn changed_since() -> Error {
    Error::Invalid(
        "it was changed since what the stream starts from was received; \
         to force it rolls that back first"
            .into(),
    )
}
