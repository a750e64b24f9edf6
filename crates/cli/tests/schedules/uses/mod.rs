//! Every command against every state of use of its target. Each pair is run with real processes,
//! the result is judged, and compared with the table in `docs/reliability.md`.
//!
//! `HARDPACK_WRITE_USES=1 cargo test -p hardpack-cli --test schedules uses` rewrites the table.

mod commands;
mod states;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use self::commands::{CASES, Case, Copied, Effect, WITHOUT_POOL};
use self::states::{STATES, State, Used};
use super::common::{command_names, hardpack};
use super::pools::{self, Made, Start, Tokens};
use super::world::{Ending, Order, Worker, World};
use super::{in_parallel, is_open};

const WRITE: &str = "HARDPACK_WRITE_USES";
const PAGE: &str = "docs/reliability.md";
const BEGIN: &str = "<!-- uses: begin -->";
const END: &str = "<!-- uses: end -->";
/// The first database of a pool is locked on the pool itself, the others on files next to it.
const TARGETS: [&str; 2] = ["x.db", "y.db"];
/// A command that waits longer than this waits until the other process is done.
const PATIENCE_MS: u64 = 100_000;
/// Marks wrong results.
const WRONG: &str = " **!**";
/// A command that takes longer has waited.
const AT_ONCE_MS: u64 = 200;

/// Pairs that are wrong until a defect is fixed: command, state (or `*`), and the defect's number
/// in [`super::OPEN`].
const KNOWN: &[(&str, &str, u32)] = &[
    ("receive DB", "*", 2),
    ("receive -F DB", "*", 2),
    ("rewind POOL", "*", 3),
    ("mv POOL", "*", 3),
    ("ln -f", "*", 3),
    ("rm DB", "*", 3),
    ("put --delete", "*", 3),
    ("pack -f", "*", 3),
    ("clone DB POOL", "*", 4),
    ("sql DB 'begin", "hard link", 6),
];

pub fn hardpack_command(arguments: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("hardpack"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// The outcome of one pair.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Outcome {
    /// The exit code.
    code: i32,
    /// The reason of a refusal.
    reason: String,
    /// Whether it waited until the other process was done.
    waits: bool,
    /// Whether it applied a log or journal to the pool.
    settles: bool,
    /// The violated expectation, if any.
    wrong: Option<String>,
    /// The fate of the other process's transaction, empty if it succeeded.
    other: &'static str,
}

/// Runs one pair.
fn run_pair(case: &Case, state: &State, target: &str) -> Outcome {
    let start = if case.wants_received() { Start::Received } else { Start::Worked };
    let made = pools::new_directory(state.mode, start);
    let mut world = World::new(made.directory.path(), 1);
    let used = (state.enter)(&mut world, target);
    let pool = if used.renamed { "q.hpk" } else { "p.hpk" };
    let arguments = case.arguments(pool, target, made.txg);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut command = hardpack_command(&arguments);
    if let Some(input) = case.input {
        let name = if input == "next" { format!("next-{target}") } else { input.to_string() };
        command.stdin(fs::File::open(world.dir().join(name)).unwrap());
    }
    let has_log =
        |world: &World| used.log.as_ref().is_some_and(|name| states::has_log(world.dir(), name));
    let had_log = has_log(&world);
    let before = world.now_ms();
    let worker = world.start("command", &mut command);
    let ending = world.run_one(worker, PATIENCE_MS, &mut |_| false);
    let waits = ending == Ending::Waits;
    // A log is removed with the database that it belongs to.
    let removes = case.effect == Effect::Removes || ["mv", "ln"].contains(&case.name());
    let settles = had_log && !has_log(&world) && !removes;
    let took = world.now_ms() - before;
    if let Some(holder) = used.holder {
        world.resume(holder);
    }
    let all = world.run_all(&Order::Random(0), &mut |_| {});
    let wrong = all.and_then(|()| judge(&world, &made, case, &used, worker, target, waits));
    let mut reason = reason_of(&world.err(worker), world.dir());
    if took > AT_ONCE_MS && !waits && !reason.is_empty() {
        reason = format!("{reason}, after {} s", (took + 500) / 1000);
    }
    Outcome {
        code: world.code(worker).unwrap_or(-1),
        reason,
        waits,
        settles,
        wrong: wrong.err(),
        other: others_end(&world, &used),
    }
}

/// The fate of the holder's later work.
fn others_end(world: &World, used: &Used) -> &'static str {
    let Some(holder) = used.holder else { return "" };
    let said = world.said(holder);
    let end = said.iter().rev().find(|line| line.contains("x"));
    match end {
        Some(line) if line.starts_with("busy") => "busy",
        Some(line) if line.starts_with("gone") => "gone",
        Some(line) if line.starts_with("fail") => "fails",
        _ => "",
    }
}

