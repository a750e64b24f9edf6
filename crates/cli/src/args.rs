//! Every flag of the command line, once.

mod copies;
mod estimate;
mod files;
mod find;
mod import;
mod mount;
mod optimize;
mod parse;
mod programs;
mod properties;
#[cfg(test)]
mod reference;
mod snapshots;
mod streams;

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand};
use hardpack_engine::pool::{Property, Settings};

pub use self::copies::*;
pub use self::estimate::*;
pub use self::files::*;
pub use self::find::*;
pub use self::import::*;
pub use self::mount::*;
pub use self::optimize::*;
pub use self::parse::{parse, wrong_usage};
pub use self::programs::*;
pub use self::properties::*;
pub use self::snapshots::*;
pub use self::streams::*;
use crate::address::Address;

const EXIT_CODES: &str = "\
Exit codes:
    0  success
    1  the data is damaged ('check' found problems, or a checksum does not match)
    2  wrong usage
    3  an I/O error, or something does not exist or exists already
    4  not a pool, or a pool that needs a newer version
    5  in use by another process
   70  a defect of Hardpack itself, which says nothing about the data
  130  interrupted: unfinished files are removed; a pool is whole, and what was complete before stays;
       a message says what";

const EXAMPLES: &str = "\
Examples:
  hardpack pack words.db                     make words.db.hpk from a database, even in use
  hardpack pack words.db --in-place          replace the database with its pool
  hardpack sql words.db.hpk                  open a SQL shell
  hardpack info words.db.hpk                 show what it holds and how well it compresses
  hardpack unpack words.db.hpk words2.db     restore the original file

  hardpack put photos archive.hpk            add whole directories to a pool of many files
  hardpack ls -l archive.hpk/photos          list them
  hardpack set compression=zstd-19 archive.hpk/photos
  hardpack extract archive.hpk/photos .      write them back";

const PACK_HELP: &str = "\
Any file is kept byte for byte. A SQLite database is packed as of one moment, including what is \
still in its write-ahead log or hot journal. It may be in use meanwhile (in a rollback journal \
mode, other programs can read it, but writers wait). The pool is written next to OUT under a \
temporary name, read back and compared, and renamed to OUT only then.

Examples:
  hardpack pack words.db
  hardpack pack words.db small.hpk --compression zstd-19 --recordsize 1M
  hardpack pack words.db --in-place
  pg_dump shop | hardpack pack - shop.sql.hpk";

const UNPACK_HELP: &str = "\
The file is written next to OUT under a temporary name, read back and compared, and renamed to OUT \
only then. With --in-place nobody else may have the pool open, and a pool with snapshots is \
refused: they would be lost.

Examples:
  hardpack unpack words.db.hpk
  hardpack unpack words.db.hpk restored/
  hardpack unpack words.db.hpk - | ssh other 'cat > words.db'
  hardpack unpack words.db --in-place";

const REPACK_HELP: &str = "\
Programs can go on reading and writing meanwhile. After an interruption, the same command \
continues where it stopped. Properties do not change: 'hardpack set' says how new data is \
written. The pool keeps its length and reuses the space that becomes free; 'hardpack compact' \
shortens the file.

Examples:
  hardpack repack --estimate --compression zstd-19 words.db.hpk
  hardpack repack --compression zstd-19 --recordsize 1M words.db.hpk
  hardpack repack words.db.hpk        apply the properties in force, or continue";

const SQL_HELP: &str = "\
Without SQL, and on a terminal, this starts the stock sqlite3 shell with Hardpack loaded, if \
sqlite3 and libhardpack.so are found and fit together (the latter next to this program, in ../lib, \
or at HARDPACK_LIBRARY). Otherwise a shell of its own reads statements and dot commands from \
standard input. Input goes on after an error, and the exit code is then that of the first; '.bail \
on' stops at it.

On a terminal, the keys of Emacs edit a line. Ctrl-C interrupts a statement or a dot command, and \
the shell goes on; a second one ends the shell if the first does not help. At the prompt, Ctrl-C \
drops the statement typed so far, and Ctrl-D ends the shell. Lines are kept in \
$XDG_STATE_HOME/hardpack/sql_history (usually ~/.local/state/hardpack/sql_history), or in the file \
that HARDPACK_HISTORY names; nowhere if that is empty. A statement that begins with a space is not \
kept.

