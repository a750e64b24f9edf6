//! Notes of the files that an import has read, to be compared with what the pool holds afterwards.
//!
//! The notes are kept in a temporary database, which SQLite moves to disk when it grows. So memory
//! stays bounded, whatever the number of files.

use hardpack_engine::Error;
use hardpack_engine::pool::{Kind, Pool};
use rusqlite::{Connection, params};

use crate::address::join;
use crate::failure::{Code, Reason};
use crate::pool_file::{Digest, read_all};
use crate::progress::Progress;
use crate::sqlite::LOG_ENDINGS;
use crate::{output, signals, text};

const SCHEMA: &str = "
    PRAGMA journal_mode = OFF;
    PRAGMA synchronous = OFF;
    CREATE TABLE seen(
        path BLOB PRIMARY KEY, len INTEGER NOT NULL, hash BLOB NOT NULL, modified_ns INTEGER NOT NULL
    ) WITHOUT ROWID;
    BEGIN;";

/// The files read so far, by their paths in the pool.
pub struct Seen {
    notes: Connection,
    /// The path of the directory that everything goes into.
    top: Vec<u8>,
}

impl Seen {
    /// Takes notes of files below the directory `top`.
    pub fn below(top: &[u8]) -> Result<Seen, Reason> {
        // A database without a name is temporary.
        let notes = Connection::open("")?;
        notes.execute_batch(SCHEMA)?;
        let names = top.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        let top = names.filter(|name| *name != b".").fold(Vec::new(), |top, name| join(&top, name));
        Ok(Seen { notes, top })
    }

    /// Notes a file that was read, in place of an earlier one of its path.
    pub fn note(&self, path: &[u8], digest: &Digest, modified_ns: i64) -> Result<(), Reason> {
        let len = i64::try_from(digest.len()).unwrap_or(i64::MAX);
        let sql = "INSERT OR REPLACE INTO seen VALUES (?1, ?2, ?3, ?4)";
        let mut statement = self.notes.prepare_cached(sql)?;
        statement.execute(params![join(&self.top, path), len, digest.hash(), modified_ns])?;
        Ok(())
    }

    /// Drops the note of a path below the top, where something else is put.
    pub fn forget_entry(&self, path: &[u8]) -> Result<(), Reason> {
        self.forget(&join(&self.top, path))
    }

    /// Drops the note of a path in the pool that was refused.
    pub fn forget(&self, path: &[u8]) -> Result<(), Reason> {
        let mut statement = self.notes.prepare_cached("DELETE FROM seen WHERE path = ?1")?;
        statement.execute([path])?;
        Ok(())
    }

    /// The files that are called like the log or journal of another file.
    pub fn logs(&self) -> Result<Vec<Vec<u8>>, Reason> {
        let sql = "SELECT log.path FROM seen AS log
            JOIN seen ON seen.path = substr(log.path, 1, length(log.path) - length(?1))
            WHERE substr(log.path, -length(?1)) = ?1 ORDER BY 1";
        let mut statement = self.notes.prepare(sql)?;
        let mut found = Vec::new();
        for ending in LOG_ENDINGS {
            for path in statement.query_map([ending.as_bytes()], |row| row.get(0))? {
                found.push(path?);
            }
        }
        Ok(found)
    }

    /// Compares all files with what a pool holds, and returns how many there are. Others may have
    /// changed, moved or removed files of a pool that is shared with them.
    pub fn verify(&self, pool: &Pool, is_shared: bool, is_quiet: bool) -> Result<u64, Reason> {
        let sql = "SELECT count(*), ifnull(sum(len), 0) FROM seen";
        let (count, total): (i64, i64) =
            self.notes.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let mut progress =
            Progress::new("verifying".into(), total.unsigned_abs(), is_quiet || count == 0);
        let mut done = 0;
        let mut all =
            self.notes.prepare("SELECT path, len, hash, modified_ns FROM seen ORDER BY path")?;
        let mut rows = all.query([])?;
        while let Some(row) = rows.next()? {
            let path: Vec<u8> = row.get(0)?;
            let (len, hash): (i64, [u8; 32]) = (row.get(1)?, row.get(2)?);
            let found = digest_at(pool, &path, row.get(3)?, &mut |n| {
                done += n;
                progress.at(done);
                signals::check()
            })?;
            let is_same = match found {
                Found::Content(found_len, found_hash) => {
                    found_len as i64 == len && found_hash == hash
                }
                Found::Changed => true,
                Found::Nothing => {
                    if is_shared {
                        let path = text::escaped(&path);
                        output::tell(format_args!(
                            "note: somebody has moved or removed '{path}' since"
                        ));
                    }
                    is_shared
                }
            };
            if !is_same {
                return Err(differs(&path));
            }
        }
        progress.finish();
        Ok(count.unsigned_abs())
    }
}

fn differs(path: &[u8]) -> Reason {
    let text = format!("'{}' in the pool does not match what was read", text::escaped(path));
    Reason::new(Code::Data, text)
}

