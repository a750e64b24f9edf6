//! The pool: files and their properties, read and changed in transactions.
//!
//! Where to start reading:
//!
//! * the write path: [`File::write_at`] gathers changes in memory, `write.rs` turns them into
//!   records and patches, [`crate::store::Txn::commit`] publishes them;
//! * the read path: [`File::read_at`], then `extents.rs`, then [`crate::store::Store::read`].
//!
//! A file has one set of uncommitted changes, whoever makes them: it relies on its users (SQLite's
//! locks, for a database) to let one write at a time. What is uncommitted is seen by readers of the
//! same file in this process, and by nobody else.

mod check;
mod extents;
mod file;
#[doc(hidden)]
pub mod fuzzing;
mod import;
mod maintain;
mod namespace;
mod salvage;
mod snapshots;
mod stream;
mod write;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use self::check::repair::RepairReport;
pub use self::check::{CheckReport, Problem};
use self::extents::source::Committed;
pub use self::file::File;
pub use self::import::{Import, ImportReport};
pub use self::maintain::compact::{CompactEstimate, CompactReport, Compaction};
pub use self::maintain::fold::Fold;
pub use self::maintain::repack::{Estimate, Repack};
pub use self::maintain::rewrite::{Clear, Step, StepLimits};
pub use self::maintain::sink::SINK_COMPRESSION;
pub use self::namespace::edit::Edit;
use self::namespace::entries;
pub use self::namespace::entries::{
    Attributes, DEPTH_MAX, DirEntry, FileOwner, Kind, NAME_LEN_MAX, ROOT, TARGET_LEN_MAX,
    XATTR_LEN_MAX, Xattr,
};
pub use self::namespace::props::Auto;
pub use self::namespace::props::{
    Dedup, FilterChoice, Property, PropertySource, RECORD_LEN_RANGE, Settings,
};
pub use self::namespace::usage::{Usage, UsageBelow};
pub use self::salvage::{
    Fate, FoundBy, PART_LEN, Part, Salvage, SalvageDirectory, SalvageFile, Stretch,
};
pub use self::snapshots::address::InSnapshot;
pub use self::snapshots::diff::{Change, Difference};
pub use self::snapshots::rewind::StateReport;
pub use self::snapshots::{SnapshotInfo, SnapshotSpace};
#[cfg(test)]
pub(crate) use self::stream::format as stream_format;
pub use self::stream::{ReceiveOptions, ReceiveReport, ResumeToken, SendPlan, SendReport};
pub use self::write::adapt::{Choice, Clock};
use crate::device::{Device, FileDevice};
use crate::error::{Error, Result};
use crate::store::cache::Caches;
use crate::store::format::superblock::FEATURE_GENERATIONS;
use crate::store::sharing::index::IndexStats;
use crate::store::snapshots::Scope;
use crate::store::trees::NAMES;
use crate::store::{Durability, Patience, State, Store, Txn};
use crate::units::FileId;

/// Uncommitted changes of a file beyond this are compressed and written ahead of the commit.
const DIRTY_LEN_MAX: usize = 32 << 20;

/// Handles of files that are kept though nobody uses them.
const HANDLES_KEPT: usize = 1024;

/// How long a change of properties waits for a transaction of the same process.
const CHANGE_WAIT: Duration = Duration::from_secs(2);

/// How a pool is run. None of it is stored.
#[derive(Clone)]
pub struct Options {
    /// The caches to use; shared by all pools that are given the same.
    pub caches: Arc<Caches>,
    /// How many threads compress; 1 for none besides the caller's.
    pub threads: usize,
    /// Uncommitted bytes a file may hold in memory.
    pub dirty_len_max: usize,
    /// Tells the time to `compression=auto`.
    pub clock: Clock,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("caches", &self.caches)
            .field("threads", &self.threads)
            .field("dirty_len_max", &self.dirty_len_max)
            .finish_non_exhaustive()
    }
}

