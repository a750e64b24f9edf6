//! `fold` and `repack` rewrite stored data while the pool is in use, and keep its content.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::*;
use hardpack_engine::device::FileDevice;
use hardpack_engine::pool::{Options, Pool, Repack};
use rusqlite::Connection;

const PATIENCE: Duration = Duration::from_secs(60);

/// Packs, with `arguments`, a file whose parts compress differently well.
fn packed(len: usize, arguments: &[&str]) -> (tempfile::TempDir, PathBuf, PathBuf) {
    let mut content = Vec::with_capacity(len + 100);
    for (number, noise) in random_bytes(len, 3).chunks(40).enumerate() {
        if content.len() >= len {
            break;
        }
        content.extend_from_slice(format!("line {number} of some text, and then ").as_bytes());
        content.extend_from_slice(&noise[..number / 500 % 40]);
    }
    content.truncate(len);
    let (directory, path) = directory_with("file", &content);
    hardpack().args(["pack", "-q"]).args(arguments).arg(&path).assert().success();
    let pool = with_ending(&path, ".hpk");
    (directory, path, pool)
}

fn assert_holds(pool: &Path, original: &Path) {
    hardpack().args(["check", "-q"]).arg(pool).assert().success();
    let output = with_ending(pool, ".back");
    hardpack().args(["unpack", "-qf"]).args([pool, &output]).assert().success();
    assert_same(original, &output);
}

fn number(value: &serde_json::Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("{name} of {value}"))
}

/// The unfinished repack of a pool. Nobody else may have the pool open for writing.
fn unfinished(pool: &Path) -> Option<Repack> {
    let device = Arc::new(FileDevice::open_read_only(pool).unwrap());
    let engine = Pool::open(device, Options::new(1 << 20)).unwrap();
    engine.unfinished_repack(engine.only_file().unwrap().file).unwrap()
}

#[test]
fn several_files_have_one_progress() {
    let directory = tempfile::tempdir().unwrap();
    let tree = directory.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for n in 0..5 {
        fs::write(tree.join(n.to_string()), random_bytes(100_000 + n, n as u64)).unwrap();
    }
    let pool = directory.path().join("pool.hpk");
    hardpack().args(["put", "-q"]).args([&tree, &pool]).assert().success();
    for (command, label) in [
        (&["repack", "--estimate", "--compression", "zstd-9"][..], "compressing a sample"),
        (&["repack", "--compression", "zstd-9"], "repacking 5 files"),
    ] {
        let steps = progress_of(hardpack().args(command).arg(&pool));
        let last = steps.last().unwrap();
        assert_eq!(
            (&last["done"], &last["total"]),
            (&500_010.into(), &500_010.into()),
            "{steps:?}"
        );
        let done: Vec<_> = steps.iter().map(|step| step["done"].as_u64().unwrap()).collect();
        assert!(done.is_sorted(), "{steps:?}");
        assert!(steps.iter().all(|step| step["step"] == label), "{steps:?}");
    }
}

#[test]
fn a_repack_rewrites_what_is_not_as_wanted() {
    let (_directory, path, pool) = packed(3 << 20, &["--compression", "lz4"]);
    let goal = ["--compression", "zstd-9", "--recordsize", "64K"];
    let content = fs::read(&pool).unwrap();
    let estimate =
        json_of(hardpack().args(["repack", "--estimate", "--json"]).args(goal).arg(&pool));
    assert!(fs::read(&pool).unwrap() == content, "an estimate changed the pool");
    assert_eq!(number(&estimate, "rewrite_bytes"), fs::metadata(&path).unwrap().len());
    let text = stdout_of(hardpack().args(["repack", "--estimate"]).args(goal).arg(&pool));
    assert!(
        text.contains("stored afterwards, about") && text.contains("from a sample of"),
        "{text}"
    );

    let report = json_of(hardpack().args(["repack", "-q", "--json"]).args(goal).arg(&pool));
    assert_eq!(report["compression"], "zstd-9");
    assert_eq!(number(&report, "recordsize"), 65536);
    assert_eq!((number(&report, "overtaken"), number(&report, "damaged")), (0, 0));
    assert!(report["ratio"].as_f64().unwrap() < 0.9, "{report}");
    let (found, told) = (number(&report, "stored_after"), number(&estimate, "stored_then"));
    assert!(found.abs_diff(told) < found / 10, "{told} was told, it is {found}");
    let info = json_of(hardpack().args(["info", "--json"]).arg(&pool));
    assert_eq!(number(&info, "stored_bytes"), found);
    assert!(info["codecs"]["zstd"]["stored_bytes"].is_u64() && info["codecs"]["lz4"].is_null());
    assert_holds(&pool, &path);
    // The properties for new data do not change.
    let property = stdout_of(hardpack().args(["get", "-H", "compression"]).arg(&pool));
    assert!(property.contains("\tlz4\t"), "{property}");

    let again = stdout_of(hardpack().arg("repack").args(goal).arg(&pool));
    assert!(again.ends_with("everything was stored like this already\n"), "{again}");
    let again = stdout_of(hardpack().args(["repack", "--estimate"]).args(goal).arg(&pool));
    assert!(again.ends_with("everything is stored like this already\n"), "{again}");
    // Without flags, the properties are the goal.
    hardpack().args(["repack", "-q"]).arg(&pool).assert().success().stdout("").stderr("");
    let info = json_of(hardpack().args(["info", "--json"]).arg(&pool));
    assert!(info["codecs"]["zstd"].is_null(), "{info}");
    assert_holds(&pool, &path);
}

