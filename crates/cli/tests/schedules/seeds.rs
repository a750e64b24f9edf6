//! Random orders: several processes use the databases of a pool, with threads, hard links, forks
//! and kills, while commands change the databases and the pool is renamed. A model says which
//! results are allowed:
//!
//! * an acknowledged transaction is present, unless a command that replaces its database succeeded
//!   and had not ended before the acknowledgement;
//! * nothing uncommitted is present, and no transaction in part;
//! * one transaction of a database at a time holds its locks;
//! * a copy contains everything acknowledged before copying began, and nothing begun after it;
//! * a refused command has changed nothing;
//! * a process that is not killed gets only the results done, busy, or "no longer the database you
//!   opened".
//!
//! `HARDPACK_SCHEDULE_SEED=n` runs one seed and prints all of its calls, `HARDPACK_SCHEDULES=n`
//! runs that many seeds.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use hardpack::refusals::Cause;

use super::is_open;
use super::pools::{self, Start, Tokens};
use super::random::Random;
use super::uses::hardpack_command;
use super::worker;
use super::world::{Event, Order, Worker, World};

const SEED: &str = "HARDPACK_SCHEDULE_SEED";
const COUNT: &str = "HARDPACK_SCHEDULES";
/// The number of seeds in a test run, and the first of them.
const DEFAULT_COUNT: u64 = 200;
const FIRST_SEED: u64 = 1;
/// The databases in the pool.
const DATABASES: [&str; 3] = ["x.db", "y.db", "d/z.db"];
/// The exit code of a killed process.
const KILLED: i32 = 128 + libc::SIGKILL;
/// The last step at which an external action may happen.
const OUTSIDE_STEP_MAX: u64 = 400;

/// Seeds that found a defect, and the defect's number, which is in [`super::OPEN`] until it is
/// fixed.
const FOUND: &[(u64, u32)] = &[
    (16, 6),
    (28, 6),
    (69, 6),
    (130, 3),
    (148, 6),
    (163, 6),
    (169, 6),
    (178, 6),
    (179, 6),
    (214, 2),
    (225, 6),
    (228, 6),
    (289, 6),
    (291, 6),
    (320, 6),
    (321, 6),
    (326, 6),
    (328, 2),
    (339, 6),
    (343, 6),
    (353, 6),
    (363, 6),
    (372, 6),
    (383, 6),
    (384, 6),
    (386, 4),
    (392, 6),
    (398, 6),
    (406, 6),
    (411, 6),
    (438, 6),
    (486, 6),
    (503, 6),
    (523, 6),
    (534, 3),
    (545, 2),
    (573, 6),
    (585, 6),
];

/// An external action after a number of steps.
#[derive(Clone, Debug)]
enum Outside {
    Start(usize),
    Kill(usize),
    Rename,
}

