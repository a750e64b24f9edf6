#!/usr/bin/env python3
"""Measures the page filter on databases: sizes compared with btrfs, zstd -19 and xz -6, and speeds with and without it.

usage: page_filter.py [--runs N] [--sizes] [--publish DOCS] DATABASE...

Prints tables as markdown; --publish puts them, a chart and the raw data into the documentation. Needs xz and zstd, and
for btrfs root and mkfs.btrfs; without these the column for btrfs stays empty.
"""

import argparse
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import charts
import data
import machine
import publish
import tables

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CLI = os.path.join(ROOT, "target/release/hardpack")
BEGIN, END = "<!-- figures: made by bench/page_filter.py -->", "<!-- end of figures -->"

CODECS = ["lz4", "zstd-3", "zstd-9"]
FILTERS = ["none", "auto"]
# key, colour, name in the chart
SERIES = [("btrfs", "grey", "btrfs zstd:3"), ("zstd-3 none", "blue", "Hardpack zstd-3, unfiltered"),
          ("xz", "brown", "xz -6, whole file"), ("zstd19", "purple", "zstd -19, whole file"),
          ("zstd-3 auto", "orange", "Hardpack zstd-3, filtered"), ("zstd-9 auto", "red", "Hardpack zstd-9, filtered")]


def piped_size(command, path):
    """Returns the length of the output of `command` for a file."""
    with open(path, "rb") as source:
        process = subprocess.Popen(command, stdin=source, stdout=subprocess.PIPE)
        size = 0
        while block := process.stdout.read(1 << 20):
            size += len(block)
    if process.wait() != 0:
        raise RuntimeError("'%s' failed" % command[0])
    return size


class Btrfs:
    """A file system in a file, mounted with zstd:3 like Hardpack's default, and forced to skip nothing."""

    def __init__(self, work, size):
        self.image, self.point = os.path.join(work, "btrfs.img"), os.path.join(work, "btrfs")
        os.mkdir(self.point)
        with open(self.image, "wb") as image:
            image.truncate(size)
        subprocess.run(["mkfs.btrfs", "-q", self.image], check=True)
        subprocess.run(["mount", "-o", "loop,compress-force=zstd:3", self.image, self.point], check=True)

    def used(self):
        """Returns the bytes of data and metadata."""
        subprocess.run(["sync", "-f", self.point], check=True)
        out = subprocess.run(["btrfs", "filesystem", "df", "-b", self.point], check=True, stdout=subprocess.PIPE, text=True)
        return sum(int(line.split("used=")[1]) for line in out.stdout.splitlines() if line.startswith(("Data", "Metadata")))

    def size_of(self, path):
        before = self.used()
        copy = os.path.join(self.point, "copy")
        shutil.copyfile(path, copy)
        size = self.used() - before
        os.remove(copy)
        return size

    def close(self):
        subprocess.run(["umount", self.point], check=False)


def timed(command):
    """Returns the processor time and the elapsed time of a command, in seconds."""
    began, before = time.perf_counter(), os.times()
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    after = os.times()
    if done.returncode != 0:
        raise RuntimeError("%s: %s" % (command[1], done.stderr.strip()[-500:]))
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {"seconds": time.perf_counter() - began, "cpu_seconds": cpu}


def measure(path, runs, work, btrfs, note):
    """Returns the sizes of one database, and samples of packing and unpacking it, filtered or not in turn."""
    name = os.path.splitext(os.path.basename(path))[0]
    row = {"name": name, "bytes": os.path.getsize(path), "sizes": {}, "samples": []}
    plain = os.path.join(work, "plain")
    shutil.copyfile(path, plain)
    row["sizes"]["xz"] = piped_size(["xz", "-6", "-c"], plain)
    row["sizes"]["zstd19"] = piped_size(["zstd", "-19", "-q", "-c"], plain)
    row["sizes"]["btrfs"] = btrfs.size_of(plain) if btrfs else None
    for codec in CODECS:
        for run in range(runs):
            for which in FILTERS:
                pool, back = os.path.join(work, "pool"), os.path.join(work, "back")
                packed = timed([CLI, "pack", "-q", "--compression", codec, "--filter", which, plain, pool])
                unpacked = timed([CLI, "unpack", "-q", pool, back])
                with open(plain, "rb") as a, open(back, "rb") as b:
                    while block := a.read(1 << 20):
                        if block != b.read(1 << 20):
                            raise RuntimeError("'%s' did not restore the file" % name)
                row["sizes"]["%s %s" % (codec, which)] = os.path.getsize(pool)
                row["samples"].append({"codec": codec, "filter": which, "run": run, "pack": packed, "unpack": unpacked})
                data.remove_database(pool)
                os.remove(back)
    os.remove(plain)
    note("%s: zstd-3 %.3f of unfiltered" % (name, share(row, "zstd-3")))
    return row


def share(row, codec):
    """Returns the filtered size divided by the unfiltered one."""
    return row["sizes"][codec + " auto"] / row["sizes"][codec + " none"]


def geometric(values):
    return math.exp(statistics.fmean(math.log(value) for value in values))


def slowdown(row, codec, what, clock):
    """Returns the median over the runs of filtered time divided by unfiltered time."""
    runs = {}
    for sample in row["samples"]:
        if sample["codec"] == codec:
            runs.setdefault(sample["run"], {})[sample["filter"]] = sample[what][clock]
    return statistics.median(run["auto"] / max(run["none"], 1e-9) for run in runs.values())


