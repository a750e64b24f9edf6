//! What people read: names that could act on a terminal are escaped wherever a command prints them,
//! and a path that leads nowhere says where it stops.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::*;
use rustix::fs::OFlags;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use tempfile::TempDir;

/// ESC, newline, tab, backslash, DEL, U+0085, U+009B, a bidi override, and a byte that is no UTF-8.
const WEIRD: &[u8] = b"w\x1b[31m\n\t\\\x7f\xc2\x85\xc2\x9b\xe2\x80\xae\x9b";
const ESCAPED: &str = r"w\x1b[31m\n\t\\\x7f\u0085\u009b\u202e\x9b";

fn weird() -> OsString {
    OsString::from_vec(WEIRD.to_vec())
}

/// A pool with a file, a directory and a link of that name. The file changed since the snapshot,
/// which has the same name.
fn pool() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let tree = directory.path().join("tree");
    let deep = tree.join("d").join(weird());
    fs::create_dir_all(&deep).unwrap();
    fs::write(tree.join(weird()), "content").unwrap();
    fs::write(deep.join("inner"), "inner").unwrap();
    std::os::unix::fs::symlink(weird(), tree.join("link")).unwrap();
    let pool = directory.path().join("p.hpk");
    hardpack().args(["put", "-q"]).args([&tree.join(""), &pool]).assert().success();
    hardpack().arg("snapshot").arg(at_snapshot(&pool)).assert().success();
    fs::write(tree.join(weird()), "changed").unwrap();
    hardpack().args(["put", "-q"]).args([&tree.join(""), &pool]).assert().success();
    hardpack().args(["set", "compression=zstd-9"]).arg(pool.join(weird())).assert().success();
    (directory, pool)
}

/// The pool at the snapshot of that name.
fn at_snapshot(pool: &Path) -> OsString {
    [pool.as_os_str(), OsStr::new("@"), &weird()].into_iter().collect()
}

/// Runs a command with its standard output on a terminal. Returns what the terminal got and stderr.
fn on_terminal(args: &[&OsStr]) -> (Vec<u8>, String) {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let other = rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY, rustix::fs::Mode::empty());
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("hardpack"));
    command.args(args).stdin(Stdio::null());
    command.stdout(Stdio::from(other.unwrap())).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    // Or the terminal would stay open at the other end.
    drop(command);
    let (mut out, mut part) = (Vec::new(), [0; 4096]);
    let mut terminal = File::from(terminal);
    // The end is an error (EIO).
    while let Ok(n @ 1..) = terminal.read(&mut part) {
        out.extend_from_slice(&part[..n]);
    }
    let ended = child.wait_with_output().unwrap();
    // The terminal gets a line break as two bytes.
    let mut shown: Vec<u8> = Vec::new();
    for byte in out {
        if byte == b'\n' && shown.last() == Some(&b'\r') {
            shown.pop();
        }
        shown.push(byte);
    }
    (shown, String::from_utf8(ended.stderr).unwrap())
}

/// Whether nothing in it acts on a terminal, but line breaks.
fn is_harmless(text: &[u8]) -> bool {
    let is_bad = |c: char| c != '\n' && c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c);
    std::str::from_utf8(text).is_ok_and(|text| !text.contains(is_bad))
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

#[test]
fn lists_are_escaped_on_a_terminal_and_exact_for_programs() {
    let (_directory, pool) = pool();
    for list in [&["ls"][..], &["ls", "-l"], &["ls", "-R"], &["find"], &["du", "-a"]] {
        let mut args: Vec<&OsStr> = list.iter().map(OsStr::new).collect();
        args.push(pool.as_os_str());
        let (shown, _) = on_terminal(&args);
        assert!(is_harmless(&shown), "{list:?}: {}", shown.escape_ascii());
        assert!(contains(&shown, ESCAPED.as_bytes()), "{list:?}: {}", shown.escape_ascii());
        let piped = hardpack().args(&args).assert().success().get_output().stdout.clone();
        assert!(contains(&piped, WEIRD), "{list:?}: {}", piped.escape_ascii());
        args.insert(1, OsStr::new("-0"));
        for out in [
            on_terminal(&args).0,
            hardpack().args(&args).assert().success().get_output().stdout.clone(),
        ] {
            assert!(contains(&out, WEIRD), "{list:?}: {}", out.escape_ascii());
            assert!(out.contains(&0), "{list:?}");
        }
        args[1] = OsStr::new("--json");
        let json = hardpack().args(&args).assert().success().get_output().stdout.clone();
        let names: Vec<serde_json::Value> =
            json.split(|b| *b == b'\n').filter_map(|l| serde_json::from_slice(l).ok()).collect();
        let lossy = String::from_utf8_lossy(WEIRD);
        let is_it = |v: &serde_json::Value| v["name"].as_str().is_some_and(|n| n.contains(&*lossy));
        assert!(names.iter().any(is_it), "{list:?}: {}", json.escape_ascii());
    }
}

