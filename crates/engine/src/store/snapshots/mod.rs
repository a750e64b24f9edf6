//! Snapshots: states of names, records, patches and dictionaries that stay as they are.
//!
//! ```text
//! number u64 BE            -> a snapshot (see [`Snapshot::encode`])
//! 0x80, scope u64 BE, name -> its number u64
//! ```
//!
//! A snapshot is four roots and a txg, taken over from the state that the transaction which makes it began
//! with: so it costs the same whatever it holds. From then on nothing that it reaches is given up; what the
//! pool itself no longer reaches goes to the tree of the dead (see [`super::snapshots::dead`]).
//!
//! Its scope says of which files it keeps the bytes: of one, of those below a directory, or of all.
//! It keeps the nodes of the whole trees in any case.
//!
//! **A snapshot is identified by what it keeps** ([`StateId`]), not by its txg: two copies of a pool file that
//! went on apart have the same guid and the same txgs. Nothing that a snapshot has is ever moved or written
//! anew, so its roots stay what they are; whoever changes that must store the identity first.
//!
//! To destroy one takes as many transactions as there is to release. The first condemns it: it has no
//! name any more and holds nothing that is given up from then on. Whoever comes by later, after a
//! crash too, goes on where it says.

pub mod dead;
pub mod differ;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::Store;
use super::format::fields::{FieldReader, FieldWriter};
use super::format::pointer::{POINTER_LEN_MAX, Pointer};
use super::format::stats::{CodecStats, PoolStats};
use super::format::superblock::{FEATURE_SNAPSHOTS, NUMBER_MAX, Superblock};
use super::format::trees::{NAMES, OF_SNAPSHOTS, SNAPSHOTS};
use super::snapshots::dead::DEAD_KEY_LEN;
use super::state::{Slots, State};
use super::tree::{NodeSource, TxnTree};
use super::txn::Txn;
use crate::error::{Error, Result};
use crate::units::{FileId, Sector, Txg};

/// The longest name of a snapshot, in bytes.
pub const SNAPSHOT_NAME_LEN_MAX: usize = 255;
/// The most snapshots of a pool: what is known of each is in memory while the pool is written to.
pub const SNAPSHOT_COUNT_MAX: usize = 65_536;
/// The scope that has every file in it: the directory that holds everything.
pub const WHOLE_POOL: FileId = FileId(1);

/// The first byte of the keys by name; numbers are far below what begins with it.
const NAME_MARK: u8 = 0x80;
const FLAG_CONDEMNED: u32 = 1;
const FLAG_DIRECTORY: u32 = 2;
/// The length of what stands before name and roots.
pub(crate) const SNAPSHOT_FRONT_LEN: usize = 104;

/// Identifies a state of a file or directory among all states of all pools, copies of one pool included: a hash
/// of the pool, the txg, the file or directory, and the roots, whose checksums cover all that the state holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StateId(pub [u8; STATE_ID_LEN]);

/// The length of a [`StateId`], in bytes.
pub const STATE_ID_LEN: usize = 16;
/// Begins what is hashed for a [`StateId`].
const STATE_ID_CONTEXT: &[u8; 16] = b"hardpack state 1";

impl StateId {
    /// No state.
    pub const NONE: StateId = StateId([0; STATE_ID_LEN]);

