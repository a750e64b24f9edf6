//! `hardpack check`: every checksum, every tree, free space against what is reachable, and then what
//! SQLite says of each database.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use hardpack::owners::{self, OwnedPages, Owners};
use hardpack_engine::FileId;
use hardpack_engine::pool::{CheckReport, Kind, Pool, Problem, ROOT, RepairReport};
use hardpack_engine::store::Patience;
use serde_json::{Value, json};

use crate::args::CheckArgs;
use crate::failure::{Cannot, Code, Failure, Reason, sqlite_code};
use crate::output::{self, bytes, count};
use crate::progress::{Progress, Spinner};
use crate::{contents, pool_file, signals, sqlite, text};

const TIMEOUT: Duration = Duration::from_secs(10);
/// How many steps SQLite takes between two looks at the signals.
const STEPS_PER_LOOK: i32 = 10_000;
/// The smallest page of a database, in bytes.
const PAGE_LEN_MIN: u64 = 512;

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
    Ok(ExitCode::from(match findings.problem_count() {
        0 if findings.is_clean() => 0,
        // Nothing is wrong as far as could be seen, which is not all.
        0 => Code::InUse as u8,
        _ => Code::Data as u8,
    }))
}

/// What came out.
struct Findings {
    repaired: Option<RepairReport>,
    report: CheckReport,
    names: HashMap<FileId, String>,
    /// The pages of databases that are hurt, by file.
    hurt_pages: Vec<(String, Owners)>,
    /// How many databases `integrity_check` was run on.
    databases: usize,
    /// What it said of them.
    integrity: Vec<String>,
}

/// A database in the pool: what it is called, and under which path SQLite finds it.
struct Database {
    /// Empty where it is the only file of the pool.
    name: String,
    path: PathBuf,
}

/// How long a repair waits for others.
const PATIENCE: Patience = Patience::Within(TIMEOUT);

fn repair(args: &CheckArgs) -> Result<RepairReport, Reason> {
    let pool = pool_file::open_writable(&args.pool, args.work.threads)?;
    let _spinner = Spinner::new("repairing", args.work.quiet);
    let done = pool.repair(PATIENCE, &mut || !signals::is_interrupted())?;
    signals::check()?;
    // Where there was nothing to mend, nothing is written.
    if done != RepairReport::default() {
        pool.store().make_durable()?;
        pool.close()?;
    }
    Ok(done)
}

fn check(args: &CheckArgs) -> Result<Findings, Reason> {
    let repaired = if args.repair { Some(repair(args)?) } else { None };
    let pool = pool_file::open_state(&args.pool, args.rewind.txg, args.work.threads)?;
    let (report, names) = check_pool(args, &pool)?;
    let hurt_pages = find_hurt_pages(&pool, &report, &names);
    // SQLite sees the newest state only.
    let is_wanted = !args.no_integrity_check && args.rewind.txg.is_none() && report.is_clean();
    let databases = if is_wanted { find_databases(args, &pool)? } else { Vec::new() };
    // Before SQLite takes locks on the file: closing a descriptor would drop them.
    drop(pool);
    let mut integrity = Vec::new();
    for database in &databases {
        let prefix = match &database.name[..] {
            "" => String::new(),
            name => format!("{name}: "),
        };
        let lines = check_integrity(args, &database.path)?;
        integrity.extend(lines.into_iter().map(|line| prefix.clone() + &line));
    }
    Ok(Findings { repaired, report, names, hurt_pages, databases: databases.len(), integrity })
}

fn find_databases(args: &CheckArgs, pool: &Pool) -> Result<Vec<Database>, Reason> {
    if let Ok(entry) = pool.only_file() {
        let database = Database { name: String::new(), path: args.pool.clone() };
        let is_database = pool_file::is_database(&*pool.file(entry.file)?)?;
        return Ok(Vec::from_iter(is_database.then_some(database)));
    }
    let mut found = Vec::new();
    let mut seen = HashSet::new();
    pool.walk(ROOT, &mut |path, entry, attributes| {
        // No page of a database is smaller, nor its length anything but whole pages.
        let may_be = entry.kind == Kind::File
            && attributes.len >= PAGE_LEN_MIN
            && attributes.len.is_multiple_of(PAGE_LEN_MIN);
        if may_be && seen.insert(entry.file) {
            let mut head = [0; sqlite::MAGIC.len()];
            pool.file(entry.file)?.read_at(&mut head, 0)?;
            if head == *sqlite::MAGIC {
                let name = text::escaped(path);
                found.push(Database { name, path: contents::database_path(&args.pool, path) });
            }
        }
        Ok(true)
    })?;
    Ok(found)
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
    let hurt: HashSet<FileId> = report.problems.iter().filter_map(|problem| problem.file).collect();
    let name = |file: FileId| Some((file, text::escaped(&pool.path_of(file).ok()?)));
    let names = hurt.into_iter().filter_map(name).collect();
    Ok((report, names))
}

fn check_integrity(args: &CheckArgs, path: &Path) -> Result<Vec<String>, Reason> {
    // A database in write-ahead log mode may need its log recovered, which read-only cannot.
    let _spinner = Spinner::new("integrity_check", args.work.quiet);
    let lines = integrity_lines(path, true).or_else(|error| match sqlite_code(&error) {
        Code::Cannot => integrity_lines(path, false),
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
        self.report.is_clean() && self.report.overtaken.is_empty() && self.integrity.is_empty()
    }

    fn problem_count(&self) -> usize {
        self.report.problems.len() + self.integrity.len()
    }

    fn name(&self, problem: &Problem) -> Option<String> {
        problem.file.map(|file| name_of(&self.names, file))
    }

    fn text(&self, args: &CheckArgs, seconds: f64) -> String {
        let mut text = String::new();
        if let Some(done) = self.repaired.filter(|_| !args.work.quiet) {
            if done.removed > 0 {
                let count = count(done.removed, false);
                text.push_str(&format!("removed {count} entries of files that are gone\n"));
            }
            if done.index_rebuilt {
                text.push_str("the index of content was damaged, and is built anew\n");
            }
        }
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
        for detail in &self.report.overtaken {
            text.push_str(&format!("not checked, it is written to all the time: {detail}\n"));
        }
        for line in &self.integrity {
            text.push_str(&format!("integrity_check: {line}\n"));
        }
        if self.report.repairable > 0 {
            text.push_str(&format!(
                "'hardpack check --repair' mends {} of this, and nothing is lost by it\n",
                count(self.report.repairable, false)
            ));
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
        text.push_str(&match (self.problem_count(), self.databases) {
            (0, _) if !self.is_clean() => "no problems as far as could be seen\n".into(),
            (0, 0) => "no problems\n".into(),
            (0, 1) => "no problems; integrity_check: ok\n".into(),
            (0, n) => format!("no problems; integrity_check of {n} databases: ok\n"),
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
            "overtaken": report.overtaken,
            "repairable": report.repairable,
            "repaired": self.repaired.map(|done| {
                json!({ "removed": done.removed, "index_rebuilt": done.index_rebuilt })
            }),
            "hurt_pages": self.hurt_pages.iter().map(pages_json).collect::<Value>(),
            "databases": self.databases,
            "integrity_check": (self.databases > 0).then_some(&self.integrity),
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
