//! The flags of the commands for snapshots and statistics.

use std::ffi::OsString;

use clap::Args as ClapArgs;

use super::Assignments;
use crate::address::Address;

pub const SNAPSHOT_HELP: &str = "\
A snapshot keeps a file, a directory with everything below it, or the whole pool as it is now. It \
takes no time and at first no space; data that is changed or removed later stays in the pool as \
long as a snapshot holds it. Databases with transactions in a write-ahead log are checkpointed \
first.

Snapshots are read by path, databases in them too: POOL/PATH@NAME or POOL@NAME/PATH. PATH is \
where the file is now, or where it was when the snapshot was made. If several snapshots match, \
POOL/PATH@NAME@TXG selects one; 'hardpack list' shows them in this form.

Examples:
  hardpack snapshot archive.hpk@monday            the whole pool
  hardpack snapshot apps.hpk/shop.db@before       one database
  hardpack sql apps.hpk/shop.db@before 'SELECT count(*) FROM orders'
  hardpack rollback apps.hpk/shop.db@before";

#[derive(Debug, ClapArgs)]
#[command(after_help = SNAPSHOT_HELP)]
pub struct SnapshotArgs {
    /// What to keep, and the name of the new snapshot; behind another, '@NAME' is enough for the
    /// same file, directory or pool
    #[arg(value_name = "POOL[/PATH]@NAME", required = true)]
    pub snapshots: Vec<Address>,
}

#[derive(Debug, ClapArgs)]
pub struct ListArgs {
    /// The pool, or a directory or file in it
    #[arg(value_name = "POOL[/PATH]")]
    pub path: Address,
    /// Do not compute the space of snapshots, which requires a scan of everything freed since
    #[arg(long)]
    pub quick: bool,
    /// Show exact numbers of bytes
    #[arg(short = 'p', long = "parsable", alias = "exact")]
    pub exact: bool,
    /// Print no header, and separate the columns by tabs, for scripts
    #[arg(short = 'H', long)]
    pub scripted: bool,
    /// Report as JSON
    #[arg(long, conflicts_with = "scripted")]
    pub json: bool,
}

#[derive(Debug, ClapArgs)]
pub struct RollbackArgs {
    /// The snapshot to go back to
    #[arg(value_name = "POOL[/PATH]@NAME")]
    pub snapshot: Address,
}

#[derive(Debug, ClapArgs)]
pub struct CloneArgs {
    /// The file or directory to clone, from a snapshot or as it is now
    #[arg(value_name = "POOL[/PATH][@NAME]")]
    pub source: Address,
    /// The name of the clone, in the same pool
    #[arg(value_name = "POOL/NEW")]
    pub target: Address,
    #[command(flatten)]
    pub properties: Assignments,
}

#[derive(Debug, ClapArgs)]
pub struct DiffArgs {
    /// The older snapshot
    #[arg(value_name = "POOL[/PATH]@OLD")]
    pub from: Address,
    /// A newer snapshot of the same file, directory or pool, or that itself, as it is now [default:
    /// its current state]
    #[arg(value_name = "[POOL[/PATH]][@NEW]")]
    pub to: Option<OsString>,
    /// Also show which byte ranges of files differ
    #[arg(long)]
    pub ranges: bool,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, ClapArgs)]
pub struct DestroyArgs {
    /// The snapshots to destroy; behind another, '@NAME' is enough for one of the same file,
    /// directory or pool
    #[arg(value_name = "POOL[/PATH]@NAME", required = true)]
    pub snapshots: Vec<Address>,
}

#[derive(Debug, ClapArgs)]
pub struct StatsArgs {
    /// The pool, or a directory or file in it
    #[arg(value_name = "POOL[/PATH]")]
    pub path: Address,
    /// Show exact numbers of bytes
    #[arg(short = 'p', long = "parsable", alias = "exact")]
    pub exact: bool,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}
