//! The workloads: what programs do with databases, at random from a seed, recorded on the way to
//! the disk, with a note before each transaction and one when it was acknowledged.

use std::path::{Path, PathBuf};

use hardpack_engine::FileId;
use hardpack_engine::device::FileDevice;
use hardpack_engine::pool::{Fold, Options, Pool, Property, Settings, StepLimits};
use hardpack_engine::store::Patience;
use rusqlite::{Connection, ErrorCode};

use super::disk::{Note, POOL_NAMES, Promise};
use super::model::{self, Model, Transaction};
use super::recorder;
use crate::common::{self, Random, interpose};

/// Nothing runs in the background, so each run of a seed does the same.
const PARAMETERS: &str = "&hardpack_background_cpu=0%25";
/// The names of the databases of one pool.
const ENTRY_NAMES: [&str; 2] = ["one.db", "other.db"];
const MAINTENANCE_CACHE_LEN: u64 = 1 << 20;

/// A kind of workload.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub name: &'static str,
    /// The number of databases, each in its own pool; two are attached to one connection.
    pub pools: usize,
    /// Whether the databases are in the first pool instead.
    pub one_pool: bool,
    pub journal: &'static [&'static str],
    pub synchronous: &'static [&'static str],
    /// Whether journal modes change in between.
    pub switches: bool,
    /// Whether operations on the whole database are frequent: VACUUM, backups into it.
    pub whole: bool,
    /// Whether checkpoints have little room, so that they copy the log in parts, if at all.
    pub cramped: bool,
    /// Whether the recording begins before the databases exist.
    pub creation: bool,
    /// The number of steps in the recorded part.
    pub steps: u64,
    /// The number of steps before it.
    pub earlier: u64,
}

const ROLLBACK: &[&str] = &["delete", "truncate", "persist", "memory", "off"];
const ANY: &[&str] = &["delete", "truncate", "persist", "memory", "wal", "wal"];
const ON_DISK: &[&str] = &["delete", "truncate", "persist"];
const SYNCED: &[&str] = &["normal", "full", "extra"];

const fn shape(
    name: &'static str,
    journal: &'static [&'static str],
    synchronous: &'static [&'static str],
) -> Shape {
    Shape {
        name,
        pools: 1,
        one_pool: false,
        journal,
        synchronous,
        switches: false,
        whole: false,
        cramped: false,
        creation: false,
        steps: 16,
        earlier: 10,
    }
}

/// All kinds of workloads.
pub const SHAPES: &[Shape] = &[
    shape("rollback", ROLLBACK, SYNCED),
    shape("rollback, not synced", ROLLBACK, &["off"]),
    shape("log, full", &["wal"], &["full", "extra"]),
    shape("log, normal", &["wal"], &["normal"]),
    shape("log, not synced", &["wal"], &["off"]),
    Shape { cramped: true, ..shape("log, little room", &["wal"], &["normal", "full", "extra"]) },
    Shape { pools: 2, ..shape("attached", ON_DISK, SYNCED) },
    Shape { pools: 2, one_pool: true, ..shape("attached, one pool", ON_DISK, SYNCED) },
    Shape { pools: 2, ..shape("attached, log", &["wal"], &["normal", "full"]) },
    Shape { pools: 2, ..shape("attached, not synced", &["delete", "memory"], &["off"]) },
    Shape { switches: true, ..shape("modes change", ANY, SYNCED) },
    Shape {
        switches: true,
        ..shape("modes change, synced or not", &["delete", "truncate", "memory"], &["off", "full"])
    },
    Shape { whole: true, ..shape("whole database", ROLLBACK, &["full", "off", "normal"]) },
    Shape { whole: true, ..shape("whole database, log", &["wal"], &["full", "normal"]) },
    Shape {
        creation: true,
        steps: 8,
        earlier: 0,
        ..shape("creation", &["delete", "wal", "persist"], &["full", "normal"])
    },
    Shape {
        creation: true,
        pools: 2,
        steps: 6,
        earlier: 0,
        ..shape("creation, attached", ON_DISK, &["normal", "full"])
    },
    Shape {
        creation: true,
        pools: 2,
        one_pool: true,
        steps: 6,
        earlier: 0,
        ..shape("creation, one pool", ON_DISK, &["normal", "full"])
    },
];

