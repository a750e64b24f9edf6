//! `hardpack check`: verifies every checksum, every tree, free space against reachable extents, and
//! then each database with SQLite's integrity_check.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use hardpack::owners::{self, OwnedPages, Owners};
use hardpack::refusals::{self, Cause, Refusal};
use hardpack_engine::pool::{CheckReport, Kind, Pool, Problem, ROOT, RepairReport};
use hardpack_engine::store::Patience;
use hardpack_engine::{Error, FileId};
use serde_json::{Value, json};

use crate::args::CheckArgs;
use crate::failure::{Cannot, Code, Failure, Reason, sqlite_code};
use crate::output::{self, bytes, count};
use crate::progress::{Progress, Spinner};
use crate::{contents, pool_file, sidecars, signals, sqlite, text, users};

const TIMEOUT: Duration = Duration::from_secs(10);
/// The number of SQLite's steps between two checks for signals.
const STEPS_PER_LOOK: i32 = 10_000;
/// The number of names under which a database is looked for that others move.
const NAMES_MAX: usize = 5;
/// The smallest page size of a database, in bytes.
const PAGE_LEN_MIN: u64 = 512;

pub fn run(args: &CheckArgs) -> Result<ExitCode, Failure> {
    signals::catch("nothing was changed, or with --repair, only what was repaired");
    if args.states {
        return super::rewind::list_states(args).cannot("check", text::path(&args.pool));
    }
    let began = Instant::now();
    let findings = check(args).cannot("check", text::path(&args.pool))?;
    let seconds = began.elapsed().as_secs_f64();
    let done = if args.work.json {
        output::print_json(&findings.json(args, seconds))
    } else {
        output::print(findings.text(args, seconds))
    };
    done.cannot("report on", text::path(&args.pool))?;
    if findings.problem_count() == 0
        && let Some(why) = findings.locked.clone()
    {
        return Err(Reason::new(Code::InUse, why)).cannot("check", text::path(&args.pool));
    }
    Ok(ExitCode::from(match findings.problem_count() {
        0 if findings.is_clean() => 0,
        // No problems were found, but not everything could be checked.
        0 => Code::InUse as u8,
        _ => Code::Data as u8,
    }))
}

/// The result of a check.
struct Findings {
    repaired: Option<RepairReport>,
    report: CheckReport,
    names: HashMap<FileId, Vec<u8>>,
    /// The damaged pages of databases, by file.
    hurt_pages: Vec<(Vec<u8>, Owners)>,
    /// The number of databases that `integrity_check` ran on.
    databases: usize,
    /// The problems that `integrity_check` reported.
    integrity: Vec<(Vec<u8>, String)>,
    /// The databases that `integrity_check` cannot run on here, and why.
    foreign: Vec<(Vec<u8>, String)>,
    /// The databases that SQLite cannot open or lock, and why.
    out_of_reach: Vec<(Vec<u8>, String)>,
    /// Why one of these can be checked later.
    locked: Option<String>,
}

/// What SQLite has to say about a database.
enum Verdict {
    /// It was checked, with these problems.
    Checked(Vec<String>),
    /// It needs something that only its program brings along.
    Foreign(String),
    /// SQLite cannot open it under this name, or somebody keeps everybody else from using it.
    OutOfReach(String),
    /// Somebody held a lock for longer than this waits.
    Locked(String),
    /// It was removed meanwhile.
    Gone,
}

/// How SQLite begins to say that a database needs a function, a collation, a module or a tokenizer
/// that only a program defines. Of a tokenizer it says nothing more.
const FOREIGN: [&str; 5] = [
    "unknown function",
    "no such function",
    "no such collation sequence",
    "no such module",
    "SQL logic error",
];

/// A database in the pool: its name, and the path by which SQLite opens it.
struct Database {
    /// Empty if it is the only file of the pool.
    name: Vec<u8>,
    path: PathBuf,
    file: FileId,
    /// It has a log or journal that holds changes.
    has_log: bool,
}

/// How long a repair waits for other processes.
const PATIENCE: Patience = Patience::Within(TIMEOUT);

