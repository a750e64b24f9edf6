//! The commands that list and change names in a pool.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::*;
use tempfile::TempDir;

/// Makes a pool with `a/b/one` (11 bytes), `a/two` (2000 bytes) and `a/.hidden`.
fn small_pool() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let tree = directory.path().join("a");
    fs::create_dir_all(tree.join("b")).unwrap();
    fs::write(tree.join("b/one"), "content one").unwrap();
    fs::write(tree.join("two"), random_bytes(2000, 3)).unwrap();
    fs::write(tree.join(".hidden"), "").unwrap();
    let pool = directory.path().join("pool.hpk");
    hardpack().args(["put", "-q"]).args([&tree, &pool]).assert().success().stdout("").stderr("");
    (directory, pool)
}

fn run(command: &[&str], path: &Path) -> String {
    stdout_of(hardpack().args(command).arg(path))
}

#[test]
fn names_are_listed() {
    let (_directory, pool) = small_pool();
    let shown = pool.display();
    assert_eq!(run(&["ls"], &pool), "a\n");
    assert_eq!(run(&["ls"], &pool.join("a")), "b\ntwo\n");
    assert_eq!(run(&["ls", "-a0"], &pool.join("a")), ".hidden\0b\0two\0");
    assert_eq!(run(&["ls", "-d"], &pool.join("a")), format!("{shown}/a\n"));
    assert_eq!(
        run(&["ls", "-R"], &pool),
        format!("{shown}:\na\n\n{shown}/a:\nb\ntwo\n\n{shown}/a/b:\none\n")
    );
    let long = run(&["ls", "-l"], &pool.join("a"));
    let lines: Vec<Vec<&str>> =
        long.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(lines[0][0].starts_with("drwx") && lines[1][0].starts_with("-rw-"), "{long}");
    assert_eq!((lines[1][1], lines[1][4], lines[1][7]), ("1", "2000", "two"), "{long}");
    let json = run(&["ls", "--json"], &pool.join("a/two"));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((json["type"].as_str(), json["len"].as_u64()), (Some("file"), Some(2000)));
    assert_eq!(
        run(&["tree"], &pool),
        format!(
            "{shown}\n└── a\n    ├── b\n    │   └── one\n    └── two\n\n2 directories, 2 files\n"
        )
    );
    assert_eq!(
        run(&["find", "--name", "*o*", "--type", "f"], &pool),
        format!("{shown}/a/b/one\n{shown}/a/two\n")
    );
    assert_eq!(run(&["find", "--size", "+1K"], &pool), format!("{shown}/a/two\n"));
    assert_eq!(run(&["cat"], &pool.join("a/b/one")), "content one");
    let stat = run(&["stat"], &pool.join("a/b/one"));
    assert!(stat.contains("length    11\n") && stat.contains("type      file\n"), "{stat}");
    let du = run(&["du", "-p"], &pool.join("a"));
    let last: Vec<&str> = du.lines().last().unwrap().split('\t').collect();
    assert_eq!((last[0], last[3]), ("2011", &*format!("{shown}/a")), "{du}");
    assert_eq!(du.lines().count(), 2, "{du}");
    let sum = run(&["du", "-s", "--json"], &pool);
    let sum: serde_json::Value = serde_json::from_str(&sum).unwrap();
    assert_eq!((sum["files"].as_u64(), sum["logical_bytes"].as_u64()), (Some(3), Some(2011)));
}

