//! The clock, threads and pauses that the engine takes from the system. Nothing else may use them:
//! `clippy.toml` denies it.
//!
//! A simulation replaces the clock ([`Options::clock`](crate::pool::Options)), does without threads
//! ([`Options::threads`](crate::pool::Options)), and orders those that it starts itself
//! ([`Device::cede`](crate::device::Device::cede)).
//!
//! A thread that the system refuses is no error: its work is done by others, or later.
#![expect(clippy::disallowed_methods, reason = "the one place for them")]

use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// By how much a thread raises its nice value to give way: enough to be preempted at once, while it
/// still gets a tenth of a processor that others want all the time.
#[cfg(target_os = "linux")]
const STEP_BEHIND: libc::c_int = 10;

/// Returns a clock that counts from now.
pub(crate) fn clock() -> Arc<dyn Fn() -> Duration + Send + Sync> {
    let began = Instant::now();
    Arc::new(move || began.elapsed())
}

/// Returns the time that files get, since 1970; nothing if the clock is before that.
pub(crate) fn file_time() -> Option<Duration> {
    SystemTime::now().duration_since(UNIX_EPOCH).ok()
}

/// Returns the number of processors, or 1 if it is unknown.
pub(crate) fn processor_count() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    // To ask takes twenty system calls: limits of control groups are read from files.
    *COUNT.get_or_init(|| thread::available_parallelism().map_or(1, usize::from))
}

/// Returns how long `work` took.
pub(crate) fn time(work: impl FnOnce()) -> Duration {
    let began = Instant::now();
    work();
    began.elapsed()
}

/// Pauses the calling thread.
pub(crate) fn sleep(pause: Duration) {
    thread::sleep(pause);
}

/// Runs `work` on the calling thread and on up to `thread_count - 1` others at once, until all have
/// returned.
pub(crate) fn run_on_threads(thread_count: usize, work: impl Fn() + Sync) {
    thread::scope(|scope| {
        for _ in 1..thread_count {
            // If the system cannot start a thread, the others do its work.
            let _ = thread::Builder::new().spawn_scoped(scope, &work);
        }
        work();
    });
}

/// Runs `work` on up to `thread_count` threads at once that give way to whoever else wants a
/// processor, until all have returned. The calling thread waits: it could not step forward again.
pub(crate) fn run_behind_others(thread_count: usize, work: impl Fn() + Sync) {
    let has_begun = thread::scope(|scope| {
        let started = (0..thread_count).map(|_| {
            let thread = thread::Builder::new().spawn_scoped(scope, || {
                step_behind();
                work();
            });
            thread.is_ok()
        });
        // All of them are to start.
        started.fold(false, |any, one| any | one)
    });
    if !has_begun {
        work();
    }
}

/// Lowers the priority of the calling thread for good.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "a system call")]
fn step_behind() {
    // SAFETY: no memory is passed. On Linux, this concerns the calling thread alone. If it fails,
    // the thread runs as before.
    unsafe { libc::nice(STEP_BEHIND) };
}

#[cfg(not(target_os = "linux"))]
fn step_behind() {}

/// Starts `work` on a thread of its own; returns `None` if the system cannot.
pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<JoinHandle<T>> {
    thread::Builder::new().name(name.into()).spawn(work).ok()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// The nice value of the calling thread.
    fn niceness() -> i32 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        // The name, in brackets, may contain anything. The nice value is the 17th field after it.
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        fields.split(' ').nth(16).unwrap().parse().unwrap()
    }

    #[test]
    fn threads_behind_others_are_the_only_ones_to_step_behind() {
        let own = niceness();
        let found = Mutex::new(Vec::new());
        run_behind_others(3, || found.lock().unwrap().push(niceness()));
        assert_eq!(found.into_inner().unwrap(), [(own + STEP_BEHIND).min(19); 3]);
        assert_eq!(niceness(), own);

        let found = Mutex::new(Vec::new());
        run_on_threads(3, || found.lock().unwrap().push(niceness()));
        assert_eq!(found.into_inner().unwrap(), [own; 3]);
    }
}
