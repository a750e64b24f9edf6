"""Part 4: the power fails under the kernel's own file systems.

    a file system under test (ext4, xfs, btrfs)     where the crew of part 1 works
      loop device, direct I/O                       the image has everything that the device has
        image file on xfs                           FICLONE copies it at once
          loop device

A copy of the image is what a machine finds after losing its power at that moment: the content of the page cache is
gone. If the device completed no flush between two copies, everything written in between was only in the disk's
volatile cache: a third image gets a random part of it, as from a disk that lost and reordered it. Each image is
mounted (the journal is replayed), and everything acknowledged as durable before the copy began must be there.
"""

import fcntl
import glob
import os
import sqlite3
import time

import crew
import disks
import killing
import ledger
import sql
import workers

OUTER_LEN = 3 << 30
SNAPSHOTS_MAX = 8
WORK_SECONDS = (8.0, 16.0)
# The longest time between the two copies that should have no flush between them.
APART_SECONDS_MAX = 0.004
# The number of pairs tried to get such a pair; otherwise an image of one moment is taken.
PAIRS_MAX = 40
COPY_CHUNK_LEN = 1 << 20
# Makes a file share all blocks of another at once (linux/fs.h).
FICLONE = 0x40049409
# The lengths that a disk keeps or loses as a whole.
SECTOR_LENS = (512, 4096)


class Snapshot:
    """An image of one moment, with the transactions acknowledged and begun by then."""

    def __init__(self, image, least, most, packed_before, packed_after, what):
        self.image, self.least, self.most, self.what = image, least, most, what
        self.packed_before, self.packed_after = packed_before, packed_after


def packed_log(work):
    """Returns the packer's reports about each database: {number: letters}."""
    path, result = os.path.join(work, "packed.log"), {}
    if os.path.exists(path):
        with open(path) as file:
            for line in file:
                if line.endswith("\n"):
                    kind, number, _ = line.split()
                    result[int(number)] = result.get(int(number), "") + kind
    return result


def copy(source, target):
    with open(source, "rb") as old, open(target, "wb") as new:
        fcntl.ioctl(new.fileno(), FICLONE, old.fileno())


def mix(rng, before, after, target):
    """Copies `after` without some of its changes since `before`. Returns the numbers of lost and changed sectors."""
    copy(after, target)
    sector_len, share = rng.choice(SECTOR_LENS), rng.choice((0.1, 0.5, 0.9))
    lost = changed = 0
    with open(before, "rb") as old, open(after, "rb") as new, open(target, "r+b") as mixed:
        length, offset = os.path.getsize(after), 0
        while offset < length:
            try:  # holes of both need not be read
                offset = min(os.lseek(f.fileno(), offset, os.SEEK_DATA) for f in (old, new) if has_data(f, offset))
            except ValueError:
                break
            offset -= offset % COPY_CHUNK_LEN
            a, b = (os.pread(f.fileno(), COPY_CHUNK_LEN, offset) for f in (old, new))
            if a != b:
                for at in range(0, len(b), sector_len):
                    if a[at:at + sector_len] != b[at:at + sector_len]:
                        changed += 1
                        if rng.random() < share:
                            lost += 1
                            os.pwrite(mixed.fileno(), a[at:at + sector_len], offset + at)
            offset += COPY_CHUNK_LEN
    return lost, changed


def has_data(file, offset):
    try:
        os.lseek(file.fileno(), offset, os.SEEK_DATA)
        return True
    except OSError:
        return False


