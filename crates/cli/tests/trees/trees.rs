//! Whole trees are stored in a pool and extracted unchanged, including odd files.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::tree::*;
use crate::common::*;
use rusqlite::Connection;
use rustix::fs::{XattrFlags, lsetxattr};
use tar::{Builder, EntryType, Header};
use tempfile::TempDir;

/// Makes a directory with all kinds of odd files.
fn nasty_tree() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let top = directory.path().join("tree");
    fs::create_dir(&top).unwrap();
    for name in [&b"new\nline"[..], b"\xff\xfe not UTF-8", b" ", b"-rf", "Größe".as_bytes(), b"a@b"]
    {
        fs::write(top.join(os(name)), name).unwrap();
    }
    fs::write(top.join("n".repeat(255)), "long").unwrap();
    fs::write(top.join("empty"), "").unwrap();
    fs::write(top.join("large"), random_bytes(20 << 20, 7)).unwrap();
    let holes = File::create(top.join("holes")).unwrap();
    holes.set_len(64 << 20).unwrap();
    holes.write_all_at(b"in the middle", 30 << 20).unwrap();
    fs::write(top.join("secret"), "for me alone").unwrap();
    fs::set_permissions(top.join("secret"), Permissions::from_mode(0o600)).unwrap();
    fs::write(top.join("sticky"), "").unwrap();
    fs::set_permissions(top.join("sticky"), Permissions::from_mode(0o4751)).unwrap();
    fs::hard_link(top.join("secret"), top.join("a second name")).unwrap();
    let mut deep = top.join("deep");
    for level in 0..60 {
        deep.push(format!("level {level}"));
    }
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("bottom"), "deep down").unwrap();
    fs::hard_link(top.join("secret"), deep.join("a third name")).unwrap();
    symlink("large", top.join("link")).unwrap();
    symlink("/nowhere/at/all", deep.join("dangling")).unwrap();
    symlink(os(b"\xff\n"), top.join("odd link")).unwrap();
    symlink("x".repeat(3000), top.join("long link")).unwrap();
    fs::create_dir(top.join("many")).unwrap();
    for i in 0..3000 {
        fs::write(top.join(format!("many/{i}")), format!("file {i}\n").repeat(i % 50)).unwrap();
    }
    fs::create_dir(top.join("nothing in it")).unwrap();
    let all: Vec<u8> = (0..=255).collect();
    // Not every file system supports them; then there is less to compare.
    let _ = lsetxattr(top.join("large"), "user.all bytes", &all, XattrFlags::empty());
    let _ = lsetxattr(top.join("many"), "user.of.a.directory", b"value", XattrFlags::empty());
    set_time(&top.join("empty"), 1);
    set_time(&top.join("secret"), 1_234_567_890_123_456_789);
    fs::set_permissions(top.join("nothing in it"), Permissions::from_mode(0o500)).unwrap();
    set_time(&top.join("many"), 987_654_321_987_654_321);
    (directory, top)
}

fn put(operands: &[&OsStr]) -> serde_json::Value {
    json_of(hardpack().args(["put", "-q", "--json"]).args(operands))
}

#[test]
fn what_comes_out_is_what_went_in() {
    let (directory, tree) = nasty_tree();
    let pool = directory.path().join("pool.hpk");
    let done = put(&[tree.as_os_str(), pool.as_os_str()]);
    assert_eq!(done["failed"], 0, "{done}");
    assert_eq!(done["hard_links"], 2, "{done}");
    hardpack().args(["check", "-q"]).arg(&pool).assert().success();

    let out = directory.path().join("out");
    hardpack().args(["extract", "-q"]).args([&pool, &out]).assert().success().stderr("");
    assert_same_trees(&tree, &out.join("tree"));
    let blocks = fs::metadata(out.join("tree/holes")).unwrap().blocks();
    assert!(blocks * 512 < 1 << 20, "holes are written: {blocks} blocks");

    // A directory is extracted under its name, or only its contents.
    let out = directory.path().join("out 2");
    hardpack().args(["extract", "-q"]).args([&pool.join("tree"), &out]).assert().success();
    assert_same_trees(&tree, &out.join("tree"));
    let out = directory.path().join("out 3");
    hardpack().args(["extract", "-qT"]).args([&pool.join("tree"), &out]).assert().success();
    assert_same_trees(&tree, &out);
    let out = directory.path().join("single");
    hardpack().args(["extract", "-q"]).args([&pool.join("tree/large"), &out]).assert().success();
    assert_same(&out, &tree.join("large"));
}

