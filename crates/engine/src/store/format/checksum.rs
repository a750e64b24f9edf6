//! Integrity checksums of extents: they detect damage, and say nothing about identity.

use std::fmt;
use std::str::FromStr;

use sha2::Digest;

use crate::error::Error;

/// The function that protects an extent. The discriminants are the numbers on disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum ChecksumKind {
    /// XXH3, 128 bits: fast, detects every accidental change.
    #[default]
    Xxh3 = 1,
    /// BLAKE3, 256 bits: also detects deliberate changes.
    Blake3 = 2,
    /// SHA-256.
    Sha256 = 3,
}

/// Returns the first bytes of a checksum as a number.
pub fn front(sum: &[u8; 32]) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *sum;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

impl ChecksumKind {
    /// Every kind, in the order of the numbers on disk.
    pub const ALL: [ChecksumKind; 3] =
        [ChecksumKind::Xxh3, ChecksumKind::Blake3, ChecksumKind::Sha256];

    /// Returns the kind with this number on disk.
    pub fn from_stored(value: u8) -> Option<ChecksumKind> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == value)
    }

    /// The length of the checksum in a pointer, in bytes.
    pub const fn width(self) -> usize {
        match self {
            ChecksumKind::Xxh3 => 16,
            ChecksumKind::Blake3 | ChecksumKind::Sha256 => 32,
        }
    }

    /// Returns the checksum of `bytes`, filled up with zeros behind [`ChecksumKind::width`].
    pub fn sum(self, bytes: &[u8]) -> [u8; 32] {
        let mut out = [0; 32];
        match self {
            ChecksumKind::Xxh3 => {
                let hash = twox_hash::XxHash3_128::oneshot(bytes);
                out[..16].copy_from_slice(&hash.to_le_bytes());
            }
            ChecksumKind::Blake3 => out = *blake3::hash(bytes).as_bytes(),
            ChecksumKind::Sha256 => out.copy_from_slice(&sha2::Sha256::digest(bytes)),
        }
        out
    }

    /// The name used in properties.
    pub const fn name(self) -> &'static str {
        match self {
            ChecksumKind::Xxh3 => "xxh3",
            ChecksumKind::Blake3 => "blake3",
            ChecksumKind::Sha256 => "sha256",
        }
    }
}

impl fmt::Display for ChecksumKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ChecksumKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wanted = if text == "on" { "xxh3" } else { text };
        Self::ALL.into_iter().find(|kind| kind.name() == wanted).ok_or_else(|| {
            Error::Invalid(format!("'{text}' is not a checksum; use xxh3, blake3 or sha256"))
        })
    }
}
