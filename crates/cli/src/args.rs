//! Every flag of the command line, once.

mod files;
mod properties;
mod snapshots;
mod streams;

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand};
use hardpack_engine::pool::{Property, Settings};

pub use self::files::*;
pub use self::properties::*;
pub use self::snapshots::*;
pub use self::streams::*;
use crate::address::Address;

const EXIT_CODES: &str = "\
Exit codes:
    0  done
    1  something is wrong with the data ('check' found problems, a checksum does not match)
    2  wrong usage
    3  cannot: an I/O error, not found, exists already
    4  not a pool, or one that needs a newer version
    5  in use by another process
  130  interrupted; nothing is left behind";

const EXAMPLES: &str = "\
Examples:
  hardpack pack words.db                     make words.db.hpk of a database, even one in use
  hardpack pack words.db --in-place          replace the database by its pool
  hardpack sql words.db.hpk                  a shell on it
  hardpack info words.db.hpk                 what it holds and how well it compresses
  hardpack unpack words.db.hpk words2.db     give the database back

  hardpack put photos archive.hpk            whole directories, in a pool of many files
  hardpack ls -l archive.hpk/photos          what is there
  hardpack set compression=zstd-19 archive.hpk/photos
  hardpack extract archive.hpk/photos .      give them back";

const PACK_HELP: &str = "\
Any file is kept byte for byte. A SQLite database is packed as of one moment, with what is still in
its write-ahead log or hot journal; it may be in use meanwhile (in a rollback journal mode, others
can read it but wait with writing). The pool is written beside OUT, read back, compared, and only
then given its name.

Examples:
  hardpack pack words.db
  hardpack pack words.db small.hpk --compression zstd-19 --recordsize 1M
  hardpack pack words.db --in-place";

const REPACK_HELP: &str = "\
Programs can go on reading and writing meanwhile. What is interrupted goes on where it stopped when
the command is given again. Properties stay as they are: 'hardpack set' says how new data is written.
The pool keeps its length until its free space is used again; 'hardpack compact' gives it back.

Examples:
  hardpack repack --estimate --compression zstd-19 words.db.hpk
  hardpack repack --compression zstd-19 --recordsize 1M words.db.hpk
  hardpack repack words.db.hpk        to the properties in force, or what was interrupted";

const SQL_HELP: &str = "\
Without SQL, and on a terminal, this starts the stock sqlite3 shell with Hardpack loaded, where both
are found (libhardpack.so beside this program, in ../lib, or named by HARDPACK_LIBRARY); otherwise
statements are read from standard input.

Examples:
  hardpack sql words.db.hpk 'SELECT count(*) FROM words'
  hardpack sql --table words.db.hpk 'SELECT * FROM words LIMIT 3'
  hardpack sql words.db.hpk < changes.sql";

const COMPACT_HELP: &str = "\
After VACUUM or many changes a pool keeps its length, with free space in it. This moves what lies at
the end into the free space, a few MiB at a time, and cuts the file off behind it. Others can go on
reading and writing. Stopped at any time, it leaves a whole pool, and can be run again.

Examples:
  hardpack compact --estimate words.db.hpk   what it would give back
  hardpack compact words.db.hpk";

const SALVAGE_HELP: &str = "\
POOL is only read. Everything that verifies is copied; what is lost becomes zeros, and is listed with
its range. What was found, but may have been replaced since, is copied too, and listed as older. When
superblocks, header or roots are lost the whole pool is searched for what is left.
OUT is the file to create, or a directory to create files in. A log or journal beside POOL is not
read: copied beside OUT under OUT's name, SQLite applies it.

Exit code 1 says that something is missing.

Examples:
  hardpack salvage words.db.hpk saved.db
  hardpack salvage --rewind 41 words.db.hpk saved.db
  sqlite3 saved.db .recover | sqlite3 recovered.db";

const REWIND_HELP: &str = "\
The last few states of a pool stay readable until their space is used again. The state is verified
completely first, and nothing is changed where it is not whole. What was committed since becomes an
older state itself: as long as it is whole, 'hardpack rewind POOL' with its number undoes this.
No program may have the pool open meanwhile.

