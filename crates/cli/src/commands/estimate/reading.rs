//! Reads what the walk finds, all of it or a sample.
//!
//! A few threads read the files of directories. Pools are read first, and by the main thread: no
//! other descriptor of a pool is closed while SQLite may have locks on it.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Mutex, PoisonError};

use hardpack_engine::FileId;
use hardpack_engine::store::superblock::FEATURE_SEGMENTS;
use rustix::fs::SeekFrom;

use super::scan::{Feed, Scan, WINDOW_LEN, Window};
use super::segments::Origin;
use super::walk::{Account, Walk};
use crate::address::{Address, Opened};
use crate::commands::put::readers::open;
use crate::contents::{self, Piece, Restart};
use crate::failure::{Cannot, Code, Failure, Reason};
use crate::signals;
use crate::snapshot::read_full;

/// Decides which ranges of a sample are read. The order in which files are found, and a seed, are
/// all that this depends on.
#[derive(Clone, Copy)]
pub struct Choice {
    pub seed: u64,
    /// The share to read; `None` for everything.
    pub share: Option<f64>,
}

/// Returns a number that looks random, the same for the same one.
pub fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Choice {
    /// Returns the ranges of a file that are read: their offsets, and a number for each.
    fn ranges(self, file: u64, len: u64) -> impl Iterator<Item = (u64, u32)> {
        let share = self.share.unwrap_or(1.0);
        let least = (share * 2.0_f64.powi(32)) as u64;
        let seed = mix(self.seed ^ mix(file));
        (0..len).step_by(WINDOW_LEN).filter_map(move |offset| {
            let drawn = mix(seed ^ offset);
            (drawn >> 32 < least).then_some((offset, drawn as u32))
        })
    }
}

/// A file that waits for a thread to read it.
pub struct Job {
    pub path: PathBuf,
    pub number: u64,
}

/// Reads bytes of a file at an offset, and returns their number.
type ReadAt<'r> = dyn Fn(&mut [u8], u64) -> Result<usize, Reason> + 'r;

/// Where the walk hands its files to.
pub struct Reading<'r> {
    pub scan: &'r Scan,
    pub windows: &'r SyncSender<Window>,
    pub account: &'r Account,
    pub choice: Choice,
}

