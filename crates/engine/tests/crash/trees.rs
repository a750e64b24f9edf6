//! Simulates a power loss at every write and sync while trees of files are created, changed,
//! imported and removed, and again after the recovered pool was used on.
//!
//! Every change is one commit. After a crash, the trees must match one commit to the last name,
//! attribute and byte, and that commit must be at least as new as the newest that was acknowledged
//! as durable. A check, which compares names with files and reference counts with references, must
//! find nothing wrong.
//!
//! `HARDPACK_CRASH_STATES` sets the number of crashes, `HARDPACK_CRASH_SEED` the first seed; a
//! failure prints its seed.

use crate::common::sim_device::{Disk, Op, SimDevice};
use crate::common::trees::{self, Tree};
use crate::common::workload::{DURABLE, STARTED};
use crate::common::{Rng, env_number, options, problems};
use hardpack_engine::pool::Pool;

/// The number of crashes in a run of the tests.
const STATES_DEFAULT: u64 = 4_000;
/// The number of changes in one run.
const STEP_COUNT: usize = 40;
/// One crash in this many is followed by more changes and another crash.
const AGAIN_ONE_IN: u64 = 12;

/// A recorded run: the device's content before it, the operations, and a fingerprint of the trees
/// after each commit.
struct Recording {
    base: Vec<u8>,
    trace: Vec<Op>,
    versions: Vec<u128>,
}

/// Records changes to the trees of the pool in an image.
fn record(base: Vec<u8>, rng: &mut Rng, steps: usize) -> Result<Recording, String> {
    let device = SimDevice::new(base.clone());
    let pool = Pool::open(device.clone(), options(200_000)).map_err(|error| error.to_string())?;
    let mut tree = Tree::new(pool);
    let mut versions = vec![tree.fingerprint()?];
    for _ in 0..steps {
        device.note(STARTED | versions.len() as u64);
        let is_durable = tree.change(rng)?;
        versions.push(tree.fingerprint()?);
        if is_durable {
            device.note(DURABLE | (versions.len() as u64 - 1));
        }
    }
    Ok(Recording { base, trace: device.take_trace(), versions })
}

/// Opens the image after a crash, and checks that it is an allowed version.
fn judge(image: Vec<u8>, recording: &Recording, span: (u64, u64)) -> Result<Vec<u8>, String> {
    let device = SimDevice::new(image);
    let pool = Pool::open(device.clone(), options(200_000)).map_err(|error| error.to_string())?;
    let found = problems(&pool).map_err(|error| error.to_string())?;
    if let Some(problem) = found.first() {
        return Err(format!("the pool opens, but {problem}"));
    }
    let fingerprint = Tree::new(pool).fingerprint()?;
    let (oldest, newest) = (span.0 as usize, span.1 as usize);
    let range = oldest..(newest + 1).min(recording.versions.len());
    match recording.versions[range].contains(&fingerprint) {
        true => Ok(device.image()),
        false => match recording.versions.iter().rposition(|version| *version == fingerprint) {
            Some(other) => Err(format!(
                "version {other} is found; {oldest} is durable, {newest} the newest begun"
            )),
            None => Err(format!("the trees match no version from {oldest} to {newest}")),
        },
    }
}

/// Cuts a recording at every operation. Returns the number of crashes.
fn crash_everywhere(recording: &Recording, rng: &mut Rng, depth: u32) -> Result<u64, String> {
    let mut disk = Disk::new(recording.base.clone());
    let (mut span, mut states) = ((0, 0), 0);
    for (index, op) in recording.trace.iter().enumerate() {
        disk.apply(op);
        if let Op::Note(note) = op {
            let version = note & u64::from(u32::MAX);
            match note & DURABLE != 0 {
                true => span.0 = version,
                false => span.1 = version,
            }
            continue;
        }
        let image = {
            let sector = rng.pick(&[512, 4096]);
            disk.crash(rng, sector)
        };
        states += 1;
        let recovered = judge(image, recording, span)
            .map_err(|error| format!("crash after operation {index}: {error}"))?;
        if depth > 0 && rng.one_in(AGAIN_ONE_IN) {
            let again = record(recovered, rng, 4)?;
            states += crash_everywhere(&again, rng, depth - 1)
                .map_err(|error| format!("after a crash at operation {index}: {error}"))?;
        }
    }
    Ok(states)
}

#[test]
fn trees_survive_loss_of_power() {
    let wanted = env_number("HARDPACK_CRASH_STATES").unwrap_or(STATES_DEFAULT);
    let mut seed = env_number("HARDPACK_CRASH_SEED").unwrap_or(0);
    let (mut states, mut done) = (0, trees::Done::default());
    while states < wanted {
        let mut rng = Rng(seed);
        let base = trees::empty_image(&mut rng);
        let recorded = record(base, &mut rng, STEP_COUNT);
        let counted = recorded.and_then(|recording| {
            done.add(&recording.trace);
            crash_everywhere(&recording, &mut rng, 1)
        });
        states += counted.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        seed += 1;
    }
    println!("{states} crashes, seeds below {seed}, {done:?}");
}

/// A run depends only on its seed.
#[test]
fn the_same_seed_gives_the_same_trees() {
    let run = |seed| {
        let mut rng = Rng(seed);
        let base = trees::empty_image(&mut rng);
        record(base, &mut rng, STEP_COUNT).unwrap()
    };
    let [first, second, other] = [run(5), run(5), run(6)];
    let prints = |recording: &Recording| -> Vec<u64> {
        recording.trace.iter().map(Op::fingerprint).collect()
    };
    assert_eq!(prints(&first), prints(&second));
    assert_eq!(first.versions, second.versions);
    assert_ne!(prints(&first), prints(&other));
}

/// A harness that never complains proves nothing: a device that loses writes must be noticed.
#[test]
fn lost_writes_are_noticed() {
    for seed in 0..3 {
        let mut rng = Rng(seed);
        let base = trees::empty_image(&mut rng);
        let mut recording = record(base, &mut rng, STEP_COUNT).unwrap();
        let mut count = 0;
        recording.trace.retain(|op| {
            count += u64::from(matches!(op, Op::Write(..)));
            !matches!(op, Op::Write(..)) || !count.is_multiple_of(7)
        });
        assert!(crash_everywhere(&recording, &mut rng, 0).is_err(), "seed {seed}");
    }
}
