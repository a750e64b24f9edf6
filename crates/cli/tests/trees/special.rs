//! Fifos, sockets and device nodes in trees, tar streams and listings.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use crate::common::*;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

/// The numbers of a device that no driver has.
const MAJOR: u32 = 4000;
const MINOR: u32 = 70_000;

/// Makes a tree with every kind of special file, and devices if that is allowed. Returns whether
/// they are there.
fn make_tree(tree: &Path) -> bool {
    fs::create_dir_all(tree.join("sub")).unwrap();
    fs::write(tree.join("plain"), "plain").unwrap();
    assert!(Command::new("mkfifo").arg(tree.join("fifo")).status().unwrap().success());
    fs::set_permissions(tree.join("fifo"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::hard_link(tree.join("fifo"), tree.join("sub/second name")).unwrap();
    std::os::unix::net::UnixListener::bind(tree.join("sub/socket")).unwrap();
    let node = |name: &str, kind| {
        let mode = Mode::from_raw_mode(0o600);
        mknodat(CWD, tree.join(name), kind, mode, makedev(MAJOR, MINOR)).is_ok()
    };
    let has_devices = node("char", FileType::CharacterDevice);
    assert_eq!(node("sub/block", FileType::BlockDevice), has_devices);
    if !has_devices {
        println!("not tested with devices: they cannot be made here");
    }
    has_devices
}

fn assert_tree(tree: &Path, has_devices: bool, is_whole: bool) {
    let of = |name: &str| fs::symlink_metadata(tree.join(name)).unwrap();
    assert_eq!(fs::read(tree.join("plain")).unwrap(), b"plain");
    assert!(of("fifo").file_type().is_fifo());
    assert_eq!(of("fifo").mode() & 0o7777, 0o640);
    assert!(of("sub/second name").file_type().is_fifo());
    // Streams of tar have no sockets, and those of GNU tar no links between fifos.
    if is_whole {
        assert_eq!((of("fifo").ino(), of("fifo").nlink()), (of("sub/second name").ino(), 2));
        assert!(of("sub/socket").file_type().is_socket());
    }
    if has_devices {
        assert!(of("char").file_type().is_char_device());
        assert!(of("sub/block").file_type().is_block_device());
        let number = makedev(MAJOR, MINOR);
        assert_eq!((of("char").rdev(), of("sub/block").rdev()), (number, number));
        assert_eq!(of("char").mode() & 0o7777, 0o600);
    }
}

#[test]
fn special_files_of_a_tree_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let has_devices = make_tree(&at.join("tree"));
    let pool = at.join("p.hpk");
    let run = |arguments: &[&str]| stdout_of(hardpack().current_dir(at).args(arguments));
    let told = run(&["put", "tree", "p.hpk"]);
    let count = if has_devices { 4 } else { 2 };
    let expected = format!("1 file (5 B), {count} special files, 1 hard links");
    assert!(told.contains(&expected), "{told}");
    let told = run(&["put", "tree", "p.hpk"]);
    assert!(told.contains("0 files") && !told.contains("special"), "{told}");
    hardpack().args(["check", "-q"]).arg(&pool).assert().success().stdout("");

    let listed = run(&["ls", "-l", "p.hpk/tree"]);
    assert!(listed.lines().any(|line| line.starts_with("prw-r-----   2")), "{listed}");
    assert_eq!(
        run(&["find", "p.hpk", "--type", "p"]),
        "p.hpk/tree/fifo\np.hpk/tree/sub/second name\n"
    );
    assert_eq!(run(&["find", "p.hpk", "--type", "s"]), "p.hpk/tree/sub/socket\n");
    if has_devices {
        assert!(listed.contains(" 4000, 70000 "), "{listed}");
        let shown = run(&["stat", "--json", "p.hpk/tree/char"]);
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(shown["type"], "character device");
        assert_eq!(shown["device"], serde_json::json!({ "major": MAJOR, "minor": MINOR }));
        let info: serde_json::Value =
            serde_json::from_str(&run(&["info", "--json", "p.hpk"])).unwrap();
        assert_eq!(info["special_files"], 5);
    }
    let said = stderr_of(hardpack().current_dir(at).args(["cat", "p.hpk/tree/fifo"]), 3);
    assert!(said.contains("it is a fifo, which has no content"), "{said}");

    run(&["cp", "-r", "p.hpk/tree", "p.hpk/copy"]);
    run(&["create", "q.hpk"]);
    run(&["cp", "-r", "p.hpk/tree", "q.hpk"]);
    run(&["snapshot", "p.hpk@s"]);
    let sent = hardpack().current_dir(at).args(["send", "p.hpk@s"]).output().unwrap();
    assert!(sent.status.success());
    // The header says what an earlier version could not receive.
    assert_eq!(sent.stdout[12..16], [1, 0, 0, 0]);
    run(&["create", "r.hpk"]);
    let mut receive = hardpack();
    receive.current_dir(at).args(["receive", "-q", "r.hpk/got"]).write_stdin(sent.stdout);
    receive.assert().success();
    for from in ["p.hpk/tree", "p.hpk/copy", "q.hpk/tree", "r.hpk/got/tree"] {
        let out = at.join("out");
        run(&["extract", "-qT", from, "out"]);
        assert_tree(&out, has_devices, true);
        // Again, over what is there.
        let again = stderr_of(hardpack().current_dir(at).args(["extract", "-qT", from, "out"]), 3);
        assert!(again.contains("already exists"), "{again}");
        run(&["extract", "-qT", "--update", from, "out"]);
        assert_tree(&out, has_devices, true);
        fs::remove_dir_all(out).unwrap();
    }
}

#[test]
fn special_files_travel_through_tar() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let has_devices = make_tree(&at.join("tree"));
    let run = |arguments: &[&str]| stdout_of(hardpack().current_dir(at).args(arguments));
    let tool = |arguments: &[&str]| {
        assert!(Command::new("tar").current_dir(at).args(arguments).status().unwrap().success());
    };
    for format in ["gnu", "pax", "ustar"] {
        tool(&["-c", "--format", format, "-f", "in.tar", "-C", "tree", "."]);
        run(&["put", "-q", "--tar", "in.tar", "p.hpk"]);
        run(&["extract", "-q", "p.hpk", "out"]);
        assert_tree(&at.join("out"), has_devices, false);
        fs::remove_dir_all(at.join("out")).unwrap();
        fs::remove_file(at.join("p.hpk")).unwrap();
    }
    run(&["put", "-q", "tree/", "p.hpk/tree"]);
    let done = hardpack()
        .current_dir(at)
        .args(["extract", "-q", "--tar", "p.hpk/tree/", "out.tar"])
        .assert()
        .success();
    let said = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
    assert!(said.contains("skipped 'sub/socket': tar has no entry for a socket"), "{said}");
    fs::create_dir(at.join("out")).unwrap();
    tool(&["-x", "-f", "out.tar", "-C", "out"]);
    assert_tree(&at.join("out"), has_devices, false);
}

