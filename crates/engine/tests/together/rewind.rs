//! Older states, opened as they were and brought back as a new commit.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::limits::BoundedDevice;
use crate::common::sim_device::{Disk, Fault, Op, SimDevice};
use crate::common::{Rng, create, only_file, options, problems, read_all};
use hardpack_engine::device::{Device, FileDevice, MemoryDevice};
use hardpack_engine::pool::{Options, Pool, Property, ROOT};
use hardpack_engine::store::superblock::EXTENTS_OFFSET;
use hardpack_engine::store::{Durability, Pin};
use hardpack_engine::{Error, Txg};

/// Creates a pool, and returns the content of its file after each commit. With `recycles`, space is
/// reused soon.
fn history(seed: u64, rounds: usize, recycles: bool) -> (Arc<MemoryDevice>, Vec<(Txg, Vec<u8>)>) {
    let device = Arc::new(MemoryDevice::default());
    let dynamic: Arc<dyn Device> = device.clone();
    let pool = create(&dynamic, &[(Property::RecordSize, "16K")], 32 << 20);
    let file = only_file(&pool).unwrap();
    let mut rng = Rng(seed);
    let mut bytes = Vec::new();
    let mut states = Vec::new();
    for _ in 0..rounds {
        if bytes.is_empty() || recycles && rng.one_in(2) {
            bytes = rng.text(400_000);
            file.write_at(&bytes, 0).unwrap();
        }
        for _ in 0..4 {
            let at = rng.below(bytes.len() as u64 - 100) as usize;
            let new = rng.text(60);
            file.read_at(&mut [0; 60], at as u64).unwrap();
            file.write_at(&new, at as u64).unwrap();
            bytes[at..at + 60].copy_from_slice(&new);
        }
        file.commit(Durability::Durable).unwrap();
        states.push((pool.state().txg(), bytes.clone()));
    }
    (device, states)
}

fn open(device: &Arc<MemoryDevice>) -> Pool {
    let copy: Arc<dyn Device> = Arc::new(MemoryDevice::new(device.image()));
    Pool::open(copy, options(1 << 20)).unwrap()
}

fn content(pool: &Pool) -> Vec<u8> {
    read_all(&only_file(pool).unwrap()).unwrap()
}

#[test]
fn states_that_are_whole_hold_what_they_held() {
    for (seed, recycles) in [(1, false), (2, true), (3, true)] {
        let (device, states) = history(seed, 20, recycles);
        let pool = open(&device);
        let listed = pool.states(&mut |_, _| {}).unwrap();
        assert_eq!(listed[0].txg, states.last().unwrap().0);
        assert!(listed[0].problems.is_empty(), "{:?}", listed[0]);
        let mut whole = 0;
        for state in listed.iter().filter(|state| state.problems.is_empty()) {
            let device = Arc::clone(pool.store().device());
            let old = Pool::open_at(device, options(1 << 20), state.txg).unwrap();
            let expected = &states.iter().find(|known| known.0 == state.txg).unwrap().1;
            assert!(content(&old) == *expected, "seed {seed}, txg {}", state.txg);
            let file = only_file(&old).unwrap();
            assert!(matches!(file.write_at(b"x", 0), Err(Error::ReadOnly(_))));
            assert!(!old.refresh().unwrap());
            whole += 1;
        }
        assert!(whole >= 2, "seed {seed}: {listed:?}");
        let device = Arc::clone(pool.store().device());
        let error = Pool::open_at(device, options(1 << 20), Txg(10_000)).unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }), "{error}");
    }
}

