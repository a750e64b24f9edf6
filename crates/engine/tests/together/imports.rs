//! Imports and receives beside other users of the pool: they prepare without the pool's lock, hold
//! it only for short, and whatever interrupts them leaves whole files and no lost space.

use std::cell::RefCell;
use std::sync::Arc;

use crate::common::meanwhile::{Meanwhile, Moment};
use crate::common::sim_device::{Disk, Op, SimDevice};
use crate::common::{Rng, create, only_file, options, problems, read_all};
use hardpack_engine::device::Device;
use hardpack_engine::pool::{
    Attributes, File, Kind, Options, Pool, Property, ROOT, ReceiveOptions, SendPlan,
};
use hardpack_engine::store::Durability;

const MIB: usize = 1 << 20;

thread_local! {
    static OTHER: RefCell<Option<Other>> = const { RefCell::new(None) };
}

/// Another process with the same pool.
struct Other {
    device: Arc<SimDevice>,
    file: Arc<File>,
    /// How often it has committed.
    count: u64,
}

/// Commits a number in the other process. An import asks this before each record it compresses.
fn other_commits() -> bool {
    OTHER.with_borrow_mut(|other| {
        let Some(Other { device, file, count }) = other else { return };
        *count += 1;
        device.note(count.wrapping_neg());
        file.write_at(&count.to_le_bytes(), 0).unwrap();
        // Gives up at once if the lock is held.
        file.commit_asking(Durability::Durable, &mut || false).expect("nobody holds the lock");
        device.note(*count);
    });
    false
}

fn like() -> Attributes {
    Attributes::new(Kind::File, ROOT)
}

/// Opens a pool in whose imports the other process commits.
fn open_with_other(device: &Arc<SimDevice>) -> Pool {
    let dynamic: Arc<dyn Device> = device.clone();
    let other = Pool::open(Arc::clone(&dynamic), options(32 << 20)).unwrap();
    let file = other.file(other.database().unwrap().file).unwrap();
    OTHER.set(Some(Other { device: device.clone(), file, count: 0 }));
    let options = Options { is_stopped: other_commits, ..options(32 << 20) };
    Pool::open(dynamic, options).unwrap()
}

fn other_count() -> u64 {
    OTHER.with_borrow(|other| other.as_ref().map_or(0, |other| other.count))
}

fn content_of(pool: &Pool, name: &[u8]) -> Option<Vec<u8>> {
    let entry = pool.lookup_in(ROOT, name).unwrap()?;
    Some(read_all(&pool.file(entry.file).unwrap()).unwrap())
}

#[test]
fn others_commit_while_an_import_compresses() {
    for dedup in ["off", "on"] {
        let device = SimDevice::new(Vec::new());
        let dynamic: Arc<dyn Device> = device.clone();
        create(&dynamic, &[(Property::Dedup, dedup)], 32 << 20);
        let pool = open_with_other(&device);
        let mut rng = Rng(1);
        let (short, long) = (rng.text(300_000), rng.text(6 * MIB));
        for _ in 0..2 {
            let before = other_count();
            let mut import = pool.import(1);
            import.file(ROOT, b"short", &like(), &[], short.clone()).unwrap();
            import.begin_file(ROOT, b"long", &like(), &[]).unwrap();
            long.chunks(100_000).for_each(|part| import.write(part).unwrap());
            import.end_file().unwrap();
            import.finish().unwrap();
            if before == 0 {
                assert_eq!(other_count(), 3 + 48, "a commit for each record");
            }
        }
        assert!(content_of(&pool, b"short").unwrap() == short);
        assert!(content_of(&pool, b"long").unwrap() == long);
        let count = content_of(&pool, b"main").unwrap();
        assert_eq!(count, other_count().to_le_bytes());
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    }
}

/// There may be megabytes of them for each of thousands of files.
#[test]
fn extended_attributes_count_as_content() {
    let dynamic: Arc<dyn Device> = SimDevice::new(Vec::new());
    let pool = create(&dynamic, &[], 32 << 20);
    let like = Attributes::new(Kind::Directory, ROOT);
    let xattr = |n: u8| (format!("user.{n:02}").into_bytes(), vec![n; 64 << 10]);
    let xattrs: Vec<_> = (0..16).map(xattr).collect();
    let mut import = pool.import(1);
    for number in 0..8 {
        import.directory(ROOT, format!("d{number}").as_bytes(), &like, &xattrs).unwrap();
    }
    let first = pool.lookup_in(ROOT, b"d0").unwrap().expect("it does not wait for the others");
    assert!(pool.xattrs(first.file).unwrap() == xattrs);
    assert_eq!(import.finish().unwrap().directories, 8);
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}

