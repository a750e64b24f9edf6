//! Trains dictionaries from a file's own pages, for its patches and short records.
//!
//! A new dictionary is adopted only if it pays on pages outside its training set. If none pays,
//! that is stored too, so that training is not repeated. Training happens on the first large write
//! of short records, when a pool that has gathered patches is idle, and when a file is repacked to
//! short records. Dictionaries without any remaining references are then removed.

use std::collections::HashSet;
use std::sync::Arc;

use crate::codec::{self, Compression, Dictionary, Encoded, Policy};
use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::pool::extents::source::Source;
use crate::pool::extents::{UNIT_LEN, read_range};
use crate::pool::namespace::entries;
use crate::pool::namespace::props::Settings;
use crate::pool::write::encode::DICTIONARY_RECORD_LEN_MAX;
use crate::store::format::pointer::EMBEDDED_LEN_MAX;
use crate::store::format::pointer::data_pointer;
use crate::store::tree::walk::{Met, walk_tree};
use crate::store::trees::TreeId;
use crate::store::{Durability, Patience, State, Store, Txn};
use crate::units::{Ashift, FileId, Txg};

/// The length of a dictionary: zstd's usual choice. lz4 uses only the last 64 KiB.
const LEN: usize = 112 << 10;
/// The number of pages to train from, 20 times the dictionary's length, and to test on.
const TRAIN_COUNT: u64 = 560;
const TEST_COUNT: u64 = 80;
/// A file with fewer pages does not benefit from a dictionary.
pub(in crate::pool) const PAGE_COUNT_MIN: u64 = 2048;
/// A dictionary must save more than 1/`GAIN_PART_MIN` of what the pages take without it.
const GAIN_PART_MIN: u64 = 20;

/// Returns the compression that a file would use a dictionary with, if any: for its short records,
/// otherwise for its patches.
fn purpose(settings: &Settings) -> Option<Compression> {
    let is_short = settings.record_len as usize <= DICTIONARY_RECORD_LEN_MAX;
    let compression = match settings.compression {
        Compression::Off => return None,
        chosen if is_short => chosen,
        _ => Compression::Lz4,
    };
    compression.uses_dictionary().then_some(compression)
}

/// Whether a file with these settings should have a dictionary before it is written.
pub(in crate::pool) fn serves_records(settings: &Settings) -> bool {
    settings.record_len as usize <= DICTIONARY_RECORD_LEN_MAX && purpose(settings).is_some()
}

/// Returns the dictionary in use for a file.
pub(in crate::pool) fn in_use(
    source: &mut impl Source,
    store: &Store,
    file: FileId,
) -> Result<Option<(u32, Arc<Dictionary>)>> {
    match entries::dictionary(source, file)? {
        None | Some(0) => Ok(None),
        Some(number) => Ok(Some((number, store.dictionary(number)?))),
    }
}

/// Trains a dictionary from some of `count` pages; returns `None` if it does not pay.
pub(in crate::pool) fn train(
    count: u64,
    page: &mut dyn FnMut(u64) -> Result<Vec<u8>>,
    settings: &Settings,
    ashift: Ashift,
) -> Result<Option<Arc<Dictionary>>> {
    let Some(compression) = purpose(settings).filter(|_| count >= PAGE_COUNT_MIN) else {
        return Ok(None);
    };
    let mut samples = Vec::new();
    let mut lens = Vec::new();
    for n in 0..TRAIN_COUNT {
        let bytes = page(n * count / TRAIN_COUNT)?;
        lens.push(bytes.len());
        samples.extend(bytes);
    }
    let Some(bytes) = Dictionary::train(&samples, &lens, LEN) else { return Ok(None) };
    drop(samples);
    let dictionary = Dictionary::new(bytes);
    let sector = ashift.sector_len();
    let policy =
        Policy { sector, min_savings: settings.min_savings, embed_limit: EMBEDDED_LEN_MAX };
    let taken = |bytes: &[u8], dictionary: Option<&Dictionary>| {
        let mut stored = Vec::new();
        let how = codec::with_codec(|codec| {
            codec.encode_with(compression, bytes, &policy, &mut stored, dictionary)
        });
        let (how, _) = how.map_err(|error| Error::encoding("page", error))?;
        let len = if how == Encoded::Raw { bytes.len() } else { stored.len() };
        Ok::<_, Error>((len.div_ceil(sector) * sector) as u64)
    };
    let (mut without, mut with) = (0, 0);
    for n in 0..TEST_COUNT {
        // Pages between those used for training.
        let bytes = page((n * count / TEST_COUNT + count / TRAIN_COUNT / 2).min(count - 1))?;
        without += taken(&bytes, None)?;
        with += taken(&bytes, Some(&dictionary))?;
    }
    let pays = with + without / GAIN_PART_MIN < without;
    Ok(pays.then(|| Arc::new(dictionary)))
}

