//! Reading small files ahead, on a few threads: what takes long there is opening them.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Scope;

use crate::sqlite;

const THREAD_COUNT: usize = 4;
/// How many files wait for a thread.
const QUEUE_LEN: usize = 256;
/// Files up to this length are read as a whole, in bytes.
pub const SMALL_LEN: u64 = 1 << 20;

/// What was read.
pub enum Loaded {
    Content(Vec<u8>),
    /// It begins like a SQLite database.
    Database,
    /// It has become longer than a small file.
    Long,
}

struct Job {
    path: PathBuf,
    is_raw: bool,
    reply: SyncSender<io::Result<Loaded>>,
}

/// The threads. They end with this.
pub struct Readers {
    jobs: SyncSender<Job>,
}

impl Readers {
    pub fn start<'s>(scope: &'s Scope<'s, '_>) -> io::Result<Readers> {
        let (jobs, queue) = sync_channel::<Job>(QUEUE_LEN);
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..THREAD_COUNT {
            let queue: Arc<Mutex<Receiver<Job>>> = Arc::clone(&queue);
            std::thread::Builder::new().spawn_scoped(scope, move || {
                loop {
                    let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(Job { path, is_raw, reply }) = job else { return };
                    // Nobody waits for it where the command fails meanwhile.
                    let _ = reply.send(load(&path, is_raw));
                }
            })?;
        }
        Ok(Readers { jobs })
    }

    /// Has a file read. What was read comes out of what is returned.
    pub fn read(&self, path: &Path, is_raw: bool) -> Receiver<io::Result<Loaded>> {
        let (reply, loaded) = sync_channel(1);
        // Without a thread there will be no answer, as the caller finds.
        let _ = self.jobs.send(Job { path: path.into(), is_raw, reply });
        loaded
    }
}

/// Opens a file that is neither to be followed where it is a symbolic link by now, nor waited for.
pub fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    File::options().read(true).custom_flags(flags).open(path)
}

fn load(path: &Path, is_raw: bool) -> io::Result<Loaded> {
    let file = open(path)?;
    let mut content = Vec::new();
    file.take(SMALL_LEN + 1).read_to_end(&mut content)?;
    Ok(if content.starts_with(sqlite::MAGIC) && !is_raw {
        Loaded::Database
    } else if content.len() as u64 > SMALL_LEN {
        Loaded::Long
    } else {
        Loaded::Content(content)
    })
}
