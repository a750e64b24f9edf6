"""A pool as a mapping of names to files.

Reading happens in this process, through the same engine that its databases use. Everything that
changes names or replaces files runs the bundled command, see `_command.py`.
"""

from __future__ import annotations

import io
import os
import stat as stat_bits
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import IO, Any, Literal, NamedTuple, Optional, Union, overload

from . import _command, _files, _names
from ._command import Progress, ProgressCallback
from ._errors import ExistsError, NotADirError, NotAFileError, NotFoundError, UsageError
from ._library import DIRECTORY, Attributes, HasLogError, Reader
from ._path import PoolPath, Stat, stat_of

# How many bytes of a new file are handed over at a time.
_COPY_LEN = 1 << 20

OsPath = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
Content = Union[bytes, bytearray, memoryview, "os.PathLike[str]", IO[bytes]]


class Snapshot(NamedTuple):
    """A snapshot of a pool, or of a directory or file in it."""

    path: str
    """What it keeps; empty for the whole pool."""
    name: str
    created_ns: int
    """When it was taken, in nanoseconds since 1970."""


def properties_of(given: Mapping[str, object]) -> list[str]:
    """Returns options of the command for properties; `_` in their names stands for `-`."""
    out = []
    for name, value in given.items():
        shown = {True: "on", False: "off"}.get(value) if isinstance(value, bool) else value
        out += ["-o", f"{name.replace('_', '-')}={shown}"]
    return out


