//! Losses of power in a recorded run.

use super::Rng;
use super::sim_device::{Disk, Op};

/// Returns how many operations of a run came before a loss of power, and what it leaves. Every
/// other loss is where it hurts most: just before a sync or at the end, when the most is not
/// durable.
pub fn lose_power(base: &[u8], trace: &[Op], rng: &mut Rng) -> (usize, Vec<u8>) {
    let random = rng.below(trace.len() as u64 + 1) as usize;
    let before_sync = trace[random..].iter().position(|op| matches!(op, Op::Sync));
    let hard = before_sync.map_or(trace.len(), |count| random + count);
    let end = if rng.one_in(2) { hard } else { random };
    let mut disk = Disk::new(base.to_vec());
    trace[..end].iter().for_each(|op| disk.apply(op));
    (end, disk.crash(rng, 512))
}
