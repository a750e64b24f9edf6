//! The pools that this process has open: one engine each, shared by all connections.
//!
//! Pools are told apart by device and inode, so that two names of one file meet. A pool's own
//! descriptor must be the last of its file to be closed in this process, since closing any drops
//! SQLite's POSIX locks; so the registry decides under one lock whether to open one, and connections
//! close the host's file before they give the pool back.
//!
//! A forked child must not use its parent's engines, whose locks it would share: it starts afresh, see `fork.rs`.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use hardpack_engine::device::FileDevice;
use hardpack_engine::pool::{CreateOptions, Options, Pool, Property};
use hardpack_engine::store::Store;
use hardpack_engine::{Error, FileId, Result};

use crate::api;
use crate::ffi::SQLITE_BUSY;
use crate::fork;
use crate::host_name::HostName;
use crate::maintenance::Maintenance;
use crate::pool_names::{self, NAME_MARKS};

/// The cache is this part of the machine's memory, within the limits that follow.
const CACHE_PART: u64 = 16;
const CACHE_LEN_MIN: u64 = 32 << 20;
const CACHE_LEN_MAX: u64 = 1 << 30;
const CACHE_LEN_FALLBACK: u64 = 128 << 20;
/// How often to look whether the pool is in use by another name, and how long to wait in between: two who come at
/// once may both see the other.
const NAME_TRY_COUNT: u32 = 10;
const NAME_TRY_PAUSE: Duration = Duration::from_millis(5);
/// Overrides the length of the cache, in bytes.
const CACHE_VARIABLE: &str = "HARDPACK_CACHE_BYTES";

/// What identifies a file on this machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct FileKey {
    device: u64,
    inode: u64,
}

#[derive(Debug)]
struct Entry {
    pool: Pool,
    device: Arc<FileDevice>,
    /// Marks that users in this process share, each with how many they are: the device has each once.
    shared_marks: HashMap<u64, usize>,
    /// Marks that one of them has alone.
    claimed_marks: HashSet<u64>,
    /// Descriptors of files that are locked while a mark is shared: see [`PoolUse::keep`].
    kept: HashMap<u64, Vec<fs::File>>,
    /// The mark of the name that the databases of the pool are used by, and by how many.
    name: Option<(u64, usize)>,
    maintenance: Arc<Maintenance>,
    holder: Arc<AtomicUsize>,
    users: usize,
    /// Its last user does what is due before it is closed. Somebody may come back meanwhile.
    closing: bool,
}

#[derive(Debug)]
pub(crate) struct Registry {
    process: u32,
    options: Options,
    pools: HashMap<FileKey, Entry>,
    /// Databases that are in pools, by the name SQLite knows them by: their journals are kept in memory.
    names: HashMap<Vec<u8>, Name>,
    /// Databases that are in no pool, by the name SQLite knows them by, with how often each is open.
    plain: HashMap<Vec<u8>, usize>,
    /// Super-journals that are being written.
    super_journals: HashSet<Vec<u8>>,
}

#[derive(Debug)]
struct Name {
    users: usize,
    beside: Beside,
    /// What it was before. A host keeps pointers into it.
    retired: Vec<Beside>,
    /// The descriptor of a pool that could not be created. It may not be closed while SQLite holds
    /// locks on the file, as it does then.
    spare: Option<Arc<FileDevice>>,
}

impl Name {
    fn exchange(&mut self, beside: Beside) {
        if !self.beside.is_same(&beside) {
            self.retired.push(std::mem::replace(&mut self.beside, beside));
        }
    }
}

/// Where the host has what SQLite keeps beside a database.
#[derive(Clone, Debug)]
pub enum Beside {
    /// Where SQLite says.
    Here,
    /// Beside this file.
    There(Arc<HostName>),
    /// Nowhere: there is nothing, and nothing may be made.
    Nowhere,
}

impl Beside {
    fn is_same(&self, other: &Beside) -> bool {
        match (self, other) {
            (Beside::Here, Beside::Here) | (Beside::Nowhere, Beside::Nowhere) => true,
            (Beside::There(one), Beside::There(other)) => {
                (one.path(), one.generation()) == (other.path(), other.generation())
            }
            _ => false,
        }
    }