class Pool(Mapping[str, PoolPath]):
    """A pool: a mapping of the names of all its files to `PoolPath`.

    `Pool(path)` opens one that exists, `Pool.create(path)` makes one. With `snapshot`, it is as
    that snapshot of the whole pool has it, and cannot be changed. A pool may be used by several
    threads at once. It need not be closed, but `with` does it.

    Iteration and `len` look at every file. They see each directory as of one moment.
    """

    def __init__(self, path: OsPath, *, snapshot: Optional[str] = None) -> None:
        self.path = os.path.abspath(_names.os_path(path))
        self.snapshot_name = snapshot
        self._lock, self._process = threading.Lock(), os.getpid()
        self._opened: Optional[Reader] = None
        self._is_closed = False
        self._reader().stat(self._inner(""), True)

    @classmethod
    def create(cls, path: OsPath, **properties: object) -> Pool:
        """Makes an empty pool and opens it; `properties` such as `compression="zstd-9"`."""
        place = os.path.abspath(_names.os_path(path))
        command = ["create", *properties_of(properties), "--", place]
        _command.run(command)
        return cls(path)

    @property
    def address(self) -> str:
        """The path of the pool, with the snapshot if this is one."""
        return self.path if self.snapshot_name is None else f"{self.path}@{self.snapshot_name}"

    def __repr__(self) -> str:
        return f"Pool({self.address!r})"

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.path, self.snapshot_name)

    def close(self) -> None:
        """Closes the pool. Files that are open stay usable."""
        with self._locked():
            self._is_closed, self._opened = True, None

    def _locked(self) -> threading.Lock:
        if self._process != os.getpid():
            # A forked child lacks the thread that may have held the lock.
            self._lock, self._process = threading.Lock(), os.getpid()
        return self._lock

    def _reader(self) -> Reader:
        with self._locked():
            if self._is_closed:
                raise ValueError("the pool is closed")
            opened = self._opened
            # Another file may have the name by now, and a fork leaves what was open behind.
            if opened is None or not opened.is_ours or not opened.is_current():
                # What is open here is shared with what is opened, so it goes first.
                self._opened = opened = None
                self._opened = opened = Reader(self.path)
            return opened

    def _inner(self, path: _names.PathLike) -> bytes:
        text = _names.normal(path)
        if self.snapshot_name is not None:
            text = f"@{self.snapshot_name}/{text}" if text else f"@{self.snapshot_name}"
        return os.fsencode(text)

    def _outer(
        self, path: _names.PathLike, *, exists: bool = True, may_be_root: bool = False
    ) -> str:
        """Returns a path for a command that changes the pool."""
        text = _names.normal(path)
        self._refuse_snapshot()
        # Some commands would make a pool if there were none.
        self._reader()
        if not text:
            if not may_be_root:
                raise UsageError(f"'{self.path}': this does not work on the root of a pool")
            return self.path
        return f"{self.path}/{self._literal(text) if exists else text}"

    def _literal(self, path: str) -> str:
        """Returns an existing path as the command takes it, whatever its characters."""
        protected = _names.literal(path)
        # Of two such paths, each is taken as it is written.
        return path if protected != path and self._is_there(protected) else protected

    def _is_there(self, path: str) -> bool:
        try:
            self._attributes(path, False)
        except (NotFoundError, NotADirError):
            return False
        return True

    def _refuse_snapshot(self) -> None:
        if self.snapshot_name is not None:
            raise UsageError(f"'{self.address}' is a snapshot, which cannot be changed")

    # Names.

    def _attributes(self, path: _names.PathLike, follow: bool) -> Attributes:
        return self._reader().stat(self._inner(path), follow)

    def stat(self, path: _names.PathLike, *, follow_symlinks: bool = True) -> Stat:
        """Returns what the pool records about a file or directory."""
        return stat_of(self._attributes(path, follow_symlinks))

    def listdir(self, path: _names.PathLike = "") -> list[str]:
        """Returns the names in a directory, in byte order."""
        return [os.fsdecode(name) for name, _ in self._reader().entries(self._inner(path))]

    def scandir(self, path: _names.PathLike = "") -> list[tuple[str, Stat]]:
        """Returns the names in a directory, in byte order, each with what is recorded about it."""
        listed = self._reader().entries(self._inner(path))
        return [(os.fsdecode(name), stat_of(found)) for name, found in listed]

    def readlink(self, path: _names.PathLike) -> str:
        """Returns what a symbolic link points to."""
        return os.fsdecode(self._reader().target(self._inner(path)))

    def walk(self, path: _names.PathLike = "") -> Iterator[tuple[str, Stat]]:
        """Returns everything below a directory, each directory before what is in it."""
        top = _names.normal(path)
        ahead = [top]
        while ahead:
            at = ahead.pop()
            below = []
            for name, found in self._listed(at, top):
                inner = f"{at}/{name}" if at else name
                yield inner, found
                if stat_bits.S_ISDIR(found.st_mode):
                    below.append(inner)
            ahead.extend(reversed(below))

    def _listed(self, path: str, top: str) -> list[tuple[str, Stat]]:
        try:
            return self.scandir(path)
        except (NotFoundError, NotADirError):
            # Somebody removed it after it was listed.
            if path == top:
                raise
            return []

    def glob(self, pattern: str, *, below: _names.PathLike = "") -> Iterator[PoolPath]:
        """Returns what matches a pattern such as `logs/*.db` or `**/*.txt`."""
        top = _names.normal(below)
        skip = len(top) + 1 if top else 0
        matches = _names.pattern(pattern).match
        for path, _ in self.walk(top):
            if matches(path[skip:]):
                yield PoolPath(self, path)

    def root(self) -> PoolPath:
        """Returns the root directory."""
        return PoolPath(self)

    def __getitem__(self, path: _names.PathLike) -> PoolPath:
        found = PoolPath(self, path)
        if not found.is_file():
            raise KeyError(str(found))
        return found

    def __contains__(self, path: object) -> bool:
        try:
            return isinstance(path, (str, bytes)) and PoolPath(self, path).is_file()
        except UsageError:
            return False

    def __iter__(self) -> Iterator[str]:
        for path, found in self.walk():
            if stat_bits.S_ISREG(found.st_mode):
                yield path

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __truediv__(self, path: _names.PathLike) -> PoolPath:
        return PoolPath(self, path)

    # Content.

    @overload
    def open(self, path: _names.PathLike, mode: Literal["rb"] = "rb") -> io.BufferedReader: ...
    @overload
    def open(self, path: _names.PathLike, mode: str, **text_args: Any) -> IO[Any]: ...
    def open(self, path: _names.PathLike, mode: str = "rb", **text_args: Any) -> IO[Any]:
        """Opens a file: `rb` and `r` read it, `wb`, `w`, `xb` and `x` write a new one.

        A file that is read can be read anywhere, and is of one moment: if it changes meanwhile,
        reading raises `ChangedError`. A database that has a log beside the pool is copied to a
        temporary file first.

        A new file is kept aside until it is closed. Then it appears in the pool, complete and
        durable, with missing directories above it. If the `with` block is left by an exception,
        nothing changes. `x` refuses to replace a file: of several processes that create one at
        the same time, one succeeds.
        """
        kind = mode.replace("b", "").replace("t", "")
        is_text = "b" not in mode
        if kind not in ("r", "w", "x") or len(mode) != len(set(mode)) or {"b", "t"} <= set(mode):
            raise UsageError(f"mode '{mode}': a file of a pool is opened with r, w or x, and b")
        if not is_text and text_args:
            raise UsageError("binary files have no encoding")
        if is_text:
            text_args.setdefault("encoding", "utf-8")
        if kind == "r":
            binary = self._open_reading(path)
            return io.TextIOWrapper(binary, **text_args) if is_text else binary
        new: Any = self._new_file(path, mode, _files.NewFile)
        return _files.NewTextFile(new, **text_args) if is_text else new

    def _new_file(
        self, path: _names.PathLike, mode: str, file: type[_files.NewFile]
    ) -> _files.NewFile:
        kind = mode[0]
        name = _names.normal(path)
        if not name:
            raise NotAFileError(f"cannot write '{self.path}': it is the root of the pool")
        self._refuse_snapshot()
        if kind == "x" and PoolPath(self, name).exists():
            raise ExistsError(f"cannot create '{name}': it exists already")

        def store(content: IO[bytes], length: int) -> None:
            self._put_stream([(name, content, length)], exclusive=kind == "x")

        return file(name, store, mode)

    def _open_reading(self, path: _names.PathLike) -> io.BufferedReader:
        reader = self._reader()
        try:
            return _files.ReadFile(reader.file(self._inner(path)))
        except HasLogError:
            copy = tempfile.TemporaryFile()
            try:
                _command.run(["cat", "--", self._outer(path)], output=copy)
                copy.seek(0)
            except BaseException:
                copy.close()
                raise
            return copy  # type: ignore[return-value]

    def read_bytes(self, path: _names.PathLike) -> bytes:
        """Returns the content of a file, as of one moment."""
        with self._open_reading(path) as file:
            return file.read()

    def write_bytes(self, path: _names.PathLike, data: Union[bytes, bytearray, memoryview]) -> None:
        """Stores a file with this content, durably. Replaces one of that name."""
        if not isinstance(data, (bytes, bytearray, memoryview)):
            # `write_all` would take a `str` for the path of a file.
            raise TypeError(f"a bytes-like object is required, not {type(data).__name__}")
        self.write_all([(path, data)])

    def write_all(
        self,
        items: Iterable[tuple[_names.PathLike, Content]],
        *,
        progress: Optional[ProgressCallback] = None,
    ) -> int:
        """Stores many files, durably, and returns how many.

        Each item is a path and the content: bytes, the path of a file, or a binary file object,
        which is read from where it is. A path must not be one that this process has open: `put`
        stores such files. Files appear one after the other, each complete. If an item
        raises, earlier ones may be stored.
        """
        self._refuse_snapshot()
        return self._put_stream(_sized(items), progress)

    def _put_stream(
        self,
        items: Iterable[tuple[str, IO[bytes], int]],
        progress: Optional[ProgressCallback] = None,
        exclusive: bool = False,
    ) -> int:
        count, done = 0, 0
        pool = self._outer("", may_be_root=True)

        def feed(stdin: IO[bytes]) -> None:
            nonlocal count, done
            with tarfile.open(fileobj=stdin, mode="w|", format=tarfile.PAX_FORMAT) as tar:
                for name, content, length in items:
                    tar.addfile(_member(name, length), content)
                    tar.members.clear()  # type: ignore[attr-defined]
                    count, done = count + 1, done + length
                    if progress is not None:
                        progress(Progress(f"putting {name}", done, None, count))

        flags = ["--exclusive"] if exclusive else []
        _command.run(["put", "--quiet", "--tar", *flags, "--", "-", pool], feed=feed)
        return count

    # Changes.

    def put(
        self,
        source: OsPath,
        path: _names.PathLike = "",
        *,
        delete: bool = False,
        compare: bool = False,
        raw: bool = False,
        threads: Optional[int] = None,
        progress: Optional[ProgressCallback] = None,
    ) -> dict[str, Any]:
        """Stores a file under `path`, or the contents of a directory in the directory `path`.

        What has not changed since is skipped. Databases are stored as of one moment, unless `raw`
        is set. `delete` removes what is not in the source; `compare` looks at contents instead of
        lengths and times. Returns a report, with counts by name.
        """
        command = ["put", "--json", "-T"]
        command += [flag for flag, on in [("--delete", delete), ("-c", compare)] if on]
        command += ["--raw"] if raw else []
        command += [] if threads is None else ["-j", str(threads)]
        dest = self._outer(path, exists=False, may_be_root=True)
        command += ["--", os.path.abspath(_names.os_path(source)), dest]
        report: dict[str, Any] = _command.run(command, progress=progress).json()
        return report

    def extract(
        self,
        path: _names.PathLike,
        dest: OsPath,
        *,
        force: bool = False,
        update: bool = False,
        threads: Optional[int] = None,
        progress: Optional[ProgressCallback] = None,
    ) -> dict[str, Any]:
        """Writes a file to `dest`, or the contents of a directory into the directory `dest`.

        `force` replaces existing files, `update` only those that differ in length or time.
        Returns a report, with counts by name.
        """
        self._reader()
        text = self._literal(_names.normal(path))
        source = f"{self.address}/{text}" if text else self.address
        command = ["extract", "--json", "-T"]
        command += [flag for flag, on in [("-f", force), ("-u", update)] if on]
        command += [] if threads is None else ["-j", str(threads)]
        command += ["--", source, os.path.abspath(_names.os_path(dest))]
        report: dict[str, Any] = _command.run(command, progress=progress).json()
        return report

    def remove(
        self, path: _names.PathLike, *, recursive: bool = False, missing_ok: bool = False
    ) -> None:
        """Removes a file; with `recursive`, also a directory and everything in it.

        Raises `InUseError` if it is a database that anybody has open.
        """
        place = self._outer(path)
        try:
            self._attributes(path, False)
        except NotFoundError:
            if missing_ok:
                return
            raise
        flags = [flag for flag, on in [("-r", recursive), ("-f", missing_ok)] if on]
        _command.run(["rm", "--quiet", *flags, "--", place])

    def rename(self, old: _names.PathLike, new: _names.PathLike) -> None:
        """Moves a file or directory within the pool; replaces a file of the new name."""
        places = (self._outer(old), self._outer(new, exists=False))
        self._attributes(old, False)
        _command.run(["mv", "-T", "--", *places])

    def copy(self, old: _names.PathLike, new: _names.PathLike, *, recursive: bool = False) -> None:
        """Copies a file or directory within the pool: the copy shares its data."""
        places = (self._outer(old), self._outer(new, exists=False))
        self._attributes(old, False)
        _command.run(["cp", "-T", *(["-r"] if recursive else []), "--", *places])

    def mkdir(
        self, path: _names.PathLike, *, parents: bool = False, exist_ok: bool = False
    ) -> None:
        """Makes a directory; with `parents`, also missing ones above it."""
        place = self._outer(path, exists=False)
        try:
            found = self._attributes(path, True)
        except NotFoundError:
            _command.run(["mkdir", *(["-p"] if parents else []), "--", place])
            return
        if not exist_ok or found.kind != DIRECTORY:
            raise ExistsError(f"cannot make '{_names.normal(path)}': it exists already")

    # Snapshots and properties.

    def _snapshot(self, path: _names.PathLike, name: str) -> str:
        place = self._outer(path, exists=False, may_be_root=True)
        return f"{place}@{_names.snapshot(name)}"

    def snapshot(self, name: str, path: _names.PathLike = "") -> None:
        """Takes a snapshot of the pool, or of a directory or file in it."""
        if "@" in _names.snapshot(name):
            raise UsageError(f"{name!r}: the name of a new snapshot contains no '@'")
        if path:
            self._attributes(path, True)
        _command.run(["snapshot", "--", self._snapshot(path, name)])

    def snapshots(self) -> list[Snapshot]:
        """Returns all snapshots in the pool, the oldest first."""
        self._reader()
        found = []
        for row in _command.run(["list", "--json", "--quick", "--", self.path]).json():
            address = (
                os.fsdecode(bytes.fromhex(row["name_hex"])) if "name_hex" in row else row["name"]
            )
            inner = address[len(self.path) :]
            path, mark, name = inner.rpartition("@")
            if name.isdigit() and "@" in path and not self._has_name(path.strip("/")):
                # Two snapshots have the same path and name, and differ by their txg.
                path, _, same = path.rpartition("@")
                name = f"{same}@{name}"
            if mark and row["created_ns"]:
                found.append(Snapshot(path.strip("/"), name, row["created_ns"]))
        return sorted(found, key=lambda snapshot: snapshot.created_ns)

    def _has_name(self, path: str) -> bool:
        """Whether there is a file of this very name, not one in a snapshot."""
        directory, _, name = path.rpartition("/")
        try:
            return name in self.listdir(directory)
        except (NotFoundError, NotADirError):
            return False

    def at(self, snapshot: str) -> Pool:
        """Returns the pool as a snapshot of all of it has it."""
        self._refuse_snapshot()
        return Pool(self.path, snapshot=_names.snapshot(snapshot))

    def rollback(self, name: str, path: _names.PathLike = "") -> None:
        """Rolls the pool, or a directory or file in it, back to a snapshot of it.

        Raises `InUseError` while anybody has a database there open.
        """
        _command.run(["rollback", "--", self._snapshot(path, name)])

    def destroy_snapshot(self, name: str, path: _names.PathLike = "") -> None:
        """Destroys a snapshot, and frees the space that only it holds."""
        _command.run(["destroy", "--", self._snapshot(path, name)])

    def properties(self, path: _names.PathLike = "") -> dict[str, str]:
        """Returns the settings in force, by name."""
        place = self._outer(path, may_be_root=True)
        rows = _command.run(["get", "all", "--json", "--", place]).json()
        return {row["property"]: row["value"] for row in rows if row["source"] != "-"}

    def set_properties(self, path: _names.PathLike = "", **properties: object) -> None:
        """Sets properties for data written from now on, such as `compression="zstd-9"`."""
        given = properties_of(properties)[1::2]
        if not given:
            raise UsageError("no property is given")
        _command.run(["set", "--", *given, self._outer(path, may_be_root=True)])


