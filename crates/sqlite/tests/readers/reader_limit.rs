//! `reader-pin-max`: a reader that holds a state for too long is told so, and nobody waits for it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::common::{Role, run, text, value};
use rusqlite::{Connection, ffi};

const PARAMETERS: &str = "&hardpack_concurrency=snapshot&hardpack_reader_pin_max=1s";
/// Enough for the smallest cache of the engine to hold only a part.
const ROW_COUNT: i64 = 12_000;
/// Long enough for every limit here to be exceeded.
const LONGER: Duration = Duration::from_millis(2500);
const PAUSE: Duration = Duration::from_millis(2);

#[test]
fn child_role() {
    let Some(role) = crate::common::role() else { return };
    let path = crate::common::path_argument(0);
    match role.as_str() {
        // Reads for a moment, sleeps until it is told to go on, and reads the rest.
        "sleep" => {
            let db = crate::common::try_open(&path, &crate::common::argument(1)).unwrap();
            crate::common::report(&read_in_two(&db, || {
                crate::common::report("reading");
                while !go(&path).exists() {
                    std::thread::sleep(PAUSE);
                }
            }));
            crate::common::report(&read_in_two(&db, || {}));
        }
        other => assert!(crate::common::play(other), "role {other}"),
    }
}

/// The file that makes the role go on.
fn go(path: &Path) -> PathBuf {
    crate::common::with_suffix(path, ".go")
}

/// Reads all rows, acting after the first. Returns how that ended.
fn read_in_two(db: &Connection, act: impl FnOnce()) -> String {
    run(db, "pragma cache_size=20");
    let mut statement = db.prepare("select a from t").unwrap();
    let mut rows = statement.query([]).unwrap();
    let (mut act, mut found) = (Some(act), Vec::new());
    loop {
        match rows.next() {
            Ok(Some(row)) => found.push(row.get::<_, i64>(0).unwrap()),
            Ok(None) => break,
            Err(rusqlite::Error::SqliteFailure(error, _)) => {
                return format!("code {}", error.extended_code);
            }
            Err(error) => panic!("{error}"),
        }
        if let Some(act) = act.take() {
            act();
        }
    }
    let is_one_state = found.iter().all(|a| *a == found[0]);
    format!("{} rows of one state: {is_one_state}", found.len())
}

fn all_rows() -> String {
    format!("{ROW_COUNT} rows of one state: true")
}

fn too_old() -> String {
    format!("code {}", ffi::SQLITE_BUSY_SNAPSHOT)
}

fn home() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.hpk");
    let db = crate::common::try_open(&path, PARAMETERS).unwrap();
    run(&db, "create table t(a integer, b text)");
    crate::common::fill(&db, ROW_COUNT);
    run(&db, "update t set a = 0");
    (dir, path)
}

fn churn(db: &Connection) {
    run(db, "update t set a = a + 1, b = hex(randomblob(100))");
}

/// A reader that sleeps holds its state no longer than the limit, whether it is that of a
/// transaction or of a connection with `at=`. It gets an error that says to begin again, never
/// anything else.
#[test]
fn a_sleeping_reader_holds_nothing_for_ever() {
    for is_recent in [false, true] {
        let (dir, path) = home();
        let db = crate::common::open(&path);
        let number = text(&db, "pragma hardpack_txg");
        let parameters = if is_recent { format!("&at={number}") } else { String::new() };
        let arguments = [&path.display().to_string(), &parameters];
        let mut reader = Role::start_uncached("sleep", &arguments.map(|text| &text[..]));
        reader.expect("reading");
        let began = Instant::now();
        while began.elapsed() < LONGER {
            churn(&db);
        }
        let len = std::fs::metadata(&path).unwrap().len();
        (0..20).for_each(|_| churn(&db));
        let then = std::fs::metadata(&path).unwrap().len();
        assert!(then <= len + len / 2, "the pool grows from {len} to {then} bytes");
        std::fs::write(go(&path), "").unwrap();
        reader.expect(&too_old());
        // A transaction that begins then sees the newest state; an older one is gone for good.
        reader.expect(&if is_recent { too_old() } else { all_rows() });
        reader.finish();
        drop((db, dir));
    }
}

/// A reader within the limit, and one of a snapshot, read on.
#[test]
fn what_is_within_the_limit_is_read() {
    let (dir, path) = home();
    let db = crate::common::open(&path);
    let reader = crate::common::open(&path);
    assert_eq!(read_in_two(&reader, || churn(&db)), all_rows());
    let number = hardpack_engine::pool::ROOT;
    crate::common::engine(&path).create_snapshot(number, b"s", 0).unwrap();
    let old = crate::common::try_open(&path, "&at=s").unwrap();
    let found = read_in_two(&old, || {
        std::thread::sleep(Duration::from_millis(1100));
        churn(&db);
    });
    assert_eq!(found, all_rows());
    assert_eq!(crate::common::engine(&path).store().pinned_by_others().unwrap(), []);
    // The reader itself notices, although nobody writes.
    let pause = || std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(read_in_two(&reader, pause), too_old());
    assert_eq!(read_in_two(&reader, || {}), all_rows());
    run(&reader, "begin; select count(*) from t");
    pause();
    // What it has read is still the newest, so it may write.
    run(&reader, "update t set a = 1; commit");
    assert_eq!(value::<i64>(&db, "select min(a) from t"), 1);
    run(&db, "pragma hardpack_reader_pin_max='none'");
    assert_eq!(read_in_two(&reader, pause), all_rows());
    drop((db, reader, old, dir));
}

/// `integrity_check` takes pages that it cannot read for damaged ones. A pragma says whether the
/// transaction has lost its state instead.
#[test]
fn a_transaction_says_whether_it_has_lost_its_state() {
    let (_dir, path) = home();
    let db = crate::common::open(&path);
    run(&db, "pragma cache_size=20; begin");
    assert_eq!(text(&db, "pragma integrity_check"), "ok");
    let txg = || db.query_row("pragma hardpack_txg", [], |row| row.get::<_, String>(0));
    txg().unwrap();
    std::thread::sleep(LONGER);
    assert_ne!(text(&db, "pragma integrity_check"), "ok");
    let error = txg().unwrap_err();
    let code = error.sqlite_error().map(|error| error.extended_code);
    assert_eq!(code, Some(ffi::SQLITE_BUSY_SNAPSHOT), "{error}");
    run(&db, "rollback");
    txg().unwrap();
    crate::common::assert_integrity(&db);
}
