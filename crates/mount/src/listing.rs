//! Directories that are being listed. The kernel goes through a directory by offsets, the pool by
//! names.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hardpack_engine::FileId;
use hardpack_engine::pool::{DirEntry, Kind};

use crate::errno::Answer;
use crate::tree::Tree;

/// How many names are looked at together.
const CHUNK_COUNT: usize = 256;
/// The offset behind "." and "..".
const FIRST_OFFSET: u64 = 2;

/// The directories that are open.
#[derive(Default)]
pub struct Listings {
    next: AtomicU64,
    open: Mutex<BTreeMap<u64, Listing>>,
}

/// How far a directory has been listed. While offsets follow each other, the names decide where to
/// go on, so nothing is left out when names are removed in between.
#[derive(Clone)]
struct Listing {
    directory: FileId,
    /// The offset that comes next, and the name before it.
    offset: u64,
    after: Option<Vec<u8>>,
}

/// An entry of a list.
pub struct Listed<'e> {
    pub file: FileId,
    pub kind: Kind,
    pub name: &'e [u8],
    /// Where the list goes on behind it.
    pub offset: u64,
    /// Whether it is "." or "..".
    pub is_dot: bool,
}

impl Listings {
    fn open_ones(&self) -> MutexGuard<'_, BTreeMap<u64, Listing>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a directory, and returns its handle.
    pub fn open(&self, directory: FileId) -> u64 {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        let start = Listing { directory, offset: FIRST_OFFSET, after: None };
        self.open_ones().insert(handle, start);
        handle
    }

    /// Closes a directory.
    pub fn close(&self, handle: u64) {
        self.open_ones().remove(&handle);
    }

    /// Lists a directory from an offset on, until `add` returns true because there is no room left.
    pub fn list(
        &self,
        tree: &Tree,
        (directory, handle): (FileId, u64),
        offset: u64,
        add: &mut dyn FnMut(Listed<'_>) -> Answer<bool>,
    ) -> Answer<()> {
        let dots: [(&[u8], FileId); 2] = [(b".", directory), (b"..", tree.parent(directory)?)];
        for (index, (name, file)) in (0..).zip(dots).skip(offset.min(FIRST_OFFSET) as usize) {
            let kind = Kind::Directory;
            if add(Listed { file, kind, name, offset: index + 1, is_dot: true })? {
                return Ok(());
            }
        }
        let mut at = self.find(tree, handle, directory, offset.max(FIRST_OFFSET))?;
        'all: loop {
            let entries = tree.list(directory, at.after.as_deref(), CHUNK_COUNT)?;
            for entry in &entries {
                let DirEntry { file, kind, name, .. } = entry;
                let offset = at.offset + 1;
                if add(Listed { file: *file, kind: *kind, name, offset, is_dot: false })? {
                    break 'all;
                }
                at.offset = offset;
                at.after = Some(name.clone());
            }
            if entries.len() < CHUNK_COUNT {
                break;
            }
        }
        if let Some(known) = self.open_ones().get_mut(&handle) {
            *known = at;
        }
        Ok(())
    }

    /// Returns the place at an offset. If the list did not end there last time, counts from the
    /// start.
    fn find(&self, tree: &Tree, handle: u64, directory: FileId, offset: u64) -> Answer<Listing> {
        let start = Listing { directory, offset: FIRST_OFFSET, after: None };
        let known = self.open_ones().get(&handle).cloned();
        let known = known.filter(|known| known.directory == directory);
        let mut at = match known {
            Some(known) if known.offset <= offset => known,
            _ => start,
        };
        while at.offset < offset {
            let count = (offset - at.offset).min(CHUNK_COUNT as u64) as usize;
            let entries = tree.list(directory, at.after.as_deref(), count)?;
            let Some(last) = entries.last() else { break };
            at.offset += entries.len() as u64;
            at.after = Some(last.name.clone());
        }
        Ok(at)
    }
}
