//! What is noted while something is received from another pool (see `stream/`), and where it came from.
//!
//! The notes of a receive belong to the file or directory that is being filled, its root, or for an
//! incremental stream the file that its frames are gathered in. They are changed in the same
//! transactions as what they tell of.

use crate::error::Result;
use crate::pool::extents::source::Source;
use crate::pool::namespace::entries::{NAME_LEN_MAX, id_key, malformed};
use crate::store::Txn;
use crate::store::format::fields::{FieldReader, FieldWriter};
use crate::store::snapshots::{STATE_ID_LEN, StateId};
use crate::store::trees::NAMES;
use crate::units::{FileId, Txg};

const RECEIVE: u8 = 10;
const IDENTITY: u8 = 11;
const ORIGIN: u8 = 12;
pub(in crate::pool) const RECEIVED: u8 = 14;

/// A snapshot among all of all pools: guid and txg say it to people, the id identifies it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Origin {
    /// The pool.
    pub guid: [u8; 16],
    /// The state that the snapshot keeps.
    pub txg: Txg,
    /// What identifies it; none in what an earlier version noted.
    pub id: StateId,
}

/// How far a receive has come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Progress {
    /// What is received.
    pub origin: Origin,
    /// The state that it starts from; 0 where it is complete in itself.
    pub base: Txg,
    /// What identifies the base; none where there is none.
    pub base_id: StateId,
    /// How many frames were applied, or gathered.
    pub frames: u64,
    /// How many bytes were gathered.
    pub spooled: u64,
    /// The directory that it goes to, or is in.
    pub parent: FileId,
    /// Its name there.
    pub name: Vec<u8>,
}

/// The length of what stands before the name.
pub(crate) const PROGRESS_FRONT_LEN: usize = 64 + 2 * STATE_ID_LEN;
/// Says that the two ids are there, which the notes of earlier versions lack.
const FORM_WITH_IDS: u8 = 1;

impl Progress {
    /// The value of its entry.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(PROGRESS_FRONT_LEN + self.name.len());
        let mut f = FieldWriter(&mut out);
        f.bytes(&self.origin.guid);
        f.u64(self.origin.txg.0);
        f.u64(self.base.0);
        f.u64(self.frames);
        f.u64(self.spooled);
        f.u64(self.parent.0);
        f.u16(self.name.len() as u16);
        f.u8(FORM_WITH_IDS);
        f.zeros(5);
        f.bytes(&self.origin.id.0);
        f.bytes(&self.base_id.0);
        f.bytes(&self.name);
        out
    }

    pub(crate) fn decode(value: &[u8]) -> Option<Progress> {
        let mut f = FieldReader(value);
        let guid = f.bytes(16)?.try_into().ok()?;
        let txg = Txg(f.u64()?);
        let base = Txg(f.u64()?);
        let (frames, spooled) = (f.u64()?, f.u64()?);
        let parent = FileId(f.u64()?);
        let name_len = usize::from(f.u16()?);
        let (mut id, mut base_id) = (StateId::NONE, StateId::NONE);
        let form = f.u8()?;
        f.zeros(5)?;
        match form {
            0 => {}
            FORM_WITH_IDS => {
                id = StateId(f.bytes(STATE_ID_LEN)?.try_into().ok()?);
                base_id = StateId(f.bytes(STATE_ID_LEN)?.try_into().ok()?);
                (!id.is_none()).then_some(())?;
            }
            _ => return None,
        }
        let origin = Origin { guid, txg, id };
        let name = f.bytes(name_len)?.to_vec();
        (f.0.is_empty() && name_len <= NAME_LEN_MAX).then_some(())?;
        Some(Progress { origin, base, base_id, frames, spooled, parent, name })
    }
}

/// How far the receive with this root has come, where there is one.
pub(crate) fn progress(source: &mut impl Source, root: FileId) -> Result<Option<Progress>> {
    let value = source.get(NAMES, &id_key(RECEIVE, root, &[]))?;
    value.map(|value| Progress::decode(&value).ok_or_else(|| malformed("a receive"))).transpose()
}

/// Notes it; nothing where the receive is over.
pub(crate) fn set_progress(txn: &mut Txn, root: FileId, progress: Option<&Progress>) -> Result<()> {
    let key = id_key(RECEIVE, root, &[]);
    if progress.is_some() {
        crate::pool::namespace::entries::check_there(txn, root)?;
    }
    match progress {
        Some(progress) => {
            txn.note_snapshot_ids();
            txn.insert(NAMES, &key, &progress.encode())?
        }
        None => txn.remove(NAMES, &key)?,
    };
    Ok(())
}

/// The receive into this name of a directory that is not at its end, and its root.
pub(crate) fn find_progress(
    source: &mut impl Source,
    parent: FileId,
    name: &[u8],
) -> Result<Option<(FileId, Progress)>> {
    for (key, value) in source.range(NAMES, &[RECEIVE], &[RECEIVE + 1], usize::MAX)? {
        let root = key.get(1..).and_then(|id| id.try_into().ok()).map(u64::from_be_bytes);
        let found = root.zip(Progress::decode(&value)).ok_or_else(|| malformed("a receive"))?;
        if found.1.parent == parent && found.1.name == name {
            return Ok(Some((FileId(found.0), found.1)));
        }
    }
    Ok(None)
}

