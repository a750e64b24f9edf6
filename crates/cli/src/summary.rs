//! Counts of what `put` and `extract` did, for trees and for tar streams alike.

use std::sync::{Mutex, MutexGuard, PoisonError};

use hardpack_engine::pool::{ImportReport, Refused};

use crate::args::ExtractArgs;
use crate::failure::{Code, Reason};
use crate::output::{bytes, count};
use crate::progress::FilesProgress;
use crate::repeats::Repeats;
use crate::text;

/// Returns the number of files and their length, and behind them those other counts that are not 0.
pub fn told(files: u64, len: u64, others: &[(u64, &str)]) -> String {
    let noun = if files == 1 { "file" } else { "files" };
    let mut told = format!("{} {noun} ({})", count(files, false), bytes(len, false));
    for (number, what) in others.iter().filter(|(number, _)| *number > 0) {
        told.push_str(&format!(", {} {what}", count(*number, false)));
    }
    told
}

/// Counts of what `put` did.
#[derive(Default)]
pub struct PutSummary {
    pub files: u64,
    pub bytes: u64,
    pub directories: u64,
    pub symlinks: u64,
    pub special_files: u64,
    pub hard_links: u64,
    pub unchanged: u64,
    /// Only mode, owner, times or extended attributes were updated.
    pub described: u64,
    pub removed: u64,
    pub left_out: u64,
    pub failed: u64,
    repeats: Repeats,
}

impl PutSummary {
    /// Whether there are files at the destination, stored now or before.
    pub fn has_stored(&self) -> bool {
        self.files + self.unchanged + self.described > 0
    }

    /// Counts what an import stored, and reports and counts what it refused.
    pub fn note_imported(
        &mut self,
        progress: &FilesProgress,
        report: &ImportReport,
        reason_of: impl Fn(&Refused) -> Reason,
    ) {
        self.files += report.files;
        self.bytes += report.bytes;
        self.directories += report.directories;
        self.symlinks += report.symlinks;
        self.special_files += report.special_files;
        self.hard_links += report.hard_links;
        for refused in &report.refused {
            self.note_failed(progress, &refused.path, &reason_of(refused));
        }
    }

    /// Reports and counts a failure, with its hint the first time.
    pub fn note_failed(&mut self, progress: &FilesProgress, path: &[u8], reason: &Reason) {
        self.failed += 1;
        self.say(progress, "hardpack: cannot put", path, &reason.text);
        if let Some(hint) = reason.hint.as_ref().and_then(|hint| self.repeats.hint(hint)) {
            progress.say(&hint);
        }
    }

    /// Reports and counts a file that is skipped.
    pub fn note_left_out(&mut self, progress: &FilesProgress, path: &[u8], why: &str) {
        self.left_out += 1;
        self.say(progress, "note: skipped", path, why);
    }

    fn say(&mut self, progress: &FilesProgress, what: &'static str, path: &[u8], why: &str) {
        if let Some(message) = self.repeats.message(what, &text::escaped(path), why) {
            progress.say(&message);
        }
    }
}

/// Counts of what `extract` did.
#[derive(Default)]
pub struct ExtractSummary {
    pub files: u64,
    pub bytes: u64,
    pub directories: u64,
    pub symlinks: u64,
    pub special_files: u64,
    pub hard_links: u64,
    pub unchanged: u64,
    pub left_out: u64,
    pub failed: u64,
    /// Extended attributes that were not set: the file system refused them, or they grant rights.
    pub xattrs_lost: u64,
    /// Whether a failure was due to damage.
    pub is_damaged: bool,
    /// Whether a failure was due to a defect of Hardpack.
    pub is_internal: bool,
    repeats: Repeats,
}

/// Collects counts and failures from all threads.
pub struct Account {
    inner: Mutex<(ExtractSummary, FilesProgress)>,
    is_verbose: bool,
}

impl Account {
    pub fn new(label: &str, args: &ExtractArgs) -> Account {
        let progress = FilesProgress::new(label, args.work.quiet);
        Account {
            inner: Mutex::new((ExtractSummary::default(), progress)),
            is_verbose: args.verbose,
        }
    }

    fn lock(&self) -> MutexGuard<'_, (ExtractSummary, FilesProgress)> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the counts.
    pub fn note(&self, count: impl FnOnce(&mut ExtractSummary)) {
        count(&mut self.lock().0);
    }

    /// Counts a written file.
    pub fn wrote(&self, shown: &[u8], len: u64) {
        let mut inner = self.lock();
        inner.0.files += 1;
        inner.0.bytes += len;
        inner.1.add(1, len);
        if self.is_verbose {
            inner.1.say(&text::escaped(shown));
        }
    }

    /// Reports and counts a file that is skipped.
    pub fn left_out(&self, shown: &[u8], why: &str) {
        let mut inner = self.lock();
        inner.0.left_out += 1;
        let message = inner.0.repeats.message("note: skipped", &text::escaped(shown), why);
        if let Some(message) = message {
            inner.1.say(&message);
        }
    }

    /// Reports and counts a failure.
    pub fn failed(&self, shown: &[u8], reason: &Reason) {
        let mut inner = self.lock();
        inner.0.failed += 1;
        inner.0.is_damaged |= reason.code == Code::Data;
        inner.0.is_internal |= reason.code == Code::Internal;
        let shown = text::escaped(shown);
        let message = inner.0.repeats.message("hardpack: cannot extract", &shown, &reason.text);
        if let Some(message) = message {
            inner.1.say(&message);
        }
        if let Some(hint) = reason.hint.as_ref().and_then(|hint| inner.0.repeats.hint(hint)) {
            inner.1.say(&hint);
        }
    }

    pub fn into_summary(self) -> ExtractSummary {
        self.inner.into_inner().unwrap_or_else(PoisonError::into_inner).0
    }
}
