//! Bytes: what is written is read, whatever came in between.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;

use super::*;

const FILE_LEN: usize = 3 << 20;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % limit
    }
}

/// Does the same at random to a file of the mount and to bytes in memory.
#[test]
fn a_file_is_what_was_done_to_it() {
    if !can_mount() {
        return;
    }
    for seed in 1..=4 {
        let mount = Mount::new();
        let path = mount.at("f");
        let open =
            || File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = open().unwrap();
        let (mut model, mut random) = (Vec::<u8>::new(), Random(seed));
        for step in 0..400 {
            let at = random.below(FILE_LEN);
            let len = match random.below(4) {
                0 => random.below(10),
                1 => 4096,
                _ => random.below(200_000),
            };
            let len = len.min(FILE_LEN - at);
            let end = at + len;
            match random.below(12) {
                0..=3 => {
                    let bytes = random_bytes(len, step);
                    file.write_all_at(&bytes, at as u64).unwrap();
                    model.resize(model.len().max(if len > 0 { end } else { 0 }), 0);
                    model
                        .get_mut(at..end)
                        .unwrap_or_default()
                        .copy_from_slice(&bytes[..if len > 0 { len } else { 0 }]);
                }
                4 => {
                    file.set_len(at as u64).unwrap();
                    model.resize(at, 0);
                }
                5 if len > 0 => {
                    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    fallocate(&file, flags, at as u64, len as u64).unwrap();
                    let end = end.min(model.len());
                    model.get_mut(at..end).unwrap_or_default().fill(0);
                }
                6 if len > 0 => {
                    fallocate(&file, FallocateFlags::ZERO_RANGE, at as u64, len as u64).unwrap();
                    model.resize(model.len().max(end), 0);
                    model[at..end].fill(0);
                }
                7 if len > 0 => {
                    fallocate(&file, FallocateFlags::empty(), at as u64, len as u64).unwrap();
                    model.resize(model.len().max(end), 0);
                }
                8 => file.sync_data().unwrap(),
                9 => {
                    drop(file);
                    file = open().unwrap();
                }
                10 => {
                    drop(file);
                    mount.unmount();
                    mount.again(&[]);
                    file = open().unwrap();
                }
                _ => {
                    let mut bytes = vec![0; len];
                    let n = file.read_at(&mut bytes, at as u64).unwrap();
                    let start = at.min(model.len());
                    assert_eq!(
                        bytes[..n],
                        model[start..end.min(model.len())],
                        "{seed}, step {step}"
                    );
                }
            }
            assert_eq!(file.metadata().unwrap().len(), model.len() as u64, "{seed}, step {step}");
        }
        assert!(read(&path) == model, "seed {seed}");
        drop(file);
        mount.unmount();
        mount.check();
        let out = mount.directory.path().join("out");
        hardpack().args(["extract", "-q"]).args([&mount.in_pool("f"), &out]).assert().success();
        assert!(read(&out) == model, "seed {seed}");
    }
}

#[test]
fn holes_are_found() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    let file = File::options().read(true).write(true).create_new(true).open(mount.at("f")).unwrap();
    let record = 128 << 10;
    file.write_all_at(&random_bytes(record, 1), 4 * record as u64).unwrap();
    file.set_len(10 * record as u64).unwrap();
    let (from, to, len) = (4 * record as u64, 5 * record as u64, 10 * record as u64);
    for _ in 0..2 {
        assert_eq!(seek(&file, SeekFrom::Data(0)).unwrap(), from);
        assert_eq!(seek(&file, SeekFrom::Data(from + 5)).unwrap(), from + 5);
        assert_eq!(seek(&file, SeekFrom::Hole(0)).unwrap(), 0);
        assert_eq!(seek(&file, SeekFrom::Hole(from)).unwrap(), to);
        assert_eq!(seek(&file, SeekFrom::Data(to)), Err(Errno::NXIO));
        assert_eq!(seek(&file, SeekFrom::Hole(to + 1)).unwrap(), to + 1);
        assert_eq!(seek(&file, SeekFrom::Hole(len)), Err(Errno::NXIO));
        file.sync_all().unwrap();
    }
}