/// Rewinds to each intact state and goes on from there; everything adds up, and the rewind can be
/// undone.
#[test]
fn rewinding_is_a_commit_like_any_other() {
    for (seed, recycles) in [(4, false), (5, true), (6, true), (7, true)] {
        let (device, states) = history(seed, 15, recycles);
        let newest = states.last().unwrap();
        let listed = open(&device).states(&mut |_, _| {}).unwrap();
        for state in listed.iter().skip(1) {
            let label = format!("seed {seed}, txg {}", state.txg);
            let pool = open(&device);
            let rewound = pool.rewind(state.txg, &mut |_| {});
            if !state.problems.is_empty() {
                assert!(rewound.is_err(), "{label}");
                assert!(content(&pool) == newest.1, "{label}");
                continue;
            }
            let txg = rewound.unwrap();
            assert_eq!(txg, newest.0.next(), "{label}");
            let expected = &states.iter().find(|known| known.0 == state.txg).unwrap().1;
            assert!(content(&pool) == *expected, "{label}");
            assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "{label}");
            // The rewind can be undone.
            let again = pool.rewind(newest.0, &mut |_| {}).unwrap();
            assert!(again > txg && content(&pool) == newest.1, "{label}");
            assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "{label}");
            pool.rewind(txg, &mut |_| {}).unwrap();
            // The next user goes on from there.
            let pool = Pool::open(Arc::clone(pool.store().device()), options(1 << 20)).unwrap();
            assert_eq!(pool.store().recovered_from(), None, "{label}");
            let file = only_file(&pool).unwrap();
            let mut expected = expected.clone();
            let mut rng = Rng(seed);
            for _ in 0..6 {
                let at = rng.below(300_000) as usize;
                let new = rng.text(30_000);
                file.write_at(&new, at as u64).unwrap();
                expected[at..at + 30_000].copy_from_slice(&new);
                file.commit(Durability::Durable).unwrap();
                assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "{label}");
            }
            assert!(content(&pool) == expected, "{label}");
        }
    }
}

/// Loses power at every write and sync of a rewind and of the next commit: the pool is in the old
/// state, the rewound one, or the one committed after it. Once the rewind has returned, the old
/// state is no longer possible.
#[test]
fn rewinding_survives_loss_of_power() {
    for (seed, recycles) in [(8, false), (9, true)] {
        let (device, states) = history(seed, 12, recycles);
        let image = device.image();
        let pool = open(&device);
        let listed = pool.states(&mut |_, _| {}).unwrap();
        let old = listed.iter().skip(1).rfind(|state| state.problems.is_empty()).unwrap().txg;
        let mut known = vec![states.last().unwrap().1.clone()];
        known.push(states.iter().find(|(txg, _)| *txg == old).unwrap().1.clone());

        let device = SimDevice::new(image.clone());
        let pool = Pool::open(device.clone(), options(1 << 20)).unwrap();
        pool.rewind(old, &mut |_| {}).unwrap();
        let mut trace = device.take_trace();
        let rewound_at = trace.len();
        let (file, mut rng) = (only_file(&pool).unwrap(), Rng(seed));
        let mut bytes = known[1].clone();
        let new = rng.noise(100_000);
        file.write_at(&new, 50_000).unwrap();
        bytes[50_000..150_000].copy_from_slice(&new);
        file.commit(Durability::Durable).unwrap();
        known.push(bytes);
        trace.extend(device.take_trace());

        let (mut disk, mut seen) = (Disk::new(image), [0; 3]);
        for at in 0..=trace.len() {
            for round in 0..24 {
                let crashed =
                    SimDevice::new(disk.crash(&mut rng, if round % 2 == 0 { 512 } else { 4096 }));
                let label = format!("seed {seed}, cut at {at}, round {round}");
                let pool = Pool::open(crashed, options(1 << 20)).expect(&label);
                assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "{label}");
                let found = content(&pool);
                let which = known.iter().position(|known| *known == found).expect(&label);
                assert!(which > 0 || at < rewound_at, "{label}: the rewind was acknowledged");
                seen[which] += 1;
                // Work can go on.
                let file = only_file(&pool).unwrap();
                file.write_at(b"on", 7).unwrap();
                file.commit(Durability::Durable).expect(&label);
                assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "{label}");
            }
            if let Some(op) = trace.get(at) {
                disk.apply(op);
            }
        }
        assert!(seen.iter().all(|count| *count > 10), "{seen:?}");
    }
}

