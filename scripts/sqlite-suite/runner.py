#!/usr/bin/env python3
"""Runs SQLite's test files, each in its own process, and adds up the results.

run.sh builds what is needed and calls this. Each file runs in its own directory with a time limit, two files at a
time by default. A file passes if it ends by itself with status 0, prints its count of errors, has only those listed
in omit.txt or known-failures.txt, and leaks no memory; anything else, such as a crash or a hang, is a failure.

The lists share one form. A line in brackets gives a reason for the lines below it, up to the next such line:

    [The reason, one sentence.]
    FILE PATTERN PATTERN ...      cases of a test file, in glob patterns; no pattern: the whole file (excluded.txt)

Exit status: 0 if nothing failed, 1 if anything did, 2 if it could not run.
"""

import argparse
import concurrent.futures
import dataclasses
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
# Some tests open files until no descriptors are left, which should not take for ever.
OPEN_FILES_MAX = 1024
COUNT = re.compile(r"^(\d+) errors out of (\d+) tests", re.M)
FAILED = re.compile(r"^!Failures on these tests:(.*)", re.M)
OMITTED = re.compile(r"^suite: omitted (\S+)", re.M)
UNUSED = re.compile(r"^suite: unused (\S+)", re.M)
LEAK = re.compile(r"^Unfreed memory", re.M)


@dataclasses.dataclass
class Result:
    """The result of one file."""

    name: str
    cases: int
    failed: list
    omitted: int
    known: int
    unused: list
    seconds: float
    problem: str  # why it failed as a whole, or empty

    @property
    def passed(self):
        return not self.failed and not self.problem


def read_sections(path):
    """Returns the lines of a list as (reason, file, patterns)."""
    entries, reason = [], None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            reason = line.strip("[]")
            continue
        if reason is None:
            sys.exit(f"{path}:{number}: this line has no reason above it")
        name, *patterns = line.split()
        entries.append((reason, name, patterns))
    return entries


def patterns_of(entries, name):
    return [pattern for _, file, patterns in entries for pattern in patterns if file == name]


def matches(pattern, case):
    """Whether a pattern of Tcl's `string match` matches this case; only * and ? are used."""
    expression = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(expression, case) is not None


def test_path(source, name):
    """Returns the path of a test file: names without a directory are in test/."""
    return source / (f"{name}.test" if "/" in name else f"test/{name}.test")