Options may be written with one dash, as for the stock shell: -json, -csv, -column, -line, -box, \
-header, -bail, -readonly.

Examples:
  hardpack sql words.db.hpk 'SELECT count(*) FROM words'
  hardpack sql --table words.db.hpk 'SELECT * FROM words LIMIT 3'
  hardpack sql words.db.hpk .tables
  hardpack sql words.db.hpk '.mode csv' 'SELECT * FROM words'
  hardpack sql words.db.hpk < changes.sql

Dot commands, as in the stock shell:
";

/// The help of `sql`, with all dot commands.
fn sql_help() -> String {
    SQL_HELP.to_owned() + crate::commands::sql::dots::help().trim_end()
}

const COMPACT_HELP: &str = "\
After VACUUM or many changes, a pool keeps its length and has free space inside. This command \
moves data from the end of the file into the free space, a few MiB at a time, and truncates the \
file. Programs can go on reading and writing. It can be stopped at any time without harm, and run \
again. Where the free space is in short pieces, it needs some room on the disk, and says how much if \
that is not there.

Examples:
  hardpack compact --estimate words.db.hpk   show how much it would free
  hardpack compact words.db.hpk";

const SALVAGE_HELP: &str = "\
POOL is only read. Everything that verifies is copied. Lost bytes become zeros and are listed by \
range. Data that may have been replaced since is copied too, and listed as older; if 'optimize' has \
let versions of a database share records, it may be that of another version. If superblocks, header \
or roots are lost, the whole pool is searched for data.

OUT is the file to create, or a directory to create files in. A log or journal next to POOL is \
not read; copy it next to OUT under OUT's name, and SQLite applies it.

Exit code 1 means that something is missing.

Examples:
  hardpack salvage words.db.hpk saved.db
  hardpack salvage --rewind 41 words.db.hpk saved.db
  sqlite3 saved.db .recover | sqlite3 recovered.db";

const REWIND_HELP: &str = "\
The last few states of a pool stay readable until their space is reused. The state is verified \
completely first; if it is damaged, nothing is changed. The commits made since become an older \
state themselves: while it is whole, 'hardpack rewind POOL' with its number undoes the rewind. No \
program may have the pool open meanwhile.

Examples:
  hardpack check --states words.db.hpk       list the states, and which are whole
  hardpack unpack --rewind 41 words.db.hpk   look at one first
  hardpack rewind words.db.hpk 41";

