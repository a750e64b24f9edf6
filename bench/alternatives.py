#!/usr/bin/env python3
"""Measures how small Hardpack and others make the same data. Sizes only: they do not depend on the machine.

usage: bench/alternatives.py [--publish docs/comparison.md] [--only NAME]...
Installs what Debian and Python's package index have (root; some hundred MB), and says what could not be measured and why.
HARDPACK_BUILD names the build (target/release). --only takes the first word of a row, such as `borg`.

The data: a log of 20 MB in one table with an index, made by make_weblog.py; proj.db of Debian's package proj-data, as it
is; and five releases of Django, unpacked, as near-copies. Every size is that of all files that are needed to use the data,
with the data as written by the tool's own defaults, unless the row says otherwise.
"""

import argparse
import datetime
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
BUILD = pathlib.Path(os.environ.get("HARDPACK_BUILD", ROOT / "target/release")).resolve()
DEBIAN = ["7zip", "borgbackup", "btrfs-compsize", "btrfs-progs", "proj-data", "python3-venv", "restic", "sqlite3",
          "squashfs-tools"]
PYTHON = ["apsw", "duckdb==2.0.0", "genomicsqlite==0.9.4", "sqlite-zstd-build==0.3.5"]
DJANGO = [f"4.2.{patch}" for patch in range(1, 6)]
LOG_MB = 20
MARKS = ("<!-- measured: made by bench/alternatives.py -->", "<!-- end of what was measured -->")


# What is no use for some data.
UNFIT = ("databases only", "files only")
# What ROWS says.
NOTHING_LONG = "no column has long values"


class NotMeasured(Exception):
    """Why a size cannot be had."""


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], text=True, capture_output=True, **options)
    if done.returncode:
        raise NotMeasured(f"{command[0]} fails: {(done.stderr or done.stdout).strip().splitlines()[-1:]}")
    return done.stdout


def size_of(path):
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file() and not file.is_symlink())


class Data:
    """Something to store: one database, or a tree of files."""

    def __init__(self, name, path):
        self.name, self.path, self.is_database = name, path, path.is_file()


def make_data(work):
    """Yields the data that can be made or fetched here."""
    folder = work / "data"
    folder.mkdir()
    search, log = folder / "search.db", folder / "log.db"
    run(sys.executable, HERE / "make_weblog.py", search, LOG_MB * 2)
    run("sqlite3", log, f"""
        ATTACH '{search}' AS search;
        CREATE TABLE logs(id INTEGER PRIMARY KEY, ts TEXT, host TEXT, source TEXT, line TEXT);
        INSERT INTO logs(ts, host, source, line) SELECT ts, host, source, line FROM search.logs;
        CREATE INDEX by_time ON logs(ts);
        DELETE FROM logs WHERE id > (SELECT count(*) * {LOG_MB}e6 / (SELECT page_count * page_size
            FROM pragma_page_count('main'), pragma_page_size('main')) FROM logs);
        VACUUM""")
    search.unlink()
    yield Data("log", log)
    shutil.copy("/usr/share/proj/proj.db", folder / "proj.db")
    yield Data("proj.db", folder / "proj.db")
    releases = folder / "django"
    for version in DJANGO:
        run(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
            "--only-binary=:all:", f"--dest={work}", f"django=={version}")
        wheel = next(work.glob(f"[Dd]jango-{version}-*.whl"))
        run(sys.executable, "-m", "zipfile", "--extract", wheel, releases / version)
        wheel.unlink()
    yield Data("releases", releases)


def only_databases(data):
    if not data.is_database:
        raise NotMeasured("databases only")


# Each of these stores data below `out`, an empty directory, and returns the size.


def hardpack(data, out, *options):
    pool = out / "pool.hpk"
    if data.is_database:
        if "--property=dedup=on" in options:
            raise NotMeasured("files only")
        run(BUILD / "hardpack", "pack", "-q", *options, data.path, pool)
    else:
        run(BUILD / "hardpack", "put", "-q", *options, f"{data.path}/", pool)
    return size_of(pool)


def btrfs(data, out, level):
    """The space that compsize reports, without the file system's own."""
    image, mount = out / "image", out / "mount"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(1 << 30)
    run("mkfs.btrfs", "-q", image)
    run("mount", "-o", f"loop,compress=zstd:{level}", image, mount)
    try:
        run("cp", "-r", data.path, mount)
        run("sync", "-f", mount)
        total = re.search(r"^TOTAL\s+\S+\s+(\d+)", run("compsize", "-b", mount), re.MULTILINE)
    finally:
        run("umount", mount)
    return int(total.group(1))


