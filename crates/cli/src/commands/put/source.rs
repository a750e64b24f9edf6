//! The metadata of a source in the file system.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use hardpack_engine::pool::{
    Attributes, DeviceNumber, FileOwner, Kind, ROOT, XATTR_LEN_MAX, Xattr,
};
use rustix::fs::{lgetxattr, llistxattr, major, minor};
use rustix::io::Errno;

/// Lists of attribute names are seldom longer, in bytes.
const LIST_LEN: usize = 1 << 10;
/// The longest list of attribute names, in bytes.
const LIST_LEN_MAX: usize = 64 << 10;

/// The kind of the entry in a pool; `None` for kinds that are not known.
pub fn kind_of(metadata: &Metadata) -> Option<Kind> {
    let kind = metadata.file_type();
    [
        (kind.is_file(), Kind::File),
        (kind.is_dir(), Kind::Directory),
        (kind.is_symlink(), Kind::Symlink),
        (kind.is_fifo(), Kind::Fifo),
        (kind.is_socket(), Kind::Socket),
        (kind.is_char_device(), Kind::CharDevice),
        (kind.is_block_device(), Kind::BlockDevice),
    ]
    .into_iter()
    .find_map(|(is_it, kind)| is_it.then_some(kind))
}

pub fn attributes_of(metadata: &Metadata, kind: Kind) -> Attributes {
    let ns = |seconds: i64, rest: i64| seconds.saturating_mul(1_000_000_000).saturating_add(rest);
    Attributes {
        mode: metadata.mode() & 0o7777,
        owner: Some(FileOwner { uid: metadata.uid(), gid: metadata.gid() }),
        modified_ns: ns(metadata.mtime(), metadata.mtime_nsec()),
        accessed_ns: 0,
        device: match kind.is_device() {
            true => DeviceNumber { major: major(metadata.rdev()), minor: minor(metadata.rdev()) },
            false => DeviceNumber::default(),
        },
        ..Attributes::new(kind, ROOT)
    }
}

/// Reads the extended attributes of a file or directory, sorted by name.
pub fn xattrs_of(path: &Path) -> io::Result<Vec<Xattr>> {
    let mut names = vec![0; LIST_LEN];
    let len = match llistxattr(path, &mut names[..]) {
        Err(Errno::RANGE) => {
            names = vec![0; LIST_LEN_MAX];
            llistxattr(path, &mut names[..])?
        }
        Err(Errno::NOTSUP | Errno::NOSYS) => 0,
        len => len?,
    };
    names.truncate(len);
    let mut found = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; XATTR_LEN_MAX];
        match lgetxattr(path, name, &mut value[..]) {
            Ok(len) => {
                value.truncate(len);
                found.push((name.to_vec(), value));
            }
            // Removed meanwhile, or we may not read it.
            Err(Errno::NODATA | Errno::PERM | Errno::ACCESS | Errno::NOTSUP) => {}
            Err(error) => return Err(error.into()),
        }
    }
    found.sort();
    Ok(found)
}

/// Whether the pool's metadata of a file equals the source's.
pub fn is_described(old: &Attributes, new: &Attributes) -> bool {
    let of = |a: &Attributes| (a.kind, a.mode, a.owner, a.modified_ns, a.device);
    of(old) == of(new)
}
