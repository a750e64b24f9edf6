//! `hardpack import`: puts what other formats hold into a pool, and compares it.
//!
//! `recognise.rs` tells the formats apart. Archives become entries of the same reader as tar
//! streams: `archives.rs` decompresses them, or runs the program that knows the format (`tool.rs`),
//! and `zip.rs` reads ZIP itself. `databases.rs` makes plain databases of those whose pages
//! (`pages.rs`) or rows (`rows.rs`) another extension of SQLite has compressed.
//!
//! A new pool is made under a hidden name and gets its own when everything in it has been read back
//! and compared. An existing pool keeps the files that were complete when something fails.

mod archives;
mod databases;
mod frames;
mod pages;
mod recognise;
mod rows;
mod tool;
mod zip;
mod zstd_stream;

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use hardpack_engine::FileId;
use hardpack_engine::pool::{Kind, Pool};
use serde_json::json;

use self::archives::TarInput;
use self::databases::Plain;
use super::names::{POOL_MODE, make_directories, make_pool, own, umask};
use super::put::{properties_stay, refuse_unlikely};
use crate::address::last_name;
use crate::args::{Format, ImportArgs};
use crate::failure::{Cannot, Code, Failure, Reason};
use crate::output;
use crate::publish::{self, Unfinished};
use crate::seen::Seen;
use crate::summary::{PutSummary, told};
use crate::tarball::read::{Manner, put_entries, put_stream};
use crate::users::Users;
use crate::{leftovers, pool_file, signals, sqlite, text};

/// What an interrupted import leaves in an existing pool.
const LEFT_BEHIND: &str =
    "the files imported so far are in the pool, each complete; the same command imports all again";

pub fn run(args: &ImportArgs) -> Result<ExitCode, Failure> {
    let address = &args.target;
    let is_new = fs::symlink_metadata(&address.pool).is_err();
    signals::catch(if is_new { signals::NOTHING } else { LEFT_BEHIND });
    let began = Instant::now();
    let shown = text::path(&args.source);
    let format = recognise::recognise(&args.source, args.from).cannot("import", &shown)?;
    leftovers::tell(publish::directory_of(&address.pool));
    let done = if is_new { into_new(args, format) } else { into_existing(args, format) };
    let done = done?;
    report(args, format, &done, began).cannot("report on", address)?;
    Ok(ExitCode::from(if done.failed > 0 { Code::Cannot as u8 } else { 0 }))
}

/// Imports into a pool that does not exist yet.
fn into_new(args: &ImportArgs, format: Format) -> Result<PutSummary, Failure> {
    let address = &args.target;
    let pool = &address.pool;
    let create = || {
        refuse_unlikely(address)?;
        publish::refuse_existing(pool, false)?;
        publish::refuse_sidecars(pool)?;
        let unfinished = Unfinished::create(pool)?;
        make_pool(unfinished.path(), args.properties.given())?;
        Ok::<_, Reason>(unfinished)
    };
    let unfinished = create().cannot("create", address)?;
    let done = import(args, format, unfinished.path())?;
    let publish = || {
        unfinished.complete(POOL_MODE & !umask(), None)?;
        unfinished.publish(pool, false)
    };
    publish().cannot("create", address)?;
    Ok(done)
}

/// Imports into an existing pool.
fn into_existing(args: &ImportArgs, format: Format) -> Result<PutSummary, Failure> {
    if !args.properties.given().is_empty() {
        return Err(properties_stay().cannot("set properties of", &args.target));
    }
    import(args, format, &args.target.pool)
}

/// Imports into the pool at `path`, and compares.
fn import(args: &ImportArgs, format: Format, path: &Path) -> Result<PutSummary, Failure> {
    let (shown, address) = (text::path(&args.source), &args.target);
    let address_there = address.in_pool(path);
    // Everything that can fail because of the source alone does so before the pool is touched.
    let source = Source::open(args, format).cannot("import", &shown)?;
    let opened = address_there.open_writable(args.work.threads).cannot("open", address)?;
    let pool = &opened.pool;
    let users = Users::of(path).cannot("open", address)?;
    users.begin_import(pool).cannot("import into", address)?;
    let mut summary = PutSummary::default();
    let seen = source.put(args, format, (pool, &users), &mut summary)?;
    if users.has_held() {
        users.finish(pool).cannot("import into", address)?;
    }
    pool.close().cannot("close", address)?;
    // Opened again, so that nothing comes from the memory of this process.
    let verify = || {
        let pool = pool_file::open_read_only(path, args.work.threads)?;
        seen.verify(&pool, path == args.target.pool, args.work.quiet)?;
        tell_logs(&pool, &seen)
    };
    verify().cannot("verify", address)?;
    Ok(summary)
}