/// Returns how many bytes each commit of a recorded run wrote.
fn commit_lens(trace: &[Op]) -> Vec<usize> {
    let mut lens = vec![0];
    for op in trace {
        if let Op::Write(_, bytes) = op {
            *lens.last_mut().unwrap() += bytes.len();
            if bytes.starts_with(b"HPKsuper") {
                lens.push(0);
            }
        }
    }
    lens
}

#[test]
fn no_transaction_of_an_import_is_long() {
    for threads in [1, 4] {
        let device = SimDevice::new(Vec::new());
        let dynamic: Arc<dyn Device> = device.clone();
        drop(create(&dynamic, &[], 32 << 20));
        let options = Options { threads: Some(threads), ..options(32 << 20) };
        let pool = Pool::open(dynamic, options).unwrap();
        device.take_trace();
        let mut rng = Rng(2);
        let (long, short) = (rng.noise(20 * MIB), rng.noise(40_000));
        let mut import = pool.import(1);
        import.begin_file(ROOT, b"long", &like(), &[]).unwrap();
        import.write(&long).unwrap();
        import.end_file().unwrap();
        for number in 0..200 {
            let name = format!("short{number}");
            import.file(ROOT, name.as_bytes(), &like(), &[], short.clone()).unwrap();
        }
        import.finish().unwrap();
        let lens = commit_lens(&device.take_trace());
        let longest = lens.iter().max().unwrap();
        assert!(*longest < MIB + MIB / 4, "a commit wrote {longest} bytes");
        assert!(lens.len() < 60, "{} commits", lens.len());
        assert!(content_of(&pool, b"long").unwrap() == long);
        assert!(content_of(&pool, b"short199").unwrap() == short);
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    }
}

#[test]
fn no_transaction_of_a_complete_receive_is_long() {
    for dedup in ["off", "on"] {
        let from: Arc<dyn Device> = SimDevice::new(Vec::new());
        let from = create(&from, &[], 32 << 20);
        let file = only_file(&from).unwrap();
        let mut rng = Rng(6);
        let content = [rng.noise(6 * MIB), rng.text(3 * MIB)].concat();
        file.write_at(&content, 0).unwrap();
        file.commit(Durability::Durable).unwrap();
        from.create_snapshot(file.id(), b"one", 1).unwrap();
        let snapshot = from.open_snapshot(file.id(), b"one").unwrap();
        let plan = SendPlan {
            snapshot: &snapshot,
            base: None,
            scope: file.id(),
            name: b"one",
            created_ns: 1,
            resume: None,
        };
        let mut stream = Vec::new();
        from.send(&plan, &mut stream, &mut |_| {}).unwrap();

        let device = SimDevice::new(Vec::new());
        let dynamic: Arc<dyn Device> = device.clone();
        let pool = create(&dynamic, &[(Property::Dedup, dedup)], 32 << 20);
        device.take_trace();
        let options = ReceiveOptions::default();
        pool.receive(ROOT, b"copy", &mut &stream[..], &options, &mut |_| {}).unwrap();
        let longest = commit_lens(&device.take_trace()).into_iter().max().unwrap();
        assert!(longest < MIB + MIB / 2, "a commit wrote {longest} bytes");
        assert!(content_of(&pool, b"copy").unwrap() == content);
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    }
}

/// What an import that died had stored comes back with the next one, also if others committed
/// meanwhile.
#[test]
fn the_space_of_a_dead_import_comes_back() {
    let device = SimDevice::new(Vec::new());
    let dynamic: Arc<dyn Device> = device.clone();
    create(&dynamic, &[], 32 << 20);
    let stored = |pool: &Pool| pool.stats().data().stored;
    let mut rng = Rng(3);
    let content = rng.noise(9 * MIB);
    let mut len = None;
    for _ in 0..5 {
        let pool = open_with_other(&device);
        other_commits();
        pool.refresh().unwrap();
        let before = stored(&pool);
        let mut import = pool.import(1);
        import.begin_file(ROOT, b"new", &like(), &[]).unwrap();
        import.write(&content).unwrap();
        assert!(stored(&pool) > 7 * MIB as u64, "most of it is stored already");
        // As if the process was killed.
        drop(import);
        drop(pool);
        let pool = open_with_other(&device);
        assert_eq!(content_of(&pool, b"new"), None);
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
        assert_eq!(pool.remove_nameless(&mut |_| false).unwrap(), 1);
        assert_eq!(stored(&pool), before);
        other_commits();
        pool.refresh().unwrap();
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
        let first = *len.get_or_insert(device.image_len());
        assert!(device.image_len() <= first + MIB as u64, "the space is not used again");
    }
}

