//! The disk fills up in the middle of transactions: SQLITE_FULL, then a rollback that works. Once
//! there is space again, everything goes on and no acknowledged transaction is lost.
//!
//! The tests need permission to mount a small tmpfs; without it, they say so and check nothing.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{Random, ledger, run, text, uri, value, with_suffix};
use rusqlite::Connection;

/// A small file system, unmounted when dropped.
struct SmallDisk {
    dir: tempfile::TempDir,
}

impl SmallDisk {
    fn mount(kib: usize) -> Option<SmallDisk> {
        let dir = tempfile::tempdir().unwrap();
        let size = format!("size={kib}k");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(dir.path())
            .status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(SmallDisk { dir });
        }
        println!("SKIPPED: mounting a tmpfs is not permitted here; a full disk was not tested");
        None
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Fills the disk so that only this much space is free.
    fn fill(&self, free_kib: u64) -> PathBuf {
        let path = self.path("ballast");
        let output =
            Command::new("df").args(["-k", "--output=avail"]).arg(self.dir.path()).output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        let free: u64 = text.lines().nth(1).unwrap().trim().parse().unwrap();
        let ballast = free.saturating_sub(free_kib) << 10;
        std::fs::write(&path, vec![1; ballast as usize]).unwrap();
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.dir.path()).status();
    }
}

/// Empties the file first: a child that another thread is just starting may still have it open.
fn remove_ballast(path: &Path) {
    std::fs::write(path, []).unwrap();
    std::fs::remove_file(path).unwrap();
}

fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull)
}

/// Inserts random bytes, which no compression makes smaller.
fn insert_blob(db: &Connection, seq: i64, len: usize) -> rusqlite::Result<()> {
    db.execute_batch(&format!("insert into log values({seq}, {seq} * 7, randomblob({len}))"))
}

fn new_pool(path: &Path, pragmas: &str) -> Connection {
    let db = crate::common::open(path);
    run(&db, pragmas);
    ledger::create(&db);
    ledger::transact(&db, &mut Random(1), 1000).unwrap();
    db
}

/// Asserts that a connection with this many transactions makes further ones, and that all of them
/// are there afterwards.
fn assert_goes_on(db: Connection, path: &Path, mut acked: i64, what: &str) {
    for _ in 0..3 {
        acked += 1;
        insert_blob(&db, acked, 1000).unwrap();
        assert_eq!(ledger::assert_sound(&db), acked, "{what}");
    }
    drop(db);
    assert_eq!(ledger::assert_sound(&crate::common::open(path)), acked, "{what}");
    crate::common::assert_pool_is_clean(path);
}

/// Grows a database until the disk is full, frees space, and goes on.
fn fills_up(pragmas: &str, blob_len: usize) {
    let Some(disk) = SmallDisk::mount(10 << 10) else { return };
    let path = disk.path("pool.hpk");
    let db = new_pool(&path, pragmas);
    let ballast = disk.fill(1500);
    for round in 0..3 {
        let mut acked = ledger::assert_holds(&db);
        let error = loop {
            run(&db, "begin");
            let done = insert_blob(&db, acked + 1, blob_len)
                .and_then(|()| db.execute_batch("update account set balance = balance"))
                .and_then(|()| db.execute_batch("commit"));
            match done {
                Ok(()) => acked += 1,
                Err(error) => break error,
            }
        };
        assert!(is_full(&error), "{pragmas}: {error}");
        if !db.is_autocommit() {
            run(&db, "rollback");
        }
        // Reading goes on, here and elsewhere, and no acknowledged transaction is lost.
        assert_eq!(ledger::assert_sound(&db), acked, "{pragmas}, round {round}");
        assert_eq!(ledger::assert_sound(&crate::common::open(&path)), acked, "{pragmas}");
        // With the disk still full, another attempt fails and harms nothing, even one that exceeds
        // what the engine keeps in memory.
        for len in [3_000_000, 40_000_000] {
            assert!(is_full(&insert_blob(&db, acked + 1, len).unwrap_err()));
        }
        assert_eq!(ledger::assert_sound(&db), acked, "{pragmas}, round {round}");
        // The pool has grown since, but what is removed is more than the next transaction needs.
        assert!(std::fs::metadata(&ballast).unwrap().len() >= 1 << 20, "{pragmas}, round {round}");
        remove_ballast(&ballast);
        insert_blob(&db, acked + 1, blob_len).unwrap();
        assert_eq!(ledger::assert_sound(&db), acked + 1, "{pragmas}");
        run(&db, "delete from log");
        run(&db, "vacuum");
        run(&db, "pragma wal_checkpoint(truncate)");
        disk.fill(1500);
    }
    remove_ballast(&ballast);
    drop(db);
    crate::common::assert_pool_is_clean(&path);
    assert!(!with_suffix(&path, "-journal").exists());
}

