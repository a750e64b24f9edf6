//! `hardpack unpack`: the file that a pool holds, byte for byte.
//!
//! How a database in use is read is in `contents.rs`.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use hardpack_engine::FileId;
use hardpack_engine::codec::is_all_zero;
use hardpack_engine::pool::Attributes;

use crate::address::Opened;
use crate::args::UnpackArgs;
use crate::contents::{self, Piece};
use crate::failure::{Cannot, Code, Failure, Reason, io_text};
use crate::leftovers;
use crate::output::{self, bytes};
use crate::pool_file::Digest;
use crate::progress::Progress;
use crate::publish::{self, Unfinished};
use crate::snapshot::read_full;
use crate::{signals, text};

/// Runs of zeros of this length become holes.
const HOLE_LEN: usize = 64 << 10;

pub fn run(args: &UnpackArgs) -> Result<ExitCode, Failure> {
    signals::catch();
    let began = Instant::now();
    let cannot = |reason: Reason| reason.cannot("unpack", &args.pool);
    let input = args.pool.pool.canonicalize().map_err(|error| cannot(error.into()))?;
    let holding = describe(args).map_err(cannot)?;
    let output = match &args.output {
        Some(output) => output.clone(),
        None => default_output(&args.pool.pool, &holding.name).map_err(cannot)?,
    };
    leftovers::tell(publish::directory_of(&output));
    refuse_output(args, &input, &output).cannot("create", output.display())?;
    let len = unpack(args, &input, &output, &holding).map_err(cannot)?;
    report(args, &output, len, began).cannot("report on", output.display())?;
    Ok(ExitCode::SUCCESS)
}

/// What is to be unpacked.
struct Holding {
    opened: Opened,
    file: FileId,
    name: Vec<u8>,
    /// The path to it in the pool.
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

/// The name that the file had, beside the pool.
fn default_output(pool: &Path, name: &[u8]) -> Result<PathBuf, Reason> {
    // The name comes from the pool, which may come from anybody.
    let is_plain = !name.is_empty()
        && !name.iter().any(|b| matches!(b, b'/' | 0))
        && name != b"."
        && name != b"..";
    if !is_plain {
        let text = format!("the file in it is called '{}'", text::escaped(name));
        return Err(Reason::new(Code::Cannot, text).hint("give the name of the file to create"));
    }
    Ok(pool.with_file_name(OsStr::from_bytes(name)))
}

fn refuse_output(args: &UnpackArgs, input: &Path, output: &Path) -> Result<(), Reason> {
    if output.canonicalize().is_ok_and(|output| output == input) {
        return Err(Reason::new(Code::Cannot, "it is the pool itself")
            .hint("give the name of another file to create"));
    }
    if !args.force {
        publish::refuse_existing(output)?;
    }
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
    let attributes = &holding.attributes;
    let name = text::escaped(&holding.name);
    let mut progress = Progress::new(format!("unpacking {name}"), attributes.len, args.work.quiet);
    let writer = RefCell::new(Writer::create(unfinished.path())?);
    let mut begin = |len| writer.borrow_mut().begin(len);
    contents::read(&holding.opened, holding.file, &holding.path, &mut begin, &mut |piece| {
        signals::check()?;
        let mut writer = writer.borrow_mut();
        writer.put(piece)?;
        progress.at(writer.len());
        Ok(())
    })?;
    progress.finish();
    let written = writer.into_inner().finish()?;
    verify(args, unfinished.path(), &written)?;
    let mode = match attributes.mode {
        0 => std::fs::metadata(input)?.mode(),
        mode => mode,
    };
    let since_1970 = u64::try_from(attributes.modified_ns).ok().filter(|ns| *ns > 0);
    let modified = since_1970.map(|ns| SystemTime::UNIX_EPOCH + Duration::from_nanos(ns));
    unfinished.complete(mode, modified)?;
    unfinished.publish(output, args.force).map_err(|reason| reason.about(output))?;
    Ok(written.len)
}

/// What a [`Writer`] wrote.
#[derive(Default)]
pub struct Written {
    /// How long the file is.
    pub len: u64,
    /// What was given as bytes.
    digest: Digest,
    /// What was given as holes: from where to where.
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

    /// Begins anew with an empty file, that is to become so long. What the file system cannot hold is refused here.
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

    /// How long the file is so far.
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
    // Nothing was written to holes, in a file that was empty before.
    for (hole, behind) in written.holes.iter().copied().chain([(written.len, written.len)]) {
        while at < hole {
            signals::check()?;
            let n = read_full(&file, &mut buf[..(hole - at).min(2 << 20) as usize], at)?;
            found.update(&buf[..n]);
            progress.at(at);
            at += n as u64;
            if n == 0 {
                break;
            }
        }
        at = behind;
    }
    let len = file.metadata()?.len();
    if found != written.digest || len != written.len {
        return Err(Reason::new(Code::Data, "the file does not hold what was written"));
    }
    progress.finish();
    Ok(())
}

fn report(args: &UnpackArgs, output: &Path, len: u64, began: Instant) -> Result<(), Reason> {
    let seconds = began.elapsed().as_secs_f64();
    if args.work.json {
        return output::print_json(&serde_json::json!({
            "pool": args.pool.to_string(),
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
