//! Databases in a pool are locked by identity, not by name: a second name of the pool (a hard link,
//! a file mounted over another, a new name) never lets anybody in while somebody uses the first.
//! And no lock of this process is lost when threads open and close databases at once.
#![expect(unsafe_code, reason = "calls SQLite's C interface")]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Role, open, run, value};
use rusqlite::{Connection, ErrorCode};

#[test]
fn child_role() {
    let Some(role) = common::role() else { return };
    let path = common::path_argument(0);
    match role.as_str() {
        "lock" => {
            let locked = common::try_open(&path, "").and_then(|db| {
                db.busy_timeout(std::time::Duration::ZERO)?;
                db.execute_batch("begin immediate")
            });
            common::report(match locked.map_err(|error| error.sqlite_error_code()) {
                Ok(()) => "free",
                Err(Some(ErrorCode::DatabaseBusy)) => "busy",
                Err(_) => "another error",
            });
        }
        "writer" => {
            let db = open(&path);
            run(&db, "begin immediate; insert into t values(1)");
            common::report("locked");
            while !common::path_argument(1).exists() {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            run(&db, "commit");
        }
        "dies" => {
            let db = open(&path);
            assert_eq!(rows(&db), 0);
            common::report("ready");
            while !common::path_argument(1).exists() {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            // The other has begun to wait for the name.
            std::thread::sleep(std::time::Duration::from_millis(10));
            run(&db, "insert into t values(7)");
            std::process::abort();
        }
        other => panic!("role {other}"),
    }
}

/// Returns the answer that another process gets when it tries to write.
fn seen_from_outside(path: &Path) -> String {
    let (_, lines) = Role::start("lock", &[&path.to_string_lossy()]).wait();
    lines.last().cloned().unwrap_or_default()
}

/// Creates a directory with a pool, in which a database is the only file or one of several.
fn pool(is_alone: bool) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.hpk");
    if !is_alone {
        common::make_pool(&path, &["d"]);
        run(&open(&path.join("first.db")), "create table t(a)");
    }
    run(&open(&inner(&path, is_alone)), "create table t(a)");
    (dir, path)
}

fn inner(pool: &Path, is_alone: bool) -> PathBuf {
    if is_alone { pool.into() } else { pool.join("d/x.db") }
}

fn rows(db: &Connection) -> i64 {
    value(db, "select count(*) from t")
}

/// Nobody can use the second name while the first is in use, in this process or another; afterwards
/// everybody can.
fn is_refused_while_in_use(first: &Path, second: &Path, is_alone: bool) {
    for mode in ["delete", "wal"] {
        let (one, other) = (inner(first, is_alone), inner(second, is_alone));
        let db = open(&one);
        run(&db, &format!("pragma journal_mode={mode}; begin immediate; insert into t values(1)"));
        let context = format!("{mode}, {is_alone}, {}", second.display());
        assert_eq!(seen_from_outside(&other), "busy", "{context}");
        assert!(common::try_open(&other, "").is_err(), "{context}");
        let before = rows(&db);
        run(&db, "commit");
        // Not even for reading: the reader would not find the log.
        assert!(common::try_open(&other, "&mode=ro").is_err(), "{context}");
        drop(db);
        assert_eq!(seen_from_outside(&other), "free", "{context}");
        assert_eq!(rows(&open(&other)), before, "{context}");
        let db = open(&other);
        assert_eq!(seen_from_outside(&one), "busy", "{context}");
        run(&db, "insert into t values(2)");
        drop(db);
        assert_eq!(rows(&open(&one)), before + 1, "{context}");
    }
    common::assert_pool_is_clean(first);
}

#[test]
fn a_hard_link_is_no_second_database() {
    for is_alone in [true, false] {
        let (dir, path) = pool(is_alone);
        let link = dir.path().join("q.hpk");
        std::fs::hard_link(&path, &link).unwrap();
        is_refused_while_in_use(&path, &link, is_alone);
        let elsewhere = dir.path().join("elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        std::fs::hard_link(&path, elsewhere.join("p.hpk")).unwrap();
        is_refused_while_in_use(&path, &elsewhere.join("p.hpk"), is_alone);
    }
}

/// A symbolic link and another path to the same directory are the same name.
#[test]
fn another_path_of_the_same_name_is_not_refused() {
    for is_alone in [true, false] {
        let (dir, path) = pool(is_alone);
        let link = dir.path().join("link.hpk");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let way = dir.path().join("way");
        std::os::unix::fs::symlink(dir.path(), &way).unwrap();
        let db = open(&inner(&path, is_alone));
        run(&db, "insert into t values(1)");
        for other in [link, way.join("p.hpk")] {
            let other = inner(&other, is_alone);
            assert_eq!(rows(&open(&other)), 1);
            assert_eq!(seen_from_outside(&other), "free", "{}", other.display());
            run(&db, "begin immediate");
            assert_eq!(seen_from_outside(&other), "busy");
            run(&db, "commit");
        }
    }
}

#[test]
fn a_file_mounted_over_another_is_no_second_database() {
    let run_mount = |arguments: &[&std::ffi::OsStr]| {
        Command::new("mount").args(arguments).status().is_ok_and(|status| status.success())
    };
    for is_alone in [true, false] {
        let (dir, path) = pool(is_alone);
        let over = dir.path().join("over");
        std::fs::create_dir(&over).unwrap();
        let second = over.join("p.hpk");
        std::fs::write(&second, "").unwrap();
        if !run_mount(&["--bind".as_ref(), path.as_os_str(), second.as_os_str()]) {
            println!("not tested: this user may not mount a file over another");
            return;
        }
        struct Unmount(PathBuf);
        impl Drop for Unmount {
            fn drop(&mut self) {
                let _ = Command::new("umount").arg(&self.0).status();
            }
        }
        let _unmount = Unmount(second.clone());
        is_refused_while_in_use(&path, &second, is_alone);
    }
}

/// A pool is renamed while it is in use: its users get an error at the next write, and nobody can
/// use the new name before they are gone.
#[test]
fn a_renamed_pool_is_not_written_by_two() {
    for is_alone in [true, false] {
        for is_replaced in [false, true] {
            let (dir, path) = pool(is_alone);
            let db = open(&inner(&path, is_alone));
            run(&db, "insert into t values(1)");
            let new = dir.path().join("new.hpk");
            std::fs::rename(&path, &new).unwrap();
            if is_replaced {
                std::fs::copy(&new, &path).unwrap();
            }
            let context = format!("{is_alone} {is_replaced}");
            let error = db.execute_batch("insert into t values(2)").unwrap_err();
            let code = error.sqlite_error().unwrap().extended_code;
            assert_eq!(code, rusqlite::ffi::SQLITE_READONLY_DBMOVED, "{context}: {error}");
            assert_eq!(seen_from_outside(&inner(&new, is_alone)), "busy", "{context}");
            drop(db);
            assert_eq!(seen_from_outside(&inner(&new, is_alone)), "free", "{context}");
            let db = open(&inner(&new, is_alone));
            run(&db, "insert into t values(2)");
            assert_eq!(rows(&db), 2, "{context}");
        }
    }
}

/// Another pool takes the name while somebody has the previous one open: when that user leaves, it
/// removes nothing that the users of the new pool lock.
#[test]
fn who_leaves_a_replaced_pool_lets_the_lock_file_be() {
    let (dir, path) = pool(false);
    let old = open(&inner(&path, false));
    assert_eq!(rows(&old), 0);
    let new = dir.path().join("new.hpk");
    std::fs::copy(&path, &new).unwrap();
    std::fs::rename(&new, &path).unwrap();
    let signal = dir.path().join("signal");
    let arguments = [inner(&path, false), signal.clone()].map(|path| path.display().to_string());
    let mut writer = Role::start("writer", &[&arguments[0], &arguments[1]]);
    writer.expect("locked");
    drop(old);
    assert_eq!(seen_from_outside(&inner(&path, false)), "busy");
    std::fs::write(&signal, "").unwrap();
    writer.finish();
    let db = open(&inner(&path, false));
    assert_eq!(rows(&db), 1);
    drop(db);
    let left = std::fs::read_dir(dir.path()).unwrap().flatten();
    assert_eq!(left.filter(|entry| entry.path() != signal).count(), 1, "the last user removes it");
}

/// A pool with another name elsewhere, as a backup creates, can be opened by anyone with permission
/// for it, even if the directory cannot be listed.
#[test]
fn a_directory_that_cannot_be_listed_is_no_obstacle() {
    use std::os::unix::fs::{PermissionsExt, chown};
    use std::os::unix::process::CommandExt;
    const NOBODY: u32 = 65534;
    let (dir, path) = pool(true);
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::hard_link(&path, elsewhere.path().join("p.hpk")).unwrap();
    if chown(&path, Some(NOBODY), Some(NOBODY)).is_err() {
        println!("not tested: this user may not give files away");
        return;
    }
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o711)).unwrap();
    let script = "import sqlite3, sys
library, path = sys.argv[1:]
db = sqlite3.connect(':memory:')
db.enable_load_extension(True)
db.load_extension(library)
db = sqlite3.connect(f'file:{path}?vfs=hardpack', uri=True)
print(db.execute('select count(*) from t').fetchone()[0])";
    let library = dir.path().join("libhardpack.so");
    std::fs::copy(common::library(), &library).unwrap();
    std::fs::set_permissions(&library, PermissionsExt::from_mode(0o755)).unwrap();
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", script]).arg(&library).arg(&path).current_dir("/").uid(NOBODY).gid(NOBODY);
    let output = python.output().expect("the Debian package python3 is installed");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text.trim(), "0", "{}", String::from_utf8_lossy(&output.stderr));
}

