#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Judges all caches of a folder on a Slurm cluster, as a CI does every night, and writes the verdict as JUnit.
#
#   nightly.sh DUMPS GATE_CONFIG OUT
#
# An array of KVTOOL_SHARDS tasks (16) runs kvtool gate over the caches, and a job after it merges the verdicts. Missing
# shards are submitted again, at most twice. The config's cases name no snapshot. OUT gets corpus.jsonl, results, merged.json,
# corpus.html and junit.xml; results that it holds from an earlier try of the same corpus are kept. The exit status is the
# gate's: 0 if passed, 1 if failed, 3 or more if something has no verdict.
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