/// Memory maps see what is written, and what they write is in the file.
#[test]
fn copies_within_the_mount_and_appends() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    let bytes = random_bytes(5 << 20, 9);
    write(&mount.at("a"), &bytes);
    // The standard library copies with copy_file_range.
    fs::copy(mount.at("a"), mount.at("b")).unwrap();
    assert!(read(&mount.at("b")) == bytes);
    let mut one = File::options().append(true).open(mount.at("b")).unwrap();
    let mut other = File::options().append(true).open(mount.at("b")).unwrap();
    for n in 0..10_u8 {
        std::io::Write::write_all(if n % 2 == 0 { &mut one } else { &mut other }, &[n]).unwrap();
    }
    assert_eq!(read(&mount.at("b"))[bytes.len()..], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
}

/// More files than one commit takes, by several threads at once.
#[test]
fn many_files_by_several_threads() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    let content = |thread: u64, n: u64| random_bytes((n * 37 % 9000) as usize, thread << 32 | n);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let mount = &mount;
            scope.spawn(move || {
                let home = mount.at(&thread.to_string());
                fs::create_dir(&home).unwrap();
                for n in 0..300 {
                    let path = home.join(n.to_string());
                    write(&path, &content(thread, n));
                    match n % 5 {
                        0 => fs::rename(&path, home.join(format!("moved {n}"))).unwrap(),
                        1 => fs::remove_file(&path).unwrap(),
                        2 => write(&path, &content(thread, n + 1)),
                        3 => File::open(&path).unwrap().sync_all().unwrap(),
                        _ => assert!(read(&path) == content(thread, n)),
                    }
                }
            });
        }
    });
    let look = || {
        for thread in 0..4 {
            for n in 0..300 {
                let home = mount.at(&thread.to_string());
                match n % 5 {
                    0 => assert!(read(&home.join(format!("moved {n}"))) == content(thread, n)),
                    1 => assert!(!home.join(n.to_string()).exists()),
                    2 => assert!(read(&home.join(n.to_string())) == content(thread, n + 1)),
                    _ => assert!(read(&home.join(n.to_string())) == content(thread, n)),
                }
            }
        }
    };
    look();
    mount.unmount();
    mount.check();
    mount.again(&[]);
    look();
}

/// Stock SQLite, in both journal modes and with shared memory, by several processes.
#[test]
fn sqlite_works_on_a_mount() {
    if !can_mount() {
        return;
    }
    for mode in ["delete", "truncate", "wal"] {
        let mount = Mount::new();
        let path = mount.at("app.db");
        make_database(&path, 4096, 10);
        let sql = format!("pragma journal_mode={mode}");
        assert_eq!(stock_shell(&path, &sql).trim(), mode);
        let writers: Vec<_> = (0..3)
            .map(|_| {
                let sql = ".timeout 60000\n".to_owned()
                    + &"insert into t(b) values('x'); select max(a) from t;\n".repeat(50);
                let mut shell = Command::new("sqlite3");
                shell.arg("-batch").arg("-bail").arg(&path);
                shell.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::null());
                let mut shell = shell.spawn().unwrap();
                std::io::Write::write_all(&mut shell.stdin.take().unwrap(), sql.as_bytes())
                    .unwrap();
                shell
            })
            .collect();
        for mut writer in writers {
            assert!(writer.wait().unwrap().success(), "{mode}");
        }
        assert_eq!(count_rows(&path), 160, "{mode}");
        mount.unmount();
        mount.check();
        mount.again(&[]);
        assert_eq!(count_rows(&path), 160, "{mode}");
    }
}