#[derive(Clone, Debug)]
struct Job {
    arguments: Vec<String>,
    input: Option<String>,
    /// The databases it replaces, with their new content.
    replaces: Vec<(&'static str, Option<Tokens>)>,
    /// The copy it makes, and the copied database.
    copies: Option<(String, &'static str)>,
}

impl Job {
    /// Whether it may give a database a second name, or another's name.
    fn makes_names_of_one(&self) -> bool {
        ["mv", "ln"].contains(&self.arguments[0].as_str())
    }
}

/// Everything that a seed decides.
#[derive(Clone, Debug)]
struct Plan {
    mode: &'static str,
    has_link: bool,
    scripts: Vec<String>,
    jobs: Vec<Job>,
    outside: Vec<(u64, Outside)>,
    order: Order,
    stops_at_reads: bool,
}

fn with(tokens: &[&str]) -> Option<Tokens> {
    let mut all = pools::base_tokens();
    all.extend(tokens.iter().map(|token| token.to_string()));
    Some(all)
}

fn first_tokens(database: &str) -> Tokens {
    with(if database == "d/z.db" { &["z"] } else { &["worked"] }).unwrap()
}

fn script(random: &mut Random, index: usize, has_link: bool) -> String {
    let threads = if random.below(3) == 0 { 2 } else { 1 };
    let database = *random.of(&DATABASES);
    let mut texts = Vec::new();
    for thread in 0..threads {
        let database = if random.below(4) == 0 { *random.of(&DATABASES) } else { database };
        let pool = if has_link && random.below(2) == 0 { "h.hpk" } else { "p.hpk" };
        let mut text = format!("open x {pool}/{database}\n");
        for line in 0..1 + random.below(4) {
            let token = format!("w{index}-{thread}-{line}");
            text += &match random.below(10) {
                0 => "read x\nend x\n".to_string(),
                1 => format!("close x\nopen x {pool}/{database}\ntx x {token}\n"),
                2 => format!("fork\ntx x {token}\n"),
                3 => format!("begin x\nput x {token}\nrollback x\n"),
                4 => "sql x pragma wal_checkpoint\n".to_string(),
                _ => format!("tx x {token}\n"),
            };
        }
        texts.push(text);
    }
    texts.join("---\n")
}

fn job(text: &str) -> Job {
    let arguments = text.split(' ').map(String::from).collect();
    Job { arguments, input: None, replaces: Vec::new(), copies: None }
}

/// Draws a command that replaces a database.
fn replacing_job(random: &mut Random, txg: u64) -> Job {
    let target = *random.of(&["x.db", "y.db"]);
    let of = |text: String, tokens| Job { replaces: vec![(target, tokens)], ..job(&text) };
    let all = |text: String| Job {
        replaces: vec![("x.db", with(&[])), ("y.db", with(&[])), ("d/z.db", with(&["z"]))],
        ..job(&text)
    };
    match random.below(10) {
        0 => of(format!("rollback p.hpk/{target}@base"), with(&[])),
        1 => all("rollback p.hpk@base".into()),
        2 | 3 => Job {
            input: Some(format!("next-{target}")),
            ..of(format!("receive -q -F p.hpk/{target}"), with(&["next"]))
        },
        4 | 5 => all(format!("rewind -q p.hpk {txg}")),
        6 => {
            let mut job = of(format!("mv p.hpk/d/z.db p.hpk/{target}"), with(&["z"]));
            job.replaces.push(("d/z.db", None));
            job
        }
        7 => of(format!("rm p.hpk/{target}"), None),
        8 => of(format!("ln -f p.hpk/d/z.db p.hpk/{target}"), with(&["z"])),
        _ => of(format!("put -q other.db p.hpk/{target}"), with(&["other"])),
    }
}

fn harmless_job(random: &mut Random) -> Job {
    let target = *random.of(&DATABASES);
    let copying =
        |text: String, copy: &str| Job { copies: Some((copy.into(), target)), ..job(&text) };
    match random.below(12) {
        0 => job("check -q p.hpk"),
        1 => job("compact -q p.hpk"),
        2 => job("fold -q p.hpk"),
        3 => job("repack -q p.hpk"),
        4 => copying(format!("unpack -q p.hpk/{target} out.db"), "out.db"),
        5 => copying(format!("snapshot p.hpk/{target}@new"), &format!("p.hpk/{target}@new")),
        6 => copying("snapshot p.hpk@new".into(), &format!("p.hpk@new/{target}")),
        7 | 8 => copying(format!("clone p.hpk/{target} p.hpk/copy.db"), "p.hpk/copy.db"),
        9 => job("put -q -T in p.hpk/in"),
        10 => job("optimize -q p.hpk"),
        _ => job(&format!("set compression=lz4 p.hpk/{target}")),
    }
}

fn plan(seed: u64, txg: u64) -> Plan {
    let mut random = Random(seed.wrapping_mul(0x1000_0000_01b3));
    let mode = *random.of(&["delete", "truncate", "wal", "wal"]);
    let has_link = random.below(3) == 0;
    let count = 1 + random.below(3) as usize;
    if random.below(8) == 0 {
        return plan_of_threads(&mut random);
    }
    let scripts: Vec<String> = (0..count).map(|i| script(&mut random, i, has_link)).collect();
    let mut jobs = Vec::new();
    if random.below(2) == 0 {
        jobs.push(replacing_job(&mut random, txg));
    }
    for _ in 0..random.below(3) {
        jobs.push(harmless_job(&mut random));
    }
    let mut outside: Vec<(u64, Outside)> =
        (0..jobs.len()).map(|i| (random.below(OUTSIDE_STEP_MAX), Outside::Start(i))).collect();
    if random.below(3) == 0 {
        // Either a script or a job.
        let who = random.below((count + jobs.len()) as u64) as usize;
        outside.push((random.below(OUTSIDE_STEP_MAX), Outside::Kill(who)));
    }
    // Not in WAL mode, since the log would keep the old name, as with any database.
    if random.below(8) == 0 && mode != "wal" {
        outside.push((random.below(OUTSIDE_STEP_MAX), Outside::Rename));
    }
    outside.sort_by_key(|(step, _)| *step);
    let order = match random.below(3) {
        0 => Order::Points((0..3).map(|_| random.below(OUTSIDE_STEP_MAX)).collect()),
        1 => Order::Random(20),
        _ => Order::Random(250),
    };
    let stops_at_reads = random.below(4) == 0;
    Plan { mode, has_link, scripts, jobs, outside, order, stops_at_reads }
}

/// A plan of threads of one process, and other processes, that open and close one database.
fn plan_of_threads(random: &mut Random) -> Plan {
    let thread = |name: &str| {
        format!("open x p.hpk/y.db\ntx x {name}-0\nclose x\nopen x p.hpk/y.db\ntx x {name}-1\n")
    };
    let scripts =
        vec![format!("{}---\n{}", thread("w0-0"), thread("w0-1")), thread("w1"), thread("w2")];
    let order = match random.below(2) {
        0 => Order::Points((0..4).map(|_| random.below(OUTSIDE_STEP_MAX)).collect()),
        _ => Order::Random(100),
    };
    Plan {
        mode: random.of::<&str>(&["delete", "truncate"]),
        has_link: false,
        scripts,
        jobs: Vec::new(),
        outside: Vec::new(),
        order,
        stops_at_reads: false,
    }
}

/// A finished run, to be judged.
struct Run {
    world: World,
    plan: Plan,
    /// The started jobs.
    jobs: BTreeMap<usize, Worker>,
    pool: PathBuf,
    // Dropped last.
    _made: pools::Made,
}

fn run(seed: u64) -> Result<Run, String> {
    // The mode does not depend on the txg.
    let mode = plan(seed, 0).mode;
    let made = pools::new_directory(mode, Start::Worked);
    let plan = plan(seed, made.txg);
    let mut world = World::new(made.directory.path(), seed);
    world.stops_at_reads = plan.stops_at_reads;
    if plan.has_link {
        fs::hard_link(world.dir().join("p.hpk"), world.dir().join("h.hpk")).unwrap();
    }
    let mut workers = Vec::new();
    for (index, script) in plan.scripts.iter().enumerate() {
        workers.push(world.start(&format!("w{index}"), &mut worker::command(script)));
    }
    let (mut jobs, mut renamed) = (BTreeMap::new(), false);
    let mut outside = plan.outside.clone();
    let mut between = |world: &mut World| {
        // Remaining actions happen when all threads have ended.
        while !outside.is_empty() && (world.steps() >= outside[0].0 || world.is_over()) {
            match outside.remove(0).1 {
                Outside::Kill(who) => {
                    let job = || jobs.get(&(who - workers.len())).copied();
                    if let Some(worker) = workers.get(who).copied().or_else(job) {
                        world.kill(worker);
                    }
                }
                Outside::Rename => {
                    let dir = world.dir().to_path_buf();
                    world.note("the pool is renamed");
                    fs::rename(dir.join("p.hpk"), dir.join("q.hpk")).unwrap();
                    renamed = true;
                }
                Outside::Start(index) => {
                    let job = &plan.jobs[index];
                    let now = if renamed { "q.hpk" } else { "p.hpk" };
                    let arguments = job.arguments.iter().map(|text| text.replace("p.hpk", now));
                    let arguments: Vec<String> = arguments.collect();
                    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
                    let mut command = hardpack_command(&arguments);
                    if let Some(input) = &job.input {
                        let file = fs::File::open(world.dir().join(input)).unwrap();
                        command.stdin(file);
                    }
                    jobs.insert(index, world.start(&job.arguments[0], &mut command));
                }
            }
        }
    };
    world.run_all(&plan.order, &mut between)?;
    let pool = world.dir().join(if renamed { "q.hpk" } else { "p.hpk" });
    Ok(Run { world, plan, jobs, pool, _made: made })
}

/// The fate of a transaction.
struct Transaction {
    began: usize,
    /// The event that acknowledged it.
    acknowledged: Option<usize>,
    /// Whether its process was killed before learning the result.
    is_open: bool,
}

impl Run {
    /// Collects the transactions of each database from the workers' reports.
    fn transactions(
        &self,
    ) -> Result<BTreeMap<&'static str, BTreeMap<String, Transaction>>, String> {
        let mut all: BTreeMap<&'static str, BTreeMap<String, Transaction>> = BTreeMap::new();
        let mut holders: BTreeMap<&'static str, String> = BTreeMap::new();
        let is_replaced = |database: &str| {
            self.jobs.iter().any(|(i, worker)| {
                self.world.code(*worker) == Some(0)
                    && self.plan.jobs[*i].replaces.iter().any(|(of, _)| *of == database)
            })
        };
        for (at, event) in self.world.events.iter().enumerate() {
            let (worker, line) = match event {
                Event::Said(worker, line) => (worker, line),
                Event::Ended(worker, _) => {
                    let name = format!("{}:", worker.0);
                    holders.retain(|_, holder| !holder.starts_with(&name));
                    continue;
                }
                Event::Began(_) => continue,
            };
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["has", path, token] => {
                    let database = database_of(path);
                    let new = Transaction { began: at, acknowledged: None, is_open: true };
                    all.entry(database).or_default().insert(token.into(), new);
                    let holder = format!("{}:{token}", worker.0);
                    if let Some(other) = holders.insert(database, holder.clone())
                        && !is_replaced(database)
                    {
                        return Err(format!("{other} and {holder} both write {database}"));
                    }
                }
                ["leaves", path, _] => {
                    holders.remove(database_of(path));
                }
                ["ok", "tx", _, token] => {
                    let found = all.values_mut().find_map(|of| of.get_mut(token)).unwrap();
                    found.acknowledged = Some(at);
                    found.is_open = false;
                }
                ["busy" | "gone" | "fail", "tx", _, token, ..] => {
                    let token = token.trim_end_matches(':');
                    if let Some(found) = all.values_mut().find_map(|of| of.get_mut(token)) {
                        found.is_open = false;
                    }
                    let name = format!("{}:{token}", worker.0);
                    holders.retain(|_, holder| *holder != name);
                    if words[0] == "fail" && !self.may_fail() {
                        return Err(format!("{}: {line}", self.world.name(*worker)));
                    }
                }
                // A killed user of the other name may have left a log next to it.
                ["fail", "open", ..]
                    if self.plan.has_link && line.contains(": 14 unable to open") => {}
                ["fail", ..] if !self.may_fail() => {
                    return Err(format!("{}: {line}", self.world.name(*worker)));
                }
                _ if line.contains("panicked") => return Err(line.clone()),
                _ => {}
            }
        }
        Ok(all)
    }