    /// Whether it is the same but for the generation of the content. `name` is the database's.
    fn is_of_same_file(&self, name: &[u8], other: &Beside) -> bool {
        let path = |beside: &Beside| match beside {
            Beside::Here => Some(name.to_vec()),
            Beside::There(there) => Some(there.path().to_vec()),
            Beside::Nowhere => None,
        };
        path(self) == path(other)
    }
}

/// An engine in use by one connection.
#[derive(Debug)]
pub struct PoolUse {
    // Dropped in this order: the descriptor must be closed under the registry's lock, so the last to
    // hold the pool must be its entry.
    name: Option<NameUse>,
    pool: Pool,
    maintenance: Arc<Maintenance>,
    /// The connection of this process that has the pool's transaction for longer than a commit; 0 for none.
    holder: Arc<AtomicUsize>,
    #[allow(dead_code, reason = "counts as long as it lives")]
    user: User,
}

/// The use of a pool with this key by one name.
#[derive(Debug)]
struct NameUse(FileKey);

impl Drop for NameUse {
    fn drop(&mut self) {
        let mut registry = registry();
        // In a forked child, the parent has the name.
        let Some(entry) = registry.pools.get_mut(&self.0) else { return };
        entry.name = match entry.name {
            Some((mark, users)) if users > 1 => Some((mark, users - 1)),
            Some((mark, _)) => {
                entry.device.release(mark);
                None
            }
            None => None,
        };
    }
}

impl Entry {
    /// Uses the name of this mark, unless somebody uses another.
    fn enter_name(&mut self, mark: u64) -> std::io::Result<bool> {
        if let Some((known, users)) = &mut self.name {
            let is_same = *known == mark;
            *users += usize::from(is_same);
            return Ok(is_same);
        }
        // Shared before the look around: of two who come at once by different names, at least one sees the other.
        let shared = self.device.try_share(mark)?;
        let others = [NAME_MARKS.start..mark, mark + 1..NAME_MARKS.end];
        for other in others {
            if !shared || self.device.is_any_marked(other)? {
                self.device.release(mark);
                return Ok(false);
            }
        }
        self.name = Some((mark, 1));
        Ok(true)
    }
}

impl PoolUse {
    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Notes that this process has committed a transaction that changed `file`.
    pub fn note_commit(&self, file: FileId) {
        self.maintenance.note_commit(&self.pool, file);
    }

    /// Notes that a connection has the pool's transaction until it commits, having written a part of its changes.
    pub fn hold_by(&self, connection: usize) {
        self.holder.store(connection, Ordering::Relaxed);
    }

