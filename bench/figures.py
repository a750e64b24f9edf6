"""Turns the samples of the series into charts and tables."""

import math
import re
import statistics

import charts
from tables import human, table

COLOURS = {"stock": "grey", "zstd-3": "blue", "lz4": "orange"}
SPARE_COLOURS = ("green", "purple", "red", "teal")
FAMILY_COLOURS = {"zstd": "blue", "zstd-fast": "teal", "lz4": "orange", "lz4hc": "red", "gzip": "green",
                  "lzjb": "purple", "zle": "brown", "off": "grey"}
RECORD_RADII = {"4K": 2, "16K": 3, "64K": 4, "128K": 5, "1M": 6.5}
TRANSACTION_TITLES = {("delete", "FULL"): "DELETE, FULL", ("wal", "FULL"): "WAL, FULL",
                      ("wal", "NORMAL"): "WAL, NORMAL"}


def usable(result, measurement):
    return [s for s in result["samples"] if s["measurement"] == measurement and "error" not in s and "skipped" not in s]


def collect(result, measurement, field, key):
    """Returns {key(sample): [values of all runs]}; seconds are per operation."""
    found = {}
    for sample in usable(result, measurement):
        value = sample[field] / sample["ops"] if field == "seconds" else sample[field]
        found.setdefault(key(sample), []).append(value)
    return found


def measured_on(result):
    machine = result["machine"]
    return "%s, %d CPUs, %s; SQLite %s; commit %s; %s" % (
        machine["cpu"], machine["cpus"], machine["file_system"] or "unknown file system", machine["sqlite"],
        (machine["commit"] or "none")[:12], machine["date"][:10])


def colour_of(side, sides):
    others = [s for s in sides if s not in COLOURS]
    return COLOURS.get(side) or SPARE_COLOURS[others.index(side) % len(SPARE_COLOURS)]


def side_name(side):
    return "stock SQLite" if side == "stock" else "Hardpack, " + side


def sides_of(samples):
    return list(dict.fromkeys(s["side"] for s in samples))


def side_legend(sides):
    return [charts.Line(side_name(s), colour_of(s, sides), []) for s in sides]


def seconds_text(value):
    for unit, factor in (("s", 1), ("ms", 1e3), ("µs", 1e6)):
        if value * factor >= 0.9995 or unit == "µs":
            return "%g %s" % (round(value * factor, 3), unit)
    return ""


def bytes_text(value):
    unit, factor = ("GB", 1e9) if value >= 1e9 else ("MB", 1e6) if value >= 1e6 else ("kB", 1e3)
    return "%g %s" % (value / factor, unit)


def thousands(value):
    return "%gk" % (value / 1000) if value >= 1000 else "%g" % value


# Size against speed.

def codec_family(codec):
    return re.sub(r"-\d+$", "", codec)


def tradeoff_points(result):
    """Returns {codec: [{recordsize, share, pack, scan, point}]}, and the same values of the plain file."""
    key = lambda s: (s["at"].get("codec", "stock"), s["at"].get("recordsize"))
    packs = collect(result, "tradeoff_pack", "seconds", key)
    sizes = collect(result, "tradeoff_pack", "bytes", key)
    scans, points = (collect(result, "tradeoff_" + name, "seconds", key) for name in ("scan", "point"))
    plain = next((result["databases"][s["database"]]["bytes"] for s in usable(result, "tradeoff_pack")), None)
    codecs = {}
    for at in sizes:
        if at in scans and at in points:
            codecs.setdefault(at[0], []).append({
                "recordsize": at[1], "share": sizes[at][0] / plain * 100,
                "pack": plain / 1e6 / statistics.median(packs[at]), "scan": plain / 1e6 / statistics.median(scans[at]),
                "point": statistics.median(points[at])})
    stock = ("stock", None)
    if stock not in scans or stock not in points:
        return codecs, None
    return codecs, {"scan": plain / 1e6 / statistics.median(scans[stock]), "point": statistics.median(points[stock])}


