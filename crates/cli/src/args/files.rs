//! The flags of the commands that work on the files of a pool.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args as ClapArgs;
use clap::builder::{OsStringValueParser, TypedValueParser};
use hardpack_engine::pool::{Kind, Property};

use super::{Given, PropertyFlags};
use crate::address::Address;

const PUT_HELP: &str = "\
A directory goes in as DIR/NAME; 'SOURCE/' and -T put what is in it into DIR itself. A single file goes
into DIR where DIR is a directory or ends with '/', and else gets that name. What is missing of DIR is made,
and so is the pool. Given again, the command passes over files whose length and time are the same.

Modes, owners, times, symbolic and hard links, extended attributes and holes are kept. A SQLite database is
taken as of one moment with what is in its log or hot journal, which are left out themselves. Devices,
pipes and sockets are named and left out; what cannot be read is named, and the rest goes on (exit code 3).
Interrupted, the command leaves a whole pool, and given again it goes on from there.

Examples:
  hardpack put photos archive.hpk            archive.hpk/photos
  hardpack put photos/ archive.hpk/2026      what is in photos, in archive.hpk/2026
  hardpack put --delete /etc/ backup.hpk/etc
  tar -c photos | hardpack put --tar - archive.hpk";

const EXTRACT_HELP: &str = "\
A directory comes out as DEST/NAME; 'POOL', 'POOL/DIR/' and -T give what is in it to DEST itself. A single
file goes into DEST where that is a directory or ends with '/', and else gets that name. DEST is made.

Each file is written beside its place and gets its name when it is complete. Nothing is written through a
symbolic link below DEST. Owners are set for root, or with --owner. Nothing that is there is replaced
without --force or --update.

Examples:
  hardpack extract archive.hpk photos        what is in the pool
  hardpack extract archive.hpk/photos .      ./photos
  hardpack extract --tar archive.hpk/photos - | tar -t";

const FIND_HELP: &str = "\
All conditions must hold. --size +N is more than N, -N less, N exactly; N may end in K, M, G or T.

Example: hardpack find archive.hpk --name '*.db' --size +1M";

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
    /// Files and directories, and last where they go
    #[arg(value_name = "SOURCE", required = true, num_args = 2..)]
    pub operands: Vec<OsString>,
    /// The sources are tar streams; '-' is standard input
    #[arg(long)]
    pub tar: bool,
    /// A directory: put what is in it, not itself; a file: the last operand is its name
    #[arg(short = 'T', long = "no-target-directory")]
    pub no_target_directory: bool,
    /// Compare contents, not lengths and times, to see what has changed
    #[arg(short = 'c', long = "checksum")]
    pub compare: bool,
    /// Remove from the directories of the pool what is not in the source
    #[arg(long, conflicts_with = "tar")]
    pub delete: bool,
    /// Only say what would be done
    #[arg(short = 'n', long, conflicts_with = "tar")]
    pub dry_run: bool,
    /// Take SQLite databases like any files, with their logs and journals beside them
    #[arg(long)]
    pub raw: bool,
    /// Name each file that is put or removed, on standard output
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
    /// What to give back, and last where to
    #[arg(value_name = "POOL[/PATH]", required = true, num_args = 2..)]
    pub operands: Vec<OsString>,
    /// DEST is a tar stream to write; '-' is standard output
    #[arg(long)]
    pub tar: bool,
    /// A directory: give what is in it, not itself; a file: DEST is its name
    #[arg(short = 'T', long = "no-target-directory")]
    pub no_target_directory: bool,
    /// Replace files that are there
    #[arg(long, short)]
    pub force: bool,
    /// Leave what is there with the same length and time, and replace other files
    #[arg(long, short, conflicts_with = "tar")]
    pub update: bool,
    /// Set owners even where the user is not root
    #[arg(long, conflicts_with = "no_owner")]
    pub owner: bool,
    /// Leave owners alone even where the user is root, and with them rights: set-user-id bits, and
    /// extended attributes such as capabilities
    #[arg(long)]
    pub no_owner: bool,
    /// Name each file, on standard error
    #[arg(short, long)]
    pub verbose: bool,
    #[command(flatten)]
    pub work: super::WorkArgs,
}

