//! Counts against a simple model, and the same content in different forms.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use super::common::{hardpack, succeeds};
use super::{blocks, estimate, make_tree, number, random_bytes};

fn files_below(at: &Path, found: &mut Vec<Vec<u8>>) {
    for entry in fs::read_dir(at).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files_below(&path, found),
            false => found.push(fs::read(path).unwrap()),
        }
    }
}

#[test]
fn counts_are_those_of_a_model() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    make_tree(&at.join("tree"));
    let mut files = Vec::new();
    files_below(&at.join("tree"), &mut files);
    let estimated = estimate(at, &["--compression", "lz4", "tree"]);
    let whole: usize = files.iter().map(Vec::len).sum();
    assert_eq!((&estimated["files"], &estimated["bytes"]), (&files.len().into(), &whole.into()));
    for (name, len) in [
        ("2K", 2048),
        ("4K", 4096),
        ("16K", 16 << 10),
        ("64K", 64 << 10),
        ("128K", 128 << 10),
        ("1M", 1 << 20),
    ] {
        let mut model: HashMap<&[u8], u64> = HashMap::new();
        let mut zeros = 0;
        for block in files.iter().flat_map(|file| file.chunks(len)) {
            match block.iter().all(|byte| *byte == 0) {
                true => zeros += block.len(),
                false => *model.entry(block).or_default() += 1,
            }
        }
        let kind = blocks(&estimated, name);
        let is = |field: &str, expected: u64| {
            let figure = &kind[field];
            assert_eq!(figure["value"], expected, "{name} {field}");
            assert_eq!((&figure["low"], &figure["is_exact"]), (&figure["value"], &true.into()));
        };
        is("count", model.values().sum());
        is("distinct", model.len() as u64);
        is("distinct_bytes", model.keys().map(|block| block.len() as u64).sum());
        is("zero_bytes", zeros as u64);
        is("logical_bytes", (whole - zeros) as u64);
        let mut histogram: BTreeMap<u64, [u64; 4]> = BTreeMap::new();
        for (block, refs) in &model {
            let (bucket, len) =
                (histogram.entry(1 << refs.ilog2()).or_default(), block.len() as u64);
            bucket.iter_mut().zip([1, len, *refs, refs * len]).for_each(|(sum, more)| *sum += more);
        }
        let rows = kind["stored"][0]["histogram"].as_array().unwrap();
        let rows = rows.iter().map(|row| {
            let field = |side: &str, field: &str| row[side][field].as_u64().unwrap();
            let (own, all) = ("allocated", "referenced");
            let sums = [(own, "blocks"), (own, "lsize"), (all, "blocks"), (all, "lsize")];
            (row["refs"].as_u64().unwrap(), sums.map(|(side, what)| field(side, what)))
        });
        assert_eq!(rows.collect::<BTreeMap<_, _>>(), histogram, "{name}");
    }
    for name in ["~16K", "~32K"] {
        let chunks = blocks(&estimated, name);
        let all =
            number(&chunks["logical_bytes"]["value"]) + number(&chunks["zero_bytes"]["value"]);
        assert_eq!(all, whole as f64, "every byte is in one chunk");
        let (count, min) = (number(&chunks["count"]["value"]), number(&chunks["bytes_min"]));
        assert!(count < whole as f64 / min + files.len() as f64 + 10.0, "{name}: {count}");
    }
    // A shift by a few bytes changes hardly any chunk.
    let [chunks, fixed] =
        ["~16K", "16K"].map(|name| &blocks(&estimated, name)["dedup_ratio"]["value"]);
    assert!(number(chunks) > 1.1 * number(fixed), "{chunks} {fixed}");
}

