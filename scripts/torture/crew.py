"""Processes that are started, killed and restarted.

Only processes that this crew started are killed, each by its process id.
"""

import json
import os
import subprocess
import sys
import time

import sql

WORKERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "workers.py")
# Longer than any worker needs to end by itself, on any machine.
PATIENCE_SECONDS = 300


class Failed(Exception):
    """A check of the torture run failed."""


class Slot:
    """A place for one process at a time: what it runs, and how it may end."""

    def __init__(self, name, command, codes=(0,), rest=(0.0, 0.3), messages=()):
        self.name, self.command, self.codes, self.rest, self.messages = name, command, codes, rest, messages
        self.process, self.start_at, self.errors = None, 0.0, None


class Crew:
    def __init__(self, rng, work, counts):
        self.rng, self.work, self.counts, self.slots, self.kills = rng, work, counts, [], 0

    def add(self, slot):
        self.slots.append(slot)

    def start(self, slot):
        slot.errors = os.path.join(self.work, f"errors.{slot.name}")
        with open(slot.errors, "w") as errors:
            slot.process = subprocess.Popen(
                slot.command(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors
            )

    def ended(self, slot, killed):
        """Checks how a process ended."""
        code = slot.process.wait(PATIENCE_SECONDS)
        slot.process = None
        slot.start_at = time.monotonic() + self.rng.uniform(*slot.rest)
        with open(slot.errors) as errors:
            text = errors.read()
        if code == 0 or (killed and code == -9):
            return
        if code in slot.codes and (code != 3 or any(message in text.lower() for message in slot.messages)):
            self.counts[f"{slot.name.rstrip('0123456789')}: exit {code}"] += 1
            return
        raise Failed(f"{slot.name} ended with {code}:\n{text}")

    def tend(self):
        """Notices processes that have ended, and starts those that are due."""
        for slot in self.slots:
            if slot.process and slot.process.poll() is not None:
                self.ended(slot, killed=False)
            if not slot.process and time.monotonic() >= slot.start_at:
                self.start(slot)

    def running(self):
        return [slot for slot in self.slots if slot.process]

    def kill(self, slots):
        """Sends SIGKILL to all of them, and only then waits."""
        for slot in slots:
            slot.process.kill()
        for slot in slots:
            self.kills += 1
            self.ended(slot, killed=True)

    def kill_some(self):
        """Kills one, a group, or all at once."""
        running = self.running()
        if not running:
            return
        dice = self.rng.random()
        if dice < 0.6:
            self.kill([self.rng.choice(running)])
        elif dice < 0.93:
            self.kill(self.rng.sample(running, self.rng.randrange(1, len(running) + 1)))
        else:
            self.kill(running)

    def kill_all(self):
        self.kill(self.running())

    def finish(self):
        """Lets all of them end by themselves."""
        stop = os.path.join(self.work, "stop")
        open(stop, "w").close()
        for slot in self.running():
            self.ended(slot, killed=False)
        os.remove(stop)

    def abandon(self):
        """Leaves no process running, whatever has gone wrong."""
        for slot in self.running():
            slot.process.kill()
            slot.process.wait()


def worker(role, settings):
    return [sys.executable, WORKERS, role, json.dumps(settings)]


def judge_command(context, *arguments, codes=(0,)):
    """Runs `hardpack` to its end; an unexpected exit status is a failure."""
    if sql.is_control():
        return None
    done = subprocess.run([context.hardpack, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode not in codes:
        raise Failed(f"hardpack {' '.join(arguments)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def judge_pool(context, pool, seed, least, most, exact, what):
    """Checks everything about a pool that nobody uses. Returns the progress of each writer."""
    import ledger

    judge_command(context, "check", "-q", pool)
    db = sql.connect(pool)
    db.execute("begin")
    reached = ledger.judge(db, ledger.Bodies(seed))
    ledger.compare(reached, least, most, what)
    exact.judge(db, reached)
    db.execute("commit")
    sql.integrity(db)
    db.close()
    judge_command(context, "check", "-q", pool)
    context.counts["states judged whole"] += 1
    return reached
