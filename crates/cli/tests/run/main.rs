//! `hardpack run`: programs that know nothing of Hardpack open packed databases.

#[path = "../common/mod.rs"]
mod common;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::*;
use rusqlite::Connection;

const ROWS: u32 = 2000;
const PYTHON: &str = "import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
print(db.execute('SELECT count(*) FROM t').fetchone()[0])";
const POOL_FRONT: &[u8] = b"Hardpack pool";
const PLAIN_FRONT: &[u8] = b"SQLite format 3\0";

/// Runs `hardpack run` with these arguments, with the objects that cargo built for the tests.
fn run_in(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("hardpack"));
    command.arg("run").args(arguments).current_dir(directory).env("HARDPACK_LIBRARY", library());
    command.output().unwrap()
}

fn library() -> PathBuf {
    let beside_this = std::env::current_exe().unwrap().with_file_name("libhardpack.so");
    assert!(beside_this.exists(), "{} does not exist", beside_this.display());
    beside_this
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end().to_string()
}

/// Runs a program, which must succeed without a word on stderr, and returns its output.
fn quietly(directory: &Path, arguments: &[&str]) -> String {
    let output = run_in(directory, arguments);
    let stderr = text(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {}: {stderr}", output.status);
    assert_eq!(stderr, "", "{arguments:?}");
    text(&output.stdout)
}

fn has(program: &str, arguments: &[&str]) -> bool {
    let done = Command::new(program).args(arguments).output();
    let is_there = done.is_ok_and(|output| output.status.success());
    if !is_there {
        println!("skipped: {program} {arguments:?} is not here");
    }
    is_there
}

fn front(path: &Path, of: &[u8]) -> bool {
    fs::read(path).unwrap().starts_with(of)
}

/// Compiles a C program or module of this directory.
fn compile(directory: &Path, source: &str, output: &str, arguments: &[&str]) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run").join(source);
    let output = directory.join(output);
    let mut command = Command::new("cc");
    command.args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"]).arg(&output).arg(source);
    let done = command.args(arguments).output().expect("the Debian package gcc is installed");
    assert!(done.status.success(), "{}", text(&done.stderr));
    output.to_string_lossy().into_owned()
}

#[test]
fn programs_of_many_languages_open_a_pool_and_a_path_in_one() {
    let (_directory, at) = packed();
    succeeds(&at, &["create", "apps.hpk"]);
    succeeds(&at, &["put", "-q", "a.db", "apps.hpk/dir/shop.db"]);
    let perl = "my $db = DBI->connect(\"dbi:SQLite:dbname=$ARGV[0]\", '', '', {RaiseError => 1});
        print $db->selectrow_array('SELECT count(*) FROM t')";
    let php = "echo (new SQLite3($argv[1]))->querySingle('SELECT count(*) FROM t');";
    let php_pdo =
        "echo (new PDO('sqlite:' . $argv[1]))->query('SELECT count(*) FROM t')->fetchColumn();";
    let ruby = "print SQLite3::Database.new(ARGV[0]).get_first_value('SELECT count(*) FROM t')";
    let sql = "SELECT count(*) FROM t";
    for database in ["a.db.hpk", "apps.hpk/dir/shop.db", "a.db"] {
        let mut programs = vec![
            vec!["sqlite3", database, sql],
            vec!["/usr/bin/python3", "-c", PYTHON, database],
            // Another build, if there is one.
            vec!["python3", "-c", PYTHON, database],
        ];
        if has("perl", &["-MDBD::SQLite", "-e", "1"]) {
            programs.push(vec!["perl", "-MDBI", "-e", perl, database]);
        }
        // PHP looks for the directory of a database itself, and finds that a pool is none.
        if !database.contains('/') && has("php", &["-r", "new SQLite3(':memory:');"]) {
            programs.push(vec!["php", "-r", php, database]);
            programs.push(vec!["php", "-r", php_pdo, database]);
        }
        if has("ruby", &["-rsqlite3", "-e", "1"]) {
            programs.push(vec!["ruby", "-rsqlite3", "-e", ruby, database]);
        }
        for program in programs {
            let arguments = [&["--"], &program[..]].concat();
            assert_eq!(quietly(&at, &arguments), ROWS.to_string(), "{program:?}");
        }
    }
    // What was only read is unchanged.
    assert!(front(&at.join("a.db"), PLAIN_FRONT) && front(&at.join("a.db.hpk"), POOL_FRONT));
    succeeds(&at, &["check", "-q", "a.db.hpk"]);
}

#[test]
fn a_program_writes_to_a_pool_in_both_journal_modes() {
    let (_directory, at) = packed();
    for (mode, rows) in [("delete", ROWS + 1), ("wal", ROWS + 2)] {
        let sql = format!(
            "PRAGMA journal_mode={mode}; INSERT INTO t(b) VALUES('new'); SELECT count(*) FROM t"
        );
        let output = quietly(&at, &["sqlite3", "a.db.hpk", &sql]);
        assert_eq!(output, format!("{mode}\n{rows}"));
    }
    succeeds(&at, &["check", "-q", "a.db.hpk"]);
    assert_eq!(succeeds(&at, &["sql", "a.db.hpk", "SELECT count(*) FROM t"]).trim(), "2002");
}

