//! Removing from a pool what only confuses, and loses nothing: what is kept for files that are gone, and an index of content
//! that is damaged, which is built anew.
//!
//! Invariant: a pool in which nothing is wrong is not written to.
//!
//! Something is of a file that is gone where there are neither attributes, nor records, nor a name of it. Whatever else
//! a check finds is left as it is: it may be what is left of something.

use crate::error::Result;
use crate::pool::Pool;
use crate::pool::extents::has_record_in;
use crate::pool::extents::source::Source;
use crate::pool::namespace::entries::{self, Owned, ROOT};
use crate::store::Patience;
use crate::store::trees::NAMES;
use crate::units::FileId;

/// How many entries are looked at in one go.
const ENTRY_COUNT: usize = 4096;

/// What a repair did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RepairReport {
    /// Entries of files that are gone, removed.
    pub removed: u64,
    /// The index of content was damaged, and built anew.
    pub index_rebuilt: bool,
}

impl Pool {
    /// Removes what only confuses. `go_on` says whether to.
    pub fn repair(
        &self,
        patience: Patience,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<RepairReport> {
        let mut report = RepairReport::default();
        let mut from = Vec::new();
        loop {
            // Looked for without a transaction: a pool in which nothing is wrong is not written to.
            let Looked { found, next } = self.read(|source| orphans(source, &from))?;
            if !found.is_empty() {
                self.change(|txn| {
                    for key in &found {
                        if txn.get(NAMES, key)?.is_some() && is_of_a_file_that_is_gone(txn, key)? {
                            txn.remove(NAMES, key)?;
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

/// What was looked at in one go.
struct Looked {
    /// The keys of entries of files that are gone.
    found: Vec<Vec<u8>>,
    /// Where to go on, if there is more.
    next: Option<Vec<u8>>,
}

fn orphans(source: &mut impl Source, from: &[u8]) -> Result<Looked> {
    let entries = source.range(NAMES, from, &[0xff], ENTRY_COUNT)?;
    let next = entries.last().map(|(key, _)| [&key[..], &[0]].concat());
    let mut found = Vec::new();
    for (key, _) in entries {
        if is_of_a_file_that_is_gone(source, &key)? {
            found.push(key);
        }
    }
    Ok(Looked { found, next })
}

/// Whether an entry of the names tree is of a file that is gone.
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
            for (directory, name) in entries::noted_names(source, file)? {
                if is_named(source, directory, &name)? {
                    return Ok(false);
                }
            }
            // The first files of old pools are not noted.
            Ok(entries::unnoted_name(source, ROOT, file)?.is_none())
        }
    }
}
