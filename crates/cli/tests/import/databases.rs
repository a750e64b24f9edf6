//! Databases that other extensions compressed become plain ones with the same content.
//! `databases/README.md` says how they were made.

use std::fs;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use rusqlite::types::Value;
use tempfile::TempDir;

use crate::common::*;
use crate::names_in;

const HERE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/import/databases");
/// More than any of the databases has, in bytes.
const LEN_MAX: usize = 4 << 20;

/// Writes a database of the folder to a new directory, and one of the same content that was never
/// compressed.
fn database(name: &str) -> (TempDir, PathBuf, PathBuf) {
    let stored = fs::read(format!("{HERE}/{name}.db.zst")).unwrap();
    let mut bytes = Vec::with_capacity(LEN_MAX);
    zstd_safe::decompress(&mut bytes, &stored).unwrap();
    let (directory, path) = directory_with(&format!("{name}.db"), &bytes);
    let plain = directory.path().join("plain.db");
    let sql = fs::read_to_string(format!("{HERE}/{name}.sql")).unwrap();
    let db = Connection::open(&plain).unwrap();
    db.execute_batch(&sql).unwrap();
    if name == "rows" {
        // The extension itself has updated rows, which a trigger noted. An import must not.
        db.execute("ATTACH ?1 AS source", [path.to_str().unwrap()]).unwrap();
        db.execute_batch("INSERT INTO main.log SELECT what FROM source.log ORDER BY rowid")
            .unwrap();
    }
    (directory, path, plain)
}

/// All rows of all tables and views, with rowids where there are any.
fn content(path: &Path) -> Vec<(String, Vec<Vec<Value>>)> {
    let db = Connection::open(path).unwrap();
    let sql = "SELECT name, wr FROM pragma_table_list WHERE schema = 'main' AND name <> 'sqlite_schema' ORDER BY 1";
    let mut tables = db.prepare(sql).unwrap();
    let tables = tables.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    let tables: Vec<(String, bool)> = tables.collect::<Result<_, _>>().unwrap();
    let of = |(name, is_without_rowid): (String, bool)| {
        let kind = "SELECT type FROM sqlite_schema WHERE name = ?1";
        let kind: String = db.query_row(kind, [&name], |row| row.get(0)).unwrap();
        let rowid = if is_without_rowid || kind == "view" { "0" } else { "rowid" };
        let mut all =
            db.prepare(&format!("SELECT {rowid}, * FROM \"{name}\" ORDER BY 1, 2")).unwrap();
        let count = all.column_count();
        let rows = all.query_map([], |row| (0..count).map(|at| row.get(at)).collect()).unwrap();
        (name, rows.collect::<Result<_, _>>().unwrap())
    };
    tables.into_iter().map(of).collect()
}

/// Imports a database, and returns the plain one.
fn imported(source: &Path) -> PathBuf {
    let at = source.parent().unwrap();
    let pool = at.join("p.hpk");
    hardpack()
        .args(["import", "-q"])
        .args([source, &pool])
        .assert()
        .success()
        .stdout("")
        .stderr("");
    hardpack().args(["check", "-q"]).arg(&pool).assert().success();
    let out = at.join("out.db");
    hardpack().args(["unpack", "-q"]).args([&pool, &out]).assert().success();
    out
}

fn assert_same_content(a: &Path, b: &Path) {
    for (a, b) in content(a).iter().zip(&content(b)) {
        assert_eq!(a.0, b.0);
        assert_eq!(a.1.len(), b.1.len(), "{}", a.0);
        for (a_row, b_row) in a.1.iter().zip(&b.1) {
            assert_eq!(a_row, b_row, "{}", a.0);
        }
    }
    assert_eq!(content(a).len(), content(b).len());
}

#[test]
fn pages_of_sqlite_zstd_vfs() {
    let (directory, source, plain) = database("pages");
    let before = fs::read(&source).unwrap();
    let found = imported(&source);
    assert_same_content(&found, &plain);
    assert_eq!(names_in(directory.path()), ["out.db", "p.hpk", "pages.db", "plain.db"]);
    assert!(fs::read(&source).unwrap() == before);
}

#[test]
fn rows_of_sqlite_zstd() {
    let (directory, source, plain) = database("rows");
    let before = fs::read(&source).unwrap();
    let found = imported(&source);
    assert_same_content(&found, &plain);
    assert!(fs::read(&source).unwrap() == before);
    assert_eq!(names_in(directory.path()), ["out.db", "p.hpk", "plain.db", "rows.db"]);
    // Of the extension nothing is left, and of what the user made everything.
    let db = Connection::open(&found).unwrap();
    let names = |path: &Path| -> Vec<String> {
        let db = Connection::open(path).unwrap();
        let mut all =
            db.prepare("SELECT type || ' ' || name FROM sqlite_schema ORDER BY 1").unwrap();
        let names = all.query_map([], |row| row.get(0)).unwrap();
        names.collect::<Result<_, _>>().unwrap()
    };
    assert_eq!(names(&found), names(&plain));
    // Keys, constraints and triggers work as before.
    db.execute("UPDATE pages SET title = 'renamed' WHERE id = 1", []).unwrap();
    let count: i64 = db.query_row("SELECT count(*) FROM log", [], |row| row.get(0)).unwrap();
    assert_eq!(count, 729);
    db.execute("INSERT INTO pages(title) VALUES ('renamed')", []).unwrap_err();
    db.execute("INSERT INTO pages(title) VALUES ('next')", []).unwrap();
    assert_eq!(db.last_insert_rowid(), 100_002);
}

