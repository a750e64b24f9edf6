#!/usr/bin/env bash
# Installs the tools of tools.txt into target/dist-tools, a virtual environment of Python, and prints that folder.
set -euo pipefail
cd "$(dirname "$0")/../.."

list=$PWD/scripts/dist/tools.txt
folder=$(realpath -m "${CARGO_TARGET_DIR:-target}")/dist-tools
if ! cmp -s "$list" "$folder/installed.txt"; then
    scripts/packages.sh python3-venv >&2
    rm -rf "$folder"
    /usr/bin/python3 -m venv "$folder"
    if ! "$folder/bin/pip" install --quiet --disable-pip-version-check --no-deps --require-hashes \
        --only-binary :all: --requirement "$list" >&2; then
        echo "Zig, cargo-zigbuild and hatchling are needed to make packages, and could not be downloaded" >&2
        exit 1
    fi
    cp "$list" "$folder/installed.txt"
fi
echo "$folder"
