#!/usr/bin/env python3
"""Measures a mounted pool beside ext4 and btrfs (with the same codec) on loop devices.

usage: mount.py [--rounds N] [--mb N] [--files N] [--work DIR] [--cli PATH] [--json] [--chart FILE]
                [--readonly-compare [--tree DIR]]

Needs root and /dev/fuse. The file systems take turns, and each is made anew in each round; the medians are printed, with
the multiple of ext4. Caches are dropped before what is called cold. The files are those of /usr/share and of the work
tree, repeated until there are enough of them; writing ends with a sync.

With --readonly-compare, one tree is packed into read-only images instead: squashfs of the kernel, DwarFS if `mkdwarfs` and
`dwarfs` are there, and snapshots of pools. Their sizes are compared, and how fast all of it is read.

--chart draws both comparisons as an SVG.
"""

import argparse
import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time

import charts

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
KINDS = ("ext4", "btrfs", "pool")
PIECE_LEN = 1 << 20


def parse_arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mb", type=int, default=256, help="the length of the large file, in MB")
    parser.add_argument("--files", type=int, default=10_000, help="the number of small files")
    parser.add_argument("--work", default=None)
    parser.add_argument("--cli", default=os.path.join(ROOT, "target/release/hardpack"))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--chart")
    parser.add_argument("--readonly-compare", action="store_true")
    parser.add_argument("--tree", default="/usr/lib/python3", help="what the read-only images hold")
    return parser.parse_args(argv)


