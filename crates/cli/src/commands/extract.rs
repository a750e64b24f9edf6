//! `hardpack extract`: writes files and whole directories of a pool to the file system.
//!
//! All access to the file system goes through `place.rs`: it descends from DEST one name at a time,
//! without following symbolic links, so that no name or link in a pool can lead outside of DEST.
//! `tree.rs` makes directories and symbolic links as it meets them, and writes small files on
//! several threads; hard links and the metadata of directories come last.
//!
//! Files that cannot be read or written are reported on stderr, and the rest is extracted.

pub mod place;
mod tree;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use hardpack_engine::pool::Kind;
use serde_json::json;

use self::place::Place;
use self::tree::Tree;
use crate::address::{Address, Opened, last_name};
use crate::args::ExtractArgs;
use crate::failure::{Cannot, Code, Failure, Reason};
use crate::output;
use crate::summary::{Account, ExtractSummary, told};
use crate::users::tell_left_behind;
use crate::{globs, leftovers, signals, tarball, text};

/// What an interrupted extract leaves.
const LEFT_BEHIND: &str = "the files written so far are complete, but their directories may not have their \
                           permissions and times yet; the same command with --update continues from there";

pub fn run(args: &ExtractArgs) -> Result<ExitCode, Failure> {
    signals::catch(match args.tar {
        true => "the stream is cut short",
        false => LEFT_BEHIND,
    });
    let began = Instant::now();
    let (sources, dest) = args.split();
    let sources = globs::expand(&sources, "extract")?;
    let account = Account::new("extracting", args);
    let (mut is_new, mut made) = (false, PathBuf::new());
    if args.tar {
        tarball::extract(args, &sources, &dest, &account)?;
    } else {
        let cannot = |reason: Reason| reason.cannot("extract to", text::path(&dest));
        // Nothing is made for sources that are not there.
        for source in &sources {
            let found = source.open(Some(1)).and_then(|opened| opened.link_entry());
            found.cannot("extract", source)?;
        }
        let (path, name) = target(args, &sources, &dest).map_err(cannot)?;
        is_new = fs::symlink_metadata(&path).is_err();
        made = path.clone();
        fs::create_dir_all(&path).map_err(|error| cannot(error.into()))?;
        leftovers::tell(&path);
        let top = Place::open(&path).map_err(|error| cannot(error.into()))?;
        for source in &sources {
            extract(args, source, &top, name.as_deref(), &account).cannot("extract", source)?;
        }
        top.sync().map_err(|error| cannot(error.into()))?;
    }
    tell_logs_of(&sources);
    let done = account.into_summary();
    if is_new && done.failed > 0 {
        // An error means that something came into it after all.
        let _ = fs::remove_dir(&made);
    }
    // Standard output may carry the stream.
    if !args.tar {
        report(args, &dest, &done, began).cannot("report on", text::path(&dest))?;
    }
    Ok(match done.failed {
        0 => ExitCode::SUCCESS,
        _ if done.is_internal => ExitCode::from(Code::Internal as u8),
        _ if done.is_damaged => ExitCode::from(Code::Data as u8),
        _ => ExitCode::from(Code::Cannot as u8),
    })
}

/// Tells the user which of the files have a log in the pool that was not given as well.
fn tell_logs_of(sources: &[Address]) {
    let open = |source| {
        // Whatever has gone meanwhile was told.
        let opened = Address::open(source, Some(1)).ok()?;
        let file = opened.link_entry().ok()?.file;
        Some((&source.pool, opened, file))
    };
    let given: Vec<_> = sources.iter().filter_map(open).collect();
    for (pool, opened, file) in &given {
        let is_given = |log| given.iter().any(|(other, _, file)| other == pool && *file == log);
        tell_left_behind(&opened.pool, *file, &is_given);
    }
}

/// Returns the directory to extract into, and the new name if a single file gets one.
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

/// Extracts one source into a directory, as `name` if given.
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

fn report(
    args: &ExtractArgs,
    dest: &Path,
    done: &ExtractSummary,
    began: Instant,
) -> Result<(), Reason> {
    let seconds = began.elapsed().as_secs_f64();
    if args.work.json {
        return output::print_json(&json!({
            "output": dest.to_string_lossy(),
            "files": done.files,
            "bytes": done.bytes,
            "directories": done.directories,
            "symlinks": done.symlinks,
            "special_files": done.special_files,
            "hard_links": done.hard_links,
            "unchanged": done.unchanged,
            "left_out": done.left_out,
            "failed": done.failed,
            "xattrs_lost": done.xattrs_lost,
            "seconds": (seconds * 1000.0).round() / 1000.0,
        }));
    }
    if args.work.quiet {
        return Ok(());
    }
    let others = [
        (done.symlinks, "symbolic links"),
        (done.special_files, "special files"),
        (done.hard_links, "hard links"),
        (done.unchanged, "unchanged"),
        (
            done.xattrs_lost,
            "extended attributes not set (not supported by the file system, or granting rights)",
        ),
        (done.left_out, "skipped"),
        (done.failed, "failed"),
    ];
    let (dest, told) = (text::path(dest), told(done.files, done.bytes, &others));
    output::print_line(format_args!("{dest}: {told}, extracted in {seconds:.1} s"))
}
