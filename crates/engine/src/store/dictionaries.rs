//! The dictionaries of a pool: stored once, found by number, kept prepared in memory.
//!
//! A pointer names the dictionary its bytes were compressed with. A number that was committed is never
//! given again; a dictionary stays as long as any pointer names it, and its bytes are verified like any
//! others. Where one is missing or damaged, what was compressed with it is an error, and all else can be
//! read.
//!
//! A number of a transaction that is given up, or whose superblock could not be written, is given again,
//! maybe by another process and to another dictionary. The checksum of a record is one of its stored bytes,
//! so it would not tell, and lz4 decodes with any. Therefore:
//!
//! * what is kept in memory counts only as what the tree of a committed state leads to, extent by extent,
//!   and not by its number; but for the transaction that added it, and only while that lasts;
//! * what was compressed with a dictionary that is not committed is not left in the cache.

use std::sync::{Arc, MutexGuard, PoisonError};

use super::extent::Encoding;
use super::format::checksum::ChecksumKind;
use super::format::pointer::data_pointer;
use super::format::pointer::{ExtentKey, Pointer};
use super::format::trees::DICTIONARIES;
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
    standing: Standing,
}

/// What a dictionary in memory counts for.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Standing {
    /// A transaction has added it that goes on, or the tree no longer leads to it.
    New,
    /// It is in this extent, whether or not any committed state leads there.
    At(ExtentKey),
    /// A committed state led to that extent, and its tree of dictionaries begins here.
    Committed(ExtentKey, ExtentKey),
}

impl Kept {
    /// Where it is stored, as far as that is known.
    fn extent(&self) -> Option<ExtentKey> {
        match self.standing {
            Standing::New => None,
            Standing::At(extent) | Standing::Committed(extent, _) => Some(extent),
        }
    }
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
        let state = self.state();
        let root = state.superblock.roots[usize::from(DICTIONARIES)].as_ref();
        let root = root.and_then(Pointer::extent_key);
        let (dictionary, standing) = self.find_kept(number).unzip();
        match (&dictionary, &standing) {
            (Some(dictionary), Some(Standing::New)) => return Ok(Arc::clone(dictionary)),
            (Some(dictionary), Some(Standing::Committed(_, known))) if Some(*known) == root => {
                return Ok(Arc::clone(dictionary));
            }
            _ => {}
        }
        let tree = &state.trees[usize::from(DICTIONARIES)];
        let Some(value) = tree.get(&mut &*self, &dictionary_key(number))? else {
            // Of a state that is read though it is not the newest: the number was not given again.
            if let (Some(dictionary), Some(Standing::Committed(..))) = (dictionary, standing) {
                return Ok(dictionary);
            }
            let what = format!("there is no dictionary {number}");
            return Err(Error::corrupt("dictionaries tree", 0, what));
        };
        let pointer = data_pointer(&value)?;
        let committed = pointer.extent_key().zip(root);
        let Some(standing) = committed.map(|(at, root)| Standing::Committed(at, root)) else {
            let what = format!("dictionary {number} has no extent");
            return Err(Error::corrupt("dictionaries tree", 0, what));
        };
        let is_same =
            |kept: &Kept| kept.extent().is_some() && kept.extent() == pointer.extent_key();
        if let Some(kept) =
            self.kept().iter_mut().find(|kept| kept.number == number && is_same(kept))
        {
            kept.standing = standing;
            return Ok(Arc::clone(&kept.dictionary));
        }
        self.load_dictionary(number, &pointer, standing)
    }

    fn find_kept(&self, number: u32) -> Option<(Arc<Dictionary>, Standing)> {
        let kept = self.kept();
        let kept = kept.iter().find(|kept| kept.number == number)?;
        Some((Arc::clone(&kept.dictionary), kept.standing.clone()))
    }

    /// Takes up a dictionary that the tree no longer leads to, and keeps it.
    pub(crate) fn adopt_dictionary(&self, key: &[u8], pointer: &Pointer) {
        // What was compressed with one that cannot be read cannot be read either.
        let _ = parse_dictionary_key(key)
            .and_then(|number| self.load_dictionary(number, pointer, Standing::New));
    }

    fn load_dictionary(
        &self,
        number: u32,
        pointer: &Pointer,
        standing: Standing,
    ) -> Result<Arc<Dictionary>> {
        if pointer.extent_len as usize > DICTIONARY_LEN_MAX || pointer.dictionary != 0 {
            let what = format!("dictionary {number} cannot be one");
            return Err(Error::corrupt("dictionary", self.offset_of(pointer), what));
        }
        let bytes = self.read_uncached(pointer)?;
        let dictionary = Arc::new(Dictionary::new(bytes.as_slice()));
        self.keep_dictionary(Kept { number, dictionary: Arc::clone(&dictionary), standing });
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
            && let Some(oldest) = kept.iter().rposition(|kept| kept.standing != Standing::New)
        {
            kept.remove(oldest);
        }
    }

    /// A transaction that added a dictionary, in this extent, has ended: whether it was committed is for
    /// the committed states to say.
    pub(super) fn settle_dictionary(&self, number: u32, extent: ExtentKey) {
        let mut kept = self.kept();
        let ended = kept.iter_mut().filter(|kept| kept.number == number);
        ended.for_each(|kept| kept.standing = Standing::At(extent));
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
        let extent = pointer
            .extent_key()
            .ok_or_else(|| Error::corrupt("dictionary", 0, "it has no extent"))?;
        self.core.new_dictionaries.push((number, extent));
        let dictionary = Arc::clone(dictionary);
        self.store().keep_dictionary(Kept { number, dictionary, standing: Standing::New });
        Ok(number)
    }

    /// Whether what a pointer stands for may be left in the cache.
    pub(super) fn may_cache(&self, pointer: &Pointer) -> bool {
        let new = &self.core.new_dictionaries;
        pointer.dictionary == 0 || new.iter().all(|(number, _)| *number != pointer.dictionary)
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
