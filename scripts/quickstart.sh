#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Goes from a fresh Debian machine to a verified round trip: installs packages, builds, and runs the README's first
# screen in build/examples on a state that llama.cpp saved.
set -euo pipefail
cd "$(dirname "$0")/.."

echo "1 of 3: packages, if any are missing (apt-get)"
scripts/setup.sh
echo "2 of 3: build/release/bin/kvtool; the first build takes 4 to 8 minutes on two cores"
[ -f build/release/build.ninja ] || cmake --preset release -DKVTOOL_DEVELOPER=OFF -DKVTOOL_BENCH=OFF >/dev/null
# A terminal shows one line of progress, a log none.
quiet=()
[ -t 1 ] || quiet=(-- --quiet)
cmake --build --preset release --target kvtool "${quiet[@]}"
echo "3 of 3: the first screen of the README, in build/examples"
scripts/examples.sh

PATH=$PWD/build/release/bin:$PATH
cd build/examples
run() {
  printf '\n$ %s\n' "$*"
  "$@"
}
run kvtool inspect slot0.bin --kv-heads 4
run kvtool compress slot0.bin -o slot0.kvz
run kvtool verify slot0.kvz --against slot0.bin
run kvtool decompress slot0.kvz -o restored.bin
run cmp restored.bin slot0.bin
printf '\nIdentical. To go on with the README and the pages of docs/, whose commands run as typed in this folder:\n'
printf '  cd build/examples && export PATH=%q:$PATH\n' "$(cd ../release/bin && pwd)"
