//! `hardpack stats`: how well a pool is compressed and deduplicated, and what the tables for that take on disk and in
//! memory.

use std::process::ExitCode;

use hardpack_engine::pool::{Pool, ROOT};
use hardpack_engine::store::stats::PoolStats;
use serde_json::json;

use crate::args::StatsArgs;
use crate::failure::{Cannot, Failure, Reason};
use crate::output::{self, bytes, count, json_ratio, ratio};
use crate::pool_file;

pub fn run(args: &StatsArgs) -> Result<ExitCode, Failure> {
    show(args).cannot("show", args.pool.display())?;
    Ok(ExitCode::SUCCESS)
}

fn show(args: &StatsArgs) -> Result<(), Reason> {
    let pool = pool_file::open_read_only(&args.pool, None)?;
    if args.json {
        output::print_json(&json_of(&pool)?)
    } else {
        output::print(text(&pool, args.exact)?)
    }
}

/// What sharing and compression together come to.
fn combined(stats: &PoolStats) -> f64 {
    stats.dedup_ratio() * stats.compress_ratio()
}

fn json_of(pool: &Pool) -> Result<serde_json::Value, Reason> {
    let state = pool.state();
    let (stats, index) = (state.stats(), pool.index_stats()?);
    let usage = pool.usage_below(ROOT)?;
    Ok(json!({
        "txg": state.txg().0,
        "files_bytes": stats.file_bytes,
        "compress_ratio": json_ratio(stats.compress_ratio()),
        "dedup_ratio": json_ratio(stats.dedup_ratio()),
        "combined_ratio": json_ratio(combined(stats)),
        "records": stats.data().records,
        "files": usage.files,
        "metadata_bytes": stats.nodes.allocated,
        "snapshots": pool.snapshots()?.len(),
        "index": {
            "entries": index.entries,
            "runs": index.runs,
            "disk_bytes": index.disk_bytes,
            "memory_bytes": index.memory_bytes(),
        },
    }))
}

fn text(pool: &Pool, exact: bool) -> Result<String, Reason> {
    let state = pool.state();
    let (stats, index) = (state.stats(), pool.index_stats()?);
    let usage = pool.usage_below(ROOT)?;
    let rows = [
        ("state", format!("txg {}", state.txg())),
        ("files", format!("{}, {}", count(usage.files, exact), bytes(stats.file_bytes, exact))),
        ("compressratio", ratio(stats.compress_ratio())),
        ("dedupratio", ratio(stats.dedup_ratio())),
        ("both", ratio(combined(stats))),
        ("records", count(stats.data().records, exact)),
        ("shared", format!("{} more pointers than extents", count(stats.shared.records, exact))),
        ("metadata", bytes(stats.nodes.allocated, exact)),
        ("snapshots", count(pool.snapshots()?.len() as u64, exact)),
        (
            "dedup index",
            format!(
                "{} entries in {} runs, {} on disk, {} in memory",
                count(index.entries, exact),
                index.runs,
                bytes(index.disk_bytes, exact),
                bytes(index.memory_bytes(), exact)
            ),
        ),
    ];
    Ok(output::pairs(rows))
}
