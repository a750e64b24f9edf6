//! `hardpack`: the command line.
//!
//! `args.rs` defines every flag; each file of `commands` is one command. What they share:
//! `address.rs` knows what POOL/PATH stands for, `contents.rs` reads a file of a pool, `snapshot.rs` reads the input of `pack` consistently, `publish.rs` puts a finished file in its
//! place atomically, `pool_file.rs` opens and reads pools, `sqlite.rs` opens databases.
//!
//! Failures: one line on stderr, see `failure.rs`, which also has the exit codes. Nothing is left
//! behind by a command that fails or is interrupted.
#![deny(unsafe_code)]

mod address;
mod args;
mod commands;
mod contents;
mod failure;
mod leftovers;
mod output;
mod pool_file;
mod progress;
mod publish;
mod signals;
mod snapshot;
mod sqlite;
mod sys;
mod tarball;
mod text;
mod users;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Args, Command};
use crate::failure::Failure;

fn main() -> ExitCode {
    match run(Args::parse().command) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}

fn run(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Pack(args) => commands::pack::run(&args),
        Command::Unpack(args) => commands::unpack::run(&args),
        Command::Create(args) => commands::names::create(&args),
        Command::Put(args) => commands::put::run(&args),
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
        Command::Sql(args) => commands::sql::run(&args),
        Command::Codecs(args) => commands::codecs::run(&args),
    }
}
