"""Files of pools for `fsspec`, and so for pandas, Dask, Arrow and others.

    hardpack://archive.hpk/dir/table.csv                 a path, relative or absolute
    hardpack:///data/archive.hpk/dir/table.csv
    hardpack://dir/table.csv::file:///data/archive.hpk   the chained form

Whole files are written, durably, when they are closed, or at the end of the fsspec transaction that
they belong to; they cannot be appended to. A snapshot is part of the path:
`hardpack://archive.hpk@monday/dir/table.csv` is read-only.
"""

from __future__ import annotations

import os
import stat as stat_bits
from datetime import datetime, timezone
from glob import has_magic
from typing import IO, Any, Optional, cast

import fsspec
from fsspec.callbacks import DEFAULT_CALLBACK, Callback
from fsspec.spec import AbstractFileSystem

from ._errors import ExistsError, NotFoundError, UsageError
from ._files import LateFile
from ._path import PoolPath, Stat
from ._pool import Pool

_KINDS = {stat_bits.S_IFREG: "file", stat_bits.S_IFDIR: "directory", stat_bits.S_IFLNK: "link"}


class HardpackFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The file system of all pools, or with `fo` that of one pool.

    `fo` is the path or URL of a local pool; another URL needs a cache in between, as in
    `hardpack://a.csv::simplecache::https://example.org/archive.hpk`, and can only be read.
    """

    protocol = "hardpack"
    root_marker = ""

    def __init__(
        self,
        fo: str = "",
        target_protocol: Optional[str] = None,
        target_options: Optional[dict[str, Any]] = None,
        **storage_options: Any,
    ) -> None:
        super().__init__(**storage_options)
        self._pool_path = _local(fo, target_protocol, target_options) if fo else None
        self._pools: dict[str, Pool] = {}

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = os.fspath(path)
        for start in ("hardpack://", "hardpack:"):
            if path.startswith(start):
                path = path[len(start) :]
                break
        return path.rstrip("/")

    def _find(self, path: str, *, creates: bool = False) -> PoolPath:
        """Returns the place in a pool that a path leads to."""
        path = self._strip_protocol(path)
        file, inner = (self._pool_path, path) if self._pool_path else _split(path)
        file, snapshot = _split_snapshot(file)
        key = os.path.abspath(file)
        pool = self._pools.get(f"{key}@{snapshot}")
        # One that was used before may have been removed since.
        is_new = creates and snapshot is None and not os.path.lexists(key)
        if pool is None or is_new:
            pool = Pool.create(key) if is_new else Pool(key, snapshot=snapshot)
            self._pools[f"{key}@{snapshot}"] = pool
        return pool / inner

    def _entry(self, name: str, found: Stat) -> dict[str, Any]:
        kind = _KINDS.get(stat_bits.S_IFMT(found.st_mode), "other")
        is_file = kind == "file"
        return {
            "name": name,
            "type": kind,
            "size": found.st_size if is_file else 0,
            "mode": found.st_mode,
            "ino": found.st_ino,
            "mtime": found.st_mtime,
            "created": found.st_birthtime,
            "islink": kind == "link",
        }

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        return self._entry(path, self._find(path).stat())

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path)
        place = self._find(path)
        found = place.stat()
        if stat_bits.S_ISDIR(found.st_mode):
            prefix = f"{path}/" if path else ""
            listed = place.pool.scandir(str(place))
            entries = [self._entry(prefix + name, each) for name, each in listed]
        else:
            entries = [self._entry(path, found)]
        return entries if detail else [entry["name"] for entry in entries]

    def exists(self, path: str, **_: Any) -> bool:
        try:
            return self._find(path).exists()
        except NotFoundError:
            return False

    def created(self, path: str) -> datetime:
        return datetime.fromtimestamp(self.info(path)["created"], tz=timezone.utc)

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(self.info(path)["mtime"], tz=timezone.utc)

    def _open(self, path: str, mode: str = "rb", autocommit: bool = True, **_: Any) -> IO[bytes]:
        if mode not in ("rb", "wb", "xb"):
            raise UsageError(f"mode '{mode}': a file of a pool is opened with rb, wb or xb")
        place = self._find(path, creates=mode != "rb")
        if mode == "rb" or autocommit:
            return place.open(mode)
        # The transaction commits or discards it.
        late: Any = place.pool._new_file(str(place), mode, LateFile)
        return cast("IO[bytes]", late)

    def cat_file(
        self, path: str, start: Optional[int] = None, end: Optional[int] = None, **_: Any
    ) -> bytes:
        place = self._find(path)
        if start is None and end is None:
            return place.read_bytes()
        with place.open("rb") as file:
            length = file.seek(0, os.SEEK_END)
            start = (start or 0) + (length if (start or 0) < 0 else 0)
            end = length if end is None else end + (length if end < 0 else 0)
            file.seek(max(0, start))
            data: bytes = file.read(max(0, end - max(0, start)))
            return data

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        with self.open(path, "xb" if mode == "create" else "wb") as file:
            file.write(value)

    def put_file(
        self,
        lpath: str,
        rpath: str,
        callback: Callback = DEFAULT_CALLBACK,
        mode: str = "overwrite",
        **_: Any,
    ) -> None:
        place = self._find(rpath, creates=True)
        if os.path.isdir(lpath):
            place.mkdir(parents=True, exist_ok=True)
            return
        if mode == "create" and place.exists():
            raise ExistsError(f"cannot create '{rpath}': it exists already")
        place.pool.write_all([(str(place), lpath)])  # type: ignore[list-item]
        callback.set_size(os.path.getsize(lpath))
        callback.absolute_update(os.path.getsize(lpath))

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        self._find(path, creates=True).mkdir(parents=create_parents)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        place = self._find(path, creates=True)
        if str(place) or not exist_ok:
            place.mkdir(parents=True, exist_ok=exist_ok)

    def rm_file(self, path: str) -> None:
        self._find(path).unlink()

    _rm = rm_file

    def rmdir(self, path: str) -> None:
        place = self._find(path)
        if next(place.iterdir(), None) is not None:
            raise OSError(f"cannot remove '{path}': the directory is not empty")
        place.pool.remove(str(place), recursive=True)

    def rm(self, path: Any, recursive: bool = False, maxdepth: Optional[int] = None) -> None:
        if not recursive or maxdepth is not None:
            super().rm(path, recursive=recursive, maxdepth=maxdepth)
            return
        for one in path if isinstance(path, list) else [path]:
            is_pattern = has_magic(one) and not self.exists(one)
            found = self.glob(one) if is_pattern else [one]
            if not found:
                raise NotFoundError(f"nothing matches '{one}'")
            for each in found:
                place = self._find(each)
                # A pattern may match a directory and what is in it.
                place.pool.remove(str(place), recursive=True, missing_ok=is_pattern)

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        old, new = self._find(path1), self._find(path2, creates=True)
        if old.is_dir():
            new.mkdir(parents=True, exist_ok=True)
        elif old.pool is new.pool:
            old.pool.copy(str(old), str(new))
        else:
            with old.open("rb") as content:
                new.pool.write_all([(str(new), content)])

    def mv(self, path1: str, path2: str, **arguments: Any) -> None:
        old, new = self._find(path1), self._find(path2, creates=True)
        if old.pool is new.pool:
            old.pool.rename(str(old), str(new))
        else:
            super().mv(path1, path2, **arguments)


def _local(fo: str, protocol: Optional[str], options: Optional[dict[str, Any]]) -> str:
    """Returns the path of a local file."""
    fo = os.fspath(fo)
    if "::" not in fo and "://" not in fo and protocol in (None, "file", "local"):
        return os.path.abspath(fo)
    url = fo if "://" in fo or protocol is None else f"{protocol}://{fo}"
    try:
        return str(fsspec.open_local(url, **(options or {})))
    except ValueError as error:
        raise UsageError(
            f"a pool must be a local file: put a cache in between, as in simplecache::{url}"
        ) from error


def _split(path: str) -> tuple[str, str]:
    """Splits a path at the pool: the first part that is no directory, or that ends in `.hpk`."""
    parts = path.split("/")
    for count in range(1, len(parts) + 1):
        head = "/".join(parts[:count])
        if not parts[count - 1]:
            continue
        file, _ = _split_snapshot(head)
        if os.path.isfile(file) or (file.endswith(".hpk") and not os.path.isdir(file)):
            return head, "/".join(parts[count:])
    raise NotFoundError(f"cannot find a pool in the path '{path}'")


def _split_snapshot(file: str) -> tuple[str, Optional[str]]:
    head, mark, name = file.rpartition("@")
    if not mark or "/" in name or os.path.lexists(file):
        return file, None
    return head, name
