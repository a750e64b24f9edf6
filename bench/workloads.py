"""The measurements. They run in a child process; each function returns the fields of one sample.

`seconds` is the time of `ops` operations, without warming, checking and closing; `close_seconds` and
`bytes_after` report work that could hide there. `check` must be equal on every side, or the measurement
counts as failed.
"""

import marshal
import os
import random
import time
import zlib

import data
import throttle

RANDOM_BLOB_BYTES, RANDOM_BLOBS_PER_TRANSACTION = 64 << 10, 256

now = time.perf_counter


class Wrong(Exception):
    """The database lacks something that was written to it."""


def read_file(path):
    """Brings a whole file into the page cache."""
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 20):
            pass


def drop_cache(path, method):
    """Evicts a database from the page cache; returns the method."""
    if method in ("auto", "drop") and os.geteuid() == 0:
        try:
            data.sync(path)
            with open("/proc/sys/vm/drop_caches", "w") as control:
                control.write("3\n")
            return "drop_caches"
        except OSError:
            if method == "drop":
                raise
    for suffix in ("", "-journal", "-wal"):
        if os.path.exists(path + suffix):
            fd = os.open(path + suffix, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
    return "fadvise"


def closed(db):
    began = now()
    db.close()
    return now() - began


def scan(side, job, plan):
    repeat = job["repeat"]
    if job["cold"]:
        method = drop_cache(job["path"], job["cold_method"])
        if "group" in job:
            throttle.enter(job["group"])
        began = now()
        db = side.connect(job["path"])
        check = db.execute(plan["scan"]).fetchone()
        return {"seconds": now() - began, "ops": 1, "check": check, "cold_method": method}
    read_file(job["path"])
    db = side.connect(job["path"])
    check = db.execute(plan["scan"]).fetchone()
    began = now()
    for _ in range(repeat):
        db.execute(plan["scan"]).fetchone()
    return {"seconds": now() - began, "ops": repeat, "check": check}


def points(side, job, plan):
    """Reads by rowid from the whole table, on one connection with the default cache."""
    rowids, sql = plan["point_rowids"], plan["point"]
    half = len(rowids) // 2
    warming, timed = rowids[:half], rowids[half:]
    if job["cold"]:
        timed = timed[:job["points_cold"]]
        method = drop_cache(job["path"], job["cold_method"])
        began = now()
        db = side.connect(job["path"])
        db.text_factory = bytes
    else:
        method = None
        read_file(job["path"])
        db = side.connect(job["path"])
        db.text_factory = bytes  # no decoding: the time is the database's, and any bytes will do
        for rowid in warming:  # other rows than those timed
            db.execute(sql, (rowid,)).fetchone()
        began = now()
    for rowid in timed:
        db.execute(sql, (rowid,)).fetchone()
    seconds = now() - began
    check = 0
    for rowid in timed[:500]:
        check = zlib.crc32(repr(db.execute(sql, (rowid,)).fetchone()).encode(), check)
    return {"seconds": seconds, "ops": len(timed), "check": check, "cold_method": method}


def update_sequence(plan, count):
    """Yields `count` updates; a table with fewer rows is updated again, back to the old values."""
    planned = plan["updates"]
    for i in range(count):
        rowid, new, old = planned[i % len(planned)]
        yield rowid, new if i // len(planned) % 2 == 0 else old


def verify_updates(side, job, plan, count):
    expected = dict(update_sequence(plan, count))
    db = side.connect(job["path"])
    db.text_factory = bytes
    for rowid, value in expected.items():
        found = db.execute(plan["value"], (rowid,)).fetchone()
        if found is None or found[0] != (value.encode() if isinstance(value, str) else value):
            raise Wrong("row %d of %s lacks the committed value" % (rowid, plan["table"]))
    if job["integrity"]:
        verdict = db.execute("PRAGMA integrity_check").fetchone()[0]
        if verdict != b"ok":
            raise Wrong("integrity_check: %s" % verdict.decode(errors="replace"))
    db.close()
    return zlib.crc32(repr(sorted(expected.items())).encode())


def set_journal(db, mode):
    given = db.execute("PRAGMA journal_mode=" + mode).fetchone()[0]
    if (given == "wal") != (mode == "wal"):
        raise Wrong("journal_mode=%s gave %s" % (mode, given))
    return given


def opened_for_writing(side, job, plan):
    """Opens a database in the page cache; with `scanned`, also scanned once on the connection that will write."""
    read_file(job["path"])
    db = side.connect(job["path"])
    if job.get("scanned"):
        db.execute(plan["scan"]).fetchone()
    return db


def distribution(took):
    """Returns percentiles of latencies, and the sorted sample thinned to [share of transactions, seconds]."""
    took, count = sorted(took), len(took)
    found = {"%s_seconds" % name: took[min(count - 1, int(count * share))]
             for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99_9", 0.999))}
    # Evenly spaced in log(1 - share), so that the tail keeps its detail.
    kept = sorted({min(count - 1, int(count * (1 - count ** (-i / 120)))) for i in range(121)})
    return dict(found, max_seconds=took[-1], sorted_seconds=[[round(i / count, 6), round(took[i], 8)] for i in kept])


def updates(side, job, plan):
    """Runs single-row transactions. In WAL mode automatic checkpoints happen as usual."""
    count, sql = job["updates"], plan["update"]
    db = opened_for_writing(side, job, plan)
    mode = set_journal(db, job["journal"])
    db.execute("PRAGMA synchronous=" + job["synchronous"])
    for rowid, _, old in plan["updates"][:10]:
        db.execute(sql, (old, rowid))
    took = []
    for rowid, value in update_sequence(plan, count):
        began = now()
        db.execute(sql, (value, rowid))
        took.append(now() - began)
    seconds, close_seconds = sum(took), closed(db)
    check = verify_updates(side, job, plan, count)
    found = distribution(took)
    if not job.get("latencies"):
        del found["sorted_seconds"]
    return dict(found, seconds=seconds, ops=count, check=check, close_seconds=close_seconds, journal_mode=mode,
                bytes_after=os.path.getsize(job["path"]))


def checkpoint(side, job, plan):
    """Runs one checkpoint of many scattered single-row transactions."""
    count = job["updates"]
    db = opened_for_writing(side, job, plan)
    set_journal(db, "wal")
    db.execute("PRAGMA wal_autocheckpoint=0")
    db.execute("PRAGMA synchronous=OFF")
    for rowid, value in update_sequence(plan, count):
        db.execute(plan["update"], (value, rowid))
    wal_bytes = os.path.getsize(job["path"] + "-wal") if os.path.exists(job["path"] + "-wal") else None
    db.execute("PRAGMA synchronous=FULL")
    began = now()
    busy = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    seconds = now() - began
    if busy:
        raise Wrong("wal_checkpoint was busy")
    close_seconds = closed(db)
    after = data.sizes(job["path"])
    check = verify_updates(side, job, plan, count)
    return {"seconds": seconds, "ops": 1, "check": check, "close_seconds": close_seconds, "wal_bytes": wal_bytes,
            "bytes_after": after["bytes"], "allocated_bytes_after": after["allocated_bytes"]}


def vacuum(side, job, plan):
    read_file(job["path"])
    db = side.connect(job["path"])
    set_journal(db, "delete")
    db.execute("PRAGMA synchronous=FULL")
    began = now()
    db.execute("VACUUM")
    seconds = now() - began
    check = db.execute(plan["scan"]).fetchone()
    return {"seconds": seconds, "ops": 1, "check": check, "close_seconds": closed(db),
            "bytes_after": os.path.getsize(job["path"])}


def open_database(side, job, plan):
    """Connects and reads a first row repeatedly: the median, and the first, which is that of a new process."""
    if job.get("read", True):
        read_file(job["path"])
    took = []
    for i in range(job["opens"] + 2):
        began = now()
        db = side.connect(job["path"])
        db.text_factory = bytes
        row = db.execute(plan["first"]).fetchone()
        took.append(now() - began)
        db.close()
    first, took = took[0], sorted(took[2:])
    return {"seconds": took[len(took) // 2], "ops": 1, "check": zlib.crc32(repr(row).encode()), "max_seconds": took[-1],
            "first_seconds": first}


def copy_in(side, job, plan):
    """Runs the online backup of a plain database into a new one."""
    import sqlite3
    read_file(job["source"])
    source = sqlite3.connect(job["source"])
    db = side.connect(job["path"])
    began = now()
    source.backup(db)
    seconds = now() - began
    check = db.execute(plan["scan"]).fetchone()
    return {"seconds": seconds, "ops": 1, "check": check, "close_seconds": closed(db),
            "bytes_after": os.path.getsize(job["path"])}


def bulk_load(side, job, plan):
    """Creates a table, inserts in large transactions, then creates an index.

    To measure time, all rows are in memory first, so that the timed part has no pauses; to measure peak memory
    (`stream`), they come in small chunks, so that the rows themselves take little.
    """
    def chunks():
        with open(job["source"], "rb") as rows:
            while True:
                try:
                    yield marshal.load(rows)
                except EOFError:
                    return

    feed = chunks() if job["stream"] else list(chunks())
    db = side.connect(job["path"])
    began = now()
    db.execute(data.ORDERS_SQL)
    for i, rows in enumerate(feed):
        if i % job["chunks_per_transaction"] == 0:
            if i:
                db.execute("COMMIT")
            db.execute("BEGIN")
        db.executemany(data.ORDERS_INSERT_SQL, rows)
    db.execute("COMMIT")
    db.execute(data.ORDERS_INDEX_SQL)
    seconds = now() - began
    check = db.execute("SELECT count(*), sum(length(address)), sum(quantity) FROM orders NOT INDEXED").fetchone()
    return {"seconds": seconds, "ops": 1, "check": check, "close_seconds": closed(db),
            "bytes_after": os.path.getsize(job["path"])}


def random_load(side, job, plan):
    """Stores incompressible blobs from a fixed seed."""
    rng = random.Random(1)
    blobs = [rng.randbytes(RANDOM_BLOB_BYTES)
             for _ in range(job["random_bytes"] // RANDOM_BLOB_BYTES)]
    db = side.connect(job["path"])
    db.execute("CREATE TABLE blobs(id INTEGER PRIMARY KEY, body BLOB)")
    began = now()
    for start in range(0, len(blobs), RANDOM_BLOBS_PER_TRANSACTION):
        db.execute("BEGIN")
        db.executemany("INSERT INTO blobs(body) VALUES(?)",
                       ((blob,) for blob in blobs[start:start + RANDOM_BLOBS_PER_TRANSACTION]))
        db.execute("COMMIT")
    seconds = now() - began
    check = 0
    for blob, (stored,) in zip(blobs, db.execute("SELECT body FROM blobs ORDER BY id")):
        if stored != blob:
            raise Wrong("a blob differs from the stored one")
        check += 1
    return {"seconds": seconds, "ops": 1, "check": check, "close_seconds": closed(db),
            "bytes_after": os.path.getsize(job["path"])}


def stats(side, job, plan):
    """Returns Hardpack's statistics of a database; {} for stock SQLite."""
    return {"seconds": 0.0, "ops": 1, "check": None, "stats": side.stats(job["path"])}


OPS = {"scan": scan, "points": points, "updates": updates, "checkpoint": checkpoint, "vacuum": vacuum,
       "open": open_database, "copy_in": copy_in, "bulk_load": bulk_load, "random_load": random_load, "stats": stats}