def squashfs(data, out, *options):
    run("mksquashfs", data.path, out / "image", "-quiet", "-no-progress", *options)
    return size_of(out / "image")


def seven_zip(data, out):
    run("7zz", "a", "-mx=9", out / "archive.7z", data.path)
    return size_of(out / "archive.7z")


def borg(data, out):
    environment = os.environ | {"BORG_BASE_DIR": str(out / "home")}
    run("borg", "init", "--encryption=none", out / "repository", env=environment)
    run("borg", "create", "--compression=zstd,3", f"{out / 'repository'}::one", data.path, env=environment)
    return size_of(out / "repository")


def restic(data, out):
    environment = os.environ | {"RESTIC_PASSWORD": "x", "RESTIC_CACHE_DIR": str(out / "cache")}
    repository = f"--repo={out / 'repository'}"
    run("restic", repository, "init", "--repository-version=2", env=environment)
    run("restic", repository, "backup", "--compression=max", data.path, env=environment)
    return size_of(out / "repository")


class InPython:
    """Programs with the packages PYTHON; they get the database and the directory, and print the size."""

    ZSTD_VFS = """
import genomicsqlite, os, sqlite3, sys
out = os.path.join(sys.argv[2], "packed.db")
plain = sqlite3.connect(sys.argv[1])
plain.executescript(genomicsqlite.vacuum_into_sql(plain, out, zstd_level=int(sys.argv[3])))
print(os.path.getsize(out))
"""
    ROWS = """
import apsw, glob, json, os, shutil, sys
out = os.path.join(sys.argv[2], "rows.db")
shutil.copy(sys.argv[1], out)
db = apsw.Connection(out)
db.enable_load_extension(True)
# It needs a newer SQLite than Debian's; that of apsw will do.
db.load_extension(glob.glob(os.path.join(os.path.dirname(apsw.__file__), "..", "sqlite_zstd", "lib*"))[0])
tables = [row[0] for row in db.execute("SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table'"
                                       " AND NOT wr AND name NOT LIKE 'sqlite_%'")]
done = 0
for table in tables:
    rows = db.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0]
    for _, column, kind, _, _, key, *_ in db.execute(f'PRAGMA table_info("{table}")').fetchall():
        length = db.execute(f'SELECT avg(length("{column}")) FROM "{table}"').fetchone()[0] or 0
        # What is short is mostly indexed, and compressing it row by row gains nothing.
        if key or rows < 500 or length < 40:
            continue
        config = {"table": table, "column": column, "compression_level": 19, "dict_chooser": "'a'"}
        db.execute("SELECT zstd_enable_transparent(?)", [json.dumps(config)]).fetchall()
        done += 1
db.execute("SELECT zstd_incremental_maintenance(NULL, 1)").fetchall()
db.execute("VACUUM")
db.close()
print(os.path.getsize(out) if done else "no column has long values")
"""
    DUCKDB = """
import csv, duckdb, os, sqlite3, sys
plain = sqlite3.connect(sys.argv[1])
folder, kind = sys.argv[2:4]
duck = duckdb.connect(os.path.join(folder, "all.duckdb"))
tables = [row[0] for row in plain.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")]
total = 0
for table in tables:
    rows = plain.execute(f'SELECT * FROM "{table}"')
    text = os.path.join(folder, "table.csv")
    with open(text, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([column[0] for column in rows.description])
        writer.writerows(rows)
    duck.execute(f"CREATE TABLE \\"{table}\\" AS SELECT * FROM read_csv('{text}', header = true, sample_size = -1)")
    os.unlink(text)
    if kind == "parquet":
        path = os.path.join(folder, "table.parquet")
        duck.execute(f"COPY \\"{table}\\" TO '{path}' (FORMAT parquet, COMPRESSION zstd)")
        total += os.path.getsize(path)
duck.close()
print(total if kind == "parquet" else os.path.getsize(os.path.join(folder, "all.duckdb")))
"""

    def __init__(self, python, program):
        self.python, self.program = python, program

    def __call__(self, data, out, *arguments):
        only_databases(data)
        printed = run(self.python, "-c", self.program, data.path, out, *arguments).strip().splitlines()[-1]
        if not printed.isdigit():
            raise NotMeasured(printed)
        return int(printed)


