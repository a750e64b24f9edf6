//! From the blocks in a table to figures with error bars.
//!
//! All data was read: the blocks kept are a random sample of the distinct ones (see `table.rs`), so
//! sums over them, divided by the share kept, estimate sums over all distinct blocks without bias
//! (Horvitz and Thompson). Stored lengths come from the ratio of stored to logical length of the
//! blocks that were compressed. Only the share of the blocks varies, so the errors are known.
//!
//! A part of the data was read (`--sample`): each range was read with the same probability `f`. How
//! often a block occurs in the rest cannot be known from that. Two bounds hold in expectation for
//! any data, with `F1` the length of the distinct blocks met in one range only, and `F2` that of
//! the others:
//!
//! ```text
//! distinct <= F1 / f + F2       a block in g ranges counts 1 + (g - 1)(1 - f)^g >= 1 times
//! distinct >= T^2 / (T + Q)     by Cauchy and Schwarz: T is the length of all blocks, Q that of
//!                               the second block in all ordered pairs of equal ones
//! ```
//!
//! `Q` is estimated without bias from the pairs in the sample. The value between the bounds is the
//! estimator GEE, whose factor of error, `sqrt(1/f)` at most, is as good as any. How much a sample
//! of ranges varies is estimated from the differences between 32 groups of ranges.
//!
//! Source: Charikar, Chaudhuri, Motwani, Narasayya, "Towards Estimation Error Guarantees for
//! Distinct Values", PODS 2000; why no sample can do better, and what one costs that comes close:
//! Harnik, Khaitzin, Sotnikov, "Estimating Unseen Deduplication - from Theory to Practice", FAST
//! 2016.

use super::table::{GROUP_COUNT, Table};

/// Standard errors on each side of a figure that are exceeded in 5 of 100 cases.
const ERRORS: f64 = 1.96;
/// With this many events on average, none is met in 5 of 100 cases.
const UNMET: f64 = 3.0;
/// With fewer compressed blocks, a ratio says nothing about the others.
const MEASURED_MIN: usize = 8;
/// The factor of Student's distribution for 5% is about `1 + STUDENT / degrees of freedom`.
const STUDENT: f64 = 1.25;
/// The longest stored form that fits into a pointer, in bytes.
const EMBEDDED_LEN_MAX: u32 = 112;

/// A figure, and the bounds within which the true one is with a probability of 95%.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Estimate {
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

impl Estimate {
    pub fn exact(value: f64) -> Estimate {
        Estimate { value, low: value, high: value }
    }

    /// A figure with a variance, which is between two numbers for certain.
    fn around(value: f64, variance: f64, least: f64, most: f64) -> Estimate {
        let error = ERRORS * variance.max(0.0).sqrt();
        Estimate { value, low: value - error, high: value + error }.within(least, most)
    }

    fn within(self, least: f64, most: f64) -> Estimate {
        let fit = |x: f64| x.min(most).max(least);
        Estimate { value: fit(self.value), low: fit(self.low), high: fit(self.high) }
    }

    pub fn is_exact(&self) -> bool {
        self.low == self.high
    }

    /// `of` divided by this.
    pub fn ratio_of(&self, of: f64) -> Estimate {
        let quotient = |by: f64| if by > 0.0 { of / by } else { 1.0 };
        Estimate { value: quotient(self.value), low: quotient(self.high), high: quotient(self.low) }
    }

    fn scaled(&self, by: f64) -> Estimate {
        Estimate { value: self.value * by, low: self.low * by, high: self.high * by }
    }
}

