//! An ordinary file, or a block device, as the medium.
//!
//! The descriptor stays open for as long as the device lives: closing any descriptor of a file
//! drops the POSIX locks that this process holds on it, including SQLite's. So whoever shares a
//! pool with SQLite closes the device last. In a forked child a device is unusable, see `fork.rs`.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::ops::{Range, RangeInclusive};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use super::pace::{Pace, TURN_COUNT};
use super::wakeup::Wakeup;
use super::{Awaited, Device, FILLING_MARK, Fillers, Pins, Slot, Syncs, Version, fork, sys};
use crate::system;

/// The offset of the writer lock: behind the bytes that SQLite locks, inside the reserved region
/// that holds no extents.
const WRITER_LOCK_OFFSET: u64 = (1 << 30) + 32 * 1024;
/// The time of a file's last change is no finer than this: what changes it again just behind that
/// may leave the same time.
const TIME_STEP_MAX: Duration = Duration::from_millis(100);
/// That of file systems that know whole seconds only, or even ones.
const WHOLE_TIME_STEP_MAX: Duration = Duration::from_secs(4);
/// What syncs count as that take longer: nobody waits for them in vain.
const SYNC_TIME_MAX: Duration = Duration::from_millis(20);
/// The offset of the locks of those who sync for all: of the first one, and where several may at
/// once, of the others.
const SYNC_TURN_OFFSET: u64 = WRITER_LOCK_OFFSET + 1;
/// The offset of the locks that show for which txgs somebody waits: behind any extent.
const AWAITED_OFFSET: u64 = 1 << 59;
/// The offset of the locks that show which txgs are durable: one from here up to the last.
const DURABLE_OFFSET: u64 = 1 << 60;
/// The number of txgs for which there are locks. Only a forged txg is larger; nobody shows it.
const SHOWN_COUNT: u64 = 1 << 58;
/// The offset of the locks of [`FileDevice::try_share`]: behind any extent.
const MARKS_OFFSET: u64 = 1 << 62;
/// The offset of the locks that show which txgs are being read: behind any extent, before the
/// marks. Those of each slot follow those of the one before.
const PINS_OFFSET: u64 = 1 << 61;
/// The number of txgs for which a slot has locks. Only a forged txg is larger; nobody shows it.
const SLOT_LEN: u64 = 1 << 48;
const PINS_END: u64 = PINS_OFFSET + SLOT_LEN * (Slot::COUNT as u64 + 1);

/// What identifies a file of the system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(hidden)]
pub struct Identity {
    /// The number of the device that the file is on.
    pub device: u64,
    /// Its number on that device.
    pub inode: u64,
    /// Whether it is a regular file.
    pub is_file: bool,
}

/// A file as a device.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    read_only: bool,
    /// Whether it is a block device: no file system says how much room that has.
    is_block: bool,
    pace: Pace,
    syncs: Syncs,
    pins: Pins,
    fillers: Fillers,
    wakeup: Wakeup,
}

