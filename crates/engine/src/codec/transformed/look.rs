//! Finds runs of machine code and of samples by looking at the bytes.
//!
//! Names of files and headers within them say little: an executable is half data, archives and disk
//! images hold files of all kinds, and a record may begin in the middle of one. So each block is
//! judged on its own. Code is recognised by how many calls go to places nearby; samples by the
//! differences between them, which have fewer values than the bytes, and compress better.

use std::ops::Range;

use super::branches::Machine;
use super::samples::Samples;
use super::{Origin, RUN_LEN_MIN, Run, Transform};
use crate::codec::{Compression, with_codec};

/// The bytes that are judged together; at the end of a file up to half as many more.
const BLOCK_LEN: usize = 16 << 10;
/// Shorter files are left alone.
const BLOCK_LEN_MIN: usize = 1 << 10;
/// Of so many bytes of x86 code at least one begins a call. In typical code it is one of 50 to 100,
/// in random bytes one of 30,000.
const X86_BYTES_PER_CALL: usize = 1000;
/// Of so many instructions of a machine with instructions of a fixed length at least one is a call.
/// In typical code it is one of 15 to 30, in random bytes one of 500 or less.
const INSTRUCTIONS_PER_CALL: usize = 100;

/// Fewer calls in a block may be chance.
const CALLS_MIN: usize = 4;

/// Samples are looked for by this much of a block.
const SAMPLE_LEN: usize = 4 << 10;
/// Only in blocks that a fast codec does not compress to less than one part in this many: sound and
/// pictures have no repeats.
const REST_PART_MAX: usize = 4;
/// A transform of samples must make a compressed block shorter by one part in this many.
const GAIN_PART_MIN: usize = 16;
/// How many of the bits of another layout a better one takes.
const BETTER: f64 = 0.98;
/// What tries a block.
const TRIAL: Compression = Compression::Zstd(1);

/// Returns the runs of a record to transform, in ascending order.
pub(super) fn runs(record: &[u8], origins: &[Origin]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut last: Option<Origin> = None;
    for (index, origin) in origins.iter().enumerate() {
        let end = origins.get(index + 1).map_or(record.len(), |next| next.start);
        let goes_on = last.is_some_and(|last| {
            last.file == origin.file
                && last.position + (origin.start - last.start) as u64 == origin.position
        });
        for (number, range) in blocks(origin.start..end).enumerate() {
            let may_join = number > 0 || goes_on;
            let before = runs.last().filter(|run| may_join && run.range.end == range.start);
            let transform = judge(&record[range.clone()], position_of(origin, range.start), before);
            match (transform, runs.last_mut()) {
                (None, _) => {}
                (Some(Judged { is_more: true, .. }), Some(run)) => run.range.end = range.end,
                (Some(Judged { transform, skip, .. }), _) => {
                    let start = range.start + skip;
                    if start + RUN_LEN_MIN <= range.end {
                        let position = position_of(origin, start);
                        runs.push(Run { range: start..range.end, position, transform });
                    }
                }
            }
        }
        last = Some(*origin);
    }
    runs
}

/// Divides a range of a record into blocks.
fn blocks(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let count = match range.len() {
        len if len < BLOCK_LEN_MIN => 0,
        len => ((len + BLOCK_LEN / 2) / BLOCK_LEN).max(1),
    };
    (0..count).map(move |index| {
        let start = range.start + index * BLOCK_LEN;
        let end = if index + 1 == count { range.end } else { start + BLOCK_LEN };
        start..end
    })
}

/// Positions are needed for their differences only.
fn position_of(origin: &Origin, at: usize) -> u32 {
    (origin.position + (at - origin.start) as u64) as u32
}

/// What a block seems to be.
struct Judged {
    transform: Transform,
    /// Where its first instruction or sample begins.
    skip: usize,
    /// Whether it goes on with the run before it.
    is_more: bool,
}

/// Judges a block, which may go on with the run before it.
fn judge(block: &[u8], position: u32, before: Option<&Run>) -> Option<Judged> {
    let code = code_in(block, position);
    // Sound that is near silence has the bytes of calls, too; but no code is like sound.
    let sound = match code {
        Some(Code { is_certain: true, .. }) => None,
        _ => sound_in(block, before),
    };
    sound.or_else(|| {
        let machine = code?.machine;
        let transform = Transform::Branches(machine);
        let is_more = before.is_some_and(|run| run.transform == transform);
        Some(Judged { transform, skip: skip_to(machine.alignment(), position), is_more })
    })
}

/// Returns the samples in a block, if there seem to be some and their transform makes it shorter.
fn sound_in(block: &[u8], before: Option<&Run>) -> Option<Judged> {
    let plain_len = compressed_len(block)?;
    if plain_len < block.len() / REST_PART_MAX || plain_len >= block.len() && is_noise(block) {
        return None;
    }
    let len_with = |samples: Samples, skip: usize| {
        let mut bytes = block.to_vec();
        samples.split(&mut bytes[skip..]);
        compressed_len(&bytes).filter(|len| len + plain_len / GAIN_PART_MIN < plain_len)
    };
    if let Some(Run { transform: Transform::Samples(samples), range, .. }) = before {
        let begun = range.len() % samples.width;
        if len_with(*samples, (samples.width - begun) % samples.width).is_some() {
            let transform = Transform::Samples(*samples);
            return Some(Judged { transform, skip: 0, is_more: true });
        }
    }
    let (width, channels) = layout_of(block)?;
    // Which byte comes first makes less of a difference, so this takes a closer look.
    let orders = phases_of(width, channels);
    let lens = orders.filter_map(|(samples, skip)| Some((len_with(samples, skip)?, samples, skip)));
    let (_, samples, skip) = lens.min_by_key(|(len, ..)| *len)?;
    Some(Judged { transform: Transform::Samples(samples), skip, is_more: false })
}

