//! A packed pool remembers which file is its database, whatever else comes into it, and mistyped
//! names create nothing.

use std::fs;
use std::path::Path;

use crate::common::*;

fn assert_refused(command: &mut assert_cmd::Command, reason: &str) {
    let output = command.assert().code(3).get_output().stderr.clone();
    let text = String::from_utf8(output).unwrap();
    assert!(text.contains(reason), "{text}");
}

fn names(pool: &Path) -> String {
    stdout_of(hardpack().args(["ls", "-R"]).arg(pool))
}

/// Asserts that every command that takes a database finds it by the name of the pool.
fn assert_is_wiki(pool: &Path, original: &Path) {
    let directory = tempfile::tempdir().unwrap();
    let rows = hardpack().arg("sql").arg(pool).arg("SELECT count(*) FROM t").assert().success();
    assert!(String::from_utf8_lossy(&rows.get_output().stdout).contains("100"));
    let out = directory.path().join("out.db");
    hardpack().args(["unpack", "-q"]).args([pool, &out]).assert().success();
    assert_same(original, &out);
    let bytes = hardpack().arg("cat").arg(pool).assert().success().get_output().stdout.clone();
    assert!(bytes == fs::read(original).unwrap());
    for command in ["check", "info", "fold"] {
        hardpack().arg(command).arg(pool).assert().success();
    }
    assert_eq!(
        open_in_pool(pool).query_row("SELECT count(*) FROM t", [], |row| row.get(0)),
        Ok(100)
    );
}

#[test]
fn a_packed_pool_remembers_its_database() {
    let (directory, pool) = packed_as("wiki.db", 100);
    let original = directory.path().join("wiki.db");
    assert_is_wiki(&pool, &original);
    // Before and after it in the order of names, a directory, a database and a plain file.
    hardpack().arg("mkdir").arg(pool.join("attic")).assert().success();
    assert_is_wiki(&pool, &original);
    let other = directory.path().join("zoo.db");
    make_database(&other, 1024, 5);
    hardpack().args(["put", "-q"]).arg(&other).arg(&pool).assert().success();
    hardpack().args(["put", "-q"]).arg(&other).arg(pool.join("attic/a.db")).assert().success();
    open_in_pool(&pool.join("by-sqlite.db")).execute_batch("CREATE TABLE t(a)").unwrap();
    hardpack().arg("ln").arg(pool.join("wiki.db")).arg(pool.join("alias")).assert().success();
    assert_is_wiki(&pool, &original);
    // Replacing the pool by its database would lose the others.
    assert_refused(hardpack().args(["unpack", "-q", "--in-place"]).arg(&pool), "other files");
    assert_is_wiki(&pool, &original);
    let snapshot = with_ending(&pool, "@monday");
    hardpack().arg("snapshot").arg(&snapshot).assert().success();
    hardpack().arg("mv").arg(pool.join("wiki.db")).arg(pool.join("articles.db")).assert().success();
    hardpack().arg("rm").arg(pool.join("alias")).assert().success();
    assert_is_wiki(&pool, &original);
    let bytes = hardpack().arg("cat").arg(&snapshot).assert().success().get_output().stdout.clone();
    assert!(bytes == fs::read(&original).unwrap());
    // The others are found by their paths, and a repack of the pool is one of all files.
    for (path, rows) in [("zoo.db", 5), ("attic/a.db", 5)] {
        let out = directory.path().join("out.db");
        hardpack()
            .args(["extract", "-q", "-f", "-T"])
            .args([pool.join(path), out.clone()])
            .assert()
            .success();
        assert_eq!(count_rows(&out), rows, "{path}");
    }
    hardpack().args(["repack", "--compression", "zstd-5"]).arg(&pool).assert().success();
    hardpack().args(["set", "compression=zstd-6"]).arg(&pool).assert().success();
    let got = stdout_of(hardpack().args(["get", "-H", "compression"]).arg(pool.join("zoo.db")));
    assert!(got.contains("zstd-6"), "{got}");
    assert_is_wiki(&pool, &original);
    // It is out of the root for a while.
    hardpack().arg("mv").args([pool.join("articles.db"), pool.join("attic")]).assert().success();
    assert_refused(hardpack().arg("sql").arg(&pool).arg("SELECT 1"), "more than one file");
    hardpack().args(["check", "-q"]).arg(&pool).assert().success();
    hardpack().arg("mkdir").arg(pool.join("cellar")).assert().success();
    hardpack()
        .arg("mv")
        .args([pool.join("attic/articles.db"), pool.join("cellar/x")])
        .assert()
        .success();
    hardpack().arg("mv").args([pool.join("cellar/x"), pool.join("back.db")]).assert().success();
    assert_is_wiki(&pool, &original);
    assert!(names_beside(&pool).iter().all(|name| !name.contains("-db")));
}

#[test]
fn a_pool_of_many_has_no_database_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let pool = directory.path().join("many.hpk");
    for name in ["a.db", "b.db"] {
        make_database(&directory.path().join(name), 1024, 3);
        hardpack()
            .args(["put", "-q"])
            .arg(directory.path().join(name))
            .arg(&pool)
            .assert()
            .success();
    }
    assert_refused(hardpack().arg("sql").arg(&pool).arg("SELECT 1"), "more than one file");
    // Its first file does not become one by being moved.
    hardpack().arg("mkdir").arg(pool.join("d")).assert().success();
    hardpack().arg("mv").args([pool.join("a.db"), pool.join("d")]).assert().success();
    hardpack().arg("mv").args([pool.join("d/a.db"), pool.clone()]).assert().success();
    assert_refused(hardpack().arg("sql").arg(&pool).arg("SELECT 1"), "more than one file");
}

#[test]
fn a_mistyped_name_creates_nothing() {
    let (_directory, pool) = packed_as("wiki.db", 100);
    hardpack().arg("snapshot").arg(with_ending(&pool, "@monday")).assert().success();
    let before = names(&pool);
    for ending in ["@mondy", "/wiki.db@mondy", "/wiki.dbb"] {
        let path = with_ending(&pool, ending);
        assert_refused(hardpack().arg("sql").arg(&path).arg("SELECT 1"), "no such");
        assert_eq!(names(&pool), before, "{ending}");
    }
    let uri = |path: &Path| format!("file:{}?vfs=hardpack", path.display());
    let open = |path: &Path| rusqlite::Connection::open(uri(path));
    assert_eq!(
        open_in_pool(&pool.join("wiki.dbb")).query_row("SELECT 1", [], |row| row.get(0)),
        Ok(1)
    );
    assert!(open(&with_ending(&pool, "@mondy")).is_err());
    assert!(open(&pool.join("wiki.db@mondy")).is_err());
    assert_eq!(names(&pool), before);
    assert!(open(&with_ending(&pool, "@monday")).is_ok());
}
