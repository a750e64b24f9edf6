//! Newtypes for numbers that must not be mixed up.

use std::fmt;

/// The number of a transaction group: one atomic commit of the pool. It only ever grows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Txg(pub u64);

impl Txg {
    /// Returns the next number.
    pub fn next(self) -> Txg {
        Txg(self.0 + 1)
    }
}

impl fmt::Display for Txg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A place in the pool, counted in sectors of `2^ashift` bytes from its start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Sector(pub u64);

/// The base-2 logarithm of a pool's sector size.
///
/// Shifting a number of sectors left by it gives bytes: `sectors << ashift`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ashift(u8);

impl Ashift {
    /// Sectors of 512 bytes, the shortest.
    pub const MIN: Ashift = Ashift(9);
    /// Every sector size, the shortest first: 512 to 4096 bytes.
    pub const ALL: [Ashift; 4] = [Ashift(9), Ashift(10), Ashift(11), Ashift(12)];

    /// Returns the shift of a supported sector size, 9 to 12.
    pub fn new(ashift: u8) -> Option<Ashift> {
        Ashift::ALL.into_iter().find(|known| known.0 == ashift)
    }

    /// The shift as a number.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The sector size in bytes.
    pub const fn sector_len(self) -> usize {
        1 << self.0
    }
}

impl std::fmt::Display for Ashift {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::ops::Shl<Ashift> for u64 {
    type Output = u64;

    fn shl(self, ashift: Ashift) -> u64 {
        self << ashift.0
    }
}

impl std::ops::Shr<Ashift> for u64 {
    type Output = u64;

    fn shr(self, ashift: Ashift) -> u64 {
        self >> ashift.0
    }
}

/// The permanent identity of a file or directory within its pool.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileId(pub u64);

impl FileId {
    /// The root directory; as the scope of a snapshot, the whole pool.
    pub const ROOT: FileId = FileId(1);
}

/// A run of sectors.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Run {
    /// The first sector.
    pub start: Sector,
    /// The number of sectors.
    pub sectors: u64,
}

impl Run {
    /// The sector just behind the run.
    pub fn end(self) -> Sector {
        Sector(self.start.0 + self.sectors)
    }
}