def rows(python):
    """What is measured: the name, with what settings, how, and with which arguments."""
    vfs, by_row = InPython(python, InPython.ZSTD_VFS), InPython(python, InPython.ROWS)
    duckdb = InPython(python, InPython.DUCKDB)
    strong = ["--compression=zstd-19", "--recordsize=1M"]
    return [
        ("Hardpack", "as it comes: zstd-3, records of 128 KiB", hardpack, []),
        ("Hardpack", "zstd-19, records of 1 MiB", hardpack, strong),
        ("Hardpack", "zstd-19, records of 1 MiB, dedup", hardpack, [*strong, "--property=dedup=on"]),
        ("sqlite_zstd_vfs", "level 6, as it comes (in GenomicSQLite)", vfs, [6]),
        ("sqlite_zstd_vfs", "level 19", vfs, [19]),
        ("sqlite-zstd", "level 19, columns of 40 bytes and more, one dictionary each", by_row, []),
        ("btrfs", "compress=zstd:3, data only", btrfs, [3]),
        ("btrfs", "compress=zstd:15, data only", btrfs, [15]),
        ("squashfs", "zstd, blocks of 128 KiB", squashfs, ["-comp", "zstd"]),
        ("squashfs", "xz, blocks of 1 MiB", squashfs, ["-comp", "xz", "-b", "1M"]),
        ("7-Zip", "-mx=9", seven_zip, []),
        ("borg", "zstd,3", borg, []),
        ("restic", "--compression max", restic, []),
        ("Parquet", "zstd, written by DuckDB, without indexes", duckdb, ["parquet"]),
        ("DuckDB", "its own format, without indexes", duckdb, ["duckdb"]),
    ]


def measure(work, wanted):
    """Returns the data, and a row of sizes or reasons for each alternative."""
    python = work / "venv/bin/python"
    run("/usr/bin/python3", "-m", "venv", work / "venv")
    try:
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PYTHON)
    except NotMeasured as problem:
        print(problem, file=sys.stderr)
    everything = list(make_data(work))
    table = []
    for name, settings, method, arguments in rows(python):
        if wanted and name not in wanted:
            continue
        sizes = []
        for data in everything:
            out = pathlib.Path(tempfile.mkdtemp(dir=work))
            try:
                sizes.append(method(data, out, *arguments))
            except (NotMeasured, FileNotFoundError) as problem:
                sizes.append(str(problem))
                if str(problem) not in UNFIT:
                    print(f"{name}, {data.name}: {problem}", file=sys.stderr)
            finally:
                shutil.rmtree(out)
        print(name, settings, sizes, flush=True)
        table.append((name, settings, sizes))
    return everything, table


def shown(size, plain):
    if isinstance(size, str):
        return "-" if size in UNFIT else size if size == NOTHING_LONG else "not measured"
    return f"{size / 1e6:.2f} MB ({size / plain:.3f})"


def page(everything, table):
    """Returns the table for people."""
    plain = [size_of(data.path) for data in everything]
    lines = [
        "| | settings | " + " | ".join(data.name for data in everything) + " |",
        "| --- | --- |" + " --- |" * len(everything),
        "| plain files | | " + " | ".join(f"{size / 1e6:.2f} MB" for size in plain) + " |",
    ]
    for name, settings, sizes in table:
        cells = (shown(size, whole) for size, whole in zip(sizes, plain))
        lines.append(f"| {name} | {settings} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def versions():
    """Returns the versions of what was measured."""
    names = [name for name in DEBIAN if name not in ("python3-venv", "sqlite3", "btrfs-progs", "proj-data")]
    found = [run("dpkg-query", "-W", "-f", "${Package} ${Version}", name) for name in names]
    return ", ".join([run(BUILD / "hardpack", "--version").strip(), *found, *(name.replace("==", " ") for name in PYTHON if "==" in name)])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--publish", type=pathlib.Path, metavar="PAGE")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    arguments = parser.parse_args()
    subprocess.run([ROOT / "scripts/packages.sh", *DEBIAN], check=True)
    with tempfile.TemporaryDirectory(prefix="hardpack-alternatives.") as folder:
        everything, table = measure(pathlib.Path(folder), arguments.only)
        text = page(everything, table)
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    text += f"\n\nMeasured on {today} with {versions()}."
    print(text)
    if arguments.publish:
        before, _, rest = arguments.publish.read_text().partition(MARKS[0])
        _, _, after = rest.partition(MARKS[1])
        if not after:
            sys.exit(f"{arguments.publish} lacks the marks")
        arguments.publish.write_text(f"{before}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{after}")


if __name__ == "__main__":
    main()
