//! `hardpack pack`: reads the input as of one moment, writes a pool under a temporary name, reads
//! it back in full, and only then renames it.

mod input;

use std::fs::Metadata;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use clap::error::ErrorKind;
use hardpack_engine::Ashift;
use hardpack_engine::codec::is_all_zero;
use hardpack_engine::device::FileDevice;
use hardpack_engine::pool::{CreateOptions, Pool, Settings};
use hardpack_engine::store::Durability;
use hardpack_engine::store::superblock::MAGIC;
use rustix::fs::XattrFlags;

use self::input::Input;
use super::put::source::xattrs_of;
use crate::address::Address;
use crate::args::{PackArgs, wrong_usage};
use crate::failure::{Cannot, Code, Failure, Reason};
use crate::leftovers;
use crate::output::{self, bytes, json_ratio, quotient, ratio};
use crate::pool_file::{self, Digest, read_all};
use crate::progress::Progress;
use crate::publish::{self, Unfinished};
use crate::snapshot::{Snapshot, read_full};
use crate::sqlite::{self, beside};
use crate::{sidecars, signals, text};

/// Sectors of 512 bytes.
const ASHIFT: Ashift = Ashift::MIN;
/// The command, for hints.
const COMMAND: &str = "pack";
/// The minimum number of bytes read at a time.
const CHUNK_LEN_MIN: usize = 1 << 20;

pub fn run(args: &PackArgs) -> Result<ExitCode, Failure> {
    signals::catch(signals::NOTHING);
    let began = Instant::now();
    let cannot = |reason: Reason| reason.cannot("pack", text::path(&args.input));
    if args.input.as_os_str() == "-" {
        return pack_stdin(args, began);
    }
    let input = args.input.canonicalize().map_err(|error| cannot(error.into()))?;
    let beside_it =
        if args.in_place { &input } else { args.output.as_ref().unwrap_or(&args.input) };
    leftovers::tell(publish::directory_of(beside_it));
    refuse_input(args, &input).map_err(cannot)?;
    let output = if args.in_place {
        input.clone()
    } else {
        let output = args.output.clone().unwrap_or_else(|| beside(&args.input, ".hpk"));
        refuse_output(args, Some(&input), &output).cannot("create", text::path(&output))?;
        output
    };
    let packed = pack(args, &input, &output).map_err(cannot)?;
    let shown = if args.in_place { &args.input } else { &output };
    packed.report(args, shown, began).cannot("report on", text::path(shown))?;
    Ok(ExitCode::SUCCESS)
}

/// Packs standard input to OUT, which must be named.
fn pack_stdin(args: &PackArgs, began: Instant) -> Result<ExitCode, Failure> {
    let Some(output) = args.output.as_ref().filter(|_| !args.in_place) else {
        let text = "standard input has no name: name the pool to create";
        wrong_usage(COMMAND, ErrorKind::MissingRequiredArgument, text);
    };
    leftovers::tell(publish::directory_of(output));
    refuse_output(args, None, output).cannot("create", text::path(output))?;
    let pack = || {
        let input = Input::standard(output);
        let unfinished = Unfinished::create(output)?;
        let digest = write(args, &input, unfinished.path())?;
        let packed = verify(args, unfinished.path(), &digest)?;
        unfinished.complete(input.mode(), None)?;
        unfinished.publish(output, args.force).map_err(|reason| reason.about(output))?;
        Ok::<_, Reason>(packed)
    };
    let packed = pack().cannot(COMMAND, "-")?;
    packed.report(args, output, began).cannot("report on", text::path(output))?;
    Ok(ExitCode::SUCCESS)
}

/// Sizes of the finished pool.
struct Packed {
    logical_bytes: u64,
    pool_bytes: u64,
    compress_ratio: f64,
}