/// A rewind without its superblock does not count: if its process ends before that, the next user
/// finds the newest state, complete. Space that is free in the older state may be in use in the
/// newest.
#[test]
fn a_rewind_that_is_cut_short_leaves_the_newest_state_whole() {
    let mut rewound = 0;
    for seed in 20..32 {
        let (device, states) = history(seed, 10, true);
        let image = device.image();
        let newest = &states.last().unwrap().1;
        let listed = open(&device).states(&mut |_, _| {}).unwrap();
        for state in listed.iter().skip(1).filter(|state| state.problems.is_empty()) {
            let label = format!("seed {seed}, txg {}", state.txg);
            let device = SimDevice::new(image.clone());
            let pool = Pool::open(device.clone(), options(1 << 20)).unwrap();
            pool.rewind(state.txg, &mut |_| {}).unwrap();
            let trace = device.take_trace();
            let is_superblock = |op: &Op| matches!(op, Op::Write(at, _) if *at < EXTENTS_OFFSET);
            let end = trace.iter().rposition(is_superblock).unwrap();
            let cut = MemoryDevice::new(image.clone());
            for op in &trace[..end] {
                if let Op::Write(offset, bytes) = op {
                    cut.write_at(bytes, *offset).unwrap();
                }
            }
            let cut: Arc<dyn Device> = Arc::new(cut);
            let pool = Pool::open(cut, options(1 << 20)).unwrap();
            assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "{label}");
            assert!(content(&pool) == *newest, "{label}");
            rewound += 1;
        }
    }
    assert!(rewound > 12, "{rewound}");
}

/// Fails the next sync.
#[derive(Debug, Default)]
struct FailOnce(Arc<AtomicBool>);

impl Fault for FailOnce {
    fn sync(&mut self, _: &[u8]) -> io::Result<bool> {
        match self.0.swap(false, Ordering::Relaxed) {
            true => Err(io::Error::other("injected")),
            false => Ok(true),
        }
    }
}

/// A state whose sync failed can be read, but may be lost with the power, whatever was synced since
/// on top of it. Restoring it makes it durable.
#[test]
fn a_rewind_to_a_state_whose_sync_failed_survives_a_loss_of_power() {
    let mut rng = Rng(40);
    for round in 0..20 {
        let sim = SimDevice::new(Vec::new());
        let fails = FailOnce::default();
        let armed = Arc::clone(&fails.0);
        sim.set_fault(Some(Box::new(fails)));
        let processes = [(); 2].map(|()| sim.handle());
        let [one, other] = processes.map(|device| -> Arc<dyn Device> { device });
        create(&one, &[], 1 << 20);
        let [one, other] = [one, other].map(|it| Pool::open(it, options(1 << 20)).unwrap());
        let write = |pool: &Pool, byte: u8| {
            let file = only_file(pool).unwrap();
            file.write_at(&[byte; 5000], 0).unwrap();
            file.commit(Durability::Durable)
        };
        write(&one, 1).unwrap();
        armed.store(true, Ordering::Relaxed);
        write(&one, 2).unwrap_err();
        other.refresh().unwrap();
        let unsynced = other.state().txg();
        // Its process is told of the failure, too, but only once the next state is visible.
        write(&other, 3).unwrap_err();
        drop((one, other));
        let pool = Pool::open(sim.handle(), options(1 << 20)).unwrap();
        write(&pool, 4).unwrap();
        pool.rewind(unsynced, &mut |_| {}).unwrap();
        let mut disk = Disk::new(Vec::new());
        sim.take_trace().iter().for_each(|op| disk.apply(op));
        let image: Arc<dyn Device> = Arc::new(MemoryDevice::new(disk.crash(&mut rng, 512)));
        let pool = Pool::open(image, options(1 << 20)).unwrap();
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "round {round}");
        assert!(content(&pool) == [2; 5000], "round {round}");
    }
}

