"""Real programs use pools, unchanged. A package that is not installed is skipped.

`scripts/python.sh` installs the first three; with `HARDPACK_PYTHON_ALL=1`, all.
"""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import textwrap
import time
import urllib.request

import pytest
from conftest import is_pool

import hardpack


def need(name):
    return pytest.importorskip(name, reason=f"the package {name} is not installed")


def launch(*arguments):
    """A command that runs a program with Hardpack; some prefer pysqlite3 if it is installed."""
    found = importlib.util.find_spec("pysqlite3") is not None
    sqlite = ["--sqlite", "pysqlite3"] if found else []
    return [sys.executable, "-m", "hardpack", *sqlite, *arguments]


def filled(path):
    db = hardpack.connect(path)
    db.execute("CREATE TABLE words(id INTEGER PRIMARY KEY, word TEXT)")
    db.executemany("INSERT INTO words(word) VALUES (?)", [(f"word {n}",) for n in range(1000)])
    db.commit()
    db.close()


def test_apsw(python, work):
    need("apsw")
    filled("x.hpk")
    out = python(
        """
        import apsw, hardpack, sqlite3
        done = hardpack.register(apsw)
        assert done.sqlite_version == apsw.sqlite_lib_version(), done
        flags = apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        db = apsw.Connection("file:x.hpk?vfs=hardpack", flags=flags)
        assert db.execute("SELECT count(*) FROM words").get == 1000
        assert "hardpack" in apsw.vfs_names()
        db = apsw.Connection("new.hpk", vfs="hardpack")
        db.execute("CREATE TABLE t(a)")
        db.close()
        # Reading files of a pool needs no SQLite.
        assert hardpack.Pool("x.hpk")["x.hpk"].read_bytes()[:6] == b"SQLite"
        if apsw.sqlite_lib_version() == sqlite3.sqlite_version:
            print("already uses Hardpack with 'apsw', and both have the same SQLite")
            raise SystemExit
        try:
            hardpack.connect("x.hpk")
        except hardpack.NotSupported as error:
            print(error)
        """
    )
    assert is_pool("new.hpk")
    assert "already uses Hardpack with 'apsw'" in out


def test_pysqlite3(python, work):
    need("pysqlite3")
    out = python(
        """
        import pysqlite3, hardpack
        try:
            done = hardpack.register(pysqlite3)
        except hardpack.NotSupported as error:
            print("refused:", error)
            raise SystemExit
        assert done.sqlite_version == pysqlite3.sqlite_version
        db = pysqlite3.connect("file:x.hpk?vfs=hardpack", uri=True)
        db.execute("CREATE TABLE t(a)")
        db.commit()
        print("works")
        """
    )
    if out.startswith("works"):
        assert is_pool("x.hpk")
    else:
        assert "was not found among the libraries" in out


def test_sqlalchemy(work):
    sqlalchemy = need("sqlalchemy")
    from sqlalchemy import orm

    engine = sqlalchemy.create_engine("sqlite://", creator=lambda: hardpack.connect("x.hpk"))

    class Base(orm.DeclarativeBase):
        pass

    class User(Base):
        __tablename__ = "users"
        id = orm.mapped_column(sqlalchemy.Integer, primary_key=True)
        name = orm.mapped_column(sqlalchemy.String(50))

    Base.metadata.create_all(engine)
    with orm.Session(engine) as session, session.begin():
        session.add_all([User(name=f"user {n}") for n in range(100)])
    hardpack.register()
    by_url = sqlalchemy.create_engine("sqlite:///file:x.hpk?vfs=hardpack&uri=true")
    with orm.Session(by_url) as session:
        count = sqlalchemy.select(sqlalchemy.func.count()).select_from(User)
        assert session.scalar(count) == 100
        with pytest.raises(ZeroDivisionError), session.begin_nested():
            session.add(User(name="not this one"))
            session.flush()
            1 / 0
        assert session.scalar(count) == 100
    assert is_pool("x.hpk")


def test_sqlite_utils(work):
    sqlite_utils = need("sqlite_utils")
    db = sqlite_utils.Database(hardpack.connect("x.hpk"))
    rows = [{"id": n, "text": f"some words {n}"} for n in range(100)]
    db["docs"].insert_all(rows, pk="id").enable_fts(["text"], create_triggers=True)
    assert [row["id"] for row in db["docs"].search("77")] == [77]
    db.close()
    command = launch("-m", "sqlite_utils", "rows", "x.hpk", "docs")
    out = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    assert json.loads(out) == rows
    assert is_pool("x.hpk")


