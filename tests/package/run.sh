#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh CMAKE BUILD_DIR CXX: installs the build, then configures, builds and runs the consumer.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$1" --install "$2" --prefix "$scratch/prefix" >/dev/null
"$1" -S "$here/consumer" -B "$scratch/build" -G Ninja -DCMAKE_CXX_COMPILER="$3" \
  -DCMAKE_PREFIX_PATH="$scratch/prefix" >"$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }
"$1" --build "$scratch/build" >"$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }
"$scratch/build/consumer"
"$scratch/prefix/bin/kvtool" --version
