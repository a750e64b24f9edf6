//! How long a connection waits for its turn in a pool: as long as its busy handler says.
//!
//! The pool lets one transaction in at a time, of whichever file. SQLite asks its busy handler only about its own
//! locks, and hands it to the VFS with SQLITE_FCNTL_BUSYHANDLER: whoever has set a timeout, or a handler of his own, is
//! obeyed here too. Who has set none is made to wait a little all the same: other databases of the pool, or maintenance, may
//! have it for a moment, of which a program that has its database for itself knows nothing.

use std::ffi::{c_int, c_void};
use std::time::{Duration, Instant};

/// How long to wait where no handler is set.
const WAIT_WITHOUT_HANDLER: Duration = Duration::from_secs(2);
/// How long a checkpoint waits that SQLite makes without asking the busy handler for its own locks.
const WAIT_PASSIVE: Duration = Duration::from_millis(100);

/// SQLite's function, which counts how often it was called and asks the connection's handler.
type Call = unsafe extern "C" fn(*mut c_void) -> c_int;

/// The busy handler of a connection.
#[derive(Debug, Default)]
pub struct BusyHandler {
    handler: Option<(Call, *mut c_void)>,
    /// The transaction has waited in vain already. A handler that has said no goes on doing so for the rest of the
    /// statement, in which SQLite may come again for each page that it would like to write.
    has_waited: bool,
}

impl BusyHandler {
    /// Takes the handler that SQLite hands over.
    ///
    /// # Safety
    ///
    /// `argument` is that of SQLITE_FCNTL_BUSYHANDLER: a function, and what to call it with, which are valid as long as
    /// the file is open.
    pub unsafe fn set(&mut self, argument: *const c_void) {
        // SAFETY: the caller vouches for the two; a function pointer may be NULL, which is none.
        let (call, with) = unsafe {
            let pair = argument.cast::<*mut c_void>();
            (*pair.cast::<Option<Call>>(), *pair.add(1))
        };
        self.handler = call.map(|call| (call, with));
    }

    /// The transaction has ended.
    pub fn reset(&mut self) {
        self.has_waited = false;
    }

    /// What says whether to go on waiting.
    pub fn ask(&mut self) -> impl FnMut() -> bool {
        let (began, mut is_handled, mut is_first) = (Instant::now(), false, true);
        move || {
            // Most transactions have the pool for a moment only, and the handler may sleep for longer.
            if std::mem::take(&mut is_first) && !self.has_waited {
                return true;
            }
            // SAFETY: this is called while SQLite waits for a method of the open file, in the thread that has the
            // connection; see `set`.
            if self.handler.is_some_and(|(call, with)| unsafe { call(with) } != 0) {
                is_handled = true;
                return true;
            }
            if is_handled || self.has_waited || began.elapsed() >= WAIT_WITHOUT_HANDLER {
                self.has_waited = true;
                return false;
            }
            true
        }
    }
}

/// What says so for a checkpoint for which nobody is to be asked.
pub fn ask_nobody() -> impl FnMut() -> bool {
    let began = Instant::now();
    move || began.elapsed() < WAIT_PASSIVE
}