/// Runs an action before the writer lock is taken for the `count`th time from now.
fn before_lock(device: &Arc<Meanwhile>, count: usize, act: impl FnOnce() + Send + 'static) {
    let again = Arc::clone(device);
    device.at(Moment::Lock, move || match count {
        1 => act(),
        _ => before_lock(&again, count - 1, act),
    });
}

/// Equal files of one batch share an extent even if different transactions store them, but not if
/// the first of them are gone by then.
#[test]
fn equal_files_of_a_batch_are_stored_once() {
    for others_remove in [false, true] {
        let device: Arc<dyn Device> = SimDevice::new(Vec::new());
        create(&device, &[(Property::Dedup, "on")], 32 << 20);
        let other = Pool::open(Arc::clone(&device), options(32 << 20)).unwrap();
        let device = Meanwhile::on(device);
        let pool = Pool::open(device.clone(), options(32 << 20)).unwrap();
        let content = Rng(4).text(3000);
        let name = |number: usize| format!("f{number}").into_bytes();
        let mut import = pool.import(1);
        for number in 0..300 {
            import.file(ROOT, &name(number), &like(), &[], content.clone()).unwrap();
        }
        // The first is for the index, the second for as many files as fit into a transaction.
        before_lock(&device, 3, move || {
            let stored = |number| other.lookup_in(ROOT, &name(number)).unwrap().is_some();
            other.refresh().unwrap();
            assert!(stored(0) && !stored(299), "the first transaction is over");
            if others_remove {
                other
                    .edit(1, |edit| {
                        (0..300).try_for_each(|number| match edit.lookup(ROOT, &name(number))? {
                            Some(_) => edit.unlink(ROOT, &name(number)),
                            None => Ok(()),
                        })
                    })
                    .unwrap();
            }
        });
        import.finish().unwrap();
        assert!(device.is_done());
        assert!(content_of(&pool, b"f299").unwrap() == content);
        assert_eq!(content_of(&pool, b"f0").is_none(), others_remove);
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
        let stats = pool.stats();
        let stored = stats.data().stored - stats.shared.stored;
        assert!(stored < 3000, "{stored} bytes are stored");
    }
}

/// A tar stream may hold a file twice.
#[test]
fn of_two_files_with_one_name_the_later_one_counts() {
    let device: Arc<dyn Device> = SimDevice::new(Vec::new());
    let pool = create(&device, &[], 32 << 20);
    let mut rng = Rng(5);
    let (first, second) = (rng.text(400_000), rng.text(5000));
    let mut import = pool.import(1);
    import.file(ROOT, b"twice", &like(), &[], first).unwrap();
    import.file(ROOT, b"twice", &like(), &[], second.clone()).unwrap();
    import.finish().unwrap();
    assert!(content_of(&pool, b"twice").unwrap() == second);
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    let file = only_file_named(&pool, b"twice");
    file.set_len(400_000).unwrap();
    file.commit(Durability::Durable).unwrap();
    assert!(content_of(&pool, b"twice").unwrap()[5000..].iter().all(|byte| *byte == 0));
}

fn only_file_named(pool: &Pool, name: &[u8]) -> Arc<File> {
    pool.file(pool.lookup_in(ROOT, name).unwrap().unwrap().file).unwrap()
}