def run_file(name, options, omit, known):
    """Runs one file and reads its output."""
    directory = options.out / "run" / name.replace("/", "_")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    log_path = options.out / "logs" / (name.replace("/", "_") + ".log")
    environment = dict(os.environ, HARDPACK_CACHE_BYTES="67108864")
    environment.pop("HARDPACK_SUITE_LIBRARY", None)
    environment["HARDPACK_SUITE_CONCURRENCY"] = options.concurrency
    omit_patterns, known_patterns = patterns_of(omit, name), patterns_of(known, name)
    if options.vfs == "hardpack":
        environment["HARDPACK_SUITE_LIBRARY"] = str(options.library)
        environment["HARDPACK_SUITE_OMIT"] = " ".join(omit_patterns + known_patterns)
    command = [options.testfixture, HERE / "harness.tcl", test_path(options.source, name)]
    if os.geteuid() == 0:
        # As root nothing is forbidden, but some tests need something to be.
        os.chown(directory, 65534, 65534)
        command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command]
    began, problem = time.monotonic(), ""
    with open(log_path, "wb") as log:
        process = subprocess.Popen(command, cwd=directory, env=environment, stdin=subprocess.DEVNULL,
                                   stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = process.wait(options.timeout)
            if status != 0:
                problem = f"status {status}"
        except subprocess.TimeoutExpired:
            problem = f"not done after {options.timeout} s"
        # Also kill what it may have left behind, such as the second process of a lock test.
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
    shutil.rmtree(directory, ignore_errors=True)
    text = log_path.read_bytes().decode("latin-1")
    count, failed = COUNT.search(text), FAILED.search(text)
    failed = failed[1].split() if failed else []
    listed = OMITTED.findall(text)
    is_known = [any(matches(p, case) for p in known_patterns) for case in listed]
    if not count:
        problem = problem or "ended without a summary"
    elif failed and problem == "status 1":
        problem = ""  # it only says that cases failed
    elif LEAK.search(text):
        problem = problem or "leaks memory"
    return Result(name, int(count[2]) if count else 0, failed, is_known.count(False), is_known.count(True),
                  UNUSED.findall(text), time.monotonic() - began, problem)


def table(results):
    """Returns the lines of the summary."""
    passed = [result for result in results if result.passed]
    return [
        "| | |",
        "| --- | ---: |",
        f"| files run | {len(results)} |",
        f"| files passed | {len(passed)} |",
        f"| cases run | {sum(result.cases for result in results)} |",
        f"| cases that failed, unexplained | {sum(len(result.failed) for result in results)} |",
        f"| cases run but not judged (omit.txt) | {sum(result.omitted for result in results)} |",
        f"| cases that fail for a known deviation (known-failures.txt) | {sum(result.known for result in results)} |",
        f"| files that crashed, hung, leaked or stopped early | {sum(bool(result.problem) for result in results)} |",
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=pathlib.Path, required=True, help="SQLite's source tree")
    parser.add_argument("--testfixture", type=pathlib.Path, required=True)
    parser.add_argument("--library", type=pathlib.Path, help="libhardpack.so")
    parser.add_argument("--vfs", choices=["hardpack", "unix"], default="hardpack")
    parser.add_argument("--concurrency", default="", help="the concurrency of every pool")
    parser.add_argument("--list", type=pathlib.Path, default=HERE / "list.txt")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one file")
    parser.add_argument("names", nargs="*", help="test files to run instead of the list; * matches any text")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES_MAX, OPEN_FILES_MAX))
    omit = read_sections(HERE / "omit.txt")
    known = read_sections(HERE / "known-failures.txt")
    if options.concurrency:
        known += read_sections(HERE / f"known-failures-{options.concurrency}.txt")
    names = [line for line in options.list.read_text().split("\n") if line and not line.startswith("#")]
    left_out = [name for _, name, patterns in known if not patterns] if options.vfs == "hardpack" else []
    names = [name for name in names if name not in left_out]
    if options.names:
        names = [name for name in names if any(matches(p, name) for p in options.names)]
    missing = [name for name in names if not test_path(options.source, name).exists()]
    if missing or not names:
        print(f"hardpack suite: no such test files: {' '.join(missing or options.names)}", file=sys.stderr)
        return 2
    (options.out / "logs").mkdir(parents=True, exist_ok=True)
    options.source, options.testfixture, options.out = (
        path.resolve() for path in (options.source, options.testfixture, options.out))
    results = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        runs = [pool.submit(run_file, name, options, omit, known) for name in names]
        for run in concurrent.futures.as_completed(runs):
            result = run.result()
            results.append(result)
            state = "ok" if result.passed else "FAILED"
            note = f" {result.problem}" if result.problem else ""
            note += f" failed: {' '.join(result.failed[:8])}" if result.failed else ""
            note += f" never failed, though listed: {' '.join(result.unused)}" if result.unused else ""
            print(f"[{len(results)}/{len(names)}] {state} {result.name}: {result.cases} cases, "
                  f"{result.omitted} omitted, {result.seconds:.1f} s{note}", flush=True)
    results.sort(key=lambda result: names.index(result.name))
    with open(options.out / "files.txt", "w") as out:
        for result in results:
            print(result.name, result.cases, len(result.failed), result.omitted, result.known,
                  result.problem or "-", sep="\t", file=out)
    summary = table(results)
    (options.out / "summary.md").write_text("\n".join(summary) + "\n")
    print("\n".join(summary))
    return 0 if all(result.passed for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
