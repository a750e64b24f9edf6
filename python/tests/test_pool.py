"""A pool as a mapping of names to files."""

import ctypes
import errno
import gc
import io
import os
import pickle
import re
import shutil
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
import time
import warnings

import pytest

import hardpack
from hardpack import Pool


@pytest.fixture
def pool(work):
    made = Pool.create("p.hpk", compression="zstd-1")
    made.write_all(
        [("a.txt", b"first"), ("dir/b.txt", b"second"), ("dir/deep/c.bin", bytes(300_000))]
    )
    return made


def test_a_mapping_of_names_to_files(pool):
    assert list(pool) == ["a.txt", "dir/b.txt", "dir/deep/c.bin"]
    assert len(pool) == 3
    assert "dir/b.txt" in pool and "dir" not in pool and "x" not in pool and 7 not in pool
    assert pool["a.txt"].read_bytes() == b"first"
    assert {name: path.stat().st_size for name, path in pool.items()}["dir/deep/c.bin"] == 300_000
    for missing in ["x", "dir", "a.txt/x"]:
        with pytest.raises(KeyError):
            pool[missing]
    assert pool.properties()["compression"] == "zstd-1"


def test_random_access(pool):
    data = os.urandom(1_000_003)
    pool.write_bytes("random", data)
    with pool.open("random") as file:
        assert isinstance(file, io.BufferedReader) and file.seekable()
        for start, length in [(0, 10), (999_999, 100), (500_000, 300_000), (7, 0), (2_000_000, 5)]:
            file.seek(start)
            assert file.read(length) == data[start : start + length]
        assert file.seek(-3, io.SEEK_END) == 1_000_000
        assert file.read() == data[-3:]
        file.seek(0)
        assert file.read() == data
        with pytest.raises(ValueError):
            file.raw.seek(-1)
    with pytest.raises(ValueError):
        file.read()


def test_text(pool):
    with pool.open("t", "w", newline="\n") as file:
        file.write("Zeile äöü\nzwei\n")
    with pool.open("t", "r") as file:
        assert list(file) == ["Zeile äöü\n", "zwei\n"]
    with pool.open("t", "w", encoding="latin-1") as file:
        file.write("ä")
    assert pool.read_bytes("t") == b"\xe4"


def test_an_unknown_encoding(pool):
    for mode in ["r", "w"]:
        with pytest.raises(LookupError):
            pool.open("a.txt", mode, encoding="none such")
    gc.collect()
    assert pool.read_bytes("a.txt") == b"first"


def test_a_new_file_appears_when_it_is_closed(pool):
    file = pool.open("new/file", "wb")
    file.write(b"123456")
    file.seek(1)
    file.write(b"x")
    assert not (pool / "new/file").exists()
    file.close()
    file.close()
    assert pool.read_bytes("new/file") == b"1x3456"
    with pytest.raises(ValueError):
        file.write(b"more")


@pytest.mark.parametrize("mode", ["w", "wb"])
def test_an_exception_stores_nothing(pool, mode):
    with pytest.raises(ZeroDivisionError), pool.open("a.txt", mode) as file:
        file.write("half" if mode == "w" else b"half")
        1 / 0
    assert file.closed
    abandoned = pool.open("a.txt", mode)
    abandoned.write("half" if mode == "w" else b"half")
    del abandoned
    assert pool.read_bytes("a.txt") == b"first"


@pytest.mark.parametrize("is_text", [False, True])
def test_a_write_that_fails_stores_nothing(pool, monkeypatch, is_text):
    """Text that is closed writes the rest of it, and is closed even if that fails."""
    real = hardpack._files.spool

    class Full(io.BytesIO):
        def write(self, data):
            if bytes(data) == b"last":
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)

    monkeypatch.setattr(hardpack._files, "spool", Full)
    file = pool.open("new", "w" if is_text else "wb")
    file.write("first" if is_text else b"first")
    file.flush()
    if is_text:
        file.write("last")
    else:
        with pytest.raises(OSError, match="No space"):
            file.write(b"last")
    with pytest.raises(hardpack.CannotError, match="cannot store 'new': a write failed.*No space"):
        file.close()
    assert file.closed
    monkeypatch.setattr(hardpack._files, "spool", real)
    assert "new" not in pool


