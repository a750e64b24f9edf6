//! `cp`, `touch`, `chmod` and `chown` in a pool, and patterns in the paths of a pool.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::*;
use tempfile::TempDir;

/// The pool `p.hpk` with `d/one`, `d/link` to it, `d/b.db`, `d/sub/two` and `big`.
fn pool() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().to_owned();
    fs::create_dir_all(at.join("t/d/sub")).unwrap();
    fs::write(at.join("t/d/one"), "content one").unwrap();
    fs::write(at.join("t/d/sub/two"), "content two").unwrap();
    std::os::unix::fs::symlink("one", at.join("t/d/link")).unwrap();
    fs::write(at.join("t/big"), random_bytes(400_000, 7)).unwrap();
    make_database(&at.join("t/d/b.db"), 4096, 50);
    let old = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    for path in ["t/d/one", "t/big", "t/d/sub"] {
        fs::File::open(at.join(path)).unwrap().set_modified(old).unwrap();
    }
    hardpack().current_dir(&at).args(["put", "-q", "t/", "p.hpk"]).assert().success();
    (directory, at)
}

fn run(at: &Path, line: &str) -> String {
    stdout_of(hardpack().current_dir(at).args(line.split(' ')))
}

fn fails(at: &Path, line: &str, code: i32, expected: &str) {
    let output = hardpack().current_dir(at).args(line.split(' ')).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{line}: {stderr}");
    assert!(stderr.contains(expected), "{line}: {stderr}");
}

fn stat(at: &Path, path: &str) -> serde_json::Value {
    json_of(hardpack().current_dir(at).args(["stat", "--json", path]))
}

const OLD_NS: i64 = 1_000_000_000_000_000_000;

#[test]
fn cp_shares_the_data_within_a_pool() {
    let (_directory, at) = pool();
    let len = || fs::metadata(at.join("p.hpk")).unwrap().len();
    let before = len();
    run(&at, "cp p.hpk/big p.hpk/copy");
    assert!(len() < before + 100_000, "the bytes were copied: {} to {}", before, len());
    let (new, kept) = (stat(&at, "p.hpk/copy"), stat(&at, "p.hpk/big"));
    assert_eq!(new["len"], kept["len"]);
    assert!(new["modified_ns"].as_i64() > Some(OLD_NS), "{new}");
    run(&at, "cp -p p.hpk/big p.hpk/exact");
    assert_eq!(stat(&at, "p.hpk/exact")["modified_ns"], OLD_NS);
    // An existing file is replaced, and the others stay.
    run(&at, "cp p.hpk/d/one p.hpk/copy");
    assert_eq!(run(&at, "cat p.hpk/copy"), "content one");
    run(&at, "cp -n p.hpk/big p.hpk/copy");
    assert_eq!(run(&at, "cat p.hpk/copy"), "content one");
    assert_eq!(stat(&at, "p.hpk/big")["len"], 400_000);
    // A link is followed, or copied with -r.
    run(&at, "cp p.hpk/d/link p.hpk/followed");
    assert_eq!(stat(&at, "p.hpk/followed")["type"], "file");
    run(&at, "cp -R p.hpk/d/link p.hpk/d/sub");
    assert_eq!(stat(&at, "p.hpk/d/sub/link")["type"], "symbolic link");
    run(&at, "check -q p.hpk");
}

#[test]
fn cp_copies_directories_with_r() {
    let (_directory, at) = pool();
    fails(&at, "cp p.hpk/d p.hpk/e", 3, "it is a directory\nhint: -r copies it");
    run(&at, "cp -r p.hpk/d p.hpk/e");
    assert_eq!(run(&at, "ls -R p.hpk/e"), run(&at, "ls -R p.hpk/d").replace("p.hpk/d", "p.hpk/e"));
    run(&at, "cp -a p.hpk/d p.hpk/e");
    assert_eq!(stat(&at, "p.hpk/e/d/sub")["modified_ns"], OLD_NS);
    assert_eq!(stat(&at, "p.hpk/e/d/one")["modified_ns"], OLD_NS);
    fails(&at, "cp -r p.hpk/d p.hpk/e", 3, "there is a directory 'p.hpk/e/d' already");
    fails(&at, "cp -r p.hpk/d p.hpk/d/sub", 3, "cannot be copied into itself");
    fails(&at, "cp p.hpk/big p.hpk/big", 3, "are the same file");
    fails(&at, "cp p.hpk/big p.hpk/nodir/", 3, "it is not a directory");
    fails(&at, "cp p.hpk/big p.hpk/d/one p.hpk/new", 3, "it is not a directory");
    fails(&at, "cp p.hpk/bigg p.hpk/new", 3, "did you mean 'p.hpk/big'?");
    run(&at, "cp p.hpk/big p.hpk/d/one p.hpk/e");
    assert_eq!(stat(&at, "p.hpk/e/big")["len"], 400_000);
    // From a snapshot too.
    run(&at, "snapshot p.hpk@s");
    run(&at, "rm -r p.hpk/d");
    run(&at, "cp -r p.hpk@s/d p.hpk/back");
    assert_eq!(run(&at, "cat p.hpk/back/sub/two"), "content two");
    let db = open_in_pool(&at.join("p.hpk/back/b.db"));
    assert_eq!(db.query_row("SELECT count(*) FROM t", [], |row| row.get(0)), Ok(50));
}

