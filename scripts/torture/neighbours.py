"""What else happens in the pool of `killing`: imports of a tree, and transactions too large for memory."""

import os
import sqlite3
import subprocess
import time

import crew
import ledger
import sql

DATABASE, IMPORTS = "large.db", "imports"
# More than the engine keeps in memory: 12,000 rows of 3,000 bytes.
ROW_COUNT, ROW_LEN = 12_000, 3_000
FILE_COUNT = 200
LONG_FILE_LEN = 9_000_000


def make_trees(directory, rng):
    """Writes two trees with the same names and other content: short files, and one that is put in several steps."""
    trees = [os.path.join(directory, f"tree{variant}") for variant in range(2)]
    for tree in trees:
        os.makedirs(os.path.join(tree, "some"))
        for number in range(FILE_COUNT):
            with open(os.path.join(tree, "some", f"f{number}"), "wb") as file:
                file.write(rng.randbytes(rng.choice((0, 20, 5_000))) * rng.randrange(1, 9))
        with open(os.path.join(tree, "long"), "wb") as file:
            file.write(rng.randbytes(LONG_FILE_LEN // 3) * 3)
    return trees


def hire(context, rng, team, settings, trees):
    """Adds the neighbours to a crew."""
    target = os.path.join(settings["pool"], IMPORTS)
    team.add(crew.Slot(
        "import", lambda: [context.hardpack, "put", "-q", os.path.join(rng.choice(trees), "."), target],
        rest=(0.2, 2.0),
    ))
    life = [0]

    def large():
        life[0] += 1
        return crew.worker("large", {**settings, "life": f"{settings['seed']}/large/{life[0]}"})

    team.add(crew.Slot("large", large, rest=(0.2, 2.0)))


def body(row, turn):
    return f"printf('%0{ROW_LEN}d', {row} * 1000003 + {turn})"


def judge_large(db):
    """Checks that the large table is as one transaction left it. Returns the turn of that transaction."""
    found = db.execute(
        f"select count(*), min(turn), max(turn), count(case when body <> {body('id', 'turn')} then 1 end) from large"
    ).fetchone()
    count, first, last, wrong = found
    if (count, first, last, wrong) != (0, None, None, 0) and (count, first, wrong) != (ROW_COUNT, last, 0):
        raise ledger.Wrong(f"a large transaction is there in part: {found}")
    return last or 0


def run_large(worker):
    """Runs large transactions in another database of the pool, and rolls some back."""
    db = sql.connect(os.path.join(worker.pool, DATABASE), f"cache_size={worker.rng.choice((10, -2000))}")
    try:
        db.execute("create table if not exists large(id integer primary key, turn, body)")
        for _ in range(worker.rng.randrange(1, 4)):
            if worker.stopped():
                break
            db.execute("begin immediate")
            turn = judge_large(db) + 1
            if turn > 1 and worker.rng.random() < 0.5:
                # In an order that touches each page several times.
                db.execute(f"update large set turn = {turn}, body = {body('id', turn)} where id % 2 = 0")
                db.execute(f"update large set turn = {turn}, body = {body('id', turn)} where id % 2 = 1")
            else:
                db.execute("delete from large")
                db.execute(
                    f"with recursive c(i) as (select 1 union all select i + 1 from c where i < {ROW_COUNT}) "
                    f"insert into large select i, {turn}, {body('i', turn)} from c"
                )
            end = worker.rng.choice(("commit", "commit", "rollback"))
            db.execute(end)
            worker.count(f"large transactions: {end}")
            if worker.rng.random() < 0.2:
                db.execute("vacuum")
    except sqlite3.OperationalError as error:
        worker.excuse(error)
    db.close()
    time.sleep(worker.rng.uniform(0, 0.2))


def judge(context, settings, trees, work):
    """Checks the neighbours' part of a pool that nobody uses."""
    pool = settings["pool"]
    listed = crew.judge_command(context, "find", pool, "-name", DATABASE).stdout
    if DATABASE in listed:
        db = sql.connect(os.path.join(pool, DATABASE))
        if db.execute("select count(*) from sqlite_schema").fetchone()[0]:
            judge_large(db)
            sql.integrity(db)
            context.counts["large tables judged"] += 1
        db.close()
    out = os.path.join(work, "imported")
    listed = crew.judge_command(context, "ls", pool).stdout
    if IMPORTS not in listed.split():
        return
    crew.judge_command(context, "extract", "-q", os.path.join(pool, IMPORTS), out)
    for directory, _, names in os.walk(out):
        for name in names:
            found = os.path.join(directory, name)
            tail = os.path.relpath(found, out).split(os.sep)
            if tail[0] == IMPORTS:
                tail = tail[1:]
            if not any(is_same(found, os.path.join(tree, *tail)) for tree in trees):
                raise ledger.Wrong(f"the imported file {'/'.join(tail)} is neither the one nor the other")
            context.counts["imported files judged"] += 1
    subprocess.run(["rm", "-rf", out], check=True)


def is_same(a, b):
    if not os.path.exists(b) or os.path.getsize(a) != os.path.getsize(b):
        return False
    with open(a, "rb") as first, open(b, "rb") as second:
        return first.read() == second.read()
