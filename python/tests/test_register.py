"""Registration finds the SQLite library that a module uses, whichever way leads there."""

import shutil
import sqlite3
import subprocess
import sys

import pytest
from conftest import is_pool

import hardpack

# Makes a module unable to load extensions, as a Python without them is.
WITHOUT_EXTENSIONS = """
    from hardpack import _register
    _register._Module.load_extension = lambda *_: "'sqlite3' was built without extensions"
"""


def test_the_library_of_the_module_is_used():
    done = hardpack.register()
    assert done.sqlite_version == sqlite3.sqlite_version
    (source_id,) = sqlite3.connect(":memory:").execute("SELECT sqlite_source_id()").fetchone()
    assert done.source_id == source_id
    has_extensions = hasattr(sqlite3.Connection, "enable_load_extension")
    assert (done.way == "extension") == has_extensions
    assert hardpack.register() is done


def test_any_connection_of_the_process_opens_pools(python, work):
    python(
        """
        import sqlite3, hardpack
        before = sqlite3.connect(":memory:", uri=True)
        hardpack.register()
        db = sqlite3.connect("file:x.hpk?vfs=hardpack", uri=True)
        db.execute("CREATE TABLE t(a)")
        db.execute("INSERT INTO t VALUES ('kept')")
        db.commit()
        before.execute("ATTACH 'file:x.hpk?vfs=hardpack' AS x")
        assert before.execute("SELECT a FROM x.t").fetchall() == [("kept",)]
        assert db.execute("SELECT value FROM hardpack_stats WHERE name = 'compression'").fetchone()
        assert db.execute("SELECT hardpack_ratio() > 0").fetchone() == (1,)
        """
    )
    assert is_pool(work / "x.hpk")


def test_without_extensions_the_functions_are_looked_up(python, work):
    out = python(
        WITHOUT_EXTENSIONS
        + """
    import hardpack, sqlite3
    done = hardpack.register()
    assert done.way != "extension"
    db = hardpack.connect("x.hpk")
    db.execute("CREATE TABLE t(a)")
    db.execute("INSERT INTO t VALUES (?)", ("kept" * 1000,))
    db.commit()
    assert db.execute("SELECT hardpack_ratio() > 1").fetchone() == (1,)
    print(db.execute("PRAGMA hardpack_version").fetchone()[0])
    """
    )
    assert out.strip() == hardpack.__version__
    assert is_pool(work / "x.hpk")


@pytest.mark.parametrize("prepare", ["", WITHOUT_EXTENSIONS])
def test_default_vfs(python, work, prepare):
    python(
        prepare
        + """
    import hardpack, sqlite3
    assert not hardpack.register().default
    assert hardpack.register(default=True).default
    assert hardpack.register().default
    db = sqlite3.connect("x.hpk")
    db.execute("CREATE TABLE t(a)")
    db.commit()
    db.execute("VACUUM INTO 'plain.db'")
    sqlite3.connect(":memory:").execute("CREATE TABLE t(a)")
    """
    )
    assert is_pool(work / "x.hpk")
    assert not is_pool(work / "plain.db")


def test_a_library_that_is_not_found(python):
    said = python(
        WITHOUT_EXTENSIONS
        + """
    _register._candidates = lambda module: iter(())
    import hardpack
    hardpack.register()
    """,
        fails=True,
    )
    assert "hardpack._errors.NotSupported" in said
    assert "built without extensions" in said
    assert f"SQLite {sqlite3.sqlite_version} was not found" in said


def test_a_library_that_the_module_does_not_use_is_not_taken(python):
    """Its version and source id agree, but its functions are not the ones that are called."""
    said = python(
        WITHOUT_EXTENSIONS
        + """
    import ctypes, hardpack, sqlite3
    class Other(_register._Symbols):
        def __init__(self, path):
            super().__init__(path)
            self.answer = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda _: 0)
        def address(self, name):
            if name in ("sqlite3_auto_extension", "sqlite3_cancel_auto_extension"):
                return ctypes.cast(self.answer, ctypes.c_void_p).value
            return super().address(name)
    _register._Symbols = Other
    try:
        hardpack.register()
    finally:
        try:
            sqlite3.connect("file:x.hpk?vfs=hardpack", uri=True)
        except sqlite3.OperationalError as error:
            assert "no such vfs" in str(error)
        else:
            raise SystemExit("it was registered")
    """,
        fails=True,
    )
    assert "was not found among the libraries" in said


def test_a_copy_that_is_loaded_already_is_used(python, work):
    """Two copies would have two registries of open files, and drop each other's locks."""
    copy = work / "libhardpack.so"
    shutil.copy(hardpack.path_of_library(), copy)
    code = """
    import ctypes, hardpack, sys
    assert hardpack.path_of_library() != sys.argv[1]
    ctypes.CDLL(sys.argv[1])
    assert hardpack.path_of_library() == sys.argv[1]
    hardpack.connect("x.hpk").execute("CREATE TABLE t(a)")
    hardpack.Pool("x.hpk").read_bytes("x.hpk")
    copies = {line.split()[-1] for line in open("/proc/self/maps") if "libhardpack.so" in line}
    assert copies == {sys.argv[1]}, copies
    """
    python(code, str(copy))
    other = """
    from hardpack import _library
    _library.VERSION = "0.0.9"
    """
    said = python(other + code, str(copy), fails=True)
    assert "is not of version 0.0.9, as this package is" in said


