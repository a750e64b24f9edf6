//! Pools on a medium that nobody can write to, such as a disc.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::*;
use rusqlite::Connection;

/// A directory that is mounted elsewhere, for reading only.
struct Medium<'a>(&'a Path);

impl<'a> Medium<'a> {
    /// Makes an image of `from`, and mounts that; `None` where that is not possible.
    fn of(from: &Path, at: &'a Path) -> Option<Medium<'a>> {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/loop-control").exists() {
            return None;
        }
        let image = at.with_extension("squashfs");
        fs::create_dir(at).unwrap();
        for (tool, last, options) in [
            ("mksquashfs", &image, &["-quiet", "-no-progress"][..]),
            ("mount", &at.to_path_buf(), &["-o", "loop"][..]),
        ] {
            let first = if tool == "mount" { &image } else { from };
            let done = Command::new(tool).arg(first).arg(last).args(options).output().unwrap();
            assert!(done.status.success(), "{tool}: {}", String::from_utf8_lossy(&done.stderr));
        }
        Some(Medium(at))
    }

    /// Mounts `from` itself, where others may still write to it; `None` without permission.
    fn in_use(from: &Path, at: &'a Path) -> Option<Medium<'a>> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        fs::create_dir(at).unwrap();
        let mount = |arguments: &[&Path]| Command::new("mount").args(arguments).status().unwrap();
        assert!(mount(&[Path::new("--bind"), from, at]).success());
        let mounted = Medium(at);
        assert!(mount(&[Path::new("-o"), Path::new("remount,ro,bind"), at]).success());
        Some(mounted)
    }
}

impl Drop for Medium<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

/// Makes a database in write-ahead log mode, with an empty log.
fn make_wal_database(path: &Path, rows: u32) {
    make_database(path, 4096, rows);
    let db = Connection::open(path).unwrap();
    db.query_row("pragma journal_mode = wal", [], |_| Ok(())).unwrap();
}

#[test]
fn databases_on_a_read_only_medium() {
    let directory = tempfile::tempdir().unwrap();
    let (from, at) = (directory.path().join("from"), directory.path().join("disc"));
    fs::create_dir(&from).unwrap();
    let made = directory.path().join("made");
    fs::create_dir(&made).unwrap();
    make_wal_database(&made.join("wal.db"), 30);
    make_database(&made.join("plain.db"), 4096, 40);
    let lone = from.join("lone.hpk");
    hardpack().args(["pack", "-q"]).args([&made.join("wal.db"), &lone]).assert().success();
    let both = from.join("both.hpk");
    hardpack().args(["put", "-q", "-T"]).args([&made, &both]).assert().success();
    // Two programs were killed: one of them left what is not in its pool.
    for name in ["empty", "left"] {
        let pool = from.join(format!("{name}.hpk"));
        fs::copy(&lone, &pool).unwrap();
        fs::write(from.join(format!("{name}.hpk-wal")), if name == "left" { "log" } else { "" })
            .unwrap();
    }
    let Some(_medium) = Medium::of(&from, &at) else { return };
    let count = |database: &str| {
        let done =
            hardpack().arg("sql").arg(at.join(database)).arg("select count(*) from t").output();
        let done = done.unwrap();
        (done.status.code().unwrap(), String::from_utf8(done.stdout).unwrap())
    };
    for (database, rows) in [
        ("lone.hpk", "30\n"),
        ("both.hpk/wal.db", "30\n"),
        ("both.hpk/plain.db", "40\n"),
        ("empty.hpk", "30\n"),
    ] {
        assert_eq!(count(database), (0, rows.into()), "{database}");
    }
    for pool in ["lone.hpk", "both.hpk", "empty.hpk"] {
        hardpack().args(["check", "-q"]).arg(at.join(pool)).assert().success();
    }
    // Its rows would be missed.
    assert_eq!(count("left.hpk"), (3, String::new()));
    let check = hardpack().args(["check", "--json"]).arg(at.join("left.hpk")).output().unwrap();
    let said = String::from_utf8(check.stdout).unwrap();
    assert!(said.contains("write-ahead log mode"), "{said}");
    let refused = hardpack().arg("sql").arg(at.join("lone.hpk")).arg("delete from t").output();
    let said = String::from_utf8(refused.unwrap().stderr).unwrap();
    assert!(said.contains("readonly") || said.contains("read-only"), "{said}");
    let refused = hardpack().arg("mount").args([&at.join("both.hpk"), &made]).assert().code(3);
    let said = String::from_utf8_lossy(&refused.get_output().stderr).into_owned();
    assert!(said.contains("hint: '-o ro' mounts it"), "{said}");
}

#[test]
fn what_a_log_needs_is_said_where_nothing_can_be_made_beside_a_pool() {
    let directory = tempfile::tempdir().unwrap();
    let (from, at) = (directory.path().join("from"), directory.path().join("for reading"));
    fs::create_dir(&from).unwrap();
    make_wal_database(&directory.path().join("wal.db"), 30);
    let pool = from.join("left.hpk");
    hardpack()
        .args(["pack", "-q"])
        .args([&directory.path().join("wal.db"), &pool])
        .assert()
        .success();
    // Others may write to it, so it cannot be read as if nobody did.
    fs::write(from.join("left.hpk-wal"), "log").unwrap();
    let Some(_mounted) = Medium::in_use(&from, &at) else { return };
    let pool = at.join("left.hpk");
    let out = directory.path().join("out");
    let commands: [&[&Path]; 4] = [
        &[Path::new("sql"), &pool, Path::new("select count(*) from t")],
        &[Path::new("cat"), &pool],
        &[Path::new("extract"), &pool, &out],
        &[Path::new("unpack"), &pool, &out.with_extension("db")],
    ];
    for command in commands {
        let done = hardpack().args(command).output().unwrap();
        let said = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(3), "{command:?}: {said}");
        assert!(said.contains("it is in write-ahead log mode"), "{command:?}: {said}");
        assert!(said.contains("hint: it needs write permission for the directory"), "{said}");
    }
    let check = hardpack().args(["check", "--json"]).arg(&pool).output().unwrap();
    let said = String::from_utf8(check.stdout).unwrap();
    assert!(said.contains("write-ahead log mode"), "{said}");
}
