//! Calls in machine code: the distance to the function becomes its address, and back.
//!
//! These are the *BCJ* filters of xz and 7-Zip, which `docs/format.md` names.

use std::io::{Read, Write};

use lzma_rust2::filter::bcj::{BcjReader, BcjWriter};

/// What the code is for. The discriminants are the numbers on disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Machine {
    X86 = 1,
    Arm = 2,
    ArmThumb = 3,
    Arm64 = 4,
}

impl Machine {
    const ALL: [Machine; 4] = [Machine::X86, Machine::Arm, Machine::ArmThumb, Machine::Arm64];

    pub fn from_number(number: u8) -> Option<Machine> {
        Machine::ALL.into_iter().find(|machine| *machine as u8 == number)
    }

    /// What the position of a run is a multiple of.
    pub fn alignment(self) -> u32 {
        match self {
            Machine::X86 => 1,
            Machine::ArmThumb => 2,
            Machine::Arm | Machine::Arm64 => 4,
        }
    }

    /// Replaces distances with addresses.
    pub fn to_addresses(self, bytes: &mut [u8], position: u32) {
        let (out, at) = (Vec::with_capacity(bytes.len()), position as usize);
        let mut filter = match self {
            Machine::X86 => BcjWriter::new_x86(out, at),
            Machine::Arm => BcjWriter::new_arm(out, at),
            Machine::ArmThumb => BcjWriter::new_arm_thumb(out, at),
            Machine::Arm64 => BcjWriter::new_arm64(out, at),
        };
        // Nothing can fail in memory; and what has another length is not what it was.
        if filter.write_all(bytes).is_ok()
            && let Ok(out) = filter.finish()
            && out.len() == bytes.len()
        {
            bytes.copy_from_slice(&out);
        }
    }

    /// Replaces addresses with distances.
    pub fn to_distances(self, bytes: &mut [u8], position: u32) {
        let (from, at) = (bytes.to_vec(), position as usize);
        let mut filter = match self {
            Machine::X86 => BcjReader::new_x86(&from[..], at),
            Machine::Arm => BcjReader::new_arm(&from[..], at),
            Machine::ArmThumb => BcjReader::new_arm_thumb(&from[..], at),
            Machine::Arm64 => BcjReader::new_arm64(&from[..], at),
        };
        let filled = filter.read_exact(bytes);
        debug_assert!(filled.is_ok(), "the filter has as many bytes as it was given");
    }
}
