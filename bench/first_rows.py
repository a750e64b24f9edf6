#!/usr/bin/env python3
"""Measures the first random rows that a fresh process reads from a database, beside stock SQLite.

usage: first_rows.py [--db PATH] [--mb MB] [--rows N,N...] [--rounds N] [--kind KIND]... [--packed PATH] [--cold]
                     [--cache PATH] [--work DIR] [--lib PATH] [--cli PATH] [--json] [--chart FILE]

Each sample is a process of its own, which loads the extension, opens the database and reads one row after another by
rowid, always the same ones in the same order. The kinds are a plain file, a pool, and a pool with a shared cache that an
earlier process has filled; they alternate. The files are in the page cache, unless --cold asks for their pages to be
dropped before each sample. Prints medians in microseconds: of loading the extension, of opening (the schema included), of
the first row, and of each of the first N rows on average, the first one included; and those averages as multiples of
stock's. Without --db, a database of --mb megabytes is generated. --packed names a pool with that database, instead of
packing it here.

--chart draws those averages as an SVG, up to the first thousand rows, with the files in the page cache and without. It adds
two kinds: a pool without compression, and the plain file on btrfs (a loop device, compress-force=zstd:3), which needs root.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse

import charts
import grow
import machine
import mount
import plan

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
KINDS = ("stock", "btrfs", "off", "pool", "shared")
TABLE_KINDS = ("stock", "pool", "shared")
SEED = 11
CHART_COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
LEGEND = {"stock": ("stock SQLite, a plain file", "grey"), "btrfs": ("stock SQLite on btrfs, zstd-3", "brown"),
          "off": ("pool without compression", "teal"), "pool": ("pool at defaults", "blue"),
          "shared": ("pool at defaults, shared cache", "green")}


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
    parser.add_argument("--chart")
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


def drop_pages(job):
    """Drops a file from the page cache; as root everything, since a file system on a loop device has its own pages."""
    if os.geteuid() == 0:
        mount.drop_caches()
        # The library is no part of what is measured.
        if job["lib"]:
            mount.read_file(job["lib"] + ("" if job["lib"].endswith(".so") else ".so"))
        return
    descriptor = os.open(job["path"], os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def run(job, cold):
    if cold:
        drop_pages(job)
    environment = dict(os.environ, HARDPACK_SHARED_CACHE=job["cache"])
    done = subprocess.run([sys.executable, os.path.abspath(__file__), "--sample"], input=json.dumps(job), text=True,
                          stdout=subprocess.PIPE, env=environment)
    if done.returncode:
        raise SystemExit("a sample has failed")
    return json.loads(done.stdout)


def pack(args, base, packed, *options):
    subprocess.run([args.cli, "pack", base, packed, *options], stdout=subprocess.DEVNULL, check=True)
    return packed


def make_jobs(args, work, kinds, counts, undo):
    """Makes the files of each kind. `undo` collects what must be undone."""
    base = args.db
    if not base:
        base = os.path.join(work, "base.db")
        grow.generate(base, args.mb * 10**6, SEED)
    query, rowids = queries(base, counts[-1])
    paths = {"stock": base}
    if "btrfs" in kinds:
        mounted = mount.Mounted("btrfs", os.path.join(work, "btrfs"), args.cli)
        undo.callback(mounted.unmount)
        paths["btrfs"] = shutil.copy(base, mounted.path("base.db"))
        mounted.sync()
    if "off" in kinds:
        paths["off"] = pack(args, base, os.path.join(work, "off.hpk"), "--compression", "off")
    if "pool" in kinds or "shared" in kinds:
        packed = args.packed or pack(args, base, os.path.join(work, "packed.hpk"))
        paths.update({kind: packed for kind in ("pool", "shared") if kind in kinds})
    return {
        kind: {
            "query": query, "rowids": rowids, "counts": counts, "cache": args.cache if kind == "shared" else "off",
            "path": paths[kind], "lib": None if kind in ("stock", "btrfs") else args.lib,
        } for kind in kinds
    }


def measure(jobs, rounds, cold):
    """Returns the samples of each kind."""
    # One process warms the page cache, and fills the shared one.
    checksums = {run(job, False)["checksum"] for job in jobs.values()}
    samples = {kind: [] for kind in jobs}
    for _ in range(rounds):
        for kind, job in jobs.items():
            samples[kind].append(run(job, cold))
            checksums.add(samples[kind][-1]["checksum"])
    if len(checksums) > 1:
        raise SystemExit("the kinds have not read the same rows")
    return samples


def median_us(samples, value):
    return 1e6 * statistics.median(map(value, samples))


def report(samples, counts):
    print("kind       load     open    first" + "".join("%9s %7s" % (count, "x stock") for count in counts))
    for kind, own in samples.items():
        line = "%-6s" % kind + "".join("%9.0f" % median_us(own, lambda one: one[step]) for step in
                                       ("load", "open", "first"))
        for count in counts:
            ratio = statistics.median(one["rows"][count] / stock["rows"][count]
                                      for one, stock in zip(own, samples["stock"]))
            line += "%9.1f %7.2f" % (median_us(own, lambda one: one["rows"][count]), ratio)
        print(line, flush=True)


def chart(warm, cold):
    """Draws the averages of both sets of samples, over the number of rows."""
    def curve(own):
        return [(int(count), median_us(own, lambda one: one["rows"][count])) for count in own[0]["rows"]]

    panels = []
    for title, samples in (("Files in the page cache", warm), ("Page cache dropped before each process", cold)):
        lines = [charts.Line(LEGEND[kind][0], LEGEND[kind][1], curve(own)) for kind, own in samples.items()]
        values = [value for line in lines for _, value in line.points]
        x = charts.Axis("rows read (logarithmic)", 1, max(count for line in lines for count, _ in line.points), True)
        panels.append(charts.Panel(title, x, charts.log_axis("microseconds for each row (logarithmic)", values), lines))
    subtitle = ("Random rows of one table, by rowid, each process a new one: the average over the first N rows, the first "
                "one included. Medians of processes. Lower is faster.")
    legend = [charts.Line(LEGEND[kind][0], LEGEND[kind][1], []) for kind in warm]
    footer = "%d and %d processes of each kind" % (len(warm["stock"]), len(cold["stock"]))
    return charts.figure("The first thousand reads of a fresh process", subtitle, subtitle, panels, legend, columns=2,
                         panel_height=330, footer=footer)


def main(argv):
    if argv[:1] == ["--sample"]:
        return sample(json.load(sys.stdin))
    args = parse_arguments(argv)
    machine.use_python_with_extensions()
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    wanted = args.kind or (KINDS if args.chart else TABLE_KINDS)
    kinds = [kind for kind in KINDS if kind in wanted or kind == "stock"]
    if "btrfs" in kinds and (os.geteuid() != 0 or not shutil.which("mkfs.btrfs")):
        print("btrfs is left out: it needs root and mkfs.btrfs", file=sys.stderr)
        kinds.remove("btrfs")
    counts = sorted(set(map(int, args.rows.split(","))) | set(CHART_COUNTS if args.chart else ()))
    with tempfile.TemporaryDirectory(prefix="hardpack-first-rows-", dir=args.work) as work, \
            tempfile.TemporaryDirectory(prefix="hardpack-first-rows-", dir=memory) as memory, \
            contextlib.ExitStack() as undo:
        args.cache = args.cache or os.path.join(memory, "cache")
        jobs = make_jobs(args, work, kinds, counts, undo)
        samples = measure(jobs, args.rounds, args.cold)
        if args.chart:
            warm = measure(jobs, args.rounds, False) if args.cold else samples
            cold = samples if args.cold else measure(jobs, args.rounds, True)
            os.makedirs(os.path.dirname(os.path.abspath(args.chart)), exist_ok=True)
            with open(args.chart, "w", encoding="utf-8") as file:
                file.write(chart(warm, cold))
    if args.json:
        json.dump(samples, sys.stdout, indent=1)
    else:
        report(samples, args.rows.split(","))
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
