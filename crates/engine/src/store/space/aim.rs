//! Which sectors compaction empties, and where new places may be meanwhile.

use crate::units::{Run, Sector};

/// What to move, and where to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aim {
    /// The first sector to empty.
    pub from: Sector,
    /// The sector behind the last one to empty.
    pub to: Sector,
    /// New places lie below this sector and outside the range to empty.
    pub below: Sector,
    /// Whether extents that fit nowhere go behind the end; otherwise they stay.
    pub append: bool,
}

impl Aim {
    /// Moves nothing and accepts every place.
    pub const ANYWHERE: Aim =
        Aim { from: Sector(0), to: Sector(0), below: Sector(u64::MAX), append: true };

    /// Whether any part of the run is to be emptied.
    pub fn touches(&self, run: Run) -> bool {
        run.start < self.to && run.end() > self.from
    }

    /// Returns the parts of a free run where new places may be, in order.
    pub fn usable(&self, run: Run) -> impl Iterator<Item = Run> + use<> {
        let before = (run.start, run.end().min(self.below).min(self.from));
        let behind = (run.start.max(self.to), run.end().min(self.below));
        let parts = [before, behind].into_iter().filter(|(start, end)| start < end);
        parts.map(|(start, end)| Run { start, sectors: end.0 - start.0 })
    }
}
