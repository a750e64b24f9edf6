//! Who meets a lock of SQLite's that somebody has waits a little, where whoever gives the lock back
//! wakes it: readers behind a commit, writers behind each other, and a commit behind readers.
//!
//! Nothing here depends on time: the system's calls for pauses are replaced, and what happens
//! during one is what the test says.
#![expect(unsafe_code, reason = "replaces calls of the system")]

mod common;

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_long};
use std::rc::Rc;

use common::{code_of, open, run, value};
use rusqlite::{Connection, ErrorCode};

thread_local! {
    /// What happens in the next pause.
    static MEANWHILE: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
    /// The pauses so far, by the address at which they can be ended; 0 if they cannot.
    static PAUSES: RefCell<Vec<c_long>> = const { RefCell::new(Vec::new()) };
    /// The addresses at which others were woken.
    static WOKEN: RefCell<Vec<c_long>> = const { RefCell::new(Vec::new()) };
    static HANDLER_CALLS: Cell<u32> = const { Cell::new(0) };
}

fn pause(address: c_long) {
    PAUSES.with_borrow_mut(|pauses| pauses.push(address));
    if let Some(act) = MEANWHILE.take() {
        act();
    }
}

/// Replaces libc's function for this executable, as far as the engine's waits need it.
#[unsafe(no_mangle)]
unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    if number == libc::SYS_futex && b == c_long::from(libc::FUTEX_WAIT) {
        pause(a);
        return 0;
    }
    if number == libc::SYS_futex && b == c_long::from(libc::FUTEX_WAKE) {
        WOKEN.with_borrow_mut(|woken| woken.push(a));
        return 0;
    }
    type Call =
        unsafe extern "C" fn(c_long, c_long, c_long, c_long, c_long, c_long, c_long) -> c_long;
    // SAFETY: this is libc's function of that name, which takes up to seven arguments, and the
    // arguments are those of the call.
    unsafe {
        let next = libc::dlsym(libc::RTLD_NEXT, c"syscall".as_ptr());
        std::mem::transmute::<*mut libc::c_void, Call>(next)(number, a, b, c, d, e, f)
    }
}

/// Replaces libc's function for this executable.
#[unsafe(no_mangle)]
extern "C" fn clock_nanosleep(_: c_int, _: c_int, _: *const libc::timespec, _: c_long) -> c_int {
    pause(0);
    0
}

/// Lets more time pass than any that locks remember for moments.
fn let_pass() {
    // SAFETY: nothing is awaited but the end of the time, which is in milliseconds.
    unsafe { libc::poll(std::ptr::null_mut(), 0, 5) };
}

struct Home {
    _dir: tempfile::TempDir,
    /// Two connections to one database, without busy handlers.
    one: Rc<Connection>,
    other: Connection,
}

impl Home {
    fn new(mode: &str) -> Home {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.db.hpk");
        let [one, other] = [(); 2].map(|()| {
            let db = open(&path);
            db.busy_timeout(std::time::Duration::ZERO).unwrap();
            run(&db, &format!("pragma journal_mode={mode}"));
            db
        });
        run(&one, "create table t(a); insert into t values(1)");
        assert_eq!(value::<i64>(&other, "select count(*) from t"), 1);
        // What follows is no part of the turn in which that was written.
        let_pass();
        PAUSES.take();
        WOKEN.take();
        Home { _dir: dir, one: Rc::new(one), other }
    }

    /// Lets the first connection do something in the next pause of the other.
    fn meanwhile(&self, sql: &'static str) {
        let one = Rc::clone(&self.one);
        MEANWHILE.set(Some(Box::new(move || run(&one, sql))));
    }
}

/// Everything awaited was what the one who gave the lock back has woken.
fn assert_woken() {
    let (pauses, woken) = (PAUSES.take(), WOKEN.take());
    assert_eq!(pauses.len(), 1, "{pauses:?}");
    assert!(woken.contains(&pauses[0]), "{pauses:?} {woken:?}");
}

fn count(db: &Connection) -> rusqlite::Result<i64> {
    db.query_row("select count(*) from t", [], |row| row.get(0))
}

#[test]
fn a_reader_is_woken_by_who_has_committed() {
    let home = Home::new("delete");
    run(&home.one, "begin exclusive; insert into t values(2)");
    home.meanwhile("commit");
    assert_eq!(count(&home.other), Ok(2));
    assert_woken();

    // Who waits in vain is told so.
    run(&home.one, "begin exclusive");
    assert_eq!(code_of(count(&home.other)), Some(ErrorCode::DatabaseBusy));
    assert!(!PAUSES.take().is_empty());
}

#[test]
fn a_commit_waits_for_readers() {
    let home = Home::new("delete");
    run(&home.one, "begin; select * from t");
    home.meanwhile("commit");
    run(&home.other, "insert into t values(2)");
    assert_eq!(PAUSES.take(), [0]);

    run(&home.one, "begin; select * from t");
    let refused = home.other.execute("insert into t values(3)", []);
    assert_eq!(code_of(refused), Some(ErrorCode::DatabaseBusy));
    assert_eq!(count(&home.one), Ok(2));
}

