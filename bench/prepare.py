"""Prepares databases: plain bases with their plans, packed variants, and the statistics of these."""

import json
import marshal
import os
import sqlite3
import subprocess
import time

import data
import make_weblog
import measure
import plan
import report

STORED_KEYS = ("stored", "stored_bytes", "stored_size", "compressed", "compressed_bytes")
SEED = 20_250_101


class Database:
    """One database to measure with: its plain base, its packed variants, its plan."""

    def __init__(self, name, base):
        self.name, self.base = name, base
        self.variants = {"stock": base}  # side -> path
        self.plan = self.plan_path = None
        self.scan_repeat = 1


def unique_name(name, taken):
    unique, n = name, 2
    while unique in taken:
        unique, n = "%s-%d" % (name, n), n + 1
    return unique


def bases(options, scale, work, note):
    """Makes plain bases of all databases, each with its plan."""
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
    """Returns the sum of compressed records, under any of its names in the statistics, however nested."""
    if not isinstance(stats, dict):
        return None
    for key in STORED_KEYS:
        if isinstance(stats.get(key), (int, float)) and stats[key] > 0:
            return int(stats[key])
    return next((found for found in map(stored_bytes, stats.values()) if found), None)


def statistics_of(options, runner, path, codec):
    """Returns the statistics from hardpack_stats or else `hardpack info --json`; {} if neither works."""
    try:
        stats = runner.child({"op": "stats", "path": path}, codec)["stats"]
        # The path says nothing about the measurement.
        stats.pop("path", None)
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


def variants(options, database, runner, index):
    """Packs the base once per codec; returns the sizes. A failure is recorded, and the rest goes on."""
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