def _reopen(path: str, snapshot: Optional[str]) -> Pool:
    """Opens a pool in the process that it was sent to."""
    return Pool(path, snapshot=snapshot)


def _sized(
    items: Iterable[tuple[_names.PathLike, Content]],
) -> Iterator[tuple[str, IO[bytes], int]]:
    """Opens each item, and finds its length."""
    for path, content in items:
        name = _names.normal(path)
        if not name:
            raise UsageError("a file needs a name")
        if isinstance(content, (bytes, bytearray, memoryview)):
            data = bytes(content)
            yield name, io.BytesIO(data), len(data)
        elif isinstance(content, (str, os.PathLike)):
            _refuse_open(content)
            with open(content, "rb") as file:
                found = os.fstat(file.fileno())
                if stat_bits.S_ISREG(found.st_mode) and found.st_size > 0:
                    yield name, file, found.st_size
                else:
                    # A pipe or a device has no length, nor has a file of /proc.
                    yield from _copied(name, file)
        else:
            yield from _copied(name, content)


def _copied(name: str, content: IO[bytes]) -> Iterator[tuple[str, IO[bytes], int]]:
    """Reads an item to its end, to know its length."""
    with _files.spool() as copy:
        while piece := content.read(_COPY_LEN):
            copy.write(piece)
        if piece is None:
            # It may go on later, so what came so far is not all.
            raise BlockingIOError(f"cannot read what is to be '{name}': it has no data yet")
        length = copy.tell()
        copy.seek(0)
        yield name, copy, length


def _refuse_open(path: Union[str, os.PathLike[str]]) -> None:
    """Refuses a file that this process has open.

    If it is a database, closing another descriptor of it would drop SQLite's locks.
    """
    wanted = os.stat(path)
    if not stat_bits.S_ISREG(wanted.st_mode) and not stat_bits.S_ISBLK(wanted.st_mode):
        return
    for number in os.listdir("/proc/self/fd"):
        try:
            found = os.fstat(int(number))
        except OSError:
            continue
        if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
            raise UsageError(
                f"'{os.fsdecode(path)}' is open in this process, perhaps as a database",
                hint="'Pool.put' stores files that are in use, and databases as of one moment",
            )


def _umask() -> int:
    """Returns the permission bits that new files do not get, without changing them."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            lines = [line for line in status if line.startswith("Umask:")]
        return int(lines[0].split()[1], 8)
    except (OSError, IndexError, ValueError):
        return 0o022


def _member(name: str, length: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mtime = length, time.time()
    member.mode = 0o666 & ~_umask()
    member.uid, member.gid = os.geteuid(), os.getegid()
    return member
