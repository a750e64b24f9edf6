//! Figures of made-up tables, whose true figures are known.

use super::super::table::Limits;
use super::*;

/// Random numbers from a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// A block, with its length, its stored length and how often it occurs.
struct Made {
    id: u64,
    len: u32,
    size: u32,
    refs: u64,
}

/// Many blocks that occur once, some several times, a few often; most compress, some do not.
fn blocks(random: &mut Random, count: usize) -> Vec<Made> {
    let mut block = |_| {
        let refs = match random.below(100) {
            0..70 => 1,
            70..98 => 2 + random.below(4),
            _ => 10 + random.below(60),
        };
        let len = if random.below(10) == 0 { 1 + random.below(16_384) as u32 } else { 16_384 };
        let part = if random.below(4) == 0 { 1000 } else { 150 + random.below(500) as u32 };
        Made { id: random.next(), len, size: (len / 1000 * part).max(1), refs }
    };
    (0..count).map(&mut block).collect()
}

fn sum(blocks: &[Made], of: impl Fn(&Made) -> u64) -> f64 {
    blocks.iter().map(of).sum::<u64>() as f64
}

fn sectors(block: &Made) -> u64 {
    if block.size <= EMBEDDED_LEN_MAX { 0 } else { u64::from(block.size.next_multiple_of(512)) }
}

