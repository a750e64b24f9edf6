#!/usr/bin/env bash
# GNOME's Tracker keeps an index in meta.db, which is packed and used again, and then made packed.
# usage: tracker3.sh HARDPACK DIRECTORY
# shellcheck source=examples/desktop/common.sh
. "$(dirname "$0")/common.sh"
with_own_bus

service=org.example.Notes
titles="select group_concat(\"nie:title\") from \"nie:InformationElement\" where \"nie:title\" like 'note %'"
sparql() { tracker3 sparql -b "$service" "$@" >/dev/null; }
is_served() { tracker3 endpoint -l | grep -q "$service"; }
# Adds a note to the index in a directory.
note() { # directory, title, command before the program...
    local directory=$1 title=$2
    shift 2
    start "$@" tracker3 endpoint -d "$PWD/$directory" -b "$service" -o nepomuk --session
    wait_for "endpoint of Tracker" is_served
    sparql -u -q "INSERT DATA { <urn:$title> a nie:InformationElement ; nie:title \"note $title\" }"
    stop
}

note index one
"$hardpack" pack -q --in-place index/meta.db
note index two "$hardpack" run --
expect index/meta.db "$titles" "note one,note two"
expect_pool index/meta.db
# An index of this database calls a function that only Tracker has, so SQLite's integrity_check cannot run.
"$hardpack" check -q index/meta.db

note new three "$hardpack" run --new-packed --
expect new/meta.db "$titles" "note three"
expect_pool new/meta.db
"$hardpack" check -q new/meta.db
