//! Copies a log in parts where the pool has no room for all of it at once.
//!
//! What a commit replaces can be used again only behind it, so a checkpoint needs room for all that
//! it copies. On a disk that is full, often of that very log, there may be less. Then each part is
//! a commit of its own, durable, so that the next one has the room of what it replaces.
//!
//! Each part ends where a transaction ends, so that each state of the pool has a whole one. Nobody
//! else notices: a checkpoint copies no frames that are newer than what any reader reads, and lets
//! in nobody who reads only the database. If no more of it can be copied, the parts before count.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::io;

use hardpack_engine::store::Durability;

use super::log::{FrameHeader, Log};
use crate::ffi::*;
use crate::main_file::MainFile;
use crate::main_file::room::{Backoff, ROOM_WANTED};

/// How much of a log is one part at most, in bytes. More would be written ahead of the commit.
const PART_LEN_MAX: u64 = 8 << 20;
/// What part of the free space a part of the log may take at most. Without some that is left, no
/// record can be written anew, and then patches take more and more.
const ROOM_PART: u64 = 3;
/// How often to try a transaction that nothing can make smaller. An attempt that fails makes the
/// next one look for room (`store/txn/room.rs` of the engine). More follow as long as patches can
/// be folded.
const ATTEMPTS: u32 = 2;

/// Frames behind those that are in the database already.
struct Frames {
    headers: Vec<FrameHeader>,
    /// The number of the last frame before them.
    before: u32,
}

impl Frames {
    /// Reads the headers of these frames.
    fn read(log: &Log, before: u32, last: u32) -> io::Result<Frames> {
        let headers =
            (before + 1..=last).map(|frame| log.header_of(frame)).collect::<Result<_, _>>()?;
        Ok(Frames { headers, before })
    }

    /// Whether they end with a transaction.
    fn is_whole(&self) -> bool {
        self.headers.last().is_some_and(|last| last.page_count > 0)
    }

    /// Returns how many frames are a part that begins with the one at this index: as many whole
    /// transactions as have at most `count_max` frames, or else one.
    fn part_at(&self, start: usize, count_max: usize) -> usize {
        let mut ends = (start..self.headers.len()).filter(|&at| self.headers[at].page_count > 0);
        let Some(first) = ends.next() else { return self.headers.len() - start };
        ends.take_while(|end| end - start < count_max).last().unwrap_or(first) + 1 - start
    }

    /// Returns the pages of a part, each with its newest frame there.
    fn pages_of(&self, start: usize, count: usize) -> BTreeMap<u32, u32> {
        // What lies behind the end of the database there is cut off, or a later part has it anew.
        let page_count = self.headers[start + count - 1].page_count;
        (self.before + 1 + start as u32..)
            .zip(&self.headers[start..start + count])
            .map(|(frame, header)| (header.page, frame))
            .filter(|(page, _)| *page <= page_count)
            .collect()
    }

    /// Returns how many frames are in the database already, up to the end of a transaction, given
    /// which frames have what the database has of their pages. SQLite forgets that when nobody has
    /// the log open, and to copy what is older than the database would mix the two.
    fn count_there(&self, is_there: &[bool]) -> usize {
        // Of each page, its frames up to the transaction that is looked at.
        let mut frames_of = BTreeMap::<u32, Vec<usize>>::new();
        for (index, header) in self.headers.iter().enumerate() {
            frames_of.entry(header.page).or_default().push(index);
        }
        let newest = frames_of.iter().filter_map(|(page, of)| Some((*page, *of.last()?)));
        let mut differing: BTreeSet<u32> =
            newest.filter(|(_, index)| !is_there[*index]).map(|(page, _)| page).collect();
        for (index, header) in self.headers.iter().enumerate().rev() {
            let differs = differing.first().is_some_and(|first| *first <= header.page_count);
            if header.page_count > 0 && !differs {
                return index + 1;
            }
            let Some(of) = frames_of.get_mut(&header.page) else { continue };
            of.pop();
            match of.last() {
                Some(before) if !is_there[*before] => drop(differing.insert(header.page)),
                _ => drop(differing.remove(&header.page)),
            }
        }
        0
    }
}

impl MainFile {
    /// Copies what the checkpoint was to copy, after an attempt at all of it has failed for lack of
    /// space.
    pub(super) fn copy_in_parts(&mut self) -> c_int {
        // Their cause is the same for the parts.
        self.drop_changes();
        // SQLite itself asks for a checkpoint after each transaction behind a long log.
        if !self.may_copy_in_parts() && !self.has_log_lock {
            return SQLITE_FULL;
        }
        let before = self.begun.backfilled;
        let code = self.copy_each_part();
        self.note_parts(code == SQLITE_FULL && self.begun.backfilled == before);
        code
    }

