//! Background maintenance: the folding that commits left over is done when the pool is idle or
//! closed, also beside other processes and in forked ones; and `compression=auto` says what it
//! chose.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::{Random, Role, ledger, open, run, text, value};
use hardpack_engine::device::FileDevice;
use hardpack_engine::pool::{Options, Pool};
use rusqlite::Connection;

/// Longer than any machine needs.
const PATIENCE: Duration = Duration::from_secs(60);
/// Less than the time until records count as cold, and more than folding takes on any machine.
const SOON: Duration = Duration::from_secs(20);
const ROW_COUNT: i64 = 3000;
/// Fewer patches than this are left when everything due is folded.
const FEW_PATCHES: i64 = 100;

#[test]
fn child_role() {
    let Some(role) = crate::common::role() else { return };
    if role == "closing" {
        return closing_role();
    }
    let db = open(&crate::common::path_argument(0));
    match role.as_str() {
        // Alternates between writing a lot and resting long enough for maintenance to begin.
        "bursts" => {
            let mut random = Random(crate::common::argument(1).parse().unwrap());
            crate::common::report("ready");
            for _ in 0..12 {
                for _ in 0..4 {
                    ledger::transact(&db, &mut random, 500).unwrap();
                }
                let from = random.below(ROW_COUNT as u64 - 800) as i64;
                db.execute(
                    "update t set b = hex(randomblob(length(b) / 2)) where a between ?1 and ?1 + 800",
                    [from],
                )
                .unwrap();
                run(&db, "pragma wal_checkpoint");
                std::thread::sleep(Duration::from_millis(150));
            }
        }
        other => panic!("role {other}"),
    }
}

fn stat(db: &Connection, name: &str) -> i64 {
    text(db, &format!("select value from hardpack_stats where name = '{name}'"))
        .parse()
        .unwrap_or(0)
}

/// Creates a pool with one row per page.
fn create(path: &Path, pragmas: &str) -> Connection {
    let db = open(path);
    run(&db, pragmas);
    run(
        &db,
        &format!(
            "create table t(a integer primary key, b);
             with recursive c(i) as (select 1 union all select i + 1 from c where i < {ROW_COUNT})
             insert into t select i, printf('%.3500c', 'x') || hex(randomblob(100)) from c"
        ),
    );
    db
}

/// Gives scattered rows new content: whole pages, so that one commit folds only part of what is
/// due.
fn update_scattered(db: &Connection) {
    let update = "update t set b = hex(randomblob(1850)) where a % 8 = ";
    run(db, &format!("{update} 1"));
    run(db, &format!("{update} 3"));
    run(db, "pragma wal_checkpoint");
}

fn content(db: &Connection) -> String {
    text(db, "select sum(a * unicode(b)) || count(distinct b) || sum(length(b)) from t")
}

fn patches(path: &Path) -> u64 {
    let device = FileDevice::open_read_only(path).unwrap();
    let pool = Pool::open(std::sync::Arc::new(device), Options::new(4 << 20)).unwrap();
    pool.state().stats().patches.records
}

/// Repeats the check: a pool that was idle once must be maintained again.
#[test]
fn an_idle_pool_is_folded() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.hpk");
    is_folded_when_idle(&path);
    crate::common::assert_pool_is_clean(&path);
}

/// Repeats the check with one of several databases in a pool, in a directory.
#[test]
fn a_database_in_an_idle_pool_is_folded() {
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("pool.hpk");
    crate::common::make_pool(&pool, &["d"]);
    run(&open(&pool.join("other.db")), "create table t(a)");
    is_folded_when_idle(&pool.join("d/x.db"));
    crate::common::assert_pool_is_clean(&pool);
}

fn is_folded_when_idle(path: &Path) {
    let db = create(path, "pragma journal_mode=wal");
    for round in 0..3 {
        run(&db, "pragma hardpack_background_cpu='0%'");
        // A thread that is still working notices this soon.
        std::thread::sleep(Duration::from_millis(300));
        update_scattered(&db);
        let before = stat(&db, "patches_records");
        assert!(before > 3 * FEW_PATCHES, "{before} patches: too few for this test");
        run(&db, "pragma hardpack_background_cpu='100%'");
        run(&db, "update t set b = 'a row' where a = 1; pragma wal_checkpoint(truncate)");
        let expected = content(&db);
        let started = Instant::now();
        // This only reads, so no commit folds here. The last commit touched a single record.
        while stat(&db, "patches_records") > FEW_PATCHES {
            let left = stat(&db, "patches_records");
            assert!(started.elapsed() < SOON, "round {round}: {left} patches are left of {before}");
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(content(&db), expected);
    }
    crate::common::assert_integrity(&db);
}

/// If maintenance may take no processor time, nothing is folded until the pool is closed.
#[test]
fn closing_folds_what_is_due() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.hpk");
    let db = create(&path, "pragma journal_mode=wal; pragma hardpack_background_cpu='0%'");
    update_scattered(&db);
    run(&db, "pragma wal_checkpoint(truncate)");
    let before = stat(&db, "patches_records");
    assert!(before > 3 * FEW_PATCHES, "{before} patches: too few for this test");
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(stat(&db, "patches_records"), before, "maintenance took time that it may not take");
    let expected = content(&db);
    drop(db);
    let after = patches(&path);
    assert!(after < before as u64 / 2, "{before} patches became {after}");
    crate::common::assert_pool_is_clean(&path);
    assert_eq!(content(&open(&path)), expected);
}

