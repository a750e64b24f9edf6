//! `hardpack receive`: reads a snapshot, or the changes since another, from standard input.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::ExitCode;

use hardpack_engine::pool::{Kind, Pool, ReceiveOptions, ReceiveReport};
use hardpack_engine::store::superblock::{EXTENTS_OFFSET, Header};
use hardpack_engine::{Error, FileId, Location};

use super::names::{create_missing_pool, make_directories};
use crate::address::Address;
use crate::args::ReceiveArgs;
use crate::failure::{Cannot, Code, Failure, Passage, Reason};
use crate::progress::Spinner;
use crate::publish::Unused;
use crate::settling::{Settling, settle_databases};
use crate::signals::{self, Interruptible};
use crate::users::{Users, has_log_in_pool};
use crate::{output, text};

/// The number of bytes read at a time.
const READ_LEN: usize = 1 << 20;

/// What an interrupted receive leaves.
const LEFT_BEHIND: &str = "the part received so far is kept, invisibly: 'hardpack receive --resume-token' prints the \
                           token for sending the rest, and --abort drops it";

pub fn run(args: &ReceiveArgs) -> Result<ExitCode, Failure> {
    signals::catch(LEFT_BEHIND);
    receive(args).cannot("receive", &args.target)?;
    Ok(ExitCode::SUCCESS)
}

fn receive(args: &ReceiveArgs) -> Result<(), Reason> {
    let target = &args.target;
    let only_asks = args.resume_token || args.abort;
    let is_new = !only_asks && fs::symlink_metadata(&target.pool).is_err();
    // Nothing is created before there is something to receive.
    let mut input = if only_asks { None } else { Some(input()?) };
    let mut is_made = false;
    if let Some(input) = input.as_mut().filter(|_| is_new) {
        refuse_whole(target)?;
        refuse_empty(input)?;
        is_made = create_missing_pool(&target.pool, Vec::new())?;
    }
    let opened = match args.resume_token {
        true => target.open(None)?,
        false => target.open_writable(None)?,
    };
    refuse_whole(target)?;
    if is_new {
        let parent = opened.path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        make_directories(&opened.pool, &opened.path[..parent])?;
    }
    let (directory, name) = opened.parent()?;
    let (name, pool) = (name.to_vec(), opened.pool);
    let place: (FileId, &[u8]) = (directory, &name);
    let Some(input) = &mut input else { return answer(args, pool, place) };
    let _spinner = Spinner::new("receiving", args.quiet);
    let mut count = 0;
    let received = receive_all(args, &pool, place, input, &mut count);
    match received {
        Err(reason) if is_made && count == 0 => Err(discard(target, pool, place, reason)),
        Err(reason) => Err(behind_others(reason, count)),
        Ok(()) => Ok(pool.close()?),
    }
}

fn refuse_whole(target: &Address) -> Result<(), Reason> {
    if !target.is_whole() {
        return Ok(());
    }
    Err(Reason::new(Code::Cannot, "a stream cannot be received into a whole pool")
        .hint(format!("name the file or directory to create in it, as {target}/NAME")))
}

/// Standard input, which must not be a terminal.
fn input() -> Result<BufReader<Interruptible<File>>, Reason> {
    if std::io::stdin().is_terminal() {
        return Err(Reason::new(Code::Cannot, "a stream cannot be read from a terminal")
            .hint("redirect it from a file, or pipe it from 'hardpack send'"));
    }
    Ok(BufReader::with_capacity(READ_LEN, signals::stdin()?))
}

/// Waits for the first bytes.
fn refuse_empty(input: &mut impl BufRead) -> Result<(), Reason> {
    if input.fill_buf()?.is_empty() {
        return Err(Reason::new(Code::Data, "there is no stream in the input")
            .hint("'hardpack send' writes one"));
    }
    Ok(())
}

/// Prints the token of a cut stream, or drops the received part.
fn answer(args: &ReceiveArgs, pool: Pool, place: (FileId, &[u8])) -> Result<(), Reason> {
    let nothing = || Reason::new(Code::Cannot, "no interrupted stream is kept there");
    if args.resume_token {
        return output::print_line(pool.receive_token(place.0, place.1)?.ok_or_else(nothing)?);
    }
    match pool.abort_receive(place.0, place.1)? {
        true => Ok(pool.close()?),
        false => Err(nothing()),
    }
}

/// Receives all streams of the input, which may follow one another, and counts them.
fn receive_all(
    args: &ReceiveArgs,
    pool: &Pool,
    place: (FileId, &[u8]),
    input: &mut dyn Read,
    count: &mut u64,
) -> Result<(), Reason> {
    let mut behind = None;
    loop {
        behind = receive_one(args, pool, place, input, behind)?.next;
        *count += 1;
        if behind.is_none() {
            return Ok(());
        }
    }
}

