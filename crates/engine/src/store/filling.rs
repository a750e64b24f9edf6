//! Filling files that have no name yet: while somebody does, others leave such files alone.

use std::sync::Arc;
use std::time::Duration;

use super::Store;
use crate::device::Fillers;
use crate::error::{Error, Result};
use crate::system;

/// How often to try again while another process removes the leftovers of dead ones.
const SHARE_COUNT: u32 = 200;
/// How long to wait in between.
const SHARE_PAUSE: Duration = Duration::from_millis(5);

/// Keeps nameless files from being taken for leftovers, as long as this value lives.
#[derive(Debug)]
pub struct Filling {
    store: Arc<Store>,
}

impl Drop for Filling {
    fn drop(&mut self) {
        self.store.fillers().leave(&*self.store.device);
    }
}

impl Store {
    fn fillers(&self) -> &Fillers {
        self.device.fillers().unwrap_or(&self.own_fillers)
    }

    /// Shows to others that nameless files of this process are being filled. If no other process
    /// fills any, calls `clean` first, to remove what dead ones have left.
    pub fn begin_filling(self: &Arc<Self>, clean: &mut dyn FnMut()) -> Result<Filling> {
        for _ in 0..SHARE_COUNT {
            let entered = self.fillers().enter(&*self.device, clean);
            if entered.map_err(|error| Error::io("lock", error))? {
                return Ok(Filling { store: Arc::clone(self) });
            }
            system::sleep(SHARE_PAUSE);
        }
        Err(Error::Busy)
    }
}
