//! A device in memory, for tests and experiments.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Device, Pins};

/// A byte array in memory. It is not durable and needs no lock between processes.
#[derive(Debug, Default)]
pub struct MemoryDevice {
    bytes: Mutex<Vec<u8>>,
    pins: Pins,
}

impl MemoryDevice {
    /// Creates a device with the given contents.
    pub fn new(bytes: Vec<u8>) -> MemoryDevice {
        MemoryDevice { bytes: Mutex::new(bytes), pins: Pins::default() }
    }

    /// Returns a copy of the whole contents.
    pub fn image(&self) -> Vec<u8> {
        self.bytes().clone()
    }

    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Device for MemoryDevice {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let bytes = self.bytes();
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let n = buf.len().min(bytes.len() - start);
        buf[..n].copy_from_slice(&bytes[start..start + n]);
        Ok(n)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut bytes = self.bytes();
        let start = usize::try_from(offset).map_err(|_| io::ErrorKind::StorageFull)?;
        let end = start.checked_add(buf.len()).ok_or(io::ErrorKind::StorageFull)?;
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[start..end].copy_from_slice(buf);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes().len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::StorageFull)?;
        self.bytes().resize(len, 0);
        Ok(())
    }

    fn pins(&self) -> Option<&Pins> {
        Some(&self.pins)
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn lock_writer(&self) -> io::Result<()> {
        Ok(())
    }

    fn unlock_writer(&self) {}
}
