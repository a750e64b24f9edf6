//! Names, links, attributes and lists.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::time::{Duration, SystemTime};

use rustix::fs::{CWD, RenameFlags, XattrFlags, renameat_with};
use rustix::io::Errno;

use super::*;

#[test]
fn a_tree_is_the_same_after_it_is_mounted_again() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    fs::create_dir_all(mount.at("a/b/c")).unwrap();
    write(&mount.at("a/b/c/file"), b"content");
    fs::hard_link(mount.at("a/b/c/file"), mount.at("a/other name")).unwrap();
    symlink("b/c", mount.at("a/link")).unwrap();
    write(&mount.at("empty"), b"");
    fs::set_permissions(mount.at("empty"), fs::Permissions::from_mode(0o4711)).unwrap();
    std::os::unix::fs::chown(mount.at("a/b"), Some(12), Some(34)).unwrap();
    let time = SystemTime::UNIX_EPOCH + Duration::new(1_234_567_890, 123_456_789);
    let before_1970 = SystemTime::UNIX_EPOCH - Duration::new(5, 7);
    let empty = fs::File::options().write(true).open(mount.at("empty")).unwrap();
    empty.set_times(fs::FileTimes::new().set_modified(time).set_accessed(before_1970)).unwrap();
    drop(empty);

    let look = || {
        assert_eq!(read(&mount.at("a/link/file")), b"content");
        assert_eq!(fs::read_link(mount.at("a/link")).unwrap(), Path::new("b/c"));
        let (one, other) =
            (fs::metadata(mount.at("a/b/c/file")), fs::metadata(mount.at("a/other name")));
        let (one, other) = (one.unwrap(), other.unwrap());
        assert_eq!((one.ino(), one.nlink()), (other.ino(), 2));
        let empty = fs::metadata(mount.at("empty")).unwrap();
        assert_eq!(empty.mode() & 0o7777, 0o4711);
        assert_eq!(empty.modified().unwrap(), time);
        assert_eq!(empty.accessed().unwrap(), before_1970);
        let b = fs::metadata(mount.at("a/b")).unwrap();
        assert_eq!((b.uid(), b.gid()), (12, 34));
    };
    look();
    mount.unmount();
    mount.check();
    let listed = stdout_of(hardpack().args(["ls", "-l"]).arg(mount.in_pool("empty")));
    assert!(listed.starts_with("-rws--x--x"), "{listed}");
    mount.again(&[]);
    look();
}

/// The time of a change is that of the write, whenever it is committed.
#[test]
fn times_are_those_of_the_changes() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    let file = fs::File::create(mount.at("f")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"1", 0).unwrap();
    let written = fs::metadata(mount.at("f")).unwrap().modified().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    file.sync_all().unwrap();
    assert_eq!(fs::metadata(mount.at("f")).unwrap().modified().unwrap(), written);
    // A time that is set after a write stays, though the write is committed later.
    std::os::unix::fs::FileExt::write_all_at(&file, b"2", 1).unwrap();
    let wanted = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    file.set_modified(wanted).unwrap();
    drop(file);
    assert_eq!(fs::metadata(mount.at("f")).unwrap().modified().unwrap(), wanted);
    mount.unmount();
    mount.again(&[]);
    let found = fs::metadata(mount.at("f")).unwrap();
    assert_eq!((found.modified().unwrap(), found.len()), (wanted, 2));
    assert!(found.ctime() > 1_000_000);
    let above = fs::metadata(&mount.point).unwrap().modified().unwrap();
    fs::rename(mount.at("f"), mount.at("g")).unwrap();
    assert!(fs::metadata(&mount.point).unwrap().modified().unwrap() > above);
    assert_eq!(fs::metadata(mount.at("g")).unwrap().modified().unwrap(), wanted);
}

/// The time of a file that is only created is that of its creation.
#[test]
fn empty_files_keep_their_times() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    drop(fs::File::create(mount.at("a")).unwrap());
    drop(fs::File::create(mount.at("b")).unwrap());
    fs::set_permissions(mount.at("b"), fs::Permissions::from_mode(0o600)).unwrap();
    let time = |name: &str| fs::metadata(mount.at(name)).unwrap().modified().unwrap();
    // And what somebody sets is kept.
    let set = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    fs::File::create(mount.at("c")).unwrap().set_modified(set).unwrap();
    let times = [time("a"), time("b"), set];
    std::thread::sleep(Duration::from_millis(50));
    mount.unmount();
    mount.again(&[]);
    assert_eq!([time("a"), time("b"), time("c")], times);
}

