//! Background maintenance: folding when the pool is idle and, with `compression=auto`,
//! recompressing records that have stayed cold.
//!
//! Each pool that this process writes to has one thread, started by the first commit. It waits
//! until there was no commit for a moment, then works in small steps until nothing is left to do or
//! somebody commits again. The engine compresses outside of its transactions, so a writer waits at
//! most for an exchange of pointers. A property of the file limits how much processor time and disk
//! bandwidth the thread takes. The thread visits only files that this process has changed: a pool
//! may hold very many.
//!
//! Nothing depends on this work, and failures are not reported: unfinished work is left for the
//! next time, and whoever reads damaged data finds and reports it. A pool has at most one thread.
//! The thread holds the pool's descriptor, so it is stopped and joined before the pool is closed.
//! It does not exist in a forked child, see `registry/`.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use hardpack_engine::pool::{Fold, Pool, Settings, Step, StepLimits};
use hardpack_engine::store::Patience;
use hardpack_engine::{Error, FileId, Result, Txg};

use crate::system::{self, Stopwatch};

/// The pool is idle after this long without a commit.
const IDLE_TIME: Duration = Duration::from_millis(100);
/// A record is cold if it was not written for this long, as far as this process knows.
const COLD_TIME: Duration = Duration::from_secs(30);
/// How much one step rewrites, in bytes. It is small, so that a returning writer need not wait.
const STEP_LEN: u64 = 512 << 10;
/// How much is folded when the pool is closed, in bytes: a few dozen milliseconds of work.
const CLOSE_LEN: u64 = 8 << 20;
/// A dictionary is worth training for at least this many bytes of patch extents.
const PATCHED_LEN_MIN: u64 = 512 << 10;
/// The longest pause between two steps, so that even a small share of the machine makes progress.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// The maintenance of one pool.
#[derive(Debug)]
pub struct Maintenance {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<Seen>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Seen {
    commits: u64,
    /// The files that this process has changed.
    files: BTreeSet<FileId>,
    stop: bool,
    /// Somebody is waiting for the next commit.
    wants_commit: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, Seen> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for `time`. Returns whether there was neither a commit nor a request to stop
    /// meanwhile.
    fn is_quiet_for(&self, seen: u64, time: Duration) -> bool {
        // Commits do not wake this up: there may be thousands a second.
        let (state, _) = self
            .changed
            .wait_timeout_while(self.state(), time, |state| !state.stop)
            .unwrap_or_else(PoisonError::into_inner);
        !state.stop && state.commits == seen
    }

    /// Waits for a commit after `seen`, at most for `time` if that is given. Returns whether there
    /// was neither a commit nor a request to stop.
    fn wait_for_commit(&self, seen: u64, time: Option<Duration>) -> bool {
        let mut state = self.state();
        state.wants_commit = true;
        let waits = |state: &mut Seen| !state.stop && state.commits == seen;
        let mut state = match time {
            Some(time) => {
                let waited = self.changed.wait_timeout_while(state, time, waits);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => self.changed.wait_while(state, waits).unwrap_or_else(PoisonError::into_inner),
        };
        state.wants_commit = false;
        waits(&mut state)
    }

    fn is_stopped(&self) -> bool {
        self.state().stop
    }
}

impl Maintenance {
    /// Makes the maintenance of a pool, without starting it.
    pub fn new() -> Maintenance {
        Maintenance { shared: Arc::default(), thread: Mutex::default() }
    }

    /// Records a commit by this process that changed `file`.
    pub fn note_commit(&self, pool: &Pool, file: FileId) {
        let mut state = self.shared.state();
        state.commits += 1;
        state.files.insert(file);
        let (is_first, is_wanted) = (state.commits == 1, state.wants_commit);
        drop(state);
        if is_wanted {
            self.shared.changed.notify_one();
        }
        if is_first {
            self.start(pool);
        }
    }

