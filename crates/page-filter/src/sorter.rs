//! Sorts the cells of a page by their places, in linear time: by a set with a bit for each byte of
//! the page.

/// Working memory.
#[derive(Default)]
pub(super) struct Sorter {
    is_start: Vec<u64>,
    /// The entry of the cell that starts at each byte, if one does. Never cleared.
    entries: Vec<u32>,
}

impl Sorter {
    /// Sorts entries, which have the place in their upper half, from the end of the page down.
    /// Returns `None` if two have the same place.
    pub(super) fn sort(&mut self, order: &mut [u32], page_len: usize) -> Option<()> {
        self.is_start.clear();
        self.is_start.resize(page_len.div_ceil(64), 0);
        self.entries.resize(page_len, 0);
        for &entry in &*order {
            let at = (entry >> 16) as usize;
            let (word, bit) = (&mut self.is_start[at / 64], 1 << (at % 64));
            if *word & bit != 0 {
                return None;
            }
            *word |= bit;
            self.entries[at] = entry;
        }
        let mut sorted = order.iter_mut();
        for (i, &word) in self.is_start.iter().enumerate().rev() {
            let mut left = word;
            while left != 0 {
                let bit = 63 - left.leading_zeros() as usize;
                left ^= 1 << bit;
                *sorted.next()? = self.entries[64 * i + bit];
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_sorted_unless_two_have_one_place() {
        let mut sorter = Sorter::default();
        for page_len in [480, 4096, 65536] {
            for count in [1, 2, 100, 400] {
                let place = |i: usize| (i * 7919 % page_len) as u32;
                let mut order: Vec<u32> = (0..count).map(|i| place(i) << 16 | i as u32).collect();
                let mut expected = order.clone();
                expected.sort_unstable_by(|a, b| b.cmp(a));
                assert_eq!(sorter.sort(&mut order, page_len), Some(()));
                assert_eq!(order, expected);
                order.push(place(count / 2) << 16 | count as u32);
                assert_eq!(sorter.sort(&mut order, page_len), None);
            }
        }
    }
}