/// What a number of the stream stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Identity {
    /// A file, directory or link.
    File = 0,
    /// A dictionary.
    Dictionary = 1,
}

fn identity_key(root: FileId, class: Identity, number: u64) -> Vec<u8> {
    id_key(IDENTITY, root, &[&[class as u8][..], &number.to_be_bytes()].concat())
}

/// The number here of what has another one in the stream.
pub(crate) fn identity(
    source: &mut impl Source,
    root: FileId,
    class: Identity,
    number: u64,
) -> Result<Option<u64>> {
    let value = source.get(NAMES, &identity_key(root, class, number))?;
    let parse = |value: Vec<u8>| value.try_into().map(u64::from_le_bytes);
    value.map(|value| parse(value).map_err(|_| malformed("an identity"))).transpose()
}

/// Notes it.
pub(crate) fn set_identity(
    txn: &mut Txn,
    root: FileId,
    class: Identity,
    number: u64,
    here: u64,
) -> Result<()> {
    let key = identity_key(root, class, number);
    txn.insert(NAMES, &key, &here.to_le_bytes()).map(drop)
}

/// Up to `limit` identities of a class, behind `after`: the numbers in the stream, and here.
pub(crate) fn identities(
    source: &mut impl Source,
    root: FileId,
    class: Identity,
    after: Option<u64>,
    limit: usize,
) -> Result<Vec<(u64, u64)>> {
    let Some(first) = after.map_or(Some(0), |after| after.checked_add(1)) else {
        return Ok(Vec::new());
    };
    let from = identity_key(root, class, first);
    let to = id_key(IDENTITY, root, &[class as u8 + 1]);
    let parse = |(key, value): (Vec<u8>, Vec<u8>)| {
        let number = u64::from_be_bytes(key.get(10..)?.try_into().ok()?);
        Some((number, u64::from_le_bytes(value.try_into().ok()?)))
    };
    let entries = source.range(NAMES, &from, &to, limit)?;
    entries.into_iter().map(|entry| parse(entry).ok_or_else(|| malformed("an identity"))).collect()
}

/// The dictionaries that a receive may still need.
pub(crate) fn dictionaries_of_receives(source: &mut impl Source) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for (key, _) in source.range(NAMES, &[RECEIVE], &[RECEIVE + 1], usize::MAX)? {
        let root = key.get(1..).and_then(|id| id.try_into().ok()).map(u64::from_be_bytes);
        let root = FileId(root.ok_or_else(|| malformed("a receive"))?);
        let all = identities(source, root, Identity::Dictionary, None, usize::MAX)?;
        found.extend(all.into_iter().filter_map(|(_, here)| u32::try_from(here).ok()));
    }
    Ok(found)
}

/// Forgets all that is noted of a receive.
pub(crate) fn forget_receive(txn: &mut Txn, root: FileId) -> Result<()> {
    set_progress(txn, root, None)?;
    let (from, to) = (id_key(IDENTITY, root, &[]), id_key(IDENTITY, FileId(root.0 + 1), &[]));
    loop {
        let entries = txn.range(NAMES, &from, &to, crate::pool::namespace::entries::LIST_COUNT)?;
        for (key, _) in &entries {
            txn.remove(NAMES, key)?;
        }
        if entries.len() < crate::pool::namespace::entries::LIST_COUNT {
            return Ok(());
        }
    }
}

fn received_key(scope: FileId, id: StateId) -> Vec<u8> {
    id_key(RECEIVED, scope, &id.0)
}

/// The state that a snapshot of `scope` keeps which was received as this one.
pub(crate) fn received_as(
    source: &mut impl Source,
    scope: FileId,
    id: StateId,
) -> Result<Option<Txg>> {
    let value = source.get(NAMES, &received_key(scope, id))?;
    let parse = |value: Vec<u8>| value.try_into().map(|txg| Txg(u64::from_le_bytes(txg)));
    value.map(|value| parse(value).map_err(|_| malformed("an origin"))).transpose()
}

/// Whether an earlier version received a snapshot of this txg of that pool, and so did not note which one it was.
pub(crate) fn received_by_txg(
    source: &mut impl Source,
    scope: FileId,
    guid: &[u8; 16],
    txg: Txg,
) -> Result<bool> {
    let rest = [&guid[..], &txg.0.to_be_bytes()].concat();
    Ok(source.get(NAMES, &id_key(ORIGIN, scope, &rest))?.is_some())
}

/// Notes it.
pub(crate) fn set_received_as(txn: &mut Txn, scope: FileId, id: StateId, kept: Txg) -> Result<()> {
    crate::pool::namespace::entries::check_there(txn, scope)?;
    txn.note_snapshot_ids();
    txn.insert(NAMES, &received_key(scope, id), &kept.0.to_le_bytes()).map(drop)
}

/// Forgets where a file or directory came from.
pub(in crate::pool) fn remove_origins(txn: &mut Txn, scope: FileId) -> Result<()> {
    for kind in [ORIGIN, RECEIVED] {
        let (from, to) = (id_key(kind, scope, &[]), id_key(kind, FileId(scope.0 + 1), &[]));
        for (key, _) in txn.range(NAMES, &from, &to, usize::MAX)? {
            txn.remove(NAMES, &key)?;
        }
    }
    Ok(())
}