fn repair(args: &CheckArgs) -> Result<RepairReport, Reason> {
    let pool = pool_file::open_even_cut(&args.pool, args.work.threads)?;
    let _spinner = Spinner::new("repairing", args.work.quiet);
    let done = pool.repair(PATIENCE, &mut || !signals::is_interrupted())?;
    signals::check()?;
    // If there was nothing to repair, nothing is written.
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
    // SQLite sees only the newest state.
    let is_wanted = !args.no_integrity_check && args.rewind.txg.is_none() && report.is_clean();
    let databases = if is_wanted { find_databases(args, &pool)? } else { Vec::new() };
    // Closed before SQLite takes locks on the file: closing a descriptor would drop them.
    drop(pool);
    let (mut integrity, mut foreign, mut out_of_reach) = (Vec::new(), Vec::new(), Vec::new());
    let (mut checked, mut locked) = (0, None);
    for database in &databases {
        let name = || database.name.clone();
        match check_where_it_is(args, database)? {
            Verdict::Checked(lines) => {
                checked += 1;
                integrity.extend(lines.into_iter().map(|it| (name(), it)));
            }
            Verdict::Foreign(why) => foreign.push((name(), why)),
            Verdict::OutOfReach(why) => out_of_reach.push((name(), why)),
            Verdict::Locked(why) => {
                locked.get_or_insert_with(|| why.clone());
                out_of_reach.push((name(), why));
            }
            Verdict::Gone => {}
        }
    }
    Ok(Findings {
        repaired,
        report,
        names,
        hurt_pages,
        databases: checked,
        integrity,
        foreign,
        out_of_reach,
        locked,
    })
}

fn find_databases(args: &CheckArgs, pool: &Pool) -> Result<Vec<Database>, Reason> {
    if let Ok(entry) = pool.only_file() {
        let has_log = sidecars::sidecar_at(&args.pool, pool, entry.file)?.is_some();
        let database =
            Database { name: Vec::new(), path: args.pool.clone(), file: entry.file, has_log };
        let is_database = pool_file::is_database(&*pool.file(entry.file)?)?;
        return Ok(Vec::from_iter(is_database.then_some(database)));
    }
    let mut found = Vec::new();
    let mut seen = HashSet::new();
    pool.walk(ROOT, &mut |path, entry, attributes| {
        // The length of a database is a positive number of whole pages.
        let may_be = entry.kind == Kind::File
            && attributes.len >= PAGE_LEN_MIN
            && attributes.len.is_multiple_of(PAGE_LEN_MIN);
        if may_be && seen.insert(entry.file) && is_database(pool, entry.file)? {
            let name = path.to_vec();
            let has_log = sidecars::sidecar_at(&args.pool, pool, entry.file)?.is_some();
            let path = contents::database_path(&args.pool, path);
            found.push(Database { name, path, file: entry.file, has_log });
        }
        Ok(true)
    })?;
    Ok(found)
}

/// Whether a file is still there, and a database.
fn is_database(pool: &Pool, file: FileId) -> Result<bool, Error> {
    let mut head = [0; sqlite::MAGIC.len()];
    match pool.file(file).and_then(|file| file.read_at(&mut head, 0)) {
        Err(Error::NotFound { .. }) => Ok(false),
        read => read.map(|_| head == *sqlite::MAGIC),
    }
}

