//! Changing attributes.

use fuser::FileAttr;
use hardpack_engine::FileId;
use hardpack_engine::pool::{Attributes, FileOwner, Kind};

use super::Tree;
use crate::attributes::{mode, now};
use crate::errno::Answer;

/// The attributes that a request changes. Times are in nanoseconds since 1970.
#[derive(Clone, Copy, Default, Debug)]
pub struct Change {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub len: Option<u64>,
    pub accessed_ns: Option<i64>,
    pub modified_ns: Option<i64>,
}

impl Change {
    fn is_only_len(&self) -> bool {
        let Change { mode, uid, gid, len: _, accessed_ns, modified_ns } = *self;
        mode.is_none() && uid.or(gid).is_none() && accessed_ns.or(modified_ns).is_none()
    }
}

impl Tree {
    /// Changes attributes, and returns what they are then.
    pub fn change(&self, id: FileId, change: Change) -> Answer<FileAttr> {
        self.refuse_read_only()?;
        if let Some(len) = change.len {
            self.set_len(id, len)?;
        }
        if change.len.is_some() && change.is_only_len() {
            return self.attributes(id);
        }
        let now_ns = now();
        self.group.edit(now_ns, |edit| {
            let known = edit.attributes(id)?;
            let owner = known.owner.unwrap_or(self.owner);
            let changed = Attributes {
                mode: match known.kind {
                    Kind::Symlink => known.mode,
                    _ => change.mode.unwrap_or_else(|| mode(&known)) & 0o7777,
                },
                owner: Some(FileOwner {
                    uid: change.uid.unwrap_or(owner.uid),
                    gid: change.gid.unwrap_or(owner.gid),
                }),
                accessed_ns: change.accessed_ns.unwrap_or(known.accessed_ns),
                modified_ns: change.modified_ns.unwrap_or(known.modified_ns),
                changed_ns: now_ns,
                ..known
            };
            edit.set_attributes(id, &changed)?;
            if let Some(modified_ns) = change.modified_ns
                && let Some(file) = self.open.get(id).filter(|file| file.is_dirty())
            {
                // The changes were made before that time was set. They cannot be committed
                // meanwhile, with a time of their own.
                file.set_time(modified_ns);
            }
            Ok(())
        })?;
        self.flusher.note_joined(None);
        self.attributes(id)
    }
}
