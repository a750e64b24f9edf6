//! What belongs to a database by its name alone: the log, the journal and the shared memory that
//! SQLite keeps beside it where it is used through a mount.
//!
//! A program that was killed leaves them in the pool. SQLite applies such a log to whatever has the
//! name of the database when it is opened there next. So who gives the name other content takes the
//! log away in the same transaction, and a database that is moved or removed takes its log along.
//! What a command brings itself, such as a tree with a database and its log, stays.

use std::collections::BTreeSet;

use hardpack::mounts::{logs_beside, writer_mark, writer_marks};
use hardpack_engine::pool::{DirEntry, Edit, Kind, Pool};
use hardpack_engine::{Error, FileId};

use super::Users;
use crate::address::{Address, join};
use crate::failure::{Code, Reason};
use crate::pool_file::is_database;
use crate::{output, text};

/// The endings of the names.
const ENDINGS: [&[u8]; 3] = [b"-wal", b"-journal", b"-shm"];
const JOURNAL_ENDING: &[u8] = b"-journal";
/// The ending of shared memory, which means nothing without the log.
const MEMORY_ENDING: &[u8] = b"-shm";

/// Looks up a name of one directory.
type Lookup<'l> = dyn FnMut(&[u8]) -> Result<Option<DirEntry>, Error> + 'l;

/// Returns the log and the journal that are to be applied to what has this name, and the shared
/// memory of the log. `lookup` looks up a name of its directory.
fn companions_of(
    pool: &Pool,
    name: &[u8],
    lookup: &mut Lookup<'_>,
) -> Result<Vec<DirEntry>, Error> {
    let mut found = logs_beside(pool, name, lookup)?;
    if !found.is_empty() {
        let memory = lookup(&[name, MEMORY_ENDING].concat())?;
        found.extend(memory.filter(|entry| entry.kind == Kind::File));
    }
    Ok(found)
}

/// Whether a name has a log or journal in the pool.
pub fn has_log_in_pool(pool: &Pool, directory: FileId, name: &[u8]) -> Result<bool, Error> {
    Ok(!logs_beside(pool, name, &mut |name| pool.lookup_in(directory, name))?.is_empty())
}

/// Puts what belongs to a database by its name behind it, where both were given: otherwise the
/// database would take away what came before it. Returns also how many come first; what comes after
/// them may have gone along with its database.
pub fn behind_databases(given: Vec<Address>) -> (Vec<Address>, usize) {
    let known: BTreeSet<_> = given.iter().map(|one| (one.pool.clone(), one.path.clone())).collect();
    let belongs = |one: &Address| {
        let base = ENDINGS.iter().find_map(|ending| one.path.strip_suffix(*ending));
        base.is_some_and(|base| known.contains(&(one.pool.clone(), base.to_vec())))
    };
    let (behind, mut all): (Vec<_>, Vec<_>) = given.into_iter().partition(belongs);
    let count = all.len();
    all.extend(behind);
    (all, count)
}

/// Tells the user that a copy lacks what is in the log of its source, or may have a part of a
/// transaction that the journal of its source undoes. `is_copied` says which files the command
/// copies as well.
pub fn tell_left_behind(source: &Pool, file: FileId, is_copied: &dyn Fn(FileId) -> bool) {
    // The copy is made. What went away or cannot be read since then is nothing to fail for.
    for log in logs_of(source, file).unwrap_or_default() {
        let what = match log.name.ends_with(JOURNAL_ENDING) {
            _ if is_copied(log.file) => continue,
            true => {
                "undoes a transaction that the copy may have in part: \
                 open the database in a mount once, then copy it again"
            }
            false => "holds changes that were not copied",
        };
        let log = text::escaped(&log.name);
        output::tell(format_args!("note: '{log}' beside it in the pool {what}"));
    }
}

/// Returns the logs and journals that lie beside a file in the pool, under any of its names.
fn logs_of(pool: &Pool, file: FileId) -> Result<Vec<DirEntry>, Error> {
    let mut found = Vec::new();
    if pool.attributes(file)?.kind == Kind::File {
        for (directory, name) in pool.names_of(file)? {
            found.extend(logs_beside(pool, &name, &mut |name| pool.lookup_in(directory, name))?);
        }
    }
    Ok(found)
}

impl Users {
    /// Notes a name that the command brings itself, or keeps, together with a database.
    pub fn note_brought(&self, directory: FileId, name: &[u8]) {
        if ENDINGS.iter().any(|ending| name.ends_with(ending)) {
            self.brought.borrow_mut().insert((directory, name.to_vec()));
        }
    }

    /// Takes away what would be applied to new content of a name. Fails, having changed nothing,
    /// if another process has any of it open.
    pub fn clear_companions(
        &self,
        pool: &Pool,
        edit: &mut Edit<'_>,
        place: (FileId, &[u8]),
    ) -> Result<(), Reason> {
        match self.try_clear(pool, edit, place)? {
            Some((_, reason)) => Err(reason),
            None => Ok(()),
        }
    }

