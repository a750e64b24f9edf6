//! Accounts for every sector of a pool, from what walks over its trees find.

use std::collections::HashMap;

use crate::error::{Error, Location, Result};
use crate::store::format::dead::Dead;
use crate::store::format::pointer::Pointer;
use crate::store::format::refs::{PartContent, Refs, RefsEntry, parse_refs_entry};
use crate::store::format::space::{freed_entry, reserved_run, space_entry};
use crate::store::format::superblock::EXTENTS_OFFSET;
use crate::store::format::trees::TreeId;
use crate::store::{State, Store};
use crate::units::{Ashift, Run, Sector};

/// Accounts for every sector of a pool: each must be used once or free once.
#[derive(Debug)]
pub struct SpaceAccount {
    ashift: Ashift,
    end: u64,
    freed: (u64, u64),
    space_sectors: u64,
    used: Vec<Run>,
    /// References that only snapshots have, by extent.
    dead: HashMap<Run, u64>,
    free: Vec<Run>,
    refs: HashMap<u64, u32>,
    /// The last extent met that has an entry.
    counted: Option<(Sector, Refs)>,
    /// Whether an entry behind that one may have been lost.
    is_hidden: bool,
    found: (u64, u64, u64),
}

impl SpaceAccount {
    /// Starts with the runs known from the superblock itself.
    pub fn new(store: &Store, state: &State) -> SpaceAccount {
        let superblock = &state.superblock;
        let ashift = store.ashift();
        let front = Run { start: Sector(0), sectors: EXTENTS_OFFSET >> ashift };
        let mut used = vec![front];
        let reserved = reserved_run(ashift);
        if superblock.end >= reserved.end() {
            used.push(reserved);
        }
        SpaceAccount {
            ashift,
            end: superblock.end.0,
            freed: (superblock.freed_count, superblock.freed_sectors),
            space_sectors: superblock.space_sectors,
            used,
            dead: HashMap::new(),
            free: superblock.windows.clone(),
            refs: HashMap::new(),
            counted: None,
            is_hidden: false,
            found: (0, 0, 0),
        }
    }

    /// Counts the extent of a node or a record.
    pub fn add_used(&mut self, pointer: &Pointer) {
        if let Some(run) = pointer.run(self.ashift) {
            self.used.push(run);
        }
    }

    /// Counts references that only snapshots have.
    pub fn add_dead(&mut self, dead: &Dead) {
        *self.dead.entry(dead.run).or_default() += u64::from(dead.count);
    }

    /// Notes that a part of a tree could not be read.
    pub fn pass_damage(&mut self, tree: TreeId) {
        self.is_hidden |= tree == TreeId::Refs;
    }

    /// Counts an entry of a tree that manages space.
    pub fn add_entry(&mut self, tree: TreeId, key: &[u8], value: &[u8]) -> Result<()> {
        match tree {
            TreeId::Space => {
                let run = space_entry(key, value)?;
                self.found.2 = self.found.2.saturating_add(run.sectors);
                self.free.push(run);
            }
            TreeId::Freed => {
                let (_, run) = freed_entry(key, value)?;
                self.found.0 += 1;
                self.found.1 = self.found.1.saturating_add(run.sectors);
                self.free.push(run);
            }
            TreeId::Refs => match parse_refs_entry(key, value)? {
                RefsEntry::Extent(sector, refs) => {
                    self.refs.insert(sector.0, refs.count);
                    self.counted = Some((sector, refs));
                    self.is_hidden = false;
                }
                RefsEntry::Part(sector, part) => self.check_part(key, sector, &part)?,
            },
            _ => {}
        }
        Ok(())
    }

    /// Checks the entry of a part of a segment, which comes behind that of the segment. If that
    /// could not be read, nothing is known of the part.
    fn check_part(&self, key: &[u8], sector: Sector, part: &PartContent) -> Result<()> {
        let has_part = |(segment, refs): &(Sector, Refs)| {
            *segment == sector && refs.pointer_to(sector, part).is_some()
        };
        if self.is_hidden || self.counted.as_ref().is_some_and(has_part) {
            return Ok(());
        }
        let end = u64::from(part.offset) + u64::from(part.len);
        let what = format!(
            "expected a part of a segment, found bytes {} to {end} of an extent that has no such \
             part",
            part.offset
        );
        Err(Error::corrupt("entry", TreeId::Refs.location_of(key), what))
    }