def tradeoff_charts(result):
    codecs, stock = tradeoff_points(result)
    if not codecs or not stock:
        return {}
    sizes = sorted({p["recordsize"] for points in codecs.values() for p in points}, key=RECORD_RADII.get)
    families = list(dict.fromkeys(map(codec_family, codecs)))
    legend = [charts.Line(f, FAMILY_COLOURS.get(f, "pink"), []) for f in families]
    legend += [charts.Line("records of %s %siB" % (s[:-1], s[-1]), "grey", [], [RECORD_RADII[s]], hollow=True)
               for s in sizes]
    kinds = {
        "pack": ("Size against packing speed", "packing speed, MB/s (logarithmic): higher is faster",
                 "'hardpack pack' on all processors, reading everything back included. Further left is smaller, "
                 "higher is faster."),
        "scan": ("Size against scanning speed", "first scan, MB/s of plain data (logarithmic): higher is faster",
                 "One full scan in a new process, the file in the page cache, nothing decompressed yet. Further left "
                 "is smaller, higher is faster."),
        "point": ("Size against reading single rows", "one row (logarithmic): lower is faster",
                  "Random reads in a new process whose cache holds an eighth of the database. Further left is smaller, "
                  "lower is faster."),
    }
    drawings = {}
    for field, (title, y_label, subtitle) in kinds.items():
        lines = [charts.Line(codec, FAMILY_COLOURS.get(codec_family(codec), "pink"),
                             [(p["share"], p[field]) for p in points], [RECORD_RADII[p["recordsize"]] for p in points],
                             label=codec) for codec, points in codecs.items()]
        if field in stock:
            lines.append(charts.Line("stock", "pink", [(100, stock[field])], [5], label="stock SQLite", hollow=True))
        xs, ys = ([p[i] for line in lines for p in line.points] for i in (0, 1))
        x = charts.log_axis("size in percent of the plain file (logarithmic)", xs, lambda v: "%g%%" % v)
        y = charts.log_axis(y_label, ys, seconds_text if field == "point" else charts.plain)
        described = "%s For each codec a line from records of %s to %s." % (subtitle, sizes[0], sizes[-1])
        drawings["tradeoff-" + field] = charts.figure(title, subtitle, described, [charts.Panel("", x, y, lines)],
                                                      legend, panel_height=520,
                                                      footer=measured_on(result))
    return drawings


def tradeoff_table(result):
    codecs, stock = tradeoff_points(result)
    if not codecs or not stock:
        return None
    rows = [["plain file", "", "100%", "", "%.0f MB/s" % stock["scan"], human(stock["point"], "seconds")]]
    for codec, points in codecs.items():
        rows += [[codec, p["recordsize"], "%.1f%%" % p["share"], "%.0f MB/s" % p["pack"], "%.0f MB/s" % p["scan"],
                  human(p["point"], "seconds")] for p in points]
    return table(["codec", "records", "size", "packing", "first scan", "one row"], rows)


# Latencies.

def latency_curves(result):
    """Returns {(journal, synchronous): {side: [(share, median over runs of seconds)]}}."""
    found = {}
    for s in usable(result, "latency"):
        mode = (s["at"]["journal"], s["at"]["synchronous"])
        found.setdefault(mode, {}).setdefault(s["side"], []).append(s["sorted_seconds"])
    for sides in found.values():
        for side, runs in sides.items():
            sides[side] = [(points[0][0], statistics.median(p[1] for p in points)) for points in zip(*runs)]
    return found


