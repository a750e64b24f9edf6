#!/usr/bin/env bash
# Mounts a pool and lets other people's test suites of file systems loose on it: pjdfstest (what POSIX says), fsx (one file,
# all operations at random, compared with memory), and without --quick fio with verification, stress-ng, and git. Needs
# root and /dev/fuse; says so where it cannot run.
# usage: scripts/mount.sh [--quick] [--seeds N] [--hours H]
#   --quick    pjdfstest, and a few thousand operations of fsx
#   --seeds N  runs of fsx, each with a seed of its own (20)
#   --hours H  fsx goes on with new seeds for as long as this
# HARDPACK_BUILD names the directory of the build (target/release). The suites are kept in target/mount-tools.
set -euo pipefail
cd "$(dirname "$0")/.."

quick=
seeds=20
hours=0
while [ $# -gt 0 ]; do
    case $1 in
        --quick) quick=1 seeds=3 ;;
        --seeds) seeds=$2 && shift ;;
        --hours) hours=$2 && shift ;;
        *) echo "usage: scripts/mount.sh [--quick] [--seeds N] [--hours H]" >&2 && exit 2 ;;
    esac
    shift
done
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

# What POSIX says. Directories of a pool do not count the directories in them, as on btrfs; everything else must pass.
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

# One file, everything that can be done to it.
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
[ -n "$quick" ] && exit 0

scripts/packages.sh fio stress-ng git
mount_it
fio --name=verify --directory="$point" --size=64M --numjobs=3 --rw=randrw --bsrange=512-64k --verify=crc32c \
    --fsync=64 --fallocate=none --aux-path="$work" --minimal >/dev/null
rm -f "$point"/verify*
echo "fio: written and verified"
# It ends with 3 or 4 where the kernel or the file system lacks what some of its tests are about, such as fs-verity.
status=0
stress-ng --temp-path "$point" --class filesystem --sequential 2 --timeout 2s >"$work/stress.log" 2>&1 || status=$?
if [ "$status" != 0 ] && [ "$status" != 3 ] && [ "$status" != 4 ]; then
    tail -n 30 "$work/stress.log" >&2
    exit 1
fi
echo "stress-ng: done"
git clone -q --no-hardlinks . "$point/clone"
git -C "$point/clone" gc -q
git -C "$point/clone" fsck --no-dangling
[ -z "$(git -C "$point/clone" status --short)" ]
echo "git: cloned, packed and checked"
unmount_and_check