fn stock_shell(path: &Path, sql: &str) -> String {
    let output = Command::new("sqlite3").arg(path).arg(sql).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A sync of something else while a file is written: nothing that is written meanwhile is lost.
#[test]
fn writes_beside_a_sync_stay() {
    if !can_mount() {
        return;
    }
    const LEN: usize = 4 << 20;
    let mount = Mount::new();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let directory = File::open(&mount.point).unwrap();
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                directory.sync_all().unwrap();
            }
        });
        let ended = std::panic::catch_unwind(|| {
            let path = mount.at("f");
            let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
            let (mut model, mut random) = (vec![0; LEN], Random(7));
            for round in 0..12 {
                let all = random_bytes(LEN, round);
                file.write_all_at(&all, 0).unwrap();
                model.copy_from_slice(&all);
                for n in 0..400 {
                    let len = if n % 2 == 0 { 10 } else { 4096 };
                    let at = random.below(LEN - len);
                    let bytes = random_bytes(len, round << 32 | n);
                    file.write_all_at(&bytes, at as u64).unwrap();
                    model[at..at + len].copy_from_slice(&bytes);
                }
                // The first half is cut off, and what comes back is zeros.
                file.set_len(LEN as u64 / 2).unwrap();
                file.set_len(LEN as u64).unwrap();
                model[LEN / 2..].fill(0);
                let mut found = vec![0; LEN];
                file.read_exact_at(&mut found, 0).unwrap();
                assert!(found == model, "round {round}");
            }
        });
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        ended.unwrap();
    });
    mount.unmount();
    mount.check();
}

/// The length of a file is that of all that was written, also while it is being committed.
#[test]
fn lengths_beside_a_sync_are_true() {
    if !can_mount() {
        return;
    }
    let mount = &Mount::new();
    let path = &mount.at("f");
    let mut file = File::options().append(true).create_new(true).open(path).unwrap();
    let is_over = &std::sync::atomic::AtomicBool::new(false);
    let written = &std::sync::atomic::AtomicU64::new(0);
    let order = std::sync::atomic::Ordering::SeqCst;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let directory = File::open(&mount.point).unwrap();
            while !is_over.load(order) {
                directory.sync_all().unwrap();
            }
        });
        let look = || {
            while !is_over.load(order) {
                let least = written.load(order);
                let found = fs::metadata(path).unwrap().len();
                assert!(found >= least, "{found} of {least} bytes");
            }
        };
        let lookers = [(); 6].map(|()| scope.spawn(look));
        let mut done = Ok(());
        for n in 1..=20_000_u64 {
            done = std::io::Write::write_all(&mut file, &n.to_le_bytes());
            if done.is_err() || lookers.iter().any(|looker| looker.is_finished()) {
                break;
            }
            written.store(n * 8, order);
        }
        is_over.store(true, order);
        for looker in lookers {
            looker.join().unwrap();
        }
        done.unwrap();
    });
    let expected: Vec<u8> = (1..=20_000_u64).flat_map(u64::to_le_bytes).collect();
    assert!(read(path) == expected);
}

/// What is refused because a file would be too long takes nothing away.
#[test]
fn too_long_a_file_is_refused() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    let file = File::options().read(true).write(true).create_new(true).open(mount.at("f")).unwrap();
    file.write_all_at(b"kept", 0).unwrap();
    let too_big = Some(libc::EFBIG);
    // The kernel takes it first.
    file.write_all_at(b"x", 1 << 61).unwrap();
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), too_big);
    assert_eq!(file.set_len(1 << 61).unwrap_err().raw_os_error(), too_big);
    let allocated = fallocate(&file, FallocateFlags::empty(), 0, 1 << 61);
    assert_eq!(allocated, Err(Errno::FBIG));
    drop(file);
    // The kernel has filled the page with zeros, as it believed in what follows.
    let bytes = read(&mount.at("f"));
    assert!(bytes.len() <= 4096, "{}", bytes.len());
    assert!(bytes.starts_with(b"kept") && bytes[4..].iter().all(|byte| *byte == 0));
}

