//! Newtypes for the numbers that must not be mixed up.

use std::fmt;

/// The number of a transaction group: one atomic commit of the pool. They only ever grow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Txg(pub u64);

impl Txg {
    /// The one after this.
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

/// What identifies a file or directory within its pool, for ever.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileId(pub u64);

/// A run of sectors.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Run {
    /// The first sector.
    pub start: Sector,
    /// How many sectors.
    pub sectors: u64,
}

impl Run {
    /// The sector just behind the run.
    pub fn end(self) -> Sector {
        Sector(self.start.0 + self.sectors)
    }
}