/// Counts how many of the seeds have the truth within the bounds of each figure.
struct Coverage(Vec<(&'static str, u32)>);

impl Coverage {
    fn note(&mut self, name: &'static str, estimate: &Estimate, truth: f64) {
        let is_within = estimate.low <= truth && truth <= estimate.high;
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += u32::from(is_within),
            None => self.0.push((name, is_within.into())),
        }
    }
}

#[test]
fn bounds_of_chosen_blocks_hold_for_nearly_all_seeds() {
    const SEEDS: u32 = 300;
    let mut coverage = Coverage(Vec::new());
    for seed in 0..SEEDS {
        let mut random = Random(u64::from(seed) << 32);
        let blocks = blocks(&mut random, 6000);
        let limits = Limits { blocks: 1000, measured: 400 * 16_384 };
        let mut table = Table::new(limits, 1, false);
        for block in &blocks {
            for _ in 0..block.refs {
                if table.add(block.id, block.len, 0) {
                    table.set_sizes(block.id, &[block.size]);
                }
            }
        }
        let figures = figures(&table, 1, 512, None);
        let lens = sum(&blocks, |block| u64::from(block.len));
        coverage.note("distinct", &figures.distinct, blocks.len() as f64);
        coverage.note("distinct_len", &figures.distinct_len, lens);
        coverage.note("once", &figures.stored[0].once, sum(&blocks, sectors));
        let all = sum(&blocks, |block| block.refs * sectors(block));
        coverage.note("all", &figures.stored[0].all, all);
        assert!(figures.count.is_exact() && !figures.distinct.is_exact());
        // The bounds are not merely wide.
        let width = figures.distinct.high / figures.distinct.low;
        assert!(width < 1.25, "{width}");
    }
    for (name, count) in coverage.0 {
        // 95% are expected: 285, with a standard deviation of 4.
        assert!(count >= 273, "{name}: {count} of {SEEDS}");
        assert!(count < SEEDS, "{name}: bounds that always hold are too wide");
    }
}

#[test]
fn bounds_of_a_sample_of_ranges_hold_for_nearly_all_seeds() {
    const SEEDS: u32 = 200;
    let mut coverage = Coverage(Vec::new());
    for seed in 0..SEEDS {
        let mut random = Random(u64::from(seed) << 32);
        let blocks = blocks(&mut random, 6000);
        // In a random order, but for neighbours that stay together.
        let mut all: Vec<&Made> = Vec::new();
        for block in &blocks {
            all.extend(std::iter::repeat_n(block, block.refs as usize));
        }
        for at in (1..all.len()).rev() {
            if at % 3 == 0 {
                all.swap(at, random.below(at as u64 + 1) as usize);
            }
        }
        let mut table = Table::new(Limits { blocks: 5000, measured: 1 << 40 }, 1, true);
        let mut read = 0;
        for range in all.chunks(64) {
            let number = random.next();
            if number >> 32 >= 1 << 30 {
                continue;
            }
            for block in range {
                read += u64::from(block.len);
                if table.add(block.id, block.len, number as u32) {
                    table.set_sizes(block.id, &[block.size]);
                }
            }
        }
        let of = sum(&blocks, |block| block.refs * u64::from(block.len));
        let figures = figures(&table, 1, 512, Some(Part { read, of: of as u64 }));
        let lens = sum(&blocks, |block| u64::from(block.len));
        coverage.note("distinct_len", &figures.distinct_len, lens);
        coverage.note("once", &figures.stored[0].once, sum(&blocks, sectors));
        let all = sum(&blocks, |block| block.refs * sectors(block));
        coverage.note("all", &figures.stored[0].all, all);
        let [low, high] = [figures.distinct_len.low, figures.distinct_len.high];
        assert!(low > of * 0.05 && high < of, "{low} {high} of {of}");
    }
    for (name, count) in coverage.0 {
        assert!(count >= 182, "{name}: {count} of {SEEDS}");
    }
}

#[test]
fn a_block_with_most_references_that_was_not_chosen_widens_the_bounds() {
    let mut table = Table::new(Limits { blocks: 100, measured: 1 << 30 }, 1, false);
    let mut random = Random(7);
    for _ in 0..1000 {
        let id = random.next();
        if table.add(id, 4096, 0) {
            table.set_sizes(id, &[1024]);
        }
    }
    // Its id begins with ones, so it is dropped.
    for _ in 0..9000 {
        table.add(u64::MAX, 4096, 0);
    }
    let all = figures(&table, 1, 512, None).stored[0].all;
    let truth = 1000.0 * 1024.0 + 9000.0 * 4096.0;
    assert!(all.low <= truth && truth <= all.high, "{all:?} {truth}");
}

#[test]
fn nothing_is_a_figure_too() {
    let table = Table::new(Limits { blocks: 100, measured: 100 }, 2, true);
    for part in [None, Some(Part { read: 0, of: 0 }), Some(Part { read: 0, of: 1 << 30 })] {
        let figures = figures(&table, 2, 512, part);
        for figure in [figures.count, figures.distinct_len, figures.dedup_ratio()] {
            assert!(figure.low <= figure.high && figure.value.is_finite(), "{figure:?}");
        }
    }
}

#[test]
fn some_clusters_stand_for_all() {
    let mut coverage = Coverage(Vec::new());
    for seed in 0..400 {
        let random = &mut Random(seed);
        let cluster = |random: &mut Random| {
            let len = if random.below(20) == 0 { 1 << 20 } else { 4 << 20 };
            // Most of it is new in some, little in others.
            let part = if random.below(3) == 0 { 300 } else { 20 } + random.below(60);
            (len as f64, (len / 1000 * part) as f64)
        };
        let all: Vec<(f64, f64)> = (0..80).map(|_| cluster(random)).collect();
        let (len, truth) = all.iter().fold((0.0, 0.0), |(a, b), (len, it)| (a + len, b + it));
        for (name, count) in [("ten", 10), ("forty", 40)] {
            coverage.note(name, &ratio_of_clusters(&all[..count], len, false), truth);
        }
        let exact = ratio_of_clusters(&all, len, true);
        assert!(exact.is_exact() && exact.value == truth);
    }
    for (name, count) in coverage.0 {
        // 95% are expected: 380, with a standard deviation of 4.
        assert!((364..400).contains(&count), "{name}: {count} of 400");
    }
    let one = ratio_of_clusters(&[(4.0, 1.0)], 40.0, false);
    assert_eq!((one.low, one.value, one.high), (0.0, 10.0, 40.0));
    assert_eq!(ratio_of_clusters(&[], 0.0, false), Estimate::exact(0.0));
}

/// A few segments do not compress, as where a video lies among sources: of the 64 segments that
/// `--measure` has by default, none of these may be among those measured.
#[test]
fn bounds_of_segments_hold_where_few_differ_from_the_others() {
    const SEEDS: u32 = 400;
    const LEN: f64 = 4_194_304.0;
    for (count, measured, share) in [(640, 64, 0.01), (640, 64, 0.02), (640, 8, 0.05)] {
        let mut within = 0;
        for seed in 0..SEEDS {
            let mut random = Random(u64::from(seed) << 32);
            let noise = (f64::from(count) * share) as i32;
            let mut segments: Vec<(f64, f64)> = (0..count)
                .map(|n| {
                    (LEN, if n < noise { LEN } else { 40_000.0 + random.below(20_000) as f64 })
                })
                .collect();
            let truth: f64 = segments.iter().map(|it| it.1).sum();
            for at in 0..measured {
                let other = at + random.below((count as usize - at) as u64) as usize;
                segments.swap(at, other);
            }
            let len = f64::from(count) * LEN;
            let figure = ratio_of_clusters(&segments[..measured], len, false);
            within += u32::from(figure.low <= truth && truth <= figure.high);
        }
        println!("{measured} of {count}, {share} noise: {within} of {SEEDS}");
        assert!(within * 100 >= SEEDS * 93, "{measured} of {count}: {within} of {SEEDS}");
    }
}
