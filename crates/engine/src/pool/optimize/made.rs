//! What there is to know of the segments that exist before an optimisation: how much of each is in
//! use, and what keeps it.
//!
//! A first base and all that is stored as a difference from it, or from a second base that is one,
//! go away together or not at all (see `store/bases.rs`), so they are judged together.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::bases::Base;
use super::goal::{Again, SEGMENT_PIECES_MAX, SegmentGoal};
use crate::codec::CodecId;
use crate::error::Result;
use crate::pool::Pool;
use crate::pool::extents::source::Source;
use crate::store::format::pointer::Pointer;
use crate::units::{FileId, Sector, Txg};

/// Segments of which less than this share is in use, in percent, are made anew.
const USED_PERCENT_MIN: u64 = 75;

/// The segments that an optimisation treats in another way than the rest.
#[derive(Debug, Default)]
pub(super) struct SegmentsMade {
    /// Those that are mostly unused, and go away with the parts that files have.
    pub wasteful: HashSet<Sector>,
    /// Those that would stay, since snapshots, or files that do not take part, have parts of them.
    pub kept: HashSet<Sector>,
    /// The bases that stay, and that what is made anew may be stored as a difference from.
    pub bases: HashMap<Sector, Base>,
}

/// How a segment is used, and what it is.
#[derive(Default)]
struct Use {
    pointers: u32,
    used: u64,
    len: u64,
    /// The base that it is a difference from, and what that differs from itself.
    bases: Vec<Sector>,
    /// What stands for it as a base.
    entries: Vec<Base>,
    /// How many different parts of it there are.
    parts: usize,
    strength: i32,
}

impl Use {
    fn is_wasteful(&self) -> bool {
        is_wasteful(self.used, self.len)
    }

    /// Whether a segment may be at least twice as long as this one, and gain by it.
    fn is_short(&self, goal: &SegmentGoal) -> bool {
        self.parts <= SEGMENT_PIECES_MAX / 2 && goal.is_longer_than(self.len)
    }
}

impl SegmentGoal {
    fn strength(&self) -> i32 {
        strength(self.compression.codec_id() as u8, self.compression.level())
    }

    /// Whether segments of this length, in bytes, are much shorter than these may be, and gain if
    /// they become longer.
    fn is_longer_than(&self, len: u64) -> bool {
        // With `inflate`, the length is of what streams stand for. Weak codecs hardly see further.
        !self.inflate && !self.is_weak() && len <= u64::from(self.len / 2)
    }
}

/// The levels of zstd that make of a segment about what lzma's lowest levels do. Higher ones make
/// less of it than zstd can.
const LZMA_AS_ZSTD: [i32; 4] = [9, 12, 15, 17];
const LZMA_BEYOND: i32 = 100;

/// Ranks codecs and levels by what they make of a segment. Only those count that can store
/// differences.
fn strength(codec: u8, level: i16) -> i32 {
    match CodecId::try_from(codec) {
        Ok(CodecId::Zstd) => level.into(),
        Ok(CodecId::Lzma) => {
            let as_zstd = usize::try_from(level).ok().and_then(|level| LZMA_AS_ZSTD.get(level));
            as_zstd.copied().unwrap_or(LZMA_BEYOND + i32::from(level))
        }
        _ => i32::MIN,
    }
}

fn is_wasteful(used: u64, len: u64) -> bool {
    used.saturating_mul(100) < len.saturating_mul(USED_PERCENT_MIN)
}

impl Pool {
    /// Sorts the segments that there are by how much of each is in use. With [`Again::No`] most of
    /// the kept ones are not looked for. Files that do not take part, of which there are none if
    /// these `files` are all that the pool has, may need bases, which then stay. Bases are returned
    /// if what is made anew may differ from any of them, or the wasteful ones do already.
    ///
    /// If all segments are to be made anew, differences cannot go one by one as they turn out
    /// shorter: their base would stay beside its copy. So all of a group go, if what they are
    /// compressed with is stronger, or as strong and segments are to be much longer, and otherwise
    /// none for that reason.
    pub(super) fn segments_made(
        &self,
        (files, is_all): (&[(FileId, u64)], bool),
        goal: &SegmentGoal,
        with_bases: bool,
    ) -> Result<SegmentsMade> {
        let again = goal.again;
        let strength = goal.strength();
        let uses = self.uses(files)?;
        let mut made = SegmentsMade::default();
        let mut groups: BTreeMap<Sector, Vec<Sector>> = BTreeMap::new();
        let mut needed: HashSet<Sector> = HashSet::new();
        for (sector, of) in &uses {
            if of.bases.is_empty() && of.entries.is_empty() {
                self.judge(&[(*sector, of)], of.is_wasteful(), again, &mut made)?;
            } else {
                let first = of.bases.last().unwrap_or(sector);
                groups.entry(*first).or_default().push(*sector);
            }
        }
        for members in groups.into_values() {
            let group: Vec<_> = members.iter().map(|sector| (*sector, &uses[sector])).collect();
            let is_weaker = || {
                let mut all = group.iter().map(|(_, of)| of);
                let is_short = all.clone().all(|of| of.is_short(goal));
                all.all(|of| of.strength < strength + i32::from(is_short))
            };
            let goes = self.is_wasteful(&group)? || again == Again::All && is_weaker();
            if is_all && goes {
                self.judge(&group, true, again, &mut made)?;
                continue;
            }
            // Differences can go alone, bases cannot.
            for (sector, of) in group {
                match of.entries.is_empty() && !of.bases.is_empty() {
                    true => self.judge(&[(sector, of)], of.is_wasteful(), again, &mut made)?,
                    false => drop(needed.insert(sector)),
                }
            }
        }
        let wasteful = uses.iter().filter(|(sector, _)| made.wasteful.contains(sector));
        let of_wasteful: HashSet<Sector> = wasteful.flat_map(|(_, of)| of.bases.clone()).collect();
        let stays = |it: &Sector| needed.contains(it) || made.kept.contains(it);
        let bases = uses
            .into_iter()
            .filter(|(sector, _)| stays(sector) && (with_bases || of_wasteful.contains(sector)));
        let last = |(sector, mut of): (Sector, Use)| Some((sector, of.entries.pop()?));
        made.bases = bases.filter_map(last).collect();
        Ok(made)
    }

