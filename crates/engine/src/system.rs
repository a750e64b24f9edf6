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
use std::time::{Duration, Instant};

/// Returns a clock that counts from now.
pub(crate) fn clock() -> Arc<dyn Fn() -> Duration + Send + Sync> {
    let began = Instant::now();
    Arc::new(move || began.elapsed())
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

/// Starts `work` on a thread of its own; returns `None` if the system cannot.
pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<JoinHandle<T>> {
    thread::Builder::new().name(name.into()).spawn(work).ok()
}
