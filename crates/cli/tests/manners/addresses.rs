//! Addresses of snapshots: an address works for every command or for none, whatever was renamed
//! since.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::*;
use tempfile::TempDir;

/// The number of rows of the database (`d/old` in the snapshots) in `s` and in `t`.
const ROWS: [u32; 2] = [10, 20];

/// Makes a pool with the directory `d`, which contains the database `old` and the file `gone`. Each
/// of these and the whole pool get a snapshot `s` (`all-s` for the pool), and later `t`. Then
/// `d/old` is renamed to `d/new`, `d` to `e`, and `gone` is removed.
fn pool() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let tree = directory.path().join("d");
    fs::create_dir(&tree).unwrap();
    make_database(&tree.join("old"), 4096, ROWS[0]);
    fs::write(tree.join("gone"), "gone").unwrap();
    let pool = directory.path().join("p.hpk");
    run(&["put", "-q"], &[&tree, &pool]);
    let snapshots = |name: &str| {
        for path in ["d/old", "d/gone", "d"] {
            run(&["snapshot"], &[&pool.join(format!("{path}@{name}"))]);
        }
        run(&["snapshot"], &[&with_ending(&pool, &format!("@all-{name}"))]);
    };
    snapshots("s");
    add_rows(&open_in_pool(&pool.join("d/old")), ROWS[1] - ROWS[0]);
    snapshots("t");
    run(&["mv"], &[&pool.join("d/old"), &pool.join("d/new")]);
    run(&["mv"], &[&pool.join("d"), &pool.join("e")]);
    run(&["rm"], &[&pool.join("e/gone")]);
    (directory, pool)
}

fn run(arguments: &[&str], paths: &[&Path]) {
    hardpack().args(arguments).args(paths).assert().success();
}

/// Every way to name the database in a snapshot of itself, its directory or the pool, and whether
/// it names the database's own snapshot.
fn ways(pool: &Path, name: &str) -> Vec<(PathBuf, bool)> {
    let inner = [
        ("e/new@NAME", true),
        ("d/old@NAME", true),
        ("e@NAME/old", false),
        ("d@NAME/old", false),
        ("e/new@all-NAME", false),
        ("d/old@all-NAME", false),
        ("@all-NAME/d/old", false),
    ];
    let whole = with_ending(pool, &format!("@all-{name}")).join("d/old");
    let ways = inner.iter().map(|(way, exact)| (pool.join(way.replace("NAME", name)), *exact));
    ways.chain([(whole, false)]).collect()
}

#[test]
fn every_command_takes_every_address() {
    let (directory, pool) = pool();
    let out = directory.path().join("out");
    let content = |name: &str| {
        let way = &ways(&pool, name)[0].0;
        hardpack().arg("cat").arg(way).assert().success().get_output().stdout.clone()
    };
    let (old, new) = (content("s"), content("t"));
    assert!(old != new && old.starts_with(b"SQLite format 3"));
    for ((s, is_exact), (t, _)) in ways(&pool, "s").into_iter().zip(ways(&pool, "t")) {
        let label = s.display();
        for command in [&["ls"][..], &["ls", "-l"], &["stat"]] {
            run(command, &[&s]);
        }
        let found = hardpack().arg("cat").arg(&s).assert().success().get_output().stdout.clone();
        assert!(found == old, "{label}");
        run(&["extract", "-q"], &[&s, &out]);
        assert!(fs::read(&out).unwrap() == old, "{label}");
        fs::remove_file(&out).unwrap();
        let count = "SELECT count(*) FROM t";
        for (address, rows) in [(&s, ROWS[0]), (&t, ROWS[1])] {
            let found = stdout_of(hardpack().arg("sql").arg(address).arg(count));
            assert_eq!(found.trim(), rows.to_string(), "{label}");
        }
        run(&["send", "-n"], &[&s]);
        let base = s.as_os_str().to_str().unwrap();
        run(&["send", "-n", "-i", base], &[&t]);
        run(&["clone"], &[&s, &pool.join("clone")]);
        let found = hardpack().arg("cat").arg(pool.join("clone")).assert().success();
        assert!(found.get_output().stdout == old, "{label}");
        run(&["rm"], &[&pool.join("clone")]);

        // Commands on a snapshot itself do not accept a snapshot of a directory above.
        let code = if is_exact { 0 } else { 3 };
        hardpack().arg("diff").args([&s, &t]).assert().code(code);
        hardpack().arg("diff").arg(&s).assert().code(code);
        hardpack().arg("rollback").arg(&s).assert().code(code);
        if is_exact {
            let now = hardpack().arg("cat").arg(pool.join("e/new")).assert().success();
            assert!(now.get_output().stdout == old, "{label}");
            run(&["rollback"], &[&t]);
        } else {
            hardpack().arg("destroy").arg(&s).assert().code(3);
        }
    }
    run(&["check", "-q"], &[&pool]);
}

#[test]
fn a_snapshot_is_destroyed_by_each_of_its_addresses() {
    let (_directory, pool) = pool();
    for address in ["d/old@s", "e/new@t", "d@s", "e@t", "d/gone@s", "e/gone@t"] {
        let count = listed(&pool).len();
        let code = if address == "e/gone@t" { 3 } else { 0 };
        hardpack().arg("destroy").arg(pool.join(address)).assert().code(code);
        assert_eq!(listed(&pool).len(), count - usize::from(code == 0), "{address}");
    }
    run(&["destroy"], &[&with_ending(&pool, "@all-s")]);
    run(&["destroy"], &[&pool.join("@all-t")]);
    run(&["check", "-q"], &[&pool]);
}

