"""A file or directory of a pool, in the manner of `pathlib`."""

from __future__ import annotations

import fnmatch
import sqlite3
import stat as stat_bits
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Optional

from . import _names
from ._errors import NotADirError, NotFoundError
from ._library import (
    BLOCK_DEVICE,
    CHAR_DEVICE,
    DIRECTORY,
    FIFO,
    FILE,
    SOCKET,
    SYMLINK,
    Attributes,
)

if TYPE_CHECKING:
    from ._pool import Pool

_KIND_BITS = {
    FILE: stat_bits.S_IFREG,
    DIRECTORY: stat_bits.S_IFDIR,
    SYMLINK: stat_bits.S_IFLNK,
    FIFO: stat_bits.S_IFIFO,
    SOCKET: stat_bits.S_IFSOCK,
    CHAR_DEVICE: stat_bits.S_IFCHR,
    BLOCK_DEVICE: stat_bits.S_IFBLK,
}


@dataclass(frozen=True)
class Stat:
    """What a pool records about a file, with the names of `os.stat_result`.

    Times are 0, and ids `None`, if they are not known.
    """

    st_mode: int
    st_ino: int
    st_nlink: int
    st_uid: Optional[int]
    st_gid: Optional[int]
    st_size: int
    st_atime_ns: int
    st_mtime_ns: int
    st_ctime_ns: int
    st_birthtime_ns: int

    @property
    def st_mtime(self) -> float:
        """The time of the last change of the content, in seconds since 1970."""
        return self.st_mtime_ns / 1e9

    @property
    def st_birthtime(self) -> float:
        """The time of creation, in seconds since 1970."""
        return self.st_birthtime_ns / 1e9


def stat_of(found: Attributes) -> Stat:
    """Returns attributes under the names of `os.stat_result`."""
    return Stat(
        st_mode=_KIND_BITS[found.kind] | found.mode,
        st_ino=found.file,
        st_nlink=found.links,
        st_uid=found.uid,
        st_gid=found.gid,
        st_size=found.len,
        st_atime_ns=found.accessed_ns,
        st_mtime_ns=found.modified_ns,
        st_ctime_ns=found.changed_ns,
        st_birthtime_ns=found.created_ns,
    )


