//! The estimate as JSON. Lengths are in bytes; an estimate is an object with its bounds.

use serde_json::{Value, json};

use super::figures::{Bucket, Estimate, Space};
use super::{Report, Row, advice, report, segments};
use crate::output::{json_ratio, named};

fn whole(value: f64) -> Value {
    (value.round() as u64).into()
}

fn estimate(estimate: &Estimate, show: fn(f64) -> Value) -> Value {
    json!({
        "value": show(estimate.value),
        "low": show(estimate.low),
        "high": show(estimate.high),
        "is_exact": estimate.is_exact(),
    })
}

fn space(space: &Space) -> Value {
    json!({
        "blocks": whole(space.blocks),
        "lsize": whole(space.lsize),
        "psize": whole(space.psize),
        "dsize": whole(space.dsize),
    })
}

fn bucket(bucket: &Bucket) -> Value {
    json!({
        "refs": bucket.refs,
        "allocated": space(&bucket.allocated),
        "referenced": space(&bucket.referenced),
    })
}

fn row(row: &Row, report: &Report<'_>) -> Value {
    let figures = &row.figures;
    let (min, usual, max) = row.cut.lengths();
    let stored = figures.stored.iter().zip(&report.args.compression).map(|(stored, name)| {
        let [dedup, compress] = report::ratios(&report::total(&stored.histogram));
        json!({
            "compression": name.to_string(),
            "stored_bytes": estimate(&stored.all, whole),
            "stored_once_bytes": estimate(&stored.once, whole),
            "dedup_ratio": json_ratio(dedup),
            "compress_ratio": json_ratio(compress),
            "histogram": stored.histogram.iter().map(bucket).collect::<Vec<_>>(),
        })
    });
    let stored: Vec<Value> = stored.collect();
    json!({
        "name": row.name,
        "is_fixed": min == max,
        "bytes_min": min,
        "bytes_usual": usual,
        "bytes_max": max,
        "count": estimate(&figures.count, whole),
        "logical_bytes": estimate(&figures.len, whole),
        "zero_bytes": estimate(&figures.zero_len, whole),
        "distinct": estimate(&figures.distinct, whole),
        "distinct_bytes": estimate(&figures.distinct_len, whole),
        "dedup_ratio": estimate(&figures.dedup_ratio(), json_ratio),
        "kept_share": row.kept_share,
        "measured_share": row.measured_share,
        "index_memory_bytes": whole(figures.distinct.value * advice::INDEX_ENTRY_LEN),
        "openzfs_index_memory_bytes": whole(figures.distinct.value * advice::OPENZFS_ENTRY_LEN),
        "stored": stored,
    })
}

pub fn of(report: &Report<'_>) -> Value {
    let counts = &report.counts;
    let paths = report.args.paths.iter();
    let paths = paths.map(|path| named(json!({}), "path", path.as_encoded_bytes()));
    let advice = advice::of(report).map(|advice| {
        json!({
            "recordsize": advice.record_size(),
            "chunking": advice.chunking(),
            "compression": advice.compression.to_string(),
            "dedup": advice.dedup,
            "bytes": whole(advice.total),
            "bytes_after_optimize": advice.after_optimize.map(whole),
            "reason": advice.reason(report),
            "command": advice.command(report),
        })
    });
    let sample = report.part.map(|part| json!({ "read_bytes": part.read, "of_bytes": part.of }));
    let after_optimize = report.in_segments.as_ref().map(|found| {
        json!({
            "stored_bytes": estimate(&found.stored, whole),
            "compression": segments::COMPRESSION.to_string(),
            "segment_bytes": segments::SEGMENT_LEN,
            "segments": found.count,
            "measured_segments": found.measured,
            "left_alone_bytes": found.left_alone,
        })
    });
    json!({
        "paths": paths.collect::<Vec<_>>(),
        "files": counts.files,
        "bytes": counts.bytes,
        "symlinks": counts.symlinks,
        "special_files": counts.special_files,
        "hard_links": counts.hard_links,
        "failed": counts.failed,
        "sample": sample,
        "ashift": report.args.ashift,
        "blocks": report.rows.iter().map(|one| row(one, report)).collect::<Vec<_>>(),
        "after_optimize": after_optimize,
        "recommendation": advice,
        "seconds": (report.seconds * 1000.0).round() / 1000.0,
    })
}
