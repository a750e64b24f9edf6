//! Access control lists: `setfacl` and `getfacl`, and what the kernel then lets other users do.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;

use rustix::fs::{XattrFlags, lgetxattr, lsetxattr};
use rustix::io::Errno;

use super::*;

/// Users and groups that nothing on the system belongs to.
const ANN: u32 = 40_001;
const BOB: u32 = 40_002;
const STAFF: u32 = 40_100;

/// A mount that all users see.
fn shared() -> Mount {
    let mount = Mount::new();
    fs::set_permissions(mount.directory.path(), fs::Permissions::from_mode(0o711)).unwrap();
    mount.unmount();
    again(&mount);
    mount
}

fn again(mount: &Mount) {
    mount.again(&["--allow-other"]);
    fs::set_permissions(&mount.point, fs::Permissions::from_mode(0o777)).unwrap();
}

/// Runs a command in the mount as a user whose group has the same number. Returns whether it
/// succeeds.
fn does(mount: &Mount, user: u32, command: &str) -> bool {
    let mut shell = Command::new("sh");
    shell.current_dir(&mount.point).args(["-c", command]).uid(user).gid(user);
    shell.output().unwrap().status.success()
}

fn setfacl(mount: &Mount, arguments: &str) {
    let mut command = Command::new("setfacl");
    command.current_dir(&mount.point).args(arguments.split(' '));
    let done = command.output().expect("the package 'acl' is installed");
    assert!(done.status.success(), "{arguments}: {}", String::from_utf8_lossy(&done.stderr));
}

/// The entries of a list, without the effective rights.
fn getfacl(mount: &Mount, name: &str) -> String {
    let mut command = Command::new("getfacl");
    command.current_dir(&mount.point).args(["-cnE", name]);
    let done = command.output().expect("the package 'acl' is installed");
    String::from_utf8(done.stdout).unwrap().trim().replace('\n', " ")
}

fn mode(mount: &Mount, name: &str) -> u32 {
    fs::symlink_metadata(mount.at(name)).unwrap().mode() & 0o7777
}

fn has_list(mount: &Mount, name: &str, kind: &str) -> bool {
    let mut value = [0; 512];
    let found = lgetxattr(mount.at(name), format!("system.posix_acl_{kind}"), &mut value[..]);
    assert!(matches!(found, Ok(_) | Err(Errno::NODATA)), "{found:?}");
    found.is_ok()
}

#[test]
fn lists_decide_who_may_do_what() {
    if !can_mount() {
        return;
    }
    let mount = shared();
    write(&mount.at("f"), b"content");
    fs::set_permissions(mount.at("f"), fs::Permissions::from_mode(0o600)).unwrap();
    assert!(!does(&mount, ANN, "cat f"));
    setfacl(&mount, &format!("-m u:{ANN}:r,g:{STAFF}:rw f"));
    let check = || {
        assert_eq!(mode(&mount, "f"), 0o660);
        let expected =
            format!("user::rw- user:{ANN}:r-- group::--- group:{STAFF}:rw- mask::rw- other::---");
        assert_eq!(getfacl(&mount, "f"), expected);
        assert!(does(&mount, ANN, "cat f") && !does(&mount, ANN, ": >>f"));
        assert!(does(&mount, STAFF, "cat f && : >>f") && !does(&mount, BOB, "cat f"));
    };
    check();
    mount.unmount();
    mount.check();
    again(&mount);
    check();

    // The group's bits of the mode are the mask, and the others those of owner and others.
    fs::set_permissions(mount.at("f"), fs::Permissions::from_mode(0o600)).unwrap();
    assert!(!does(&mount, ANN, "cat f") && !does(&mount, STAFF, "cat f"));
    fs::set_permissions(mount.at("f"), fs::Permissions::from_mode(0o644)).unwrap();
    assert!(does(&mount, ANN, "cat f") && !does(&mount, STAFF, ": >>f"));
    assert!(does(&mount, BOB, "cat f"));
    assert!(getfacl(&mount, "f").ends_with("mask::r-- other::r--"), "{}", getfacl(&mount, "f"));
    // A command beside the mount changes the mode alone.
    mount.unmount();
    hardpack().args(["chmod", "660"]).arg(mount.in_pool("f")).assert().success();
    again(&mount);
    check();

    // What a mode can say needs no list.
    setfacl(&mount, "-b f");
    assert_eq!((mode(&mount, "f"), has_list(&mount, "f", "access")), (0o600, false));
    setfacl(&mount, "-m u::rwx,g::rx,o::x f");
    assert_eq!((mode(&mount, "f"), has_list(&mount, "f", "access")), (0o751, false));
    assert!(!does(&mount, ANN, "setfacl -m o::rwx f"));
    mount.unmount();
    mount.check();
}

