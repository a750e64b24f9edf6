//! Many processes, connections and threads on one pool: writers in turn, with readers and
//! checkpoints all the while. Every snapshot is consistent, and in the end nothing is missing.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::{Random, Role, ledger, open, run, text, value};

const WRITER_COUNT: i64 = 3;
const WRITES_PER_WRITER: i64 = 60;
/// Longer than any machine needs; every awaited event must come.
const PATIENCE: Duration = Duration::from_secs(100);

#[test]
fn child_role() {
    let Some(role) = crate::common::role() else { return };
    let db = open(&crate::common::path_argument(0));
    match role.as_str() {
        "writer" => {
            run(&db, &crate::common::argument(2));
            let mut random = Random(crate::common::argument(1).parse().unwrap());
            crate::common::report("ready");
            for _ in 0..WRITES_PER_WRITER {
                let filler_len = random.below(3000) as usize;
                ledger::transact(&db, &mut random, filler_len).unwrap();
            }
        }
        "reader" => {
            crate::common::report("ready");
            read_until(&db, crate::common::argument(1).parse().unwrap());
        }
        "checkpointer" => {
            crate::common::report("ready");
            let target: i64 = crate::common::argument(1).parse().unwrap();
            for mode in ["passive", "full", "restart", "truncate"].iter().cycle() {
                run(&db, &format!("pragma wal_checkpoint({mode})"));
                if ledger::assert_holds(&db) >= target {
                    return;
                }
            }
        }
        "closer" => {
            let reader = open(&crate::common::path_argument(0));
            ledger::transact(&db, &mut Random(1), 100).unwrap();
            crate::common::report("committed");
            while !crate::common::path_argument(1).exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
            db.busy_timeout(Duration::from_millis(50)).unwrap();
            run(&db, "pragma hardpack_compression='lz4'");
            let error = db.execute_batch("begin immediate").unwrap_err();
            // A program that retries on "busy" must get that code.
            assert_eq!(
                error.sqlite_error_code(),
                Some(rusqlite::ErrorCode::DatabaseBusy),
                "{error}"
            );
            drop((db, reader));
        }
        "comer" => {
            drop(db);
            crate::common::report("ready");
            come_and_go(
                &crate::common::path_argument(0),
                99,
                crate::common::argument(1).parse().unwrap(),
            );
        }
        "lock" => {
            let code =
                db.busy_timeout(Duration::ZERO).and_then(|()| db.execute_batch("begin immediate"));
            crate::common::report(if code.is_ok() { "free" } else { "held" });
        }
        other => panic!("role {other}"),
    }
}

/// Reads snapshot after snapshot until there are `target` transactions; their number never
/// decreases.
fn read_until(db: &rusqlite::Connection, target: i64) {
    let mut last = 0;
    let started = Instant::now();
    while last < target {
        assert!(started.elapsed() < PATIENCE, "only {last} of {target} transactions came");
        let count = ledger::assert_holds(db);
        assert!(count >= last, "{last} transactions became {count}");
        last = count;
    }
}

fn new_pool(path: &Path, pragmas: &str) {
    let db = open(path);
    run(&db, pragmas);
    ledger::create(&db);
}

/// Runs writers in turn, two readers and optionally checkpoints, and checks that the final state is
/// exact.
fn writers_and_readers(pragmas: &str, per_writer: &str, with_checkpoints: bool) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.hpk");
    new_pool(&path, pragmas);
    let (name, total) = (path.to_string_lossy(), WRITER_COUNT * WRITES_PER_WRITER);
    let mut roles: Vec<Role> = Vec::new();
    for _ in 0..2 {
        roles.push(Role::start("reader", &[&name, &total.to_string()]));
    }
    if with_checkpoints {
        roles.push(Role::start("checkpointer", &[&name, &total.to_string()]));
    }
    for seed in 0..WRITER_COUNT {
        roles.push(Role::start("writer", &[&name, &seed.to_string(), per_writer]));
    }
    roles.iter_mut().for_each(|role| role.expect("ready"));
    // This process reads as well, through a connection that stays open.
    let db = open(&path);
    read_until(&db, total);
    roles.into_iter().for_each(Role::finish);
    assert_eq!(ledger::assert_sound(&db), total);
    drop(db);
    crate::common::assert_pool_is_clean(&path);
    assert_eq!(ledger::assert_sound(&open(&path)), total);
}

#[test]
fn processes_in_turn_with_rollback_journals() {
    writers_and_readers("pragma journal_mode=delete", "pragma synchronous=full", false);
}

#[test]
fn processes_in_turn_without_syncs_and_with_spills() {
    let per_writer = "pragma synchronous=off; pragma cache_size=5; pragma journal_mode=truncate";
    writers_and_readers("pragma page_size=512", per_writer, false);
}

#[test]
fn processes_in_turn_with_a_write_ahead_log() {
    let per_writer = "pragma synchronous=normal; pragma wal_autocheckpoint=20";
    writers_and_readers("pragma journal_mode=wal", per_writer, false);
}

#[test]
fn checkpoints_from_another_process() {
    let per_writer = "pragma synchronous=off; pragma wal_autocheckpoint=0";
    writers_and_readers("pragma journal_mode=wal", per_writer, true);
}

