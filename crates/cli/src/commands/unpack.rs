//! `hardpack unpack`: restores the file that a pool holds, byte for byte.
//!
//! `contents.rs` reads a database in use.

mod in_place;

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use clap::error::ErrorKind;
use hardpack_engine::FileId;
use hardpack_engine::codec::is_all_zero;
use hardpack_engine::pool::Attributes;

use crate::address::Opened;
use crate::args::{UnpackArgs, wrong_usage};
use crate::contents::{self, Piece, Restart};
use crate::failure::{Cannot, Code, Failure, Reason, io_text};
use crate::leftovers;
use crate::output::{self, bytes};
use crate::pool_file::Digest;
use crate::progress::Progress;
use crate::publish::{self, Unfinished};
use crate::snapshot::read_full;
use crate::users::tell_left_behind;
use crate::{signals, text};

/// Runs of zeros of this length become holes.
const HOLE_LEN: usize = 64 << 10;

pub fn run(args: &UnpackArgs) -> Result<ExitCode, Failure> {
    signals::catch(signals::NOTHING);
    let began = Instant::now();
    let cannot = |reason: Reason| reason.cannot("unpack", &args.pool);
    let input = args.pool.pool.canonicalize().map_err(|error| cannot(error.into()))?;
    if args.in_place {
        leftovers::tell(publish::directory_of(&input));
        let len = in_place::replace(args, &input).map_err(cannot)?;
        report(args, &args.pool.pool, len, began).cannot("report on", &args.pool)?;
        return Ok(ExitCode::SUCCESS);
    }
    let holding = describe(args).map_err(cannot)?;
    let output = match &args.output {
        Some(output) if output.as_os_str() == "-" => {
            write_out(args, &holding).map_err(cannot)?;
            tell_log_of(&holding);
            return Ok(ExitCode::SUCCESS);
        }
        Some(output) if is_directory(output) => {
            output.join(plain_name(&holding.name).map_err(cannot)?)
        }
        Some(output) => output.clone(),
        None => args.pool.pool.with_file_name(plain_name(&holding.name).map_err(cannot)?),
    };
    leftovers::tell(publish::directory_of(&output));
    refuse_output(args, &input, &output).cannot("create", text::path(&output))?;
    let len = unpack(args, &input, &output, &holding).map_err(cannot)?;
    tell_log_of(&holding);
    report(args, &output, len, began).cannot("report on", text::path(&output))?;
    Ok(ExitCode::SUCCESS)
}

fn is_directory(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(b"/") || path.is_dir()
}

/// Writes the file to standard output. Nothing can be verified there, and nothing is reported.
fn write_out(args: &UnpackArgs, holding: &Holding) -> Result<(), Reason> {
    if args.work.json {
        let text = "'--json' cannot be used when the file goes to standard output";
        wrong_usage("unpack", ErrorKind::ArgumentConflict, text);
    }
    let stdout = std::io::stdout();
    if stdout.is_terminal() {
        return Err(Reason::new(Code::Cannot, "a file is not unpacked to a terminal")
            .hint("redirect it, or use 'hardpack cat'"));
    }
    let mut out = stdout.lock();
    let mut begin = contents::once();
    let mut sink = contents::as_bytes(|bytes| {
        signals::check()?;
        out.write_all(bytes).map_err(Reason::stdout)
    });
    contents::read(
        &holding.opened,
        holding.file,
        &holding.path,
        Restart::Impossible,
        &mut begin,
        &mut sink,
    )?;
    drop(sink);
    out.flush().map_err(Reason::stdout)
}

/// The file to unpack.
struct Holding {
    opened: Opened,
    file: FileId,
    name: Vec<u8>,
    /// The path of the file in the pool.
    path: Vec<u8>,
    attributes: Attributes,
}

fn describe(args: &UnpackArgs) -> Result<Holding, Reason> {
    let opened = args.pool.open_state(args.rewind.txg, args.work.threads)?;
    let entry = opened.file()?;
    let attributes = opened.pool.attributes(entry.file)?;
    let path = opened.pool.path_of(entry.file)?;
    Ok(Holding { opened, file: entry.file, name: entry.name, path, attributes })
}

/// Tells the user if the file has a log in the pool, which is not unpacked.
fn tell_log_of(holding: &Holding) {
    tell_left_behind(&holding.opened.pool, holding.file, &|_| false);
}

/// The file's own name, if it can be the name of a file here.
fn plain_name(name: &[u8]) -> Result<&OsStr, Reason> {
    // The name comes from the pool, which may come from anybody.
    let is_plain = !name.is_empty()
        && !name.iter().any(|b| matches!(b, b'/' | 0))
        && name != b"."
        && name != b"..";
    if !is_plain {
        let text = format!(
            "the file in it is named '{}', which is not a valid file name",
            text::escaped(name)
        );
        return Err(Reason::new(Code::Cannot, text).hint("name the file to create"));
    }
    Ok(OsStr::from_bytes(name))
}

fn refuse_output(args: &UnpackArgs, input: &Path, output: &Path) -> Result<(), Reason> {
    if output.canonicalize().is_ok_and(|output| output == input) {
        return Err(
            Reason::new(Code::Cannot, "it is the pool itself").hint("name another file to create")
        );
    }
    publish::refuse_existing(output, args.force)?;
    publish::refuse_sidecars(output)?;
    if args.force { publish::refuse_in_use(output) } else { Ok(()) }
}

