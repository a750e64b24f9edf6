//! System calls that the standard library does not offer. All unsafe code of `device` outside
//! `fork.rs` is here.
#![expect(unsafe_code, reason = "system calls")]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::time::Duration;

use super::Identity;

/// The most blocks that ext4 keeps for itself and counts as free all the same: it keeps 2%, also of
/// what it does not count.
const KEPT_BLOCKS_MAX: u64 = 4096;
const KEPT_PART: u64 = 32;
/// The request that tells whether a block device is read-only (`linux/fs.h`).
const BLKROGET: libc::c_ulong = 0x125e;

/// What to do with a lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lock {
    /// Take it, waiting until it is free.
    Wait,
    /// Take it if it is free.
    Try,
    /// Take it in shared mode unless somebody holds it exclusively.
    TryShare,
    /// Release it.
    Release,
}

/// Takes or releases an open-file-description lock on `len` bytes at `start`, and returns whether
/// it did. Such a lock belongs to the open file description, not to the process, so it never
/// conflicts with SQLite's own locks of this process.
pub(super) fn ofd_lock(file: &File, start: u64, len: u64, lock: Lock) -> io::Result<bool> {
    let kind = match lock {
        Lock::Release => libc::F_UNLCK,
        Lock::TryShare => libc::F_RDLCK,
        Lock::Wait | Lock::Try => libc::F_WRLCK,
    };
    let tries = matches!(lock, Lock::Try | Lock::TryShare);
    let command = if tries { libc::F_OFD_SETLK } else { libc::F_OFD_SETLKW };
    match lock_call(file, command, &mut range_of(kind, start, len)) {
        Ok(()) => Ok(true),
        Err(error) => match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EACCES) if tries => Ok(false),
            _ => Err(error),
        },
    }
}

/// Returns the start and length of a lock that somebody else holds on part of a range.
pub(super) fn ofd_conflict(file: &File, start: u64, len: u64) -> io::Result<Option<(u64, u64)>> {
    let mut range = range_of(libc::F_WRLCK, start, len);
    lock_call(file, libc::F_OFD_GETLK, &mut range)?;
    // A length of 0 means up to the end of all files.
    let len = if range.l_len == 0 { i64::MAX - range.l_start } else { range.l_len };
    let is_free = range.l_type == libc::F_UNLCK as libc::c_short;
    Ok((!is_free).then_some((range.l_start as u64, len as u64)))
}

fn range_of(kind: libc::c_int, start: u64, len: u64) -> libc::flock {
    // SAFETY: `flock` is a plain structure of integers, for which all zeros is a valid value.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = kind as libc::c_short;
    range.l_whence = libc::SEEK_SET as libc::c_short;
    range.l_start = start as libc::off_t;
    range.l_len = len as libc::off_t;
    range
}

fn lock_call(file: &File, command: libc::c_int, range: &mut libc::flock) -> io::Result<()> {
    loop {
        // SAFETY: the descriptor is open for as long as `file` lives and `range` outlives the call.
        let done = unsafe { libc::fcntl(file.as_raw_fd(), command, &mut *range) };
        if done == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINTR) {
            return Err(error);
        }
    }
}

