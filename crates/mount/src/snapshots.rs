//! `.hardpack/snapshots/NAME` in the mounted directory: the snapshots of the pool, read-only.
//!
//! The directory is found by its name and not listed, as OpenZFS's `.zfs`, so that programs that go
//! through the mounted directory do not meet every state of it. A file of the pool that has this
//! name takes precedence: nothing that is stored is hidden.
//!
//! ```text
//! .hardpack/snapshots/NAME        what the mounted directory was in the snapshot
//! .hardpack/snapshots/NAME@TXG    the same, if NAME is that of another snapshot as well
//! ```
//!
//! A snapshot of something below the mounted directory shows the way to it, and nothing beside. One
//! that has nothing of the mounted directory is not shown. If several have one name, the name alone
//! means the one that has the most of the mounted directory, and of those the newest.
//!
//! A snapshot is opened when something in it is asked for, and closed when the kernel has forgotten
//! all of its files, or when more than [`OPEN_MAX`] are open and none of its files is. It opens
//! again by itself. After a snapshot was destroyed, its name is gone within the time for which the
//! kernel answers by itself; files of it that are open fail with ESTALE from when their space is
//! used again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use fuser::{Errno, FileAttr, FileType, INodeNo};
use hardpack_engine::pool::{DirEntry, Kind, Pool, SnapshotInfo};
use hardpack_engine::{Error, FileId, Result, Txg};

use crate::errno::Answer;
use crate::inodes::{HIDDEN, Inodes, SNAPSHOTS, Slot};
use crate::tree::Tree;

/// The name of the directory that is not listed.
pub const HIDDEN_NAME: &[u8] = b".hardpack";
const SNAPSHOTS_NAME: &[u8] = b"snapshots";
/// Stands between the name of a snapshot and its txg.
const MARK: u8 = b'@';
/// How many snapshots stay open without an open file in them.
const OPEN_MAX: usize = 16;
/// The mode of the directories here.
const MODE: u16 = 0o555;

/// The snapshots of a mount.
#[derive(Default)]
pub struct Snapshots {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    last: u64,
    /// Counts the uses, so that the snapshot that was used least recently is known.
    uses: u64,
    slots: BTreeMap<Slot, Entry>,
}

/// A snapshot that the kernel may know.
struct Entry {
    scope: FileId,
    txg: Txg,
    /// What is shown of it; `None` if it has nothing of the mounted directory.
    part: Option<Part>,
    tree: Option<Arc<Tree>>,
    /// How many references to its files the kernel has.
    references: u64,
    used: u64,
}

/// What is shown of a snapshot.
#[derive(Clone)]
enum Part {
    /// The mounted directory, and everything below it.
    All,
    /// The way to the scope, and what is below that.
    Below(BTreeMap<FileId, DirEntry>),
}

/// A snapshot as it is listed.
pub struct Shown {
    pub slot: Slot,
    pub name: Vec<u8>,
}

/// An entry of one of the directories here.
pub struct Listed {
    pub number: INodeNo,
    pub name: Vec<u8>,
    /// Where the list goes on behind it.
    pub offset: u64,
}

impl Snapshots {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a name in the mounted directory is that of the hidden one.
    pub fn has_name(live: &Tree, directory: FileId, name: &[u8]) -> Answer<bool> {
        let is_it = name == HIDDEN_NAME && directory == live.inodes().root();
        // Nothing that is itself a snapshot has any.
        Ok(is_it && live.pool().0.snapshot_scope().is_none() && !live.has_name(directory, name)?)
    }

