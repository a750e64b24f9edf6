#!/usr/bin/env python3
"""Generates the nightly dumps of a database as SQL text: most of each is what the one before had, at other places.

usage: make_dumps.py DIR MB [DAYS] [SEED]

Writes DAYS (7) files of about MB million bytes to DIR, which must not exist. Each day a hundredth of the rows is new, and
one in 300 changes: nine of ten of these are among the newest tenth, the others anywhere. Every name and text is made up.
The same numbers, seed and SQLite give the same files.
"""

import datetime
import os
import random
import sqlite3
import sys

import make_weblog

WORDS = make_weblog.ADJECTIVES + make_weblog.NOUNS + make_weblog.VERBS
# Rows are about this long as SQL, in bytes.
ROW_BYTES = 150
FIRST_DAY = datetime.date(2026, 1, 1)
SCHEMA = """
CREATE TABLE customers(id INTEGER PRIMARY KEY, name TEXT, city TEXT, balance REAL, since TEXT);
CREATE TABLE orders(id INTEGER PRIMARY KEY, customer INT, day TEXT, items INT, total REAL, state TEXT);
CREATE TABLE notes(id INTEGER PRIMARY KEY, customer INT, day TEXT, body TEXT);
CREATE INDEX orders_customer ON orders(customer);
"""


def phrase(rng, least, most):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(least, most)))


def add(db, rng, count, day):
    """Adds `count` rows: a fifth of them customers, three fifths orders, a fifth notes."""
    customers = max(1, count // 5)
    rows = [(phrase(rng, 2, 2), phrase(rng, 1, 2), round(rng.uniform(-500, 5000), 2), day) for _ in range(customers)]
    db.executemany("INSERT INTO customers(name, city, balance, since) VALUES(?,?,?,?)", rows)
    known = db.execute("SELECT max(id) FROM customers").fetchone()[0]
    rows = [(rng.randint(1, known), day, rng.randint(1, 9), round(rng.uniform(1, 900), 2), "open")
            for _ in range(3 * customers)]
    db.executemany("INSERT INTO orders(customer, day, items, total, state) VALUES(?,?,?,?,?)", rows)
    rows = [(rng.randint(1, known), day, phrase(rng, 20, 90)) for _ in range(customers)]
    db.executemany("INSERT INTO notes(customer, day, body) VALUES(?,?,?)", rows)


def change(db, rng, table, column, value):
    count = db.execute("SELECT max(id) FROM %s" % table).fetchone()[0]
    newest = max(1, count // 10)
    for _ in range(count // 300):
        row = rng.randint(count - newest + 1, count) if rng.random() < 0.9 else rng.randint(1, count)
        db.execute("UPDATE %s SET %s=? WHERE id=?" % (table, column), (value(rng), row))


def days_of(argv, usage):
    """Makes the database that the arguments ask for, changes it as each day does, and yields it with the day and the
    path of what is to be written then, without its ending."""
    if not 3 <= len(argv) <= 5:
        sys.exit(usage)
    out, megabytes = argv[1], int(argv[2])
    days = int(argv[3]) if len(argv) > 3 else 7
    rng = random.Random(int(argv[4]) if len(argv) > 4 else 5)
    os.makedirs(out)
    db = sqlite3.connect(":memory:")
    db.executescript(SCHEMA)
    count = megabytes * 1_000_000 // ROW_BYTES
    add(db, rng, count, FIRST_DAY.isoformat())
    for number in range(days):
        day = FIRST_DAY + datetime.timedelta(number)
        add(db, rng, count // 100, day.isoformat())
        change(db, rng, "customers", "balance", lambda rng: round(rng.uniform(-500, 5000), 2))
        change(db, rng, "orders", "state", lambda rng: rng.choice(["paid", "sent", "returned"]))
        change(db, rng, "notes", "body", lambda rng: phrase(rng, 20, 90))
        db.commit()
        yield db, day, os.path.join(out, day.isoformat())
    db.close()


def main(argv):
    for db, _, path in days_of(argv, __doc__):
        with open(path + ".sql", "w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in db.iterdump())


if __name__ == "__main__":
    main(sys.argv)
