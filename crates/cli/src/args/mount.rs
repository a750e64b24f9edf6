//! The flags of `mount` and `umount`.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::{Args as ClapArgs, ValueHint};

use super::address;
use crate::address::Address;

const MOUNT_HELP: &str = "\
DIR shows what is in the pool, or in a directory or snapshot of it, to any program. Written data is \
compressed and committed within 5 seconds, or at once when a program calls fsync; small files and \
new names are committed within milliseconds. After a crash, names are as they were at one moment, \
and everything that was synced is there.

Other commands, databases and mounts can use the pool meanwhile. A database that is open for \
writing here cannot be opened as a pool, nor by another mount, until it is closed, and the other way \
round. The snapshots of the pool are in DIR/.hardpack/snapshots.

Options for -o, separated by commas: ro, rw, noexec, nosuid, nodev, dev (device nodes can be opened, \
if root mounts it), noatime, allow_other, uid=N and gid=N (the owner of files about which the pool \
says nothing), failmode=continue (the default) and failmode=stop: what happens when the pool file \
cannot be written. With both, the writer gets an error and reads go on; with 'stop', all further \
changes are refused until the pool is mounted again. locks=local or locks=pool: whether locks of \
programs (flock, fcntl) exclude only those of this mount, which is the default, or also those of \
other mounts with locks=pool, which makes a lock slower.

To mount at boot, make /sbin/mount.hardpack a link to this program, and write in /etc/fstab:
  /data/archive.hpk  /mnt/archive  hardpack  ro,allow_other  0  0

Examples:
  hardpack mount archive.hpk /mnt
  hardpack mount archive.hpk/photos@monday /mnt
  hardpack mount -o ro,noexec --allow-other archive.hpk /mnt
  hardpack umount /mnt";

#[derive(Debug, ClapArgs)]
#[command(after_help = MOUNT_HELP)]
pub struct MountArgs {
    /// The pool, or a directory or snapshot in it
    #[arg(value_name = "POOL[/PATH][@SNAPSHOT]", value_parser = address())]
    pub pool: Address,
    /// The directory to mount it on
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub directory: PathBuf,
    /// Stay in the foreground, until somebody unmounts it or presses Ctrl-C
    #[arg(long, short)]
    pub foreground: bool,
    /// Options, as for mount(8)
    #[arg(long, short, value_name = "OPTION", value_delimiter = ',')]
    pub options: Vec<String>,
    /// Let other users see it; permissions decide what they may do
    #[arg(long)]
    pub allow_other: bool,
    /// First unmount what a mount that has died left on DIR
    #[arg(long)]
    pub replace: bool,
    /// The number of requests that are served at once [default: one per processor, at least 2]
    #[arg(long, short = 'j', value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,
    /// Say on standard output when the mount is there, and leave the session of the caller
    #[arg(long, hide = true)]
    pub serve: bool,
}

#[derive(Debug, ClapArgs)]
pub struct UmountArgs {
    /// The directory on which a pool is mounted
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub directory: PathBuf,
    /// Take it away even if programs use it; it ends when they are done
    #[arg(long, short)]
    pub lazy: bool,
    /// Take it away if its server does not answer: programs get errors, what was not synced is lost
    #[arg(long, short, conflicts_with = "lazy")]
    pub force: bool,
    /// Say on standard output what is mounted on DIR, for the process that must not wait for it
    #[arg(long, hide = true)]
    pub look: bool,
}

/// The name by which mount(8) calls this program for entries of fstab.
const HELPER: &str = "mount.hardpack";

/// Translates the arguments of mount(8).
pub fn from_fstab(given: Vec<OsString>) -> Vec<OsString> {
    if given.first().and_then(|name| Path::new(name).file_name()) != Some(OsStr::new(HELPER)) {
        return given;
    }
    let mut arguments = given.into_iter().skip(1);
    let mut translated: Vec<OsString> = vec!["hardpack".into(), "mount".into()];
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("-o") => {
                translated.push("--options".into());
                translated.extend(arguments.next());
            }
            // Sloppy, fake, no mtab, verbose: nothing to do.
            Some("-s" | "-f" | "-n" | "-v" | "-sv") => {}
            Some("-t" | "-N") => drop(arguments.next()),
            _ => translated.push(argument),
        }
    }
    translated
}
