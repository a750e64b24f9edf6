#!/usr/bin/env bash
# DB Browser for SQLite (Qt) adds a row to a packed database, and makes a new one packed. Its option to quit after a
# script skips the script (3.12.2), so it is stopped when the row is there.
# usage: sqlitebrowser.sh HARDPACK DIRECTORY
# shellcheck source=examples/desktop/common.sh
. "$(dirname "$0")/common.sh"

sqlite3 words.db "create table words(word, count); insert into words values('first', 1)"
"$hardpack" pack -q --in-place words.db
echo "insert into words select 'desktop', count(*) + 1 from words;" >add.sql
start "$hardpack" run -- sqlitebrowser words.db -s add.sql
wait_for "row in words.db" has words.db "select count from words where word = 'desktop'" 2
stop
expect_pool words.db
"$hardpack" check -q words.db

# It opens only files that exist; an empty one is a new database.
touch new.db
echo "create table words(word); insert into words values('new');" >new.sql
start "$hardpack" run --new-packed -- sqlitebrowser new.db -s new.sql
wait_for "table in new.db" has new.db "select word from words" new
stop
expect_pool new.db
"$hardpack" check -q new.db
