//! `pack --in-place` does all or nothing, and refuses a file in use.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::*;
use rusqlite::Connection;

fn unpacked(pool: &Path) -> Vec<u8> {
    let output = with_ending(pool, ".back");
    hardpack().args(["unpack", "-q"]).args([pool, &output]).assert().success();
    let bytes = fs::read(&output).unwrap();
    fs::remove_file(&output).unwrap();
    bytes
}

fn assert_refused(path: &Path, code: i32) {
    let before = (fs::read(path).unwrap(), names_beside(path));
    hardpack().args(["pack", "--in-place"]).arg(path).assert().code(code);
    assert!(before == (fs::read(path).unwrap(), names_beside(path)));
}

#[test]
fn files_and_databases_are_replaced() {
    let (_directory, path) = directory_with("file", &random_bytes(200_000, 5));
    let before = fs::read(&path).unwrap();
    hardpack().args(["pack", "-q", "--in-place"]).arg(&path).assert().success();
    assert_eq!(names_beside(&path), ["file"]);
    assert!(unpacked(&path) == before);

    let (_directory, path) = directory_with("data.db", b"");
    make_database(&path, 4096, 3000);
    let before = fs::read(&path).unwrap();
    hardpack().args(["pack", "-q", "--in-place"]).arg(&path).assert().success();
    assert_eq!(names_beside(&path), ["data.db"]);
    assert!(unpacked(&path) == before);
    let count = stdout_of(hardpack().arg("sql").arg(&path).arg("SELECT count(*) FROM t"));
    assert_eq!(count, "3000\n");
}

#[test]
fn the_log_goes_into_the_pool() {
    let (_directory, path) = directory_with("data.db", b"");
    make_database(&path, 4096, 1000);
    let db = Connection::open(&path).unwrap();
    db.pragma_update(None, "journal_mode", "wal").unwrap();
    add_rows(&db, 500);
    // The files as a crashed process leaves them.
    let (_other, crashed) = directory_with("data.db", &fs::read(&path).unwrap());
    for ending in ["-wal", "-shm"] {
        fs::copy(with_ending(&path, ending), with_ending(&crashed, ending)).unwrap();
    }
    hardpack().args(["pack", "-q", "--in-place"]).arg(&crashed).assert().success();
    assert_eq!(names_beside(&crashed), ["data.db"]);
    let bytes = unpacked(&crashed);
    assert_eq!(bytes[18..20], [2, 2], "the database is no longer in WAL mode");
    let output = with_ending(&crashed, ".back");
    fs::write(&output, bytes).unwrap();
    assert_eq!(count_rows(&output), 1500);
}

#[test]
fn a_persistent_journal_is_removed() {
    let (_directory, path) = directory_with("data.db", b"");
    make_database(&path, 4096, 100);
    let db = Connection::open(&path).unwrap();
    db.pragma_update(None, "journal_mode", "persist").unwrap();
    add_rows(&db, 5);
    drop(db);
    assert_eq!(names_beside(&path), ["data.db", "data.db-journal"]);
    let before = fs::read(&path).unwrap();
    hardpack().args(["pack", "-q", "--in-place"]).arg(&path).assert().success();
    assert_eq!(names_beside(&path), ["data.db"]);
    assert!(unpacked(&path) == before);
}

#[test]
fn files_in_use_are_refused() {
    let (_directory, path) = directory_with("data.db", b"");
    make_database(&path, 4096, 100);
    // Open in a process without any lock.
    let mut child =
        Command::new("sleep").arg("100").stdin(File::open(&path).unwrap()).spawn().unwrap();
    assert_refused(&path, 5);
    child.kill().unwrap();
    child.wait().unwrap();
    // Open in SQLite, idle.
    let db = Connection::open(&path).unwrap();
    add_rows(&db, 1);
    assert_refused(&path, 5);
    db.pragma_update(None, "journal_mode", "wal").unwrap();
    add_rows(&db, 1);
    assert_refused(&path, 5);
    add_rows(&db, 1);
    drop(db);
    assert_eq!(count_rows(&path), 103);
    hardpack().args(["pack", "-q", "--in-place"]).arg(&path).assert().success();
}

#[test]
fn other_names_and_second_times_are_refused() {
    let (_directory, path) = directory_with("file", b"content");
    let other = with_ending(&path, ".link");
    fs::hard_link(&path, &other).unwrap();
    assert_refused(&path, 3);
    fs::remove_file(&other).unwrap();
    std::os::unix::fs::symlink(&path, &other).unwrap();
    hardpack().args(["pack", "-q", "--in-place"]).arg(&other).assert().success();
    assert!(fs::symlink_metadata(&other).unwrap().is_symlink());
    assert_refused(&path, 3);
    assert_eq!(unpacked(&path), b"content");
    let usage = hardpack().args(["pack", "--in-place", "a", "b"]).assert().code(2);
    assert!(!usage.get_output().stderr.is_empty());
}

/// Leftovers of killed commands are reported, files of running commands are not.
#[test]
fn leftovers_of_killed_commands_are_named() {
    let (directory, path) = directory_with("data.db", b"");
    make_database(&path, 4096, 100);
    let (dead, living) = (".hardpack-0123456789abcdef.tmp", ".hardpack-fedcba9876543210.tmp");
    fs::write(directory.path().join(dead), b"half a pool").unwrap();
    let held = File::create(directory.path().join(living)).unwrap();
    held.lock().unwrap();
    for other in [".hardpack-0123.tmp", "hardpack-0123456789abcdef.tmp"] {
        fs::write(directory.path().join(other), b"").unwrap();
    }
    // Recently changed files are ignored.
    std::thread::sleep(Duration::from_millis(3500));
    for (arguments, code) in [(["pack", "-q", "--in-place"], 0), (["pack", "-q", "--in-place"], 3)]
    {
        let done = hardpack().args(arguments).arg(&path).assert().code(code);
        let stderr = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
        let notes: Vec<&str> = stderr.lines().filter(|line| line.starts_with("note: ")).collect();
        assert_eq!(notes.len(), 1, "{stderr}");
        assert!(notes[0].contains(dead) && notes[0].contains("killed"), "{stderr}");
    }
    assert!(
        directory.path().join(dead).exists(),
        "it may be the database: only its owner can tell"
    );
}

