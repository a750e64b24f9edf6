//! Devices in forked children.
//!
//! The locks of a device belong to its open file description, which a child made by `fork` shares: as long as the child
//! has the descriptor, it has its parent's locks, even when the parent is long dead, and it could give them back under
//! the parent's hands. So each child gives up the devices of its parent before it does anything else: what their
//! descriptors lead to becomes a pipe without an end, of which nothing can be read, written, cut or locked. Who wants to
//! use a pool in a child opens it there.
//!
//! * A descriptor is known here from the moment it exists: opening one and noting it excludes `fork`.
//! * The locks of a device are given back before it is forgotten here.
//! * Descriptors are closed by `exec` as well. A child made without the C library (a bare `clone`) that does not
//!   call `exec` is not noticed.

use std::cell::UnsafeCell;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Once;

/// The descriptors of all devices, under a lock that the one who forks holds meanwhile. The standard library's cannot
/// be given back in the child.
struct Descriptors {
    lock: UnsafeCell<libc::pthread_mutex_t>,
    open: UnsafeCell<Vec<RawFd>>,
}

// SAFETY: the list is only touched while the lock is held.
unsafe impl Sync for Descriptors {}

static DESCRIPTORS: Descriptors = Descriptors {
    lock: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
    open: UnsafeCell::new(Vec::new()),
};

impl Descriptors {
    fn lock(&self) {
        // SAFETY: the mutex is initialised, and never moved; a plain one cannot fail.
        unsafe { libc::pthread_mutex_lock(self.lock.get()) };
    }

    fn unlock(&self) {
        // SAFETY: as above; whoever calls this holds the lock, or is the child of the thread that did.
        unsafe { libc::pthread_mutex_unlock(self.lock.get()) };
    }

    fn with<R>(&self, act: impl FnOnce(&mut Vec<RawFd>) -> R) -> R {
        struct Unlock<'d>(&'d Descriptors);
        impl Drop for Unlock<'_> {
            fn drop(&mut self) {
                self.0.unlock();
            }
        }
        self.lock();
        let _unlock = Unlock(self);
        // SAFETY: the lock is held, so that this is the only reference.
        act(unsafe { &mut *self.open.get() })
    }
}

/// Opens the file of a device, which no child will have.
pub(super) fn open(open: impl FnOnce() -> io::Result<File>) -> io::Result<File> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handlers are functions of this library, which the C library forgets with it. Where there is no
        // memory for them, children share what they always did.
        unsafe { libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child)) };
    });
    DESCRIPTORS.with(|descriptors| {
        let file = open()?;
        descriptors.push(file.as_raw_fd());
        Ok(file)
    })
}

/// Forgets the file of a device, which is closed next and has no locks.
pub(super) fn forget(file: &File) {
    let closing = file.as_raw_fd();
    DESCRIPTORS.with(|descriptors| {
        if let Some(at) = descriptors.iter().position(|descriptor| *descriptor == closing) {
            descriptors.swap_remove(at);
        }
    });
}

unsafe extern "C" fn before() {
    DESCRIPTORS.lock();
}

unsafe extern "C" fn after_in_parent() {
    DESCRIPTORS.unlock();
}

/// Nothing here but system calls: other threads of the parent may have held any lock, that of the allocator too.
unsafe extern "C" fn after_in_child() {
    // SAFETY: the lock was taken before the fork, by the only thread that there is now. `ends` is as long as pipe2
    // asks for. The descriptors are those of devices, which this process must not use any more.
    unsafe {
        let open = &mut *DESCRIPTORS.open.get();
        if !open.is_empty() {
            let mut ends = [-1; 2];
            if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) == 0 {
                for descriptor in open.iter() {
                    libc::dup3(ends[0], *descriptor, libc::O_CLOEXEC);
                }
                libc::close(ends[0]);
                libc::close(ends[1]);
            } else {
                // There is no descriptor to be had. The locks must go all the same.
                for descriptor in open.iter() {
                    libc::close(*descriptor);
                }
            }
            open.clear();
        }
    }
    DESCRIPTORS.unlock();
}