Examples:
  hardpack check --states words.db.hpk       which states there are, and which are whole
  hardpack unpack --rewind 41 words.db.hpk   look at one first
  hardpack rewind words.db.hpk 41";

/// Keeps SQLite databases, and any other files, compressed and checksummed inside one file, a pool,
/// and gives them back live.
#[derive(Debug, Parser)]
#[command(name = "hardpack", version, after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a pool of a file or a database
    Pack(PackArgs),
    /// Give back the file that a pool holds
    Unpack(UnpackArgs),
    /// Make an empty pool
    Create(CreateArgs),
    /// Put files and whole directories into a pool
    Put(PutArgs),
    /// Give files and whole directories back
    Extract(ExtractArgs),
    /// List a directory of a pool
    Ls(LsArgs),
    /// Show a directory of a pool with all below it
    Tree(TreeArgs),
    /// Look for files in a pool
    Find(FindArgs),
    /// Show all that is known of a file in a pool
    Stat(StatArgs),
    /// Tell how much directories and files take
    Du(DuArgs),
    /// Write files of a pool to standard output
    Cat(CatArgs),
    /// Remove files from a pool
    Rm(RmArgs),
    /// Move or rename files in a pool
    Mv(MvArgs),
    /// Make directories in a pool
    Mkdir(MkdirArgs),
    /// Make a link in a pool
    Ln(LnArgs),
    /// Keep a file, a directory or a pool as it is now
    Snapshot(SnapshotArgs),
    /// List directories and snapshots, with what they take
    List(ListArgs),
    /// Bring a file, a directory or a pool back to a snapshot
    Rollback(RollbackArgs),
    /// Make a copy that shares what it holds with its source
    Clone(CloneArgs),
    /// Tell what has changed since a snapshot, or between two
    Diff(DiffArgs),
    /// Destroy snapshots, and give back what only they hold
    Destroy(DestroyArgs),
    /// Write a snapshot as a stream, for another pool
    Send(SendArgs),
    /// Take a snapshot from a stream into a pool
    Receive(ReceiveArgs),
    /// Show how well a pool is compressed and deduplicated, and what that takes
    Stats(StatsArgs),
    /// Show what a pool holds, how well it compresses, and its settings
    Info(InfoArgs),
    /// Verify everything in a pool, and the database in it
    Check(CheckArgs),
    /// Copy all that can still be read out of a damaged pool
    Salvage(SalvageArgs),
    /// Make an older state of a pool the newest
    Rewind(RewindArgs),
    /// Make a pool short again, while it is in use
    Compact(CompactArgs),
    /// Show properties
    Get(GetArgs),
    /// Set properties, for what is written from now on
    Set(SetArgs),
    /// Give a property up, so that it is inherited or the default again
    Inherit(InheritArgs),
    /// Merge the patches that updates left into their records
    Fold(FoldArgs),
    /// Compress what is stored anew, with another algorithm, level or record size
    Repack(RepackArgs),
    /// Run SQL on the database in a pool
    Sql(SqlArgs),
    /// List the compression algorithms and their levels
    Codecs(CodecsArgs),
}

/// Sets a property at creation: the name of the flag is that of the property.
fn value_of(property: Property) -> impl Fn(&str) -> Result<String, String> + Clone + Send + Sync {
    move |text| {
        let mut settings = Settings::default();
        settings.set(property, text).map_err(|error| error.to_string())?;
        Ok(settings.get(property))
    }
}

