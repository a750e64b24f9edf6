//! Changing attributes.

use fuser::FileAttr;
use hardpack_engine::pool::{Attributes, Edit, FileOwner, Kind};
use hardpack_engine::{FileId, Result};

use super::Tree;
use super::access::follow_mode;
use super::names::MODE_MASK;
use crate::attributes::{mode, now};
use crate::errno::Answer;
use crate::known::Seen;

/// The attributes that a request changes. Times are in nanoseconds since 1970.
#[derive(Clone, Copy, Default, Debug)]
pub struct Change {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub len: Option<u64>,
    pub accessed_ns: Option<i64>,
    pub modified_ns: Option<i64>,
    /// The kernel decides about it, as it keeps what programs write.
    pub changed_ns: Option<i64>,
    /// Whether the caller is the user who may do everything.
    pub is_by_root: bool,
}

impl Change {
    /// Whether it changes nothing else than what the kernel keeps of times.
    pub fn is_of_times(&self) -> bool {
        self.is_of_content() && self.len.is_none()
    }

    /// Whether it changes nothing else than the length and the times that go with that.
    fn is_of_content(&self) -> bool {
        self.mode.is_none() && self.uid.or(self.gid).is_none() && self.accessed_ns.is_none()
    }
}

impl Tree {
    /// Changes attributes, and returns what they are then.
    pub fn change(&self, id: FileId, change: Change) -> Answer<(FileAttr, Seen)> {
        self.refuse_read_only()?;
        if let Some(len) = change.len {
            self.set_len(id, len)?;
            if !change.is_by_root {
                self.drop_set_id(id)?;
            }
        }
        let times = change.modified_ns.zip(change.changed_ns);
        let is_done = change.is_of_content()
            && match times {
                Some((modified_ns, changed_ns)) => self.set_times(id, modified_ns, changed_ns),
                None => change.len.is_some(),
            };
        if !is_done {
            self.edit(now(), |edit| self.change_in(edit, id, change))?;
        }
        self.seen(|| self.attributes(id))
    }

    /// Sets the times of changes that are not committed yet. Returns false if there are none.
    fn set_times(&self, id: FileId, modified_ns: i64, changed_ns: i64) -> bool {
        let changed = self.open.get(id).filter(|file| file.is_dirty());
        changed.is_some_and(|file| self.group.set_times(&file, modified_ns, changed_ns))
    }

    fn change_in(&self, edit: &mut Edit<'_>, id: FileId, change: Change) -> Result<()> {
        let known = edit.attributes(id)?;
        let owner = known.owner.unwrap_or(self.owner);
        let is_given_away = change.uid.or(change.gid).is_some() && known.kind == Kind::File;
        let changed_mode = change.mode.unwrap_or_else(|| mode(&known)) & MODE_MASK;
        let changed = Attributes {
            mode: match known.kind {
                Kind::Symlink => known.mode,
                _ if is_given_away => without_set_id(changed_mode),
                _ => changed_mode,
            },
            owner: Some(FileOwner {
                uid: change.uid.unwrap_or(owner.uid),
                gid: change.gid.unwrap_or(owner.gid),
            }),
            accessed_ns: change.accessed_ns.unwrap_or(known.accessed_ns),
            modified_ns: change.modified_ns.unwrap_or(known.modified_ns),
            changed_ns: change.changed_ns.unwrap_or_else(now),
            ..known
        };
        edit.set_attributes(id, &changed)?;
        if change.mode.is_some() {
            follow_mode(edit, id, changed.mode)?;
        }
        if let Some(modified_ns) = change.modified_ns
            && let Some(file) = self.open.get(id).filter(|file| file.is_dirty())
        {
            // The changes were made before that time was set. They cannot be committed meanwhile,
            // with a time of their own.
            file.set_time(modified_ns);
        }
        Ok(())
    }

    /// Takes the bits away that let a program run as its owner, as is due when somebody else
    /// changes it. Returns whether it had any.
    pub fn drop_set_id(&self, id: FileId) -> Answer<bool> {
        let known = self.view(|view| view.attributes(id))?;
        if without_set_id(known.mode) == known.mode {
            return Ok(false);
        }
        self.edit(now(), |edit| {
            let known = edit.attributes(id)?;
            edit.set_attributes(id, &Attributes { mode: without_set_id(known.mode), ..known })
        })?;
        Ok(true)
    }
}

/// Returns a mode without the bits of set-id programs. Without the right to execute, the bit of the
/// group means something else.
fn without_set_id(mode: u32) -> u32 {
    let group = if mode & libc::S_IXGRP != 0 { libc::S_ISGID } else { 0 };
    mode & !(libc::S_ISUID | group)
}
