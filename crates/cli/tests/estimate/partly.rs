//! Figures from a part of the blocks, or of the data.

use std::fs;
use std::path::Path;

use super::common::{hardpack, random_bytes, stderr_of, succeeds};
use super::{blocks, estimate, is_within, number, text};

/// Makes a tree of 24 MB with blocks that occur once to many times.
fn make_large(at: &Path) {
    fs::create_dir_all(at).unwrap();
    let shared = random_bytes(2 << 20, 1);
    for n in 0..8_usize {
        let own = [random_bytes(700_000, n as u64 + 10), text(700_000, n as u64 + 30)].concat();
        let part = &shared[..(shared.len() >> (n % 4)) & !4095];
        fs::write(at.join(format!("file {n}")), [part, &own].concat()).unwrap();
    }
}

const FIGURES: [&str; 2] = ["distinct", "distinct_bytes"];

#[test]
fn little_memory_gives_figures_with_bounds() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    make_large(&at.join("tree"));
    let exact = estimate(at, &["tree"]);
    let bounded = estimate(at, &["--memory", "1M", "--measure", "2M", "tree"]);
    let (mut figures, mut within) = (0, 0);
    for (truth, part) in
        exact["blocks"].as_array().unwrap().iter().zip(bounded["blocks"].as_array().unwrap())
    {
        let name = truth["name"].as_str().unwrap();
        assert_eq!(
            (&truth["count"], &truth["logical_bytes"]),
            (&part["count"], &part["logical_bytes"])
        );
        let mut check = |truth: &serde_json::Value, part: &serde_json::Value| {
            figures += 1;
            within += usize::from(is_within(part, number(&truth["value"])));
            let (low, high) = (number(&part["low"]), number(&part["high"]));
            assert!(low <= high && number(&part["value"]) <= high, "{name}: {part}");
        };
        FIGURES.iter().for_each(|field| check(&truth[*field], &part[*field]));
        for (truth, part) in
            truth["stored"].as_array().unwrap().iter().zip(part["stored"].as_array().unwrap())
        {
            check(&truth["stored_bytes"], &part["stored_bytes"]);
            check(&truth["stored_once_bytes"], &part["stored_once_bytes"]);
        }
    }
    assert!(within * 100 >= figures * 95, "{within} of {figures} are within their bounds");
    let finest = blocks(&bounded, "2K");
    assert!(number(&finest["kept_share"]) < 0.5 && finest["distinct"]["is_exact"] == false);
    let error = number(&finest["distinct"]["high"]) / number(&finest["distinct"]["value"]);
    assert!(error < 1.15, "the bounds say something: {error}");
    // What is kept does not depend on the order of reading.
    let again = estimate(at, &["--memory", "1M", "--measure", "2M", "-j5", "tree"]);
    assert_eq!(again["blocks"], bounded["blocks"]);
}

#[test]
fn a_sample_gives_bounds_that_hold() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    make_large(&at.join("tree"));
    let exact = estimate(at, &["--compression", "lz4", "tree"]);
    let (mut figures, mut within) = (0, 0);
    for seed in 0..12 {
        let seed = seed.to_string();
        let sample = ["--compression", "lz4", "--sample", "40%", "--seed", &seed, "tree"];
        let part = estimate(at, &sample);
        assert_eq!((&part["bytes"], &part["files"]), (&exact["bytes"], &exact["files"]));
        let read = number(&part["sample"]["read_bytes"]) / number(&part["bytes"]);
        assert!(read > 0.05 && read < 0.8, "{read}");
        for name in ["4K", "128K"] {
            let (truth, part) = (blocks(&exact, name), blocks(&part, name));
            let mut check = |truth: &serde_json::Value, part: &serde_json::Value| {
                figures += 1;
                within += usize::from(is_within(part, number(&truth["value"])));
            };
            FIGURES.iter().for_each(|field| check(&truth[*field], &part[*field]));
            check(&truth["dedup_ratio"], &part["dedup_ratio"]);
            check(
                &truth["stored"][0]["stored_once_bytes"],
                &part["stored"][0]["stored_once_bytes"],
            );
            assert_eq!(part["distinct"]["is_exact"], false);
        }
        // Chunks cannot be cut from a part of a file.
        assert_eq!(part["blocks"].as_array().unwrap().len(), 6);
    }
    assert!(within * 100 >= figures * 95, "{within} of {figures} are within their bounds");
    // The same ranges in another order.
    let same = ["--sample", "40%", "--seed", "3", "-j3", "tree"];
    let of_pool = ["--sample", "40%", "--seed", "3", "p.hpk/tree"];
    succeeds(at, &["put", "-q", "tree", "p.hpk"]);
    assert_eq!(estimate(at, &same)["blocks"], estimate(at, &of_pool)["blocks"]);
    // All of it is no sample, also by its length.
    for all in ["100%", "1G"] {
        let all = estimate(at, &["--compression", "lz4", "--sample", all, "tree"]);
        assert_eq!((&all["sample"], &all["blocks"]), (&().into(), &exact["blocks"]));
    }
    let some = estimate(at, &["--sample", "8M", "tree"]);
    let read = number(&some["sample"]["read_bytes"]);
    assert!(read > 2e6 && read < 18e6, "{read}");
    let text = succeeds(at, &["estimate", "--sample", "30%", "tree"]);
    assert!(text.contains("From a sample") && text.contains(".."), "{text}");
}

#[test]
fn sizes_and_shares_are_checked() {
    for wrong in [
        ["--sample", "0"],
        ["--sample", "200%"],
        ["--sample", "5"],
        ["--memory", "1K"],
        ["--measure", "x"],
        ["--compression", "lz4,zstd-99"],
        ["--ashift", "8"],
        ["--histogram", "3K"],
    ] {
        let stderr = stderr_of(hardpack().arg("estimate").args(wrong).arg("x"), 2);
        assert!(stderr.contains("invalid value"), "{wrong:?}: {stderr}");
    }
}