#[test]
fn names_are_made_moved_and_removed() {
    let (_directory, pool) = small_pool();
    let at = |path: &str| pool.join(path);
    hardpack().arg("mkdir").arg(at("x/y")).assert().code(3);
    hardpack().args(["mkdir", "-p"]).arg(at("x/y")).assert().success();
    hardpack().args(["mkdir", "-p"]).arg(at("x/y")).assert().success();
    hardpack().arg("mkdir").arg(at("x/y")).assert().code(3);
    hardpack().arg("mv").args([at("a/two"), at("x/y")]).assert().success();
    hardpack().arg("mv").args([at("x/y/two"), at("x/three")]).assert().success();
    hardpack().arg("mv").args([at("x"), at("x/y")]).assert().code(3);
    hardpack().arg("ln").args([at("x/three"), at("x/y/same")]).assert().success();
    hardpack().args(["ln", "-s", "../three"]).arg(at("x/y/link")).assert().success();
    hardpack().args(["ln", "-s", "../three"]).arg(at("x/y/link")).assert().code(3);
    hardpack().args(["ln", "-sf", "../../a/b/one"]).arg(at("x/y/link")).assert().success();
    assert_eq!(run(&["cat"], &at("x/y/link")), "content one");
    let long = run(&["ls", "-l"], &at("x/y"));
    assert!(long.contains(" link -> ../../a/b/one\n"), "{long}");
    // Both names lead to the same file.
    let one = json_of(hardpack().args(["stat", "--json"]).arg(at("x/three")));
    let other = json_of(hardpack().args(["stat", "--json"]).arg(at("x/y/same")));
    assert_eq!((&one["number"], &one["links"]), (&other["number"], &serde_json::json!(2)));
    hardpack().args(["ln", "-f"]).args([at("x/three"), at("x/y/same")]).assert().success();
    hardpack().arg("rm").arg(at("x/three")).assert().success();
    let left = json_of(hardpack().args(["stat", "--json"]).arg(at("x/y/same")));
    assert_eq!((&left["number"], &left["links"]), (&one["number"], &serde_json::json!(1)));

    let stderr = stderr_of(hardpack().arg("rm").arg(at("x")), 3);
    assert!(stderr.contains("it is a directory\nhint: -r "), "{stderr}");
    let stderr = stderr_of(hardpack().args(["rm", "-r"]).arg(&pool), 3);
    assert!(stderr.contains("no name in the pool"), "{stderr}");
    hardpack().arg("rm").arg(at("missing")).assert().code(3);
    hardpack().args(["rm", "-f"]).arg(at("missing")).assert().success();
    hardpack().args(["rm", "-r"]).args([at("x"), at("a")]).assert().success();
    assert_eq!(run(&["ls", "-a"], &pool), "");
    hardpack().args(["check", "-q"]).arg(&pool).assert().success();
}

#[test]
fn properties_have_a_source() {
    let (directory, pool) = small_pool();
    let shown = pool.display();
    let at = |path: &str| pool.join(path);
    hardpack().args(["set", "compression=zstd-9", "recordsize=64K"]).arg(&pool).assert().success();
    hardpack().args(["set", "compression=lz4"]).args([at("a/b"), at("a/two")]).assert().success();
    assert_eq!(
        run(&["get", "-rH", "compression"], &pool),
        format!(
            "{shown}\tcompression\tzstd-9\tlocal\n\
             {shown}/a\tcompression\tzstd-9\tinherited from {shown}\n\
             {shown}/a/.hidden\tcompression\tzstd-9\tinherited from {shown}\n\
             {shown}/a/b\tcompression\tlz4\tlocal\n\
             {shown}/a/b/one\tcompression\tlz4\tinherited from {shown}/a/b\n\
             {shown}/a/two\tcompression\tlz4\tlocal\n"
        )
    );
    assert_eq!(
        run(&["get", "-Hp", "-o", "value,source", "recordsize,checksum"], &at("a/b")),
        format!("65536\tinherited from {shown}\nxxh3\tdefault\n")
    );
    let table = run(&["get", "-o", "property,value", "compression"], &at("a"));
    assert_eq!(table, "PROPERTY     VALUE\ncompression  zstd-9\n");
    let json =
        json_of(hardpack().args(["get", "--json", "compression"]).args([at("a"), at("a/b")]));
    assert_eq!(json[1]["source"], "local");
    // New data follows the properties, which differ between parts of the pool.
    let text = directory.path().join("text");
    // Long enough that records are not embedded in their pointers.
    let lines: String = (0..20_000_u64).map(|i| format!("line {i} of {}\n", i * i)).collect();
    fs::write(&text, lines).unwrap();
    let records = || {
        let info = json_of(hardpack().args(["info", "--json"]).arg(&pool));
        ["lz4", "zstd"].map(|codec| info["codecs"][codec]["records"].as_u64().unwrap_or(0))
    };
    let mut before = records();
    for (to, index) in [("a/b/new", 0), ("a/new", 1)] {
        hardpack().args(["put", "-q"]).args([&text, &at(to)]).assert().success();
        let after = records();
        assert!(after[index] > before[index], "{to}: {before:?}, {after:?}");
        assert_eq!(after[1 - index], before[1 - index], "{to}");
        before = after;
    }
    let noted = hardpack().args(["set", "compression=zstd-5"]).arg(at("a")).assert().success();
    let noted = String::from_utf8_lossy(&noted.get_output().stderr).into_owned();
    assert!(noted.contains("note: 'b' has its own compression"), "{noted}");
    hardpack().args(["inherit", "-r", "compression"]).arg(&pool).assert().success();
    let all = run(&["get", "-rHo", "source", "compression"], &pool);
    assert!(all.lines().all(|line| line == "default"), "{all}");
    let all = run(&["get", "all"], &at("a"));
    assert!(all.contains("logicalused") && !all.contains("guid"), "{all}");
    hardpack().args(["get", "all"]).arg(at("missing")).assert().code(3);
    hardpack().args(["set", "colour=red"]).arg(&pool).assert().code(2);
}

