#!/usr/bin/env python3
"""Checks the links of all Markdown files in the repository: a relative link must lead to a file that Git knows, and an
anchor to a heading of it. docs/SUMMARY.md must list every page in docs/, once. Nothing is downloaded.

usage: scripts/docs/links.py
"""

import pathlib
import re
import subprocess
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SUMMARY = ROOT / "docs/SUMMARY.md"
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
REFERENCE = re.compile(r"^\s{0,3}\[[^\]]+\]:\s+(\S+)", re.MULTILINE)


def without_code(text):
    """Replaces code with spaces of the same length: what looks like a link there is none."""

    def blank(match):
        return re.sub(r"[^\n]", " ", match.group(0))

    text = re.sub(r"^(\s*)(```+|~~~+).*?^\s*\2\s*$", blank, text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->", blank, text, flags=re.DOTALL)
    return re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", blank, text)


def anchors(path, known={}):
    """Returns the anchors of a page's headings, as GitHub and mdBook make them."""
    if path not in known:
        found = set()
        text = re.sub(r"^(\s*)(```+).*?^\s*\2\s*$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
        for heading in re.findall(r"^#{1,6}\s+(.*?)\s*#*$", text, re.MULTILINE):
            heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
            anchor = "".join(c for c in heading.lower() if c.isalnum() or c in " -_").replace(" ", "-")
            number, unique = 0, anchor
            while unique in found:
                number += 1
                unique = f"{anchor}-{number}"
            found.add(unique)
        found.update(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))
        known[path] = found
    return known[path]


def main():
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True
    )
    files = {ROOT / name for name in listed.stdout.decode().split("\0")[:-1]}
    files = {path for path in files if path.exists()}
    folders = {parent for path in files for parent in path.parents}
    problems, count = [], 0
    for page in sorted(path for path in files if path.suffix == ".md"):
        text = without_code(page.read_text())
        for match in sorted([*LINK.finditer(text), *REFERENCE.finditer(text)], key=lambda match: match.start()):
            link = match.group(1)
            if re.match(r"[a-z][a-z0-9+.-]*:", link):
                continue
            count += 1
            where = f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, match.start(1)) + 1}"
            path, _, anchor = urllib.parse.unquote(link).partition("#")
            target = (page.parent / path).resolve() if path else page
            if target not in files and target not in folders:
                problems.append(f"{where}: '{link}' leads to nothing")
            elif anchor and target.suffix == ".md" and anchor not in anchors(target):
                problems.append(f"{where}: '{link}' names no heading of that page")
    if SUMMARY.exists():
        pages = [(SUMMARY.parent / link).resolve() for link in LINK.findall(SUMMARY.read_text())]
        wanted = {path for path in files if path.suffix == ".md" and SUMMARY.parent in path.parents} - {SUMMARY}
        problems += [f"docs/SUMMARY.md lacks {path.relative_to(ROOT)}" for path in sorted(wanted - set(pages))]
        problems += [f"docs/SUMMARY.md lists {path.name} twice" for path in sorted(set(pages)) if pages.count(path) > 1]
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{count} links, {len(problems)} of them broken" if problems else f"{count} links, all well")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
