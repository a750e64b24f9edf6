//! Opening pools, and reading the file in one.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use hardpack_engine::Txg;
use hardpack_engine::device::FileDevice;
use hardpack_engine::pool::{File, Options, Pool};

use crate::failure::{Code, Reason};
use crate::sqlite;

const CACHE_BYTES: u64 = 64 << 20;
/// How much of a file is read at a time.
const READ_LEN: u64 = 2 << 20;

/// What identifies a sequence of bytes: their number, and their BLAKE3 hash.
#[derive(Default)]
pub struct Digest {
    hasher: blake3::Hasher,
}

impl Digest {
    pub fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
    }

    /// How many bytes there were.
    pub fn len(&self) -> u64 {
        self.hasher.count()
    }
}

impl PartialEq for Digest {
    fn eq(&self, other: &Digest) -> bool {
        self.len() == other.len() && self.hasher.finalize() == other.hasher.finalize()
    }
}

/// How a pool is run by a command.
pub fn options(threads: Option<u16>) -> Options {
    let options = Options::new(CACHE_BYTES);
    match threads {
        Some(threads) => Options { threads: usize::from(threads), ..options },
        None => options,
    }
}

/// Opens a pool to read it.
pub fn open_read_only(path: &Path, threads: Option<u16>) -> Result<Pool, Reason> {
    open(path, FileDevice::open_read_only, threads)
}

/// Opens a pool to read it, as it was at an older state where one is given.
pub fn open_state(path: &Path, txg: Option<u64>, threads: Option<u16>) -> Result<Pool, Reason> {
    let Some(txg) = txg else { return open_read_only(path, threads) };
    let device = open_device(path, FileDevice::open_read_only)?;
    Ok(Pool::open_at(Arc::new(device), options(threads), Txg(txg))?)
}

/// Opens a pool to change it.
pub fn open_writable(path: &Path, threads: Option<u16>) -> Result<Pool, Reason> {
    open(path, FileDevice::open, threads)
}

/// A path that leads into a pool, where that as a whole is what a command works on.
fn whole_only(error: std::io::Error) -> Reason {
    match error.kind() {
        std::io::ErrorKind::NotADirectory => {
            Reason::new(Code::Cannot, "this works on a whole pool").hint("give the pool alone")
        }
        _ => error.into(),
    }
}

/// Opens what should be a pool.
pub fn open_device(
    path: &Path,
    open_device: impl FnOnce(&Path) -> std::io::Result<FileDevice>,
) -> Result<FileDevice, Reason> {
    // Before it is opened: that would wait for the other end of a pipe.
    let kind = std::fs::metadata(path).map_err(whole_only)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(Reason::new(Code::NotAPool, "it is not an ordinary file"));
    }
    Ok(open_device(path)?)
}

fn open(
    path: &Path,
    open: impl FnOnce(&Path) -> std::io::Result<FileDevice>,
    threads: Option<u16>,
) -> Result<Pool, Reason> {
    let device = open_device(path, open)?;
    let mut head = [0; sqlite::MAGIC.len()];
    let n = crate::snapshot::read_full(device.file(), &mut head, 0)?;
    let opened = Pool::open(Arc::new(device), options(threads));
    opened.map_err(|error| {
        let reason = Reason::from(error);
        if reason.code == Code::NotAPool && n == head.len() && head == *sqlite::MAGIC {
            let text = "not a Hardpack pool but a plain SQLite database";
            return Reason::new(Code::NotAPool, text)
                .hint(format!("'hardpack pack {}' makes a pool of it", path.display()));
        }
        reason
    })
}

/// Whether a file of a pool is a SQLite database.
pub fn is_database(file: &File) -> Result<bool, Reason> {
    let mut head = [0; sqlite::MAGIC.len()];
    let n = file.read_at(&mut head, 0)?;
    Ok(n == head.len() && head == *sqlite::MAGIC)
}

/// Reads a file of `len` bytes from its beginning to its end, see [`read_range`].
pub fn read_all(
    file: &File,
    len: u64,
    threads: usize,
    sink: &mut dyn FnMut(&[u8]) -> Result<(), Reason>,
) -> Result<(), Reason> {
    read_range(file, (0, len), threads, sink)
}

/// Reads the bytes of a file from `from` to `to`, on all cores, and hands them to `sink` in order.
pub fn read_range(
    file: &File,
    (from, to): (u64, u64),
    threads: usize,
    sink: &mut dyn FnMut(&[u8]) -> Result<(), Reason>,
) -> Result<(), Reason> {
    let len = to - from;
    let count = len.div_ceil(READ_LEN);
    let threads = (threads as u64).clamp(1, count.max(1));
    let read = |index: u64| {
        let start = index * READ_LEN;
        let mut bytes = vec![0; (len - start).min(READ_LEN) as usize];
        let n = file.read_at(&mut bytes, from + start)?;
        if n < bytes.len() {
            return Err(Reason::new(Code::InUse, "it became shorter while it was read"));
        }
        Ok(bytes)
    };
    if count <= 1 {
        // A thread would take longer than the work.
        return (0..count).try_for_each(|index| sink(&read(index)?));
    }
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..threads)
            .map(|first| {
                let (sender, receiver) = sync_channel(1);
                let work = move || {
                    for index in (first..count).step_by(threads as usize) {
                        let bytes = read(index);
                        let failed = bytes.is_err();
                        // Nobody receives any more where the sink failed.
                        if sender.send(bytes).is_err() || failed {
                            return;
                        }
                    }
                };
                std::thread::Builder::new().spawn_scoped(scope, work).map(|_| receiver)
            })
            .collect::<std::io::Result<_>>()?;
        for index in 0..count {
            let received = readers[(index % threads) as usize].recv();
            let bytes =
                received.map_err(|_| Reason::new(Code::Cannot, "a reading thread stopped"))??;
            sink(&bytes)?;
        }
        Ok(())
    })
}
