//! `.import`: a file of separated values into a table.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use csv::{ByteRecord, ReaderBuilder, Terminator};

use super::interrupts;
use super::quote;
use super::schema::query;
use super::shell::{Shell, Trouble};
use crate::failure::{Code, Reason};
use crate::output;
use crate::sys::statement;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// Put behind the file as a record of its own. If it does not arrive as one, a quote is still open.
const SENTINEL: &[u8] = b"\x01the end of what is imported\x01";

/// What to import, and how.
#[derive(Debug)]
pub struct Import<'w> {
    pub file: &'w [u8],
    pub table: &'w [u8],
    pub separator: u8,
    /// How many lines at the front to leave out.
    pub skip: u64,
}

/// Imports a file in one transaction: all of it, or nothing. A table that does not exist is made
/// from the names in the first record.
pub fn import(shell: &mut Shell, import: &Import<'_>) -> Result<(), Trouble> {
    // SQLite answers an interrupted INSERT by rolling back everything, also what came before the
    // import in a transaction of the user. So Ctrl-C counts between two records instead.
    let _held = interrupts::hold();
    let path = Path::new(OsStr::from_bytes(import.file));
    shell.refuse_open_database(path)?;
    let mut file = BufReader::new(File::open(path)?);
    if file.fill_buf()?.starts_with(BYTE_ORDER_MARK) {
        file.consume(BYTE_ORDER_MARK.len());
    }
    for _ in 0..import.skip {
        file.skip_until(b'\n')?;
    }
    shell.db.execute_batch("SAVEPOINT hardpack_import")?;
    match insert_all(shell, import, file) {
        Ok(()) => Ok(shell.db.execute_batch("RELEASE hardpack_import")?),
        Err(trouble) => {
            shell.db.execute_batch("ROLLBACK TO hardpack_import; RELEASE hardpack_import")?;
            Err(match trouble {
                Trouble::Failed(reason) => {
                    Trouble::Failed(reason.hint("nothing was imported; the table is as it was"))
                }
                other => other,
            })
        }
    }
}

fn insert_all(shell: &mut Shell, import: &Import<'_>, file: impl Read) -> Result<(), Trouble> {
    let end = [b"\n", SENTINEL, b"\n"].concat();
    let mut reader = ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .delimiter(import.separator)
        .terminator(Terminator::CRLF)
        .from_reader(file.chain(Cursor::new(end)));
    let mut record = ByteRecord::new();
    let mut line = 0;
    let mut columns = columns(shell, import.table)?;
    let mut insert = None;
    loop {
        interrupts::check()?;
        let more = reader
            .read_byte_record(&mut record)
            .map_err(|error| at(std::io::Error::from(error).into(), line))?;
        line = record.position().map_or(line, csv::Position::line) + import.skip;
        if more && record.len() == 1 && &record[0] == SENTINEL {
            return Ok(());
        }
        if !more || record.iter().any(|field| field.trim_ascii_end().ends_with(SENTINEL)) {
            let reason = Reason::new(Code::Data, "a quote that is opened is not closed");
            return Err(at(reason.into(), line));
        }
        if columns == 0 {
            columns = record.len();
            let made = create(shell, import.table, &record);
            made.map_err(|trouble| at(trouble, line))?;
            continue;
        }
        if record.len() != columns {
            let then =
                if record.len() < columns { "the rest are NULL" } else { "ignored the rest" };
            let found = record.len();
            output::tell(format!("line {line}: {found} fields for {columns} columns; {then}"));
        }
        if insert.is_none() {
            let marks = vec!["?"; columns].join(",");
            let table = quote::quoted_name(import.table);
            let sql = [b"INSERT INTO ", &table[..], b" VALUES(", marks.as_bytes(), b")"].concat();
            insert = statement::prepare(&shell.db, &sql)?.0;
        }
        let Some(insert) = &mut insert else { return Ok(()) };
        let done = (1..=columns)
            .try_for_each(|number| insert.bind(number, record.get(number - 1)))
            .and_then(|()| insert.step())
            .and_then(|_| insert.reset());
        done.map_err(|error| at(error.into(), line))?;
    }
}

/// The number of columns that take values; 0 if there is no such table.
fn columns(shell: &Shell, table: &[u8]) -> Result<usize, Trouble> {
    Ok(query(shell, b"SELECT name FROM pragma_table_info(?1)", Some(table))?.len())
}

/// Makes a table whose columns have the names in a record. Equal names get their numbers.
fn create(shell: &Shell, table: &[u8], names: &ByteRecord) -> Result<(), Trouble> {
    let names: Vec<Vec<u8>> = names.iter().map(<[u8]>::to_vec).collect();
    let is_taken =
        |name: &[u8]| names.iter().filter(|other| other.eq_ignore_ascii_case(name)).count() > 1;
    let columns = names.iter().enumerate().map(|(index, name)| {
        let number = format!("_{}", index + 1);
        let name = match name.is_empty() || is_taken(name) {
            true => [&name[..], number.as_bytes()].concat(),
            false => name.clone(),
        };
        [&quote::quoted_name(&name)[..], b" TEXT"].concat()
    });
    let columns = columns.collect::<Vec<_>>().join(&b",\n"[..]);
    let table = quote::quoted_name(table);
    let sql = [b"CREATE TABLE ", &table[..], b"(\n", &columns, b")"].concat();
    if let (Some(mut create), _) = statement::prepare(&shell.db, &sql)? {
        create.step()?;
    }
    Ok(())
}

/// Adds the line of the file at which something went wrong.
fn at(trouble: Trouble, line: u64) -> Trouble {
    match trouble {
        Trouble::Failed(mut reason) => {
            reason.text = format!("line {line} of the file: {}", reason.text);
            Trouble::Failed(reason)
        }
        other => other,
    }
}