#[test]
fn with_rollback_journals() {
    fills_up("pragma journal_mode=delete", 50_000);
    fills_up("pragma synchronous=off", 50_000);
    fills_up("pragma cache_size=5", 300_000);
}

#[test]
fn with_a_write_ahead_log() {
    fills_up("pragma journal_mode=wal; pragma wal_autocheckpoint=10", 50_000);
    fills_up(
        "pragma journal_mode=wal; pragma synchronous=off; pragma wal_autocheckpoint=5",
        20_000,
    );
}

/// A commit that fails when its journal is gone already is undone as well, although no lock is
/// given back that would tell: nobody reads what it wrote, and the next one works.
#[test]
fn in_exclusive_locking_mode() {
    for pragmas in
        ["synchronous=off", "synchronous=full", "journal_mode=memory; pragma synchronous=off"]
    {
        let Some(disk) = SmallDisk::mount(6 << 10) else { return };
        let path = disk.path("pool.hpk");
        let db = new_pool(&path, &format!("pragma locking_mode=exclusive; pragma {pragmas}"));
        let ballast = disk.fill(1500);
        let mut acked = 1;
        let error = loop {
            match insert_blob(&db, acked + 1, 100_000) {
                Ok(()) => acked += 1,
                Err(error) => break error,
            }
        };
        assert!(is_full(&error), "{pragmas}: {error}");
        assert_eq!(ledger::assert_sound(&db), acked, "{pragmas}");
        remove_ballast(&ballast);
        assert_goes_on(db, &path, acked, pragmas);
    }
}

/// So is one that fails while it is written ahead.
#[test]
fn in_exclusive_locking_mode_with_a_large_transaction() {
    for journal in ["delete", "persist", "memory"] {
        let Some(disk) = SmallDisk::mount(24 << 10) else { return };
        let path = disk.path("pool.hpk");
        let pragmas = format!(
            "pragma locking_mode=exclusive; pragma journal_mode={journal}; pragma synchronous=off"
        );
        let db = new_pool(&path, &pragmas);
        run(&db, "begin");
        let error = (2..80).try_for_each(|seq| insert_blob(&db, seq, 1_000_000)).unwrap_err();
        assert!(is_full(&error), "{journal}: {error}");
        if !db.is_autocommit() {
            run(&db, "rollback");
        }
        assert_goes_on(db, &path, 1, journal);
    }
}

/// Without a journal nothing says that the changes of a failed commit were undone.
#[test]
fn in_exclusive_locking_mode_without_a_journal() {
    for synchronous in ["off", "normal", "full"] {
        let Some(disk) = SmallDisk::mount(6 << 10) else { return };
        let path = disk.path("pool.hpk");
        let pragmas = "pragma locking_mode=exclusive; pragma journal_mode=off";
        let db = new_pool(&path, &format!("{pragmas}; pragma synchronous={synchronous}"));
        let ballast = disk.fill(60);
        assert!(is_full(&insert_blob(&db, 2, 500_000).unwrap_err()), "{synchronous}");
        remove_ballast(&ballast);
        assert_eq!(ledger::assert_sound(&db), 1, "{synchronous}");
        assert_goes_on(db, &path, 1, synchronous);
    }
}

