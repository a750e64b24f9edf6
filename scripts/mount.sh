#!/usr/bin/env bash
# Mounts a pool and lets other people's test suites and programs loose on it. Needs root and /dev/fuse; says so where it
# cannot run.
# usage: scripts/mount.sh [--quick] [--only PARTS] [--seeds N] [--hours H] [--rounds N]
#   --quick       posix, and a few thousand operations of fsx
#   --only PARTS  only these parts, separated by commas
#   --seeds N     runs of fsx, each with a seed of its own (20)
#   --hours H     fsx goes on with new seeds for as long as this
#   --rounds N    how often the server is killed (5)
# The parts:
#   posix   pjdfstest: what POSIX says
#   fsx     one file, all operations at random, mmap and holes included, compared with memory
#   fio     random writes with checksums
#   stress  the file system tests of stress-ng
#   git     a clone, its gc and fsck
#   trees   tar, rsync -aHAX and unzip: hard links, holes, extended attributes, times and owners there and back
#   builds  a Rust crate and SQLite's own configure and make, with nothing left to do when run again
#   sqlite  SQLite's own tests in a rollback mode and in WAL mode: nothing fails that does not fail beside the pool
#   kill    SIGKILL to the server in the middle of all that, a new mount, and what was synced is there
# HARDPACK_BUILD names the directory of the build (target/release). The suites are kept in target/mount-tools.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD

quick=
seeds=20
hours=0
rounds=5
parts=posix,fsx,fio,stress,git,trees,builds,sqlite,kill
while [ $# -gt 0 ]; do
    case $1 in
        --quick) quick=1 seeds=3 parts=posix,fsx ;;
        --only) parts=$2 && shift ;;
        --seeds) seeds=$2 && shift ;;
        --hours) hours=$2 && shift ;;
        --rounds) rounds=$2 && shift ;;
        *) sed -n '/^# usage/,/^set/{/^#/s/^# \?//p}' "$0" >&2 && exit 2 ;;
    esac
    shift
done
wants() { case ",$parts," in *",$1,"*) true ;; *) false ;; esac; }
build=$(realpath "${HARDPACK_BUILD:-target/release}")
hardpack=$build/hardpack
if [ ! -e "$hardpack" ]; then
    echo "$hardpack is missing: run 'make' first" >&2
    exit 1
fi
if [ "$(id -u)" != 0 ] || ! [ -w /dev/fuse ]; then
    echo "mount: skipped, since it needs root and /dev/fuse"
    exit 0
fi

tools=$(realpath -m "${CARGO_TARGET_DIR:-target}/mount-tools")
for suite in pjdfstest@0.2.2 fsx@0.3.2; do
    [ -x "$tools/bin/${suite%@*}" ] || cargo install --quiet --locked --root "$tools" "$suite"
done

work=$(mktemp -d "${TMPDIR:-/tmp}/hardpack-mount.XXXXXX")
point=$work/mnt
chmod 711 "$work" # other users go through it
mkdir "$point"
cleanup() {
    mountpoint -q "$point" && umount -l "$point"
    rm -rf "$work"
}
trap cleanup EXIT
"$hardpack" create "$work/p.hpk"
mount_it() { "$hardpack" mount --allow-other "$work/p.hpk" "$point"; }
unmount_and_check() {
    "$hardpack" umount "$point"
    "$hardpack" check -q "$work/p.hpk"
}

