//! Answers of the VFS below Hardpack, and data found in files, must be taken seriously. SQLite's
//! own test suites (scripts/sqlite-suite) found each of these cases.
//!
//! The host is SQLite's `unix` with an xAccess that can be made to fail.
#![expect(unsafe_code, reason = "calls SQLite's C interface")]

mod common;

use std::ffi::{CStr, c_char, c_int};
use std::fs;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{is_pool, open, open_plain, run, shell, try_open, value};
use rusqlite::{ErrorCode, ffi};

/// The file whose existence is unknown while [`ACCESS_FAILS`].
const FAILING_NAME: &str = "failing.hpk-journal";

static ACCESS_FAILS: AtomicBool = AtomicBool::new(false);
static UNIX_ACCESS: OnceLock<Access> = OnceLock::new();

type Access =
    unsafe extern "C" fn(*mut ffi::sqlite3_vfs, *const c_char, c_int, *mut c_int) -> c_int;

unsafe extern "C" fn access(
    vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    // SAFETY: the arguments are those of xAccess.
    unsafe {
        let fails = CStr::from_ptr(name).to_bytes().ends_with(FAILING_NAME.as_bytes());
        if fails && ACCESS_FAILS.load(Ordering::SeqCst) {
            return ffi::SQLITE_IOERR_ACCESS;
        }
        UNIX_ACCESS.get().unwrap()(vfs, name, flags, out)
    }
}

/// Installs the failing xAccess. Every test begins with this, before it opens a file.
fn prepare() {
    common::setup();
    UNIX_ACCESS.get_or_init(|| {
        // SAFETY: `unix` always exists, and nothing calls its methods yet.
        unsafe {
            let unix = ffi::sqlite3_vfs_find(c"unix".as_ptr());
            (*unix).xAccess.replace(access).unwrap()
        }
    });
}

/// A journal on disk must be rolled back. If it is unknown whether there is one, no other may be
/// begun in memory.
#[test]
fn a_journal_is_not_begun_when_the_host_cannot_say_whether_there_is_one() {
    let dir = tempfile::tempdir().unwrap();
    prepare();
    let db = open(&dir.path().join("failing.hpk"));
    run(&db, "create table t(a); insert into t values(1); begin immediate");
    ACCESS_FAILS.store(true, Ordering::SeqCst);
    let error = db.execute("insert into t values(2)", []);
    ACCESS_FAILS.store(false, Ordering::SeqCst);
    match error {
        Err(rusqlite::Error::SqliteFailure(error, _)) => {
            assert_eq!(error.code, ErrorCode::SystemIoFailure);
        }
        other => panic!("{other:?}"),
    }
    let _ = db.execute_batch("rollback");
    run(&db, "insert into t values(3)");
    assert_eq!(value::<i64>(&db, "select sum(a) from t"), 4);
}

/// An interrupted creation leaves zeros. So may a failing disk, but then somebody's data follows
/// them.
#[test]
fn a_plain_database_with_a_zeroed_beginning_is_not_taken_for_empty() {
    prepare();
    let dir = tempfile::tempdir().unwrap();
    for (zeroed, page_len) in [(4096, 4096), (4096, 1024), (12288, 4096)] {
        let path = dir.path().join(format!("plain-{zeroed}-{page_len}.db"));
        let db = open_plain(&path);
        run(&db, &format!("pragma page_size = {page_len}; create table t(a, b unique)"));
        run(
            &db,
            "insert into t with recursive n(i) as (values(1) union all select i + 1 from n where i < 20)
                select i, randomblob(300) from n",
        );
        drop(db);
        let mut bytes = fs::read(&path).unwrap();
        bytes[..zeroed].fill(0);
        assert!((zeroed..=40960).contains(&bytes.len()), "{}", bytes.len());
        fs::write(&path, &bytes).unwrap();
        let refused = try_open(&path, "").and_then(|db| db.execute_batch("create table u(a)"));
        match refused {
            Err(rusqlite::Error::SqliteFailure(error, _)) => {
                assert_eq!(error.code, ErrorCode::NotADatabase);
            }
            other => panic!("{other:?}"),
        }
        assert!(fs::read(&path).unwrap() == bytes, "it was changed");
    }
}

/// What an interrupted creation left can still become a pool, wherever it was interrupted.
#[test]
fn remains_of_a_creation_become_a_pool() {
    prepare();
    let dir = tempfile::tempdir().unwrap();
    for len in [512, 4096, 8192, 12288, 40960] {
        let path = dir.path().join(format!("pool-{len}.hpk"));
        fs::write(&path, vec![0; len]).unwrap();
        let db = open(&path);
        run(&db, "create table t(a)");
        drop(db);
        assert!(is_pool(&path), "{len}");
    }
}

/// With nolock=1 no lock signals that it is time to check for commits of others.
#[test]
fn without_locks_what_another_process_commits_is_seen() {
    prepare();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.hpk");
    run(&open(&path), "create table t(a); insert into t values(1)");
    let db = try_open(&path, "&nolock=1").unwrap();
    assert_eq!(value::<i64>(&db, "select sum(a) from t"), 1);
    let (_, errors) = shell(&common::uri(&path, ""), &["insert into t values(41);"]);
    assert_eq!(errors, "");
    assert_eq!(value::<i64>(&db, "select sum(a) from t"), 42);
}
