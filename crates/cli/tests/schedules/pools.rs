//! Makes pools with ledgers in them, and checks them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hardpack_engine::device::FileDevice;
use hardpack_engine::pool::{Options, Pool, ROOT};
use rusqlite::Connection;

use super::common::{hardpack, json_of};
use super::worker;

/// The number of tokens in a new ledger.
const BASE_COUNT: usize = 20;

const CHECK_CACHE_LEN: u64 = 1 << 20;

/// The tokens of a ledger.
pub type Tokens = BTreeSet<String>;

pub fn base_tokens() -> Tokens {
    (0..BASE_COUNT).map(|index| format!("base-{index}")).collect()
}

/// The initial state of a directory: the databases of `p.hpk` as received, or with one more
/// transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    Received,
    Worked,
}

/// A directory, and the txg of its pool before the additional transactions.
pub struct Made {
    pub directory: tempfile::TempDir,
    pub txg: u64,
}

/// Makes a directory with a pool of three ledgers, copied from a template:
///
/// * `p.hpk` with `x.db` (the first database) and `y.db`, which were received and then changed, and
///   `d/z.db`; the first two and the pool have an earlier snapshot `base`;
/// * `full`, and `next-x.db` and `next-y.db`: streams of a ledger, and of its later changes;
/// * `lone.hpk`, a pool of one ledger; `plain.db` and `other.db`, plain ledgers, the latter also in
///   `other.tar`; `in`, with files to import; `empty`.
pub fn new_directory(mode: &str, start: Start) -> Made {
    use std::sync::{Mutex, OnceLock};
    type Templates = Vec<((String, Start), Made)>;
    static MADE: OnceLock<Mutex<Templates>> = OnceLock::new();
    let mut made = MADE.get_or_init(Mutex::default).lock().unwrap_or_else(|e| e.into_inner());
    let key = (mode.to_string(), start);
    if !made.iter().any(|(of, _)| *of == key) {
        made.push((key.clone(), make_template(mode, start)));
    }
    let template = &made.iter().find(|(of, _)| *of == key).unwrap().1;
    let directory = tempfile::tempdir_in(scratch()).unwrap();
    copy_all(template.directory.path(), directory.path());
    Made { directory, txg: template.txg }
}

fn copy_all(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let (from, name) = (entry.as_ref().unwrap().path(), entry.unwrap().file_name());
        if from.is_dir() {
            fs::create_dir(to.join(&name)).unwrap();
            copy_all(&from, &to.join(&name));
        } else {
            fs::copy(&from, to.join(&name)).unwrap();
        }
    }
}

/// A directory in memory, if the system has one.
fn scratch() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.into() } else { std::env::temp_dir() }
}

fn make_ledger(db: &Connection, mode: &str) {
    let mode: String =
        db.query_row(&format!("pragma journal_mode={mode}"), [], |row| row.get(0)).unwrap();
    assert!(!mode.is_empty());
    db.execute_batch(worker::LEDGER).unwrap();
    db.execute_batch("begin").unwrap();
    for token in base_tokens() {
        worker::put(db, &token).unwrap();
    }
    db.execute_batch("commit").unwrap();
}

