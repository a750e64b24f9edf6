//! The estimate of a tree against the pools that hold it.

use std::fs;
use std::path::Path;

use super::common::{hardpack, json_of};
use super::{blocks, estimate, make_tree, number, stored};

/// A pool may choose the page filter, or to store a record as it is, by how its neighbours fared.
const TOLERANCE: f64 = 0.01;

#[test]
fn pools_take_what_was_estimated() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    make_tree(&at.join("tree"));
    let compressions = ["lz4", "zstd-3", "gzip-6", "lzma-6", "off"];
    let estimated = estimate(at, &["--compression", &compressions.join(","), "tree"]);
    let fixed = ["4K", "16K", "128K", "1M"].map(|size| (size, "chunking=fixed", size));
    let chunks = [("~16K", "chunking=auto", "64K"), ("~32K", "chunking=auto", "128K")];
    for (name, chunking, recordsize) in fixed.into_iter().chain(chunks) {
        for compression in compressions {
            let pool = at.join("pool.hpk");
            let _ = fs::remove_file(&pool);
            let mut put = hardpack();
            put.current_dir(at).args(["put", "-q", "-o", "dedup=on", "--recordsize", recordsize]);
            put.args(["-o", chunking, "--compression", compression, "tree", "pool.hpk"])
                .assert()
                .success();
            let stats = json_of(hardpack().arg("stats").arg("--json").arg(&pool));
            let kind = blocks(&estimated, name);
            let expected = stored(kind, compression);
            let what = format!("{name} {compression}");
            // The pool counts bytes that are stored in pointers, which take no sectors.
            let embedded = 8192.0;
            for field in ["stored_bytes", "stored_once_bytes"] {
                let (real, figure) = (number(&stats[field]), &expected[field]);
                assert_eq!(figure["is_exact"], true);
                let error = (number(&figure["value"]) - real).abs();
                assert!(error <= real * TOLERANCE + embedded, "{what} {field}: {figure} {real}");
            }
            let distinct = number(&kind["distinct"]["value"]);
            let counted = number(&stats["pool"]["counted_extents"]);
            // Records in pointers are not shared.
            assert!(
                counted <= distinct && distinct - counted < 60.0,
                "{what}: {distinct} {counted}"
            );
        }
    }
}

#[test]
fn the_recommended_command_takes_what_is_promised() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    make_tree(&at.join("the tree's"));
    let estimated = estimate(at, &["the tree's"]);
    let advice = &estimated["recommendation"];
    assert_eq!((&advice["dedup"], &advice["compression"]), (&true.into(), &"zstd-3".into()));
    let command = advice["command"].as_str().unwrap();
    let program = assert_cmd::cargo::cargo_bin!("hardpack");
    let ran = format!("{} -q", command.replacen("hardpack", &program.display().to_string(), 1));
    assert!(ran.ends_with("'the tree'\\''s.hpk' -q"), "{ran}");
    let shell = std::process::Command::new("sh").current_dir(at).args(["-c", &ran]).status();
    assert!(shell.unwrap().success());
    let real = fs::metadata(at.join("the tree's.hpk")).unwrap().len() as f64;
    let promised = number(&advice["bytes"]);
    // The ring of superblocks and free space are not in it.
    assert!((real - promised).abs() < 0.03 * real + 100_000.0, "{promised} {real}");
    // The name is taken now.
    let again = estimate(at, &["the tree's"]);
    assert!(again["recommendation"]["command"].as_str().unwrap().ends_with("-2.hpk'"));
    // A pool is changed in place.
    let of_pool = estimate(at, &["the tree's.hpk"]);
    let command = of_pool["recommendation"]["command"].as_str().unwrap();
    super::run(at, command);
}

