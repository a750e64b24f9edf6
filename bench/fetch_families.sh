#!/usr/bin/env bash
# Families of near-copies out of ordinary packages, into DIR: for bench/families.py. Needs Debian 12, root, npm and pip.
#
# usage: fetch_families.sh DIR [FAMILY...]
#
#   firmware    flash images of one boot loader for 169 boards (u-boot for Allwinner and Rockchip, arm64)
#   kernels     images and modules of three point releases of Linux 6.1, x86-64 for virtual machines
#   machines    four raw ext4 images of one Debian: as installed, then each with more packages and files
#   headers     the headers of three point releases of Linux 6.1, small files
#   typescript  ten releases of one JavaScript program
#   ruff        five releases of one program of machine code
#   dumps       seven dumps of one database, a day apart (bench/make_dumps.py)
#   copies      seven copies of one database, a day apart (bench/make_copies.py)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=${1:?usage: fetch_families.sh DIR [FAMILY...]}; shift
mkdir -p "$dir"; dir=$(cd "$dir" && pwd)
packages=$(mktemp -d); trap 'rm -rf "$packages"' EXIT

# unpack PACKAGE TO: downloads a package of Debian and unpacks it.
unpack() {
  (cd "$packages" && apt-get -q download "$1" >/dev/null)
  mkdir -p "$2"
  dpkg-deb -x "$packages/$(cut -d: -f1 <<<"$1")"_*.deb "$2"
  rm -f "$packages"/*.deb
}

# newest PATTERN COUNT: the newest packages whose names match.
newest() { apt-cache search "$1" | cut -d' ' -f1 | grep -E "$1" | sort -V | tail -n "$2"; }

firmware() {
  dpkg --add-architecture arm64; apt-get -q update >/dev/null
  unpack u-boot-sunxi:arm64 "$packages/x"; unpack u-boot-rockchip:arm64 "$packages/x"
  mv "$packages/x/usr/lib/u-boot" "$1"
}

kernels() {
  newest '^linux-image-6\.1\.0-[0-9]+-cloud-amd64$' 3 | while read -r package; do unpack "$package" "$1/$package"; done
}

# A file system is made anew for each image, as an installer does it: equal files lie at other places.
machines() {
  local root=$packages/root number=0 more
  command -v mmdebstrap >/dev/null || apt-get -q install -y mmdebstrap >/dev/null
  mkdir -p "$1"
  for more in dash less,vim-tiny python3 python3,git,sqlite3,openssh-server; do
    number=$((number + 1)); rm -rf "$root"
    mmdebstrap --quiet --variant=apt --include="$more" bookworm "$root"
    mkfs.ext4 -q -d "$root" "$1/day-$number.img" 600M
  done
}

headers() {
  newest '^linux-headers-6\.1\.0-[0-9]+-common$' 3 | while read -r package; do unpack "$package" "$1/$package"; done
}

typescript() {
  for version in 4.9.5 5.0.2 5.0.4 5.1.3 5.1.6 5.2.2 5.3.2 5.3.3 5.4.2 5.4.5; do
    mkdir -p "$1/$version"
    (cd "$packages" && npm pack --silent "typescript@$version" >/dev/null)
    tar xzf "$packages/typescript-$version.tgz" -C "$1/$version" --strip-components=1
  done
}

ruff() {
  for version in 0.6.0 0.6.5 0.7.0 0.7.4 0.8.0; do
    python3 -m pip -q download --no-deps --only-binary :all: -d "$packages" "ruff==$version"
    python3 -m zipfile -e "$packages/ruff-$version"-*.whl "$1/$version"
  done
}

dumps() { "$here/make_dumps.py" "$1" 30; }

copies() { "$here/make_copies.py" "$1" 30; }

all=(firmware kernels machines headers typescript ruff dumps copies)
[ $# -gt 0 ] || set -- "${all[@]}"
for family; do
  [[ " ${all[*]} " == *" $family "* ]] || { echo "no such family: $family; there are: ${all[*]}" >&2; exit 2; }
  [ -e "$dir/$family" ] && continue
  rm -rf "$packages/family"; "$family" "$packages/family"; mv "$packages/family" "$dir/$family"
  printf '%-11s %6d files %8.1f MB\n' "$family" "$(find "$dir/$family" -type f | wc -l)" \
    "$(du -sb --apparent-size "$dir/$family" | awk '{ print $1 / 1e6 }')"
done