#[test]
fn a_pool_is_created_with_properties() {
    let directory = tempfile::tempdir().unwrap();
    let pool = directory.path().join("new.hpk");
    hardpack()
        .args(["create", "--compression", "lz4", "-o", "recordsize=1M"])
        .arg(&pool)
        .assert()
        .success();
    assert_eq!(run(&["get", "-Ho", "value", "compression,recordsize"], &pool), "lz4\n1M\n");
    assert_eq!(run(&["ls"], &pool), "");
    hardpack().args(["check", "-q"]).arg(&pool).assert().success();
    hardpack().arg("info").arg(&pool).assert().success();
    let stderr = stderr_of(hardpack().arg("create").arg(&pool), 3);
    assert!(stderr.contains("it already exists"), "{stderr}");
    assert_eq!(names_beside(&pool), ["new.hpk"]);
}

#[test]
fn commands_say_which_file_they_want() {
    let (directory, pool) = small_pool();
    for command in ["unpack", "cat", "sql"] {
        let stderr = stderr_of(hardpack().arg(command).arg(&pool), 3);
        assert!(stderr.contains("hint: name "), "{command}: {stderr}");
    }
    let out = directory.path().join("out");
    hardpack().args(["unpack", "-q"]).args([&pool.join("a/b/one"), &out]).assert().success();
    assert_eq!(fs::read(&out).unwrap(), b"content one");
    for command in ["info", "check", "compact"] {
        let stderr = stderr_of(hardpack().arg(command).arg(pool.join("a")), 3);
        assert!(stderr.contains("this works on a whole pool"), "{command}: {stderr}");
    }
    hardpack()
        .args(["repack", "-q", "--compression", "zstd-19"])
        .arg(pool.join("a"))
        .assert()
        .success();
    hardpack().args(["check", "-q"]).arg(&pool).assert().success();
    let stderr = stderr_of(hardpack().arg("ls").arg(pool.join("a@monday")), 3);
    assert!(stderr.contains("no such file or snapshot: monday"), "{stderr}");
    let plain = directory.path().join("a/two");
    hardpack().arg("ls").arg(&plain).assert().code(4);
    hardpack().arg("ls").arg(directory.path()).assert().code(4);
}

