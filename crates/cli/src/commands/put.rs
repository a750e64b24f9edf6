//! `hardpack put`: stores files and whole directories in a pool.
//!
//! `walk.rs` walks the sources in byte order of their names, alongside the names in the pool, and
//! decides what to do with each. `readers.rs` reads small files ahead on a few threads; long files
//! and databases are streamed. The engine commits in batches, each file as a whole. So if the
//! command ends at any point, the pool is consistent, and the next run continues.
//!
//! Files that cannot be read are reported on stderr, and the rest is stored.

mod compared;
mod delivery;
mod existing;
pub mod readers;
pub mod source;
mod taken;
pub mod walk;

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use hardpack_engine::FileId;
use hardpack_engine::pool::{Kind, Pool, Property, ROOT};
use serde_json::json;

use self::delivery::Delivery;
use self::readers::Readers;
use self::taken::Taken;
use self::walk::Putter;
use super::names::{DIRECTORY_MODE, create_missing_pool, make_directories, new_attributes};
use super::optimize;
use super::properties::set_all;
use crate::address::{Address, Opened, last_name};
use crate::args::PutArgs;
use crate::failure::{Cannot, Code, Failure, Reason};
use crate::output;
use crate::summary::{PutSummary, told};
use crate::users::Users;
use crate::{leftovers, pool_file, publish, signals, tarball, text};

/// What an interrupted put leaves.
const LEFT_BEHIND: &str =
    "the files stored so far are in the pool; the same command continues from there";

pub fn run(args: &PutArgs) -> Result<ExitCode, Failure> {
    signals::catch(LEFT_BEHIND);
    let began = Instant::now();
    let (sources, address) = args.split();
    leftovers::tell(publish::directory_of(&address.pool));
    let mut is_new = fs::symlink_metadata(&address.pool).is_err();
    if is_new {
        refuse_unlikely(&address).cannot("create", text::path(&address.pool))?;
    }
    if is_new && all_missing(args, sources) {
        let mut done = PutSummary::default();
        done.failed += sources.len() as u64;
        report(args, &address, &done, None, began).cannot("report on", &address)?;
        return Ok(ExitCode::from(Code::Cannot as u8));
    }
    if is_new && !args.dry_run {
        // If somebody else makes it at the same time, it is not.
        let made = create_missing_pool(&address.pool, args.properties.given());
        is_new = made.cannot("create", &address)?;
    }
    if !is_new && args.tar && !args.properties.given().is_empty() {
        return Err(properties_stay().cannot("set properties of", &address));
    }
    // Those of a new pool are set already.
    let properties = if is_new { Vec::new() } else { args.properties.given() };
    let done = put_all(args, sources, &address, is_new, &properties);
    let has_failed = done.as_ref().map_or(true, |(done, _)| done.failed > 0);
    let is_gone = is_new && has_failed && !args.dry_run && remove_if_empty(&address.pool);
    let done = done.map_err(|failure| match is_gone {
        true => failure.leaving(signals::NOTHING),
        false => failure,
    })?;
    let (done, optimised) = done;
    // What was stored is told whatever becomes of the rest.
    let told = optimised.as_ref().ok().and_then(Option::as_ref);
    report(args, &address, &done, told, began).cannot("report on", &address)?;
    let is_sound = optimised?.is_none_or(|optimised| optimised.is_sound());
    Ok(ExitCode::from(match done.failed {
        0 if is_sound => 0,
        0 => Code::Data as u8,
        _ => Code::Cannot as u8,
    }))
}

/// What became of the wish that what is stored be put into segments, if there was any.
type Optimised = Result<Option<optimize::Done>, Failure>;

/// Stores the sources, and if that is asked for, puts what is at the address into segments.
fn put_all(
    args: &PutArgs,
    sources: &[OsString],
    address: &Address,
    is_new: bool,
    properties: &[(Property, String)],
) -> Result<(PutSummary, Optimised), Failure> {
    if args.tar {
        let done = tarball::put(args, sources, address)?;
        if !args.optimize {
            return Ok((done, Ok(None)));
        }
        let opened = address.open_writable(args.work.threads).cannot("open", address)?;
        return optimised(args, address, opened, done);
    }
    if is_new && args.dry_run {
        return Ok((put(args, sources, address, None, properties)?, Ok(None)));
    }
    let opened = address.open_writable(args.work.threads).cannot("open", address)?;
    let done = put(args, sources, address, Some(&opened.pool), properties)?;
    optimised(args, address, opened, done)
}