    /// Whether a worker's database may have been replaced or renamed.
    fn may_fail(&self) -> bool {
        self.plan.jobs.iter().any(|job| !job.replaces.is_empty()) || self.is_renamed()
    }

    fn is_renamed(&self) -> bool {
        self.pool.ends_with("q.hpk")
    }

    /// Returns the new pool under the old name, if a command created one.
    fn new_pool(&self) -> Option<PathBuf> {
        let path = self.pool.with_file_name("p.hpk");
        (self.is_renamed() && path.exists()).then_some(path)
    }

    /// Whether a command that made this copy acted on a new pool, so that it copied none of the
    /// databases. A snapshot of the whole pool is the only copy that succeeds there: a `receive`
    /// that is refused, for example, leaves its new pool behind if others have opened it.
    fn is_in_new_pool(&self, copy: &str) -> Result<bool, String> {
        let name = copy.strip_prefix("p.hpk@").and_then(|rest| rest.split('/').next());
        match (name, self.new_pool()) {
            (Some(name), Some(pool)) => pools::has_snapshot(&pool, name),
            _ => Ok(false),
        }
    }

    /// The events at which a process began and ended.
    fn span(&self, worker: Worker) -> (usize, usize) {
        let at = |wanted: &dyn Fn(&Event) -> bool| {
            self.world.events.iter().position(wanted).unwrap_or(usize::MAX)
        };
        (
            at(&|event| *event == Event::Began(worker)),
            at(&|event| matches!(event, Event::Ended(of, _) if *of == worker)),
        )
    }

