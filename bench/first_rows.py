#!/usr/bin/env python3
"""Measures the first random rows that a fresh process reads from a database, beside stock SQLite.

usage: first_rows.py [--db PATH] [--mb MB] [--rows N,N...] [--rounds N] [--kind KIND]... [--packed PATH] [--cold]
                     [--cache PATH] [--work DIR] [--lib PATH] [--cli PATH] [--json]

Each sample is a process of its own, which loads the extension, opens the database and reads one row after another by
rowid, always the same ones in the same order. The kinds are a plain file, a pool, and a pool with a shared cache that an
earlier process has filled; they alternate. The files are in the page cache, unless --cold asks for their pages to be
dropped before each sample. Prints medians in microseconds: of loading the extension, of opening (the schema included), of
the first row, and of each of the first N rows on average, the first one included; and those averages as multiples of
stock's. Without --db, a database of --mb megabytes is generated. --packed names a pool with that database, instead of
packing it here.
"""

import argparse
import json
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse

import grow
import machine
import plan

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
KINDS = ("stock", "pool", "shared")
SEED = 11


def parse_arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db")
    parser.add_argument("--mb", type=int, default=300)
    parser.add_argument("--rows", default="1,20,100,1000")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--kind", action="append", choices=KINDS, default=[])
    parser.add_argument("--packed")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--cache", help="the file of the shared cache; in memory by default")
    parser.add_argument("--work", default=None)
    parser.add_argument("--lib", default=os.path.join(ROOT, "target/release/libhardpack"))
    parser.add_argument("--cli", default=os.path.join(ROOT, "target/release/hardpack"))
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(argv)


def queries(path, count):
    """Returns a query for one row of the largest table with rowids, and `count` rowids from all over it."""
    db = sqlite3.connect(path)
    try:
        for _, name in plan.table_sizes(db):
            table = plan.quoted(name)
            if db.execute("SELECT 1 FROM %s LIMIT 1" % table).fetchone():
                rowids = plan.sample_rowids(db, table, "rowid", count, random.Random(SEED))
                return "SELECT * FROM %s WHERE rowid=?" % table, rowids
    finally:
        db.close()
    raise SystemExit("the database has no table with rowids")


def sample(job):
    """The process of one sample. Prints the times of its steps in seconds, and a sum of what it read."""
    clock = time.perf_counter
    # The library is loaded and warm; only the database and the extension are new.
    warm = sqlite3.connect(":memory:")
    warm.execute("CREATE TABLE t(a)")
    warm.execute("SELECT a FROM t WHERE rowid=?", (1,)).fetchone()
    began = clock()
    if job["lib"]:
        warm.enable_load_extension(True)
        warm.load_extension(job["lib"])
    loaded = clock()
    uri = "file:" + urllib.parse.quote(job["path"]) + ("?vfs=hardpack" if job["lib"] else "")
    db = sqlite3.connect(uri, uri=True, isolation_level=None)
    db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    opened = clock()
    query, ends, checksum = job["query"], [], 0
    for rowid in job["rowids"]:
        row = db.execute(query, (rowid,)).fetchone()
        ends.append(clock())
        checksum += sum(len(value) if hasattr(value, "__len__") else 1 for value in row)
    json.dump({
        "load": loaded - began, "open": opened - loaded, "first": ends[0] - opened,
        "rows": {count: (ends[count - 1] - opened) / count for count in job["counts"]}, "checksum": checksum,
    }, sys.stdout)


def drop_pages(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def run(job, cold):
    if cold:
        drop_pages(job["path"])
    environment = dict(os.environ, HARDPACK_SHARED_CACHE=job["cache"])
    done = subprocess.run([sys.executable, os.path.abspath(__file__), "--sample"], input=json.dumps(job), text=True,
                          stdout=subprocess.PIPE, env=environment)
    if done.returncode:
        raise SystemExit("a sample has failed")
    return json.loads(done.stdout)


def measure(args, work):
    base = args.db
    if not base:
        base = os.path.join(work, "base.db")
        grow.generate(base, args.mb * 10**6, SEED)
    kinds = [kind for kind in KINDS if kind in (args.kind or KINDS) or kind == "stock"]
    packed = args.packed
    if not packed and kinds != ["stock"]:
        packed = os.path.join(work, "packed.hpk")
        subprocess.run([args.cli, "pack", base, packed], stdout=subprocess.DEVNULL, check=True)
    counts = sorted(map(int, args.rows.split(",")))
    query, rowids = queries(base, counts[-1])
    jobs = {}
    for kind in kinds:
        jobs[kind] = {
            "query": query, "rowids": rowids, "counts": counts, "cache": args.cache if kind == "shared" else "off",
            "path": base if kind == "stock" else packed, "lib": None if kind == "stock" else args.lib,
        }
    # One process warms the page cache, and fills the shared one.
    checksums = {run(job, False)["checksum"] for job in jobs.values()}
    samples = {kind: [] for kind in kinds}
    for _ in range(args.rounds):
        for kind in kinds:
            samples[kind].append(run(jobs[kind], args.cold))
            checksums.add(samples[kind][-1]["checksum"])
    if len(checksums) > 1:
        raise SystemExit("the kinds have not read the same rows")
    return samples


def median_us(samples, value):
    return 1e6 * statistics.median(map(value, samples))


def report(samples):
    counts = list(samples["stock"][0]["rows"])
    print("kind       load     open    first" + "".join("%9s %7s" % (count, "x stock") for count in counts))
    for kind, own in samples.items():
        line = "%-6s" % kind + "".join("%9.0f" % median_us(own, lambda one: one[step]) for step in
                                       ("load", "open", "first"))
        for count in counts:
            ratio = statistics.median(one["rows"][count] / stock["rows"][count]
                                      for one, stock in zip(own, samples["stock"]))
            line += "%9.1f %7.2f" % (median_us(own, lambda one: one["rows"][count]), ratio)
        print(line, flush=True)


def main(argv):
    if argv[:1] == ["--sample"]:
        return sample(json.load(sys.stdin))
    args = parse_arguments(argv)
    machine.use_python_with_extensions()
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="hardpack-first-rows-", dir=args.work) as work, \
            tempfile.TemporaryDirectory(prefix="hardpack-first-rows-", dir=memory) as memory:
        args.cache = args.cache or os.path.join(memory, "cache")
        samples = measure(args, work)
    if args.json:
        json.dump(samples, sys.stdout, indent=1)
    else:
        report(samples)


if __name__ == "__main__":
    main(sys.argv[1:])