#[test]
fn cp_copies_bytes_between_pools() {
    let (_directory, at) = pool();
    run(&at, "create other.hpk");
    run(&at, "cp p.hpk/big other.hpk/big");
    run(&at, "cp -a p.hpk/d other.hpk");
    run(&at, "ln p.hpk/d/one p.hpk/d/again");
    run(&at, "cp -r p.hpk/d other.hpk/second");
    assert_eq!(stat(&at, "other.hpk/second/again")["links"], 2);
    assert_eq!(stat(&at, "other.hpk/d/one")["modified_ns"], OLD_NS);
    assert_eq!(stat(&at, "other.hpk/d/link")["target"], "one");
    assert_eq!(stat(&at, "other.hpk/big")["len"], 400_000);
    run(&at, "cp p.hpk/d/one other.hpk/big");
    assert_eq!(run(&at, "cat other.hpk/big"), "content one");
    // With what is in the log of a database in use.
    let mut session = Session::open(&at.join("p.hpk/d/b.db"));
    session.run("PRAGMA journal_mode = wal; CREATE TABLE new(a); INSERT INTO new VALUES (7)");
    run(&at, "cp p.hpk/d/b.db other.hpk/b.db");
    let db = open_in_pool(&at.join("other.hpk/b.db"));
    assert_eq!(db.query_row("SELECT a FROM new", [], |row| row.get(0)), Ok(7));
    run(&at, "cp p.hpk/d/b.db p.hpk/b.db");
    let db = open_in_pool(&at.join("p.hpk/b.db"));
    assert_eq!(db.query_row("SELECT a FROM new", [], |row| row.get(0)), Ok(7));
    run(&at, "check -q other.hpk");
}

#[test]
fn touch_makes_files_and_sets_times() {
    let (_directory, at) = pool();
    run(&at, "touch -c p.hpk/new p.hpk/nodir/new");
    fails(&at, "stat p.hpk/new", 3, "no such file");
    run(&at, "touch p.hpk/new p.hpk/big");
    let new = stat(&at, "p.hpk/new");
    assert_eq!((&new["len"], &new["uid"]), (&0.into(), &rustix::process::getuid().as_raw().into()));
    assert!(stat(&at, "p.hpk/big")["modified_ns"].as_i64() > Some(OLD_NS));
    run(&at, "touch -r p.hpk/d/one p.hpk/big");
    assert_eq!(stat(&at, "p.hpk/big")["modified_ns"], OLD_NS);
    run(&at, "touch -d 2001-09-09T01:46:41Z p.hpk/big p.hpk/d");
    assert_eq!(stat(&at, "p.hpk/big")["modified_ns"], OLD_NS + 1_000_000_000);
    run(&at, "touch --date @5 p.hpk/then");
    assert_eq!(stat(&at, "p.hpk/then")["modified_ns"], 5_000_000_000_i64);
    assert_eq!(stat(&at, "p.hpk/big")["len"], 400_000);
    run(&at, "touch -r t/d/one p.hpk/then");
    assert_eq!(stat(&at, "p.hpk/then")["modified_ns"], OLD_NS);
    fails(&at, "touch -d yesterday p.hpk/big", 2, "use a time such as");
    fails(&at, "touch -d 2026-01-01T10:00+99:99 p.hpk/big", 2, "the offset from UTC is too large");
    fails(&at, "touch p.hpk/nodir/new", 3, "cannot touch 'p.hpk/nodir/new': no such file: nodir");
    fails(&at, "touch p.hpk/big/", 3, "not a directory");
}

