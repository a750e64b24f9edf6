//! Copies within a mount share what is stored.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use rustix::fs::copy_file_range;

use super::*;

/// Copies all of a range, as far as the source has it.
fn copy(from: &File, mut from_at: u64, to: &File, mut to_at: u64, len: usize) {
    let mut left = len;
    while left > 0 {
        let n = copy_file_range(from, Some(&mut from_at), to, Some(&mut to_at), left).unwrap();
        if n == 0 {
            return;
        }
        left -= n;
    }
}

fn open(path: &Path) -> File {
    File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

fn stored(mount: &Mount) -> u64 {
    File::open(&mount.point).unwrap().sync_all().unwrap();
    fs::metadata(&mount.pool).unwrap().len()
}

/// What is open in a snapshot stays that when another snapshot has taken the name.
#[test]
fn copies_come_from_the_snapshot_that_was_opened() {
    if !can_mount() {
        return;
    }
    const LEN: usize = 1 << 20;
    let mount = Mount::new();
    let [old, new] = [1, 2].map(|seed| random_bytes(LEN, seed));
    let snapshot = with_ending(&mount.pool, "@s");
    let put = |bytes: &[u8]| {
        let file = open(&mount.at("f"));
        file.write_all_at(bytes, 0).unwrap();
        file.sync_all().unwrap();
        eventually(&["snapshot"], &[&snapshot]);
    };
    put(&old);
    let kept = File::open(mount.at(".hardpack/snapshots/s/f")).unwrap();
    let mut bytes = [0; 100];
    kept.read_exact_at(&mut bytes, 0).unwrap();
    eventually(&["destroy"], &[&snapshot]);
    put(&new);
    let to = open(&mount.at("t"));
    // It may be gone, but it is not another one.
    if copy_file_range(&kept, Some(&mut 0), &to, Some(&mut 0), LEN).is_ok() {
        to.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes == old[..100]);
    }
    drop((kept, to));
    mount.unmount();
    mount.check();
}

/// `cp` of a large file takes no space, however often; a change of one copy leaves the others.
#[test]
fn cp_takes_no_space() {
    if !can_mount() {
        return;
    }
    const LEN: usize = 20_000_123;
    let mount = Mount::new();
    let mut bytes = random_bytes(LEN, 1);
    write(&mount.at("a"), &bytes);
    let before = stored(&mount);
    // The first is copied while the source has changes that are not committed.
    let source = open(&mount.at("a"));
    source.write_all_at(b"changed", 5_000_000).unwrap();
    bytes[5_000_000..][..7].copy_from_slice(b"changed");
    for name in ["b", "c", "d"] {
        let done = Command::new("cp").args([mount.at("a"), mount.at(name)]).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    }
    let after = stored(&mount);
    assert!(after - before < 2 << 20, "grew from {before} to {after}");
    open(&mount.at("b")).write_all_at(b"only in b", 7_000_000).unwrap();
    fs::remove_file(mount.at("a")).unwrap();
    drop(source);
    assert!(read(&mount.at("c")) == bytes);
    mount.unmount();
    mount.check();
    mount.again(&[]);
    assert!(read(&mount.at("d")) == bytes);
    bytes[7_000_000..][..9].copy_from_slice(b"only in b");
    assert!(read(&mount.at("b")) == bytes);

    // From a snapshot, too.
    eventually(&["snapshot"], &[&with_ending(&mount.pool, "@s")]);
    fs::remove_file(mount.at("b")).unwrap();
    let before = stored(&mount);
    let kept = mount.at(".hardpack/snapshots/s/b");
    assert!(Command::new("cp").args([kept, mount.at("b")]).status().unwrap().success());
    let after = stored(&mount);
    assert!(after < before + (2 << 20), "grew from {before} to {after}");
    assert!(read(&mount.at("b")) == bytes);
    mount.unmount();
    mount.check();
}

/// Random copies between files and within one, aligned and not, clean and dirty, of files with
/// different lengths of records, agree with the same in memory.
#[test]
fn random_copies() {
    if !can_mount() {
        return;
    }
    const LEN_MAX: u64 = 3 << 20;
    let mount = Mount::new();
    let mut state = 7_u64;
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let files = [open(&mount.at("a")), open(&mount.at("b"))];
    let record = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(mount.at("b"), "user.hardpack.recordsize", b"16k", record).unwrap();
    let mut model = [Vec::new(), Vec::new()];
    for round in 0..300 {
        let (from, to) = (random(2) as usize, random(2) as usize);
        let unit = [1, 4096, 16 << 10, 128 << 10][random(4) as usize];
        let [mut from_at, mut to_at, mut len] = [(); 3].map(|()| random(LEN_MAX / unit) * unit);
        if round % 3 == 0 || model[from].is_empty() {
            let bytes = match random(4) {
                0 => vec![0; len as usize],
                _ => random_bytes((len as usize).min(200_000), round),
            };
            files[to].write_all_at(&bytes, to_at).unwrap();
            put(&mut model[to], to_at, &bytes);
            continue;
        }
        if random(4) == 0 {
            files[to].set_len(to_at).unwrap();
            model[to].resize(to_at as usize, 0);
        }
        from_at = from_at.min(model[from].len() as u64);
        if random(3) == 0 {
            // To the end of the source, as `cp` does.
            (from_at, len) = (from_at / unit * unit, LEN_MAX * 2);
            to_at = to_at.max(model[to].len() as u64 / unit * unit);
        }
        let there = (model[from].len() as u64 - from_at).min(len);
        if from == to && from_at < to_at + len && to_at < from_at + len {
            continue;
        }
        copy(&files[from], from_at, &files[to], to_at, len as usize);
        let bytes = model[from][from_at as usize..][..there as usize].to_vec();
        if !bytes.is_empty() {
            put(&mut model[to], to_at, &bytes);
        }
        if model[to].len() as u64 > 4 * LEN_MAX {
            files[to].set_len(LEN_MAX).unwrap();
            model[to].truncate(LEN_MAX as usize);
        }
        if round % 10 == 0 {
            for (name, model) in ["a", "b"].iter().zip(&model) {
                assert!(read(&mount.at(name)) == *model, "round {round}, {name}");
            }
        }
    }
    drop(files);
    mount.unmount();
    mount.check();
    mount.again(&[]);
    for (name, model) in ["a", "b"].iter().zip(&model) {
        assert!(read(&mount.at(name)) == *model, "{name}");
    }
    mount.unmount();
}

fn put(model: &mut Vec<u8>, at: u64, bytes: &[u8]) {
    let end = at as usize + bytes.len();
    if !bytes.is_empty() && model.len() < end {
        model.resize(end, 0);
    }
    model[at as usize..][..bytes.len()].copy_from_slice(bytes);
}