#[test]
fn content_that_moves_is_recommended_to_be_cut_into_chunks() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    fs::create_dir(at.join("dumps")).unwrap();
    let mut dump = super::random_bytes(3_000_000, 6);
    for day in 0..4 {
        dump.splice(..0, super::text(777, day));
        fs::write(at.join(format!("dumps/{day}")), &dump).unwrap();
    }
    let estimated = estimate(at, &["dumps"]);
    let advice = &estimated["recommendation"];
    assert_eq!((&advice["chunking"], &advice["dedup"]), (&"auto".into(), &true.into()));
    let command = advice["command"].as_str().unwrap();
    assert!(command.contains(" -o dedup=on -o chunking=auto "), "{command}");
    let arguments = command.strip_prefix("hardpack ").unwrap().split(' ');
    hardpack().current_dir(at).args(arguments).arg("-q").assert().success();
    let real = fs::metadata(at.join("dumps.hpk")).unwrap().len() as f64;
    let promised = number(&advice["bytes"]);
    assert!((real - promised).abs() < 0.03 * real + 100_000.0, "{promised} {real}");
    assert!(real < 4_000_000.0, "{real}");
    // What is in a pool keeps its records, so another command helps.
    hardpack().current_dir(at).args(["put", "-q", "dumps", "fixed.hpk"]).assert().success();
    let of_pool = estimate(at, &["fixed.hpk"]);
    let advice = &of_pool["recommendation"];
    assert_eq!(advice["chunking"], "fixed");
    assert_eq!(advice["command"], "hardpack optimize fixed.hpk");
    hardpack().current_dir(at).args(["optimize", "-q", "fixed.hpk"]).assert().success();
    let real = fs::metadata(at.join("fixed.hpk")).unwrap().len() as f64;
    let promised = number(&advice["bytes_after_optimize"]);
    assert!(real < promised + 100_000.0 && promised < 4_000_000.0, "{promised} {real}");
}

/// Versions of a program: many small files, of which most change a little.
fn make_versions(at: &Path) {
    for version in 0..6 {
        let directory = at.join(format!("v{version}"));
        fs::create_dir_all(&directory).unwrap();
        for file in 0..60 {
            let mut bytes = super::text(3000 + 400 * file, file as u64);
            let place = (version * 977) % bytes.len();
            bytes.splice(place..place, super::text(60, (1000 + 60 * version + file) as u64));
            fs::write(directory.join(format!("file {file}")), bytes).unwrap();
        }
    }
}

#[test]
fn optimize_makes_of_it_what_was_estimated() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    make_versions(&at.join("versions"));
    let estimated = estimate(at, &["versions"]);
    let after = &estimated["after_optimize"];
    assert_eq!(after["segments"], after["measured_segments"]);
    assert_eq!(after["left_alone_bytes"], 0);
    let advice = &estimated["recommendation"];
    let command = advice["command"].as_str().unwrap();
    assert!(command.ends_with(" versions versions.hpk && hardpack optimize versions.hpk"));
    let program = assert_cmd::cargo::cargo_bin!("hardpack").display().to_string();
    let ran = command.replace("hardpack ", &format!("{program} ")) + " -q";
    let shell = std::process::Command::new("sh").current_dir(at).args(["-c", &ran]).status();
    assert!(shell.unwrap().success());
    let real = fs::metadata(at.join("versions.hpk")).unwrap().len() as f64;
    let promised = number(&advice["bytes_after_optimize"]);
    // The ring of superblocks and free space are not in it; zstd-19 takes less.
    assert!(real < promised + 100_000.0 && promised < 1.3 * real, "{promised} {real}");
    assert!(promised * 2.0 < number(&advice["bytes"]), "{advice}");

    // With the codec of the estimate, segments are what was estimated.
    let mut put = hardpack();
    put.current_dir(at).args(["put", "-q", "-o", "dedup=on", "-o", "chunking=auto"]);
    put.args(["versions", "same.hpk"]).assert().success();
    let mut optimize = hardpack();
    optimize.current_dir(at).args(["optimize", "--json", "--compression", "zstd-9", "same.hpk"]);
    let real = number(&json_of(&mut optimize)["allocated_after"]);
    let figure = &after["stored_bytes"];
    assert_eq!(figure["is_exact"], true);
    // Some of these are differences from others.
    let most = number(&figure["value"]);
    assert!(real <= most && most < 1.05 * real, "{figure} {real}");
}

