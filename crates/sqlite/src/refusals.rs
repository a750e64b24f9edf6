//! Why a database could not be opened, in words for the user: SQLite's codes do not tell.

use std::cell::RefCell;
use std::path::Path;

use crate::api;
use crate::ffi::SQLITE_BUSY;

/// Who or what is in the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// A mount, or what a program left in one.
    Mount,
    /// A user of the pool by another name.
    OtherName,
    /// A log that belongs to another name of the pool.
    OtherLog,
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
        }
    }
}

thread_local! {
    static LAST: RefCell<Option<Refusal>> = const { RefCell::new(None) };
}

/// Says why a database of a pool cannot be opened.
pub(crate) fn refuse(pool_file: &Path, cause: Cause, text: String) {
    let refusal = Refusal { cause, text };
    let (shown, hint) = (pool_file.display(), refusal.hint());
    api::log(SQLITE_BUSY, &format!("hardpack: {shown}: {}: {hint}", refusal.text));
    LAST.set(Some(refusal));
}

/// Returns, once, why this thread could not open a database last, if that was for other users of
/// it, or for what they left.
pub fn take() -> Option<Refusal> {
    LAST.with_borrow_mut(Option::take)
}
