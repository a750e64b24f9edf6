//! What is said of 'hardpack optimize' must be what it takes at most.

use std::fs;
use std::path::Path;

use super::common::{hardpack, json_of, random_bytes, succeeds};
use super::{blocks, estimate, number, run, text};

/// Near-copies that have no chunk in common, 1 MiB each.
fn make_copies(at: &Path, count: usize) {
    fs::create_dir_all(at).unwrap();
    let prose = text(1 << 20, 1);
    for n in 0..count {
        let mut bytes = prose.clone();
        let marks = random_bytes(8 * 400, n as u64);
        for (place, mark) in bytes.chunks_mut(3000).zip(marks.chunks(8)) {
            place[..8].copy_from_slice(mark);
        }
        fs::write(at.join(format!("copy {n:02}")), bytes).unwrap();
    }
}

fn len_of(path: &Path) -> f64 {
    fs::metadata(path).unwrap().len() as f64
}

/// A database of less than a tenth of the data is left alone, and takes its space all the same.
#[test]
fn databases_that_are_left_alone_take_space() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    make_copies(&at.join("d"), 14);
    let database = rusqlite_free_database(&at.join("d/a.db"));
    let estimated = estimate(at, &["d"]);
    let advice = &estimated["recommendation"];
    assert_eq!(estimated["after_optimize"]["left_alone_bytes"], database);
    run(at, advice["command"].as_str().unwrap());
    let (real, promised) = (len_of(&at.join("d.hpk")), number(&advice["bytes_after_optimize"]));
    assert!(real < promised + 100_000.0, "at most {promised} were promised, it takes {real}");
}

/// Makes a database of random content of 1.2 MB; returns its length.
fn rusqlite_free_database(at: &Path) -> u64 {
    super::make_database(at, 4096, 10);
    // Free pages of random content: the front is what makes it a database.
    let mut bytes = fs::read(at).unwrap();
    bytes.extend(random_bytes(1 << 20, 99));
    fs::write(at, &bytes).unwrap();
    bytes.len() as u64
}

/// What snapshots hold stays as it is.
#[test]
fn nothing_is_promised_for_what_snapshots_hold() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    make_copies(&at.join("d"), 6);
    succeeds(at, &["put", "-q", "d", "p.hpk"]);
    succeeds(at, &["snapshot", "p.hpk@monday"]);
    for what in ["p.hpk", "p.hpk@monday"] {
        let before = len_of(&at.join("p.hpk"));
        let estimated = estimate(at, &[what]);
        let advice = &estimated["recommendation"];
        let Some(promised) = advice["bytes_after_optimize"].as_f64() else { continue };
        run(at, advice["command"].as_str().unwrap());
        let real = len_of(&at.join("p.hpk"));
        assert!(
            real < promised + 100_000.0,
            "{what}: {} at most {promised} were promised, it took {before} and takes {real}",
            advice["command"]
        );
    }
}

/// What is in segments already is left there, and so is a part of it: 'repack' would make it
/// longer.
#[test]
fn nothing_is_recommended_for_what_is_in_segments() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    make_copies(&at.join("d"), 6);
    succeeds(at, &["put", "-q", "--optimize", "d", "p.hpk"]);
    for what in ["p.hpk", "p.hpk/d", "p.hpk/d/copy 01"] {
        let estimated = estimate(at, &[what]);
        assert!(estimated["recommendation"].is_null(), "{}", estimated["recommendation"]);
        assert!(estimated["after_optimize"].is_null(), "{}", estimated["after_optimize"]);
        let text = succeeds(at, &["estimate", what]);
        assert!(text.contains("some of it is in segments already"), "{text}");
    }
}

/// Each of several paths in one pool would be optimised alone.
#[test]
fn nothing_is_promised_of_several_parts_of_a_pool() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    make_copies(&at.join("d"), 2);
    make_copies(&at.join("e"), 2);
    succeeds(at, &["put", "-q", "d", "e", "p.hpk"]);
    let estimated = estimate(at, &["p.hpk/d", "p.hpk/e"]);
    assert!(estimated["recommendation"]["bytes_after_optimize"].is_null());
    assert!(estimate(at, &["p.hpk"])["recommendation"]["bytes_after_optimize"].is_number());
}