/// Tells the user of logs whose changes SQLite does not see in a pool.
fn tell_logs(pool: &Pool, seen: &Seen) -> Result<(), Reason> {
    for path in seen.logs()? {
        let mut head = [0; sqlite::LOG_HEAD_LEN];
        // Others may have removed it since.
        let Ok(entry) = pool.resolve_link(&path) else { continue };
        let n = pool.file(entry.file)?.read_at(&mut head, 0)?;
        if sqlite::is_log_head(&head[..n]) {
            output::tell(format_args!(
                "note: '{}' holds changes of the database beside it, which SQLite does not see in a pool; \
                 unpack the source and use 'hardpack put', which reads both",
                text::escaped(&path)
            ));
        }
    }
    Ok(())
}

/// What is imported.
enum Source {
    Zip(File),
    Tar(TarInput),
    Database(Plain),
}

impl Source {
    fn open(args: &ImportArgs, format: Format) -> Result<Source, Reason> {
        Ok(match format {
            Format::SqliteZstd | Format::SqliteZstdVfs => {
                Source::Database(databases::plain(args, format, &args.target.pool)?)
            }
            Format::Zip => Source::Zip(File::open(&args.source)?),
            _ => Source::Tar(TarInput::open(File::open(&args.source)?, &args.source, format)?),
        })
    }

    /// Puts everything into the pool. Returns notes of the files.
    fn put(
        self,
        args: &ImportArgs,
        format: Format,
        place: (&Pool, &Users),
        summary: &mut PutSummary,
    ) -> Result<Seen, Failure> {
        let (shown, address) = (text::path(&args.source), &args.target);
        let cannot = |reason: Reason| reason.cannot("import", &shown);
        if let Source::Database(plain) = self {
            let (directory, above, name) = target(args, place.0).cannot("import into", address)?;
            let seen = Seen::below(&above).map_err(cannot)?;
            databases::put(args, &plain, place, (directory, &name), &seen, summary)
                .map_err(cannot)?;
            return Ok(seen);
        }
        let top = make_directories(place.0, &address.path).cannot("import into", address)?;
        let seen = Seen::below(&address.path).map_err(cannot)?;
        let manner = Manner {
            label: "importing",
            is_quiet: args.work.quiet,
            is_verbose: args.verbose,
            is_exclusive: false,
            // Those formats have no owners, or none that mean anything elsewhere.
            owner: matches!(format, Format::Zip | Format::SevenZip).then(own),
            seen: Some(&seen),
        };
        let done = match self {
            Source::Zip(file) => {
                put_entries(manner, place, top, summary, |putter| zip::put(&file, putter))
            }
            Source::Tar(mut input) => {
                let done = put_stream(manner, place, top, &mut input, summary);
                input.finish(done)
            }
            // Handled above.
            Source::Database(_) => Ok(()),
        };
        done.map_err(cannot)?;
        Ok(seen)
    }
}

/// Finds the directory and the name for a database; the path of the directory is returned, too.
fn target(args: &ImportArgs, pool: &Pool) -> Result<(FileId, Vec<u8>, Vec<u8>), Reason> {
    let path = &args.target.path;
    let is_directory = args.target.ends_with_slash()
        || pool.resolve(path).is_ok_and(|entry| entry.kind == Kind::Directory);
    let (above, name) = match last_name(path).filter(|_| !is_directory) {
        Some(name) => {
            let end = path.len() - path.iter().rev().take_while(|byte| **byte == b'/').count();
            (path[..end - name.len()].to_vec(), name.to_vec())
        }
        None => {
            let name = args.source.file_name().map(|name| name.as_bytes().to_vec());
            let name = name.ok_or_else(|| Reason::new(Code::Cannot, "the source has no name"))?;
            (path.clone(), name)
        }
    };
    Ok((make_directories(pool, &above)?, above, name))
}

fn report(
    args: &ImportArgs,
    format: Format,
    done: &PutSummary,
    began: Instant,
) -> Result<(), Reason> {
    let seconds = began.elapsed().as_secs_f64();
    if args.work.json {
        return output::print_json(&json!({
            "source": args.source.to_string_lossy(),
            "format": format.name(),
            "pool": args.target.given().to_string_lossy(),
            "files": done.files,
            "bytes": done.bytes,
            "directories": done.directories,
            "symlinks": done.symlinks,
            "special_files": done.special_files,
            "hard_links": done.hard_links,
            "left_out": done.left_out,
            "failed": done.failed,
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
        (done.left_out, "skipped"),
        (done.failed, "failed"),
    ];
    output::print_line(format_args!(
        "{}: {} from {}, imported and verified in {seconds:.1} s",
        args.target,
        told(done.files, done.bytes, &others),
        format.name()
    ))
}
