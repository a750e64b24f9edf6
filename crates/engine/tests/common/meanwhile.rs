//! A device on which something else happens in the middle of a call: actions that another thread or
//! process might take at the worst moment happen at exactly that moment.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use hardpack_engine::device::Device;

/// The moment of the action.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// Before a read.
    Read,
    /// Before the writer lock is taken.
    Lock,
    /// Just after the writer lock was taken, before anything is done under it.
    Locked,
    /// After a sync has done its work, before it returns.
    Synced,
}

type Act = Box<dyn FnOnce() + Send>;

/// A device that runs an action once, at a chosen moment.
pub struct Meanwhile {
    below: Arc<dyn Device>,
    next: Mutex<Option<(Moment, Act)>>,
}

impl Meanwhile {
    /// Wraps another device.
    pub fn on(below: Arc<dyn Device>) -> Arc<Meanwhile> {
        Arc::new(Meanwhile { below, next: Mutex::default() })
    }

    /// Sets the action for the next such moment.
    pub fn at(&self, moment: Moment, act: impl FnOnce() + Send + 'static) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some((moment, Box::new(act)));
    }

    /// Whether the action was run.
    pub fn is_done(&self) -> bool {
        self.next.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    fn reach(&self, moment: Moment) {
        let next = self
            .next
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take_if(|(due, _)| *due == moment);
        // Not under the lock, since the action may use the device.
        if let Some((_, act)) = next {
            act();
        }
    }
}

impl fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meanwhile")
    }
}

impl Device for Meanwhile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.reach(Moment::Read);
        self.below.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.below.write_at(buf, offset)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.below.sync_data()?;
        self.reach(Moment::Synced);
        Ok(())
    }
    fn len(&self) -> io::Result<u64> {
        self.below.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.below.set_len(len)
    }
    fn is_read_only(&self) -> bool {
        self.below.is_read_only()
    }
    fn lock_writer(&self) -> io::Result<()> {
        self.reach(Moment::Lock);
        self.below.lock_writer()?;
        self.reach(Moment::Locked);
        Ok(())
    }
    fn try_lock_writer(&self) -> io::Result<bool> {
        self.reach(Moment::Lock);
        let locked = self.below.try_lock_writer()?;
        if locked {
            self.reach(Moment::Locked);
        }
        Ok(locked)
    }
    fn unlock_writer(&self) {
        self.below.unlock_writer();
    }
}
