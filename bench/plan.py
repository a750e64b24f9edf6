"""Plans what to read and update in a database of unknown schema.

The plan is made once, on the plain base, from a fixed seed, and used by every side. It has the largest rowid
table with a text or blob column, rows spread over all of it, and a column whose value can be replaced by
another of the same size. Each planned update was tried in a transaction that was rolled back.
"""

import random
import sqlite3

SHORT_TEXT_LENGTH_MAX = 64
TRIED_UPDATES = 40


class NoPlan(Exception):
    """The database has no table to measure with."""


def quoted(name):
    return '"%s"' % name.replace('"', '""')


def table_sizes(db):
    """Returns (bytes, name) of each ordinary rowid table, largest first."""
    names = [row[1] for row in db.execute("PRAGMA table_list")
             if row[0] == "main" and row[2] in ("table", "shadow") and not row[4] and not row[1].startswith("sqlite_")]
    try:
        used = dict(db.execute("SELECT name, pgsize FROM dbstat WHERE aggregate=TRUE"))
    except sqlite3.OperationalError:  # built without dbstat: rows are the next best guess
        used = {name: db.execute("SELECT count(*) FROM %s" % quoted(name)).fetchone()[0] for name in names}
    return sorted(((used.get(name, 0), name) for name in names), reverse=True)


def mutated(value):
    """Returns another value of the same type and stored size, or None."""
    if isinstance(value, int):
        return value ^ 1
    if isinstance(value, bytes):
        return value[:-1] + bytes([value[-1] ^ 1]) if value else None
    if not isinstance(value, str) or not value or any("\ud800" <= c <= "\udfff" for c in value):
        return None  # surrogates stand for bytes that are not UTF-8; such text is left alone
    for at in range(len(value) - 1, -1, -1):
        c = value[at]
        if "0" <= c <= "9":
            new = chr((ord(c) - 48 + 1) % 10 + 48)
        elif "a" <= c <= "z":
            new = chr((ord(c) - 97 + 1) % 26 + 97)
        elif "A" <= c <= "Z":
            new = chr((ord(c) - 65 + 1) % 26 + 65)
        else:
            continue
        return value[:at] + new + value[at + 1:]
    # A code point and its neighbour (lowest bit flipped) have encodings of the same length.
    return value[:-1] + chr(ord(value[-1]) ^ 1) if ord(value[-1]) >= 33 else None


def sample_rowids(db, table, rowid, count, rng):
    low, high = db.execute("SELECT min({0}), max({0}) FROM {1}".format(rowid, table)).fetchone()
    sql = "SELECT {0} FROM {1} WHERE {0}>=? ORDER BY {0} LIMIT 1".format(rowid, table)
    return [db.execute(sql, (rng.randint(low, high),)).fetchone()[0] for _ in range(count)]


def columns_of(db, name, rowid):
    """Returns (column, kind, mean length, indexed, key) of ordinary columns, judged by stored values."""
    table = quoted(name)
    indexed = {row[0] for row in db.execute(
        "SELECT ii.name FROM pragma_index_list(?) AS il, pragma_index_info(il.name) AS ii", (name,))}
    found = []
    for _, column, _, _, _, key, hidden in db.execute("PRAGMA table_xinfo(%s)" % table):
        if hidden:
            continue
        kinds = db.execute("SELECT typeof(v), avg(length(v)) FROM (SELECT %s AS v FROM %s LIMIT 2000) "
                           "WHERE v IS NOT NULL GROUP BY 1 ORDER BY count(*) DESC" % (quoted(column), table)).fetchall()
        if kinds:
            found.append((column, kinds[0][0], kinds[0][1] or 0, column in indexed, bool(key)))
    return found


def update_preference(column):
    """Sort key: short text or integers, then longer text, then blobs; among equals, columns without an index first."""
    _, kind, length, indexed, _ = column
    small = kind == "integer" or kind == "text" and length <= SHORT_TEXT_LENGTH_MAX
    return 0 if small else 1 if kind == "text" else 2, indexed, kind != "text"


def planned_updates(db, table, rowid, column, rowids):
    """Returns [rowid, new, old] for distinct rows that can be changed, or [] if a trial fails."""
    select = "SELECT %s FROM %s WHERE %s=?" % (column, table, rowid)
    update = "UPDATE %s SET %s=? WHERE %s=?" % (table, column, rowid)
    planned = []
    for row in dict.fromkeys(rowids):
        old = db.execute(select, (row,)).fetchone()[0]
        new = mutated(old)
        if new is not None:
            planned.append([row, new, old])
    db.execute("BEGIN")
    try:
        for row, new, _ in planned[:TRIED_UPDATES]:
            db.execute(update, (new, row))
            found = db.execute(select, (row,)).fetchone()
            if found is None or found[0] != new:
                return []
    except sqlite3.Error:  # a constraint or trigger objects
        return []
    finally:
        db.execute("ROLLBACK")
    return planned


def make_plan(base, scale, seed):
    """Returns the plan as a dictionary of plain values."""
    db = sqlite3.connect(base, isolation_level=None)
    try:
        db.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
        candidates = []
        for used, name in table_sizes(db):
            taken = {row[1].lower() for row in db.execute("PRAGMA table_xinfo(%s)" % quoted(name))}
            rowid = next((r for r in ("rowid", "_rowid_", "oid") if r not in taken), None)
            if rowid is None or db.execute("SELECT 1 FROM %s LIMIT 1" % quoted(name)).fetchone() is None:
                continue
            columns = columns_of(db, name, rowid)
            text = max((c for c in columns if c[1] == "text"), key=lambda c: c[2], default=None)
            blob = max((c for c in columns if c[1] == "blob"), key=lambda c: c[2], default=None)
            if text or blob:
                # Tables with text come first: one with only blobs is often part of a full-text
                # index.
                candidates.append((text is None, -used, name, rowid, columns, text or blob))
        for _, _, name, rowid, columns, scanned in sorted(candidates, key=lambda c: c[:3]):
            table, rng = quoted(name), random.Random(seed)
            needed = max(scale[key] for key in scale if key.startswith("updates_"))
            rowids = sample_rowids(db, table, rowid, needed * 2, rng)
            usable = [c for c in columns if c[1] in ("text", "integer", "blob") and not c[4]]
            for column in sorted(usable, key=update_preference):
                updates = planned_updates(db, table, rowid, quoted(column[0]), rowids)[:needed]
                if updates:
                    break
            else:
                continue
            expression = "length(%s)" if scanned[1] == "text" else "length(%s||'')"
            return {
                "table": name, "update_column": column[0], "scan_column": scanned[0],
                "rows": db.execute("SELECT count(*) FROM " + table).fetchone()[0],
                "scan": "SELECT count(*), sum(%s) FROM %s NOT INDEXED" % (expression % quoted(scanned[0]), table),
                "point": "SELECT * FROM %s WHERE %s=?" % (table, rowid),
                "value": "SELECT %s FROM %s WHERE %s=?" % (quoted(column[0]), table, rowid),
                "update": "UPDATE %s SET %s=? WHERE %s=?" % (table, quoted(column[0]), rowid),
                "first": "SELECT * FROM %s LIMIT 1" % table,
                "point_rowids": sample_rowids(db, table, rowid, scale["points"] * 2, rng),
                "updates": updates,
            }
    finally:
        db.close()
    raise NoPlan("no rowid table with a text or blob column that can be updated")
