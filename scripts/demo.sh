#!/usr/bin/env bash
# The main job, start to finish: a real database is packed, then queried and updated through the stock
# sqlite3 shell, beside a plain copy of it that gets the same statements.
# usage: scripts/demo.sh [DATABASE]
set -euo pipefail
cd "$(dirname "$0")/.."

hardpack=$PWD/target/release/hardpack
library=$PWD/target/release/libhardpack.so
work=$(mktemp -d "${TMPDIR:-/tmp}/hardpack-demo.XXXXXX")
trap 'rm -rf "$work"' EXIT

# What a run of the stock shell takes, in milliseconds, the start of the shell included.
plain() { sqlite3 -batch "$work/plain.db" "$@"; }
packed() {
    sqlite3 -batch :memory: -cmd ".load $library" -cmd ".open 'file:$work/packed.hpk?vfs=hardpack'" "$@"
}
timed() { # plain|packed SQL -> sets $answer and $ms
    local start=${EPOCHREALTIME/./}
    answer=$("$1" "$2")
    ms=$(((${EPOCHREALTIME/./} - start) / 1000))
}

row() { printf '  %-34s %12s %12s   %s\n' "$1" "$2" "$3" "$4"; }
times() { awk -v a="$1" -v b="$2" 'BEGIN { printf "x %.2f", (b + 0.5) / (a + 0.5) }'; }

both() { # name SQL: runs it on both and demands the same answer
    timed plain "$2"
    local plain_answer=$answer plain_ms=$ms
    timed packed "$2"
    if [ "$answer" != "$plain_answer" ]; then
        echo "the answers differ for: $2" >&2
        exit 1
    fi
    row "$1" "$plain_ms ms" "$ms ms" "$(times "$plain_ms" "$ms")"
}

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
    echo
    row "" "plain" "hardpack" ""
    row "size" "$((plain_len / 1024)) KiB" "$((packed_len / 1024)) KiB" \
        "$(awk -v a="$plain_len" -v b="$packed_len" 'BEGIN { printf "%.2f times smaller", a / b }')"
    while [ $# -gt 1 ]; do
        both "$1" "$2"
        shift 2
    done
    both "integrity_check" "pragma integrity_check"
    "$hardpack" check -q "$work/packed.hpk"
    "$hardpack" unpack -q --force "$work/packed.hpk" "$work/unpacked.db"
    if [ "$(sqlite3 "$work/plain.db" .dump | sha256sum)" != "$(sqlite3 "$work/unpacked.db" .dump | sha256sum)" ]; then
        echo "the unpacked database differs from the plain one" >&2
        exit 1
    fi
    echo "  unpacked again: the same content, statement for statement"
    rm -f "$work"/plain.db* "$work"/packed.hpk* "$work"/unpacked.db*
}

# A query and an update that any database with a table can take.
generic() {
    local table column
    table=$(sqlite3 -readonly "$1" "select name from pragma_table_list where schema='main' and type='table' and wr=0 and name not like 'sqlite%' order by (select count(*) from pragma_table_info(name)) desc limit 1")
    if [ -z "$table" ]; then
        echo "'$1' has no ordinary table to show" >&2
        exit 1
    fi
    column=$(sqlite3 -readonly "$1" "select name from pragma_table_info('$table') where pk=0 order by type like '%TEXT%' desc, cid limit 1")
    column=${column:-rowid}
    demo "$1" "$1" \
        "full scan of \"$table\"" "select count(*), sum(length(\"$column\")) from \"$table\"" \
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
    (cd "$work" && apt-get -qq download proj-data && dpkg-deb -x proj-data_*.deb proj) || true
    proj=$(find "$work/proj" -name proj.db 2>/dev/null | head -n 1)
fi
if [ -n "$proj" ] && [ -r "$proj" ]; then
    generic "$proj"
else
    echo "(the package proj-data cannot be fetched here: the demo goes on without it)"
fi

bench/make_weblog.py "$work/weblog.db" 100 >/dev/null
demo "a generated web log of 100 MB, with full-text search" "$work/weblog.db" \
    "count all lines" "select count(*) from logs" \
    "full scan" "select sum(length(line)) from logs" \
    "search: \"login\", not 200" "select count(*) from logs where logs match 'login NOT 200'" \
    "add 5,000 lines, one transaction" "insert into logs select ts, host, source, line from logs where rowid <= 5000; select changes()" \
    "200 transactions of one line" "$(for i in $(seq 200); do echo "insert into logs(ts, host, source, line) values('now', 'demo', 'demo', 'line $i');"; done) select count(*) from logs where host = 'demo'" \
    "the same search again" "select count(*) from logs where logs match 'login NOT 200'"
echo
echo "Your own database: make demo DB=path/to/database"
