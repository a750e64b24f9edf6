//! Entries of the snapshots tree.
//!
//! ```text
//! number u64 BE            -> a snapshot (see [`Snapshot::encode`])
//! 0x80, scope u64 BE, name -> its number u64
//! ```

use super::dead::DEAD_KEY_LEN;
use super::fields::{FieldReader, FieldWriter};
use super::pointer::{POINTER_LEN_MAX, Pointer};
use super::stats::CodecStats;
use super::superblock::{NUMBER_MAX, Superblock};
use super::trees::TreeId;
use crate::error::{Error, Found, Result};
use crate::units::{FileId, Sector, Txg};

/// The maximum length of a snapshot's name, in bytes.
pub const SNAPSHOT_NAME_LEN_MAX: usize = 255;

/// The first byte of keys by name; the numbers of snapshots are too small to begin with it.
const NAME_MARK: u8 = 0x80;
const FLAG_CONDEMNED: u32 = 1;
const FLAG_DIRECTORY: u32 = 2;
/// The length of the fields before the name and the roots.
pub(crate) const SNAPSHOT_FRONT_LEN: usize = 104;

/// Identifies a state of a file or directory among all states of all pools, including copies of one
/// pool: a hash of the pool, the txg, the file or directory, and the roots, whose checksums cover
/// everything the state holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StateId(pub [u8; STATE_ID_LEN]);

/// The length of a [`StateId`], in bytes.
pub const STATE_ID_LEN: usize = 16;
/// The start of the bytes that are hashed for a [`StateId`].
const STATE_ID_CONTEXT: &[u8; 16] = b"hardpack state 1";

impl StateId {
    /// Stands for no state.
    pub const NONE: StateId = StateId([0; STATE_ID_LEN]);

    /// Identifies the file or directory `scope` in the state of this superblock.
    pub fn of(guid: &[u8; 16], superblock: &Superblock, scope: FileId) -> StateId {
        let mut bytes = Vec::new();
        let mut f = FieldWriter(&mut bytes);
        f.bytes(STATE_ID_CONTEXT);
        f.bytes(guid);
        f.u64(superblock.txg.0);
        f.u64(scope.0);
        for tree in TreeId::OF_SNAPSHOTS {
            let root = superblock.roots[tree].as_ref();
            let root = root.map_or(Vec::new(), Pointer::to_bytes);
            f.u16(root.len() as u16);
            f.bytes(&root);
        }
        let mut id = [0; STATE_ID_LEN];
        id.copy_from_slice(&blake3::hash(&bytes).as_bytes()[..STATE_ID_LEN]);
        StateId(id)
    }

    /// Whether this is [`StateId::NONE`].
    pub fn is_none(&self) -> bool {
        *self == StateId::NONE
    }
}

/// The files whose bytes a snapshot keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scope {
    /// The file or directory; [`FileId::ROOT`] for everything.
    pub file: FileId,
    /// Whether it is a directory, which stands for all files below it by the names at the time.
    pub is_directory: bool,
}

/// A snapshot.
#[derive(Clone, PartialEq, Debug)]
pub struct Snapshot {
    /// Its identity within the pool.
    pub number: u64,
    /// The files whose bytes it keeps.
    pub scope: Scope,
    /// The state that it keeps.
    pub txg: Txg,
    /// The time it was made, in nanoseconds since 1970, according to its maker.
    pub created_ns: i64,
    /// Whether it is being destroyed.
    pub is_condemned: bool,
    /// Where destroying it continues in the dead tree.
    pub release_from: [u8; DEAD_KEY_LEN],
    /// The total length of the pool's files at that time.
    pub file_bytes: u64,
    /// The pool's records and patches at that time.
    pub data: CodecStats,
    /// Its name, unique within its scope.
    pub name: Vec<u8>,
    /// The roots of the trees [`TreeId::OF_SNAPSHOTS`], in that order.
    pub roots: [Option<Pointer>; TreeId::OF_SNAPSHOTS.len()],
}

