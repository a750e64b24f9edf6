//! The flags of the commands that work on snapshots.

use clap::Args as ClapArgs;

use crate::address::Address;

pub const SNAPSHOT_HELP: &str = "\
A snapshot keeps a file, a directory with all below it, or the whole pool as it is now. It takes no time and at
first no space; what is changed or removed later stays in the pool as long as a snapshot has it. Databases whose
transactions are partly in a write-ahead log are settled first.

What it holds is read by path, also as a database: POOL/PATH@NAME, POOL@NAME/PATH. PATH is where something is now,
or where it was when the snapshot was made; where that was said of several, POOL/PATH@NAME@TXG tells them apart, as
'hardpack list' shows it.

Examples:
  hardpack snapshot archive.hpk@monday            the whole pool
  hardpack snapshot apps.hpk/shop.db@before       one database
  hardpack sql apps.hpk/shop.db@before 'SELECT count(*) FROM orders'
  hardpack rollback apps.hpk/shop.db@before";

#[derive(Debug, ClapArgs)]
#[command(after_help = SNAPSHOT_HELP)]
pub struct SnapshotArgs {
    /// What to keep, and the name of the snapshot
    #[arg(value_name = "POOL[/PATH]@NAME", required = true)]
    pub snapshots: Vec<Address>,
}

#[derive(Debug, ClapArgs)]
pub struct ListArgs {
    /// The pool, or something in it
    #[arg(value_name = "POOL[/PATH]")]
    pub path: Address,
    /// Leave the space out that snapshots take, which takes a look at all that was given up since
    #[arg(long)]
    pub quick: bool,
    /// Exact numbers of bytes
    #[arg(short = 'p', long)]
    pub exact: bool,
    /// Columns separated by tabs, without a header
    #[arg(short = 'H', long)]
    pub scripted: bool,
    /// Write JSON
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
    /// What to clone: in a snapshot, or as it is now
    #[arg(value_name = "POOL[/PATH][@NAME]")]
    pub source: Address,
    /// The name of the clone, in the same pool
    #[arg(value_name = "POOL/NEW")]
    pub target: Address,
}

#[derive(Debug, ClapArgs)]
pub struct DiffArgs {
    /// The older snapshot
    #[arg(value_name = "POOL[/PATH]@OLD")]
    pub from: Address,
    /// A newer snapshot of the same; without it, what is there now
    #[arg(value_name = "POOL[/PATH]@NEW")]
    pub to: Option<Address>,
    /// Also tell which bytes of files differ
    #[arg(long)]
    pub ranges: bool,
    /// Write JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, ClapArgs)]
pub struct DestroyArgs {
    /// The snapshots to destroy
    #[arg(value_name = "POOL[/PATH]@NAME", required = true)]
    pub snapshots: Vec<Address>,
}

#[derive(Debug, ClapArgs)]
pub struct StatsArgs {
    /// The pool, or a directory or file in it
    #[arg(value_name = "POOL[/PATH]")]
    pub path: Address,
    /// Exact numbers of bytes
    #[arg(short = 'p', long)]
    pub exact: bool,
    /// Write JSON
    #[arg(long)]
    pub json: bool,
}
