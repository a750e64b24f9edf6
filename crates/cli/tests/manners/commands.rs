//! The output, failures and exit codes of the other commands.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::*;
use rusqlite::functions::FunctionFlags;

#[test]
fn info_shows_what_is_there() {
    let (_directory, path) = directory_with("data.db", b"");
    make_database(&path, 4096, 20_000);
    let pool = pack(&path);
    let json = json_of(hardpack().args(["info", "--json"]).arg(&pool));
    let pool_bytes = fs::metadata(&pool).unwrap().len();
    assert_eq!(json["file"], "data.db");
    assert_eq!(json["logical_bytes"], fs::metadata(&path).unwrap().len());
    assert_eq!(json["pool_bytes"], pool_bytes);
    let bytes = |name: &str| json[name].as_u64().unwrap();
    let parts = ["data_bytes", "metadata_bytes", "free_bytes", "fixed_bytes"].map(bytes);
    assert_eq!(parts.iter().sum::<u64>(), pool_bytes);
    assert!(json["compressratio"].as_f64().unwrap() > 2.0);
    assert_eq!(json["codecs"]["zstd"]["stored_bytes"], json["stored_bytes"]);
    assert_eq!(json["guid"].as_str().unwrap().len(), 32);
    let text = stdout_of(hardpack().args(["info", "-p"]).arg(&pool));
    assert!(text.contains(&format!("{pool_bytes}\n")), "{text}");
    for word in ["data.db", "CODEC", "zstd", "recordsize", "default"] {
        assert!(text.contains(word), "{text}");
    }
}

/// Space held only by snapshots does not count as data, however it is shared.
#[test]
fn info_tells_what_only_snapshots_hold() {
    let (_directory, path) = directory_with("data", &random_bytes(500_000, 1));
    let pool = pack(&path);
    let parts = || {
        let json = json_of(hardpack().args(["info", "--json"]).arg(&pool));
        let names = ["data_bytes", "metadata_bytes", "free_bytes", "snapshot_bytes", "fixed_bytes"];
        let parts = names.map(|name| json[name].as_u64().unwrap());
        assert_eq!(parts.iter().sum::<u64>(), fs::metadata(&pool).unwrap().len());
        (parts[0], parts[3])
    };
    let run = |arguments: &[&str], paths: &[&std::path::Path]| {
        hardpack().args(arguments).args(paths).assert().success();
    };
    let (data, _) = parts();
    let (file, clone) = (pool.join("data"), pool.join("clone"));
    run(&["snapshot"], &[&pool.join("data@one")]);
    run(&["clone"], &[&file, &clone]);
    run(&["snapshot"], &[&pool.join("data@two")]);
    let held_max = 100_000;
    let (with_clone, held) = parts();
    assert!(with_clone == data && held < held_max, "{with_clone}, {held}");
    // The clone still shares it with the snapshots.
    run(&["rm"], &[&file]);
    let (of_clone, held) = parts();
    assert!(of_clone == data && held < held_max, "{of_clone}, {held}");
    run(&["rm"], &[&clone]);
    let (left, held) = parts();
    assert!(left == 0 && (500_000..600_000).contains(&held), "{left}, {held}");
    let text = stdout_of(hardpack().arg("info").arg(&pool));
    assert!(text.contains("snapshots"), "{text}");
}

