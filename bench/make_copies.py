#!/usr/bin/env python3
"""Generates the nightly copies of a database that make_dumps.py dumps: as SQLite's backup makes them, dated by the day.

usage: make_copies.py DIR MB [DAYS] [SEED]

Writes DAYS (7) databases to DIR, which must not exist; MB counts the rows as make_dumps.py does. The same numbers, seed
and SQLite give the same databases.
"""

import contextlib
import datetime
import os
import sqlite3
import sys

import make_dumps


def main(argv):
    for db, day, path in make_dumps.days_of(argv, __doc__):
        path += ".db"
        with contextlib.closing(sqlite3.connect(path)) as copy:
            db.backup(copy)
        time = datetime.datetime(day.year, day.month, day.day, tzinfo=datetime.timezone.utc).timestamp()
        os.utime(path, (time, time))


if __name__ == "__main__":
    main(sys.argv)
