//! Finds and keeps out other users of a pool: programs that have a database open, and other
//! imports. Nothing that they rely on may be changed behind their backs.
//!
//! A process that has a database of a pool open shares the mark of its file ([`open_mark`]). One
//! that imports files shares [`FILLING_MARK`], so that nameless leftovers of dead imports can be
//! told from files still being filled. The marks end with the descriptor or the process.
//!
//! A check also takes: once a database is found unused, this process holds it exclusively until its
//! change is committed. It need not be readable as a database, for that may be the reason to
//! replace it.
//!
//! A rollback of the first file replaces its content in place, under SQLite's lock on the pool. So
//! a connection that has it open and does nothing goes on with the new content. Every other change
//! may take a file away, and is refused while anybody has it open.

mod companions;
mod kept_out;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::{Range, RangeInclusive};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hardpack::open_mark;
use hardpack_engine::device::{Device, FILLING_MARK, FileDevice};
use hardpack_engine::pool::{DirEntry, Edit, Import, Kind, Pool, Refused};
use hardpack_engine::{Error, FileId, Txg};
use rusqlite::Connection;

use crate::contents::database_path;
use crate::failure::{Code, Passage, Reason};
use crate::pool_file::is_database;
use crate::sidecars::{FIRST_FILE, has_sidecar, shared_memory, sidecar_of, without_link};
use crate::{output, publish, signals, sqlite, text};

pub use self::companions::{behind_databases, has_log_in_pool, tell_left_behind};

/// Set in a mark that mounts share, besides the one of all users, while they have the first file
/// open: its content may be replaced in place under SQLite's lock, on which they do not rely.
const MOUNT_BIT: u64 = 1 << 60;
/// How long to wait before asking again for a mark that another process briefly holds exclusively.
const MARK_PAUSE: Duration = Duration::from_millis(5);
/// How long to wait for a database that is locked.
pub const LOCK_WAIT: Duration = Duration::from_secs(2);
/// Up to this many files are held exclusively, whatever they are; beyond it, only databases. For
/// each lock, the system goes through all locks of a file.
const HELD_COUNT: usize = 1024;
/// The number of names of a directory read at a time.
const LIST_COUNT: usize = 256;

/// The marks and locks that keep other users out of files of a pool.
pub struct Users {
    path: PathBuf,
    /// The first file, if it is locked for a change in place. Its descriptor is closed before that
    /// of the marks, whose closing would drop SQLite's locks.
    first: RefCell<Option<Connection>>,
    /// What everybody is kept out of in the turn: marks in ascending order.
    kept_out: Vec<Range<u64>>,
    /// The numbers of the files held exclusively.
    held: RefCell<BTreeSet<u64>>,
    /// The files that an import could not replace, and why.
    refused: RefCell<BTreeMap<u64, Reason>>,
    /// Names of logs and journals that the command brings, and those that it took away.
    brought: RefCell<BTreeSet<(FileId, Vec<u8>)>>,
    cleared: RefCell<Vec<(Vec<u8>, u64)>>,
    device: FileDevice,
}

/// The marks that a mount shares which has a file open.
pub fn mount_marks(file: FileId) -> impl Iterator<Item = u64> {
    let of_first = (file == FIRST_FILE).then_some(MOUNT_BIT | file.0);
    [open_mark(file)].into_iter().chain(of_first)
}

/// Everything at or below a file except directories, in ascending order.
fn files_below(pool: &Pool, file: FileId) -> Result<Vec<FileId>, Error> {
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
    Ok(files)
}

/// The error for a name that an import was to make.
pub fn name_exists() -> Reason {
    Reason::new(Code::Cannot, "it exists already")
}

impl Users {
    pub fn of(path: &Path) -> Result<Users, Reason> {
        let device = FileDevice::open(path)?;
        if device.is_read_only() {
            // Without write access there is nothing to keep others from.
            return Err(Error::ReadOnly("its file cannot be written").into());
        }
        let (first, kept_out, held, refused, brought, cleared) = Default::default();
        let path = without_link(path);
        Ok(Users { path, first, kept_out, held, refused, brought, cleared, device })
    }

