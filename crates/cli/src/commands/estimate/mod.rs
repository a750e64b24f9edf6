//! `hardpack estimate`: how small data would become with each block size, codec and deduplication.
//!
//! ```text
//! walk.rs      finds files
//! reading.rs   reads each byte once
//! scan.rs      counts the blocks of each window, on all cores
//! blocks.rs    cuts and hashes them
//! table.rs     the distinct blocks of one kind, in bounded memory
//! segments.rs  what 'optimize' would make of them
//! figures.rs   figures with error bars
//! advice.rs    the recommendation
//! report.rs    text, and json.rs and chart.rs
//! ```
//!
//! Nothing is changed, and nothing is kept but the tables: their memory is bounded by `--memory`.

mod advice;
mod blocks;
mod chart;
mod figures;
mod json;
mod reading;
mod report;
mod scan;
mod segments;
mod table;
mod walk;

use std::process::ExitCode;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use hardpack_engine::codec::Policy;

use self::blocks::{COUNT, Cut, FIXED_COUNT, KINDS};
use self::figures::{Figures, Part};
use self::reading::{Choice, Reading};
use self::scan::{Counting, Scan};
use self::segments::{InSegments, Segments};
use self::table::{Limits, Table};
use self::walk::{Account, Counts, Named, Walk};
use crate::args::{EstimateArgs, Sample};
use crate::failure::{Cannot, Code, Failure, Reason};
use crate::{globs, output, publish, signals, text};

/// More threads would not read faster.
const READER_COUNT: usize = 4;
/// The most files that wait for a thread.
const QUEUE_LEN: usize = 256;

/// The figures of one kind of block.
struct Row {
    name: &'static str,
    cut: Cut,
    figures: Figures,
    /// The shares of the distinct blocks that were kept and compressed.
    kept_share: f64,
    measured_share: f64,
}

/// Everything that is shown.
struct Report<'a> {
    args: &'a EstimateArgs,
    named: &'a [Named],
    counts: Counts,
    /// The part of the data that was read, if it is a sample.
    part: Option<Part>,
    rows: Vec<Row>,
    /// What `optimize` would make of it, unless it is a sample.
    in_segments: Option<InSegments>,
    seconds: f64,
}

/// The names of all kinds of blocks.
pub fn block_names() -> [&'static str; COUNT] {
    KINDS.map(|(name, _)| name)
}

pub fn run(args: &EstimateArgs) -> Result<ExitCode, Failure> {
    signals::catch(signals::NOTHING);
    let began = Instant::now();
    if let Some(chart) = &args.chart {
        publish::refuse_existing(chart, args.force).cannot("create", text::path(chart))?;
    }
    let mut named = Vec::new();
    let mut missing = 0;
    for path in &args.paths {
        match walk::named(path) {
            Ok(Named::InPool(address)) => {
                named.extend(globs::expand(&[address], "estimate")?.into_iter().map(Named::InPool));
            }
            Ok(found) => named.push(found),
            Err(reason) => {
                missing += 1;
                reason.cannot("estimate", text::escaped(path.as_encoded_bytes())).report();
            }
        }
    }
    if named.is_empty() {
        return Ok(ExitCode::from(Code::Cannot as u8));
    }
    let choice = Choice { seed: args.seed, share: share_to_read(args, &named)? };
    let account = Account::new(args.work.quiet);
    let (tables, segments) = count(args, &named, choice, &account)?;
    let mut counts = account.into_counts();
    // What they hold stays where it is.
    let in_segments = match counts.has_snapshots || counts.has_segments {
        true => None,
        false => {
            let measured = segments.measure(args, &named, threads_of(args));
            measured.cannot("estimate", shown(&named))?
        }
    };
    counts.failed += missing;
    let part = choice.share.map(|_| Part { read: counts.read, of: counts.bytes });
    let rows = rows(args, &tables, part);
    let in_segments = match rows.last() {
        Some(row) => in_segments.map(|found| found.with_rest(&row.figures)),
        None => in_segments,
    };
    let seconds = began.elapsed().as_secs_f64();
    let named = &named;
    let report = Report { args, named, counts, part, rows, in_segments, seconds };
    show(&report).cannot("report on", "the estimate")?;
    if let Some(path) = &args.chart {
        chart::write(&report, path).cannot("create", text::path(path))?;
    }
    Ok(match &report.counts {
        counts if counts.is_damaged => ExitCode::from(Code::Data as u8),
        counts if counts.failed > 0 => ExitCode::from(Code::Cannot as u8),
        _ => ExitCode::SUCCESS,
    })
}

