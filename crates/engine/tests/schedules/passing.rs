//! Many threads of several processes wait for their commits to be durable, with few superblocks
//! that may stay, one step at a time in an order that a seed chooses. Processes are killed at any
//! step, syncs and superblocks fail, and after a loss of power others go on and lose power again.
//!
//! `HARDPACK_SCHEDULES` is the number of seeds, `HARDPACK_SCHEDULE_SEED` the first.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::common::losses::lose_power;
use crate::common::scheduled::{Mutant, Scheduled, World};
use crate::common::scheduler::{Scheduler, point};
use crate::common::sim_device::{Op, SimDevice};
use crate::common::{Rng, create, env_number, options, problems};
use hardpack_engine::Error;
use hardpack_engine::device::Device;
use hardpack_engine::pool::Pool;
use hardpack_engine::store::checksum::ChecksumKind;
use hardpack_engine::store::pointer::Pointer;
use hardpack_engine::store::trees::TreeId;
use hardpack_engine::store::{Durability, Encoding, Owner, State, Store};

const SEEDS_DEFAULT: u64 = 100;
const CRASH_COUNT: u64 = 8;
const STARTED: u64 = 1 << 56;
const DURABLE: u64 = 2 << 56;

fn note(kind: u64, thing: usize, version: u64) -> u64 {
    kind | (thing as u64) << 40 | version
}

#[derive(Clone, Copy, Debug, Default)]
struct Thing {
    started: u64,
    /// The newest version that is known to be visible.
    visible: u64,
}

#[derive(Default)]
struct Process {
    live: Mutex<Option<Arc<Live>>>,
    is_opening: AtomicBool,
}

struct Live {
    device: Arc<Scheduled>,
    pool: Pool,
}

struct Shared {
    world: Arc<World>,
    processes: Vec<Process>,
    things: Mutex<Vec<Thing>>,
    is_lossy: bool,
    anchor_count_max: usize,
    /// Before one of how many calls a sync is made to fail, or a superblock.
    fault_one_in: u64,
    /// How many of eight commits wait to be durable, and one of how many that did is the last
    /// thing that its process does.
    durable_of_eight: u64,
    last_one_in: u64,
    passing: AtomicU64,
    durable: AtomicU64,
}

fn text(error: Error) -> String {
    error.to_string()
}

fn key(thing: usize) -> [u8; 16] {
    let mut key = [0; 16];
    key[7] = 99;
    key[8..].copy_from_slice(&((thing as u64) << 24).to_be_bytes());
    key
}

/// Reads the version of a thing, 0 if it has none.
fn read_in(store: &Store, state: &State, thing: usize) -> Result<u64, Error> {
    let value = state.trees[TreeId::Map].get(&mut &*store, &key(thing))?;
    let Some(pointer) = value.and_then(|value| Pointer::decode(&value)) else { return Ok(0) };
    let bytes = store.read_of(Some(state), &pointer)?;
    Ok(u64::from_le_bytes(bytes.as_slice()[..8].try_into().expect("8 bytes")))
}

fn read(store: &Store, thing: usize) -> Result<u64, String> {
    store.with_state(|state| read_in(store, state, thing)).map_err(text)
}

fn put(
    txn: &mut hardpack_engine::store::Txn,
    thing: usize,
    version: u64,
    rng: &mut Rng,
) -> Result<(), Error> {
    let ashift = txn.store().ashift();
    if let Some(value) = txn.remove(TreeId::Map, &key(thing))? {
        let old = Pointer::decode(&value).expect("this test wrote the pointer");
        txn.stats_mut().count_data(&old, ashift, false, false);
        txn.free(&old, Owner::Nobody)?;
    }
    let len = rng.pick(&[512, 4096, 40_000]);
    let mut page = rng.noise(len);
    page[..8].copy_from_slice(&version.to_le_bytes());
    let pointer = txn.store_extent(&page, Encoding::RAW, len as u32, ChecksumKind::Xxh3)?;
    let pointer = Pointer { span_log2: 24, ..pointer };
    txn.stats_mut().count_data(&pointer, ashift, false, true);
    txn.insert(TreeId::Map, &key(thing), &pointer.to_bytes())?;
    txn.cache(&pointer, page);
    Ok(())
}

