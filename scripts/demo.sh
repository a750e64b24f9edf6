#!/usr/bin/env bash
# The main job, from start to finish: packs a real database, queries and updates it through the
# stock sqlite3 shell, and compares it with a plain copy that gets the same statements.
# usage: scripts/demo.sh [DATABASE]
set -euo pipefail
cd "$(dirname "$0")/.."

hardpack=$PWD/target/release/hardpack
library=$PWD/target/release/libhardpack.so
work=$(mktemp -d "${TMPDIR:-/tmp}/hardpack-demo.XXXXXX")
trap 'rm -rf "$work"' EXIT

# Runs statements in one session of the stock shell, which times each named section itself. Prints a
# line for each section with its name, its seconds and its answers.
session() { # plain|packed, then pairs of name and SQL
    local open=".open '$work/plain.db'"
    [ "$1" = plain ] || open=".open 'file:$work/packed.hpk?vfs=hardpack'"
    shift
    {
        while [ $# -gt 1 ]; do
            printf '.print @@%s\n.timer on\n%s;\n.timer off\n' "$1" "$2"
            shift 2
        done
    } | sqlite3 -batch :memory: -cmd ".load $library" -cmd "$open" | awk '
        /^@@/ { if (name) print name "\t" seconds "\t" answer; name = substr($0, 3); seconds = 0; answer = ""; next }
        /^Run Time: real/ { seconds += $4; next }
        { answer = answer " " $0 }
        END { print name "\t" seconds "\t" answer }'
}

row() { printf '  %-36s %12s %12s   %s\n' "$@"; }

demo() { # title, database, then pairs of name and SQL
    echo
    echo "== $1"
    # The shell's own copy is consistent even while others write.
    sqlite3 -readonly "$2" ".backup '$work/plain.db'" 2>/dev/null || cp "$2" "$work/plain.db"
    "$hardpack" pack "$work/plain.db" "$work/packed.hpk" --force
    shift 2
    local plain_len packed_len
    plain_len=$(stat -c %s "$work/plain.db")
    packed_len=$(stat -c %s "$work/packed.hpk")
    set -- "$@" "integrity_check" "pragma integrity_check"
    session plain "$@" >"$work/plain.txt"
    session packed "$@" >"$work/packed.txt"
    if ! diff <(cut -f 1,3 "$work/plain.txt") <(cut -f 1,3 "$work/packed.txt") >&2; then
        echo "the answers above differ between the plain database and the pool" >&2
        exit 1
    fi
    echo
    row "" plain hardpack ""
    row size "$((plain_len / 1024)) KiB" "$((packed_len / 1024)) KiB" \
        "$(awk -v a="$plain_len" -v b="$packed_len" 'BEGIN { printf "%.2f times smaller", a / b }')"
    paste "$work/plain.txt" "$work/packed.txt" | while IFS=$'\t' read -r name plain _ _ packed _; do
        row "$name" "$(awk -v t="$plain" 'BEGIN { printf "%.0f ms", t * 1000 }')" \
            "$(awk -v t="$packed" 'BEGIN { printf "%.0f ms", t * 1000 }')" \
            "$(awk -v a="$plain" -v b="$packed" 'BEGIN { printf "x %.2f", (b + 0.0005) / (a + 0.0005) }')"
    done
    "$hardpack" check -q "$work/packed.hpk"
    "$hardpack" unpack -q --force "$work/packed.hpk" "$work/unpacked.db"
    if [ "$(sqlite3 "$work/plain.db" .dump | sha256sum)" != "$(sqlite3 "$work/unpacked.db" .dump | sha256sum)" ]; then
        echo "the unpacked database differs from the plain one" >&2
        exit 1
    fi
    echo "  checked, and unpacked again: the same content, statement for statement"
    rm -f "$work"/plain.* "$work"/packed.* "$work"/unpacked.db*
}

# Runs a query and an update that work on any database with a table.
generic() {
    local table column
    # The largest ordinary table.
    table=$(sqlite3 -readonly "$1" "select l.name from pragma_table_list l join dbstat s on s.name = l.name
        where l.schema = 'main' and l.type = 'table' and l.wr = 0 and l.name not like 'sqlite%'
        group by l.name order by sum(s.pgsize) desc limit 1")
    if [ -z "$table" ]; then
        echo "'$1' has no ordinary table to show" >&2
        exit 1
    fi
    column=$(sqlite3 -readonly "$1" "select name from pragma_table_info('$table') where pk=0 order by type like '%TEXT%' desc, cid limit 1")
    column=${column:-rowid}
    demo "$(basename "$1")" "$1" \
        "full scan of $table" "select count(*), sum(length(\"$column\")) from \"$table\"" \
        "2,000 rows by rowid" "with recursive n(i) as (values(1) union all select i+7 from n limit 2000) select count(*) from n join \"$table\" on \"$table\".rowid = n.i" \
        "update of every 50th row" "update \"$table\" set \"$column\" = \"$column\" where rowid % 50 = 0; select changes()"
}

if [ $# -gt 0 ]; then
    generic "$1"
    exit
fi

# A real database from a package: the coordinate systems of the PROJ library.
proj=/usr/share/proj/proj.db
if [ ! -r $proj ]; then
    (cd "$work" && apt-get -qq download proj-data && dpkg-deb -x proj-data_*.deb proj) 2>/dev/null || true
    proj=$(find "$work/proj" -name proj.db 2>/dev/null | head -n 1)
fi
if [ -n "$proj" ] && [ -r "$proj" ]; then
    generic "$proj"
else
    echo "(the package proj-data cannot be downloaded; the demo goes on without it)"
fi

bench/make_weblog.py "$work/weblog.db" 100 >/dev/null 2>&1
demo "a generated web log of 100 MB, with full-text search" "$work/weblog.db" \
    "full scan, first time" "select sum(length(line)) from logs" \
    "full scan, again" "select sum(length(line)) from logs" \
    "search: login, not 200" "select count(*) from logs where logs match 'login NOT 200'" \
    "add 5,000 lines, one transaction" "insert into logs select ts, host, source, line from logs where rowid <= 5000; select changes()" \
    "200 transactions of one line" "$(for i in $(seq 200); do printf "insert into logs(ts, host, source, line) values('now', 'demo', 'demo', 'line %s');" "$i"; done) select count(*) from logs where host = 'demo'" \
    "the same search again" "select count(*) from logs where logs match 'login NOT 200'"
echo
echo "Your own database: make demo DB=path/to/database"