fn unpack(
    args: &UnpackArgs,
    input: &Path,
    output: &Path,
    holding: &Holding,
) -> Result<u64, Reason> {
    let unfinished = Unfinished::create(output).map_err(|reason| reason.about(output))?;
    let written = write(args, holding, unfinished.path())?;
    let mode = match holding.attributes.known_mode() {
        Some(mode) => mode,
        None => std::fs::metadata(input)?.mode(),
    };
    unfinished.complete(mode, modified(&holding.attributes))?;
    unfinished.publish(output, args.force).map_err(|reason| reason.about(output))?;
    Ok(written.len)
}

fn modified(attributes: &Attributes) -> Option<SystemTime> {
    let since_1970 = u64::try_from(attributes.modified_ns).ok().filter(|ns| *ns > 0);
    since_1970.map(|ns| SystemTime::UNIX_EPOCH + Duration::from_nanos(ns))
}

/// Writes the file to `path`, and verifies it.
fn write(args: &UnpackArgs, holding: &Holding, path: &Path) -> Result<Written, Reason> {
    let attributes = &holding.attributes;
    let name = text::escaped(&holding.name);
    let mut progress = Progress::new(format!("unpacking {name}"), attributes.len, args.work.quiet);
    let writer = RefCell::new(Writer::create(path)?);
    let mut begin = |len| writer.borrow_mut().begin(len);
    contents::read(
        &holding.opened,
        holding.file,
        &holding.path,
        Restart::Possible,
        &mut begin,
        &mut |piece| {
            signals::check()?;
            let mut writer = writer.borrow_mut();
            writer.put(piece)?;
            progress.at(writer.len());
            Ok(())
        },
    )?;
    progress.finish();
    let written = writer.into_inner().finish()?;
    verify(args, path, &written)?;
    Ok(written)
}

/// What a [`Writer`] wrote.
#[derive(Default)]
pub struct Written {
    /// The length of the file.
    pub len: u64,
    /// The digest of the written bytes, without holes.
    digest: Digest,
    /// The start and end of each hole.
    holes: Vec<(u64, u64)>,
}

/// Writes a file from its beginning to its end, with holes for zeros.
pub struct Writer {
    file: File,
    written: Written,
    hole: bool,
}

impl Writer {
    pub fn create(path: &Path) -> Result<Writer, Reason> {
        let file = std::fs::OpenOptions::new().write(true).truncate(true).open(path)?;
        Ok(Writer::over(file))
    }

    /// Writes a new file.
    pub fn over(file: File) -> Writer {
        Writer { file, written: Written::default(), hole: false }
    }

    /// Starts over with an empty file of the expected length `len`. Fails here if the file system
    /// cannot hold it.
    pub fn begin(&mut self, len: u64) -> Result<(), Reason> {
        use std::io::Seek;
        self.file.set_len(len).map_err(|error| {
            let text = format!("it claims to be {} long: {}", bytes(len, false), io_text(&error));
            Reason::new(Code::Cannot, text)
        })?;
        self.file.set_len(0)?;
        self.file.rewind()?;
        (self.written, self.hole) = (Written::default(), false);
        Ok(())
    }

    /// The length of the file so far.
    pub fn len(&self) -> u64 {
        self.written.len
    }

    pub fn put(&mut self, piece: Piece<'_>) -> Result<(), Reason> {
        match piece {
            Piece::Bytes(bytes) => self.write(bytes),
            Piece::Hole(len) => self.leave(len),
        }
    }

    /// Leaves a hole.
    pub fn leave(&mut self, len: u64) -> Result<(), Reason> {
        use std::io::{Seek, SeekFrom};
        let start = self.written.len;
        self.written.len = start.saturating_add(len);
        self.written.holes.push((start, self.written.len));
        self.file.seek(SeekFrom::Start(self.written.len))?;
        self.hole = true;
        Ok(())
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Reason> {
        use std::io::{Seek, SeekFrom};
        self.written.digest.update(bytes);
        self.written.len += bytes.len() as u64;
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

    pub fn finish(self) -> Result<Written, Reason> {
        if self.hole {
            self.file.set_len(self.written.len)?;
        }
        Ok(self.written)
    }
}

fn verify(args: &UnpackArgs, path: &Path, written: &Written) -> Result<(), Reason> {
    let file = File::open(path)?;
    let mut found = Digest::default();
    let mut progress = Progress::new("verifying".into(), written.len, args.work.quiet);
    let mut buf = vec![0; 2 << 20];
    let mut at = 0;
    // Holes need no check: nothing was written there, in a file that was empty before.
    for (hole, behind) in written.holes.iter().copied().chain([(written.len, written.len)]) {
        while at < hole {
            signals::check()?;
            let n = read_full(&file, &mut buf[..(hole - at).min(2 << 20) as usize], at)?;
            found.update(&buf[..n]);
            at += n as u64;
            progress.at(at);
            if n == 0 {
                break;
            }
        }
        at = behind;
        progress.at(at);
    }
    let len = file.metadata()?.len();
    if found != written.digest || len != written.len {
        return Err(Reason::new(Code::Data, "the written file reads back differently"));
    }
    progress.finish();
    Ok(())
}

fn report(args: &UnpackArgs, output: &Path, len: u64, began: Instant) -> Result<(), Reason> {
    let seconds = began.elapsed().as_secs_f64();
    if args.work.json {
        return output::print_json(&serde_json::json!({
            "pool": args.pool.given().to_string_lossy(),
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
        text::path(output),
        bytes(len, false),
    ))
}
