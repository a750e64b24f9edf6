//! The flags of the commands that work on the files of a pool.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{ArgAction, Args as ClapArgs};

use super::{Assignments, PropertyFlags};
use crate::address::Address;

const PUT_HELP: &str = "\
A directory is stored as DIR/NAME; with 'SOURCE/' or -T its contents go into DIR itself. A single \
file goes into DIR if DIR is a directory or ends with '/'; otherwise DIR is its new name. Missing \
directories are created, and so is the pool, if its name ends in '.hpk' or no path follows it. Repeated, the command skips files whose length and time \
have not changed.

Modes, owners, times, symbolic and hard links, fifos, sockets, device nodes, extended attributes \
and holes are kept. A SQLite database is stored as of one moment, including its log or hot \
journal, which are not stored themselves. Unreadable files are reported, and the rest is stored \
(exit code 3). So are files that would replace one of another source; directories of one name are \
joined. With --delete and several sources for one directory, what none of them has is removed once all \
are stored, and nothing if one cannot be read. An interrupted command leaves the pool consistent; \
repeated, it continues where it stopped.

With --optimize, near-copies and small files at the destination are put together once everything is \
stored, those that were there before and are in no segment yet included: in segments of 1 MiB, with the \
compression of the destination if that is zstd or lzma, otherwise zstd-3. That is quick, and what is \
in the pool can be read meanwhile. 'hardpack optimize --again' makes it smaller still, whenever there is time.

Examples:
  hardpack put photos archive.hpk            to archive.hpk/photos
  hardpack put photos/ archive.hpk/2026      the contents of photos, to archive.hpk/2026
  hardpack put --delete /etc/ backup.hpk/etc
  hardpack put --optimize releases archive.hpk
  tar -c photos | hardpack put --tar - archive.hpk";

const EXTRACT_HELP: &str = "\
A directory is written to DEST/NAME; with 'POOL', 'POOL/DIR/' or -T its contents go into DEST \
itself. A single file goes into DEST if DEST is a directory or ends with '/'; otherwise DEST is \
its new name. DEST is created if necessary.

Each file is written next to its destination and renamed when it is complete. Nothing is written \
through a symbolic link below DEST. Owners are set for root, or with --owner. Existing files are \
replaced only with --force or --update.

Each file is read as of one moment, however many programs write to it. Nobody waits for that in a \
pool that has had 'concurrency=snapshot'; elsewhere the writers of a database may wait while it is \
read. The same holds for 'cat' and 'unpack'.

Examples:
  hardpack extract archive.hpk photos        the contents of the pool, to photos
  hardpack extract archive.hpk/photos .      to ./photos
  hardpack extract --tar archive.hpk/photos - | tar -t";

#[derive(Debug, ClapArgs)]
pub struct CreateArgs {
    /// The pool to create, empty
    #[arg(value_name = "POOL")]
    pub pool: PathBuf,
    #[command(flatten)]
    pub properties: PropertyFlags,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = PUT_HELP)]
#[command(override_usage = "hardpack put [OPTIONS] <SOURCE>... <POOL[/DIR]>")]
pub struct PutArgs {
    /// Files and directories, then their destination
    #[arg(value_name = "SOURCE", required = true, num_args = 2..)]
    pub operands: Vec<OsString>,
    /// The sources are tar streams; '-' is standard input
    #[arg(long)]
    pub tar: bool,
    /// Put the contents of a directory, not the directory itself; for a file, the last operand is
    /// its new name
    #[arg(short = 'T', long = "no-target-directory")]
    pub no_target_directory: bool,
    /// Compare contents instead of lengths and times to see what has changed
    #[arg(short = 'c', long, alias = "checksum")]
    pub compare: bool,
    /// Remove files from the pool's directories that are not in the source
    #[arg(long, conflicts_with = "tar")]
    pub delete: bool,
    /// Only show what would be done
    #[arg(short = 'n', long, conflicts_with = "tar")]
    pub dry_run: bool,
    /// Then put what is at the destination into segments, near-copies and small files together, as
    /// 'hardpack optimize' does
    #[arg(long, conflicts_with = "dry_run")]
    pub optimize: bool,
    /// Store SQLite databases like any other file, and their logs and journals as files too
    #[arg(long)]
    pub raw: bool,
    /// With --tar: refuse entries, other than directories, whose names exist already
    #[arg(long, hide = true, requires = "tar")]
    pub exclusive: bool,
    /// Print the name of each stored or removed file to standard output
    #[arg(short, long, conflicts_with = "json")]
    pub verbose: bool,
    #[command(flatten)]
    pub properties: PropertyFlags,
    #[command(flatten)]
    pub work: super::WorkArgs,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = EXTRACT_HELP)]
