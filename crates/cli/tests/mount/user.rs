//! Mounts of somebody who is not root, through `fusermount3`. The tests say so where that is not
//! installed, or `/dev/fuse` is for root alone.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::*;

/// The user `nobody`.
const USER: u32 = 65534;

/// Directories of that user, and the command where the user can run it.
struct Home {
    directory: TempDir,
    command: PathBuf,
}

impl Home {
    fn new() -> Option<Home> {
        let is_open = fs::metadata("/dev/fuse").is_ok_and(|found| found.mode() & 0o006 == 0o006);
        let has_helper = Command::new("fusermount3").arg("-V").output().is_ok();
        if !can_mount() || !is_open || !has_helper {
            println!("skipped: this needs fusermount3, and a /dev/fuse that is for everybody");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        chown(directory.path(), Some(USER), Some(USER)).unwrap();
        let command = directory.path().join("hardpack");
        copy_program(&command);
        Some(Home { directory, command })
    }

    fn run(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.directory.path()).uid(USER).gid(USER).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap());
        command
    }

    /// Runs the command and returns its exit code and what it says.
    fn hardpack(&self, arguments: &[&str]) -> (i32, String) {
        let done = self.run(&self.command).args(arguments).output().unwrap();
        (done.status.code().unwrap(), String::from_utf8(done.stderr).unwrap())
    }

    fn succeeds(&self, arguments: &[&str]) {
        assert_eq!(self.hardpack(arguments), (0, String::new()), "{arguments:?}");
    }

    fn says(&self, arguments: &[&str], code: i32, what: &str) {
        let (found, said) = self.hardpack(arguments);
        assert!(found == code && said.contains(what), "{arguments:?}: {found}, {said}");
    }

    fn shell(&self, script: &str) -> String {
        let done = self.run("sh").args(["-c", script]).output().unwrap();
        assert!(done.status.success(), "{script}: {done:?}");
        String::from_utf8(done.stdout).unwrap()
    }

    fn server(&self, mount: &str) -> Pid {
        // Not even root sees the mount of another user.
        let script =
            format!("import os; print(os.getxattr('{mount}', 'user.hardpack.server').decode())");
        let done = self.run("python3").args(["-c", &script]).output().unwrap();
        let number = String::from_utf8(done.stdout).unwrap();
        Pid::from_raw(number.trim().parse().unwrap()).unwrap()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        for name in ["m", "inner", "outer"] {
            let _ =
                Command::new("umount").arg("-lf").arg(self.directory.path().join(name)).output();
        }
    }
}

#[test]
fn a_user_mounts_and_unmounts() {
    let Some(home) = Home::new() else { return };
    home.succeeds(&["create", "p.hpk"]);
    home.shell("mkdir m && mkdir --mode=700 elsewhere");
    home.says(&["mount", "--allow-other", "p.hpk", "m"], 3, "user_allow_other");
    home.says(&["mount", "p.hpk", "/usr"], 3, "is the directory yours?");
    home.succeeds(&["mount", "p.hpk", "m"]);
    assert_eq!(home.shell("echo text > m/file && ln m/file m/link && cat m/link"), "text\n");
    let owner = home.shell("stat -c %u:%g m m/file");
    assert_eq!(owner, format!("{USER}:{USER}\n").repeat(2));
    home.says(&["mount", "p.hpk", "m"], 5, "mounted on 'm' already");
    let mut user = home.run("sh");
    user.args(["-c", "cd m && echo there && exec sleep 60"]).stdout(Stdio::piped());
    let mut user = user.spawn().unwrap();
    user.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    home.says(&["umount", "m"], 5, "programs use it");
    user.kill().unwrap();
    user.wait().unwrap();
    home.succeeds(&["umount", "m"]);
    assert_eq!(home.shell("ls m"), "");
    home.succeeds(&["mount", "-o", "ro", "p.hpk", "m"]);
    assert_eq!(home.shell("cat m/file; touch m/new || echo refused"), "text\nrefused\n");
    // As any other user does.
    home.shell("fusermount3 -u m");
    home.succeeds(&["check", "-q", "p.hpk"]);
}

