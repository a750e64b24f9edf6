#!/usr/bin/env python3
"""Measures writers and readers of one database, beside stock SQLite.

usage: readers.py [--writers N,N...] [--readers N,N...] [--seconds S] [--rounds N] [--rows N] [--kind KIND]...
                  [--work DIR] [--lib PATH] [--json]

Each writer is a process that inserts one row after another, each in a transaction with synchronous=FULL. Each reader is
a process that looks up one random row after another, each in a transaction. All of them have a busy timeout of 60 s.
The database is a plain file in WAL mode, a plain file with a rollback journal, a pool in WAL mode, or a pool with a
rollback journal and either value of `concurrency`. The kinds alternate, each for --seconds, --rounds times. Prints the
median over the rounds: writes and reads a second of all processes together, the rates as multiples of those of stock
SQLite in WAL mode, the slowest transaction of all in milliseconds, and what the process that did least did, as a share
of what the one that did most did.
"""

import argparse
import contextlib
import itertools
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

import machine

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Name, journal mode, options of the URI.
KINDS = {
    "plain WAL": ("WAL", ""),
    "plain DELETE": ("DELETE", ""),
    "pool WAL": ("WAL", "?vfs=hardpack"),
    "pool snapshot": ("DELETE", "?vfs=hardpack&hardpack_concurrency=snapshot"),
    "pool sqlite": ("DELETE", "?vfs=hardpack&hardpack_concurrency=sqlite"),
}


def parse_arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writers", default="1")
    parser.add_argument("--readers", default="1,4,16")
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--kind", action="append", choices=list(KINDS), default=[])
    parser.add_argument("--work", default=None)
    parser.add_argument("--lib", default=os.path.join(ROOT, "target/release/libhardpack"))
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(argv)


def connect(job):
    loader = sqlite3.connect(":memory:")
    loader.enable_load_extension(True)
    loader.load_extension(job["lib"])
    journal, options = KINDS[job["kind"]]
    uri = "file:" + urllib.parse.quote(job["path"]) + options
    db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=60)
    db.execute("PRAGMA journal_mode=" + journal)
    db.execute("PRAGMA synchronous=FULL")
    return db


def work(job):
    """The process of the writer or of a reader: works from the time `begin` to the time `end`, and prints the time of
    each transaction."""
    db = connect(job)
    numbers = random.Random(job["seed"])
    body = "x" * 100
    while time.time() < job["begin"]:
        time.sleep(0.001)
    samples = []
    while time.time() < job["end"]:
        began = time.perf_counter()
        if job["reads"]:
            db.execute("SELECT body FROM t WHERE id=?", (numbers.randint(1, job["rows"]),)).fetchall()
        else:
            db.execute("INSERT INTO t(body) VALUES(?)", (body,))
        samples.append(time.perf_counter() - began)
    samples.sort()
    count = len(samples)
    json.dump({"count": count, "p99": samples[count * 99 // 100], "slowest": samples[-1]}, sys.stdout)


def measure(kind, counts, args, directory):
    """One round of one kind, in a new database."""
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(directory)
    job = {"kind": kind, "lib": args.lib, "path": os.path.join(directory, "db"), "rows": args.rows}
    db = connect(job)
    db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, body TEXT)")
    db.execute("BEGIN")
    db.executemany("INSERT INTO t(body) VALUES(?)", (("row %d %s" % (n, "x" * 100),) for n in range(args.rows)))
    db.execute("COMMIT")
    db.close()
    (writer_count, reader_count), count = counts, sum(counts)
    begin = time.time() + 0.5 + 0.05 * count
    job.update(begin=begin, end=begin + args.seconds)
    command = [sys.executable, os.path.abspath(__file__), "--worker"]
    running = [
        subprocess.Popen(command + [json.dumps(dict(job, seed=n, reads=n >= writer_count))], stdout=subprocess.PIPE)
        for n in range(count)
    ]
    results = [json.loads(process.communicate()[0]) for process in running]
    if any(process.returncode for process in running):
        raise SystemExit("a process has failed")
    writers, readers = results[:writer_count], results[writer_count:]
    written = sum(writer["count"] for writer in writers)
    with contextlib.closing(connect(job)) as db:
        found = db.execute("SELECT count(*) FROM t").fetchone()[0]
    if found != args.rows + written:
        raise SystemExit("%d rows were written, %d were found" % (args.rows + written, found))
    return {
        name + "_" + what: figure
        for name, done in (("write", writers), ("read", readers)) if done
        for what, figure in (
            ("rate", sum(one["count"] for one in done) / args.seconds),
            ("p99_ms", 1e3 * max(one["p99"] for one in done)),
            ("slowest_ms", 1e3 * max(one["slowest"] for one in done)),
            ("least", min(one["count"] for one in done) / max(one["count"] for one in done)),
        )
    }


def main(argv):
    if argv[:1] == ["--worker"]:
        return work(json.loads(argv[1]))
    args = parse_arguments(argv)
    machine.use_python_with_extensions()
    kinds = [kind for kind in KINDS if not args.kind or kind in args.kind or kind == "plain WAL"]
    directory = tempfile.mkdtemp(prefix="hardpack-readers-", dir=args.work)
    all_figures = []
    try:
        numbers = [[int(number) for number in text.split(",")] for text in (args.writers, args.readers)]
        for counts in itertools.product(*numbers):
            rounds = {kind: [] for kind in kinds}
            for _ in range(args.rounds):
                for kind in kinds:
                    rounds[kind].append(measure(kind, counts, args, os.path.join(directory, "db")))
            for kind in kinds:
                figures = {name: statistics.median(one[name] for one in rounds[kind]) for name in rounds[kind][0]}
                for name in [name for name in figures if name.endswith("_rate")]:
                    ratios = [own[name] / wal[name] for own, wal in zip(rounds[kind], rounds["plain WAL"])]
                    figures[name + "_ratio"] = statistics.median(ratios)
                    figures[name + "_spread"] = [min(one[name] for one in rounds[kind]),
                                                 max(one[name] for one in rounds[kind])]
                all_figures.append(dict(figures, kind=kind, writers=counts[0], readers=counts[1]))
                if not args.json:
                    report(all_figures[-1], header=len(all_figures) == 1)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if args.json:
        json.dump(all_figures, sys.stdout, indent=1)


def report(figures, header):
    if header:
        columns = "  a second   (lowest-highest) x WAL slowest least"
        print("writers readers kind         ", "writes" + columns, " reads" + columns)
    line = "%7d %7d %-13s" % (figures["writers"], figures["readers"], figures["kind"])
    for name in ("write", "read"):
        if name + "_rate" in figures:
            spread = "(%.0f-%.0f)" % tuple(figures[name + "_rate_spread"])
            line += "%17.0f %18s %5.2f %7.1f %5.2f" % (
                figures[name + "_rate"], spread, figures[name + "_rate_ratio"], figures[name + "_slowest_ms"],
                figures[name + "_least"])
    print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
