#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Puts the released program on the PATH of later steps. A program with another checksum is neither installed nor run.
set -euo pipefail

fail() {
  echo "::error title=kvtool gate::$1"
  exit 2
}

if [ -n "$PROGRAM" ]; then
  "$PROGRAM" --version || fail "program: this is no kvtool that runs here"
  echo "program=$PROGRAM" >>"$GITHUB_OUTPUT"
  exit 0
fi
[[ $VERSION =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || fail "version: expected one such as 0.2.0"
[[ $REPOSITORY =~ ^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$ ]] || fail "repository: expected OWNER/NAME"
[[ $SHA256 =~ ^([0-9a-f]{64})?$ ]] || fail "sha256: expected 64 hexadecimal digits"
[[ $(uname -sm) =~ ^Linux\ (x86_64|aarch64)$ ]] ||
  fail "the released program is for Linux on x86-64 and aarch64: build kvtool and give 'program'"

name=kvtool-$VERSION-linux-${BASH_REMATCH[1]}
from=$GITHUB_SERVER_URL/$REPOSITORY/releases/download/v$VERSION
work=$RUNNER_TEMP/kvtool-$VERSION
rm -rf "$work"
mkdir -p "$work"
cd "$work"
get() { curl --fail --silent --show-error --location --retry 3 --max-time 300 -o "$1" "$from/$1" || fail "cannot fetch $from/$1"; }
get "$name.tar.xz"
if [ -z "$SHA256" ]; then
  get SHA256SUMS
  SHA256=$(sed -n "s|^\([0-9a-f]\{64\}\) [ *]\(\./\)\?$name\.tar\.xz\$|\1|p" SHA256SUMS)
  [[ $SHA256 =~ ^[0-9a-f]{64}$ ]] || fail "SHA256SUMS of v$VERSION does not name $name.tar.xz"
fi
echo "$SHA256  $name.tar.xz" | sha256sum --check --quiet - ||
  fail "$name.tar.xz is not what was released: its SHA-256 is $(sha256sum "$name.tar.xz" | cut -d' ' -f1), expected $SHA256"
tar xJf "$name.tar.xz" "$name/bin/kvtool"
"$work/$name/bin/kvtool" --version
echo "$work/$name/bin" >>"$GITHUB_PATH"
echo "program=$work/$name/bin/kvtool" >>"$GITHUB_OUTPUT"