@pytest.mark.parametrize("length", [3, 100, 20 << 20])
def test_a_new_file_is_cut_or_grows(pool, length):
    with pool.open("grown", "wb") as file:
        file.write(b"0123456789")
        file.seek(5)
        assert file.truncate(length) == length and file.tell() == 5
        file.write(b"x")
    expected = b"0123456789"[:length].ljust(max(5, length), b"\0")
    assert pool.read_bytes("grown") == expected[:5] + b"x" + expected[6:]


def test_exclusive_creation(pool):
    with pytest.raises(hardpack.ExistsError):
        pool.open("a.txt", "xb")
    late = pool.open("late", "xb")
    pool.write_bytes("late", b"earlier")
    with pytest.raises(FileExistsError):
        late.close()
    assert pool.read_bytes("late") == b"earlier"


def test_one_of_many_creates_a_file(pool):
    """Whatever they find before, only one finds the name free when it makes it."""
    for length in [10, 3_000_000]:
        for number in range(6):
            name = f"only-{length}-{number}"
            outcomes = []
            files = [pool.open(name, "xb") for _ in range(4)]
            ready = threading.Barrier(len(files))

            def create(who, file, length=length, outcomes=outcomes, ready=ready):
                file.write(bytes([who]) * length)
                ready.wait()
                try:
                    file.close()
                    outcomes.append(who)
                except FileExistsError:
                    pass

            threads = [
                threading.Thread(target=create, args=(who, file)) for who, file in enumerate(files)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(outcomes) == 1
            assert pool.read_bytes(name) == bytes(outcomes) * length


def test_modes_that_a_pool_does_not_have(pool):
    for mode in ["a", "r+", "rw", "", "rbt", "rr"]:
        with pytest.raises(hardpack.UsageError):
            pool.open("a.txt", mode)
    with pytest.raises(hardpack.UsageError):
        pool.open("a.txt", "rb", encoding="utf-8")


def test_metadata(pool):
    before = time.time() - 1
    old = os.umask(0o027)
    try:
        pool.write_bytes("mine", b"12345")
    finally:
        os.umask(old)
    found = pool.stat("mine")
    assert stat.S_ISREG(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o640
    assert (found.st_size, found.st_nlink) == (5, 1)
    assert (found.st_uid, found.st_gid) == (os.geteuid(), os.getegid())
    assert before < found.st_mtime < time.time() + 1
    assert stat.S_ISDIR(pool.stat("dir").st_mode)


def test_an_open_file_is_of_one_moment(pool):
    file = pool.open("dir/deep/c.bin")
    assert file.read(10) == bytes(10)
    pool.write_bytes("another", b"does not matter")
    file.seek(250_000)
    assert file.read(10) == bytes(10)
    pool.write_bytes("dir/deep/c.bin", b"\1" * 300_000)
    file.seek(0)
    with pytest.raises(hardpack.ChangedError):
        file.read(200_000)
    assert pool.read_bytes("dir/deep/c.bin") == b"\1" * 300_000


def test_a_database_with_a_log(pool):
    db = hardpack.connect("p.hpk/app.db")
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA wal_autocheckpoint=0")
    db.execute("CREATE TABLE t(a)")
    db.execute("INSERT INTO t VALUES ('in the log')")
    db.commit()
    assert any(name.endswith("-wal") for name in os.listdir())
    assert b"in the log" in pool.read_bytes("app.db")
    with pool.open("app.db") as file:
        assert file.read(15) == b"SQLite format 3"
    with pytest.raises(hardpack.InUseError, match="open as a database|has it open"):
        pool.remove("app.db")
    with pytest.raises(hardpack.InUseError):
        pool.write_bytes("app.db", b"not while it is open")
    assert db.execute("SELECT a FROM t").fetchall() == [("in the log",)]
    db.close()
    pool.remove("app.db")
    assert "app.db" not in pool


def test_reading_disturbs_no_locks(pool):
    """Closing a descriptor of a file drops the locks that SQLite has on it in this process."""
    db = hardpack.connect("lone.hpk", isolation_level=None)
    db.execute("CREATE TABLE t(a)")
    db.execute("BEGIN IMMEDIATE")
    db.execute("INSERT INTO t VALUES (1)")
    lone = Pool("lone.hpk")
    assert lone["lone.hpk"].read_bytes()[:6] == b"SQLite"
    lone.close()
    with pytest.raises(hardpack.HardpackError):
        hardpack.Pool("p.hpk").rename("a.txt", "dir/no/such/a.txt")
    code = (
        "import hardpack, sys; hardpack.connect('lone.hpk', timeout=0).execute('BEGIN IMMEDIATE')"
    )
    other = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE)
    assert b"database is locked" in other.stderr
    db.execute("COMMIT")

    plain = sqlite3.connect("plain.db", isolation_level=None)
    plain.execute("CREATE TABLE t(a)")
    plain.execute("BEGIN IMMEDIATE")
    with pytest.raises(hardpack.NotAPoolError):
        Pool("plain.db")
    code = "import sqlite3; sqlite3.connect('plain.db', timeout=0).execute('BEGIN IMMEDIATE')"
    other = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE)
    assert b"database is locked" in other.stderr


