//! Loss of power under a mount.
//!
//! Random requests go to a [`Tree`] whose pool lies on the engine's simulated disk, and the commits
//! of the background come at random moments. The recording of the disk is cut at every write and
//! sync. Then the pool opens, a check finds nothing wrong, and:
//!
//! * names and attributes are as they were after one request, and not before the last sync that
//!   covered them;
//! * the bytes of each file are those of one moment, not before its last sync, and not before it
//!   was last moved over another file;
//! * if writes and syncs failed before, what was lost with a group is not there in part.
//!
//! `make test` tries some cuts of some seeds. To try many more:
//!
//! ```text
//! HARDPACK_MOUNT_CRASH_STATES=500000 \
//!     cargo test --release -p hardpack-mount power_loss -- --nocapture
//! ```
//!
//! A failure names the seed; `HARDPACK_MOUNT_CRASH_SEED` sets the first one.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use fuser::RenameFlags;
use hardpack_engine::pool::{Group, Kind, Pool, ROOT};
use hardpack_engine::{FileId, Txg};

use super::model::{Model, Names, Shown, XATTR, read_names};
use super::{HANDLE, OWNER, mount_with, new_device, wanted};
use crate::errno::{Answer, Refusal};
use crate::listing::Listings;
use crate::test_common::faults::{Faults, Kind as FaultKind};
use crate::test_common::sim_device::{Disk, Op, SimDevice};
use crate::test_common::{Rng, env_number, options, problems, read_all};
use crate::tree::{Access, Allocation, Change, Existing, Requester, Tree};
use crate::{FailMode, attributes};

const BY_ROOT: Requester = Requester { uid: 0, gid: 0, process: 0 };

/// The number of cuts in a run of the tests.
const STATES_DEFAULT: u64 = 3000;
/// The number of requests in a run.
const STEP_COUNT: usize = 150;
/// How many cuts of a run are tried.
const CUTS_OF_A_RUN: u64 = 250;
/// The time at which a run begins, in nanoseconds since 1970.
const BEGIN_NS: i64 = 1_700_000_000_000_000_000;

/// How a recording is changed, like a disk that breaks its promises.
type Mutate = fn(&mut Vec<Op>);

/// What happened in a step.
#[derive(Clone, Debug)]
struct Step {
    what: String,
    /// The length of the recording when it was done.
    trace_len: usize,
    /// The last commit when it was done.
    txg: Txg,
    /// What it made durable.
    durable: Durable,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Durable {
    Nothing,
    /// All names, and the bytes of a file.
    File(FileId),
    /// All names, and the bytes of all files.
    All,
}

/// A mounted directory in use.
struct Run {
    rng: Rng,
    device: Arc<SimDevice>,
    pool: Pool,
    tree: Arc<Tree>,
    listings: Listings,
    directory: u64,
    model: Model,
    steps: Vec<Step>,
    /// How often each file is open.
    open: BTreeMap<FileId, u64>,
    faults: Option<Faults>,
    losses: u64,
    had_loss: bool,
    mounts: u64,
    /// The first state that can still be found, as far as names are concerned.
    durable_from: usize,
}

/// Counts of what was tried.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    cuts: u64,
    images: u64,
    /// Cuts after which the names were older than the last request.
    older: u64,
    /// Runs in which groups were lost.
    losses: u64,
    /// How often a pool was mounted.
    mounts: u64,
}

impl Tally {
    fn add(&mut self, other: Tally) {
        self.cuts += other.cuts;
        self.images += other.images;
        self.older += other.older;
        self.losses += other.losses;
        self.mounts += other.mounts;
    }
}

fn text(error: hardpack_engine::Error) -> String {
    error.to_string()
}

fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() }
}

fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

impl Run {
    fn new(seed: u64, has_faults: bool) -> Run {
        let device = new_device();
        attributes::set_test_time(BEGIN_NS);
        let (pool, tree) = mount_with(&device, FailMode::Continue).expect("the pool opens");
        let listings = Listings::default();
        let directory = listings.open(&tree, ROOT);
        let faults = has_faults.then(Faults::default);
        device.set_fault(faults.clone().map(|faults| Box::new(faults) as _));
        Run {
            rng: Rng(seed),
            device,
            pool,
            tree,
            listings,
            directory,
            model: Model::new(),
            steps: Vec::new(),
            open: BTreeMap::new(),
            faults,
            losses: 0,
            had_loss: false,
            mounts: 1,
            durable_from: 0,
        }
    }