impl Shape {
    /// Whether a power loss may damage a database of this shape, as it may without Hardpack.
    pub fn may_damage(&self) -> bool {
        self.journal.contains(&"wal") && self.synchronous.contains(&"off")
    }

    /// Returns the path of the pool that holds a database.
    pub fn pool(&self, directory: &Path, index: usize) -> PathBuf {
        directory.join(POOL_NAMES[if self.one_pool { 0 } else { index }])
    }

    /// Returns the path of a database.
    fn database(&self, directory: &Path, index: usize) -> PathBuf {
        let pool = self.pool(directory, index);
        if self.one_pool { pool.join(ENTRY_NAMES[index]) } else { pool }
    }

    /// Opens one database alone.
    pub fn open_one(&self, directory: &Path, index: usize) -> rusqlite::Result<Connection> {
        let db = common::try_open(&self.database(directory, index), PARAMETERS)?;
        // There is nobody to wait for.
        db.busy_timeout(std::time::Duration::ZERO)?;
        db.execute_batch("pragma temp_store=memory")?;
        Ok(db)
    }

    /// Whether transactions across files are atomic.
    pub fn is_atomic(&self) -> bool {
        !self.journal.contains(&"wal") && !self.synchronous.contains(&"off")
    }
}

/// The settings that differ from seed to seed.
#[derive(Clone, Debug)]
pub struct Setup {
    pub journal: String,
    pub synchronous: String,
    page_size: u64,
    cache_size: u64,
    auto_vacuum: u64,
    auto_checkpoint: u64,
    exclusive: bool,
    properties: String,
}

fn pick<T: Clone>(random: &mut Random, from: &[T]) -> T {
    from[random.below(from.len() as u64) as usize].clone()
}

impl Setup {
    pub fn new(shape: &Shape, random: &mut Random) -> Setup {
        let record = pick(random, &["4K", "16K", "64K", "128K"]);
        let compression = pick(random, &["lz4", "zstd-1", "zstd-3", "off", "gzip-1"]);
        let checksum = pick(random, &["xxh3", "xxh3", "blake3"]);
        Setup {
            journal: pick(random, shape.journal).into(),
            synchronous: pick(random, shape.synchronous).into(),
            page_size: pick(random, &[512, 1024, 4096, 4096, 16384, 65536]),
            cache_size: pick(random, &[2, 5, 10, 100, 1000]),
            auto_vacuum: random.below(3),
            auto_checkpoint: match shape.cramped {
                true => 0,
                false => pick(random, &[0, 3, 20, 1000]),
            },
            exclusive: shape.pools == 1 && random.below(8) == 0,
            properties: format!(
                "&hardpack_recordsize={record}&hardpack_compression={compression}\
                 &hardpack_checksum={checksum}"
            ),
        }
    }

    fn pragmas(&self, schema: &str) -> String {
        let Setup { journal, synchronous, page_size, cache_size, auto_vacuum, .. } = self;
        format!(
            "pragma {schema}.page_size={page_size}; pragma {schema}.auto_vacuum={auto_vacuum};
             pragma {schema}.cache_size={cache_size}; pragma {schema}.synchronous={synchronous};
             pragma {schema}.journal_mode={journal};"
        )
    }

    /// Returns what an acknowledged transaction may rely on.
    fn promise(&self) -> Promise {
        match (self.journal.as_str(), self.synchronous.as_str()) {
            ("wal", "full" | "extra") => Promise::Durable,
            ("wal", _) => Promise::WithLog,
            (_, "off") => Promise::WithPool,
            _ => Promise::Durable,
        }
    }
}

