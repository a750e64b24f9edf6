//! The kernel's inode numbers.
//!
//! ```text
//! 1                 the directory that is mounted
//! file              a file of the pool, by its number there; see `known.rs` for the upper 16 bits
//! 2^47              `.hardpack`
//! 2^47 + 1          `.hardpack/snapshots`
//! 2^47 + slot       a file in a snapshot; each snapshot has a slot of its own, from 1, of which
//!      + file       15 bits are above those of the file, and 16 above 2^47
//! ```

use fuser::INodeNo;
use hardpack_engine::FileId;

/// Set in all numbers that are not those of the mounted directory itself.
const HIDDEN_BIT: u64 = 1 << 47;
/// Where the slot begins in the number of a file in a snapshot, and where its upper part does.
const SLOT_SHIFT: u32 = 32;
const UPPER_SHIFT: u32 = 48;
/// The bits of the lower part of a slot.
const LOWER_BITS: u32 = 15;
const LOWER_MASK: u64 = (1 << LOWER_BITS) - 1;
/// The number of slots.
const SLOT_COUNT: u64 = 1 << (LOWER_BITS + 16);

/// The number of `.hardpack`.
pub const HIDDEN: INodeNo = INodeNo(HIDDEN_BIT);
/// The number of `.hardpack/snapshots`.
pub const SNAPSHOTS: INodeNo = INodeNo(HIDDEN_BIT | 1);

/// What stands for a snapshot in the numbers of its files.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Slot(pub u64);

/// What a number stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Numbered {
    /// A file of the mounted directory.
    Live,
    /// `.hardpack` or `.hardpack/snapshots`.
    Directory,
    /// A file in a snapshot.
    Kept(Slot),
}

/// Returns what a number stands for.
pub fn numbered(number: INodeNo) -> Numbered {
    let slot = number.0 >> SLOT_SHIFT & LOWER_MASK | number.0 >> UPPER_SHIFT << LOWER_BITS;
    match (number.0 & HIDDEN_BIT != 0, slot) {
        (false, _) => Numbered::Live,
        (true, 0) => Numbered::Directory,
        (true, slot) => Numbered::Kept(Slot(slot)),
    }
}

/// Numbers the files of a mount, or of a snapshot in it.
#[derive(Clone, Copy, Debug)]
pub struct Inodes {
    root: FileId,
    slot: Option<Slot>,
}

impl Inodes {
    pub fn new(root: FileId) -> Inodes {
        Inodes { root, slot: None }
    }

    /// Numbers the files of a snapshot.
    pub fn of_snapshot(root: FileId, slot: Slot) -> Inodes {
        Inodes { root, slot: Some(slot) }
    }

    /// The directory that is mounted.
    pub fn root(self) -> FileId {
        self.root
    }

    /// Whether these are the files of the mounted directory itself.
    pub fn is_live(self) -> bool {
        self.slot.is_none()
    }

    /// Whether a file has a number. Only pools with more files than anybody has made have others.
    pub fn has_number(self, file: FileId) -> bool {
        match self.slot {
            Some(slot) => slot.0 < SLOT_COUNT && file.0 < 1 << SLOT_SHIFT,
            None => file.0 < HIDDEN_BIT,
        }
    }

    pub fn number(self, file: FileId) -> INodeNo {
        match self.slot {
            Some(Slot(slot)) => {
                let (upper, lower) = (slot >> LOWER_BITS, slot & LOWER_MASK);
                INodeNo(upper << UPPER_SHIFT | HIDDEN_BIT | lower << SLOT_SHIFT | file.0)
            }
            None if file == self.root => INodeNo::ROOT,
            None => INodeNo(file.0),
        }
    }

    pub fn file(self, number: INodeNo) -> FileId {
        match self.slot {
            Some(_) => FileId(number.0 & ((1 << SLOT_SHIFT) - 1)),
            None if number == INodeNo::ROOT => self.root,
            None => FileId(number.0),
        }
    }
}
