#!/usr/bin/env bash
# GNOME's Shotwell keeps what it knows of photos in photo.db, which is packed and used again, and then made packed.
# Shotwell imports new files in its directory of pictures by itself, so nobody needs to click.
# usage: shotwell.sh HARDPACK DIRECTORY
# shellcheck source=examples/desktop/common.sh
. "$(dirname "$0")/common.sh"
with_own_bus
with_own_display

database=$XDG_DATA_HOME/shotwell/data/photo.db
photos="select count(*) from PhotoTable"
export GSETTINGS_BACKEND=keyfile
mkdir -p "$XDG_CONFIG_HOME/glib-2.0/settings" pictures
cat >"$XDG_CONFIG_HOME/glib-2.0/settings/keyfile" <<END
[org/yorba/shotwell/preferences/files]
auto-import=true
import-dir='$PWD/pictures'

[org/yorba/shotwell/preferences/ui]
show-welcome-dialog=false
END
# Adds a picture of one pixel. What follows its end makes it differ from the others.
picture() { # name
    base64 -d >"pictures/$1.png" <<END
iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==
END
    echo "$1" >>"pictures/$1.png"
}
has_photos() { [ "$(sqlite3 "file:$database?mode=ro" "$photos")" = "$1" ]; }

picture one
start shotwell
wait_for "photo in photo.db" has_photos 1
stop
"$hardpack" pack -q --in-place "$database"
picture two
start "$hardpack" run -- shotwell
wait_for "second photo in photo.db" has "$database" "$photos" 2
stop
expect_pool "$database"
"$hardpack" check -q "$database"

rm -r "$XDG_DATA_HOME"
start "$hardpack" run --new-packed -- shotwell
wait_for "photos in a new photo.db" has "$database" "$photos" 2
stop
expect_pool "$database"
"$hardpack" check -q "$database"
