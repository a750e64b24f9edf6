//! What processes, threads and commands do to each other: one of them goes at a time, from one system call to the
//! next, in an order that a seed or the test decides. See `world.rs` for how, `cases.rs` for orders that are told,
//! `seeds.rs` for those that are drawn, and `uses/` for the table of `docs/reliability.md`.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod cases;
#[path = "../common/mod.rs"]
mod common;
mod pools;
mod random;
mod seeds;
mod tracer;
mod uses;
mod worker;
mod world;

#[test]
fn worker_role() {
    worker::run();
}

/// The defects that are known and not mended: what fails because of one is passed over.
///
/// 2: an incremental `receive` does not ask who uses the database, nor settles its log. 3: logs are played into a state
/// they do not belong to; `mv`, `ln -f`, `rm`, `put --delete` and `pack -f` do not ask who uses what they replace. 4: a
/// clone lacks what is in a log. 5: making a lock file drops the locks of another thread. 6: databases inside a
/// pool are locked by the pool's name.
const OPEN: &[u32] = &[];

fn is_open(defect: u32) -> bool {
    OPEN.contains(&defect)
}

/// Does the same with each of many things, as many at a time as there are processors.
fn in_parallel<T: Sync, R: Send>(things: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let one = || {
        while let Some(thing) = things.get(next.fetch_add(1, Ordering::Relaxed)) {
            let result = work(thing);
            done.lock().unwrap().push(result);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, |n| n.get()) {
            scope.spawn(one);
        }
    });
    done.into_inner().unwrap()
}
