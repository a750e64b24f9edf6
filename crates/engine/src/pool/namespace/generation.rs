//! The generation of a file's content, which ties the files beside a pool to the content they
//! belong to.
//!
//! SQLite's log and journal of a database do not record which state they belong to: they are
//! replayed onto whatever database has the right name. So their names contain the generation, and
//! files left over from an earlier generation are never found.
//!
//! * A file has generation 0 until its content is replaced by something other than SQLite: a
//!   rollback, a receive, or an import into the same file. The same transaction then gives it
//!   another number. A file that returns under its old number counts as such a replacement; a new
//!   file has a new number and needs no generation.
//! * The pool has a generation too, stored as the root's, which counts for all files. It changes
//!   when an older state of the whole pool is restored.
//! * A generation is never used twice for different content: it is a hash of the pool, the
//!   transaction, the state before it, and a value that stands for the new content. So copies of a
//!   pool that diverge never share a generation, nor does a pool that continues from an earlier
//!   state after a power loss.
//! * It belongs to the place and not to the content: snapshots, clones and streams do not carry it.

use crate::error::Result;
use crate::pool::extents::source::Source;
use crate::pool::namespace::keys::{GENERATION, ROOT, id_key, malformed};
use crate::store::Txn;
use crate::store::format::checksum::ChecksumKind;
use crate::store::trees::TreeId;
use crate::units::FileId;

fn own(source: &mut impl Source, file: FileId) -> Result<u64> {
    let key = id_key(GENERATION, file, &[]);
    let Some(value) = source.get(TreeId::Names, &key)? else { return Ok(0) };
    let number = value.try_into().map(u64::from_le_bytes);
    number.map_err(|value| malformed("generation", &key, &value, "8 bytes"))
}

/// Returns the generation that identifies the files beside the pool; 0 if nothing was ever
/// replaced.
pub(crate) fn generation(source: &mut impl Source, file: FileId) -> Result<u64> {
    let (of_pool, of_file) = (own(source, ROOT)?, own(source, file)?);
    Ok(match (of_pool, of_file) {
        (0, one) | (one, 0) => one,
        (pool, file) => (pool.rotate_left(32) ^ file).max(1),
    })
}

/// Gives a file, or the pool if `file` is [`ROOT`], a generation that it never had. Every call in
/// one transaction yields the same one. `from` identifies the new content among all that might
/// replace the old.
pub(crate) fn renew_generation(txn: &mut Txn, file: FileId, from: u64) -> Result<()> {
    let numbers = [txn.txg().0, file.0, from].map(u64::to_le_bytes);
    let bytes = [txn.base_image(), numbers.concat()].concat();
    let sum = ChecksumKind::Xxh3.sum(&bytes);
    let (first, _) = sum.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
    let generation = u64::from_le_bytes(*first).max(1);
    let key = id_key(GENERATION, file, &[]);
    txn.note_generations();
    txn.insert(TreeId::Names, &key, &generation.to_le_bytes()).map(drop)
}

/// Removes the generation of a file.
pub(in crate::pool) fn remove(txn: &mut Txn, file: FileId) -> Result<()> {
    txn.remove(TreeId::Names, &id_key(GENERATION, file, &[])).map(drop)
}