/// Nothing that exists is replaced without being asked, and a special file is no place to write to.
#[test]
fn what_is_there_is_spared() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    make_tree(&at.join("tree"));
    let run = |arguments: &[&str]| stdout_of(hardpack().current_dir(at).args(arguments));
    run(&["put", "-q", "tree/fifo", "p.hpk/fifo"]);
    run(&["put", "-q", "tree/plain", "p.hpk/plain"]);
    fs::create_dir(at.join("out")).unwrap();
    fs::write(at.join("out/fifo"), "mine").unwrap();
    assert!(Command::new("mkfifo").arg(at.join("out/plain")).status().unwrap().success());
    let said = stderr_of(hardpack().current_dir(at).args(["extract", "-q", "p.hpk", "out"]), 3);
    assert_eq!(said.matches("already exists").count(), 2, "{said}");
    let said = stderr_of(hardpack().current_dir(at).args(["extract", "-qf", "p.hpk", "out"]), 3);
    assert!(said.contains("never replaced by a file"), "{said}");
    assert!(fs::symlink_metadata(at.join("out/fifo")).unwrap().file_type().is_fifo());
    // A file takes the place of a special file in the pool, and the other way round.
    fs::remove_file(at.join("tree/fifo")).unwrap();
    fs::write(at.join("tree/fifo"), "now a file").unwrap();
    run(&["put", "-q", "tree/fifo", "p.hpk/fifo"]);
    assert_eq!(run(&["cat", "p.hpk/fifo"]), "now a file");
    fs::remove_file(at.join("tree/plain")).unwrap();
    assert!(Command::new("mkfifo").arg(at.join("tree/plain")).status().unwrap().success());
    run(&["put", "-q", "tree/plain", "p.hpk/plain"]);
    assert_eq!(run(&["find", "p.hpk", "--type", "p"]), "p.hpk/plain\n");
    hardpack().args(["check", "-q"]).arg(at.join("p.hpk")).assert().success().stdout("");
}

/// What nobody may read stays so: no permissions at all are not the same as unknown ones.
#[test]
fn files_without_any_permissions_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    fs::create_dir_all(at.join("tree/closed")).unwrap();
    fs::write(at.join("tree/shadow"), "secret").unwrap();
    let run = |arguments: &[&str]| stdout_of(hardpack().current_dir(at).args(arguments));
    run(&["put", "-q", "tree", "p.hpk"]);
    for name in ["shadow", "closed"] {
        run(&["chmod", "0", &format!("p.hpk/tree/{name}")]);
    }
    run(&["extract", "-q", "p.hpk", "out"]);
    run(&["extract", "-q", "p.hpk/tree/shadow", "alone"]);
    run(&["unpack", "-q", "p.hpk/tree/shadow", "unpacked"]);
    run(&["salvage", "-q", "p.hpk", "saved"]);
    for name in ["out/tree/shadow", "out/tree/closed", "alone", "unpacked", "saved/tree/shadow"] {
        let mode = fs::metadata(at.join(name)).unwrap().mode();
        assert_eq!(mode & 0o7777, 0, "{name}");
    }
}
