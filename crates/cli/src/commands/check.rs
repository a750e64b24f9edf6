//! `hardpack check`: every checksum, every tree, free space against what is reachable, and then what
//! SQLite says of the database.

use std::collections::HashMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use hardpack_engine::FileId;
use hardpack_engine::pool::{CheckReport, Pool, Problem};
use serde_json::{Value, json};

use crate::args::CheckArgs;
use crate::failure::{Cannot, Code, Failure, Reason, sqlite_code};
use crate::output::{self, bytes, count};
use crate::progress::{Progress, Spinner};
use crate::{pool_file, signals, sqlite};

const TIMEOUT: Duration = Duration::from_secs(10);
/// How many steps SQLite takes between two looks at the signals.
const STEPS_PER_LOOK: i32 = 10_000;

pub fn run(args: &CheckArgs) -> Result<ExitCode, Failure> {
    signals::catch();
    let began = Instant::now();
    let findings = check(args).cannot("check", args.pool.display())?;
    let seconds = began.elapsed().as_secs_f64();
    let done = if args.work.json {
        output::print_json(&findings.json(args, seconds))
    } else {
        output::print(findings.text(args, seconds))
    };
    done.cannot("report on", args.pool.display())?;
    Ok(ExitCode::from(if findings.is_clean() { 0 } else { Code::Data as u8 }))
}

/// What came out.
struct Findings {
    report: CheckReport,
    names: HashMap<FileId, String>,
    /// What `integrity_check` said; `None` where it was not run.
    integrity: Option<Vec<String>>,
}

fn check(args: &CheckArgs) -> Result<Findings, Reason> {
    let pool = pool_file::open_read_only(&args.pool, args.work.threads)?;
    let (report, names) = check_pool(args, &pool)?;
    let holds_database = report.is_clean() && !args.no_integrity_check && is_database(&pool)?;
    // Before SQLite takes locks on the file: closing a descriptor would drop them.
    drop(pool);
    let integrity = if holds_database { Some(check_integrity(args)?) } else { None };
    Ok(Findings { report, names, integrity })
}

fn check_pool(
    args: &CheckArgs,
    pool: &Pool,
) -> Result<(CheckReport, HashMap<FileId, String>), Reason> {
    let state = pool.state();
    let total = state.stats().data().stored + state.stats().nodes.stored;
    let mut progress = Progress::new("checking".into(), total, args.work.quiet);
    let report = pool.check(&mut |done| {
        progress.at(done);
        if signals::is_interrupted() {
            // The engine cannot be stopped midway; there is nothing to clean up.
            std::process::exit(Code::Interrupted as i32);
        }
    })?;
    progress.finish();
    // Where the names cannot be read, that is among the problems.
    let entries = pool.list().unwrap_or_default();
    Ok((report, entries.into_iter().map(|entry| (entry.file, entry.name)).collect()))
}

fn is_database(pool: &Pool) -> Result<bool, Reason> {
    let Ok(entry) = pool.only_file() else { return Ok(false) };
    pool_file::is_database(&*pool.file(entry.file)?)
}

fn check_integrity(args: &CheckArgs) -> Result<Vec<String>, Reason> {
    // A database in write-ahead log mode may need its log recovered, which read-only cannot.
    let _spinner = Spinner::new("integrity_check", args.work.quiet);
    let lines = integrity_lines(&args.pool, true).or_else(|error| match sqlite_code(&error) {
        Code::Cannot => integrity_lines(&args.pool, false),
        _ => Err(error),
    });
    match lines {
        Ok(lines) if lines == ["ok"] => Ok(Vec::new()),
        Ok(lines) => Ok(lines),
        Err(error) if matches!(sqlite_code(&error), Code::Data | Code::NotAPool) => {
            Ok(vec![Reason::from(error).text])
        }
        Err(error) => Err(error.into()),
    }
}

fn integrity_lines(path: &Path, read_only: bool) -> rusqlite::Result<Vec<String>> {
    let mut db = sqlite::open_pool(path, read_only, TIMEOUT)?;
    db.progress_handler(STEPS_PER_LOOK, Some(signals::is_interrupted))?;
    let mut statement = db.prepare("PRAGMA integrity_check")?;
    statement.query_map([], |row| row.get(0))?.collect()
}

impl Findings {
    fn is_clean(&self) -> bool {
        self.report.is_clean() && self.integrity.as_ref().is_none_or(Vec::is_empty)
    }

    fn problem_count(&self) -> usize {
        self.report.problems.len() + self.integrity.as_ref().map_or(0, Vec::len)
    }

    fn name(&self, problem: &Problem) -> Option<String> {
        let known = |file: &FileId| self.names.get(file).cloned();
        problem.file.map(|file| known(&file).unwrap_or_else(|| format!("file {}", file.0)))
    }

    fn text(&self, args: &CheckArgs, seconds: f64) -> String {
        let mut text = String::new();
        for problem in &self.report.problems {
            let place = match (self.name(problem), problem.range) {
                (Some(name), Some((from, to))) => format!("{name}, bytes {from} to {to}: "),
                (Some(name), None) => format!("{name}: "),
                (None, _) => String::new(),
            };
            text.push_str(&format!("{place}{}\n", problem.detail));
        }
        for line in self.integrity.iter().flatten() {
            text.push_str(&format!("integrity_check: {line}\n"));
        }
        if self.is_clean() && args.work.quiet {
            return text;
        }
        let report = &self.report;
        text.push_str(&format!(
            "{}: {} records and {} tree nodes, {} read and verified in {seconds:.1} s\n",
            args.pool.display(),
            count(report.records, false),
            count(report.nodes, false),
            bytes(report.bytes, false),
        ));
        text.push_str(&match (self.problem_count(), &self.integrity) {
            (0, Some(_)) => "no problems; integrity_check: ok\n".into(),
            (0, None) => "no problems\n".into(),
            (1, _) => "1 problem\n".into(),
            (n, _) => format!("{n} problems\n"),
        });
        text
    }

    fn json(&self, args: &CheckArgs, seconds: f64) -> Value {
        let report = &self.report;
        let problems = report.problems.iter().map(|problem| {
            json!({
                "file": self.name(problem),
                "range": problem.range.map(|(from, to)| [from, to]),
                "detail": problem.detail,
            })
        });
        json!({
            "pool": args.pool.to_string_lossy(),
            "ok": self.is_clean(),
            "txg": report.txg.0,
            "nodes": report.nodes,
            "records": report.records,
            "bytes": report.bytes,
            "free_bytes": report.free_bytes,
            "seconds": (seconds * 1000.0).round() / 1000.0,
            "problems": problems.collect::<Value>(),
            "integrity_check": self.integrity,
        })
    }
}
