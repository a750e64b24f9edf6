//! The flags of the commands for other programs.

use std::ffi::OsString;

use clap::{Args as ClapArgs, ValueHint};

const RUN_HELP: &str = "\
The program, and every program that it starts, opens a pool wherever it opens a database by a plain \
file name, and a path into a pool, such as apps.hpk/shop.db, as well, unless it looks for the \
directory itself, as PHP does. Plain databases stay plain. A new database is plain, unless its name \
ends in '.hpk' or --new-packed is given.

This works for programs that use the library libsqlite3, also if they load it later, as Python, \
Perl, PHP and Ruby do. It cannot reach a SQLite that is part of a program, such as those of Node \
and Java drivers; when such a program opens a pool, a note on standard error says so. Programs \
with set-user-id bits are started as they are.

The program takes the place of hardpack: it gets all signals, and its exit code is passed on. Exit \
code 127 means that the program was not found, 126 that it or libhardpack.so could not be used.

Examples:
  hardpack run -- python3 app.py
  hardpack run --new-packed -- ./import.sh
  hardpack run -- sqlite3 words.db .schema      words.db was replaced with 'pack --in-place'";

#[derive(Debug, ClapArgs)]
#[command(after_help = RUN_HELP)]
pub struct RunArgs {
    /// Make pools of all new databases
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
