//! A stock of idle things that are expensive to make anew: contexts of libraries, and memory that
//! the system would clear every time.
//!
//! Thread-locals would die with each short-lived worker thread; a stock outlives them, and keeps a
//! bounded number of things. Nobody ever waits for one of its locks: a lock that another thread
//! held during `fork` stays locked in the child for ever.
#![forbid(unsafe_code)]

use std::sync::Mutex;

/// Up to `N` idle things.
pub(crate) struct Stock<T, const N: usize>([Mutex<Option<T>>; N]);

impl<T: Default, const N: usize> Stock<T, N> {
    pub(crate) const fn new() -> Self {
        Stock([const { Mutex::new(None) }; N])
    }

    /// Lends `f` an idle thing, or a new one if all are in use. It is kept afterwards if `is_small`
    /// says so. Calls may nest; each gets a thing of its own.
    pub(crate) fn lend<R>(&self, is_small: fn(&T) -> bool, f: impl FnOnce(&mut T) -> R) -> R {
        let taken = self.0.iter().find_map(|slot| slot.try_lock().ok()?.take());
        let mut thing = taken.unwrap_or_default();
        let result = f(&mut thing);
        if is_small(&thing) {
            let mut slots = self.0.iter();
            let free = slots.find_map(|slot| slot.try_lock().ok().filter(|slot| slot.is_none()));
            if let Some(mut free) = free {
                *free = Some(thing);
            }
        }
        result
    }
}
