//! `.hardpack/snapshots` in a mount.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, symlink};

use super::*;

/// Longer than the kernel answers from what it knows.
const SEEN_AFTER: std::time::Duration = std::time::Duration::from_millis(1100);

fn take(mount: &Mount, address: &str) {
    eventually(&["snapshot"], &[&with_ending(&mount.pool, address)]);
}

fn sync(mount: &Mount) {
    File::open(&mount.point).unwrap().sync_all().unwrap();
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn errno<T>(done: std::io::Result<T>) -> i32 {
    done.err().and_then(|error| error.raw_os_error()).unwrap_or(0)
}

fn succeeds(program: &str, arguments: &[&std::ffi::OsStr]) -> Vec<u8> {
    let output = Command::new(program).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
    output.stdout
}

/// The states are there side by side, appear and go as others make and destroy them, and programs
/// copy and compare them.
#[test]
fn snapshots_are_directories() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    fs::create_dir_all(mount.at("d/e")).unwrap();
    write(&mount.at("d/f"), &random_bytes(300_000, 1));
    write(&mount.at("g"), b"one");
    symlink("e/g", mount.at("d/link")).unwrap();
    fs::hard_link(mount.at("g"), mount.at("d/e/g")).unwrap();
    sync(&mount);
    take(&mount, "@one");
    let kept = mount.directory.path().join("kept");
    succeeds("cp", &["-a".as_ref(), mount.point.as_ref(), kept.as_ref()]);
    write(&mount.at("g"), b"two, longer");
    fs::remove_file(mount.at("d/f")).unwrap();
    sync(&mount);
    let hidden = mount.at(".hardpack/snapshots");
    assert_eq!(names_in(&hidden), ["one"]);
    take(&mount, "@two");
    assert_eq!(names_in(&hidden), ["one", "two"]);
    assert_eq!(names_in(&mount.point), ["d", "g"]);
    let at = |path: &str| hidden.join(path);
    assert_eq!(read(&at("one/g")), b"one");
    assert_eq!(read(&at("two/g")), b"two, longer");
    assert_eq!(fs::read_link(at("one/d/link")).unwrap(), Path::new("e/g"));
    let one = at("one");
    assert_eq!(succeeds("diff", &["-r".as_ref(), kept.as_ref(), one.as_ref()]), b"");
    let found = succeeds("find", &[hidden.as_ref(), "-type".as_ref(), "f".as_ref()]);
    assert_eq!(found.iter().filter(|byte| **byte == b'\n').count(), 5);
    let archive = mount.directory.path().join("a.tar");
    let into =
        ["-cf".as_ref(), archive.as_os_str(), "-C".as_ref(), hidden.as_ref(), "one".as_ref()];
    succeeds("tar", &into);
    let with = ["-df".as_ref(), archive.as_os_str(), "-C".as_ref(), hidden.as_ref()];
    succeeds("tar", &with);

    // No two files have one number, and the names of one file do.
    let all = succeeds(
        "find",
        &[mount.point.as_ref(), at("").as_ref(), "-printf".as_ref(), "%i %p\n".as_ref()],
    );
    let all = String::from_utf8(all).unwrap();
    let numbers: BTreeSet<&str> = all.lines().map(|line| line.split(' ').next().unwrap()).collect();
    // d/e/g and g are one file in each of the three.
    assert_eq!(numbers.len(), all.lines().count() - 3, "{all}");
    assert_eq!(at("one/g").metadata().unwrap().ino(), at("one/d/e/g").metadata().unwrap().ino());
    assert_ne!(at("one/g").metadata().unwrap().ino(), at("two/g").metadata().unwrap().ino());

    // What is destroyed goes, and what is open there is read on or refused, never wrong.
    let mut open = File::open(at("one/d/f")).unwrap();
    eventually(&["destroy"], &[&with_ending(&mount.pool, "@one")]);
    assert_eq!(names_in(&hidden), ["two"]);
    std::thread::sleep(SEEN_AFTER);
    assert_eq!(errno(fs::metadata(at("one/g"))), libc::ENOENT);
    write(&mount.at("more"), &random_bytes(3 << 20, 2));
    sync(&mount);
    let mut bytes = Vec::new();
    match open.read_to_end(&mut bytes) {
        Ok(_) => assert!(bytes == random_bytes(300_000, 1)),
        Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ESTALE)),
    }
    drop(open);
    take(&mount, "@one");
    assert_eq!(read(&at("one/g")), b"two, longer");
    mount.unmount();
    mount.check();
}

