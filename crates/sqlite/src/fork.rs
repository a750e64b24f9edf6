//! The registry and `fork`.
//!
//! A child has only the thread that forked. Where another one had the registry at that moment, which opens and closes pools
//! under its lock, nobody would ever give it back in the child. So whoever forks takes it, and parent and child both go on
//! with it free.
//!
//! * The registry is taken before the list of devices (`device/fork.rs` in the engine), as by those who open a pool:
//!   handlers are called in the reverse order of their registration.
//! * Nobody forks while he has the registry.

use std::cell::UnsafeCell;
use std::sync::{MutexGuard, Once};

use crate::registry::{self, Registry};

/// The registry, of who forks.
struct Held(UnsafeCell<Option<MutexGuard<'static, Registry>>>);

// SAFETY: it is only touched by the one who has the registry.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

/// To be called when a device was opened, and so the engine's handlers are known.
pub fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handlers are functions of this library, which the C library forgets with it. Where there is no
        // memory for them, a child may find the registry taken.
        unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after)) };
    });
}

unsafe extern "C" fn before() {
    let registry = registry::lock();
    // SAFETY: this thread has the registry.
    unsafe { *HELD.0.get() = Some(registry) };
}

unsafe extern "C" fn after() {
    // SAFETY: as above, or this is the child of the thread that has it.
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
        // SAFETY: the child does nothing but what is under test, and ends.
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