#[test]
fn a_user_removes_mounts_whose_servers_are_dead_or_silent() {
    let Some(home) = Home::new() else { return };
    home.succeeds(&["create", "p.hpk"]);
    home.shell("mkdir m");
    home.succeeds(&["mount", "p.hpk", "m"]);
    home.shell("echo text > m/file && sync m/file");
    kill_process(home.server("m"), Signal::KILL).unwrap();
    home.shell("until ! ls m; do :; done 2>/dev/null");
    home.says(&["mount", "p.hpk", "m"], 3, "--replace");
    home.succeeds(&["mount", "--replace", "p.hpk", "m"]);
    for flag in ["--lazy", "--force"] {
        let server = home.server("m");
        stop(server);
        home.says(&["umount", "m"], 3, "--force");
        home.succeeds(&["umount", flag, "m"]);
        assert_eq!(home.shell("ls m"), "");
        // Forced, it may have been killed.
        let _ = kill_process(server, Signal::CONT);
        home.succeeds(&["mount", "p.hpk", "m"]);
        assert_eq!(home.shell("cat m/file"), "text\n");
    }
    home.succeeds(&["umount", "m"]);
    home.succeeds(&["check", "-q", "p.hpk"]);
}

/// Root cannot look into mounts of users, but may take them away. Other users may not.
#[test]
fn root_removes_mounts_of_users() {
    let Some(home) = Home::new() else { return };
    home.succeeds(&["create", "p.hpk"]);
    home.shell("mkdir m");
    let mount = home.directory.path().join("m");
    for flags in [&[][..], &["--lazy"], &["--force"]] {
        home.succeeds(&["mount", "p.hpk", "m"]);
        home.shell("echo text >>m/file");
        let server = home.server("m");
        let mut other = Command::new(&home.command);
        other.arg("umount").args(flags).arg(&mount).uid(USER - 1).gid(USER - 1);
        let done = other.output().unwrap();
        assert_eq!(done.status.code(), Some(3), "{flags:?}: {done:?}");
        assert!(home.shell("cat m/file").ends_with("text\n"));
        let done = hardpack().arg("umount").args(flags).arg(&mount).assert().success();
        assert!(done.get_output().stderr.is_empty(), "{flags:?}: {done:?}");
        assert_eq!(home.shell("ls m"), "");
        if flags != ["--lazy"] {
            // Nobody has the pool open any more. Who has ended may still be listed.
            let program = format!("/proc/{}/exe", server.as_raw_pid());
            assert!(fs::read_link(program).is_err(), "{flags:?}");
        }
    }
    // One that is stopped is not waited for.
    home.succeeds(&["mount", "p.hpk", "m"]);
    home.shell("echo text >>m/file && sync m/file && echo not synced >m/new");
    let server = home.server("m");
    stop(server);
    let done = hardpack().arg("umount").arg(&mount).assert().code(3);
    let said = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
    assert!(said.contains("does not answer"), "{said}");
    hardpack().args(["umount", "--force"]).arg(&mount).assert().success();
    assert_eq!(home.shell("ls m"), "");
    // Forced, it may have been killed.
    let _ = kill_process(server, Signal::CONT);
    home.succeeds(&["mount", "p.hpk", "m"]);
    assert_eq!(home.shell("cat m/file"), "text\n".repeat(4));
    home.succeeds(&["umount", "m"]);
    home.succeeds(&["check", "-q", "p.hpk"]);
}

/// The disk below a mount of a user hangs. Whoever takes it away need not wait, nor need those who
/// wait for what the command says.
#[test]
fn a_disk_that_hangs_keeps_no_mount_of_a_user() {
    let Some(home) = Home::new() else { return };
    home.shell("mkdir outer inner");
    home.succeeds(&["create", "outer.hpk"]);
    home.succeeds(&["mount", "outer.hpk", "outer"]);
    home.succeeds(&["create", "outer/p.hpk"]);
    for flag in ["--lazy", "--force"] {
        home.succeeds(&["mount", "outer/p.hpk", "inner"]);
        home.shell("echo kept > inner/kept && sync inner/kept");
        let disk = home.server("outer");
        stop(disk);
        let mut waiting = home.run("sh");
        waiting.args(["-c", "echo new > inner/new; cat inner/new"]);
        let mut waiting = waiting.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        assert_eq!(home.hardpack(&["umount", flag, "inner"]).0, 0, "{flag}");
        assert_eq!(home.shell("ls inner"), "");
        kill_process(disk, Signal::CONT).unwrap();
        waiting.wait().unwrap();
        home.succeeds(&["mount", "outer/p.hpk", "inner"]);
        assert_eq!(home.shell("cat inner/kept"), "kept\n");
        home.succeeds(&["umount", "inner"]);
    }
    home.succeeds(&["umount", "outer"]);
    home.succeeds(&["check", "-q", "outer.hpk"]);
}
