#!/usr/bin/env bash
# Makes the packages of a release in target/packages: for each processor an archive with the command, the extension and
# what belongs to them, a Debian package and a Python wheel; and the source, a list of all components (SBOM), and the
# SHA-256 sums of everything. The same commit gives the same bytes in any folder: scripts/dist/reproduce.sh shows that.
#
# usage: scripts/dist/build.sh [--quick] [--out FOLDER] [PROCESSOR...]
#   --quick    packs what `make` has built for this machine, instead of building for release; for tests of the packing
#   PROCESSOR  x86_64 or aarch64; both if none is given
#
# The command is linked statically with musl, so that it runs on any Linux. The libraries are loaded into programs that
# have a C library already: they are linked with glibc, and need no newer one than GLIBC of limits.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/dist/limits.sh

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
out=$target/packages
quick=
processors=()
while [ $# -gt 0 ]; do
    case $1 in
        --quick) quick=1 ;;
        --out) out=$(realpath -m "$2") && shift ;;
        x86_64 | aarch64) processors+=("$1") ;;
        *) echo "usage: $0 [--quick] [--out FOLDER] [x86_64] [aarch64]" >&2 && exit 2 ;;
    esac
    shift
done
[ ${#processors[@]} -gt 0 ] || processors=(x86_64 aarch64)
[ -z "$quick" ] || processors=("$(uname -m)")

# Every time in a package is that of the commit; of the sources, which have it from their archive, where there is no Git.
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y Cargo.lock)
fi
export SOURCE_DATE_EPOCH
export LC_ALL=C TZ=UTC
umask 022
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
tools=$(scripts/dist/tools.sh)
work=$(mktemp -d "${TMPDIR:-/tmp}/hardpack-dist.XXXXXX")
trap 'rm -rf "$work"' EXIT
rm -rf "$out"
mkdir -p "$out"

# Paths of this machine must not get into the binaries.
homes=("$PWD=/hardpack" "$target=/target" "${CARGO_HOME:-$HOME/.cargo}=/cargo" "$tools=/tools")
flags=()
c_flags=-g0
for home in "${homes[@]}"; do
    flags+=("--remap-path-prefix=$home")
    c_flags+=" -ffile-prefix-map=$home"
done

# Whether the standard library for a target is there, or can be had.
has_target() {
    [ -d "$(rustc --print sysroot)/lib/rustlib/$1/lib" ] || rustup --quiet target add "$1" >&2
}

# Builds packages of the workspace for a target, which may name a version of glibc.
build() { # target, packages...
    local wanted=$1
    shift
    PATH=$tools/bin:$PATH CARGO_ZIGBUILD_CACHE_DIR=$target/dist-zig CFLAGS=$c_flags \
        CARGO_ENCODED_RUSTFLAGS=$(IFS=$'\x1f' && echo -n "${flags[*]}") \
        cargo-zigbuild zigbuild --quiet --locked --profile dist --target "$wanted" "${@/#/--package=}"
}

missing=()
for processor in "${processors[@]}"; do
    made=$work/$processor
    mkdir "$made"
    if [ -n "$quick" ]; then
        for name in hardpack libhardpack.so libhardpack_preload.so; do
            strip --strip-debug -o "$made/$name" "${HARDPACK_BUILD:-$target/release}/$name"
        done
    else
        musl=$processor-unknown-linux-musl gnu=$processor-unknown-linux-gnu
        if ! has_target "$musl" || ! has_target "$gnu"; then
            echo "NOT BUILT for $processor: the standard library of Rust for it cannot be downloaded here" >&2
            missing+=("$processor")
            continue
        fi
        build "$musl" hardpack-cli
        build "$gnu.$GLIBC" hardpack-sqlite hardpack-preload
        cp "$target/$musl/dist/hardpack" "$target/$gnu/dist"/libhardpack{,_preload}.so "$made/"
        scripts/dist/limits.sh "$processor" "$made"
    fi
done
if [ ${#missing[@]} -eq ${#processors[@]} ]; then
    echo "nothing could be built" >&2
    exit 1
fi

# The pages and completions are the same for all, from a command that runs here.
native=$work/$(uname -m)/hardpack
[ -x "$native" ] || native=${HARDPACK_BUILD:-$target/release}/hardpack
mkdir -p "$work/man" "$work/completions"
"$native" man "$work/man"
for shell in bash zsh fish; do
    "$native" completions "$shell" >"$work/completions/$shell"
done
scripts/dist/components.py "$version" "$out/hardpack-$version.cdx.json" "$work/LICENSES-OF-PARTS"

for processor in "${processors[@]}"; do
    made=$work/$processor
    [ -e "$made/hardpack" ] || continue
    cp "$work/LICENSES-OF-PARTS" "$made/"
    scripts/dist/pack.py "$version" "$processor" "$made" "$work" "$out"
    tag=manylinux_${GLIBC/./_}_$processor.manylinux2014_$processor
    [ -z "$quick" ] || tag=linux_$processor
    (cd python && HARDPACK_WHEEL_FILES=$made HARDPACK_WHEEL_PLATFORM=$tag "$tools/bin/python" -m hatchling build \
        --target wheel --directory "$out" >"$work/wheel.log" 2>&1) || { cat "$work/wheel.log" >&2 && exit 1; }
done
if git rev-parse --quiet --verify HEAD >/dev/null 2>&1; then
    git archive --format tar --prefix "hardpack-$version/" HEAD | gzip --no-name --best >"$out/hardpack-$version.tar.gz"
    git diff --quiet HEAD || echo "note: the archive of the source holds the last commit, without your changes" >&2
fi
(cd "$out" && sha256sum -- * >SHA256SUMS)
ls -l "$out" | awk 'NR > 1 { printf "%10d  %s\n", $5, $9 }'
[ ${#missing[@]} -eq 0 ] || echo "NOT BUILT: ${missing[*]}"