    fn judge(&self) -> Result<(), String> {
        let transactions = self.transactions()?;
        for (index, worker) in &self.jobs {
            let (job, code) = (&self.plan.jobs[*index], self.world.code(*worker).unwrap());
            let text = self.world.err(*worker);
            // The space of an older state may have been reused.
            let is_lost = job.arguments[0] == "rewind" && code == 1 && text.contains("is damaged");
            if ![0, 3, 5, KILLED].contains(&code) && !is_lost && !self.is_renamed() {
                let out = String::from_utf8_lossy(self.world.out_bytes(*worker)).into_owned();
                return Err(format!("{:?} ended with {code}: {text}{out}", job.arguments));
            }
        }
        for database in DATABASES {
            self.judge_database(database, &transactions)?;
        }
        for (index, worker) in &self.jobs {
            let Some((copy, database)) = &self.plan.jobs[*index].copies else { continue };
            let is_replaced =
                self.plan.jobs.iter().any(|j| {
                    j.makes_names_of_one() || j.replaces.iter().any(|(of, _)| of == database)
                });
            if self.world.code(*worker) != Some(0) || is_replaced {
                continue;
            }
            if self.is_in_new_pool(copy)? {
                continue;
            }
            let copy = copy.replace("p.hpk", &self.pool.display().to_string());
            let found = pools::tokens(&self.world.dir().join(copy))?;
            let span = self.span(*worker);
            let mut least = first_tokens(database);
            let mut most = least.clone();
            for (token, transaction) in transactions.get(database).into_iter().flatten() {
                if transaction.acknowledged.is_some_and(|at| at < span.0) {
                    least.insert(token.clone());
                }
                if transaction.began < span.1 {
                    most.insert(token.clone());
                }
            }
            within(
                &format!("the copy by {:?}", self.plan.jobs[*index].arguments),
                &found,
                &least,
                &most,
            )?;
        }
        self.new_pool().map_or(Ok(()), |pool| pools::check(&pool))?;
        pools::check(&self.pool)
    }

