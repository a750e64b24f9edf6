//! Loss of power while several real processes use one pool: each acknowledged transaction is there
//! afterwards, whichever process made the sync that it relies on, and no transaction in part.
//!
//! Processes with one or two threads commit to databases of the pool, in an order drawn from a
//! seed, one system call at a time; some are killed, some of their syncs fail. All that they write
//! is recorded (`medium.rs`). Then the recording is cut at some places, and what may be left of the
//! files is opened, read and checked.
//!
//! `HARDPACK_POWER_SCHEDULES=n` runs that many seeds, `HARDPACK_POWER_SEED=n` the one seed.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::medium::{self, Disk, Image, Medium, Op};
use super::pools::{self, Start, Tokens};
use super::random::Random;
use super::worker;
use super::world::{Order, Worker, World};

const SEED: &str = "HARDPACK_POWER_SEED";
const COUNT: &str = "HARDPACK_POWER_SCHEDULES";
/// The number of seeds in a test run.
const DEFAULT_COUNT: u64 = 48;
/// The number of power losses tried after each run.
const CRASH_COUNT: u64 = 12;
const DATABASES: [&str; 3] = ["x.db", "y.db", "d/z.db"];
const TRANSACTION_COUNT: u64 = 3;
/// The last step at which a process is killed.
const KILL_STEP_MAX: u64 = 1500;

/// How a recording is changed, like a disk that breaks its promises.
type Mutate = fn(&mut Vec<Op>);

/// What a run has shown.
#[derive(Debug, Default)]
struct Counts {
    /// The transactions that were acknowledged.
    acknowledged: u64,
    /// Those of them whose process has not synced the pool in between.
    shared: u64,
    failed_syncs: u64,
}

fn script(random: &mut Random, who: u64) -> String {
    let mut lines = Vec::new();
    let thread_count = 1 + random.below(2);
    for thread in 0..thread_count {
        if thread > 0 {
            lines.push("---".to_string());
        }
        // Mostly a database of its own.
        let database = match random.below(4) {
            0 => *random.of(&DATABASES),
            _ => DATABASES[((who + thread) % DATABASES.len() as u64) as usize],
        };
        lines.push(format!("open a p.hpk/{database}"));
        for number in 0..TRANSACTION_COUNT {
            lines.push(format!("tx a t{who}-{thread}-{number}"));
        }
        lines.push("close a".into());
    }
    lines.join("\n")
}

fn run(seed: u64, mutate: Mutate) -> Result<Counts, String> {
    let mut random = Random(seed);
    let mode = *random.of(&["delete", "delete", "persist", "wal"]);
    let made = pools::new_directory(mode, Start::Worked);
    let mut world = World::new(made.directory.path(), seed);
    let mut medium = Medium::of(world.dir());
    let base_tokens = all_tokens(world.dir())?;
    if random.below(4) == 0 {
        medium.fails_in = Some(random.below(8));
    }
    world.medium = Some(medium);
    let worker_count = 2 + random.below(3);
    let workers: Vec<Worker> = (0..worker_count)
        .map(|who| {
            let script = script(&mut random, who);
            world.start(&format!("w{who}"), &mut worker::command(&script))
        })
        .collect();
    let kill = (random.below(3) == 0).then(|| (random.below(KILL_STEP_MAX), *random.of(&workers)));
    let mut between = |world: &mut World| {
        if let Some((step, worker)) = kill
            && world.steps() >= step
        {
            world.kill(worker);
        }
    };
    let order = Order::Random(*random.of(&[30, 150, 500]));
    world.run_all(&order, &mut between)?;
    let medium = world.medium.take().unwrap();
    let history = || world.history();
    let (base, mut ops) = (medium.base, medium.ops);
    let mut disk = Disk::new(&base);
    ops.iter().for_each(|op| disk.apply(op));
    let real = medium::read_image(world.dir());
    if disk.all_kept() != real {
        let lens = |image: &Image| -> Vec<(String, usize)> {
            image.iter().map(|(name, bytes)| (name.clone(), bytes.len())).collect()
        };
        let (recorded, real) = (lens(&disk.all_kept()), lens(&real));
        return Err(format!("recorded {recorded:?}, but found {real:?}\n{}", history()));
    }
    let said: Vec<&String> = ops
        .iter()
        .filter_map(|op| match op {
            Op::Said(line) => Some(line),
            _ => None,
        })
        .collect();
    let acknowledged = said.iter().filter(|line| line.starts_with("ok tx")).count() as u64;
    let failed_syncs = ops.iter().filter(|op| matches!(op, Op::FailedSync(_))).count() as u64;
    let syncs: u64 = medium.syncs.values().sum();
    let is_alone = mode == "wal" || failed_syncs > 0;
    let shared = if is_alone { 0 } else { acknowledged.saturating_sub(syncs) };
    mutate(&mut ops);
    for _ in 0..CRASH_COUNT {
        let end = random.below(ops.len() as u64 + 1) as usize;
        let mut disk = Disk::new(&base);
        ops[..end].iter().for_each(|op| disk.apply(op));
        let image = disk.crash(&mut random);
        judge(world.dir(), &image, &base_tokens, &ops[..end]).map_err(|error| {
            format!("{mode}: after operation {end} of {}: {error}\n{}", ops.len(), history())
        })?;
    }
    Ok(Counts { acknowledged, shared, failed_syncs })
}

