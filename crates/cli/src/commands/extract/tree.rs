//! Extracts a directory of the pool with everything below it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use hardpack_engine::FileId;
use hardpack_engine::pool::{Attributes, DirEntry, Kind};

use super::place::{Place, is_directory, is_file, is_same_file, is_same_special, is_symlink};
use crate::address::{Opened, join};
use crate::args::ExtractArgs;
use crate::commands::unpack::Writer;
use crate::contents::{self, Restart};
use crate::failure::{Code, Reason};
use crate::pool_file::is_database;
use crate::sqlite::LOG_ENDINGS;
use crate::summary::Account;
use crate::{signals, text};

/// Files up to this length, in bytes, are written by one thread each; longer ones one after the
/// other, with all threads.
const SMALL_LEN: u64 = 2 << 20;
/// The most files that wait for a thread.
const QUEUE_LEN: usize = 256;

/// A file to be written.
struct Task {
    place: Arc<Place>,
    name: Vec<u8>,
    file: FileId,
    attributes: Attributes,
    /// The path in the pool.
    path: Vec<u8>,
}

/// Another name of a file met before.
struct Link {
    first: Vec<u8>,
    path: Vec<u8>,
}

/// Work to do when all files are written.
#[derive(Default)]
struct Later {
    /// The path, relative to the top, of the first name of each file with several names.
    first_names: HashMap<FileId, Vec<u8>>,
    links: Vec<Link>,
    directories: Vec<(Vec<u8>, FileId, Attributes)>,
}

impl Later {
    /// Whether another name of the file came before. If so, notes that this one becomes a link.
    fn is_further_name(&mut self, file: FileId, attributes: &Attributes, path: &[u8]) -> bool {
        if attributes.link_count < 2 {
            return false;
        }
        if let Some(first) = self.first_names.get(&file).cloned() {
            self.links.push(Link { first, path: path.to_vec() });
            return true;
        }
        self.first_names.insert(file, path.to_vec());
        false
    }
}

pub struct Tree<'t> {
    args: &'t ExtractArgs,
    opened: &'t Opened,
    top: &'t Place,
    account: &'t Account,
    set_owner: bool,
}