/// Keeps SQLite databases, and any other files, compressed and checksummed inside one file, a pool,
/// and lets programs use them live.
#[derive(Debug, Parser)]
#[command(name = "hardpack", version, after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a pool from a file or a database
    Pack(PackArgs),
    /// Restore the file that a pool holds
    Unpack(UnpackArgs),
    /// Make an empty pool
    Create(CreateArgs),
    /// Put files and whole directories into a pool
    Put(PutArgs),
    /// Estimate what data would take with each block size, codec and deduplication
    Estimate(EstimateArgs),
    /// Import an archive, an image or a compressed database of another kind
    Import(ImportArgs),
    /// Write files and whole directories back
    Extract(ExtractArgs),
    /// List a directory of a pool
    Ls(LsArgs),
    /// Show a directory of a pool and everything below it
    Tree(TreeArgs),
    /// Find files in a pool
    Find(FindArgs),
    /// Show all metadata of a file in a pool
    Stat(StatArgs),
    /// Show how much space directories and files take
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
    /// Copy files of a pool
    Cp(CpArgs),
    /// Make empty files in a pool, or set the times of files
    Touch(TouchArgs),
    /// Change the permissions of files in a pool
    Chmod(ChmodArgs),
    /// Change the owners of files in a pool
    Chown(ChownArgs),
    /// Take a snapshot of a file, a directory or a pool
    Snapshot(SnapshotArgs),
    /// List directories and snapshots, with the space they take
    List(ListArgs),
    /// Roll a file, a directory or a pool back to a snapshot
    Rollback(RollbackArgs),
    /// Make a copy that shares its data with the source
    Clone(CloneArgs),
    /// Show what has changed since a snapshot, or between two
    Diff(DiffArgs),
    /// Destroy snapshots, and free the space that only they hold
    Destroy(DestroyArgs),
    /// Write a snapshot as a stream, for another pool
    Send(SendArgs),
    /// Receive a snapshot from a stream into a pool
    Receive(ReceiveArgs),
    /// Show how well a pool is compressed and deduplicated, and the memory and space this takes
    Stats(StatsArgs),
    /// Show what a pool holds, how well it compresses, and its settings
    Info(InfoArgs),
    /// Verify everything in a pool, including its databases
    Check(CheckArgs),
    /// Copy everything that is still readable out of a damaged pool
    Salvage(SalvageArgs),
    /// Make an older state of a pool the newest again
    Rewind(RewindArgs),
    /// Shorten the file of a pool, even while it is in use
    Compact(CompactArgs),
    /// Show properties
    Get(GetArgs),
    /// Set properties for data written from now on
    Set(SetArgs),
    /// Remove a property, so that it is inherited or the default again
    Inherit(InheritArgs),
    /// Merge the patches that updates left into their records
    Fold(FoldArgs),
    /// Compress stored data again, with another algorithm, level or record size
    Repack(RepackArgs),
    /// Put near-copies and small files together, so that a family takes little more than one of it
    Optimize(OptimizeArgs),
    /// Run SQL on the database in a pool
    Sql(SqlArgs),
    /// Mount a pool as a file system
    Mount(MountArgs),
    /// Unmount a pool, and wait until everything is durable
    Umount(UmountArgs),
    /// Run a program that knows nothing of Hardpack, and let it open packed databases
    Run(RunArgs),
    /// List the compression algorithms and their levels
    Codecs(CodecsArgs),
    /// Show whether this machine, its sqlite3 and its Python can use Hardpack
    Doctor(DoctorArgs),
    /// Write a script that completes commands and options in a shell
    Completions(CompletionsArgs),
    /// Write manual pages
    Man(ManArgs),
}

/// Returns a parser that validates the value of `property` and normalises it.
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
    /// The file or database to pack; '-' is standard input
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// The pool to create [default: IN.hpk]
    #[arg(value_name = "OUT", conflicts_with = "in_place")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub properties: PropertyFlags,
    /// The former name of --checksum-kind
    #[arg(long = "checksum", hide = true, value_parser = value_of(Property::Checksum))]
    pub former_checksum: Option<String>,
    /// Store bytes that SQLite never reads (free pages, deleted cells) as zeros. The copy is then
    /// not byte-identical, and deleted rows cannot be recovered from it
    #[arg(long)]
    pub clear_unused: bool,
    /// Replace IN with the pool, atomically, after reading all of it back
    #[arg(long)]
    pub in_place: bool,
    /// Replace OUT if it is a regular file (links, pipes and devices never are); pack IN even if it
    /// is a pool already
    #[arg(long, short)]
    pub force: bool,
    #[command(flatten)]
    pub work: WorkArgs,
}

impl PackArgs {
    /// The properties to set.
    pub fn properties(&self) -> Given {
        let former = self.former_checksum.iter();
        let mut given: Given = former.map(|value| (Property::Checksum, value.clone())).collect();
        given.extend(self.properties.given());
        if self.clear_unused {
            given.push((Property::ClearUnused, "on".into()));
        }
        given
    }

    /// Whether to store bytes that SQLite never reads as zeros.
    pub fn clears_unused(&self) -> bool {
        let properties = self.properties();
        let last = properties.iter().rfind(|(property, _)| *property == Property::ClearUnused);
        last.is_some_and(|(_, value)| value == "on")
    }
}

/// The flags of all commands that run long.
#[derive(Debug, ClapArgs)]
pub struct WorkArgs {
    /// The number of threads that compress and verify [default: one per processor]
    #[arg(long, short = 'j', value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,
    /// Print no progress and no summary
    #[arg(long, short)]
    pub quiet: bool,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = UNPACK_HELP)]