    /// Whether background work was started and not yet waited for. While the pool has no users,
    /// none can start.
    pub fn is_begun(&self) -> bool {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn start(&self, pool: &Pool) {
        let mut begun = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        // A commit counts as the first again while another user is closing the pool. With two
        // threads, only one would be joined.
        if begun.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        let (shared, pool) = (Arc::clone(&self.shared), pool.clone());
        let work = move || Worker { shared, pool }.run();
        // If the system cannot start a thread, folding is left to the commits.
        *begun = system::spawn("hardpack-maintenance", work);
    }

    /// Stops the background work and waits for it, then does the work due at closing.
    pub fn finish(&self, pool: &Pool) {
        self.shared.state().stop = true;
        self.shared.changed.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let is_begun = thread.is_some();
        if let Some(thread) = thread {
            // A panic of the thread would be a defect, but would not harm stored data.
            let _ = thread.join();
        }
        // A user may have come back, whose next commit counts as the first again.
        let seen = std::mem::take(&mut *self.shared.state());
        if !is_begun {
            return;
        }
        let limits = StepLimits {
            rewrite_len_max: CLOSE_LEN,
            patience: Patience::None,
            ..StepLimits::default()
        };
        let mut rewritten_len = 0;
        for file in seen.files {
            let mut next = Some(0);
            while let Some(from) = next.filter(|_| rewritten_len < CLOSE_LEN) {
                // Work that fails is left for the next time.
                let Ok(step) = pool.fold_step(file, Fold::Due, from, &limits) else { break };
                next = step.next;
                rewritten_len += step.rewritten_len;
            }
        }
    }
}

struct Worker {
    shared: Arc<Shared>,
    pool: Pool,
}

impl Worker {
    fn run(&self) {
        let mut folded = 0;
        while !self.shared.is_stopped() {
            let seen = self.shared.state().commits;
            if !self.shared.is_quiet_for(seen, IDLE_TIME) {
                continue;
            }
            if folded == 0 {
                // What a process was writing ahead when it died takes space until then.
                let _ = self.pool.remove_leftovers();
            }
            if folded != seen {
                match self.fold(seen) {
                    // Another process is writing; its commits are not seen here.
                    Err(Error::Busy) => continue,
                    Ok(true) => folded = seen,
                    Ok(false) | Err(_) => {}
                }
            }
            let cold = self.pool.state().txg();
            if !self.shared.wait_for_commit(seen, Some(COLD_TIME)) {
                continue;
            }
            let _ = self.sink(seen, cold);
            // Nothing is left to do until the next commit.
            self.shared.wait_for_commit(seen, None);
        }
    }

    fn limits() -> StepLimits {
        StepLimits { rewrite_len_max: STEP_LEN, patience: Patience::None, ..StepLimits::default() }
    }

    /// Returns the files that this process has changed and that still exist.
    fn files(&self) -> Result<Vec<FileId>> {
        let files = self.shared.state().files.clone();
        let (mut there, mut gone) = (Vec::new(), Vec::new());
        for file in files {
            match self.pool.attributes(file) {
                Ok(_) => there.push(file),
                Err(Error::NotFound { .. }) => gone.push(file),
                Err(error) => return Err(error),
            }
        }
        self.shared.state().files.retain(|file| !gone.contains(file));
        Ok(there)
    }

    /// Folds records that are due, while nobody commits. Returns whether it finished.
    fn fold(&self, seen: u64) -> Result<bool> {
        for file in self.files()? {
            let step = |from| self.pool.fold_step(file, Fold::Due, from, &Worker::limits());
            if !self.steps(seen, file, &step)? {
                return Ok(false);
            }
            // Pages that were patched as a whole are likely to be patched so again.
            if self.pool.state().stats().patches.allocated >= PATCHED_LEN_MIN {
                let settings = self.pool.settings(file)?;
                self.pool.train_dictionary(file, &settings, false, Patience::None)?;
            }
        }
        Ok(true)
    }

    /// Recompresses cold records, while nobody commits.
    fn sink(&self, seen: u64, cold: Txg) -> Result<()> {
        for file in self.files()? {
            if self.pool.settings(file)?.auto.is_none() {
                continue;
            }
            let step = |from| self.pool.sink_step(file, cold, from, &Worker::limits());
            if !self.steps(seen, file, &step)? {
                break;
            }
        }
        Ok(())
    }

    /// Steps through a file within the budget. Returns whether it reached the end.
    fn steps(&self, seen: u64, file: FileId, step: &dyn Fn(u64) -> Result<Step>) -> Result<bool> {
        let settings = self.pool.settings(file)?;
        if settings.background_cpu == 0 {
            return Ok(false);
        }
        let mut next = Some(0);
        while let Some(from) = next {
            let began = Stopwatch::start();
            let done = step(from)?;
            next = done.next;
            let pause = pause(&settings, began.elapsed(), done.stored_after);
            if !self.shared.is_quiet_for(seen, pause) {
                return Ok(next.is_none());
            }
        }
        Ok(true)
    }
}

/// Returns how long to pause after a step that took `took` and wrote `written` bytes.
fn pause(settings: &Settings, took: Duration, written: u64) -> Duration {
    let share = f64::from(settings.background_cpu) / 100.0;
    let cpu = took.mul_f64((1.0 / share - 1.0).max(0.0));
    let io = Duration::from_secs_f64(written as f64 / f64::from(settings.background_io));
    cpu.max(io.saturating_sub(took)).min(PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_keep_to_both_budgets() {
        let settings =
            Settings { background_cpu: 25, background_io: 1 << 20, ..Settings::default() };
        let took = Duration::from_millis(100);
        assert_eq!(pause(&settings, took, 0), Duration::from_millis(300));
        assert_eq!(pause(&settings, took, 2 << 20), Duration::from_millis(1900));
        let whole = Settings { background_cpu: 100, background_io: 1 << 30, ..settings };
        assert_eq!(pause(&whole, took, 1), Duration::ZERO);
        assert_eq!(pause(&Settings { background_cpu: 1, ..settings }, took * 60, 0), PAUSE_MAX);
    }
}
