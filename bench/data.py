"""Databases to measure with: generated ones, clean copies of given ones, and their packed variants.

A base is a plain SQLite file in DELETE mode that nothing else uses. Variants are made from it once;
measurements that write get a fresh copy each time. Copies keep holes and are synced, so that their
write-back does not disturb a later measurement.
"""

import json
import marshal
import os
import random
import sqlite3
import subprocess
import time
import urllib.parse

import make_weblog

ORDERS_SQL = """CREATE TABLE orders(id INTEGER PRIMARY KEY, day TEXT NOT NULL, customer INTEGER NOT NULL,
 sku TEXT NOT NULL, quantity INTEGER NOT NULL, price REAL NOT NULL, status TEXT NOT NULL,
 address TEXT NOT NULL, note TEXT)"""
ORDERS_INDEX_SQL = "CREATE INDEX orders_by_customer ON orders(customer, day)"
ORDERS_INSERT_SQL = "INSERT INTO orders VALUES(?,?,?,?,?,?,?,?,?)"

STREETS = "Mill Church Station Harbour Castle Orchard Market Chapel River Bridge Park School Garden".split()
STREET_KINDS = "Street Road Lane Avenue Square Terrace".split()
TOWNS = "Ashford Brookhaven Calder Dunmore Eastwick Farleigh Glenholm Hartwell Kingsmead Lowick Marsden Norwell".split()
STATUSES = ["new", "paid", "paid", "packed", "shipped", "shipped", "delivered", "delivered", "delivered", "returned"]
PHRASES = ["please leave with a neighbour", "gift wrap", "call before delivery", "no plastic", "second floor",
           "replacement for order %d", "customer asked for %s", "see also %s", "back entrance", "fragile"]


def order_rows(count, seed):
    """Yields the rows of `orders`, in insertion order."""
    rng = random.Random(seed)
    skus = ["%s-%s-%d" % (rng.choice(make_weblog.ADJECTIVES), rng.choice(make_weblog.NOUNS), rng.randrange(1000, 9999))
            for _ in range(3000)]
    draw = rng.random
    for i in range(1, count + 1):
        day = i * 700 // count
        sku = skus[int(draw() * draw() * 3000)]
        note = None
        if draw() < 0.4:
            note = rng.choice(PHRASES)
            note = note % i if "%d" in note else note % sku if "%s" in note else note
        date = "20%02d-%02d-%02d" % (23 + day // 360, 1 + day // 30 % 12, 1 + day % 30)
        address = "%d %s %s, %05d %s" % (1 + int(draw() * 240), rng.choice(STREETS), rng.choice(STREET_KINDS),
                                        10_000 + int(draw() * 89_999), rng.choice(TOWNS))
        yield (i, date, int(draw() ** 2 * 40_000), sku, 1 + int(draw() * draw() * 9),
               int(rng.lognormvariate(3, 0.8) * 100) / 100, rng.choice(STATUSES), address, note)


def event_rows(count, seed):
    """Yields JSON documents with nested fields, sensor readings and random identifiers."""
    rng = random.Random(seed)
    for i in range(count):
        body = {"event": rng.choice(("view", "view", "add", "pay", "scan")), "session": "%032x" % rng.getrandbits(128),
                "device": {"id": rng.randrange(900), "battery": round(rng.uniform(3.1, 4.2), 3),
                           "rssi": -rng.randrange(40, 95)},
                "at": {"lat": round(rng.gauss(51, 2), 5), "lon": round(rng.gauss(4, 3), 5)},
                "items": [{"sku": "%s-%s" % (rng.choice(make_weblog.ADJECTIVES), rng.choice(make_weblog.NOUNS)),
                           "n": rng.randrange(1, 5)} for _ in range(rng.randrange(4))]}
        yield i + 1, 1_735_689_600_000 + i * 750 + rng.randrange(700), json.dumps(body, separators=(",", ":"))


def generate_shop(out, target_bytes, seed):
    """Creates relational rows with an index and JSON events, in the order in which a program would insert them."""
    count = max(200, int(target_bytes / 460))
    db = sqlite3.connect(out, isolation_level=None)
    try:
        db.execute("PRAGMA synchronous=OFF")
        db.execute(ORDERS_SQL)
        db.execute("CREATE TABLE events(id INTEGER PRIMARY KEY, ts INTEGER, body TEXT)")
        db.execute(ORDERS_INDEX_SQL)
        db.execute("BEGIN")
        db.executemany(ORDERS_INSERT_SQL, order_rows(count, seed))
        db.executemany("INSERT INTO events VALUES(?,?,?)", event_rows(count, seed))
        db.execute("COMMIT")
    finally:
        db.close()


def write_bulk_rows(path, count, chunk, seed):
    """Writes the rows for the bulk load in chunks, as a stream that a child reads at almost no cost."""
    source = order_rows(count, seed)
    with open(path, "wb") as out:
        while True:
            rows = [row for _, row in zip(range(chunk), source)]
            if not rows:
                return
            marshal.dump(rows, out)


def make_base(source, base):
    """Makes a consistent plain copy of `source`, including its WAL, in DELETE mode."""
    uri = "file:%s?mode=ro" % urllib.parse.quote(os.path.abspath(source))
    reader = sqlite3.connect(uri, uri=True)
    writer = sqlite3.connect(base, isolation_level=None)
    try:
        writer.execute("PRAGMA synchronous=OFF")
        reader.backup(writer)
        writer.execute("PRAGMA journal_mode=DELETE")
    finally:
        writer.close()
        reader.close()
    sync(base)


def pack(cli, base, out, codec, record_size=None):
    """Packs with the command line; returns the seconds."""
    compression, _, filter_ = codec.partition("/")
    command = [cli, "pack", base, out, "--compression", compression]
    if filter_:
        command += ["--filter", filter_]
    if record_size:
        command += ["--recordsize", record_size]
    began = time.perf_counter()
    done = subprocess.run(command, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    seconds = time.perf_counter() - began
    if done.returncode != 0 or not os.path.exists(out):
        raise RuntimeError("pack exited with %d: %s" % (done.returncode, done.stderr.strip()[-500:]))
    sync(out)
    return seconds


def copy(source, target):
    """Copies `source` with its holes, and syncs the copy."""
    with open(source, "rb") as reader, open(target, "wb") as writer:
        size = os.fstat(reader.fileno()).st_size
        offset = 0
        while offset < size:
            try:
                start = os.lseek(reader.fileno(), offset, os.SEEK_DATA)
            except OSError:  # no data up to the end
                break
            offset = end = os.lseek(reader.fileno(), start, os.SEEK_HOLE)
            os.lseek(writer.fileno(), start, os.SEEK_SET)
            os.lseek(reader.fileno(), start, os.SEEK_SET)
            while start < end:
                sent = os.sendfile(writer.fileno(), reader.fileno(), None, end - start)
                if sent == 0:
                    break
                start += sent
        writer.truncate(size)
        os.fsync(writer.fileno())


def sync(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove_database(path):
    for suffix in ("", "-journal", "-wal", "-shm"):
        try:
            os.remove(path + suffix)
        except FileNotFoundError:
            pass


def sizes(path):
    """Returns the length in bytes, and the bytes allocated on disk (fewer if there are holes)."""
    stat = os.stat(path)
    return {"bytes": stat.st_size, "allocated_bytes": stat.st_blocks * 512}
