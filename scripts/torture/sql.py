"""Connections of this process, with and without Hardpack."""

import os
import sqlite3
import sys

BUSY, FULL = 5, 13
TIMEOUT_SECONDS = 30
# If this is set in the environment, everything runs on a plain database with SQLite alone: failures
# are then not Hardpack's.
CONTROL = "HARDPACK_TORTURE_CONTROL"

# Older versions may lose transactions in WAL mode, with Hardpack or without: if a page is spilled
# twice after a savepoint that is then rolled back, the checksums in the log are wrong from that
# commit on, and after a crash the log is read only up to there. Seen with 3.40.1 on a plain
# database (`--control`); fixed in this version.
SAVEPOINTS_IN_WAL_SINCE = (3, 54, 1)


def is_control():
    return CONTROL in os.environ


def need_extensions():
    """Checks that this Python can load extensions: some builds cannot, the system's can."""
    if hasattr(sqlite3.Connection, "enable_load_extension"):
        return
    system = "/usr/bin/python3"
    if os.path.exists(system) and os.path.realpath(sys.executable) != os.path.realpath(system):
        os.execv(system, [system] + sys.argv)
    raise SystemExit("this python's sqlite3 cannot load extensions; use the system's python3")


def load(library):
    """Registers the VFS for the whole process."""
    if is_control():
        return None
    loader = sqlite3.connect(":memory:")
    loader.enable_load_extension(True)
    loader.load_extension(library)
    return loader


def uri(path):
    return f"file:{path}" if is_control() else f"file:{path}?vfs=hardpack"


def connect(path, *pragmas, timeout=TIMEOUT_SECONDS):
    """Opens a connection through Hardpack, without Python's own transactions."""
    db = sqlite3.connect(uri(path), uri=True, timeout=timeout, isolation_level=None)
    for pragma in pragmas:
        db.execute(f"pragma {pragma}").fetchall()
    return db


def primary_code(error):
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def integrity(db):
    rows = db.execute("pragma integrity_check").fetchall()
    if rows != [("ok",)]:
        raise sqlite3.DatabaseError(f"integrity_check: {rows[:5]}")