/// What files share counts once, as extents of their own and as parts of a segment.
#[test]
fn info_counts_shared_records_once() {
    let (directory, path) = directory_with("first", &random_bytes(700_000, 5));
    fs::write(directory.path().join("second"), fs::read(&path).unwrap()).unwrap();
    let pool = directory.path().join("pool.hpk");
    hardpack().args(["create", "-o", "dedup=on"]).arg(&pool).assert().success();
    let put = |name: &str| {
        let from = directory.path().join(name);
        hardpack().args(["put", "-q"]).arg(from).arg(&pool).assert().success();
    };
    ["first", "second"].into_iter().for_each(put);
    let mut names = Vec::new();
    for number in 0..6 {
        // Six near-copies, and another copy of each.
        let mut bytes = random_bytes(40_000, 6);
        bytes[number * 1000..][..500].copy_from_slice(&random_bytes(500, 7 + number as u64));
        for copy in ["a", "b"] {
            let name = format!("{copy}{number}");
            fs::write(directory.path().join(&name), &bytes).unwrap();
            names.push(name);
        }
    }
    names.iter().for_each(|name| put(name));
    for stage in ["put", "optimize"] {
        if stage == "optimize" {
            hardpack().args(["optimize", "-q"]).arg(&pool).assert().success();
        }
        let info = json_of(hardpack().args(["info", "--json"]).arg(&pool));
        let stats = json_of(hardpack().args(["stats", "--json"]).arg(&pool));
        let [data, referenced] =
            ["data_bytes", "referenced_bytes"].map(|name| info[name].as_u64().unwrap());
        // The share of each part of a segment is rounded.
        let once = stats["stored_once_bytes"].as_u64().unwrap();
        assert!(data.abs_diff(once) < 512, "{stage}: {data}, {once}");
        let all = stats["stored_bytes"].as_u64().unwrap();
        assert!(referenced.abs_diff(all) < 512, "{stage}: {referenced}, {all}");
        let ratio = info["dedupratio"].as_f64().unwrap();
        assert!((ratio - 2.0).abs() < 0.01, "{stage}: {ratio}");
    }
    let text = stdout_of(hardpack().arg("info").arg(&pool));
    assert!(text.contains("if nothing were shared"), "{text}");
}

#[test]
fn properties_are_shown_set_and_inherited() {
    let (_directory, path) = directory_with("a", b"content");
    let pool = pack(&path);
    let get = |what: &str| stdout_of(hardpack().args(["get", "-H", what]).arg(&pool));
    let name = pool.display();
    assert_eq!(get("compression"), format!("{name}\tcompression\tzstd-3\tdefault\n"));
    hardpack()
        .args(["set", "compression=zstd-9", "recordsize=1m"])
        .arg(&pool)
        .assert()
        .success()
        .stdout("");
    assert_eq!(
        get("compression,recordsize"),
        format!("{name}\tcompression\tzstd-9\tlocal\n{name}\trecordsize\t1M\tlocal\n")
    );
    let exact = stdout_of(hardpack().args(["get", "-Hp", "recordsize"]).arg(&pool));
    assert!(exact.contains("\t1048576\t"), "{exact}");
    let file = pool.join("a");
    let of_file = stdout_of(hardpack().args(["get", "-H", "compression"]).arg(&file));
    assert_eq!(of_file, format!("{name}/a\tcompression\tzstd-9\tinherited from {name}\n"));
    hardpack().args(["inherit", "compression"]).arg(&pool).assert().success();
    assert_eq!(get("compression"), format!("{name}\tcompression\tzstd-3\tdefault\n"));
    let all = stdout_of(hardpack().args(["get", "all"]).arg(&pool));
    assert!(all.starts_with("NAME "), "{all}");
    for word in ["compressratio", "min-savings", "checksum", "12.5%"] {
        assert!(all.contains(word), "{all}");
    }
    let json = json_of(hardpack().args(["get", "--json", "all"]).arg(&pool));
    assert!(json.as_array().unwrap().iter().any(|row| row["property"] == "recordsize"));
    hardpack().args(["check", "-q"]).arg(&pool).assert().success();
    hardpack().args(["set", "recordsize=8K"]).arg(&file).assert().success();
    let overridden = hardpack().args(["set", "recordsize=16K"]).arg(&pool).assert().success();
    assert!(String::from_utf8_lossy(&overridden.get_output().stderr).starts_with("note: 'a' has"));
    for wrong in ["compression=zstd-99", "recordsize=5K", "colour=red", "compression"] {
        hardpack().args(["set", wrong]).arg(&pool).assert().code(2);
    }
    hardpack().args(["get", "colour"]).arg(&pool).assert().code(2);
    hardpack().args(["get", "all"]).arg(pool.join("b")).assert().code(3);
}