    /// Makes all requests.
    fn work(&mut self) -> Result<(), String> {
        for _ in 0..STEP_COUNT {
            attributes::set_test_time(BEGIN_NS + self.steps.len() as i64 * 20_000_000);
            self.arm();
            let (what, done) = self.step();
            if let Some(faults) = &self.faults {
                faults.disarm();
            }
            let step = self.model.step();
            let durable = match &done {
                Ok(durable) => durable.clone(),
                Err(_) if self.faults.is_some() => Durable::Nothing,
                Err(refusal) => return Err(format!("step {step}, {what}: {refusal:?}")),
            };
            if self.faults.is_some() {
                let settled = self.settle();
                settled.map_err(|error| format!("step {step}, {what}: {done:?}: {error}"))?;
            }
            if matches!(done, Err(Refusal::Engine(hardpack_engine::Error::FailStop))) {
                self.mount_again()?;
            }
            if durable != Durable::Nothing {
                self.durable_from = step;
            }
            self.model.end_step();
            let (trace_len, txg) = (self.device.trace_len(), self.pool.txg());
            self.steps.push(Step { what, trace_len, txg, durable });
        }
        Ok(())
    }

    /// Goes on as after `hardpack mount --replace`: nothing is open, and what was not committed is
    /// gone.
    fn mount_again(&mut self) -> Result<(), String> {
        (self.pool, self.tree) = mount_with(&self.device, FailMode::Continue).map_err(text)?;
        self.listings = Listings::default();
        self.directory = self.listings.open(&self.tree, ROOT);
        self.open.clear();
        self.mounts += 1;
        self.losses = 0;
        self.settle()
    }

    fn arm(&mut self) {
        let Some(faults) = &self.faults else { return };
        if self.rng.one_in(4) {
            let kinds = [
                FaultKind::WriteError,
                FaultKind::TornWrite,
                FaultKind::NoSpace,
                FaultKind::LengthError,
                FaultKind::SyncError,
            ];
            let (kind, countdown) = (self.rng.pick(&kinds), 1 + self.rng.below(6));
            faults.arm(kind, countdown, self.device.image_len(), self.rng.fork());
        } else {
            // Nothing of this kind ever happens.
            faults.arm(FaultKind::Lie, u64::MAX, 0, self.rng.fork());
        }
    }

    /// After a fault, takes over what is left: names as they were at one moment since the last
    /// sync, bytes that the file has had.
    fn settle(&mut self) -> Result<(), String> {
        let losses = self.tree.group().losses();
        let is_new_loss = std::mem::replace(&mut self.losses, losses) != losses;
        self.had_loss |= is_new_loss;
        let now = self.model.step();
        self.model.end_step();
        let found = self.tree.group().view(|view| read_names(view, ROOT)).map_err(text)?;
        let (_, state) = self.model.find_state(&found, self.durable_from..=now)?;
        // A commit that was reported as lost may have reached the disk after all.
        if state != now && !self.had_loss {
            return Err(format!("the names are those of step {state}, but none were lost"));
        }
        self.model.undo_end_step();
        self.model.names = found;
        let names = self.model.names.clone();
        let ids: HashSet<FileId> = names.values().map(|it| it.id).collect();
        let gone: Vec<_> = self.open.keys().copied().filter(|id| !ids.contains(id)).collect();
        if is_new_loss {
            // They may have lost their file, or just have no name.
            for id in gone {
                for _ in 0..self.open.remove(&id).unwrap_or(0) {
                    let _ = self.tree.close(id, Access::Write);
                }
            }
        }
        for (path, it) in &names {
            if it.kind != Kind::File {
                continue;
            }
            let bytes = self.tree.read(it.id, 0, 4 << 20);
            let bytes = bytes.map_err(|error| format!("'{}': {error:?}", shown(path)))?;
            if *bytes != *self.model.bytes(it.id) {
                self.model.check_bytes(it.id, &bytes, 0..=now, 0)?;
                self.model.set_bytes(it.id, bytes);
            }
        }
        Ok(())
    }