#[expect(clippy::disallowed_methods, reason = "a device opens its file")]
impl FileDevice {
    /// Opens the file for reading and writing, or read-only where the system allows no more.
    pub fn open(path: &Path) -> io::Result<FileDevice> {
        match Self::new(|| OpenOptions::new().read(true).write(true).open(path), false) {
            Ok(device) => Ok(device),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
                ) =>
            {
                Self::open_read_only(path)
            }
            Err(error) => Err(error),
        }
    }

    /// Opens the file for reading only.
    pub fn open_read_only(path: &Path) -> io::Result<FileDevice> {
        Self::new(|| File::open(path), true)
    }

    /// Creates a new, empty file. An existing file is an error.
    pub fn create_new(path: &Path) -> io::Result<FileDevice> {
        let create = || OpenOptions::new().read(true).write(true).create_new(true).open(path);
        Self::new(create, false)
    }

    fn new(open: impl FnOnce() -> io::Result<File>, read_only: bool) -> io::Result<FileDevice> {
        // A mapping keeps the locks of its file too.
        let (file, wakeup) = fork::open(open, Wakeup::new)?;
        let is_block = sys::is_block_device(&file);
        // The system opens one that refuses writes for writing all the same.
        let read_only = read_only || (is_block && sys::is_read_only_block(&file));
        let (pace, syncs, pins, fillers) = Default::default();
        Ok(FileDevice { file, read_only, is_block, pace, syncs, pins, fillers, wakeup })
    }

    /// Tells the system that reads will be scattered.
    pub fn advise_random(&self) {
        sys::advise_random(&self.file);
    }

    /// Takes a mark in shared mode and returns whether it did; it cannot while somebody has claimed
    /// the mark. Marks are locks, identified by numbers below 2^62, to which the users of a pool
    /// give a meaning of their own. They belong to the device, which can hold each one once.
    pub fn try_share(&self, mark: u64) -> io::Result<bool> {
        sys::ofd_lock(&self.file, MARKS_OFFSET | mark, 1, sys::Lock::TryShare)
    }

    /// Takes a mark exclusively and returns whether it did; it cannot while anybody else has the
    /// mark.
    pub fn try_claim(&self, mark: u64) -> io::Result<bool> {
        sys::ofd_lock(&self.file, MARKS_OFFSET | mark, 1, sys::Lock::Try)
    }

    /// The byte of the file that a lock on a mark covers.
    #[doc(hidden)]
    pub fn offset_of(mark: u64) -> u64 {
        MARKS_OFFSET | mark
    }

    /// Whether a lock on these bytes of the file pins a txg, in any slot.
    #[doc(hidden)]
    pub fn is_pin(bytes: &RangeInclusive<u64>, txg: u64) -> bool {
        let (start, end) = (*bytes.start(), *bytes.end());
        // Only a claim covers all of a slot.
        (PINS_OFFSET..PINS_END).contains(&start)
            && start / SLOT_LEN == end / SLOT_LEN
            && end - start < SLOT_LEN - 1
            && (start % SLOT_LEN..=end % SLOT_LEN).contains(&txg)
    }

    /// The byte of the file that a lock for an awaited txg covers.
    #[doc(hidden)]
    pub fn offset_of_awaited(txg: u64) -> u64 {
        AWAITED_OFFSET | txg
    }

    /// The last byte of the file that a lock for a durable txg covers.
    #[doc(hidden)]
    pub fn offset_of_durable(txg: u64) -> u64 {
        DURABLE_OFFSET | txg
    }

    /// Returns the last byte before `end` that a lock of somebody else covers, from `start` on.
    /// `is_ours` tells from its first byte, and the one behind it, whether a lock may be one of
    /// ours. Others, such as one on the whole file, mean nothing, but hide what is behind them.
    fn last_locked(
        &self,
        (start, end): (u64, u64),
        is_ours: impl Fn(u64, u64) -> bool,
    ) -> io::Result<Option<u64>> {
        let (mut start, mut last) = (start, None);
        // The system reports any of the locks in a range, not the last.
        while start < end
            && let Some((found, len)) = sys::ofd_conflict(&self.file, start, end - start)?
        {
            if !is_ours(found, found.saturating_add(len)) {
                return Ok(None);
            }
            start = found.saturating_add(len).min(end);
            last = Some(start - 1);
        }
        Ok(last)
    }

    /// Releases a mark.
    pub fn release(&self, mark: u64) {
        // As with the writer lock, this cannot fail.
        let _ = sys::ofd_lock(&self.file, MARKS_OFFSET | mark, 1, sys::Lock::Release);
    }

    /// Claims every mark of a range that nobody else has, and returns those that somebody has. The
    /// claims are released with the device.
    pub fn claim_unused(&self, marks: Range<u64>) -> io::Result<Vec<u64>> {
        let (mut left, mut used) = (vec![marks], Vec::new());
        while let Some(range) = left.pop().filter(|range| !range.is_empty()) {
            let (start, len) = (MARKS_OFFSET | range.start, range.end - range.start);
            if sys::ofd_lock(&self.file, start, len, sys::Lock::Try)? {
                continue;
            }
            let Some((at, len)) = sys::ofd_conflict(&self.file, start, len)? else {
                // The mark was released just now.
                left.push(range);
                continue;
            };
            let first = at.max(start) - MARKS_OFFSET;
            let end = (at + len).min(MARKS_OFFSET | range.end) - MARKS_OFFSET;
            used.extend(first..end);
            left.extend([end..range.end, range.start..first].into_iter().filter(|r| !r.is_empty()));
        }
        used.sort_unstable();
        Ok(used)
    }

    /// Whether anybody else has the mark.
    pub fn is_marked(&self, mark: u64) -> io::Result<bool> {
        self.is_any_marked(mark..mark + 1)
    }

    /// Whether anybody else has any mark of the range.
    pub fn is_any_marked(&self, marks: Range<u64>) -> io::Result<bool> {
        if marks.is_empty() {
            return Ok(false);
        }
        let (start, len) = (MARKS_OFFSET | marks.start, marks.end - marks.start);
        Ok(sys::ofd_conflict(&self.file, start, len)?.is_some())
    }

    /// Returns what identifies the file at a path. This leaves no trace: to ask for a file's times,
    /// as `std::fs::metadata` does, makes its next sync dearer.
    #[doc(hidden)]
    pub fn identity_of(path: &Path) -> io::Result<Identity> {
        sys::identity_of(path)
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }
}