#[test]
fn what_optimize_leaves_alone_is_no_part_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    make_versions(&at.join("both/versions"));
    let alone = estimate(at, &["both"]);
    super::make_database(&at.join("both/a.db"), 4096, 60_000);
    let len = fs::metadata(at.join("both/a.db")).unwrap().len();
    let with = estimate(at, &["both"]);
    assert_eq!(with["after_optimize"]["left_alone_bytes"], len);
    assert_eq!(with["after_optimize"]["stored_bytes"], alone["after_optimize"]["stored_bytes"]);
    assert!(len * 10 > number(&with["bytes"]) as u64, "it is too much to leave alone");
    assert_eq!(with["recommendation"]["bytes_after_optimize"], serde_json::Value::Null);
    // A sample tells nothing of near-copies in the rest.
    let sample = estimate(at, &["--sample", "50%", "both/versions"]);
    assert_eq!(sample["after_optimize"], serde_json::Value::Null);
    let shown = hardpack().current_dir(at).args(["estimate", "both"]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(
        shown.contains("\nAfter 'hardpack optimize': at most ")
            && shown.contains(" in databases are left alone")
    );
}

#[test]
fn nothing_is_recommended_that_saves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    fs::write(at.join("noise"), super::random_bytes(3_000_000, 5)).unwrap();
    let estimated = estimate(at, &["noise"]);
    let advice = &estimated["recommendation"];
    assert_eq!((&advice["dedup"], &advice["recordsize"]), (&false.into(), &"128K".into()));
    assert_eq!(advice["compression"], "lz4", "the fastest does as well");
    assert_eq!(advice["command"], "hardpack put --compression lz4 noise noise.hpk");
    let kind = blocks(&estimated, "128K");
    assert_eq!(number(&kind["dedup_ratio"]["value"]), 1.0);
    assert_eq!(stored(kind, "zstd-3")["stored_bytes"]["value"], 3_000_320);
}

/// What `chunking=auto` does not cut counts in the rows of chunks as it is stored then.
#[test]
fn pools_with_chunks_take_what_was_estimated() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    for (tree, front, is_cut) in [("dumps", &b"text"[..], true), ("disks", b"QFI\xfb", false)] {
        fs::create_dir(at.join(tree)).unwrap();
        let bytes = super::text(3_000_000, 8);
        for (name, moved) in [("a", 0), ("b", 777)] {
            let file = [front, &super::text(4092 + moved, 9), &bytes].concat();
            fs::write(at.join(tree).join(name), file).unwrap();
        }
        let estimated = estimate(at, &[tree]);
        let command = estimated["recommendation"]["command"].as_str().unwrap();
        assert_eq!(command.contains("chunking=auto"), is_cut, "{command}");
        for (row, recordsize) in [("~16K", "64K"), ("~32K", "128K")] {
            let pool = at.join("pool.hpk");
            let _ = fs::remove_file(&pool);
            let mut put = hardpack();
            put.current_dir(at).args(["put", "-q", "-o", "dedup=on", "-o", "chunking=auto"]);
            put.args(["--recordsize", recordsize, tree, "pool.hpk"]).assert().success();
            let stats = json_of(hardpack().arg("stats").arg("--json").arg(&pool));
            let expected = stored(blocks(&estimated, row), "zstd-3");
            for field in ["stored_bytes", "stored_once_bytes"] {
                let (real, figure) = (number(&stats[field]), number(&expected[field]["value"]));
                let error = (figure - real).abs();
                assert!(
                    error <= real * TOLERANCE + 8192.0,
                    "{tree} {row} {field}: {figure} {real}"
                );
            }
        }
    }
}
