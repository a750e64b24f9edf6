//! The flags of the commands that carry snapshots from pool to pool.

use std::ffi::OsString;

use clap::Args as ClapArgs;
use hardpack_engine::pool::ResumeToken;

use crate::address::Address;

const SEND_HELP: &str = "\
The stream goes to standard output: a file, or a pipe to 'hardpack receive'. What is stored compressed goes
as it is, and what is shared within it goes once. With -i only what changed since an older snapshot goes, which
the receiver must have received before: that very one, known by its content.

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
    /// Send what changed since this older snapshot of the same
    #[arg(short, long, value_name = "[POOL[/PATH]]@OLD")]
    pub incremental: Option<OsString>,
    /// Go on with a stream that was cut; 'hardpack receive --resume-token' prints the token
    #[arg(long, value_name = "TOKEN", conflicts_with = "incremental")]
    pub resume: Option<ResumeToken>,
    /// Send nothing, and print how many bytes it would be
    #[arg(short = 'n', long)]
    pub estimate: bool,
    /// No progress
    #[arg(short, long)]
    pub quiet: bool,
}

const RECEIVE_HELP: &str = "\
A complete stream makes POOL/PATH, which must not be there; it is seen when all of it is there. An incremental one
brings what was received as its base up to date, all at once. Both leave a snapshot with the name it has where
it was sent. When the stream is cut, what came stays in the pool, unseen, until it goes on or is given up.
The target may be renamed and moved between two streams. Several streams may follow each other in one input; anything
else behind the end of one is an error.

A stream goes only onto the very snapshot that it starts from: one of a pool that was put back from a copy and went
on is another, even where it has the same name and txg.

Examples:
  hardpack receive backup.hpk/apps < apps.stream
  hardpack send --resume $(hardpack receive --resume-token backup.hpk/apps) apps.hpk@monday |
      hardpack receive backup.hpk/apps";

#[derive(Debug, ClapArgs)]
#[command(after_help = RECEIVE_HELP)]
pub struct ReceiveArgs {
    /// Where it goes
    #[arg(value_name = "POOL/PATH")]
    pub target: Address,
    /// Roll back first what was changed there since the base of an incremental stream
    #[arg(short = 'F', long)]
    pub force: bool,
    /// Receive nothing, and print from where a stream goes on that was cut
    #[arg(long, conflicts_with_all = ["force", "abort"])]
    pub resume_token: bool,
    /// Receive nothing, and give up what came of a stream that was cut
    #[arg(long, conflicts_with = "force")]
    pub abort: bool,
    /// No progress
    #[arg(short, long)]
    pub quiet: bool,
}