    /// Returns a directory: its path and number.
    fn any_directory(&mut self) -> (Vec<u8>, FileId) {
        let paths = self.model.paths(|it| it.kind == Kind::Directory);
        let index = self.rng.below(paths.len() as u64 + 2) as usize;
        match paths.get(index) {
            Some(path) => (path.clone(), self.model.names[path].id),
            None => (Vec::new(), ROOT),
        }
    }

    /// Returns a place: the path of the directory and its number, and a name in it.
    fn any_place(&mut self) -> (Vec<u8>, FileId, Vec<u8>) {
        let (path, id) = self.any_directory();
        let name = vec![b'a' + self.rng.below(7) as u8];
        (join(&path, &name), id, name)
    }

    fn parent_of(&self, path: &[u8]) -> (FileId, Vec<u8>) {
        match path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (self.model.names[&path[..at]].id, path[at + 1..].to_vec()),
            None => (ROOT, path.to_vec()),
        }
    }

    fn any_path(&mut self, wanted: impl Fn(&Shown) -> bool) -> Option<Vec<u8>> {
        let paths = self.model.paths(wanted);
        (!paths.is_empty()).then(|| paths[self.rng.below(paths.len() as u64) as usize].clone())
    }

    /// Returns a file that has a name or is open.
    fn any_file(&mut self) -> Option<FileId> {
        if self.rng.one_in(2) && !self.open.is_empty() {
            let index = self.rng.below(self.open.len() as u64) as usize;
            return self.open.keys().nth(index).copied();
        }
        let path = self.any_path(|it| it.kind == Kind::File)?;
        Some(self.model.names[&path].id)
    }

    /// Makes one request, or what the background does.
    fn step(&mut self) -> (String, Answer<Durable>) {
        loop {
            let tried = match self.rng.below(24) {
                0..=2 => self.create(),
                3..=6 => self.write(),
                7 => self.truncate(),
                8 => self.punch(),
                9..=11 => self.rename(),
                12 => self.link(),
                13..=14 => self.unlink(),
                15 => self.make_directory_or_link(),
                16 => self.remove_directory(),
                17 => self.set_attributes(),
                18 => self.open_or_close(),
                19..=20 => self.sync_file(),
                21 => Some(self.sync_directory()),
                _ => Some(self.background()),
            };
            if let Some(done) = tried {
                return done;
            }
        }
    }

    fn create(&mut self) -> Option<(String, Answer<Durable>)> {
        let (path, directory, name) = self.any_place();
        if self.model.names.contains_key(&path) {
            return None;
        }
        let what = format!("create {}", shown(&path));
        let mode = 0o600 + self.rng.below(8) as u32;
        let new = match self.tree.create((directory, &name), wanted(mode), Some(Access::Write)) {
            Ok(new) => new,
            Err(error) => return Some((what, Err(error))),
        };
        let id = self.tree.inodes().file(new.0.ino);
        self.note_new(path, id, Kind::File, mode, Vec::new());
        self.open.insert(id, 1);
        Some((what, Ok(Durable::Nothing)))
    }

    fn note_new(&mut self, path: Vec<u8>, id: FileId, kind: Kind, mode: u32, target: Vec<u8>) {
        let accessed_ns = attributes::now();
        let link_count = 1;
        let uid = OWNER.uid;
        let xattr = Vec::new();
        let new = Shown { id, kind, mode, uid, link_count, accessed_ns, xattr, target };
        self.model.names.insert(path, new);
        if kind == Kind::File {
            self.model.set_bytes(id, Vec::new());
        }
    }

    fn make_directory_or_link(&mut self) -> Option<(String, Answer<Durable>)> {
        let (path, directory, name) = self.any_place();
        if self.model.names.contains_key(&path) {
            return None;
        }
        let is_link = self.rng.one_in(2);
        let (kind, mode, target) = match is_link {
            true => (Kind::Symlink, 0, b"to/nowhere".to_vec()),
            false => (Kind::Directory, 0o700, Vec::new()),
        };
        let place = (directory, &name[..]);
        let what = format!("make {kind:?} {}", shown(&path));
        let made = match is_link {
            true => self.tree.make_symlink(place, &target, OWNER),
            false => self.tree.make_directory(place, wanted(mode)),
        };
        let done = made.and_then(|new| {
            let id = self.tree.inodes().file(new.ino);
            let mode = self.tree.group().view(|view| view.attributes(id))?.mode & 0o7777;
            self.note_new(path, id, kind, mode, target);
            Ok(Durable::Nothing)
        });
        Some((what, done))
    }

    fn write(&mut self) -> Option<(String, Answer<Durable>)> {
        let id = self.any_file()?;
        let is_open = self.open.contains_key(&id);
        if !is_open && let Err(error) = self.tree.open(id, Access::Write, 0) {
            return Some((format!("open {id:?}"), Err(error)));
        }
        let len = match self.rng.below(12) {
            0 => 900_000,
            1..=3 => 150_000,
            _ => 1 + self.rng.below(9000) as usize,
        };
        let mut bytes = self.model.bytes(id).to_vec();
        let at = self.rng.below(bytes.len() as u64 + 5000).min(1 << 20) as usize;
        let new = self.rng.content(len);
        bytes.resize(bytes.len().max(at + len), 0);
        bytes[at..at + len].copy_from_slice(&new);
        let what = format!("write {id:?} {at}+{len}");
        let mut done = Ok(());
        // As the kernel does: by the megabyte, or the page.
        let piece = if self.rng.one_in(3) { 4096 } else { 1 << 20 };
        for (index, part) in new.chunks(piece).enumerate() {
            done = done.and_then(|()| self.tree.write(id, part, (at + index * piece) as u64));
        }
        if done.is_ok() {
            self.model.set_bytes(id, bytes);
        }
        if !is_open {
            let closed =
                self.tree.flush(id, HANDLE).and_then(|()| self.tree.close(id, Access::Write));
            done = done.and(closed);
        }
        Some((what, done.map(|()| Durable::Nothing)))
    }

    fn truncate(&mut self) -> Option<(String, Answer<Durable>)> {
        let id = self.any_file()?;
        let mut bytes = self.model.bytes(id).to_vec();
        let len = match self.rng.below(3) {
            0 => 0,
            1 => self.rng.below(bytes.len() as u64 + 1),
            _ => bytes.len() as u64 + self.rng.below(20_000),
        };
        bytes.resize(len as usize, 0);
        let change = Change { len: Some(len), ..Change::default() };
        let done = self.tree.change(id, change);
        if done.is_ok() {
            self.model.set_bytes(id, bytes);
        }
        Some((format!("set length of {id:?} to {len}"), done.map(|_| Durable::Nothing)))
    }

    fn punch(&mut self) -> Option<(String, Answer<Durable>)> {
        let id = self.any_file()?;
        let mut bytes = self.model.bytes(id).to_vec();
        let at = self.rng.below(bytes.len() as u64 + 1) as usize;
        let len = 1 + self.rng.below(200_000) as usize;
        let end = bytes.len().min(at + len);
        bytes[at..end].fill(0);
        let done = self.tree.allocate(id, at as u64, len as u64, Allocation::Punch);
        if done.is_ok() {
            self.model.set_bytes(id, bytes);
        }
        Some((format!("punch {id:?} {at}+{len}"), done.map(|()| Durable::Nothing)))
    }

    fn rename(&mut self) -> Option<(String, Answer<Durable>)> {
        let from = self.any_path(|_| true)?;
        let moved = self.model.names[&from].clone();
        let (to, to_directory, to_name) = self.any_place();
        let is_below = to.starts_with(&[&from[..], b"/"].concat());
        let is_above = from.starts_with(&[&to[..], b"/"].concat());
        if to == from || is_below || is_above {
            return None;
        }
        let (directory, name) = self.parent_of(&from);
        let old = self.model.names.get(&to).cloned();
        let exchanges = old.is_some() && self.rng.one_in(4);
        let flags = match exchanges {
            true => RenameFlags::RENAME_EXCHANGE,
            false => RenameFlags::empty(),
        };
        let is_directory = |it: &Shown| it.kind == Kind::Directory;
        if let Some(old) = &old {
            let both = is_directory(old) || is_directory(&moved);
            if !exchanges && (both || old.id == moved.id) {
                return None;
            }
        }
        let what = format!("rename {} {} {flags:?}", shown(&from), shown(&to));
        let (from_place, to_place) = ((directory, &name[..]), (to_directory, &to_name[..]));
        let done = self.tree.rename(from_place, to_place, flags);
        if done.is_ok() {
            if exchanges {
                let (first, second) =
                    (self.model.move_all(&from, &to), self.model.move_all(&to, &from));
                self.model.names.extend(first.into_iter().chain(second));
            } else {
                if let Some(old) = old {
                    self.model.unlink(&to);
                    if moved.kind == Kind::File && old.id != moved.id {
                        self.model.replaces(moved.id);
                    }
                }
                let moved = self.model.move_all(&from, &to);
                self.model.names.extend(moved);
            }
        }
        Some((what, done.map(|()| Durable::Nothing)))
    }

    fn link(&mut self) -> Option<(String, Answer<Durable>)> {
        let path = self.any_path(|it| it.kind == Kind::File)?;
        let id = self.model.names[&path].id;
        let (to, directory, name) = self.any_place();
        if self.model.names.contains_key(&to) {
            return None;
        }
        let done = self.tree.link(id, (directory, &name));
        if done.is_ok() {
            self.model.change(id, |it| it.link_count += 1);
            let linked = self.model.names[&path].clone();
            self.model.names.insert(to.clone(), linked);
        }
        Some((format!("link {} {}", shown(&path), shown(&to)), done.map(|_| Durable::Nothing)))
    }

    fn unlink(&mut self) -> Option<(String, Answer<Durable>)> {
        let path = self.any_path(|it| it.kind != Kind::Directory)?;
        let (directory, name) = self.parent_of(&path);
        let done = self.tree.unlink((directory, &name));
        if done.is_ok() {
            self.model.unlink(&path);
        }
        Some((format!("unlink {}", shown(&path)), done.map(|()| Durable::Nothing)))
    }

    fn remove_directory(&mut self) -> Option<(String, Answer<Durable>)> {
        let path = self.any_path(|it| it.kind == Kind::Directory)?;
        let below = [&path[..], b"/"].concat();
        if self.model.names.keys().any(|other| other.starts_with(&below)) {
            return None;
        }
        let (directory, name) = self.parent_of(&path);
        let done = self.tree.remove_directory((directory, &name));
        if done.is_ok() {
            self.model.names.remove(&path);
        }
        Some((format!("remove directory {}", shown(&path)), done.map(|()| Durable::Nothing)))
    }

    fn set_attributes(&mut self) -> Option<(String, Answer<Durable>)> {
        let path = self.any_path(|it| it.kind != Kind::Symlink)?;
        let id = self.model.names[&path].id;
        let what = format!("attributes of {}", shown(&path));
        let number = self.rng.below(1000);
        let done = match self.rng.below(3) {
            0 => {
                let value = format!("note {number}").into_bytes();
                let done = self.tree.set_xattr(id, XATTR, &value, Existing::Any, BY_ROOT);
                if done.is_ok() {
                    self.model.change(id, |it| it.xattr.clone_from(&value));
                }
                done
            }
            1 => {
                let mode = 0o400 + number as u32 % 64;
                let change = Change { mode: Some(mode), uid: Some(9), ..Change::default() };
                let done = self.tree.change(id, change);
                if done.is_ok() {
                    self.model.change(id, |it| (it.mode, it.uid) = (mode, 9));
                }
                done.map(drop)
            }
            _ => {
                let accessed_ns = BEGIN_NS / 2 + number as i64;
                let change = Change { accessed_ns: Some(accessed_ns), ..Change::default() };
                let done = self.tree.change(id, change);
                if done.is_ok() {
                    self.model.change(id, |it| it.accessed_ns = accessed_ns);
                }
                done.map(drop)
            }
        };
        Some((what, done.map(|()| Durable::Nothing)))
    }

    fn open_or_close(&mut self) -> Option<(String, Answer<Durable>)> {
        if self.rng.one_in(3) {
            let path = self.any_path(|it| it.kind == Kind::File)?;
            let id = self.model.names[&path].id;
            let done = self.tree.open(id, Access::Write, 0);
            if done.is_ok() {
                *self.open.entry(id).or_default() += 1;
            }
            return Some((format!("open {id:?}"), done.map(|_| Durable::Nothing)));
        }
        let index = self.rng.below(self.open.len() as u64) as usize;
        let id = *self.open.keys().nth(index)?;
        match self.open.get_mut(&id) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(self.open.remove(&id)),
        }
        let flushed = self.tree.flush(id, HANDLE);
        let closed = self.tree.close(id, Access::Write);
        Some((format!("close {id:?}"), flushed.and(closed).map(|()| Durable::Nothing)))
    }

    fn sync_file(&mut self) -> Option<(String, Answer<Durable>)> {
        let id = self.any_file()?;
        Some((format!("fsync {id:?}"), self.tree.sync(id, HANDLE).map(|()| Durable::File(id))))
    }

    fn sync_directory(&mut self) -> (String, Answer<Durable>) {
        let done = self.listings.sync(&self.tree, self.directory);
        ("fsync of the directory".into(), done.map(|()| Durable::All))
    }

    /// Does what the flusher would do by now.
    fn background(&mut self) -> (String, Answer<Durable>) {
        match self.rng.below(8) {
            0 => {
                let done = self.tree.sync_all().map_err(Refusal::from);
                ("commit everything".into(), done.map(|()| Durable::All))
            }
            _ => {
                let due = self.tree.flusher().take_due();
                let done = self.tree.publish(&due).map_err(Refusal::from);
                ("commit the group".into(), done.map(|()| Durable::Nothing))
            }
        }
    }
}

