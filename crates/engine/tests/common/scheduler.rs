//! A deterministic scheduler: the threads of a test run one at a time, in an order chosen from a
//! seed.
//!
//! A thread runs from one *point* to the next. Every call of a [`super::scheduled`] device is a
//! point, and so is every wait for a lock that the engine announces
//! ([`hardpack_engine::device::Device::cede`]). At other locks a thread may find that one which
//! stands at a point holds the lock. Then it sleeps, as the system reports (`/proc`): no other
//! thread runs that could hold the lock only for a moment. So time decides nothing, and the same
//! seed gives the same run.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::Rng;

/// The number of steps after which a run counts as endless.
const STEP_COUNT_MAX: usize = 300_000;
/// How long the scheduler waits before it checks whether a thread sleeps. No result depends on it.
const LOOK: Duration = Duration::from_micros(300);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stands {
    /// It runs, or has not reached its first point yet.
    Running,
    /// It stands at this point until it is chosen.
    At(&'static str),
    /// It waits for a lock that another thread holds.
    Blocked,
    Done,
}

#[derive(Debug)]
struct Actor {
    stands: Stands,
    /// The path at which the system reports its state.
    stat: Option<PathBuf>,
    chosen: Arc<Condvar>,
}

#[derive(Debug)]
struct Inner {
    rng: Rng,
    actors: Vec<Actor>,
    trace: Vec<(usize, &'static str)>,
    last: usize,
}

/// Lets threads run one at a time.
#[derive(Debug)]
pub struct Scheduler {
    inner: Mutex<Inner>,
    arrived: Condvar,
}

thread_local! {
    static SELF: RefCell<Option<(Arc<Scheduler>, usize)>> = const { RefCell::new(None) };
}

/// Returns the number of this thread if it is scheduled.
pub fn current() -> Option<usize> {
    SELF.with_borrow(|me| me.as_ref().map(|(_, index)| *index))
}

/// Lets the scheduler choose the next thread. Returns whether this thread is scheduled at all.
pub fn point(name: &'static str) -> bool {
    let Some((scheduler, index)) = SELF.with_borrow(Clone::clone) else { return false };
    let mut inner = scheduler.inner();
    let chosen = Arc::clone(&inner.actors[index].chosen);
    inner.actors[index].stands = Stands::At(name);
    scheduler.arrived.notify_all();
    while inner.actors[index].stands != Stands::Running {
        inner = chosen.wait(inner).unwrap_or_else(PoisonError::into_inner);
    }
    true
}

/// Returns a number below `n` from the seed of the run, for choices between two points.
pub fn choose(n: u64) -> u64 {
    let me = SELF.with_borrow(Clone::clone);
    me.map_or(0, |(scheduler, _)| scheduler.inner().rng.below(n))
}

impl Scheduler {
    /// Creates a scheduler that chooses with this generator.
    pub fn new(rng: Rng) -> Arc<Scheduler> {
        let inner = Inner { rng, actors: Vec::new(), trace: Vec::new(), last: 0 };
        Arc::new(Scheduler { inner: Mutex::new(inner), arrived: Condvar::new() })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a thread, which starts when it is first chosen.
    pub fn spawn(
        self: &Arc<Self>,
        work: impl FnOnce() -> Result<(), String> + Send + 'static,
    ) -> JoinHandle<Result<(), String>> {
        let chosen = Arc::new(Condvar::new());
        let actor = Actor { stands: Stands::Running, stat: None, chosen };
        let index = {
            let mut inner = self.inner();
            inner.actors.push(actor);
            inner.actors.len() - 1
        };
        let scheduler = Arc::clone(self);
        std::thread::spawn(move || {
            let stat = std::fs::read_link("/proc/thread-self").expect("the system has /proc");
            scheduler.inner().actors[index].stat =
                Some(PathBuf::from("/proc").join(stat).join("stat"));
            SELF.set(Some((Arc::clone(&scheduler), index)));
            /// Marks the thread as done, whatever happens, so that the others go on.
            struct Done(Arc<Scheduler>, usize);
            impl Drop for Done {
                fn drop(&mut self) {
                    SELF.set(None);
                    self.0.inner().actors[self.1].stands = Stands::Done;
                    self.0.arrived.notify_all();
                }
            }
            let _done = Done(scheduler, index);
            point("begin");
            work()
        })
    }

    /// Runs all threads to their ends. Returns their steps in order.
    pub fn run(&self) -> Result<Vec<(usize, &'static str)>, String> {
        loop {
            self.settle();
            let mut inner = self.inner();
            let at = |actor: &Actor| matches!(actor.stands, Stands::At(_));
            let ready: Vec<usize> =
                (0..inner.actors.len()).filter(|index| at(&inner.actors[*index])).collect();
            if ready.is_empty() {
                let trace = std::mem::take(&mut inner.trace);
                return match inner.actors.iter().all(|actor| actor.stands == Stands::Done) {
                    true => Ok(trace),
                    false => Err(format!("a deadlock after {:?}", tail(&trace))),
                };
            }
            if inner.trace.len() > STEP_COUNT_MAX {
                return Err(format!("it never ends: {:?}", tail(&inner.trace)));
            }
            // Usually the same thread for a while: races need one thread to get far while another
            // stands still.
            let last = inner.last;
            let next = match ready.contains(&last) && !inner.rng.one_in(3) {
                true if inner.actors[last].stands != Stands::At("cede") => last,
                _ => inner.rng.pick(&ready),
            };
            inner.last = next;
            let Stands::At(name) = inner.actors[next].stands else { continue };
            inner.trace.push((next, name));
            inner.actors[next].stands = Stands::Running;
            inner.actors[next].chosen.notify_all();
        }
    }

    /// Waits until no thread runs.
    fn settle(&self) {
        loop {
            let mut inner = self.inner();
            let running = |inner: &Inner| {
                (0..inner.actors.len()).find(|i| inner.actors[*i].stands == Stands::Running)
            };
            if running(&inner).is_some() {
                let waited = self.arrived.wait_timeout(inner, LOOK);
                inner = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            // The states are read without the lock: a thread on its way to a point might wait for
            // it.
            let look: Vec<(usize, Option<PathBuf>, Stands)> = inner
                .actors
                .iter()
                .enumerate()
                .filter(|(_, actor)| matches!(actor.stands, Stands::Running | Stands::Blocked))
                .map(|(index, actor)| (index, actor.stat.clone(), actor.stands))
                .collect();
            drop(inner);
            let sleeps: Vec<(usize, Stands, bool)> = look
                .into_iter()
                .map(|(index, stat, stands)| {
                    (index, stands, stat.is_some_and(|stat| is_asleep(&stat)))
                })
                .collect();
            let mut inner = self.inner();
            let mut is_still = true;
            for (index, stands, sleeps) in sleeps {
                let actor = &mut inner.actors[index];
                if actor.stands != stands {
                    is_still = false;
                } else if sleeps != (stands == Stands::Blocked) {
                    actor.stands = if sleeps { Stands::Blocked } else { Stands::Running };
                    is_still = false;
                }
            }
            if is_still && running(&inner).is_none() {
                return;
            }
        }
    }
}

/// Whether a thread sleeps until somebody wakes it.
fn is_asleep(stat: &Path) -> bool {
    let text = std::fs::read_to_string(stat).unwrap_or_default();
    // The name before this field may contain anything except its terminator.
    text.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
}

fn tail<'a>(trace: &'a [(usize, &'static str)]) -> &'a [(usize, &'static str)] {
    &trace[trace.len().saturating_sub(40)..]
}