class PoolPath:
    """A path in a pool, which need not exist. Compares and hashes by pool and path."""

    __slots__ = ("pool", "_path")

    def __init__(self, pool: Pool, path: _names.PathLike = "") -> None:
        self.pool = pool
        self._path = PurePosixPath(_names.normal(path))

    def __str__(self) -> str:
        """The path in the pool; empty for its root."""
        return "" if self._path == PurePosixPath() else str(self._path)

    def __repr__(self) -> str:
        return f"PoolPath({self.address!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PoolPath):
            return NotImplemented
        return (self.pool.address, self._path) == (other.pool.address, other._path)

    def __hash__(self) -> int:
        return hash((self.pool.address, self._path))

    def __lt__(self, other: PoolPath) -> bool:
        return (self.pool.address, self._path) < (other.pool.address, other._path)

    def __truediv__(self, other: _names.PathLike) -> PoolPath:
        return self.joinpath(other)

    @property
    def address(self) -> str:
        """The path of the pool followed by the path in it: `hardpack.connect` opens it."""
        return f"{self.pool.address}/{self}" if str(self) else self.pool.address

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self._path.name

    @property
    def suffix(self) -> str:
        """The ending of the name, with its dot."""
        return self._path.suffix

    @property
    def stem(self) -> str:
        """The name without its ending."""
        return self._path.stem

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the path."""
        return self._path.parts

    @property
    def parent(self) -> PoolPath:
        """The directory above; the root is its own."""
        return PoolPath(self.pool, str(self._path.parent))

    def joinpath(self, *others: _names.PathLike) -> PoolPath:
        """Returns a path below this one."""
        path = self._path
        for other in others:
            path = path / _names.normal(other)
        return PoolPath(self.pool, str(path))

    def with_name(self, name: str) -> PoolPath:
        """Returns the path with another last part."""
        return PoolPath(self.pool, str(self._path.with_name(name)))

    def with_suffix(self, suffix: str) -> PoolPath:
        """Returns the path with another ending."""
        return PoolPath(self.pool, str(self._path.with_suffix(suffix)))

    def relative_to(self, other: _names.PathLike) -> PurePosixPath:
        """Returns the path relative to a directory of the pool."""
        return self._path.relative_to(_names.normal(other))

    def match(self, pattern: str) -> bool:
        """Whether the name matches a shell pattern."""
        return fnmatch.fnmatchcase(self.name, pattern)

    def stat(self, *, follow_symlinks: bool = True) -> Stat:
        """Returns what the pool records about the file."""
        return self.pool.stat(str(self), follow_symlinks=follow_symlinks)

    def _kind(self, follow: bool = True) -> int:
        try:
            return stat_bits.S_IFMT(self.stat(follow_symlinks=follow).st_mode)
        except (NotFoundError, NotADirError):
            return 0

    def exists(self) -> bool:
        """Whether the path leads to anything."""
        return self._kind() != 0

    def is_file(self) -> bool:
        """Whether the path leads to a file."""
        return self._kind() == stat_bits.S_IFREG

    def is_dir(self) -> bool:
        """Whether the path leads to a directory."""
        return self._kind() == stat_bits.S_IFDIR

    def is_symlink(self) -> bool:
        """Whether the path is a symbolic link."""
        return self._kind(follow=False) == stat_bits.S_IFLNK

    def is_fifo(self) -> bool:
        """Whether the path leads to a fifo."""
        return self._kind() == stat_bits.S_IFIFO

    def is_socket(self) -> bool:
        """Whether the path leads to a socket."""
        return self._kind() == stat_bits.S_IFSOCK

    def is_char_device(self) -> bool:
        """Whether the path leads to the node of a character device."""
        return self._kind() == stat_bits.S_IFCHR

    def is_block_device(self) -> bool:
        """Whether the path leads to the node of a block device."""
        return self._kind() == stat_bits.S_IFBLK

    def readlink(self) -> str:
        """Returns what a symbolic link points to."""
        return self.pool.readlink(str(self))

    def iterdir(self) -> Iterator[PoolPath]:
        """Returns what is in a directory, in byte order of the names."""
        return iter([self / name for name in self.pool.listdir(str(self))])

    def glob(self, pattern: str) -> Iterator[PoolPath]:
        """Returns what matches a pattern below this directory; `**` means any directories."""
        return self.pool.glob(pattern, below=str(self))

    def rglob(self, pattern: str) -> Iterator[PoolPath]:
        """Returns what matches a pattern at any depth below this directory."""
        return self.glob(f"**/{pattern}")

    def open(self, mode: str = "r", **text_args: Any) -> IO[Any]:
        """Opens the file, see `Pool.open`; text by default, as `pathlib` does."""
        return self.pool.open(str(self), mode, **text_args)

    def read_bytes(self) -> bytes:
        """Returns the content."""
        return self.pool.read_bytes(str(self))

    def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Returns the content as text."""
        return self.read_bytes().decode(encoding, errors)

    def write_bytes(self, data: bytes) -> int:
        """Stores a file with this content, durably, and returns its length."""
        self.pool.write_bytes(str(self), data)
        return len(data)

    def write_text(self, text: str, encoding: str = "utf-8", errors: str = "strict") -> int:
        """Stores a file with this text, durably, and returns its length in characters."""
        self.write_bytes(text.encode(encoding, errors))
        return len(text)

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Makes a directory."""
        self.pool.mkdir(str(self), parents=parents, exist_ok=exist_ok)

    def rename(self, target: _names.PathLike | PoolPath) -> PoolPath:
        """Moves the file or directory within the pool; replaces a file of that name."""
        target = target if isinstance(target, PoolPath) else PoolPath(self.pool, target)
        self.pool.rename(str(self), str(target))
        return target

    def unlink(self, missing_ok: bool = False) -> None:
        """Removes a file."""
        self.pool.remove(str(self), missing_ok=missing_ok)

    def connect(self, **arguments: Any) -> sqlite3.Connection:
        """Opens the database at this path, see `hardpack.connect`."""
        from ._register import connect

        return connect(self.address, **arguments)
