//! The built-in shell of `hardpack sql`: what it prints is what the stock shell prints.
#![expect(clippy::unwrap_used, reason = "a failed step must end a test")]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::*;
use rusqlite::Connection;

const SCHEMA: &str = "
    CREATE TABLE plain(a, b);
    INSERT INTO plain VALUES(1, 'x'), (2.5, NULL), (-3, 'it''s'), (4, x'00ff41'), (5, 'a|b,c \"d\"'),
        (6, ''), (1e20, 'two' || char(10) || 'lines'), (7, 'tab' || char(9) || 'end'), (8, 'Größe 日本');
    CREATE TABLE \"odd name\"(id INTEGER PRIMARY KEY AUTOINCREMENT, \"a b\" TEXT, \"order\" INT);
    INSERT INTO \"odd name\" VALUES(1, 'cr' || char(13) || 'nl' || char(10), 10), (2, '\\n\n', 20);
    CREATE INDEX by_b ON plain(b);
    CREATE VIEW seen AS SELECT a, b || '!' FROM plain -- the end
    ;
    CREATE TRIGGER loud AFTER INSERT ON plain BEGIN SELECT 1; END;";
// Each query in each mode, with `.nullvalue <null>`, and without, with on and with off `.headers`.
const MODES: [&str; 12] = [
    "list",
    "csv",
    "tabs",
    "line",
    "column",
    "box",
    "table",
    "markdown",
    "insert",
    "insert new",
    "quote",
    "qbox",
];
const QUERIES: [&str; 6] = [
    "SELECT * FROM plain WHERE a <> 4;",
    "SELECT a, b AS 'a ''longer'' name' FROM plain WHERE a = 4;",
    "SELECT 1 AS a WHERE 0;",
    "SELECT \"a b\", 1 AS \"order\", NULL FROM \"odd name\";",
    "SELECT 'one ' || printf('%.*c', 80, 'x') || ' three', 2.5;",
    "SELECT CAST(x'61ff62' AS TEXT) AS t, x'' AS e, -1;",
];
const INPUTS: [&str; 19] = [
    ".mode json\nSELECT 1 a, 'q\"\\' || char(10, 1) b, NULL c, 2.5 d;\nSELECT 2;\n",
    ".mode column\n.width 4 -8\nSELECT a, b FROM plain WHERE a <> 4;\n",
    ".mode box --wrap 5\nSELECT * FROM plain WHERE a <> 4;\n",
    ".mode box --wrap 12 --ww\nSELECT 'several words that are cut between them';\n",
    ".mode markdown --quote\nSELECT a, b FROM plain;\n",
    ".separator ';' '\\n--\\n'\nSELECT 1, 2;\n.mode csv\n.separator ; \\n\nSELECT 'a;b', 2;\n",
    ".mode\n.mode box\n.mode\n.mode csv\n.mode\n",
    ".print a 'b  c' \"d\\te\" f\\101\n",
    ".changes on\nDELETE FROM plain WHERE a = 1;\nSELECT 1;\n",
    ".echo on\nSELECT 1;\n.print x\nSELECT\n 2;\n",
    "EXPLAIN QUERY PLAN SELECT * FROM plain p, \"odd name\" o WHERE p.b = o.\"a b\" ORDER BY 1;\n",
    ".tables\n.tables %a%\n.tables none\n.indexes\n.indices plain\n.indexes odd%\n",
    ".schema\n.schema plain\n.schema 'odd name'\n.schema pla*\n.schema main.plain\n.schema --nosys\n",
    "ATTACH ':memory:' AS x; CREATE TABLE x.inner(a); CREATE VIEW x.v AS SELECT * FROM inner;\n\
     CREATE TEMP TABLE short(b);\n.tables\n.schema\n",
    "-- a comment\n\n# another\nSELECT 1; SELECT 2;\nSELECT\n3\n;\nSELECT 4",
    "SELECT 'a;\nb'; -- end\nSELECT /* ; */ 5;\r\nSELECT 6\ngo\nSELECT 7\n/\n",
    "SELECT missing;\nSELECT 1;\n.nonsense\nSELECT 2;\n",
    ".bail on\nSELECT 1;\nSELECT missing;\nSELECT 2;\n",
    "SELECT 1;\n.quit\nSELECT 2;\n",
];