#[test]
fn what_has_not_changed_is_not_put_again() {
    let (directory, tree) = nasty_tree();
    let pool = directory.path().join("pool.hpk");
    let source = os(&[tree.as_os_str().as_bytes(), b"/"].concat()).to_owned();
    put(&[&source, pool.as_os_str()]);
    let before = fs::metadata(&pool).unwrap();
    let again = put(&[&source, pool.as_os_str()]);
    for (what, count) in [("files", 0), ("directories", 0), ("symlinks", 0), ("hard_links", 0)] {
        assert_eq!(again[what], count, "{again}");
    }
    assert_eq!(fs::metadata(&pool).unwrap().len(), before.len());

    fs::write(tree.join("many/7"), "another length").unwrap();
    fs::remove_file(tree.join("many/8")).unwrap();
    fs::set_permissions(tree.join("many/9"), Permissions::from_mode(0o640)).unwrap();
    fs::remove_file(tree.join("many/10")).unwrap();
    fs::create_dir(tree.join("many/10")).unwrap();
    fs::remove_file(tree.join("a second name")).unwrap();
    fs::write(tree.join("a second name"), "for me alone").unwrap();
    fs::remove_dir_all(tree.join("deep/level 0/level 1")).unwrap();
    // With the same length and time, only --checksum notices a change.
    let hidden = fs::metadata(tree.join("many/11")).unwrap();
    fs::write(tree.join("many/11"), "FILE 11\n".repeat(11)).unwrap();
    let file = File::open(tree.join("many/11")).unwrap();
    file.set_modified(hidden.modified().unwrap()).unwrap();

    let dry = json_of(
        hardpack().args(["put", "-nq", "--delete", "--json"]).args([&source, pool.as_os_str()]),
    );
    let done = json_of(
        hardpack().args(["put", "-q", "--delete", "--json"]).args([&source, pool.as_os_str()]),
    );
    for what in ["files", "removed", "unchanged", "directories"] {
        assert_eq!(dry[what], done[what], "{what}: {dry} and {done}");
    }
    // Of a file's three names, two are no longer linked, and one of these is removed.
    assert_eq!(done["files"], 3, "{done}");
    // The file with the changed mode, and the top directory.
    assert_eq!(done["described"], 2, "{done}");
    assert_eq!(done["removed"], 3, "{done}");
    let compared =
        json_of(hardpack().args(["put", "-qc", "--json"]).args([&source, pool.as_os_str()]));
    assert_eq!(compared["files"], 1, "{compared}");
    let out = directory.path().join("out");
    hardpack().args(["extract", "-q"]).args([&pool, &out]).assert().success();
    assert_same_trees(&tree, &out);
    hardpack().args(["check", "-q"]).arg(&pool).assert().success();

    // The other direction: unchanged files stay, different ones are replaced.
    fs::write(out.join("many/12"), "something else").unwrap();
    hardpack().args(["extract", "-q"]).args([&pool, &out]).assert().code(3);
    let updated = json_of(hardpack().args(["extract", "-qu", "--json"]).args([&pool, &out]));
    assert_eq!(updated["files"], 1, "{updated}");
    assert_same_trees(&tree, &out);
}

