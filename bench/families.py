#!/usr/bin/env python3
"""Measures how small families of near-copies become, beside solid archives and other deduplicating stores.

usage: families.py [--segment SIZE,...] [--work DIR] [--cli PATH] [--json] DIR...

Each DIR is a family: releases of a program, trees of sources, images. It is stored

* with 'hardpack put', with the defaults, with dedup=on, with dedup=on and chunking=auto, and with 128 KiB records,
  dedup=on and gzip-9;
* the pools with dedup=on, of records and of chunks, after 'hardpack optimize', for each --segment, and the one of
  records also with --inflate, and with lzma-9;
* with 7-Zip (-mx=9, solid), squashfs (zstd-19, blocks of 1 MiB), borg (zstd-9) and restic (max), as far as they are
  installed; and as root in a new btrfs (zstd-15, forced) on a loop device, with duperemove if it is installed. Of btrfs
  the space in use counts, beyond that of the empty file system; the kernel's processor time is not in the table.

Prints the bytes of each result, in percent of the files, as a multiple of 7-Zip's, and the processor and elapsed time in
seconds of making it. For the pools of 'optimize' also reads 64 KiB at 300 random places of its files through a mount, in
a cold and a warm pool: the median and the 99th percentile in milliseconds.
"""

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
READ_LEN = 64 << 10
READ_COUNT = 300


def parse_arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", metavar="DIR", nargs="+")
    parser.add_argument("--segment", default="1M,4M,16M")
    parser.add_argument("--work", default=None)
    parser.add_argument("--cli", default=os.path.join(ROOT, "target/release/hardpack"))
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(argv)