impl<'t> Tree<'t> {
    pub fn new(
        args: &'t ExtractArgs,
        opened: &'t Opened,
        top: &'t Place,
        account: &'t Account,
    ) -> Tree<'t> {
        let is_root = rustix::process::geteuid().is_root();
        let set_owner = args.owner || is_root && !args.no_owner;
        Tree { args, opened, top, account, set_owner }
    }

    /// Writes the contents of a directory into the top.
    pub fn contents(&self, path: &[u8], directory: FileId) -> Result<(), Reason> {
        let mut later = Later::default();
        let attributes = self.opened.pool.attributes(directory)?;
        self.with_threads(|queue| self.below(path, directory, b"", queue, &mut later))?;
        later.directories.insert(0, (Vec::new(), directory, attributes));
        self.complete(&later)
    }

    /// Writes one entry into the top, with everything below it if it is a directory.
    pub fn one(&self, path: &[u8], entry: &DirEntry, name: &[u8]) -> Result<(), Reason> {
        let mut later = Later::default();
        let attributes = self.opened.pool.attributes(entry.file)?;
        self.with_threads(|queue| {
            let top = self.top.again()?;
            self.entry(&Arc::new(top), name, path, name, entry, &attributes, queue, &mut later)?;
            if entry.kind == Kind::Directory && self.top.enter(name).is_ok() {
                self.below(path, entry.file, name, queue, &mut later)?;
            }
            Ok(())
        })?;
        self.complete(&later)
    }

    /// Runs `work` alongside the threads that write files, and waits for them.
    fn with_threads(
        &self,
        work: impl FnOnce(&SyncSender<Task>) -> Result<(), Reason>,
    ) -> Result<(), Reason> {
        let (sender, receiver) = sync_channel::<Task>(QUEUE_LEN);
        let receiver: Arc<Mutex<Receiver<Task>>> = Arc::new(Mutex::new(receiver));
        std::thread::scope(|scope| {
            for _ in 0..self.opened.pool.options().threads().max(1) {
                let receiver = Arc::clone(&receiver);
                std::thread::Builder::new().spawn_scoped(scope, move || {
                    loop {
                        let task = receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
                        let Ok(task) = task else { return };
                        // After an interrupt, queued files are dropped.
                        if !signals::is_interrupted() {
                            self.write(&task);
                        }
                    }
                })?;
            }
            let done = work(&sender);
            drop(sender);
            done
        })?;
        signals::check()
    }

    /// Writes everything below a directory to the path `inside` below the top.
    fn below(
        &self,
        path: &[u8],
        directory: FileId,
        inside: &[u8],
        queue: &SyncSender<Task>,
        later: &mut Later,
    ) -> Result<(), Reason> {
        let first = match inside {
            b"" => self.top.again()?,
            name => self.top.enter(name)?,
        };
        // The open directories on the way down, with their paths.
        let mut above: Vec<(Vec<u8>, Arc<Place>)> = vec![(Vec::new(), Arc::new(first))];
        self.opened.walk(directory, &mut |inner, entry, attributes| {
            signals::check()?;
            let parent =
                inner.iter().rposition(|byte| *byte == b'/').map_or(&[][..], |at| &inner[..at]);
            while above.len() > 1 && above.last().is_some_and(|(last, _)| last != parent) {
                above.pop();
            }
            let Some((_, place)) = above.last() else { return Ok(false) };
            let (from, to) = (join(path, inner), join(inside, inner));
            let made =
                self.entry(place, &entry.name, &from, &to, entry, attributes, queue, later)?;
            let is_made = made.is_some();
            above.extend(made.map(|place| (inner.to_vec(), Arc::new(place))));
            Ok(is_made)
        })
    }

    /// Starts extracting one entry. Returns the new directory if it is one.
    #[expect(clippy::too_many_arguments, reason = "all differ from entry to entry")]
    fn entry(
        &self,
        place: &Arc<Place>,
        name: &[u8],
        path: &[u8],
        to: &[u8],
        entry: &DirEntry,
        attributes: &Attributes,
        queue: &SyncSender<Task>,
        later: &mut Later,
    ) -> Result<Option<Place>, Reason> {
        let failed = |reason: Reason| self.account.failed(&self.opened.shown_at(path), &reason);
        match entry.kind {
            Kind::Directory => match place.make(name) {
                Ok((made, _)) => {
                    later.directories.push((to.to_vec(), entry.file, *attributes));
                    self.account.note(|done| done.directories += 1);
                    return Ok(Some(made));
                }
                Err(error) => failed(error.into()),
            },
            Kind::Symlink => {
                let target = contents::link_target(self.opened, entry.file, path);
                match target.and_then(|target| self.symlink(place, name, &target, attributes)) {
                    Ok(()) => self.account.note(|done| done.symlinks += 1),
                    Err(reason) => failed(reason),
                }
            }
            Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => {
                if later.is_further_name(entry.file, attributes, to) {
                    return Ok(None);
                }
                match self.special_file(place, name, entry.file, attributes) {
                    Ok(lost) => self.account.note(|done| {
                        done.special_files += 1;
                        done.xattrs_lost += lost;
                    }),
                    Err(reason) => failed(reason),
                }
            }
            Kind::File => {
                if later.is_further_name(entry.file, attributes, to) {
                    return Ok(None);
                }
                let (place, name, path) = (Arc::clone(place), name.to_vec(), path.to_vec());
                let task = Task { place, name, file: entry.file, attributes: *attributes, path };
                if attributes.len > SMALL_LEN {
                    self.write(&task);
                } else if queue.send(task).is_err() {
                    return Err(Reason::new(Code::Cannot, "a writing thread stopped"));
                }
            }
        }
        Ok(None)
    }

    fn symlink(
        &self,
        place: &Place,
        name: &[u8],
        target: &[u8],
        attributes: &Attributes,
    ) -> Result<(), Reason> {
        self.may_replace(place, name, Kind::Symlink)?;
        place.refuse_in_use(name)?;
        place.symlink(name, target, self.replaces())?;
        Ok(place.describe_link(name, attributes, self.set_owner)?)
    }

    /// Makes a special file. Returns the number of extended attributes not set.
    fn special_file(
        &self,
        place: &Place,
        name: &[u8],
        file: FileId,
        attributes: &Attributes,
    ) -> Result<u64, Reason> {
        let there = place.stat(name)?;
        if !(self.replaces() && there.is_some_and(|stat| is_same_special(&stat, attributes))) {
            self.may_replace(place, name, attributes.kind)?;
            place.refuse_in_use(name)?;
            place.make_special(name, attributes, self.replaces()).map_err(|error| {
                let is_refused = error.kind() == io::ErrorKind::PermissionDenied;
                match attributes.kind.is_device() && is_refused {
                    true => Reason::new(Code::Cannot, "only root may make the node of a device"),
                    false => error.into(),
                }
            })?;
        }
        let xattrs = self.opened.pool.xattrs(file)?;
        Ok(place.describe_special(name, attributes, &xattrs, self.set_owner)?)
    }

    fn replaces(&self) -> bool {
        self.args.force || self.args.update
    }

    /// Fails if an entry of this name exists and must not be replaced by one of this kind: pipes,
    /// devices and directories never are, and symbolic links only by others.
    fn may_replace(&self, place: &Place, name: &[u8], by: Kind) -> Result<(), Reason> {
        let refused = |text: String| Err(Reason::new(Code::Cannot, text));
        match place.stat(name)? {
            Some(stat) if is_directory(&stat) => refused("a directory of that name exists".into()),
            Some(_) if !self.replaces() => Err(Reason::new(Code::Cannot, "it already exists")
                .hint("--force replaces files, --update only those that differ")),
            Some(stat) if is_file(&stat) || is_symlink(&stat) && by == Kind::Symlink => Ok(()),
            Some(stat) => {
                let what = if is_symlink(&stat) { "symbolic link" } else { "pipe or device" };
                refused(format!("a {what} of that name exists, which is never replaced by a file"))
            }
            None => Ok(()),
        }
    }

    fn write(&self, task: &Task) {
        match self.try_write(task) {
            Ok(Some(len)) => self.account.wrote(&task.path, len),
            Ok(None) => self.account.note(|done| done.unchanged += 1),
            Err(reason) if reason.code == Code::Interrupted => {}
            Err(reason) => self.account.failed(&self.opened.shown_at(&task.path), &reason),
        }
    }

    /// Writes a file under a temporary name and renames it. Returns its length, or `None` if it is
    /// up to date already.
    fn try_write(&self, task: &Task) -> Result<Option<u64>, Reason> {
        contents::following(self.opened, task.file, &task.path, &|_| true, |file| {
            let attributes = match file == task.file {
                true => task.attributes,
                false => self.opened.pool.attributes(file)?,
            };
            self.write_file(task, file, &attributes)
        })
    }

    fn write_file(
        &self,
        task: &Task,
        file: FileId,
        attributes: &Attributes,
    ) -> Result<Option<u64>, Reason> {
        let there = task.place.stat(&task.name)?;
        if self.args.update && there.is_some_and(|stat| is_same_file(&stat, attributes)) {
            return Ok(None);
        }
        self.may_replace(&task.place, &task.name, Kind::File)?;
        self.refuse_logs(task)?;
        let beside = task.place.beside()?;
        let writer = RefCell::new(Writer::over(beside.file.try_clone()?));
        let mut begin = |len| writer.borrow_mut().begin(len);
        let xattrs = self.opened.pool.xattrs(file)?;
        contents::read(
            self.opened,
            file,
            &task.path,
            Restart::Possible,
            &mut begin,
            &mut |piece| {
                signals::check()?;
                writer.borrow_mut().put(piece)
            },
        )?;
        let len = writer.into_inner().finish()?.len;
        let lost = beside.describe(attributes, &xattrs, self.set_owner)?;
        self.account.note(|done| done.xattrs_lost += lost);
        beside.publish(&task.name, self.replaces())?;
        Ok(Some(len))
    }

    /// Refuses a database if a log or journal of another one has its name, unless the pool has one
    /// as well, which will replace it.
    fn refuse_logs(&self, task: &Task) -> Result<(), Reason> {
        let pool = &self.opened.pool;
        for ending in LOG_ENDINGS {
            let of = |name: &[u8]| [name, ending.as_bytes()].concat();
            if task.place.is_unsettled(&of(&task.name))?
                && is_database(&*pool.file(task.file)?)?
                && pool.resolve_link(&of(&task.path)).is_err()
            {
                let log = text::escaped(&of(&task.name));
                let what = format!("'{log}' exists, and SQLite would apply it");
                return Err(Reason::new(Code::Cannot, what)
                    .hint("it belongs to another database; move it away first"));
            }
        }
        Ok(())
    }

    /// Makes hard links, and then sets the metadata of directories, the deepest first.
    fn complete(&self, later: &Later) -> Result<(), Reason> {
        for link in &later.links {
            signals::check()?;
            match self.link(link) {
                Ok(true) => self.account.note(|done| done.hard_links += 1),
                Ok(false) => self.account.note(|done| done.unchanged += 1),
                Err(reason) => self.account.failed(&link.path, &reason),
            }
        }
        for (path, file, attributes) in later.directories.iter().rev() {
            let xattrs = self.opened.pool.xattrs(*file)?;
            let described = self
                .place_at(path)
                .and_then(|place| place.describe(attributes, &xattrs, self.set_owner));
            match described {
                Ok(lost) => self.account.note(|done| done.xattrs_lost += lost),
                Err(error) => self.account.failed(path, &error.into()),
            }
        }
        Ok(())
    }

    /// Makes a hard link. Returns whether it is new.
    fn link(&self, link: &Link) -> Result<bool, Reason> {
        let (from, from_name) = self.directory_of(&link.first)?;
        let (to, name) = self.directory_of(&link.path)?;
        let of = |place: &Place, name: &[u8]| {
            let stat = place.stat(name)?.filter(|stat| !is_directory(stat));
            Ok::<_, io::Error>(stat.map(|stat| (stat.st_dev, stat.st_ino)))
        };
        let first = of(&from, from_name)?;
        if first.is_some() && first == of(&to, name)? {
            return Ok(false);
        }
        self.may_replace(&to, name, Kind::File)?;
        to.refuse_in_use(name)?;
        to.link(&from, from_name, name, self.replaces())?;
        Ok(true)
    }

    /// Opens the directory of a path below the top, and splits off the last name.
    fn directory_of<'n>(&self, path: &'n [u8]) -> io::Result<(Place, &'n [u8])> {
        let at = path.iter().rposition(|byte| *byte == b'/');
        let (directory, name) = path.split_at(at.map_or(0, |at| at + 1));
        Ok((self.place_at(directory)?, name))
    }

    fn place_at(&self, path: &[u8]) -> io::Result<Place> {
        let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        names.fold(self.top.again(), |place, name| place?.enter(name))
    }
}
