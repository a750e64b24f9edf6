"""Runs a Python program with Hardpack as SQLite's default VFS: it opens pools by their paths.

python -m hardpack [--sqlite NAME] -m MODULE [ARGUMENT...]
python -m hardpack [--sqlite NAME] PROGRAM [ARGUMENT...]

PROGRAM is a path or the name of an installed script. NAME is the Python module whose SQLite the
program uses, sqlite3 by default. Datasette and sqlite-utils use pysqlite3 where it is installed.
"""

import importlib
import os
import runpy
import shutil
import sys

from . import HardpackError, register


def main() -> None:
    """Registers the VFS, and runs the program that the arguments name."""
    arguments, sqlite = sys.argv[1:], "sqlite3"
    if arguments[:1] == ["--sqlite"] and len(arguments) > 1:
        sqlite, arguments = arguments[1], arguments[2:]
    is_module = arguments[:1] == ["-m"]
    program = arguments[int(is_module) :]
    if not program or program[0].startswith("-"):
        sys.exit(f"usage: {(__doc__ or '').strip()}")
    try:
        register(importlib.import_module(sqlite), default=True)
    except (HardpackError, ImportError) as error:
        sys.exit(f"hardpack: {error}")
    sys.argv = program
    if is_module:
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
        return
    path = program[0]
    if not os.path.exists(path):
        path = shutil.which(path) or sys.exit(f"hardpack: there is no program '{path}'")
    sys.argv[0] = path
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    runpy.run_path(path, run_name="__main__")


main()