/// A running workload.
pub struct Session {
    pub directory: PathBuf,
    pub shape: Shape,
    pub setup: Setup,
    pub model: Model,
    pub random: Random,
    db: Option<Connection>,
    reader: Option<(Connection, u64)>,
}

fn text(error: rusqlite::Error) -> String {
    format!("{error} ({:?})", error.sqlite_error().map(|error| error.extended_code))
}

impl Session {
    /// Creates a workload in a directory that is empty or has the content that `model` says.
    pub fn new(directory: &Path, shape: Shape, model: Model, mut random: Random) -> Session {
        let setup = Setup::new(&shape, &mut random);
        let directory = directory.to_path_buf();
        Session { directory, shape, setup, model, random, db: None, reader: None }
    }

    /// Opens all databases, and applies the settings that each connection needs.
    pub fn open(&mut self) -> rusqlite::Result<()> {
        let parameters = format!("{PARAMETERS}{}", self.setup.properties);
        let db = common::try_open(&self.shape.database(&self.directory, 0), &parameters)?;
        db.busy_timeout(std::time::Duration::ZERO)?;
        db.execute_batch("pragma temp_store=memory")?;
        if self.shape.pools == 2 {
            let other = common::uri(&self.shape.database(&self.directory, 1), &parameters);
            db.execute_batch(&format!("attach '{other}' as b"))?;
        }
        if self.setup.exclusive {
            db.execute_batch("pragma locking_mode=exclusive")?;
        }
        for schema in ["main", "b"].iter().take(self.shape.pools) {
            db.execute_batch(&self.setup.pragmas(schema))?;
        }
        db.execute_batch(&format!("pragma wal_autocheckpoint={}", self.setup.auto_checkpoint))?;
        self.db = Some(db);
        Ok(())
    }

    /// Closes all connections.
    pub fn close(&mut self) {
        self.reader = None;
        self.db = None;
    }

    pub fn db(&self) -> &Connection {
        self.db.as_ref().expect("the workload has opened its databases")
    }

    /// Runs some steps; no step may fail.
    pub fn steps(&mut self, count: u64) -> Result<(), String> {
        for _ in 0..count {
            let what = self.random.below(24);
            self.step(what).map_err(|error| format!("step {what}, {:?}: {error}", self.setup))?;
        }
        Ok(())
    }

    fn step(&mut self, what: u64) -> Result<(), String> {
        let created = self.model.newest > 0;
        match what {
            0..=11 => self.transact(),
            _ if !created => self.transact(),
            12 => self.rolled_back(),
            13 if self.setup.journal == "wal" => self.checkpoint(),
            14 => self.read(),
            15 => self.maintain(),
            16 => self.set_property(),
            17 => {
                self.close();
                self.open().map_err(text)
            }
            18 if self.shape.switches => self.switch(),
            19 | 20 if self.shape.whole => self.whole(),
            19 if self.shape.cramped => self.checkpoint(),
            21 if self.shape.whole && self.setup.journal != "wal" => self.backup(),
            22 => {
                let (db, model) = (self.db(), &self.model.databases[0]);
                if model::digest(db).map_err(text)? == model::digest(model).map_err(text)? {
                    return Ok(());
                }
                Err("the content is wrong without any crash".into())
            }
            _ => self.transact(),
        }
    }

    /// Whether SQLite can roll back.
    fn can_roll_back(&self) -> bool {
        self.setup.journal != "off"
    }

    /// Returns the SQL of a transaction up to its COMMIT.
    fn sql(&mut self, transaction: &Transaction) -> String {
        // With IMMEDIATE, each database takes part in the commit, changed or not.
        let all = (0..self.shape.pools).all(|index| transaction.touches(index));
        let begin = if all && self.random.below(2) == 0 { "begin immediate" } else { "begin" };
        format!("{begin};\n{}", transaction.of_all())
    }

    fn transact(&mut self) -> Result<(), String> {
        let (transaction, sql) = self.next();
        self.db().execute_batch(&sql).map_err(text)?;
        self.db().execute_batch("commit").map_err(text)?;
        self.acknowledge(&transaction);
        Ok(())
    }

