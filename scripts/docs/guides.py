#!/usr/bin/env python3
"""Runs every shell block of the guides (docs/guides/*.md), and compares the output that they show.

usage: scripts/docs/guides.py [--show] [GUIDE.md...]     HARDPACK_BUILD names the build (target/release)

A guide is one session of bash in an empty directory, with Hardpack as if it were installed:

* ```sh        commands; each must succeed, and their output is not looked at
* ```console   lines after `$ ` are commands, lines after `> ` continue them, and all others are what they must print
* <!-- sh      commands that readers do not see, up to `-->`; they make the small data that a reader has already

Other languages in a fence are not run. In shown output, a number may be off by a tenth, since other versions of SQLite
lay pages out differently. `...` stands for anything, in a line whose rest must then be exact; a line of it for any lines. --show prints what was really
printed.
"""

import os
import pathlib
import re
import secrets
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TOLERANCE = 0.1
SECONDS_MAX = 120
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


class Step:
    """A command of a guide, and what it must print, if that is shown."""

    def __init__(self, line, command, expected=None):
        self.line, self.command, self.expected = line, command, expected


def steps(text):
    """Returns the commands of a guide in their order."""
    found, kind, start, lines = [], None, 0, []
    for number, line in enumerate(text.splitlines(), 1):
        if kind is None:
            opened = re.fullmatch(r"```(\w*)|(<!-- sh)", line)
            if opened:
                kind, start, lines = opened.group(1) if opened.group(2) is None else "sh", number, []
                ends = "```" if opened.group(2) is None else "-->"
        elif line == ends:
            if kind == "sh":
                found.append(Step(start, "\n".join(lines)))
            elif kind == "console":
                found += console(start, lines)
            kind = None
        else:
            lines.append(line)
    if kind is not None:
        raise ValueError(f"the block of line {start} does not end")
    return found


def console(start, lines):
    """Returns the commands of a session with their output."""
    found = []
    for number, line in enumerate(lines, start + 1):
        if line.startswith("$ "):
            found.append(Step(number, line[2:], []))
        elif not found:
            raise ValueError(f"line {number} is before the first command of its block")
        elif line.startswith("> ") and not found[-1].expected:
            found[-1].command += "\n" + line[2:]
        else:
            found[-1].expected.append(line)
    return found


def is_near(expected, found):
    """Whether a line is as shown, apart from a tenth of each number."""
    if "..." in expected:
        return re.fullmatch(".*".join(re.escape(part) for part in expected.split("...")), found) is not None
    # A number of another length moves what follows it in a table.
    if NUMBER.sub("#", expected).split() != NUMBER.sub("#", found).split():
        return False
    for wanted, got in zip(NUMBER.findall(expected), NUMBER.findall(found)):
        wanted, got = (float(number.replace(",", "")) for number in (wanted, got))
        if abs(wanted - got) > TOLERANCE * max(abs(wanted), abs(got)):
            return False
    return True


def is_shown(expected, found):
    """Whether all lines are as shown; a line `...` stands for any."""
    if not expected:
        return not found
    if expected[0] == "...":
        return any(is_shown(expected[1:], found[skipped:]) for skipped in range(len(found) + 1))
    return bool(found) and is_near(expected[0], found[0]) and is_shown(expected[1:], found[1:])


def run(guide, build, is_verbose):
    """Runs a guide, and returns what was wrong with it."""
    todo = steps(guide.read_text())
    if not todo:
        return [f"{guide.name}: it has no commands"]
    mark = secrets.token_hex(8)
    # The mark follows output on both streams, so that they can be told apart by command.
    script = ["set -e", "note() { printf '\\n%s %s\\n' \"$1\" \"$2\" | tee /dev/stderr; }"]
    for index, step in enumerate(todo):
        script += [f"note {mark} {index}", step.command]
    script.append(f"note {mark} {len(todo)}")
    work = pathlib.Path(tempfile.mkdtemp(prefix="hardpack-guide."))
    try:
        home = work / "home"
        place = work / "work"
        home.mkdir()
        place.mkdir()
        environment = {
            "PATH": f"{build}:{os.environ['PATH']}",
            "HOME": str(home),
            # `.load libhardpack` works with the installed package.
            "LD_LIBRARY_PATH": str(build),
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
        }
        done = subprocess.run(
            ["bash", "-c", "\n".join(script)],
            cwd=place, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS_MAX,
        )
    finally:
        shutil.rmtree(work)

    def parts(output):
        return re.split(rf"\n{mark} \d+\n", output)[1:]

    out, errors = parts(done.stdout), parts(done.stderr)
    problems = []
    for index, step in enumerate(todo):
        where = f"{guide.relative_to(ROOT)}:{step.line}"
        if index >= len(out):
            break
        if is_verbose:
            print(f"{where}\n{step.command}\n--\n{out[index]}")
        if index + 1 == len(out):
            problems.append(f"{where}: fails: {step.command}\n{out[index]}{errors[index]}")
        elif step.expected is not None:
            found = [line.rstrip() for line in out[index].rstrip("\n").splitlines()]
            if not is_shown([line.rstrip() for line in step.expected], found):
                shown = "\n".join(f"    {line}" for line in found)
                problems.append(f"{where}: '{step.command}' prints this instead:\n{shown}")
    return problems


def main():
    arguments = sys.argv[1:]
    is_verbose = "--show" in arguments
    names = [argument for argument in arguments if argument != "--show"]
    guides = [pathlib.Path(name).resolve() for name in names] or sorted((ROOT / "docs/guides").glob("[!R]*.md"))
    build = pathlib.Path(os.environ.get("HARDPACK_BUILD", ROOT / "target/release")).resolve()
    for needed in ["hardpack", "libhardpack.so"]:
        if not (build / needed).exists():
            sys.exit(f"{build / needed} is missing: run 'make' first")
    failed = 0
    for guide in guides:
        problems = run(guide, build, is_verbose)
        print(f"{guide.name}: {'FAILED' if problems else 'ok'}")
        for problem in problems:
            print(problem, file=sys.stderr)
        failed += bool(problems)
    print(f"{len(guides) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
