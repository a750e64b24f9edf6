//! `hardpack put`: files and whole directories into a pool.
//!
//! `walk.rs` goes through the sources and decides what is to be done, name by name in the order of their bytes, beside
//! the names that the pool has. `readers.rs` reads small files ahead on a few threads; long ones and databases
//! are streamed. What is given to the engine is committed a batch at a time, each file as a whole, so whatever
//! ends the command leaves a whole pool, and the next run goes on from there.
//!
//! What cannot be read is named on stderr, and the rest goes on.

mod delivery;
mod existing;
mod readers;
pub mod source;
mod walk;

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use hardpack_engine::FileId;
use hardpack_engine::pool::{Kind, Pool};
use serde_json::json;

use self::delivery::Delivery;
use self::readers::Readers;
use self::walk::Putter;
use super::names::{create_pool, make_directories};
use crate::address::{Address, last_name};
use crate::args::PutArgs;
use crate::failure::{Cannot, Code, Failure, Reason};
use crate::output::{self, bytes, count};
use crate::users::Users;
use crate::{leftovers, publish, signals, tarball, text};

/// What was done.
#[derive(Default)]
pub struct Summary {
    pub files: u64,
    pub bytes: u64,
    pub directories: u64,
    pub symlinks: u64,
    pub hard_links: u64,
    pub unchanged: u64,
    /// Only mode, owner, times or extended attributes were set anew.
    pub described: u64,
    pub removed: u64,
    pub left_out: u64,
    pub failed: u64,
}

pub fn run(args: &PutArgs) -> Result<ExitCode, Failure> {
    signals::catch();
    let began = Instant::now();
    let (sources, address) = args.split();
    leftovers::tell(publish::directory_of(&address.pool));
    let is_new = fs::symlink_metadata(&address.pool).is_err();
    if is_new && !args.dry_run {
        create_pool(&address.pool, args.properties.given()).cannot("create", &address)?;
    } else if !args.properties.given().is_empty() {
        return Err(Reason::new(Code::Cannot, "the pool is there already")
            .hint("'hardpack set' sets the properties of a pool or a directory in it")
            .cannot("set properties of", &address));
    }
    let done = if args.tar {
        tarball::put(args, sources, &address)?
    } else if is_new && args.dry_run {
        put(args, sources, &address, None)?
    } else {
        let opened = address.open_writable(args.work.threads).cannot("open", &address)?;
        let done = put(args, sources, &address, Some(&opened.pool))?;
        opened.pool.close().cannot("close", &address)?;
        done
    };
    report(args, &address, &done, began).cannot("report on", &address)?;
    Ok(ExitCode::from(if done.failed > 0 { Code::Cannot as u8 } else { 0 }))
}

fn put(
    args: &PutArgs,
    sources: &[OsString],
    address: &Address,
    pool: Option<&Pool>,
) -> Result<Summary, Failure> {
    let users = match pool.filter(|_| !args.dry_run) {
        Some(pool) => {
            let users = Users::of(&address.pool).cannot("open", address)?;
            users.begin_import(pool).cannot("put into", address)?;
            Some(users)
        }
        None => None,
    };
    let target = target(args, sources, address, pool).cannot("put into", address)?;
    let mut summary = Summary::default();
    for source in sources {
        let path = Path::new(source);
        let shown = text::escaped(source.as_bytes());
        // A source is read to its end before the next: SQLite's locks do not bear the same file twice.
        let done = std::thread::scope(|scope| {
            let readers = Readers::start(scope)?;
            let avoid = fs::metadata(&address.pool).ok().map(|m| (m.dev(), m.ino()));
            let delivery = Delivery::new(args, pool, readers, std::mem::take(&mut summary));
            let mut putter = Putter::new(args, pool, users.as_ref(), delivery, avoid);
            let done = putter.put(path, &target, sources.len() == 1);
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

/// Where sources go.
pub struct Target {
    /// The directory; nothing where it is not there and not made either.
    pub directory: Option<FileId>,
    /// The name of a single file in it; nothing where its own is kept.
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

fn directory(args: &PutArgs, pool: Option<&Pool>, path: &[u8]) -> Result<Option<FileId>, Reason> {
    match pool {
        Some(pool) if args.dry_run => Ok(pool.resolve(path).ok().map(|entry| entry.file)),
        Some(pool) => make_directories(pool, path).map(Some),
        None => Ok(None),
    }
}

fn report(args: &PutArgs, address: &Address, done: &Summary, began: Instant) -> Result<(), Reason> {
    let seconds = began.elapsed().as_secs_f64();
    if args.work.json {
        return output::print_json(&json!({
            "pool": address.to_string(),
            "dry_run": args.dry_run,
            "files": done.files,
            "bytes": done.bytes,
            "directories": done.directories,
            "symlinks": done.symlinks,
            "hard_links": done.hard_links,
            "unchanged": done.unchanged,
            "described": done.described,
            "removed": done.removed,
            "left_out": done.left_out,
            "failed": done.failed,
            "seconds": (seconds * 1000.0).round() / 1000.0,
        }));
    }
    if args.work.quiet {
        return Ok(());
    }
    let parts = [
        (done.symlinks, "symbolic links"),
        (done.hard_links, "hard links"),
        (done.unchanged, "unchanged"),
        (done.described, "only described anew"),
        (done.removed, "removed"),
        (done.left_out, "left out"),
        (done.failed, "failed"),
    ];
    let mut line = format!("{address}: {}", if args.dry_run { "would put " } else { "" });
    let (files, length) = (count(done.files, false), bytes(done.bytes, false));
    line.push_str(&format!(
        "{files} {} ({length})",
        if done.files == 1 { "file" } else { "files" }
    ));
    for (number, what) in parts.into_iter().filter(|(number, _)| *number > 0) {
        line.push_str(&format!(", {} {what}", count(number, false)));
    }
    output::print_line(format_args!("{line} in {seconds:.1} s"))
}