/// Deallocates a range of a file without changing its length.
pub(super) fn punch_hole(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: the descriptor is open for as long as `file` lives; no memory is passed.
    let done = unsafe {
        libc::fallocate(file.as_raw_fd(), mode, offset as libc::off_t, len as libc::off_t)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The free bytes of the file system of a file, as far as this user may take them.
pub(super) fn free_len(file: &File) -> Option<u64> {
    // SAFETY: `statvfs` is a plain structure of integers, for which all zeros is a valid value.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open for as long as `file` lives and `found` outlives the call.
    let done = unsafe { libc::fstatvfs(file.as_raw_fd(), &mut found) };
    let blocks = match effective_user() {
        0 => free_for_root(found.f_bfree as u64, found.f_bavail as u64, found.f_blocks as u64),
        _ => found.f_bavail as u64,
    };
    (done == 0).then(|| blocks.saturating_mul(found.f_frsize as u64))
}

/// How many free blocks root may take, of which others may take `available`. Some file systems keep
/// a part for root, and ext4 counts what it keeps for itself among the free blocks, too.
fn free_for_root(free: u64, available: u64, all: u64) -> u64 {
    available.max(free.saturating_sub((all / KEPT_PART).min(KEPT_BLOCKS_MAX)))
}

/// Whether a block device refuses to be written.
pub(super) fn is_read_only_block(device: &File) -> bool {
    let mut refuses: libc::c_int = 0;
    // SAFETY: the descriptor is open for as long as `device` lives and `refuses` outlives the call.
    let done = unsafe { libc::ioctl(device.as_raw_fd(), BLKROGET as _, &raw mut refuses) };
    done == 0 && refuses != 0
}

/// The holes of a file, in order.
pub(super) fn holes(file: &File) -> Vec<Range<u64>> {
    let seek = |at: u64, whence| {
        // SAFETY: the descriptor is open for as long as `file` lives; nothing else depends on where
        // it stands.
        let found = unsafe { libc::lseek(file.as_raw_fd(), at as libc::off_t, whence) };
        u64::try_from(found).ok()
    };
    let mut holes = Vec::new();
    let mut at = 0;
    // There is always one behind the last byte, and no data from there on.
    while let Some(hole) = seek(at, libc::SEEK_HOLE) {
        let data = seek(hole, libc::SEEK_DATA).unwrap_or(u64::MAX);
        if data <= at {
            break;
        }
        holes.push(hole..data);
        at = data;
    }
    holes
}

/// Waits until a range is written back, if that is in progress. Begins nothing and makes nothing
/// durable, but reports what could not be written back anywhere in the file, as `fdatasync` does.
pub(super) fn await_write_back(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let (from, len) = (offset as libc::off64_t, len as libc::off64_t);
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE;
    // SAFETY: the descriptor is open for as long as `file` lives; no memory is passed.
    let done = unsafe { libc::sync_file_range(file.as_raw_fd(), from, len, flags) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Tells the kernel that reads will be scattered, so that it does not read ahead.
pub(super) fn advise_random(file: &File) {
    advise(file, 0, 0, libc::POSIX_FADV_RANDOM);
}

/// Tells the kernel that a range will be read soon, so that it begins to fetch it.
pub(super) fn advise_will_need(file: &File, offset: u64, len: u64) {
    advise(file, offset, len, libc::POSIX_FADV_WILLNEED);
}

fn advise(file: &File, offset: u64, len: u64, advice: libc::c_int) {
    // SAFETY: the descriptor is open for as long as `file` lives; the advice has no other effect,
    // and its failure does not matter.
    unsafe {
        libc::posix_fadvise(file.as_raw_fd(), offset as libc::off_t, len as libc::off_t, advice);
    }
}

/// The user with whose rights this process opens and creates files.
pub(super) fn effective_user() -> u32 {
    // SAFETY: the function has no preconditions, and cannot fail.
    unsafe { libc::geteuid() }
}

/// The longest file that this process may have. Whoever goes beyond it gets a signal, which ends
/// most programs.
pub(super) fn file_len_max() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call fills `limit`, and nothing else.
    let status = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) };
    if status == 0 { limit.rlim_cur } else { u64::MAX }
}

/// The number of this process, by which a child knows memory that only its parent has mapped, and
/// which keeps the temporary files of processes apart.
#[expect(clippy::disallowed_methods, reason = "it is compared, and identifies nothing elsewhere")]
pub(super) fn process_id() -> u32 {
    std::process::id()
}

/// Returns what identifies the file at a path.
///
/// It asks for nothing else: who has asked for the times of a file makes Linux note the next change
/// of it more exactly (since 6.13), and then the inode is written with the next sync.
pub(super) fn identity_of(path: &Path) -> io::Result<Identity> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: `statx` is a plain structure of integers, for which all zeros is a valid value.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let (flags, mask) = (libc::AT_STATX_SYNC_AS_STAT, libc::STATX_INO | libc::STATX_TYPE);
    // SAFETY: the name ends with a zero byte, and both pointers are valid during the call. Older C
    // libraries have no function for it.
    let done = unsafe {
        let (name, found) = (name.as_ptr(), &raw mut found);
        libc::syscall(libc::SYS_statx, libc::AT_FDCWD, name, flags, mask, found)
    };
    if done == 0 {
        return Ok(Identity {
            device: libc::makedev(found.stx_dev_major, found.stx_dev_minor),
            inode: found.stx_ino,
            is_file: u32::from(found.stx_mode) & libc::S_IFMT == libc::S_IFREG,
        });
    }
    let error = io::Error::last_os_error();
    if !matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) {
        return Err(error);
    }
    // A system older than 4.11, or a sandbox that does not know the call.
    let metadata = std::fs::metadata(path)?;
    let (device, inode) = (metadata.dev(), metadata.ino());
    Ok(Identity { device, inode, is_file: metadata.is_file() })
}

/// Returns how many names an open file has, if the system tells.
pub(super) fn link_count_of(file: &File) -> Option<u32> {
    status_of(file, libc::STATX_NLINK).map(|found| found.stx_nlink)
}

