#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh Debian machine to a proven round trip: installs packages, builds, and runs the main job
# on a real llama.cpp snapshot from testdata.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
[ -f build/release/build.ninja ] || cmake --preset release -DKVTOOL_DEVELOPER=OFF -DKVTOOL_BENCH=OFF >/dev/null
cmake --build --preset release --target kvtool

kvtool=build/release/bin/kvtool
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp testdata/llamacpp/states/s260k-v050-f16.seq0.bin "$work/slot0.bin"

run() {
  printf '\n$ %s\n' "kvtool ${*//$work\//}"
  "$kvtool" "$@"
}
run inspect "$work/slot0.bin" --kv-heads 4
run compress "$work/slot0.bin" -o "$work/slot0.kvz"
run verify "$work/slot0.kvz" --against "$work/slot0.bin"
run decompress "$work/slot0.kvz" -o "$work/restored.bin"
cmp "$work/restored.bin" "$work/slot0.bin"
printf '\n$ cmp restored.bin slot0.bin\nidentical. The program is %s\n' "$kvtool"