/// A sum over clusters of which some are known, each with its length and its figure: the ratio of
/// these stands for all `len`.
pub fn ratio_of_clusters(known: &[(f64, f64)], len: f64, is_all: bool) -> Estimate {
    let (known_len, sum) = known.iter().fold((0.0, 0.0), |(a, b), (len, it)| (a + len, b + it));
    if is_all || known_len <= 0.0 {
        return Estimate::exact(sum);
    }
    let (ratio, count) = (sum / known_len, known.len() as f64);
    if count < 2.0 {
        return Estimate { value: ratio * len, low: 0.0, high: len };
    }
    let squares: f64 = known.iter().map(|(len, it)| (it - ratio * len).powi(2)).sum();
    let freedom = count - 1.0;
    let all = len / (known_len / count);
    let unknown = (1.0 - count / all).max(0.0);
    let variance = all * all * unknown * squares / freedom / count;
    let factor = 1.0 + STUDENT / freedom;
    let figure = Estimate::around(ratio * len, variance * factor * factor, 0.0, len);
    // A few that are not like the others may not be among those known, and not compress at all.
    let unmet = (UNMET / count).min(1.0) * (len - known_len).max(0.0) * (1.0 - ratio).max(0.0);
    Estimate { high: (figure.high + unmet).min(len), ..figure }
}

/// The blocks with a number of references from a power of two up to the next.
#[derive(Clone, Copy, Default)]
pub struct Bucket {
    pub refs: u64,
    pub allocated: Space,
    pub referenced: Space,
}

#[derive(Clone, Copy, Default)]
pub struct Space {
    pub blocks: f64,
    pub lsize: f64,
    pub psize: f64,
    pub dsize: f64,
}

impl Space {
    pub fn add(&mut self, other: &Space) {
        self.blocks += other.blocks;
        self.lsize += other.lsize;
        self.psize += other.psize;
        self.dsize += other.dsize;
    }
}

/// The figures of one compression.
pub struct Stored {
    /// The length in whole sectors if every block is stored, in bytes.
    pub all: Estimate,
    /// The length in whole sectors if distinct blocks are stored once, in bytes.
    pub once: Estimate,
    /// The bytes that fit into the pointers of their blocks, and are in no sector.
    pub in_pointers: f64,
    /// Of the data that was read.
    pub histogram: Vec<Bucket>,
}

/// The figures of one kind of block. Blocks of zeros are left out.
pub struct Figures {
    pub count: Estimate,
    pub len: Estimate,
    pub zero_len: Estimate,
    pub distinct: Estimate,
    pub distinct_len: Estimate,
    pub stored: Vec<Stored>,
}

impl Figures {
    pub fn dedup_ratio(&self) -> Estimate {
        self.distinct_len.ratio_of(self.len.value)
    }
}

/// A part of the data that was read, in bytes.
#[derive(Clone, Copy)]
pub struct Part {
    pub read: u64,
    pub of: u64,
}

/// Sums over blocks, by the group of one of the ranges in which each was met.
#[derive(Clone, Copy, Default)]
struct Sums {
    all: f64,
    squares: f64,
    fourths: f64,
    groups: [f64; GROUP_COUNT],
}

impl Sums {
    fn add(&mut self, value: f64, group: usize) {
        self.all += value;
        self.squares += value * value;
        self.fourths += value.powi(4);
        self.groups[group] += value;
    }

    /// The variance of the sum, as the groups differ, beyond what a part of `whole` explains.
    fn variance_between(&self, whole: &Sums) -> f64 {
        let share = if whole.all > 0.0 { self.all / whole.all } else { 0.0 };
        let rest = self.groups.iter().zip(&whole.groups).map(|(own, of)| own - share * of);
        let count = GROUP_COUNT as f64;
        rest.map(|rest| rest * rest).sum::<f64>() * count / (count - 1.0)
    }
}

/// Everything that the figures of a table are derived from.
struct Basis<'t> {
    table: &'t Table,
    kept: Vec<(usize, bool)>,
    /// The shares of the distinct blocks that are kept and compressed.
    kept_share: f64,
    measured_share: f64,
    sector: u32,
}

/// Returns the figures of a table of blocks with these compressions.
pub fn figures(table: &Table, columns: usize, sector: u32, part: Option<Part>) -> Figures {
    let basis = Basis {
        table,
        kept: table.kept(),
        kept_share: table.kept_share(),
        measured_share: table.measured_share(),
        sector,
    };
    match part {
        Some(part) => basis.of_part(columns, part),
        None => basis.of_all(columns),
    }
}

