//! A pool whose file was cut short is never written to silently, and a pool that was not is never
//! taken for one, whoever grows, shortens or crashes it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::sim_device::{Disk, SimDevice};
use crate::common::{Rng, create_options, only_file, options, problems, read_all};
use hardpack_engine::device::{Device, FileDevice, MemoryDevice};
use hardpack_engine::pool::{File, Pool, Property, ROOT, Salvage};
use hardpack_engine::store::checksum::ChecksumKind;
use hardpack_engine::store::superblock::{BLOCK_LEN, EXTENTS_OFFSET};
use hardpack_engine::store::{Durability, Patience};
use hardpack_engine::{Error, Result, Txg};

/// The content of the file, by the txg of its state.
type History = BTreeMap<Txg, Vec<u8>>;

fn open(image: &[u8]) -> (Arc<MemoryDevice>, Result<Pool>) {
    let device = Arc::new(MemoryDevice::new(image.to_vec()));
    (Arc::clone(&device), Pool::open(device, options(1 << 20)))
}

fn compact(pool: &Pool) {
    let mut compaction = pool.compact();
    while compaction.step().unwrap() {}
}

/// Writes, truncates, takes snapshots, deduplicates and compacts, and notes what each state holds.
/// Returns whether the last commits were durable, and the image: closed properly, or not.
fn history(seed: u64) -> (Vec<u8>, History, bool) {
    let mut rng = Rng(seed);
    let device = Arc::new(MemoryDevice::default());
    let ashift = rng.pick(&[9, 9, 12]);
    let record = rng.pick(&["4K", "16K", "128K"]);
    let mut properties = vec![(Property::RecordSize, record)];
    if rng.one_in(2) {
        properties.push((Property::Dedup, "on"));
    }
    let dynamic: Arc<dyn Device> = device.clone();
    let created = create_options(ashift, &properties);
    let pool = Pool::create(dynamic, &created, options(1 << 20)).unwrap();
    let file = only_file(&pool).unwrap();
    let (mut bytes, mut known) = (Vec::new(), History::new());
    for round in 0..8 + rng.below(10) {
        for _ in 0..1 + rng.below(4) {
            let len = rng.pick(&[200, 4096, 30_000, 200_000]);
            let at = rng.below(300_000) as usize;
            let new = rng.content(len);
            bytes.resize(bytes.len().max(at + len), 0);
            bytes[at..at + len].copy_from_slice(&new);
            file.write_at(&new, at as u64).unwrap();
        }
        if rng.one_in(4) {
            bytes.truncate(rng.below(bytes.len() as u64) as usize);
            file.set_len(bytes.len() as u64).unwrap();
        }
        file.commit(rng.pick(&[Durability::Visible, Durability::Durable])).unwrap();
        known.insert(pool.state().txg(), bytes.clone());
        if rng.one_in(8) {
            let name = format!("s{round}");
            pool.create_snapshot(ROOT, name.as_bytes(), 0).unwrap();
            known.insert(pool.state().txg(), bytes.clone());
        }
        if rng.one_in(6) {
            let before = pool.state().txg();
            compact(&pool);
            (before.0..=pool.state().txg().0).for_each(|txg| {
                known.insert(Txg(txg), bytes.clone());
            });
        }
    }
    let is_closed = rng.one_in(2);
    if is_closed {
        file.commit(Durability::Durable).unwrap();
        pool.close().unwrap();
    }
    // Whatever closing or syncing committed has the same content.
    let last = known.keys().next_back().unwrap().0;
    (last..=pool.state().txg().0).for_each(|txg| {
        known.insert(Txg(txg), bytes.clone());
    });
    (device.image(), known, is_closed)
}

