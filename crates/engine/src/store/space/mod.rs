//! Decides where new extents go, and when old ones may be overwritten.
//!
//! Free space is in three places, all part of the committed state:
//!
//! * the **freed** tree, keyed by the txg that freed a run and the run's start. A run in it may not
//!   be reused before a txg at least as new is durable, since the durable state still reaches it;
//! * the **space** tree, keyed by start: reusable runs, with neighbours merged;
//! * a few **windows** in the superblock: runs taken out of the space tree and partly used up, so
//!   that a small commit can allocate without touching either tree.
//!
//! Everything from `end` on is free as well. Allocation uses only the windows, then appends.
//! Beforehand, `txn/provision.rs` refills the windows from the space tree, and moves runs that have
//! become reusable from the freed tree to the space tree, many at a time.

pub mod account;
pub(in crate::store) mod aim;

use super::format::space::reserved_run;
use super::format::superblock::Superblock;
use super::format::trees::TreeId;
use super::space::aim::Aim;
use crate::units::{Ashift, Run, Sector};

/// Extents up to this long, that is, patches and nodes, are placed side by side.
pub(super) const SMALL_EXTENT_SECTORS: u64 = 32;
/// The preferred minimum length of a window for small extents.
const SMALL_WINDOW_SECTORS: u64 = 64;
/// The part of a pool that must be free for free runs to be returned to the file system.
const PUNCH_FREE_PART: u64 = 8;

/// The allocator's part of a transaction.
#[derive(Clone, Debug)]
pub(super) struct Space {
    pub windows: Vec<Run>,
    pub end: Sector,
    pub freed_count: u64,
    pub freed_sectors: u64,
    pub space_sectors: u64,
    /// Where the next small extent goes, if there is room.
    small: Sector,
    /// Where the next search of the space tree starts.
    pub rotor: Sector,
    ashift: Ashift,
    /// Long free runs to return to the file system once the transaction is committed.
    pub punch: Vec<Run>,
    /// Where space may come from while the pool is compacted.
    pub aim: Option<Aim>,
    /// Windows, or parts of them, that the file system has taken back, while the disk is full.
    pub hollow: Vec<Run>,
    /// Whether the disk has little room left.
    pub is_tight: bool,
}

impl Space {
    pub fn new(superblock: &Superblock, ashift: Ashift, rotor: Sector) -> Space {
        Space {
            windows: superblock.windows.clone(),
            end: superblock.end,
            freed_count: superblock.freed_count,
            freed_sectors: superblock.freed_sectors,
            space_sectors: superblock.space_sectors,
            small: Sector(0),
            rotor,
            ashift,
            punch: Vec::new(),
            aim: None,
            hollow: Vec::new(),
            is_tight: false,
        }
    }

    /// Takes a run of `sectors` from a window, if one has room.
    pub fn take_from_window(&mut self, sectors: u64) -> Option<Sector> {
        let index = self.choose_window(sectors)?;
        let window = &mut self.windows[index];
        let start = window.start;
        window.start.0 += sectors;
        window.sectors -= sectors;
        if sectors <= SMALL_EXTENT_SECTORS {
            self.small = window.start;
        }
        if window.sectors == 0 {
            self.windows.swap_remove(index);
        }
        Some(start)
    }

    /// Whether there are windows, but none with room for a run of `sectors`.
    pub fn is_in_short_pieces(&self, sectors: u64) -> bool {
        self.windows
            .iter()
            .map(|window| window.sectors)
            .max()
            .is_some_and(|longest| longest < sectors)
    }

    /// Takes a run of `sectors` from a window, or behind the end.
    pub fn allocate(&mut self, sectors: u64) -> Sector {
        if let Some(start) = self.take_from_window(sectors) {
            return start;
        }
        let reserved = reserved_run(self.ashift);
        if self.end < reserved.end() && self.end.0 + sectors > reserved.start.0 {
            let gap = reserved.start.0.saturating_sub(self.end.0);
            if gap > 0 {
                self.windows.push(Run { start: self.end, sectors: gap });
            }
            self.end = reserved.end();
        }
        let start = self.end;
        self.end.0 += sectors;
        start
    }

    /// How many runs of `sectors` the windows have room for.
    pub fn place_count(&self, sectors: u64) -> u64 {
        self.windows.iter().map(|window| window.sectors / sectors.max(1)).sum()
    }

    /// Whether so much is free that using it piece by piece is better than keeping it for speed.
    pub fn much_is_free(&self) -> bool {
        self.space_sectors > self.end.0 / PUNCH_FREE_PART
    }

    /// Chooses a window for a run of `sectors`. Small extents follow each other in one window, so
    /// that a commit takes few writes; a new window for them is the smallest with room for several.
    /// Large extents get the tightest window, so that the rest is either useful or tiny; so do
    /// small ones if no window has room for several.
    fn choose_window(&self, sectors: u64) -> Option<usize> {
        let tightest = |least: u64| {
            (0..self.windows.len())
                .filter(|index| self.windows[*index].sectors >= least)
                .min_by_key(|index| self.windows[*index].sectors)
        };
        // During compaction, or on a disk that is nearly full, no space may be left over, however
        // much that scatters extents.
        if sectors > SMALL_EXTENT_SECTORS || self.aim.is_some() || self.is_tight {
            return tightest(sectors);
        }
        self.windows
            .iter()
            .position(|window| window.start == self.small && window.sectors >= sectors)
            .or_else(|| tightest(SMALL_WINDOW_SECTORS))
            .or_else(|| tightest(sectors))
    }

    /// Takes back a run that was allocated in this transaction, so that no committed state reaches
    /// it.
    pub fn recycle(&mut self, run: Run) {
        if let Some(before) = self.windows.iter_mut().find(|window| window.end() == run.start) {
            before.sectors += run.sectors;
        } else {
            self.windows.push(run);
        }
    }

    /// Takes out the smallest window if there are more than `kept`, once extents of `sectors`
    /// together have used up the longest.
    pub fn excess_window(&mut self, sectors: u64, kept: usize) -> Option<Run> {
        if self.windows.len() <= kept {
            return None;
        }
        self.windows.sort_unstable_by_key(|window| std::cmp::Reverse(window.sectors));
        let mut missing = sectors;
        let used_up = self.windows.iter().position(|window| {
            missing = missing.saturating_sub(window.sectors);
            missing == 0
        });
        let used_up = used_up.map_or(self.windows.len(), |last| last + 1);
        (self.windows.len() > used_up.max(kept)).then(|| self.windows.pop())?
    }

    /// How many sectors the windows have.
    pub fn window_sectors(&self) -> u64 {
        self.windows.iter().map(|window| window.sectors).sum()
    }

    /// How many sectors are reusable, in windows or not. What a pool says of itself may be any
    /// number.
    pub fn reusable_sectors(&self) -> u64 {
        self.space_sectors.saturating_add(self.window_sectors())
    }
}

/// The trees that this module manages.
pub(super) const OWN_TREES: [TreeId; 2] = [TreeId::Space, TreeId::Freed];
