#!/usr/bin/env python3
"""Measures how fast many processes commit to one pool, beside stock SQLite with a file for each.

usage: writers.py [--writers N,N...] [--seconds S] [--rounds N] [--mode MODE]... [--work DIR] [--lib PATH] [--json]

Each writer is a process with a database of its own, which inserts one row after another, each in a transaction. The
databases are plain files, pools of their own, or all in one pool. The kinds alternate, each for --seconds, --rounds
times. Prints the median over the rounds: commits a second of all writers, the processor time of one commit in
microseconds, the latencies in milliseconds (median, 99th percentile, slowest of all), how many commits the slowest
writer made for each of the fastest (1 is fair), and the rate as a multiple of the plain files'.
"""

import argparse
import contextlib
import json
import os
import resource
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
MODES = {"rollback FULL": ("DELETE", "FULL"), "WAL NORMAL": ("WAL", "NORMAL"), "WAL FULL": ("WAL", "FULL")}
KINDS = ("plain", "pools", "one pool")


def parse_arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writers", default="1,4,8")
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mode", action="append", choices=sorted(MODES), default=[])
    parser.add_argument("--work", default=None)
    parser.add_argument("--lib", default=os.path.join(ROOT, "target/release/libhardpack"))
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(argv)


def path_of(kind, work, writer):
    """Returns the path of a writer's database."""
    if kind == "one pool":
        return os.path.join(work, "all.hpk", "%d.db" % writer)
    return os.path.join(work, "%d.%s" % (writer, "db" if kind == "plain" else "hpk"))


def connect(job):
    loader = sqlite3.connect(":memory:")
    loader.enable_load_extension(True)
    loader.load_extension(job["lib"])
    uri = "file:" + urllib.parse.quote(job["path"])
    if job["kind"] != "plain":
        uri += "?vfs=hardpack"
    db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=60)
    journal, synchronous = MODES[job["mode"]]
    db.execute("PRAGMA journal_mode=" + journal)
    db.execute("PRAGMA synchronous=" + synchronous)
    return db


def execute(job, sql):
    # Closed at once: the next round replaces the file.
    with contextlib.closing(connect(job)) as db:
        db.execute(sql)


def write(job):
    """The process of one writer: commits rows from the time `begin` to the time `end`, and prints what it measured."""
    db = connect(job)
    while time.time() < job["begin"]:
        time.sleep(0.001)
    samples = []
    cpu = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    while time.time() < job["end"]:
        began = time.monotonic()
        db.execute("INSERT INTO t(body) VALUES(?)", ("row %d %s" % (len(samples), "x" * 100),))
        samples.append(time.monotonic() - began)
    cpu = sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) - cpu
    json.dump({"samples": samples, "cpu": cpu}, sys.stdout)


def measure(kind, mode, count, args, work):
    """One round of one kind, in new databases."""
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    jobs = [{"kind": kind, "mode": mode, "lib": args.lib, "path": path_of(kind, work, n)} for n in range(count)]
    if kind == "one pool":
        first = dict(jobs[0], path=os.path.join(work, "all.hpk"))
        execute(first, "CREATE TABLE first(n)")
    for job in jobs:
        execute(job, "CREATE TABLE t(id INTEGER PRIMARY KEY, body TEXT)")
    begin = time.time() + 0.5 + 0.05 * count
    times = {"begin": begin, "end": begin + args.seconds}
    command = [sys.executable, os.path.abspath(__file__), "--writer"]
    running = [subprocess.Popen(command + [json.dumps(dict(job, **times))], stdout=subprocess.PIPE) for job in jobs]
    results = [json.loads(process.communicate()[0]) for process in running]
    if any(process.returncode for process in running):
        raise SystemExit("a writer has failed")
    samples = sorted(sample for result in results for sample in result["samples"])
    counts = [len(result["samples"]) for result in results]
    return {
        "rate": len(samples) / args.seconds,
        "cpu_us": 1e6 * sum(result["cpu"] for result in results) / len(samples),
        "median_ms": 1e3 * samples[len(samples) // 2],
        "p99_ms": 1e3 * samples[len(samples) * 99 // 100],
        "slowest_ms": 1e3 * samples[-1],
        "fairness": min(counts) / max(counts),
    }


def summary(rounds):
    """The median of each figure; of the slowest commit, the slowest of all rounds."""
    figures = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    figures["slowest_ms"] = max(one["slowest_ms"] for one in rounds)
    figures["spread"] = [min(one["rate"] for one in rounds), max(one["rate"] for one in rounds)]
    return figures


def main(argv):
    if argv[:1] == ["--writer"]:
        return write(json.loads(argv[1]))
    args = parse_arguments(argv)
    machine.use_python_with_extensions()
    work = tempfile.mkdtemp(prefix="hardpack-writers-", dir=args.work)
    all_figures = []
    try:
        for mode in args.mode or ["rollback FULL", "WAL NORMAL"]:
            for count in map(int, args.writers.split(",")):
                rounds = {kind: [] for kind in KINDS}
                for _ in range(args.rounds):
                    for kind in KINDS:
                        rounds[kind].append(measure(kind, mode, count, args, os.path.join(work, "db")))
                for kind in KINDS:
                    figures = dict(summary(rounds[kind]), mode=mode, writers=count, kind=kind)
                    ratios = [own["rate"] / plain["rate"] for own, plain in zip(rounds[kind], rounds["plain"])]
                    figures["ratio"] = statistics.median(ratios)
                    all_figures.append(figures)
                    if not args.json:
                        report(figures, header=len(all_figures) == 1)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if args.json:
        json.dump(all_figures, sys.stdout, indent=1)


def report(figures, header):
    if header:
        print("mode          writers kind          rate      (lowest-highest)  x plain  cpu us  median     p99  slowest  fair")
    lowest, highest = figures["spread"]
    print("%-13s %7d %-9s %8.0f %21s %8.2f %7.0f %7.2f %7.2f %8.1f %5.2f" % (
        figures["mode"], figures["writers"], figures["kind"], figures["rate"], "(%.0f-%.0f)" % (lowest, highest),
        figures["ratio"], figures["cpu_us"], figures["median_ms"], figures["p99_ms"], figures["slowest_ms"],
        figures["fairness"]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
