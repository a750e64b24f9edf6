//! Reads databases of sqlite-zstd. That extension renames a table T to `_T_zstd`, adds a column
//! `_C_dict` for each compressed column C, and puts a view with triggers in T's place. Where
//! `_C_dict` is null, C is as it was written; otherwise C is a zstd frame without its magic number,
//! with the dictionary of that number in `_zstd_dicts`, or none if it is negative.
//!
//! The file is copied as of one moment, and the copy is changed back in place, so everything else
//! in it stays as it was. Each table is read twice: decompressed before the change, and plainly
//! after it. The digests of both must be equal.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::config::DbConfig;
use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, OptionalExtension};
use zstd_safe::FrameFormat;

use super::archives::damaged;
use super::databases::{has_table, with_plain};
use super::frames::Frames;
use crate::failure::Reason;
use crate::pool_file::Digest;
use crate::progress::{Progress, Spinner};
use crate::signals;
use crate::snapshot::Snapshot;

/// The table of what is compressed.
pub const CONFIGS: &str = "_zstd_configs";
const DICTIONARIES: &str = "_zstd_dicts";
/// The number that means no dictionary.
const NO_DICTIONARY: i64 = -1;
/// The SQL function that decompresses a value, for this import only.
const FUNCTION: &str = "hardpack_import_plain";
/// The longest value of SQLite, in bytes.
const VALUE_LEN_MAX: usize = 1_000_000_000;
/// The number of bytes copied at a time.
const CHUNK_LEN: usize = 4 << 20;

/// A table with compressed columns.
struct Table {
    name: String,
    columns: Vec<Column>,
    /// What rows are ordered by.
    key: String,
}

struct Column {
    name: String,
    /// Whether its values are text; otherwise they are blobs.
    is_text: bool,
    is_compressed: bool,
}

/// Writes the plain form of the database `source` to `out`. Returns notes for the user.
pub fn restore(source: &Path, out: &Path, is_quiet: bool) -> Result<Vec<String>, Reason> {
    copy(source, out, is_quiet)?;
    let _spinner = Spinner::new("decompressing rows", is_quiet);
    let (tables, before, notes) = with_plain(out, |db| {
        // Rows are only given back their values: nothing may follow from that.
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, false)?;
        // With a writable schema, views of the user that do not resolve meanwhile are left alone.
        // Freed pages would otherwise keep what was compressed.
        db.execute_batch(
            "PRAGMA foreign_keys = OFF; PRAGMA ignore_check_constraints = ON;
             PRAGMA legacy_alter_table = OFF; PRAGMA writable_schema = ON; PRAGMA secure_delete = ON;",
        )?;
        let tables = tables(db)?;
        let problem = add_function(db)?;
        let explained = |result: Result<(), Reason>| {
            let told = problem.lock().unwrap_or_else(PoisonError::into_inner).take();
            result.map_err(|reason| told.map(damaged).unwrap_or(reason))
        };
        db.execute_batch("BEGIN")?;
        let mut before = Vec::new();
        for table in &tables {
            let digest = || -> Result<(), Reason> {
                before.push(digest(db, table, &backing(&table.name), true)?);
                Ok(())
            };
            explained({ digest }())?;
        }
        let notes = orphans(db, &tables)?;
        for table in &tables {
            explained(change_back(db, table))?;
        }
        db.execute_batch(&format!("DROP TABLE {CONFIGS}"))?;
        if notes.is_empty() {
            db.execute_batch(&format!("DROP TABLE {DICTIONARIES}"))?;
        }
        db.execute_batch("COMMIT")?;
        Ok((tables, before, notes))
    })?;
    with_plain(out, |db| {
        for (table, before) in tables.iter().zip(&before) {
            if digest(db, table, &table.name, false)? != *before {
                let text = format!("the table '{}' does not match after decompression", table.name);
                return Err(damaged(text));
            }
        }
        Ok(())
    })?;
    Ok(notes)
}

