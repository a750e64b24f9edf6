//! Databases that change at random, and a dump of their content as text.

use std::fmt::Write;
use std::path::Path;

use rusqlite::{Connection, types::ValueRef};

/// Random numbers from a seed (xorshift64*): tests must be repeatable.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % bound
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.below(256) as u8).collect()
    }
}

/// Creates a database with tables of all kinds, and returns its connection.
pub fn create(path: &Path, page_len: usize, auto_vacuum: u32) -> Connection {
    let db = Connection::open(path).unwrap();
    db.execute_batch(&format!(
        "pragma page_size={page_len}; pragma auto_vacuum={auto_vacuum}; pragma synchronous=off;
         pragma secure_delete=off;
         create table rows(id integer primary key, k int, name text, body blob);
         create index rows_by_k on rows(k, name);
         create index rows_by_name on rows(name) where k % 2;
         create table pairs(a text, b int, body blob, primary key(a, b)) without rowid;
         create table log(line text);
         create virtual table words using fts5(line);"
    ))
    .unwrap();
    db
}

fn word(random: &mut Random) -> String {
    let len = 1 + random.below(12);
    (0..len).map(|_| char::from(b'a' + random.below(26) as u8)).collect()
}

/// Returns a body that may overflow, sometimes by far, and may look like a b-tree page.
fn body(random: &mut Random, page_len: usize) -> Vec<u8> {
    let len = match random.below(12) {
        0 => page_len as u64 * (1 + random.below(4)),
        1..4 => random.below(page_len as u64),
        _ => random.below(60),
    };
    let mut bytes = random.bytes(len.min(150_000) as usize);
    if random.below(4) == 0 {
        for at in (0..bytes.len()).step_by(4) {
            bytes[at] = [2, 5, 10, 13][random.below(4) as usize];
        }
    }
    bytes
}

/// Runs one step of the workload; it depends only on the content of the database and on `random`.
fn step(db: &Connection, random: &mut Random, page_len: usize) -> rusqlite::Result<()> {
    let id = random.below(300) as i64;
    let k = random.below(40) as i64;
    match random.below(100) {
        0..30 => db.execute(
            "insert or replace into rows values(?1, ?2, ?3, ?4)",
            (id, k, word(random), body(random, page_len)),
        )?,
        30..45 => db.execute(
            "update rows set body = ?2, name = ?3 where id between ?1 and ?1 + 3",
            (id, body(random, page_len), word(random)),
        )?,
        45..55 => db.execute("delete from rows where id between ?1 and ?1 + 9", [id])?,
        55..70 => db.execute(
            "insert or replace into pairs values(?1, ?2, ?3)",
            (word(random), k, body(random, page_len)),
        )?,
        70..76 => db.execute("delete from pairs where b = ?1", [k])?,
        76..88 => {
            let line = format!("{} {} {}", word(random), word(random), word(random));
            db.execute("insert into log values(?1)", [&line])?;
            db.execute("insert into words values(?1)", [&line])?
        }
        88..92 => db.execute("delete from log where rowid % 7 = ?1", [k % 7])?,
        92..94 => db.execute("delete from words where rowid % 5 = ?1", [k % 5])?,
        94 => db.execute("delete from rows where k < 30", [])?,
        95..98 => {
            db.execute_batch(&format!("pragma incremental_vacuum({k});"))?;
            0
        }
        98 => {
            db.execute_batch(&format!(
                "create table if not exists extra{k}(x unique);
                 insert or ignore into extra{k} select name from rows;"
            ))?;
            0
        }
        _ if random.below(4) == 0 => {
            db.execute_batch("vacuum")?;
            0
        }
        _ => {
            db.execute_batch(&format!("drop table if exists extra{}", random.below(40)))?;
            0
        }
    };
    Ok(())
}

/// Runs this many steps of the workload.
pub fn steps(
    db: &Connection,
    random: &mut Random,
    page_len: usize,
    count: u32,
) -> rusqlite::Result<()> {
    (0..count).try_for_each(|_| step(db, random, page_len))
}

/// Returns the whole content of the database as text.
pub fn dump(db: &Connection) -> rusqlite::Result<String> {
    let mut text = String::new();
    let mut tables = vec!["sqlite_schema".to_string()];
    let mut statement =
        db.prepare("select name from sqlite_schema where type = 'table' order by name")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        tables.push(row.get(0)?);
    }
    for table in tables {
        // In table order, and in the order of an index if there is one.
        for order in ["", "order by 2, 1"] {
            let sql = format!("select * from \"{table}\" {order}");
            let Ok(mut statement) = db.prepare(&sql) else { continue };
            let column_count = statement.column_count();
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                write!(text, "{table}:").unwrap();
                for column in 0..column_count {
                    match row.get_ref(column)? {
                        ValueRef::Blob(bytes) => write!(text, " {bytes:02x?}"),
                        value => write!(text, " {value:?}"),
                    }
                    .unwrap();
                }
                text.push('\n');
            }
        }
    }
    Ok(text)
}