impl Options {
    /// Caches of `cache_bytes`, a thread for each processor, and the system's clock.
    pub fn new(cache_bytes: u64) -> Options {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let began = Instant::now();
        let clock = Arc::new(move || began.elapsed());
        Options { caches: Caches::new(cache_bytes), threads, dirty_len_max: DIRTY_LEN_MAX, clock }
    }
}

/// What cannot be changed later.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// Identifies the pool: 16 random bytes.
    pub guid: [u8; 16],
    /// Sectors are `2^ashift` bytes.
    pub ashift: u8,
    /// Properties to set on the root, as text.
    pub properties: Vec<(Property, String)>,
    /// The file to create in it, if any.
    pub file_name: Option<String>,
}

/// An open pool. Cloning it gives another handle of the same.
#[derive(Clone, Debug)]
pub struct Pool {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    store: Arc<Store>,
    options: Options,
    files: Mutex<HashMap<FileId, Arc<File>>>,
    /// What it keeps the bytes of, where it is a snapshot.
    of: Option<Scope>,
}

/// One property with where its value comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PropertyValue {
    /// Which one.
    pub property: Property,
    /// Its value as text.
    pub value: String,
    /// Who says so.
    pub source: PropertySource,
}

impl Pool {
    /// Creates a pool, with one empty file where that is asked for, on an empty device, and opens it. It is durable when this
    /// returns.
    pub fn create(
        device: Arc<dyn Device>,
        create: &CreateOptions,
        options: Options,
    ) -> Result<Pool> {
        let mut settings = Settings::default();
        for (property, text) in &create.properties {
            settings.set(*property, text)?;
        }
        let store = Store::create(device, Arc::clone(&options.caches), create.guid, create.ashift)?;
        let pool = Pool::with_store(store, options);
        pool.complete_creation(create)?;
        Ok(pool)
    }

    /// Gives a pool whose creation was cut short its root and its file; one that has them stays as
    /// it is.
    pub fn complete_creation(&self, create: &CreateOptions) -> Result<()> {
        let mut settings = Settings::default();
        for (property, text) in &create.properties {
            settings.set(*property, text)?;
        }
        let mut txn = self.store().begin(settings.checksum)?;
        if !txn.is_empty(NAMES) {
            return Ok(());
        }
        entries::create_root(&mut txn)?;
        for (property, _) in &create.properties {
            entries::set_property(&mut txn, ROOT, *property, Some(&settings.get(*property)))?;
        }
        if let Some(name) = &create.file_name {
            entries::create_first(&mut txn, name.as_bytes())?;
        }
        txn.commit(Durability::Durable).map(drop)
    }

    /// Opens the newest state of a pool that is whole.
    pub fn open(device: Arc<dyn Device>, options: Options) -> Result<Pool> {
        let store = Store::open(device, Arc::clone(&options.caches))?;
        Ok(Pool::with_store(store, options))
    }

    /// Opens the pool in a file, to read only where the system allows no more.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be opened, and those of [`Pool::open`].
    pub fn open_path(path: &Path, options: Options) -> Result<Pool> {
        let device = FileDevice::open(path).map_err(|error| Error::io("open", error))?;
        Pool::open(Arc::new(device), options)
    }

    fn with_store(store: Arc<Store>, options: Options) -> Pool {
        store.set_scope_test(snapshots::is_in_scope);
        Pool { shared: Arc::new(Shared { store, options, files: Mutex::default(), of: None }) }
    }

    /// The store below.
    pub fn store(&self) -> &Arc<Store> {
        &self.shared.store
    }

    /// How the pool is run.
    pub fn options(&self) -> &Options {
        &self.shared.options
    }

    /// The committed state that reads see.
    pub fn state(&self) -> Arc<State> {
        self.store().state()
    }

    /// Takes over what other processes have committed.
    pub fn refresh(&self) -> Result<bool> {
        self.store().refresh()
    }

