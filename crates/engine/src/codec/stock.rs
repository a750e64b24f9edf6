//! A stock of idle things that are expensive to make anew: contexts of libraries, and memory that
//! the system would clear every time.
//!
//! Thread-locals would die with each short-lived worker thread; a stock outlives them, and keeps a
//! bounded number of things. Nobody ever waits for one of its locks: a lock that another thread
//! held during `fork` stays locked in the child for ever.
#![forbid(unsafe_code)]

use std::sync::Mutex;

/// Up to `N` idle things. They are boxed so that all places together are a few bytes: whoever looks
/// through them for the first time would touch as many pages as they have, which the system clears.
pub(crate) struct Stock<T, const N: usize>([Mutex<Option<Box<T>>>; N]);

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

/// The most bytes that [`set_len`] takes so that the next longer thing fits as well.
const SPARE_LEN_MAX: usize = 64 << 10;

/// Gives a buffer that is written to as a whole another length; what it holds is unspecified.
///
/// Memory that it lacks is taken anew: a vector that grows would copy what nobody needs, and twice
/// its length would be more than enough.
pub(crate) fn set_len(buffer: &mut Vec<u8>, len: usize) {
    if buffer.capacity() < len {
        *buffer = Vec::with_capacity(len + (len / 2).min(SPARE_LEN_MAX));
    }
    buffer.resize(len, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_are_lent_again_and_each_user_has_its_own() {
        static IDLE: Stock<Vec<u8>, 2> = Stock::new();
        let is_small = |thing: &Vec<u8>| thing.len() < 3;
        IDLE.lend(is_small, |outer| {
            outer.push(1);
            IDLE.lend(is_small, |inner| assert!(inner.is_empty()));
        });
        let lens =
            IDLE.lend(is_small, |first| IDLE.lend(is_small, |second| first.len() + second.len()));
        assert_eq!(lens, 1, "both were kept, one of them with a byte");
        for _ in 0..2 {
            IDLE.lend(is_small, |thing| *thing = vec![0; 3]);
        }
        IDLE.lend(is_small, |thing| assert!(thing.is_empty(), "a long one was kept"));
    }

    #[test]
    fn a_buffer_gets_any_length() {
        let mut buffer = Vec::new();
        for len in [7, 0, 100_000, 3, 100_001, 100_000] {
            set_len(&mut buffer, len);
            assert_eq!(buffer.len(), len);
            buffer.fill(1);
        }
    }
}
