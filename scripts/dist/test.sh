#!/usr/bin/env bash
# Tests the packages that scripts/dist/build.sh makes, as a user would use them (use.sh).
#
# usage: scripts/dist/test.sh [--quick] [FOLDER]
#   --quick  packs what `make` has built, unpacks it on this machine and uses it there; seconds, no download but the tools
#   FOLDER   holds the packages of a release (target/packages)
#
# Without --quick: installs the Debian package on new roots made by debootstrap (SUITES, bookworm and trixie if not set),
# with nothing in them but sqlite3, man-db and a Python, and uses it there. Runs the command for the other processor under
# QEMU, looks at the wheels with auditwheel and at the list of components with the schema of CycloneDX, and installs the
# command with `cargo install`. Takes some minutes; needs root.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
quick=
if [ "${1:-}" = --quick ]; then
    quick=1
    shift
fi
packages=$(realpath -m "${1:-$target/packages}")
work=$(mktemp -d "${TMPDIR:-/tmp}/hardpack-packages.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
here=$(uname -m)
debian=$(dpkg --print-architecture)

if [ -n "$quick" ]; then
    packages=$work/packages
    scripts/dist/build.sh --quick --out "$packages" >"$work/build.log" || { cat "$work/build.log" >&2 && exit 1; }
fi
(cd "$packages" && sha256sum --check --quiet SHA256SUMS)

echo "the archive, on this machine"
mkdir "$work/unpacked"
tar -xf "$packages"/hardpack-*-"$here"-linux.tar.gz -C "$work/unpacked"
unpacked=("$work"/unpacked/*)
wheel=$(find "$packages" -name "*$here.whl")
scripts/dist/use.sh "${unpacked[0]}" "$wheel"

if [ -n "$quick" ]; then
    echo "the Debian package, in an empty folder"
    mkdir "$work/root"
    dpkg-deb --extract "$packages"/hardpack_*_"$debian".deb "$work/root"
    dpkg-deb --info "$packages"/hardpack_*_"$debian".deb >"$work/info"
    grep -q '^ Package: hardpack$' "$work/info"
    (cd "$work/root" && dpkg-deb --ctrl-tarfile "$packages"/hardpack_*_"$debian".deb | tar -xO ./md5sums | md5sum --check --quiet)
    scripts/dist/use.sh "$work/root/usr"
    echo "packages: all well"
    exit 0
fi

[ "$(id -u)" -eq 0 ] || { echo "only root can make a new system to install on" >&2 && exit 1; }
scripts/packages.sh debootstrap qemu-user-static python3-venv

# Runs a command in a new root, with file systems of its own that end with it.
inside() { # root, command...
    # shellcheck disable=SC2016
    unshare --mount --pid --fork --kill-child bash -c '
        mount --make-rprivate / && mount -t proc proc "$1/proc" && mount --bind /dev "$1/dev" && exec chroot "$@"' - "$@"
}
for suite in ${SUITES:-bookworm trixie}; do
    root=$work/$suite
    echo "the Debian package, on a new $suite"
    if ! debootstrap --variant=minbase "$suite" "$root" >"$work/debootstrap.log" 2>&1; then
        tail -n 3 "$work/debootstrap.log" >&2
        exit 1
    fi
    cp /etc/resolv.conf /etc/hosts "$root/etc/" 2>/dev/null || true
    cp -r /etc/apt/apt.conf.d "$root/etc/" 2>/dev/null || true
    # Only the certificates: if openssl.cnf is from another release, dpkg asks what to do with it.
    mkdir -p "$root/etc/ssl"
    cp -r /etc/ssl/certs "$root/etc/ssl/" 2>/dev/null || true
    rm -f "$root"/etc/apt/apt.conf.d/*docker*
    inside "$root" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        sqlite3 man-db python3-venv zsh fish >"$work/apt.log" 2>&1 || { tail -n 5 "$work/apt.log" >&2 && exit 1; }
    cp "$packages"/hardpack_*_"$debian".deb "$wheel" scripts/dist/use.sh "$root/tmp/"
    inside "$root" sh -c 'dpkg -i /tmp/hardpack_*.deb' >"$work/dpkg.log" 2>&1 || { cat "$work/dpkg.log" >&2 && exit 1; }
    inside "$root" bash -c 'PATH=/usr/sbin:/usr/bin:/sbin:/bin /tmp/use.sh /usr /tmp/*.whl'
    echo "  the extension by its name alone"
    inside "$root" sqlite3 :memory: -cmd '.load libhardpack' 'SELECT count(*) FROM hardpack_stats' >/dev/null
    inside "$root" bash -c 'dpkg --purge hardpack >/dev/null && ! ls /usr/bin/hardpack /usr/lib/libhardpack* 2>/dev/null'
    rm -rf --one-file-system "$root"
done

sqlite3 "$work/words.db" "CREATE TABLE words(word); INSERT INTO words VALUES (hex(zeroblob(9999))), (randomblob(9999))"
for archive in "$packages"/hardpack-*-linux.tar.gz; do
    processor=${archive%-linux.tar.gz} processor=${processor##*-}
    [ "$processor" != "$here" ] || continue
    echo "the command for $processor, under QEMU"
    mkdir "$work/$processor"
    tar -xf "$archive" -C "$work/$processor" --strip-components 1
    command=("qemu-$processor-static" "$work/$processor/bin/hardpack")
    "${command[@]}" pack -q "$work/words.db" "$work/$processor.hpk"
    "${command[@]}" check -q "$work/$processor.hpk"
    "${command[@]}" unpack -q "$work/$processor.hpk" "$work/$processor.db"
    cmp "$work/words.db" "$work/$processor.db"
    # Pools are the same for all processors.
    "${unpacked[0]}/bin/hardpack" check -q "$work/$processor.hpk"
done

echo "the wheels and the list of components"
/usr/bin/python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check auditwheel 'cyclonedx-python-lib[json-validation]'
for each in "$packages"/*.whl; do
    "$work/venv/bin/auditwheel" show "$each" >"$work/wheel.txt"
    tr '\n' ' ' <"$work/wheel.txt" | grep -q '"manylinux_2_17_' || { cat "$work/wheel.txt" >&2 && exit 1; }
done
"$work/venv/bin/python" - "$packages"/*.cdx.json <<'PYTHON'
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

problem = JsonStrictValidator(SchemaVersion.V1_5).validate_str(open(sys.argv[1]).read())
sys.exit(str(problem) if problem else 0)
PYTHON

echo "the source: cargo install"
mkdir "$work/source"
tar -xf "$(find "$packages" -name 'hardpack-[0-9.]*.tar.gz' ! -name '*-linux.tar.gz')" -C "$work/source" --strip-components 1
cargo install --quiet --locked --path "$work/source/crates/cli" --root "$work/installed" --target-dir "$target/dist-install"
"$work/installed/bin/hardpack" pack -q "$work/words.db" "$work/installed.hpk"
"$work/installed/bin/hardpack" check -q "$work/installed.hpk"
echo "packages: all well"
