//! The pool file fails below a mount, or its server does not answer.

use std::fs::{self, File};
use std::process::Stdio;

use super::*;

/// A mount whose pool lies in another mount, the server of which can be killed: then every read,
/// write and sync of the pool file fails.
struct Below {
    outer: Mount,
    inner: Mount,
}

impl Below {
    fn new(options: &[&str]) -> Below {
        let outer = Mount::new();
        let pool = outer.at("inner.hpk");
        hardpack().arg("create").arg(&pool).assert().success();
        let inner = Mount::of_with(tempfile::tempdir().unwrap(), pool, options);
        Below { outer, inner }
    }

    /// Unmounts what has failed. The command says what was lost, and the directory is free.
    fn unmount_failed(&self) {
        let said = stderr_of(hardpack().arg("umount").arg(&self.inner.point), 3);
        assert!(said.contains("it is unmounted, but its last changes are lost"), "{said}");
        assert_eq!(fs::read_dir(&self.inner.point).unwrap().count(), 0);
    }
}

fn number<T>(done: std::io::Result<T>) -> Option<i32> {
    done.err().and_then(|error| error.raw_os_error())
}

/// Whoever writes is told, with either `failmode`; with `stop` everybody is, from then on. What was
/// synced is there after the next mount.
#[test]
fn a_pool_file_that_fails_is_told() {
    if !can_mount() {
        return;
    }
    for (options, refusal) in [
        (&[][..], None),
        (&["-o", "failmode=continue"], None),
        (&["-o", "failmode=stop"], Some(libc::EROFS)),
    ] {
        let below = Below::new(options);
        let Below { outer, inner } = &below;
        write(&inner.at("kept"), b"kept");
        File::open(inner.at("kept")).unwrap().sync_all().unwrap();
        let open = File::create(inner.at("open")).unwrap();
        assert_eq!(read(&inner.at("kept")), b"kept");
        outer.kill();
        let _ = std::io::Write::write_all(&mut &open, &random_bytes(100_000, 1));
        assert!(open.sync_all().is_err());
        let made = number(fs::create_dir(inner.at("new")));
        assert!(made.is_some() && refusal.is_none_or(|wanted| made == Some(wanted)), "{made:?}");
        drop(open);
        below.unmount_failed();
        outer.again(&["--replace"]);
        inner.again(options);
        assert_eq!(read(&inner.at("kept")), b"kept");
        write(&inner.at("new"), b"new");
        inner.unmount();
        inner.check();
        outer.unmount();
        outer.check();
    }
}

/// Whoever writes after the pool file was removed or replaced is told; nobody would find it again.
/// What replaced it stays as it is.
#[test]
fn a_pool_file_that_is_removed_or_replaced_is_told() {
    if !can_mount() {
        return;
    }
    for is_replaced in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let pool = directory.path().join("p.hpk");
        let another = directory.path().join("another.hpk");
        for path in [&pool, &another] {
            hardpack().arg("create").arg(path).assert().success();
        }
        let mount = Mount::of_with(directory, pool.clone(), &[]);
        write(&mount.at("kept"), b"kept");
        File::open(mount.at("kept")).unwrap().sync_all().unwrap();
        // It is the same pool under another name.
        let renamed = pool.with_file_name("renamed.hpk");
        fs::rename(&pool, &renamed).unwrap();
        write(&mount.at("kept too"), b"kept too");
        File::open(mount.at("kept too")).unwrap().sync_all().unwrap();
        let open = File::create(mount.at("open")).unwrap();
        let before = fs::read(&another).unwrap();
        match is_replaced {
            true => fs::rename(&another, &renamed).unwrap(),
            false => fs::remove_file(&renamed).unwrap(),
        }
        std::io::Write::write_all(&mut &open, b"lost").unwrap();
        assert_eq!(number(open.sync_all()), Some(libc::ESTALE));
        assert_eq!(number(fs::create_dir(mount.at("new"))), Some(libc::ESTALE));
        assert_eq!(number(fs::rename(mount.at("kept"), mount.at("new"))), Some(libc::ESTALE));
        assert_eq!(read(&mount.at("kept")), b"kept");
        assert_eq!(read(&mount.at("kept too")), b"kept too");
        drop(open);
        let _ = hardpack().arg("umount").arg(&mount.point).output().unwrap();
        assert_eq!(fs::read_dir(&mount.point).unwrap().count(), 0);
        if is_replaced {
            assert!(fs::read(&renamed).unwrap() == before);
        }
    }
}