/// A run whose recording can be cut.
struct Recording {
    base: Vec<u8>,
    trace: Vec<Op>,
    model: Model,
    steps: Vec<Step>,
    losses: u64,
    mounts: u64,
    base_txg: Txg,
}

fn record(seed: u64, has_faults: bool) -> Result<Recording, String> {
    let mut run = Run::new(seed, has_faults);
    let (base, base_txg) = (run.device.image(), run.pool.txg());
    run.work()?;
    let trace = run.device.take_trace();
    // The mount is not closed: its power fails.
    let losses = u64::from(run.had_loss);
    let (model, steps, mounts) = (run.model, run.steps, run.mounts);
    Ok(Recording { base, trace, model, steps, losses, mounts, base_txg })
}

impl Recording {
    /// Cuts the power after this many operations, and looks at what is left. Returns whether the
    /// names were older than the last finished request.
    fn verify(&self, cut: usize, image: Vec<u8>, has_faults: bool) -> Result<bool, String> {
        let pool = Pool::open(SimDevice::new(image), options(1 << 20)).map_err(text)?;
        if let Some(problem) = problems(&pool).map_err(text)?.first() {
            return Err(problem.clone());
        }
        let finished = self.steps.partition_point(|step| step.trace_len <= cut);
        // State `n` is that after `steps[n - 1]`.
        let newest = (finished + 1).min(self.steps.len());
        let names_from = self.last_synced(finished, |durable| *durable != Durable::Nothing);
        let states = match has_faults {
            true => names_from..=newest,
            // The number of the commit tells which request made it, or found it made.
            false => {
                let made = self.steps.partition_point(|step| step.txg < pool.txg()) + 1;
                let of_base = pool.txg() <= self.base_txg;
                let oldest = if of_base { 0 } else { made - 1 };
                // A sync may have found nothing left to commit.
                names_from.max(oldest)..=newest.min(made.max(names_from))
            }
        };
        let group = Group::new(pool.clone());
        let found = group.view(|view| read_names(view, ROOT)).map_err(text)?;
        let (first, last) = self.model.find_state(&found, states)?;
        self.check_files(&pool, &found, first, finished)?;
        Ok(last < finished)
    }

