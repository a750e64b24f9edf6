#!/usr/bin/env bash
# Runs under Miri, with nightly Rust, what is Rust alone: the codecs lzjb and zle, deltas, the page filter, and the
# decoders of what is on disk. The C libraries (zstd, lz4, libdeflate, SQLite) cannot run there, nor the unsafe code that
# calls them; scripts/fuzz.sh and scripts/sanitize.sh look at those.
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
    # Each case takes seconds there.
    export HARDPACK_FUZZ_COUNT=${HARDPACK_FUZZ_COUNT:-10}
    rustup run nightly cargo miri test -p hardpack-page-filter --lib --test golden --test fuzz
fi