/// Extracts the reason from the command's message.
fn reason_of(text: &str, dir: &Path) -> String {
    let line = text.lines().find(|line| line.starts_with("hardpack: ")).unwrap_or_default();
    let reason = line.find("': ").map_or(line, |at| &line[at + 3..]);
    let mut reason = reason.replace(&format!("{}/", dir.display()), "");
    for target in TARGETS {
        reason = reason.replace(&format!("'{target}'"), "'DB'");
    }
    // These parts differ between runs.
    for (from, instead) in [("in use by ", "another process"), ("the state of txg ", "that number")]
    {
        if let Some(at) = reason.find(from) {
            reason.truncate(at + from.len());
            reason += instead;
        }
    }
    if let Some(at) = reason.find(" (process ") {
        let rest = reason[at..].find(')').map_or("", |end| &reason[at + end + 1..]);
        reason = format!("another process{rest}");
    }
    reason
}

/// The pool, by the name beside which a log is left, if one is: it is needed by whoever reads.
fn where_to_read(dir: &Path, used: &Used) -> PathBuf {
    let [old, new, link] = ["p.hpk", "q.hpk", "h.hpk"].map(|name| dir.join(name));
    let number = |path: &Path| fs::metadata(path).map(|found| found.ino()).ok();
    let has_log = used.log.as_ref().is_some_and(|log| states::has_log(dir, log));
    match used.renamed {
        true if has_log && !old.exists() => {
            fs::rename(new, &old).unwrap();
            old
        }
        true => new,
        false if used.linked && has_log && number(&link) == number(&old) => link,
        false => old,
    }
}

