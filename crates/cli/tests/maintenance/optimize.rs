//! `optimize` puts near-copies and small files together, while they are in use, and keeps their
//! content.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::*;
use serde_json::Value;
use tempfile::TempDir;

/// Versions of a program, and the files of each.
pub const VERSION_COUNT: usize = 4;
pub const FILE_COUNT: usize = 60;

/// Returns text that compresses to about a third, and differs for each seed.
pub fn text_of(seed: usize, len: usize) -> String {
    let mut number = seed as u64 + 1;
    let mut text = String::new();
    while text.len() < len {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        text += &format!("let value_{:x} = call({});\n", number >> 44, number >> 52);
    }
    text
}

/// Makes a tree of versions that differ in a few lines, and a pool with it and a database.
pub fn family() -> (TempDir, PathBuf, PathBuf) {
    let directory = TempDir::new().unwrap();
    let tree = directory.path().join("releases");
    for version in 0..VERSION_COUNT {
        let at = tree.join(format!("v{version}"));
        fs::create_dir_all(&at).unwrap();
        for number in 0..FILE_COUNT {
            let mut text = text_of(number, 2000 + 300 * number);
            if number % 3 == 0 {
                text.insert_str(1000, &format!("// version {version}\n"));
            }
            fs::write(at.join(format!("f{number}.js")), text).unwrap();
        }
    }
    let pool = directory.path().join("releases.hpk");
    hardpack().arg("create").arg(&pool).assert().success();
    hardpack().args(["put", "-q"]).arg(&tree).arg(&pool).assert().success();
    let database = directory.path().join("a.db");
    rusqlite::Connection::open(&database)
        .unwrap()
        .execute_batch(
            "CREATE TABLE t(a INTEGER PRIMARY KEY, b);
             WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 3000)
             INSERT INTO t(b) SELECT hex(randomblob(30)) FROM c",
        )
        .unwrap();
    hardpack().args(["put", "-q"]).arg(&database).arg(&pool).assert().success();
    (directory, tree, pool)
}

pub fn len(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

pub fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("no {name} in {value}"))
}

/// Asserts that the pool is whole and holds the tree.
pub fn assert_holds(pool: &Path, tree: &Path) {
    hardpack().args(["check", "-q"]).arg(pool).assert().success();
    let out = TempDir::new().unwrap();
    hardpack()
        .args(["extract", "-q"])
        .arg(pool.join("releases"))
        .arg(out.path())
        .assert()
        .success();
    let differs =
        Command::new("diff").arg("-r").arg(tree).arg(out.path().join("releases")).output();
    let differs = differs.unwrap();
    assert!(differs.status.success(), "{}", String::from_utf8_lossy(&differs.stdout));
}