NAMES = [
    "with space",
    "a*b",
    "[x]",
    "q?",
    "back\\slash",
    "back\\*",
    "two\\\\back*",
    "*@[x]",
    "-n",
    "ä",
    "line\nbreak",
    "\udcff",
    "%41",
]


@pytest.mark.parametrize("name", NAMES)
def test_any_name(pool, name):
    pool.write_bytes(f"odd/{name}", b"content")
    pool.write_bytes("odd/other", b"other")
    assert set(pool.listdir("odd")) == {name, "other"}
    assert pool.read_bytes(os.fsencode(f"odd/{name}")) == b"content"
    pool.copy(f"odd/{name}", f"odd/{name} 2")
    pool.rename(f"odd/{name} 2", f"odd/{name} 3")
    pool.extract(f"odd/{name}", "out")
    assert open("out", "rb").read() == b"content"
    pool.remove(f"odd/{name}")
    assert set(pool.listdir("odd")) == {f"{name} 3", "other"}


@pytest.mark.parametrize("name", ["a*b", "a[x]", "a\\\\b*", "a\\?"])
def test_names_that_look_like_protected_ones(pool, name):
    """The command takes a path as it is written, if that exists."""
    other = re.sub(r"([*?\[\\])", r"\\\1", name)
    pool.write_all([(f"odd/{name}", b"this"), (f"odd/{other}", b"other")])
    pool.extract(f"odd/{name}", "out")
    assert open("out", "rb").read() == b"this"
    pool.copy(f"odd/{name}", "odd/copy")
    assert pool.read_bytes("odd/copy") == b"this"
    pool.rename(f"odd/{name}", "odd/moved")
    assert pool.read_bytes("odd/moved") == b"this"
    pool.rename("odd/moved", f"odd/{name}")
    pool.remove(f"odd/{name}")
    assert set(pool.listdir("odd")) == {other, "copy"}
    assert pool.read_bytes(f"odd/{other}") == b"other"


def test_characters_that_no_name_has(pool):
    for name in ["\ud800", "dir/\udbff"]:
        assert name not in pool
        for use in [pool.read_bytes, pool.listdir, pool.remove]:
            with pytest.raises(hardpack.UsageError):
                use(name)
        with pytest.raises(hardpack.UsageError):
            pool.write_bytes(name, b"")


def test_patterns_in_names_match_nothing_else(pool):
    pool.write_bytes("w/ab", b"")
    with pytest.raises(hardpack.NotFoundError):
        pool.remove("w/a*")
    with pytest.raises(hardpack.NotFoundError):
        pool.copy("w/a?", "w/x")
    assert pool.listdir("w") == ["ab"]


