"""Part 1: writers, readers and maintenance in many processes on one pool, killed at random moments."""

import os
import shutil
import sqlite3
import time

import crew
import ledger
import neighbours
import sql

# A new pool is used after this many rounds on the old one.
ROUNDS_PER_POOL = 4
ROUND_SECONDS = (6.0, 14.0)
EVENT_SECONDS = (0.01, 0.35)
KILL_SHARE = 0.5
IN_USE, CANNOT = 5, 3
PATIENCE = 4


def new_pool(context, rng, work, directory, syncs, without_log=(), log_too=True):
    """Creates an empty ledger with random settings. `synchronous` comes from `syncs`, also from `without_log` if there
    is no write-ahead log; `log_too` allows one. Returns (path, settings for workers)."""
    pool = os.path.join(directory, "pool.hpk")
    shape = {
        "page_size": rng.choice((512, 1024, 4096, 4096, 4096, 16384, 65536)),
        "auto_vacuum": rng.choice(("none", "incremental", "full")),
        "hardpack_compression": "'" + rng.choice(("zstd-3", "lz4", "auto", "off")) + "'",
        "hardpack_recordsize": "'" + rng.choice(("16K", "128K", "128K", "1M")) + "'",
        "hardpack_background_cpu": "'" + rng.choice(("25%", "100%")) + "'",
        "hardpack_concurrency": "'" + rng.choice(("sqlite", "snapshot")) + "'",
        "journal_mode": rng.choice(("wal", "delete", "wal", "truncate", "persist", "memory")),
    }
    if context.journal_mode:
        shape["journal_mode"] = context.journal_mode
    if not log_too and shape["journal_mode"] == "wal":
        shape["journal_mode"] = "delete"
    if shape["journal_mode"] != "wal":
        syncs += without_log
    pragmas = [
        f"synchronous={rng.choice(syncs)}",
        f"cache_size={rng.choice((5, 50, -2000))}",
        f"wal_autocheckpoint={rng.choice((0, 10, 200, 1000))}",
    ]
    if shape["journal_mode"] != "wal":
        pragmas.append(f"journal_mode={shape['journal_mode']}")  # of each connection
    seed = f"{context.seed}/{rng.randrange(10**9)}"
    db = sql.connect(pool, *[f"{name}={value}" for name, value in shape.items()])
    ledger.create(db, seed)
    db.close()
    context.say(f"    new pool: {', '.join(f'{n}={v}' for n, v in shape.items())}; {', '.join(pragmas)}")
    return pool, {
        "pool": pool, "seed": seed, "work": work, "pragmas": pragmas, "may_fill": False,
        "library": context.library, "hardpack": context.hardpack, "copies": work,
        "savepoints": may_use_savepoints(shape["journal_mode"]),
    }


def may_use_savepoints(mode):
    """Whether the workers' SQLite keeps changes after a savepoint that was rolled back."""
    return mode != "wal" or sqlite3.sqlite_version_info >= sql.SAVEPOINTS_IN_WAL_SINCE


def staff(context, rng, work, settings, writers, with_vacuum=True):
    """Starts the usual crew on a pool: Python's sqlite3, the stock shell, and the command line."""
    team = crew.Crew(rng, work, context.counts)
    pool, life = settings["pool"], [0]

    def role(name, **more):
        def command():
            life[0] += 1
            return crew.worker(name, {**settings, **more, "life": f"{settings['seed']}/{name}/{life[0]}"})

        return command

    def hardpack(*variants):
        return lambda: [context.hardpack, *rng.choice(variants), pool]

    def shell():
        statements = rng.choice((
            "pragma integrity_check; select case when sum(balance) <> %d then 1/0 || abs(-9223372036854775808) end "
            "from account;" % (ledger.ACCOUNT_COUNT * ledger.OPENING_BALANCE),
            "pragma wal_checkpoint; select count(*) from log;",
        ))
        load = [] if sql.is_control() else ["-cmd", f".load {context.library}"]
        return ["sqlite3", "-bail", ":memory:", *load, "-cmd", f".open '{sql.uri(pool)}'", "-cmd", ".timeout 20000",
                statements]

    if sql.is_control():
        for index in range(3):
            team.add(crew.Slot(f"checkpointer{index}", role("checkpointer")))
    # The messages of a full disk, where the disk may be full.
    full = ("no space left on", "disk is full") if settings["may_fill"] else ()
    for writer in range(1, writers + 1):
        team.add(crew.Slot(f"writer{writer}", role("writer", writer=writer)))
    for reader in range(2):
        team.add(crew.Slot(f"reader{reader}", role("reader")))
    team.add(crew.Slot("checkpointer", role("checkpointer")))
    team.add(crew.Slot("properties", role("properties"), rest=(0.5, 3.0)))
    if with_vacuum:
        team.add(crew.Slot("vacuum", role("vacuum"), rest=(0.5, 3.0)))
    team.add(crew.Slot("backup", role("backup"), rest=(0.5, 3.0)))
    if shutil.which("sqlite3"):
        team.add(crew.Slot("shell", shell, codes=(0, 5), rest=(0.5, 2.0)))
    if sql.is_control():
        return team
    codes = (0, IN_USE, CANNOT) if full else (0, IN_USE)
    for name, rest, variants in (
        ("fold", (0.2, 2.0), (("fold", "-q"), ("fold", "-q", "--due"))),
        ("repack", (0.5, 3.0), [
            ("repack", "-q", "--compression", level, "--recordsize", size)
            for level in ("zstd-1", "zstd-6", "lz4", "zstd-12") for size in ("16K", "64K", "256K")
        ] + [("repack", "-q"), ("repack", "-q", "--restart")]),
        ("compact", (0.2, 2.0), (("compact", "-q"),)),
        ("check", (0.5, 3.0), (("check", "-q"), ("check", "-q", "--no-integrity-check"))),
    ):
        team.add(crew.Slot(name, hardpack(*variants), codes=codes, rest=rest, messages=full))
    return team