    /// Identifies what `scope` is in the state of this superblock.
    pub fn of(guid: &[u8; 16], superblock: &Superblock, scope: FileId) -> StateId {
        let mut bytes = Vec::new();
        let mut f = FieldWriter(&mut bytes);
        f.bytes(STATE_ID_CONTEXT);
        f.bytes(guid);
        f.u64(superblock.txg.0);
        f.u64(scope.0);
        for tree in OF_SNAPSHOTS {
            let root = superblock.roots[usize::from(tree)].as_ref();
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

/// What a snapshot keeps the bytes of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scope {
    /// The file or directory; [`WHOLE_POOL`] for everything.
    pub file: FileId,
    /// It is a directory: all files below it are meant, as its names say at the time.
    pub is_directory: bool,
}

/// A snapshot.
#[derive(Clone, PartialEq, Debug)]
pub struct Snapshot {
    /// What identifies it.
    pub number: u64,
    /// What it keeps the bytes of.
    pub scope: Scope,
    /// The state that it keeps.
    pub txg: Txg,
    /// When it was made, in nanoseconds since 1970, as its maker says.
    pub created_ns: i64,
    /// It is being destroyed.
    pub is_condemned: bool,
    /// Where that goes on in the tree of the dead.
    pub release_from: [u8; DEAD_KEY_LEN],
    /// The length of all files of the pool then.
    pub file_bytes: u64,
    /// All records and patches of the pool then.
    pub data: CodecStats,
    /// Its name, unique within its scope.
    pub name: Vec<u8>,
    /// The roots of the trees [`OF_SNAPSHOTS`], in that order.
    pub roots: [Option<Pointer>; OF_SNAPSHOTS.len()],
}

impl Snapshot {
    /// The value of its entry.
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

    /// Reads the value of an entry; `None` where it is none.
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
        let mut roots = [const { None }; OF_SNAPSHOTS.len()];
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

    /// What it keeps, as a state to be read.
    pub fn state(&self) -> State {
        State::new(self.superblock(), 0, Slots::default(), Txg(0), Txg(0))
    }

    /// What a superblock would say of it.
    pub(super) fn superblock(&self) -> Superblock {
        let mut superblock = Superblock::empty(self.txg, Sector(0));
        for (tree, root) in OF_SNAPSHOTS.into_iter().zip(&self.roots) {
            superblock.roots[usize::from(tree)].clone_from(root);
        }
        superblock.stats.file_bytes = self.file_bytes;
        superblock
    }

    /// The root of one of its trees.
    pub fn root(&self, tree: u8) -> Option<&Pointer> {
        let index = OF_SNAPSHOTS.iter().position(|kept| *kept == tree)?;
        self.roots[index].as_ref()
    }
}

fn covers(scope: &Scope, other: &Scope) -> bool {
    // Files come and go below a directory, so that of one scope two snapshots need not keep the same.
    scope.file == WHOLE_POOL || scope == other && !scope.is_directory
}

/// Refuses what cannot be the name of a snapshot.
pub fn check_snapshot_name(name: &[u8]) -> Result<()> {
    let is_bad = |byte: &u8| matches!(byte, b'/' | b'@' | 0);
    if name.is_empty() || name.len() > SNAPSHOT_NAME_LEN_MAX || name.iter().any(is_bad) {
        return Err(Error::Invalid(format!(
            "'{}' is no name of a snapshot; use 1 to {SNAPSHOT_NAME_LEN_MAX} bytes without '/', \
             '@' and NUL",
            name.escape_ascii()
        )));
    }
    Ok(())
}

/// Reads an entry of the tree; `None` for one of the keys by name.
pub fn parse_snapshot(key: &[u8], value: &[u8]) -> Result<Option<Snapshot>> {
    let malformed = || Error::corrupt("snapshots tree", 0, "an entry is malformed");
    if key.first() == Some(&NAME_MARK) {
        let is_sound = key.len() > 9 && value.len() == 8;
        return if is_sound { Ok(None) } else { Err(malformed()) };
    }
    let number = key.try_into().map(u64::from_be_bytes).map_err(|_| malformed())?;
    Snapshot::decode(number, value).map(Some).ok_or_else(malformed)
}

fn name_key(scope: FileId, name: &[u8]) -> Vec<u8> {
    let mut key = vec![NAME_MARK];
    key.extend_from_slice(&scope.0.to_be_bytes());
    key.extend_from_slice(name);
    key
}

/// Calls `visit` with the snapshots of a tree, by number, those that are condemned included.
fn for_each(
    tree: &TxnTree,
    source: &mut impl NodeSource,
    visit: &mut dyn FnMut(Snapshot),
) -> Result<()> {
    let mut bad = None;
    tree.scan(source, &[], &mut |key, value| match parse_snapshot(key, value) {
        Ok(Some(snapshot)) => {
            visit(snapshot);
            ControlFlow::Continue(())
        }
        Ok(None) => ControlFlow::Break(()),
        Err(error) => {
            bad = Some(error);
            ControlFlow::Break(())
        }
    })?;
    bad.map_or(Ok(()), Err)
}

/// What must be known of a snapshot to tell what it holds.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Holder {
    pub number: u64,
    pub txg: Txg,
    pub scope: Scope,
    /// The names that say what is below a directory.
    pub names: Option<Box<Pointer>>,
}

impl Holder {
    fn of(snapshot: &Snapshot) -> Holder {
        let needs_names = snapshot.scope.is_directory && snapshot.scope.file != WHOLE_POOL;
        let names = snapshot.root(NAMES).filter(|_| needs_names).cloned().map(Box::new);
        Holder { number: snapshot.number, txg: snapshot.txg, scope: snapshot.scope, names }
    }
}

/// The snapshots of a state, as far as they hold anything.
#[derive(Clone, Debug, Default)]
pub struct Holders {
    /// By txg.
    list: Vec<Holder>,
    /// The txgs of all of them, of those of the whole pool, and of those of each single file.
    all: Vec<Txg>,
    whole: Vec<Txg>,
    files: HashMap<FileId, Vec<Txg>>,
    /// Where in the list those of directories are.
    directories: Vec<usize>,
    /// The numbers of those that are being destroyed.
    condemned: Vec<u64>,
}

impl Holders {
    fn new(mut list: Vec<Holder>, condemned: Vec<u64>) -> Holders {
        list.sort_by_key(|holder| (holder.txg, holder.number));
        let mut holders = Holders { condemned, ..Holders::default() };
        for (index, holder) in list.iter().enumerate() {
            holders.all.push(holder.txg);
            match holder.scope {
                Scope { file: WHOLE_POOL, .. } => holders.whole.push(holder.txg),
                Scope { is_directory: true, .. } => holders.directories.push(index),
                Scope { file, .. } => holders.files.entry(file).or_default().push(holder.txg),
            }
        }
        Holders { list, ..holders }
    }

