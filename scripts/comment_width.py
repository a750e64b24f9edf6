#!/usr/bin/env python3
"""Fails if a comment line of Rust is wider than code may be. rustfmt leaves comments alone."""

import pathlib
import re
import subprocess
import sys

root = pathlib.Path(__file__).resolve().parent.parent
max_width = int(re.search(r"max_width = (\d+)", (root / "rustfmt.toml").read_text()).group(1))

wide = 0
files = subprocess.run(["git", "ls-files", "-z", "*.rs"], cwd=root, check=True, capture_output=True)
for name in files.stdout.decode().split("\0")[:-1]:
    path = root / name
    if not path.exists():
        continue
    for number, line in enumerate(path.read_text().splitlines(), 1):
        # A link cannot be broken.
        if line.lstrip().startswith("//") and len(line) > max_width and "://" not in line:
            wide += 1
            print(f"{name}:{number}: the comment is {len(line)} columns wide, {max_width} at most")
sys.exit(wide > 0)
