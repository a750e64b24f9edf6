"""A database of which every state can be checked, and the log of acknowledged transactions.

Each writer numbers its transactions 1, 2, 3, ... through all its lives. The seed alone determines what
transaction N of writer W does (`plan`), so the progress of each writer determines the whole content.

    account  balances whose sum never changes; each row has a text that names its last writer
    log      one row for each transaction, numbered without gaps; old rows are deleted
    writer   the progress of each writer
    head     the number of transactions, and a chain of hashes over all of them, including deleted ones

A writer appends `B number seq` to its file outside the database before COMMIT, and `A number seq` after COMMIT has
returned, and syncs that. So transactions with an A line must be there, and those without a B line must not.
`R number 0` is what a new life of a writer found: a transaction whose writer was killed before it could
acknowledge it.
"""

import glob
import hashlib
import os
import random
import zlib

ACCOUNT_COUNT = 600
OPENING_BALANCE = 1000
BODY_LEN = 2500
LOG_ROWS_MAX = 400
# How much of the end of an acknowledgement file is read to find its last line.
TAIL_LEN = 64 << 10

WORDS = ["pool", "record", "extent", "sector", "patch", "fold", "txg", "superblock", "page", "journal", "commit"]


class Wrong(Exception):
    """The content is wrong."""


def words(rng, length):
    return " ".join(f"{word}{rng.randrange(100)}" for word in rng.choices(WORDS, k=length // 8 + 1))[:length]


class Plan:
    """The changes of one transaction."""

    def __init__(self, seed, writer, number):
        rng = random.Random(f"{seed}/{writer}/{number}")
        kind = rng.random()
        transfers = rng.randrange(1, 4) if kind < 0.85 else rng.randrange(20, 100)
        self.transfers = [
            (rng.randrange(ACCOUNT_COUNT), rng.randrange(ACCOUNT_COUNT), rng.randrange(100)) for _ in range(transfers)
        ]
        if kind < 0.03:  # long enough to spill out of the page cache
            self.text = words(rng, 4000) * rng.randrange(20, 100)
        elif kind < 0.1:  # does not compress
            self.text = rng.randbytes(rng.randrange(100, 20_000)).hex()
        else:
            self.text = words(rng, rng.randrange(10, 1500))
        self.crc = zlib.crc32(self.text.encode())


class Bodies:
    """The texts of the accounts: nearly the same each time, so that updates change pages only a little."""

    def __init__(self, seed):
        self.seed, self.bases = seed, {}

    def of(self, account, writer, number):
        base = self.bases.get(account)
        if base is None:
            base = self.bases[account] = words(random.Random(f"{self.seed}/body/{account}"), BODY_LEN)
        return f"{base}<{writer}/{number}>{base[:account % 90]}"


def create(db, seed):
    bodies = Bodies(seed)
    db.execute("begin immediate")
    db.execute("create table account(id integer primary key, balance int, writer int, number int, body text)")
    db.execute("create table log(seq integer primary key, writer int, number int, crc int, text text)")
    db.execute("create table writer(id integer primary key, number int)")
    db.execute("create table head(id integer primary key, count int, first int, before text, digest text)")
    db.execute("create index log_writer on log(writer, number)")
    db.execute("insert into head values(1, 0, 0, '', '')")
    db.executemany(
        "insert into account values(?, ?, 0, 0, ?)",
        [(i, OPENING_BALANCE, bodies.of(i, 0, 0)) for i in range(ACCOUNT_COUNT)],
    )
    db.execute("commit")


def link(digest, seq, writer, number, crc):
    """Returns the chain of hashes after one more transaction."""
    return hashlib.blake2b(f"{digest} {seq} {writer} {number} {crc}".encode(), digest_size=12).hexdigest()


def apply(db, plan, bodies, writer, number):
    """Makes the changes of an open transaction. Returns its place among all transactions."""
    for source, target, amount in plan.transfers:
        for account, change in ((source, -amount), (target, amount)):
            db.execute(
                "update account set balance = balance + ?, writer = ?, number = ?, body = ? where id = ?",
                (change, writer, number, bodies.of(account, writer, number), account),
            )
    count, first, before, digest = db.execute("select count, first, before, digest from head").fetchone()
    seq = count + 1
    db.execute("insert into log values(?, ?, ?, ?, ?)", (seq, writer, number, plan.crc, plan.text))
    db.execute("insert into writer values(?, ?) on conflict(id) do update set number = excluded.number", (writer, number))
    if seq - first > LOG_ROWS_MAX + 50:  # many at once, so that pages become free
        old = seq - LOG_ROWS_MAX
        for row in db.execute("select seq, writer, number, crc from log where seq <= ? order by seq", (old,)):
            before = link(before, *row)
        db.execute("delete from log where seq <= ?", (old,))
        first = old
    digest = link(digest, seq, writer, number, plan.crc)
    db.execute("update head set count = ?, first = ?, before = ?, digest = ?", (seq, first, before, digest))
    return seq


def progress(db):
    """Returns the progress of each writer."""
    return dict(db.execute("select id, number from writer"))


def judge(db, bodies):
    """Checks what must hold in every snapshot; the caller has begun a transaction. Returns the progress."""
    total = db.execute("select count(*), sum(balance) from account").fetchone()
    if total != (ACCOUNT_COUNT, ACCOUNT_COUNT * OPENING_BALANCE):
        raise Wrong(f"accounts and their sum are {total}: a transaction is there in part")
    for account, writer, number, body in db.execute("select id, writer, number, body from account"):
        if body != bodies.of(account, writer, number):
            raise Wrong(f"account {account} does not hold what {writer}/{number} wrote")
    count, first, digest, expected = db.execute("select count, first, before, digest from head").fetchone()
    seq = first
    for row in db.execute("select seq, writer, number, crc, text from log order by seq"):
        seq += 1
        if row[0] != seq:
            raise Wrong(f"transaction {seq} is missing from the log, the next is {row[0]}")
        if zlib.crc32(row[4].encode()) != row[3]:
            raise Wrong(f"the text of transaction {seq} is not what was written")
        digest = link(digest, *row[:4])
    if seq != count or digest != expected:
        raise Wrong(f"the log ends at {seq} with {digest}, the head says {count} and {expected}")
    reached = progress(db)
    if sum(reached.values()) != count:
        raise Wrong(f"{count} transactions, but the writers' are {reached}")
    return reached


class Exact:
    """The balances that follow from the progress of each writer, updated from one comparison to the next."""

    def __init__(self, seed):
        self.seed, self.reached, self.balances = seed, {}, [OPENING_BALANCE] * ACCOUNT_COUNT

    def judge(self, db, reached):
        """Compares all balances and all texts of the log with the plans."""
        if any(reached.get(writer, 0) < number for writer, number in self.reached.items()):
            self.__init__(self.seed)  # an older state, of a snapshot
        for writer, number in reached.items():
            for n in range(self.reached.get(writer, 0) + 1, number + 1):
                for source, target, amount in Plan(self.seed, writer, n).transfers:
                    self.balances[source] -= amount
                    self.balances[target] += amount
            self.reached[writer] = number
        found = [row[0] for row in db.execute("select balance from account order by id")]
        if found != self.balances:
            wrong = [i for i in range(ACCOUNT_COUNT) if found[i] != self.balances[i]]
            raise Wrong(f"accounts {wrong[:10]} do not have the balance that follows from the transactions {reached}")
        for seq, writer, number, text in db.execute("select seq, writer, number, text from log"):
            if text != Plan(self.seed, writer, number).text:
                raise Wrong(f"transaction {seq} does not hold the text of {writer}/{number}")


class Acknowledgements:
    """The file of one writer."""

    def __init__(self, path):
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, kind, number, seq):
        os.write(self.file, f"{kind} {number} {seq}\n".encode())

    def acknowledge(self, number, seq):
        self.note("A", number, seq)
        os.fdatasync(self.file)


def last_numbers(directory, kinds):
    """Returns the last number of each writer in lines of these kinds: {writer: number}."""
    result = {}
    for path in glob.glob(os.path.join(directory, "ack.*")):
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_LEN))
            lines = file.read().decode().split("\n")[:-1]  # a last line without its end was not written
        numbers = [int(line.split()[1]) for line in lines if line and line[0] in kinds and line.count(" ") == 2]
        result[int(path.rsplit(".", 1)[1])] = max(numbers, default=0)
    return result


def acknowledged(directory):
    return last_numbers(directory, "A")


def seen(directory):
    """Returns what was acknowledged, or seen by a later life of its writer."""
    return last_numbers(directory, "AR")


def begun(directory):
    return last_numbers(directory, "ABR")


def compare(reached, least, most, what):
    """Checks that the progress is at least `least`, acknowledged, and at most `most`, begun."""
    for writer in set(reached) | set(least):
        number = reached.get(writer, 0)
        if number < least.get(writer, 0):
            raise Wrong(f"{what}: LOST: writer {writer} is at {number}, {least[writer]} was acknowledged")
        if most is not None and number > most.get(writer, 0):
            raise Wrong(f"{what}: writer {writer} is at {number}, only {most.get(writer, 0)} was begun")
