//! Sequences of integers: one coding for all numbers, whether columns, row ids, pointers or
//! lengths.
//!
//! A sequence is written in the form that looks shortest to a codec, judged by the order-0 entropy
//! of the bytes that each form would write for a sample. Values are divided into planes, one for
//! each byte of significance, so that the low bytes, which all differ, do not separate the high
//! ones, which are all alike.
//!
//! The decoder does not check the encoder's choice: every form restores its values exactly.

use std::ops::Range;

use super::Malformed;
use super::decode::{Kept, make_room};
use super::dictionary::{self, Dictionary};
use super::streams::{Reader, Stream, Writer};
use super::varint::{unzigzag, zigzag};

/// Sequences shorter than this are written as varints without a mode.
const PLANES_COUNT_MIN: usize = 4;

/// A sample consists of this many stretches of [`SAMPLE_RUN_LEN`] values.
const SAMPLE_RUN_COUNT: usize = 4;
/// The length of a stretch of the sample, in values.
const SAMPLE_RUN_LEN: usize = 64;
const SAMPLE_COUNT_MAX: usize = SAMPLE_RUN_COUNT * SAMPLE_RUN_LEN;

/// The cost of a dictionary entry, in bits.
const DICTIONARY_ENTRY_BITS: usize = 14;

/// The modes. The low half of the byte is the number of planes, 0 to 8.
const PLAIN: u8 = 0x00;
const DELTA: u8 = 0x10;
const DELTA2: u8 = 0x20;
const DICTIONARY: u8 = 0x30;

/// Working memory of encoder and decoder.
#[derive(Default)]
pub(super) struct Ints {
    /// The values to be divided into planes.
    residuals: Vec<u64>,
    dictionary: Dictionary<i64>,
    entropy: Entropy,
}

/// Writes `values`. The reader must know their number.
pub(super) fn encode(work: &mut Ints, values: &[i64], writer: &mut Writer) {
    if values.len() < PLANES_COUNT_MIN {
        let mut previous = 0i64;
        for &value in values {
            writer.put_signed(value.wrapping_sub(previous));
            previous = value;
        }
        return;
    }
    let first_delta = values[1].wrapping_sub(values[0]);
    if values.windows(2).all(|pair| pair[1].wrapping_sub(pair[0]) == first_delta) {
        if first_delta == 0 {
            writer.put_byte(Stream::Control, PLAIN);
            writer.put_signed(values[0]);
        } else {
            writer.put_byte(Stream::Control, DELTA2);
            writer.put_signed(values[0]);
            writer.put_signed(first_delta);
        }
        return;
    }
    let base = least(values);
    match choose(work, values, base) {
        PLAIN => encode_plain(work, values, base, writer),
        DELTA => encode_delta(work, values, writer),
        DELTA2 => encode_delta2(work, values, writer),
        _ => {
            writer.put_byte(Stream::Control, DICTIONARY);
            writer.put_number(work.dictionary.entries.len() as u64 - 1);
            let mut previous = 0i64;
            for &entry in &work.dictionary.entries {
                writer.put_signed(entry.wrapping_sub(previous));
                previous = entry;
            }
            writer.put(Stream::Symbols, &work.dictionary.indices);
        }
    }
}

fn encode_plain(work: &mut Ints, values: &[i64], base: i64, writer: &mut Writer) {
    work.residuals.clear();
    work.residuals.extend(values.iter().map(|value| value.wrapping_sub(base) as u64));
    put_planes(PLAIN, &[base], &work.residuals, writer);
}

fn encode_delta(work: &mut Ints, values: &[i64], writer: &mut Writer) {
    work.residuals.clear();
    work.residuals.extend(values.windows(2).map(|pair| zigzag(pair[1].wrapping_sub(pair[0]))));
    put_planes(DELTA, &[values[0]], &work.residuals, writer);
}

fn encode_delta2(work: &mut Ints, values: &[i64], writer: &mut Writer) {
    work.residuals.clear();
    work.residuals.extend(values.windows(3).map(|three| zigzag(second_delta(three))));
    let first_delta = values[1].wrapping_sub(values[0]);
    put_planes(DELTA2, &[values[0], first_delta], &work.residuals, writer);
}

