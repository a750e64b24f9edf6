//! Finds dictionaries and bases by their stored bytes.
//!
//! There may be as many bases as records, so the tree of dictionaries is read once, by the first
//! transaction that looks for something there or adds to it. What it has found goes from one
//! transaction to the next, as long as that begins with the same tree.

use std::collections::BTreeSet;
use std::sync::{MutexGuard, PoisonError};

use super::format::checksum::{self, ChecksumKind};
use super::format::pointer::{ExtentKey, Place, Pointer};
use super::format::trees::TreeId;
use super::{State, Store, Txn};
use crate::error::Result;

/// The numbers of dictionaries and bases, each behind the start of its checksum. Some may be gone.
pub(super) type Numbers = BTreeSet<(u64, u32)>;

/// The numbers of a state.
#[derive(Debug)]
pub(super) struct KnownNumbers {
    /// The root of the tree of dictionaries.
    root: Option<ExtentKey>,
    numbers: Numbers,
}

fn root_of(state: &State) -> Option<ExtentKey> {
    state.superblock.roots[TreeId::Dictionaries].as_ref().and_then(Pointer::extent_key)
}

impl Store {
    fn known_numbers(&self) -> MutexGuard<'_, Option<KnownNumbers>> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the numbers of a state, if they are known.
    fn take_numbers(&self, state: &State) -> Option<Numbers> {
        let known = self.known_numbers().take_if(|known| known.root == root_of(state));
        known.map(|known| known.numbers)
    }

    /// Keeps the numbers of a state for the next transaction.
    pub(super) fn keep_numbers(&self, numbers: Numbers, state: &State) {
        *self.known_numbers() = Some(KnownNumbers { root: root_of(state), numbers });
    }

    /// Notes that a transaction that has added no number has made a state from another one.
    pub(super) fn keep_numbers_of(&self, from: &State, to: &State) {
        let mut known = self.known_numbers();
        known.iter_mut().filter(|it| it.root == root_of(from)).for_each(|it| it.root = root_of(to));
    }
}

impl Txn {
    /// Returns the numbers of at least all dictionaries and bases.
    fn numbers(&mut self) -> Result<&mut Numbers> {
        let kept = self.core.numbers.take();
        let numbers = match kept.or_else(|| self.core.store.take_numbers(&self.core.base)) {
            Some(numbers) => numbers,
            None => match self.all_numbers() {
                // What cannot be read is not found.
                Err(error) if error.is_corruption() => Numbers::new(),
                numbers => numbers?,
            },
        };
        Ok(self.core.numbers.insert(numbers))
    }

    fn all_numbers(&mut self) -> Result<Numbers> {
        let numbered = self.numbered()?.into_iter();
        Ok(numbered.filter_map(|(number, it)| Some((it.extent_key()?.checksum, number))).collect())
    }

    /// Notes the number that a dictionary or base gets.
    pub(super) fn note_number(&mut self, key: ExtentKey, number: u32) -> Result<()> {
        self.numbers()?.insert((key.checksum, number));
        Ok(())
    }

    /// Returns the number and the entry of a dictionary or base whose checksum begins with these
    /// bytes, and whose entry fits.
    pub(super) fn find_number(
        &mut self,
        checksum: u64,
        mut fits: impl FnMut(&mut Txn, &Pointer) -> Result<bool>,
    ) -> Result<Option<(u32, Pointer)>> {
        let those = self.numbers()?.range((checksum, 0)..=(checksum, u32::MAX));
        let those: Vec<u32> = those.map(|(_, number)| *number).collect();
        for number in those {
            if let Some(entry) = self.dictionary_entry(number)?
                && fits(self, &entry)?
            {
                return Ok(Some((number, entry)));
            }
        }
        Ok(None)
    }

    /// Returns the number of a dictionary with these bytes, and this kind of checksum.
    pub fn find_dictionary(&mut self, bytes: &[u8], kind: ChecksumKind) -> Result<Option<u32>> {
        let sum = kind.sum(bytes);
        let is_same = |_: &mut Txn, entry: &Pointer| {
            let Place::Extent { checksum_kind, checksum, .. } = entry.place else {
                return Ok(false);
            };
            Ok(!entry.is_base() && (checksum_kind, checksum) == (kind, sum))
        };
        let Some((number, _)) = self.find_number(checksum::front(&sum), is_same)? else {
            return Ok(None);
        };
        match self.core.store.dictionary(number) {
            Ok(found) => Ok((found.bytes() == bytes).then_some(number)),
            Err(error) if error.is_corruption() => Ok(None),
            Err(error) => Err(error),
        }
    }
}