/// Commands name the part of the pool that was estimated.
#[test]
fn what_is_recommended_for_a_directory_concerns_that() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    make_copies(&at.join("d"), 6);
    fs::create_dir(at.join("e")).unwrap();
    fs::write(at.join("e/prose"), text(4 << 20, 9)).unwrap();
    succeeds(at, &["put", "-q", "d", "e", "p.hpk"]);
    let estimated = estimate(at, &["p.hpk/d"]);
    assert_eq!(estimated["recommendation"]["command"], "hardpack optimize p.hpk/d");
    let estimated = estimate(at, &["--compression", "zstd-19", "p.hpk/e"]);
    let command = estimated["recommendation"]["command"].as_str().unwrap();
    assert!(command.ends_with(" p.hpk/e && hardpack repack p.hpk/e"), "{command}");
    run(at, command);
}

/// A pool is opened once, however many paths in it are named.
#[test]
fn memory_does_not_grow_with_the_number_of_addresses() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    make_copies(&at.join("d"), 24);
    succeeds(at, &["put", "-q", "d", "p.hpk"]);
    succeeds(at, &["optimize", "-q", "--compression", "zstd-3", "p.hpk"]);
    for what in ["p.hpk", "p.hpk/d/*"] {
        run(at, &format!("ulimit -v 700000; hardpack estimate -q --memory 1M '{what}'"));
    }
}

/// Nor does each match of a pattern open it once more while segments are measured.
#[test]
fn patterns_with_many_matches_are_estimated() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    fs::create_dir(at.join("d")).unwrap();
    for n in 0..300 {
        fs::write(at.join(format!("d/{n}")), text(2000, n)).unwrap();
    }
    succeeds(&at.join("d"), &["put", "-q", ".", "../p.hpk"]);
    run(at, "ulimit -n 128; hardpack estimate -q 'p.hpk/*'");
}

/// The chunks that were met first do not stand for the rest.
#[test]
fn with_little_memory_the_rest_is_not_taken_for_what_came_first() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    fs::create_dir_all(at.join("d/b")).unwrap();
    // 3000 small files take all places that 1M has.
    for n in 0..3000 {
        let text = [format!("{n} ").as_bytes(), &text(3000, 5)].concat();
        fs::write(at.join(format!("d/a{n:04}")), text).unwrap();
    }
    fs::write(at.join("d/b/noise"), random_bytes(24 << 20, 6)).unwrap();
    let all = estimate(at, &["d"]);
    let truth = number(&all["after_optimize"]["stored_bytes"]["value"]);
    assert_eq!(all["after_optimize"]["stored_bytes"]["is_exact"], true);
    let part = estimate(at, &["--memory", "1M", "d"]);
    let figure = &part["after_optimize"]["stored_bytes"];
    assert!(number(&figure["high"]) >= truth, "it is {truth}, not at most {figure}");
}

/// Chunks for which there is no memory count once, too.
#[test]
fn with_little_memory_copies_count_once() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    fs::create_dir_all(at.join("d")).unwrap();
    for n in 0..3000 {
        fs::write(at.join(format!("d/a{n:04}")), random_bytes(4000, n)).unwrap();
    }
    let noise = random_bytes(8 << 20, 7000);
    for n in 0..4 {
        fs::write(at.join(format!("d/b{n}")), &noise).unwrap();
    }
    let all = estimate(at, &["d"]);
    let truth = number(&all["after_optimize"]["stored_bytes"]["value"]);
    let part = estimate(at, &["--memory", "1M", "d"]);
    let figure = &part["after_optimize"]["stored_bytes"];
    assert!(number(&figure["low"]) <= truth, "it is {truth}, not at least {figure}");
    assert_eq!(figure["is_exact"], false, "{figure}");
}

/// Which of several equal chunks is met first depends on the threads, and makes no difference.
#[test]
fn segments_do_not_depend_on_threads() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    fs::create_dir_all(at.join("d")).unwrap();
    let prose = text(10 << 20, 5);
    for n in 0..4 {
        fs::write(at.join(format!("d/{n}")), &prose).unwrap();
    }
    let one = estimate(at, &["-j1", "d"]);
    assert_eq!(one["after_optimize"]["stored_bytes"]["is_exact"], true);
    for _ in 0..4 {
        let other = estimate(at, &["-j8", "d"]);
        assert_eq!(one["after_optimize"], other["after_optimize"]);
    }
}

