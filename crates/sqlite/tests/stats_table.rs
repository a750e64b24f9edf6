//! Queries `hardpack_stats` with made-up statistics.
#![expect(unsafe_code, reason = "calls SQLite's C interface")]

use hardpack::stats_table::{self, StatRow, StatValue};
use hardpack::{api, ffi};
use rusqlite::Connection;
use rusqlite::types::Value;

fn fake_stats(db: *mut ffi::sqlite3, schema: &str) -> Result<Vec<StatRow>, String> {
    assert!(!db.is_null());
    assert_ne!(schema, "panic");
    if schema == "gone" {
        return Err(format!("no such database: {schema}"));
    }
    let row = |name: &str, value, unit| StatRow { name: name.to_owned(), value, unit };
    Ok(vec![
        row("database", StatValue::Text(schema.to_owned()), ""),
        row("stored", StatValue::Int(i64::MAX), "bytes"),
        row("ratio", StatValue::Real(2.5), "x"),
    ])
}

fn connection() -> Connection {
    api::set(hardpack::api_from!(rusqlite::ffi).unwrap()).unwrap();
    let db = Connection::open_in_memory().unwrap();
    db.execute("ATTACH ':memory:' AS aux", ()).unwrap();
    // SAFETY: the connection is open, and belongs to the host that was just set.
    let rc = unsafe { stats_table::register(db.handle().cast(), fake_stats) };
    assert_eq!(rc, ffi::SQLITE_OK);
    db
}

fn rows(db: &Connection, sql: &str) -> rusqlite::Result<Vec<Vec<Value>>> {
    let mut statement = db.prepare(sql)?;
    let columns = statement.column_count();
    statement.query_map((), |row| (0..columns).map(|i| row.get(i)).collect())?.collect()
}

fn text(value: &str) -> Value {
    Value::Text(value.to_owned())
}

fn expected(schema: &str) -> Vec<Vec<Value>> {
    vec![
        vec![text("database"), text(schema), text("")],
        vec![text("stored"), Value::Integer(i64::MAX), text("bytes")],
        vec![text("ratio"), Value::Real(2.5), text("x")],
    ]
}

#[test]
fn main_unless_a_schema_is_given() {
    let db = connection();
    assert_eq!(rows(&db, "SELECT * FROM hardpack_stats").unwrap(), expected("main"));
    assert_eq!(rows(&db, "SELECT * FROM hardpack_stats('aux')").unwrap(), expected("aux"));
    let sql = "SELECT * FROM hardpack_stats WHERE schema = 'aux'";
    assert_eq!(rows(&db, sql).unwrap(), expected("aux"));
    assert!(rows(&db, "SELECT * FROM hardpack_stats(NULL)").unwrap().is_empty());
    let sql = "SELECT * FROM hardpack_stats('aux') WHERE schema = 'main'";
    assert!(rows(&db, sql).unwrap().is_empty());
    let sql = "SELECT rowid, schema FROM hardpack_stats WHERE name = 'ratio'";
    assert_eq!(rows(&db, sql).unwrap(), [[Value::Integer(2), text("main")]]);
}

#[test]
fn joins_give_each_schema_its_rows_in_either_order() {
    let db = connection();
    let expected = [[text("aux"), text("aux")], [text("main"), text("main")]];
    for from in [
        "pragma_database_list AS d, hardpack_stats(d.name) AS s WHERE true",
        "hardpack_stats AS s, pragma_database_list AS d WHERE s.schema = d.name",
        "pragma_database_list AS d LEFT JOIN hardpack_stats AS s ON s.schema = d.name WHERE true",
    ] {
        let sql =
            format!("SELECT d.name, s.value FROM {from} AND s.name = 'database' ORDER BY d.name");
        assert_eq!(rows(&db, &sql).unwrap(), expected, "{sql}");
    }
}

#[test]
fn the_source_s_error_reaches_the_user() {
    let db = connection();
    let error = rows(&db, "SELECT * FROM hardpack_stats('gone')").unwrap_err().to_string();
    assert!(error.contains("hardpack_stats: no such database: gone"), "{error}");
    // The connection and the same statement still work.
    let mut statement = db.prepare("SELECT count(*) FROM hardpack_stats(?)").unwrap();
    let mut count = |schema| statement.query_row([schema], |row| row.get::<_, i64>(0));
    assert!(count("gone").is_err());
    assert!(count("gone").is_err());
    assert_eq!(count("aux").unwrap(), 3);
}

#[test]
fn a_panic_of_the_source_is_an_error() {
    let db = connection();
    let error = rows(&db, "SELECT * FROM hardpack_stats('panic')").unwrap_err().to_string();
    assert!(error.contains("panicked"), "{error}");
    assert_eq!(rows(&db, "SELECT * FROM hardpack_stats").unwrap(), expected("main"));
}

#[test]
fn it_can_be_neither_written_nor_created() {
    let db = connection();
    for (sql, reason) in [
        ("DELETE FROM hardpack_stats", "may not be modified"),
        ("UPDATE hardpack_stats SET value = 1", "may not be modified"),
        ("INSERT INTO hardpack_stats(name) VALUES ('x')", "may not be modified"),
        ("CREATE VIRTUAL TABLE t USING hardpack_stats", "no such module"),
    ] {
        let error = db.execute(sql, ()).unwrap_err().to_string();
        assert!(error.contains(reason), "{sql}: {error}");
    }
}

#[test]
fn registering_again_replaces_the_source() {
    let db = connection();
    assert_eq!(rows(&db, "SELECT count(*) FROM hardpack_stats").unwrap(), [[Value::Integer(3)]]);
    // SAFETY: the connection is open, and belongs to the host that was set.
    let rc = unsafe { stats_table::register(db.handle().cast(), |_, _| Ok(Vec::new())) };
    assert_eq!(rc, ffi::SQLITE_OK);
    assert!(rows(&db, "SELECT * FROM hardpack_stats").unwrap().is_empty());
}
