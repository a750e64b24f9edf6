"""SQLite databases and files, compressed and checksummed in one ordinary file: a pool.

    import hardpack

    db = hardpack.connect("app.hpk")            # an ordinary sqlite3.Connection
    hardpack.pack("wiki.db")                    # makes wiki.db.hpk
    with hardpack.Pool("archive.hpk") as pool:  # a mapping of names to files
        text = pool["notes/today.txt"].read_text()

`docs/python.md` of the project explains everything by task.
"""

from ._command import Progress, ProgressCallback
from ._errors import (
    CannotError,
    ChangedError,
    DamageError,
    ExistsError,
    HardpackError,
    InternalError,
    InUseError,
    NotADirError,
    NotAFileError,
    NotAPoolError,
    NotFoundError,
    NotSupported,
    StoppedError,
    UsageError,
)
from ._library import VERSION as __version__
from ._library import path_of_command, path_of_library
from ._path import PoolPath, Stat
from ._pool import Pool, Snapshot
from ._register import Registration, connect, register, uri_of
from ._tools import check, info, pack, unpack

__all__ = [
    "CannotError",
    "ChangedError",
    "DamageError",
    "ExistsError",
    "HardpackError",
    "InUseError",
    "InternalError",
    "NotADirError",
    "NotAFileError",
    "NotAPoolError",
    "NotFoundError",
    "NotSupported",
    "Pool",
    "PoolPath",
    "Progress",
    "ProgressCallback",
    "Registration",
    "Snapshot",
    "Stat",
    "StoppedError",
    "UsageError",
    "__version__",
    "check",
    "connect",
    "info",
    "pack",
    "path_of_command",
    "path_of_library",
    "register",
    "unpack",
    "uri_of",
]
