//! `hardpack touch`, `chmod` and `chown`: change what is known about a file besides its bytes.
//! Each path is one transaction; a directory with everything below it is one for every few thousand
//! entries.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;

use hardpack_engine::pool::{Attributes, FileOwner, Kind};
use hardpack_engine::{Error, FileId};

use super::names::{named, new_attributes, now_ns};
use crate::address::Address;
use crate::args::{ChmodArgs, ChownArgs, TouchArgs};
use crate::failure::{Cannot, Failure, Reason};
use crate::{globs, signals};

/// The permissions of a new file, before the umask.
const FILE_MODE: u32 = 0o666;
/// The permission bits that `chown` takes away.
const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTES: u32 = 0o010;
/// The most entries changed in one transaction.
const BATCH_COUNT: usize = 4096;

/// What an interrupted command leaves.
const LEFT_BEHIND: &str = "what was changed before stays changed";

/// Returns the umask of this process.
fn umask() -> u32 {
    let mask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(mask);
    mask.bits()
}

pub fn touch(args: &TouchArgs) -> Result<ExitCode, Failure> {
    let time_ns = match (&args.reference, args.date) {
        (Some(reference), _) => time_of(reference)?,
        (None, Some(time_ns)) => time_ns,
        (None, None) => now_ns(),
    };
    for address in &globs::expand(&args.paths, "touch")? {
        set_times(args, address, time_ns).cannot("touch", address)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The time of a file in a pool, or of one of the system.
fn time_of(reference: &OsString) -> Result<i64, Failure> {
    let address = Address::from(reference.clone());
    let read = || {
        if address.is_whole() {
            let metadata = fs::metadata(&address.pool)?;
            let seconds = metadata.mtime().checked_mul(1_000_000_000);
            let ns = seconds.and_then(|ns| ns.checked_add(metadata.mtime_nsec()));
            return Ok::<_, Reason>(ns.unwrap_or(0));
        }
        let opened = address.open(Some(1))?;
        Ok(opened.pool.attributes(opened.entry()?.file)?.modified_ns)
    };
    read().cannot("read the time of", &address)
}

fn set_times(args: &TouchArgs, address: &Address, time_ns: i64) -> Result<(), Reason> {
    let opened = address.open_writable(Some(1))?;
    let pool = &opened.pool;
    let now = now_ns();
    let entry = match pool.resolve(&opened.path) {
        Err(Error::NotFound { .. }) if args.no_create => return Ok(pool.close()?),
        Err(Error::NotFound { .. }) if !address.ends_with_slash() => None,
        _ => Some(opened.entry()?),
    };
    if let Some(entry) = entry {
        if address.ends_with_slash() && entry.kind != Kind::Directory {
            return Err(Error::NotADirectory { name: entry.display_name().to_string() }.into());
        }
        pool.edit(now, |edit| {
            let known = edit.attributes(entry.file)?;
            let (modified_ns, accessed_ns) = (time_ns, time_ns);
            let new = Attributes { modified_ns, accessed_ns, changed_ns: now, ..known };
            edit.set_attributes(entry.file, &new)
        })?;
        return Ok(pool.close()?);
    }
    let (directory, name) = named(&opened)?;
    let new = new_attributes(Kind::File, FILE_MODE & !umask());
    let new = Attributes { modified_ns: time_ns, accessed_ns: time_ns, ..new };
    pool.edit(now, |edit| edit.create(directory, &name, &new))?;
    Ok(pool.close()?)
}

pub fn chmod(args: &ChmodArgs) -> Result<ExitCode, Failure> {
    signals::catch(LEFT_BEHIND);
    let umask = umask();
    for address in &globs::expand(&args.paths, "change the permissions of")? {
        let change = |known: &Attributes| {
            let is_directory = known.kind == Kind::Directory;
            Attributes { mode: args.mode.applied_to(known.mode, is_directory, umask), ..*known }
        };
        change_all(address, args.recursive, &change)
            .cannot("change the permissions of", address)?;
    }
    Ok(ExitCode::SUCCESS)
}

pub fn chown(args: &ChownArgs) -> Result<ExitCode, Failure> {
    signals::catch(LEFT_BEHIND);
    let own: FileOwner = new_attributes(Kind::File, 0).owner.unwrap_or_default();
    for address in &globs::expand(&args.paths, "change the owner of")? {
        let change = |known: &Attributes| {
            let owner = args.owner.applied_to(known.owner, own);
            // As with the system's files, a program does not run with the rights of a new owner
            // that did not ask for it. Without execution for the group, that bit is no such right.
            let group_bit = if known.mode & GROUP_EXECUTES != 0 { SET_GROUP_ID } else { 0 };
            let mode = match known.kind {
                Kind::File => known.mode & !(SET_USER_ID | group_bit),
                _ => known.mode,
            };
            Attributes { owner: Some(owner), mode, ..*known }
        };
        change_all(address, args.recursive, &change).cannot("change the owner of", address)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Changes a file or directory, and with `recursive` everything below it but symbolic links.
fn change_all(
    address: &Address,
    recursive: bool,
    change: &dyn Fn(&Attributes) -> Attributes,
) -> Result<(), Reason> {
    let opened = address.open_writable(Some(1))?;
    let pool = &opened.pool;
    let top = opened.entry()?;
    let now = now_ns();
    let apply = |files: &[FileId]| {
        signals::check()?;
        pool.edit(now, |edit| {
            for file in files {
                let known = match edit.attributes(*file) {
                    // Somebody has removed it since.
                    Err(Error::NotFound { .. }) => continue,
                    known => known?,
                };
                let new = change(&known);
                if new != known {
                    edit.set_attributes(*file, &Attributes { changed_ns: now, ..new })?;
                }
            }
            Ok(())
        })
        .map_err(Reason::from)
    };
    let mut files = vec![top.file];
    if recursive && top.kind == Kind::Directory {
        opened.walk(top.file, &mut |_, entry, _| {
            if entry.kind != Kind::Symlink {
                files.push(entry.file);
            }
            Ok(true)
        })?;
    }
    files.chunks(BATCH_COUNT).try_for_each(apply)?;
    Ok(pool.close()?)
}
