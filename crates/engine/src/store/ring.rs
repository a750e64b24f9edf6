//! Reads the ring of superblocks: finds the newest state, and adopts what other processes commit.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::buffer::with_buffer;
use super::format::superblock::{
    BLOCK_LEN, HINT_OFFSET, Header, RING_OFFSET, SLOT_COUNT, Superblock, TXG_OFFSET, is_sealed,
    slot_offset,
};
use super::state::{SLOT_MARK_LEN, SlotMark, Slots, State};
use super::{Store, txn};
use crate::codec::is_all_zero;
use crate::error::{Error, Location, Result};
use crate::units::Txg;

/// All slots, and the hashes of those that count for nothing.
type Blocks<'a> = (&'a [u8], Vec<u64>);

/// Reports a ring without a superblock.
pub(in crate::store) fn no_superblock() -> Error {
    let what = format!("expected one in at least one of {SLOT_COUNT} slots, found none");
    Error::corrupt("superblock", Location::Byte(RING_OFFSET), what)
}

impl Store {
    /// Returns the superblocks of the ring, newest first.
    pub fn superblocks(&self) -> Result<Vec<Superblock>> {
        let ring = self.read_ring()?;
        let mut superblocks: Vec<Superblock> = ring.into_iter().map(|(_, sb)| sb).collect();
        superblocks.sort_by_key(|superblock| std::cmp::Reverse(superblock.txg));
        // A rewind of a pool that was cut short leaves a copy.
        superblocks.dedup_by_key(|superblock| superblock.txg);
        Ok(superblocks)
    }

    pub(in crate::store) fn superblock_at(&self, txg: Txg) -> Result<Superblock> {
        let found = self.superblocks()?.into_iter().find(|superblock| superblock.txg == txg);
        found.ok_or_else(|| Error::NotFound { what: "state", name: format!("txg {txg}") })
    }

    /// Returns how often a state was adopted that another process had committed. If this is the
    /// same before and after something was read, that had been committed by this process, or when
    /// the count was reached.
    pub fn adoptions(&self) -> u64 {
        self.adoptions.load(Ordering::Acquire)
    }

    /// Adopts the newest state if another process has committed one. Returns whether it did.
    pub fn refresh(&self) -> Result<bool> {
        if self.is_pinned || self.is_newest(&self.state())? {
            return Ok(false);
        }
        self.adopt_newest()
    }

    /// Whether nobody has committed since a state that this process knows. If there was no room for
    /// another superblock then, that is not known, and the answer is no.
    pub(in crate::store) fn is_newest(&self, state: &State) -> Result<bool> {
        if self.header.version < 2 {
            // Earlier versions of this program name no slot, or a different one.
            let hint = state.txg().0.to_le_bytes();
            if !self.holds(&hint, HINT_OFFSET)? {
                return Ok(false);
            }
        }
        let Some(slot) = state.superblock.next_slot else { return Ok(false) };
        let mark = state.slots[slot as usize].encode();
        self.holds(&mark, slot_offset(slot) + TXG_OFFSET)
    }

    /// Like [`Store::refresh`], for a transaction: looks at the whole ring, and stops if that holds
    /// a newer state which [`Store::refresh`] does not notice. A failed sync has then lost the
    /// superblock that it looks for and not those behind it, and what this process has read since
    /// is outdated. It also stops if the state of this process is gone though it was durable: a
    /// copy that was written over the pool may have its numbers, so the whole superblock counts.
    pub(in crate::store) fn refresh_fully(&self) -> Result<()> {
        let current = self.state();
        self.with_blocks(|ring| self.refresh_from(&current, ring))
    }

    fn refresh_from(&self, current: &State, ring: Blocks<'_>) -> Result<()> {
        let is_known = |slot: usize| {
            SlotMark::bytes_of(&ring.0[slot * BLOCK_LEN..]) == current.slots[slot].encode()
        };
        let block = &ring.0[current.slot as usize * BLOCK_LEN..][..BLOCK_LEN];
        let stands = current.is_in(block, &self.header.guid);
        if stands && (0..current.slots.len()).all(is_known) {
            return Ok(());
        }
        let next = current.superblock.next_slot.filter(|_| self.header.version >= 2);
        let is_noticed = next.is_none_or(|slot| !is_known(slot as usize));
        let is_newer = self.adopt_newest_of(ring)?;
        if is_newer && !is_noticed {
            self.fail_stop.store(true, Ordering::Release);
            return Err(Error::FailStop);
        }
        if stands || is_newer {
            return Ok(());
        }
        let state = self.state();
        // One that was not durable may have been lost by a failed sync: see `refuse_if_gone`.
        match state.durable >= state.txg() && self.is_overwritten()? {
            true => Err(Error::Overwritten),
            false => Ok(()),
        }
    }