def latency_charts(result):
    curves = latency_curves(result)
    if not curves:
        return {}
    sides = sides_of(usable(result, "latency"))
    tail = lambda share: -math.log10(1 - share)
    ticks = [(tail(share), text) for share, text in
             ((0, "0"), (0.5, "50"), (0.9, "90"), (0.99, "99"), (0.999, "99.9"), (0.9999, "99.99"))]
    every = [seconds for modes in curves.values() for points in modes.values() for _, seconds in points]
    panels = []
    for mode, by_side in curves.items():
        longest = max(tail(points[-1][0]) for points in by_side.values())
        x = charts.Axis("percentile of transactions", 0, longest * 1.02, False, ticks)
        y = charts.log_axis("time of one transaction (logarithmic)", every, seconds_text)
        lines = [charts.Line(side, colour_of(side, sides), [(tail(share), s) for share, s in points])
                 for side, points in by_side.items()]
        panels.append(charts.Panel(TRANSACTION_TITLES.get(mode, " ".join(mode)), x, y, lines))
    subtitle = ("Updates of random rows, each a transaction, after one scan on the same connection; the curve ends at "
                "the slowest. Lower is faster.")
    return {"latency": charts.figure("Latency of single-row transactions", subtitle, subtitle, panels,
                                     side_legend(sides), columns=3, panel_height=330, footer=measured_on(result))}


def latency_table(result):
    samples, rows = usable(result, "latency"), []
    fields = ("p50_seconds", "p90_seconds", "p99_seconds", "p99_9_seconds", "max_seconds")
    for mode in dict.fromkeys((s["at"]["journal"], s["at"]["synchronous"]) for s in samples):
        for side in sides_of(samples):
            own = [s for s in samples if s["side"] == side and (s["at"]["journal"], s["at"]["synchronous"]) == mode]
            if own:
                rows.append([TRANSACTION_TITLES.get(mode), side, format(own[0]["ops"], ",")]
                            + [human(statistics.median(s[f] for s in own), "seconds") for f in fields])
    return table(["mode", "side", "transactions", "p50", "p90", "p99", "p99.9", "max"], rows) if rows else None


# Growth and concurrency have the same shape: a value for each side over one number.

GROWTH = [("open", "growth_open", "first_seconds", "Open and read the first row"),
          ("hot", "growth_point", "hot_seconds", "Read a row, read before"),
          ("any", "growth_point", "any_seconds", "Read any row"),
          ("wal", "growth_wal", "seconds", "Update a row, WAL, NORMAL"),
          ("delete", "growth_delete", "seconds", "Update a row, DELETE, FULL"),
          ("memory", "growth_point", "peak_bytes", "Peak memory, reading rows")]


def curve_lines(values, sides):
    """Returns the lines of {(side, x): [values]}, as median and spread."""
    lines = []
    for side in sides:
        xs = sorted(x for s, x in values if s == side)
        if xs:
            runs = [values[side, x] for x in xs]
            lines.append(charts.Line(side, colour_of(side, sides), list(zip(xs, map(statistics.median, runs))),
                                     [3.2] * len(xs), spread=[(min(r), max(r)) for r in runs]))
    return lines


def size_ticks(sizes):
    return [(size, bytes_text(size)) for size in sorted(sizes)]


def growth_charts(result):
    samples = usable(result, "growth_open")
    if not samples:
        return {}
    sides, panels = sides_of(samples), []
    for _, measurement, field, title in GROWTH:
        values = collect(result, measurement, field, lambda s: (s["side"], s["at"]["mb"] * 10**6))
        if not values:
            continue
        sizes = {x for _, x in values}
        x = charts.Axis("size of the plain database", min(sizes) / 1.5, max(sizes) * 1.5, True, size_ticks(sizes))
        every = [v for runs in values.values() for v in runs]
        memory = field.endswith("bytes")
        y = charts.log_axis("memory (logarithmic)" if memory else "time (logarithmic)", every,
                            bytes_text if memory else seconds_text, padding=0.15, factor_min=20)
        panels.append(charts.Panel(title, x, y, curve_lines(values, sides)))
    subtitle = ("Median and spread of the runs. Files are in the page cache; rows are random over the whole database "
                "and, unless said, not read before.")
    return {"growth": charts.figure("Cost as the database grows", subtitle, subtitle, panels, side_legend(sides),
                                    columns=3, panel_height=270, footer=measured_on(result))}


