//! Who else uses what is in a pool: programs that have a database open, and other imports. Nothing may be changed
//! behind their backs that they take for theirs.
//!
//! Whoever has a database of a pool open shares a mark with the number of its file; who has the first file open
//! locks the pool itself, as SQLite does; and who brings files in shares [`IMPORT_MARK`], so that what others have left
//! without a name can be told from what somebody is still filling. The marks are given back with the
//! descriptor, or with the process.
//!
//! What is asked for is kept: whoever finds that nobody uses a database has it for himself from then on, until what he
//! does is committed. Whether it can be understood as a database does not matter, for it may be replaced because it cannot.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hardpack_engine::device::{Device, FileDevice};
use hardpack_engine::pool::{Kind, Pool, ROOT};
use hardpack_engine::{Error, FileId};
use rusqlite::Connection;

use crate::contents::{FIRST_FILE, database_path, has_sidecar, sidecar_base, sidecar_of};
use crate::failure::{Code, Reason};
use crate::pool_file::is_database;
use crate::{publish, signals, sqlite, text};

/// No file has this number.
const IMPORT_MARK: u64 = 0;
/// The numbers of all files lie below this.
const NUMBER_END: u64 = 1 << 61;
/// How long to wait before asking again for a mark that somebody has alone for a moment.
const MARK_PAUSE: Duration = Duration::from_millis(5);
/// How long a database is waited for.
const LOCK_WAIT: Duration = Duration::from_secs(2);
/// So many files are kept for oneself whatever they are, and of more only the databases: the system goes through all
/// locks of a file for each.
const HELD_COUNT: usize = 1024;
/// How many names of a directory are looked at together.
const LIST_COUNT: usize = 256;

/// The users of a pool.
pub struct Users {
    path: PathBuf,
    /// The first file, locked; its descriptor is closed before that of the marks, which would take SQLite's locks with
    /// it.
    first: RefCell<Option<Connection>>,
    /// Numbers of the other files that are kept for oneself.
    held: RefCell<BTreeSet<u64>>,
    device: FileDevice,
}

impl Users {
    pub fn of(path: &Path) -> Result<Users, Reason> {
        let device = FileDevice::open(path)?;
        if device.is_read_only() {
            // Nobody is kept out of what one may not change.
            return Err(Error::ReadOnly("its file cannot be written").into());
        }
        let (first, held) = (RefCell::default(), RefCell::default());
        Ok(Users { path: path.into(), first, held, device })
    }

    /// Says that files are being brought in, as long as this lives. Where nobody else does so, first removes what
    /// imports that were cut short have left.
    pub fn begin_import(&self, pool: &Pool) -> Result<(), Reason> {
        if self.device.try_claim(IMPORT_MARK)? {
            pool.remove_nameless(&mut |_| false)?;
            self.device.release(IMPORT_MARK);
        }
        while !self.device.try_share(IMPORT_MARK)? {
            signals::check()?;
            std::thread::sleep(MARK_PAUSE);
        }
        Ok(())
    }

    /// Keeps everybody out of a file that is to be replaced, as long as this lives. Refuses one that is a database which
    /// somebody has open, or of which a part is still in a log or journal beside the pool, which would be lost.
    pub fn hold(&self, pool: &Pool, file: FileId) -> Result<(), Reason> {
        if has_sidecar(&self.path, pool, file)? && !self.is_unreadable(pool, file)? {
            return Err(Reason::new(
                Code::InUse,
                "a part of it is in a log or journal beside the pool",
            )
            .hint(
                "opening it once as a database, with nobody else using it, puts that into the pool",
            ));
        }
        let is_kept = file == FIRST_FILE || self.held.borrow().len() < HELD_COUNT;
        if is_kept || is_database(&*pool.file(file)?)? {
            return self.claim(pool, &[file]);
        }
        if self.device.is_marked(file.0)? { Err(self.in_use(file)) } else { Ok(()) }
    }

    /// Keeps everybody out of what an entry stands for, and of all below it where it is a directory, as long as this
    /// lives. Refuses where somebody is there already. What is in a log does not matter: it goes as well.
    pub fn hold_all(&self, pool: &Pool, file: FileId) -> Result<(), Reason> {
        let mut files = Vec::new();
        let mut directories = vec![];
        match pool.attributes(file)?.kind {
            Kind::Directory => directories.push(file),
            _ => files.push(file),
        }
        while let Some(directory) = directories.pop() {
            let mut after: Option<Vec<u8>> = None;
            loop {
                let entries = pool.list_some(directory, after.as_deref(), LIST_COUNT)?;
                for entry in &entries {
                    match entry.kind {
                        Kind::Directory => directories.push(entry.file),
                        _ => files.push(entry.file),
                    }
                }
                match entries.last() {
                    Some(last) => after = Some(last.name.clone()),
                    None => break,
                }
            }
        }
        files.sort_unstable();
        files.dedup();
        self.claim(pool, &files)
    }

    /// Keeps everybody out of files, given in order.
    fn claim(&self, pool: &Pool, files: &[FileId]) -> Result<(), Reason> {
        let mut held = self.held.borrow_mut();
        let new: Vec<u64> = files.iter().map(|file| file.0).filter(|n| !held.contains(n)).collect();
        for run in new.chunk_by(|one, next| one + 1 == *next) {
            let (Some(start), Some(last)) = (run.first(), run.last()) else { continue };
            // Others ask for a mark alone for a moment only.
            if let Some(number) = self.device.claim_unused(*start..last + 1)?.first() {
                return Err(self.in_use_at(pool, FileId(*number)));
            }
            held.extend(run);
        }
        if new.contains(&FIRST_FILE.0) {
            self.lock_first(pool).inspect_err(|_| {
                held.remove(&FIRST_FILE.0);
            })?;
        }
        Ok(())
    }

