//! `hardpack cp`: copies files and directories of a pool. Within a pool a copy is a clone, which
//! shares its data with the source; each is one transaction. Between pools, content is read and
//! compressed again.

use std::collections::HashMap;
use std::fs;
use std::process::ExitCode;

use hardpack_engine::FileId;
use hardpack_engine::pool::{Attributes, CloneSource, DirEntry, Edit, Import, Kind, Pool, ROOT};

use super::names::{hold_last_name, named, now_ns, own};
use crate::address::{Address, Opened, join};
use crate::args::CpArgs;
use crate::contents::{self, Piece, Restart};
use crate::failure::{Cannot, Code, Failure, Passage, Reason};
use crate::settling::{Settling, settle_databases};
use crate::users::{Users, behind_databases, tell_left_behind};
use crate::{globs, pool_file, signals};

/// The permission bits without those that change whose rights a program has.
const PLAIN_MODE: u32 = 0o1777;

pub fn run(args: &CpArgs) -> Result<ExitCode, Failure> {
    signals::catch("what was copied before is complete");
    // The parser requires at least two.
    let Some((to, from)) = args.paths.split_last() else { return Ok(ExitCode::SUCCESS) };
    let (from, _) = behind_databases(globs::expand(from, "copy")?);
    let is_directory = {
        let target = to.open_writable(Some(1)).cannot("open", to)?;
        let found = target.pool.resolve(&target.path);
        found.is_ok_and(|entry| entry.kind == Kind::Directory)
    };
    if !is_directory && (from.len() > 1 || to.ends_with_slash()) {
        return Err(Reason::new(Code::Cannot, "it is not a directory").cannot("copy into", to));
    }
    let into = is_directory && !args.no_target_directory;
    for address in &from {
        copy(args, address, to, into).cannot("copy", address)?;
        signals::check().cannot("copy", address)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn copy(args: &CpArgs, from: &Address, to: &Address, into: bool) -> Result<(), Reason> {
    if fs::canonicalize(&from.pool)? != fs::canonicalize(&to.pool)? {
        return copy_across(args, from, to, into);
    }
    let is_live = {
        let pool = pool_file::open_read_only(&from.pool, Some(1))?;
        from.find_snapshot(&pool)?.is_none()
    };
    if is_live {
        settle_databases(&from.pool, &from.path, Settling::Copied)?;
    }
    let target = to.open_writable(Some(1))?;
    let pool = &target.pool;
    let found = from.find_snapshot(pool)?;
    let source = match &found {
        Some(found) => target.in_snapshot(found)?,
        None => target.at(&from.path),
    };
    let entry = source_entry(args, &source)?;
    let Some(place) = Place::find(args, &target, &entry, into)? else { return Ok(pool.close()?) };
    if is_live && place.old.as_ref().is_some_and(|old| old.file == entry.file) {
        return Err(Reason::new(Code::Cannot, "the source and the destination are the same file"));
    }
    let users = Users::of(&to.pool)?;
    if let Some(old) = &place.old {
        hold_last_name(&users, pool, old)?;
    }
    let mut clone = CloneSource {
        snapshot: found.as_ref().map(|found| (found.scope, &found.name[..])),
        file: entry.file,
        new_owner: (!args.is_preserving()).then(own),
        properties: &[],
        replaced: place.old.as_ref().map(|old| old.file),
        keeps_replaced: place.old.as_ref().is_some_and(|old| !users.holds(old.file)),
    };
    let replaced = clone.replaced;
    let may_follow = |other| entry.kind == Kind::File && replaced != Some(other);
    contents::following(&source, entry.file, &from.path, &may_follow, |file| {
        signals::check()?;
        clone.file = file;
        clone_to(pool, &users, &clone, (place.directory, &place.name))
    })?;
    match place.old {
        Some(_) => users.finish(pool)?,
        None => users.tell_cleared(),
    }
    tell_left_behind(&source.pool, clone.file, &|_| false);
    Ok(pool.close()?)
}

/// Clones something to a name, for which nothing of its old content is left then.
pub fn clone_to(
    pool: &Pool,
    users: &Users,
    source: &CloneSource<'_>,
    (directory, name): (FileId, &[u8]),
) -> Result<(), Reason> {
    let refused = Passage::default();
    let mut change =
        |edit: &mut Edit<'_>| refused.pass(users.clear_companions(pool, edit, (directory, name)));
    let done = pool.clone_with_names(source, directory, name, now_ns(), &mut change);
    done.map(drop).map_err(|error| refused.reason(error))
}

/// Finds the source; a directory only with `-r`.
fn source_entry(args: &CpArgs, source: &Opened) -> Result<DirEntry, Reason> {
    let entry = if args.is_recursive() { source.link_entry()? } else { source.entry()? };
    if entry.kind == Kind::Directory && !args.is_recursive() {
        return Err(Reason::new(Code::Cannot, "it is a directory")
            .hint("-r copies it with everything in it"));
    }
    Ok(entry)
}

/// The destination of a copy.
struct Place {
    directory: FileId,
    name: Vec<u8>,
    /// The file to replace.
    old: Option<DirEntry>,
}

impl Place {
    /// Returns `None` if the file is there and stays.
    fn find(
        args: &CpArgs,
        target: &Opened,
        entry: &DirEntry,
        into: bool,
    ) -> Result<Option<Place>, Reason> {
        let (directory, name) = match into {
            true if entry.name.is_empty() => {
                return Err(Reason::new(Code::Cannot, "it is a whole pool, without a name")
                    .hint("name what to copy in it, such as POOL/*; -T gives the copy a name"));
            }
            true => (target.entry()?.file, entry.name.clone()),
            false => named(target)?,
        };
        let old = target.pool.lookup_in(directory, &name)?;
        if old.is_some() && args.no_clobber {
            return Ok(None);
        }
        let is_directory = |entry: &DirEntry| entry.kind == Kind::Directory;
        match &old {
            Some(old) if is_directory(old) || is_directory(entry) => {
                let what = if is_directory(old) { "directory" } else { "file" };
                let text = format!(
                    "there is a {what} '{}' already",
                    crate::text::escaped(&target.shown_at(&match into {
                        true => join(&target.path, &name),
                        false => target.path.clone(),
                    }))
                );
                Err(Reason::new(Code::Cannot, text).hint(
                    "directories are not merged, nor replaced by files: remove it first, or copy \
                     under another name",
                ))
            }
            _ => Ok(Some(Place { directory, name, old })),
        }
    }
}

/// Copies the bytes into another pool.
fn copy_across(args: &CpArgs, from: &Address, to: &Address, into: bool) -> Result<(), Reason> {
    let source = from.open(None)?;
    let entry = source_entry(args, &source)?;
    let target = to.open_writable(None)?;
    let pool = &target.pool;
    let Some(place) = Place::find(args, &target, &entry, into)? else { return Ok(pool.close()?) };
    let users = Users::of(&to.pool)?;
    users.begin_import(pool)?;
    if let Some(old) = &place.old {
        hold_last_name(&users, pool, old)?;
    }
    let now_ns = now_ns();
    let mut transfer = Transfer { args, source: &source, now_ns, names: HashMap::new() };
    let mut import = pool.import(now_ns);
    users.guard(pool, &mut import);
    transfer.all(&mut import, &entry, &place)?;
    let report = import.finish()?;
    if let Some(refused) = report.refused.first() {
        let mut reason = users.reason_of(refused);
        let path = crate::text::escaped(&refused.path);
        reason.text = format!("'{path}' was refused: {}", reason.text);
        return Err(reason);
    }
    match place.old {
        Some(_) => users.finish(pool)?,
        None => users.tell_cleared(),
    }
    tell_left_behind(&source.pool, entry.file, &|_| false);
    Ok(pool.close()?)
}

/// A copy from one pool into another.
struct Transfer<'t> {
    args: &'t CpArgs,
    source: &'t Opened,
    now_ns: i64,
    /// The first copied name of each file that has several.
    names: HashMap<FileId, (FileId, Vec<u8>)>,
}

impl Transfer<'_> {
    fn all(
        &mut self,
        import: &mut Import<'_>,
        entry: &DirEntry,
        place: &Place,
    ) -> Result<(), Reason> {
        let source = self.source;
        let top = self.one(import, entry, &source.path, (place.directory, &place.name))?;
        let Some(top) = top else { return Ok(()) };
        // The directories on the way down, each with its path below the first.
        let mut above: Vec<(Vec<u8>, FileId)> = vec![(Vec::new(), top)];
        source.walk(entry.file, &mut |path, entry, _| {
            signals::check()?;
            let slash = path.iter().rposition(|byte| *byte == b'/');
            let parent = slash.map_or(&[][..], |at| &path[..at]);
            while above.len() > 1 && above.last().is_some_and(|(last, _)| last != parent) {
                above.pop();
            }
            let directory = above.last().map_or(top, |(_, directory)| *directory);
            let full = join(&source.path, path);
            let made = self.one(import, entry, &full, (directory, &entry.name))?;
            above.extend(made.map(|made| (path.to_vec(), made)));
            Ok(true)
        })
    }

    /// Copies one entry, and returns the directory that it became.
    fn one(
        &mut self,
        import: &mut Import<'_>,
        entry: &DirEntry,
        path: &[u8],
        (parent, name): (FileId, &[u8]),
    ) -> Result<Option<FileId>, Reason> {
        let pool = &self.source.pool;
        let known = pool.attributes(entry.file)?;
        let new = self.attributes(&known);
        let xattrs = pool.xattrs(entry.file)?;
        match entry.kind {
            Kind::Directory => return Ok(Some(import.directory(parent, name, &new, &xattrs)?)),
            Kind::Symlink => {
                import.symlink(parent, name, &new, &pool.link_target(entry.file)?)?;
                return Ok(None);
            }
            Kind::File => {}
            Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => {}
        }
        if let Some((first, first_name)) = self.names.get(&entry.file) {
            import.hard_link((*first, first_name), parent, name)?;
            return Ok(None);
        }
        if known.link_count > 1 {
            self.names.insert(entry.file, (parent, name.to_vec()));
        }
        if entry.kind.is_special() {
            import.special_file(parent, name, &new, &xattrs)?;
            return Ok(None);
        }
        import.begin_file(parent, name, &new, &xattrs)?;
        let mut begin = contents::once();
        let mut sink = |piece: Piece<'_>| {
            signals::check()?;
            match piece {
                Piece::Bytes(bytes) => import.write(bytes)?,
                Piece::Hole(len) => import.write_zeros(len)?,
            }
            Ok(())
        };
        let done = contents::read(
            self.source,
            entry.file,
            path,
            Restart::Impossible,
            &mut begin,
            &mut sink,
        );
        match done {
            Ok(()) => import.end_file()?,
            Err(reason) => {
                import.abandon_file()?;
                return Err(match path == self.source.path {
                    true => reason,
                    false => reason.about(&crate::address::os_path(path.to_vec())),
                });
            }
        }
        Ok(None)
    }

    fn attributes(&self, known: &Attributes) -> Attributes {
        let base = Attributes { link_count: 1, parent: ROOT, len: 0, ..*known };
        if self.args.is_preserving() {
            return base;
        }
        let now = self.now_ns;
        Attributes {
            mode: known.mode & PLAIN_MODE,
            owner: Some(own()),
            modified_ns: now,
            accessed_ns: 0,
            changed_ns: now,
            created_ns: now,
            ..base
        }
    }
}
