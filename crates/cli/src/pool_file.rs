//! Opens pools, and reads files in them.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, OnceLock};

use hardpack::memory::cache_len;
use hardpack_engine::device::{Device, FileDevice};
use hardpack_engine::pool::{File, Options, Pool};
use hardpack_engine::store::scan;
use hardpack_engine::{CutShort, Error, FileId, SharedCache, SharedCacheSetting, Txg};

use crate::failure::{Code, Reason};
use crate::{output, signals, sqlite, text};

/// Names the cache that processes share.
pub const SHARED_CACHE_VARIABLE: &str = "HARDPACK_SHARED_CACHE";
/// The number of bytes read at a time.
const READ_LEN: u64 = 2 << 20;

/// The identity of a byte sequence: its length and its BLAKE3 hash.
#[derive(Default)]
pub struct Digest {
    hasher: blake3::Hasher,
}

impl Digest {
    pub fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
    }

    /// The number of bytes hashed.
    pub fn len(&self) -> u64 {
        self.hasher.count()
    }

    /// The hash, without the length.
    pub fn hash(&self) -> [u8; 32] {
        *self.hasher.finalize().as_bytes()
    }
}

impl PartialEq for Digest {
    fn eq(&self, other: &Digest) -> bool {
        self.len() == other.len() && self.hasher.finalize() == other.hasher.finalize()
    }
}

/// The options with which commands open a pool.
pub fn options(threads: Option<u16>) -> Options {
    let (is_stopped, shared_cache) = (signals::is_interrupted as fn() -> bool, shared_cache());
    let options = Options { is_stopped, shared_cache, ..Options::new(cache_len()) };
    match threads {
        Some(threads) => Options { threads: Some(threads.into()), ..options },
        None => options,
    }
}

/// Returns the cache that the environment asks for. Nothing depends on it, so it is no error if it
/// cannot be used; `hardpack doctor` says why.
fn shared_cache() -> Option<Arc<SharedCache>> {
    static SHARED: OnceLock<Option<Arc<SharedCache>>> = OnceLock::new();
    let open = || {
        let text = std::env::var(SHARED_CACHE_VARIABLE).ok()?;
        text.parse::<SharedCacheSetting>().ok()?.open().ok().flatten()
    };
    SHARED.get_or_init(open).clone()
}

/// Opens a pool for reading, and says so if it was cut short.
pub fn open_read_only(path: &Path, threads: Option<u16>) -> Result<Pool, Reason> {
    let pool = open(path, FileDevice::open_read_only, threads)?;
    tell_cut_short(path, pool.store().cut_short());
    Ok(pool)
}

/// Tells the user that a pool that is read was cut short.
pub fn tell_cut_short(path: &Path, cut: Option<CutShort>) {
    if let Some(cut) = cut {
        let shown = text::path(path);
        output::tell(format_args!("note: '{shown}': {cut}; what is left is read"));
    }
}

/// Opens a pool for reading, at an older state if `txg` names one.
pub fn open_state(path: &Path, txg: Option<u64>, threads: Option<u16>) -> Result<Pool, Reason> {
    let Some(txg) = txg else { return open_read_only(path, threads) };
    let device = open_device(path, FileDevice::open_read_only)?;
    Ok(Pool::open_at(Arc::new(device), options(threads), Txg(txg))?)
}

/// Opens a pool for writing. A file that cannot be written, or was cut short, is refused here,
/// before any work.
pub fn open_writable(path: &Path, threads: Option<u16>) -> Result<Pool, Reason> {
    let pool = open_even_cut(path, threads)?;
    match pool.store().cut_short() {
        Some(cut) => Err(Error::CutShort(cut).into()),
        None => Ok(pool),
    }
}

/// Like [`open_writable`], for commands that can make a pool whole again that was cut short.
pub fn open_even_cut(path: &Path, threads: Option<u16>) -> Result<Pool, Reason> {
    let pool = open(path, FileDevice::open, threads)?;
    if pool.store().device().is_read_only() {
        return Err(Error::ReadOnly("its file cannot be written").into());
    }
    Ok(pool)
}