#[test]
fn what_is_for_people_is_escaped_everywhere() {
    let (directory, pool) = pool();
    let (at, file) = (at_snapshot(&pool), pool.join(weird()));
    let out = directory.path().join("out");
    fs::create_dir(&out).unwrap();
    let commands: [(&[&str], &[&OsStr], bool); 12] = [
        (&["tree"], &[pool.as_os_str()], true),
        (&["stat"], &[file.as_os_str()], true),
        (&["list"], &[pool.as_os_str()], true),
        (&["list", "-H"], &[pool.as_os_str()], true),
        (&["diff"], &[&at], true),
        (&["get", "-r", "compression"], &[pool.as_os_str()], true),
        (&["get", "-rH", "compression"], &[pool.as_os_str()], true),
        (&["info"], &[pool.as_os_str()], false),
        (&["check"], &[pool.as_os_str()], false),
        (&["stats"], &[pool.as_os_str()], false),
        (&["salvage"], &[pool.as_os_str(), out.as_os_str()], true),
        (&["extract", "-q"], &[file.as_os_str(), out.as_os_str()], false),
    ];
    for (command, operands, is_named) in commands {
        let args: Vec<&OsStr> =
            command.iter().map(OsStr::new).chain(operands.iter().copied()).collect();
        let (shown, stderr) = on_terminal(&args);
        // Fields of -H are apart by tabs.
        let shown: Vec<u8> = match command.iter().any(|word| word.ends_with('H')) {
            true => shown.into_iter().filter(|byte| *byte != b'\t').collect(),
            false => shown,
        };
        assert!(is_harmless(&shown), "{command:?}: {}", shown.escape_ascii());
        assert!(is_harmless(stderr.as_bytes()), "{command:?}: {stderr:?}");
        if is_named {
            assert!(contains(&shown, ESCAPED.as_bytes()), "{command:?}: {}", shown.escape_ascii());
        }
    }
}

#[test]
fn errors_and_notes_are_escaped() {
    let (directory, pool) = pool();
    let missing = |name: &str| pool.join(weird()).join(name).into_os_string();
    let other = directory.path().join(weird());
    let pool_name = pool.clone().into_os_string();
    let dead: OsString = [pool.as_os_str(), OsStr::new("@no"), &weird()].into_iter().collect();
    let commands: [(&[&str], &[&OsStr]); 14] = [
        (&["ls"], &[&missing("x")]),
        (&["find"], &[&missing("x")]),
        (&["tree"], &[&missing("x")]),
        (&["cat"], &[&missing("x")]),
        (&["stat"], &[&missing("x")]),
        (&["du"], &[&missing("x")]),
        (&["rm"], &[&missing("x")]),
        (&["mkdir"], &[&missing("x")]),
        (&["mv"], &[&missing("x"), &pool_name]),
        (&["info"], &[other.as_os_str()]),
        (&["check"], &[other.as_os_str()]),
        (&["unpack"], &[other.as_os_str(), OsStr::new("nowhere")]),
        (&["destroy"], &[&dead]),
        (&["put"], &[other.as_os_str(), &pool_name]),
    ];
    for (command, operands) in commands {
        let failed = hardpack().args(command).args(operands).assert().failure();
        let stderr = failed.get_output().stderr.clone();
        assert!(is_harmless(&stderr), "{command:?}: {}", stderr.escape_ascii());
        assert!(contains(&stderr, ESCAPED.as_bytes()), "{command:?}: {}", stderr.escape_ascii());
    }
    // Notes about what has no place in a stream of tar.
    let tree = directory.path().join("socket");
    fs::create_dir(&tree).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(tree.join(weird())).unwrap();
    hardpack().args(["put", "-q"]).args([&tree, &pool]).assert().success();
    let (from, to) = (pool.join("socket"), directory.path().join("out.tar"));
    let noted = hardpack().args(["extract", "-q", "--tar"]).args([&from, &to]).assert().success();
    let stderr = noted.get_output().stderr.clone();
    assert!(is_harmless(&stderr), "{}", stderr.escape_ascii());
    assert!(contains(&stderr, ESCAPED.as_bytes()), "{}", stderr.escape_ascii());
}