/// Packs each version of a tree as a zip archive, as Python does, and as a repository of git.
fn archives_of(tree: &Path, at: &Path) {
    const ZIP: &str = "import shutil, sys\nshutil.make_archive(sys.argv[2], 'zip', sys.argv[1])";
    fs::create_dir(at).unwrap();
    for version in 0..VERSION_COUNT {
        let version = format!("v{version}");
        let made = Command::new("python3")
            .args(["-c", ZIP])
            .args([tree.join(&version), at.join(&version)])
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
    let git = |arguments: &[&str]| {
        let identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"];
        let at = format!("--git-dir={}", at.join("repository").display());
        let work = format!("--work-tree={}", tree.display());
        let done = Command::new("git").args(identity).args([at, work]).args(arguments).output();
        assert!(done.unwrap().status.success(), "{arguments:?}");
    };
    git(&["init", "-q"]);
    git(&["add", "-A"]);
    git(&["commit", "-q", "-m", "all"]);
    git(&["gc", "-q"]);
}

/// Real archives: what programs deflated comes back byte by byte, live, and takes far less.
#[test]
fn what_is_in_archives_is_inflated() {
    let (directory, tree, _) = family();
    let releases = directory.path().join("archives");
    archives_of(&tree, &releases);
    let pool_of = |name: &str, flags: &[&str]| {
        let pool = directory.path().join(name);
        hardpack().arg("create").arg(&pool).assert().success();
        hardpack().args(["put", "-q"]).arg(&releases).arg(&pool).assert().success();
        let report = json_of(hardpack().args(["optimize", "-q", "--json"]).args(flags).arg(&pool));
        (pool, report)
    };
    let (plain, report) = pool_of("plain.hpk", &[]);
    assert_eq!(number(&report, "inflated_streams"), 0);
    let (pool, report) = pool_of("inflated.hpk", &["--inflate"]);
    assert!(number(&report, "inflated_streams") > (VERSION_COUNT * FILE_COUNT) as u64, "{report}");
    assert!(number(&report, "inflated_to") > 2 * number(&report, "inflated_from"), "{report}");
    // Most files of a version are those of the one before, and deflated they still are.
    assert!(10 * len(&pool) < 9 * len(&plain), "{} {}", len(&pool), len(&plain));
    let out = TempDir::new().unwrap();
    hardpack()
        .args(["extract", "-q", "-T"])
        .arg(&pool)
        .arg(out.path().join("all"))
        .assert()
        .success();
    let differs =
        Command::new("diff").arg("-r").arg(&releases).arg(out.path().join("all/archives")).output();
    let differs = differs.unwrap();
    assert!(differs.status.success(), "{}", String::from_utf8_lossy(&differs.stdout));
    hardpack().args(["check", "-q"]).arg(&pool).assert().success();
    let shown =
        hardpack().args(["optimize", "--again", "--inflate"]).arg(&plain).assert().success();
    let shown = String::from_utf8_lossy(&shown.get_output().stdout).into_owned();
    assert!(shown.contains("deflate streams"), "{shown}");
}

/// Writes a program for x86 of 300,000 bytes, which does the same things again and again, and calls
/// 50 functions.
fn program_at(path: &Path) {
    let mut code: Vec<u8> = Vec::new();
    let text = text_of(7, 40_000);
    for (number, instructions) in text.as_bytes().chunks(9).cycle().enumerate() {
        let function = (number * number % 50 * 4001) as u32;
        code.extend_from_slice(instructions);
        code.push(0xE8);
        code.extend(function.wrapping_sub(code.len() as u32 + 4).to_le_bytes());
        if code.len() > 300_000 {
            break;
        }
    }
    fs::write(path, code).unwrap();
}

#[test]
fn machine_code_and_sound_are_transformed() {
    let directory = TempDir::new().unwrap();
    let tree = directory.path().join("media");
    fs::create_dir(&tree).unwrap();
    program_at(&tree.join("program"));
    let wave = |n: u32| (f64::from(n) / 30.0).sin() * 9000.0 + f64::from(n * 7919 % 211);
    let sound: Vec<u8> = (0..50_000).flat_map(|n| (wave(n) as i16).to_le_bytes()).collect();
    fs::write(tree.join("sound"), sound).unwrap();
    let pool = directory.path().join("pool.hpk");
    hardpack().arg("create").arg(&pool).assert().success();
    hardpack().args(["put", "-q"]).arg(&tree).arg(&pool).assert().success();
    let copy = directory.path().join("copy.hpk");
    fs::copy(&pool, &copy).unwrap();
    let report = json_of(hardpack().args(["optimize", "-q", "--json"]).arg(&pool));
    assert!(number(&report, "transformed") > 380_000, "{report}");
    let out = directory.path().join("out");
    hardpack().args(["extract", "-q", "-T"]).arg(&pool).arg(&out).assert().success();
    for name in ["program", "sound"] {
        let found = fs::read(out.join("media").join(name)).unwrap();
        assert!(found == fs::read(tree.join(name)).unwrap(), "{name}");
    }
    hardpack().args(["check", "-q"]).arg(&pool).assert().success();
    let shown = hardpack().arg("optimize").arg(&copy).assert().success();
    let shown = String::from_utf8_lossy(&shown.get_output().stdout).into_owned();
    assert!(shown.contains("of machine code, sound and pictures"), "{shown}");
}

#[test]
fn a_family_becomes_small_and_stays_live() {
    let (_directory, tree, pool) = family();
    let before = len(&pool);
    let report = json_of(hardpack().args(["optimize", "-q", "--json"]).arg(&pool));
    assert_eq!(number(&report, "records"), (VERSION_COUNT * FILE_COUNT) as u64, "{report}");
    assert_eq!(
        (number(&report, "pool_before"), number(&report, "pool_after")),
        (before, len(&pool))
    );
    assert!(
        number(&report, "allocated_after") * 5 < number(&report, "allocated_before"),
        "{report}"
    );
    assert_eq!(number(&report, "database_bytes"), len(&pool.with_file_name("a.db")));
    assert!(len(&pool) * 2 < before, "{before} before, {} after", len(&pool));
    assert_holds(&pool, &tree);

    // What a file takes is its share.
    let usage = json_of(hardpack().args(["stat", "--json"]).arg(pool.join("releases/v1/f7.js")));
    assert!(number(&usage, "allocated_bytes") < 2000, "{usage}");

    // Live: files are replaced and removed, and come back in later runs.
    fs::write(tree.join("v2/f7.js"), text_of(999, 5000)).unwrap();
    hardpack()
        .args(["put", "-q"])
        .arg(tree.join("v2/f7.js"))
        .arg(pool.join("releases/v2"))
        .assert()
        .success();
    fs::remove_file(tree.join("v0/f0.js")).unwrap();
    hardpack().arg("rm").arg(pool.join("releases/v0/f0.js")).assert().success();
    assert_holds(&pool, &tree);
    let again = stdout_of(hardpack().arg("optimize").arg(&pool));
    assert!(again.contains("in segments already; '--again' makes all"), "{again}");

    // A new version finds the earlier ones.
    let mut records = (VERSION_COUNT * FILE_COUNT) as u64 - 1;
    for (version, again) in [("v8", "--again=related"), ("v9", "--again")] {
        let small = len(&pool);
        fs::create_dir(tree.join(version)).unwrap();
        for number in 0..FILE_COUNT {
            let name = format!("f{number}.js");
            let text = fs::read_to_string(tree.join("v3").join(&name)).unwrap();
            fs::write(tree.join(version).join(&name), format!("// {version}\n{text}")).unwrap();
        }
        let releases = pool.join("releases");
        hardpack().args(["put", "-q"]).arg(tree.join(version)).arg(&releases).assert().success();
        let grown = len(&pool);
        let report = json_of(hardpack().args(["optimize", "-q", "--json", again]).arg(&pool));
        records += FILE_COUNT as u64;
        assert_eq!(number(&report, "records"), records, "{report}");
        let now = len(&pool);
        assert!(now < small + (grown - small) / 4, "{small}, then {grown}, now {now}");
        assert_holds(&pool, &tree);
    }
    // Nothing is new, so nothing is related to it.
    let text = stdout_of(hardpack().args(["optimize", "--again=related"]).arg(&pool));
    assert!(text.contains("in segments that little of what is new resembles"), "{text}");
}

#[test]
fn part_of_a_pool_is_optimised_as_asked() {
    let (_directory, tree, pool) = family();
    let args = ["optimize", "-q", "--json", "--segment", "256K", "--compression", "zstd-9"];
    let report = json_of(hardpack().args(args).arg("--keep-length").arg(pool.join("releases/v3")));
    assert_eq!(number(&report, "records"), FILE_COUNT as u64, "{report}");
    assert!(number(&report, "segments") > 1, "{report}");
    assert_holds(&pool, &tree);
    let one =
        json_of(hardpack().args(["optimize", "-q", "--json"]).arg(pool.join("releases/v0/f9.js")));
    assert_eq!(number(&one, "segments"), 1, "{one}");
    assert_holds(&pool, &tree);
}

/// What was removed leaves its space free, which is given back though nothing else is gained.
#[test]
fn a_pool_of_which_much_was_removed_becomes_shorter() {
    let (_directory, _, pool) = family();
    hardpack().args(["optimize", "-q"]).arg(&pool).assert().success();
    let noise = pool.with_extension("bin");
    fs::write(&noise, random_bytes(3 << 20, 5)).unwrap();
    hardpack().args(["put", "-q"]).arg(&noise).arg(&pool).assert().success();
    hardpack().args(["put", "-q"]).arg(&noise).arg(pool.join("other")).assert().success();
    hardpack().arg("rm").arg(pool.join("releases.bin")).assert().success();
    let before = len(&pool);
    let text = stdout_of(hardpack().args(["optimize", "--keep-length"]).arg(&pool));
    assert!(len(&pool) + (64 << 10) > before, "{text}");
    let text = stdout_of(hardpack().arg("optimize").arg(&pool));
    assert!(len(&pool) < before - (2 << 20), "{text}");
    assert!(text.contains(" long and is now "), "{text}");
    hardpack().args(["check", "-q"]).arg(&pool).assert().success();
}

#[test]
fn what_snapshots_hold_is_said() {
    let (_directory, tree, pool) = family();
    hardpack().arg("snapshot").arg(with_ending(&pool, "@held")).assert().success();
    let text = stdout_of(hardpack().arg("optimize").arg(&pool));
    assert!(
        text.contains(": nothing to gain\n") && text.contains(" held by snapshots: "),
        "{text}"
    );
    hardpack().arg("destroy").arg(with_ending(&pool, "@held")).assert().success();
    let text = stdout_of(hardpack().arg("optimize").arg(&pool));
    assert!(text.contains(" records in 1 segments, "), "{text}");
    assert_holds(&pool, &tree);
}

#[test]
fn it_can_be_killed_at_any_time() {
    let (_directory, tree, pool) = family();
    let fresh = fs::read(&pool).unwrap();
    for round in 0..12 {
        fs::write(&pool, &fresh).unwrap();
        let mut child = Command::new(assert_cmd::cargo::cargo_bin!("hardpack"))
            .args(["optimize", "-q", "--segment", "256K", "--compression", "zstd-3"])
            .arg(&pool)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(5 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_holds(&pool, &tree);
        hardpack().args(["optimize", "-q"]).arg(&pool).assert().success();
        assert_holds(&pool, &tree);
    }
}

#[test]
fn databases_beside_it_go_on() {
    let (_directory, tree, pool) = family();
    let database = pool.join("a.db");
    let writing = std::sync::atomic::AtomicBool::new(true);
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let db = open_in_pool(&database);
            let mut count = 0;
            while writing.load(std::sync::atomic::Ordering::Relaxed) {
                db.execute("INSERT INTO t(b) VALUES ('beside')", []).unwrap();
                count += 1;
            }
            count
        });
        for _ in 0..3 {
            hardpack().args(["optimize", "-q", "--again"]).arg(&pool).assert().success();
        }
        writing.store(false, std::sync::atomic::Ordering::Relaxed);
        writer.join().unwrap()
    });
    let db = open_in_pool(&database);
    let count: i64 =
        db.query_row("SELECT count(*) FROM t WHERE b = 'beside'", [], |row| row.get(0)).unwrap();
    assert_eq!(count, written);
    drop(db);
    assert_holds(&pool, &tree);
}

