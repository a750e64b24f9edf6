"""The measurements of the series (see series.py), and the comparison of a folded pool with a fresh pack.

The rules are those of workloads.py: a function returns the fields of one sample, `check` must be equal on every side.
"""

import os
import random
import sqlite3
import subprocess
import zlib

import data
from workloads import (Wrong, closed, distribution, now, read_file, set_journal, update_sequence, verify_updates)

READS_PER_LOOK_AT_THE_CLOCK = 20


def first_scan(side, job, plan):
    """Scans with the file in the page cache and nothing decompressed yet: the cost of decompression."""
    read_file(job["path"])
    db = side.connect(job["path"])
    began = now()
    check = db.execute(plan["scan"]).fetchone()
    return {"seconds": now() - began, "ops": 1, "check": check}


def first_points(side, job, plan):
    """Reads by rowid in a new process, with the file in the page cache."""
    read_file(job["path"])
    db = side.connect(job["path"])
    db.text_factory = bytes
    rowids = plan["point_rowids"][:job["points"]]
    began = now()
    for rowid in rowids:
        db.execute(plan["point"], (rowid,)).fetchone()
    return {"seconds": now() - began, "ops": len(rowids), "check": check_of(db, plan, rowids)}


def any_and_hot_points(side, job, plan):
    """Reads rows for the first time, then the same rows again in another order."""
    read_file(job["path"])
    db = side.connect(job["path"])
    db.text_factory = bytes
    rowids = list(plan["point_rowids"])
    began = now()
    for rowid in rowids:
        db.execute(plan["point"], (rowid,)).fetchone()
    any_seconds = now() - began
    random.Random(1).shuffle(rowids)
    began = now()
    for rowid in rowids:
        db.execute(plan["point"], (rowid,)).fetchone()
    hot_seconds = now() - began
    return {"seconds": any_seconds, "ops": len(rowids), "any_seconds": any_seconds / len(rowids),
            "hot_seconds": hot_seconds / len(rowids), "check": check_of(db, plan, rowids)}


def check_of(db, plan, rowids):
    check = 0
    for rowid in rowids[:200]:
        check = zlib.crc32(repr(db.execute(plan["point"], (rowid,)).fetchone()).encode(), check)
    return check


def set_wal(side, job, plan):
    db = side.connect(job["path"])
    set_journal(db, "wal")
    return {"seconds": 0.0, "ops": 1, "check": None, "close_seconds": closed(db)}


def wait_for_start(job):
    os.write(job["ready_fd"], b"r")
    os.close(job["ready_fd"])
    os.read(job["go_fd"], 1)  # returns at the end of the pipe


def reader(side, job, plan):
    """Runs point reads for a given time, after one scan."""
    read_file(job["path"])
    db = side.connect(job["path"])
    db.execute(plan["scan"]).fetchone()
    db.text_factory = bytes
    rowids, sql = plan["point_rowids"], plan["point"]
    check = None if job["writers"] else check_of(db, plan, rowids)
    ops = job["index"] * 997  # every reader on rows of its own
    first = ops
    wait_for_start(job)
    began, end = now(), now() + job["duration"]
    while now() < end:
        for _ in range(READS_PER_LOOK_AT_THE_CLOCK):
            if db.execute(sql, (rowids[ops % len(rowids)],)).fetchone() is None:
                raise Wrong("a row is missing")
            ops += 1
    return {"seconds": now() - began, "ops": ops - first, "check": check}


def writer(side, job, plan):
    """Runs single-row transactions for a given time; then checks that every row has the last committed value."""
    read_file(job["path"])
    db = side.connect(job["path"])  # waits up to 30 s for other writers
    db.execute("PRAGMA synchronous=NORMAL")
    db.execute(plan["scan"]).fetchone()
    own = dict(plan, updates=plan["updates"][job["index"]::job["writers"]])
    written, took = {}, []
    wait_for_start(job)
    began, end = now(), now() + job["duration"]
    for rowid, value in update_sequence(own, 10**9):
        started = now()
        db.execute(plan["update"], (value, rowid))
        finished = now()
        took.append(finished - started)
        written[rowid] = value
        if finished >= end:
            break
    seconds = now() - began
    db.text_factory = bytes
    for rowid, value in written.items():
        if db.execute(plan["value"], (rowid,)).fetchone()[0] != (value.encode() if isinstance(value, str) else value):
            raise Wrong("a committed update is lost")
    found = distribution(took)
    del found["sorted_seconds"]
    return dict(found, seconds=seconds, ops=len(took), check=None, close_seconds=closed(db))


def fold(side, job, plan):
    """Makes many random updates, folds and compacts; compares with a fresh pack after the same updates."""
    def hardpack(*arguments):
        done = subprocess.run((job["cli"],) + arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
        return done.returncode, done.stderr.strip()[-300:]

    def must(*arguments):
        code, error = hardpack(*arguments)
        if code != 0:
            raise Wrong("hardpack %s: %s" % (arguments[0], error))

    for command in ("fold", "compact"):
        if not os.path.exists(job["cli"]) or hardpack("help", command)[0] != 0:
            return {"skipped": "this hardpack has no command '%s'" % command}
    path, plain, fresh = job["path"], job["path"] + ".plain", job["path"] + ".fresh"
    try:
        update_all(side.connect(path), plan, job["updates"])
        updated_bytes, began = os.path.getsize(path), now()
        must("fold", path)
        folded_bytes, seconds = os.path.getsize(path), now() - began
        must("compact", path)
        data.copy(job["source"], plain)
        update_all(sqlite3.connect(plain, isolation_level=None), plan, job["updates"])
        must("pack", plain, fresh, "--compression", side.codec, "--quiet")
        return {"seconds": seconds, "ops": 1, "check": verify_updates(side, job, plan, job["updates"]),
                "updated_bytes": updated_bytes, "folded_bytes": folded_bytes, "bytes_after": os.path.getsize(path),
                "fresh_bytes": os.path.getsize(fresh)}
    finally:
        data.remove_database(plain)
        data.remove_database(fresh)


def update_all(db, plan, count):
    set_journal(db, "wal")
    db.execute("PRAGMA synchronous=NORMAL")
    for rowid, value in update_sequence(plan, count):
        db.execute(plan["update"], (value, rowid))
    db.close()


OPS = {"first_scan": first_scan, "first_points": first_points, "any_and_hot_points": any_and_hot_points,
       "set_wal": set_wal, "reader": reader, "writer": writer, "fold": fold}
