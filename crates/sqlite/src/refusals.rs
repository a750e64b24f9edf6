//! Why a database could not be opened, in words for the user: SQLite's codes do not tell.

use std::cell::RefCell;
use std::ffi::c_int;
use std::path::Path;

use crate::api;
use crate::ffi::{SQLITE_BUSY, SQLITE_CANTOPEN};

/// Who or what is in the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// A mount, or what a program left in one.
    Mount,
    /// A user of the pool by another name.
    OtherName,
    /// A log that belongs to another name of the pool.
    OtherLog,
    /// The directory of the pool, where SQLite cannot make what a write-ahead log needs.
    NoLog,
    /// The block device that it is on.
    BlockDevice,
}

/// Why a database could not be opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    pub cause: Cause,
    pub text: String,
}

impl Refusal {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self.cause {
            Cause::Mount => {
                "close it in the mount; what a killed program left is settled by opening it there"
            }
            Cause::OtherName => "use that name, or close it there first",
            Cause::OtherLog => "use that name",
            Cause::BlockDevice => "'hardpack extract' copies it out of a pool there",
            Cause::NoLog => {
                "it needs write permission for the directory: give it, or copy the file, with those \
                 beside it, to where you have it"
            }
        }
    }

    /// The code that SQLite returns for it.
    pub fn code(&self) -> c_int {
        match self.cause {
            Cause::Mount | Cause::OtherName | Cause::OtherLog => SQLITE_BUSY,
            Cause::NoLog | Cause::BlockDevice => SQLITE_CANTOPEN,
        }
    }
}

thread_local! {
    static LAST: RefCell<Option<Refusal>> = const { RefCell::new(None) };
}

/// Says why a database of a pool cannot be opened.
pub(crate) fn refuse(path: &Path, cause: Cause, text: String) {
    let refusal = Refusal { cause, text };
    let (shown, hint) = (path.display(), refusal.hint());
    api::log(refusal.code(), &format!("hardpack: {shown}: {}: {hint}", refusal.text));
    LAST.set(Some(refusal));
}

/// Says that SQLite could not open the log of a database, or the shared memory for it.
pub(crate) fn refuse_log(database: &Path) {
    let text = "it is in write-ahead log mode, for which SQLite makes files beside it, and cannot";
    refuse(database, Cause::NoLog, text.into());
}

/// Says that a database is on a block device, of which SQLite's hosts say that it is empty: what is
/// there would be written over. And what SQLite keeps beside a database, such as its log, would be
/// in `/dev`, which is memory. Returns the code that SQLite returns.
pub(crate) fn refuse_block_device(database: &Path) -> c_int {
    refuse(database, Cause::BlockDevice, "SQLite cannot use a database on a block device".into());
    SQLITE_CANTOPEN
}

/// Returns, once, why this thread could not open a database last, if that was for other users of
/// it, for what they left, for its log, or for where it is.
pub fn take() -> Option<Refusal> {
    LAST.with_borrow_mut(Option::take)
}