/// Removes the pool that this command created, unless the beginning of a stream is kept in it or
/// another program has opened or changed it.
fn discard(target: &Address, pool: Pool, place: (FileId, &[u8]), reason: Reason) -> Reason {
    if matches!(pool.receive_token(place.0, place.1), Ok(None)) {
        // A pool that stays does no harm; what matters to the user is why nothing was received.
        let _ = remove_as_made(&target.pool, pool);
    }
    reason
}

fn remove_as_made(path: &Path, pool: Pool) -> Result<(), Reason> {
    pool.close()?;
    let file = File::open(path)?;
    // Every commit changes the ring of superblocks.
    let before = front(&file)?;
    let is_ours = Header::decode(&before).is_ok_and(|header| header.guid == pool.store().guid());
    pool.refresh()?;
    if !is_ours || is_used(&pool)? {
        return Ok(());
    }
    drop(pool);
    let unused = Unused::take(&file)?;
    if front(&file)? == before {
        unused.is_still_unused()?;
        fs::remove_file(path)?;
    }
    Ok(())
}

fn front(file: &File) -> Result<Vec<u8>, Reason> {
    let mut front = vec![0; EXTENTS_OFFSET as usize];
    file.read_exact_at(&mut front, 0)?;
    Ok(front)
}

/// Whether a pool has anything besides directories.
fn is_used(pool: &Pool) -> Result<bool, Reason> {
    let mut is_used =
        !pool.snapshots()?.is_empty() || !pool.local_properties(FileId::ROOT)?.is_empty();
    pool.walk(FileId::ROOT, &mut |_, entry, _| {
        is_used |= entry.kind != Kind::Directory;
        Ok(!is_used)
    })?;
    Ok(is_used)
}

/// Receives one stream. `behind` is the number of bytes before it if it is not the first; another
/// may follow.
fn receive_one(
    args: &ReceiveArgs,
    pool: &Pool,
    (directory, name): (FileId, &[u8]),
    input: &mut dyn Read,
    behind: Option<u64>,
) -> Result<ReceiveReport, Reason> {
    // Held until the whole stream is committed. The next one may change what this one made.
    let kept_out = RefCell::new(None);
    let refused = Passage::default();
    let before_change = |scope: FileId| {
        let users = keep_out(&args.target.pool, pool, scope);
        refused.pass(users.map(|users| *kept_out.borrow_mut() = Some(users)))
    };
    let changing = |file: FileId| {
        let kept_out = kept_out.borrow();
        refused
            .pass(kept_out.as_ref().map_or(Ok(()), |users: &Users| users.hold_changing(pool, file)))
    };
    let options = ReceiveOptions {
        force: args.force,
        properties: &args.properties.given,
        behind,
        before_change: Some(&before_change),
        changing: Some(&changing),
        ..ReceiveOptions::default()
    };
    if has_log_in_pool(pool, directory, name)? {
        let text = format!("a log or journal of '{}' is in the pool", text::escaped(name));
        return Err(Reason::new(Code::InUse, text).hint(
            "a killed program left it in a mount: open the database there once, or remove the log",
        ));
    }
    let received = pool.receive(directory, name, input, &options, &mut |_| {});
    let report = received.map_err(|error| {
        let is_of_stream =
            matches!(error, Error::Stream { .. } | Error::Corrupt { what: "stream", .. })
                || matches!(error, Error::Corrupt { location: Location::Frame(_), .. });
        if is_of_stream && signals::is_interrupted() {
            return Reason::interrupted();
        }
        let mut reason = match (refused.take(), error) {
            (Some(reason), _) => reason,
            // For the pool's lock it waits as long as it takes.
            (None, Error::Busy) => Reason::new(
                Code::InUse,
                "another process has received the same stream meanwhile, or aborted it",
            ),
            (None, error) => error.into(),
        };
        if is_of_stream {
            // The stream is damaged, not the pool.
            reason.hint = None;
        }
        match pool.receive_token(directory, name) {
            Ok(Some(_)) if is_of_stream => reason.hint(format!(
                "the part received so far is kept: 'hardpack receive --resume-token {0}' prints the token \
                 for sending the rest, and --abort drops it",
                args.target
            )),
            _ => reason,
        }
    })?;
    if let Some(users) = kept_out.take() {
        users.finish(pool)?;
    }
    Ok(report)
}

/// Adds that the streams before the failed one were received.
fn behind_others(mut reason: Reason, count: u64) -> Reason {
    if count > 0 {
        let streams = if count == 1 { "stream before it was" } else { "streams before it were" };
        reason.text = format!("{}; the {count} {streams} received", reason.text);
    }
    reason
}

/// Empties the logs of the databases that may change, and keeps everybody out of them.
fn keep_out(path: &Path, pool: &Pool, scope: FileId) -> Result<Users, Reason> {
    // As for the pool's lock, a stream waits as long as it takes.
    let turn = Users::of(path)?.take_turn(None)?;
    settle_databases(path, &pool.path_of(scope)?, Settling::Emptied)?;
    pool.refresh()?;
    // What a stream takes away from a directory is not known before it has been read.
    let takes_first = pool.attributes(scope)?.kind == Kind::Directory;
    turn.keep_out(pool, scope, takes_first)
}
