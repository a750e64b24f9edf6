//! Repairs a pool without losing anything: removes leftover entries of files that are gone, and
//! rebuilds a damaged content index.
//!
//! Invariant: a pool without problems is not written to.
//!
//! An entry is a leftover if its file has no attributes, no records and no name. Everything else
//! that a check finds is left as it is: it may be the remains of something.

use super::check;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::pool::Pool;
use crate::pool::extents::has_record_in;
use crate::pool::extents::source::Source;
use crate::pool::namespace::entries::{self, FIRST_FILE, Owned};
use crate::store::Patience;
use crate::store::trees::TreeId;
use crate::units::FileId;

/// How many entries are examined at a time.
const ENTRY_COUNT: usize = 4096;

/// The result of a repair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RepairReport {
    /// The number of removed entries whose files are gone.
    pub removed: u64,
    /// Whether the content index was damaged and was rebuilt.
    pub index_rebuilt: bool,
    /// Whether the file was cut short, without anything lost that could not be made anew, and has
    /// its length again.
    pub lengthened: bool,
}

impl Pool {
    /// Removes leftovers and rebuilds a damaged index. `go_on` returns whether to continue.
    ///
    /// # Errors
    /// [`Error::CutShort`] if the file was cut short, and more was lost with its end than that.
    pub fn repair(
        &self,
        patience: Patience,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<RepairReport> {
        let mut report = RepairReport { lengthened: self.lengthen()?, ..RepairReport::default() };
        let mut from = Vec::new();
        loop {
            // Searches without a transaction: a pool without problems is not written to.
            let Looked { found, next } = self.read(|source| orphans(source, &from))?;
            if !found.is_empty() {
                self.change(|txn| {
                    for key in &found {
                        if txn.get(TreeId::Names, key)?.is_some()
                            && is_of_a_file_that_is_gone(txn, key)?
                        {
                            txn.remove(TreeId::Names, key)?;
                            report.removed += 1;
                        }
                    }
                    Ok(())
                })?;
            }
            let Some(next) = next else { break };
            from = next;
            if !go_on() {
                return Ok(report);
            }
        }
        report.index_rebuilt = !self.store().index_is_whole()?;
        if report.index_rebuilt {
            self.rebuild_index(patience, &mut |_| go_on())?;
        }
        Ok(report)
    }
}

impl Pool {
    /// If the file was cut short, gives it its length again, provided that a repair can make
    /// everything that was lost anew.
    fn lengthen(&self) -> Result<bool> {
        let store = self.store();
        if store.cut_short().is_none() {
            return Ok(false);
        }
        // It is dropped without changes: nobody else writes meanwhile.
        let _txn = store.begin_on_cut()?;
        if !check(self, &mut |_| {})?.is_repairable() {
            return Err(store.refusal());
        }
        store.lengthen()?;
        Ok(true)
    }
}

/// The result of examining some entries.
struct Looked {
    /// The keys of entries of files that are gone.
    found: Vec<Vec<u8>>,
    /// Where to continue, if there is more.
    next: Option<Vec<u8>>,
}

fn orphans(source: &mut impl Source, from: &[u8]) -> Result<Looked> {
    let entries = source.range(TreeId::Names, from, &[0xff], ENTRY_COUNT)?;
    let next = entries.last().map(|(key, _)| [&key[..], &[0]].concat());
    let mut found = Vec::new();
    for (key, _) in entries {
        if is_of_a_file_that_is_gone(source, &key)? {
            found.push(key);
        }
    }
    Ok(Looked { found, next })
}

/// Whether an entry of the names tree belongs to a file that is gone.
pub(in crate::pool) fn is_of_a_file_that_is_gone(
    source: &mut impl Source,
    key: &[u8],
) -> Result<bool> {
    let (file, named) = match entries::owned_by(key) {
        Some(Owned::Other(file)) => (file, None),
        Some(Owned::Name(file, directory, name)) => (file, Some((directory, name))),
        _ => return Ok(false),
    };
    if entries::is_there(source, file)? || has_record_in(source, file, 0, u64::MAX)? {
        return Ok(false);
    }
    let is_named = |source: &mut _, directory: FileId, name: &[u8]| {
        Ok(entries::lookup(source, directory, name)?.is_some_and(|entry| entry.file == file))
    };
    match named {
        Some((directory, name)) => Ok(!is_named(source, directory, name)?),
        None => {
            let noted = entries::noted_names(source, file)?;
            for (directory, name) in &noted {
                if is_named(source, *directory, name)? {
                    return Ok(false);
                }
            }
            // The file that a pool was made with has no entry for its name.
            Ok(file != FIRST_FILE || entries::unnoted_name(source, &noted)?.is_none())
        }
    }
}