/// Asserts that everything that writes is refused, and changes nothing.
fn assert_refuses(device: &MemoryDevice, image: &[u8], pool: &Pool, label: &str) {
    let refused = |done: Result<()>| {
        assert!(matches!(done, Err(Error::CutShort(_))), "{label}: {done:?}");
    };
    let store = pool.store();
    refused(store.begin_with(ChecksumKind::default(), Patience::None).map(drop));
    // It reads the properties before it writes.
    let set = pool.set_property(ROOT, Property::Compression, "lz4");
    assert!(set.is_err(), "{label}: a property is set");
    if let Ok(file) = only_file(pool) {
        refused(file.write_at(b"x", 0).map(drop));
        refused(file.set_len(1));
    }
    assert!(pool.create_snapshot(ROOT, b"new", 0).is_err(), "{label}: a snapshot is taken");
    let mut compaction = pool.compact();
    // Steps that only look around succeed.
    for _ in 0..100 {
        if !matches!(compaction.step(), Ok(true)) {
            break;
        }
    }
    let _ = pool.close();
    store.make_durable().unwrap();
    assert!(store.is_read_only());
    assert!(device.image() == *image, "{label}: the pool was written to");
}

/// Opens an image cut at `len`. It must be whole, or refuse every change. Returns whether it counts
/// as cut short.
fn look(image: &[u8], len: u64, known: &History, durable: Txg, label: &str) -> bool {
    let label = format!("{label}, cut at {len} of {}", image.len());
    let cut = &image[..len as usize];
    let (device, pool) = open(cut);
    let pool = pool.unwrap_or_else(|error| panic!("{label}: {error}"));
    if let Some(found) = pool.store().cut_short() {
        assert_eq!(found.len, len, "{label}");
        assert!(found.needed.unwrap() <= image.len() as u64, "{label}: {found:?}");
        assert!(!pool.check(&mut |_| {}).unwrap().is_clean(), "{label}");
        assert_refuses(&device, cut, &pool, &label);
        return true;
    }
    // What a loss of power leaves: whole, and no durable state is lost. It tears only at 512 bytes;
    // if zeros behind a commit that is not durable are lost, the next commit writes them again.
    let found = problems(&pool).unwrap();
    let is_padding = |problem: &String| problem.contains("expected its last sector to end");
    assert!(
        found.is_empty() || !len.is_multiple_of(512) && found.iter().all(is_padding),
        "{label}: {found:?}"
    );
    assert!(pool.state().txg() >= durable, "{label}: a durable state is lost");
    let file = only_file(&pool).unwrap();
    assert!(read_all(&file).unwrap() == known[&pool.state().txg()], "{label}");
    file.write_at(b"on", 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "{label}");
    false
}

/// Returns the newest state that the superblocks of an image record as durable.
fn recorded(image: &[u8]) -> Txg {
    let (_, pool) = open(image);
    let superblocks = pool.unwrap().store().superblocks().unwrap();
    let of = |sb: &hardpack_engine::store::superblock::Superblock| match sb.data_synced {
        true => sb.txg,
        false => sb.durable_txg,
    };
    superblocks.iter().map(of).max().unwrap()
}

#[test]
fn a_cut_pool_is_whole_or_refuses_every_change() {
    let (mut cut, mut whole, mut closed_cut) = (0, 0, 0);
    for seed in 0..24 {
        let (image, known, is_closed) = history(seed);
        let label = format!("seed {seed}, closed {is_closed}");
        assert!(
            !look(&image, image.len() as u64, &known, Txg(0), &label),
            "{label}: a false alarm"
        );
        let durable = recorded(&image);
        let (mut rng, end) = (Rng(seed), image.len() as u64);
        let mut places: Vec<u64> = (0..24).map(|n| end - 512 * n).collect();
        places.extend((1..24).map(|n| end - n * 47));
        places.extend((0..24).map(|_| EXTENTS_OFFSET + rng.below(end - EXTENTS_OFFSET)));
        places.extend([EXTENTS_OFFSET, EXTENTS_OFFSET + 1, EXTENTS_OFFSET + 512]);
        for len in places {
            match look(&image, len, &known, durable, &label) {
                true => cut += 1,
                false => whole += 1,
            }
            closed_cut += u64::from(is_closed);
        }
    }
    println!("{cut} cut short, {whole} whole, {closed_cut} of pools that were closed");
    assert!(cut > 500 && whole > 20 && closed_cut > 300, "{cut} {whole} {closed_cut}");
}