    /// Those of a tree.
    pub(super) fn load(tree: &TxnTree, source: &mut impl NodeSource) -> Result<Holders> {
        let (mut list, mut condemned) = (Vec::new(), Vec::new());
        if !tree.is_empty() {
            for_each(tree, source, &mut |snapshot| match snapshot.is_condemned {
                true => condemned.push(snapshot.number),
                false => list.push(Holder::of(&snapshot)),
            })?;
        }
        Ok(Holders::new(list, condemned))
    }

    /// The txg of the newest snapshot; 0 where there is none.
    pub fn newest(&self) -> Txg {
        self.all.last().copied().unwrap_or_default()
    }

    /// Whether any snapshot has what was born then, and given up by `freed`.
    pub(super) fn has_pool(&self, birth: Txg, freed: Txg) -> bool {
        has_between(&self.all, birth, freed)
    }

    /// The same of the whole pool, or of a single file.
    pub(super) fn has_file(&self, file: FileId, birth: Txg, freed: Txg) -> bool {
        has_between(&self.whole, birth, freed)
            || self.files.get(&file).is_some_and(|txgs| has_between(txgs, birth, freed))
    }

    /// Snapshots of directories from a txg to before another.
    pub(super) fn of_directories(&self, birth: Txg, freed: Txg) -> impl Iterator<Item = &Holder> {
        let first = self.directories.partition_point(|index| self.list[*index].txg < birth);
        let those = self.directories[first..].iter().map(|index| &self.list[*index]);
        those.take_while(move |holder| holder.txg < freed)
    }

    /// The txg of another snapshot that has all that this one has and that was given up since, where
    /// there is one.
    pub(super) fn covered_from(&self, snapshot: &Snapshot) -> Option<Txg> {
        let first = self.list.partition_point(|holder| holder.txg < snapshot.txg);
        let mut others = self.list[first..].iter().filter(|one| one.number != snapshot.number);
        others.find(|other| covers(&other.scope, &snapshot.scope)).map(|other| other.txg)
    }

    /// The same without one of them.
    pub(super) fn without(&self, number: u64) -> Holders {
        let list = self.list.iter().filter(|holder| holder.number != number).cloned().collect();
        Holders::new(list, self.condemned.clone())
    }

