#!/usr/bin/env bash
# Runs SQLite's own test suites with Hardpack as the default VFS: see README.md beside this file.
#
# It gets the source from Debian's source package, builds SQLite's test programs with the harness in
# them, and runs the files of list.txt, then SQLite's stress programs. Exit status 0: every failure
# is explained.
#
# usage: scripts/sqlite-suite/run.sh [option ...] [test file ...]
#   --quick            the files of quick.txt instead, two minutes, and no programs
#   --long             the files of long.txt as well: minutes each
#   --list             only prints the names of the files
#   --vfs unix         runs the files with SQLite's own VFS: failures are then not Hardpack's
#   --concurrency snapshot   gives every pool this concurrency; known-failures-snapshot.txt counts too
#   --programs NAMES   some of speedtest1, mptest, threadtest3, and fuzzcheck, which takes long; or
#                      "none", or "all" (the default), which means all except fuzzcheck
#   --only-programs    no test files
#   --jobs N           runs N files at once, 2 by default
#   --timeout SECONDS  limit for one file, 300 by default
#   --out DIRECTORY    directory for logs and results, target/sqlite-suite/out by default
#   --dsc FILE         uses a source package that was downloaded earlier
#   --results          writes RESULTS.md
#   --only-results     runs nothing, and writes RESULTS.md from the last run
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
work=$target/sqlite-suite
command_line="scripts/sqlite-suite/run.sh $*"

# The lists apply to this release of Debian and its SQLite.
debian=bookworm
sqlite=3.40.1
packages=(gcc libc6-dev make tcl tcl-dev zlib1g-dev dpkg-dev xz-utils python3 util-linux)

vfs=hardpack list=$here/list.txt programs=all files=yes jobs=2 timeout=300 out=$work/out
concurrency='' dsc='' only_list='' results='' names=() long=''
while [ $# -gt 0 ]; do
    case $1 in
    --quick) list=$here/quick.txt programs=none ;;
    --long) long=yes ;;
    --list) only_list=yes ;;
    --vfs) vfs=$2 && shift ;;
    --concurrency) concurrency=$2 && shift ;;
    --programs) programs=$2 && shift ;;
    --only-programs) files='' ;;
    --jobs) jobs=$2 && shift ;;
    --timeout) timeout=$2 && shift ;;
    --out) out=$2 && shift ;;
    --dsc) dsc=$2 && shift ;;
    --results) results=yes ;;
    --only-results) results=only ;;
    -*) sed -n '/^# usage/,/^set/{/^#/s/^# \?//p}' "$0" >&2 && exit 2 ;;
    *) names+=("$1") && programs=none ;;
    esac
    shift
done
[ "$programs" = all ] && programs=speedtest1,mptest,threadtest3
mkdir -p "$work"
if [ -n "$long" ]; then
    cat "$here/list.txt" "$here/long.txt" >"$work/list.txt"
    list=$work/list.txt
fi
if [ -n "$only_list" ]; then
    grep -v '^#' "$list"
    exit
fi

