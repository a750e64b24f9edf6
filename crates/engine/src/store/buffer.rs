//! Buffers for stored bytes, which are needed only until they are decompressed.
//!
//! Memory that is allocated and freed for every read is memory that the system clears every time.

use crate::codec::Stock;
pub(super) use crate::codec::set_len;

/// The maximum number of idle buffers.
const IDLE_COUNT_MAX: usize = 8;
/// A longer buffer is freed rather than kept, in bytes.
const IDLE_LEN_MAX: usize = 512 << 10;

/// The idle buffers.
static IDLE: Stock<Vec<u8>, IDLE_COUNT_MAX> = Stock::new();

/// Lends `f` a buffer with any contents.
pub(super) fn with_buffer<R>(f: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    IDLE.lend(|buffer| buffer.capacity() <= IDLE_LEN_MAX, f)
}
