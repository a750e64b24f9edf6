//! What the kernel keeps of a mount, and how it learns that it is outdated.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};

use super::*;

/// Longer than a mount takes to notice commits of others.
const SEEN_AFTER: std::time::Duration = std::time::Duration::from_millis(2200);

/// Mounts the pool of a mount on another directory.
fn second_of(mount: &Mount) -> Mount {
    let directory = tempfile::tempdir().unwrap();
    let point = directory.path().join("second");
    fs::create_dir(&point).unwrap();
    let second = Mount { directory, pool: mount.pool.clone(), point };
    second.again(&[]);
    second
}

/// The kernel trusts itself about the length of a file, and has to be made to forget it.
#[test]
fn a_file_is_as_long_as_others_have_made_it() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    write(&mount.at("f"), b"one");
    File::open(&mount.point).unwrap().sync_all().unwrap();
    fs::hard_link(mount.at("f"), mount.at("g")).unwrap();
    assert_eq!(read(&mount.at("g")), b"one");
    let second = second_of(&mount);
    let mut expected = b"one".to_vec();
    for n in 0..20_u8 {
        let (here, there) = if n % 2 == 0 { (&mount, &second) } else { (&second, &mount) };
        let more = vec![b'a' + n; usize::from(n) * 1000];
        expected.extend(&more);
        let mut file = File::options().append(true).open(here.at("f")).unwrap();
        file.write_all(&more).unwrap();
        file.sync_all().unwrap();
        drop(file);
        // Whoever opens it sees that, by any of its names. The kernel closes a file a moment after
        // its program, and as long as one is open for writing, its length stays.
        let began = std::time::Instant::now();
        while read(&there.at("f")) != expected {
            assert!(began.elapsed() < std::time::Duration::from_secs(20), "{n}");
        }
        assert!(read(&there.at("g")) == expected, "{n}");
    }
    let file = File::options().write(true).open(mount.at("f")).unwrap();
    file.set_len(5).unwrap();
    file.sync_all().unwrap();
    assert_eq!(read(&second.at("g")), expected[..5]);
    second.unmount();
    drop(file);
    mount.unmount();
    mount.check();
}

/// The same while programs open the file all the time, and never with an error.
#[test]
fn openers_beside_writers_elsewhere_see_whole_files() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    write(&mount.at("f"), &[b'a'; 10]);
    File::open(&mount.point).unwrap().sync_all().unwrap();
    let second = second_of(&mount);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut seen = 0;
                    while seen < 300 {
                        let bytes = read(&mount.at("f"));
                        let is_whole = bytes.iter().all(|byte| Some(byte) == bytes.first());
                        assert!(is_whole, "{}", String::from_utf8_lossy(&bytes));
                        seen = bytes.len();
                    }
                })
            })
            .collect();
        let mut len = 10;
        while readers.iter().any(|reader| !reader.is_finished()) {
            len = (len + 1).min(300);
            let file = File::options().write(true).open(second.at("f")).unwrap();
            file.write_all_at(&vec![b'a' + (len % 26) as u8; len], 0).unwrap();
            file.sync_all().unwrap();
        }
    });
    second.unmount();
    mount.unmount();
    mount.check();
}

/// Names that others create and remove are seen, although the kernel need not ask for names while
/// nobody does that.
#[test]
fn names_are_as_others_have_made_them() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    let source = mount.directory.path().join("source");
    write(&source, b"x");
    write(&mount.at("goes"), b"x");
    write(&mount.at("moves"), b"x");
    fs::rename(mount.at("moves"), mount.at("moved")).unwrap();
    File::open(&mount.point).unwrap().sync_all().unwrap();
    assert!(!mount.at("comes").exists() && mount.at("goes").exists() && mount.at("moved").exists());
    hardpack().args(["put", "-q"]).args([&source, &mount.in_pool("comes")]).assert().success();
    hardpack().arg("rm").arg(mount.in_pool("goes")).assert().success();
    hardpack().arg("rm").arg(mount.in_pool("moved")).assert().success();
    std::thread::sleep(SEEN_AFTER);
    assert!(mount.at("comes").exists() && !mount.at("goes").exists());
    assert!(!mount.at("moved").exists());
    mount.unmount();
    mount.check();
}

/// The kernel goes on to tell times of files that it has removed.
#[test]
fn removed_files_do_not_fail_a_sync() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    let root = File::open(&mount.point).unwrap();
    write(&mount.at("f"), b"bytes");
    fs::remove_file(mount.at("f")).unwrap();
    rustix::fs::syncfs(&root).unwrap();
    write(&mount.at("f"), b"bytes");
    fs::hard_link(mount.at("f"), mount.at("g")).unwrap();
    for name in ["f", "g"] {
        fs::remove_file(mount.at(name)).unwrap();
        rustix::fs::syncfs(&root).unwrap();
    }
    drop(root);
    mount.unmount();
    mount.check();
}

/// Who makes a file if there is none finds the one that others have made meanwhile.
#[test]
fn a_file_that_others_have_made_can_be_opened() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    let (source, path) = (mount.directory.path().join("source"), mount.at("f"));
    write(&source, b"theirs");
    assert!(!path.exists());
    hardpack().args(["put", "-q"]).args([&source, &mount.in_pool("f")]).assert().success();
    let mut file = File::options().append(true).create(true).open(&path).unwrap();
    file.write_all(b" and ours").unwrap();
    drop(file);
    assert_eq!(read(&path), b"theirs and ours");
    let error = File::create_new(&path).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
    mount.unmount();
    mount.check();
}

