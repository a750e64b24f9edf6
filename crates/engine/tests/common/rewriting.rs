//! The part of a crash workload that concerns patches: small edits, which become deltas, and steps
//! of folding, repacking and sinking. No step changes the content, so steps need no version.

use std::sync::Arc;

use hardpack_engine::Error;
use hardpack_engine::Txg;
use hardpack_engine::codec::Compression;
use hardpack_engine::pool::{Again, File, Fold, Pool, Property, SegmentGoal, Settings, StepLimits};
use hardpack_engine::store::Patience;
use hardpack_engine::store::format::pointer::data_pointer;
use hardpack_engine::store::tree::walk::{Met, walk_tree};
use hardpack_engine::store::trees::TreeId;

use super::Rng;
use super::sim_device::SimDevice;

fn text(error: Error) -> String {
    error.to_string()
}

/// Changes a few bytes of a page that was just read.
pub fn edit(file: &File, rng: &mut Rng, bytes: &mut [u8]) -> Result<(), Error> {
    if bytes.is_empty() {
        return Ok(());
    }
    let page = rng.below(bytes.len() as u64) & !4095;
    file.read_at(&mut [0; 4096], page)?;
    let end = (page + 4096).min(bytes.len() as u64);
    for _ in 0..rng.pick(&[1, 1, 3]) {
        let at = page + rng.below(end - page);
        let len = rng.pick(&[2, 16, 100, 200]).min(end - at) as usize;
        let new = rng.noise(len);
        file.write_at(&new, at)?;
        bytes[at as usize..at as usize + len].copy_from_slice(&new);
    }
    Ok(())
}

/// Returns the number of deltas.
fn count_deltas(pool: &Pool) -> Result<u64, String> {
    let mut count = 0;
    let state = pool.state();
    let Some(root) = &state.superblock.roots[TreeId::Patches] else { return Ok(0) };
    walk_tree(pool.store(), TreeId::Patches, root, Txg(0), &mut |met| {
        if let Met::Entry(_, _, value) = met {
            count += u64::from(data_pointer(value)?.is_delta());
        }
        Ok(())
    })
    .map_err(text)?;
    Ok(count)
}

/// Runs some steps of one kind over the file, and adds their counts to the device's.
pub fn some_steps(pool: &Pool, device: &Arc<SimDevice>, rng: &mut Rng) -> Result<(), String> {
    let file = pool.only_file().map_err(text)?.file;
    let limits = StepLimits {
        rewrite_len_max: rng.pick(&[1, 40_000, 1 << 20]),
        patience: Patience::None,
        ..StepLimits::default()
    };
    let which = rng.pick(&[Fold::Due, Fold::All]);
    let cold = pool.state().txg();
    let kind = rng.below(5);
    if kind == 4 {
        return some_segments(pool, device, rng);
    }
    let mut repack = None;
    if kind >= 2 {
        // A repack that another process left unfinished, possibly by a crash, is continued.
        let unfinished = pool.unfinished_repack(file).map_err(text)?;
        repack = Some(match unfinished.filter(|_| !rng.one_in(4)) {
            Some(unfinished) => {
                device.measure(|sums| sums.resumed += 1);
                unfinished
            }
            None => {
                let mut goal = Settings::default();
                let level = rng.pick(&["lz4", "zstd-2", "gzip-1", "off", "lzma-1"]);
                goal.set(Property::Compression, level).map_err(text)?;
                let size = rng.pick(&["4K", "16K", "64K"]);
                goal.set(Property::RecordSize, size).map_err(text)?;
                pool.begin_repack(file, goal, limits.patience).map_err(text)?
            }
        });
    }
    let deltas = count_deltas(pool)?;
    device.measure(|sums| sums.deltas += deltas);
    let mut next = Some(0);
    let mut left = rng.pick(&[1, 3, u64::MAX]);
    while let Some(from) = next.filter(|_| left > 0) {
        left -= 1;
        let step = match (&mut repack, kind) {
            (Some(repack), _) => pool.repack_step(repack, &limits, None),
            (None, 0) => pool.sink_step(file, cold, from, &limits),
            (None, _) => pool.fold_step(file, which, from, &limits),
        };
        let step = step.map_err(text)?;
        // A step may be overtaken if another process has committed since this one looked.
        if !step.damaged.is_empty() {
            return Err(format!("nothing is damaged, but: {step:?}"));
        }
        device.measure(|sums| sums.rewritten += step.rewritten);
        if rng.one_in(3) {
            // As maintenance does after each step, so that space is reused soon.
            pool.store().make_durable().map_err(text)?;
        }
        next = step.next;
    }
    Ok(())
}

/// Puts records into segments, in some steps.
fn some_segments(pool: &Pool, device: &Arc<SimDevice>, rng: &mut Rng) -> Result<(), String> {
    let goal = SegmentGoal {
        compression: rng.pick(&[Compression::Lz4, Compression::Zstd(1), Compression::Lzma(1)]),
        len: rng.pick(&[20_000, 100_000]),
        again: rng.pick(&[Again::No, Again::Related, Again::All]),
        inflate: false,
    };
    let file = pool.only_file().map_err(text)?.file;
    let mut optimisation = pool.optimize(file, goal).map_err(text)?;
    let mut left = rng.pick(&[2, 4, u64::MAX]);
    while left > 0 && optimisation.step().map_err(text)? {
        left -= 1;
        if rng.one_in(3) {
            pool.store().make_durable().map_err(text)?;
        }
    }
    let report = optimisation.report();
    if !report.damaged.is_empty() {
        return Err(format!("nothing is damaged, but: {report:?}"));
    }
    device.measure(|sums| sums.segmented += report.records);
    Ok(())
}
