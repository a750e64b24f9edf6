#!/usr/bin/env python3
"""Makes the databases of this folder with the extensions themselves; README.md says which, and how they are built.

usage: make.py LIBSQLITE_ZSTD.so ZSTD_VFS.so     (Python's own sqlite3, or pysqlite3, must be able to load extensions)
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    import pysqlite3 as sqlite3
except ImportError:
    import sqlite3

HERE = pathlib.Path(__file__).resolve().parent
MARK = "-- through the extension\n"


def connect(path, library=None, **options):
    db = sqlite3.connect(path, isolation_level=None, **options)
    if library:
        db.enable_load_extension(True)
        db.load_extension(str(pathlib.Path(library).resolve()))
    return db


def rows(library, out):
    before, after = (HERE / "rows.sql").read_text().split(MARK)
    db = connect(out, library)
    db.executescript(before)

    def compress(table, column, chooser):
        config = {
            "table": table, "column": column, "compression_level": 19, "dict_chooser": chooser,
            "min_dict_size_bytes_for_training": 1000, "dict_size_ratio": 0.05,
        }
        db.execute("SELECT zstd_enable_transparent(?)", [json.dumps(config)])

    compress("pages", "body", "'p' || (id % 2)")
    compress("pages", "raw", "'[nodict]'")
    compress("keyed", "content", "'a'")
    db.execute("SELECT zstd_incremental_maintenance(NULL, 1)")
    # The extension compresses no rows of a table without rowids, but makes its view.
    compress("flat table", "filling", "'[nodict]'")
    db.executescript(after)
    db.execute("VACUUM")
    kinds = "SELECT typeof(body), typeof(raw), count(*) FROM _pages_zstd GROUP BY 1, 2"
    print(db.execute("SELECT id, length(dict) FROM _zstd_dicts").fetchall(), db.execute(kinds).fetchall())
    db.close()


def pages(library, out):
    before, after = (HERE / "pages.sql").read_text().split(MARK)
    loaded = connect(":memory:", library)
    plain = connect(out.with_suffix(".plain"), uri=True)
    plain.executescript(before)
    plain.execute(f"VACUUM INTO 'file:{out}?vfs=zstd&level=19&outer_page_size=8192'")
    db = connect(f"file:{out}?vfs=zstd", uri=True)
    db.executescript(after)
    db.close()
    loaded.close()
    outer = connect(out)
    kinds = "SELECT meta1, count(*) FROM nested_vfs_zstd_pages GROUP BY 1"
    print(outer.execute("SELECT id, length(dict) FROM nested_vfs_zstd_dicts").fetchall(), outer.execute(kinds).fetchall())


def main():
    row_library, page_library = sys.argv[1:]
    os.environ.setdefault("SQLITE_ZSTD_LOG", "error")
    with tempfile.TemporaryDirectory() as work:
        for make, library, name in [(rows, row_library, "rows.db"), (pages, page_library, "pages.db")]:
            out = pathlib.Path(work, name)
            make(library, out)
            subprocess.run(["zstd", "-q", "-f", "-19", out, "-o", HERE / f"{name}.zst"], check=True)


if __name__ == "__main__":
    main()
