//! `hardpack pack`: read the input as of one moment, write a pool beside its place, read all of it
//! back, and only then give it its name.

use std::fs::Metadata;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use hardpack_engine::codec::is_all_zero;
use hardpack_engine::device::FileDevice;
use hardpack_engine::pool::{CreateOptions, Pool, Settings};
use hardpack_engine::store::Durability;
use hardpack_engine::store::superblock::MAGIC;
use rustix::fs::XattrFlags;

use super::put::source::xattrs_of;
use crate::address::Address;
use crate::args::PackArgs;
use crate::failure::{Cannot, Code, Failure, Reason};
use crate::leftovers;
use crate::output::{self, bytes, json_ratio, quotient, ratio};
use crate::pool_file::{self, Digest, read_all};
use crate::progress::Progress;
use crate::publish::{self, Unfinished};
use crate::snapshot::{Snapshot, read_full};
use crate::sqlite::{self, beside};
use crate::{contents, signals, text};

/// Sectors of 512 bytes.
const ASHIFT: u8 = 9;
/// The least that is read at a time.
const CHUNK_LEN_MIN: usize = 1 << 20;

pub fn run(args: &PackArgs) -> Result<ExitCode, Failure> {
    signals::catch();
    let began = Instant::now();
    let cannot = |reason: Reason| reason.cannot("pack", args.input.display());
    let input = args.input.canonicalize().map_err(|error| cannot(error.into()))?;
    let beside_it =
        if args.in_place { &input } else { args.output.as_ref().unwrap_or(&args.input) };
    leftovers::tell(publish::directory_of(beside_it));
    refuse_input(args, &input).map_err(cannot)?;
    let output = if args.in_place {
        input.clone()
    } else {
        let output = args.output.clone().unwrap_or_else(|| beside(&args.input, ".hpk"));
        refuse_output(args, &input, &output).cannot("create", output.display())?;
        output
    };
    let packed = pack(args, &input, &output).map_err(cannot)?;
    let shown = if args.in_place { &args.input } else { &output };
    packed.report(args, shown, began).cannot("report on", shown.display())?;
    Ok(ExitCode::SUCCESS)
}

/// What came out.
struct Packed {
    logical_bytes: u64,
    pool_bytes: u64,
    compress_ratio: f64,
}

fn pack(args: &PackArgs, input: &Path, output: &Path) -> Result<Packed, Reason> {
    if args.in_place {
        refuse_in_place(input)?;
    }
    let snapshot = Snapshot::open(input, args.in_place)?;
    let unfinished = Unfinished::create(output).map_err(|reason| reason.about(output))?;
    let digest = write(args, input, &snapshot, unfinished.path())?;
    let metadata = snapshot.metadata().clone();
    let is_database = snapshot.page_len().is_some();
    // In place, a database stays locked until the pool is verified; else nobody need wait longer.
    let held = if args.in_place { Some(snapshot) } else { snapshot.into_file().map(|_| None)? };
    let packed = verify(args, unfinished.path(), &digest)?;
    if let Some(snapshot) = held {
        keep_owner(unfinished.path(), &metadata);
        keep_xattrs(input, unfinished.path())?;
        unfinished.complete(metadata.mode(), None)?;
        let file = snapshot.into_file()?;
        unfinished.replace(input, &file, &digest, is_database).map_err(in_place_hint)?;
    } else {
        unfinished.complete(metadata.mode(), None)?;
        unfinished.publish(output, args.force).map_err(|reason| reason.about(output))?;
    }
    Ok(packed)
}

