//! Salvaging: reads everything that can be verified from a damaged pool, however bad the damage,
//! and reports exactly what cannot.
//!
//! 1. A state is chosen: the newest superblock whose newest parts are readable, as when opening the
//!    pool. If none is left, or a newer one may be lost, the whole pool is searched for nodes (see
//!    [`crate::store::recover::scan`]), and the trees of roots among them describe further states.
//! 2. Its trees are walked as far as they are readable. The children of a lost node are looked for
//!    among the nodes that the search found. A leaf at a place that the state's free-space trees
//!    show as in use **is** part of the state, since every sector is either used or free, exactly
//!    once. Any other leaf may have been replaced since: the data it leads to is [`Fate::Older`].
//! 3. Each part of a file is assembled from records and patches, and every byte gets a fate.
//!
//! The pool is never written to. Every record and patch used was verified against the checksum in
//! the leaf that refers to it, and leaves contain a checksum of themselves. Memory: some 40 bytes
//! for each node of the pool if it is searched, plus one part of a file.

mod part;
mod rest;

use std::sync::Arc;

pub use self::part::{Fate, PART_LEN, Part, Stretch};
use self::rest::{Leaf, Lost};
use super::Options;
use super::namespace::entries::Attributes;
use crate::device::Device;
use crate::error::{CutShort, Error, Result};
use crate::store::cache::Caches;
use crate::store::format::superblock::{EXTENTS_OFFSET, MAGIC, Superblock};
use crate::store::recover::scan::{self, Identity, Scan};
use crate::store::trees::TreeId;
use crate::store::{State, Store};
use crate::units::{FileId, Txg};

/// The most states considered among those that only a search found.
const SEARCHED_STATES_MAX: usize = 64;

/// A file that can be salvaged.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SalvageFile {
    /// Its id.
    pub id: FileId,
    /// Its name; `None` if it is lost.
    pub name: Option<String>,
    /// The names from the root down to its own, as far up as they are known.
    pub path: Vec<Vec<u8>>,
    /// The paths of the file's other names.
    pub other_paths: Vec<Vec<Vec<u8>>>,
    /// Whether all its names are known, and lead down from the root.
    pub has_all_names: bool,
    /// Its target, if it is a symbolic link.
    pub target: Option<Vec<u8>>,
    /// Its other attributes. If the length is lost, it is derived from the remaining data.
    pub attributes: Attributes,
    /// If the length is lost: bytes after this one may be missing, or not belong to the file.
    /// `None` if the length is known.
    pub known_len: Option<u64>,
}

/// A directory that can be salvaged.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SalvageDirectory {
    /// Its id.
    pub id: FileId,
    /// The names from the root down to its own, as far up as they are known.
    pub path: Vec<Vec<u8>>,
    /// Whether its path leads down from the root.
    pub has_all_names: bool,
}

/// How a state was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FoundBy {
    /// From a superblock.
    Superblock,
    /// By a search of the pool, from a tree of roots.
    Search,
    /// Assembled from the newest nodes found by a search: nothing proves that they belong together.
    Guess,
}

/// A damaged pool, opened for reading.
#[derive(Debug)]
pub struct Salvage {
    store: Arc<Store>,
    identity: Identity,
    found_by: FoundBy,
    newest: Txg,
    cut_short: Option<CutShort>,
    refused: u64,
    lost: Lost,
    leaves: Vec<Leaf>,
    files: Vec<SalvageFile>,
    directories: Vec<SalvageDirectory>,
}

