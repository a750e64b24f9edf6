//! Versions of a database: copies of several days or places share the records from which they
//! differ by little.
//!
//! Most pages of a database stay where they are from one day to the next. Records that stay equal
//! are shared when they are stored, if the pool deduplicates. A record of which a few rows changed
//! becomes a pointer to that of another version, with patches over it: as if somebody had copied
//! that version within the pool and changed the rows. If more has changed, it becomes a difference
//! from that of another version, which is compressed after it (`store/bases.rs`); patches can lie
//! over the record of a difference as well. So whoever reads a page decodes two records at most.
//!
//! ```text
//! families   which databases begin alike
//! gather     the slots of a family at the same place of its files (`slots.rs`)
//! match      some records stay; each of the others gets patches over one of them (`patches.rs`),
//!            or becomes a difference from one (`differences.rs`), whatever is less (`matching.rs`)
//! exchange   in a transaction, replace those that nobody has changed meanwhile
//! ```
//!
//! The version that was changed last keeps its own records, since it is the one that may be in use.
//! So do records that are shared already: versions differ from one of them until too much has
//! changed since; then the next one stays whole, and others differ from that.

mod differences;
pub(super) mod families;
mod matching;
mod patches;
mod slots;

use std::collections::HashMap;
use std::ops::Range;

use self::differences::Difference;
use self::families::{Front, Versions, families_of};
use self::matching::{Becomes, Exchange, matched};
use self::patches::Patch;
use self::slots::{Slot, slots_in, versions_of};
use super::sketch::Sketch;
use super::{LOOK_COUNT, Optimisation, STEP_WAIT};
use crate::error::{Error, Result};
use crate::pool::extents::change::{add_file_extent, remove_file_extents, share};
use crate::pool::extents::{FileExtent, next_record_start, read_range, record_at};
use crate::pool::namespace::entries;
use crate::pool::namespace::props::Settings;
use crate::pool::write::jobs::{WriteTarget, store_encoded};
use crate::pool::write::workers::Workers;
use crate::store::format::pointer::Pointer;
use crate::store::format::refs::ContentHash;
use crate::store::trees::TreeId;
use crate::store::{Durability, Encoding, Patience, Txn};
use crate::units::FileId;

/// How much of each file a step looks at, unless a record is longer.
const WINDOW_LEN: u64 = 1 << 20;
/// How many records are exchanged in one transaction, for which writers wait; a few more at most.
const EXCHANGED_MAX: usize = 1024;

impl Optimisation {
    /// Begins to look for versions of databases.
    pub(super) fn begin_versions(&mut self) {
        let files = self.files.iter().map(|(file, _)| *file);
        let new = files.filter(|file| self.databases.contains(file)).collect();
        self.versions = Versions { new, ..Versions::default() };
    }

    /// Returns whether there is more to do.
    pub(super) fn versions_step(&mut self) -> Result<bool> {
        if !self.versions.new.is_empty() {
            self.look_at_fronts()?;
            if self.versions.new.is_empty() {
                self.find_families();
            }
            return Ok(true);
        }
        let Some(family) = self.versions.families.front() else { return Ok(false) };
        let at = self.versions.at;
        let next = self.pool.read(|source| {
            let mut next: Option<u64> = None;
            for file in &family.files {
                let start = match record_at(source, *file, at)? {
                    Some(record) if record.start == at => Some(at),
                    _ => next_record_start(source, *file, at, u64::MAX)?,
                };
                next = next.into_iter().chain(start).min();
            }
            Ok(next)
        })?;
        let end = next.map_or(u64::MAX, |start| start.saturating_add(WINDOW_LEN));
        let passed_len = family.len_in(&(at..end));
        match next {
            Some(start) => {
                self.match_window(&(start..end))?;
                self.versions.at = end;
            }
            None => {
                self.versions.families.pop_front();
                self.versions.at = 0;
            }
        }
        self.report.compared_len += passed_len;
        Ok(true)
    }

