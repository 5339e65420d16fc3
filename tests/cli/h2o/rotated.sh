# llama.cpp stores some quantised caches Hadamard-rotated: commands that read K or V see what the model computed, or
# refuse if that is unknown. One prompt is stored as f16, as rotated q5_1 and q4_0, and as q8_0 of a build that may or
# may not rotate.
states="$TESTDATA/llamacpp/states"; f16="$TESTDATA/trace/kjv3m.seq0.bin"
"$PYTHON" "$SHARED_SUITE/rotated_queries.py" "$TESTDATA/trace/kjv3m"
mass() {
  "$KVTOOL" replay-h2o "$1" --trace "$2" --block-tokens 8 --sink 4 --recent 16 --trigger-min 48 --layer-start 0 \
    --target-ratio 2 --json -q "${@:3}" | jq '.results[].runs[0].attention.mass.mean'
}
expected=$(mass "$f16" queries.npz)
near() { if jq -ne "($1 - $expected) | fabs < 0.005" > /dev/null; then echo near; else echo "far: $1 for $expected"; fi; }
near "$(mass "$states/kjv3m-v050-q5_1-rotated.seq0.bin" queries.npz)"
near "$(mass "$states/kjv3m-v050-q4_0-rotated.seq0.bin" queries.npz)"
near "$(mass "$states/kjv3m-v050-q5_1-rotated.seq0.bin" queries.npz --kv-heads 2)"
near "$(mass "$states/kjv3m-b8352-q8_0.seq0.bin" queries.npz --rotated no)"
near "$(mass "$states/kjv3m-v050-q5_1-rotated.seq0.bin" queries.npz --rotated no)"
status=0
mass "$states/kjv3m-b8352-q8_0.seq0.bin" queries.npz || status=$?
"$KVTOOL" replay-lossless "$states/kjv3m-b8352-q8_0.seq0.bin" --trace queries.npz --mode store || status=$?
echo "open: $status"

for state in "$f16" "$states/kjv3m-v050-q5_1-rotated.seq0.bin"; do
  cat > gate.json << JSON
{"schema": "kvtool.gate-config/1", "on_not_run": "warn", "cases": [{"name": "c", "mode": "store", "snapshot": "$state",
 "trace": "queries.npz", "prompt_tokens": 48,
 "params": {"h2o_block_tokens": 8, "h2o_sink_tokens": 4, "h2o_recent_tokens": 16, "h2o_trigger_min_tokens": 48,
            "h2o_layer_start": 0, "h2o_target_lossy_ratio": 2},
 "rules": [{"metric": "attention_error.mean", "op": "<=", "limit": 0.14},
           {"metric": "attention_error.mean", "op": ">=", "limit": 0.08}]}]}
JSON
  "$KVTOOL" gate gate.json --deterministic -q > /dev/null && echo "gate near"
done

# The trace's own K and V are also compared with what the model computed.
near "$(mass "$states/kjv3m-v050-q5_1-rotated.seq0.bin" "$TESTDATA/trace/kjv3m" --prompt-tokens 48)"
"$KVTOOL" convert "$states/kjv3m-v050-q5_1-rotated.seq0.bin" --kv-heads 2 --dtype f16 --to npz -o turned.npz -q
"$KVTOOL" diff "$states/kjv3m-v050-q5_1-rotated.seq0.bin" turned.npz --kv-heads 2 --atol 0.01 -q > /dev/null && echo "diff near"
sd() { "$KVTOOL" inspect "$1" --kv-heads 2 --stats --json -q "${@:2}" | jq -c '.results[0] | [.layers[] | .k.stats.max | . * 10 | round]'; }
sd "$states/kjv3m-v050-q5_1-rotated.seq0.bin"
sd turned.npz
"$KVTOOL" inspect "$states/kjv3m-b8352-q8_0.seq0.bin" --stats > /dev/null
"$KVTOOL" analyze "$states/kjv3m-v050-q5_1-rotated.seq0.bin" --kv-heads 2 > /dev/null
"$KVTOOL" diff "$states/kjv3m-v050-q5_1-rotated.seq0.bin" turned.npz --kv-heads 2 --rotated no --atol 0.01 -q > /dev/null || echo "unturned: $?"

# Keys rotated to their positions within the cache are those that the model computed.
lost() {
  "$KVTOOL" replay-h2o "$1" --trace queries.npz --policy streaming --budget 24t --re-rotate --rope-base 1e4 --rope-style gptj \
    --json -q "${@:2}" | jq '.results[].runs[0].attention.output_error.mean'
}
expected=$(lost "$f16")
near "$(lost "$states/kjv3m-v050-q5_1-rotated.seq0.bin")"
lost "$f16" --rope-scaling yarn:4,32 > yarn.txt
jq -ne "($(cat yarn.txt) - $expected) | fabs > 0.003" > /dev/null && echo "another rotation"
near "$(lost "$states/kjv3m-v050-q5_1-rotated.seq0.bin" --rotated no)" | cut -c1-3
