"""Runs one measurement in its own process: a job (JSON) on stdin, a sample (JSON) on stdout.

The process is warmed up first (code, threads, allocator) on a tiny database of the same kind, so that only the
data is cold in cold measurements.
"""

import json
import marshal
import os
import resource
import sqlite3
import sys
import urllib.parse

import data
import workloads
import workloads_series

OPS = dict(workloads.OPS, **workloads_series.OPS)


class Side:
    """One side of the comparison, and how it opens a database."""

    def __init__(self, spec):
        self.lib, self.codec = spec.get("lib"), spec.get("codec")
        if self.lib:
            # Loading registers the VFS for the whole process and its lifetime; this connection is
            # not needed again.
            loader = sqlite3.connect(":memory:")
            self.load(loader)
            loader.close()

    def load(self, db):
        db.enable_load_extension(True)
        db.load_extension(self.lib)
        db.enable_load_extension(False)

    def connect(self, path):
        uri = "file:" + urllib.parse.quote(path)
        if self.lib:
            compression, _, filter_ = self.codec.partition("/")
            uri += "?vfs=hardpack&hardpack_compression=" + urllib.parse.quote(compression)
            uri += "&hardpack_filter=" + filter_ if filter_ else ""
        return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=30)

    def stats(self, path):
        """Returns hardpack_stats as a dictionary."""
        if not self.lib:
            return {}
        db = self.connect(path)
        try:
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            try:
                cursor = db.execute("SELECT * FROM hardpack_stats")
            except sqlite3.OperationalError:
                self.load(db)
                cursor = db.execute("SELECT * FROM hardpack_stats")
            return {row[0]: row[1] for row in cursor}
        finally:
            db.close()


def warm_process(side, directory):
    path = os.path.join(directory, "warm-%d.db" % os.getpid())
    try:
        db = side.connect(path)
        db.execute("PRAGMA synchronous=OFF")
        db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT)")
        db.execute("BEGIN")
        db.executemany("INSERT INTO t VALUES(?,?)", ((i, "row %d" % i) for i in range(3000)))
        db.execute("COMMIT")
        db.execute("UPDATE t SET v='changed' WHERE id=70")
        db.execute("SELECT sum(length(v)) FROM t").fetchone()
        db.close()
        db = side.connect(path)
        db.execute("SELECT v FROM t WHERE id=70").fetchone()
        db.close()
    finally:
        data.remove_database(path)


def require_pool(path):
    """Refuses a plain file, which would also open through the VFS and be measured as if it were compressed."""
    with open(path, "rb") as file:
        if file.read(16) == b"SQLite format 3\0":
            raise workloads.Wrong("the database is a plain file, not a pool")


def peak_bytes():
    """Returns the largest resident size of this process.

    It uses VmHWM if available: Linux's ru_maxrss starts at the size of the process that spawned this one.
    """
    try:
        with open("/proc/self/status") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main():
    job = json.load(sys.stdin)
    plan = None
    if job.get("plan"):
        with open(job["plan"], "rb") as file:
            plan = marshal.load(file)
    python_bytes = peak_bytes()
    side = Side(job["side"])
    warm_process(side, job["directory"])
    before = resource.getrusage(resource.RUSAGE_SELF)
    sample = OPS[job["op"]](side, job, plan)
    after = resource.getrusage(resource.RUSAGE_SELF)
    sample["process_cpu_seconds"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    sample["peak_bytes"] = peak_bytes()
    sample["own_peak_bytes"] = sample["peak_bytes"] - python_bytes
    if side.lib and "skipped" not in sample:
        require_pool(job["path"])
    json.dump(sample, sys.stdout)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:  # one line for the parent, which reports the measurement as failed
        print("%s: %s" % (type(error).__name__, error), file=sys.stderr)
        sys.exit(1)
