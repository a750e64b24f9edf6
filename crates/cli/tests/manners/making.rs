//! Where commands put what they make: pools, properties, unpacked files, snapshots in short form.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use crate::common::*;

fn run(directory: &Path, arguments: &[&str]) -> assert_cmd::assert::Assert {
    hardpack().current_dir(directory).args(arguments).assert()
}

/// The local value of a property, if it has one.
fn local(directory: &Path, property: &str, path: &str) -> Option<String> {
    let line = succeeds(directory, &["get", "-H", property, path]);
    let fields: Vec<&str> = line.trim_end().split('\t').collect();
    (fields[3] == "local").then(|| fields[2].to_owned())
}

#[test]
fn unpack_puts_a_file_into_a_directory() {
    let (_directory, at) = packed();
    for name in ["one", "two"] {
        fs::create_dir(at.join(name)).unwrap();
    }
    succeeds(&at, &["unpack", "-q", "a.db.hpk", "one/"]);
    succeeds(&at, &["unpack", "-q", "a.db.hpk", "two"]);
    for name in ["one/a.db", "two/a.db"] {
        assert_same(&at.join("a.db"), &at.join(name));
    }
    fails(&at, &["unpack", "-q", "a.db.hpk", "one"], 3, &["'one/a.db': it already exists"]);
    fails(&at, &["unpack", "-q", "a.db.hpk", "none/"], 3, &["'none' does not exist"]);
}

#[test]
fn a_dash_is_standard_input_and_output() {
    let (_directory, at) = packed();
    let content = fs::read(at.join("a.db")).unwrap();
    let done = run(&at, &["unpack", "a.db.hpk", "-"]).success().stderr("");
    assert!(done.get_output().stdout == content);
    assert!(!at.join("-").exists());
    fails(&at, &["unpack", "--json", "a.db.hpk", "-"], 2, &["--json"]);

    let mut command = hardpack();
    command.current_dir(&at).args(["pack", "-q", "-", "new.db.hpk"]).write_stdin(content.clone());
    command.assert().success();
    assert!(succeeds(&at, &["ls", "new.db.hpk"]) == "new.db\n");
    succeeds(&at, &["check", "-q", "new.db.hpk"]);
    assert_eq!(succeeds(&at, &["sql", "new.db.hpk", "SELECT count(*) FROM t"]), "2000\n");
    succeeds(&at, &["unpack", "-q", "new.db.hpk", "back"]);
    assert_same(&at.join("a.db"), &at.join("back"));
    fails(&at, &["pack", "-"], 2, &["name the pool to create"]);
    fails(&at, &["pack", "-", "--in-place"], 2, &["name the pool to create"]);
    fails(&at, &["pack", "-", "new.db.hpk"], 3, &["it already exists"]);
}

/// The file is again as it was, in its place, with its owner, mode and extended attributes.
#[test]
fn unpack_in_place_undoes_pack_in_place() {
    let (_directory, at) = packed();
    fs::remove_file(at.join("a.db.hpk")).unwrap();
    let path = at.join("a.db");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let has_xattrs =
        rustix::fs::setxattr(&path, "user.note", b"kept", rustix::fs::XattrFlags::empty()).is_ok();
    let (content, before) = (fs::read(&path).unwrap(), fs::metadata(&path).unwrap());
    succeeds(&at, &["pack", "-q", "--in-place", "a.db"]);
    assert!(fs::read(&path).unwrap() != content);
    succeeds(&at, &["unpack", "-q", "--in-place", "a.db"]);
    assert!(fs::read(&path).unwrap() == content);
    let now = fs::metadata(&path).unwrap();
    let facts = |m: &fs::Metadata| (m.mode(), m.uid(), m.gid(), m.mtime(), m.mtime_nsec());
    assert_eq!(facts(&now), facts(&before));
    if has_xattrs {
        let mut value = [0; 16];
        let n = rustix::fs::getxattr(&path, "user.note", &mut value).unwrap();
        assert_eq!(&value[..n], b"kept");
    }
    assert_eq!(names_beside(&path), ["a.db"]);
}

