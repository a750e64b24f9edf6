//! Block devices for tests.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A loop device, which only root can have.
pub struct Loop(pub PathBuf);

impl Loop {
    pub fn of(image: &Path) -> Option<Loop> {
        Loop::with(image, &[])
    }

    /// Makes one with further options of `losetup`.
    pub fn with(image: &Path, options: &[&str]) -> Option<Loop> {
        let mut command = Command::new("losetup");
        let output = command.args(["--find", "--show"]).args(options).arg(image).output();
        let output = output.ok().filter(|output| output.status.success());
        if output.is_none() {
            eprintln!("not tested: loop devices need root");
        }
        Some(Loop(String::from_utf8(output?.stdout).unwrap().trim_end().into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let status = Command::new("losetup").arg("--detach").arg(&self.0).status();
        assert!(std::thread::panicking() || status.unwrap().success());
    }
}
