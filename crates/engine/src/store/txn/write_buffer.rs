//! Buffers writes on their way to the device and joins adjacent ones, so that a commit takes few
//! system calls.

use crate::error::{Error, Result};
use crate::store::Store;

/// Buffered writes go to the device when they reach this length.
const WRITE_BUFFER_LEN: usize = 4 << 20;

/// Writes that have not reached the device, in the order in which they were made.
#[derive(Debug, Default)]
pub(in crate::store) struct WriteBuffer {
    chunks: Vec<(u64, Vec<u8>)>,
    buffered: usize,
    /// Bytes written since the transaction began.
    pub written: u64,
}

impl WriteBuffer {
    /// Adds `bytes`, padded with zeros to `padded_len`.
    pub fn push(&mut self, offset: u64, bytes: &[u8], padded_len: usize) {
        match self.chunks.last_mut() {
            Some((start, chunk)) if *start + chunk.len() as u64 == offset => {
                chunk.extend_from_slice(bytes);
                chunk.resize((offset - *start) as usize + padded_len, 0);
            }
            _ => {
                let mut chunk = Vec::with_capacity(padded_len);
                chunk.extend_from_slice(bytes);
                chunk.resize(padded_len, 0);
                self.chunks.push((offset, chunk));
            }
        }
        self.buffered += padded_len;
        self.written += padded_len as u64;
    }

    pub fn flush(&mut self, store: &Store) -> Result<()> {
        let mut done = 0;
        let written = self.chunks.iter().try_for_each(|(offset, chunk)| {
            write(store, chunk, *offset)?;
            done += 1;
            Ok(())
        });
        // Failed writes are kept, since the transaction still refers to them.
        self.chunks.drain(..done);
        if written.is_ok() {
            self.buffered = 0;
        }
        written
    }

    /// Whether it is time to flush.
    pub fn is_full(&self) -> bool {
        self.buffered >= WRITE_BUFFER_LEN
    }
}

/// Writes to the device.
pub(in crate::store) fn write(store: &Store, bytes: &[u8], offset: u64) -> Result<()> {
    store
        .device
        .write_at(bytes, offset)
        .map_err(|error| Error::io("write", error))
        .inspect_err(|error| store.note_failed_write(error))
}
