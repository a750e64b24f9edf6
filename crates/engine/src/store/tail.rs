//! The tail of a file: what it is longer than the pool.
//!
//! Every few commits a pool ends a little earlier or later. To cut its file and to grow it again
//! would make each of their syncs a commit of the file system's journal; to write once more to
//! where the file has been does not. So a short tail stays while the pool is in use. Nothing that
//! any state reaches lies in it. It goes when the pool is closed or compacted.

use std::sync::Arc;

use super::format::checksum::ChecksumKind;
use super::{Patience, Store};
use crate::units::Sector;

/// The maximum length of a tail, in bytes.
const TAIL_LEN_MAX: u64 = 1 << 20;
/// A tail is no longer than this part of the pool.
const TAIL_PART: u64 = 4;

/// How much of a tail may stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::store) enum Tail {
    /// A short one.
    #[default]
    Short,
    /// None at all.
    None,
}

impl Store {
    /// Cuts off the whole tail, unless somebody is writing, who may need it.
    pub fn drop_tail(self: &Arc<Self>) {
        let has_tail = || {
            let end = self.state().superblock.end.0 << self.ashift();
            self.device.len().is_ok_and(|len| len > end)
        };
        if !self.is_read_only()
            && has_tail()
            && let Ok(txn) = self.begin_with(ChecksumKind::default(), Patience::None)
        {
            self.cut_tail(txn.core.base.superblock.end, Tail::None);
        }
    }

    /// Cuts the file where the pool ends, if its tail is too long. The durable state does not reach
    /// there, so this needs no sync, and a failure only wastes space.
    pub(in crate::store) fn cut_tail(&self, end: Sector, tail: Tail) {
        let end = end.0 << self.ashift();
        let longest = match tail {
            Tail::Short => TAIL_LEN_MAX.min(end / TAIL_PART),
            Tail::None => 0,
        };
        if self.device.len().is_ok_and(|len| len > end + longest) {
            let _ = self.device.set_len(end);
        }
    }
}
