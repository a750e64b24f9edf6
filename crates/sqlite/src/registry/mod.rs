//! The pools that this process has open: one engine each, shared by all connections.
//!
//! Pools are identified by device and inode, so two names of one file lead to the same engine. A
//! pool's own descriptor must be the last of its file to be closed in this process, since closing
//! any descriptor drops SQLite's POSIX locks. So the registry decides under one lock whether to
//! open a pool, and connections close the host's file before they give the pool back.
//!
//! A forked child must not use its parent's engines, whose locks it would share. It starts with an
//! empty registry, see `fork.rs`. What it inherits belongs to an earlier [`Era`]: closing a
//! connection of the parent must not take away what the child has of the same pool.

mod connections;
mod names;
mod pool_use;
mod shared;
mod writers;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use hardpack_engine::Ashift;
use hardpack_engine::device::FileDevice;
use hardpack_engine::pool::{CreateOptions, Options, Pool, Property};
use hardpack_engine::store::Store;
use hardpack_engine::{Error, Result, SharedCacheSetting};

use crate::fork;
use crate::maintenance::Maintenance;
use crate::{memory, system};
use names::NamedDatabase;
use pool_use::User;
use shared::SharedCaches;
use writers::Writer;

pub use connections::{ConnectionUse, connection_files};
pub use names::{
    CompanionNames, PlainName, PoolName, companion_names, forget_super_journal, is_plain,
    is_super_journal, note_super_journal,
};
pub use pool_use::PoolUse;
pub use writers::{WriterUse, have_one_writer};

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
    /// The marks that users in this process share, with the number of users of each: the device
    /// holds each mark once.
    shared_marks: HashMap<u64, usize>,
    /// The marks that one user in this process holds exclusively.
    claimed_marks: HashSet<u64>,
    /// Descriptors of lock files, kept open while their mark is shared: see [`PoolUse::keep`].
    kept: HashMap<u64, Vec<fs::File>>,
    /// The mark of the name that the pool is used by, and the number of open databases that use it.
    name: Option<(u64, usize)>,
    maintenance: Arc<Maintenance>,
    users: usize,
    /// The last user finishes the pool's maintenance before it closes the pool. Others may come
    /// back meanwhile.
    closing: bool,
}

/// How many forks there are between a registry and the first one. Process numbers come again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Era(u64);

/// The permission bits of a new database are those of the pool that is created for it.
const MODE_BITS: u32 = 0o777;

#[derive(Debug)]
pub(crate) struct Registry {
    process: u32,
    era: Era,
    options: Options,
    shared_caches: SharedCaches,
    pools: HashMap<FileKey, Entry>,
    /// Open databases in pools, by the name that SQLite has for them: their journals are kept in
    /// memory.
    names: HashMap<Vec<u8>, NamedDatabase>,
    /// Open databases in no pool, by the name that SQLite has for them, with how often each is
    /// open.
    plain: HashMap<Vec<u8>, usize>,
    /// Super-journals that this process is writing.
    super_journals: HashSet<Vec<u8>>,
    /// The connections that are about to commit, by the name that SQLite has for the database.
    writers: HashMap<Vec<u8>, Writer>,
    /// How many main databases each connection of SQLite's has open, by its address.
    connections: HashMap<usize, usize>,
}

/// Locks the registry, whichever process it belongs to.
pub(crate) fn lock() -> MutexGuard<'static, Registry> {
    static REGISTRY: OnceLock<Mutex<Registry>> = OnceLock::new();
    let registry = REGISTRY.get_or_init(|| Mutex::new(Registry::new(Era(0))));
    registry.lock().unwrap_or_else(PoisonError::into_inner)
}

fn registry() -> MutexGuard<'static, Registry> {
    let mut registry = lock();
    if registry.process != std::process::id() {
        // The parent's pools stay open for ever: closing their descriptors here would not harm the
        // parent, but their locks are shared with it.
        let era = Era(registry.era.0 + 1);
        std::mem::forget(std::mem::replace(&mut *registry, Registry::new(era)));
    }
    registry
}

/// Locks the registry for what was registered in this era. Returns `None` in a forked child.
fn registry_of(era: Era) -> Option<MutexGuard<'static, Registry>> {
    let registry = registry();
    (registry.era == era).then_some(registry)
}

