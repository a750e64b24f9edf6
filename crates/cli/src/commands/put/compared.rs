//! Compares the content of a source with what a file of the pool has.

use hardpack_engine::codec::is_all_zero;
use hardpack_engine::pool::File;

use super::readers::CHUNK_LEN;
use crate::contents::Piece;
use crate::failure::Reason;

/// A file of the pool, compared up to some offset.
pub struct Compared<'f> {
    file: &'f File,
    offset: u64,
    is_same: bool,
    stored: Vec<u8>,
    /// The parts of the file that are not holes, once somebody has asked.
    covered: Option<Vec<(u64, u64)>>,
}

impl<'f> Compared<'f> {
    pub fn new(file: &'f File) -> Compared<'f> {
        Compared { file, offset: 0, is_same: true, stored: Vec::new(), covered: None }
    }

    /// Compares the next piece of the source.
    pub fn add(&mut self, piece: Piece<'_>) -> Result<(), Reason> {
        let from = self.offset;
        self.offset += piece.len();
        if self.is_same {
            self.is_same = match piece {
                Piece::Bytes(bytes) => self.has(bytes, from)?,
                Piece::Hole(_) => self.has_zeros(from)?,
            };
        }
        Ok(())
    }

    /// Returns the length of the source, if the file has just its content.
    pub fn end(self) -> Result<Option<u64>, Reason> {
        let is_same = self.is_same && self.file.len()? == self.offset;
        Ok(is_same.then_some(self.offset))
    }

    fn has(&mut self, bytes: &[u8], from: u64) -> Result<bool, Reason> {
        self.stored.resize(bytes.len(), 0);
        let n = self.file.read_at(&mut self.stored, from)?;
        Ok(n == bytes.len() && self.stored == bytes)
    }

    /// Whether there are only zeros between `from` and the offset. Of holes nothing is read.
    fn has_zeros(&mut self, from: u64) -> Result<bool, Reason> {
        let covered = match self.covered.take() {
            Some(covered) => covered,
            None => self.file.covered_ranges(CHUNK_LEN as u64)?.0,
        };
        let (to, mut are_zeros) = (self.offset, true);
        let first = covered.partition_point(|(_, end)| *end <= from);
        for (start, end) in covered[first..].iter().take_while(|(start, _)| *start < to) {
            let (mut at, end) = (from.max(*start), to.min(*end));
            while at < end && are_zeros {
                self.stored.resize((end - at).min(CHUNK_LEN as u64) as usize, 0);
                self.file.read_at(&mut self.stored, at)?;
                are_zeros = is_all_zero(&self.stored);
                at += self.stored.len() as u64;
            }
        }
        self.covered = Some(covered);
        Ok(are_zeros)
    }
}
