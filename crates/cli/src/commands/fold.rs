//! `hardpack fold`: merges the patches that updates left into their records, while others read and
//! write.

use std::process::ExitCode;
use std::time::Instant;

use hardpack_engine::pool::{Fold, Pool, Step, StepLimits};
use serde_json::json;

use crate::args::FoldArgs;
use crate::failure::{Cannot, Code, Failure, Reason};
use crate::output::{self, bytes, count};
use crate::progress::Progress;
use crate::{pool_file, signals, text};

/// What an interrupted fold leaves.
const LEFT_BEHIND: &str = "the records folded so far stay folded";

pub fn run(args: &FoldArgs) -> Result<ExitCode, Failure> {
    signals::catch(LEFT_BEHIND);
    let began = Instant::now();
    let done = fold(args).cannot("fold", text::path(&args.pool))?;
    report(args, &done, began).cannot("report on", text::path(&args.pool))?;
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
    });
    if signals::is_interrupted() {
        pool.store().make_durable()?;
        return Err(Reason::interrupted().hint(LEFT_BEHIND));
    }
    let done = done?;
    finish(&pool)?;
    progress.finish();
    Ok(done)
}

/// Makes the work durable, so that the space it freed can be reused.
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
        text::path(&args.pool),
        count(done.rewritten, false),
        bytes(done.stored_before, false),
        bytes(done.stored_after, false),
    ))
}

/// Reports on stderr the ranges that could not be read and were left unchanged.
pub fn report_damage(done: &Step) {
    for (start, end, reason) in &done.damaged {
        output::tell(format_args!(
            "hardpack: bytes {start} to {end} were left unchanged: {reason}"
        ));
    }
}
