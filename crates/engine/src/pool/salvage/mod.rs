//! Salvaging: reading all that verifies from a pool that is damaged, however badly, and saying
//! exactly what does not.
//!
//! 1. A state is chosen: the newest superblock whose newest parts can be read, as when the pool is
//!    opened. Where none is left, or a newer one may be lost, the whole pool is searched for nodes
//!    (see [`crate::store::recover::scan`]) and the trees of roots among them tell of states.
//! 2. Its trees are walked as far as they can be read. What hangs below a lost node is looked for among
//!    the nodes of the search. A leaf that lies where the state's trees of free space say something is
//!    in use **is** part of the state, since every sector is used once or free once. Of any other
//!    nobody knows whether it was replaced since: what it leads to is [`Fate::Older`].
//! 3. Each part of a file is put together from records and patches, and every byte has a fate.
//!
//! The pool is never written to. Every record and patch that is used was verified against the checksum
//! in the leaf that names it, and leaves carry a checksum of themselves. Memory: some 40 bytes for each
//! node of the pool where it is searched, besides one part of a file.

mod part;
mod rest;

use std::sync::Arc;

pub use self::part::{Fate, PART_LEN, Part, Stretch};
use self::rest::{Leaf, Lost};
use super::Options;
use super::namespace::entries::Attributes;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::store::format::superblock::Superblock;
use crate::store::recover::scan::{self, Identity, Scan};
use crate::store::trees::NAMES;
use crate::store::{State, Store};
use crate::units::{FileId, Txg};

/// How many states are considered that only a search found.
const SEARCHED_STATES_MAX: usize = 64;

/// A file that can be salvaged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SalvageFile {
    /// Its identity.
    pub id: FileId,
    /// Its name; `None` where that is lost.
    pub name: Option<String>,
    /// The names from the root down to its own, as far up as they are known.
    pub path: Vec<Vec<u8>>,
    /// The path of each further name of the file.
    pub other_paths: Vec<Vec<Vec<u8>>>,
    /// All its names are known, and lead down from the root.
    pub has_all_names: bool,
    /// Where it leads, if it is a symbolic link.
    pub target: Option<Vec<u8>>,
    /// What else is known of it. The length, where it is lost, is that of what is left.
    pub attributes: Attributes,
    /// What is behind this byte may not belong to the file, or may be missing: its length is lost.
    /// `None` where it is known.
    pub known_len: Option<u64>,
}

/// A directory that can be salvaged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SalvageDirectory {
    /// Its identity.
    pub id: FileId,
    /// The names from the root down to its own, as far up as they are known.
    pub path: Vec<Vec<u8>>,
    /// It leads down from the root.
    pub has_all_names: bool,
}

/// How the state was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FoundBy {
    /// From a superblock.
    Superblock,
    /// From a tree of roots, by a search of the pool.
    Search,
    /// Put together from the newest nodes that a search found: nothing says that they belong together.
    Guess,
}

/// A damaged pool, to be read.
#[derive(Debug)]
pub struct Salvage {
    store: Arc<Store>,
    identity: Identity,
    found_by: FoundBy,
    newest: Txg,
    refused: u64,
    lost: Lost,
    leaves: Vec<Leaf>,
    files: Vec<SalvageFile>,
    directories: Vec<SalvageDirectory>,
}

impl Salvage {
    /// Finds a state, the newest or the one that is `wanted`. `progress` gets the bytes searched.
    pub fn open(
        device: Arc<dyn Device>,
        options: &Options,
        wanted: Option<Txg>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Salvage> {
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
            refused: 0,
            lost: Lost::default(),
            leaves: Vec::new(),
            files: Vec::new(),
            directories: Vec::new(),
        };
        salvage.look_for_the_rest(searched, progress)?;
        Ok(salvage)
    }

    /// The state that is read.
    pub fn state(&self) -> Arc<State> {
        self.store.state()
    }

    /// How it was found.
    pub fn found_by(&self) -> FoundBy {
        self.found_by
    }

    /// The newest state of which anything was found; another than the one that is read where that one
    /// cannot be.
    pub fn newest_txg(&self) -> Txg {
        self.newest
    }

    /// Whether the header was there.
    pub fn has_header(&self) -> bool {
        self.identity.has_header
    }

    /// How many superblocks are valid.
    pub fn superblock_count(&self) -> usize {
        self.identity.superblocks.len()
    }

    /// Bytes that the medium refused to read when the pool was searched.
    pub fn refused_bytes(&self) -> u64 {
        self.refused
    }

    /// How many parts of trees cannot be read.
    pub fn lost_node_count(&self) -> usize {
        self.lost.count()
    }

    /// What there is.
    pub fn files(&self) -> &[SalvageFile] {
        &self.files
    }

    /// The directories there are, each behind the one it is in.
    pub fn directories(&self) -> &[SalvageDirectory] {
        &self.directories
    }

    /// Whether names may be lost together with all that leads to their files, so that nobody knows of them.
    pub fn may_lack_files(&self) -> bool {
        !self.is_certain() || self.lost.has_any(NAMES)
    }

    fn is_certain(&self) -> bool {
        self.found_by != FoundBy::Guess
    }
}

/// Adds what a search knows of states that are newer than every superblock, or wanted.
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
