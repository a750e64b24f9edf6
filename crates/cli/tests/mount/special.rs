//! Fifos, sockets and device nodes.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};

use rustix::fs::{CWD, FileType, Mode, RenameFlags, makedev, mknodat, renameat_with};

use super::*;

fn make(mount: &Mount, name: &str, kind: FileType, device: u64) -> rustix::io::Result<()> {
    mknodat(CWD, mount.at(name), kind, Mode::from_raw_mode(0o600), device)
}

#[test]
fn special_files_are_kept_and_the_kernel_serves_them() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    let (terminal, disk) = (makedev(4, 0x1_2345), makedev(259, 1));
    make(&mount, "fifo", FileType::Fifo, 0).unwrap();
    make(&mount, "char", FileType::CharacterDevice, terminal).unwrap();
    make(&mount, "block", FileType::BlockDevice, disk).unwrap();
    assert_eq!(make(&mount, "fifo", FileType::Fifo, 0), Err(rustix::io::Errno::EXIST));

    // Two ends of a fifo, and of a socket.
    let path = mount.at("fifo");
    let writer = std::thread::spawn(move || fs::write(path, b"through the fifo"));
    assert_eq!(read(&mount.at("fifo")), b"through the fifo");
    writer.join().unwrap().unwrap();
    let listener = UnixListener::bind(mount.at("socket")).unwrap();
    UnixStream::connect(mount.at("socket")).unwrap().write_all(b"hello").unwrap();
    assert_eq!(std::io::read_to_string(listener.accept().unwrap().0).unwrap(), "hello");
    drop(listener);
    // As on other mounts of FUSE, device nodes have no effect unless that is asked for.
    let refused = fs::File::open(mount.at("char")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EACCES));

    fs::set_permissions(mount.at("fifo"), fs::Permissions::from_mode(0o4711)).unwrap();
    std::os::unix::fs::chown(mount.at("block"), Some(12), Some(34)).unwrap();
    fs::hard_link(mount.at("char"), mount.at("second name")).unwrap();
    fs::rename(mount.at("block"), mount.at("moved")).unwrap();
    write(&mount.at("plain"), b"x");
    renameat_with(CWD, mount.at("plain"), CWD, mount.at("socket"), RenameFlags::EXCHANGE).unwrap();
    rustix::fs::lsetxattr(mount.at("char"), "trusted.a", b"b", rustix::fs::XattrFlags::empty())
        .unwrap();

    let look = || {
        let of = |name: &str| fs::symlink_metadata(mount.at(name)).unwrap();
        assert!(of("fifo").file_type().is_fifo() && of("plain").file_type().is_socket());
        assert_eq!((of("fifo").mode() & 0o7777, of("fifo").len()), (0o4711, 0));
        assert!(of("char").file_type().is_char_device());
        assert_eq!((of("char").rdev(), of("char").nlink()), (terminal, 2));
        assert_eq!(of("char").ino(), of("second name").ino());
        let moved = of("moved");
        assert!(moved.file_type().is_block_device());
        assert_eq!((moved.rdev(), moved.uid(), moved.gid()), (disk, 12, 34));
        let mut value = [0; 8];
        let n = rustix::fs::lgetxattr(mount.at("char"), "trusted.a", &mut value[..]).unwrap();
        assert_eq!(&value[..n], b"b");
        // The list tells kinds without asking for each name.
        let listed = fs::read_dir(&mount.point).unwrap().map(Result::unwrap);
        let fifos = listed.filter(|entry| entry.file_type().unwrap().is_fifo());
        assert_eq!(fifos.map(|entry| entry.file_name()).collect::<Vec<_>>(), ["fifo"]);
    };
    look();
    mount.unmount();
    mount.check();
    let listed = stdout_of(hardpack().args(["ls", "-l"]).arg(&mount.pool));
    let line = |name: &str| listed.lines().find(|line| line.ends_with(name)).unwrap();
    assert!(line(" fifo").starts_with("prws--x--x"), "{listed}");
    assert!(line(" char").starts_with("crw-------") && line(" char").contains(" 4, 74565 "));
    assert!(line(" moved").starts_with("brw-------") && line(" plain").starts_with('s'));
    mount.again(&[]);
    look();
    for name in ["fifo", "char", "second name", "moved", "plain"] {
        fs::remove_file(mount.at(name)).unwrap();
    }
    assert_eq!(fs::read_dir(&mount.point).unwrap().count(), 1);
    mount.unmount();
    mount.check();
}

/// With `-o dev`, root gets what the numbers stand for.
#[test]
fn devices_can_be_opened_if_root_says_so() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let mount = Mount::new();
    mount.unmount();
    mount.again(&["-o", "nodev,dev"]);
    make(&mount, "zero", FileType::CharacterDevice, makedev(1, 5)).unwrap();
    let mut bytes = [7; 16];
    match fs::File::open(mount.at("zero")) {
        Ok(mut zero) => {
            std::io::Read::read_exact(&mut zero, &mut bytes).unwrap();
            assert_eq!(bytes, [0; 16]);
        }
        // A container may forbid the device itself.
        Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EPERM)),
    }
    mount.unmount();
    mount.check();
}

/// An open fifo goes on after its name is gone.
#[test]
fn a_removed_fifo_still_works() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    make(&mount, "fifo", FileType::Fifo, 0).unwrap();
    let mut both = fs::File::options().read(true).write(true).open(mount.at("fifo")).unwrap();
    fs::remove_file(mount.at("fifo")).unwrap();
    both.write_all(b"still").unwrap();
    let mut bytes = [0; 5];
    std::io::Read::read_exact(&mut both, &mut bytes).unwrap();
    assert_eq!(&bytes, b"still");
    assert_eq!(both.metadata().unwrap().nlink(), 0);
    drop(both);
    mount.unmount();
    mount.check();
}