    /// Returns the attributes of a directory here.
    pub fn attributes(live: &Tree, number: INodeNo) -> FileAttr {
        let owner = live.pool().1;
        let time = SystemTime::UNIX_EPOCH;
        FileAttr {
            ino: number,
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind: FileType::Directory,
            perm: MODE,
            nlink: 1,
            uid: owner.uid,
            gid: owner.gid,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    /// Looks up a name in one of the directories here.
    pub fn lookup(&self, live: &Tree, directory: INodeNo, name: &[u8]) -> Answer<FileAttr> {
        if directory == HIDDEN {
            return match name == SNAPSHOTS_NAME {
                true => Ok(Snapshots::attributes(live, SNAPSHOTS)),
                false => Err(Errno::ENOENT.into()),
            };
        }
        let shown = self.shown(live)?;
        let found = shown.into_iter().find(|it| it.name == name).ok_or(Errno::ENOENT)?;
        let tree = self.tree(live, found.slot)?;
        tree.attributes(live.inodes().root())
    }

    /// Lists one of the directories here, without its dots.
    pub fn list(&self, live: &Tree, directory: INodeNo) -> Answer<Vec<Listed>> {
        if directory == HIDDEN {
            let name = SNAPSHOTS_NAME.to_vec();
            return Ok(vec![Listed { number: SNAPSHOTS, name, offset: 3 }]);
        }
        let root = live.inodes().root();
        let listed = self.shown(live)?.into_iter().map(|Shown { slot, name }| {
            let number = Inodes::of_snapshot(root, slot).number(root);
            Listed { number, name, offset: slot.0 + 2 }
        });
        Ok(listed.collect())
    }

    /// Returns the snapshots that are there, in the order in which they were first seen.
    fn shown(&self, live: &Tree) -> Answer<Vec<Shown>> {
        let pool = live.pool().0;
        // An outdated state is better than none.
        let _ = pool.refresh();
        let infos = pool.snapshots()?;
        let mut table = self.table();
        table.forget_destroyed(&infos);
        let root = live.inodes().root();
        let mut there: Vec<(Slot, &SnapshotInfo, bool)> = Vec::new();
        for info in &infos {
            let slot = match table.find(info) {
                Some(slot) => slot,
                None => match pool.open_snapshot(info.scope, &info.name) {
                    Ok(opened) => table.add(info, part_of(&opened, info.scope, root)?),
                    // It was destroyed just now.
                    Err(Error::NotFound { .. }) => continue,
                    Err(error) => return Err(error.into()),
                },
            };
            if let Some(part) = table.slots.get(&slot).and_then(|entry| entry.part.as_ref()) {
                there.push((slot, info, matches!(part, Part::All)));
            }
        }
        let mut shown: Vec<Shown> = there
            .iter()
            .map(|(slot, info, is_all)| {
                let is_first = there.iter().filter(|(_, other, _)| other.name == info.name).all(
                    |(_, other, is_all_other)| (is_all_other, other.txg) <= (is_all, info.txg),
                );
                let mut name = info.name.clone();
                if !is_first {
                    name.push(MARK);
                    name.extend(info.txg.to_string().into_bytes());
                }
                Shown { slot: *slot, name }
            })
            .collect();
        shown.sort_by_key(|it| it.slot);
        Ok(shown)
    }

    /// Returns the files of a snapshot.
    ///
    /// # Errors
    /// ESTALE if it was destroyed.
    pub fn tree(&self, live: &Tree, slot: Slot) -> Answer<Arc<Tree>> {
        let mut table = self.table();
        table.uses += 1;
        let uses = table.uses;
        let entry = table.slots.get_mut(&slot).ok_or(Errno::ESTALE)?;
        entry.used = uses;
        if let Some(tree) = &entry.tree {
            return Ok(Arc::clone(tree));
        }
        let (pool, root) = (live.pool().0, live.inodes().root());
        // It may have another name now.
        let infos = pool.snapshots()?;
        let info = infos.iter().find(|info| entry.is_of(info)).ok_or(Errno::ESTALE)?;
        let only = match &entry.part {
            Some(Part::All) => BTreeMap::new(),
            Some(Part::Below(only)) => only.clone(),
            None => return Err(Errno::ESTALE.into()),
        };
        let opened = pool.open_snapshot(info.scope, &info.name)?;
        let inodes = Inodes::of_snapshot(root, slot);
        let name = (info.scope, info.name.clone(), info.txg);
        let tree = Arc::new(live.of_snapshot(opened, name, inodes, only));
        entry.tree = Some(Arc::clone(&tree));
        table.close_some();
        Ok(tree)
    }

    /// Notes that the kernel has got a reference to a file of a snapshot.
    pub fn remember(&self, slot: Slot) {
        if let Some(entry) = self.table().slots.get_mut(&slot) {
            entry.references += 1;
        }
    }

    /// Notes that the kernel has dropped references.
    pub fn forget(&self, slot: Slot, count: u64) {
        if let Some(entry) = self.table().slots.get_mut(&slot) {
            entry.references = entry.references.saturating_sub(count);
            if entry.references == 0 {
                entry.tree = None;
            }
        }
    }
}

impl Entry {
    fn is_of(&self, info: &SnapshotInfo) -> bool {
        (self.scope, self.txg) == (info.scope, info.txg)
    }
}

impl Table {
    fn find(&self, info: &SnapshotInfo) -> Option<Slot> {
        self.slots.iter().find(|(_, entry)| entry.is_of(info)).map(|(slot, _)| *slot)
    }

    fn add(&mut self, info: &SnapshotInfo, part: Option<Part>) -> Slot {
        self.last += 1;
        let (scope, txg) = (info.scope, info.txg);
        let entry = Entry { scope, txg, part, tree: None, references: 0, used: 0 };
        self.slots.insert(Slot(self.last), entry);
        Slot(self.last)
    }

    /// Forgets the snapshots that are gone, unless the kernel knows files of them.
    fn forget_destroyed(&mut self, there: &[SnapshotInfo]) {
        let is_there = |entry: &Entry| there.iter().any(|info| entry.is_of(info));
        self.slots.retain(|_, entry| entry.references > 0 || is_there(entry));
    }

    /// Closes the snapshots that were used least recently, if many are open.
    fn close_some(&mut self) {
        let mut open: Vec<&mut Entry> =
            self.slots.values_mut().filter(|entry| entry.tree.is_some()).collect();
        let excess = open.len().saturating_sub(OPEN_MAX);
        open.sort_by_key(|entry| entry.used);
        for entry in open.into_iter().take(excess) {
            if entry.tree.as_ref().is_some_and(|tree| !tree.is_in_use()) {
                entry.tree = None;
            }
        }
    }
}

/// Returns what a snapshot of `scope` has of a directory.
fn part_of(snapshot: &Pool, scope: FileId, root: FileId) -> Result<Option<Part>> {
    let is_there = match snapshot.attributes(root) {
        Ok(attributes) => attributes.kind == Kind::Directory,
        Err(Error::NotFound { .. }) => false,
        Err(error) => return Err(error),
    };
    if !is_there {
        return Ok(None);
    }
    if snapshot.is_below(root, scope)? {
        return Ok(Some(Part::All));
    }
    if !snapshot.is_below(scope, root)? {
        return Ok(None);
    }
    let (mut at, mut only) = (root, BTreeMap::new());
    let (path, above) = (snapshot.path_of(scope)?, snapshot.path_of(root)?);
    // A file may have other names, which lead elsewhere.
    let below = path.strip_prefix(&above[..]).unwrap_or_default();
    for name in below.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        let Some(entry) = snapshot.lookup_in(at, name)? else { return Ok(None) };
        let directory = std::mem::replace(&mut at, entry.file);
        only.insert(directory, entry);
    }
    Ok((at == scope).then_some(Part::Below(only)))
}