    /// Looks at what some of the databases begin with.
    fn look_at_fronts(&mut self) -> Result<()> {
        let count = self.versions.new.len().min(LOOK_COUNT);
        let some: Vec<FileId> = self.versions.new.iter().take(count).copied().collect();
        let pool = &self.pool;
        let workers = Workers::beside_others(pool.store(), pool.options().threads());
        let looked_at = workers.at_most(count).run(count, |index| {
            let file = some[index];
            let found = pool.read(|source| {
                let attributes = entries::attributes(source, file)?;
                let Some(record) = record_at(source, file, 0)? else { return Ok(None) };
                let mut bytes = vec![0; record.span().min(attributes.len) as usize];
                read_range(source, file, &mut bytes, 0)?;
                let sketch = Sketch::of(&bytes);
                let entries::Attributes { len, modified_ns, .. } = attributes;
                Ok(Some(Front { file, len, modified_ns, sketch }))
            });
            match found {
                Err(Error::NotFound { .. }) => Ok(None),
                Err(error) if error.is_corruption() => Ok(None),
                found => found,
            }
        })?;
        self.versions.looked_at.extend(looked_at.into_iter().flatten());
        self.versions.new.drain(..count);
        Ok(())
    }

    /// Puts databases together, once all of them were looked at.
    fn find_families(&mut self) {
        let families = families_of(std::mem::take(&mut self.versions.looked_at));
        let in_families: u64 = families.iter().map(|family| family.len_in(&(0..u64::MAX))).sum();
        self.report.compared_len = self.report.database_len.saturating_sub(in_families);
        for file in families.iter().flat_map(|family| &family.files[1..]) {
            // Their pointers can be packed: they are not in use as a database is.
            self.databases.remove(file);
        }
        self.versions.families = families.into();
    }

    /// Replaces records that begin in a window of the files of a family.
    fn match_window(&mut self, window: &Range<u64>) -> Result<()> {
        let Some(family) = self.versions.families.front() else { return Ok(()) };
        let pool = &self.pool;
        let places = pool.read(|source| {
            let places = slots_in(source, &family.files, window)?.into_iter();
            places
                .map(|slots| versions_of(source, slots, family.files[0]))
                .collect::<Result<Vec<_>>>()
        })?;
        let workers = Workers::beside_others(pool.store(), pool.options().threads());
        let all = workers
            .at_most(places.len())
            .run(places.len(), |index| matched(pool, self.goal.compression, &places[index]))?;
        let (mut exchanges, mut held_len, mut damaged) = (Vec::new(), 0, Vec::new());
        for found in all {
            exchanges.extend(found.exchanges);
            held_len += found.held_len;
            damaged.extend(found.damaged);
        }
        let mut made = HashMap::new();
        while !exchanges.is_empty() {
            let (mut count, mut slots) = (0, 0);
            while slots < EXCHANGED_MAX && count < exchanges.len() {
                slots += exchanges[count].slots.len();
                count += 1;
            }
            self.exchange_versions(&exchanges[..count], &mut made)?;
            exchanges.drain(..count);
        }
        // Not before: a step that found the pool busy is repeated.
        self.report.held_len += held_len;
        self.report.damaged.extend(damaged);
        Ok(())
    }

    /// Replaces records in one transaction, and adds the differences that it makes of them.
    fn exchange_versions(&mut self, exchanges: &[Exchange], made: &mut Made) -> Result<()> {
        let store = self.pool.store();
        // What was freed before can then be used.
        store.make_durable()?;
        let mut txn = store.begin_with(self.checksum, Patience::Within(STEP_WAIT))?;
        txn.note_bulk();
        let mut is_any = false;
        for exchange in exchanges {
            is_any |= self.exchange_version(&mut txn, exchange, made)?;
        }
        // Without an exchange, nothing is committed.
        if is_any { txn.commit(Durability::Visible).map(drop) } else { Ok(()) }
    }

