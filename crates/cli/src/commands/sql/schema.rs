//! Dot commands that show what a database consists of.

use super::quote;
use super::shell::{Shell, Trouble};
use crate::sys;
use crate::sys::statement;

/// The longest line of names in columns.
const LINE_LEN: usize = 80;

type Row = Vec<Vec<u8>>;

/// Runs a query that takes at most one parameter, and returns all rows as text.
pub fn query(shell: &Shell, sql: &[u8], parameter: Option<&[u8]>) -> Result<Vec<Row>, Trouble> {
    let (Some(mut statement), _) = statement::prepare(&shell.db, sql)? else {
        return Ok(Vec::new());
    };
    if let Some(parameter) = parameter {
        statement.bind(1, Some(parameter))?;
    }
    let mut rows = Vec::new();
    while statement.step()? {
        let cells = (0..statement.column_count()).map(|index| statement.cell(index));
        rows.push(cells.map(|cell| quote::plain(cell).unwrap_or_default()).collect());
    }
    Ok(rows)
}

fn databases(shell: &Shell) -> Result<Vec<Vec<u8>>, Trouble> {
    let rows = query(shell, b"SELECT name FROM pragma_database_list", None)?;
    Ok(rows.into_iter().map(|mut row| std::mem::take(&mut row[0])).collect())
}

/// The files of all attached databases.
pub fn files(shell: &Shell) -> Result<Vec<Vec<u8>>, Trouble> {
    let rows = query(shell, b"SELECT file FROM pragma_database_list WHERE file <> ''", None)?;
    Ok(rows.into_iter().flatten().collect())
}

/// The names of tables and views, or of indexes of tables, that match a LIKE pattern.
pub fn names(shell: &mut Shell, pattern: Option<&[u8]>, indexes: bool) -> Result<(), Trouble> {
    let wanted: &[u8] = if indexes {
        b".sqlite_schema WHERE type = 'index' AND tbl_name LIKE ?1"
    } else {
        b".sqlite_schema WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%' \
          AND name LIKE ?1"
    };
    let mut parts = Vec::new();
    for database in databases(shell)? {
        let mut part = b"SELECT ".to_vec();
        if !database.eq_ignore_ascii_case(b"main") {
            part.extend([&quote::string(&database), &b"||'.'||"[..]].concat());
        }
        part.extend([b"name FROM ", &quote::quoted_name(&database)[..], wanted].concat());
        parts.push(part);
    }
    let sql = [&parts.join(&b" UNION ALL "[..])[..], b" ORDER BY 1"].concat();
    let rows = query(shell, &sql, Some(pattern.unwrap_or(b"%")))?;
    let names: Vec<&Vec<u8>> = rows.iter().map(|row| &row[0]).collect();
    let longest = names.iter().map(|name| name.len()).max().unwrap_or(0);
    let lines = names.len().div_ceil((LINE_LEN / (longest + 2)).max(1));
    for first in 0..lines {
        let mut line = Vec::new();
        for (number, name) in names.iter().skip(first).step_by(lines).enumerate() {
            if number > 0 {
                line.extend(b"  ");
            }
            line.extend_from_slice(name);
            line.resize(line.len() + longest - name.len(), b' ');
        }
        line.push(b'\n');
        shell.write(line)?;
    }
    Ok(())
}

/// The attached databases with their files and states.
pub fn list_databases(shell: &mut Shell) -> Result<(), Trouble> {
    for row in query(shell, b"SELECT name, file FROM pragma_database_list", None)? {
        let file = if row[1].is_empty() { b"\"\"" } else { &row[1][..] };
        let (is_read_only, transaction) = sys::database_state(&shell.db, &row[0]);
        let access = if is_read_only { " r/o" } else { " r/w" };
        let line = [&row[0], &b": "[..], file, access.as_bytes(), transaction.as_bytes(), b"\n"];
        shell.write(line.concat())?;
    }
    Ok(())
}

