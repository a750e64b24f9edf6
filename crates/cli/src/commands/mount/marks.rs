//! The marks of a mount on its pool: what it has open, what it writes to, and leases for locks. All
//! are locks that end with the process; docs/format.md says on which bytes.

use std::io;
use std::path::PathBuf;

use hardpack::mounts::{database_mark, lease_marks, writer_mark};
use hardpack_engine::FileId;
use hardpack_engine::device::FileDevice;
use hardpack_engine::pool::Pool;
use hardpack_mount::{Leases, LockKind, Marks, Written};

use crate::sidecars;
use crate::users::mount_marks;

/// Marks open files for other processes, as SQLite's users of databases do.
pub struct OpenMarks {
    pub device: FileDevice,
    /// The file of the pool.
    pub path: PathBuf,
    pub pool: Pool,
}

impl Marks for OpenMarks {
    fn open(&self, file: FileId) -> io::Result<bool> {
        for mark in mount_marks(file) {
            if !self.device.try_share(mark)? {
                self.close(file);
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn close(&self, file: FileId) {
        mount_marks(file).for_each(|mark| self.device.release(mark));
    }

    fn write(&self, file: FileId, what: Written) -> io::Result<bool> {
        let (Some(own), Some(databases)) = (writer_mark(file), database_mark(file)) else {
            return Ok(true);
        };
        let is_marked = match what {
            Written::Maybe => self.device.try_share(own)?,
            Written::Database => self.device.try_claim(own)?,
        };
        if !is_marked {
            return Ok(false);
        }
        // Whoever has it open as a database came first. If it was killed, its log may be left.
        let has_log = || sidecars::has_sidecar(&self.path, &self.pool, file).unwrap_or(true);
        if !self.device.is_marked(databases)? && (what == Written::Maybe || !has_log()) {
            return Ok(true);
        }
        self.device.release(own);
        Ok(false)
    }

    fn end_writing(&self, file: FileId) {
        if let Some(mark) = writer_mark(file) {
            self.device.release(mark);
        }
    }

    fn is_database_open(&self, file: FileId) -> io::Result<bool> {
        database_mark(file).map_or(Ok(false), |mark| self.device.is_marked(mark))
    }
}

/// Leases of files, by marks of the pool. A lease that cannot be had for an error of the system is
/// one that somebody else has.
pub struct FileLeases(pub FileDevice);

impl Leases for FileLeases {
    fn lease(&self, file: FileId, kind: Option<LockKind>) -> bool {
        let Some((lease, _)) = lease_marks(file) else { return false };
        match kind {
            Some(LockKind::Read) => self.0.try_share(lease).unwrap_or(false),
            Some(LockKind::Write) => self.0.try_claim(lease).unwrap_or(false),
            None => {
                self.0.release(lease);
                true
            }
        }
    }

    fn is_held(&self, file: FileId) -> bool {
        lease_marks(file).is_some_and(|(lease, _)| self.0.is_marked(lease).unwrap_or(false))
    }

    fn show_wanted(&self, file: FileId, is_wanted: bool) {
        let Some((_, wanted)) = lease_marks(file) else { return };
        match is_wanted {
            // Without it, the lease comes later.
            true => drop(self.0.try_share(wanted)),
            false => self.0.release(wanted),
        }
    }

    fn is_wanted(&self, file: FileId) -> bool {
        lease_marks(file).is_some_and(|(_, wanted)| self.0.is_marked(wanted).unwrap_or(false))
    }
}
