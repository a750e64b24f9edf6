"""The measurements, the metrics read from their samples, and the alternating run of both sides."""

import dataclasses
import json
import os
import subprocess
import sys
import time

import data

SELF_TEST_SIDE = "again"
BULK_CHUNK_ROWS = 1000
SCALES = {
    False: {"points": 5000, "points_cold": 1000, "updates_rollback": 400, "updates_wal_full": 2100, "updates_wal": 4000,
            "updates_checkpoint": 2000, "opens": 40, "bulk_rows": 300_000, "bulk_transaction_rows": 50_000,
            "generated_mb": 64, "scan_seconds": 0.3},
    True: {"points": 500, "points_cold": 100, "updates_rollback": 25, "updates_wal_full": 60, "updates_wal": 1100,
           "updates_checkpoint": 200, "opens": 8, "bulk_rows": 6000, "bulk_transaction_rows": 3000,
           "generated_mb": 3, "scan_seconds": 0.02},
}


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One kind of child process. `on`: the packed database itself, a copy of it, or a new file."""
    name: str
    op: str
    on: str
    job: dict


@dataclasses.dataclass(frozen=True)
class Metric:
    """One line of the report: a field of a measurement's samples, lower is better."""
    name: str
    title: str
    measurement: str
    field: str = "seconds"
    target: float = None
    target_text: str = ""


def updates(journal, synchronous, count):
    return {"journal": journal, "synchronous": synchronous, "count": count}


PER_DATABASE = [
    Measurement("copy_in", "copy_in", "new", {}),
    Measurement("scan_warm", "scan", "shared", {"cold": False}),
    Measurement("scan_cold", "scan", "shared", {"cold": True}),
    Measurement("point_warm", "points", "shared", {"cold": False}),
    Measurement("point_cold", "points", "shared", {"cold": True}),
    Measurement("update_delete_full", "updates", "copy", updates("delete", "FULL", "updates_rollback")),
    Measurement("update_delete_normal", "updates", "copy", updates("delete", "NORMAL", "updates_rollback")),
    Measurement("update_wal_full", "updates", "copy", updates("wal", "FULL", "updates_wal_full")),
    Measurement("update_wal_normal", "updates", "copy", updates("wal", "NORMAL", "updates_wal")),
    Measurement("checkpoint", "checkpoint", "copy", {"count": "updates_checkpoint"}),
    Measurement("vacuum", "vacuum", "copy", {}),
    Measurement("open", "open", "shared", {}),
]
ONCE = [
    Measurement("bulk_load", "bulk_load", "new", {"stream": False}),
    Measurement("memory_load", "bulk_load", "new", {"stream": True}),
]

# `size` is not run but read from the packed files; see `size_samples`.
METRICS = [
    Metric("size", "file size after packing", "size", "bytes"),
    Metric("bulk_load", "bulk load, then index", "bulk_load", target=1.5, target_text="<= 1.5"),
    Metric("bulk_load_size", "file size after bulk load", "bulk_load", "bytes_after"),
    Metric("copy_in", "copy in (backup API)", "copy_in"),
    Metric("scan_warm", "full scan, warm", "scan_warm", target=1.5, target_text="<= 1.5"),
    Metric("scan_cold", "full scan, cold", "scan_cold", target=1.0, target_text="<= 1.0"),
    Metric("point_warm", "random point read, warm", "point_warm", target=1.3, target_text="<= 1.3"),
    Metric("point_cold", "random point read, cold", "point_cold"),
    Metric("update_delete_full", "update, rollback, FULL", "update_delete_full", target=1 / 1.5, target_text="<= 0.67"),
    Metric("update_delete_normal", "update, rollback, NORMAL", "update_delete_normal"),
    Metric("update_wal_full", "update, WAL, FULL", "update_wal_full"),
    Metric("update_wal_normal", "update, WAL, NORMAL", "update_wal_normal", target=1.2, target_text="<= 1.2"),
    Metric("checkpoint", "checkpoint of scattered updates", "checkpoint"),
    Metric("checkpoint_size", "file size after that checkpoint", "checkpoint", "bytes_after"),
    Metric("vacuum", "VACUUM", "vacuum"),
    Metric("open", "open and read one row", "open"),
    Metric("memory_scan", "peak memory, scan", "scan_warm", "peak_bytes"),
    Metric("memory_load", "peak memory, bulk load", "memory_load", "peak_bytes"),
]

