#!/usr/bin/env python3
"""The reader's own test. Verifies the golden pools and compares the digests of their content with golden.json; then
damages each, which the reader must notice. With HARDPACK=path/of/hardpack it also compares, byte by byte, with what
hardpack extracts from the golden pools, and does the same with a fresh pool of several databases, with deltas,
snapshots, shared extents, a dictionary, links and every codec.

    HARDPACK=target/debug/hardpack scripts/reader/read_pool.py self-test
    scripts/reader/self_test.py --write     adds the digests of golden pools that golden.json lacks
"""

import json
import math
import os
import random
import shutil
import sqlite3
import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import page_filter
import read_pool
import verify

HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parents[1] / "crates/engine/tests/golden"
NOTED = HERE / "golden.json"
SEED = 20


def run(*command):
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)


def tree_of(directory):
    """Returns the content of a directory: bytes of files, targets of links."""
    found = {}
    for path in sorted(Path(directory).rglob("*")):
        name = str(path.relative_to(directory))
        found[name] = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
    return found


def compare(hardpack, pool, snapshot, scratch):
    """Asserts that the reader extracts the same as hardpack."""
    ours, theirs = Path(scratch, "ours"), Path(scratch, "theirs")
    address = f"{pool}@{snapshot}" if snapshot else str(pool)
    read_pool.extract(read_pool.Pool(pool).state(snapshot), ours)
    run(hardpack, "extract", "-q", "-T", address, theirs)
    found, expected = tree_of(ours), tree_of(theirs)
    assert found.keys() == expected.keys(), f"{address}: {found.keys() ^ expected.keys()}"
    differing = [name for name in found if found[name] != expected[name]]
    assert not differing, f"{address}: these files differ: {differing}"
    assert found, f"{address}: the pool is empty"
    shutil.rmtree(ours)
    shutil.rmtree(theirs)


def sees(image, txg, scratch):
    """Whether the reader refuses an image, or falls back to a state before `txg`."""
    path = Path(scratch, "damaged.hpk")
    path.write_bytes(image)
    try:
        return verify.verify(path)[0].superblock.txg < txg
    except (read_pool.Damaged, page_filter.Malformed):
        return True


def damage(path, scratch, rng, count=12):
    """Flips bits in used extents, including the zeros after them."""
    image = bytearray(path.read_bytes())
    pool, verifier = verify.verify(path)
    for _ in range(count):
        sector, sectors = rng.choice(sorted(verifier.lengths.items()))
        at = sector * pool.sector + rng.randrange(sectors * pool.sector)
        if at < len(image):
            image[at] ^= 1 << rng.randrange(8)
            noticed = sees(image, pool.superblock.txg, scratch)
            assert noticed, f"{path}: the flip of a bit in byte {at} was not noticed (seed {SEED})"
            image = bytearray(path.read_bytes())


