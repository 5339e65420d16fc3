replay() { status=0; "$KVTOOL" replay-h2o "$TESTDATA/trace/kjv3m.seq0.bin" --trace "$TESTDATA/trace/kjv3m" "$@" || status=$?; echo "$status"; }
replay --prompt-tokens 48 --policy lru
replay --prompt-tokens 48 --target-ratio 0.5
replay --prompt-tokens 48 --target-ratio 4-2
replay --prompt-tokens 48 --target-ratio 2,3 --plan-out plan.json
replay --prompt-tokens 96
replay --prompt-tokens 48 --engine mnn --granularity kv-head
replay --prompt-tokens 48 --engine mnn-r6 --layer-start 0
"$KVTOOL" replay-h2o "$TESTDATA/trace/kjv3m.seq0.bin" --trace nothing/here || echo $?
