"""Files of a pool as Python's file objects."""

from __future__ import annotations

import io
import os
import tempfile
from types import TracebackType
from typing import IO, Any, Callable, Optional

from ._errors import CannotError
from ._library import FileReader

# How many bytes are read from the pool at a time: a record by default.
BUFFER_LEN = 128 << 10
# Longer new files are kept on disk until they are stored.
_SPOOL_LEN = 16 << 20


class RawFile(io.RawIOBase):
    """A file that is open for reading, without a buffer."""

    def __init__(self, reader: FileReader) -> None:
        self._reader: Optional[FileReader] = reader
        self._length = reader.len
        self._at = 0
        self.name = reader.name
        self.mode = "rb"

    def _open(self) -> FileReader:
        if self._reader is None:
            raise ValueError("I/O operation on closed file")
        return self._reader

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        reader = self._open()
        view = memoryview(buffer).cast("B")
        view = view[: max(0, self._length - self._at)]
        if not view:
            return 0
        count = reader.read_into(view, self._at)
        self._at += count
        return count

    def readall(self) -> bytes:
        self._open()
        buffer = bytearray(max(0, self._length - self._at))
        view, done = memoryview(buffer), 0
        while done < len(buffer):
            count = self.readinto(view[done:])
            if count == 0:
                break
            done += count
        view.release()
        return bytes(buffer[:done])

    def tell(self) -> int:
        self._open()
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._open()
        starts = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}
        if whence not in starts:
            raise ValueError(f"invalid whence: {whence}")
        at = starts[whence] + offset
        if at < 0:
            raise ValueError(f"negative seek position {at}")
        self._at = at
        return at

    def close(self) -> None:
        self._reader = None
        super().close()


def spool() -> IO[bytes]:
    """Returns an empty temporary file, in memory while it is short."""
    return tempfile.SpooledTemporaryFile(max_size=_SPOOL_LEN)


class NewFile(io.BufferedIOBase):
    """A file that is open for writing. It appears in the pool, complete, when it is closed."""

    def __init__(self, name: str, store: Callable[[IO[bytes], int], None], mode: str) -> None:
        self.name = name
        self.mode = mode
        self._store = store
        self._spool = spool()
        # Why it lacks something that was written.
        self._failure: Optional[BaseException] = None

    def _open(self) -> IO[bytes]:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        return self._spool

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        spooled = self._open()
        try:
            spooled.write(view)
        except BaseException as error:
            self._failure = error
            raise
        return len(view)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        spooled = self._open()
        spooled.seek(offset, whence)
        return spooled.tell()

    def tell(self) -> int:
        return self._open().tell()

    def truncate(self, size: Optional[int] = None) -> int:
        spooled = self._open()
        at = spooled.tell()
        size = at if size is None else size
        spooled.truncate(size)
        spooled.seek(0, os.SEEK_END)
        if spooled.tell() < size:
            # In memory, a file does not grow by itself.
            spooled.seek(size - 1)
            spooled.write(b"\0")
        spooled.seek(at)
        return size

    def discard(self) -> None:
        """Closes the file without storing it: the pool stays as it is."""
        if not self.closed:
            self._spool.close()
            super().close()

    def close(self) -> None:
        """Stores the file. If that fails, the pool stays as it is."""
        if self.closed:
            return
        try:
            self._keep()
        finally:
            self.discard()

    def _keep(self) -> None:
        if self._failure is not None:
            # Text is closed even if the last of it could not be written.
            raise CannotError(
                f"cannot store '{self.name}': a write failed: {self._failure}"
            ) from self._failure
        self._spool.seek(0, os.SEEK_END)
        length = self._spool.tell()
        self._spool.seek(0)
        self._store(self._spool, length)

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if error is not None:
            self.discard()
        self.close()

    def __del__(self) -> None:
        # A file that was never closed may be incomplete.
        if hasattr(self, "_spool"):
            self.discard()


class LateFile(NewFile):
    """A file of a transaction: it appears in the pool when that is complete."""

    def close(self) -> None:
        """Closes the file, and keeps it aside."""
        if not self.closed:
            io.BufferedIOBase.close(self)

    def commit(self) -> None:
        """Stores the file, unless it was discarded."""
        if self._spool.closed:
            return
        self.close()
        try:
            self._keep()
        finally:
            self._spool.close()

    def discard(self) -> None:
        """Closes the file, which is not stored then."""
        self._spool.close()
        self.close()


class NewTextFile(io.TextIOWrapper):
    """Text that is written to a `NewFile`."""

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if error is not None:
            self.discard()
        self.close()

    def discard(self) -> None:
        """Closes the file without storing it: the pool stays as it is."""
        if not self.closed:
            buffer = self.buffer
            assert isinstance(buffer, NewFile)
            buffer.discard()

    def __del__(self) -> None:
        try:
            self.discard()
        except ValueError:
            # It could not be opened.
            pass


class ReadFile(io.BufferedReader):
    """A file that is open for reading."""

    def __init__(self, reader: FileReader) -> None:
        super().__init__(RawFile(reader), BUFFER_LEN)
        # Some versions of fsspec ask for this.
        self.size = reader.len