impl Shared {
    fn things(&self) -> MutexGuard<'_, Vec<Thing>> {
        self.things.lock().unwrap()
    }

    fn live(&self, process: usize) -> Result<Arc<Live>, String> {
        let process = &self.processes[process];
        loop {
            let live = process.live.lock().unwrap().clone();
            if let Some(live) = live.filter(|live| !live.device.is_dead()) {
                return Ok(live);
            }
            if process.is_opening.swap(true, Ordering::Relaxed) {
                point("cede");
                continue;
            }
            let device = self.world.open();
            let opened = Pool::open(device.clone(), options(1 << 20)).map(|pool| {
                pool.store().lower_anchor_count_max(self.anchor_count_max);
                Live { device: device.clone(), pool }
            });
            let opened = opened.map(Arc::new);
            process.is_opening.store(false, Ordering::Relaxed);
            match opened {
                Ok(opened) => {
                    *process.live.lock().unwrap() = Some(Arc::clone(&opened));
                    return Ok(opened);
                }
                Err(_) if device.is_dead() => {}
                Err(error) => return Err(format!("cannot open: {error}")),
            }
        }
    }

    fn visible(&self) -> Vec<u64> {
        self.things().iter().map(|thing| thing.visible).collect()
    }

    fn note_durable(&self, versions: &[u64]) {
        let all = versions.iter().enumerate();
        all.for_each(|(thing, version)| self.world.sim.note(note(DURABLE, thing, *version)));
    }
}

fn commit(shared: &Shared, live: &Live, thing: usize, rng: &mut Rng) -> Result<(), String> {
    let store = live.pool.store();
    let before = shared.visible();
    let mut txn = store.begin(ChecksumKind::Xxh3).map_err(text)?;
    let found = read(store, thing)?;
    let version = {
        let mut things = shared.things();
        let it = &mut things[thing];
        if !shared.is_lossy && !(it.visible..=it.started).contains(&found) {
            return Err(format!("thing {thing} is at {found}, not {it:?}"));
        }
        it.visible = found;
        it.started += 1;
        it.started
    };
    shared.world.sim.note(note(STARTED, thing, version));
    put(&mut txn, thing, version, rng).map_err(text)?;
    if rng.one_in(10) {
        return Ok(());
    }
    let is_durable = rng.below(8) < shared.durable_of_eight;
    let durability = if is_durable { Durability::Durable } else { Durability::Visible };
    let state = txn.commit(durability).map_err(text)?;
    shared.passing.fetch_add(u64::from(state.superblock.passing), Ordering::Relaxed);
    shared.things()[thing].visible = version;
    if durability == Durability::Durable {
        shared.durable.fetch_add(1, Ordering::Relaxed);
        if !shared.is_lossy {
            shared.note_durable(&before);
        }
        shared.world.sim.note(note(DURABLE, thing, version));
        if rng.one_in(shared.last_one_in) {
            live.device.kill();
        }
    }
    Ok(())
}

fn sync(shared: &Shared, live: &Live) -> Result<(), String> {
    let visible = shared.visible();
    live.pool.refresh().map_err(text)?;
    live.pool.store().make_durable().map_err(text)?;
    if !shared.is_lossy {
        shared.note_durable(&visible);
    }
    Ok(())
}

fn look(shared: &Shared, live: &Live) -> Result<(), String> {
    let before = shared.visible();
    live.pool.refresh().map_err(text)?;
    for (thing, oldest) in before.iter().enumerate() {
        let found = read(live.pool.store(), thing)?;
        if found < *oldest && !shared.is_lossy {
            return Err(format!("thing {thing} is read at {found}, {oldest} was before"));
        }
    }
    Ok(())
}

