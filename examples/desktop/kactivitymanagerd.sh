#!/usr/bin/env bash
# KDE's activity manager keeps links to files in a database, through Qt's SQLite plug-in, in write-ahead log mode. Its
# database is packed and used again, and then made packed.
# usage: kactivitymanagerd.sh HARDPACK DIRECTORY
# shellcheck source=examples/desktop/common.sh
. "$(dirname "$0")/common.sh"
with_own_bus

manager=$(echo /usr/lib/*/libexec/kactivitymanagerd)
database=$XDG_DATA_HOME/kactivitymanagerd/resources/database
links="with link(activity, program, file) as (select * from ResourceLink)
    select group_concat(file, ' ') from (select file from link order by file)"
call() { # path, method, argument...
    local path=/ActivityManager$1 method=org.kde.$2
    shift 2
    dbus-send --session --print-reply --dest=org.kde.ActivityManager "$path" "$method" "$@"
}
# Lets the program note a link, and quit.
link() { # file, command before the program...
    local file=$1
    shift
    start "$@" "$manager"
    wait_for "kactivitymanagerd on the bus" call /Activities ActivityManager.Activities.CurrentActivity
    call /Resources/Linking ActivityManager.ResourcesLinking.LinkResourceToActivity \
        string:examples "string:file://$file" string: >/dev/null
    call "" ActivityManager.Application.quit >/dev/null
    wait "$program" || fail "kactivitymanagerd failed: $(tail -n 3 output | tr '\n' ' ')"
    program=
}

link /etc/fstab
"$hardpack" pack -q --in-place "$database"
link /etc/hosts "$hardpack" run --
expect "$database" "$links" "/etc/fstab /etc/hosts"
expect_pool "$database"
"$hardpack" check -q "$database"

rm -r "$XDG_DATA_HOME"
link /etc/passwd "$hardpack" run --new-packed --
expect "$database" "$links" /etc/passwd
expect_pool "$database"
"$hardpack" check -q "$database"
