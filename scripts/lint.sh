#!/usr/bin/env bash
# Checks what the compiler does not: the width of comments, links in the documentation, spelling, and what dependencies
# may be.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/comment_width.py
scripts/docs/links.py
tools=$(scripts/lint-tools.sh)
"$tools/typos"

# Only what is built on Linux counts, so nothing else need be downloaded.
metadata=target/metadata.json
cargo metadata --locked --all-features --format-version 1 \
    --filter-platform "$(rustc -vV | sed -n 's/^host: //p')" >"$metadata"
deny() {
    "$tools/cargo-deny" --metadata-path "$metadata" --log-level error check "$@"
}
deny licenses bans sources
# The database of advisories is a Git repository, which not every machine can reach.
if GIT_TERMINAL_PROMPT=0 timeout 20 git ls-remote --quiet --exit-code https://github.com/RustSec/advisory-db HEAD >/dev/null 2>&1; then
    deny advisories
else
    echo "advisories NOT CHECKED: the database at github.com/RustSec/advisory-db cannot be reached"
fi
