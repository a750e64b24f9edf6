//! `hardpack fold`: merge the patches that updates left into their records, while others read and
//! write.

use std::process::ExitCode;
use std::time::Instant;

use hardpack_engine::pool::{Fold, Pool, Step, StepLimits};
use serde_json::json;

use crate::args::FoldArgs;
use crate::failure::{Cannot, Code, Failure, Reason};
use crate::output::{self, bytes, count};
use crate::pool_file;
use crate::progress::Progress;
use crate::signals;

pub fn run(args: &FoldArgs) -> Result<ExitCode, Failure> {
    signals::catch();
    let began = Instant::now();
    let done = fold(args).cannot("fold", args.pool.display())?;
    report(args, &done, began).cannot("report on", args.pool.display())?;
    Ok(ExitCode::from(if done.damaged.is_empty() { 0 } else { Code::Data as u8 }))
}

fn fold(args: &FoldArgs) -> Result<Step, Reason> {
    let pool = pool_file::open_writable(&args.pool, args.work.threads)?;
    let which = if args.due { Fold::Due } else { Fold::All };
    let patched = pool.state().stats().patches.logical;
    let mut progress = Progress::new("folding".into(), patched, args.work.quiet);
    let done = pool.fold(which, &StepLimits::default(), &mut |_| {
        let left = pool.state().stats().patches.logical;
        progress.at(patched.saturating_sub(left));
        !signals::is_interrupted()
    })?;
    finish(&pool)?;
    progress.finish();
    signals::check().map_err(|reason| reason.hint("what was folded until now stays so"))?;
    Ok(done)
}

/// Makes what was done durable, so that the space it gave up can be used again.
pub fn finish(pool: &Pool) -> Result<(), Reason> {
    pool.store().make_durable()?;
    Ok(pool.close()?)
}

fn report(args: &FoldArgs, done: &Step, began: Instant) -> Result<(), Reason> {
    let seconds = began.elapsed().as_secs_f64();
    report_damage(done);
    if args.work.json {
        return output::print_json(&json!({
            "pool": args.pool.to_string_lossy(),
            "records": done.rewritten,
            "stored_before": done.stored_before,
            "stored_after": done.stored_after,
            "damaged": done.damaged.len(),
            "seconds": (seconds * 1000.0).round() / 1000.0,
        }));
    }
    if args.work.quiet {
        return Ok(());
    }
    output::print_line(format_args!(
        "{}: {} records folded, {} became {}, in {seconds:.1} s",
        args.pool.display(),
        count(done.rewritten, false),
        bytes(done.stored_before, false),
        bytes(done.stored_after, false),
    ))
}

/// Says on stderr what could not be read, and was left as it is.
pub fn report_damage(done: &Step) {
    for (start, end, reason) in &done.damaged {
        eprintln!("hardpack: bytes {start} to {end} were left as they are: {reason}");
    }
}
