#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that building and testing need; does nothing when they are there.
# Sourced or run; with --tests also what only the tests use.
set -euo pipefail

packages=(
  g++ cmake ninja-build pkg-config git
  libcli11-dev libfmt-dev nlohmann-json3-dev libhwy-dev libzstd-dev zlib1g-dev libsqlite3-dev libxxhash-dev libopenblas-serial-dev
  libcurl4-openssl-dev
)
if [ "${1:-}" = --tests ]; then
  packages+=(catch2 doxygen libbenchmark-dev python3 python3-numpy python3-zstandard python3-jsonschema python3-dev python3-venv jq)
fi

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || { echo "please install as root: apt-get install ${missing[*]}" >&2; exit 1; }
  as_root=(sudo)
fi
echo "installing: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