/// The first of two databases is committed when the second one fails, and there is no room to roll
/// it back either. Once there is, the connection goes on, and sees what others see.
#[test]
fn in_exclusive_locking_mode_with_two_databases() {
    let mut failed = 0;
    for (journal, synchronous) in
        [("memory", "full"), ("memory", "normal"), ("delete", "full"), ("persist", "normal")]
    {
        for free_kib in [120, 160, 200, 250, 300] {
            let Some(disk) = SmallDisk::mount(8 << 10) else { return };
            let paths = [disk.path("a.hpk"), disk.path("b.hpk")];
            let db = crate::common::open(&paths[0]);
            run(&db, &format!("attach '{}' as b", uri(&paths[1], "")));
            for name in ["main", "b"] {
                run(
                    &db,
                    &format!(
                        "pragma {name}.locking_mode=exclusive; pragma {name}.journal_mode={journal};
                         pragma {name}.synchronous={synchronous}; pragma {name}.cache_size=5;
                         create table {name}.t(id integer primary key, v);
                         insert into {name}.t values(0, randomblob(100000))"
                    ),
                );
            }
            let ballast = disk.fill(free_kib);
            let change = "begin; update main.t set v = randomblob(100000);
                          update b.t set v = randomblob(100000); commit";
            failed += u32::from(db.execute_batch(change).is_err());
            if !db.is_autocommit() {
                let _ = db.execute_batch("rollback");
            }
            remove_ballast(&ballast);
            let what = format!("{journal}, {synchronous}, {free_kib} KiB");
            let sum = "select group_concat(id || ' ' || hex(substr(v, 1, 8))) from ";
            let mut sums = Vec::new();
            for name in ["main", "b"] {
                let added = format!("insert into {name}.t values(2, randomblob(1000))");
                db.execute_batch(&added).unwrap_or_else(|error| panic!("{what}, {name}: {error}"));
                sums.push(text(&db, &format!("{sum}{name}.t")));
            }
            drop(db);
            for (path, seen) in paths.iter().zip(sums) {
                let other = crate::common::open(path);
                assert_eq!(text(&other, &format!("{sum}t")), seen, "{what}");
                crate::common::assert_integrity(&other);
            }
        }
    }
    assert!(failed > 3, "only {failed} transactions failed");
}

/// Writes the journal beside a pool that a process leaves which is killed before the pool has any
/// of its transaction: that of a plain file with the same pages.
fn leave_journal(path: &Path) {
    let script = r"
import shutil, tempfile
db = sqlite3.connect('file:' + path + '?vfs=hardpack', uri=True)
with tempfile.TemporaryDirectory() as directory:
    plain = directory + '/plain'
    with open(plain, 'wb') as file:
        file.write(db.serialize())
    db.close()
    other = sqlite3.connect(plain, isolation_level=None)
    other.executescript('pragma synchronous=off; pragma cache_size=5; begin')
    other.execute('update log set filler = zeroblob(100000)')
    shutil.copy(plain + '-journal', path + '-journal')
";
    crate::common::python_with_library(script, path);
}

/// A process was killed, and its journal is left. On a full disk others read the database all the
/// same: nothing has changed, so to undo it needs no space.
#[test]
fn a_journal_that_is_left_does_not_keep_others_from_reading() {
    for blob_count in [40, 400] {
        let Some(disk) = SmallDisk::mount(200 << 10) else { return };
        let path = disk.path("pool.hpk");
        let db = new_pool(&path, "pragma journal_mode=delete");
        for seq in 2..blob_count {
            insert_blob(&db, seq, 100_000).unwrap();
        }
        drop(db);
        leave_journal(&path);
        let journal = with_suffix(&path, "-journal");
        assert!(journal.metadata().unwrap().len() > blob_count as u64 * 90_000);
        let ballast = disk.fill(0);
        assert_eq!(ledger::assert_sound(&crate::common::open(&path)), blob_count - 1);
        assert!(!journal.exists());
        remove_ballast(&ballast);
        let db = crate::common::open(&path);
        insert_blob(&db, blob_count, 1000).unwrap();
        assert_eq!(ledger::assert_sound(&db), blob_count);
        drop(db);
        crate::common::assert_pool_is_clean(&path);
    }
}