/// A segment that saves less than a thirty-second is not stored, so it counts as it is.
#[test]
fn what_hardly_compresses_is_left_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    fs::create_dir_all(at.join("d")).unwrap();
    let mut bytes = random_bytes(4 << 20, 5);
    bytes.chunks_mut(32 << 10).for_each(|chunk| chunk[..900].fill(1));
    fs::write(at.join("d/f"), bytes).unwrap();
    let estimated = estimate(at, &["d"]);
    succeeds(at, &["put", "-q", "-o", "chunking=auto", "-o", "dedup=on", "d", "p.hpk"]);
    succeeds(at, &["optimize", "-q", "p.hpk"]);
    let stats = json_of(hardpack().current_dir(at).args(["stats", "--json", "p.hpk"]));
    let (real, figure) =
        (number(&stats["stored_once_bytes"]), &estimated["after_optimize"]["stored_bytes"]);
    assert!(real <= number(&figure["high"]), "{figure} {real}");
}

/// Names take space, and some do not compress.
#[test]
fn long_names_count() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    fs::create_dir_all(at.join("d")).unwrap();
    for n in 0..5000_u64 {
        let name: String = random_bytes(45, n).iter().map(|byte| format!("{byte:02x}")).collect();
        fs::write(at.join("d").join(name), [format!("{n}").as_bytes(), &text(150, 3)].concat())
            .unwrap();
    }
    let estimated = estimate(at, &["--compression", "off", "d"]);
    let advice = &estimated["recommendation"];
    run(at, advice["command"].as_str().unwrap());
    let (real, promised) = (len_of(&at.join("d.hpk")), number(&advice["bytes_after_optimize"]));
    assert!(real < promised + 100_000.0, "at most {promised} were promised, it takes {real}");
}

/// What fits into its pointer is there, and nowhere else.
#[test]
fn what_is_in_pointers_takes_space() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    fs::create_dir_all(at.join("d")).unwrap();
    for n in 0..10_000 {
        fs::write(at.join(format!("d/{n}")), random_bytes(100, n)).unwrap();
    }
    let estimated = estimate(at, &["d"]);
    let advice = &estimated["recommendation"];
    let promised = number(&advice["bytes"]);
    assert!(promised >= 1_000_000.0, "{} {} for random bytes", advice["command"], promised);
}

/// A sample of nothing says nothing.
#[test]
fn a_sample_that_reads_nothing_promises_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    fs::create_dir_all(at.join("d")).unwrap();
    for n in 0..20 {
        fs::write(at.join(format!("d/{n}")), random_bytes(60_000, n)).unwrap();
    }
    for seed in 0..4 {
        let seed = seed.to_string();
        let estimated = estimate(at, &["--sample", "1%", "--seed", &seed, "d"]);
        let kind = blocks(&estimated, "128K");
        assert!(
            number(&kind["logical_bytes"]["high"]) >= 1_200_000.0,
            "seed {seed}, {}: {}",
            estimated["sample"],
            kind["logical_bytes"]
        );
    }
}

/// Directories of one name, and what is put without the directory around it, stay apart.
#[test]
fn what_is_recommended_keeps_apart_what_has_the_same_name() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    make_copies(&at.join("a/d"), 3);
    make_copies(&at.join("b/d"), 4);
    make_copies(&at.join("c"), 5);
    for (paths, pool, stored) in [
        (["a/d", "b/d", "c"], "d.hpk", ["1/d/copy 02", "2/d/copy 03", "3/c/copy 04"]),
        (["c/.", "a/", "b/d"], "c.hpk", ["1/copy 04", "2/d/copy 02", "3/d/copy 03"]),
        (["b/d", "c/copy 00", "c"], "d-2.hpk", ["d/copy 03", "copy 00", "c/copy 04"]),
    ] {
        let estimated = estimate(at, &paths);
        run(at, estimated["recommendation"]["command"].as_str().unwrap());
        let kept = succeeds(at, &["ls", "-R", "--json", pool]);
        assert_eq!(
            kept.matches("copy ").count(),
            if pool == "d-2.hpk" { 10 } else { 12 },
            "{kept}"
        );
        for path in stored {
            succeeds(at, &["ls", &format!("{pool}/{path}")]);
        }
    }
}
