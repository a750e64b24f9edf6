"""The series: size against speed, latencies, and cost as the database grows and as processes are added.

The `at` of each sample is its position on its curve. Sides alternate as in the comparisons.
"""

import json
import marshal
import os
import subprocess

import data
import grow
from measure import Failed

NAMES = ["tradeoff", "latency", "concurrency", "growth"]
SERIES_CODECS = ("zstd-3", "lz4")
LEVELS = {"zstd": (1, 3, 9, 19), "zstd-fast": (5,), "gzip": (1, 6, 9), "lz4hc": (9,)}
SLOW_LEVELS = ("zstd-19",)  # at the default record size only
DEFAULT_RECORD_SIZE = "128K"
SLOW_PACK_SECONDS = 3.0
TRADEOFF_CACHE_SHARE = 8  # the cache for point reads: an eighth of the database
TRANSACTIONS = (("delete", "FULL"), ("wal", "FULL"), ("wal", "NORMAL"))
READERS, WRITERS = (1, 2, 4, 8), (1, 2, 4)

SCALES = {
    False: {"record_sizes": ("4K", "16K", "64K", "128K", "1M"), "tradeoff_runs": 2, "tradeoff_points": 1000,
            "latency": {"delete FULL": 2000, "wal FULL": 5000, "wal NORMAL": 20_000}, "duration": 1.0,
            "growth_mb": (10, 100, 1000, 10_000), "growth_points": 2000, "growth_opens": 20,
            "growth_updates": {"delete FULL": 200, "wal NORMAL": 4000}},
    True: {"record_sizes": ("16K", "128K"), "tradeoff_runs": 1, "tradeoff_points": 100,
           "latency": {"delete FULL": 30, "wal FULL": 100, "wal NORMAL": 1000}, "duration": 0.1,
           "growth_mb": (1, 4), "growth_points": 100, "growth_opens": 4,
           "growth_updates": {"delete FULL": 20, "wal NORMAL": 200}},
}
QUICK_CODECS = ("off", "lz4", "zstd-3")


def chosen_codecs(options):
    """Returns the codecs of the series: by default the two that most people will choose between."""
    return [c for c in SERIES_CODECS if c in options.codecs] or options.codecs[:1]