/// Programs exclude each other by locks of a file that others change in other ways, and can open
/// what they have open once more.
#[test]
fn what_is_open_stays_the_same_file_when_others_commit() {
    use rustix::fs::{FlockOperation, flock};
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    let (path, exclusive) = (mount.at("lock"), FlockOperation::NonBlockingLockExclusive);
    let source = mount.directory.path().join("source");
    write(&source, b"x");
    write(&path, b"number of a process");
    let holder = File::open(&path).unwrap();
    flock(&holder, exclusive).unwrap();
    let again = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&holder));
    hardpack().args(["put", "-q"]).args([&source, &mount.in_pool("other")]).assert().success();
    assert!(flock(File::open(&path).unwrap(), exclusive).is_err());
    hardpack().args(["chmod", "600"]).arg(mount.in_pool("lock")).assert().success();
    assert!(flock(File::open(&path).unwrap(), exclusive).is_err());
    File::open(again).unwrap();
    drop(holder);
    flock(File::open(&path).unwrap(), exclusive).unwrap();
    mount.unmount();
    mount.check();
}

/// What is mounted on a directory or file of the mount stays there when others commit.
#[test]
fn mounts_within_the_mount_stay() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    fs::create_dir_all(mount.at("a/b")).unwrap();
    write(&mount.at("a/file"), b"below");
    write(&mount.at("a/other"), b"above");
    let bind = |from: &Path, to: &Path| {
        assert!(Command::new("mount").arg("--bind").args([from, to]).status().unwrap().success());
    };
    let elsewhere = tempfile::tempdir().unwrap();
    write(&elsewhere.path().join("here"), b"still");
    bind(elsewhere.path(), &mount.at("a/b"));
    bind(&mount.at("a/other"), &mount.at("a/file"));
    std::thread::sleep(SEEN_AFTER);
    let source = mount.directory.path().join("source");
    write(&source, b"x");
    hardpack().args(["put", "-q"]).args([&source, &mount.in_pool("a/new")]).assert().success();
    std::thread::sleep(SEEN_AFTER);
    assert_eq!(read(&mount.at("a/new")), b"x");
    assert_eq!(read(&mount.at("a/b/here")), b"still");
    assert_eq!(read(&mount.at("a/file")), b"above");
    for point in ["a/b", "a/file"] {
        assert!(Command::new("umount").arg(mount.at(point)).status().unwrap().success());
    }
    mount.unmount();
    mount.check();
}

/// Bytes that the kernel has not handed over yet are no hole.
#[test]
fn written_bytes_are_no_hole() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    let mut file =
        File::options().read(true).write(true).create_new(true).open(mount.at("f")).unwrap();
    file.set_len(8 << 20).unwrap();
    file.sync_all().unwrap();
    for n in 1..6_u64 {
        file.write_all_at(b"here", n << 20).unwrap();
        let found =
            rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(((n - 1) << 20) + (512 << 10)));
        assert_eq!(found, Ok(n << 20));
    }
    file.seek(SeekFrom::Start(5 << 20)).unwrap();
    let mut bytes = [0; 4];
    file.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"here");
    drop(file);
    mount.unmount();
    mount.check();
}

/// Who writes to a program of somebody else takes its set-id bits away.
#[test]
fn set_id_bits_go_with_writes_of_others() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    mount.unmount();
    mount.again(&["--allow-other"]);
    // The kernel asks about the mode only if it has nothing to answer with.
    let modes = |path: &Path| {
        let (from, only) = (rustix::fs::CWD, rustix::fs::StatxFlags::MODE);
        let found = rustix::fs::statx(from, path, rustix::fs::AtFlags::empty(), only).unwrap();
        u32::from(found.stx_mode) & 0o7777
    };
    let act = |script: &str, user: u32| {
        let done = Command::new("setpriv")
            .args([format!("--reuid={user}"), format!("--regid={user}")])
            .args(["--clear-groups", "sh", "-c", script])
            .current_dir(&mount.point)
            .status()
            .unwrap();
        assert!(done.success(), "{script}");
    };
    fs::set_permissions(&mount.directory, fs::Permissions::from_mode(0o755)).unwrap();
    let scripts = [
        "echo more >> f",
        "echo new > f",
        "truncate -s 3 f",
        "fallocate -l 9 f",
        "fallocate -pl 3 f",
    ];
    for (script, by_root) in scripts.iter().flat_map(|script| [(script, false), (script, true)]) {
        let path = mount.at("f");
        let _ = fs::remove_file(&path);
        write(&path, b"program");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
        act(script, if by_root { 0 } else { 65534 });
        assert_eq!(modes(&path), if by_root { 0o6777 } else { 0o777 }, "{script} {by_root}");
    }
    fs::set_permissions(mount.at("f"), fs::Permissions::from_mode(0o6777)).unwrap();
    std::os::unix::fs::chown(mount.at("f"), Some(1), Some(1)).unwrap();
    assert_eq!(modes(&mount.at("f")), 0o777);
    mount.unmount();
    mount.check();
}
