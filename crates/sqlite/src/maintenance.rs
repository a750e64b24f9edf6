//! Maintenance in the background: folding when the pool is idle, and with `compression=auto`
//! recompressing what has stayed cold.
//!
//! Each pool that this process writes to has one thread, started with the first commit. It waits until
//! nothing was committed for a moment, then works in small steps until there is nothing left to do or
//! somebody commits again. The engine compresses outside of its transactions, so that a writer waits
//! for an exchange of pointers at most; what the thread may take of a processor and of the disk is a
//! property of the file. It goes over the files that this process has changed: a pool may hold very many.
//!
//! Nothing depends on it, and nothing is told to anybody when it fails: what it could not do is left
//! for the next time, and damage is found and reported by whoever reads. A pool has one thread at most, and it is
//! stopped and waited for before the pool is closed: it holds the pool's descriptor. In a forked child it does not exist, see `registry.rs`.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hardpack_engine::pool::{Fold, Pool, Settings, Step, StepLimits};
use hardpack_engine::store::Patience;
use hardpack_engine::{Error, FileId, Result, Txg};

/// The pool is idle when nothing was committed for so long.
const IDLE_TIME: Duration = Duration::from_millis(100);
/// A record is cold when it was not written for so long, as far as this process knows.
const COLD_TIME: Duration = Duration::from_secs(30);
/// What one step rewrites: small, so that whoever comes back need not wait.
const STEP_LEN: u64 = 512 << 10;
/// What is folded when the pool is closed: a few dozen milliseconds.
const CLOSE_LEN: u64 = 8 << 20;
/// Extents of patches that make a dictionary worth training.
const PATCHED_LEN_MIN: u64 = 512 << 10;
/// The longest pause between two steps, so that a small share of the machine still is one.
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
    /// Somebody waits for the next commit.
    wants_commit: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, Seen> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for so long, and says whether nobody committed meanwhile, nor asked to stop.
    fn is_quiet_for(&self, seen: u64, time: Duration) -> bool {
        // Commits do not wake anybody up here: there may be thousands a second.
        let (state, _) = self
            .changed
            .wait_timeout_while(self.state(), time, |state| !state.stop)
            .unwrap_or_else(PoisonError::into_inner);
        !state.stop && state.commits == seen
    }

    /// Waits for another commit than `seen`, at most for so long where a time is given. Whether nobody
    /// committed, nor asked to stop.
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
    /// Maintenance that has not begun.
    pub fn new() -> Maintenance {
        Maintenance { shared: Arc::default(), thread: Mutex::default() }
    }

    /// Notes a commit by this process that changed `file`.
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

    /// Whether something goes on in the background, or did and was not waited for. While the pool has no users,
    /// nothing can begin.
    pub fn is_begun(&self) -> bool {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn start(&self, pool: &Pool) {
        let mut begun = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        // A commit is the first again where somebody else is about to close the pool. Of two threads only one
        // would be waited for.
        if begun.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        let (shared, pool) = (Arc::clone(&self.shared), pool.clone());
        let work = move || Worker { shared, pool }.run();
        let thread = std::thread::Builder::new().name("hardpack-maintenance".into()).spawn(work);
        // Where the system has no thread to give, folding is left to the commits.
        *begun = thread.ok();
    }

    /// Ends what goes on in the background and waits for it; then does what is due at closing.
    pub fn finish(&self, pool: &Pool) {
        self.shared.state().stop = true;
        self.shared.changed.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let is_begun = thread.is_some();
        if let Some(thread) = thread {
            // Its panic would be a defect, but of no harm to what is stored.
            let _ = thread.join();
        }
        // Somebody may have come back, whose commits are the first again.
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
                // What cannot be done is left for the next time.
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
            if folded != seen {
                match self.fold(seen) {
                    // Another process is writing: its commits are not seen here.
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
            // Nothing is left to do until somebody commits.
            self.shared.wait_for_commit(seen, None);
        }
    }

    fn limits() -> StepLimits {
        StepLimits { rewrite_len_max: STEP_LEN, patience: Patience::None, ..StepLimits::default() }
    }

    /// The files that this process has changed and that are still there.
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

    /// Folds what is due, while nobody commits. Whether all of it was done.
    fn fold(&self, seen: u64) -> Result<bool> {
        for file in self.files()? {
            let step = |from| self.pool.fold_step(file, Fold::Due, from, &Worker::limits());
            if !self.steps(seen, file, &step)? {
                return Ok(false);
            }
            // Pages that were patched whole are likely to be again.
            if self.pool.state().stats().patches.allocated >= PATCHED_LEN_MIN {
                let settings = self.pool.settings(file)?;
                self.pool.train_dictionary(file, &settings, false, Patience::None)?;
            }
        }
        Ok(true)
    }

    /// Recompresses what is cold, while nobody commits.
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

    /// Takes steps over a file within the budget. Whether it came to the end.
    fn steps(&self, seen: u64, file: FileId, step: &dyn Fn(u64) -> Result<Step>) -> Result<bool> {
        let settings = self.pool.settings(file)?;
        if settings.background_cpu == 0 {
            return Ok(false);
        }
        let mut next = Some(0);
        while let Some(from) = next {
            let began = Instant::now();
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

/// How long to rest after a step that took `took` and wrote `written` bytes.
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
