//! Which sectors are to be emptied, and where new places may be meanwhile.

use crate::units::{Run, Sector};

/// What is to be moved, and to where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aim {
    /// The first sector to be emptied.
    pub from: Sector,
    /// The one behind the last to be emptied.
    pub to: Sector,
    /// New places lie below this sector, and not in the range to be emptied.
    pub below: Sector,
    /// What fits nowhere goes behind the end; else it stays.
    pub append: bool,
}

impl Aim {
    /// Nothing is to be moved, and every place is good.
    pub const ANYWHERE: Aim =
        Aim { from: Sector(0), to: Sector(0), below: Sector(u64::MAX), append: true };

    /// Whether any of the run is to be emptied.
    pub fn touches(&self, run: Run) -> bool {
        run.start < self.to && run.end() > self.from
    }

    /// The parts of a free run in which new places may be, in order.
    pub fn usable(&self, run: Run) -> impl Iterator<Item = Run> + use<> {
        let before = (run.start, run.end().min(self.below).min(self.from));
        let behind = (run.start.max(self.to), run.end().min(self.below));
        let parts = [before, behind].into_iter().filter(|(start, end)| start < end);
        parts.map(|(start, end)| Run { start, sectors: end.0 - start.0 })
    }
}