/// Writes the pool. What the file holds becomes visible and durable with one commit at the end.
fn write(
    args: &PackArgs,
    input: &Path,
    snapshot: &Snapshot,
    path: &Path,
) -> Result<Digest, Reason> {
    let name = input.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut guid = [0; 16];
    getrandom::fill(&mut guid)
        .map_err(|error| Reason::new(Code::Cannot, format!("no random numbers: {error}")))?;
    let properties = args.properties();
    let create = CreateOptions { guid, ashift: ASHIFT, properties, file_name: Some(name.clone()) };
    let device = Arc::new(FileDevice::open(path)?);
    let pool =
        Pool::create(Arc::clone(&device) as _, &create, pool_file::options(args.work.threads))?;
    let id = pool.only_file()?.file;
    let file = pool.file(id)?;
    if let Some(page_len) = snapshot.page_len() {
        file.set_page_len_hint(page_len);
    }

    // Under the lock, or in the transaction, that the pages are read in.
    let clearing = if args.clear_unused { snapshot.clearing()? } else { None };
    let mut cleared = Vec::new();
    let mut digest = Digest::default();
    let mut progress = Progress::new(format!("packing {name}"), snapshot.len()?, args.work.quiet);
    snapshot.read(chunk_len(args)?, &mut |chunk| {
        signals::check()?;
        let chunk = match &clearing {
            None => chunk,
            Some(clearing) => {
                cleared.clear();
                cleared.extend_from_slice(chunk);
                clearing.clear(digest.len(), &mut cleared);
                &cleared
            }
        };
        // What is not written is a hole.
        if !is_all_zero(chunk) {
            file.write_at(chunk, digest.len())?;
        }
        digest.update(chunk);
        progress.set_ratio(quotient(digest.len(), device.file().metadata()?.len()));
        progress.at(digest.len());
        Ok(())
    })?;
    file.set_len(digest.len())?;
    file.commit(Durability::Durable)?;
    // Behind the commit, which makes the time of the last change unknown.
    let metadata = snapshot.metadata();
    pool.set_attributes(id, metadata.mode() & 0o7777, modified_ns(metadata))?;
    pool.close()?;
    progress.finish();
    Ok(digest)
}

/// Whole records are written where chunks are whole records.
fn chunk_len(args: &PackArgs) -> Result<usize, Reason> {
    let mut settings = Settings::default();
    for (property, value) in args.properties() {
        settings.set(property, &value)?;
    }
    Ok(CHUNK_LEN_MIN.max(settings.record_len as usize))
}

/// Opens the pool anew, checks all of it, and compares what it holds with what was read.
fn verify(args: &PackArgs, path: &Path, digest: &Digest) -> Result<Packed, Reason> {
    let pool = pool_file::open_read_only(path, args.work.threads)?;
    let report = pool.check(&mut |_| {})?;
    if let Some(problem) = report.problems.first() {
        return Err(Reason::new(Code::Data, format!("the pool is not whole: {}", problem.detail)));
    }
    signals::check()?;
    let file = pool.file(pool.only_file()?.file)?;
    let mut found = Digest::default();
    let mut progress = Progress::new("verifying".into(), digest.len(), args.work.quiet);
    read_all(&file, file.len()?, pool.options().threads, &mut |bytes| {
        found.update(bytes);
        progress.at(found.len());
        signals::check()
    })?;
    if found != *digest {
        return Err(Reason::new(Code::Data, "the pool does not hold what was read"));
    }
    progress.finish();
    Ok(Packed {
        logical_bytes: digest.len(),
        pool_bytes: std::fs::metadata(path)?.len(),
        compress_ratio: pool.state().stats().compress_ratio(),
    })
}

impl Packed {
    fn report(&self, args: &PackArgs, output: &Path, began: Instant) -> Result<(), Reason> {
        let seconds = began.elapsed().as_secs_f64();
        if args.work.json {
            return output::print_json(&serde_json::json!({
                "input": args.input.to_string_lossy(),
                "pool": output.to_string_lossy(),
                "logical_bytes": self.logical_bytes,
                "pool_bytes": self.pool_bytes,
                "ratio": json_ratio(quotient(self.logical_bytes, self.pool_bytes)),
                "compressratio": json_ratio(self.compress_ratio),
                "seconds": (seconds * 1000.0).round() / 1000.0,
            }));
        }
        if args.work.quiet {
            return Ok(());
        }
        output::print_line(format_args!(
            "{}: {} in {} ({}), packed and verified in {seconds:.1} s",
            output.display(),
            bytes(self.logical_bytes, false),
            bytes(self.pool_bytes, false),
            ratio(quotient(self.logical_bytes, self.pool_bytes)),
        ))
    }
}

