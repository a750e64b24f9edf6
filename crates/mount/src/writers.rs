//! Databases of SQLite that are open for writing through this mount.
//!
//! SQLite's locks on such a file are known to this kernel only, so nobody else may use it: neither
//! another mount, nor whoever opens it as a pool. Whoever comes second is refused. So that this
//! costs nothing for each lock, the file is marked from when it is opened for writing until it is
//! closed, and its changes are committed before the mark goes.
//!
//! A database is known by its first bytes. An empty file may become one, as nobody but its program
//! knows; its mark keeps it from being opened as a pool, but not from being opened by other mounts,
//! for which programs use empty files as locks. When the first bytes are written, the mark becomes
//! that of a database, or goes.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fuser::Errno;
use hardpack_engine::FileId;
use hardpack_engine::pool::File;

use crate::errno::Answer;
use crate::{Marks, Written};

/// The first bytes of a database.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// How long a program that may not write to a database may not read it either: SQLite tries that
/// at once, and would read while others write.
const REFUSED_TIME: Duration = Duration::from_secs(1);
/// How many such refusals are remembered.
const REFUSED_COUNT: usize = 64;

/// The files that are open for writing.
pub struct Writers {
    marks: Arc<dyn Marks>,
    files: Mutex<BTreeMap<FileId, Writer>>,
    /// The processes that were refused, and when.
    refused: Mutex<BTreeMap<(u32, FileId), Instant>>,
}

struct Writer {
    /// How often it is open.
    count: u64,
    /// The mark that it has.
    marked: Option<Written>,
}

impl Writers {
    pub fn new(marks: Arc<dyn Marks>) -> Writers {
        let (files, refused) = Default::default();
        Writers { marks, files, refused }
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<FileId, Writer>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mark(&self, id: FileId, what: Written) -> Answer<()> {
        match self.marks.write(id, what).map_err(Errno::from)? {
            true => Ok(()),
            false => Err(Errno::EBUSY.into()),
        }
    }

    /// Notes that a file was opened for writing, by a process.
    ///
    /// # Errors
    /// EBUSY if it is a database that somebody else uses.
    pub fn open(&self, file: &File, process: u32) -> Answer<()> {
        let mut head = [0; MAGIC.len()];
        let len = file.read_at(&mut head, 0)?;
        let what = match len {
            0 => Some(Written::Maybe),
            _ => (head == *MAGIC).then_some(Written::Database),
        };
        let mut files = self.files();
        let marked = match files.entry(file.id()) {
            Entry::Occupied(known) => {
                known.into_mut().count += 1;
                return Ok(());
            }
            Entry::Vacant(new) => {
                let marked = what.map_or(Ok(()), |what| self.mark(file.id(), what));
                if marked.is_ok() {
                    new.insert(Writer { count: 1, marked: what });
                }
                marked
            }
        };
        drop(files);
        if marked.is_err() && process != 0 {
            let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
            refused.retain(|_, at| at.elapsed() < REFUSED_TIME);
            if refused.len() < REFUSED_COUNT {
                refused.insert((process, file.id()), Instant::now());
            }
        }
        marked
    }

    /// Refuses to let a process read what it was just refused to write.
    ///
    /// # Errors
    /// EBUSY, like the refusal.
    pub fn check_reader(&self, id: FileId, process: u32) -> Answer<()> {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        match refused.get(&(process, id)).is_some_and(|at| at.elapsed() < REFUSED_TIME) {
            true => Err(Errno::EBUSY.into()),
            false => Ok(()),
        }
    }

    /// Notes what is about to be written to a file.
    ///
    /// # Errors
    /// EBUSY if it makes the file a database, and others have it open.
    pub fn write(&self, id: FileId, bytes: &[u8], offset: u64) -> Answer<()> {
        if offset != 0 || bytes.is_empty() {
            return Ok(());
        }
        let mut files = self.files();
        let Some(writer) = files.get_mut(&id) else { return Ok(()) };
        match (bytes.starts_with(MAGIC), writer.marked) {
            (true, Some(Written::Database)) | (false, None) => {}
            (true, _) => {
                self.mark(id, Written::Database)?;
                writer.marked = Some(Written::Database);
            }
            (false, Some(Written::Maybe)) => {
                writer.marked = None;
                self.marks.end_writing(id);
            }
            // It may become one again before it is closed.
            (false, Some(Written::Database)) => {}
        }
        Ok(())
    }

    /// Notes that a file was closed that had been opened for writing. Before its mark goes,
    /// `commit` is called.
    pub fn close(&self, id: FileId, commit: impl FnOnce()) {
        let is_last = match self.files().get_mut(&id) {
            None => return,
            Some(writer) if writer.count > 1 => {
                writer.count -= 1;
                return;
            }
            Some(writer) => writer.marked.is_some(),
        };
        if is_last {
            commit();
        }
        let mut files = self.files();
        let Some(writer) = files.get_mut(&id) else { return };
        // Somebody may have opened it meanwhile.
        writer.count -= 1;
        if writer.count == 0 && files.remove(&id).is_some_and(|it| it.marked.is_some()) {
            self.marks.end_writing(id);
        }
    }

    /// Refuses to take a file away that somebody has open as a database.
    ///
    /// # Errors
    /// EBUSY.
    pub fn check_removal(&self, id: FileId) -> Answer<()> {
        match self.marks.is_database_open(id).map_err(Errno::from)? {
            true => Err(Errno::EBUSY.into()),
            false => Ok(()),
        }
    }
}