    /// The generation of a file's content, which is another one after the content was exchanged by anything but writes
    /// to the file: logs and journals from before do not belong to it. 0 where it never was.
    pub fn generation(&self, file: FileId) -> Result<u64> {
        if self.state().superblock.incompat & FEATURE_GENERATIONS == 0 {
            return Ok(0);
        }
        self.read(|source| entries::generation(source, file))
    }

    fn read<R>(&self, read: impl Fn(&mut Committed<'_>) -> Result<R>) -> Result<R> {
        let store = self.store();
        store.with_state(|state| read(&mut Committed::new(store, state)))
    }

    fn files(&self) -> MutexGuard<'_, HashMap<FileId, Arc<File>>> {
        self.shared.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets a property of a file, or of the pool where `file` is [`ROOT`], for what is written from
    /// now on.
    pub fn set_property(&self, file: FileId, property: Property, text: &str) -> Result<()> {
        if property == Property::DedupMemory && file != ROOT {
            return Err(Error::Invalid(format!("{property} is set for the pool, not for a file")));
        }
        let mut settings = Settings::default();
        settings.set(property, text)?;
        let text = settings.get(property);
        self.change(|txn| entries::set_property(txn, file, property, Some(&text)))
    }

    /// Makes a property inherited again.
    pub fn inherit_property(&self, file: FileId, property: Property) -> Result<()> {
        self.change(|txn| entries::set_property(txn, file, property, None))
    }

    /// Sets when a file was last changed, and its permission bits.
    pub fn set_attributes(&self, file: FileId, mode: u32, modified_ns: i64) -> Result<()> {
        self.change(|txn| {
            let attributes = entries::attributes(txn, file)?;
            entries::set_attributes(txn, file, &Attributes { mode, modified_ns, ..attributes })
        })
    }

    fn change<R>(&self, change: impl FnOnce(&mut Txn) -> Result<R>) -> Result<R> {
        let settings = self.settings(ROOT)?;
        let patience = Patience::Within(CHANGE_WAIT);
        let mut txn = self.store().begin_with(settings.checksum, patience)?;
        let done = change(&mut txn)?;
        txn.commit(Durability::Durable)?;
        Ok(done)
    }

    /// What the index of content holds, takes and did.
    pub fn index_stats(&self) -> Result<IndexStats> {
        self.store().index_stats()
    }

    /// Drops the index of content. It is built anew when it is needed next.
    pub fn drop_index(&self, patience: Patience) -> Result<()> {
        self.store().drop_index(self.settings(ROOT)?.checksum, patience)
    }

    /// Builds the index of content anew. `progress` gets how many extents were looked at so far, and says whether
    /// to go on.
    pub fn rebuild_index(
        &self,
        patience: Patience,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<()> {
        let settings = self.settings(ROOT)?;
        self.store().set_index_memory(u64::from(settings.dedup_memory));
        self.store().rebuild_index(settings.checksum, patience, progress)
    }

    /// Removes entries from the index of content that lead to what is gone. `progress` gets how many entries were
    /// looked at so far, and says whether to go on.
    pub fn prune_index(
        &self,
        patience: Patience,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<()> {
        self.store().prune_index(self.settings(ROOT)?.checksum, patience, progress)
    }

    /// What fails here costs the next to look for content some time.
    fn close_index(&self) {
        if let Ok(settings) = self.settings(ROOT) {
            let _ = self.store().close_index(settings.checksum);
        }
    }

    /// Reads and verifies everything: every node, every record, and that free space and what is
    /// reachable make up the whole pool. `progress` gets the stored bytes verified so far.
    pub fn check(&self, progress: &mut dyn FnMut(u64)) -> Result<CheckReport> {
        if self.shared.of.is_some() {
            return Err(Error::Invalid("a snapshot is checked with its pool".into()));
        }
        check::check(self, progress)
    }

    /// Ends the use of the pool: nothing goes on in the background any more, and the next to open it
    /// has nothing to verify.
    pub fn close(&self) -> Result<()> {
        self.files().values().for_each(|file| file.quiesce());
        self.close_index();
        self.store().seal()
    }
}