/// Transactions in a log are part of the file, and no log is left that would be applied to it.
#[test]
fn unpack_in_place_includes_the_log() {
    let (_directory, at) = packed();
    let pool = at.join("a.db.hpk");
    succeeds(&at, &["sql", "a.db.hpk", "PRAGMA journal_mode = wal"]);
    let mut session = Session::open(&pool);
    session.run("INSERT INTO t(b) VALUES ('in the log')");
    fails(&at, &["unpack", "--in-place", "a.db.hpk"], 5, &["is in use by"]);
    session.kill();
    assert!(at.join("a.db.hpk-wal").exists());
    succeeds(&at, &["unpack", "-q", "--in-place", "a.db.hpk"]);
    assert_eq!(names_beside(&pool), ["a.db", "a.db.hpk"]);
    assert_eq!(count_rows(&pool), 2001);
}

#[test]
fn unpack_in_place_loses_nothing() {
    let (_directory, at) = packed();
    let content = || fs::read(at.join("a.db.hpk")).unwrap();
    succeeds(&at, &["snapshot", "a.db.hpk@monday"]);
    let before = content();
    fails(&at, &["unpack", "--in-place", "a.db.hpk"], 3, &["a snapshot, which would be lost"]);
    assert!(content() == before);
    succeeds(&at, &["destroy", "a.db.hpk@monday"]);
    fs::hard_link(at.join("a.db.hpk"), at.join("other")).unwrap();
    fails(&at, &["unpack", "--in-place", "a.db.hpk"], 3, &["it has other names"]);
    fs::remove_file(at.join("other")).unwrap();
    fails(&at, &["unpack", "--in-place", "a.db.hpk/a.db"], 3, &["only a whole pool"]);
    fails(&at, &["unpack", "--in-place", "a.db.hpk", "x"], 2, &["--in-place"]);
    fails(&at, &["unpack", "--in-place", "--rewind", "3", "a.db.hpk"], 2, &["--in-place"]);
    succeeds(&at, &["put", "-q", "a.db", "a.db.hpk/second"]);
    fails(&at, &["unpack", "--in-place", "a.db.hpk"], 3, &["other files, which would be lost"]);
    assert_eq!(names_beside(&at.join("a.db")), ["a.db", "a.db.hpk"]);
}

/// Behind a snapshot, `@NAME` means another one of the same file or pool, as with `send -i`.
#[test]
fn snapshots_have_a_short_form() {
    let (_directory, at) = packed();
    succeeds(&at, &["snapshot", "a.db.hpk@a", "@b"]);
    succeeds(&at, &["sql", "a.db.hpk", "UPDATE t SET b = 'new'"]);
    succeeds(&at, &["snapshot", "a.db.hpk@c"]);
    assert_eq!(succeeds(&at, &["diff", "a.db.hpk@a", "@b"]), "");
    let expected = succeeds(&at, &["diff", "a.db.hpk@b", "a.db.hpk@c"]);
    assert_eq!(expected, "M  a.db\n");
    assert_eq!(succeeds(&at, &["diff", "a.db.hpk@b", "@c"]), expected);
    // As it is now.
    assert_eq!(succeeds(&at, &["diff", "a.db.hpk@b", "a.db.hpk"]), expected);
    assert_eq!(succeeds(&at, &["diff", "a.db.hpk@c", "a.db.hpk"]), "");
    fails(&at, &["diff", "a.db.hpk@b", "a.db.hpk/a.db"], 3, &["of the same file or directory"]);
    fails(&at, &["diff", "a.db.hpk@b", "a.db.hpk/none"], 3, &["no such file"]);
    fails(&at, &["diff", "a.db.hpk@a", "@none"], 3, &["no such file or snapshot: none"]);
    succeeds(&at, &["snapshot", "a.db.hpk/a.db@x", "@y"]);
    assert_eq!(succeeds(&at, &["list", "-H", "--quick", "a.db.hpk"]).lines().count(), 6);
    succeeds(&at, &["destroy", "a.db.hpk@a", "@b", "@c", "a.db.hpk/a.db@x", "@y"]);
    assert_eq!(succeeds(&at, &["list", "-H", "--quick", "a.db.hpk"]).lines().count(), 1);
    fails(&at, &["snapshot", "@a"], 3, &["there is no pool"]);
}

