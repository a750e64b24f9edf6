//! The existing names of a directory of the pool, merged with those of the source.

use std::collections::VecDeque;

use hardpack_engine::FileId;
use hardpack_engine::pool::{Attributes, DirEntry, Pool};

use crate::failure::Reason;

/// The number of names read at a time.
const PAGE_LEN: usize = 256;

/// An existing entry and its attributes.
pub type Old = (DirEntry, Attributes);

/// Iterates over the names of a directory in byte order.
pub struct Existing<'p> {
    directory: Option<(&'p Pool, FileId)>,
    after: Option<Vec<u8>>,
    page: VecDeque<Old>,
}

impl<'p> Existing<'p> {
    /// The entries of a directory that may not exist yet.
    pub fn of(pool: Option<&'p Pool>, directory: Option<FileId>) -> Existing<'p> {
        let page = VecDeque::new();
        Existing { directory: pool.zip(directory), after: None, page }
    }

    fn fill(&mut self) -> Result<(), Reason> {
        if !self.page.is_empty() {
            return Ok(());
        }
        let Some((pool, directory)) = self.directory else { return Ok(()) };
        let page = pool.list_with_attributes(directory, self.after.as_deref(), PAGE_LEN)?;
        match page.last() {
            Some((last, _)) => self.after = Some(last.name.clone()),
            None => self.directory = None,
        }
        self.page = page.into();
        Ok(())
    }

    /// Returns the entry of this name, which must come after that of the last call. The names in
    /// between go to `gone`.
    pub fn take(&mut self, name: &[u8], gone: &mut Vec<Old>) -> Result<Option<Old>, Reason> {
        loop {
            self.fill()?;
            match self.page.front() {
                Some((entry, _)) if entry.name[..] < *name => gone.extend(self.page.pop_front()),
                Some((entry, _)) if entry.name == name => return Ok(self.page.pop_front()),
                _ => return Ok(None),
            }
        }
    }

    /// Moves the remaining names to `gone`.
    pub fn rest(&mut self, gone: &mut Vec<Old>) -> Result<(), Reason> {
        loop {
            self.fill()?;
            if self.page.is_empty() {
                return Ok(());
            }
            gone.extend(self.page.drain(..));
        }
    }
}
