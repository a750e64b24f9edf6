#!/usr/bin/env bash
# Firefox's places.sqlite, packed, changed by the stock shell, and unpacked for Firefox again. Firefox itself cannot
# open the pool, since its SQLite is out of reach. It renames the pool, unchanged, and begins an empty history.
# usage: firefox.sh HARDPACK DIRECTORY
# shellcheck source=examples/desktop/common.sh
. "$(dirname "$0")/common.sh"
unset DBUS_SESSION_BUS_ADDRESS

firefox=$(command -v firefox-esr || command -v firefox)
profile=$PWD/profile
titles="select group_concat(title) from (select title from moz_places where visit_count > 0 order by id)"
mkdir -p "$profile"
# Visits a page, and ends.
visit() { # name, command before the program...
    local page=$PWD/$1.html
    echo "<title>$1</title>" >"$page"
    shift
    timeout -k 5 90 "$@" "$firefox" --headless --no-remote --profile "$profile" --screenshot "$PWD/page.png" \
        "file://$page" </dev/null >output 2>&1 || fail "Firefox failed: $(tail -n 3 output | tr '\n' ' ')"
}
places() { sqlite3 "$profile/places.sqlite" "$titles"; }

visit one
[ "$(places)" = one ] || fail "the visit is not in places.sqlite: $(places)"
"$hardpack" pack -q "$profile/places.sqlite" places.hpk
"$hardpack" run -- sqlite3 places.hpk "update moz_places set title = 'changed' where title = 'one'"
expect places.hpk "$titles" changed
"$hardpack" check -q places.hpk
"$hardpack" unpack -q --force places.hpk "$profile/places.sqlite"
visit two
[ "$(places)" = changed,two ] || fail "Firefox does not go on with the unpacked places.sqlite: $(places)"

"$hardpack" pack -q --in-place "$profile/places.sqlite"
cp "$profile/places.sqlite" before.hpk
visit three "$hardpack" run --
grep -q "hardpack: note: the SQLite in .* is out of reach" output || fail "there is no note: $(tail -n 3 output)"
[ "$(places)" = three ] || fail "places.sqlite is not a new one: $(places)"
cmp "$profile/places.sqlite.corrupt" before.hpk
"$hardpack" unpack -q --force "$profile/places.sqlite.corrupt" "$profile/places.sqlite"
visit four
[ "$(places)" = changed,two,four ] || fail "the history is not the old one: $(places)"
