//! Round trips of real databases, and of all kinds of databases made by stock SQLite.
//!
//! `HARDPACK_DATABASES` names files and directories of databases, separated by colons; without it,
//! only databases made here are used. `HARDPACK_DATABASES_MB` limits how much of each is read.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::round_trip;
use hardpack_page_filter::{PageFilter, RECORD_LEN_MAX, guess_page_len};

const RECORD_LENS: [usize; 6] = [128 << 10, 64 << 10, 32 << 10, 1 << 20, 16 << 20, 100_001];

fn round_trip_file(path: &Path, mb_max: usize) -> usize {
    let mut bytes = std::fs::read(path).expect("a database");
    bytes.truncate(mb_max << 20);
    let Some(page_len) = guess_page_len(&bytes, 0) else { return 0 };
    let mut filter = PageFilter::new();
    let mut filtered = Vec::new();
    let mut count = 0;
    let what = path.display().to_string();
    for record_len in RECORD_LENS {
        for (i, record) in bytes.chunks(record_len).enumerate() {
            let offset = (i * record_len) as u64;
            let form = round_trip(&mut filter, record, offset, page_len, &mut filtered, &what);
            count += usize::from(form.is_some());
        }
    }
    count
}

#[test]
#[ignore = "needs HARDPACK_DATABASES"]
fn real_databases_come_back() {
    let paths = std::env::var_os("HARDPACK_DATABASES").expect("databases to read");
    let mb_max = std::env::var("HARDPACK_DATABASES_MB").map_or(64, |mb| mb.parse().expect("MB"));
    for path in std::env::split_paths(&paths) {
        let files: Vec<PathBuf> = match std::fs::read_dir(&path) {
            Ok(entries) => entries.map(|entry| entry.expect("an entry").path()).collect(),
            Err(_) => vec![path],
        };
        for file in files {
            let count = round_trip_file(&file, mb_max);
            println!("{}: {count} records filtered", file.display());
        }
    }
}

/// Makes a database with the stock shell.
fn make(path: &Path, reserved: usize, sql: &str) {
    let _ = std::fs::remove_file(path);
    let mut command = Command::new("sqlite3");
    command.arg(path).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = command.spawn().expect("the Debian package sqlite3 is installed");
    let mut input = String::new();
    if reserved > 0 {
        input += &format!(".filectrl reserve_bytes {reserved}\n");
    }
    input += sql;
    std::io::Write::write_all(child.stdin.as_mut().expect("a pipe"), input.as_bytes())
        .expect("writing");
    drop(child.stdin.take());
    assert!(child.wait().expect("the shell").success());
}

const SERIES: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<1500)";

/// SQL that makes rows of every class, long texts, deletions, an index, a table without row ids,
/// and dropped tables.
fn every_kind(page_len: usize, vacuum: &str, legacy: &str) -> String {
    format!(
        "PRAGMA page_size={page_len}; PRAGMA auto_vacuum={vacuum}; PRAGMA legacy_file_format={legacy};
        CREATE TABLE a(i INTEGER PRIMARY KEY, n, t TEXT, b BLOB, r REAL, o);
        CREATE INDEX a_t ON a(t, n);
        CREATE TABLE w(k TEXT, j INT, v, PRIMARY KEY(k, j)) WITHOUT ROWID;
        CREATE TABLE f(x REAL, y); CREATE INDEX f_x ON f(x); CREATE TABLE gone(z);
        CREATE TABLE tiny(x); CREATE INDEX tiny_x ON tiny(x);
        {SERIES} INSERT INTO a SELECT i*3, (i*7919)%1000-500 << (i%40), 'name '||((i*31)%777),
            randomblob(i%50), i/10.0, CASE i%5 WHEN 0 THEN NULL WHEN 1 THEN i WHEN 2 THEN 0.1*i WHEN 3
            THEN 'x'||i ELSE x'00'||i END FROM n;
        {SERIES} INSERT INTO w SELECT 'key'||(i%50), i, printf('%.*c', i%300, 'v') FROM n;
        {SERIES} INSERT INTO f SELECT i*1.25-77, -i*i*i*i FROM n;
        {SERIES} INSERT INTO gone SELECT hex(randomblob(100)) FROM n;
        INSERT INTO f VALUES(-0.0, 9e999), (1e-300, -9223372036854775808), (1e300, 9223372036854775807);
        {SERIES} INSERT INTO tiny SELECT CASE WHEN i%2 THEN NULL ELSE i%3 END FROM n;
        UPDATE a SET t=printf('%.*c', 3*page, 'long') FROM (SELECT {page_len} AS page) WHERE i%50=0;
        UPDATE a SET b=randomblob(i%3000) WHERE i%33=0;
        INSERT INTO w SELECT printf('%.*c', {page_len}, 'k'||j), j, v FROM w WHERE j%100=0;
        DELETE FROM a WHERE i%7=0; DELETE FROM w WHERE j%3=1; DROP TABLE gone;
        UPDATE a SET n=n||'changed' WHERE i%11=0; DELETE FROM f WHERE y%2=0;
        ALTER TABLE f ADD COLUMN added DEFAULT 5; UPDATE f SET added=7 WHERE rowid%9=0;
        PRAGMA user_version=7;\n"
    )
}

