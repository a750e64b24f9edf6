"""Registers the VFS with the SQLite library that a Python module uses, and opens databases.

Two ways lead there. If the module can load extensions, it loads `libhardpack.so`. Otherwise the
functions of SQLite are looked up in the libraries that the module's own C extension is linked to,
then among the global symbols, then in every loaded library that is called like SQLite. A library
counts only if it reports the version and the source id that the module reports, and if a function
registered with `sqlite3_auto_extension` there is called when the module opens a connection. Only
then is anything of Hardpack registered.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple, Optional, Union
from urllib.parse import quote

from . import _errors as errors
from . import _library

VFS = "hardpack"
# A database in memory, opened through the VFS: it works exactly if the VFS is registered.
_PROBE_URI = f"file:hardpack-probe?mode=memory&vfs={VFS}"
_DEFAULT_ENTRY_POINT = "sqlite3_hardpackdefault_init"
_EntryPoint = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)

_lock = threading.RLock()


def _after_fork() -> None:
    """A forked child lacks the thread that may have held the lock."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


class Registration(NamedTuple):
    """Where the VFS is registered."""

    module: str
    """The name of the Python module."""
    sqlite_version: str
    """The version of its SQLite library."""
    source_id: str
    """The source id of that library."""
    way: str
    """How it was found: "extension", the file whose functions were used, or "registered before"."""
    default: bool
    """Whether Hardpack is the default VFS."""


_done: Optional[Registration] = None


class _Module:
    """A Python module with SQLite: `sqlite3` and modules like it, or `apsw`."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.name = module.__name__
        self.is_apsw = not hasattr(module, "connect") and hasattr(module, "Connection")
        if not self.is_apsw and not hasattr(module, "connect"):
            raise errors.UsageError(f"'{self.name}' is not a module with SQLite")
        version, self.source_id = self.query(
            ":memory:", "SELECT sqlite_version(), sqlite_source_id()"
        )
        self.version: str = version

    def open(self, uri: str) -> Any:
        if self.is_apsw:
            flags = (
                self.module.SQLITE_OPEN_URI
                | self.module.SQLITE_OPEN_READWRITE
                | self.module.SQLITE_OPEN_CREATE
            )
            return self.module.Connection(uri, flags=flags)
        return self.module.connect(uri, uri=True)

    def query(self, uri: str, sql: str) -> Any:
        db = self.open(uri)
        try:
            cursor = db.cursor()
            return next(iter(cursor.execute(sql)))
        finally:
            db.close()

    def has_vfs(self) -> bool:
        """Whether the module's SQLite knows the VFS."""
        try:
            self.open(_PROBE_URI).close()
        except Exception as error:
            if "no such vfs" in str(error):
                return False
            raise
        return True

    def load_extension(self, default: bool) -> Optional[str]:
        """Loads the extension. Returns why not, if the module cannot load any."""
        path = _library.path_of_library()
        db = self.open(":memory:")
        try:
            if self.is_apsw:
                db.enable_load_extension(True)
                db.load_extension(path, _DEFAULT_ENTRY_POINT if default else None)
                return None
            if not hasattr(db, "enable_load_extension"):
                return f"'{self.name}' was built without extensions"
            db.enable_load_extension(True)
            if default:
                db.execute("SELECT load_extension(?, ?)", (path, _DEFAULT_ENTRY_POINT))
            else:
                db.load_extension(path)
            return None
        except Exception as error:
            text = str(error)
            if "hardpack: " in text:
                # The extension was loaded, and refuses.
                raise errors.NotSupported(_refused(self, text)) from error
            return f"'{self.name}' cannot load extensions: {text}"
        finally:
            db.close()

    def files(self) -> Iterator[str]:
        """The C extensions that belong to the module."""
        names = [f"{self.name}._sqlite3", self.name, "_sqlite3"]
        for name in names[:2] if self.module is not sqlite3 else names:
            path = getattr(sys.modules.get(name), "__file__", None)
            if path is not None and path.endswith(".so"):
                yield path


class _Symbols:
    """The functions of a loaded library."""

    def __init__(self, path: Optional[str]) -> None:
        self.path = path
        # With RTLD_NOLOAD, nothing is loaded that was not there before.
        mode = ctypes.DEFAULT_MODE | (os.RTLD_NOLOAD if path is not None else 0)
        self.library = ctypes.CDLL(path, mode=mode)

    def address(self, name: str) -> int:
        try:
            return ctypes.cast(getattr(self.library, name), ctypes.c_void_p).value or 0
        except AttributeError:
            return 0

    def text(self, name: str) -> Optional[str]:
        """Calls a function without arguments that returns a string."""
        if not self.address(name):
            return None
        function = ctypes.CFUNCTYPE(ctypes.c_char_p)(self.address(name))
        return (function() or b"").decode("utf-8", "replace")

    def belongs_to(self, module: _Module) -> bool:
        """Whether these are the functions that the module calls."""
        is_same = (
            self.text("sqlite3_libversion") == module.version
            and self.text("sqlite3_sourceid") == module.source_id
        )
        return is_same and self._is_called_by(module)

    def _is_called_by(self, module: _Module) -> bool:
        called = threading.Event()

        def on_connect(_db: Any, _message: Any, _routines: Any) -> int:
            called.set()
            return 0

        entry = _EntryPoint(on_connect)
        add, cancel = "sqlite3_auto_extension", "sqlite3_cancel_auto_extension"
        if not self.address(add) or not self.address(cancel):
            return False
        call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
        pointer = ctypes.cast(entry, ctypes.c_void_p)
        if call(self.address(add))(pointer) != 0:
            return False
        try:
            module.open(":memory:").close()
        finally:
            call(self.address(cancel))(pointer)
            # Another thread may be about to call it.
            _kept.append(entry)
        return called.is_set()


