//! A full disk: what a pool has freed lets it go on, whatever kept that from being reused before.

use std::sync::Arc;

use crate::common::limits::BoundedDevice;
use crate::common::segments::compact;
use crate::common::{Rng, create, only_file, options, problems, read_all};
use crate::gaps;
use hardpack_engine::Error;
use hardpack_engine::device::Device;
use hardpack_engine::pool::{File, Pool, Property};
use hardpack_engine::store::Durability;

const PART_LEN: usize = 40_000;
const UNIT_LEN: usize = 4096;
/// How many parts a file has: few leave little free space behind.
const PART_COUNT: u64 = 10;
const MANY_PART_COUNT: u64 = 50;
/// With fewer sectors than this, not even nodes can be replaced.
const FREED_MIN: u64 = 8;
const DIRTY_LEN_MAX: usize = 1 << 20;

fn disk(image: Vec<u8>, len: u64) -> Arc<BoundedDevice> {
    Arc::new(BoundedDevice::new(image, u64::MAX, len))
}

/// Makes a pool with a file of so many parts.
fn make(device: &Arc<dyn Device>, part_count: u64, rng: &mut Rng) {
    let pool = create(device, &[], DIRTY_LEN_MAX);
    let file = only_file(&pool).unwrap();
    file.write_at(&rng.noise(PART_LEN * part_count as usize), 0).unwrap();
    file.commit(Durability::Durable).unwrap();
}

fn open(device: &Arc<dyn Device>) -> Pool {
    Pool::open(device.clone(), options(DIRTY_LEN_MAX)).unwrap()
}

/// Writes to one of the parts of a file.
fn write(file: &File, rng: &mut Rng, len: usize, durability: Durability) -> Result<(), Error> {
    let count = file.len().unwrap() / PART_LEN as u64;
    let (bytes, at) = (rng.noise(len), rng.below(count) * PART_LEN as u64);
    let done = file.write_at(&bytes, at).and_then(|()| file.commit(durability));
    if done.is_err() {
        file.discard();
    }
    done
}

