//! Brings what the databases of a pool have in logs and journals beside it into the pool, for
//! commands that keep, copy or replace only what is in the pool.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use hardpack_engine::device::FileDevice;
use hardpack_engine::pool::{Kind, Pool};
use hardpack_engine::{Error, FileId};

use crate::contents::database_path;
use crate::failure::{Code, Reason};
use crate::sidecars::{self, Sidecar, logs_beside, logs_beside_other_names};
use crate::users::users_of;
use crate::{near, pool_file, sqlite, text};

/// How long to wait for a locked database to settle its log.
const SETTLE_WAIT: Duration = Duration::from_secs(10);
/// How long to wait for readers that prevent a log from being copied.
const COPY_WAIT: Duration = Duration::from_secs(2);

/// What to do with the logs next to a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Settling {
    /// Copy everything committed until now into the pool. Others may go on reading and writing.
    Copied,
    /// Empty the logs. A database that SQLite cannot read is left alone: its log will not be
    /// applied to the content that replaces it.
    Emptied,
}

/// Applies the logs and hot journals of the databases at or below a path to the pool, since a
/// snapshot or clone keeps only what is in the pool.
pub fn settle_databases(pool_path: &Path, path: &[u8], settling: Settling) -> Result<(), Reason> {
    // What cannot be opened is told of by the command.
    let Ok(device) = pool_file::open_device(pool_path, FileDevice::open_read_only) else {
        return Ok(());
    };
    let is_used_elsewhere = sidecars::is_used_elsewhere(pool_path, &device);
    let (logs, elsewhere) = (logs_beside(pool_path)?, logs_beside_other_names(pool_path)?);
    let can_list = sidecars::can_list_beside(pool_path);
    if can_list && logs.is_empty() && elsewhere.is_empty() && !is_used_elsewhere {
        return Ok(());
    }
    let pool = pool_file::open_read_only(pool_path, Some(1))?;
    let scope = near::resolve(&pool, pool_path.as_os_str().as_bytes(), path)?.file;
    // It may belong to a database that no longer exists, or to replaced content.
    let is_concerned = |sidecar: &Sidecar| {
        let is_there = pool.path_of(sidecar.file).is_ok();
        let is_of_content = is_there && sidecar.generation == Some(pool.generation(sidecar.file)?);
        Ok::<_, Error>(is_of_content && pool.is_below(sidecar.file, scope)?)
    };
    for (sidecar, log, _) in &elsewhere {
        if is_concerned(sidecar)? {
            return Err(sidecars::is_elsewhere(log));
        }
    }
    if is_used_elsewhere {
        refuse_logs_elsewhere(pool_path, &pool, scope)?;
    }
    let mut files: Vec<FileId> = Vec::new();
    for (sidecar, ..) in logs {
        if is_concerned(&sidecar)? {
            files.push(sidecar.file);
        }
    }
    if !can_list {
        files.extend(sidecars::with_logs(pool_path, &pool, scope)?.into_iter().map(|(it, _)| it));
        files.sort_unstable();
    }
    files.dedup();
    for file in files {
        let inner = pool.path_of(file)?;
        settle(pool_path, file, &inner, settling)?;
    }
    Ok(())
}

/// Fails if a database at or below `scope` may have a log beside another name of the pool.
fn refuse_logs_elsewhere(pool_path: &Path, pool: &Pool, scope: FileId) -> Result<(), Reason> {
    let refuse = |file| sidecars::refuse_log_elsewhere(pool_path, pool, file);
    let mut refused = None;
    match pool.attributes(scope)?.kind {
        Kind::Directory => pool.walk(scope, &mut |_, entry, _| {
            if entry.kind == Kind::File && refused.is_none() {
                refused = refuse(entry.file).err();
            }
            Ok(refused.is_none())
        })?,
        _ => refused = refuse(scope).err(),
    }
    refused.map_or(Ok(()), Err)
}

fn settle(pool_path: &Path, file: FileId, inner: &[u8], settling: Settling) -> Result<(), Reason> {
    let db = sqlite::open_any(&database_path(pool_path, inner), SETTLE_WAIT)?;
    let settled = match settling {
        Settling::Copied => sqlite::bring_in(&db, COPY_WAIT),
        Settling::Emptied => sqlite::settle(&db),
    };
    match settled {
        Ok(true) => Ok(()),
        Ok(false) => {
            let shown = text::escaped(inner);
            let users = users_of(pool_path, file);
            let user = if users.is_empty() { "another process".into() } else { users.join(", ") };
            let what =
                format!("the database '{shown}' is in use by {user}, and part of it is in its log");
            Err(Reason::new(Code::InUse, what).hint("try again when it is less busy"))
        }
        Err(error) if settling == Settling::Emptied && sqlite::is_unreadable(&error) => Ok(()),
        Err(error) => {
            let mut reason = Reason::from(error);
            let shown = text::escaped(inner);
            let why = reason.text;
            reason.text = format!("part of the database '{shown}' is in its log: {why}");
            Err(reason)
        }
    }
}
