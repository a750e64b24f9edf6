//! Databases of which there are several versions.

use super::Rng;

const PAGE_LEN: usize = 4096;

/// Returns a database of about `len` bytes as it was on a day: each day a few rows of some pages
/// change, and a page is appended.
pub fn database(seed: u64, len: usize, day: u64) -> Vec<u8> {
    let mut bytes = Rng(seed).table(len.next_multiple_of(PAGE_LEN));
    bytes[..16].copy_from_slice(b"SQLite format 3\0");
    bytes[16..18].copy_from_slice(&(PAGE_LEN as u16).to_be_bytes());
    for day in 0..day {
        let mut rng = Rng(seed * 1000 + day);
        for _ in 0..1 + bytes.len() / (16 * PAGE_LEN) {
            let new = rng.pick(&[4, 30, 300]);
            let at = 100 + rng.below((bytes.len() - 500) as u64) as usize;
            bytes[at..at + new].copy_from_slice(&rng.text(new));
        }
        // The counter of changes.
        bytes[24..28].copy_from_slice(&(day as u32 + 1).to_be_bytes());
        bytes.extend(rng.table(PAGE_LEN));
    }
    bytes
}
