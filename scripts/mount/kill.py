#!/usr/bin/env python3
"""Kills the server of a mount in the middle of work, mounts again, and compares what was synced.

usage: kill.py --cli PATH --fsx PATH --work DIR [--rounds N] [--seed N] [--only NAMES]

In each round, these work on one mount at once: fsx, fio with verification, git (commits and gc), tar, and writers of
SQLite in WAL mode and in a rollback mode. Then the server gets SIGKILL, `hardpack mount --replace` takes its place, and:

* `hardpack check` finds nothing wrong;
* what was synced is there: trees, commits of git, rows of SQLite;
* what was not synced is absent, or the beginning of what was written;
* every tool can go on with its files.
"""

import argparse
import hashlib
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SERVER_XATTR = "user.hardpack.server"
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
WORK_SECONDS = (1.0, 5.0)
# The longest time until everybody has done something.
BEGIN_SECONDS = 120


class Failed(Exception):
    pass


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode:
        raise Failed(f"{' '.join(map(str, command))}: {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


def sync(path):
    folder = os.open(path, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def start(command, log, **options):
    """Starts a command whose output goes to a file, in a session of its own."""
    with open(log, "wb") as out:
        return subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, **options)


class Fsx:
    """Operations on one file at random. It ends with the server, and must run on the same file afterwards."""

    def __init__(self, context):
        self.context, self.path = context, os.path.join(context.point, "fsx")

    def command(self, *more):
        seed = str(self.context.rng.randrange(1 << 30))
        config = os.path.join(self.context.work, "fsx.toml")
        return [self.context.fsx, "-q", "-S", seed, "-P", self.context.work, "-f", config, *more, self.path]

    def start(self):
        with open(os.path.join(self.context.work, "fsx.toml"), "w") as file:
            file.write("[weights]\nfsync = 5\npunch_hole = 5\ntruncate = 5\ncopy_file_range = 2\nclose_open = 2\n")
        return start(self.command(), self.context.log("fsx"))

    def has_begun(self):
        return os.path.exists(self.path)

    def verify(self):
        if os.path.exists(self.path):
            with open(self.path, "rb") as file:
                while file.read(1 << 20):
                    pass
            os.remove(self.path)
        run(*self.command("-N", "300"))
        os.remove(self.path)


class Fio:
    """Blocks with checksums, each synced. Afterwards each block of the file has a right checksum, or is a hole."""

    def __init__(self, context):
        self.context, self.path = context, os.path.join(context.point, "fio")

    def command(self, *more):
        return ["fio", "--name=kill", f"--filename={self.path}", "--size=24M", "--bs=16k", "--rw=write", "--verify=crc32c",
                "--fallocate=none", f"--aux-path={self.context.work}", "--minimal", *more]

    def start(self):
        return start(self.command("--fsync=8", "--do_verify=0", "--loops=1000"), self.context.log("fio"),
                     cwd=self.context.work)

    def has_begun(self):
        return os.path.exists(self.path) and os.path.getsize(self.path) > 0

    def verify(self):
        if os.path.exists(self.path):
            size = os.path.getsize(self.path) // 16384 * 16384
            if size:
                run(*self.command(f"--size={size}", "--verify_only"), cwd=self.context.work)
            os.remove(self.path)
        run(*self.command("--size=2M"), cwd=self.context.work)
        os.remove(self.path)


class Git:
    """Commits with syncs, and `git gc`. Each commit that was reported is there, and the repository is whole."""

    LOOP = """
    git init -q -b main . && git config core.fsync all && git config core.fsyncMethod fsync
    git config user.email a@b && git config user.name a && git config gc.auto 0
    n=0
    while n=$((n + 1)); do
        mkdir -p "d$((n % 7))" && head -c $((n * 37 % 9000 + 10)) /dev/urandom >"d$((n % 7))/$((n % 50))" || exit
        git add -A && git commit -qm "number $n" || exit
        git rev-parse HEAD >>"$ACKNOWLEDGED" || exit
        [ $((n % 20)) != 0 ] || git gc -q || exit
    done
    """

    def __init__(self, context):
        self.context, self.path = context, os.path.join(context.point, "git")
        self.acknowledged = os.path.join(context.work, "commits")

    def start(self):
        os.mkdir(self.path)
        sync(self.context.point)
        return start(["bash", "-c", self.LOOP], self.context.log("git"), cwd=self.path,
                     env=dict(os.environ, ACKNOWLEDGED=self.acknowledged))

    def has_begun(self):
        return os.path.exists(self.acknowledged)

    def verify(self):
        with open(self.acknowledged) as file:
            commits = file.read().split()
        self.context.count("commits of git", len(commits))
        git = ["git", "-c", "safe.directory=*", "-C", self.path]
        for name in ("index.lock", "HEAD.lock", "gc.pid", "gc.pid.lock", "refs/heads/main.lock", "packed-refs.lock"):
            if os.path.exists(os.path.join(self.path, ".git", name)):
                os.remove(os.path.join(self.path, ".git", name))
        known = run(*git, "rev-list", "HEAD").split()
        lost = [commit for commit in commits if commit not in known]
        if lost:
            raise Failed(f"git has lost {len(lost)} of {len(commits)} commits, such as {lost[0]}")
        run(*git, "fsck", "--no-dangling")
        run(*git, "gc", "-q")
        shutil.rmtree(self.path)
        os.remove(self.acknowledged)


class Tar:
    """A tree that was extracted and synced is as it was; of the next one, each file is whole, or its beginning."""

    def __init__(self, context):
        self.context = context
        self.synced, self.next = (os.path.join(context.point, name) for name in ("tree", "next"))
        self.archive, self.source = os.path.join(context.work, "tree.tar"), os.path.join(context.work, "tree")
        if not os.path.exists(self.archive):
            shutil.copytree(os.path.join(ROOT, "crates"), self.source, symlinks=True)
            for number in range(20):
                with open(os.path.join(self.source, f"large{number}"), "wb") as file:
                    file.write(context.rng.randbytes(300_000))
            run("tar", "-C", self.source, "-cf", self.archive, ".")

    def start(self):
        for path in (self.synced, self.next):
            os.mkdir(path)
        run("tar", "-C", self.synced, "-xf", self.archive)
        sync(self.context.point)
        loop = 'while tar -C "$1" -xf "$2" --unlink-first; do :; done'
        return start(["bash", "-c", loop, "-", self.next, self.archive], self.context.log("tar"))

    def has_begun(self):
        return bool(os.listdir(self.next))

    def verify(self):
        run("diff", "-r", "--no-dereference", self.source, self.synced)
        for folder, _, names in os.walk(self.next):
            for name in names:
                path = os.path.join(folder, name)
                original = os.path.join(self.source, os.path.relpath(path, self.next))
                if os.path.islink(path):
                    continue
                with open(path, "rb") as found, open(original, "rb") as wanted:
                    if not wanted.read().startswith(found.read()):
                        raise Failed(f"{path} has bytes that were never written")
        for path in (self.synced, self.next):
            shutil.rmtree(path)


class Sqlite:
    """Rows that were committed with `synchronous=FULL` are there, and no transaction in part."""

    WRITER = """
import hashlib, sqlite3, sys
path, mode, log = sys.argv[1:]
db = sqlite3.connect(path, isolation_level=None, timeout=60)
db.execute(f"PRAGMA journal_mode={mode}")
db.execute("PRAGMA synchronous=FULL" if mode == "wal" else "PRAGMA synchronous=EXTRA")
db.execute("CREATE TABLE IF NOT EXISTS t(n INTEGER PRIMARY KEY, part, body)")
n = 0
with open(log, "w") as file:
    while n := n + 1:
        db.execute("BEGIN IMMEDIATE")
        for part in range(3):
            body = hashlib.sha256(b"%d" % n).hexdigest() * (1 + n % 40)
            db.execute("INSERT INTO t VALUES(?, ?, ?)", (3 * n + part, part, body))
        if n > 50:
            db.execute("DELETE FROM t WHERE n / 3 = ?", (n - 50,))
        db.execute("COMMIT")
        file.write(f"{n}\\n")
        file.flush()
"""

    def __init__(self, context, mode):
        self.context, self.mode = context, mode
        self.path = os.path.join(context.point, f"{mode}.db")
        self.acknowledged = os.path.join(context.work, f"rows-{mode}")

    def start(self):
        command = [sys.executable, "-c", self.WRITER, self.path, self.mode, self.acknowledged]
        return start(command, self.context.log("sqlite-" + self.mode))

    def has_begun(self):
        return os.path.exists(self.acknowledged) and os.path.getsize(self.acknowledged) > 0

    def verify(self):
        with open(self.acknowledged) as file:
            last = int(file.read().split("\n")[-2])
        db = sqlite3.connect(self.path, isolation_level=None)
        found = db.execute("PRAGMA integrity_check").fetchall()
        if found != [("ok",)]:
            raise Failed(f"{self.mode}: {found[:3]}")
        (newest,) = db.execute("SELECT max(n / 3) FROM t").fetchone()
        if newest not in (last, last + 1):
            raise Failed(f"{self.mode}: transaction {last} was acknowledged, {newest} is the newest")
        rows = db.execute("SELECT n / 3, count(*), min(body), max(body) FROM t GROUP BY n / 3").fetchall()
        for number, count, least, most in rows:
            if count != 3 or least != most or least != hashlib.sha256(b"%d" % number).hexdigest() * (1 + number % 40):
                raise Failed(f"{self.mode}: transaction {number} is there in part")
        if [row[0] for row in rows] != list(range(max(1, newest - 49), newest + 1)):
            raise Failed(f"{self.mode}: other transactions than the last ones are there")
        self.context.count("transactions of SQLite", last)
        db.close()
        for ending in ("", "-wal", "-shm", "-journal"):
            if os.path.exists(self.path + ending):
                os.remove(self.path + ending)


KINDS = {
    "fsx": Fsx, "fio": Fio, "git": Git, "tar": Tar,
    "wal": lambda context: Sqlite(context, "wal"), "delete": lambda context: Sqlite(context, "delete"),
}


class Context:
    def __init__(self, args):
        self.cli, self.fsx, self.work = args.cli, args.fsx, os.path.join(args.work, "kill")
        self.rng, self.counts = random.Random(args.seed), {}
        os.makedirs(self.work, exist_ok=True)
        self.pool, self.point = (os.path.join(self.work, name) for name in ("p.hpk", "mnt"))
        os.makedirs(self.point, exist_ok=True)

    def log(self, name):
        return os.path.join(self.work, name + ".log")

    def count(self, what, number):
        self.counts[what] = self.counts.get(what, 0) + number

    def mount(self, *options):
        run(self.cli, "mount", *options, self.pool, self.point)

    def kill(self):
        server = int(os.getxattr(self.point, SERVER_XATTR))
        end = os.pidfd_open(server)
        os.kill(server, signal.SIGKILL)
        import select
        select.select([end], [], [])
        os.close(end)

    def round(self, names):
        self.mount()
        kinds = [KINDS[name](self) for name in names]
        running = [(kind, kind.start()) for kind in kinds]
        try:
            until = time.monotonic() + BEGIN_SECONDS
            while not all(kind.has_begun() for kind in kinds):
                if time.monotonic() > until:
                    raise Failed("not everybody has begun: see the logs")
                time.sleep(0.05)
            time.sleep(self.rng.uniform(*WORK_SECONDS))
            for kind, process in running:
                if process.poll() is not None:
                    raise Failed(f"{type(kind).__name__} has ended before the server did: see its log")
            self.kill()
        finally:
            for _, process in running:
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    pass
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                process.wait()
        # A journal may be half applied: SQLite does that when it opens the database on a mount.
        run(self.cli, "check", "-q", "--no-integrity-check", self.pool)
        self.mount("--replace")
        for kind in kinds:
            kind.verify()
        run(self.cli, "umount", self.point)
        run(self.cli, "check", "-q", self.pool)
        self.count("kills", 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cli", required=True)
    parser.add_argument("--fsx", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--only", default=",".join(KINDS))
    args = parser.parse_args()
    context = Context(args)
    run(args.cli, "create", context.pool)
    try:
        for _ in range(args.rounds):
            context.round(args.only.split(","))
    except Failed as failure:
        print(f"kill: seed {args.seed}: {failure}", file=sys.stderr)
        return 1
    finally:
        subprocess.run(["umount", "-l", context.point], **QUIET)
    print("kill: " + ", ".join(f"{number} {what}" for what, number in context.counts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