impl Snapshot {
    /// Encodes the value of its entry.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(SNAPSHOT_FRONT_LEN + self.name.len() + 4 * 84);
        let mut f = FieldWriter(&mut out);
        f.u64(self.scope.file.0);
        f.u64(self.txg.0);
        f.u64(self.created_ns as u64);
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        f.u32(
            flag(self.is_condemned, FLAG_CONDEMNED) | flag(self.scope.is_directory, FLAG_DIRECTORY),
        );
        f.u16(self.name.len() as u16);
        f.zeros(2);
        f.bytes(&self.release_from);
        f.u64(self.file_bytes);
        self.data.encode(&mut f);
        f.bytes(&self.name);
        for root in &self.roots {
            let root = root.as_ref().map_or(Vec::new(), Pointer::to_bytes);
            f.u16(root.len() as u16);
            f.bytes(&root);
        }
        out
    }

    /// Decodes the value of an entry; `None` if it is malformed.
    pub fn decode(number: u64, value: &[u8]) -> Option<Snapshot> {
        let mut f = FieldReader(value);
        let file = FileId(f.u64()?);
        let txg = Txg(f.u64()?);
        let created_ns = f.u64()? as i64;
        let flags = f.u32()?;
        let name_len = usize::from(f.u16()?);
        f.zeros(2)?;
        let release_from = f.bytes(DEAD_KEY_LEN)?.try_into().ok()?;
        let file_bytes = f.u64()?;
        let data = CodecStats::decode(&mut f)?;
        let name = f.bytes(name_len)?.to_vec();
        let mut roots = [const { None }; TreeId::OF_SNAPSHOTS.len()];
        for root in &mut roots {
            let len = usize::from(f.u16()?);
            (len <= POINTER_LEN_MAX).then_some(())?;
            let bytes = f.bytes(len)?;
            *root = if len == 0 { None } else { Some(Pointer::decode(bytes)?) };
        }
        let is_within = |root: &Pointer| root.birth <= txg;
        let sound = f.0.is_empty()
            && flags & !(FLAG_CONDEMNED | FLAG_DIRECTORY) == 0
            && txg.0 < NUMBER_MAX
            && check_snapshot_name(&name).is_ok()
            && roots.iter().flatten().all(is_within);
        sound.then_some(Snapshot {
            number,
            scope: Scope { file, is_directory: flags & FLAG_DIRECTORY != 0 },
            txg,
            created_ns,
            is_condemned: flags & FLAG_CONDEMNED != 0,
            release_from,
            file_bytes,
            data,
            name,
            roots,
        })
    }

    /// Returns a superblock that describes the kept state.
    pub(in crate::store) fn superblock(&self) -> Superblock {
        let mut superblock = Superblock::empty(self.txg, Sector(0));
        for (tree, root) in TreeId::OF_SNAPSHOTS.into_iter().zip(&self.roots) {
            superblock.roots[tree].clone_from(root);
        }
        superblock.stats.file_bytes = self.file_bytes;
        superblock
    }

    /// Returns the root of one of its trees.
    pub fn root(&self, tree: TreeId) -> Option<&Pointer> {
        let index = TreeId::OF_SNAPSHOTS.iter().position(|kept| *kept == tree)?;
        self.roots[index].as_ref()
    }
}

/// Refuses a name that a snapshot cannot have.
pub fn check_snapshot_name(name: &[u8]) -> Result<()> {
    let is_bad = |byte: &u8| matches!(byte, b'/' | b'@' | 0);
    if name.is_empty() || name.len() > SNAPSHOT_NAME_LEN_MAX || name.iter().any(is_bad) {
        return Err(Error::Invalid(format!(
            "'{}' is not a snapshot name; use 1 to {SNAPSHOT_NAME_LEN_MAX} bytes without '/', \
             '@' or NUL",
            name.escape_ascii()
        )));
    }
    Ok(())
}

/// Parses an entry of the tree; `None` if its key is one by name.
pub fn parse_snapshot(key: &[u8], value: &[u8]) -> Result<Option<Snapshot>> {
    let malformed = || {
        let what = format!("expected a snapshot or its name, found {}", Found(value));
        Error::corrupt("snapshot", TreeId::Snapshots.location_of(key), what)
    };
    if key.first() == Some(&NAME_MARK) {
        let is_sound = key.len() > 9 && value.len() == 8;
        return if is_sound { Ok(None) } else { Err(malformed()) };
    }
    let number = key.try_into().map(u64::from_be_bytes).map_err(|_| malformed())?;
    Snapshot::decode(number, value).map(Some).ok_or_else(malformed)
}

/// Returns the key of the entry that stands for a name.
pub(in crate::store) fn name_key(scope: FileId, name: &[u8]) -> Vec<u8> {
    let mut key = vec![NAME_MARK];
    key.extend_from_slice(&scope.0.to_be_bytes());
    key.extend_from_slice(name);
    key
}
