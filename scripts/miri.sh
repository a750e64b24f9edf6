#!/usr/bin/env bash
# Runs the code that is pure Rust under Miri, with nightly Rust: the codecs lzjb and zle, deltas,
# the page filter, and the decoders of the on-disk format. Miri cannot run the C libraries (zstd,
# lz4, libdeflate, SQLite) or the unsafe code that calls them; scripts/fuzz.sh runs those under
# AddressSanitizer.
# usage: scripts/miri.sh [FILTER…]
set -euo pipefail
cd "$(dirname "$0")/.."

filters=("$@")
if [ ${#filters[@]} -eq 0 ]; then
    filters=(
        codec::tests::zle_golden_vectors codec::tests::lzjb_golden_vectors
        codec::tests::lzjb_decodes_every_form_of_match codec::tests::lzjb_and_zle_refuse_malformed_streams
        pool::delta::tests::a_changed_number pool::delta::tests::edits_behind
        store::tests::formats::pointers_refuse store::tests::formats::superblocks_refuse
    )
fi
export MIRIFLAGS=${MIRIFLAGS:--Zmiri-disable-isolation}
export CARGO_TARGET_DIR=target/miri
rustup run nightly cargo miri test -p hardpack-engine --lib -- "${filters[@]}"
if [ $# -eq 0 ]; then
    # Each case takes seconds under Miri.
    export HARDPACK_FUZZ_COUNT=${HARDPACK_FUZZ_COUNT:-10}
    rustup run nightly cargo miri test -p hardpack-page-filter --lib --test golden --test fuzz
fi
