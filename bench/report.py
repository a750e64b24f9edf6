"""Turns raw samples into ratios, verdicts and tables."""

import statistics

import figures
import metrics
from tables import human, table

GENERATED_ROWS = "generated rows"
MEASUREMENTS = {m.name: m for m in metrics.PER_DATABASE + metrics.ONCE}


def per_op(sample, field):
    value = sample.get(field)
    if value is None or "error" in sample:
        return None
    return value / sample["ops"] if field == "seconds" else value


def pairs_of(samples, metric, codec):
    """Returns [(hardpack, compared with)] of each run, and the expected number of runs."""
    against = MEASUREMENTS[metric.measurement].against if metric.measurement in MEASUREMENTS else "stock"
    mine = {s["run"]: s for s in samples if s["side"] == codec}
    if metric.beside:
        pairs = [(per_op(s, metric.field), per_op(s, metric.beside)) for s in mine.values()]
    else:
        base = {s["run"]: s for s in samples if s["side"] == against}
        pairs = [(per_op(mine[run], metric.field), per_op(base[run], metric.field)) for run in mine if run in base]
    return [(a, b) for a, b in pairs if a is not None and b], len(mine)


def compare(samples, metric, codec):
    """Returns the medians of both sides and of the pairwise ratios, or None if nothing was measured.

    A pair is a stock sample and the Hardpack sample of the same run, made one after the other.
    """
    chosen = [s for s in samples if s["measurement"] == metric.measurement and "skipped" not in s]
    if MEASUREMENTS.get(metric.measurement) and MEASUREMENTS[metric.measurement].against == codec:
        return None
    pairs, runs = pairs_of(chosen, metric, codec)
    if not runs:
        return None
    if not pairs:
        error = next((s["error"] for s in chosen if "error" in s), "no sample to compare with")
        return {"metric": metric.name, "codec": codec, "error": error}
    ratios, values = [a / b for a, b in pairs], [a for a, _ in pairs]
    row = {"metric": metric.name, "codec": codec, "runs": len(ratios), "failed_runs": runs - len(ratios),
           "ratio": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios),
           "hardpack": statistics.median(values), "stock": statistics.median(b for _, b in pairs)}
    if codec == metrics.TARGET_CODEC and (metric.target or metric.limit):
        row["ok"] = not row["failed_runs"] and (row["ratio"] <= metric.target if metric.target
                                                else row["hardpack"] <= metric.limit)
    return row


def summarise(samples, codecs):
    """Returns all comparisons, by database in order of appearance."""
    rows = []
    for database in dict.fromkeys(s["database"] for s in samples):
        own = [s for s in samples if s["database"] == database]
        for metric in metrics.METRICS:
            for codec in codecs:
                row = compare(own, metric, codec)
                if row:
                    rows.append(dict(row, database=database))
    return rows


def overhead_rows(sizes):
    """Compares the pool length with the sum of its compressed records: the first target."""
    rows = []
    for size in sizes:
        if size["codec"] == "stock" or "pool_bytes" not in size:
            continue
        stored = size.get("stored_bytes")
        limit = int(stored * metrics.POOL_OVERHEAD_FACTOR) + metrics.POOL_OVERHEAD_BYTES if stored else None
        rows.append(dict(size, limit_bytes=limit))
    return rows


def targets(result):
    """Returns, per target, the median over databases and how many miss it. Only measured targets have a verdict.

    Ratios are judged by the median; a limit, such as that of memory, must hold on every database.
    """
    found = []
    for metric in metrics.METRICS:
        rows = [r for r in result["summary"] if r["metric"] == metric.name and r["codec"] == metrics.TARGET_CODEC
                and ("ok" in r or "error" in r)]
        if (metric.target or metric.limit) and rows:
            values = [r["ratio" if metric.target else "hardpack"] for r in rows if "error" not in r]
            misses = sum(not r.get("ok") for r in rows)
            limit = metric.target or metric.limit
            failed = any("error" in r or r["failed_runs"] for r in rows)
            found.append({"title": metric.title, "metric": metric.name,
                          "field": "ratio" if metric.target else metric.field, "target": limit,
                          "text": metric.target_text,
                          "median": statistics.median(values) if values else None,
                          "worst": max(values) if values else None, "databases": len(rows), "misses": misses,
                          "ok": not failed and (max if metric.limit else statistics.median)(values) <= limit})
    return found + open_target(result)


def open_target(result):
    opens = figures.collect(result, "growth_open", "first_seconds", lambda s: (s["side"], s["at"]["mb"]))
    values = [statistics.median(runs) for (side, _), runs in opens.items() if side == metrics.TARGET_CODEC]
    if not values:
        return []
    limit = metrics.OPEN_SECONDS_MAX
    return [{"title": "open and read one row, new process, any size", "metric": "growth_open", "field": "first_seconds",
             "target": limit, "text": "< 10 ms", "median": statistics.median(values), "worst": max(values),
             "databases": len(values), "misses": sum(v > limit for v in values), "ok": max(values) <= limit}]


def verdict(ok):
    return "ok" if ok else "miss"