/// A log that a dead process left beside one name is not missed through another name in the same
/// directory.
#[test]
fn a_log_beside_another_name_is_not_missed() {
    for is_alone in [true, false] {
        let (dir, path) = pool(is_alone);
        let link = dir.path().join("q.hpk");
        std::fs::hard_link(&path, &link).unwrap();
        run(&open(&inner(&path, is_alone)), "pragma journal_mode=wal");
        let signal = dir.path().join("never").to_string_lossy().into_owned();
        let mut writer =
            Role::start("writer", &[&inner(&path, is_alone).to_string_lossy(), &signal]);
        writer.expect("locked");
        let db = open(&inner(&path, is_alone));
        assert_eq!(rows(&db), 0);
        writer.kill();
        run(&db, "insert into t values(7)");
        // As after a crash, the connection ends without a checkpoint.
        run(&db, "pragma wal_autocheckpoint=0");
        db.set_db_config(rusqlite::config::DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)
            .unwrap();
        drop(db);
        assert_eq!(seen_from_outside(&inner(&link, is_alone)), "busy");
        assert_eq!(rows(&open(&inner(&path, is_alone))), 1);
        assert_eq!(seen_from_outside(&inner(&link, is_alone)), "free");
    }
}

/// Nor is one that a process leaves while another waits for its name of the pool.
#[test]
fn a_log_left_while_waiting_for_the_name_is_not_missed() {
    for is_alone in [true, false] {
        let (dir, path) = pool(is_alone);
        let link = dir.path().join("q.hpk");
        std::fs::hard_link(&path, &link).unwrap();
        run(&open(&inner(&path, is_alone)), "pragma journal_mode=wal");
        let signal = dir.path().join("signal");
        let arguments = [inner(&path, is_alone), signal.clone()];
        let arguments = arguments.each_ref().map(|path| path.to_string_lossy().into_owned());
        let mut other = Role::start("dies", &[&arguments[0], &arguments[1]]);
        other.expect("ready");
        std::fs::write(&signal, "").unwrap();
        let seen = common::try_open(&inner(&link, is_alone), "").map(|db| rows(&db));
        let code = seen.map_err(|error| error.sqlite_error_code());
        assert_eq!(code, Err(Some(ErrorCode::DatabaseBusy)));
        let _ = other.wait();
        assert_eq!(rows(&open(&inner(&path, is_alone))), 1);
    }
}

