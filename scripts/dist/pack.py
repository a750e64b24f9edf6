#!/usr/bin/env python3
"""Packs the binaries for one processor as an archive and as a Debian package. The same files give the same bytes.

usage: pack.py VERSION PROCESSOR BINARIES DOCUMENTS OUT
BINARIES holds hardpack, libhardpack.so and libhardpack_preload.so; DOCUMENTS has man/, completions/ and the file
LICENSES-OF-PARTS.
Times are SOURCE_DATE_EPOCH; files belong to root and are in the order of their names.
"""

import gzip
import hashlib
import io
import lzma
import os
import pathlib
import sys
import tarfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}
CONTROL = """\
Package: hardpack
Version: {version}
Architecture: {debian}
Maintainer: The developers of Hardpack
Installed-Size: {kib}
Depends: libc6 (>= 2.17)
Suggests: sqlite3
Section: database
Priority: optional
Description: live compressed, checksummed storage for SQLite databases and files
 Hardpack keeps SQLite databases, and any other files, compressed inside one
 ordinary file, and lets programs use them live. This package has the command
 hardpack, the SQLite extension libhardpack.so, and what 'hardpack run' loads
 into programs that cannot be changed.
"""
PARTS = "LICENSES-OF-PARTS"
COPYRIGHT = "Hardpack may be used under the MIT licence or the Apache License 2.0, at your choice.\n\n"


def installed(binaries, documents):
    """Returns what is installed below a prefix such as /usr: paths, each with its mode and bytes."""
    files = {"bin/hardpack": (0o755, binaries / "hardpack")}
    for name in ["libhardpack.so", "libhardpack_preload.so"]:
        files[f"lib/{name}"] = (0o644, binaries / name)
    files["include/hardpack.h"] = (0o644, ROOT / "crates/sqlite/include/hardpack.h")
    for page in (documents / "man").iterdir():
        files[f"share/man/man1/{page.name}"] = (0o644, page)
    completions = documents / "completions"
    for shell, place in {
        "bash": "bash-completion/completions/hardpack",
        "zsh": "zsh/site-functions/_hardpack",
        "fish": "fish/vendor_completions.d/hardpack.fish",
    }.items():
        files[f"share/{place}"] = (0o644, completions / shell)
    return {path: (mode, source.read_bytes()) for path, (mode, source) in files.items()}


def tar(files, prefix=""):
    """Returns a tar archive of `files`, with the directories they are in, each after the one above it."""
    moment = int(os.environ["SOURCE_DATE_EPOCH"])
    directories = {str(parent) for path in files for parent in pathlib.PurePath(path).parents} - {"."}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted([*directories, *files]):
            entry = tarfile.TarInfo(prefix + path)
            entry.mtime, entry.uname, entry.gname = moment, "root", "root"
            if path in directories:
                entry.type, entry.mode, data = tarfile.DIRTYPE, 0o755, b""
            else:
                entry.mode, data = files[path]
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def gz(data):
    return gzip.compress(data, 9, mtime=0)


def deb(version, debian, files):
    """Returns a Debian package of `files` (deb(5)): an `ar` archive of three members."""
    kib = sum(-(-len(data) // 1024) for _, data in files.values())
    sums = "".join(f"{hashlib.md5(data).hexdigest()}  {path}\n" for path, (_, data) in sorted(files.items()))
    control = {
        "control": CONTROL.format(version=version, debian=debian, kib=kib),
        "md5sums": sums,
        "triggers": "activate-noawait ldconfig\n",
    }
    control = {path: (0o644, text.encode()) for path, text in control.items()}
    data = lzma.compress(tar(files, "./"), preset=9)
    out = bytearray(b"!<arch>\n")
    for name, member in [("debian-binary", b"2.0\n"), ("control.tar.gz", gz(tar(control, "./"))), ("data.tar.xz", data)]:
        moment = int(os.environ["SOURCE_DATE_EPOCH"])
        out += f"{name:<16}{moment:<12}{0:<6}{0:<6}{'100644':<8}{len(member):<10}`\n".encode()
        out += member + b"\n" * (len(member) % 2)
    return bytes(out)


def main():
    version, processor, binaries, documents, out = sys.argv[1:]
    files = installed(pathlib.Path(binaries), pathlib.Path(documents))
    out = pathlib.Path(out)
    licences = {name: (0o644, (ROOT / name).read_bytes()) for name in ["LICENSE-MIT", "LICENSE-APACHE"]}
    parts = (0o644, (pathlib.Path(documents) / PARTS).read_bytes())

    top = f"hardpack-{version}-{processor}-linux"
    extra = licences | {PARTS: parts, "README.md": (0o644, (ROOT / "docs/install.md").read_bytes())}
    archive = {f"{top}/{path}": file for path, file in (files | extra).items()}
    (out / f"{top}.tar.gz").write_bytes(gz(tar(archive)))

    below = {f"usr/{path}": file for path, file in files.items()}
    for path in [path for path in below if "/man/" in path]:
        mode, data = below.pop(path)
        below[f"{path}.gz"] = (mode, gz(data))
    text = COPYRIGHT.encode() + licences["LICENSE-MIT"][1] + b"\n" + licences["LICENSE-APACHE"][1]
    below["usr/share/doc/hardpack/copyright"] = (0o644, text)
    below[f"usr/share/doc/hardpack/{PARTS}.gz"] = (0o644, gz(parts[1]))
    debian = DEBIAN[processor]
    (out / f"hardpack_{version}_{debian}.deb").write_bytes(deb(version, debian, below))


main()