#[test]
fn gnu_tar_and_hardpack_understand_each_other() {
    let (directory, tree) = nasty_tree();
    let at = directory.path();
    let pool = at.join("pool.hpk");
    for (number, flags) in [
        &["--format=posix", "--xattrs"][..],
        &["--format=posix", "--sparse", "--xattrs"],
        &["--format=gnu", "--sparse"],
        &["--format=gnu"],
    ]
    .into_iter()
    .enumerate()
    {
        let mut tar = Command::new("tar")
            .args(flags)
            .arg("-C")
            .arg(at)
            .args(["-c", "tree"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let into = pool.join(format!("{number}"));
        let done = Command::new(assert_cmd::cargo::cargo_bin!("hardpack"))
            .args(["put", "-q", "--tar", "-"])
            .arg(&into)
            .stdin(tar.stdout.take().unwrap())
            .status()
            .unwrap();
        assert!(done.success() && tar.wait().unwrap().success(), "{flags:?}");
        let out = at.join(format!("out {number}"));
        hardpack().args(["extract", "-qT"]).args([&into, &out]).assert().success();
        if flags.contains(&"--xattrs") {
            assert_same_trees(&tree, &out.join("tree"));
        } else {
            // GNU's format stores whole seconds, and no extended attributes.
            let without = |path: &Path| {
                let names = listing(path).into_iter();
                names
                    .map(|(name, line)| (name, line.rsplit(' ').next().unwrap().to_owned()))
                    .collect::<Vec<_>>()
            };
            assert_eq!(without(&tree), without(&out.join("tree")), "{flags:?}");
        }
    }
    let stream = at.join("stream.tar");
    hardpack()
        .args(["extract", "-q", "--tar"])
        .args([&pool.join("0/tree"), &stream])
        .assert()
        .success();
    let out = at.join("out of tar");
    fs::create_dir(&out).unwrap();
    let tar = Command::new("tar")
        .args(["--xattrs", "--xattrs-include=*", "-xpf"])
        .arg(&stream)
        .arg("-C")
        .arg(&out)
        .output()
        .unwrap();
    assert!(tar.status.success(), "{}", String::from_utf8_lossy(&tar.stderr));
    assert_same_trees(&tree, &out.join("tree"));
    // A truncated stream is an error.
    let cut = fs::read(&stream).unwrap();
    fs::write(&stream, &cut[..cut.len() / 2]).unwrap();
    hardpack().args(["put", "-q", "--tar"]).args([&stream, &pool.join("cut")]).assert().code(1);
    hardpack().args(["check", "-q"]).arg(&pool).assert().success();
}

#[test]
fn a_database_in_use_goes_in_with_its_log() {
    let directory = tempfile::tempdir().unwrap();
    let tree = directory.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let path = tree.join("app.db");
    make_database(&path, 4096, 100);
    let db = Connection::open(&path).unwrap();
    db.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())).unwrap();
    db.execute_batch("PRAGMA wal_autocheckpoint = 0").unwrap();
    add_rows(&db, 50);
    assert!(fs::metadata(tree.join("app.db-wal")).unwrap().len() > 0);
    let pool = directory.path().join("pool.hpk");
    put(&[tree.as_os_str(), pool.as_os_str()]);
    let ls = stdout_of(hardpack().arg("ls").arg(pool.join("tree")));
    assert_eq!(ls, "app.db\n");
    let out = directory.path().join("out");
    hardpack().args(["extract", "-q"]).args([&pool, &out]).assert().success();
    assert_eq!(count_rows(&out.join("tree/app.db")), 150);
    // Changes that are only in the log do not affect the file's time.
    add_rows(&db, 5);
    put(&[tree.as_os_str(), pool.as_os_str()]);
    hardpack().args(["extract", "-qf"]).args([&pool, &out]).assert().success();
    assert_eq!(count_rows(&out.join("tree/app.db")), 155);
    let raw = pool.join("raw");
    hardpack().args(["put", "-q", "--raw"]).args([&tree, &raw]).assert().success();
    let ls = stdout_of(hardpack().arg("ls").arg(raw.join("tree")));
    assert_eq!(ls, "app.db\napp.db-shm\napp.db-wal\n");
}

