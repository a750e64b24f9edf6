//! Records kept while a stream from another pool is received (see `stream/`), and records of where
//! received snapshots came from.
//!
//! The records of a receive belong to its root: the file or directory being filled, or, for an
//! incremental stream, the file that collects the frames. They change in the same transactions as
//! the data they describe.

use crate::error::{Error, Result};
use crate::pool::extents::source::Source;
use crate::pool::namespace::attributes::check_there;
use crate::pool::namespace::keys::{
    IDENTITY, LIST_COUNT, NAME_LEN_MAX, ORIGIN, RECEIVE, RECEIVED, id_key, malformed,
};
use crate::store::Txn;
use crate::store::format::fields::{FieldReader, FieldWriter};
use crate::store::format::snapshot::{STATE_ID_LEN, StateId};
use crate::store::trees::TreeId;
use crate::units::{FileId, Txg};

/// Identifies a snapshot among all pools: guid and txg are for people, the id decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Origin {
    /// The pool.
    pub guid: [u8; 16],
    /// The state that the snapshot preserves.
    pub txg: Txg,
    /// The snapshot's identity; none in records of earlier versions.
    pub id: StateId,
}

/// How far a receive has come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Progress {
    /// The snapshot being received.
    pub origin: Origin,
    /// The txg that an incremental stream builds on; 0 for a full stream.
    pub base: Txg,
    /// The identity of the base; none for a full stream.
    pub base_id: StateId,
    /// The number of frames applied or collected so far.
    pub frames: u64,
    /// The number of bytes collected so far.
    pub spooled: u64,
    /// The directory that receives it.
    pub parent: FileId,
    /// Its name there.
    pub name: Vec<u8>,
}

/// The length of the fields before the name.
pub(crate) const PROGRESS_FRONT_LEN: usize = 64 + 2 * STATE_ID_LEN;
/// Marks a record that contains both ids; records of earlier versions lack them.
const FORM_WITH_IDS: u8 = 1;

impl Progress {
    /// Encodes the value of the entry.
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

fn no_receive(key: &[u8], value: &[u8]) -> Error {
    malformed("receive", key, value, "the progress of a receive")
}

fn no_identity(key: &[u8], value: &[u8]) -> Error {
    malformed("identity", key, value, "a number for another of 8 bytes")
}

/// Returns the progress of the receive with this root, if there is one.
pub(crate) fn progress(source: &mut impl Source, root: FileId) -> Result<Option<Progress>> {
    let key = id_key(RECEIVE, root, &[]);
    let value = source.get(TreeId::Names, &key)?;
    let parse = |value: Vec<u8>| Progress::decode(&value).ok_or_else(|| no_receive(&key, &value));
    value.map(parse).transpose()
}

/// Stores the progress of a receive; `None` removes it at the end.
pub(crate) fn set_progress(txn: &mut Txn, root: FileId, progress: Option<&Progress>) -> Result<()> {
    let key = id_key(RECEIVE, root, &[]);
    if progress.is_some() {
        check_there(txn, root)?;
    }
    match progress {
        Some(progress) => {
            txn.note_snapshot_ids();
            txn.insert(TreeId::Names, &key, &progress.encode())?
        }
        None => txn.remove(TreeId::Names, &key)?,
    };
    Ok(())
}

/// Finds an unfinished receive into this name of a directory; returns its root and progress.
pub(crate) fn find_progress(
    source: &mut impl Source,
    parent: FileId,
    name: &[u8],
) -> Result<Option<(FileId, Progress)>> {
    for (key, value) in source.range(TreeId::Names, &[RECEIVE], &[RECEIVE + 1], usize::MAX)? {
        let root = key.get(1..).and_then(|id| id.try_into().ok()).map(u64::from_be_bytes);
        let found = root.zip(Progress::decode(&value));
        let found = found.ok_or_else(|| no_receive(&key, &value))?;
        if found.1.parent == parent && found.1.name == name {
            return Ok(Some((FileId(found.0), found.1)));
        }
    }
    Ok(None)
}

/// The kind of thing that a number in the stream identifies.
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

/// Translates a number of the stream into the number used in this pool.
pub(crate) fn identity(
    source: &mut impl Source,
    root: FileId,
    class: Identity,
    number: u64,
) -> Result<Option<u64>> {
    let key = identity_key(root, class, number);
    let value = source.get(TreeId::Names, &key)?;
    let parse = |value: Vec<u8>| value.try_into().map(u64::from_le_bytes);
    value.map(|value| parse(value).map_err(|value| no_identity(&key, &value))).transpose()
}

/// Stores the translation of a number of the stream.
pub(crate) fn set_identity(
    txn: &mut Txn,
    root: FileId,
    class: Identity,
    number: u64,
    here: u64,
) -> Result<()> {
    let key = identity_key(root, class, number);
    txn.insert(TreeId::Names, &key, &here.to_le_bytes()).map(drop)
}

/// Returns up to `limit` identities of a class whose number in the stream is greater than `after`,
/// each with its number in this pool.
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
    let parse = |key: &[u8], value: &[u8]| {
        let number = u64::from_be_bytes(key.get(10..)?.try_into().ok()?);
        Some((number, u64::from_le_bytes(value.try_into().ok()?)))
    };
    let entries = source.range(TreeId::Names, &from, &to, limit)?;
    let parse = |(key, value): &(Vec<u8>, Vec<u8>)| {
        parse(key, value).ok_or_else(|| no_identity(key, value))
    };
    entries.iter().map(parse).collect()
}

