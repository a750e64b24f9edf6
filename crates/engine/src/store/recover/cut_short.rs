//! Tells a pool that was cut short from one that a loss of power left shorter.
//!
//! A commit grows the file before its superblock names the new length, and gives only space back
//! that no durable state reaches. So whatever happens, some state that opening may settle on, one
//! at least as new as the newest recorded as durable, fits in the file: everything behind the
//! file's end is free in it. If none does, somebody else cut the file. Such a pool is opened for
//! reading, and nothing is written to it, since that would use up older states that may still be
//! whole.
//!
//! Damage elsewhere is no cut: where a file is shorter than its states, as it may be if free space
//! is last, and a damaged node hides whether that space is free, nothing says that it was cut.
//!
//! A state that is visible but not recorded as durable need not fit: a loss of power may take its
//! extents and keep its superblock. Recovery then settles on an older state, which must fit.
//!
//! Invariant: the length is measured after the superblocks are read, and a verdict counts only if
//! no other state has become the newest meanwhile: that commit may have shortened the file.

use std::cmp::Reverse;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use crate::error::{CutShort, Error, Result};
use crate::store::format::node::Node;
use crate::store::format::pointer::Pointer;
use crate::store::format::space::{freed_entry, reserved_run, space_entry, space_key};
use crate::store::format::superblock::{BLOCK_LEN, EXTENTS_OFFSET, Superblock, slot_offset};
use crate::store::format::trees::TreeId;
use crate::store::ring::read_slot;
use crate::store::tree::{NodeSource, TxnTree};
use crate::store::txn::Txn;
use crate::store::txn::write_buffer::write;
use crate::store::{State, Store};
use crate::units::{Run, Sector, Txg};

/// How a state fits in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fit {
    /// Everything behind the end of the file is free.
    Whole,
    /// Only the last sector in use is incomplete. In a state that is not durable, a loss of power
    /// may have torn the zeros that fill it.
    LastSectorTorn,
    /// At least one sector in use is missing, or what says so is.
    Short,
    /// What says so is damaged, but not missing.
    Unknown,
}

/// Reads nodes, and notes whether any of them lies behind the end of the file.
struct UpTo<'s> {
    store: &'s Store,
    len: u64,
    is_beyond: bool,
}

impl NodeSource for UpTo<'_> {
    fn load(&mut self, tree: TreeId, pointer: &Pointer) -> Result<Arc<Node>> {
        let end = self.store.offset_of(pointer) + u64::from(pointer.stored_len);
        self.is_beyond |= end > self.len;
        (&mut &*self.store).load(tree, pointer)
    }
}

/// Returns the newest state that the superblocks record as durable. A superblock that says that
/// everything was synced before it vouches for its own state.
pub(in crate::store) fn recorded_durable<'s>(states: impl Iterator<Item = &'s Superblock>) -> Txg {
    let durable =
        |state: &Superblock| if state.data_synced { state.txg } else { state.durable_txg };
    states.map(durable).max().unwrap_or(Txg(0))
}

impl Store {
    /// Tells whether the file was cut short, and by how much.
    pub fn cut_short(&self) -> Option<CutShort> {
        *self.cut_short.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::store) fn set_cut_short(&self, cut: Option<CutShort>) {
        *self.cut_short.lock().unwrap_or_else(PoisonError::into_inner) = cut;
    }

    fn len(&self) -> Result<u64> {
        self.device.len().map_err(|error| Error::io("measure", error))
    }

    /// The error for a pool of which nothing but a part of its front is left, if it is one.
    pub(in crate::store) fn front_cut_short(&self) -> Result<()> {
        match self.len()? {
            len if len < EXTENTS_OFFSET => Err(Error::CutShort(CutShort { len, needed: None })),
            _ => Ok(()),
        }
    }