/// The least value, or 0 if there is none.
fn least(values: &[i64]) -> i64 {
    let Some(&first) = values.first() else { return 0 };
    // Several minima at once: each comparison has to wait for the one before.
    let (chunks, rest) = values.as_chunks::<8>();
    let lanes = chunks.iter().fold([first; 8], |lanes, chunk| {
        std::array::from_fn(|i| if chunk[i] < lanes[i] { chunk[i] } else { lanes[i] })
    });
    lanes.iter().chain(rest).copied().min().unwrap_or(first)
}

fn second_delta(three: &[i64]) -> i64 {
    let [a, b, c] = [three[0], three[1], three[2]];
    c.wrapping_sub(b).wrapping_sub(b.wrapping_sub(a))
}

fn put_planes(mode: u8, parameters: &[i64], residuals: &[u64], writer: &mut Writer) {
    let all = residuals.iter().fold(0, |all, residual| all | residual);
    let plane_count = (64 - all.leading_zeros()).div_ceil(8);
    writer.put_byte(Stream::Control, mode | plane_count as u8);
    for &parameter in parameters {
        writer.put_signed(parameter);
    }
    for plane in 0..plane_count {
        writer
            .stream(Stream::Planes)
            .extend(residuals.iter().map(|residual| (residual >> (8 * plane)) as u8));
    }
}

/// Estimates the cost of `values` in the shortest form other than a dictionary, in bits.
pub(super) fn estimate(work: &mut Ints, values: &[i64]) -> usize {
    let base = least(values);
    let cost_of = |mode| {
        sample(&mut work.residuals, values, base, mode);
        work.entropy.planes_cost(&work.residuals, usize::MAX) * values.len()
            / work.residuals.len().max(1)
    };
    [PLAIN, DELTA, DELTA2].into_iter().map(cost_of).min().unwrap_or(0)
}

/// Chooses the form that looks shortest. If that is a dictionary, leaves it in `work`.
fn choose(work: &mut Ints, values: &[i64], base: i64) -> u8 {
    let mut best = (usize::MAX, PLAIN);
    for mode in [PLAIN, DELTA, DELTA2] {
        sample(&mut work.residuals, values, base, mode);
        let count = work.residuals.len().max(1);
        let limit = best.0.saturating_mul(count) / values.len() + 1;
        let cost = work.entropy.planes_cost(&work.residuals, limit) * values.len() / count;
        if cost < best.0 {
            best = (cost, mode);
        }
    }
    // A dictionary cannot be shorter than its entries.
    if best.0 / 8 > values.len() / 4 && find_dictionary(work, values) {
        let sampled =
            &work.dictionary.indices[..work.dictionary.indices.len().min(SAMPLE_COUNT_MAX)];
        let cost = work.entropy.bytes_cost(sampled) * values.len() / sampled.len()
            + work.dictionary.entries.len() * DICTIONARY_ENTRY_BITS;
        if cost < best.0 {
            return DICTIONARY;
        }
    }
    best.1
}

/// Fills `residuals` with the residuals, in `mode`, of a sample of `values`. No value is below
/// `base`.
fn sample(residuals: &mut Vec<u64>, values: &[i64], base: i64, mode: u8) {
    residuals.clear();
    let mut add = |run: &[i64]| match mode {
        PLAIN => residuals.extend(run.iter().map(|value| value.wrapping_sub(base) as u64)),
        DELTA => residuals.extend(run.windows(2).map(|two| zigzag(two[1].wrapping_sub(two[0])))),
        _ => residuals.extend(run.windows(3).map(|three| zigzag(second_delta(three)))),
    };
    if values.len() <= SAMPLE_COUNT_MAX {
        return add(values);
    }
    let stride = (values.len() - SAMPLE_RUN_LEN) / (SAMPLE_RUN_COUNT - 1);
    for run in 0..SAMPLE_RUN_COUNT {
        add(&values[run * stride..][..SAMPLE_RUN_LEN]);
    }
}

