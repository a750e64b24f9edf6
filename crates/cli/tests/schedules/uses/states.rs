//! The states of use in which a command can find its target database.

use std::fs;
use std::path::Path;

use super::super::pools::Tokens;
use super::super::worker;
use super::super::world::{Ending, Worker, World};

/// A state of use: what other processes do with a database when a command starts.
pub struct State {
    pub name: &'static str,
    /// Its description in the documentation.
    pub meaning: &'static str,
    pub mode: &'static str,
    /// Brings a pool into this state.
    pub enter: fn(&mut World, &str) -> Used,
}

/// The result of entering a state.
#[derive(Default)]
pub struct Used {
    /// A process that continues when the command is done, or waits.
    pub holder: Option<Worker>,
    /// The tokens committed before the command starts.
    pub committed: Tokens,
    /// Whether the pool has been renamed to `q.hpk`.
    pub renamed: bool,
    /// Whether the pool is also named `h.hpk`, and was used by that name.
    pub linked: bool,
    /// The name of a log or journal of the database that holds changes.
    pub log: Option<String>,
}

/// The prefix of the names of a database's files next to the pool.
fn beside(pool: &str, target: &str) -> String {
    if target == "x.db" { pool.into() } else { format!("{pool}-db4") }
}

fn hold(world: &mut World, script: &str) -> Worker {
    let holder = world.start("holder", &mut worker::command(script));
    world.run_to_pause(holder);
    holder
}

fn held(world: &mut World, target: &str, script: &str) -> Used {
    held_by("p.hpk", world, target, script)
}

fn held_by(pool: &str, world: &mut World, target: &str, script: &str) -> Used {
    let script = format!("open x {pool}/{target}\n{script}");
    let committed = script.contains("tx x early").then(|| "early".to_string());
    let log = format!("{}-wal", beside(pool, target));
    Used {
        holder: Some(hold(world, &script)),
        committed: committed.into_iter().collect(),
        log: script.contains("tx x early").then_some(log),
        ..Used::default()
    }
}

fn killed(world: &mut World, mut used: Used) -> Used {
    world.kill(used.holder.take().unwrap());
    used
}

fn log_left(world: &mut World, target: &str) -> Used {
    let used = held(world, target, "tx x early\npause");
    killed(world, used)
}

fn journal_left(world: &mut World, target: &str) -> Used {
    let script = format!(
        "open x p.hpk/{target}\nsql x attach 'file:lone.hpk?vfs=hardpack' as l\n\
         sql x begin; insert into main.n values(7); insert into l.n values(7); commit"
    );
    let holder = world.start("holder", &mut worker::command(&script));
    let mut reached = |label: &str| label.starts_with("unlink") && label.contains("-mj");
    let ending = world.run_one(holder, 3_600_000, &mut reached);
    assert!(ending == Ending::Reached, "{ending:?}\n{}", world.history());
    world.kill(holder);
    Used { log: Some(format!("{}-journal", beside("p.hpk", target))), ..Used::default() }
}

fn renamed(world: &mut World, target: &str, script: &str) -> Used {
    let used = held(world, target, script);
    fs::rename(world.dir().join("p.hpk"), world.dir().join("q.hpk")).unwrap();
    Used { renamed: true, ..used }
}

fn through_link(world: &mut World, target: &str, script: &str) -> Used {
    fs::hard_link(world.dir().join("p.hpk"), world.dir().join("h.hpk")).unwrap();
    Used { linked: true, ..held_by("h.hpk", world, target, script) }
}

fn log_left_through_link(world: &mut World, target: &str) -> Used {
    let used = through_link(world, target, "tx x early\npause");
    killed(world, used)
}

/// A process that imports two files, stopped before it opens the second.
fn import(world: &mut World, _target: &str) -> Used {
    let (pool, stop) = ("p.hpk/imported", "open in/2");
    let mut command = super::hardpack_command(&["put", "-q", "-T", "in", pool]);
    let holder = world.start("holder", &mut command);
    let ending = world.run_one(holder, 3_600_000, &mut |label| label.starts_with(stop));
    assert!(ending == Ending::Reached, "{ending:?}\n{}", world.history());
    Used { holder: Some(holder), ..Used::default() }
}