def test_pandas(work):
    pandas = need("pandas")
    db = hardpack.connect("x.hpk")
    frame = pandas.DataFrame({"a": range(1000), "b": [f"text {n}" for n in range(1000)]})
    frame.to_sql("frames", db, index=False)
    assert pandas.read_sql("SELECT * FROM frames", db).equals(frame)
    db.close()
    need("fsspec")
    frame.to_csv("hardpack://files.hpk/dir/frame.csv", index=False)
    assert pandas.read_csv("hardpack://files.hpk/dir/frame.csv").equals(frame)
    assert is_pool("files.hpk")


def test_polars(work):
    polars = need("polars")
    db = hardpack.connect("x.hpk")
    db.execute("CREATE TABLE frames(a INTEGER, b TEXT)")
    frame = polars.DataFrame({"a": range(1000), "b": [f"text {n}" for n in range(1000)]})
    with db:
        db.executemany("INSERT INTO frames VALUES (?, ?)", frame.iter_rows())
    assert polars.read_database("SELECT * FROM frames", db).equals(frame)
    batches = polars.read_database("SELECT a FROM frames", db, iter_batches=True, batch_size=300)
    assert polars.concat(batches)["a"].sum() == frame["a"].sum()
    db.close()
    assert is_pool("x.hpk")
    pool = hardpack.Pool.create("files.hpk")
    with pool.open("dir/frame.parquet", "wb") as file:
        frame.write_parquet(file)
    with pool.open("dir/frame.parquet") as file:
        assert polars.read_parquet(file).equals(frame)
    # Its own way to write goes through SQLAlchemy, pandas and Arrow.
    sqlalchemy = need("sqlalchemy")
    need("pandas")
    need("pyarrow")
    engine = sqlalchemy.create_engine("sqlite://", creator=lambda: hardpack.connect("x.hpk"))
    assert frame.write_database("frames", engine, if_table_exists="append") == 1000
    assert polars.read_database("SELECT count(*) FROM frames", engine).item() == 2000


def test_django(python, work):
    need("django")
    (work / "app").mkdir()
    (work / "app/__init__.py").touch()
    (work / "app/models.py").write_text(
        "from django.db import models\n"
        "class Note(models.Model):\n"
        "    text = models.TextField()\n"
        "    class Meta:\n"
        "        app_label = 'app'\n"
    )
    (work / "settings.py").write_text(
        textwrap.dedent(
            """
            import hardpack
            hardpack.register()
            SECRET_KEY = "for a test"
            INSTALLED_APPS = ["app"]
            DATABASES = {
                "default": {
                    "ENGINE": "django.db.backends.sqlite3",
                    "NAME": "file:site.hpk?vfs=hardpack",
                }
            }
            DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
            """
        )
    )
    python(
        """
        import django
        from django.core.management import call_command
        django.setup()
        call_command("makemigrations", "app", verbosity=0)
        call_command("migrate", verbosity=0)
        from django.db import transaction
        from app.models import Note
        with transaction.atomic():
            Note.objects.bulk_create([Note(text=f"note {n}") for n in range(100)])
        try:
            with transaction.atomic():
                Note.objects.all().delete()
                1 / 0
        except ZeroDivisionError:
            pass
        assert Note.objects.filter(text__contains="9").count() == 19
        """,
        DJANGO_SETTINGS_MODULE="settings",
    )
    assert is_pool("site.hpk")


def test_datasette(work):
    need("datasette")
    filled("x.hpk")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = launch("-m", "datasette", "serve", "x.hpk")
    log = open("log", "w+")
    server = subprocess.Popen([*command, "--port", str(port)], stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}/x/words.json?_shape=array&word=word+77"
        deadline = time.monotonic() + 60
        while True:
            try:
                rows = json.load(urllib.request.urlopen(url, timeout=10))
                break
            except OSError:
                assert server.poll() is None and time.monotonic() < deadline, open("log").read()
                time.sleep(0.2)
    finally:
        server.terminate()
        server.wait()
        log.close()
    assert rows == [{"id": 78, "word": "word 77"}]
    assert is_pool("x.hpk") and os.listdir() != []
