//! The flags of the commands that copy files and change what is known about them.

use std::ffi::OsString;

use clap::Args as ClapArgs;

use super::address;
use crate::address::Address;
use crate::modes::Mode;
use crate::ownership::Ownership;

const CP_HELP: &str = "\
Within a pool the copy shares its data with the source, as with 'hardpack clone', so it takes \
hardly any space. Into another pool the bytes are copied. An existing file is replaced as a whole; \
a directory is never merged into an existing one. Without -p the copies belong to the current user \
and have the current time.

Examples:
  hardpack cp app.hpk/a.db app.hpk/b.db
  hardpack cp -r app.hpk/logs backup.hpk/
  hardpack cp -a app.hpk/photos@monday app.hpk/then";

const TOUCH_HELP: &str = "\
TIME is a date such as 2026-11-23, a time such as '2026-11-23 12:30' or '2026-11-23T12:30:05Z' \
(local unless it ends in Z or an offset such as +0100), or '@' and a number of seconds since 1970.";

const CHMOD_HELP: &str = "\
MODE is an octal number up to 7777, or changes such as u+x, go-w, a=rX or +x, separated by commas. \
Symbolic links are followed, but not below a directory.

Examples:
  hardpack chmod 640 app.hpk/a.db
  hardpack chmod -R u=rwX,go=rX app.hpk/photos";

const CHOWN_HELP: &str = "\
OWNER is a user, user:group, or :group, each by name or number; 'user:' means the login group of \
the user. The pool only records owners: 'hardpack extract' restores them. Symbolic links are \
followed, but not below a directory.

Example: hardpack chown -R www-data:www-data app.hpk/site";

#[derive(Debug, ClapArgs)]
#[command(after_help = CP_HELP)]
#[command(override_usage = "hardpack cp [OPTIONS] <POOL/PATH>... <POOL/PATH>")]
pub struct CpArgs {
    /// Files and directories to copy, then their destination: a directory, or the new name
    #[arg(value_name = "POOL/PATH", required = true, num_args = 2.., value_parser = address())]
    pub paths: Vec<Address>,
    /// Copy directories too, with everything in them, and symbolic links as they are
    #[arg(short, long, short_alias = 'R')]
    pub recursive: bool,
    /// Keep modes, owners and times
    #[arg(short = 'p', long)]
    pub preserve: bool,
    /// The same as -r and -p
    #[arg(short, long)]
    pub archive: bool,
    /// Take the last path as the new name, even if a directory has that name
    #[arg(short = 'T', long = "no-target-directory")]
    pub no_target_directory: bool,
    /// Do not replace existing files
    #[arg(short, long)]
    pub no_clobber: bool,
    /// Replace existing files; this is always so
    #[arg(short, hide = true)]
    pub force: bool,
}

impl CpArgs {
    /// Whether to copy directories.
    pub fn is_recursive(&self) -> bool {
        self.recursive || self.archive
    }

    /// Whether to keep modes, owners and times.
    pub fn is_preserving(&self) -> bool {
        self.preserve || self.archive
    }
}

#[derive(Debug, ClapArgs)]
#[command(after_help = TOUCH_HELP)]
pub struct TouchArgs {
    /// Files to make, or to set the times of
    #[arg(value_name = "POOL/PATH", required = true, value_parser = address())]
    pub paths: Vec<Address>,
    /// Make no files
    #[arg(short = 'c', long)]
    pub no_create: bool,
    /// Set this time instead of the current one
    #[arg(short, long, value_name = "TIME", value_parser = hardpack::times::parse)]
    pub date: Option<i64>,
    /// Set the time of this file, in a pool or of the system
    #[arg(short, long, value_name = "FILE", conflicts_with = "date")]
    pub reference: Option<OsString>,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = CHMOD_HELP)]
pub struct ChmodArgs {
    /// The permissions, or how to change them
    #[arg(value_name = "MODE", value_parser = Mode::parse, allow_hyphen_values = true)]
    pub mode: Mode,
    /// Files and directories
    #[arg(value_name = "POOL[/PATH]", required = true, value_parser = address())]
    pub paths: Vec<Address>,
    /// Change everything below directories too
    #[arg(short = 'R', long)]
    pub recursive: bool,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = CHOWN_HELP)]
pub struct ChownArgs {
    /// The new owner, the new group, or both
    #[arg(value_name = "OWNER[:GROUP]", value_parser = Ownership::parse)]
    pub owner: Ownership,
    /// Files and directories of which to set the owner
    #[arg(value_name = "POOL[/PATH]", required = true, value_parser = address())]
    pub paths: Vec<Address>,
    /// Set that of everything below directories too
    #[arg(short = 'R', long)]
    pub recursive: bool,
}
