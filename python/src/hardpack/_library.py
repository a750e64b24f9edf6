"""Loads `libhardpack.so`, and calls its C functions (`crates/sqlite/src/reader/ffi.rs`, and
`hardpack_register_with` of `hardpack.h`).

A call releases the interpreter's lock. A handle is freed when its last user lets go of it: closing
a pool beside a thread that reads it is safe. A forked child never frees what its parent opened.

A process must have one copy of the library: two would drop each other's locks. So a copy that is
loaded already is used, if it is of this version, and the one that `hardpack run` is about to load.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from ctypes import (
    POINTER,
    byref,
    c_char,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any, Callable, NamedTuple, NoReturn, Optional

from . import _errors as errors

VERSION = "0.1.0"
_ABI = 2
_LIBRARY = "libhardpack.so"
# Names another copy, for the command as well.
_VARIABLE = "HARDPACK_LIBRARY"
# What the system shows behind the name of a file that has none any more.
_DELETED = " (deleted)"
_NATIVE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_native")

FILE, DIRECTORY, SYMLINK, FIFO, SOCKET, CHAR_DEVICE, BLOCK_DEVICE = 1, 2, 3, 4, 5, 6, 7
_REGISTER_DEFAULT = 1

DAMAGE, CANNOT, NOT_A_POOL, IN_USE = 1, 3, 4, 5
NOT_FOUND, NOT_A_FILE, NOT_A_DIRECTORY, CHANGED, HAS_LOG, STOPPED = 10, 11, 12, 13, 14, 15


class HasLogError(errors.InUseError):
    """The pool alone does not hold all of a database."""


_CLASSES = {
    DAMAGE: errors.DamageError,
    CANNOT: errors.CannotError,
    NOT_A_POOL: errors.NotAPoolError,
    IN_USE: errors.InUseError,
    NOT_FOUND: errors.NotFoundError,
    NOT_A_FILE: errors.NotAFileError,
    NOT_A_DIRECTORY: errors.NotADirError,
    CHANGED: errors.ChangedError,
    HAS_LOG: HasLogError,
    STOPPED: errors.StoppedError,
    70: errors.InternalError,
}


class _Error(ctypes.Structure):
    _fields_ = [("code", c_int32), ("os_error", c_int32), ("text", c_char * 1024)]


class _Stat(ctypes.Structure):
    _fields_ = [
        ("file", c_uint64),
        ("len", c_uint64),
        ("modified_ns", c_int64),
        ("accessed_ns", c_int64),
        ("changed_ns", c_int64),
        ("created_ns", c_int64),
        ("kind", c_uint32),
        ("mode", c_uint32),
        ("links", c_uint32),
        ("has_owner", c_uint32),
        ("uid", c_uint32),
        ("gid", c_uint32),
    ]


class Attributes(NamedTuple):
    """What a pool records about a file; times in nanoseconds since 1970, 0 if unknown."""

    file: int
    len: int
    modified_ns: int
    accessed_ns: int
    changed_ns: int
    created_ns: int
    kind: int
    mode: int
    links: int
    uid: Optional[int]
    gid: Optional[int]


def _attributes(stat: _Stat) -> Attributes:
    owner = (stat.uid, stat.gid) if stat.has_owner else (None, None)
    return Attributes(
        stat.file,
        stat.len,
        stat.modified_ns,
        stat.accessed_ns,
        stat.changed_ns,
        stat.created_ns,
        stat.kind,
        stat.mode,
        stat.links,
        *owner,
    )


_Visit = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, POINTER(_Stat))
_Take = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t)
_Find = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_char_p)


def path_of_library() -> str:
    """Returns the path of the SQLite extension: of the copy that is loaded, or is to be."""
    return _loaded() or os.environ.get(_VARIABLE) or _native(_LIBRARY)


def _loaded() -> Optional[str]:
    """Returns the path of the copy that this process has loaded."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            paths = [line.split(maxsplit=5)[-1].rstrip("\n") for line in maps if _LIBRARY in line]
    except OSError:
        return None
    for path in paths:
        name = path[: -len(_DELETED)] if path.endswith(_DELETED) else path
        if os.path.basename(name) != _LIBRARY:
            continue
        if name != path and not os.path.exists(path):
            raise errors.NotSupported(
                f"'{name}' was removed or replaced since this process loaded it, and a process "
                "can use one copy",
                hint="start the program again",
            )
        return path
    return None