_kept: list[Any] = []


def _candidates(module: _Module) -> Iterator[Optional[str]]:
    yield from module.files()
    yield None
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            paths = {line.split(maxsplit=5)[-1].strip() for line in maps if "/" in line}
    except OSError:
        return
    names = ("sqlite", "libpython")
    yield from sorted(p for p in paths if any(n in os.path.basename(p) for n in names))


def _find(module: _Module) -> Optional[_Symbols]:
    for path in _candidates(module):
        try:
            symbols = _Symbols(path)
        except OSError:
            continue
        if symbols.belongs_to(module):
            return symbols
    return None


def _refused(module: _Module, why: str) -> str:
    text = why.split("hardpack: ")[-1]
    if "another SQLite library" in text and _done is not None:
        text = (
            f"this process already uses Hardpack with '{_done.module}' and its SQLite "
            f"{_done.sqlite_version}; one process can use it with one SQLite library"
        )
    return f"cannot register Hardpack with '{module.name}', SQLite {module.version}: {text}"


def register(module: Optional[ModuleType] = None, *, default: bool = False) -> Registration:
    """Registers the VFS `hardpack` with the SQLite library of this process, for good.

    From then on, every `sqlite3.connect("file:x.hpk?vfs=hardpack", uri=True)` works, in every
    thread and subinterpreter, and in forked children. Calling it again is harmless.

    `module` is the module whose SQLite is meant: `sqlite3` unless given, or another one such as
    `apsw` or `pysqlite3`. A process can use Hardpack with one SQLite library.

    With `default=True`, Hardpack becomes the default VFS: programs open pools by their plain
    paths. Plain databases stay plain; new ones become pools.

    Raises `NotSupported` if the SQLite library cannot be used. Then nothing is registered.
    """
    global _done
    with _lock:
        known = _done is not None and _done.module == (module or sqlite3).__name__
        if _done is not None and known and (_done.default or not default):
            return _done
        found = _Module(module or sqlite3)
        # Before SQLite loads the library: there must be one copy, of this version.
        _library.load()
        way = "registered before"
        # What registered it, such as `hardpack run`, also said what new databases become.
        if default or not found.has_vfs():
            why = found.load_extension(default)
            way = "extension" if why is None else _register_found(found, default, why)
        if not found.has_vfs():
            raise errors.NotSupported(
                f"Hardpack was registered, but '{found.name}' does not see it: the process has "
                "several SQLite libraries"
            )
        _done = Registration(found.name, found.version, found.source_id, way, default)
        return _done


def _register_found(module: _Module, default: bool, why: str) -> str:
    symbols = _find(module)
    if symbols is None:
        raise errors.NotSupported(
            f"{why}, and its SQLite {module.version} was not found among the libraries of this "
            "process",
            hint="use a Python whose sqlite3 loads extensions or is linked to a shared libsqlite3 "
            "(that of the system, of Homebrew or of conda), or another module: 'pip install apsw' "
            "and hardpack.register(apsw)",
        )
    refused = _library.register_with(symbols.address, default)
    if refused is not None:
        raise errors.NotSupported(_refused(module, refused))
    return symbols.path or "the symbols of the process"


def uri_of(
    path: Union[str, bytes, os.PathLike[str], os.PathLike[bytes]],
    *,
    read_only: bool = False,
    at: Optional[str] = None,
    settings: Optional[dict[str, object]] = None,
) -> str:
    """Returns the URI by which SQLite opens a database through Hardpack.

    `path` is that of a pool, or of a database in one (`apps.hpk/shop.db`, also with `@SNAPSHOT`).
    `at` opens an older state: a snapshot, a time or a txg, see `docs/concurrency.md`.
    `settings` are those of a new pool, such as `{"compression": "zstd-9"}`.
    """
    raw = os.fsencode(path)
    if b"\0" in raw or raw in (b"", b":memory:"):
        raise errors.UsageError("a database through Hardpack needs the path of a file")
    parameters = {"vfs": VFS}
    if read_only:
        parameters["mode"] = "ro"
    if at is not None:
        parameters["at"] = at
    for name, value in (settings or {}).items():
        text = ("off", "on")[value] if isinstance(value, bool) else str(value)
        parameters["hardpack_" + name.replace("-", "_")] = text
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in parameters.items())
    # An absolute path needs an empty authority, or one that begins with two slashes would be one.
    prefix = "file://" if raw.startswith(b"/") else "file:"
    return f"{prefix}{quote(raw, safe='/')}?{query}"


def connect(
    path: Union[str, bytes, os.PathLike[str], os.PathLike[bytes]],
    *,
    read_only: bool = False,
    at: Optional[str] = None,
    settings: Optional[dict[str, object]] = None,
    **sqlite3_args: Any,
) -> sqlite3.Connection:
    """Opens a database in a pool, as an ordinary `sqlite3.Connection`.

    A database that does not exist is created as a pool, unless `read_only` is set; a plain database
    is opened as such. `path` may lead into a pool (`apps.hpk/shop.db`) or a snapshot
    (`apps.hpk/shop.db@monday`). `at` opens an older state for reading: the snapshot of that name,
    or the newest one that is not younger than a time such as `2026-11-23 12:30`. `settings` are
    those of a new pool. All other arguments are those of `sqlite3.connect`; its exceptions are
    raised as they are.
    """
    uri = uri_of(getattr(path, "address", path), read_only=read_only, at=at, settings=settings)
    register()
    opened: sqlite3.Connection = sqlite3.connect(uri, **{**sqlite3_args, "uri": True})
    return opened