fn modified_ns(metadata: &Metadata) -> i64 {
    metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec())
}

/// Only ordinary files are packed, and a pool only if it is really meant.
fn refuse_input(args: &PackArgs, input: &Path) -> Result<(), Reason> {
    // Before it is opened: that would wait for the other end of a pipe.
    if !std::fs::metadata(input)?.is_file() {
        return Err(Reason::new(Code::Cannot, "it is not an ordinary file"));
    }
    let mut head = [0; MAGIC.len()];
    read_full(&std::fs::File::open(input)?, &mut head, 0)?;
    if head == *MAGIC && !args.force {
        return Err(
            Reason::new(Code::Cannot, "it is a pool already").hint("--force packs it all the same")
        );
    }
    if head == *MAGIC {
        // It is packed as the bytes that it is, and what its databases have beside it would stay behind.
        let logs = contents::logs_beside(input)?;
        if let Some((_, path, _)) = logs.iter().find(|(_, path, _)| sqlite::is_unsettled(path)) {
            let what = format!("'{}' holds changes that it lacks", path.display());
            return Err(Reason::new(Code::InUse, what)
                .hint("opening that database once, with nobody else using it, puts them into it"));
        }
    }
    Ok(())
}

fn refuse_output(args: &PackArgs, input: &Path, output: &Path) -> Result<(), Reason> {
    if !Address::from(output.as_os_str().to_owned()).is_whole() {
        let (input, output) = (args.input.display(), output.display());
        return Err(Reason::new(Code::Cannot, "it lies in a pool that is there already")
            .hint(format!("'hardpack put {input} {output}' puts a file into a pool")));
    }
    if !args.force {
        publish::refuse_existing(output)?;
    } else if output.canonicalize().is_ok_and(|output| output == input) {
        return Err(Reason::new(Code::Cannot, "it is the file to be packed")
            .hint("--in-place replaces it by its pool"));
    }
    publish::refuse_sidecars(output)?;
    if args.force { publish::refuse_in_use(output) } else { Ok(()) }
}

fn refuse_in_place(input: &Path) -> Result<(), Reason> {
    let file = std::fs::File::open(input)?;
    if file.metadata()?.nlink() > 1 {
        return Err(Reason::new(Code::Cannot, "it has other names (hard links)")
            .hint("they would keep the unpacked file; remove them, or pack without --in-place"));
    }
    publish::Unused::take(&file).map(drop).map_err(in_place_hint)
}

fn in_place_hint(reason: Reason) -> Reason {
    match reason.code {
        Code::InUse => {
            reason.hint("close it there first; without --in-place a file in use can be packed")
        }
        _ => reason,
    }
}

/// Best effort: only root may give files away.
fn keep_owner(path: &Path, metadata: &Metadata) {
    let _ = chown(path, Some(metadata.uid()), Some(metadata.gid()));
}

/// Gives the pool the extended attributes of what it replaces, and with them its access control list. Its mode comes
/// after that, and says again what the list has as its mask.
fn keep_xattrs(from: &Path, to: &Path) -> Result<(), Reason> {
    for (name, value) in xattrs_of(from)? {
        let set = rustix::fs::lsetxattr(to, &name, &value, XattrFlags::empty());
        // Labels and the like are set by the system, or by those who may.
        let is_systems = name.starts_with(b"security.") || name.starts_with(b"trusted.");
        if let Err(error) = set
            && !is_systems
        {
            let name = text::escaped(&name);
            let what = format!("its extended attribute '{name}' cannot be kept: {error}");
            return Err(Reason::new(Code::Cannot, what));
        }
    }
    Ok(())
}
