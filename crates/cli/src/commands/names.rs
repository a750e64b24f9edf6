//! `hardpack create`, `mkdir`, `rm`, `mv` and `ln`: the commands that change names. Each name is
//! one transaction, so an interrupted command has done a part of its work and leaves the pool
//! consistent.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use hardpack_engine::Ashift;
use hardpack_engine::device::FileDevice;
use hardpack_engine::pool::{
    Attributes, CreateOptions, DirEntry, Edit, FileOwner, Kind, Pool, ROOT,
};
use hardpack_engine::{Error, FileId};

use crate::address::{Address, Opened, join, last_name};
use crate::args::{CreateArgs, Given, LnArgs, MkdirArgs, MvArgs, RmArgs};
use crate::failure::{Cannot, Code, Failure, Passage, Reason};
use crate::progress::Spinner;
use crate::publish::{self, Unfinished};
use crate::users::{Users, behind_databases};
use crate::{globs, near, pool_file, signals, text};

/// Sectors of 512 bytes.
const ASHIFT: Ashift = Ashift::MIN;
/// The permissions of parent directories made implicitly.
pub const DIRECTORY_MODE: u32 = 0o755;
/// The permissions of a new pool, before the mask of the process.
pub const POOL_MODE: u32 = 0o644;

/// The current time, in nanoseconds since 1970.
pub fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// The attributes of a new entry owned by the current user.
pub fn new_attributes(kind: Kind, mode: u32) -> Attributes {
    let now = now_ns();
    Attributes {
        mode,
        owner: Some(own()),
        modified_ns: now,
        changed_ns: now,
        created_ns: now,
        ..Attributes::new(kind, ROOT)
    }
}

/// The current user and group.
pub fn own() -> FileOwner {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    FileOwner { uid, gid }
}

/// The permissions that new files of this process do not get.
pub fn umask() -> u32 {
    let mask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(mask);
    mask.bits()
}

pub fn create(args: &CreateArgs) -> Result<ExitCode, Failure> {
    signals::catch(signals::NOTHING);
    create_pool(&args.pool, args.properties.given()).cannot("create", text::path(&args.pool))?;
    Ok(ExitCode::SUCCESS)
}

/// Makes an empty pool under a temporary name, and renames it when it is complete.
pub fn create_pool(path: &Path, properties: Given) -> Result<(), Reason> {
    publish::refuse_existing(path, false).map_err(|mut reason| {
        reason.hint = None;
        reason
    })?;
    publish::refuse_sidecars(path)?;
    let unfinished = Unfinished::create(path)?;
    make_pool(unfinished.path(), properties)?;
    unfinished.complete(POOL_MODE & !umask(), None)?;
    unfinished.publish(path, false)?;
    // It is only where the work begins.
    signals::files().finished = None;
    Ok(())
}

/// Makes a new, empty pool, unless somebody else makes it at the same time. Returns whether it did.
pub fn create_missing_pool(path: &Path, properties: Given) -> Result<bool, Reason> {
    match create_pool(path, properties) {
        Err(_) if fs::symlink_metadata(path).is_ok() => Ok(false),
        done => done.map(|()| true),
    }
}

/// Makes an empty pool of an empty file.
pub fn make_pool(path: &Path, properties: Given) -> Result<(), Reason> {
    let mut guid = [0; 16];
    getrandom::fill(&mut guid)
        .map_err(|error| Reason::new(Code::Cannot, format!("no random numbers: {error}")))?;
    let create = CreateOptions { guid, ashift: ASHIFT, properties, file_name: None, file_mode: 0 };
    let device = FileDevice::open(path)?;
    Ok(Pool::create(Arc::new(device), &create, pool_file::options(Some(1)))?.close()?)
}

/// Makes a directory and its missing parents, and returns it.
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
                    // Another process was faster.
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
    pool.edit(like.changed_ns, |edit| {
        let made = edit.create(parent, &name, &like)?;
        edit.set_properties(made, &args.properties.given)
    })?;
    Ok(pool.close()?)
}