/// Whether an open file is a block device.
pub(super) fn is_block_device(file: &File) -> bool {
    status_of(file, libc::STATX_TYPE)
        .is_some_and(|found| u32::from(found.stx_mode) & libc::S_IFMT == libc::S_IFBLK)
}

/// Returns these fields of the status of an open file, if the system tells, and asks for nothing
/// else, as [`identity_of`] does.
fn status_of(file: &File, fields: u32) -> Option<libc::statx> {
    // SAFETY: `statx` is a plain structure of integers, for which all zeros is a valid value.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_SYNC_AS_STAT;
    // SAFETY: the name is empty and ends with a zero byte, and both pointers are valid during the
    // call.
    let done = unsafe {
        let (name, found) = (c"".as_ptr(), &raw mut found);
        libc::syscall(libc::SYS_statx, file.as_raw_fd(), name, flags, fields, found)
    };
    (done == 0 && found.stx_mask & fields == fields).then_some(found)
}

/// The bytes of a file that its users map to wait for each other.
const SHARED_LEN: usize = 4096;

/// The first page of a file, which all processes that map it share, and the process that mapped it
/// here: in its children there may be anything else.
#[derive(Debug)]
pub(super) struct SharedPage(NonNull<libc::c_void>, u32);

// SAFETY: the memory is never read or written here; only its address is passed to the kernel.
unsafe impl Send for SharedPage {}
// SAFETY: as above.
unsafe impl Sync for SharedPage {}

impl SharedPage {
    /// Maps the page; `None` if the system cannot.
    pub(super) fn of(file: &File) -> Option<SharedPage> {
        let (flags, descriptor) = (libc::MAP_SHARED, file.as_raw_fd());
        // SAFETY: the kernel chooses the address. Nothing ever reads the memory, so it does not
        // matter that others change the file or cut it.
        let page = unsafe {
            libc::mmap(ptr::null_mut(), SHARED_LEN, libc::PROT_READ, flags, descriptor, 0)
        };
        if page == libc::MAP_FAILED {
            return None;
        }
        // A child has no use for it (see `fork.rs`).
        // SAFETY: the page was mapped above; its content does not matter.
        unsafe { libc::madvise(page, SHARED_LEN, libc::MADV_DONTFORK) };
        NonNull::new(page).map(|page| SharedPage(page, process_id()))
    }

    /// Sleeps until somebody wakes those who wait at a word, whose value must be `expected`, or for
    /// at most this long. Returns whether it did.
    pub(super) fn wait(&self, word: usize, expected: u32, at_most: Duration) -> bool {
        if !self.is_here() {
            return false;
        }
        let timeout = libc::timespec {
            tv_sec: at_most.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: at_most.subsec_nanos().into(),
        };
        // SAFETY: the kernel checks the address, and reads `timeout` during the call only.
        let done = unsafe {
            let (address, operation) = (self.address(word), libc::FUTEX_WAIT);
            libc::syscall(libc::SYS_futex, address, operation, expected, &raw const timeout)
        };
        let failed =
            |error: io::Error| !matches!(error.raw_os_error(), Some(libc::ETIMEDOUT | libc::EINTR));
        done == 0 || !failed(io::Error::last_os_error())
    }

    /// Wakes up to `count` of those who wait at a word. Returns whether there were any.
    pub(super) fn wake(&self, word: usize, count: i32) -> bool {
        if !self.is_here() {
            return false;
        }
        // SAFETY: the kernel checks the address.
        unsafe { libc::syscall(libc::SYS_futex, self.address(word), libc::FUTEX_WAKE, count) > 0 }
    }

    fn is_here(&self) -> bool {
        self.1 == process_id()
    }

    fn address(&self, word: usize) -> *mut u32 {
        self.0.as_ptr().cast::<u32>().wrapping_add(word)
    }
}

impl Drop for SharedPage {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: the page was mapped by `of` in this process, and nobody uses it any more.
            unsafe { libc::munmap(self.0.as_ptr(), SHARED_LEN) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_user_may_take_is_not_free() {
        // Full file systems of 96 and 128 MiB, and one with a part for root.
        assert_eq!(free_for_root(1966, 0, 86_491), 0);
        assert_eq!(free_for_root(2621, 0, 117_203), 0);
        assert_eq!(free_for_root(1 << 20, 0, 20 << 20), (1 << 20) - 4096);
        // Others count no more as free than what there is for everybody.
        assert_eq!(free_for_root(1000, 1000, 100_000), 1000);
    }
}
