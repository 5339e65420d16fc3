#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks that a build after a commit names that commit, and compiles only the source of the version.
#   commit.sh CMAKE SOURCE
set -euo pipefail
unset GIT_DIR GIT_COMMON_DIR GIT_WORK_TREE GIT_INDEX_FILE
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
fail() { echo "commit.sh: $*" >&2; exit 1; }
mkdir -p tree/cmake
cp "$2"/scripts/cmake/{GitVersion.cmake,archived.txt,version.h.in,version.cc.in} tree/cmake
cat >tree/CMakeLists.txt <<'EOF'
cmake_minimum_required(VERSION 3.25)
project(tree VERSION 0.1.0 LANGUAGES CXX)
include(cmake/GitVersion.cmake)
add_executable(tree main.cc ${PROJECT_BINARY_DIR}/generated/version.cc)
target_include_directories(tree PRIVATE ${PROJECT_BINARY_DIR}/generated)
EOF
printf '#include <cstdio>\n#include "version.h"\nint main() { std::puts(kv::kBuildCommit); }\n' >tree/main.cc
git init -q tree
git_in_tree() { git -C tree -c user.name=a -c user.email=a@example.org "$@"; }
git_in_tree add .
git_in_tree commit -qm one
check() {
  [ "$(build/tree)" = "$(git -C tree rev-parse --short=10 HEAD)" ] || fail "the program names another commit"
}
"$1" -S tree -B build >/dev/null
"$1" --build build >/dev/null
check
git_in_tree commit -q --allow-empty -m two
"$1" --build build >log
check
grep -q 'version.cc' log || fail "the source of the version was not compiled"
if grep -q 'Building.*main.cc' log; then fail "a commit compiled more than the version"; fi
