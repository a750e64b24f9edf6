#!/usr/bin/env python3
"""Generates the nightly copies of a database that make_dumps.py dumps: as SQLite's backup makes them, dated by the day.

usage: make_copies.py DIR MB [DAYS] [SEED]

Writes DAYS (7) databases to DIR, which must not exist; MB counts the rows as make_dumps.py does. The same numbers, seed
and SQLite give the same databases.
"""

import contextlib
import datetime
import os
import random
import sqlite3
import sys

import make_dumps


def main(argv):
    if not 3 <= len(argv) <= 5:
        sys.exit(__doc__)
    out, megabytes = argv[1], int(argv[2])
    days = int(argv[3]) if len(argv) > 3 else 7
    rng = random.Random(int(argv[4]) if len(argv) > 4 else 5)
    os.makedirs(out)
    db = sqlite3.connect(":memory:")
    db.executescript(make_dumps.SCHEMA)
    for day in make_dumps.days_of(db, rng, megabytes, days):
        path = os.path.join(out, day.isoformat() + ".db")
        with contextlib.closing(sqlite3.connect(path)) as copy:
            db.backup(copy)
        time = datetime.datetime(day.year, day.month, day.day, tzinfo=datetime.timezone.utc).timestamp()
        os.utime(path, (time, time))
    db.close()


if __name__ == "__main__":
    main(sys.argv)
