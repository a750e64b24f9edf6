//! Removes whole trees, in several transactions.

use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::pool::namespace::edit::{Edit, text};
use crate::pool::namespace::entries::{self, DEPTH_MAX, DirEntry, Kind, ROOT};
use crate::pool::namespace::nameless;
use crate::units::FileId;

/// How many names are removed per transaction.
const REMOVE_COUNT: usize = 4096;

impl Edit<'_> {
    /// Removes a name. Where `left` is given, files that lose their last one go there and stay.
    fn drop_name(
        &mut self,
        parent: FileId,
        entry: &DirEntry,
        left: Option<&mut Vec<FileId>>,
    ) -> Result<()> {
        match left {
            Some(left) if entry.kind != Kind::Directory => {
                if self.unlink_open(parent, &entry.name)? {
                    left.push(entry.file);
                }
                Ok(())
            }
            _ => self.unlink(parent, &entry.name),
        }
    }

    /// Removes up to `count` names below a directory, and the directory itself once it is empty.
    /// Returns whether it is gone. Asks before each name.
    fn remove_some(
        &mut self,
        directory: FileId,
        top: &DirEntry,
        count: &mut usize,
        ask: &mut dyn FnMut(&DirEntry) -> Result<()>,
        mut left: Option<&mut Vec<FileId>>,
    ) -> Result<bool> {
        let missing = || Error::NotFound { what: "file", name: text(&top.name) };
        let entry = self.lookup(directory, &top.name)?.ok_or_else(missing)?;
        if entry.file != top.file {
            // Somebody has given the name to something else, which nobody asked to remove.
            return Err(Error::Busy);
        }
        // The directories on the way down: an explicit stack, so that depth costs no recursion.
        let mut above: Vec<(FileId, DirEntry)> = vec![(directory, entry)];
        while let Some((parent, entry)) = above.last().cloned() {
            if *count == 0 {
                return Ok(false);
            }
            if above.len() > DEPTH_MAX {
                return Err(entries::circle(directory, DEPTH_MAX));
            }
            let inside = match entry.kind {
                Kind::Directory => self.list(entry.file, None, entries::LIST_COUNT.min(*count))?,
                _ => Vec::new(),
            };
            match inside.iter().find(|inner| inner.kind == Kind::Directory) {
                _ if inside.is_empty() => {
                    ask(&entry)?;
                    self.drop_name(parent, &entry, left.as_deref_mut())?;
                    above.pop();
                    *count -= 1;
                }
                Some(inner) => above.push((entry.file, inner.clone())),
                None => {
                    for inner in &inside {
                        ask(inner)?;
                        self.drop_name(entry.file, inner, left.as_deref_mut())?;
                    }
                    *count = count.saturating_sub(inside.len());
                }
            }
        }
        Ok(true)
    }
}

impl Pool {
    /// Removes a name and everything below it, in several transactions. `progress` receives the
    /// number of names removed so far and returns whether to go on.
    pub fn remove_tree(
        &self,
        directory: FileId,
        name: &[u8],
        now_ns: i64,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<()> {
        let missing = || Error::NotFound { what: "file", name: text(name) };
        let top = self.lookup_in(directory, name)?.ok_or_else(missing)?;
        self.remove_entry(directory, &top, now_ns, &mut |_| Ok(()), progress)
    }

    /// Like [`Pool::remove_tree`], but removes only what the caller has found. Fails with
    /// [`Error::Busy`] if the name leads to something else by then. `ask` is called for every name,
    /// within the transaction that removes it, since new ones may appear until then; if it fails,
    /// that transaction is abandoned.
    pub fn remove_entry(
        &self,
        directory: FileId,
        top: &DirEntry,
        now_ns: i64,
        ask: &mut dyn FnMut(&DirEntry) -> Result<()>,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<()> {
        let (mut removed, mut was_refused) = (0, false);
        let (mut count_max, mut by_parts) = (REMOVE_COUNT, false);
        loop {
            let (mut count, mut left) = (count_max, Vec::new());
            let done = self.edit(now_ns, |edit| {
                edit.remove_some(directory, top, &mut count, ask, by_parts.then_some(&mut left))
            });
            // On a full disk, who is refused has found room for those who come next; but it may not
            // have any for all that many or large files free.
            if matches!(done, Err(Error::NoSpace)) && (!by_parts || count_max > 1) {
                match std::mem::replace(&mut was_refused, true) {
                    true if by_parts => count_max = (count_max / 16).max(1),
                    true => by_parts = true,
                    false => {}
                }
                continue;
            }
            let is_gone = done?;
            removed += (count_max - count) as u64;
            if !left.is_empty() {
                let checksum = self.settings(ROOT)?.checksum;
                // What cannot be removed now is removed another time.
                let _ = nameless::remove(self.store(), checksum, &left);
            }
            if !progress(removed) || is_gone {
                return Ok(());
            }
        }
    }
}
