#!/usr/bin/env python3
"""Measures Hardpack and stock SQLite on the same databases, alternating, in one run.

Writes raw samples as JSON and a table of ratios as markdown (also to stdout). See bench/README.md.
Exit status: 0 if measured, 1 if a measurement failed, 2 if it cannot start, 130 if interrupted.
"""

import argparse
import datetime
import json
import os
import shutil
import signal
import sys
import tempfile

import data
import figures
import machine
import measure
import metrics
import prepare
import publish
import report
import series

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CODECS = ["lz4", "zstd-3", "gzip-6", "off"]


class CannotStart(Exception):
    """Something needed is missing; the message says what to do."""


def byte_size(text):
    factor = {"M": 10**6, "G": 10**9}.get(text[-1:].upper())
    if not factor or not text[:-1].isdigit():
        raise argparse.ArgumentTypeError("a size is a number and M or G, such as 1G")
    return int(text[:-1]) * factor


def parse_arguments(argv):
    names = sorted({m.name for m in metrics.METRICS + metrics.PER_DATABASE + metrics.ONCE}) + series.NAMES
    p = argparse.ArgumentParser(prog="bench.py", description=__doc__.splitlines()[0])
    built = os.path.join(ROOT, "target/release")
    p.add_argument("--db", action="append", default=[], metavar="PATH",
                   help="a real database to measure with (repeatable)")
    p.add_argument("--generated", type=float, metavar="MB",
                   help="size of each generated database; 0 for none (default 64; with --quick 3, or 0 beside --db)")
    p.add_argument("--quick", action="store_true", help="a few seconds in total: small, one run, zstd-3 only")
    p.add_argument("--runs", type=int, metavar="N",
                   help="runs of each measurement and side (default 3; with --quick 1)")
    p.add_argument("--codec", action="append", metavar="NAME",
                   help="codec to measure (repeatable; default %s)" % ", ".join(CODECS))
    p.add_argument("--only", action="append", metavar="NAME", choices=names,
                   help="measure only this (repeatable): " + ", ".join(names))
    p.add_argument("--grow-to", type=byte_size, default="1G", metavar="SIZE",
                   help="largest database of the growth series, up to 10G (default 1G)")
    p.add_argument("--publish", metavar="DOCS",
                   help="also put the raw data, the charts and the tables of benchmarks.md into this directory")
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
        options.runs = 1 if options.quick else 3
    if options.runs < 1:
        p.error("--runs must be at least 1")
    if options.publish and (options.quick or options.only or options.self_test):
        p.error("only a whole run can be published, without --quick, --only and --self-test")
    codecs = options.codec or (["zstd-3"] if options.quick else CODECS)
    options.codecs = [metrics.SELF_TEST_SIDE] if options.self_test else list(dict.fromkeys(codecs))
    if options.generated is None:
        options.generated = 0 if options.quick and options.db else metrics.SCALES[options.quick]["generated_mb"]
    return options


def check_files(options):
    for path in options.db:
        if not os.path.isfile(path):
            raise CannotStart("no database '%s'" % path)
    if not options.self_test:
        options.lib, options.cli = os.path.abspath(options.lib), os.path.abspath(options.cli)
        if not os.path.exists(options.lib):
            raise CannotStart("no '%s': build it with `cargo build --release`, or use --self-test" % options.lib)


def chosen(measurements, options):
    if options.self_test:  # nothing but stock: no codecs to compare, no pool to fold
        measurements = [m for m in measurements if m.against == "stock"]
    if not options.only:
        return measurements
    wanted = {m.measurement for m in metrics.METRICS if m.name in options.only} | set(options.only)
    return [m for m in measurements if m.name in wanted]


