#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# aarch64.sh KVTOOL: the program for aarch64 runs under qemu. It restores every golden archive to the files that KVTOOL
# restores here, and writes the same archives and decisions (scripts/release/try_processors.sh). Builds nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."
qemu=qemu-aarch64-static program=
command -v $qemu >/dev/null || { echo "skipped: there is no $qemu (scripts/setup.sh --cross)"; exit 77; }
for preset in aarch64 aarch64-static; do
  [ ! -x build/$preset/bin/kvtool ] || program=build/$preset/bin/kvtool
done
[ -n "$program" ] || { echo "skipped: no program: cmake --preset aarch64 && cmake --build --preset aarch64 --target kvtool"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$1" decompress -q --output-dir "$work/here" testdata/archives/*/*.kvz
$qemu "$program" decompress -q --output-dir "$work/there" testdata/archives/*/*.kvz
diff -r "$work/here" "$work/there"
echo "golden archives: the same $(find "$work/there" -type f | wc -l) files"
scripts/release/try_processors.sh --here "$1" "$program" max
