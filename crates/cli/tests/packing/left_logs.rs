//! Commands that move, copy or remove databases together with the logs that a killed program has
//! left beside them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::*;
use rusqlite::Connection;
use tempfile::TempDir;

/// Makes a pool with `x`, a database whose log `x-wal` holds all but 10 of its 11 rows and has its
/// shared memory `x-shm`, and with a directory `dir`.
fn left() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let (at, pool) = (directory.path(), directory.path().join("pool.hpk"));
    let tree = at.join("tree");
    fs::create_dir_all(tree.join("dir")).unwrap();
    make_database(&at.join("x"), 4096, 10);
    let db = Connection::open(at.join("x")).unwrap();
    db.query_row("pragma journal_mode = wal", [], |_| Ok(())).unwrap();
    db.execute("insert into t(b) values('in the log')", []).unwrap();
    for name in ["x", "x-wal", "x-shm"] {
        fs::copy(at.join(name), tree.join(name)).unwrap();
    }
    drop(db);
    hardpack().args(["put", "-q", "--raw", "-T"]).args([&tree, &pool]).assert().success();
    (directory, pool)
}

/// Returns the paths of all files below the top of a pool.
fn files(pool: &Path) -> Vec<String> {
    let found = stdout_of(hardpack().args(["find", "--type", "f"]).arg(pool));
    let below = format!("{}/", pool.display());
    let mut found: Vec<String> =
        found.lines().map(|line| line.strip_prefix(&below).unwrap().to_owned()).collect();
    found.sort();
    found
}

/// The number of rows that SQLite finds in what the pool has under a path, and in its log.
fn rows(pool: &Path, path: &str) -> u32 {
    let out = tempfile::tempdir().unwrap();
    let to = out.path().join("db");
    for ending in ["", "-wal"] {
        let content = hardpack().arg("cat").arg(pool.join(format!("{path}{ending}"))).output();
        fs::write(with_ending(&to, ending), content.unwrap().stdout).unwrap();
    }
    let db = Connection::open(&to).unwrap();
    db.query_row("select count(*) from t", [], |row| row.get(0)).unwrap()
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(ending);
    path.into()
}

/// The paths that a shell or a pattern gives to a command, with the database in any place.
#[test]
fn a_log_may_be_named_beside_its_database() {
    let orders: [&[&str]; 4] =
        [&["x*"], &["x-wal", "x"], &["x-shm", "x-wal", "x"], &["x", "x-wal", "x-shm"]];
    for order in orders {
        for command in ["mv", "cp"] {
            let (_directory, pool) = left();
            hardpack().arg("touch").arg(pool.join("x2")).assert().success();
            let mut names: Vec<&str> = order.to_vec();
            names.push("x2");
            if order == ["x*"] {
                names.pop();
            }
            let paths = names.iter().map(|name| pool.join(name));
            hardpack().arg(command).args(paths).arg(pool.join("dir")).assert().success();
            assert_eq!(rows(&pool, "dir/x"), 11, "{command} {order:?}");
            let found = files(&pool);
            assert!(found.contains(&"dir/x2".to_owned()), "{command} {order:?}: {found:?}");
            let stays = found.iter().filter(|name| !name.starts_with("dir/")).count();
            assert_eq!(stays, if command == "mv" { 0 } else { 4 }, "{command} {order:?}");
        }
        let (_directory, pool) = left();
        let paths = order.iter().map(|name| pool.join(name));
        hardpack().arg("rm").args(paths).assert().success();
        assert!(files(&pool).is_empty(), "rm {order:?}: {:?}", files(&pool));
    }
}

/// What has the name of a log and is none is no part of the database, and not replaced by its log.
#[test]
fn a_log_replaces_nothing_that_is_none() {
    for ending in ["-wal", "-shm"] {
        let (directory, pool) = left();
        let notes = directory.path().join("notes");
        fs::write(&notes, "notes").unwrap();
        let in_the_way = pool.join(format!("y{ending}"));
        hardpack().args(["put", "-q", "-T"]).args([&notes, &in_the_way]).assert().success();
        let before = files(&pool);
        let moved = hardpack().arg("mv").args([pool.join("x"), pool.join("y")]).output().unwrap();
        let said = String::from_utf8_lossy(&moved.stderr);
        assert_eq!(moved.status.code(), Some(3), "{said}");
        assert!(said.contains(&format!("'y{ending}'")), "{said}");
        assert_eq!(files(&pool), before);
        assert_eq!(stdout_of(hardpack().arg("cat").arg(&in_the_way)), "notes");
        hardpack().arg("rm").arg(&in_the_way).assert().success();
        hardpack().arg("mv").args([pool.join("x"), pool.join("y")]).assert().success();
        assert_eq!(files(&pool), ["y", "y-shm", "y-wal"]);
        assert_eq!(rows(&pool, "y"), 11);
    }
}

#[test]
fn a_database_does_not_replace_its_own_log() {
    for ending in ["-wal", "-shm"] {
        let (_directory, pool) = left();
        let to = pool.join(format!("x{ending}"));
        let moved = hardpack().arg("mv").args([&pool.join("x"), &to]).output().unwrap();
        let said = String::from_utf8_lossy(&moved.stderr);
        assert_eq!(moved.status.code(), Some(3), "{said}");
        assert_eq!(files(&pool), ["x", "x-shm", "x-wal"]);
        assert_eq!(rows(&pool, "x"), 11);
    }
}