/// Two processes write in bursts, and both have a thread that folds in between.
#[test]
fn two_processes_with_maintenance() {
    let dir = tempfile::tempdir().unwrap();
    for mode in ["wal", "delete"] {
        let path = dir.path().join(format!("{mode}.hpk"));
        let pragmas = format!("pragma journal_mode={mode}; pragma hardpack_background_cpu='100%'");
        let db = create(&path, &pragmas);
        ledger::create(&db);
        let name = path.to_string_lossy();
        let mut roles = ["1", "2"].map(|seed| Role::start("bursts", &[&name, seed]));
        roles.iter_mut().for_each(|role| role.expect("ready"));
        let started = Instant::now();
        while ledger::assert_sound(&db) < 96 {
            roles.iter_mut().for_each(|role| {
                role.runs();
            });
            assert!(started.elapsed() < PATIENCE, "{mode}: the writers hang");
            std::thread::sleep(Duration::from_millis(20));
        }
        roles.into_iter().for_each(Role::finish);
        assert_eq!(ledger::assert_sound(&db), 96, "{mode}");
        assert_eq!(value::<i64>(&db, "select count(*) from t"), ROW_COUNT);
        drop(db);
        crate::common::assert_pool_is_clean(&path);
    }
}

/// A host process forks while the thread works: the child opens the pool anew, with its own thread,
/// and both finish successfully.
#[test]
fn forks_of_a_process_with_maintenance() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.hpk");
    drop(create(&path, "pragma journal_mode=wal; pragma hardpack_background_cpu='100%'"));
    let script = r#"
def connect():
    return sqlite3.connect(f'file:{path}?vfs=hardpack', uri=True, timeout=60)
def burst(db, rest):
    with db:
        db.execute('update t set b = hex(randomblob(1850)) where a % 8 = ?', (rest,))
    db.execute('pragma wal_checkpoint').fetchall()
def threads():
    return len(os.listdir('/proc/self/task'))
def expect_threads(count):
    # One that has ended is listed for a moment after it was waited for.
    until = time.monotonic() + 20
    while threads() != count:
        assert time.monotonic() < until, threads()
        time.sleep(0.01)
parent = connect()
children = []
for rest in range(4):
    burst(parent, rest)
    expect_threads(2)
    # Long enough for the thread to be at work.
    time.sleep(0.13)
    pid = os.fork()
    if pid == 0:
        try:
            expect_threads(1)
            child = connect()
            # The thread starts with a commit to the pool, here a checkpoint that no other process
            # took over.
            until = time.monotonic() + 20
            while threads() == 1 and time.monotonic() < until:
                burst(child, rest + 4)
            expect_threads(2)
            time.sleep(0.15)
            child.close()
            expect_threads(1)
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
        os._exit(1)
    children.append(pid)
codes = [os.waitpid(pid, 0)[1] for pid in children]
print(codes, parent.execute('pragma integrity_check').fetchone()[0])
parent.close()
expect_threads(1)
"#;
    let printed = crate::common::python_with_library(script, &path);
    assert_eq!(printed.trim(), "[0, 0, 0, 0] ok");
    crate::common::assert_pool_is_clean(&path);
    let db = open(&path);
    assert_eq!(value::<i64>(&db, "select count(*) from t where length(b) = 3700"), ROW_COUNT);
}

#[test]
fn auto_says_what_it_chose_and_why() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.hpk");
    let choice = |db: &Connection, name: &str| {
        text(db, &format!("select value from hardpack_stats where name = 'auto_{name}'"))
    };
    let db = create(&path, "");
    assert_eq!(choice(&db, "choice"), "", "a level was given");
    drop(db);
    for (auto, levels) in [("auto", &["lz4", "zstd-"][..]), ("zstd-auto", &["zstd-"])] {
        let db = open(&path);
        assert_eq!(text(&db, &format!("pragma hardpack_compression='{auto}'")), auto);
        run(&db, "insert into t select a + (select max(a) from t), b from t");
        let chosen = choice(&db, "choice");
        assert!(levels.iter().any(|level| chosen.starts_with(level)), "{auto} chose '{chosen}'");
        let reason = choice(&db, "reason");
        assert!(reason.contains("MiB to compress take"), "{auto}: {reason}");
        crate::common::assert_integrity(&db);
        drop(db);
        crate::common::assert_pool_is_clean(&path);
    }
}

/// Returns the number of maintenance threads of this process.
fn maintenance_threads() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names =
        threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
    // The system truncates names.
    names.filter(|name| "hardpack-maintenance".starts_with(name.trim())).count()
}

/// Connections open, commit and close while another is closing the pool, which takes a while. The
/// last to go must leave no thread behind, and no descriptor, whose closing would drop the locks of
/// later users.
#[test]
fn nothing_is_left_of_those_who_came_while_the_pool_was_closed() {
    // This runs in its own process, since the threads of other tests would be counted too.
    let (well, lines) = Role::start("closing", &[]).wait();
    assert!(well, "{}", lines.join("\n"));
}

fn closing_role() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.hpk");
    for round in 0..8 {
        let db = create(&path, "pragma journal_mode=wal; pragma hardpack_background_cpu='0%'");
        update_scattered(&db);
        run(&db, "pragma wal_checkpoint(truncate)");
        let pause = Duration::from_millis(round * 4);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(pause);
                run(
                    &open(&path),
                    "update t set b = 'x' where a = 1; pragma wal_checkpoint(truncate)",
                );
            });
            drop(db);
        });
        assert_eq!(crate::common::open_descriptors(dir.path()), Vec::<std::path::PathBuf>::new());
        assert_eq!(maintenance_threads(), 0, "round {round}");
        std::fs::remove_file(&path).unwrap();
    }
}
