#!/usr/bin/env bash
# Uses an installed Hardpack as a user would: the command, the extension in the stock shell, `hardpack run`, manual pages,
# completions, and the wheel. Fails at the first thing that does not work.
# usage: use.sh PREFIX [WHEEL]   PREFIX has bin/hardpack and lib/libhardpack.so; /usr if a package is installed
# Needs sqlite3; tells what it skips without man, zsh, fish, or a Python with the module venv.
set -euo pipefail
prefix=$1
wheel=${2:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export PATH=$prefix/bin:$PATH HOME=$work
unset HARDPACK_LIBRARY LD_LIBRARY_PATH

step() { echo "  $1"; }
same() { # what, expected, found
    [ "$2" = "$3" ] || { echo "$1: expected '$2', found '$3'" >&2 && exit 1; }
}
has() {
    command -v "$1" >/dev/null || { echo "  skipped: $1 is not here" && return 1; }
}

step "hardpack: pack, query, check, unpack"
sqlite3 words.db "CREATE TABLE words(id INTEGER PRIMARY KEY, word TEXT);
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
    INSERT INTO words SELECT i, 'word ' || i FROM n;"
hardpack pack -q words.db
same "rows" 5000 "$(hardpack sql words.db.hpk 'SELECT count(*) FROM words')"
hardpack check -q words.db.hpk
hardpack unpack -q words.db.hpk back.db
cmp words.db back.db
mkdir files
seq 20000 >files/numbers
hardpack create all.hpk
hardpack put -q files all.hpk
same "names" all.hpk/files/numbers "$(hardpack find all.hpk -type f)"
hardpack extract -q all.hpk/files out
diff -r files out/files

step "the extension in the stock shell"
same "rows" 5001 "$(sqlite3 :memory: -cmd ".load $prefix/lib/libhardpack" \
    -cmd ".open 'file:words.db.hpk?vfs=hardpack'" \
    "INSERT INTO words(word) VALUES ('more'); SELECT count(*) FROM words")"

step "hardpack run"
same "rows" 5001 "$(hardpack run -- sqlite3 words.db.hpk 'SELECT count(*) FROM words')"

step "hardpack doctor"
hardpack doctor >doctor.txt || { cat doctor.txt >&2 && exit 1; }
for check in extension "hardpack run" sqlite3 "sqlite3 loads it"; do
    grep -qE "^$check  +yes " doctor.txt || { cat doctor.txt >&2 && exit 1; }
done

if has man; then
    step "manual pages"
    for page in hardpack hardpack-pack; do
        file=$(find "$prefix/share/man/man1" -name "$page.1*")
        man -l "$file" >page.txt 2>errors.txt
        grep -q NAME page.txt
        [ ! -s errors.txt ] || { cat errors.txt >&2 && exit 1; }
    done
fi

step "completions"
bash -c "source $prefix/share/bash-completion/completions/hardpack && complete -p hardpack" >completion.txt
grep -q hardpack completion.txt
if has zsh; then zsh -n "$prefix/share/zsh/site-functions/_hardpack"; fi
if has fish; then fish --no-execute "$prefix/share/fish/vendor_completions.d/hardpack.fish"; fi

if [ -n "$wheel" ]; then
    if ! python3 -m venv venv 2>/dev/null; then
        echo "  skipped: this Python has no module venv"
        exit 0
    fi
    step "the wheel"
    venv/bin/pip install --quiet --no-index --no-deps --disable-pip-version-check "$wheel"
    export PATH=$work/venv/bin:$PATH
    cat >use.py <<'PYTHON'
import hardpack

db = hardpack.connect("words.db.hpk")
assert db.execute("SELECT count(*) FROM words").fetchone() == (5001,)
db.execute("INSERT INTO words(word) VALUES ('python')")
db.commit()
db.close()
with hardpack.Pool("all.hpk") as pool:
    assert pool["files/numbers"].read_text().startswith("1\n2\n")
    pool.write_bytes("files/new", b"new")
assert hardpack.check("words.db.hpk")
PYTHON
    venv/bin/python use.py
    same "rows" 5002 "$(venv/bin/hardpack sql words.db.hpk 'SELECT count(*) FROM words')"
fi
