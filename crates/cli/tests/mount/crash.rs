//! The server is killed in the middle of work.

use std::fs::{self, File};
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::Connection;

use super::*;

/// What was synced is there, what was not is absent or older, and the pool is whole.
#[test]
fn what_was_synced_survives_the_server() {
    if !can_mount() {
        return;
    }
    for round in 0..6 {
        let mount = Mount::new();
        let synced = [const { AtomicU64::new(0) }; 2];
        std::thread::scope(|scope| {
            for (thread, synced) in (0_u64..).zip(&synced) {
                let mount = &mount;
                scope.spawn(move || {
                    for n in 1.. {
                        let path = mount.at(&format!("{thread}-{n}"));
                        let bytes = random_bytes(5000 + n as usize, thread << 32 | n);
                        // Errors say that the server is gone.
                        let Ok(()) = fs::write(&path, bytes) else { return };
                        let Ok(file) = File::open(&path) else { return };
                        let Ok(()) = file.sync_all() else { return };
                        synced.store(n, Ordering::SeqCst);
                        // This one is never synced, and replaces another that was.
                        let other = mount.at(&format!("unsynced {thread}"));
                        let Ok(()) = fs::write(&other, [thread as u8; 3000]) else { return };
                        let Ok(()) = fs::rename(&other, mount.at("replaced")) else { return };
                    }
                });
            }
            while synced.iter().any(|it| it.load(Ordering::SeqCst) < 3 + round * 4) {
                std::thread::yield_now();
            }
            mount.kill();
        });
        let error = fs::read_dir(&mount.point).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN));
        let stderr = stderr_of(hardpack().arg("mount").args([&mount.pool, &mount.point]), 3);
        assert!(stderr.contains("has died") && stderr.contains("--replace"), "{stderr}");
        mount.check();
        mount.again(&["--replace"]);
        for (thread, synced) in (0_u64..).zip(&synced) {
            for n in 1..=synced.load(Ordering::SeqCst) {
                let bytes = read(&mount.at(&format!("{thread}-{n}")));
                assert!(bytes == random_bytes(5000 + n as usize, thread << 32 | n), "{thread}-{n}");
            }
        }
        // A rename over another file brings its content along.
        if let Ok(bytes) = fs::read(mount.at("replaced")) {
            assert!(bytes.len() == 3000 && bytes.iter().all(|byte| *byte == bytes[0]));
        }
        mount.unmount();
        mount.check();
    }
}

/// A program goes on with the database that it has open in a dead mount, of which the kernel still
/// knows the pages. Its journal, which it makes by name, must not come into the mount that has
/// taken the place: what others have written there since would be undone by it.
#[test]
fn a_program_of_a_dead_mount_leaves_the_next_one_alone() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    let path = mount.at("a.db");
    make_database(&path, 4096, 100);
    // SQLite does not sync that it has removed its journal, and would roll the rows back.
    File::open(&mount.point).unwrap().sync_all().unwrap();
    let stale = Connection::open(&path).unwrap();
    let sum = "SELECT sum(length(b)) FROM t";
    // It makes its journal when it first changes a page.
    stale.execute_batch("PRAGMA cache_size = 1; BEGIN IMMEDIATE").unwrap();
    stale.query_row(sum, [], |_| Ok(())).unwrap();
    mount.kill();
    mount.again(&["--replace"]);
    let fresh = Connection::open(&path).unwrap();
    fresh.execute_batch("UPDATE t SET b = 'new'; INSERT INTO t(b) VALUES ('newest')").unwrap();
    drop(fresh);
    assert!(stale.execute_batch("UPDATE t SET b = 'stale'").is_err());
    drop(stale);
    assert!(!mount.at("a.db-journal").exists());
    let fresh = Connection::open(&path).unwrap();
    assert_eq!(fresh.query_row(sum, [], |row| row.get::<_, u32>(0)).unwrap(), 306);
    let verdict: String = fresh.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(verdict, "ok");
    drop(fresh);
    mount.unmount();
    mount.check();
}

/// A rename over another file brings its content along, also if the kernel still holds it.
#[test]
fn an_open_file_replaces_another_with_its_content() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    write(&mount.at("target"), b"old");
    // Until then, others may see the new name without its content.
    File::open(mount.at("target")).unwrap().sync_all().unwrap();
    let mut file = File::create(mount.at("new")).unwrap();
    let bytes = random_bytes(300_000, 1);
    std::io::Write::write_all(&mut file, &bytes).unwrap();
    fs::rename(mount.at("new"), mount.at("target")).unwrap();
    // Others see it as well.
    let seen = hardpack().arg("cat").arg(mount.in_pool("target")).output().unwrap().stdout;
    assert!(seen == b"old" || seen == bytes, "{} bytes", seen.len());
    File::open(&mount.point).unwrap().sync_all().unwrap();
    mount.kill();
    drop(file);
    mount.again(&["--replace"]);
    assert!(read(&mount.at("target")) == bytes);
    mount.unmount();
    mount.check();
}

