//! The part of the caches that a pool has, which outlasts the pool: who opens it again soon finds
//! it warm.
//!
//! A program that opens a connection for each request would otherwise decompress the same records
//! for each of them. Entries name the bytes that they stand for, so none is ever wrong. But who
//! opens a file that others have changed, or damaged, is to see what it holds now: the entries are
//! kept only for a file that nobody has changed since, as far as its length and the time of its
//! last change tell. What is written through a memory mapping changes neither on some file systems.

use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::cache::Caches;
use crate::device::{Device, Version};

/// Of how many closed pools the entries are kept.
const CLOSED_COUNT_MAX: usize = 16;

/// The pool of some entries that nobody has open.
#[derive(Clone, Copy, Debug)]
pub(super) struct Closed {
    version: Version,
    guid: [u8; 16],
    number: u64,
}

/// The entries of one pool in the caches.
#[derive(Debug)]
pub(super) struct CacheShare {
    caches: Arc<Caches>,
    /// Keeps them apart from those of other pools.
    pub number: u64,
    guid: [u8; 16],
    device: Arc<dyn Device>,
    /// What the pool was opened as.
    opened: Option<Version>,
}

impl CacheShare {
    /// Returns the share of a pool that is being opened.
    pub fn of(caches: Arc<Caches>, device: &Arc<dyn Device>, guid: [u8; 16]) -> Arc<CacheShare> {
        let opened = device.version();
        let number = caches.reopened(opened, guid);
        let number = number.unwrap_or_else(|| caches.next_pool.fetch_add(1, Ordering::Relaxed));
        Arc::new(CacheShare { caches, number, guid, device: Arc::clone(device), opened })
    }

    pub fn caches(&self) -> &Arc<Caches> {
        &self.caches
    }
}

impl Deref for CacheShare {
    type Target = Caches;

    fn deref(&self) -> &Caches {
        &self.caches
    }
}

impl Drop for CacheShare {
    fn drop(&mut self) {
        let (number, guid) = (self.number, self.guid);
        match self.device.version().filter(|version| Some(*version) == self.opened) {
            Some(version) => self.caches.close(Closed { version, guid, number }),
            None => self.caches.forget(number),
        }
    }
}

impl Caches {
    /// Returns the number that a pool had when it was last closed, and keeps it no longer.
    fn reopened(&self, version: Option<Version>, guid: [u8; 16]) -> Option<u64> {
        let version = version?;
        let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |one: &Closed| one.version == version && one.guid == guid;
        let found = closed.iter().position(is_same)?;
        closed.remove(found).map(|one| one.number)
    }

    /// Keeps the entries of a pool for whoever opens it next.
    fn close(&self, new: Closed) {
        let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        let is_older = |one: &Closed| one.version.file == new.version.file;
        let mut gone: Vec<u64> =
            closed.iter().filter(|one| is_older(one)).map(|one| one.number).collect();
        closed.retain(|one| !is_older(one));
        closed.push_back(new);
        if closed.len() > CLOSED_COUNT_MAX {
            gone.extend(closed.pop_front().map(|one| one.number));
        }
        drop(closed);
        gone.into_iter().for_each(|number| self.forget(number));
    }
}
