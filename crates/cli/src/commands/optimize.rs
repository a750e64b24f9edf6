//! `hardpack optimize`: puts near-copies and small files together into segments, lets copies of a
//! database share records, then shortens the pool.
//!
//! Each segment is a commit of its own (see the engine's `pool/optimize/`), so an interrupted
//! optimisation leaves a whole pool, and the same command goes on with the rest.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use hardpack_engine::Error;
use hardpack_engine::pool::{Optimisation, OptimizeReport, OptimizeStage, Pool, SegmentGoal};
use serde_json::json;

use super::compact;
use crate::address::Opened;
use crate::args::OptimizeArgs;
use crate::failure::{Cannot, Code, Failure, Reason};
use crate::output::{self, bytes, count};
use crate::progress::Progress;
use crate::{signals, text};

/// How long to retry while other processes hold the pool.
const PATIENCE: Duration = Duration::from_secs(60);
/// What an interrupted optimisation leaves.
const LEFT_BEHIND: &str = "the pool is whole; run the command again to go on with the rest";

pub fn run(args: &OptimizeArgs) -> Result<ExitCode, Failure> {
    signals::catch(LEFT_BEHIND);
    let report = optimize(args).cannot("optimize", &args.pool)?;
    Ok(ExitCode::from(if report.damaged.is_empty() { 0 } else { Code::Data as u8 }))
}

fn optimize(args: &OptimizeArgs) -> Result<OptimizeReport, Reason> {
    let began = Instant::now();
    let opened = args.pool.open_writable(args.work.threads)?;
    let pool = &opened.pool;
    let before = pool_len(pool);
    let goal = SegmentGoal {
        compression: args.compression,
        len: args.segment,
        again: args.again(),
        inflate: args.inflate,
    };
    let mut optimisation = pool.optimize(opened.file_or_entry()?.file, goal)?;
    let done = work(args, &opened, &mut optimisation);
    let report = optimisation.report().clone();
    let is_cut_off = done.as_ref().is_err_and(|reason| reason.code == Code::Cannot);
    let has_gained = has_gained(&report);
    if is_cut_off && !args.keep_length && has_gained {
        // The first segments make a pool longer. On a full disk, the next run needs that room.
        let _ = shorten(args, pool);
    }
    // No later commit follows that would make the last one durable.
    let done = done.and(pool.store().make_durable().map_err(Reason::from));
    let done = done.and_then(|()| match args.keep_length || !has_gained {
        true => Ok(()),
        false => shorten(args, pool),
    });
    done.map_err(|reason| match reason.hint {
        Some(_) => reason,
        None => reason.hint(LEFT_BEHIND),
    })?;
    let after = pool_len(pool);
    report_damage(pool, &report);
    pool.close()?;
    report_on(args, &report, (before, after), began)?;
    Ok(report)
}

fn has_gained(report: &OptimizeReport) -> bool {
    report.segments > 0 || report.versions > 0 || report.metadata_after < report.metadata_before
}

fn pool_len(pool: &Pool) -> u64 {
    let store = pool.store();
    pool.state().superblock.end.0 << store.ashift()
}