/// Names that may hold anything.
#[derive(Debug, ClapArgs)]
pub struct NulArg {
    /// End each name with NUL, not with a new line
    #[arg(short = '0', long = "null")]
    pub nul: bool,
}

#[derive(Debug, ClapArgs)]
pub struct LsArgs {
    /// Directories or files of a pool
    #[arg(value_name = "POOL[/PATH]", required = true, value_parser = address())]
    pub paths: Vec<Address>,
    /// Mode, links, owner, length and time
    #[arg(short = 'l', long)]
    pub long: bool,
    /// Names that begin with a dot, too
    #[arg(short, long)]
    pub all: bool,
    /// Everything below
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// A directory itself, not what is in it
    #[arg(short, long)]
    pub directory: bool,
    #[command(flatten)]
    pub end: NulArg,
    /// Report as JSON, a line for each
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
    /// What to remove
    #[arg(value_name = "POOL/PATH", required = true, value_parser = address())]
    pub paths: Vec<Address>,
    /// Directories too, with all that is in them
    #[arg(short, long)]
    pub recursive: bool,
    /// What is not there is no failure
    #[arg(short, long)]
    pub force: bool,
    /// No progress
    #[arg(long, short)]
    pub quiet: bool,
}

#[derive(Debug, ClapArgs)]
#[command(override_usage = "hardpack mv [OPTIONS] <POOL/PATH>... <POOL/PATH>")]
pub struct MvArgs {
    /// What to move, and last where to: a directory, or the new name
    #[arg(value_name = "POOL/PATH", required = true, num_args = 2.., value_parser = address())]
    pub paths: Vec<Address>,
    /// The last is a name, even where there is a directory of that name
    #[arg(short = 'T', long = "no-target-directory")]
    pub no_target_directory: bool,
    /// Replace no file
    #[arg(short, long)]
    pub no_clobber: bool,
}

#[derive(Debug, ClapArgs)]
pub struct MkdirArgs {
    /// Directories to make
    #[arg(value_name = "POOL/PATH", required = true, value_parser = address())]
    pub paths: Vec<Address>,
    /// With what is missing above them; what is there is no failure
    #[arg(short, long)]
    pub parents: bool,
    /// Permissions, in octal
    #[arg(short, long, value_name = "MODE", default_value = "755", value_parser = parse_mode)]
    pub mode: u32,
}

#[derive(Debug, ClapArgs)]
pub struct LnArgs {
    /// The file to give another name, as POOL/PATH; with -s the text that the link holds
    #[arg(value_name = "TARGET")]
    pub target: OsString,
    /// The new name
    #[arg(value_name = "POOL/PATH", value_parser = address())]
    pub path: Address,
    /// A symbolic link
    #[arg(short, long)]
    pub symbolic: bool,
    /// Replace what has that name, unless it is a directory
    #[arg(short, long)]
    pub force: bool,
}

#[derive(Debug, ClapArgs)]
pub struct TreeArgs {
    /// The directory to show
    #[arg(value_name = "POOL[/PATH]", value_parser = address())]
    pub path: Address,
    /// Names that begin with a dot, too
    #[arg(short, long)]
    pub all: bool,
    /// Directories only
    #[arg(short = 'd', long)]
    pub directories: bool,
    /// So many levels
    #[arg(short = 'L', long = "level", value_name = "N")]
    pub level: Option<usize>,
}

#[derive(Debug, ClapArgs)]
pub struct DuArgs {
    /// Directories or files of a pool
    #[arg(value_name = "POOL[/PATH]", required = true, value_parser = address())]
    pub paths: Vec<Address>,
    /// Only what was named, not each directory below
    #[arg(short, long)]
    pub summarize: bool,
    /// Files, too
    #[arg(short, long, conflicts_with = "summarize")]
    pub all: bool,
    /// Exact numbers of bytes
    #[arg(short = 'p', long = "parsable")]
    pub exact: bool,
    #[command(flatten)]
    pub end: NulArg,
    /// Report as JSON, a line for each
    #[arg(long)]
    pub json: bool,
}