fn pack(args: &PackArgs, input: &Path, output: &Path) -> Result<Packed, Reason> {
    if args.in_place {
        refuse_in_place(input, COMMAND)?;
    }
    let snapshot = Snapshot::open(input, args.in_place)?;
    let unfinished = Unfinished::create(output)?;
    let digest = write(args, &Input::File(input, &snapshot), unfinished.path())?;
    let metadata = snapshot.metadata().clone();
    let is_database = snapshot.page_len().is_some();
    // With --in-place, a database stays locked until the pool is verified; otherwise it is released
    // here.
    let held = if args.in_place { Some(snapshot) } else { snapshot.into_file().map(|_| None)? };
    let packed = verify(args, unfinished.path(), &digest)?;
    if let Some(snapshot) = held {
        keep_owner(unfinished.path(), &metadata);
        keep_xattrs(input, unfinished.path())?;
        unfinished.complete(metadata.mode(), None)?;
        let file = snapshot.into_file()?;
        unfinished
            .replace(input, &file, &digest, is_database)
            .map_err(|reason| in_place_hint(reason, COMMAND))?;
    } else {
        unfinished.complete(metadata.mode(), None)?;
        unfinished.publish(output, args.force).map_err(|reason| reason.about(output))?;
    }
    Ok(packed)
}

/// Writes the pool. One commit at the end makes the content visible and durable.
fn write(args: &PackArgs, input: &Input<'_>, path: &Path) -> Result<Digest, Reason> {
    let name = input.name();
    let mut guid = [0; 16];
    getrandom::fill(&mut guid)
        .map_err(|error| Reason::new(Code::Cannot, format!("no random numbers: {error}")))?;
    let properties = args.properties();
    let create = CreateOptions {
        guid,
        ashift: ASHIFT,
        properties,
        file_name: Some(name.clone()),
        file_mode: 0,
    };
    let device = Arc::new(FileDevice::open(path)?);
    let pool =
        Pool::create(Arc::clone(&device) as _, &create, pool_file::options(args.work.threads))?;
    let id = pool.only_file()?.file;
    let file = pool.file(id)?;
    if let Some(page_len) = input.page_len() {
        file.set_page_len_hint(page_len);
    }

    // Computed under the same lock, or in the same transaction, as the pages are read.
    let clearing = if args.clears_unused() { input.clearing()? } else { None };
    let mut cleared = Vec::new();
    let mut digest = Digest::default();
    let mut progress = Progress::new(format!("packing {name}"), input.len()?, args.work.quiet);
    input.read(chunk_len(args)?, &mut |chunk| {
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
        // Bytes not written are a hole.
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
    // After the commit, which resets the modification time.
    pool.set_attributes(id, input.mode(), input.modified_ns())?;
    pool.close()?;
    progress.finish();
    Ok(digest)
}

/// The length of chunks: a multiple of the record size, so that whole records are written.
fn chunk_len(args: &PackArgs) -> Result<usize, Reason> {
    let mut settings = Settings::default();
    for (property, value) in args.properties() {
        settings.set(property, &value)?;
    }
    Ok(CHUNK_LEN_MIN.max(settings.record_len as usize))
}

/// Reopens the pool, checks all of it, and compares its content with the input.
fn verify(args: &PackArgs, path: &Path, digest: &Digest) -> Result<Packed, Reason> {
    let pool = pool_file::open_read_only(path, args.work.threads)?;
    let report = pool.check(&mut |_| {})?;
    if let Some(problem) = report.problems.first() {
        return Err(Reason::new(
            Code::Data,
            format!("the new pool is damaged: {}", problem.detail),
        ));
    }
    signals::check()?;
    let file = pool.file(pool.only_file()?.file)?;
    let mut found = Digest::default();
    let mut progress = Progress::new("verifying".into(), digest.len(), args.work.quiet);
    read_all(&file, file.len()?, pool.options().threads(), &mut |bytes| {
        found.update(bytes);
        progress.at(found.len());
        signals::check()
    })?;
    if found != *digest {
        return Err(Reason::new(Code::Data, "the new pool does not match the input"));
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
            text::path(output),
            bytes(self.logical_bytes, false),
            bytes(self.pool_bytes, false),
            ratio(quotient(self.logical_bytes, self.pool_bytes)),
        ))
    }
}

