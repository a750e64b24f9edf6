"""The exceptions of this package, named by what the caller can do about them."""

from __future__ import annotations

from typing import Optional


class HardpackError(Exception):
    """The base of all exceptions of this package.

    `hint` says what to do next, where that is known. Python 3.11 and newer show it with a
    traceback.
    """

    def __init__(self, text: str, *, hint: Optional[str] = None) -> None:
        super().__init__(text)
        self.hint = hint
        if hint is not None and hasattr(self, "add_note"):
            self.add_note(f"hint: {hint}")


class DamageError(HardpackError):
    """Stored data is damaged. `check` lists everything that is."""


class UsageError(HardpackError, ValueError):
    """An argument is wrong."""


class NotAPoolError(HardpackError):
    """The file is not a pool, or needs a newer version of Hardpack."""


class InUseError(HardpackError):
    """Somebody else uses the file, so it cannot be changed now."""


class ChangedError(InUseError):
    """The file changed after it was opened. Open it again, or read it in a snapshot."""


class CannotError(HardpackError, OSError):
    """The system refused, or the pool does not allow it. `errno` is set if the system said why."""


class NotFoundError(CannotError, FileNotFoundError):
    """The pool, or the path in it, does not exist."""


class ExistsError(CannotError, FileExistsError):
    """The name is in use already."""


class NotAFileError(CannotError, IsADirectoryError):
    """A file was needed, and this is a directory."""


class NotADirError(CannotError, NotADirectoryError):
    """A directory was needed, and this is none."""


class StoppedError(HardpackError):
    """A signal ended the command. What it leaves is said in `hint`."""


class NotSupported(HardpackError):
    """Hardpack cannot be registered with this SQLite library."""


class InternalError(HardpackError):
    """A defect of Hardpack, which says nothing about the data. Please report it."""
