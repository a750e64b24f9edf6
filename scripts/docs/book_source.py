#!/usr/bin/env python3
"""Writes the source of the book into a folder, for scripts/book.sh: the pages of docs/, those outside it that the
repository's other pages are reached by, and every file that a page links to, all where they are in the repository. So
each link works in the book as it does there.

usage: scripts/docs/book_source.py FOLDER
"""

import os
import pathlib
import re
import shutil
import sys
import urllib.parse

from links import LINK, ROOT, without_code

# The pages of the book that are not in docs/SUMMARY.md, with their names there.
PROJECT = [
    ("What Hardpack is", "README.md"),
    ("Examples", "examples/README.md"),
    ("Architecture", "ARCHITECTURE.md"),
    ("Working on Hardpack", "CONTRIBUTING.md"),
    ("Changes", "CHANGELOG.md"),
    ("The benchmark's method", "bench/README.md"),
    ("SQLite's own tests", "scripts/sqlite-suite/RESULTS.md"),
]


def summary():
    """Returns the table of contents, with paths from the root of the repository."""
    text = (ROOT / "docs/SUMMARY.md").read_text()
    text = LINK.sub(lambda match: match.group(0).replace(f"]({match.group(1)})", f"](docs/{match.group(1)})"), text)
    first = f"[{PROJECT[0][0]}]({PROJECT[0][1]})\n"
    rest = "".join(f"- [{title}]({path})\n" for title, path in PROJECT[1:])
    return text.replace("# Summary\n", f"# Summary\n\n{first}", 1) + f"\n# The project\n\n{rest}"


def main():
    out = pathlib.Path(sys.argv[1]).resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    contents = summary()
    (out / "SUMMARY.md").write_text(contents)
    pages = [ROOT / link for link in LINK.findall(contents)]
    files = set()
    for page in pages:
        text = page.read_text()
        pieces, end = [], 0
        for match in LINK.finditer(without_code(text)):
            link = match.group(1)
            path, _, anchor = urllib.parse.unquote(link).partition("#")
            if not path or re.match(r"[a-z][a-z0-9+.-]*:", link):
                continue
            target = (page.parent / path).resolve()
            if target.is_dir():
                target = target / "README.md"
            start, stop = match.span(1)
            if target in pages:
                # mdBook makes index.html of a README.md, and follows links to it only by that name.
                name = target.with_name("index.md") if target.name == "README.md" else target
                new = os.path.relpath(name, page.parent) + ("#" + anchor if anchor else "")
            elif target.is_file() and target.suffix != ".md":
                files.add(target)
                continue
            else:
                # What the book does not have stays as text.
                start, stop = match.span()
                new = text[start:stop].partition("](")[0].lstrip("!").removeprefix("[")
            pieces += [text[end:start], new]
            end = stop
        made = out / page.relative_to(ROOT)
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text("".join([*pieces, text[end:]]))
    for file in files:
        made = out / file.relative_to(ROOT)
        made.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, made)


if __name__ == "__main__":
    main()
