//! `hardpack create`, `mkdir`, `rm`, `mv` and `ln`: what changes names. Each name is one transaction, so what is
//! interrupted has been done in part and leaves a whole pool.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use hardpack_engine::device::FileDevice;
use hardpack_engine::pool::{
    Attributes, CreateOptions, DirEntry, Edit, FileOwner, Kind, Pool, ROOT,
};
use hardpack_engine::{Error, FileId};

use crate::address::{Address, Opened, join, last_name};
use crate::args::{CreateArgs, Given, LnArgs, MkdirArgs, MvArgs, RmArgs};
use crate::failure::{Cannot, Code, Failure, Reason};
use crate::progress::Spinner;
use crate::publish::{self, Unfinished};
use crate::users::Users;
use crate::{pool_file, signals};

/// Sectors of 512 bytes.
const ASHIFT: u8 = 9;
/// The permissions of directories that are made on the way.
pub const DIRECTORY_MODE: u32 = 0o755;
const POOL_MODE: u32 = 0o644;

/// Now, in nanoseconds since 1970.
pub fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// The attributes of something new of ours.
pub fn new_attributes(kind: Kind, mode: u32) -> Attributes {
    let now = now_ns();
    let owner = FileOwner {
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
    };
    Attributes {
        mode,
        owner: Some(owner),
        modified_ns: now,
        changed_ns: now,
        created_ns: now,
        ..Attributes::new(kind, ROOT)
    }
}

pub fn create(args: &CreateArgs) -> Result<ExitCode, Failure> {
    signals::catch();
    create_pool(&args.pool, args.properties.given()).cannot("create", args.pool.display())?;
    Ok(ExitCode::SUCCESS)
}

/// Makes an empty pool, complete before it has its name.
pub fn create_pool(path: &Path, properties: Given) -> Result<(), Reason> {
    publish::refuse_existing(path).map_err(|mut reason| {
        reason.hint = None;
        reason
    })?;
    publish::refuse_sidecars(path)?;
    let unfinished = Unfinished::create(path)?;
    let mut guid = [0; 16];
    getrandom::fill(&mut guid)
        .map_err(|error| Reason::new(Code::Cannot, format!("no random numbers: {error}")))?;
    let create = CreateOptions { guid, ashift: ASHIFT, properties, file_name: None };
    let device = FileDevice::open(unfinished.path())?;
    Pool::create(Arc::new(device), &create, pool_file::options(Some(1)))?.close()?;
    let mask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(mask);
    unfinished.complete(POOL_MODE & !mask.bits(), None)?;
    unfinished.publish(path, false)
}

/// Makes a directory with what is missing above it, and returns it.
pub fn make_directories(pool: &Pool, path: &[u8]) -> Result<FileId, Reason> {
    let mut at = Vec::new();
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".") {
        let parent = pool.resolve(&at)?.file;
        at = join(&at, name);
        match pool.resolve(&at) {
            Err(Error::NotFound { .. }) => {
                let like = new_attributes(Kind::Directory, DIRECTORY_MODE);
                let made = pool.edit(like.changed_ns, |edit| edit.create(parent, name, &like));
                match made {
                    // Somebody else was faster.
                    Err(Error::Exists { .. }) => {}
                    made => made.map(drop)?,
                }
            }
            found => {
                let entry = found?;
                if entry.kind != Kind::Directory {
                    let name = String::from_utf8_lossy(&at).into();
                    return Err(Error::NotADirectory { name }.into());
                }
            }
        }
    }
    Ok(pool.resolve(&at)?.file)
}

