//! `hardpack send`: writes a snapshot, or the changes since another, to standard output.

use std::ffi::OsString;
use std::io::{BufWriter, IsTerminal};
use std::process::ExitCode;

use hardpack_engine::pool::{InSnapshot, Pool, ResumeToken, SendPlan, SnapshotInfo};
use hardpack_engine::{Error, FileId};

use crate::address::Address;
use crate::args::SendArgs;
use crate::failure::{Cannot, Code, Failure, Reason};
use crate::progress::Progress;
use crate::signals::Interruptible;
use crate::{output, pool_file, signals};

/// The number of bytes written at a time.
const WRITE_LEN: usize = 1 << 20;

/// What an interrupted send leaves.
const LEFT_BEHIND: &str = "the stream has no end; 'hardpack receive --resume-token' on the receiving side prints \
                           the token to continue";

pub fn run(args: &SendArgs) -> Result<ExitCode, Failure> {
    signals::catch(LEFT_BEHIND);
    send(args).cannot("send", &args.snapshot)?;
    Ok(ExitCode::SUCCESS)
}

/// An open snapshot.
struct Found {
    pool: Pool,
    info: SnapshotInfo,
    /// The file or directory to send.
    file: FileId,
}

fn open(pool: &Pool, found: &InSnapshot) -> Result<Found, Reason> {
    let opened = pool.open_snapshot(found.scope, &found.name)?;
    let file = opened.resolve(&found.path)?.file;
    let is_it = |info: &SnapshotInfo| info.scope == found.scope && info.name == found.name;
    let info = pool.snapshots()?.into_iter().find(is_it);
    let info = info.ok_or_else(|| Reason::new(Code::Cannot, "the snapshot no longer exists"))?;
    Ok(Found { pool: opened, info, file })
}

fn named(pool: &Pool, address: &Address) -> Result<Found, Reason> {
    let found = address.find_snapshot(pool)?.ok_or_else(|| {
        Reason::new(Code::Cannot, "it names no snapshot")
            .hint("a snapshot is named POOL@NAME or POOL/PATH@NAME")
    })?;
    open(pool, &found)
}

/// Opens the base by its name: in full, or `@OLD` for a snapshot of the same file, directory or
/// pool.
fn base_named(pool: &Pool, args: &SendArgs, text: &OsString) -> Result<Found, Reason> {
    let address = args.snapshot.beside(text);
    if address.pool != args.snapshot.pool {
        return Err(Reason::new(Code::Cannot, "the older snapshot belongs to another pool"));
    }
    named(pool, &address)
}

/// Finds the base of an interrupted stream.
fn base_of(pool: &Pool, token: &ResumeToken, file: FileId) -> Result<Option<Found>, Reason> {
    if token.base.is_none() {
        return Ok(None);
    }
    for info in pool.snapshots()? {
        let opened = pool.open_snapshot(info.scope, &info.name)?;
        if opened.state_id(file) != token.base {
            continue;
        }
        match opened.is_below(file, info.scope) {
            Ok(true) => return Ok(Some(Found { pool: opened, info, file })),
            Ok(false) | Err(Error::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Reason::new(Code::Cannot, "the snapshot that the stream starts from no longer exists"))
}

fn send(args: &SendArgs) -> Result<(), Reason> {
    let pool = pool_file::open_read_only(&args.snapshot.pool, None)?;
    let snapshot = named(&pool, &args.snapshot)?;
    let base = match (&args.incremental, &args.resume) {
        (Some(text), _) => Some(base_named(&pool, args, text)?),
        (None, Some(token)) => base_of(&pool, token, snapshot.file)?,
        (None, None) => None,
    };
    if base.as_ref().is_some_and(|base| base.file != snapshot.file) {
        return Err(Reason::new(
            Code::Cannot,
            "the older snapshot belongs to another file or directory",
        ));
    }
    let plan = SendPlan {
        snapshot: &snapshot.pool,
        base: base.as_ref().map(|base| &base.pool),
        scope: snapshot.file,
        name: &snapshot.info.name,
        created_ns: snapshot.info.created_ns,
        resume: args.resume,
    };
    if args.estimate {
        return output::print_line(pool.measure_send(&plan)?.bytes);
    }
    let stdout = std::io::stdout();
    if stdout.is_terminal() {
        return Err(Reason::new(Code::Cannot, "a stream cannot be written to a terminal")
            .hint("redirect it to a file, or pipe it to 'hardpack receive'"));
    }
    let shows = !args.quiet && std::io::stderr().is_terminal();
    let total = if shows { pool.measure_send(&plan)?.bytes } else { 0 };
    let mut progress = Progress::new(format!("sending {}", args.snapshot), total, !shows);
    let mut out = BufWriter::with_capacity(WRITE_LEN, Interruptible(stdout.lock()));
    pool.send(&plan, &mut out, &mut |done| progress.at(done)).map_err(|error| match error {
        Error::Stream { .. } if signals::is_interrupted() => Reason::interrupted(),
        // Elsewhere a reader that stops early is not a failure; but a stream is useless without its
        // end.
        Error::Stream { source, .. } => Reason::from(source)
            .hint("the stream was not read to its end; 'hardpack receive --resume-token' on the receiving side prints the token to continue"),
        error => error.into(),
    })?;
    progress.finish();
    Ok(())
}
