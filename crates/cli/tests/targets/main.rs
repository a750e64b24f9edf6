//! Every command against every bad target. `table.txt` has the expectations: the exit code and the
//! first words of the message. `HARDPACK_WRITE_TARGETS=1` writes it again, to be read before it is
//! committed.
//!
//! For each case: no panic, and a command that fails leaves no files behind and its target as it
//! was.

#[path = "../common/mod.rs"]
mod common;
mod places;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use places::{Fixture, Outcome, TARGETS};

const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/targets/table.txt");
const WRITE: &str = "HARDPACK_WRITE_TARGETS";
/// As many cases run at once.
const WORKERS: usize = 3;

/// The commands as they are run: `T` is the target.
const COMMANDS: &[&str] = &[
    "pack -q T out.hpk",
    "unpack -q T/a.txt out",
    "create T",
    "put -q in.txt T",
    "estimate -q T",
    "import -q in.tar T",
    "extract -q --threads 1 T out",
    "ls T",
    "tree T",
    "find T",
    "stat T/a.txt",
    "du T",
    "cat T/a.txt",
    "rm T/a.txt",
    "mv T/a.txt T/b.txt",
    "mkdir T/new",
    "ln -s a.txt T/link",
    "cp T/a.txt T/b.txt",
    "touch T/a.txt",
    "chmod 600 T/a.txt",
    "chown 1:1 T/a.txt",
    "snapshot T@new",
    "list T",
    "rollback T@s",
    "clone T/a.txt T/c.txt",
    "diff T@s",
    "destroy T@s",
    "send -q T@s",
    "receive -q T/r",
    "stats T",
    "info T",
    "check -q T",
    "salvage -q T out",
    "rewind -q T 1",
    "compact -q T",
    "get all T",
    "set compression=lz4 T",
    "inherit compression T",
    "fold -q T",
    "repack -q --compression lz4 T",
    "optimize -q --compression lz4 T",
    "sql T/d.db 'SELECT count(*) FROM t'",
    "codecs",
];

type Table = BTreeMap<(String, String), (i32, String)>;

/// A line with a command, then one for each target: its name, the exit code, the message.
fn read_table() -> Table {
    let text = std::fs::read_to_string(TABLE).unwrap_or_default();
    let (mut table, mut command) = (Table::new(), String::new());
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.strip_prefix("  ") {
            None => command = line.to_owned(),
            Some(row) => {
                let (target, rest) = row.split_once(' ').unwrap();
                let (code, message) =
                    rest.trim_start().split_once(' ').unwrap_or((rest.trim(), ""));
                let expected = (code.trim().parse().unwrap(), message.trim().to_owned());
                let old = table.insert((command.clone(), target.to_owned()), expected);
                assert!(old.is_none(), "twice in the table: {command}, {target}");
            }
        }
    }
    table
}

const HEAD: &str = "\
# Every command against every bad target T: the exit code, and the first words of the message.
# Written by HARDPACK_WRITE_TARGETS=1 cargo test -p hardpack-cli --test targets; read it before you
# commit it.
";

fn write_table(found: &BTreeMap<(usize, usize), Outcome>) {
    let mut text = String::from(HEAD);
    for (command, line) in COMMANDS.iter().enumerate() {
        let _ = write!(text, "\n{line}\n");
        for (target, name) in TARGETS.iter().enumerate() {
            if let Some(outcome) = found.get(&(command, target)) {
                let row = format!("  {name:<12} {:>3}  {}", outcome.code, outcome.first_words());
                let _ = writeln!(text, "{}", row.trim_end());
            }
        }
    }
    std::fs::write(TABLE, text).unwrap();
}

#[test]
fn every_command_against_every_bad_target() {
    let fixture = Fixture::new();
    let cases: Vec<(usize, usize)> = (0..COMMANDS.len())
        .flat_map(|command| (0..TARGETS.len()).map(move |target| (command, target)))
        .filter(|(_, target)| fixture.can_make(TARGETS[*target]))
        .collect();
    let next = AtomicUsize::new(0);
    let (found, failed) = (Mutex::new(BTreeMap::new()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = fixture.run(COMMANDS[case.0], TARGETS[case.1]);
                    if let Some(broken) = &outcome.broken {
                        let text = format!("{}, {}: {broken}", COMMANDS[case.0], TARGETS[case.1]);
                        failed.lock().unwrap().push(text);
                    }
                    found.lock().unwrap().insert(*case, outcome);
                }
            });
        }
    });
    let (found, mut failed) = (found.into_inner().unwrap(), failed.into_inner().unwrap());
    if std::env::var_os(WRITE).is_some() {
        write_table(&found);
    }
    let table = read_table();
    for ((command, target), outcome) in &found {
        let key = (COMMANDS[*command].to_owned(), TARGETS[*target].to_owned());
        match table.get(&key) {
            None => failed.push(format!("{key:?} has no row in table.txt")),
            Some((code, words)) if *code != outcome.code || !outcome.message.starts_with(words) => {
                failed.push(format!("{key:?}: expected {code} {words}, found {outcome:?}"));
            }
            Some(_) => {}
        }
    }
    assert!(failed.is_empty(), "{} of {}:\n{}", failed.len(), cases.len(), failed.join("\n"));
}

/// Commands whose target is no pool, and those whose targets are in `tests/mount/refusals.rs`.
const OTHERS: [&str; 7] = ["completions", "doctor", "help", "man", "mount", "run", "umount"];

/// A new command needs rows.
#[test]
fn the_table_has_every_command() {
    let has = |name: &str| COMMANDS.iter().any(|line| line.split(' ').next() == Some(name));
    let mut missing = common::command_names();
    missing.retain(|name| !OTHERS.contains(&&**name) && !has(name));
    assert!(missing.is_empty(), "not in the table: {missing:?}");
    let table = read_table();
    for command in COMMANDS {
        for target in TARGETS {
            let key = ((*command).to_owned(), (*target).to_owned());
            assert!(table.contains_key(&key), "{key:?} has no row in table.txt");
        }
    }
}