#[test]
fn chmod_and_chown_change_what_is_recorded() {
    let (_directory, at) = pool();
    let mode = |path: &str| stat(&at, path)["mode"].as_str().unwrap().to_owned();
    let owner = |path: &str| {
        (stat(&at, path)["uid"].as_u64().unwrap(), stat(&at, path)["gid"].as_u64().unwrap())
    };
    run(&at, "chmod 640 p.hpk/big p.hpk/d/one");
    assert_eq!((mode("p.hpk/big"), mode("p.hpk/d/one")), ("640".into(), "640".into()));
    run(&at, "chmod u+x,g=,o=r p.hpk/big");
    assert_eq!(mode("p.hpk/big"), "704");
    run(&at, "chmod -x p.hpk/big");
    assert_eq!(mode("p.hpk/big"), "604");
    run(&at, "chmod -R go-rwx,u=rwX p.hpk/d");
    assert_eq!(
        (mode("p.hpk/d"), mode("p.hpk/d/sub"), mode("p.hpk/d/sub/two")),
        ("700".into(), "700".into(), "600".into())
    );
    // Only what -R finds: a link is followed if it is named.
    assert_eq!(mode("p.hpk/d/link"), "777");
    run(&at, "chmod 644 p.hpk/d/link");
    assert_eq!((mode("p.hpk/d/one"), mode("p.hpk/d/link")), ("644".into(), "777".into()));
    run(&at, "chown 12:34 p.hpk/big");
    assert_eq!(owner("p.hpk/big"), (12, 34));
    run(&at, "chown root p.hpk/big");
    assert_eq!(owner("p.hpk/big"), (0, 34));
    run(&at, "chown :root p.hpk/big");
    assert_eq!(owner("p.hpk/big"), (0, 0));
    run(&at, "chown -R 5:6 p.hpk/d");
    assert_eq!((owner("p.hpk/d"), owner("p.hpk/d/sub/two")), ((5, 6), (5, 6)));
    run(&at, "chmod 6755 p.hpk/big p.hpk/d");
    run(&at, "chown 7:8 p.hpk/big p.hpk/d");
    assert_eq!((mode("p.hpk/big"), mode("p.hpk/d")), ("755".into(), "6755".into()));
    fails(&at, "chmod u+q p.hpk/big", 2, "use an octal number, or changes");
    fails(&at, "chown nobody-of-this-name p.hpk/big", 2, "there is no user");
    for owner in ["4294967295", "1:4294967295"] {
        fails(&at, &format!("chown {owner} p.hpk/big"), 2, "can have the number 4294967295");
    }
    fails(&at, "chmod 644 p.hpk/missing", 3, "no such file");
    let db = open_in_pool(&at.join("p.hpk/d/b.db"));
    assert_eq!(db.query_row("SELECT count(*) FROM t", [], |row| row.get(0)), Ok(50));
    run(&at, "chmod 600 p.hpk/d/b.db");
    db.execute_batch("DELETE FROM t").unwrap();
    assert_eq!((mode("p.hpk/d/b.db"), owner("p.hpk/d/b.db")), ("600".into(), (5, 6)));
}

#[test]
fn patterns_are_expanded_by_every_command() {
    let (_directory, at) = pool();
    run(&at, "touch p.hpk/a1 p.hpk/a2 p.hpk/.a3 p.hpk/d/a4");
    assert_eq!(run(&at, "ls p.hpk/a*"), "p.hpk/a1\np.hpk/a2\n");
    assert_eq!(run(&at, "ls p.hpk/.a*"), "p.hpk/.a3\n");
    assert_eq!(run(&at, "ls p.hpk/[!x-z]?"), "p.hpk/a1\np.hpk/a2\n");
    assert_eq!(run(&at, "ls p.hpk/**/a?"), "p.hpk/a1\np.hpk/a2\np.hpk/d/a4\n");
    assert_eq!(run(&at, "ls -d p.hpk/*/"), "p.hpk/d/\n");
    run(&at, "touch p.hpk/öl p.hpk/ähre p.hpk/übel");
    run(&at, "rm p.hpk/[ä]*");
    assert_eq!(run(&at, "ls p.hpk/?l p.hpk/ü*"), "p.hpk/öl\np.hpk/übel\n");
    assert_eq!(run(&at, "ls p.hpk/*/sub/two"), "p.hpk/d/sub/two\n");
}

