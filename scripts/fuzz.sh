#!/usr/bin/env bash
# Runs a fuzz target under AddressSanitizer, including the C libraries, with nightly Rust.
# usage: scripts/fuzz.sh [TARGET [SECONDS]]     without a target: all of them, a minute each
#        HARDPACK_FUZZ_KEEP=1 adds the inputs that reach new code to fuzz/corpus, merged and short
# Inputs that fail are left in target/fuzz-found/TARGET. To run an input again:
#        HARDPACK_FUZZ_TARGET=TARGET target/fuzz/x86_64-unknown-linux-gnu/release/fuzz FILE
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${2:-60}
host=$(rustc -vV | sed -n 's/^host: //p')
binary=$PWD/target/fuzz/$host/release/fuzz
# No input needs more than this, but a decoder that trusted a length would.
limits=(-rss_limit_mb=2048 -malloc_limit_mb=512 -timeout=25 -max_len=2048)

# libdeflate has tables of the same name in several functions; GCC's instrumentation takes them for
# one table.
export ASAN_OPTIONS=detect_odr_violation=0:allocator_may_return_null=1

coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
coverage+=" -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
coverage+=" -Cllvm-args=-sanitizer-coverage-trace-compares"
(
    cd fuzz
    RUSTFLAGS="-Zsanitizer=address $coverage --cfg fuzzing" \
        CFLAGS="-fsanitize=address -fno-omit-frame-pointer" CARGO_TARGET_DIR=../target/fuzz \
        rustup run nightly cargo build --release --features sqlite --target "$host"
)

if [ $# -gt 0 ]; then
    targets=("$1")
else
    mapfile -t targets < <(ls fuzz/corpus)
fi
for target in "${targets[@]}"; do
    export HARDPACK_FUZZ_TARGET=$target
    work=target/fuzz-corpus/$target
    found=target/fuzz-found/$target
    mkdir -p "$work" "$found" "fuzz/corpus/$target"
    echo "== $target, $seconds seconds"
    "$binary" "$work" "fuzz/corpus/$target" -max_total_time="$seconds" "${limits[@]}" \
        -print_final_stats=1 -artifact_prefix="$found/" 2>&1 | grep -v '^#.*\(NEW\|REDUCE\|pulse\)'
    if [ -n "${HARDPACK_FUZZ_KEEP:-}" ]; then
        "$binary" -merge=1 "${limits[@]}" "fuzz/corpus/$target" "$work" >/dev/null 2>&1
    fi
done
