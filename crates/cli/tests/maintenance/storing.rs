//! `put --optimize` puts what it has stored into segments.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::*;
use crate::optimize::{FILE_COUNT, VERSION_COUNT, assert_holds, family, len, number, text_of};
use serde_json::Value;

const PUT: [&str; 3] = ["put", "--json", "--optimize"];

/// Returns the bytes that records of a codec hold.
fn held_by(pool: &Path, codec: &str) -> u64 {
    let info = json_of(hardpack().args(["info", "--json"]).arg(pool));
    info["codecs"][codec]["logical_bytes"].as_u64().unwrap_or(0)
}

#[test]
fn a_family_is_small_as_soon_as_it_is_stored() {
    let (directory, tree, plain) = family();
    let pool = directory.path().join("a.hpk");
    let report = json_of(hardpack().args(PUT).arg(&tree).arg(&pool));
    assert_eq!(number(&report, "files"), (VERSION_COUNT * FILE_COUNT) as u64, "{report}");
    let done = &report["optimize"];
    assert_eq!(number(done, "records"), (VERSION_COUNT * FILE_COUNT) as u64, "{report}");
    assert_eq!(number(done, "pool_after"), len(&pool), "{report}");
    // The other one has a database, too.
    let without = json_of(hardpack().args(["put", "--json"]).arg(&tree).arg(&plain));
    assert!(without["optimize"].is_null(), "{without}");
    assert!(number(done, "pool_before") > 2 * len(&pool), "{report}");
    assert_holds(&pool, &tree);

    let text = stdout_of(hardpack().args(["put", "--optimize"]).arg(&tree).arg(&pool));
    assert!(
        text.contains("240 unchanged") && text.ends_with("  optimize: nothing to gain\n"),
        "{text}"
    );
    let quiet = stdout_of(hardpack().args(["put", "-q", "--optimize"]).arg(&tree).arg(&pool));
    assert_eq!(quiet, "");
}

#[test]
fn what_comes_later_gets_segments_of_its_own() {
    let (directory, tree, _) = family();
    let pool = directory.path().join("a.hpk");
    hardpack().args(PUT).arg(&tree).arg(&pool).assert().success();
    let next = tree.join("next");
    fs::create_dir(&next).unwrap();
    for number in 0..FILE_COUNT {
        fs::write(next.join(format!("f{number}.js")), text_of(number, 2200 + 300 * number))
            .unwrap();
    }
    let text = stdout_of(hardpack().args(["put", "--optimize"]).arg(&tree).arg(&pool));
    assert!(text.contains("  optimize: the pool was "), "{text}");
    assert_holds(&pool, &tree);
    let idle = json_of(hardpack().args(["optimize", "-q", "--json"]).arg(&pool));
    assert_eq!(number(&idle, "records"), 0, "{idle}");
    let all = json_of(hardpack().args(["optimize", "-q", "--json", "--again"]).arg(&pool));
    assert_eq!(number(&all, "records"), ((VERSION_COUNT + 1) * FILE_COUNT) as u64, "{all}");
    assert!(number(&all, "pool_after") < number(&all, "pool_before"), "{all}");
    assert_holds(&pool, &tree);
}

#[test]
fn segments_are_compressed_as_their_directory_says_if_that_can_be() {
    let (directory, tree, _) = family();
    for (given, codec) in
        [("zstd-9", "zstd"), ("lzma-2", "lzma"), ("gzip-9", "zstd"), ("off", "zstd")]
    {
        let pool = directory.path().join(format!("{given}.hpk"));
        let property = format!("compression={given}");
        hardpack().args(PUT).arg("-o").arg(property).arg(&tree).arg(&pool).assert().success();
        assert!(held_by(&pool, codec) > len(&pool), "{given}");
        let raw_or_gzip = held_by(&pool, "raw") + held_by(&pool, "gzip");
        assert_eq!(raw_or_gzip, 0, "{given}");
        assert_holds(&pool, &tree);
    }
    // The pool itself has another one.
    let pool = directory.path().join("a.hpk");
    hardpack().arg("create").arg(&pool).assert().success();
    hardpack().args(PUT).args(["-o", "compression=lzma-2"]).args([&tree, &pool]).assert().success();
    assert!(held_by(&pool, "lzma") > len(&pool));
}

#[test]
fn whatever_is_stored_is_optimised_however_it_came() {
    let (directory, tree, _) = family();
    let pool = directory.path().join("a.hpk");
    let tar = directory.path().join("a.tar");
    let args = ["-c", "-f"];
    let packed = Command::new("tar")
        .args(args)
        .arg(&tar)
        .arg("-C")
        .arg(directory.path())
        .arg("releases")
        .status();
    assert!(packed.unwrap().success());
    let report = json_of(hardpack().args(PUT).arg("--tar").arg(&tar).arg(&pool));
    let records = (VERSION_COUNT * FILE_COUNT) as u64;
    assert_eq!(number(&report["optimize"], "records"), records, "{report}");
    assert_holds(&pool, &tree);

    // A single file, under another name, in a directory that does not exist yet.
    let long = directory.path().join("long.js");
    fs::write(&long, text_of(3, 200_000).repeat(8)).unwrap();
    let report = json_of(hardpack().args(PUT).arg(&long).arg(pool.join("some/other.js")));
    assert!(number(&report["optimize"], "records") > 1, "{report}");
    hardpack().args(["check", "-q"]).arg(&pool).assert().success();

    // What cannot be read is told as ever, and the rest is stored and optimised.
    let more = directory.path().join("more");
    fs::create_dir(&more).unwrap();
    for number in 0..9 {
        fs::write(more.join(number.to_string()), text_of(number, 3000)).unwrap();
    }
    let missing = directory.path().join("missing");
    let output =
        hardpack().args(PUT).arg(&more).arg(missing).arg(pool.join("here")).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(number(&report["optimize"], "records"), 9, "{report}");
    // A link is no file.
    std::os::unix::fs::symlink("v0", directory.path().join("link")).unwrap();
    for _ in 0..2 {
        let link = directory.path().join("link");
        hardpack().args(PUT).arg(link).arg(pool.join("some/link")).assert().success();
    }
    // If nothing could be stored, there is nothing to optimise.
    let missing = directory.path().join("missing");
    hardpack().args(PUT).arg(missing).arg(pool.join("nowhere")).assert().code(3);
    hardpack().args(["put", "-n", "--optimize"]).arg(&more).arg(&pool).assert().code(2);
}

#[test]
fn it_can_be_killed_at_any_time_and_goes_on() {
    let (directory, tree, _) = family();
    for round in 0..12 {
        let pool = directory.path().join(format!("{round}.hpk"));
        hardpack().arg("create").arg(&pool).assert().success();
        let mut child = Command::new(assert_cmd::cargo::cargo_bin!("hardpack"))
            .args(["put", "-q", "--optimize"])
            .args([&tree, &pool])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(8 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        hardpack().args(["check", "-q"]).arg(&pool).assert().success();
        hardpack().args(PUT).arg(&tree).arg(&pool).assert().success();
        assert_holds(&pool, &tree);
        let idle = json_of(hardpack().args(["optimize", "-q", "--json"]).arg(&pool));
        assert_eq!(number(&idle, "records"), 0, "{idle}");
    }
}