def timed(*commands, env=None):
    """Runs commands and returns their processor and elapsed time in seconds."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    for command in commands:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu_s": cpu, "elapsed_s": time.monotonic() - began}


def length(path):
    """The length of a file, or of all files below a directory."""
    if os.path.isfile(path):
        return os.path.getsize(path)
    found = (os.path.join(top, name) for top, _, names in os.walk(path) for name in names)
    return sum(os.path.getsize(path) for path in found if not os.path.islink(path))


def pools(args, family, work):
    cli = args.cli
    kinds = {
        "put": [],
        "put, dedup": ["dedup=on"],
        "put, chunks": ["dedup=on", "chunking=auto"],
        "put, dedup, gzip-9": ["dedup=on", "compression=gzip-9"],
    }
    for number, (kind, options) in enumerate(kinds.items()):
        pool = os.path.join(work, "%d.hpk" % number)
        flags = [part for option in options for part in ("-o", option)]
        yield kind, pool, timed([cli, "create", *flags, pool], [cli, "put", "-q", family, pool])
    for size in args.segment.split(","):
        optimize = [cli, "optimize", "-q", "--segment", size]
        for what, source, flags in (
            ("", "1.hpk", []),
            ("chunks ", "2.hpk", []),
            ("inflate ", "1.hpk", ["--inflate"]),
            ("lzma ", "1.hpk", ["--compression", "lzma-9"]),
        ):
            pool = os.path.join(work, "%s%s.hpk" % (what.strip(), size))
            shutil.copyfile(os.path.join(work, source), pool)
            yield "optimize %s%s" % (what, size), pool, timed([*optimize, *flags, pool])


def others(family, work):
    path = os.path.join(work, "other")
    if seven := shutil.which("7zz") or shutil.which("7z"):
        yield "7-Zip", path + ".7z", timed([seven, "a", "-mx=9", "-bd", "-snl", path + ".7z", family])
    if shutil.which("mksquashfs"):
        flags = ["-comp", "zstd", "-Xcompression-level", "19", "-b", "1M", "-no-progress"]
        yield "squashfs", path + ".sqfs", timed(["mksquashfs", family, path + ".sqfs", *flags])
    if shutil.which("borg"):
        env = dict(os.environ, BORG_BASE_DIR=work + "/home", BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK="yes")
        init = ["borg", "init", "-e", "none", path + ".borg"]
        create = ["borg", "create", "-C", "zstd,9", path + ".borg::one", family]
        yield "borg", path + ".borg", timed(init, create, env=env)
    if shutil.which("restic"):
        env = dict(os.environ, RESTIC_PASSWORD="none", XDG_CACHE_HOME=work + "/home")
        restic = ["restic", "-q", "-r", path + ".restic"]
        create = [*restic, "backup", "--no-cache", "--compression", "max", family]
        yield "restic", path + ".restic", timed([*restic, "init"], create, env=env)
    if shutil.which("mkfs.btrfs") and os.geteuid() == 0:
        yield from on_btrfs(family, path + ".btrfs", os.path.join(work, "btrfs"))


def on_btrfs(family, image, at):
    """Copies a family into a new btrfs, then lets duperemove share what is equal."""
    os.makedirs(at)
    with open(image, "wb") as file:
        file.truncate(2 * length(family) + (2 << 30))
    subprocess.run(["mkfs.btrfs", "-q", "-m", "single", image], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["mount", "-o", "loop,compress-force=zstd:15", image, at], check=True)

    def used():
        space = os.statvfs(at)
        return (space.f_blocks - space.f_bfree) * space.f_frsize

    sync, empty = ["sync", "-f", at], used()
    try:
        times = timed(["cp", "-a", family, at], sync)
        yield "btrfs", used() - empty, times
        if shutil.which("duperemove"):
            share = ["duperemove", "-q", "-dr", "-b", "16k", "--hashfile", image + ".hashes", at]
            times = timed(share, sync)
            yield "btrfs, duperemove", used() - empty, times
    finally:
        subprocess.run(["umount", at], check=True)


def read_at_random(args, pool, work):
    """Reads through a mount, in a new process of the mount and then again."""
    at = os.path.join(work, "mount")
    os.makedirs(at, exist_ok=True)
    result = {}
    subprocess.run([args.cli, "mount", "-o", "ro", pool, at], check=True, stdout=subprocess.DEVNULL)
    try:
        paths = [os.path.join(top, name) for top, _, names in os.walk(at) for name in sorted(names)]
        paths = [path for path in sorted(paths) if not os.path.islink(path) and os.path.getsize(path) >= READ_LEN]
        for state in ("cold", "warm"):
            rng, samples = random.Random(5), []
            for _ in range(READ_COUNT if paths else 0):
                path = rng.choice(paths)
                place = rng.randrange(os.path.getsize(path) - READ_LEN + 1)
                began = time.monotonic()
                with open(path, "rb", buffering=0) as file:
                    os.pread(file.fileno(), READ_LEN, place)
                samples.append(1e3 * (time.monotonic() - began))
            samples.sort()
            if samples:
                result[state + "_ms"] = [samples[len(samples) // 2], samples[len(samples) * 99 // 100]]
    finally:
        subprocess.run([args.cli, "umount", at], check=True, stdout=subprocess.DEVNULL)
    return result


def measure(args, family):
    rows = []
    with tempfile.TemporaryDirectory(prefix="hardpack-families-", dir=args.work) as work:
        for kind, stored, times in [*pools(args, family, work), *others(family, work)]:
            size = stored if isinstance(stored, int) else length(stored)
            row = {"family": os.path.basename(os.path.abspath(family)), "kind": kind, "bytes": size, **times}
            if kind.startswith("optimize"):
                row.update(read_at_random(args, stored, work))
            rows.append(row)
    solid = next((row["bytes"] for row in rows if row["kind"] == "7-Zip"), None)
    for row in rows:
        row["percent"] = 100 * row["bytes"] / length(family)
        row["of_solid"] = row["bytes"] / solid if solid else None
    return rows


def main(argv):
    args = parse_arguments(argv)
    rows = [row for family in args.families for row in measure(args, os.path.abspath(family))]
    if args.json:
        return json.dump(rows, sys.stdout, indent=1)
    print("family           kind                      bytes  percent  x 7-Zip    cpu s  elapsed s    cold ms    warm ms")
    for row in rows:
        reads = ["%.2f/%.1f" % tuple(row[name]) if name in row else "" for name in ("cold_ms", "warm_ms")]
        solid = "%.2f" % row["of_solid"] if row["of_solid"] else ""
        print("%-16s %-18s %12d %8.2f %8s %8.1f %10.1f %10s %10s" % (
            row["family"][:16], row["kind"], row["bytes"], row["percent"], solid, row["cpu_s"], row["elapsed_s"], *reads))


if __name__ == "__main__":
    main(sys.argv[1:])
