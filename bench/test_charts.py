#!/usr/bin/env python3
"""Tests that need no database: charts, ticks, label places, published pages, percentiles."""

import json
import math
import os
import re
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import charts
import figures
import first_rows
import machine
import metrics
import mount
import publish
import report
import workloads

SVG = "{http://www.w3.org/2000/svg}"


def example():
    """Returns a result with every series, made of invented numbers."""
    samples = []

    def add(measurement, side, run, at, **fields):
        samples.append(dict({"database": "d", "measurement": measurement, "side": side, "run": run, "at": at,
                             "seconds": 1.0, "ops": 1, "check": None}, **fields))

    for run in (0, 1):
        for name in ("scan", "point"):
            add("tradeoff_" + name, "stock", run, {}, seconds=0.1)
        for place, codec in enumerate(("off", "lz4", "lz4hc-9", "zstd-1", "zstd-3", "zstd-19", "gzip-6", "zle")):
            for step, size in enumerate(figures.RECORD_RADII):
                at = {"codec": codec, "recordsize": size}
                add("tradeoff_pack", codec, run, at, seconds=0.1 + place, bytes=10**8 // (1 + place + step))
                add("tradeoff_scan", codec, run, at, seconds=0.2 + 0.01 * place)
                add("tradeoff_point", codec, run, at, seconds=0.00001 * (1 + place) * (1 + step))
        for side, factor in (("stock", 1.0), ("zstd-3", 1.1), ("lz4", 0.9)):
            for mode in figures.TRANSACTION_TITLES:
                took = [factor * 1e-4 * (1 + i / 100) for i in range(3000)]
                add("latency", side, run, dict(zip(("journal", "synchronous"), mode)), **workloads.distribution(took))
            for readers, writers in ((1, 0), (8, 0), (0, 1), (0, 4), (1, 1), (8, 1)):
                add("concurrency", side, run, {"readers": readers, "writers": writers},
                    reads_per_second=50_000.0 * readers, writes_per_second=9000.0 * factor * writers)
            for mb in (10, 100, 1000, 10_000):
                add("growth_open", side, run, {"mb": mb}, first_seconds=0.001 * factor)
                add("growth_point", side, run, {"mb": mb}, any_seconds=1e-5 * mb, hot_seconds=1e-5, peak_bytes=2e7 + mb)
                for name in ("wal", "delete"):
                    add("growth_" + name, side, run, {"mb": mb}, seconds=1e-4 * factor)
    described = {"cpu": "a < b & c", "cpus": 2, "memory_bytes": None, "kernel": "k", "file_system": "f", "sqlite": "3",
                 "python": "3", "load_average_at_start": [0.0], "commit": "c", "uncommitted_changes": False,
                 "date": "2026-01-02T03:04:05Z", "command": "bench/bench.py"}
    result = {"machine": described, "samples": samples, "sizes": [],
              "options": {"self_test": False, "quick": False, "only": None, "runs": 2},
              "databases": {"d": {"bytes": 10**8, "rows": 1, "table": "t", "scan_column": "c", "update_column": "c"}},
              "failures": [], "skipped": [], "interrupted": False, "cold_methods": []}
    result["summary"] = report.summarise(samples, ["zstd-3"])
    result["targets"] = report.targets(result)
    return result


def own_charts():
    """Returns the charts that are no part of a result, of invented numbers."""
    sample = {"rows": {count: 1e-5 * 1000 / (count + 9) for count in first_rows.CHART_COUNTS}}
    kinds = {kind: [sample, sample] for kind in first_rows.KINDS}
    live = {kind: {"write, MB/s": speed, "size, % of the file": 50, "files read, 1/s": speed}
            for kind, speed in (("ext4", 100.0), ("btrfs", 50.0), ("pool", 200.0))}
    images = {name: {"size, % of the files": 20.0, "read cold, MB/s": 90.0} for name in ("squashfs", "pool, optimised")}
    return {"first-rows": first_rows.chart(kinds, {"stock": [sample]}), "mount": mount.chart(live, images, 3)}


class Drawn(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.series = figures.draw(example())
        cls.drawings = dict(cls.series, **own_charts())

    def test_every_series_is_drawn(self):
        self.assertEqual(sorted(self.series), ["concurrency", "growth", "latency", "tradeoff-pack", "tradeoff-point",
                                                 "tradeoff-scan"])

    def test_well_formed_and_described(self):
        for name, drawing in self.drawings.items():
            root = ElementTree.fromstring(drawing)
            self.assertEqual(root.tag, SVG + "svg", name)
            self.assertTrue(root.find(SVG + "title").text and root.find(SVG + "desc").text, name)
            self.assertIn("prefers-color-scheme:dark", root.find(SVG + "style").text)
            self.assertNotRegex(drawing, r"\b(nan|inf)\b")

    def test_points_lie_in_a_frame(self):
        for name, drawing in self.drawings.items():
            root = ElementTree.fromstring(drawing)
            frames = [tuple(float(r.get(k)) for k in ("x", "y", "width", "height"))
                      for r in root.iter(SVG + "rect") if r.get("class") == "frame"]
            self.assertTrue(frames)
            points = [(float(c.get("cx")), float(c.get("cy"))) for c in root.iter(SVG + "circle")
                      if float(c.get("cy")) > min(f[1] for f in frames)]  # above it is the legend
            for path in root.iter(SVG + "path"):
                if "L" in path.get("d"):
                    pairs = re.findall(r"[ML]([\d.-]+),([\d.-]+)", path.get("d"))
                    points += [tuple(map(float, pair)) for pair in pairs]
            self.assertTrue(points, name)
            for x, y in points:
                self.assertTrue(any(fx - 0.1 <= x <= fx + w + 0.1 and fy - 0.1 <= y <= fy + h + 0.1
                                    for fx, fy, w, h in frames), "%s: %s,%s" % (name, x, y))

    def test_texts_stay_on_the_page(self):
        for name, drawing in self.drawings.items():
            for text in ElementTree.fromstring(drawing).iter(SVG + "text"):
                x, anchor = float(text.get("x")), text.get("text-anchor")
                px = charts.TITLE_PX if text.get("class") == "title" else charts.SMALL_PX
                width = charts.text_width(text.text or "", px)
                left = x - width if anchor == "end" else x - width / 2 if anchor == "middle" else x
                self.assertGreaterEqual(left, -1, "%s: %s" % (name, text.text))
                self.assertLessEqual(left + width, charts.WIDTH + 1, "%s: %s" % (name, text.text))

    def test_one_measurement_is_enough_for_a_chart(self):
        result = example()
        result["samples"] = [s for s in result["samples"] if s["run"] == 0 and s["at"].get("mb", 10) == 10
                             and s["measurement"].startswith("growth")]
        self.assertEqual(list(figures.draw(result)), ["growth"])

    def test_names_are_escaped(self):
        axis = charts.linear_axis("<x>", [1, 2])
        drawing = charts.figure("a & b", "c", 'd "e"', [charts.Panel("p", axis, axis, [])], [])
        self.assertIn("a & b", ElementTree.fromstring(drawing).find(SVG + "title").text)


class ChartsOfTheirOwn(unittest.TestCase):
    def setUp(self):
        self.drawings = {name: ElementTree.fromstring(drawing) for name, drawing in own_charts().items()}

    def texts(self, name):
        return [text.text for text in self.drawings[name].iter(SVG + "text")]

    def test_first_rows(self):
        for name, _ in first_rows.LEGEND.values():
            self.assertEqual(self.texts("first-rows").count(name), 1)
        curves = [path for path in self.drawings["first-rows"].iter(SVG + "path") if "L" in path.get("d")]
        self.assertEqual(len(curves), len(first_rows.KINDS) + 1)
        self.assertIn("2 and 1 processes of each kind", self.texts("first-rows"))

    def test_mount(self):
        for text in ("write", "files read", "squashfs", "btrfs"):
            self.assertEqual(self.texts("mount").count(text), 1, text)
        self.assertNotIn("size", self.texts("mount"))
        dots = [(float(dot.get("cx")), float(dot.get("cy"))) for dot in self.drawings["mount"].iter(SVG + "circle")]
        legend, rows, images = dots[:2], dots[2:6], dots[6:]
        self.assertEqual((len(legend), len(rows), len(images)), (2, 4, 2))
        # First those of btrfs, then those of the pool, which is faster here.
        self.assertTrue(all(slow[1] == fast[1] and slow[0] < fast[0] for slow, fast in zip(rows[:2], rows[2:])))


class Axes(unittest.TestCase):
    def test_linear_ticks(self):
        self.assertEqual(charts.linear_ticks(0, 10), [0, 2, 4, 6, 8, 10])
        self.assertEqual(charts.linear_ticks(0, 0.31), [0, 0.1, 0.2, 0.3])

    def test_log_ticks(self):
        self.assertEqual(charts.log_ticks(1, 100), [1, 2, 5, 10, 20, 50, 100])
        self.assertEqual(charts.log_ticks(1, 1e6), [1, 10, 100, 1000, 10_000, 100_000, 1_000_000])

    def test_ticks_are_few_ordered_and_within(self):
        for low in (1e-6, 0.003, 1, 42, 9e8):
            for factor in (1.3, 2, 9, 70, 1e4, 1e9):
                for axis in (charts.log_axis("a", [low, low * factor]), charts.linear_axis("a", [low * factor])):
                    values = [value for value, _ in axis.all_ticks()]
                    self.assertEqual(values, sorted(set(values)))
                    self.assertTrue(all(axis.low * 0.999 <= v <= axis.high * 1.001 for v in values))
                    self.assertLessEqual(len(values), 14, (low, factor))
                    self.assertGreaterEqual(len(values), 1, (low, factor))

    def test_positions(self):
        axis = charts.Axis("a", 1, 10_000, True)
        self.assertAlmostEqual(axis.position(100), 0.5)
        self.assertAlmostEqual(charts.Axis("a", 0, 8).position(2), 0.25)

    def test_labels_do_not_cover_each_other(self):
        axis = charts.Axis("a", 0, 10)
        frame = charts.Frame(charts.Panel("p", axis, axis, []), 0, 0, 400, 400)
        for _ in range(6):
            frame.place("zstd-3", [(200, 200, 5)])
        boxes = frame.taken
        for i, box in enumerate(boxes):
            self.assertTrue(all(charts.overlap(box, other) == 0 for other in boxes[:i]))


class Texts(unittest.TestCase):
    def test_numbers(self):
        self.assertEqual([figures.seconds_text(v) for v in (2, 0.001, 0.000005, 0.00000015)],
                         ["2 s", "1 ms", "5 µs", "0.15 µs"])
        self.assertEqual([figures.bytes_text(v) for v in (10**7, 10**10)], ["10 MB", "10 GB"])

    def test_percentiles(self):
        found = workloads.distribution([i / 1000 for i in range(1, 1001)])
        self.assertEqual((found["p50_seconds"], found["p99_9_seconds"], found["max_seconds"]), (0.501, 1.0, 1.0))
        shares = [share for share, _ in found["sorted_seconds"]]
        self.assertEqual(shares, sorted(set(shares)))
        self.assertTrue(shares[0] == 0 and shares[-1] < 1)

    def test_directories_are_not_told(self):
        self.assertEqual([machine.without_directory(a) for a in ("/a/b.db", "--lib=/a/l.so", "--runs", "docs/x")],
                         ["b.db", "--lib=l.so", "--runs", "docs/x"])

    def test_families(self):
        self.assertEqual(list(map(figures.codec_family, ("zstd-fast-5", "zstd-3", "lz4hc-9", "lz4", "off"))),
                         ["zstd-fast", "zstd", "lz4hc", "lz4", "off"])


class Published(unittest.TestCase):
    def test_prose_is_kept(self):
        with tempfile.TemporaryDirectory() as docs:
            page = os.path.join(docs, "benchmarks.md")
            with open(page, "w") as file:
                file.write("# Measured\n\nProse.\n\n%s\nlast time\n%s\nBelow.\n" % (publish.BEGIN, publish.END))
            result = example()
            for _ in range(2):  # twice: the second finds its own marks
                publish.publish(result, docs)
            with open(page) as file:
                text = file.read()
            self.assertTrue(text.startswith("# Measured\n\nProse.\n") and text.endswith("Below.\n"))
            self.assertNotIn("last time", text)
            self.assertEqual(text.count("## The run"), 1)
            for link in re.findall(r"\]\(([^)]+)\)", text):
                self.assertTrue(os.path.exists(os.path.join(docs, link)), link)
            with open(os.path.join(docs, "bench-data", "2026-01-02.json")) as file:
                self.assertEqual(json.load(file), json.loads(json.dumps(result)))

    def test_parts_of_a_run_are_not_published(self):
        for change in ({"only": ["growth"]}, {"quick": True}, {"self_test": True}):
            result = example()
            result["options"].update(change)
            with self.assertRaises(ValueError):
                publish.publish(result, "nowhere")

    def test_target_of_opening(self):
        target = next(t for t in example()["targets"] if t["metric"] == "growth_open")
        self.assertTrue(target["ok"])
        self.assertTrue(math.isclose(target["worst"], 0.0011))

    def test_verdicts(self):
        def sample(measurement, side, **fields):
            return dict({"database": "d", "measurement": measurement, "side": side, "run": 0, "ops": 1}, **fields)

        samples = [sample("scan_warm", "stock", seconds=1.0), sample("scan_warm", "zstd-3", seconds=1.2),
                   sample("scan_warm", "lz4", seconds=9.0), sample("random_load", "off", seconds=1.0),
                   sample("random_load", "zstd-3", seconds=1.01),
                   sample("fold", "zstd-3", seconds=1.0, bytes_after=104, fresh_bytes=100),
                   sample("memory_scan", "stock", own_peak_bytes=10**6),
                   sample("memory_scan", "zstd-3", own_peak_bytes=metrics.MEMORY_LIMIT + 1),
                   sample("scan_cold_throttled", "zstd-3", skipped="needs root")]
        rows = {(r["metric"], r["codec"]): r for r in report.summarise(samples, ["off", "zstd-3", "lz4"])}
        judged = {metric: row["ok"] for (metric, _), row in rows.items() if "ok" in row}
        self.assertEqual(judged, {"scan_warm": False, "random_load": True, "fold_size": True, "memory_scan": False})
        self.assertNotIn(("random_load", "off"), rows)
        self.assertNotIn(("scan_cold_throttled", "zstd-3"), rows)


if __name__ == "__main__":
    unittest.main()