/// A transaction that is durable is committed, also if there is no room to cut off the pages that
/// it leaves unused.
#[test]
fn what_is_only_to_become_shorter() {
    let mut results = [0, 0];
    for journal in ["delete", "memory"] {
        for free_kib in (60..1000).step_by(10) {
            let Some(disk) = SmallDisk::mount(6 << 10) else { return };
            let path = disk.path("pool.hpk");
            let modes = format!("pragma journal_mode={journal}; pragma cache_size=50");
            let db = new_pool(&path, &modes);
            disk.fill(free_kib);
            // What is rolled back has left pages in the file.
            let done = db.execute_batch(
                "begin; insert into log values(2, 14, zeroblob(4000000));
                 insert into log values(3, 21, randomblob(100000));
                 savepoint a; insert into log values(4, 28, randomblob(200000));
                 rollback to a; release a; commit",
            );
            results[usize::from(done.is_ok())] += 1;
            if !db.is_autocommit() {
                run(&db, "rollback");
            }
            let count = if done.is_ok() { 3 } else { 1 };
            let what = format!("{journal}, {free_kib} KiB");
            assert_eq!(value::<i64>(&db, "select count(*) from log"), count, "{what}: {done:?}");
            let other = crate::common::open(&path);
            assert_eq!(value::<i64>(&other, "select count(*) from log"), count, "{what}");
            crate::common::assert_integrity(&other);
        }
    }
    assert!(results.iter().all(|count| *count > 4), "{results:?}");
}

/// Without a journal SQLite cannot roll back, but the pool is as it was before.
#[test]
fn without_a_journal() {
    let Some(disk) = SmallDisk::mount(4 << 10) else { return };
    let path = disk.path("pool.hpk");
    let db = new_pool(&path, "pragma journal_mode=off");
    let ballast = disk.fill(300);
    assert!(is_full(&insert_blob(&db, 2, 1_000_000).unwrap_err()));
    drop(db);
    let db = crate::common::open(&path);
    run(&db, "pragma journal_mode=off");
    assert_eq!(ledger::assert_sound(&db), 1);
    assert!(is_full(&insert_blob(&db, 2, 1_000_000).unwrap_err()));
    remove_ballast(&ballast);
    let other = crate::common::open(&path);
    insert_blob(&other, 2, 1_000_000).unwrap();
    assert_eq!(ledger::assert_sound(&other), 2);
    drop((db, other));
    crate::common::assert_pool_is_clean(&path);
}

/// A checkpoint that fails, as a whole or in the part that readers allow, does not count as done:
/// the log keeps the pages that the pool did not get.
fn checkpoint_fails(mode: &str, with_reader: bool, synchronous: &str) {
    let Some(disk) = SmallDisk::mount(8 << 10) else { return };
    let path = disk.path("pool.hpk");
    let db = new_pool(&path, "pragma journal_mode=wal; pragma wal_autocheckpoint=0");
    run(&db, synchronous);
    run(&db, "pragma wal_checkpoint(truncate)");
    insert_blob(&db, 2, 1_500_000).unwrap();
    let reader = with_reader.then(|| {
        let reader = crate::common::open(&path);
        run(&reader, "begin");
        assert_eq!(value::<i64>(&reader, "select count(*) from log"), 2);
        insert_blob(&db, 3, 1000).unwrap();
        reader
    });
    let count = 2 + i64::from(with_reader);
    let ballast = disk.fill(400);
    let context = format!("{mode}, reader: {with_reader}, {synchronous}");
    let checkpoint = format!("pragma wal_checkpoint({mode})");
    for _ in 0..2 {
        // After a partial checkpoint, SQLite does not check that the pages have arrived.
        let done = db.query_row(&checkpoint, [], |row| row.get::<_, i64>(0));
        assert!(with_reader || done.as_ref().is_err_and(is_full), "{context}: {done:?}");
        assert_eq!(ledger::assert_sound(&db), count, "{context}");
        assert_eq!(ledger::assert_sound(&crate::common::open(&path)), count, "{context}");
    }
    drop(reader);
    let outside = format!("file:{}?vfs=hardpack", path.display());
    let (out, errors) =
        crate::common::shell(&outside, &["select count(*) from log; pragma integrity_check;"]);
    assert_eq!(out, format!("{count}\nok"), "{context}: {errors}");
    remove_ballast(&ballast);
    assert_eq!(value::<i64>(&db, "pragma wal_checkpoint(truncate)"), 0);
    assert_eq!(std::fs::metadata(with_suffix(&path, "-wal")).unwrap().len(), 0);
    assert_eq!(ledger::assert_sound(&db), count, "{context}");
    drop(db);
    crate::common::assert_pool_is_clean(&path);
    assert_eq!(ledger::assert_sound(&crate::common::open(&path)), count, "{context}");
}