/// Puts what is at the address into segments, if that is asked for, and closes the pool.
fn optimised(
    args: &PutArgs,
    address: &Address,
    opened: Opened,
    done: PutSummary,
) -> Result<(PutSummary, Optimised), Failure> {
    let optimised = match args.optimize && done.has_stored() {
        true => optimize::after_put(&opened, &args.properties.given(), &args.work),
        false => Ok(None),
    };
    let optimised = optimised.cannot("optimize", address);
    opened.pool.close().cannot("close", address)?;
    Ok((done, optimised))
}

/// Refuses to create a pool for a path in it, unless its name says that it is to be one: a mistyped
/// directory would become a pool.
pub fn refuse_unlikely(address: &Address) -> Result<(), Reason> {
    if address.is_whole() || address.pool.extension().is_some_and(|ending| ending == "hpk") {
        return Ok(());
    }
    let pool = text::path(&address.pool);
    Err(Reason::new(Code::Cannot, "there is no such directory or pool").hint(format!(
        "'mkdir {pool}' makes the directory, 'hardpack create {pool}' a pool of that name"
    )))
}

/// Whether no source exists, which is then reported.
fn all_missing(args: &PutArgs, sources: &[OsString]) -> bool {
    let mut failures = Vec::new();
    for source in sources {
        let is_stdin = args.tar && source == "-";
        match fs::symlink_metadata(source) {
            Err(error) if !is_stdin => failures.push((source, error)),
            _ => return false,
        }
    }
    for (source, error) in failures {
        Reason::from(error).cannot("put", text::escaped(source.as_bytes())).report();
    }
    true
}

/// Removes the new pool if nothing came into it and nobody else uses it. Returns whether it did.
fn remove_if_empty(pool: &Path) -> bool {
    let is_empty = || -> Result<bool, Reason> {
        let opened = pool_file::open_read_only(pool, Some(1))?;
        Ok(opened.list_some(ROOT, None, 1)?.is_empty() && opened.snapshots()?.is_empty())
    };
    // What cannot be removed stays, as an empty pool.
    is_empty().is_ok_and(|is_empty| is_empty) && publish::remove_unused(pool).is_ok()
}

fn put(
    args: &PutArgs,
    sources: &[OsString],
    address: &Address,
    pool: Option<&Pool>,
    properties: &[(Property, String)],
) -> Result<PutSummary, Failure> {
    let users = match pool.filter(|_| !args.dry_run) {
        Some(pool) => {
            let users = Users::of(&address.pool).cannot("open", address)?;
            users.begin_import(pool).cannot("put into", address)?;
            Some(users)
        }
        None => None,
    };
    let is_there = pool.is_some_and(|pool| pool.resolve(&address.path).is_ok());
    let target = target(args, sources, address, pool).cannot("put into", address)?;
    if let Some(pool) = pool.filter(|_| !properties.is_empty()) {
        let made = make_with(args, sources, pool, &target, is_there, properties);
        made.cannot("set properties of", address)?;
    }
    let mut summary = PutSummary::default();
    let mut taken = Taken::of(sources, args);
    for (place, source) in sources.iter().enumerate() {
        let path = Path::new(source);
        taken.next_source(path);
        let shown = text::escaped(source.as_bytes());
        // Sources are read one after the other: opening the same file twice would break SQLite's
        // locks.
        let done = std::thread::scope(|scope| {
            let readers = Readers::start(scope)?;
            let avoid = fs::metadata(&address.pool).ok().map(|m| (m.dev(), m.ino()));
            let (users, before) = (users.as_ref(), std::mem::take(&mut summary));
            let delivery = Delivery::new(args, pool, users, readers, before);
            let mut putter = Putter::new(args, pool, users, delivery, avoid, &mut taken);
            let mut done = putter.put(path, &target, sources.len() == 1);
            if place + 1 == sources.len() {
                done = done.and_then(|()| putter.remove_absent());
            }
            summary = putter.delivery.finish(done)?;
            Ok::<(), Reason>(())
        });
        done.cannot("put", &shown)?;
    }
    if let (Some(users), Some(pool)) = (users, pool)
        && (summary.removed > 0 || users.has_held())
    {
        users.finish(pool).cannot("put into", address)?;
    }
    Ok(summary)
}

/// The destination of the sources.
pub struct Target {
    /// The directory; `None` in a dry run if it does not exist.
    pub directory: Option<FileId>,
    /// The new name of a single file; `None` to keep its own.
    pub name: Option<Vec<u8>>,
}