def shop(path, rng, rows):
    """Creates a database with NULLs, integers of all widths, doubles, texts, dates and overflow pages."""
    # Long, a few on each page, and the same in every database: ideal for a dictionary.
    phrases = [random.Random(n).randbytes(80).hex() for n in range(400)]
    with sqlite3.connect(path) as db:
        columns = "id INTEGER PRIMARY KEY, name TEXT, price REAL, made TEXT, n INTEGER, note, pic BLOB"
        db.execute(f"CREATE TABLE orders ({columns})")
        for n in range(rows):
            made = f"20{rng.randrange(10, 25)}-0{rng.randrange(1, 10)}-1{rng.randrange(10)} 0{rng.randrange(10)}:30:00"
            dated = f"{n} at {made[:10]}T{made[11:]}, and {made}"
            note = rng.choice([None, "", n, n / 7, phrases[n % 389], "x" * (n % 40), dated])
            pic = rng.randbytes(9000) if n % 500 == 7 else None
            name, price = f"name {rng.randrange(n + 1)}", rng.randrange(9999) / 100
            row = name, price, made, rng.randrange(1 << n % 63 + 1) - 9, note, pic
            db.execute("INSERT INTO orders (name, price, made, n, note, pic) VALUES (?, ?, ?, ?, ?, ?)", row)
        db.execute("CREATE INDEX by_name ON orders (name, made)")
        db.execute("CREATE TABLE keys (key TEXT PRIMARY KEY, value) WITHOUT ROWID")
        db.executemany("INSERT INTO keys VALUES (?, ?)", ((f"key {n * 7919 % 100003:06}", n) for n in range(rows // 2)))
        db.execute("DELETE FROM orders WHERE id % 11 = 3")
        log(db, rng, min(rows // 2, 1500))
    db.close()


def log(db, rng, rows):
    """Creates tables with rare features: row ids of nine bytes, columns added later, records with long headers, dates
    within texts, a few repeated texts, texts with a common beginning, short blobs."""
    db.execute("CREATE TABLE log (id INTEGER PRIMARY KEY, state TEXT, line TEXT, path TEXT, mark BLOB)")
    for n in range(rows):
        day = f"2024-0{n // 300 % 9 + 1}-{n // 30 % 10 + 10}"
        line = f"{rng.choice(['get', 'put'])} at {day} 1{n % 10}:{n % 50 + 10}:17 by user {rng.randrange(10**6)}"
        state = rng.choice(["accepted", "refused for a reason", "waiting"])
        path = f"/var/lib/a/long/prefix/{n:07}/{rng.randrange(1000)}"
        row = -n if n % 2 else (1 << 60) + n, state, line, path, rng.randbytes(n % 9)
        db.execute("INSERT INTO log VALUES (?, ?, ?, ?, ?)", row)
    db.execute("ALTER TABLE log ADD COLUMN later")
    db.execute("INSERT INTO log (later) SELECT id FROM log WHERE id < 0 AND id > -200")
    db.execute(f"CREATE TABLE wide ({', '.join(f'c{n}' for n in range(140))})")
    wide = ((rng.randrange(300) for _ in range(140)) for _ in range(200))
    db.executemany(f"INSERT INTO wide VALUES ({', '.join('?' * 140)})", (tuple(row) for row in wide))


def old_format(path, rng):
    """Creates a database in schema format 1, where 0 and 1 are integers of one byte, longer than necessary."""
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE bits (id INTEGER PRIMARY KEY, bit INTEGER, n INTEGER)")
    db.close()
    image = bytearray(path.read_bytes())
    image[44:48] = (1).to_bytes(4, "big")
    path.write_bytes(image)
    with sqlite3.connect(path) as db:
        rows = ((rng.randrange(2), rng.randrange(1000)) for _ in range(5000))
        db.executemany("INSERT INTO bits (bit, n) VALUES (?, ?)", rows)
    db.close()


def archives(directory, rng):
    """Creates zip archives of which most members resemble each other, and differ once they are deflated."""
    directory.mkdir()
    lines = [f"{n} {rng.randrange(10**9)} {rng.choice(['some', 'other'])} text\n" for n in range(3000)]
    for version in range(4):
        with zipfile.ZipFile(directory / f"{version}.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=6 + version % 3) as zip:
            for member in range(10):
                zip.writestr(f"{member}.txt", f"{version}\n" + "".join(lines[member * 250 : member * 250 + 500]))


def media(directory, rng):
    """Creates machine code and sound, which are transformed."""
    directory.mkdir()
    functions = [rng.randrange(1 << 20) for _ in range(50)]
    instructions = [rng.randbytes(rng.randrange(3, 7)) for _ in range(300)]
    x86 = bytearray()
    while len(x86) < 300_000:
        x86 += b"".join(rng.choices(instructions, k=rng.randrange(2, 9)))
        x86 += b"\xe8" + ((rng.choice(functions) - len(x86) - 5) % 2**32).to_bytes(4, "little")
    (directory / "x86").write_bytes(x86)
    arm64 = bytearray()
    while len(arm64) < 100_000:
        arm64 += b"".join(word[:2] * 2 for word in rng.choices(instructions, k=rng.randrange(2, 9)))
        arm64 += (0x94000000 | (rng.choice(functions) - len(arm64) >> 2) % 2**26).to_bytes(4, "little")
        page = (rng.choice(functions) - len(arm64) >> 12) % 2**21
        arm64 += (0x90000003 | (page & 3) << 29 | (page >> 2) << 5).to_bytes(4, "little")
    (directory / "arm64").write_bytes(arm64)
    waves = ((math.sin(n / 30) * 9000 + rng.randrange(200), math.sin(n / 41) * 7000) for n in range(60_000))
    (directory / "sound").write_bytes(b"".join(struct.pack("<hh", int(left), int(right)) for left, right in waves))


def versions(directory, rng):
    """Creates versions of a file that are too long for one segment, which become differences."""
    directory.mkdir()
    common = rng.randbytes(400_000)
    for version in range(6):
        (directory / f"{version}").write_bytes(rng.randbytes(1000 + 300 * version) + common + rng.randbytes(9000))


def branches(directory, rng):
    """Creates versions of a file in three branches, of which some become differences from differences."""
    directory.mkdir()
    common = [rng.randbytes(6500) for _ in range(20)]
    own = [[rng.randbytes(4500) for _ in range(20)] for _ in range(3)]
    for version in range(12):
        blocks = (common[n] + own[version % 3][n] + rng.randbytes(1000) for n in range(20))
        (directory / f"{version}").write_bytes(rng.randbytes(100 + 50 * version) + b"".join(blocks))


def nights(directory, rng):
    """Creates copies of a database, of several nights, which become differences."""
    directory.mkdir()
    shop(directory / "0.db", rng, 3000)
    for night in range(1, 4):
        shutil.copy(directory / f"{night - 1}.db", directory / f"{night}.db")
        with sqlite3.connect(directory / f"{night}.db") as db:
            db.execute(f"UPDATE orders SET price = price + 1, n = {night} WHERE id % 5 = {night}")
        db.close()


def fresh(hardpack, scratch, rng):
    source, pool = Path(scratch, "source"), Path(scratch, "fresh.hpk")
    (source / "deep/er").mkdir(parents=True)
    shop(source / "shop.db", rng, 6000)
    shutil.copy(source / "shop.db", source / "deep/copy.db")
    shop(source / "deep/other.db", rng, 900)
    old_format(source / "old.db", rng)
    os.symlink("../shop.db", source / "deep/link")
    os.link(source / "shop.db", source / "deep/er/second name")
    (source / "empty").write_bytes(b"")
    (source / "holes").write_bytes(b"a" + bytes(700_000) + b"z" * 50_000 + bytes(99))
    (source / "noise").write_bytes(rng.randbytes(300_000))
    run(hardpack, "create", "-o", "dedup=on", pool)
    run(hardpack, "put", "-q", "-T", source, pool)
    codecs = ("lz4", "zstd-9", "gzip-6", "lzjb", "zle", "off", "lz4hc-9", "zstd-fast-3", "lzma-6")
    kinds = ("xxh3", "blake3", "sha256")
    for n, codec in enumerate(codecs):
        run(hardpack, "mkdir", f"{pool}/{codec}")
        values = f"compression={codec}", f"recordsize={(4, 16, 128)[n % 3]}K", f"checksum={kinds[n % 3]}"
        run(hardpack, "set", *values, "dedup=off", f"{pool}/{codec}")
        run(hardpack, "put", "-q", source / "deep/other.db", source / "holes", f"{pool}/{codec}")
    shop(source / "pages.db", rng, 60_000)
    run(hardpack, "mkdir", f"{pool}/short")
    run(hardpack, "set", "compression=zstd-3", "recordsize=4K", "filter=none", f"{pool}/short")
    run(hardpack, "put", "-q", source / "pages.db", f"{pool}/short")
    # Only many records make the dedup index write what it has in memory.
    (source / "noise").write_bytes(rng.randbytes(17_000 * 4096))
    run(hardpack, "put", "-q", source / "noise", f"{pool}/short")
    run(hardpack, "repack", "-q", "--restart", "--compression", "zstd-4", f"{pool}/short/pages.db")
    archives(source / "archives", rng)
    run(hardpack, "put", "-q", source / "archives", pool)
    run(hardpack, "optimize", "-q", "--inflate", "--keep-length", f"{pool}/archives")
    media(source / "media", rng)
    run(hardpack, "put", "-q", source / "media", pool)
    run(hardpack, "optimize", "-q", "--keep-length", f"{pool}/media")
    for name, codec in ("versions", "zstd-9"), ("more", "lzma-3"):
        versions(source / name, rng)
        run(hardpack, "put", "-q", source / name, pool)
        flags = "--segment", "1M", "--compression", codec
        run(hardpack, "optimize", "-q", "--keep-length", *flags, f"{pool}/{name}")
    for name, codec in ("branches", "zstd-9"), ("twigs", "lzma-3"):
        branches(source / name, rng)
        run(hardpack, "put", "-q", source / name, pool)
        flags = "--segment", "256K", "--compression", codec
        run(hardpack, "optimize", "-q", "--keep-length", *flags, f"{pool}/{name}")
    nights(source / "nights", rng)
    for name, flags in ("nights", ()), ("unfiltered", ("-o", "filter=none")):
        run(hardpack, "mkdir", *flags, f"{pool}/{name}")
        run(hardpack, "put", "-q", source / "nights", f"{pool}/{name}")
        run(hardpack, "optimize", "-q", "--keep-length", f"{pool}/{name}")
    run(hardpack, "snapshot", f"{pool}@before")
    for n in range(10):
        for db in ("shop.db", "deep/other.db", "zle/other.db"):
            update = f"UPDATE orders SET n = n + {n} WHERE id % 97 = {n}"
            run(hardpack, "sql", f"{pool}/{db}", update)
    run(hardpack, "rm", f"{pool}/noise", f"{pool}/gzip-6/other.db", f"{pool}/zle/holes")
    run(hardpack, "snapshot", f"{pool}@after", f"{pool}/deep@part")
    run(hardpack, "sql", f"{pool}/deep/other.db", "DELETE FROM keys WHERE value % 2 = 0")
    _, verifier = verify.verify(pool)
    check_coverage(verifier)
    for snapshot in ("", "before", "after"):
        compare(hardpack, pool, snapshot, scratch)
    damage(pool, scratch, rng, 3)


def check_coverage(verifier):
    """Asserts that the fresh pool has everything that it is meant to test."""
    live, pool = verifier.live, verifier.pool
    pointers = [pointer for tree in (read_pool.MAP, read_pool.PATCHES) for _, _, pointer in live.pieces(tree)]
    for _, _, _, _, _, state in pool.snapshots():
        pointers += [pointer for tree in (read_pool.MAP, read_pool.PATCHES) for _, _, pointer in state.pieces(tree)]
    assert {pointer.codec for pointer in pointers} == set(range(7)), "a codec does not occur"
    assert {pointer.kind for pointer in pointers} >= {1, 2}, "a kind of pointer does not occur"
    filters = {pointer.filter for pointer in pointers}
    assert filters == set(range(8)), f"a filter does not occur: {filters}"
    assert {len(pointer.behind) for pointer in pointers if pointer.kind == 1} == {16, 32}, "a checksum does not occur"
    differences = [pointer for pointer in pointers if pointer.filter == read_pool.DIFFERENCE]
    assert {pointer.codec for pointer in differences} == {5, 6}, "a codec makes no differences"
    bases = [read_pool.Pointer(value) for value in live.tree(read_pool.DICTIONARIES).values()]
    seconds = {base.codec for base in bases if base.is_base() and base.is_second_base()}
    assert seconds == {5, 6}, f"second bases are made by these codecs only: {seconds}"
    assert any(pointer.dictionary for pointer in pointers if pointer not in differences), "no dictionary is used"
    assert any(count > 1 for count in verifier.pointers.values()), "no extent is shared"
    trees = {read_pool.REFS, read_pool.DEAD, read_pool.SNAPSHOTS, read_pool.INDEX}
    assert trees <= live.roots.keys(), f"trees do not occur: {trees - live.roots.keys()}"


def main(write=False):
    noted = json.loads(NOTED.read_text()) if NOTED.exists() else {}
    hardpack = os.environ.get("HARDPACK")
    pools = sorted(GOLDEN.glob("*.hpk"))
    assert len(pools) >= 5, f"golden pools are missing in {GOLDEN}"
    rng = random.Random(SEED)
    with tempfile.TemporaryDirectory(prefix="hardpack-reader-") as scratch:
        for path in pools:
            pool, _ = verify.verify(path)
            found = read_pool.digests(pool.live)
            if write:
                noted.setdefault(path.name, found)
            assert found == noted.get(path.name), f"{path.name}: {found}, golden.json says {noted.get(path.name)}"
            damage(path, scratch, rng)
            if hardpack:
                compare(hardpack, path, "", scratch)
            print(f"{path.name}: {len(found)} files, as recorded" + (" and as extracted" if hardpack else ""))
        if hardpack:
            fresh(hardpack, scratch, rng)
            print(f"a fresh pool (seed {SEED}): intact, and as extracted")
    if write:
        NOTED.write_text(json.dumps(noted, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(write="--write" in sys.argv[1:]))
