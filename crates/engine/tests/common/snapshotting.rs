//! The part of a crash workload that concerns snapshots: they are created, destroyed step by step,
//! and rolled back to. The name of each tells the content of the file, so anybody can verify a
//! snapshot.

use hardpack_engine::pool::{Pool, ROOT, SnapshotInfo};
use hardpack_engine::{Error, FileId};

use super::{Rng, read_all};

/// The most snapshots; beyond this some are destroyed.
const SNAPSHOT_COUNT_MAX: usize = 5;

fn name_of(bytes: &[u8], number: u64) -> Vec<u8> {
    format!("{:016x}.{number}", twox_hash::XxHash3_64::oneshot(bytes)).into_bytes()
}

/// Returns one of the snapshots of a pool, if there is any.
pub fn any(pool: &Pool, rng: &mut Rng) -> Result<Option<SnapshotInfo>, Error> {
    pool.refresh()?;
    let mut found = pool.snapshots()?;
    let index = rng.below(found.len() as u64) as usize;
    Ok((index < found.len()).then(|| found.swap_remove(index)))
}

/// Returns the content of the file in a snapshot.
pub fn content(pool: &Pool, snapshot: &SnapshotInfo) -> Result<Vec<u8>, Error> {
    let kept = pool.open_snapshot(snapshot.scope, &snapshot.name)?;
    read_all(&*kept.file(kept.only_file()?.file)?)
}

/// Creates a snapshot of a file that holds `bytes`, or destroys one or part of it, durably. Returns
/// whether there was anything to do.
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

/// Checks that every snapshot still has the content that it was made of.
pub fn verify(pool: &Pool) -> Result<(), String> {
    let text = |error: Error| error.to_string();
    for snapshot in pool.snapshots().map_err(text)? {
        let name = String::from_utf8_lossy(&snapshot.name).into_owned();
        let bytes = content(pool, &snapshot).map_err(|e| format!("snapshot {name}: {e}"))?;
        if !name_of(&bytes, 0).starts_with(&snapshot.name[..16]) {
            return Err(format!("snapshot {name} has other content"));
        }
    }
    Ok(())
}
