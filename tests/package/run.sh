#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh CMAKE BUILD_DIR CXX: installs the build, then configures, builds and runs programs against it: one
# links everything, one the core alone, in which no BLAS may be found, and two libkvtool, by CMake and by
# pkg-config.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cmake=$1 cxx=$3
"$cmake" --install "$2" --prefix "$scratch/prefix" >/dev/null

build() {  # NAME OPTIONS...: the program of that folder, built as $scratch/NAME/NAME
  local name=$1
  shift
  "$cmake" -S "$here/$name" -B "$scratch/$name" -G Ninja -DCMAKE_CXX_COMPILER="$cxx" \
    -DCMAKE_PREFIX_PATH="$scratch/prefix" "$@" >"$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }
  "$cmake" --build "$scratch/$name" >"$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }
}

build consumer
"$scratch/consumer/consumer"
# As on a machine without OpenBLAS.
build core -DKVTOOL_BLAS_LIBRARY=KVTOOL_BLAS_LIBRARY-NOTFOUND
"$scratch/core/core"
nm "$scratch/core/core" >"$scratch/symbols"
grep -q EncodeChunk "$scratch/symbols" || { echo "the core's program has no symbols"; exit 1; }
# These two names are in every product through the BLAS (lib/study/dense/gemm.cc).
if grep -i -E 'blas_|gemm' "$scratch/symbols"; then
  echo "the core links a BLAS"
  exit 1
fi
# libkvtool: nothing but the installed headers and the library.
examples=$here/../../docs/examples
build library -DEXAMPLES="$examples"
"$scratch/library/library"
"$scratch/library/prefix_cache"
pc=$(dirname "$(find "$scratch/prefix" -name kvtool.pc)")
# shellcheck disable=SC2046  # flags are words
"${CC:-cc}" -std=c99 -Wall -Wextra -pedantic -Werror "$examples/page_store.c" -o "$scratch/by_pkg_config" \
  $(PKG_CONFIG_PATH=$pc pkg-config --cflags --libs kvtool) -Wl,-rpath,"$(dirname "$pc")"
"$scratch/by_pkg_config"
"$scratch/prefix/bin/kvtool" --version