/// Bytes that zstd-19 compresses for some seconds.
fn slow_to_pack() -> Vec<u8> {
    random_bytes(12 << 20, 9).iter().flat_map(|byte| [b'a' + byte % 16, b'a' + byte / 16]).collect()
}

/// A command holds its unfinished file, so that another one in the same directory does not report
/// it.
#[test]
fn unfinished_files_are_held() {
    let (directory, path) = directory_with("file", &slow_to_pack());
    let mut child = Command::new(assert_cmd::cargo::cargo_bin!("hardpack"))
        .args(["pack", "-q", "--in-place", "--compression", "zstd-19"])
        .arg(&path)
        .spawn()
        .unwrap();
    let unfinished = loop {
        let names = names_beside(&path);
        if let Some(name) = names.iter().find(|name| name.starts_with('.')) {
            break directory.path().join(name);
        }
        assert!(child.try_wait().unwrap().is_none(), "it is done before it was seen");
        std::thread::yield_now();
    };
    let file = File::open(&unfinished).unwrap();
    // The lock is taken a moment after the file is created.
    while file.try_lock().is_ok() {
        assert!(child.try_wait().unwrap().is_none(), "nothing held {}", unfinished.display());
        file.unlock().unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(file.try_lock().is_ok());
    assert!(unfinished.exists(), "the test is of no use");
}

/// A change by a process that opens and closes the database during packing is noticed.
#[test]
fn a_change_after_reading_is_noticed() {
    let (_directory, path) = directory_with("file", &slow_to_pack());
    let child = Command::new(assert_cmd::cargo::cargo_bin!("hardpack"))
        .args(["pack", "-q", "--in-place", "--compression", "zstd-19"])
        .arg(&path)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while names_beside(&path).len() < 2 {
        std::thread::yield_now();
    }
    File::options().write(true).open(&path).unwrap().write_all_at(b"changed", 5000).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::read(&path).unwrap()[5000..5007], *b"changed");
    assert_eq!(names_beside(&path), ["file"]);
}

/// While a process keeps opening the database, it is either replaced or reported as in use, and
/// each open finds one of the two, complete.
#[test]
fn openers_meet_the_database_or_the_pool() {
    let (_directory, path) = directory_with("data.db", b"");
    make_database(&path, 4096, 2000);
    let database = fs::read(&path).unwrap();
    let stop = AtomicBool::new(false);
    let mut replaced = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let mut head = [0; 8];
                File::open(&path).unwrap().read_exact_at(&mut head, 0).unwrap();
                assert!([b"SQLite f", b"Hardpack"].contains(&&head), "{head:?}");
                std::thread::sleep(Duration::from_micros(300));
            }
        });
        for _ in 0..20 {
            let done = hardpack().args(["pack", "-q", "--in-place"]).arg(&path).assert();
            assert_eq!(names_beside(&path), ["data.db"]);
            match done.get_output().status.code() {
                Some(0) => {
                    replaced += 1;
                    assert!(unpacked(&path) == database);
                    hardpack()
                        .args(["unpack", "-q"])
                        .arg(&path)
                        .arg(with_ending(&path, ".back"))
                        .assert()
                        .success();
                    fs::rename(with_ending(&path, ".back"), &path).unwrap();
                }
                Some(5) => assert!(fs::read(&path).unwrap() == database),
                other => panic!("{other:?}: {:?}", done.get_output()),
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    println!("replaced {replaced} times of 20");
}

/// An access control list in Linux's format: user 1234 may read, and the mask allows that.
fn access_control_list() -> Vec<u8> {
    let mut list = 2_u32.to_le_bytes().to_vec();
    let nobody = u32::MAX;
    for (tag, rights, id) in
        [(1_u16, 6_u16, nobody), (2, 4, 1234), (4, 0, nobody), (0x10, 4, nobody), (0x20, 0, nobody)]
    {
        list.extend(tag.to_le_bytes());
        list.extend(rights.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    list
}

#[test]
fn extended_attributes_and_access_control_lists_stay() {
    let (_directory, path) = directory_with("data.db", b"");
    make_database(&path, 4096, 100);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let wanted =
        [("user.what", b"a database".to_vec()), ("system.posix_acl_access", access_control_list())];
    let set = |(name, value): &(&str, Vec<u8>)| {
        rustix::fs::setxattr(&path, *name, value, rustix::fs::XattrFlags::empty()).is_ok()
    };
    let kept: Vec<_> = wanted.into_iter().filter(set).collect();
    if kept.is_empty() {
        eprintln!("not tested: this file system has no extended attributes");
    }
    let mode = fs::metadata(&path).unwrap().mode();
    hardpack().args(["pack", "-q", "--in-place"]).arg(&path).assert().success();
    for (name, value) in kept {
        let mut found = vec![0; 1024];
        let len = rustix::fs::getxattr(&path, name, &mut found[..]).unwrap();
        assert_eq!(found[..len], value, "{name}");
    }
    assert_eq!(fs::metadata(&path).unwrap().mode(), mode);
}