def detail_table(rows):
    lines = []
    for row in rows:
        metric = metrics.BY_NAME[row["metric"]]
        judged = metric.target_text if row["codec"] == metrics.TARGET_CODEC else ""
        if "error" in row:
            lines.append([metric.title, row["codec"], "", "", "failed", "", judged, "miss" if judged else ""])
            continue
        spread = "" if row["runs"] == 1 else "%.2f - %.2f" % (row["ratio_min"], row["ratio_max"])
        failed = " (%d failed)" % row["failed_runs"] if row["failed_runs"] else ""
        lines.append([metric.title, row["codec"], human(row["stock"], metric.field),
                      human(row["hardpack"], metric.field), "%.2f%s" % (row["ratio"], failed), spread,
                      judged, verdict(row["ok"]) if "ok" in row else ""])
    return table(["measurement", "codec", "stock", "hardpack", "ratio", "min - max", "to reach", "verdict"], lines)


def target_table(result):
    lines = []
    for row in overhead_rows(result["sizes"]):
        if row["limit_bytes"] is None:
            reached, judged = "%s, records unknown" % human(row["pool_bytes"], "bytes"), "not measured"
        else:
            extra = row["pool_bytes"] - row["stored_bytes"]
            reached = "%+.2f%% (%+.1f KiB)" % (extra / row["stored_bytes"] * 100, extra / 1024)
            judged = verdict(row["pool_bytes"] <= row["limit_bytes"])
        lines.append(["pool size over its records, %s" % row["database"], row["codec"], "<= 1% + 64 KiB", reached, "",
                      judged])
    for row in result["targets"]:
        note = "%s (%d of %d missed)" % (verdict(row["ok"]), row["misses"], row["databases"])
        middle, worst = ("failed" if v is None else "%.2f" % v if row["field"] == "ratio" else human(v, row["field"])
                         for v in (row["median"], row["worst"]))
        lines.append([row["title"], metrics.TARGET_CODEC, row["text"], middle, worst, note])
    if not lines:
        return "No target was measured."
    return table(["target", "codec", "to reach", "median", "worst", "verdict"], lines)


def size_table(result):
    lines = []
    for row in result["sizes"]:
        if "pool_bytes" not in row:
            lines.append([row["database"], human(row["logical_bytes"], "bytes"), row["codec"], "failed", "", "", ""])
            continue
        lines.append([row["database"], human(row["logical_bytes"], "bytes"), row["codec"],
                      human(row["pool_bytes"], "bytes"), human(row["pool_allocated_bytes"], "bytes"),
                      "%.2f" % (row["logical_bytes"] / row["pool_bytes"]),
                      "%.2f s (%s)" % (row["pack_seconds"], row["packed_by"])])
    return table(["database", "plain", "codec", "pool", "on disk", "times smaller", "packed in"], lines)


def markdown(result, chart_paths, raw=None):
    """Returns the whole report. `chart_paths` and `raw` are the paths of charts and samples relative to it."""
    machine, options = result["machine"], result["options"]
    dirty = " with uncommitted changes" if machine["uncommitted_changes"] else ""
    compared = "stock SQLite against itself (self-test)" if options["self_test"] else "Hardpack against stock SQLite"
    memory = "%.1f GiB" % (machine["memory_bytes"] / 2**30) if machine["memory_bytes"] else "unknown"
    runs = "one run" if options["runs"] == 1 else "%d alternating runs" % options["runs"]
    parts = ["# Benchmark: " + compared, "",
             "A ratio is Hardpack / stock SQLite: 1 is equal, **lower is better everywhere**, above 1 is a loss.",
             "Values are medians of %s, with each measurement in a fresh process." % runs,
             "`min - max` are the smallest and the largest ratio of a pair. Times are per operation.", "",
             "* %s, %d CPUs, %s memory, %s, %s" % (machine["cpu"], machine["cpus"], memory, machine["kernel"],
                                                  machine["file_system"] or "unknown file system"),
             "* SQLite %s, Python %s, load average at start %.2f" % (machine["sqlite"], machine["python"],
                                                                    machine["load_average_at_start"][0]),
             "* commit %s%s, %s" % (machine["commit"] or "none", dirty, machine["date"]),
             "* `%s`" % machine["command"],
             "* cold: %s" % (" and ".join(result["cold_methods"]) or "not measured")]
    if raw:
        parts.append("* raw samples: [%s](%s)" % (raw, raw))
    if result["interrupted"]:
        parts.append("* **interrupted**: only the measurements until then")
    if not options["self_test"]:
        parts += ["", "## Targets", "", target_table(result)]
    parts += figures.sections(result, chart_paths)
    if result["sizes"]:
        parts += ["", "## Sizes", "", size_table(result)]
    for database in dict.fromkeys(row["database"] for row in result["summary"]):
        parts += ["", "## " + database, ""]
        if database in result["databases"]:
            plan = result["databases"][database]
            parts += ["%s rows; scans and reads `%s`, updates its column `%s`." % (
                format(plan["rows"], ","), plan["table"], plan["update_column"]), ""]
        parts.append(detail_table([r for r in result["summary"] if r["database"] == database]))
    if result["skipped"]:
        parts += ["", "## Not measured", ""] + ["* " + note for note in result["skipped"]]
    if result["failures"]:
        parts += ["", "## Failed", ""] + ["* " + failure for failure in result["failures"]]
    return "\n".join(parts) + "\n"
