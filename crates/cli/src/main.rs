//! `hardpack`: the command line.
//!
//! `args.rs` defines every flag; each file of `commands` is one command. Shared by them:
//! `address.rs` parses POOL/PATH, `globs.rs` expands patterns in it, `contents.rs` reads a file of
//! a pool, `snapshot.rs` reads the input of `pack` consistently, `publish.rs` renames a finished
//! file into place atomically, `pool_file.rs` opens and reads pools, `sqlite.rs` opens databases.
//!
//! A failure prints one line on stderr; `failure.rs` has the format and the exit codes. A command
//! that fails or is interrupted leaves nothing behind.

mod address;
mod args;
mod commands;
mod contents;
mod failure;
mod globs;
mod leftovers;
mod library;
mod modes;
mod near;
mod output;
mod ownership;
mod pool_file;
mod progress;
mod publish;
mod repeats;
mod seen;
mod settling;
mod sidecars;
mod signals;
mod snapshot;
mod sqlite;
mod summary;
mod sys;
mod tarball;
mod text;
mod users;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use crate::args::Command;
use crate::failure::Failure;

/// The allocator of musl is made to be small: with it, most commands take a third longer.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    sys::ignore_file_size_signal();
    let mut command = args::parse().command;
    match catch_unwind(AssertUnwindSafe(|| {
        expand_single(&mut command)?;
        run(command)
    })) {
        Ok(Ok(code)) => code,
        Ok(Err(failure)) => failure.report(),
        Err(panic) => failure::report_panic(&*panic),
    }
}

/// Expands the pattern of a command that takes a single path; those that take several do it
/// themselves.
fn expand_single(command: &mut Command) -> Result<(), Failure> {
    let (address, action) = match command {
        Command::Tree(args) => (&mut args.path, "show"),
        Command::List(args) => (&mut args.path, "list"),
        Command::Stats(args) => (&mut args.path, "show"),
        Command::Unpack(args) if args.rewind.txg.is_none() => (&mut args.pool, "unpack"),
        Command::Repack(args) => (&mut args.pool, "repack"),
        Command::Optimize(args) => (&mut args.pool, "optimize"),
        Command::Clone(args) => (&mut args.source, "clone"),
        _ => return Ok(()),
    };
    *address = globs::expand_one(address, action)?;
    Ok(())
}

fn run(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Pack(args) => commands::pack::run(&args),
        Command::Unpack(args) => commands::unpack::run(&args),
        Command::Create(args) => commands::names::create(&args),
        Command::Put(args) => commands::put::run(&args),
        Command::Estimate(args) => commands::estimate::run(&args),
        Command::Import(args) => commands::import::run(&args),
        Command::Extract(args) => commands::extract::run(&args),
        Command::Ls(args) => commands::ls::run(&args),
        Command::Tree(args) => commands::tree::tree(&args),
        Command::Find(args) => commands::tree::find(&args),
        Command::Stat(args) => commands::stat::stat(&args),
        Command::Du(args) => commands::stat::du(&args),
        Command::Cat(args) => commands::stat::cat(&args),
        Command::Rm(args) => commands::names::rm(&args),
        Command::Mv(args) => commands::names::mv(&args),
        Command::Mkdir(args) => commands::names::mkdir(&args),
        Command::Ln(args) => commands::names::ln(&args),
        Command::Cp(args) => commands::cp::run(&args),
        Command::Touch(args) => commands::attributes::touch(&args),
        Command::Chmod(args) => commands::attributes::chmod(&args),
        Command::Chown(args) => commands::attributes::chown(&args),
        Command::Snapshot(args) => commands::snapshots::snapshot(&args),
        Command::List(args) => commands::snapshots::list(&args),
        Command::Rollback(args) => commands::snapshots::rollback(&args),
        Command::Clone(args) => commands::snapshots::clone(&args),
        Command::Diff(args) => commands::snapshots::diff(&args),
        Command::Destroy(args) => commands::snapshots::destroy(&args),
        Command::Send(args) => commands::send::run(&args),
        Command::Receive(args) => commands::receive::run(&args),
        Command::Stats(args) => commands::stats::run(&args),
        Command::Info(args) => commands::info::run(&args),
        Command::Check(args) => commands::check::run(&args),
        Command::Salvage(args) => commands::salvage::run(&args),
        Command::Rewind(args) => commands::rewind::run(&args),
        Command::Compact(args) => commands::compact::run(&args),
        Command::Get(args) => commands::properties::get(&args),
        Command::Set(args) => commands::properties::set(&args),
        Command::Inherit(args) => commands::properties::inherit(&args),
        Command::Fold(args) => commands::fold::run(&args),
        Command::Repack(args) => commands::repack::run(&args),
        Command::Optimize(args) => commands::optimize::run(&args),
        Command::Sql(args) => commands::sql::run(&args),
        Command::Mount(args) => commands::mount::mount(&args),
        Command::Umount(args) => commands::mount::umount(&args),
        Command::Run(args) => commands::run::run(&args),
        Command::Codecs(args) => commands::codecs::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Completions(args) => commands::manuals::completions(&args),
        Command::Man(args) => commands::manuals::man(&args),
    }
}
