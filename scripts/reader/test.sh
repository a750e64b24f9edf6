#!/usr/bin/env bash
# Runs the reader's own test with the command that was built: the golden pools, and a fresh pool with all of the format
# in it, have to read the same there (self_test.py). Installs the codecs and checksums that it needs.
#
# HARDPACK_BUILD names the directory of the build (target/release).
set -euo pipefail
cd "$(dirname "$0")/../.."

build=$(realpath "${HARDPACK_BUILD:-target/release}")
if [ ! -e "$build/hardpack" ]; then
    echo "$build/hardpack is missing: run 'make' first" >&2
    exit 1
fi
scripts/packages.sh python3-venv
venv=$(realpath -m "${CARGO_TARGET_DIR:-target}/python/reader")
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
if ! "$venv/bin/python" -c "import blake3, lz4.block, xxhash, zstandard" 2>/dev/null; then
    "$venv/bin/pip" install --quiet --disable-pip-version-check zstandard lz4 xxhash blake3
fi
HARDPACK="$build/hardpack" "$venv/bin/python" scripts/reader/read_pool.py self-test
