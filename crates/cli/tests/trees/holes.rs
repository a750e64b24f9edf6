//! Files that consist almost entirely of holes, too long to be read through. Commands that support
//! holes finish at once; the others refuse.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common::*;
use hardpack_engine::device::FileDevice;
use hardpack_engine::pool::{Attributes, Kind, Options, Pool, ROOT};
use hardpack_engine::store::Durability;

/// A length within the limits of every usual file system.
const LONG_LEN: u64 = 1 << 43;
/// The maximum length of a file in a pool.
const LONGEST_LEN: u64 = 1 << 60;

/// Makes a pool with a file of this length, which has some bytes at its beginning, in the middle
/// and near its end.
fn pool_with(len: u64) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("holes.hpk");
    hardpack().arg("create").arg(&path).assert().success();
    let device = Arc::new(FileDevice::open(&path).unwrap());
    let pool = Pool::open(device, Options::new(1 << 20)).unwrap();
    let like = Attributes::new(Kind::File, ROOT);
    let file = pool.edit(0, |edit| edit.create(ROOT, b"long", &like)).unwrap();
    let file = pool.file(file).unwrap();
    for at in [0, len / 2 + 5, len - 100_000] {
        file.write_at(b"here", at).unwrap();
    }
    file.set_len(len).unwrap();
    file.commit(Durability::Durable).unwrap();
    pool.close().unwrap();
    (directory, path)
}

fn assert_long(path: &Path, len: u64) {
    let file = fs::File::open(path).unwrap();
    let stat = file.metadata().unwrap();
    assert_eq!(stat.len(), len);
    assert!(stat.blocks() << 9 < 8 << 20, "{} blocks", stat.blocks());
    for at in [0, len / 2 + 5, len - 100_000] {
        let mut bytes = [1; 8];
        file.read_exact_at(&mut bytes, at).unwrap();
        assert_eq!(&bytes, b"here\0\0\0\0", "byte {at}");
    }
}

#[test]
fn holes_of_any_length_are_left_and_not_written() {
    let (directory, pool) = pool_with(LONG_LEN);
    let out = directory.path().join("out");
    let inside = with_ending(&pool, "/long");
    hardpack().args(["extract", "-q"]).args([&inside, &out]).assert().success();
    assert_long(&out, LONG_LEN);
    fs::remove_file(&out).unwrap();
    hardpack().args(["unpack", "-q"]).args([&inside, &out]).assert().success();
    assert_long(&out, LONG_LEN);
    fs::remove_file(&out).unwrap();
    let report = json_of(hardpack().args(["salvage", "-q", "--json"]).args([&pool, &out]));
    assert_eq!(report["ok"], true, "{report}");
    assert_eq!(report["files"][0]["right_bytes"], LONG_LEN);
    assert_long(&out, LONG_LEN);
    hardpack().args(["check", "-q"]).arg(&pool).assert().success();
}

#[test]
fn a_stream_of_more_zeros_than_anybody_takes_is_refused() {
    for len in [LONG_LEN, LONGEST_LEN] {
        let (directory, pool) = pool_with(len);
        let inside = with_ending(&pool, "/long");
        let tar = directory.path().join("out.tar");
        for arguments in [vec!["cat"], vec!["extract", "-q", "--tar", "-f"]] {
            let mut command = hardpack();
            command.args(&arguments).arg(&inside);
            if arguments.len() > 1 {
                command.arg(&tar);
            }
            // The data is not damaged.
            let done = command.assert().code(3);
            let stderr = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
            assert!(stderr.contains("mostly a hole"), "{arguments:?}: {stderr}");
        }
    }
}

/// A second `put` looks for changes, also where one side has a hole and the other has bytes.
#[test]
fn sparse_files_go_in_without_their_holes() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("long");
    let file = fs::File::create(&source).unwrap();
    for at in [0, LONG_LEN / 2 + 5, LONG_LEN - 100_000] {
        file.write_all_at(b"here", at).unwrap();
    }
    file.set_len(LONG_LEN).unwrap();
    let put = |pool: &Path| json_of(hardpack().args(["put", "-q", "--json"]).args([&source, pool]));
    for chunking in ["fixed", "cdc"] {
        let pool = directory.path().join(chunking);
        let property = format!("chunking={chunking}");
        hardpack().args(["create", "-o", &property]).arg(&pool).assert().success();
        let out = directory.path().join("out");
        let extract = || {
            let inside = with_ending(&pool, "/long");
            hardpack().args(["extract", "-q"]).args([&inside, &out]).assert().success();
        };
        assert_eq!(put(&pool)["files"], 1);
        assert_eq!(put(&pool)["unchanged"], 1);
        extract();
        assert_long(&out, LONG_LEN);
        fs::remove_file(&out).unwrap();
        // A new hole, and a byte in an old one.
        file.set_len(LONG_LEN / 2).unwrap();
        file.set_len(LONG_LEN).unwrap();
        file.write_all_at(b"there", LONG_LEN / 4).unwrap();
        assert_eq!(put(&pool)["files"], 1);
        extract();
        let copy = fs::File::open(&out).unwrap();
        for (at, expected) in
            [(0, "here\0"), (LONG_LEN / 4, "there"), (LONG_LEN / 2 + 5, "\0\0\0\0\0")]
        {
            let mut bytes = [1; 5];
            copy.read_exact_at(&mut bytes, at).unwrap();
            assert_eq!(bytes, expected.as_bytes(), "byte {at}");
        }
        fs::remove_file(&out).unwrap();
        // As it was, for the next pool.
        file.write_all_at(&[0; 5], LONG_LEN / 4).unwrap();
        assert_eq!(put(&pool)["files"], 1);
        for at in [LONG_LEN / 2 + 5, LONG_LEN - 100_000] {
            file.write_all_at(b"here", at).unwrap();
        }
        hardpack().args(["check", "-q"]).arg(&pool).assert().success();
    }
}

