#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds kvtool in release and runs its tests. Ends with ctest's summary.
#   scripts/test.sh              what a newcomer runs: no sanitizer, no wheel, no engine from a package registry
#   scripts/test.sh --all        everything, as CI runs it: also the wheel's and the engines' tests, unit tests and fuzz
#                                corpora under ASan+UBSan, and the tests where threads meet under TSan
#   PRESET=ci scripts/test.sh    warnings are errors, which only CI asks for
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh --tests
jobs=$(nproc) release=${PRESET:-release} all= bench=OFF replay=ON tests=(-LE 'python|llama|cross')
case "${1:-}" in
  --all) all=1 bench=ON replay=OFF tests=() ;; # the build with sanitizers replays the fuzz corpora
  --quick | "") ;; # the older name of the default
  *) sed -n '3,7s/^# //p' "$0" >&2; exit 2 ;;
esac

build() { # preset, targets...
  local preset=$1
  shift
  cmake --preset "$preset" >"build-$preset.log" 2>&1 || { cat "build-$preset.log"; exit 1; }
  rm -f "build-$preset.log"
  echo "== building $preset, after $SECONDS seconds"
  cmake --build --preset "$preset" -j "$jobs" --target "$@" -- --quiet
}

# Prints the slowest sources, because a single slow source makes the build slow.
slowest() { # preset
  echo "== slowest objects of $1, in seconds"
  awk '$4 ~ /\.o$/ { took[$4] = ($2 - $1) / 1000 }
       END { for (object in took) printf "%7.1f %s\n", took[object], object }' "build/$1/.ninja_log" |
    sort -rn | sed -n 1,10p
}

# An earlier quickstart may have configured the build without the tests.
cmake --preset "$release" -DKVTOOL_DEVELOPER=ON -DKVTOOL_BENCH=$bench -DKVTOOL_REPLAY=$replay >/dev/null
build "$release" all
slowest release
if [ -n "$all" ]; then
  # Leaks are checked too; a wrong size in a reader shows up as an allocation beyond the limit.
  export ASAN_OPTIONS=allocator_may_return_null=0:max_allocation_size_mb=2048
  build asan unit_tests fuzz_targets
  ctest --preset asan -j "$jobs" -L 'unit|fuzz' --quiet || ctest --preset asan --rerun-failed
  build tsan thread_tests
  ctest --preset tsan -j "$jobs" -L threads --quiet || ctest --preset tsan --rerun-failed
fi
echo "== testing, after $SECONDS seconds"
build/release/bin/golden_tests "golden vectors agree" | grep '^golden' || true
ctest --preset "$release" -j "$jobs" "${tests[@]}"