#[test]
fn databases_of_every_kind_come_back() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("made.db");
    for bits in 9..=16 {
        for (vacuum, legacy, reserved) in
            [("none", "off", 0), ("full", "off", 0), ("incremental", "on", 0), ("none", "on", 12)]
        {
            let page_len = 1usize << bits;
            make(&path, reserved, &every_kind(page_len, vacuum, legacy));
            let bytes = std::fs::read(&path).expect("the database");
            assert_eq!(guess_page_len(&bytes, 0), Some(page_len));
            assert_eq!(usize::from(bytes[20]), reserved, "the shell takes no reserved bytes");
            let count = round_trip_file(&path, 64);
            assert!(count > 6, "{page_len} {vacuum}: only {count} records are filtered");
            // The whole database as one record must become smaller by the bytes that are omitted.
            let mut filtered = Vec::new();
            let bytes = &bytes[..bytes.len().min(RECORD_LEN_MAX)];
            assert!(PageFilter::new().encode(bytes, 0, page_len, &mut filtered));
            assert!(filtered.len() < bytes.len(), "{page_len} {vacuum}: {}", filtered.len());
        }
    }
}

/// Fields of all lengths around those that are copied as chunks, in rows of all lengths around
/// those of slots, and more rows in a page than all slots have room for.
#[test]
fn rows_of_short_fields_come_back() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("made.db");
    for page_len in [512, 4096, 65536] {
        let mut sql = format!("PRAGMA page_size={page_len};");
        for (i, longest) in [3, 9, 17, 33, 65].into_iter().enumerate() {
            sql += &format!(
                "CREATE TABLE t{i}(a, b, c, d, e, f, g); CREATE INDEX i{i} ON t{i}(b, c);
                {SERIES} INSERT INTO t{i} SELECT i%3, printf('%.*c', i*i%{longest}, 'b'),
                    CASE WHEN i%4 THEN i*i END, printf('%.*c', i%7%{longest}, 'd'), i%7/2.0,
                    CASE WHEN i%5 THEN printf('%.*c', i*i*i%{longest}, 'f') WHEN i%3 THEN i END,
                    1<<(i%50) FROM n;"
            );
        }
        let columns: Vec<String> = (0..40).map(|i| format!("c{i}")).collect();
        let values: Vec<String> = (0..40)
            .map(|i| format!("CASE i%40 WHEN {i} THEN 'once in a while' ELSE '' END"))
            .collect();
        sql += &format!("CREATE TABLE wide({});", columns.join(","));
        sql += &format!("{SERIES} INSERT INTO wide SELECT {} FROM n;", values.join(","));
        make(&path, 0, &sql);
        assert!(round_trip_file(&path, 64) > 6, "{page_len}");
    }
}

#[test]
fn page_length_is_seen_in_the_middle_of_a_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("made.db");
    for bits in 9..=14 {
        let page_len = 1usize << bits;
        make(&path, 0, &every_kind(page_len, "none", "off"));
        let bytes = std::fs::read(&path).expect("the database");
        let at = 128 << 10;
        assert_eq!(guess_page_len(&bytes[at..2 * at], at as u64), Some(page_len));
    }
}
