//! The pool: files and their properties, read and changed in transactions.
//!
//! What a pool can do, by task:
//!
//! | | |
//! | --- | --- |
//! | create, open, close | [`Pool::create`], [`Pool::open_path`], [`Pool::close`] |
//! | find files | [`Pool::resolve`], [`Pool::file`], [`Pool::list`], [`Pool::attributes`] |
//! | read and write | [`File::read_at`], [`File::write_at`], [`File::set_len`], [`File::commit`] |
//! | change names | [`Pool::edit`] with [`Edit`], [`Pool::create_file_at`], [`Pool::remove_at`] |
//! | properties | [`Pool::set_property`], [`Pool::properties`], [`Property`], [`Settings`] |
//! | many small changes | [`Group::edit`], [`Group::commit`] |
//! | bring in many files | [`Pool::import`] with an [`Import`] |
//! | snapshots | [`Pool::create_snapshot`], [`Pool::open_snapshot`], [`Pool::rollback`] |
//! | another pool | [`Pool::send`], [`Pool::receive`] |
//! | space | [`Pool::stats`], [`Pool::usage`], [`Pool::fold`], [`Pool::compact`] |
//! | near-copies | [`Pool::optimize`] with a [`SegmentGoal`] |
//! | damage | [`Pool::check`], [`Pool::repair`], [`Salvage`] |
//!
//! Where to start reading the source:
//!
//! * the write path: [`File::write_at`] gathers changes in memory, `write/` turns them into records
//!   and patches, [`crate::store::Txn::commit`] publishes them;
//! * the read path: [`File::read_at`], then `extents/`, then [`crate::store::Store::read`].
//!
//! A file has a single set of uncommitted changes: it relies on its users (for a database, on
//! SQLite's locks) to allow one writer at a time. Uncommitted changes are visible to readers of the
//! same file in this process, and to nobody else.

mod check;
mod extents;
mod file;
#[doc(hidden)]
pub mod fuzzing;
mod group;
mod import;
mod maintain;
mod namespace;
mod optimize;
mod salvage;
mod snapshots;
mod stream;
mod write;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use self::check::repair::RepairReport;
pub use self::check::{CheckReport, Problem};
pub use self::extents::FILE_LEN_MAX;
use self::extents::source::Committed;
pub use self::file::File;
pub use self::group::{Group, Kept, View};
pub use self::import::{Import, ImportReport, Refused};
pub use self::maintain::compact::{CompactEstimate, CompactReport, Compaction};
pub use self::maintain::fold::Fold;
pub use self::maintain::repack::{Estimate, Repack};
pub use self::maintain::rewrite::{Clear, Step, StepLimits};
pub use self::maintain::sink::SINK_COMPRESSION;
pub use self::namespace::edit::Edit;
use self::namespace::entries;
pub use self::namespace::entries::{
    Attributes, DEPTH_MAX, DeviceNumber, DirEntry, FIRST_FILE, FileOwner, Kind, NAME_LEN_MAX, ROOT,
    TARGET_LEN_MAX, XATTR_LEN_MAX, Xattr,
};
pub use self::namespace::props::Auto;
pub use self::namespace::props::{
    Concurrency, Dedup, FilterChoice, Property, PropertySource, RECORD_LEN_RANGE, Settings,
};
pub use self::namespace::usage::{Usage, UsageBelow};
pub use self::optimize::{
    Again, Forecast, ForecastLook, ForecastPiece, ForecastPlace, Met, Optimisation, OptimizeReport,
    OptimizeStage, SegmentGoal,
};
pub use self::salvage::{
    Fate, FoundBy, PART_LEN, Part, Salvage, SalvageDirectory, SalvageFile, Stretch,
};
pub use self::snapshots::address::InSnapshot;
pub use self::snapshots::clone::CloneSource;
pub use self::snapshots::diff::{Change, Difference};
pub use self::snapshots::rewind::StateReport;
pub use self::snapshots::rollback::RollbackAsks;
pub use self::snapshots::{SnapshotInfo, SnapshotSpace};
#[cfg(test)]
pub(crate) use self::stream::format as stream_format;
pub use self::stream::{ReceiveOptions, ReceiveReport, ResumeToken, SendPlan, SendReport};
pub use self::write::adapt::{Choice, Clock};
pub use self::write::chunks::{cut as cut_chunks, is_changed_in_place};
use crate::device::{Device, FileDevice};
use crate::error::{Error, Result};
use crate::store::cache::Caches;
pub use crate::store::checksum::ChecksumKind;
pub use crate::store::format::refs::HashKind;
use crate::store::format::snapshot::Scope;
pub use crate::store::format::snapshot::StateId;
use crate::store::format::superblock::FEATURE_GENERATIONS;
use crate::store::shared_cache::SharedCache;
pub use crate::store::sharing::index::IndexStats;
pub use crate::store::snapshots::dead::Held;
pub use crate::store::stats::{CodecStats, FilterStats, PoolStats};
use crate::store::trees::TreeId;
use crate::store::{Durability, Patience, State, Store, Txn};
use crate::system;
use crate::units::{Ashift, FileId, Txg};

