//! The kernel's list of mounts. Who reads it asks no server.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::failure::Reason;

const MOUNTS: &str = "/proc/self/mountinfo";
/// The type of mounts that `fusermount3` makes for pools.
const OF_HELPER: &[u8] = b"fuse.hardpack";

/// Returns the minor number of what is mounted on a directory through FUSE, in digits.
pub fn device_of(directory: &Path) -> Result<Option<String>, Reason> {
    Ok(listed(directory)?.map(|(_, device)| device))
}

/// Whether what is mounted on a directory is a pool's, as far as the list tells: mounts by root do
/// not have the name.
pub fn is_of_helper(directory: &Path) -> bool {
    listed(directory).is_ok_and(|found| found.is_some_and(|(kind, _)| kind == OF_HELPER))
}

/// Whether a file system is still mounted anywhere, by its minor number: another directory may show
/// it as well.
pub fn is_anywhere(device: &str) -> bool {
    let mounts = fs::read(MOUNTS).unwrap_or_default();
    let numbers = format!("0:{device}");
    last_first(&mounts).any(|fields| fields.get(2) == Some(&numbers.as_bytes()))
}

/// The fields of each mount of the list.
fn last_first(mounts: &[u8]) -> impl Iterator<Item = Vec<&[u8]>> {
    let lines = mounts.split(|byte| *byte == b'\n').rev();
    lines.map(|line| line.split(|byte| *byte == b' ').collect())
}

/// Returns the type and the minor number of what is mounted on a directory through FUSE.
fn listed(directory: &Path) -> Result<Option<(Vec<u8>, String)>, Reason> {
    // Names of directories may be any bytes, also those of other mounts.
    let mounts = fs::read(MOUNTS)?;
    let wanted = escaped_as_mounts(directory);
    let found = |fields: Vec<&[u8]>| {
        let kind = fields.iter().skip_while(|field| **field != b"-").nth(1);
        let kind = kind.filter(|kind| is_fuse(kind))?;
        let numbers = std::str::from_utf8(fields.get(2)?).ok()?;
        Some((kind.to_vec(), numbers.split(':').nth(1)?.to_string()))
    };
    // What was mounted last hides the others.
    Ok(last_first(&mounts).find(|fields| fields.get(4) == Some(&&wanted[..])).and_then(found))
}

/// Writes a path as the kernel's list of mounts does.
fn escaped_as_mounts(path: &Path) -> Vec<u8> {
    let escape = |byte: &u8| match byte {
        b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
        byte => vec![*byte],
    };
    path.as_os_str().as_bytes().iter().flat_map(escape).collect()
}

/// Whether a type of file systems may be that of a pool's mount: others that are served through
/// FUSE mostly add their name, as the helper of users does for pools.
fn is_fuse(kind: &[u8]) -> bool {
    matches!(kind, b"fuse") || kind == OF_HELPER
}
