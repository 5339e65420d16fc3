#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh BUILD [PYTHON]: builds the wheel of one interpreter from BUILD's libraries, installs it into a fresh virtual
# environment and runs its tests there. Status 77 where PyPI cannot be reached.
set -euo pipefail
build=$(realpath "$1") python=$(command -v "${2:-python3}")
cd "$(dirname "$0")/../.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

scripts/release/build_wheel.sh --build "$build" --out "$scratch/dist" "$python"
wheel=$(ls "$scratch"/dist/*.whl)

"$python" -m venv "$scratch/venv"
venv=$scratch/venv/bin
install() {
  "$venv/python" -m pip install -q --disable-pip-version-check --retries 1 --timeout 20 "$@" >"$scratch/pip.log" 2>&1 || {
    tail -3 "$scratch/pip.log"
    echo "skipped: $* cannot be had from PyPI"
    exit 77
  }
}
# Only NumPy is installed, as for users; nothing else may be required.
install numpy
"$venv/python" -m pip install -q --disable-pip-version-check --no-index "$wheel"
(cd "$scratch" && venv/bin/kvtool --version && venv/bin/python -m kvtool --version)
"$venv/python" -c 'import kvtool; assert kvtool.decode(kvtool.encode(b"page")) == b"page"'

install pytest ml_dtypes xxhash tqdm nanobind mypy
# The tests are copied, so that the package in the tree is not found first.
cp -r apps/python/tests "$scratch/tests"
# Files that code in a document writes are in the scratch folder.
(cd "$scratch" && KVTOOL_ROOT=$OLDPWD KVTOOL_BUILD=$build "$venv/python" -m pytest -q -p no:cacheprovider --durations=3 tests)
"$venv/python" scripts/check/stub.py
(cd "$scratch" && "$venv/python" -m mypy --strict --cache-dir "$scratch/mypy" tests/consumer.py)
"$venv/python" -m mypy --strict --config-file apps/python/pyproject.toml --cache-dir "$scratch/mypy" -p kvtool
