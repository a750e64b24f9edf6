//! Takes an input apart from the front: choices, numbers and bytes. An exhausted input yields
//! zeros.

/// The rest of an input.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn u8(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }

    pub fn u32(&mut self) -> u32 {
        u32::from(self.u16()) | u32::from(self.u16()) << 16
    }

    /// Takes a number of any size; small numbers and those at limits are more frequent.
    pub fn number(&mut self) -> u64 {
        let kind = self.u8();
        match kind % 8 {
            0 => 0,
            1 => u64::from(self.u8()),
            2 => u64::from(self.u16()),
            3 => 1 << (self.u8() % 64),
            4 => u64::MAX - u64::from(self.u8()),
            5 => u64::from(self.u8()) * 4096,
            6 => u64::from(self.u32()),
            _ => u64::from(self.u32()) << 32 | u64::from(self.u32()),
        }
    }

    /// Takes a number below `n`, or 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        let number = if n <= 256 { u32::from(self.u8()) } else { self.u32() };
        if n == 0 { 0 } else { number as usize % n }
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 1
    }

    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Takes up to `len` bytes.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Takes bytes preceded by their length, which is at most 255.
    pub fn short_bytes(&mut self) -> &'a [u8] {
        let len = self.u8();
        self.bytes(usize::from(len))
    }

    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}

/// Returns `len` bytes from a seed: noise, text or runs, depending on its lowest bits.
pub fn content(seed: u16, len: usize) -> Vec<u8> {
    let mut state = u64::from(seed) << 1 | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut bytes = Vec::with_capacity(len + 16);
    while bytes.len() < len {
        match seed % 4 {
            0 => bytes.extend_from_slice(&next().to_le_bytes()),
            1 => bytes.extend_from_slice(
                ["record ", "extent ", "of a pool, "][next() as usize % 3].as_bytes(),
            ),
            2 => bytes.extend(std::iter::repeat_n(next() as u8, next() as usize % 5000)),
            _ => bytes.extend_from_slice(format!("{} ", next() % 1000).as_bytes()),
        }
    }
    bytes.truncate(len);
    bytes
}