impl Reading<'_> {
    /// Reads files until there are no more.
    pub fn work(&self, jobs: &Mutex<Receiver<Job>>) {
        loop {
            let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(Job { path, number }) = job else { return };
            if signals::is_interrupted() {
                continue;
            }
            if let Err(reason) = self.file(&path, number)
                && reason.code != Code::Interrupted
            {
                self.account.failed(path.as_os_str().as_bytes(), &reason);
            }
        }
    }

    fn file(&self, path: &Path, number: u64) -> Result<(), Reason> {
        let file = open(path)?;
        let len = file.metadata()?.len();
        if self.choice.share.is_some() {
            let read = |bytes: &mut [u8], offset| Ok(read_full(&file, bytes, offset)?);
            return self.some(number, len, &read);
        }
        let path = path.as_os_str().as_bytes().to_vec();
        let origin = Origin { number, path, in_pool: None };
        let mut feed = Feed::whole(self.scan, self.windows, origin);
        let mut offset = 0;
        let done = self.whole(&file, len, &mut feed, &mut offset);
        self.end(feed, offset, done)
    }

    /// Reads a file, and counts in `offset` how much.
    fn whole(
        &self,
        file: &File,
        len: u64,
        feed: &mut Feed<'_>,
        offset: &mut u64,
    ) -> Result<(), Reason> {
        let mut bytes = vec![0; len.clamp(1, WINDOW_LEN as u64) as usize];
        loop {
            let data = match rustix::fs::seek(file, SeekFrom::Data(*offset)) {
                Ok(data) => data,
                // A hole that extends to the end.
                Err(rustix::io::Errno::NXIO) => len.max(*offset),
                // A file system without support for holes.
                Err(_) => *offset,
            };
            feed.hole(data - *offset)?;
            self.account.read(0, 0, data - *offset);
            *offset = data;
            let end = rustix::fs::seek(file, SeekFrom::Hole(*offset)).unwrap_or(u64::MAX);
            while *offset < end {
                signals::check()?;
                let wanted = (end - *offset).min(bytes.len() as u64) as usize;
                let n = read_full(file, &mut bytes[..wanted], *offset)?;
                feed.bytes(&bytes[..n])?;
                self.account.read(0, 0, n as u64);
                *offset += n as u64;
                if n < wanted {
                    break;
                }
            }
            if *offset >= len || *offset < end {
                return Ok(());
            }
        }
    }

    /// Counts a file of which `len` bytes were read: its blocks, and its length. Of one that cannot
    /// be read further, that is the part before.
    fn end(&self, feed: Feed<'_>, len: u64, done: Result<(), Reason>) -> Result<(), Reason> {
        self.account.read(u64::from(done.is_ok()), len, 0);
        feed.finish()?;
        done
    }

    /// Reads the ranges of a file that are in the sample.
    fn some(&self, number: u64, len: u64, read: &ReadAt<'_>) -> Result<(), Reason> {
        let mut bytes = Vec::new();
        for (offset, range) in self.choice.ranges(number, len) {
            signals::check()?;
            bytes.resize((len - offset).min(WINDOW_LEN as u64) as usize, 0);
            let n = read(&mut bytes, offset)
                // What was read is a sample of the part before.
                .inspect_err(|_| self.account.read(0, offset, 0))?;
            let mut feed = Feed::new(self.scan, self.windows, offset, range);
            feed.bytes(&bytes[..n])?;
            feed.finish()?;
            self.account.read(0, 0, n as u64);
        }
        self.account.read(1, len, 0);
        Ok(())
    }

    /// Reads a file of a pool, which the user named at a place.
    pub fn pool_file(
        &self,
        (index, opened): (usize, &Opened),
        (path, id): (&[u8], FileId),
        number: u64,
        len: u64,
    ) -> Result<(), Reason> {
        if self.choice.share.is_some() {
            let file = opened.pool.file(id)?;
            return self.some(number, len, &|bytes, offset| Ok(file.read_at(bytes, offset)?));
        }
        let origin = Origin { number, path: path.to_vec(), in_pool: Some((index, id)) };
        let mut feed = Feed::whole(self.scan, self.windows, origin);
        // An estimate should keep no writer waiting: it rather fails.
        let (mut is_begun, mut read) = (contents::once(), 0);
        let done =
            contents::read(opened, id, path, Restart::Possible, &mut is_begun, &mut |piece| {
                signals::check()?;
                let len = match piece {
                    Piece::Bytes(bytes) => {
                        feed.bytes(bytes)?;
                        bytes.len() as u64
                    }
                    Piece::Hole(len) => {
                        feed.hole(len)?;
                        len
                    }
                };
                read += len;
                self.account.read(0, 0, len);
                Ok(())
            });
        self.end(feed, read, done)
    }

    /// Reads what a pool holds, which the user named at a place. What cannot be read is reported.
    pub fn pool(
        &self,
        index: usize,
        address: &Address,
        walk: &mut Walk<'_>,
    ) -> Result<(), Failure> {
        let mut all = || -> Result<(), Reason> {
            let opened = address.open(None)?;
            let is_snapshot = opened.live().is_none();
            let has_snapshots = is_snapshot || !opened.pool.snapshots()?.is_empty();
            let incompat = opened.pool.state().superblock.incompat;
            self.account.note(|counts| {
                counts.has_snapshots |= has_snapshots;
                counts.has_segments |= incompat & FEATURE_SEGMENTS != 0;
            });
            walk.pool(&opened, &mut |path, id, number, len| match self.pool_file(
                (index, &opened),
                (path, id),
                number,
                len,
            ) {
                Err(reason) if reason.code != Code::Interrupted => {
                    self.account.failed(&opened.shown_at(path), &reason);
                    Ok(())
                }
                read => read,
            })
        };
        all().cannot("estimate", address)
    }
}