def path_of_command() -> str:
    """Returns the path of the command `hardpack`."""
    return _native("hardpack")


def _native(name: str) -> str:
    path = os.path.join(_NATIVE, name)
    if not os.path.exists(path):
        raise errors.NotSupported(
            f"this installation of Hardpack lacks '{path}'",
            hint="install it again, with 'pip install --force-reinstall hardpack'",
        )
    return path


@functools.cache
def load() -> Any:
    """Returns the loaded library."""
    path = path_of_library()
    try:
        lib = ctypes.CDLL(path)
    except OSError as error:
        raise errors.NotSupported(f"cannot load the library of Hardpack: {error}") from error
    check_version(lib, path)
    failure = POINTER(_Error)
    place = (c_char_p, c_size_t)
    for name, arguments in {
        "open": (c_char_p, POINTER(c_void_p), failure),
        "stat": (c_void_p, *place, c_int, POINTER(_Stat), failure),
        "list": (c_void_p, *place, _Visit, c_void_p, failure),
        "target": (c_void_p, *place, _Take, c_void_p, failure),
        "file": (c_void_p, *place, POINTER(c_void_p), POINTER(c_uint64), failure),
        "read": (c_void_p, c_void_p, c_size_t, c_uint64, POINTER(c_size_t), failure),
        "is_current": (c_void_p,),
    }.items():
        function = getattr(lib, f"hardpack_reader_{name}")
        function.argtypes, function.restype = arguments, c_int
    for name in ["close", "file_close"]:
        function = getattr(lib, f"hardpack_reader_{name}")
        function.argtypes, function.restype = (c_void_p,), None
    lib.hardpack_register_with.argtypes = (_Find, c_void_p, c_uint)
    lib.hardpack_register_with.restype = c_int
    lib.hardpack_error.argtypes, lib.hardpack_error.restype = (), c_char_p
    return lib


def _raise(error: _Error, action: str, what: str) -> NoReturn:
    text = error.text.decode("utf-8", "replace")
    kind = _CLASSES.get(error.code, errors.HardpackError)
    raised = kind(f"cannot {action} '{what}': {text}")
    if isinstance(raised, OSError):
        missing = errno.ENOENT if error.code == NOT_FOUND else None
        raised.errno = error.os_error or missing
    raise raised


def call(function: Any, *arguments: Any, action: str, what: str) -> None:
    """Calls a function of the library, and raises its error as `cannot ACTION 'WHAT': ...`."""
    error = _Error()
    if function(*arguments, byref(error)) != 0:
        _raise(error, action, what)


def _call_back(
    function: Any, raised: list[BaseException], *arguments: Any, action: str, what: bytes
) -> None:
    """Calls a function with a callback, whose exceptions nothing can carry through C.

    The callback keeps one in `raised`. An interrupt before its first line is not even kept, but
    stops the function as well.
    """
    try:
        call(function, *arguments, action=action, what=os.fsdecode(what))
    except errors.StoppedError:
        if raised:
            raise raised[0] from None
        raise


def register_with(find: Callable[[str], int], default: bool) -> Optional[str]:
    """Registers the VFS with the SQLite whose functions `find` returns the addresses of.

    Returns why it could not.
    """
    callback = _Find(lambda _context, name: find(name.decode()) or None)
    lib = load()
    if lib.hardpack_register_with(callback, None, _REGISTER_DEFAULT if default else 0) == 0:
        return None
    # The text belongs to this thread.
    return str(lib.hardpack_error().decode("utf-8", "replace"))