#[test]
fn renames_replace_exchange_and_spare() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    write(&mount.at("a"), b"a");
    write(&mount.at("b"), b"b");
    fs::create_dir_all(mount.at("d/inner")).unwrap();
    fs::create_dir(mount.at("e")).unwrap();
    let rename =
        |from: &str, to: &str, flags| renameat_with(CWD, mount.at(from), CWD, mount.at(to), flags);
    assert_eq!(rename("a", "b", RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename("a", "b", RenameFlags::EXCHANGE).unwrap();
    assert_eq!((read(&mount.at("a")), read(&mount.at("b"))), (b"b".to_vec(), b"a".to_vec()));
    rename("d", "a", RenameFlags::EXCHANGE).unwrap();
    assert!(mount.at("a/inner").is_dir() && mount.at("d").is_file());
    assert_eq!(rename("a", "a/inner", RenameFlags::EXCHANGE), Err(Errno::INVAL));
    let plain = RenameFlags::empty();
    assert_eq!(rename("a", "a/inner/x", plain), Err(Errno::INVAL));
    assert_eq!(rename("e", "a", plain), Err(Errno::NOTEMPTY));
    assert_eq!(rename("b", "e", plain), Err(Errno::ISDIR));
    assert_eq!(rename("e", "b", plain), Err(Errno::NOTDIR));
    assert_eq!(rename("no", "b", plain), Err(Errno::NOENT));
    assert_eq!(rename("b", &"n".repeat(256), plain), Err(Errno::NAMETOOLONG));
    rename("e", "a/inner", plain).unwrap();
    rename("b", "d", plain).unwrap();
    assert_eq!(read(&mount.at("d")), b"a");
    fs::hard_link(mount.at("d"), mount.at("same")).unwrap();
    rename("d", "same", plain).unwrap();
    assert!(mount.at("d").exists() && mount.at("same").exists());
    mount.unmount();
    mount.check();
}

/// A file whose last name goes while it is open stays for those who have it open, and then its
/// space is free.
#[test]
fn an_open_file_outlives_its_name() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    for replace in [false, true] {
        write(&mount.at("f"), &random_bytes(300_000, 1));
        let file = fs::File::options().read(true).write(true).open(mount.at("f")).unwrap();
        if replace {
            write(&mount.at("new"), b"new");
            fs::rename(mount.at("new"), mount.at("f")).unwrap();
        } else {
            fs::remove_file(mount.at("f")).unwrap();
        }
        assert_eq!(file.metadata().unwrap().nlink(), 0);
        use std::os::unix::fs::FileExt;
        file.write_all_at(b"more", 300_000).unwrap();
        file.sync_all().unwrap();
        let mut bytes = vec![0; 300_004];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [&random_bytes(300_000, 1)[..], b"more"].concat());
        assert_eq!(mount.at("f").exists(), replace);
        drop(file);
    }
    fs::remove_file(mount.at("f")).unwrap();
    mount.unmount();
    mount.check();
    let info = json_of(hardpack().args(["info", "--json"]).arg(&mount.pool));
    assert_eq!(info["files"], 0, "{info}");
}

/// So does one whose directory is removed as well, and writing to it harms nothing else.
#[test]
fn an_open_file_outlives_its_directory() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    fs::create_dir(mount.at("d")).unwrap();
    let file = fs::File::create(mount.at("d/f")).unwrap();
    fs::remove_file(mount.at("d/f")).unwrap();
    fs::remove_dir(mount.at("d")).unwrap();
    write(&mount.at("other"), b"other");
    use std::os::unix::fs::FileExt;
    for round in 0..3 {
        file.write_all_at(&random_bytes(200_000, round), 0).unwrap();
        file.sync_all().unwrap();
    }
    assert_eq!(read(&mount.at("other")), b"other");
    drop(file);
    mount.unmount();
    mount.check();
    assert_eq!(stdout_of(hardpack().arg("cat").arg(mount.in_pool("other"))), "other");
}

