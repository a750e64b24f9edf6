//! The users of a device that fill nameless files: imports, and transactions that write ahead.
//!
//! Whoever fills a nameless file shares [`FILLING_MARK`], so that leftovers of the dead can be told
//! from files still being filled. The mark belongs to the open file; the users of a process that
//! fill files through the same one share it.

use std::io;
use std::sync::{Mutex, MutexGuard};

use super::{Device, lock};

/// The mark of those who fill nameless files. No file has this number.
pub const FILLING_MARK: u64 = 0;

/// Counts the users that fill nameless files.
#[derive(Debug, Default)]
pub struct Fillers {
    count: Mutex<usize>,
}

impl Fillers {
    /// Adds a user, and returns whether that was possible: it is not while somebody removes
    /// leftovers. If no other process fills files, calls `clean` first, with the mark claimed.
    pub fn enter(&self, device: &dyn Device, clean: &mut dyn FnMut()) -> io::Result<bool> {
        let mut count = self.count(device);
        if *count == 0 {
            let is_claimed = device.claim_filling()?;
            if is_claimed {
                clean();
            }
            // This turns a claim into a share.
            let shared = device.share_filling();
            if is_claimed && !matches!(shared, Ok(true)) {
                device.release_filling();
            }
            if !shared? {
                return Ok(false);
            }
        }
        *count += 1;
        Ok(true)
    }

    /// Removes a user.
    pub fn leave(&self, device: &dyn Device) {
        let mut count = self.count(device);
        *count = count.saturating_sub(1);
        if *count == 0 {
            device.release_filling();
        }
    }

    fn count(&self, device: &dyn Device) -> MutexGuard<'_, usize> {
        lock(&self.count, device)
    }
}
