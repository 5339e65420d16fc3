#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the static program on other processors than the machine's, by qemu's user-mode emulation: it must start, verify
# what it compresses, restore it, and write the same archive on every processor.
# scripts/release/try_processors.sh PROGRAM [CPU...]
# qemu-x86_64-static is in Debian's qemu-user-static; QEMU names another one.
set -euo pipefail
cd "$(dirname "$0")/../.."
qemu=${QEMU:-qemu-x86_64-static}
program=$(realpath "${1:?which program}")
shift
[ $# -gt 0 ] || set -- qemu64 core2duo Nehalem Westmere Haswell max
command -v "$qemu" >/dev/null || { echo "skipped: there is no $qemu"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sources=(testdata/llamacpp/states/s260k-v050-f16.seq0.bin testdata/llamacpp/states/s260k-v050-bf16.seq0.bin)
for source in "${sources[@]}"; do
  for level in default high; do
    "$program" compress -q "$source" --level "$level" -o "$work/$(basename "$source").$level.kvz"
  done
done
echo "here: $("$program" --version | head -1)"
for cpu in "$@"; do
  seconds=$SECONDS
  run() { "$qemu" -cpu "$cpu" "$program" "$@" 2>"$work/log" || { cat "$work/log"; echo "$cpu: fails: $*"; exit 1; }; }
  version=$(run --version | head -1)
  for source in "${sources[@]}"; do
    for level in default high; do
      archive=$work/$(basename "$source").$level.kvz
      run compress -q -f "$source" --level "$level" -o "$work/there.kvz"
      cmp "$archive" "$work/there.kvz"
      run verify -q "$archive" --against "$source"
      run decompress -q -f "$archive" -o "$work/restored"
      cmp "$source" "$work/restored"
    done
  done
  echo "$cpu: ${version##*, }, the same archives, $((SECONDS - seconds)) s"
done
