//! `hardpack optimize`: puts near-copies and small files together into segments, lets copies of a
//! database share records, then shortens the pool.
//!
//! Each segment is a commit of its own (see the engine's `pool/optimize/`), so an interrupted
//! optimisation leaves a whole pool, and the same command goes on with the rest. `put --optimize`
//! does the same, quickly, with what it has stored.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use hardpack_engine::Error;
use hardpack_engine::pool::{
    Kind, Optimisation, OptimizeReport, OptimizeStage, Pool, Property, SegmentGoal, Settings,
};
use serde_json::{Value, json};

use super::compact;
use crate::address::Opened;
use crate::args::{OptimizeArgs, WorkArgs};
use crate::failure::{Cannot, Code, Failure, Reason};
use crate::output::{self, bytes, count};
use crate::progress::Progress;
use crate::{signals, text};

/// How long to retry while other processes hold the pool.
const PATIENCE: Duration = Duration::from_secs(60);
/// A pool of which more than one part in this many is free is shortened, though nothing else was
/// gained.
const ROOM_PART_MIN: u64 = 16;
/// What an interrupted optimisation leaves.
const LEFT_BEHIND: &str = "the pool is whole; run the command again to go on with the rest";

/// The length of the segments that `put --optimize` makes, in bytes. Longer ones gain little with
/// codecs that are fast, and are slower to read at random.
const PUT_SEGMENT_LEN: u32 = 1 << 20;

/// What is to be done, and how it is told.
struct Asked<'a> {
    goal: SegmentGoal,
    keep_length: bool,
    work: &'a WorkArgs,
}

/// What an optimisation has done.
pub struct Done {
    report: OptimizeReport,
    /// How long the pool was, and is now, in bytes.
    before: u64,
    after: u64,
    seconds: f64,
}

pub fn run(args: &OptimizeArgs) -> Result<ExitCode, Failure> {
    signals::catch(LEFT_BEHIND);
    let done = optimize(args).cannot("optimize", &args.pool)?;
    Ok(ExitCode::from(if done.report.damaged.is_empty() { 0 } else { Code::Data as u8 }))
}

fn optimize(args: &OptimizeArgs) -> Result<Done, Reason> {
    let opened = args.pool.open_writable(args.work.threads)?;
    let goal = SegmentGoal {
        compression: args.compression,
        len: args.segment,
        again: args.again(),
        inflate: args.inflate,
    };
    let asked = Asked { goal, keep_length: args.keep_length, work: &args.work };
    let done = work(&asked, &opened)?;
    opened.pool.close()?;
    if args.work.json {
        let mut told = done.json();
        told["pool"] = args.pool.given().to_string_lossy().into();
        output::print_json(&told)?;
    } else if !args.work.quiet {
        report_on(args, &done)?;
    }
    Ok(done)
}

/// Puts what was just stored at an address into segments that are quickly made, compressed as the
/// records there are, or as these properties say, if that can be. Returns nothing if no file or
/// directory is there.
pub fn after_put(
    opened: &Opened,
    properties: &[(Property, String)],
    args: &WorkArgs,
) -> Result<Option<Done>, Reason> {
    let Ok(entry) = opened.file_or_entry() else { return Ok(None) };
    if !matches!(entry.kind, Kind::File | Kind::Directory) {
        return Ok(None);
    }
    let mut settings = opened.pool.settings(entry.file)?;
    for (property, value) in properties {
        settings.set(*property, value)?;
    }
    let compression = match settings.compression {
        compression if compression.uses_base() => compression,
        _ => Settings::default().compression,
    };
    let goal = SegmentGoal { compression, len: PUT_SEGMENT_LEN, ..SegmentGoal::default() };
    work(&Asked { goal, keep_length: false, work: args }, opened).map(Some)
}

