//! `copy_file_range`: copies within the mount share what is stored, where that is possible.

use std::ops::Range;

use fuser::Errno;
use hardpack_engine::{Error, FileId};

use super::Tree;
use super::content::check_end;
use crate::attributes::now;
use crate::errno::Answer;

/// How much is copied at a time.
const PIECE_LEN: u64 = 1 << 20;
/// Shorter ranges are copied: what is shared is committed at once, which costs more than a copy
/// that joins the next commit.
const SHARED_LEN_MIN: u64 = 256 << 10;
/// How much is shared in one commit, so that others need not wait long.
const SHARED_LEN_MAX: u64 = 1 << 30;

impl Tree {
    /// Copies bytes from one file to another, or within one. Returns how many there were. The
    /// source may be in a snapshot.
    pub fn copy(
        &self,
        (source, from, from_offset): (&Tree, FileId, u64),
        (to, to_offset): (FileId, u64),
        len: u64,
    ) -> Answer<u64> {
        self.refuse_read_only()?;
        let len = len.min(source.len(from)?.saturating_sub(from_offset)).min(SHARED_LEN_MAX);
        check_end(to_offset.saturating_add(len))?;
        let range = from_offset..from_offset + len;
        let shared = match len >= SHARED_LEN_MIN {
            true => self.share(source, from, &range, (to, to_offset))?,
            false => range.start..range.start,
        };
        let head = self.copy_bytes((source, from), range.start..shared.start, (to, to_offset))?;
        if head < shared.start - range.start {
            return Ok(head);
        }
        let passed = shared.end - range.start;
        let tail =
            self.copy_bytes((source, from), shared.end..range.end, (to, to_offset + passed))?;
        Ok(passed + tail)
    }

    /// Returns the length of a file, with the changes that are not committed.
    pub fn len(&self, id: FileId) -> Answer<u64> {
        Ok(match self.open.get(id) {
            Some(file) => file.len()?,
            None => self.handle(id)?.len()?,
        })
    }

    /// Shares what it can of a range, and returns that part of it.
    fn share(
        &self,
        source: &Tree,
        from: FileId,
        range: &Range<u64>,
        (to, to_offset): (FileId, u64),
    ) -> Answer<Range<u64>> {
        // The kernel copies only between files that are open.
        let file = self.open.get(to).ok_or(Errno::EBADF)?;
        let snapshot = source.snapshot.as_ref().map(|(scope, name, txg)| (*scope, &name[..], *txg));
        let range = range.clone();
        let nothing = range.start..range.start;
        let done = self.group.share((from, range), snapshot, (&file, to_offset), now());
        match done {
            Ok(part) => {
                self.flusher.note_changed();
                Ok(part)
            }
            // The snapshot has another name by now or is gone, or somebody else has the pool.
            Err(Error::NotFound { .. } | Error::Busy) => Ok(nothing),
            Err(error) => {
                self.note_error(&error);
                Err(error.into())
            }
        }
    }

    fn copy_bytes(
        &self,
        (source, from): (&Tree, FileId),
        range: Range<u64>,
        (to, to_offset): (FileId, u64),
    ) -> Answer<u64> {
        let mut at = range.start;
        while at < range.end {
            let n = (range.end - at).min(PIECE_LEN) as usize;
            let bytes = source.read(from, at, n)?;
            if bytes.is_empty() {
                break;
            }
            self.write(to, &bytes, to_offset + (at - range.start))?;
            at += bytes.len() as u64;
        }
        Ok(at - range.start)
    }
}