/// Stock SQLite on a mount whose server is killed: what was committed durably is there, and nothing
/// in part. `scripts/mount.sh` does that to more programs, for longer.
#[test]
fn transactions_survive_the_server() {
    if !can_mount() {
        return;
    }
    let open = |path: &Path, mode: &str| -> rusqlite::Result<rusqlite::Connection> {
        let db = rusqlite::Connection::open(path)?;
        db.pragma_update(None, "journal_mode", mode)?;
        db.pragma_update(None, "synchronous", "extra")?;
        Ok(db)
    };
    let modes = ["wal", "delete", "persist"];
    for round in 0..2 {
        let mount = Mount::new();
        let committed = [const { AtomicU64::new(0) }; 3];
        std::thread::scope(|scope| {
            for (mode, committed) in modes.iter().zip(&committed) {
                let (path, point) = (mount.at(mode), &mount.point);
                scope.spawn(move || -> rusqlite::Result<()> {
                    let mut db = open(&path, mode)?;
                    db.execute_batch("CREATE TABLE t(n, body)")?;
                    for n in 1.. {
                        let txn = db.transaction()?;
                        for _ in 0..3 {
                            let body = random_bytes(2000, n);
                            txn.execute("INSERT INTO t VALUES(?, ?)", (n as i64, body))?;
                        }
                        txn.commit()?;
                        // To sync the deletion of its journal, SQLite opens the directory. If it
                        // cannot, since the server has just died, it goes on all the same.
                        if File::open(point).is_err() {
                            return Ok(());
                        }
                        committed.store(n, Ordering::SeqCst);
                    }
                    Ok(())
                });
            }
            while committed.iter().any(|it| it.load(Ordering::SeqCst) < 5 + round * 20) {
                std::thread::yield_now();
            }
            mount.kill();
        });
        // A transaction may be half done: its journal is another file of the pool, which SQLite
        // applies when it opens the database through a mount.
        let mut check = hardpack();
        check.args(["check", "-q", "--no-integrity-check"]).arg(&mount.pool).assert().success();
        mount.again(&["--replace"]);
        for (mode, committed) in modes.iter().zip(&committed) {
            let db = open(&mount.at(mode), mode).unwrap();
            let last = committed.load(Ordering::SeqCst) as i64;
            let [newest, numbers, rows, bodies]: [i64; 4] = db
                .query_row(
                    "SELECT max(n), count(DISTINCT n), count(*), count(DISTINCT body) FROM t",
                    [],
                    |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?]),
                )
                .unwrap();
            assert!(newest == last || newest == last + 1, "{mode}: {newest}, {last}");
            assert_eq!([numbers, rows, bodies], [newest, 3 * newest, newest], "{mode}");
            let found: String = db.query_row("PRAGMA integrity_check", [], |r| r.get(0)).unwrap();
            assert_eq!(found, "ok", "{mode}");
        }
        mount.unmount();
        mount.check();
    }
}

/// What was open without a name when the server died is a leftover, which the next user removes.
#[test]
fn a_file_without_a_name_goes_with_the_server() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    write(&mount.at("f"), &random_bytes(2 << 20, 1));
    let file = File::open(mount.at("f")).unwrap();
    file.sync_all().unwrap();
    fs::remove_file(mount.at("f")).unwrap();
    File::open(&mount.point).unwrap().sync_all().unwrap();
    mount.kill();
    drop(file);
    mount.again(&["--replace"]);
    // Whoever next keeps a file without a name removes those of the dead.
    write(&mount.at("g"), b"g");
    let file = File::open(mount.at("g")).unwrap();
    fs::remove_file(mount.at("g")).unwrap();
    drop(file);
    mount.unmount();
    mount.check();
    let info = json_of(hardpack().args(["info", "--json"]).arg(&mount.pool));
    assert_eq!(info["files"], 0, "{info}");
}

/// Mounts a new pool on a file system of its own that is this large. It is unmounted last, with
/// [`unmount_disk`].
fn on_small_disk(size: &str) -> (tempfile::TempDir, Mount) {
    let small = tempfile::tempdir().unwrap();
    let mut tmpfs = Command::new("mount");
    tmpfs.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(small.path());
    assert!(tmpfs.output().unwrap().status.success());
    let pool = small.path().join("p.hpk");
    hardpack().arg("create").arg(&pool).assert().success();
    (small, Mount::of(tempfile::tempdir().unwrap(), pool))
}

