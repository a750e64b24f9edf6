//! `hardpack receive`: takes a snapshot, or what changed since another, from standard input.

use std::cell::RefCell;
use std::io::{BufReader, IsTerminal, Read};
use std::path::Path;
use std::process::ExitCode;

use hardpack_engine::pool::{Pool, ReceiveOptions, ReceiveReport};
use hardpack_engine::{Error, FileId};

use super::snapshots::{Settling, settle_databases};
use crate::args::ReceiveArgs;
use crate::failure::{Cannot, Code, Failure, Reason};
use crate::output;
use crate::progress::Spinner;
use crate::users::Users;

/// So much is read at a time.
const READ_LEN: usize = 1 << 20;

pub fn run(args: &ReceiveArgs) -> Result<ExitCode, Failure> {
    receive(args).cannot("receive", &args.target)?;
    Ok(ExitCode::SUCCESS)
}

fn receive(args: &ReceiveArgs) -> Result<(), Reason> {
    let opened = match args.resume_token {
        true => args.target.open(None)?,
        false => args.target.open_writable(None)?,
    };
    let pool = &opened.pool;
    if args.target.is_whole() {
        return Err(Reason::new(Code::Cannot, "a pool as a whole cannot be received into")
            .hint(format!("name what is to be made in it, as {}/NAME", args.target)));
    }
    let (directory, name): (FileId, &[u8]) = pool.resolve_parent(&opened.path)?;
    let nothing = || Reason::new(Code::Cannot, "no stream was cut there");
    if args.resume_token {
        let token = pool.receive_token(directory, name)?.ok_or_else(nothing)?;
        return output::print_line(token);
    }
    if args.abort {
        return match pool.abort_receive(directory, name)? {
            true => Ok(pool.close()?),
            false => Err(nothing()),
        };
    }
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Err(Reason::new(Code::Cannot, "a stream does not come from a terminal")
            .hint("redirect it from a file, or pipe it from 'hardpack send'"));
    }
    let _spinner = Spinner::new("receiving", args.quiet);
    let mut input = BufReader::with_capacity(READ_LEN, stdin.lock());
    // Streams may follow each other.
    let (mut count, mut behind) = (0_u64, None);
    loop {
        let report = receive_one(args, pool, (directory, name), &mut input, behind)
            .map_err(|reason| behind_others(reason, count))?;
        count += 1;
        behind = report.next;
        if behind.is_none() {
            return Ok(pool.close()?);
        }
    }
}

/// Receives one stream, which begins behind so many bytes; another may follow.
fn receive_one(
    args: &ReceiveArgs,
    pool: &Pool,
    (directory, name): (FileId, &[u8]),
    input: &mut dyn Read,
    behind: Option<u64>,
) -> Result<ReceiveReport, Reason> {
    // Until all of the stream is committed. The next one may change what this one made.
    let kept_out = RefCell::new(None);
    let refusal = RefCell::new(None);
    let before_change = |scope: FileId| {
        keep_out(&args.target.pool, pool, scope)
            .map(|users| *kept_out.borrow_mut() = Some(users))
            .map_err(|reason| {
                *refusal.borrow_mut() = Some(reason);
                Error::Busy
            })
    };
    let options = ReceiveOptions {
        force: args.force,
        behind,
        before_change: Some(&before_change),
        ..ReceiveOptions::default()
    };
    let received = pool.receive(directory, name, input, &options, &mut |_| {});
    let report = received.map_err(|error| {
        let is_of_stream =
            matches!(error, Error::Stream { .. } | Error::Corrupt { what: "stream", .. });
        let mut reason = refusal.take().unwrap_or_else(|| Reason::from(error));
        if is_of_stream {
            // The pool is sound.
            reason.hint = None;
        }
        match pool.receive_token(directory, name) {
            Ok(Some(_)) if is_of_stream => reason.hint(format!(
                "what came before is kept: 'hardpack receive --resume-token {0}' tells from where \
                 to send the rest, and with --abort it is given up",
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

/// Says that what came before is received.
fn behind_others(mut reason: Reason, count: u64) -> Reason {
    if count > 0 {
        let streams = if count == 1 { "stream before it is" } else { "streams before it are" };
        reason.text = format!("{}; the {count} {streams} received", reason.text);
    }
    reason
}

/// Has what is in logs of the databases that may change put into them, and keeps everybody out.
fn keep_out(path: &Path, pool: &Pool, scope: FileId) -> Result<Users, Reason> {
    settle_databases(path, &pool.path_of(scope)?, Settling::Emptied)?;
    pool.refresh()?;
    Users::of(path)?.keep_out(pool, scope)
}