#[test]
fn threads_and_forms_of_the_same_content_make_no_difference() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    make_tree(&at.join("tree"));
    // Long holes and a file of several windows.
    let sparse = fs::File::create(at.join("tree/sparse")).unwrap();
    use std::os::unix::fs::FileExt;
    sparse.write_all_at(&random_bytes(3_000_000, 9), 5 << 20).unwrap();
    sparse.set_len(20 << 20).unwrap();
    let of = |arguments: &[&str]| {
        let mut estimated = estimate(at, arguments);
        // Which of several equal blocks is compressed first decides about the page filter.
        let without_pages = ["blocks", "files", "bytes", "hard_links"];
        estimated.as_object_mut().unwrap().retain(|key, _| without_pages.contains(&&key[..]));
        estimated
    };
    let options = ["--compression", "lz4"];
    let one = of(&[&options[..], &["-j1", "tree"]].concat());
    assert_eq!(of(&[&options[..], &["-j7", "tree"]].concat()), one);
    // In a pool, in a directory of one, and in a snapshot.
    succeeds(at, &["put", "-q", "tree", "p.hpk/sub"]);
    succeeds(at, &["snapshot", "p.hpk@s"]);
    for path in ["p.hpk", "p.hpk/sub", "p.hpk@s", "p.hpk/sub@s"] {
        assert_eq!(of(&[&options[..], &[path]].concat()), one, "{path}");
    }
    // Plain zeros instead of holes.
    let bytes = fs::read(at.join("tree/sparse")).unwrap();
    fs::write(at.join("tree/sparse"), bytes).unwrap();
    assert_eq!(of(&[&options[..], &["tree"]].concat()), one);
    // A part of a pool, and a second name.
    let single = of(&[&options[..], &["tree/prose"]].concat());
    assert_eq!(of(&[&options[..], &["p.hpk/sub/tree/prose"]].concat()), single);
    fs::hard_link(at.join("tree/prose"), at.join("tree/z prose")).unwrap();
    let linked = of(&[&options[..], &["tree"]].concat());
    assert_eq!((&linked["hard_links"], &linked["blocks"]), (&1.into(), &one["blocks"]));
    succeeds(at, &["put", "-q", "tree", "q.hpk"]);
    assert_eq!(of(&[&options[..], &["q.hpk"]].concat()), linked);
}

#[test]
fn a_database_in_use_is_read_through_its_log() {
    let (directory, at) = super::common::packed();
    let mut session = super::common::Session::open(&at.join("a.db.hpk"));
    session.run("PRAGMA journal_mode=WAL");
    session.run("INSERT INTO t(b) SELECT hex(randomblob(500)) FROM t");
    let before = fs::metadata(at.join("a.db")).unwrap().len();
    let estimated = estimate(&at, &["a.db.hpk"]);
    assert!(estimated["bytes"].as_u64().unwrap() > before + 1_000_000, "{}", estimated["bytes"]);
    assert_eq!(session.run("SELECT count(*) FROM t"), ["4000"]);
    session.close();
    // A log next to a plain database is not a file of its own.
    fs::write(at.join("a.db-wal"), vec![1; 10_000]).unwrap();
    fs::remove_file(at.join("a.db.hpk")).unwrap();
    assert_eq!(estimate(directory.path(), &["."])["files"], 1);
    hardpack().args(["estimate", "-q"]).arg(at.join("a.db")).assert().success();
}

/// What has the name of a log and is no file is counted like anything else, as 'put' stores it.
#[test]
fn only_files_belong_to_a_database() {
    let directory = tempfile::tempdir().unwrap();
    let tree = directory.path().join("tree");
    fs::create_dir(&tree).unwrap();
    super::common::make_database(&tree.join("a.db"), 4096, 10);
    fs::create_dir(tree.join("a.db-wal")).unwrap();
    fs::write(tree.join("a.db-wal/file"), super::text(50_000, 4)).unwrap();
    std::os::unix::fs::symlink("nowhere", tree.join("a.db-shm")).unwrap();
    let outside = estimate(directory.path(), &["tree"]);
    assert_eq!((&outside["files"], &outside["symlinks"]), (&2.into(), &1.into()));
    succeeds(directory.path(), &["put", "-q", "tree", "p.hpk"]);
    let inside = estimate(directory.path(), &["p.hpk"]);
    assert_eq!((&inside["files"], &inside["bytes"]), (&outside["files"], &outside["bytes"]));
}
