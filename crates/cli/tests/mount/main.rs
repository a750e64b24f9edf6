//! `hardpack mount`: a real mount in a real kernel, used by the system's own calls. These tests
//! need root and `/dev/fuse`, and say so where they are skipped; those of other users, in
//! `user.rs`, also `fusermount3`.

#[path = "../common/mod.rs"]
mod common;
#[path = "../../../sqlite/tests/common/loop_device.rs"]
mod loop_device;

mod acl;
mod beside;
mod block_device;
mod cache;
mod clone;
mod companions;
mod content;
mod crash;
mod databases;
mod failing;
mod locks;
mod names;
mod refusals;
mod snapshots;
mod special;
mod user;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::*;
use tempfile::TempDir;

/// Whether file systems can be mounted here.
fn can_mount() -> bool {
    let has_device = std::fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    let can = has_device && rustix::process::geteuid().is_root();
    if !can {
        println!("skipped: this needs root and /dev/fuse");
    }
    can
}

/// A pool that is mounted for a test. It is unmounted in any case.
struct Mount {
    directory: TempDir,
    pool: PathBuf,
    point: PathBuf,
}

impl Mount {
    /// Mounts a new pool.
    fn new() -> Mount {
        let directory = tempfile::tempdir().unwrap();
        let pool = directory.path().join("p.hpk");
        hardpack().arg("create").arg(&pool).assert().success();
        Mount::of(directory, pool)
    }

    /// Mounts a pool that is there.
    fn of(directory: TempDir, pool: PathBuf) -> Mount {
        Mount::of_with(directory, pool, &[])
    }

    /// Mounts a pool that is there, with these options.
    fn of_with(directory: TempDir, pool: PathBuf, options: &[&str]) -> Mount {
        let point = directory.path().join("mnt");
        std::fs::create_dir(&point).unwrap();
        let mount = Mount { directory, pool, point };
        mount.again(options);
        mount
    }

    /// Mounts it with these options.
    fn again(&self, options: &[&str]) {
        hardpack().arg("mount").args(options).args([&self.pool, &self.point]).assert().success();
    }

    /// Mounts something in the pool.
    fn part(&self, address: &str, options: &[&str]) {
        let address = with_ending(&self.pool, address);
        hardpack().arg("mount").args(options).args([&address, &self.point]).assert().success();
    }

    /// Unmounts it. Another test's thread that starts a program holds copies of all open files for
    /// a moment.
    fn unmount(&self) {
        let began = std::time::Instant::now();
        loop {
            let done = hardpack().arg("umount").arg(&self.point).output().unwrap();
            if done.status.success() {
                return;
            }
            let said = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.code() == Some(5), "{said}");
            assert!(began.elapsed() < std::time::Duration::from_secs(60), "{said}");
        }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.point.join(path)
    }

    /// A path in the pool, for other commands.
    fn in_pool(&self, path: &str) -> PathBuf {
        self.pool.join(path)
    }

    /// The process that serves the mount.
    fn server(&self) -> rustix::process::Pid {
        let mut number = [0; 16];
        let len = rustix::fs::getxattr(&self.point, "user.hardpack.server", &mut number).unwrap();
        let number = std::str::from_utf8(&number[..len]).unwrap().parse().unwrap();
        rustix::process::Pid::from_raw(number).unwrap()
    }

    /// Kills the server, and waits until it is gone.
    fn kill(&self) {
        let server = self.server();
        let end = rustix::process::PidfdFlags::empty();
        let end = rustix::process::pidfd_open(server, end).unwrap();
        rustix::process::kill_process(server, rustix::process::Signal::KILL).unwrap();
        let mut waiting = [rustix::event::PollFd::new(&end, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut waiting, None).unwrap();
    }

    fn check(&self) {
        hardpack().args(["check", "-q"]).arg(&self.pool).assert().success().stdout("");
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Also what has died, and what a failed test still uses.
        let _ = Command::new("umount").arg("-l").arg(&self.point).output();
    }
}

/// Stops a server, and waits until all of its threads have stopped: they do so one by one, and the
/// first calls may still be answered.
fn stop(server: rustix::process::Pid) {
    rustix::process::kill_process(server, rustix::process::Signal::STOP).unwrap();
    let threads = format!("/proc/{}/task", server.as_raw_nonzero());
    let is_stopped = |thread: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(thread.unwrap().path().join("stat")).unwrap();
        stat.rsplit(')').next().unwrap().trim_start().starts_with('T')
    };
    while !std::fs::read_dir(&threads).unwrap().all(is_stopped) {
        std::thread::yield_now();
    }
}

fn write(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap()
}