def test_paths_in_the_manner_of_pathlib(pool):
    path = pool / "dir" / "b.txt"
    assert (path.name, path.stem, path.suffix, path.parts) == (
        "b.txt",
        "b",
        ".txt",
        ("dir", "b.txt"),
    )
    assert path.parent == pool / "dir" and path.parent.parent == pool.root()
    assert pool.root().parent == pool.root() and str(pool.root()) == ""
    assert path.with_suffix(".md").name == "b.md" and path.with_name("x") == pool / "dir/x"
    assert str(path.relative_to("dir")) == "b.txt"
    assert path.is_file() and not path.is_dir() and path.exists() and path.match("*.txt")
    assert [str(each) for each in (pool / "dir").iterdir()] == ["dir/b.txt", "dir/deep"]
    assert path.address == os.path.abspath("p.hpk") + "/dir/b.txt"
    assert path.write_text("neu ä") == 5 and path.read_text() == "neu ä"
    new = pool / "made" / "here"
    with pytest.raises(hardpack.NotFoundError):
        new.mkdir()
    new.mkdir(parents=True)
    new.mkdir(exist_ok=True)
    with pytest.raises(hardpack.ExistsError):
        new.mkdir()
    assert path.rename("made/moved").read_text() == "neu ä"
    (pool / "made/moved").unlink()
    (pool / "made/moved").unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError):
        (pool / "made/moved").unlink()
    assert not path.exists() and not (path / "x").exists()
    assert sorted([pool / "b", pool / "a"]) == [pool / "a", pool / "b"]
    assert len({pool / "a", pool / "/a/", pool / "./a"}) == 1
    with pytest.raises(hardpack.UsageError):
        pool / "../x"


def test_special_files(pool):
    os.mkdir("tree")
    os.mkfifo("tree/fifo")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("tree/socket")
    pool.put("tree", "tree")
    fifo = pool / "tree/fifo"
    assert fifo.is_fifo() and not fifo.is_file() and (pool / "tree/socket").is_socket()
    assert not fifo.is_socket() and not fifo.is_char_device() and not fifo.is_block_device()
    assert stat.S_ISFIFO(fifo.stat().st_mode) and fifo.stat().st_size == 0
    with pytest.raises(hardpack.HardpackError, match="it is a fifo, which has no content"):
        fifo.read_bytes()


def test_links(pool):
    os.mkdir("tree")
    open("tree/file", "w").write("x")
    os.symlink("file", "tree/link")
    pool.put("tree", "tree")
    link = pool / "tree/link"
    assert link.is_symlink() and link.is_file() and link.readlink() == "file"
    assert link.read_bytes() == b"x"
    assert stat.S_ISLNK(link.stat(follow_symlinks=False).st_mode)
    with pytest.raises(hardpack.HardpackError):
        pool.readlink("tree/file")


