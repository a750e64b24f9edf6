#!/usr/bin/env python3
"""Measures a pool with very many small files: what each takes, and how fast one of them is read.

usage: small_files.py [--count N] [--cli PATH] [--work DIR] [--json]

N (a million) JSON documents of 100 to 1,500 bytes, a thousand to a directory, are put into a pool as one stream of tar,
which is then optimised. Prints, after either, the length of the pool, and bytes a file of that and of what is not content
(names, attributes, pointers); the processor time in seconds and the most memory in MB of what was done; and how long
'hardpack cat' takes for one file, in a new process for each of 100 files at random and the pool in the page cache, less
what 'hardpack --version' takes: the median and the slowest in ms.
"""

import argparse
import io
import json
import os
import random
import resource
import subprocess
import sys
import tarfile
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FILES_PER_DIRECTORY = 1000
READ_COUNT = 100
WORDS = ("error warning request response timeout user session cache index table record page commit sync reader writer "
         "north south east west red green blue yellow open closed pending done retry queued failed accepted").split()


def parse_arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--cli", default=os.path.join(ROOT, "target/release/hardpack"))
    parser.add_argument("--work", default=None)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(argv)


def name_of(number):
    return "documents/%04d/%08x.json" % (number // FILES_PER_DIRECTORY, (number * 2654435761) % (1 << 32))


def content_of(number):
    rng = random.Random(number)
    rows = [
        {"id": rng.getrandbits(40), "state": rng.choice(WORDS), "note": " ".join(rng.choices(WORDS, k=rng.randrange(8)))}
        for _ in range(rng.randrange(1, 14))
    ]
    return json.dumps({"number": number, "rows": rows}).encode()


def write_tar(into, count):
    with tarfile.open(fileobj=into, mode="w|") as archive:
        for number in range(count):
            content = content_of(number)
            entry = tarfile.TarInfo(name_of(number))
            entry.size, entry.mtime = len(content), 1_700_000_000 + number
            archive.addfile(entry, io.BytesIO(content))
    into.close()


def run(command, feed=None):
    """Runs a command; returns its processor time in seconds and the most memory it took in bytes."""
    child = subprocess.Popen(command, stdin=subprocess.PIPE if feed else None, stdout=subprocess.DEVNULL)
    if feed:
        threading.Thread(target=feed, args=(child.stdin,)).start()
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit("%s failed" % " ".join(command))
    return {"cpu_s": usage.ru_utime + usage.ru_stime, "memory": usage.ru_maxrss << 10}


def taken_ms(command):
    began = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return 1e3 * (time.monotonic() - began)


def measure(args, pool, what, done):
    info = json.loads(subprocess.run([args.cli, "info", "--json", pool], check=True, capture_output=True).stdout)
    start_ms = sorted(taken_ms([args.cli, "--version"]) for _ in range(21))[10]
    rng = random.Random(7)
    numbers = [rng.randrange(args.count) for _ in range(READ_COUNT)]
    times = sorted(taken_ms([args.cli, "cat", os.path.join(pool, name_of(number))]) - start_ms for number in numbers)
    return {
        "what": what,
        "pool": info["pool_bytes"],
        "pool_per_file": info["pool_bytes"] / args.count,
        "metadata_per_file": info["metadata_bytes"] / args.count,
        "read_ms": [times[len(times) // 2], times[-1]],
        **done,
    }


def main(argv):
    args = parse_arguments(argv)
    with tempfile.TemporaryDirectory(prefix="hardpack-small-", dir=args.work) as work:
        pool = os.path.join(work, "small.hpk")
        run([args.cli, "create", pool])
        done = run([args.cli, "put", "-q", "--tar", "-", pool], lambda into: write_tar(into, args.count))
        rows = [measure(args, pool, "put", done)]
        rows.append(measure(args, pool, "optimize", run([args.cli, "optimize", "-q", pool])))
    if args.json:
        return json.dump(rows, sys.stdout, indent=1)
    print("                      pool   a file  metadata    cpu s  memory MB   read ms")
    for row in rows:
        print("%-10s %15d %8.1f %9.1f %8.1f %10.0f   %.1f/%.1f" % (
            row["what"], row["pool"], row["pool_per_file"], row["metadata_per_file"], row["cpu_s"],
            row["memory"] / 1e6, *row["read_ms"]))


if __name__ == "__main__":
    main(sys.argv[1:])