#[test]
fn a_stream_of_an_optimised_pool_is_as_small() {
    let (directory, tree, pool) = family();
    hardpack().args(["optimize", "-q"]).arg(&pool).assert().success();
    hardpack().arg("snapshot").arg(with_ending(&pool, "@now")).assert().success();
    let stream = directory.path().join("stream");
    let sent = hardpack().arg("send").arg(with_ending(&pool, "@now")).output().unwrap();
    assert!(sent.status.success());
    fs::write(&stream, &sent.stdout).unwrap();
    assert!(len(&stream) < len(&pool), "{} of {}", len(&stream), len(&pool));
    let other = directory.path().join("other.hpk");
    hardpack().arg("create").arg(&other).assert().success();
    let mut receive = hardpack();
    receive.args(["receive", "-q"]).arg(other.join("copy")).write_stdin(sent.stdout);
    receive.assert().success();
    hardpack().args(["check", "-q"]).arg(&other).assert().success();
    let out = TempDir::new().unwrap();
    let copied = other.join("copy/releases");
    hardpack().args(["extract", "-q"]).arg(copied).arg(out.path()).assert().success();
    let same = Command::new("diff").arg("-r").arg(&tree).arg(out.path().join("releases")).status();
    assert!(same.unwrap().success());
    assert!(len(&other) < len(&pool) * 3 / 2, "{} of {}", len(&other), len(&pool));
}

