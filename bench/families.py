#!/usr/bin/env python3
"""Measures how small families of near-copies become, beside solid archives and other deduplicating stores.

usage: families.py [--segment SIZE,...] [--only PATTERN] [--work DIR] [--cli PATH] [--json] DIR...

Each DIR is a family: releases of a program, trees of sources, images (bench/fetch_families.sh has some). It is stored

* as blocks of 128 KiB of each file, equal ones once, each compressed with gzip-9 unless that saves less than an eighth,
  in sectors of 512 bytes or 4 KiB: what OpenZFS makes of it, without its metadata, reckoned in Python;
* with 'hardpack put', with the defaults, with dedup=on, with dedup=on and chunking=auto, and with 128 KiB records,
  dedup=on and gzip-9, and with 'put --optimize', dedup=on and chunking=auto;
* the pools with dedup=on, of records and of chunks, after 'hardpack optimize', for each --segment, and the one of
  records also with --inflate, and with lzma-9;
* with 7-Zip (-mx=9, solid), squashfs (zstd-19, blocks of 1 MiB), DwarFS (mkdwarfs, its default level), borg (zstd-9) and
  restic (max), as far as they are installed; and as root in a new btrfs (zstd-15, forced) on a loop device, with
  duperemove if it is installed. Of btrfs the space in use counts, beyond that of the empty file system; the kernel's
  processor time is not in the table.

Prints the bytes of each result, in percent of the files, as a multiple of 7-Zip's, and the processor and elapsed time in
seconds of making it. For the optimised pools also reads 64 KiB at 300 random places of its files through a mount, cold
(a new process, and a pool that is not in the page cache) and warm: the median and the 99th percentile in milliseconds.
--only measures kinds whose names match a regular expression, as they are printed.
"""

import argparse
import hashlib
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import zlib

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
READ_LEN = 64 << 10
READ_COUNT = 300
BLOCK_LEN = 128 << 10
SECTOR_LENS = {"128K blocks": 512, "128K blocks, 4K sectors": 4096}


def parse_arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", metavar="DIR", nargs="+")
    parser.add_argument("--segment", default="1M,4M,16M")
    parser.add_argument("--only", type=re.compile, default="")
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


def in_blocks(family):
    """What a file system stores of a family that shares equal blocks and compresses each alone: the lengths of these."""
    seen, lens = set(), []
    for top, _, names in os.walk(family):
        for path in (os.path.join(top, name) for name in names):
            if os.path.islink(path) or not os.path.isfile(path):
                continue
            with open(path, "rb") as file:
                while block := file.read(BLOCK_LEN):
                    content = hashlib.sha256(block).digest()
                    if content not in seen and block.strip(b"\0"):
                        seen.add(content)
                        compressed = len(zlib.compress(block, 9))
                        lens.append(compressed if compressed <= len(block) * 7 // 8 else len(block))
    return lens


def pools(args, family, work):
    cli = args.cli
    kinds = {
        "put": [],
        "put, dedup": ["dedup=on"],
        "put, chunks": ["dedup=on", "chunking=auto"],
        "put, dedup, gzip-9": ["dedup=on", "compression=gzip-9"],
        "put --optimize": ["dedup=on", "chunking=auto"],
    }

    def put(kind):
        flags = [part for option in kinds[kind] for part in ("-o", option)]
        pool = os.path.join(work, re.sub("[^a-z0-9]+", "-", kind) + ".hpk")
        more = ["--optimize"] if kind.endswith("--optimize") else []
        return pool, timed([cli, "create", *flags, pool], [cli, "put", "-q", *more, family, pool])

    made = {}
    for kind in kinds:
        if args.only.search(kind):
            made[kind], times = put(kind)
            yield kind, made[kind], times
    for size in args.segment.split(","):
        optimize = [cli, "optimize", "-q", "--segment", size]
        for what, source, flags in (
            ("", "put, dedup", []),
            ("chunks ", "put, chunks", []),
            ("inflate ", "put, dedup", ["--inflate"]),
            ("lzma ", "put, dedup", ["--compression", "lzma-9"]),
            ("chunks lzma ", "put, chunks", ["--compression", "lzma-9"]),
            ("again lzma ", "put --optimize", ["--compression", "lzma-9", "--again"]),
        ):
            kind = "optimize %s%s" % (what, size)
            if not args.only.search(kind):
                continue
            if source not in made:
                made[source], _ = put(source)
            pool = os.path.join(work, "%s.hpk" % kind.replace(" ", "-"))
            shutil.copyfile(made[source], pool)
            yield kind, pool, timed([*optimize, *flags, pool])


def others(args, family, work):
    path = os.path.join(work, "other")
    has = lambda kind, tool: args.only.search(kind) and shutil.which(tool)
    sectors = {kind: len for kind, len in SECTOR_LENS.items() if args.only.search(kind)}
    lens = in_blocks(family) if sectors else []
    for kind, sector_len in sectors.items():
        yield kind, sum(-(-len // sector_len) * sector_len for len in lens), {"cpu_s": 0.0, "elapsed_s": 0.0}
    if seven := has("7-Zip", "7zz") or has("7-Zip", "7z"):
        yield "7-Zip", path + ".7z", timed([seven, "a", "-mx=9", "-bd", "-snl", path + ".7z", family])
    if has("squashfs", "mksquashfs"):
        flags = ["-comp", "zstd", "-Xcompression-level", "19", "-b", "1M", "-no-progress"]
        yield "squashfs", path + ".sqfs", timed(["mksquashfs", family, path + ".sqfs", *flags])
    if has("DwarFS", "mkdwarfs"):
        flags = ["--no-history", "--no-progress", "--log-level=error"]
        yield "DwarFS", path + ".dwarfs", timed(["mkdwarfs", "-i", family, "-o", path + ".dwarfs", *flags])
    if has("borg", "borg"):
        env = dict(os.environ, BORG_BASE_DIR=work + "/home", BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK="yes")
        init = ["borg", "init", "-e", "none", path + ".borg"]
        create = ["borg", "create", "-C", "zstd,9", path + ".borg::one", family]
        yield "borg", path + ".borg", timed(init, create, env=env)
    if has("restic", "restic"):
        env = dict(os.environ, RESTIC_PASSWORD="none", XDG_CACHE_HOME=work + "/home")
        restic = ["restic", "-q", "-r", path + ".restic"]
        create = [*restic, "backup", "--no-cache", "--compression", "max", family]
        yield "restic", path + ".restic", timed([*restic, "init"], create, env=env)
    if has("btrfs", "mkfs.btrfs") and os.geteuid() == 0:
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
    with open(pool, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
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
        for kind, stored, times in [*pools(args, family, work), *others(args, family, work)]:
            size = stored if isinstance(stored, int) else length(stored)
            row = {"family": os.path.basename(os.path.abspath(family)), "kind": kind, "bytes": size, **times}
            if "optimize" in kind:
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
