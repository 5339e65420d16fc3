#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the last commit in two folders, whose names differ in length, and compares program and libraries byte by byte:
# same_build.sh [FOLDER]     where the two folders are made (default: a temporary folder, removed afterwards)
# Compiles everything twice, without ccache, as packages are built.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ -n "${1:-}" ]; then
  mkdir -p "$1"
  work=$(realpath "$1")
else
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
fi
files=(bin/kvtool lib/api/libkvtool.so lib/api/libkvtool.a)
for tree in one another/two; do
  mkdir -p "$work/$tree"
  git archive HEAD | tar -x -C "$work/$tree"
  (cd "$work/$tree" && cmake --preset package -DKVTOOL_CCACHE=OFF >/dev/null &&
    cmake --build --preset package --target kvtool kvtool_shared kvtool_static -- --quiet)
done
for file in "${files[@]}"; do
  cmp "$work/one/build/package/$file" "$work/another/two/build/package/$file"
done
echo "the same bytes in two folders: ${files[*]}"