#[test]
fn nothing_is_written_through_a_symbolic_link() {
    let (directory, file) = directory_with("file", b"content");
    let at = directory.path();
    let pool = at.join("pool.hpk");
    let tree = at.join("tree");
    fs::create_dir_all(tree.join("sub")).unwrap();
    fs::copy(&file, tree.join("sub/file")).unwrap();
    put(&[tree.as_os_str(), pool.as_os_str()]);
    let (out, elsewhere) = (at.join("out"), at.join("elsewhere"));
    fs::create_dir_all(out.join("tree")).unwrap();
    fs::create_dir(&elsewhere).unwrap();
    symlink(&elsewhere, out.join("tree/sub")).unwrap();
    let done = hardpack().args(["extract", "-qf"]).args([&pool, &out]).assert().code(3);
    let stderr = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
    assert!(stderr.contains("something else of that name"), "{stderr}");
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    // A link at the place of a file is neither followed nor replaced.
    fs::remove_file(out.join("tree/sub")).unwrap();
    fs::create_dir(out.join("tree/sub")).unwrap();
    fs::write(elsewhere.join("file"), "mine").unwrap();
    symlink(elsewhere.join("file"), out.join("tree/sub/file")).unwrap();
    let done = hardpack().args(["extract", "-qf"]).args([&pool, &out]).assert().code(3);
    let stderr = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
    assert!(stderr.contains("never replaced by a file"), "{stderr}");
    assert_eq!(fs::read(elsewhere.join("file")).unwrap(), b"mine");
    assert_eq!(fs::read_link(out.join("tree/sub/file")).unwrap(), elsewhere.join("file"));
}

#[test]
fn what_cannot_be_put_is_named_and_the_rest_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let tree = directory.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("good"), "good").unwrap();
    let pool = tree.join("pool.hpk");
    let done = hardpack().args(["put", "-q"]).args([&tree, &pool]).assert().success();
    let stderr = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
    assert!(
        stderr.contains("note: skipped '") && stderr.contains("pool.hpk': it is the pool itself")
    );
    assert_eq!(stdout_of(hardpack().arg("ls").arg(pool.join("tree"))), "good\n");

    // A directory does not replace a file without --delete, nor a file a directory.
    fs::remove_file(tree.join("good")).unwrap();
    fs::create_dir(tree.join("good")).unwrap();
    fs::write(tree.join("good/inner"), "inner").unwrap();
    let done = hardpack().args(["put", "-q"]).args([&tree, &pool]).assert().code(3);
    let stderr = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
    assert!(stderr.contains("no directory of that name"), "{stderr}");
    hardpack().args(["put", "-q", "--delete"]).args([&tree, &pool]).assert().success();
    assert_eq!(stdout_of(hardpack().arg("cat").arg(pool.join("tree/good/inner"))), "inner");
    hardpack().args(["put", "-q"]).args([&tree.join("missing"), &pool]).assert().code(3);
    let odd = OsString::from_vec(b"\xff".to_vec());
    hardpack().arg("put").arg("-q").arg(tree.join("good")).arg(pool.join(&odd)).assert().success();
    assert_eq!(stdout_of(hardpack().arg("ls").arg(pool.join(&odd))), "good\n");
}

/// A log whose database is not beside it is a file like any other, but not beside the database of
/// another source: SQLite would add what it holds.
#[test]
fn a_database_does_not_get_the_log_of_another_source() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    for name in ["x", "y", "z"] {
        fs::create_dir(at.join(name)).unwrap();
        let path = at.join(name).join("db");
        let db = Connection::open(&path).unwrap();
        db.execute_batch("pragma journal_mode=wal; create table t(a); insert into t values(1)")
            .unwrap();
        let log = fs::read(path.with_file_name("db-wal")).unwrap();
        drop(db);
        if name != "x" {
            fs::write(path.with_file_name("db-wal"), log).unwrap();
        }
    }
    fs::remove_file(at.join("y/db")).unwrap();
    let pairs = [["x/", "y/"], ["x/db", "y/"], ["x/", "y/db-wal"], ["x/db", "y/db-wal"]];
    for (number, [database, log]) in pairs.into_iter().enumerate() {
        for raw in [&[][..], &["--raw"]] {
            let put = |pool: &str, sources: &[&str], refused: &str, listed: &str| {
                let args = [&["put", "-q"], raw, sources, &[pool]].concat();
                fails(at, &args, 3, &[refused, "another source"]);
                assert_eq!(succeeds(at, &["ls", pool]), listed);
            };
            let pool = |first| format!("{first}{number}{}.hpk", raw.len());
            put(&pool("db"), &[database, log], "'y/db-wal'", "db\n");
            put(&pool("log"), &[log, database], "'x/db'", "db-wal\n");
        }
    }
    succeeds(at, &["put", "-q", "x/", "z", "own.hpk/"]);
    succeeds(at, &["put", "-q", "z/db", "z/db-wal", "own.hpk/other/"]);
}