/// The power fails at every write of an import beside another process's commits. Files are whole,
/// and appear in the order in which they were given; the other's durable commits stay.
#[test]
fn an_import_beside_commits_survives_loss_of_power() {
    for seed in 0..4 {
        let rng = &mut Rng(seed);
        let base = SimDevice::new(Vec::new());
        let dynamic: Arc<dyn Device> = base.clone();
        let properties =
            [(Property::RecordSize, "16K"), (Property::Dedup, rng.pick(&["on", "off"]))];
        let pool = create(&dynamic, &properties, 32 << 20);
        assert!(only_file(&pool).is_ok());
        let mut import = pool.import(1);
        import.file(ROOT, b"f2", &like(), &[], b"old".to_vec()).unwrap();
        import.finish().unwrap();
        pool.close().unwrap();

        let device = SimDevice::new(base.image());
        let pool = open_with_other(&device);
        let lens = [50_000, 900_000, 5000, 4 * MIB + 100_000, 300_000];
        let contents: Vec<Vec<u8>> = lens.iter().map(|len| rng.text(*len)).collect();
        let mut import = pool.import(1);
        for (number, content) in contents.iter().enumerate() {
            let name = format!("f{number}");
            import.file(ROOT, name.as_bytes(), &like(), &[], content.clone()).unwrap();
        }
        import.flush().unwrap();

        let mut disk = Disk::new(base.image());
        let (mut durable, mut newest) = (0, 0);
        for op in device.take_trace() {
            disk.apply(&op);
            match op {
                Op::Note(note) if note as i64 > 0 => durable = note,
                Op::Note(note) => newest = note.wrapping_neg(),
                _ if rng.one_in(3) => {
                    let image = disk.crash(rng, 512);
                    let device: Arc<dyn Device> = SimDevice::new(image);
                    let pool = Pool::open(device, options(32 << 20)).unwrap();
                    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "seed {seed}");
                    let count = content_of(&pool, b"main").unwrap();
                    let count = count.try_into().map_or(0, u64::from_le_bytes);
                    assert!((durable..=newest).contains(&count), "seed {seed}: {count}");
                    let is_new = contents.iter().enumerate().map(|(number, content)| {
                        let found = content_of(&pool, format!("f{number}").as_bytes());
                        let old = (number == 2).then(|| b"old".to_vec());
                        assert!(found == old || found.as_ref() == Some(content), "seed {seed}");
                        found != old
                    });
                    let is_new: Vec<bool> = is_new.collect();
                    assert!(is_new.is_sorted_by(|a, b| a >= b), "seed {seed}: {is_new:?}");
                }
                _ => {}
            }
        }
        assert!(durable > 10, "the other process committed {durable} times");
    }
}

/// Several imports make the same directories at the same time. Each adds its own files to them,
/// whoever was first.
#[test]
fn a_directory_that_others_make_meanwhile_is_shared() {
    let device = SimDevice::new(Vec::new());
    let dynamic: Arc<dyn Device> = device.clone();
    create(&dynamic, &[], 32 << 20);
    let pool = Pool::open(dynamic, options(32 << 20)).unwrap();
    let directory = Attributes { mode: 0o755, ..Attributes::new(Kind::Directory, ROOT) };
    let mut rng = Rng(3);
    let (short, long) = (rng.text(5000), rng.text(6 * MIB));
    let mut imports: Vec<_> = (0..3)
        .map(|number| {
            let mut import = pool.import(1);
            let top = import.directory(ROOT, b"top", &directory, &[]).unwrap();
            let below = import.directory_above(top, b"below", &directory).unwrap();
            let name = |what: &str| format!("{what}{number}").into_bytes();
            import.file(below, &name("short"), &like(), &[], short.clone()).unwrap();
            import.symlink(below, &name("link"), &like(), b"short").unwrap();
            import.hard_link((below, &name("short")), top, &name("hard")).unwrap();
            // It is open when the others make their directories.
            import.begin_file(below, &name("long"), &like(), &[]).unwrap();
            import.write(&long[..5 * MIB]).unwrap();
            (import, top, below)
        })
        .collect();
    for (import, ..) in imports.iter_mut().rev() {
        import.flush().unwrap();
    }
    for (number, (mut import, top, below)) in imports.into_iter().enumerate() {
        import.write(&long[5 * MIB..]).unwrap();
        import.end_file().unwrap();
        // By the ids that the directories were to have.
        let name = |what: &str| format!("{what}{number}").into_bytes();
        import.file(below, &name("late"), &like(), &[], short.clone()).unwrap();
        let deep = import.directory(below, b"deep", &directory, &[]).unwrap();
        import.file(deep, &name("deep"), &like(), &[], short.clone()).unwrap();
        import.file(top, &name("high"), &like(), &[], short.clone()).unwrap();
        let report = import.finish().unwrap();
        assert_eq!(report.refused, []);
    }
    for number in 0..3 {
        for (path, content) in [
            ("top/below/short", &short),
            ("top/hard", &short),
            ("top/below/long", &long),
            ("top/below/late", &short),
            ("top/below/deep/deep", &short),
            ("top/high", &short),
        ] {
            let path = format!("{path}{number}");
            let found = pool.resolve(path.as_bytes()).expect(&path).file;
            assert!(read_all(&pool.file(found).unwrap()).unwrap() == *content, "{path}");
        }
        assert!(pool.resolve_link(format!("top/below/link{number}").as_bytes()).is_ok());
    }
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}