# What POSIX says.
posix() {
    # Directories of a pool do not count the directories in them, as on btrfs; everything else must pass.
    cat >"$work/pjdfstest.toml" <<'END'
[features]
posix_fallocate = {}
rename_ctime = {}
utimensat = {}
utime_now = {}

[settings]
naptime = 0.01
allow_remount = false

[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"], ["bin", "bin"]]
END
    expected='^rename::updates_link_parent '
    mount_it
    "$tools/bin/pjdfstest" -c "$work/pjdfstest.toml" -p "$point" >"$work/pjdfstest.log" 2>&1 || true
    unmount_and_check
    grep -E ' (ok|FAILED|skipped)$' "$work/pjdfstest.log" >"$work/results" || true
    failed=$(grep ' FAILED$' "$work/results" | grep -vE "$expected" || true)
    passed=$(grep -c ' ok$' "$work/results" || true)
    if [ -n "$failed" ] || [ "$passed" -lt 300 ]; then
        echo "pjdfstest: $passed passed, and these failed:" >&2
        echo "$failed" >&2
        exit 1
    fi
    echo "pjdfstest: $passed passed, $(grep -c ' skipped$' "$work/results") skipped"
}

# One file, everything that can be done to it.
fsx() {
    cat >"$work/fsx.toml" <<'END'
[opsize]
max = 131072
[weights]
close_open = 2
invalidate = 2
truncate = 10
fsync = 2
fdatasync = 2
punch_hole = 8
posix_fallocate = 3
sendfile = 3
copy_file_range = 5
END
    operations=4000
    [ -n "$quick" ] || operations=50000
    mount_it
    until_time=$(($(date +%s) + $(printf '%.0f' "$(echo "$hours * 3600" | bc)")))
    seed=0
    while [ "$seed" -lt "$seeds" ] || [ "$(date +%s)" -lt "$until_time" ]; do
        seed=$((seed + 1))
        if ! "$tools/bin/fsx" -q -S "$seed" -N "$operations" -P "$work" -f "$work/fsx.toml" "$point/fsx" >"$work/fsx.log" 2>&1; then
            echo "fsx: seed $seed failed:" >&2
            tail -n 30 "$work/fsx.log" >&2
            exit 1
        fi
        rm -f "$point/fsx"
    done
    unmount_and_check
    echo "fsx: $seed seeds of $operations operations"
}

fio_verify() {
    scripts/packages.sh fio
    mount_it
    fio --name=verify --directory="$point" --size=64M --numjobs=3 --rw=randrw --bsrange=512-64k --verify=crc32c \
        --fsync=64 --fallocate=none --aux-path="$work" --minimal >/dev/null
    rm -f "$point"/verify*
    echo "fio: written and verified"
    unmount_and_check
}

stress() {
    scripts/packages.sh stress-ng
    mount_it
    # It ends with 3 or 4 where the kernel or the file system lacks what some of its tests are about, such as fs-verity.
    status=0
    stress-ng --temp-path "$point" --class filesystem --sequential 2 --timeout 2s >"$work/stress.log" 2>&1 || status=$?
    if [ "$status" != 0 ] && [ "$status" != 3 ] && [ "$status" != 4 ]; then
        tail -n 30 "$work/stress.log" >&2
        exit 1
    fi
    echo "stress-ng: done"
    unmount_and_check
}

git_clone() {
    scripts/packages.sh git
    mount_it
    git clone -q --no-hardlinks . "$point/clone"
    git -C "$point/clone" gc -q
    git -C "$point/clone" fsck --no-dangling
    [ -z "$(git -C "$point/clone" status --short)" ]
    echo "git: cloned, packed and checked"
    rm -rf "$point/clone"
    unmount_and_check
}

# A tree goes in and comes out again by each program, and is compared on the way.
trees() {
    scripts/packages.sh rsync unzip zip tar
    scripts/mount/trees.py make "$work/tree"
    mount_it
    mkdir "$point/tar" "$work/back"
    tar -C "$work/tree" --xattrs -Scf - . | tar -C "$point/tar" --xattrs -Spxf -
    rsync -aHAXS "$work/tree/" "$point/rsync/"
    for copy in tar rsync; do
        scripts/mount/trees.py compare "$work/tree" "$point/$copy"
    done
    unmount_and_check
    mount_it
    tar -C "$point/tar" --xattrs -Scf "$work/back.tar" .
    mkdir "$work/back/tar"
    tar -C "$work/back/tar" --xattrs -Spxf "$work/back.tar"
    rsync -aHAXS "$point/rsync/" "$work/back/rsync/"
    # tar looks for holes only in files that have fewer blocks than bytes, and here no file has.
    scripts/mount/trees.py compare --no-holes "$work/tree" "$work/back/tar"
    scripts/mount/trees.py compare "$work/tree" "$work/back/rsync"
    # Nothing has changed, so nothing is to be copied.
    [ -z "$(rsync -aHAXSi "$work/tree/" "$point/rsync/")" ]
    (cd /usr/share && zip -qr "$work/tree.zip" doc perl5 python3 2>/dev/null) || true
    unzip -q "$work/tree.zip" -d "$point/unzip"
    unzip -q "$work/tree.zip" -d "$work/back/unzip"
    diff -r --no-dereference "$work/back/unzip" "$point/unzip"
    echo "trees: tar, rsync and unzip of $(find "$point" | wc -l) names, there and back"
    rm -rf "${point:?}"/* "$work/back" "$work"/tree* "$work/back.tar"
    unmount_and_check
}

# Compilers and make: what was built is newer than its sources, also after another mount.
builds() {
    suite_source
    mount_it
    git clone -q --no-hardlinks . "$point/clone"
    for run in first second; do
        (cd "$point/clone" && CARGO_TARGET_DIR=$point/built cargo build --locked -p hardpack-page-filter) >"$work/cargo-$run.log" 2>&1
    done
    grep -q Compiling "$work/cargo-first.log"
    cp -a "$root/target/sqlite-suite/src" "$point/sqlite"
    (cd "$point/sqlite" && ./configure --disable-tcl --disable-readline CFLAGS=-O0 && make -j2 sqlite3) >"$work/make.log" 2>&1
    "$point/sqlite/sqlite3" "$point/built.db" 'create table t(a); insert into t values(1), (2); select sum(a) from t' | grep -qx 3
    unmount_and_check
    mount_it
    (cd "$point/clone" && CARGO_TARGET_DIR=$point/built cargo build --locked -p hardpack-page-filter) >"$work/cargo-third.log" 2>&1
    if grep -q Compiling "$work/cargo-second.log" "$work/cargo-third.log"; then
        echo "builds: cargo built again what it had built" >&2
        exit 1
    fi
    make -C "$point/sqlite" -q sqlite3
    echo "builds: a Rust crate and SQLite, and nothing to do again"
    rm -rf "${point:?}"/*
    unmount_and_check
}

# Gets SQLite's source and its test program.
suite_source() {
    if ! [ -x target/sqlite-suite/build/testfixture ]; then
        scripts/sqlite-suite/run.sh --vfs unix --quick --programs none select1 >"$work/suite.log" 2>&1
    fi
}

# Runs SQLite's tests in a directory: those of quick.txt, and its own permutation `wal`. Prints the cases that fail.
suite_in() { # directory
    local directory=$1 source=$root/target/sqlite-suite/src fixture=$root/target/sqlite-suite/build/testfixture
    mkdir -p "$directory" && chmod 755 "$directory"
    scripts/sqlite-suite/runner.py --vfs unix --source "$source" --testfixture "$fixture" \
        --list scripts/sqlite-suite/quick.txt --out "$directory/rollback" >"$directory/rollback.log" 2>&1 || true
    grep -oE '^\[[0-9/]+\] FAILED .*' "$directory/rollback.log" | sed 's/^[^ ]* //' || true
    mkdir "$directory/wal"
    (cd "$directory/wal" && timeout 1800 "$fixture" "$source/test/permutations.test" wal) >"$directory/wal.log" 2>&1 || true
    grep -E '^!Failures|^! .* expected' "$directory/wal.log" || true
    grep -qE '^[0-9]+ errors out of [0-9]+' "$directory/wal.log" || echo "the permutation 'wal' did not end"
}

sqlite() {
    suite_source
    mount_it
    suite_in "$work/beside" | sort >"$work/fails-beside"
    suite_in "$point/suite" | sort >"$work/fails-here"
    if ! diff "$work/fails-beside" "$work/fails-here"; then
        echo "sqlite: these fail on the mount, or only beside it; the logs:" >&2
        tail -n 5 "$point"/suite/*.log >&2
        exit 1
    fi
    cases=$(cat "$point"/suite/*.log | grep -oE 'errors out of [0-9]+|[0-9]+ cases, ' | grep -oE '[0-9]+' | paste -sd+ | bc)
    echo "sqlite: $cases cases in a rollback mode and in WAL mode, $(wc -l <"$work/fails-beside") fail on any file system"
    rm -rf "$point/suite" "$work/beside"
    unmount_and_check
}

kill_server() {
    scripts/packages.sh fio git tar
    scripts/mount/kill.py --cli "$hardpack" --fsx "$tools/bin/fsx" --work "$work" --rounds "$rounds"
}

if wants posix; then posix; fi
if wants fsx; then fsx; fi
if wants fio; then fio_verify; fi
if wants stress; then stress; fi
if wants git; then git_clone; fi
if wants trees; then trees; fi
if wants builds; then builds; fi
if wants sqlite; then sqlite; fi
if wants kill; then kill_server; fi