/// The statements that make the schema, or the tables that match a pattern, as SQLite keeps them.
pub fn schema(shell: &mut Shell, pattern: Option<&[u8]>, with_system: bool) -> Result<(), Trouble> {
    const SYSTEM: [&[u8]; 4] =
        [b"sqlite_master", b"sqlite_schema", b"sqlite_temp_master", b"sqlite_temp_schema"];
    if let Some(name) = pattern
        .and_then(|pattern| SYSTEM.into_iter().find(|name| pattern.eq_ignore_ascii_case(name)))
    {
        let columns = "(\n  type text,\n  name text,\n  tbl_name text,\n  rootpage integer,\n  \
                       sql text\n);\n";
        shell.write([b"CREATE TABLE ", name, b" ", columns.as_bytes()].concat())?;
    }
    let mut parts = Vec::new();
    for (number, database) in databases(shell)?.iter().enumerate() {
        let (name, table) = (quote::string(database), quote::quoted_name(database));
        parts.push(
            [
                b"SELECT sql, type, tbl_name, name, rowid, ",
                format!("{number} AS snum, ").as_bytes(),
                &name,
                b" AS sname FROM ",
                &table,
                b".sqlite_schema",
            ]
            .concat(),
        );
    }
    let unions = parts.join(&b" UNION ALL "[..]);
    let mut sql = [b"SELECT sql, name, sname FROM (", &unions[..], b") WHERE "].concat();
    if let Some(pattern) = pattern {
        let has_database = pattern.contains(&b'.');
        let subject: &[u8] = if has_database {
            b"lower(printf('%s.%s',sname,tbl_name))"
        } else {
            b"lower(tbl_name)"
        };
        let is_glob = pattern.iter().any(|byte| b"*?[".contains(byte));
        let test: &[u8] = if is_glob { b" GLOB ?1 AND " } else { b" LIKE ?1 ESCAPE '\\' AND " };
        sql.extend([subject, test].concat());
    }
    if !with_system {
        sql.extend(b"name NOT LIKE 'sqlite_%' AND ");
    }
    sql.extend(b"sql IS NOT NULL ORDER BY snum, rowid");
    for row in query(shell, &sql, pattern)? {
        let [sql, name, database] = &row[..] else { continue };
        let statement = in_database(shell, sql, name, database)?;
        shell.write(terminated(statement))?;
    }
    Ok(())
}

/// A statement of the schema with the name of its database, unless that is the main one, and with
/// the columns of a view or virtual table behind it.
fn in_database(
    shell: &Shell,
    sql: &[u8],
    name: &[u8],
    database: &[u8],
) -> Result<Vec<u8>, Trouble> {
    const KINDS: [&[u8]; 6] =
        [b"TABLE ", b"INDEX ", b"UNIQUE INDEX ", b"VIEW ", b"TRIGGER ", b"VIRTUAL TABLE "];
    let Some(rest) = sql.strip_prefix(b"CREATE ") else { return Ok(sql.to_vec()) };
    let Some(kind) = KINDS.into_iter().find(|kind| rest.starts_with(kind)) else {
        return Ok(sql.to_vec());
    };
    let prefix = if database.eq_ignore_ascii_case(b"main") {
        Vec::new()
    } else if database.eq_ignore_ascii_case(b"temp") {
        b"temp.".to_vec()
    } else {
        [&quote::name(database)[..], b"."].concat()
    };
    let mut out = [b"CREATE ", kind, &prefix, &rest[kind.len()..]].concat();
    if kind[0] == b'V' {
        let pragma = b"SELECT name FROM pragma_table_info(?1, ".to_vec();
        let pragma = [pragma, quote::string(database), b")".to_vec()].concat();
        // A view that no longer fits its tables has no columns to show.
        if let Ok(columns) = query(shell, &pragma, Some(name))
            && !columns.is_empty()
        {
            let columns: Vec<Vec<u8>> = columns.iter().map(|row| quote::name(&row[0])).collect();
            let columns = columns.join(&b","[..]);
            out.extend(
                [b"\n/* ", &prefix[..], &quote::name(name), b"(", &columns, b") */"].concat(),
            );
        }
    }
    Ok(out)
}

/// A statement with a semicolon behind it, even if it ends in a comment.
pub fn terminated(mut sql: Vec<u8>) -> Vec<u8> {
    let has = |mark: &[u8]| sql.windows(2).any(|part| part == mark);
    if has(b"/*") || has(b"--") {
        let ends: [&[u8]; 3] = [b"", b"*/", b"\n"];
        let fits = |end: &&[u8]| sys::is_complete_sql(&[&sql, *end, b";"].concat());
        sql.extend_from_slice(ends.into_iter().find(fits).unwrap_or_default());
    }
    let table = b"CREATE TABLE ";
    if sql.starts_with(table) && matches!(sql.get(table.len()), Some(b'\'' | b'"')) {
        sql.splice(..table.len(), *b"CREATE TABLE IF NOT EXISTS ");
    }
    sql.extend(b";\n");
    sql
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_terminated_behind_comments() {
        for (sql, expected) in [
            ("CREATE VIEW v AS SELECT 1 -- end", "CREATE VIEW v AS SELECT 1 -- end\n;\n"),
            ("CREATE VIEW v AS SELECT 1 /* end", "CREATE VIEW v AS SELECT 1 /* end*/;\n"),
            ("CREATE TABLE \"a b\"(c)", "CREATE TABLE IF NOT EXISTS \"a b\"(c);\n"),
        ] {
            assert_eq!(terminated(sql.into()), expected.as_bytes());
        }
    }
}