# Installs missing Debian packages.
install_packages() {
    local need=() package sudo=()
    for package in "${packages[@]}"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || need+=("$package")
    done
    [ ${#need[@]} -eq 0 ] && return
    [ "$(id -u)" -eq 0 ] || sudo=(sudo)
    echo "installing ${need[*]}"
    "${sudo[@]}" apt-get update -qq
    DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq "${need[@]}" >/dev/null
}

# Downloads the source package with separate package lists: the system's configuration is untouched.
download() {
    local apt=$work/apt options mirror
    # The mirror that the system itself uses.
    mirror=$(grep -rhoE 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null |
        tr -d ' ' | sort -u | head -n 1 || true)
    if [ -z "$mirror" ]; then
        echo "no Debian mirror is configured: pass the source package with --dsc" >&2
        exit 2
    fi
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$work/package"
    echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]" \
        "$mirror $debian main" >"$apt/sources.list"
    options=(-o "Dir::Etc::SourceList=$apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$apt/lists" -o "Dir::Cache=$apt/cache" -o APT::Sandbox::User=root)
    apt-get "${options[@]}" -qq update
    (cd "$work/package" && apt-get "${options[@]}" -qq source --download-only sqlite3)
    dsc=$(ls "$work"/package/sqlite3_"$sqlite"-*.dsc)
}

unpack() {
    [ -e "$work/src/configure" ] && return
    [ -n "$dsc" ] || download
    rm -rf "$work/src"
    dpkg-source --no-check -x "$dsc" "$work/src" >"$work/unpack.log" || { cat "$work/unpack.log" && exit 2; }
    [ "$(cat "$work/src/VERSION")" = "$sqlite" ] || { echo "the lists apply to SQLite $sqlite" >&2 && exit 2; }
}

# Runs a step of the build, quietly unless it fails.
step() { # name, command...
    local name=$1
    shift
    echo "building $name"
    nice "$@" >"build/$name.log" 2>&1 || { tail -20 "build/$name.log" >&2 && exit 2; }
}

is_current() { # program
    [ "build/$1" -nt build/default_vfs.o ] && [ "build/$1" -nt build/pool_bytes.o ]
}

# Builds SQLite for the stress programs, without test hooks; it compiles quickly rather than runs fast.
plain_flags=(-O0 -g -w -DSQLITE_EXTRA_INIT=hardpack_suite_init -DSQLITE_THREADSAFE=1 -DSQLITE_ENABLE_FTS4
    -DSQLITE_ENABLE_FTS5 -DSQLITE_ENABLE_RTREE -DSQLITE_ENABLE_MATH_FUNCTIONS)

# Builds one of the programs, linked with the harness.
build_program() { # name, then sources and flags
    local name=$1
    shift
    is_current "$name" && return
    step "$name" gcc "${plain_flags[@]}" -Ibuild -Isrc/src -Isrc/test -Isrc/ext/recover "$@" build/default_vfs.o \
        -Wl,--export-dynamic -lm -lpthread -ldl -o "build/$name"
}

compile() { # source
    local object=build/$(basename "$1" .c).o
    [ "$object" -nt "$1" ] || gcc -O1 -g -Wall -Wextra -Ibuild -I/usr/include/tcl8.6 -c "$1" -o "$object"
}

build() {
    cd "$work"
    if [ ! -e build/sqlite3.c ]; then
        rm -rf build && mkdir build
        (cd build && ../src/configure --enable-all --disable-readline --with-tcl=/usr/lib/tcl8.6 \
            CFLAGS="-O1 -g" && make sqlite3.c) >configure.log 2>&1 || { tail -20 configure.log >&2 && exit 2; }
    fi
    compile "$here/default_vfs.c"
    compile "$here/pool_bytes.c"
    local flags
    if [ -n "$files" ] && ! is_current testfixture; then
        flags=$(sed -n 's/^TESTFIXTURE_FLAGS *+*= *//p' build/Makefile | tr '\n' ' ')
        step testfixture make -C build testfixture OPTS="-DSQLITE_EXTRA_INIT=hardpack_suite_init" \
            LIBTCL="-ltcl8.6 $PWD/build/default_vfs.o $PWD/build/pool_bytes.o -Wl,--export-dynamic" \
            TESTFIXTURE_FLAGS="${flags/sqlite3TestInit/hardpack_suite_tcl_init}"
    fi
    case $programs in *speedtest1* | *mptest* | *threadtest3*)
        [ -e build/plain.o ] || step plain gcc "${plain_flags[@]}" -Ibuild -c build/sqlite3.c -o build/plain.o
        ;;
    esac
    case $programs in *speedtest1*) build_program speedtest1 src/test/speedtest1.c build/plain.o ;; esac
    case $programs in *mptest*) build_program mptester src/mptest/mptest.c build/plain.o ;; esac
    case $programs in *threadtest3*)
        build_program threadtest3 src/test/threadtest3.c src/src/test_multiplex.c build/plain.o
        ;;
    esac
    case $programs in *fuzzcheck*)
        # As in SQLite's makefile, but with loadable extensions, through which Hardpack gets SQLite's functions.
        build_program fuzzcheck -DSQLITE_ENABLE_MEMSYS5 -DSQLITE_OSS_FUZZ -DSQLITE_MAX_MEMORY=50000000 \
            -DSQLITE_PRINTF_PRECISION_LIMIT=1000 -DSQLITE_ENABLE_FTS3_PARENTHESIS -DSQLITE_ENABLE_GEOPOLY \
            -DSQLITE_ENABLE_DBSTAT_VTAB -DSQLITE_ENABLE_BYTECODE_VTAB src/test/fuzzcheck.c src/test/ossfuzz.c \
            src/test/fuzzinvariants.c src/ext/recover/dbdata.c src/ext/recover/sqlite3recover.c src/test/vt02.c \
            build/sqlite3.c
        ;;
    esac
    [ "$vfs" = hardpack ] || return 0
    (cd "$root" && nice cargo build --release --locked -q -p hardpack-sqlite)
    cp "$target/release/libhardpack.so" "$work/libhardpack.so"
}