def size_table(rows):
    header = ["database", "plain", "btrfs zstd:3", "xz -6", "zstd -19"]
    for codec in CODECS:
        header += [codec, "filtered", "ratio"]
    lines = []
    for row in rows:
        sizes = row["sizes"]
        megabytes = lambda value: "" if value is None else "%.2f" % (value / 1e6)
        line = [row["name"], megabytes(row["bytes"])] + [megabytes(sizes[key]) for key in ("btrfs", "xz", "zstd19")]
        for codec in CODECS:
            line += [megabytes(sizes[codec + " none"]), megabytes(sizes[codec + " auto"]), "%.3f" % share(row, codec)]
        lines.append(line)
    mean = ["geometric mean", "", "", "", ""]
    for codec in CODECS:
        mean += ["", "", "%.3f" % geometric([share(row, codec) for row in rows])]
    return tables.table(header, lines + [mean])


def time_table(rows):
    header = ["database"]
    for codec in CODECS:
        header += [codec + ": pack", "processor", "unpack", "processor"]
    lines = []
    columns = [(codec, what, clock) for codec in CODECS for what in ("pack", "unpack") for clock in ("seconds", "cpu_seconds")]
    for row in rows:
        lines.append([row["name"]] + ["%.2f" % slowdown(row, *column) for column in columns])
    mean = ["%.2f" % geometric([slowdown(row, *column) for row in rows]) for column in columns]
    return tables.table(header, lines + [["geometric mean"] + mean])


def chart(rows, described):
    """Draws how many times smaller than the plain file each database is."""
    names = [(index, row["name"][-13:]) for index, row in enumerate(rows)]
    points = []
    for key, colour, name in SERIES:
        for index, row in enumerate(rows):
            if row["sizes"].get(key):
                times = row["bytes"] / row["sizes"][key]
                points.append(charts.Line(name, colour, [(index, times)], [5], hollow="Hardpack" not in name))
    x = charts.Axis("", -0.5, len(rows) - 0.5, ticks=names)
    y = charts.log_axis("times smaller than the plain database", [line.points[0][1] for line in points], "%g×".__mod__)
    legend = [charts.Line(name, colour, [], [5], hollow="Hardpack" not in name) for _, colour, name in SERIES]
    return charts.figure(
        "The page filter on real databases", "Whole pools of records of 128 KiB, any row readable at once, against whole "
        "files and a compressing file system.", "For each database, how many times smaller it is in each form.",
        [charts.Panel("", x, y, points)], legend, panel_height=420, footer=described)


def report(result):
    facts = result["machine"]
    described = "%s, %s CPUs, %s; commit %s" % (facts["cpu"], facts["cpus"], facts["kernel"],
                                              (facts["commit"] or "?")[:10])
    times = [] if result["sizes_only"] else [
        "Time with the filter divided by time without it, as medians of alternating runs: elapsed time (%d CPUs) and processor "
        "time. `pack` includes reading everything back. Both commands read from and write to the page cache." % facts["cpus"], "", time_table(result["rows"]), ""]
    text = "\n".join([
        "Sizes in MB: of whole pools made by `hardpack pack`, of the space that btrfs allocates (`compress-force=zstd:3`, metadata "
        "included), and of whole compressed files. A ratio is the filtered size divided by the unfiltered size.", "", size_table(result["rows"]), "",
        *times, "Measured on %s: `%s`." % (described, facts["command"])])
    return text, described


def main(argv):
    parser = argparse.ArgumentParser(prog="page_filter.py", description=__doc__.splitlines()[0])
    parser.add_argument("databases", nargs="+", metavar="DATABASE")
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="runs of each measurement (default 3)")
    parser.add_argument("--sizes", action="store_true", help="only sizes, no times, which need an idle machine")
    parser.add_argument("--publish", metavar="DOCS", help="also put the results into this directory")
    parser.add_argument("--work", metavar="DIR", help="where temporary files go (default: the system's)")
    options = parser.parse_args(argv)
    if not os.path.exists(CLI):
        print("page_filter: no '%s': build it with `cargo build --release`" % CLI, file=sys.stderr)
        return 2
    work = tempfile.mkdtemp(prefix="page-filter-", dir=options.work)
    options.runs = 1 if options.sizes else options.runs
    result = {"machine": machine.describe(ROOT, work), "runs": options.runs, "sizes_only": options.sizes, "rows": []}
    given = "--sizes" if options.sizes else "--runs %d" % options.runs
    result["machine"]["command"] = "bench/page_filter.py %s DATABASE…" % given
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    note = lambda text: print(text, file=sys.stderr)
    btrfs = None
    try:
        if os.geteuid() == 0 and shutil.which("mkfs.btrfs"):
            largest = max(os.path.getsize(path) for path in options.databases)
            btrfs = Btrfs(work, max(512 << 20, 2 * largest))
        for path in options.databases:
            result["rows"].append(measure(path, options.runs, work, btrfs, note))
    except KeyboardInterrupt:
        note("page_filter: interrupted; reporting the measurements so far")
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        print("page_filter: %s" % error, file=sys.stderr)
        return 1
    finally:
        if btrfs:
            btrfs.close()
        shutil.rmtree(work, ignore_errors=True)
    text, described = report(result)
    print(text)
    if options.publish:
        put(options.publish, result, text, chart(result["rows"], described))
    return 0


def put(docs, result, text, drawing):
    publish.write(os.path.join(docs, "charts", "page-filter.svg"), drawing)
    raw = "bench-data/page-filter.json"
    publish.write(os.path.join(docs, raw), publish.as_json(result))
    page = os.path.join(docs, "page-filter.md")
    figure = "![How many times smaller each database is](charts/page-filter.svg)"
    with open(page, encoding="utf-8") as file:
        written = publish.between_marks(file.read(), "\n".join([figure, "", text, "", "[Every sample](%s)." % raw]), BEGIN, END)
    publish.write(page, written)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