/// A log that holds the last changes is read, and stays as it was.
#[test]
fn a_source_in_use_is_read_with_its_log() {
    let (directory, source, _) = database("rows");
    let writer = Connection::open(&source).unwrap();
    writer.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())).unwrap();
    writer
        .execute("INSERT INTO _pages_zstd(title, body) VALUES ('in the log', 'text')", [])
        .unwrap();
    let found = imported(&source);
    let db = Connection::open(&found).unwrap();
    let sql = "SELECT body FROM pages WHERE title = 'in the log'";
    let body: String = db.query_row(sql, [], |row| row.get(0)).unwrap();
    assert_eq!(body, "text");
    // The database keeps its mode.
    let mode: String = db.query_row("PRAGMA journal_mode", [], |row| row.get(0)).unwrap();
    assert_eq!(mode, "wal");
    drop(writer);
    drop(directory);
}

#[test]
fn dictionaries_that_may_be_needed_stay() {
    let (_directory, source, _) = database("rows");
    let db = Connection::open(&source).unwrap();
    db.execute("INSERT INTO _zstd_dicts VALUES (77, 'by hand', x'0102')", []).unwrap();
    drop(db);
    let pool = with_ending(&source, ".hpk");
    let stderr = stderr_of(hardpack().args(["import", "-q"]).args([&source, &pool]), 0);
    assert!(stderr.contains("_zstd_dicts stays: no compressed column uses 1 of its"), "{stderr}");
}

#[test]
fn damage_is_found_and_nothing_is_made() {
    let damages: [(&str, &str, &str); 9] = [
        ("pages", "DELETE FROM nested_vfs_zstd_pages WHERE pageno = 30", "page 30 is missing"),
        ("pages", "DELETE FROM nested_vfs_zstd_pages", "no database in it"),
        ("pages", "DELETE FROM nested_vfs_zstd_dicts", "there is no dictionary 1"),
        ("pages", "UPDATE nested_vfs_zstd_pages SET data = x'00' WHERE pageno = 9", "page 9: "),
        (
            "pages",
            "UPDATE nested_vfs_zstd_pages SET data = (SELECT data FROM nested_vfs_zstd_pages WHERE pageno = 20), meta1 = (SELECT meta1 FROM nested_vfs_zstd_pages WHERE pageno = 20) WHERE pageno = 3",
            "is damaged",
        ),
        ("rows", "DELETE FROM _zstd_dicts WHERE id = 2", "there is no dictionary 2"),
        ("rows", "UPDATE _pages_zstd SET body = x'0001' WHERE id = 5", "a compressed value: "),
        ("rows", "UPDATE _zstd_configs SET config = '{}' WHERE id = 1", "has no 'table'"),
        (
            "rows",
            "DROP VIEW keyed; ALTER TABLE _keyed_zstd RENAME TO other",
            "'_keyed_zstd' is missing",
        ),
    ];
    for (name, sql, expected) in damages {
        let (directory, source, _) = database(name);
        let db = Connection::open(&source).unwrap();
        db.execute_batch("PRAGMA writable_schema = ON; PRAGMA foreign_keys = OFF").unwrap();
        db.execute_batch(sql).unwrap();
        drop(db);
        let at = directory.path();
        let file = source.file_name().unwrap().to_str().unwrap();
        fails(at, &["import", "-q", file, "p.hpk"], 1, &[expected]);
        let mut expected = [file, "plain.db"];
        expected.sort_unstable();
        assert_eq!(names_in(at), expected, "{sql}");
    }
}

#[test]
fn a_database_goes_where_the_path_says() {
    let (directory, _, _) = database("rows");
    let at = directory.path();
    for target in ["p.hpk", "p.hpk/dir/", "p.hpk/dir/named.db", "p.hpk/dir"] {
        succeeds(at, &["import", "-q", "rows.db", target]);
    }
    assert_eq!(succeeds(at, &["ls", "p.hpk"]), "dir\nrows.db\n");
    assert_eq!(succeeds(at, &["ls", "p.hpk/dir"]), "named.db\nrows.db\n");
    fails(
        at,
        &["import", "-q", "plain.db", "q.hpk"],
        3,
        &["a plain SQLite database", "hardpack pack"],
    );
    fails(
        at,
        &["import", "-q", "--from", "sqlite-zstd", "plain.db", "q.hpk"],
        1,
        &["no table in it"],
    );
    fails(
        at,
        &["import", "-q", "--from", "sqlite-zstd-vfs", "plain.db", "q.hpk"],
        3,
        &["no such table"],
    );
    // Its own journal, of a transaction of the database inside.
    fs::write(at.join("rows.db-inner-journal"), b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7").unwrap();
    let from = ["import", "-q", "--from", "sqlite-zstd-vfs", "rows.db", "q.hpk"];
    fails(at, &from, 5, &["unfinished transaction"]);
    let mut session = Session::open(&at.join("p.hpk/rows.db"));
    assert_eq!(session.run("SELECT count(*) FROM authors"), ["2"]);
    fails(at, &["import", "-q", "rows.db", "p.hpk"], 5, &["has it open"]);
    session.close();
}
