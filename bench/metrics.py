"""The comparisons: measurements, metrics read from their samples, and targets.

The series (curves over sizes, levels, numbers of processes) are in series.py.
"""

import dataclasses

SELF_TEST_SIDE = "again"
TARGET_CODEC = "zstd-3"  # targets are set for the default settings; other codecs are shown beside
BULK_CHUNK_ROWS = 1000
THROTTLED_BYTES_PER_SECOND = 200_000_000
LIMITED_CACHE_BYTES = 32 << 20
MEMORY_OVER_CACHE_BYTES = 64 << 20
OPEN_SECONDS_MAX = 0.010
POOL_OVERHEAD_FACTOR, POOL_OVERHEAD_BYTES = 1.01, 64 * 1024
LIMITED_CACHE = {"HARDPACK_CACHE_BYTES": str(LIMITED_CACHE_BYTES)}

# `False` is the full run, `True` the quick one.
SCALES = {
    False: {"points": 5000, "points_cold": 1000, "updates_rollback": 400, "updates_wal_full": 2100, "updates_wal": 4000,
            "updates_checkpoint": 2000, "updates_long": 30_000, "opens": 40, "bulk_rows": 300_000,
            "bulk_transaction_rows": 50_000, "random_bytes": 64 << 20, "generated_mb": 64, "scan_seconds": 0.3},
    True: {"points": 500, "points_cold": 100, "updates_rollback": 25, "updates_wal_full": 60, "updates_wal": 1100,
           "updates_checkpoint": 200, "updates_long": 1500, "opens": 8, "bulk_rows": 6000,
           "bulk_transaction_rows": 3000, "random_bytes": 4 << 20, "generated_mb": 3, "scan_seconds": 0.02},
}


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One kind of child process.

    `on`: the packed database itself (shared), a copy of it, or a new file. `against`: the side that codecs are
    compared with; None if a sample carries its own comparison.
    """
    name: str
    op: str
    on: str
    job: dict
    against: str = "stock"
    environment: dict = None
    once: bool = False  # one run is enough, since the compared value is not a time


@dataclasses.dataclass(frozen=True)
class Metric:
    """One line of the report: a field of a measurement's samples, lower is better.

    `target` is the largest good ratio; `limit` the largest good value, if the value itself is judged.
    `beside` names a field of the same sample to compare with, instead of the other side's sample.
    """
    name: str
    title: str
    measurement: str
    field: str = "seconds"
    target: float = None
    limit: float = None
    target_text: str = ""
    beside: str = None


def updates(journal, synchronous, count, scanned=False):
    return {"journal": journal, "synchronous": synchronous, "count": count, "scanned": scanned}


PER_DATABASE = [
    Measurement("copy_in", "copy_in", "new", {}),
    Measurement("scan_warm", "scan", "shared", {"cold": False}),
    Measurement("scan_cold", "scan", "shared", {"cold": True}),
    Measurement("scan_cold_throttled", "scan", "shared", {"cold": True, "throttled": True}),
    Measurement("point_warm", "points", "shared", {"cold": False}),
    Measurement("point_cold", "points", "shared", {"cold": True}),
    Measurement("update_delete_full", "updates", "copy", updates("delete", "FULL", "updates_rollback", True)),
    Measurement("update_delete_full_first", "updates", "copy", updates("delete", "FULL", "updates_rollback")),
    Measurement("update_delete_normal", "updates", "copy", updates("delete", "NORMAL", "updates_rollback", True)),
    Measurement("update_wal_full", "updates", "copy", updates("wal", "FULL", "updates_wal_full", True)),
    Measurement("update_wal_normal", "updates", "copy", updates("wal", "NORMAL", "updates_wal", True)),
    Measurement("update_wal_normal_first", "updates", "copy", updates("wal", "NORMAL", "updates_wal")),
    Measurement("update_wal_normal_long", "updates", "copy", updates("wal", "NORMAL", "updates_long", True)),
    Measurement("checkpoint", "checkpoint", "copy", {"count": "updates_checkpoint", "scanned": True}),
    Measurement("checkpoint_first", "checkpoint", "copy", {"count": "updates_checkpoint"}),
    Measurement("fold", "fold", "copy", {"count": "updates_long"}, against=None, once=True),
    Measurement("vacuum", "vacuum", "copy", {}),
    Measurement("open", "open", "shared", {}),
    Measurement("memory_scan", "scan", "shared", {"cold": False}, environment=LIMITED_CACHE),
]
ONCE = [
    Measurement("bulk_load", "bulk_load", "new", {"stream": False}),
    Measurement("random_load", "random_load", "new", {}, against="off"),
    Measurement("memory_load", "bulk_load", "new", {"stream": True}, environment=LIMITED_CACHE),
]

MEMORY_LIMIT = LIMITED_CACHE_BYTES + MEMORY_OVER_CACHE_BYTES
MEMORY_TEXT = "< %d MiB + cache" % (MEMORY_OVER_CACHE_BYTES >> 20)

# `size` is not measured but read from the packed files.
METRICS = [
    Metric("size", "file size after packing", "size", "bytes"),
    Metric("bulk_load", "bulk load, then index", "bulk_load", target=1.1, target_text="<= 1.1"),
    Metric("bulk_load_size", "file size after bulk load", "bulk_load", "bytes_after"),
    Metric("random_load", "storing random bytes, against `off`", "random_load", target=1 / 0.98,
           target_text="<= 1.02"),
    Metric("copy_in", "copy in (backup API)", "copy_in"),
    Metric("scan_warm", "full scan, warm", "scan_warm", target=1.15, target_text="<= 1.15"),
    Metric("scan_cold", "full scan, cold", "scan_cold"),
    Metric("scan_cold_throttled", "full scan, cold, disk at %d MB/s" % (THROTTLED_BYTES_PER_SECOND // 10**6),
           "scan_cold_throttled", target=0.67, target_text="<= 0.67"),
    Metric("point_warm", "random point read, warm", "point_warm", target=1.1, target_text="<= 1.1"),
    Metric("point_cold", "random point read, cold", "point_cold"),
    Metric("update_delete_full", "update, rollback, FULL", "update_delete_full", target=0.5, target_text="<= 0.5"),
    Metric("update_delete_full_first", "update, rollback, FULL, first touch", "update_delete_full_first"),
    Metric("update_delete_normal", "update, rollback, NORMAL", "update_delete_normal"),
    Metric("update_wal_full", "update, WAL, FULL", "update_wal_full"),
    Metric("update_wal_normal", "update, WAL, NORMAL", "update_wal_normal", target=1.1, target_text="<= 1.1"),
    Metric("update_wal_normal_first", "update, WAL, NORMAL, first touch", "update_wal_normal_first"),
    Metric("update_wal_normal_long", "update, WAL, NORMAL, long run", "update_wal_normal_long"),
    Metric("checkpoint", "checkpoint of scattered updates", "checkpoint", target=1.1, target_text="<= 1.1"),
    Metric("checkpoint_first", "checkpoint of scattered updates, first touch", "checkpoint_first"),
    Metric("checkpoint_size", "file size after that checkpoint", "checkpoint", "bytes_after"),
    Metric("long_size", "file size after the long run", "update_wal_normal_long", "bytes_after"),
    Metric("fold_size", "pool after the long run, folded and compacted, against a fresh pack", "fold", "bytes_after",
           beside="fresh_bytes", target=1.05, target_text="<= 1.05"),
    Metric("vacuum", "VACUUM", "vacuum"),
    Metric("open", "open and read one row", "open"),
    Metric("memory_scan", "memory over Python's, scan", "memory_scan", "own_peak_bytes", limit=MEMORY_LIMIT,
           target_text=MEMORY_TEXT),
    Metric("memory_load", "memory over Python's, bulk load", "memory_load", "own_peak_bytes", limit=MEMORY_LIMIT,
           target_text=MEMORY_TEXT),
]
BY_NAME = {m.name: m for m in METRICS}
