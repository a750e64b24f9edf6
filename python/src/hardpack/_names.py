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
    return re.compile(out + r"\Z", re.DOTALL)


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
            inside = part[at:end].replace("\\", "\\\\").replace("[", "\\[")
            if inside.startswith("!"):
                inside = "^" + inside[1:]
            elif inside.startswith("^"):
                inside = "\\" + inside
            out += f"(?!/)[{inside}]"
            at = end + 1
        else:
            out += re.escape(char)
    return out
