//! A pool whose file was cut short: commands that write refuse it and leave it as it is, commands
//! that read say so, and salvage, rewind and repair work on it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common::*;
use hardpack_engine::device::FileDevice;
use hardpack_engine::pool::{Options, Pool};
use rusqlite::ErrorCode;

fn len(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

fn cut(path: &Path, len: u64) {
    fs::OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
}

/// Whether the file is too short for the newest state.
fn is_cut(path: &Path) -> bool {
    let device = Arc::new(FileDevice::open_read_only(path).unwrap());
    let pool = Pool::open(device, Options::new(1 << 20)).unwrap();
    pool.store().cut_short().is_some()
}

/// Makes a pool with a database, files and a snapshot, closed properly.
fn make_pool(directory: &Path) -> PathBuf {
    let tree = directory.join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("noise"), random_bytes(600_000, 1)).unwrap();
    fs::write(tree.join("small"), random_bytes(2_000, 2)).unwrap();
    make_database(&tree.join("rows.db"), 4096, 2000);
    let pool = directory.join("p.hpk");
    hardpack().args(["put", "-q"]).arg(&tree).arg(&pool).assert().success();
    hardpack().arg("snapshot").arg(format!("{}@s", pool.display())).assert().success();
    fs::write(tree.join("noise"), random_bytes(600_000, 3)).unwrap();
    hardpack().args(["put", "-q"]).arg(&tree).arg(&pool).assert().success();
    pool
}

fn txg_of(pool: &Path) -> u64 {
    json_of(hardpack().args(["info", "--json"]).arg(pool))["txg"].as_u64().unwrap()
}

#[test]
fn every_command_that_writes_refuses_a_cut_pool() {
    let directory = tempfile::tempdir().unwrap();
    let pool = make_pool(directory.path());
    let (whole, name) = (len(&pool), pool.display().to_string());
    let image = fs::read(&pool).unwrap();
    let stream = directory.path().join("stream");
    let sent = hardpack().arg("send").arg(format!("{name}@s")).assert().success();
    fs::write(&stream, &sent.get_output().stdout).unwrap();
    let plain = directory.path().join("plain");
    fs::write(&plain, b"something").unwrap();
    let plain = plain.display().to_string();
    let at = |inner: &str| format!("{name}{inner}");
    let commands: Vec<Vec<String>> = [
        vec!["compact", &name],
        vec!["fold", &name],
        vec!["repack", "--compression", "zstd-9", &name],
        vec!["set", "compression=zstd-9", &name],
        vec!["inherit", "compression", &name],
        vec!["snapshot", &at("@new")],
        vec!["destroy", &at("@s")],
        vec!["rollback", &at("@s")],
        vec!["clone", &at("/tree@s"), &at("/copy")],
        vec!["put", &plain, &at("/new")],
        vec!["mkdir", &at("/new")],
        vec!["mv", &at("/tree/small"), &at("/new")],
        vec!["ln", &at("/tree/small"), &at("/new")],
        vec!["rm", &at("/tree/small")],
        vec!["sql", &at("/tree/rows.db"), "CREATE TABLE u(a)"],
    ]
    .map(|words| words.into_iter().map(String::from).collect())
    .into();
    // The first cut leaves the names readable; the last takes nearly everything.
    for left in [whole - 512, whole - 5000, whole / 2, 41_000] {
        fs::write(&pool, &image[..left as usize]).unwrap();
        let before = fs::read(&pool).unwrap();
        for command in &commands {
            let done = hardpack().args(command).assert();
            let output = done.get_output();
            let told = String::from_utf8_lossy(&output.stderr).into_owned();
            let label = format!("{command:?} of {left} bytes of {whole}: {told}");
            assert_eq!(output.status.code(), Some(1), "{label}");
            assert!(told.contains("the pool was cut short: "), "{label}");
            assert!(told.contains(&format!(" of its {whole} bytes are missing")), "{label}");
            assert!(fs::read(&pool).unwrap() == before, "{label}: it was written to");
        }
        let refused = hardpack()
            .args(["receive", &at("/back")])
            .pipe_stdin(&stream)
            .unwrap()
            .assert()
            .code(1);
        let told = String::from_utf8_lossy(&refused.get_output().stderr).into_owned();
        assert!(told.contains("was cut short") && told.contains("hint: "), "{told}");
        assert!(told.contains("hardpack salvage") && told.contains("hardpack rewind"), "{told}");
        assert!(fs::read(&pool).unwrap() == before);
    }
}

