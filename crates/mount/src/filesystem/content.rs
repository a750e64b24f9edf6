//! Requests for the bytes of files.

use std::cell::RefCell;

use fuser::{
    Errno, FileHandle, FopenFlags, INodeNo, LockOwner, OpenFlags, ReplyData, ReplyEmpty,
    ReplyLseek, ReplyOpen, ReplyWrite, Request, WriteFlags,
};

use super::{PoolFilesystem, access, answer, key, writes};
use crate::inodes::{Numbered, numbered};
use crate::known::Opened;
use crate::tree::{Access, Allocation};

thread_local! {
    /// The bytes that a thread reads: new memory for each request would cost more than some reads.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl PoolFilesystem {
    /// Opens a file. A kernel that is told not to ask does not say either what it closes, and keeps
    /// the bytes of files that are opened again.
    pub(super) fn on_open(
        &self,
        request: &Request,
        number: INodeNo,
        flags: OpenFlags,
        reply: ReplyOpen,
    ) {
        if self.opens_alone && !writes(flags) {
            return reply.error(Errno::ENOSYS);
        }
        let opened = answer(|| {
            let access = access(flags);
            let (tree, id) = self.at(number)?;
            if !tree.inodes().is_live() {
                if access == Access::Write {
                    self.live(number)?;
                }
                tree.open(id, access, request.pid())?;
                // It never changes.
                return Ok(Opened::Known);
            }
            let seen = tree.open(id, access, request.pid())?;
            let opened = self.known.open(number, seen, writes(flags), request.pid());
            if opened == Opened::Refused {
                tree.close(id, access)?;
                return Err(Errno::ESTALE.into());
            }
            Ok(opened)
        });
        match opened {
            Ok(Opened::Known) => reply.opened(self.new_handle(), FopenFlags::FOPEN_KEEP_CACHE),
            Ok(_) => reply.opened(self.new_handle(), FopenFlags::empty()),
            Err(errno) => reply.error(errno),
        }
    }

    /// Reads, into memory that the thread keeps.
    pub(super) fn on_read(&self, number: INodeNo, offset: u64, len: u32, reply: ReplyData) {
        BUFFER.with_borrow_mut(|buffer| {
            let len = len as usize;
            buffer.resize(buffer.len().max(len), 0);
            let bytes = &mut buffer[..len];
            let read = answer(|| {
                let (tree, id) = self.at(number)?;
                tree.read_into(id, offset, bytes)
            });
            match read {
                Ok(n) => reply.data(&bytes[..n]),
                Err(errno) => reply.error(errno),
            }
        });
    }

    /// Writes what a program or the kernel hands over.
    pub(super) fn on_write(
        &self,
        number: INodeNo,
        offset: u64,
        bytes: &[u8],
        flags: WriteFlags,
        open_flags: OpenFlags,
        reply: ReplyWrite,
    ) {
        self.known.note_change(number);
        let written = || {
            let id = self.live(number)?;
            let offset = match self.tree.locks() {
                Some(locks) if open_flags.0 & libc::O_APPEND != 0 => {
                    // The kernel may know an older length, if another mount has cut the file.
                    let end = self.tree.len(id)?;
                    if end != offset {
                        locks.note_stale(number);
                    }
                    end
                }
                _ => offset,
            };
            self.tree.write(id, bytes, offset)?;
            match flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
                true => self.drop_set_id(number, id),
                false => Ok(()),
            }
        };
        match answer(written) {
            Ok(()) => reply.written(bytes.len() as u32),
            Err(errno) => {
                self.tree.note_lost_bytes();
                if flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
                    // The program was told of success: the kernel tells it of the error, and all
                    // others who have the file open.
                    if let Ok(id) = self.live(number) {
                        self.tree.forget_lost(id);
                    }
                }
                reply.error(errno);
            }
        }
    }

    /// Closes a file.
    pub(super) fn on_release(
        &self,
        number: INodeNo,
        handle: FileHandle,
        flags: OpenFlags,
        owner: Option<LockOwner>,
        reply: ReplyEmpty,
    ) {
        if let (Some(owner), Some(locks)) = (owner, self.tree.locks()) {
            locks.unlock_handle(key(number), owner.0, handle.0);
        }
        if numbered(number) == Numbered::Live {
            self.known.close(number, writes(flags));
            if writes(flags) {
                self.note_changed(number);
            }
        }
        let closed = || {
            let (tree, id) = self.at(number)?;
            tree.close(id, access(flags))
        };
        reply!(reply, closed(), () => reply.ok());
    }

    /// Makes a file longer, or makes holes.
    pub(super) fn on_fallocate(
        &self,
        request: &Request,
        number: INodeNo,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
        let how = match mode {
            0 => Allocation::Extend,
            libc::FALLOC_FL_KEEP_SIZE => Allocation::KeepLen,
            PUNCH | ZERO => Allocation::Punch,
            libc::FALLOC_FL_ZERO_RANGE => Allocation::Zero,
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        self.known.note_change(number);
        let done = || {
            self.tree.allocate(self.live(number)?, offset, len, how)?;
            self.drop_set_id_for(request, number)
        };
        reply!(reply, done(), () => reply.ok());
    }

    /// Finds the next data or hole, after what the kernel holds of the file.
    pub(super) fn on_lseek(&self, number: INodeNo, offset: i64, whence: i32, reply: ReplyLseek) {
        let is_hole = match whence {
            libc::SEEK_DATA => false,
            libc::SEEK_HOLE => true,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        let (tree, id) = match answer(|| self.at(number)) {
            Ok(found) => found,
            Err(errno) => return reply.error(errno),
        };
        let seek = move || {
            reply!(reply, tree.seek(id, offset, is_hole), at => reply.offset(at as i64));
        };
        match self
            .messenger
            .get()
            .filter(|_| numbered(number) == Numbered::Live && self.known.is_written(number))
        {
            // The kernel does not ask for a hole in the place of bytes that it still holds.
            Some(messenger) => messenger.write_back(number, Box::new(seek)),
            None => seek(),
        }
    }

    /// Copies within the mount.
    pub(super) fn on_copy_file_range(
        &self,
        request: &Request,
        (from, from_offset): (INodeNo, u64),
        (to, to_offset): (INodeNo, u64),
        len: u64,
        reply: ReplyWrite,
    ) {
        // A reply has room for no more.
        let len = len.min(u64::from(u32::MAX >> 1));
        self.known.note_change(to);
        let copied = || {
            let (tree, from) = self.at(from)?;
            let copied =
                self.tree.copy((&tree, from, from_offset), (self.live(to)?, to_offset), len)?;
            self.drop_set_id_for(request, to)?;
            Ok(copied)
        };
        reply!(reply, copied(), copied => reply.written(copied as u32));
    }
}
