//! Records, patches, dictionaries and parts of the index, read and verified on all cores.

use super::doubts::Doubt;
use super::padding::Padding;
use super::report::CheckReport;
use crate::error::{Error, Location, Result};
use crate::pool::extents::{NO_DELTA, delta, parse_file_extent};
use crate::pool::write::workers::Workers;
use crate::store::dictionaries::parse_dictionary_key;
use crate::store::format::pointer::{Pointer, pointer_in};
use crate::store::sharing::index::parse_index_key;
use crate::store::trees::TreeId;
use crate::store::{State, Store};
use crate::units::FileId;

/// How many records are verified at a time.
pub(super) const BATCH_COUNT: usize = 256;

/// A record or similar item to verify: its file (`None` for dictionaries and parts of the index),
/// its place in the file or else its tree, and the pointer.
pub(super) type Record = (Option<FileId>, u64, Pointer);

/// Parses an entry of a tree whose values are pointers.
pub(super) fn parse_record(tree: TreeId, key: &[u8], value: &[u8]) -> Result<Record> {
    match tree {
        TreeId::Dictionaries => parse_dictionary_key(key).map(drop)?,
        TreeId::Index => parse_index_key(key).map(drop)?,
        _ => {
            let (file, extent) = parse_file_extent(tree, key, value)?;
            return Ok((Some(file), extent.start, extent.pointer));
        }
    }
    Ok((None, u64::from(tree.number()), pointer_in(tree, key, value)?))
}

/// Finds records that overlap each other, and patches that do: they are met in order.
#[derive(Default)]
pub(super) struct Overlaps {
    /// The end of those before.
    last: Option<(TreeId, FileId, u64)>,
}

impl Overlaps {
    /// Takes note of the next record, and returns what is wrong with its place.
    pub fn note(&mut self, tree: TreeId, (file, start, pointer): &Record) -> Option<Error> {
        let file = (*file)?;
        let len = if tree == TreeId::Map { pointer.span() } else { u64::from(pointer.len) };
        let before = self.last.filter(|last| (last.0, last.1) == (tree, file));
        let before = before.map_or(0, |last| last.2);
        self.last = Some((tree, file, start.saturating_add(len).max(before)));
        let end = Some(before).filter(|end| *end > *start)?;
        let what = if tree == TreeId::Map { "record" } else { "patch" };
        let detail = format!("expected it behind those before, which end at byte {end}");
        Some(Error::corrupt(what, Location::Range(file, *start..end), detail))
    }
}

/// Reads, verifies and decompresses one record or patch.
fn verify(store: &Store, state: &State, pointer: &Pointer) -> Result<()> {
    let bytes = store.read_uncached_of(Some(state), pointer)?;
    if pointer.is_delta() && !delta::is_sound(bytes.as_slice(), pointer.len as usize) {
        return Err(Error::corrupt("patch", store.location_of(pointer), NO_DELTA));
    }
    Ok(())
}

/// Reads, verifies and decompresses records of a state on all cores. The newest state may have
/// dropped a dictionary that they need.
pub(super) fn verify_batch(
    padding: &Padding<'_>,
    state: &State,
    batch: &mut Vec<Record>,
    threads: usize,
    report: &mut CheckReport,
) -> Result<()> {
    let workers = Workers::new(threads).at_most(batch.len());
    let verified = workers.run(batch.len(), |index| {
        let (_, _, pointer) = &batch[index];
        if padding.is_known_segment(pointer) {
            return Ok(None);
        }
        match verify(padding.store, state, pointer) {
            Ok(()) => {
                padding.check(pointer);
                padding.note_segment(pointer);
            }
            Err(error @ Error::Internal(_)) => return Err(error),
            Err(error) => return Ok(Some(error)),
        }
        Ok(None)
    })?;
    let others = batch.iter().filter(|(file, ..)| file.is_none()).count() as u64;
    report.nodes += others;
    report.records += batch.len() as u64 - others;
    report.bytes += batch.iter().map(|(_, _, pointer)| pointer.stored_share()).sum::<u64>();
    for ((file, offset, pointer), error) in batch.iter().zip(verified) {
        let Some(error) = error else { continue };
        let end = offset + u64::from(pointer.len);
        let range = file.map(|_| (*offset, end));
        let is_of_index = file.is_none() && *offset == u64::from(TreeId::Index.number());
        // What lies in a pointer has no place of its own.
        let error = error.or_at(|| match file {
            Some(file) => Location::Range(*file, *offset..end),
            None if is_of_index => TreeId::Index.location(),
            None => TreeId::Dictionaries.location(),
        });
        report.repairable += u64::from(is_of_index);
        let doubt = Doubt::of_record(*file, *offset, pointer);
        report.doubt(doubt, *file, range, error);
    }
    batch.clear();
    Ok(())
}