    /// Records that a transaction was acknowledged.
    pub fn acknowledge(&mut self, transaction: &Transaction) {
        recorder::note(Note::Ack(transaction.number, self.setup.promise()));
        self.model.end(true);
    }

    /// Begins a transaction in the model, and returns it with its SQL.
    pub fn next(&mut self) -> (Transaction, String) {
        let savepoints = self.can_roll_back();
        let transaction = self.model.next(&mut self.random, savepoints);
        let sql = self.sql(&transaction);
        self.model.begin(&transaction);
        self.model.expect(&transaction);
        recorder::note(Note::Begin(transaction.number));
        (transaction, sql)
    }

    fn rolled_back(&mut self) -> Result<(), String> {
        if !self.can_roll_back() {
            return self.transact();
        }
        let transaction = self.model.next(&mut self.random, true);
        let sql = self.sql(&transaction);
        self.db().execute_batch(&sql).map_err(text)?;
        self.db().execute_batch("rollback").map_err(text)
    }

    fn checkpoint(&mut self) -> Result<(), String> {
        let kind = pick(&mut self.random, &["passive", "full", "restart", "truncate"]);
        let sql = format!("pragma wal_checkpoint({kind})");
        if !self.shape.cramped {
            return self.db().execute_batch(&sql).map_err(text);
        }
        for _ in 0..self.random.below(6) {
            self.transact()?;
        }
        let pool = self.shape.pool(&self.directory, 0);
        let len = pool.metadata().map_err(|error| error.to_string())?.len();
        interpose::limit_files(Some(len + 512 * self.random.below(120)));
        let done = self.db().execute_batch(&sql);
        interpose::limit_files(None);
        match done {
            Err(error) if error.sqlite_error_code() != Some(ErrorCode::DiskFull) => {
                Err(text(error))
            }
            _ => Ok(()),
        }
    }

    /// Starts or ends a reader on another connection. With a write-ahead log it keeps its snapshot
    /// meanwhile.
    fn read(&mut self) -> Result<(), String> {
        if self.setup.exclusive {
            return Ok(());
        }
        if let Some((reader, number)) = self.reader.take() {
            if model::number_in(&reader).map_err(text)? != number {
                return Err("a reader's snapshot has moved".into());
            }
            return Ok(());
        }
        let reader = self.shape.open_one(&self.directory, 0).map_err(text)?;
        reader.execute_batch("begin").map_err(text)?;
        let number = model::number_in(&reader).map_err(text)?;
        if number != self.model.versions.number(0, self.model.newest) {
            return Err(format!("another connection sees transaction {number}"));
        }
        if self.setup.journal == "wal" {
            self.reader = Some((reader, number));
        }
        Ok(())
    }

    /// Does the work of maintenance with another engine, as another process would.
    fn maintain(&mut self) -> Result<(), String> {
        recorder::note(Note::Elsewhere(true));
        let done = self.maintain_elsewhere();
        recorder::note(Note::Elsewhere(false));
        done
    }

    fn maintain_elsewhere(&mut self) -> Result<(), String> {
        let index = self.random.below(self.shape.pools as u64) as usize;
        let path = self.shape.pool(&self.directory, index);
        let device = FileDevice::open(&path).map_err(|error| error.to_string())?;
        let options = Options { threads: Some(1), ..Options::new(MAINTENANCE_CACHE_LEN) };
        let pool = Pool::open(std::sync::Arc::new(device), options);
        let pool = pool.map_err(|error| error.to_string())?;
        let file = if self.shape.one_pool {
            match pool.resolve(ENTRY_NAMES[index].as_bytes()) {
                Ok(entry) => entry.file,
                // The database does not exist yet.
                Err(_) => return Ok(()),
            }
        } else {
            pool.only_file().map_err(|error| error.to_string())?.file
        };
        self.maintain_pool(&pool, file).map_err(|error| error.to_string())
    }