    /// Replaces the record of a version, unless anything has changed since it was matched.
    fn exchange_version(
        &mut self,
        txn: &mut Txn,
        exchange: &Exchange,
        made: &mut Made,
    ) -> Result<bool> {
        let Exchange { slots, .. } = exchange;
        let count = slots.len() as u64;
        let base = match exchange.is_base_made {
            true => made.get(&place_of(&exchange.base)),
            false => Some(&exchange.base),
        };
        let mut base = base.cloned();
        if let Some(slot) = &base
            && !slot.has_same_record(txn)?
        {
            base = None;
        }
        for slot in slots {
            if !slot.is_there(txn)? {
                base = None;
            }
        }
        let Some(base) = base else {
            self.report.overtaken += count;
            return Ok(false);
        };
        for slot in slots {
            if slot.is_held(txn)? {
                // A snapshot was taken in the meantime.
                self.report.held_len += slot.len as u64;
                return Ok(false);
            }
        }
        let ashift = txn.store().ashift();
        txn.provision(exchange.sectors(ashift).into_iter())?;
        match &exchange.becomes {
            Becomes::Patched(patches) => self.put_patched(txn, &base, exchange, patches)?,
            Becomes::Difference(difference, hash) => {
                let record = self.put_difference(txn, &base, exchange, difference, *hash)?;
                let slot = Slot { record, patches: Vec::new(), ..slots[0].clone() };
                made.insert(place_of(&slot), slot);
                self.report.version_differences += count;
            }
        }
        self.report.versions += count;
        self.report.versions_len += slots.iter().map(|slot| slot.len as u64).sum::<u64>();
        self.report.versions_before += exchange.allocated;
        self.report.versions_after += exchange.cost;
        Ok(true)
    }

    /// Gives slots the record of a base, with patches over it.
    fn put_patched(
        &self,
        txn: &mut Txn,
        base: &Slot,
        Exchange { slots, checksum, .. }: &Exchange,
        patches: &[Patch],
    ) -> Result<()> {
        let mut stored: Vec<(u64, Pointer)> = Vec::new();
        for (index, slot) in slots.iter().enumerate() {
            clear(txn, slot)?;
            let (file, start) = (slot.file, slot.record.start);
            let record = share(txn, &base.record.pointer)?;
            add_file_extent(txn, TreeId::Map, file, start, &record)?;
            if index == 0 {
                let settings = Settings { checksum: *checksum, ..self.pool.settings(file)? };
                let target = WriteTarget::new(file, settings, self.pool.options());
                for Patch { job, encoded, len } in patches {
                    let pointer = store_encoded(txn, &target, job, encoded)?;
                    let pointer = Pointer { len: *len, span_log2: 0, ..pointer };
                    add_file_extent(txn, TreeId::Patches, file, job.start, &pointer)?;
                    stored.push((job.start, pointer));
                }
                continue;
            }
            for (start, pointer) in &stored {
                let patch = share(txn, pointer)?;
                add_file_extent(txn, TreeId::Patches, file, *start, &patch)?;
            }
        }
        Ok(())
    }

    /// Gives slots a record that is a difference from that of a base, and returns that of the
    /// first.
    fn put_difference(
        &mut self,
        txn: &mut Txn,
        base: &Slot,
        Exchange { slots, checksum, .. }: &Exchange,
        Difference { stored, encoding }: &Difference,
        hash: Option<ContentHash>,
    ) -> Result<FileExtent> {
        let (number, _) = txn.base_at(&base.record.pointer)?;
        let encoding = Encoding { dictionary: number, ..*encoding };
        let len = slots[0].len as u32;
        let pointer = txn.store_extent(stored, encoding, len, *checksum)?;
        let pointer = Pointer { span_log2: slots[0].record.pointer.span_log2, ..pointer };
        if let Some(hash) = hash {
            txn.add_content(&pointer, hash)?;
        }
        for (index, slot) in slots.iter().enumerate() {
            clear(txn, slot)?;
            let record = if index == 0 { pointer.clone() } else { share(txn, &pointer)? };
            add_file_extent(txn, TreeId::Map, slot.file, slot.record.start, &record)?;
        }
        Ok(FileExtent { start: slots[0].record.start, pointer })
    }
}

/// The records that exchanges have made, by their places.
type Made = HashMap<(FileId, u64), Slot>;

fn place_of(slot: &Slot) -> (FileId, u64) {
    (slot.file, slot.record.start)
}

/// Removes what is in a slot.
fn clear(txn: &mut Txn, slot: &Slot) -> Result<()> {
    for tree in [TreeId::Patches, TreeId::Map] {
        remove_file_extents(txn, tree, slot.file, slot.record.start, slot.record.slot_end())?;
    }
    Ok(())
}
