//! The result of a check, including problems that may turn out not to be any.

use std::collections::BTreeMap;

use super::doubts::Doubt;
use crate::error::Result;
use crate::store::Store;
use crate::units::{FileId, Txg};

/// An inconsistency in a pool.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Problem {
    /// The file it belongs to, if any.
    pub file: Option<FileId>,
    /// The affected bytes of the file.
    pub range: Option<(u64, u64)>,
    /// What is wrong.
    pub detail: String,
}

/// The result of a check.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CheckReport {
    /// The txg that was checked.
    pub txg: Txg,
    /// Tree nodes, dictionaries and parts of the index read and verified.
    pub nodes: u64,
    /// Records and patches read, verified and decompressed.
    pub records: u64,
    /// Stored bytes read.
    pub bytes: u64,
    /// Free bytes, whether already reusable or not yet.
    pub free_bytes: u64,
    /// Snapshots whose own nodes and records were read and verified.
    pub snapshots: u64,
    /// Everything that is wrong.
    pub problems: Vec<Problem>,
    /// How many of the problems [`Pool::repair`](crate::pool::Pool::repair) can fix without losing
    /// anything.
    pub repairable: u64,
    /// Parts that could not be checked in any of several states, because a writer was faster each
    /// time.
    pub overtaken: Vec<String>,
    /// Problems that may turn out not to be any, by their index.
    pub(super) doubts: BTreeMap<usize, Doubt>,
}

impl CheckReport {
    /// Whether no problem was found.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    /// Whether a repair fixes everything that is wrong.
    pub(in crate::pool) fn is_repairable(&self) -> bool {
        self.problems.len() as u64 == self.repairable && self.overtaken.is_empty()
    }

    /// Adds a problem that may not exist if the pool has moved on.
    pub(super) fn doubt(
        &mut self,
        doubt: Doubt,
        file: Option<FileId>,
        range: Option<(u64, u64)>,
        detail: impl ToString,
    ) {
        self.doubts.insert(self.problems.len(), doubt);
        self.add(file, range, detail);
    }

    /// Keeps only the problems that the newest state has as well.
    pub(super) fn settle(&mut self, store: &Store) -> Result<()> {
        let doubts = std::mem::take(&mut self.doubts);
        let mut kept = Vec::new();
        for (index, problem) in std::mem::take(&mut self.problems).into_iter().enumerate() {
            match doubts.get(&index) {
                Some(doubt) if !doubt.is_confirmed(store)? => self.overtaken.push(problem.detail),
                _ => kept.push(problem),
            }
        }
        self.problems = kept;
        Ok(())
    }

    pub(super) fn add(
        &mut self,
        file: Option<FileId>,
        range: Option<(u64, u64)>,
        detail: impl ToString,
    ) {
        self.problems.push(Problem { file, range, detail: detail.to_string() });
    }
}