/// Explains the error for a path into a pool, given to a command that works on whole pools.
fn whole_only(error: std::io::Error) -> Reason {
    match error.kind() {
        std::io::ErrorKind::NotADirectory => {
            Reason::new(Code::Cannot, "this works on a whole pool")
                .hint("name the pool without a path in it")
        }
        _ => error.into(),
    }
}

/// Opens the file of a pool, if it can be one.
pub fn open_device(
    path: &Path,
    open_device: impl FnOnce(&Path) -> std::io::Result<FileDevice>,
) -> Result<FileDevice, Reason> {
    // Checked before opening, which would block on a pipe.
    let kind = std::fs::metadata(path).map_err(whole_only)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(Reason::new(Code::NotAPool, "it is not a regular file"));
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
    let device = Arc::new(device);
    let opened = Pool::open(Arc::clone(&device) as _, options(threads));
    opened.map_err(|error| match error {
        Error::NotAPool(_) if n == head.len() && head == *sqlite::MAGIC => {
            let text = "not a Hardpack pool but a plain SQLite database";
            Reason::new(Code::NotAPool, text)
                .hint(format!("'hardpack pack {}' makes a pool from it", text::path(path)))
        }
        Error::NotAPool(_) => not_a_pool(path, device, error),
        error => error.into(),
    })
}

/// The reason for a file without the header of a pool: one that looks like a damaged pool can be
/// salvaged.
fn not_a_pool(path: &Path, device: Arc<FileDevice>, error: Error) -> Reason {
    let device: Arc<dyn Device> = device;
    let is_named_so = path.extension().is_some_and(|ending| ending == "hpk");
    let shown = text::path(path);
    if let Ok(Some(_)) = scan::identify(&device, None) {
        return Reason::new(Code::Data, "it looks like a damaged pool: its header is lost")
            .hint(format!("'hardpack salvage {shown} OUT' copies out what can be read"));
    }
    let reason = Reason::from(error);
    match is_named_so && device.len().is_ok_and(|len| len > 0) {
        true => reason.hint(format!(
            "if it was a pool, 'hardpack salvage {shown} OUT' searches all of it for data"
        )),
        false => reason,
    }
}

/// Whether a file of a pool is a SQLite database.
pub fn is_database(file: &File) -> Result<bool, Reason> {
    let mut head = [0; sqlite::MAGIC.len()];
    let n = file.read_at(&mut head, 0)?;
    Ok(n == head.len() && head == *sqlite::MAGIC)
}

/// Reads a whole file of `len` bytes; see [`read_range`].
pub fn read_all(
    file: &File,
    len: u64,
    threads: usize,
    sink: &mut dyn FnMut(&[u8]) -> Result<(), Reason>,
) -> Result<(), Reason> {
    read_range(file, (0, len), threads, sink)
}

/// Reads the bytes from `from` to `to` of a file on `threads` threads, and hands them to `sink` in
/// order.
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
        // Starting a thread would take longer than reading.
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
                        // If the sink failed, nobody receives any more.
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
            let bytes = received
                .map_err(|_| Reason::from(Error::Internal("a reading thread stopped".into())))??;
            sink(&bytes)?;
        }
        Ok(())
    })
}

/// What a file of a pool is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileKind {
    /// A database in a rollback mode.
    Rollback,
    /// A database in write-ahead log mode, or of a kind to come.
    Wal,
    /// No database.
    Other,
}

/// Tells what a file of a pool is.
pub fn kind_of(pool: &Pool, file: FileId) -> Result<FileKind, Reason> {
    let file = pool.file(file)?;
    if !is_database(&file)? {
        return Ok(FileKind::Other);
    }
    let mut versions = [0; 2];
    let n = file.read_at(&mut versions, sqlite::VERSIONS_OFFSET)?;
    let is_rollback = n == versions.len() && versions == [1, 1];
    Ok(if is_rollback { FileKind::Rollback } else { FileKind::Wal })
}