/// Names that the shell puts in for a pattern may look like options, or stand where a value is due.
#[test]
fn wrong_usage_is_escaped() {
    let (_directory, pool) = pool();
    // Where only text is possible, other bytes are refused without being shown.
    let (text, escaped) = (&WEIRD[..WEIRD.len() - 1], ESCAPED.strip_suffix(r"\x9b").unwrap());
    let with = |front: &str| OsString::from_vec([front.as_bytes(), text].concat());
    let (option, value, assignment) = (with("--"), with("--compression="), with("compression="));
    let (pool, weird) = (pool.as_os_str(), with(""));
    let group = with("-h");
    let commands: [&[&OsStr]; 7] = [
        &[OsStr::new("ls"), &option, pool],
        &[OsStr::new("tree"), &group, pool],
        &[OsStr::new("create"), &value, pool],
        &[OsStr::new("set"), &assignment, pool],
        &[OsStr::new("get"), &weird, pool],
        &[OsStr::new("rewind"), pool, &weird],
        &[&weird],
    ];
    for command in commands {
        let failed = hardpack().args(command).assert().code(2);
        let stderr = failed.get_output().stderr.clone();
        assert!(is_harmless(&stderr), "{command:?}: {}", stderr.escape_ascii());
        assert!(contains(&stderr, escaped.as_bytes()), "{command:?}: {}", stderr.escape_ascii());
    }
}

#[test]
fn json_keeps_the_bytes_of_every_name() {
    let (_directory, pool) = pool();
    let at = at_snapshot(&pool);
    let digits: String = WEIRD.iter().map(|byte| format!("{byte:02x}")).collect();
    let commands: [(&[&str], &OsStr, &str); 6] = [
        (&["ls"], pool.as_os_str(), "name_hex"),
        (&["find"], pool.as_os_str(), "name_hex"),
        (&["du", "-a"], pool.as_os_str(), "name_hex"),
        (&["get", "-r", "compression"], pool.as_os_str(), "name_hex"),
        (&["list"], pool.as_os_str(), "name_hex"),
        (&["diff"], &at, "path_hex"),
    ];
    for (command, operand, field) in commands {
        let done = hardpack().args(command).arg("--json").arg(operand).assert().success();
        let text = String::from_utf8(done.get_output().stdout.clone()).unwrap();
        let is_it = |line: &str| line.contains(&format!("\"{field}\"")) && line.contains(&digits);
        let has_it = text.split(['\n', ',']).any(is_it);
        assert!(has_it, "{command:?}: {text}");
    }
}

/// Runs `cat` on something that is not there, and returns what it says.
fn missing(pool: &Path, path: &str) -> String {
    let done = hardpack().arg("cat").arg(pool.join(path)).assert().code(3);
    String::from_utf8(done.get_output().stderr.clone()).unwrap()
}

