//! `hardpack rewind`: an older state becomes the newest; and the list of those there are, for
//! `hardpack check --states`.

use std::process::ExitCode;
use std::time::Instant;

use hardpack_engine::pool::Pool;
use hardpack_engine::{Error, Txg};
use serde_json::{Value, json};

use crate::args::{CheckArgs, RewindArgs};
use crate::failure::{Cannot, Code, Failure, Reason};
use crate::output::{self, bytes};
use crate::progress::Progress;
use crate::users::Users;
use crate::{contents, pool_file, publish, signals};

pub fn run(args: &RewindArgs) -> Result<ExitCode, Failure> {
    signals::catch();
    let began = Instant::now();
    let (before, after) = rewind(args).cannot("rewind", args.pool.display())?;
    report(args, before, after, began).cannot("report on", args.pool.display())?;
    Ok(ExitCode::SUCCESS)
}

/// Ends the process where a signal asks for it: nothing has been written yet.
fn stop_if_interrupted() {
    if signals::is_interrupted() {
        std::process::exit(Code::Interrupted as i32);
    }
}

fn rewind(args: &RewindArgs) -> Result<(Txg, Txg), Reason> {
    // Its descriptor is closed before SQLite could hold any lock: nothing here opens a connection.
    publish::refuse_open_elsewhere(&std::fs::File::open(&args.pool)?)?;
    let pool = pool_file::open_writable(&args.pool, args.work.threads)?;
    // Before a connection is opened that would settle one, and once more when nobody can leave another.
    refuse_logs(args, &pool)?;
    let kept_out = Users::of(&args.pool)?.keep_out_of_all(&pool)?;
    refuse_logs(args, &pool)?;
    let before = pool.state();
    let total = before.stats().data().stored + before.stats().nodes.stored;
    let mut progress = Progress::new("verifying".into(), total, args.work.quiet);
    let after = pool.rewind(Txg(args.txg), &mut |done| {
        progress.at(done);
        stop_if_interrupted();
    })?;
    progress.finish();
    pool.refresh()?;
    kept_out.finish(&pool)?;
    pool.close()?;
    Ok((before.txg(), after))
}

/// Refuses where the log or journal of a database holds what is not in the pool: it would be lost. It would not be
/// played onto the older state, see `generation.rs` of the engine.
fn refuse_logs(args: &RewindArgs, pool: &Pool) -> Result<(), Reason> {
    for (sidecar, path, _) in contents::logs_beside(&args.pool)? {
        let is_gone = matches!(pool.attributes(sidecar.file), Err(Error::NotFound { .. }));
        if !is_gone && sidecar.generation == pool.generation(sidecar.file).ok() {
            let text = format!("there is a log or journal beside it, '{}'", path.display());
            return Err(Reason::new(Code::InUse, text).hint(
                "it belongs to the newest state: open and close the database, or move it away",
            ));
        }
    }
    Ok(())
}

fn report(args: &RewindArgs, before: Txg, after: Txg, began: Instant) -> Result<(), Reason> {
    let seconds = began.elapsed().as_secs_f64();
    if args.work.json {
        return output::print_json(&json!({
            "pool": args.pool.to_string_lossy(),
            "state": args.txg,
            "txg_before": before.0,
            "txg": after.0,
            "seconds": (seconds * 1000.0).round() / 1000.0,
        }));
    }
    if args.work.quiet {
        return Ok(());
    }
    output::print_line(format_args!(
        "{}: the state of txg {} is the newest again, as txg {after}, in {seconds:.1} s\n\
         'hardpack rewind {} {before}' undoes this, as long as nothing is written",
        args.pool.display(),
        args.txg,
        args.pool.display(),
    ))
}

/// Lists the states of a pool, and verifies each.
pub fn list_states(args: &CheckArgs) -> Result<ExitCode, Reason> {
    let pool = pool_file::open_read_only(&args.pool, args.work.threads)?;
    let newest = pool.state();
    let total = newest.stats().data().stored + newest.stats().nodes.stored;
    let mut shown = None;
    let states = pool.states(&mut |txg, done| {
        stop_if_interrupted();
        let is_same = shown.as_ref().is_some_and(|(last, _)| *last == txg);
        if !is_same {
            let label = format!("checking txg {txg}");
            shown = Some((txg, Progress::new(label, total, args.work.quiet)));
        }
        if let Some((_, progress)) = &mut shown {
            progress.at(done);
        }
    })?;
    drop(shown);
    if args.work.json {
        let states = states.iter().map(|state| {
            json!({
                "txg": state.txg.0,
                "logical_bytes": state.file_bytes,
                "whole": state.problems.is_empty(),
                "problems": state.problems,
            })
        });
        output::print_json(&json!({
            "pool": args.pool.to_string_lossy(),
            "txg": newest.txg().0,
            "states": states.collect::<Value>(),
        }))?;
    } else {
        let rows = states.iter().map(|state| {
            let verdict = match state.problems.len() {
                0 => "whole".into(),
                1 => "not whole: 1 problem".into(),
                n => format!("not whole: {n} problems"),
            };
            [state.txg.to_string(), verdict, bytes(state.file_bytes, false)]
        });
        output::print(output::columns(["TXG", "STATE", "LOGICAL"], rows, 2))?;
    }
    let is_whole = states.first().is_some_and(|state| state.problems.is_empty());
    Ok(ExitCode::from(if is_whole { 0 } else { Code::Data as u8 }))
}
