//! Directories that are being listed. The kernel goes through a directory by offsets, the pool by
//! names.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fuser::INodeNo;
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
    /// The directories whose lists the kernel may have kept, and the epochs (see `known/`) in which
    /// it began to.
    kept: Mutex<BTreeMap<INodeNo, u64>>,
}

/// How many places in a directory are remembered while it is open.
const PLACES_MAX: usize = 4096;

/// How a directory has been listed. The kernel may come back to an entry that it had no room for,
/// so the last places are remembered: from there the names decide where to go on, and nothing is
/// left out when names are removed in between.
struct Listing {
    directory: FileId,
    /// In the order of their offsets.
    places: VecDeque<At>,
    /// See [`Tree::tell_lost`].
    losses_known: u64,
}

/// A place in a list.
#[derive(Clone)]
struct At {
    /// The offset that comes next, and the name before it.
    offset: u64,
    after: Option<Vec<u8>>,
}

impl At {
    const START: At = At { offset: FIRST_OFFSET, after: None };
}

impl Listing {
    /// Returns the last known place that is not behind an offset.
    fn nearest(&self, offset: u64) -> At {
        let count = self.places.partition_point(|at| at.offset <= offset);
        count.checked_sub(1).and_then(|last| self.places.get(last)).cloned().unwrap_or(At::START)
    }

    /// Remembers places that follow each other.
    fn remember(&mut self, passed: Vec<At>) {
        let Some(first) = passed.first() else { return };
        let kept = self.places.partition_point(|at| at.offset < first.offset);
        self.places.truncate(kept);
        self.places.extend(passed);
        let excess = self.places.len().saturating_sub(PLACES_MAX);
        self.places.drain(..excess);
    }
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

    /// Whether the kernel may use the list of a directory that it has kept, which it may keep from
    /// now on.
    pub fn may_keep(&self, directory: INodeNo, epoch: u64) -> bool {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.insert(directory, epoch) == Some(epoch)
    }

    /// Notes that the kernel has forgotten a directory.
    pub fn forget(&self, directory: INodeNo) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).remove(&directory);
    }

    /// Opens a directory, and returns its handle.
    pub fn open(&self, tree: &Tree, directory: FileId) -> u64 {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        let (places, losses_known) = (VecDeque::new(), tree.losses_told());
        self.open_ones().insert(handle, Listing { directory, places, losses_known });
        handle
    }

    /// Makes everything durable, as is asked of a directory. Tells if changes were lost that nobody
    /// was told of before the directory was opened.
    pub fn sync(&self, tree: &Tree, handle: u64) -> Answer<()> {
        let done = tree.sync_all();
        if let Some(listing) = self.open_ones().get_mut(&handle) {
            tree.tell_lost(&mut listing.losses_known)?;
        }
        Ok(done?)
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
        let mut passed = Vec::new();
        'all: loop {
            let entries = tree.list(directory, at.after.as_deref(), CHUNK_COUNT)?;
            for entry in &entries {
                let DirEntry { file, kind, name, .. } = entry;
                let offset = at.offset + 1;
                if add(Listed { file: *file, kind: *kind, name, offset, is_dot: false })? {
                    break 'all;
                }
                at = At { offset, after: Some(name.clone()) };
                passed.push(at.clone());
            }
            if entries.len() < CHUNK_COUNT {
                break;
            }
        }
        if let Some(listing) = self.open_ones().get_mut(&handle) {
            listing.remember(passed);
        }
        Ok(())
    }

    /// Returns the place at an offset. If it is not remembered, counts from the nearest one before
    /// it.
    fn find(&self, tree: &Tree, handle: u64, directory: FileId, offset: u64) -> Answer<At> {
        let mut at = match self.open_ones().get(&handle) {
            Some(listing) if listing.directory == directory => listing.nearest(offset),
            _ => At::START,
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
