//! The bytes of files.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fuser::Errno;
use hardpack_engine::pool::{Attributes, FILE_LEN_MAX, File};
use hardpack_engine::{Durability, Error, FileId};

use super::Tree;
use crate::attributes::now;
use crate::errno::{Answer, Refusal, errno};
use crate::known::Seen;

/// A file with fewer changed bytes than this joins the next commit when it is closed.
const DUE_LEN_MAX: usize = 1 << 20;
/// When this many bytes were written, everything is committed.
const WRITTEN_LEN_MAX: u64 = 64 << 20;
/// How much is copied at a time, and how many zeros are written at a time.
const PIECE_LEN: u64 = 1 << 20;
/// The length of the header of a SQLite database, by which it is recognised.
const HEADER_LEN: usize = 100;
/// The shortest hole that is told: shorter ones are stored as zeros.
const HOLE_LEN_MIN: u64 = 4096;

/// What a file is opened for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    Read,
    /// Also to truncate it, and so on.
    Write,
}

/// What `fallocate` is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocation {
    /// Extend the file. Space is not set aside: what will be written may take any space.
    Extend,
    /// Nothing, for the same reason.
    KeepLen,
    /// Make a hole.
    Punch,
    /// Make a hole, and extend the file.
    Zero,
}

impl Tree {
    /// Changes a file, which stays in use while that lasts, and then for as long as it has changes.
    fn with_file<R>(&self, id: FileId, act: impl FnOnce(&Arc<File>) -> Answer<R>) -> Answer<R> {
        self.refuse_read_only()?;
        self.open(id, Access::Write, 0)?;
        let done = self.open.get(id).ok_or_else(|| Errno::EIO.into()).and_then(|file| act(&file));
        let closed = self.close(id, Access::Write);
        let done = done?;
        closed?;
        Ok(done)
    }

    pub(super) fn handle(&self, id: FileId) -> Answer<Arc<File>> {
        match self.pool.file(id) {
            // Somebody has just created it.
            Err(Error::NotFound { .. }) => {
                self.publish(&[])?;
                Ok(self.pool.file(id)?)
            }
            known => Ok(known?),
        }
    }

    /// Opens a file for a process, and returns what the kernel may know of it.
    ///
    /// # Errors
    /// ESTALE if it has been removed: the kernel looks up its name again then. EBUSY if it is a
    /// database that somebody else uses.
    pub fn open(&self, id: FileId, access: Access, process: u32) -> Answer<Seen> {
        let opened = || {
            let file = match self.open.get(id) {
                Some(file) => file,
                None => self.handle(id)?,
            };
            let file = self.open.note(file, true)?;
            let allowed = match access {
                Access::Read => self.writers.check_reader(id, process),
                Access::Write => self.writers.open(&file, process),
            };
            allowed.inspect_err(|_| drop(self.close(id, Access::Read)))?;
            if access == Access::Write {
                let mut header = [0; HEADER_LEN];
                let n = file.read_at(&mut header, 0)?;
                file.note_header(&header[..n]);
            }
            // From here on, it stays if it is removed; it may have been before.
            let seen = self.seen(|| self.attributes(id));
            Ok(seen.inspect_err(|_| drop(self.close(id, access)))?.1)
        };
        match opened() {
            Err(Refusal::Engine(Error::NotFound { .. })) => Err(Errno::ESTALE.into()),
            opened => opened,
        }
    }

    /// Reads up to `len` bytes.
    pub fn read(&self, id: FileId, offset: u64, len: usize) -> Answer<Vec<u8>> {
        let mut bytes = vec![0; len];
        let n = self.read_into(id, offset, &mut bytes)?;
        bytes.truncate(n);
        Ok(bytes)
    }

    /// Reads bytes, and returns how many there were.
    pub fn read_into(&self, id: FileId, offset: u64, bytes: &mut [u8]) -> Answer<usize> {
        let file = match self.open.get(id) {
            Some(file) => file,
            None if self.is_fixed() => self.recent.get_or(id, || self.handle(id))?,
            None => self.handle(id)?,
        };
        match file.read_at(bytes, offset) {
            // Others have removed it, and this mount, which is read-only, could not keep it.
            Err(Error::NotFound { .. }) => Err(Errno::ESTALE.into()),
            read => Ok(read?),
        }
    }

    /// Writes bytes.
    pub fn write(&self, id: FileId, bytes: &[u8], offset: u64) -> Answer<()> {
        self.refuse_read_only()?;
        check_end(offset.saturating_add(bytes.len() as u64))?;
        // The kernel writes only to files that are open.
        let file = self.open.get(id).ok_or(Errno::EBADF)?;
        self.writers.write(id, bytes, offset)?;
        if offset == 0 {
            file.note_header(bytes);
        }
        self.write_to(&file, bytes, offset)?;
        self.note_written(bytes.len() as u64)
    }

    fn write_to(&self, file: &Arc<File>, bytes: &[u8], offset: u64) -> Answer<()> {
        let done = self.group.write_at(file, bytes, offset, now());
        if let Err(error) = &done {
            self.note_error(error);
            // What was written before, maybe by others, is lost as well.
            self.open.note_lost(std::slice::from_ref(file), errno(error));
        }
        Ok(done?)
    }