POOL_OVERHEAD_FACTOR, POOL_OVERHEAD_BYTES = 1.01, 64 * 1024


class Failed(Exception):
    """A child did not give a sample."""


class Runner:
    """Runs children and keeps every raw sample."""

    def __init__(self, options, scale, directory, progress):
        self.options, self.scale, self.directory, self.progress = options, scale, directory, progress
        self.samples, self.failures = [], []

    def side_spec(self, side):
        """`side` is "stock" or a codec."""
        if side == "stock" or self.options.self_test:
            return {}
        return {"lib": self.options.lib, "codec": side}

    def child(self, job, side):
        job = dict(job, side=self.side_spec(side), directory=self.directory, cold_method=self.options.cold,
                   integrity=self.options.integrity)
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "child.py")
        process = subprocess.Popen([sys.executable, "-B", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        try:
            out, error = process.communicate(json.dumps(job), timeout=self.options.timeout)
        except subprocess.TimeoutExpired:
            raise Failed("no result within %d s" % self.options.timeout) from None
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if process.returncode != 0:
            lines = error.strip().splitlines()
            raise Failed("%s (exit %d)" % (lines[-1] if lines else "no message", process.returncode))
        return json.loads(out)

    def job_for(self, measurement, database):
        job = dict(measurement.job, op=measurement.op, plan=database.plan_path)
        job.update(points_cold=self.scale["points_cold"], opens=self.scale["opens"], repeat=database.scan_repeat,
                   source=database.base)
        job["chunks_per_transaction"] = self.scale["bulk_transaction_rows"] // BULK_CHUNK_ROWS
        if measurement.op in ("updates", "checkpoint"):
            job["updates"] = self.scale[job["count"]]
        return job

    def measure(self, measurement, database, side, run):
        """One sample on its own files; never raises for what the measured side does."""
        job, copied = self.job_for(measurement, database), measurement.on != "shared"
        job["path"] = os.path.join(self.directory, "run.db") if copied else database.variants.get(side)
        entry = {"database": database.name, "measurement": measurement.name, "side": side, "run": run}
        try:
            if job["path"] is None or (measurement.on == "copy" and side not in database.variants):
                raise Failed("the database could not be packed")
            if measurement.on == "copy":
                data.copy(database.variants[side], job["path"])
            entry.update(self.child(job, side))
        except (Failed, OSError, ValueError) as error:
            entry["error"] = str(error)
            self.failures.append("%s, %s, %s: %s" % (database.name, measurement.name, side, error))
        finally:
            if copied:
                data.remove_database(job["path"])
        self.samples.append(entry)
        self.progress.step("%s, %s, %s, run %d/%d: %s" % (
            database.name, measurement.name, side, run + 1, self.options.runs,
            entry.get("error") or "%.4g s" % entry["seconds"]))
        return entry

    def measure_alternating(self, measurement, database, codecs):
        """stock, codecs…, stock, codecs…: neighbours in time are compared with each other."""
        for run in range(self.options.runs):
            stock = self.measure(measurement, database, "stock", run)
            for codec in codecs:
                entry = self.measure(measurement, database, codec, run)
                if "error" not in entry and "error" not in stock and entry["check"] != stock["check"]:
                    entry["error"] = "result differs from stock: %r, not %r" % (entry["check"], stock["check"])
                    self.failures.append("%s, %s, %s: %s" % (database.name, measurement.name, codec, entry["error"]))


class Progress:
    """One line per measurement; on a terminal a single line that moves, with the time left."""

    def __init__(self, total, stream=sys.stderr):
        self.total, self.done, self.stream, self.began = total, 0, stream, time.monotonic()
        self.terminal = stream.isatty()

    def note(self, text):
        print(("\r\x1b[K" if self.terminal else "") + text, file=self.stream, flush=True)

    def step(self, text):
        self.done += 1
        left = (time.monotonic() - self.began) / self.done * (self.total - self.done)
        line = "[%*d/%d] %s" % (len(str(self.total)), self.done, self.total, text)
        if self.terminal:
            width = os.get_terminal_size(self.stream.fileno()).columns or 80  # some terminals say 0
            line = ("%s  (%d:%02d left)" % (line, left // 60, left % 60))[:max(20, width - 1)]
            print("\r\x1b[K" + line, end="", file=self.stream, flush=True)
        else:
            print(line, file=self.stream, flush=True)

    def finish(self):
        if self.terminal:
            print("\r\x1b[K", end="", file=self.stream, flush=True)
