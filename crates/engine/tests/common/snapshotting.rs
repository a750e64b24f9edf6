//! The part of a crash workload that is about snapshots: they are made, destroyed step by step, and rolled back
//! to. The name of each says what the file held, so that whoever finds one can tell whether it still does.

use hardpack_engine::pool::{Pool, ROOT, SnapshotInfo};
use hardpack_engine::{Error, FileId};

use super::{Rng, read_all};

/// More are not made: destroying begins.
const SNAPSHOT_COUNT_MAX: usize = 5;

fn name_of(bytes: &[u8], number: u64) -> Vec<u8> {
    format!("{:016x}.{number}", twox_hash::XxHash3_64::oneshot(bytes)).into_bytes()
}

/// One of the snapshots of a pool, if there is any.
pub fn any(pool: &Pool, rng: &mut Rng) -> Result<Option<SnapshotInfo>, Error> {
    pool.refresh()?;
    let mut found = pool.snapshots()?;
    let index = rng.below(found.len() as u64) as usize;
    Ok((index < found.len()).then(|| found.swap_remove(index)))
}

/// What the file holds in a snapshot.
pub fn content(pool: &Pool, snapshot: &SnapshotInfo) -> Result<Vec<u8>, Error> {
    let kept = pool.open_snapshot(snapshot.scope, &snapshot.name)?;
    read_all(&*kept.file(kept.only_file()?.file)?)
}

/// Makes a snapshot of a file that holds `bytes`, or destroys one or a part of it. All of it is durable. Whether anything
/// was to be done.
pub fn some_step(pool: &Pool, rng: &mut Rng, bytes: &[u8]) -> Result<bool, Error> {
    pool.refresh()?;
    let is_full = pool.snapshots()?.len() >= SNAPSHOT_COUNT_MAX;
    match rng.below(8) {
        0..4 if !is_full => {
            let scope: FileId = rng.pick(&[ROOT, pool.only_file()?.file]);
            pool.create_snapshot(scope, &name_of(bytes, rng.next()), 0)?;
            Ok(true)
        }
        0..3 => match any(pool, rng)? {
            Some(SnapshotInfo { scope, name, .. }) => {
                pool.destroy_snapshot(scope, &name)?;
                Ok(true)
            }
            None => Ok(false),
        },
        3 | 4 => match any(pool, rng)? {
            Some(SnapshotInfo { scope, name, .. }) => {
                pool.condemn_snapshot(scope, &name)?;
                pool.destroy_step(2)?;
                Ok(true)
            }
            None => Ok(false),
        },
        5 => pool.finish_destroying(),
        _ => pool.destroy_step(5),
    }
}

/// Whether every snapshot still holds what it was made of.
pub fn verify(pool: &Pool) -> Result<(), String> {
    let text = |error: Error| error.to_string();
    for snapshot in pool.snapshots().map_err(text)? {
        let name = String::from_utf8_lossy(&snapshot.name).into_owned();
        let bytes = content(pool, &snapshot).map_err(|e| format!("snapshot {name}: {e}"))?;
        if !name_of(&bytes, 0).starts_with(&snapshot.name[..16]) {
            return Err(format!("snapshot {name} holds something else"));
        }
    }
    Ok(())
}
