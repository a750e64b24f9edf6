//! Opening a main database: finding out what the file is and what its URI asks for.
#![expect(unsafe_code, reason = "reads names that SQLite passes as pointers")]

use std::cell::OnceCell;
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hardpack_engine::pool::{File, Property, ROOT, Settings};
use hardpack_engine::store::{Store, superblock};
use hardpack_engine::{Error, Result, SharedCacheSetting, Txg};

use super::checkpoint::Begun;
use super::light::Light;
use super::locks::Locks;
use super::pinning::Pinning;
use super::room::Room;
use super::waits::Waits;
use super::{Backing, Checkpoint, MainFile};
use crate::absent::Reader;
use crate::api;
use crate::busy::BusyHandler;
use crate::codes::code;
use crate::companion::{FIRST_FILE, companion_names, lock_path};
use crate::ffi::{
    SQLITE_CANTOPEN, SQLITE_LOCK_NONE, SQLITE_NOTICE, SQLITE_OPEN_READONLY, SQLITE_OPEN_READWRITE,
    SQLITE_READONLY,
};
use crate::host::{Host, HostFile};
use crate::lock_file::OpenMark;
use crate::mounts;
use crate::pool_path::{self, PoolPath, is_block_device};
use crate::refusals;
use crate::registry::{self, CompanionNames, PlainName, PoolName, PoolUse};
use crate::uri;
use crate::vfs::VFS_NAME;

/// The end of the names of pools.
pub const POOL_SUFFIX: &[u8] = b".hpk";
/// The first bytes of a plain database.
pub(super) const SQLITE_MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// Whether the database that a connection opens as its own becomes plain unless its name asks for
/// a pool.
static NEW_IS_PLAIN: AtomicBool = AtomicBool::new(false);

/// What a new database of a connection becomes if neither its name nor its URI asks for a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum NewDatabases {
    /// A pool.
    #[default]
    Packed,
    /// A plain database, as one that is attached.
    Plain,
}

/// Says what new databases become from now on, in the whole process. For programs that open all
/// databases through this VFS because it is the default, without having asked for pools.
pub fn set_new_databases(what: NewDatabases) {
    NEW_IS_PLAIN.store(what == NewDatabases::Plain, Ordering::Relaxed);
}

/// Whether a new database becomes plain unless its name asks for a pool.
pub(super) fn is_new_plain() -> bool {
    NEW_IS_PLAIN.load(Ordering::Relaxed)
}

impl MainFile {
    /// Opens a main database.
    ///
    /// # Safety
    ///
    /// `name` is not NULL and is what SQLite passes to xOpen.
    pub unsafe fn open(
        host: Host,
        name: *const c_char,
        flags: c_int,
    ) -> std::result::Result<(MainFile, c_int), c_int> {
        // SAFETY: as above; a name from SQLite ends with a NUL byte.
        let path = unsafe { CStr::from_ptr(name) }.to_bytes();
        // SAFETY: as above.
        let at = unsafe { parameter(name, uri::AT) };
        // SAFETY: as above.
        let is_wanted = unsafe { (api::get().uri_boolean)(name, uri::HARDPACK.as_ptr(), 1) } != 0;
        if let Some(pool_path) = PoolPath::split(host, path).filter(|_| is_wanted) {
            if is_block_device(pool_path.pool_file()) {
                return Err(refusals::refuse_block_device(pool_path.pool_file()));
            }
            // SAFETY: as above.
            return unsafe { MainFile::open_by_pool_path(host, name, flags, &pool_path, at) };
        }
        if let Some(at) = at.filter(|_| is_wanted) {
            let pool_path = PoolPath { pool: path.to_vec(), inner: Vec::new() };
            if !pool_path::is_pool(host, path) {
                let what = format!("at={at} needs a pool, and there is none");
                let path = Path::new(OsStr::from_bytes(path));
                return Err(code(&Error::Invalid(what), SQLITE_CANTOPEN, path));
            }
            // SAFETY: as above.
            return unsafe { MainFile::open_by_pool_path(host, name, flags, &pool_path, Some(at)) };
        }
        // SAFETY: the caller vouches for the name.
        let (host_file, out_flags) = unsafe { HostFile::open(host, name, flags)? };
        let mut file = MainFile::new(host, host_file, Locks::Hosts(None), path);
        file.read_only = out_flags & SQLITE_OPEN_READONLY != 0;
        if is_wanted {
            // SAFETY: as above.
            unsafe { file.take_properties(name)? };
            // SAFETY: as above.
            file.wants_pool = !file.properties.is_empty() || unsafe { asks_for_pool(name) };
            file.probe()?;
        }
        file.plain_name = file.is_plain().then(|| PlainName::new(path));
        let is_refused = file.pool().is_some_and(|pool| pool.store().cut_short().is_some());
        let out_flags = match is_refused {
            true => out_flags & !SQLITE_OPEN_READWRITE | SQLITE_OPEN_READONLY,
            false => out_flags,
        };
        Ok((file, out_flags))
    }

