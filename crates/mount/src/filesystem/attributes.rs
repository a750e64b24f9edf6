//! Requests for extended attributes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use fuser::{Errno, INodeNo, ReplyEmpty, ReplyXattr, Request};

use super::PoolFilesystem;
use crate::inodes::{Numbered, numbered};
use crate::tree::{Existing, Requester};

impl PoolFilesystem {
    /// Sets an extended attribute.
    pub(super) fn on_setxattr(
        &self,
        request: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        reply: ReplyEmpty,
    ) {
        let is = match flags {
            libc::XATTR_CREATE => Existing::MustNotBe,
            libc::XATTR_REPLACE => Existing::MustBe,
            _ => Existing::Any,
        };
        let name = name.as_bytes();
        let (uid, gid, process) = (request.uid(), request.gid(), request.pid());
        let requester = Requester { uid, gid, process };
        reply!(reply, self.tree.set_xattr(self.live(number)?, name, value, is, requester), () => reply.ok());
    }

    /// Returns an extended attribute, or its length.
    pub(super) fn on_getxattr(
        &self,
        number: INodeNo,
        name: &OsStr,
        len_max: u32,
        reply: ReplyXattr,
    ) {
        let value = || match numbered(number) {
            Numbered::Directory => Err(Errno::NO_XATTR.into()),
            Numbered::Live | Numbered::Kept(_) => {
                let (tree, id) = self.at(number)?;
                tree.xattr(id, name.as_bytes())
            }
        };
        reply!(reply, value(), value => send_bytes(reply, &value, len_max));
    }

    /// Returns the names of the extended attributes, or their length.
    pub(super) fn on_listxattr(&self, number: INodeNo, len_max: u32, reply: ReplyXattr) {
        let names = || match numbered(number) {
            Numbered::Directory => Ok(Vec::new()),
            Numbered::Live | Numbered::Kept(_) => {
                let (tree, id) = self.at(number)?;
                tree.xattr_names(id)
            }
        };
        reply!(reply, names(), names => {
            let all: Vec<u8> =
                names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect();
            send_bytes(reply, &all, len_max);
        });
    }
}

/// Sends bytes, or how many there are if the caller asks for that.
fn send_bytes(reply: ReplyXattr, bytes: &[u8], len_max: u32) {
    match len_max as usize {
        0 => reply.size(bytes.len() as u32),
        max if bytes.len() > max => reply.error(Errno::ERANGE),
        _ => reply.data(bytes),
    }
}