    fn note_written(&self, len: u64) -> Answer<()> {
        self.flusher.note_changed();
        let written = self.written.fetch_add(len, Ordering::Relaxed) + len;
        if written >= WRITTEN_LEN_MAX {
            self.written.store(0, Ordering::Relaxed);
            self.publish(&self.changed_files())?;
        }
        Ok(())
    }

    pub(super) fn set_len(&self, id: FileId, len: u64) -> Answer<()> {
        check_end(len)?;
        self.with_file(id, |file| {
            if len != file.len()? {
                self.group.set_len(file, len, now())?;
                return self.note_written(0);
            }
            // The times change all the same.
            let now_ns = now();
            self.edit(now_ns, |edit| {
                let known = edit.attributes(id)?;
                let (modified_ns, changed_ns) = (now_ns, now_ns);
                edit.set_attributes(id, &Attributes { modified_ns, changed_ns, ..known })?;
                if file.is_dirty() {
                    file.set_time(now_ns);
                }
                Ok(())
            })
        })
    }

    /// Makes a file and its names durable, for somebody who has it open with this number.
    pub fn sync(&self, id: FileId, handle: u64) -> Answer<()> {
        let files: Vec<Arc<File>> = self.open.get(id).into_iter().collect();
        let done = self.commit(&files, Durability::Durable);
        self.open.tell_lost(id, handle)?;
        done?;
        self.check_not_lost(id)
    }

    /// Tells whoever closes a file that its changes were lost.
    pub fn flush(&self, id: FileId, handle: u64) -> Answer<()> {
        self.open.tell_lost(id, handle)?;
        self.check_not_lost(id)
    }

    /// Notes that the kernel tells programs of changes of a file that were lost.
    pub fn forget_lost(&self, id: FileId) {
        self.open.forget_lost(id);
    }

    /// Returns a number for a file that is being opened.
    pub fn new_handle(&self) -> u64 {
        self.open.new_handle()
    }

    /// Lets a file that was closed join the next commit if it has few changes.
    pub(super) fn note_due(&self, id: FileId) {
        let small = |file: &Arc<File>| file.pending_bytes() < DUE_LEN_MAX;
        if let Some(file) = self.open.get(id).filter(small) {
            self.flusher.note_joined(Some(file));
        }
    }

    /// Does what `fallocate` asks for.
    pub fn allocate(&self, id: FileId, offset: u64, len: u64, how: Allocation) -> Answer<()> {
        let end = offset.saturating_add(len);
        check_end(end)?;
        self.with_file(id, |file| {
            let old = file.len()?;
            match how {
                Allocation::KeepLen => {}
                Allocation::Extend if end > old => self.set_len(id, end)?,
                Allocation::Extend => {}
                Allocation::Punch => self.zero(file, offset, end.min(old))?,
                Allocation::Zero => {
                    self.zero(file, offset, end.min(old))?;
                    if end > old {
                        self.set_len(id, end)?;
                    }
                }
            }
            Ok(())
        })
    }

    /// Overwrites bytes with zeros, which are not stored.
    fn zero(&self, file: &Arc<File>, offset: u64, end: u64) -> Answer<()> {
        if end.saturating_sub(offset) <= PIECE_LEN {
            return self.write_zeros(file, offset, end);
        }
        // Much of a long range may be a hole already.
        if file.is_dirty() {
            self.publish(&[Arc::clone(file)])?;
        }
        let (ranges, _) = file.covered_ranges(HOLE_LEN_MIN)?;
        let from = ranges.partition_point(|(_, range_end)| *range_end <= offset);
        let inside = ranges[from..].iter().take_while(|(start, _)| *start < end);
        inside.into_iter().try_for_each(|(start, range_end)| {
            self.write_zeros(file, offset.max(*start), end.min(*range_end))
        })
    }

    fn write_zeros(&self, file: &Arc<File>, offset: u64, end: u64) -> Answer<()> {
        if offset >= end {
            return Ok(());
        }
        let zeros = vec![0; PIECE_LEN.min(end - offset) as usize];
        let mut at = offset;
        while at < end {
            let n = (end - at).min(PIECE_LEN);
            self.write_to(file, &zeros[..n as usize], at)?;
            self.note_written(n)?;
            at += n;
        }
        Ok(())
    }

    /// Finds the next byte from `offset` on that is stored, or, with `hole`, the next that is not.
    pub fn seek(&self, id: FileId, offset: u64, hole: bool) -> Answer<u64> {
        let file = match self.open.get(id) {
            Some(file) => file,
            None => self.handle(id)?,
        };
        if offset >= file.len()? {
            return Err(Errno::ENXIO.into());
        }
        if file.is_dirty() {
            self.publish(&[Arc::clone(&file)])?;
        }
        let (ranges, len) = file.covered_ranges(HOLE_LEN_MIN)?;
        let next = ranges.iter().find(|(_, end)| *end > offset);
        match (hole, next) {
            (true, Some((start, end))) if *start <= offset => Ok((*end).min(len)),
            (true, _) => Ok(offset),
            (false, Some((start, _))) => Ok((*start).max(offset)),
            (false, None) => Err(Errno::ENXIO.into()),
        }
    }
}

/// Refuses files that are longer than the pool can store.
pub(super) fn check_end(end: u64) -> Answer<()> {
    if end > FILE_LEN_MAX { Err(Errno::EFBIG.into()) } else { Ok(()) }
}