#[test]
fn a_failed_checkpoint_is_not_taken_for_done() {
    for synchronous in ["pragma synchronous=full", "pragma synchronous=off"] {
        for mode in ["passive", "truncate"] {
            checkpoint_fails(mode, false, synchronous);
        }
        checkpoint_fails("passive", true, synchronous);
    }
}

/// A database whose log has filled the disk. Each transaction has changed twenty rows, and set
/// their round to its own number.
struct FilledByLog {
    db: Connection,
    path: PathBuf,
    ballast: PathBuf,
    /// The round of each row.
    rounds: Vec<i64>,
    /// Comes last: it is unmounted when nobody has a file open there.
    _disk: SmallDisk,
}

impl FilledByLog {
    const ROW_COUNT: i64 = 2000;
    const CHECKPOINT: &str = "pragma wal_checkpoint(truncate)";

    /// `at` is called before each transaction, with its number.
    fn new(
        pragmas: &str,
        has_room: bool,
        is_scattered: bool,
        mut at: impl FnMut(&Connection, &Path, i64),
    ) -> Option<Self> {
        let disk = SmallDisk::mount(32 << 10)?;
        let path = disk.path("pool.hpk");
        let db = new_pool(&path, "pragma journal_mode=wal; pragma wal_autocheckpoint=0");
        run(&db, pragmas);
        run(&db, "create table t(id integer primary key, round, v); begin");
        for id in 0..Self::ROW_COUNT {
            run(&db, &format!("insert into t values({id}, 0, randomblob(2900))"));
        }
        run(&db, &format!("commit; {}", Self::CHECKPOINT));
        if has_room {
            // Half as much as the log will have.
            run(&db, &format!("vacuum; {}", Self::CHECKPOINT));
        }
        for _ in 0..4 {
            run(&db, &format!("update t set round = 0 where id = 0; {}", Self::CHECKPOINT));
        }
        let ballast = disk.fill(12 << 10);
        let mut rounds = vec![0; Self::ROW_COUNT as usize];
        let mut random = Random(7);
        for round in 1.. {
            at(&db, &path, round);
            let ids: Vec<i64> = (0..20)
                .map(|n| match is_scattered {
                    true => random.below(Self::ROW_COUNT as u64) as i64,
                    false => (round * 20 + n) % Self::ROW_COUNT,
                })
                .collect();
            let list = ids.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
            let change = format!("round = {round}, v = randomblob(2900) where id in ({list})");
            match db.execute_batch(&format!("update t set {change}")) {
                Ok(()) => ids.iter().for_each(|id| rounds[*id as usize] = round),
                Err(error) => {
                    assert!(is_full(&error), "{error}");
                    break;
                }
            }
        }
        assert!(with_suffix(&path, "-wal").metadata().unwrap().len() > 10 << 20);
        let this = FilledByLog { db, path, ballast, rounds, _disk: disk };
        this.assert_holds(&this.db);
        Some(this)
    }

    fn rounds_in(db: &Connection) -> Vec<i64> {
        let mut query = db.prepare("select round from t order by id").unwrap();
        query.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    }

    /// Closes the database, and opens it again.
    fn reopen(&mut self) {
        drop(std::mem::replace(&mut self.db, Connection::open_in_memory().unwrap()));
        self.db = crate::common::open(&self.path);
    }