/// Starts a long repack, and interrupts it after some progress.
fn interrupt(pool: &Path, goal: &[&str]) -> Repack {
    let child = Command::new(assert_cmd::cargo::cargo_bin!("hardpack"))
        .args(["repack", "-j1"])
        .args(goal)
        .arg(pool)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let began = Instant::now();
    while unfinished(pool).is_none_or(|repack| repack.position == 0) {
        assert!(began.elapsed() < PATIENCE, "it does not begin");
        std::thread::sleep(Duration::from_millis(2));
    }
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("interrupted"), "{stderr}");
    assert!(stderr.ends_with(": 'hardpack repack' continues from there\n"), "{stderr}");
    unfinished(pool).expect("a repack is unfinished")
}

#[test]
fn an_interrupted_repack_goes_on() {
    let (_directory, path, pool) = packed(6 << 20, &["--compression", "lz4"]);
    // Properties that do not affect how records are stored do not change the goal.
    hardpack().args(["set", "background-cpu=50%"]).arg(&pool).assert().success();
    let len = fs::metadata(&path).unwrap().len();
    let goal = ["--compression", "zstd-19"];
    for again in [&[][..], &goal] {
        hardpack().args(["repack", "-q", "--restart"]).arg(&pool).assert().success();
        let stopped = interrupt(&pool, &goal);
        assert!(stopped.position > 0 && stopped.position < len, "{stopped:?}");
        assert_holds(&pool, &path);
        // With the same goal, or none, it continues and does only the rest.
        let done = hardpack().args(["repack", "--json"]).args(again).arg(&pool).assert().success();
        let stderr = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
        assert!(
            stderr.contains("continuing an interrupted repack to zstd-19"),
            "{again:?}: {stderr}"
        );
        let report: serde_json::Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
        assert_eq!(report["compression"], "zstd-19");
        let rewritten = number(&report, "rewritten_bytes");
        assert!(rewritten <= len - stopped.position + (128 << 10), "{stopped:?}, {report}");
        assert_eq!(unfinished(&pool), None);
        let left =
            json_of(hardpack().args(["repack", "--estimate", "--json"]).args(goal).arg(&pool));
        assert_eq!(number(&left, "rewrite_bytes"), 0, "something was left out");
        assert_holds(&pool, &path);
    }
    // Another goal, or --restart, starts over.
    hardpack().args(["repack", "-q", "--restart"]).arg(&pool).assert().success();
    for other in [&["--compression", "gzip-3"][..], &["--restart"]] {
        interrupt(&pool, &goal);
        let done = hardpack().args(["repack"]).args(other).arg(&pool).assert().success();
        let stderr = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
        assert!(!stderr.contains("going on"), "{stderr}");
        assert_eq!(unfinished(&pool), None);
        let wanted = if other.len() == 2 { "gzip" } else { "lz4" };
        let info = json_of(hardpack().args(["info", "--json"]).arg(&pool));
        assert_eq!(info["codecs"].as_object().unwrap().len(), 1, "{info}");
        assert!(info["codecs"][wanted].is_object(), "{info}");
        assert_holds(&pool, &path);
    }
}

fn make_table(db: &Connection) {
    db.execute_batch(
        "CREATE TABLE t(a INTEGER PRIMARY KEY, n, b);
         WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 8000)
         INSERT INTO t SELECT i, 0, printf('%.700c', 'y') || hex(randomblob(100)) FROM c",
    )
    .unwrap();
}