/// Checks the result of a pair; the error says what is wrong.
fn judge(
    world: &World,
    made: &Made,
    case: &Case,
    used: &Used,
    worker: Worker,
    target: &str,
    waited: bool,
) -> Result<(), String> {
    let dir = made.directory.path();
    let pool = where_to_read(dir, used);
    let done = world.code(worker) == Some(0);
    let said = used.holder.map(|holder| world.said(holder)).unwrap_or_default();
    let late = said.iter().any(|l| ["ok tx x late-holder", "ok commit x"].contains(l))
        && said.contains(&"ok put x late-holder")
        || said.contains(&"ok tx x late-holder");
    for line in &said {
        if line.starts_with("fail") && done && case.effect == Effect::Keeps {
            return Err(format!("the other process: {line}"));
        }
    }
    let mut kept = case.first_tokens();
    kept.extend(used.committed.iter().cloned());
    let with_late = |tokens: &Tokens| {
        let mut tokens = tokens.clone();
        tokens.insert("late-holder".into());
        tokens
    };
    // Checked first, so that the databases are read as they were left.
    let expects = |path: PathBuf, allowed: Vec<Tokens>| -> Result<(), String> {
        let found = pools::tokens(&path)?;
        if allowed.contains(&found) {
            return Ok(());
        }
        let missing: Vec<_> = allowed[0].difference(&found).collect();
        let extra: Vec<_> = found.difference(&allowed[0]).collect();
        Err(format!("{}: missing {missing:?}, too many {extra:?}", path.display()))
    };
    if done {
        let fill = |text: &str| {
            let text = text.replace("TARGET", target);
            let text = text.replace("DB", &format!("POOL/{target}"));
            PathBuf::from(text.replace("POOL", &pool.display().to_string()))
        };
        let whole = vec![kept.clone(), with_late(&kept)];
        match case.copied {
            Copied::Nothing => {}
            Copied::File(name) => expects(dir.join(name), whole)?,
            Copied::InPool(path) => expects(fill(path), whole)?,
            Copied::Old(path) => expects(fill(path), vec![pools::base_tokens()])?,
            Copied::Output => {
                fs::write(dir.join("cat.db"), world.out_bytes(worker)).unwrap();
                expects(dir.join("cat.db"), whole)?;
            }
        }
    }
    let effect = if done { case.effect } else { Effect::Keeps };
    let exact = |tokens: Tokens| if late { vec![with_late(&tokens)] } else { vec![tokens] };
    let at = pool.join(target);
    match effect {
        Effect::Keeps => expects(at, exact(kept))?,
        Effect::Moves(name) => expects(pool.join(name), exact(kept))?,
        Effect::Adds(token) => {
            kept.insert(token.into());
            expects(at, exact(kept))?;
        }
        Effect::Becomes(more) => {
            let mut tokens = pools::base_tokens();
            tokens.extend(more.iter().map(|token| token.to_string()));
            // If the command waited, the other process may have been first.
            match late && !waited {
                true => expects(at, vec![with_late(&tokens)])?,
                false => expects(at, vec![tokens.clone(), with_late(&tokens)])?,
            }
        }
        Effect::Removes | Effect::ReplacesPool => {
            let there = hardpack().arg("stat").arg(&at).output().unwrap().status.success();
            if there {
                return Err(format!("{} is still there", at.display()));
            }
            if late && !waited {
                return Err("a transaction was acknowledged after it, and is lost".into());
            }
        }
    }
    // It processes several files independently, so it may be done in part.
    let is_done_in_part = case.name() == "put" && case.effect == Effect::Removes;
    let is_whole_pool = case.text.contains("POOL") && (effect != Effect::Keeps || is_done_in_part);
    for other in TARGETS.iter().filter(|other| **other != target && !is_whole_pool) {
        expects(pool.join(other), vec![case.first_tokens()])?;
    }
    let lone = pools::tokens(&dir.join("lone.hpk"))?;
    if lone != pools::base_tokens() {
        return Err(format!("the other pool holds {lone:?}"));
    }
    pools::check(&pool)?;
    if matches!(effect, Effect::Becomes(_) | Effect::Removes | Effect::Moves(_)) {
        // A rollback restores the replaced content, unaffected by files left next to the pool.
        let back = format!("{}@base", pool.display());
        if hardpack().args(["rollback", &back]).output().unwrap().status.success() {
            expects(pool.join(target), vec![pools::base_tokens()])?;
        }
    }
    Ok(())
}

/// The letters of a reason: a to z, aa to az, and so on.
fn letter(at: usize) -> String {
    let last = char::from(b'a' + (at % 26) as u8);
    if at < 26 { last.into() } else { format!("{}{last}", letter(at / 26 - 1)) }
}

/// The table cell of a pair.
fn cell(outcome: &Outcome, reasons: &mut Vec<String>) -> String {
    let mut text = String::new();
    if outcome.waits {
        text += "waits ";
    }
    match outcome.code {
        0 if outcome.settles => text += "settles",
        0 => text += "yes",
        code => {
            let at = reasons.iter().position(|reason| *reason == outcome.reason);
            let at = at.unwrap_or_else(|| {
                reasons.push(outcome.reason.clone());
                reasons.len() - 1
            });
            let letter = letter(at);
            let _ = write!(text, "{code}{letter}");
        }
    }
    if !outcome.other.is_empty() {
        let _ = write!(text, " ({})", outcome.other);
    }
    if outcome.wrong.is_some() {
        text += WRONG;
    }
    text
}

fn is_known(case: &Case, state: &State) -> bool {
    KNOWN.iter().any(|(command, of, defect)| {
        case.text.starts_with(command) && (*of == "*" || *of == state.name) && is_open(*defect)
    })
}

type Found = BTreeMap<(usize, usize), Vec<Outcome>>;

/// The targets to try a command on: one is enough if it only reads, or changes something else.
fn targets_of(case: &Case) -> std::ops::Range<usize> {
    let only = case.effect == Effect::Keeps && case.copied == Copied::Nothing;
    let is_special = ["check", "repack", "compact", "sql"].contains(&case.name());
    if only && !is_special { 1..2 } else { 0..2 }
}

