//! Threads that share work for which no lock is held: hashing, compressing, verifying.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{Error, Result};
use crate::store::Store;
use crate::system;

/// Each thread must have at least this many jobs to be worth it.
const JOBS_PER_THREAD_MIN: usize = 3;

/// How many threads share some work, and whether they give way to other programs.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct Workers {
    count: usize,
    give_way: bool,
}

impl Workers {
    /// Up to `count` threads, the caller's among them.
    pub fn new(count: usize) -> Workers {
        Workers { count, give_way: false }
    }

    /// The same for work that is done while no transaction is open, so that nobody waits for it: if
    /// other processes commit to the pool, it leaves the processors to them.
    pub fn beside_others(store: &Store, count: usize) -> Workers {
        Workers { give_way: count > 1 && store.has_company(), ..Workers::new(count) }
    }

    /// Uses no more threads than this many jobs are worth.
    pub fn for_jobs(self, jobs: usize) -> Workers {
        self.at_most(jobs / JOBS_PER_THREAD_MIN)
    }

    /// Uses at most `count` threads.
    pub fn at_most(self, count: usize) -> Workers {
        Workers { count: self.count.min(count).max(1), ..self }
    }

    /// Calls `work` with each index below `count`, on all threads, and collects the results.
    pub fn run<R: Send>(
        self,
        count: usize,
        work: impl Fn(usize) -> Result<R> + Sync,
    ) -> Result<Vec<R>> {
        if self.count <= 1 {
            return (0..count).map(work).collect();
        }
        let next = AtomicUsize::new(0);
        let slots: Vec<Mutex<Option<Result<R>>>> = (0..count).map(|_| Mutex::new(None)).collect();
        let run = || {
            while let Some(index) =
                Some(next.fetch_add(1, Ordering::Relaxed)).filter(|i| *i < count)
            {
                // Whoever panics here breaks nothing of others: what it shares, it changes as a
                // whole.
                let done = catch_unwind(AssertUnwindSafe(|| work(index)))
                    .unwrap_or_else(|panic| Err(Error::panicked("a worker thread", &*panic)));
                if let Ok(mut slot) = slots[index].lock() {
                    *slot = Some(done);
                }
            }
        };
        match self.give_way {
            true => system::run_behind_others(self.count, run),
            false => system::run_on_threads(self.count, run),
        }
        let lost = || Error::internal("a worker thread left without its result");
        slots
            .into_iter()
            .map(|slot| slot.into_inner().ok().flatten().unwrap_or_else(|| Err(lost())))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    use super::*;
    use crate::device::{Device, MemoryDevice};
    use crate::pool::{Options, Pool, Property, ROOT};
    use crate::test_common::{create, options};

    #[test]
    fn workers_give_way_while_another_process_commits() {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(Vec::new()));
        let other = create(&device, &[], 1 << 20);
        let millis = Arc::new(AtomicU64::new(5));
        let time = Arc::clone(&millis);
        let clock = Arc::new(move || Duration::from_millis(time.load(Ordering::Relaxed)));
        let own = Pool::open(Arc::clone(&device), Options { clock, ..options(1 << 20) }).unwrap();
        let give_way = |count| Workers::beside_others(own.store(), count).give_way;
        let change = |pool: &Pool, level: &str| {
            pool.set_property(ROOT, Property::Compression, level).unwrap();
        };
        assert!(!give_way(4));

        // What this process commits is no company.
        change(&own, "zstd-4");
        assert!(!give_way(4));

        change(&other, "zstd-5");
        assert!(!give_way(4), "nobody has looked at the pool since");
        own.refresh().unwrap();
        assert!(give_way(4));
        assert!(!give_way(1), "the caller's thread stays as it is");
        millis.fetch_add(999, Ordering::Relaxed);
        assert!(give_way(4));
        millis.fetch_add(1, Ordering::Relaxed);
        assert!(!give_way(4));

        // A transaction notices by itself.
        change(&other, "zstd-6");
        change(&own, "zstd-7");
        assert!(give_way(4));
        let workers = Workers::beside_others(own.store(), 4);
        assert_eq!(workers.run(50, Ok).unwrap(), (0..50).collect::<Vec<_>>());
    }
}
