//! The dictionaries of a pool: stored once, found by number, kept prepared in memory.
//!
//! A pointer names the dictionary its bytes were compressed with. Numbers are given once and never
//! again, so that what is in memory is never stale; a dictionary stays as long as any pointer names it,
//! and its bytes are verified like any others. Where one is missing or damaged, what was compressed
//! with it is an error, and all else can be read.

use std::sync::{Arc, MutexGuard, PoisonError};

use super::checksum::ChecksumKind;
use super::extent::Encoding;
use super::pointer::Pointer;
use super::trees::DICTIONARIES;
use super::verify::data_pointer;
use super::{Owner, Store, Txn};
use crate::codec::Dictionary;
use crate::error::{Error, Result};

/// The longest dictionary, in bytes.
pub const DICTIONARY_LEN_MAX: usize = 256 << 10;
/// How many are kept prepared: pools have one or two per file.
const KEPT_COUNT: usize = 8;

/// A dictionary in memory.
#[derive(Debug)]
pub(super) struct Kept {
    number: u32,
    dictionary: Arc<Dictionary>,
    /// It cannot be read from a committed state yet.
    is_new: bool,
}

/// The key of a dictionary in its tree.
pub fn dictionary_key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

/// Reads the key of a dictionary.
pub fn parse_dictionary_key(key: &[u8]) -> Result<u32> {
    let number = key.try_into().map(u32::from_be_bytes).ok().filter(|number| *number > 0);
    number.ok_or_else(|| Error::corrupt("dictionaries tree", 0, "a key is malformed"))
}

impl Store {
    /// The dictionary with this number, prepared.
    pub fn dictionary(&self, number: u32) -> Result<Arc<Dictionary>> {
        if let Some(kept) = self.kept().iter().find(|kept| kept.number == number) {
            return Ok(Arc::clone(&kept.dictionary));
        }
        let state = self.state();
        let tree = &state.trees[usize::from(DICTIONARIES)];
        let value = tree.get(&mut &*self, &dictionary_key(number))?.ok_or_else(|| {
            Error::corrupt("dictionaries tree", 0, format!("there is no dictionary {number}"))
        })?;
        self.load_dictionary(number, &data_pointer(&value)?, false)
    }

    /// Takes up a dictionary that the tree no longer leads to, and keeps it.
    pub(crate) fn adopt_dictionary(&self, key: &[u8], pointer: &Pointer) {
        // What was compressed with one that cannot be read cannot be read either.
        let _ = parse_dictionary_key(key)
            .and_then(|number| self.load_dictionary(number, pointer, true));
    }

    fn load_dictionary(
        &self,
        number: u32,
        pointer: &Pointer,
        is_new: bool,
    ) -> Result<Arc<Dictionary>> {
        if pointer.extent_len as usize > DICTIONARY_LEN_MAX || pointer.dictionary != 0 {
            let what = format!("dictionary {number} cannot be one");
            return Err(Error::corrupt("dictionary", self.offset_of(pointer), what));
        }
        let bytes = self.read_uncached(pointer)?;
        let dictionary = Arc::new(Dictionary::new(bytes.as_slice()));
        self.keep_dictionary(Kept { number, dictionary: Arc::clone(&dictionary), is_new });
        Ok(dictionary)
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.dictionaries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep_dictionary(&self, new: Kept) {
        let mut kept = self.kept();
        kept.retain(|old| old.number != new.number);
        kept.insert(0, new);
        while kept.len() > KEPT_COUNT
            && let Some(oldest) = kept.iter().rposition(|kept| !kept.is_new)
        {
            kept.remove(oldest);
        }
    }

    /// Says what became of a dictionary that a transaction added.
    pub(super) fn settle_dictionary(&self, number: u32, is_committed: bool) {
        let mut kept = self.kept();
        // Otherwise its number will be given again.
        kept.retain(|kept| is_committed || kept.number != number);
        kept.iter_mut().filter(|kept| kept.number == number).for_each(|kept| kept.is_new = false);
    }
}

impl Txn {
    /// Adds a dictionary, which this transaction can use at once, and returns its number.
    pub fn add_dictionary(
        &mut self,
        dictionary: &Arc<Dictionary>,
        checksum: ChecksumKind,
    ) -> Result<u32> {
        let bytes = dictionary.bytes();
        if bytes.is_empty() || bytes.len() > DICTIONARY_LEN_MAX {
            return Err(Error::Invalid(format!("{} bytes are no dictionary", bytes.len())));
        }
        let number = u32::try_from(self.new_file_id().0)
            .map_err(|_| Error::Invalid("the pool has no numbers for dictionaries left".into()))?;
        let len = bytes.len() as u32;
        let pointer = self.store_extent(bytes, Encoding::RAW, len, checksum)?;
        let ashift = self.store().ashift();
        self.stats_mut().count_node(&pointer, ashift, true);
        self.insert(DICTIONARIES, &dictionary_key(number), &pointer.to_bytes())?;
        self.core.new_dictionaries.push(number);
        let dictionary = Arc::clone(dictionary);
        self.store().keep_dictionary(Kept { number, dictionary, is_new: true });
        Ok(number)
    }

    /// Removes a dictionary that no pointer names any more.
    pub fn remove_dictionary(&mut self, number: u32) -> Result<()> {
        let Some(value) = self.remove(DICTIONARIES, &dictionary_key(number))? else {
            return Ok(());
        };
        let pointer: Pointer = data_pointer(&value)?;
        let ashift = self.store().ashift();
        self.stats_mut().count_node(&pointer, ashift, false);
        self.free(&pointer, Owner::Pool)
    }

    /// The numbers of all dictionaries.
    pub fn dictionaries(&mut self) -> Result<Vec<u32>> {
        let entries = self.range(DICTIONARIES, &[], &[0xff; 5], usize::MAX)?;
        entries.iter().map(|(key, _)| parse_dictionary_key(key)).collect()
    }
}
