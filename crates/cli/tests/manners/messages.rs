//! Commands do what their users meant, and their messages say what to do next.

use std::fs;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;

use crate::common::*;

/// Runs the command in `directory`, and returns its exit code and standard error.
fn run(directory: &Path, arguments: &[&str]) -> (i32, String) {
    let output = hardpack().current_dir(directory).args(arguments).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    (output.status.code().unwrap(), stderr)
}

#[test]
fn a_state_that_is_not_there_is_named() {
    let (_directory, at) = packed();
    let words = ["there is no state 4100", "hint: 'hardpack check --states' lists those there are"];
    fails(&at, &["unpack", "--rewind", "4100", "a.db.hpk", "b"], 3, &words);
    fails(&at, &["check", "--rewind", "4100", "a.db.hpk"], 3, &words);
    fails(&at, &["salvage", "--rewind", "4100", "a.db.hpk", "b"], 3, &words);
    fails(&at, &["rewind", "a.db.hpk", "4100"], 3, &words);
    assert_eq!(names_beside(&at.join("a.db")), ["a.db", "a.db.hpk"]);
}

#[test]
fn a_missing_directory_is_named() {
    let (_directory, at) = packed();
    let words = ["the directory 'nodir' does not exist"];
    fails(&at, &["pack", "a.db", "nodir/x.hpk"], 3, &words);
    fails(&at, &["create", "nodir/x.hpk"], 3, &words);
    fails(&at, &["unpack", "a.db.hpk", "nodir/x"], 3, &words);
    fails(&at, &["unpack", "a.db.hpk", "nodir/"], 3, &words);
    fails(&at, &["pack", "a.db", "a.db.hpk/x"], 3, &["existing pool", "hardpack put"]);
}

#[test]
fn a_missing_pool_is_named() {
    let (_directory, at) = packed();
    for address in ["nothere.hpk@x", "nothere.hpk/a@x"] {
        fails(&at, &["snapshot", address], 3, &["there is no pool 'nothere.hpk'"]);
    }
    fails(&at, &["snapshot", "a.db.hpk"], 3, &["it names no snapshot"]);
}

#[test]
fn a_lost_header_is_damage() {
    let (_directory, at) = packed();
    let path = at.join("a.db.hpk");
    let mut bytes = fs::read(&path).unwrap();
    bytes[..4096].fill(0);
    fs::write(&path, &bytes).unwrap();
    let words = ["it looks like a damaged pool", "hint: 'hardpack salvage a.db.hpk OUT'"];
    for command in [&["info"][..], &["check"], &["unpack"], &["set", "compression=lz4"], &["sql"]] {
        fails(&at, &[command, &["a.db.hpk"]].concat(), 1, &words);
    }
    // With all superblocks lost as well, only the name says what it was.
    bytes[..40960].fill(0);
    fs::write(&path, &bytes).unwrap();
    fails(&at, &["info", "a.db.hpk"], 4, &["not a Hardpack pool", "hardpack salvage a.db.hpk"]);
    fs::write(at.join("text"), "no pool").unwrap();
    let (code, stderr) = run(&at, &["info", "text"]);
    assert!(code == 4 && !stderr.contains("salvage"), "{stderr}");
}

/// It is not the pool that cannot be read then.
#[test]
fn a_full_standard_output_is_named() {
    let (_directory, at) = packed();
    for arguments in [&["ls", "a.db.hpk"][..], &["cat", "a.db.hpk"], &["info", "a.db.hpk"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin!("hardpack"));
        let output = command.current_dir(&at).args(arguments).stdout(full).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{arguments:?}: {stderr}");
        assert!(stderr.contains("cannot write to 'standard output'"), "{arguments:?}: {stderr}");
    }
}