fn all_tokens(directory: &Path) -> Result<BTreeMap<&'static str, Tokens>, String> {
    let of = |name: &'static str| {
        let path = directory.join("p.hpk").join(name);
        Ok((name, pools::tokens(&path)?))
    };
    DATABASES.into_iter().map(of).collect()
}

/// Writes an image into the directory, and checks it.
fn judge(
    directory: &Path,
    image: &Image,
    base: &BTreeMap<&'static str, Tokens>,
    ops: &[Op],
) -> Result<(), String> {
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        if entry.path().is_file() {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    for (name, bytes) in image {
        fs::write(directory.join(name), bytes).unwrap();
    }
    let (mut least, mut most) = (Tokens::new(), Tokens::new());
    for op in ops {
        let Op::Said(line) = op else { continue };
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["ok", "tx", _, token] => drop(least.insert(token.into())),
            ["leaves", _, token] => drop(most.insert(token.into())),
            _ => {}
        }
    }
    let found = all_tokens(directory)?;
    let mut new = Tokens::new();
    for (name, tokens) in &found {
        let lost: Vec<_> = base[name].difference(tokens).collect();
        if !lost.is_empty() {
            return Err(format!("{name} has lost {lost:?}"));
        }
        new.extend(tokens.difference(&base[name]).cloned());
    }
    let (missing, extra): (Vec<_>, Vec<_>) =
        (least.difference(&new).collect(), new.difference(&most).collect());
    if !missing.is_empty() || !extra.is_empty() {
        return Err(format!("missing {missing:?}, too many {extra:?}"));
    }
    pools::check(&directory.join("p.hpk"))
}

/// Every order that a seed chooses must work, and in some of them processes rely on each other's
/// syncs.
#[test]
fn acknowledged_transactions_survive() {
    if let Some(seed) = std::env::var(SEED).ok().and_then(|text| text.parse().ok()) {
        let counts = run(seed, |_| {}).unwrap_or_else(|text| panic!("{SEED}={seed}: {text}"));
        println!("{counts:?}");
        return;
    }
    let count = std::env::var(COUNT).ok().and_then(|text| text.parse().ok());
    let seeds: Vec<u64> = (0..count.unwrap_or(DEFAULT_COUNT)).collect();
    let done = super::in_parallel(&seeds, |seed| {
        let tried = std::panic::catch_unwind(|| run(*seed, |_| {}));
        let tried = tried.unwrap_or_else(|_| Err("it panicked".into()));
        tried.map_err(|text| format!("{SEED}={seed}: {text}"))
    });
    let mut sum = Counts::default();
    let mut failed = Vec::new();
    for one in done {
        match one {
            Ok(one) => {
                sum.acknowledged += one.acknowledged;
                sum.shared += one.shared;
                sum.failed_syncs += one.failed_syncs;
            }
            Err(text) => failed.push(text),
        }
    }
    println!("{} seeds: {sum:?}", seeds.len());
    let all = seeds.len();
    assert!(failed.is_empty(), "{} of {all} seeds:\n{}", failed.len(), failed.join("\n\n"));
    assert!(sum.shared > 0 && sum.failed_syncs > 0 || all < 40, "{sum:?}");
}

/// A test that never complains proves nothing.
#[test]
fn a_disk_that_lies_is_noticed() {
    let lies: Mutate = |ops| ops.retain(|op| !matches!(op, Op::Sync(_)));
    let seeds: Vec<u64> = (0..8).collect();
    let done = super::in_parallel(&seeds, |seed| run(*seed, lies).is_err());
    assert!(done.contains(&true));
}
