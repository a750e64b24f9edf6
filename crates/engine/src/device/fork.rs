//! Devices in forked children.
//!
//! The locks of a device belong to its open file description, which a child made by `fork` shares.
//! As long as the child has the descriptor, it holds its parent's locks, even long after the parent
//! is dead, and it could release them while the parent relies on them. So each child gives up its
//! parent's devices before it does anything else: it replaces their descriptors with the end of a
//! closed pipe, which cannot be read, written, cut or locked. A child that wants to use a pool
//! opens it itself.
//!
//! * A descriptor is registered from the moment it exists: opening and registering it exclude
//!   `fork`.
//! * The locks of a device are released before it is unregistered.
//! * `exec` closes the descriptors too. A child made without the C library (by a bare `clone`) that
//!   does not call `exec` goes unnoticed.
#![expect(unsafe_code, reason = "handlers of `fork`, and system calls in a child")]

use std::cell::UnsafeCell;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Once;

/// The descriptors of all devices, under a lock that a forking thread holds during the fork. The
/// child must release it, which the standard library's mutex does not allow.
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
        // SAFETY: as above; the caller holds the lock, or is the child of the thread that held it.
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
        // SAFETY: the lock is held, so this is the only reference.
        act(unsafe { &mut *self.open.get() })
    }
}

/// Opens the file of a device and registers it, so that no child inherits it. Nor can a child come
/// between that and what is made of the file here.
pub(super) fn open<R>(
    open: impl FnOnce() -> io::Result<File>,
    make: impl FnOnce(&File) -> R,
) -> io::Result<(File, R)> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handlers are functions of this library, and the C library unregisters them
        // when it unloads it. If there is no memory to register them, children share the
        // descriptors as usual.
        unsafe { libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child)) };
    });
    DESCRIPTORS.with(|descriptors| {
        let file = open()?;
        descriptors.push(file.as_raw_fd());
        let made = make(&file);
        Ok((file, made))
    })
}

/// Unregisters the file of a device, which is about to be closed and holds no locks.
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

/// Makes only system calls: another thread of the parent may have held any lock, even the
/// allocator's.
unsafe extern "C" fn after_in_child() {
    // SAFETY: the lock was taken before the fork, by the only thread that exists now. `ends` has
    // the length that `pipe2` requires. The descriptors are those of devices, which this process
    // must no longer use.
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
                // No descriptor is available. The locks must go all the same.
                for descriptor in open.iter() {
                    libc::close(*descriptor);
                }
            }
            open.clear();
        }
    }
    DESCRIPTORS.unlock();
}