def test_patterns_that_mean_nothing(pool):
    with pytest.raises(hardpack.UsageError, match="bad character range"):
        list(pool.glob("[z-a]"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pool.write_bytes("&", b"")
        assert [str(path) for path in pool.glob("[|&&~~]")] == ["&"]


def test_patterns(pool):
    def of(pattern, below=""):
        return [str(path) for path in pool.glob(pattern, below=below)]

    assert of("*.txt") == ["a.txt"]
    assert of("**/*.txt") == ["a.txt", "dir/b.txt"]
    assert of("*/?.txt") == ["dir/b.txt"]
    assert of("**/[!ab].*") == ["dir/deep/c.bin"]
    assert of("dir/**") == ["dir/b.txt", "dir/deep", "dir/deep/c.bin"]
    assert of("*", below="dir") == ["dir/b.txt", "dir/deep"]
    assert [str(path) for path in (pool / "dir").rglob("*.bin")] == ["dir/deep/c.bin"]


def test_whole_trees(pool):
    os.makedirs("tree/sub")
    for number in range(20):
        open(f"tree/sub/{number}", "w").write(str(number) * 1000)
    steps = []
    report = pool.put("tree", "trees/1", progress=steps.append)
    assert (report["files"], report["failed"]) == (20, 0)
    assert steps[-1].files and steps[-1].done > 0
    assert pool.put("tree", "trees/1")["unchanged"] == 20
    os.remove("tree/sub/0")
    assert pool.put("tree", "trees/1", delete=True)["removed"] == 1
    pool.extract("trees/1", "back")
    assert sorted(os.listdir("back/sub")) == sorted(os.listdir("tree/sub"))
    with pytest.raises(hardpack.CannotError):
        pool.extract("trees/1", "back")
    pool.extract("trees/1", "back", update=True)
    with pytest.raises(hardpack.CannotError):
        pool.remove("trees")
    pool.remove("trees", recursive=True)
    pool.remove("trees", missing_ok=True)
    with pytest.raises(hardpack.NotFoundError):
        pool.put("nowhere", "x")
    with pytest.raises(hardpack.NotFoundError):
        pool.extract("nowhere", "x")


def test_many_files_at_once(pool):
    for name in ["opened", "content"]:
        with open(name, "wb") as file:
            file.write(b"from a path")
    told = []
    items = [("m/1", b"1"), ("m/2", bytearray(b"2")), ("m/3", io.BytesIO(b"3"))]
    with open("opened", "rb") as file:
        assert (
            pool.write_all([*items, ("m/4", file), ("m/5", "content")], progress=told.append) == 5
        )
    assert [pool.read_bytes(f"m/{n}") for n in range(1, 6)] == [
        b"1",
        b"2",
        b"3",
        b"from a path",
        b"from a path",
    ]
    assert [each.files for each in told] == [1, 2, 3, 4, 5]

    def items_that_fail():
        yield "m/6", b"6"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        pool.write_all(items_that_fail())
    assert hardpack.check("p.hpk")["ok"]
    with pytest.raises(hardpack.HardpackError):
        pool.write_all([("dir", b"a directory is never replaced")])
    assert (pool / "dir").is_dir()


def test_files_without_a_length(pool):
    """Those of /proc have one of 0, and pipes none."""
    os.mkfifo("pipe")
    writer = threading.Thread(target=lambda: open("pipe", "wb").write(b"through a pipe"))
    writer.start()
    pool.write_all([("proc", "/proc/version"), ("pipe", "pipe"), ("null", "/dev/null")])
    writer.join()
    assert pool.read_bytes("proc") == open("/proc/version", "rb").read() != b""
    assert pool.read_bytes("pipe") == b"through a pipe"
    assert pool.read_bytes("null") == b""


def test_a_source_that_breaks(pool):
    class Broken:
        def read(self, _size):
            raise BrokenPipeError("what was to be read")

    with pytest.raises(BrokenPipeError, match="what was to be read"):
        pool.write_all([("first", b"stored"), ("second", Broken())])
    assert "second" not in pool


def test_sources_of_another_kind(pool):
    """Nothing is stored in their place: not a file of that name, nor what has come so far."""
    open("text", "w").close()
    for wrong in ["text", None, 3, [1], io.BytesIO(b"x")]:
        with pytest.raises(TypeError, match="bytes-like"):
            pool.write_bytes("new", wrong)

    class Later:
        def __init__(self):
            self.pieces = [b"some", None]

        def read(self, _size):
            return self.pieces.pop(0)

    with pytest.raises(BlockingIOError, match="'new'"):
        pool.write_all([("new", Later())])
    assert "new" not in pool


def test_a_command_that_is_stopped_leaves_no_thread(pool, monkeypatch):
    """A thread that reads what another one closes may read the next file of that number."""
    raised = []
    monkeypatch.setattr(threading, "excepthook", raised.append)

    def items():
        yield "one", b"1"
        raise ZeroDivisionError

    for _ in range(60):
        with pytest.raises(ZeroDivisionError):
            pool.write_all(items())
        assert [thread.name for thread in threading.enumerate() if thread.name == "hardpack"] == []
    assert raised == []


def test_a_database_that_is_open_is_not_replaced(pool):
    pool.write_bytes("first.db", b"")
    db = hardpack.connect(pool / "app.db", isolation_level=None)
    db.execute("CREATE TABLE t(a)")
    open("new", "wb").close()
    for change in [
        lambda: pool.write_bytes("app.db", b""),
        lambda: pool.open("app.db", "wb").close(),
        lambda: pool.put("new", "app.db"),
        lambda: pool.copy("a.txt", "app.db"),
        lambda: pool.rename("a.txt", "app.db"),
        lambda: pool.remove("app.db"),
    ]:
        with pytest.raises(hardpack.InUseError, match="has it open"):
            change()
    db.execute("INSERT INTO t VALUES (1)")
    db.close()


def test_a_database_that_is_open_is_not_read_beside_sqlite(pool):
    db = sqlite3.connect("live.db", isolation_level=None)
    db.execute("CREATE TABLE t(a)")
    db.execute("BEGIN IMMEDIATE")
    with pytest.raises(hardpack.UsageError, match="open in this process"):
        pool.write_all([("live.db", "live.db")])
    code = "import sqlite3; sqlite3.connect('live.db', timeout=0).execute('BEGIN IMMEDIATE')"
    other = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE)
    assert b"database is locked" in other.stderr
    db.execute("ROLLBACK")
    pool.put("live.db", "live.db")
    assert (pool / "live.db").connect().execute("SELECT * FROM t").fetchall() == []


def test_snapshots(pool):
    pool.snapshot("monday")
    pool.snapshot("one", "dir")
    pool.write_bytes("a.txt", b"changed")
    then = pool.at("monday")
    assert then.read_bytes("a.txt") == b"first" and list(then)[0] == "a.txt"
    assert pool.read_bytes("a.txt@monday") == b"first"
    assert [(found.path, found.name) for found in pool.snapshots()] == [
        ("", "monday"),
        ("dir", "one"),
    ]
    for change in [
        lambda: then.write_bytes("x", b""),
        lambda: then.remove("a.txt"),
        lambda: then.open("x", "wb"),
    ]:
        with pytest.raises(hardpack.UsageError, match="snapshot"):
            change()
    then.extract("dir/b.txt", "b")
    assert open("b", "rb").read() == b"second"
    with pytest.raises(hardpack.ExistsError):
        pool.snapshot("monday")
    pool.rollback("monday")
    assert pool.read_bytes("a.txt") == b"first"
    pool.destroy_snapshot("monday")
    pool.destroy_snapshot("one", "dir")
    assert pool.snapshots() == []
    with pytest.raises(hardpack.NotFoundError):
        pool.at("monday")


def test_names_that_no_snapshot_has(pool):
    pool.snapshot("monday")
    for name in ["", "a/b", "@", "a\0b"]:
        for use in [pool.snapshot, pool.at, pool.rollback, pool.destroy_snapshot]:
            with pytest.raises(hardpack.UsageError, match="name"):
                use(name)
    with pytest.raises(hardpack.UsageError, match="'@'"):
        pool.snapshot("a@b")
    for use in [pool.snapshot, pool.at, pool.rollback, pool.destroy_snapshot]:
        # Of `at(None)`, somebody would write to the pool instead of reading a snapshot.
        with pytest.raises(TypeError, match="str"):
            use(None)
    assert [found.name for found in pool.snapshots()] == ["monday"]


def test_properties(pool):
    pool.set_properties("dir", compression="lz4", min_savings="25%", dedup=True)
    found = pool.properties("dir")
    assert (found["compression"], found["min-savings"], found["dedup"]) == ("lz4", "25%", "on")
    with pytest.raises(hardpack.HardpackError):
        pool.set_properties(compression="best")
    with pytest.raises(hardpack.UsageError):
        pool.set_properties()


def test_paths_that_end_early_in_c(pool):
    for use in [
        lambda: Pool("p.hpk\0x"),
        lambda: Pool.create("q.hpk\0x"),
        lambda: hardpack.info("p.hpk\0x"),
        lambda: pool.put("p.hpk\0x", "y"),
        lambda: pool.extract("a.txt", "out\0x"),
    ]:
        with pytest.raises(hardpack.UsageError, match="NUL"):
            use()


def test_pools_that_do_not_open(work):
    with pytest.raises(FileNotFoundError) as caught:
        Pool("none.hpk")
    assert isinstance(caught.value, hardpack.NotFoundError) and caught.value.errno == 2
    open("text", "w").write("no pool at all")
    with pytest.raises(hardpack.NotAPoolError):
        Pool("text")
    with pytest.raises(hardpack.NotAPoolError):
        Pool(work)
    Pool.create("x.hpk")
    with pytest.raises(hardpack.ExistsError):
        Pool.create("x.hpk")
    with pytest.raises(hardpack.HardpackError):
        Pool.create("y.hpk", compression="best")
    assert not os.path.exists("y.hpk")


def test_closing(pool):
    with pool:
        file = pool.open("a.txt")
    assert file.read() == b"first"
    for use in [
        lambda: pool.read_bytes("a.txt"),
        lambda: pool.extract("a.txt", "out"),
        lambda: pool.snapshots(),
    ]:
        with pytest.raises(ValueError, match="closed"):
            use()


def test_a_pool_that_is_replaced(pool):
    other = Pool.create("other.hpk")
    other.write_bytes("a.txt", b"of another pool")
    other.close()
    assert pool.read_bytes("a.txt") == b"first"
    os.rename("other.hpk", "p.hpk")
    assert pool.read_bytes("a.txt") == b"of another pool"


def test_a_pool_that_is_overwritten(pool):
    """As a restore with `cp` does, which keeps the file."""
    shutil.copy("p.hpk", "then.hpk")
    other = Pool.create("other.hpk")
    other.write_bytes("a.txt", b"of another pool")
    other.close()
    for source, expected in [("other.hpk", b"of another pool"), ("then.hpk", b"first")]:
        before = os.stat("p.hpk").st_ino
        with open("p.hpk", "r+b") as file:
            file.write(open(source, "rb").read())
            file.truncate()
        assert os.stat("p.hpk").st_ino == before
        assert pool.read_bytes("a.txt") == expected
        pool.write_bytes("new", b"stored")
        assert pool.read_bytes("new") == b"stored"
        assert hardpack.check("p.hpk")["ok"]


def test_damage(pool):
    pool.write_bytes("victim", os.urandom(200_000))
    pool.close()
    data = bytearray(open("p.hpk", "rb").read())
    for at in range(50_000, len(data) - 1000, 20_000):
        data[at : at + 64] = bytes(64)
    open("p.hpk", "wb").write(data)
    hurt = Pool("p.hpk")
    with pytest.raises(hardpack.DamageError) as caught:
        hurt.read_bytes("victim")
    assert "corrupt" in str(caught.value)
    report = hardpack.check("p.hpk")
    assert not report["ok"] and report["problems"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGRTMIN + 1])