fn unmount_disk(small: &tempfile::TempDir) {
    let done = Command::new("umount").arg(small.path()).output();
    assert!(done.unwrap().status.success());
}

/// A full disk costs what was not synced, and is told.
#[test]
fn a_full_disk_is_told_and_leaves_the_pool_whole() {
    if !can_mount() {
        return;
    }
    let (small, mount) = on_small_disk("24m");
    write(&mount.at("kept"), b"kept");
    File::open(mount.at("kept")).unwrap().sync_all().unwrap();
    let mut failed = None;
    for n in 0..20 {
        let path = mount.at(&format!("f{n}"));
        let done = fs::write(&path, random_bytes(4 << 20, n))
            .and_then(|()| File::options().write(true).open(&path)?.sync_all());
        if let Err(error) = done {
            failed = Some(error);
            break;
        }
    }
    assert_eq!(failed.and_then(|error| error.raw_os_error()), Some(libc::ENOSPC));
    assert_eq!(read(&mount.at("kept")), b"kept");
    assert!(read(&mount.at("f0")) == random_bytes(4 << 20, 0));
    // With room again, work goes on.
    fs::remove_file(mount.at("f0")).unwrap();
    File::open(&mount.point).unwrap().sync_all().unwrap();
    write(&mount.at("after"), b"after");
    File::open(mount.at("after")).unwrap().sync_all().unwrap();
    mount.unmount();
    mount.check();
    assert_eq!(stdout_of(hardpack().arg("cat").arg(mount.in_pool("after"))), "after");
    drop(mount);
    unmount_disk(&small);
}

/// Names that a full disk has cost are told to whoever syncs the file or the directory, also if
/// they joined without an error.
#[test]
fn lost_names_are_told() {
    if !can_mount() {
        return;
    }
    let (small, mount) = on_small_disk("16m");
    let directory = File::open(&mount.point).unwrap();
    // Something else takes all the space.
    let other = File::create(small.path().join("other")).unwrap();
    for len in [65536, 512] {
        while std::io::Write::write_all(&mut &other, &vec![1; len]).is_ok() {}
    }
    let mut files = Vec::new();
    for n in 0..1000 {
        let path = mount.at(&format!("f{n}"));
        let Ok(mut file) = File::create(&path) else { break };
        let _ = std::io::Write::write_all(&mut file, &random_bytes(5000, n));
        files.push((path, file));
    }
    let mut failed = 0;
    for (path, file) in &files {
        match file.sync_all() {
            Ok(()) => assert!(path.exists(), "{}", path.display()),
            Err(_) => failed += 1,
        }
    }
    assert!(failed > 0);
    assert_eq!(directory.sync_all().unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    drop(other);
    // With room again, work goes on, and nothing new is taken for what was lost.
    fs::remove_file(small.path().join("other")).unwrap();
    for n in 0..20 {
        write(&mount.at(&format!("after{n}")), b"after");
    }
    for (path, file) in &mut files {
        if !path.exists() {
            let _ = std::io::Write::write_all(file, b"BEFORE");
        }
    }
    drop(files);
    write(&mount.at("after"), b"after");
    directory.sync_all().unwrap();
    drop(directory);
    for n in 0..20 {
        assert_eq!(read(&mount.at(&format!("after{n}"))), b"after");
    }
    mount.unmount();
    mount.check();
    assert_eq!(stdout_of(hardpack().arg("cat").arg(mount.in_pool("after"))), "after");
    drop(mount);
    unmount_disk(&small);
}

/// Each open file is told of what a full disk has cost when it is synced, and only once.
#[test]
fn every_open_file_is_told_once_of_a_full_disk() {
    if !can_mount() {
        return;
    }
    let (small, mount) = on_small_disk("8m");
    let path = mount.at("f");
    let mut file = File::create(&path).unwrap();
    let other = File::open(&path).unwrap();
    let _ = std::io::Write::write_all(&mut file, &random_bytes(24 << 20, 1));
    let told = |file: &File| file.sync_all().err().and_then(|error| error.raw_os_error());
    assert_eq!(told(&file), Some(libc::ENOSPC));
    assert_eq!(told(&file), None);
    assert_eq!(told(&other), Some(libc::ENOSPC));
    assert_eq!(told(&other), None);
    assert_eq!(told(&File::open(&path).unwrap()), None);
    drop((file, other));
    mount.unmount();
    mount.check();
    drop(mount);
    unmount_disk(&small);
}
