//! Files that are read though nobody has told that they are open: each knows how far it was read,
//! and so what to read ahead.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use hardpack_engine::FileId;
use hardpack_engine::pool::File;

use crate::errno::Answer;

/// How many files are kept.
const COUNT_MAX: usize = 64;

/// The files that were read last, the newest in front.
#[derive(Debug, Default)]
pub struct Recent(Mutex<VecDeque<Arc<File>>>);

impl Recent {
    /// Returns a file, which `find` finds unless it was read before.
    pub fn get_or(
        &self,
        id: FileId,
        find: impl FnOnce() -> Answer<Arc<File>>,
    ) -> Answer<Arc<File>> {
        if let Some(file) = self.take(id) {
            self.put(Arc::clone(&file));
            return Ok(file);
        }
        let file = find()?;
        self.put(Arc::clone(&file));
        Ok(file)
    }

    fn take(&self, id: FileId) -> Option<Arc<File>> {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = files.iter().position(|file| file.id() == id)?;
        files.remove(place)
    }

    fn put(&self, file: Arc<File>) {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        files.push_front(file);
        files.truncate(COUNT_MAX);
    }
}
