//! `hardpack rewind`: makes an older state the newest. Also lists the states for `hardpack check
//! --states`.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use hardpack_engine::pool::{Pool, ROOT};
use hardpack_engine::{Error, Txg};
use serde_json::{Value, json};

use crate::args::{CheckArgs, RewindArgs};
use crate::failure::{Cannot, Code, Failure, Reason};
use crate::output::{self, bytes};
use crate::progress::Progress;
use crate::users::Users;
use crate::{pool_file, publish, sidecars, signals, text};

pub fn run(args: &RewindArgs) -> Result<ExitCode, Failure> {
    signals::catch("the pool is in the state before or after the rewind");
    let began = Instant::now();
    let done = rewind(args).cannot("rewind", text::path(&args.pool))?;
    report(args, &done, began).cannot("report on", text::path(&args.pool))?;
    Ok(ExitCode::SUCCESS)
}

/// A rewind: the newest txg before and after it.
struct Done {
    before: Txg,
    after: Txg,
    /// Whether the state before was cut short, so that nothing leads back to it.
    was_cut: bool,
}

fn rewind(args: &RewindArgs) -> Result<Done, Reason> {
    // The descriptor is closed before SQLite holds any lock, since no connection is open yet.
    publish::refuse_open_elsewhere(&std::fs::File::open(&args.pool)?)?;
    let pool = pool_file::open_even_cut(&args.pool, args.work.threads)?;
    // Checked before opening a connection, which would settle a log, and again when nobody can
    // create another.
    refuse_logs(args, &pool)?;
    let kept_out = Users::of(&args.pool)?.keep_out_of_all(&pool)?;
    refuse_logs(args, &pool)?;
    let (before, was_cut) = (pool.state(), pool.store().cut_short().is_some());
    let total = before.stats().data().stored + before.stats().nodes.stored;
    let mut progress = Progress::new("verifying".into(), total, args.work.quiet);
    let after = pool.rewind(Txg(args.txg), &mut |done| {
        progress.at(done);
        if signals::is_interrupted() {
            // Nothing has been written yet.
            signals::end();
        }
    });
    let after = after.map_err(|error| match error {
        Error::Corrupt { what: "state", detail, .. } => {
            let text = format!("the state of txg {} is damaged: {detail}", args.txg);
            Reason::new(Code::Data, text)
                .hint("'hardpack check --states' shows which states are whole")
        }
        Error::Busy if pool.store().is_read_since(Txg(args.txg)).unwrap_or(false) => {
            Reason::new(Code::InUse, "another program reads a state that was committed since")
                .hint("close what it has open with 'at=' first")
        }
        error => error.into(),
    })?;
    progress.finish();
    pool.refresh()?;
    kept_out.finish(&pool)?;
    pool.close()?;
    Ok(Done { before: before.txg(), after, was_cut })
}

/// Fails if the log or journal of a database holds changes that are not in the pool: they would be
/// lost, since SQLite would not apply them to the older state (see `generation.rs` of the engine).
fn refuse_logs(args: &RewindArgs, pool: &Pool) -> Result<(), Reason> {
    let refuse = |path: &Path| {
        let text = format!("there is a log or journal next to it, '{}'", text::path(path));
        Err(Reason::new(Code::InUse, text).hint(
            "it belongs to the newest state: open and close the database to apply it, or move it away",
        ))
    };
    // The newest state may be damaged. Then its databases cannot be asked for.
    let hidden = || sidecars::with_logs(&args.pool, pool, ROOT).unwrap_or_default();
    if !sidecars::can_list_beside(&args.pool)
        && let Some((_, path)) = hidden().first()
    {
        return refuse(path);
    }
    for (sidecar, path, _) in sidecars::logs_beside_all_names(&args.pool)? {
        let is_gone = matches!(pool.attributes(sidecar.file), Err(Error::NotFound { .. }));
        if !is_gone && sidecar.generation == pool.generation(sidecar.file).ok() {
            return refuse(&path);
        }
    }
    Ok(())
}

fn report(args: &RewindArgs, done: &Done, began: Instant) -> Result<(), Reason> {
    let Done { before, after, was_cut } = done;
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
    let shown = text::path(&args.pool);
    let (txg, undo) = (args.txg, "undoes this, as long as nothing is written");
    output::print_line(format_args!(
        "{shown}: the state of txg {txg} is the newest again, as txg {after}, in {seconds:.1} s",
    ))?;
    match was_cut {
        true => Ok(()),
        false => output::print_line(format_args!("'hardpack rewind {shown} {before}' {undo}")),
    }
}

/// Lists the states of a pool, and verifies each one.
pub fn list_states(args: &CheckArgs) -> Result<ExitCode, Reason> {
    let pool = pool_file::open_read_only(&args.pool, args.work.threads)?;
    let newest = pool.state();
    let total = newest.stats().data().stored + newest.stats().nodes.stored;
    let mut shown = None;
    let states = pool.states(&mut |txg, done| {
        if signals::is_interrupted() {
            signals::end();
        }
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
                1 => "damaged: 1 problem".into(),
                n => format!("damaged: {n} problems"),
            };
            [state.txg.to_string(), verdict, bytes(state.file_bytes, false)]
        });
        output::print(output::columns(["TXG", "STATE", "LOGICAL"], rows, 2))?;
    }
    let is_whole = states.first().is_some_and(|state| state.problems.is_empty());
    Ok(ExitCode::from(if is_whole { 0 } else { Code::Data as u8 }))
}