    /// Returns the rounds in a copy of the pool that lacks the log.
    fn rounds_without_log(&self) -> Vec<i64> {
        let elsewhere = tempfile::tempdir().unwrap();
        let copy = elsewhere.path().join("pool.hpk");
        std::fs::copy(&self.path, &copy).unwrap();
        let db = crate::common::open(&copy);
        assert_eq!(text(&db, "pragma integrity_check"), "ok");
        Self::rounds_in(&db)
    }

    /// Gives back so much of the disk, or all that the ballast has.
    fn give_space(&self, len: u64) {
        let ballast = std::fs::OpenOptions::new().write(true).open(&self.ballast).unwrap();
        ballast.set_len(ballast.metadata().unwrap().len().saturating_sub(len)).unwrap();
    }

    fn assert_holds(&self, db: &Connection) {
        assert!(Self::rounds_in(db) == self.rounds);
        assert_eq!(text(db, "pragma integrity_check"), "ok");
    }

    /// Asserts that the whole log can be copied, on the full disk, and that work goes on there.
    fn assert_is_copied(mut self) {
        assert_eq!(value::<i64>(&self.db, Self::CHECKPOINT), 0);
        assert_eq!(with_suffix(&self.path, "-wal").metadata().unwrap().len(), 0);
        self.assert_holds(&self.db);
        self.assert_holds(&crate::common::open(&self.path));
        self.reopen();
        self.assert_holds(&self.db);
        run(&self.db, "update t set round = -1 where id = 0");
        remove_ballast(&self.ballast);
        drop(self.db);
        crate::common::assert_pool_is_clean(&self.path);
    }
}

/// A log that has filled the disk is copied in parts where the pool has no room for all of it at
/// once: what a part replaces is the room of the next.
#[test]
fn a_log_that_has_filled_the_disk_is_copied_in_parts() {
    for pragmas in ["pragma synchronous=full; pragma cache_size=5", "pragma synchronous=off"] {
        for is_scattered in [false, true] {
            let Some(filled) = FilledByLog::new(pragmas, true, is_scattered, |_, _, _| {}) else {
                return;
            };
            filled.assert_is_copied();
        }
    }
}

/// Sets a flag when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Readers notice nothing of that: one in the middle of the log, which stops the checkpoint there,
/// and others that begin and end all the time.
#[test]
fn readers_beside_a_checkpoint_in_parts() {
    let mut old = None;
    let Some(filled) =
        FilledByLog::new("pragma synchronous=normal", true, true, |_, path, round| {
            if round == 60 {
                let reader = crate::common::open(path);
                run(&reader, "begin");
                old = Some((FilledByLog::rounds_in(&reader), reader));
            }
        })
    else {
        return;
    };
    let (old_rounds, old) = old.expect("there were 60 transactions");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Whatever happens, the others are to end.
        let _over = Over(&is_over);
        for _ in 0..2 {
            scope.spawn(|| {
                let db = crate::common::open(&filled.path);
                while !is_over.load(Ordering::SeqCst) {
                    assert!(FilledByLog::rounds_in(&db) == filled.rounds);
                }
            });
        }
        let row = |row: &rusqlite::Row| Ok([row.get(0)?, row.get(1)?, row.get(2)?]);
        let [busy, len, copied]: [i64; 3] =
            filled.db.query_row("pragma wal_checkpoint(passive)", [], row).unwrap();
        assert!(busy == 0 && copied > 500 && copied < len, "{busy} {copied} {len}");
        for _ in 0..2 {
            assert!(FilledByLog::rounds_in(&old) == old_rounds);
            assert!(FilledByLog::rounds_in(&filled.db) == filled.rounds);
        }
        run(&old, "commit");
        let copied = filled.db.query_row("pragma wal_checkpoint(passive)", [], row).unwrap();
        assert_eq!(copied, [0, len, len]);
    });
    drop(old);
    filled.assert_is_copied();
}