/// A process that holds the lock of the pool: it is about to write a commit to another database.
fn commit(world: &mut World, _target: &str) -> Used {
    let script = "open x p.hpk/d/z.db\nbegin x\nput x elsewhere\npause\ncommit x";
    let holder = hold(world, script);
    world.resume(holder);
    let ending = world.run_one(holder, 3_600_000, &mut |label| label.starts_with("write p.hpk"));
    assert!(ending == Ending::Reached, "{ending:?}\n{}", world.history());
    Used { holder: Some(holder), ..Used::default() }
}

fn in_snapshot(world: &mut World, target: &str) -> Used {
    let script = format!("open x p.hpk/{target}@base\nread x\npause\ncommit x\nread x");
    Used { holder: Some(hold(world, &script)), ..Used::default() }
}

/// Whether a log or journal exists and is not empty.
pub fn has_log(dir: &Path, name: &str) -> bool {
    fs::metadata(dir.join(name)).is_ok_and(|metadata| metadata.len() > 0)
}

pub const STATES: &[State] = &[
    State {
        name: "unused",
        meaning: "nobody has the database open",
        mode: "delete",
        enter: |_, _| Used::default(),
    },
    State {
        name: "open",
        meaning: "another process has it open in a rollback mode, idle",
        mode: "delete",
        enter: |world, target| {
            held(world, target, "sql x select count(*) from a\npause\ntx x late-holder")
        },
    },
    State {
        name: "reads",
        meaning: "another process is in a read transaction, in a rollback mode",
        mode: "delete",
        enter: |world, target| held(world, target, "read x\npause\ncommit x\ntx x late-holder"),
    },
    State {
        name: "writes",
        meaning: "another process holds `BEGIN IMMEDIATE` and has changed rows, in a rollback mode",
        mode: "delete",
        enter: |world, target| held(world, target, "begin x\nput x late-holder\npause\ncommit x"),
    },
    State {
        name: "log, open",
        meaning: "another process has it open in WAL mode, with committed transactions in the log",
        mode: "wal",
        enter: |world, target| held(world, target, "tx x early\npause\ntx x late-holder"),
    },
    State {
        name: "log, reads",
        meaning: "as in *log, open*, and the process is in a read transaction",
        mode: "wal",
        enter: |world, target| {
            held(world, target, "tx x early\nread x\npause\ncommit x\ntx x late-holder")
        },
    },
    State {
        name: "log, writes",
        meaning: "as in *log, open*, and the process holds `BEGIN IMMEDIATE` and has changed rows",
        mode: "wal",
        enter: |world, target| {
            held(world, target, "tx x early\nbegin x\nput x late-holder\npause\ncommit x")
        },
    },
    State {
        name: "log left",
        meaning: "a killed process left a log with committed transactions",
        mode: "wal",
        enter: log_left,
    },
    State {
        name: "journal left",
        meaning: "a process was killed in a transaction across two pools, and left a hot journal with its super-journal",
        mode: "delete",
        enter: journal_left,
    },
    State {
        name: "pool renamed",
        meaning: "the pool was renamed while another process reads; the command uses the new name",
        mode: "delete",
        enter: |world, target| renamed(world, target, "read x\npause\ncommit x\ntx x late-holder"),
    },
    State {
        name: "hard link",
        meaning: "as in *writes*, but the process opened the pool by another hard link",
        mode: "delete",
        enter: |world, target| {
            through_link(world, target, "begin x\nput x late-holder\npause\ncommit x")
        },
    },
    State {
        name: "log, link",
        meaning: "as in *log, open*, but the process opened the pool by another hard link",
        mode: "wal",
        enter: |world, target| through_link(world, target, "tx x early\npause\ntx x late-holder"),
    },
    State {
        name: "left, link",
        meaning: "as in *log left*, but the process had opened the pool by another hard link",
        mode: "wal",
        enter: log_left_through_link,
    },
    State {
        name: "log, renamed",
        meaning: "as in *log, open*, and then the pool was renamed; the command uses the new name",
        mode: "wal",
        enter: |world, target| renamed(world, target, "tx x early\npause\ntx x late-holder"),
    },
    State {
        name: "import",
        meaning: "another process is importing other files into the pool",
        mode: "delete",
        enter: import,
    },
    State {
        name: "commit",
        meaning: "another process is committing to another database of the pool",
        mode: "delete",
        enter: commit,
    },
    State {
        name: "snapshot open",
        meaning: "another process reads a snapshot of the database",
        mode: "delete",
        enter: in_snapshot,
    },
];