/// What is at the path of a file.
enum Found {
    /// A file of this length and hash.
    Content(u64, [u8; 32]),
    /// Another process has changed it since it was imported: a file that is merely stored wrongly
    /// keeps its time.
    Changed,
    /// No file.
    Nothing,
}

/// Reads a file of a pool.
fn digest_at(
    pool: &Pool,
    path: &[u8],
    modified_ns: i64,
    progress: &mut dyn FnMut(u64) -> Result<(), Reason>,
) -> Result<Found, Reason> {
    let entry = match pool.resolve_link(path) {
        Err(Error::NotFound { .. } | Error::NotADirectory { .. }) => return Ok(Found::Nothing),
        entry => entry?,
    };
    let attributes = pool.attributes(entry.file)?;
    if attributes.kind != Kind::File {
        return Ok(Found::Nothing);
    }
    if attributes.modified_ns != modified_ns {
        return Ok(Found::Changed);
    }
    let mut digest = Digest::default();
    let read = pool.file(entry.file).map_err(Reason::from).and_then(|file| {
        read_all(&file, attributes.len, pool.options().threads(), &mut |bytes| {
            digest.update(bytes);
            progress(bytes.len() as u64)
        })
    });
    // What was read may be of several states, if others write meanwhile.
    pool.refresh()?;
    let now = match pool.attributes(entry.file) {
        Err(Error::NotFound { .. }) => return Ok(Found::Nothing),
        now => now?,
    };
    if now.modified_ns != modified_ns {
        return Ok(Found::Changed);
    }
    read?;
    Ok(Found::Content(digest.len(), digest.hash()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hardpack_engine::FileId;
    use hardpack_engine::device::{Device, MemoryDevice};
    use hardpack_engine::pool::{CreateOptions, ROOT};
    use hardpack_engine::store::Durability;

    use super::*;
    use crate::pool_file::options;

    /// A program opens a file as soon as it is there, and changes it while it is compared.
    #[test]
    fn what_others_change_or_remove_while_it_is_read_is_no_damage() {
        type Change = fn(&Pool, FileId);
        type IsExpected = fn(&Found) -> bool;
        let changes: [(Change, IsExpected); 4] = [
            (|_, _| {}, |found| matches!(found, Found::Content(..))),
            (|pool, id| write(pool, id, 39 << 20), |found| matches!(found, Found::Changed)),
            (
                |pool, id| {
                    pool.file(id).unwrap().set_len(5).unwrap();
                    write(pool, id, 0);
                },
                |found| matches!(found, Found::Changed),
            ),
            (
                |pool, _| pool.edit(2, |edit| edit.unlink(ROOT, b"main")).unwrap(),
                |found| matches!(found, Found::Nothing),
            ),
        ];
        for (index, (change, is_expected)) in changes.into_iter().enumerate() {
            let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
            let create =
                CreateOptions { file_name: Some("main".into()), ..CreateOptions::new([1; 16]) };
            let other = Pool::create(Arc::clone(&device), &create, options(Some(1))).unwrap();
            let id = other.only_file().unwrap().file;
            write(&other, id, 0);
            write(&other, id, 39 << 20);
            other.set_attributes(id, 0o644, 7).unwrap();
            let pool = Pool::open(device, options(Some(1))).unwrap();
            let mut changed = false;
            let found = digest_at(&pool, b"main", 7, &mut |_| {
                if !std::mem::replace(&mut changed, true) {
                    change(&other, id);
                    // As a read does that meets space which others have used again.
                    pool.refresh().unwrap();
                }
                Ok(())
            });
            assert!(found.is_ok_and(|found| is_expected(&found)), "change {index}");
        }
    }

    /// Writes to a file, which gives it another time.
    fn write(pool: &Pool, id: FileId, offset: u64) {
        let file = pool.file(id).unwrap();
        file.write_at(b"some bytes", offset).unwrap();
        file.commit(Durability::Durable).unwrap();
    }

    #[test]
    fn the_last_note_of_a_path_holds() {
        let seen = Seen::below(b"/a//./b/").unwrap();
        let mut digest = Digest::default();
        seen.note(b"x", &digest, 1).unwrap();
        digest.update(b"content");
        seen.note(b"x", &digest, 2).unwrap();
        seen.note(b"y", &digest, 2).unwrap();
        seen.forget_entry(b"y").unwrap();
        let sql = "SELECT path, len FROM seen";
        let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
        let found: (Vec<u8>, i64) = seen.notes.query_row(sql, [], read).unwrap();
        assert_eq!(found, (b"a/b/x".to_vec(), 7));
        assert!(seen.logs().unwrap().is_empty());
        for name in [&b"x-wal"[..], b"y-wal", b"x-journal", b"-wal"] {
            seen.note(name, &digest, 2).unwrap();
        }
        assert_eq!(seen.logs().unwrap(), [&b"a/b/x-wal"[..], b"a/b/x-journal"]);
        for name in [&b"x-wal"[..], b"y-wal", b"x-journal", b"-wal", b"x"] {
            seen.forget_entry(name).unwrap();
        }
        assert!(seen.notes.query_row(sql, [], read).is_err());
    }
}
