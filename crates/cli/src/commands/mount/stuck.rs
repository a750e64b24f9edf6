//! Servers that were killed and cannot end.
//!
//! A server tells the kernel of names that others have changed. For that the kernel waits for
//! programs that are changing something in the same directory, and they wait for the server. If it
//! is killed just then, the thread that has told the kernel never ends, and with it stays the
//! connection, so that the mount neither answers nor is dead. Only who ends the connection ends
//! that.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal};

/// The device through which file systems are served, as descriptors name it.
const DEVICE: &str = "/dev/fuse";
/// What the kernel says of the descriptor of a connection, followed by its number (since Linux
/// 6.14).
const CONNECTION: &str = "fuse_connection:";

/// Whether the server of a connection was killed, and has a thread that cannot end.
pub fn is_stuck(connection: &str) -> bool {
    let (dead, living): (Vec<_>, Vec<_>) = servers(connection).partition(|path| is_dead(path));
    // Another mount may have got the number since one with a server like that was taken away.
    !dead.is_empty() && living.is_empty()
}

/// Whether a server of a connection is stopped, by a signal or a debugger.
pub fn is_stopped(connection: &str) -> bool {
    servers(connection).any(|path| has_state(&path, "tT"))
}

/// Kills the servers of a connection. Returns whether there are any, and all of them may be killed.
pub fn end_servers(connection: &str) -> bool {
    let mut found = servers(connection).peekable();
    found.peek().is_some() && found.all(|path| kill(&path).is_some())
}

/// Returns the servers of a connection, as far as this user and this kernel tell.
pub fn open_servers(connection: &str) -> Vec<OwnedFd> {
    servers(connection).filter_map(|path| super::open_process(number_of(&path)?)).collect()
}

fn kill(process: &Path) -> Option<()> {
    rustix::process::kill_process(number_of(process)?, Signal::KILL).ok()
}

fn number_of(process: &Path) -> Option<Pid> {
    Pid::from_raw(process.file_name()?.to_str()?.parse().ok()?)
}

/// The processes that serve a connection, as their directories in `/proc`.
fn servers(connection: &str) -> impl Iterator<Item = PathBuf> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.map(|process| process.path()).filter(move |path| {
        // The first thread of a dead process has no descriptors any more.
        threads(path).any(|thread| serves(&thread, connection))
    })
}

/// Whether the first thread of a process has ended.
fn is_dead(process: &Path) -> bool {
    has_state(process, "Z")
}

/// Whether a process has one of these states, which the kernel names by letters.
fn has_state(process: &Path, states: &str) -> bool {
    let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
    // The name in parentheses may be anything.
    let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
    state.is_some_and(|state| states.contains(state))
}

/// The threads that a process has left.
fn threads(process: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(process.join("task")).into_iter().flatten().flatten().map(|thread| thread.path())
}

/// Whether a thread has a connection open.
fn serves(thread: &Path, connection: &str) -> bool {
    let descriptors = fs::read_dir(thread.join("fd")).into_iter().flatten().flatten();
    let is_its = |descriptor: fs::DirEntry| {
        let is_fuse = fs::read_link(descriptor.path()).is_ok_and(|to| to == Path::new(DEVICE));
        let text = fs::read_to_string(thread.join("fdinfo").join(descriptor.file_name()));
        is_fuse && text.is_ok_and(|text| has_number(&text, connection))
    };
    descriptors.into_iter().any(is_its)
}

fn has_number(text: &str, connection: &str) -> bool {
    let mut numbers = text.lines().filter_map(|line| line.strip_prefix(CONNECTION));
    numbers.any(|number| number.trim() == connection)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_told_apart() {
        let text = "pos:\t0\nflags:\t02100002\nfuse_connection:\t40\n";
        assert!(has_number(text, "40"));
        assert!(
            !has_number(text, "4") && !has_number(text, "0") && !has_number("pos:\t40\n", "40")
        );
    }

    #[test]
    fn who_lives_or_has_ended_is_not_stuck() {
        assert!(!is_dead(Path::new("/proc/self")));
        assert!(!is_stuck("no connection"));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let path = PathBuf::from(format!("/proc/{}", child.id()));
        while !is_dead(&path) {
            std::thread::yield_now();
        }
        assert!(threads(&path).count() <= 1);
        child.wait().unwrap();
        assert!(!is_dead(&path));
    }
}
