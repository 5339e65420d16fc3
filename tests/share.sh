#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs one share of a Catch2 program's tests in one process: share.sh PROGRAM SHARE SHARES SPEC
set -euo pipefail
program=$1 share=$2 shares=$3 spec=$4
names=$(mktemp)
trap 'rm -f "$names"' EXIT
if [[ $("$program" --help) == *--list-test-names-only* ]]; then
  { "$program" "$spec" --list-test-names-only || true; } | awk -v n="$shares" -v i="$share" 'NF && NR % n == i % n { gsub(/[,[\\]/, "\\\\&"); print }' >"$names"
  [ -s "$names" ] || { echo "share $share of $shares is empty" >&2; exit 1; }
  ran=$("$program" --input-file "$names" --durations no | sed "/^Filters: /d" | tee /dev/stderr | sed -n 's/^.*in \([0-9]*\) test cases\?)$/\1/p')
  [ "$ran" = "$(wc -l <"$names")" ] || { echo "ran '$ran' of the $(wc -l <"$names") tests in share $share" >&2; exit 1; }
else # Catch2 3
  "$program" "$spec" --shard-count "$shares" --shard-index $((share - 1))
fi
