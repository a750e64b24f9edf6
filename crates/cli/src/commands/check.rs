//! `hardpack check`: every checksum, every tree, free space against what is reachable, and then what
//! SQLite says of the database.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use hardpack::owners::{self, OwnedPages, Owners};
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
    if args.states {
        return super::rewind::list_states(args).cannot("check", args.pool.display());
    }
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
    /// The pages of databases that are hurt, by file.
    hurt_pages: Vec<(String, Owners)>,
    /// What `integrity_check` said; `None` where it was not run.
    integrity: Option<Vec<String>>,
}

fn check(args: &CheckArgs) -> Result<Findings, Reason> {
    let pool = pool_file::open_state(&args.pool, args.rewind.txg, args.work.threads)?;
    let (report, names) = check_pool(args, &pool)?;
    let hurt_pages = find_hurt_pages(&pool, &report, &names);
    // SQLite sees the newest state only.
    let is_wanted = !args.no_integrity_check && args.rewind.txg.is_none();
    let holds_database = report.is_clean() && is_wanted && is_database(&pool)?;
    // Before SQLite takes locks on the file: closing a descriptor would drop them.
    drop(pool);
    let integrity = if holds_database { Some(check_integrity(args)?) } else { None };
    Ok(Findings { report, names, hurt_pages, integrity })
}

/// Which pages are hurt, and whose they are, in each file that is a database as far as can be told.
fn find_hurt_pages(
    pool: &Pool,
    report: &CheckReport,
    names: &HashMap<FileId, String>,
) -> Vec<(String, Owners)> {
    let mut ranges: BTreeMap<FileId, Vec<(u64, u64)>> = BTreeMap::new();
    for problem in &report.problems {
        if let (Some(file), Some(range)) = (problem.file, problem.range) {
            ranges.entry(file).or_default().push(range);
        }
    }
    let owners = |(id, ranges): (FileId, Vec<(u64, u64)>)| {
        let file = pool.file(id).ok()?;
        let mut read = |buf: &mut [u8], offset| file.read_at(buf, offset).is_ok();
        let owners = owners::find(file.len().ok()?, &ranges, &mut read)?;
        Some((name_of(names, id), owners))
    };
    ranges.into_iter().filter_map(owners).collect()
}

fn name_of(names: &HashMap<FileId, String>, file: FileId) -> String {
    names.get(&file).cloned().unwrap_or_else(|| format!("file {}", file.0))
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
    Ok((
        report,
        entries.into_iter().map(|entry| (entry.file, entry.display_name().into_owned())).collect(),
    ))
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
        problem.file.map(|file| name_of(&self.names, file))
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
        let rows: Vec<_> =
            self.hurt_pages.iter().flat_map(|(name, owners)| page_rows(name, owners)).collect();
        if !rows.is_empty() {
            text.push_str(&output::columns(["FILE", "PAGES", "HURT"], rows, 3));
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
            "hurt_pages": self.hurt_pages.iter().map(pages_json).collect::<Value>(),
            "integrity_check": self.integrity,
        })
    }
}

/// Pages that nothing leads to that still reads.
const UNKNOWN_OWNER: &str = "not known: what leads there is hurt";

fn page_rows(name: &str, owners: &Owners) -> Vec<[String; 3]> {
    let row = |owned: &OwnedPages| {
        let (first, last) = (*owned.pages.start(), *owned.pages.end());
        let pages = if first == last { first.to_string() } else { format!("{first} to {last}") };
        [name.into(), pages, owned.owner.clone().unwrap_or_else(|| UNKNOWN_OWNER.into())]
    };
    owners.pages.iter().map(row).collect()
}

fn pages_json((name, owners): &(String, Owners)) -> Value {
    let pages = owners.pages.iter().map(|owned| {
        json!({
            "first": *owned.pages.start(),
            "last": *owned.pages.end(),
            "owner": owned.owner,
        })
    });
    json!({ "file": name, "page_bytes": owners.page_len, "pages": pages.collect::<Value>() })
}
