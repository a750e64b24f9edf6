//! Attributes as the kernel wants them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use hardpack_engine::pool::{Attributes, DeviceNumber, FileOwner, Kind};

/// The permission bits of files and directories about which the pool knows nothing.
const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;
/// The size of the pieces in which programs should read and write, in bytes: a record.
const PIECE_LEN: u32 = 128 << 10;
/// The unit in which the space of a file is told, in bytes.
const BLOCK_LEN: u64 = 512;

/// The type of a file in a list.
pub fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
    }
}

/// The kind of special file that a mode asks for; `None` for a plain file.
pub fn special_kind(mode: u32) -> Option<Kind> {
    match mode & libc::S_IFMT {
        libc::S_IFIFO => Some(Kind::Fifo),
        libc::S_IFSOCK => Some(Kind::Socket),
        libc::S_IFCHR => Some(Kind::CharDevice),
        libc::S_IFBLK => Some(Kind::BlockDevice),
        _ => None,
    }
}

/// The permission bits of a file.
pub fn mode(attributes: &Attributes) -> u32 {
    match (attributes.kind, attributes.known_mode()) {
        (Kind::Symlink, _) => 0o777,
        (Kind::Directory, None) => DIRECTORY_MODE,
        (Kind::File, None) => FILE_MODE,
        (_, mode) => mode.unwrap_or_default(),
    }
}

/// Translates attributes. `owner` is that of files whose owner is unknown.
pub fn for_kernel(number: INodeNo, attributes: &Attributes, owner: FileOwner) -> FileAttr {
    let owner = attributes.owner.unwrap_or(owner);
    let known = |time: i64| if time == 0 { attributes.modified_ns } else { time };
    FileAttr {
        ino: number,
        size: attributes.len,
        blocks: blocks(attributes.len),
        atime: system_time(known(attributes.accessed_ns)),
        mtime: system_time(attributes.modified_ns),
        ctime: system_time(known(attributes.changed_ns)),
        crtime: system_time(known(attributes.created_ns)),
        kind: file_type(attributes.kind),
        perm: mode(attributes) as u16,
        // Directories do not count their subdirectories, as on btrfs.
        nlink: if attributes.kind == Kind::Directory { 1 } else { attributes.link_count },
        uid: owner.uid,
        gid: owner.gid,
        rdev: rdev(attributes.device),
        blksize: PIECE_LEN,
        flags: 0,
    }
}

/// Returns a number of bytes in the unit in which the kernel counts space.
pub fn blocks(len: u64) -> u64 {
    len.div_ceil(BLOCK_LEN)
}

/// Encodes the number of a device as requests and replies do: 20 bits for the minor number, of
/// which the upper ones come last, and 12 for the major one.
fn rdev(device: DeviceNumber) -> u32 {
    let DeviceNumber { major, minor } = device;
    minor & 0xff | (major & 0xfff) << 8 | (minor & !0xff) << 12
}

/// Decodes the number of a device.
pub fn device_of(rdev: u32) -> DeviceNumber {
    DeviceNumber { major: rdev >> 8 & 0xfff, minor: rdev & 0xff | rdev >> 12 & 0xf_ff00 }
}

fn system_time(ns: i64) -> SystemTime {
    let distance = Duration::from_nanos(ns.unsigned_abs());
    let time = match ns < 0 {
        true => UNIX_EPOCH.checked_sub(distance),
        false => UNIX_EPOCH.checked_add(distance),
    };
    time.unwrap_or(UNIX_EPOCH)
}

/// Returns a time in nanoseconds since 1970, or the nearest one that can be recorded. A recorded 0
/// would mean that the time is unknown.
pub fn nanoseconds(time: SystemTime) -> i64 {
    let ns = match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => {
            i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |before| -before)
        }
    };
    if ns == 0 { 1 } else { ns }
}

/// Returns the present time in nanoseconds since 1970.
pub fn now() -> i64 {
    #[cfg(test)]
    if let Some(now_ns) = TEST_TIME_NS.get() {
        return now_ns;
    }
    nanoseconds(SystemTime::now())
}

#[cfg(test)]
thread_local! {
    static TEST_TIME_NS: std::cell::Cell<Option<i64>> = const { std::cell::Cell::new(None) };
}

/// Sets the time for this thread, so that what it does depends on nothing else.
#[cfg(test)]
pub fn set_test_time(now_ns: i64) {
    TEST_TIME_NS.set(Some(now_ns));
}

/// Returns a time that a request names.
pub fn requested(time: TimeOrNow) -> i64 {
    match time {
        TimeOrNow::SpecificTime(time) => nanoseconds(match UNIX_EPOCH.duration_since(time) {
            // `fuser` takes the nanoseconds of a time before 1970 for time before the second, where
            // the kernel means time after it.
            Ok(before) => {
                UNIX_EPOCH - Duration::from_secs(before.as_secs())
                    + Duration::from_nanos(before.subsec_nanos().into())
            }
            Err(_) => time,
        }),
        TimeOrNow::Now => now(),
    }
}
