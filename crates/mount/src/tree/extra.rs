//! Extended attributes. Those that begin with `user.hardpack.` are the properties of the file:
//! compression, record size and so on.

use fuser::Errno;
use hardpack_engine::FileId;
use hardpack_engine::pool::{Property, XATTR_LEN_MAX};

use super::{Requester, Tree};
use crate::SERVER_XATTR;
use crate::acl::{ACCESS, DEFAULT};
use crate::attributes::now;
use crate::errno::Answer;

/// What the names of properties begin with.
const PROPERTY_PREFIX: &[u8] = b"user.hardpack.";

/// What the names of access control lists begin with. Other such names mean something to some file
/// systems only.
const SYSTEM_PREFIX: &[u8] = b"system.";

/// The user who may do everything.
const ROOT_USER: u32 = 0;

/// Whether an attribute has to exist, or must not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Existing {
    Any,
    MustBe,
    MustNotBe,
}

/// Returns the property that an extended attribute stands for, if it is one.
fn property(name: &[u8]) -> Option<Answer<Property>> {
    let name = name.strip_prefix(PROPERTY_PREFIX)?;
    let known = std::str::from_utf8(name).ok().and_then(|name| name.parse().ok());
    Some(known.ok_or_else(|| Errno::NO_XATTR.into()))
}

fn is_list(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

impl Tree {
    /// Returns an extended attribute, or the effective value of a property.
    pub fn xattr(&self, id: FileId, name: &[u8]) -> Answer<Vec<u8>> {
        let is_mount = self.inodes.is_live() && id == self.inodes.root();
        if is_mount && name == SERVER_XATTR.as_bytes() {
            return Ok(std::process::id().to_string().into_bytes());
        }
        if let Some(property) = property(name) {
            let property = property?;
            return Ok(self.view(|view| view.settings(id))?.get(property).into_bytes());
        }
        let found = self.view(|view| match view.xattr(id, name)? {
            Some(list) if is_list(name) => {
                Ok(Some(self.list_in_step(name, list, &view.attributes(id)?)))
            }
            found => Ok(found),
        })?;
        found.ok_or_else(|| Errno::NO_XATTR.into())
    }

    /// Refuses to change properties of somebody else's file: who may write to a directory that all
    /// share shall not decide how everything below it is stored.
    fn check_owner(&self, id: FileId, caller: u32) -> Answer<()> {
        let owner = self.view(|view| view.attributes(id))?.owner.unwrap_or(self.owner);
        if caller == ROOT_USER || caller == owner.uid { Ok(()) } else { Err(Errno::EPERM.into()) }
    }

    /// Returns the names of the extended attributes, and of the properties that are set on this
    /// file itself.
    pub fn xattr_names(&self, id: FileId) -> Answer<Vec<Vec<u8>>> {
        let names = self.view(|view| {
            let own = view.xattrs(id)?.into_iter().map(|(name, _)| name);
            let set = view.local_properties(id)?.into_iter();
            let set = set
                .map(|(property, _)| [PROPERTY_PREFIX, property.to_string().as_bytes()].concat());
            Ok(own.chain(set).collect())
        })?;
        Ok(names)
    }

    /// Sets an extended attribute or a property.
    pub fn set_xattr(
        &self,
        id: FileId,
        name: &[u8],
        value: &[u8],
        is: Existing,
        requester: Requester,
    ) -> Answer<()> {
        self.refuse_read_only()?;
        if is_list(name) {
            return self.set_list(id, name, value, requester);
        }
        if name.starts_with(SYSTEM_PREFIX) {
            return Err(Errno::EOPNOTSUPP.into());
        }
        if let Some(property) = property(name) {
            let text = std::str::from_utf8(value).map_err(|_| Errno::EINVAL)?;
            let property = property?;
            self.check_owner(id, requester.uid)?;
            return self.edit(now(), |edit| edit.set_property(id, property, text.trim()));
        }
        if value.len() > XATTR_LEN_MAX {
            return Err(Errno::E2BIG.into());
        }
        if is != Existing::Any {
            let exists = self.view(|view| view.xattr(id, name))?.is_some();
            match (exists, is) {
                (true, Existing::MustNotBe) => return Err(Errno::EEXIST.into()),
                (false, Existing::MustBe) => return Err(Errno::NO_XATTR.into()),
                _ => {}
            }
        }
        let now_ns = now();
        self.edit(now_ns, |edit| {
            edit.set_xattr(id, name, value)?;
            edit.set_changed(id)
        })
    }

    /// Removes an extended attribute, or makes a property inherited again.
    pub fn remove_xattr(&self, id: FileId, name: &[u8], caller: u32) -> Answer<()> {
        self.refuse_read_only()?;
        if is_list(name) {
            return self.remove_list(id, name);
        }
        if let Some(property) = property(name) {
            let property = property?;
            self.check_owner(id, caller)?;
            return self.edit(now(), |edit| edit.inherit_property(id, property));
        }
        let existed = self.edit(now(), |edit| {
            let existed = edit.remove_xattr(id, name)?;
            if existed {
                edit.set_changed(id)?;
            }
            Ok(existed)
        })?;
        if existed { Ok(()) } else { Err(Errno::NO_XATTR.into()) }
    }
}