/// Finds the damaged pages, and their owners, in each file that appears to be a database.
fn find_hurt_pages(
    pool: &Pool,
    report: &CheckReport,
    names: &HashMap<FileId, Vec<u8>>,
) -> Vec<(Vec<u8>, Owners)> {
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

fn name_of(names: &HashMap<FileId, Vec<u8>>, file: FileId) -> Vec<u8> {
    names.get(&file).cloned().unwrap_or_else(|| format!("file {}", file.0).into_bytes())
}

fn check_pool(
    args: &CheckArgs,
    pool: &Pool,
) -> Result<(CheckReport, HashMap<FileId, Vec<u8>>), Reason> {
    let state = pool.state();
    let total = state.stats().data().stored + state.stats().nodes.stored;
    let mut progress = Progress::new("checking".into(), total, args.work.quiet);
    let report = pool.check(&mut |done| {
        progress.at(done);
    })?;
    progress.finish();
    // If the names cannot be read, that is among the problems.
    let hurt: HashSet<FileId> = report.problems.iter().filter_map(|problem| problem.file).collect();
    let name = |file: FileId| Some((file, pool.path_of(file).ok()?));
    let names = hurt.into_iter().filter_map(name).collect();
    Ok((report, names))
}

/// Checks a database under the name that it has now: others may have moved, removed or replaced it
/// since it was found.
fn check_where_it_is(args: &CheckArgs, database: &Database) -> Result<Verdict, Reason> {
    let mut path = database.path.clone();
    for _ in 0..NAMES_MAX {
        let reason = match check_integrity(args, database, &path) {
            Err(reason) if matches!(reason.code, Code::Cannot | Code::NotAPool) => reason,
            Err(reason) if reason.code == Code::InUse => return Ok(Verdict::Locked(reason.text)),
            done => return done,
        };
        match path_now(args, database.file)? {
            None => return Ok(Verdict::Gone),
            Some(now) if now != path => path = now,
            Some(_) if reason.code == Code::NotAPool => {
                return Ok(Verdict::Checked(vec![reason.text]));
            }
            Some(_) if sqlite::is_too_long(&path) => {
                return Ok(Verdict::OutOfReach(sqlite::TOO_LONG.into()));
            }
            Some(_) => return Err(reason),
        }
    }
    Ok(Verdict::Locked("it is moved all the time".into()))
}

/// Returns the path by which SQLite opens a file now, if it is still a database.
fn path_now(args: &CheckArgs, file: FileId) -> Result<Option<PathBuf>, Reason> {
    let pool = pool_file::open_state(&args.pool, None, args.work.threads)?;
    if !is_database(&pool, file)? {
        return Ok(None);
    }
    if pool.only_file().is_ok_and(|only| only.file == file) {
        return Ok(Some(args.pool.clone()));
    }
    match pool.path_of(file) {
        Ok(path) => Ok(Some(contents::database_path(&args.pool, &path))),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn check_integrity(args: &CheckArgs, database: &Database, path: &Path) -> Result<Verdict, Reason> {
    let _spinner = Spinner::new("integrity_check", args.work.quiet);
    // A log is neither recovered nor moved into the pool, if SQLite can do without. Where there is
    // none, a connection that may write changes nothing, and removes the empty files that SQLite
    // makes next to a database in write-ahead log mode; one that only reads would leave them.
    let ways = if database.has_log { [true, false] } else { [false, true] };
    let had_memory = sidecars::shared_memory(&args.pool, database.file).exists();
    let lines = integrity_lines(path, ways[0]).or_else(|error| match sqlite_code(&error) {
        Code::Cannot => integrity_lines(path, ways[1]),
        _ => Err(error),
    });
    if !had_memory {
        // A connection that only reads leaves it. If it stays, the next user takes it over.
        let _ = users::remove_unused_memory(&args.pool, database.file);
    }
    match lines {
        Ok(lines) if lines == ["ok"] => Ok(Verdict::Checked(Vec::new())),
        Ok(lines) => Ok(Verdict::Checked(lines)),
        Err(error) if sqlite_code(&error) == Code::Data => {
            Ok(Verdict::Checked(vec![Reason::from(error).text]))
        }
        Err(error) => {
            match refusals::take() {
                Some(Refusal { cause: Cause::Mount | Cause::NoLog | Cause::BlockDevice, text }) => {
                    return Ok(Verdict::OutOfReach(text));
                }
                Some(refusal) => return Ok(Verdict::Locked(refusal.text)),
                None => {}
            }
            let reason = Reason::from(error);
            match FOREIGN.iter().any(|what| reason.text.starts_with(what)) {
                true => Ok(Verdict::Foreign(reason.text)),
                false => Err(reason),
            }
        }
    }
}

fn integrity_lines(path: &Path, read_only: bool) -> rusqlite::Result<Vec<String>> {
    let mut db = sqlite::open_pool(path, read_only, TIMEOUT)?;
    db.progress_handler(STEPS_PER_LOOK, Some(signals::is_interrupted))?;
    // SQLite reports pages that it cannot read as damage, also where the connection has held its
    // state for longer than `reader-pin-max` allows. So this asks in the end whether it still has.
    let state = db.transaction()?;
    let lines = {
        let mut statement = state.prepare("PRAGMA integrity_check")?;
        statement.query_map([], |row| row.get(0))?.collect()
    };
    state.query_row("PRAGMA hardpack_txg", [], |_| Ok(()))?;
    lines
}

impl Findings {
    fn is_clean(&self) -> bool {
        self.report.is_clean()
            && self.report.overtaken.is_empty()
            && self.integrity.is_empty()
            && self.locked.is_none()
    }

    fn problem_count(&self) -> usize {
        self.report.problems.len() + self.integrity.len()
    }

    fn name(&self, problem: &Problem) -> Option<Vec<u8>> {
        problem.file.map(|file| name_of(&self.names, file))
    }

    fn text(&self, args: &CheckArgs, seconds: f64) -> String {
        let mut text = String::new();
        if let Some(done) = self.repaired.filter(|_| !args.work.quiet) {
            if done.removed > 0 {
                let count = count(done.removed, false);
                text.push_str(&format!("removed {count} entries of files that no longer exist\n"));
            }
            if done.lengthened {
                text.push_str(
                    "gave the pool, which was cut short, its length again: no data was lost\n",
                );
            }
            if done.index_rebuilt {
                text.push_str("rebuilt the index of content, which was damaged\n");
            }
        }
        for problem in &self.report.problems {
            let name = self.name(problem).map(|name| text::escaped(&name));
            let place = match (name, problem.range) {
                (Some(name), Some((from, to))) => format!("{name}, bytes {from} to {to}: "),
                (Some(name), None) => format!("{name}: "),
                (None, _) => String::new(),
            };
            text.push_str(&format!("{place}{}\n", text::line(&problem.detail)));
        }
        let rows: Vec<_> =
            self.hurt_pages.iter().flat_map(|(name, owners)| page_rows(name, owners)).collect();
        if !rows.is_empty() {
            text.push_str(&output::columns(["FILE", "DAMAGED PAGES", "OWNER"], rows, 3));
        }
        for detail in &self.report.overtaken {
            text.push_str(&format!(
                "not checked, because it is being written to all the time: {detail}\n"
            ));
        }
        for (name, line) in &self.integrity {
            let name = if name.is_empty() { String::new() } else { text::escaped(name) + ": " };
            text.push_str(&format!("integrity_check: {name}{}\n", text::line(line)));
        }
        for (name, why) in self.foreign.iter().filter(|_| !args.work.quiet) {
            let name = if name.is_empty() { String::new() } else { text::escaped(name) + ": " };
            let why = text::line(why);
            text.push_str(&format!(
                "integrity_check: {name}only its own program can run it: {why}\n"
            ));
        }
        for (name, why) in
            self.out_of_reach.iter().filter(|_| !args.work.quiet || self.locked.is_some())
        {
            let name = if name.is_empty() { String::new() } else { text::escaped(name) + ": " };
            let why = text::line(why);
            text.push_str(&format!("integrity_check: {name}not checked: {why}\n"));
        }
        if self.report.repairable > 0 {
            text.push_str(&format!(
                "'hardpack check --repair' repairs {} of these without losing data\n",
                count(self.report.repairable, false)
            ));
        }
        if self.is_clean() && args.work.quiet {
            return text;
        }
        let report = &self.report;
        text.push_str(&format!(
            "{}: {} records and {} tree nodes, {} read and verified in {seconds:.1} s\n",
            text::path(&args.pool),
            count(report.records, false),
            count(report.nodes, false),
            bytes(report.bytes, false),
        ));
        text.push_str(&match (self.problem_count(), self.databases) {
            (0, _) if !self.is_clean() => "no problems in what could be checked\n".into(),
            (0, 0) => "no problems\n".into(),
            (0, 1) => "no problems; integrity_check: ok\n".into(),
            (0, n) => format!("no problems; integrity_check of {n} databases: ok\n"),
            (1, _) => "1 problem\n".into(),
            (n, _) => format!("{n} problems\n"),
        });
        text
    }

    /// SQLite's findings, each line prefixed with its database, for programs.
    fn lines<'l>(found: impl IntoIterator<Item = &'l (Vec<u8>, String)>) -> Vec<String> {
        let line = |(name, line): &(Vec<u8>, String)| match &name[..] {
            [] => line.clone(),
            name => format!("{}: {line}", lossy(name)),
        };
        found.into_iter().map(line).collect()
    }

    fn json(&self, args: &CheckArgs, seconds: f64) -> Value {
        let report = &self.report;
        let problems = report.problems.iter().map(|problem| {
            json!({
                "file": self.name(problem).map(|name| lossy(&name)),
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
                json!({
                    "removed": done.removed,
                    "index_rebuilt": done.index_rebuilt,
                    "lengthened": done.lengthened,
                })
            }),
            "hurt_pages": self.hurt_pages.iter().map(pages_json).collect::<Value>(),
            "databases": self.databases,
            "integrity_check": (self.databases > 0).then(|| Self::lines(&self.integrity)),
            "integrity_unchecked": Self::lines(self.foreign.iter().chain(&self.out_of_reach)),
        })
    }
}

/// The owner of pages that no readable page leads to.
const UNKNOWN_OWNER: &str = "unknown: the pages that lead there are damaged";

fn lossy(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

fn page_rows(name: &[u8], owners: &Owners) -> Vec<[String; 3]> {
    let row = |owned: &OwnedPages| {
        let (first, last) = (*owned.pages.start(), *owned.pages.end());
        let pages = if first == last { first.to_string() } else { format!("{first} to {last}") };
        [text::escaped(name), pages, text::line(owned.owner.as_deref().unwrap_or(UNKNOWN_OWNER))]
    };
    owners.pages.iter().map(row).collect()
}

fn pages_json((name, owners): &(Vec<u8>, Owners)) -> Value {
    let pages = owners.pages.iter().map(|owned| {
        json!({
            "first": *owned.pages.start(),
            "last": *owned.pages.end(),
            "owner": owned.owner,
        })
    });
    json!({ "file": lossy(name), "page_bytes": owners.page_len, "pages": pages.collect::<Value>() })
}
