//! Reads each byte once, and counts it in blocks of all kinds.
//!
//! ```text
//! feed      collects the bytes of a file into windows of 1 MiB, and cuts content-defined chunks;
//!           a window of zeros ends here
//! queue     a few windows for each thread: this bounds the memory, whatever is read
//! worker    hashes the blocks of a window, adds them to the tables, and compresses the new ones
//! ```
//!
//! What a table holds in the end does not depend on the order in which windows arrive.

use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hardpack_engine::codec::{
    Codec, CodecError, Compression, Encoded, Policy, is_all_zero, is_database, with_codec,
};

use super::blocks::{self, BLOCK_LEN_MAX, Block, CHUNKS_COUNT, COUNT, FIXED_COUNT};
use super::segments::{Origin, Segments};
use super::table::{Limits, Table};
use crate::failure::{Code, Reason};
use crate::signals;

/// The bytes of a file that are worked on at a time.
pub const WINDOW_LEN: usize = BLOCK_LEN_MAX;
/// The most buffers kept for reuse.
const SPARE_COUNT: usize = 16;
/// The filter must save at least 1/`FILTER_GAIN_PART`, as in the engine.
const FILTER_GAIN_PART: usize = 32;

/// A piece of a file.
pub struct Window {
    /// Bytes of chunks that began before, and from `start` on the bytes of this window.
    bytes: Vec<u8>,
    start: usize,
    /// The place of the window in its file.
    offset: u64,
    /// The number of the range that it belongs to, in a sample.
    range: u32,
    chunks: [Vec<Range<usize>>; CHUNKS_COUNT],
    /// Whether these are chunks, and not records.
    is_cut: bool,
    /// The file, if `optimize` would put it into segments.
    origin: Option<Arc<Origin>>,
}

/// The kind of chunks that are put into segments: those of the default record size.
const SEGMENT_KIND: usize = CHUNKS_COUNT - 1;

/// How to count.
pub struct Counting {
    pub compressions: Vec<Compression>,
    pub policy: Policy,
    pub limits: Limits,
    /// For the chunks that may be put into segments, in bytes.
    pub memory: u64,
    /// Whether only ranges of files are read: chunks are not cut then, as those at both ends of a
    /// range would not be those of the file.
    pub is_sample: bool,
}

/// The tables, and what the threads share.
pub struct Scan {
    counting: Counting,
    tables: [Mutex<Table>; COUNT],
    segments: Segments,
    spare: Mutex<Vec<Vec<u8>>>,
    failed: Mutex<Option<CodecError>>,
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn into_inner<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
}

impl Scan {
    pub fn new(counting: Counting) -> Scan {
        let columns = counting.compressions.len();
        let (limits, is_sample) = (counting.limits, counting.is_sample);
        let tables = std::array::from_fn(|_| Mutex::new(Table::new(limits, columns, is_sample)));
        Scan {
            segments: Segments::new(counting.memory),
            counting,
            tables,
            spare: Mutex::default(),
            failed: Mutex::default(),
        }
    }

    /// Returns the filled tables, and what segments would be made of.
    pub fn finish(self) -> Result<(Vec<Table>, Segments), Reason> {
        if let Some(error) = lock(&self.failed).take() {
            return Err(Reason::new(Code::Cannot, error.to_string()));
        }
        Ok((self.tables.into_iter().map(into_inner).collect(), self.segments))
    }

    fn has_chunks(&self) -> bool {
        !self.counting.is_sample
    }

    fn buffer(&self) -> Vec<u8> {
        lock(&self.spare).pop().unwrap_or_default()
    }

    fn add_zeros(&self, len: u64, range: u32) {
        self.tables.iter().for_each(|table| lock(table).add_zeros(len, range));
    }

    /// Works on windows until there are no more.
    pub fn work(&self, queue: &Mutex<Receiver<Window>>) {
        loop {
            let window = lock(queue).recv();
            let Ok(window) = window else { return };
            // After a signal, the rest of the queue is thrown away.
            if !signals::is_interrupted()
                && let Err(error) = self.count(&window)
            {
                lock(&self.failed).get_or_insert(error);
            }
            let mut bytes = window.bytes;
            let mut spare = lock(&self.spare);
            if spare.len() < SPARE_COUNT && bytes.capacity() >= WINDOW_LEN {
                bytes.clear();
                spare.push(bytes);
            }
        }
    }