    /// Returns the last of the finished steps that made durable what is asked for.
    fn last_synced(&self, finished: usize, covers: impl Fn(&Durable) -> bool) -> usize {
        let last = self.steps[..finished].iter().rposition(|step| covers(&step.durable));
        last.map_or(0, |at| at + 1)
    }

    fn check_files(
        &self,
        pool: &Pool,
        found: &Names,
        state: usize,
        finished: usize,
    ) -> Result<(), String> {
        for (path, it) in found.iter().filter(|(_, it)| it.kind == Kind::File) {
            let file = pool.file(it.id).map_err(text)?;
            let bytes = read_all(&file).map_err(text)?;
            let covers =
                |durable: &Durable| *durable == Durable::All || *durable == Durable::File(it.id);
            let from = self.last_synced(finished, covers);
            let newest = (finished + 1).min(self.steps.len());
            let checked = self.model.check_bytes(it.id, &bytes, from..=newest, state);
            checked.map_err(|error| format!("'{}': {error}", shown(path)))?;
        }
        Ok(())
    }

    /// Cuts the power at this many places.
    fn cut(&self, rng: &mut Rng, count: u64, has_faults: bool) -> Result<Tally, String> {
        let mut tally = Tally { losses: self.losses, mounts: self.mounts, ..Tally::default() };
        let mut cuts: Vec<usize> = match count as usize > self.trace.len() {
            // Everywhere, several times.
            true => (0..count as usize).map(|n| n % (self.trace.len() + 1)).collect(),
            false => (0..count).map(|_| rng.below(self.trace.len() as u64 + 1) as usize).collect(),
        };
        cuts.sort_unstable();
        let (mut disk, mut at, mut seen) = (Disk::new(self.base.clone()), 0, HashSet::new());
        for cut in cuts {
            self.trace[at..cut].iter().for_each(|op| disk.apply(op));
            at = cut;
            let image = disk.crash(rng, 512);
            tally.cuts += 1;
            if !seen.insert((cut, twox_hash::XxHash3_64::oneshot(&image))) {
                continue;
            }
            tally.images += 1;
            let is_older = self.verify(cut, image, has_faults).map_err(|error| {
                let finished = self.steps.partition_point(|step| step.trace_len <= cut);
                let all = self.trace.len();
                let last: Vec<_> = self.steps[..(finished + 1).min(self.steps.len())]
                    .iter()
                    .enumerate()
                    .skip(finished.saturating_sub(25))
                    .map(|(n, step)| format!("{}: {} (txg {})", n + 1, step.what, step.txg))
                    .collect();
                format!("cut {cut} of {all}: {error}\n  {}", last.join("\n  "))
            })?;
            tally.older += u64::from(is_older);
        }
        Ok(tally)
    }
}

