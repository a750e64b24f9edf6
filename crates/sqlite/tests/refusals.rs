//! A VFS above Hardpack refuses calls, all from one on or only that one. Hardpack never sees them,
//! so it must not treat as committed what SQLite gave up, or half a rollback as the whole.
//!
//! Found by `pagerfault.test` of SQLite's own suite (scripts/sqlite-suite), whose test VFS does the
//! same.
#![expect(unsafe_code, reason = "calls SQLite's C interface")]

mod common;

use std::ffi::{c_int, c_void};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use common::layer::{self, below};
use common::{assert_integrity, open, run, text};
use rusqlite::{Connection, ffi};

/// More calls than any transaction here makes.
const CALL_COUNT_MAX: i64 = 500;
const NO_REFUSAL: i64 = i64::MAX;

/// The number of calls that still pass. Only one test may use it at a time.
static CALLS_LEFT: AtomicI64 = AtomicI64::new(NO_REFUSAL);
/// Whether all further calls are refused.
static FOR_EVER: AtomicBool = AtomicBool::new(false);
/// Whether a main database was synced before the first refusal. A later sync ends a rollback.
static SYNCED: AtomicBool = AtomicBool::new(false);

fn refuses() -> bool {
    match CALLS_LEFT.load(Ordering::SeqCst) {
        NO_REFUSAL => false,
        left => {
            CALLS_LEFT.store(left - 1, Ordering::SeqCst);
            left == 0 || left < 0 && FOR_EVER.load(Ordering::SeqCst)
        }
    }
}

unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    data: *const c_void,
    len: c_int,
    at: i64,
) -> c_int {
    if refuses() {
        return ffi::SQLITE_FULL;
    }
    // SAFETY: the arguments are those of xWrite.
    unsafe { below(file).0.xWrite.unwrap()(file, data, len, at) }
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, flags: c_int) -> c_int {
    if refuses() {
        return ffi::SQLITE_FULL;
    }
    // SAFETY: the arguments are those of xSync.
    unsafe {
        let (below, is_main) = below(file);
        let code = below.xSync.unwrap()(file, flags);
        let is_commit = is_main && CALLS_LEFT.load(Ordering::SeqCst) >= 0;
        SYNCED.fetch_or(is_commit && code == ffi::SQLITE_OK, Ordering::SeqCst);
        code
    }
}

/// Opens a database through the refusing VFS.
fn open_above(path: &Path) -> Connection {
    let change: layer::Change = |methods, _| {
        methods.xWrite = Some(write);
        methods.xSync = Some(sync);
    };
    layer::open("refusing", change, path)
}

const CONTENT: &str = "select count(*) || ' ' || coalesce(sum(length(a)), 0) from t";

/// One transaction grows the file, one shrinks it, one writes pages to the file before its end, and
/// one runs a checkpoint.
const TRANSACTIONS: [&str; 4] = [
    "insert into t select hex(zeroblob(1000)) || a, b || 'x' from t",
    "begin; delete from t where rowid > 2; update t set a = 'new'; commit",
    "pragma cache_size = 2; begin; update t set a = a || a || a; insert into t values('last', 'one'); commit",
    "insert into t values('one', 'more'); pragma wal_checkpoint(truncate)",
];

/// Refuses the calls of the transaction, one per run. Returns the number of runs that failed before
/// anything was synced.
fn refuse_each(original: &Path, pragmas: &str, transaction: &str, for_ever: bool) -> usize {
    let dir = original.parent().unwrap();
    let mut undone = 0;
    for n in 0..CALL_COUNT_MAX {
        let context = format!("{pragmas}; {transaction}; call {n}, for ever: {for_ever}");
        let path = dir.join(format!("{n}.hpk"));
        fs::copy(original, &path).unwrap();
        let db = open_above(&path);
        run(&db, pragmas);
        let before = text(&db, CONTENT);
        SYNCED.store(false, Ordering::SeqCst);
        FOR_EVER.store(for_ever, Ordering::SeqCst);
        CALLS_LEFT.store(n, Ordering::SeqCst);
        let result = db.execute_batch(transaction);
        let _ = db.execute_batch("rollback");
        let survived = CALLS_LEFT.swap(NO_REFUSAL, Ordering::SeqCst) >= 0;
        // In exclusive mode nobody else can read before the end.
        let db = Some(db).filter(|_| !pragmas.contains("exclusive"));
        for db in [Some(open(&path)), db].into_iter().flatten() {
            assert_integrity(&db);
            let now = text(&db, CONTENT);
            match &result {
                Ok(()) => assert_ne!(now, before, "{context}: a commit is lost"),
                // If a journal cannot be ended after the sync, or a log cannot be synced, SQLite
                // reports an error for a transaction that is committed.
                Err(_) if SYNCED.load(Ordering::SeqCst) || pragmas.contains("wal") => {}
                Err(error) => {
                    assert_eq!(now, before, "{context}: {error}, but the transaction is committed");
                    undone += 1;
                }
            }
        }
        common::assert_pool_is_clean(&path);
        fs::remove_file(&path).unwrap();
        if survived {
            assert!(result.is_ok(), "{context}: {result:?}");
            return undone;
        }
    }
    panic!("the transaction never ends");
}

#[test]
fn what_a_layer_above_refuses_is_never_half_committed() {
    let dir = tempfile::tempdir().unwrap();
    let original = dir.path().join("original.hpk");
    let db = open(&original);
    run(&db, "pragma page_size = 1024; pragma auto_vacuum = full; create table t(a, b unique)");
    run(
        &db,
        "insert into t with recursive n(i) as (values(1) union all select i + 1 from n where i < 5)
            select hex(zeroblob(300)), i from n",
    );
    drop(db);
    for journal in ["delete", "truncate", "persist", "memory", "wal"] {
        for synchronous in ["off", "full"] {
            for locking in ["normal", "exclusive"] {
                let pragmas = format!(
                    "pragma locking_mode={locking}; pragma synchronous={synchronous}; pragma journal_mode={journal}"
                );
                for transaction in TRANSACTIONS {
                    for for_ever in [false, true] {
                        let undone = refuse_each(&original, &pragmas, transaction, for_ever);
                        assert!(undone > 0 || journal == "wal", "{pragmas}; {transaction}");
                    }
                }
            }
        }
    }
}