/// Each file that a damaged segment has parts of is named.
#[test]
fn damage_is_told_and_passed_by() {
    let (_directory, _tree, pool) = family();
    hardpack().args(["optimize", "-q", "--segment", "256K"]).arg(&pool).assert().success();
    let image = fs::read(&pool).unwrap();
    let damaged = (4096..image.len()).step_by(8192).find(|at| {
        let mut image = image.clone();
        image[*at] ^= 1;
        fs::write(&pool, image).unwrap();
        let check = hardpack().arg("check").arg(&pool).output().unwrap();
        String::from_utf8_lossy(&check.stdout).contains("releases/")
    });
    assert!(damaged.is_some(), "no damage of a file was found");
    let output = hardpack().args(["optimize", "-q", "--again"]).arg(&pool).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    for line in told.lines() {
        let (front, reason) = line.split_once(" were left unchanged: ").unwrap();
        let (name, end) = front.split_once(", bytes 0 to ").unwrap();
        let name = name.strip_prefix("hardpack: ").unwrap();
        let sent = hardpack().arg("cat").arg(pool.join(name)).output().unwrap();
        assert!(!sent.status.success(), "{name} can be read");
        let shown = stdout_of(hardpack().args(["stat", "--json"]).arg(pool.join(name)));
        let shown: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(shown["len"].to_string(), end, "{shown}");
        assert!(reason.starts_with("corrupt extent at byte "), "{reason}");
    }
    assert!(told.lines().count() > 1, "{told}");
}

