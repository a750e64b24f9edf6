#!/usr/bin/env bash
# Installs missing Debian packages: a C compiler for the bundled C libraries, the stock SQLite shell
# with its headers for the tests, and Python for the benchmark. Arguments name further packages.
set -euo pipefail

need=()
for package in gcc libc6-dev make sqlite3 libsqlite3-dev python3 "$@"; do
    if ! dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed'; then
        need+=("$package")
    fi
done
[ ${#need[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -eq 0 ]; then
    sudo=()
elif command -v sudo >/dev/null; then
    sudo=(sudo)
else
    echo "please install these packages and try again: ${need[*]}" >&2
    exit 1
fi
echo "installing ${need[*]}"
"${sudo[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq "${need[@]}" >/dev/null
