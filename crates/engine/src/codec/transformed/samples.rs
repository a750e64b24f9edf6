//! Samples of sound, and pixels: each becomes its difference from the one before it in the same
//! channel, and the bytes of the differences are sorted by significance.
//!
//! Differences are small, so their upper bytes are nearly all the same, while the lower ones are
//! noise that no codec shortens. Side by side they would hide the upper ones.

/// How samples lie in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Samples {
    /// The bytes of one, 1 to 4.
    pub width: usize,
    /// How many channels take turns, 1 to 16.
    pub channels: usize,
    /// Whether the most significant byte comes first.
    pub is_big_endian: bool,
}

impl Samples {
    pub fn to_byte(self) -> u8 {
        (self.width - 1) as u8
            | ((self.channels - 1) << 2) as u8
            | u8::from(self.is_big_endian) << 6
    }

    pub fn from_byte(byte: u8) -> Option<Samples> {
        let width = usize::from(byte & 3) + 1;
        let is_big_endian = byte & 0x40 != 0;
        // One byte has no order.
        let is_sound = byte & 0x80 == 0 && !(is_big_endian && width == 1);
        let channels = usize::from(byte >> 2 & 15) + 1;
        is_sound.then_some(Samples { width, channels, is_big_endian })
    }

    /// Replaces samples with their differences, the least significant bytes of all of them first.
    /// What follows the last whole sample stays as it is.
    pub fn split(self, bytes: &mut [u8]) {
        let from = bytes.to_vec();
        match (self.width, self.is_big_endian) {
            (1, _) => split::<1, false>(&from, self.channels, bytes),
            (2, false) => split::<2, false>(&from, self.channels, bytes),
            (2, true) => split::<2, true>(&from, self.channels, bytes),
            (3, false) => split::<3, false>(&from, self.channels, bytes),
            (3, true) => split::<3, true>(&from, self.channels, bytes),
            (_, false) => split::<4, false>(&from, self.channels, bytes),
            (_, true) => split::<4, true>(&from, self.channels, bytes),
        }
    }

    /// Makes the samples again.
    pub fn join(self, bytes: &mut [u8]) {
        let from = bytes.to_vec();
        match (self.width, self.is_big_endian) {
            (1, _) => join::<1, false>(&from, self.channels, bytes),
            (2, false) => join::<2, false>(&from, self.channels, bytes),
            (2, true) => join::<2, true>(&from, self.channels, bytes),
            (3, false) => join::<3, false>(&from, self.channels, bytes),
            (3, true) => join::<3, true>(&from, self.channels, bytes),
            (_, false) => join::<4, false>(&from, self.channels, bytes),
            (_, true) => join::<4, true>(&from, self.channels, bytes),
        }
    }
}

/// Where byte `index` of a sample, counted from the least significant one, is in it.
const fn place<const WIDTH: usize, const BIG_ENDIAN: bool>(index: usize) -> usize {
    if BIG_ENDIAN { WIDTH - 1 - index } else { index }
}

fn sample<const WIDTH: usize, const BIG_ENDIAN: bool>(bytes: &[u8; WIDTH]) -> u32 {
    let byte = |index: usize| u32::from(bytes[place::<WIDTH, BIG_ENDIAN>(index)]) << (8 * index);
    (0..WIDTH).map(byte).sum()
}

fn split<const WIDTH: usize, const BIG_ENDIAN: bool>(from: &[u8], channels: usize, to: &mut [u8]) {
    let samples = from.as_chunks::<WIDTH>().0;
    let mut before = [0_u32; 16];
    let mut channel = 0;
    for (number, bytes) in samples.iter().enumerate() {
        let value = sample::<WIDTH, BIG_ENDIAN>(bytes);
        let difference = value.wrapping_sub(before[channel]).to_le_bytes();
        before[channel] = value;
        channel = if channel + 1 == channels { 0 } else { channel + 1 };
        for (index, byte) in difference.into_iter().take(WIDTH).enumerate() {
            to[index * samples.len() + number] = byte;
        }
    }
}

fn join<const WIDTH: usize, const BIG_ENDIAN: bool>(from: &[u8], channels: usize, to: &mut [u8]) {
    let samples = to.as_chunks_mut::<WIDTH>().0;
    let len = samples.len();
    let mut before = [0_u32; 16];
    let mut channel = 0;
    for (number, bytes) in samples.iter_mut().enumerate() {
        let byte = |index: usize| u32::from(from[index * len + number]) << (8 * index);
        let difference: u32 = (0..WIDTH).map(byte).sum();
        let value = before[channel].wrapping_add(difference);
        before[channel] = value;
        channel = if channel + 1 == channels { 0 } else { channel + 1 };
        for (index, byte) in value.to_le_bytes().into_iter().take(WIDTH).enumerate() {
            bytes[place::<WIDTH, BIG_ENDIAN>(index)] = byte;
        }
    }
}
