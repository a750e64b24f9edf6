#!/usr/bin/env python3
"""Measure Hardpack and stock SQLite on the same databases, alternating, in one run.

Writes raw samples as JSON and a table of ratios as markdown (also to stdout). See bench/README.md.
Exit status: 0 measured, 1 a measurement failed, 2 cannot start, 130 interrupted.
"""

import argparse
import datetime
import json
import marshal
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time

import data
import machine
import make_weblog
import measure
import plan
import report

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STORED_KEYS = ("stored", "stored_bytes", "stored_size", "compressed", "compressed_bytes")
CODECS = ["lz4", "zstd-3", "gzip-6", "off"]
SEED = 20_250_101


class CannotStart(Exception):
    """Something needed is missing; the message says what to do."""


class Database:
    """One database to measure with: its plain base, its packed variants, its plan."""

    def __init__(self, name, base):
        self.name, self.base = name, base
        self.variants = {"stock": base}  # side -> path
        self.plan = self.plan_path = None
        self.scan_repeat = 1


def parse_arguments(argv):
    names = sorted({m.name for m in measure.METRICS} | {m.name for m in measure.PER_DATABASE + measure.ONCE})
    p = argparse.ArgumentParser(prog="bench.py", description=__doc__.splitlines()[0])
    built = os.path.join(ROOT, "target/release")
    p.add_argument("--db", action="append", default=[], metavar="PATH",
                   help="a real database to measure with (repeatable)")
    p.add_argument("--generated", type=float, metavar="MB",
                   help="size of each generated database; 0 for none (default 64; with --quick 3, or 0 beside --db)")
    p.add_argument("--quick", action="store_true", help="a few seconds in total: small, one run, zstd-3 only")
    p.add_argument("--runs", type=int, metavar="N",
                   help="runs of each measurement and side (default 5; with --quick 1)")
    p.add_argument("--codec", action="append", metavar="NAME",
                   help="codec to measure (repeatable; default %s)" % ", ".join(CODECS))
    p.add_argument("--only", action="append", metavar="NAME", choices=names,
                   help="measure only this (repeatable): " + ", ".join(names))
    p.add_argument("--out", default="bench-results", metavar="DIR", help="where results go (default bench-results)")
    p.add_argument("--work", metavar="DIR", help="where temporary databases go: a disk, not memory (default: --out)")
    p.add_argument("--lib", default=os.path.join(built, "libhardpack.so"), metavar="PATH", help="the extension")
    p.add_argument("--cli", default=os.path.join(built, "hardpack"), metavar="PATH", help="the command line")
    p.add_argument("--cold", choices=("auto", "drop", "fadvise"), default="auto",
                   help="empty the page cache: all of it (drop, as root) or the measured files (default: drop if root)")
    p.add_argument("--integrity", action="store_true", help="integrity_check after every updating measurement")
    p.add_argument("--timeout", type=int, default=900, metavar="SECONDS",
                   help="longest single measurement (default 900)")
    p.add_argument("--self-test", action="store_true",
                   help="stock SQLite on both sides: shows the noise, needs no library")
    options = p.parse_args(argv)
    if options.runs is None:
        options.runs = 1 if options.quick else 5
    if options.runs < 1:
        p.error("--runs must be at least 1")
    codecs = options.codec or (["zstd-3"] if options.quick else CODECS)
    options.codecs = [measure.SELF_TEST_SIDE] if options.self_test else list(dict.fromkeys(codecs))
    if options.generated is None:
        options.generated = 0 if options.quick and options.db else measure.SCALES[options.quick]["generated_mb"]
    return options


def check_python():
    """Loading extensions is compiled out of some Python builds; the system's has it."""
    if hasattr(sqlite3.Connection, "enable_load_extension"):
        return
    system = "/usr/bin/python3"
    if os.path.exists(system) and os.path.realpath(sys.executable) != os.path.realpath(system):
        os.execv(system, [system] + sys.argv)
    raise CannotStart("this python's sqlite3 cannot load extensions; use the system's python3")


def check_files(options):
    for path in options.db:
        if not os.path.isfile(path):
            raise CannotStart("no database '%s'" % path)
    if not options.self_test:
        options.lib, options.cli = os.path.abspath(options.lib), os.path.abspath(options.cli)
        if not os.path.exists(options.lib):
            raise CannotStart("no '%s': build it with `cargo build --release`, or use --self-test" % options.lib)