    fn judge_database(
        &self,
        database: &'static str,
        all: &BTreeMap<&'static str, BTreeMap<String, Transaction>>,
    ) -> Result<(), String> {
        // The command that replaced it, and when.
        let replaced = self.jobs.iter().find_map(|(index, worker)| {
            // After a rename of the pool, `put` creates a new one.
            if self.plan.jobs[*index].arguments[0] == "put" && self.new_pool().is_some() {
                return None;
            }
            let of = &self.plan.jobs[*index].replaces;
            let (_, tokens) = of.iter().find(|(of, _)| *of == database)?;
            let code = self.world.code(*worker);
            let is_possible = code == Some(0) || code == Some(KILLED);
            is_possible.then(|| (tokens.clone(), self.span(*worker), code))
        });
        // A killed command may have replaced it or not.
        let either = match replaced {
            Some((tokens, span, Some(KILLED))) => [Some(None), Some(Some((tokens, span)))],
            Some((tokens, span, _)) => [Some(Some((tokens, span))), None],
            None => [Some(None), None],
        };
        let judged = either.into_iter().flatten().map(|one| self.judge_as(database, all, one));
        judged.reduce(|one, other| one.or(other)).unwrap()
    }

    /// Judges a database under the assumption that it was, or was not, replaced as `replaced` says.
    fn judge_as(
        &self,
        database: &'static str,
        all: &BTreeMap<&'static str, BTreeMap<String, Transaction>>,
        replaced: Option<(Option<Tokens>, (usize, usize))>,
    ) -> Result<(), String> {
        let transactions = all.get(database);
        let path = self.pool.join(database);
        let (first, since) = match replaced {
            None => (first_tokens(database), None),
            // It was removed, and may have been created again by a worker that opened it.
            Some((None, _)) => return Ok(()),
            Some((Some(tokens), span)) => (tokens, Some(span)),
        };
        let (mut least, mut most) = (first.clone(), first);
        for (token, transaction) in transactions.into_iter().flatten() {
            let is_after = |at: usize| since.is_none_or(|(_, end)| at > end);
            let may_be_after = |at: usize| since.is_none_or(|(begin, _)| at > begin);
            match transaction.acknowledged {
                Some(at) if is_after(at) => {
                    least.insert(token.clone());
                    most.insert(token.clone());
                }
                Some(at) if may_be_after(at) => {
                    most.insert(token.clone());
                }
                None if transaction.is_open => {
                    most.insert(token.clone());
                }
                _ => {}
            }
        }
        if self.plan.jobs.iter().any(Job::makes_names_of_one) {
            most.extend(all.values().flat_map(|of| of.keys().cloned()));
            most.extend(["z", "worked"].map(String::from));
        }
        let found = match pools::tokens(&path) {
            // A log next to the other name of the pool makes this one refused.
            Err(_) if self.plan.has_link && is_refused_for_a_log() => {
                pools::tokens(&self.pool.with_file_name("h.hpk").join(database))?
            }
            found => found?,
        };
        within(database, &found, &least, &most)
    }
}

