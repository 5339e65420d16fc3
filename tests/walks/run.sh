#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Plays a user who works with an installed kvtool as the installed documents say:
#   run.sh WALK PREFIX     PREFIX: where `cmake --install` or a package put kvtool, or an unpacked static tarball
# A walk runs in an empty folder with the files that the documents speak of, an empty home, and no more than the prefix and
# the system on its PATH. Its commands are those of the documents: `follow` refuses one that the page does not show.
set -euo pipefail
tests=$(cd "$(dirname "$0")" && pwd)
testdata=$tests/../../testdata
walk=$1
PREFIX=$(realpath "$2")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/home" "$scratch/work"
cd "$scratch/work"
cp "$testdata/llamacpp/states/s260k-v050-f16.seq0.bin" slot0.bin
cp "$testdata/llamacpp/s260k-header.gguf" model.gguf
cp -r "$testdata/trace" "$testdata/gate" .
env -i PATH="$PREFIX/bin:/usr/bin:/bin" HOME="$scratch/home" LC_ALL=C.UTF-8 PREFIX="$PREFIX" TESTS="$tests" \
  bash -euo pipefail -c 'source "$1"; source "$2"; echo "$STEPS steps"' walk "$tests/steps.sh" "$tests/$walk.sh"