fn threads(pragmas: &str) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.hpk");
    new_pool(&path, pragmas);
    let total = WRITER_COUNT * WRITES_PER_WRITER;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| read_until(&open(&path), total));
        }
        for seed in 0..WRITER_COUNT {
            let path = &path;
            scope.spawn(move || {
                let mut random = Random(seed as u64);
                for _ in 0..WRITES_PER_WRITER {
                    // Each transaction has its own connection: opening and closing must not disturb
                    // others.
                    let db = open(path);
                    ledger::transact(&db, &mut random, 1000).unwrap();
                }
            });
        }
    });
    assert_eq!(ledger::assert_sound(&open(&path)), total);
    assert_eq!(crate::common::open_descriptors(dir.path()), Vec::<std::path::PathBuf>::new());
    crate::common::assert_pool_is_clean(&path);
}

#[test]
fn threads_of_one_process_with_rollback_journals() {
    threads("pragma journal_mode=delete");
}

#[test]
fn threads_of_one_process_with_a_write_ahead_log() {
    threads("pragma journal_mode=wal; pragma wal_autocheckpoint=10");
}

/// Threads repeatedly open the pool, commit and close it, against another process that does the
/// same. Whoever closes last closes the engine while others come back, and nobody loses a lock by
/// that: two writers at once would leave gaps, or an unsound database.
#[test]
fn engines_come_and_go() {
    const THREAD_COUNT: u64 = 3;
    const OPEN_COUNT: i64 = 25;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.hpk");
    new_pool(&path, "pragma journal_mode=delete");
    let mut other = Role::start("comer", &[&path.to_string_lossy(), &OPEN_COUNT.to_string()]);
    other.expect("ready");
    std::thread::scope(|scope| {
        for thread in 0..THREAD_COUNT {
            let path = &path;
            scope.spawn(move || come_and_go(path, thread, OPEN_COUNT));
        }
    });
    other.finish();
    let total = (THREAD_COUNT as i64 + 1) * OPEN_COUNT;
    crate::common::assert_pool_is_clean(&path);
    assert_eq!(ledger::assert_sound(&open(&path)), total);
}

fn come_and_go(path: &Path, seed: u64, times: i64) {
    let mut random = Random(seed);
    for _ in 0..times {
        // Enough patches that there is something to fold when the pool is closed.
        let filler_len = random.below(60_000) as usize;
        ledger::transact(&open(path), &mut random, filler_len).unwrap();
    }
}

/// A reader's snapshot stays unchanged while others write, in this process and outside.
#[test]
fn snapshots_stay_while_others_write() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.hpk");
    new_pool(&path, "pragma journal_mode=wal");
    let (reader, writer) = (open(&path), open(&path));
    let mut random = Random(1);
    ledger::transact(&writer, &mut random, 100).unwrap();
    run(&reader, "begin");
    assert_eq!(value::<i64>(&reader, "select max(seq) from log"), 1);
    Role::start("writer", &[&path.to_string_lossy(), "1", ""]).finish();
    for _ in 0..20 {
        ledger::transact(&writer, &mut random, 5000).unwrap();
        run(&writer, "pragma wal_checkpoint(passive)");
        assert_eq!(value::<i64>(&reader, "select max(seq) from log"), 1);
        assert_eq!(value::<i64>(&reader, "select sum(balance) from account"), ledger::SUM);
    }
    run(&reader, "commit");
    assert_eq!(ledger::assert_sound(&reader), 21 + WRITES_PER_WRITER);
}

fn lock_seen_from_outside(path: &Path) -> String {
    let (_, lines) = Role::start("lock", &[&path.to_string_lossy()]).wait();
    lines.last().cloned().unwrap_or_default()
}

/// Closing any descriptor of a file drops the process's POSIX locks on it; ours must not.
#[test]
fn locks_survive_the_end_of_other_connections() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.hpk");
    new_pool(&path, "");
    let first = open(&path);
    assert_eq!(lock_seen_from_outside(&path), "free");
    run(&first, "begin immediate");
    assert_eq!(lock_seen_from_outside(&path), "held");
    let second = open(&path);
    ledger::assert_holds(&second);
    drop(second);
    assert_eq!(lock_seen_from_outside(&path), "held", "after another connection was closed");
    let link = dir.path().join("link.hpk");
    std::fs::hard_link(&path, &link).unwrap();
    assert!(crate::common::try_open(&link, "").is_err());
    assert_eq!(lock_seen_from_outside(&path), "held", "after another name was refused");
    assert!(crate::common::try_open(&path, "&mode=ro&cache=nonsense").is_err());
    let read_only = crate::common::try_open(&path, "&mode=ro").unwrap();
    ledger::assert_holds(&read_only);
    drop(read_only);
    assert_eq!(lock_seen_from_outside(&path), "held", "after a failed open");
    run(&first, "commit");
    assert_eq!(lock_seen_from_outside(&path), "free");
}