fn slot_offset(slot: Slot) -> u64 {
    PINS_OFFSET + u64::from(slot.number()) * SLOT_LEN
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        // A child forked before the descriptor is closed gets a copy of it, but no locks.
        let _ = sys::ofd_lock(&self.file, 0, 0, sys::Lock::Release);
        fork::forget(&self.file);
    }
}

impl Device for FileDevice {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match self.file.read_at(&mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(buf, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut done = Ok(());
        let took = system::time(|| done = self.file.sync_data());
        self.pace.note_sync(took);
        done
    }

    fn sync_time(&self) -> Duration {
        self.pace.sync_time().min(SYNC_TIME_MAX)
    }

    fn syncs_in_parallel(&self) -> bool {
        self.pace.is_parallel()
    }

    fn report_losses(&self) -> io::Result<()> {
        sys::await_write_back(&self.file, 0, 1)
    }

    fn syncs(&self) -> Option<&Syncs> {
        Some(&self.syncs)
    }

    fn try_sync_turn(&self) -> io::Result<bool> {
        for turn in 0..self.pace.turns() {
            if sys::ofd_lock(&self.file, SYNC_TURN_OFFSET + turn, 1, sys::Lock::Try)? {
                self.pace.note_turn(turn);
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn end_sync_turn(&self) {
        // As with the writer lock, this cannot fail.
        let _ = sys::ofd_lock(&self.file, SYNC_TURN_OFFSET, TURN_COUNT, sys::Lock::Release);
        self.pace.note_turn(0);
        self.wakeup.wake(Awaited::SyncTurn);
    }

    fn show_awaited(&self, txg: u64) -> io::Result<()> {
        if txg >= SHOWN_COUNT {
            return Ok(());
        }
        // Nobody takes these locks exclusively.
        sys::ofd_lock(&self.file, AWAITED_OFFSET | txg, 1, sys::Lock::TryShare).map(drop)
    }

    fn hide_awaited(&self, txg: u64) {
        if txg < SHOWN_COUNT {
            let _ = sys::ofd_lock(&self.file, AWAITED_OFFSET | txg, 1, sys::Lock::Release);
        }
    }

    fn last_awaited(&self, from: u64) -> io::Result<Option<u64>> {
        let (start, end) = (AWAITED_OFFSET + from.min(SHOWN_COUNT), AWAITED_OFFSET + SHOWN_COUNT);
        let is_ours = |first, behind| first >= AWAITED_OFFSET && behind <= end;
        let last = self.last_locked((start, end), is_ours)?;
        Ok(last.map(|at| at - AWAITED_OFFSET))
    }

    fn show_durable(&self, txg: u64) -> io::Result<()> {
        if txg >= SHOWN_COUNT {
            return Ok(());
        }
        sys::ofd_lock(&self.file, DURABLE_OFFSET, txg + 1, sys::Lock::TryShare).map(drop)
    }

    fn last_shown_durable(&self, from: u64) -> io::Result<Option<u64>> {
        let (start, end) = (DURABLE_OFFSET + from.min(SHOWN_COUNT), DURABLE_OFFSET + SHOWN_COUNT);
        let is_ours = |first, behind| first == DURABLE_OFFSET && behind <= end;
        let last = self.last_locked((start, end), is_ours)?;
        Ok(last.map(|at| at - DURABLE_OFFSET))
    }

    fn pause(&self, awaited: Awaited, at_most: Duration) -> Duration {
        self.wakeup.pause(&self.file, awaited, at_most)
    }

    fn wake(&self, awaited: Awaited) -> bool {
        self.wakeup.wake(awaited)
    }

    fn pins(&self) -> Option<&Pins> {
        Some(&self.pins)
    }

    fn show_pin(&self, txg: u64, slot: Slot) -> io::Result<bool> {
        if txg >= SLOT_LEN {
            return Ok(true);
        }
        sys::ofd_lock(&self.file, slot_offset(slot) + txg, 1, sys::Lock::TryShare)
    }

    fn hide_pin(&self, txg: u64, slot: Slot) {
        if txg < SLOT_LEN {
            // As with the writer lock, this cannot fail.
            let _ = sys::ofd_lock(&self.file, slot_offset(slot) + txg, 1, sys::Lock::Release);
        }
    }

    fn shown_pins(&self, txgs: Range<u64>) -> io::Result<Vec<u64>> {
        let (mut left, mut found) = (vec![(PINS_OFFSET, PINS_END)], Vec::new());
        // The system reports any of the locks in a range, in any slot.
        while let Some((start, end)) = left.pop() {
            if start >= end {
                continue;
            }
            let Some((at, len)) = sys::ofd_conflict(&self.file, start, end - start)? else {
                continue;
            };
            let (first, after) = (at.max(start), at.saturating_add(len).min(end));
            left.extend([(start, first), (after, end)]);
            // The system merges the locks of neighbouring txgs, and those of claimed slots.
            let is_claim = at >= slot_offset(Slot::of_file(0))
                && at % SLOT_LEN == 0
                && len >= SLOT_LEN
                && len % SLOT_LEN == 0;
            match len < SLOT_LEN {
                true => found.extend((first..after).map(|at| at % SLOT_LEN)),
                false if is_claim => {}
                // A lock of a stranger, such as one on the whole file, may hide any pin.
                false => found.push(txgs.start),
            }
        }
        found.retain(|txg| txgs.contains(txg));
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    fn claim_slot(&self, slot: Slot) -> io::Result<bool> {
        sys::ofd_lock(&self.file, slot_offset(slot), SLOT_LEN, sys::Lock::Try)
    }

    fn release_slot(&self, slot: Slot) {
        let _ = sys::ofd_lock(&self.file, slot_offset(slot), SLOT_LEN, sys::Lock::Release);
    }

    fn fillers(&self) -> Option<&Fillers> {
        Some(&self.fillers)
    }

    fn share_filling(&self) -> io::Result<bool> {
        self.try_share(FILLING_MARK)
    }

    fn claim_filling(&self) -> io::Result<bool> {
        self.try_claim(FILLING_MARK)
    }

    fn release_filling(&self) {
        self.release(FILLING_MARK);
    }

    fn is_any_marked(&self, marks: Range<u64>) -> io::Result<bool> {
        // The method of the type itself.
        FileDevice::is_any_marked(self, marks)
    }
    fn len(&self) -> io::Result<u64> {
        // The metadata of a block device gives no length; and see `identity_of`. Nobody uses the
        // position of the descriptor.
        use std::io::{Seek, SeekFrom};
        (&self.file).seek(SeekFrom::End(0))
    }

    fn holes(&self) -> Vec<Range<u64>> {
        sys::holes(&self.file)
    }
    fn room(&self) -> Option<u64> {
        if self.is_block { None } else { sys::free_len(&self.file) }
    }
    fn len_max(&self) -> u64 {
        sys::file_len_max()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn punch_hole(&self, offset: u64, len: u64) {
        // Not every file system can do this; the space is then simply kept for reuse.
        let _ = sys::punch_hole(&self.file, offset, len);
    }

    fn prefetch(&self, offset: u64, len: u64) {
        sys::advise_will_need(&self.file, offset, len);
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn is_nameless(&self) -> bool {
        sys::link_count_of(&self.file) == Some(0)
    }

    fn version(&self) -> Option<Version> {
        // The times of a block device are those of its node.
        let found = self.file.metadata().ok().filter(Metadata::is_file)?;
        let (seconds, nanoseconds) = (found.ctime(), found.ctime_nsec());
        let changed = Duration::new(seconds.try_into().ok()?, nanoseconds.try_into().ok()?);
        let step = if nanoseconds == 0 { WHOLE_TIME_STEP_MAX } else { TIME_STEP_MAX };
        let is_settled = system::file_time()?.checked_sub(changed)? > step;
        let file = (found.dev(), found.ino());
        is_settled.then_some(Version { file, len: found.len(), changed })
    }

    fn lock_writer(&self) -> io::Result<()> {
        sys::ofd_lock(&self.file, WRITER_LOCK_OFFSET, 1, sys::Lock::Wait).map(drop)
    }

    fn try_lock_writer(&self) -> io::Result<bool> {
        sys::ofd_lock(&self.file, WRITER_LOCK_OFFSET, 1, sys::Lock::Try)
    }

    fn is_writer_free(&self) -> io::Result<bool> {
        Ok(sys::ofd_conflict(&self.file, WRITER_LOCK_OFFSET, 1)?.is_none())
    }

    fn unlock_writer(&self) {
        // Releasing a held lock cannot fail on an open descriptor.
        let _ = sys::ofd_lock(&self.file, WRITER_LOCK_OFFSET, 1, sys::Lock::Release);
        self.wakeup.wake(Awaited::Writer);
    }
}
