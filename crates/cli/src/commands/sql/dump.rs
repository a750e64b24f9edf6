//! `.dump`: a database, or some of its tables, as SQL.

use super::interrupts;
use super::quote;
use super::schema::{query, terminated};
use super::shell::{Shell, Trouble, visible};
use crate::sys::statement;

/// Tables and whatever is named like the first parameter; the tables that a virtual table keeps its
/// content in come with it.
const NAMED: &str = "(o.name LIKE ?1 ESCAPE '\\' OR EXISTS (SELECT 1 FROM sqlite_schema AS v \
                     WHERE v.name LIKE ?1 ESCAPE '\\' AND v.sql LIKE 'CREATE VIRTUAL TABLE%' \
                     AND substr(o.name, 1, length(v.name) + 1) == (v.name || '_')))";

/// Writes everything named like one of the patterns, or everything, as it is at one moment.
pub fn dump(shell: &mut Shell, patterns: &[Vec<u8>]) -> Result<(), Trouble> {
    let everything = [b"%".to_vec()];
    let patterns = if patterns.is_empty() { &everything } else { patterns };
    shell.write("PRAGMA foreign_keys=OFF;\nBEGIN TRANSACTION;\n")?;
    shell.db.execute_batch("SAVEPOINT hardpack_dump")?;
    let done = patterns.iter().try_for_each(|pattern| dump_named(shell, pattern));
    let held = interrupts::hold();
    shell.db.execute_batch("RELEASE hardpack_dump")?;
    drop(held);
    // Whoever runs what was written so far is left with nothing rather than with a part.
    shell.write(if done.is_ok() { "COMMIT;\n" } else { "ROLLBACK; -- due to errors\n" })?;
    done
}

fn dump_named(shell: &mut Shell, pattern: &[u8]) -> Result<(), Trouble> {
    let tables = format!(
        "SELECT name, sql FROM sqlite_schema AS o WHERE {NAMED} AND type = 'table' \
         AND sql NOT NULL ORDER BY tbl_name = 'sqlite_sequence', rowid"
    );
    let mut has_virtual = false;
    for row in query(shell, tables.as_bytes(), Some(pattern))? {
        let [name, sql] = &row[..] else { continue };
        if name == b"sqlite_sequence" {
            shell.write("DELETE FROM sqlite_sequence;\n")?;
        } else if name.starts_with(b"sqlite_stat") {
            shell.write("ANALYZE sqlite_schema;\n")?;
        } else if name.starts_with(b"sqlite_") {
            continue;
        } else if sql.starts_with(b"CREATE VIRTUAL TABLE") {
            if !std::mem::replace(&mut has_virtual, true) {
                shell.write("PRAGMA writable_schema=ON;\n")?;
            }
            let (name, sql) = (quote::string(name), quote::string(sql));
            let insert: &[u8] = b"INSERT INTO sqlite_schema(type,name,tbl_name,rootpage,sql)\
                                  VALUES('table',";
            shell.write([insert, &name, b",", &name, b",0,", &sql, b");\n"].concat())?;
            continue;
        } else {
            shell.write(terminated(sql.clone()))?;
        }
        dump_rows(shell, name)?;
    }
    let others = format!(
        "SELECT sql FROM sqlite_schema AS o WHERE {NAMED} AND sql NOT NULL \
         AND type IN ('index', 'trigger', 'view')"
    );
    for row in query(shell, others.as_bytes(), Some(pattern))? {
        shell.write(terminated(row.into_iter().next().unwrap_or_default()))?;
    }
    if has_virtual {
        shell.write("PRAGMA writable_schema=OFF;\n")?;
    }
    Ok(())
}

/// Writes an INSERT for each row of a table. Columns that are computed are not part of it.
fn dump_rows(shell: &mut Shell, table: &[u8]) -> Result<(), Trouble> {
    let columns = query(shell, b"SELECT name FROM pragma_table_info(?1)", Some(table))?;
    let columns: Vec<Vec<u8>> = columns.iter().map(|row| quote::quoted_name(&row[0])).collect();
    let sql = [b"SELECT ", &columns.join(&b","[..])[..], b" FROM ", &quote::quoted_name(table)];
    let into = [b"INSERT INTO ", &quote::name(table)[..], b" VALUES("].concat();
    let Shell { db, sink, .. } = shell;
    let escapes = sink.is_terminal();
    let (Some(mut rows), _) = statement::prepare(db, &sql.concat())? else { return Ok(()) };
    while rows.step()? {
        let cells = (0..rows.column_count()).map(|index| quote::literal(rows.cell(index), true));
        let row = [&into[..], &cells.collect::<Vec<_>>().join(&b","[..]), b");\n"].concat();
        sink.write(&visible(row, escapes))?;
    }
    Ok(())
}
