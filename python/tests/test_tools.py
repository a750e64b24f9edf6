"""pack, unpack, info and check, and what happens if they are stopped."""

import base64
import os
import signal
import sqlite3
import subprocess
import sys
import threading

import pytest
from conftest import is_pool

import hardpack


@pytest.fixture
def database(work):
    db = sqlite3.connect("words.db")
    db.execute("CREATE TABLE words(word)")
    db.executemany("INSERT INTO words VALUES (?)", [(f"word number {n}",) for n in range(50_000)])
    db.commit()
    db.close()
    return work / "words.db"


def test_there_and_back(database):
    before = database.read_bytes()
    steps = []
    report = hardpack.pack(database, properties={"compression": "zstd-9"}, progress=steps.append)
    assert report["pool"] == str(database) + ".hpk"
    assert report["logical_bytes"] == len(before) > 2 * report["pool_bytes"]
    assert steps[-1].done == steps[-1].total == len(before)
    assert {step.step.split()[0] for step in steps} == {"packing", "verifying"}
    found = hardpack.info("words.db.hpk")
    assert (found["logical_bytes"], found["files"]) == (len(before), 1)
    checked = hardpack.check("words.db.hpk")
    assert checked["ok"] and checked["integrity_check"] == []
    with pytest.raises(hardpack.ExistsError):
        hardpack.unpack("words.db.hpk")
    hardpack.unpack("words.db.hpk", "back.db", threads=1)
    assert open("back.db", "rb").read() == before
    with pytest.raises(hardpack.ExistsError):
        hardpack.pack("words.db")
    hardpack.pack("words.db", force=True)


def test_in_place(database):
    before = database.read_bytes()
    hardpack.pack("words.db", in_place=True)
    assert is_pool("words.db")
    db = hardpack.connect("words.db")
    assert db.execute("SELECT count(*) FROM words").fetchone() == (50_000,)
    with pytest.raises(hardpack.InUseError):
        hardpack.unpack("words.db", in_place=True)
    db.close()
    hardpack.unpack("words.db", in_place=True)
    assert database.read_bytes() == before
    with pytest.raises(hardpack.UsageError):
        hardpack.pack("words.db", "other.hpk", in_place=True)


def test_a_database_in_use_keeps_its_locks(database):
    """The command opens the file in a process of its own, so this one's locks stay."""
    db = sqlite3.connect("words.db", isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    db.execute("INSERT INTO words VALUES ('later')")
    hardpack.pack("words.db")
    code = "import sqlite3; sqlite3.connect('words.db', timeout=0).execute('BEGIN IMMEDIATE')"
    other = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE)
    assert b"database is locked" in other.stderr
    db.execute("COMMIT")
    packed = hardpack.connect("words.db.hpk")
    assert packed.execute("SELECT count(*) FROM words").fetchone() == (50_000,)


def test_errors(work):
    with pytest.raises(FileNotFoundError) as caught:
        hardpack.pack("none.db")
    assert str(caught.value).startswith("cannot ") and "none.db" in str(caught.value)
    open("text", "w").write("text")
    for function in [hardpack.info, hardpack.check, hardpack.unpack]:
        with pytest.raises(hardpack.NotAPoolError):
            function("text")
    with pytest.raises(hardpack.HardpackError):
        hardpack.pack("text", properties={"compression": "best"})
    with pytest.raises(hardpack.HardpackError):
        hardpack.pack("text", properties={"no-such-property": 1})
    assert sorted(os.listdir()) == ["text"]


class Enough(Exception):
    pass


@pytest.fixture
def large(work):
    """Takes far longer to pack than a signal takes. Noise would not: no slow level is tried."""
    with open("large", "wb") as file:
        for _ in range(40):
            file.write(base64.b64encode(os.urandom(1 << 20)))


def test_a_callback_that_raises_stops_the_work(large):
    def progress(step):
        raise Enough(step)

    with pytest.raises(Enough):
        hardpack.pack("large", properties={"compression": "zstd-19"}, progress=progress)
    assert os.listdir() == ["large"]


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("blocks", [False, True])
def test_what_raises_stops_a_command_that_ignores_signals(work, count, blocks):
    def items():
        yield "a", b"1"
        raise Enough

    pool = hardpack.Pool.create("p.hpk")
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP][:count]
    before = {number: signal.getsignal(number) for number in numbers}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers if blocks else [])
    try:
        for number in numbers if not blocks else []:
            signal.signal(number, signal.SIG_IGN)
        with pytest.raises(Enough):
            pool.write_all(items())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    assert list(pool) in ([], ["a"])


@pytest.mark.parametrize("sender", ["thread", "process"])
def test_ctrl_c_stops_the_work(large, sender):
    def interrupt(step):
        if sender == "thread":
            signal.raise_signal(signal.SIGINT)

    if sender == "thread":
        with pytest.raises(KeyboardInterrupt):
            hardpack.pack("large", properties={"compression": "zstd-19"}, progress=interrupt)
    else:
        # A signal to the command alone is an exception of this package.
        def stop(step):
            children = f"/proc/{os.getpid()}/task/{threading.get_native_id()}/children"
            for child in open(children).read().split():
                os.kill(int(child), signal.SIGTERM)

        with pytest.raises(hardpack.StoppedError):
            hardpack.pack("large", properties={"compression": "zstd-19"}, progress=stop)
    assert os.listdir() == ["large"]


def test_the_command_of_the_package():
    done = subprocess.run([hardpack.path_of_command(), "--version"], stdout=subprocess.PIPE)
    assert done.stdout.decode().split()[1] == hardpack.__version__
    script = os.path.join(os.path.dirname(sys.executable), "hardpack")
    assert subprocess.run([script, "--version"], stdout=subprocess.PIPE).stdout == done.stdout
    assert os.path.exists(hardpack.path_of_library())
