//! How much space there is.

use fuser::Errno;

use super::Tree;
use crate::errno::Answer;

/// The space of the file system in which the pool is, with what the files of the pool take before
/// compression.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    pub total: u64,
    pub free: u64,
    /// What programs without privileges can use.
    pub available: u64,
}

/// The unit of [`Space`], in bytes.
pub const BLOCK_LEN: u32 = 4096;

impl Tree {
    /// Returns how much space there is. What is free holds as much as will be written if nothing of
    /// it can be compressed.
    pub fn space(&self) -> Answer<Space> {
        let host = rustix::fs::statvfs(&self.path)
            .map_err(|error| Errno::from_i32(error.raw_os_error()))?;
        let blocks = |count: u64| count.saturating_mul(host.f_frsize) / u64::from(BLOCK_LEN);
        let used = self.pool.stats().file_bytes.div_ceil(u64::from(BLOCK_LEN));
        let free = blocks(host.f_bfree);
        Ok(Space { total: used + free, free, available: blocks(host.f_bavail) })
    }
}
