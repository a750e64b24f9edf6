//! Runs the same statements, pragmas and names of databases on a pool and on a plain database in
//! memory, which must give the same answers.

use std::path::Path;

use rusqlite::{Connection, OpenFlags, params};

use super::file::scratch;
use super::handle::setup;
use crate::engine::input::{Input, content};

const OP_COUNT_MAX: usize = 40;
const ROW_COUNT: i64 = 50;

fn open(path: &Path, parameters: &str) -> rusqlite::Result<Connection> {
    setup();
    let name =
        format!("file:{}?vfs=hardpack&hardpack_background_cpu=0%25{parameters}", path.display());
    Connection::open_with_flags(name, OpenFlags::default())
}

/// Returns URI parameters with arbitrary bytes.
fn parameters(input: &mut Input<'_>) -> String {
    let names =
        ["compression", "recordsize", "checksum", "min_savings", "clear_unused", "", "nothing"];
    let value: String = input.short_bytes().iter().map(|byte| format!("%{byte:02x}")).collect();
    format!("&hardpack_{}={value}", input.pick(&names))
}

fn all(db: &Connection) -> rusqlite::Result<Vec<(i64, Vec<u8>)>> {
    let mut statement = db.prepare("select id, x from t order by id")?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    rows.collect()
}

/// Runs one statement. Statements whose answer depends on the database are not compared.
fn step(pool: &Connection, plain: &Connection, input: &mut Input<'_>) {
    let id = input.below(ROW_COUNT as usize) as i64;
    let both = [pool, plain];
    let run = |sql: &str| {
        let codes = both.map(|db| db.execute_batch(sql).err().and_then(|e| e.sqlite_error_code()));
        assert_eq!(codes[0], codes[1], "{sql}");
    };
    match input.u8() % 16 {
        0..5 => {
            let bytes = content(input.u16(), [10, 500, 5000, 60_000][input.below(4)]);
            for db in both {
                let done =
                    db.execute("insert or replace into t values(?1, ?2)", params![id, bytes]);
                done.expect("a row can be stored");
            }
        }
        5 => run(&format!("delete from t where id < {id}")),
        6 => run(&format!(
            "update t set x = cast(substr(x, 1, 9) || 'more' as blob) where id % 3 = {}",
            id % 3
        )),
        7 => run("begin"),
        8 => run("commit"),
        9 => run("rollback"),
        10 => run("vacuum"),
        11 => {
            let mode = input.pick(&["delete", "truncate", "persist", "memory", "wal"]);
            let _ = pool.execute_batch(&format!(
                "pragma journal_mode={mode}; pragma synchronous={}",
                id % 4
            ));
        }
        12 => drop(pool.execute_batch("pragma wal_checkpoint(truncate)")),
        13 => {
            let name =
                input.pick(&["compression", "recordsize", "checksum", "min_savings", "x", "ratio"]);
            let value = String::from_utf8_lossy(input.short_bytes()).replace(['\'', '\0'], "");
            let _ = pool.execute_batch(&format!("pragma hardpack_{name}='{value}'"));
            let _ = pool.execute_batch(&format!("pragma hardpack_{name}"));
        }
        14 => {
            let name = String::from_utf8_lossy(input.short_bytes()).into_owned();
            let sql = [
                "select * from hardpack_stats(?1)",
                "select count(*) from hardpack_stats where value > ?1",
            ];
            let mut statement = pool.prepare(sql[input.below(2)]).expect("the table exists");
            let mut rows = statement.query([name]).expect("the query takes any text");
            while let Ok(Some(_)) = rows.next() {}
        }
        _ => assert!(
            all(pool).expect("the pool is read") == all(plain).expect("the plain database is read"),
            "the rows differ"
        ),
    }
}

pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let directory = tempfile::tempdir_in(scratch()).expect("a directory");
    let path = directory.path().join("pool.db");
    let wanted = parameters(&mut input);
    // An invalid value is refused.
    let pool = open(&path, &wanted)
        .or_else(|_| open(&path, ""))
        .expect("the pool opens without the parameters");
    let plain = Connection::open_in_memory().expect("a database in memory");
    for db in [&pool, &plain] {
        let page_len = 512 << (data.len() % 8);
        let sql =
            format!("pragma page_size={page_len}; create table t(id integer primary key, x blob)");
        db.execute_batch(&sql).expect("a table can be created");
    }
    for _ in 0..OP_COUNT_MAX {
        if input.is_empty() {
            break;
        }
        step(&pool, &plain, &mut input);
    }
    let _ = (pool.execute_batch("commit"), plain.execute_batch("commit"));
    let expected = all(&plain).expect("it can be read");
    assert!(all(&pool).expect("it can be read") == expected, "the rows differ");
    drop(pool);
    let pool = open(&path, "").expect("it opens");
    assert!(all(&pool).expect("it can be read") == expected, "the rows differ after closing");
    let check: String =
        pool.query_row("pragma integrity_check", [], |row| row.get(0)).expect("a verdict");
    assert_eq!(check, "ok");
}