#[command(override_usage = "hardpack extract [OPTIONS] <POOL[/PATH]>... <DEST>")]
pub struct ExtractArgs {
    /// Files and directories of a pool, then their destination
    #[arg(value_name = "POOL[/PATH]", required = true, num_args = 2..)]
    pub operands: Vec<OsString>,
    /// DEST is a tar stream to write; '-' is standard output
    #[arg(long)]
    pub tar: bool,
    /// Write the contents of a directory, not the directory itself; for a file, DEST is its new
    /// name
    #[arg(short = 'T', long = "no-target-directory")]
    pub no_target_directory: bool,
    /// Replace existing regular files; links, pipes and devices are never replaced by files
    #[arg(long, short)]
    pub force: bool,
    /// Keep existing files with the same length and time, and replace others
    #[arg(long, short, conflicts_with = "tar")]
    pub update: bool,
    /// Set owners even if the user is not root
    #[arg(long, conflicts_with = "no_owner")]
    pub owner: bool,
    /// Do not set owners even if the user is root, nor what grants rights: set-user-id bits, and
    /// extended attributes such as capabilities
    #[arg(long)]
    pub no_owner: bool,
    /// Print the name of each file to standard error
    #[arg(short, long)]
    pub verbose: bool,
    #[command(flatten)]
    pub work: super::WorkArgs,
}

/// The flag for output of names that may contain line breaks.
#[derive(Debug, ClapArgs)]
pub struct NulArg {
    /// End each name with NUL instead of a newline
    #[arg(short = '0', long = "null")]
    pub nul: bool,
}

/// The flag for lengths that people read. It takes the letter of the help.
#[derive(Debug, ClapArgs)]
pub struct HumanArg {
    /// Show lengths in units, such as 1.5K and 23M
    #[arg(short = 'h', long = "human-readable")]
    pub is_human: bool,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

#[derive(Debug, ClapArgs)]
#[command(disable_help_flag = true)]
pub struct LsArgs {
    /// Directories or files of a pool
    #[arg(value_name = "POOL[/PATH]", required = true, value_parser = address())]
    pub paths: Vec<Address>,
    /// Show mode, links, owner, length and time
    #[arg(short = 'l', long)]
    pub long: bool,
    /// List one name on each line; this is always so
    #[arg(short = '1')]
    pub one: bool,
    /// Sort by time, the newest first
    #[arg(short = 't', overrides_with = "by_size")]
    pub by_time: bool,
    /// Sort by length, the longest first
    #[arg(short = 'S', overrides_with = "by_time")]
    pub by_size: bool,
    /// Reverse the order
    #[arg(short, long)]
    pub reverse: bool,
    #[command(flatten)]
    pub human: HumanArg,
    /// Show names that begin with a dot, too
    #[arg(short, long)]
    pub all: bool,
    /// List subdirectories too
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// List directories themselves, not their contents
    #[arg(short, long)]
    pub directory: bool,
    #[command(flatten)]
    pub end: NulArg,
    /// Report as JSON, one line per entry
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, ClapArgs)]
pub struct CatArgs {
    /// Files of a pool
    #[arg(value_name = "POOL[/PATH]", required = true, value_parser = address())]
    pub paths: Vec<Address>,
}

#[derive(Debug, ClapArgs)]
pub struct RmArgs {
    /// Files and directories to remove
    #[arg(value_name = "POOL/PATH", required = true, value_parser = address())]
    pub paths: Vec<Address>,
    /// Remove directories too, with everything in them
    #[arg(short, long)]
    pub recursive: bool,
    /// Ignore paths that do not exist
    #[arg(short, long)]
    pub force: bool,
    /// Print no progress
    #[arg(long, short)]
    pub quiet: bool,
}

