//! What a connection has already found absent: a journal or a log beside the state that it reads.
//!
//! SQLite asks for both at the beginning of every transaction in a rollback mode. Either matters
//! only if it was there when the state was committed: a journal on disk undoes what was published
//! under it, and a database gets a log by a commit that says so in its header. So as long as a
//! connection reads the same state as when it last asked, the answer is the same: whatever has
//! appeared since belongs to a transaction of which that state has nothing.
//!
//! SQLite asks right after it has taken the shared lock, in the same thread. So this is about the
//! connection that was the last of its thread to take one, until it unlocks or takes a higher lock.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

use hardpack_engine::Txg;

use crate::companion::{self, CompanionKind};

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

/// Identifies an open database in this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reader(u64);

impl Reader {
    /// Returns another one each time.
    pub fn new() -> Reader {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Reader(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// What the connection that was the last to take a shared lock has found absent.
#[derive(Debug)]
struct Last {
    reader: Reader,
    /// SQLite's name of the database.
    name: Vec<u8>,
    txg: Txg,
    /// It has the lock still, and no more than that.
    reads: bool,
    journal: bool,
    log: bool,
}

impl Last {
    fn is_absent(&mut self, kind: CompanionKind) -> Option<&mut bool> {
        match kind {
            CompanionKind::Journal => Some(&mut self.journal),
            CompanionKind::Log => Some(&mut self.log),
            CompanionKind::SuperJournal => None,
        }
    }
}

/// Says that a connection begins to read a state under a shared lock.
pub fn begin(reader: Reader, name: &[u8], txg: Txg) {
    with_last(|last| match last {
        Some(known) if (known.reader, known.txg) == (reader, txg) => known.reads = true,
        _ => {
            let name = name.to_vec();
            *last = Some(Last { reader, name, txg, reads: true, journal: false, log: false });
        }
    });
}

/// Says that a connection has its shared lock no longer, or a higher one.
pub fn end(reader: Reader) {
    with_last(|last| {
        if let Some(known) = last.as_mut().filter(|known| known.reader == reader) {
            known.reads = false;
        }
    });
}

/// Whether the connection that reads has found the file of this name absent.
pub fn is_known(name: &[u8]) -> bool {
    with_known(name, |is_absent| *is_absent).unwrap_or(false)
}

/// Notes that the file of this name is absent.
pub fn note(name: &[u8]) {
    with_known(name, |is_absent| *is_absent = true);
}

/// Says that the connection opens the file of this name, which may create it: a connection keeps
/// its shared lock for as long as it writes to a log.
pub fn forget(name: &[u8]) {
    with_known(name, |is_absent| *is_absent = false);
}

fn with_known<R>(name: &[u8], act: impl FnOnce(&mut bool) -> R) -> Option<R> {
    let (database, kind) = companion::split(name)?;
    with_last(|last| {
        let known = last.as_mut().filter(|known| known.reads && known.name == database)?;
        known.is_absent(kind).map(act)
    })?
}

/// `None` if the thread is ending.
fn with_last<R>(act: impl FnOnce(&mut Option<Last>) -> R) -> Option<R> {
    LAST.try_with(|last| act(&mut last.borrow_mut())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_reader_and_its_state_are_known() {
        let (one, other) = (Reader::new(), Reader::new());
        let (journal, log) = (&b"/p/a.db-journal"[..], &b"/p/a.db-wal"[..]);
        note(journal);
        assert!(!is_known(journal), "nobody reads");
        begin(one, b"/p/a.db", Txg(7));
        assert!(!is_known(journal) && !is_known(log));
        note(journal);
        assert!(is_known(journal) && !is_known(log));
        assert!(!is_known(b"/p/b.db-journal") && !is_known(b"/p/a.db-mj0123EF9AB"));
        end(other);
        assert!(is_known(journal));
        end(one);
        assert!(!is_known(journal), "it reads no longer");
        begin(one, b"/p/a.db", Txg(7));
        assert!(is_known(journal), "the same state");
        begin(one, b"/p/a.db", Txg(8));
        assert!(!is_known(journal), "another state");
        note(log);
        forget(journal);
        assert!(is_known(log), "the other of the two was opened");
        forget(log);
        assert!(!is_known(log), "it was opened");
        note(log);
        begin(other, b"/p/a.db", Txg(8));
        assert!(!is_known(log), "another connection");
        begin(one, b"/p/a.db", Txg(8));
        assert!(!is_known(log), "it is not the last any more");
        end(one);
    }
}