fn run_all_pairs() -> Found {
    let pairs: Vec<(usize, usize, usize)> = (0..CASES.len())
        .flat_map(|c| (0..STATES.len()).map(move |s| (c, s)))
        .flat_map(|(c, s)| targets_of(&CASES[c]).map(move |t| (c, s, t)))
        .collect();
    let mut found = in_parallel(&pairs, |(c, s, t)| {
        ((*c, *s, *t), run_pair(&CASES[*c], &STATES[*s], TARGETS[*t]))
    });
    found.sort();
    let mut by_pair = Found::new();
    for ((c, s, _), outcome) in found {
        by_pair.entry((c, s)).or_default().push(outcome);
    }
    by_pair
}

fn table(found: &Found) -> String {
    let mut reasons = Vec::new();
    let mut text = String::from("| |");
    for state in STATES {
        let _ = write!(text, " {} |", state.name);
    }
    text += "\n| --- |";
    text += &" --- |".repeat(STATES.len());
    text.push('\n');
    for (c, case) in CASES.iter().enumerate() {
        let _ = write!(text, "| `{}` |", shown(case));
        for s in 0..STATES.len() {
            let mut cells: Vec<String> =
                found[&(c, s)].iter().map(|outcome| cell(outcome, &mut reasons)).collect();
            cells.dedup();
            let _ = write!(text, " {} |", cells.join(" / "));
        }
        text.push('\n');
    }
    let mut head = String::new();
    for state in STATES {
        let _ = writeln!(head, "* *{}*: {}.", state.name, state.meaning);
    }
    text.push('\n');
    for (at, reason) in reasons.iter().enumerate() {
        let _ = writeln!(text, "* *{}*: {reason}", letter(at));
    }
    if text.contains(WRONG) {
        text += "\n**!** marks wrong behaviour: a known defect that is not fixed yet.\n";
    }
    format!("{head}\n{text}")
}

fn shown(case: &Case) -> &'static str {
    if case.text.contains("begin immediate") { "sql DB 'begin immediate; …'" } else { case.text }
}

#[test]
fn every_command_against_every_use_of_its_target() {
    let found = run_all_pairs();
    let mut wrong = Vec::new();
    for ((c, s), outcomes) in &found {
        let (case, state) = (&CASES[*c], &STATES[*s]);
        for (outcome, target) in outcomes.iter().zip(targets_of(case).map(|t| TARGETS[t])) {
            if let Some(text) = outcome.wrong.as_ref().filter(|_| !is_known(case, state)) {
                wrong.push(format!("'{}' while '{}' ({target}): {text}", case.text, state.name));
            }
        }
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(PAGE);
    let text = fs::read_to_string(&page).unwrap();
    let from = text.find(BEGIN).expect("the page has a place for the table") + BEGIN.len();
    let to = text.find(END).expect("the page has a place for the table");
    let now = format!("\n{}", table(&found));
    if std::env::var_os(WRITE).is_some() {
        fs::write(&page, format!("{}{now}{}", &text[..from], &text[to..])).unwrap();
    }
    assert!(wrong.is_empty(), "{} pairs:\n{}", wrong.len(), wrong.join("\n"));
    if std::env::var_os(WRITE).is_none() {
        let differ: Vec<String> = text[from..to]
            .lines()
            .zip(now.lines())
            .filter(|(old, new)| old != new)
            .map(|(old, new)| format!("- {old}\n+ {new}"))
            .collect();
        assert!(
            differ.is_empty() && text[from..to].lines().count() == now.lines().count(),
            "{PAGE} differs from the results ({WRITE}=1 rewrites it):\n{}",
            differ.join("\n")
        );
    }
}

#[test]
fn the_table_has_every_command() {
    let names = command_names();
    let missing: Vec<&String> = names
        .iter()
        .filter(|name| {
            !WITHOUT_POOL.contains(&&name[..]) && !CASES.iter().any(|case| case.name() == *name)
        })
        .collect();
    assert!(missing.is_empty(), "not in the table: {missing:?}");
    assert!(CASES.iter().all(|case| names.iter().any(|name| name == case.name())));
}
