"""Part 3: a disk that becomes full and then has space again, on file systems of the kernel.

First with connections that stay open all the time, statement by statement; then with a whole crew that is
killed at random while free space comes and goes.
"""

import glob
import os
import sqlite3
import time

import crew
import disks
import killing
import ledger
import sql

FULL_MESSAGE = "database or disk is full"
FULL_ENDINGS = (FULL_MESSAGE, "no space left on the device that holds the pool")
# From the system, the engine and SQLite.
COMMAND_MESSAGES = ("no space left on", FULL_MESSAGE)
CANNOT = 3
WRITER = 1
# SQLite maps its WAL index. If a file system writes every changed page to a new place, a full disk
# makes the kernel end the process with SIGBUS when it changes the index, with Hardpack or without.
# So no write-ahead log is used there.
NO_ROOM_FOR_A_MAPPING = ("btrfs",)
# Free bytes left by the ballast: from almost nothing to the size of some transactions.
LEAVE = (100 << 10, 3 << 20)
# Each transaction adds this many incompressible bytes.
GROWTH_LEN = 150_000
TRANSACTIONS_MAX = 2000


class Held:
    """Connections that stay open from the first to the last round."""

    def __init__(self, context, rng, disk, work):
        self.context, self.rng, self.disk, self.work = context, rng, disk, work
        self.pool, self.settings = killing.new_pool(
            context, rng, work, disk.path, ("full", "normal", "off"), log_too=disk.kind not in NO_ROOM_FOR_A_MAPPING
        )
        self.seed = self.settings["seed"]
        self.bodies, self.exact = ledger.Bodies(self.seed), ledger.Exact(self.seed)
        self.writer, self.reader = (sql.connect(self.pool, *self.settings["pragmas"]) for _ in range(2))
        self.writer.execute("create table growth(b)")
        self.number = 0

    def transact(self):
        """Runs a transaction with much incompressible data. Returns whether there was space for it."""
        plan = ledger.Plan(self.seed, WRITER, self.number + 1)
        try:
            self.writer.execute("begin immediate")
            ledger.apply(self.writer, plan, self.bodies, WRITER, self.number + 1)
            self.writer.execute("insert into growth values(randomblob(?))", (GROWTH_LEN,))
            self.writer.execute("commit")
        except sqlite3.OperationalError as error:
            self.must_say_full(error)
            if self.writer.in_transaction:
                self.writer.execute("rollback")
            return False
        self.number += 1
        self.context.counts["transactions acknowledged"] += 1
        return True

    def must_say_full(self, error):
        if sql.primary_code(error) != sql.FULL or not str(error).endswith(FULL_ENDINGS):
            raise crew.Failed(f"a full disk is reported as {error} ({sql.primary_code(error)})") from error
        self.context.counts["SQLITE_FULL, as it must be"] += 1

    def fill_until_full(self):
        self.disk.fill(self.rng.randrange(*LEAVE))
        for _ in range(TRANSACTIONS_MAX):
            if not self.transact():
                return
        raise crew.Failed("the disk does not fill up")

    def judge(self, what):
        """Checks that old and new connections see exactly the acknowledged transactions."""
        fresh = sql.connect(self.pool)
        for db in (self.writer, self.reader, fresh):
            db.execute("begin")
            reached = ledger.judge(db, self.bodies)
            ledger.compare(reached, {WRITER: self.number}, {WRITER: self.number}, what)
            db.execute("commit")
        self.exact.judge(self.reader, reached)
        sql.integrity(self.reader)
        fresh.close()
        self.context.counts["states judged whole"] += 1

    def statements(self):
        """Runs maintenance by SQL, which must succeed or be refused with the right message."""
        for statement in ("pragma wal_checkpoint(passive)", "pragma wal_checkpoint(truncate)", "vacuum",
                          "pragma incremental_vacuum(100)", "pragma hardpack_compression='zstd-5'"):
            try:
                self.writer.execute(statement).fetchall()
            except sqlite3.OperationalError as error:
                self.must_say_full(error)
                self.context.counts[f"{statement.split('(')[0].split('=')[0]}: refused, disk full"] += 1
            if self.rng.random() < 0.5:
                self.judge(statement)

    def commands(self):
        """Runs maintenance commands, which must succeed, or exit with 3 and the right message and leave nothing."""
        plain = os.path.join(self.disk.path, "plain.db")
        directory = os.path.dirname(self.pool)
        for arguments in (
            ("fold", "-q", self.pool), ("repack", "-q", "--compression", "zstd-1", "--recordsize", "64K", self.pool),
            ("compact", "-q", self.pool), ("check", "-q", self.pool), ("set", "compression=lz4", self.pool),
            ("pack", "-q", plain), ("pack", "-q", "--in-place", plain), ("unpack", "-q", self.pool, plain + "2"),
        ):
            before = set(os.listdir(directory))
            done = crew.judge_command(self.context, *arguments, codes=(0, CANNOT))
            if done.returncode:
                words = done.stderr
                if not words.startswith("hardpack: cannot "):
                    raise crew.Failed(f"hardpack {arguments}: {words}")
                if not any(message in words.lower() for message in COMMAND_MESSAGES):
                    raise crew.Failed(f"hardpack {arguments} does not say that the disk is full: {words}")
                if "\nhint: nothing is lost: make room" not in words:
                    raise crew.Failed(f"hardpack {arguments} does not say what to do: {words}")
                self.context.counts[f"hardpack {arguments[0]}: refused, disk full"] += 1
                left = set(os.listdir(directory)) - before - {"pool.hpk-wal", "pool.hpk-shm", "pool.hpk-journal"}
                if left:
                    raise crew.Failed(f"hardpack {arguments} failed and left {left}")
            self.judge(f"hardpack {arguments[0]}")
            with open(plain, "rb") as file:
                if file.read(8) == b"Hardpack":
                    crew.judge_command(self.context, "unpack", "-q", "--force", plain, plain + "3", codes=(0, CANNOT))
            for path in (plain + ".hpk", plain + "2", plain + "3"):
                if os.path.exists(path):
                    os.remove(path)

    def round(self, what):
        # As large as the pool: once the disk is full, there is no space to pack it.
        self.disk.make_room()
        plain = os.path.join(self.disk.path, "plain.db")
        if not os.path.exists(plain):
            db = sqlite3.connect(plain, isolation_level=None)
            db.execute("create table t(b)")
            db.executemany("insert into t values(?)", [(self.rng.randbytes(100_000),) for _ in range(60)])
            db.close()
        self.fill_until_full()
        self.judge(f"{what}, full")
        self.statements()
        for _ in range(3):
            self.transact()
        self.commands()
        self.judge(f"{what}, full, after all commands")
        self.disk.make_room()
        # The same connections go on.
        if not self.transact():
            raise crew.Failed(f"{what}: there is room again, and a transaction is refused")
        self.writer.execute("pragma wal_checkpoint(truncate)").fetchall()
        self.writer.execute("delete from growth")
        self.writer.execute("vacuum")
        if not self.transact():
            raise crew.Failed(f"{what}: there is room again, and a transaction is refused")
        self.judge(f"{what}, room again")
        crew.judge_command(self.context, "check", "-q", self.pool)
        os.remove(plain)
        self.context.counts["times full, then room again"] += 1

    def abandon(self):
        self.writer.close()
        self.reader.close()

    def close(self):
        self.abandon()
        if glob.glob(self.pool + "-journal"):
            raise crew.Failed("a journal is left behind")