class Machine:
    """A file system under test with a crew on it, whose power fails repeatedly."""

    def __init__(self, context, rng, kind, outer, work):
        self.context, self.rng, self.kind, self.outer, self.work = context, rng, kind, outer, work
        self.image = os.path.join(outer.path, "image")
        self.mounted = os.path.join(work, "mounted")
        self.snapshots = []

    def take(self, disk, durable):
        """Copies the image at once, while everybody goes on."""
        name = f"{self.image}.{len(self.snapshots)}"
        what = f"{self.kind}, power cut {len(self.snapshots) + 1}"
        for _ in range(PAIRS_MAX):
            least, packed = ledger.acknowledged(self.work) if durable else {}, packed_log(self.work)
            flushes, written = disk.flushed_and_written()
            copy(self.image, name)
            # Everything acknowledged before this copy was flushed by then; a later copy may lose
            # the rest.
            time.sleep(self.rng.uniform(0, APART_SECONDS_MAX))
            copy(self.image, name + ".later")
            now = disk.flushed_and_written()
            if now[0] == flushes and now[1] > written:
                lost, changed = mix(self.rng, name, name + ".later", name + ".mixed")
                if changed:
                    os.replace(name + ".mixed", name)
                    what += f", {lost} of {changed} unflushed sectors lost"
                    self.context.counts["power cuts with writes in the disk's cache lost"] += 1
                    self.context.counts["sectors in the disk's cache lost"] += lost
                    break
            if self.rng.random() < 1 / PAIRS_MAX:
                break
        for ending in (".later", ".mixed"):
            if os.path.exists(name + ending):
                os.remove(name + ending)
        most, after = ledger.begun(self.work), packed_log(self.work)
        self.snapshots.append(Snapshot(name, least, most, packed, after, what))

    def work_and_cut(self):
        """Lets the crew work, kills some of it, and takes images."""
        with disks.Disk.create(self.image, self.kind, self.mounted, direct=True) as disk:
            if not disk.is_direct():
                raise crew.Failed("the loop device does not do direct I/O: an image would not be of one moment")
            os.mkdir(os.path.join(self.mounted, "packed"))
            # Not "off" in WAL mode: SQLite promises nothing for a log that is not synced before it
            # restarts.
            self.pool, self.settings = killing.new_pool(
                self.context, self.rng, self.work, self.mounted, ("full", "full", "full", "extra", "normal"), ("off",)
            )
            pragmas = self.settings["pragmas"]
            durable = "synchronous=full" in pragmas or "synchronous=extra" in pragmas
            team = killing.staff(self.context, self.rng, self.work, self.settings, writers=3)
            team.add(crew.Slot("packer", lambda: crew.worker("packer", {**self.settings, "life": 0})))

            def cut():
                if len(self.snapshots) < SNAPSHOTS_MAX and self.rng.random() < 0.25:
                    self.take(disk, durable)

            seconds = self.rng.uniform(*WORK_SECONDS) * min(self.context.pace(), 4.0)
            try:
                killing.torment(self.context, self.rng, team, seconds, cut, kill_share=0.1)
                self.take(disk, durable)
                team.kill_all()
            finally:
                team.abandon()
            killing.gather_counts(self.context, self.work, {})

    def judge(self):
        exact = ledger.Exact(self.settings["seed"])
        for snapshot in self.snapshots:
            with disks.Disk(snapshot.image, self.kind, self.mounted):
                reached = crew.judge_pool(
                    self.context, self.pool, self.settings["seed"], snapshot.least, snapshot.most, exact, snapshot.what
                )
                self.go_on()
                self.judge_packed(snapshot)
            os.remove(snapshot.image)
            self.context.counts[f"power cuts on {self.kind}"] += 1
            self.context.say(f"    {snapshot.what}: {sum(reached.values())} transactions, "
                             f"{sum(snapshot.least.values())} acknowledged as durable")

    def go_on(self):
        """Goes on working after the power is back."""
        db = sql.connect(self.pool)
        db.execute("update account set body = body")
        db.execute("pragma wal_checkpoint(truncate)").fetchall()
        sql.integrity(db)
        db.close()
        crew.judge_command(self.context, "check", "-q", self.pool)

    def judge_packed(self, snapshot):
        """Checks databases packed in place: they always exist, and are pools once that was acknowledged."""
        directory = os.path.join(self.mounted, "packed")
        for number, said in snapshot.packed_before.items():
            if "C" not in said or "D" in snapshot.packed_after.get(number, ""):
                continue
            path = os.path.join(directory, f"p{number}.db")
            with open(path, "rb") as file:
                is_pool = file.read(13) == b"Hardpack pool"
            if "A" in said and not is_pool:
                raise crew.Failed(f"{snapshot.what}: {path} was packed in place, and is a plain database again")
            if is_pool:
                crew.judge_command(self.context, "check", "-q", path)
            db = sql.connect(path) if is_pool else sqlite3.connect(path, isolation_level=None)
            workers.judge_packed(db, number)
            db.close()
            self.context.counts["packed databases judged after a power cut"] += 1


def run(context, seconds):
    usable = disks.kinds(context, "power cuts")
    if "xfs" not in usable:
        context.skip("power cuts: images can be copied at once only on xfs")
        return
    rng, end, number = context.rng("power"), time.monotonic() + seconds, 0
    with context.directory("power") as directory:
        image = os.path.join(directory, "outer")
        with disks.Disk.create(image, "xfs", os.path.join(directory, "outer-mounted"), discard=True,
                               length=OUTER_LEN) as outer:
            while time.monotonic() < end or number < len(usable):
                kind = usable[number % len(usable)]
                number += 1
                with context.directory("machine") as work:
                    machine = Machine(context, rng, kind, outer, work)
                    machine.work_and_cut()
                    context.drop_caches()
                    machine.judge()
                    for path in glob.glob(machine.image + "*"):
                        os.remove(path)
