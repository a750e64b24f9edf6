"""Makes a database of any size in one pass: rows of about 1 KB, which a fresh pack shrinks to about a third.

The text of each row is part of one long text from a small vocabulary, starting at another place in every
row, beside a number that does not compress. Nothing is sparse or all zeros: each page must really be stored,
compressed and found again.
"""

import os
import random
import sqlite3

import make_weblog

ROWS_PER_PAGE, PAGE_BYTES = 4, 4096
TEXT_BYTES, PIECE_BYTES = 1 << 20, 880
MULTIPLIER, MASK = 0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835, (1 << 128) - 1


def rows(count, seed):
    rng = random.Random(seed)
    words = make_weblog.ADJECTIVES + make_weblog.NOUNS + make_weblog.VERBS + make_weblog.CATEGORIES
    text = " ".join(rng.choice(words) for _ in range(TEXT_BYTES // 6))
    span = len(text) - PIECE_BYTES
    for i in range(1, count + 1):
        mixed = i * MULTIPLIER & MASK
        start = (mixed >> 64) % span
        yield i, tag_of(i), "%032x %s" % (mixed, text[start:start + PIECE_BYTES])


def tag_of(i):
    """Returns the first value of the column that is updated."""
    return "%08d" % (i * 7919 % 100_000_000)


def generate(out, target_bytes, seed):
    """Writes the database; returns the number of rows."""
    count = target_bytes // PAGE_BYTES * ROWS_PER_PAGE
    db = sqlite3.connect(out, isolation_level=None)
    try:
        db.execute("PRAGMA journal_mode=OFF")
        db.execute("PRAGMA synchronous=OFF")
        db.execute("CREATE TABLE pieces(id INTEGER PRIMARY KEY, tag TEXT NOT NULL, body TEXT NOT NULL)")
        db.execute("BEGIN")
        db.executemany("INSERT INTO pieces VALUES(?,?,?)", rows(count, seed))
        db.execute("COMMIT")
        db.execute("PRAGMA journal_mode=DELETE")
    finally:
        db.close()
    fd = os.open(out, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    return count


def plan_of(count, points, updates, seed):
    """Returns what to read and update, in the form that plan.py gives for other databases."""
    rng = random.Random(seed)
    drawn = list(dict.fromkeys(rng.randint(1, count) for _ in range(updates)))
    return {
        "table": "pieces", "rows": count,
        "first": "SELECT * FROM pieces LIMIT 1",
        "point": "SELECT * FROM pieces WHERE id=?",
        "value": "SELECT tag FROM pieces WHERE id=?",
        "update": "UPDATE pieces SET tag=? WHERE id=?",
        "point_rowids": [rng.randint(1, count) for _ in range(points)],
        "updates": [(i, "%08d" % rng.randrange(100_000_000), tag_of(i)) for i in drawn],
    }
