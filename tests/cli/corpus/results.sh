# Tests manifests, shards, and the result line of each input, which a second run does not repeat.
$PYTHON -m corpus_files all
$PYTHON "$SHARED_SUITE/../runs/made_run.py" "$TESTDATA" all/run
head -c 500 all/pair/a.safetensors > all/pair/cut.safetensors
"$KVTOOL" corpus make all -o corpus.jsonl
jq -c '[.name, .kind, .format, .tokens, .problem]' corpus.jsonl
"$KVTOOL" corpus check corpus.jsonl
"$KVTOOL" corpus check corpus.jsonl --json | $VALIDATE
run() { "$KVTOOL" analyze --corpus corpus.jsonl --keep-going --deterministic -q "$@" 2> err; }
status=0; run --results all.jsonl || status=$?; echo "exit $status"
jq -c '[.schema, .entries // .name, .exit_code]' all.jsonl | sort
for line in $(seq 1 7); do sed -n "${line}p" all.jsonl | $VALIDATE; done | sort | uniq -c
# Finished inputs are not repeated; a torn line is.
cp all.jsonl before.jsonl; run --results all.jsonl || echo "exit $?"; cmp all.jsonl before.jsonl
truncate -s -20 all.jsonl; run --results all.jsonl || true
diff <(sort all.jsonl) <(sort before.jsonl) && echo the same
# After a kill at any time, the missing inputs are known.
for wait in 0.005 0.02 0.04; do
  { timeout -s KILL $wait "$KVTOOL" analyze --corpus corpus.jsonl --keep-going --deterministic -q --results killed.jsonl; } > out 2>&1 || true
done
run --results killed.jsonl || true
diff <(sort killed.jsonl) <(sort before.jsonl) && echo the same
# Results of other commands or inputs are not mixed in.
first() { { "$KVTOOL" "$@" 2>&1 || true; } | sed -n 1p; }
first analyze --corpus corpus.jsonl --results all.jsonl --level high
first analyze --corpus corpus.jsonl --results all.jsonl --shard 0/2 -q
run --results all.jsonl --level high -f || sed -n 1p all.jsonl | jq -c .parameters
# Each input is in exactly one shard, in any order.
for way in hash bytes; do
  for i in 0 1 2; do run --results $way-$i.jsonl --shard $i/3 --balance $way || true; done
  cat $way-?.jsonl | jq -r '.name // empty' | sort | tr '\n' ' '; echo
done
export KVTOOL_SHARDS=3
export SLURM_ARRAY_TASK_ID=1; first inspect --corpus corpus.jsonl --shard auto
unset SLURM_ARRAY_TASK_ID; export JOB_COMPLETION_INDEX=2; first inspect --corpus corpus.jsonl --shard auto
# An input that changed after the manifest was made is reported, and gives no result.
printf x >> all/pair/a.safetensors; printf '\1' | dd of=all/arrays/k.npy bs=1 seek=200 conv=notrunc status=none
"$KVTOOL" corpus check corpus.jsonl || echo "exit $?"
"$KVTOOL" corpus check corpus.jsonl --quick -q || echo "exit $?"
run --results changed.jsonl || grep -c 'corpus.jsonl says' err