    /// The numbers of those that are being destroyed.
    pub fn condemned(&self) -> &[u64] {
        &self.condemned
    }

    /// How many there are, with those that are being destroyed.
    pub fn count(&self) -> usize {
        self.list.len() + self.condemned.len()
    }
}

fn has_between(txgs: &[Txg], birth: Txg, freed: Txg) -> bool {
    let first = txgs.partition_point(|txg| *txg < birth);
    txgs.get(first).is_some_and(|txg| *txg < freed)
}

impl Store {
    /// What the snapshots of a state hold: looked up once a state, and taken over by the next.
    pub fn holders(&self, state: &State) -> Result<Arc<Holders>> {
        if let Some(known) = state.holders.get() {
            return Ok(Arc::clone(known));
        }
        let loaded = Holders::load(&state.trees[usize::from(SNAPSHOTS)], &mut &*self)?;
        Ok(Arc::clone(state.holders.get_or_init(|| Arc::new(loaded))))
    }

    /// The snapshots of a state, the oldest first, with those that are being destroyed.
    pub fn snapshots(&self, state: &State) -> Result<Vec<Snapshot>> {
        let mut found = Vec::new();
        let tree = &state.trees[usize::from(SNAPSHOTS)];
        for_each(tree, &mut &*self, &mut |snapshot| found.push(snapshot))?;
        found.sort_by_key(|snapshot| (snapshot.txg, snapshot.number));
        Ok(found)
    }

    /// A snapshot of a state by name.
    pub fn find_snapshot(
        &self,
        state: &State,
        scope: FileId,
        name: &[u8],
    ) -> Result<Option<Snapshot>> {
        let tree = &state.trees[usize::from(SNAPSHOTS)];
        find_in(&mut |key| tree.get(&mut &*self, key), scope, name)
    }
}

type Get<'a> = dyn FnMut(&[u8]) -> Result<Option<Vec<u8>>> + 'a;

fn find_in(get: &mut Get<'_>, scope: FileId, name: &[u8]) -> Result<Option<Snapshot>> {
    let Some(number) = get(&name_key(scope, name))? else { return Ok(None) };
    let malformed = || Error::corrupt("snapshots tree", 0, "a name stands for no snapshot");
    let number = number.try_into().map(u64::from_le_bytes).map_err(|_| malformed())?;
    by_number(get, number)?.map(Some).ok_or_else(malformed)
}

fn by_number(get: &mut Get<'_>, number: u64) -> Result<Option<Snapshot>> {
    let key = number.to_be_bytes();
    let Some(value) = get(&key)? else { return Ok(None) };
    parse_snapshot(&key, &value)
}

impl Txn {
    /// A snapshot by number.
    pub fn snapshot(&mut self, number: u64) -> Result<Option<Snapshot>> {
        by_number(&mut |key| self.get(SNAPSHOTS, key), number)
    }

    /// A snapshot by name.
    pub fn find_snapshot(&mut self, scope: FileId, name: &[u8]) -> Result<Option<Snapshot>> {
        find_in(&mut |key| self.get(SNAPSHOTS, key), scope, name)
    }

    /// Makes a snapshot of the state that this transaction began with, in which nothing may have been
    /// changed yet but other snapshots. Returns its number.
    pub fn create_snapshot(&mut self, scope: Scope, name: &[u8], created_ns: i64) -> Result<u64> {
        check_snapshot_name(name)?;
        let roots = &self.core.base.superblock.roots;
        let is_clean = |tree: &u8| self.trees[usize::from(*tree)].is_at(&roots[usize::from(*tree)]);
        if !OF_SNAPSHOTS.iter().all(is_clean) {
            return Err(Error::Invalid("a snapshot must come before any change".into()));
        }
        let Superblock { txg, roots, stats, .. } = self.core.base.superblock.clone();
        let roots = OF_SNAPSHOTS.map(|tree| roots[usize::from(tree)].clone());
        self.add_snapshot(scope, name, created_ns, (txg, roots, stats))
    }

