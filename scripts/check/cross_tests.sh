#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests of build/aarch64 under qemu, as far as they are built:
#   scripts/check/cross_tests.sh [kernels|unit|golden|fuzz]...     without names: all four
#     kernels   tests that sweep the SIMD targets, on a Cortex-A53 (NEON) and on all that qemu has (SVE2)
#     unit      unit tests in JOBS processes (default 2)
#     golden    golden vectors; golden archives are compared by the test cross/aarch64
#     fuzz      the corpus of each fuzz target
#   SPEC='~[figures]' chooses unit tests in Catch2's words. This default leaves out what builds with sanitizers leave out:
#   tests that compute figures for long by code that other tests run as well. Exit 77 where nothing can be run.
# Build first: cmake --preset aarch64 && cmake --build --preset aarch64 --target kvtool unit_tests golden_tests fuzz_targets
set -euo pipefail
cd "$(dirname "$0")/../.."
qemu=${QEMU:-qemu-aarch64-static} bin=build/aarch64/bin jobs=${JOBS:-2} spec=${SPEC:-'~[figures]'}
command -v "$qemu" >/dev/null || { echo "skipped: there is no $qemu (scripts/setup.sh --cross)"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0 ran=0

built() { # PROGRAM
  [ -x "$bin/$1" ] || { echo "not built: $1"; return 1; }
}

try() { # NAME COMMAND...: runs a command, and prints one line, or the last lines of a failure
  local name=$1 seconds=$SECONDS
  shift
  ran=1
  if "$@" >"$work/log" 2>&1; then
    echo "$name: $(grep -E 'passed|assertions|inputs' "$work/log" | tail -1), $((SECONDS - seconds)) s"
  else
    failed=1
    tail -60 "$work/log"
    echo "$name: FAILED"
  fi
}

kernels() {
  local cpu files
  built unit_tests || return 0
  files=$(grep -rl ForEachTarget tests --include='*_test.cc' | sed 's|.*/\(.*\)\.cc|[#\1]|' | paste -sd ,)
  for cpu in cortex-a53 max; do
    try "kernels on $cpu" "$qemu" -cpu "$cpu" "$bin/unit_tests" --filenames-as-tags "$files"
  done
}

unit() {
  local share
  built unit_tests || return 0
  printf '#!/bin/sh\nexec %s -cpu max %s "$@"\n' "$qemu" "$bin/unit_tests" >"$work/unit_tests"
  chmod +x "$work/unit_tests"
  seq "$jobs" | xargs -P "$jobs" -I{} sh -c "tests/share.sh $work/unit_tests {} $jobs '$spec' >$work/share{} 2>&1; echo \$? >$work/status{}"
  for share in $(seq "$jobs"); do
    try "unit tests, part $share of $jobs" sh -c "cat $work/share$share; exit \$(cat $work/status$share)"
  done
}

golden() {
  built golden_tests || return 0
  try "golden tests" "$qemu" -cpu max "$bin/golden_tests"
}

fuzz() {
  local target
  for target in tests/fuzz/fuzz_*.cc; do
    target=$(basename "$target" .cc)
    ! built "$target" || try "$target" "$qemu" -cpu max "$bin/$target" "testdata/fuzz/${target#fuzz_}"
  done
}

[ -d "$bin" ] || { echo "skipped: nothing is built: cmake --preset aarch64"; exit 77; }
[ $# -gt 0 ] || set -- kernels unit golden fuzz
for part in "$@"; do
  case $part in
    kernels | unit | golden | fuzz) $part ;;
    *) sed -n '3,11s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
done
[ $ran = 1 ] || { echo "skipped: none of these programs is built"; exit 77; }
exit $failed
