//! Signals while the shell is used on a terminal: Ctrl-C stops what runs, and not the shell.
//!
//! The signals that end a process are blocked in every thread, and one thread waits for them. What
//! Ctrl-C does depends on what the shell does at that moment:
//!
//! * A line runs: SQLite interrupts its statement, and dot commands stop at their next step. A
//!   second Ctrl-C ends the process if the line does not end.
//! * The editor reads a line: Ctrl-C is a key that it reads. A signal was meant for a line that has
//!   ended since, so nothing happens.
//! * The database is opened or closed: the process ends.
//!
//! SIGTERM and SIGHUP end the process at any time. At the prompt, the terminal first gets back the
//! settings that the editor has changed.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::{Connection, InterruptHandle};
use rustix::termios::{self, OptionalActions, Termios};

use super::TIMEOUT;
use crate::failure::Reason;
use crate::signals;
use crate::sys::{self, EndingSignal, EndingSignals};

/// How long a line may take to end before SQLite is asked again. SQLite forgets an interrupt that
/// finds no statement running, and the next statement of the line may just be starting.
const AGAIN: Duration = Duration::from_millis(100);
/// How long to wait before asking again for a lock of another process.
const LOCK_PAUSE: Duration = Duration::from_millis(10);
/// Ends the mode in which a terminal marks pasted text, and goes to the next line.
const LEAVE_EDITOR: &[u8] = b"\x1b[?2004l\n";

static STATE: Mutex<State> = Mutex::new(State { doing: Doing::Other, db: None, is_held: false });

struct State {
    doing: Doing,
    /// The connection to interrupt.
    db: Option<InterruptHandle>,
    /// Whether SQLite must not be interrupted now.
    is_held: bool,
}

/// What the shell does.
enum Doing {
    /// It opens or closes the database.
    Other,
    /// It reads a line on a terminal that had these settings before.
    Reads(Option<Termios>),
    /// It runs a line.
    Runs { is_interrupted: bool },
}

impl State {
    fn interrupt(&self) {
        if let (Some(db), false) = (&self.db, self.is_held) {
            db.interrupt();
        }
    }
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts waiting for signals. Must be called before any other thread is started.
pub fn catch() {
    let Ok(signals) = sys::block_ending_signals() else { return };
    // Without the thread the signals stay blocked; SIGKILL still works.
    let _ = std::thread::Builder::new().name("signals".into()).spawn(move || wait(&signals));
}

fn wait(signals: &EndingSignals) {
    let mut again = None;
    loop {
        let signal = signals.next(again);
        let mut state = state();
        match (signal, &mut state.doing) {
            (None, _) => {}
            (Some(signal), Doing::Reads(_)) if signal.is_ctrl_c() => {}
            (Some(signal), Doing::Runs { is_interrupted: is_interrupted @ false })
                if signal.is_ctrl_c() =>
            {
                *is_interrupted = true;
            }
            // The lock is held to the end: the editor must not change the terminal again.
            (Some(signal), doing) => end_process(signal, doing),
        }
        again = None;
        if let Doing::Runs { is_interrupted: true } = state.doing {
            state.interrupt();
            again = Some(AGAIN);
        }
    }
}

fn end_process(signal: EndingSignal, doing: &Doing) -> ! {
    if let Doing::Reads(Some(settings)) = doing {
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, settings);
        signals::briefly(|| {
            let _ = rustix::io::write(io::stdout(), LEAVE_EDITOR);
        });
    }
    signal.end_process()
}

/// Makes Ctrl-C reach this connection, also while it waits for a lock of another process.
pub fn watch(db: &mut Connection) -> rusqlite::Result<()> {
    state().db = Some(db.get_interrupt_handle());
    let mut since = Instant::now();
    db.busy_handler(Some(move |count| {
        if count == 0 {
            since = Instant::now();
        }
        let is_patient = is_worth_waiting(since);
        if is_patient {
            std::thread::sleep(LOCK_PAUSE);
        }
        is_patient
    }))
}

/// Whether to wait on for a lock that was first asked for at that time.
fn is_worth_waiting(since: Instant) -> bool {
    check().is_ok() && since.elapsed() < TIMEOUT
}

/// Reads a line with an editor, which may change the settings of the terminal meanwhile. Until the
/// next call, the line runs.
pub fn reading<T>(read: impl FnOnce() -> T) -> T {
    // What the editor is about to change, and puts back itself if no signal comes.
    let settings = termios::tcgetattr(io::stdin()).ok();
    state().doing = Doing::Reads(settings);
    let line = read();
    state().doing = Doing::Runs { is_interrupted: false };
    line
}

/// The last line has run: Ctrl-C ends the process again.
pub fn end() {
    state().doing = Doing::Other;
}

/// Fails if Ctrl-C was pressed since the line began to run.
pub fn check() -> Result<(), Reason> {
    match state().doing {
        Doing::Runs { is_interrupted: true } => Err(Reason::interrupted()),
        _ => Ok(()),
    }
}

/// Keeps SQLite from being interrupted while it lives, for statements that must run to their end.
pub struct Held;

pub fn hold() -> Held {
    state().is_held = true;
    Held
}

impl Drop for Held {
    fn drop(&mut self) {
        state().is_held = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ctrl_c_ends_a_wait_for_a_lock() {
        let now = Instant::now();
        state().doing = Doing::Runs { is_interrupted: false };
        assert!(is_worth_waiting(now));
        state().doing = Doing::Runs { is_interrupted: true };
        assert!(!is_worth_waiting(now));
        end();
        assert!(now.checked_sub(TIMEOUT).is_none_or(|long_ago| !is_worth_waiting(long_ago)));
    }
}
