//! `hardpack import`: archives and images made by their own tools, hostile ones made here, and
//! databases made by other extensions.
//!
//! Every tool must be there: a test that skips what it cannot make proves nothing.

mod archives;
mod databases;
mod hostile;
mod zips;

#[path = "../common/mod.rs"]
mod common;

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

/// Runs a tool in a directory, which must succeed.
fn tool(directory: &Path, name: &str, arguments: &[&str]) {
    let arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
    let done = Command::new(name).current_dir(directory).args(arguments).output();
    let done = done.unwrap_or_else(|error| panic!("{name}: {error}: `make test` installs it"));
    let stderr = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{name}: {stderr}");
}

/// The names in a directory, which must hold nothing that an import left there.
fn names_in(directory: &Path) -> Vec<String> {
    let names = common::names_beside(&directory.join("x"));
    assert!(!names.iter().any(|name| name.starts_with(".hardpack-")), "{names:?}");
    names
}
