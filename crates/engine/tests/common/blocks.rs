//! A file system that runs out of blocks: a hole takes none until it is written to.

use std::collections::HashSet;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::sim_device::Fault;

const BLOCK: u64 = 4096;

/// The blocks of one file, shared with the test.
#[derive(Clone, Debug, Default)]
pub struct Blocks {
    inner: Arc<Mutex<Inner>>,
    failing: bool,
}

#[derive(Debug, Default)]
struct Inner {
    used: HashSet<u64>,
    is_full: bool,
    /// How long the file may get, if that is limited.
    len_max: Option<u64>,
}

impl Blocks {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets others take all blocks that are free, now and later.
    pub fn fill(&self) {
        self.inner().is_full = true;
    }

    /// Limits the length of the file for this process.
    pub fn limit_len(&self, len_max: u64) {
        self.inner().len_max = Some(len_max);
    }

    /// Whether a range has all of its blocks.
    pub fn has_all(&self, range: Range<u64>) -> bool {
        let inner = self.inner();
        (range.start / BLOCK..range.end.div_ceil(BLOCK)).all(|block| inner.used.contains(&block))
    }
}

impl Fault for Blocks {
    fn write(&mut self, _: &[u8], offset: u64, bytes: &[u8]) -> io::Result<Vec<(u64, Vec<u8>)>> {
        let mut inner = self.inner();
        let end = offset + bytes.len() as u64;
        if inner.len_max.is_some_and(|len_max| end > len_max) {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        for block in offset / BLOCK..end.div_ceil(BLOCK) {
            if inner.is_full && !inner.used.contains(&block) {
                let kept = (block * BLOCK).saturating_sub(offset) as usize;
                drop(inner);
                self.failing = true;
                return Ok(vec![(offset, bytes[..kept].to_vec())]);
            }
            inner.used.insert(block);
        }
        Ok(vec![(offset, bytes.to_vec())])
    }

    fn after_write(&mut self) -> io::Result<()> {
        match std::mem::take(&mut self.failing) {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(()),
        }
    }

    fn room(&self) -> Option<u64> {
        self.inner().is_full.then_some(0)
    }

    fn len_max(&self) -> u64 {
        self.inner().len_max.unwrap_or(u64::MAX)
    }

    fn holes(&self, len: u64) -> Vec<Range<u64>> {
        let inner = self.inner();
        let mut holes: Vec<Range<u64>> = Vec::new();
        for block in (0..len.div_ceil(BLOCK)).filter(|block| !inner.used.contains(block)) {
            match holes.last_mut().filter(|hole| hole.end == block * BLOCK) {
                Some(hole) => hole.end += BLOCK,
                None => holes.push(block * BLOCK..(block + 1) * BLOCK),
            }
        }
        holes
    }

    fn cut(&mut self, _: &[u8], start: u64, end: u64) {
        let cut = start.div_ceil(BLOCK)..end / BLOCK;
        self.inner().used.retain(|block| !cut.contains(block));
    }
}
