# shellcheck shell=bash
# What the scripts of this directory share. Each gets the path of the command `hardpack`, and a directory to work in,
# which is also the program's home, so the user's own data is left alone. It stops at the first step that fails.
set -euo pipefail
examples=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
hardpack=$(realpath "$1")
mkdir -p "$2"
cd "$2"
again=(bash "$examples/$(basename "$0")" "$hardpack" "$PWD")
export HOME=$PWD XDG_CONFIG_HOME=$PWD/config XDG_DATA_HOME=$PWD/data XDG_CACHE_HOME=$PWD/cache XDG_RUNTIME_DIR=$PWD/run
export QT_QPA_PLATFORM=offscreen NO_AT_BRIDGE=1
mkdir -p "$XDG_RUNTIME_DIR"
chmod 700 "$XDG_RUNTIME_DIR"

# Starts the script again with a session bus of its own, or with a display that nobody sees. Does so once.
with_own_bus() {
    [ -n "${HAS_OWN_BUS:-}" ] || HAS_OWN_BUS=1 exec dbus-run-session --config-file="$examples/bus.conf" -- "${again[@]}"
}
with_own_display() {
    [ -n "${HAS_OWN_DISPLAY:-}" ] || HAS_OWN_DISPLAY=1 exec xvfb-run -a "${again[@]}"
}

program=
# Starts a program in the background; what it prints is in the file `output`.
start() { # command...
    "$@" </dev/null >output 2>&1 &
    program=$!
}
# Ends it as a desktop does that shuts down.
stop() {
    kill "$program" 2>/dev/null || true
    wait "$program" || true
    program=
}
trap '[ -z "$program" ] || stop' EXIT

fail() {
    echo "$1"
    exit 1
}

# Waits until a command succeeds.
wait_for() { # what, command...
    local what=$1
    shift
    for _ in {1..150}; do
        "$@" >/dev/null 2>&1 && return 0
        sleep 0.2
    done
    fail "no $what; it printed: $(tail -n 3 output | tr '\n' ' ')"
}

# Whether a query of a pool gives this result.
has() { # pool, sql, result
    [ "$("$hardpack" sql "$1" "$2")" = "$3" ]
}

expect() { # pool, sql, result
    has "$@" || fail "'$2' in $1 is not '$3'"
}

expect_pool() { # file
    [ "$(head -c 13 "$1")" = "Hardpack pool" ] || fail "$1 is not a pool"
}
