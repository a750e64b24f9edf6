//! Options and commands that people know from coreutils and findutils work as they do there.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::*;
use tempfile::TempDir;

/// A directory with a tree of files of known lengths and times, and the pool `p.hpk` of it.
fn pool() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().to_owned();
    fs::create_dir_all(at.join("t/logs/old")).unwrap();
    for (name, len, days) in [
        ("t/B.TXT", 100, 10),
        ("t/a.txt", 3000, 1),
        ("t/c.db", 1536 << 10, 5),
        ("t/.hidden", 1, 0),
        ("t/logs/x.db", 600, 2),
        ("t/logs/y.log", 0, 3),
        ("t/logs/old/z.db", 1 << 20, 40),
    ] {
        fs::write(at.join(name), vec![7; len]).unwrap();
        let time =
            std::time::SystemTime::now() - std::time::Duration::from_secs(days * 86_400 + 3600);
        fs::File::options().write(true).open(at.join(name)).unwrap().set_modified(time).unwrap();
    }
    hardpack().current_dir(&at).args(["put", "-q", "t/", "p.hpk"]).assert().success();
    (directory, at)
}

fn run(at: &Path, line: &str) -> String {
    stdout_of(hardpack().current_dir(at).args(words(line)))
}

fn fails(at: &Path, line: &str, code: i32, expected: &str) {
    let output = hardpack().current_dir(at).args(words(line)).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{line}: {stderr}");
    assert!(stderr.contains(expected), "{line}: {stderr}");
}

#[test]
fn ls_sorts_and_shows_units() {
    let (_directory, at) = pool();
    for (options, expected) in [
        ("-1", "B.TXT\na.txt\nc.db\nlogs\n"),
        ("-1r", "logs\nc.db\na.txt\nB.TXT\n"),
        ("-S", "c.db\na.txt\nB.TXT\nlogs\n"),
        ("-rS", "logs\nB.TXT\na.txt\nc.db\n"),
        ("-St", "logs\na.txt\nc.db\nB.TXT\n"),
        ("-tS", "c.db\na.txt\nB.TXT\nlogs\n"),
        ("-1Sa", "c.db\na.txt\nB.TXT\n.hidden\nlogs\n"),
    ] {
        // The directory was made last, by the writes into it.
        hardpack().current_dir(&at).args(["touch", "p.hpk/logs"]).assert().success();
        assert_eq!(run(&at, &format!("ls {options} p.hpk")), expected, "{options}");
    }
    assert_eq!(
        run(&at, "ls -t p.hpk/logs/x.db p.hpk/c.db p.hpk/a.txt"),
        "p.hpk/a.txt\np.hpk/logs/x.db\np.hpk/c.db\n"
    );
    let long = run(&at, "ls -lh p.hpk");
    let lens: Vec<&str> =
        long.lines().map(|line| line.split_whitespace().nth(4).unwrap()).collect();
    assert_eq!(lens, ["100", "3.0K", "1.5M", "0"], "{long}");
    assert_eq!(run(&at, "ls -h p.hpk"), run(&at, "ls p.hpk"));
    assert_eq!(
        run(&at, "ls p.hpk/c.db p.hpk/logs"),
        "p.hpk/c.db\n\np.hpk/logs:\nold\nx.db\ny.log\n"
    );
    for command in ["ls", "du"] {
        assert!(run(&at, &format!("{command} --help")).contains("Usage:"));
    }
}

#[test]
fn du_takes_sh() {
    let (_directory, at) = pool();
    let line = run(&at, "du -sh p.hpk");
    assert_eq!(line.lines().count(), 2, "{line}");
    assert!(line.lines().nth(1).unwrap().trim_start().starts_with("2.6M "), "{line}");
    assert_eq!(run(&at, "du -s -h p.hpk"), line);
    assert_eq!(run(&at, "du -psh p.hpk"), line);
    assert!(run(&at, "du -shp p.hpk").starts_with(&format!("{}\t", 101 + 3000 + 600 + (5 << 19))));
}

