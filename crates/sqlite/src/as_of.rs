//! `at=` in a URI: a database as it was.
//!
//! ```text
//! at=NAME        the snapshot of this name, of the file or of anything above it
//! at=TXG         the state of this number: of a snapshot, or of the ring while it is whole
//! at=TIME        the newest snapshot that was taken at this time or before it
//! ```
//!
//! A snapshot of that very name comes first, whatever else the text could mean. Snapshots are found
//! by the path that the database has now or had then, as with `pool.hpk/app.db@NAME`.
//!
//! Whatever is found stays as it is: a state of the ring is pinned, and in a pool whose readers pin
//! what they read, a snapshot is so as well, in case somebody destroys it meanwhile.

use std::time::Duration;

use hardpack_engine::pool::{Pool, SnapshotInfo};
use hardpack_engine::store::Pin;
use hardpack_engine::{Error, FileId, Result, Txg};

use crate::pool_entry::{self, PoolEntry};
use crate::pool_path::SNAPSHOT_MARK;
use crate::{system, times};

/// How long to wait for a transaction that may be reusing space of an older state.
const TURN_WAIT: Duration = Duration::from_secs(10);
/// The number of snapshots that an error names.
const NAMED_COUNT_MAX: usize = 8;

/// A database as it was.
#[derive(Debug)]
pub struct AsOf {
    /// What reads its state.
    pub pool: Pool,
    /// The database.
    pub file: FileId,
    /// Keeps its space from being reused.
    pub pin: Option<Pin>,
}

/// Finds the database at the path `inner` of a pool, empty for the database of the pool, as `at`
/// asks for it.
///
/// # Errors
/// [`Error::Invalid`] if there is no such state, which names those that there are.
pub fn find(pool: &Pool, inner: &[u8], at: &str) -> Result<AsOf> {
    if at.is_empty() || at.contains('/') {
        let what = format!("at={at} names no state; use a snapshot's name, a txg or a time");
        return Err(Error::Invalid(what));
    }
    pool.refresh()?;
    // Whatever there is from here on stays.
    let pin = hold_newest(pool)?;
    let paths = paths(pool, inner);
    let snapshots = pool.snapshots()?;
    if let Some((found, file)) = in_snapshot(pool, &paths, at.as_bytes())? {
        return Ok(AsOf { pool: found, file, pin });
    }
    if let Ok(txg) = at.parse().map(Txg) {
        for info in snapshots.iter().filter(|info| info.txg == txg) {
            if let Some((found, file)) = in_snapshot(pool, &paths, &full_name(info))? {
                return Ok(AsOf { pool: found, file, pin });
            }
        }
        let waited = system::Stopwatch::start();
        let mut ask = || waited.elapsed() < TURN_WAIT;
        if let Some((state, pin)) = pool.hold_state(txg, &mut ask)? {
            let file = in_state(pool, &state, inner)?;
            return Ok(AsOf { pool: state, file, pin: Some(pin) });
        }
    } else if let Ok(time_ns) = times::parse(at) {
        let mut earlier: Vec<_> =
            snapshots.iter().filter(|info| info.created_ns <= time_ns).collect();
        earlier.sort_by_key(|info| std::cmp::Reverse((info.created_ns, info.txg)));
        for info in earlier {
            if let Some((found, file)) = in_snapshot(pool, &paths, &full_name(info))? {
                return Ok(AsOf { pool: found, file, pin });
            }
        }
    }
    Err(missing(pool, &paths, &snapshots, at))
}

/// Pins the newest state in a pool whose readers do so. A medium without locks, to which nobody can
/// write, needs no pin.
pub fn hold_newest(pool: &Pool) -> Result<Option<Pin>> {
    match pool.store().pin_if_shown() {
        Err(Error::Io { action: "lock", .. }) if pool.store().is_read_only() => Ok(None),
        pinned => pinned,
    }
}

/// The paths by which snapshots of the database are found: the given one, and for the database of a
/// pool its own.
fn paths(pool: &Pool, inner: &[u8]) -> Vec<Vec<u8>> {
    let mut paths = vec![inner.to_vec()];
    if inner.is_empty()
        && let Ok(only) = pool.database()
        && let Ok(path) = pool.path_of(only.file)
    {
        paths.push([b"/", &path[..]].concat());
    }
    paths
}

fn full_name(info: &SnapshotInfo) -> Vec<u8> {
    [&info.name[..], &[SNAPSHOT_MARK], info.txg.to_string().as_bytes()].concat()
}

fn in_snapshot(pool: &Pool, paths: &[Vec<u8>], name: &[u8]) -> Result<Option<(Pool, FileId)>> {
    for path in paths {
        let address = [&path[..], &[SNAPSHOT_MARK], name].concat();
        if let Some(PoolEntry::InSnapshot(found, file)) = pool_entry::in_snapshot(pool, &address)? {
            return Ok(Some((found, file)));
        }
    }
    Ok(None)
}

/// Finds the database in an older state: by its path, or under the name that it had then.
fn in_state(pool: &Pool, state: &Pool, inner: &[u8]) -> Result<FileId> {
    if inner.is_empty() {
        return Ok(state.database()?.file);
    }
    if let Some(entry) = pool_entry::resolve(state, inner)? {
        return Ok(entry.file);
    }
    let now = pool_entry::resolve(pool, inner)?;
    match now.filter(|entry| state.attributes(entry.file).is_ok()) {
        Some(entry) => Ok(entry.file),
        None => {
            let name = String::from_utf8_lossy(inner).into_owned();
            Err(Error::NotFound { what: "file in that state", name })
        }
    }
}

/// Says what there is.
fn missing(pool: &Pool, paths: &[Vec<u8>], snapshots: &[SnapshotInfo], at: &str) -> Error {
    let is_of_it =
        |info: &&SnapshotInfo| matches!(in_snapshot(pool, paths, &full_name(info)), Ok(Some(_)));
    let own: Vec<_> = snapshots.iter().rev().filter(is_of_it).collect();
    let mut names: Vec<_> = own
        .iter()
        .take(NAMED_COUNT_MAX)
        .map(|info| String::from_utf8_lossy(&info.name).into_owned())
        .collect();
    if own.len() > names.len() {
        names.push(format!("{} older ones", own.len() - names.len()));
    }
    let snapshots = match &names[..] {
        [] => "it has no snapshots".into(),
        names => format!("its snapshots are {}", names.join(", ")),
    };
    let states = match pool.store().has_pinned_readers() {
        true => pool.store().whole_states().unwrap_or_default(),
        false => Vec::new(),
    };
    let states: Vec<_> = states.iter().map(Txg::to_string).collect();
    let states = match &states[..] {
        [] => String::new(),
        states => format!("; the states {} can still be read", states.join(", ")),
    };
    Error::Invalid(format!(
        "there is no snapshot or state '{at}' of the database: {snapshots}{states}"
    ))
}
