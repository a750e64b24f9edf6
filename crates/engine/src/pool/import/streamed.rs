//! Files of any length, whose content comes piece by piece.

use super::items::{Item, Open, Place};
use super::{Import, WHOLE_LEN_MAX};
use crate::error::{Error, Result};
use crate::pool::ROOT;
use crate::pool::extents::FILE_LEN_MAX;
use crate::pool::namespace::entries::{self, Attributes, Kind, Xattr};
use crate::pool::namespace::nameless;
use crate::pool::write::chunks;
use crate::units::FileId;

/// Longer files are written in parts of this length, or of one record if that is longer.
const PART_LEN: usize = 1 << 20;

impl Import<'_> {
    /// Begins a file of any length; calls of [`Import::write`] supply its content.
    pub fn begin_file(
        &mut self,
        parent: FileId,
        name: &[u8],
        attributes: &Attributes,
        xattrs: &[Xattr],
    ) -> Result<()> {
        entries::check_name(name)?;
        let parent = self.actual(parent);
        let old = match self.new_parents.contains_key(&parent) {
            true => None,
            false => self.pool.lookup_in(parent, name)?,
        };
        let like = old.filter(|old| old.kind == Kind::File).map_or(parent, |old| old.file);
        let settings = self.settings(like)?;
        self.open = Some(Open {
            at: Place::new(parent, name, attributes, xattrs, Kind::File),
            settings,
            file: None,
            len: 0,
            is_chunked: false,
            buffer: Vec::new(),
            whole_len_max: WHOLE_LEN_MAX.max(settings.record_len as usize),
            part_len: PART_LEN.max(settings.record_len as usize),
        });
        Ok(())
    }

    /// Appends content to the file that was begun.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let Some(open) = &mut self.open else {
                return Err(Error::Invalid("no file was begun; call begin_file first".into()));
            };
            let n = bytes.len().min(open.room() as usize);
            open.buffer.extend_from_slice(&bytes[..n]);
            bytes = &bytes[n..];
            if open.room() == 0 && !bytes.is_empty() {
                self.push_parts(false)?;
            }
        }
        Ok(())
    }

    /// Appends zeros to the file that was begun. However many they are, they take no more time and
    /// space than a part of the file.
    pub fn write_zeros(&mut self, len: u64) -> Result<()> {
        let mut left = len;
        if let Some(open) = &self.open {
            if open.end().checked_add(len).is_none_or(|end| end > FILE_LEN_MAX) {
                return Err(Error::Invalid("the file would be too long".into()));
            }
            let (room, part_len) = (open.room(), open.part_len as u64);
            if left.saturating_sub(room) >= part_len {
                // What follows begins where a slot does.
                self.write_few_zeros(room)?;
                self.push_parts(true)?;
                left -= room;
                if let Some(open) = &mut self.open {
                    open.len += left / part_len * part_len;
                    left %= part_len;
                }
            }
        }
        self.write_few_zeros(left)
    }

    fn write_few_zeros(&mut self, mut len: u64) -> Result<()> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        while len > 0 {
            let n = len.min(ZEROS.len() as u64);
            self.write(&ZEROS[..n as usize])?;
            len -= n;
        }
        Ok(())
    }

    /// Queues the gathered content of the open file. Unless that is its `end`, what may become part
    /// of a longer chunk stays.
    fn push_parts(&mut self, end: bool) -> Result<()> {
        let Some(mut open) = self.open.take() else { return Ok(()) };
        let (parent, settings) = (open.at.parent, open.settings);
        let file = match open.file {
            Some(file) => file,
            None => {
                if self.filling.is_none() {
                    let checksum = self.settings(ROOT)?.checksum;
                    self.filling = Some(nameless::begin_filling(self.pool.store(), checksum)?);
                }
                let file = self.new_id()?;
                self.add(Item::Begin { file, parent }, 0)?;
                open.is_chunked = chunks::are_wanted(&settings, &open.buffer);
                file
            }
        };
        open.file = Some(file);
        let mut bytes = std::mem::take(&mut open.buffer);
        let lens = match open.is_chunked {
            true => chunks::cut(settings.record_len as usize, &bytes, end),
            false => bytes.chunks(open.part_len).map(<[u8]>::len).collect(),
        };
        let mut lens = lens.into_iter().peekable();
        while lens.peek().is_some() {
            let (mut len, mut chunks) = (0, Vec::new());
            while let Some(chunk) = lens.next_if(|chunk| len == 0 || len + chunk <= open.part_len) {
                len += chunk;
                chunks.extend(open.is_chunked.then_some(chunk));
            }
            let rest = bytes.split_off(len);
            let offset = open.len;
            open.len += len as u64;
            self.add(Item::Part { file, settings, offset, bytes, chunks }, len)?;
            bytes = rest;
        }
        open.buffer = bytes;
        self.open = Some(open);
        Ok(())
    }

    /// Ends the file, which then gets its name.
    pub fn end_file(&mut self) -> Result<()> {
        if self.open.as_ref().is_some_and(|open| open.file.is_some() && !open.buffer.is_empty()) {
            self.push_parts(true)?;
        }
        let Some(open) = self.open.take() else {
            return Err(Error::Invalid("no file was begun; call begin_file first".into()));
        };
        let Open { at, file, len, buffer, .. } = open;
        match file {
            Some(file) => self.add(Item::End { file, at, len }, 0),
            None => {
                let len = buffer.len();
                self.add(Item::File { at, content: buffer }, len)
            }
        }
    }

    /// Abandons the file that was begun. An existing file with its name remains.
    pub fn abandon_file(&mut self) -> Result<()> {
        let Some(file) = self.open.take().and_then(|open| open.file) else { return Ok(()) };
        self.flush()?;
        // It is gone if it was refused.
        self.pool.edit(0, |edit| edit.remove_file_if_there(file))
    }
}