pub fn mkdir(args: &MkdirArgs) -> Result<ExitCode, Failure> {
    for address in &args.paths {
        make(args, address).cannot("make", address)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn make(args: &MkdirArgs, address: &Address) -> Result<(), Reason> {
    let opened = address.open_writable(Some(1))?;
    let pool = &opened.pool;
    if args.parents {
        if pool.resolve(&opened.path).is_ok_and(|entry| entry.kind == Kind::Directory) {
            return Ok(pool.close()?);
        }
        let parent = opened.path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        make_directories(pool, &opened.path[..parent])?;
    }
    let (parent, name) = named(&opened)?;
    let like = new_attributes(Kind::Directory, args.mode);
    pool.edit(like.changed_ns, |edit| edit.create(parent, &name, &like))?;
    Ok(pool.close()?)
}

/// The directory and the last name of what a command is to change, which is not the root.
fn named(opened: &Opened) -> Result<(FileId, Vec<u8>), Reason> {
    if last_name(&opened.path).is_none() {
        return Err(Reason::new(Code::Cannot, "it is no name in the pool")
            .hint("name a file or directory in it, as POOL/NAME"));
    }
    let (parent, name) = opened.pool.resolve_parent(&opened.path)?;
    Ok((parent, name.to_vec()))
}

pub fn rm(args: &RmArgs) -> Result<ExitCode, Failure> {
    signals::catch();
    for address in &args.paths {
        remove(args, address).cannot("remove", address)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn remove(args: &RmArgs, address: &Address) -> Result<(), Reason> {
    let opened = address.open_writable(Some(1))?;
    let pool = &opened.pool;
    let found = named(&opened).and_then(|(parent, name)| {
        let entry = opened.link_entry()?;
        Ok((parent, name, entry))
    });
    let (parent, name, entry) = match found {
        Err(_) if args.force && is_missing(pool, &opened.path) => return Ok(pool.close()?),
        found => found?,
    };
    let users = Users::of(&address.pool)?;
    if entry.kind != Kind::Directory {
        hold_last_name(&users, pool, &entry)?;
        pool.edit(now_ns(), |edit| {
            is_still(edit, parent, &name, Some(&entry))?;
            edit.unlink(parent, &name)
        })?;
        users.finish(pool)?;
        return Ok(pool.close()?);
    }
    if !args.recursive {
        return Err(Reason::new(Code::Cannot, "it is a directory")
            .hint("-r removes it with all that is in it"));
    }
    users.hold_all(pool, entry.file)?;
    let spinner = Spinner::new("removing", args.quiet);
    pool.remove_tree(parent, &name, now_ns(), &mut |_| !signals::is_interrupted())?;
    drop(spinner);
    users.finish(pool)?;
    pool.close()?;
    signals::check().map_err(|reason| reason.hint("what was removed until now stays so"))
}

/// Keeps everybody out of a file whose name is to go, where that is its last.
fn hold_last_name(users: &Users, pool: &Pool, entry: &DirEntry) -> Result<(), Reason> {
    let attributes = pool.attributes(entry.file)?;
    let is_kept = attributes.kind == Kind::File && attributes.link_count > 1;
    if is_kept { Ok(()) } else { users.hold_all(pool, entry.file) }
}

/// Refuses where a name no longer stands for what others were kept out of.
fn is_still(
    edit: &mut Edit<'_>,
    directory: FileId,
    name: &[u8],
    old: Option<&DirEntry>,
) -> hardpack_engine::Result<()> {
    let now = edit.lookup(directory, name)?;
    let is_same = now.map(|now| now.file) == old.map(|old| old.file);
    if is_same { Ok(()) } else { Err(Error::Busy) }
}

fn is_missing(pool: &Pool, path: &[u8]) -> bool {
    last_name(path).is_some() && matches!(pool.resolve_link(path), Err(Error::NotFound { .. }))
}

pub fn mv(args: &MvArgs) -> Result<ExitCode, Failure> {
    // The parser asks for two at least.
    let Some((to, from)) = args.paths.split_last() else { return Ok(ExitCode::SUCCESS) };
    let target = to.open_writable(Some(1)).cannot("open", to)?;
    let is_directory =
        target.pool.resolve(&target.path).is_ok_and(|entry| entry.kind == Kind::Directory);
    if !is_directory && (from.len() > 1 || to.ends_with_slash()) {
        return Err(Reason::new(Code::Cannot, "it is not a directory").cannot("move into", to));
    }
    for address in from {
        rename(args, address, to, &target, is_directory).cannot("move", address)?;
    }
    target.pool.close().cannot("close", to)?;
    Ok(ExitCode::SUCCESS)
}

fn rename(
    args: &MvArgs,
    from: &Address,
    to: &Address,
    target: &Opened,
    into: bool,
) -> Result<(), Reason> {
    if fs::canonicalize(&from.pool)? != fs::canonicalize(&to.pool)? {
        return Err(Reason::new(Code::Cannot, "it is in another pool")
            .hint("'hardpack extract --tar' and 'hardpack put --tar' copy between pools"));
    }
    let pool = &target.pool;
    let (directory, name) = pool.resolve_parent(&from.path)?;
    let new = if into && !args.no_target_directory {
        (pool.resolve(&target.path)?.file, name.to_vec())
    } else {
        named(target)?
    };
    let old = pool.lookup_in(new.0, &new.1)?;
    if args.no_clobber && old.is_some() {
        return Ok(());
    }
    let users = Users::of(&to.pool)?;
    let moved = pool.lookup_in(directory, name)?;
    if let Some(old) = old.as_ref().filter(|old| old.kind != Kind::Directory)
        && moved.is_none_or(|moved| moved.file != old.file)
    {
        hold_last_name(&users, pool, old)?;
    }
    pool.edit(now_ns(), |edit| {
        is_still(edit, new.0, &new.1, old.as_ref())?;
        edit.rename((directory, name), (new.0, &new.1))
    })?;
    if old.is_some() { users.finish(pool) } else { Ok(()) }
}

pub fn ln(args: &LnArgs) -> Result<ExitCode, Failure> {
    link(args).cannot("make", &args.path)?;
    Ok(ExitCode::SUCCESS)
}

fn link(args: &LnArgs) -> Result<(), Reason> {
    use std::os::unix::ffi::OsStrExt;
    let opened = args.path.open_writable(Some(1))?;
    let pool = &opened.pool;
    let target = Address::from(args.target.clone());
    let last = if args.symbolic { args.target.as_bytes() } else { &target.path };
    // As with mv, an existing directory is what the link goes into.
    let is_directory = pool.resolve(&opened.path).is_ok_and(|e| e.kind == Kind::Directory);
    let (parent, name) = match last_name(last) {
        Some(name) if is_directory => (pool.resolve(&opened.path)?.file, name.to_vec()),
        _ => named(&opened)?,
    };
    let now = now_ns();
    let existing = if args.symbolic {
        None
    } else {
        if fs::canonicalize(&target.pool)? != fs::canonicalize(&args.path.pool)? {
            let text = "a hard link cannot lead to another pool";
            return Err(Reason::new(Code::Cannot, text));
        }
        Some(pool.resolve_link(&target.path)?.file)
    };
    let users = Users::of(&args.path.pool)?;
    let there = pool.lookup_in(parent, &name)?.filter(|old| old.kind != Kind::Directory);
    let replaced = there.as_ref().filter(|old| args.force && existing != Some(old.file));
    if let Some(old) = replaced {
        hold_last_name(&users, pool, old)?;
    }
    pool.edit(now, |edit| {
        if replaced.is_some() {
            is_still(edit, parent, &name, replaced)?;
        }
        let old = edit.lookup(parent, &name)?.filter(|old| old.kind != Kind::Directory);
        if args.force && old.is_some() && there.is_none() {
            return Err(Error::Busy);
        }
        if let Some(old) = old.filter(|_| args.force) {
            if existing == Some(old.file) {
                return Ok(());
            }
            edit.unlink(parent, &name)?;
        }
        match existing {
            Some(file) => edit.link(file, parent, &name),
            None => {
                let like = new_attributes(Kind::Symlink, 0o777);
                edit.symlink(parent, &name, args.target.as_bytes(), &like).map(drop)
            }
        }
    })?;
    if replaced.is_some() {
        users.finish(pool)?;
    }
    Ok(pool.close()?)
}
