//! Reads databases of sqlite_zstd_vfs. Each is a SQLite database itself, whose table
//! `nested_vfs_zstd_pages` holds the pages of the database inside, by their numbers: as they are
//! where `meta1` is null, otherwise as a zstd frame with the dictionary that it names, or none if
//! it is negative. The first page is never compressed. Row -100 repeats the beginning of that.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension};
use zstd_safe::FrameFormat;

use super::archives::damaged;
use super::databases::open_source;
use super::frames::Frames;
use crate::failure::{Code, Reason};
use crate::progress::Progress;
use crate::tarball::BUFFER_LEN;
use crate::{signals, sqlite, text};

/// The table of pages.
pub const PAGES: &str = "nested_vfs_zstd_pages";
/// The longest page of SQLite, in bytes.
const PAGE_LEN_MAX: usize = 64 << 10;
/// The ending of the name of the database inside, to which a journal of its own may belong.
const INNER_JOURNAL: &str = "-inner-journal";

/// Writes the database inside of `source` to `out`.
pub fn rebuild(source: &Path, out: &Path, is_quiet: bool) -> Result<(), Reason> {
    let journal = sqlite::beside(source, INNER_JOURNAL);
    if sqlite::is_unsettled(&journal) {
        let text = format!("'{}' holds an unfinished transaction", text::path(&journal));
        return Err(Reason::new(Code::InUse, text)
            .hint("open the database once with sqlite_zstd_vfs, which undoes that"));
    }
    let db = open_source(source)?;
    sqlite::begin_read(&db)?;
    let page_len = page_len(&db)?;
    let count: i64 =
        db.query_row(&format!("SELECT ifnull(max(pageno), 0) FROM {PAGES}"), [], |row| row.get(0))?;
    let total = count.unsigned_abs().saturating_mul(page_len as u64);
    let mut progress = Progress::new("decompressing pages".into(), total, is_quiet);
    let mut frames = Frames::new(FrameFormat::One);
    let file = File::options().write(true).open(out)?;
    let mut file = BufWriter::with_capacity(BUFFER_LEN, file);
    let sql = format!("SELECT pageno, data, meta1 FROM {PAGES} WHERE pageno > 0 ORDER BY pageno");
    let mut all = db.prepare(&sql)?;
    let mut rows = all.query([])?;
    let mut next = 1;
    while let Some(row) = rows.next()? {
        signals::check()?;
        let number: i64 = row.get(0)?;
        if number != next {
            return Err(damaged(format!("page {next} is missing")));
        }
        let about = |reason: Reason| reason.within(format_args!("page {number}"));
        let data = row.get_ref(1)?.as_blob().map_err(|_| about(damaged("it is no blob")))?;
        let page = match row.get_ref(2)? {
            ValueRef::Null => None,
            ValueRef::Integer(dictionary) => {
                let load = |id| dictionary_of(&db, id);
                Some(frames.decode(data, dictionary, PAGE_LEN_MAX, load).map_err(about)?)
            }
            _ => return Err(about(damaged("its dictionary is no number"))),
        };
        let page = page.as_deref().unwrap_or(data);
        if page.len() != page_len {
            let text = format!("it is {} bytes long, not {page_len}", page.len());
            return Err(about(damaged(text)));
        }
        file.write_all(page)?;
        progress.at(number.unsigned_abs() * page_len as u64);
        next += 1;
    }
    file.flush()?;
    progress.finish();
    Ok(())
}

/// The length of pages is that of the first.
fn page_len(db: &Connection) -> Result<usize, Reason> {
    let sql = format!("SELECT data FROM {PAGES} WHERE pageno = 1");
    let first: Option<Vec<u8>> = db.query_row(&sql, [], |row| row.get(0)).optional()?;
    let first = first.ok_or_else(|| damaged("there is no database in it"))?;
    let is_page = first.starts_with(sqlite::MAGIC) && first.len() <= PAGE_LEN_MAX;
    if is_page { Ok(first.len()) } else { Err(damaged("page 1: it does not begin a database")) }
}

fn dictionary_of(db: &Connection, id: i64) -> Result<Vec<u8>, Reason> {
    let sql = "SELECT dict FROM nested_vfs_zstd_dicts WHERE id = ?1";
    let mut statement = db.prepare_cached(sql)?;
    let found = statement.query_row([id], |row| row.get(0)).optional()?;
    found.ok_or_else(|| damaged(format!("there is no dictionary {id}")))
}
