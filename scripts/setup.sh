#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the packages that building needs, with --tests also those that only the tests use, and with --cross those that
# build for aarch64 on another machine and run it there, on Debian 12 and 13 and Ubuntu 24.04, whose packages have the
# same names. Does nothing if they are installed. On a system without apt-get it prints the list to install.
set -euo pipefail

say_needs() {
  cat >&2 <<'END'
Building needs
  a C++20 compiler (GCC 12 or clang 14 and later), CMake 3.25, Ninja, pkg-config, git
  CLI11, fmt, nlohmann_json, Highway, zstd, zlib, SQLite, xxHash, the headers of libcurl: each with headers, found by CMake or pkg-config
  OpenBLAS without threads, as an archive (libopenblas.a; set KVTOOL_BLAS_LIBRARY and KVTOOL_BLAS_INCLUDE to where it is)
and the tests also Catch2 2 or 3, Google Benchmark, doxygen, jq, and Python 3.10 with its headers, numpy, zstandard and jsonschema.
vcpkg.json names the libraries for vcpkg. CMake says which of them it does not find.
END
}

if ! command -v apt-get >/dev/null; then
  echo "This system has no apt-get, so nothing was installed." >&2
  say_needs
  exit 0
fi

packages=(
  g++ cmake ninja-build pkg-config git
  libcli11-dev libfmt-dev nlohmann-json3-dev libhwy-dev libzstd-dev zlib1g-dev libsqlite3-dev libxxhash-dev libopenblas-serial-dev
  libcurl4-openssl-dev
)
if [ "${1:-}" = --tests ]; then
  packages+=(catch2 doxygen libbenchmark-dev python3 python3-numpy python3-zstandard python3-jsonschema python3-dev python3-venv jq)
fi
cross=(libfmt libhwy libzstd zlib1g libsqlite3 libxxhash libopenblas-serial libcurl4-openssl)
if [ "${1:-}" = --cross ]; then
  packages+=(g++-aarch64-linux-gnu qemu-user-static "${cross[@]/%/-dev:arm64}")
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
[ "${1:-}" != --cross ] || "${as_root[@]}" dpkg --add-architecture arm64
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null || {
  echo "apt-get could not install them; these are the names of Debian 12 and 13 and Ubuntu 24.04." >&2
  say_needs
  exit 1
}