def test_a_command_that_a_signal_ends(pool, number):
    def items():
        yield "first", b"first"
        with open(f"/proc/self/task/{os.getpid()}/children") as children:
            os.kill(int(children.read().split()[0]), number)
        yield "second", bytes(10_000_000)

    with pytest.raises(hardpack.StoppedError, match="ended by"):
        pool.write_all(items())


def test_names_do_not_decide_about_exceptions(pool):
    for name in ["there is no such file", "File exists already", "it's there is no"]:
        pool.write_bytes(f"{name}/in", b"")
        with pytest.raises(hardpack.CannotError) as caught:
            pool.remove(name)
        assert type(caught.value) is hardpack.CannotError and caught.value.errno is None


def test_the_root_stays(pool):
    for change in [
        lambda: pool.remove("", recursive=True),
        lambda: pool.rename("/", "x"),
        lambda: pool.copy(".", "x", recursive=True),
        lambda: pool.mkdir(""),
        lambda: pool.write_bytes("", b""),
    ]:
        with pytest.raises(hardpack.UsageError):
            change()
    with pytest.raises(hardpack.NotAFileError):
        pool.open("", "wb")
    assert len(pool) == 3


def test_a_pool_that_is_gone_is_not_made_again(pool):
    os.remove("p.hpk")
    for change in [
        lambda: pool.write_bytes("x", b""),
        lambda: pool.put(".", "x"),
        lambda: pool.snapshot("monday"),
    ]:
        with pytest.raises(hardpack.NotFoundError):
            change()
    assert os.listdir() == []