    fn copy_each_part(&mut self) -> c_int {
        let Some(log) = self.own_log().ok().flatten() else { return SQLITE_FULL };
        if !matches!(self.is_piece(), Ok(false)) {
            return SQLITE_FULL;
        }
        let (before, last) = (self.begun.backfilled, self.begun.last);
        let frames = match Frames::read(&log, before, last) {
            Ok(frames) if frames.is_whole() => frames,
            Ok(_) => return SQLITE_FULL,
            Err(_) => return SQLITE_IOERR_READ,
        };
        // With `synchronous=OFF` SQLite has not done this, and what is durable in the database must
        // be so in the log.
        if log.sync().is_err() {
            return SQLITE_IOERR_FSYNC;
        }
        let mut start = match self.is_there(&log, &frames) {
            Ok(is_there) => frames.count_there(&is_there),
            Err(code) => return code,
        };
        self.begun.backfilled = before + start as u32;
        let (mut attempts, mut count_max) = (0, usize::MAX);
        let mut folding = Backoff::default();
        while start < frames.headers.len() {
            let len_max = PART_LEN_MAX.min(self.room() / ROOM_PART);
            count_max = count_max.min((len_max / log.page_len()) as usize).max(1);
            let count = frames.part_at(start, count_max);
            let pages = frames.pages_of(start, count);
            let code = self.copy_part(&log, &pages);
            if code == SQLITE_FULL {
                self.drop_changes();
            }
            match code {
                SQLITE_OK => {
                    start += count;
                    self.begun.backfilled = before + start as u32;
                    (count_max, attempts) = (count_max.saturating_mul(2), 0);
                    if folding.is_due() {
                        let freed = self.make_room(pages.len() as u64 * log.page_len());
                        folding.note(freed == 0);
                    }
                }
                SQLITE_FULL if frames.part_at(start, 0) < count => count_max = count / 2,
                SQLITE_FULL => {
                    let has_made_room = self.make_room(ROOM_WANTED) > 0;
                    attempts += 1;
                    if attempts >= ATTEMPTS && !has_made_room {
                        return code;
                    }
                }
                code => return code,
            }
        }
        self.begun.is_all_there = true;
        SQLITE_OK
    }

    /// Returns which frames have what the database has of their pages.
    fn is_there(&self, log: &Log, frames: &Frames) -> Result<Vec<bool>, c_int> {
        let Some(file) = &self.file else { return Err(SQLITE_FULL) };
        let len = log.page_len() as usize;
        let (mut theirs, mut own) = (vec![0; len], vec![0; len]);
        let numbered = (frames.before + 1..).zip(&frames.headers);
        numbered
            .map(|(frame, header)| {
                let read = log.read(frame, header.page, &mut theirs);
                read.map_err(|_| SQLITE_IOERR_READ)?;
                let at = u64::from(header.page - 1) * log.page_len();
                let found = file.read_committed_at(&mut own, at);
                let found = found.map_err(|error| self.code(&error, SQLITE_IOERR_READ))?;
                Ok(found == len && own == theirs)
            })
            .collect()
    }

    /// Commits a part.
    fn copy_part(&mut self, log: &Log, pages: &BTreeMap<u32, u32>) -> c_int {
        match self.copy_pages(log, pages) {
            SQLITE_OK => self.commit(Durability::Durable, self.checkpoint_busy()),
            code => code,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Transactions of a log, each with its pages and the length of the database behind it.
    fn frames_of(transactions: &[(&[u32], u32)]) -> Frames {
        let headers = transactions.iter().flat_map(|(pages, page_count)| {
            pages.iter().enumerate().map(|(index, page)| FrameHeader {
                page: *page,
                page_count: if index + 1 == pages.len() { *page_count } else { 0 },
            })
        });
        Frames { headers: headers.collect(), before: 0 }
    }

    const LOG: &[(&[u32], u32)] =
        &[(&[1, 2, 9], 9), (&[2, 3], 9), (&[1, 4], 4), (&[2], 4), (&[1, 7, 3], 7), (&[2, 1], 7)];

    /// Which frames have what a database has that is as far as this, where each frame has bytes of
    /// its own.
    fn is_there(frames: &Frames, count: usize) -> Vec<bool> {
        let newest = frames.pages_of(0, count);
        let is_newest =
            |index: usize| newest.get(&frames.headers[index].page) == Some(&(index as u32 + 1));
        (0..frames.headers.len()).map(|index| index < count && is_newest(index)).collect()
    }

    #[test]
    fn how_far_a_database_is_shows_in_its_pages() {
        let frames = frames_of(LOG);
        let mut count = 0;
        assert_eq!(frames.count_there(&vec![false; frames.headers.len()]), 0);
        for (pages, _) in LOG {
            count += pages.len();
            assert_eq!(frames.count_there(&is_there(&frames, count)), count);
        }
    }

    /// Where several frames of a page have the same, it may be further than it was.
    #[test]
    fn what_is_the_same_counts() {
        let frames = frames_of(&[(&[1, 2], 2), (&[2], 2), (&[1], 2)]);
        assert_eq!(frames.count_there(&[true, true, true, true]), 4);
        assert_eq!(frames.count_there(&[true, true, true, false]), 3);
        assert_eq!(frames.count_there(&[true, false, true, false]), 3);
        assert_eq!(frames.count_there(&[false, true, true, true]), 4);
        assert_eq!(frames.count_there(&[false, true, false, false]), 0);
    }

    #[test]
    fn parts_end_with_transactions() {
        let frames = frames_of(LOG);
        assert_eq!([0, 1, 5, 6, 99].map(|max| frames.part_at(0, max)), [3, 3, 5, 5, 13]);
        assert_eq!([0, 3, 4, 99].map(|max| frames.part_at(5, max)), [2, 3, 3, 8]);
        // Behind the third transaction there is no page 9 any more, and so not before its end.
        assert!(frames.pages_of(0, 5).contains_key(&9) && !frames.pages_of(0, 7).contains_key(&9));
    }
}