fn send(at: &Path, snapshot: &str) -> Vec<u8> {
    run(at, &["send", "-q", snapshot]).success().get_output().stdout.clone()
}

fn receive(at: &Path, arguments: &[&str], stream: &[u8]) -> assert_cmd::assert::Assert {
    let mut command = hardpack();
    command.current_dir(at).args(["receive", "-q"]).args(arguments);
    command.write_stdin(stream.to_vec()).assert()
}

#[test]
fn receive_creates_its_pool() {
    let (_directory, at) = packed();
    succeeds(&at, &["snapshot", "a.db.hpk/a.db@s"]);
    let stream = send(&at, "a.db.hpk/a.db@s");
    receive(&at, &["new.hpk/dir/b.db"], &stream).success();
    assert_eq!(succeeds(&at, &["sql", "new.hpk/dir/b.db", "SELECT count(*) FROM t"]), "2000\n");
    succeeds(&at, &["check", "-q", "new.hpk"]);
    // A pool that exists is not changed for a directory that may be mistyped.
    receive(&at, &["new.hpk/dri/b.db"], &stream).code(3);

    // Without a stream there is no pool.
    let names = names_beside(&at.join("a.db"));
    receive(&at, &["other.hpk/b"], b"").code(1);
    receive(&at, &["other.hpk/b"], b"no stream").code(1);
    receive(&at, &["other.hpk"], &stream).code(3);
    receive(&at, &["nodir/other.hpk/b"], &stream[..100]).code(1);
    receive(&at, &["--resume-token", "other.hpk/b"], b"").code(3);
    receive(&at, &["--abort", "other.hpk/b"], b"").code(3);
    assert_eq!(names_beside(&at.join("a.db")), names);
}

/// What has arrived of a cut stream is kept, in a new pool too.
#[test]
fn a_cut_stream_is_kept_in_a_new_pool() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    fs::write(at.join("long"), random_bytes(40 << 20, 7)).unwrap();
    succeeds(at, &["put", "-q", "long", "p.hpk"]);
    succeeds(at, &["snapshot", "p.hpk/long@s"]);
    let stream = send(at, "p.hpk/long@s");
    receive(at, &["new.hpk/x"], &stream[..stream.len() - (1 << 20)]).code(1);
    let token = succeeds(at, &["receive", "--resume-token", "new.hpk/x"]);
    let rest = run(at, &["send", "-q", "--resume", token.trim(), "p.hpk/long@s"]).success();
    receive(at, &["new.hpk/x"], &rest.get_output().stdout).success();
    succeeds(at, &["extract", "-q", "new.hpk/x", "back"]);
    assert_same(&at.join("long"), &at.join("back"));
}

