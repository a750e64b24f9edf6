//! What cannot be mounted or unmounted, and what is said about it.

use std::fs;

use super::*;

#[test]
fn what_cannot_be_mounted_is_said() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    let home = mount.directory.path();
    let free = home.join("free");
    fs::create_dir(&free).unwrap();
    write(&home.join("text"), b"not a pool");
    write(&mount.at("file"), b"x");
    fs::File::open(mount.at("file")).unwrap().sync_all().unwrap();
    for (arguments, code, words) in [
        (vec!["mount", "none.hpk", "free"], 3, "none.hpk"),
        (vec!["mount", "text", "free"], 4, "not a Hardpack pool"),
        (vec!["mount", "p.hpk/file", "free"], 3, "only a directory can be mounted"),
        (vec!["mount", "p.hpk/none", "free"], 3, "none"),
        (vec!["mount", "p.hpk@none", "free"], 3, "none"),
        (vec!["mount", "p.hpk", "text"], 3, "'text' is not a directory"),
        (vec!["mount", "p.hpk", "none"], 3, "'none'"),
        (vec!["mount", "p.hpk", "mnt"], 5, "mounted on 'mnt' already"),
        (vec!["mount", "-o", "rx", "p.hpk", "free"], 3, "there is no option 'rx'"),
        (vec!["mount", "-o", "uid=me", "p.hpk", "free"], 3, "'uid=me' does not name a number"),
        (vec!["umount", "free"], 3, "no pool is mounted there"),
        (vec!["umount", "none"], 3, "No such file"),
    ] {
        fails(home, &arguments, code, &[words]);
    }
    let inside = fs::File::open(mount.at("file")).unwrap();
    fails(home, &["umount", "mnt"], 5, &["programs use it", "--lazy"]);
    assert_eq!(read(&mount.at("file")), b"x");
    hardpack().args(["umount", "--lazy"]).arg(&mount.point).assert().success();
    assert_eq!(std::io::read_to_string(inside).unwrap(), "x");
}

/// A damaged pool is mounted as far as it can be read, and the rest is an error.
#[test]
fn damage_is_an_error_where_it_is() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    let (good, bad) = (random_bytes(1 << 20, 1), random_bytes(1 << 20, 2));
    write(&mount.at("good"), &good);
    write(&mount.at("bad"), &bad);
    mount.unmount();
    let mut pool = read(&mount.pool);
    let at = pool.windows(64).position(|window| *window == bad[500_000..500_064]).unwrap();
    pool[at] ^= 1;
    write(&mount.pool, &pool);
    mount.again(&["-o", "ro"]);
    assert!(read(&mount.at("good")) == good);
    assert_eq!(fs::read(mount.at("bad")).unwrap_err().raw_os_error(), Some(libc::EIO));
    assert_eq!(fs::metadata(mount.at("bad")).unwrap().len(), 1 << 20);
    assert_eq!(fs::remove_file(mount.at("good")).unwrap_err().raw_os_error(), Some(libc::EROFS));
}

/// Directories of a pool can be mounted, also by mount(8).
#[test]
fn parts_and_fstab() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    fs::create_dir_all(mount.at("a/b")).unwrap();
    write(&mount.at("a/b/f"), b"f");
    mount.unmount();
    mount.part("/a", &[]);
    assert_eq!(read(&mount.at("b/f")), b"f");
    write(&mount.at("new"), b"new");
    mount.unmount();
    assert_eq!(stdout_of(hardpack().arg("cat").arg(mount.in_pool("a/new"))), "new");
    let helper = mount.directory.path().join("mount.hardpack");
    std::os::unix::fs::symlink(assert_cmd::cargo::cargo_bin!("hardpack"), &helper).unwrap();
    let mut by_fstab = Command::new(&helper);
    by_fstab.args([&mount.pool, &mount.point]).args(["-o", "ro,noexec,x-systemd.automount"]);
    assert!(by_fstab.status().unwrap().success());
    assert_eq!(read(&mount.at("a/b/f")), b"f");
    assert!(fs::write(mount.at("a/b/f"), b"").is_err());
    // Other mounts may have names that are not UTF-8.
    let mounts = fs::read("/proc/mounts").unwrap();
    let mounts = String::from_utf8_lossy(&mounts);
    let point = mount.point.to_str().unwrap();
    let line = mounts.lines().find(|line| line.contains(point)).unwrap();
    assert!(line.contains("ro,") && line.contains("noexec"), "{line}");
}

/// Names of directories may be any bytes, also those of mounts that have nothing to do with pools.
#[test]
fn directories_may_have_any_name() {
    use std::os::unix::ffi::OsStrExt;
    if !can_mount() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for name in [&b"a b"[..], b"new\nline", b"back\\slash", b"-dash", b"not UTF-8: \xff"] {
        let name = std::ffi::OsStr::from_bytes(name);
        let (point, pool) = (directory.path().join(name), directory.path().join("p.hpk"));
        std::fs::create_dir(&point).unwrap();
        hardpack().arg("create").arg(&pool).assert().success();
        let run = |command: &str, arguments: &[&std::ffi::OsStr]| {
            hardpack().current_dir(&directory).arg(command).args(arguments).assert()
        };
        let mount = ["--".as_ref(), pool.as_os_str(), name];
        run("mount", &mount).success();
        write(&point.join("f"), b"f");
        run("mount", &mount).code(5);
        run("umount", &["--".as_ref(), name]).success();
        assert!(!point.join("f").exists());
        std::fs::remove_file(&pool).unwrap();
    }
}