    fn maintain_pool(&mut self, pool: &Pool, file: FileId) -> hardpack_engine::Result<()> {
        let limits = StepLimits {
            rewrite_len_max: pick(&mut self.random, &[1, 40_000, 1 << 20]),
            patience: Patience::None,
            ..StepLimits::default()
        };
        let mut left = pick(&mut self.random, &[1, 3, 100]);
        let sync = self.random.below(2) == 0;
        match self.random.below(3) {
            0 => {
                let which = pick(&mut self.random, &[Fold::Due, Fold::All]);
                let mut next = Some(0);
                while let Some(from) = next.filter(|_| left > 0) {
                    next = pool.fold_step(file, which, from, &limits)?.next;
                    left -= 1;
                }
            }
            1 => {
                let mut goal = Settings::default();
                let level = pick(&mut self.random, &["lz4", "zstd-2", "gzip-1", "off"]);
                goal.set(Property::Compression, level)?;
                goal.set(Property::RecordSize, pick(&mut self.random, &["4K", "16K", "64K"]))?;
                let mut repack = match pool.unfinished_repack(file)? {
                    Some(unfinished) => unfinished,
                    None => pool.begin_repack(file, goal, limits.patience)?,
                };
                let mut next = Some(0);
                while let Some(from) = next.filter(|_| left > 0) {
                    next = pool.repack_step(&mut repack, &limits, None)?.next;
                    if sync {
                        pool.store().make_durable()?;
                    }
                    left -= 1;
                    let _ = from;
                }
            }
            _ => {
                let mut compaction = pool.compact();
                while left > 0 && compaction.step()? {
                    left -= 1;
                }
            }
        }
        if sync { pool.store().make_durable() } else { Ok(()) }
    }

    fn set_property(&mut self) -> Result<(), String> {
        let (name, value) = pick(
            &mut self.random,
            &[
                ("compression", "zstd-2"),
                ("compression", "lz4"),
                ("recordsize", "8K"),
                ("recordsize", "128K"),
                ("checksum", "sha256"),
                ("min_savings", "0%"),
            ],
        );
        let name = name.replace('_', "-");
        let sql = format!("pragma \"hardpack_{name}\"='{value}'");
        self.db().execute_batch(&sql).map_err(text)
    }

    fn switch(&mut self) -> Result<(), String> {
        self.reader = None;
        self.setup.journal = pick(&mut self.random, self.shape.journal).into();
        self.setup.synchronous = pick(&mut self.random, self.shape.synchronous).into();
        let Setup { journal, synchronous, .. } = &self.setup;
        let sql = format!("pragma synchronous={synchronous}; pragma journal_mode={journal}");
        self.db().execute_batch(&sql).map_err(text)
    }

    fn whole(&mut self) -> Result<(), String> {
        self.reader = None;
        let sql = match self.random.below(4) {
            0 => "pragma incremental_vacuum(3)".to_string(),
            1 => "pragma incremental_vacuum".to_string(),
            2 => format!("pragma auto_vacuum={}; vacuum", self.random.below(3)),
            _ => {
                let page_size = pick(&mut self.random, &[512, 2048, 4096, 32768]);
                format!("pragma page_size={page_size}; vacuum")
            }
        };
        self.db().execute_batch(&sql).map_err(text)
    }

    /// Runs a transaction elsewhere, and brings it here as a backup of the whole database.
    fn backup(&mut self) -> Result<(), String> {
        let (transaction, _) = self.next();
        self.model.end(true);
        let pages = pick(&mut self.random, &[-1, 5]);
        let (db, source) = (self.db.as_mut().unwrap(), &self.model.databases[0]);
        let backup = rusqlite::backup::Backup::new(source, db).map_err(text)?;
        while backup.step(pages).map_err(text)? == rusqlite::backup::StepResult::More {}
        drop(backup);
        recorder::note(Note::Ack(transaction.number, self.setup.promise()));
        Ok(())
    }
}
