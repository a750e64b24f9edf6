//! The part of the model test that runs beside the writer: small edits, which become deltas, and
//! folding, repacking and sinking, whose steps must not change the content of a file.

use super::{Pair, places};
use crate::codec::Compression;
use crate::error::Result;
use crate::pool::{Again, Fold, Property, Repack, SegmentGoal, Settings, Step, StepLimits};
use crate::store::Patience;
use crate::store::format::pointer::{Place, Pointer};
use crate::store::trees::TreeId;
use crate::test_common::problems;

/// Counts what a run went through, to prove that the test exercised everything.
#[derive(Debug, Default)]
pub(super) struct Maintained {
    /// The repack in progress.
    repack: Option<Repack>,
    embedded_deltas: u64,
    delta_extents: u64,
    whole_patches: u64,
    folded: u64,
    repacked: u64,
    repacks_finished: u64,
    repacks_resumed: u64,
    sunk: u64,
    in_segments: u64,
    beside_changes: u64,
}

impl Maintained {
    pub fn count_patch(&mut self, pointer: &Pointer) {
        *match (&pointer.place, pointer.is_delta()) {
            (Place::Embedded(_), true) => &mut self.embedded_deltas,
            (_, true) => &mut self.delta_extents,
            (_, false) => &mut self.whole_patches,
        } += 1;
    }

    pub fn add(&mut self, other: &Maintained) {
        self.embedded_deltas += other.embedded_deltas;
        self.delta_extents += other.delta_extents;
        self.whole_patches += other.whole_patches;
        self.folded += other.folded;
        self.repacked += other.repacked;
        self.repacks_finished += other.repacks_finished;
        self.repacks_resumed += other.repacks_resumed;
        self.sunk += other.sunk;
        self.in_segments += other.in_segments;
        self.beside_changes += other.beside_changes;
    }

    pub fn assert_everything_occurred(&self) {
        println!("{self:?}");
        assert!(self.embedded_deltas > 100, "{self:?}");
        assert!(self.delta_extents > 100, "{self:?}");
        assert!(self.whole_patches > 100, "{self:?}");
        assert!(self.folded > 20 && self.repacked > 100 && self.sunk > 20, "{self:?}");
        assert!(self.repacks_finished > 10 && self.repacks_resumed > 10, "{self:?}");
        assert!(self.beside_changes > 20 && self.in_segments > 100, "{self:?}");
    }
}

impl Pair {
    /// Changes a few bytes of some pages that were just read, like updates of rows.
    pub(super) fn edit(&mut self) {
        if self.current.is_empty() {
            return;
        }
        for _ in 0..1 + self.rng.below(4) {
            let page = self.rng.below(self.current.len() as u64) & !4095;
            let end = (page + 4096).min(self.current.len() as u64);
            self.file.read_at(&mut vec![0; (end - page) as usize], page).unwrap();
            for _ in 0..1 + self.rng.below(3) {
                let len = self.rng.pick(&[1, 4, 20, 130, 300]);
                let at = page + self.rng.below(end - page);
                let len = len.min(end - at) as usize;
                let bytes = self.rng.noise(len);
                self.file.write_at(&bytes, at).unwrap();
                self.current[at as usize..at as usize + len].copy_from_slice(&bytes);
            }
        }
        if !self.rng.one_in(4) {
            self.commit();
        }
    }

    /// Takes some steps of one kind of rewriting, with uncommitted changes in between.
    pub(super) fn maintain(&mut self) {
        let kind = self.rng.below(7);
        if kind == 6 {
            return self.optimize();
        }
        let which = self.rng.pick(&[Fold::Due, Fold::All]);
        let file = self.file.id();
        let cold = self.pool.state().txg();
        if kind >= 3 {
            self.begin_repack();
        }
        let mut next = Some(0);
        let mut is_whole = true;
        while let Some(from) = next {
            if self.rng.one_in(6) {
                return;
            }
            if self.rng.one_in(8) {
                is_whole = false;
                self.write();
            }
            let limits = self.limits();
            let done = match (kind, self.maintained.repack.take()) {
                (0 | 1, kept) => {
                    self.maintained.repack = kept;
                    self.pool.fold_step(file, which, from, &limits)
                }
                (2, kept) => {
                    self.maintained.repack = kept;
                    self.pool.sink_step(file, cold, from, &limits)
                }
                (_, Some(mut repack)) => {
                    let done = self.pool.repack_step(&mut repack, &limits, None);
                    let finished = done.as_ref().is_ok_and(|step| step.next.is_none());
                    self.maintained.repacks_finished += u64::from(finished);
                    self.maintained.repack = Some(repack).filter(|_| !finished);
                    done
                }
                (_, None) => unreachable!("a repack was begun"),
            };
            let step = self.accept(done);
            match kind {
                0 | 1 => self.maintained.folded += step.rewritten,
                2 => self.maintained.sunk += step.rewritten,
                _ => self.maintained.repacked += step.rewritten,
            }
            next = step.next;
        }
        // The draft of a transaction has patches of its own.
        if kind < 2 && which == Fold::All && is_whole && !self.file.is_dirty() {
            assert_eq!(
                places(&self.pool, TreeId::Patches),
                [0; 4],
                "{}: patches are left",
                self.label
            );
        }
    }

