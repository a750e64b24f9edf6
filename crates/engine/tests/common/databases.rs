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

/// Returns the database as it was on a day if each day a number in every fourth row changes: much
/// for patches, and little by columns.
pub fn counting_database(seed: u64, len: usize, day: u64) -> Vec<u8> {
    let mut bytes = database(seed, len, 0);
    for page in bytes.chunks_mut(PAGE_LEN).skip(1) {
        let u16_at = |page: &[u8], at: usize| u16::from_be_bytes([page[at], page[at + 1]]);
        for cell in (0..usize::from(u16_at(page, 3))).step_by(4) {
            // Behind the lengths of the cell and its header, the row id, and two types.
            let at = usize::from(u16_at(page, 8 + 2 * cell)) + 7;
            let number = u16_at(page, at).wrapping_add(3 * day as u16) & 0x3fff | 1 << 14;
            page[at..at + 2].copy_from_slice(&number.to_be_bytes());
        }
    }
    bytes[24..28].copy_from_slice(&(day as u32 + 1).to_be_bytes());
    bytes
}

/// Returns the database as it was on a day if each day parts of all pages change, whatever is
/// there.
pub fn worn_database(seed: u64, len: usize, day: u64) -> Vec<u8> {
    let mut bytes = database(seed, len, 0);
    for day in 0..day {
        let mut rng = Rng(seed * 1000 + day);
        for page in bytes.chunks_mut(PAGE_LEN) {
            for _ in 0..4 {
                let at = PAGE_LEN / 2 + rng.below((PAGE_LEN / 2 - 40) as u64) as usize;
                page[at..at + 8].copy_from_slice(&rng.text(8));
            }
        }
        bytes[24..28].copy_from_slice(&(day as u32 + 1).to_be_bytes());
    }
    bytes
}