    fn count(&self, window: &Window) -> Result<(), CodecError> {
        let bytes = &window.bytes[window.start..];
        blocks::fixed(bytes, |kind, blocks| {
            self.add(kind, bytes, blocks, Some(window.offset), window.range)
        })?;
        for (kind, chunks) in window.chunks.iter().enumerate() {
            let chunk = |range: &Range<usize>| blocks::chunk(&window.bytes, range.clone());
            let blocks: Vec<Block> = chunks.iter().map(chunk).collect();
            let place = window.offset - window.start as u64;
            if let Some(origin) = window.origin.as_ref().filter(|_| kind == SEGMENT_KIND) {
                for Block { id, range, .. } in blocks.iter().filter(|block| !block.is_zero) {
                    let start = place + range.start as u64;
                    self.segments.add(origin, start, *id, &window.bytes[range.clone()]);
                }
            }
            let place = (!window.is_cut).then_some(place);
            self.add(FIXED_COUNT + kind, &window.bytes, blocks, place, window.range)?;
        }
        Ok(())
    }

    /// Adds blocks of `bytes` to a table, and compresses those that were not there. `offset` is the
    /// place of `bytes` in their file if blocks may hold whole pages.
    fn add(
        &self,
        kind: usize,
        bytes: &[u8],
        mut blocks: Vec<Block>,
        offset: Option<u64>,
        range: u32,
    ) -> Result<(), CodecError> {
        let mut table = lock(&self.tables[kind]);
        blocks.retain(|block| {
            let len = block.range.len();
            if block.is_zero {
                table.add_zeros(len as u64, range);
                return false;
            }
            table.add(block.id, len as u32, range)
        });
        drop(table);
        for block in blocks {
            if signals::is_interrupted() {
                return Ok(());
            }
            let start = block.range.start as u64;
            let content = &bytes[block.range];
            let sizes = with_codec(|codec| {
                self.counting.sizes(codec, content, offset.map(|offset| offset + start))
            })?;
            lock(&self.tables[kind]).set_sizes(block.id, &sizes);
        }
        Ok(())
    }
}

impl Counting {
    /// Returns the length of a block as stored with each compression.
    fn sizes(
        &self,
        codec: &mut Codec,
        bytes: &[u8],
        offset: Option<u64>,
    ) -> Result<Vec<u32>, CodecError> {
        let is_any = self.compressions.iter().any(|one| *one != Compression::Off);
        let has_pages = is_any && offset.is_some_and(|offset| codec.filter(bytes, offset));
        let mut output = Vec::new();
        let mut size = |compression: &Compression| {
            let plain = match codec.encode(*compression, bytes, &self.policy, &mut output)? {
                Encoded::Raw => bytes.len(),
                _ => output.len(),
            };
            let filtered = match has_pages {
                true => {
                    codec.encode_filtered(*compression, bytes.len(), &self.policy, &mut output)?
                }
                false => None,
            };
            let sectors = |len: usize| len.div_ceil(self.policy.sector);
            let pays = filtered.is_some()
                && sectors(output.len()) < sectors(plain)
                && output.len() + output.len() / FILTER_GAIN_PART <= plain;
            Ok(if pays { output.len() } else { plain } as u32)
        };
        self.compressions.iter().map(&mut size).collect()
    }
}

/// Takes the bytes of one file, or of one range of a sample, in order.
pub struct Feed<'s> {
    scan: &'s Scan,
    queue: &'s SyncSender<Window>,
    range: u32,
    /// The next window, behind bytes of chunks that began before it.
    bytes: Vec<u8>,
    start: usize,
    offset: u64,
    /// Where the next chunk of each kind begins in `bytes`.
    next: [usize; CHUNKS_COUNT],
    /// Whether the file is cut into chunks, as its front tells.
    is_cut: bool,
    /// The file, unless its front tells that `optimize` would leave it alone.
    origin: Option<Arc<Origin>>,
}