def held(context, rng, disk, seconds):
    end = time.monotonic() + seconds
    with context.directory("full") as work:
        while True:
            connections = Held(context, rng, disk, work)
            try:
                for number in range(2):
                    connections.round(f"{disk.kind}, round {number + 1}")
                connections.close()
            finally:
                connections.abandon()
            for path in glob.glob(connections.pool + "*"):
                os.remove(path)
            if time.monotonic() > end:
                return


def crowd(context, rng, disk, seconds):
    """Runs the crew of part 1 while space comes and goes."""
    with context.directory("crowd") as work:
        pool, settings = killing.new_pool(
            context, rng, work, disk.path, ("off", "normal", "full"), log_too=disk.kind not in NO_ROOM_FOR_A_MAPPING
        )
        settings.update(may_fill=True, copies=disk.path)
        team = killing.staff(context, rng, work, settings, writers=3)

        def space():
            dice = rng.random()
            if dice < 0.15:
                disk.fill(rng.randrange(*LEAVE))
                context.counts["times filled under a crew"] += 1
            elif dice < 0.3:
                disk.make_room()

        try:
            killing.torment(context, rng, team, seconds, space)
            team.kill_all()
        finally:
            team.abandon()
        disk.make_room()
        for path in glob.glob(os.path.join(disk.path, "backup.*")):
            os.remove(path)
        killing.gather_counts(context, work, {})
        reached = crew.judge_pool(context, pool, settings["seed"], ledger.seen(work), ledger.begun(work),
                                  ledger.Exact(settings["seed"]), f"{disk.kind}, crew")
        context.say(f"    {disk.kind}: {sum(reached.values())} transactions, all there")


def run(context, seconds):
    rng = context.rng("full")
    usable = disks.kinds(context, "a full disk")
    for kind in usable:
        context.say(f"  {kind}:")
        with context.directory("disk") as directory:
            image = os.path.join(directory, "image")
            with disks.Disk.create(image, kind, os.path.join(directory, "mounted")) as disk:
                held(context, rng, disk, seconds / len(usable) * 0.6)
            with disks.Disk.create(image, kind, os.path.join(directory, "mounted")) as disk:
                crowd(context, rng, disk, seconds / len(usable) * 0.4)
