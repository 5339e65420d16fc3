# Runs the scripts of a Slurm array as a task would, and tests what they refuse; tests/scale uses a real Slurm.
$PYTHON -m corpus_files all
"$KVTOOL" corpus make all -o corpus.jsonl -q
export SLURM_ARRAY_JOB_ID=70 SLURM_CPUS_PER_TASK=1
# Slurm ends a task while it waits to be requeued. Nothing does that here, so the task need not wait.
mkdir bin; printf '#!/bin/sh\necho "${0##*/} $*"\n' > bin/scontrol; chmod +x bin/scontrol; cp bin/scontrol bin/sleep; PATH=$PWD/bin:$PATH
task() {
  local status=0 corpus=$1; export SLURM_ARRAY_TASK_ID=$2; shift 2
  bash "$SCRIPTS/scale/kvtool-array.sbatch" "$corpus" results "$@" > out 2>&1 || status=$?
  grep -vE '^shard .*: . of|inputs: ' out >&2 || true; echo "$status" >&2
}
merge() { local status=0; bash "$SCRIPTS/scale/kvtool-merge.sbatch" results -f -q -o "$1" || status=$?; echo "$status" >&2; }
task corpus.jsonl 0 inspect
export KVTOOL_SHARDS=3
task corpus.jsonl 3 inspect
task corpus.jsonl 0 inspect --nonsense
for i in 0 2; do task corpus.jsonl $i inspect; done
merge merged.json
task corpus.jsonl 1 inspect
merge merged.json
"$KVTOOL" inspect --corpus corpus.jsonl --results alone.jsonl -q --keep-going
"$KVTOOL" merge alone.jsonl -q -o alone.json; cmp alone.json merged.json && echo the same
# An unreadable input may appear later, but is not retried for ever.
task missing.jsonl 2 inspect
SLURM_RESTART_COUNT=3 task missing.jsonl 2 inspect
# A damaged input gets a result, too.
head -c 500 all/pair/a.safetensors > all/pair/cut.safetensors
"$KVTOOL" corpus make all -o corpus.jsonl -q -f
task corpus.jsonl 0 inspect
rm -r results; for i in 0 1 2; do task corpus.jsonl $i inspect 2>> said; done; grep -c '^0$' said
merge merged.json
bash "$SCRIPTS/scale/kvtool-array.sbatch" corpus.jsonl || echo "$?" >&2
bash "$SCRIPTS/scale/kvtool-merge.sbatch" || echo "$?" >&2