#[derive(Debug, ClapArgs)]
#[command(override_usage = "hardpack mv [OPTIONS] <POOL/PATH>... <POOL/PATH>")]
pub struct MvArgs {
    /// Files and directories to move, then their destination: a directory, or the new name
    #[arg(value_name = "POOL/PATH", required = true, num_args = 2.., value_parser = address())]
    pub paths: Vec<Address>,
    /// Take the last path as the new name, even if a directory has that name
    #[arg(short = 'T', long = "no-target-directory")]
    pub no_target_directory: bool,
    /// Do not replace existing files
    #[arg(short, long)]
    pub no_clobber: bool,
}

#[derive(Debug, ClapArgs)]
pub struct MkdirArgs {
    /// Directories to make
    #[arg(value_name = "POOL/PATH", required = true, value_parser = address())]
    pub paths: Vec<Address>,
    /// Create missing parent directories too, and ignore directories that exist
    #[arg(short, long)]
    pub parents: bool,
    /// Permissions, in octal
    #[arg(short, long, value_name = "MODE", default_value = "755", value_parser = parse_mode)]
    pub mode: u32,
    #[command(flatten)]
    pub properties: Assignments,
}

#[derive(Debug, ClapArgs)]
pub struct LnArgs {
    /// The file to give another name, as POOL/PATH; with -s, the text of the symbolic link
    #[arg(value_name = "TARGET")]
    pub target: OsString,
    /// The new name
    #[arg(value_name = "POOL/PATH", value_parser = address())]
    pub path: Address,
    /// Make a symbolic link instead of a hard link
    #[arg(short, long)]
    pub symbolic: bool,
    /// Replace an existing file of that name, but never a directory
    #[arg(short, long)]
    pub force: bool,
}

#[derive(Debug, ClapArgs)]
pub struct TreeArgs {
    /// The directory to show
    #[arg(value_name = "POOL[/PATH]", value_parser = address())]
    pub path: Address,
    /// Show names that begin with a dot, too
    #[arg(short, long)]
    pub all: bool,
    /// Show directories only
    #[arg(short = 'd', long)]
    pub directories: bool,
    /// Show at most N levels
    #[arg(short = 'L', long = "level", value_name = "N")]
    pub level: Option<usize>,
}

#[derive(Debug, ClapArgs)]
#[command(disable_help_flag = true)]
pub struct DuArgs {
    /// Directories or files of a pool
    #[arg(value_name = "POOL[/PATH]", required = true, value_parser = address())]
    pub paths: Vec<Address>,
    /// Show a total for each path, not each directory below it
    #[arg(short, long)]
    pub summarize: bool,
    /// Show files, too
    #[arg(short, long, conflicts_with = "summarize")]
    pub all: bool,
    /// Show exact numbers of bytes
    #[arg(short = 'p', long = "parsable", alias = "exact", overrides_with = "is_human")]
    pub exact: bool,
    #[command(flatten)]
    pub human: HumanArg,
    #[command(flatten)]
    pub end: NulArg,
    /// Report as JSON, one line per entry
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, ClapArgs)]
pub struct StatArgs {
    /// Files and directories to show
    #[arg(value_name = "POOL[/PATH]", required = true, value_parser = address())]
    pub paths: Vec<Address>,
    /// Show the target of a symbolic link, not the link
    #[arg(short = 'L', long)]
    pub dereference: bool,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Parses an address.
pub fn address() -> impl TypedValueParser<Value = Address> {
    OsStringValueParser::new().map(Address::from)
}

fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777);
    mode.ok_or_else(|| "use an octal number up to 7777".into())
}

impl PutArgs {
    /// Returns the sources and the destination.
    pub fn split(&self) -> (&[OsString], Address) {
        // The parser requires at least two.
        let (last, sources) = self.operands.split_last().unwrap_or_else(|| unreachable!());
        (sources, last.clone().into())
    }
}

impl ExtractArgs {
    /// Returns the addresses to extract and the destination.
    pub fn split(&self) -> (Vec<Address>, PathBuf) {
        // The parser requires at least two.
        let (last, sources) = self.operands.split_last().unwrap_or_else(|| unreachable!());
        (sources.iter().cloned().map(Address::from).collect(), last.into())
    }
}