#[test]
fn nothing_is_left_of_a_pool_cut_in_its_superblocks() {
    let (image, ..) = history(3);
    for len in [16, 17, 512, 4095, 4096, 4097, 8192, 12_288, 20_000, 40_959] {
        let (device, opened) = open(&image[..len]);
        let error = opened.unwrap_err();
        assert!(
            matches!(error, Error::CutShort(cut) if cut.len == len as u64 && cut.needed.is_none()),
            "{len}: {error}"
        );
        assert!(error.to_string().contains(&format!("its first {len} bytes are left")), "{error}");
        let opened = Salvage::open(device.clone(), &options(1 << 20), None, &mut |_| {});
        assert!(matches!(opened, Err(Error::CutShort(_))), "{len}: {opened:?}");
        assert!(device.image() == image[..len]);
    }
    // Another file that merely is short is no pool.
    let (_, opened) = open(&vec![7; BLOCK_LEN / 2]);
    assert!(matches!(opened, Err(Error::NotAPool(_))));
}

/// Every loss of power during a rewind leaves a pool that is whole, or one that is still known to
/// be cut short.
#[test]
fn a_cut_pool_is_rewound_to_a_state_that_fits() {
    let (mut rewound, mut seen) = (0, [0; 3]);
    for seed in (100..124).chain([256]) {
        let (image, known, is_closed) = history(seed);
        let mut rng = Rng(seed);
        for _ in 0..3 {
            let len = image.len() - 1 - rng.below(image.len() as u64 / 3) as usize;
            let (_, pool) = open(&image[..len]);
            let pool = pool.unwrap();
            if pool.store().cut_short().is_none() {
                continue;
            }
            let newest = pool.state().txg();
            let states = pool.states(&mut |_, _| {}).unwrap();
            let Some(old) = states.iter().find(|state| state.problems.is_empty()) else { continue };
            let label = format!("seed {seed}, closed {is_closed}, cut at {len}, txg {}", old.txg);
            // The damaged state itself cannot be brought back.
            pool.rewind(newest, &mut |_| {}).unwrap_err();

            let device = SimDevice::new(image[..len].to_vec());
            let pool = Pool::open(device.clone(), options(1 << 20)).unwrap();
            let txg = pool.rewind(old.txg, &mut |_| {}).expect(&label);
            assert!(txg > newest, "{label}: others would not notice");
            let expected = &known[&old.txg];
            assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "{label}");
            let file = only_file(&pool).unwrap();
            assert!(read_all(&file).unwrap() == *expected, "{label}");
            let trace = device.take_trace();
            file.write_at(b"on", 0).unwrap();
            file.commit(Durability::Durable).expect(&label);
            pool.close().unwrap();
            drop((file, pool));
            let pool = Pool::open(device.clone(), options(1 << 20)).unwrap();
            assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "{label}");
            rewound += 1;

            let mut disk = Disk::new(image[..len].to_vec());
            for at in 0..=trace.len() {
                for round in 0..8 {
                    let sector = if round % 2 == 0 { 512 } else { 4096 };
                    let left = disk.crash(&mut rng, sector);
                    let label = format!("{label}, crash at {at}, round {round}");
                    let pool = Pool::open(SimDevice::new(left), options(1 << 20)).expect(&label);
                    if pool.store().cut_short().is_some() {
                        assert!(at < trace.len(), "{label}: it was acknowledged");
                        seen[0] += 1;
                        continue;
                    }
                    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "{label}");
                    let file = only_file(&pool).unwrap();
                    let which = if pool.state().txg() == txg { 2 } else { 1 };
                    let held = &known.get(&pool.state().txg()).unwrap_or(expected);
                    assert!(read_all(&file).unwrap() == **held, "{label}");
                    assert!(
                        at < trace.len() || which == 2,
                        "{label}: txg {} was acknowledged, {} is there: {:?}",
                        txg.0,
                        pool.state().txg().0,
                        trace
                            .iter()
                            .map(crate::common::sim_device::Op::summary)
                            .collect::<Vec<_>>()
                    );
                    seen[which] += 1;
                    file.write_at(b"on", 0).unwrap();
                    file.commit(Durability::Durable).expect(&label);
                    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "{label}");
                }
                if let Some(op) = trace.get(at) {
                    disk.apply(op);
                }
            }
        }
    }
    println!("{rewound} rewound; still cut, an older state, the rewound one: {seen:?}");
    assert!(rewound > 10 && seen.iter().all(|count| *count > 10), "{rewound} {seen:?}");
}