/// Others see neither more nor fewer names while some are removed in between.
#[test]
fn a_large_directory_is_listed_once_and_emptied() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    fs::create_dir(mount.at("many")).unwrap();
    for n in 0..3000 {
        write(&mount.at(&format!("many/{n:05}")), b"");
    }
    let names = || {
        let mut names: Vec<_> =
            fs::read_dir(mount.at("many")).unwrap().map(|it| it.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names().len(), 3000);
    for (count, entry) in fs::read_dir(mount.at("many")).unwrap().enumerate() {
        let entry = entry.unwrap();
        assert!(entry.file_type().unwrap().is_file());
        if count % 2 == 0 {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    let left = names();
    assert_eq!(left.len(), 1500);
    assert!(left.iter().all(|name| name.to_str().unwrap().parse::<u32>().unwrap() % 2 == 1));
    assert_eq!(fs::remove_dir(mount.at("many")).unwrap_err().raw_os_error(), Some(libc::ENOTEMPTY));
    fs::remove_dir_all(mount.at("many")).unwrap();
    mount.unmount();
    mount.check();
}

#[test]
fn extended_attributes_and_properties() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    write(&mount.at("f"), b"x");
    let path = &mount.at("f");
    let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr(path, name, value, flags);
    let get = |name: &str| {
        let mut value = vec![0; 70_000];
        rustix::fs::getxattr(path, name, &mut value[..]).map(|len| {
            value.truncate(len);
            value
        })
    };
    let any = XattrFlags::empty();
    let long = random_bytes(60_000, 3);
    set("user.short", b"", any).unwrap();
    set("user.long", &long, any).unwrap();
    set("security.capability", &[1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], any)
        .unwrap();
    assert_eq!(set("user.short", b"y", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(set("user.none", b"y", XattrFlags::REPLACE), Err(Errno::NODATA));
    assert_eq!(get("user.long").unwrap(), long);
    assert_eq!(get("user.short").unwrap(), b"");
    rustix::fs::removexattr(path, "user.short").unwrap();
    assert_eq!(rustix::fs::removexattr(path, "user.short"), Err(Errno::NODATA));
    // Properties are attributes as well: their own value, or the inherited one.
    assert_eq!(get("user.hardpack.compression").unwrap(), b"zstd-3");
    set("user.hardpack.compression", b"lz4", any).unwrap();
    assert_eq!(set("user.hardpack.compression", b"nonsense", any), Err(Errno::INVAL));
    assert_eq!(set("user.hardpack.nonsense", b"1", any), Err(Errno::NODATA));
    let mut names = vec![0; 1000];
    let len = rustix::fs::listxattr(path, &mut names[..]).unwrap();
    let names = String::from_utf8(names[..len].to_vec()).unwrap();
    let mut names: Vec<&str> = names.split_terminator('\0').collect();
    names.sort_unstable();
    assert_eq!(names, ["security.capability", "user.hardpack.compression", "user.long"]);
    mount.unmount();
    let got = stdout_of(hardpack().args(["get", "compression"]).arg(mount.in_pool("f")));
    assert!(got.contains("lz4"), "{got}");
    mount.again(&[]);
    rustix::fs::removexattr(path, "user.hardpack.compression").unwrap();
    assert_eq!(get("user.hardpack.compression").unwrap(), b"zstd-3");
    assert_eq!(get("user.long").unwrap(), long);
}

/// New files in a directory with the set-group-id bit get its group, and directories the bit too.
#[test]
fn groups_are_inherited() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    fs::create_dir(mount.at("d")).unwrap();
    std::os::unix::fs::chown(mount.at("d"), None, Some(77)).unwrap();
    fs::set_permissions(mount.at("d"), fs::Permissions::from_mode(0o2775)).unwrap();
    write(&mount.at("d/f"), b"");
    fs::create_dir(mount.at("d/e")).unwrap();
    symlink("f", mount.at("d/l")).unwrap();
    let gid = |path: &str| fs::symlink_metadata(mount.at(path)).unwrap().gid();
    assert_eq!([gid("d/f"), gid("d/e"), gid("d/l")], [77; 3]);
    assert_eq!(fs::metadata(mount.at("d/e")).unwrap().mode() & 0o2000, 0o2000);
    assert_eq!(fs::metadata(mount.at("d/f")).unwrap().mode() & 0o2000, 0);
}

/// A program with little room for names may remove them as it reads them.
#[test]
fn names_are_removed_while_they_are_listed_bit_by_bit() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    for n in 0..500 {
        write(&mount.at(&format!("file {n}")), b"");
    }
    let directory = File::open(&mount.point).unwrap();
    let mut buffer = [std::mem::MaybeUninit::uninit(); 200];
    let mut names = rustix::fs::RawDir::new(&directory, &mut buffer);
    while let Some(entry) = names.next() {
        let entry = entry.unwrap();
        if entry.file_name().to_bytes().starts_with(b"file") {
            let flags = rustix::fs::AtFlags::empty();
            rustix::fs::unlinkat(&directory, entry.file_name(), flags).unwrap();
        }
    }
    assert_eq!(fs::read_dir(&mount.point).unwrap().count(), 0);
}

/// While a name comes and goes, a program that creates it if need be can open it.
#[test]
fn a_name_that_comes_and_goes_can_be_opened() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    let path = mount.at("f");
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                let _ = fs::remove_file(&path);
            }
        });
        let ended = std::panic::catch_unwind(|| {
            for n in 0..3000_u32 {
                let mut options = File::options();
                options.read(true).write(true).create(true).truncate(false);
                let file = loop {
                    match options.open(&path) {
                        // It went twice: the kernel looks only once more.
                        Err(error) if error.raw_os_error() == Some(libc::ESTALE) => {}
                        opened => break opened.unwrap(),
                    }
                };
                file.write_all_at(&n.to_le_bytes(), 0).unwrap();
                let mut found = [0; 4];
                file.read_exact_at(&mut found, 0).unwrap();
                assert_eq!(found, n.to_le_bytes());
            }
        });
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        ended.unwrap();
    });
    let _ = fs::remove_file(&path);
    mount.unmount();
    mount.check();
    let info = json_of(hardpack().args(["info", "--json"]).arg(&mount.pool));
    assert_eq!(info["files"], 0, "{info}");
}

