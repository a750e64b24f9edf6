//! What `pack` reads: a file or database as of one moment, or standard input.

use std::cell::Cell;
use std::fs::Metadata;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use hardpack::unused::Clearing;

use crate::commands::names::{now_ns, umask};
use crate::failure::Reason;
use crate::signals;
use crate::snapshot::{Sink, Snapshot};

/// The permissions of what comes from standard input, before the mask of the process.
const MODE: u32 = 0o666;

pub enum Input<'s> {
    File(&'s Path, &'s Snapshot),
    Standard {
        name: String,
        /// The number of bytes read so far.
        len: Cell<u64>,
    },
}

impl Input<'_> {
    /// Standard input, which is named after the pool to create.
    pub fn standard(output: &Path) -> Input<'static> {
        let name = match output.extension() {
            Some(ending) if ending == "hpk" => output.file_stem(),
            _ => output.file_name(),
        };
        let name = name.unwrap_or_default().to_string_lossy().into_owned();
        Input::Standard { name, len: Cell::new(0) }
    }

    /// The name of the file in the pool.
    pub fn name(&self) -> String {
        match self {
            Input::File(path, _) => {
                path.file_name().unwrap_or_default().to_string_lossy().into_owned()
            }
            Input::Standard { name, .. } => name.clone(),
        }
    }

    /// The page size, if this is a database that SQLite has opened.
    pub fn page_len(&self) -> Option<u32> {
        match self {
            Input::File(_, snapshot) => snapshot.page_len(),
            Input::Standard { .. } => None,
        }
    }

    /// The length in bytes, as far as it is known.
    pub fn len(&self) -> Result<u64, Reason> {
        match self {
            Input::File(_, snapshot) => snapshot.len(),
            Input::Standard { len, .. } => Ok(len.get()),
        }
    }

    pub fn mode(&self) -> u32 {
        match self {
            Input::File(_, snapshot) => snapshot.metadata().mode() & 0o7777,
            Input::Standard { .. } => MODE & !umask(),
        }
    }

    pub fn modified_ns(&self) -> i64 {
        let of =
            |m: &Metadata| m.mtime().saturating_mul(1_000_000_000).saturating_add(m.mtime_nsec());
        match self {
            Input::File(_, snapshot) => of(snapshot.metadata()),
            Input::Standard { .. } => now_ns(),
        }
    }

    /// Finds the parts of a database that need not be kept, if that is certain.
    pub fn clearing(&self) -> Result<Option<Clearing>, Reason> {
        match self {
            Input::File(_, snapshot) => snapshot.clearing(),
            Input::Standard { .. } => Ok(None),
        }
    }

    /// Reads all of it in pieces of `chunk_len` bytes; only the last may be shorter.
    pub fn read(&self, chunk_len: usize, sink: &mut Sink<'_>) -> Result<(), Reason> {
        match self {
            Input::File(_, snapshot) => snapshot.read(chunk_len, sink),
            Input::Standard { len, .. } => read_standard(chunk_len, len, sink),
        }
    }
}

fn read_standard(chunk_len: usize, len: &Cell<u64>, sink: &mut Sink<'_>) -> Result<(), Reason> {
    let mut stdin = std::io::stdin().lock();
    let mut chunk = Vec::with_capacity(chunk_len);
    loop {
        chunk.clear();
        let n = (&mut stdin).take(chunk_len as u64).read_to_end(&mut chunk)?;
        signals::check()?;
        if n > 0 {
            len.set(len.get() + n as u64);
            sink(&chunk)?;
        }
        if n < chunk_len {
            return Ok(());
        }
    }
}
