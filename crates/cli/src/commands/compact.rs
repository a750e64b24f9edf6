//! `hardpack compact`: moves data from the end of a pool into its free space, step by step, and
//! truncates the file.
//!
//! Each step is a commit of its own: if the command ends at any point, the pool is consistent, and
//! the data moved so far stays moved. A pool that other processes hold is waited for, but not
//! forever.

use std::fs;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use hardpack_engine::Error;
use hardpack_engine::pool::{CompactReport, Compaction, Pool};
use serde_json::json;

use crate::args::CompactArgs;
use crate::failure::{Cannot, Code, Failure, Reason};
use crate::output::{self, bytes};
use crate::progress::Progress;
use crate::{pool_file, signals, text};

/// How long to retry while other processes hold the pool.
const PATIENCE: Duration = Duration::from_secs(60);

/// Less free space than this is not worth a word.
const FREE_LEN_MIN: u64 = 1 << 20;

pub fn run(args: &CompactArgs) -> Result<ExitCode, Failure> {
    signals::catch("the pool is whole; run the command again to continue");
    if args.estimate {
        estimate(args).cannot("estimate what compacting would do to", text::path(&args.pool))?;
    } else {
        compact(args).cannot("compact", text::path(&args.pool))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn estimate(args: &CompactArgs) -> Result<(), Reason> {
    let pool = pool_file::open_read_only(&args.pool, None)?;
    let found = pool.compact_estimate()?;
    if args.json {
        return output::print_json(&json!({
            "pool": args.pool.to_string_lossy(),
            "pool_bytes": found.pool_bytes,
            "used_bytes": found.used_bytes,
            "gain_bytes": found.gain_bytes,
            "move_bytes": found.move_bytes,
        }));
    }
    let after = found.pool_bytes.saturating_sub(found.gain_bytes);
    output::print_line(format_args!(
        "{}: {}, of which {} in use; compacting would move about {} and free about {}{}",
        text::path(&args.pool),
        bytes(found.pool_bytes, false),
        bytes(found.used_bytes, false),
        bytes(found.move_bytes, false),
        bytes(found.gain_bytes, false),
        stays_free(&pool, after, found.used_bytes)?,
    ))
}

fn compact(args: &CompactArgs) -> Result<(), Reason> {
    let began = Instant::now();
    let pool = pool_file::open_writable(&args.pool, None)?;
    pool.remove_leftovers()?;
    let total = pool.compact_estimate()?.move_bytes;
    let mut compaction = pool.compact();
    let label = format!("compacting {}", text::path(&args.pool));
    let mut progress = Progress::new(label, total, args.quiet);
    let done = work(&mut compaction, &mut progress);
    let mut report = compaction.report();
    let stays_free = match report.lacking_bytes {
        0 => stays_free(&pool, report.after_bytes, report.used_bytes)?,
        lacking => lacks_room(&report, lacking),
    };
    let done = done.and_then(|()| {
        progress.finish();
        Ok(pool.close()?)
    });
    done.map_err(|reason| what_was_done(reason, &pool, &report))?;
    // What closing the pool commits may lengthen it by some sectors. It may have been renamed.
    report.after_bytes = fs::metadata(&args.pool).map_or(report.after_bytes, |it| it.len());
    report_on(args, &report, &stays_free, began)
}

/// Says how much of a pool of this length stays free although it was compacted, if snapshots are
/// the reason.
fn stays_free(pool: &Pool, len: u64, used_len: u64) -> Result<String, Reason> {
    let free_len = len.saturating_sub(used_len);
    let is_much = free_len > FREE_LEN_MIN && free_len > len / 16;
    Ok(match is_much && !pool.snapshots()?.is_empty() {
        true => {
            let free = bytes(free_len, false);
            format!("; {free} stay free for new data: what snapshots hold behind it is not moved")
        }
        false => String::new(),
    })
}

/// Says that the pool would be shorter if its disk were not full.
fn lacks_room(report: &CompactReport, lacking: u64) -> String {
    let free_len = report.after_bytes.saturating_sub(report.used_bytes);
    format!(
        "; {} stay free for new data, for the disk is too full to move the rest: make room of about \
         {} and run the command again",
        bytes(free_len, false),
        bytes(lacking, false),
    )
}

/// Takes steps until nothing is left to do.
pub fn work(compaction: &mut Compaction, progress: &mut Progress) -> Result<(), Reason> {
    let mut last_step = Instant::now();
    loop {
        signals::check()?;
        match compaction.step() {
            Ok(true) => {
                last_step = Instant::now();
                progress.at(compaction.report().moved_bytes);
            }
            Ok(false) => return Ok(()),
            Err(Error::Busy) if last_step.elapsed() < PATIENCE => {}
            Err(Error::Busy) => {
                let text = "another process has been writing to it all the time";
                return Err(Reason::new(Code::InUse, text));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Adds to a failure the state of the pool.
fn what_was_done(reason: Reason, pool: &Pool, report: &CompactReport) -> Reason {
    // No later commit follows that would make the last one durable.
    let _ = pool.store().make_durable();
    if reason.hint.is_some() {
        return reason;
    }
    reason.hint(format!(
        "the pool is whole; it was {} long and is now {}; run the command again to continue",
        bytes(report.before_bytes, false),
        bytes(report.after_bytes, false),
    ))
}

fn report_on(
    args: &CompactArgs,
    report: &CompactReport,
    stays_free: &str,
    began: Instant,
) -> Result<(), Reason> {
    let seconds = began.elapsed().as_secs_f64();
    if args.json {
        return output::print_json(&json!({
            "pool": args.pool.to_string_lossy(),
            "before_bytes": report.before_bytes,
            "after_bytes": report.after_bytes,
            "used_bytes": report.used_bytes,
            "moved_bytes": report.moved_bytes,
            "moved_nodes": report.moved_nodes,
            "lacking_bytes": report.lacking_bytes,
            "seconds": (seconds * 1000.0).round() / 1000.0,
        }));
    }
    if args.quiet {
        return Ok(());
    }
    if report.steps == 0 {
        let now = bytes(report.after_bytes, false);
        return output::print_line(format_args!(
            "{}: {now}, nothing to gain{stays_free}",
            text::path(&args.pool)
        ));
    }
    output::print_line(format_args!(
        "{}: {} -> {}, {} moved in {seconds:.1} s{stays_free}",
        text::path(&args.pool),
        bytes(report.before_bytes, false),
        bytes(report.after_bytes, false),
        bytes(report.moved_bytes, false),
    ))
}
