//! Files that are open, or have changes that are not committed yet.
//!
//! Changes that were lost are told as Linux tells them: once to each open file, when it is synced
//! next. Whoever opens the file later is told only if nobody has been before.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuser::Errno;
use hardpack_engine::FileId;
use hardpack_engine::pool::File;

use crate::Marks;
use crate::errno::Answer;

/// The files in use.
pub struct OpenFiles {
    files: Mutex<BTreeMap<FileId, InUse>>,
    marks: Arc<dyn Marks>,
    /// The number of the next open file.
    next_handle: AtomicU64,
}

struct InUse {
    file: Arc<File>,
    /// How often it is open.
    count: u64,
    /// Whether it has lost its last name.
    is_nameless: bool,
    /// The last changes that were lost.
    lost: Option<Loss>,
}

struct Loss {
    why: Errno,
    /// Files opened earlier have a smaller number.
    before: u64,
    /// The numbers of the open files that were told.
    told: BTreeSet<u64>,
}

/// What is left to do after a file was closed.
#[derive(PartialEq, Eq, Debug)]
pub enum Closed {
    /// Nothing, or others have it open.
    Done,
    /// It has changes.
    Changed,
    /// It has no name, so it can go.
    Gone,
}

impl OpenFiles {
    pub fn new(marks: Arc<dyn Marks>) -> OpenFiles {
        OpenFiles { files: Mutex::default(), marks, next_handle: AtomicU64::new(1) }
    }

    /// Returns a number for a file that is being opened.
    pub fn new_handle(&self) -> u64 {
        self.next_handle.fetch_add(1, Ordering::Relaxed)
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<FileId, InUse>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the handle of a file in use.
    pub fn get(&self, id: FileId) -> Option<Arc<File>> {
        self.files().get(&id).map(|it| Arc::clone(&it.file))
    }

    /// Notes that a file is in use. With `opens`, it is until it is closed; otherwise for as long
    /// as it has changes.
    ///
    /// # Errors
    /// EBUSY if somebody else needs to be alone with the file.
    pub fn note(&self, file: Arc<File>, opens: bool) -> Answer<Arc<File>> {
        let mut files = self.files();
        let in_use = match files.entry(file.id()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                if !self.marks.open(file.id()).map_err(Errno::from)? {
                    return Err(Errno::EBUSY.into());
                }
                new.insert(InUse { file, count: 0, is_nameless: false, lost: None })
            }
        };
        in_use.count += u64::from(opens);
        Ok(Arc::clone(&in_use.file))
    }

    /// Notes that a file was closed.
    pub fn close(&self, id: FileId) -> Closed {
        let mut files = self.files();
        let Some(in_use) = files.get_mut(&id) else { return Closed::Done };
        in_use.count = in_use.count.saturating_sub(1);
        match (in_use.count, in_use.is_nameless, in_use.file.is_dirty()) {
            (1.., ..) => Closed::Done,
            (0, true, _) => Closed::Gone,
            (0, false, true) => Closed::Changed,
            (0, false, false) => {
                self.drop_entry(&mut files, id);
                Closed::Done
            }
        }
    }

    fn drop_entry(&self, files: &mut BTreeMap<FileId, InUse>, id: FileId) {
        if files.remove(&id).is_some() {
            self.marks.close(id);
        }
    }

    /// Whether a file is open.
    pub fn is_open(&self, id: FileId) -> bool {
        self.files().get(&id).is_some_and(|it| it.count > 0)
    }

    /// Whether any file is open.
    pub fn is_any_open(&self) -> bool {
        self.files().values().any(|it| it.count > 0)
    }

    /// Notes that a file has lost its last name, or has got one again. Returns whether it is open.
    pub fn set_nameless(&self, id: FileId, is_nameless: bool) -> bool {
        match self.files().get_mut(&id) {
            Some(in_use) => {
                in_use.is_nameless = is_nameless;
                in_use.count > 0
            }
            None => false,
        }
    }

    /// Returns the files that have lost their last name.
    pub fn nameless(&self) -> Vec<FileId> {
        let files = self.files();
        files.iter().filter(|(_, it)| it.is_nameless).map(|(id, _)| *id).collect()
    }

    /// Forgets a file that is gone. Returns its handle, whose changes are to be discarded.
    pub fn forget(&self, id: FileId) -> Option<Arc<File>> {
        let mut files = self.files();
        let file = files.get(&id).map(|in_use| Arc::clone(&in_use.file));
        self.drop_entry(&mut files, id);
        file
    }

    /// Returns the files with changes. What is left without a name and closed is not among them.
    pub fn changed(&self) -> Vec<Arc<File>> {
        let files = self.files();
        let changed = files.values().filter(|it| it.file.is_dirty() && !it.is_nameless);
        changed.map(|it| Arc::clone(&it.file)).collect()
    }

    /// Forgets those that are closed and committed.
    pub fn sweep(&self) {
        let mut files = self.files();
        let is_told = |it: &InUse| it.lost.as_ref().is_none_or(|lost| !lost.told.is_empty());
        let is_idle = |it: &InUse| it.count == 0 && !it.file.is_dirty() && is_told(it);
        let idle: Vec<FileId> =
            files.iter().filter(|(_, it)| is_idle(it)).map(|(id, _)| *id).collect();
        idle.into_iter().for_each(|id| self.drop_entry(&mut files, id));
    }

    /// Notes that changes of files were lost.
    pub fn note_lost(&self, lost: &[Arc<File>], errno: Errno) {
        let mut files = self.files();
        for file in lost {
            if let Some(in_use) = files.get_mut(&file.id()) {
                let (before, told) = (self.next_handle.load(Ordering::Relaxed), BTreeSet::new());
                in_use.lost = Some(Loss { why: errno, before, told });
            }
        }
    }

    /// Forgets that changes of a file were lost: the kernel tells programs of a later loss, which
    /// includes them.
    pub fn forget_lost(&self, id: FileId) {
        if let Some(in_use) = self.files().get_mut(&id) {
            in_use.lost = None;
        }
    }

    /// Returns why changes of a file were lost, once for each open file.
    pub fn tell_lost(&self, id: FileId, handle: u64) -> Answer<()> {
        let mut files = self.files();
        let Some(lost) = files.get_mut(&id).and_then(|it| it.lost.as_mut()) else { return Ok(()) };
        let is_concerned = handle < lost.before || lost.told.is_empty();
        match is_concerned && lost.told.insert(handle) {
            true => Err(lost.why.into()),
            false => Ok(()),
        }
    }
}