/// Stores the result of training in a transaction, for data written to the file from now on.
pub(in crate::pool) fn adopt(
    txn: &mut Txn,
    file: FileId,
    dictionary: Option<&Arc<Dictionary>>,
    settings: &Settings,
) -> Result<()> {
    entries::check_there(txn, file)?;
    let number = match dictionary {
        Some(dictionary) => txn.add_dictionary(dictionary, settings.checksum)?,
        None => 0,
    };
    entries::set_dictionary(txn, file, number)
}

impl Pool {
    /// Trains a dictionary for a file with these settings from its committed pages. With `replace`,
    /// does so even if there is one already or none paid off before. Returns whether there is a new
    /// one.
    pub fn train_dictionary(
        &self,
        file: FileId,
        settings: &Settings,
        replace: bool,
        patience: Patience,
    ) -> Result<bool> {
        if purpose(settings).is_none()
            || !replace && self.read(|source| entries::dictionary(source, file))?.is_some()
        {
            return Ok(false);
        }
        let count = self.attributes(file)?.len / UNIT_LEN;
        if count < PAGE_COUNT_MIN {
            // The file may still grow.
            return Ok(false);
        }
        let mut page = |index| {
            self.read(|source| {
                let mut bytes = vec![0; UNIT_LEN as usize];
                read_range(source, file, &mut bytes, index * UNIT_LEN)?;
                Ok(bytes)
            })
        };
        let dictionary = train(count, &mut page, settings, self.store().ashift())?;
        let mut txn = self.store().begin_with(settings.checksum, patience)?;
        if !replace && entries::dictionary(&mut txn, file)?.is_some() {
            // Another thread or process was faster.
            return Ok(false);
        }
        adopt(&mut txn, file, dictionary.as_ref(), settings)?;
        txn.commit(Durability::Visible)?;
        Ok(dictionary.is_some())
    }

    /// Removes the dictionaries without references, and bases that nothing differs from any more.
    /// If damage hides what refers to them, all of them stay. Memory is needed only for the numbers
    /// of those in use.
    pub fn remove_unused_dictionaries(&self, patience: Patience) -> Result<()> {
        if self.read(|source| Ok(source.is_empty(TreeId::Dictionaries)))? {
            return Ok(());
        }
        let walked = self.read(|source| {
            let mut used = HashSet::new();
            add_used(source.store, source.state, Txg(0), &mut used)?;
            Ok((source.state.txg(), used))
        });
        let (walked, mut used) = match walked {
            Err(error) if error.is_corruption() => return Ok(()),
            walked => walked?,
        };
        let settings = self.settings(crate::pool::ROOT)?;
        let mut txn = self.store().begin_with(settings.checksum, patience)?;
        let state = self.store().state();
        if txn.txg() != state.txg().next() {
            return Ok(());
        }
        // What was committed since may refer to others.
        match add_used(self.store(), &state, walked, &mut used) {
            Err(error) if error.is_corruption() => return Ok(()),
            added => added?,
        }
        used.extend(entries::dictionaries_in_use(&mut txn)?);
        let numbered = match txn.numbered() {
            Err(error) if error.is_corruption() => return Ok(()),
            numbered => numbered?,
        };
        // A base may differ from another one itself.
        let of_used = numbered.iter().filter(|(number, _)| used.contains(number));
        let needed: Vec<u32> = of_used.map(|(_, entry)| entry.dictionary).collect();
        used.extend(needed);
        for (number, _) in numbered {
            if !used.contains(&number) {
                txn.remove_dictionary(number)?;
            }
        }
        txn.commit(Durability::Visible).map(drop)
    }
}

/// Adds the numbers that records and patches name, in nodes newer than a txg.
fn add_used(store: &Store, state: &State, newer: Txg, used: &mut HashSet<u32>) -> Result<()> {
    for tree in [TreeId::Map, TreeId::Patches] {
        let Some(root) = &state.superblock.roots[tree] else { continue };
        walk_tree(store, tree, root, newer, &mut |met| match met {
            Met::Entry(_, _, value) => {
                used.insert(data_pointer(value)?.dictionary);
                Ok(())
            }
            Met::Node(..) => Ok(()),
            // The damaged subtree may refer to any dictionary.
            Met::Damage(_, error) => Err(error),
        })?;
    }
    Ok(())
}
