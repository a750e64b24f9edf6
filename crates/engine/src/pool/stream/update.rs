//! Applies an incremental stream, in a single transaction after its end is verified.
//!
//! The target must equal the base, so that its files can be found by their paths in the base. Names
//! are removed and added one by one; files without a name at the end are removed, with everything
//! that is only below them.

use std::io::{self, Read};

use super::apply::{Apply, first_base, refused};
use super::body::{At, Body};
use super::staging::Held;
use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::pool::extents::change::give_up;
use crate::pool::extents::{file_extent_key, parse_file_extent, patches_over, read_range};
use crate::pool::namespace::api::is_below;
use crate::pool::namespace::edit::Edit;
use crate::pool::namespace::entries::{self, Attributes, Identity, Kind, LIST_COUNT, NAME_LEN_MAX};
use crate::pool::snapshots::rollback::{Changing, take_away};
use crate::store::Txn;
use crate::store::trees::TreeId;
use crate::units::FileId;

/// How many bytes of the collected frames are read at a time.
const READ_LEN: usize = 256 << 10;

/// Frames that were collected in a nameless file, as an input.
pub(super) struct Spool<'p> {
    pool: &'p Pool,
    file: FileId,
    at: u64,
    len: u64,
}

impl<'p> Spool<'p> {
    /// Reads a file of this length from a byte on.
    pub fn new(pool: &'p Pool, (file, len): (FileId, u64), at: u64) -> io::BufReader<Spool<'p>> {
        io::BufReader::with_capacity(READ_LEN, Spool { pool, file, at, len })
    }
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

/// Takes an error of the pool out of the one of the reader that it came through.
pub(super) fn from_pool(error: Error) -> Error {
    match error {
        Error::Stream { action, source } => match source.downcast::<Error>() {
            Ok(error) => error,
            Err(source) => Error::Stream { action, source },
        },
        error => error,
    }
}

/// A path of a stream as a message shows it; a long one is cut.
fn shown(path: &[u8]) -> String {
    let shown = &path[..path.len().min(NAME_LEN_MAX)];
    let end = if shown.len() < path.len() { "…" } else { "" };
    format!("{}{end}", String::from_utf8_lossy(shown))
}

impl Apply {
    /// Records which file of the target corresponds to a file of the base.
    pub(super) fn know(
        &self,
        txn: &mut Txn,
        file: FileId,
        path: &[u8],
        changing: &mut Changing<'_>,
    ) -> Result<()> {
        let mut here = self.root;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            let entry = entries::lookup(txn, here, name)?;
            let missing = || {
                let path = shown(path);
                refused(format!("expected '{path}' in the state it starts from, found nothing"))
            };
            here = entry.ok_or_else(missing)?.file;
        }
        let before = entries::identity(txn, self.key, Identity::File, file.0)?;
        if before.is_some_and(|before| before != here.0) {
            return Err(refused(format!("expected one path for number {}, found two", file.0)));
        }
        if entries::attributes(txn, here)?.kind != Kind::Directory {
            changing(here)?;
        }
        entries::set_identity(txn, self.key, Identity::File, file.0, here.0)
    }

    /// Applies a frame of an incremental stream whose record is stored already.
    pub(super) fn take_staged(&self, txn: &mut Txn, at: At, record: Held) -> Result<()> {
        self.renew(txn, at.file)?;
        self.staged_extent(txn, at, record)
    }

    /// Applies a frame of an incremental stream.
    pub(super) fn change(&self, txn: &mut Txn, body: Body) -> Result<()> {
        match body {
            // All of these were recorded before the first change.
            Body::Known { .. } => Ok(()),
            Body::FileExtent { at, pointer, .. } if first_base(at, &pointer).is_some() => Ok(()),
            Body::Object { parent: FileId(0), .. } => {
                Err(refused("expected the scope that is there, found a new one"))
            }
            Body::RemoveName { directory, name } => {
                let directory = self.file(txn, directory)?;
                let entry = entries::lookup(txn, directory, &name)?;
                let missing = || {
                    let name = String::from_utf8_lossy(&name);
                    refused(format!("expected the name '{name}' to remove, found nothing"))
                };
                let entry = entry.ok_or_else(missing)?;
                take_away(txn, directory, &entry)
            }
            Body::Name { directory, file, name } => {
                let (directory, file) = (self.file(txn, directory)?, self.file(txn, file)?);
                self.add_name(txn, directory, file, &name)
            }
            Body::Attributes { file, parent, attributes } => {
                self.set_attributes(txn, file, parent, &attributes)
            }
            Body::RemoveFileExtent { at } => {
                self.renew(txn, at.file)?;
                self.remove_file_extent(txn, at)
            }
            Body::FileExtent { at, .. } | Body::Shared { at, .. } if at.base().is_none() => {
                self.renew(txn, at.file)?;
                self.common(txn, body, false)
            }
            body => self.common(txn, body, false),
        }
    }

    /// Gives a file whose content is replaced a new generation.
    fn renew(&self, txn: &mut Txn, there: FileId) -> Result<()> {
        let file = self.file(txn, there)?;
        entries::renew_generation(txn, file, self.from)
    }

    fn add_name(&self, txn: &mut Txn, directory: FileId, file: FileId, name: &[u8]) -> Result<()> {
        let attributes = entries::attributes(txn, file)?;
        if file == self.root {
            return Err(refused("expected the scope to have no name within itself, found one"));
        }
        if attributes.kind != Kind::Directory {
            return Edit::new(txn, 0).link(file, directory, name);
        }
        // It may still be in a directory that was removed.
        if !entries::is_orphan(txn, file)? {
            for (above, name) in entries::names_of(txn, file)? {
                let entry = entries::lookup(txn, above, &name)?;
                entry.map_or(Ok(()), |entry| take_away(txn, above, &entry))?;
            }
        }
        if is_below(txn, directory, file)? {
            return Err(refused(
                "expected a directory outside of the one that moves, found one below it",
            ));
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
            return Err(refused(format!(
                "expected attributes of a {} of {} bytes, found those of a {} of {}",
                old.kind, old.len, attributes.kind, attributes.len
            )));
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

    fn remove_file_extent(&self, txn: &mut Txn, at: At) -> Result<()> {
        let file = self.file(txn, at.file)?;
        let key = file_extent_key(file, at.offset);
        let missing = || refused("expected a record to remove, found none there");
        let value = txn.remove(at.tree, &key)?.ok_or_else(missing)?;
        let (_, extent) = parse_file_extent(at.tree, &key, &value)?;
        let has_patches = at.tree == TreeId::Map
            && !patches_over(txn, file, extent.start, extent.slot_end())?.is_empty();
        if has_patches {
            return Err(refused(
                "expected a record without patches to remove, found patches over it",
            ));
        }
        give_up(txn, &extent.pointer, file, at.tree == TreeId::Patches)
    }
}

/// Removes files without a name, and everything that only they contain.
pub(super) fn remove_orphans(txn: &mut Txn, changing: &mut Changing<'_>) -> Result<()> {
    while let Some(file) = entries::next_orphan(txn)? {
        entries::set_orphan(txn, file, false)?;
        let attributes = entries::attributes(txn, file)?;
        if attributes.kind != Kind::Directory {
            if attributes.link_count == 0 {
                changing(file)?;
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

/// Returns the error for a target that differs from the base of the stream.
pub(super) fn changed_since() -> Error {
    Error::Invalid(
        "it was changed since the base of the stream was received; \
         forcing the receive rolls those changes back first"
            .into(),
    )
}