#[derive(Debug, ClapArgs)]
#[command(after_help = PACK_HELP)]
pub struct PackArgs {
    /// The file or database to pack
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// The pool to create [default: IN.hpk]
    #[arg(value_name = "OUT", conflicts_with = "in_place")]
    pub output: Option<PathBuf>,
    /// The algorithm and level; 'hardpack codecs' lists them [default: zstd-3]
    #[arg(long, value_name = "NAME", value_parser = value_of(Property::Compression))]
    pub compression: Option<String>,
    /// The longest run of bytes compressed as one, 4K to 16M [default: 128K]
    #[arg(long, value_name = "SIZE", value_parser = value_of(Property::RecordSize))]
    pub recordsize: Option<String>,
    /// xxh3, blake3 or sha256 [default: xxh3]
    #[arg(long, value_name = "NAME", value_parser = value_of(Property::Checksum))]
    pub checksum: Option<String>,
    /// The share compression must save, or a record is stored as it is [default: 12.5%]
    #[arg(long, value_name = "PERCENT", value_parser = value_of(Property::MinSavings))]
    pub min_savings: Option<String>,
    /// Rearrange pages of SQLite databases by column first: auto, sqlite (try every record both ways) or
    /// none [default: auto]
    #[arg(long, value_name = "WHICH", value_parser = value_of(Property::Filter))]
    pub filter: Option<String>,
    /// Store what SQLite never reads as zeros: free pages, deleted cells. The copy is then not equal
    /// byte by byte, and deleted rows cannot be recovered from it
    #[arg(long)]
    pub clear_unused: bool,
    /// Replace IN by the pool, atomically and only after reading all of it back
    #[arg(long)]
    pub in_place: bool,
    /// Replace OUT if it exists; pack what is a pool already
    #[arg(long, short)]
    pub force: bool,
    #[command(flatten)]
    pub work: WorkArgs,
}

impl PackArgs {
    /// The properties to set.
    pub fn properties(&self) -> Vec<(Property, String)> {
        let given = [
            (Property::Compression, &self.compression),
            (Property::RecordSize, &self.recordsize),
            (Property::Checksum, &self.checksum),
            (Property::MinSavings, &self.min_savings),
            (Property::Filter, &self.filter),
            (Property::ClearUnused, &self.clear_unused.then(|| "on".into())),
        ];
        given.into_iter().filter_map(|(p, value)| Some((p, value.clone()?))).collect()
    }
}

/// What all long work has in common.
#[derive(Debug, ClapArgs)]
pub struct WorkArgs {
    /// How many threads compress and verify [default: one for each processor]
    #[arg(long, short = 'j', value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,
    /// No progress, no summary
    #[arg(long, short)]
    pub quiet: bool,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, ClapArgs)]
pub struct UnpackArgs {
    /// The pool, or a file in it
    #[arg(value_name = "POOL[/PATH]", value_parser = address())]
    pub pool: Address,
    /// The file to create [default: the name it was packed under, beside POOL]
    #[arg(value_name = "OUT")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub rewind: RewindTo,
    /// Replace OUT if it exists
    #[arg(long, short)]
    pub force: bool,
    #[command(flatten)]
    pub work: WorkArgs,
}

#[derive(Debug, ClapArgs)]
pub struct InfoArgs {
    /// The pool
    #[arg(value_name = "POOL")]
    pub pool: PathBuf,
    /// Exact numbers of bytes
    #[arg(short = 'p', long = "parsable")]
    pub exact: bool,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, ClapArgs)]
pub struct CheckArgs {
    /// The pool
    #[arg(value_name = "POOL")]
    pub pool: PathBuf,
    /// Leave SQLite's integrity_check out
    #[arg(long)]
    pub no_integrity_check: bool,
    #[command(flatten)]
    pub rewind: RewindTo,
    /// List the states whose superblocks are there, and verify each
    #[arg(long, conflicts_with = "txg")]
    pub states: bool,
    /// First remove what only confuses, and loses nothing: what is kept for files that are gone, and a damaged index of
    /// content, which is built anew
    #[arg(long, visible_alias = "rebuild-index", conflicts_with_all = ["txg", "states"])]
    pub repair: bool,
    #[command(flatten)]
    pub work: WorkArgs,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = SALVAGE_HELP)]