    /// Keeps everybody out of the databases at or below `scope`, and of all that may come to lie there, as long as what
    /// it returns lives. Refuses where somebody is there already.
    pub fn keep_out(self, pool: &Pool, scope: FileId) -> Result<Users, Reason> {
        let is_concerned =
            |file| Ok::<_, Error>(pool.path_of(file).is_ok() && pool.is_below(file, scope)?);
        for number in self.device.claim_unused(ROOT.0..NUMBER_END)? {
            if is_concerned(FileId(number))? {
                return Err(self.in_use_at(pool, FileId(number)));
            }
        }
        if is_concerned(FIRST_FILE)? {
            self.lock_first(pool)?;
        }
        Ok(self)
    }

    /// Keeps everybody out of every database, as long as what it returns lives. What is damaged is no obstacle.
    pub fn keep_out_of_all(self, pool: &Pool) -> Result<Users, Reason> {
        if let Some(number) = self.device.claim_unused(ROOT.0..NUMBER_END)?.first() {
            return Err(self.in_use_at(pool, FileId(*number)));
        }
        match self.lock_first(pool) {
            Err(reason) if reason.code == Code::InUse => Err(reason),
            _ => Ok(self),
        }
    }

    /// Locks the first database as SQLite does.
    fn lock_first(&self, pool: &Pool) -> Result<(), Reason> {
        let mut first = self.first.borrow_mut();
        if first.is_some() || pool.attributes(FIRST_FILE)?.kind != Kind::File {
            return Ok(());
        }
        let path = database_path(&self.path, &pool.path_of(FIRST_FILE)?);
        let locked = sqlite::lock_any(&path, LOCK_WAIT)?;
        let Some(locked) = locked else {
            return Err(if self.is_written()? { busy() } else { self.in_use(FIRST_FILE) });
        };
        *first = Some(locked);
        Ok(())
    }

    /// Whether somebody commits something to the pool, of whichever database: then none can be locked.
    fn is_written(&self) -> Result<bool, Reason> {
        let is_free = self.device.try_lock_writer()?;
        if is_free {
            self.device.unlock_writer();
        }
        Ok(!is_free)
    }

    /// Whether SQLite can make nothing of a file, and so nothing of a log beside it either.
    fn is_unreadable(&self, pool: &Pool, file: FileId) -> Result<bool, Reason> {
        let path = database_path(&self.path, &pool.path_of(file)?);
        let read = sqlite::open_any(&path, LOCK_WAIT)
            .and_then(|db| db.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(())));
        Ok(read.is_err_and(|error| sqlite::is_unreadable(&error)))
    }

    /// The reason why a file cannot be changed that somebody has open.
    fn in_use(&self, file: FileId) -> Reason {
        let by = fs::metadata(sidecar_base(&self.path, file))
            .ok()
            .and_then(|metadata| publish::opener(&metadata).ok().flatten());
        let who = match by {
            Some((pid, name)) => format!("{name} (process {pid})"),
            None => "another program".into(),
        };
        Reason::new(Code::InUse, format!("{who} has it open as a database"))
    }

    fn in_use_at(&self, pool: &Pool, file: FileId) -> Reason {
        let reason = self.in_use(file);
        match pool.path_of(file) {
            Ok(path) => reason.hint(format!("close '{}' there first", text::escaped(&path))),
            Err(_) => reason,
        }
    }

    /// Whether anything is kept for oneself.
    pub fn has_held(&self) -> bool {
        !self.held.borrow().is_empty()
    }

    /// Removes what lies beside the pool for databases that are no longer in it, and logs of content that was exchanged
    /// since; then lets everybody in again.
    pub fn finish(self, pool: &Pool) -> Result<(), Reason> {
        self.remove_leftovers(pool)
    }

    fn remove_leftovers(&self, pool: &Pool) -> Result<(), Reason> {
        let name = self.path.file_name().unwrap_or_default().as_bytes();
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let mut found = Vec::new();
        for entry in fs::read_dir(directory.unwrap_or(Path::new(".")))? {
            let entry = entry?;
            if let Some(sidecar) = sidecar_of(name, entry.file_name().as_bytes()) {
                found.push((sidecar, entry.path()));
            }
        }
        let has_first = self.first.borrow().is_some();
        for (sidecar, path) in found {
            let file = sidecar.file;
            let is_held = self.held.borrow().contains(&file.0);
            // Whoever still has it open keeps what he has, and removes it himself.
            if file != FIRST_FILE && !is_held && !self.device.try_claim(file.0)? {
                continue;
            }
            // Nobody exchanges the content from here on.
            pool.refresh()?;
            let is_gone = matches!(pool.attributes(file), Err(Error::NotFound { .. }));
            let is_old = match sidecar.generation {
                Some(generation) => {
                    (file != FIRST_FILE || has_first) && generation != pool.generation(file)?
                }
                None => false,
            };
            if is_gone || is_old {
                remove(&path, !is_gone)?;
            }
            if file != FIRST_FILE && !is_held {
                self.device.release(file.0);
            }
        }
        Ok(())
    }
}

/// Nobody need have the database open.
fn busy() -> Reason {
    Reason::new(Code::InUse, Error::Busy.to_string())
}

/// Removes what lies beside a pool; `tells` where it held something.
fn remove(path: &Path, tells: bool) -> Result<(), Reason> {
    let len = fs::metadata(path).map_or(0, |metadata| metadata.len());
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    if tells && len > 0 {
        eprintln!(
            "note: '{}', {len} bytes, belonged to what was there before, and is removed",
            path.display()
        );
    }
    Ok(())
}