/// The time of the last change of attributes is not that of an older change, once it is committed.
#[test]
fn a_commit_does_not_turn_back_the_time() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    let path = mount.at("f");
    write(&path, b"one");
    File::open(&mount.point).unwrap().sync_all().unwrap();
    let changed = |path: &Path| {
        let found = fs::metadata(path).unwrap();
        (found.ctime(), found.ctime_nsec())
    };
    let first = changed(&path);
    std::thread::sleep(Duration::from_millis(20));
    write(&path, b"other");
    mount.unmount();
    mount.again(&[]);
    assert!(changed(&path) > first);
    let found = fs::metadata(&path).unwrap();
    assert!(changed(&path) >= (found.mtime(), found.mtime_nsec()));
}

/// A time that a program sets stays, whatever is committed beside.
#[test]
fn times_set_beside_a_sync_stay() {
    if !can_mount() {
        return;
    }
    let mount = &Mount::new();
    let is_over = &std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let directory = File::open(&mount.point).unwrap();
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                directory.sync_all().unwrap();
            }
        });
        let set = |name: &str| {
            let path = mount.at(name);
            for n in 1..8000 {
                let file = File::options().write(true).create(true).truncate(false).open(&path);
                let file = file.unwrap();
                file.write_all_at(b"content", n).unwrap();
                let time = SystemTime::UNIX_EPOCH + Duration::from_secs(n);
                file.set_modified(time).unwrap();
                drop(file);
                assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), time);
            }
        };
        let threads = ["f", "g", "h"].map(|name| scope.spawn(move || set(name)));
        let ended = threads.map(|thread| thread.join());
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        ended.into_iter().for_each(|ended| ended.unwrap());
    });
}

/// Directories that would lie deeper than the pool can tell are refused, and harm nothing.
#[test]
fn the_deepest_directory_can_be_used() {
    use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, openat, unlinkat};
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    let open = |at: &rustix::fd::OwnedFd| {
        openat(at, "d", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap()
    };
    let mut deepest = rustix::fd::OwnedFd::from(File::open(&mount.point).unwrap());
    let mut depth = 0;
    while mkdirat(&deepest, "d", Mode::RWXU).is_ok() {
        deepest = open(&deepest);
        depth += 1;
        assert!(depth < 5000);
    }
    assert!(depth > 500, "{depth}");
    let flags = OFlags::CREATE | OFlags::RDWR;
    let file = openat(&deepest, "file", flags, Mode::RUSR | Mode::WUSR).unwrap();
    rustix::io::write(&file, b"deep").unwrap();
    rustix::fs::fsync(&file).unwrap();
    drop((file, deepest));
    mount.unmount();
    mount.check();
    mount.again(&[]);
    let mut at = rustix::fd::OwnedFd::from(File::open(&mount.point).unwrap());
    for _ in 0..depth {
        at = open(&at);
    }
    unlinkat(&at, "file", AtFlags::empty()).unwrap();
}

/// Who may write to a file of somebody else does not decide how it is stored.
#[test]
fn properties_are_set_by_the_owner() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    mount.unmount();
    mount.again(&["--allow-other"]);
    write(&mount.at("shared"), b"");
    fs::set_permissions(mount.at("shared"), fs::Permissions::from_mode(0o666)).unwrap();
    let name = "user.hardpack.compression";
    let flags = XattrFlags::empty();
    rustix::fs::setxattr(mount.at("shared"), name, b"lz4", flags).unwrap();
    // A file that is open is found by any user, wherever it is.
    let shared = File::open(mount.at("shared")).unwrap();
    let program = "import os, sys\n\
        for act in (lambda: os.setxattr(0, sys.argv[1], b'zstd-19'),\n\
                    lambda: os.removexattr(0, sys.argv[1])):\n\
        \x20   try: act()\n\
        \x20   except PermissionError: continue\n\
        \x20   sys.exit('not refused')\n\
        os.setxattr(0, 'user.other', b'may be set')\n";
    let mut other = Command::new("python3");
    std::os::unix::process::CommandExt::uid(&mut other, 65534);
    let done = other.args(["-c", program, name]).stdin(shared).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let mut value = [0; 16];
    let len = rustix::fs::getxattr(mount.at("shared"), name, &mut value).unwrap();
    assert_eq!(&value[..len], b"lz4");
}