/// With --delete, what one source lacks another may have: it stays as it was all the time, and what
/// none has is removed, also in directories that are joined. If a source cannot be read, nobody
/// knows, and nothing is.
#[test]
fn only_what_no_source_has_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    for path in ["x/a", "x/both/1", "y/b", "y/both/2", "y/own/3", "old/c", "old/both/4"] {
        let path = at.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "content").unwrap();
    }
    let put = |sources: &[&str]| {
        json_of(
            hardpack()
                .current_dir(at)
                .args(["put", "-q", "--json", "--delete"])
                .args(sources)
                .arg("p.hpk"),
        )
    };
    assert_eq!(put(&["x/", "y/", "old/"])["files"], 7);
    let inode = |path: &str| succeeds(at, &["ls", "--json", path]);
    let before = ["p.hpk/b", "p.hpk/both/2", "p.hpk/own"].map(inode);

    // The same names, as of a third source that is missing.
    let missing = ["put", "-q", "--delete", "x/", "y/", "gone/", "p.hpk"];
    let said = fails(at, &missing, 3, &["'gone/'", "skipped 'x/c': not removed"]);
    assert!(said.contains("skipped 'x/both/4': not removed"), "{said}");
    assert_eq!(put(&["x/", "y/", "old/"])["removed"], 0);

    let dry = json_of(
        hardpack().current_dir(at).args(["put", "-nq", "--json", "--delete", "x/", "y/", "p.hpk"]),
    );
    let done = put(&["x/", "y/"]);
    for what in ["files", "unchanged", "removed"] {
        assert_eq!(dry[what], done[what], "{what}: {dry} and {done}");
    }
    assert_eq!([&done["files"], &done["unchanged"], &done["removed"]], [0, 5, 2], "{done}");
    assert_eq!(["p.hpk/b", "p.hpk/both/2", "p.hpk/own"].map(inode), before);
    assert_eq!(succeeds(at, &["ls", "p.hpk"]), "a\nb\nboth\nown\n");
    assert_eq!(succeeds(at, &["ls", "p.hpk/both"]), "1\n2\n");
    // The same source twice, and one that is within another.
    assert_eq!(put(&["x/", "x/"])["removed"], 3);
    assert_eq!(succeeds(at, &["ls", "p.hpk"]), "a\nboth\n");
}