/// Returns the dictionaries that unfinished receives may still need.
pub(crate) fn dictionaries_of_receives(source: &mut impl Source) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for (key, value) in source.range(TreeId::Names, &[RECEIVE], &[RECEIVE + 1], usize::MAX)? {
        let root = key.get(1..).and_then(|id| id.try_into().ok()).map(u64::from_be_bytes);
        let root = FileId(root.ok_or_else(|| no_receive(&key, &value))?);
        let all = identities(source, root, Identity::Dictionary, None, usize::MAX)?;
        found.extend(all.into_iter().filter_map(|(_, here)| u32::try_from(here).ok()));
    }
    Ok(found)
}

/// Removes all records of a receive.
pub(crate) fn forget_receive(txn: &mut Txn, root: FileId) -> Result<()> {
    set_progress(txn, root, None)?;
    let (from, to) = (id_key(IDENTITY, root, &[]), id_key(IDENTITY, FileId(root.0 + 1), &[]));
    loop {
        let entries = txn.range(TreeId::Names, &from, &to, LIST_COUNT)?;
        for (key, _) in &entries {
            txn.remove(TreeId::Names, key)?;
        }
        if entries.len() < LIST_COUNT {
            return Ok(());
        }
    }
}

fn received_key(scope: FileId, id: StateId) -> Vec<u8> {
    id_key(RECEIVED, scope, &id.0)
}

/// Returns the state of the snapshot of `scope` that was received as `id`.
pub(crate) fn received_as(
    source: &mut impl Source,
    scope: FileId,
    id: StateId,
) -> Result<Option<Txg>> {
    let key = received_key(scope, id);
    let value = source.get(TreeId::Names, &key)?;
    let parse = |value: Vec<u8>| value.try_into().map(|txg| Txg(u64::from_le_bytes(txg)));
    let no_origin = |value: Vec<u8>| malformed("origin", &key, &value, "a txg of 8 bytes");
    value.map(|value| parse(value).map_err(no_origin)).transpose()
}

/// Whether an earlier version, which recorded no ids, received a snapshot with this txg from that
/// pool.
pub(crate) fn received_by_txg(
    source: &mut impl Source,
    scope: FileId,
    guid: &[u8; 16],
    txg: Txg,
) -> Result<bool> {
    let rest = [&guid[..], &txg.0.to_be_bytes()].concat();
    Ok(source.get(TreeId::Names, &id_key(ORIGIN, scope, &rest))?.is_some())
}

/// Records that the state `kept` was received as the snapshot `id`.
pub(crate) fn set_received_as(txn: &mut Txn, scope: FileId, id: StateId, kept: Txg) -> Result<()> {
    check_there(txn, scope)?;
    txn.note_snapshot_ids();
    txn.insert(TreeId::Names, &received_key(scope, id), &kept.0.to_le_bytes()).map(drop)
}

/// Removes the records of where a file or directory came from.
pub(in crate::pool) fn remove_origins(txn: &mut Txn, scope: FileId) -> Result<()> {
    for kind in [ORIGIN, RECEIVED] {
        let (from, to) = (id_key(kind, scope, &[]), id_key(kind, FileId(scope.0 + 1), &[]));
        for (key, _) in txn.range(TreeId::Names, &from, &to, usize::MAX)? {
            txn.remove(TreeId::Names, &key)?;
        }
    }
    Ok(())
}