def unique_name(name, taken):
    unique, n = name, 2
    while unique in taken:
        unique, n = "%s-%d" % (name, n), n + 1
    return unique


def prepare_bases(options, scale, work, note):
    """Plain bases of all databases, each with its plan."""
    databases = []

    def add(name, make):
        name = unique_name(name, {d.name for d in databases} | {report.GENERATED_ROWS})
        database = Database(name, os.path.join(work, "base-%d.db" % len(databases)))
        try:
            make(database.base)
            database.plan = plan.make_plan(database.base, scale, SEED)
        except (sqlite3.Error, plan.NoPlan, OSError) as error:
            note("left out '%s': %s" % (name, error))
            data.remove_database(database.base)
            return
        database.plan_path = database.base + ".plan"
        with open(database.plan_path, "wb") as file:
            marshal.dump(database.plan, file)
        data.sync(database.base)
        reader = sqlite3.connect(database.base)
        reader.execute(database.plan["scan"]).fetchone()
        began = time.perf_counter()
        reader.execute(database.plan["scan"]).fetchone()
        database.scan_repeat = max(1, min(200, int(scale["scan_seconds"] / max(1e-6, time.perf_counter() - began))))
        reader.close()
        note("%s: %.1f MB, table %s, updates %s" % (name, os.path.getsize(database.base) / 1e6, database.plan["table"],
                                                   database.plan["update_column"]))
        databases.append(database)

    if options.generated > 0:
        target = options.generated * 1e6
        add("weblog", lambda out: make_weblog.generate(out, target, SEED))
        if not options.quick:
            add("shop", lambda out: data.generate_shop(out, target, SEED))
    for path in options.db:
        add(os.path.splitext(os.path.basename(path))[0], lambda out, path=path: data.make_base(path, out))
    return databases


def stored_bytes(stats):
    """The sum of compressed records, under the names that statistics may give it, however nested."""
    if not isinstance(stats, dict):
        return None
    for key in STORED_KEYS:
        if isinstance(stats.get(key), (int, float)) and stats[key] > 0:
            return int(stats[key])
    return next((found for found in map(stored_bytes, stats.values()) if found), None)


def statistics_of(options, runner, path, codec):
    """What hardpack_stats says, or else `hardpack info --json`; {} where neither does."""
    try:
        stats = runner.child({"op": "stats", "path": path}, codec)["stats"]
    except measure.Failed as error:
        stats = {"error": str(error)}
    if stored_bytes(stats) or options.self_test or not os.path.exists(options.cli):
        return stats
    done = subprocess.run([options.cli, "info", "--json", path], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True)
    try:
        return json.loads(done.stdout)
    except ValueError:
        return stats


def prepare_variants(options, database, runner, index):
    """Pack the base once per codec; returns the sizes. A failure is recorded and the rest goes on."""
    rows, logical = [], os.path.getsize(database.base)
    sample = {"database": database.name, "measurement": "size", "side": "stock", "run": 0, "ops": 1}
    runner.samples.append(dict(sample, **data.sizes(database.base)))
    for codec in options.codecs:
        out = os.path.join(runner.directory, "variant-%d-%s.db" % (index, codec.replace("/", "_")))
        row = {"database": database.name, "codec": codec, "logical_bytes": logical}
        try:
            if options.self_test:
                began = time.perf_counter()
                data.copy(database.base, out)
                row.update(packed_by="copy", pack_seconds=time.perf_counter() - began)
            elif os.path.exists(options.cli):
                row.update(packed_by="hardpack pack", pack_seconds=data.pack(options.cli, database.base, out, codec))
            else:
                job = {"op": "copy_in", "path": out, "source": database.base, "plan": database.plan_path}
                row.update(packed_by="backup API", pack_seconds=runner.child(job, codec)["seconds"])
                data.sync(out)
            database.variants[codec] = out
            found = data.sizes(out)
            row.update(pool_bytes=found["bytes"], pool_allocated_bytes=found["allocated_bytes"])
            runner.samples.append(dict(sample, side=codec, **found))
            row["stats"] = statistics_of(options, runner, out, codec)
            row["stored_bytes"] = stored_bytes(row["stats"])
        except (measure.Failed, RuntimeError, OSError) as error:
            row["error"] = str(error)
            runner.failures.append("%s, packing with %s: %s" % (database.name, codec, error))
        if not options.self_test:
            rows.append(row)
        runner.progress.step("%s, packed, %s: %s" % (database.name, codec,
                             row.get("error") or "%.2f times smaller" % (logical / row["pool_bytes"])))
    return rows