pub struct SalvageArgs {
    /// The pool
    #[arg(value_name = "POOL")]
    pub pool: PathBuf,
    /// The file to create, or a directory for the files of the pool
    #[arg(value_name = "OUT")]
    pub output: PathBuf,
    #[command(flatten)]
    pub rewind: RewindTo,
    /// Replace what exists
    #[arg(long, short)]
    pub force: bool,
    /// No progress, no summary
    #[arg(long, short)]
    pub quiet: bool,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = REWIND_HELP)]
pub struct RewindArgs {
    /// The pool
    #[arg(value_name = "POOL")]
    pub pool: PathBuf,
    /// The number of the state
    #[arg(value_name = "TXG")]
    pub txg: u64,
    #[command(flatten)]
    pub work: WorkArgs,
}

/// Which state of a pool is meant.
#[derive(Debug, ClapArgs)]
pub struct RewindTo {
    /// An older state, by its number, instead of the newest
    #[arg(long = "rewind", value_name = "TXG")]
    pub txg: Option<u64>,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = COMPACT_HELP)]
pub struct CompactArgs {
    /// The pool
    #[arg(value_name = "POOL")]
    pub pool: PathBuf,
    /// Only say what it would give back, and how much it would move; change nothing
    #[arg(long)]
    pub estimate: bool,
    /// No progress, no summary
    #[arg(long, short)]
    pub quiet: bool,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = SQL_HELP)]
pub struct SqlArgs {
    /// The pool, or a file in it
    #[arg(value_name = "POOL[/PATH]", value_parser = address())]
    pub pool: Address,
    /// Statements to run
    #[arg(value_name = "SQL")]
    pub sql: Vec<String>,
    /// Rows as JSON
    #[arg(long, conflicts_with = "table")]
    pub json: bool,
    /// Column names above the rows
    #[arg(long)]
    pub header: bool,
    /// Rows as a table
    #[arg(long)]
    pub table: bool,
    /// Allow no changes
    #[arg(long)]
    pub readonly: bool,
}

#[derive(Debug, ClapArgs)]
pub struct CodecsArgs {
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, ClapArgs)]
pub struct FoldArgs {
    /// The pool
    #[arg(value_name = "POOL")]
    pub pool: PathBuf,
    /// Only records whose patches have grown past their share
    #[arg(long)]
    pub due: bool,
    #[command(flatten)]
    pub work: WorkArgs,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = REPACK_HELP)]
pub struct RepackArgs {
    /// The pool, or a directory or file in it
    #[arg(value_name = "POOL[/PATH]", value_parser = address())]
    pub pool: Address,
    /// The algorithm and level to aim at [default: the property]
    #[arg(long, value_name = "NAME", value_parser = value_of(Property::Compression))]
    pub compression: Option<String>,
    /// The length of records to aim at, 4K to 16M [default: the property]
    #[arg(long, value_name = "SIZE", value_parser = value_of(Property::RecordSize))]
    pub recordsize: Option<String>,
    /// Whether to rearrange pages of SQLite databases by column: auto, sqlite or none [default: the property]
    #[arg(long, value_name = "WHICH", value_parser = value_of(Property::Filter))]
    pub filter: Option<String>,
    /// Store what SQLite never reads as zeros, where the property does not say so anyway; nobody else may
    /// have the database open meanwhile
    #[arg(long)]
    pub clear_unused: bool,
    /// Only tell, from a sample, how much smaller the pool would become and how long that takes
    #[arg(long)]
    pub estimate: bool,
    /// Begin anew where an earlier repack was interrupted, instead of going on with it
    #[arg(long)]
    pub restart: bool,
    #[command(flatten)]
    pub work: WorkArgs,
}

impl RepackArgs {
    /// The properties that are to differ from those in force.
    pub fn properties(&self) -> Vec<(Property, String)> {
        let given = [
            (Property::Compression, &self.compression),
            (Property::RecordSize, &self.recordsize),
            (Property::Filter, &self.filter),
            (Property::ClearUnused, &self.clear_unused.then(|| "on".into())),
        ];
        given.into_iter().filter_map(|(p, value)| Some((p, value.clone()?))).collect()
    }
}