    /// Makes a snapshot of what this transaction has changed so far. From here on it changes nothing more that
    /// snapshots keep: it can only be committed. Returns the number.
    pub fn create_snapshot_after(
        &mut self,
        scope: Scope,
        name: &[u8],
        created_ns: i64,
    ) -> Result<u64> {
        check_snapshot_name(name)?;
        let mut roots = [const { None }; OF_SNAPSHOTS.len()];
        for (root, tree) in roots.iter_mut().zip(OF_SNAPSHOTS) {
            *root = self.flush_tree(tree)?;
        }
        self.core.is_frozen = true;
        let (txg, stats) = (self.txg(), self.core.stats);
        self.add_snapshot(scope, name, created_ns, (txg, roots, stats))
    }

    fn add_snapshot(
        &mut self,
        scope: Scope,
        name: &[u8],
        created_ns: i64,
        (txg, roots, stats): (Txg, [Option<Pointer>; OF_SNAPSHOTS.len()], PoolStats),
    ) -> Result<u64> {
        if self.find_snapshot(scope.file, name)?.is_some() {
            return Err(Error::Exists { name: String::from_utf8_lossy(name).into_owned() });
        }
        if self.core.holds.holders.count() >= SNAPSHOT_COUNT_MAX {
            let what = format!("a pool has at most {SNAPSHOT_COUNT_MAX} snapshots");
            return Err(Error::Invalid(what));
        }
        let number = self.new_file_id().0;
        let snapshot = Snapshot {
            number,
            scope,
            txg,
            created_ns,
            is_condemned: false,
            release_from: [0; DEAD_KEY_LEN],
            file_bytes: stats.file_bytes,
            data: stats.data(),
            name: name.to_vec(),
            roots,
        };
        self.core.incompat |= FEATURE_SNAPSHOTS;
        self.put_snapshot(&snapshot)?;
        self.insert(SNAPSHOTS, &name_key(scope.file, name), &number.to_le_bytes())?;
        let known = &self.core.holds.holders;
        let mut list = known.list.clone();
        list.push(Holder::of(&snapshot));
        self.core.holds.replace(Holders::new(list, known.condemned.clone()));
        Ok(number)
    }

    pub(super) fn put_snapshot(&mut self, snapshot: &Snapshot) -> Result<()> {
        self.insert(SNAPSHOTS, &snapshot.number.to_be_bytes(), &snapshot.encode()).map(drop)
    }

    /// Gives a snapshot another name.
    pub fn rename_snapshot(&mut self, snapshot: &Snapshot, name: &[u8]) -> Result<()> {
        check_snapshot_name(name)?;
        let scope = snapshot.scope.file;
        if self.find_snapshot(scope, name)?.is_some() {
            return Err(Error::Exists { name: String::from_utf8_lossy(name).into_owned() });
        }
        self.remove(SNAPSHOTS, &name_key(scope, &snapshot.name))?;
        self.insert(SNAPSHOTS, &name_key(scope, name), &snapshot.number.to_le_bytes())?;
        self.put_snapshot(&Snapshot { name: name.to_vec(), ..snapshot.clone() })
    }

    /// Begins to destroy a snapshot: from here on it has no name and holds nothing; what only it kept is
    /// still to be released (see [`Txn::release_some`]).
    pub fn condemn_snapshot(&mut self, snapshot: &Snapshot) -> Result<()> {
        self.remove(SNAPSHOTS, &name_key(snapshot.scope.file, &snapshot.name))?;
        self.put_snapshot(&Snapshot { is_condemned: true, ..snapshot.clone() })?;
        let mut holders = self.core.holds.holders.without(snapshot.number);
        holders.condemned.push(snapshot.number);
        self.core.holds.replace(holders);
        Ok(())
    }

    /// Forgets a snapshot of which nothing is left to release.
    pub(super) fn forget_snapshot(&mut self, number: u64) -> Result<()> {
        self.remove(SNAPSHOTS, &number.to_be_bytes())?;
        let mut holders = Holders::clone(&self.core.holds.holders);
        holders.condemned.retain(|condemned| *condemned != number);
        self.core.holds.replace(holders);
        Ok(())
    }
}