fn make_template(mode: &str, start: Start) -> Made {
    let directory = tempfile::tempdir_in(scratch()).unwrap();
    let at = |name: &str| directory.path().join(name);
    let run = |arguments: &[&str], input: &str, output: Option<&str>| {
        let input = if input.is_empty() { Vec::new() } else { fs::read(at(input)).unwrap() };
        let mut command = hardpack();
        let done = command.current_dir(directory.path()).args(arguments).write_stdin(input);
        let done = done.assert().success();
        if let Some(name) = output {
            fs::write(at(name), &done.get_output().stdout).unwrap();
        }
    };
    let tx = |path: &Path, token: &str| {
        let db = worker::open(path).unwrap();
        db.execute_batch("begin").unwrap();
        worker::put(&db, token).unwrap();
        db.execute_batch("commit").unwrap();
    };
    for (name, token) in [("plain.db", ""), ("other.db", "other"), ("z.db", "z")] {
        let db = Connection::open(at(name)).unwrap();
        make_ledger(&db, "delete");
        if !token.is_empty() {
            worker::put(&db, token).unwrap();
        }
    }
    let mut archive = tar::Builder::new(fs::File::create(at("other.tar")).unwrap());
    archive.append_path_with_name(at("other.db"), "other.db").unwrap();
    archive.finish().unwrap();
    run(&["create", "src.hpk"], "", None);
    run(&["create", "p.hpk"], "", None);
    for name in ["x.db", "y.db"] {
        let source = format!("src.hpk/{name}");
        let send = |arguments: &[&str], output| {
            run(&[&["send", "-q"], arguments].concat(), "", Some(output))
        };
        run(&["put", "-q", "plain.db", &source], "", None);
        set_mode(&at(&source), mode);
        run(&["snapshot", &format!("{source}@base")], "", None);
        send(&[&format!("{source}@base")], "full");
        run(&["receive", "-q", &format!("p.hpk/{name}")], "full", None);
        tx(&at(&source), "next");
        run(&["snapshot", &format!("{source}@next")], "", None);
        send(&["-i", "@base", &format!("{source}@next")], &format!("next-{name}"));
    }
    run(&["mkdir", "p.hpk/d"], "", None);
    run(&["put", "-q", "z.db", "p.hpk/d/"], "", None);
    set_mode(&at("p.hpk/d/z.db"), mode);
    run(&["snapshot", "p.hpk@base"], "", None);
    make_ledger(&worker::open(&at("lone.hpk")).unwrap(), mode);
    fs::create_dir(at("in")).unwrap();
    fs::write(at("in/1"), "one").unwrap();
    fs::write(at("in/2"), "two").unwrap();
    fs::create_dir(at("empty")).unwrap();
    let states = json_of(
        hardpack().current_dir(directory.path()).args(["check", "--states", "--json", "p.hpk"]),
    );
    let txg = states["txg"].as_u64().unwrap();
    if start == Start::Worked {
        tx(&at("p.hpk/x.db"), "worked");
        tx(&at("p.hpk/y.db"), "worked");
    }
    for name in ["z.db", "src.hpk"] {
        fs::remove_file(at(name)).unwrap();
    }
    Made { directory, txg }
}

fn set_mode(path: &Path, mode: &str) {
    let db = worker::open(path).unwrap();
    let now: String =
        db.query_row(&format!("pragma journal_mode={mode}"), [], |row| row.get(0)).unwrap();
    assert_eq!(now, mode);
}

/// Reads the tokens of a database, and checks its integrity.
pub fn tokens(path: &Path) -> Result<Tokens, String> {
    let fail = |error: rusqlite::Error| format!("{}: {error}", path.display());
    let db = worker::open(path).map_err(fail)?;
    read_tokens(&db).map_err(|error| format!("{}: {error}", path.display()))
}

fn read_tokens(db: &Connection) -> Result<Tokens, String> {
    let fail = |error: rusqlite::Error| error.to_string();
    let verdict: String =
        db.query_row("pragma integrity_check", [], |row| row.get(0)).map_err(fail)?;
    if verdict != "ok" {
        return Err(format!("integrity_check: {verdict}"));
    }
    let all = |sql: &str| -> Result<Tokens, String> {
        let mut statement = db.prepare(sql).map_err(fail)?;
        let rows = statement.query_map([], |row| row.get(0)).map_err(fail)?;
        rows.collect::<Result<_, _>>().map_err(fail)
    };
    let (a, b) = (all("select token from a")?, all("select token from b")?);
    if a != b {
        let odd: Vec<_> = a.symmetric_difference(&b).collect();
        return Err(format!("in one table only: {odd:?}"));
    }
    let count: i64 = db.query_row("select count from n", [], |row| row.get(0)).map_err(fail)?;
    if count != a.len() as i64 {
        return Err(format!("{} rows, but {count} were counted", a.len()));
    }
    Ok(a)
}

/// Verifies a whole pool, which must have no problems.
pub fn check(path: &Path) -> Result<(), String> {
    let pool = open_read_only(path)?;
    let report = pool.check(&mut |_| {}).map_err(|error| format!("{}: {error}", path.display()))?;
    match report.is_clean() {
        true => Ok(()),
        false => Err(format!("{}: {:#?}", path.display(), report.problems)),
    }
}

/// Whether a pool has a snapshot of this name, of all of it.
pub fn has_snapshot(path: &Path, name: &str) -> Result<bool, String> {
    let all = open_read_only(path)?.snapshots();
    let all = all.map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(all.iter().any(|one| one.scope == ROOT && one.name == name.as_bytes()))
}

fn open_read_only(path: &Path) -> Result<Pool, String> {
    let device =
        FileDevice::open_read_only(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Pool::open(Arc::new(device), Options::new(CHECK_CACHE_LEN))
        .map_err(|error| format!("{}: {error}", path.display()))
}