/// Holes take no time to make where there are holes.
#[test]
fn the_longest_hole_can_be_made() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    let file = File::options().read(true).write(true).create_new(true).open(mount.at("f")).unwrap();
    let (len, middle) = (1_u64 << 60, 1_u64 << 59);
    file.set_len(len).unwrap();
    file.write_all_at(b"first", 0).unwrap();
    file.write_all_at(&[1; 10_000], middle).unwrap();
    file.write_all_at(b"last", len - 4).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, punch, 2, middle + 5000 - 2).unwrap();
    fallocate(&file, FallocateFlags::ZERO_RANGE, middle + 9000, len - 2 - middle - 9000).unwrap();
    let mut bytes = vec![7; 10_000];
    file.read_exact_at(&mut bytes, middle).unwrap();
    let expected = [vec![0; 5000], vec![1; 4000], vec![0; 1000]].concat();
    assert!(bytes == expected);
    file.read_exact_at(&mut bytes[..5], 0).unwrap();
    assert_eq!(&bytes[..5], b"fi\0\0\0");
    file.read_exact_at(&mut bytes[..4], len - 4).unwrap();
    assert_eq!(&bytes[..4], b"\0\0st");
    drop(file);
    mount.unmount();
    mount.check();
}

/// `du` shows what is stored, and a hole takes nothing.
#[test]
fn the_space_that_files_take() {
    use std::os::unix::fs::MetadataExt;
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    let taken = |name: &str| std::fs::metadata(mount.at(name)).unwrap().blocks() * 512;
    let synced = |name: &str| File::open(mount.at(name)).unwrap().sync_all().unwrap();
    write(&mount.at("random"), &random_bytes(1 << 20, 1));
    write(&mount.at("text"), &b"all the same ".repeat(80_000));
    write(&mount.at("short"), b"inside its pointer");
    write(&mount.at("empty"), b"");
    let sparse = File::create(mount.at("sparse")).unwrap();
    sparse.set_len(1 << 30).unwrap();
    let holes = File::create(mount.at("holes")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&holes, &random_bytes(4096, 2), 1 << 29).unwrap();
    drop((sparse, holes));
    ["random", "text", "short", "empty", "sparse", "holes"].into_iter().for_each(synced);
    let random = taken("random");
    assert!((1 << 20..1 << 21).contains(&random), "{random}");
    assert!((1..100_000).contains(&taken("text")), "{}", taken("text"));
    // Programs take a file without blocks for a hole.
    assert_eq!((taken("short"), taken("empty"), taken("sparse")), (512, 0, 0));
    assert!((4096..100_000).contains(&taken("holes")), "{}", taken("holes"));
    // What was told while it had changes is not kept.
    write(&mount.at("text"), &random_bytes(1 << 20, 3));
    assert!(taken("text") > 0);
    synced("text");
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert!(taken("text") >= 1 << 20, "{}", taken("text"));
    mount.unmount();
    mount.check();
}

/// The kernel reads ahead as far as it does for other file systems.
#[test]
fn the_kernel_reads_ahead() {
    use std::os::unix::fs::MetadataExt;
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    let device = std::fs::metadata(&mount.point).unwrap().dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let setting = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    match File::options().write(true).open(&setting) {
        Ok(_) => assert_eq!(std::fs::read_to_string(&setting).unwrap().trim(), "4096"),
        Err(error) => println!("skipped: {error}"),
    }
    mount.unmount();
}

/// A mount with `-o ro` cannot keep what others remove.
#[test]
fn a_removed_file_that_is_open_read_only_is_stale() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    write(&mount.at("f"), &random_bytes(1 << 20, 1));
    mount.unmount();
    mount.again(&["-o", "ro"]);
    let file = File::open(mount.at("f")).unwrap();
    hardpack().arg("rm").arg(mount.in_pool("f")).assert().success();
    let read = std::io::Read::read(&mut &file, &mut [0; 4096]);
    assert_eq!(read.unwrap_err().raw_os_error(), Some(libc::ESTALE));
    drop(file);
    mount.unmount();
    mount.check();
}
