replay() { status=0; "$KVTOOL" replay-h2o "$TESTDATA/trace/kjv3m.seq0.bin" --trace "$TESTDATA/trace/kjv3m" "$@" || status=$?; echo "$status"; }
replay --prompt-tokens 48 --policy lru
replay --prompt-tokens 48 --policy Tova,LRU
replay --prompt-tokens 48 --target-ratio 0.5
replay --prompt-tokens 48 --target-ratio 4-2
replay --prompt-tokens 48 --target-ratio 2,3 --plan-out plan.json
replay --prompt-tokens 96
replay --prompt-tokens 48 --engine mnn --granularity kv-head
replay --prompt-tokens 48 --engine mnn-r6 --layer-start 0
"$KVTOOL" replay-h2o "$TESTDATA/trace/kjv3m.seq0.bin" --trace nothing/here || echo $?
replay --prompt-tokens 48 --budget 0.5 --schedule mnn
replay --prompt-tokens 48 --budget 0.5 --engine mnn
replay --prompt-tokens 48 --schedule paper --engine mnn
replay --prompt-tokens 48 --budget 0.5 --target-ratio 2
for budget in 0 1.5 -1 nan 0t t 1e3t 12.5t 0.5,; do replay --prompt-tokens 48 "--budget=$budget"; done
replay --prompt-tokens 48 --budget 24t --sink 8 --recent 20
replay --prompt-tokens 48 --budget 3t --policy streaming
replay --prompt-tokens 48 --kernel 4
replay --prompt-tokens 48 --window 0
replay --prompt-tokens 48 --h2o-heavy 2
replay --prompt-tokens 48 --re-rotate --rope-base 1e4
replay --prompt-tokens 48 --re-rotate --policy streaming
replay --prompt-tokens 48 --re-rotate --policy streaming --budget 24t --rope-base 1e4 --rope-scaling dynamic:2,64
seq 16 > freqs.txt
replay --prompt-tokens 48 --re-rotate --policy streaming --budget 24t --rope-freqs freqs.txt --html-out freqs.txt -f