impl Salvage {
    /// Finds the newest state, or the one with txg `wanted`. `progress` receives the bytes
    /// searched.
    pub fn open(
        device: Arc<dyn Device>,
        options: &Options,
        wanted: Option<Txg>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Salvage> {
        let len = device.len().map_err(|error| Error::io("measure", error))?;
        if len < EXTENTS_OFFSET && is_front(&*device)? {
            return Err(Error::CutShort(CutShort { len, needed: None }));
        }
        let mut searched = None;
        let identity = match scan::identify(&device, None)? {
            Some(identity) => identity,
            None => {
                let scan = searched.insert(scan::scan(&*device, progress)?);
                let nothing = "it has no header, superblock or tree node of one";
                scan::identify(&device, Some(scan))?
                    .ok_or_else(|| Error::NotAPool(nothing.into()))?
            }
        };
        let mut states = identity.superblocks.clone();
        let cut_short = cut_short(&device, &identity)?;
        states.first().map_or(Ok(()), Superblock::check_readable)?;
        let is_there = |states: &[Superblock], txg| states.iter().any(|state| state.txg == txg);
        if states.is_empty()
            || identity.may_lack_newest
            || wanted.is_some_and(|txg| !is_there(&states, txg))
        {
            let scan = match &mut searched {
                Some(scan) => scan,
                None => searched.insert(scan::scan(&*device, progress)?),
            };
            scan.keep_only(&identity.header.guid);
            add_searched(&mut states, scan, &device, &identity, wanted);
        }
        let newest = states.first().map_or(Txg(0), |state| state.txg);
        let chosen = match wanted {
            Some(txg) => Some(
                states
                    .into_iter()
                    .find(|state| state.txg == txg)
                    .ok_or_else(|| Error::NotFound { what: "state", name: format!("txg {txg}") })?,
            ),
            None => scan::newest_whole(&device, identity.header, &states),
        };
        let guess = || searched.as_ref().and_then(|scan| scan.guess(&identity.header, &*device));
        let (superblock, found_by) = match chosen {
            Some(superblock) if identity.superblocks.contains(&superblock) => {
                (superblock, FoundBy::Superblock)
            }
            Some(superblock) => (superblock, FoundBy::Search),
            None => (
                guess().ok_or_else(|| Error::NotAPool("no tree node is left".into()))?,
                FoundBy::Guess,
            ),
        };
        let newest = newest.max(superblock.txg);
        let store =
            Store::open_pinned(device, Arc::clone(&options.caches), identity.header, superblock)?;
        let mut salvage = Salvage {
            store,
            identity,
            found_by,
            newest,
            cut_short,
            refused: 0,
            lost: Lost::default(),
            leaves: Vec::new(),
            files: Vec::new(),
            directories: Vec::new(),
        };
        salvage.look_for_the_rest(searched, progress)?;
        Ok(salvage)
    }

    /// Returns the state being read.
    #[doc(hidden)]
    pub fn state(&self) -> Arc<State> {
        self.store.state()
    }

    /// Returns how the state was found.
    pub fn found_by(&self) -> FoundBy {
        self.found_by
    }

    /// Returns the newest state of which anything was found; it differs from the one being read if
    /// it is unreadable.
    pub fn newest_txg(&self) -> Txg {
        self.newest
    }

    /// Tells whether the end of the pool's file is missing, as far as superblocks show it.
    pub fn cut_short(&self) -> Option<CutShort> {
        self.cut_short
    }

    /// Whether the header exists.
    pub fn has_header(&self) -> bool {
        self.identity.has_header
    }

    /// Returns the number of valid superblocks.
    pub fn superblock_count(&self) -> usize {
        self.identity.superblocks.len()
    }

    /// Returns how many bytes the medium refused to read when the pool was searched.
    pub fn refused_bytes(&self) -> u64 {
        self.refused
    }

    /// Returns how many parts of trees are unreadable.
    pub fn lost_node_count(&self) -> usize {
        self.lost.count()
    }

    /// Returns the files that were found.
    pub fn files(&self) -> &[SalvageFile] {
        &self.files
    }

    /// Returns the directories that were found, each after its parent.
    pub fn directories(&self) -> &[SalvageDirectory] {
        &self.directories
    }

    /// Whether files may be missing because their names and everything that leads to them are lost.
    pub fn may_lack_files(&self) -> bool {
        !self.is_certain() || self.lost.has_any(TreeId::Names)
    }

    fn is_certain(&self) -> bool {
        self.found_by != FoundBy::Guess
    }
}

/// Whether a medium begins like a pool.
fn is_front(device: &dyn Device) -> Result<bool> {
    let mut front = [0; MAGIC.len()];
    let n = device.read_at(&mut front, 0).map_err(|error| Error::io("read", error))?;
    Ok(front[..n] == *MAGIC)
}

/// Judges by its superblocks whether a pool was cut short.
fn cut_short(device: &Arc<dyn Device>, identity: &Identity) -> Result<Option<CutShort>> {
    let Some(newest) = identity.superblocks.first() else { return Ok(None) };
    let device = Arc::clone(device);
    let store = Store::open_pinned(device, Caches::new(0), identity.header, newest.clone())?;
    store.judge_superblocks(&identity.superblocks)
}

/// Adds states found by a search: the one that is wanted, otherwise those newer than every
/// superblock.
fn add_searched(
    states: &mut Vec<Superblock>,
    scan: &Scan,
    device: &Arc<dyn Device>,
    identity: &Identity,
    wanted: Option<Txg>,
) {
    let newest = states.first().map_or(Txg(0), |state| state.txg);
    let found = scan.states(device, &identity.header);
    match wanted {
        Some(wanted) => states.extend(found.into_iter().find(|state| state.txg == wanted)),
        None => {
            let newer = found.take_while(|state| state.txg > newest).take(SEARCHED_STATES_MAX);
            states.extend(newer.collect::<Vec<_>>());
        }
    }
    states.sort_by_key(|state| std::cmp::Reverse(state.txg));
}
