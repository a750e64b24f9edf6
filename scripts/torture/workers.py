#!/usr/bin/env python3
"""One process of the torture run: `workers.py ROLE` with its settings as JSON on the command line.

A worker takes some steps and ends, or is killed; its starter starts it again. Exit status 0: everything was as it
must be, including steps that a lock or a full disk prevented; 1 and a traceback otherwise.
"""

import json
import os
import random
import sqlite3
import subprocess
import sys
import time

import ledger
import neighbours
import sql

READER_STEPS_MAX = 6


class Worker:
    def __init__(self, settings):
        self.pool, self.seed, self.work = settings["pool"], settings["seed"], settings["work"]
        self.pragmas, self.may_fill = settings["pragmas"], settings["may_fill"]
        self.settings = settings
        self.rng = random.Random(f"{settings['life']}")
        self.bodies = ledger.Bodies(self.seed)
        self.loader = sql.load(settings["library"])

    def connect(self, **options):
        return sql.connect(self.pool, *self.pragmas, **options)

    def stopped(self):
        return os.path.exists(os.path.join(self.work, "stop"))

    def excuse(self, error):
        """Whether an error is only a lock, or a disk that may be full; anything else is a failure."""
        code = sql.primary_code(error)
        if code == sql.BUSY or (code == sql.FULL and self.may_fill):
            self.count("full" if code == sql.FULL else "busy")
            return
        raise error

    def count(self, what, number=1):
        """Adds to the counts of the summary, in one write, so that a kill loses at most this."""
        with open(os.path.join(self.work, "counts"), "a") as file:
            file.write(f"{what} {number}\n")

    def judged(self, db, what, least):
        """Checks the state that a connection sees in its open transaction."""
        reached = ledger.judge(db, self.bodies)
        ledger.compare(reached, least, None, what)
        self.count("snapshots judged")
        return reached

    def nothing(self):
        """Only starts, to measure how long that takes."""

    def writer(self):
        """Runs transactions in one or several connections, and rolls some of them back."""
        me = self.settings["writer"]
        acks = ledger.Acknowledgements(os.path.join(self.work, f"ack.{me}"))
        least, most = (f(self.work).get(me, 0) for f in (ledger.seen, ledger.begun))
        db, number = self.connect(), None
        last_begun = None
        for _ in range(self.rng.randrange(20, 400)):
            if self.stopped():
                break
            try:
                db.execute("begin immediate")
                found = ledger.progress(db).get(me, 0)
                if number is None:
                    ledger.compare({me: found}, {me: least}, {me: most}, "a new life")
                    acks.note("R", found, 0)
                elif found != number:
                    raise ledger.Wrong(f"writer {me} had come to {number} and finds {found}")
                number = found
                plan = ledger.Plan(self.seed, me, number + 1)
                if self.rng.random() < 0.08:
                    ledger.apply(db, ledger.Plan(self.seed, me, -number), self.bodies, me, -number)
                    db.execute("rollback")
                    self.count("rolled back")
                    continue
                if self.rng.random() < 0.2 and self.settings["savepoints"]:  # one that is undone
                    db.execute("savepoint s")
                    db.execute("update account set body = 'x', balance = 0 where id < 40")
                    db.execute("rollback to s")
                seq = ledger.apply(db, plan, self.bodies, me, number + 1)
                if last_begun != (number + 1, seq):
                    acks.note("B", number + 1, seq)
                    last_begun = (number + 1, seq)
                db.execute("commit")
                acks.acknowledge(number + 1, seq)
                number += 1
            except sqlite3.OperationalError as error:
                self.excuse(error)
                if db.in_transaction:
                    db.execute("rollback")
                time.sleep(self.rng.uniform(0, 0.1))
            if self.rng.random() < 0.03:
                db.close()
                db = self.connect()
            if self.rng.random() < 0.1:  # long enough for maintenance in the background to begin
                time.sleep(self.rng.uniform(0, 0.4))
        db.close()

    def reader(self):
        """Reads snapshots; holds some for long, and reads some in the middle of a cursor."""
        db = self.connect()
        for _ in range(self.rng.randrange(2, READER_STEPS_MAX)):
            if self.stopped():
                break
            try:
                least = ledger.seen(self.work)
                db.execute("begin")
                cursor = db.execute("select id, balance from account order by id")
                first = cursor.fetchmany(self.rng.randrange(1, 50))
                reached = self.judged(db, "a reader's snapshot", least)
                if self.rng.random() < 0.5:
                    time.sleep(self.rng.uniform(0, 1.5))
                    if self.judged(db, "a held snapshot", least) != reached:
                        raise ledger.Wrong("a snapshot changed while it was held")
                balances = [balance for _, balance in first + cursor.fetchall()]
                if len(balances) != ledger.ACCOUNT_COUNT or sum(balances) != len(balances) * ledger.OPENING_BALANCE:
                    raise ledger.Wrong("a cursor held open saw two states")
                db.execute("commit")
                if self.rng.random() < 0.2:
                    sql.integrity(db)
            except sqlite3.OperationalError as error:
                self.excuse(error)
                if db.in_transaction:
                    db.execute("rollback")
            time.sleep(self.rng.uniform(0, 0.3))
        db.close()

    def steps(self, choices, pause, timeout=3):
        """Runs one of the statements repeatedly."""
        db = self.connect(timeout=timeout)
        for _ in range(self.rng.randrange(2, 12)):
            if self.stopped():
                break
            statement = self.rng.choice(choices)
            try:
                row = db.execute(statement).fetchone()
                done = not (statement.startswith("pragma wal_checkpoint") and row and row[0])
                self.count(statement.split("(")[0] + ("" if done else " (not all: readers)"))
            except sqlite3.OperationalError as error:
                self.excuse(error)
            time.sleep(self.rng.uniform(0, pause))
        db.close()

    def checkpointer(self):
        self.steps([f"pragma wal_checkpoint({mode})" for mode in ("passive", "full", "restart", "truncate")], 0.5)

    def vacuum(self):
        self.steps(["vacuum", "pragma incremental_vacuum(50)", "pragma incremental_vacuum"], 1.5)

    def properties(self):
        self.steps(
            [f"pragma hardpack_compression='{name}'" for name in ("zstd-3", "lz4", "auto", "gzip-2", "off", "zstd-9")]
            + [f"pragma hardpack_recordsize='{size}'" for size in ("8K", "32K", "128K", "1M")]
            + [f"pragma hardpack_background_cpu='{share}'" for share in ("0%", "25%", "100%")],
            1.0,
        )

    def backup(self):
        """Checks that copies made by SQLite's backup, in a pool or a plain file, hold a complete state."""
        for _ in range(self.rng.randrange(1, 3)):
            target = os.path.join(self.settings["copies"], f"backup.{os.getpid()}")
            as_pool = self.rng.random() < 0.5
            try:
                copy = sql.connect(target) if as_pool else sqlite3.connect(target, isolation_level=None)
            except sqlite3.OperationalError:
                # SQLite's own message if not even an empty file can be created.
                if not self.may_fill:
                    raise
                self.count("backups without room for the file")
                continue
            try:
                least = ledger.seen(self.work)
                db = self.connect()
                db.backup(copy, pages=self.rng.choice((-1, 50)), sleep=0.01)
                db.close()
                copy.execute("begin")
                self.judged(copy, "a backup", least)
                copy.execute("commit")
                sql.integrity(copy)
                self.count("backups")
            except sqlite3.OperationalError as error:
                self.excuse(error)
            copy.close()
            for ending in ("", "-wal", "-shm", "-journal"):
                if os.path.exists(target + ending):
                    os.remove(target + ending)

    def large(self):
        neighbours.run_large(self)

    def packer(self):
        """Packs databases in place, one by one, and reports: `C n` it exists, `A n` it is a pool, `D n` it may go."""
        acks = ledger.Acknowledgements(os.path.join(self.work, "packed.log"))
        directory = os.path.join(os.path.dirname(self.pool), "packed")
        names = [int(name[1:-3]) for name in os.listdir(directory) if name.endswith(".db")]
        number = max(names, default=0)
        for _ in range(self.rng.randrange(2, 10)):
            if self.stopped():
                return
            number += 1
            path = os.path.join(directory, f"p{number}.db")
            plain = sqlite3.connect(path, isolation_level=None)
            plain.execute("pragma synchronous=extra")
            fill_packed(plain, number)
            plain.close()
            acks.note("C", number, 0)
            command = [self.settings["hardpack"], "pack", "-q", "--in-place", path]
            done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
            if done.returncode:
                raise ledger.Wrong(f"{' '.join(command)}: {done.returncode}, {done.stderr}")
            acks.acknowledge(number, 0)
            self.count("packed in place")
            old = os.path.join(directory, f"p{number - 3}.db")
            if os.path.exists(old):
                acks.note("D", number - 3, 0)
                os.remove(old)


def fill_packed(db, number):
    """Fills database `number` of a packer with content that depends on the number, so that `judge_packed` can tell."""
    db.execute("begin")
    db.execute("create table t(a integer primary key, b text)")
    rng = random.Random(number)
    db.executemany("insert into t values(?, ?)", [(i, ledger.words(rng, 300)) for i in range(300 + number % 700)])
    db.execute("commit")


def judge_packed(db, number):
    rng = random.Random(number)
    expected = [(i, ledger.words(rng, 300)) for i in range(300 + number % 700)]
    if db.execute("select a, b from t order by a").fetchall() != expected:
        raise ledger.Wrong(f"the packed database {number} does not have the content that was packed")
    sql.integrity(db)


def main():
    sql.need_extensions()
    worker = Worker(json.loads(sys.argv[2]))
    try:
        getattr(worker, sys.argv[1])()
    except sqlite3.OperationalError as error:
        worker.excuse(error)


if __name__ == "__main__":
    main()