#[test]
fn find_takes_one_dash() {
    let (_directory, at) = pool();
    let found = |conditions: &str| {
        let text = run(&at, &format!("find p.hpk {conditions}"));
        text.lines()
            .map(|line| line.strip_prefix("p.hpk").unwrap().to_owned())
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(found("-name *.txt"), "/a.txt");
    assert_eq!(found("-iname *.txt"), "/B.TXT /a.txt");
    assert_eq!(found("--iname *.TXT"), "/B.TXT /a.txt");
    assert_eq!(found("-type d"), " /logs /logs/old");
    assert_eq!(found("-maxdepth 1 -type f -name *.*"), "/.hidden /B.TXT /a.txt /c.db");
    assert_eq!(found("-type f -mtime -1"), "/.hidden");
    assert_eq!(found("-mtime +5 -type f"), "/B.TXT /logs/old/z.db");
    assert_eq!(found("-mtime 5"), "/c.db");
    assert_eq!(found("-size +1M"), "/c.db");
    assert_eq!(found("-size 1M -name *.db"), "/logs/old/z.db /logs/x.db");
    assert_eq!(found("-size -1M"), "/logs/y.log");
    assert_eq!(found("-size 600c"), "/logs/x.db");
    assert_eq!(found("-size 2"), "/logs/x.db");
    assert_eq!(found("--size -1M --type f --name *.db"), "/logs/x.db");
    assert_eq!(found("--size 600"), "/logs/x.db");
    // What looks like an option is the value of one.
    assert_eq!(found("-name -size"), "");
    assert_eq!(run(&at, "find p.hpk -name c.db -print0"), "p.hpk/c.db\0");
    assert_eq!(run(&at, "find p.hpk -name c.db -0"), "p.hpk/c.db\0");
    fails(&at, "find p.hpk -size 1q", 2, "use a number such as");
    fails(&at, "find p.hpk -perm 644", 2, "unexpected argument");
}

/// The findutils of this machine find the same, where it has them.
#[test]
fn find_finds_what_find_finds() {
    let (_directory, at) = pool();
    let is_there = std::process::Command::new("find").arg("--version").output();
    if !is_there.is_ok_and(|output| output.stdout.starts_with(b"find (GNU findutils)")) {
        eprintln!("skipped: there is no GNU find to compare with");
        return;
    }
    for conditions in [
        "-name *.db",
        "-iname *.TXT",
        "-type d",
        "-type f -size +1k",
        "-type f -size -2k",
        "-type f -size 2",
        "-type f -size 1M",
        "-type f -size +600c",
        "-type f -mtime +3",
        "-type f -mtime -3",
        "-type f -mtime 3",
        "-maxdepth 1",
        "-maxdepth 0",
        "-type f -size +2M",
        "-type f -size -1G",
    ] {
        let theirs = std::process::Command::new("find")
            .current_dir(&at)
            .arg("t")
            .args(conditions.split(' '))
            .output();
        let theirs = String::from_utf8(theirs.unwrap().stdout).unwrap();
        let sorted = |text: &str, top: &str| {
            let mut lines: Vec<String> =
                text.lines().map(|line| line.strip_prefix(top).unwrap().to_owned()).collect();
            lines.sort();
            lines
        };
        let ours = run(&at, &format!("find p.hpk {conditions}"));
        assert_eq!(sorted(&ours, "p.hpk"), sorted(&theirs, "t"), "{conditions}");
    }
}

/// A database that SQLite made has an owner and times; each change sets the time.
#[test]
fn stat_knows_databases_written_through_sqlite() {
    let (_directory, at) = pool();
    let umask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(umask);
    let uid = rustix::process::getuid().as_raw();
    let before =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
    open_in_pool(&at.join("new.hpk")).execute_batch("CREATE TABLE t(a)").unwrap();
    let db = open_in_pool(&at.join("p.hpk/made.db"));
    db.execute_batch("CREATE TABLE t(a); INSERT INTO t VALUES (1)").unwrap();
    let times = |path: &str| {
        let json = json_of(hardpack().current_dir(&at).args(["stat", "--json", path]));
        for field in ["modified_ns", "changed_ns", "created_ns"] {
            assert!(json[field].as_i64().unwrap() as u128 >= before, "{path}: {json}");
        }
        assert_eq!(json["uid"], uid, "{path}: {json}");
        (json["modified_ns"].as_i64().unwrap(), json["mode"].as_str().unwrap().to_owned())
    };
    for path in ["new.hpk/new.hpk", "p.hpk/made.db"] {
        let (_, mode) = times(path);
        assert_eq!(mode, format!("{:o}", 0o644 & !umask.bits()), "{path}");
    }
    let (first, _) = times("p.hpk/made.db");
    let mut changes = 0;
    // The recorded time may be up to 10 ms older than the last change, so this takes a few.
    while times("p.hpk/made.db").0 == first {
        db.execute_batch("INSERT INTO t VALUES (2)").unwrap();
        changes += 1;
        assert!(changes < 100_000, "the time stands still");
    }
    let (second, _) = times("p.hpk/made.db");
    assert!(second > first);
    // Reading changes nothing.
    db.query_row("SELECT count(*) FROM t", [], |_| Ok(())).unwrap();
    assert_eq!(times("p.hpk/made.db").0, second);
    // In write-ahead log mode, moving the log into the pool sets the time.
    db.execute_batch("PRAGMA journal_mode = wal").unwrap();
    let before_log = times("p.hpk/made.db").0;
    for changes in 0.. {
        db.execute_batch("INSERT INTO t VALUES (3); PRAGMA wal_checkpoint").unwrap();
        if times("p.hpk/made.db").0 > before_log {
            break;
        }
        assert!(changes < 100_000, "the time stands still");
    }
}