/// Nothing there can be changed, nor the name of the directory taken.
#[test]
fn snapshots_are_read_only() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    fs::create_dir(mount.at("d")).unwrap();
    write(&mount.at("d/f"), b"content");
    sync(&mount);
    take(&mount, "@s");
    let hidden = mount.at(".hardpack");
    let s = hidden.join("snapshots/s");
    let file = s.join("d/f");
    let write_to = |path: &Path| errno(File::options().write(true).open(path));
    let refused = [
        write_to(&file),
        errno(File::options().read(true).append(true).open(&file)),
        errno(File::create(s.join("new"))),
        errno(fs::create_dir(s.join("new"))),
        errno(fs::create_dir(hidden.join("new"))),
        errno(fs::create_dir(hidden.join("snapshots/new"))),
        errno(symlink("x", s.join("new"))),
        errno(fs::remove_file(&file)),
        errno(fs::remove_dir(s.join("d"))),
        errno(fs::remove_dir(&s)),
        errno(fs::rename(&file, s.join("g"))),
        errno(fs::hard_link(&file, s.join("g"))),
        errno(fs::set_permissions(&file, fs::metadata(mount.at("d/f")).unwrap().permissions())),
        errno(
            rustix::fs::setxattr(&file, "user.x", b"x", rustix::fs::XattrFlags::empty())
                .map_err(std::io::Error::from),
        ),
        errno(File::open(&file).and_then(|it| it.set_modified(std::time::SystemTime::now()))),
    ];
    assert!(refused.iter().all(|it| *it == libc::EROFS), "{refused:?}");
    let across = [
        errno(fs::rename(&file, mount.at("g"))),
        errno(fs::rename(mount.at("d/f"), s.join("g"))),
        errno(fs::hard_link(&file, mount.at("g"))),
        errno(fs::hard_link(mount.at("d/f"), s.join("g"))),
    ];
    assert!(across.iter().all(|it| *it == libc::EXDEV), "{across:?}");
    fs::create_dir(mount.at("other")).unwrap();
    assert_eq!(errno(fs::create_dir(&hidden)), libc::EEXIST);
    assert_eq!(errno(File::create_new(&hidden)), libc::EEXIST);
    assert_eq!(errno(fs::hard_link(mount.at("d/f"), &hidden)), libc::EEXIST);
    assert_eq!(errno(fs::rename(mount.at("other"), &hidden)), libc::EPERM);
    assert_eq!(errno(fs::rename(&hidden, mount.at("x"))), libc::EPERM);
    assert_eq!(errno(fs::remove_dir(&hidden)), libc::EPERM);
    // Below the mounted directory, it is a name like any other.
    fs::create_dir(mount.at("d/.hardpack")).unwrap();
    assert_eq!(read(&mount.at("d/f")), b"content");
    assert_eq!(read(&file), b"content");
    mount.unmount();

    // What a pool has by that name is not hidden, until it has another name.
    let source = mount.directory.path().join("source");
    write(&source, b"own");
    hardpack().args(["put", "-q"]).args([&source, &mount.in_pool(".hardpack")]).assert().success();
    mount.again(&[]);
    assert_eq!(read(&hidden), b"own");
    assert_eq!(names_in(&mount.point), [".hardpack", "d", "other"]);
    fs::rename(&hidden, mount.at("own")).unwrap();
    assert_eq!(names_in(&hidden.join("snapshots")), ["s"]);
    mount.unmount();
    mount.check();
}

/// A mount of a directory shows that directory as it was, and snapshots of parts show the way.
#[test]
fn snapshots_of_parts_and_of_mounted_directories() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    fs::create_dir_all(mount.at("a/b")).unwrap();
    write(&mount.at("a/b/f"), b"1");
    write(&mount.at("a/g"), b"1");
    write(&mount.at("h"), b"1");
    sync(&mount);
    take(&mount, "@all");
    take(&mount, "/a/b@part");
    write(&mount.at("a/b/f"), b"2");
    sync(&mount);
    take(&mount, "/a/b@all");
    fs::create_dir(mount.at("later")).unwrap();
    sync(&mount);
    let hidden = mount.at(".hardpack/snapshots");
    let names = names_in(&hidden);
    let [all, other, part] = &names[..] else { panic!("{names:?}") };
    assert!(all == "all" && other.starts_with("all@") && part == "part", "{names:?}");
    assert_eq!(names_in(&hidden.join("all")), ["a", "h"]);
    assert_eq!(names_in(&hidden.join(part)), ["a"]);
    assert_eq!(names_in(&hidden.join(part).join("a")), ["b"]);
    assert_eq!(read(&hidden.join(part).join("a/b/f")), b"1");
    assert_eq!(read(&hidden.join(other).join("a/b/f")), b"2");
    assert_eq!(errno(fs::metadata(hidden.join(part).join("h"))), libc::ENOENT);
    mount.unmount();

    mount.part("/a", &[]);
    assert_eq!(names_in(&hidden.join("all")), ["b", "g"]);
    assert_eq!(names_in(&hidden.join("part")), ["b"]);
    assert_eq!(errno(fs::metadata(hidden.join("all/../../h"))), libc::ENOENT);
    mount.unmount();
    // It did not exist then.
    mount.part("/later", &[]);
    assert_eq!(names_in(&hidden), [""; 0]);
    mount.unmount();
    mount.part("@all", &[]);
    assert_eq!(errno(fs::metadata(mount.at(".hardpack"))), libc::ENOENT);
    mount.unmount();
    mount.check();
}

/// Of a mount that never changes, the kernel is not asked about files that it opens, and keeps what
/// it has read. More of them are open than the server remembers.
#[test]
fn a_mounted_snapshot_is_read_without_being_opened() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    let content = |number: u64| random_bytes((number * number * 97) as usize, number);
    let name = |number: u64| format!("{number}");
    for number in 0..200 {
        write(&mount.at(&name(number)), &content(number));
    }
    sync(&mount);
    take(&mount, "@one");
    for number in 0..200 {
        write(&mount.at(&name(number)), b"changed");
    }
    sync(&mount);
    mount.unmount();
    mount.part("@one", &[]);
    let open: Vec<File> =
        (0..200).map(|number| File::open(mount.at(&name(number))).unwrap()).collect();
    hardpack().args(["rm", "-q"]).arg(mount.in_pool("7")).assert().success();
    std::thread::scope(|scope| {
        for part in 0..4 {
            let (open, content, mount, name) = (&open, &content, &mount, &name);
            scope.spawn(move || {
                for number in (0..200_u64).filter(|number| number % 4 == part).rev() {
                    let expected = content(number);
                    let mut found = Vec::new();
                    (&open[number as usize]).read_to_end(&mut found).unwrap();
                    assert!(found == expected, "{number}");
                    assert!(read(&mount.at(&name(number))) == expected, "{number}, again");
                    assert_eq!(errno(File::create(mount.at(&name(number)))), libc::EROFS);
                }
            });
        }
    });
    drop(open);
    mount.unmount();
    mount.check();
}
