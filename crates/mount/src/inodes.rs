//! The kernel's inode numbers: that of a file in the pool, and 1 for the directory that is mounted.

use fuser::INodeNo;
use hardpack_engine::FileId;

/// Numbers the files of a mount.
#[derive(Clone, Copy, Debug)]
pub struct Inodes {
    root: FileId,
}

impl Inodes {
    pub fn new(root: FileId) -> Inodes {
        Inodes { root }
    }

    /// The directory that is mounted.
    pub fn root(self) -> FileId {
        self.root
    }

    pub fn number(self, file: FileId) -> INodeNo {
        if file == self.root { INodeNo::ROOT } else { INodeNo(file.0) }
    }

    pub fn file(self, number: INodeNo) -> FileId {
        if number == INodeNo::ROOT { self.root } else { FileId(number.0) }
    }
}
