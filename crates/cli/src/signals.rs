//! Ctrl-C and its like: long work ends at the next step and cleans up after itself.
//!
//! The signals are blocked in every thread, and one thread waits for them. The first asks the work
//! to stop; a second does not wait for that, removes the unfinished file and ends the process.

use std::path::PathBuf;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::failure::{Code, Reason};
use crate::sys;

static RECEIVED: AtomicI32 = AtomicI32::new(0);
static UNFINISHED: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Starts to wait for signals. To be called before any other thread is started.
pub fn catch() {
    if sys::block_ending_signals().is_err() {
        return;
    }
    // Without the thread the signals stay blocked; there is always SIGKILL.
    let _ = std::thread::Builder::new().name("signals".into()).spawn(|| {
        while let Ok(signal) = sys::wait_for_ending_signal() {
            if RECEIVED.swap(signal, Ordering::SeqCst) != 0 {
                if let Some(path) = unfinished().as_ref() {
                    let _ = std::fs::remove_file(path);
                }
                std::process::exit(Code::Interrupted as i32);
            }
        }
    });
}

/// Whether a signal asked to stop.
pub fn is_interrupted() -> bool {
    RECEIVED.load(Ordering::Relaxed) != 0
}

/// An error if a signal asked to stop.
pub fn check() -> Result<(), Reason> {
    if is_interrupted() { Err(Reason::new(Code::Interrupted, "interrupted")) } else { Ok(()) }
}

/// The file to remove if the process is ended early. While this is held, it is not.
pub fn unfinished() -> MutexGuard<'static, Option<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}
