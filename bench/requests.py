#!/usr/bin/env python3
"""Measures requests of one process, each with a connection of its own, beside stock SQLite.

usage: requests.py [--rows N] [--requests N] [--rounds N] [--written N] [--table N] [--lib PATH] [--work DIR]

A request opens the database, reads --rows random rows by rowid and closes the connection, as in a server that opens a
connection for each request. With --written, every N-th of them also updates a row. Each sample is a process with
--requests requests; those with a plain file and with a pool alternate. The files are in the page cache. Prints the medians
of the first request and of all, in microseconds.
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

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def parse_arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--written", type=int, default=0)
    parser.add_argument("--table", type=int, default=400_000, help="the number of rows of the table")
    parser.add_argument("--lib", default=os.path.join(ROOT, "target/release/libhardpack"))
    parser.add_argument("--work", default=None)
    parser.add_argument("--sample", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def make(uri, count):
    db = sqlite3.connect(uri, uri=True)
    db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, name, note)")
    rows = ((i, "name %d" % (i * 7919 % 100_003), "some text that goes with row %d, and %d" % (i, i * 31)) for i in range(count))
    db.executemany("INSERT INTO t VALUES(?, ?, ?)", rows)
    db.commit()
    db.close()


def sample(arguments):
    """Runs the requests in this process, and prints the time of each."""
    rng = random.Random(5)
    times = []
    for number in range(arguments.requests):
        began = time.perf_counter()
        db = sqlite3.connect(arguments.sample, uri=True)
        for _ in range(arguments.rows):
            db.execute("SELECT name, note FROM t WHERE id = ?", (rng.randrange(arguments.table),)).fetchone()
        if arguments.written and number % arguments.written == 0:
            db.execute("UPDATE t SET note = ? WHERE id = ?", ("note %d" % number, rng.randrange(arguments.table)))
            db.commit()
        db.close()
        times.append((time.perf_counter() - began) * 1e6)
    print(json.dumps(times))


def load(lib):
    db = sqlite3.connect(":memory:")
    db.enable_load_extension(True)
    db.load_extension(lib)
    return db


def main(argv):
    arguments = parse_arguments(argv)
    _extension = load(arguments.lib)
    if arguments.sample:
        sample(arguments)
        return
    with tempfile.TemporaryDirectory(dir=arguments.work) as work:
        uris = {"stock": "file:%s/plain.db" % work, "pool": "file:%s/pool.hpk?vfs=hardpack" % work}
        for uri in uris.values():
            make(uri, arguments.table)
        times = {kind: ([], []) for kind in uris}
        for _ in range(arguments.rounds):
            for kind, uri in uris.items():
                command = [sys.executable, __file__, *argv, "--sample", uri]
                found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
                times[kind][0].append(found[0])
                times[kind][1].append(statistics.median(found))
        print("%-6s %12s %12s" % ("", "first (us)", "median (us)"))
        for kind, (first, each) in times.items():
            print("%-6s %12.0f %12.0f" % (kind, statistics.median(first), statistics.median(each)))
        ratio = statistics.median(times["pool"][1]) / statistics.median(times["stock"][1])
        print("a request to a pool takes %.2f times as long" % ratio)


if __name__ == "__main__":
    main(sys.argv[1:])
