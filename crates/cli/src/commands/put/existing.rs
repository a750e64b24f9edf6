//! The names that a directory of the pool has, beside which those of the source are gone through.

use std::collections::VecDeque;

use hardpack_engine::FileId;
use hardpack_engine::pool::{Attributes, DirEntry, Pool};

use crate::failure::Reason;

/// How many names are looked at together.
const PAGE_LEN: usize = 256;

/// A name with what it stands for.
pub type Old = (DirEntry, Attributes);

/// The names of a directory, in the order of their bytes.
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

    /// What has this name. It comes behind that of the last call; the names between go to `gone`.
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

    /// The names that are left.
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