#[test]
fn fold_merges_patches() {
    let (_directory, path) = directory_with("data.db", b"");
    make_table(&Connection::open(&path).unwrap());
    let pool = pack(&path);
    // Keep background maintenance from being faster.
    hardpack().args(["set", "background-cpu=0%"]).arg(&pool).assert().success();
    let db = open_in_pool(&pool);
    let patches = || {
        let sql = "SELECT value FROM hardpack_stats WHERE name = 'patches_records'";
        db.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap_or(0)
    };
    db.execute_batch("UPDATE t SET n = n + 1 WHERE a % 400 = 3").unwrap();
    assert!(patches() > 10, "{} patches", patches());
    let due = json_of(hardpack().args(["fold", "--due", "--json", "-q"]).arg(&pool));
    assert_eq!(number(&due, "records"), 0, "none was due");
    let report = json_of(hardpack().args(["fold", "--json", "-q"]).arg(&pool));
    assert!(number(&report, "records") > 5, "{report}");
    assert_eq!(number(&report, "damaged"), 0);
    assert!(number(&report, "stored_before") > 0 && number(&report, "stored_after") > 0);
    let sum: i64 = db.query_row("SELECT sum(n) FROM t", [], |row| row.get(0)).unwrap();
    assert_eq!(sum, 20);
    assert_eq!(patches(), 0);
    let text = stdout_of(hardpack().arg("fold").arg(&pool));
    assert!(text.contains(": 0 records folded"), "{text}");
    hardpack().args(["fold", "-q"]).arg(&pool).assert().success().stdout("").stderr("");
    drop(db);
    hardpack().args(["check", "-q"]).arg(&pool).assert().success();
}

/// Connections of this process continue to update while other processes repack and fold.
#[test]
fn connections_go_on() {
    for mode in ["delete", "wal"] {
        let (_directory, path) = directory_with("data.db", b"");
        make_table(&Connection::open(&path).unwrap());
        let pool = pack(&path);
        let db = open_in_pool(&pool);
        db.pragma_update(None, "journal_mode", mode).unwrap();
        let stop = AtomicBool::new(false);
        let mut updates = 0_i64;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for goal in [["zstd-12", "32K"], ["lz4", "8K"], ["zstd-3", "256K"]] {
                    let [compression, size] = goal;
                    hardpack()
                        .args(["repack", "-q", "--compression", compression, "--recordsize", size])
                        .arg(&pool)
                        .assert()
                        .success();
                    hardpack().args(["fold", "-q"]).arg(&pool).assert().success();
                }
                stop.store(true, Ordering::Relaxed);
            });
            let began = Instant::now();
            while !stop.load(Ordering::Relaxed) && began.elapsed() < PATIENCE {
                let row = updates * 7919 % 8000 + 1;
                db.execute("UPDATE t SET n = n + 1 WHERE a = ?1", [row]).unwrap();
                updates += 1;
                if updates % 50 == 0 {
                    db.execute("UPDATE t SET b = hex(randomblob(450)) WHERE a = ?1", [row])
                        .unwrap();
                }
            }
        });
        let count = |sql: &str| db.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
        assert_eq!(count("SELECT sum(n) FROM t"), updates, "{mode}");
        assert_eq!(count("SELECT count(*) FROM t WHERE length(b) = 900"), 8000, "{mode}");
        let verdict: String = db.query_row("PRAGMA integrity_check", [], |r| r.get(0)).unwrap();
        assert_eq!(verdict, "ok", "{mode}");
        drop(db);
        assert!(updates > 20, "{mode}: only {updates} updates in all that time");
        hardpack().args(["check", "-q"]).arg(&pool).assert().success();
    }
}

#[test]
fn damage_is_told_and_passed_by() {
    let (_directory, path, pool) = packed(2 << 20, &["--compression", "lz4"]);
    let before = fs::read(&pool).unwrap();
    let file = fs::File::options().write(true).open(&pool).unwrap();
    let offset = before.len() as u64 / 2;
    file.write_all_at(&[before[offset as usize] ^ 4], offset).unwrap();
    let done =
        hardpack().args(["repack", "--json", "--compression", "zstd"]).arg(&pool).assert().code(1);
    let stderr = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
    assert!(stderr.contains("were left unchanged: corrupt extent"), "{stderr}");
    let report: serde_json::Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
    assert_eq!(number(&report, "damaged"), 1);
    assert_eq!(number(&report, "rewritten_bytes"), fs::metadata(&path).unwrap().len() - 131_072);
    // It is still the only damage, and has no patches.
    let check = hardpack().args(["check", "-q", "--json"]).arg(&pool).assert().code(1);
    let check: serde_json::Value = serde_json::from_slice(&check.get_output().stdout).unwrap();
    assert_eq!(check["problems"].as_array().unwrap().len(), 1, "{check}");
    hardpack().args(["fold", "-q"]).arg(&pool).assert().success();
}

