//! How long a connection waits for its turn in a pool: for as long as its busy handler says.
//!
//! A pool admits one transaction at a time, whichever of its files it changes. SQLite asks a busy
//! handler only about its own locks, but hands it to the VFS with SQLITE_FCNTL_BUSYHANDLER. So a
//! timeout or a custom handler is respected here too. A connection without a handler waits a little
//! as well: other databases of the pool, or maintenance, may hold it for a moment, and a program
//! that has its database to itself does not expect that.
#![expect(unsafe_code, reason = "calls the host program's busy handler")]

use std::ffi::{c_int, c_void};
use std::time::Duration;

use crate::system::Stopwatch;

/// How long to wait without a handler.
const WAIT_WITHOUT_HANDLER: Duration = Duration::from_secs(2);
/// How long a checkpoint waits that SQLite runs without asking the busy handler for its own locks.
const WAIT_PASSIVE: Duration = Duration::from_millis(100);

/// How long a commit waits at least that SQLite takes for made already: in exclusive locking mode
/// the connection would go on to show what is not in the pool.
pub const WAIT_MADE: Duration = Duration::from_secs(10);

/// SQLite's function, which counts its calls and asks the connection's handler.
type Call = unsafe extern "C" fn(*mut c_void) -> c_int;

/// The busy handler of a connection.
#[derive(Clone, Debug, Default)]
pub struct BusyHandler {
    handler: Option<(Call, *mut c_void)>,
    /// The transaction has already waited in vain. A handler that has refused keeps refusing for
    /// the rest of the statement, in which SQLite may try again for each page that it wants to
    /// write.
    has_waited: bool,
}

impl BusyHandler {
    /// Stores the handler that SQLite hands over.
    ///
    /// # Safety
    ///
    /// `argument` is that of SQLITE_FCNTL_BUSYHANDLER: a function and its argument, both valid
    /// while the file is open.
    pub unsafe fn set(&mut self, argument: *const c_void) {
        // SAFETY: the caller vouches for both; a NULL function pointer means no handler.
        let (call, with) = unsafe {
            let pair = argument.cast::<*mut c_void>();
            (*pair.cast::<Option<Call>>(), *pair.add(1))
        };
        self.handler = call.map(|call| (call, with));
    }

    /// Starts afresh for the next transaction.
    pub fn reset(&mut self) {
        self.has_waited = false;
    }

    /// Returns a function that says whether to go on waiting.
    pub fn ask(&mut self) -> impl FnMut() -> bool {
        self.ask_at_least(Duration::ZERO)
    }

    /// Returns a function that says whether to go on waiting, which it does not before this has
    /// passed.
    pub fn ask_at_least(&mut self, at_least: Duration) -> impl FnMut() -> bool {
        let (began, mut is_handled, mut is_first) = (Stopwatch::start(), false, true);
        move || {
            // Most transactions hold the pool only for a moment, and the handler may sleep for
            // longer.
            if std::mem::take(&mut is_first) && !self.has_waited {
                return true;
            }
            // SAFETY: this is called while SQLite waits for a method of the open file, in the
            // connection's thread; see `set`.
            if self.handler.is_some_and(|(call, with)| unsafe { call(with) } != 0) {
                is_handled = true;
                return true;
            }
            if is_handled || self.has_waited || began.elapsed() >= WAIT_WITHOUT_HANDLER {
                self.has_waited = true;
                return began.elapsed() < at_least;
            }
            true
        }
    }
}

/// Returns a function that says whether to go on waiting, for a checkpoint that asks no handler.
pub fn ask_nobody() -> impl FnMut() -> bool {
    let began = Stopwatch::start();
    move || began.elapsed() < WAIT_PASSIVE
}