/// A pool file that was cut short is read as far as it goes; the rest is an error, not a crash.
#[test]
fn a_pool_file_that_is_cut_short_below_a_mount() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    let bytes = random_bytes(3 << 20, 1);
    write(&mount.at("large"), &bytes);
    File::open(mount.at("large")).unwrap().sync_all().unwrap();
    mount.unmount();
    mount.again(&["-o", "failmode=stop"]);
    File::options().write(true).open(&mount.pool).unwrap().set_len(1 << 20).unwrap();
    assert_eq!(number(fs::read(mount.at("large"))), Some(libc::EIO));
    let file = File::create(mount.at("new"));
    assert!(file.is_err() || file.unwrap().sync_all().is_err());
    let _ = hardpack().arg("umount").arg(&mount.point).output().unwrap();
    assert_eq!(fs::read_dir(&mount.point).unwrap().count(), 0);
}

/// Whether a process or one that it has started waits for a server. The process need not be there.
fn waits_for_server(process: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten();
    threads.flatten().any(|thread| {
        let read = |name: &str| fs::read_to_string(thread.path().join(name)).unwrap_or_default();
        read("wchan") == "request_wait_answer"
            || read("children").split_whitespace().any(|it| waits_for_server(it.parse().unwrap()))
    })
}

/// `umount` does not wait for ever for a server that is stopped.
#[test]
fn a_server_that_is_stopped_is_told() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    write(&mount.at("f"), b"f");
    File::open(mount.at("f")).unwrap().sync_all().unwrap();
    let server = mount.server();
    stop(server);
    let said = stderr_of(hardpack().arg("umount").arg(&mount.point), 3);
    assert!(said.contains("its server does not answer") && said.contains("kill"), "{said}");
    hardpack().args(["umount", "--lazy"]).arg(&mount.point).assert().success();
    assert_eq!(fs::read_dir(&mount.point).unwrap().count(), 0);
    rustix::process::kill_process(server, rustix::process::Signal::CONT).unwrap();
    mount.again(&[]);
    assert_eq!(read(&mount.at("f")), b"f");
    mount.unmount();
    mount.check();
}

/// `umount --force` takes away the mount of a server that does not answer, and whoever waits for it
/// gets an error. One that answers is unmounted as always.
#[test]
fn a_server_that_is_stopped_can_be_left() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    write(&mount.at("f"), b"f");
    File::open(mount.at("f")).unwrap().sync_all().unwrap();
    write(&mount.at("g"), b"g");
    let server = mount.server();
    stop(server);
    let name = mount.at("new");
    let waiting = std::thread::spawn(move || fs::write(name, b"n"));
    let said =
        stderr_of(hardpack().args(["mount", "--replace"]).args([&mount.pool, &mount.point]), 3);
    assert!(said.contains("its server does not answer") && said.contains("--force"), "{said}");
    let link = mount.pool.with_extension("link");
    std::os::unix::fs::symlink(&mount.point, &link).unwrap();
    hardpack().args(["umount", "--force"]).arg(&link).assert().success();
    waiting.join().unwrap().unwrap_err();
    assert_eq!(fs::read_dir(&mount.point).unwrap().count(), 0);
    rustix::process::kill_process(server, rustix::process::Signal::KILL).unwrap();
    mount.again(&[]);
    assert_eq!(read(&mount.at("f")), b"f");
    hardpack().args(["umount", "--force"]).arg(&mount.point).assert().success();
    mount.check();
}

