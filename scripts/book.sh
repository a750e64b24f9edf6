#!/usr/bin/env bash
# Makes a book of the documentation in target/book, with mdBook, which is built in target/book-tools the first time: that
# takes some minutes. Checks its links, and in Chromium, if it is there, that every page fits its window.
set -euo pipefail
cd "$(dirname "$0")/.."
version=0.5.4
tools=$(realpath -m "${CARGO_TARGET_DIR:-target}")/book-tools
if [ "$("$tools/bin/mdbook" --version 2>/dev/null)" != "mdbook v$version" ]; then
    cargo install --quiet --locked --version "$version" --root "$tools" --target-dir "$tools/build" mdbook
    rm -rf "$tools/build"
fi
scripts/docs/book_source.py target/book-source
"$tools/bin/mdbook" build
scripts/docs/book.py
echo "target/book/index.html"
