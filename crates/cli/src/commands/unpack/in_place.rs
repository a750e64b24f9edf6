//! `hardpack unpack --in-place`: puts the file that a pool holds in the place of the pool, as
//! `pack --in-place` does the other way round.
//!
//! The logs are moved into the pool first. The new file is complete, verified and durable before it
//! is exchanged with the pool, and that happens only if nobody has the pool open and it has not
//! changed since.

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{describe, modified, write};
use crate::address::last_name;
use crate::args::UnpackArgs;
use crate::commands::pack::{in_place_hint, keep_owner, keep_xattrs, refuse_in_place};
use crate::failure::{Code, Reason};
use crate::publish::{self, Unfinished};
use crate::settling::{Settling, settle_databases};
use crate::sidecars;

/// The command, for hints.
const COMMAND: &str = "unpack";

/// Replaces the pool `input`, a path without symbolic links. Returns the length of the file.
pub fn replace(args: &UnpackArgs, input: &Path) -> Result<u64, Reason> {
    if !args.pool.is_whole() {
        return Err(Reason::new(Code::Cannot, "only a whole pool can be replaced")
            .hint("name the pool without a path or snapshot in it, or leave out --in-place"));
    }
    refuse_in_place(input, COMMAND)?;
    settle_databases(input, b"", Settling::Emptied)?;
    let before = publish::digest_of(&File::open(input)?)?;
    let holding = describe(args)?;
    if holding.opened.pool.only_file().is_err() {
        return Err(Reason::new(Code::Cannot, "the pool holds other files, which would be lost")
            .hint(
                "'hardpack extract' copies them out; without --in-place, the pool stays as it is",
            ));
    }
    let snapshots = holding.opened.pool.snapshots()?.len();
    if snapshots > 0 {
        let what = if snapshots == 1 { "a snapshot" } else { "snapshots" };
        return Err(Reason::new(
            Code::Cannot,
            format!("the pool holds {what}, which would be lost"),
        )
        .hint("'hardpack destroy' removes them; without --in-place, the pool stays as it is"));
    }
    let unfinished = Unfinished::create(input)?;
    let written = write(args, &holding, unfinished.path())?;
    let time = modified(&holding.attributes);
    // The lease needs the only descriptor of the pool.
    drop(holding);
    let metadata = fs::metadata(input)?;
    keep_owner(unfinished.path(), &metadata);
    keep_xattrs(input, unfinished.path())?;
    unfinished.complete(metadata.mode(), time)?;
    if let Some((_, path, _)) = sidecars::logs_beside(input)?.into_iter().next() {
        let reason = Reason::new(Code::InUse, "it was written to meanwhile").about(&path);
        return Err(in_place_hint(reason, COMMAND));
    }
    let file = File::open(input)?;
    let replaced = unfinished.replace(input, &file, &before, true);
    replaced.map_err(|reason| in_place_hint(reason, COMMAND))?;
    remove_leftovers(input);
    Ok(written.len)
}

/// Removes empty files next to the pool that only its databases used. Those that SQLite would use
/// for the new file stay: another program may have opened it by now.
fn remove_leftovers(pool: &Path) {
    let Some(pool_name) = last_name(pool.as_os_str().as_bytes()) else { return };
    let Ok(entries) = fs::read_dir(publish::directory_of(pool)) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(sidecar) = sidecars::sidecar_of(pool_name, name.as_bytes()) else { continue };
        let is_of_pools = sidecar.file != sidecars::FIRST_FILE
            || sidecar.generation.is_some_and(|generation| generation > 0);
        if is_of_pools && entry.metadata().is_ok_and(|metadata| metadata.is_file()) {
            // What is left does no harm.
            let _ = fs::remove_file(entry.path());
        }
    }
}
