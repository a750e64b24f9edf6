//! Tar streams: `put --tar` and `extract --tar`.
//!
//! Streams are written in the POSIX (pax) format, which limits neither the length of names nor the
//! precision of times. All formats that GNU tar writes by itself are read: ustar, GNU and pax,
//! including sparse files.

pub mod read;
mod sparse;
pub mod stream;
mod write;

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::address::Address;
use crate::args::{ExtractArgs, PutArgs};
use crate::commands::names::make_directories;
use crate::failure::{Cannot, Failure, Reason};
use crate::publish::{self, Unfinished};
use crate::summary::{Account, PutSummary};
use crate::users::Users;
use crate::{signals, text};

/// The number of bytes read or written at a time.
pub const BUFFER_LEN: usize = 1 << 20;
/// The prefix of the name of an extended attribute in pax streams.
const XATTR_PREFIX: &[u8] = b"SCHILY.xattr.";
/// The number of a device, where it does not fit in the header.
const DEVICE_MAJOR: &str = "SCHILY.devmajor";
const DEVICE_MINOR: &str = "SCHILY.devminor";
/// Permissions of a file that a stream is written to.
const FILE_MODE: u32 = 0o644;

/// Stores the entries of tar streams in a directory of the pool.
pub fn put(args: &PutArgs, sources: &[OsString], address: &Address) -> Result<PutSummary, Failure> {
    let opened = address.open_writable(args.work.threads).cannot("open", address)?;
    let pool = &opened.pool;
    let users = Users::of(&address.pool).cannot("open", address)?;
    users.begin_import(pool).cannot("put into", address)?;
    let top = make_directories(pool, &address.path).cannot("put into", address)?;
    let mut summary = PutSummary::default();
    let manner = read::Manner {
        label: "putting",
        is_quiet: args.work.quiet,
        is_verbose: args.verbose,
        is_exclusive: args.exclusive,
        owner: None,
        seen: None,
    };
    for source in sources {
        let shown = text::escaped(source.as_bytes());
        let stream: Box<dyn Read> = if source == "-" {
            Box::new(signals::stdin().cannot("open", "standard input")?)
        } else {
            match File::open(source) {
                Ok(file) => Box::new(file),
                Err(error) => {
                    summary.failed += 1;
                    Reason::from(error).cannot("put", &shown).report();
                    continue;
                }
            }
        };
        let stream = BufReader::with_capacity(BUFFER_LEN, stream);
        let done = read::put_stream(manner, (pool, &users), top, stream, &mut summary);
        done.cannot("put", &shown)?;
    }
    if users.has_held() {
        users.finish(pool).cannot("put into", address)?;
    }
    pool.close().cannot("close", address)?;
    Ok(summary)
}

/// Writes the named files and directories to a tar stream.
pub fn extract(
    args: &ExtractArgs,
    sources: &[Address],
    dest: &Path,
    account: &Account,
) -> Result<(), Failure> {
    if dest.as_os_str() == "-" {
        let mut out = BufWriter::with_capacity(BUFFER_LEN, std::io::stdout().lock());
        let written = write_all(args, sources, &mut out, account)?;
        let flushed = written.and_then(|()| out.flush().map_err(Reason::stdout));
        return flushed.cannot("write to", "standard output");
    }
    let cannot = |reason: Reason| reason.cannot("create", text::path(dest));
    publish::refuse_existing(dest, args.force).map_err(cannot)?;
    publish::refuse_in_use(dest).map_err(cannot)?;
    let unfinished = Unfinished::create(dest).map_err(cannot)?;
    let file = File::options().write(true).open(unfinished.path());
    let mut out = BufWriter::with_capacity(BUFFER_LEN, file.map_err(|e| cannot(e.into()))?);
    write_all(args, sources, &mut out, account)?.map_err(cannot)?;
    out.flush().map_err(|error| cannot(error.into()))?;
    unfinished.complete(FILE_MODE, None).map_err(cannot)?;
    unfinished.publish(dest, args.force).map_err(cannot)
}

/// Writes all sources and the end of the stream. The inner result is a failure of the stream, the
/// outer one of a source.
fn write_all(
    args: &ExtractArgs,
    sources: &[Address],
    out: &mut impl Write,
    account: &Account,
) -> Result<Result<(), Reason>, Failure> {
    let mut writer = write::TarWriter::new(out);
    for source in sources {
        let done = write::add(args, source, &mut writer, account);
        match done {
            Err(reason) if writer.is_broken() => return Ok(Err(reason)),
            done => done.cannot("extract", source)?,
        }
    }
    Ok(writer.finish())
}
