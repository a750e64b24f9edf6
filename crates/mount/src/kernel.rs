//! What the server tells the kernel without being asked: that others have changed something, and
//! that written bytes are wanted now.
//!
//! A thread of its own does this, as the kernel may send requests meanwhile and wait for them.

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use fuser::{INodeNo, Notifier};

/// How much the kernel reads ahead, in bytes.
pub const READAHEAD_LEN: u32 = 4 << 20;

/// Lets the kernel read ahead as far as `READAHEAD_LEN`, as it does for btrfs. It takes no more
/// than 128 KiB from the server itself, which makes eight requests of one; more has to be set for
/// the mount, as only root can.
pub fn read_ahead_further(directory: &Path) {
    let Ok(found) = std::fs::metadata(directory) else { return };
    let (major, minor) = (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()));
    let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    // Everything works without it.
    let _ = std::fs::write(path, (READAHEAD_LEN >> 10).to_string());
}

/// The way to the kernel.
#[derive(Debug)]
pub struct Kernel {
    notifier: Notifier,
    device: OwnedFd,
}

impl Kernel {
    pub fn new(notifier: Notifier, device: OwnedFd) -> Kernel {
        Kernel { notifier, device }
    }

    /// Lets the kernel ask again for a name. Unlike [`Notifier::inval_entry`], this leaves alone
    /// what is mounted there.
    fn expire_name(&self, directory: INodeNo, name: &[u8]) {
        /// `FUSE_NOTIFY_INVAL_ENTRY` and `FUSE_EXPIRE_ONLY`, for which `fuser` has no function.
        const INVAL_ENTRY: i32 = 3;
        const EXPIRE_ONLY: u32 = 1;
        let (header_len, ending) = (32, [0]);
        let mut message = Vec::with_capacity(header_len + name.len() + ending.len());
        message.extend((message.capacity() as u32).to_ne_bytes());
        message.extend(INVAL_ENTRY.to_ne_bytes());
        message.extend(0_u64.to_ne_bytes());
        message.extend(directory.0.to_ne_bytes());
        message.extend((name.len() as u32).to_ne_bytes());
        message.extend(EXPIRE_ONLY.to_ne_bytes());
        message.extend(name);
        message.extend(ending);
        // Fails if the kernel has forgotten the name, or if the mount is gone.
        let _ = rustix::io::write(&self.device, &message);
    }

    /// Lets the kernel ask again for the attributes of a file.
    fn forget_attributes(&self, number: INodeNo) {
        let _ = self.notifier.inval_inode(number, -1, 0);
    }

    /// Lets the kernel write what programs have written to a file, and ask again for its bytes.
    fn write_back(&self, number: INodeNo) {
        let _ = self.notifier.inval_inode(number, 0, 0);
    }
}

/// Something to do once the kernel has written what it holds of a file.
type Then = Box<dyn FnOnce() + Send>;

/// The thread that talks to the kernel. It ends when this is dropped.
pub struct Messenger {
    jobs: Sender<(INodeNo, Then)>,
    kernel: Arc<Kernel>,
}

/// What the thread has to know of the mount.
pub trait Watched: Send + Sync {
    /// Looks for commits of others. Returns a number that changes with them.
    fn epoch(&self) -> u64;
    /// The numbers of the files that are open.
    fn open_files(&self) -> Vec<INodeNo>;
    /// Called from time to time while nobody else commits anything.
    fn settle(&self);
    /// The names that the kernel relies on, in the directories of these numbers.
    fn take_names(&self) -> Vec<(INodeNo, Box<[u8]>)>;
}

impl Messenger {
    /// Starts the thread, which looks for commits of others every `period`.
    pub fn start(
        kernel: Kernel,
        watched: Arc<dyn Watched>,
        period: Duration,
    ) -> std::io::Result<Messenger> {
        let (jobs, waiting) = std::sync::mpsc::channel();
        let kernel = Arc::new(kernel);
        let messenger = Messenger { jobs, kernel: Arc::clone(&kernel) };
        let thread = std::thread::Builder::new().name("hardpack-kernel".into());
        thread.spawn(move || serve(&kernel, &*watched, &waiting, period))?;
        Ok(messenger)
    }

    /// Lets the kernel ask again for the attributes of a file. It waits for nobody, so a request
    /// may do this before it is answered.
    pub fn forget_attributes(&self, number: INodeNo) {
        self.kernel.forget_attributes(number);
    }

    /// Calls `then` when the kernel has written what it holds of a file.
    pub fn write_back(&self, number: INodeNo, then: Then) {
        if let Err(unsent) = self.jobs.send((number, then)) {
            // The thread has ended with the mount.
            let (_, then) = unsent.0;
            then();
        }
    }
}

fn serve(
    kernel: &Kernel,
    watched: &dyn Watched,
    waiting: &Receiver<(INodeNo, Then)>,
    period: Duration,
) {
    let mut epoch = watched.epoch();
    let mut looked = Instant::now();
    let mut outdated = Vec::new();
    loop {
        match waiting.recv_timeout((looked + period).saturating_duration_since(Instant::now())) {
            Ok((number, then)) => {
                kernel.write_back(number);
                then();
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if looked.elapsed() < period {
            continue;
        }
        looked = Instant::now();
        let present = watched.epoch();
        let mut new = Vec::new();
        if present == epoch {
            watched.settle();
        } else {
            epoch = present;
            new = watched.take_names();
            watched.open_files().into_iter().for_each(|number| kernel.forget_attributes(number));
        }
        // Once more for those of last time: a reply may have been on its way to the kernel.
        outdated.iter().chain(&new).for_each(|(number, name)| kernel.expire_name(*number, name));
        outdated = new;
    }
}