#[test]
fn commands_that_read_say_that_a_pool_is_cut_and_give_what_is_left() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tail");
    let pool = directory.path().join("p.hpk");
    fs::write(&file, random_bytes(3_000, 7)).unwrap();
    let inner = |name: &str| format!("{}/{name}", pool.display());
    hardpack().args(["put", "-q"]).arg(&file).arg(inner("first")).assert().success();
    fs::write(&file, random_bytes(700_000, 8)).unwrap();
    hardpack().args(["put", "-q"]).arg(&file).arg(inner("last")).assert().success();
    cut(&pool, len(&pool) - 100);
    let note = "was cut short: 100 of its ";
    for words in [vec!["ls"], vec!["info"], vec!["stats"], vec!["tree"], vec!["du"]] {
        let done = hardpack().args(&words).arg(&pool).assert();
        let told = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
        assert!(told.contains(note), "{words:?}: {told}");
    }
    let done = hardpack().arg("cat").arg(inner("first")).assert();
    let told = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
    assert!(told.contains(note), "{told}");
    let out = directory.path().join("out");
    let done = hardpack().arg("extract").arg(&pool).arg(&out).assert();
    let told = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
    assert!(told.contains(note), "{told}");
    let done = hardpack().arg("check").arg(&pool).assert().code(1);
    let shown = String::from_utf8_lossy(&done.get_output().stdout).into_owned();
    assert!(shown.contains(note), "{shown}");
    let saved = directory.path().join("saved");
    let done = hardpack().arg("salvage").arg(&pool).arg(&saved).assert();
    let told = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
    assert!(told.contains(note), "{told}");
    assert!(fs::read(saved.join("first")).unwrap() == random_bytes(3_000, 7));

    // Nothing of the data is left.
    cut(&pool, 20_000);
    for command in ["check", "ls", "compact"] {
        let done = hardpack().arg(command).arg(&pool).assert().code(1);
        let told = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
        assert!(told.contains("its first 20000 bytes are left, and none of its data"), "{told}");
        assert!(told.contains("nothing can be salvaged"), "{told}");
    }
    let done = hardpack().arg("salvage").arg(&pool).arg(directory.path().join("x")).assert();
    let told = String::from_utf8_lossy(&done.code(1).get_output().stderr).into_owned();
    assert!(told.contains("none of its data"), "{told}");
}

#[test]
fn a_rewind_makes_a_cut_pool_usable_again() {
    let directory = tempfile::tempdir().unwrap();
    let db = directory.path().join("rows.db");
    make_database(&db, 4096, 3000);
    let pool = pack(&db);
    let (old, old_len) = (txg_of(&pool), len(&pool));
    open_in_pool(&pool)
        .execute_batch("CREATE TABLE big AS SELECT randomblob(900) AS b FROM t LIMIT 1500")
        .unwrap();
    assert!(len(&pool) > old_len + 100_000);
    cut(&pool, len(&pool) - 50_000);
    let states = hardpack().args(["check", "--states", "--json", "-q"]).arg(&pool).assert();
    let states: serde_json::Value =
        serde_json::from_slice(&states.code(1).get_output().stdout).unwrap();
    let is_old = |state: &&serde_json::Value| state["txg"] == old;
    let found = states["states"].as_array().unwrap().iter().find(is_old).unwrap();
    assert_eq!(found["whole"], true, "{states}");
    hardpack().arg("compact").arg(&pool).assert().code(1);

    hardpack().args(["rewind", "-q"]).arg(&pool).arg(old.to_string()).assert().success();
    hardpack().args(["check", "-q"]).arg(&pool).assert().success().stderr("");
    let rows = hardpack().arg("sql").arg(&pool).arg("SELECT count(*) FROM t").assert();
    rows.success().stdout("3000\n").stderr("");
    hardpack().arg("sql").arg(&pool).arg("DELETE FROM t WHERE a > 10").assert().success();
    hardpack().args(["compact", "-q"]).arg(&pool).assert().success();
    hardpack().args(["check", "-q"]).arg(&pool).assert().success().stderr("");
}