def run(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def drop_caches():
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3")


def text_of(length):
    """Real bytes: files of the system and of this repository, up to `length`."""
    parts, total = [], 0
    for top in ("/usr/share", "/usr/lib", ROOT):
        for folder, folders, names in os.walk(top):
            folders.sort()
            for name in sorted(names):
                path = os.path.join(folder, name)
                if os.path.isfile(path) and not os.path.islink(path) and total < length:
                    with open(path, "rb") as file:
                        parts.append(file.read(length - total))
                    total += len(parts[-1])
    return b"".join(parts)


class Mounted:
    """A file system of a kind, mounted on a directory."""

    def __init__(self, kind, work, cli):
        self.kind, self.cli = kind, cli
        self.image, self.point = os.path.join(work, "image." + kind), os.path.join(work, "mnt")
        os.makedirs(self.point, exist_ok=True)
        if kind == "pool":
            run(cli, "create", self.image)
        else:
            with open(self.image, "wb") as file:
                file.truncate(8 << 30)
            run("mkfs." + kind, "-q", self.image)
        self.mount()

    def mount(self):
        if self.kind == "pool":
            run(self.cli, "mount", self.image, self.point)
        else:
            options = "loop,compress-force=zstd:3" if self.kind == "btrfs" else "loop"
            run("mount", "-o", options, self.image, self.point)

    def unmount(self):
        run(self.cli, "umount", self.point) if self.kind == "pool" else run("umount", self.point)

    def again_cold(self):
        self.unmount()
        drop_caches()
        self.mount()

    def path(self, *names):
        return os.path.join(self.point, *names)

    def sync(self):
        folder = os.open(self.point, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        if self.kind != "pool":
            run("sync", "-f", self.point)

    def used(self):
        """The space that its content takes in the file below, in bytes."""
        return os.stat(self.image).st_blocks * 512


def timed(act):
    began = time.monotonic()
    act()
    return time.monotonic() - began


def write_file(path, data):
    with open(path, "wb", buffering=0) as file:
        for at in range(0, len(data), PIECE_LEN):
            file.write(data[at : at + PIECE_LEN])
        os.fsync(file.fileno())


def read_file(path):
    with open(path, "rb", buffering=0) as file:
        while file.read(PIECE_LEN):
            pass


def write_small(mounted, data, count):
    for number in range(count):
        folder = mounted.path("small", str(number // 100))
        os.makedirs(folder, exist_ok=True)
        at = number * 1999 % (len(data) - 10_000)
        with open(os.path.join(folder, str(number)), "wb") as file:
            file.write(data[at : at + 200 + number * 37 % 5000])
    mounted.sync()


def look(top):
    for folder, _, names in os.walk(top):
        for name in names:
            os.stat(os.path.join(folder, name))


def read_small(top):
    for folder, _, names in os.walk(top):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                file.read()


def commit_rows(path, count):
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=NORMAL")
    db.execute("CREATE TABLE t(a INTEGER PRIMARY KEY, b)")
    seconds = timed(lambda: [db.execute("INSERT INTO t(b) VALUES(?)", ("x" * 100,)) for _ in range(count)])
    db.close()
    return seconds


def measure(kind, work, args, data):
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    mounted = Mounted(kind, work, args.cli)
    figures, mb = {}, len(data) / 1e6
    try:
        empty = mounted.used()
        figures["write, MB/s"] = mb / timed(lambda: write_file(mounted.path("large"), data))
        mounted.sync()
        figures["size, % of the file"] = 100 * (mounted.used() - empty) / len(data)
        mounted.again_cold()
        figures["cold read, MB/s"] = mb / timed(lambda: read_file(mounted.path("large")))
        figures["warm read, MB/s"] = mb / timed(lambda: read_file(mounted.path("large")))
        figures["small files written, 1/s"] = args.files / timed(lambda: write_small(mounted, data, args.files))
        mounted.again_cold()
        figures["small files found cold, 1/s"] = args.files / timed(lambda: look(mounted.path("small")))
        figures["small files found warm, 1/s"] = args.files / timed(lambda: look(mounted.path("small")))
        figures["small files read, 1/s"] = args.files / timed(lambda: read_small(mounted.path("small")))
        figures["small files removed, 1/s"] = args.files / timed(lambda: shutil.rmtree(mounted.path("small")))
        figures["SQLite WAL commits, 1/s"] = 2000 / commit_rows(mounted.path("app.db"), 2000)
    finally:
        mounted.unmount()
    return figures


def make_pool(cli, tree, image, optimised, *properties):
    """Packs a tree into a pool with these properties, and optimises it if asked to."""
    run(cli, "create", *[word for each in properties for word in ("-o", each)], image)
    run(cli, "put", "-q", tree, os.path.join(image, "tree"))
    if optimised:
        run(cli, "optimize", "-q", image)
    run(cli, "snapshot", image + "@made")


def readonly_kinds(cli):
    """Returns {name: (make the image, mount it, unmount it)}."""

    def pool(*properties, optimised=False):
        return (
            lambda tree, image: make_pool(cli, tree, image, optimised, *properties),
            lambda image, point: run(cli, "mount", image + "@made", point),
            lambda point: run(cli, "umount", point),
        )

    def squashfs(*options):
        return (
            lambda tree, image: run("mksquashfs", tree, image, "-quiet", "-no-progress", *options),
            lambda image, point: run("mount", "-o", "loop,ro", "-t", "squashfs", image, point),
            lambda point: run("umount", point),
        )

    kinds = {}
    if shutil.which("mksquashfs"):
        kinds["squashfs zstd-3"] = squashfs("-comp", "zstd", "-Xcompression-level", "3", "-b", "128K")
        kinds["squashfs zstd-19"] = squashfs("-comp", "zstd", "-Xcompression-level", "19", "-b", "1M")
    if shutil.which("mkdwarfs") and shutil.which("dwarfs"):
        kinds["DwarFS"] = (
            lambda tree, image: run("mkdwarfs", "-i", tree, "-o", image),
            lambda image, point: run("dwarfs", image, point),
            lambda point: run("umount", point),
        )
    kinds["pool zstd-3"] = pool("compression=zstd-3")
    kinds["pool zstd-19, 1M, dedup"] = pool("compression=zstd-19", "recordsize=1M", "dedup=on")
    kinds["pool, optimised"] = pool(optimised=True)
    return kinds


def tree_len(tree):
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(tree) for name in names]
    return sum(os.lstat(path).st_size for path in paths), len(paths)


def measure_readonly(kind, work, tree):
    make, mount, unmount = kind
    shutil.rmtree(work, ignore_errors=True)
    image, point = os.path.join(work, "image"), os.path.join(work, "mnt")
    os.makedirs(point)
    length, count = tree_len(tree)
    figures = {"made, MB/s": length / 1e6 / timed(lambda: make(tree, image))}
    figures["size, % of the files"] = 100 * os.stat(image).st_size / length
    for name, act, amount in (
        ("found cold, 1/s", look, count), ("read cold, MB/s", read_small, length / 1e6),
    ):
        drop_caches()
        mount(image, point)
        try:
            figures[name] = amount / timed(lambda act=act: act(point))
            if act is read_small:
                figures["read warm, MB/s"] = amount / timed(lambda: read_small(point))
        finally:
            unmount(point)
    return figures


def medians_of(rounds):
    return {
        kind: {name: statistics.median(one[name] for one in ones) for name in ones[0]} for kind, ones in rounds.items()
    }


def compare_readonly(args, work):
    """Returns the figures of each round, by kind."""
    kinds, rounds = readonly_kinds(args.cli), {}
    for _ in range(args.rounds):
        for name, kind in kinds.items():
            rounds.setdefault(name, []).append(measure_readonly(kind, os.path.join(work, "readonly"), args.tree))
    return rounds


def compare(args, work):
    """Returns the figures of each round, by kind."""
    rounds, data = {kind: [] for kind in KINDS}, text_of(args.mb * 1_000_000)
    for _ in range(args.rounds):
        for kind in KINDS:
            rounds[kind].append(measure(kind, os.path.join(work, kind), args, data))
    return rounds


def print_readonly(medians, tree):
    length, count = tree_len(tree)
    print(f"{tree}: {count} files, {length / 1e6:.0f} MB")
    if "DwarFS" not in medians:
        print("DwarFS is not installed: it is left out")
    for name, figures in medians.items():
        print("%-26s" % name + "".join("%12.1f %s" % (value, key) for key, value in figures.items()))


def print_compared(medians):
    print("%-28s" % "" + "".join("%12s" % kind for kind in KINDS) + "   pool x ext4   x btrfs")
    for name in medians["pool"]:
        values = [medians[kind][name] for kind in KINDS]
        against = (values[2] / values[0], values[2] / values[1])
        print("%-28s" % name + "".join("%12.1f" % value for value in values) + "%14.2f%10.2f" % against)


def chart(live, readonly, rounds):
    """Draws the speeds of both comparisons from their medians."""
    names = [name for name in live["pool"] if name.endswith("/s")]
    rows = {name: len(names) - index for index, name in enumerate(names)}
    colours = {"btrfs": "brown", "pool": "blue"}
    dots = [charts.Line(kind, colour, [(live[kind][name] / live["ext4"][name], rows[name])], [5])
            for kind, colour in colours.items() for name in names]
    x = charts.log_axis("speed as a multiple of ext4 (logarithmic)", [dot.points[0][0] for dot in dots] + [1])
    y = charts.Axis("", 0.4, len(names) + 0.6, False, [(rows[name], name.rpartition(", ")[0]) for name in names])
    speeds = charts.Panel("Beside ext4 and btrfs with zstd-3", x, y, dots, 190)
    points = {name: (own["size, % of the files"], own["read cold, MB/s"]) for name, own in readonly.items()}
    images = [charts.Line(name, "blue" if name.startswith("pool") else "orange", [point], [5], name)
              for name, point in points.items()]
    x = charts.linear_axis("size, % of the files", [point[0] for point in points.values()])
    y = charts.linear_axis("all files read, caches dropped, MB/s", [point[1] for point in points.values()])
    legend = [charts.Line(kind, colour, [], [5]) for kind, colour in colours.items()]
    subtitle = ("Left: to the right is faster, the vertical line at 1 is ext4. Right: one tree as a read-only image, upper "
                "left is better. Medians of %d rounds." % rounds)
    return charts.figure("A mounted pool beside file systems of the kernel", subtitle, subtitle,
                         [speeds, charts.Panel("Read-only images", x, y, images)], legend, columns=2, panel_height=360)


def main(argv):
    args = parse_arguments(argv)
    work = tempfile.mkdtemp(prefix="hardpack-mount-", dir=args.work)
    rounds = {}
    try:
        if args.chart or not args.readonly_compare:
            rounds["live"] = compare(args, work)
        if args.chart or args.readonly_compare:
            rounds["readonly"] = compare_readonly(args, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    medians = {which: medians_of(ones) for which, ones in rounds.items()}
    if args.chart:
        with open(args.chart, "w", encoding="utf-8") as file:
            file.write(chart(medians["live"], medians["readonly"], args.rounds))
    if args.json:
        return print(json.dumps({"medians": medians, "rounds": rounds}, indent=1))
    if "live" in medians:
        print_compared(medians["live"])
    if "readonly" in medians:
        print_readonly(medians["readonly"], args.tree)
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