/// Of two sources with one name, one would replace the other: it is refused and named. Directories
/// are joined. What was put once may be given again, under any of its names.
#[test]
fn two_sources_of_one_name_do_not_replace_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    for (path, content) in
        [("x/a", "1"), ("x/d/f", "1"), ("y/a", "2"), ("y/d/f", "2"), ("y/d/g", "3"), ("y/e", "4")]
    {
        let path = at.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    // Same lengths, and same times.
    for path in ["x/a", "x/d/f", "y/a", "y/d/f"] {
        set_time(&at.join(path), 1 << 60);
    }
    let refused = "another source has been put there just now";
    let content = |path: &str| succeeds(at, &["cat", path]);
    fails(at, &["put", "-q", "x/a", "y/a", "p.hpk"], 3, &["'y/a'", refused]);
    assert_eq!(content("p.hpk/a"), "1");
    let said = fails(at, &["put", "-q", "x/d", "y/d", "q.hpk"], 3, &["'y/d/f'", refused]);
    assert!(!said.contains("y/d/g"), "{said}");
    assert_eq!([content("q.hpk/d/f"), content("q.hpk/d/g")], ["1", "3"]);
    // The second time too, and although the second source lacks what the first one has.
    for _ in 0..2 {
        fs::write(at.join("x/d/only"), "5").unwrap();
        fails(at, &["put", "-q", "--delete", "x/", "y/", "r.hpk"], 3, &["'y/a'", "'y/d/f'"]);
        assert_eq!(
            [content("r.hpk/a"), content("r.hpk/d/only"), content("r.hpk/e")],
            ["1", "5", "4"]
        );
    }
    // A directory does not replace what is none, not even with --delete.
    fs::create_dir_all(at.join("z/a")).unwrap();
    fs::write(at.join("z/a/inner"), "6").unwrap();
    fails(at, &["put", "-q", "--delete", "x/a", "z/a", "s.hpk"], 3, &["'z/a'", refused]);
    assert_eq!(content("s.hpk/a"), "1");
    fs::create_dir(at.join("w")).unwrap();
    fs::hard_link(at.join("x/a"), at.join("w/a")).unwrap();
    succeeds(at, &["put", "-q", "x/a", "./x/../x/a", "w/a", "t.hpk"]);
    succeeds(at, &["put", "-q", "x/a", "y/e", "w/a", "y/d", "t.hpk/other/"]);
    assert_eq!(content("t.hpk/other/d/g"), "3");
    // A log is not put beside the database of another source, nor the other way round.
    for name in ["x/db", "y/db", "y/db-wal", "w/db-journal"] {
        fs::write(at.join(name), name).unwrap();
    }
    let all = ["put", "--raw", "-q", "x/", "y/", "w/", "u.hpk"];
    fails(at, &all, 3, &["'y/db'", "'y/db-wal'", "'w/db-journal'"]);
    assert_eq!(succeeds(at, &["ls", "u.hpk"]), "a\nd\ndb\ne\n");
    let all = ["put", "--raw", "-q", "w/", "y/", "v.hpk"];
    fails(at, &all, 3, &["'y/db'"]);
    assert_eq!(succeeds(at, &["ls", "v.hpk"]), "a\nd\ndb-journal\ne\n");
    // Two spellings of one directory.
    succeeds(at, &["put", "--raw", "-q", "y/db", "./x/../y/db-wal", "y/db", "s.hpk/both/"]);
    assert_eq!(succeeds(at, &["ls", "s.hpk/both"]), "db\ndb-wal\n");
}

fn add(tar: &mut Builder<Vec<u8>>, kind: EntryType, path: &str, to: &str, content: &[u8]) {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(content.len() as u64);
    header.set_mode(0o755);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1);
    if !to.is_empty() {
        header.set_link_name(to).unwrap();
    }
    tar.append_data(&mut header, path, content).unwrap();
}

/// Entries below a name that is not a directory are refused by path, and the rest is stored.
#[test]
fn nothing_in_a_tar_is_put_through_what_is_no_directory() {
    // In one batch, and over several.
    for long in [3, 40 << 20] {
        let mut tar = Builder::new(Vec::new());
        let long = random_bytes(long, 7);
        add(&mut tar, EntryType::Directory, "dir", "", b"");
        add(&mut tar, EntryType::Symlink, "l", "dir", b"");
        add(&mut tar, EntryType::Regular, "f", "", b"file");
        add(&mut tar, EntryType::Regular, "first", "", &long);
        add(&mut tar, EntryType::Regular, "l/through", "", b"through");
        add(&mut tar, EntryType::Regular, "l/deep/er", "", &long);
        add(&mut tar, EntryType::Regular, "f/x", "", b"x");
        add(&mut tar, EntryType::Directory, "f", "", b"");
        add(&mut tar, EntryType::Regular, "dir", "", b"no file");
        add(&mut tar, EntryType::Link, "h", "later", b"");
        add(&mut tar, EntryType::Regular, "later", "", b"later");
        add(&mut tar, EntryType::Regular, "later", "", b"again");
        add(&mut tar, EntryType::Regular, "dir/last", "", b"last");
        let (directory, path) = directory_with("in.tar", &tar.into_inner().unwrap());
        let pool = directory.path().join("p.hpk");
        hardpack().arg("create").arg(&pool).assert().success();
        let done = hardpack().args(["put", "-q", "--tar"]).args([&path, &pool]).assert().failure();
        let stderr = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
        let link = "'l' is a symbolic link, and nothing is put through it";
        for expected in [
            format!("cannot put 'l/through': {link}"),
            format!("cannot put 'l/deep/er': {link}"),
            "cannot put 'f/x': 'f' is not a directory".into(),
            "cannot put 'f': ".into(),
            "cannot put 'dir': 'dir' is a directory".into(),
            "cannot put 'h': no such file: later".into(),
        ] {
            assert!(stderr.contains(&expected), "{expected}, {}: {stderr}", long.len());
        }
        assert!(!stderr.contains("number") && stderr.lines().count() == 6, "{stderr}");
        let names = stdout_of(hardpack().arg("ls").arg(&pool));
        assert_eq!(names.lines().collect::<Vec<_>>(), ["dir", "f", "first", "l", "later"]);
        let inside = |name: &str| with_ending(&pool, name);
        assert_eq!(stdout_of(hardpack().arg("cat").arg(inside("/later"))), "again");
        assert_eq!(stdout_of(hardpack().arg("cat").arg(inside("/dir/last"))), "last");
        hardpack().args(["check", "-q"]).arg(&pool).assert().success();
    }
}