#[test]
fn check_finds_damage() {
    let (_directory, path) = directory_with("a file", &random_bytes(1 << 20, 2));
    let pool = pack(&path);
    let text = stdout_of(hardpack().arg("check").arg(&pool));
    assert!(text.contains("no problems"), "{text}");
    let file = fs::File::options().read(true).write(true).open(&pool).unwrap();
    let (mut byte, offset) = ([0], 600_000);
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 4], offset).unwrap();

    let json = hardpack().args(["check", "-q", "--json"]).arg(&pool).assert().code(1);
    let json: serde_json::Value = serde_json::from_slice(&json.get_output().stdout).unwrap();
    assert_eq!(json["ok"], false);
    let problem = &json["problems"][0];
    assert_eq!(problem["file"], "a file");
    assert_eq!(
        problem["range"][1].as_u64().unwrap() - problem["range"][0].as_u64().unwrap(),
        131_072
    );
    let text = hardpack().args(["check"]).arg(&pool).assert().code(1);
    let text = String::from_utf8_lossy(&text.get_output().stdout).into_owned();
    assert!(text.starts_with("a file, bytes ") && text.ends_with("1 problem\n"), "{text}");

    let output = with_ending(&path, ".back");
    let stderr = stderr_of(hardpack().args(["unpack", "-q"]).args([&pool, &output]), 1);
    assert!(stderr.starts_with("hardpack: cannot unpack '"), "{stderr}");
    assert!(stderr.contains("\nhint: 'hardpack check'"), "{stderr}");
    assert_eq!(names_beside(&path), ["a file", "a file.hpk"]);
}

#[test]
fn check_runs_integrity_check() {
    let (_directory, path) = directory_with("data.db", b"");
    make_database(&path, 1024, 2000);
    let good = pack(&path);
    let json = json_of(hardpack().args(["check", "-q", "--json"]).arg(&good));
    assert_eq!(json["integrity_check"], serde_json::json!([]));
    let mut bytes = fs::read(&path).unwrap();
    bytes[3 * 1024..3 * 1024 + 100].fill(0xee);
    fs::write(&path, bytes).unwrap();
    hardpack().args(["pack", "-qf"]).arg(&path).assert().success();
    hardpack().args(["check", "-q"]).arg(&good).assert().code(1);
    hardpack().args(["check", "-q", "--no-integrity-check"]).arg(&good).assert().success();
}

/// The full-text index of SQLite's own documentation has a tokenizer that no other program knows.
#[test]
fn check_goes_on_after_an_index_with_an_unknown_tokenizer() {
    let (directory, sound) = directory_with("sound.db", b"");
    make_database(&sound, 1024, 100);
    let foreign = directory.path().join("foreign.db");
    let db = rusqlite::Connection::open(&foreign).unwrap();
    db.execute_batch(
        "create virtual table t using fts5(a);
         insert into t values ('text');
         pragma writable_schema = on;
         update sqlite_schema set sql = 'create virtual table t using fts5(a, tokenize=own)'
             where name = 't';",
    )
    .unwrap();
    drop(db);
    let pool = directory.path().join("p.hpk");
    hardpack().arg("create").arg(&pool).assert().success();
    hardpack().args(["put", "-q"]).args([&foreign, &sound, &pool]).assert().success();
    let json = json_of(hardpack().args(["check", "-q", "--json"]).arg(&pool));
    assert_eq!((&json["ok"], &json["databases"]), (&true.into(), &1.into()), "{json}");
    assert_eq!(json["integrity_unchecked"].as_array().unwrap().len(), 1, "{json}");
}

