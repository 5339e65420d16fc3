# Many caches give the same results as each alone, and merge to the results of one run.
mkdir many; for name in a b c; do cp "$TESTDATA/llamacpp/states/kjv3m-b8352-q8_0.seq0.bin" many/$name.bin; done
run() { "$KVTOOL" replay-lossless "$@" --kv-heads 2 --rotated no --mode full --prompt-tokens 128 --hot-recent-tokens 16 --h2o-trigger-min-tokens 64 \
  --block-tokens 32 --deterministic; }
run many/a.bin --json | jq -c '.results[0].memory.end | [.full_bytes, .resident_bytes]' > alone
run -r many --json | jq -c '.results[] | .memory.end | [.full_bytes, .resident_bytes]' | uniq -c | sed 's/^ *//' > all
echo "3 $(cat alone)" | cmp - all && echo "as alone"
"$KVTOOL" corpus make many -o corpus.jsonl -q
run --corpus corpus.jsonl --results one.jsonl -q > /dev/null
for i in 0 1; do run --corpus corpus.jsonl --results $i.jsonl --shard $i/2 -q > /dev/null; done
"$KVTOOL" merge one.jsonl -o one.json
"$KVTOOL" merge 1.jsonl 0.jsonl -o two.json -q > /dev/null
cmp one.json two.json && $VALIDATE < one.json
jq -c '.results[0].figures[] | [.what, .figure, .count, .weighted]' one.json; cat alone
run many/a.bin many/b.bin --jsonl-out events.jsonl