    /// It no longer does.
    pub fn release_by(&self, connection: usize) {
        let _ = self.holder.compare_exchange(connection, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Whether it does.
    pub fn is_held_by(&self, connection: usize) -> bool {
        connection != 0 && self.holder.load(Ordering::Relaxed) == connection
    }

    /// Notes that a database of the pool is open by this name of the pool, as long as the value lives. Refuses while
    /// somebody uses another name, see `pool_names.rs`.
    pub fn enter_by(&mut self, path: &Path) -> Result<()> {
        let find_error = |source| Error::Io { action: "find", source };
        let mark = pool_names::mark_of(path).map_err(find_error)?;
        if let Some(left) = pool_names::left_beside_another(path).map_err(find_error)? {
            let name = path.display();
            let what =
                format!("{name} has another name, beside which '{left}' lies: use that name");
            return Err(Error::Invalid(what));
        }
        for _ in 0..NAME_TRY_COUNT {
            if self.with_entry(|entry| entry.enter_name(mark))?.map_err(lock_error)? {
                self.name = Some(NameUse(self.user.0));
                return Ok(());
            }
            std::thread::sleep(NAME_TRY_PAUSE);
        }
        let text = "the pool is in use by another name (a link to it, or it was renamed)";
        api::log(SQLITE_BUSY, &format!("hardpack: {}: {text}", path.display()));
        Err(Error::Busy)
    }

    /// Whether this path leads to the pool.
    pub fn is_at(&self, path: &Path) -> bool {
        key_of(path).is_ok_and(|key| key == self.user.0)
    }

    fn with_entry<R>(&self, act: impl FnOnce(&mut Entry) -> R) -> Result<R> {
        // It is there as long as it has users, except in a forked child.
        registry().pools.get_mut(&self.user.0).map(act).ok_or(Error::FailStop)
    }

    /// Shares a mark (see [`FileDevice::try_share`]) with other users, of any process. False while one has it
    /// alone. To be given back with [`PoolUse::unshare`].
    pub fn try_share(&self, mark: u64) -> Result<bool> {
        self.with_entry(|entry| {
            if let Some(shared) = entry.shared_marks.get_mut(&mark) {
                *shared += 1;
                return Ok(true);
            }
            let is_claimed = entry.claimed_marks.contains(&mark);
            if is_claimed || !entry.device.try_share(mark).map_err(lock_error)? {
                return Ok(false);
            }
            entry.shared_marks.insert(mark, 1);
            Ok(true)
        })?
    }

    /// Gives a shared mark back. Then, where nobody is left who shares it, in any process, calls `last` while
    /// nobody can.
    pub fn unshare(&self, mark: u64, last: impl FnOnce()) {
        let done = self.with_entry(|entry| {
            match entry.shared_marks.get_mut(&mark) {
                Some(shared) if *shared > 1 => {
                    *shared -= 1;
                    return;
                }
                _ => entry.shared_marks.remove(&mark),
            };
            // Nobody of this process has the file open any more that these are of.
            entry.kept.remove(&mark);
            entry.device.release(mark);
            // Of several who leave at once, the last to come here finds nobody. Where the device is read-only,
            // it cannot be told.
            if matches!(entry.device.try_claim(mark), Ok(true)) {
                last();
                entry.device.release(mark);
            }
        });
        // In a forked child, the parent has the mark.
        let _ = done;
    }

    /// Keeps a descriptor open until nobody of this process shares the mark any more, as everybody does who has
    /// the file open as a database: closing it before would drop the locks that they have on it.
    pub fn keep(&self, mark: u64, file: fs::File) {
        let mut file = Some(file);
        let done = self.with_entry(|entry| {
            entry.kept.entry(mark).or_default().extend(file.take());
        });
        // In a forked child, which has no such locks, it may go.
        let _ = done;
    }

    /// Takes a mark alone, which fails while anybody shares it.
    pub fn try_claim(&self, mark: u64) -> Result<bool> {
        self.with_entry(|entry| {
            let is_taken =
                entry.shared_marks.contains_key(&mark) || entry.claimed_marks.contains(&mark);
            if is_taken || !entry.device.try_claim(mark).map_err(lock_error)? {
                return Ok(false);
            }
            entry.claimed_marks.insert(mark);
            Ok(true)
        })?
    }

    /// Gives a mark back that was taken alone.
    pub fn unclaim(&self, mark: u64) {
        // As above.
        let _ = self.with_entry(|entry| {
            entry.claimed_marks.remove(&mark);
            entry.device.release(mark);
        });
    }
}

fn lock_error(source: std::io::Error) -> Error {
    Error::Io { action: "lock", source }
}

/// One user of the pool with this key.
#[derive(Debug)]
struct User(FileKey);

impl User {
    /// Counts the user out. What the last one has to do before the pool is closed.
    fn leave(&self) -> Option<(Pool, Arc<Maintenance>)> {
        let mut registry = registry();
        let entry = registry.pools.get_mut(&self.0)?;
        entry.users -= 1;
        if entry.users > 0 || std::mem::replace(&mut entry.closing, true) {
            return None;
        }
        Some((entry.pool.clone(), Arc::clone(&entry.maintenance)))
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let Some((pool, maintenance)) = self.leave() else { return };
        loop {
            // This may take a while, in which others can open and close what they like.
            maintenance.finish(&pool);
            let mut registry = registry();
            let Some(entry) = registry.pools.get_mut(&self.0) else { return };
            // Who came and left meanwhile has left this to us, with what his commits began.
            if entry.users == 0 && maintenance.is_begun() {
                continue;
            }
            entry.closing = false;
            if entry.users == 0 {
                // Only saves the next one to open the pool some work.
                let _ = entry.pool.close();
                // The last to hold the pool is its entry: its descriptor is closed under the registry's lock.
                drop(pool);
                registry.pools.remove(&self.0);
            }
            return;
        }
    }
}

/// The registry, whichever process it is of.
pub(crate) fn lock() -> MutexGuard<'static, Registry> {
    static REGISTRY: OnceLock<Mutex<Registry>> = OnceLock::new();
    let registry = REGISTRY.get_or_init(|| Mutex::new(Registry::new()));
    registry.lock().unwrap_or_else(PoisonError::into_inner)
}

fn registry() -> MutexGuard<'static, Registry> {
    let mut registry = lock();
    if registry.process != std::process::id() {
        // The parent's pools are left open for ever: closing their descriptors here would be
        // harmless for the parent, but their locks are shared with it.
        std::mem::forget(std::mem::replace(&mut *registry, Registry::new()));
    }
    registry
}