    /// Judges whether the file was cut short: whether none of `states` that is at least as new as
    /// `durable` fits in it, and one certainly does not. Without such a state there is no verdict.
    pub(in crate::store) fn judge_length<'s>(
        &self,
        states: impl Iterator<Item = &'s Superblock> + Clone,
        durable: Txg,
    ) -> Result<Option<CutShort>> {
        let states = states.filter(|state| state.txg >= durable);
        let Some(newest) = states.clone().max_by_key(|state| state.txg) else { return Ok(None) };
        let len = self.len()?;
        let needed = |state: &Superblock| state.end.0 << self.ashift();
        if states.clone().any(|state| needed(state) <= len) {
            return Ok(None);
        }
        let mut is_cut = false;
        for state in states {
            match self.fit(state, len)? {
                Fit::Whole => return Ok(None),
                // A loss of power may tear the last sector of a state that is not durable. Then the
                // durable one, which is among these, fits.
                Fit::LastSectorTorn | Fit::Short => is_cut = true,
                Fit::Unknown => {}
            }
        }
        Ok(is_cut.then(|| CutShort { len, needed: Some(needed(newest)) }))
    }

    /// Judges by the superblocks that are left whether the file was cut short.
    pub(crate) fn judge_superblocks(&self, states: &[Superblock]) -> Result<Option<CutShort>> {
        self.judge_length(states.iter(), recorded_durable(states.iter()))
    }

    /// Refuses to build on a state that does not fit in the file. The caller holds the writer lock,
    /// and `base` is the newest state.
    pub(in crate::store) fn refuse_if_cut_short(&self, base: &State) -> Result<()> {
        let (len, needed) = (self.len()?, base.superblock.end.0 << self.ashift());
        if needed <= len {
            return Ok(());
        }
        match self.fit(&base.superblock, len)? {
            // Damage is found where it matters.
            Fit::Whole | Fit::Unknown => return Ok(()),
            // The zeros are rewritten with everything else that is in doubt.
            Fit::LastSectorTorn if self.doubtful.load(Ordering::Acquire) != 0 => return Ok(()),
            Fit::LastSectorTorn | Fit::Short => {}
        }
        let cut = CutShort { len, needed: Some(needed) };
        self.set_cut_short(Some(cut));
        Err(Error::CutShort(cut))
    }

    fn fit(&self, state: &Superblock, len: u64) -> Result<Fit> {
        let ashift = self.ashift();
        // The first sector that is not there, or not completely.
        let first = Sector(len >> ashift);
        let mut source = UpTo { store: self, len, is_beyond: false };
        // Read again before it is believed: a bit may have flipped on the way.
        let mut used_end = used_end(&mut source, state, first);
        if used_end.as_ref().is_err_and(Error::is_corruption) {
            used_end = self::used_end(&mut source, state, first);
        }
        Ok(match used_end {
            Ok(end) if end <= first => Fit::Whole,
            Ok(end) if end.0 == first.0 + 1 && !len.is_multiple_of(1 << ashift) => {
                Fit::LastSectorTorn
            }
            Ok(_) => Fit::Short,
            Err(error) if error.is_corruption() && source.is_beyond => Fit::Short,
            Err(error) if error.is_corruption() => Fit::Unknown,
            Err(error) => return Err(error),
        })
    }

    /// Makes a pool that was cut short as long as its newest state needs. The caller holds the
    /// writer lock, and has verified that nothing is missing but what can be made anew.
    pub(crate) fn lengthen(&self) -> Result<()> {
        let state = self.state();
        let len = self.len()?;
        let source = &mut UpTo { store: self, len, is_beyond: false };
        let end = used_end(source, &state.superblock, Sector(len >> self.ashift()))?;
        let needed = end.0 << self.ashift();
        if needed > len {
            self.device.set_len(needed).map_err(|error| Error::io("lengthen", error))?;
            self.sync_device()?;
        }
        self.set_cut_short(None);
        Ok(())
    }
}

/// Returns the end of the last sector that a state has in use, or `from` if it has none from
/// there on.
fn used_end(source: &mut UpTo<'_>, state: &Superblock, from: Sector) -> Result<Sector> {
    let mut free: Vec<Run> = state.windows.clone();
    free.push(reserved_run(source.store.ashift()));
    let mut bad = None;
    let mut collect = |run: Result<Run>| {
        match run {
            Ok(run) if run.end() > from => free.push(run),
            Ok(_) => {}
            Err(error) => {
                bad = Some(error);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    };
    let tree = |id: TreeId| TxnTree::new(id, state.roots[id].clone());
    let space = tree(TreeId::Space);
    let first = space.floor(source, &space_key(from))?;
    let first = first.map_or(space_key(from).to_vec(), |entry| entry.key().to_vec());
    space.scan(source, &first, &mut |key, value| collect(space_entry(key, value)))?;
    tree(TreeId::Freed).scan(source, &[], &mut |key, value| {
        collect(freed_entry(key, value).map(|(_, run)| run))
    })?;
    if let Some(error) = bad {
        return Err(error);
    }
    free.sort_unstable_by_key(|run| Reverse(run.end()));
    let mut end = state.end;
    for run in free {
        if run.end() < end {
            break;
        }
        end = end.min(run.start);
    }
    Ok(end.max(from))
}

impl Txn {
    /// Takes the superblocks of all states that are newer than `kept` out of the ring, durably.
    /// Otherwise a process that ends in the middle of a rewind could leave a file that is long
    /// enough again for one of them, but without its data. Those that fit go first: those that do
    /// not may have reused their space, and as long as these are there, the pool is known to be cut
    /// short.
    pub(in crate::store) fn give_up_cut_states(&self, kept: Txg) -> Result<()> {
        let (store, base) = (self.store(), &self.core.base);
        let len = store.len()?;
        let ring = store.read_ring()?;
        let Some((kept_slot, _)) = ring.iter().find(|(_, state)| state.txg == kept) else {
            return Err(Error::NotFound { what: "state", name: format!("txg {kept}") });
        };
        // The next superblock may go to the slot of the kept one, and tear it.
        let copy = read_slot(store, *kept_slot)?;
        let (mut fitting, mut others) = (Vec::new(), Vec::new());
        for (slot, state) in ring.iter().filter(|(_, state)| state.txg > kept) {
            let needed = state.end.0 << store.ashift();
            let fits = needed <= len || store.fit(state, len)? == Fit::Whole;
            if fits { fitting.push(*slot) } else { others.push(*slot) }
        }
        for slots in [fitting, others] {
            for slot in &slots {
                let block = if *slot == base.slot { copy.clone() } else { vec![0; BLOCK_LEN] };
                write(store, &block, slot_offset(*slot))?;
            }
            if !slots.is_empty() {
                store.sync_device()?;
            }
        }
        Ok(())
    }
}