/// Destructors of the thread have run by then.
#[test]
fn a_program_writes_and_closes_at_exit() {
    let (_directory, at) = packed();
    let program = compile(&at, "at_exit.c", "at_exit", &["-lsqlite3"]);
    for database in ["a.db.hpk", "a.db"] {
        for (mode, rows) in [("delete", ROWS + 2), ("wal", ROWS + 4)] {
            assert_eq!(quietly(&at, &[&program, database, mode]), "", "{database} {mode}");
            let count = quietly(&at, &["sqlite3", database, "SELECT count(*) FROM t"]);
            assert_eq!(count, rows.to_string(), "{database} {mode}");
            for left in ["journal", "wal", "shm"] {
                let path = at.join(format!("{database}-{left}"));
                assert!(!path.exists(), "{}", path.display());
            }
        }
    }
}

#[test]
fn a_new_database_is_plain_unless_its_name_or_an_option_asks_for_a_pool() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    for (option, name, is_pool) in [
        (None, "plain.db", false),
        (None, "asked.hpk", true),
        (None, "file:uri.db?vfs=hardpack", true),
        (Some("--new-packed"), "packed.db", true),
        (Some("--new-packed"), "packed.hpk", true),
    ] {
        let mut arguments: Vec<&str> = option.into_iter().collect();
        let sql = "CREATE TABLE t(a); INSERT INTO t VALUES(1); VACUUM";
        arguments.extend(["--", "sqlite3", name, sql]);
        quietly(at, &arguments);
        let path = at.join(name.trim_start_matches("file:").trim_end_matches("?vfs=hardpack"));
        assert_eq!(front(&path, POOL_FRONT), is_pool, "{name} {option:?}");
        assert_eq!(front(&path, PLAIN_FRONT), !is_pool, "{name} {option:?}");
    }
    // A plain one in WAL mode keeps working without Hardpack.
    quietly(at, &["sqlite3", "plain.db", "PRAGMA journal_mode=wal; INSERT INTO t VALUES(2)"]);
    let db = Connection::open(at.join("plain.db")).unwrap();
    let sum: i64 = db.query_row("SELECT sum(a) FROM t", [], |row| row.get(0)).unwrap();
    assert_eq!(sum, 3);
}

#[test]
fn every_way_to_open_a_database_leads_to_hardpack() {
    let (_directory, at) = packed();
    let program = compile(&at, "linked.c", "linked", &["-lsqlite3"]);
    let expected = "config 0\ninitialize 0\ndefault hardpack\nopen 2000\nopen_v2 2000\nopen16 2000\n\
        unix -1\nshutdown 0\nagain 2000\nnew 0";
    assert_eq!(quietly(&at, &[&program, "a.db.hpk", "new.db"]), expected);
    assert!(front(&at.join("new.db"), PLAIN_FRONT));
    assert_eq!(quietly(&at, &["--new-packed", &program, "a.db.hpk", "new.pool"]), expected);
    assert!(front(&at.join("new.pool"), POOL_FRONT));
}

/// Modules bring their libraries into a scope of their own.
#[test]
fn a_module_reaches_hardpack_and_its_own_library_whatever_else_is_loaded() {
    let (_directory, at) = packed();
    let program = compile(&at, "loading.c", "loading", &["-ldl"]);
    let module = |name: &str| {
        compile(&at, "module.c", &format!("{name}.so"), &["-shared", "-fPIC", "-lsqlite3"])
    };
    let modules = ["local", "deep", "global"].map(module);
    let other = compile(&at, "other.c", "other.so", &["-shared", "-fPIC"]);
    for (flags, module) in ["local", "deep", "global"].iter().zip(&modules) {
        assert_eq!(quietly(&at, &[&program, "a.db.hpk", flags, module]), format!("{flags} 2000"));
        let arguments = [&program, "a.db.hpk", "local", &other, *flags, module, "local", &other];
        let found = quietly(&at, &arguments);
        assert_eq!(found, format!("local 1234\n{flags} 2000\nlocal 1234"));
    }
}

#[test]
fn children_inherit_it() {
    let (_directory, at) = packed();
    let script = format!("/usr/bin/python3 -c \"{PYTHON}\" a.db.hpk & wait; true");
    assert_eq!(quietly(&at, &["sh", "-c", &script]), ROWS.to_string());
    // Also from one `run` in another.
    let hardpack = assert_cmd::cargo::cargo_bin!("hardpack").to_string_lossy().into_owned();
    let nested = [&hardpack, "run", "--", "sqlite3", "a.db.hpk", "SELECT count(*) FROM t"];
    assert_eq!(quietly(&at, &nested), ROWS.to_string());
}