impl Registry {
    fn new() -> Registry {
        Registry {
            process: std::process::id(),
            options: Options::new(cache_len()),
            pools: HashMap::new(),
            names: HashMap::new(),
            plain: HashMap::new(),
            super_journals: HashSet::new(),
        }
    }
}

fn cache_len() -> u64 {
    if let Some(bytes) = std::env::var(CACHE_VARIABLE).ok().and_then(|text| text.parse().ok()) {
        return bytes;
    }
    memory_len().map_or(CACHE_LEN_FALLBACK, |bytes| {
        (bytes / CACHE_PART).clamp(CACHE_LEN_MIN, CACHE_LEN_MAX)
    })
}

/// The memory of the machine, in bytes.
fn memory_len() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib << 10)
}

fn key_of(path: &Path) -> Result<FileKey> {
    let metadata = fs::metadata(path).map_err(|source| Error::Io { action: "find", source })?;
    Ok(FileKey { device: metadata.dev(), inode: metadata.ino() })
}

/// Opens the pool at `path`, or shares the one that is open.
pub fn open(path: &Path) -> Result<PoolUse> {
    acquire(path, |device, options| Pool::open(device, options))
}

/// Makes a pool with one file of the empty file at `path`, unless somebody just did.
pub fn create(path: &Path, properties: &[(Property, String)]) -> Result<PoolUse> {
    // The name of the file must last as long as what it holds. SQLite leaves this to the journal it
    // would create beside it. First, since what fails later must not close the engine's descriptor.
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    fs::File::open(directory.unwrap_or(Path::new(".")))
        .and_then(|directory| directory.sync_all())
        .map_err(|source| Error::Io { action: "create", source })?;
    let mut guid = [0; 16];
    getrandom::fill(&mut guid).map_err(|error| Error::Io {
        action: "create",
        source: std::io::Error::other(error.to_string()),
    })?;
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    let create = CreateOptions {
        guid,
        ashift: 9,
        properties: properties.to_vec(),
        file_name: name.filter(|name| name.len() <= 255).or_else(|| Some("main.db".into())),
    };
    let pool = acquire(path, |device, options| {
        if Store::is_unborn(&*device)? {
            return Pool::create(device, &create, options);
        }
        let pool = Pool::open(device, options)?;
        pool.complete_creation(&create)?;
        Ok(pool)
    })?;
    // It may have been open without a file.
    pool.pool().complete_creation(&create)?;
    Ok(pool)
}