/// If a file has more uncommitted changes than this, they are compressed and written ahead of the
/// commit.
const DIRTY_LEN_MAX: usize = 32 << 20;

/// The number of unused file handles that are kept.
const HANDLES_KEPT: usize = 1024;

/// How long a change of properties waits for another transaction of the same process.
const CHANGE_WAIT: Duration = Duration::from_secs(2);

/// Options of an open pool. None of them is stored.
#[derive(Clone)]
pub struct Options {
    /// The caches to use. Pools that are given the same caches share them.
    pub caches: Arc<Caches>,
    /// The cache that processes share, if one is to be used.
    pub shared_cache: Option<Arc<SharedCache>>,
    /// The number of threads that compress; 1 for the caller's only, `None` for one for each
    /// processor.
    pub threads: Option<usize>,
    /// The uncommitted bytes that a file may hold in memory.
    pub dirty_len_max: usize,
    /// The clock for `compression=auto`.
    pub clock: Clock,
    /// Returns the time of day, in nanoseconds since 1970, which a commit records as the time of a
    /// file's last change; 0 if it is unknown.
    pub now_ns: fn() -> i64,
    /// Returns the owner of files that are created without naming one, if it is known.
    pub owner: fn() -> Option<FileOwner>,
    /// Asked before each record is compressed, and while a check reads. Once it returns true, the
    /// work under way fails with [`Error::Stopped`], and its transaction is
    /// abandoned.
    pub is_stopped: fn() -> bool,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("caches", &self.caches)
            .field("shared_cache", &self.shared_cache)
            .field("threads", &self.threads)
            .field("dirty_len_max", &self.dirty_len_max)
            .finish_non_exhaustive()
    }
}

impl Options {
    /// Returns options with caches of `cache_bytes`, a thread for each processor, and the system's
    /// clock for `compression=auto`. Times of changes and owners are unknown.
    pub fn new(cache_bytes: u64) -> Options {
        Options {
            caches: Caches::new(cache_bytes),
            shared_cache: None,
            threads: None,
            dirty_len_max: DIRTY_LEN_MAX,
            clock: system::clock(),
            now_ns: || 0,
            owner: || None,
            is_stopped: || false,
        }
    }

    /// Returns the number of threads that compress. Processors are counted only once somebody asks:
    /// whoever reads a few rows does not.
    pub fn threads(&self) -> usize {
        self.threads.unwrap_or_else(system::processor_count)
    }
}

/// Options that are fixed when a pool is created.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// Identifies the pool: 16 random bytes.
    pub guid: [u8; 16],
    /// Sectors are `2^ashift` bytes.
    pub ashift: Ashift,
    /// Properties to set on the root, as text.
    pub properties: Vec<(Property, String)>,
    /// The file to create in the pool, if any.
    pub file_name: Option<String>,
    /// The permission bits of that file; 0 if unknown.
    pub file_mode: u32,
}

impl CreateOptions {
    /// Returns options for an empty pool with sectors of 512 bytes and default properties.
    pub fn new(guid: [u8; 16]) -> CreateOptions {
        CreateOptions {
            guid,
            ashift: Ashift::MIN,
            properties: Vec::new(),
            file_name: None,
            file_mode: 0,
        }
    }
}

/// An open pool. Clones are handles of the same pool.
#[derive(Clone, Debug)]
pub struct Pool {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    store: Arc<Store>,
    options: Options,
    files: Mutex<BTreeMap<FileId, Arc<File>>>,
    /// The part of the pool that a snapshot keeps, if this is one.
    of: Option<Scope>,
}

/// A property with its value and the origin of that value.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PropertyValue {
    /// The property.
    pub property: Property,
    /// Its value as text.
    pub value: String,
    /// Where the value comes from.
    pub source: PropertySource,
}

/// Returns how long readers may hold a state, for the store layer.
fn reader_pin_max(store: &Store, state: &State) -> Result<Option<Duration>> {
    Ok(entries::settings(&mut Committed::new(store, state), ROOT)?.0.reader_pin_max)
}

impl Pool {
    /// Creates a pool on an empty device, with one empty file if asked for, and opens it. The pool
    /// is durable when this returns.
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

    /// Creates the root and the file of a pool whose creation was interrupted; a complete pool
    /// stays as it is.
    pub fn complete_creation(&self, create: &CreateOptions) -> Result<()> {
        let mut settings = Settings::default();
        for (property, text) in &create.properties {
            settings.set(*property, text)?;
        }
        let mut txn = self.store().begin(settings.checksum)?;
        if !txn.is_empty(TreeId::Names) {
            return Ok(());
        }
        entries::create_root(&mut txn)?;
        for (property, _) in &create.properties {
            entries::set_property(&mut txn, ROOT, *property, Some(&settings.get(*property)))?;
        }
        if let Some(name) = &create.file_name {
            let mode = create.file_mode;
            let first = self.stamped(Attributes { mode, ..Attributes::new(Kind::File, ROOT) });
            entries::create_first(&mut txn, name.as_bytes(), &first)?;
        }
        txn.commit(Durability::Durable).map(drop)
    }