/// Copies the source as of one moment.
fn copy(source: &Path, out: &Path, is_quiet: bool) -> Result<(), Reason> {
    use std::io::Write;
    // SQLite's locks are those of the file, not of its name.
    let source = source.canonicalize()?;
    let snapshot = Snapshot::open(&source, false)?;
    let mut file = std::fs::File::options().write(true).open(out)?;
    let mut progress = Progress::new("copying".into(), snapshot.len()?, is_quiet);
    let mut done = 0;
    snapshot.read(CHUNK_LEN, &mut |bytes| {
        signals::check()?;
        file.write_all(bytes)?;
        done += bytes.len() as u64;
        progress.at(done);
        Ok(())
    })?;
    snapshot.into_file()?;
    progress.finish();
    Ok(())
}

fn backing(table: &str) -> String {
    format!("_{table}_zstd")
}

fn dictionary_column(column: &str) -> String {
    format!("_{column}_dict")
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Finds the tables with compressed columns.
fn tables(db: &Connection) -> Result<Vec<Table>, Reason> {
    if !has_table(db, CONFIGS)? || !has_table(db, DICTIONARIES)? {
        return Err(damaged("no table in it is compressed by sqlite-zstd"));
    }
    let mut statement = db.prepare(&format!("SELECT config FROM {CONFIGS} ORDER BY id"))?;
    let configs = statement.query_map([], |row| row.get::<_, String>(0))?;
    let mut named: Vec<(String, Vec<String>)> = Vec::new();
    for config in configs {
        let config: serde_json::Value = serde_json::from_str(&config?)
            .map_err(|error| damaged(format!("a row of {CONFIGS} is no JSON: {error}")))?;
        let text = |key: &str| {
            let found = config[key].as_str().map(str::to_owned);
            found.ok_or_else(|| damaged(format!("a row of {CONFIGS} has no '{key}'")))
        };
        let (table, column) = (text("table")?, text("column")?);
        match named.iter_mut().find(|(name, _)| *name == table) {
            Some((_, columns)) => columns.push(column),
            None => named.push((table, vec![column])),
        }
    }
    named.into_iter().map(|(name, compressed)| Table::find(db, name, &compressed)).collect()
}

impl Table {
    fn find(db: &Connection, name: String, compressed: &[String]) -> Result<Table, Reason> {
        let stored = backing(&name);
        let all: Vec<(String, String, i64, i64)> = db
            .prepare("SELECT name, type, pk, hidden FROM pragma_table_xinfo(?1) ORDER BY cid")?
            .query_map([&stored], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?
            .collect::<rusqlite::Result<_>>()?;
        let has = |column: &str| all.iter().any(|(name, ..)| name == column);
        if all.is_empty() {
            return Err(damaged(format!("the table '{stored}' is missing")));
        }
        for column in compressed {
            for column in [column.clone(), dictionary_column(column)] {
                if !has(&column) {
                    return Err(damaged(format!("the table '{stored}' has no column '{column}'")));
                }
            }
        }
        let sql = "SELECT wr FROM pragma_table_list WHERE schema = 'main' AND name = ?1";
        let is_without_rowid: bool = db.query_row(sql, [&stored], |row| row.get(0))?;
        let rowid = ["rowid", "_rowid_", "oid"];
        let rowid =
            rowid.into_iter().find(|name| !all.iter().any(|c| c.0.eq_ignore_ascii_case(name)));
        let key = match rowid.filter(|_| !is_without_rowid) {
            Some(rowid) => rowid.to_owned(),
            None => {
                let mut keys: Vec<_> = all.iter().filter(|(_, _, pk, _)| *pk > 0).collect();
                keys.sort_by_key(|(_, _, pk, _)| *pk);
                let keys: Vec<String> = keys.into_iter().map(|(name, ..)| quoted(name)).collect();
                keys.join(", ")
            }
        };
        if key.is_empty() {
            return Err(damaged(format!("the table '{stored}' has no key")));
        }
        let added: Vec<String> =
            compressed.iter().map(|column| dictionary_column(column)).collect();
        // Generated columns follow from the others.
        let plain =
            all.into_iter().filter(|(name, _, _, hidden)| *hidden == 0 && !added.contains(name));
        let columns = plain.map(|(name, declared, ..)| Column {
            is_text: is_text(&declared),
            is_compressed: compressed.contains(&name),
            name,
        });
        Ok(Table { columns: columns.collect(), key, name })
    }

    fn compressed(&self) -> impl Iterator<Item = &Column> {
        self.columns.iter().filter(|column| column.is_compressed)
    }
}

/// Whether SQLite prefers text in a column of this declared type.
fn is_text(declared: &str) -> bool {
    let declared = declared.to_ascii_uppercase();
    !declared.contains("INT") && ["CHAR", "CLOB", "TEXT"].iter().any(|word| declared.contains(word))
}

impl Column {
    /// The SQL for its decompressed value.
    fn plain(&self) -> String {
        let (name, dictionary) = (quoted(&self.name), quoted(&dictionary_column(&self.name)));
        if !self.is_compressed {
            return name;
        }
        let value = match self.is_text {
            // Text is converted to the encoding of the database; what is none keeps its bytes.
            true => format!("CAST({FUNCTION}({name}, {dictionary}, TRUE) AS TEXT)"),
            false => format!("{FUNCTION}({name}, {dictionary}, FALSE)"),
        };
        format!("CASE WHEN {dictionary} IS NULL THEN {name} ELSE {value} END")
    }
}

/// The digest of all rows of a table in their order, with the types of their values.
fn digest(
    db: &Connection,
    table: &Table,
    stored: &str,
    is_compressed: bool,
) -> Result<Digest, Reason> {
    let columns: Vec<String> = table
        .columns
        .iter()
        .map(|column| if is_compressed { column.plain() } else { quoted(&column.name) })
        .collect();
    let (columns, key) = (columns.join(", "), &table.key);
    let sql = format!("SELECT {key}, {columns} FROM {} ORDER BY {key}", quoted(stored));
    let mut statement = db.prepare(&sql)?;
    let count = statement.column_count();
    let mut rows = statement.query([])?;
    let mut digest = Digest::default();
    while let Some(row) = rows.next()? {
        for at in 0..count {
            let (kind, bytes): (u8, &[u8]) = match row.get_ref(at)? {
                ValueRef::Null => (0, &[]),
                ValueRef::Integer(n) => (1, &n.to_le_bytes()),
                ValueRef::Real(n) => (2, &n.to_bits().to_le_bytes()),
                ValueRef::Text(text) => (3, text),
                ValueRef::Blob(bytes) => (4, bytes),
            };
            digest.update(&[kind]);
            digest.update(&(bytes.len() as u64).to_le_bytes());
            digest.update(bytes);
        }
    }
    Ok(digest)
}

/// Makes a plain table of one with compressed columns, under its own name.
fn change_back(db: &Connection, table: &Table) -> Result<(), Reason> {
    let stored = quoted(&backing(&table.name));
    // Its triggers go with it.
    db.execute_batch(&format!("DROP VIEW IF EXISTS {}", quoted(&table.name)))?;
    let dictionaries: Vec<String> =
        table.compressed().map(|column| dictionary_column(&column.name)).collect();
    for dictionary in &dictionaries {
        let index = quoted(&format!("{dictionary}_idx"));
        db.execute_batch(&format!("DROP INDEX IF EXISTS {index}"))?;
    }
    let values: Vec<String> = table
        .compressed()
        .map(|column| format!("{} = {}", quoted(&column.name), column.plain()))
        .collect();
    let is_compressed: Vec<String> =
        dictionaries.iter().map(|column| format!("{} IS NOT NULL", quoted(column))).collect();
    let (values, is_compressed) = (values.join(", "), is_compressed.join(" OR "));
    db.execute(&format!("UPDATE {stored} SET {values} WHERE {is_compressed}"), [])?;
    for dictionary in &dictionaries {
        db.execute_batch(&format!("ALTER TABLE {stored} DROP COLUMN {}", quoted(dictionary)))?;
    }
    let name = quoted(&table.name);
    Ok(db.execute_batch(&format!("ALTER TABLE {stored} RENAME TO {name}"))?)
}

/// Says so if there are dictionaries that no compressed column uses: the user may have compressed
/// other values with them by hand, so they must stay.
fn orphans(db: &Connection, tables: &[Table]) -> Result<Vec<String>, Reason> {
    let used = tables.iter().flat_map(|table| {
        let stored = quoted(&backing(&table.name));
        table.compressed().map(move |column| {
            let column = quoted(&dictionary_column(&column.name));
            format!(" EXCEPT SELECT {column} FROM {stored}")
        })
    });
    let used: String = used.collect();
    let sql = format!(
        "SELECT count(*) FROM (SELECT id FROM {DICTIONARIES} WHERE id <> {NO_DICTIONARY}{used})"
    );
    let count: i64 = db.query_row(&sql, [], |row| row.get(0))?;
    let text = format!(
        "the table {DICTIONARIES} stays: no compressed column uses {count} of its dictionaries, \
         but values that were compressed by calling zstd_compress may need them"
    );
    Ok(if count > 0 { vec![text] } else { Vec::new() })
}

/// What went wrong in the SQL function. SQLite passes on only that something did.
type Problem = Arc<Mutex<Option<String>>>;

/// Adds the SQL function that decompresses a value with a dictionary.
fn add_function(db: &Connection) -> Result<Problem, Reason> {
    // In a database of its own, since the function cannot read the one that calls it.
    let dictionaries = Connection::open("")?;
    dictionaries.execute_batch("CREATE TABLE dictionaries(id INTEGER PRIMARY KEY, dict BLOB)")?;
    {
        let mut add = dictionaries.prepare("INSERT INTO dictionaries VALUES (?1, ?2)")?;
        let mut all = db.prepare(&format!("SELECT id, dict FROM {DICTIONARIES}"))?;
        let mut rows = all.query([])?;
        while let Some(row) = rows.next()? {
            add.execute((row.get::<_, i64>(0)?, row.get::<_, Value>(1)?))?;
        }
    }
    let problem = Problem::default();
    let told = Arc::clone(&problem);
    // SQLite calls it on one thread at a time; the type asks for more.
    let state = Mutex::new((Frames::new(FrameFormat::Magicless), dictionaries));
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    db.create_scalar_function(FUNCTION, 3, flags, move |context| {
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let (frames, dictionaries) = &mut *state;
        plain_value(context, frames, dictionaries).map_err(|reason| {
            *told.lock().unwrap_or_else(PoisonError::into_inner) =
                Some(format!("a compressed value: {}", reason.text));
            rusqlite::Error::UserFunctionError(reason.text.into())
        })
    })?;
    Ok(problem)
}

fn plain_value(
    context: &Context<'_>,
    frames: &mut Frames,
    dictionaries: &Connection,
) -> Result<Value, Reason> {
    let frame = match context.get_raw(0) {
        ValueRef::Null => return Ok(Value::Null),
        ValueRef::Blob(frame) => frame,
        other => return Err(damaged(format!("it is {}, not a blob", other.data_type()))),
    };
    let ValueRef::Integer(dictionary) = context.get_raw(1) else {
        return Err(damaged("its dictionary is no number"));
    };
    let plain = frames.decode(frame, dictionary, VALUE_LEN_MAX, |id| {
        let sql = "SELECT dict FROM dictionaries WHERE id = ?1";
        let found = dictionaries.query_row(sql, [id], |row| row.get(0)).optional()?;
        found.ok_or_else(|| damaged(format!("there is no dictionary {id}")))
    })?;
    let is_text = matches!(context.get_raw(2), ValueRef::Integer(1));
    Ok(match is_text {
        true => String::from_utf8(plain)
            .map_or_else(|error| Value::Blob(error.into_bytes()), Value::Text),
        false => Value::Blob(plain),
    })
}