# Runs one of the programs in its own directory. It passes if it says so and exits with 0.
run_program() { # title, what its output must contain, seconds, command...
    local title=$1 wanted=$2 limit=$3 directory=$out/run/program log began=$SECONDS state=ok
    shift 3
    log=$out/logs/program-${title//[^A-Za-z0-9]/-}.log
    rm -rf "$directory" && mkdir -p "$directory"
    (cd "$directory" && timeout -k 5 "$limit" "$@") >"$log" 2>&1 || state="FAILED (status $?)"
    [ "$state" != ok ] || grep -q "$wanted" "$log" || state="FAILED (no '$wanted')"
    rm -rf "$directory"
    echo "[program] $state $title, $((SECONDS - began)) s"
    echo "| $title | $state |" >>"$out/programs.md"
    [ "$state" = ok ] || failed=yes
}

run_programs() {
    local mode data
    [ -z "$concurrency" ] || export HARDPACK_SUITE_CONCURRENCY=$concurrency
    [ "$vfs" = hardpack ] && export HARDPACK_SUITE_LIBRARY=$work/libhardpack.so
    for mode in '' ${programs//,/ }; do
        case $mode in
        speedtest1)
            run_program 'speedtest1, rollback' TOTAL 900 "$work/build/speedtest1" --size 20 --verify speed.db
            run_program 'speedtest1, WAL' TOTAL 900 "$work/build/speedtest1" --size 20 --verify --journal wal speed.db
            ;;
        mptest)
            for mode in DELETE WAL PERSIST TRUNCATE; do
                run_program "mptest crash01 $mode" 'Summary: 0 errors' 900 "$work/build/mptester" mptest.db \
                    "$work/src/mptest/crash01.test" --repeat 4 --journalmode "$mode"
                run_program "mptest multiwrite01 $mode" 'Summary: 0 errors' 900 "$work/build/mptester" mptest.db \
                    "$work/src/mptest/multiwrite01.test" --repeat 4 --journalmode "$mode"
            done
            ;;
        threadtest3)
            # Without walthread2, which waits for the rollback journal's file: a pool's journal is in memory.
            run_program threadtest3 '^0 errors out of' 900 "$work/build/threadtest3" walthread1 walthread3 walthread4 \
                walthread5 cgt_pager_1 dynamic_triggers checkpoint_starvation_1 checkpoint_starvation_2 \
                create_drop_index_1 lookaside1 vacuum1 stress1 stress2 shared1
            ;;
        fuzzcheck)
            # Databases that start empty are created through the default VFS; images are deserialised in memory.
            for data in 1 3 4 5 6 7 8; do
                run_program "fuzzcheck fuzzdata$data" '0 errors' 1800 "$work/build/fuzzcheck" --native-vfs \
                    "$work/src/test/fuzzdata$data.db"
            done
            ;;
        esac
    done
}

write_results() {
    {
        echo "# Results of SQLite's own suites"
        echo
        cat "$out/run.md"
        echo
        cat "$out/summary.md" 2>/dev/null || true
        if [ -e "$out/programs.md" ]; then
            printf '\n| program | |\n| --- | --- |\n'
            cat "$out/programs.md"
        fi
    } >"$here/RESULTS.md"
}

if [ "$results" = only ]; then
    write_results
    exit
fi
install_packages
unpack
build
failed=''
mkdir -p "$out/logs"
rm -f "$out/summary.md" "$out/programs.md"
cat >"$out/run.md" <<END
Command: \`$command_line\`. Commit: $(git -C "$root" rev-parse --short HEAD). SQLite $sqlite of Debian $debian,
VFS \`$vfs\`, $(nproc) processors, $jobs files at once, at most $timeout s each.
END
if [ -n "$files" ]; then
    "$here/runner.py" --source "$work/src" --testfixture "$work/build/testfixture" --library "$work/libhardpack.so" \
        --vfs "$vfs" --concurrency "$concurrency" --list "$list" --out "$out" --jobs "$jobs" --timeout "$timeout" \
        "${names[@]}" || failed=yes
fi
[ "$programs" = none ] || run_programs
[ -z "$results" ] || write_results
[ -z "$failed" ]