    /// Returns how the segments are used that these files have parts of.
    fn uses(&self, files: &[(FileId, u64)]) -> Result<BTreeMap<Sector, Use>> {
        let ashift = self.store().ashift();
        let bases = match self.read(|source| source.store.bases_in(source.state)) {
            // Without them, they are segments that somebody else has a part of.
            Err(error) if error.is_corruption() => BTreeMap::new(),
            bases => bases?,
        };
        let mut found: BTreeMap<Sector, Use> = BTreeMap::new();
        let mut parts = HashSet::new();
        for (file, _) in files {
            let mut births: BTreeMap<(Txg, Sector), u32> = BTreeMap::new();
            self.each_file_extent(*file, &mut |pointer| {
                let Some(run) = pointer.run(ashift).filter(|_| pointer.is_part()) else { return };
                let of = found.entry(run.start).or_default();
                of.len = pointer.extent_len.into();
                of.strength = strength(pointer.codec, pointer.level);
                if pointer.is_difference() && of.bases.is_empty() {
                    let base = bases.get(&pointer.dictionary);
                    let first = base.and_then(|base| bases.get(&base.dictionary));
                    of.bases = base.into_iter().chain(first).filter_map(Pointer::sector).collect();
                }
                if parts.insert((run.start, pointer.part_offset)) {
                    of.used += u64::from(pointer.len);
                    of.parts += 1;
                }
                *births.entry((pointer.birth, run.start)).or_default() += 1;
            })?;
            let held = self.held_by_snapshots_of(*file, births.keys().map(|(birth, _)| *birth))?;
            for (((_, sector), count), is_held) in births.into_iter().zip(held) {
                // What a snapshot holds cannot be exchanged, unlike what shares it since.
                if !is_held && let Some(of) = found.get_mut(&sector) {
                    of.pointers = of.pointers.saturating_add(count);
                }
            }
        }
        for (number, pointer) in bases {
            if let Some(of) = pointer.sector().and_then(|sector| found.get_mut(&sector)) {
                of.entries.push(Base { number, pointer });
            }
        }
        Ok(found)
    }

    /// Whether little of a base and all that differs from it is in use.
    fn is_wasteful(&self, group: &[(Sector, &Use)]) -> Result<bool> {
        let used = group.iter().map(|(_, of)| of.used).sum();
        let mut len = group.iter().map(|(_, of)| of.len).sum();
        let own: HashSet<Sector> = group.iter().map(|(sector, _)| *sector).collect();
        let bases = group.iter().flat_map(|(_, of)| &of.bases).filter(|base| !own.contains(*base));
        for base in bases.copied().collect::<BTreeSet<Sector>>() {
            // Files have no part of the base itself.
            let refs = self.read(|source| source.refs(base))?;
            len += refs.map_or(0, |refs| u64::from(refs.len));
        }
        Ok(is_wasteful(used, len))
    }

    /// Sorts segments that go away together.
    fn judge(
        &self,
        group: &[(Sector, &Use)],
        is_wasteful: bool,
        again: Again,
        made: &mut SegmentsMade,
    ) -> Result<()> {
        if again == Again::No && !is_wasteful {
            return Ok(());
        }
        let mut has_all = true;
        for (sector, of) in group {
            let (refs, newest) = self.read(|source| {
                let newest = source.store.holders(source.state)?.newest();
                Ok((source.refs(*sector)?, newest))
            })?;
            // What a snapshot has as well would stay.
            let entries = of.entries.iter().filter(|base| base.pointer.birth > newest).count();
            // Others belong to snapshots, or to files that do not take part: it would stay.
            let own = u64::from(of.pointers) + entries as u64;
            has_all &= refs.is_none_or(|refs| u64::from(refs.count) <= own);
        }
        let sectors = group.iter().map(|(sector, _)| *sector);
        if !has_all {
            made.kept.extend(sectors);
        } else if is_wasteful {
            made.wasteful.extend(sectors);
        }
        Ok(())
    }
}
