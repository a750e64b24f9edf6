//! Reads sources: small files ahead, on a few threads, since opening them takes most of the time;
//! long ones in pieces.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Scope;

use rustix::fs::SeekFrom;

use crate::contents::{Piece, Sink};
use crate::failure::Reason;
use crate::snapshot::read_full;
use crate::sqlite;

const THREAD_COUNT: usize = 4;
/// The most files that wait for a thread.
const QUEUE_LEN: usize = 256;
/// Files up to this length are read as a whole, in bytes.
pub const SMALL_LEN: u64 = 1 << 20;

/// Longer files are read in pieces of this length, in bytes.
pub const CHUNK_LEN: usize = 4 << 20;

/// The result of reading ahead.
pub enum Loaded {
    Content(Vec<u8>),
    /// The file begins like a SQLite database.
    Database,
    /// The file has grown beyond the length of a small one.
    Long,
}

struct Job {
    path: PathBuf,
    is_raw: bool,
    reply: SyncSender<io::Result<Loaded>>,
}

/// The reading threads. They end when this is dropped.
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
                    // Nobody waits for it if the command has failed meanwhile.
                    let _ = reply.send(load(&path, is_raw));
                }
            })?;
        }
        Ok(Readers { jobs })
    }

    /// Queues a file for reading. The result arrives in the returned receiver.
    pub fn read(&self, path: &Path, is_raw: bool) -> Receiver<io::Result<Loaded>> {
        let (reply, loaded) = sync_channel(1);
        // Without a thread, the caller finds the receiver disconnected.
        let _ = self.jobs.send(Job { path: path.into(), is_raw, reply });
        loaded
    }
}

/// Opens a file without following a symbolic link, should it have become one, and without blocking.
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

/// Hands a whole file to `sink`, without reading the holes that the file system knows.
pub fn read_sparse(file: &File, sink: &mut Sink<'_>) -> Result<(), Reason> {
    let len = file.metadata()?.len();
    let mut buffer = vec![0; CHUNK_LEN];
    let mut offset = 0;
    loop {
        let data = match rustix::fs::seek(file, SeekFrom::Data(offset)) {
            Ok(data) => data,
            // A hole that extends to the end.
            Err(rustix::io::Errno::NXIO) => len.max(offset),
            // A file system without support for holes.
            Err(_) => offset,
        };
        if data > offset {
            sink(Piece::Hole(data - offset))?;
            offset = data;
        }
        let end = rustix::fs::seek(file, SeekFrom::Hole(offset)).unwrap_or(u64::MAX);
        while offset < end {
            let wanted = (end - offset).min(CHUNK_LEN as u64) as usize;
            let n = read_full(file, &mut buffer[..wanted], offset)?;
            if n > 0 {
                sink(Piece::Bytes(&buffer[..n]))?;
            }
            offset += n as u64;
            if n < wanted {
                return Ok(());
            }
        }
        if offset >= len && end == offset {
            return Ok(());
        }
    }
}
