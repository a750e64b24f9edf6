//! The flags of the commands for other programs.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueHint};

const RUN_HELP: &str = "\
The program, and every program that it starts, opens a pool wherever it opens a database by a plain \
file name, and a path into a pool, such as apps.hpk/shop.db, as well, unless it looks for the \
directory itself, as PHP does. Plain databases stay plain. A new database is plain, unless its name \
ends in '.hpk' or --new-packed is given. What ATTACH and VACUUM INTO make is a pool only if its name \
ends in '.hpk'.

This works for programs that use the library libsqlite3, also if they load it later, as Python, \
Perl, PHP and Ruby do. It cannot reach a SQLite that is part of a program, such as those of Node \
and Java drivers; when such a program opens a pool, a note on standard error says so, and 'hardpack \
mount' gives it the database as a plain file. Programs with set-user-id bits are started as they are.

The program takes the place of hardpack: it gets all signals, and its exit code is passed on. Exit \
code 127 means that the program was not found, 126 that it or libhardpack.so could not be used.

Examples:
  hardpack run -- python3 app.py
  hardpack run --new-packed -- ./import.sh
  hardpack run -- sqlite3 words.db .schema      words.db was replaced with 'pack --in-place'";

#[derive(Debug, ClapArgs)]
#[command(after_help = RUN_HELP)]
pub struct RunArgs {
    /// Make a pool of each new database that the program opens
    #[arg(long)]
    pub new_packed: bool,
    /// The program, and its arguments
    #[arg(
        value_name = "PROGRAM",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_hint = ValueHint::CommandWithArguments
    )]
    pub program: Vec<OsString>,
}

const DOCTOR_HELP: &str = "\
Each line says what was looked at, whether it is as it should be, and what was found. Advice for \
each 'no' follows. The file system is that of the current directory.

Exit code 3 means that pools cannot be used safely here: locks do not work, or the kernel is too \
old. A missing program or library is no failure.

Examples:
  hardpack doctor
  hardpack doctor --json";

#[derive(Debug, ClapArgs)]
#[command(after_help = DOCTOR_HELP)]
pub struct DoctorArgs {
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

const COMPLETIONS_HELP: &str = "\
Examples:
  hardpack completions bash > ~/.local/share/bash-completion/completions/hardpack
  hardpack completions zsh > ~/.zfunc/_hardpack      ~/.zfunc must be in $fpath
  hardpack completions fish > ~/.config/fish/completions/hardpack.fish";

#[derive(Debug, ClapArgs)]
#[command(after_help = COMPLETIONS_HELP)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL", value_enum)]
    pub shell: clap_complete::Shell,
}

const MAN_HELP: &str = "\
There is a page for each command, such as hardpack-pack(1). Pages of these names are replaced.

Examples:
  hardpack man ~/.local/share/man/man1
  man hardpack-run";

#[derive(Debug, ClapArgs)]
#[command(after_help = MAN_HELP)]
pub struct ManArgs {
    /// The directory to write the pages to, which must exist
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub directory: PathBuf,
}