    /// Whether the newest state that this process knows is gone.
    #[doc(hidden)]
    pub fn is_overwritten(&self) -> Result<bool> {
        let state = self.state();
        let is_of_ring = !self.is_pinned && state.txg() > Txg(0);
        Ok(is_of_ring && !self.stands(&state)?)
    }

    /// Explains a ring without a superblock of this pool.
    fn no_superblock_left(&self) -> Result<Error> {
        let mut block = vec![0; BLOCK_LEN];
        self.device.read_at(&mut block, 0).map_err(|error| Error::io("read", error))?;
        Ok(match Header::decode(&block) {
            Ok(header) if header.guid != self.header.guid => Error::Overwritten,
            _ => no_superblock(),
        })
    }

    /// Whether the device holds `bytes`, at most [`SLOT_MARK_LEN`] of them, at `offset`.
    pub(in crate::store) fn holds(&self, bytes: &[u8], offset: u64) -> Result<bool> {
        let mut found = [0; SLOT_MARK_LEN];
        let found = &mut found[..bytes.len()];
        let n = self.device.read_at(found, offset).map_err(|error| Error::io("read", error))?;
        Ok(n == bytes.len() && found == bytes)
    }

    /// Adopts the newest superblock of the whole ring.
    pub(crate) fn adopt_newest(&self) -> Result<bool> {
        if self.is_pinned {
            return Ok(false);
        }
        self.with_blocks(|ring| self.adopt_newest_of(ring))
    }

    fn adopt_newest_of(&self, ring: Blocks<'_>) -> Result<bool> {
        let Some(newest) = self.read_newest(&self.state(), ring)? else {
            return Err(self.no_superblock_left()?);
        };
        // The caller need not be inside the writer gate, so this process may have published a newer
        // state since the ring was read.
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if newest.superblock.txg <= state.txg() {
            return Ok(false);
        }
        newest.superblock.check_readable()?;
        // A state that this process knows to be durable stays so: newer states build on it.
        let mut adopted = newest.adopted(state.durable);
        if adopted.durable == state.durable {
            adopted.unsynced_bytes += state.unsynced_bytes;
        }
        // Before anybody can see the state.
        let is_own = adopted.txg().0 == self.own_txg.load(Ordering::Acquire);
        self.adoptions.fetch_add(u64::from(!is_own), Ordering::Release);
        *state = Arc::new(adopted);
        Ok(true)
    }

    /// Decodes the newest superblock of the ring, and of the others only their numbers: this is
    /// what every transaction does that follows one of another process. Only those are verified
    /// that `known` does not have.
    fn read_newest(
        &self,
        known: &State,
        (slot_blocks, rejected): Blocks<'_>,
    ) -> Result<Option<Newest>> {
        let (mut slots, mut newest, mut is_sound) = (Slots::default(), None, true);
        for (slot, block) in slot_blocks.chunks_exact(BLOCK_LEN).enumerate() {
            if !rejected.is_empty() && rejected.contains(&block_hash(block)) {
                continue;
            }
            let is_known = known.has_mark_of(block, slot);
            let mark = match is_known {
                true => Some(known.slots[slot]),
                false => SlotMark::decode(block, &self.header.guid),
            };
            match mark {
                Some(mark) => {
                    slots[slot] = mark;
                    newest = newest.max(Some((mark.txg, slot, is_known)));
                }
                None => is_sound &= is_all_zero(block),
            }
        }
        if is_sound && let Some((_, slot, is_known)) = newest {
            let block = &slot_blocks[slot * BLOCK_LEN..][..BLOCK_LEN];
            if (!is_known || is_sealed(block))
                && let Some(superblock) = Superblock::decode_sealed(block, &self.header.guid)
                && superblock.next_slot != Some(slot as u64)
            {
                let block = Some(block.into());
                return Ok(Some(Newest { slot: slot as u64, superblock, block, slots }));
            }
        }
        Ok(Newest::of(&self.read_ring()?))
    }

    /// Reads every valid superblock with its slot. If a slot looks damaged, the ring is read twice:
    /// after a bit flip in transit, an older state would be taken for the newest.
    pub(in crate::store) fn read_ring(&self) -> Result<Vec<(u64, Superblock)>> {
        let (mut ring, is_sound) = self.read_ring_once()?;
        if !is_sound {
            let (again, _) = self.read_ring_once()?;
            let is_new =
                |(slot, _): &(u64, Superblock)| ring.iter().all(|(other, _)| other != slot);
            let missed: Vec<_> = again.into_iter().filter(is_new).collect();
            ring.extend(missed);
        }
        Ok(ring)
    }

    /// Reads the ring once. Also returns whether every slot holds a valid superblock or zeros.
    pub(in crate::store) fn read_ring_once(&self) -> Result<(Vec<(u64, Superblock)>, bool)> {
        self.with_blocks(|(blocks, rejected)| {
            let (mut ring, mut is_sound) = (Vec::new(), true);
            for (slot, block) in blocks.chunks_exact(BLOCK_LEN).enumerate() {
                if !rejected.is_empty() && rejected.contains(&block_hash(block)) {
                    continue;
                }
                match Superblock::decode(block, &self.header.guid) {
                    Some(superblock) => ring.push((slot as u64, superblock)),
                    None => is_sound &= is_all_zero(block),
                }
            }
            Ok((ring, is_sound))
        })
    }

