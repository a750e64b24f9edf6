//! `hardpack repack`: compresses stored data again, while others read and write.
//!
//! The pool stores the progress (see the engine's `repack.rs`), so that the command, given again,
//! continues an interrupted repack.

use std::collections::HashSet;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use hardpack::unused::Clearing;
use hardpack_engine::pool::{
    Clear, Estimate, Kind, Pool, Property, Repack, Settings, Step, StepLimits,
};
use hardpack_engine::{Error, FileId};
use rusqlite::Connection;
use serde_json::json;

use super::fold::{finish, report_damage};
use crate::address::Opened;
use crate::args::RepackArgs;
use crate::failure::{Cannot, Code, Failure, Reason};
use crate::output::{self, bytes, json_ratio, quotient, ratio};
use crate::progress::Progress;
use crate::signals;
use crate::{contents, pool_file, sqlite};

/// The number of bytes that an estimate compresses.
const SAMPLE_LEN: u64 = 8 << 20;
/// The minimum sample of each file, if there are many.
const SAMPLE_LEN_MIN: u64 = 64 << 10;
/// The range of bytes rewritten in one step, and the time that a step should take at most.
const STEP_LEN_RANGE: std::ops::RangeInclusive<u64> = 512 << 10..=8 << 20;
const STEP_TIME_MAX: Duration = Duration::from_millis(500);
/// How long to wait for the lock on a database to clear.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// A writer may change data while it is being compressed; up to this many passes pick up such data.
const PASS_COUNT_MAX: usize = 3;

/// What an interrupted repack leaves.
const LEFT_BEHIND: &str = "'hardpack repack' continues from there";

pub fn run(args: &RepackArgs) -> Result<ExitCode, Failure> {
    signals::catch(LEFT_BEHIND);
    let began = Instant::now();
    let path = &args.pool;
    if args.estimate {
        let estimate = estimate(args).cannot("estimate a repack of", path)?;
        report_estimate(args, &estimate, began).cannot("report on", path)?;
        return Ok(ExitCode::SUCCESS);
    }
    let (goal, done) = repack(args).cannot("repack", path)?;
    report(args, goal.as_ref(), &done, began).cannot("report on", path)?;
    Ok(ExitCode::from(if done.damaged.is_empty() { 0 } else { Code::Data as u8 }))
}

/// The properties to aim at: those in force for the file, overridden by the flags.
fn goal(args: &RepackArgs, pool: &Pool, file: FileId) -> Result<Settings, Reason> {
    let mut goal = pool.settings(file)?;
    for (property, value) in args.properties() {
        goal.set(property, &value)?;
    }
    Ok(goal)
}

/// The named file, or all files below the named directory, each once, with their lengths.
fn files(opened: &Opened) -> Result<Vec<(FileId, u64)>, Reason> {
    let entry = opened.file_or_entry()?;
    if entry.kind != Kind::Directory {
        return Ok(vec![(entry.file, opened.pool.attributes(entry.file)?.len)]);
    }
    let mut files = Vec::new();
    let mut seen = HashSet::new();
    opened.walk(entry.file, &mut |_, entry, attributes| {
        let is_new = attributes.link_count < 2 || seen.insert(entry.file);
        let is_wanted = entry.kind == Kind::File && is_new;
        files.extend(is_wanted.then_some((entry.file, attributes.len)));
        Ok(true)
    })?;
    Ok(files)
}

fn estimate(args: &RepackArgs) -> Result<Estimate, Reason> {
    let opened = args.pool.open(args.work.threads)?;
    let files = files(&opened)?;
    let mut sum = Estimate::default();
    let whole_len = files.iter().map(|(_, len)| len).sum::<u64>();
    let label = "compressing a sample".into();
    let mut progress = Progress::new(label, whole_len.min(SAMPLE_LEN), args.work.quiet);
    for (file, _) in files {
        // With many files, an equal share of the sample each would be too little; the first files
        // get most of it.
        let left = SAMPLE_LEN.saturating_sub(sum.sampled_len).max(SAMPLE_LEN_MIN);
        let before = sum.sampled_len;
        let mut at = |sampled| progress.at(before + sampled);
        let found = match estimate_file(args, &opened.pool, file, left, &mut at) {
            Err(_) if is_gone(&opened.pool, file)? => continue,
            found => found?,
        };
        sum.rewrite_len += found.rewrite_len;
        sum.stored_now += found.stored_now;
        sum.stored_then += found.stored_then;
        sum.sampled_len += found.sampled_len;
        progress.at(sum.sampled_len);
    }
    progress.finish();
    Ok(sum)
}