/// What the stock shell prints for an input, or `None` if it is not installed in the version whose
/// output this shell follows.
fn stock(database: &Path, input: &str) -> Option<String> {
    use std::io::Write;
    let mut child = Command::new("sqlite3")
        .args(["-init", "/dev/null"])
        .arg(database)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether the stock shell is there to compare with. Its output differs between versions.
fn has_stock() -> bool {
    let version = Command::new("sqlite3").arg("--version").output();
    version.is_ok_and(|version| version.stdout.starts_with(b"3.40."))
}

/// A database with the schema above, and a pool of it.
fn sample() -> (tempfile::TempDir, std::path::PathBuf, std::path::PathBuf) {
    let (directory, path) = directory_with("a.db", b"");
    Connection::open(&path).unwrap().execute_batch(SCHEMA).unwrap();
    let pool = pack(&path);
    (directory, path, pool)
}

fn ours(pool: &Path, input: &str) -> String {
    let done = hardpack().arg("sql").arg(pool).write_stdin(input).assert();
    String::from_utf8_lossy(&done.get_output().stdout).into_owned()
}

/// The shell on a pool, in a directory, with these arguments.
fn shell_in(directory: &Path, pool: &Path, arguments: &[&str]) -> assert_cmd::Command {
    let mut command = hardpack();
    command.current_dir(directory).arg("sql").arg(pool).args(arguments);
    command
}

#[test]
fn output_is_that_of_the_stock_shell() {
    if !has_stock() {
        return;
    }
    let (_directory, path, pool) = sample();
    let mut inputs: Vec<String> = INPUTS.iter().map(|input| (*input).into()).collect();
    // Each query in each mode at once: a mode does not depend on the ones before once it is set
    // with its headers.
    for mode in MODES {
        for headers in ["", ".headers on\n", ".headers off\n"] {
            let queries = QUERIES.join("\n");
            inputs.push(format!("{headers}.nullvalue <null>\n.mode {mode}\n{queries}\n"));
        }
    }
    let mut wrong = Vec::new();
    for input in &inputs {
        // Each starts from the same content.
        let (database, copy) = (path.with_extension("work"), pool.with_extension("work"));
        fs::copy(&path, &database).unwrap();
        fs::copy(&pool, &copy).unwrap();
        let (expected, found) = (stock(&database, input).unwrap(), ours(&copy, input));
        if found != expected {
            wrong.push(format!("{input}\n--- expected\n{expected}\n--- found\n{found}"));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n=====\n"));
}

#[test]
fn dot_commands_work_as_arguments() {
    let (_directory, _, pool) = sample();
    let sql = |arguments: &[&str]| stdout_of(hardpack().arg("sql").arg(&pool).args(arguments));
    assert_eq!(sql(&[".tables"]), "odd name  plain     seen    \n");
    assert_eq!(sql(&[".indexes plain"]), "by_b\n");
    assert_eq!(sql(&[".mode csv", ".headers on", "SELECT 1 a, 'x y' b"]), "a,b\r\n1,\"x y\"\r\n");
    assert_eq!(sql(&["SELECT 1", ".quit", "SELECT 2"]), "1\n");
    assert_eq!(sql(&[".schema by_b", ".schema loud"]), "");
    let help = sql(&[".help"]);
    assert!(help.contains("  .tables [PATTERN] ") && help.contains("  .read FILE "), "{help}");
    let long = stdout_of(hardpack().args(["sql", "--help"]));
    assert!(help.lines().all(|line| long.contains(line.split_whitespace().next().unwrap())));
}

#[test]
fn functions_of_sql_are_there() {
    let (directory, path, pool) = sample();
    let sql = |sql: &str| stdout_of(hardpack().arg("sql").arg(&pool).arg(sql));
    let facts = "SELECT hardpack_version(), hardpack_ratio() > 1, hardpack_get('compression')";
    assert_eq!(sql(facts), format!("{}|1|zstd-3\n", env!("CARGO_PKG_VERSION")));
    let again = directory.path().join("again.hpk");
    let called = format!("SELECT hardpack_pack('{}', '{}')", path.display(), again.display());
    assert_eq!(sql(&called), format!("{}\n", again.display()));
    let stderr = stderr_of(hardpack().arg("sql").arg(&pool).arg(&called), 3);
    assert!(stderr.contains("exists already"), "{stderr}");
}

#[test]
fn a_wrong_dot_command_is_told_in_one_line() {
    let (_directory, _, pool) = sample();
    for (command, words) in [
        (".tabels", "there is no such dot command; did you mean '.tables'?"),
        (".frobnicate", "there is no such dot command; '.help' lists"),
        (".h", "this may be '.headers' or '.help'"),
        (".mode nothing", "modes are box, column"),
        (".mode box --frob", "no option '--frob'"),
        (".headers maybe", "'maybe' is neither on nor off"),
        (".read", "usage: .read FILE"),
        (".tables a b", "usage: .tables [PATTERN]"),
        (".width x", "'x' is no number"),
        (".exit 1000", "'1000' is no number here"),
    ] {
        let stderr = stderr_of(hardpack().arg("sql").arg(&pool).args([command, "SELECT 1"]), 2);
        assert!(stderr.contains(words) && stderr.lines().count() == 1, "{command}: {stderr}");
    }
    let missing = [".read 'no such file'"];
    let stderr = stderr_of(hardpack().arg("sql").arg(&pool).args(missing), 3);
    assert!(stderr.contains("No such file"), "{stderr}");
}

#[test]
fn input_goes_on_after_an_error_and_then_fails() {
    let (_directory, _, pool) = sample();
    let run = |input: &str, code: i32| {
        let done = hardpack().arg("sql").arg(&pool).write_stdin(input).assert().code(code);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(&done.get_output().stdout), text(&done.get_output().stderr))
    };
    let (stdout, stderr) = run("SELECT 1;\nSELECT missing;\n.tabels\nSELECT 2;\n", 3);
    assert_eq!(stdout, "1\n2\n");
    assert_eq!(
        stderr,
        "hardpack: cannot run 'SELECT missing;': no such column: missing (line 2)\n\
         hardpack: cannot run '.tabels': there is no such dot command; did you mean '.tables'? \
         (line 3)\n"
    );
    assert_eq!(run(".bail on\nSELECT 1;\nSELEC;\nSELECT 2;\n", 3).0, "1\n");
    assert_eq!(run("SELECT 1;\n.exit 7\nSELECT 2;\n", 7), ("1\n".into(), String::new()));
    assert_eq!(run("SELECT 1;\nSELECT '\0';\nSELECT 2;\n", 2).0, "1\n2\n");
}

#[test]
fn files_are_read_and_written() {
    let (directory, _, pool) = sample();
    let at = directory.path();
    fs::write(at.join("in.sql"), "SELECT 1;\n.read inner.sql\nSELECT 4").unwrap();
    fs::write(at.join("inner.sql"), "SELECT 2;\nSELECT missing;\nSELECT 3;\n").unwrap();
    fs::write(at.join("loop.sql"), ".read loop.sql\n").unwrap();
    let run = |arguments: &[&str]| shell_in(at, &pool, arguments);
    let done = run(&[".read in.sql"]).assert().code(3);
    assert_eq!(done.get_output().stdout, b"1\n2\n3\n4\n");
    assert!(stderr_of(&mut run(&[".read loop.sql"]), 2).contains("nested more than 25 deep"));
    let lines =
        [".once one", "SELECT 1", "SELECT 2", ".output two", "SELECT 3", ".output", "SELECT 4"];
    assert_eq!(stdout_of(&mut run(&lines)), "2\n4\n");
    assert_eq!(fs::read(at.join("one")).unwrap(), b"1\n");
    assert_eq!(fs::read(at.join("two")).unwrap(), b"3\n");
    assert!(stderr_of(&mut run(&[".output no/such"]), 3).contains("cannot write 'no/such'"));
}

#[test]
fn output_never_goes_over_a_database_that_is_open() {
    let (directory, _, pool) = sample();
    let at = directory.path();
    Connection::open(at.join("other.db")).unwrap().execute_batch("CREATE TABLE t(a)").unwrap();
    std::os::unix::fs::symlink(&pool, at.join("link")).unwrap();
    let contents = || [fs::read(&pool).unwrap(), fs::read(at.join("other.db")).unwrap()];
    let before = contents();
    for command in [".output", ".once", ".read"] {
        for name in ["a.db.hpk", "link", "other.db"] {
            let mut run = hardpack();
            run.current_dir(at).arg("sql").arg(&pool).arg("ATTACH 'other.db' AS other");
            let stderr = stderr_of(run.args([&format!("{command} {name}"), "SELECT 1"]), 2);
            assert!(stderr.contains(&format!("'{name}' is open here as a database")), "{stderr}");
            assert!(contents() == before, "{command} {name}");
        }
    }
}

#[test]
fn options_are_those_of_the_stock_shell() {
    let (_directory, path, pool) = sample();
    let query = "SELECT a, b AS 'x y' FROM plain WHERE a IN (1, 5)";
    let row = "5,\"a|b,c \"\"d\"\"\"\n";
    let csv = stdout_of(hardpack().args(["sql", "-csv", "-header"]).arg(&pool).arg(query));
    assert_eq!(csv, format!("a,\"x y\"\n1,x\n{row}"));
    for options in [
        &["-csv"][..],
        &["-csv", "-header"],
        &["-column"],
        &["-column", "-header"],
        &["-line"],
        &["-box"],
        &["-json"],
        &["-readonly"],
    ] {
        let ours = stdout_of(hardpack().arg("sql").args(options).arg(&pool).arg(query));
        if has_stock() {
            let mut command = Command::new("sqlite3");
            let command = command.args(["-init", "/dev/null"]).args(options).arg(&path).arg(query);
            assert_eq!(ours, String::from_utf8(command.output().unwrap().stdout).unwrap());
        }
    }
    let mut bail = hardpack();
    bail.args(["sql", "-bail"]).arg(&pool).write_stdin("SELECT 1;\nSELECT missing;\nSELECT 2;\n");
    assert_eq!(bail.assert().code(3).get_output().stdout, b"1\n");
    stderr_of(hardpack().args(["sql", "-csv", "-json"]).arg(&pool).arg(query), 2);
}

/// What is dumped makes the same database again, in this shell and in the stock one.
#[test]
fn a_dump_makes_the_same_database() {
    let (directory, path, pool) = sample();
    let special = "CREATE VIRTUAL TABLE words USING fts5(text);
        INSERT INTO words VALUES('several words'), ('and more');
        CREATE TABLE computed(a, twice AS (a * 2), b);
        INSERT INTO computed VALUES(3, 'x' || char(13, 10) || '\\n'), (1e999, NULL);
        ANALYZE;";
    stdout_of(hardpack().arg("sql").arg(&pool).arg(special));
    Connection::open(&path).unwrap().execute_batch(special).unwrap();
    if has_stock() {
        assert_eq!(ours(&pool, ".dump\n"), stock(&path, ".dump\n").unwrap());
        let some = ".dump plain word%\n";
        assert_eq!(ours(&pool, some), stock(&path, some).unwrap());
    }
    stdout_of(
        hardpack().arg("sql").arg(&pool).arg("INSERT INTO plain VALUES('a' || char(0) || 'b', 1)"),
    );
    let dumped = ours(&pool, ".dump\n");
    let again = directory.path().join("again.db");
    let script = format!("PRAGMA writable_schema=ON;\n{dumped}");
    Connection::open(&again).unwrap().execute_batch(&script).unwrap();
    let again = pack(&again);
    let all =
        "SELECT rowid, a, hex(b), length(CAST(a AS BLOB)) FROM plain;\nSELECT * FROM computed;
        SELECT id, hex(\"a b\") FROM \"odd name\";\nSELECT * FROM sqlite_sequence;
        SELECT rowid FROM words WHERE words MATCH 'more';\nSELECT * FROM seen;\n";
    assert_eq!(ours(&again, all), ours(&pool, all));
    assert_eq!(ours(&again, ".dump\n"), dumped);
}

#[test]
fn records_of_a_file_are_imported_as_a_whole() {
    let (directory, _, pool) = sample();
    let at = directory.path();
    let run = |arguments: &[&str]| shell_in(at, &pool, arguments);
    let count = || stdout_of(&mut run(&["SELECT count(*) FROM plain"]));
    fs::write(at.join("new.csv"), "\u{feff}a,b,a\r\n1,\"two, \"\"2\"\"\nlines\",\r\n3,4,5")
        .unwrap();
    let select = "SELECT * FROM new; SELECT typeof(a_1) FROM new";
    let done = stdout_of(&mut run(&[".import --csv new.csv new", ".mode quote", select]));
    assert_eq!(done, "'1','two, \"2\"\nlines',''\n'3','4','5'\n'text'\n'text'\n");
    fs::write(at.join("bars"), "a title\nx|y\nz\n").unwrap();
    let mut import = run(&[".import --skip 1 bars plain", "SELECT * FROM plain WHERE a > 'w'"]);
    let output = import.output().unwrap();
    assert_eq!(output.stdout, b"x|y\nz|\n");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("line 3: 1 fields for 2 columns"), "{stderr}");
    let before = count();
    for (name, content, words) in [
        ("open", "1,2\n3,\"4\n5,6\n", "line 2 of the file: a quote that is opened is not closed"),
        ("wrong", "1,2\n3,4\n", "line 2 of the file: no such column: nothing"),
    ] {
        fs::write(at.join(name), content).unwrap();
        let trigger = "CREATE TRIGGER IF NOT EXISTS strict BEFORE INSERT ON plain WHEN new.a = '3' \
                       BEGIN SELECT raise(abort, 'no such column: nothing'); END";
        let arguments = [trigger, &format!(".import --csv {name} plain")];
        let output = run(&arguments).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains(words), "{stderr}");
        assert!(stderr.contains("nothing was imported"), "{stderr}");
        assert_ne!(output.status.code(), Some(0));
        assert_eq!(count(), before);
    }
    let usage = stderr_of(&mut run(&[".separator ab", ".import bars plain"]), 2);
    assert!(usage.contains("a single byte"), "{usage}");
    stderr_of(&mut run(&[".import no-such-file plain"]), 3);
}

#[test]
fn databases_are_backed_up_restored_and_opened() {
    let (directory, _, pool) = sample();
    let at = directory.path();
    let run = |arguments: &[&str]| shell_in(at, &pool, arguments);
    stdout_of(&mut run(&[
        ".backup plain.db",
        ".backup main packed.hpk",
        ".save packed.hpk/two.db",
    ]));
    let count = "SELECT count(*) FROM plain";
    let plain = Connection::open(at.join("plain.db")).unwrap();
    assert_eq!(plain.query_row(count, [], |row| row.get::<_, i64>(0)), Ok(9));
    drop(plain);
    for packed in ["packed.hpk/packed.hpk", "packed.hpk/two.db"] {
        let mut command = hardpack();
        assert_eq!(stdout_of(command.current_dir(at).args(["sql", packed, count])), "9\n");
    }
    for from in ["plain.db", "packed.hpk/two.db"] {
        let gone = "DELETE FROM plain; DROP VIEW seen; DELETE FROM \"odd name\"";
        let done = stdout_of(&mut run(&[gone, count, &format!(".restore {from}"), count]));
        assert_eq!(done, "0\n9\n");
    }
    stderr_of(&mut run(&[".restore missing.db"]), 3);
    assert!(!at.join("missing.db").exists());
    let stderr = stderr_of(&mut run(&[".backup a.db.hpk"]), 2);
    assert!(stderr.contains("is open here as a database"), "{stderr}");
    let other = ["INSERT INTO plain VALUES(9, 9)", ".open packed.hpk/two.db", count];
    assert_eq!(stdout_of(&mut run(&other)), "9\n");
    let again = [".open --readonly a.db.hpk", count, "DELETE FROM plain"];
    let output = run(&again).output().unwrap();
    assert_eq!(output.stdout, b"10\n");
    assert!(String::from_utf8_lossy(&output.stderr).contains("readonly"), "{output:?}");
    stderr_of(&mut run(&[".open nothing.hpk"]), 3);
}