/// Locks also survive on a database that is only about to become a pool.
#[test]
fn locks_survive_on_an_empty_database() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.hpk");
    let first = open(&path);
    run(&first, "begin immediate");
    drop(open(&path));
    assert_eq!(lock_seen_from_outside(&path), "held");
    run(&first, "create table t(a)");
    drop(open(&path));
    assert_eq!(lock_seen_from_outside(&path), "held");
    run(&first, "commit");
    assert_eq!(lock_seen_from_outside(&path), "free");
    assert!(crate::common::is_pool(&path));
}

#[test]
fn no_descriptor_is_left_open() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.hpk");
    for mode in ["delete", "persist", "wal"] {
        new_pool(&path, &format!("pragma journal_mode={mode}"));
        let (first, second) = (open(&path), open(&path));
        ledger::transact(&first, &mut Random(1), 100).unwrap();
        ledger::assert_holds(&second);
        assert!(!crate::common::open_descriptors(dir.path()).is_empty());
        drop((first, second));
        assert_eq!(crate::common::open_descriptors(dir.path()), Vec::<std::path::PathBuf>::new());
        std::fs::remove_file(&path).unwrap();
    }
}

/// While a process is in the middle of a long transaction, another process can read, change
/// settings, close, and be told that it cannot write.
#[test]
fn a_long_transaction_blocks_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.hpk");
    new_pool(&path, "");
    let signal = dir.path().join("signal").to_string_lossy().into_owned();
    let mut other = Role::start("closer", &[&path.to_string_lossy(), &signal]);
    other.expect("committed");
    let db = open(&path);
    run(&db, "pragma cache_size=5");
    ledger::begin(&db, &mut Random(2), 1000).unwrap();
    // More than the engine keeps in memory.
    run(&db, "insert into log select 1000000, 7000000, hex(randomblob(20000000))");
    std::fs::write(&signal, "").unwrap();
    let started = Instant::now();
    while other.child.try_wait().unwrap().is_none() {
        assert!(started.elapsed() < PATIENCE, "the other process hangs");
        std::thread::sleep(Duration::from_millis(20));
    }
    other.finish();
    run(&db, "rollback");
    assert_eq!(ledger::assert_sound(&db), 1);
    drop(db);
    crate::common::assert_pool_is_clean(&path);
}

/// A forked child opens its own connection and leaves its parent's alone.
#[test]
fn forked_children() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.hpk");
    new_pool(&path, "");
    let script = r#"
def connect():
    return sqlite3.connect(f'file:{path}?vfs=hardpack', uri=True, timeout=60)
parent = connect()
parent.execute('create table counter(n)')
parent.execute('insert into counter values(0)')
parent.commit()
def descriptors():
    here = '/proc/self/fd/'
    return sum(os.path.realpath(here + fd) == os.path.realpath(path) for fd in os.listdir(here))
children = []
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        try:
            inherited = descriptors()
            child = connect()
            child.execute('select n from counter').fetchone()
            # The host's, and an engine of its own: the parent's would share its locks.
            assert descriptors() == inherited + 2, descriptors()
            for _ in range(25):
                child.execute('update counter set n = n + 1')
                child.commit()
            child.close()
            os._exit(0)
        except BaseException as error:
            print(error, file=sys.stderr)
        os._exit(1)
    children.append(pid)
for _ in range(25):
    parent.execute('update counter set n = n + 1')
    parent.commit()
codes = [os.waitpid(pid, 0)[1] for pid in children]
print(codes, parent.execute('select n from counter').fetchone()[0])
"#;
    let printed = crate::common::python_with_library(script, &path);
    assert_eq!(printed.trim(), "[0, 0, 0, 0] 125");
    assert_eq!(text(&open(&path), "select n from counter"), "125");
    crate::common::assert_pool_is_clean(&path);
}

/// A child that closes a connection of its parent, as Python does with what it no longer needs,
/// keeps its own connection to the same database, and what keeps others away from it.
#[test]
fn a_child_closes_what_it_inherits() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.hpk");
    crate::common::make_pool(&path, &[]);
    let script = r#"
pool = path
def connect(name):
    uri = f'file:{pool}/{name}?vfs=hardpack'
    return sqlite3.connect(uri, uri=True, timeout=60, isolation_level=None)
def attempt(sql):
    try:
        return own.execute(sql).fetchall()
    except sqlite3.Error as error:
        return error.sqlite_errorname
for mode in ('delete', 'wal'):
    for name in (f'first-{mode}.db', f'second-{mode}.db'):
        parent = connect(name)
        parent.execute(f'pragma journal_mode = {mode}')
        parent.execute('create table t(a)')
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            own = connect(name)
            own.execute('insert into t values (1)')
            files = sorted(os.listdir(os.path.dirname(pool)))
            parent.close()
            assert files == sorted(os.listdir(os.path.dirname(pool)))
            print(attempt('insert into t values (2)'), attempt('select count(*) from t'), end=' ')
            own.close()
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(pid, 0)
        print(parent.execute('select sum(a) from t').fetchone()[0])
        parent.close()
"#;
    let printed = crate::common::python_with_library(script, &path);
    assert_eq!(printed, "[] [(2,)] 3\n".repeat(4));
    crate::common::assert_pool_is_clean(&path);
}