#[test]
fn each_command_takes_patterns() {
    let (_directory, at) = pool();
    assert_eq!(run(&at, "cat p.hpk/d/o* p.hpk/d/*/tw?"), "content onecontent two");
    assert_eq!(run(&at, "find p.hpk/d/s* -type f"), "p.hpk/d/sub/two\n");
    assert_eq!(run(&at, "du -p p.hpk/d/o* p.hpk/**/two").lines().count(), 2);
    assert!(run(&at, "stat p.hpk/d/o*").contains("p.hpk/d/one"));
    assert!(run(&at, "tree p.hpk/d/su*").contains("two"));
    run(&at, "chmod 600 p.hpk/d/*");
    assert_eq!(stat(&at, "p.hpk/d/one")["mode"], "600");
    run(&at, "chown 1:1 p.hpk/d/o*");
    run(&at, "touch -d @9 p.hpk/d/o*");
    assert_eq!(stat(&at, "p.hpk/d/one")["modified_ns"], 9_000_000_000_i64);
    run(&at, "set compression=lz4 p.hpk/d/*");
    assert!(run(&at, "get -H compression p.hpk/d/o*").contains("lz4\tlocal"));
    run(&at, "inherit compression p.hpk/d/o*");
    run(&at, "extract -q p.hpk/d/o* p.hpk/d/su* out");
    assert_eq!(fs::read_to_string(at.join("out/sub/two")).unwrap(), "content two");
    run(&at, "mkdir p.hpk/into");
    run(&at, "cp -r p.hpk/d/[ol]* p.hpk/into");
    assert_eq!(run(&at, "ls p.hpk/into"), "link\none\n");
    run(&at, "mv p.hpk/into/* p.hpk/d/sub");
    assert_eq!(run(&at, "ls p.hpk/d/sub"), "link\none\ntwo\n");
    run(&at, "snapshot p.hpk@s");
    run(&at, "snapshot p.hpk/d@s2");
    run(&at, "rm p.hpk/d/sub/*");
    assert_eq!(run(&at, "ls p.hpk/d/sub"), "");
    assert_eq!(run(&at, "ls p.hpk@s/d/sub/t*"), "p.hpk@s/d/sub/two\n");
    assert_eq!(run(&at, "cat p.hpk/d@s2/sub/t*"), "content two");
    fails(&at, "unpack -q p.hpk/d/* x", 3, "the pattern matches");
    run(&at, "unpack -q p.hpk/d/o* x");
    assert_eq!(fs::read_to_string(at.join("x")).unwrap(), "content one");
}

#[test]
fn a_name_that_exists_comes_before_a_pattern() {
    let (_directory, at) = pool();
    run(&at, r"touch p.hpk/a\* p.hpk/ab");
    assert_eq!(run(&at, "ls p.hpk"), "a*\nab\nbig\nd\n");
    assert_eq!(run(&at, "ls p.hpk/a*"), "p.hpk/a*\n");
    assert_eq!(run(&at, r"ls p.hpk/a\*"), "p.hpk/a*\n");
    assert_eq!(run(&at, "ls p.hpk/[a]*"), "p.hpk/a*\np.hpk/ab\n");
    run(&at, r"rm p.hpk/a\*");
    assert_eq!(run(&at, "ls p.hpk"), "ab\nbig\nd\n");
    fails(&at, r"ls p.hpk/a\*", 3, "no such file");
    for command in ["ls", "cat", "rm", "du", "stat", "find", "touch", "chmod 644"] {
        fails(
            &at,
            &format!("{command} p.hpk/x*"),
            3,
            "no name in the pool matches 'x*'\nhint: a backslash",
        );
    }
    run(&at, "rm -f p.hpk/x*");
}

/// As with a name that is written out, an `@` belongs to the name before it names a snapshot.
#[test]
fn patterns_match_names_with_an_at_sign() {
    let (_directory, at) = pool();
    run(&at, "touch p.hpk/@one p.hpk/me@home p.hpk/d/me@home p.hpk/plain");
    let check = |snapshot: &str| {
        let (top, below) = (format!("p.hpk{snapshot}"), format!("p.hpk{snapshot}/d"));
        let ls = |pattern: &str| run(&at, &format!("ls {pattern}"));
        assert_eq!(ls(&format!("{top}/@*")), format!("{top}/@one\n"));
        assert_eq!(ls(&format!("{top}/*@*")), format!("{top}/@one\n{top}/me@home\n"));
        assert_eq!(ls(&format!("{top}/[m]e@home")), format!("{top}/me@home\n"));
        assert_eq!(ls(&format!("{below}/*@home")), format!("{below}/me@home\n"));
        assert_eq!(ls(&format!("{top}/**/*@home")), format!("{below}/me@home\n{top}/me@home\n"));
    };
    check("");
    // A snapshot's name is no name in the pool, even one that the pattern would match.
    run(&at, "snapshot p.hpk@home");
    check("");
    check("@home");
    assert_eq!(run(&at, "cat p.hpk/d@home/o*"), "content one");
    fails(&at, "ls p.hpk/pl*@home", 3, "for those in a snapshot, put it behind: POOL@NAME/PATTERN");
    fails(&at, "ls p.hpk/pl@*", 3, "no name in the pool matches 'pl@*'\nhint: a backslash");
    for missing in ["p.hpk@none/*", "p.hpk/d@none/*", "p.hpk/@none/*"] {
        fails(&at, &format!("ls {missing}"), 3, "no such file or snapshot: none");
    }
    run(&at, "rm p.hpk/@* p.hpk/*@h*");
    assert_eq!(run(&at, "ls p.hpk"), "big\nd\nplain\n");
    assert_eq!(run(&at, "ls p.hpk/d"), "b.db\nlink\nme@home\none\nsub\n");
    run(&at, "destroy p.hpk@home");
}

