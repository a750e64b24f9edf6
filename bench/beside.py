#!/usr/bin/env python3
"""Measures how long commits take beside an import into the same pool.

usage: beside.py [--committers N] [--rounds N] [--mb MB] [--pause MS] [--source PATH]... [--work DIR]
                 [--lib PATH] [--cli PATH] [--json]

Each committer is a process with a database of its own in the pool; it inserts one row, waits for --pause milliseconds,
and so on. Half of them use a rollback journal with synchronous=FULL, the others WAL with NORMAL. `hardpack put` then
brings in the sources, or generated databases of --mb megabytes in total. Stretches without and with an import
alternate. Prints the latencies of both, and the ratio. Times are in milliseconds.
"""

import argparse
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.parse

import machine

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODES = {"rollback FULL": ("DELETE", "FULL"), "WAL NORMAL": ("WAL", "NORMAL")}
SEED = 7


def parse_arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--committers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--mb", type=int, default=1000)
    parser.add_argument("--pause", type=float, default=2.0)
    parser.add_argument("--source", action="append", default=[])
    parser.add_argument("--work", default=None)
    parser.add_argument("--lib", default=os.path.join(ROOT, "target/release/libhardpack"))
    parser.add_argument("--cli", default=os.path.join(ROOT, "target/release/hardpack"))
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(argv)


def commit_rows(job):
    """Commits one row after another until a file appears; prints the start and the duration of each commit."""
    loader = sqlite3.connect(":memory:")
    loader.enable_load_extension(True)
    loader.load_extension(job["lib"])
    journal, synchronous = MODES[job["mode"]]
    uri = "file:" + urllib.parse.quote(job["path"]) + "?vfs=hardpack"
    db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=60)
    db.execute("PRAGMA journal_mode=" + journal)
    db.execute("PRAGMA synchronous=" + synchronous)
    db.execute("CREATE TABLE IF NOT EXISTS t(id INTEGER PRIMARY KEY, body TEXT)")
    samples, count = [], 0
    print("ready", flush=True)
    while not os.path.exists(job["until"]):
        count += 1
        body = "row %d %s" % (count, "x" * 100)
        began = time.monotonic()
        db.execute("INSERT INTO t(body) VALUES(?)", (body,))
        samples.append((began, time.monotonic() - began))
        time.sleep(job["pause"] / 1000)
    found = db.execute("SELECT count(*) FROM t").fetchone()[0]
    db.close()
    if found != count:
        raise RuntimeError("%d rows were committed, %d were found" % (count, found))
    json.dump(samples, sys.stdout)


def percentile(values, part):
    return values[min(len(values) - 1, int(len(values) * part))] * 1000 if values else float("nan")


def figures(values):
    values = sorted(values)
    return {"count": len(values), "p50": percentile(values, 0.5), "p99": percentile(values, 0.99),
            "p999": percentile(values, 0.999), "max": percentile(values, 1)}


def generate(work, megabytes):
    """Writes databases to import; a generator of the benchmark gives each half."""
    import grow
    import make_weblog
    directory = os.path.join(work, "source")
    os.mkdir(directory)
    grow.generate(os.path.join(directory, "pieces.sqlite"), megabytes * 500_000, SEED)
    weblog = os.path.join(directory, "weblog.sqlite")
    subprocess.run([sys.executable, make_weblog.__file__, weblog, str(megabytes // 2), str(SEED)],
                   check=True, stdout=subprocess.DEVNULL)
    return [directory]


def measure(options, work):
    sources = options.source or generate(work, options.mb)
    pool = os.path.join(work, "pool.hpk")
    empty = os.path.join(work, "empty")
    os.mkdir(empty)
    subprocess.run([options.cli, "put", empty, pool], check=True, stdout=subprocess.DEVNULL)
    until = os.path.join(work, "until")
    modes = [list(MODES)[n % len(MODES)] for n in range(options.committers)]
    committers = []
    try:
        for number, mode in enumerate(modes):
            path = os.path.join(pool, "c%d.db" % number)
            job = {"lib": options.lib, "path": path, "mode": mode, "until": until, "pause": options.pause}
            child = [sys.executable, os.path.abspath(__file__), "--child", json.dumps(job)]
            committers.append(subprocess.Popen(child, stdout=subprocess.PIPE, text=True))
        if any(process.stdout.readline() != "ready\n" for process in committers):
            raise RuntimeError("a committer did not start")
        stretches, took = [], 3.0
        for number in range(options.rounds):
            began = time.monotonic()
            time.sleep(took)
            stretches.append(("without", began, time.monotonic()))
            began = time.monotonic()
            target = os.path.join(pool, "import%d" % number)
            subprocess.run([options.cli, "put", *sources, target], check=True, stdout=subprocess.DEVNULL)
            stretches.append(("beside", began, time.monotonic()))
            took = time.monotonic() - began
    finally:
        # Lets the committers end, whatever happened.
        open(until, "w").close()
        results = [process.communicate()[0] for process in committers]
    if any(process.returncode for process in committers):
        raise RuntimeError("a committer failed")
    samples = [json.loads(result) for result in results]
    subprocess.run([options.cli, "check", pool], check=True, stdout=subprocess.DEVNULL)
    result = {"import_seconds": [end - began for kind, began, end in stretches if kind == "beside"], "modes": {}}
    for mode in dict.fromkeys(modes):
        found = {}
        for kind in ("without", "beside"):
            spans = [(began, end) for what, began, end in stretches if what == kind]
            found[kind] = figures([
                length for own, part in zip(modes, samples) if own == mode for start, length in part
                if any(began <= start < end for began, end in spans)])
        result["modes"][mode] = found
    return result


def show(result):
    print("imports took %s s\n" % ", ".join("%.1f" % seconds for seconds in result["import_seconds"]))
    print("| | commits | p50 | p99 | p99.9 | longest |\n|---|--:|--:|--:|--:|--:|")
    for mode, found in result["modes"].items():
        for kind, row in found.items():
            print("| %s, %s import | %d | %.2f | %.2f | %.2f | %.1f |" % (
                mode, "no" if kind == "without" else "beside an",
                row["count"], row["p50"], row["p99"], row["p999"], row["max"]))
        print("| ratio | | %.2f | %.2f | %.2f | %.2f |" % tuple(
            found["beside"][key] / found["without"][key] for key in ("p50", "p99", "p999", "max")))


def main(argv):
    if argv[:1] == ["--child"]:
        commit_rows(json.loads(argv[1]))
        return
    options = parse_arguments(argv)
    machine.use_python_with_extensions()
    work = tempfile.mkdtemp(prefix="beside-", dir=options.work)
    try:
        result = measure(options, work)
    finally:
        shutil.rmtree(work)
    if options.json:
        print(json.dumps(result))
    else:
        show(result)


if __name__ == "__main__":
    main(sys.argv[1:])