/// Rounds of the test below: enough for space to be reused many times.
const HELD_ROUNDS: usize = 60;

/// An older state can be held while it is whole, and then stays what it was, whatever is committed,
/// rewound and reused meanwhile. One that is no longer whole is refused.
#[test]
fn older_states_are_held_while_they_are_whole() {
    let (mut held_count, mut refused_count) = (0, 0);
    for seed in 20..26 {
        let mut rng = Rng(seed);
        let device: Arc<dyn Device> = SimDevice::new(Vec::new());
        let properties = [(Property::RecordSize, "16K"), (Property::Concurrency, "snapshot")];
        let pool = create(&device, &properties, 32 << 20);
        let file = only_file(&pool).unwrap();
        let mut bytes = rng.noise(300_000);
        file.write_at(&bytes, 0).unwrap();
        let mut states: Vec<(Txg, Vec<u8>)> = Vec::new();
        let mut held: Vec<(Pool, Pin, Vec<u8>)> = Vec::new();
        for round in 0..HELD_ROUNDS {
            let label = format!("seed {seed}, round {round}");
            let len = rng.pick(&[100, 3000, 60_000]);
            let at = rng.below((bytes.len() - len) as u64) as usize;
            let new = rng.noise(len);
            file.write_at(&new, at as u64).unwrap();
            bytes[at..at + len].copy_from_slice(&new);
            file.commit(rng.pick(&[Durability::Visible, Durability::Durable])).unwrap();
            states.push((pool.state().txg(), bytes.clone()));
            for (txg, then) in states.iter().rev().take(9) {
                match pool.hold_state(*txg, &mut || false).unwrap() {
                    Some((old, pin)) if rng.one_in(3) => held.push((old, pin, then.clone())),
                    // It is given up again, so that others can be reused.
                    Some(_) => {}
                    None => refused_count += 1,
                }
            }
            for (old, pin, then) in &held {
                // With a cache of its own.
                let other = Pool::open(Arc::clone(&device), options(1 << 20)).unwrap();
                let now = only_file(&other).unwrap();
                let mut found = vec![0; then.len()];
                now.read_pinned_at(pin, &mut found, 0).unwrap();
                assert!(found == *then, "{label}: txg {} has changed", pin.state().txg());
                assert!(content(old) == *then, "{label}: txg {}", old.txg());
                let error = only_file(old).unwrap().write_at(b"x", 0).unwrap_err();
                assert!(matches!(error, Error::ReadOnly(_)), "{label}: {error}");
                held_count += 1;
            }
            if rng.one_in(4) {
                held.clear();
            }
            // Nobody reads while the pool is rewound.
            if held.is_empty() && rng.one_in(6) {
                let listed = pool.states(&mut |_, _| {}).unwrap();
                let whole: Vec<_> = listed.iter().filter(|one| one.problems.is_empty()).collect();
                let to = whole[rng.below(whole.len() as u64) as usize].txg;
                let then = states.iter().rfind(|(txg, _)| *txg == to).cloned();
                if let Some((_, then)) = then.filter(|_| to < pool.txg()) {
                    states.push((pool.rewind(to, &mut |_| {}).unwrap(), then.clone()));
                    bytes = then;
                }
            }
        }
        assert!(pool.hold_state(Txg(u64::MAX >> 3), &mut || false).unwrap().is_none());
    }
    assert!(held_count > 100 && refused_count > 100, "{held_count} held, {refused_count} refused");
}

/// Without pins nobody would respect that a state is held, so it is not.
#[test]
fn a_pool_without_pins_holds_no_older_state() {
    let (device, states) = history(8, 3, false);
    let pool = open(&device);
    let error = pool.hold_state(states[1].0, &mut || false).unwrap_err();
    assert!(matches!(&error, Error::Invalid(text) if text.contains("concurrency")), "{error}");
}

/// The time that the pools of the test below see, in seconds.
static NOW: AtomicU64 = AtomicU64::new(0);