fn work(
    shared: &Shared,
    (process, thing): (usize, usize),
    mut rng: Rng,
    faults: bool,
) -> Result<(), String> {
    for _ in 0..10 {
        let live = match shared.live(process) {
            Err(_) if shared.is_lossy => continue,
            live => live?,
        };
        if faults && rng.one_in(shared.fault_one_in) {
            shared.world.wrong.fail_sync();
        }
        if faults && rng.one_in(shared.fault_one_in) {
            shared.world.wrong.fail_superblock();
        }
        let (name, done) = match rng.below(12) {
            0..=7 => ("commit", commit(shared, &live, thing, &mut rng)),
            8 => ("sync", sync(shared, &live)),
            9 => ("seal", live.pool.store().seal().map_err(text)),
            _ => ("look", look(shared, &live)),
        };
        match done {
            Err(error) if !shared.is_lossy && !live.device.excuses(&error) => {
                return Err(format!("{name}: {error}"));
            }
            _ => {}
        }
        let stopped =
            live.device.has_failed() || live.pool.store().begin(ChecksumKind::Xxh3).is_err();
        if stopped {
            let mut current = shared.processes[process].live.lock().unwrap();
            if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, &live)) {
                *current = None;
            }
        }
    }
    Ok(())
}

fn killer(shared: &Shared, mut rng: Rng) -> Result<(), String> {
    for _ in 0..rng.below(6) {
        for _ in 0..rng.below(400) {
            point("think");
        }
        let process = rng.below(shared.processes.len() as u64) as usize;
        let live = shared.processes[process].live.lock().unwrap().clone();
        if let Some(live) = live {
            live.device.kill();
        }
    }
    Ok(())
}

#[derive(Default, Debug)]
struct Ran {
    steps: usize,
    passing: u64,
    durable: u64,
}

fn run(seed: u64, mutant: Mutant, is_lossy: bool) -> Result<Ran, String> {
    let mut rng = Rng(seed ^ 0x9a55);
    let sim = SimDevice::new(Vec::new());
    drop(create(&(sim.clone() as Arc<dyn Device>), &[], 1 << 20));
    let base = sim.image();
    sim.take_trace();
    if is_lossy {
        sim.forget_lost();
    }
    let world = World::new(Arc::clone(&sim), mutant);
    world.allow_turns(1 + (seed / 8 % 3) as usize);
    let process_count = 2 + rng.below(3) as usize;
    let thread_count = (process_count + rng.below(4) as usize).min(6);
    let shared = Arc::new(Shared {
        world,
        processes: (0..process_count).map(|_| Process::default()).collect(),
        things: Mutex::new(vec![Thing::default(); thread_count]),
        is_lossy,
        anchor_count_max: 1 + rng.below(5) as usize,
        fault_one_in: rng.pick(&[4, 16]),
        durable_of_eight: rng.pick(&[2, 4, 6]),
        last_one_in: rng.pick(&[2, 8, u64::MAX]),
        passing: AtomicU64::new(0),
        durable: AtomicU64::new(0),
    });
    let scheduler = Scheduler::new(rng.fork());
    let faults = is_lossy || rng.one_in(2);
    let mut threads: Vec<_> = (0..thread_count)
        .map(|thread| {
            let (shared, rng) = (Arc::clone(&shared), rng.fork());
            scheduler.spawn(move || work(&shared, (thread % process_count, thread), rng, faults))
        })
        .collect();
    if rng.one_in(2) {
        let (shared, rng) = (Arc::clone(&shared), rng.fork());
        threads.push(scheduler.spawn(move || killer(&shared, rng)));
    }
    let steps = scheduler.run()?;
    for thread in threads {
        thread.join().map_err(|_| "a thread panicked".to_string())??;
    }
    sim.set_fault(None);
    let trace = sim.take_trace();
    let end = (!is_lossy).then(|| sim.image());
    if let Some(image) = end {
        let bounds = shared.things().iter().map(|it| (it.visible, it.started)).collect::<Vec<_>>();
        verify(&image, &bounds).map_err(|error| format!("in the end {error}"))?;
    }
    for _ in 0..CRASH_COUNT {
        let (end, mut image) = lose_power(&base, &trace, &mut rng);
        let mut bounds = bounds_of(&trace[..end], thread_count);
        for life in 0..3 {
            verify(&image, &bounds)
                .map_err(|error| format!("after operation {end}, power loss {life}: {error}"))?;
            image = relive(image, &mut bounds, &mut rng)
                .map_err(|error| format!("after operation {end}, in life {life}: {error}"))?;
        }
        verify(&image, &bounds)
            .map_err(|error| format!("after operation {end}, the last power loss: {error}"))?;
    }
    let (passing, durable) =
        (shared.passing.load(Ordering::Relaxed), shared.durable.load(Ordering::Relaxed));
    Ok(Ran { steps: steps.len(), passing, durable })
}

