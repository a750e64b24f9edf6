//! `compact` shortens pools while they are in use, and keeps their content.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::*;
use hardpack_engine::device::FileDevice;
use hardpack_engine::pool::{Options, Pool};
use hardpack_engine::store::checksum::ChecksumKind;
use rusqlite::Connection;

fn sum(db: &Connection) -> i64 {
    db.query_row("SELECT sum(a * length(b) + unicode(hex(b))) FROM t", [], |row| row.get(0))
        .unwrap()
}

/// Makes a pool that VACUUM left long: half of its rows are deleted.
fn vacuumed(path: &Path) -> PathBuf {
    let db = Connection::open(path).unwrap();
    db.execute_batch(
        "CREATE TABLE t(a INTEGER PRIMARY KEY, b);
         WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 12000)
         INSERT INTO t(b) SELECT randomblob(1000) FROM c",
    )
    .unwrap();
    drop(db);
    let pool = pack(path);
    open_in_pool(&pool).execute_batch("DELETE FROM t WHERE a % 2 = 0; VACUUM").unwrap();
    pool
}

fn len(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

fn assert_whole(pool: &Path, expected: i64) {
    hardpack().args(["check", "-q"]).arg(pool).assert().success();
    assert_eq!(sum(&open_in_pool(pool)), expected);
}

#[test]
fn a_vacuumed_pool_shrinks() {
    let (_directory, path) = directory_with("data.db", b"");
    let pool = vacuumed(&path);
    let expected = sum(&open_in_pool(&pool));
    let before = len(&pool);
    let content = fs::read(&pool).unwrap();

    let estimate = json_of(hardpack().args(["compact", "--estimate", "--json"]).arg(&pool));
    assert!(fs::read(&pool).unwrap() == content, "an estimate changed the pool");
    assert_eq!(estimate["pool_bytes"], before);
    let number = |value: &serde_json::Value, name: &str| value[name].as_u64().unwrap();
    assert!(number(&estimate, "gain_bytes") > before / 4, "{estimate}");
    let text = stdout_of(hardpack().args(["compact", "--estimate"]).arg(&pool));
    assert!(text.contains("free about"), "{text}");

    let report = json_of(hardpack().args(["compact", "-q", "--json"]).arg(&pool));
    let after = len(&pool);
    assert_eq!(report["before_bytes"], before);
    assert_eq!(report["after_bytes"], after);
    let used = number(&report, "used_bytes");
    assert!(after <= used + used / 50 + (256 << 10), "{report}");
    assert!((before - after).abs_diff(number(&estimate, "gain_bytes")) < 512 << 10, "{estimate}");
    assert_whole(&pool, expected);

    let again = hardpack().arg("compact").arg(&pool).assert().success();
    let text = String::from_utf8_lossy(&again.get_output().stdout).into_owned();
    assert!(text.ends_with("nothing to gain\n"), "{report} {text}");
    assert_eq!(len(&pool), after);
    assert_whole(&pool, expected);
}

/// What snapshots hold is not moved, so the space before it stays; that is said.
#[test]
fn space_before_what_snapshots_hold_stays_and_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let pool = directory.path().join("a.hpk");
    let part = |inner: &str| crate::common::with_ending(&pool, inner);
    for name in ["a", "b"] {
        let file = directory.path().join(name);
        fs::write(&file, crate::common::random_bytes(3 << 20, u64::from(name.as_bytes()[0])))
            .unwrap();
        hardpack().args(["put", "-q"]).arg(&file).arg(part("/")).assert().success();
    }
    hardpack().arg("rm").arg(part("/a")).assert().success();
    let told = " MiB stay free for new data: what snapshots hold behind it is not moved";
    for is_held in [true, false] {
        let command = if is_held { "snapshot" } else { "destroy" };
        hardpack().arg(command).arg(part("@now")).assert().success();
        for option in [&["--estimate"][..], &[]] {
            let text = stdout_of(hardpack().arg("compact").args(option).arg(&pool));
            assert_eq!(text.contains(told), is_held, "{option:?}: {text}");
        }
        assert_eq!(len(&pool) > 6 << 20, is_held);
    }
}

/// What closing a pool commits counts as well.
#[test]
fn the_length_that_is_told_is_that_of_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let pool = directory.path().join("a.hpk");
    let files = directory.path().join("files");
    fs::create_dir(&files).unwrap();
    for i in 0..40_u32 {
        let bytes: Vec<u8> =
            (0..i * 5000).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        fs::write(files.join(i.to_string()), bytes).unwrap();
    }
    hardpack().args(["put", "-q"]).args([&files, &pool]).assert().success();
    hardpack().args(["rm", "-q", "-r"]).arg(pool.join("files")).assert().success();
    let mut lens = Vec::new();
    for _ in 0..4 {
        let report = json_of(hardpack().args(["compact", "-q", "--json"]).arg(&pool));
        assert_eq!(report["after_bytes"], len(&pool), "{lens:?}");
        lens.push(len(&pool));
    }
    assert_eq!(lens[2], lens[3], "it ends: {lens:?}");
}

