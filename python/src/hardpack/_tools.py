"""Functions on whole pools: what the command of the same name does."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Optional

from . import _command, _names
from ._command import ProgressCallback
from ._errors import UsageError
from ._pool import OsPath, properties_of


def _path(path: OsPath) -> str:
    return os.path.abspath(_names.os_path(getattr(path, "address", path)))


def _threads(count: Optional[int]) -> list[str]:
    return [] if count is None else ["-j", str(count)]


def pack(
    source: OsPath,
    pool: Optional[OsPath] = None,
    *,
    in_place: bool = False,
    force: bool = False,
    clear_unused: bool = False,
    properties: Optional[Mapping[str, object]] = None,
    threads: Optional[int] = None,
    progress: Optional[ProgressCallback] = None,
) -> dict[str, Any]:
    """Makes a pool from a file or a database, which may be in use.

    The pool is `source` with `.hpk` appended unless `pool` names another file. It is verified
    before it gets that name. `in_place` replaces the source, `force` an existing pool.
    `properties` are settings such as `{"compression": "zstd-19"}`. With `clear_unused`, bytes that
    SQLite never reads are stored as zeros. Returns a report with `pool`, `logical_bytes`,
    `pool_bytes` and `ratio`.
    """
    if in_place and pool is not None:
        raise UsageError("with in_place, the pool takes the place of the source")
    command = ["pack", "--json", *_threads(threads), *properties_of(properties or {})]
    flags = [("--in-place", in_place), ("-f", force), ("--clear-unused", clear_unused)]
    command += [flag for flag, on in flags if on]
    command += ["--", _path(source), *([] if pool is None else [_path(pool)])]
    report: dict[str, Any] = _command.run(command, progress=progress).json()
    return report


def unpack(
    pool: OsPath,
    dest: Optional[OsPath] = None,
    *,
    in_place: bool = False,
    force: bool = False,
    threads: Optional[int] = None,
    progress: Optional[ProgressCallback] = None,
) -> dict[str, Any]:
    """Restores the file that a pool holds, byte for byte.

    `dest` is the file to make, or a directory for it; by default the original name, next to the
    pool. `in_place` replaces the pool, `force` an existing file. Returns a report with `output` and
    `logical_bytes`.
    """
    if in_place and dest is not None:
        raise UsageError("with in_place, the file takes the place of the pool")
    command = ["unpack", "--json", *_threads(threads)]
    command += [flag for flag, on in [("--in-place", in_place), ("-f", force)] if on]
    command += ["--", _path(pool), *([] if dest is None else [_path(dest)])]
    report: dict[str, Any] = _command.run(command, progress=progress).json()
    return report


def info(pool: OsPath) -> dict[str, Any]:
    """Returns what a pool holds, how well it compresses, and its settings."""
    report: dict[str, Any] = _command.run(["info", "--json", "--", _path(pool)]).json()
    return report


def check(
    pool: OsPath,
    *,
    repair: bool = False,
    integrity_check: bool = True,
    threads: Optional[int] = None,
    progress: Optional[ProgressCallback] = None,
) -> dict[str, Any]:
    """Verifies everything in a pool, and with SQLite's `integrity_check` its databases.

    Returns a report: `ok` says whether everything was verified and found sound, `problems` and
    `integrity_check` list what was not, and `overtaken` what could not be checked because it was
    written all the time. Damage raises an exception only if it leaves nothing to report. `repair`
    first does what loses no data.
    """
    command = ["check", "--json", *_threads(threads)]
    command += [] if integrity_check else ["--no-integrity-check"]
    command += ["--repair"] if repair else []
    command += ["--", _path(pool)]
    return _command.report(command, progress=progress, accept=(0, 1, 5))
