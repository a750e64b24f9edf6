#!/usr/bin/env bash
# Runs the programs of examples/ on a real pool, each with its language's own driver, and desktop programs on pools of
# their own. Prints a table: ok, skipped with the reason, or FAILED. Fails if one of them does.
# usage: scripts/examples.sh [--quick] [NAME...]
#   --quick  only those that need no downloads: C, C++, Python, and those of Rust and Node that are built already
#   NAME     only those whose names begin like this, such as "node" or "desktop"
# HARDPACK_BUILD names the directory of the build (target/release). Downloaded drivers are kept in target/examples.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

quick=
if [ "${1:-}" = --quick ]; then
    quick=1
    shift
fi
wanted=("$@")
build=$(realpath "${HARDPACK_BUILD:-target/release}")
drivers=$(realpath -m "${CARGO_TARGET_DIR:-target}/examples")
library=$build/libhardpack.so
for needed in hardpack libhardpack.so libhardpack_preload.so; do
    if [ ! -e "$build/$needed" ]; then
        echo "$build/$needed is missing: run 'make' first" >&2
        exit 1
    fi
done
work=$(mktemp -d "${TMPDIR:-/tmp}/hardpack-examples.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$drivers"

sqlite3 "$work/words.db" "create table words(word, count); insert into words values('first', 1)"
"$build/hardpack" pack -q "$work/words.db" "$work/words.hpk"

failed=0
rows=1
row() { printf '%-26s %-8s %s\n' "$1" "$2" "${3:-}"; }
is_wanted() {
    [ ${#wanted[@]} -eq 0 ] && return 0
    local name
    for name in "${wanted[@]}"; do [[ $1 == "$name"* ]] && return 0; done
    return 1
}
has() { command -v "$1" >/dev/null; }
skip() { row "$1" skipped "$2"; }

# Runs an example, which must add a row to the pool and print how many there are.
run() { # name, command...
    local name=$1 output expected
    shift
    expected="$((rows + 1)) words"
    if output=$("$@" 2>"$work/stderr") && [ "$output" = "$expected" ]; then
        rows=$((rows + 1))
        row "$name" ok
    else
        failed=1
        row "$name" FAILED "expected '$expected', found '$output': $(tail -n 3 "$work/stderr" | tr '\n' ' ')"
        rows=$("$build/hardpack" sql "$work/words.hpk" "select count(*) from words")
    fi
}

# Runs a step that prepares an example; tells and fails if it does not work.
prepare() { # name, command...
    local name=$1
    shift
    "$@" >"$work/prepare" 2>&1 && return 0
    row "$name" FAILED "$(tail -n 3 "$work/prepare" | tr '\n' ' ')"
    failed=1
    return 1
}

# Downloads a driver unless it is there; its example is skipped if that is not possible.
fetch() { # name, what, command...
    local name=$1 what=$2
    shift 2
    "$@" >"$work/fetch" 2>&1 && return 0
    skip "$name" "$what cannot be downloaded or built: $(tail -n 1 "$work/fetch" | cut -c 1-60)"
    return 1
}

in_c() {
    has cc || { skip c "no C compiler"; return; }
    prepare c cc -Wall -Wextra -Werror -I crates/sqlite/include -o "$work/c" examples/c/words.c -L "$build" -lhardpack \
        -lsqlite3 -ldl "-Wl,-rpath,$build" && run c "$work/c" "$library" "$work/words.hpk"
}

in_cpp() {
    has c++ || { skip cpp "no C++ compiler"; return; }
    prepare cpp c++ -std=c++17 -Wall -Wextra -Werror -o "$work/cpp" examples/cpp/words.cpp -lsqlite3 \
        && run cpp "$work/cpp" "$library" "$work/words.hpk"
}

# As `make test` has built it, or built now.
in_rust() {
    local program
    program=$(dirname "$build")/debug/examples/words
    if [ -z "$quick" ]; then
        has cargo || { skip rust "no cargo"; return; }
        prepare rust cargo build --locked -p hardpack-sqlite --example words || return
    fi
    [ -x "$program" ] || { skip rust "not built yet"; return; }
    run rust "$program" "$library" "$work/words.hpk"
}

# Both drivers are built into one folder, since most of what they need is the same.
with_crates() { # driver
    local crates=$drivers/rust
    has cargo || { skip "rust:$1" "no cargo"; return; }
    fetch "rust:$1" "$1" env CARGO_TARGET_DIR="$crates" \
        cargo build --quiet --locked --manifest-path examples/rust/Cargo.toml --bin "words-$1" || return
    run "rust:$1" "$crates/debug/words-$1" "$library" "$work/words.hpk"
}
in_rust_sqlx() { with_crates sqlx; }
in_rust_diesel() { with_crates diesel; }

in_csharp() {
    has mcs && has mono || { skip csharp "no mono (mono-mcs, mono-runtime, libmono-sqlite4.0-cil)"; return; }
    prepare csharp mcs -warnaserror -r:System.Data -r:Mono.Data.Sqlite "-out:$work/words.exe" examples/csharp/Words.cs \
        && run csharp mono "$work/words.exe" "$library" "$work/words.hpk"
}

in_python() {
    local python
    for python in python3 /usr/bin/python3; do
        has "$python" || continue
        "$python" -c 'import sqlite3; sqlite3.Connection.enable_load_extension' 2>/dev/null || continue
        run python "$python" examples/python/words.py "$library" "$work/words.hpk"
        return
    done
    skip python "no Python that loads extensions"
}

in_perl() {
    perl -MDBD::SQLite -e 1 2>/dev/null || { skip perl "no DBD::SQLite (libdbd-sqlite3-perl)"; return; }
    run perl perl examples/perl/words.pl "$library" "$work/words.hpk"
}

in_php() {
    php -r 'exit(class_exists("SQLite3") && extension_loaded("pdo_sqlite") ? 0 : 1);' 2>/dev/null \
        || { skip php "no PHP with SQLite (php-cli, php-sqlite3)"; return; }
    cp "$library" "$work/libhardpackdefault.so"
    run php php -d "sqlite3.extension_dir=$work" examples/php/words.php libhardpackdefault.so "$work/words.hpk"
}

in_ruby() {
    ruby -rsqlite3 -e 1 2>/dev/null || { skip ruby "no gem sqlite3 (ruby-sqlite3)"; return; }
    run ruby ruby examples/ruby/words.rb "$library" "$work/words.hpk"
}

in_go() {
    has go || { skip go "no go"; return; }
    fetch go mattn/go-sqlite3 env -C examples/go CGO_ENABLED=1 go build -o "$drivers/go-words" . || return
    run go "$drivers/go-words" "$library" "$work/words.hpk"
}

in_java() {
    local version=3.46.1.3 jar
    has java || { skip java "no java"; return; }
    jar=$HOME/.m2/repository/org/xerial/sqlite-jdbc/$version/sqlite-jdbc-$version.jar
    if [ ! -r "$jar" ]; then
        has mvn || { skip java "no mvn to download sqlite-jdbc with"; return; }
        fetch java sqlite-jdbc mvn -q dependency:get -Dtransitive=false "-Dartifact=org.xerial:sqlite-jdbc:$version" || return
    fi
    # Its log goes through slf4j, which need not be there for its classes to load.
    slf4j=$(find "$HOME/.m2/repository/org/slf4j/slf4j-api" -name 'slf4j-api-*.jar' 2>/dev/null | head -n 1)
    run java java -cp "$jar${slf4j:+:$slf4j}" examples/java/Words.java "$library" "$work/words.hpk"
}

in_node() {
    has node || { skip node "no node"; return; }
    local modules=$drivers/node/node_modules/better-sqlite3
    if [ ! -e "$modules/build/Release/better_sqlite3.node" ]; then
        [ -z "$quick" ] || { skip node "better-sqlite3 is not there yet"; return; }
        has npm || { skip node "no npm"; return; }
        # Where Node's headers are installed, nothing else is downloaded to build it.
        local headers=()
        [ -e /usr/include/node/node.h ] && headers=(--nodedir=/usr)
        mkdir -p "$drivers/node"
        fetch node better-sqlite3 npm install --prefix "$drivers/node" --no-audit --no-fund --ignore-scripts better-sqlite3@12 \
            || return
        fetch node better-sqlite3 env -C "$modules" npx --yes node-gyp rebuild --release "${headers[@]}" || return
    fi
    NODE_PATH=$drivers/node/node_modules run node node examples/node/words.js "$library" "$work/words.hpk"
}

in_node_builtin() {
    local node=node
    if ! has node || ! node -e 'require("node:sqlite").DatabaseSync' 2>/dev/null; then
        node=$drivers/node22/node_modules/node/bin/node
    fi
    if ! has "$node" && [ ! -x "$node" ]; then
        skip node:sqlite "no Node 22.13 or newer"
        return
    fi
    run node:sqlite "$node" --no-warnings examples/node/builtin.js "$library" "$work/words.hpk"
}

# A desktop program that knows nothing of Hardpack, on a database of its own.
with_desktop() { # program, packages, what it needs...
    local name="desktop: $1" packages=$2 script=examples/desktop/$1.sh needed
    shift 2
    for needed; do has "$needed" || { skip "$name" "no $needed ($packages)"; return; }; done
    if bash "$script" "$build/hardpack" "$work/$(basename "$script" .sh)" </dev/null >"$work/desktop" 2>&1; then
        row "$name" ok
    else
        failed=1
        row "$name" FAILED "$(tail -n 3 "$work/desktop" | tr '\n' ' ')"
    fi
}
in_desktop_sqlitebrowser() { with_desktop sqlitebrowser sqlitebrowser sqlitebrowser; }
in_desktop_kactivitymanagerd() {
    with_desktop kactivitymanagerd "kactivitymanagerd, dbus" /usr/lib/*/libexec/kactivitymanagerd dbus-run-session
}
in_desktop_tracker3() { with_desktop tracker3 "tracker, dbus" tracker3 dbus-run-session; }
in_desktop_shotwell() { with_desktop shotwell "shotwell, xvfb, dbus" shotwell xvfb-run dbus-run-session; }
in_desktop_firefox() {
    local firefox=firefox-esr
    has firefox && firefox=firefox
    with_desktop firefox firefox-esr "$firefox"
}

# A program that knows nothing of Hardpack.
in_any() {
    run "any (hardpack run)" "$build/hardpack" run -- sqlite3 "$work/words.hpk" \
        "insert into words values('any', 1); select count(*) || ' words' from words"
}

all=(c cpp csharp rust rust_sqlx rust_diesel python any perl php ruby go java node node_builtin desktop_sqlitebrowser
    desktop_kactivitymanagerd desktop_tracker3 desktop_shotwell desktop_firefox)
[ -n "$quick" ] && all=(c cpp rust python any node)
row EXAMPLE RESULT
for language in "${all[@]}"; do
    is_wanted "$language" && "in_$language"
done
"$build/hardpack" check -q "$work/words.hpk" || failed=1
exit $failed
