#!/usr/bin/env bash
# What the binaries of a release may need: sizes in bytes, the oldest glibc, and libraries. Sourced, it sets variables.
# usage: scripts/dist/limits.sh PROCESSOR FOLDER   fails if a binary in FOLDER is beyond them
COMMAND_MAX=$((9 * 1024 * 1024))
EXTENSION_MAX=$((4 * 1024 * 1024))
GLIBC=2.17
[ "${BASH_SOURCE[0]}" = "$0" ] || return 0

set -euo pipefail
processor=$1
cd "$2"
failed=0
complain() {
    echo "$1" >&2
    failed=1
}

readelf() { LC_ALL=C command readelf --wide "$@"; }
declare -A machines=([x86_64]="X86-64" [aarch64]="AArch64")
for file in hardpack libhardpack.so libhardpack_preload.so; do
    size=$(stat -c %s "$file")
    limit=$EXTENSION_MAX
    [ "$file" != hardpack ] || limit=$COMMAND_MAX
    echo "$processor: $file has $size bytes, $limit at most"
    [ "$size" -le "$limit" ] || complain "$processor: $file is too large"
    readelf --file-header "$file" | grep -q "Machine:.*${machines[$processor]}" || complain "$file is not for $processor"
    if readelf --sections "$file" | grep -qE ' \.(symtab|debug_info) '; then
        complain "$file is not stripped"
    fi
    if grep -aqE '/(home|root|work|build)/[a-z.]' "$file"; then
        complain "$file has a path of this machine: $(grep -aoE '/(home|root|work|build)/[a-z.][[:print:]]{0,40}' "$file" | head -n 1)"
    fi
done
if readelf --program-headers hardpack | grep -q INTERP || readelf --dynamic hardpack | grep -q NEEDED; then
    complain "the command is not linked statically"
fi
for file in libhardpack.so libhardpack_preload.so; do
    newest=$(readelf --version-info "$file" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
    [ "$(printf '%s\n' "GLIBC_$GLIBC" "$newest" | sort -V | tail -n 1)" = "GLIBC_$GLIBC" ] \
        || complain "$file needs $newest, and glibc $GLIBC must do"
    needs=$(readelf --dynamic "$file" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | grep -vE '^(lib(c|m|dl|pthread|rt|gcc_s)|ld-linux-.*)\.so\.[0-9]+$' || true)
    [ -z "$needs" ] || complain "$file needs $needs"
done
exit $failed