    /// Reads all slots, and lends them to `f`.
    fn with_blocks<R>(&self, f: impl FnOnce(Blocks<'_>) -> Result<R>) -> Result<R> {
        let rejected = self.rejected.lock().unwrap_or_else(PoisonError::into_inner).clone();
        with_buffer(|blocks| {
            blocks.resize(BLOCK_LEN * SLOT_COUNT as usize, 0);
            let read = self.device.read_at(blocks, RING_OFFSET);
            let n = read.map_err(|error| Error::io("read", error))?;
            if n < blocks.len() {
                self.front_cut_short()?;
                let what = format!(
                    "expected {SLOT_COUNT} slots of {BLOCK_LEN} bytes from byte {RING_OFFSET} on, \
                     found {n} of their bytes up to the end of the pool"
                );
                let end = Location::Byte(RING_OFFSET + n as u64);
                return Err(Error::corrupt("superblock", end, what));
            }
            f((blocks, rejected))
        })
    }
}

/// Orders superblocks by how new they are. A rewind of a pool that was cut short leaves a copy of
/// one, maybe where the next will be written. Then the other counts, which stays.
pub(in crate::store) fn rank(slot: u64, superblock: &Superblock) -> (Txg, bool) {
    (superblock.txg, superblock.next_slot != Some(slot))
}

/// Returns the newest superblock of a ring, with its slot.
pub(in crate::store) fn newest_of(ring: &[(u64, Superblock)]) -> Option<&(u64, Superblock)> {
    ring.iter().max_by_key(|(slot, superblock)| rank(*slot, superblock))
}

/// The newest superblock of a ring, and the numbers of all.
pub(in crate::store) struct Newest {
    pub(in crate::store) slot: u64,
    pub(in crate::store) superblock: Superblock,
    /// The block that holds it, if that is at hand.
    block: Option<Arc<[u8]>>,
    pub(in crate::store) slots: Slots,
}

impl Newest {
    /// Returns the newest of a ring, if it has any.
    pub(in crate::store) fn of(ring: &[(u64, Superblock)]) -> Option<Newest> {
        let slots = slots_of(ring);
        let (slot, superblock) = newest_of(ring)?.clone();
        Some(Newest { slot, superblock, block: None, slots })
    }

    /// Returns the state behind it. Its durable txg is the one that the superblock names, or a
    /// later one that is `known`. The writer may have made any txg after that durable.
    pub(in crate::store) fn adopted(self, known: Txg) -> State {
        let state = adopted_state(self.slots, self.slot, self.superblock, known);
        State { block: self.block, ..state }
    }
}

/// Reads a slot, whatever it holds.
pub(in crate::store) fn read_slot(store: &Store, slot: u64) -> Result<Vec<u8>> {
    let mut block = vec![0; BLOCK_LEN];
    let read = store.device.read_at(&mut block, slot_offset(slot));
    read.map_err(|error| Error::io("read", error))?;
    Ok(block)
}

/// Identifies the content of a superblock slot.
pub(in crate::store) fn block_hash(block: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(block)
}

pub(in crate::store) fn slots_of(ring: &[(u64, Superblock)]) -> Slots {
    let mut slots = Slots::default();
    for (slot, superblock) in ring {
        slots[*slot as usize] = SlotMark::of(superblock);
    }
    slots
}

/// Returns the state behind any superblock of the ring (see [`Newest::adopted`]).
pub(in crate::store) fn adopted_state(
    slots: Slots,
    slot: u64,
    superblock: Superblock,
    known: Txg,
) -> State {
    let (durable, guarded) = (superblock.durable_txg.max(known), superblock.txg);
    let unsynced_bytes = txn::commit::foreign_unsynced(&superblock, durable);
    let state = State::new(superblock, slot, slots, durable, guarded);
    State { foreign: true, unsynced_bytes, ..state }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Sector;

    #[test]
    fn of_two_copies_the_one_that_stays_counts() {
        let superblock =
            |txg| Superblock { next_slot: Some(2), ..Superblock::empty(Txg(txg), Sector(80)) };
        for copies in [[1, 2], [2, 1], [2, 5]] {
            let [one, other] = copies;
            let ring = vec![(0, superblock(8)), (one, superblock(9)), (other, superblock(9))];
            let newest = Newest::of(&ring).unwrap();
            let stays = if one == 2 { other } else { one };
            assert_eq!((newest.slot, newest.superblock.txg), (stays, Txg(9)), "{copies:?}");
        }
        // If it is the only one, there is no choice.
        assert_eq!(Newest::of(&[(2, superblock(9)), (3, superblock(8))]).unwrap().slot, 2);
    }
}