/// Accepts regular files only, and a pool only with --force.
fn refuse_input(args: &PackArgs, input: &Path) -> Result<(), Reason> {
    // Checked before opening, which would block on a pipe.
    if !std::fs::metadata(input)?.is_file() {
        return Err(Reason::new(Code::Cannot, "it is not a regular file"));
    }
    let mut head = [0; MAGIC.len()];
    read_full(&std::fs::File::open(input)?, &mut head, 0)?;
    if head == *MAGIC && (args.in_place || !args.force) {
        let reason = Reason::new(Code::Cannot, "it is a pool already");
        return Err(reason.hint(match args.in_place {
            true => "there is nothing to replace; 'hardpack repack' compresses it again",
            false => {
                "--force packs it like any other file; programs cannot open the result as a database"
            }
        }));
    }
    if head == *MAGIC {
        // The pool is packed as plain bytes, without the logs next to it.
        let logs = sidecars::logs_beside_all_names(input)?;
        if let Some((_, path, _)) = logs.iter().find(|(_, path, _)| sqlite::is_unsettled(path)) {
            let what = format!("'{}' holds changes that are not in the pool", text::path(path));
            return Err(Reason::new(Code::InUse, what)
                .hint("open that database once while nobody else uses it; that moves the changes into the pool"));
        }
    }
    Ok(())
}

fn refuse_output(args: &PackArgs, input: Option<&Path>, output: &Path) -> Result<(), Reason> {
    let address = Address::from(output.as_os_str().to_owned());
    if !address.is_whole() && std::fs::symlink_metadata(&address.pool).is_err() {
        return Err(publish::no_directory(output));
    }
    if !address.is_whole() {
        let (input, output) = (text::path(&args.input), text::path(output));
        return Err(Reason::new(Code::Cannot, "it is a path in an existing pool")
            .hint(format!("'hardpack put {input} {output}' puts a file into a pool")));
    }
    if args.force && output.canonicalize().is_ok_and(|output| Some(&*output) == input) {
        return Err(Reason::new(Code::Cannot, "it is the file to pack")
            .hint("--in-place replaces it with its pool"));
    }
    publish::refuse_existing(output, args.force)?;
    publish::refuse_sidecars(output)?;
    if args.force { publish::refuse_in_use(output) } else { Ok(()) }
}

/// Refuses to replace a file with other names, or one that another process has open.
pub fn refuse_in_place(input: &Path, command: &str) -> Result<(), Reason> {
    let file = std::fs::File::open(input)?;
    if file.metadata()?.nlink() > 1 {
        return Err(Reason::new(Code::Cannot, "it has other names (hard links)").hint(format!(
            "they would still name the old file; remove them, or {command} without --in-place"
        )));
    }
    publish::Unused::take(&file).map(drop).map_err(|reason| in_place_hint(reason, command))
}

/// Adds to the error for a file in use what the user can do.
pub fn in_place_hint(reason: Reason, command: &str) -> Reason {
    match reason.code {
        Code::InUse => reason.hint(format!(
            "close it there first, or {command} without --in-place, which works on a file in use"
        )),
        _ => reason,
    }
}

/// Sets the owner, as far as possible: only root may give files away.
pub fn keep_owner(path: &Path, metadata: &Metadata) {
    let _ = chown(path, Some(metadata.uid()), Some(metadata.gid()));
}

/// Copies the extended attributes of the input, including its access control list, to the pool. The
/// mode is set later; its group bits equal the mask of the list.
pub fn keep_xattrs(from: &Path, to: &Path) -> Result<(), Reason> {
    for (name, value) in xattrs_of(from)? {
        let set = rustix::fs::lsetxattr(to, &name, &value, XattrFlags::empty());
        // Attributes such as labels are set by the system or privileged users.
        let is_systems = name.starts_with(b"security.") || name.starts_with(b"trusted.");
        if let Err(error) = set
            && !is_systems
        {
            let name = text::escaped(&name);
            let what = format!("its extended attribute '{name}' cannot be copied: {error}");
            return Err(Reason::new(Code::Cannot, what));
        }
    }
    Ok(())
}