impl Basis<'_> {
    fn len(&self, place: usize) -> f64 {
        f64::from(self.table.entries[place].len)
    }

    fn refs(&self, place: usize) -> f64 {
        self.table.entries[place].refs as f64
    }

    /// The stored length of a block in whole sectors.
    fn stored(&self, place: usize, column: usize) -> f64 {
        match self.table.size(place, column) {
            0..=EMBEDDED_LEN_MAX => 0.0,
            size => f64::from(size.div_ceil(self.sector)) * f64::from(self.sector),
        }
    }

    /// The bytes of all blocks that fit into their pointers: each of these has its own.
    fn in_pointers(&self, column: usize) -> f64 {
        let size = |place| f64::from(self.table.size(place, column));
        let fits = |place, is_measured: bool| {
            is_measured && self.table.size(place, column) <= EMBEDDED_LEN_MAX
        };
        self.sum(&fits, &|place| self.refs(place) * size(place)).all / self.measured_share.max(1e-9)
    }

    fn group(&self, place: usize) -> usize {
        self.table.spreads.get(place).map_or(0, |spread| spread.first as usize % GROUP_COUNT)
    }

    /// Adds up `value` of the kept blocks that fit.
    fn sum(&self, fits: &dyn Fn(usize, bool) -> bool, value: &dyn Fn(usize) -> f64) -> Sums {
        let mut sums = Sums::default();
        for (place, is_measured) in &self.kept {
            if fits(*place, *is_measured) {
                sums.add(value(*place), self.group(*place));
            }
        }
        sums
    }

    fn of_all(&self, columns: usize) -> Figures {
        let (count, len) = (self.table.count as f64, self.table.len as f64);
        let (share, kept) = (self.kept_share, self.kept.len() as f64);
        let lens = self.sum(&|_, _| true, &|place| self.len(place));
        let variance = |squares: f64| (1.0 - share) * squares / (share * share);
        let distinct = Estimate::around(kept / share, variance(kept), kept, count);
        let distinct_len =
            Estimate::around(lens.all / share, variance(lens.squares), lens.all, len);
        let stored = (0..columns).map(|column| {
            let once = self.ratio(column, false);
            let all = self.ratio(column, true);
            Stored {
                all: all.times(&Estimate::exact(len), self.missing(len)),
                once: once.times(&distinct_len, 0.0),
                in_pointers: self.in_pointers(column),
                histogram: self.histogram(column),
            }
        });
        Figures {
            count: Estimate::exact(count),
            len: Estimate::exact(len),
            zero_len: Estimate::exact(self.table.zero_len as f64),
            distinct,
            distinct_len,
            stored: stored.collect(),
        }
    }

    /// The ratio of stored to logical length of the compressed blocks, each counted once or with
    /// all of its references.
    fn ratio(&self, column: usize, with_references: bool) -> Ratio {
        let weight = |place| if with_references { self.refs(place) } else { 1.0 };
        let is_measured = |_, is_measured| is_measured;
        let lens = self.sum(&is_measured, &|place| weight(place) * self.len(place));
        let stored = self.sum(&is_measured, &|place| weight(place) * self.stored(place, column));
        if lens.all == 0.0 {
            return Ratio { value: 1.0, variance: 0.0, is_known: self.table.len == 0 };
        }
        let value = stored.all / lens.all;
        // A block with much weight pulls the ratio towards itself: the jackknife corrects that.
        let rest = self.sum(&is_measured, &|place| {
            let len = weight(place) * self.len(place);
            let rest = weight(place) * self.stored(place, column) - value * len;
            rest / (1.0 - len / lens.all).max(0.1)
        });
        // Of one distinct block among those kept, or of all references.
        let share = match with_references {
            true => self.measured_share,
            false => self.measured_share / self.kept_share,
        };
        let mut variance = (1.0 - share) * rest.squares;
        let is_sample = !self.table.spreads.is_empty();
        if is_sample {
            variance += rest.variance_between(&Sums::default());
        }
        // The fewer blocks the differences come from, the less they are known.
        if rest.squares > 0.0 {
            let factor = 1.0 + STUDENT * rest.fourths / (rest.squares * rest.squares);
            variance *= factor * factor;
        }
        let count = self.kept.iter().filter(|(_, is_measured)| *is_measured).count();
        let is_known = (share == 1.0 && !is_sample) || count >= MEASURED_MIN;
        Ratio { value, variance: variance / (lens.all * lens.all), is_known }
    }

    /// The length of references that the compressed blocks should have and do not: those of a few
    /// blocks with very many, of which none was chosen.
    fn missing(&self, len: f64) -> f64 {
        let share = self.measured_share;
        if share == 1.0 {
            return 0.0;
        }
        let lens = self.sum(&|_, is_measured| is_measured, &|p| self.refs(p) * self.len(p));
        let error = ERRORS * ((1.0 - share) * lens.squares).sqrt() / share;
        (len - lens.all / share - error).max(0.0)
    }

    fn of_part(&self, columns: usize, part: Part) -> Figures {
        let Part { read, of } = part;
        if read == 0 && of > 0 {
            return self.of_nothing(columns, of as f64);
        }
        let (read, of) = (read.max(1) as f64, of as f64);
        let (scale, unread) = (of / read, 1.0 - (read / of).min(1.0));
        let mut groups = Sums::default();
        let mut own = Sums::default();
        for (index, group) in self.table.groups.iter().enumerate() {
            groups.add((group.len + group.zero_len) as f64, index);
            own.add(group.len as f64, index);
        }
        let variance = unread * scale * scale * own.variance_between(&groups);
        let len = Estimate::around(own.all * scale, variance, own.all, of);
        let zero_len = Estimate { value: of - len.value, low: of - len.high, high: of - len.low };
        let mean_len = own.all / (self.table.count.max(1) as f64);
        let distinct_len = self.distinct_len_of_part(&len, &groups, mean_len, (scale, unread));
        let kept_len = self.sum(&|_, _| true, &|place| self.len(place)).all;
        let per_byte = if kept_len > 0.0 { self.kept.len() as f64 / kept_len } else { 0.0 };
        let stored = (0..columns).map(|column| {
            let (once, all) = (self.ratio(column, false), self.ratio(column, true));
            // Blocks that occur often are met more often: the distinct blocks of the rest may
            // compress like those of the sample with or without their copies.
            let (one, other) = (once.times(&distinct_len, 0.0), all.times(&distinct_len, 0.0));
            Stored {
                all: all.times(&len, 0.0),
                once: Estimate {
                    value: one.value,
                    low: one.low.min(other.low),
                    high: one.high.max(other.high),
                },
                in_pointers: self.in_pointers(column) * scale,
                histogram: self.histogram(column),
            }
        });
        Figures {
            count: len.scaled(1.0 / mean_len.max(1.0)),
            len,
            zero_len,
            distinct: distinct_len.scaled(per_byte),
            distinct_len,
            stored: stored.collect(),
        }
    }

    /// No range was chosen: anything may be in any of them.
    fn of_nothing(&self, columns: usize, of: f64) -> Figures {
        let any = Estimate { value: of, low: 0.0, high: of };
        let stored = (0..columns).map(|column| Stored {
            all: any,
            once: any,
            in_pointers: 0.0,
            histogram: self.histogram(column),
        });
        Figures {
            count: any,
            len: any,
            zero_len: Estimate { value: 0.0, ..any },
            distinct: any,
            distinct_len: any,
            stored: stored.collect(),
        }
    }

    fn distinct_len_of_part(
        &self,
        len: &Estimate,
        groups: &Sums,
        mean_len: f64,
        (scale, unread): (f64, f64),
    ) -> Estimate {
        let spread = |place: usize| &self.table.spreads[place];
        let share = self.kept_share;
        let by_hash = |squares: f64| (1.0 - share) * squares / (share * share);
        let single = self.sum(&|place, _| spread(place).ranges == 1, &|place| self.len(place));
        let several = self.sum(&|place, _| spread(place).ranges > 1, &|place| self.len(place));
        let between = single.variance_between(groups) / (share * share);
        let variance = scale * scale * (unread * between + by_hash(single.squares));
        let single_len = single.all / share;
        let high = single_len * scale
            + several.all / share
            + ERRORS * (variance + by_hash(several.squares)).sqrt();
        let pairs = self.sum(&|_, _| true, &|place| {
            let (refs, within) = (self.refs(place), spread(place).pairs as f64);
            let across = (refs * (refs - 1.0) - within).max(0.0);
            self.len(place) * (within * scale + across * scale * scale)
        });
        let variance = pairs.variance_between(&Sums::default()) / (share * share);
        let unmet = 2.0 * UNMET * mean_len * scale * scale * unread / share;
        let pairs_len =
            pairs.all / share + ERRORS * (variance + by_hash(pairs.squares)).sqrt() + unmet;
        let seen = (single.all + several.all) / share;
        let seen_at_least = seen - ERRORS * by_hash(single.squares + several.squares).sqrt();
        let by_pairs = len.low * len.low / (len.low + pairs_len).max(1.0);
        let high = high.min(len.high);
        let low = by_pairs.max(seen_at_least).min(high);
        let value = scale.sqrt() * single_len + several.all / share;
        Estimate { value, low, high }.within(low, high)
    }

    /// Sorts the blocks into powers of two of their references, of the data that was read.
    fn histogram(&self, column: usize) -> Vec<Bucket> {
        let mut buckets: Vec<(Bucket, Bucket)> = Vec::new();
        for (place, is_measured) in &self.kept {
            let (refs, len) = (self.refs(*place), self.len(*place));
            let log2 = self.table.entries[*place].refs.max(1).ilog2() as usize;
            if buckets.len() <= log2 {
                buckets.resize(log2 + 1, Default::default());
            }
            let (kept, measured) = &mut buckets[log2];
            kept.allocated.add(&Space { blocks: 1.0, lsize: len, ..Space::default() });
            kept.referenced.add(&Space { blocks: refs, lsize: refs * len, ..Space::default() });
            if *is_measured {
                let psize = f64::from(self.table.size(*place, column));
                let dsize = self.stored(*place, column);
                measured.allocated.add(&Space { blocks: 1.0, lsize: len, psize, dsize });
                let (psize, dsize) = (refs * psize, refs * dsize);
                measured.referenced.add(&Space { blocks: refs, lsize: refs * len, psize, dsize });
            }
        }
        let mut all = Bucket::default();
        for (_, measured) in &buckets {
            all.allocated.add(&measured.allocated);
            all.referenced.add(&measured.referenced);
        }
        let share = self.kept_share;
        let scaled = |kept: &Space, measured: &Space, all: &Space| {
            // A bucket of which nothing was compressed is taken to be like the others.
            let like = if measured.lsize > 0.0 { measured } else { all };
            let by = if like.lsize > 0.0 { kept.lsize / like.lsize } else { 0.0 } / share;
            let (blocks, lsize) = (kept.blocks / share, kept.lsize / share);
            Space { blocks, lsize, psize: like.psize * by, dsize: like.dsize * by }
        };
        let rows = buckets.iter().enumerate().filter(|(_, (kept, _))| kept.allocated.blocks > 0.0);
        rows.map(|(log2, (kept, measured))| Bucket {
            refs: 1 << log2,
            allocated: scaled(&kept.allocated, &measured.allocated, &all.allocated),
            referenced: scaled(&kept.referenced, &measured.referenced, &all.referenced),
        })
        .collect()
    }
}

/// A ratio with its variance.
struct Ratio {
    value: f64,
    variance: f64,
    /// Whether a block was compressed, or there is none.
    is_known: bool,
}

impl Ratio {
    /// Multiplies it by a length. `missing` is a length that may have any ratio.
    fn times(&self, len: &Estimate, missing: f64) -> Estimate {
        if !self.is_known {
            return Estimate { value: len.value, low: 0.0, high: len.high };
        }
        let own = Estimate::around(self.value, self.variance, 0.0, f64::MAX);
        let value = self.value * len.value;
        if own.is_exact() && len.is_exact() && missing == 0.0 {
            return Estimate::exact(value.round());
        }
        // Independent errors add up by their squares.
        let error = |ratio: f64, by_len: f64| {
            let by_ratio = (ratio - self.value) * len.value;
            (by_ratio * by_ratio + by_len * by_len).sqrt() + missing
        };
        let low = value - error(own.low, self.value * (len.value - len.low));
        let high = value + error(own.high, self.value * (len.high - len.value));
        Estimate { value, low: low.max(0.0), high }
    }
}

#[cfg(test)]
mod tests;
