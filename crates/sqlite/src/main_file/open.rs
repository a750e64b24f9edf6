//! Opening a main database: finding out what the file is, and what its name asks for.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use hardpack_engine::Result;
use hardpack_engine::pool::{File, Property, ROOT, Settings};
use hardpack_engine::store::{Store, superblock};

use super::{Backing, Checkpoint, MainFile};
use crate::api;
use crate::ffi::{SQLITE_CANTOPEN, SQLITE_LOCK_NONE, SQLITE_NOTICE, SQLITE_OPEN_READONLY};
use crate::host::{Host, HostFile};
use crate::registry::{self, PoolName, PoolUse};

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
        // SAFETY: the caller vouches for the name.
        let (host_file, out_flags) = unsafe { HostFile::open(host, name, flags)? };
        // SAFETY: as above; a name from SQLite ends with a NUL byte.
        let path_bytes = unsafe { CStr::from_ptr(name) };
        let mut file = MainFile {
            file: None,
            host_file,
            backing: Backing::Plain,
            host,
            path: PathBuf::from(OsStr::from_bytes(path_bytes.to_bytes())),
            properties: Vec::new(),
            read_only: out_flags & SQLITE_OPEN_READONLY != 0,
            lock: SQLITE_LOCK_NONE,
            wrote: false,
            stale: false,
            journal_on_disk: false,
            checkpoint: Checkpoint::Open,
            wal_index: None,
            backfilled: 0,
        };
        // SAFETY: as above.
        if unsafe { (api::get().uri_boolean)(name, c"hardpack".as_ptr(), 1) } == 0 {
            return Ok((file, out_flags));
        }
        for property in Property::ALL {
            // SAFETY: as above.
            if let Some(text) = unsafe { uri_parameter(name, property) } {
                Settings::default()
                    .set(property, &text)
                    .map_err(|error| file.code(&error, SQLITE_CANTOPEN))?;
                file.properties.push((property, text));
            }
        }
        file.probe()?;
        Ok((file, out_flags))
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
                self.backing =
                    Backing::Unborn(None, PoolName::new(self.path.as_os_str().as_bytes()));
            }
        } else if front.starts_with(&superblock::MAGIC[..8]) {
            let pool =
                registry::open(&self.path).map_err(|error| self.code(&error, SQLITE_CANTOPEN))?;
            self.attach(pool, PoolName::new(self.path.as_os_str().as_bytes()))
                .and_then(|()| if self.read_only { Ok(()) } else { self.set_properties() })
                .map_err(|error| self.code(&error, SQLITE_CANTOPEN))?;
        }
        Ok(())
    }

    /// Sets on an existing pool what the URI asks for, where it is something else so far.
    fn set_properties(&self) -> Result<()> {
        let Some(pool) = self.pool().filter(|_| !self.properties.is_empty()) else { return Ok(()) };
        let current = pool.pool().properties(ROOT)?;
        for (property, text) in &self.properties {
            let mut wanted = Settings::default();
            wanted.set(*property, text)?;
            let wanted = wanted.get(*property);
            if current.iter().all(|value| value.property != *property || value.value != wanted) {
                pool.pool().set_property(ROOT, *property, &wanted)?;
            }
        }
        Ok(())
    }

    /// Uses a pool from now on.
    pub(super) fn attach(&mut self, pool: PoolUse, name: PoolName) -> Result<()> {
        pool.pool().refresh()?;
        if pool.pool().list()?.is_empty() {
            self.backing = Backing::Unborn(Some(pool), name);
            return Ok(());
        }
        let entry = pool.pool().only_file()?;
        let file = pool.pool().file(entry.file)?;
        if let Some((txg, now)) =
            pool.pool().store().recovered_from().map(|txg| (txg, pool.pool().state().txg()))
        {
            api::log(
                SQLITE_NOTICE,
                &format!(
                    "hardpack: {}: txg {txg} was incomplete, opened txg {now}",
                    self.path.display()
                ),
            );
        }
        let mut header = [0; 100];
        if file.read_at(&mut header, 0)? == header.len() {
            note_page_len(&file, &header);
        }
        self.file = Some(file);
        self.backing = Backing::Pool(pool, name);
        Ok(())
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
