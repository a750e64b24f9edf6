//! A cache that processes share: a bounded file of decoded blocks, in memory or on a fast disk.
//!
//! It is for reads that would otherwise fetch and decode a whole record for one page: the first
//! ones of a process, and those of pools on slow media. It holds blocks of up to 4 KiB of decoded
//! records and patches, and decoded nodes of trees.
//!
//! ```text
//! front    "HPKcache", version u32, 0 u32, number of sets u64, XXH3-64 of these 24 bytes     4096
//! sets     512 bytes each, see `set.rs`, filled up to a multiple of 4096
//! blocks   16 of 4096 bytes for each set
//! ```
//!
//! * Nothing depends on it. A block counts only if it matches the checksum of key and bytes (see
//!   `key.rs`), so garbage, torn writes and blocks of other pools are misses. So are errors.
//! * No entry is stale: a key says which extent is meant by its place and its checksum, as in
//!   `store/cache.rs`. What verifies a pool reads the pool.
//! * The file never grows beyond the length it was created with. Nothing locks it for reading or
//!   writing.
//! * Only its owner can read or change the file (see `device/cache_file.rs`).

mod key;
mod reads;
mod set;
mod setting;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use twox_hash::XxHash3_64;

pub(crate) use self::key::Key;
use self::set::{Entry, PLACE_COUNT, SET_LEN, Set};
pub use self::setting::SharedCacheSetting;
use crate::device::CacheFile;

/// The longest block in bytes.
pub(crate) const BLOCK_LEN: usize = 4096;
const FRONT_LEN: u64 = 4096;
const MAGIC: &[u8; 8] = b"HPKcache";
const VERSION: u32 = 1;
/// The smallest file: its front, a page of sets, and their blocks.
const LEN_MIN: u64 = 1 << 20;
/// How many blocks are remembered as being in the file, at most.
const KNOWN_COUNT_MAX: u64 = 1 << 16;
/// How many blocks are not written after a write failed, which it may for want of space.
const PAUSE_COUNT: u64 = 1000;
/// After this many blocks, a look whether the file still has its name.
const LOOK_INTERVAL: u64 = 256;

/// A cache that processes of one user share.
#[derive(Debug)]
pub struct SharedCache {
    path: PathBuf,
    /// The length that a new file would get.
    len: u64,
    /// `None` once the file cannot be used any more.
    table: RwLock<Option<Table>>,
    /// Part of the hashes of blocks that are in the file, as this process knows: what a process has
    /// in its own memory is not offered again and again.
    known: Mutex<Vec<u16>>,
    /// How many more blocks are not written.
    pause: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    stored: AtomicU64,
}

/// What a process has used a shared cache for, and its size.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SharedCacheStats {
    /// The blocks that were found.
    pub hits: u64,
    /// The blocks that were not found, or did not match their checksum.
    pub misses: u64,
    /// The blocks that were added.
    pub stored: u64,
    /// The length that the file never exceeds, in bytes.
    pub capacity_bytes: u64,
    /// The space that the file takes, in bytes.
    pub used_bytes: u64,
    /// The file.
    pub path: PathBuf,
}

#[derive(Debug)]
struct Table {
    file: CacheFile,
    set_count: u64,
}

/// What is under the name of a cache.
enum Found {
    Nothing,
    Table(Table),
    /// A cache of another version, or a damaged one.
    Other,
}

/// Returns the number of sets of a file that is at most `len` bytes long.
fn set_count_for(len: u64) -> u64 {
    let set_len = (SET_LEN + PLACE_COUNT * BLOCK_LEN) as u64;
    // A page for the front, and at most another one to fill up the sets.
    (len.max(LEN_MIN) - 2 * FRONT_LEN) / set_len
}

fn front_of(set_count: u64) -> [u8; FRONT_LEN as usize] {
    let mut front = [0; FRONT_LEN as usize];
    front[..8].copy_from_slice(MAGIC);
    front[8..12].copy_from_slice(&VERSION.to_le_bytes());
    front[16..24].copy_from_slice(&set_count.to_le_bytes());
    let sum = XxHash3_64::oneshot(&front[..24]);
    front[24..32].copy_from_slice(&sum.to_le_bytes());
    front
}

