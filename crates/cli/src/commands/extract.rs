//! `hardpack extract`: files and whole directories out of a pool.
//!
//! `place.rs` is the only way to the file system: it goes down from DEST a name at a time, without following symbolic
//! links, so that what a pool says can lead nowhere else. `tree.rs` makes directories and symbolic links as it
//! meets them, and has small files written on several threads; hard links and what is known of directories come last.
//!
//! What cannot be written or read is named on stderr, and the rest goes on.

mod place;
mod tree;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use hardpack_engine::pool::Kind;
use serde_json::json;

use self::place::Place;
use self::tree::Tree;
use crate::address::{Address, Opened, last_name};
use crate::args::ExtractArgs;
use crate::failure::{Cannot, Code, Failure, Reason};
use crate::output::{self, bytes, count};
use crate::progress::FilesProgress;
use crate::{leftovers, signals, tarball, text};

/// What was done.
#[derive(Default)]
pub struct Summary {
    pub files: u64,
    pub bytes: u64,
    pub directories: u64,
    pub symlinks: u64,
    pub hard_links: u64,
    pub unchanged: u64,
    pub failed: u64,
    /// Extended attributes that the file system does not take.
    pub xattrs_lost: u64,
    /// Something was damaged, not only in the way.
    pub is_damaged: bool,
}

/// What all threads tell of their work.
pub struct Account {
    inner: Mutex<(Summary, FilesProgress)>,
    is_verbose: bool,
}

impl Account {
    pub fn new(label: &str, args: &ExtractArgs) -> Account {
        let progress = FilesProgress::new(label, args.work.quiet);
        Account { inner: Mutex::new((Summary::default(), progress)), is_verbose: args.verbose }
    }

    fn lock(&self) -> MutexGuard<'_, (Summary, FilesProgress)> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts something.
    pub fn note(&self, count: impl FnOnce(&mut Summary)) {
        count(&mut self.lock().0);
    }

    /// Counts a file that is written.
    pub fn wrote(&self, shown: &[u8], len: u64) {
        let mut inner = self.lock();
        inner.0.files += 1;
        inner.0.bytes += len;
        inner.1.add(1, len);
        if self.is_verbose {
            inner.1.say(&text::escaped(shown));
        }
    }

    /// Says that something failed, and goes on.
    pub fn failed(&self, shown: &[u8], reason: &Reason) {
        let mut inner = self.lock();
        inner.0.failed += 1;
        inner.0.is_damaged |= reason.code == Code::Data;
        let shown = text::escaped(shown);
        inner.1.say(&format!("hardpack: cannot extract '{shown}': {}", reason.text));
    }

    pub fn into_summary(self) -> Summary {
        self.inner.into_inner().unwrap_or_else(PoisonError::into_inner).0
    }
}

pub fn run(args: &ExtractArgs) -> Result<ExitCode, Failure> {
    signals::catch();
    let began = Instant::now();
    let (sources, dest) = args.split();
    let account = Account::new("extracting", args);
    if args.tar {
        tarball::extract(args, &sources, &dest, &account)?;
    } else {
        let cannot = |reason: Reason| reason.cannot("extract to", dest.display());
        let (path, name) = target(args, &sources, &dest).map_err(cannot)?;
        fs::create_dir_all(&path).map_err(|error| cannot(error.into()))?;
        leftovers::tell(&path);
        let top = Place::open(&path).map_err(|error| cannot(error.into()))?;
        for source in &sources {
            extract(args, source, &top, name.as_deref(), &account).cannot("extract", source)?;
        }
        top.sync().map_err(|error| cannot(error.into()))?;
    }
    let done = account.into_summary();
    // A stream on standard output has it for itself.
    if !args.tar {
        report(args, &dest, &done, began).cannot("report on", dest.display())?;
    }
    Ok(match done.failed {
        0 => ExitCode::SUCCESS,
        _ if done.is_damaged => ExitCode::from(Code::Data as u8),
        _ => ExitCode::from(Code::Cannot as u8),
    })
}

/// The directory that things go into, and the name of a single file where it is to have another.
fn target(
    args: &ExtractArgs,
    sources: &[Address],
    dest: &Path,
) -> Result<(PathBuf, Option<Vec<u8>>), Reason> {
    let into =
        !args.no_target_directory && (dest.is_dir() || dest.as_os_str().as_bytes().ends_with(b"/"));
    if let ([source], false) = (sources, into)
        && !source.ends_with_slash()
        && let Some(name) = last_name(dest.as_os_str().as_bytes())
        && !source.is_whole()
        && source.open(None)?.link_entry()?.kind != Kind::Directory
    {
        let directory = crate::publish::directory_of(dest).to_path_buf();
        return Ok((directory, Some(name.to_vec())));
    }
    Ok((dest.into(), None))
}

/// Extracts one source into a directory, under another `name` where there is one.
fn extract(
    args: &ExtractArgs,
    source: &Address,
    top: &Place,
    name: Option<&[u8]>,
    account: &Account,
) -> Result<(), Reason> {
    let opened: Opened = source.open(args.work.threads)?;
    let entry = if source.ends_with_slash() { opened.entry()? } else { opened.link_entry()? };
    let tree = Tree::new(args, &opened, top, account);
    let is_contents = entry.name.is_empty() || source.ends_with_slash() || args.no_target_directory;
    if entry.kind == Kind::Directory && is_contents {
        return tree.contents(&opened.path, entry.file);
    }
    let name = name.unwrap_or(&entry.name).to_vec();
    tree.one(&opened.path, &entry, &name)
}

fn report(args: &ExtractArgs, dest: &Path, done: &Summary, began: Instant) -> Result<(), Reason> {
    let seconds = began.elapsed().as_secs_f64();
    if args.work.json {
        return output::print_json(&json!({
            "output": dest.to_string_lossy(),
            "files": done.files,
            "bytes": done.bytes,
            "directories": done.directories,
            "symlinks": done.symlinks,
            "hard_links": done.hard_links,
            "unchanged": done.unchanged,
            "failed": done.failed,
            "xattrs_lost": done.xattrs_lost,
            "seconds": (seconds * 1000.0).round() / 1000.0,
        }));
    }
    if args.work.quiet {
        return Ok(());
    }
    let mut line = format!(
        "{}: {} {} ({})",
        dest.display(),
        count(done.files, false),
        if done.files == 1 { "file" } else { "files" },
        bytes(done.bytes, false)
    );
    let parts = [
        (done.symlinks, "symbolic links"),
        (done.hard_links, "hard links"),
        (done.unchanged, "unchanged"),
        (
            done.xattrs_lost,
            "extended attributes that the file system does not take, or that give rights",
        ),
        (done.failed, "failed"),
    ];
    for (number, what) in parts.into_iter().filter(|(number, _)| *number > 0) {
        line.push_str(&format!(", {} {what}", count(number, false)));
    }
    output::print_line(format_args!("{line}, extracted in {seconds:.1} s"))
}