fn acquire(
    path: &Path,
    open: impl FnOnce(Arc<FileDevice>, Options) -> Result<Pool>,
) -> Result<PoolUse> {
    let mut registry = registry();
    let key = key_of(path)?;
    if let Some(entry) = registry.pools.get_mut(&key) {
        entry.users += 1;
        let (pool, maintenance) = (entry.pool.clone(), Arc::clone(&entry.maintenance));
        let holder = Arc::clone(&entry.holder);
        return Ok(PoolUse { name: None, pool, maintenance, holder, user: User(key) });
    }
    let name = path.as_os_str().as_bytes();
    let device = match registry.names.get_mut(name).and_then(|name| name.spare.take()) {
        Some(device) => device,
        None => {
            let device =
                FileDevice::open(path).map_err(|source| Error::Io { action: "open", source })?;
            fork::prepare();
            device.advise_random();
            Arc::new(device)
        }
    };
    match open(Arc::clone(&device), registry.options.clone()) {
        Ok(pool) => {
            let maintenance = Arc::new(Maintenance::new());
            let holder = Arc::new(AtomicUsize::new(0));
            let entry = Entry {
                pool: pool.clone(),
                device,
                shared_marks: HashMap::new(),
                claimed_marks: HashSet::new(),
                kept: HashMap::new(),
                name: None,
                maintenance: Arc::clone(&maintenance),
                holder: Arc::clone(&holder),
                users: 1,
                closing: false,
            };
            registry.pools.insert(key, entry);
            Ok(PoolUse { name: None, pool, maintenance, holder, user: User(key) })
        }
        Err(error) => {
            if let Some(name) = registry.names.get_mut(name) {
                name.spare = Some(device);
            }
            Err(error)
        }
    }
}

/// Whether this process has the pool at `path` open.
pub fn is_open(path: &Path) -> bool {
    key_of(path).is_ok_and(|key| registry().pools.contains_key(&key))
}

/// Notes that the database SQLite knows by this name is in a pool, as long as the value lives.
#[derive(Debug)]
pub struct PoolName(Vec<u8>);

impl PoolName {
    /// Notes the name, and where the host has what SQLite keeps beside it. Nothing where the name stands for
    /// something else already: what is beside it could not be told apart.
    pub fn new(name: &[u8], beside: Beside) -> Option<PoolName> {
        let mut registry = registry();
        let known = registry.names.entry(name.to_vec());
        let known = known.or_insert_with(|| Name {
            users: 0,
            beside: beside.clone(),
            retired: Vec::new(),
            spare: None,
        });
        known.beside.is_of_same_file(name, &beside).then(|| {
            known.exchange(beside);
            known.users += 1;
            PoolName(name.to_vec())
        })
    }

    /// Notes that the content is of another generation.
    pub fn exchange_generation(&self, generation: u64) {
        let mut registry = registry();
        let Some(known) = registry.names.get_mut(&self.0) else { return };
        let path = match &known.beside {
            Beside::Here => &self.0[..],
            Beside::There(there) => there.path(),
            Beside::Nowhere => return,
        };
        let beside = Beside::There(Arc::new(HostName::of_generation(path, generation)));
        known.exchange(beside);
    }
}

impl Drop for PoolName {
    fn drop(&mut self) {
        let mut registry = registry();
        if let Some(name) = registry.names.get_mut(&self.0) {
            name.users -= 1;
            if name.users == 0 {
                registry.names.remove(&self.0);
            }
        }
    }
}

/// Notes that the database SQLite knows by this name is in no pool, as long as the value lives.
#[derive(Debug)]
pub struct PlainName(Vec<u8>);

impl PlainName {
    /// Notes the name.
    pub fn new(name: &[u8]) -> PlainName {
        *registry().plain.entry(name.to_vec()).or_default() += 1;
        PlainName(name.to_vec())
    }
}

impl Drop for PlainName {
    fn drop(&mut self) {
        let mut registry = registry();
        if let Some(users) = registry.plain.get_mut(&self.0) {
            *users -= 1;
            if *users == 0 {
                registry.plain.remove(&self.0);
            }
        }
    }
}

/// Whether this process has a database of this name open that is in no pool.
pub fn is_plain(name: &[u8]) -> bool {
    registry().plain.contains_key(name)
}

/// Where what SQLite keeps beside a database is, if one of this name is open from a pool.
pub fn beside(name: &[u8]) -> Option<Beside> {
    registry().names.get(name).map(|name| name.beside.clone())
}

/// Notes that this process writes a super-journal of this name.
pub fn note_super_journal(name: &[u8]) {
    registry().super_journals.insert(name.to_vec());
}

/// It no longer does.
pub fn forget_super_journal(name: &[u8]) {
    registry().super_journals.remove(name);
}

/// Whether it does.
pub fn is_super_journal(name: &[u8]) -> bool {
    registry().super_journals.contains(name)
}