def check_version(lib: Any, path: str) -> None:
    """Refuses a library that does not belong to this package."""
    if hasattr(lib, "hardpack_version") and hasattr(lib, "hardpack_reader_abi"):
        lib.hardpack_version.restype = c_char_p
        if lib.hardpack_version().decode() == VERSION and lib.hardpack_reader_abi() == _ABI:
            return
    raise errors.NotSupported(
        f"'{path}' is not of version {VERSION}, as this package is, and a process can use one",
        hint=f"load the copy of this package instead, or none, and unset {_VARIABLE}",
    )


class _Handle:
    """A handle of the library, freed with the last reference to it."""

    _free = ""

    def __init__(self, pointer: c_void_p) -> None:
        self._pointer: Optional[c_void_p] = pointer
        self._process = os.getpid()
        self._close = getattr(load(), self._free)

    @property
    def is_ours(self) -> bool:
        """Whether this process opened it, not its parent."""
        return self._process == os.getpid()

    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:
        pointer = getattr(self, "_pointer", None)
        if pointer is not None and self._process == getpid():
            self._pointer = None
            self._close(pointer)


class Reader(_Handle):
    """A pool that is open for reading."""

    _free = "hardpack_reader_close"

    def __init__(self, path: str) -> None:
        self.path = path
        pointer = c_void_p()
        call(
            load().hardpack_reader_open, os.fsencode(path), byref(pointer), action="open", what=path
        )
        super().__init__(pointer)

    def is_current(self) -> bool:
        """Whether the path still leads to this pool."""
        return bool(load().hardpack_reader_is_current(self._pointer))

    def stat(self, path: bytes, follow: bool) -> Attributes:
        stat = _Stat()
        place = (self._pointer, path, len(path), int(follow), byref(stat))
        call(load().hardpack_reader_stat, *place, action="find", what=os.fsdecode(path))
        return _attributes(stat)

    def entries(self, path: bytes) -> list[tuple[bytes, Attributes]]:
        """Returns the names of a directory, in byte order, with their attributes."""
        found: list[tuple[bytes, Attributes]] = []
        raised: list[BaseException] = []

        def visit(_context: Any, name: int, name_len: int, stat: Any) -> int:
            try:
                found.append((ctypes.string_at(name, name_len), _attributes(stat.contents)))
                return 1
            except BaseException as error:
                raised.append(error)
                return 0

        place = (self._pointer, path, len(path), _Visit(visit), None)
        _call_back(load().hardpack_reader_list, raised, *place, action="list", what=path)
        return found

    def target(self, path: bytes) -> bytes:
        """Returns what a symbolic link points to."""
        found: list[bytes] = []
        raised: list[BaseException] = []

        def take(_context: Any, text: int, text_len: int) -> int:
            try:
                found.append(ctypes.string_at(text, text_len))
                return 1
            except BaseException as error:
                raised.append(error)
                return 0

        place = (self._pointer, path, len(path), _Take(take), None)
        _call_back(load().hardpack_reader_target, raised, *place, action="read", what=path)
        return found[0]

    def file(self, path: bytes) -> FileReader:
        """Opens a file."""
        return FileReader(self, path)


class FileReader(_Handle):
    """A file of a pool that is open for reading."""

    _free = "hardpack_reader_file_close"

    def __init__(self, reader: Reader, path: bytes) -> None:
        self.name = os.fsdecode(path)
        pointer, length = c_void_p(), c_uint64()
        place = (reader._pointer, path, len(path), byref(pointer), byref(length))
        call(load().hardpack_reader_file, *place, action="open", what=self.name)
        self.len = length.value
        super().__init__(pointer)

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fills a buffer, and returns how many bytes lie before the end of the file."""
        if not self.is_ours:
            raise errors.HardpackError(f"'{self.name}' was opened before a fork: open it again")
        count = c_size_t()
        address = (c_char * len(buffer)).from_buffer(buffer)
        place = (self._pointer, address, len(buffer), offset, byref(count))
        call(load().hardpack_reader_read, *place, action="read", what=self.name)
        return count.value
