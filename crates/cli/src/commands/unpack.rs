//! `hardpack unpack`: the file that a pool holds, byte for byte.
//!
//! A database in use, which has a log or journal beside the pool, is read through SQLite in one
//! transaction. Otherwise the pool is all there is, and is read directly.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use hardpack_engine::codec::is_all_zero;
use hardpack_engine::pool::Attributes;

use crate::args::UnpackArgs;
use crate::failure::{Cannot, Code, Failure, Reason};
use crate::leftovers;
use crate::output::{self, bytes};
use crate::pool_file::{self, Digest, read_all};
use crate::progress::Progress;
use crate::publish::{self, Unfinished};
use crate::snapshot::read_full;
use crate::{signals, sqlite};

/// How often to start over when the pool changes while it is read.
const TRIES_MAX: usize = 5;
const TIMEOUT: Duration = Duration::from_secs(10);
/// Runs of zeros of this length become holes.
const HOLE_LEN: usize = 64 << 10;

pub fn run(args: &UnpackArgs) -> Result<ExitCode, Failure> {
    signals::catch();
    let began = Instant::now();
    let cannot = |reason: Reason| reason.cannot("unpack", args.pool.display());
    let input = args.pool.canonicalize().map_err(|error| cannot(error.into()))?;
    let holding = describe(args, &input).map_err(cannot)?;
    let output = match &args.output {
        Some(output) => output.clone(),
        None => default_output(&args.pool, &holding.name).map_err(cannot)?,
    };
    leftovers::tell(publish::directory_of(&output));
    refuse_output(args, &input, &output).cannot("create", output.display())?;
    let len = unpack(args, &input, &output, &holding).map_err(cannot)?;
    report(args, &output, len, began).cannot("report on", output.display())?;
    Ok(ExitCode::SUCCESS)
}

/// What the pool holds.
struct Holding {
    name: String,
    attributes: Attributes,
    is_database: bool,
}

fn describe(args: &UnpackArgs, input: &Path) -> Result<Holding, Reason> {
    let pool = pool_file::open_state(input, args.rewind.txg, None)?;
    let entry = pool.only_file()?;
    Ok(Holding {
        name: entry.display_name().into(),
        attributes: pool.attributes(entry.file)?,
        is_database: pool_file::is_database(&*pool.file(entry.file)?)?,
    })
}

/// The name that the file had, beside the pool.
fn default_output(pool: &Path, name: &str) -> Result<PathBuf, Reason> {
    // The name comes from the pool, which may come from anybody.
    let is_plain = !name.is_empty() && !name.contains(['/', '\0']) && name != "." && name != "..";
    if !is_plain {
        let text = format!("the file in it is called '{}'", name.escape_default());
        return Err(Reason::new(Code::Cannot, text).hint("give the name of the file to create"));
    }
    Ok(pool.with_file_name(name))
}

fn refuse_output(args: &UnpackArgs, input: &Path, output: &Path) -> Result<(), Reason> {
    if output.canonicalize().is_ok_and(|output| output == input) {
        return Err(Reason::new(Code::Cannot, "it is the pool itself")
            .hint("give the name of another file to create"));
    }
    if !args.force {
        publish::refuse_existing(output)?;
    }
    publish::refuse_sidecars(output)
}

fn unpack(
    args: &UnpackArgs,
    input: &Path,
    output: &Path,
    holding: &Holding,
) -> Result<u64, Reason> {
    let unfinished = Unfinished::create(output).map_err(|reason| reason.about(output))?;
    let attributes = &holding.attributes;
    let mut tries = 0;
    let digest = loop {
        let mut writer = Writer::create(unfinished.path())?;
        let mut progress =
            Progress::new(format!("unpacking {}", holding.name), attributes.len, args.work.quiet);
        let mut sink = |bytes: &[u8]| {
            signals::check()?;
            writer.write(bytes)?;
            progress.at(writer.digest.len());
            Ok(())
        };
        // A log or journal belongs to the newest state.
        let has_sidecar = args.rewind.txg.is_none() && pool_file::has_sidecar(input);
        let is_whole = if holding.is_database && has_sidecar {
            read_database(input, &mut sink)?;
            true
        } else {
            read_pool(args, input, holding.is_database, &mut sink)?
        };
        if is_whole {
            progress.finish();
            break writer.finish()?;
        }
        tries += 1;
        if tries == TRIES_MAX {
            return Err(Reason::new(Code::InUse, "it keeps changing while it is read"));
        }
    };
    verify(args, unfinished.path(), &digest)?;
    let mode = match attributes.mode {
        0 => std::fs::metadata(input)?.mode(),
        mode => mode,
    };
    let since_1970 = u64::try_from(attributes.modified_ns).ok().filter(|ns| *ns > 0);
    let modified = since_1970.map(|ns| SystemTime::UNIX_EPOCH + Duration::from_nanos(ns));
    unfinished.complete(mode, modified)?;
    unfinished.publish(output, args.force).map_err(|reason| reason.about(output))?;
    Ok(digest.len())
}