    /// Marks an import as running, as long as this lives. If no other import runs, first removes
    /// the leftovers of interrupted ones.
    pub fn begin_import(&self, pool: &Pool) -> Result<(), Reason> {
        if self.device.try_claim(FILLING_MARK)? {
            pool.remove_nameless(&mut |_| false)?;
            self.device.release(FILLING_MARK);
        }
        while !self.device.try_share(FILLING_MARK)? {
            signals::check()?;
            std::thread::sleep(MARK_PAUSE);
        }
        Ok(())
    }

    /// Lets an import ask here before it replaces a file. What appeared after the command had
    /// looked is held like the rest, or refused; [`Users::reason_of`] says why.
    pub fn guard<'p>(&'p self, pool: &'p Pool, import: &mut Import<'p>) {
        import.ask_before_replacing(|file| {
            self.hold_unread(pool, file).map_err(|reason| {
                let why = reason.text.clone();
                self.refused.borrow_mut().insert(file.0, reason);
                why
            })
        });
        import.change_with_names(|edit, directory, name| self.bring(pool, edit, directory, name));
    }

    /// Like [`Users::guard`], for an import that replaces nothing. A name is looked up in the
    /// transaction that makes it, so of several imports at once, one makes it.
    pub fn guard_new<'p>(&'p self, pool: &'p Pool, import: &mut Import<'p>) {
        import.ask_before_replacing(|file| Err(self.note_refused(file, name_exists()).1));
        import.change_with_names(|edit, directory, name| {
            if let Some(old) = edit.lookup(directory, name)? {
                return Ok(Some(self.note_refused(old.file, name_exists())));
            }
            self.bring(pool, edit, directory, name)
        });
    }

    /// Makes room for what an import brings. Returns the file that stands in the way, and why.
    fn bring(
        &self,
        pool: &Pool,
        edit: &mut Edit<'_>,
        directory: FileId,
        name: &[u8],
    ) -> Result<Option<(FileId, String)>, Error> {
        self.note_brought(directory, name);
        let in_the_way = self.try_clear(pool, edit, (directory, name))?;
        Ok(in_the_way.map(|(file, reason)| self.note_refused(file, reason)))
    }

    fn note_refused(&self, file: FileId, reason: Reason) -> (FileId, String) {
        let why = reason.text.clone();
        self.refused.borrow_mut().insert(file.0, reason);
        (file, why)
    }

    /// Why an import refused a path.
    pub fn reason_of(&self, refused: &Refused) -> Reason {
        let known = refused.kept.and_then(|file| self.refused.borrow_mut().remove(&file.0));
        known.unwrap_or_else(|| Reason::new(Code::Cannot, refused.why.clone()))
    }

    /// Takes exclusive hold of a file like [`Users::hold`], but under the pool's lock: a database
    /// with a log is not read, for SQLite may wait for that lock.
    fn hold_unread(&self, pool: &Pool, file: FileId) -> Result<(), Reason> {
        if self.holds(file) {
            return Ok(());
        }
        match has_sidecar(&self.path, pool, file)? {
            true if users_of(&self.path, file).is_empty() => Err(has_log()),
            true => Err(self.in_use_at(pool, file)),
            false => self.hold_settled(pool, file),
        }
    }

    /// Takes exclusive hold of a file that is to be replaced, as long as this lives. Refuses a
    /// database that another process has open, and one with a log or journal next to the pool,
    /// whose changes would be lost.
    pub fn hold(&self, pool: &Pool, file: FileId) -> Result<(), Reason> {
        let had_log = has_sidecar(&self.path, pool, file)?;
        if had_log && !self.is_unreadable(pool, file)? {
            let users = users_of(&self.path, file);
            return Err(if users.is_empty() { has_log() } else { have_it_open(&users) });
        }
        self.hold_settled(pool, file)?;
        // A process may have come and died meanwhile.
        let has_new_log = !had_log && has_sidecar(&self.path, pool, file)?;
        if has_new_log { Err(has_log()) } else { Ok(()) }
    }

    /// Takes exclusive hold of a file whose log, if any, does not matter. Of very many files, only
    /// databases are held.
    fn hold_settled(&self, pool: &Pool, file: FileId) -> Result<(), Reason> {
        let is_kept = file == FIRST_FILE || self.held.borrow().len() < HELD_COUNT;
        if is_kept || is_database(&*pool.file(file)?)? {
            return self.claim(pool, &[file]);
        }
        if self.device.is_marked(open_mark(file))? {
            Err(self.in_use_at(pool, file))
        } else {
            Ok(())
        }
    }

    /// Takes exclusive hold of a file, or of everything below a directory, as long as this lives.
    /// Fails if another process uses any of it. Logs do not matter here: they are removed as well.
    pub fn hold_all(&self, pool: &Pool, file: FileId) -> Result<(), Reason> {
        self.claim(pool, &files_below(pool, file)?)
    }

    /// Removes a name and everything below it. What appears there meanwhile is held before it goes,
    /// so nothing is taken away from a process that opens it now.
    pub fn remove(
        &self,
        pool: &Pool,
        directory: FileId,
        entry: &DirEntry,
        now_ns: i64,
    ) -> Result<(), Reason> {
        self.hold_all(pool, entry.file)?;
        let refused = Passage::default();
        let mut hold = |entry: &DirEntry| match entry.kind {
            Kind::Directory => Ok(()),
            _ => refused.pass(self.claim(pool, &[entry.file])),
        };
        let goes_on = &mut |_| !signals::is_interrupted();
        let done = pool.remove_entry(directory, entry, now_ns, &mut hold, goes_on);
        done.map_err(|error| refused.reason(error))
    }

    /// Takes exclusive hold of files, whose numbers must be in ascending order, or of none of them.
    fn claim(&self, pool: &Pool, files: &[FileId]) -> Result<(), Reason> {
        let mut held = self.held.borrow_mut();
        let new: Vec<u64> = files.iter().map(|file| file.0).filter(|n| !held.contains(n)).collect();
        let claimed = self.claim_new(pool, &new);
        match claimed {
            Ok(()) => held.extend(&new),
            Err(_) => new.iter().for_each(|number| self.device.release(*number)),
        }
        claimed
    }

    fn claim_new(&self, pool: &Pool, numbers: &[u64]) -> Result<(), Reason> {
        for run in numbers.chunk_by(|one, next| one + 1 == *next) {
            let (Some(start), Some(last)) = (run.first(), run.last()) else { continue };
            // Other processes hold a mark exclusively only for a moment.
            if let Some(number) = self.device.claim_unused(*start..last + 1)?.first() {
                return Err(self.in_use_at(pool, FileId(*number)));
            }
        }
        if numbers.contains(&FIRST_FILE.0) { self.claim_first(pool) } else { Ok(()) }
    }

    /// Keeps everybody from opening the first file. Fails if another process has it open.
    fn claim_first(&self, pool: &Pool) -> Result<(), Reason> {
        // A connection of this process would be in the way.
        self.first.replace(None);
        match self.device.try_claim(open_mark(FIRST_FILE))? {
            true => Ok(()),
            false => Err(self.in_use_at(pool, FIRST_FILE)),
        }
    }

    /// Locks the first file as SQLite does, so that its content can be replaced in place.
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

    /// Whether a commit to the pool is under way, of whichever database: then no database can be
    /// locked.
    fn is_written(&self) -> Result<bool, Reason> {
        let is_free = self.device.try_lock_writer()?;
        if is_free {
            self.device.unlock_writer();
        }
        Ok(!is_free)
    }

    /// Whether SQLite cannot read a file, and so cannot apply a log next to it either.
    fn is_unreadable(&self, pool: &Pool, file: FileId) -> Result<bool, Reason> {
        let path = database_path(&self.path, &pool.path_of(file)?);
        let read = sqlite::open_any(&path, LOCK_WAIT)
            .and_then(|db| db.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(())));
        Ok(read.is_err_and(|error| sqlite::is_unreadable(&error)))
    }

    /// The error for a file that another process has open.
    fn in_use(&self, file: FileId) -> Reason {
        have_it_open(&users_of(&self.path, file))
    }

    fn in_use_at(&self, pool: &Pool, file: FileId) -> Reason {
        let reason = self.in_use(file);
        match pool.path_of(file) {
            Ok(path) => reason.hint(format!("close '{}' there first", text::escaped(&path))),
            Err(_) => reason,
        }
    }

    /// Whether this file is held exclusively.
    pub fn holds(&self, file: FileId) -> bool {
        self.held.borrow().contains(&file.0)
    }

    /// Whether any file is held exclusively.
    pub fn has_held(&self) -> bool {
        !self.held.borrow().is_empty()
    }

    /// Removes the files next to the pool that belong to databases no longer in it, and the logs of
    /// replaced content; then lets everybody in again.
    pub fn finish(self, pool: &Pool) -> Result<(), Reason> {
        self.tell_cleared();
        self.remove_leftovers(pool)
    }

    fn remove_leftovers(&self, pool: &Pool) -> Result<(), Reason> {
        let name = self.path.file_name().unwrap_or_default().as_bytes();
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let mut found = Vec::new();
        let entries = match fs::read_dir(directory.unwrap_or(Path::new("."))) {
            // What is left does no harm.
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            if let Some(sidecar) = sidecar_of(name, entry.file_name().as_bytes()) {
                found.push((sidecar, entry.path()));
            }
        }
        let has_first = self.first.borrow().is_some() || self.held.borrow().contains(&FIRST_FILE.0);
        for (sidecar, path) in found {
            let file = sidecar.file;
            let is_held = self.held.borrow().contains(&file.0);
            // A process that still has it open removes its files itself.
            if file != FIRST_FILE && !is_held && !self.device.try_claim(file.0)? {
                continue;
            }
            // From here on nobody can exchange the content.
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

/// Removes the shared memory of a database that nobody has open.
pub fn remove_unused_memory(pool: &Path, file: FileId) -> std::io::Result<()> {
    let device = FileDevice::open(pool)?;
    match device.try_claim(open_mark(file))? {
        true => fs::remove_file(shared_memory(pool, file)),
        false => Ok(()),
    }
}

/// The other processes that have a database of a pool open, as far as they can be seen, each with
/// its number.
pub fn users_of(pool: &Path, file: FileId) -> Vec<String> {
    let byte = FileDevice::offset_of(open_mark(file));
    holders(pool, |range| range.contains(&byte))
}

/// The other processes in which somebody reads a state of a pool, as far as they can be seen, each
/// with its number.
pub fn readers_of(pool: &Path, txg: Txg) -> Vec<String> {
    holders(pool, |range| FileDevice::is_pin(range, txg.0))
}

fn holders(pool: &Path, fits: impl Fn(&RangeInclusive<u64>) -> bool) -> Vec<String> {
    let found = fs::metadata(pool).map(|pool| publish::holders(&pool, fits));
    let named = |(pid, name): (u32, String)| format!("{name} (process {pid})");
    found.unwrap_or_default().into_iter().map(named).collect()
}

/// The error for a database that these processes have open.
fn have_it_open(users: &[String]) -> Reason {
    let text = match users {
        [] => "another program has it open".into(),
        [one] => format!("{one} has it open"),
        [rest @ .., last] => format!("{} and {last} have it open", rest.join(", ")),
    };
    Reason::new(Code::InUse, text).hint("close it there first")
}

/// The error for a database of which the pool does not hold everything.
fn has_log() -> Reason {
    Reason::new(Code::InUse, "part of it is still in a log or journal next to the pool").hint(
        "open the database once while nobody else uses it; that moves the changes into the pool",
    )
}

/// The error while a commit is under way; nobody need have the database open.
fn busy() -> Reason {
    Reason::new(Code::InUse, Error::Busy.to_string())
}

/// Removes a file next to a pool; with `tells`, prints a note unless it was empty.
fn remove(path: &Path, tells: bool) -> Result<(), Reason> {
    let len = fs::metadata(path).map_or(0, |metadata| metadata.len());
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    if tells && len > 0 {
        output::tell(format_args!(
            "note: removed '{}' ({len} bytes), which belonged to the replaced content",
            text::path(path)
        ));
    }
    Ok(())
}