    /// Takes some steps of putting records into segments, with uncommitted changes in between.
    fn optimize(&mut self) {
        let compression = self.rng.pick(&[Compression::Lz4, Compression::Zstd(1)]);
        let len = self.rng.pick(&[20_000, 100_000, 1 << 20]);
        let again = self.rng.pick(&[Again::No, Again::Related, Again::All]);
        let goal = SegmentGoal { compression, len, again, inflate: false };
        let mut optimisation = self.pool.optimize(self.file.id(), goal).unwrap();
        loop {
            if self.rng.one_in(8) {
                return;
            }
            if self.rng.one_in(8) {
                self.write();
            }
            let before = optimisation.report().records;
            let is_more = optimisation.step();
            let report = optimisation.report();
            let (rewritten, damaged) = (report.records - before, report.damaged.len());
            let is_more = is_more.unwrap_or_else(|error| panic!("{}: {error}", self.label));
            assert_eq!(damaged, 0, "{}", self.label);
            self.accept(Ok(Step { rewritten, ..Step::default() }));
            self.maintained.in_segments += rewritten;
            if !is_more {
                return;
            }
        }
    }

    fn limits(&mut self) -> StepLimits {
        StepLimits {
            rewrite_len_max: self.rng.pick(&[1, 60_000, 1 << 20]),
            look_count_max: self.rng.pick(&[1, 10, 4096]),
            patience: Patience::None,
        }
    }

    /// Continues a repack, or begins one.
    fn begin_repack(&mut self) {
        if self.maintained.repack.is_some() && !self.rng.one_in(10) {
            return;
        }
        let mut goal = Settings::default();
        let all = ["off", "lzjb", "zle", "gzip-1", "lz4", "zstd", "zstd-fast", "auto"];
        goal.set(Property::Compression, self.rng.pick(&all)).unwrap();
        goal.set(Property::RecordSize, self.rng.pick(&["4K", "16K", "64K", "256K"])).unwrap();
        goal.set(Property::Checksum, self.rng.pick(&["xxh3", "blake3"])).unwrap();
        let begun = self.pool.begin_repack(self.file.id(), goal, Patience::None);
        self.maintained.repack =
            Some(begun.unwrap_or_else(|error| panic!("{}: {error}", self.label)));
    }

    /// Checks the result of a step. Nobody holds the pool, even if the writer has written ahead.
    fn accept(&mut self, done: Result<Step>) -> Step {
        self.maintained.beside_changes += u64::from(self.file.is_dirty());
        let step = done.unwrap_or_else(|error| panic!("{}: {error}", self.label));
        assert_eq!((step.overtaken, step.damaged.len()), (0, 0), "{}", self.label);
        self.assert_same();
        assert_eq!(problems(&self.pool).unwrap(), Vec::<String>::new(), "{}", self.label);
        if self.rng.one_in(3) {
            self.pool.store().make_durable().unwrap();
        }
        if !self.file.is_dirty() {
            self.assert_stats();
        }
        step
    }

    /// Asserts that the progress and the goal of a repack survive reopening the pool.
    pub(super) fn assert_repack_is_kept(&mut self) {
        let found = self.pool.unfinished_repack(self.file.id()).unwrap();
        let kept = self.maintained.repack.take();
        let label = &self.label;
        match (&found, &kept) {
            (None, None) => {}
            (Some(found), Some(kept)) => {
                assert_eq!(found.goal, kept.goal, "{label}");
                // Steps that found nothing to do need not be recorded.
                assert!(found.position <= kept.position, "{label}: {found:?}, {kept:?}");
                self.maintained.repacks_resumed += u64::from(found.position > 0);
            }
            _ => panic!("{label}: {found:?} is kept of {kept:?}"),
        }
        self.maintained.repack = found;
    }
}