    /// Adds what the options know about every new file: its owner, and the present time.
    fn stamped(&self, new: Attributes) -> Attributes {
        let now = (self.options().now_ns)();
        let owner = new.owner.or_else(self.options().owner);
        let created_ns = if owner.is_some() { now } else { new.created_ns };
        Attributes { owner, modified_ns: now, changed_ns: created_ns, created_ns, ..new }
    }

    /// Opens the newest intact state of a pool.
    pub fn open(device: Arc<dyn Device>, options: Options) -> Result<Pool> {
        let store = Store::open(device, Arc::clone(&options.caches))?;
        Ok(Pool::with_store(store, options))
    }

    /// Opens the pool in a file, read-only if the system does not permit writing.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be opened, and the errors of [`Pool::open`].
    pub fn open_path(path: &Path, options: Options) -> Result<Pool> {
        let device = FileDevice::open(path).map_err(|error| Error::io("open", error))?;
        Pool::open(Arc::new(device), options)
    }

    fn with_store(store: Arc<Store>, options: Options) -> Pool {
        store.set_scope_test(snapshots::is_in_scope);
        store.set_pin_limit(reader_pin_max);
        store.set_clock(Arc::clone(&options.clock));
        if let Some(shared) = &options.shared_cache {
            store.set_shared_cache(Arc::clone(shared));
        }
        Pool { shared: Arc::new(Shared { store, options, files: Mutex::default(), of: None }) }
    }

    /// Returns the underlying store.
    #[doc(hidden)]
    pub fn store(&self) -> &Arc<Store> {
        &self.shared.store
    }

    /// Returns the options of the pool.
    pub fn options(&self) -> &Options {
        &self.shared.options
    }

    /// Returns the number of the commit that reads see.
    pub fn txg(&self) -> Txg {
        self.state().txg()
    }

    /// Returns how much is stored, and how well it is compressed, in the state that reads see.
    pub fn stats(&self) -> PoolStats {
        *self.state().stats()
    }

    /// Returns the committed state that reads see.
    #[doc(hidden)]
    pub fn state(&self) -> Arc<State> {
        self.store().state()
    }

    /// Adopts the newest state committed by other processes. Returns whether there was one.
    pub fn refresh(&self) -> Result<bool> {
        self.store().refresh()
    }

    /// Returns how often commits of other processes were adopted.
    pub fn adoptions(&self) -> u64 {
        self.store().adoptions()
    }

    /// Returns the generation of a file's content, which changes when the content is replaced by
    /// anything other than writes to the file: older logs and journals do not belong to it. 0 if it
    /// was never replaced.
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

    fn files(&self) -> MutexGuard<'_, BTreeMap<FileId, Arc<File>>> {
        self.shared.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets a property of a file, or of the pool if `file` is [`ROOT`], for data written from now
    /// on.
    pub fn set_property(&self, file: FileId, property: Property, text: &str) -> Result<()> {
        self.change(|txn| Edit::new(txn, 0).set_property(file, property, text))
    }

    /// Removes a property set locally, so that it is inherited again.
    pub fn inherit_property(&self, file: FileId, property: Property) -> Result<()> {
        self.change(|txn| entries::set_property(txn, file, property, None))
    }

    /// Sets a file's modification time and permission bits.
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

    /// Returns statistics of the content index.
    pub fn index_stats(&self) -> Result<IndexStats> {
        self.store().index_stats()
    }

    /// Drops the content index. It is rebuilt when it is next needed.
    pub fn drop_index(&self, patience: Patience) -> Result<()> {
        self.store().drop_index(self.settings(ROOT)?.checksum, patience)
    }

    /// Rebuilds the content index. `progress` receives how many extents were examined so far and
    /// returns whether to go on.
    pub fn rebuild_index(
        &self,
        patience: Patience,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<()> {
        let settings = self.settings(ROOT)?;
        self.store().set_index_memory(u64::from(settings.dedup_memory));
        self.store().rebuild_index(settings.checksum, patience, progress)
    }

    /// Removes stale entries from the content index. `progress` receives how many entries were
    /// examined so far and returns whether to go on.
    pub fn prune_index(
        &self,
        patience: Patience,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<()> {
        self.store().prune_index(self.settings(ROOT)?.checksum, patience, progress)
    }

    /// Ignores errors, which only cost the next look-up some time.
    fn close_index(&self) {
        if let Ok(settings) = self.settings(ROOT) {
            let _ = self.store().close_index(settings.checksum);
        }
    }

    /// Reads and verifies everything: every node, every record, and that free and reachable space
    /// together make up the whole pool. `progress` receives the stored bytes verified so far.
    pub fn check(&self, progress: &mut dyn FnMut(u64)) -> Result<CheckReport> {
        if self.shared.of.is_some() {
            return Err(Error::Invalid(
                "a snapshot cannot be checked on its own; check its pool".into(),
            ));
        }
        check::check(self, progress)
    }

    /// Closes the pool: ends background work and leaves nothing to verify for the next opening.
    pub fn close(&self) -> Result<()> {
        self.files().values().for_each(|file| file.quiesce());
        self.close_index();
        self.store().seal()
    }
}