/// Takes steps until nothing is left to do.
fn work(
    args: &OptimizeArgs,
    opened: &Opened,
    optimisation: &mut Optimisation,
) -> Result<(), Reason> {
    let (mut last_step, mut shown) = (Instant::now(), None);
    let mut progress: Option<Progress> = None;
    loop {
        signals::check()?;
        match optimisation.step() {
            Ok(is_more) => {
                last_step = Instant::now();
                let (stage, report) = (optimisation.stage(), optimisation.report());
                if shown != Some(stage) {
                    progress.take().into_iter().for_each(Progress::finish);
                    progress = is_more.then(|| bar(args, stage, report));
                    shown = Some(stage);
                }
                if let Some(progress) = &mut progress {
                    progress.at(match stage {
                        OptimizeStage::Survey => report.surveyed_len,
                        OptimizeStage::Versions => report.compared_len,
                        OptimizeStage::Pack => report.packed_len,
                        _ => report.done_len,
                    });
                    progress.set_ratio(opened.pool.state().stats().compress_ratio());
                }
                if !is_more {
                    return Ok(());
                }
            }
            Err(Error::Busy) if last_step.elapsed() < PATIENCE => {}
            Err(Error::Busy) => {
                let text = "another process has been writing to it all the time";
                return Err(Reason::new(Code::InUse, text));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn bar(args: &OptimizeArgs, stage: OptimizeStage, report: &OptimizeReport) -> Progress {
    let (label, total) = match stage {
        OptimizeStage::Survey => ("looking for near-copies".into(), report.file_len),
        OptimizeStage::Versions => ("comparing databases".into(), report.database_len),
        OptimizeStage::Pack => ("packing names and pointers".into(), report.metadata_len),
        _ => (format!("compressing with {}", args.compression), report.planned_len),
    };
    Progress::new(label, total, args.work.quiet)
}

/// Moves what is left at the end of the pool into the space that has become free.
fn shorten(args: &OptimizeArgs, pool: &Pool) -> Result<(), Reason> {
    let total = pool.compact_estimate()?.move_bytes;
    let mut progress = Progress::new("shortening the pool".into(), total, args.work.quiet);
    compact::work(&mut pool.compact(), &mut progress)?;
    progress.finish();
    Ok(())
}

/// Reports on stderr what could not be read and was left unchanged.
fn report_damage(pool: &Pool, report: &OptimizeReport) {
    for (file, start, end, reason) in &report.damaged {
        // A file that has been removed meanwhile has no name.
        let name = pool.path_of(*file).unwrap_or_else(|_| format!("file {}", file.0).into_bytes());
        output::tell(format_args!(
            "hardpack: {}, bytes {start} to {end} were left unchanged: {reason}",
            text::escaped(&name),
        ));
    }
}

fn report_on(
    args: &OptimizeArgs,
    report: &OptimizeReport,
    (before, after): (u64, u64),
    began: Instant,
) -> Result<(), Reason> {
    let seconds = began.elapsed().as_secs_f64();
    if args.work.json {
        return output::print_json(&json!({
            "pool": args.pool.given().to_string_lossy(),
            "pool_before": before,
            "pool_after": after,
            "records": report.records,
            "segments": report.segments,
            "differences": report.differences,
            "versions": report.versions,
            "versions_before": report.versions_before,
            "versions_after": report.versions_after,
            "allocated_before": report.allocated_before,
            "allocated_after": report.allocated_after,
            "metadata_before": report.metadata_before,
            "metadata_after": report.metadata_after,
            "inflated_streams": report.inflated_streams,
            "inflated_from": report.inflated_from_len,
            "inflated_to": report.inflated_to_len,
            "transformed": report.transformed_len,
            "segment_bytes": report.segment_len,
            "held_bytes": report.held_len,
            "database_bytes": report.database_len,
            "overtaken": report.overtaken,
            "damaged": report.damaged.len(),
            "seconds": (seconds * 1000.0).round() / 1000.0,
        }));
    }
    if args.work.quiet {
        return Ok(());
    }
    let became = |before: u64, after: u64| {
        format!("{} became {}", bytes(before, false), bytes(after, false))
    };
    let records = match report.segments {
        0 => "no records to put into segments".to_string(),
        segments => format!(
            "{} records in {} segments, {}",
            count(report.records, false),
            count(segments, false),
            became(report.allocated_before, report.allocated_after),
        ),
    };
    let text = match has_gained(report) {
        false => "nothing to gain".to_string(),
        true => format!(
            "{records}; names and pointers: {}; the pool was {} long and is now {}, in \
             {seconds:.1} s",
            became(report.metadata_before, report.metadata_after),
            bytes(before, false),
            bytes(after, false),
        ),
    };
    output::print_line(format_args!("{}: {text}", args.pool))?;
    if report.differences > 0 {
        output::print_line(format_args!(
            "  differences: {} of the segments are stored as differences from others",
            count(report.differences, false),
        ))?;
    }
    if report.versions > 0 {
        output::print_line(format_args!(
            "  databases: {} records share those of other versions, {}",
            count(report.versions, false),
            became(report.versions_before, report.versions_after),
        ))?;
    }
    if report.inflated_streams > 0 {
        output::print_line(format_args!(
            "  inflated: {} deflate streams, {} became {} before they were compressed again",
            count(report.inflated_streams, false),
            bytes(report.inflated_from_len, false),
            bytes(report.inflated_to_len, false),
        ))?;
    }
    if report.transformed_len > 0 {
        output::print_line(format_args!(
            "  transformed: {} of machine code, sound and pictures",
            bytes(report.transformed_len, false),
        ))?;
    }
    let held = match args.pool.is_whole() {
        true => "held by snapshots: destroy them, then run the command again",
        false => "held by snapshots, or in segments that files elsewhere share",
    };
    let in_segments = match args.again {
        None => "in segments already; '--again=related' puts what is new to what it resembles",
        Some(_) => "in segments that little of what is new resembles",
    };
    let left = [
        (report.held_len, held),
        (
            report.database_len.saturating_sub(report.versions_len),
            "databases; 'hardpack repack', before this, compresses them better",
        ),
        (report.segment_len, in_segments),
    ];
    for (len, reason) in left.into_iter().filter(|(len, _)| *len > 0) {
        let len = bytes(len, false);
        output::print_line(format_args!("  left as it was: {len} {reason}"))?;
    }
    Ok(())
}
