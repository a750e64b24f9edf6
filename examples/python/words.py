"""Python with its module sqlite3.

Look out: some builds cannot load extensions and have no `enable_load_extension` (pyenv's by default, and that of
python.org for macOS). `hardpack run -- python3 ...` works with those that use libsqlite3, and needs no change.
"""
import sqlite3
import sys

if len(sys.argv) != 3:
    sys.exit("usage: words.py LIBRARY POOL")
library, pool = sys.argv[1:]

loader = sqlite3.connect(":memory:")
loader.enable_load_extension(True)
loader.load_extension(library)
loader.close()

db = sqlite3.connect(f"file:{pool}?vfs=hardpack", uri=True)
with db:
    db.execute("INSERT INTO words VALUES(?, ?)", ("python", 1))
print(db.execute("SELECT count(*) FROM words").fetchone()[0], "words")
db.close()
