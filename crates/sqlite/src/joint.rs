//! Transactions across databases of one pool: one commit of the pool.
//!
//! SQLite commits a transaction across several files by deleting a super-journal, which the journal
//! of each file names (see `super_journal.rs`). If all of them are databases of one pool, the pool
//! can do better:
//!
//! ```text
//! SQLite                                 here
//! super-journal: xOpen, names, xSync     kept in memory, if all databases are of one pool
//! each file: journal names it            the name is left out; the journal stays in memory
//! each file: writes, SYNC, xSync         its changes are held
//! super-journal: xDelete                 all that is held becomes one txg, with one sync
//! each file: COMMIT_PHASETWO             nothing is left to do
//! ```
//!
//! * Until xDelete nothing is committed, and nothing lies on disk that a crash would leave behind.
//! * If xDelete fails, nothing has changed, and SQLite rolls back each database from its journal.
//!   Without the name in it, no journal depends on a super-journal that nobody can look for.
//! * Whoever finds the pool held waits as long as the connection's busy handler says. SQLite cannot
//!   retry a deletion, so after a wait in vain it rolls back; the code is SQLITE_BUSY_TIMEOUT.
//! * One database of another pool, a plain one or one in WAL mode among them, or a journal on disk,
//!   makes the super-journal an ordinary one.
//!
//! SQLite does all of this in one thread, in one call. So what is gathered belongs to the thread. A
//! transaction that fails halfway is never deleted; the next one takes its place.

use std::cell::RefCell;
use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use hardpack_engine::Error;
use hardpack_engine::pool::File;
use hardpack_engine::store::Durability;

use crate::busy::BusyHandler;
use crate::codes::code;
use crate::companion::{self, CompanionKind};
use crate::ffi::{SQLITE_BUSY, SQLITE_BUSY_TIMEOUT, SQLITE_IOERR_FSYNC, SQLITE_OK};
use crate::registry;

/// A database turned out to be only a piece of what SQLite takes for its file. So its announcement
/// says nothing about the other pieces, and from then on all super-journals are ordinary ones.
static HAS_PIECES: AtomicBool = AtomicBool::new(false);

thread_local! {
    static CURRENT: RefCell<Option<Joint>> = const { RefCell::new(None) };
}

/// The transaction across databases of one pool that the thread is about to commit.
#[derive(Debug)]
struct Joint {
    /// SQLite's name of the super-journal.
    name: Vec<u8>,
    /// The databases whose changes are held. They belong to their connections.
    files: Vec<Weak<File>>,
    /// The strongest that any of them asks for.
    durability: Durability,
    busy: BusyHandler,
    /// One of the databases, for messages.
    path: PathBuf,
    outcome: Arc<Outcome>,
}

/// What became of a transaction across databases, for each of these.
#[derive(Debug, Default)]
pub struct Outcome(AtomicBool);

impl Outcome {
    /// Whether it was committed.
    pub fn is_committed(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Looks at what the thread gathers. `None` where that is gone already: a program may use SQLite in
/// handlers of `exit` and destructors of C++, which run after those of the thread. Then nothing is
/// gathered, and super-journals are ordinary ones.
fn with_current<T>(act: impl FnOnce(&mut Option<Joint>) -> T) -> Option<T> {
    CURRENT.try_with(|current| act(&mut current.borrow_mut())).ok()
}

/// Begins to gather, if these databases can be committed together. `journals` are the names of
/// their journals, each followed by a NUL byte. Returns whether they can.
pub fn begin(super_journal: &[u8], journals: &[u8]) -> bool {
    let names = journals.strip_suffix(&[0]).unwrap_or(journals).split(|byte| *byte == 0);
    let of_journal = |name| match companion::split(name)? {
        (database, CompanionKind::Journal) => Some(database),
        _ => None,
    };
    let databases: Option<Vec<&[u8]>> = names.map(of_journal).collect();
    let can = !HAS_PIECES.load(Ordering::Relaxed)
        && databases.is_some_and(|databases| {
            registry::have_one_writer(&databases)
                && !databases.iter().any(|name| companion::has_journal_content(name))
        });
    let joint = can.then(|| Joint {
        name: super_journal.to_vec(),
        files: Vec::new(),
        durability: Durability::Visible,
        busy: BusyHandler::default(),
        path: PathBuf::new(),
        outcome: Arc::default(),
    });
    with_current(|current| *current = joint).is_some() && can
}

/// Forgets what was gathered for a transaction that was never committed.
pub fn reset() {
    with_current(|current| *current = None);
}

/// Whether the thread gathers the transaction of this super-journal.
pub fn is_current(super_journal: &[u8]) -> bool {
    with_current(|current| current.as_ref().is_some_and(|current| current.name == super_journal))
        .unwrap_or(false)
}

/// Holds the changes of a database until the super-journal is deleted. Returns where to look for
/// what became of them, or `None` if the thread does not gather for this super-journal.
pub fn hold(
    super_journal: &[u8],
    file: &Arc<File>,
    busy: &BusyHandler,
    path: &std::path::Path,
) -> Option<Arc<Outcome>> {
    with_current(|current| {
        let current = current.as_mut().filter(|current| current.name == super_journal)?;
        current.files.push(Arc::downgrade(file));
        current.busy = busy.clone();
        current.path = path.into();
        Some(Arc::clone(&current.outcome))
    })
    .flatten()
}

/// Notes that a database asks for durability. Returns whether its changes are still held.
pub fn harden(outcome: &Arc<Outcome>) -> bool {
    with_current(|current| {
        let current = current.as_mut().filter(|current| Arc::ptr_eq(&current.outcome, outcome));
        let is_held = current.is_some();
        if let Some(current) = current {
            current.durability = Durability::Durable;
        }
        is_held
    })
    .unwrap_or(false)
}

/// Lets go of the changes of a database that is rolled back.
pub fn leave(outcome: &Arc<Outcome>, file: &Arc<File>) {
    with_current(|current| {
        if let Some(current) = current.as_mut().filter(|c| Arc::ptr_eq(&c.outcome, outcome)) {
            current.files.retain(|held| !std::ptr::eq(held.as_ptr(), Arc::as_ptr(file)));
        }
    });
}

/// Makes all further super-journals ordinary ones.
pub fn note_pieces() {
    HAS_PIECES.store(true, Ordering::Relaxed);
}

/// Commits what is held, when SQLite deletes a super-journal. Returns SQLite's code, or `None` if
/// the thread gathers nothing for this one.
pub fn delete(super_journal: &[u8]) -> Option<c_int> {
    let mut joint =
        with_current(|current| current.take_if(|current| current.name == super_journal))
            .flatten()?;
    let files: Vec<Arc<File>> = joint.files.iter().filter_map(Weak::upgrade).collect();
    if files.is_empty() {
        return Some(SQLITE_OK);
    }
    let all: Vec<&File> = files.iter().map(|file| &**file).collect();
    let done = File::commit_together(&all, joint.durability, &mut joint.busy.ask());
    Some(match done {
        Ok(()) => {
            joint.outcome.0.store(true, Ordering::Release);
            SQLITE_OK
        }
        Err(error) => {
            if matches!(error, Error::Busy) {
                // SQLite rolls back.
                files.iter().for_each(|file| file.abandon());
            }
            match code(&error, SQLITE_IOERR_FSYNC, &joint.path) {
                SQLITE_BUSY => SQLITE_BUSY_TIMEOUT,
                code => code,
            }
        }
    })
}