fn estimate_file(
    args: &RepackArgs,
    pool: &Pool,
    file: FileId,
    sample_len: u64,
    at: &mut dyn FnMut(u64),
) -> Result<Estimate, Reason> {
    let goal = goal(args, pool, file)?;
    // No lock is needed, since the result is not stored.
    let clearing = match clears(pool, file, &goal)? {
        true => clearing(pool, file)?,
        false => None,
    };
    let clear = clear_with(clearing.as_ref());
    let clear = clearing.is_some().then_some(&clear as &Clear<'_>);
    let estimate = pool.estimate_repack(file, goal, sample_len, clear, &mut |sampled| {
        at(sampled);
        !signals::is_interrupted()
    })?;
    signals::check()?;
    Ok(estimate)
}

/// How far the files have got, one after the other.
struct Course {
    progress: Progress,
    /// The length of the files before the one at hand, in bytes.
    before: u64,
    /// The length of all files, in bytes.
    total: u64,
}

impl Course {
    /// Notes how far the file at hand has got.
    fn at(&mut self, position: u64) {
        self.progress.at(self.before + position);
    }

    /// The part that is done if the file at hand has got this far, in percent.
    fn percent(&self, position: u64) -> f64 {
        quotient(self.before + position, self.total) * 100.0
    }
}

/// Repacks each file. Also returns the goal of the last one, for the report.
fn repack(args: &RepackArgs) -> Result<(Option<Settings>, Step), Reason> {
    let opened = args.pool.open_writable(args.work.threads)?;
    let files = files(&opened)?;
    let mut sum = Step::default();
    let mut last_goal = None;
    let is_one_of_many = opened.file_or_entry()?.kind == Kind::Directory;
    // Where an unfinished repack goes on, each file has a goal of its own.
    let label = match files.len() {
        1 => "repacking".into(),
        count => format!("repacking {count} files"),
    };
    let total = files.iter().map(|(_, len)| len).sum();
    let progress = Progress::new(label, total, args.work.quiet);
    let mut course = Course { progress, before: 0, total };
    for (file, len) in &files {
        match repack_file(args, &opened, *file, &mut course) {
            Ok((repack, done)) => {
                sum.add(done);
                last_goal = Some(repack.goal);
            }
            // It was removed meanwhile.
            Err(_) if is_one_of_many && is_gone(&opened.pool, *file)? => {}
            Err(reason) => return Err(reason),
        }
        course.before += len;
    }
    course.progress.finish();
    finish(&opened.pool)?;
    Ok((last_goal, sum))
}

/// Whether a file has been removed meanwhile.
fn is_gone(pool: &Pool, file: FileId) -> Result<bool, Reason> {
    pool.refresh()?;
    match pool.attributes(file) {
        Err(Error::NotFound { .. }) => Ok(true),
        found => Ok(found.map(|_| false)?),
    }
}

fn repack_file(
    args: &RepackArgs,
    opened: &Opened,
    file: FileId,
    course: &mut Course,
) -> Result<(Repack, Step), Reason> {
    let pool = &opened.pool;
    let mut limits =
        StepLimits { rewrite_len_max: *STEP_LEN_RANGE.start(), ..StepLimits::default() };
    let mut repack = begin(args, pool, file, &limits)?;
    let len = pool.attributes(file)?.len;
    let lock = lock_to_clear(args, pool, file, &repack)?;
    let clearing = match &lock {
        Some(_) => clearing(pool, file)?,
        None => None,
    };
    let clear = clear_with(clearing.as_ref());
    let clear = clearing.is_some().then_some(&clear as &Clear<'_>);
    let mut sum = Step::default();
    for _ in 0..PASS_COUNT_MAX {
        let overtaken = sum.overtaken;
        loop {
            let began = Instant::now();
            match pool.repack_step(&mut repack, &limits, clear) {
                // The last step is abandoned.
                Err(Error::Stopped) => {
                    return Err(interrupted(pool, course.percent(repack.position)));
                }
                step => sum.add(step?),
            }
            limits.rewrite_len_max = if began.elapsed() > STEP_TIME_MAX {
                (limits.rewrite_len_max / 2).max(*STEP_LEN_RANGE.start())
            } else {
                (limits.rewrite_len_max * 2).min(*STEP_LEN_RANGE.end())
            };
            course.progress.set_ratio(pool.state().stats().compress_ratio());
            course.at(sum.next.unwrap_or(len).min(len));
            if sum.next.is_none() {
                break;
            }
            if signals::is_interrupted() {
                return Err(interrupted(pool, course.percent(repack.position)));
            }
        }
        if sum.overtaken == overtaken {
            break;
        }
        repack.position = 0;
    }
    // Dropped before the pool: closing the pool's descriptor would drop SQLite's locks.
    drop(lock);
    Ok((repack, sum))
}

/// Makes durable what was repacked, and says how far it got.
fn interrupted(pool: &Pool, percent: f64) -> Reason {
    if let Err(error) = pool.store().make_durable() {
        return error.into();
    }
    Reason::new(Code::Interrupted, format!("interrupted after {percent:.0}%")).hint(LEFT_BEHIND)
}

/// Locks the database if unused bytes are to be cleared: it must not change meanwhile, so nobody
/// else may use it. The lock lasts as long as the connection.
fn lock_to_clear(
    args: &RepackArgs,
    pool: &Pool,
    file: FileId,
    repack: &Repack,
) -> Result<Option<Connection>, Reason> {
    if !clears(pool, file, &repack.goal)? {
        return Ok(None);
    }
    let path = match pool.only_file() {
        Ok(_) => args.pool.pool.clone(),
        Err(_) => contents::database_path(&args.pool.pool, &pool.path_of(file)?),
    };
    let locked = sqlite::lock_pool(&path, LOCK_TIMEOUT).map_err(Reason::from);
    locked.map(Some).map_err(|reason| match reason.code {
        Code::InUse => reason.hint(
            "clear-unused needs exclusive use of the database; close it in other programs, or repack \
             without it ('hardpack set clear-unused=off')",
        ),
        _ => reason,
    })
}

/// Whether a repack with this goal clears anything in this file.
fn clears(pool: &Pool, file: FileId, goal: &Settings) -> Result<bool, Reason> {
    Ok(goal.clear_unused && pool_file::is_database(&*pool.file(file)?)?)
}

fn clear_with(clearing: Option<&Clearing>) -> impl Fn(u64, &mut [u8]) + Sync {
    move |offset, bytes| {
        if let Some(clearing) = clearing {
            clearing.clear(offset, bytes);
        }
    }
}

fn clearing(pool: &Pool, file: FileId) -> Result<Option<Clearing>, Reason> {
    pool.refresh()?;
    let file = pool.file(file)?;
    let len = file.len()?;
    Clearing::new(len, &mut |buf, offset| Ok(file.read_at(buf, offset).map(drop)?))
}

/// Continues an interrupted repack, or starts a new one if the goal differs.
fn begin(
    args: &RepackArgs,
    pool: &Pool,
    file: FileId,
    limits: &StepLimits,
) -> Result<Repack, Reason> {
    let wanted = goal(args, pool, file)?;
    if let Some(unfinished) = pool.unfinished_repack(file)?.filter(|_| !args.restart)
        && (args.properties().is_empty() || unfinished.aims_at(&wanted))
    {
        if !args.work.quiet {
            output::tell(format_args!(
                "continuing an interrupted repack to {}",
                unfinished.goal.get(Property::Compression)
            ));
        }
        return Ok(unfinished);
    }
    Ok(pool.begin_repack(file, wanted, limits.patience)?)
}

fn report_estimate(args: &RepackArgs, found: &Estimate, began: Instant) -> Result<(), Reason> {
    let seconds = began.elapsed().as_secs_f64();
    let whole = seconds * quotient(found.rewrite_len, found.sampled_len.max(1));
    if args.work.json {
        return output::print_json(&json!({
            "pool": args.pool.given().to_string_lossy(),
            "rewrite_bytes": found.rewrite_len,
            "stored_now": found.stored_now,
            "stored_then": found.stored_then,
            "sampled_bytes": found.sampled_len,
            "seconds": (whole * 10.0).round() / 10.0,
        }));
    }
    if found.rewrite_len == 0 {
        return output::print_line(format_args!(
            "{}: everything is stored like this already",
            args.pool
        ));
    }
    output::print(output::pairs([
        ("to rewrite", bytes(found.rewrite_len, false)),
        ("stored now", bytes(found.stored_now, false)),
        (
            "stored afterwards, about",
            format!(
                "{} ({} of now)",
                bytes(found.stored_then, false),
                ratio(quotient(found.stored_then, found.stored_now))
            ),
        ),
        ("from a sample of", bytes(found.sampled_len, false)),
        ("time, about", format!("{whole:.0} s")),
    ]))
}

fn report(
    args: &RepackArgs,
    goal: Option<&Settings>,
    done: &Step,
    began: Instant,
) -> Result<(), Reason> {
    let seconds = began.elapsed().as_secs_f64();
    report_damage(done);
    if args.work.json {
        return output::print_json(&json!({
            "pool": args.pool.given().to_string_lossy(),
            "compression": goal.map(|goal| goal.get(Property::Compression)),
            "recordsize": goal.map(|goal| goal.record_len),
            "rewritten_bytes": done.rewritten_len,
            "stored_before": done.stored_before,
            "stored_after": done.stored_after,
            "ratio": json_ratio(quotient(done.stored_after, done.stored_before)),
            "overtaken": done.overtaken,
            "damaged": done.damaged.len(),
            "seconds": (seconds * 1000.0).round() / 1000.0,
        }));
    }
    if args.work.quiet {
        return Ok(());
    }
    let text = if done.rewritten == 0 {
        "everything was stored like this already".to_string()
    } else {
        format!(
            "{} rewritten, {} became {} in {seconds:.1} s",
            bytes(done.rewritten_len, false),
            bytes(done.stored_before, false),
            bytes(done.stored_after, false),
        )
    };
    output::print_line(format_args!("{}: {text}", args.pool))
}