def growth_table(result):
    samples, rows = usable(result, "growth_open"), []
    packed = {s["at"]["mb"]: s["bytes"] for s in usable(result, "growth_pack")}
    values = {name: collect(result, m, f, lambda s: (s["side"], s["at"]["mb"])) for name, m, f, _ in GROWTH}
    for mb in sorted({s["at"]["mb"] for s in samples}):
        for side in sides_of(samples):
            size = mb * 10**6 if side == "stock" else packed.get(mb)
            rows.append([bytes_text(mb * 10**6), side, human(size, "bytes") if size else ""]
                        + [human(statistics.median(values[name][side, mb]), field) if (side, mb) in values[name] else ""
                           for name, _, field, _ in GROWTH])
    header = ["database", "side", "file", "open", "row, read before", "any row", "update WAL", "update DELETE",
              "memory"]
    return table(header, rows) if rows else None


CONCURRENCY = [("Readers alone", "reads_per_second", "readers", lambda at: at["writers"] == 0),
               ("Writers alone", "writes_per_second", "writers", lambda at: at["readers"] == 0),
               ("Readers beside one writer", "reads_per_second", "readers", lambda at: at["readers"] and at["writers"]),
               ("That writer", "writes_per_second", "readers", lambda at: at["readers"] and at["writers"])]


def concurrency_values(result, field, number, wanted):
    found = {}
    for s in usable(result, "concurrency"):
        if wanted(s["at"]):
            found.setdefault((s["side"], s["at"][number]), []).append(s[field])
    return found


def concurrency_charts(result):
    samples = usable(result, "concurrency")
    if not samples:
        return {}
    sides, panels = sides_of(samples), []
    for title, field, number, wanted in CONCURRENCY:
        values = concurrency_values(result, field, number, wanted)
        if not values:
            continue
        counts = {x for _, x in values}
        x = charts.Axis("processes that read" if number == "readers" else "processes that write", min(counts) / 1.2,
                        max(counts) * 1.2, True, [(n, str(n)) for n in sorted(counts)])
        unit = "rows read" if field.startswith("reads") else "transactions"
        every = [v for runs in values.values() for v in runs]
        y = charts.linear_axis(unit + " per second, all together", every, thousands)
        panels.append(charts.Panel(title, x, y, curve_lines(values, sides)))
    subtitle = ("Random rows, WAL, NORMAL; each process after one scan. Median and spread of the runs, on %d "
                "processors. Higher is better." % result["machine"]["cpus"])
    return {"concurrency": charts.figure("Readers and writers together", subtitle, subtitle, panels, side_legend(sides),
                                         columns=2, panel_height=270, footer=measured_on(result))}


def concurrency_table(result):
    rows, sides = [], sides_of(usable(result, "concurrency"))
    for title, field, number, wanted in CONCURRENCY:
        values = concurrency_values(result, field, number, wanted)
        for count in sorted({x for _, x in values}):
            rows.append([title, count] + [format(round(statistics.median(values[side, count])), ",")
                                          if (side, count) in values else "" for side in sides])
    return table(["per second", "processes"] + [side_name(s) for s in sides], rows) if rows else None


DRAWN = {"tradeoff": (tradeoff_charts, tradeoff_table), "latency": (latency_charts, latency_table),
         "growth": (growth_charts, growth_table), "concurrency": (concurrency_charts, concurrency_table)}
TITLES = {"tradeoff": "Size against speed", "latency": "Latency of single-row transactions",
          "growth": "Cost as the database grows", "concurrency": "Readers and writers"}


def draw(result):
    """Returns {name: svg} of everything that was measured."""
    return {name: drawing for draws, _ in DRAWN.values() for name, drawing in draws(result).items()}


def sections(result, chart_paths):
    """Returns the markdown of each series: its charts, then its table. `chart_paths`: {name: path}."""
    parts = []
    for name, (draws, tabulate) in DRAWN.items():
        written = tabulate(result)
        if written is None:
            continue
        parts += ["", "## " + TITLES[name], ""]
        parts += ["![%s](%s)" % (TITLES[name], path) for chart, path in chart_paths.items()
                  if chart == name or chart.startswith(name + "-")]
        parts += ["", written]
    return parts