/// Connections of this process read and write while another process compacts.
#[test]
fn connections_go_on() {
    for mode in ["delete", "wal"] {
        let (_directory, path) = directory_with("data.db", b"");
        let pool = vacuumed(&path);
        let before = len(&pool);
        let db = open_in_pool(&pool);
        db.pragma_update(None, "journal_mode", mode).unwrap();
        let expected = sum(&db);
        db.execute_batch("CREATE TABLE log(n)").unwrap();
        // An open statement keeps its snapshot.
        let mut statement = db.prepare("SELECT a, b FROM t ORDER BY a").unwrap();
        let mut rows = statement.query([]).unwrap();
        rows.next().unwrap().unwrap();
        let stop = AtomicBool::new(false);
        let mut written = 0_u32;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                hardpack().args(["compact", "-q"]).arg(&pool).assert().success().stdout("");
                stop.store(true, Ordering::Relaxed);
            });
            let writer = open_in_pool(&pool);
            let began = Instant::now();
            while !stop.load(Ordering::Relaxed) && began.elapsed() < Duration::from_secs(60) {
                // In a rollback mode the open statement keeps writers out.
                if mode == "wal" {
                    writer.execute("INSERT INTO log VALUES (?1)", [written]).unwrap();
                    written += 1;
                }
                assert_eq!(sum(&writer), expected, "{mode}");
            }
        });
        let mut count = 1;
        while rows.next().unwrap().is_some() {
            count += 1;
        }
        assert_eq!(count, 6000, "{mode}");
        drop(rows);
        drop(statement);
        db.execute("INSERT INTO log VALUES (-1)", []).unwrap();
        let logged: u32 = db.query_row("SELECT count(*) FROM log", [], |row| row.get(0)).unwrap();
        assert_eq!(logged, written + 1, "{mode}");
        drop(db);
        assert!(len(&pool) < before * 3 / 4, "{mode}: {before} before, {} after", len(&pool));
        assert_whole(&pool, expected);
    }
}

#[test]
fn an_interrupted_compaction_leaves_a_whole_pool() {
    let (_directory, path) = directory_with("data.db", b"");
    let pool = vacuumed(&path);
    let expected = sum(&open_in_pool(&pool));
    // Nothing moves while this holds the pool, so the signal always comes first.
    let device = Arc::new(FileDevice::open(&pool).unwrap());
    let engine = Pool::open(device, Options::new(1 << 20)).unwrap();
    let txn = engine.store().begin(ChecksumKind::default()).unwrap();
    let child = Command::new(assert_cmd::cargo::cargo_bin!("hardpack"))
        .arg("compact")
        .arg(&pool)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    drop(txn);
    drop(engine);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    // It may be waiting for the lock, and is then ended from outside.
    assert!(
        stderr.contains("interrupted\n") && stderr.contains(": the pool is whole; "),
        "{stderr}"
    );
    assert_whole(&pool, expected);
}

#[test]
fn what_cannot_be_compacted_is_said() {
    let (_directory, path) = directory_with("plain", b"no pool");
    let failed = hardpack().arg("compact").arg(&path).assert().code(4);
    let stderr = String::from_utf8_lossy(&failed.get_output().stderr).into_owned();
    assert!(stderr.starts_with("hardpack: cannot compact '"), "{stderr}");
    hardpack().arg("compact").arg(with_ending(&path, ".none")).assert().code(3);
    hardpack().arg("compact").assert().code(2);
}

/// A limit on the length of a file is like a full disk: the command says so, and what is free in
/// the pool is used.
#[test]
fn a_pool_that_may_not_become_longer_reuses_what_it_has_freed() {
    let (directory, pool) = directory_with("a.hpk", &[]);
    fs::remove_file(&pool).unwrap();
    let at = directory.path();
    fs::write(at.join("f0"), random_bytes(6_000_000, 9)).unwrap();
    succeeds(at, &["put", "-q", "f0", "a.hpk/f0"]);
    for number in 1..=8 {
        let name = format!("f{number}");
        fs::write(at.join(&name), random_bytes(200_000, number)).unwrap();
        succeeds(at, &["put", "-q", &name, &format!("a.hpk/{name}")]);
    }
    let script = format!("ulimit -f {}; exec \"$0\" \"$@\"", len(&pool) / 1024);
    let limited = |arguments: &[&str]| {
        let mut command = Command::new("bash");
        command.current_dir(at).args(["-c", &script]);
        command.arg(assert_cmd::cargo::cargo_bin!("hardpack")).args(arguments);
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let code = output.status.code();
        assert!(code == Some(0) || code == Some(3), "{arguments:?}: {code:?}, {stderr}");
        let is_told = stderr.contains("no space left") && stderr.contains("lift the limit");
        assert!(code == Some(0) || is_told, "{arguments:?}: {stderr}");
        code == Some(0)
    };
    assert!(!limited(&["put", "-q", "f0", "a.hpk/more"]));
    for number in 1..=4 {
        let name = format!("a.hpk/f{number}");
        assert!((0..3).any(|_| limited(&["rm", "-q", &name])), "{name}");
    }
    assert!((0..3).any(|_| limited(&["put", "-q", "f1", "a.hpk/new"])));
    succeeds(at, &["check", "-q", "a.hpk"]);
}