    /// Makes the state of a plain database with the name that SQLite has for it.
    pub(super) fn new(host: Host, host_file: HostFile, locks: Locks, path: &[u8]) -> MainFile {
        MainFile {
            pinning: Pinning::default(),
            light: Light::default(),
            file: None,
            host_file,
            host_name: None,
            locks,
            backing: Backing::Plain,
            host,
            path: PathBuf::from(OsStr::from_bytes(path)),
            inner_path: None,
            owner: ROOT,
            plain_name: None,
            reader: Reader::new(),
            generation: (Txg(0), 0),
            is_exchanged: false,
            is_schema_in_doubt: false,
            properties: Vec::new(),
            shared_cache: None,
            read_only: false,
            lock: SQLITE_LOCK_NONE,
            wrote: false,
            stale: false,
            journal_on_disk: false,
            checkpoint: Checkpoint::Open,
            is_checkpointing: false,
            joint: None,
            writer: None,
            wal_index: None,
            begun: Begun::default(),
            has_log_lock: false,
            announced: false,
            published: false,
            synced: false,
            busy: BusyHandler::default(),
            waits: Waits::default(),
            room: Room::default(),
            connection: std::ptr::null(),
            connection_use: None,
            has_read_only_medium: OnceCell::new(),
            wants_log: false,
            is_exclusive: false,
            wants_pool: false,
            is_undecided: false,
        }
    }

    /// Reads the properties and the shared cache that the URI asks for.
    ///
    /// # Safety
    ///
    /// `name` is what SQLite passes to xOpen.
    pub(super) unsafe fn take_properties(
        &mut self,
        name: *const c_char,
    ) -> std::result::Result<(), c_int> {
        for property in Property::ALL {
            // SAFETY: the caller vouches for the name.
            if let Some(text) = unsafe { uri_parameter(name, property) } {
                Settings::default()
                    .set(property, &text)
                    .map_err(|error| self.code(&error, SQLITE_CANTOPEN))?;
                self.properties.push((property, text));
            }
        }
        // SAFETY: as above.
        self.shared_cache =
            unsafe { shared_cache(name) }.map_err(|error| self.code(&error, SQLITE_CANTOPEN))?;
        Ok(())
    }

    /// Finds out whether the file is a pool, will become one, or is a plain database.
    pub(super) fn probe(&mut self) -> std::result::Result<(), c_int> {
        let len = self.host_file.len()?.unsigned_abs();
        if len == 0 && is_block_device(&self.path) {
            return Err(refusals::refuse_block_device(&self.path));
        }
        let mut front = vec![0; superblock::BLOCK_LEN.min(len as usize)];
        if len > 0 {
            self.host_file.read_some(&mut front, 0)?;
        }
        if len <= superblock::EXTENTS_OFFSET && !front.starts_with(SQLITE_MAGIC) {
            // Only the whole file shows whether it is left from an interrupted creation or is data
            // with a damaged beginning.
            front.resize(len as usize, 0);
            self.host_file.read_some(&mut front, 0)?;
        }
        if Store::is_unborn_front(len, &front) {
            if !self.read_only {
                let name = self.note_name(CompanionNames::Unchanged);
                let name = name.map_err(|error| self.code(&error, SQLITE_CANTOPEN))?;
                self.backing = Backing::Unborn(None, name);
            }
        } else if front.starts_with(&superblock::MAGIC[..8]) {
            let pool = registry::open_sharing(&self.path, self.shared_cache.as_ref())
                .map_err(|error| self.code(&error, SQLITE_CANTOPEN))?;
            self.attach(pool)
                .and_then(|()| if self.read_only { Ok(()) } else { self.set_properties() })
                .map_err(|error| self.code(&error, SQLITE_CANTOPEN))?;
        } else if matches!(self.backing, Backing::Unborn(None, _)) {
            // Somebody else has made it a plain database.
            self.backing = Backing::Plain;
            self.plain_name = Some(PlainName::new(self.path.as_os_str().as_bytes()));
        }
        Ok(())
    }

    /// Follows whoever has made a pool of a file that was empty. Called with a lock, so that nobody
    /// does so from here on.
    pub(super) fn decide(&mut self) -> std::result::Result<(), c_int> {
        if !self.is_undecided || self.host_file.len()? == 0 {
            return Ok(());
        }
        self.is_undecided = false;
        self.probe()?;
        if !self.is_plain() {
            self.plain_name = None;
        }
        Ok(())
    }

    /// Sets the properties that the URI asks for on an existing pool, unless they have these
    /// values.
    pub(super) fn set_properties(&self) -> Result<()> {
        let Some(pool) = self.pool().filter(|_| !self.properties.is_empty()) else { return Ok(()) };
        let current = pool.properties(self.owner)?;
        for (property, text) in &self.properties {
            let mut wanted = Settings::default();
            wanted.set(*property, text)?;
            let wanted = wanted.get(*property);
            if current.iter().all(|value| value.property != *property || value.value != wanted) {
                pool.set_property(self.owner, *property, &wanted)?;
            }
        }
        Ok(())
    }

