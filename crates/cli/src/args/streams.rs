//! The flags of the commands that transfer snapshots between pools.

use std::ffi::OsString;

use clap::Args as ClapArgs;
use hardpack_engine::pool::ResumeToken;

use super::Assignments;
use crate::address::Address;

const SEND_HELP: &str = "\
The stream goes to standard output: to a file, or through a pipe to 'hardpack receive'. \
Compressed data is sent as it is stored, and data shared within the snapshot is sent once. With \
-i only the changes since an older snapshot are sent. The receiver must have received exactly \
that snapshot before; it is recognised by its content.

Examples:
  hardpack send apps.hpk@monday | ssh other hardpack receive backup.hpk/apps
  hardpack send -i @monday apps.hpk@tuesday | ssh other hardpack receive backup.hpk/apps
  hardpack send --estimate -i @monday apps.hpk@tuesday";

#[derive(Debug, ClapArgs)]
#[command(after_help = SEND_HELP)]
pub struct SendArgs {
    /// The snapshot to send
    #[arg(value_name = "POOL[/PATH]@NAME")]
    pub snapshot: Address,
    /// Send only the changes since this older snapshot of the same file, directory or pool
    #[arg(short, long, value_name = "[POOL[/PATH]]@OLD")]
    pub incremental: Option<OsString>,
    /// Continue a stream that was cut; 'hardpack receive --resume-token' prints the token
    #[arg(long, value_name = "TOKEN", conflicts_with = "incremental")]
    pub resume: Option<ResumeToken>,
    /// Send nothing, and print the length of the stream in bytes
    #[arg(short = 'n', long)]
    pub estimate: bool,
    /// Print no progress
    #[arg(short, long)]
    pub quiet: bool,
}

const RECEIVE_HELP: &str = "\
A complete stream creates POOL/PATH, which must not exist yet and appears only when the whole \
stream has arrived. A pool that does not exist is created. An incremental stream brings the \
result of an earlier one up to date, in one step. Both leave a snapshot with the name it has at \
the sender. If a stream is cut, the part that arrived stays in the pool, invisible, until \
'hardpack send --resume' continues it or --abort drops it. The target may be renamed and moved \
between two streams. Several streams may follow one another in the input; any other data after a \
stream is an error.

An incremental stream applies only to exactly the snapshot that it starts from. A snapshot of a \
pool that was restored from a copy and then changed is a different one, even with the same name \
and txg.

Examples:
  hardpack receive backup.hpk/apps < apps.stream
  hardpack send --resume $(hardpack receive --resume-token backup.hpk/apps) apps.hpk@monday |
      hardpack receive backup.hpk/apps";

#[derive(Debug, ClapArgs)]
#[command(after_help = RECEIVE_HELP)]
pub struct ReceiveArgs {
    /// The file or directory to create or update
    #[arg(value_name = "POOL/PATH")]
    pub target: Address,
    #[command(flatten)]
    pub properties: Assignments,
    /// First roll back changes made since the base snapshot of an incremental stream
    #[arg(short, long, short_alias = 'F')]
    pub force: bool,
    /// Receive nothing, and print the token with which a cut stream continues
    #[arg(long, conflicts_with_all = ["force", "abort"])]
    pub resume_token: bool,
    /// Receive nothing, and drop the received part of a cut stream
    #[arg(long, conflicts_with = "force")]
    pub abort: bool,
    /// Print no progress
    #[arg(short, long)]
    pub quiet: bool,
}