fn show(report: &Report<'_>) -> Result<(), Reason> {
    match report.args.work.json {
        true => output::print_json(&json::of(report)),
        false => output::print(report::text(report)),
    }
}

/// The share of the data that a sample reads; `None` for all of it.
fn share_to_read(args: &EstimateArgs, named: &[Named]) -> Result<Option<f64>, Failure> {
    let share = match args.sample {
        None => return Ok(None),
        Some(Sample::Share(share)) => share,
        Some(Sample::Bytes(wanted)) => {
            // Failures are reported by the second walk.
            let account = Account::silent();
            let mut walk = Walk::new(&account);
            let mut all = 0_u64;
            for one in named {
                match one {
                    Named::Path(path) => walk.path(path, &mut |_, len| {
                        all = all.saturating_add(len);
                        Ok(())
                    }),
                    Named::InPool(address) => address.open(args.work.threads).and_then(|opened| {
                        walk.pool(&opened, &mut |_, _, _, len| {
                            all = all.saturating_add(len);
                            Ok(())
                        })
                    }),
                }
                .cannot("estimate", one.shown())?;
            }
            wanted as f64 / all.max(1) as f64
        }
    };
    Ok((share < 1.0).then_some(share))
}

fn threads_of(args: &EstimateArgs) -> usize {
    let threads = args.work.threads.map(usize::from);
    threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from))
}

/// Reads everything, or the sample, and counts its blocks.
fn count(
    args: &EstimateArgs,
    named: &[Named],
    choice: Choice,
    account: &Account,
) -> Result<(Vec<Table>, Segments), Failure> {
    let threads = threads_of(args);
    let is_sample = choice.share.is_some();
    let per_block = table::bytes_per_block(args.compression.len(), is_sample);
    let limits = Limits {
        blocks: (args.memory / COUNT as u64 / per_block).min(1 << 31) as usize,
        measured: args.measure,
    };
    let policy = Policy { sector: 1 << args.ashift, ..Policy::default() };
    let compressions = args.compression.clone();
    let memory = args.memory;
    let scan = Scan::new(Counting { compressions, policy, limits, memory, is_sample });
    let (windows, queue) = sync_channel(2 * threads);
    // Each thread owns a part of the queue: if all of them end early, sending fails.
    let queue = Arc::new(Mutex::new(queue));
    thread::scope(|scope| {
        for _ in 0..threads {
            let (queue, scan) = (Arc::clone(&queue), &scan);
            let work = move || scan.work(&queue);
            thread::Builder::new().spawn_scoped(scope, work).cannot("start", "a thread")?;
        }
        drop(queue);
        let reading = Reading { scan: &scan, windows: &windows, account, choice };
        let read = read(&reading, named, threads.min(READER_COUNT));
        drop(windows);
        read
    })?;
    signals::check().and_then(|()| scan.finish()).cannot("estimate", shown(named))
}

/// Reads what the user named: pools first (see `reading.rs`).
fn read(reading: &Reading<'_>, named: &[Named], threads: usize) -> Result<(), Failure> {
    let mut walk = Walk::new(reading.account);
    for (index, one) in named.iter().enumerate() {
        if let Named::InPool(address) = one {
            reading.pool(index, address, &mut walk)?;
        }
    }
    let (jobs, queue) = sync_channel(QUEUE_LEN);
    let queue = Arc::new(Mutex::new(queue));
    thread::scope(|scope| {
        for _ in 0..threads {
            let queue = Arc::clone(&queue);
            let work = move || reading.work(&queue);
            thread::Builder::new().spawn_scoped(scope, work).cannot("start", "a thread")?;
        }
        drop(queue);
        for one in named {
            if let Named::Path(path) = one {
                let mut hand_over = |job, _| {
                    let gone = |_| hardpack_engine::Error::Internal("no thread reads".into());
                    Ok(jobs.send(job).map_err(gone)?)
                };
                walk.path(path, &mut hand_over).cannot("estimate", one.shown())?;
            }
        }
        drop(jobs);
        Ok(())
    })
}

fn rows(args: &EstimateArgs, tables: &[Table], part: Option<Part>) -> Vec<Row> {
    let kinds = if part.is_some() { FIXED_COUNT } else { COUNT };
    let rows = KINDS.into_iter().zip(tables).take(kinds).map(|((name, cut), table)| Row {
        name,
        cut,
        figures: figures::figures(table, args.compression.len(), 1 << args.ashift, part),
        kept_share: table.kept_share(),
        measured_share: table.measured_share(),
    });
    rows.collect()
}

/// What is estimated, for messages.
fn shown(named: &[Named]) -> String {
    match named {
        [one] => one.shown(),
        all => format!("{} and {} more", all[0].shown(), all.len() - 1),
    }
}
