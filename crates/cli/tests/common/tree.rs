//! Compares trees of files, with everything that must be kept.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{lgetxattr, llistxattr};

/// What a format keeps of files, besides names, modes, contents and symbolic links.
#[derive(Clone, Copy)]
pub struct Kept {
    /// The step of times, in nanoseconds.
    pub step_ns: i64,
    pub has_link_times: bool,
    pub has_hard_links: bool,
    pub has_xattrs: bool,
}

/// What pools and tar keep.
pub const ALL: Kept =
    Kept { step_ns: 1, has_link_times: true, has_hard_links: true, has_xattrs: true };

pub fn os(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes)
}

/// Lists everything below a directory: for each path, a line of everything that must be kept.
pub fn listing(top: &Path) -> BTreeMap<OsString, String> {
    listing_of(top, ALL)
}

/// Lists everything below a directory, with what a format keeps.
pub fn listing_of(top: &Path, kept: Kept) -> BTreeMap<OsString, String> {
    let mut found = BTreeMap::new();
    let mut inodes: BTreeMap<(u64, u64), OsString> = BTreeMap::new();
    let mut ahead = vec![PathBuf::new()];
    while let Some(directory) = ahead.pop() {
        let mut names: Vec<_> = fs::read_dir(top.join(&directory))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        for name in names {
            let inner = directory.join(name);
            let path = top.join(&inner);
            let metadata = fs::symlink_metadata(&path).unwrap();
            let kind = metadata.file_type();
            let content = if kind.is_file() {
                let mut hasher = blake3::Hasher::new();
                hasher.update_reader(File::open(&path).unwrap()).unwrap();
                hasher.finalize().to_string()
            } else if kind.is_symlink() {
                format!("-> {:?}", fs::read_link(&path).unwrap())
            } else {
                ahead.push(inner.clone());
                String::new()
            };
            // The first name of the same file.
            let first = inodes
                .entry((metadata.dev(), metadata.ino()))
                .or_insert_with(|| inner.clone().into_os_string())
                .clone();
            let time = metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec();
            let has_time = kept.has_link_times || !kind.is_symlink();
            let line = format!(
                "{:o} {}:{} {} {} {:?} {:?} {content}",
                metadata.mode(),
                metadata.uid(),
                metadata.gid(),
                if has_time { time / kept.step_ns } else { 0 },
                if kind.is_dir() { 0 } else { metadata.len() },
                (first != inner && kept.has_hard_links).then_some(first),
                if kept.has_xattrs { xattrs(&path) } else { Vec::new() },
            );
            found.insert(inner.into_os_string(), line);
        }
    }
    found
}

pub fn xattrs(path: &Path) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut names = vec![0; 64 << 10];
    let Ok(len) = llistxattr(path, &mut names[..]) else { return Vec::new() };
    let mut found = Vec::new();
    for name in names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 64 << 10];
        let len = lgetxattr(path, name, &mut value[..]).unwrap();
        found.push((name.to_vec(), value[..len].to_vec()));
    }
    found.sort();
    found
}

pub fn assert_same_trees(a: &Path, b: &Path) {
    assert_same_as_kept(a, b, ALL);
}

/// Compares what a format keeps.
pub fn assert_same_as_kept(a: &Path, b: &Path, kept: Kept) {
    let (a, b) = (listing_of(a, kept), listing_of(b, kept));
    for (path, line) in &a {
        assert_eq!(b.get(path), Some(line), "{path:?}");
    }
    assert_eq!(a.len(), b.len(), "{:?}", b.keys().find(|path| !a.contains_key(*path)));
}

pub fn set_time(path: &Path, ns: u64) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_nanos(ns);
    File::open(path).unwrap().set_modified(time).unwrap();
}