fn work(asked: &Asked<'_>, opened: &Opened) -> Result<Done, Reason> {
    let began = Instant::now();
    let pool = &opened.pool;
    let before = pool_len(pool);
    let mut optimisation = pool.optimize(opened.file_or_entry()?.file, asked.goal)?;
    let done = take_steps(asked, opened, &mut optimisation);
    let report = optimisation.report().clone();
    let is_cut_off = done.as_ref().is_err_and(|reason| reason.code == Code::Cannot);
    let has_gained = has_gained(&report);
    if is_cut_off && !asked.keep_length && has_gained {
        // The first segments make a pool longer. On a full disk, the next run needs that room.
        let _ = shorten(asked, pool);
    }
    // No later commit follows that would make the last one durable.
    let done = done.and(pool.store().make_durable().map_err(Reason::from));
    let done = done.and_then(|()| match !asked.keep_length && (has_gained || has_room(pool)?) {
        true => shorten(asked, pool),
        false => Ok(()),
    });
    done.map_err(|reason| match reason.hint {
        Some(_) => reason,
        None => reason.hint(LEFT_BEHIND),
    })?;
    report_damage(pool, &report);
    let seconds = began.elapsed().as_secs_f64();
    Ok(Done { report, before, after: pool_len(pool), seconds })
}

fn has_gained(report: &OptimizeReport) -> bool {
    report.segments > 0 || report.versions > 0 || report.metadata_after < report.metadata_before
}

/// Whether much of a pool is free, as after files were removed.
fn has_room(pool: &Pool) -> Result<bool, Reason> {
    let found = pool.compact_estimate()?;
    Ok(found.gain_bytes > found.pool_bytes / ROOM_PART_MIN)
}

fn pool_len(pool: &Pool) -> u64 {
    let store = pool.store();
    pool.state().superblock.end.0 << store.ashift()
}

/// Takes steps until nothing is left to do.
fn take_steps(
    asked: &Asked<'_>,
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
                    progress = is_more.then(|| bar(asked, stage, report));
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

fn bar(asked: &Asked<'_>, stage: OptimizeStage, report: &OptimizeReport) -> Progress {
    let (label, total) = match stage {
        OptimizeStage::Survey => ("looking for near-copies".into(), report.file_len),
        OptimizeStage::Versions => ("comparing databases".into(), report.database_len),
        OptimizeStage::Pack => ("packing names and pointers".into(), report.metadata_len),
        _ => (format!("compressing with {}", asked.goal.compression), report.planned_len),
    };
    Progress::new(label, total, asked.work.quiet)
}

/// Moves what is left at the end of the pool into the space that has become free.
fn shorten(asked: &Asked<'_>, pool: &Pool) -> Result<(), Reason> {
    let total = pool.compact_estimate()?.move_bytes;
    let mut progress = Progress::new("shortening the pool".into(), total, asked.work.quiet);
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

impl Done {
    /// Whether anything has changed.
    pub fn has_gained(&self) -> bool {
        has_gained(&self.report) || self.after < self.before
    }

    /// Whether everything could be read.
    pub fn is_sound(&self) -> bool {
        self.report.damaged.is_empty()
    }

    /// What it has made of the pool, in a few words.
    pub fn told(&self) -> String {
        let (before, after) = (bytes(self.before, false), bytes(self.after, false));
        format!("the pool was {before} long and is now {after}, in {:.1} s", self.seconds)
    }

    pub fn json(&self) -> Value {
        let report = &self.report;
        json!({
            "pool_before": self.before,
            "pool_after": self.after,
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
            "seconds": (self.seconds * 1000.0).round() / 1000.0,
        })
    }
}

fn report_on(args: &OptimizeArgs, done: &Done) -> Result<(), Reason> {
    let report = &done.report;
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
    let text = match done.has_gained() {
        false => "nothing to gain".to_string(),
        true => format!(
            "{records}; names and pointers: {}; {}",
            became(report.metadata_before, report.metadata_after),
            done.told(),
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
        None => {
            "in segments already; '--again' makes all of them anew, '--again=related' those that \
             resemble what is new"
        }
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
