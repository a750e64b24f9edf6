#!/usr/bin/env python3
"""Measures one writer and many readers of one database, beside stock SQLite.

usage: readers.py [--readers N,N...] [--seconds S] [--rounds N] [--rows N] [--kind KIND]... [--work DIR] [--lib PATH]
                  [--json]

The writer inserts one row after another, each in a transaction with synchronous=FULL. Each reader is a process that
looks up one random row after another, each in a transaction. The database is a plain file in WAL mode, a plain file
with a rollback journal, or a pool with a rollback journal and either value of `concurrency`. The kinds alternate, each
for --seconds, --rounds times. Prints the median over the rounds: writes and reads a second, their 99th percentiles in
milliseconds, and the rates as multiples of those of stock SQLite in WAL mode.
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

import machine

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Name, journal mode, options of the URI.
KINDS = {
    "plain WAL": ("WAL", ""),
    "plain DELETE": ("DELETE", ""),
    "pool snapshot": ("DELETE", "?vfs=hardpack&hardpack_concurrency=snapshot"),
    "pool sqlite": ("DELETE", "?vfs=hardpack&hardpack_concurrency=sqlite"),
}
RATES = ("writes", "reads")


def parse_arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
    json.dump({"count": count, "p99": samples[count * 99 // 100] if samples else None}, sys.stdout)


def measure(kind, count, args, directory):
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
    begin = time.time() + 0.5 + 0.05 * count
    job.update(begin=begin, end=begin + args.seconds)
    command = [sys.executable, os.path.abspath(__file__), "--worker"]
    running = [
        subprocess.Popen(command + [json.dumps(dict(job, seed=n, reads=n > 0))], stdout=subprocess.PIPE)
        for n in range(count + 1)
    ]
    results = [json.loads(process.communicate()[0]) for process in running]
    if any(process.returncode for process in running):
        raise SystemExit("a process has failed")
    writer, readers = results[0], results[1:]
    with contextlib.closing(connect(job)) as db:
        found = db.execute("SELECT count(*) FROM t").fetchone()[0]
    if found != args.rows + writer["count"]:
        raise SystemExit("%d rows were written, %d were found" % (args.rows + writer["count"], found))
    return {
        "writes": writer["count"] / args.seconds,
        "reads": sum(reader["count"] for reader in readers) / args.seconds,
        "write_p99_ms": 1e3 * (writer["p99"] or args.seconds),
        "read_p99_ms": 1e3 * max(reader["p99"] or args.seconds for reader in readers),
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
        for count in map(int, args.readers.split(",")):
            rounds = {kind: [] for kind in kinds}
            for _ in range(args.rounds):
                for kind in kinds:
                    rounds[kind].append(measure(kind, count, args, os.path.join(directory, "db")))
            for kind in kinds:
                figures = {name: statistics.median(one[name] for one in rounds[kind]) for name in rounds[kind][0]}
                for rate in RATES:
                    ratios = [own[rate] / wal[rate] for own, wal in zip(rounds[kind], rounds["plain WAL"])]
                    figures[rate + "_ratio"] = statistics.median(ratios)
                    figures[rate + "_spread"] = [min(one[rate] for one in rounds[kind]),
                                                 max(one[rate] for one in rounds[kind])]
                all_figures.append(dict(figures, kind=kind, readers=count))
                if not args.json:
                    report(all_figures[-1], header=len(all_figures) == 1)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if args.json:
        json.dump(all_figures, sys.stdout, indent=1)


def report(figures, header):
    if header:
        print("readers kind            writes  (lowest-highest)  x WAL    p99   reads    (lowest-highest)  x WAL    p99")
    columns = []
    for rate, p99 in (("writes", "write_p99_ms"), ("reads", "read_p99_ms")):
        spread = "(%.0f-%.0f)" % tuple(figures[rate + "_spread"])
        columns.append((figures[rate], spread, figures[rate + "_ratio"], figures[p99]))
    print("%7d %-13s %8.0f %17s %6.2f %6.2f %8.0f %19s %6.2f %6.2f" % (
        figures["readers"], figures["kind"], *columns[0], *columns[1]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
