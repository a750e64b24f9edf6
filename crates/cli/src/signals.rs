//! Ctrl-C and similar signals: long work stops at its next step and cleans up.
//!
//! The signals are blocked in every thread, and one thread waits for them. The first asks the work
//! to stop: the engine between two records, the commands between two steps. Work that does not get
//! there in time (it compresses a long record, or waits for a pipe, a disk or a lock) is abandoned:
//! the waiting thread removes unfinished files, says what is left behind, and ends the process. A
//! second signal does so at once. For a pool that is safe at any point, as a crash would be.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::failure::{Code, Reason};
use crate::{sys, text};

/// How long work may take to reach its next step after the first signal.
const GRACE: Duration = Duration::from_millis(500);
/// How long a message may take. Nobody need be reading the other end of stderr.
const MESSAGE_TIME: Duration = Duration::from_millis(200);

/// How long to wait for input before looking for signals.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// How long it may then take to keep what arrived.
const FINISH_TIME: Duration = Duration::from_secs(10);

/// Whether the work has stopped, and only keeps what arrived.
static IS_FINISHING: AtomicBool = AtomicBool::new(false);
static IS_INTERRUPTED: AtomicBool = AtomicBool::new(false);
static LEFT_BEHIND: OnceLock<&'static str> = OnceLock::new();
static FILES: Mutex<Files> = Mutex::new(Files {
    unfinished: BTreeSet::new(),
    finished: None,
    beside: Vec::new(),
    children: BTreeSet::new(),
});

/// What to tell about a command that leaves nothing.
pub const NOTHING: &str = "nothing unfinished is left behind";

/// The files that matter if the process ends early.
pub struct Files {
    /// Files to remove.
    pub unfinished: BTreeSet<PathBuf>,
    /// The last file that got its final name.
    pub finished: Option<PathBuf>,
    /// SQLite's files next to databases that this process has open; it made them.
    beside: Vec<PathBuf>,
    /// The numbers of running programs that work for this process. The signals that end it are
    /// blocked in them, too.
    pub children: BTreeSet<u32>,
}

/// Starts waiting for signals. Must be called before any other thread is started. `left_behind`
/// says what an interrupted command leaves.
pub fn catch(left_behind: &'static str) {
    let _ = LEFT_BEHIND.set(left_behind);
    let Ok(signals) = sys::block_ending_signals() else { return };
    // Without the thread the signals stay blocked; SIGKILL still works.
    let _ = std::thread::Builder::new().name("signals".into()).spawn(move || {
        if !signals.wait(None) {
            return;
        }
        // Said first: work that stops at once may end the process before anything else is said.
        say("hardpack: stopping; a second signal ends at once".into());
        IS_INTERRUPTED.store(true, Ordering::SeqCst);
        if !signals.wait(Some(GRACE)) && IS_FINISHING.load(Ordering::SeqCst) {
            signals.wait(Some(FINISH_TIME));
        }
        end();
    });
}

/// Removes unfinished files, kills the programs that work for this process, says what is left
/// behind, and ends the process.
pub fn end() -> ! {
    // Held to the end, so that no other thread goes on with files.
    let files = files();
    for path in &files.unfinished {
        let _ = std::fs::remove_file(path);
    }
    for child in &files.children {
        let pid = i32::try_from(*child).ok().and_then(Pid::from_raw);
        let _ = pid.map(|pid| kill_process(pid, Signal::KILL));
    }
    let mut text = match &files.finished {
        Some(path) => format!("hardpack: interrupted; '{}' is complete\n", text::path(path)),
        None => "hardpack: interrupted\n".into(),
    };
    text.push_str(&format!("note: {}", left_behind().unwrap_or(NOTHING)));
    for path in files.beside.iter().filter(|path| path.exists()) {
        text.push_str(&format!(
            "\nnote: '{}' is left; SQLite removes it when the database is closed next",
            text::path(path)
        ));
    }
    say(text);
    std::process::exit(Code::Interrupted as i32);
}

/// Writes a message to stderr, unless that takes too long.
fn say(text: String) {
    briefly(move || {
        use std::io::{IsTerminal, stderr};
        // A progress bar may be in this line.
        let before = if stderr().is_terminal() { "\n" } else { "" };
        let _ = stderr().write_all(format!("{before}{text}\n").as_bytes());
    });
}

/// Writes what nobody need be reading: in a thread of its own, which is left alone if that takes
/// too long.
pub fn briefly(write: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    let write = move || {
        write();
        let _ = done.send(());
    };
    if std::thread::Builder::new().spawn(write).is_ok() {
        let _ = is_done.recv_timeout(MESSAGE_TIME);
    }
}

/// What the command leaves behind when it is interrupted; `None` if signals end it at once.
pub fn left_behind() -> Option<&'static str> {
    LEFT_BEHIND.get().copied()
}

/// A pipe that does not keep the work from stopping. Once a read has failed for that reason, the
/// work has more time to keep what arrived before.
pub struct Interruptible<T>(pub T);

impl<T: Read + AsFd> Read for Interruptible<T> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let is_readable = sys::is_readable(self.0.as_fd(), LOOK_INTERVAL)?;
            refuse_interrupted().inspect_err(|_| IS_FINISHING.store(true, Ordering::SeqCst))?;
            if is_readable {
                return self.0.read(buf);
            }
        }
    }
}

/// Standard input, as a pipe that does not keep the work from stopping.
pub fn stdin() -> io::Result<Interruptible<File>> {
    let stdin = io::stdin().as_fd().try_clone_to_owned()?;
    Ok(Interruptible(File::from(stdin)))
}

impl<T: Write> Write for Interruptible<T> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        refuse_interrupted()?;
        self.0.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Fails if a signal has asked the work to stop. Not with [`io::ErrorKind::Interrupted`], after
/// which readers try again.
fn refuse_interrupted() -> io::Result<()> {
    if is_interrupted() { Err(io::Error::other("interrupted")) } else { Ok(()) }
}

/// Whether a signal has asked the work to stop.
pub fn is_interrupted() -> bool {
    IS_INTERRUPTED.load(Ordering::Relaxed)
}

/// Fails if a signal has asked the work to stop.
pub fn check() -> Result<(), Reason> {
    if is_interrupted() { Err(Reason::interrupted()) } else { Ok(()) }
}

/// Locks the list of files to remove if the process ends early. While the guard is held, the
/// process does not end because of a signal.
pub fn files() -> MutexGuard<'static, Files> {
    FILES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes the files that SQLite is about to make next to a database.
pub fn note_beside(database: &Path) {
    let new = ["-wal", "-shm"].map(|ending| crate::sqlite::beside(database, ending));
    files().beside.extend(new.into_iter().filter(|path| !path.exists()));
}
