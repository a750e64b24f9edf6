"""Paths in a pool, and patterns for them."""

from __future__ import annotations

import os
import re
from re import Pattern
from typing import Union

from ._errors import UsageError

PathLike = Union[str, bytes, "os.PathLike[str]"]


def normal(path: PathLike) -> str:
    """Returns a path in a pool without a leading slash, empty names and dots.

    Names that are not UTF-8 are decoded as `os.fsdecode` does.
    """
    text = os.fsdecode(path)
    if "\0" in text:
        raise UsageError("a path in a pool cannot contain a NUL")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise UsageError(f"{text!r} has characters that no name can have") from None
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise UsageError(f"'{text}': '..' has no meaning in a pool")
    return "/".join(parts)


def os_path(path: Union[PathLike, os.PathLike[bytes]]) -> str:
    """Returns a path of the system as text."""
    text = os.fsdecode(path)
    if "\0" in text:
        # What is written in C would see a shorter path.
        raise UsageError(f"{text!r}: a path cannot contain a NUL")
    return text


def snapshot(name: str) -> str:
    """Returns the name of a snapshot, or `NAME@TXG`."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a snapshot is a str, not {type(name).__name__}")
    if not name.split("@")[0] or "/" in name or "\0" in name:
        text = "the name of a snapshot is not empty and contains no '/', '@' or NUL"
        raise UsageError(f"{name!r}: {text}")
    return name


def literal(path: str) -> str:
    """Protects the wildcards of an existing path from the command line.

    The command takes a path that exists as it is written, and otherwise a backslash for the
    protection of what follows. So the result may name another file, if that exists.
    """
    return re.sub(r"([*?\[\\])", r"\\\1", path)


def pattern(glob: str) -> Pattern[str]:
    """Compiles a pattern for whole paths: `*` and `?` match within a name, `**` any directories."""
    if not glob:
        raise UsageError("the pattern is empty")
    parts = normal(glob).split("/")
    out = ""
    for index, part in enumerate(parts):
        is_last = index == len(parts) - 1
        if part == "**":
            out += "(?:.+)" if is_last else "(?:[^/]+/)*"
        else:
            out += _name(part) + ("" if is_last else "/")
    try:
        return re.compile(out + r"\Z", re.DOTALL)
    except re.error as error:
        raise UsageError(f"the pattern {glob!r} cannot be used: {error.msg}") from None


def _name(part: str) -> str:
    out, at = "", 0
    while at < len(part):
        char = part[at]
        at += 1
        end = part.find("]", at + 1 if part[at : at + 1] != "!" else at + 2)
        if char == "*":
            out += "[^/]*"
        elif char == "?":
            out += "[^/]"
        elif char == "[" and end > 0:
            # Escaped are also those characters that a later version of `re` may take for operators.
            inside = re.sub(r"([\\[&~|])", r"\\\1", part[at:end])
            if inside.startswith("!"):
                inside = "^" + inside[1:]
            elif inside.startswith("^"):
                inside = "\\" + inside
            out += f"(?!/)[{inside}]"
            at = end + 1
        else:
            out += re.escape(char)
    return out
