"""Part 2: `hardpack pack --in-place`, and `pack` and `unpack` over an existing file, killed at random moments.

The name always leads to the complete database or the complete pool. A killed command leaves a hidden file
with its own name, which the next command reports.
"""

import os
import random
import re
import shutil
import sqlite3
import subprocess
import time

import crew
import ledger
import sql

LEFTOVER = re.compile(r"\.hardpack-[0-9a-f]{16}\.tmp$")
MODES = ("delete", "wal", "persist", "wal, log left")
ROUND_KILLS = 12
# The command watches the replaced file for 20 ms before it removes it.
AFTERMATH_SECONDS = 0.03
POLL_SECONDS = 0.001
QUIET_SECONDS = 3.5
PATIENCE = 4


def make_database(path, rng, mode):
    """Creates a plain database of some MB; `log left` leaves a log beside it, like a killed program."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("pragma synchronous=off")
    db.execute(f"pragma journal_mode={mode.split(',')[0]}")
    db.execute("create table t(a integer primary key, b text)")
    db.execute("begin")
    # Half of it compresses, so packing takes a while, and the lengths of the two files differ.
    for i in range(rng.randrange(200, 1500)):
        db.execute("insert into t values(?, ?)", (i, ledger.words(rng, 2000) + rng.randbytes(500).hex()))
    db.execute("commit")
    if mode.endswith("left"):
        db.execute("insert into t values(-1, 'only in the log')")
        left = {}
        for name in (path, path + "-wal"):
            with open(name, "rb") as file:
                left[name] = file.read()
        db.close()
        for name, data in left.items():
            with open(name, "wb") as file:
                file.write(data)
    else:
        db.close()


def content(path, with_hardpack):
    db = sql.connect(path) if with_hardpack else sqlite3.connect(path, isolation_level=None)
    sql.integrity(db)
    rows = db.execute("select a, b from t order by a").fetchall()
    db.close()
    return rows


def is_pool(path):
    with open(path, "rb") as file:
        return file.read(13) == b"Hardpack pool"


class Killer:
    """Runs commands and kills them; learns the right moments, since machines and their load differ."""

    def __init__(self, rng):
        self.rng, self.takes = rng, 0.5

    def run(self, command, replaced=lambda: False):
        """Kills at any moment, near the end, or just after `replaced` becomes true. Returns whether it finished first."""
        dice, began = self.rng.random(), time.monotonic()
        after = self.takes * (self.rng.random() if dice < 0.4 else self.rng.uniform(0.8, 1.2))
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if dice > 0.75:
            while process.poll() is None and not replaced():
                time.sleep(POLL_SECONDS)
            after = self.rng.uniform(0, AFTERMATH_SECONDS)
        try:
            process.wait(max(0.0, after - (0 if dice > 0.75 else time.monotonic() - began)))
        except subprocess.TimeoutExpired:
            process.kill()
        errors = process.communicate()[1].decode()
        if process.returncode not in (0, -9):
            raise crew.Failed(f"{command} ended with {process.returncode}: {errors}")
        if dice <= 0.75 and process.returncode == 0:
            self.takes = 0.9 * (time.monotonic() - began)
        elif dice <= 0.75 and after > 0.7 * self.takes:
            self.takes *= 1.2
        return process.returncode == 0


def leftovers(directory):
    return [name for name in os.listdir(directory) if LEFTOVER.match(name)]


def judge(context, path, expected, what):
    """Checks that the file under the name is intact and has the expected content."""
    if not os.path.exists(path):
        raise crew.Failed(f"{what}: the name no longer exists")
    if is_pool(path):
        crew.judge_command(context, "check", "-q", path)
        found = content(path, with_hardpack=True)
        context.counts["in place: found the pool, whole"] += 1
    else:
        found = content(path, with_hardpack=False)
        context.counts["in place: found the database, whole"] += 1
    if found != expected:
        raise crew.Failed(f"{what}: {len(found)} rows of {len(expected)}, or other content")
    others = set(os.listdir(os.path.dirname(path)))
    others -= {os.path.basename(path) + ending for ending in ("", "-wal", "-shm", "-journal")}
    strangers = [name for name in others if not LEFTOVER.match(name)]
    if strangers:
        raise crew.Failed(f"{what}: left {strangers}")


def pack_in_place(context, rng, work, origin, expected, killer):
    """Kills command after command on one database, until one finishes."""
    path = os.path.join(work, "data.db")
    for ending in ("", "-wal", "-journal"):
        if os.path.exists(origin + ending):
            shutil.copy(origin + ending, path + ending)
    for _ in range(ROUND_KILLS):
        if is_pool(path):
            break
        level = rng.choice(("lz4", "zstd-3", "zstd-3", "zstd-9"))
        command = [context.hardpack, "pack", "-q", "--in-place", "--compression", level, path]
        # By its inode: opening the file would mark it as in use, and a file in use is not replaced.
        before = os.stat(path).st_ino
        done = killer.run(command, lambda: os.stat(path).st_ino != before)
        if done and not is_pool(path):
            raise crew.Failed("done, but the database is not a pool")
        if not done:
            context.counts["commands killed while packing in place"] += 1
        if rng.random() < 0.2:
            context.drop_caches()
        judge(context, path, expected, f"pack --in-place, {'done' if done else 'killed'}")
    left = leftovers(work)
    context.counts["leftovers of killed commands"] += len(left)
    if left and rng.random() < 0.3:
        # Files that changed a moment ago are skipped, so that no running command is disturbed.
        time.sleep(QUIET_SECONDS)
        done = crew.judge_command(context, "pack", "-q", "--force", origin, os.path.join(work, "copy"))
        if not all(f"/{name}' was left by a command that was killed" in done.stderr for name in left):
            raise crew.Failed(f"{left} are not named: {done.stderr}")
        context.counts["leftovers named by the next command"] += len(left)
    for name in os.listdir(work):
        os.remove(os.path.join(work, name))


def replace(context, rng, work, origin, expected, killer):
    """Checks that `pack --force` and `unpack --force` over a file leave the old file or the new one."""
    source, target = os.path.join(work, "data.db"), os.path.join(work, "out")
    shutil.copy(origin, source)
    crew.judge_command(context, "pack", "-q", source, target)
    for _ in range(ROUND_KILLS // 2):
        if rng.random() < 0.5:
            command = [context.hardpack, "pack", "-q", "--force", source, target]
        else:
            pool = os.path.join(work, "pool.hpk")
            if not os.path.exists(pool):
                crew.judge_command(context, "pack", "-q", source, pool)
            command = [context.hardpack, "unpack", "-q", "--force", pool, target]
        before = os.stat(target).st_ino
        if not killer.run(command, lambda: os.stat(target).st_ino != before):
            context.counts["commands killed while replacing a file"] += 1
        if not os.path.exists(target):
            raise crew.Failed(f"{command}, killed, left nothing under the name")
        if content(target, with_hardpack=is_pool(target)) != expected:
            raise crew.Failed(f"{command}, killed, left another file under the name")
    for name in os.listdir(work):
        os.remove(os.path.join(work, name))


def run(context, seconds):
    rng = context.rng("in-place")
    end = time.monotonic() + seconds
    packing, replacing = Killer(rng), Killer(rng)
    with context.directory("in-place") as directory:
        work, number = os.path.join(directory, "work"), 0
        os.mkdir(work)
        limit = end + PATIENCE * seconds
        while time.monotonic() < (end if context.counts["commands killed while packing in place"] else limit):
            mode = MODES[number % len(MODES)]
            number += 1
            origin = os.path.join(directory, f"origin{number}.db")
            make_database(origin, random.Random(f"{context.seed}/{number}"), mode)
            looked_at = os.path.join(directory, "looked-at.db")
            for ending in ("", "-wal"):
                if os.path.exists(origin + ending):
                    shutil.copy(origin + ending, looked_at + ending)
            expected = content(looked_at, with_hardpack=False)
            if mode.endswith("left") and expected[0][0] != -1:
                raise crew.Failed("the log left behind does not count: the test proves nothing")
            pack_in_place(context, rng, work, origin, expected, packing)
            if not mode.endswith("left") and time.monotonic() < end:
                replace(context, rng, work, origin, expected, replacing)
            for name in os.listdir(directory):
                if name != "work":
                    os.remove(os.path.join(directory, name))
    if not context.counts["commands killed while packing in place"]:
        raise crew.Failed("not one command was killed: nothing was tested")