fn target(
    args: &PutArgs,
    sources: &[OsString],
    address: &Address,
    pool: Option<&Pool>,
) -> Result<Target, Reason> {
    let is_directory = |source: &OsString| {
        let metadata = fs::symlink_metadata(source);
        source.as_bytes().ends_with(b"/") || metadata.is_ok_and(|metadata| metadata.is_dir())
    };
    let there = pool.and_then(|pool| pool.resolve(&address.path).ok());
    let into = !args.no_target_directory
        && (address.ends_with_slash() || there.is_some_and(|entry| entry.kind == Kind::Directory));
    let name = match last_name(&address.path) {
        Some(name) if sources.len() == 1 && !is_directory(&sources[0]) && !into => name,
        _ => {
            let directory = directory(args, pool, &address.path)?;
            return Ok(Target { directory, name: None });
        }
    };
    let end = address.path.len() - address.path.iter().rev().take_while(|b| **b == b'/').count();
    let above = &address.path[..end - name.len()];
    Ok(Target { directory: directory(args, pool, above)?, name: Some(name.to_vec()) })
}

/// Makes the directories that the sources go into and sets properties of them, so that their
/// content is stored accordingly. Refuses to change what exists already.
fn make_with(
    args: &PutArgs,
    sources: &[OsString],
    pool: &Pool,
    target: &Target,
    is_there: bool,
    properties: &[(Property, String)],
) -> Result<(), Reason> {
    let Some(directory) = target.directory.filter(|_| !args.dry_run) else { return Ok(()) };
    if !is_there && target.name.is_none() {
        return set_all(pool, directory, properties);
    }
    let own_name = |source: &OsString| {
        let is_itself = !args.no_target_directory && !source.as_bytes().ends_with(b"/");
        let metadata = fs::symlink_metadata(source);
        let is_directory = metadata.is_ok_and(|metadata| metadata.is_dir());
        let name = Path::new(source).file_name().filter(|_| is_itself && is_directory);
        name.map(|name| name.as_bytes().to_vec())
    };
    for source in sources {
        let name = own_name(source).ok_or_else(properties_stay)?;
        if pool.lookup_in(directory, &name)?.is_some() {
            return Err(properties_stay());
        }
        let like = new_attributes(Kind::Directory, DIRECTORY_MODE);
        pool.edit(like.changed_ns, |edit| {
            let made = edit.create(directory, &name, &like)?;
            edit.set_properties(made, properties)
        })?;
    }
    Ok(())
}

/// The error for properties of something that exists already.
pub fn properties_stay() -> Reason {
    Reason::new(Code::Cannot, "properties are set only of a pool or directory that 'put' makes")
        .hint("'hardpack set' sets those of an existing one, 'hardpack mkdir -o' those of a new directory")
}

fn directory(args: &PutArgs, pool: Option<&Pool>, path: &[u8]) -> Result<Option<FileId>, Reason> {
    match pool {
        Some(pool) if args.dry_run => Ok(pool.resolve(path).ok().map(|entry| entry.file)),
        Some(pool) => make_directories(pool, path).map(Some),
        None => Ok(None),
    }
}

fn report(
    args: &PutArgs,
    address: &Address,
    done: &PutSummary,
    optimised: Option<&optimize::Done>,
    began: Instant,
) -> Result<(), Reason> {
    let seconds = began.elapsed().as_secs_f64();
    if args.work.json {
        let mut told = json!({
            "pool": address.given().to_string_lossy(),
            "dry_run": args.dry_run,
            "files": done.files,
            "bytes": done.bytes,
            "directories": done.directories,
            "symlinks": done.symlinks,
            "special_files": done.special_files,
            "hard_links": done.hard_links,
            "unchanged": done.unchanged,
            "described": done.described,
            "removed": done.removed,
            "left_out": done.left_out,
            "failed": done.failed,
            "seconds": (seconds * 1000.0).round() / 1000.0,
        });
        if let Some(optimised) = optimised {
            told["optimize"] = optimised.json();
        }
        return output::print_json(&told);
    }
    if args.work.quiet {
        return Ok(());
    }
    let others = [
        (done.symlinks, "symbolic links"),
        (done.special_files, "special files"),
        (done.hard_links, "hard links"),
        (done.unchanged, "unchanged"),
        (done.described, "with new metadata"),
        (done.removed, "removed"),
        (done.left_out, "skipped"),
        (done.failed, "failed"),
    ];
    let verb = if args.dry_run { "would put " } else { "" };
    let told = told(done.files, done.bytes, &others);
    output::print_line(format_args!("{address}: {verb}{told} in {seconds:.1} s"))?;
    match optimised {
        None => Ok(()),
        Some(optimised) if optimised.has_gained() => {
            output::print_line(format_args!("  optimize: {}", optimised.told()))
        }
        Some(_) => output::print_line(format_args!("  optimize: nothing to gain")),
    }
}