impl Registry {
    fn new(era: Era) -> Registry {
        let mut shared_caches = SharedCaches::default();
        Registry {
            process: std::process::id(),
            era,
            options: Options {
                now_ns: system::now_ns,
                owner: || Some(system::owner()),
                shared_cache: shared_caches.of_environment(),
                ..Options::new(memory::cache_len())
            },
            shared_caches,
            pools: HashMap::new(),
            names: HashMap::new(),
            plain: HashMap::new(),
            super_journals: HashSet::new(),
            writers: HashMap::new(),
            connections: HashMap::new(),
        }
    }
}

fn key_of(path: &Path) -> Result<FileKey> {
    let found = FileDevice::identity_of(path);
    let found = found.map_err(|source| Error::Io { action: "find", source })?;
    Ok(FileKey { device: found.device, inode: found.inode })
}

/// Opens the pool at `path`, or shares it if it is open already.
pub fn open(path: &Path) -> Result<PoolUse> {
    open_sharing(path, None)
}

/// Opens a pool like [`open`], with another shared cache than that of the environment unless it is
/// open already.
pub fn open_sharing(path: &Path, shared_cache: Option<&SharedCacheSetting>) -> Result<PoolUse> {
    acquire(path, shared_cache, |device, options| Pool::open(device, options))
}

/// Turns the empty file at `path` into a pool with one file, unless somebody else just did.
pub fn create(path: &Path, properties: &[(Property, String)]) -> Result<PoolUse> {
    create_sharing(path, properties, None)
}

/// Creates a pool like [`create`], with another shared cache than that of the environment unless it
/// is open already.
pub fn create_sharing(
    path: &Path,
    properties: &[(Property, String)],
    shared_cache: Option<&SharedCacheSetting>,
) -> Result<PoolUse> {
    // The name of the file must be as durable as its content. SQLite leaves that to the journal,
    // which it would create beside the file. This comes first, since a later failure must not close
    // the engine's descriptor.
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    fs::File::open(directory.unwrap_or(Path::new(".")))
        .and_then(|directory| directory.sync_all())
        .map_err(|source| Error::Io { action: "create", source })?;
    let guid = system::random_guid().map_err(|source| Error::Io { action: "create", source })?;
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    let mode = fs::metadata(path).map_or(0, |metadata| metadata.mode() & MODE_BITS);
    let create = CreateOptions {
        guid,
        ashift: Ashift::MIN,
        properties: properties.to_vec(),
        file_name: name.filter(|name| name.len() <= 255).or_else(|| Some("main.db".into())),
        file_mode: mode,
    };
    let pool = acquire(path, shared_cache, |device, options| {
        if Store::is_unborn(&*device)? {
            return Pool::create(device, &create, options);
        }
        let pool = Pool::open(device, options)?;
        pool.complete_creation(&create)?;
        Ok(pool)
    })?;
    // The pool may have been open already, without a file.
    pool.pool().complete_creation(&create)?;
    Ok(pool)
}

fn acquire(
    path: &Path,
    shared_cache: Option<&SharedCacheSetting>,
    open: impl FnOnce(Arc<FileDevice>, Options) -> Result<Pool>,
) -> Result<PoolUse> {
    let mut registry = registry();
    let era = registry.era;
    let key = key_of(path)?;
    if let Some(entry) = registry.pools.get_mut(&key) {
        entry.users += 1;
        let (pool, maintenance) = (entry.pool.clone(), Arc::clone(&entry.maintenance));
        return Ok(PoolUse { name: None, pool, maintenance, user: User(key, era) });
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
    let mut options = registry.options.clone();
    if let Some(setting) = shared_cache {
        options.shared_cache = registry.shared_caches.open(setting);
    }
    match open(Arc::clone(&device), options) {
        Ok(pool) => {
            let maintenance = Arc::new(Maintenance::new());
            let entry = Entry {
                pool: pool.clone(),
                device,
                shared_marks: HashMap::new(),
                claimed_marks: HashSet::new(),
                kept: HashMap::new(),
                name: None,
                maintenance: Arc::clone(&maintenance),
                users: 1,
                closing: false,
            };
            registry.pools.insert(key, entry);
            Ok(PoolUse { name: None, pool, maintenance, user: User(key, era) })
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
    unless_open(path, || ()).is_none()
}

/// Calls `look` unless this process has the pool at `path` open, and keeps it from being opened
/// meanwhile. `look` must not use the registry.
pub fn unless_open<T>(path: &Path, look: impl FnOnce() -> T) -> Option<T> {
    let registry = registry();
    let is_open = key_of(path).is_ok_and(|key| registry.pools.contains_key(&key));
    (!is_open).then(look)
}
