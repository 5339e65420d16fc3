#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh Debian machine to a proven round trip: installs packages, builds, and runs the main job
# on a real llama.cpp snapshot from testdata.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
[ -f build/release/build.ninja ] || cmake --preset release -DKVTOOL_DEVELOPER=OFF -DKVTOOL_BENCH=OFF >/dev/null
cmake --build --preset release --target kvtool

kvtool=$PWD/build/release/bin/kvtool
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp testdata/llamacpp/states/s260k-v050-f16.seq0.bin "$work/slot0.bin"
cd "$work"

run() {
  printf '\n$ kvtool %s\n' "$*"
  "$kvtool" "$@"
}
run inspect slot0.bin --kv-heads 4
run compress slot0.bin -o slot0.kvz
run verify slot0.kvz --against slot0.bin
run decompress slot0.kvz -o restored.bin
printf '\n$ cmp restored.bin slot0.bin\n'
cmp restored.bin slot0.bin
printf 'identical. The program is %s\n' build/release/bin/kvtool
