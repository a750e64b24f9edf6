//! What is read and shown: hostile names, files that cannot be read, text, charts.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Stdio;

use super::common::{copy_program, fails, hardpack, random_bytes, stderr_of, succeeds};
use super::{estimate, make_tree, text};

/// Fails unless every element of a document is closed, and nothing is left unescaped.
fn assert_well_formed(document: &str) {
    let body = document.strip_prefix("<!DOCTYPE html>\n").unwrap_or(document);
    let mut open: Vec<&str> = Vec::new();
    let mut pieces = body.split('<');
    assert_eq!(pieces.next(), Some(""));
    for piece in pieces {
        let (tag, content) = piece.split_once('>').unwrap_or_else(|| panic!("no end: {piece}"));
        assert!(!content.contains('>'), "{content}");
        let bad = |c: char| c.is_control() && c != '\n' || ('\u{fffe}'..='\u{ffff}').contains(&c);
        assert!(!content.contains(bad) && !tag.contains(bad), "{piece:?}");
        for (at, _) in content.match_indices('&') {
            let is_known = |name: &str| content[at..].starts_with(name);
            assert!(
                ["&amp;", "&lt;", "&gt;", "&quot;"].iter().any(|name| is_known(name)),
                "{content}"
            );
        }
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
        match tag {
            closed if closed.starts_with('/') => assert_eq!(open.pop(), Some(name)),
            empty if empty.ends_with('/') => {}
            _ => open.push(name),
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn charts_are_whole_and_replace_nothing_by_accident() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let name = OsStr::from_bytes(b"<&\">\x01\xff'\n\xef\xbf\xbf");
    make_tree(&at.join(name));
    for chart in ["c.svg", "c.html", "c"] {
        for options in [&[][..], &["--sample", "50%"]] {
            let mut command = hardpack();
            command.current_dir(at).args(["estimate", "-q", "--force", "--chart", chart]);
            command.args(["--compression", "lz4,zstd-1,zstd-3,gzip-1,off"]).args(options);
            let done = command.arg(name).assert().success();
            let output = String::from_utf8(done.get_output().stdout.clone()).unwrap();
            assert!(!output.contains(['\x01', '\u{fffd}']), "{output:?}");
            let document = fs::read_to_string(at.join(chart)).unwrap();
            assert_well_formed(&document);
            assert_eq!(document.contains("<table>"), chart.ends_with("html"));
            for part in ["role=\"img\"", "<desc", "prefers-color-scheme:dark", "128K", "gzip-1"] {
                assert!(document.contains(part), "{chart} lacks {part}");
            }
        }
    }
    fs::write(at.join("x"), b"x").unwrap();
    fails(at, &["estimate", "--chart", "c.svg", "x"], 3, &["it already exists"]);
    fails(at, &["estimate", "--chart", "no/c.svg", "x"], 3, &["cannot create 'no/c.svg'"]);
    std::os::unix::fs::symlink("x", at.join("l.svg")).unwrap();
    fails(at, &["estimate", "-f", "--chart", "l.svg", "x"], 3, &["symbolic link"]);
    assert_eq!(fs::read(at.join("x")).unwrap(), b"x");
}

#[test]
fn the_text_is_as_documented() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    make_tree(&at.join("tree"));
    let shown = succeeds(at, &["estimate", "--histogram", "16K", "tree"]);
    for part in [
        "All counts are exact.",
        "BLOCKS  ",
        "ZSTD-3+DEDUP",
        "IN OPENZFS",
        "\n~32K ",
        "References in blocks of 16K with zstd-3",
        "bucket             allocated                        referenced",
        "refcnt   blocks   LSIZE   PSIZE   DSIZE   blocks   LSIZE   PSIZE   DSIZE",
        "\n Total ",
        "copies = 1.00",
        "\nRecommended: hardpack put ",
    ] {
        assert!(shown.contains(part), "no '{part}': {shown}");
    }
    assert_eq!(shown.matches("Recommended").count(), 1);
    // Empty input has figures, too.
    fs::create_dir(at.join("none")).unwrap();
    fs::write(at.join("none/zeros"), vec![0; 10_000]).unwrap();
    for options in [&[][..], &["--sample", "1%"]] {
        let shown = succeeds(at, &[&["estimate"], options, &["none"]].concat());
        assert!(shown.contains("1.00x") && !shown.contains("NaN"), "{shown}");
    }
    let estimated = estimate(at, &["none"]);
    let fields =
        ["files", "bytes", "failed", "sample", "blocks", "after_optimize", "recommendation"];
    for field in fields.into_iter().chain(["seconds"]) {
        assert!(estimated.get(field).is_some(), "{field}");
    }
}

#[test]
fn what_cannot_be_read_is_reported_and_the_rest_is_estimated() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let tree = at.join("tree");
    fs::create_dir_all(tree.join("closed")).unwrap();
    fs::write(tree.join("good"), text(100_000, 1)).unwrap();
    fs::write(tree.join("secret"), random_bytes(100_000, 1)).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, tree.join("fifo"), 0o644.into()).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(tree.join("socket")).unwrap();
    std::os::unix::fs::symlink("good", tree.join("link")).unwrap();
    std::os::unix::fs::symlink("tree", at.join("way")).unwrap();
    let estimated = estimate(at, &["way"]);
    assert_eq!((&estimated["files"], &estimated["symlinks"]), (&2.into(), &1.into()));
    assert_eq!(estimated["special_files"], 2);
    let stderr =
        fails(at, &["estimate", "-q", "missing", "tree"], 3, &["cannot estimate 'missing'"]);
    assert_eq!(stderr.lines().count(), 1);
    fails(at, &["estimate", "missing"], 3, &["cannot estimate 'missing'"]);
    fails(at, &["estimate", "tree/good/x"], 4, &["cannot estimate 'tree/good/x'"]);
    if !rustix::process::getuid().is_root() {
        return;
    }
    let program = at.join("hardpack");
    copy_program(&program);
    for (path, mode) in [(at, 0o755), (&tree.join("closed"), 0o700), (&tree.join("secret"), 0o600)]
    {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let mut command = std::process::Command::new(&program);
    command.current_dir(at).args(["estimate", "--json", "-q", "tree"]).uid(65_534).gid(65_534);
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    for path in ["tree/closed", "tree/secret"] {
        assert!(stderr.contains(&format!("cannot read '{path}': Permission denied")), "{stderr}");
    }
    let estimated: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&estimated["failed"], &estimated["bytes"]), (&2.into(), &100_000.into()));
}

