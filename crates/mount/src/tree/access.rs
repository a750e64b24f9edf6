//! Access control lists: the kernel applies them, the server keeps them in step with modes. They
//! are extended attributes of the pool, see [`crate::acl`].

use std::sync::atomic::Ordering;

use fuser::Errno;
use hardpack_engine::pool::{Attributes, Edit, FileOwner, Kind};
use hardpack_engine::{Error, FileId, Result};

use super::Tree;
use crate::acl::{ACCESS, Acl, DEFAULT, PERMISSIONS};
use crate::attributes::{mode, now};
use crate::errno::Answer;

/// The user who may do everything.
const ROOT_USER: u32 = 0;

/// The process that a request comes from.
#[derive(Clone, Copy, Debug)]
pub struct Requester {
    pub uid: u32,
    pub gid: u32,
    pub process: u32,
}

impl Requester {
    /// Whether it has the group among its own, as far as that can be found out.
    fn is_in(&self, gid: u32) -> bool {
        if self.uid == ROOT_USER || self.gid == gid {
            return true;
        }
        // 0 is a process that cannot be seen from here.
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process));
        let status = status.unwrap_or_default();
        let groups = status.lines().find_map(|line| line.strip_prefix("Groups:"));
        groups.is_some_and(|groups| groups.split_whitespace().any(|g| g.parse() == Ok(gid)))
    }
}

/// The permissions that something new is to have.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub mode: u32,
    /// The bits that are taken away unless the directory has a list for new files.
    pub umask: u32,
    pub owner: FileOwner,
}

/// Something new with its permissions, and the lists that it gets.
pub(super) struct Granted {
    pub mode: u32,
    lists: Vec<(&'static [u8], Vec<u8>)>,
}

impl Granted {
    /// Gives the new file its lists.
    pub fn set_lists(&self, edit: &mut Edit<'_>, file: FileId) -> Result<()> {
        self.lists.iter().try_for_each(|(name, list)| edit.set_xattr(file, name, list))
    }
}

fn malformed(directory: FileId) -> Error {
    let what = "the list of permissions for new files in directory number";
    Error::Invalid(format!("{what} {} is malformed", directory.0))
}

impl Tree {
    /// Notes that the kernel applies access control lists.
    pub fn apply_lists(&self) {
        self.has_lists.store(true, Ordering::Relaxed);
    }

    /// Decides the permissions of something new in a directory.
    pub(super) fn granted(
        &self,
        edit: &mut Edit<'_>,
        directory: FileId,
        kind: Kind,
        wanted: Wanted,
    ) -> Result<Granted> {
        let none = Vec::new();
        if kind == Kind::Symlink {
            return Ok(Granted { mode: wanted.mode, lists: none });
        }
        let default = match self.has_lists.load(Ordering::Relaxed) {
            true => edit.xattr(directory, DEFAULT)?,
            false => None,
        };
        let Some(default) = default else {
            return Ok(Granted { mode: wanted.mode & !wanted.umask, lists: none });
        };
        let list = Acl::parse(&default).ok_or_else(|| malformed(directory))?;
        let (access, permissions) = list.inherited(wanted.mode);
        let mut lists = Vec::new();
        lists.extend((!access.is_plain()).then(|| (ACCESS, access.encode())));
        lists.extend((kind == Kind::Directory).then_some((DEFAULT, default)));
        Ok(Granted { mode: wanted.mode & !PERMISSIONS | permissions, lists })
    }

    /// Returns a list as the kernel asks for it. Commands may have changed the mode alone.
    pub(super) fn list_in_step(&self, name: &[u8], list: Vec<u8>, known: &Attributes) -> Vec<u8> {
        match Acl::parse(&list) {
            Some(mut acl) if name == ACCESS => {
                acl.follow(mode(known));
                acl.encode()
            }
            // The kernel refuses what is malformed, so nobody gets rights by it.
            _ => list,
        }
    }

    /// Sets a list; an empty one removes it.
    pub(super) fn set_list(
        &self,
        id: FileId,
        name: &[u8],
        list: &[u8],
        requester: Requester,
    ) -> Answer<()> {
        if !self.has_lists.load(Ordering::Relaxed) {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let acl = Acl::parse(list).ok_or(Errno::EINVAL)?;
        let known = self.view(|view| view.attributes(id))?;
        if name == DEFAULT && known.kind != Kind::Directory {
            return Err(Errno::EACCES.into());
        }
        let group = known.owner.unwrap_or(self.owner).gid;
        let keeps_set_gid = mode(&known) & libc::S_ISGID == 0 || requester.is_in(group);
        let now_ns = now();
        self.edit(now_ns, |edit| {
            if name == DEFAULT {
                edit.set_xattr(id, name, &acl.encode())?;
                return edit.set_changed(id);
            }
            match acl.is_plain() {
                true => edit.remove_xattr(id, name).map(drop)?,
                false => edit.set_xattr(id, name, &acl.encode())?,
            }
            let known = edit.attributes(id)?;
            let kept = if keeps_set_gid { !PERMISSIONS } else { !PERMISSIONS & !libc::S_ISGID };
            let new = Attributes {
                mode: mode(&known) & kept | acl.mode(),
                owner: Some(known.owner.unwrap_or(self.owner)),
                changed_ns: now_ns,
                ..known
            };
            edit.set_attributes(id, &new)
        })
    }

    /// Removes a list. As elsewhere, it need not exist.
    pub(super) fn remove_list(&self, id: FileId, name: &[u8]) -> Answer<()> {
        self.edit(now(), |edit| match edit.remove_xattr(id, name)? {
            true => edit.set_changed(id),
            false => Ok(()),
        })
    }
}

/// Brings the list of a file in step with its mode.
pub(super) fn follow_mode(edit: &mut Edit<'_>, id: FileId, mode: u32) -> Result<()> {
    let Some(list) = edit.xattr(id, ACCESS)? else { return Ok(()) };
    let Some(mut acl) = Acl::parse(&list) else { return Ok(()) };
    acl.follow(mode);
    edit.set_xattr(id, ACCESS, &acl.encode())
}
