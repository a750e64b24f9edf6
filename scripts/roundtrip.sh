#!/usr/bin/env bash
# Packs, updates, vacuums and unpacks a database, and compares it with a plain copy that got the
# same statements. The database itself is only read.
# usage: scripts/roundtrip.sh DATABASE [TABLE COLUMN]
set -euo pipefail
source=$(realpath "$1")
cd "$(dirname "$0")/.."

hardpack=$PWD/target/release/hardpack
library=$PWD/target/release/libhardpack.so
work=$(mktemp -d "${TMPDIR:-/tmp}/hardpack-roundtrip.XXXXXX")
trap 'rm -rf "$work"' EXIT

table=${2:-$(sqlite3 -readonly "$source" "select l.name from pragma_table_list l join dbstat s on s.name = l.name
    where l.schema = 'main' and l.type = 'table' and l.wr = 0 and l.name not like 'sqlite%'
    group by l.name order by sum(s.pgsize) desc limit 1")}
column=${3:-$(sqlite3 -readonly "$source" "select name from pragma_table_info('$table') where pk = 0
    order by type like '%TEXT%' desc, cid limit 1")}
echo "table $table, column $column"

statements="
    update \"$table\" set \"$column\" = \"$column\" || '~' where rowid % 10 = 0;
    delete from \"$table\" where rowid % 97 = 0;
    create table hardpack_copy as select * from \"$table\" where rowid % 5 = 0;
    drop table hardpack_copy;
    vacuum;
    update \"$table\" set \"$column\" = \"$column\" || '!' where rowid % 11 = 0;
    pragma integrity_check;"

cp "$source" "$work/plain.db"
"$hardpack" pack "$source" "$work/packed.hpk"
ls -l "$work"
echo "plain:"
time sqlite3 "$work/plain.db" "$statements"
echo "packed:"
time sqlite3 :memory: -cmd ".load $library" -cmd ".open 'file:$work/packed.hpk?vfs=hardpack'" "$statements"
"$hardpack" check "$work/packed.hpk"
"$hardpack" info "$work/packed.hpk"
"$hardpack" unpack "$work/packed.hpk" "$work/unpacked.db"
ls -l "$work"
sqlite3 "$work/unpacked.db" "pragma integrity_check"
dump() { sqlite3 -readonly "$1" .dump | sha256sum; }
if [ "$(dump "$work/plain.db")" != "$(dump "$work/unpacked.db")" ]; then
    echo "the contents differ" >&2
    exit 1
fi
echo "the same content, statement for statement"