    /// Registers the name that SQLite has for the database.
    pub(super) fn note_name(&self, companions: CompanionNames) -> Result<PoolName> {
        PoolName::new(self.path.as_os_str().as_bytes(), companions).ok_or_else(|| {
            Error::Invalid("this process has another database of this name open".into())
        })
    }

    /// Uses the file that the pool's name stands for from now on.
    pub(super) fn attach(&mut self, mut pool: PoolUse) -> Result<()> {
        pool.pool().refresh()?;
        self.read_only |= pool.pool().store().cut_short().is_some();
        // A pool whose creation was interrupted does not even have a root.
        if pool.pool().list()?.is_empty() && pool.pool().attributes(ROOT).is_err() {
            let name = self.note_name(CompanionNames::Unchanged)?;
            self.backing = Backing::Unborn(Some(pool), name);
            return Ok(());
        }
        let entry = pool.pool().database().map_err(|error| match error {
            Error::Corrupt { .. } | Error::Io { .. } | Error::Internal(_) => error,
            error => Error::Invalid(format!("{error}; as in {}/app.db", self.path.display())),
        })?;
        pool.enter_by(&self.path)?;
        let pool_file = self.path.as_os_str().as_bytes().to_vec();
        let generation = pool.pool().generation(entry.file)?;
        let name = self.note_name(companion_names(&pool_file, entry.file, generation))?;
        if entry.file == FIRST_FILE {
            self.locks = Locks::Hosts(Some(OpenMark::share(pool.again()?, &self.path)?));
        } else {
            let base = lock_path(&pool_file, entry.file);
            self.move_to_lock_file(&pool_file, entry.file, &base)?;
        }
        // From here on nobody removes the file, but somebody may just have done so.
        pool.pool().refresh()?;
        mounts::check_log(pool.pool(), &self.path, entry.file)?;
        // The generation may have changed before this point; the first refresh notices, before
        // SQLite looks for a journal or a log.
        self.generation = (Txg(0), generation);
        self.use_file(pool.pool().file(entry.file)?)?;
        self.backing = Backing::Pool(pool, name);
        self.log_recovery();
        Ok(())
    }

    /// Uses this engine file from now on.
    pub(super) fn use_file(&mut self, file: Arc<File>) -> Result<()> {
        let mut header = [0; 100];
        if file.read_at(&mut header, 0)? == header.len() {
            file.note_header(&header);
        }
        self.file = Some(file);
        Ok(())
    }

    /// Writes to SQLite's log that the newest state of the pool was incomplete, or that the pool
    /// was cut short.
    pub(super) fn log_recovery(&self) {
        let Some(pool) = self.pool() else { return };
        if let Some(txg) = pool.store().recovered_from() {
            let (path, now) = (self.path.display(), pool.state().txg());
            let text = format!("hardpack: {path}: txg {txg} was incomplete, opened txg {now}");
            api::log(SQLITE_NOTICE, &text);
        }
        if let Some(cut) = pool.store().cut_short() {
            let text =
                format!("hardpack: {}: {cut}; nothing is written to it", self.path.display());
            api::log(SQLITE_READONLY, &text);
        }
    }
}

/// Whether a name asks for a pool: it ends in `.hpk`, or its URI names this VFS.
///
/// # Safety
///
/// `name` is what SQLite passes to xOpen.
unsafe fn asks_for_pool(name: *const c_char) -> bool {
    // SAFETY: the caller vouches for the name, which ends with a NUL byte, as does the parameter.
    unsafe {
        let vfs = (api::get().uri_parameter)(name, uri::VFS.as_ptr());
        CStr::from_ptr(name).to_bytes().ends_with(POOL_SUFFIX)
            || !vfs.is_null() && CStr::from_ptr(vfs) == VFS_NAME
            || (api::get().uri_boolean)(name, uri::HARDPACK.as_ptr(), 0) != 0
    }
}

/// Returns the URI parameter that sets a property.
///
/// # Safety
///
/// `name` is what SQLite passes to xOpen.
unsafe fn uri_parameter(name: *const c_char, property: Property) -> Option<String> {
    let key = uri::of(property)?;
    // SAFETY: the caller vouches for the name.
    unsafe { parameter(name, &key) }
}

/// Returns the shared cache that the URI asks for.
///
/// # Safety
///
/// `name` is what SQLite passes to xOpen.
pub(super) unsafe fn shared_cache(name: *const c_char) -> Result<Option<SharedCacheSetting>> {
    // SAFETY: the caller vouches for the name.
    unsafe { parameter(name, uri::SHARED_CACHE) }.map(|text| text.parse()).transpose()
}

/// Returns a parameter of the URI.
///
/// # Safety
///
/// `name` is what SQLite passes to xOpen.
pub(super) unsafe fn parameter(name: *const c_char, key: &CStr) -> Option<String> {
    // SAFETY: the caller vouches for the name; the key ends with a NUL byte, as does the value.
    unsafe {
        let value = (api::get().uri_parameter)(name, key.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value).to_string_lossy().into_owned())
    }
}
