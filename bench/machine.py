"""Describes the machine and the software of a run."""

import datetime
import os
import platform
import shlex
import sqlite3
import subprocess
import sys


def use_python_with_extensions():
    """Makes sure that this Python can load extensions: some builds cannot, the system's can. May start the program anew
    with that one."""
    if hasattr(sqlite3.Connection, "enable_load_extension"):
        return
    system = "/usr/bin/python3"
    if os.path.exists(system) and os.path.realpath(sys.executable) != os.path.realpath(system):
        os.execv(system, [system] + sys.argv)
    print("error: this python's sqlite3 cannot load extensions; use the system's python3", file=sys.stderr)
    raise SystemExit(2)  # as for everything that keeps a benchmark from starting


def first_match(path, key):
    try:
        with open(path) as file:
            for line in file:
                if line.startswith(key):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return None


def git(root, *arguments):
    try:
        done = subprocess.run(["git", "-C", root] + list(arguments), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              text=True)
        return done.stdout.strip() if done.returncode == 0 else None
    except OSError:
        return None


def file_system(path):
    """Returns the type of the file system that holds `path`."""
    found, path = (0, None), os.path.realpath(path)
    try:
        with open("/proc/mounts") as mounts:
            for line in mounts:
                _, point, kind = line.split()[:3]
                point = point.replace("\\040", " ")
                if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= found[0]:
                    found = (len(point), kind)
    except OSError:
        pass
    return found[1]


def without_directory(argument):
    """Removes the directory of an argument: paths on this machine are private and make no difference."""
    name, equals, value = argument.rpartition("=")
    return name + equals + os.path.basename(value) if os.path.isabs(value) else argument


def describe(root, directory):
    """Returns the facts recorded with every result."""
    memory = first_match("/proc/meminfo", "MemTotal")
    changed = git(root, "status", "--porcelain")
    return {
        "cpu": first_match("/proc/cpuinfo", "model name") or platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": int(memory.split()[0]) * 1024 if memory else None,
        "kernel": "%s %s" % (platform.system(), platform.release()),
        "file_system": file_system(directory),
        "load_average_at_start": os.getloadavg(),
        "commit": git(root, "rev-parse", "HEAD"),
        "uncommitted_changes": bool(changed) if changed is not None else None,
        "sqlite": sqlite3.sqlite_version,
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": shlex.join(["bench/bench.py"] + [without_directory(a) for a in sys.argv[1:]]),
    }