def torment(context, rng, team, seconds, each_event=None, kill_share=KILL_SHARE):
    """Kills and restarts for this long. `each_event` may do more."""
    pace, end = context.pace(), time.monotonic() + seconds
    while time.monotonic() < end:
        team.tend()
        time.sleep(rng.uniform(*EVENT_SECONDS) * pace)
        if each_event:
            each_event()
        if rng.random() < kill_share:
            before = team.kills
            team.kill_some()
            context.counts["processes killed"] += team.kills - before


def end_round(context, rng, team):
    """Stops all workers: mostly by SIGKILL, sometimes cleanly."""
    if rng.random() < 0.75:
        before = team.kills
        team.kill_all()
        context.counts["processes killed"] += team.kills - before
        context.counts["times all were killed for a check"] += 1
    else:
        team.finish()


def gather_counts(context, work, before):
    """Adds the workers' counts, and the transactions acknowledged since `before`."""
    path = os.path.join(work, "counts")
    if os.path.exists(path):
        with open(path) as file:
            for line in file:
                name, _, number = line.rstrip("\n").rpartition(" ")
                if name and number.isdigit():
                    context.counts[name] += int(number)
        os.remove(path)
    now = ledger.acknowledged(work)
    context.counts["transactions acknowledged"] += sum(n - before.get(w, 0) for w, n in now.items())
    return now


def change_journal(rng, settings):
    """Switches to another journal mode between rounds."""
    mode = rng.choice(("wal", "delete", "truncate"))
    settings["pragmas"] = [p for p in settings["pragmas"] if not p.startswith("journal_mode")]
    db = sql.connect(settings["pool"])
    found = db.execute(f"pragma journal_mode={mode}").fetchone()[0]
    db.close()
    settings["savepoints"] = may_use_savepoints(mode)
    if found != mode:
        raise crew.Failed(f"journal_mode={mode} was refused: {found}")
    if mode != "wal":
        settings["pragmas"].append(f"journal_mode={mode}")


def judge_unpacked(context, settings, reached, exact, work):
    """Checks that an unpacked pool has the same content for SQLite without Hardpack."""
    if sql.is_control():
        return
    plain = os.path.join(work, "unpacked.db")
    crew.judge_command(context, "unpack", "-q", "--force", settings["pool"], plain)
    db = sqlite3.connect(plain, isolation_level=None)
    if ledger.judge(db, ledger.Bodies(settings["seed"])) != reached:
        raise ledger.Wrong("the unpacked database differs")
    exact.judge(db, reached)
    sql.integrity(db)
    db.close()
    os.remove(plain)
    context.counts["unpacked and judged"] += 1


def run(context, seconds):
    rng = context.rng("killing")
    end, rounds = time.monotonic() + seconds, 0
    # A busy machine gets more time, up to a limit, so that something is tested.
    limit = end + PATIENCE * seconds
    while time.monotonic() < (end if context.counts["transactions acknowledged"] else limit):
        with context.directory("killing") as work:
            _, settings = new_pool(context, rng, work, work, ("off", "normal", "full"))
            exact, acks = ledger.Exact(settings["seed"]), {}
            trees = [] if sql.is_control() else neighbours.make_trees(work, rng)
            for _ in range(ROUNDS_PER_POOL):
                if time.monotonic() >= end and context.counts["transactions acknowledged"]:
                    break
                team = staff(context, rng, work, settings, writers=rng.randrange(2, 5))
                if trees:
                    neighbours.hire(context, rng, team, settings, trees)
                try:
                    wanted = rng.uniform(*ROUND_SECONDS) * min(context.pace(), 4.0)
                    torment(context, rng, team, min(wanted, max(5.0, end - time.monotonic())))
                    end_round(context, rng, team)
                finally:
                    team.abandon()
                rounds += 1
                context.counts["rounds of killing"] += 1
                if rng.random() < 0.35:
                    context.drop_caches()
                acks = gather_counts(context, work, acks)
                what = f"round {rounds}"
                reached = crew.judge_pool(
                    context, settings["pool"], settings["seed"], ledger.seen(work), ledger.begun(work), exact, what
                )
                if trees:
                    neighbours.judge(context, settings, trees, work)
                if rng.random() < 0.5:
                    judge_unpacked(context, settings, reached, exact, work)
                context.say(f"    {what}: {sum(reached.values())} transactions, all there")
                if rng.random() < 0.6 and not context.journal_mode:
                    change_journal(rng, settings)
    if not context.counts["transactions acknowledged"]:
        raise crew.Failed("not one transaction was acknowledged: nothing was tested")