/// An index may need a function that only its own program has. That is no damage, and
/// does not keep others from being checked.
#[test]
fn check_goes_on_after_a_database_that_only_its_program_can_check() {
    let (directory, sound) = directory_with("sound.db", b"");
    make_database(&sound, 1024, 2000);
    let foreign = directory.path().join("foreign.db");
    let db = rusqlite::Connection::open(&foreign).unwrap();
    let flags = FunctionFlags::SQLITE_DETERMINISTIC;
    db.create_scalar_function("own", 1, flags, |context| context.get::<i64>(0)).unwrap();
    db.execute_batch("create table t(a); insert into t values (1); create index i on t(own(a))")
        .unwrap();
    drop(db);
    let pool = directory.path().join("p.hpk");
    hardpack().arg("create").arg(&pool).assert().success();
    hardpack().args(["put", "-q"]).args([&foreign, &sound, &pool]).assert().success();

    let json = json_of(hardpack().args(["check", "-q", "--json"]).arg(&pool));
    assert_eq!(json["ok"], true);
    assert_eq!(json["databases"], 1);
    let unchecked = json["integrity_unchecked"].as_array().unwrap();
    let said = unchecked[0].as_str().unwrap();
    assert!(unchecked.len() == 1 && said.starts_with("foreign.db: unknown function"), "{said}");
    let text = stdout_of(hardpack().arg("check").arg(&pool));
    let told = "integrity_check: foreign.db: only its own program can run it: unknown function";
    assert!(text.contains(told) && text.ends_with("integrity_check: ok\n"), "{text}");

    // Damage of the other one is still found.
    let mut bytes = fs::read(&sound).unwrap();
    bytes[3 * 1024..3 * 1024 + 100].fill(0xee);
    fs::write(&sound, bytes).unwrap();
    hardpack().args(["put", "-q"]).args([&sound, &pool]).assert().success();
    hardpack().args(["check", "-q"]).arg(&pool).assert().code(1);
}

#[test]
fn sql_runs_from_arguments_and_from_input() {
    let (_directory, path) = directory_with("data b%20?.db", b"");
    make_database(&path, 4096, 10);
    let pool = pack(&path);
    let sql = |args: &[&str], sql: &[&str]| {
        stdout_of(hardpack().arg("sql").args(args).arg(&pool).args(sql))
    };
    let values = "SELECT 1 AS a, NULL AS b, 2.0 AS c, 'x|y' AS d, x'41' AS e";
    assert_eq!(sql(&[], &[values, "SELECT 2; SELECT 3"]), "1||2.0|x|y|A\n2\n3\n");
    assert_eq!(sql(&["--header"], &["SELECT 1 AS a, 2 AS b"]), "a|b\n1|2\n");
    let json: serde_json::Value = serde_json::from_str(&sql(&["--json"], &[values])).unwrap();
    let expected = serde_json::json!([{"a": 1, "b": null, "c": 2.0, "d": "x|y", "e": "x'41'"}]);
    assert_eq!(json, expected);
    assert!(sql(&["--table"], &["SELECT 1 AS a"]).contains("│ a │"));
    hardpack()
        .arg("sql")
        .arg(&pool)
        .write_stdin(
            "UPDATE t SET b =\n 'new;' WHERE a = 3;\nSELECT b FROM t\nWHERE a = 3;\n-- end",
        )
        .assert()
        .success()
        .stdout("new;\n");
    hardpack().args(["sql", "--readonly"]).arg(&pool).arg("DELETE FROM t").assert().code(3);
    let stderr = stderr_of(hardpack().arg("sql").arg(&pool).arg("SELEC 1"), 3);
    assert!(stderr.starts_with("hardpack: cannot run 'SELEC 1': near \"SELEC\""), "{stderr}");
    assert_eq!(sql(&[], &["SELECT count(*) FROM t"]), "10\n");
    hardpack().args(["check", "-q"]).arg(&pool).assert().success();
}

#[test]
fn codecs_are_listed() {
    let text = stdout_of(hardpack().arg("codecs"));
    assert!(text.contains("zstd-fast") && text.contains("gzip-6"), "{text}");
    let json = json_of(hardpack().args(["codecs", "--json"]));
    assert!(json.as_array().unwrap().iter().any(|family| family["name"] == "lz4hc"));
}