/// Every command that writes says so, whether or not it would have found anything to do.
#[test]
fn a_pool_without_write_permission_is_read_only() {
    if !rustix::process::getuid().is_root() {
        return;
    }
    let (directory, at) = packed();
    let program = at.join("hardpack");
    copy_program(&program);
    use std::os::unix::fs::PermissionsExt;
    for (path, mode) in [(directory.path(), 0o777), (&at.join("a.db.hpk"), 0o444)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    for arguments in [
        &["set", "compression=lz4", "a.db.hpk"][..],
        &["inherit", "compression", "a.db.hpk"],
        &["snapshot", "a.db.hpk@x"],
        &["mkdir", "a.db.hpk/d"],
        &["rm", "a.db.hpk/a.db"],
        &["put", "a.db", "a.db.hpk"],
        &["fold", "a.db.hpk"],
        &["compact", "a.db.hpk"],
        &["repack", "--compression", "lz4", "a.db.hpk"],
        &["optimize", "a.db.hpk"],
        &["check", "--repair", "a.db.hpk"],
        &["rewind", "a.db.hpk", "1"],
    ] {
        let mut command = std::process::Command::new(&program);
        let output = command.current_dir(&at).args(arguments).uid(65_534).gid(65_534).output();
        let output = output.unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{arguments:?}: {stderr}");
        assert!(stderr.contains("the pool is read-only"), "{arguments:?}: {stderr}");
        assert!(stderr.contains("hint: it needs write permission"), "{arguments:?}: {stderr}");
    }
}

#[test]
fn a_database_in_use_is_named_with_its_process() {
    let (_directory, at) = packed();
    succeeds(&at, &["sql", "a.db.hpk", "PRAGMA journal_mode = wal"]);
    let mut session = Session::open(&at.join("a.db.hpk"));
    session.run("UPDATE t SET b = 'new' WHERE a < 100");
    let process = format!("(process {})", session.id());
    let words = ["has it open", &process];
    fs::create_dir(at.join("new")).unwrap();
    fs::write(at.join("new/a.db"), "another").unwrap();
    fails(&at, &["put", "-q", "new/a.db", "a.db.hpk/a.db"], 3, &words);
    let (code, stderr) = run(&at, &["rewind", "a.db.hpk", "1"]);
    assert!(code == 5 && stderr.contains(&process), "{stderr}");
    assert!(!stderr.contains("--in-place"), "{stderr}");
    session.run("BEGIN; SELECT count(*) FROM t");
    succeeds(&at, &["sql", "a.db.hpk", "UPDATE t SET b = 'newer' WHERE a < 100"]);
    fails(&at, &["unpack", "--in-place", "a.db.hpk"], 5, &[&process, "without --in-place"]);
    session.kill();
    // Without a process, the log itself is the reason.
    let words = ["part of it is still in a log or journal"];
    fails(&at, &["put", "-q", "new/a.db", "a.db.hpk/a.db"], 3, &words);
}

#[test]
fn errors_of_set_show_the_usage_of_set() {
    let (_directory, at) = packed();
    for wrong in [&["compression=zstd-99", "a.db.hpk"][..], &["compression", "a.db.hpk"]] {
        let usage = "Usage: hardpack set [OPTIONS] <PROPERTY=VALUE>";
        fails(&at, &[&["set"], wrong].concat(), 2, &[usage]);
    }
}

#[test]
fn new_metadata_is_called_so() {
    let (_directory, at) = packed();
    fs::create_dir(at.join("tree")).unwrap();
    fs::write(at.join("tree/a"), "one").unwrap();
    succeeds(&at, &["put", "tree", "m.hpk"]);
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(at.join("tree/a"), fs::Permissions::from_mode(0o600)).unwrap();
    let text = succeeds(&at, &["put", "tree", "m.hpk"]);
    assert!(text.contains("1 with new metadata"), "{text}");
}

#[test]
fn an_unknown_option_is_wrong_usage() {
    let (_directory, at) = packed();
    for command in ["check", "list", "stats", "info", "unpack", "rm", "fold", "compact"] {
        for option in ["--nonsense", "-Z"] {
            fails(&at, &[command, option, "a.db.hpk"], 2, &["unexpected argument", "Usage:"]);
        }
    }
    // In a group of letters, 'h' is not a request for help.
    for arguments in [["list", "-ph"], ["rm", "-rfh"], ["stats", "-ph"]] {
        let words = ["unexpected argument '-h' found in", "Usage: hardpack"];
        fails(&at, &[&arguments[..], &["a.db.hpk"]].concat(), 2, &words);
    }
    for arguments in [&["list", "-h"][..], &["list", "--help"], &["help", "list"], &["-h"]] {
        let text = succeeds(&at, arguments);
        assert!(text.contains("Usage:"), "{text}");
    }
}

#[test]
fn old_names_of_options_still_work() {
    let (_directory, at) = packed();
    for command in ["list", "stats", "info", "du"] {
        let expected = succeeds(&at, &[command, "--parsable", "a.db.hpk"]);
        assert_eq!(succeeds(&at, &[command, "-p", "a.db.hpk"]), expected);
        assert_eq!(succeeds(&at, &[command, "--exact", "a.db.hpk"]), expected);
    }
    succeeds(&at, &["check", "-q", "--rebuild-index", "a.db.hpk"]);
    succeeds(&at, &["pack", "-q", "--checksum", "blake3", "a.db", "b.hpk"]);
    assert!(succeeds(&at, &["get", "-H", "checksum", "b.hpk"]).contains("\tblake3\tlocal"));
    succeeds(&at, &["pack", "-q", "--checksum-kind", "sha256", "a.db", "c.hpk"]);
    assert!(succeeds(&at, &["get", "--scripted", "checksum", "c.hpk"]).contains("\tsha256\tlocal"));
    fs::write(at.join("one"), "old").unwrap();
    succeeds(&at, &["put", "-q", "one", "m.hpk"]);
    for option in ["-c", "--compare", "--checksum"] {
        assert!(succeeds(&at, &["put", option, "one", "m.hpk"]).contains("1 unchanged"));
    }
}

/// Fifty files fail for the same reason: a few are named, the others counted.
#[test]
fn equal_failures_are_counted() {
    let (_directory, at) = packed();
    fs::create_dir(at.join("tree")).unwrap();
    for number in 0..50 {
        fs::write(at.join(format!("tree/file{number}")), "content").unwrap();
    }
    succeeds(&at, &["put", "-q", "tree", "m.hpk"]);
    let (code, stderr) = run(&at, &["extract", "-q", "m.hpk/tree", "."]);
    assert_eq!(code, 3, "{stderr}");
    assert_eq!(stderr.lines().count(), 7, "{stderr}");
    assert_eq!(stderr.matches("hint: --force replaces files").count(), 1, "{stderr}");
    assert!(stderr.contains("hardpack: cannot extract 45 more: it already exists"), "{stderr}");
    for number in 0..30 {
        UnixListener::bind(at.join(format!("tree/socket{number}"))).unwrap();
    }
    succeeds(&at, &["put", "-q", "tree", "m.hpk"]);
    let (code, stderr) = run(&at, &["extract", "-q", "--tar", "m.hpk/tree", "out.tar"]);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(stderr.lines().count(), 6, "{stderr}");
    assert!(stderr.contains("note: skipped 25 more: tar has no entry for a socket"), "{stderr}");
}

/// In write-ahead log mode as well, and whether or not other programs use the pool.
#[test]
fn check_leaves_nothing_and_changes_nothing() {
    let (_directory, at) = packed();
    succeeds(&at, &["sql", "a.db.hpk", "PRAGMA journal_mode = wal"]);
    succeeds(&at, &["put", "-q", "a.db", "m.hpk/x.db"]);
    succeeds(&at, &["put", "-q", "a.db", "m.hpk/y.db"]);
    succeeds(&at, &["sql", "m.hpk/y.db", "PRAGMA journal_mode = wal"]);
    for pool in ["a.db.hpk", "m.hpk"] {
        let (before, names) = (fs::read(at.join(pool)).unwrap(), names_beside(&at.join(pool)));
        let text = succeeds(&at, &["check", pool]);
        assert!(text.contains("integrity_check"), "{text}");
        assert_eq!(names_beside(&at.join(pool)), names);
        assert!(fs::read(at.join(pool)).unwrap() == before, "{pool} changed");
    }
    // What another program needs stays.
    let mut session = Session::open(&at.join("a.db.hpk"));
    session.run("UPDATE t SET b = 'new' WHERE a = 1");
    succeeds(&at, &["check", "-q", "a.db.hpk"]);
    assert!(at.join("a.db.hpk-wal").exists() && at.join("a.db.hpk-shm").exists());
    assert_eq!(session.run("SELECT b FROM t WHERE a = 1"), ["new"]);
    // And what a killed one left is not moved into the pool.
    session.kill();
    let log = fs::read(at.join("a.db.hpk-wal")).unwrap();
    succeeds(&at, &["check", "-q", "a.db.hpk"]);
    assert!(fs::read(at.join("a.db.hpk-wal")).unwrap() == log);
    // Nor is a file left that was not there.
    fs::remove_file(at.join("a.db.hpk-shm")).unwrap();
    let names = names_beside(&at.join("a.db.hpk"));
    succeeds(&at, &["check", "-q", "a.db.hpk"]);
    assert_eq!(names_beside(&at.join("a.db.hpk")), names);
    assert_eq!(succeeds(&at, &["sql", "a.db.hpk", "SELECT b FROM t WHERE a = 1"]), "new\n");
}

#[test]
fn programs_get_progress_as_json() {
    let (_directory, at) = packed();
    let unpack = ["unpack", "a.db.hpk", "b.db"];
    let steps = progress_of(hardpack().current_dir(&at).args(unpack));
    let len = fs::metadata(at.join("a.db")).unwrap().len();
    let last = steps.last().unwrap();
    assert_eq!((&last["done"], &last["total"]), (&len.into(), &len.into()), "{steps:?}");
    let named = |name| steps.iter().any(|step| step["step"] == name);
    assert!(named("unpacking a.db") && named("verifying"), "{steps:?}");

    fs::create_dir(at.join("tree")).unwrap();
    fs::write(at.join("tree/file"), "12345").unwrap();
    let put = ["put", "tree", "many.hpk"];
    let step = &progress_of(hardpack().current_dir(&at).args(put))[0];
    assert_eq!((&step["files"], &step["done"]), (&1.into(), &5.into()));
}