/// Whether a database could not be opened just now for a log beside another name of its pool.
fn is_refused_for_a_log() -> bool {
    hardpack::refusals::take().is_some_and(|refusal| refusal.cause == Cause::OtherLog)
}

fn within(what: &str, found: &Tokens, least: &Tokens, most: &Tokens) -> Result<(), String> {
    let missing: Vec<_> = least.difference(found).collect();
    let extra: Vec<_> = found.difference(most).collect();
    match missing.is_empty() && extra.is_empty() {
        true => Ok(()),
        false => Err(format!("{what}: missing {missing:?}, too many {extra:?}")),
    }
}

fn database_of(path: &str) -> &'static str {
    DATABASES.into_iter().find(|name| path.ends_with(name)).expect("a database of the pool")
}

/// Runs and judges a seed; the error says what is wrong.
fn try_seed(seed: u64) -> Result<(), String> {
    let run = run(seed)?;
    run.judge().map_err(|text| format!("{text}\n{:#?}\n{}", run.plan, run.world.history()))
}

fn known(seed: u64) -> bool {
    FOUND.iter().any(|(of, point)| *of == seed && is_open(*point))
}

#[test]
fn seeds() {
    if let Some(seed) = std::env::var(SEED).ok().and_then(|text| text.parse().ok()) {
        let run = run(seed).unwrap_or_else(|text| panic!("{text}"));
        println!("{:#?}\n{}\n{}", run.plan, run.world.trace.join("\n"), run.world.history());
        run.judge().unwrap_or_else(|text| panic!("{SEED}={seed}: {text}"));
        return;
    }
    let count = std::env::var(COUNT).ok().and_then(|text| text.parse().ok());
    let seeds: Vec<u64> = (FIRST_SEED..FIRST_SEED + count.unwrap_or(DEFAULT_COUNT))
        .chain(FOUND.iter().map(|(seed, _)| *seed))
        .collect();
    let failed = super::in_parallel(&seeds, |seed| {
        // A panic is a finding too.
        let tried = std::panic::catch_unwind(|| try_seed(*seed));
        let tried = tried.unwrap_or_else(|_| Err("it panicked".into()));
        tried.err().filter(|_| !known(*seed)).map(|text| format!("{SEED}={seed}: {text}"))
    });
    let failed: Vec<String> = failed.into_iter().flatten().collect();
    assert!(
        failed.is_empty(),
        "{} of {} seeds:\n{}",
        failed.len(),
        seeds.len(),
        failed.join("\n\n")
    );
}

#[test]
fn the_same_seed_gives_the_same_calls() {
    for seed in [3, 5, 8] {
        let traces = [(), ()].map(|()| run(seed).map(|run| run.world.trace.clone()));
        let [one, other] = traces.map(|trace| trace.unwrap_or_else(|text| vec![text]));
        let differs = one.iter().zip(&other).position(|(a, b)| a != b);
        assert!(
            differs.is_none() && one.len() == other.len(),
            "seed {seed} at {differs:?}: {:?}",
            differs.map(|at| (&one[at.saturating_sub(5)..=at], &other[at]))
        );
    }
}