/// A mount is shown by a second directory. To take it away from there leaves it where it was, and
/// waits for no server.
#[test]
fn what_is_bound_to_another_directory_stays_mounted() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    write(&mount.at("f"), b"f");
    let second = tempfile::tempdir().unwrap();
    for flags in [&[][..], &["--lazy"], &["--force"]] {
        let bound =
            Command::new("mount").arg("--bind").args([&mount.point, second.path()]).status();
        assert!(bound.unwrap().success());
        let said = stderr_of(hardpack().arg("umount").args(flags).arg(second.path()), 0);
        assert_eq!(said, "", "{flags:?}");
        assert_eq!(fs::read_dir(second.path()).unwrap().count(), 0, "{flags:?}");
        write(&mount.at("g"), b"g");
        assert_eq!(read(&mount.at("f")), b"f", "{flags:?}");
    }
    mount.unmount();
    mount.check();
}

/// The disk below a mount hangs. `umount` says so and ends, and the mount can be taken away.
#[test]
fn a_disk_that_hangs_keeps_no_mount() {
    if !can_mount() {
        return;
    }
    for flag in ["--lazy", "--force"] {
        let below = Below::new(&[]);
        let Below { outer, inner } = &below;
        write(&inner.at("kept"), b"kept");
        File::open(inner.at("kept")).unwrap().sync_all().unwrap();
        let disk = outer.server();
        stop(disk);
        let name = inner.at("new");
        let write_new = move || fs::write(&name, b"n").and_then(|()| fs::read(name));
        let waiting = std::thread::spawn(write_new);
        hardpack().args(["umount", flag]).arg(&inner.point).assert().success();
        assert_eq!(fs::read_dir(&inner.point).unwrap().count(), 0);
        rustix::process::kill_process(disk, rustix::process::Signal::CONT).unwrap();
        let _ = waiting.join().unwrap();
        inner.again(&[]);
        assert_eq!(read(&inner.at("kept")), b"kept");
        inner.unmount();
        outer.unmount();
        outer.check();
    }
}

/// The server dies while a command waits for its answer.
#[test]
fn a_mount_that_dies_while_it_is_asked_is_removed_or_replaced() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    let commands: [&[&str]; 2] = [&["mount", "--replace"], &["umount"]];
    for arguments in commands {
        let server = mount.server();
        stop(server);
        let mut command = Command::new(env!("CARGO_BIN_EXE_hardpack"));
        command.args(arguments);
        if arguments[0] == "mount" {
            command.arg(&mount.pool);
        }
        let child = command.arg(&mount.point).stderr(Stdio::piped()).spawn().unwrap();
        // A kernel that does not tell where threads wait may order this the other way round.
        for _ in 0..200 {
            if waits_for_server(child.id()) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        rustix::process::kill_process(server, rustix::process::Signal::KILL).unwrap();
        let done = child.wait_with_output().unwrap();
        assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    }
    assert_eq!(fs::read_dir(&mount.point).unwrap().count(), 0);
    mount.again(&[]);
    mount.unmount();
}

/// A server that ends late, as programs use the mount after a lazy unmount, leaves alone what was
/// mounted on the directory meanwhile.
#[test]
fn a_mount_outlives_the_server_before_it() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    write(&mount.at("f"), b"f");
    let used = File::open(mount.at("f")).unwrap();
    let server = mount.server();
    let end = rustix::process::PidfdFlags::empty();
    let end = rustix::process::pidfd_open(server, end).unwrap();
    hardpack().args(["umount", "--lazy"]).arg(&mount.point).assert().success();
    mount.again(&[]);
    assert_ne!(mount.server(), server);
    drop(used);
    let mut waiting = [rustix::event::PollFd::new(&end, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut waiting, None).unwrap();
    assert_eq!(read(&mount.at("f")), b"f");
    mount.unmount();
    mount.check();
}

/// For a second, the kernel shows what it knows of the directory of a server that has died.
#[test]
fn a_mount_that_has_just_died_is_replaced() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    for round in 0..3 {
        assert!(fs::metadata(&mount.point).is_ok());
        mount.kill();
        let said = stderr_of(hardpack().arg("mount").args([&mount.pool, &mount.point]), 3);
        assert!(said.contains("has died"), "{round}: {said}");
        mount.again(&["--replace"]);
        assert!(fs::metadata(&mount.point).is_ok());
        mount.kill();
        hardpack().arg("umount").arg(&mount.point).assert().success();
        mount.again(&[]);
    }
}