class Series:
    """Runs the series with a Runner; `scale` is one of SCALES."""

    def __init__(self, runner, options):
        self.runner, self.options, self.scale = runner, options, SCALES[options.quick]
        self.codecs = chosen_codecs(options)

    def path(self, name):
        return os.path.join(self.runner.directory, name)

    def sample(self, database, measurement, side, run, at, job, environment=None):
        return self.runner.record(database, measurement, side, run,
                                  lambda: self.runner.child(job, side, environment), at=at)

    # Size against speed.

    def tradeoff_variants(self):
        """Returns (codec, record size) from the list of `hardpack codecs`: one or several levels of each family."""
        if self.options.quick:
            names = QUICK_CODECS
        else:
            done = subprocess.run([self.options.cli, "codecs", "--json"], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, check=True, text=True)
            names = []
            for family in json.loads(done.stdout):
                levels = [n for n in LEVELS.get(family["name"], ()) if n in family["levels"]]
                names += ["%s-%d" % (family["name"], n) for n in levels] or [family["default"]]
        return [(name, size) for name in names for size in self.scale["record_sizes"]
                if name not in SLOW_LEVELS or size == DEFAULT_RECORD_SIZE]

    def tradeoff(self, database):
        if self.options.self_test:
            return
        if not os.path.exists(self.options.cli):
            self.runner.skipped.append("tradeoff: there is no '%s'" % os.path.basename(self.options.cli))
            return
        variants, packed = self.tradeoff_variants(), self.path("tradeoff.db")
        runs = min(self.options.runs, self.scale["tradeoff_runs"])
        self.runner.progress.expect(runs * (2 + 3 * len(variants)))
        slow = set()
        for run in range(runs):
            base = self.tradeoff_reads(database, "stock", run, {}, database.base)
            for codec, size in variants:
                at = {"codec": codec, "recordsize": size}
                if (codec, size) in slow:
                    for _ in range(3):
                        self.runner.progress.step("%s in records of %s: once is enough" % (codec, size))
                    continue

                def pack():
                    seconds = data.pack(self.options.cli, database.base, packed, codec, size)
                    return dict(data.sizes(packed), seconds=seconds, ops=1, check=None)

                try:
                    done = self.runner.record(database, "tradeoff_pack", codec, run, pack, at=at)
                    if done.get("seconds", 0) > SLOW_PACK_SECONDS:
                        slow.add((codec, size))
                    for entry, stock in zip(self.tradeoff_reads(database, codec, run, at, packed), base):
                        self.runner.compare_check(entry, stock)
                finally:
                    data.remove_database(packed)

    def tradeoff_reads(self, database, side, run, at, path):
        cache = {"HARDPACK_CACHE_BYTES": str(os.path.getsize(database.base) // TRADEOFF_CACHE_SHARE)}
        job = {"plan": database.plan_path, "path": path, "points": self.scale["tradeoff_points"]}
        return [self.sample(database, "tradeoff_scan", side, run, at, dict(job, op="first_scan")),
                self.sample(database, "tradeoff_point", side, run, at, dict(job, op="first_points"), cache)]

    # Latencies of single-row transactions.

    def latency(self, database):
        self.runner.progress.expect(self.options.runs * len(TRANSACTIONS) * (1 + len(self.codecs)))
        for journal, synchronous in TRANSACTIONS:
            at = {"journal": journal, "synchronous": synchronous}
            job = {"op": "updates", "plan": database.plan_path, "scanned": True, "latencies": True,
                   "updates": self.scale["latency"]["%s %s" % (journal, synchronous)], **at}
            self.alternate(database, "latency", at, lambda side, job=job: self.on_copy(database, side, job))

    def on_copy(self, database, side, job):
        path = self.path("run.db")
        try:
            data.copy(self.variant(database, side), path)
            return self.runner.child(dict(job, path=path), side)
        finally:
            data.remove_database(path)

    def alternate(self, database, measurement, at, take):
        for run in range(self.options.runs):
            base = self.runner.record(database, measurement, "stock", run, lambda: take("stock"), at=at)
            for codec in self.codecs:
                entry = self.runner.record(database, measurement, codec, run, lambda: take(codec), at=at)
                self.runner.compare_check(entry, base)

    @staticmethod
    def variant(database, side):
        if side not in database.variants:
            raise Failed("the database could not be packed")
        return database.variants[side]

    # Readers and writers.

    def concurrency(self, database):
        most = 2 if self.options.quick else max(READERS)
        cases = [(n, 0) for n in READERS if n <= most] + [(0, n) for n in WRITERS if n <= most]
        cases += [(n, 1) for n in READERS if n <= most]
        self.runner.progress.expect(self.options.runs * len(cases) * (1 + len(self.codecs)))
        for readers, writers in cases:
            at = {"readers": readers, "writers": writers}
            self.alternate(database, "concurrency", at,
                           lambda side, at=at: self.together(database, side, at["readers"], at["writers"]))

    def together(self, database, side, readers, writers):
        """Runs readers and writers on one fresh copy in WAL mode."""
        path = self.path("run.db")
        job = {"plan": database.plan_path, "path": path, "duration": self.scale["duration"], "writers": writers}
        try:
            data.copy(self.variant(database, side), path)
            self.runner.child(dict(job, op="set_wal"), side)
            jobs = [dict(job, op="reader", index=i) for i in range(readers)]
            jobs += [dict(job, op="writer", index=i) for i in range(writers)]
            samples = self.runner.children(jobs, side)
        finally:
            data.remove_database(path)
        reads, writes = samples[:readers], samples[readers:]
        return {"seconds": self.scale["duration"], "ops": sum(s["ops"] for s in samples),
                "check": [s["check"] for s in reads], "reads_per_second": rate(reads),
                "writes_per_second": rate(writes), "processes": samples}

    # Growth.

    def growth(self):
        codec = self.codecs[0]
        sizes = self.scale["growth_mb"]
        if not self.options.quick:
            sizes = [mb for mb in sizes if mb * 10**6 <= self.options.grow_to]
        for mb in sizes:
            database = Grown("%d MB" % mb, self.path("grown.db"))
            try:
                self.grow(database, mb, codec)
            finally:
                for path in database.variants.values():
                    data.remove_database(path)

    def grow(self, database, mb, codec):
        progress, runs = self.runner.progress, self.options.runs
        updates = self.scale["growth_updates"]
        progress.expect(1 + runs * 2 * (2 + len(updates)))
        plan_path = self.path("grown.plan")
        rows = grow.generate(database.base, mb * 10**6, 1)
        packed, at = self.path("grown.packed.db"), {"mb": mb}

        def pack():
            if self.options.self_test:
                data.copy(database.base, packed)
                return dict(data.sizes(packed), seconds=0, ops=1, check=None)
            seconds = data.pack(self.options.cli, database.base, packed, codec)
            return dict(data.sizes(packed), seconds=seconds, ops=1, check=None)

        database.variants[codec] = packed
        if "error" in self.runner.record(database, "growth_pack", codec, 0, pack, at=at):
            return
        jobs = [("growth_open", {"op": "open", "opens": self.scale["growth_opens"], "read": False}),
                ("growth_point", {"op": "any_and_hot_points"})]
        for kind, count in sorted(updates.items()):
            journal, synchronous = kind.split()
            jobs.append(("growth_" + journal, {"op": "updates", "updates": count, "journal": journal,
                                               "synchronous": synchronous}))
        # Updates are made in place, on both sides alike: copying large files would take longest.
        for run in range(runs):
            for index, (name, job) in enumerate(jobs):
                plan = grow.plan_of(rows, self.scale["growth_points"], job.get("updates", 0), run * len(jobs) + index)
                with open(plan_path, "wb") as file:
                    marshal.dump(plan, file)
                job["plan"] = plan_path
                base = self.sample(database, name, "stock", run, at, dict(job, path=database.base))
                entry = self.sample(database, name, codec, run, at, dict(job, path=packed))
                self.runner.compare_check(entry, base)


class Grown:
    """A generated database of some size, and its pool."""

    def __init__(self, name, base):
        self.name, self.base, self.variants = name, base, {"stock": base}


def rate(samples):
    return sum(s["ops"] / s["seconds"] for s in samples)
