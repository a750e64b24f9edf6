//! Wrong uses: nothing is created or replaced that the user did not mean, and the message says what
//! to do.

use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::Path;
use std::sync::Arc;

use hardpack_engine::device::FileDevice;
use hardpack_engine::pool::{Options, Pool};
use hardpack_engine::store::checksum::ChecksumKind;

use crate::common::{
    directory_with, hardpack, json_of, make_database, names_beside, pack, stderr_of, stdout_of,
};

fn make_fifo(path: &Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn missing_sources_do_not_keep_the_rest_out() {
    let (directory, path) = directory_with("there", b"content");
    let at = directory.path();
    let pool = at.join("some.hpk");
    let missing = at.join("MISSING");
    let stderr = stderr_of(hardpack().arg("put").args([&missing, &path]).arg(&pool), 3);
    let expected = format!("hardpack: cannot put '{}': No such file", missing.display());
    assert!(stderr.contains(&expected), "{stderr}");
    assert_eq!(stdout_of(hardpack().arg("cat").arg(pool.join("there"))), "content");
    // The same for streams.
    let tar = at.join("one.tar");
    let made = std::process::Command::new("tar")
        .args(["-cf", tar.to_str().unwrap(), "-C", at.to_str().unwrap(), "there"])
        .status();
    assert!(made.unwrap().success());
    let streamed = at.join("streamed.hpk");
    let args = ["put", "--tar"];
    stderr_of(hardpack().args(args).args([&missing, &tar]).arg(&streamed), 3);
    assert_eq!(stdout_of(hardpack().arg("cat").arg(streamed.join("there"))), "content");
}

#[test]
fn a_put_of_nothing_makes_no_pool() {
    let (directory, path) = directory_with("pipe-beside", b"");
    let at = directory.path();
    let pool = at.join("new.hpk");
    let (one, two) = (at.join("MISSING"), at.join("MISSING2"));
    for args in [&["put"][..], &["put", "--tar"], &["put", "--json"]] {
        let stderr = stderr_of(hardpack().args(args).args([&one, &two]).arg(&pool), 3);
        assert_eq!(stderr.matches("No such file or directory").count(), 2, "{stderr}");
        assert_eq!(names_beside(&path), ["pipe-beside"], "{args:?}");
    }
    let json = hardpack().args(["put", "--json"]).arg(&one).arg(&pool).assert().code(3);
    let json: serde_json::Value = serde_json::from_slice(&json.get_output().stdout).unwrap();
    assert_eq!((&json["failed"], &json["files"]), (&1.into(), &0.into()));
    // A source that exists but turns out to be no stream.
    fs::write(at.join("no.tar"), [b'x'; 2048]).unwrap();
    let failed = hardpack().args(["put", "--tar"]).arg(at.join("no.tar")).arg(&pool).assert();
    assert_ne!(failed.get_output().status.code(), Some(0));
    assert!(!pool.exists());
    // A pool that was there before stays, even if it is empty.
    hardpack().arg("create").arg(&pool).assert().success();
    hardpack().arg("put").arg(&one).arg(&pool).assert().code(3);
    assert_eq!(stdout_of(hardpack().arg("ls").arg(&pool)), "");
}

#[test]
fn a_mistyped_directory_becomes_no_pool() {
    let (directory, path) = directory_with("file", b"content");
    let target = directory.path().join("typodir/backup.hpk");
    for args in [&["put"][..], &["put", "--dry-run"], &["put", "--tar"]] {
        let stderr = stderr_of(hardpack().args(args).arg(&path).arg(&target), 3);
        assert!(stderr.contains("typodir': there is no such directory or pool"), "{stderr}");
        assert!(stderr.contains("hint: 'mkdir "), "{stderr}");
        assert_eq!(names_beside(&path), ["file"]);
    }
    // A name that says what it is may have a path, and any name may be the pool itself.
    for (target, in_it) in [("new.hpk/dir/", "new.hpk/dir/file"), ("archive", "archive/file")] {
        let at = |name: &str| format!("{}/{name}", directory.path().display());
        hardpack().args(["put", "-q"]).arg(&path).arg(at(target)).assert().success();
        assert_eq!(stdout_of(hardpack().arg("cat").arg(at(in_it))), "content");
    }
}

/// `--force` replaces regular files only.
#[test]
fn links_pipes_and_devices_are_not_replaced() {
    let (directory, path) = directory_with("data", b"content");
    let at = directory.path();
    let pool = pack(&path);
    make_fifo(&at.join("pipe"));
    let other = at.join("other");
    fs::write(&other, b"other").unwrap();
    symlink(&other, at.join("link")).unwrap();
    symlink("nowhere", at.join("dangling")).unwrap();
    for (name, what, hint) in [
        ("pipe", "it is a pipe", "name a file to create"),
        ("link", "it is a symbolic link", "name the file that it leads to, '"),
        ("dangling", "it is a symbolic link", "name a file to create"),
        ("/dev/stdout", "it is a symbolic link", "'hardpack cat' writes"),
        ("/dev/null", "it is a device", "name a file to create"),
    ] {
        let target = at.join(name);
        for force in [&[][..], &["--force"]] {
            for (command, source) in
                [("pack", &path), ("unpack", &pool), ("salvage", &pool), ("extract", &pool)]
            {
                let tar = if command == "extract" { &["--tar"][..] } else { &[] };
                let stderr = stderr_of(
                    hardpack().arg(command).args(force).args(tar).arg(source).arg(&target),
                    3,
                );
                assert!(stderr.contains(what), "{command} {name}: {stderr}");
                assert!(stderr.contains(hint), "{command} {name}: {stderr}");
                assert!(!stderr.contains("--force"), "{command} {name}: {stderr}");
            }
        }
    }
    assert!(fs::metadata(at.join("pipe")).unwrap().file_type().is_fifo());
    assert_eq!(fs::read_link(at.join("link")).unwrap(), other);
    assert_eq!(fs::read_link(at.join("dangling")).unwrap(), Path::new("nowhere"));
    assert_eq!(fs::read(&other).unwrap(), b"other");
}

#[test]
fn extract_replaces_files_by_files_and_links_by_links() {
    let (directory, path) = directory_with("file", b"content");
    let at = directory.path();
    symlink("file", at.join("link")).unwrap();
    let pool = at.join("some.hpk");
    hardpack().args(["put", "-q"]).args([&path, &at.join("link")]).arg(&pool).assert().success();
    let out = at.join("out");
    let other = at.join("other");
    fs::write(&other, "other").unwrap();
    for force in ["--force", "--update"] {
        for make in [make_fifo as fn(&Path), |path| symlink("../other", path).unwrap()] {
            fs::create_dir(&out).unwrap();
            make(&out.join("file"));
            symlink("elsewhere", out.join("link")).unwrap();
            let stderr = stderr_of(hardpack().args(["extract", force]).arg(&pool).arg(&out), 3);
            assert!(stderr.contains("which is never replaced by a file"), "{stderr}");
            assert!(!fs::symlink_metadata(out.join("file")).unwrap().is_file());
            assert_eq!(fs::read_link(out.join("link")).unwrap(), Path::new("file"));
            assert_eq!(fs::read(&other).unwrap(), b"other");
            fs::remove_dir_all(&out).unwrap();
        }
    }
}

#[test]
fn a_pool_is_not_packed_in_place_again() {
    let (_directory, path) = directory_with("data.db", b"");
    make_database(&path, 4096, 10);
    let pool = pack(&path);
    let before = fs::read(&pool).unwrap();
    for args in [&["pack", "--in-place"][..], &["pack", "--in-place", "--force"]] {
        let stderr = stderr_of(hardpack().args(args).arg(&pool), 3);
        assert!(stderr.contains("it is a pool already\nhint: there is nothing"), "{stderr}");
    }
    assert!(fs::read(&pool).unwrap() == before);
}

#[test]
fn json_keeps_columns_with_equal_names() {
    let (_directory, path) = directory_with("data.db", b"");
    make_database(&path, 4096, 10);
    let pool = pack(&path);
    let rows = |sql: &str| json_of(hardpack().args(["sql", "--json"]).arg(&pool).arg(sql));
    let row = rows("SELECT 1 AS a, 2 AS a, 3 AS b, 4 AS a");
    assert_eq!(row.to_string(), r#"[{"a":1,"a:1":2,"b":3,"a:2":4}]"#);
    // A number that is taken is left out.
    let row = rows("SELECT 1 AS a, 2 AS a, 3 AS 'a:1'");
    assert_eq!(row.to_string(), r#"[{"a":1,"a:2":2,"a:1":3}]"#);
    let row = rows("SELECT x.a, y.a FROM t x JOIN t y ON y.a = x.a + 1 LIMIT 1");
    assert_eq!(row.to_string(), r#"[{"a":1,"a:1":2}]"#);
}

#[test]
fn sizes_may_be_in_gibibytes() {
    let (_directory, path) = directory_with("data", b"content");
    let pool = pack(&path);
    for (given, shown) in [
        ("dedup-memory=1G", "1024M"),
        ("dedup-memory=2GiB", "2048M"),
        ("background-io=1g", "1024M"),
    ] {
        hardpack().arg("set").arg(given).arg(&pool).assert().success();
        let name = given.split('=').next().unwrap();
        let value = stdout_of(hardpack().args(["get", "-Ho", "value", name]).arg(&pool));
        assert_eq!(value.trim(), shown);
    }
    for given in ["dedup-memory=3G", "dedup-memory=5G", "background-io=2G", "recordsize=1G"] {
        hardpack().arg("set").arg(given).arg(&pool).assert().code(2);
    }
    // The levels of zstd-fast are not all of 1 to 1000, and the help says which.
    let help = stdout_of(hardpack().args(["set", "--help"]));
    assert!(help.contains("zstd-fast[-1…10, -20…100 by tens, -500, -1000], lzma[-1…9]"), "{help}");
    hardpack().args(["set", "compression=zstd-fast-15"]).arg(&pool).assert().code(2);
    hardpack().args(["set", "compression=zstd-fast-20"]).arg(&pool).assert().success();
}

/// A pool to which another process writes all the time is in use, by the exit code too.
#[test]
fn a_busy_pool_is_in_use() {
    let (directory, path) = directory_with("data", b"content");
    let pool = directory.path().join("some.hpk");
    hardpack().args(["put", "-q"]).arg(&path).arg(&pool).assert().success();
    let device = Arc::new(FileDevice::open(&pool).unwrap());
    let held = Pool::open(device, Options::new(1 << 20)).unwrap();
    let txn = held.store().begin(ChecksumKind::default()).unwrap();
    let file = format!("{}/data", pool.display());
    let other = format!("{}/other", pool.display());
    let snapshot = format!("{}@now", pool.display());
    for args in [
        &["set", "compression=lz4", &file][..],
        &["mkdir", &other],
        &["mv", &file, &other],
        &["rm", &file],
        &["snapshot", &snapshot],
    ] {
        let stderr = stderr_of(hardpack().args(args), 5);
        assert!(stderr.contains("busy"), "{args:?}: {stderr}");
    }
    drop(txn);
    drop(held);
    hardpack().args(["mkdir", &other]).assert().success();
}
