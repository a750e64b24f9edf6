//! Opening a main database: finding out what the file is, and what its name asks for.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use hardpack_engine::pool::{File, Property, ROOT, Settings};
use hardpack_engine::store::{Store, superblock};
use hardpack_engine::{Error, Result, Txg};

use super::locks::Locks;
use super::{Backing, Checkpoint, MainFile};
use crate::api;
use crate::beside::{FIRST_FILE, base_path, beside_of};
use crate::busy::BusyHandler;
use crate::ffi::{SQLITE_CANTOPEN, SQLITE_LOCK_NONE, SQLITE_NOTICE, SQLITE_OPEN_READONLY};
use crate::host::{Host, HostFile};
use crate::locate::locate;
use crate::registry::{self, Beside, PlainName, PoolName, PoolUse};

/// What a plain database begins with.
const SQLITE_MAGIC: &[u8; 16] = b"SQLite format 3\0";

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
        let is_wanted = unsafe { (api::get().uri_boolean)(name, c"hardpack".as_ptr(), 1) } != 0;
        if let Some(location) = locate(host, path).filter(|_| is_wanted) {
            // SAFETY: as above.
            return unsafe { MainFile::open_inside(host, name, flags, &location) };
        }
        // SAFETY: the caller vouches for the name.
        let (host_file, out_flags) = unsafe { HostFile::open(host, name, flags)? };
        let mut file = MainFile::new(host, host_file, Locks::Hosts, path);
        file.read_only = out_flags & SQLITE_OPEN_READONLY != 0;
        if is_wanted {
            // SAFETY: as above.
            unsafe { file.take_properties(name)? };
            file.probe()?;
        }
        file.plain_name = file.is_plain().then(|| PlainName::new(path));
        Ok((file, out_flags))
    }

    /// A plain database by the name that SQLite has for it.
    pub(super) fn new(host: Host, host_file: HostFile, locks: Locks, path: &[u8]) -> MainFile {
        MainFile {
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
            generation: (Txg(0), 0),
            is_exchanged: false,
            is_schema_in_doubt: false,
            properties: Vec::new(),
            read_only: false,
            lock: SQLITE_LOCK_NONE,
            wrote: false,
            stale: false,
            journal_on_disk: false,
            checkpoint: Checkpoint::Open,
            is_checkpointing: false,
            wal_index: None,
            backfilled: 0,
            has_log_lock: false,
            announced: false,
            published: false,
            busy: BusyHandler::default(),
            connection: std::ptr::null(),
            holds_as: 0,
        }
    }

    /// Notes the properties that the URI asks for.
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
        Ok(())
    }

    /// Finds out what the file is.
    pub(super) fn probe(&mut self) -> std::result::Result<(), c_int> {
        let len = self.host_file.len()?.unsigned_abs();
        let mut front = vec![0; superblock::BLOCK_LEN.min(len as usize)];
        if len > 0 {
            self.host_file.read_some(&mut front, 0)?;
        }
        if len <= superblock::EXTENTS_OFFSET && !front.starts_with(SQLITE_MAGIC) {
            // Only the whole of it tells what a creation left behind from data with a damaged beginning.
            front.resize(len as usize, 0);
            self.host_file.read_some(&mut front, 0)?;
        }
        if Store::is_unborn_front(len, &front) {
            if !self.read_only {
                let name = self.note_name(Beside::Here);
                let name = name.map_err(|error| self.code(&error, SQLITE_CANTOPEN))?;
                self.backing = Backing::Unborn(None, name);
            }
        } else if front.starts_with(&superblock::MAGIC[..8]) {
            let pool =
                registry::open(&self.path).map_err(|error| self.code(&error, SQLITE_CANTOPEN))?;
            self.attach(pool)
                .and_then(|()| if self.read_only { Ok(()) } else { self.set_properties() })
                .map_err(|error| self.code(&error, SQLITE_CANTOPEN))?;
        }
        Ok(())
    }

    /// Sets on an existing pool what the URI asks for, where it is something else so far.
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

    /// Notes by which name SQLite knows the database.
    pub(super) fn note_name(&self, beside: Beside) -> Result<PoolName> {
        PoolName::new(self.path.as_os_str().as_bytes(), beside).ok_or_else(|| {
            Error::Invalid("this process has another database open by this name".into())
        })
    }

    /// Uses the only file of a pool from now on.
    pub(super) fn attach(&mut self, mut pool: PoolUse) -> Result<()> {
        pool.pool().refresh()?;
        // A pool whose creation was cut short has not even a root.
        if pool.pool().list()?.is_empty() && pool.pool().attributes(ROOT).is_err() {
            let name = self.note_name(Beside::Here)?;
            self.backing = Backing::Unborn(Some(pool), name);
            return Ok(());
        }
        let entry = pool.pool().only_file().map_err(|error| match error {
            Error::Corrupt { .. } | Error::Io { .. } => error,
            error => Error::Invalid(format!("{error}; as in {}/app.db", self.path.display())),
        })?;
        pool.enter_by(&self.path)?;
        let pool_path = self.path.as_os_str().as_bytes().to_vec();
        let generation = pool.pool().generation(entry.file)?;
        let name = self.note_name(beside_of(&pool_path, entry.file, generation))?;
        if entry.file != FIRST_FILE {
            let base = base_path(&pool_path, entry.file);
            self.move_beside(&pool_path, entry.file, &base)?;
        }
        // It may be another one until here, which shows before SQLite looks for a journal or a log.
        self.generation = (Txg(0), generation);
        self.use_file(pool.pool().file(entry.file)?)?;
        self.backing = Backing::Pool(pool, name);
        self.log_recovery();
        Ok(())
    }

    /// Uses a file of the engine's from now on.
    pub(super) fn use_file(&mut self, file: Arc<File>) -> Result<()> {
        let mut header = [0; 100];
        if file.read_at(&mut header, 0)? == header.len() {
            note_page_len(&file, &header);
        }
        self.file = Some(file);
        Ok(())
    }

    /// Notes in SQLite's log that the newest state of the pool was not whole.
    pub(super) fn log_recovery(&self) {
        let Some(pool) = self.pool() else { return };
        if let Some(txg) = pool.store().recovered_from() {
            let (path, now) = (self.path.display(), pool.state().txg());
            let text = format!("hardpack: {path}: txg {txg} was incomplete, opened txg {now}");
            api::log(SQLITE_NOTICE, &text);
        }
    }
}

/// Takes the length of the pages from the header of a database.
pub(super) fn note_page_len(file: &File, header: &[u8]) {
    if let Some([high, low]) = header.get(16..18).filter(|_| header.starts_with(SQLITE_MAGIC)) {
        let len = match u32::from(u16::from_be_bytes([*high, *low])) {
            1 => 65536,
            len => len,
        };
        file.set_page_len_hint(len);
    }
}

/// The URI parameter that sets a property.
///
/// # Safety
///
/// `name` is what SQLite passes to xOpen.
unsafe fn uri_parameter(name: *const c_char, property: Property) -> Option<String> {
    let key = format!("hardpack_{}\0", property.name().replace('-', "_"));
    // SAFETY: the caller vouches for the name; the key ends with a NUL byte.
    unsafe {
        let value = (api::get().uri_parameter)(name, key.as_ptr().cast());
        (!value.is_null()).then(|| CStr::from_ptr(value).to_string_lossy().into_owned())
    }
}