#[test]
fn a_signal_ends_it() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    for n in 0..20 {
        fs::write(at.join(format!("{n}")), text(2 << 20, n)).unwrap();
    }
    let mut command = std::process::Command::new("env");
    command.arg("--default-signal=INT").arg(assert_cmd::cargo::cargo_bin!("hardpack"));
    command.args(["estimate", "--compression", "zstd-22,zstd-21", "--chart", "c.svg", "."]);
    command.current_dir(at).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.env("HARDPACK_PROGRESS", "json").spawn().unwrap();
    // Two minutes would pass without the signal. It is sent once it is blocked, and so answered.
    let status = format!("/proc/{}/status", child.id());
    let is_blocked = |line: &str| {
        let bits = line.strip_prefix("SigBlk:").map(str::trim);
        bits.is_some_and(|bits| u64::from_str_radix(bits, 16).unwrap() & 2 != 0)
    };
    while !fs::read_to_string(&status).unwrap().lines().any(is_blocked) {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(130), &b""[..]));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("interrupted") && stderr.contains("nothing unfinished"), "{stderr}");
    assert!(!at.join("c.svg").exists());
}

#[test]
fn damaged_pools_and_their_parts_are_refused() {
    let (_directory, at) = super::common::packed();
    fails(&at, &["estimate", "a.db.hpk/nothing"], 3, &["cannot estimate 'a.db.hpk/nothing'"]);
    fails(&at, &["estimate", "a.db.hpk@never"], 3, &["cannot estimate 'a.db.hpk@never'"]);
    // Below a directory, a pool is a file.
    let pool = fs::read(at.join("a.db.hpk")).unwrap();
    fs::create_dir(at.join("d")).unwrap();
    fs::write(at.join("d/p.hpk"), &pool).unwrap();
    assert_eq!(estimate(&at, &["d"])["bytes"], pool.len());
    assert!(estimate(&at, &["d/p.hpk"])["bytes"].as_u64().unwrap() > pool.len() as u64);
    // A pattern, which the shell cannot expand.
    assert_eq!(estimate(&at, &["a.db.hpk/*.db"])["files"], 1);
    let mut damaged = pool;
    let len = damaged.len();
    damaged[2048..len].fill(0x5a);
    fs::write(at.join("bad.hpk"), damaged).unwrap();
    let stderr = stderr_of(hardpack().current_dir(&at).args(["estimate", "bad.hpk"]), 1);
    assert!(stderr.contains("cannot estimate 'bad.hpk'"), "{stderr}");
}

/// Of a file that is damaged in the middle, the part before that is counted, in all figures alike.
#[test]
fn a_file_that_cannot_be_read_further_counts_up_to_there() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    fs::create_dir(at.join("d")).unwrap();
    fs::write(at.join("d/damaged"), random_bytes(8 << 20, 1)).unwrap();
    succeeds(at, &["put", "-q", "d", "p.hpk"]);
    let mut pool = fs::read(at.join("p.hpk")).unwrap();
    let middle = pool.len() / 4 * 3;
    pool[middle..middle + 200_000].fill(0x5a);
    fs::write(at.join("p.hpk"), pool).unwrap();
    let json = |arguments: &[&str]| -> serde_json::Value {
        let mut command = hardpack();
        command.current_dir(at).args(["estimate", "-q", "--json"]).args(arguments).arg("p.hpk");
        let output = command.output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let all = json(&[]);
    assert_eq!((&all["files"], &all["failed"]), (&0.into(), &1.into()));
    let len = all["bytes"].as_u64().unwrap();
    assert!((4 << 20..8 << 20).contains(&len), "{len}");
    for blocks in all["blocks"].as_array().unwrap() {
        assert_eq!(blocks["logical_bytes"]["value"].as_u64(), Some(len), "{}", blocks["name"]);
    }
    let mut met = 0;
    for seed in 0..8 {
        let sample = json(&["--sample", "50%", "--seed", &seed.to_string()]);
        met += sample["failed"].as_u64().unwrap();
        let (of, read) = (&sample["sample"]["of_bytes"], &sample["sample"]["read_bytes"]);
        assert!(read.as_u64() <= of.as_u64(), "{read} of {of}");
    }
    assert!(met > 0, "no sample meets the damage");
}
