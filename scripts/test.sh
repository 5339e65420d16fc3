#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every test, as CI runs them: the whole suite in the release build, unit tests and fuzz corpora under
# ASan+UBSan, and the tests where threads meet under TSan. Ends with ctest's summary.
#   scripts/test.sh              all of it
#   scripts/test.sh --quick      the release build only
#   PRESET=ci scripts/test.sh    warnings are errors, which only CI asks for
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh --tests
jobs=$(nproc) release=${PRESET:-release}

build() { # preset, targets...
  local preset=$1
  shift
  cmake --preset "$preset" >"build-$preset.log" 2>&1 || { cat "build-$preset.log"; exit 1; }
  rm -f "build-$preset.log"
  echo "== building $preset"
  cmake --build --preset "$preset" -j "$jobs" --target "$@" -- --quiet
}

# A slow build begins with one slow source.
slowest() { # preset
  echo "== slowest objects of $1, in seconds"
  awk '$4 ~ /\.o$/ { took[$4] = ($2 - $1) / 1000 }
       END { for (object in took) printf "%7.1f %s\n", took[object], object }' "build/$1/.ninja_log" |
    sort -rn | sed -n 1,10p
}

# A quickstart before this may have configured without the tests.
cmake --preset "$release" -DKVTOOL_DEVELOPER=ON -DKVTOOL_BENCH=ON >/dev/null
build "$release" all
slowest release
if [ "${1:-}" != --quick ]; then
  # Leaks are checked too; a wrong size in a reader shows as an allocation beyond the limit.
  export ASAN_OPTIONS=allocator_may_return_null=0:max_allocation_size_mb=2048
  build asan unit_tests fuzz_targets
  ctest --preset asan -j "$jobs" -L 'unit|fuzz' --quiet || ctest --preset asan --rerun-failed
  build tsan thread_tests
  ctest --preset tsan -j "$jobs" -L threads --quiet || ctest --preset tsan --rerun-failed
fi
build/release/bin/golden_tests "golden vectors agree" | grep '^golden' || true
ctest --preset "$release" -j "$jobs"