/// Writes until not even a byte can be changed, beside somebody who reads the first state, or
/// without making anything durable. Returns what the pool's file is like then.
fn fill(len: u64, is_read: bool) -> Vec<u8> {
    let bounded = disk(Vec::new(), len);
    let device: Arc<dyn Device> = bounded.clone();
    let properties: &[(Property, &str)] =
        if is_read { &[(Property::Concurrency, "snapshot")] } else { &[] };
    let pool = create(&device, properties, DIRTY_LEN_MAX);
    let file = only_file(&pool).unwrap();
    let mut rng = Rng(len);
    file.write_at(&rng.noise(PART_LEN * PART_COUNT as usize), 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    let pin = is_read.then(|| pool.store().pin().unwrap());
    let durability = if is_read { Durability::Durable } else { Durability::Visible };
    for part_len in [PART_LEN, 4000, 400, 1] {
        let mut count = 0;
        while write(&file, &mut rng, part_len, durability).is_ok() && count < 4000 {
            count += 1;
        }
    }
    drop(pin);
    bounded.image()
}

#[test]
fn a_pool_on_a_full_disk_finds_what_it_has_freed() {
    let (mut failed, mut count) = (0, 0);
    for (step, is_read) in (0..20).flat_map(|step| [(step, true), (step, false)]) {
        let len = (2 << 20) + step * 1536;
        let mut image = fill(len, is_read);
        // Each in a new process, as a command is.
        let mut outcomes = Vec::new();
        for _ in 0..3 {
            let bounded = disk(image, len);
            let pool = Pool::open(bounded.clone(), options(DIRTY_LEN_MAX)).unwrap();
            let file = only_file(&pool).unwrap();
            outcomes.push(write(&file, &mut Rng(step), 5000, Durability::Durable).is_ok());
            image = bounded.image();
        }
        failed += u32::from(!outcomes[0]);
        count += 1;
        assert!(outcomes[1] && outcomes[2], "{len} bytes, {is_read}: {outcomes:?}");
        let pool = Pool::open(disk(image, len), options(DIRTY_LEN_MAX)).unwrap();
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    }
    assert!(failed > 0, "none of {count} was full");
}

/// Two processes commit in turns and mostly sync nothing, so that many superblocks are passing.
/// Each time that one has to be durable, the disk has just become full. What cannot be committed
/// then is not there, whatever it is that needs space last.
#[test]
fn what_is_refused_is_not_committed() {
    let (mut refused, mut passing_count) = (0, 0);
    for seed in 0..40 {
        let bounded = disk(Vec::new(), u64::MAX);
        let device: Arc<dyn Device> = bounded.clone();
        let mut rng = Rng(seed);
        make(&device, PART_COUNT, &mut rng);
        let pools: [Pool; 3] = std::array::from_fn(|_| open(&device));
        let files = pools.each_ref().map(|pool| only_file(pool).unwrap());
        let shown = |at: u64, len: usize| {
            pools[2].refresh().unwrap();
            let mut bytes = vec![0; len];
            files[2].read_at(&mut bytes, at).unwrap();
            bytes
        };
        for count in 0..200 {
            let who = rng.below(2) as usize;
            pools[who].refresh().unwrap();
            let len = rng.pick(&[1, 400, 4000, PART_LEN]);
            let (bytes, at) = (rng.noise(len), rng.below(PART_COUNT) * PART_LEN as u64);
            let before = shown(at, len);
            passing_count += u32::from(pools[2].state().superblock.passing);
            let durability = match rng.below(6) {
                0 => Durability::Durable,
                _ => Durability::Visible,
            };
            if durability == Durability::Durable {
                bounded.set_len_max(device.len().unwrap() + rng.below(24) * 512);
            }
            let file = &files[who];
            let done = file.write_at(&bytes, at).and_then(|()| file.commit(durability));
            bounded.set_len_max(u64::MAX);
            let what = format!("seed {seed}, commit {count}, {durability:?}: {done:?}");
            match done {
                Ok(()) => assert_eq!(shown(at, len), bytes, "{what}"),
                Err(_) => {
                    file.discard();
                    refused += 1;
                    assert!(shown(at, len) == before, "{what}");
                }
            }
        }
    }
    assert!(refused > 100 && passing_count > 1000, "{refused} refused, {passing_count} passing");
}

fn set_attributes(pool: &Pool, _: &File, rng: &mut Rng) -> bool {
    gaps::set_attributes(pool, rng.next() as i64)
}

fn remove(pool: &Pool, _: &File, _: &mut Rng) -> bool {
    gaps::remove(pool)
}

/// Asserts that a change can be made in a pool on a full disk: at once if the disk says that it is
/// full, otherwise by those who try again.
fn assert_goes_on(image: Vec<u8>, change: impl Fn(&Pool, &File, &mut Rng) -> bool, what: &str) {
    let bounded = disk(image.clone(), image.len() as u64);
    bounded.tell_room();
    let pool = Pool::open(bounded.clone(), options(DIRTY_LEN_MAX)).unwrap();
    assert!(change(&pool, &only_file(&pool).unwrap(), &mut Rng(0)), "{what}: refused");
    let len = image.len() as u64;
    let (mut image, mut outcomes) = (image, Vec::new());
    for attempt in 0..4 {
        let bounded = disk(image, len);
        let pool = Pool::open(bounded.clone(), options(DIRTY_LEN_MAX)).unwrap();
        let Ok(file) = only_file(&pool) else { break };
        outcomes.push(change(&pool, &file, &mut Rng(attempt)));
        image = bounded.image();
    }
    assert!(outcomes.contains(&true), "{what}: {outcomes:?}");
}

/// Two processes commit in turns and sync nothing, so that most superblocks are passing, until the
/// disk is full and both are killed.
#[test]
fn whoever_comes_next_can_go_on_behind_a_passing_superblock() {
    let mut passing_count = 0;
    for seed in 0..4 {
        let bounded = disk(Vec::new(), u64::MAX);
        let device: Arc<dyn Device> = bounded.clone();
        let mut rng = Rng(seed);
        make(&device, if seed % 2 == 0 { MANY_PART_COUNT } else { PART_COUNT }, &mut rng);
        let pools = [open(&device), open(&device)];
        let files = pools.each_ref().map(|pool| only_file(pool).unwrap());
        for count in 0..300 {
            let who = count % 2;
            pools[who].refresh().unwrap();
            let len = rng.pick(&[100, 4000, 4000, PART_LEN]);
            write(&files[who], &mut rng, len, Durability::Visible).unwrap();
            let state = pools[who].state();
            passing_count += u32::from(state.superblock.passing);
            let what = format!("seed {seed}, commit {count}");
            // Noise behind many patches is written whole, which takes more than is free at times.
            if seed % 2 == 0 {
                let small = |_: &Pool, file: &File, rng: &mut Rng| {
                    write(file, rng, 400, Durability::Durable).is_ok()
                };
                assert_goes_on(bounded.image(), small, &what);
            }
            if state.superblock.freed_sectors >= FREED_MIN {
                assert_goes_on(bounded.image(), set_attributes, &what);
            }
        }
    }
    assert!(passing_count > 500, "only {passing_count} were passing");
}

/// Who undoes a transaction that did not fit needs no space for it, and once there is space, the
/// next one is committed.
#[test]
fn a_transaction_that_does_not_fit_can_be_undone() {
    let bounded = disk(Vec::new(), u64::MAX);
    let device: Arc<dyn Device> = bounded.clone();
    let pool = create(&device, &[], DIRTY_LEN_MAX);
    let file = only_file(&pool).unwrap();
    let mut rng = Rng(1);
    let before = rng.noise(PART_LEN);
    file.write_at(&before, 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    let after = rng.noise(PART_LEN);
    for forgives in [false, true] {
        bounded.set_len_max(device.len().unwrap());
        file.write_at(&after, 0).unwrap();
        assert!(matches!(file.commit(Durability::Durable), Err(Error::NoSpace)));
        if forgives {
            file.forgive();
        }
        file.write_at(&before, 0).unwrap();
        file.commit(Durability::Durable).unwrap();
        let mut found = vec![0; PART_LEN];
        file.read_at(&mut found, 0).unwrap();
        assert!(found == before);
    }
    file.write_at(&after, 0).unwrap();
    file.commit(Durability::Durable).unwrap_err();
    file.write_at(&after, 0).unwrap();
    bounded.set_len_max(u64::MAX);
    file.commit(Durability::Durable).unwrap_err();
    file.forgive();
    file.write_at(&after, 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    let mut found = vec![0; PART_LEN];
    file.read_at(&mut found, 0).unwrap();
    assert!(found == after);
}

/// Bytes behind the end of a database are left where cutting them off found no room. Who undoes a
/// transaction of it cuts them off once more, and must not fail for that.
#[test]
fn a_tail_that_was_not_cut_off_does_not_keep_from_undoing() {
    // With less memory than the changes take, too.
    for dirty_len_max in [DIRTY_LEN_MAX, 2 * UNIT_LEN] {
        undo_beside_a_tail(dirty_len_max);
    }
}

fn undo_beside_a_tail(dirty_len_max: usize) {
    const TAIL_LEN: usize = 5000;
    let bounded = disk(Vec::new(), u64::MAX);
    let device: Arc<dyn Device> = bounded.clone();
    let pool = create(&device, &[], dirty_len_max);
    let file = only_file(&pool).unwrap();
    let mut rng = Rng(1);
    let content = rng.noise(PART_LEN + TAIL_LEN);
    file.write_at(&content, 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    let (txg, own) = (pool.state().txg(), &content[..PART_LEN]);
    let undo = |bytes: &[u8]| {
        file.forgive();
        file.set_len(PART_LEN as u64).unwrap();
        for (index, part) in bytes.chunks(UNIT_LEN).enumerate() {
            file.write_at(part, (index * UNIT_LEN) as u64)?;
        }
        file.commit(Durability::Durable)
    };
    bounded.set_len_max(device.len().unwrap());
    undo(&own[..PART_LEN / 2]).unwrap();
    undo(own).unwrap();
    assert!(pool.state().txg() == txg && read_all(&file).unwrap() == content);
    // Anything else is a change.
    bounded.set_len_max(u64::MAX);
    undo(&rng.noise(UNIT_LEN)).unwrap();
    assert_eq!(file.len().unwrap(), PART_LEN as u64);
    for is_cut_deeper in [false, true] {
        file.write_at(&content, 0).unwrap();
        file.commit(Durability::Durable).unwrap();
        file.forgive();
        file.set_len(if is_cut_deeper { UNIT_LEN } else { PART_LEN } as u64).unwrap();
        let kept = if is_cut_deeper { PART_LEN + 1 } else { PART_LEN };
        if is_cut_deeper {
            file.set_len(kept as u64).unwrap();
            file.write_at(&own[..UNIT_LEN], 0).unwrap();
        }
        file.commit(Durability::Durable).unwrap();
        assert_eq!(file.len().unwrap(), kept as u64);
        let mut expected = if is_cut_deeper { own[..UNIT_LEN].to_vec() } else { own.to_vec() };
        expected.resize(kept, 0);
        assert!(read_all(&file).unwrap() == expected);
    }
}

/// Whatever has filled the disk to the last byte, attributes can be changed then, and names be
/// removed.
#[test]
fn a_pool_that_has_filled_the_disk_can_be_tidied() {
    for (step, record_size) in (0..20).flat_map(|step| [(step, "4K"), (step, "128K")]) {
        let len = (1 << 20) + step * 1536;
        let bounded = disk(Vec::new(), len);
        let device: Arc<dyn Device> = bounded.clone();
        let pool = create(&device, &[(Property::RecordSize, record_size)], DIRTY_LEN_MAX);
        let file = only_file(&pool).unwrap();
        let mut rng = Rng(len);
        for part_len in [PART_LEN, 4000, 400, 1] {
            let mut append = || {
                let bytes = rng.noise(part_len);
                file.write_at(&bytes, file.len()?)?;
                file.commit(Durability::Durable)
            };
            match (0..4000).try_for_each(|_| append()) {
                // A record that grows by single bytes may still find places in turns.
                Ok(()) => assert_eq!(part_len, 1, "{len} bytes are not full"),
                Err(error) => assert!(matches!(error, Error::NoSpace), "{error}"),
            }
            file.discard();
        }
        let what = format!("{len} bytes, {record_size}");
        assert_goes_on(bounded.image(), set_attributes, &what);
        assert_goes_on(bounded.image(), remove, &what);
    }
}

/// On a full disk each commit makes reusable what it can. That is not worth it any more when there
/// is space.
#[test]
fn commits_are_short_again_once_there_is_space() {
    for tells in [false, true] {
        let bounded = disk(Vec::new(), u64::MAX);
        if tells {
            bounded.tell_room();
        }
        let device: Arc<dyn Device> = bounded.clone();
        let mut rng = Rng(1);
        make(&device, 10 * MANY_PART_COUNT, &mut rng);
        let pool = open(&device);
        let file = only_file(&pool).unwrap();
        let rewrite = || {
            for seed in 0..20 {
                write(&file, &mut Rng(seed), PART_LEN, Durability::Durable).unwrap();
            }
        };
        let mut commit = || {
            let counts = (0..30).map(|_| {
                write(&file, &mut rng, 400, Durability::Durable).unwrap();
                pool.state().superblock.freed_count
            });
            counts.max()
        };
        assert!(commit() > Some(60));
        rewrite();
        bounded.set_len_max(device.len().unwrap() + 4096);
        assert!(matches!(
            write(&file, &mut Rng(2), 20 * PART_LEN, Durability::Durable),
            Err(Error::NoSpace)
        ));
        assert!(commit() < Some(60));
        bounded.set_len_max(u64::MAX);
        if !tells {
            // That there is space shows only when it is needed.
            rewrite();
        }
        assert!(commit() > Some(60));
    }
}

/// All holes are too short for what lies behind them. A compaction says how much room would help,
/// and with that it does.
#[test]
fn a_compaction_says_how_much_room_it_lacks() {
    const RECORD_LEN: usize = 128 << 10;
    let bounded = disk(Vec::new(), u64::MAX);
    let device: Arc<dyn Device> = bounded.clone();
    let pool = create(&device, &[], 32 << 20);
    let file = only_file(&pool).unwrap();
    let mut rng = Rng(5);
    let starts: Vec<u64> = (0..64).map(|number| number * RECORD_LEN as u64).collect();
    for pair in starts.chunks(2) {
        for (at, len) in pair.iter().zip([RECORD_LEN, RECORD_LEN / 2]) {
            file.write_at(&rng.noise(len), *at).unwrap();
            file.commit(Durability::Durable).unwrap();
        }
    }
    for pair in starts.chunks(2) {
        file.write_at(&[0; RECORD_LEN], pair[1]).unwrap();
    }
    file.commit(Durability::Durable).unwrap();
    let expected = read_all(&file).unwrap();
    bounded.set_len_max(device.len().unwrap());
    let report = compact(&pool);
    assert!(report.lacking_bytes >= 1 << 20, "{report:?}");
    assert!(report.after_bytes > report.used_bytes + report.used_bytes / 4, "{report:?}");
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    bounded.set_len_max(report.after_bytes + report.lacking_bytes);
    let report = compact(&pool);
    assert_eq!(report.lacking_bytes, 0, "{report:?}");
    assert!(report.after_bytes < report.used_bytes + report.used_bytes / 16, "{report:?}");
    assert!(read_all(&file).unwrap() == expected);
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}