#[test]
fn a_lone_database_goes_by_the_name_of_its_pool() {
    let (_directory, path) = directory_with("words.db", b"");
    make_database(&path, 4096, 10);
    let pool = pack(&path);
    assert_eq!(run(&["ls"], &pool), "words.db\n");
    assert_eq!(stdout_of(hardpack().arg("sql").arg(&pool).arg("SELECT count(*) FROM t")), "10\n");
    hardpack().args(["set", "compression=zstd-9"]).arg(&pool).assert().success();
    let source = run(&["get", "-Ho", "source", "compression"], &pool.join("words.db"));
    assert_eq!(source, format!("inherited from {}\n", pool.display()));
    let bytes = hardpack().arg("cat").arg(&pool).assert().success().get_output().stdout.clone();
    assert_eq!(bytes, fs::read(&path).unwrap());
}

#[test]
fn odd_names_are_shown_as_they_are_to_programs() {
    let directory = tempfile::tempdir().unwrap();
    let name = OsString::from_vec(b"\x1b[31mred\xff".to_vec());
    fs::write(directory.path().join(&name), "").unwrap();
    let pool = directory.path().join("pool.hpk");
    hardpack().args(["put", "-q"]).args([&directory.path().join(&name), &pool]).assert().success();
    let shown = hardpack().arg("ls").arg(&pool).assert().success().get_output().stdout.clone();
    assert_eq!(shown, [name.as_encoded_bytes(), b"\n"].concat());
    // Output for people is escaped.
    let stderr = stderr_of(hardpack().arg("cat").arg(pool.join(&name).join("x")), 3);
    assert!(stderr.contains("/\\x1b[31mred\\xff/x': "), "{stderr:?}");
    let json = run(&["ls", "--json"], &pool);
    assert!(json.contains("name_hex") && json.contains("1b5b33316d726564ff"), "{json}");
}

