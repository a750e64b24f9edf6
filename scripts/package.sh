#!/usr/bin/env bash
# Packs the crates that are worth having by themselves, compares the packages with what must be inside, and builds each
# from its package. Publishes nothing and needs no network once the dependencies are there.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=()
for crate in page-filter engine; do
    packages+=(-p "hardpack-$crate")
    expected=$(
        cd "crates/$crate"
        {
            git ls-files src
            printf '%s\n' Cargo.toml LICENSE-APACHE LICENSE-MIT README.md
        } | LC_ALL=C sort
    )
    # Cargo adds these by itself.
    added='^(\.cargo_vcs_info\.json|Cargo\.lock|Cargo\.toml\.orig)$'
    packed=$(cargo package -p "hardpack-$crate" --list --allow-dirty --locked --offline | grep -vE "$added" | LC_ALL=C sort)
    if ! diff <(echo "$expected") <(echo "$packed"); then
        echo "the package of hardpack-$crate differs from what must be inside (<)" >&2
        exit 1
    fi
done
# Cargo unpacks what one package needs of the other into its own home, once for each version, and never looks whether that
# has changed since.
rm -rf "${CARGO_HOME:-$HOME/.cargo}"/registry/src/-*/hardpack-{page-filter,engine}-[0-9]*
cargo package --quiet "${packages[@]}" --allow-dirty --locked --offline
