//! Where the decoder's pages go: into a record, or into a comparison with one.
//!
//! An encoder wants to know whether a form restores its record. Comparing each page while it is
//! still in the cache takes less time than writing the record and comparing it as a whole, and no
//! memory.

use std::ops::Range;

use super::Malformed;

const DIFFERS: Malformed = Malformed("it does not restore its record");

/// Takes the pieces of a record in their order.
pub(super) trait Output {
    /// The length of the record.
    fn len(&self) -> usize;

    /// Takes the bytes at `at`.
    fn put(&mut self, at: usize, bytes: &[u8]) -> Result<(), Malformed>;

    /// Takes `len` zeros at `at`.
    fn put_zeros(&mut self, at: usize, len: usize) -> Result<(), Malformed>;
}

/// Writes the record.
impl Output for [u8] {
    fn len(&self) -> usize {
        self.len()
    }

    fn put(&mut self, at: usize, bytes: &[u8]) -> Result<(), Malformed> {
        self[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn put_zeros(&mut self, at: usize, len: usize) -> Result<(), Malformed> {
        self[at..at + len].fill(0);
        Ok(())
    }
}

/// Writes a part of the record, and drops the rest of it.
pub(super) struct Part<'a> {
    bytes: &'a mut [u8],
    start: usize,
    record_len: usize,
}

impl<'a> Part<'a> {
    /// Takes the bytes from `start` on, as many as fit into `bytes`.
    pub(super) fn of(
        bytes: &'a mut [u8],
        start: usize,
        record_len: usize,
    ) -> Result<Part<'a>, Malformed> {
        let is_within = start <= record_len && bytes.len() <= record_len - start;
        let part = Part { bytes, start, record_len };
        if is_within { Ok(part) } else { Err(Malformed("the record has no such part")) }
    }

    /// Its position in the record.
    pub(super) fn range(&self) -> Range<usize> {
        self.start..self.start + self.bytes.len()
    }

    /// Returns what the part has of `len` bytes at `at`, and how many of them lie before it.
    fn overlap(&mut self, at: usize, len: usize) -> (&mut [u8], usize) {
        let Range { start, end } = self.range();
        let (from, to) = (at.clamp(start, end), (at + len).clamp(start, end));
        (&mut self.bytes[from - start..to - start], from - at.min(from))
    }
}

impl Output for Part<'_> {
    fn len(&self) -> usize {
        self.record_len
    }

    fn put(&mut self, at: usize, bytes: &[u8]) -> Result<(), Malformed> {
        let (target, skipped) = self.overlap(at, bytes.len());
        if !target.is_empty() {
            target.copy_from_slice(&bytes[skipped..skipped + target.len()]);
        }
        Ok(())
    }

    fn put_zeros(&mut self, at: usize, len: usize) -> Result<(), Malformed> {
        self.overlap(at, len).0.fill(0);
        Ok(())
    }
}

/// Compares every byte with a record, and fails at the first piece that differs.
pub(super) struct Comparison<'a> {
    record: &'a [u8],
    /// The number of bytes compared. Pieces must follow one another, so that none is missed.
    done: usize,
}

impl<'a> Comparison<'a> {
    pub(super) fn with(record: &'a [u8]) -> Comparison<'a> {
        Comparison { record, done: 0 }
    }

    /// Whether the whole record was compared.
    pub(super) fn is_complete(&self) -> bool {
        self.done == self.record.len()
    }

    fn next(&mut self, at: usize, len: usize) -> Result<&'a [u8], Malformed> {
        let next = self.record.get(self.done..self.done + len);
        let next = next.filter(|_| at == self.done).ok_or(DIFFERS)?;
        self.done += len;
        Ok(next)
    }
}

impl Output for Comparison<'_> {
    fn len(&self) -> usize {
        self.record.len()
    }

    fn put(&mut self, at: usize, bytes: &[u8]) -> Result<(), Malformed> {
        if self.next(at, bytes.len())? == bytes { Ok(()) } else { Err(DIFFERS) }
    }

    fn put_zeros(&mut self, at: usize, len: usize) -> Result<(), Malformed> {
        let are_zeros = self.next(at, len)?.iter().fold(0, |all, byte| all | byte) == 0;
        if are_zeros { Ok(()) } else { Err(DIFFERS) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_takes_what_it_overlaps() {
        let record: Vec<u8> = (1..=9).collect();
        for start in 0..=9 {
            for end in start..=9 {
                for cut in 0..=9 {
                    for zeros in cut..=9 {
                        let mut expected = record.clone();
                        expected[cut..zeros].fill(0);
                        let mut bytes = vec![0xa5; end - start];
                        let mut part = Part::of(&mut bytes, start, 9).unwrap();
                        assert_eq!((part.len(), part.range()), (9, start..end));
                        part.put(0, &record[..cut]).unwrap();
                        part.put_zeros(cut, zeros - cut).unwrap();
                        part.put(zeros, &record[zeros..]).unwrap();
                        assert_eq!(bytes, expected[start..end], "{start}..{end}, {cut}, {zeros}");
                    }
                }
            }
        }
        for (start, len) in [(10, 0), (9, 1), (0, 10), (usize::MAX, 1)] {
            assert!(Part::of(&mut vec![0; len], start, 9).is_err(), "{len} from {start} on");
        }
    }

    #[test]
    fn a_comparison_misses_no_byte() {
        let record = [1, 2, 0, 0, 5];
        let compared = |pieces: &[(usize, &[u8])]| {
            let mut comparison = Comparison::with(&record);
            let are_same = pieces.iter().all(|&(at, bytes)| match bytes {
                [0, 0] => comparison.put_zeros(at, 2).is_ok(),
                _ => comparison.put(at, bytes).is_ok(),
            });
            are_same && comparison.is_complete()
        };
        assert!(compared(&[(0, &[1, 2]), (2, &[0, 0]), (4, &[5])]));
        assert!(!compared(&[(0, &[1, 2]), (2, &[0, 0])]));
        assert!(!compared(&[(0, &[1, 2]), (4, &[5])]));
        assert!(!compared(&[(0, &[1, 2]), (2, &[0, 0]), (4, &[4])]));
        assert!(!compared(&[(0, &[0, 0]), (2, &[0, 0]), (4, &[5])]));
        assert!(!compared(&[(0, &record), (0, &[1])]));
        assert!(!compared(&[(0, &[1, 2, 0, 0, 5, 6])]));
    }
}