#[test]
fn wrong_usage_is_said() {
    let (_directory, path) = directory_with("plain", b"no pool");
    let failed = hardpack().arg("optimize").arg(&path).assert().code(4);
    let stderr = String::from_utf8_lossy(&failed.get_output().stderr).into_owned();
    assert!(stderr.starts_with("hardpack: cannot optimize '"), "{stderr}");
    for wrong in [
        &["--segment", "100K"][..],
        &["--segment", "32M"],
        &["--segment", "4"],
        &["--compression", "off"],
        &["--compression", "zstd-99"],
    ] {
        hardpack().arg("optimize").args(wrong).arg(&path).assert().code(2);
    }
    let (_directory, _tree, pool) = family();
    hardpack().arg("optimize").arg(pool.join("missing")).assert().code(3);
    hardpack().arg("snapshot").arg(with_ending(&pool, "@now")).assert().success();
    hardpack().arg("optimize").arg(with_ending(&pool, "@now")).assert().failure();
}

/// Copies of a database that is in use, made as each night's backup is: what they have in common is
/// stored once, and they are databases as before.
#[test]
fn copies_of_a_database_share_what_they_have_in_common() {
    let directory = TempDir::new().unwrap();
    let (live, copies) = (directory.path().join("live.db"), directory.path().join("copies"));
    fs::create_dir(&copies).unwrap();
    let database = rusqlite::Connection::open(&live).unwrap();
    database
        .execute_batch(
            "CREATE TABLE t(a INTEGER PRIMARY KEY, b, c);
             CREATE INDEX i ON t(c);
             WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 20000)
             INSERT INTO t(b, c) SELECT hex(randomblob(40)), i % 1000 FROM r",
        )
        .unwrap();
    let mut before = Vec::new();
    for day in 0..6 {
        database
            .execute_batch(&format!(
                "UPDATE t SET b = 'day {day}' WHERE a % 500 = {day};
                 DELETE FROM t WHERE a % 997 = {day};
                 INSERT INTO t(b, c) SELECT hex(randomblob(40)), a % 77 FROM t LIMIT 100"
            ))
            .unwrap();
        let name = format!("day{day}.db");
        fs::copy(&live, copies.join(&name)).unwrap();
        before.push(name);
    }
    let pool = directory.path().join("copies.hpk");
    hardpack().arg("create").arg(&pool).assert().success();
    hardpack().args(["set", "dedup=on"]).arg(&pool).assert().success();
    hardpack().args(["put", "-q"]).arg(&copies).arg(&pool).assert().success();
    let length = len(&pool);
    let report = json_of(hardpack().args(["optimize", "-q", "--json"]).arg(&pool));
    assert!(number(&report, "versions") > 20, "{report}");
    assert!(number(&report, "versions_after") * 4 < number(&report, "versions_before"), "{report}");
    assert!(len(&pool) * 10 < length * 6, "{} {length}", len(&pool));
    hardpack().args(["check", "-q"]).arg(&pool).assert().success();
    for name in &before {
        let out = directory.path().join("out.db");
        let _ = fs::remove_file(&out);
        hardpack()
            .args(["extract", "-q", "-T"])
            .args([pool.join("copies").join(name), out.clone()])
            .assert()
            .success();
        assert!(fs::read(&out).unwrap() == fs::read(copies.join(name)).unwrap(), "{name}");
    }
    // An old one can be changed, and the others are what they were.
    let sql = |name: &str, statement: &str| {
        let database = pool.join("copies").join(name);
        let output = hardpack().arg("sql").arg(database).arg(statement).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let sum = "SELECT count(*), sum(length(b)), sum(c) FROM t";
    let untouched = sql("day3.db", sum);
    sql(
        "day2.db",
        "UPDATE t SET b = upper(b) || 'x' WHERE a % 3 = 0; DELETE FROM t WHERE a > 9000",
    );
    assert_eq!(sql("day3.db", sum), untouched);
    assert_ne!(sql("day2.db", sum), untouched);
    hardpack().args(["check", "-q"]).arg(&pool).assert().success();
    let again = json_of(hardpack().args(["optimize", "-q", "--json"]).arg(&pool));
    assert_eq!(number(&again, "damaged"), 0);
    hardpack().args(["check", "-q"]).arg(&pool).assert().success();
    let text = hardpack().arg("optimize").arg(&pool).output().unwrap();
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("left as it was") && text.contains("databases"), "{text}");
}
