//! Keeps the registry usable after `fork`.
//!
//! A child has only the thread that forked. If another thread held the registry's lock at that
//! moment, to open or close a pool, nobody would ever release it in the child. So the forking
//! thread takes the lock first, and parent and child both go on with it free.
//!
//! * The registry is locked before the list of devices (`device/fork.rs` in the engine), in the
//!   same order as when a pool is opened: handlers run in the reverse order of their registration.
//! * The same holds for the lock under which the host closes files, which is taken after the
//!   registry.
//! * Nobody forks while holding the registry.
#![expect(unsafe_code, reason = "handlers of `fork`")]

use std::cell::UnsafeCell;
use std::sync::{MutexGuard, Once, RwLockWriteGuard};

use crate::host;
use crate::registry::{self, Registry};

/// The locks, held by the thread that forks.
type Locks = (RwLockWriteGuard<'static, ()>, MutexGuard<'static, Registry>);

struct Held(UnsafeCell<Option<Locks>>);

// SAFETY: only the thread that holds the registry touches it.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

/// Installs the handlers. Must be called after a device was opened, which installs the engine's
/// own.
pub fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handlers are functions of this library; the C library forgets them when it is
        // unloaded. If there is no memory for them, a child may find the registry locked.
        unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after)) };
    });
}

unsafe extern "C" fn before() {
    let registry = registry::lock();
    // SAFETY: this thread holds the registry.
    unsafe { *HELD.0.get() = Some((host::no_closing(), registry)) };
}

unsafe extern "C" fn after() {
    // SAFETY: as above, or this is the child of the thread that holds it.
    let registry = unsafe { (*HELD.0.get()).take() };
    drop(registry);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    /// Longer than any machine needs, in seconds.
    const PATIENCE: u32 = 60;

    #[test]
    fn a_child_finds_the_registry_free() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.hpk");
        std::fs::write(&path, "").unwrap();
        drop(registry::create(&path, &[]).unwrap());
        let (tell, told) = mpsc::channel();
        let other = std::thread::spawn(move || {
            let _registry = registry::lock();
            tell.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(100));
        });
        told.recv().unwrap();
        // SAFETY: the child only runs the code under test, then exits.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::alarm(PATIENCE / 10);
                let code = i32::from(registry::is_open(&path));
                libc::_exit(code);
            }
            let mut status = -1;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            assert_eq!(status, 0, "the child was killed, or found the pool open");
        }
        other.join().unwrap();
    }
}
