#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh CMAKE BUILD_DIR CXX: installs the build, checks the installed files, then configures, builds and runs programs against
# it: in C and C++, with the shared library and the static one, by CMake and by pkg-config.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cmake=$1 cxx=$3 cc=${CC:-cc}
prefix=$scratch/prefix
examples=$here/../../docs/examples
"$cmake" --install "$2" --prefix "$prefix" >/dev/null

fail() {
  echo "$*"
  exit 1
}

# The installation has pages, completions and the licence.
for file in man/man1/kvtool.1 man/man1/kvtool-compress.1 bash-completion/completions/kvtool \
  zsh/vendor-completions/_kvtool fish/vendor_completions.d/kvtool.fish doc/kvtool/LICENSE doc/kvtool/README.md; do
  [ -s "$prefix/share/$file" ] || fail "not installed: share/$file"
done

# Hardened, and without a path of this machine; Debug builds keep their paths.
find "$2/lib" -name '*.o' -print0 | xargs -0 "$here/../../scripts/check/hardening.py" "$prefix/bin/kvtool" ||
  fail "not hardened"
if grep -q '^CMAKE_BUILD_TYPE:.*=Release$' "$2/CMakeCache.txt"; then
  if grep -rlaF "$(cd "$here/../.." && pwd)" "$prefix"; then fail "installed files name the folder that they were built in"; fi
fi

# Exactly four headers and two archives are installed, and the archives export only kvt_* and private names.
headers=$(cd "$prefix/include" && find . -type f | sort | tr '\n' ' ')
[ "$headers" = "./kvtool.h ./kvtool.hpp ./kvtool_study.h ./kvtool_study.hpp " ] || fail "installed headers: $headers"
archives=$(find "$prefix" -name 'lib*.a' -printf '%f\n' | sort | tr '\n' ' ')
[ "$archives" = "libkvtool.a libkvtool_study.a " ] || fail "installed archives: $archives"
static=$(find "$prefix" -name libkvtool.a)
for archive in "$static" "${static%.a}_study.a"; do
  nm --defined-only --extern-only "$archive" >"$scratch/symbols"
  if grep -E '^[0-9a-f]+ ' "$scratch/symbols" | grep -vE ' kvt_| kvtool_private_'; then fail "$archive shows more than kvt_*"; fi
  nm "$archive" >"$scratch/symbols"
  if grep -E ' (cblas_|[sd]gemm|_ZN2kv[0-9]+Gemm)' "$scratch/symbols"; then fail "$archive holds or needs a BLAS"; fi
done
nm "$static" >"$scratch/symbols"
if grep -E '_ZNK?2kv(8eviction|8analysis|3mnn3h2o)' "$scratch/symbols"; then fail "libkvtool.a holds a study"; fi

by_cmake() {  # NAME OPTIONS...: builds and runs the programs of tests/package/library
  local name=$1
  shift
  "$cmake" -S "$here/library" -B "$scratch/$name" -G Ninja -DCMAKE_CXX_COMPILER="$cxx" -DEXAMPLES="$examples" \
    -DCMAKE_PREFIX_PATH="$prefix" "$@" >"$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }
  "$cmake" --build "$scratch/$name" >"$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }
  "$scratch/$name/library"
  "$scratch/$name/prefix_cache"
  "$scratch/$name/decode_loop"
  "$scratch/$name/archive_tool" compress "$here/run.sh" "$scratch/$name/a.kvz"
  "$scratch/$name/archive_tool" verify "$scratch/$name/a.kvz" "$here/run.sh" >"$scratch/log"
  "$prefix/bin/kvtool" verify -q "$scratch/$name/a.kvz" --against "$here/run.sh"
}
needs_it() { readelf -d "$1" | grep -q 'NEEDED.*libkvtool'; }
needs_study() { readelf -d "$1" | grep -q 'NEEDED.*libkvtool_study'; }

# Linking the shared library must not require OpenBLAS, fmt, Highway and the rest.
by_cmake shared -DCMAKE_DISABLE_FIND_PACKAGE_fmt=ON -DCMAKE_DISABLE_FIND_PACKAGE_hwy=ON
needs_it "$scratch/shared/library" || fail "not linked with the shared library"
if needs_study "$scratch/shared/library"; then fail "a program of the codec needs the studies"; fi
needs_study "$scratch/shared/decode_loop" || fail "not linked with the library of studies"
by_cmake static -DBUILD_SHARED_LIBS=OFF
if needs_it "$scratch/static/library"; then fail "not linked with the static library"; fi

pc=$(dirname "$(find "$prefix" -name kvtool.pc)")
export PKG_CONFIG_LIBDIR=$pc # keeps .pc files of other packages out
# shellcheck disable=SC2046  # flags are words
"$cc" -std=c99 -Wall -Wextra -pedantic -Werror "$examples/page_store.c" -o "$scratch/by_pkg_config" \
  $(pkg-config --cflags --libs kvtool) -Wl,-rpath,"$(dirname "$pc")"
"$scratch/by_pkg_config"
# shellcheck disable=SC2046
"$cxx" -std=c++20 -Wall -Wextra -pedantic -Werror "$examples/decode_loop.cc" -o "$scratch/study_by_pkg_config" \
  $(pkg-config --cflags --libs kvtool_study) -Wl,-rpath,"$(dirname "$pc")"
"$scratch/study_by_pkg_config"
# shellcheck disable=SC2046
"$cxx" -std=c++20 -Wall -Wextra -pedantic -Werror "$examples/prefix_cache.cc" -o "$scratch/static_by_pkg_config" \
  $(pkg-config --cflags kvtool) "$static" $(pkg-config --static --libs kvtool | sed 's/-lkvtool//')
"$scratch/static_by_pkg_config"
if needs_it "$scratch/static_by_pkg_config"; then fail "pkg-config: not linked with the static library"; fi
"$prefix/bin/kvtool" --version
