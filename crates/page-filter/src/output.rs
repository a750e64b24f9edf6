//! Where the decoder's pages go: into a record, or into a comparison with one.
//!
//! An encoder wants to know whether a form restores its record. Comparing each page while it is
//! still in the cache takes less time than writing the record and comparing it as a whole, and no
//! memory.

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