/// If nothing is missing but zeros behind the last extent, a repair gives the file its length back.
#[test]
fn a_repair_restores_the_length_if_nothing_is_lost() {
    let (mut repaired, mut refused) = (0, 0);
    for seed in 0..200 {
        let mut rng = Rng(seed);
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
        let pool =
            Pool::create(Arc::clone(&device), &create_options(12, &[]), options(1 << 20)).unwrap();
        let file = only_file(&pool).unwrap();
        for _ in 0..1 + rng.below(4) {
            let len = rng.below(90_000) as usize;
            file.write_at(&rng.noise(len), 0).unwrap();
            file.commit(Durability::Durable).unwrap();
        }
        let bytes = read_all(&file).unwrap();
        pool.close().unwrap();
        drop((file, pool));
        let len = device.len().unwrap();
        let zeros = {
            let mut last = vec![0; 4096];
            device.read_at(&mut last, len - 4096).unwrap();
            last.iter().rev().take_while(|byte| **byte == 0).count() as u64
        };
        for (missing, is_enough) in
            [(1, zeros >= 1), (zeros.min(4000), zeros > 0), (zeros + 1, false)]
        {
            if missing == 0 {
                continue;
            }
            let mut cut = vec![0; (len - missing) as usize];
            device.read_at(&mut cut, 0).unwrap();
            let (left, pool) = open(&cut);
            let pool = pool.unwrap();
            let label = format!("seed {seed}, {missing} bytes missing, {zeros} zeros");
            let Some(found) = pool.store().cut_short() else {
                // The last sector is free.
                assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "{label}");
                continue;
            };
            assert_eq!((found.len, found.needed), (len - missing, Some(len)), "{label}");
            let report = pool.check(&mut |_| {}).unwrap();
            let done = pool.repair(Patience::None, &mut || true);
            if !is_enough {
                assert!(matches!(done, Err(Error::CutShort(_))), "{label}: {done:?}");
                assert!(left.image() == cut, "{label}: the pool was written to");
                assert!(report.repairable < report.problems.len() as u64, "{label}");
                refused += 1;
                continue;
            }
            assert_eq!(report.repairable, report.problems.len() as u64, "{label}: {report:?}");
            assert!(done.expect(&label).lengthened, "{label}");
            assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "{label}");
            let file = only_file(&pool).unwrap();
            assert!(read_all(&file).unwrap() == bytes, "{label}");
            file.write_at(b"on", 0).unwrap();
            file.commit(Durability::Durable).expect(&label);
            assert!(!pool.repair(Patience::None, &mut || true).unwrap().lengthened, "{label}");
            repaired += 1;
        }
    }
    println!("{repaired} repaired, {refused} refused");
    assert!(repaired > 10 && refused > 10, "{repaired} repaired, {refused} refused");
}

/// A process that has the pool open while somebody cuts it stops writing as well.
#[test]
fn a_cut_under_a_live_writer_is_noticed_before_its_next_commit() {
    for is_refreshed in [false, true] {
        let device = Arc::new(MemoryDevice::default());
        let pool = Pool::create(device.clone(), &create_options(9, &[]), options(1 << 20)).unwrap();
        let file = only_file(&pool).unwrap();
        file.write_at(&Rng(5).noise(300_000), 0).unwrap();
        file.commit(if is_refreshed { Durability::Visible } else { Durability::Durable }).unwrap();
        let len = device.len().unwrap() - 5000;
        device.set_len(len).unwrap();
        let image = device.image();
        pool.refresh().unwrap();
        let error = pool.set_property(ROOT, Property::Compression, "lz4").unwrap_err();
        assert!(matches!(error, Error::CutShort(cut) if cut.len == len), "{error}");
        // From then on it stays so, and uncommitted changes are refused at once.
        assert!(matches!(file.write_at(b"x", 0), Err(Error::CutShort(_))));
        assert!(matches!(pool.repair(Patience::None, &mut || true), Err(Error::CutShort(_))));
        pool.close().unwrap();
        assert!(device.image() == image, "the pool was written to");
    }
}