/// Lists the addresses of all snapshots.
fn listed(pool: &Path) -> Vec<String> {
    let lines = stdout_of(hardpack().args(["list", "-H"]).arg(pool));
    let names = lines.lines().filter_map(|line| line.split('\t').next());
    names.filter(|name| name.contains('@')).map(str::to_owned).collect()
}

#[test]
fn what_list_shows_works() {
    let (_directory, pool) = pool();
    // Another file takes the old path of one with snapshots, and is removed again: snapshots of two
    // files now match that path.
    for _ in 0..2 {
        run(&["mkdir"], &[&pool.join("d")]);
        run(&["clone"], &[&pool.join("e/new"), &pool.join("d/gone")]);
        run(&["snapshot"], &[&pool.join("d/gone@s")]);
        run(&["rm", "-r"], &[&pool.join("d")]);
    }
    // And a file is named like a snapshot.
    run(&["clone"], &[&pool.join("e/new"), &pool.join("e/new@t")]);
    let shown = listed(&pool);
    assert_eq!(shown.len(), 10);
    let mut unique = shown.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), shown.len(), "{shown:?}");
    let ambiguous = hardpack().arg("ls").arg(pool.join("d/gone@s")).assert().code(3);
    let error = String::from_utf8(ambiguous.get_output().stderr.clone()).unwrap();
    assert!(error.contains("d/gone@s@"), "{error}");
    hardpack().arg("destroy").arg(pool.join("d/gone@s")).assert().code(3);
    for (index, address) in shown.iter().enumerate() {
        run(&["stat"], &[address.as_ref()]);
        run(&["send", "-n"], &[address.as_ref()]);
        run(&["diff"], &[address.as_ref()]);
        run(&["destroy"], &[address.as_ref()]);
        assert!(listed(&pool).len() == shown.len() - index - 1, "{address}");
    }
}

/// A rollback restores a removed file at its old place.
#[test]
fn what_is_gone_is_rolled_back_to() {
    let (_directory, pool) = pool();
    run(&["rollback"], &[&pool.join("d/gone@t")]);
    assert_eq!(stdout_of(hardpack().arg("cat").arg(pool.join("e/gone"))), "gone");
}

/// A name that was given to another file since goes back to the one that had it, unless somebody
/// has the other one open. Snapshots of that one remain.
#[test]
fn a_rollback_takes_a_name_back() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let pool = at.join("p.hpk");
    make_database(&at.join("w.db"), 4096, 10);
    run(&["create"], &[&pool]);
    run(&["put", "-q"], &[&at.join("w.db"), &pool]);
    let path = pool.join("w.db");
    let of = |snapshot: &str| with_ending(&path, snapshot);
    let rows = || stdout_of(hardpack().arg("sql").arg(&path).arg("SELECT count(*) FROM t"));
    run(&["snapshot"], &[&of("@s")]);
    add_rows(&open_in_pool(&path), 5);
    run(&["snapshot"], &[&of("@s2")]);
    run(&["cp"], &[&of("@s"), &path]);
    assert_eq!(rows(), "10\n");
    add_rows(&open_in_pool(&path), 1);
    run(&["snapshot"], &[&of("@new")]);
    // Not while it is open, which changes nothing.
    let mut user = Session::open(&path);
    assert_eq!(user.run("SELECT count(*) FROM t"), ["11"]);
    let text = stderr_of(hardpack().arg("rollback").arg(of("@s2")), 5);
    let expected = format!("hardpack (process {}) has it open", user.id());
    assert!(text.contains(&expected) && text.contains("close 'w.db' there first"), "{text}");
    user.run("INSERT INTO t(b) VALUES ('more')");
    user.close();
    assert_eq!(rows(), "12\n");
    run(&["rollback"], &[&of("@s2")]);
    assert_eq!(rows(), "15\n");
    run(&["rollback"], &[&of("@s")]);
    assert_eq!(rows(), "10\n");
    run(&["rollback"], &[&of("@new")]);
    assert_eq!(rows(), "11\n");
    // A directory does not give way.
    run(&["rm"], &[&path]);
    run(&["mkdir"], &[&path]);
    let text = stderr_of(hardpack().arg("rollback").arg(of("@new")), 3);
    assert!(text.contains("cannot come back: directories have its names by now"), "{text}");
    assert!(text.contains("hint: 'hardpack clone' brings it back under another name"), "{text}");
    run(&["clone"], &[&of("@new"), &pool.join("again.db")]);
    run(&["check", "-q"], &[&pool]);
}

/// A removed directory does not come back by itself, and the message says how it does.
#[test]
fn a_directory_that_is_gone_is_cloned_from_its_snapshot() {
    let (_directory, pool) = pool();
    run(&["mkdir"], &[&pool.join("f")]);
    run(&["snapshot"], &[&pool.join("f@t")]);
    run(&["rm", "-r"], &[&pool.join("f")]);
    let text = stderr_of(hardpack().arg("rollback").arg(pool.join("f@t")), 3);
    assert!(text.contains("the directory of the snapshot no longer exists"), "{text}");
    assert!(text.contains("hint: 'hardpack clone'"), "{text}");
    run(&["clone"], &[&pool.join("f@t"), &pool.join("f")]);
}

#[test]
fn snapshots_of_two_pools_are_not_compared() {
    let (_first, one) = pool();
    let (_second, other) = pool();
    hardpack().arg("diff").args([one.join("e@s"), other.join("e@t")]).assert().code(3);
}