/// It shares the database when it meets the other one, and would keep that one from committing: so
/// it does not wait there, but before it begins again.
#[test]
fn a_writer_is_woken_by_another() {
    fn handler(calls: i32) -> bool {
        assert!(PAUSES.with_borrow(Vec::is_empty), "it waits while it shares the database");
        HANDLER_CALLS.set(HANDLER_CALLS.get() + 1);
        calls < 3
    }
    for mode in ["delete", "wal"] {
        let mut home = Home::new(mode);
        HANDLER_CALLS.set(0);
        run(&home.one, "begin immediate; insert into t values(2)");
        // Without a handler, SQLite does not begin again.
        let refused = home.other.execute_batch("begin immediate");
        assert_eq!(code_of(refused), Some(ErrorCode::DatabaseBusy), "{mode}");
        assert!(PAUSES.take().is_empty(), "{mode}");
        // Nor does a program that goes on with something else; so it waits in vain, once.
        assert_eq!(count(&home.other), Ok(1), "{mode}");
        assert!(!PAUSES.take().is_empty(), "{mode}");
        assert_eq!(count(&home.other), Ok(1), "{mode}");
        assert!(PAUSES.take().is_empty(), "{mode}");

        home.other.busy_handler(Some(handler)).unwrap();
        WOKEN.take();
        home.meanwhile("commit");
        run(&home.other, "begin immediate; insert into t values(3); commit");
        assert_eq!(HANDLER_CALLS.get(), 1, "{mode}");
        assert_woken();
        assert_eq!(count(&home.one), Ok(3), "{mode}");
    }
}

/// A writer that was refused within its transaction may write later in the same one. If it begins
/// the log anew then, it shares the log again: that is no reason to look at a lock that is its own,
/// and the look must not give it back.
#[test]
fn a_writer_keeps_its_lock_when_it_begins_the_log_anew() {
    let home = Home::new("wal");
    run(&home.one, "pragma wal_checkpoint");
    // So that it writes to the log before it commits.
    run(&home.other, "pragma cache_size=5; begin; select * from t");
    run(&home.one, "begin immediate");
    let refused = home.other.execute("insert into t values(2)", []);
    assert_eq!(code_of(refused), Some(ErrorCode::DatabaseBusy));
    run(&home.one, "rollback");
    run(
        &home.other,
        "with recursive n(i) as (values(1) union all select i + 1 from n where i < 500) \
         insert into t select zeroblob(900) from n",
    );
    let refused = home.one.execute_batch("begin immediate");
    assert_eq!(code_of(refused), Some(ErrorCode::DatabaseBusy));
    run(&home.other, "commit");
    assert_eq!(count(&home.one), Ok(501));
}

/// The byte that a writer of the first file shares while it waits for readers to leave.
const WISH: libc::off_t = (1 << 62) | (1 << 61) | (1 << 54) | 2;

/// Whether somebody else has the byte; or locks or unlocks it.
fn wish(pool: &std::fs::File, command: c_int, kind: c_int) -> bool {
    use std::os::fd::AsRawFd;
    // SAFETY: a plain structure of integers, for which all zeros is a valid value.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    (range.l_type, range.l_start, range.l_len) = (kind as libc::c_short, WISH, 1);
    // SAFETY: the descriptor is open, and `range` outlives the call.
    assert_eq!(unsafe { libc::fcntl(pool.as_raw_fd(), command, &mut range) }, 0);
    range.l_type != libc::F_UNLCK as libc::c_short
}

/// Many readers that never pause would keep it waiting for ever: there is always one that just
/// begins, and holds SQLite's pending lock for that.
#[test]
fn readers_let_a_writer_go_first_that_waits_for_them() {
    let home = Home::new("delete");
    let path = home._dir.path().join("t.db.hpk");
    // Closed last: that drops SQLite's locks in this process.
    let pool = Rc::new(std::fs::File::options().read(true).write(true).open(path).unwrap());

    // The writer says that it waits, and for how long.
    run(&home.one, "begin; select * from t");
    let is_wished = Rc::new(Cell::new(false));
    let (seen, file) = (Rc::clone(&is_wished), Rc::clone(&pool));
    MEANWHILE.set(Some(Box::new(move || {
        seen.set(wish(&file, libc::F_OFD_GETLK, libc::F_WRLCK));
    })));
    let refused = home.other.execute("insert into t values(2)", []);
    assert_eq!(code_of(refused), Some(ErrorCode::DatabaseBusy));
    assert!(is_wished.get());
    assert!(!wish(&pool, libc::F_OFD_GETLK, libc::F_WRLCK));
    run(&home.one, "commit");

    // A reader waits until that is over.
    let_pass();
    PAUSES.take();
    wish(&pool, libc::F_OFD_SETLK, libc::F_RDLCK);
    let file = Rc::clone(&pool);
    MEANWHILE.set(Some(Box::new(move || {
        wish(&file, libc::F_OFD_SETLK, libc::F_UNLCK);
    })));
    assert_eq!(count(&home.one), Ok(1));
    assert_eq!(PAUSES.take().len(), 1);

    // Or for a while, if it is not, and then not again soon.
    let_pass();
    wish(&pool, libc::F_OFD_SETLK, libc::F_RDLCK);
    assert_eq!(count(&home.one), Ok(1));
    assert!(PAUSES.take().len() > 1);
    assert_eq!(count(&home.one), Ok(1));
    assert_eq!(PAUSES.take(), []);
    drop(home);
}

/// Who closes a database with a log beside others does not wait for them to leave.
#[test]
fn nobody_waits_to_be_the_last() {
    let Home { _dir, one, other } = Home::new("wal");
    drop(other);
    assert_eq!(PAUSES.take(), []);
    assert_eq!(count(&one), Ok(1));
}
