#!/usr/bin/env bash
# Runs tests under a sanitizer, with nightly Rust: AddressSanitizer with the C libraries and SQLite
# instrumented too, or ThreadSanitizer with a standard library built for it.
# usage: scripts/sanitize.sh address|thread [ARGUMENTS of cargo test…]
set -euo pipefail
cd "$(dirname "$0")/.."

kind=${1:-}
[ $# -eq 0 ] || shift
host=$(rustc -vV | sed -n 's/^host: //p')
export CARGO_TARGET_DIR=target/$kind RUSTFLAGS="-Zsanitizer=$kind"
build=()
case $kind in
address)
    export CFLAGS="-fsanitize=address -fno-omit-frame-pointer"
    # Some tests leave memory behind on purpose, as a forked child does.
    export ASAN_OPTIONS=detect_odr_violation=0:detect_leaks=0
    tests=(-p hardpack-sqlite --test damage --test surface --test modes --test corpus)
    ;;
thread)
    # Every function has to be instrumented, or what it does is taken for a race.
    export CFLAGS="-fsanitize=thread"
    build=(-Zbuild-std)
    tests=(-p hardpack-engine --lib pool::tests)
    ;;
*)
    echo "usage: $0 address|thread [ARGUMENTS of cargo test...]" >&2
    exit 2
    ;;
esac
[ $# -eq 0 ] || tests=("$@")
rustup run nightly cargo test --target "$host" "${build[@]}" "${tests[@]}"