#[test]
fn the_exit_code_and_signals_are_the_program_s() {
    let (_directory, at) = packed();
    assert_eq!(run_in(&at, &["sh", "-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(run_in(&at, &["sh", "-c", "kill -TERM $$"]).status.signal(), Some(15));
    let missing = run_in(&at, &["./nothere"]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(text(&missing.stderr).starts_with("hardpack: cannot run './nothere': No such file"));
    let refused = run_in(&at, &["./a.db"]);
    assert_eq!(refused.status.code(), Some(126), "{}", text(&refused.stderr));
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("hardpack"));
    let none = command.args(["run", "true"]).env("HARDPACK_LIBRARY", at.join("none")).output();
    let none = none.unwrap();
    assert_eq!(none.status.code(), Some(126));
    assert!(text(&none.stderr).contains("libhardpack.so is neither next to"));
}

/// Signals that the command itself ignores are not ignored by the program, unless they were before.
#[test]
fn ignored_signals_are_the_program_s() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["grep", "SigIgn", "/proc/self/status"];
    let plain = Command::new(arguments[0]).args(&arguments[1..]).output().unwrap();
    assert_eq!(quietly(directory.path(), &[&["--"], &arguments[..]].concat()), text(&plain.stdout));
    let program = assert_cmd::cargo::cargo_bin!("hardpack");
    let script = "trap '' XFSZ; exec env HARDPACK_LIBRARY=\"$2\" \"$1\" run -- grep SigIgn /proc/self/status";
    let mut command = Command::new("bash");
    let output = command.args(["-c", script, "bash"]).arg(program).arg(library()).output().unwrap();
    let ignored = text(&output.stdout);
    let number = u64::from_str_radix(ignored.split_whitespace().nth(1).unwrap(), 16).unwrap();
    assert!(number >> (libc::SIGXFSZ - 1) & 1 == 1, "{ignored}");
}

#[test]
fn child_role() {
    let Some(pool) = std::env::var_os("HARDPACK_ROLE_POOL") else { return };
    let db = Connection::open(pool).unwrap();
    let error = db.query_row("SELECT count(*) FROM t", [], |_| Ok(())).unwrap_err();
    assert_eq!(error.sqlite_error_code(), Some(rusqlite::ErrorCode::NotADatabase));
}

/// The tests' own SQLite is linked statically.
#[test]
fn a_sqlite_out_of_reach_is_told_once_and_only_if_it_opens_a_pool() {
    let (_directory, at) = packed();
    let this = std::env::current_exe().unwrap().to_string_lossy().into_owned();
    let arguments = ["env", "HARDPACK_ROLE_POOL=a.db.hpk", &this, "child_role", "--exact"];
    let output = run_in(&at, &arguments);
    assert!(output.status.success(), "{}", text(&output.stdout));
    let stderr = text(&output.stderr);
    let notes: Vec<&str> = stderr.lines().filter(|line| line.starts_with("hardpack: ")).collect();
    assert_eq!(notes.len(), 1, "{stderr}");
    assert!(notes[0].contains("is out of reach") && notes[0].contains("a.db.hpk'"), "{stderr}");
    // Hardpack itself has a SQLite inside, and reads pools.
    let hardpack = assert_cmd::cargo::cargo_bin!("hardpack").to_string_lossy().into_owned();
    let sql = [&hardpack, "sql", "a.db.hpk", "SELECT count(*) FROM t"];
    assert_eq!(quietly(&at, &sql), ROWS.to_string());
    assert_eq!(quietly(&at, &[&hardpack, "pack", "-q", "a.db", "b.hpk"]), "");
    quietly(&at, &["cat", "a.db.hpk"]);
    // What is linked statically cannot even say so itself.
    fs::write(at.join("static.c"), "int main(void) { return 0; }").unwrap();
    let program = at.join("static").to_string_lossy().into_owned();
    let source = at.join("static.c").to_string_lossy().into_owned();
    assert!(has("cc", &["-static", "-o", &program, &source]));
    assert_eq!(quietly(&at, &[&program, "a.db"]), "");
    let output = run_in(&at, &[&program, "a.db.hpk"]);
    assert!(output.status.success());
    assert!(text(&output.stderr).contains("is linked statically"), "{}", text(&output.stderr));
}

#[test]
fn without_its_variable_the_preloaded_object_does_nothing() {
    let (_directory, at) = packed();
    let preload = library().with_file_name("libhardpack_preload.so");
    for mode in [None, Some("nonsense")] {
        let mut command = Command::new("sqlite3");
        command.args(["a.db.hpk", "SELECT count(*) FROM t"]).current_dir(&at);
        command.env("LD_PRELOAD", &preload);
        if let Some(mode) = mode {
            command.env("HARDPACK_PRELOAD", mode);
        }
        let output = command.output().unwrap();
        assert!(!output.status.success());
        assert!(text(&output.stderr).contains("file is not a database"), "{:?}", output);
    }
    // With it, but without the extension, the reason is told once.
    let mut command = Command::new("sqlite3");
    command.args(["a.db", "SELECT count(*) FROM t"]).current_dir(&at).env("LD_PRELOAD", &preload);
    command.env("HARDPACK_PRELOAD", "plain").env("HARDPACK_LIBRARY", "/nothere/libhardpack.so");
    let output = command.output().unwrap();
    assert_eq!(text(&output.stdout), ROWS.to_string());
    let stderr = text(&output.stderr);
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.contains("packed databases cannot be opened in this program: /nothere"));
}