/// A condition on a length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SizeTest {
    More(u64),
    Less(u64),
    Exactly(u64),
}

#[derive(Debug, ClapArgs)]
#[command(after_help = FIND_HELP)]
pub struct FindArgs {
    /// Where to look
    #[arg(value_name = "POOL[/PATH]", required = true, value_parser = address())]
    pub paths: Vec<Address>,
    /// The last name is like this, as the shell has it: *, ?, [a-z]
    #[arg(long, value_name = "GLOB")]
    pub name: Option<OsString>,
    /// f for files, d for directories, l for symbolic links
    #[arg(long = "type", value_name = "f|d|l", value_parser = parse_kind)]
    pub kind: Option<Kind>,
    /// Length in bytes
    #[arg(long, value_name = "[+-]N", value_parser = parse_size, allow_hyphen_values = true)]
    pub size: Option<SizeTest>,
    #[command(flatten)]
    pub end: NulArg,
    /// Report as JSON, a line for each
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, ClapArgs)]
pub struct StatArgs {
    /// What to show
    #[arg(value_name = "POOL[/PATH]", required = true, value_parser = address())]
    pub paths: Vec<Address>,
    /// What a symbolic link leads to, not the link
    #[arg(short = 'L', long)]
    pub dereference: bool,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Reads an address.
pub fn address() -> impl TypedValueParser<Value = Address> {
    OsStringValueParser::new().map(Address::from)
}

fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777);
    mode.ok_or_else(|| "use an octal number up to 7777".into())
}

fn parse_kind(text: &str) -> Result<Kind, String> {
    match text {
        "f" => Ok(Kind::File),
        "d" => Ok(Kind::Directory),
        "l" => Ok(Kind::Symlink),
        _ => Err("use f, d or l".into()),
    }
}

fn parse_size(text: &str) -> Result<SizeTest, String> {
    let (test, number): (fn(u64) -> SizeTest, &str) = match text.as_bytes().first() {
        Some(b'+') => (SizeTest::More, &text[1..]),
        Some(b'-') => (SizeTest::Less, &text[1..]),
        _ => (SizeTest::Exactly, text),
    };
    let wrong = || "use a number of bytes such as +100, -4K or 1M".to_string();
    let units = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];
    let unit = units.iter().find(|(letter, _)| number.to_ascii_uppercase().ends_with(*letter));
    let digits = if unit.is_some() { &number[..number.len() - 1] } else { number };
    let n: u64 = digits.parse().map_err(|_| wrong())?;
    n.checked_mul(1 << unit.map_or(0, |(_, shift)| *shift)).map(test).ok_or_else(wrong)
}

impl PutArgs {
    /// What goes in, and where.
    pub fn split(&self) -> (&[OsString], Address) {
        // The parser asks for two at least.
        let (last, sources) = self.operands.split_last().unwrap_or_else(|| unreachable!());
        (sources, last.clone().into())
    }
}

impl ExtractArgs {
    /// What comes out, and where to.
    pub fn split(&self) -> (Vec<Address>, PathBuf) {
        // The parser asks for two at least.
        let (last, sources) = self.operands.split_last().unwrap_or_else(|| unreachable!());
        (sources.iter().cloned().map(Address::from).collect(), last.into())
    }
}

impl PropertyFlags {
    /// The properties to set.
    pub fn given(&self) -> Given {
        let given = [
            (Property::Compression, &self.compression),
            (Property::RecordSize, &self.recordsize),
            (Property::Checksum, &self.checksum),
            (Property::MinSavings, &self.min_savings),
        ];
        let set = given.into_iter().filter_map(|(p, value)| Some((p, value.clone()?)));
        set.chain(self.property.iter().cloned()).collect()
    }
}
