//! A workload in which every state can be checked: accounts whose sum never changes, and a log with
//! one row for each transaction, numbered without gaps.

use rusqlite::Connection;

use super::{Random, assert_integrity, run, value};

pub const ACCOUNT_COUNT: u64 = 50;
pub const SUM: i64 = 50 * 1000;

/// Creates the tables.
pub fn create(db: &Connection) {
    run(
        db,
        "begin;
         create table account(id integer primary key, balance int, note text);
         create table log(seq integer primary key, checksum int, filler text);
         create index log_filler on log(filler);
         with recursive n(i) as (select 0 union all select i + 1 from n where i < 49)
           insert into account select i, 1000, 'account number ' || i from n;
         commit",
    );
}

/// Begins one transaction: transfers between accounts, and the next row of the log with
/// `filler_len` bytes of text. Old rows of the log lose their text. Returns the number of the row;
/// the transaction stays open.
pub fn begin(db: &Connection, random: &mut Random, filler_len: usize) -> rusqlite::Result<i64> {
    db.execute_batch("begin immediate")?;
    for _ in 0..1 + random.below(4) {
        let (from, to) = (random.below(ACCOUNT_COUNT) as i64, random.below(ACCOUNT_COUNT) as i64);
        let amount = random.below(100) as i64;
        let mut update = db.prepare_cached(
            "update account set balance = balance + ?2, note = note || ' ' where id = ?1",
        )?;
        update.execute((from, -amount))?;
        update.execute((to, amount))?;
    }
    let seq: i64 =
        db.query_row("select coalesce(max(seq), 0) + 1 from log", [], |row| row.get(0))?;
    let filler = random.text(filler_len);
    db.prepare_cached("insert into log values(?1, ?1 * 7, ?2)")?.execute((seq, filler))?;
    db.prepare_cached("update log set filler = null where seq = ?1")?.execute([seq - 100])?;
    Ok(seq)
}

/// Runs one whole transaction.
pub fn transact(db: &Connection, random: &mut Random, filler_len: usize) -> rusqlite::Result<i64> {
    let seq = begin(db, random, filler_len)?;
    db.execute_batch("commit")?;
    Ok(seq)
}

/// Asserts what must hold in every snapshot. Returns the number of transactions.
pub fn assert_holds(db: &Connection) -> i64 {
    run(db, "begin");
    let sum: i64 = value(db, "select sum(balance) from account");
    assert_eq!(sum, SUM, "a transaction is there in part");
    let count: i64 = value(db, "select count(*) from log");
    let last: i64 = value(db, "select coalesce(max(seq), 0) from log");
    assert_eq!(count, last, "the log has gaps");
    let wrong: i64 = value(db, "select count(*) from log where checksum <> seq * 7");
    assert_eq!(wrong, 0);
    run(db, "commit");
    count
}

/// Asserts that [`assert_holds`] passes, and SQLite's own check.
pub fn assert_sound(db: &Connection) -> i64 {
    assert_integrity(db);
    assert_holds(db)
}
