#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the site of all documents and the reference of libkvtool into build/site. Every link is checked, and a warning
# is an error. The program (build/release/bin/kvtool, or --kvtool PROGRAM) makes the page of all keys of the JSON
# documents. Sphinx comes from the current Python or is installed from PyPI into build/docs-venv by
# scripts/docs/requirements.txt; with --installed it must exist already. Exit 77: Sphinx is not available.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3} site=build/site installed= kvtool=build/release/bin/kvtool
while [ $# -gt 0 ]; do
  case $1 in
    --installed) installed=yes ;;
    --kvtool) kvtool=$2 && shift ;;
    *) echo "usage: build.sh [--installed] [--kvtool PROGRAM]" >&2 && exit 2 ;;
  esac
  shift
done
if ! "$python" -c 'import furo, myst_parser, sphinx' 2>/dev/null; then
  python=build/docs-venv/bin/python
  if ! "$python" -c 'import furo, myst_parser, sphinx' 2>/dev/null; then
    [ -z "$installed" ] || { echo "skipped: there is no Sphinx here with MyST and Furo"; exit 77; }
    rm -rf build/docs-venv
    { "${PYTHON:-python3}" -m venv build/docs-venv && "$python" -m pip install -q --disable-pip-version-check --retries 1 \
      --timeout 20 -r scripts/docs/requirements.txt; } >build/docs-pip.log 2>&1 || {
      rm -rf build/docs-venv
      echo "skipped: there is no Sphinx here, and none can be had from PyPI (build/docs-pip.log)"
      exit 77
    }
  fi
fi

if [ -x "$kvtool" ]; then
  python3 scripts/docs/json_docs.py "$kvtool" docs/json-keys.md
else
  rm -f docs/json-keys.md
  echo "there is no $kvtool: the page of all keys of the JSON documents is left out"
fi
rm -rf "$site"
"$python" -m sphinx --fail-on-warning --keep-going --nitpicky -q -j 2 -d build/docs-doctrees -c scripts/docs . "$site"
printf '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url=README.html"><title>kvtool</title><a href="README.html">kvtool</a>\n' \
  >"$site/index.html"
if command -v doxygen >/dev/null; then
  version=$(sed -n 's/^project(kvtool VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
  sed -e "s|@PROJECT_SOURCE_DIR@|$PWD|g; s|@PROJECT_BINARY_DIR@/docs|$PWD/$site|; s|@PROJECT_VERSION@|$version|" \
    -e 's|@PROJECT_DESCRIPTION@||; s|^GENERATE_XML = YES|GENERATE_XML = NO|' scripts/docs/Doxyfile.in >build/Doxyfile
  doxygen build/Doxyfile
else
  mkdir -p "$site/api"
  echo 'There was no doxygen here.' >"$site/api/index.html"
  echo "there is no doxygen here: the reference of libkvtool is left out"
fi
echo "$site/index.html: $(find "$site" -name '*.html' | wc -l) pages"