impl<'s> Feed<'s> {
    /// Begins at `offset` of a file, a multiple of the length of windows.
    pub fn new(scan: &'s Scan, queue: &'s SyncSender<Window>, offset: u64, range: u32) -> Feed<'s> {
        let (bytes, next) = (scan.buffer(), [0; CHUNKS_COUNT]);
        Feed { scan, queue, range, bytes, start: 0, offset, next, is_cut: true, origin: None }
    }

    /// Begins a file of which all is read.
    pub fn whole(scan: &'s Scan, queue: &'s SyncSender<Window>, origin: Origin) -> Feed<'s> {
        Feed { origin: Some(Arc::new(origin)), ..Feed::new(scan, queue, 0, 0) }
    }

    pub fn bytes(&mut self, mut more: &[u8]) -> Result<(), Reason> {
        while !more.is_empty() {
            let (now, rest) = more.split_at(self.room().min(more.len()));
            self.bytes.extend_from_slice(now);
            self.send_full()?;
            more = rest;
        }
        Ok(())
    }

    /// Takes zeros, which need not be read.
    pub fn hole(&mut self, mut len: u64) -> Result<(), Reason> {
        while len > 0 {
            if self.bytes.len() == self.start && len >= WINDOW_LEN as u64 {
                let whole = len - len % WINDOW_LEN as u64;
                self.zeros(whole)?;
                len -= whole;
                continue;
            }
            let now = (self.room() as u64).min(len) as usize;
            self.bytes.resize(self.bytes.len() + now, 0);
            self.send_full()?;
            len -= now as u64;
        }
        Ok(())
    }

    /// Takes the end of the file.
    pub fn finish(mut self) -> Result<(), Reason> {
        self.send(true)
    }

    fn room(&self) -> usize {
        WINDOW_LEN - (self.bytes.len() - self.start)
    }

    fn send_full(&mut self) -> Result<(), Reason> {
        if self.room() == 0 { self.send(false) } else { Ok(()) }
    }

    /// Sends the window.
    fn send(&mut self, is_end: bool) -> Result<(), Reason> {
        let len = self.bytes.len() - self.start;
        if is_all_zero(&self.bytes[self.start..]) {
            self.bytes.truncate(self.start);
            return self.zeros(len as u64);
        }
        self.send_cut(is_end)?;
        self.offset += len as u64;
        Ok(())
    }

    /// Counts whole windows of zeros, or those at the end of a file. Chunks end before them, so
    /// that it makes no difference whether they are stored as a hole.
    fn zeros(&mut self, len: u64) -> Result<(), Reason> {
        if !self.bytes.is_empty() {
            self.send_cut(true)?;
        }
        self.scan.add_zeros(len, self.range);
        self.offset += len;
        Ok(())
    }

    fn send_cut(&mut self, is_end: bool) -> Result<(), Reason> {
        let mut chunks: [Vec<Range<usize>>; CHUNKS_COUNT] = Default::default();
        if self.offset == 0 && self.start == 0 {
            self.is_cut = blocks::is_cut(&self.bytes);
            // `optimize` leaves databases alone.
            if is_database(&self.bytes) {
                self.origin = None;
            }
        }
        if self.origin.is_none() {
            self.scan.segments.leave_alone((self.bytes.len() - self.start) as u64);
        }
        if self.scan.has_chunks() {
            for (kind, (next, chunks)) in self.next.iter_mut().zip(&mut chunks).enumerate() {
                *next = blocks::cut(kind, (&self.bytes, self.is_cut), *next, is_end, chunks);
            }
        } else {
            self.next.fill(self.bytes.len());
        }
        // What begins an unfinished chunk is needed again.
        let keep_from = self.next.iter().copied().min().unwrap_or(self.bytes.len());
        let mut bytes = self.scan.buffer();
        bytes.extend_from_slice(&self.bytes[keep_from..]);
        self.next.iter_mut().for_each(|next| *next -= keep_from);
        let start = std::mem::replace(&mut self.start, bytes.len());
        let bytes = std::mem::replace(&mut self.bytes, bytes);
        let Feed { offset, range, is_cut, .. } = *self;
        let origin = self.origin.clone();
        let window = Window { bytes, start, offset, range, chunks, is_cut, origin };
        let gone = |_| Reason::from(hardpack_engine::Error::Internal("no thread counts".into()));
        self.queue.send(window).map_err(gone)
    }
}
