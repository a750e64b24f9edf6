//! When changes are committed: those that have joined the group some milliseconds later, and
//! everything else at an interval, durably.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use hardpack_engine::pool::File;

use crate::tree::Tree;

/// How long changes of names wait for others to share a commit with, at least and at most.
const GROUP_AGE_MIN: Duration = Duration::from_millis(5);
const GROUP_AGE_MAX: Duration = Duration::from_millis(40);
/// How many times as long as their commit takes: whoever makes many changes at once gets most of
/// the processors.
const GROUP_AGE_TIMES: u32 = 4;

/// What there is to commit.
#[derive(Debug, Default)]
pub struct Flusher {
    work: Mutex<Work>,
    awake: Condvar,
}

#[derive(Debug, Default)]
struct Work {
    /// When the first change joined that is not committed yet.
    joined: Option<Instant>,
    /// When the first change was made that is not durable yet.
    changed: Option<Instant>,
    /// Files that were closed and join the next commit.
    due: Vec<Arc<File>>,
    is_ended: bool,
}

/// What is to be committed now.
enum Now {
    /// The group, with these files.
    Group(Vec<Arc<File>>),
    /// Everything, durably.
    All,
    Nothing,
}

impl Flusher {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that something has changed.
    pub fn note_changed(&self) {
        let mut work = self.work();
        if work.changed.is_none() {
            work.changed = Some(Instant::now());
            self.awake.notify_one();
        }
    }

    /// Notes that a change has joined the group, and a file whose changes shall join as well.
    pub fn note_joined(&self, due: Option<Arc<File>>) {
        let mut work = self.work();
        work.due.extend(due);
        if work.joined.is_none() {
            let now = Instant::now();
            work.joined = Some(now);
            work.changed.get_or_insert(now);
            self.awake.notify_one();
        }
    }

    /// Ends the service of [`serve`].
    pub fn end(&self) {
        self.work().is_ended = true;
        self.awake.notify_one();
    }

    /// Takes the files that are to join the next commit of the group.
    #[cfg(test)]
    pub fn take_due(&self) -> Vec<Arc<File>> {
        let mut work = self.work();
        work.joined = None;
        std::mem::take(&mut work.due)
    }

    /// Waits until there is something to commit: the group at this age, everything at an interval.
    fn wait(&self, group_age: Duration, interval: Duration) -> Now {
        let mut work = self.work();
        loop {
            if work.is_ended {
                return Now::Nothing;
            }
            let group_at = work.joined.map(|joined| joined + group_age);
            let all_at = work.changed.map(|changed| changed + interval);
            let now = Instant::now();
            if all_at.is_some_and(|at| at <= now) {
                *work = Work::default();
                return Now::All;
            }
            if group_at.is_some_and(|at| at <= now) {
                work.joined = None;
                return Now::Group(std::mem::take(&mut work.due));
            }
            let next = group_at.into_iter().chain(all_at).min();
            work = match next {
                Some(at) => {
                    let waited = self.awake.wait_timeout(work, at - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.awake.wait(work).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

/// Commits what there is to commit, until the flusher is ended or the tree is gone. Errors are told
/// to whoever syncs or closes the file next.
pub fn serve(tree: &Weak<Tree>, flusher: &Flusher, interval: Duration) {
    let mut group_age = GROUP_AGE_MIN;
    loop {
        let now = flusher.wait(group_age, interval);
        let Some(tree) = tree.upgrade() else { return };
        match now {
            Now::Group(due) => {
                let began = Instant::now();
                let _ = tree.publish(&due);
                group_age = age_after(began.elapsed());
            }
            Now::All => drop(tree.sync_all()),
            Now::Nothing => return,
        }
    }
}

/// Returns how long the next group waits if the commit of the last one took this long.
fn age_after(took: Duration) -> Duration {
    took.saturating_mul(GROUP_AGE_TIMES).clamp(GROUP_AGE_MIN, GROUP_AGE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_grow_with_the_time_of_their_commits() {
        let ms = Duration::from_millis;
        assert_eq!(age_after(Duration::ZERO), GROUP_AGE_MIN);
        assert_eq!(age_after(ms(1)), GROUP_AGE_MIN);
        assert_eq!(age_after(ms(3)), ms(12));
        assert_eq!(age_after(Duration::MAX), GROUP_AGE_MAX);
    }

    #[test]
    fn a_group_is_committed_once_and_everything_is_at_the_interval() {
        let (flusher, hour) = (Flusher::default(), Duration::from_secs(3600));
        flusher.note_joined(None);
        assert!(matches!(flusher.wait(Duration::ZERO, hour), Now::Group(due) if due.is_empty()));
        // What was published is still to be made durable.
        assert!(flusher.work().joined.is_none() && flusher.work().changed.is_some());
        assert!(matches!(flusher.wait(hour, Duration::ZERO), Now::All));
        assert!(flusher.work().joined.is_none() && flusher.work().changed.is_none());
        flusher.end();
        assert!(matches!(flusher.wait(Duration::ZERO, Duration::ZERO), Now::Nothing));
    }
}
