"""`connect` opens and makes databases in pools, and changes nothing else about sqlite3."""

import os
import sqlite3
import threading

import pytest
from conftest import is_pool

import hardpack


def test_an_ordinary_connection(work):
    class Own(sqlite3.Connection):
        pass

    db = hardpack.connect("x.hpk", factory=Own, isolation_level=None, timeout=1)
    assert isinstance(db, Own) and db.isolation_level is None
    db.execute("CREATE TABLE t(a)")
    db.close()
    assert is_pool("x.hpk")


@pytest.mark.parametrize("name", ["a b.hpk", "ä?&=%41#.hpk", "x'\".hpk", b"\xff.hpk"])
def test_names_that_a_uri_must_quote(work, name):
    for path in [name, os.path.join(os.fsencode(work), os.fsencode(name))]:
        db = hardpack.connect(path)
        db.execute("CREATE TABLE IF NOT EXISTS t(a)")
        db.commit()
        db.close()
    assert os.listdir(os.fsencode(".")) == [os.fsencode(name)]
    assert is_pool(name)
    assert hardpack.check(name)["ok"]


def test_settings_of_a_new_pool(work):
    hardpack.connect("x.hpk", settings={"compression": "zstd-9", "min-savings": "20%"}).execute(
        "CREATE TABLE t(a)"
    )
    settings = hardpack.Pool("x.hpk").properties()
    assert (settings["compression"], settings["min-savings"]) == ("zstd-9", "20%")
    hardpack.connect("y.hpk", settings={"dedup": True}).execute("CREATE TABLE t(a)")
    assert hardpack.Pool("y.hpk").properties()["dedup"] == "on"


def test_reading_only(work):
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        hardpack.connect("x.hpk", read_only=True)
    assert os.listdir() == []
    hardpack.connect("x.hpk").execute("CREATE TABLE t(a)")
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        hardpack.connect("x.hpk", read_only=True).execute("INSERT INTO t VALUES (1)")


def test_plain_databases_stay_plain(work):
    plain = sqlite3.connect("plain.db")
    plain.execute("CREATE TABLE t(a)")
    plain.close()
    db = hardpack.connect("plain.db")
    db.execute("INSERT INTO t VALUES (1)")
    db.commit()
    db.close()
    assert sqlite3.connect("plain.db").execute("SELECT * FROM t").fetchall() == [(1,)]


def test_databases_in_a_pool_of_many(work):
    pool = hardpack.Pool.create("apps.hpk")
    db = (pool / "shop.db").connect()
    db.execute("CREATE TABLE t(a)")
    db.execute("INSERT INTO t VALUES (1)")
    db.commit()
    pool.snapshot("monday", "shop.db")
    db.execute("INSERT INTO t VALUES (2)")
    db.commit()
    then = hardpack.connect("apps.hpk/shop.db@monday", read_only=True)
    assert then.execute("SELECT count(*) FROM t").fetchone() == (1,)
    assert hardpack.connect(pool["shop.db"]).execute("SELECT count(*) FROM t").fetchone() == (2,)


def test_the_database_as_it_was(work):
    db = hardpack.connect("x.hpk")
    db.execute("CREATE TABLE t(a)")
    db.execute("INSERT INTO t VALUES (1)")
    db.commit()
    hardpack.Pool("x.hpk").snapshot("a & b")
    db.execute("INSERT INTO t VALUES (2)")
    db.commit()
    then = hardpack.connect("x.hpk", at="a & b")
    assert then.execute("SELECT count(*) FROM t").fetchone() == (1,)
    with pytest.raises(sqlite3.OperationalError):
        then.execute("INSERT INTO t VALUES (3)")
    with pytest.raises(sqlite3.OperationalError):
        hardpack.connect("x.hpk", at="no such name").execute("SELECT * FROM t")


def test_what_is_no_path():
    for path in ["", ":memory:", "a\0b"]:
        with pytest.raises(hardpack.UsageError):
            hardpack.connect(path)


def test_threads(work):
    db = hardpack.connect("x.hpk")
    db.execute("CREATE TABLE t(a)")
    db.close()
    failed = []

    def work_on(number):
        try:
            mine = hardpack.connect("x.hpk", timeout=60)
            for round in range(20):
                with mine:
                    mine.execute("INSERT INTO t VALUES (?)", (number * 100 + round,))
            mine.close()
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work_on, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    db = hardpack.connect("x.hpk")
    assert db.execute("SELECT count(DISTINCT a) FROM t").fetchone() == (80,)
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