#[test]
fn a_path_that_leads_nowhere_names_what_is_near() {
    let directory = tempfile::tempdir().unwrap();
    let tree = directory.path().join("tree");
    fs::create_dir_all(tree.join("Tree/sub")).unwrap();
    fs::create_dir_all(tree.join("trees")).unwrap();
    for file in ["Tree/a", "Tree/sub/words.db", "notes.txt", "trees/b"] {
        fs::write(tree.join(file), file).unwrap();
    }
    std::os::unix::fs::symlink("nowhere/at/all", tree.join("link")).unwrap();
    let pool = directory.path().join("p.hpk");
    hardpack().args(["put", "-q"]).args([&tree.join(""), &pool]).assert().success();
    let shown = pool.display();
    for (path, reason, hint) in [
        ("tree/a", "no such file: tree/a", format!("hint: did you mean '{shown}/Tree/a'?")),
        ("Tree/b", "no such file: Tree/b", format!("hint: did you mean '{shown}/Tree/a'?")),
        ("notes", "no such file: notes", format!("hint: did you mean '{shown}/notes.txt'?")),
        ("Tree/sbu/words.db", "no such file", format!("did you mean '{shown}/Tree/sub/words.db'?")),
        ("Tree/sub/words", "no such file", format!("did you mean '{shown}/Tree/sub/words.db'?")),
        ("unlike/deep/file", "no such file", format!("hint: there is no 'unlike' in '{shown}'")),
        ("Tree/unlike/file", "no such file", format!("there is no 'unlike' in '{shown}/Tree'")),
        ("notes.txt/x", "'notes.txt' is not a directory", String::new()),
        ("link", "'link' is a symbolic link to 'nowhere/at/all', which does not", String::new()),
        ("Tree/entirely-different", "no such file: Tree/entirely-different\n", String::new()),
    ] {
        let stderr = missing(&pool, path);
        assert!(
            stderr.starts_with(&format!("hardpack: cannot read '{shown}/{path}': ")),
            "{stderr}"
        );
        assert!(stderr.contains(reason) && stderr.contains(&hint), "{path}: {stderr}");
        assert_eq!(stderr.lines().count(), if hint.is_empty() { 1 } else { 2 }, "{path}: {stderr}");
    }
    // Both are equally near.
    let stderr = missing(&pool, "tree");
    assert!(
        stderr.contains(&format!("did you mean '{shown}/Tree' or '{shown}/trees'?")),
        "{stderr}"
    );
    // A name that is to be made is not missing, its directory is.
    for command in [&["mkdir"][..], &["ln", "-s", "target"]] {
        let done = hardpack().args(command).arg(pool.join("tree/new")).assert().code(3);
        let stderr = String::from_utf8(done.get_output().stderr.clone()).unwrap();
        assert!(stderr.contains("no such file: tree") && stderr.contains("/Tree'"), "{stderr}");
    }
    let done = hardpack().arg("snapshot").arg(pool.join("trees/c@monday")).assert().code(3);
    let stderr = String::from_utf8(done.get_output().stderr.clone()).unwrap();
    assert!(stderr.contains(&format!("did you mean '{shown}/trees/b'?")), "{stderr}");
    hardpack().args(["rm", "-f"]).arg(pool.join("tree/a")).assert().success();
}

/// `info` names who reads an older state, whose space cannot be reused meanwhile.
#[test]
fn info_names_the_readers() {
    let (directory, pool) = packed_as("a.db", 10);
    let database = pool.join("a.db");
    succeeds(directory.path(), &["set", "concurrency=snapshot", "a.db.hpk"]);
    let mut reader = Session::open(&database);
    reader.run("begin; select count(*) from sqlite_schema;");
    Session::open(&database).run("create table one(a); create table two(a);");
    let info = stdout_of(hardpack().arg("info").arg(&pool));
    let line = info.lines().find(|line| line.starts_with("read by")).unwrap();
    let expected = format!("(process {}), the state 2 commits ago, as of 20", reader.id());
    assert!(line.contains(&expected), "{line}");
    let json = json_of(hardpack().args(["info", "--json"]).arg(&pool));
    assert_eq!(json["readers"].as_array().unwrap().len(), 1);
    reader.run("commit;");
    assert!(!stdout_of(hardpack().arg("info").arg(&pool)).contains("read by"));
}

/// As with the system's own commands, a link that leads nowhere stands for itself, unless a slash
/// behind it asks for what it leads to.
#[test]
fn a_link_that_leads_nowhere_is_shown_itself() {
    let directory = tempfile::tempdir().unwrap();
    let (tree, pool) = (directory.path().join("tree"), directory.path().join("p.hpk"));
    fs::create_dir(&tree).unwrap();
    std::os::unix::fs::symlink("nowhere", tree.join("link")).unwrap();
    std::os::unix::fs::symlink("link", tree.join("second")).unwrap();
    hardpack().args(["put", "-q"]).args([&tree.join(""), &pool]).assert().success();
    let commands: [&[&str]; 5] =
        [&["ls"], &["ls", "-d"], &["find"], &["du", "-s", "--apparent-size"], &["ls", "-l"]];
    for command in commands {
        for name in ["link", "second"] {
            let there = Command::new(command[0]).args(&command[1..]).arg(tree.join(name)).output();
            assert!(there.unwrap().status.success(), "{command:?} {name}");
            let command: Vec<_> = command.iter().filter(|word| !word.starts_with("--")).collect();
            let shown = hardpack().args(&command).arg(pool.join(name)).assert().success();
            let shown = String::from_utf8(shown.get_output().stdout.clone()).unwrap();
            let shown = shown.lines().last().unwrap().to_string();
            let at = pool.join(name).display().to_string();
            match command[..] {
                [_, &"-l"] => assert!(shown.starts_with('l') && shown.contains(&at), "{shown}"),
                _ => assert!(shown.ends_with(&at), "{command:?}: {shown}"),
            }
            hardpack().args(&command).arg(pool.join(name).join("")).assert().code(3);
        }
    }
}