#[test]
fn a_reader_of_names_that_leaves_is_no_failure() {
    let directory = tempfile::tempdir().unwrap();
    let tree = directory.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for i in 0..3000 {
        fs::write(tree.join(format!("{i:0100}")), "").unwrap();
    }
    let pool = directory.path().join("pool.hpk");
    hardpack().args(["put", "-q"]).args([&tree, &pool]).assert().success();
    for command in [&["ls", "-l"][..], &["find"], &["tree"], &["get", "-rH", "compression"]] {
        let mut child = Command::new(assert_cmd::cargo::cargo_bin!("hardpack"))
            .args(command)
            .arg(pool.join("tree"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{command:?}: {line}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{command:?}");
    }
}

#[test]
fn an_interrupted_put_leaves_a_whole_pool_and_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let tree = directory.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for i in 0..40 {
        fs::write(tree.join(format!("{i}")), random_bytes(1 << 20, i)).unwrap();
    }
    let pool = directory.path().join("pool.hpk");
    let mut child = Command::new(assert_cmd::cargo::cargo_bin!("hardpack"))
        .args(["put", "-q", "-o", "compression=zstd-19"])
        .args([&tree, &pool])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while fs::metadata(&pool).map_or(0, |metadata| metadata.len()) < 4 << 20 {
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(child.try_wait().unwrap().is_none(), "it was faster than the signal");
    }
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    hardpack().args(["check", "-q"]).arg(&pool).assert().success();
    let done = json_of(hardpack().args(["put", "-q", "--json"]).args([&tree, &pool]));
    assert!(done["unchanged"].as_u64().unwrap() > 0, "{done}");
    assert_eq!(done["files"].as_u64().unwrap() + done["unchanged"].as_u64().unwrap(), 40, "{done}");
    let out = directory.path().join("out");
    hardpack().args(["extract", "-q"]).args([&pool, &out]).assert().success();
    for i in 0..40 {
        assert_same(&tree.join(format!("{i}")), &out.join(format!("tree/{i}")));
    }
}

#[test]
fn snapshots_open_by_name() {
    use hardpack_engine::device::FileDevice;
    use hardpack_engine::pool::{Options, Pool, ROOT};

    let (directory, path) = small_pool();
    let at = |name: &str| PathBuf::from(format!("{}{name}", path.display()));
    let pool =
        Pool::open(std::sync::Arc::new(FileDevice::open(&path).unwrap()), Options::new(1 << 20));
    let pool = pool.unwrap();
    pool.create_snapshot(ROOT, b"monday", 1).unwrap();
    pool.create_snapshot(pool.resolve(b"a/b").unwrap().file, b"of b", 2).unwrap();
    pool.close().unwrap();
    drop(pool);
    let new = directory.path().join("new");
    fs::write(&new, "something new").unwrap();
    hardpack().args(["put", "-q"]).args([&new, &at("/a/b/one")]).assert().success();
    hardpack().arg("rm").arg(at("/a/two")).assert().success();
    assert_eq!(run(&["cat"], &at("/a/b/one")), "something new");
    for old in ["@monday/a/b/one", "/a/b/one@monday", "/a@monday/b/one", "/a/b@of b/one"] {
        assert_eq!(run(&["cat"], &at(old)), "content one", "{old}");
    }
    assert_eq!(run(&["ls"], &at("/a@monday")), "b\ntwo\n");
    let two = hardpack().arg("cat").arg(at("/a/two@monday")).assert().success();
    assert_eq!(two.get_output().stdout, random_bytes(2000, 3));
    let out = directory.path().join("out");
    hardpack().args(["extract", "-q"]).args([&at("/a@monday"), &out]).assert().success();
    assert_eq!(fs::read(out.join("a/b/one")).unwrap(), b"content one");
    let stderr = stderr_of(hardpack().arg("ls").arg(at("/a@tuesday")), 3);
    assert!(stderr.contains("no such file or snapshot: tuesday"), "{stderr}");
    let stderr = stderr_of(hardpack().arg("rm").arg(at("@monday/a/two")), 3);
    assert!(stderr.contains("a snapshot cannot be changed"), "{stderr}");
    // A name that itself contains the '@' takes precedence.
    hardpack().args(["put", "-q"]).args([&new, &at("/a@monday")]).assert().success();
    assert_eq!(run(&["cat"], &at("/a@monday")), "something new");
}

#[test]
fn salvage_gives_back_directories() {
    let (directory, pool) = small_pool();
    hardpack().args(["ln", "-s", "b/one"]).arg(pool.join("a/link")).assert().success();
    let out = directory.path().join("out");
    hardpack().args(["salvage", "-q"]).args([&pool, &out]).assert().success();
    assert_eq!(fs::read(out.join("a/b/one")).unwrap(), b"content one");
    assert_eq!(fs::read(out.join("a/link")).unwrap(), b"content one");
    assert_same(&out.join("a/two"), &directory.path().join("a/two"));
}

#[test]
fn several_databases_live_in_one_pool() {
    let directory = tempfile::tempdir().unwrap();
    let tree = directory.path().join("dbs");
    fs::create_dir(&tree).unwrap();
    for (name, rows) in [("one.db", 10), ("two.db", 20)] {
        make_database(&tree.join(name), 4096, rows);
    }
    let pool = directory.path().join("pool.hpk");
    hardpack().args(["put", "-q"]).args([&tree, &pool]).assert().success();
    let sql = |name: &str, sql: &str| {
        stdout_of(hardpack().arg("sql").arg(pool.join("dbs").join(name)).arg(sql))
    };
    assert_eq!(sql("one.db", "SELECT count(*) FROM t"), "10\n");
    sql("two.db", "DELETE FROM t WHERE a > 15");
    assert_eq!(sql("two.db", "SELECT count(*) FROM t"), "15\n");
    let checked = json_of(hardpack().args(["check", "-q", "--json"]).arg(&pool));
    assert_eq!((&checked["databases"], &checked["ok"]), (&2.into(), &true.into()), "{checked}");
    hardpack()
        .args(["repack", "-q", "--compression", "zstd-9"])
        .arg(pool.join("dbs"))
        .assert()
        .success();
    let out = directory.path().join("two.db");
    hardpack().args(["unpack", "-q"]).args([&pool.join("dbs/two.db"), &out]).assert().success();
    assert_eq!(count_rows(&out), 15);
    let hint = stderr_of(hardpack().arg("pack").args([&out, &pool.join("three.db")]), 3);
    assert!(hint.contains("'hardpack put "), "{hint}");
}