/// Whether or not the file system accepts the length, no command runs for ever.
#[test]
fn the_longest_file_is_written_or_refused_at_once() {
    let (directory, pool) = pool_with(LONGEST_LEN);
    let inside = with_ending(&pool, "/long");
    for (command, from) in [("extract", &inside), ("unpack", &inside), ("salvage", &pool)] {
        let out = directory.path().join(command);
        let done = hardpack().args([command, "-q"]).args([from, &out]).assert();
        let done = done.get_output();
        let stderr = String::from_utf8_lossy(&done.stderr);
        match done.status.success() {
            true => assert_long(&out, LONGEST_LEN),
            false => assert!(stderr.contains("it claims to be 1.00 EiB long"), "{stderr}"),
        }
    }
}

/// None of these commands walks through holes, which would take for ever.
#[test]
fn commands_about_the_longest_file_are_done_at_once() {
    let (directory, pool) = pool_with(LONGEST_LEN);
    let (inside, clone) = (with_ending(&pool, "/long"), with_ending(&pool, "/clone"));
    let (old, new) = (with_ending(&pool, "@old"), with_ending(&pool, "@new"));
    let run =
        |arguments: &[&str], paths: &[&Path]| stdout_of(hardpack().args(arguments).args(paths));
    run(&["snapshot"], &[&old]);
    run(&["clone"], &[&with_ending(&old, "/long"), &clone]);
    run(&["check", "-q"], &[&pool]);
    run(&["repack", "-q"], &[&pool]);
    run(&["fold", "-q"], &[&pool]);
    run(&["compact", "-q"], &[&pool]);
    set_len(&pool, 5000);
    run(&["snapshot"], &[&new]);
    // It was shortened, and then extended to the same length.
    let ranges = |arguments: &[&Path]| {
        let found = json_of(hardpack().args(["diff", "--json"]).args(arguments)).to_string();
        assert!(found.contains(&format!("[4096,{LONGEST_LEN}]")), "{found}");
    };
    ranges(&[&old, &new]);
    ranges(&[&old]);
    set_len(&pool, LONGEST_LEN);
    ranges(&[&new]);
    let sent = hardpack().args(["send", "-q"]).arg(&old).assert().success();
    let stream = sent.get_output().stdout.clone();
    let more = hardpack().args(["send", "-q", "-i"]).args([Path::new("@old"), &new]).assert();
    let more = more.success().get_output().stdout.clone();
    assert!(stream.len() + more.len() < 1 << 20, "{} and {}", stream.len(), more.len());
    let other = directory.path().join("other.hpk");
    run(&["create"], &[&other]);
    for stream in [stream, more] {
        let mut command = hardpack();
        command.args(["receive", "-q"]).arg(other.join("in")).write_stdin(stream);
        command.assert().success();
    }
    let copy = other.join("copy");
    run(&["cp"], &[&inside, &copy]);
    assert_eq!(json_of(hardpack().args(["stat", "--json"]).arg(&copy))["len"], LONGEST_LEN);
    run(&["rm"], &[&clone]);
    run(&["rollback"], &[&old]);
    run(&["check", "-q"], &[&pool]);
    assert_eq!(json_of(hardpack().args(["stat", "--json"]).arg(&inside))["len"], LONGEST_LEN);
}

fn set_len(pool: &Path, len: u64) {
    let pool =
        Pool::open(Arc::new(FileDevice::open(pool).unwrap()), Options::new(1 << 20)).unwrap();
    let file = pool.file(pool.resolve(b"long").unwrap().file).unwrap();
    file.set_len(len).unwrap();
    file.commit(Durability::Durable).unwrap();
    pool.close().unwrap();
}