/// Where a transaction has no room, all before it are in the pool, and nothing of it.
#[test]
fn a_checkpoint_in_parts_ends_where_a_transaction_does() {
    let mut before = Vec::new();
    let Some(filled) =
        FilledByLog::new("pragma synchronous=normal", true, false, |db, _, round| {
            if round == 5 {
                before = FilledByLog::rounds_in(db);
                run(db, "update t set v = randomblob(2900)");
            }
        })
    else {
        return;
    };
    for turn in 0..2 {
        let done = filled.db.execute_batch(FilledByLog::CHECKPOINT);
        assert!(done.as_ref().is_err_and(is_full), "{done:?}");
        filled.assert_holds(&filled.db);
        filled.assert_holds(&crate::common::open(&filled.path));
        let found = filled.rounds_without_log();
        assert!(found == before, "{turn}: up to round {:?}", found.iter().max());
    }
    filled.give_space(u64::MAX);
    filled.assert_is_copied();
}

/// Checkpoints that were in vain are tried less and less often, but at once where there is space.
#[test]
fn a_checkpoint_in_parts_goes_on_once_there_is_space() {
    let Some(filled) =
        FilledByLog::new("pragma synchronous=normal", false, false, |db, _, round| {
            if round == 1 {
                run(db, "update t set v = randomblob(2900) where id < 400");
            }
        })
    else {
        return;
    };
    let passive = "pragma wal_checkpoint(passive)";
    for turn in 0..10 {
        let done = filled.db.execute_batch(passive);
        assert!(done.as_ref().is_err_and(is_full), "{turn}: {done:?}");
    }
    filled.give_space(3 << 20);
    filled.db.execute_batch(passive).unwrap();
    filled.give_space(u64::MAX);
    filled.assert_is_copied();
}

/// Also if the database is shorter behind the last transaction than it was behind the first.
#[test]
fn a_part_has_what_later_transactions_cut_off() {
    let mut before = Vec::new();
    let filler = "pragma auto_vacuum=1; vacuum; create table filler(v); insert into filler with recursive \
         n(i) as (select 1 union all select i + 1 from n where i < 300) select randomblob(2900) from n";
    let pragmas = format!("pragma synchronous=normal; {filler}");
    let Some(filled) = FilledByLog::new(&pragmas, false, true, |db, _, round| {
        before.push(FilledByLog::rounds_in(db));
        match round {
            12 => run(db, "update t set v = randomblob(2900)"),
            13 => run(db, "drop table filler"),
            _ => {}
        }
    }) else {
        return;
    };
    filled.give_space(2 << 20);
    let done = filled.db.execute_batch(FilledByLog::CHECKPOINT);
    assert!(done.as_ref().is_err_and(is_full), "{done:?}");
    filled.assert_holds(&filled.db);
    let found = filled.rounds_without_log();
    let round = before.iter().position(|rounds| *rounds == found);
    assert!(round.is_some_and(|round| round > 3), "{round:?}");
    filled.give_space(u64::MAX);
    filled.assert_is_copied();
}

/// Whoever opens the log next has forgotten how much of it is there, and goes on from there all
/// the same: what is older is not copied over what is newer.
#[test]
fn a_checkpoint_in_parts_goes_on_where_another_has_stopped() {
    let mut history = Vec::new();
    let Some(mut filled) =
        FilledByLog::new("pragma synchronous=normal", false, true, |db, _, _| {
            history.push(FilledByLog::rounds_in(db));
        })
    else {
        return;
    };
    filled.give_space(700_000);
    history.push(filled.rounds.clone());
    let mut reached = 0;
    for turn in 0..8 {
        match turn % 2 {
            0 => drop(filled.db.execute_batch(FilledByLog::CHECKPOINT)),
            // To close it is another checkpoint.
            _ => filled.reopen(),
        }
        let found = filled.rounds_without_log();
        let at = history.iter().position(|rounds| *rounds == found);
        assert!(at.is_some_and(|at| at >= reached), "{turn}: {at:?} after {reached}");
        reached = at.unwrap_or_default();
    }
    assert!(reached > 3, "{reached}");
    filled.assert_holds(&filled.db);
}

