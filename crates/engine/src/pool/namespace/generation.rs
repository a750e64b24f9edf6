//! The generation of a file's content, which ties what lies beside a pool to what is in it.
//!
//! SQLite's log and journal of a database know nothing of the state they belong to, and are played onto whatever
//! has the right name. So their names hold the generation, and what lies beside from before is never found.
//!
//! * A file has generation 0 until its content is exchanged from outside of SQLite: by a rollback, a receive, an import
//!   into the same file. Then it gets another number, in the same transaction. A file that comes back under its old
//!   number is such an exchange; a new file has a number of its own, and needs no generation.
//! * The pool has one as well, which counts for all files, as the root's: it changes when an older state of all is
//!   brought back.
//! * A generation is never used twice for different content: it is a hash of the pool, the transaction, the state
//!   before it, and what stands for the new content. So copies of a pool that go different ways do not meet in one
//!   either, nor does a pool that goes on from an earlier state after a loss of power.
//! * It belongs to the place and not to the content: no snapshot, clone or stream takes it along.

use crate::error::Result;
use crate::pool::extents::source::Source;
use crate::pool::namespace::entries::{ROOT, id_key, malformed};
use crate::store::Txn;
use crate::store::format::checksum::ChecksumKind;
use crate::store::trees::NAMES;
use crate::units::FileId;

pub(in crate::pool) const GENERATION: u8 = 13;

fn own(source: &mut impl Source, file: FileId) -> Result<u64> {
    let Some(value) = source.get(NAMES, &id_key(GENERATION, file, &[]))? else { return Ok(0) };
    value.try_into().map(u64::from_le_bytes).map_err(|_| malformed("a generation"))
}

/// The generation by which what lies beside the pool is told apart; 0 where nothing was ever exchanged.
pub(crate) fn generation(source: &mut impl Source, file: FileId) -> Result<u64> {
    let (of_pool, of_file) = (own(source, ROOT)?, own(source, file)?);
    Ok(match (of_pool, of_file) {
        (0, one) | (one, 0) => one,
        (pool, file) => (pool.rotate_left(32) ^ file).max(1),
    })
}

/// Gives a file, or with [`ROOT`] the pool, a generation that it never had. The same one with every call in one
/// transaction. `from` stands for the new content among all that might come in place of the old.
pub(crate) fn renew_generation(txn: &mut Txn, file: FileId, from: u64) -> Result<()> {
    let numbers = [txn.txg().0, file.0, from].map(u64::to_le_bytes);
    let bytes = [txn.base_image(), numbers.concat()].concat();
    let sum = ChecksumKind::Xxh3.sum(&bytes);
    let (first, _) = sum.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
    let generation = u64::from_le_bytes(*first).max(1);
    let key = id_key(GENERATION, file, &[]);
    txn.note_generations();
    txn.insert(NAMES, &key, &generation.to_le_bytes()).map(drop)
}

/// Forgets it.
pub(in crate::pool) fn remove(txn: &mut Txn, file: FileId) -> Result<()> {
    txn.remove(NAMES, &id_key(GENERATION, file, &[])).map(drop)
}