def chosen(measurements, only):
    if not only:
        return measurements
    wanted = {m.measurement for m in measure.METRICS if m.name in only} | set(only)
    return [m for m in measurements if m.name in wanted]


def run(options, work, result):
    """Everything measured; fills `result` as it goes, so that an interrupted run keeps what it has."""
    scale = measure.SCALES[options.quick]
    progress = measure.Progress(1)
    per_database, once = chosen(measure.PER_DATABASE, options.only), chosen(measure.ONCE, options.only)
    needed = per_database or not options.only or "size" in options.only
    databases = prepare_bases(options, scale, work, progress.note) if needed else []
    sides = 1 + len(options.codecs)
    progress = measure.Progress(len(databases) * (len(per_database) * options.runs * sides + len(options.codecs))
                                + len(once) * options.runs * sides)
    runner = measure.Runner(options, scale, work, progress)
    result.update(samples=runner.samples, failures=runner.failures)
    rows = Database(report.GENERATED_ROWS, os.path.join(work, "rows.marshal"))
    if once:
        data.write_bulk_rows(rows.base, scale["bulk_rows"], measure.BULK_CHUNK_ROWS, SEED)
    for measurement in once:
        runner.measure_alternating(measurement, rows, options.codecs)
    for index, database in enumerate(databases):
        facts = {key: database.plan[key] for key in ("table", "rows", "scan_column", "update_column")}
        result["databases"][database.name] = dict(facts, scans_per_sample=database.scan_repeat)
        result["sizes"] += prepare_variants(options, database, runner, index)
        for measurement in per_database:
            runner.measure_alternating(measurement, database, options.codecs)
        for path in database.variants.values():
            data.remove_database(path)
    progress.finish()


def write_results(options, result):
    result["summary"] = report.summarise(result["samples"], options.codecs)
    result["targets"] = report.targets(result["summary"], options.codecs)
    result["cold_methods"] = sorted({s["cold_method"] for s in result["samples"] if s.get("cold_method")})
    stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    text = report.markdown(result)
    for suffix, content in (("json", json.dumps(result, indent=1)), ("md", text)):
        path = os.path.join(options.out, "bench-%s.%s" % (stamp, suffix))
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)
        shutil.copyfile(path, os.path.join(options.out, "latest." + suffix))
        print("wrote " + path, file=sys.stderr)
    try:
        print(text, flush=True)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")


def interrupt(signum, frame):
    raise KeyboardInterrupt


def main(argv):
    options = parse_arguments(argv)
    signal.signal(signal.SIGTERM, interrupt)
    result = {"format": 1, "options": None, "machine": None, "databases": {}, "sizes": [], "samples": [],
              "failures": [], "interrupted": False}
    work = None
    try:
        check_python()
        check_files(options)
        os.makedirs(options.out, exist_ok=True)
        work = tempfile.mkdtemp(prefix="bench-work-", dir=options.work or options.out)
        result["machine"] = machine.describe(ROOT, work)
        result["options"] = {key: getattr(options, key) for key in
                             ("runs", "codecs", "quick", "generated", "only", "self_test", "cold", "integrity")}
        if result["machine"]["file_system"] in ("tmpfs", "ramfs"):
            print("bench: temporary databases are in memory, where a sync costs nothing; give --work",
                  file=sys.stderr)
        run(options, os.path.abspath(work), result)
    except (CannotStart, OSError) as error:
        print("bench: cannot measure: %s" % error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        result["interrupted"] = True
        print("\nbench: interrupted", file=sys.stderr)
    finally:
        if work:
            shutil.rmtree(work, ignore_errors=True)
    if result["samples"] or not result["interrupted"]:
        write_results(options, result)
    return 130 if result["interrupted"] else 1 if result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