/// Builds a dictionary in order of first appearance. Returns false if there are too many distinct
/// values.
fn find_dictionary(work: &mut Ints, values: &[i64]) -> bool {
    work.dictionary.clear();
    let count_max = dictionary::COUNT_MAX.min(values.len() / 2);
    values.iter().all(|&value| {
        let hash = (value as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let slot = (hash >> (u64::BITS - dictionary::SLOT_COUNT.ilog2())) as usize;
        work.dictionary.number(value, slot, count_max, |entry| entry == value)
    })
}

/// Reads `count` values into `out`, replacing its contents. The caller bounds `count`.
pub(super) fn decode(
    work: &mut Ints,
    reader: &mut Reader<'_>,
    count: usize,
    out: &mut Vec<i64>,
) -> Result<(), Malformed> {
    out.clear();
    append(work, reader, &Kept::all(count), out)
}

/// Reads a sequence and appends the values that are kept to `out`. The caller bounds its length.
pub(super) fn append(
    work: &mut Ints,
    reader: &mut Reader<'_>,
    kept: &Kept,
    out: &mut Vec<i64>,
) -> Result<(), Malformed> {
    let Kept { count, range } = kept.clone();
    make_room(out, range.end);
    let first = out.len();
    if count < PLANES_COUNT_MIN {
        let mut previous = 0i64;
        for _ in 0..count {
            previous = previous.wrapping_add(reader.take_signed()?);
            out.push(previous);
        }
        kept.cut(out, first);
        return Ok(());
    }
    let mode = reader.take_byte(Stream::Control)?;
    let plane_count = usize::from(mode & 0x0f);
    match mode & 0xf0 {
        PLAIN => {
            let base = reader.take_signed()?;
            let planes = (plane_count, count, range);
            return take_planes(reader, planes, base, |residual| residual as i64, out);
        }
        DELTA => {
            let mut value = reader.take_signed()?;
            out.push(value);
            let next = |residual| {
                value = value.wrapping_add(unzigzag(residual));
                value
            };
            let planes = (plane_count, count - 1, 0..range.end.saturating_sub(1));
            take_planes(reader, planes, 0, next, out)?;
        }
        DELTA2 => {
            let mut value = reader.take_signed()?;
            let mut delta = reader.take_signed()?;
            out.push(value);
            value = value.wrapping_add(delta);
            out.push(value);
            let next = |residual| {
                delta = delta.wrapping_add(unzigzag(residual));
                value = value.wrapping_add(delta);
                value
            };
            let planes = (plane_count, count - 2, 0..range.end.saturating_sub(2));
            take_planes(reader, planes, 0, next, out)?;
        }
        DICTIONARY if plane_count == 0 => return decode_dictionary(work, reader, kept, out),
        _ => return Err(Malformed("an integer mode is unknown")),
    }
    // Differences have to be added up from the first on.
    kept.cut(out, first);
    Ok(())
}

fn decode_dictionary(
    work: &mut Ints,
    reader: &mut Reader<'_>,
    kept: &Kept,
    out: &mut Vec<i64>,
) -> Result<(), Malformed> {
    let entry_count = reader.take_number()?.saturating_add(1);
    if entry_count > dictionary::COUNT_MAX as u64 {
        return Err(Malformed("a dictionary is too long"));
    }
    work.dictionary.entries.clear();
    let mut previous = 0i64;
    for _ in 0..entry_count {
        previous = previous.wrapping_add(reader.take_signed()?);
        work.dictionary.entries.push(previous);
    }
    // Now every byte is a valid index; numbers without an entry are refused below.
    work.dictionary.entries.resize(dictionary::COUNT_MAX, 0);
    let indices = &reader.take(Stream::Symbols, kept.count)?[kept.range.clone()];
    if indices.iter().copied().max().map_or(0, u64::from) >= entry_count {
        return Err(Malformed("a dictionary entry does not exist"));
    }
    let dictionary: &[i64; dictionary::COUNT_MAX] =
        work.dictionary.entries[..].try_into().expect("it was resized");
    out.extend(indices.iter().map(|&index| dictionary[usize::from(index)]));
    Ok(())
}

/// Takes so many planes of `count` values, and appends the values in the range. `value_of` is
/// called for these, in order.
fn take_planes(
    reader: &mut Reader<'_>,
    (plane_count, count, range): (usize, usize, Range<usize>),
    base: i64,
    mut value_of: impl FnMut(u64) -> i64,
    out: &mut Vec<i64>,
) -> Result<(), Malformed> {
    let mut finish = |residual: u64| base.wrapping_add(value_of(residual));
    let start = out.len();
    let mut take =
        || -> Result<&[u8], Malformed> { Ok(&reader.take(Stream::Planes, count)?[range.clone()]) };
    match plane_count {
        0 => out.extend(range.map(|_| finish(0))),
        1 => {
            let low = take()?;
            out.extend(low.iter().map(|&byte| finish(u64::from(byte))));
        }
        2 => {
            let (low, high) = (take()?, take()?);
            out.extend(
                low.iter().zip(high).map(|(&l, &h)| finish(u64::from(l) | u64::from(h) << 8)),
            );
        }
        3..=8 => {
            let low = take()?;
            out.extend(low.iter().map(|&byte| i64::from(byte)));
            for plane in 1..plane_count {
                let high = take()?;
                for (slot, &byte) in out[start..].iter_mut().zip(high) {
                    *slot |= i64::from(byte) << (8 * plane);
                }
            }
            for slot in &mut out[start..] {
                *slot = finish(*slot as u64);
            }
        }
        _ => return Err(Malformed("an integer has too many planes")),
    }
    Ok(())
}

const STEP_COUNT: usize = (SAMPLE_COUNT_MAX + 1).next_power_of_two();

/// Estimates the cost of bytes that are each coded on their own.
struct Entropy {
    /// `n * log2(n)`, in 1/64 bit; empty before first use.
    n_log_n: Vec<u32>,
    /// The differences between successive entries of `n_log_n`. As long as a power of two, so that
    /// masking an index costs little.
    steps: [u16; STEP_COUNT],
    counts: [u16; 256],
}

impl Default for Entropy {
    fn default() -> Entropy {
        Entropy { n_log_n: Vec::new(), steps: [0; STEP_COUNT], counts: [0; 256] }
    }
}

impl Entropy {
    /// The cost of `bytes`, at most [`SAMPLE_COUNT_MAX`] of them, in bits.
    fn bytes_cost(&mut self, bytes: &[u8]) -> usize {
        self.cost(bytes.iter().copied(), bytes.len())
    }

    /// The cost of all planes; any value of at least `limit` if it reaches that.
    fn planes_cost(&mut self, residuals: &[u64], limit: usize) -> usize {
        let all = residuals.iter().fold(0, |all, residual| all | residual);
        let plane_count = (64 - all.leading_zeros()).div_ceil(8);
        let mut sum = 0;
        for plane in 0..plane_count {
            let bytes = residuals.iter().map(|residual| (residual >> (8 * plane)) as u8);
            sum += self.cost(bytes, residuals.len());
            if sum >= limit {
                break;
            }
        }
        sum
    }

    fn fill_tables(&mut self) {
        let n_log_n = |n: usize| (n as f64 * (n as f64).max(1.0).log2() * 64.0).round() as u32;
        self.n_log_n.extend((0..=SAMPLE_COUNT_MAX).map(n_log_n));
        for (step, pair) in self.steps.iter_mut().zip(self.n_log_n.windows(2)) {
            *step = (pair[1] - pair[0]) as u16;
        }
    }

    fn cost(&mut self, bytes: impl Iterator<Item = u8>, count: usize) -> usize {
        if self.n_log_n.is_empty() {
            self.fill_tables();
        }
        self.counts.fill(0);
        let mut used = 0;
        for byte in bytes {
            let count = &mut self.counts[usize::from(byte)];
            used += u32::from(self.steps[usize::from(*count) % STEP_COUNT]);
            *count += 1;
        }
        (self.n_log_n[count].saturating_sub(used) / 64) as usize
    }
}