/// Returns the directory and the last name of the path to change; refuses the root.
pub fn named(opened: &Opened) -> Result<(FileId, Vec<u8>), Reason> {
    if last_name(&opened.path).is_none() {
        return Err(Reason::new(Code::Cannot, "it is no name in the pool")
            .hint("name a file or directory in it, as POOL/NAME"));
    }
    let (parent, name) = opened.parent()?;
    Ok((parent, name.to_vec()))
}

pub fn rm(args: &RmArgs) -> Result<ExitCode, Failure> {
    signals::catch("the files removed so far stay removed");
    let paths = match args.force {
        true => globs::expand_any(&args.paths, "remove")?,
        false => globs::expand(&args.paths, "remove")?,
    };
    let (paths, count) = behind_databases(paths);
    for (index, address) in paths.iter().enumerate() {
        let may_be_missing = args.force || index >= count;
        remove(args, address, may_be_missing).cannot("remove", address)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn remove(args: &RmArgs, address: &Address, may_be_missing: bool) -> Result<(), Reason> {
    let opened = address.open_writable(Some(1))?;
    let pool = &opened.pool;
    let found = named(&opened).and_then(|(parent, name)| {
        let entry = opened.link_entry()?;
        Ok((parent, name, entry))
    });
    let (parent, name, entry) = match found {
        Err(_) if may_be_missing && is_missing(pool, &opened.path) => return Ok(pool.close()?),
        found => found?,
    };
    let users = Users::of(&address.pool)?;
    if entry.kind != Kind::Directory {
        hold_last_name(&users, pool, &entry)?;
        let refused = Passage::default();
        let unlink = |edit: &mut Edit<'_>, keeps: bool| {
            is_still(edit, &users, parent, &name, Some(&entry))?;
            // Another name of the database may still be used.
            if edit.attributes(entry.file)?.link_count <= 1 {
                users.clear_companions(pool, edit, (parent, &name))?;
            }
            match keeps {
                true => drop(edit.unlink_open(parent, &name)?),
                false => edit.unlink(parent, &name)?,
            }
            Ok(())
        };
        let mut done = pool.edit(now_ns(), |edit| refused.pass(unlink(edit, false)));
        // On a full disk, to note all that becomes free may take more than there is. Then it loses
        // its name first, and what it holds part by part.
        if matches!(done, Err(Error::NoSpace)) {
            done = pool.edit(now_ns(), |edit| refused.pass(unlink(edit, true)));
            if done.is_ok() {
                let _ = pool.remove_leftovers();
            }
        }
        done.map_err(|error| refused.reason(error))?;
        users.finish(pool)?;
        return Ok(pool.close()?);
    }
    if !args.recursive {
        return Err(Reason::new(Code::Cannot, "it is a directory")
            .hint("-r removes it with everything in it"));
    }
    let spinner = Spinner::new("removing", args.quiet);
    users.remove(pool, parent, &entry, now_ns())?;
    drop(spinner);
    users.finish(pool)?;
    pool.close()?;
    signals::check().map_err(|reason| reason.hint("the files removed so far stay removed"))
}

/// Takes exclusive hold of a file if the name to remove is its last.
pub fn hold_last_name(users: &Users, pool: &Pool, entry: &DirEntry) -> Result<(), Reason> {
    let attributes = pool.attributes(entry.file)?;
    let is_kept = attributes.kind == Kind::File && attributes.link_count > 1;
    if is_kept { Ok(()) } else { users.hold_all(pool, entry.file) }
}

/// Fails if a name no longer leads to the file that is held, or if it has become the last name of
/// one that is not.
fn is_still(
    edit: &mut Edit<'_>,
    users: &Users,
    directory: FileId,
    name: &[u8],
    old: Option<&DirEntry>,
) -> hardpack_engine::Result<()> {
    let now = edit.lookup(directory, name)?;
    if now.map(|now| now.file) != old.map(|old| old.file) {
        return Err(Error::Busy);
    }
    let Some(old) = old.filter(|old| old.kind != Kind::Directory && !users.holds(old.file)) else {
        return Ok(());
    };
    let attributes = edit.attributes(old.file)?;
    if attributes.link_count > 1 { Ok(()) } else { Err(Error::Busy) }
}

/// Changes names in one transaction, like [`Pool::edit`]; what fails says why to people.
fn with_reason(
    pool: &Pool,
    change: impl FnOnce(&mut Edit<'_>) -> Result<(), Reason>,
) -> Result<(), Reason> {
    let refused = Passage::default();
    let done = pool.edit(now_ns(), |edit| refused.pass(change(edit)));
    done.map_err(|error| refused.reason(error))
}

fn is_missing(pool: &Pool, path: &[u8]) -> bool {
    last_name(path).is_some() && matches!(pool.resolve_link(path), Err(Error::NotFound { .. }))
}

pub fn mv(args: &MvArgs) -> Result<ExitCode, Failure> {
    // The parser requires at least two.
    let Some((to, from)) = args.paths.split_last() else { return Ok(ExitCode::SUCCESS) };
    let (from, count) = behind_databases(globs::expand(from, "move")?);
    let target = to.open_writable(Some(1)).cannot("open", to)?;
    let is_directory =
        target.pool.resolve(&target.path).is_ok_and(|entry| entry.kind == Kind::Directory);
    if !is_directory && (from.len() > 1 || to.ends_with_slash()) {
        return Err(Reason::new(Code::Cannot, "it is not a directory").cannot("move into", to));
    }
    for (index, address) in from.iter().enumerate() {
        if index < count || !is_missing(&target.pool, &address.path) {
            rename(args, address, to, &target, is_directory).cannot("move", address)?;
        }
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
            .hint("'hardpack cp' copies between pools"));
    }
    let pool = &target.pool;
    let (directory, name) = near::resolve_parent(pool, &target.shown, &from.path)?;
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
    with_reason(pool, |edit| {
        let moved = edit.lookup(directory, name)?;
        // Of two names of one file, nothing is taken away.
        let file = moved.as_ref().map(|moved| moved.file);
        if file.is_none() || file != old.as_ref().map(|old| old.file) {
            is_still(edit, &users, new.0, &new.1, old.as_ref())?;
        }
        if let Some(moved) = moved {
            users.hold_from_mounts(pool, directory, &moved)?;
        }
        users.move_with_companions(pool, edit, (directory, name), (new.0, &new.1))
    })?;
    if old.is_some() {
        return users.finish(pool);
    }
    users.tell_cleared();
    Ok(())
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
    // As with mv, the link goes into an existing directory.
    let is_directory = pool.resolve(&opened.path).is_ok_and(|e| e.kind == Kind::Directory);
    let (parent, name) = match last_name(last) {
        Some(name) if is_directory => (pool.resolve(&opened.path)?.file, name.to_vec()),
        _ => named(&opened)?,
    };
    let existing = if args.symbolic {
        None
    } else {
        if fs::canonicalize(&target.pool)? != fs::canonicalize(&args.path.pool)? {
            let text = "a hard link cannot lead to a file in another pool";
            return Err(Reason::new(Code::Cannot, text));
        }
        Some(near::resolve_link(pool, &opened.shown, &target.path)?.file)
    };
    let users = Users::of(&args.path.pool)?;
    let there = pool.lookup_in(parent, &name)?.filter(|old| old.kind != Kind::Directory);
    let replaced = there.as_ref().filter(|old| args.force && existing != Some(old.file));
    if let Some(old) = replaced {
        hold_last_name(&users, pool, old)?;
    }
    with_reason(pool, |edit| {
        if replaced.is_some() {
            is_still(edit, &users, parent, &name, replaced)?;
        }
        let old = edit.lookup(parent, &name)?.filter(|old| old.kind != Kind::Directory);
        if args.force && old.is_some() && there.is_none() {
            return Err(Error::Busy.into());
        }
        if old.is_none() || replaced.is_some() {
            users.clear_companions(pool, edit, (parent, &name))?;
        }
        if let Some(old) = old.filter(|_| args.force) {
            if existing == Some(old.file) {
                return Ok(());
            }
            edit.unlink(parent, &name)?;
        }
        match existing {
            Some(file) => edit.link(file, parent, &name)?,
            None => {
                let like = new_attributes(Kind::Symlink, 0o777);
                edit.symlink(parent, &name, args.target.as_bytes(), &like)?;
            }
        }
        Ok(())
    })?;
    match replaced {
        Some(_) => users.finish(pool)?,
        None => users.tell_cleared(),
    }
    Ok(pool.close()?)
}