#[test]
fn new_files_inherit_instead_of_the_umask() {
    if !can_mount() {
        return;
    }
    let mount = shared();
    let make = |directory: &str| {
        let command = format!("umask 077; cd {directory}; touch f; mkdir d; mkfifo p; ln -s f l");
        assert!(does(&mount, ANN, &command));
    };
    for directory in ["plain", "with"] {
        fs::create_dir(mount.at(directory)).unwrap();
        fs::set_permissions(mount.at(directory), fs::Permissions::from_mode(0o777)).unwrap();
    }
    make("plain");
    let modes = ["plain/f", "plain/d", "plain/p"].map(|name| mode(&mount, name));
    assert_eq!(modes, [0o600, 0o700, 0o600]);
    assert!(does(&mount, ANN, "umask 027; touch plain/g; mkdir plain/e"));
    assert_eq!((mode(&mount, "plain/g"), mode(&mount, "plain/e")), (0o640, 0o750));

    setfacl(&mount, &format!("-d -m u:{BOB}:rwx,g::rx,o:- with"));
    make("with");
    let look = || {
        let list = format!("user::rw- user:{BOB}:rwx group::r-x mask::rw- other::---");
        assert_eq!((getfacl(&mount, "with/f"), mode(&mount, "with/f")), (list.clone(), 0o660));
        assert_eq!((getfacl(&mount, "with/p"), mode(&mount, "with/p")), (list, 0o660));
        let list = format!("user::rwx user:{BOB}:rwx group::r-x mask::rwx other::---");
        let default = list.split(' ').map(|entry| format!(" default:{entry}"));
        let both = list.clone() + &default.collect::<String>();
        assert_eq!((getfacl(&mount, "with/d"), mode(&mount, "with/d")), (both, 0o770));
        assert!(!has_list(&mount, "with/f", "default"));
        assert!(does(&mount, BOB, "touch with/d/new && echo x >>with/f"));
        assert!(!does(&mount, STAFF, "cat with/f"));
    };
    look();
    mount.unmount();
    mount.check();
    again(&mount);
    look();
    // A list that says no more than a mode does takes the umask's place as well.
    setfacl(&mount, "-k with");
    setfacl(&mount, "-d -m u::rwx,g::rx,o::- with");
    assert!(does(&mount, ANN, "umask 0; touch with/g"));
    assert_eq!((mode(&mount, "with/g"), has_list(&mount, "with/g", "access")), (0o640, false));
    setfacl(&mount, "-k with");
    assert!(!has_list(&mount, "with", "default"));
    assert!(does(&mount, ANN, "umask 022; touch with/h"));
    assert_eq!(mode(&mount, "with/h"), 0o644);
    mount.unmount();
    mount.check();
}