/// If only zeros behind the last extent are missing, nothing is lost, and a repair says so.
#[test]
fn a_repair_makes_a_pool_writable_that_lost_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut repaired = 0;
    for seed in 0..12 {
        let pool = directory.path().join(format!("{seed}.hpk"));
        let file = directory.path().join("file");
        fs::write(&file, random_bytes(1000 + 777 * seed as usize, seed)).unwrap();
        let inner = format!("{}/f", pool.display());
        hardpack().args(["put", "-q"]).arg(&file).arg(inner).assert().success();
        let image = fs::read(&pool).unwrap();
        let zeros = image.iter().rev().take_while(|byte| **byte == 0).count() as u64;
        // The stored bytes may end with some zeros, too.
        let whole = len(&pool);
        cut(&pool, whole - zeros.saturating_sub(16).min(400));
        if !is_cut(&pool) {
            continue;
        }
        hardpack().arg("fold").arg(&pool).assert().code(1);
        let done = hardpack().args(["check", "--repair"]).arg(&pool).assert().success();
        let shown = String::from_utf8_lossy(&done.get_output().stdout).into_owned();
        assert!(shown.contains("its length again"), "{shown}");
        assert_eq!(len(&pool), whole);
        hardpack().arg("fold").arg(&pool).assert().success();
        hardpack().args(["check", "-q"]).arg(&pool).assert().success();
        // More than that cannot be repaired.
        cut(&pool, whole - 2000);
        let before = fs::read(&pool).unwrap();
        hardpack().args(["check", "--repair"]).arg(&pool).assert().code(1);
        assert!(fs::read(&pool).unwrap() == before);
        repaired += 1;
    }
    assert!(repaired > 2, "{repaired} repaired");
}

/// SQLite reads what is left, and its writers are told why they may not write.
#[test]
fn sqlite_may_only_read_a_cut_pool() {
    for mode in ["delete", "wal"] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rows.db");
        make_database(&path, 4096, 3000);
        let pool = pack(&path);
        open_in_pool(&pool).execute_batch(&format!("PRAGMA journal_mode = {mode}")).unwrap();
        let image = fs::read(&pool).unwrap();
        // The end of the file may be free.
        let copy = directory.path().join("copy.hpk");
        let missing = (1..100).map(|n| n * 300).find(|missing| {
            fs::write(&copy, &image[..image.len() - missing]).unwrap();
            is_cut(&copy)
        });
        let left = image.len() - missing.unwrap();
        let is_untouched = || fs::read(&pool).unwrap() == image[..left];
        // Cut under a connection that is open: its next commit, or its next checkpoint, fails.
        let live = open_in_pool(&pool);
        let count: u32 = live.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap();
        assert_eq!(count, 3000);
        cut(&pool, left as u64);
        let done = live.execute_batch("INSERT INTO t(b) VALUES ('new')");
        let done = done.and_then(|()| match mode {
            "wal" => live.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())),
            _ => Ok(()),
        });
        let error = done.expect_err(mode);
        assert_eq!(error.sqlite_error_code(), Some(ErrorCode::ReadOnly), "{mode}: {error}");
        assert!(is_untouched(), "{mode}");
        drop(live);
        let db = open_in_pool(&pool);
        let error = db.execute_batch("INSERT INTO t(b) VALUES ('new')").unwrap_err();
        let expected = [ErrorCode::ReadOnly, ErrorCode::DatabaseCorrupt];
        assert!(error.sqlite_error_code().is_some_and(|code| expected.contains(&code)), "{error}");
        let error = db.execute_batch("PRAGMA hardpack_compression = 'lz4'").unwrap_err();
        assert!(error.to_string().contains("the pool was cut short: "), "{error}");
        assert!(is_untouched(), "{mode}");
    }
}
