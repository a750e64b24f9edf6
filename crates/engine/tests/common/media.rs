//! What segments transform: machine code, sound and pictures, as like the real ones as it takes to
//! be recognised.

use super::Rng;

/// What code is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Machine {
    X86,
    Arm,
    ArmThumb,
    Arm64,
}

pub const MACHINES: [Machine; 4] = [Machine::X86, Machine::Arm, Machine::ArmThumb, Machine::Arm64];

/// Code of `len` bytes at `position` of its file: instructions that come again, and calls of a few
/// functions. What it calls and what it does are the same wherever it lies.
pub fn code(machine: Machine, seed: u64, position: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng(seed);
    let words: Vec<u64> = (0..200).map(|_| rng.next() & 0x7f7f_7f7f_7f7f_7f7f).collect();
    let functions: Vec<u64> = (0..60).map(|_| rng.below(1 << 19) * 8).collect();
    let mut bytes = Vec::with_capacity(len + 80);
    while bytes.len() < len {
        for _ in 0..2 + rng.below(6) {
            let word = rng.pick(&words).to_le_bytes();
            let short = 3 + rng.below(4) as usize;
            bytes.extend(&word[..if machine == Machine::X86 { short } else { 4 }]);
        }
        let distance = rng.pick(&functions).wrapping_sub(position + bytes.len() as u64) as u32;
        match machine {
            Machine::X86 => {
                bytes.push(0xE8);
                bytes.extend(distance.wrapping_sub(5).to_le_bytes());
            }
            Machine::Arm => {
                let word = (distance.wrapping_sub(8) >> 2 & 0xFF_FFFF) | 0xEB << 24;
                bytes.extend(word.to_le_bytes());
            }
            Machine::ArmThumb => {
                let halves = distance.wrapping_sub(4) >> 1;
                bytes.extend((0xF000 | (halves >> 11 & 0x7FF) as u16).to_le_bytes());
                bytes.extend((0xF800 | (halves & 0x7FF) as u16).to_le_bytes());
            }
            Machine::Arm64 => {
                let word = (distance >> 2 & 0x3FF_FFFF) | 0x25 << 26;
                bytes.extend(word.to_le_bytes());
            }
        }
    }
    bytes.truncate(len);
    bytes
}

/// Sound of some voices, or pixels: samples of `width` bytes, in `channels` that take turns.
pub fn sound(
    seed: u64,
    (width, channels): (usize, usize),
    is_big_endian: bool,
    len: usize,
) -> Vec<u8> {
    let mut rng = Rng(seed);
    let full = 2_f64.powi(8 * width as i32 - 1) * 0.9;
    let voices: Vec<(f64, f64)> = (0..3 * channels)
        .map(|_| (0.002 + rng.below(1000) as f64 / 40_000.0, rng.below(100) as f64 / 300.0))
        .collect();
    let mut bytes = Vec::with_capacity(len + 4);
    for number in 0.. {
        let (channel, time) = (number % channels, (number / channels) as f64);
        let own = &voices[3 * channel..3 * channel + 3];
        let wave: f64 = own.iter().map(|(pace, strength)| (time * pace).sin() * strength).sum();
        let noise = (rng.below(1000) as f64 / 1000.0 - 0.5) / 60.0;
        let value = ((wave + noise) * full) as i64 as u32;
        let mut sample = value.to_le_bytes();
        if is_big_endian {
            sample[..width].reverse();
        }
        bytes.extend(&sample[..width]);
        if bytes.len() >= len {
            break;
        }
    }
    bytes.truncate(len);
    bytes
}