#[test]
fn what_is_no_list_is_refused() {
    if !can_mount() {
        return;
    }
    let mount = shared();
    write(&mount.at("f"), b"");
    let set = |name: &str, value: &[u8]| {
        lsetxattr(mount.at("f"), format!("system.posix_acl_{name}"), value, XattrFlags::empty())
    };
    let plain = [
        &[2, 0, 0, 0][..],
        &[1, 0, 6, 0, 255, 255, 255, 255],
        &[4, 0, 4, 0, 255, 255, 255, 255],
        &[32, 0, 4, 0, 255, 255, 255, 255],
    ]
    .concat();
    set("access", &plain).unwrap();
    assert_eq!(set("access", &plain[..20]), Err(Errno::INVAL));
    assert_eq!(set("default", &plain), Err(Errno::ACCESS));
    assert_eq!((mode(&mount, "f"), has_list(&mount, "f", "access")), (0o644, false));
    let other = lsetxattr(mount.at("f"), "system.other", b"x", XattrFlags::empty());
    assert_eq!(other, Err(Errno::NOTSUP));
}

/// Whoever changes a list without being in the file's group takes its set-group-id bit away.
#[test]
fn the_set_group_id_bit_needs_the_group() {
    if !can_mount() {
        return;
    }
    let mount = shared();
    for (name, group) in [("own", ANN), ("foreign", STAFF)] {
        write(&mount.at(name), b"");
        std::os::unix::fs::chown(mount.at(name), Some(ANN), Some(group)).unwrap();
        fs::set_permissions(mount.at(name), fs::Permissions::from_mode(0o2750)).unwrap();
        assert!(does(&mount, ANN, &format!("setfacl -m u:{BOB}:rx {name}")));
    }
    assert_eq!((mode(&mount, "own"), mode(&mount, "foreign")), (0o2750, 0o750));
    fs::set_permissions(mount.at("foreign"), fs::Permissions::from_mode(0o2750)).unwrap();
    setfacl(&mount, &format!("-m u:{BOB}:rwx foreign"));
    assert_eq!(mode(&mount, "foreign"), 0o2770);
    // A group among others of the process counts as well.
    let mut command = Command::new("setpriv");
    command.current_dir(&mount.point).args([
        &format!("--reuid={ANN}"),
        &format!("--regid={ANN}"),
        &format!("--groups={STAFF}"),
        "setfacl",
        "-m",
        &format!("u:{BOB}:r"),
        "foreign",
    ]);
    assert!(command.status().unwrap().success());
    assert_eq!(mode(&mount, "foreign"), 0o2750);
    mount.unmount();
    mount.check();
}

/// Lists go with the file wherever it goes.
#[test]
fn lists_travel() {
    if !can_mount() {
        return;
    }
    let mount = shared();
    fs::create_dir(mount.at("d")).unwrap();
    setfacl(&mount, &format!("-m u:{ANN}:rx d"));
    setfacl(&mount, &format!("-d -m g:{STAFF}:r d"));
    write(&mount.at("d/f"), b"x");
    setfacl(&mount, &format!("-m u:{BOB}:rw d/f"));
    let lists = |at: &Path| {
        let mut command = Command::new("getfacl");
        command.current_dir(at).args(["-cnER", "d"]);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let expected = lists(&mount.point);
    assert!(expected.contains(&format!("user:{BOB}:rw-")), "{expected}");
    // Within the mount, as any program copies.
    fs::create_dir(mount.at("copy")).unwrap();
    assert!(
        Command::new("cp")
            .arg("-a")
            .args([mount.at("d"), mount.at("copy")])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(lists(&mount.at("copy")), expected);
    mount.unmount();
    // Out of the pool and into another one, with and without tar.
    let home = mount.directory.path();
    let out = home.join("out");
    hardpack().current_dir(home).args(["extract", "-q", "p.hpk/d", "out"]).assert().success();
    if lists(&out) != expected {
        println!("not tested further: the file system of {} has no lists", home.display());
        return;
    }
    hardpack().current_dir(home).args(["put", "-q", "out/d", "p.hpk/again"]).assert().success();
    for command in [
        "extract -q --tar p.hpk/again/d d.tar",
        "create q.hpk",
        "put -q --tar d.tar q.hpk",
        "extract -q q.hpk back",
    ] {
        hardpack().current_dir(home).args(command.split(' ')).assert().success();
    }
    assert_eq!(lists(&home.join("back")), expected);
    again(&mount);
    assert_eq!(lists(&mount.at("again")), expected);
}
