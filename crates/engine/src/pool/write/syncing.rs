//! Syncs while a long series of transactions is written: an import, or what a large transaction
//! writes ahead.
//!
//! The space that a transaction frees can be reused only once it is durable. Without syncs in
//! between, a long series would leave much of that space unused.

use std::sync::Arc;
use std::thread::JoinHandle;

use crate::error::{Error, Result};
use crate::store::Store;
use crate::system;

/// How many bytes of content are committed before they are made durable.
const LEN_MIN: usize = 4 << 20;

/// Makes commits durable while the next ones are prepared.
#[derive(Debug)]
pub(in crate::pool) struct Syncing {
    store: Arc<Store>,
    /// How many bytes of content were committed since the last sync began.
    unsynced_len: usize,
    /// Whether a thread of its own does it.
    has_threads: bool,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Syncing {
    /// With a single thread, as in a simulation, commits wait for the syncs.
    pub fn new(store: &Arc<Store>, threads: usize) -> Syncing {
        let has_threads = threads > 1;
        Syncing { store: Arc::clone(store), unsynced_len: 0, has_threads, thread: None }
    }

    /// Notes that `len` bytes of content were committed, and begins a sync from time to time.
    pub fn note(&mut self, len: usize) -> Result<()> {
        self.unsynced_len += len;
        if self.unsynced_len < LEN_MIN {
            return Ok(());
        }
        self.unsynced_len = 0;
        self.end()?;
        let store = Arc::clone(&self.store);
        let sync = move || match store.make_durable() {
            // Syncing needs a transaction if others have committed, and somebody may hold one.
            Err(Error::Busy) => Ok(()),
            done => done,
        };
        if !self.has_threads {
            return sync();
        }
        // If the system cannot spawn a thread, the end of the series does the sync.
        self.thread = system::spawn("hardpack-sync", sync);
        Ok(())
    }

    /// Waits for the sync under way.
    pub fn end(&mut self) -> Result<()> {
        match self.thread.take() {
            Some(thread) => thread
                .join()
                .map_err(|panic| Error::panicked("the thread that syncs the pool", &*panic))?,
            None => Ok(()),
        }
    }
}

impl Drop for Syncing {
    fn drop(&mut self) {
        // Nothing was acknowledged, so errors need no report. But no thread may run on when the
        // pool is closed.
        let _ = self.end();
    }
}