/// A state that is read for longer than `reader-pin-max` no longer keeps its space. Its reader gets
/// an error, never other data. Younger pins count as before.
#[test]
fn a_pin_beyond_its_limit_keeps_nothing() {
    let mut given_up = 0;
    for seed in 40..44 {
        let mut rng = Rng(seed);
        NOW.store(0, Ordering::Relaxed);
        let device: Arc<dyn Device> = SimDevice::new(Vec::new());
        let properties = [(Property::RecordSize, "16K"), (Property::Concurrency, "snapshot")];
        drop(create(&device, &properties, 32 << 20));
        let clock = Arc::new(|| Duration::from_secs(NOW.load(Ordering::Relaxed)));
        let options = || Options { clock: clock.clone(), ..options(1 << 20) };
        let pool = Pool::open(Arc::clone(&device), options()).unwrap();
        let file = only_file(&pool).unwrap();
        let mut bytes = rng.noise(300_000);
        file.write_at(&bytes, 0).unwrap();
        file.commit(Durability::Durable).unwrap();
        let (old, then) = (pool.store().pin().unwrap(), bytes.clone());
        let mut churn = |bytes: &mut Vec<u8>| {
            for _ in 0..30 {
                let at = rng.below(bytes.len() as u64 - 20_000) as usize;
                let new = rng.noise(20_000);
                file.write_at(&new, at as u64).unwrap();
                bytes[at..at + new.len()].copy_from_slice(&new);
                file.commit(Durability::Durable).unwrap();
            }
        };
        let read = |pin: &Pin| {
            // With a cache of its own.
            let other = Pool::open(Arc::clone(&device), options()).unwrap();
            let mut found = vec![0; then.len()];
            only_file(&other).unwrap().read_pinned_at(pin, &mut found, 0).map(|_| found)
        };
        churn(&mut bytes);
        assert!(read(&old).unwrap() == then, "seed {seed}: there is no limit yet");
        pool.set_property(ROOT, Property::ReaderPinMax, "10s").unwrap();
        NOW.store(100, Ordering::Relaxed);
        churn(&mut bytes);
        assert!(read(&old).unwrap() == then, "seed {seed}: the time counts from the first look");
        NOW.store(110, Ordering::Relaxed);
        churn(&mut bytes);
        assert!(read(&old).unwrap() == then, "seed {seed}: the limit is not exceeded");
        let (young, later) = (pool.store().pin().unwrap(), bytes.clone());
        NOW.store(111, Ordering::Relaxed);
        churn(&mut bytes);
        churn(&mut bytes);
        match read(&old) {
            Err(error) => given_up += usize::from(error.is_corruption()),
            Ok(found) => assert!(found == then, "seed {seed}: a given-up state has changed"),
        }
        assert!(read(&young).unwrap() == later, "seed {seed}: a young pin was given up");
        pool.set_property(ROOT, Property::ReaderPinMax, "none").unwrap();
        NOW.store(1000, Ordering::Relaxed);
        churn(&mut bytes);
        assert!(read(&young).unwrap() == later, "seed {seed}: the limit is gone");
    }
    assert!(given_up > 0, "no space of a given-up state was reused");
}

/// A pool begins with a state that has no root. Whoever went back to that could use it for nothing.
#[test]
fn there_is_no_way_back_to_before_the_root() {
    let device: Arc<dyn Device> = SimDevice::new(Vec::new());
    drop(create(&device, &[], 1 << 20));
    let pool = Pool::open(device, options(1 << 20)).unwrap();
    let states = pool.states(&mut |_, _| {}).unwrap();
    let first = states.iter().find(|state| state.txg == Txg(1)).expect("the first state");
    assert!(first.problems.iter().any(|it| it.contains("no root")), "{:?}", first.problems);
    let refused = pool.rewind(Txg(1), &mut |_| {}).unwrap_err();
    assert!(refused.to_string().contains("no root"), "{refused}");
    pool.rewind(states[0].txg, &mut |_| {}).unwrap();
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}