/// Ends all threads when one panics.
struct EndAll<'a>(&'a AtomicBool);

impl Drop for EndAll<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// How often the pool is opened while it grows and shrinks, by each thread.
const OPEN_COUNT: u64 = 150;
/// How often at most, if it is not shortened often enough meanwhile.
const OPEN_COUNT_MAX: u64 = 20_000;

/// Whoever opens a pool, or begins to write, while others grow and compact it gives no false alarm:
/// writable and read-only openers, each with a descriptor of its own, as other processes have.
#[test]
fn a_pool_that_others_grow_and_shorten_is_not_taken_for_cut() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool.hpk");
    let device = Arc::new(FileDevice::create_new(&path).unwrap());
    let properties = [(Property::RecordSize, "16K"), (Property::Compression, "off")];
    drop(Pool::create(device, &create_options(9, &properties), options(1 << 20)).unwrap());
    let (stop, shortened) = (AtomicBool::new(false), AtomicU64::new(0));
    let (stop, shortened, path) = (&stop, &shortened, &path);
    let writable = move || Arc::new(FileDevice::open(path).unwrap());
    let assert_sound = |pool: &Pool| {
        assert_eq!(pool.store().cut_short(), None);
        let file: Arc<File> = only_file(pool).unwrap();
        assert!(read_all(&file).unwrap().windows(2).all(|two| two[0] == two[1]), "a mixture");
    };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _end = EndAll(stop);
            let pool = Pool::open(writable(), options(1 << 20)).unwrap();
            let (file, mut rng, mut round) = (only_file(&pool).unwrap(), Rng(1), 0_u8);
            while !stop.load(Ordering::Relaxed) {
                round = round.wrapping_add(1);
                let is_short = round % 4 >= 2;
                let len = 100 + rng.below(if is_short { 2000 } else { 400_000 });
                file.set_len(len).unwrap();
                file.write_at(&vec![round; len as usize], 0).unwrap();
                file.commit(rng.pick(&[Durability::Visible, Durability::Durable])).unwrap();
                if round % 4 == 3 {
                    let before = pool.store().device().len().unwrap();
                    let mut compaction = pool.compact();
                    while compaction.step().unwrap_or(false) {}
                    let after = pool.store().device().len().unwrap();
                    shortened.fetch_add(u64::from(after < before), Ordering::Relaxed);
                }
            }
        });
        let readers: Vec<_> = [false, true]
            .map(|is_read_only| {
                scope.spawn(move || {
                    let _end = EndAll(stop);
                    let is_enough =
                        |opened: u64| opened >= OPEN_COUNT && shortened.load(Ordering::Relaxed) > 3;
                    for _ in (0..OPEN_COUNT_MAX).take_while(|opened| !is_enough(*opened)) {
                        let device: Arc<dyn Device> = match is_read_only {
                            true => Arc::new(FileDevice::open_read_only(path).unwrap()),
                            false => writable(),
                        };
                        let pool = Pool::open(device, options(1 << 20)).unwrap();
                        assert_sound(&pool);
                        if !is_read_only {
                            let begun = pool.store().begin(ChecksumKind::default());
                            assert!(begun.is_ok(), "{begun:?}");
                        }
                    }
                })
            })
            .into_iter()
            .collect();
        // Both read to the end; the first that ends must not stop the writer under the other.
        for reader in readers {
            reader.join().unwrap();
        }
    });
    assert!(shortened.load(Ordering::Relaxed) > 3, "it was shortened {shortened:?} times");
    let pool = Pool::open(writable(), options(1 << 20)).unwrap();
    assert_sound(&pool);
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}