/// The pool's own name, opened by SQLite, stands for the database that it was made with, or for
/// what has its name by now.
#[test]
fn what_replaces_the_first_database_takes_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().to_owned();
    make_database(&at.join("a.db"), 4096, 10);
    make_database(&at.join("b.db"), 4096, 20);
    make_database(&at.join("long.db"), 4096, 200_000);
    let rows = |path: &str| {
        let count = |db: rusqlite::Connection| {
            db.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, u32>(0)).unwrap()
        };
        let told =
            hardpack().current_dir(&at).args(["sql", path, "SELECT count(*) FROM t"]).output();
        let told = String::from_utf8(told.unwrap().stdout).unwrap();
        assert_eq!(told.trim(), count(open_in_pool(&at.join(path))).to_string(), "{path}");
        told.trim().parse::<u32>().unwrap()
    };
    let ways =
        ["cp p.hpk/b.db p.hpk/a.db", "mv p.hpk/b.db p.hpk/a.db", "ln -f p.hpk/b.db p.hpk/a.db"];
    for (way, count) in ways
        .map(|way| (way, 20))
        .into_iter()
        .chain([("put -q -T long.db p.hpk/a.db", 200_000), ("cp q.hpk/b.db p.hpk/a.db", 20)])
    {
        for pool in ["p.hpk", "q.hpk"] {
            let _ = fs::remove_file(at.join(pool));
        }
        run(&at, "put -q b.db q.hpk");
        run(&at, "pack -q a.db p.hpk");
        run(&at, "put -q b.db p.hpk");
        run(&at, "touch p.hpk/other");
        run(&at, "mkdir p.hpk/d");
        run(&at, "snapshot p.hpk@all p.hpk/a.db@one");
        assert_eq!(rows("p.hpk"), 10);
        run(&at, way);
        assert_eq!((rows("p.hpk"), rows("p.hpk/a.db")), (count, count), "{way}");
        // It keeps its place under another name, and comes back to it.
        run(&at, "mv p.hpk/a.db p.hpk/c.db");
        assert_eq!(rows("p.hpk"), count, "{way}");
        run(&at, "mv p.hpk/c.db p.hpk/d/c.db");
        fails(&at, "sql p.hpk .tables", 3, "more than one file");
        run(&at, "mv p.hpk/d/c.db p.hpk/a.db");
        assert_eq!(rows("p.hpk"), count, "{way}");
        assert_eq!(rows("p.hpk@all"), 10);
        // A rollback brings the first one back, by itself or with everything.
        run(&at, "rollback p.hpk/a.db@one");
        assert_eq!((rows("p.hpk"), rows("p.hpk/a.db")), (10, 10), "{way}");
        run(&at, "snapshot p.hpk@back");
        run(&at, "put -q -T b.db p.hpk/new.db");
        run(&at, "mv p.hpk/new.db p.hpk/a.db");
        assert_eq!(rows("p.hpk"), 20, "{way}");
        run(&at, "rm p.hpk/a.db");
        fails(&at, "sql p.hpk .tables", 3, "more than one file");
        run(&at, "put -q -T b.db p.hpk/a.db");
        assert_eq!(rows("p.hpk"), 20, "{way}");
        for snapshot in ["back", "all"] {
            run(&at, &format!("rollback p.hpk@{snapshot}"));
            assert_eq!((rows("p.hpk"), rows("p.hpk/a.db")), (10, 10), "{way}");
        }
        run(&at, "check -q p.hpk");
    }
}