/// The ways in which samples of a layout may lie, with where the first one may begin.
fn phases_of(width: usize, channels: usize) -> impl Iterator<Item = (Samples, usize)> {
    let orders = [false, true].into_iter().filter(move |is_big| !*is_big || width > 1);
    orders.flat_map(move |is_big_endian| {
        (0..width).map(move |skip| (Samples { width, channels, is_big_endian }, skip))
    })
}

fn skip_to(alignment: u32, position: u32) -> usize {
    (position.wrapping_neg() % alignment) as usize
}

/// Code that a block seems to be.
#[derive(Clone, Copy)]
struct Code {
    machine: Machine,
    /// Whether it can hardly be something else.
    is_certain: bool,
}

fn code_in(block: &[u8], position: u32) -> Option<Code> {
    let code = |machine| Some(Code { machine, is_certain: false });
    let instructions = |alignment: u32| &block[skip_to(alignment, position).min(block.len())..];
    // Few of the distances in code are zero, unlike the upper bytes of numbers.
    let is_x86_call = |bytes: &&[u8]| {
        bytes[0] == 0xE8 && matches!(bytes[4], 0 | 0xFF) && !matches!(bytes[1..4], [0, 0, 0])
    };
    let calls = block.windows(5).filter(is_x86_call).count();
    if calls >= CALLS_MIN && calls * X86_BYTES_PER_CALL >= block.len() {
        let like_calls = block.iter().filter(|byte| **byte == 0xE8).count();
        return Some(Code { machine: Machine::X86, is_certain: calls * 2 >= like_calls });
    }
    let words = instructions(4).as_chunks::<4>().0;
    let count = |is_call: fn(u32) -> bool| {
        words.iter().filter(|bytes| is_call(u32::from_le_bytes(**bytes))).count()
    };
    let are_many =
        |calls: usize, all: usize| calls >= CALLS_MIN && calls * INSTRUCTIONS_PER_CALL >= all;
    // The distance in instructions, of 26 bits, is at most 2 million.
    let to_arm64 = count(|word| word >> 26 == 0x25 && matches!(word >> 21 & 31, 0 | 31));
    if are_many(to_arm64, words.len()) {
        return code(Machine::Arm64);
    }
    let to_arm = count(|word| word >> 24 == 0xEB && matches!(word >> 20 & 15, 0 | 15));
    if are_many(to_arm, words.len()) {
        return code(Machine::Arm);
    }
    let halves = instructions(2).as_chunks::<2>().0;
    let is_thumb_call = |pair: &&[[u8; 2]]| {
        let [first, second] = [u16::from_le_bytes(pair[0]), u16::from_le_bytes(pair[1])];
        // Again, a distance of at most 2 million instructions in either direction.
        matches!(first >> 9, 0x78 | 0x7B) && second >> 11 == 0x1F
    };
    let to_thumb = halves.windows(2).filter(is_thumb_call).count();
    if are_many(to_thumb, halves.len()) { code(Machine::ArmThumb) } else { None }
}

fn compressed_len(bytes: &[u8]) -> Option<usize> {
    let mut out = Vec::new();
    let done = with_codec(|codec| codec.compress(TRIAL, bytes, &mut out, usize::MAX));
    done.is_ok().then_some(out.len())
}

/// Returns the width and number of channels with which differences in the middle of a block take
/// the fewest bits, each taken for itself.
fn layout_of(block: &[u8]) -> Option<(usize, usize)> {
    let from = (block.len().saturating_sub(SAMPLE_LEN)) / 2;
    let some = &block[from..block.len().min(from + SAMPLE_LEN)];
    // In which order the bytes are changes this by a few parts in a hundred.
    let bits_of = |width: usize, channels: usize| {
        let mut bytes = some.to_vec();
        Samples { width, channels, is_big_endian: false }.split(&mut bytes);
        let planes = bytes.chunks_exact((bytes.len() / width).max(1)).take(width);
        planes.map(entropy).sum::<f64>()
    };
    let mut best: Option<(f64, (usize, usize))> = None;
    for (width, channels) in LAYOUTS {
        let bits = bits_of(width, channels);
        // Of two that are about as good, the simpler one comes first.
        if best.is_none_or(|(least, _)| bits < least * BETTER) {
            best = Some((bits, (width, channels)));
        }
    }
    best.filter(|(bits, _)| *bits < entropy(some)).map(|(_, layout)| layout)
}

/// The layouts tried, as width and channels: sound in one and two channels, and pixels of up to
/// four bytes.
const LAYOUTS: [(usize, usize); 10] =
    [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (3, 1), (3, 2), (4, 1), (4, 2)];

/// Whether all values of bytes are about as frequent, as in what was compressed or encrypted
/// before. To look for samples in that would take most of the time.
pub(super) fn is_noise(block: &[u8]) -> bool {
    let mut counts = [0_u64; 256];
    block.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
    let squares: u64 = counts.iter().map(|count| count * count).sum();
    let len = block.len() as u64;
    // For random bytes this is len^2 / 256 + len, and it hardly ever exceeds that by more than a
    // quarter of the second term.
    squares <= len * len / 256 + len + len / 4
}

/// Returns how many bits it takes to tell these bytes if neighbours say nothing of each other.
fn entropy(bytes: &[u8]) -> f64 {
    let mut counts = [0_u32; 256];
    bytes.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
    let all = bytes.len() as f64;
    let used = counts.into_iter().filter(|count| *count > 0).map(f64::from);
    used.map(|count| count * (all / count).log2()).sum()
}
