//! Power losses in the middle of a receive.

use std::sync::Arc;

use super::chains::{Chain, chain, receive};
use super::trees::{assert_same, new_pool};
use crate::device::{Device, MemoryDevice};
use crate::pool::{Pool, ROOT, ReceiveOptions};
use crate::test_common::sim_device::{Disk, SimDevice};
use crate::test_common::{Rng, options, problems};

/// How many power losses are simulated for each stream.
const CRASH_COUNT: usize = 24;

fn small() -> ReceiveOptions<'static> {
    ReceiveOptions { batch_len: 6_000, ..ReceiveOptions::default() }
}

/// Receives the stream to snapshot `to` again and again, each time with another power loss, and
/// continues from the remaining image. Returns how often there was something to resume, and how
/// often everything was there.
fn crash(chain: &Chain, from: Option<usize>, to: usize, seed: u64) -> (usize, usize) {
    let device = SimDevice::new(Vec::new());
    let handle: Arc<dyn Device> = device.handle();
    let pool = new_pool(&handle, 9, &[]);
    if let Some(from) = from {
        receive(&pool, &chain.stream(None, from, None), &small()).unwrap();
    }
    let before = device.image();
    device.take_trace();
    receive(&pool, &chain.stream(from, to, None), &small()).unwrap();
    let trace = device.take_trace();
    let mut rng = Rng(seed);
    let (mut resumed, mut done) = (0, 0);
    for round in 0..CRASH_COUNT {
        let cut = rng.below(trace.len() as u64 + 1) as usize;
        let mut disk = Disk::new(before.clone());
        trace[..cut].iter().for_each(|op| disk.apply(op));
        let image = disk.crash(&mut rng, 512);
        let what = format!("seed {seed}, round {round}, after {cut} of {}", trace.len());
        let pool = Pool::open(Arc::new(MemoryDevice::new(image)), options(1 << 20)).unwrap();
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "{what}");
        let there = pool.lookup_in(ROOT, b"copy").unwrap().map(|entry| entry.file);
        let is_done = pool.snapshots().unwrap().len() == to + 1;
        if is_done {
            done += 1;
            assert!(pool.receive_token(ROOT, b"copy").unwrap().is_none(), "{what}");
        } else {
            assert_eq!(there.is_some(), from.is_some(), "{what}");
            if let (Some(from), Some(file)) = (from, there) {
                assert_same(&chain.open(from), chain.scope, &pool, file, seed);
            }
            let token = pool.receive_token(ROOT, b"copy").unwrap();
            resumed += usize::from(token.is_some());
            receive(&pool, &chain.stream(from, to, token), &small()).unwrap();
        }
        let file = pool.lookup_in(ROOT, b"copy").unwrap().unwrap().file;
        assert_same(&chain.open(to), chain.scope, &pool, file, seed);
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "{what}, at the end");
    }
    (resumed, done)
}

#[test]
fn a_receive_goes_on_after_a_loss_of_power() {
    let (mut resumed, mut done) = (0, 0);
    for seed in [700, 703] {
        let chain = chain(seed, true);
        for from in [None, Some(0)] {
            let to = from.map_or(0, |from| from + 1);
            let (a, b) = crash(&chain, from, to, seed);
            (resumed, done) = (resumed + a, done + b);
        }
    }
    assert!(resumed > 10 && done > 0, "{resumed} resumed, {done} done");
}
