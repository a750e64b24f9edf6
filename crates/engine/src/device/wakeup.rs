//! Wakes those who wait for a lock on a pool's file, in any process.
//!
//! File locks can be waited for only without a limit of time. So who waits looks at the lock again
//! and again, and pauses in between. The pauses are waits on a *futex*: a word of memory for which
//! the kernel keeps a list of those who sleep. Processes that map the same page of one file share
//! the lists of its words. The page is the first of the pool, which never changes; it is mapped for
//! reading, and only the kernel looks at it there. So nothing is written, and a file that is cut
//! short harms nobody.
//!
//! A wake-up is lost if it comes between a look and the pause after it. So pauses stay short, and
//! are sleeps where the page cannot be mapped.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use super::Awaited;
use super::sys::SharedPage;
use crate::system;

/// The lists of those who wait.
#[derive(Debug)]
pub(super) struct Wakeup(Option<SharedPage>);

impl Wakeup {
    pub(super) fn new(file: &File) -> Wakeup {
        Wakeup(SharedPage::of(file))
    }

    /// Pauses for at most this long, or until somebody calls [`Wakeup::wake`]. Returns for how long
    /// it was.
    pub(super) fn pause(&self, file: &File, awaited: Awaited, at_most: Duration) -> Duration {
        let word = word(awaited);
        let paused = system::time(|| {
            let mut value = [0; 4];
            let is_read = file.read_exact_at(&mut value, 4 * word as u64).is_ok();
            let value = u32::from_ne_bytes(value);
            let has_paused = |page: &SharedPage| is_read && page.wait(word, value, at_most);
            if !self.0.as_ref().is_some_and(has_paused) {
                system::sleep(at_most);
            }
        });
        // Whatever ends pauses at once, those who count them come to an end.
        paused.max(Duration::from_micros(1))
    }

    /// Ends the pauses of those who wait for this: of one, if only one can have it. Returns whether
    /// there were any.
    pub(super) fn wake(&self, awaited: Awaited) -> bool {
        let count = match awaited {
            Awaited::Writer | Awaited::FileWriter(_) => 1,
            // Most of those who wait find what they wanted done.
            Awaited::SyncTurn | Awaited::Turn | Awaited::FileReaders(_) => i32::MAX,
        };
        self.0.as_ref().is_some_and(|page| page.wake(word(awaited), count))
    }
}

/// How many files have words of their own. Those that share one are woken for each other.
const FILE_WORDS: u64 = 500;

/// The word of the page that stands for what is awaited.
fn word(awaited: Awaited) -> usize {
    match awaited {
        Awaited::Writer => 0,
        Awaited::SyncTurn => 1,
        Awaited::Turn => 2,
        Awaited::FileWriter(file) => 3 + 2 * (file.0 % FILE_WORDS) as usize,
        Awaited::FileReaders(file) => 4 + 2 * (file.0 % FILE_WORDS) as usize,
    }
}