    /// Returns the free run in an entry of the space or freed tree.
    pub(crate) fn free_run(tree: TreeId, key: &[u8], value: &[u8]) -> Result<Run> {
        match tree {
            TreeId::Freed => freed_entry(key, value).map(|(_, run)| run),
            _ => space_entry(key, value),
        }
    }

    #[expect(clippy::disallowed_methods, reason = "the callers sort")]
    fn add_dead_runs(&mut self) {
        self.used.extend(self.dead.keys());
    }

    /// Returns the runs that are neither used nor free, or an error if any is both, or used twice.
    pub(in crate::store) fn gaps(mut self) -> Result<Vec<Run>> {
        self.add_dead_runs();
        self.used.sort_unstable();
        self.used.dedup();
        self.used.append(&mut self.free);
        self.used.sort_unstable();
        let (mut gaps, mut at) = (Vec::new(), 0);
        for run in self.used {
            if run.start.0 < at {
                let (begin, end) = (run.start.0 << self.ashift, at << self.ashift);
                let what = format!(
                    "expected every sector to be used or free once, found two owners of the \
                     sectors before byte {end}"
                );
                return Err(Error::corrupt("free space", Location::Byte(begin), what));
            }
            gaps.push(Run { start: Sector(at), sectors: run.start.0 - at });
            at = run.end().0;
        }
        if at > self.end {
            let end = Location::Byte(self.end << self.ashift);
            let what = format!(
                "expected the pool to end there, found an extent that ends at byte {}",
                at << self.ashift
            );
            return Err(Error::corrupt("free space", end, what));
        }
        gaps.push(Run { start: Sector(at), sectors: self.end - at });
        gaps.retain(|gap| gap.sectors > 0);
        Ok(gaps)
    }

    /// Returns the number of free sectors, and a description of every inconsistency.
    pub fn settle(mut self) -> (u64, Vec<String>) {
        let mut problems = Vec::new();
        let free = self.free.iter().fold(0_u64, |sum, run| sum.saturating_add(run.sectors));
        if (self.found.0, self.found.1) != self.freed || self.found.2 != self.space_sectors {
            problems.push("the superblock's counts of free space differ from its trees".into());
        }
        // Each one once here; additional references are added where they are counted.
        self.add_dead_runs();
        self.used.sort_unstable();
        let mut runs: Vec<(Run, bool)> = Vec::with_capacity(self.used.len());
        for same in self.used.chunk_by(|a, b| a == b) {
            let run = same[0];
            let dead = self.dead.get(&run).map_or(0, |count| count - 1);
            let count = same.len() as u64 + dead;
            let counted = self.refs.remove(&run.start.0).unwrap_or(1);
            if count != u64::from(counted) {
                let at = run.start.0 << self.ashift;
                problems.push(format!("byte {at}: {count} pointers, but {counted} are counted"));
            }
            runs.push((run, true));
        }
        #[expect(clippy::disallowed_methods, reason = "sorted next")]
        let mut unmet: Vec<u64> = self.refs.into_keys().collect();
        unmet.sort_unstable();
        for sector in unmet {
            let at = sector << self.ashift;
            problems.push(format!("byte {at}: no pointers, but some are counted"));
        }
        runs.extend(self.free.iter().map(|run| (*run, false)));
        runs.sort_unstable();
        let mut at = 0;
        for (run, used) in runs {
            let bytes =
                format!("bytes {} to {}", run.start.0 << self.ashift, run.end().0 << self.ashift);
            if run.start.0 < at {
                let kind = if used { "in use" } else { "free" };
                problems.push(format!("{bytes} are {kind}, but overlap the run before them"));
            } else if run.start.0 > at {
                let lost = (run.start.0 - at) << self.ashift;
                problems.push(format!("{lost} bytes before {bytes} are neither used nor free"));
            }
            at = at.max(run.end().0);
        }
        if at != self.end {
            problems.push(format!(
                "the last extent ends at byte {}, the pool at byte {}",
                at << self.ashift,
                self.end << self.ashift
            ));
        }
        (free, problems)
    }
}
