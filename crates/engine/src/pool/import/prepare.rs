//! Prepares the gathered items of an import while no transaction is open: splits their contents
//! into records, for the files and with the settings that they will probably have.
//!
//! Others may change names and properties until the items are applied. Then a record is stored for
//! another file than it was looked up for, or with the settings of a moment before: neither does
//! harm.

use std::ops::Range;
use std::sync::Arc;

use twox_hash::XxHash3_64;

use super::{Import, Item, Place};
use crate::error::{Error, Result};
use crate::pool::ROOT;
use crate::pool::namespace::entries::Kind;
use crate::pool::namespace::props::Settings;
use crate::pool::write::chunks;
use crate::pool::write::jobs::{Job, WriteTarget};
use crate::units::FileId;

/// The content of a file, or a part of it, as jobs of a batch.
pub(super) struct Content {
    /// The jobs, by their index.
    pub jobs: Range<usize>,
    pub settings: Settings,
    /// In bytes.
    pub len: u64,
    /// A hash of the bytes, which becomes part of a generation.
    pub hash: u64,
    /// Whether this is all of the file.
    pub is_whole: bool,
    /// Whether the jobs are chunks.
    pub is_chunked: bool,
}

/// An item that is ready to be applied.
pub(super) struct Ready {
    /// Its bytes, if it had any, are in the jobs.
    pub item: Item,
    pub content: Option<Content>,
}

impl Ready {
    /// Returns the length of the content and of the extended attributes, in bytes.
    pub fn len(&self) -> u64 {
        let content = self.content.as_ref().map_or(0, |content| content.len);
        content + self.item.xattrs_len() as u64
    }
}

/// Items whose contents were split into jobs.
pub(super) struct Split {
    pub items: Vec<Ready>,
    pub targets: Vec<WriteTarget>,
    /// All jobs, each with the index of its target.
    pub jobs: Vec<(usize, Job)>,
}

impl Import<'_> {
    pub(super) fn split(&mut self, items: Vec<Item>) -> Result<Split> {
        let mut split = Split { items: Vec::new(), targets: Vec::new(), jobs: Vec::new() };
        for mut item in items {
            let content = match &mut item {
                Item::File { at, content } => {
                    let (file, settings) = self.foresee(at)?;
                    let bytes = std::mem::take(content);
                    let lens = match chunks::are_wanted(&settings, &bytes) {
                        true => chunks::cut(settings.record_len as usize, &bytes, true),
                        false => Vec::new(),
                    };
                    Some((file, settings, 0, bytes, lens))
                }
                Item::Part { file, settings, offset, bytes, chunks } => {
                    let (bytes, lens) = (std::mem::take(bytes), std::mem::take(chunks));
                    Some((*file, *settings, *offset, bytes, lens))
                }
                _ => None,
            };
            let is_whole = matches!(item, Item::File { .. });
            let content = content.map(|(file, settings, offset, bytes, lens)| {
                let (len, hash) = (bytes.len() as u64, XxHash3_64::oneshot(&bytes));
                let target = split.targets.len();
                split.targets.push(self.target(file, settings));
                let first = split.jobs.len();
                let is_chunked = !lens.is_empty();
                let jobs = match is_chunked {
                    true => Job::chunks(offset, &bytes, &lens),
                    false => Job::records(offset, bytes, settings.record_len as usize),
                };
                split.jobs.extend(jobs.into_iter().map(|job| (target, job)));
                let jobs = first..split.jobs.len();
                Content { jobs, settings, len, hash, is_whole, is_chunked }
            });
            split.items.push(Ready { item, content });
        }
        Ok(split)
    }

    fn target(&self, file: FileId, settings: Settings) -> WriteTarget {
        let history = Arc::clone(&self.history);
        WriteTarget { history, ..WriteTarget::new(file, settings, self.pool.options()) }
    }

    /// Returns the file that will probably get the content of a new one, and its settings: the
    /// existing file if it has no other name, otherwise one that is not there yet.
    fn foresee(&mut self, at: &Place) -> Result<(FileId, Settings)> {
        let is_new_here = self.new_parents.contains_key(&at.parent);
        if !is_new_here
            && let Some(old) = found(self.pool.lookup_in(at.parent, &at.name))?.flatten()
            && old.kind == Kind::File
            && found(self.pool.attributes(old.file))?.is_some_and(|old| old.link_count == 1)
            && let Some(settings) = found(self.settings(old.file))?
        {
            return Ok((old.file, settings));
        }
        let settings = match found(self.settings(at.parent))? {
            Some(settings) => settings,
            // The directory was removed, so the file will be refused.
            None => self.settings(ROOT)?,
        };
        // Directories have no records, so nothing is found in its own place.
        Ok((at.parent, settings))
    }
}

/// Returns nothing for what others have removed.
fn found<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(Error::NotFound { .. } | Error::NotADirectory { .. }) => Ok(None),
        found => found.map(Some),
    }
}