#[test]
fn what_cannot_be_repacked_is_said() {
    let (_directory, path) = directory_with("plain", b"no pool");
    for command in ["fold", "repack"] {
        let failed = hardpack().arg(command).arg(&path).assert().code(4);
        let stderr = String::from_utf8_lossy(&failed.get_output().stderr).into_owned();
        assert!(stderr.starts_with(&format!("hardpack: cannot {command} '")), "{stderr}");
        hardpack().arg(command).arg(with_ending(&path, ".none")).assert().code(3);
        hardpack().arg(command).assert().code(2);
        hardpack().args([command, "--colour"]).arg(&path).assert().code(2);
    }
    let failed = hardpack().args(["repack", "--estimate"]).arg(&path).assert().code(4);
    let stderr = String::from_utf8_lossy(&failed.get_output().stderr).into_owned();
    assert!(stderr.starts_with("hardpack: cannot estimate a repack of '"), "{stderr}");
    let pool = pack(&path);
    for wrong in [
        ["--compression", "zstd-99"],
        ["--compression", "best"],
        ["--recordsize", "5K"],
        ["--recordsize", "32M"],
    ] {
        hardpack().arg("repack").args(wrong).arg(&pool).assert().code(2);
    }
    hardpack().arg("repack").arg(pool.join("other")).assert().code(3);
    assert_holds(&pool, &path);
}

/// An estimate with `--clear-unused` matches the later repack, including cleared pages.
#[test]
fn an_estimate_counts_what_would_be_cleared() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("half-deleted.db");
    let db = Connection::open(&path).unwrap();
    db.execute_batch(
        "CREATE TABLE t(a INTEGER PRIMARY KEY, b);
         WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 4000)
         INSERT INTO t SELECT i, randomblob(700) FROM c;
         DELETE FROM t WHERE a % 2 = 1 OR a > 3000",
    )
    .unwrap();
    drop(db);
    hardpack().args(["pack", "-q"]).arg(&path).assert().success();
    let pool = with_ending(&path, ".hpk");
    let estimate = |more: &[&str]| {
        json_of(hardpack().args(["repack", "--estimate", "--json"]).args(more).arg(&pool))
    };
    let kept = estimate(&["--compression", "lz4"]);
    let cleared = estimate(&["--compression", "lz4", "--clear-unused"]);
    let (kept, told) = (number(&kept, "stored_then"), number(&cleared, "stored_then"));
    assert!(told < kept * 3 / 4, "{told} bytes with cleared pages, {kept} with all");
    let goal = ["repack", "-q", "--json", "--compression", "lz4", "--clear-unused"];
    let found = number(&json_of(hardpack().args(goal).arg(&pool)), "stored_after");
    assert!(found.abs_diff(told) < found / 10, "{told} was told, it is {found}");
}

/// A repack of a whole pool waits for a database; meanwhile, a file that comes later is removed.
#[test]
fn a_repack_of_a_pool_goes_on_where_a_file_vanishes() {
    let (directory, plain) = directory_with("a.db", b"");
    make_database(&plain, 4096, 2000);
    let pool = directory.path().join("many.hpk");
    let inside = |name: &str| with_ending(&pool, name);
    hardpack().arg("create").arg(&pool).assert().success();
    hardpack().args(["set", "clear-unused=on"]).arg(&pool).assert().success();
    // The first file's locks are on the pool itself, and opening and closing the pool below would
    // drop them.
    for name in ["/z", "/a.db", "/b", "/c"] {
        hardpack().args(["put", "-q"]).args([&plain, &inside(name)]).assert().success();
    }
    // SQLite's lock, which clearing needs.
    let db = open_in_pool(&inside("/a.db"));
    db.execute_batch("BEGIN; SELECT count(*) FROM t").unwrap();
    let child = Command::new(assert_cmd::cargo::cargo_bin!("hardpack"))
        .args(["repack", "-q", "--compression", "lz4"])
        .arg(&pool)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let began = |path: &str| {
        let device = Arc::new(FileDevice::open_read_only(&pool).unwrap());
        let engine = Pool::open(device, Options::new(1 << 20)).unwrap();
        let file = engine.resolve(path.as_bytes()).unwrap().file;
        engine.unfinished_repack(file).unwrap().is_some()
    };
    let start = Instant::now();
    while !began("/a.db") {
        assert!(start.elapsed() < PATIENCE, "it does not begin");
        std::thread::sleep(Duration::from_millis(2));
    }
    hardpack().arg("rm").arg(inside("/b")).assert().success();
    drop(db);
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    hardpack().args(["check", "-q"]).arg(&pool).assert().success();
    let info = json_of(hardpack().args(["info", "--json"]).arg(&pool));
    assert!(info["codecs"]["zstd"].is_null(), "{info}");
}
