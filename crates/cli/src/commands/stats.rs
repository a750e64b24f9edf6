//! `hardpack stats`: shows how well a pool, or a directory in it, is compressed and deduplicated,
//! and the size of the tables for this on disk and in memory.

use std::process::ExitCode;

use hardpack_engine::pool::{Pool, UsageBelow};
use serde_json::json;

use crate::address::Opened;
use crate::args::StatsArgs;
use crate::failure::{Cannot, Failure, Reason};
use crate::output::{self, bytes, count, json_ratio, ratio};

pub fn run(args: &StatsArgs) -> Result<ExitCode, Failure> {
    show(args).cannot("show", &args.path)?;
    Ok(ExitCode::SUCCESS)
}

fn show(args: &StatsArgs) -> Result<(), Reason> {
    let opened = args.path.open(None)?;
    let usage = opened.pool.usage_below(opened.entry()?.file)?;
    let is_whole = args.path.is_whole();
    match args.json {
        true => output::print_json(&json_of(&opened, &usage, is_whole)?),
        false => output::print(text(&opened.pool, &usage, is_whole, args.exact)?),
    }
}

/// The combined ratio of compression and sharing.
fn combined(usage: &UsageBelow) -> f64 {
    usage.compress_ratio() * usage.dedup_ratio()
}

fn json_of(
    opened: &Opened,
    usage: &UsageBelow,
    is_whole: bool,
) -> Result<serde_json::Value, Reason> {
    let pool = &opened.pool;
    let mut value = json!({
        "files": usage.files,
        "logical_bytes": usage.logical,
        "stored_bytes": usage.stored,
        "stored_once_bytes": usage.stored_once,
        "compress_ratio": json_ratio(usage.compress_ratio()),
        "dedup_ratio": json_ratio(usage.dedup_ratio()),
        "combined_ratio": json_ratio(combined(usage)),
    });
    if is_whole {
        let state = pool.state();
        let (stats, index) = (state.stats(), pool.index_stats()?);
        value["pool"] = json!({
            "txg": state.txg().0,
            "dedup_ratio": json_ratio(stats.dedup_ratio()),
            "metadata_bytes": stats.nodes.allocated,
            "counted_extents": stats.counted.records,
            "shared_references": stats.shared.records,
            "snapshots": pool.snapshots()?.len(),
            "index_entries": index.entries,
            "index_runs": index.runs,
            "index_disk_bytes": index.disk_bytes,
            "index_memory_bytes": index.memory_bytes(),
        });
    }
    Ok(value)
}

fn text(pool: &Pool, usage: &UsageBelow, is_whole: bool, exact: bool) -> Result<String, Reason> {
    let size = |n| bytes(n, exact);
    let mut rows = vec![
        ("files", count(usage.files, exact)),
        ("logical size", size(usage.logical)),
        ("stored", size(usage.stored)),
        ("stored once", size(usage.stored_once)),
        ("compressratio", ratio(usage.compress_ratio())),
        ("dedupratio", ratio(usage.dedup_ratio())),
        ("both", ratio(combined(usage))),
    ];
    if is_whole {
        let state = pool.state();
        let (stats, index) = (state.stats(), pool.index_stats()?);
        let counted = count(stats.counted.records, exact);
        let shared = count(stats.shared.records, exact);
        let with = ratio(stats.dedup_ratio());
        rows.extend([
            ("snapshots", count(pool.snapshots()?.len() as u64, exact)),
            (
                "references",
                format!(
                    "{counted} counted extents, {shared} additional pointers to those that are no \
                     segments"
                ),
            ),
            ("dedup outside segments", with),
            (
                "dedup index",
                format!("{} entries in {} runs", count(index.entries, exact), index.runs),
            ),
            ("index on disk", size(index.disk_bytes)),
            ("index in memory", size(index.memory_bytes())),
            ("metadata", size(stats.nodes.allocated)),
        ]);
    }
    Ok(output::pairs(rows))
}