/// Threads open the same database for the first time at once: one creates the lock file, others
/// lock it as soon as it has its name. Whatever the first does next, no other process gets in.
#[test]
fn a_lock_survives_the_making_of_its_file() {
    const ROUNDS: usize = 60;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.hpk");
    common::make_pool(&path, &[]);
    // The pool's first file is locked on the pool.
    run(&open(&path.join("first.db")), "create table t(a)");
    let database = path.join("x.db");
    run(&open(&database), "create table t(a)");
    let file_count = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(file_count, 1, "the lock file goes with its last user");
    // The pool stays open, but not this database.
    let _pool = open(&path.join("other.db"));
    let lock_file = common::with_suffix(&path, "-db3");
    for round in 0..ROUNDS {
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Simulates a thread in which SQLite opens and locks the file the moment it exists.
            let other = scope.spawn(|| {
                loop {
                    let is_last = done.load(std::sync::atomic::Ordering::Relaxed);
                    if let Ok(file) = std::fs::OpenOptions::new().write(true).open(&lock_file) {
                        return Some(lock_byte(file));
                    }
                    if is_last {
                        return None;
                    }
                }
            });
            let db = open(&database);
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            let _other = other.join().unwrap().expect("the lock file exists");
            assert!(has_lock_file_locked(dir.path()), "round {round}: the lock is gone");
            drop(db);
        });
    }
    assert_eq!(seen_from_outside(&database), "free");
}

/// How often the list of locks is read before a lock counts as gone.
const LOOK_COUNT: usize = 50;

/// Locks a byte of a file that SQLite does not use, with the same kind of lock.
fn lock_byte(file: std::fs::File) -> std::fs::File {
    use std::os::fd::AsRawFd;
    // SAFETY: the structure consists of integers, and the descriptor is open.
    unsafe {
        let mut range: libc::flock = std::mem::zeroed();
        range.l_type = libc::F_WRLCK as libc::c_short;
        range.l_start = 5;
        range.l_len = 1;
        assert_eq!(libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &range), 0);
    }
    file
}

/// Whether this process holds a lock on a lock file in `dir`, according to the system. The system
/// lists locks in parts and may miss one while others come and go; a lock that is gone never
/// reappears.
fn has_lock_file_locked(dir: &Path) -> bool {
    (0..LOOK_COUNT).any(|_| is_lock_file_locked(dir))
}

fn is_lock_file_locked(dir: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let locks = std::fs::read_to_string("/proc/locks").unwrap();
    let own = std::process::id().to_string();
    std::fs::read_dir(dir).unwrap().flatten().any(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let number = format!(":{}", entry.metadata().unwrap().ino());
        name.contains("-db")
            && locks.lines().any(|line| {
                let fields: Vec<&str> = line.split_whitespace().collect();
                matches!(fields[..], [_, "POSIX", _, "WRITE", pid, file, ..]
                    if pid == own && file.ends_with(&number))
            })
    })
}
