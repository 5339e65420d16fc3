#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a CI starts every night: judge all caches of a folder on a Slurm cluster, and say so in JUnit.
#
#   nightly.sh DUMPS GATE_CONFIG OUT
#
# An array of KVTOOL_SHARDS tasks (16) runs kvtool gate over the caches, a job behind it joins the verdicts, and shards that are
# missing then are sent again, twice. The config's cases name no snapshot. OUT gets corpus.jsonl, results, merged.json,
# corpus.html and junit.xml; what it holds of an earlier try of the same corpus is not done again. The exit status is the
# gate's: 0 passed, 1 failed, 3 and up no verdict on something.
set -euo pipefail
[ $# -eq 3 ] || { echo "usage: nightly.sh DUMPS GATE_CONFIG OUT" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
dumps=$(realpath "$1") config=$(realpath "$2")
mkdir -p "$3"
out=$(realpath "$3")
export KVTOOL_SHARDS=${KVTOOL_SHARDS:-16}

"${KVTOOL:-kvtool}" corpus make "$dumps" -o "$out/corpus.jsonl" -f
cd "$out"
tasks=0-$((KVTOOL_SHARDS - 1))
for _ in 1 2 3; do
  array=$(sbatch --parsable --array="$tasks" "$here/kvtool-array.sbatch" corpus.jsonl results gate "$config" --corpus-dir "$dumps")
  status=0
  sbatch --wait --dependency=afterany:"$array" --open-mode=truncate --output=merge.log "$here/kvtool-merge.sbatch" results -f \
    -o merged.json --html-out corpus.html --junit-out junit.xml || status=$?
  tasks=$(sed -n 's/.*missing or not complete: \([0-9,]*\).*/\1/p' merge.log)
  [ -n "$tasks" ] || break
  echo "sent again: $tasks"
done
cat merge.log
exit "$status"