def test_a_copy_that_was_replaced_is_not_joined_by_another(python, work):
    """As when the package is installed again while a program runs that uses it."""
    shutil.copy(hardpack.path_of_library(), work / "libhardpack.so")
    python(
        """
        import os, shutil, sqlite3, sys, hardpack
        pool = hardpack.Pool.create("x.hpk")
        shutil.copy("libhardpack.so", "new")
        os.rename("new", "libhardpack.so")
        try:
            hardpack.connect("x.hpk/a.db")
            # Without extensions, the functions of the loaded copy are used.
            assert not hasattr(sqlite3.Connection, "enable_load_extension")
        except hardpack.NotSupported as error:
            assert "was removed or replaced" in str(error) and error.hint
        with open("/proc/self/maps") as maps:
            loaded = [line for line in maps if "libhardpack.so" in line]
        names = {line.split(maxsplit=5)[-1] for line in loaded}
        assert len(names) == 1, names
        assert list(pool) == []
        """,
        HARDPACK_LIBRARY=str(work / "libhardpack.so"),
    )


def test_beside_hardpack_run(work):
    """What is preloaded and the package use the same copy, whichever comes first."""
    for first in ["sqlite3.connect('x.hpk')", "hardpack.Pool('x.hpk')", "hardpack.register()"]:
        code = f"""
import hardpack, sqlite3
{first}
db = sqlite3.connect("x.hpk")
db.execute("CREATE TABLE IF NOT EXISTS t(a)")
db.execute("INSERT INTO t VALUES (1)")
db.commit()
hardpack.Pool("x.hpk").read_bytes("x.hpk")
hardpack.connect("x.hpk").execute("SELECT * FROM t").fetchall()
copies = {{line.split()[-1] for line in open("/proc/self/maps") if "libhardpack.so" in line}}
assert len(copies) == 1, copies
"""
        hardpack.connect("x.hpk").execute("CREATE TABLE IF NOT EXISTS before(a)")
        command = [hardpack.path_of_command(), "run", "--", sys.executable, "-c", code]
        subprocess.run(command, check=True, timeout=120)


def test_something_that_is_no_sqlite():
    with pytest.raises(hardpack.UsageError, match="'sys' is not a module with SQLite"):
        hardpack.register(sys)


def test_forked_children_open_their_own(python):
    out = python(
        """
        import multiprocessing, hardpack
        db = hardpack.connect("x.hpk", timeout=30)
        db.execute("CREATE TABLE t(a)")
        db.commit()
        pool = hardpack.Pool("x.hpk")
        pool.write_bytes("file", b"content")
        opened = pool.open("file")

        def child(number):
            mine = hardpack.connect("x.hpk", timeout=30)
            with mine:
                mine.execute("INSERT INTO t VALUES (?)", (number,))
            mine.close()
            assert pool.read_bytes("file") == b"content"
            try:
                opened.read()
            except hardpack.HardpackError as error:
                assert "before a fork" in str(error)
            else:
                raise SystemExit("a file of the parent was read")

        context = multiprocessing.get_context("fork")
        children = [context.Process(target=child, args=(n,)) for n in range(4)]
        for each in children: each.start()
        for each in children: each.join()
        print([each.exitcode for each in children])
        print(sorted(db.execute("SELECT a FROM t")), opened.read())
        """
    )
    assert out.splitlines() == ["[0, 0, 0, 0]", "[(0,), (1,), (2,), (3,)] b'content'"]


def test_spawned_children(work):
    (work / "main.py").write_text(
        """
import multiprocessing, hardpack

def child(number):
    with hardpack.connect("x.hpk", timeout=30) as db:
        db.execute("INSERT INTO t VALUES (?)", (number,))

if __name__ == "__main__":
    db = hardpack.connect("x.hpk")
    db.execute("CREATE TABLE t(a)")
    db.commit()
    with multiprocessing.get_context("spawn").Pool(2) as workers:
        workers.map(child, range(4))
    assert len(db.execute("SELECT * FROM t").fetchall()) == 4
"""
    )
    subprocess.run([sys.executable, "main.py"], check=True, timeout=120)


def test_subinterpreters(python):
    names = ["_interpreters", "_xxsubinterpreters"]
    module = next((name for name in names if sys.version_info >= (3, 10) and _has(name)), None)
    if module is None:
        pytest.skip("this Python has no module for subinterpreters")
    python(
        f"""
        import {module} as interpreters
        import hardpack
        hardpack.register()
        inside = interpreters.create()
        interpreters.run_string(inside, '''if True:
            import sqlite3
            db = sqlite3.connect("file:x.hpk?vfs=hardpack", uri=True)
            db.execute("CREATE TABLE t(a)")
            db.execute("INSERT INTO t VALUES (1)")
            db.commit()
            db.close()
        ''')
        interpreters.destroy(inside)
        db = hardpack.connect("x.hpk")
        assert db.execute("SELECT a FROM t").fetchall() == [(1,)]
        """
    )


def _has(name):
    import importlib.util

    return importlib.util.find_spec(name) is not None


def test_programs_run_with_the_default_vfs(work):
    (work / "main.py").write_text(
        "import sqlite3, sys\n"
        "assert __name__ == '__main__' and sys.argv == ['main.py', '-x']\n"
        "db = sqlite3.connect('x.hpk')\n"
        "db.execute('CREATE TABLE t(a)')\n"
        "db.commit()\n"
    )
    subprocess.run([sys.executable, "-m", "hardpack", "main.py", "-x"], check=True)
    assert is_pool(work / "x.hpk")
    (work / "main.py").write_text("import sys; sys.exit(sys.argv[1])\n")
    done = subprocess.run(
        [sys.executable, "-m", "hardpack", "-m", "main", "7"], stderr=subprocess.PIPE
    )
    assert (done.returncode, done.stderr) == (1, b"7\n")
    done = subprocess.run([sys.executable, "-m", "hardpack"], stderr=subprocess.PIPE)
    assert done.returncode == 1 and b"usage" in done.stderr