    /// Like [`Users::clear_companions`], but returns the file that is in the way, and why.
    pub(super) fn try_clear(
        &self,
        pool: &Pool,
        edit: &mut Edit<'_>,
        (directory, name): (FileId, &[u8]),
    ) -> Result<Option<(FileId, Reason)>, Error> {
        let brought = self.brought.borrow();
        let is_old = |name: &[u8]| !brought.contains(&(directory, name.to_vec()));
        let found = companions_of(pool, name, &mut |name| match is_old(name) {
            true => edit.lookup(directory, name),
            false => Ok(None),
        })?;
        for entry in &found {
            if let Err(reason) = self.claim(pool, &[entry.file]) {
                return Ok(Some((entry.file, reason)));
            }
        }
        for entry in &found {
            let len = edit.attributes(entry.file)?.len;
            edit.unlink(directory, &entry.name)?;
            let path = join(&pool.path_of(directory).unwrap_or_default(), &entry.name);
            self.cleared.borrow_mut().push((path, len));
        }
        Ok(None)
    }

    /// Moves a name, and what belongs to it, and takes away what belonged to the one it replaces.
    /// Fails, having changed nothing, if that would replace anything else.
    pub fn move_with_companions(
        &self,
        pool: &Pool,
        edit: &mut Edit<'_>,
        from: (FileId, &[u8]),
        to: (FileId, &[u8]),
    ) -> Result<(), Reason> {
        let (moved, old) = (edit.lookup(from.0, from.1)?, edit.lookup(to.0, to.1)?);
        let is_same = |moved: &DirEntry| old.as_ref().is_some_and(|old| old.file == moved.file);
        let with_its_own = |moved: &DirEntry| moved.kind != Kind::Directory && !is_same(moved);
        let Some(moved) = moved.filter(with_its_own) else {
            return Ok(edit.rename(from, to)?);
        };
        let along = match moved.kind {
            Kind::File => companions_of(pool, from.1, &mut |name| edit.lookup(from.0, name))?,
            _ => Vec::new(),
        };
        if along.iter().any(|entry| (from.0, &entry.name[..]) == to) {
            return Err(Reason::new(Code::Cannot, "it would replace what belongs to it")
                .hint("give it another name"));
        }
        for entry in &along {
            self.claim(pool, &[entry.file])?;
        }
        self.clear_companions(pool, edit, to)?;
        edit.rename(from, to)?;
        for entry in along {
            let ending = entry.name.get(from.1.len()..).unwrap_or_default();
            let name = [to.1, ending].concat();
            if edit.lookup(to.0, &name)?.is_some() {
                let (entry, name) = (text::escaped(&entry.name), text::escaped(&name));
                let text = format!("'{entry}' goes with it, and there is a '{name}' already");
                return Err(Reason::new(Code::Cannot, text).hint(format!("move '{name}' away")));
            }
            edit.rename((from.0, &entry.name), (to.0, &name))?;
        }
        Ok(())
    }

    /// Tells the user what was taken away.
    pub fn tell_cleared(&self) {
        for (path, len) in self.cleared.take().into_iter().filter(|(_, len)| *len > 0) {
            output::tell(format_args!(
                "note: removed '{}' ({len} bytes), which belonged to the replaced content",
                text::escaped(&path)
            ));
        }
    }

    /// Keeps mounts from opening the databases at or below an entry for writing, as far as that is
    /// needed to move it. Fails if one is open: SQLite would not find its log again.
    pub fn hold_from_mounts(
        &self,
        pool: &Pool,
        directory: FileId,
        entry: &DirEntry,
    ) -> Result<(), Reason> {
        let is_open = |file| {
            let marked = writer_mark(file).map_or(Ok(false), |mark| self.device.is_marked(mark));
            marked.map_err(|source| Error::Io { action: "look for users of", source })
        };
        match entry.kind {
            Kind::File => {
                let is_one = match is_database(&*pool.file(entry.file)?) {
                    // A damaged file may be moved, and may be one.
                    Err(reason) if reason.code == Code::Data => true,
                    found => found? || has_log_in_pool(pool, directory, &entry.name)?,
                };
                let Some(mark) = writer_mark(entry.file).filter(|_| is_one) else { return Ok(()) };
                match self.device.try_claim(mark)? {
                    true => Ok(()),
                    false => Err(self.open_in_mount(pool, entry.file)),
                }
            }
            Kind::Directory if self.device.is_any_marked(writer_marks())? => {
                let mut found = None;
                pool.walk(entry.file, &mut |_, inner, _| {
                    if inner.kind == Kind::File
                        && is_open(inner.file)?
                        && pool.file(inner.file)?.len()? > 0
                    {
                        found = Some(inner.file);
                    }
                    Ok(found.is_none())
                })?;
                found.map_or(Ok(()), |file| Err(self.open_in_mount(pool, file)))
            }
            _ => Ok(()),
        }
    }

    fn open_in_mount(&self, pool: &Pool, file: FileId) -> Reason {
        let reason = Reason::new(Code::InUse, "a database is open through a mount");
        match pool.path_of(file) {
            Ok(path) => reason.hint(format!("close '{}' there first", text::escaped(&path))),
            Err(_) => reason,
        }
    }
}