/// A refused link leaves nothing behind, neither at its path nor at its target.
#[test]
fn a_link_to_what_is_missing_makes_no_directories() {
    let mut tar = Builder::new(Vec::new());
    add(&mut tar, EntryType::Link, "h", "missing/x", b"");
    add(&mut tar, EntryType::Link, "new/h", "deep/missing/x", b"");
    add(&mut tar, EntryType::Fifo, "pipes/p", "", b"");
    add(&mut tar, EntryType::Regular, "dir/first", "", b"content");
    add(&mut tar, EntryType::Link, "links/second", "dir/first", b"");
    let (directory, path) = directory_with("in.tar", &tar.into_inner().unwrap());
    let pool = directory.path().join("p.hpk");
    hardpack().arg("create").arg(&pool).assert().success();
    let done = hardpack().args(["put", "-q", "--tar"]).args([&path, &pool]).assert().failure();
    let stderr = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
    for expected in
        ["cannot put 'h': no such file: missing/x", "cannot put 'new/h': no such file: deep/"]
    {
        assert!(stderr.contains(expected), "{expected}: {stderr}");
    }
    let names = stdout_of(hardpack().arg("ls").arg(&pool));
    assert_eq!(names.lines().collect::<Vec<_>>(), ["dir", "links", "pipes"]);
    let second = with_ending(&pool, "/links/second");
    assert_eq!(stdout_of(hardpack().arg("cat").arg(second)), "content");
}

#[test]
fn capabilities_are_not_given_without_owners() {
    let (directory, file) = directory_with("program", b"does something");
    // A version 2 capability to bind to low ports.
    let capability =
        [&0x0200_0001_u32.to_le_bytes()[..], &0x400_u32.to_le_bytes(), &[0; 12]].concat();
    let flags = XattrFlags::empty();
    let can_be_set = lsetxattr(&file, "security.capability", &capability, flags).is_ok();
    let has_own = lsetxattr(&file, "user.own", b"value", flags).is_ok();
    let pool = directory.path().join("p.hpk");
    hardpack().args(["put", "-q"]).args([&file, &pool.join("program")]).assert().success();
    if !can_be_set {
        eprintln!("not tested whether they are given: nobody may here");
    }
    for (owner, is_given) in [("--no-owner", false), ("--owner", can_be_set)] {
        let out = directory.path().join(owner);
        let mut command = hardpack();
        command.args(["extract", "-q", owner]).args([&pool.join("program"), &out]);
        command.assert().success();
        let names: Vec<Vec<u8>> = xattrs(&out).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names.contains(&b"security.capability".to_vec()), is_given, "{owner}");
        assert_eq!(names.contains(&b"user.own".to_vec()), has_own, "{owner}");
    }
}
