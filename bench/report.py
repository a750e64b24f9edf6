"""From raw samples to ratios, verdicts and tables."""

import statistics

import measure

GENERATED_ROWS = "generated rows"


def per_op(sample, field):
    value = sample.get(field)
    if value is None or "error" in sample:
        return None
    return value / sample["ops"] if field == "seconds" else value


def compare(samples, metric, codec):
    """Medians of both sides and of the pairwise ratios, or None where nothing was measured.

    A pair is a stock sample and the Hardpack sample of the same run, made one after the other.
    """
    chosen = [s for s in samples if s["measurement"] == metric.measurement and s["side"] in ("stock", codec)]
    mine = {s["run"]: s for s in chosen if s["side"] == codec}
    stock = {s["run"]: s for s in chosen if s["side"] == "stock"}
    if not mine:
        return None
    pairs = [(per_op(mine[run], metric.field), per_op(stock[run], metric.field)) for run in mine if run in stock]
    ratios = [a / b for a, b in pairs if a is not None and b]
    if not ratios:
        error = next((s["error"] for s in chosen if "error" in s), "no stock sample to compare with")
        return {"metric": metric.name, "codec": codec, "error": error}
    return {
        "metric": metric.name, "codec": codec, "runs": len(ratios), "failed_runs": len(mine) - len(ratios),
        "ratio": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios),
        "hardpack": statistics.median(a for a, b in pairs if a is not None and b),
        "stock": statistics.median(b for a, b in pairs if a is not None and b),
        "target": metric.target,
    }


def summarise(samples, codecs):
    """All comparisons, by database in order of appearance."""
    databases = list(dict.fromkeys(s["database"] for s in samples))
    rows = []
    for database in databases:
        own = [s for s in samples if s["database"] == database]
        for metric in measure.METRICS:
            for codec in codecs:
                row = compare(own, metric, codec)
                if row:
                    rows.append(dict(row, database=database))
    return rows


def overhead_rows(sizes):
    """Pool length against the sum of its compressed records: the first target."""
    rows = []
    for size in sizes:
        if size["codec"] == "stock" or "pool_bytes" not in size:
            continue
        stored = size.get("stored_bytes")
        limit = int(stored * measure.POOL_OVERHEAD_FACTOR) + measure.POOL_OVERHEAD_BYTES if stored else None
        rows.append(dict(size, limit_bytes=limit))
    return rows


def targets(rows, codecs):
    """Per target and codec: the median over databases, and how many of them miss it."""
    result = []
    for metric in measure.METRICS:
        if metric.target is None:
            continue
        for codec in codecs:
            found = [r["ratio"] for r in rows if r["metric"] == metric.name and r["codec"] == codec and "ratio" in r]
            if found:
                middle = statistics.median(found)
                result.append({"metric": metric.name, "codec": codec, "target": metric.target, "median": middle,
                               "worst": max(found), "databases": len(found), "ok": middle <= metric.target,
                               "misses": sum(r > metric.target for r in found)})
    return result


def verdict(ok):
    return "ok" if ok else "miss"


def human(value, field):
    if "bytes" in field:
        return "%.2f MB" % (value / 1e6) if value >= 1e5 else "%.1f kB" % (value / 1e3)
    for unit, factor in (("s", 1), ("ms", 1e3), ("µs", 1e6)):
        if value * factor >= 1 or unit == "µs":
            return "%.3g %s" % (value * factor, unit) if value * factor < 1000 else "%.0f %s" % (value * factor, unit)
    return ""


def table(header, rows):
    """A markdown table that also reads well as plain text."""
    cells = [header] + [[str(c) for c in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths)) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines)


def detail_table(rows):
    lines = []
    metrics = {m.name: m for m in measure.METRICS}
    for row in rows:
        metric = metrics[row["metric"]]
        if "error" in row:
            lines.append([metric.title, row["codec"], "", "", "failed", "", metric.target_text,
                          "miss" if metric.target else ""])
            continue
        spread = "" if row["runs"] == 1 else "%.2f - %.2f" % (row["ratio_min"], row["ratio_max"])
        failed = " (%d failed)" % row["failed_runs"] if row["failed_runs"] else ""
        judged = ""
        if metric.target and row["codec"] != measure.SELF_TEST_SIDE:
            judged = verdict(row["ratio"] <= metric.target and not row["failed_runs"])
        lines.append([metric.title, row["codec"], human(row["stock"], metric.field),
                      human(row["hardpack"], metric.field), "%.2f%s" % (row["ratio"], failed), spread,
                      metric.target_text, judged])
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
    metrics = {m.name: m for m in measure.METRICS}
    for row in result["targets"]:
        note = "%s (%d of %d databases miss)" % (verdict(row["ok"]), row["misses"], row["databases"])
        lines.append([metrics[row["metric"]].title, row["codec"], metrics[row["metric"]].target_text,
                      "%.2f" % row["median"], "%.2f" % row["worst"], note])
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


def markdown(result):
    """The whole report."""
    machine, options = result["machine"], result["options"]
    dirty = " with uncommitted changes" if machine["uncommitted_changes"] else ""
    compared = "stock SQLite against itself (self-test)" if options["self_test"] else "Hardpack against stock SQLite"
    memory = "%.1f GiB" % (machine["memory_bytes"] / 2**30) if machine["memory_bytes"] else "unknown"
    parts = ["# Benchmark: " + compared, "",
             "Ratio = hardpack / stock: 1 is equal, **lower is better everywhere**, above 1 is a loss.",
             "Medians of %d alternating run(s), each measurement in a fresh process;" % options["runs"],
             "the spread is the smallest and the largest ratio of a pair. Times are per operation.", "",
             "* %s, %d CPUs, %s memory, %s, %s" % (machine["cpu"], machine["cpus"], memory, machine["kernel"],
                                                  machine["file_system"] or "unknown file system"),
             "* SQLite %s, Python %s, load average at start %.2f" % (machine["sqlite"], machine["python"],
                                                                    machine["load_average_at_start"][0]),
             "* commit %s%s, %s" % (machine["commit"] or "none", dirty, machine["date"]),
             "* `%s`" % machine["command"],
             "* cold: %s" % (" and ".join(result["cold_methods"]) or "not measured")]
    if result["interrupted"]:
        parts.append("* **interrupted**: only what was measured until then")
    if not options["self_test"]:
        parts += ["", "## Targets", "", target_table(result)]
    if result["sizes"]:
        parts += ["", "## Sizes", "", size_table(result)]
    for database in dict.fromkeys(row["database"] for row in result["summary"]):
        parts += ["", "## " + database, ""]
        if database in result["databases"]:
            plan = result["databases"][database]
            parts += ["%s rows; scans and reads `%s`, updates its column `%s`." % (
                format(plan["rows"], ","), plan["table"], plan["update_column"]), ""]
        parts.append(detail_table([r for r in result["summary"] if r["database"] == database]))
    if result["failures"]:
        parts += ["", "## Failed", ""] + ["* " + failure for failure in result["failures"]]
    return "\n".join(parts) + "\n"
