#!/usr/bin/env python3
"""Makes a tree with everything that files can have, or compares two trees by content and metadata.

usage: trees.py make DIR [--seed N]
       trees.py compare [--no-holes] DIR DIR

Compared are types, permissions, owners, times of change, sizes, bytes, holes, extended attributes, targets of links, and
which names are of one file. As root, the tree has owners of all kinds.
"""

import hashlib
import os
import random
import stat
import sys

HOLE_LEN = 1 << 20
FILE_COUNT = 600


def make(top, seed):
    rng = random.Random(seed)
    folders = [top]
    os.makedirs(top, exist_ok=True)
    for number in range(60):
        folders.append(os.path.join(rng.choice(folders), f"d{number} ä\n" if number % 20 == 0 else f"d{number}"))
        os.mkdir(folders[-1])
    files = []
    for number in range(FILE_COUNT):
        path = os.path.join(rng.choice(folders), f"f{number}")
        with open(path, "wb") as file:
            file.write(rng.randbytes(rng.choice((0, 1, 700, 5000, 140_000))))
            if number % 40 == 0:  # data, a hole, data, a hole
                file.seek(HOLE_LEN, os.SEEK_CUR)
                file.write(rng.randbytes(5000))
                file.truncate(file.tell() + HOLE_LEN)
        files.append(path)
    for number in range(80):
        os.link(rng.choice(files), os.path.join(rng.choice(folders), f"hard{number}"))
        os.symlink(rng.choice(("nowhere", "../f1", "/etc/passwd", "x" * 900)), os.path.join(rng.choice(folders), f"soft{number}"))
    for path in files:
        if rng.random() < 0.2:
            for number in range(rng.randrange(1, 4)):
                os.setxattr(path, f"user.x{number}", rng.randbytes(rng.choice((0, 10, 900))))
    for path in files + folders[1:]:
        if os.geteuid() == 0:
            os.chown(path, rng.choice((0, 1, 1000, 65534)), rng.choice((0, 1, 1000)))
        os.chmod(path, rng.choice((0o644, 0o600, 0o755, 0o4755, 0o2711, 0o444) if os.path.isfile(path) else (0o755, 0o700, 0o1777)))
    for path in sorted(files + folders, reverse=True):
        ns = rng.randrange(0, 1_700_000_000_000_000_000)
        os.utime(path, ns=(ns, ns))


def holes(path, size):
    """Returns where a file has long holes, in units of half of those that `make` makes."""
    found, at, fd = [], 0, os.open(path, os.O_RDONLY)
    try:
        while at < size:
            try:
                start = os.lseek(fd, at, os.SEEK_HOLE)
            except OSError:
                break
            try:
                at = os.lseek(fd, start, os.SEEK_DATA)
            except OSError:
                at = size
            if at - start >= HOLE_LEN // 2:
                found.append((start // (HOLE_LEN // 2), at // (HOLE_LEN // 2)))
    finally:
        os.close(fd)
    return found


def describe(top, with_holes):
    """Returns {path: what there is}."""
    found, groups = {}, {}
    for folder, folders, names in os.walk(top):
        for name in ["."] + names + folders:
            path = os.path.join(folder, name)
            if name == "." and folder != top:
                continue
            seen = os.lstat(path)
            entry = {"mode": oct(seen.st_mode), "owner": (seen.st_uid, seen.st_gid)}
            if not stat.S_ISLNK(seen.st_mode):
                entry["modified"] = seen.st_mtime_ns
                entry["xattrs"] = {
                    key: os.getxattr(path, key) for key in sorted(os.listxattr(path)) if key.startswith("user.x")
                }
            if stat.S_ISREG(seen.st_mode):
                with open(path, "rb") as file:
                    entry["bytes"] = hashlib.sha256(file.read()).hexdigest()
                entry["size"], entry["links"] = seen.st_size, seen.st_nlink
                entry["holes"] = holes(path, seen.st_size) if with_holes else []
                groups.setdefault(seen.st_ino, []).append(os.path.relpath(path, top))
            if stat.S_ISLNK(seen.st_mode):
                entry["target"] = os.readlink(path)
            found[os.path.relpath(path, top)] = entry
    for names in groups.values():
        for name in names:
            found[name]["one file"] = sorted(names)
    return found


def compare(first, second, with_holes=True):
    one, other = describe(first, with_holes), describe(second, with_holes)
    different = 0
    for path in sorted(set(one) | set(other)):
        a, b = one.get(path), other.get(path)
        if a != b:
            different += 1
            if different <= 10:
                keys = [key for key in (a or b) if not a or not b or a.get(key) != b.get(key)]
                print(f"{path!r}: {[(key, a and a.get(key), b and b.get(key)) for key in keys]}", file=sys.stderr)
    if different:
        print(f"{different} of {len(one)} entries differ", file=sys.stderr)
    return 1 if different else 0


def main(argv):
    if len(argv) in (2, 4) and argv[0] == "make":
        return make(argv[1], int(argv[3]) if len(argv) == 4 else 1)
    if len(argv) == 3 and argv[0] == "compare":
        return compare(*argv[1:])
    if len(argv) == 4 and argv[:2] == ["compare", "--no-holes"]:
        return compare(*argv[2:], with_holes=False)
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
