//! Buffers for stored bytes, which are needed only until they are decompressed.
//!
//! Memory that is allocated and freed for every read is memory that the system clears every time.

use std::sync::Mutex;

/// The maximum number of idle buffers.
const IDLE_COUNT_MAX: usize = 8;
/// A longer buffer is freed rather than kept, in bytes.
const IDLE_LEN_MAX: usize = 512 << 10;

/// The idle buffers. Nobody ever waits for one of these locks: a lock that another thread held
/// during `fork` stays locked in the child for ever.
static IDLE: [Mutex<Option<Vec<u8>>>; IDLE_COUNT_MAX] =
    [const { Mutex::new(None) }; IDLE_COUNT_MAX];

/// Lends `f` a buffer with any contents.
pub(super) fn with_buffer<R>(f: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    let taken = IDLE.iter().find_map(|slot| slot.try_lock().ok()?.take());
    let mut buffer = taken.unwrap_or_default();
    let result = f(&mut buffer);
    if buffer.capacity() <= IDLE_LEN_MAX {
        let free = IDLE.iter().find_map(|slot| slot.try_lock().ok().filter(|slot| slot.is_none()));
        if let Some(mut free) = free {
            *free = Some(buffer);
        }
    }
    result
}