pub struct UnpackArgs {
    /// The pool, or a file in it
    #[arg(value_name = "POOL[/PATH]", value_parser = address())]
    pub pool: Address,
    /// The file to create, or a directory to create it in; '-' is standard output [default: its
    /// original name, next to POOL]
    #[arg(value_name = "OUT", conflicts_with = "in_place")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub rewind: RewindTo,
    /// Replace POOL with the file that it holds, atomically; this undoes 'pack --in-place'
    #[arg(long, conflicts_with = "txg")]
    pub in_place: bool,
    /// Replace OUT if it is a regular file; links, pipes and devices are never replaced
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
    /// Show exact numbers of bytes
    #[arg(short = 'p', long = "parsable", alias = "exact")]
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
    /// Skip SQLite's integrity_check
    #[arg(long)]
    pub no_integrity_check: bool,
    #[command(flatten)]
    pub rewind: RewindTo,
    /// List the states that still have a superblock, and verify each
    #[arg(long, conflicts_with = "txg")]
    pub states: bool,
    /// First remove leftovers of files that no longer exist, and rebuild a damaged index of
    /// content. This loses no data
    #[arg(long, alias = "rebuild-index", conflicts_with_all = ["txg", "states"])]
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
    /// Replace existing regular files; links, pipes and devices are never replaced
    #[arg(long, short)]
    pub force: bool,
    /// Print no progress and no summary
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

/// Selects the state of a pool to read.
#[derive(Debug, ClapArgs)]
pub struct RewindTo {
    /// Use the older state with this number instead of the newest
    #[arg(long = "rewind", value_name = "TXG")]
    pub txg: Option<u64>,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = COMPACT_HELP)]
pub struct CompactArgs {
    /// The pool
    #[arg(value_name = "POOL")]
    pub pool: PathBuf,
    /// Only show how much it would free and move; change nothing
    #[arg(short = 'n', long)]
    pub estimate: bool,
    /// Print no progress and no summary
    #[arg(long, short)]
    pub quiet: bool,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = sql_help())]
pub struct SqlArgs {
    /// The pool, or a file in it
    #[arg(value_name = "POOL[/PATH]", value_parser = address())]
    pub pool: Address,
    /// Statements and dot commands to run
    #[arg(value_name = "SQL")]
    pub sql: Vec<String>,
    /// Print rows as JSON
    #[arg(long, group = "rows")]
    pub json: bool,
    /// Print rows as CSV
    #[arg(long, group = "rows")]
    pub csv: bool,
    /// Print rows in columns
    #[arg(long, group = "rows")]
    pub column: bool,
    /// Print each value on a line of its own
    #[arg(long, group = "rows")]
    pub line: bool,
    /// Print rows as a table
    #[arg(long, alias = "box", group = "rows")]
    pub table: bool,
    /// Print column names above the rows
    #[arg(long)]
    pub header: bool,
    /// Stop at the first error in input
    #[arg(long)]
    pub bail: bool,
    /// Open the database read-only
    #[arg(long)]
    pub readonly: bool,
    /// Open the database as it was: a snapshot's name, the txg of a state, or a time, which means
    /// the newest snapshot taken until then
    #[arg(long, value_name = "STATE")]
    pub at: Option<String>,
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
    /// Only fold records whose patches have outgrown their share
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
    /// Whether to rearrange the pages of SQLite databases by column: auto, sqlite or none [default:
    /// the property]
    #[arg(long, value_name = "WHICH", value_parser = value_of(Property::Filter))]
    pub filter: Option<String>,
    /// Store bytes that SQLite never reads as zeros, even if the property does not say so; nobody
    /// else may have the database open meanwhile
    #[arg(long)]
    pub clear_unused: bool,
    /// Only estimate, from a sample, how much smaller the pool would become and how long it would
    /// take
    #[arg(short = 'n', long)]
    pub estimate: bool,
    /// Start over instead of continuing an interrupted repack
    #[arg(long)]
    pub restart: bool,
    #[command(flatten)]
    pub work: WorkArgs,
}

impl RepackArgs {
    /// The properties that override those in force.
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