/// The oldest and the newest version that may be found after these operations.
fn bounds_of(trace: &[Op], count: usize) -> Vec<(u64, u64)> {
    let mut bounds = vec![(0, 0); count];
    for op in trace {
        let Op::Note(note) = op else { continue };
        let (kind, thing) = (*note >> 56 << 56, (*note >> 40) as usize & 0xff);
        let version = *note & 0xffff_ffff;
        let (oldest, newest) = &mut bounds[thing];
        let bound = if kind == DURABLE { oldest } else { newest };
        *bound = version.max(*bound);
    }
    bounds
}

/// Goes on after a loss of power, and loses it again.
fn relive(image: Vec<u8>, bounds: &mut [(u64, u64)], rng: &mut Rng) -> Result<Vec<u8>, String> {
    let sim = SimDevice::new(image.clone());
    let pool = Pool::open(sim.handle(), options(1 << 20)).map_err(text)?;
    pool.store().lower_anchor_count_max(1 + rng.below(6) as usize);
    for _ in 0..rng.below(14) {
        let thing = rng.below(bounds.len() as u64) as usize;
        let mut txn = pool.store().begin(ChecksumKind::Xxh3).map_err(text)?;
        let version = bounds[thing].1 + 1;
        bounds[thing].1 = version;
        put(&mut txn, thing, version, rng).map_err(text)?;
        let is_durable = rng.one_in(12);
        txn.commit(if is_durable { Durability::Durable } else { Durability::Visible })
            .map_err(text)?;
        if is_durable {
            sim.note(note(DURABLE, thing, version));
        }
    }
    let trace = sim.take_trace();
    let (end, image) = lose_power(&image, &trace, rng);
    let made = bounds_of(&trace[..end], bounds.len());
    for ((oldest, _), (durable, _)) in bounds.iter_mut().zip(made) {
        *oldest = durable.max(*oldest);
    }
    Ok(image)
}

fn verify(image: &[u8], bounds: &[(u64, u64)]) -> Result<(), String> {
    let pool = Pool::open(SimDevice::new(image.to_vec()).handle(), options(1 << 20))
        .map_err(|error| format!("the pool does not open: {error}"))?;
    for (thing, (oldest, newest)) in bounds.iter().enumerate() {
        let found = read(pool.store(), thing)?;
        if !(oldest..=newest).contains(&&found) {
            return Err(format!("thing {thing} is at {found}, not from {oldest} to {newest}"));
        }
    }
    let mut problems = problems(&pool).map_err(text)?;
    problems.retain(|problem| !problem.contains("it has records but is not a file"));
    if !problems.is_empty() {
        return Err(format!("check finds {problems:?}"));
    }
    Ok(())
}

fn all(is_lossy: bool) {
    let first = env_number("HARDPACK_SCHEDULE_SEED").unwrap_or(0);
    let count = env_number("HARDPACK_SCHEDULES").unwrap_or(SEEDS_DEFAULT);
    let (mut failures, mut sum) = (0, Ran::default());
    for seed in first..first + count {
        match run(seed, Mutant::None, is_lossy) {
            Ok(ran) => {
                sum.steps += ran.steps;
                sum.passing += ran.passing;
                sum.durable += ran.durable;
            }
            Err(error) => {
                println!("seed {seed}: {error}");
                failures += 1;
            }
        }
    }
    println!("{count} seeds from {first} on: {sum:?}");
    assert_eq!(failures, 0);
}

#[test]
fn passing_in_any_order() {
    all(false);
}

#[test]
fn passing_beside_losses() {
    all(true);
}