#[test]
fn properties_are_set_wherever_something_is_made() {
    let (_directory, at) = packed();
    let is = |property: &str, path: &str, value: &str| {
        assert_eq!(local(&at, property, path).as_deref(), Some(value), "{path}");
    };
    let option = ["-o", "compression=zstd-7"];
    let with = |before: &[&str], after: &[&str]| {
        succeeds(&at, &[before, &option, after].concat());
    };
    with(&["pack", "-q", "-o", "recordsize=8K"], &["a.db", "b.hpk"]);
    is("compression", "b.hpk", "zstd-7");
    is("recordsize", "b.hpk", "8K");
    with(&["create"], &["m.hpk"]);
    is("compression", "m.hpk", "zstd-7");
    with(&["mkdir", "-p"], &["m.hpk/some/dir"]);
    is("compression", "m.hpk/some/dir", "zstd-7");
    assert_eq!(local(&at, "compression", "m.hpk/some"), None);
    fs::create_dir(at.join("tree")).unwrap();
    fs::write(at.join("tree/file"), vec![b'a'; 100_000]).unwrap();
    with(&["put", "-q"], &["tree", "n.hpk"]);
    is("compression", "n.hpk", "zstd-7");
    with(&["put", "-q"], &["tree", "m.hpk"]);
    is("compression", "m.hpk/tree", "zstd-7");
    with(&["put", "-q"], &["tree/", "m.hpk/new"]);
    is("compression", "m.hpk/new", "zstd-7");
    assert_eq!(local(&at, "compression", "m.hpk/new/file"), None);
    with(&["clone"], &["m.hpk/tree", "m.hpk/copy"]);
    is("compression", "m.hpk/copy", "zstd-7");
    succeeds(&at, &["snapshot", "m.hpk/tree@s"]);
    let stream = send(&at, "m.hpk/tree@s");
    receive(&at, &["-o", "compression=gzip-3", "r.hpk/tree"], &stream).success();
    is("compression", "r.hpk/tree", "gzip-3");
    // The properties came with the stream, so the next one finds it as that left it.
    fs::write(at.join("tree/more"), "more").unwrap();
    succeeds(&at, &["put", "-q", "tree/more", "m.hpk/tree"]);
    succeeds(&at, &["snapshot", "m.hpk/tree@t"]);
    let sent = hardpack().current_dir(&at).args(["send", "-i", "@s", "m.hpk/tree@t"]).output();
    receive(&at, &["r.hpk/tree"], &sent.unwrap().stdout).success();
    is("compression", "r.hpk/tree", "gzip-3");
    // Nothing is made if its properties cannot be set.
    let wrong = ["-o", "dedup-memory=1M"];
    let words = ["only be set for the whole pool"];
    fails(&at, &[&["mkdir"], &wrong[..], &["m.hpk/x"]].concat(), 3, &words);
    fails(&at, &[&["clone"], &wrong[..], &["m.hpk/tree", "m.hpk/x"]].concat(), 3, &words);
    fails(&at, &[&["clone"], &wrong[..], &["m.hpk/tree@s", "m.hpk/x"]].concat(), 3, &words);
    receive(&at, &["-o", "dedup-memory=1M", "m.hpk/x"], &stream).code(3);
    fails(&at, &["stat", "m.hpk/x"], 3, &["no such"]);
    // What is there already is not changed by the way.
    for target in ["m.hpk", "m.hpk/tree/"] {
        let source = if target == "m.hpk" { "tree" } else { "tree/" };
        let arguments = ["put", "-o", "compression=lz4", source, target];
        fails(&at, &arguments, 3, &["hint: 'hardpack set' sets those of an existing one"]);
    }
    is("compression", "m.hpk/tree", "zstd-7");
    fails(&at, &["mkdir", "-o", "colour=red", "m.hpk/x"], 2, &["colour"]);
}

/// The copy of a database keeps no bytes that SQLite never reads, whichever way that is asked for.
#[test]
fn pack_clears_by_property_as_by_flag() {
    let (_directory, at) = packed();
    let db = rusqlite::Connection::open(at.join("a.db")).unwrap();
    db.execute_batch("PRAGMA secure_delete = OFF; DELETE FROM t WHERE a > 100").unwrap();
    drop(db);
    succeeds(&at, &["pack", "-q", "--clear-unused", "a.db", "one.hpk"]);
    succeeds(&at, &["pack", "-q", "-o", "clear-unused=on", "a.db", "two.hpk"]);
    let content = |pool| run(&at, &["unpack", pool, "-"]).success().get_output().stdout.clone();
    assert!(content("one.hpk") == content("two.hpk"));
    assert!(content("one.hpk") != fs::read(at.join("a.db")).unwrap());
}

/// Whoever comes a moment later puts its files into the pool that somebody else has just made.
#[test]
fn of_several_that_make_a_pool_at_once_all_succeed() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    fs::write(at.join("text"), "text").unwrap();
    succeeds(at, &["put", "-q", "text", "from.hpk/d/text"]);
    succeeds(at, &["snapshot", "from.hpk/d@s"]);
    let stream = send(at, "from.hpk/d@s");
    for round in 0..20 {
        let pool = format!("{round}.hpk");
        std::thread::scope(|scope| {
            for name in ["a", "b"] {
                let (pool, stream) = (&pool, &stream);
                scope.spawn(move || {
                    succeeds(at, &["put", "-q", "text", &format!("{pool}/{name}/text")]);
                });
                scope.spawn(move || {
                    receive(at, &[&format!("{pool}/{name}{name}")], stream).success();
                });
            }
        });
        for name in ["a", "b", "aa", "bb"] {
            assert_eq!(succeeds(at, &["cat", &format!("{pool}/{name}/text")]), "text");
        }
    }
}