#[test]
fn errors_are_one_line_with_a_code() {
    let (_directory, path) = directory_with("data.db", b"");
    make_database(&path, 4096, 10);
    let missing = with_ending(&path, ".missing");
    for command in ["pack", "unpack", "info", "check", "sql"] {
        let stderr = stderr_of(hardpack().arg(command).arg(&missing), 3);
        assert!(stderr.starts_with("hardpack: cannot "), "{stderr}");
        assert!(stderr.ends_with("missing': No such file or directory\n"), "{stderr}");
        assert_eq!(stderr.lines().count(), 1);
    }
    for command in ["unpack", "info", "check"] {
        let stderr = stderr_of(hardpack().arg(command).arg(&path), 4);
        assert!(stderr.contains("plain SQLite database\nhint: 'hardpack pack "), "{stderr}");
    }
    let (_directory, text) = directory_with("text", b"no pool");
    assert!(stderr_of(hardpack().arg("info").arg(&text), 4).contains("not a Hardpack pool"));
    stderr_of(hardpack().arg("info").arg(text.parent().unwrap()), 4);
    stderr_of(hardpack().arg("pack").arg(text.parent().unwrap()), 3);
    stderr_of(hardpack().arg("frobnicate"), 2);
    stderr_of(hardpack().args(["pack", "--compression", "zip", "x"]), 2);
    let pipe = text.parent().unwrap().join("pipe");
    Command::new("mkfifo").arg(&pipe).status().unwrap();
    stderr_of(hardpack().arg("pack").arg(&pipe), 3);
    stderr_of(hardpack().arg("info").arg(&pipe), 4);
    let nowhere = text.parent().unwrap().join("nowhere/out.hpk");
    stderr_of(hardpack().arg("pack").args([&text, &nowhere]), 3);
    let help = stdout_of(hardpack().arg("--help"));
    assert!(help.contains("Exit codes:"), "{help}");
}

#[test]
fn a_reader_that_leaves_is_no_failure() {
    let (_directory, path) = directory_with("data.db", b"");
    make_database(&path, 4096, 200_000);
    let pool = pack(&path);
    let mut child = Command::new(assert_cmd::cargo::cargo_bin!("hardpack"))
        .arg("sql")
        .arg(&pool)
        .arg("SELECT * FROM t")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "1|this is row 1\n");
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn an_interrupted_pack_leaves_nothing() {
    for signal in ["-INT", "-TERM"] {
        let text: String = (0..400_000_u64).map(|i| format!("line {i} of {}\n", i * i)).collect();
        let (_directory, path) = directory_with("text", text.as_bytes());
        let mut child = Command::new(assert_cmd::cargo::cargo_bin!("hardpack"))
            .args(["pack", "-q", "--compression", "zstd-19"])
            .arg(&path)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        while names_beside(&path).len() < 2 {
            std::thread::sleep(Duration::from_millis(1));
            assert!(child.try_wait().unwrap().is_none(), "it was faster than the signal");
        }
        Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130));
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            stderr.starts_with("hardpack: stopping; a second signal ends at once\n"),
            "{stderr}"
        );
        assert!(
            stderr.ends_with("interrupted\nnote: nothing unfinished is left behind\n"),
            "{stderr}"
        );
        assert_eq!(names_beside(&path), ["text"]);
    }
}

#[test]
fn progress_is_lines_where_there_is_no_terminal() {
    let (_directory, path) = directory_with("text", "words ".repeat(10_000).as_bytes());
    let done = hardpack().arg("pack").arg(&path).assert().success();
    let stderr = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
    assert!(stderr.starts_with("packing text: ") && !stderr.contains('\r'), "{stderr}");
    let done =
        hardpack().args(["unpack", "-f"]).args([&with_ending(&path, ".hpk"), &path]).assert();
    let stderr = String::from_utf8_lossy(&done.success().get_output().stderr).into_owned();
    assert!(stderr.contains("verifying: 58.59 KiB in "), "{stderr}");
    let json = json_of(hardpack().args(["pack", "-qf", "--json"]).arg(&path));
    assert_eq!(json["logical_bytes"], 60_000);
}