/// A property that cannot be set is reported with a code that a program can act on, and can be set
/// later.
#[test]
fn properties() {
    let Some(disk) = SmallDisk::mount(4 << 10) else { return };
    let path = disk.path("pool.hpk");
    let db = new_pool(&path, "pragma journal_mode=delete");
    let ballast = disk.fill(0);
    let mut refused = None;
    // Each change takes a little of the free space within the pool.
    for level in (1..=19).cycle().take(2000) {
        let sql = format!("pragma hardpack_compression='zstd-{level}'");
        if let Err(error) = db.execute_batch(&sql) {
            refused = Some(error);
            break;
        }
    }
    let error = refused.expect("the disk is full");
    assert!(is_full(&error), "{error}");
    assert!(error.to_string().contains("hardpack_compression: no space left"), "{error}");
    assert_eq!(ledger::assert_sound(&db), 1);
    remove_ballast(&ballast);
    run(&db, "pragma hardpack_compression='lz4'");
    assert_eq!(crate::common::text(&db, "pragma hardpack_compression"), "lz4");
    drop(db);
    crate::common::assert_pool_is_clean(&path);
}

/// If a pool cannot be created, an empty database stays, which becomes a pool once there is space.
#[test]
fn creation() {
    let Some(disk) = SmallDisk::mount(1 << 10) else { return };
    let ballast = disk.fill(24);
    let path = disk.path("pool.hpk");
    let db = crate::common::open(&path);
    for _ in 0..5 {
        assert!(is_full(&db.execute_batch("create table t(a)").unwrap_err()));
    }
    let descriptors = crate::common::open_descriptors(disk.dir.path()).len();
    assert!(descriptors <= 2, "{descriptors} descriptors are open");
    crate::common::assert_integrity(&db);
    drop(db);
    assert!(crate::common::open_descriptors(disk.dir.path()).is_empty());
    let db = crate::common::open(&path);
    remove_ballast(&ballast);
    run(&db, "create table t(a)");
    crate::common::assert_integrity(&db);
    drop(db);
    assert!(crate::common::is_pool(&path));
    crate::common::assert_pool_is_clean(&path);
}

/// The disk is full, and most of the pool is free, in gaps of all lengths: transactions go on.
#[test]
fn a_pool_that_is_mostly_free_goes_on() {
    const COUNT: usize = 12_000;
    let Some(disk) = SmallDisk::mount(80 << 10) else { return };
    let path = disk.path("pool.hpk");
    let db = crate::common::open(&path);
    // What is deleted is cleared, and takes no space.
    run(&db, "pragma hardpack_recordsize=4096; pragma secure_delete=on");
    run(&db, "create table gone(a, b); create table kept(a, b); create table new(a, b)");
    for first in (0..COUNT).step_by(500) {
        run(&db, "begin");
        for number in first..first + 500 {
            let table = if number % 4 == 0 { "kept" } else { "gone" };
            run(&db, &format!("insert into {table} values({number}, randomblob(2500))"));
        }
        run(&db, "commit");
    }
    run(&db, &format!("delete from gone where a < {}", COUNT / 8));
    (0..5).for_each(|time| run(&db, &format!("update kept set a = {time} where rowid = 1")));
    drop(db);
    // A copy has no holes.
    let copy = disk.path("copy.hpk");
    std::fs::copy(&path, &copy).unwrap();
    std::fs::remove_file(&path).unwrap();
    disk.fill(0);
    let db = crate::common::open(&copy);
    run(&db, "pragma synchronous=normal; pragma secure_delete=on");
    run(&db, "delete from gone");
    let insert = "insert into new values(1, randomblob(200000))";
    let refused = (0..60).filter(|_| db.execute_batch(insert).is_err()).count();
    // One that is refused makes room for the next.
    assert!(refused <= 3, "{refused}");
    assert_eq!(value::<i64>(&db, "select count(*) from kept"), COUNT as i64 / 4);
    assert_eq!(value::<i64>(&db, "select count(*) from new"), 60 - refused as i64);
    assert_eq!(text(&db, "pragma integrity_check"), "ok");
    drop(db);
    crate::common::assert_pool_is_clean(&copy);
}