/// What was written since the restored state is free in it, so nobody may read that any longer.
#[test]
fn a_state_that_another_process_reads_is_not_taken_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let device: Arc<dyn Device> = Arc::new(FileDevice::create_new(&path).unwrap());
    let pool = create(&device, &[(Property::Concurrency, "snapshot")], 32 << 20);
    let file = only_file(&pool).unwrap();
    let commit = |byte: u8| {
        file.write_at(&[byte; 20_000], 0).unwrap();
        file.commit(Durability::Durable).unwrap();
        pool.state().txg()
    };
    let old = commit(b'a');
    let other: Arc<dyn Device> = Arc::new(FileDevice::open(&path).unwrap());
    let reader = Pool::open(other, options(1 << 20)).unwrap();
    let kept = reader.store().pin().unwrap();
    for byte in [b'b', b'c'] {
        let new = commit(byte);
        let held = reader.store().pin().unwrap();
        assert!(matches!(pool.rewind(old, &mut |_| {}), Err(Error::Busy)));
        assert_eq!(pool.state().txg(), new);
        drop(held);
    }
    pool.rewind(old, &mut |_| {}).unwrap();
    for byte in 0..20 {
        commit(byte);
    }
    let mut found = vec![0; 20_000];
    only_file(&reader).unwrap().read_pinned_at(&kept, &mut found, 0).unwrap();
    assert_eq!(found, [b'a'; 20_000]);
}

/// A disk with little room: to restore an older state takes a few sectors behind the end. Whether
/// or not they fit, all states that were there can still be restored, also after the pool was
/// closed, and whatever was asked for.
#[test]
fn a_rewind_on_a_full_disk_keeps_the_states() {
    for (room, wrong) in [(0, false), (0, true), (128 << 10, false), (128 << 10, true)] {
        let mut rng = Rng(1);
        let bounded = Arc::new(BoundedDevice::new(Vec::new(), u64::MAX, u64::MAX));
        bounded.tell_room();
        let device: Arc<dyn Device> = bounded.clone();
        let pool = create(&device, &[(Property::RecordSize, "4K")], 32 << 20);
        let file = only_file(&pool).unwrap();
        let mut commit = |numbers: std::ops::Range<u64>, is_zero: bool| {
            for number in numbers {
                let bytes = if is_zero { vec![0; 4096] } else { rng.noise(4000) };
                file.write_at(&bytes, number * 4096).unwrap();
            }
            file.commit(Durability::Durable).unwrap();
        };
        commit(0..2000, false);
        (0..3).for_each(|number| commit(number..number + 1, false));
        let good = pool.state().txg();
        commit(0..400, true);
        pool.close().unwrap();
        drop((file, pool));
        bounded.set_len_max(bounded.len().unwrap() + room);

        let open = || Pool::open(Arc::clone(&device), options(32 << 20)).unwrap();
        let states = |pool: &Pool| -> Vec<Txg> {
            let states = pool.states(&mut |_, _| {}).unwrap();
            let sound = states.iter().filter(|state| state.problems.is_empty());
            sound.map(|state| state.txg).collect()
        };
        let pool = open();
        let before = states(&pool);
        assert!(before.contains(&good));
        let done = pool.rewind(if wrong { Txg(2) } else { good }, &mut |_| {});
        assert_eq!(done.is_ok(), room > 0 && !wrong, "{room}: {done:?}");
        pool.close().unwrap();
        drop(pool);
        let pool = open();
        let after = states(&pool);
        let gone = before.iter().filter(|txg| !after.contains(txg)).count();
        // A commit, and a mark that it is durable.
        assert!(gone <= if done.is_ok() { 3 } else { 1 }, "{room}, {wrong}: {before:?} {after:?}");
        assert!(after.contains(&good), "{room}, {wrong}: {before:?} {after:?}");
        bounded.set_len_max(u64::MAX);
        pool.rewind(good, &mut |_| {}).unwrap();
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    }
}