fn run(seed: u64, count: u64, has_faults: bool, mutate: Mutate) -> Result<Tally, String> {
    let named = |error| format!("HARDPACK_MOUNT_CRASH_SEED={seed}, faults: {has_faults}: {error}");
    let mut recording = record(seed, has_faults).map_err(named)?;
    mutate(&mut recording.trace);
    recording.cut(&mut Rng(!seed), count, has_faults).map_err(named)
}

/// Runs seeds until the number of cuts is reached.
fn run_all(has_faults: bool) -> Tally {
    let wanted = env_number("HARDPACK_MOUNT_CRASH_STATES").unwrap_or(STATES_DEFAULT) / 2;
    let mut seed = env_number("HARDPACK_MOUNT_CRASH_SEED").unwrap_or(0);
    let first = seed;
    let mut sum = Tally::default();
    while sum.cuts < wanted {
        match run(seed, CUTS_OF_A_RUN, has_faults, |_| {}) {
            Ok(tally) => sum.add(tally),
            Err(error) => panic!("{error}"),
        }
        seed += 1;
    }
    println!("seeds {first} to {seed}, faults: {has_faults}: {sum:?}");
    sum
}

#[test]
fn what_was_synced_is_there_and_nothing_is_mixed() {
    let sum = run_all(false);
    assert!(sum.older > 0, "{sum:?}");
}

#[test]
fn what_was_lost_is_lost_as_a_whole() {
    let sum = run_all(true);
    assert!(sum.older > 0 && sum.losses > 0, "{sum:?}");
}

/// A test that never complains proves nothing.
#[test]
fn broken_disks_are_noticed() {
    let no_syncs: Mutate = |trace| trace.retain(|op| !matches!(op, Op::Sync));
    let lost_writes: Mutate = |trace| {
        let mut count = 0;
        trace.retain(|op| {
            count += u64::from(matches!(op, Op::Write(..)));
            !matches!(op, Op::Write(..)) || !count.is_multiple_of(10)
        });
    };
    for mutate in [no_syncs, lost_writes] {
        assert!((0..4).any(|seed| run(seed, 100, false, mutate).is_err()));
    }
}
