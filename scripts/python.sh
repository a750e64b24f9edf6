#!/usr/bin/env bash
# Builds the wheel of the Python package, and runs its tests with every Python that differs in what matters: the
# system's sqlite3 loads extensions, that of others may not. Checks formatting and types with the first one.
#
# HARDPACK_PYTHONS names other interpreters. HARDPACK_PYTHON_ALL=1 installs all programs that the tests know (pandas,
# polars, Django, Datasette, pysqlite3), not only the small ones.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/packages.sh python3-venv
read -ra pythons <<<"${HARDPACK_PYTHONS:-python3 /usr/bin/python3}"
tools=("pytest>=8")
checks=("mypy>=1.18" ruff==0.17.6)
programs=(fsspec apsw SQLAlchemy sqlite-utils)
if [ -n "${HARDPACK_PYTHON_ALL:-}" ]; then
    programs+=(pandas polars pyarrow django datasette pysqlite3-binary)
fi

target=$(cargo metadata --no-deps --locked --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
made=$target/python
mkdir -p "$made"

# Installs what is missing. Needs no network if nothing is.
install() {
    local venv=$1
    shift
    local wanted="$*"
    if [ "$(cat "$venv/installed" 2>/dev/null)" != "$wanted" ]; then
        "$venv/bin/pip" install --quiet --disable-pip-version-check "$@" || return
        echo "$wanted" >"$venv/installed"
    fi
}

seen=()
for python in "${pythons[@]}"; do
    command -v "$python" >/dev/null || { echo "NOT TESTED with $python, which is not there"; continue; }
    name=$("$python" -c 'import sys; print(sys.implementation.cache_tag, sys.base_prefix.replace("/", "_"), sep="")')
    case " ${seen[*]-} " in *" $name "*) continue ;; esac
    venv=$made/$name
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    [ ${#seen[@]} -gt 0 ] || { first=$venv && tools+=("${checks[@]}"); }
    # A program that cannot be installed is skipped by the tests, which say so.
    install "$venv" "${tools[@]}" "${programs[@]}" || install "$venv" "${tools[@]}"
    if [ ${#seen[@]} -eq 0 ]; then
        rm -rf "$made/wheel"
        "$venv/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$made/wheel" ./python
    fi
    tools=("${tools[0]}")
    "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall "$made"/wheel/*.whl
    echo "$("$python" --version), $("$python" -c 'import sqlite3
loads = hasattr(sqlite3.Connection, "enable_load_extension")
print("SQLite", sqlite3.sqlite_version, "with" if loads else "without", "extensions")')"
    (cd python && "$venv/bin/python" -m pytest -o cache_dir="$made/pytest")
    seen+=("$name")
done
(
    cd python
    "$first/bin/ruff" format --check --quiet --no-cache .
    "$first/bin/ruff" check --quiet --no-cache .
    "$first/bin/mypy" --cache-dir="$made/mypy" src
)