def test_other_processes_are_sent_pools_and_paths(pool):
    pool.snapshot("then")
    for sent in [pool, pool.at("then"), pool / "a.txt"]:
        got = pickle.loads(pickle.dumps(sent))
        assert repr(got) == repr(sent)
    assert got.read_bytes() == b"first"


def test_snapshots_of_the_same_name(pool):
    pool.snapshot("s", "a.txt")
    pool.rename("a.txt", "b.txt")
    pool.write_bytes("a.txt", b"another")
    pool.snapshot("s", "a.txt")
    pool.remove("b.txt")
    found = [each for each in pool.snapshots() if each.path == "a.txt"]
    assert len(found) == 2
    for each in found:
        pool.destroy_snapshot(each.name, each.path)
    assert pool.snapshots() == []


def test_an_interrupt_within_a_listing(pool, monkeypatch):
    """Python raises it wherever its code runs, so also where C has called it back."""
    os.symlink("a.txt", "link")
    pool.put("link", "link")
    string_at, calls = ctypes.string_at, []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return string_at(*arguments)

    monkeypatch.setattr(ctypes, "string_at", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.listdir()
    assert len(calls) == 2
    calls.pop()
    with pytest.raises(KeyboardInterrupt):
        pool.readlink("link")
    monkeypatch.undo()
    assert pool.listdir() == ["a.txt", "dir", "link"] and pool.readlink("link") == "a.txt"


def test_a_directory_that_is_removed_while_it_is_listed(pool):
    found = []
    for path, _ in pool.walk():
        found.append(path)
        if path == "dir/b.txt":
            pool.remove("dir/deep", recursive=True)
    assert found == ["a.txt", "dir", "dir/b.txt", "dir/deep"]
    with pytest.raises(hardpack.NotFoundError):
        list(pool.walk("none"))


def test_a_fork_beside_a_thread_that_opens_the_pool(pool, python):
    """The child has no thread that would let go of the lock."""
    code = """
        import hardpack, os, threading
        pool = hardpack.Pool("p.hpk")
        taken, done = threading.Event(), threading.Event()
        def hold():
            with pool._lock:
                taken.set()
                done.wait()
        thread = threading.Thread(target=hold)
        thread.start()
        taken.wait()
        child = os.fork()
        if child == 0:
            os._exit(pool.read_bytes("a.txt") != b"first")
        done.set()
        thread.join()
        print(os.waitpid(child, 0)[1])
    """
    assert python(code) == "0\n"


def test_many_files_that_are_no_pools(pool, python):
    """A process may look at more of them than it may have open."""
    code = """
        import hardpack, os, resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
        for number in range(300):
            open(f"other{number}", "w").write("no pool")
            try:
                hardpack.Pool(f"other{number}")
            except hardpack.NotAPoolError:
                pass
        print(hardpack.Pool("p.hpk").read_bytes("a.txt"))
    """
    assert python(code) == "b'first'\n"


def test_threads(pool):
    names = list(pool)
    failed = []

    def read():
        try:
            for _ in range(50):
                for name in names:
                    assert len(pool.read_bytes(name)) == pool.stat(name).st_size
        except Exception as error:
            failed.append(error)

    def write():
        try:
            for number in range(5):
                pool.write_bytes(f"other{number}", b"x" * number)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=each) for each in [read, read, read, write]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