impl Table {
    fn find(path: &Path) -> io::Result<Found> {
        let Some(file) = CacheFile::open(path)? else { return Ok(Found::Nothing) };
        let mut front = [0; FRONT_LEN as usize];
        // An empty file may be about to become something else.
        if !file.read_at(&mut front, 0) || !front.starts_with(MAGIC) {
            file.leave();
            let text = format!("'{}' is not a shared cache", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let mut count = [0; 8];
        count.copy_from_slice(&front[16..24]);
        let set_count = u64::from_le_bytes(count);
        // No file is longer, and no offset overflows.
        if front != front_of(set_count) || !(1..1 << 40).contains(&set_count) {
            return Ok(Found::Other);
        }
        Ok(Found::Table(Table { file, set_count }))
    }

    /// Opens the cache at `path`, or makes one of `len` bytes. One of another length is replaced
    /// unless somebody uses it; then it is used as it is.
    fn open(path: &Path, len: u64) -> io::Result<Table> {
        let set_count = set_count_for(len);
        let create = |replaces| {
            let len =
                Table::blocks_offset(set_count) + set_count * PLACE_COUNT as u64 * BLOCK_LEN as u64;
            CacheFile::create(path, len, &front_of(set_count), replaces)
        };
        match Table::find(path)? {
            Found::Nothing => create(false)?,
            Found::Other => create(true)?,
            Found::Table(table) if table.set_count == set_count || !table.file.is_unused() => {
                table.file.share();
                return Ok(table);
            }
            Found::Table(_) => create(true)?,
        }
        match Table::find(path)? {
            Found::Table(table) => {
                table.file.share();
                Ok(table)
            }
            _ => Err(io::Error::other(format!("'{}' changes all the time", path.display()))),
        }
    }

    fn blocks_offset(set_count: u64) -> u64 {
        FRONT_LEN + (set_count * SET_LEN as u64).next_multiple_of(FRONT_LEN)
    }

    fn set_offset(index: u64) -> u64 {
        FRONT_LEN + index * SET_LEN as u64
    }

    fn block_offset(&self, index: u64, place: usize) -> u64 {
        let block = index * PLACE_COUNT as u64 + place as u64;
        Self::blocks_offset(self.set_count) + block * BLOCK_LEN as u64
    }

    fn set(&self, index: u64) -> Option<Set> {
        let mut set = Set([0; SET_LEN]);
        self.file.read_at(&mut set.0, Self::set_offset(index)).then_some(set)
    }

    /// Fills the front of `out` with a block. Returns its length and note.
    fn get(&self, key: &Key, out: &mut [u8]) -> Option<(usize, u8)> {
        let index = key.set(self.set_count);
        let set = self.set(index)?;
        for place in set.find(key.tag()) {
            let entry = set.entry(place);
            let Some(block) = out.get_mut(..usize::from(entry.len)) else { continue };
            if !self.file.read_at(block, self.block_offset(index, place)) {
                continue;
            }
            if key.sum(entry.note, block) != entry.sum {
                // It would otherwise pass for the block when that is offered again.
                let mut set = set.clone();
                set.set_entry(place, &Entry::default());
                self.file.write_at(&set.0, Self::set_offset(index));
                return None;
            }
            if let Some(heat) = set.warmed(place) {
                let at = Self::set_offset(index) + Set::heat_offset(place) as u64;
                self.file.write_at(&[heat], at);
            }
            return Some((block.len(), entry.note));
        }
        None
    }

    /// Adds a block unless it is there. Returns whether it did; `None` if it could not.
    fn put(&self, key: &Key, note: u8, block: &[u8]) -> Option<bool> {
        let index = key.set(self.set_count);
        let mut set = self.set(index)?;
        let sum = key.sum(note, block);
        if set.find(key.tag()).any(|place| set.entry(place).sum == sum) {
            return Some(false);
        }
        let len = u16::try_from(block.len()).ok()?;
        let place = set.admit(&Entry { sum, tag: key.tag(), len, note, heat: 0 });
        let done = self.file.write_at(block, self.block_offset(index, place))
            && self.file.write_at(&set.0, Self::set_offset(index));
        done.then_some(true)
    }
}

impl SharedCache {
    /// Opens the cache in a file, which is created with at most `len` bytes if there is none.
    ///
    /// # Errors
    /// [`io::ErrorKind::PermissionDenied`] if others may read or change the file,
    /// [`io::ErrorKind::InvalidData`] if it is something else, and those of the system.
    pub fn open(path: &Path, len: u64) -> io::Result<Arc<SharedCache>> {
        let table = Table::open(path, len)?;
        let known_count = (table.set_count * PLACE_COUNT as u64).min(KNOWN_COUNT_MAX);
        Ok(Arc::new(SharedCache {
            path: path.to_owned(),
            len,
            table: RwLock::new(Some(table)),
            known: Mutex::new(vec![0; known_count as usize]),
            pause: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            stored: AtomicU64::new(0),
        }))
    }

    /// Fills the front of `out` with a block. Returns its length and note.
    pub(crate) fn get(&self, key: &Key, out: &mut [u8]) -> Option<(usize, u8)> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let found = table.as_ref().and_then(|table| table.get(key, out));
        let counter = if found.is_some() {
            &self.hits
        } else {
            // Others may have displaced what this process has added.
            self.forget_known(key);
            &self.misses
        };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// Adds a block, of at most [`BLOCK_LEN`] bytes, unless it is there.
    pub(crate) fn put(&self, key: &Key, note: u8, block: &[u8]) {
        if block.is_empty() || block.len() > BLOCK_LEN || self.is_known(key) || self.is_paused() {
            return;
        }
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let Some(done) = table.as_ref().map(|table| table.put(key, note, block)) else { return };
        drop(table);
        match done {
            Some(is_new) => {
                self.note_known(key);
                let count = self.stored.fetch_add(u64::from(is_new), Ordering::Relaxed);
                if is_new && count % LOOK_INTERVAL == LOOK_INTERVAL - 1 {
                    self.follow();
                }
            }
            None => self.pause.store(PAUSE_COUNT, Ordering::Relaxed),
        }
    }

    /// Counts blocks that are not written because a write failed.
    fn is_paused(&self) -> bool {
        let left = self.pause.load(Ordering::Relaxed);
        if left > 0 {
            // Lost updates do not matter.
            self.pause.store(left - 1, Ordering::Relaxed);
        }
        left > 0
    }

    /// Uses the file that now has the name, if the file in use has lost it. One of another version
    /// is not replaced again: the two versions would never come to rest.
    fn follow(&self) {
        let is_gone = |table: &Option<Table>| table.as_ref().is_some_and(|it| it.file.is_gone());
        if !is_gone(&self.table.read().unwrap_or_else(PoisonError::into_inner)) {
            return;
        }
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if !is_gone(&table) {
            return;
        }
        *table = match Table::find(&self.path) {
            Ok(Found::Table(found)) => {
                found.file.share();
                Some(found)
            }
            Ok(Found::Nothing) => Table::open(&self.path, self.len).ok(),
            Ok(Found::Other) | Err(_) => None,
        };
        self.known.lock().unwrap_or_else(PoisonError::into_inner).fill(0);
    }

    fn is_known(&self, key: &Key) -> bool {
        // Another thread is at it: this block can wait for another time.
        let Ok(known) = self.known.try_lock() else { return true };
        let (index, mark) = known_place(key, known.len());
        known[index] == mark
    }

    fn forget_known(&self, key: &Key) {
        let Ok(mut known) = self.known.try_lock() else { return };
        let (index, mark) = known_place(key, known.len());
        if known[index] == mark {
            known[index] = 0;
        }
    }

    fn note_known(&self, key: &Key) {
        let Ok(mut known) = self.known.try_lock() else { return };
        let (index, mark) = known_place(key, known.len());
        known[index] = mark;
    }

    /// Returns what this process has used the cache for.
    pub fn stats(&self) -> SharedCacheStats {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let of_file = |value: fn(&CacheFile) -> u64| table.as_ref().map_or(0, |it| value(&it.file));
        SharedCacheStats {
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            stored: self.stored.load(Ordering::Relaxed),
            capacity_bytes: of_file(CacheFile::len_bytes),
            used_bytes: of_file(CacheFile::used_bytes),
            path: self.path.clone(),
        }
    }
}

fn known_place(key: &Key, count: usize) -> (usize, u16) {
    let number = key.number();
    (number as usize % count, (number >> 32) as u16 | 1)
}
