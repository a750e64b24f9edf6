#!/usr/bin/env bash
# Shows that a release can be reproduced: builds the last commit twice, in folders with different names and nothing in
# common, and compares every byte. Takes as long as two builds.
# usage: scripts/dist/reproduce.sh [PROCESSOR...]
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d "${TMPDIR:-/tmp}/hardpack-twice.XXXXXX")
trap 'rm -rf "$work"' EXIT
tools=$(scripts/dist/tools.sh)
for copy in one another/deeper/folder; do
    mkdir -p "$work/$copy"
    git clone --quiet . "$work/$copy/source"
    # The tools are downloaded only once.
    mkdir -p "$work/$copy/target"
    ln -s "$tools" "$work/$copy/target/dist-tools"
    CARGO_TARGET_DIR=$work/$copy/target "$work/$copy/source/scripts/dist/build.sh" "$@" >"$work/build.log" 2>&1 \
        || { tail -n 20 "$work/build.log" >&2 && exit 1; }
    cp -r "$work/$copy/target/packages" "$work/packages-${copy%%/*}"
    rm -rf "${work:?}/$copy"
done
diff -r "$work/packages-one" "$work/packages-another"
cat "$work/packages-one/SHA256SUMS"
echo "two builds in different folders: the same bytes"
