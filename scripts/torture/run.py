#!/usr/bin/env python3
"""Tortures Hardpack with real processes, real file systems and real SIGKILLs. See README.md beside this file.

Exit status: 0 if nothing wrong was found, 1 if something was, 2 if it could not start, 130 if interrupted.
"""

import argparse
import collections
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

import crew
import full
import in_place
import killing
import power
import self_test
import sql

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# The parts, and the share of the time that each gets.
PARTS = {
    "killing": (killing.run, 0.40),
    "in-place": (in_place.run, 0.15),
    "full-disk": (full.run, 0.20),
    "power-cut": (power.run, 0.25),
}
QUICK_PARTS = {"killing": (killing.run, 0.7), "in-place": (in_place.run, 0.3)}
QUICK_SECONDS = 40
# The time that a worker takes to start and end on an idle machine.
START_SECONDS = 0.2


class Context:
    """The state that all parts share."""

    def __init__(self, options):
        self.seed, self.library, self.hardpack = options.seed, options.lib, options.cli
        self.work, self.keep, self.journal_mode = options.work, options.keep, options.journal_mode
        self.may_drop_caches = os.geteuid() == 0 and not (options.keep_caches or options.quick)
        self.idle_settings = {"pool": "", "seed": "", "work": "", "pragmas": [], "may_fill": False, "life": 0,
                              "library": self.library}
        self.counts = collections.Counter()
        self.skipped = []

    def say(self, text):
        print(text, flush=True)

    def rng(self, part):
        return random.Random(f"{self.seed}/{part}")

    def pace(self):
        """How much slower workers start than on an idle machine: kills are that much rarer, so that work gets done."""
        began = time.monotonic()
        subprocess.run(crew.worker("nothing", self.idle_settings), check=True)
        return max(1.0, (time.monotonic() - began) / START_SECONDS)

    def skip(self, what):
        self.say(f"  SKIPPED: {what}")
        self.skipped.append(what)

    @contextlib.contextmanager
    def directory(self, name):
        """A directory that is removed when all is well, and kept for inspection when something was found."""
        path = tempfile.mkdtemp(prefix=f"hardpack-torture-{name}-", dir=self.work)
        try:
            yield path
        except KeyboardInterrupt:
            shutil.rmtree(path, ignore_errors=True)
            raise
        except BaseException:
            if self.keep:
                self.say(f"  kept for inspection: {path}")
            else:
                shutil.rmtree(path, ignore_errors=True)
            raise
        shutil.rmtree(path)

    def drop_caches(self):
        """Drops the machine's page cache: only data on the medium remains."""
        if not self.may_drop_caches:
            return
        os.sync()
        try:
            with open("/proc/sys/vm/drop_caches", "w") as file:
                file.write("3\n")
        except OSError:
            self.may_drop_caches = False
            self.skip("this system does not allow dropping its page cache")
            return
        self.counts["page cache dropped"] += 1


def parse_arguments(argv):
    p = argparse.ArgumentParser(prog="run.py", description=__doc__.splitlines()[0])
    built = os.path.join(ROOT, "target/release")
    p.add_argument("--minutes", type=float, default=30, help="how long (default 30)")
    p.add_argument("--seed", type=int, help="seed of all random choices (default: the clock; it is printed)")
    p.add_argument("--quick", action="store_true", help="less than a minute, without root: killing and packing only")
    p.add_argument("--only", action="append", choices=list(PARTS), metavar="PART", help="only this part; repeatable: "
                   + ", ".join(PARTS))
    p.add_argument("--work", default=tempfile.gettempdir(), metavar="DIR", help="where pools and disk images go")
    p.add_argument("--lib", default=os.path.join(built, "libhardpack.so"), metavar="PATH", help="the extension")
    p.add_argument("--cli", default=os.path.join(built, "hardpack"), metavar="PATH", help="the command line")
    p.add_argument("--nice", type=int, default=5, metavar="N", help="niceness of all processes (default 5)")
    p.add_argument("--control", action="store_true", help="killing with SQLite alone on a plain database: failures "
                   "are then not Hardpack's")
    p.add_argument("--journal-mode", metavar="MODE", help="always use this journal mode instead of random ones")
    p.add_argument("--keep", action="store_true", help="keep the files of failed tests")
    p.add_argument("--keep-caches", action="store_true", help="leave the machine's page cache alone")
    options = p.parse_args(argv)
    options.lib, options.cli = os.path.abspath(options.lib), os.path.abspath(options.cli)
    for path in (options.lib, options.cli):
        if not os.path.exists(path):
            print(f"run.py: no '{path}': build it with `cargo build --release`", file=sys.stderr)
            raise SystemExit(2)
    if options.control:
        os.environ[sql.CONTROL] = "1"
        options.only = ["killing"]
    if options.seed is None:
        options.seed = time.time_ns() % 10**9
    return options


def summarise(context, results, seconds):
    context.say("\n| what | number |\n| --- | ---: |")
    for name in sorted(context.counts):
        context.say(f"| {name} | {context.counts[name]} |")
    context.say(f"\nseed {context.seed}, {seconds / 60:.1f} minutes")
    for what in context.skipped:
        context.say(f"SKIPPED: {what}")
    for part, verdict in results.items():
        context.say(f"{part}: {verdict}")


def terminated(*_):
    """Treats SIGTERM like Ctrl-C: everything is taken down in order."""
    raise KeyboardInterrupt


def main():
    signal.signal(signal.SIGTERM, terminated)
    sql.need_extensions()
    options = parse_arguments(sys.argv[1:])
    context = Context(options)
    context.loader = sql.load(options.lib)
    os.nice(options.nice)
    parts = QUICK_PARTS if options.quick else PARTS
    parts = {name: part for name, part in parts.items() if not options.only or name in options.only}
    whole = sum(share for _, share in parts.values())
    seconds = QUICK_SECONDS if options.quick else options.minutes * 60
    context.say(f"seed {context.seed}: `scripts/torture/run.py --seed {context.seed}` repeats the choices")
    if options.quick:
        context.say("quick: only the long run tests a full disk and power cuts")
    results, began = {}, time.monotonic()
    parts = {"self-test": (lambda context, _: self_test.run(context), 0), **parts}
    for name, (run, share) in parts.items():
        context.say(f"{name}:")
        try:
            run(context, seconds * share / whole)
            results[name] = "nothing wrong found"
        except KeyboardInterrupt:
            results[name] = "interrupted"
            break
        except Exception:
            results[name] = "FAILED\n" + traceback.format_exc()
    summarise(context, results, time.monotonic() - began)
    if "interrupted" in results.values():
        return 130
    return 1 if any(verdict.startswith("FAILED") for verdict in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
