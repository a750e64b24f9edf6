"""The alternating run of both sides: starts a child for each sample and keeps every raw sample."""

import json
import os
import selectors
import subprocess
import sys
import time

import data
import metrics
import throttle

CHILD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "child.py")

class Failed(Exception):
    """A child returned no sample."""


class Skipped(Exception):
    """Something cannot be measured here, which is not a failure."""


class Runner:
    """Runs children and keeps every raw sample."""

    def __init__(self, options, scale, directory, progress):
        self.options, self.scale, self.directory, self.progress = options, scale, directory, progress
        self.samples, self.failures, self.skipped = [], [], []
        self.throttle = None

    def side_spec(self, side):
        """`side` is "stock" or a codec."""
        if side == "stock" or self.options.self_test:
            return {}
        return {"lib": self.options.lib, "codec": side}

    def start(self, job, side, environment=None, pass_fds=()):
        job = dict(job, side=self.side_spec(side), directory=self.directory, cold_method=self.options.cold,
                   integrity=self.options.integrity, cli=self.options.cli)
        process = subprocess.Popen([sys.executable, "-B", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, pass_fds=pass_fds,
                                   env=dict(os.environ, **environment) if environment else None)
        process.job_text = json.dumps(job)
        return process

    def finish(self, process, text=None):
        """Returns the sample of a started child."""
        try:
            out, error = process.communicate(text, timeout=self.options.timeout)
        except subprocess.TimeoutExpired:
            raise Failed("no result within %d s" % self.options.timeout) from None
        finally:
            end(process)
        if process.returncode != 0:
            lines = error.strip().splitlines()
            raise Failed("%s (exit %d)" % (lines[-1] if lines else "no message", process.returncode))
        sample = json.loads(out)
        if "skipped" in sample:
            raise Skipped(sample["skipped"])
        return sample

    def child(self, job, side, environment=None):
        process = self.start(job, side, environment)
        return self.finish(process, process.job_text)

    def children(self, jobs, side):
        """Returns samples of children that begin their timed parts together, once all are ready.

        Each child writes a byte to `ready` and then waits for the end of `go`.
        """
        ready, ready_end = os.pipe()
        go, go_end = os.pipe()
        processes = []
        try:
            for job in jobs:
                process = self.start(dict(job, ready_fd=ready_end, go_fd=go), side, pass_fds=(ready_end, go))
                processes.append(process)
                process.stdin.write(process.job_text)
                process.stdin.close()
                process.stdin = None  # communicate() must not touch it again
            os.close(ready_end)
            ready_end = None
            self.await_ready(ready, len(processes))
            os.close(go_end)
            go_end = None
            return [self.finish(process) for process in processes]
        finally:
            for fd in (ready, ready_end, go, go_end):
                if fd is not None:
                    os.close(fd)
            for process in processes:
                end(process)

    def await_ready(self, ready, count):
        """Waits for the children; returns early if one died, since collecting its sample tells why."""
        deadline = time.monotonic() + self.options.timeout
        with selectors.DefaultSelector() as selector:
            selector.register(ready, selectors.EVENT_READ)
            while count > 0:
                if not selector.select(max(0, deadline - time.monotonic())):
                    raise Failed("not ready within %d s" % self.options.timeout)
                got = os.read(ready, count)
                if not got:
                    return
                count -= len(got)

    def throttled_group(self):
        if self.throttle is None:
            try:
                self.throttle = throttle.Throttle(self.directory, metrics.THROTTLED_BYTES_PER_SECOND)
            except throttle.Unavailable as reason:
                self.throttle = reason
        if isinstance(self.throttle, throttle.Unavailable):
            raise Skipped(str(self.throttle))
        return self.throttle.group

    def close(self):
        if isinstance(self.throttle, throttle.Throttle):
            self.throttle.remove()

    def job_for(self, measurement, database):
        job = dict(measurement.job, op=measurement.op, plan=database.plan_path)
        job.update(points_cold=self.scale["points_cold"], opens=self.scale["opens"], repeat=database.scan_repeat,
                   source=database.base, random_bytes=self.scale["random_bytes"])
        job["chunks_per_transaction"] = self.scale["bulk_transaction_rows"] // metrics.BULK_CHUNK_ROWS
        if "count" in job:
            job["updates"] = self.scale[job["count"]]
        if job.get("throttled"):
            job["group"] = self.throttled_group()
        return job

    def record(self, database, measurement, side, run, take, **facts):
        """Adds one sample from `take()`; never raises an error of the measured side."""
        entry = dict({"database": database.name, "measurement": measurement, "side": side, "run": run}, **facts)
        where = "%s, %s" % (database.name, measurement)
        try:
            entry.update(take())
            outcome = "%.4g s" % entry["seconds"]
        except Skipped as reason:
            entry["skipped"] = outcome = str(reason)
            note = "%s: %s" % (where, reason)
            if note not in self.skipped:
                self.skipped.append(note)
        except (Failed, RuntimeError, OSError, ValueError) as error:
            entry["error"] = outcome = str(error)
            self.failures.append("%s, %s%s: %s" % (where, side, " %s" % facts if facts else "", error))
        self.samples.append(entry)
        at = ", ".join("%s %s" % item for item in facts.get("at", {}).items())
        self.progress.step("%s, %s%s, run %d: %s" % (where, side, ", " + at if at else "", run + 1, outcome))
        return entry

    def measure(self, measurement, database, side, run):
        """Takes one sample on its own files."""
        copied = measurement.on != "shared"
        path = os.path.join(self.directory, "run.db") if copied else database.variants.get(side)

        def take():
            if path is None or (measurement.on == "copy" and side not in database.variants):
                raise Failed("the database could not be packed")
            job = dict(self.job_for(measurement, database), path=path)
            if measurement.on == "copy":
                data.copy(database.variants[side], path)
            return self.child(job, side, measurement.environment)

        try:
            return self.record(database, measurement.name, side, run, take)
        finally:
            if copied:
                data.remove_database(path)

    def compare_check(self, entry, base):
        """Checks that both sides gave the same answer."""
        if any(key in sample for key in ("error", "skipped") for sample in (entry, base)):
            return
        if entry["check"] != base["check"]:
            entry["error"] = "result differs from %s: %r, not %r" % (base["side"], entry["check"], base["check"])
            self.failures.append("%s, %s, %s: %s" % (entry["database"], entry["measurement"], entry["side"],
                                                     entry["error"]))

    def measure_alternating(self, measurement, database, codecs):
        """Measures stock, codecs…, stock, codecs…: samples are compared with their neighbours in time."""
        for run in range(runs_of(measurement, self.options.runs)):
            base = self.measure(measurement, database, measurement.against, run) if measurement.against else None
            for codec in codecs:
                if codec != measurement.against:
                    entry = self.measure(measurement, database, codec, run)
                    if base:
                        self.compare_check(entry, base)


def runs_of(measurement, runs):
    return 1 if measurement.once else runs


def steps_of(measurement, runs, codecs):
    """Returns the number of samples that `measure_alternating` takes."""
    sides = len([c for c in codecs if c != measurement.against]) + bool(measurement.against)
    return runs_of(measurement, runs) * sides


def end(process):
    if process.poll() is None:
        process.kill()
        process.wait()


class Progress:
    """Prints one line per measurement; on a terminal a single changing line, with the time left."""

    def __init__(self, total, stream=sys.stderr):
        self.total, self.done, self.stream, self.began = total, 0, stream, time.monotonic()
        self.terminal = stream.isatty()

    def expect(self, steps):
        self.total += steps

    def note(self, text):
        print(("\r\x1b[K" if self.terminal else "") + text, file=self.stream, flush=True)

    def step(self, text):
        self.done += 1
        left = (time.monotonic() - self.began) / self.done * (self.total - self.done)
        line = "[%*d/%d] %s" % (len(str(self.total)), self.done, self.total, text)
        if self.terminal:
            width = os.get_terminal_size(self.stream.fileno()).columns or 80  # some terminals say 0
            line = ("%s  (%d:%02d left)" % (line, left // 60, left % 60))[:max(20, width - 1)]
            print("\r\x1b[K" + line, end="", file=self.stream, flush=True)
        else:
            print(line, file=self.stream, flush=True)

    def finish(self):
        if self.terminal:
            print("\r\x1b[K", end="", file=self.stream, flush=True)