/// Reads the database through SQLite, with what the log or journal beside the pool holds.
fn read_database(
    input: &Path,
    sink: &mut dyn FnMut(&[u8]) -> Result<(), Reason>,
) -> Result<(), Reason> {
    let db = sqlite::open_pool(input, false, TIMEOUT)?;
    sqlite::begin_read(&db)?;
    sqlite::each_page(&db, sink)
}

/// Reads the file out of the pool. `false` if what was read is not one state: then somebody changed
/// it meanwhile, or began to use the database.
fn read_pool(
    args: &UnpackArgs,
    input: &Path,
    is_database: bool,
    sink: &mut dyn FnMut(&[u8]) -> Result<(), Reason>,
) -> Result<bool, Reason> {
    let pool = pool_file::open_state(input, args.rewind.txg, args.work.threads)?;
    let is_newest = args.rewind.txg.is_none();
    if (is_newest && is_database && pool_file::has_sidecar(input)) || pool.refresh()? {
        return Ok(false);
    }
    let txg = pool.state().txg();
    let file = pool.file(pool.only_file()?.file)?;
    let read = read_all(&file, file.len()?, pool.options().threads, sink);
    if pool.state().txg() != txg {
        return Ok(false);
    }
    read.map(|()| true)
}

/// Writes a file from its beginning to its end, with holes for zeros.
pub struct Writer {
    file: File,
    pub digest: Digest,
    hole: bool,
}

impl Writer {
    pub fn create(path: &Path) -> Result<Writer, Reason> {
        let file = std::fs::OpenOptions::new().write(true).truncate(true).open(path)?;
        Ok(Writer { file, digest: Digest::default(), hole: false })
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Reason> {
        use std::io::{Seek, SeekFrom};
        self.digest.update(bytes);
        for piece in bytes.chunks(HOLE_LEN) {
            self.hole = piece.len() == HOLE_LEN && is_all_zero(piece);
            if self.hole {
                self.file.seek(SeekFrom::Current(piece.len() as i64))?;
            } else {
                self.file.write_all(piece)?;
            }
        }
        Ok(())
    }

    pub fn finish(self) -> Result<Digest, Reason> {
        if self.hole {
            self.file.set_len(self.digest.len())?;
        }
        Ok(self.digest)
    }
}

fn verify(args: &UnpackArgs, path: &Path, digest: &Digest) -> Result<(), Reason> {
    let file = File::open(path)?;
    let mut found = Digest::default();
    let mut progress = Progress::new("verifying".into(), digest.len(), args.work.quiet);
    let mut buf = vec![0; 2 << 20];
    loop {
        signals::check()?;
        let n = read_full(&file, &mut buf, found.len())?;
        found.update(&buf[..n]);
        progress.at(found.len());
        if n < buf.len() {
            break;
        }
    }
    if found != *digest {
        return Err(Reason::new(Code::Data, "the file does not hold what was written"));
    }
    progress.finish();
    Ok(())
}

fn report(args: &UnpackArgs, output: &Path, len: u64, began: Instant) -> Result<(), Reason> {
    let seconds = began.elapsed().as_secs_f64();
    if args.work.json {
        return output::print_json(&serde_json::json!({
            "pool": args.pool.to_string_lossy(),
            "output": output.to_string_lossy(),
            "logical_bytes": len,
            "seconds": (seconds * 1000.0).round() / 1000.0,
        }));
    }
    if args.work.quiet {
        return Ok(());
    }
    output::print_line(format_args!(
        "{}: {}, unpacked and verified in {seconds:.1} s",
        output.display(),
        bytes(len, false),
    ))
}
