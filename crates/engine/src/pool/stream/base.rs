//! The base of an incremental stream, as it was received here.

use super::frame::Header;
use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::pool::extents::parse_file_extent_key;
use crate::pool::extents::source::{Committed, Source};
use crate::pool::namespace::api::is_reached;
use crate::pool::namespace::entries;
use crate::store::format::snapshot::Snapshot;
use crate::store::snapshots::differ::differences;
use crate::store::trees::TreeId;
use crate::units::{FileId, Txg};

/// Returns the state that was preserved here when the base of a stream was received.
pub(super) fn received_base(
    pool: &Pool,
    source: &mut impl Source,
    scope: FileId,
    header: &Header,
) -> Result<Txg> {
    // A snapshot that was received and then destroyed may come again.
    if let Some(kept) = entries::received_as(source, scope, header.origin.id)?
        && pool.find_kept(scope, kept)?.is_some()
    {
        let name = String::from_utf8_lossy(&header.name).into_owned();
        return Err(Error::Exists { name });
    }
    if let Some(kept) = entries::received_as(source, scope, header.base_id)? {
        return Ok(kept);
    }
    if entries::received_by_txg(source, scope, &header.origin.guid, header.base)? {
        let what = "an earlier version received the base of the stream, and did not record which \
                    snapshot that was; send a complete stream, to another name";
        return Err(Error::Invalid(what.into()));
    }
    Err(no_base(header.base))
}

fn no_base(txg: Txg) -> Error {
    let name = format!(
        "txg {txg} of the sender, the base of the stream; a snapshot with the same txg from a copy of \
         that pool is a different one"
    );
    Error::NotFound { what: "snapshot", name }
}

impl Pool {
    /// Returns the snapshot of a scope that preserves a state.
    pub(super) fn kept_as(&self, scope: FileId, txg: Txg) -> Result<Snapshot> {
        self.find_kept(scope, txg)?.ok_or_else(|| no_base(txg))
    }

    fn find_kept(&self, scope: FileId, txg: Txg) -> Result<Option<Snapshot>> {
        let found = self.store().with_state(|state| self.store().snapshots(state))?;
        let mut those = found.into_iter().filter(|snapshot| !snapshot.is_condemned);
        Ok(those.find(|snapshot| (snapshot.scope.file, snapshot.txg) == (scope, txg)))
    }

    /// Whether any record in the scope of a snapshot was rewritten since, even if its bytes are the
    /// same.
    pub(super) fn is_laid_out_anew(&self, snapshot: &Snapshot) -> Result<bool> {
        let (state, scope) = (self.state(), snapshot.scope.file);
        let mut last = None;
        for tree in [TreeId::Map, TreeId::Patches] {
            let now = state.superblock.roots[tree].as_ref();
            let mut is_found = false;
            differences(self.store(), tree, (snapshot.root(tree), now), &mut |key, _, _| {
                let (file, _) = parse_file_extent_key(tree, key)?;
                if last != Some(file) {
                    last = Some(file);
                    let source = &mut Committed::new(self.store(), &state);
                    is_found |= file == scope
                        || entries::is_there(source, file)? && is_reached(source, file, scope)?;
                }
                Ok(())
            })?;
            if is_found {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
