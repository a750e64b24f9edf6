//! Older states on the command line are listed, unpacked, checked, and made the newest again.

use std::fs;

use crate::common::{
    count_rows, directory_with, fails, hardpack, json_of, make_database, pack, packed_as,
    random_bytes, stderr_of, succeeds,
};

#[test]
fn an_older_state_is_listed_unpacked_and_brought_back() {
    let directory = tempfile::tempdir().unwrap();
    let db = directory.path().join("rows.db");
    make_database(&db, 4096, 5000);
    let pool = pack(&db);
    let txg = || {
        let report = json_of(hardpack().args(["info", "--json"]).arg(&pool));
        report["txg"].as_u64().unwrap()
    };
    let before = txg();
    hardpack().arg("sql").arg(&pool).arg("DELETE FROM t WHERE a > 1000").assert().success();
    let after = txg();
    assert!(after > before);
    let listed = json_of(hardpack().args(["check", "--states", "--json", "-q"]).arg(&pool));
    let states = listed["states"].as_array().unwrap();
    assert_eq!((&states[0]["txg"], &states[0]["whole"]), (&after.into(), &true.into()));
    assert!(states.iter().any(|state| state["txg"] == before && state["whole"] == true));
    let old = before.to_string();
    let out = directory.path().join("old.db");
    let args = ["unpack", "-q", "--rewind", &old];
    hardpack().args(args).arg(&pool).arg(&out).assert().success();
    assert_eq!(count_rows(&out), 5000);
    hardpack().args(["check", "-q", "--rewind", &old]).arg(&pool).assert().success();
    let out = directory.path().join("saved.db");
    let args = ["salvage", "-q", "--rewind", &old];
    hardpack().args(args).arg(&pool).arg(&out).assert().success();
    assert_eq!(count_rows(&out), 5000);

    let rows = |expected: &str| {
        let done = hardpack().arg("sql").arg(&pool).arg("SELECT count(*) FROM t").assert();
        done.success().stdout(format!("{expected}\n"));
    };
    rows("1000");
    let done = hardpack().arg("rewind").arg(&pool).arg(&old).assert().success();
    let text = String::from_utf8(done.get_output().stdout.clone()).unwrap();
    assert!(text.contains("undoes this"), "{text}");
    hardpack().args(["check", "-q"]).arg(&pool).assert().success();
    rows("5000");
    hardpack().args(["rewind", "-q"]).arg(&pool).arg(after.to_string()).assert().success();
    hardpack().args(["check", "-q"]).arg(&pool).assert().success();
    rows("1000");
}

#[test]
fn a_damaged_state_is_not_rewound_to() {
    let (directory, path) = directory_with("random", &random_bytes(300_000, 5));
    let pool = directory.path().join("p.hpk");
    hardpack().args(["put", "-q"]).args([&path, &pool]).assert().success();
    let before = json_of(hardpack().args(["info", "--json"]).arg(&pool))["txg"].to_string();
    hardpack().arg("rm").arg(pool.join("random")).assert().success();
    // Bytes that only the older state has, stored as they are.
    let (mut image, content) = (fs::read(&pool).unwrap(), random_bytes(64, 5));
    let at = image.windows(64).position(|bytes| bytes == content).unwrap();
    image[at] ^= 1;
    fs::write(&pool, &image).unwrap();
    let stderr = stderr_of(hardpack().args(["rewind", "-q"]).arg(&pool).arg(&before), 1);
    let words = format!("the state of txg {before} is damaged: ");
    assert!(stderr.contains(&words) && stderr.contains("check --states"), "{stderr}");
    assert!(fs::read(&pool).unwrap() == image);
}

#[test]
fn what_cannot_be_rewound_stays_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let db = directory.path().join("rows.db");
    make_database(&db, 4096, 500);
    let pool = pack(&db);
    let image = fs::read(&pool).unwrap();
    hardpack().arg("rewind").arg(&pool).arg("99999").assert().code(3).stdout("");
    hardpack().args(["check", "--rewind", "99999"]).arg(&pool).assert().code(3);
    let wal = crate::common::with_ending(&pool, "-wal");
    fs::write(&wal, b"something").unwrap();
    hardpack().arg("rewind").arg(&pool).arg("1").assert().code(5).stdout("");
    assert!(fs::read(&pool).unwrap() == image);
}

/// `sql --at` reads a snapshot or a recent state, and says what there is if it does not exist.
#[test]
fn sql_reads_a_database_as_it_was() {
    let (directory, pool) = packed_as("rows.db", 100);
    let name = pool.file_name().unwrap().to_str().unwrap();
    let sql = |at: &str, sql: &str| {
        succeeds(directory.path(), &["sql", name, "--at", at, sql]).trim().to_owned()
    };
    let count = "SELECT count(*) FROM t";
    succeeds(directory.path(), &["snapshot", &format!("{name}@full")]);
    succeeds(directory.path(), &["sql", name, "DELETE FROM t WHERE a > 40"]);
    assert_eq!(sql("full", count), "100");
    let words = ["no snapshot or state 'empty'", "its snapshots are full"];
    fails(directory.path(), &["sql", name, "--at", "empty", count], 3, &words);
    let txg = |name| json_of(hardpack().current_dir(&directory).args(["info", "--json", name]));
    let before = txg(name)["txg"].to_string();
    let words = ["hardpack set concurrency=snapshot"];
    fails(directory.path(), &["sql", name, "--at", &before, count], 3, &words);
    succeeds(directory.path(), &["set", "concurrency=snapshot", name]);
    let before = txg(name)["txg"].to_string();
    assert_eq!(sql(&before, count), "40");
    assert_eq!(sql("2200-01-01", count), "100");
    let args = ["sql", name, "--at", &before, "DELETE FROM t"];
    fails(directory.path(), &args, 3, &["readonly"]);
    let words = ["it is a snapshot already"];
    let snapshot = format!("{name}@full");
    fails(directory.path(), &["sql", &snapshot, "--at", &before, count], 3, &words);
}