def run(options, work, result):
    """Measures everything; fills `result` as it goes, so that an interrupted run keeps its samples."""
    scale, runs, codecs = metrics.SCALES[options.quick], options.runs, options.codecs
    progress = measure.Progress(0)
    per_database, once = chosen(metrics.PER_DATABASE, options), chosen(metrics.ONCE, options)
    curves = [name for name in series.NAMES if not options.only or name in options.only]
    on_first = [name for name in curves if name != "growth"]
    needed = per_database or on_first or not options.only or "size" in options.only
    databases = prepare.bases(options, scale, work, progress.note) if needed else []
    progress.expect(len(databases) * (sum(measure.steps_of(m, runs, codecs) for m in per_database) + len(codecs))
                    + sum(measure.steps_of(m, runs, codecs) for m in once))
    runner = measure.Runner(options, scale, work, progress)
    result.update(samples=runner.samples, failures=runner.failures, skipped=runner.skipped)
    try:
        plotted = series.Series(runner, options)
        rows = prepare.Database(report.GENERATED_ROWS, os.path.join(work, "rows.marshal"))
        if once:
            data.write_bulk_rows(rows.base, scale["bulk_rows"], metrics.BULK_CHUNK_ROWS, prepare.SEED)
        for measurement in once:
            runner.measure_alternating(measurement, rows, codecs)
        for index, database in enumerate(databases):
            facts = {key: database.plan[key] for key in ("table", "rows", "scan_column", "update_column")}
            result["databases"][database.name] = dict(facts, scans_per_sample=database.scan_repeat,
                                                      bytes=os.path.getsize(database.base))
            result["sizes"] += prepare.variants(options, database, runner, index)
            for measurement in per_database:
                runner.measure_alternating(measurement, database, codecs)
            for name in on_first if index == 0 else ():
                getattr(plotted, name)(database)
            for path in database.variants.values():
                data.remove_database(path)
        if "growth" in curves:
            plotted.growth()
    finally:
        runner.close()
    progress.finish()


def write_results(options, result):
    result["summary"] = report.summarise(result["samples"], options.codecs)
    result["targets"] = report.targets(result)
    result["cold_methods"] = sorted({s["cold_method"] for s in result["samples"] if s.get("cold_method")})
    stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    charts = figures.draw(result)
    for base in ("bench-" + stamp, "latest"):
        text = report.markdown(result, {name: "%s-%s.svg" % (base, name) for name in charts})
        written = {"%s.json" % base: publish.as_json(result), "%s.md" % base: text}
        written.update({"%s-%s.svg" % (base, name): drawing for name, drawing in charts.items()})
        for name, content in written.items():
            with open(os.path.join(options.out, name), "w", encoding="utf-8") as file:
                file.write(content)
    print("wrote %s and %d charts" % (os.path.join(options.out, "bench-%s.{json,md}" % stamp), len(charts)),
          file=sys.stderr)
    try:
        print(text, flush=True)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")
    if options.publish:
        try:
            publish.publish(result, options.publish)
        except (OSError, ValueError) as error:
            result["failures"].append("publishing in '%s': %s" % (options.publish, error))
            print("bench: cannot publish in '%s': %s" % (options.publish, error), file=sys.stderr)


def interrupt(signum, frame):
    raise KeyboardInterrupt


def main(argv):
    options = parse_arguments(argv)
    signal.signal(signal.SIGTERM, interrupt)
    result = {"format": 2, "options": None, "machine": None, "databases": {}, "sizes": [], "samples": [],
              "failures": [], "skipped": [], "interrupted": False}
    work = None
    try:
        machine.use_python_with_extensions()
        check_files(options)
        os.makedirs(options.out, exist_ok=True)
        work = tempfile.mkdtemp(prefix="bench-work-", dir=options.work or options.out)
        result["machine"] = machine.describe(ROOT, work)
        result["options"] = {key: getattr(options, key) for key in
                             ("runs", "codecs", "quick", "generated", "only", "self_test", "cold", "integrity",
                              "grow_to")}
        if result["machine"]["file_system"] in ("tmpfs", "ramfs"):
            print("bench: temporary databases are in memory, where a sync costs nothing; use --work",
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
